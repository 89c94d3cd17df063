r"""The messages that each peer receives in a round, and their combination.

An inbox is lazy. A plain weighted sum is the graph's product with all sent messages, and allocates
nothing per edge; where links fail or messages are late, the weight of an edge is given to the copy
that is received over it; messages are gathered for each receiver only for an aggregator of single
messages.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax._core.devices import on_cpu
from fljax.graphs import Combination, Graph
from fljax.graphs.combination import averages_of_pairs
from fljax.graphs.neighbor_tables import DISTINCT, Entries, gather_sum
from fljax.link.aggregation import Aggregator
from fljax.link.noise import Noise

#: Number of receivers whose single messages are processed together on a CPU.
RECEIVERS = 64

#: Number of ages above which the sums of copies are a loop: compiling each takes too long.
UNROLLED = 16


class Inbox:
    r"""The messages of each client's neighbors, as they are received.

    Args:
      network: the graph of this round.
      sent: ``[K, D]``, the sent messages of all clients, the receiver's own included.
      past: ``[B, K, D]``, the sent messages of the last ``B`` rounds, the newest at index
        ``newest``; ``None`` where all received messages are of this round.
      newest: as above.
      ages: for each table of the network, the age in rounds of the copy that is received over an
        edge; ``B`` or more: none. ``None`` where no message is late.
      aggregator: used in place of the mean, or ``None``.
      own_vectors: ``[K, D]``, each client's own vector in its combination; its sent message by
        default.
      cancelled: ``[K, D]``, subtracted from the client's own part with the weights of the others;
        or ``None``.
      noise: the noise of single edges, and the round's key for it; or ``None``.
      falsified: ``[K, K]``, the links (from column to row) that deliver false messages, and
        ``[K, D]``, the false message of each sender; or ``None``. Nothing is late then.

    Attributes:
      read: whether the messages were combined at all.
      single: whether single messages were read.
      weights: with which messages were combined, one for each combination.
    """

    def __init__(
        self,
        network: Graph,
        sent: Float[Array, "clients dim"],
        past: Float[Array, "ages clients dim"] | None = None,
        newest: Int[Array, ""] | int = 0,
        ages: list[Int[Array, "rows slots"]] | None = None,
        aggregator: Aggregator | None = None,
        own_vectors: Float[Array, "clients dim"] | None = None,
        cancelled: Float[Array, "clients dim"] | None = None,
        noise: tuple[Noise, Array] | None = None,
        falsified: tuple[Array, Array] | None = None,
    ) -> None:
        self._network = network
        self._sent = sent
        self._past = sent[None] if past is None else past
        self._newest = newest
        self._ages = ages
        self._aggregator = aggregator
        self._own_vectors = sent if own_vectors is None else own_vectors
        self._cancelled = cancelled
        self._noise = noise
        self._falsified = falsified
        self.read = self.single = False
        self.weights: list[Entries] = []

    def sum(self, over: Graph | None = None) -> Float[Array, "clients dim"]:
        r"""Return :math:`\sum_l a_{kl}\tilde w_l`, by default over the network.

        A client's own message replaces one that it does not receive, so
        :math:`\sum_l a_{kl}(\tilde w_k-\tilde w_l)` is over the links that work.

        Args:
          over: other weights on the edges of the network, such as :meth:`Graph.reweighted` gives.
        """
        self.read = True
        graph = self._network if over is None else over
        self.weights.append(graph.entries)
        if self._ages is None:
            return graph.neighbor_sum(self._sent) + self._edge_terms(graph)
        received, weight = self._sum_of_copies(graph)
        received = received + self._edge_terms(graph)
        return received + (graph.degree - weight)[:, None].astype(received.dtype) * self._sent

    def mean(self, over: Combination) -> Float[Array, "clients dim"]:
        r"""Return :math:`\sum_{l\in\mathcal N_k\cup\{k\}}w_{kl}\tilde w_l`, or the aggregate of
        these messages; the weight of a message that is not received is added to the client's own.

        Args:
          over: a combination of the network.
        """
        self.read = True
        self.weights.append(over.entries)
        if self._aggregator is not None:
            return self._aggregate(over)
        if self._ages is None and self._own_vectors is self._sent and self._cancelled is None:
            return over(self._sent) + self._edge_terms(over)
        if self._ages is None:
            received = over.entries.sum(self._sent)
            weight = 1 - over.self_weight
        else:
            received, weight = self._sum_of_copies(over)
        own_weight, neighbor_weight = (
            w[:, None].astype(received.dtype) for w in (1 - weight, weight)
        )
        received = received + self._edge_terms(over) + own_weight * self._own_vectors
        return received if self._cancelled is None else received - neighbor_weight * self._cancelled

    def mean_of_pair(self, one: Int[Array, ""], other: Int[Array, ""]) -> Float[Array, "two dim"]:
        """Return the means of two neighbors' messages, as the one and as the other receives them.

        It is :meth:`mean` over the weights with which these two average. Where messages arrive as
        they were sent, only theirs are read, however large the network is.

        Args:
          one: number of a client.
          other: number of a neighbor of it; the same client where it has none.
        """
        self.read = True
        both = jnp.stack([one, other])
        if self._as_sent:
            mean = (self._sent[one] + self._sent[other]) / 2
            return jnp.broadcast_to(mean, (2, len(mean)))
        forth = self._edges(one, other)
        back = self._edges(other, one)
        are_pairs = [a | b for a, b in zip(forth, back, strict=True)]
        return self.mean(averages_of_pairs(self._network.entries, are_pairs))[both]

    def from_neighbor(
        self, receiver: Int[Array, ""], sender: Int[Array, ""]
    ) -> Float[Array, " dim"]:
        """Return the message of one neighbor as a client receives it; its own if it does not.

        Where messages arrive as they were sent, only that one is read.

        Args:
          receiver: number of a client.
          sender: number of a neighbor of it.
        """
        self.read = True
        if self._as_sent:
            return self._sent[sender]
        only = averages_of_pairs(self._network.entries, self._edges(receiver, sender), 1.0)
        return self.mean(only)[receiver]

    @property
    def _as_sent(self) -> bool:
        """Whether all messages arrive, and as they were sent."""
        nothing_added = self._own_vectors is self._sent and self._cancelled is None
        nothing_added = nothing_added and self._noise is None and self._falsified is None
        return nothing_added and self._ages is None and self._aggregator is None

    def _edges(
        self, receiver: Int[Array, ""], sender: Int[Array, ""]
    ) -> list[Bool[Array, "rows slots"]]:
        """For each table of the network, where it holds the edge over which these two talk."""
        entries = self._network.entries
        everyone = jnp.arange(entries.nodes, dtype=jnp.int32)
        return [
            (part.nodes[:, None] == receiver)
            & (part.of_neighbors(everyone) == sender)
            & (part.weights > 0)
            for part in entries.parts
        ]

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
            return self._sent - self.mean(over)
        self.read = True
        self.weights.append(over.entries)
        # Weights of a receiver sum to one, so a common vector cancels: subtracting it first leaves
        # small differences, whose rounding error is small.
        common = self._sent[:1]
        own_vectors = self._own_vectors - common
        past = self._past - common[None]
        sent = own_vectors if self._own_vectors is self._sent else self._sent - common
        falsified = self._falsified
        if falsified is not None:
            falsified = falsified[0], falsified[1] - common
        centered = Inbox(
            self._network,
            sent,
            past,
            self._newest,
            self._ages,
            None,
            own_vectors,
            self._cancelled,
            self._noise,
            falsified,
        )
        return sent - centered.mean(over)

    # On single edges -----------------------------------------------------------------------------

    def _edge_terms(self, over: Graph | Combination) -> Array | float:
        """The weighted sums of noise and of attackers' changes on single edges."""
        return self._noise_of_edges(over) + self._false_messages(over)

    def _false_messages(self, over: Graph | Combination) -> Array | float:
        if self._falsified is None:
            return 0.0
        links, forged = self._falsified
        entries, _ = over.entries.scaled(lambda receiver, sender: links[receiver, sender])
        if self._ages is not None:
            pairs = zip(entries.parts, self._ages, strict=True)
            bound = self._past.shape[0]
            entries = entries.with_weights([jnp.where(a < bound, p.weights, 0) for p, a in pairs])
        return entries.sum(forged - self._sent)

    def _noise_of_edges(self, over: Graph | Combination) -> Array | float:
        if self._noise is None:
            return 0.0
        noise, key = self._noise
        if noise.cancels == "receiver" and self._ages is None:
            return 0.0
        total = jnp.zeros_like(self._sent)
        dim = self._sent.shape[1]
        ages = self._ages or [None] * len(over.entries.parts)
        for part, age in zip(over.entries.parts, ages, strict=True):
            senders = part.neighbors
            if senders is None:
                everyone = jnp.arange(self._sent.shape[0], dtype=jnp.int32)
                senders = jnp.broadcast_to(everyone, part.weights.shape)
            is_edge = part.weights > 0
            received = is_edge if age is None else is_edge & (age < self._past.shape[0])

            def noise_of_receiver(arguments: tuple[Array, ...]) -> Array:
                receiver, senders, weights, received = arguments
                drawn = noise.over_edges(key, receiver, senders, weights, dim)
                if drawn is None:
                    return jnp.zeros(dim, weights.dtype)
                return jnp.where(received, weights, 0) @ drawn

            weights = part.weights.astype(self._sent.dtype)
            rows = jax.lax.map(
                noise_of_receiver, (part.nodes, senders, weights, received), batch_size=RECEIVERS
            )
            total = total.at[part.nodes].add(rows, **DISTINCT)
        return total

    # Copies of several ages ----------------------------------------------------------------------

    def _sum_of_copies(self, over: Graph | Combination) -> tuple[Array, Array]:
        """The weighted sums of the copies that are received, and the sums of their weights."""
        bound, nodes = self._past.shape[:2]
        assert self._ages is not None
        total = jnp.zeros_like(self._sent)
        weight = jnp.zeros(nodes, self._sent.dtype)
        for part, age in zip(over.entries.parts, self._ages, strict=True):
            received = age < bound
            weights = jnp.where(received, part.weights, 0).astype(self._sent.dtype)
            if part.neighbors is None:
                total = self._sum_by_age(age, weights, total)
            else:
                # One gather from all copies, as one array of rows.
                rows = ((self._newest - age) % bound) * nodes + part.neighbors
                flat = self._past.reshape(bound * nodes, -1)
                sums = gather_sum(jnp.where(received, rows, part.neighbors), weights, flat)
                total = total.at[part.nodes].add(sums, **DISTINCT)
            weight = weight.at[part.nodes].add(jnp.sum(weights, axis=1), **DISTINCT)
        return total, weight

    def _sum_by_age(self, age: Array, weights: Array, total: Array) -> Array:
        """``total`` plus the weighted sums of the copies over a dense network, age by age."""
        bound, nodes = self._past.shape[:2]

        def add_copy(old: Array | int, total: Array) -> Array:
            of_age = jnp.where(age == old, weights, 0)
            copy = self._past[(self._newest - old) % bound]
            return total + Entries(nodes, of_age, None, None, None).sum(copy)

        if bound > UNROLLED:
            return jax.lax.fori_loop(0, bound, add_copy, total)
        for old in range(bound):
            total = add_copy(old, total)
        return total

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
        self.weights.append(over.entries)
        flat, rows, received, delivered = self._single_messages(over)
        receivers = jnp.arange(len(rows), dtype=jnp.int32)
        return jnp.where(
            received[..., None],
            jax.vmap(delivered)(receivers, flat[rows]),
            self._own_vectors[:, None],
        )

    def _single_messages(
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
        received = (age < bound) & (weights > 0) & (neighbors != receivers)
        rows = jnp.where(received, ((self._newest - age) % bound) * nodes + neighbors, 0)
        flat = self._past.reshape(bound * nodes, -1)
        if self._falsified is not None:  # false messages are of this round
            links, forged = self._falsified
            falsified = jnp.take_along_axis(links, neighbors, axis=1)
            rows = jnp.where(received & falsified, len(flat) + neighbors, rows)
            flat = jnp.concatenate([flat, forged])
        edge_weights = weights.astype(self._sent.dtype)

        def delivered(receiver: Array, messages: Array) -> Array:
            if self._noise is None:
                return messages
            noise, key = self._noise
            return noise.delivered(
                key, receiver, neighbors[receiver], edge_weights[receiver], messages
            )

        return flat, rows, received, delivered

    def _aggregate(self, over: Combination) -> Array:
        aggregator = self._aggregator
        assert aggregator is not None
        flat, rows, received, delivered = self._single_messages(over)

        def aggregate(arguments: tuple[Array, Array, Array, Array, Array]) -> Array:
            receiver, own_vector, own_weight, rows, weights = arguments
            messages = jnp.concatenate([own_vector[None], delivered(receiver, flat[rows])])
            weights = jnp.concatenate([own_weight[None], weights])
            return aggregator.of_one_receiver(messages, weights, own_vector)

        arguments = (
            jnp.arange(len(rows), dtype=jnp.int32),
            self._own_vectors,
            over.self_weight.astype(self._sent.dtype),
            rows,
            jnp.where(received, over.neighbor_table()[1], 0).astype(self._sent.dtype),
        )
        if not on_cpu() or len(rows) <= RECEIVERS:
            return jax.vmap(aggregate)(arguments)
        return jax.lax.map(aggregate, arguments, batch_size=RECEIVERS)
