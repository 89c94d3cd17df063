r"""Delays of messages to the server or along an edge, and the delay line of messages in transit.

A *delay law* gives each message one of a few lags, or loses it. For a server's sum single messages
need not be stored: messages of one round with one lag arrive together, so each arrival slot of the
:class:`Line` contains their sums, and a later message that overrides an earlier one on some
parameters replaces it there. The line is ``[slots, D]`` for any number of clients.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import as_given, field, module, static

#: Treatments of a message whose delay exceeds the longest lag.
BEYOND = ("discard", "clip")


class DelayLaw:
    """A law of message delays; subclass it to define your own.

    Attributes:
      lags: the possible delays in rounds, ascending and equally spaced, such as a range; with 0 a
        message arrives in the round in which it is sent.

    Example:
      In rounds of even numbers the first client's message takes one round:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class FirstLate(fl.link.DelayLaw):
      ...     lags = (0, 1)
      ...     def draw(self, key, round, clients):
      ...         return jnp.where((jnp.arange(clients) == 0) & (round % 2 == 0), 1, 0)
      >>> FirstLate().draw(jax.random.key(0), jnp.int32(2), 3).tolist()
      [1, 0, 0]
    """

    lags: Sequence[int]

    def check(self, clients: int, rounds: int) -> None:
        """Raise ``ValueError`` unless the law fits a run of this size."""

    @checks.required
    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        """Return the index in ``lags`` of each client's message; ``len(lags)`` is lost."""
        raise NotImplementedError

    def over(
        self,
        key: Array,
        round: Array,
        receivers: Int[Array, "*edges"],
        senders: Int[Array, "*edges"],
    ) -> Int[Array, "*edges"]:
        """As :meth:`draw`, for the message over each edge of peers; by default independently."""
        return self.draw(key, round, receivers.size).reshape(receivers.shape)

    def placed(self, classes: Float[Array, "lags ..."]) -> Float[Array, "slots ..."]:
        """Return values per lag at the slots of their arrival rounds, zero at the others."""
        lags = np.asarray(self.lags)
        step = int(lags[1] - lags[0]) if len(lags) > 1 else 1
        rest = [(0, 0, 0)] * (classes.ndim - 1)
        return jax.lax.pad(
            classes, jnp.zeros((), classes.dtype), [(int(lags[0]), 0, step - 1), *rest]
        )


@module
class Fixed(DelayLaw):
    """Every message takes ``lag`` rounds, or all messages of a client take its own lag.

    A slow client's messages are late in every round, and between peers over every edge. For delays
    that change from round to round, or differ between edges, take :class:`DelayTrace` or
    :class:`EdgeDelays`.

    Args:
      lag: rounds, >= 0, one number or ``[K]``.

    Raises:
      ValueError: a negative lag, or not one for each client.

    Example:
      The last of four clients is three rounds behind:

      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2),
      ...     algorithm=fl.algorithms.FedBuff(0.1, buffer_size=2),
      ...     delays=Fixed([0, 0, 0, 3]),
      ... )
      >>> fl.run(simulation, rounds=5).sizes["round"]
      5
    """

    lag: Annotated[int | Sequence[int] | Int[Array, " clients"], "checked"] = field(
        converter=as_given, static=True, default=0
    )

    def validate(self) -> None:
        lag: Any = checks.as_integers(self.lag)
        hint = "A message cannot arrive before it is sent."
        if isinstance(lag, list | tuple) or (np.ndim(lag) and checks.is_concrete(lag)):
            rounds = checks.trace("lag", lag, "integers", ("clients",), hint)
            checks.nonnegative("lag", rounds, hint)
            lag = tuple(np.asarray(rounds).tolist())
        else:
            checks.count("lag", self.lag, at_least=0, hint=hint)
            lag = int(lag)
        object.__setattr__(self, "lag", lag)

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        different = np.unique(self.lag)
        step = int(np.gcd.reduce(np.diff(different))) or 1  # the lags must be equally spaced
        return tuple(range(int(different[0]), int(different[-1]) + 1, step))

    def check(self, clients: int, rounds: int) -> None:
        checks.per_client("lag", self.lag, clients)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        return jnp.broadcast_to(self._indices(), (clients,))

    def over(
        self,
        key: Array,
        round: Array,
        receivers: Int[Array, "*edges"],
        senders: Int[Array, "*edges"],
    ) -> Int[Array, "*edges"]:
        indices = self._indices()
        return indices[senders] if indices.ndim else jnp.broadcast_to(indices, senders.shape)

    def _indices(self) -> Int[Array, "*clients"]:
        """The index in :attr:`lags` of each client's lag, or of that of all."""
        return jnp.asarray(np.searchsorted(self.lags, self.lag), jnp.int32)


