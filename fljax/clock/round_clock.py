"""The clock in one round: whose messages arrive in time, how long the round lasts, who works."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core.linalg import accumulated
from fljax._core.module import float_dtype
from fljax.clock.clocks import Choice, Deadline, RoundBasedClock, Ticks
from fljax.clock.device_model import Rates, Work
from fljax.graphs import Graph
from fljax.link import Link, Traffic
from fljax.link.compression import WORD
from fljax.link.traffic import narrow
from fljax.participation.selectors import Participants

#: The parts of a client's round that are recorded for pictures of it, each in seconds, as far as
#: the client got until it failed or was stopped; and whether its message arrived.
PHASES = ("begin", "download", "compute", "upload", "arrived")


class ClockState(NamedTuple):
    """The state of a clock between rounds."""

    rates: Rates  # of all clients' devices
    seconds: Array  # [2]  since the start of the run, as a compensated sum
    busy: Array  # [2, K]  seconds in which each client worked, in the same way
    joules: Array  # [2, K]  the energy of each client
    arrived: Array  # []  messages so far that arrived in time
    stood_still: Array  # []  whether no client would ever have been available again
    miscounted: Array  # []  whether messages had other lengths than the clock expected
    at_work: PyTree = ()  # of a clock of single arrivals
    memory: PyTree = ()  # memory of a clock that chooses participants

    @classmethod
    def at_start(cls, rates: Rates) -> "ClockState":
        zero = jnp.zeros((2, *rates.watts.shape), float_dtype())
        none = jnp.zeros((), jnp.int32)
        no = jnp.zeros((), bool)
        return cls(rates, jnp.zeros(2, float_dtype()), zero, zero, none, no, no)

    def later(
        self,
        seconds: Float[Array, ""],
        busy: Float[Array, " some"],
        joules: Float[Array, " some"],
        arrived: Bool[Array, " some"],
        clients: Int[Array, " some"] | None = None,
    ) -> "ClockState":
        """Return the state after these seconds, in which clients worked so long, spent this energy,
        and these messages arrived; all clients, or distinct ones, at the cost of these alone. Where
        the seconds are infinite, time stands still.
        """
        passes = seconds < jnp.inf
        seconds = jnp.where(passes, seconds, 0)
        return self._replace(
            seconds=jnp.stack(accumulated(self.seconds[0], self.seconds[1], seconds)),
            busy=_with_more(self.busy, busy, clients),
            joules=_with_more(self.joules, joules, clients),
            arrived=self.arrived + jnp.sum(arrived, dtype=jnp.int32),
            stood_still=self.stood_still | ~passes,
        )


def _with_more(
    sums: Float[Array, "2 clients"],
    more: Float[Array, " some"],
    clients: Int[Array, " some"] | None,
) -> Float[Array, "2 clients"]:
    """Compensated sums of all clients with another summand of some of them."""
    if clients is None:
        return jnp.stack(accumulated(sums[0], sums[1], more))
    rows = sums[:, clients]
    return sums.at[:, clients].set(jnp.stack(accumulated(rows[0], rows[1], more)))


class RoundClock:
    """A clock of common rounds in one of them.

    Args:
      clock: the simulation's.
      state: from the previous round.
      key: of the round.
      round: 1, 2, ...
      work: of all clients.
      network: of the clients, if they are peers.

    Attributes:
      available: ``[K]``, whose devices are available; ``None``: all.
      in_time: ``[K]``, whose messages of this round arrive; ``None``: all.
      phases: the parts of each client's round (:data:`PHASES`), ``[K]`` each, NaN for others.
    """

    started: Any = None  # participants start from the model of this round
    staleness: Any = None

    def __init__(
        self,
        clock: RoundBasedClock,
        state: ClockState,
        key: Array,
        round: Array,
        work: Work,
        network: Any,
    ) -> None:
        self.clock = clock
        self._state = state
        if clock.wants_losses:
            work = work._replace(bits_up=work.bits_up + WORD)
        self._work = work
        self._graph = network if isinstance(network, Graph) else None
        clients = len(work.steps)
        self._key = key
        self._round = round
        self.available, self._left = clock.devices.available(state.seconds[0], clients)
        everyone = jnp.arange(clients, dtype=jnp.int32)
        self.times = clock.devices.times(key, round, state.rates, work, everyone, self._left)
        self._steps: Array | None = None
        if isinstance(clock, Deadline) and clock.partial:
            self.times, self._steps = clock.shortened(self.times, work)
        self.in_time: Array | None = None
        self.phases: dict[str, Array] = {}
        self._invited: Array | None = None
        self._reads_steps = self._steps is None
        self._memory = state.memory

    @property
    def wants_losses(self) -> bool:
        """Whether participants tell of their losses (:meth:`remember`)."""
        return self.clock.wants_losses

    def choose(
        self, key: Array, available: Bool[Array, " clients"], problem: Any, model: Any
    ) -> Participants | None:
        """Return the participants where the clock chooses them."""
        state = self._state
        choice = Choice(self._round, state.rates, self._work, self._memory, problem, model)
        chosen = self.clock.choose(key, available, choice)
        if chosen is None:
            return None
        participants, self._memory = chosen
        return participants

    def remember(self, participants: Participants, reported: Float[Array, " chosen"]) -> None:
        """Keep the losses that the participants report."""
        assert self.in_time is not None
        self._memory = self.clock.remember(
            self._memory,
            self._round,
            participants,
            reported,
            self.in_time,
            self.times.ended,
        )

    def invite(self, participants: Participants) -> None:
        """Take note of the participants, which determine how long the round lasts."""
        nobody = jnp.zeros(len(self._work.steps), bool)
        invited = participants.put(nobody, participants.here)
        invited = invited if self._invited is None else self._invited | invited
        self._invited = invited
        if self.clock.leaves_out or self.clock.devices.can_fail:
            self.in_time = self.clock.closing(self.times, invited)[1]

    def limited(
        self, participants: Participants, counts: Int[Array, " chosen"]
    ) -> Int[Array, " chosen"] | None:
        """Return how many local steps participants take where the clock limits them."""
        self._reads_steps = True
        if self._steps is None:
            return None
        return jnp.minimum(counts, self._steps[participants.numbers])

    @property
    def lag(self) -> Int[Array, " clients"]:
        """By how many rounds each client's message to a server is late, under :class:`Ticks`."""
        assert isinstance(self.clock, Ticks)
        return self.clock.lags(self.times.arrival)

    def lag_over(
        self, receivers: Int[Array, "*edges"], senders: Int[Array, "*edges"]
    ) -> Int[Array, "*edges"]:
        """The same of messages over edges between peers."""
        assert isinstance(self.clock, Ticks)
        return self.clock.lags(self._over_edges(receivers, senders))

    def _over_edges(
        self, receivers: Int[Array, "*edges"], senders: Int[Array, "*edges"]
    ) -> Float[Array, "*edges"]:
        """After how many seconds messages over edges arrive."""
        rates = self._state.rates
        slower = jnp.minimum(
            rates.upload_bits_per_second[senders], rates.download_bits_per_second[receivers]
        )
        ready = self.times.compute[senders] + rates.latency_seconds[senders]
        return ready + self._work.bits_up / slower

    def close(self, taking_part: Bool[Array, " clients"], link: Link) -> ClockState:
        """Return the state after the round.

        Args:
          taking_part: who sent a message, where the algorithm chooses no participants.
          link: of the round, after its last message.

        Raises:
          TypeError: an algorithm without the calls that the clock rests on.
        """
        if not self._reads_steps:
            raise TypeError(
                "a deadline with partial=True limits local steps, and the algorithm takes none "
                "that it could; leave partial out."
            )
        if self.clock.leaves_out and self._invited is None:
            raise TypeError(
                f"{type(self.clock).__name__} decides about participants, and the algorithm "
                "chooses none (now.choose); take fljax.clock.Synchronous."
            )
        invited = taking_part if self._invited is None else self._invited
        state = self._state
        if not self.clock.rests_on_sizes:
            self._count_bits(invited, link.traffic)
        times = self.times
        ended = times.ended
        if self._graph is not None:  # peers compute without a download before
            upload = jnp.where(link.participants, times.upload, 0)
            times = times._replace(download=jnp.zeros_like(times.download), upload=upload)
            ended = times.planned
        seconds = self.clock.closing(self.times, invited)[0]
        if self._graph is not None and not isinstance(self.clock, Ticks):
            computed = jnp.max(jnp.where(invited, self.times.compute, 0))
            seconds = jnp.maximum(computed, self._last_over_edges(link))
        seconds = jnp.where(jnp.any(invited), seconds, self._until_available())
        worked = jnp.where(invited, jnp.minimum(ended, seconds), 0)
        # Under ticks a client continues with its part in later rounds; otherwise it is stopped.
        spent = ended if isinstance(self.clock, Ticks) else worked
        joules = jnp.where(invited, state.rates.joules(spent, times, self._work), 0)
        arrived = invited if self.in_time is None else self.in_time
        if isinstance(self.clock, Ticks) and self._graph is None:
            arrived = invited & (self.lag <= self.clock.longest)
        values = (state.seconds[0], *times.within(spent), jnp.where(arrived, 1.0, 0.0))
        self.phases = {
            name: jnp.where(invited, value, jnp.nan)
            for name, value in zip(PHASES, values, strict=True)
        }
        return state.later(seconds, worked, joules, arrived)._replace(
            miscounted=state.miscounted | self._miscounted(invited, link.traffic),
            memory=self._memory,
        )

    def _miscounted(self, invited: Bool[Array, " clients"], traffic: Traffic) -> Bool[Array, ""]:
        """Whether the participants sent other bits than the clock was told before the round."""
        if not self.clock.rests_on_sizes or self._graph is not None:
            return jnp.zeros((), bool)
        sent = jnp.sum(invited, dtype=float_dtype())
        expected = sent * self._work.bits_up, sent * self._work.bits_down
        counted = narrow(traffic.bits_up), narrow(traffic.bits_down)
        return differs(counted[0], expected[0]) | differs(counted[1], expected[1])

    def _count_bits(self, invited: Bool[Array, " clients"], traffic: Traffic) -> None:
        """Take the bits that have been exchanged in this round: of each participant, or among peers
        of each message. They are counted, and the round waits for all participants.
        """
        if self._graph is None:
            sending = jnp.sum(invited, dtype=float_dtype())
        else:
            sending = narrow(traffic.messages)
        sending = jnp.maximum(sending, 1)
        self._work = self._work._replace(
            bits_up=narrow(traffic.bits_up) / sending, bits_down=narrow(traffic.bits_down) / sending
        )
        everyone = jnp.arange(len(invited), dtype=jnp.int32)
        devices = self.clock.devices
        self.times = devices.times(
            self._key, self._round, self._state.rates, self._work, everyone, self._left
        )

    def _last_over_edges(self, link: Link) -> Float[Array, ""]:
        """When the last message over an edge that is combined has arrived."""
        sends = link.participants
        clients = len(sends)
        everyone = jnp.arange(clients, dtype=jnp.int32)
        last = jnp.zeros((), self.times.compute.dtype)
        for part in (part for entries in link.combined for part in entries.parts):
            senders = jnp.broadcast_to(part.of_neighbors(everyone), part.weights.shape)
            # A spare row of a table is of a node beyond the last, with weights of zero.
            receivers = jnp.minimum(part.nodes, clients - 1)[:, None]
            receivers = jnp.broadcast_to(receivers, senders.shape)
            used = (part.weights != 0) & sends[senders] & (senders != receivers)
            arrival = self._over_edges(receivers, senders)
            last = jnp.maximum(last, jnp.max(jnp.where(used, arrival, 0), initial=0))
        return last

    def _until_available(self) -> Float[Array, ""]:
        """How long a round without participants lasts: until a client is available again."""
        availability = self.clock.devices.availability
        if availability is None:
            return jnp.zeros((), float_dtype())
        everyone = jnp.arange(len(self._work.steps), dtype=jnp.int32)
        wait = availability.at(self._state.seconds[0], everyone).wait
        return jnp.min(wait).astype(float_dtype())


def differs(counted: Float[Array, ""], expected: Float[Array, ""]) -> Bool[Array, ""]:
    """Return whether two numbers of bits differ by more than their rounding."""
    return jnp.abs(counted - expected) > 1e-5 * expected
