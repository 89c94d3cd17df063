r"""Private networked ADMM for nonsmooth objectives (Gauthier 2024, Algorithm 2)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.privacy import Gap
from fljax.problems import Problem


class ZCDPNFLState(NamedTuple):
    """State of zCDP-NFL between rounds."""

    model: Array  # [K, D]  w_k, never sent
    sent: Array  # [K, D]  the last message of client k, perturbed
    received: Array  # [K, D]  the sum of its neighbors' messages
    dual: Array  # [K, D]  gamma_k


@algorithm("zCDP-NFL", ("gauthier2023nfl", "gauthier2024"), Needs(privacy=("message",)))
@module
class ZCDPNFL(Algorithm):
    r"""Zero-concentrated differentially private networked federated learning (zCDP-NFL).

    ADMM on the consensus problem (3.2) with the objective linearized at the last *perturbed*
    model and a vanishing proximal step :math:`\eta^{(n)}`; per round and client

    .. math::

        w_k^{(n)} &= \frac{\tilde w_k/\eta^{(n)}+\rho\sum_{l\in\mathcal N_k}(\tilde w_k+\tilde w_l)
            -\gamma_k-f_k'(\tilde w_k)}{2\rho|\mathcal N_k|+1/\eta^{(n)}} \\
        \tilde w_k^{(n)} &= w_k^{(n)}+\xi_k^{(n)} \qquad\text{sent to all neighbors} \\
        \gamma_k^{(n)} &= \gamma_k+\rho\sum_{l\in\mathcal N_k}(\tilde w_k^{(n)}-\tilde w_l^{(n)})

    with everything on the first right-hand side from round :math:`n-1`. The primal line is the
    minimizer of (7) of the paper; the closed form printed in its appendix A has other signs and
    diverges. The step index follows (5) of the paper, where :math:`\eta^{(n)}` is the step size of
    :math:`w^{(n)}`. The initial values :math:`w=\tilde w=\gamma=0` are known to all, so nothing is
    sent in round 0.

    Without privacy it is linearized ADMM and converges to the centralized optimum.

    Args:
      penalty: :math:`\rho>0`.
      step_size: :math:`\eta^{(n)}`, a schedule or a number, > 0.

    Guarantees:
      The data enter a message only through the subgradient at the public :math:`\tilde w_k`, so
      Lemma I bounds its sensitivity by :meth:`sensitivity` if :math:`c_1` bounds per-sample
      gradients.

    Example:
      >>> import jax, fljax as fl
      >>> k_data, k_graph, k_run = jax.random.split(jax.random.key(0), 3)
      >>> run = fl.run(
      ...     fl.Simulation(
      ...         problem=fl.problems.ridge(k_data, clients=10, samples=20, dim=3),
      ...         network=fl.graphs.random_connected(k_graph, nodes=10, mean_degree=3),
      ...         algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...         metrics=[fl.metrics.normalized_error],
      ...     ),
      ...     rounds=300, key=k_run)
      >>> bool(run.normalized_error[-1] < 1e-6)
      True

    Reference:
      Gauthier et al. 2023 (zCDP-NFL), (7)-(9); Gauthier 2024, Algorithm 2, Lemma I (3.12).
    """

    penalty: Float[Array, ""] | float
    step_size: Schedule = field(converter=as_schedule)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)

    def init(self, problem: Problem, network: Graph) -> ZCDPNFLState:
        start = start_models(problem)
        return ZCDPNFLState(start, start, network.neighbor_sum(start), jnp.zeros_like(start))

    def step(self, state: ZCDPNFLState, now: Round) -> ZCDPNFLState:
        degree = now.network.degree[:, None]
        right = self.penalty * (degree * state.sent + state.received)
        # The same inverse in both: rounded apart they would move the fixed point.
        right = right + state.sent * (1 / self.step_size(now.number))
        curvature = self._curvature(now.network, now.number)[:, None]
        model = (right - state.dual - now.problem.gradient(state.sent)) / curvature
        now.witness_at(state.sent)

        sent, inbox = now.link.exchange(model)
        received = inbox.sum()
        dual = state.dual + self.penalty * (degree * sent - received)
        return ZCDPNFLState(model, sent, received, dual)

    def released(self, state: ZCDPNFLState, problem: Problem, network: Graph) -> Array:
        """Return the clients' last messages."""
        return state.sent

    def sensitivity(
        self, problem: Problem, network: Graph, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""Return the gradient's sensitivity over :math:`2\rho|\mathcal N_k|+1/\eta^{(n)}`: Lemma
        I, where the gradient's sensitivity is :math:`2c_1/D_k`.
        """
        return gap.gradient / self._curvature(network, round)

    def _curvature(self, network: Graph, round: Array) -> Float[Array, " clients"]:
        return 2 * self.penalty * network.degree + 1 / self.step_size(round)
