"""Clients at work at their own speeds, and the arrivals of their messages."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._core.module import float_dtype
from fljax._core.prng import key_of
from fljax.clock.clocks import Asynchronous
from fljax.clock.device_model import Times, Work
from fljax.clock.round_clock import PHASES, ClockState, differs
from fljax.link.traffic import Traffic, narrow
from fljax.participation.selectors import Participants


class AtWork(NamedTuple):
    """The clients that work, and the models that they work from."""

    client: Array  # [C]
    left: Array  # [C]  seconds until each has ended
    age: Array  # [C]  seconds since each was sent its model
    times: Times  # [C] each  of the parts of its work
    version: Array  # [C]  of the server's model that it received
    model: Any  # [C, D]  that model; () between peers
    current: Array  # []  version of the server's model
    # The next arrivals. Their models are read before any is replaced: a round that read and
    # replaced rows of one array would copy all of it.
    slots: Any = ()  # [M]  which of the clients at work they are
    started: Any = ()  # [M, D]  the models that they work from

    def of(self, slots: Int[Array, " arrivals"]) -> "AtWork":
        """Return the work of these clients, without their models."""
        rest = self._replace(model=(), current=None, slots=(), started=())
        return jax.tree.map(lambda a: a[slots], rest)

    def with_next(self, arrivals: int) -> "AtWork":
        """Return the same with this number of next arrivals; among arrivals at the same moment the
        clients with the smaller numbers come first.
        """
        if arrivals == 1:
            slots = _soonest(self.left, self.client)[None]
        else:
            slots = jnp.lexsort((self.client, self.left))[:arrivals]
        started = jax.tree.map(lambda a: a[slots], self.model)
        return self._replace(slots=slots.astype(jnp.int32), started=started)


def _soonest(left: Float[Array, " clients"], client: Int[Array, " clients"]) -> Int[Array, ""]:
    """The index of the least seconds, and among equal ones of the least client number.

    Only the first of several messages of one client counts. It is one reduction of triples: where
    the minimum is computed first and compared later, XLA may compute the seconds twice and round
    them otherwise, so that none equals the minimum.
    """

    def earlier(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, ...]:
        same_time = first[0] == second[0]
        same_client = same_time & (first[1] == second[1])
        is_first = (first[0] < second[0]) | (same_time & (first[1] < second[1]))
        is_first = is_first | (same_client & (first[2] < second[2]))
        return tuple(jnp.where(is_first, a, b) for a, b in zip(first, second, strict=True))

    last = np.iinfo(np.int32).max
    operands = left, client, jnp.arange(len(left), dtype=jnp.int32)
    start = np.asarray(np.inf, left.dtype), np.int32(last), np.int32(0)
    return jax.lax.reduce(operands, start, earlier, (0,))[2]


class Ages(NamedTuple):
    """How old the models are that messages are based on."""

    versions: Array  # [M]  models that the server has had since
    seconds: Array  # [M]  since they were sent


class ArrivalClock:
    """A clock of single arrivals in one of its rounds.

    Args:
      clock: the simulation's.
      state: from the previous round.
      key: of the round.
      round: 1, 2, ...
      work: of all clients.

    Attributes:
      participants: whose messages arrive in this round.
      started: ``[M, D]``, the models that they started from.
      staleness: of their messages.
      slots: ``[M]``, which of the parts of work in progress have ended, in [0, ``concurrency``).
    """

    available = None
    in_time = None
    wants_losses = False

    def __init__(
        self, clock: Asynchronous, state: ClockState, key: Array, round: Array, work: Work
    ) -> None:
        self.clock = clock
        self._state = state
        self._key = key
        self._round = round
        self._work = work
        at_work: AtWork = state.at_work
        self.slots = at_work.slots
        rows = at_work.of(self.slots)
        self._rows = rows
        arrives = rows.times.arrival < jnp.inf
        self.participants = Participants(rows.client, arrives)
        self.started = at_work.started
        self.staleness = Ages(at_work.current - rows.version, rows.age + rows.left)
        self.phases: dict[str, Array] = {}
        self._read = False
        self._goes_on_at: Array | None = None

    @property
    def failed(self) -> Int[Array, ""]:
        """How many of the round's clients were sent a model and have failed."""
        is_over = self._rows.left < jnp.inf
        return jnp.sum(is_over & ~self.participants.here, dtype=jnp.int32)

    def choose(
        self, key: Array, available: Bool[Array, " clients"], problem: Any, model: Any
    ) -> Participants:
        """Return the clients whose messages arrive."""
        self._read = True
        return self.participants

    def invite(self, participants: Participants) -> None:
        """Do nothing: participants are chosen by the clock."""

    def go_on_at(self, client: Int[Array, ""]) -> None:
        """Let another client continue the work that has ended, on the model that it is sent."""
        self._goes_on_at = client

    def remember(self, participants: Participants, reported: Array) -> None:
        """Do nothing: no losses are wanted."""

    def limited(self, participants: Participants, counts: Array) -> None:
        """Return ``None``: clients take all their steps."""

    def close(self, before: Array, after: Array, traffic: Traffic) -> ClockState:
        """Return the state after the round.

        Args:
          before: the server's model before it, or the peers' models.
          after: the same after it.
          traffic: of the round.

        Raises:
          TypeError: an algorithm that does not choose its participants.
        """
        if not self._read:
            raise TypeError(
                "Asynchronous decides whose messages arrive, and the algorithm chooses no "
                "participants (now.choose); take fljax.clock.Synchronous."
            )
        state = self._state
        at_work: AtWork = state.at_work
        rows = self._rows
        worked = rows.times.ended
        rates = state.rates.of(rows.client)
        clients = len(state.busy[0])
        joules = rates.joules(worked, rows.times, self._work)
        self._note(rows, worked, clients)
        until = rows.left[-1]
        state = state.later(until, worked, joules, self.participants.here, rows.client)
        elapsed = jnp.where(until < jnp.inf, until, 0)
        of_server = before.ndim == 1
        current = at_work.current
        if of_server:
            expected = jnp.sum(self.participants.here, dtype=float_dtype()) * self._work.bits_up
            state = state._replace(
                miscounted=state.miscounted | differs(narrow(traffic.bits_up), expected)
            )
            current = current + jnp.any(before != after).astype(current.dtype)
        waiting = at_work._replace(
            left=at_work.left - elapsed, age=at_work.age + elapsed, current=current
        )
        if self._goes_on_at is None:
            new_clients = self._next_clients(waiting, state)
            started = begin_work(
                self.clock, state, self._key, self._round, self._work, new_clients, current
            )
        else:
            started = self._begin_visit(waiting, state, self._goes_on_at)
        model = at_work.model
        if of_server:
            model = model.at[self.slots].set(jnp.broadcast_to(after, (len(self.slots), len(after))))
        fresh = {
            name: jax.tree.map(
                lambda old, new: old.at[self.slots].set(new),
                getattr(waiting, name),
                getattr(started, name),
            )
            for name in ("client", "left", "age", "times", "version")
        }
        at_work = waiting._replace(**fresh, model=model)
        return state._replace(at_work=at_work.with_next(self.clock.arrivals))

    def _begin_visit(self, at_work: AtWork, state: ClockState, client: Array) -> AtWork:
        """The work of a client that is sent a model by the one whose work has ended."""
        rates = state.rates
        sender = self._rows.client[0]
        rate = jnp.minimum(
            rates.upload_bits_per_second[sender], rates.download_bits_per_second[client]
        )
        transfer = rates.latency_seconds[sender] + self._work.bits_up / rate
        transfer = jnp.where(client == sender, 0, transfer)
        # It computes on one model after the other.
        earlier_models = (at_work.client == client).at[self.slots].set(False)
        free = jnp.max(jnp.where(earlier_models, at_work.left, 0))
        clients = client[None]
        times = self.clock.devices.times(self._key, self._round, rates, self._work, clients)
        return begin_visits(clients, jnp.maximum(transfer, free)[None], times, at_work.current)

    def _next_clients(self, at_work: AtWork, state: ClockState) -> Int[Array, " arrivals"]:
        """The clients that begin to work."""
        clients = len(state.busy[0])
        if self.clock.at_work(clients) == clients:
            return self._rows.client
        works = jnp.zeros(clients, bool).at[at_work.client].set(True)
        works = works.at[self._rows.client].set(False)
        return idle_clients(
            self.clock, key_of(self._key, "participation"), state, works, self.clock.arrivals
        )

    def _note(self, rows: AtWork, worked: Array, clients: int) -> None:
        begin = self._state.seconds[0] + rows.left - worked
        values = (
            begin,
            *rows.times.within(worked),
            (rows.times.arrival < jnp.inf).astype(begin.dtype),
        )
        nothing = jnp.full(clients, jnp.nan, begin.dtype)
        self.phases = {
            name: nothing.at[rows.client].set(value)
            for name, value in zip(PHASES, values, strict=True)
        }


