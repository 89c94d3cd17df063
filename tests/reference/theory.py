"""Statements of the papers that only tests compare with runs and instances.

By section: GTVMin (Jung 2025); private ADMM, PAO-Fed and PGFL (Gauthier 2024).

Shapes: ``K`` clients, ``D`` parameters, ``R`` rounds of a transcript, ``T`` rounds of a run.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax._core.numerics import HIGHEST
from fljax.theory import pao_fed, pgfl, zcdp_nfl
from fljax.theory.gtvmin_theory import connectivity, curvature, divided
from fljax.theory.multiagent import affine_gradient

# GTVMin -------------------------------------------------------------------------------------------


class VariationBounds(NamedTuple):
    r"""Bounds on the total variation :math:`\sum_{\{k,l\}}a_{kl}\|w_k-w_l\|^2`."""

    lower: Array  # []  lambda_2 times the squared distance from the mean model, (44)
    upper: Array  # []  lambda_n times that


def variation_bounds(network, models):
    r"""Lower and upper bounds on the total variation of models, (44) and, from (40), its other
    side.

    .. math:: \lambda_2\sum_k\|w_k-\bar w\|^2\le\sum_{\{k,l\}}a_{kl}\|w_k-w_l\|^2
        \le\lambda_n\sum_k\|w_k-\bar w\|^2

    with the mean :math:`\bar w`; both are attained by eigenvectors.
    """
    deviation = jnp.sum((models - jnp.mean(models, axis=0)[None]) ** 2)
    largest = jnp.linalg.eigvalsh(network.laplacian_matrix())[-1]
    return VariationBounds(connectivity(network) * deviation, largest * deviation)


class CommonError(NamedTuple):
    """Error of the mean of GTVMin's solutions."""

    error: Array  # [D]  \bar c - \bar w, exactly
    bound: Array  # []  (167), of its squared norm


def common_error(problem, truth, deviation, printed=False):
    r"""Error of the mean of the models, given their deviations: (166), (167), repaired.

    .. math:: \bar c-\bar w=\Big(\sum_kQ^{(k)}\Big)^{-1}s,\quad\|\bar c-\bar w\|^2\le
        \frac{\|s\|^2}{(K\bar\lambda_{\min})^2},\qquad s=\sum_k\frac1{m_k}X^{(k)\top}
        (\varepsilon^{(k)}-X^{(k)}\tilde w_k)

    with :math:`\varepsilon^{(k)}=y^{(k)}-X^{(k)}\bar w`: the coupling enters only through the
    deviations (:func:`fljax.contrib.estimation_error`). The source has a plus sign in
    :math:`s`, with which both statements are false; ``printed`` takes it. The bound is
    attained; it is infinite if the clients together do not determine a model.
    """
    matrices, _ = affine_gradient(problem)
    sign = -1 if printed else 1
    # Half of the gradient of the clients' objectives, at models that deviate from the truth.
    gradient = -jnp.sum(problem.gradient(truth[None] + sign * deviation), axis=0) / 2
    error = jnp.linalg.solve(jnp.sum(matrices, axis=0) / 2, gradient)
    scale = (problem.clients * curvature(problem).pooled) ** 2
    return CommonError(error, divided(jnp.sum(gradient**2), scale))


# Private ADMM -------------------------------------------------------------------------------------


def optimality_residual(simulation, transcript):
    r"""Residual of the primal line of (3.17), zero along every run; ``[R, K, D]``.

    .. math:: \hat f'(W^{(n+1)})+\alpha^{(n)}+2\rho MW^{(n+1)}-\rho L_+\widetilde W^{(n)}

    for :math:`n=0,\dots,R-1`, where
    :math:`\hat f'(W^{(n+1)})=f'(\widetilde W^{(n)})+(W^{(n+1)}-\widetilde W^{(n)})/\eta^{(n+1)}`:
    the printed factor :math:`2D` (section 3.3.3) must be :math:`2D^2=1/\eta`. :math:`\alpha` is the
    stack of the :math:`\gamma_k`, not :math:`H_-^\top W` (section 3.3.3).
    """
    operators = zcdp_nfl.operators(simulation.network)
    gradient = linearized_gradient(simulation, transcript)
    consensus = 2 * apply(operators.degree, transcript.model[1:]) - apply(
        operators.signless, transcript.sent[:-1]
    )
    return gradient + transcript.dual[:-1] + simulation.algorithm.penalty * consensus


