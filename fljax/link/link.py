"""The channel of one round: every message of an algorithm goes through it.

An algorithm states what it sends and how sensitive that is to one sample; whether and how it is
perturbed, compressed, delayed or lost, and what it costs in privacy and traffic, is decided and
counted here, so algorithms carry no code for it. Peers :meth:`~Channel.send` to their neighbours.
Clients of a server :meth:`~Channel.collect` towards it, through delays, and hear what it
publishes. A channel lives for one round inside the traced step; what it counted and what is still
on its way is read from it when the step is done.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax.channel.compression import WORD, Compressor
from fljax.channel.delays import DelayLaw, Fixed, Line
from fljax.federation import Federation
from fljax.privacy.notions import Notion
from fljax.problems.problem import HIGHEST

#: What is drawn besides the noise: each from a stream of its own, the same for all algorithms.
PURPOSES = (
    "participation",
    "batches",
    "stream",
    "arrivals",
    "availability",
    "delays",
    "compression",
    "sharing",
    "policy",
)

#: On a CPU the messages of so many senders are made together; with few clients there at a time,
#: what the others would have sent is not computed. An accelerator makes all of them at once.
GROUP = 32


def key_of(key: Array, purpose: str) -> Array:
    """A round's key for a draw of this purpose, one of :data:`PURPOSES`."""
    return jax.random.fold_in(key, 1 + PURPOSES.index(purpose))


class Traffic(NamedTuple):
    """What the whole network sent in one round, as 62-bit counts (see :func:`wide`)."""

    messages: Array  # [2]  point-to-point messages
    scalars: Array  # [2]  real numbers in them
    bits_up: Array  # [2]  bits that clients sent
    bits_down: Array  # [2]  bits that servers sent, to clients and to each other

    @classmethod
    def none(cls) -> "Traffic":
        return cls(*(jnp.zeros(2, jnp.uint32) for _ in cls._fields))

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(*(wide_sum(a, b) for a, b in zip(self, other, strict=True)))


def wide(count: Array, times: int) -> Array:
    """``count * times``, both in [0, 2^31), as ``[high, low]`` with ``low < 2^31``.

    JAX has no 64-bit integers by default.

    Raises:
      ValueError: ``times`` beyond the range.
    """
    if times >= 2**31:
        raise ValueError(f"a message of {times} bits is beyond what is counted, 2^31.")
    total = jnp.zeros(2, jnp.uint32)
    for shift in (0, 16):
        limb = (count.astype(jnp.uint32) >> shift) & 0xFFFF
        for more in (0, 16):
            part = limb * jnp.uint32((times >> more) & 0xFFFF)
            by = shift + more  # part * 2^by, part < 2^32
            high, low = {
                0: (part >> 31, part),
                16: (part >> 15, part << 16),
                32: (part << 1, jnp.zeros_like(part)),
            }[by]
            total = wide_sum(total, jnp.stack([high, low & jnp.uint32(2**31 - 1)]))
    return total


def wide_sum(a: Array, b: Array) -> Array:
    """The sum of two such numbers."""
    low = a[1] + b[1]
    return jnp.stack([a[0] + b[0] + (low >> 31), low & jnp.uint32(2**31 - 1)])


class Arrived(NamedTuple):
    r"""What reaches the server in a round: :math:`\sum_i a_iS_iw_i` and :math:`\sum_ia_iS_i`."""

    total: Array  # [D]
    share: Array  # [D]

    def move(self, model: Float[Array, " dim"]) -> Float[Array, " dim"]:
        r""":math:`w+\sum_ia_iS_i(w_i-w)`; the model itself where nothing arrived."""
        return model + self.total - self.share * model


