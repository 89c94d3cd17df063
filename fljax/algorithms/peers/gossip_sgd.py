r"""Gossip: peers meet in pairs, drawn at random in every round, and average their models."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from fljax._module import module
from fljax.algorithms.base import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.graphs import Combination, Graph, tables
from fljax.link.losses import of_edges
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = ["GossipSGD", "State", "matched"]


class State(NamedTuple):
    """What gossip keeps from round to round."""

    model: Array  # [K, D]  w_k


def matched(
    key: Array, network: Graph, available: Bool[Array, " nodes"]
) -> tuple[Combination, Bool[Array, " nodes"]]:
    r"""A random matching of a graph: the averages of its pairs, and who has met somebody.

    Every edge draws an exponential number with the rate :math:`a_{kl}`, and those whose number is
    the least at both their ends meet: with the probability :math:`a_{kl}/(d_k+d_l-a_{kl})`.

    Args:
      key: consumed.
      network: who may meet whom.
      available: ``[K]``, who is there to be met.
    """
    parts, everyone = network.entries.parts, jnp.arange(network.nodes, dtype=jnp.int32)
    drawn, least = [], jnp.full(network.nodes, jnp.inf, network.degree.dtype)
    for part in parts:
        uniform = of_edges(
            key, part.nodes[:, None], part.of_neighbors(everyone), True, part.weights.dtype
        )
        nodes = jnp.minimum(part.nodes, network.nodes - 1)  # spare rows have no edges
        there = (part.weights > 0) & available[nodes][:, None] & part.of_neighbors(available)
        rate = jnp.where(there, part.weights, 1)
        waiting = jnp.where(there, -jnp.log1p(-uniform) / rate, jnp.inf)
        drawn.append(waiting)
        least = least.at[part.nodes].min(jnp.min(waiting, axis=1), mode="drop")
    weights = []
    for part, waiting in zip(parts, drawn, strict=True):
        nodes = jnp.minimum(part.nodes, network.nodes - 1)
        meet = (waiting == least[nodes][:, None]) & (waiting == part.of_neighbors(least))
        weights.append(jnp.where(meet & jnp.isfinite(waiting), 0.5, 0).astype(waiting.dtype))
    entries = network.entries.with_weights(weights)
    away = tables.add_rows(parts, [jnp.sum(each, axis=1) for each in weights])
    pairs = Combination(
        nodes=entries.nodes,
        self_weight=1 - away,
        off_diagonal=entries.matrix,
        neighbors=entries.neighbors,
        weights=entries.weights,
        stationary=jnp.full(network.nodes, 1 / network.nodes, away.dtype),
        overflow=entries.overflow,
    )
    return pairs, away > 0


@algorithm("Gossip SGD", "boyd2006", Needs(data="any", absent=True, changing=True))
@module
class GossipSGD(Descending):
    r"""A gradient step of each peer, and an average of two wherever a pair meets (gossip).

    .. math::

        \psi_k=w_k^{(n-1)}-\mu^{(n)}f_k'(w_k^{(n-1)}),\qquad
        w_k^{(n)}=\begin{cases}\frac12(\psi_k+\psi_l)&\text{if }k\text{ meets }l\\
            \psi_k&\text{else}\end{cases}

    Pairs are a random matching (:func:`~fljax.algorithms.peers.gossip_sgd.matched`): any number of
    them meet in a round, each peer one other at most (the paper's clocks let one pair meet at a
    time, and its rounds are so much shorter). One message goes from each peer that meets somebody,
    where other algorithms send one over every edge. Without gradients the squared disagreement
    shrinks in the mean by the second largest eigenvalue of
    :math:`I-\tfrac12\sum_{kl}p_{kl}(e_k-e_l)(e_k-e_l)^\top` a round or faster, with
    :math:`p_{kl}=a_{kl}/(d_k+d_l-a_{kl})`. Who is absent is not met.

    Args:
      step_size: :math:`\mu^{(n)}`, a schedule of the round or a number, > 0.
      batches: what a step is on (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: a step size that is not positive, batches that cannot be drawn.

    Reference:
      Boyd et al. 2006.
    """

    def init(self, problem: Problem | Stream, network: Graph) -> State:
        return State(start_models(problem))

    def step(self, state: State, now: Round) -> State:
        part = self._part(now)
        moved = state.model - self.step_size(now.number) * part.gradient(state.model)
        pairs, meets = matched(now.key("algorithm"), now.network, now.available)
        _, inbox = now.link.exchange(moved, receivers=meets.astype(jnp.int32))
        return State(inbox.mean(pairs))
