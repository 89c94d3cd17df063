"""Outgoing messages: perturbed, masked, compressed, counted, or replaced by an attacker."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt

from fljax._core import checks
from fljax._core.linalg import rounding_distance
from fljax._core.prng import key_of, round_key
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.link.compression import WORD, Compressor
from fljax.link.inbox import Inbox
from fljax.link.stages import Memory, Stages, drawn_of_edges, receivers_of
from fljax.link.traffic import Traffic, wide
from fljax.link.uploads import Agreed, Masked
from fljax.privacy import Notion
from fljax.privacy.discrete import PrivateNoise

T = TypeVar("T")

#: Number of roundings of a message that are counted unless a step passes its own ``rounding``: the
#: step's last difference, product and quotient, and the product that rounds to the grid. Values
#: before them are public and the same for neighbors, or are the gradient, whose roundings are part
#: of its sensitivity (``Problem.gradient_rounding``).
ROUNDINGS = 4


class OutgoingMessages:
    """The treatment of a message at its sender.

    Args:
      key: of this round; consumed.
      round: 1, 2, ..., possibly traced.
      rounds: of the whole run.
      clients: ``K``.
      network: the graph of the clients, the federation they belong to, or ``None``: one server.
      stages: the stages that messages pass; none by default.
      memory: from the previous round, see :func:`fljax.link.begin`.
      available: ``[K]``, which clients are available in this round; ``None`` for all.
      plan: what ``privacy.plan`` returned at the start of the run.
      sensitivity: of this round's message, used only where it is perturbed.
      root: the run's key; needed where rounds share a draw.
      receivers: ``[K]``, the number of receivers of each client's message; by default that of
        :func:`fljax.link.receivers_of`.
    """

    def __init__(
        self,
        key: Array,
        round: Array | int,
        rounds: int,
        clients: int,
        network: Any = None,
        stages: Stages = Stages(),  # noqa: B008 (immutable)
        memory: Memory = Memory(),  # noqa: B008 (immutable)
        available: Bool[Array, " clients"] | None = None,
        plan: PyTree = None,
        sensitivity: Callable[[], Float[Array, " clients"]] | None = None,
        root: Array | None = None,
        receivers: Int[Array, " clients"] | None = None,
    ) -> None:
        self._key = key
        self._root = root
        self._round = jnp.asarray(round)
        self._rounds = rounds
        self._clients = clients
        self._network = network
        self._stages = stages
        self._receivers = receivers_of(network, clients) if receivers is None else receivers
        self._plan = plan
        self._sensitivity = sensitivity
        self._everyone = available is None
        self.available = jnp.ones(clients, bool) if available is None else available
        self.memory = memory
        self.spent: dict[str, Array] = {}
        #: []  how far rounding may move messages, relative to their sensitivity; infinite if these
        #: are not finite
        self.rounding = jnp.zeros(())
        #: []  largest zCDP parameter of a single release
        self.release_rho = jnp.zeros(())
        #: []  largest share of the numbers of masked messages that were beyond the masks' range
        self.clipped = jnp.zeros(())
        self.traffic = Traffic.none()
        #: [K] ratio of the powers of private messages and their noise; NaN where none was sent
        self.signal_to_noise: Array | None = None
        #: [K] squared distance of participants' models after their local steps from the server's;
        #: NaN where there is none
        self.drift: Array | None = None
        #: [K] whose messages to a server arrive before the clock ends the round, if not all do
        self.in_time: Array | None = None
        #: the parts of clients' rounds on a clock, [K] each (fljax.clock.round_clock.PHASES)
        self.phases: dict[str, Array] = {}
        self._sent = 0  # number of messages of each client so far
        #: of each message: the clients of its rows, which are sent, and how many receive them
        self._sending: list[tuple[Array, Array, Array | int]] = []
        self._descents = 0  # number of calls of descend so far
        self._steps = 0  # number of each client's local steps in these calls
        self._transformed = checks.trace_state()
        self._working: list[Array] | None = None  # links that work, drawn once a round
        self._inboxes: list[Inbox] = []
        self._used: set[str] = set()  # names of the stages that perturbed or masked a message

    @property
    def private(self) -> bool:
        """Whether messages are perturbed."""
        return self._stages.scope == "message"

    @property
    def participants(self) -> Bool[Array, " clients"]:
        """Which clients have sent a message in this round, to a server or to a neighbor."""
        took_part = jnp.zeros(self._clients, bool)
        for clients, sending, receivers in self._sending:
            took_part = took_part.at[clients].max(sending & (receivers > 0), mode="drop")
        return took_part

    def key(self, purpose: str) -> Array:
        """Return the round's key for a draw of this purpose, such as ``"participation"``.

        It depends on the run's key and the round alone: under the same seed all algorithms have the
        same participants.
        """
        return key_of(self._key, purpose)

    def common_key(self, purpose: str) -> Array:
        """Return a key that is the same in all rounds, for draws that rounds have in common."""
        if self._root is None:
            raise ValueError(f"draws for {purpose} that rounds share need the run's key, root=.")
        return key_of(round_key(self._root, 0), purpose)

    def send(
        self,
        message: Float[Array, "senders dim"],
        reference: Float[Array, " dim"] | None = None,
        clients: Int[Array, " senders"] | None = None,
        sending: Bool[Array, " senders"] | None = None,
        *,
        step_size: Array | float | None = None,
        receivers: Int[Array, " clients"] | None = None,
        compression: Compressor | None = None,
        rounding: Float[Array, " senders"] | None = None,
        numbers: Int[Array, " senders"] | None = None,
    ) -> Any:
        """Perturb, compress and count one message of every client; return the sent messages.

        The same noisy vector is sent to all receivers of a client, so it is one release, and a
        client that does not send spends nothing: of its message, under a budget, zeros are
        returned. Compression of it afterwards has no privacy cost.

        Args:
          message: ``[M, D]``.
          reference: ``[D]``, public: differences from it are compressed; zero by default.
          clients: ``[M]``, the clients of the rows, each at most once among the senders (a
            budget records each row); all of them, in order, by default.
          sending: ``[M]``, which of the rows are sent; all by default.
          step_size: by which an update is multiplied in a message; see
            :meth:`~fljax.link.server_messages.ServerMessages.collect`.
          receivers: ``[K]``, the number of receivers of each client's message, by default all its
            neighbors, or its server.
          compression: the algorithm's own, in place of the simulation's.
          rounding: ``[M]``, how far apart rounding within a client's steps may move its messages
            for two data sets (the distance of two roundings of each vector that a step
            computes, added up), besides that of the message itself and of its place on the
            grid. By default that of two more operations on vectors as long as the message, which
            is enough for one gradient step.
          numbers: ``[M]``, how many numbers each message to a server has, where fewer than in its
            row suffice; the traffic counts them.

        Returns:
          ``[M, D]``; under ``masks=`` a :class:`~fljax.link.uploads.Masked`, whose sums
          :meth:`~fljax.link.Link.mean` and :meth:`~fljax.link.Link.cell_means` read, and whose
          single messages cannot be read.

        Raises:
          ValueError: a private message of unknown sensitivity; a second one in the same round,
            which no noise schedule covers; a client known to have two rows, or that does not
            exist (of traced numbers such rows are not sent); under masks what reads or changes
            single messages.
        """
        self._sent += 1
        everyone = clients is None and sending is None and receivers is None
        if clients is None:
            clients = jnp.arange(message.shape[0], dtype=jnp.int32)
        # NumPy, so that it is concrete inside of a traced program, where jnp.ones is a tracer.
        all_rows = np.ones(clients.shape, bool)
        sending = self._of_existing_clients(clients, all_rows if sending is None else sending)
        if receivers is None:
            receivers = self._receivers
        else:
            sending = sending & (receivers[clients] > 0)
        compression = compression or self._stages.compression
        sending = self._without_lone_senders(clients, sending, compression)
        receivers_of_rows = receivers[clients]
        self._sending.append((clients, sending, receivers_of_rows))
        if numbers is None:
            self._count_sent(
                jnp.sum(jnp.where(sending, receivers_of_rows, 0)),
                message.shape[1],
                compression,
                message.dtype,
            )
        else:
            numbers = self._send_unprotected(numbers, "how many numbers messages have")
            self._count_varying(sending, numbers, up=WORD)
        if self._stages.scope == "server":
            raise ValueError(
                "a trusted server perturbs the sum of what it collects, and not messages; let the "
                "step collect them (now.link.collect), or take a budget for messages (ZCDP)."
            )
        sending = self._send_unprotected(sending, "who sends a message")
        if self.private:
            released = None if everyone else sending
            message = self._perturb_messages(
                self._stages.privacy, message, clients, released, rounding
            )
        else:
            message = self._send_unprotected(message, "a message")
        if reference is None:
            reference = jnp.zeros(message.shape[1:], message.dtype)
        agreed = self._agree_on_masks(clients, sending, message.shape[1], message.dtype)
        message = self._encode(message, clients, reference[None], compression, step_size)
        if agreed is not None:
            return self._hide(message, reference, sending, agreed)
        return self._apply_attack(message, clients, sending, reference[None])

    def _of_existing_clients(
        self, clients: Int[Array, " rows"], sending: Array | np.ndarray, once: bool = True
    ) -> Bool[Array, " rows"]:
        """Which rows are sent: none of clients that do not exist, or ``ValueError`` where these
        are known, and, unless a client may have several, where one has two rows.
        """
        check_numbers(clients, sending, self._clients, once)
        return jnp.asarray(sending) & (clients >= 0) & (clients < self._clients)

    def _perturb_messages(
        self,
        notion: Notion,
        message: Array,
        clients: Array,
        sending: Array | None,
        rounding: Array | None,
    ) -> Float[Array, "senders dim"]:
        if self._sensitivity is None:
            raise ValueError(
                "a private round needs the sensitivity of its message; run an algorithm that "
                "gives none without privacy."
            )
        if self.spent:
            raise ValueError(
                "an algorithm sent a second private message in one round; the budget's schedule "
                "provides for one. Join the two into one message."
            )
        sensitivity = self._sensitivity()
        release = notion.release(
            self._plan, sensitivity, self._round, self._rounds, message.shape[1]
        )
        present = jnp.ones(clients.shape, bool) if sending is None else sending
        times = self._rows_per_client(clients, present)
        spent = {
            name: jnp.where(times > 0, value * times.astype(value.dtype), 0)
            for name, value in release.spent.items()
        }
        # A separate key, since a user's notion may split it or fold numbers into it.
        drawn = notion.draw(self.key("privacy"), message.shape, message.dtype, self._round, clients)
        ratio = jnp.mean((message / release.scale[clients][:, None]) ** 2, axis=1)
        missing = jnp.full(sensitivity.shape, jnp.nan, message.dtype)
        at = jnp.where(present, clients, len(missing))
        self.signal_to_noise = missing.at[at].set(ratio / release.variance, mode="drop")
        message_rounding = rounding_distance(message)  # infinite where the message is not finite
        rounding = (
            ROUNDINGS * message_rounding if rounding is None else rounding + 2 * message_rounding
        )
        noise = PrivateNoise(
            drawn, release.scale[clients], None if release.grid is None else release.grid[clients]
        )
        return self._release_private(
            message, noise, sensitivity[clients], spent, clients, sending, rounding
        )

    def _rows_per_client(
        self, clients: Int[Array, " rows"], sending: Bool[Array, " rows"]
    ) -> Int[Array, " clients"]:
        """How many of the rows that are sent each client has."""
        return jnp.zeros(self._clients, jnp.int32).at[clients].add(sending.astype(jnp.int32))

    def _release_private(
        self,
        clean: Float[Array, "rows numbers"],
        noise: PrivateNoise,
        sensitivity: Float[Array, " rows"],
        spent: dict[str, Array],
        clients: Int[Array, " rows"],
        sending: Bool[Array, " rows"] | None,
        rounding: Float[Array, " rows"],
        release_rho: Array | None = None,
    ) -> Float[Array, "rows numbers"]:
        """Release values that depend on private data, perturbed and recorded in the ledger: the
        only place where this happens. Rows that are not released come back as zeros: a value that
        the ledger does not count must not depend on data.

        A number that overflows is released as the largest one, which keeps the distance between the
        messages of two neighbors; NaN is released as zero, and no guarantee holds then.

        Args:
          clean: a client's message, the server's sum, or clients' gradients in a step.
          noise: to be added.
          sensitivity: of each row, of exact arithmetic or of the arithmetic in use.
          spent: the privacy cost, ``[K]`` each.
          clients: the clients of the rows.
          sending: which of the rows are released; ``None``: all.
          rounding: how far apart rounding may move rows of this length for neighboring data sets,
            besides the stated sensitivity.
          release_rho: the largest zCDP parameter of a single row; by default the largest ``rho`` in
            ``spent``.

        Raises:
          ValueError: a release inside of a transformation of the step's own (``vmap``, ``scan``),
            where several would be counted as one and share their noise.
        """
        if checks.trace_state() != self._transformed:
            raise ValueError(
                "a private message leaves inside of jax.vmap, scan, cond or another transformation "
                "of the step's own, where several messages would have one noise and count as one. "
                "Send them in one call, as rows or as one longer message."
            )
        for name, value in spent.items():
            self.spent[name] = self.spent[name] + value if name in self.spent else value
        if "rho" in spent:
            largest = jnp.max(spent["rho"]) if release_rho is None else release_rho
            self.release_rho = jnp.maximum(self.release_rho, largest.astype(self.release_rho.dtype))
        exposed = sensitivity > 0  # other messages depend on no data
        if sending is not None:
            exposed = sending & exposed
        released, unhidden = noise.added_to(clean, sensitivity)
        moved = jnp.where(exposed, rounding / jnp.where(exposed, sensitivity, 1) + unhidden, 0)
        self.rounding = jnp.maximum(self.rounding, jnp.max(moved).astype(self.rounding.dtype))
        if sending is None:
            return released
        # Without the barrier XLA draws the noise again in every use of the chosen rows.
        return jnp.where(sending[:, None], jax.lax.optimization_barrier(released), 0)

    def _send_unprotected(self, value: T, what: str) -> T:
        """Return values sent unperturbed, which must not depend on private data; audits see them.

        Args:
          value: an array, or several.
          what: its description.
        """
        return value

    def _encode(
        self,
        message: Float[Array, "senders numbers"],
        clients: Int[Array, " senders"],
        reference: Float[Array, "#senders numbers"],
        compression: Compressor | None,
        step_size: Array | float | None,
    ) -> Float[Array, "senders numbers"]:
        """The message as these clients send it: with noise, and compressed."""
        noise = self._stages.upload_noise
        if noise is not None:
            self._used.add("upload_noise")
            message = noise.onto(self._keys("uploads", clients), message, step_size)
        if compression is None:
            return message
        keys = self._keys("compression", clients)
        return reference + compression.compress(keys, message - reference)

    def _without_lone_senders(
        self, clients: Array, sending: Array, compression: Compressor | None
    ) -> Bool[Array, " senders"]:
        """Which rows are sent: under masks a client that is alone at its server does not send,
        since the sum would be its message.
        """
        if self._stages.masks is None:
            return sending
        spoiled = [
            f"{name}="
            for name in ("attack", "delays", "aggregation")
            if getattr(self._stages, name) is not None
        ]
        spoiled += ["compression="] * (compression is not None)
        if isinstance(self._network, Graph):
            spoiled.append("a network of peers")
        if spoiled:
            raise ValueError(
                f"masks= hide single messages, which {' and '.join(spoiled)} would change or read; "
                "leave out one of them."
            )
        server, servers, _ = self._servers_of(clients)
        count = jax.ops.segment_sum(sending.astype(jnp.int32), server, servers)
        return sending & (count[server] > 1)

    def _servers_of(self, clients: Array) -> tuple[Int[Array, " senders"], int, int]:
        """Each row's server, the number of servers, and the most clients that one of them has."""
        network = self._network
        if not isinstance(network, Federation):
            return jnp.zeros_like(clients), 1, self._clients
        server = jnp.asarray(network.server, jnp.int32)[clients]
        return server, len(network.sizes), int(network.sizes.max())

    def _agree_on_masks(
        self, clients: Array, sending: Array, dim: int, dtype: DTypeLike
    ) -> Agreed | None:
        """The masks of this round's message, and which rows are in a sum that is decoded.

        Which messages are lost does not depend on them, so it may be drawn first.
        """
        protocol = self._stages.masks
        if protocol is None:
            return None
        self._used.add("masks")
        server, servers, most = self._servers_of(clients)
        works = self._working_links()
        arriving = sending if works is None else sending & works[0][clients]
        agreeing, arrived = (
            jax.ops.segment_sum(rows.astype(jnp.int32), server, servers)
            for rows in (sending, arriving)
        )
        recovered = arrived >= jnp.asarray(protocol.survivors(most))[agreeing]
        summed = arriving & recovered[server]
        key = jax.random.fold_in(self.key("masks"), self._sent)
        masks = protocol.masks(key, server, summed, servers, dim, dtype)
        return Agreed(masks, summed, server, servers, most)

    def _hide(
        self,
        message: Float[Array, "senders numbers"],
        reference: Float[Array, " numbers"],
        sending: Bool[Array, " senders"],
        agreed: Agreed,
    ) -> Masked:
        """Messages of equal weight under their masks."""
        protocol = self._stages.masks
        assert protocol is not None
        integers, beyond = self._mask_values(message - reference[None], agreed.masks, agreed.most)
        clipped = jnp.sum(beyond & sending[:, None], dtype=self.clipped.dtype)
        self._record_clipped(clipped, sending, message.shape[1])
        return Masked(
            integers, agreed.summed, agreed.server, reference, protocol, agreed.servers, agreed.most
        )

    def _mask_values(
        self,
        values: Float[Array, "senders numbers"],
        masks: UInt[Array, "senders numbers"],
        most: int,
    ) -> tuple[UInt[Array, "senders numbers"], Bool[Array, "senders numbers"]]:
        """The masked integers that clients send, and which numbers were clipped before: the only
        place where masked messages leave.
        """
        protocol = self._stages.masks
        steps, beyond = protocol.encode(values, most)
        return protocol.hide(steps, masks, values.dtype), beyond

    def _record_clipped(self, clipped: Array, sending: Array, dim: int) -> None:
        """Keep the largest share of clipped numbers of a message."""
        numbers = dim * jnp.maximum(jnp.sum(sending, dtype=self.clipped.dtype), 1)
        self.clipped = jnp.maximum(self.clipped, clipped / numbers)

    def _apply_attack(
        self, message: Array, clients: Array, sending: Array, reference: Array
    ) -> Float[Array, "senders numbers"]:
        attack = self._stages.attack
        if attack is None or attack.links is not None:
            return message
        attacking = jnp.asarray(attack.attackers)[clients] & sending
        return attack.corrupt(self._keys("attack", clients), message, attacking, sending, reference)

    def _keys(self, purpose: str, clients: Int[Array, " some"]) -> Array:
        """One key per client, whichever row it has."""
        key = self.key(purpose)
        if self._sent > 1:
            key = jax.random.fold_in(key, self._clients + self._sent)  # not a client's number
        return jax.vmap(lambda k: jax.random.fold_in(key, k))(clients)

    # Links and traffic ---------------------------------------------------------------------------

    def _working_links(self) -> list[Bool[Array, "..."]] | None:
        """Which edges, or links to the server, work in this round."""
        losses = self._stages.losses
        if losses is None:
            return None if self.in_time is None else [self.in_time]
        if self._working is not None:
            return self._working
        uniform = drawn_of_edges(
            losses, self.key("losses"), self._network, self._clients, jnp.result_type(float)
        )
        drawn = [losses.draw(s, u) for s, u in zip(self.memory.losses, uniform, strict=True)]
        self.memory = self.memory._replace(losses=[state for state, _ in drawn])
        self._working = [works for _, works in drawn]
        if self.in_time is not None:  # one server
            self._working = [self._working[0] & self.in_time]
        return self._working

    def _count_sent(
        self,
        messages: Array,
        numbers: int,
        compression: Compressor | None,
        dtype: Any = None,
    ) -> None:
        """Count messages of numbers of this type, which only masked messages need."""
        bits = WORD * numbers if compression is None else compression.bits(numbers)
        if self._stages.masks is not None:
            bits = numbers * self._stages.masks.width(dtype)
        self._count(messages.astype(jnp.int32), numbers, up=bits)

    def count_beside(self, senders: Array, numbers: int, received: int) -> None:
        """Count numbers that clients send in addition to their messages, such as running means.

        Args:
          senders: how many clients.
          numbers: of each.
          received: how many each was sent.
        """
        both = numbers + received
        counts = (wide(senders, n) for n in (0, both, WORD * numbers, WORD * received))
        self.traffic = self.traffic.plus(Traffic(*counts))

    def _count_varying(
        self, sent: Array, numbers: Int[Array, " messages"], up: int = 0, down: int = 0
    ) -> None:
        """Count messages with ``numbers`` numbers each, of ``up`` and ``down`` bits a number."""
        numbers = jnp.where(sent, numbers, 0)
        self._count(jnp.sum(sent, dtype=jnp.int32), 0)
        for times, part in ((1, numbers & 0xFFFF), (2**16, numbers >> 16)):  # no sum overflows
            total = jnp.sum(part, dtype=jnp.int32)
            counts = (wide(total, times * many) for many in (0, 1, up, down))
            self.traffic = self.traffic.plus(Traffic(*counts))

    def _count(self, messages: Array, numbers: int, up: int = 0, down: int = 0) -> None:
        new = Traffic(*(wide(messages, times) for times in (1, numbers, up, down)))
        self.traffic = self.traffic.plus(new)