@module
class Geometric(DelayLaw):
    r"""Delayed by :math:`s\,i` rounds or more with probability :math:`\delta^i` (section 4.2.2).

    The source says "or more" in sections 4.2.2 and 4.4.1 and "more than" in section 4.4.4 and in
    the paper (PAO-Fed), section V-A; only the first gives a probability of no delay, and agrees
    with section 4.4.6. Beyond the longest lag a message is discarded (:math:`\alpha_l=0`, section
    4.2.4) or its delay is clipped to it ("maximum possible delay", section 4.4.6): the source
    leaves it open, and figure 4.6(b) depends on it.

    Args:
      delta: :math:`\delta\in[0,1)`.
      longest: :math:`l_{\max}\ge0`, a multiple of ``step``.
      step: :math:`s\ge1`, the lags are its multiples; 10 in figure 4.6(c).
      beyond: ``"discard"`` or ``"clip"``.

    Raises:
      ValueError: a delta outside [0, 1), a longest lag below 0 or no multiple of the step.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> law = fl.link.Geometric(0.5, longest=4, step=2)
      >>> list(law.lags)
      [0, 2, 4]
      >>> drawn = law.draw(jax.random.key(0), jnp.int32(1), 10_000)
      >>> 0.48 < float((drawn == 0).mean()) < 0.52  # half of the messages arrive at once
      True
    """

    delta: Float[Array, ""] | float
    longest: int = static()
    step: int = static(default=1)
    beyond: str = static(default="discard")

    def validate(self) -> None:
        checks.interval("delta", self.delta, at_least=0, below=1)
        checks.count("longest", self.longest, at_least=0)
        checks.count("step", self.step)
        checks.choice("beyond", self.beyond, BEYOND)
        if self.longest % self.step:
            raise ValueError(f"longest must be a multiple of step={self.step}, got {self.longest}.")

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return range(0, self.longest + 1, self.step)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        dtype = jnp.result_type(self.delta)
        # 1 - u is never zero; at delta = 0 the quotient is zero for every u > 0.
        uniform = 1 - jax.random.uniform(key, (clients,), dtype)
        steps = jnp.floor(jnp.log(uniform) / jnp.log(jnp.asarray(self.delta)))
        last = len(self.lags) - (self.beyond == "clip")
        return jnp.minimum(steps, jnp.asarray(last, dtype)).astype(jnp.int32)


@module
class UniformDelay(DelayLaw):
    r"""Every message takes 0, 1, ... or ``longest`` rounds with equal probability; none is lost.

    Partially asynchronous methods assume only a bound on delays. The worst case of a bound is
    :class:`Fixed`.

    Args:
      longest: :math:`B\ge0`.

    Raises:
      ValueError: a longest lag below 0.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> law = fl.link.UniformDelay(3)
      >>> list(law.lags)
      [0, 1, 2, 3]
      >>> sorted(set(law.draw(jax.random.key(0), jnp.int32(1), 1000).tolist()))
      [0, 1, 2, 3]

    Reference:
      Jung 2025, section 5.8.
    """

    longest: int = static()

    def validate(self) -> None:
        checks.count("longest", self.longest, at_least=0)

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return range(self.longest + 1)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        return jax.random.randint(key, (clients,), 0, self.longest + 1, jnp.int32)


