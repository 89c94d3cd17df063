"""When a round ends: clocks of rounds that wait for clients, and of single arrivals.

A clock is a part of a simulation. What it says of one round is a
:class:`~fljax.clock.round_clock.RoundClock`, or an
:class:`~fljax.clock.arrivals.ArrivalClock`.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax._core.random_subsets import shuffled
from fljax.clock.device_model import Devices, Rates, Times, Work
from fljax.participation.selectors import Participants, check_subset


class Clock:
    """Base class of clocks.

    Attributes:
      devices: of the clients.
      asynchronous: whether a round is an arrival, and not one of rounds that clients have in
        common.
      leaves_out: whether the clock determines whose messages a round has.
      rests_on_sizes: whether that, or when messages arrive, rests on how long they are, which must
        then be known before the round (:meth:`~fljax.algorithms.Algorithm.exchanged`).
    """

    devices: Devices
    asynchronous: ClassVar[bool] = False
    leaves_out: ClassVar[bool] = False
    rests_on_sizes: ClassVar[bool] = False

    def check(self, clients: int, rounds: int) -> None:
        """Raise ``ValueError`` unless the clock fits a run of this size."""
        self.devices.check(clients, rounds)


class Choice(NamedTuple):
    """The information from which a clock chooses the participants of a round."""

    round: Array  # []  1, 2, ...
    rates: Rates  # of all clients' devices
    work: Work  # of all clients
    memory: PyTree  # of the clock, from earlier rounds
    problem: Any  # the data of the clients
    model: Any  # [D] the server's, or [K, D] of clients with their own; None if not given


class RoundBasedClock(Clock):
    """Base class of clocks whose rounds are common to all participants.

    Attributes:
      reads_data: whether it chooses participants by what models are worth on clients' data.
      wants_losses: whether participants tell the utility of their samples, by their losses.
    """

    reads_data: ClassVar[bool] = False
    wants_losses: ClassVar[bool] = False

    def begin(self, clients: int) -> PyTree:
        """Return the clock's memory before the first round; empty by default."""
        return ()

    def choose(
        self, key: Array, available: Bool[Array, " clients"], choice: Choice
    ) -> tuple[Participants, PyTree] | None:
        """Return the participants where the clock chooses them instead of a selector, and its
        memory.
        """
        return None

    def remember(
        self,
        memory: PyTree,
        round: Array,
        participants: Participants,
        reported: Float[Array, " chosen"],
        arrived: Bool[Array, " clients"],
        seconds: Float[Array, " clients"],
    ) -> PyTree:
        """Return the clock's memory after a round, if it ``wants_losses``.

        Args:
          memory: before it.
          round: 1, 2, ...
          participants: of the round.
          reported: of each participant, its number of samples times the root of the mean square of
            their losses.
          arrived: whose messages have arrived.
          seconds: that the round takes each client.
        """
        return memory

    @checks.required
    def closing(
        self, times: Times, invited: Bool[Array, " clients"]
    ) -> tuple[Float[Array, ""], Bool[Array, " clients"]]:
        """Return how many seconds a round lasts, and whose messages arrive in it.

        Args:
          times: of all clients.
          invited: the participants.
        """
        raise NotImplementedError


def _last(seconds: Array, invited: Array) -> Float[Array, ""]:
    """When the last of the invited clients has answered or failed."""
    return jnp.max(jnp.where(invited, seconds, 0))


@module
class Synchronous(RoundBasedClock):
    """A round lasts until its slowest participant has answered, or failed.

    Among peers it lasts until the last message has arrived: a message from client :math:`l` to
    client :math:`k` takes what :math:`l` computes, the latency, and its bits at the slower of
    :math:`l`'s upload and :math:`k`'s download.

    Args:
      devices: of the clients.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1, local_steps=5),
      ...     clock=Synchronous(Devices(seconds_per_step=[0.1, 0.1, 0.1, 0.4])),
      ... )
      >>> fl.run(simulation, rounds=3).seconds.astype(float).round(3).values.tolist()
      [2.0, 4.0, 6.0]
    """

    devices: Devices

    def closing(
        self, times: Times, invited: Bool[Array, " clients"]
    ) -> tuple[Float[Array, ""], Bool[Array, " clients"]]:
        return _last(times.ended, invited), invited & (times.arrival < jnp.inf)


