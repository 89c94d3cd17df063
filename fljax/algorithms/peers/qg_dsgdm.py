r"""QG-DSGDm: quasi-global momentum in decentralized learning (Lin et al. 2021)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import Combining, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class QuasiGlobalState(NamedTuple):
    """State of QG-DSGDm between rounds."""

    model: Array  # [K, D]  x_k
    momentum: Array  # [K, D]  \hat m_k
    weights: Combination  # of the first graph


@algorithm(
    "QG-DSGDm",
    "lin2021",
    Needs(
        data="any", trains=True, absent=True, late=True, averages=True, changing=True, directed=True
    ),
    {"Quasi-global momentum": ""},
)
@module
class QGDSGDm(Combining):
    r"""Decentralized gradient descent whose momentum averages changes of models, not gradients.

    .. math::

        x_k^{(n+1/2)} &= x_k^{(n)}-\mu\big(\beta\hat m_k^{(n-1)}+f_k'(x_k^{(n)})\big) \\
        x_k^{(n+1)} &= \sum_{l\in\mathcal N_k}a_{kl}x_l^{(n+1/2)} \\
        \hat m_k^{(n)} &= \beta\hat m_k^{(n-1)}+(1-\beta)\frac{x_k^{(n)}-x_k^{(n+1)}}\mu

    from :math:`\hat m^{(0)}=0`. The change of a peer's model in a round includes the contribution
    of its neighbors, so that the momentum of heterogeneous peers agrees better than with their own
    gradients. Without momentum it is :class:`ATC`. The paper's two factors are the same number in
    its experiments, and here. In a round in which a peer is unavailable its state is unchanged.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights :math:`A`, as in :class:`Consensus`.
      momentum: :math:`\beta\in[0,1)`; 0.9 in the paper.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a momentum outside [0, 1), weights that do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.QGDSGDm(0.02, momentum=0.9),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 0.01)
      True

    Reference:
      Lin et al. 2021, Algorithm 1 with local momentum.
    """

    momentum: Float[Array, ""] | float = field(default=0.9, kw_only=True)

    def validate(self) -> None:
        checks.interval("momentum", self.momentum, at_least=0, below=1)

    def init(self, problem: Problem | Stream, network: Graph) -> QuasiGlobalState:
        start = start_models(problem)
        return QuasiGlobalState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: QuasiGlobalState, now: Round) -> QuasiGlobalState:
        step = self.step_size(now.number)
        momentum_step = self.momentum * state.momentum
        weights = weights_on(self.mixing, now.network) if now.changing else state.weights
        moved = state.model - step * (momentum_step + self._step_gradient(now, state.model))
        model = now.link.exchange(moved)[1].mean(over=weights)
        momentum = momentum_step + (1 - self.momentum) / step * (state.model - model)
        return QuasiGlobalState(model, momentum, state.weights)