def idle_clients(
    clock: Asynchronous, key: Array, state: ClockState, works: Bool[Array, " clients"], count: int
) -> Int[Array, " count"]:
    """Clients that do not work, drawn uniformly from those available now, or soonest."""
    clients = len(works)
    everyone = jnp.arange(clients, dtype=jnp.int32)
    wait = jnp.zeros(clients, state.seconds.dtype)
    if clock.devices.availability is not None:
        availability = clock.devices.availability.at(state.seconds[0], everyone)
        wait = availability.wait.astype(wait.dtype)
    wait = jnp.where(works, jnp.inf, wait)
    order = jax.random.permutation(key, everyone)
    return order[jnp.argsort(wait[order])[:count]]


def begin_work(
    clock: Asynchronous,
    state: ClockState,
    key: Array,
    round: Array,
    work: Work,
    clients: Int[Array, " some"],
    version: Int[Array, ""],
) -> AtWork:
    """Clients that are sent the server's model now, or as soon as they are available."""
    dtype = state.seconds.dtype
    availability = clock.devices.availability
    wait = jnp.zeros(clients.shape, dtype)
    left = None
    if availability is not None:
        intervals = availability.at(state.seconds[0], clients)
        wait = intervals.wait.astype(dtype)
        left = jnp.where(wait < jnp.inf, intervals.left, 0).astype(dtype)
    times = clock.devices.times(key, round, state.rates, work, clients, left)
    versions = jnp.full(clients.shape, version, jnp.int32)
    return AtWork(clients, wait + times.ended, -wait, times, versions, (), version)