def first_rows(
    clients: Int[Array, " senders"], sending: Bool[Array, " senders"], count: int
) -> Bool[Array, " senders"]:
    """Which rows are sent, only the first of each client: with a second one the client's
    contribution would not be bounded.
    """
    rows = jnp.arange(len(clients), dtype=jnp.int32)
    first = jnp.full(count, len(clients), jnp.int32)
    first = first.at[jnp.where(sending, clients, count)].min(rows, mode="drop")
    return sending & (first[clients] == rows)


def check_numbers(clients: Array, sending: Array | np.ndarray, count: int, once: bool) -> None:
    """Raise ``ValueError`` where a client is known not to exist, or to send two messages as one."""
    if not (checks.is_concrete(clients) and checks.is_concrete(sending)):
        return
    numbers, times = np.unique(np.asarray(clients)[np.asarray(sending)], return_counts=True)
    unknown = numbers[(numbers < 0) | (numbers >= count)]
    if unknown.size:
        raise ValueError(
            f"client {unknown[0]} sends a message, and clients are numbered from 0 to {count - 1}; "
            "give numbers of clients (clients=), or leave out rows of nobody (sending=False)."
        )
    if once and np.any(times > 1):
        raise ValueError(
            f"client {numbers[np.argmax(times)]} sends {times.max()} rows of one message; give "
            "each client one row (clients=), and join its contents into it."
        )
