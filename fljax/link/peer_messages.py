"""Messages among peers, over edges that may fail, delay messages, or be ignored."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax.graphs import Graph
from fljax.graphs.neighbor_tables import Entries
from fljax.link.compression import Compressor
from fljax.link.inbox import Inbox
from fljax.link.outgoing import OutgoingMessages
from fljax.link.uploads import Masked


class PeerMessages(OutgoingMessages):
    """The messages among peers."""

    def exchange(
        self,
        message: Float[Array, "clients dim"],
        *,
        receivers: Int[Array, " clients"] | None = None,
        compression: Compressor | None = None,
        rounding: Float[Array, " clients"] | None = None,
    ) -> tuple[Array, Inbox]:
        """Send one message of every client to its neighbors.

        An absent client sends nothing; its neighbors keep its last message.

        Args:
          message: ``[K, D]``.
          receivers: ``[K]``, the number of neighbors that each client's message is sent to, all by
            default. It is used for the traffic only: other neighbors must not combine the message,
            that is, their weights of it must be zero.
          compression: the algorithm's own, in place of the simulation's.
          rounding: as of :meth:`send`.

        Returns:
          The sent message of each client, ``[K, D]``, perturbed and compressed, and the inbox with
          the messages that its neighbors receive. A second message of the same round is sent over
          the same working or failing links, and draws its compression independently.

        Raises:
          ValueError: as :meth:`send`; absent clients where their last messages are not stored; a
            second message in a round, or one of another size, where messages are stored.
        """
        past = self.memory.past
        newest = 0
        if past is not None and self._sent:
            raise ValueError(
                "an algorithm exchanged a second message in one round, but only one message of "
                "each peer is remembered for the rounds in which it is late or absent. Join the "
                "two into one message, [clients, 2 * dim], and let the algorithm's message_size "
                "say so; or leave out delays= and participation=."
            )
        if past is not None and message.shape[1] != past.shape[2]:
            raise ValueError(
                f"a message has {message.shape[1]} numbers, but {past.shape[2]} are remembered of "
                "each peer; let the algorithm's message_size return the size of its messages."
            )
        if past is None and not self._everyone:
            raise ValueError(
                "the last messages of absent peers must be remembered; begin the link with "
                "fljax.link.begin(..., asleep=True)."
            )
        perturbed = self.send(
            message,
            sending=None if self._everyone else self.available,
            receivers=receivers,
            compression=compression,
            rounding=rounding,
        )
        assert not isinstance(perturbed, Masked)  # masks are refused among peers
        sent = perturbed
        own_vectors = None
        cancelled = None
        added = None
        if self._stages.noise is not None:
            self._used.add("noise")
            key = jax.random.fold_in(self.key("noise"), self._sent)
            sent, cancelled = self._stages.noise.perturb(key, perturbed)
            own_vectors = self._stages.noise.own_part(key, perturbed)
            added = self._stages.noise, key
        bound = 1 if past is None else past.shape[0]
        if past is not None:
            newest = self._round % bound
            if not self._everyone:
                before = past[(self._round - 1) % bound]
                sent = jnp.where(self.available[:, None], sent, before)
            past = past.at[newest].set(sent)
            self.memory = self.memory._replace(past=past)
        ages = self._copy_ages(bound)
        if self._stages.learned is not None:
            ages = self._ages_of_chosen(sent if past is None else past, sent, newest, ages, bound)
        inbox = Inbox(
            self._network,
            sent,
            past if ages is not None else None,
            newest if ages is not None else 0,
            ages,
            self._stages.aggregation,
            own_vectors,
            cancelled,
            added,
            self._attacked_links(sent),
        )
        self._inboxes.append(inbox)
        return sent, inbox

    @property
    def combined(self) -> list[Entries]:
        """The weights with which messages were combined in this round. A clock waits for no
        message that has a weight of zero.
        """
        return [entries for inbox in self._inboxes for entries in inbox.weights]

    def _attacked_links(self, sent: Array) -> tuple[Array, Array] | None:
        """The links that deliver false messages, and the false message of each sender."""
        attack = self._stages.attack
        if attack is None or attack.links is None:
            return None
        everyone = jnp.arange(self._clients, dtype=jnp.int32)
        keys = self._keys("attack", everyone)
        nobody = jnp.zeros(self._clients, bool)
        forged = attack.forge(keys, sent, nobody, self.available, jnp.zeros_like(sent[:1]))
        return jnp.asarray(attack.links), jnp.broadcast_to(forged, sent.shape)

    def _copy_ages(self, bound: int) -> list[Int[Array, "rows slots"]] | None:
        """The age of the copy that is received over each edge; ``bound``: none."""
        delays = self._stages.delays
        works = self._working_links()
        if delays is None and works is None:
            return None
        assert isinstance(self._network, Graph)
        ages = []
        everyone = jnp.arange(self._clients, dtype=jnp.int32)
        for number, part in enumerate(self._network.entries.parts):
            if delays is None:
                age = jnp.zeros(part.weights.shape, jnp.int32)
            else:
                key = jax.random.fold_in(self.key("delays"), number)
                edges = part.nodes[:, None], part.of_neighbors(everyone)
                lag = delays.over(key, self._round, *jnp.broadcast_arrays(*edges))
                age = jnp.asarray(np.append(delays.lags, bound), jnp.int32)[lag]
            ages.append(age if works is None else jnp.where(works[number], age, bound))
        return ages

    def _ages_of_chosen(
        self, past: Array, sent: Array, newest: Array | int, ages: list[Array] | None, bound: int
    ) -> list[Int[Array, "rows slots"]]:
        """The ages of the copies, where a sender that the receiver ignores counts as lost."""
        relearned = self._stages.learned
        network = self._network
        assert relearned is not None
        (part,) = network.entries.parts
        everyone = jnp.arange(self._clients, dtype=jnp.int32)
        senders = jnp.broadcast_to(part.of_neighbors(everyone), part.weights.shape)
        age = jnp.zeros(part.weights.shape, jnp.int32) if ages is None else ages[0]
        rows = ((newest - age) % bound) * self._clients + senders
        distance = part.distances(past.reshape(-1, sent.shape[1]), sent, rows)
        distance = jnp.where(age < bound, distance, jnp.inf)
        return [jnp.where(relearned.kept(part, distance), age, bound)]