def dual_residual(simulation, transcript):
    r"""Residual of the dual line of (3.17), zero along every run; ``[R, K, D]``.

    .. math:: \alpha^{(n+1)}-\alpha^{(n)}-\rho L_-\widetilde W^{(n+1)}

    The third line of (3.16), from which it comes, prints the opposite sign.
    """
    operators = zcdp_nfl.operators(simulation.network)
    ascent = simulation.algorithm.penalty * apply(operators.laplacian, transcript.sent[1:])
    return jnp.diff(transcript.dual, axis=0) - ascent


def combined_residual(simulation, transcript, as_printed=False):
    r"""Residual of (3.18), which combines both lines of (3.17); ``[R, K, D]``.

    .. math::

        \hat f'(W^{(n+1)})/\rho+2Qr^{(n+1)}+L_+(\widetilde W^{(n+1)}-\widetilde W^{(n)})
        -2M\Xi^{(n+1)},\qquad r^{(n)}=\sum_{s=0}^nQ\widetilde W^{(s)}

    is zero along every run that starts at :math:`\alpha^{(0)}=2\rho Qr^{(0)}` (all at zero does).
    (3.18) prints :math:`W^{(n+1)}`, unperturbed, in the third term and is then wrong by
    :math:`L_+\Xi^{(n+1)}`; ``as_printed`` gives that residual.
    """
    operators = zcdp_nfl.operators(simulation.network)
    gradient = linearized_gradient(simulation, transcript) / simulation.algorithm.penalty
    rooted = jnp.cumsum(apply(operators.root, transcript.sent), axis=0)[1:]
    now = transcript.model[1:] if as_printed else transcript.sent[1:]
    consensus = 2 * apply(operators.root, rooted)
    moved = apply(operators.signless, now - transcript.sent[:-1])
    return gradient + consensus + moved - 2 * apply(operators.degree, transcript.noise[1:])


def apply(matrix, stack):
    """``(matrix kron I_D) stack`` for ``[..., K, D]``."""
    return jnp.einsum("kl,...ld->...kd", matrix, stack, precision=HIGHEST)


def linearized_gradient(simulation, transcript):
    r""":math:`\hat f'(W^{(n+1)})` for :math:`n=0,\dots,R-1`, ``[R, K, D]``."""
    messages = transcript.sent[:-1]
    rounds = jnp.arange(1, len(transcript.sent), dtype=jnp.int32)
    steps = jax.vmap(simulation.algorithm.step_size)(rounds)[:, None, None]
    moved = (transcript.model[1:] - messages) / steps
    return jax.vmap(simulation.problem.gradient)(messages) + moved


# PAO-Fed ------------------------------------------------------------------------------------------


class Draws(NamedTuple):
    """All random quantities of ``T`` rounds; a client without new data has zero features."""

    available: np.ndarray  # [T, K]  a_k
    received: np.ndarray  # [T, K, D]  diagonals of M_k
    sent: np.ndarray  # [T, K, D]  diagonals of S_k
    lags: np.ndarray  # [T, K]  rounds that a message sent now takes; outside [0, l_max] it is lost
    features: np.ndarray  # [T, K, D]  z_k
    targets: np.ndarray  # [T, K]  y_k


