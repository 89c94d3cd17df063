r"""Exact networked ADMM, without privacy (Gauthier 2024, (3.4)) and with it (P-ADMM)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.privacy import Gap
from fljax.problems import Problem, factorize, prox
from fljax.problems.solvers import ProxFactor, prox_rounding, strong_convexity


class NetworkedADMMState(NamedTuple):
    """State of ADMM between rounds."""

    model: Array  # [K, D]  w_k
    sent: Array  # [K, D]  the last message of client k
    received: Array  # [K, D]  the sum of its neighbors' messages
    dual: Array  # [K, D]  gamma_k
    factor: ProxFactor  # of the primal systems, constant


@algorithm(
    "ADMM",
    ("schizas2008", "shi2014", "gauthier2024"),
    Needs(minimizer=True),
    {"Decentralized ADMM": "", "Consensus ADMM": ""},
)
@module
class NetworkedADMM(Algorithm):
    r"""Distributed consensus ADMM with an exact primal step.

    .. math::

        w_k^{(n)} &= \arg\min_w f_k(w)+w^\top\gamma_k
            +\rho\sum_{l\in\mathcal N_k}\Big\|w-\frac{\tilde w_k+\tilde w_l}2\Big\|^2 \\
        \gamma_k^{(n)} &= \gamma_k+\rho\sum_{l\in\mathcal N_k}(\tilde w_k^{(n)}-\tilde w_l^{(n)})

    with :math:`\tilde w=w` here, all right-hand sides from round :math:`n-1`, and zero initial
    values. The primal step is :math:`\mathrm{prox}_{f_k/c_k}(v_k)` with
    :math:`c_k=2\rho|\mathcal N_k|`: one linear solve, factorized once, for squared losses with no
    or a squared regularizer; warm-started inner iterations otherwise. The aggregated dual is
    :math:`\gamma_k=2\sum_l\mu_k^l`; the index printed in section 3.2.2 is wrong, the recursion is
    right.

    Args:
      penalty: :math:`\rho>0`.
      inner_iterations: iterations of the primal solver if no closed form exists.

    Raises:
      ValueError: a privacy budget (use P-ADMM), or a problem that clips gradients.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.NetworkedADMM(penalty=0.3)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 1e-8)
      True

    Reference:
      Schizas, Ribeiro & Giannakis 2008, for estimation; Shi et al. 2014, for any convex objectives;
      Gauthier 2024, (3.4).
    """

    penalty: Float[Array, ""] | float
    inner_iterations: int = static(default=100)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.count("inner_iterations", self.inner_iterations)

    def init(self, problem: Problem, network: Graph) -> NetworkedADMMState:
        start = start_models(problem)
        factor = factorize(problem, 2 * self.penalty * network.degree)
        return NetworkedADMMState(
            start, start, network.neighbor_sum(start), jnp.zeros_like(start), factor
        )

    def step(self, state: NetworkedADMMState, now: Round) -> NetworkedADMMState:
        degree = now.network.degree[:, None]
        consensus = self.penalty * (degree * state.sent + state.received)
        center = (consensus - state.dual) / state.factor.weight[:, None]
        model = prox(now.problem, state.factor, center, state.model, self.inner_iterations)
        now.witness_at(model)

        rounding = prox_rounding(now.problem, center, state.model, model, self.inner_iterations)
        sent, inbox = now.link.exchange(model, rounding=rounding)
        received = inbox.sum()
        dual = state.dual + self.penalty * (degree * sent - received)
        return NetworkedADMMState(model, sent, received, dual, state.factor)

    def released(self, state: NetworkedADMMState, problem: Problem, network: Graph) -> Array:
        """Return the clients' last messages."""
        return state.sent

    def sensitivity(
        self, problem: Problem, network: Graph, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""Return the gradient's sensitivity over :math:`2\rho|\mathcal N_k|+\mu_k`.

        The minimizers of two :math:`m`-strongly convex functions whose gradients differ by at
        most :math:`g` are at most :math:`g/m` apart; :math:`\mu_k` is the strong convexity of the
        regularizer (:math:`2\lambda/K` for ridge). The curvature of the loss is not used, so that
        it may differ between the data sets too.
        """
        curvature = 2 * self.penalty * network.degree + strong_convexity(problem)
        return gap.gradient / curvature


@algorithm(
    "P-ADMM",
    ("ding2019", "gauthier2024"),
    Needs(privacy=("message",), minimizer=True, smooth=True),
)
@module
class PADMM(NetworkedADMM):
    r"""Private networked ADMM for smooth objectives: perturbed :class:`NetworkedADMM` (P-ADMM).

    :math:`\tilde w_k=w_k+\xi_k` with the exact primal step at the neighbors' perturbed models. The
    gradient bound must be *assumed*, or follow from ``Problem(feature_bound=)`` and a loss with
    bounded derivative: clipping is not possible inside an exact minimizer. A minimizer computed by
    iterations must use a public step size, which the same bound gives. The original writes
    :math:`\lambda_k=\gamma_k/2` and :math:`\eta` for :math:`\rho`.

    Raises:
      ValueError: a nonsmooth loss or regularizer, which the method does not cover.

    Example:
      >>> import dataclasses, jax, fljax as fl
      >>> problem = fl.problems.logistic(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> features = problem.features / 4  # a public factor, so that norms are below one
      >>> simulation = fl.Simulation(
      ...     problem=dataclasses.replace(problem, features=features, feature_bound=1.0),
      ...     algorithm=fl.algorithms.PADMM(penalty=1.0),
      ...     network=fl.graphs.ring(6),
      ...     privacy=fl.privacy.ZCDP(total_rho=1.0, gradient_bound=1.0),
      ... )
      >>> fl.run(simulation, rounds=10).client_rho.values.round(3).tolist()
      [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]

    Reference:
      Ding et al. 2019 (P-ADMM); Gauthier 2024, section 3.4.3.
    """