@module
class FirstArrivals(RoundBasedClock):
    """A round lasts until the first ``count`` of its participants have answered.

    The server invites more clients than it waits for and ignores the answers of the others, whose
    work is stopped at the end of the round. Among several that arrive at the same moment the
    smaller client numbers count. Where fewer arrive, since others have failed, the round lasts
    until the last has answered or failed.

    Args:
      devices: of the clients.
      count: >= 1, at most the algorithm's participants of a round.

    Raises:
      ValueError: a count below 1, or above the number of participants.

    Reference:
      Bonawitz et al. 2019, who invite 1.3 times as many clients as they wait for.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1, local_steps=5),
      ...     clock=FirstArrivals(Devices(seconds_per_step=[0.1, 0.1, 0.1, 0.4]), count=3),
      ... )
      >>> fl.run(simulation, rounds=3).seconds.astype(float).round(3).values.tolist()
      [0.5, 1.0, 1.5]
    """

    devices: Devices
    count: int = static(kw_only=True)
    reference = "bonawitz2019"
    leaves_out = True
    rests_on_sizes = True

    def validate(self) -> None:
        checks.count("count", self.count)

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        check_subset("count", self.count, clients)

    def closing(
        self, times: Times, invited: Bool[Array, " clients"]
    ) -> tuple[Float[Array, ""], Bool[Array, " clients"]]:
        arrival = jnp.where(invited, times.arrival, jnp.inf)
        order = jnp.argsort(arrival)  # stable: of equal ones those with smaller numbers first
        last = arrival[order[self.count - 1]]
        among_first = jnp.zeros_like(invited).at[order[: self.count]].set(True)
        in_time = among_first & (arrival < jnp.inf)
        return jnp.where(last < jnp.inf, last, _last(times.ended, invited)), in_time


@module
class Deadline(RoundBasedClock):
    """A round lasts until all participants have answered, but at most a number of seconds.

    What arrives later is ignored, and the work is stopped at the end of the round. With ``partial``
    a participant that would be late takes only as many local steps as it can complete in time, and
    is late only if this is not even one.

    Args:
      devices: of the clients.
      seconds: the most seconds of a round, > 0.
      partial: whether fewer steps are sent, or a late message ignored.

    Raises:
      ValueError: a deadline that is not positive, or that no client can meet; ``partial`` with an
        algorithm whose participants take no local steps.

    Reference:
      Bonawitz et al. 2019; for partial work Li et al. 2020, Algorithm 2.

    Example:
      >>> import jax, fljax as fl
      >>> devices = Devices(seconds_per_step=[0.1, 0.1, 0.1, 0.4])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1, local_steps=5),
      ...     clock=Deadline(devices, seconds=1.0, partial=True),
      ... )
      >>> fl.run(simulation, rounds=3).seconds.astype(float).round(3).values.tolist()
      [0.8, 1.6, 2.4]
    """

    devices: Devices
    seconds: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    partial: bool = static(default=False, kw_only=True)
    reference = "bonawitz2019"
    leaves_out = True
    rests_on_sizes = True

    def validate(self) -> None:
        checks.positive("seconds", self.seconds)
        checks.switch("partial", self.partial)

    def closing(
        self, times: Times, invited: Bool[Array, " clients"]
    ) -> tuple[Float[Array, ""], Bool[Array, " clients"]]:
        deadline = jnp.asarray(self.seconds, times.compute.dtype)
        in_time = invited & (times.arrival <= deadline)
        return jnp.minimum(_last(times.ended, invited), deadline), in_time

    def shortened(self, times: Times, work: Work) -> tuple[Times, Array]:
        """Return the times with as many steps as can be completed, and how many these are."""
        steps = work.steps.astype(times.compute.dtype)
        for_steps = jnp.asarray(self.seconds, steps.dtype) - times.download - times.upload
        per_step = times.compute / jnp.maximum(steps, 1)
        # A product of steps and seconds that equals the deadline may be rounded to slightly more.
        possible = jnp.floor(for_steps / jnp.where(per_step > 0, per_step, 1) * (1 + 1e-6))
        taken = jnp.clip(jnp.where(per_step > 0, possible, steps), 0, steps)
        compute = jnp.where(taken >= 1, taken * per_step, times.compute)
        fits = jnp.minimum(compute, jnp.maximum(for_steps, 0))  # up to that rounding
        compute = jnp.where(taken >= 1, fits, compute)
        return times._replace(compute=compute), taken.astype(jnp.int32)


