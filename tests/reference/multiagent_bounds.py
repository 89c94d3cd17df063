r"""Numerical values of the proven bounds for ISFedAvg and graph federated learning (Rizk 2023,
chapters 2 and 3).

The bounds hold for any smooth and strongly convex loss; here their constants are for a squared
loss. They exceed the actual values by orders of magnitude and show only how these scale;
:mod:`fljax.theory.multiagent` computes the actual values. Lines refer to the thesis's text.

Shapes: ``K`` clients, ``N`` samples, ``P`` servers, ``D`` parameters. Everything is traceable.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax.graphs import Combination
from fljax.graphs.federation import Federation
from fljax.problems import Problem
from fljax.problems.solvers import strong_convexity
from fljax.theory import multiagent
from fljax.theory.multiagent import affine_gradient, importance, sample_gradients, uneven_spread

# --------------------------------------------------------------------------- draws


def batch_gain(batch: int, samples: int, replacement: bool = False) -> float:
    r"""Factor by which a batch reduces the deviation of single samples, :math:`\tau_B` of (1.13).

    :math:`B` with replacement and :math:`B\frac{N-1}{N-B}` without, which is infinite for the full
    batch.
    """
    if replacement:
        return float(batch)
    return float("inf") if batch == samples else batch * (samples - 1) / (samples - batch)


class BatchVariance(NamedTuple):
    """Mean squared distance of a batch's weighted mean from the mean over all samples."""

    independent: Array  # []  with replacement, (2.80): exact
    bound: Array  # []  without replacement, (2.81)
    without: Array  # []  without: exact if all are equal, see `fljax.theory.multiagent.DrawMoments`


def batch_variance(
    values: Float[Array, "samples dim"],
    probabilities: Float[Array, " samples"],
    batch: int,
    variances: Float[Array, " samples"] | None = None,
) -> BatchVariance:
    r"""Variance of a batch mean :math:`\frac1B\sum_bx_b/(Np_b)`, the auxiliary lemma of (2.80)
    (Lemma 2.A).

    .. math::

        E\|\hat x-\bar x\|^2=\frac1B\sum_np_n\Big(\frac{\sigma_n^2}{N^2p_n^2}
        +\Big\|\frac{\bar x_n}{Np_n}-\bar x\Big\|^2\Big)

    with replacement. Without replacement the source gives :math:`B` times this as a bound, since it
    ignores that the drawn samples are distinct; the third value accounts for this.

    Args:
      values: :math:`\bar x_n`, ``[N, D]``, the means of the samples.
      probabilities: :math:`p_n>0`, ``[N]``, with sum one.
      batch: ``B``.
      variances: :math:`\sigma_n^2=E\|x_n-\bar x_n\|^2`, ``[N]``; none by default.
    """
    samples = len(values)
    values = jnp.asarray(values)
    probabilities = jnp.asarray(probabilities)
    inner_variances = jnp.zeros_like(probabilities) if variances is None else jnp.asarray(variances)
    scaled = values / (samples * probabilities)[:, None]
    inner = inner_variances / (samples * probabilities) ** 2
    squares = jnp.sum((scaled - jnp.mean(values, axis=0)[None]) ** 2, axis=1)
    single_draw = jnp.sum(probabilities * (inner + squares))
    spread = uneven_spread(probabilities, jnp.asarray(batch, probabilities.dtype))
    total = jnp.sum(spread)
    center = jnp.sum(spread[:, None] * scaled, axis=0) / jnp.where(total > 0, total, 1)
    without = jnp.sum(spread * jnp.sum((scaled - center[None]) ** 2, axis=1))
    return BatchVariance(
        single_draw / batch, single_draw, without + jnp.sum(probabilities * inner) / batch
    )


# --------------------------------------------------------------------------- chapter 2


