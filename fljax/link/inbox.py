r"""The messages that each peer receives in a round, and their combination.

An inbox is lazy. A plain weighted sum is the graph's product with all sent messages, and allocates
nothing per edge; where links fail or messages are late, the weight of an edge is given to the copy
that is received over it; messages are gathered for each receiver only for an aggregator of single
messages.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._memory import on_cpu
from fljax.aggregation import Aggregator
from fljax.graphs import Combination, Graph
from fljax.graphs.tables import DISTINCT, Entries, gather_sum
from fljax.link.noise import Noise

__all__ = ["Inbox"]

#: Number of receivers whose single messages are processed together on a CPU.
RECEIVERS = 64


class Inbox:
    r"""The messages of each client's neighbors, as they are received.

    Args:
      network: the graph of this round.
      said: ``[K, D]``, the sent messages of all clients, the receiver's own included.
      past: ``[B, K, D]``, the sent messages of the last ``B`` rounds, the newest at index
        ``newest``; ``None`` where all received messages are of this round.
      newest: as above.
      ages: for each table of the network, the age in rounds of the copy that is received over an
        edge; ``B`` or more: none. ``None`` where everything arrives at once.
      aggregator: used in place of the mean, or ``None``.
      own: ``[K, D]``, each client's own vector in its combination; its sent message by default.
      cancelled: ``[K, D]``, subtracted from the client's own part with the weights of the others;
        or ``None``.
      noise: the noise of single edges, and the round's key for it; or ``None``.
      falsified: ``[K, K]``, the links (from column to row) that deliver false messages, and
        ``[K, D]``, the false message of each sender; or ``None``. Nothing is late then.

    Attributes:
      read: whether the messages were combined at all.
      single: whether single messages were read.
    """

    def __init__(
        self,
        network: Graph,
        said: Float[Array, "clients dim"],
        past: Float[Array, "ages clients dim"] | None = None,
        newest: Int[Array, ""] | int = 0,
        ages: list[Int[Array, "rows slots"]] | None = None,
        aggregator: Aggregator | None = None,
        own: Float[Array, "clients dim"] | None = None,
        cancelled: Float[Array, "clients dim"] | None = None,
        noise: tuple[Noise, Array] | None = None,
        falsified: tuple[Array, Array] | None = None,
    ) -> None:
        self._network = network
        self._said = said
        self._past = said[None] if past is None else past
        self._newest = newest
        self._ages = ages
        self._aggregator = aggregator
        self._own = said if own is None else own
        self._cancelled = cancelled
        self._noise = noise
        self._falsified = falsified
        self.read = self.single = False

    def sum(self, over: Graph | None = None) -> Float[Array, "clients dim"]:
        r"""Return :math:`\sum_l a_{kl}\tilde w_l`, by default over the network.

        A client's own message replaces one that it does not receive, so
        :math:`\sum_l a_{kl}(\tilde w_k-\tilde w_l)` is over the links that work.

        Args:
          over: other weights on the edges of the network, such as :meth:`Graph.reweighted` gives.
        """
        self.read = True
        graph = self._network if over is None else over
        if self._ages is None:
            return graph.neighbor_sum(self._said) + self._of_edges(graph)
        heard, weight = self._heard(graph)
        heard = heard + self._of_edges(graph)
        return heard + (graph.degree - weight)[:, None].astype(heard.dtype) * self._said

    def mean(self, over: Combination) -> Float[Array, "clients dim"]:
        r"""Return :math:`\sum_{l\in\mathcal N_k\cup\{k\}}w_{kl}\tilde w_l`, or the aggregate of
        these messages; the weight of a message that is not received is added to the client's own.

        Args:
          over: a combination of the network.
        """
        self.read = True
        if self._aggregator is not None:
            return self._aggregated(over)
        if self._ages is None and self._own is self._said and self._cancelled is None:
            return over(self._said) + self._of_edges(over)
        if self._ages is None:
            heard, weight = over.entries.sum(self._said), 1 - over.self_weight
        else:
            heard, weight = self._heard(over)
        mine, others = (w[:, None].astype(heard.dtype) for w in (1 - weight, weight))
        heard = heard + self._of_edges(over) + mine * self._own
        return heard if self._cancelled is None else heard - others * self._cancelled

    def disagreement(self, over: Combination) -> Float[Array, "clients dim"]:
        r"""Return the deviation of each client from the :meth:`mean`,
        :math:`\sum_lw_{kl}(\tilde w_k-\tilde w_l)`.

        With symmetric weights and links the terms of two clients cancel, so the sum over all
        clients is zero. With rounding it is zero up to a share of the differences, and not of the
        models: sums of it over thousands of rounds stay zero when clients agree.

        Args:
          over: as of :meth:`mean`.
        """
        if self._aggregator is not None:
            return self._said - self.mean(over)
        self.read = True
        # Rows of weights sum to one, so what all have in common goes before anything is rounded.
        common = self._said[:1]
        own, past = self._own - common, self._past - common[None]
        said = own if self._own is self._said else self._said - common
        falsified = self._falsified
        if falsified is not None:
            falsified = falsified[0], falsified[1] - common
        centered = Inbox(
            self._network,
            said,
            past,
            self._newest,
            self._ages,
            None,
            own,
            self._cancelled,
            self._noise,
            falsified,
        )
        return said - centered.mean(over)

    # On single edges -----------------------------------------------------------------------------

    def _of_edges(self, over: Any) -> Array | float:
        """The weighted sums of noise and of attackers' changes on the edges."""
        return self._noise_of_edges(over) + self._lies(over)

    def _lies(self, over: Any) -> Array | float:
        if self._falsified is None:
            return 0.0
        links, lies = self._falsified
        entries, _ = over.entries.scaled(lambda receiver, sender: links[receiver, sender])
        if self._ages is not None:
            pairs = zip(entries.parts, self._ages, strict=True)
            bound = self._past.shape[0]
            entries = entries.with_weights([jnp.where(a < bound, p.weights, 0) for p, a in pairs])
        return entries.sum(lies - self._said)

    def _noise_of_edges(self, over: Any) -> Array | float:
        if self._noise is None:
            return 0.0
        noise, key = self._noise
        if noise.cancels == "receiver" and self._ages is None:
            return 0.0
        total, dim = jnp.zeros_like(self._said), self._said.shape[1]
        ages = self._ages or [None] * len(over.entries.parts)
        for part, age in zip(over.entries.parts, ages, strict=True):
            senders = part.neighbors
            if senders is None:
                everyone = jnp.arange(self._said.shape[0], dtype=jnp.int32)
                senders = jnp.broadcast_to(everyone, part.weights.shape)
            known = part.weights > 0
            kept = known if age is None else known & (age < self._past.shape[0])

            def one(given: tuple[Array, ...]) -> Array:
                receiver, senders, weights, kept = given
                drawn = noise.over_edges(key, receiver, senders, weights, dim)
                if drawn is None:
                    return jnp.zeros(dim, weights.dtype)
                return jnp.where(kept, weights, 0) @ drawn

            weights = part.weights.astype(self._said.dtype)
            rows = jax.lax.map(one, (part.nodes, senders, weights, kept), batch_size=RECEIVERS)
            total = total.at[part.nodes].add(rows, **DISTINCT)
        return total

    # Copies of several ages ----------------------------------------------------------------------

    def _heard(self, over: Any) -> tuple[Array, Array]:
        """The weighted sums of the copies that are received, and the sums of their weights."""
        bound, nodes = self._past.shape[:2]
        assert self._ages is not None
        total, weight = jnp.zeros_like(self._said), jnp.zeros(nodes, self._said.dtype)
        for part, age in zip(over.entries.parts, self._ages, strict=True):
            known = age < bound
            weights = jnp.where(known, part.weights, 0).astype(self._said.dtype)
            if part.neighbors is None:
                for old in range(bound):
                    of_age = jnp.where(age == old, weights, 0)
                    copy = self._past[(self._newest - old) % bound]
                    total = total + Entries(nodes, of_age, None, None, None).sum(copy)
            else:
                # One gather from all copies, laid end to end.
                rows = ((self._newest - age) % bound) * nodes + part.neighbors
                flat = self._past.reshape(bound * nodes, -1)
                heard = gather_sum(jnp.where(known, rows, part.neighbors), weights, flat)
                total = total.at[part.nodes].add(heard, **DISTINCT)
            weight = weight.at[part.nodes].add(jnp.sum(weights, axis=1), **DISTINCT)
        return total, weight

    # Single messages -----------------------------------------------------------------------------

    def messages(self, over: Graph) -> Float[Array, "clients slots dim"]:
        """Return each client's messages side by side, in the order of ``over.neighbor_table()``.

        A client's own message replaces one that it does not receive, and fills empty slots. An
        algorithm that calls this declares it (``one_by_one``), since every message is then a copy
        in memory.

        Args:
          over: the network.
        """
        self.read = self.single = True
        flat, rows, known, delivered = self._rows(over)
        receivers = jnp.arange(len(rows), dtype=jnp.int32)
        return jnp.where(
            known[..., None], jax.vmap(delivered)(receivers, flat[rows]), self._own[:, None]
        )

    def _rows(
        self, over: Graph | Combination
    ) -> tuple[Array, Array, Array, Callable[[Array, Array], Array]]:
        """The messages that were sent, false ones too; the index of each in them; whether it is
        received; and a function of a receiver and its messages, ``[S, D]``, that returns them with
        the noise of their edges.
        """
        bound, nodes = self._past.shape[:2]
        neighbors, weights = over.neighbor_table()
        receivers = jnp.arange(nodes, dtype=jnp.int32)[:, None]
        age = jnp.zeros_like(neighbors)
        if self._ages is not None:
            (age,) = self._ages
        known = (age < bound) & (weights > 0) & (neighbors != receivers)
        rows = jnp.where(known, ((self._newest - age) % bound) * nodes + neighbors, 0)
        flat = self._past.reshape(bound * nodes, -1)
        if self._falsified is not None:  # of what is said now
            links, lies = self._falsified
            lied = jnp.take_along_axis(links, neighbors, axis=1)
            rows = jnp.where(known & lied, len(flat) + neighbors, rows)
            flat = jnp.concatenate([flat, lies])
        kept = weights.astype(self._said.dtype)

        def delivered(receiver: Array, messages: Array) -> Array:
            if self._noise is None:
                return messages
            noise, key = self._noise
            return noise.delivered(key, receiver, neighbors[receiver], kept[receiver], messages)

        return flat, rows, known, delivered

    def _aggregated(self, over: Combination) -> Array:
        aggregator = self._aggregator
        assert aggregator is not None
        flat, rows, known, delivered = self._rows(over)

        def one(given: tuple[Array, Array, Array, Array, Array]) -> Array:
            receiver, own, own_weight, rows, weights = given
            messages = jnp.concatenate([own[None], delivered(receiver, flat[rows])])
            weights = jnp.concatenate([own_weight[None], weights])
            return aggregator.of_one_receiver(messages, weights, own)

        given = (
            jnp.arange(len(rows), dtype=jnp.int32),
            self._own,
            over.self_weight.astype(self._said.dtype),
            rows,
            jnp.where(known, over.neighbor_table()[1], 0).astype(self._said.dtype),
        )
        if not on_cpu() or len(rows) <= RECEIVERS:
            return jax.vmap(one)(given)
        return jax.lax.map(one, given, batch_size=RECEIVERS)
