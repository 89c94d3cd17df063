"""ProxSkip: gradient steps with random communication rounds (Mishchenko et al. 2022)."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Skipping
from fljax.algorithms.peers.peer_algorithm import (
    Weights,
    as_weights,
    check_sums,
    check_weights,
    weights_on,
)
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class PeerState(NamedTuple):
    """State of ProxSkip between rounds."""

    model: Array  # [K, D]  w_k
    control: Array  # [K, D]  h_k
    mixing: Combination  # the symmetric weights


@algorithm(
    "ProxSkip", ("mishchenko2022", "guo2023"), Needs(trains=True), {"Decentralized Scaffnew": ""}
)
@module
class ProxSkip(Skipping):
    r"""Gradient steps in every round, an exchange with neighbors in random rounds (ProxSkip).

    .. math::

        \hat w_k&=w_k^{(n-1)}-\mu\big(f_k'(w_k^{(n-1)})-h_k\big) \\
        w_k^{(n)}&=\begin{cases}
            \frac12\hat w_k+\frac12\sum_la_{kl}\hat w_l,\quad
                h_k\leftarrow h_k+\frac p\mu(w_k^{(n)}-\hat w_k) & \text{with the probability }p \\
            \hat w_k & \text{else}\end{cases}

    with one random draw for all, and :math:`h_k=0` initially. The weights :math:`\frac12(I+A)` are
    positive semidefinite for every symmetric, doubly stochastic :math:`A`, as the theory requires;
    with them it is the paper's decentralized form, with :math:`\tau=p/(2\mu)`, and for :math:`p=1`
    exact diffusion. For smooth, strongly convex objectives it converges linearly to the optimum;
    nothing is sent in rounds without an exchange.

    Args:
      step_size: as in :class:`Scaffnew`.
      probability: as in :class:`Scaffnew`.
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`, symmetric.
      batches: as in :class:`Scaffnew`.

    Raises:
      ValueError: as for :class:`Scaffnew`; weights that are not symmetric or do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.ProxSkip(0.1, probability=0.3)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=500).normalized_error[-1] < 1e-8)
      True

    Reference:
      Mishchenko et al. 2022, section 5; Guo et al. 2023, Algorithm 1.
    """

    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    def validate(self) -> None:
        super().validate()
        check_sums(self.mixing, type(self))

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return (self.mixing,)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        check_weights(self.mixing, network)

    def init(self, problem: Problem, network: Graph) -> PeerState:
        start = start_models(problem)
        return PeerState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: PeerState, now: Round) -> PeerState:
        communicates = self._communicates(now)
        moved = self._corrected_step(state.model, state.control, now)
        receivers = jnp.where(communicates, now.network.neighbor_counts(), 0)
        inbox = now.link.exchange(moved, receivers=receivers)[1]
        # Controls sum to zero even if messages are lost.
        change = -inbox.disagreement(state.mixing) / 2
        model = moved + change
        control = self._updated_control(state.control, change, now)
        return PeerState(
            jnp.where(communicates, model, moved),
            jnp.where(communicates, control, state.control),
            state.mixing,
        )