def begin_visits(
    clients: Int[Array, " some"], wait: Float[Array, " some"], times: Times, version: Array
) -> AtWork:
    """Clients that start to compute these numbers of seconds later, when a model reaches them."""
    nothing = jnp.zeros_like(wait)
    times = times._replace(download=nothing, upload=nothing)
    versions = jnp.full(clients.shape, version, jnp.int32)
    return AtWork(clients, wait + times.ended, -wait, times, versions, (), version)


def begin_arrivals(
    clock: Asynchronous, state: ClockState, key: Array, work: Work, model: Array, walk: bool = False
) -> ClockState:
    """Return the state before the first round, in which the first clients begin to work.

    Args:
      clock: the simulation's.
      state: before any client works.
      key: of round 0.
      work: of all clients.
      model: the server's at the start, or the peers' models.
      walk: whether models go from peer to peer; at the start the first peers have them.
    """
    clients = len(state.busy[0])
    count = clock.at_work(clients)
    chosen = jnp.arange(clients, dtype=jnp.int32)
    if count < clients:
        nobody = jnp.zeros(clients, bool)
        chosen = idle_clients(clock, key_of(key, "participation"), state, nobody, count)
    zero = jnp.zeros((), jnp.int32)
    at_work = begin_work(clock, state, key, zero, work, chosen, zero)
    if walk:
        at_work = begin_visits(chosen, jnp.zeros(count, at_work.left.dtype), at_work.times, zero)
    if model.ndim == 1:
        at_work = at_work._replace(model=jnp.broadcast_to(model, (count, len(model))))
    return state._replace(at_work=at_work.with_next(clock.arrivals))


def busy_seconds(state: ClockState) -> Float[Array, " clients"]:
    """Return how many seconds each client has worked so far, including unfinished work."""
    seconds = jnp.sum(state.busy, axis=0)
    if isinstance(state.at_work, AtWork):
        at_work = state.at_work
        so_far = jnp.clip(at_work.times.ended - at_work.left, 0, at_work.times.ended)
        seconds = seconds.at[at_work.client].add(so_far)
    return seconds