def tiers_of(choice: Choice, tiers: int) -> Int[Array, " clients"]:
    """Return the tier of each client; the fastest are in tier 0."""
    rank = jnp.argsort(jnp.argsort(choice.rates.expected(choice.work)))
    return rank * tiers // len(rank)


def draw_tier(
    key: Array,
    available: Bool[Array, " clients"],
    tier: Int[Array, " clients"],
    weights: Float[Array, " tiers"],
    count: int,
) -> tuple[Participants, Int[Array, ""]]:
    """Return participants of a tier that is drawn in proportion to these weights, and the tier."""
    of_tier, of_clients = jax.random.split(key)
    drawn = jax.random.choice(of_tier, len(weights), p=weights / jnp.sum(weights))
    among = available & (tier == drawn.astype(tier.dtype))
    chosen = shuffled(of_clients, among[None], count)[0]
    return Participants(chosen, among[chosen]), drawn


@module
class Tiers(Synchronous):
    """Each round is of clients of one tier of about equal speed, and lasts until all have answered.

    Clients are sorted by the seconds that a round takes them without its variation, and divided
    into tiers of equal size; each round draws a tier, and participants of it that are available,
    instead of the algorithm's own selection.

    Args:
      devices: of the clients.
      tiers: how many, >= 1; the first is the fastest.
      count: participants of a round, drawn uniformly without replacement.
      probabilities: of the tiers; equal by default.

    Raises:
      ValueError: numbers below 1, more tiers than clients, more participants than clients in a
        tier, probabilities that are negative or do not sum to one.

    Reference:
      Chai et al. 2020 (TiFL), section 4.2 and, for the probabilities, section 4.3. Its adaptive
      ones, which follow the accuracy of each tier, are :class:`AdaptiveTiers`.

    Example:
      >>> import jax, fljax as fl
      >>> devices = Devices(seconds_per_step=[0.1, 0.4, 0.1, 0.4])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1, local_steps=5),
      ...     clock=Tiers(devices, tiers=2, count=2, probabilities=(1.0, 0.0)),
      ... )
      >>> fl.run(simulation, rounds=3).seconds.astype(float).round(3).values.tolist()
      [0.5, 1.0, 1.5]
    """

    tiers: int = static(kw_only=True)
    count: int = static(kw_only=True)
    probabilities: tuple[float, ...] | None = field(
        converter=lambda p: p if p is None else tuple(map(float, np.asarray(p).tolist())),
        static=True,
        default=None,
        kw_only=True,
    )
    reference = "chai2020"
    leaves_out = True
    rests_on_sizes = True

    def validate(self) -> None:
        checks.count("tiers", self.tiers)
        checks.count("count", self.count)
        if self.probabilities is not None:
            checks.interval("probabilities", np.asarray(self.probabilities), at_least=0, at_most=1)
            if len(self.probabilities) != self.tiers or abs(sum(self.probabilities) - 1) > 1e-6:
                raise ValueError(
                    f"probabilities must be {self.tiers} that sum to one, got {self.probabilities}."
                )

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        if self.count > clients // self.tiers:
            raise ValueError(
                f"count must be at most the {clients // self.tiers} clients of a tier "
                f"({clients} clients in {self.tiers} tiers), got {self.count}."
            )

    def choose(
        self, key: Array, available: Bool[Array, " clients"], choice: Choice
    ) -> tuple[Participants, PyTree]:
        weights = jnp.asarray(self.probabilities or (1 / self.tiers,) * self.tiers)
        tier = tiers_of(choice, self.tiers)
        return draw_tier(key, available, tier, weights, self.count)[0], ()