@module
class _Table(DelayLaw):
    """Delays from a given table."""

    table: Annotated[Array, "rounds clients"] = field(converter=as_given)
    longest: int | None = static(default=None)

    def validate(self) -> None:
        self._set_axes("rounds", "clients")

    def _set_axes(self, *axes: str) -> None:
        """Convert the table to an integer array with these axes, and determine ``longest``."""
        hint = "Write -1 for a message that is lost."
        table = checks.trace("table", self.table, "integers", axes, hint)
        object.__setattr__(self, "table", table)
        if self.longest is None:
            if not checks.is_concrete(table):
                raise TypeError(
                    "longest must be given for a traced table: the longest delay that it may hold."
                )
            object.__setattr__(self, "longest", max(int(np.max(table, initial=0)), 0))
        checks.count("longest", self.longest, at_least=0)

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        assert self.longest is not None
        return range(self.longest + 1)

    def _check_arrives(self, what: str, lag: np.ndarray, rounds: int) -> None:
        """Raise ``ValueError`` unless some message arrives before the run is over; ``lag`` is
        ``[T, ...]``, or ``[1, ...]`` if it is the same in all rounds.
        """
        sent = np.arange(len(lag)).reshape(-1, *[1] * (lag.ndim - 1))
        if not np.any((lag >= 0) & (lag <= self.lags[-1]) & (sent + lag < rounds)):
            raise ValueError(
                f"by {what} no message of the {rounds} rounds arrives before they are over; make "
                "the run longer or the delays shorter."
            )

    def _index(self, lag: Array) -> Int[Array, "*messages"]:
        """The index of a lag in :attr:`lags`; for a lost message their number."""
        lost = (lag < 0) | (lag > self.lags[-1])
        return jnp.where(lost, len(self.lags), lag).astype(jnp.int32)


@module
class DelayTrace(_Table):
    r"""A given table of delays, observed in a real network or made for a test.

    Args:
      table: ``[T, K]`` integers: the delay in rounds of a message sent in round 1, 2, ...; if
        negative or longer than ``longest``, it is lost.
      longest: :math:`l_{\max}\ge0`; by default the table's longest.

    Raises:
      ValueError: not a table of integers; fewer rounds than the run or another number of clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> law = fl.link.DelayTrace([[0, 1], [2, -1]])
      >>> law.draw(jax.random.key(0), jnp.int32(1), 2).tolist()  # delays in round 1
      [0, 1]
      >>> law.draw(jax.random.key(0), jnp.int32(2), 2).tolist()  # lost: one more than the longest
      [2, 3]
    """

    def check(self, clients: int, rounds: int) -> None:
        checks.trace_fits("the trace of delays", self.table, clients, rounds)
        if checks.is_concrete(self.table):
            lag = np.asarray(self.table[:rounds])
            self._check_arrives("the trace of delays", lag, rounds)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        return self._index(jnp.asarray(self.table)[round - 1])