class Channel:
    """One round's messages.

    Args:
      key: of this round; consumed.
      round: 1, 2, ..., possibly traced.
      rounds: of the whole run.
      receivers: ``[K]``, to how many neighbours each client's message goes.
      notion: the privacy notion, or ``None``.
      plan: what ``notion.plan`` returned at the start of the run.
      available: ``[K]``, which clients are there in this round; ``None`` for all.
      delays: of messages to the server, or ``None``.
      line: what is on its way, if there are delays.
      compression: of clients' messages, or ``None``.
      root: the run's key; needed where rounds share a draw.
    """

    def __init__(
        self,
        key: Array,
        round: Array,
        rounds: int,
        receivers: Array,
        notion: Notion | None = None,
        plan: Any = None,
        available: Bool[Array, " clients"] | None = None,
        delays: DelayLaw | None = None,
        line: Line | None = None,
        compression: Compressor | None = None,
        root: Array | None = None,
    ) -> None:
        self._key = key
        self._root = root
        self._round = round
        self._rounds = rounds
        self._receivers = receivers
        self._notion = notion
        self._plan = plan
        self._everyone = available is None
        self._delays = delays
        self._compression = compression
        self.available = jnp.ones(receivers.shape, bool) if available is None else available
        self.line = line
        self.spent: dict[str, Array] = {}
        self.traffic = Traffic.none()

    @property
    def gradient_bound(self) -> Array | float:
        """The per-sample gradient bound that sensitivities are computed with (0: no privacy)."""
        return 0.0 if self._notion is None else self._notion.gradient_bound

    @property
    def private(self) -> bool:
        """Whether messages are perturbed."""
        return self._notion is not None

    @property
    def exact(self) -> bool:
        """Whether receivers hear at once what all clients sent, as they sent it, so that an
        aggregate may be computed as one.
        """
        return not self.private and self.whole

    @property
    def whole(self) -> bool:
        """Whether all clients take part and what they send arrives at once, perturbed or not."""
        return self._delays is None and self._compression is None and self._everyone

    def key(self, purpose: str) -> Array:
        """The round's key for a draw of this purpose, one of :data:`PURPOSES`.

        It depends on the run's key and the round alone: under one seed all algorithms meet the
        same participants.
        """
        return key_of(self._key, purpose)

    def common_key(self, purpose: str) -> Array:
        """A key that is the same in all rounds, for what one round must know of another."""
        if self._root is None:
            raise ValueError(f"draws for {purpose} that rounds share need the run's key, root=.")
        return key_of(jax.random.fold_in(self._root, 0), purpose)  # rounds count from 1

    def send(
        self,
        message: Float[Array, "senders dim"],
        sensitivity: Float[Array, " clients"] | None = None,
        around: Float[Array, " dim"] | None = None,
        clients: Int[Array, " senders"] | None = None,
        sending: Bool[Array, " senders"] | None = None,
    ) -> Float[Array, "senders dim"]:
        """Perturb, compress and count one message of every client; returns what receivers hear.

        The same noisy vector goes to all receivers of a client, so it costs privacy once, and a
        client that does not send spends nothing. Compressing it afterwards costs none.

        Args:
          message: ``[M, D]``.
          sensitivity: ``[K]``, the l2 sensitivity of ``message`` to one replaced sample; not
            needed where nothing is perturbed.
          around: ``[D]``, public: what differences are compressed from; zero by default.
          clients: ``[M]``, whose rows these are, none twice among those who send; all of them, in
            order, by default.
          sending: ``[M]``, which of the rows are sent; all by default.

        Raises:
          ValueError: a private message of unknown sensitivity; a second one in the same round,
            which no noise schedule provides for.
        """
        if clients is None:
            clients = jnp.arange(message.shape[0], dtype=jnp.int32)
        if sending is None:
            sending = jnp.ones(clients.shape, bool)
        self._count_sent(jnp.sum(jnp.where(sending, self._receivers[clients], 0)), message.shape[1])
        if self._notion is not None:
            message = self._perturb(self._notion, message, sensitivity, clients, sending)
        if around is None:
            around = jnp.zeros(message.shape[1:], message.dtype)
        return self._compressed(message, clients, around[None], self._compression)

    def _perturb(
        self,
        notion: Notion,
        message: Array,
        sensitivity: Array | None,
        clients: Array,
        sending: Array,
    ) -> Array:
        if sensitivity is None:
            raise ValueError(
                "a private round needs the sensitivity of its message; run an algorithm that "
                "gives none without privacy."
            )
        if self.spent:
            raise ValueError(
                "an algorithm sent a second private message in one round; the budget's schedule "
                "provides for one. Join the two into one message."
            )
        release = notion.release(
            self._plan, sensitivity, self._round, self._rounds, message.shape[1]
        )
        sent = jnp.zeros(sensitivity.shape, bool).at[clients].max(sending)
        self.spent = {name: jnp.where(sent, spent, 0) for name, spent in release.spent.items()}
        noise = notion.draw(self._key, message.shape, message.dtype)
        return message + release.scale[clients][:, None] * noise

    def _compressed(
        self,
        message: Float[Array, "senders numbers"],
        senders: Int[Array, " senders"],
        around: Float[Array, "#senders numbers"],
        compression: Compressor | None,
    ) -> Float[Array, "senders numbers"]:
        if compression is None:
            return message
        key = self.key("compression")
        keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(senders)
        return around + compression.compress(keys, message - around)

    def collect(
        self,
        messages: Callable[[Int[Array, " group"]], Array | tuple[Array, Array]],
        senders: Bool[Array, " senders"],
        around: Float[Array, " dim"],
        *,
        size: int | None = None,
        weights: Float[Array, " senders"] | None = None,
        discount: Array | float = 1.0,
        per_delay: bool = False,
        freshest: bool = True,
        compression: Compressor | None = None,
        clients: Int[Array, " senders"] | None = None,
    ) -> Arrived:
        r"""Send clients' messages to the server through delays; returns what arrives now.

        Message :math:`i` of client :math:`k`, sent :math:`l` rounds ago, gets the weight
        :math:`a_i=\alpha_l\omega_k/\sum\omega`, the sum over all messages that arrive in the round
        (the average of P4 (6) over the arrivals); or, ``per_delay``, over those that took
        :math:`l` rounds too, so that each class of equally delayed messages is averaged on its own
        (Gauthier 2024, (4.13)-(4.14)).

        Args:
          messages: maps some rows of ``senders`` to their messages ``[group, D]``, or, where a
            message holds only some parameters, to values and parameters, ``[group, size]`` each.
          senders: ``[M]``, who sends.
          around: ``[D]``, what both ends know, from which differences are compressed: the
            server's model, or zero for messages that are no models.
          size: parameters in a message, if not all.
          weights: :math:`\omega_k`, one by default.
          discount: :math:`\alpha_l=\mathrm{discount}^l`; or :math:`\alpha` itself, one entry for
            each of the delay law's lags.
          per_delay: as above.
          freshest: per delay, only the freshest of several classes that change the same parameter
            in one round counts for it (P4, line 2596); else all of them do.
          compression: the algorithm's own, in place of the simulation's.
          clients: ``[M]``, whose rows these are; all of them, in order, by default.

        Raises:
          ValueError: in a private run; a discount with another number of lags.
        """
        if self.private:
            raise ValueError("what is collected is not perturbed; a private round must send.")
        law = self._delays or Fixed(0)
        compression = compression or self._compression
        (dim,), dtype = around.shape, around.dtype
        if clients is None:
            clients = jnp.arange(len(senders), dtype=jnp.int32)
        numbers = dim if size is None else size
        if compression is not None:
            compression.check(numbers)
        bits = WORD * numbers if compression is None else compression.bits(numbers)
        sent = jnp.sum(senders, dtype=jnp.int32)
        self._count(sent, numbers, up=bits)

        lag = law.draw(self.key("delays"), self._round, len(self.available))[clients]
        weight = senders.astype(dtype) if weights is None else jnp.where(senders, weights, 0)
        classes = np.arange(len(law.lags), dtype=np.int32)[:, None]
        of_class = jnp.where(lag[None] == classes, weight[None], 0)
        count = jnp.sum(of_class, axis=1)

        def add(group: Array, real: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            """The group's messages on top of the sums of each lag, ``[lags, D]``."""
            (total, share), who = sums, clients[group]
            message = messages(group)
            if isinstance(message, tuple):
                values, at = message
                values = self._compressed(values, who, around[at], compression)
                own = jnp.broadcast_to(jnp.where(real, weight[group], 0)[:, None], at.shape)
                entries = (lag[group][:, None], at)
                total = total.at[entries].add(own * values, mode="drop")
                share = share.at[entries].add(own, mode="drop")
            else:
                message = self._compressed(message, who, around[None], compression)
                own = jnp.where(real[None], of_class[:, group], 0)
                total = total + jnp.matmul(own, message, precision=HIGHEST)
                share = share + jnp.sum(own, axis=1, keepdims=True)
            return total, share

        zero = jnp.zeros((len(law.lags), dim), dtype)
        total, share = _in_groups(add, senders, (zero, zero))

        lags = np.asarray(law.lags)
        alpha = jnp.asarray(discount, dtype)
        if alpha.ndim and alpha.shape != lags.shape:
            raise ValueError(
                f"discount must be one number or one for each of the {len(lags)} lags of the delay "
                f"law, got {alpha.shape[0]}."
            )
        if alpha.ndim == 0:
            alpha = alpha ** jnp.asarray(lags, dtype)
        scale = alpha / jnp.where(count > 0, count, 1) if per_delay else alpha
        now = Line(scale[:, None] * total, scale[:, None] * share, count)
        if self.line is not None:
            now = Line(*(law.placed(entry) for entry in now))
            waiting = self.line
            if per_delay and freshest:
                # A class sent later arrives fresher: it takes the place of what waits there.
                covered = law.placed(share) > 0
                total, share = (jnp.where(covered, 0, entry) for entry in waiting[:2])
                waiting = Line(total, share, waiting.weight)
            now = Line(*(old + new for old, new in zip(waiting, now, strict=True)))
            self.line = Line(*(jnp.concatenate([e[1:], jnp.zeros_like(e[:1])]) for e in now))
        arrived = Arrived(now.total[0], now.share[0])
        if per_delay:
            return arrived
        heard = jnp.where(now.weight[0] > 0, now.weight[0], 1)
        return Arrived(*(entry / heard for entry in arrived))

    def publish(
        self,
        message: Float[Array, " dim"],
        receivers: Bool[Array, "..."] | None = None,
        size: int | None = None,
    ) -> Float[Array, " dim"]:
        """Count one message of the server to every available client, or to the given ones.

        What is computed from perturbed messages is private already and gets no noise; nothing is
        delayed on this way (P4, line 2556).

        Args:
          message: ``[D]``.
          receivers: a mask of who gets it.
          size: of its numbers that are sent to each; all by default.
        """
        sent = jnp.sum(self.available if receivers is None else receivers, dtype=jnp.int32)
        numbers = message.shape[-1] if size is None else size
        self._count(sent, numbers, down=WORD * numbers)
        return message

    def count(self, dim: int) -> None:
        """Count one message of ``dim`` numbers from every client to each of its receivers.

        For messages that nothing happens to (:attr:`exact`) and that need not exist one by one.
        """
        self._count_sent(jnp.sum(self._receivers), dim)

    def _count_sent(self, messages: Array, dim: int) -> None:
        bits = WORD * dim if self._compression is None else self._compression.bits(dim)
        self._count(messages.astype(jnp.int32), dim, up=bits)

    def relay(self, network: Federation, numbers: int) -> None:
        """Count one message of so many numbers from every server to each of its neighbours.

        What servers pass on is computed from messages that were perturbed already.
        """
        if network.graph is not None:
            messages = jnp.sum(network.graph.neighbor_counts(), dtype=jnp.int32)
            self._count(messages, numbers, down=WORD * numbers)

    def _count(self, messages: Array, numbers: int, up: int = 0, down: int = 0) -> None:
        new = Traffic(*(wide(messages, times) for times in (1, numbers, up, down)))
        self.traffic = self.traffic.plus(new)


def _in_groups(
    add: Callable[[Array, Array, Any], Any], senders: Bool[Array, " senders"], sums: Any
) -> Any:
    """``add(rows, which of them send, sums)`` over all senders, on a CPU group by group."""
    rows = jnp.arange(senders.shape[0], dtype=jnp.int32)
    if senders.shape[0] <= GROUP or jax.default_backend() != "cpu":
        return add(rows, senders, sums)
    rank = jnp.cumsum(senders, dtype=jnp.int32)
    room = -(-senders.shape[0] // GROUP) * GROUP
    order = jnp.zeros(room, jnp.int32).at[jnp.where(senders, rank - 1, room)].set(rows, mode="drop")

    def one(group: Array, sums: Any) -> Any:
        first = GROUP * group
        chosen = jax.lax.dynamic_slice(order, (first,), (GROUP,))
        return add(chosen, first + jnp.arange(GROUP, dtype=jnp.int32) < rank[-1], sums)

    return jax.lax.fori_loop(0, (rank[-1] + GROUP - 1) // GROUP, one, sums)