class Constants(NamedTuple):
    r"""The constants of Lemmas 2.1 to 2.4."""

    convexity: Array  # []  nu, the smallest curvature of a client's objective
    lipschitz: Array  # []  delta, the largest of a sample's
    model: Array  # []  beta_s^2, (2.22)
    noise: Array  # []  sigma_s^2, (2.23)
    client_model: Array  # [K]  beta_{s,k}^2, (2.24)
    client_noise: Array  # [K]  sigma_{s,k}^2, (2.25)
    local_model: Array  # [K]  E_k beta_{s,k}^2 / (K p_k)^2, in (2.30)
    local_noise: Array  # [K]  sigma_{q,k}^2 / (K p_k)^2, of (2.31) and in (2.30)

    @property
    def step_limit(self) -> Float[Array, ""]:
        r"""Step size below which centralized and local steps converge, (2.41), by Lemmas 2.2 and
        2.4. The source prints :math:`p_i` and :math:`p_s` for :math:`p_k` (sections 2.3.2 and
        2.3.3).
        """
        square = self.lipschitz**2
        local = jnp.max(square + self.local_model)
        return 2 * self.convexity / jnp.maximum(square + self.model, local)

    def rate(self, step_size: Float[Array, ""] | float) -> Float[Array, ""]:
        r""":math:`\lambda=1-2\mu\nu+\mu^2(\delta^2+\beta_s^2)` of Lemma 2.2 (without the
        :math:`\eta_s` that remains in its proof, (2.107)).
        """
        return 1 - 2 * step_size * self.convexity + step_size**2 * (self.lipschitz**2 + self.model)

    def local_rates(self, step_size: Float[Array, ""] | float) -> Float[Array, " clients"]:
        r""":math:`\lambda_k` of Lemma 2.4, (2.34)."""
        square = self.lipschitz**2 + self.local_model
        return 1 - 2 * step_size * self.convexity + step_size**2 * square

    def deviation(self, step_size: Float[Array, ""] | float) -> Float[Array, ""]:
        r"""The limit of (2.28), :math:`\mu^2\sigma_s^2/(1-\lambda)`, of the centralized recursion
        (whose estimates have the factor :math:`1/(Kp_\ell)` that (2.26) lacks); it is
        :math:`O(\mu)`. Infinite if the bound is vacuous.

        Several local steps add :math:`\mu^2E\|q_i\|^2/(1-\sqrt\lambda)` before it is divided by
        another :math:`1-\sqrt\lambda`: with :math:`E\|q_i\|^2=O(\mu^2)` no more than
        :math:`O(\mu^2)\xi^2`, and not the :math:`O(\mu)\xi^2` of Theorem 2.1, whose :math:`a` and
        :math:`b` (2.123), (2.124) are :math:`O(1)` for given :math:`E_k`, not
        :math:`O(\mu^{-1})` and :math:`O(\mu^{-2})` (appendix 2.F).
        """
        contraction = 1 - self.rate(step_size)
        bound = step_size**2 * self.noise / jnp.where(contraction > 0, contraction, 1)
        return jnp.where(contraction > 0, bound, jnp.inf)


def constants(
    problem: Problem,
    clients: Float[Array, " clients"],
    samples: Float[Array, "clients samples"],
    clients_per_round: int,
    batch: PyTree = 1,
    local_steps: object = 1,
    independent: bool = False,
) -> Constants:
    r"""The constants of the bounds of chapter 2 for a problem and probabilities.

    Lemma 2.1 bounds :math:`E\|s_i\|^2\le\beta_s^2\|\tilde w_{i-1}\|^2+\sigma_s^2`: as printed for
    independent draws, and :math:`L` times that without replacement (section 2.3.2).
    :func:`fljax.theory.multiagent.gradient_noise` is that moment at a given model.

    Args: as for :func:`fljax.theory.multiagent.importance`; probabilities of a client's samples are
      positive.
    """
    draws = importance(
        problem, clients, samples, clients_per_round, batch, local_steps, independent
    )
    sizes = jnp.broadcast_to(jnp.asarray(batch, problem.dtype), problem.clients)
    scale = 1.0 if independent else float(clients_per_round)
    return _constants(problem, draws, sizes, jnp.asarray(clients_per_round), scale)


@jax.jit
def _constants(problem: Problem, draws: Any, sizes: Array, count: Array, scale: Array) -> Constants:
    dtype = problem.dtype
    real = jnp.asarray(problem.weights) > 0
    hessians = affine_gradient(problem)[0]
    convexity = jnp.min(jnp.linalg.eigvalsh(hessians))
    ridge = strong_convexity(problem)
    curvature = 2 * jnp.sum(problem.design**2, axis=2) + jnp.reshape(ridge, (-1, 1))
    lipschitz = jnp.max(jnp.where(real, curvature, 0))
    square = lipschitz**2
    steps = draws.steps.astype(dtype)
    probability = jnp.where(real, draws.samples, 1)
    share = jnp.asarray(problem.weights) ** 2 / probability  # 1 / (N^2 p_n)

    best = multiagent.minimizer(problem)
    norms = _norms(problem, jnp.broadcast_to(best, (problem.clients, problem.dim)))
    local_norms = _norms(problem, multiagent.local_minimizers(problem))
    loss, regularizer = sample_gradients(problem, best)
    gradient = jnp.sum(jnp.asarray(problem.weights)[..., None] * loss, axis=1) + regularizer
    drawn = steps * sizes
    client_model = 3 * square / drawn * (1 + jnp.sum(share, axis=1))
    client_noise = 6 / drawn * jnp.sum(share * norms, axis=1)
    local = 3 / sizes * jnp.sum(share * local_norms, axis=1)
    clients = problem.clients
    factor = scale.astype(dtype) / count.astype(dtype)
    model = jnp.sum((client_model + 3 * square) / draws.clients) / clients**2
    noise = client_noise + (3 + 6 / drawn) * jnp.sum(gradient**2, axis=1)
    weight = 1 / (clients * draws.clients) ** 2
    return Constants(
        convexity,
        lipschitz,
        factor * (3 * square + model),
        factor * jnp.sum(noise / draws.clients) / clients**2,
        client_model,
        client_noise,
        weight * steps * client_model,
        weight * local,
    )


