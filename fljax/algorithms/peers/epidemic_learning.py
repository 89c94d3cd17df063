r"""Epidemic learning: peers send their models to random receivers and average the received ones."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph, neighbor_tables
from fljax.graphs.combination import combination_of
from fljax.link.losses import of_edges
from fljax.problems import Problem
from fljax.problems.streams import Stream


class EpidemicLearningState(NamedTuple):
    """State of epidemic learning between rounds."""

    model: Array  # [K, D]  x_k


def random_receivers(
    key: Array, network: Graph, available: Bool[Array, " nodes"], count: int
) -> tuple[Combination, Array]:
    """Draw the receivers of each peer: the averages that they take, and how many each peer has.

    A receiver averages its message and the received ones with equal weights.

    Args:
      key: a random key, consumed.
      network: the graph whose edges may be used.
      available: ``[K]``, which peers are available; others neither send nor receive.
      count: receivers of a peer among its available neighbors, or all of them if they are fewer.
    """
    everyone = jnp.arange(network.nodes, dtype=jnp.int32)
    dtype = network.degree.dtype
    # A peer sends over its edges of the smallest random numbers. Numbers depend on the pair alone,
    # so that the receiver, in whose row of the table the weight is, knows them too.
    (table,) = network.single_table().entries.parts
    to_neighbor = of_edges(key, table.of_neighbors(everyone), everyone[:, None], False, dtype)
    usable = (table.weights > 0) & table.of_neighbors(available) & available[:, None]
    ranked = jnp.sort(jnp.where(usable, to_neighbor, jnp.inf), axis=1)
    last = ranked[:, min(count, ranked.shape[1]) - 1]
    receivers = jnp.sum(usable & (to_neighbor <= last[:, None]), axis=1, dtype=jnp.int32)
    parts = network.entries.parts
    chosen = []
    for part in parts:
        nodes = jnp.minimum(part.nodes, network.nodes - 1)  # spare rows have no edges
        from_neighbor = of_edges(key, nodes[:, None], part.of_neighbors(everyone), False, dtype)
        used = (part.weights > 0) & available[nodes][:, None] & part.of_neighbors(available)
        is_sent = used & (from_neighbor <= part.of_neighbors(last))
        chosen.append(is_sent.astype(dtype))
    received = neighbor_tables.add_rows(parts, [jnp.sum(rows, axis=1) for rows in chosen])
    share = 1 / (1 + received)
    weights = [
        rows * share.at[part.nodes].get(mode="clip")[:, None]
        for part, rows in zip(parts, chosen, strict=True)
    ]
    return combination_of(network.entries.with_weights(weights), share), receivers


@algorithm(
    "Epidemic learning",
    "devos2023",
    Needs(data="any", trains=True, absent=True, changing=True),
    {"EL-Local": "on a complete graph"},
)
@module
class EpidemicLearning(Descending):
    r"""Epidemic learning: a gradient step, then a model to random receivers, and an average.

    .. math::

        \psi_k=w_k^{(n-1)}-\mu^{(n)}f_k'(w_k^{(n-1)}),\qquad
        w_k^{(n)}=\frac1{1+|S_k|}\Big(\psi_k+\sum_{l\in S_k}\psi_l\Big),

    where :math:`S_k` are the peers that have :math:`k` among their :math:`s` receivers, which every
    peer draws uniformly without replacement in each round. On a complete graph it is the
    paper's EL-Local; on others peers choose among their neighbors. A peer sends :math:`s` messages
    and receives a random number of them, so that an average weighs the models unequally; all have
    the same weight in expectation. The paper's EL-Oracle, in which each peer receives exactly
    :math:`s` models, is :class:`ATC` on random regular graphs.

    Peers whose neighbors change agree sooner than peers with as many fixed neighbors. Unavailable
    peers neither send nor receive.

    Args:
      step_size: :math:`\mu^{(n)}`, a schedule of the round or a number, > 0.
      neighbors_per_round: :math:`s\ge1`; peers with fewer neighbors send to all of them.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a step size that is not positive, a number of receivers below one or above the
        number of other peers, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.complete(6),
      ...     algorithm=fl.algorithms.EpidemicLearning(0.05, neighbors_per_round=2),
      ... )
      >>> int(fl.run(simulation, rounds=5).messages[-1])
      60

    Reference:
      de Vos et al. 2023, Algorithm 1 with EL-Local.
    """

    neighbors_per_round: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        checks.count("neighbors_per_round", self.neighbors_per_round)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        if self.neighbors_per_round >= network.nodes:
            raise ValueError(
                f"neighbors_per_round must be below the number of peers, {network.nodes}, got "
                f"{self.neighbors_per_round}."
            )

    def init(self, problem: Problem | Stream, network: Graph) -> EpidemicLearningState:
        return EpidemicLearningState(start_models(problem))

    def step(self, state: EpidemicLearningState, now: Round) -> EpidemicLearningState:
        moved = state.model - self.step_size(now.number) * self._step_gradient(now, state.model)
        averages, receivers = random_receivers(
            now.key("algorithm"), now.network, now.available, self.neighbors_per_round
        )
        inbox = now.link.exchange(moved, receivers=receivers)[1]
        return EpidemicLearningState(inbox.mean(averages))