@module
class Ticks(RoundBasedClock):
    """Rounds of a fixed length, such as those in which data arrive; messages arrive when they do.

    A client's message of a round is late by as many rounds as its seconds span: in the round in
    which it was sent if they are less than one, in the next if they are less than two, and so on.
    Algorithms with a rule for delayed messages (``delays=``) follow it.

    Args:
      devices: of the clients.
      seconds: of each round, > 0.
      longest: the most rounds that a message may be late, >= 0: what would arrive later is lost.

    Raises:
      ValueError: a length that is not positive, a negative number of rounds.

    Example:
      >>> import jax, fljax as fl
      >>> devices = Devices(seconds_per_step=[0.1, 0.1, 0.1, 2.4])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedBuff(0.1, buffer_size=2),
      ...     clock=Ticks(devices, seconds=1.0, longest=3),  # the last is two rounds late
      ... )
      >>> fl.run(simulation, rounds=3).seconds.values.tolist()
      [1.0, 2.0, 3.0]
    """

    devices: Devices
    seconds: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    longest: int = static(kw_only=True)
    rests_on_sizes = True

    def validate(self) -> None:
        checks.positive("seconds", self.seconds)
        checks.count("longest", self.longest, at_least=0)

    def closing(
        self, times: Times, invited: Bool[Array, " clients"]
    ) -> tuple[Float[Array, ""], Bool[Array, " clients"]]:
        return jnp.asarray(self.seconds, times.compute.dtype), invited

    def lags(self, seconds: Float[Array, "*messages"]) -> Array:
        """Return by how many rounds messages are late that take these seconds; ``longest + 1``
        if they are lost.
        """
        rounds = jnp.floor(seconds / jnp.asarray(self.seconds, seconds.dtype))
        return jnp.minimum(rounds, jnp.asarray(self.longest + 1, rounds.dtype)).astype(jnp.int32)


@module
class Asynchronous(Clock):
    """A round is the next arrival: clients work at their own speed, and no one waits for another.

    A number of clients work at a time. When one's message arrives, the server uses it immediately
    and sends its new model to a client that does not work, drawn uniformly from the available ones;
    or, if all clients work, back to the same one. Its message is then based on the model that it
    has received, whose *staleness* is the number of models that the server had in the meantime, its
    versions. Messages that arrive at the same moment come in the order of their clients' numbers.
    The server keeps the models that clients work from, one for each.

    Between peers a round is the moment at which one client completes its steps; the algorithm
    determines with whom it then communicates.

    Args:
      devices: of the clients.
      concurrency: how many clients work at a time; all of them by default.
      arrivals: how many messages the server waits for in a round, >= 1. Clients whose messages have
        arrived wait for the others of the round and then receive its model; all others go on
        working.

    Raises:
      ValueError: numbers below 1, more clients at work than there are, more arrivals than clients
        at work.
      MemoryError: the models of the clients at work do not fit into memory.

    Reference:
      Xie et al. 2019; Nguyen et al. 2022; with ``arrivals`` Dutta et al. 2018 ("K-async").

    Example:
      The first client is ten times faster than the second:

      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=2, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAsync(0.1),
      ...     clock=Asynchronous(Devices(seconds_per_step=[1.0, 10.0])),
      ... )
      >>> run = fl.run(simulation, rounds=12)
      >>> run.seconds.values.tolist()
      [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 10.0, 11.0]
    """

    devices: Devices
    concurrency: int | None = static(default=None, kw_only=True)
    arrivals: int = static(default=1, kw_only=True)
    asynchronous = True
    rests_on_sizes = True

    def validate(self) -> None:
        if self.concurrency is not None:
            checks.count("concurrency", self.concurrency)
        checks.count("arrivals", self.arrivals)
        if self.concurrency is not None and self.arrivals > self.concurrency:
            raise ValueError(
                f"arrivals must be at most the {self.concurrency} clients that work at a time "
                f"(concurrency), got {self.arrivals}."
            )

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        for name, value in (("concurrency", self.concurrency), ("arrivals", self.arrivals)):
            if value is not None:
                check_subset(name, value, clients)

    def at_work(self, clients: int) -> int:
        """Return how many clients work at a time."""
        return clients if self.concurrency is None else self.concurrency