@module
class EdgeDelays(_Table):
    r"""A given table of delays of each edge between peers, constant or observed.

    Args:
      table: ``[K, K]`` integers: the delay in rounds of messages from client :math:`l` to client
        :math:`k`, at ``[k, l]``, in every round; or ``[T, K, K]``, the age of the copy of
        :math:`l`'s message that :math:`k` receives in round 1, 2, ... If negative or longer than
        ``longest``, it receives nothing from :math:`l`. Entries without an edge are ignored.
      longest: :math:`l_{\max}\ge0`; by default the table's longest.

    Raises:
      ValueError: not such a table; fewer rounds than the run or another number of clients.

    Example:
      >>> import jax, fljax as fl
      >>> law = EdgeDelays.from_edges(4, {(0, 1): 2, (2, 3): 1})
      >>> law.table.tolist()
      [[0, 2, 0, 0], [2, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2),
      ...     algorithm=fl.algorithms.ATC(0.1),
      ...     network=fl.graphs.ring(4),
      ...     delays=law,
      ... )
      >>> fl.run(simulation, rounds=5).sizes["round"]
      5
    """

    def validate(self) -> None:
        of_rounds = np.ndim(checks.array("table", self.table)) == 3
        self._set_axes(*["rounds"] * of_rounds, "receivers", "senders")

    @classmethod
    def from_edges(
        cls,
        clients: int,
        delays: Mapping[tuple[int, int], int],
        longest: int | None = None,
    ) -> "EdgeDelays":
        """Return the law with delays on some edges; over all others messages are not late.

        Args:
          clients: ``K``.
          delays: from edges ``(k, l)`` to rounds, for both directions, or for messages from
            :math:`l` to :math:`k` where ``(l, k)`` has a delay of its own.
          longest: as in the class.

        Raises:
          ValueError: a pair that is not an edge between two of the clients.
        """
        checks.count("clients", clients)
        checks.kind("delays", delays, Mapping)

        def is_edge(pair: object) -> bool:
            if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
                return False
            return all(checks.is_whole(k) and 0 <= k < clients for k in pair)

        for pair in delays:
            if not is_edge(pair):
                raise ValueError(
                    f"delays must map edges, pairs of two of the clients 0 to {clients - 1}, to "
                    f"rounds, got {checks.shown(pair)}."
                )
        if not delays:
            return cls(np.zeros((clients, clients), int), longest)
        rounds = checks.trace("delays", list(delays.values()), "integers", ("edges",))
        table = np.zeros((clients, clients), rounds.dtype)
        receivers, senders = np.asarray(list(delays), int).reshape(-1, 2).T
        table[senders, receivers] = rounds
        table[receivers, senders] = rounds
        return cls(table, longest)

    def check(self, clients: int, rounds: int) -> None:
        *rounds_of_table, receivers, senders = self.table.shape
        if (receivers, senders) != (clients, clients) or (
            rounds_of_table and rounds_of_table[0] < rounds
        ):
            raise ValueError(
                f"the table of edges' delays has the shape {self.table.shape}; the run needs "
                f"[{clients}, {clients}], or [{rounds}, {clients}, {clients}] of its rounds."
            )
        if checks.is_concrete(self.table):
            lag = np.asarray(self.table).reshape(-1, clients, clients)[:rounds]
            between = lag[:, ~np.eye(clients, dtype=bool)]
            self._check_arrives("the table of edges' delays", between, rounds)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        raise TypeError(
            "EdgeDelays have one delay for each edge between peers, and none for a client as a "
            "whole."
        )

    def over(
        self,
        key: Array,
        round: Array,
        receivers: Int[Array, "*edges"],
        senders: Int[Array, "*edges"],
    ) -> Int[Array, "*edges"]:
        table = jnp.asarray(self.table)
        now = table if table.ndim == 2 else table[round - 1]
        return self._index(now[receivers, senders])


class OnTicks(DelayLaw):
    """Delays by the seconds that messages take, on a clock of rounds of a fixed length.

    A simulation makes it of its clock (:class:`fljax.clock.Ticks`).

    Args:
      longest: the most rounds that a message may be late.
      clock: of the round; ``None`` before the first.
    """

    def __init__(self, longest: int, clock: Any = None) -> None:
        self.lags = range(longest + 1)
        self.clock = clock

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        return self.clock.lag

    def over(
        self,
        key: Array,
        round: Array,
        receivers: Int[Array, "*edges"],
        senders: Int[Array, "*edges"],
    ) -> Int[Array, "*edges"]:
        return self.clock.lag_over(receivers, senders)


class Line(NamedTuple):
    """Sums of the messages in transit, by the round of arrival, the next round first."""

    total: (
        Array  # [slots, B D]  weighted sums of the messages, for each of B accumulators end to end
    )
    share: Array  # [slots, B D]  the weights that went into them
    weight: Array  # [slots, B]   the weights of the messages themselves


def empty_line(delays: DelayLaw, dim: int, dtype: DTypeLike, boxes: int = 1) -> Line:
    """Return an empty line with ``boxes`` accumulators: one or several servers, or all clients.

    Raises:
      ValueError: lags that are not equally spaced.
    """
    if len(set(np.diff(delays.lags))) > 1:
        raise ValueError(f"the lags of a delay law must be equally spaced, got {delays.lags}.")
    slots = delays.lags[-1] + 1
    zero = jnp.zeros((slots, boxes * dim), dtype)
    return Line(zero, zero, jnp.zeros((slots, boxes), dtype))
