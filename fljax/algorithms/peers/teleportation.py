r"""Teleportation: few peers are active in a round, take over models, and mix on a small graph."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.peers.peer_algorithm import (
    Weights,
    as_weights,
    check_sums,
    check_weights,
    weights_on,
)
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph, Varying, neighbor_tables
from fljax.graphs.combination import combination_of
from fljax.problems import Problem
from fljax.problems.streams import Stream


class TeleportationState(NamedTuple):
    """State of teleportation between rounds."""

    model: Array  # [K, D]  the mean of the active peers' models, for every peer
    models: Array  # [K, D]  of each peer when it was active last
    active: Array  # [A]  the active peers of the last round, in the order of the small graph


@algorithm("Teleportation", "takezawa2025", Needs(data="any", directed=True, complete=True))
@module
class Teleportation(Descending):
    r"""Decentralized SGD of a few active peers, which pass on their models to others each round.

    In each round :math:`A` active peers :math:`a_1,\dots,a_A` are drawn uniformly without
    replacement. The :math:`j`-th one takes over the model :math:`w_j` of the :math:`j`-th one of
    the round before, and

    .. math::

        \psi_j=w_j^{(n-1)}-\mu^{(n)}f_{a_j}'(w_j^{(n-1)}),\qquad
        w_j^{(n)}=\sum_{i=1}^Ab_{ji}\psi_i,

    with the weights :math:`b_{ji}` of a small graph of :math:`A` nodes. A large graph mixes slowly;
    here all peers' data are used, and the graph on which models mix has as many nodes as mix well.
    With all peers active in a fixed order it would be :class:`ATC`. Any two peers must be able to
    communicate. The first active peers begin with their own initial models.

    The model that is judged is the mean of the active peers' models. A round has a message of each
    active peer to its successor, unless this is the same peer, and one over each edge of the small
    graph in either direction.

    Args:
      step_size: :math:`\mu^{(n)}`, a schedule of the round or a number, > 0.
      topology: the graph of the active peers, whose nodes are as many, or a network that
        changes, such as :func:`fljax.graphs.base_graphs`.
      mixing: the weights :math:`b_{ji}` on it, as in :class:`Consensus`, doubly stochastic.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      TypeError: a topology of another type.
      ValueError: more active peers than peers, weights that are not doubly stochastic or do not fit
        the topology, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=20, samples=20, dim=2),
      ...     network=fl.graphs.complete(20),
      ...     algorithm=fl.algorithms.Teleportation(
      ...         fl.schedules.PowerDecay(0.3, 0.7), topology=fl.graphs.ring(4)
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=1000).normalized_error[-1] < 1e-2)
      True

    Reference:
      Takezawa & Stich 2025, Algorithm 1.
    """

    topology: Graph | Varying = field(kw_only=True)
    mixing: Weights = field(
        converter=partial(as_weights, "mixing"), default="metropolis", kw_only=True
    )

    def validate(self) -> None:
        check_sums(self.mixing, type(self))

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        small = self.topology.first if isinstance(self.topology, Varying) else self.topology
        check_weights(self.mixing, small)
        if small.nodes > network.nodes:
            raise ValueError(
                f"topology has {small.nodes} nodes, and there are only {network.nodes} peers."
            )

    def init(self, problem: Problem | Stream, network: Graph) -> TeleportationState:
        start = start_models(problem)
        active = jnp.arange(self.topology.nodes, dtype=jnp.int32)
        return TeleportationState(_mean_of(start, active), start, active)

    def step(self, state: TeleportationState, now: Round) -> TeleportationState:
        network = now.network
        key = now.key("algorithm")
        everyone = jnp.arange(network.nodes, dtype=jnp.int32)
        active = jax.random.permutation(key, everyone)[: self.topology.nodes]
        none = jnp.full(network.nodes, -1, jnp.int32)

        previous = jnp.where(now.number > 1, state.active, active)
        source = none.at[active].set(previous)
        passed_on = (previous != active).astype(jnp.int32)
        receivers = jnp.zeros(network.nodes, jnp.int32).at[previous].set(passed_on)
        inbox = now.link.exchange(state.models, receivers=receivers)[1]
        models = inbox.mean(_combination(network, lambda k, m: source[k] == m))

        gradient = self._step_problem(now).gradient(models)
        position = none.at[active].set(jnp.arange(len(active), dtype=jnp.int32))
        is_active = position >= 0
        moved = jnp.where(
            is_active[:, None], models - self.step_size(now.number) * gradient, models
        )
        small = self._topology(now, key)
        weights = weights_on(self.mixing, small).matrix()
        receivers = jnp.where(is_active, small.neighbor_counts()[position], 0).astype(jnp.int32)
        inbox = now.link.exchange(moved, receivers=receivers)[1]
        models = inbox.mean(
            _combination(
                network,
                lambda k, m: jnp.where(
                    is_active[k] & is_active[m], weights[position[k], position[m]], 0
                ),
            )
        )
        return TeleportationState(_mean_of(models, active), models, active)

    def _topology(self, now: Round, key: Array) -> Graph:
        """Return the small graph of the round."""
        if isinstance(self.topology, Varying):
            return self.topology.at(jax.random.fold_in(key, 1), now.number)
        return self.topology


def _mean_of(
    models: Float[Array, "clients dim"], active: Int[Array, " active"]
) -> Float[Array, "clients dim"]:
    """The mean of the active peers' models, in every row."""
    return jnp.broadcast_to(jnp.mean(models[active], axis=0), models.shape)


def _combination(
    network: Graph, weight: Callable[[Array, Array], Float[Array, "..."]]
) -> Combination:
    """The combination with these weights of receiver and sender on the edges of a network."""
    parts = network.entries.parts
    everyone = jnp.arange(network.nodes, dtype=jnp.int32)
    weights = []
    for part in parts:
        receivers = jnp.minimum(part.nodes, network.nodes - 1)[:, None]  # spare rows have no edges
        drawn = weight(receivers, part.of_neighbors(everyone)).astype(part.weights.dtype)
        weights.append(jnp.where(part.weights > 0, drawn, 0))
    received = neighbor_tables.add_rows(parts, [jnp.sum(rows, axis=1) for rows in weights])
    return combination_of(network.entries.with_weights(weights), 1 - received)
