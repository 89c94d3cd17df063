"""The devices of clients: how fast they compute and communicate, and when they are available."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.module import as_given, field, float_array, float_dtype, module
from fljax._core.prng import uniform_of_pairs
from fljax.clock.availability import Intervals
from fljax.clock.distributions import Distribution

#: A number for all clients, one for each, or a distribution that each client's is drawn from.
OfClients = Annotated[Distribution | Array | float | None, "checked"]


class Work(NamedTuple):
    """What clients do in a round."""

    steps: Array  # [K]  local steps
    samples: Array  # [K]  sample gradients in them
    bits_up: Array | float  # that each participant sends
    bits_down: Array | float  # that each receives
    gradients: Array | float = 1.0  # [K] or of all; gradients of each sample of a local step

    def of(self, clients: Int[Array, " some"]) -> "Work":
        """Return the work of some clients."""
        gradients = jnp.asarray(self.gradients)
        return self._replace(
            steps=self.steps[clients],
            samples=self.samples[clients],
            gradients=gradients[clients] if gradients.ndim else self.gradients,
        )


class Times(NamedTuple):
    """The seconds of some clients' parts of a round, and how it ends."""

    download: Array  # [M]
    compute: Array  # [M]
    upload: Array  # [M]
    fails_at: Array  # [M]  seconds until the client fails; infinite if it does not

    @property
    def planned(self) -> Float[Array, " some"]:
        """Seconds until the message arrives unless the client fails."""
        return self.download + self.compute + self.upload

    @property
    def arrival(self) -> Float[Array, " some"]:
        """Seconds until the message arrives; infinite if it never does."""
        return jnp.where(self.fails_at < self.planned, jnp.inf, self.planned)

    @property
    def ended(self) -> Float[Array, " some"]:
        """Seconds until the client has sent its message or failed."""
        return jnp.minimum(self.planned, self.fails_at)

    def within(self, seconds: Float[Array, " some"]) -> tuple[Array, Array, Array]:
        """Return the seconds of download, computations and upload until the work is stopped, this
        long after its start.
        """
        return (
            jnp.clip(seconds, 0, self.download),
            jnp.clip(seconds - self.download, 0, self.compute),
            jnp.clip(seconds - self.download - self.compute, 0, self.upload),
        )


class Rates(NamedTuple):
    """The properties of all clients' devices, drawn once a run: ``[K]`` each."""

    seconds_per_step: Array
    seconds_per_sample: Array
    upload_bits_per_second: Array
    download_bits_per_second: Array
    latency_seconds: Array
    watts: Array
    joules_per_bit: Array

    def of(self, clients: Int[Array, " some"]) -> "Rates":
        """Return the properties of some clients' devices."""
        return Rates(*(rate[clients] for rate in self))

    def expected(self, work: Work) -> Float[Array, " clients"]:
        """Return the seconds of a round of each client, without variation and failures."""
        download, compute, upload = self.parts(work)
        return download + compute + upload

    def parts(self, work: Work) -> tuple[Array, Array, Array]:
        """Return the seconds of download, computations and upload, without variation.

        Args:
          work: of the clients whose rates these are.
        """
        dtype = self.latency_seconds.dtype
        compute = work.steps.astype(dtype) * self.seconds_per_step
        compute = compute + work.samples.astype(dtype) * self.seconds_per_sample
        compute = compute * jnp.asarray(work.gradients, dtype)
        download = self.latency_seconds + work.bits_down / self.download_bits_per_second
        return download, compute, self.latency_seconds + work.bits_up / self.upload_bits_per_second

    def joules(self, seconds: Float[Array, " some"], times: Times, work: Work) -> Array:
        """Return the energy of some clients, whose rates these are, in the first ``seconds`` of
        their parts of a round.
        """
        download, compute, upload = times.within(seconds)

        def share(done: Array, planned: Array) -> Array:
            return jnp.where(planned > 0, done / jnp.where(planned > 0, planned, 1), 1)

        bits = work.bits_down * share(download, times.download)
        bits = bits + jnp.where(
            seconds >= times.download + times.compute,
            work.bits_up * share(upload, times.upload),
            0,
        )
        return self.watts * compute + self.joules_per_bit * bits


#: Random numbers of a client and round, besides one for each of the rates.
_VARIATION, _FAILS, _FAILS_AT = range(len(Rates._fields), len(Rates._fields) + 3)


