r"""Gossip: random pairs of neighbors average their models in every round."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.graphs.combination import averages_of_pairs
from fljax.link.losses import of_edges
from fljax.problems import Problem
from fljax.problems.streams import Stream


class GossipSGDState(NamedTuple):
    """State of gossip between rounds."""

    model: Array  # [K, D]  w_k


def random_matching(
    key: Array, network: Graph, available: Bool[Array, " nodes"]
) -> tuple[Combination, Bool[Array, " nodes"]]:
    r"""Draw a random matching of a graph: its averaging weights, and which peers are matched.

    Every edge draws an exponential number with rate :math:`a_{kl}`, and an edge is in the matching
    if its number is the smallest at both of its ends: with probability
    :math:`a_{kl}/(d_k+d_l-a_{kl})`.

    Args:
      key: a random key, consumed.
      network: the graph whose edges may be matched.
      available: ``[K]``, which peers are available.
    """
    parts = network.entries.parts
    everyone = jnp.arange(network.nodes, dtype=jnp.int32)
    waiting_times = []
    least = jnp.full(network.nodes, jnp.inf, network.degree.dtype)
    for part in parts:
        uniform = of_edges(
            key, part.nodes[:, None], part.of_neighbors(everyone), True, part.weights.dtype
        )
        nodes = jnp.minimum(part.nodes, network.nodes - 1)  # spare rows have no edges
        usable = (part.weights > 0) & available[nodes][:, None] & part.of_neighbors(available)
        rate = jnp.where(usable, part.weights, 1)
        waiting = jnp.where(usable, -jnp.log1p(-uniform) / rate, jnp.inf)
        waiting_times.append(waiting)
        least = least.at[part.nodes].min(jnp.min(waiting, axis=1), mode="drop")
    are_pairs = []
    for part, waiting in zip(parts, waiting_times, strict=True):
        nodes = jnp.minimum(part.nodes, network.nodes - 1)
        is_smallest = (waiting == least[nodes][:, None]) & (waiting == part.of_neighbors(least))
        are_pairs.append(is_smallest & jnp.isfinite(waiting))
    pairs = averages_of_pairs(network.entries, are_pairs)
    return pairs, pairs.self_weight < 1


@algorithm(
    "Gossip SGD",
    ("ram2009", "boyd2006"),
    Needs(data="any", trains=True, absent=True, changing=True),
)
@module
class GossipSGD(Descending):
    r"""Gossip SGD: a gradient step of each peer, then pairwise averages over a random matching.

    .. math::

        \psi_k=w_k^{(n-1)}-\mu^{(n)}f_k'(w_k^{(n-1)}),\qquad
        w_k^{(n)}=\begin{cases}\frac12(\psi_k+\psi_l)&\text{if }k\text{ meets }l\\
            \psi_k&\text{else}\end{cases}

    Pairs are a random matching (:func:`~fljax.algorithms.peers.gossip_sgd.random_matching`):
    several pairs average in a round, each peer with at most one other (with the paper's clocks one
    pair averages at a time, and its rounds are correspondingly shorter). Each matched peer sends
    one message, while other algorithms send one over every edge. Without gradients the expected
    squared disagreement decreases per round by a factor of the second largest eigenvalue of
    :math:`I-\tfrac12\sum_{kl}p_{kl}(e_k-e_l)(e_k-e_l)^\top` or less, with
    :math:`p_{kl}=a_{kl}/(d_k+d_l-a_{kl})`. Unavailable peers are not matched.

    Args:
      step_size: :math:`\mu^{(n)}`, a schedule of the round or a number, > 0.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a step size that is not positive, batches that cannot be drawn.

    Example:
      At most three pairs of six peers exchange their models in a round:

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.GossipSGD(fl.schedules.PowerDecay(0.1, 0.6))
      >>> run = fl.run(fl.Simulation(problem, algorithm, fl.graphs.complete(6)), rounds=10)
      >>> int(run.bits_up[-1]) <= 10 * 6 * 2 * 32  # rounds, messages, numbers, bits
      True

    Reference:
      Sundhar Ram, Nedić & Veeravalli 2009, with averages before gradient steps; Boyd et al. 2006,
      for the averages.
    """

    def init(self, problem: Problem | Stream, network: Graph) -> GossipSGDState:
        return GossipSGDState(start_models(problem))

    def step(self, state: GossipSGDState, now: Round) -> GossipSGDState:
        moved = state.model - self.step_size(now.number) * self._step_gradient(now, state.model)
        pairs, meets = random_matching(now.key("algorithm"), now.network, now.available)
        _, inbox = now.link.exchange(moved, receivers=meets.astype(jnp.int32))
        return GossipSGDState(inbox.mean(pairs))