def extended_run(draws, weights, step_size, as_printed=False):
    r"""The extended models of (4.20) from a start at zero, ``[T+1, N, D]``.

    Model 0 is the server's, models 1 to ``K`` are the clients'; they equal the algorithm's up to
    rounding. ``weights`` are :math:`\alpha_l`, ``[L]``. ``as_printed`` takes the matrices of (4.21)
    as printed, which differ from the algorithm.
    """
    rounds, clients, dim = draws.features.shape
    delays = len(weights)
    ages = np.arange(delays)[:, None]
    sent = np.zeros((delays, clients, dim), bool)
    lags = np.full((delays, clients), -1)  # of the messages sent 0, 1, ... rounds ago
    models = [np.zeros((1 + clients * (delays + as_printed), dim))]
    for n in range(rounds):
        sent = np.roll(sent, 1, axis=0)
        lags = np.roll(lags, 1, axis=0)
        sent[0] = draws.sent[n]
        lags[0] = np.where(draws.available[n], draws.lags[n], -1)
        merge, collect = pao_fed.extended_matrices(
            draws.available[n], draws.received[n], sent, lags == ages, weights, as_printed
        )
        merged = (merge @ models[-1].ravel()).reshape(-1, dim)
        features = draws.features[n]
        errors = draws.targets[n] - np.sum(features * merged[1 : clients + 1], axis=1)
        merged[1 : clients + 1] += step_size * features * errors[:, None]
        models.append((collect @ merged.ravel()).reshape(-1, dim))
    return np.stack(models)


def mean_error(instance, optimum, rounds):
    r""":math:`E[w_e^*-w_e^{(n)}]` for :math:`n=0,\dots,T` from a start at zero, ``[T+1, N, D]``.

    Model 0 is the server's, models 1 to ``K`` are the clients'.
    """
    matrix = pao_fed.mean_matrix(instance)
    errors = [np.tile(optimum, instance.models)]
    for _ in range(rounds):
        errors.append(matrix @ errors[-1])
    return np.stack(errors).reshape(rounds + 1, instance.models, instance.dim)


# PGFL ---------------------------------------------------------------------------------------------


class TheoremTwoSides(NamedTuple):
    """The two sides of (5.27)."""

    left: np.ndarray  # [T, S, Q]
    right: np.ndarray  # [T]

    @property
    def ratio(self):
        """``[T]``: the largest ratio of the left to the right side; above one if the theorem fails.
        Rounds before the first mixing are 0/0 and count as zero.
        """
        worst = self.left.max(axis=(1, 2))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(worst > 0, worst / self.right, 0.0)


def theorem_two(without, mixed, inter_cluster, distance):
    r"""Both sides of Theorem II (5.27), (27), along pairs of runs.

    .. math:: E\|\bar w_{s,(q)}^{(n)}-w_{s,(q)}^{(n)}\|^2
              \le\eta\Big(1-\prod_{i=1}^n(1-\tau^{(i)})\Big)

    The theorem holds in most cases but is false in general; therefore both sides are computed
    without repairs:

    * the proof takes :math:`E\|\bar w_{s,(q)}^{(n)}-\hat w_{s,(r)}^{(n)}\|^2\le\eta` (after (37)),
      but :math:`\eta` refers to the limits: if the clusters' optima are close, their models are
      further apart in the transient phase, and the bound is exceeded. This is most pronounced for
      small :math:`\rho`, in the first rounds; a large :math:`\rho` prolongs the transient phase
      without preventing it;
    * with a large :math:`\rho` the step (36) drops the gradients, which is then no longer a
      contraction, and the limit with a constant :math:`\tau` is the optimum common to all clusters
      (:func:`fljax.theory.pgfl.large_penalty_limit`). This is a mean of the :math:`w^*_{(q)}` with
      *matrices* as weights, which can be further from them than they are from each other. The bound
      then fails in the steady state, by any factor;
    * if it holds, it is loose: the use of convexity of the squared norm loses a factor
      :math:`\tau`, as one mixing moves a model by :math:`\tau^2` times the squared distance.

    Args:
      without: servers' models with :math:`\tau=0` after rounds ``1..T``, :math:`\bar w`, from
        :func:`fljax.theory.pgfl.server_models`; leading axes are Monte Carlo draws.
      mixed: those with :math:`\tau`, for the same data, noise and participation.
      inter_cluster: :math:`\tau^{(n)}`, a number or a schedule.
      distance: :math:`\eta` for each draw, as it depends on the data, or one number.
    """
    gap = np.sum((np.asarray(without) - np.asarray(mixed)) ** 2, axis=-1)
    left = gap.reshape(-1, *gap.shape[-3:]).mean(axis=0)
    eta = float(np.mean(distance))
    return TheoremTwoSides(left, pgfl.inter_cluster_bound(inter_cluster, left.shape[0], eta))