@module
class Devices:
    r"""The devices of clients.

    A round takes a client the latency and its download, its local steps, and the latency and its
    upload. Each number is one for all clients, an array ``[K]``, or a distribution from which each
    client's is drawn once a run, from the run's key.

    Args:
      seconds_per_step: of computing a local step, for a batch of any size, >= 0.
      seconds_per_sample: of computing the gradient of one sample, >= 0; see
        :func:`~fljax.clock.seconds_per_sample`.
      upload_bits_per_second: > 0; without it messages up take no time.
      download_bits_per_second: > 0; without it messages down take no time.
      latency_seconds: of each message, >= 0.
      variation: how the seconds of computing vary from round to round: a distribution of factors,
        drawn for each client and round; or a trace, ``[T, K]`` factors of round 1, 2, ...
      failure: the probability that a client fails in the middle of a round, in [0, 1): at a
        uniformly distributed moment of its part, and its computations are lost.
      availability: when clients are available; always by default. Work that a client does not
        complete in its interval is lost.
      watts: of computing, >= 0.
      joules_per_bit: of sending or receiving, >= 0.

    Raises:
      ValueError: a number out of its range (the message names it with its unit), no time of
        computing or communicating at all.

    Example:
      Phones whose speeds differ by a log-normal distribution, and that fail in a round of fifty:

      >>> import fljax as fl
      >>> phones = fl.clock.Devices(
      ...     seconds_per_sample=fl.clock.LogNormal(0.05, spread=1.0),
      ...     upload_bits_per_second=5e6,
      ...     download_bits_per_second=20e6,
      ...     latency_seconds=0.1,
      ...     failure=0.02,
      ... )
    """

    seconds_per_step: OfClients = field(converter=as_given, default=0.0)
    seconds_per_sample: OfClients = field(converter=as_given, default=0.0)
    upload_bits_per_second: OfClients = field(converter=as_given, default=None)
    download_bits_per_second: OfClients = field(converter=as_given, default=None)
    latency_seconds: OfClients = field(converter=as_given, default=0.0)
    variation: Annotated[Distribution | Array | None, "checked"] = field(
        converter=as_given, default=None
    )
    failure: Float[Array, ""] | float | None = None
    availability: Intervals | None = None
    watts: OfClients = field(converter=as_given, default=0.0)
    joules_per_bit: OfClients = field(converter=as_given, default=0.0)

    def validate(self) -> None:
        for name in Rates._fields:
            value = getattr(self, name)
            is_bandwidth = name.endswith("bits_per_second")
            if isinstance(value, Distribution) or (value is None and is_bandwidth):
                continue
            if np.ndim(checks.filled(name, value)) > 1:
                raise ValueError(
                    f"{name} must be one number, one for each client or a distribution of "
                    f"fljax.clock, got {checks.shown(value)}."
                )
            if is_bandwidth:
                checks.positive(name, value, "It is in bits, not bytes; None is unlimited.")
            else:
                checks.nonnegative(name, value)
            object.__setattr__(self, name, float_array(name, value))
        if not any(map(self._takes_time, Rates._fields[:5])):
            raise ValueError(
                "devices whose work takes no time have no use for a clock; give seconds_per_step=, "
                "seconds_per_sample=, a bandwidth or latency_seconds=."
            )
        if self.failure is not None:
            checks.interval("failure", self.failure, at_least=0, below=1)
        if self.variation is not None and not isinstance(self.variation, Distribution):
            object.__setattr__(self, "variation", float_array("variation", self.variation))
            if np.ndim(self.variation) != 2:
                raise ValueError(
                    "variation must be a distribution or a trace [rounds, clients] of factors, got "
                    f"{checks.shown(self.variation)}."
                )
            checks.positive("variation", self.variation)

    def _takes_time(self, name: str) -> bool:
        value = getattr(self, name)
        if value is None:
            return False
        if isinstance(value, Distribution) or not checks.is_concrete(value):
            return True
        return bool(np.any(np.asarray(value)))

    @classmethod
    def from_fedscale(
        cls, capacities: Sequence[Mapping[str, float]], slowdown: float = 3.0, **more: Any
    ) -> "Devices":
        """Return devices with the capacities of clients in FedScale's format.

        FedScale's own file has the speeds of phones from AI Benchmark and the bandwidths that
        MobiPerf has measured over WiFi; the latter's raw files have another format and are not read
        here.

        Args:
          capacities: of each client a mapping with ``computation``, the milliseconds of a sample's
            inference, and ``communication``, the kilobits per second in both directions.
          slowdown: how many times longer training takes than inference, > 0; 3 in FedScale.
          more: other arguments of the class, such as ``availability``.

        Raises:
          ValueError: a mapping without one of the two, numbers that are not positive.

        Reference:
          Lai et al. 2022.

        Example:
          >>> devices = Devices.from_fedscale([{"computation": 20.0, "communication": 5000.0}])
          >>> devices.seconds_per_sample.round(3).tolist(), devices.upload_bits_per_second.tolist()
          ([0.06], [5000000.0])
        """
        checks.positive("slowdown", slowdown)
        numbers = []
        for client, capacity in enumerate(capacities):
            for name in ("computation", "communication"):
                if name not in capacity:
                    raise ValueError(
                        f"the capacity of client {client} has no {name!r}; FedScale's have "
                        "computation, in milliseconds, and communication, in kilobits per second."
                    )
                checks.positive(name, capacity[name])
            numbers.append((capacity["computation"], capacity["communication"]))
        milliseconds, kilobits = np.asarray(numbers, float).reshape(-1, 2).T
        return cls(
            seconds_per_sample=slowdown * milliseconds / 1000,
            upload_bits_per_second=1000 * kilobits,
            download_bits_per_second=1000 * kilobits,
            **more,
        )

    def check(self, clients: int, rounds: int) -> None:
        """Raise ``ValueError`` unless the devices fit a run of this size."""
        for name in Rates._fields:
            value = getattr(self, name)
            if value is not None and not isinstance(value, Distribution):
                checks.per_client(name, value, clients)
        if self.availability is not None:
            self.availability.check(clients)
        if self.variation is not None and not isinstance(self.variation, Distribution):
            checks.trace_fits("the trace of variations", self.variation, clients, rounds)

    @property
    def can_fail(self) -> bool:
        """Whether a participant's message may never arrive."""
        return self.failure is not None or self.availability is not None

    def draw(self, key: Array, clients: int) -> Rates:
        """Return the properties of all clients' devices, from the run's key."""
        everyone = jnp.arange(clients, dtype=jnp.int32)

        def rate(number: int, name: str) -> Array:
            value = getattr(self, name)
            if value is None:  # unlimited
                return jnp.full(clients, jnp.inf, float_dtype())
            if isinstance(value, Distribution):
                return value.quantile(_shares(key, everyone, number))
            return jnp.broadcast_to(jnp.asarray(value, float_dtype()), (clients,))

        return Rates(*(rate(number, name) for number, name in enumerate(Rates._fields)))

    def times(
        self,
        key: Array,
        round: Array,
        rates: Rates,
        work: Work,
        clients: Int[Array, " some"],
        left: Float[Array, " some"] | None = None,
    ) -> Times:
        """Return the seconds of some clients' parts of a round.

        Args:
          key: of the round.
          round: 1, 2, ...
          rates: of all clients.
          work: of all clients.
          clients: their numbers.
          left: for how many seconds each remains available; forever by default.
        """
        chosen = work.of(clients)
        download, compute, upload = rates.of(clients).parts(chosen)
        dtype = compute.dtype
        if isinstance(self.variation, Distribution):
            compute = compute * self.variation.quantile(_shares(key, clients, _VARIATION))
        elif self.variation is not None:
            compute = compute * jnp.asarray(self.variation, dtype)[round - 1, clients]
        fails_at = jnp.full(clients.shape, jnp.inf, dtype)
        if self.failure is not None:
            fails = _shares(key, clients, _FAILS) < jnp.asarray(self.failure, dtype)
            moment = _shares(key, clients, _FAILS_AT) * (download + compute + upload)
            fails_at = jnp.where(fails, moment, jnp.inf)
        if left is not None:
            fails_at = jnp.minimum(fails_at, left)
        return Times(download, compute, upload, fails_at)

    def available(
        self, seconds: Float[Array, ""], clients: int
    ) -> tuple[Bool[Array, " clients"] | None, Float[Array, " clients"] | None]:
        """Return which clients are available at a time, and for how long; ``None``: all, always."""
        if self.availability is None:
            return None, None
        now = self.availability.at(seconds, jnp.arange(clients, dtype=jnp.int32))
        return now.on, now.left


def _shares(key: Array, clients: Int[Array, " some"], number: int) -> Float[Array, " some"]:
    """A uniform number in (0, 1) of each client, another for each ``number``."""
    drawn = uniform_of_pairs(key, clients, jnp.full_like(clients, number), float_dtype())
    return jnp.maximum(drawn, 2.0**-54)  # a draw may be zero, whose quantile may be infinite