def _norms(problem: Problem, models: Array) -> Array:
    """Squared norms of the samples' gradients, ``[K, N]``, zero on padding."""
    return problem.sample_objective_norms(models) ** 2


# --------------------------------------------------------------------------- chapter 3


class ServerNoise(NamedTuple):
    """Constants of each server's gradient noise, from section 3.3.2."""

    model: Array  # [P]  beta_{s,p}^2, (3.25)
    noise: Array  # [P]  sigma_{s,p}^2, (3.26)


def server_noise(
    problem: Problem, network: Federation, clients_per_server: int, local_steps: object = 1
) -> ServerNoise:
    r"""The constants of (3.24), for uniform draws of :math:`L` clients and one sample per step.

    They are (2.22) and (2.23) with equal probabilities and, in addition, with
    :math:`\|f_k'\|^2\le\frac1N\sum_n\|Q_k'\|^2`.
    """
    dtype = problem.dtype
    home = jnp.asarray(network.server)
    steps = jnp.broadcast_to(jnp.asarray(local_steps, dtype), problem.clients)
    weights = jnp.asarray(problem.weights)
    ridge = strong_convexity(problem)
    curvatures = 2 * jnp.sum(problem.design**2, axis=2) + jnp.reshape(ridge, (-1, 1))
    lipschitz = jnp.max(jnp.where(weights > 0, curvatures, 0))
    models = jnp.broadcast_to(multiagent.minimizer(problem), (problem.clients, problem.dim))
    noise = (12 / steps + 3) * jnp.sum(weights * _norms(problem, models), axis=1)

    def mean(values: Array) -> Array:
        total = jax.ops.segment_sum(values, home, network.servers)
        return total / jnp.asarray(network.sizes, dtype)

    model = 6 * lipschitz**2 / clients_per_server * (1 + mean(1 / steps))
    return ServerNoise(model, mean(noise) / clients_per_server)


def disagreement_bound(
    combination: Combination,
    step_size: Float[Array, ""] | float,
    gradient_noise: Float[Array, " nodes"],
    added_noise: Float[Array, " nodes"],
    slopes: Float[Array, " nodes"] | None = None,
) -> Float[Array, ""]:
    r"""Leading terms of the limit (3.44) in Lemma 3.3 for :math:`\frac1P\sum_pE\|w_p-w_c\|^2`.

    .. math::

        \frac{\iota^2}{P(1-\iota)}\sum_p\Big[\mu^2\sigma_{s,p}^2+\frac{\sigma_{g,p}^2}{\iota^2}
        +\frac{2\mu^2\|f_p'(w^o)\|^2}{\iota(1-\iota)}\Big]

    with :math:`\iota` the rate of the weights (:meth:`~fljax.graphs.Combination.rate`). The last
    term is in (3.42) and is omitted in (3.44), as if it were part of :math:`O(\mu^3)`: without
    noise, nodes with different gradients still disagree by :math:`O(\mu^2)`, so that the limit is
    false as printed; ``slopes`` repairs it.

    Args:
      combination: symmetric, doubly stochastic weights (Assumption 3.1).
      step_size: :math:`\mu`.
      gradient_noise: :math:`\sigma_{s,p}^2`, ``[P]``, such as from :func:`server_noise`.
      added_noise: :math:`\sigma_{g,p}^2`, ``[P]``: the mean squared norm of the noise that a round
        adds at each node, as on the diagonal of :func:`fljax.theory.multiagent.noise_covariance`
        times ``D``.
      slopes: :math:`\|f_p'(w^o)\|^2`, ``[P]``; by default omitted, as printed.
    """
    rate = combination.rate()
    total = step_size**2 * rate**2 * jnp.sum(jnp.asarray(gradient_noise)) + jnp.sum(added_noise)
    if slopes is not None:
        total = total + 2 * step_size**2 * rate / (1 - rate) * jnp.sum(jnp.asarray(slopes))
    return total / (combination.nodes * (1 - rate))
