"""When clients are available, in seconds: intervals of each, once or repeated every day."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import as_given, field, float_array, float_dtype, module

#: Seconds of a day.
DAY = 86400.0


class Availability(NamedTuple):
    """The availability of some clients at a time."""

    on: Array  # [M]  whether they are available
    left: Array  # [M]  for how long they are, from now or, if they are not, from when they will be
    wait: Array  # [M]  seconds until they are; zero where they are, infinite if never again


@module
class Intervals:
    """Intervals in which each client is available, in seconds from the start of the run.

    Args:
      start: ``[K, I]``, the beginning of each interval; a client with fewer intervals than another
        has NaN in the others.
      end: ``[K, I]``, the end of each.
      period: after how many seconds all intervals repeat, such as :data:`DAY`; without one clients
        are unavailable after their last interval.

    Raises:
      ValueError: other shapes, an interval that ends before it starts or outside of the period,
        intervals of a client that overlap, a client that is never available.

    Example:
      Two clients, available in the first and in the second half of a day:

      >>> import jax.numpy as jnp
      >>> shifts = Intervals([[0.0], [43200.0]], [[43200.0], [86400.0]], period=DAY)
      >>> now = shifts.at(jnp.array(100_000.0), jnp.arange(2))
      >>> now.on.tolist(), now.left.tolist(), now.wait.tolist()
      ([True, False], [29600.0, 43200.0], [0.0, 29600.0])
    """

    start: Annotated[Array, "clients intervals"] = field(converter=as_given)
    end: Annotated[Array, "clients intervals"] = field(converter=as_given)
    period: Float[Array, ""] | float | None = None

    def validate(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, float_array(name, getattr(self, name)))
        if np.ndim(self.start) != 2 or np.shape(self.start) != np.shape(self.end):
            raise ValueError(
                "start and end must both be [clients, intervals], got the shapes "
                f"{np.shape(self.start)} and {np.shape(self.end)}."
            )
        if self.period is not None:
            checks.positive("period", self.period)
        if not all(map(checks.is_concrete, jax.tree.leaves((self.start, self.end, self.period)))):
            return
        start, end = (np.asarray(a, np.float64) for a in (self.start, self.end))
        exists = ~np.isnan(start)
        if (exists != ~np.isnan(end)).any():
            raise ValueError("start and end must be NaN for the same intervals, those not there.")
        if never := np.flatnonzero(~exists.any(axis=1)).tolist():
            raise ValueError(
                f"client {never[0]} is never available; give each client an interval, or leave it "
                "out of the problem."
            )
        if (exists & ~((start >= 0) & (start < end))).any():
            raise ValueError("each interval must end after its start, and start at 0 or later.")
        if self.period is not None and np.nanmax(end) > float(self.period):
            raise ValueError(
                f"an interval ends at {np.nanmax(end):g} s, after the period of "
                f"{float(self.period):g} s; cut it at the period, and let the rest start at 0."
            )
        order = np.argsort(start, axis=1)
        starts, ends = (np.take_along_axis(a, order, axis=1) for a in (start, end))
        if (starts[:, 1:] < ends[:, :-1]).any():
            raise ValueError("intervals of a client must not overlap; join those that do.")

    @classmethod
    def from_lists(
        cls,
        intervals: Sequence[Sequence[tuple[float, float]]],
        period: float | None = None,
    ) -> "Intervals":
        """Return the intervals of clients that have different numbers of them.

        Args:
          intervals: of each client, pairs of start and end in seconds.
          period: as in the class.

        Example:
          >>> Intervals.from_lists([[(0, 5), (8, 9)], [(2, 4)]]).start.tolist()
          [[0.0, 8.0], [2.0, nan]]
        """
        most = max((len(pairs) for pairs in intervals), default=0)
        table = np.full((2, len(intervals), max(most, 1)), np.nan, float_dtype())
        for client, pairs in enumerate(intervals):
            for position, pair in enumerate(pairs):
                if np.shape(pair) != (2,):
                    raise ValueError(
                        f"an interval must be a pair of start and end, got {checks.shown(pair)}."
                    )
                table[:, client, position] = pair
        return cls(table[0], table[1], period)

    @classmethod
    def from_fedscale(cls, traces: Sequence[Mapping[str, Any]]) -> "Intervals":
        """Return the availability in FedScale's format of a client's behavior.

        Args:
          traces: of each client, a mapping with the seconds at which it becomes ``active`` and
            ``inactive``, and ``finish_time``, after which they repeat.

        Raises:
          ValueError: a trace without these entries, traces of different lengths.

        Example:
          >>> trace = {"active": [10, 50], "inactive": [20, 90], "finish_time": 100}
          >>> Intervals.from_fedscale([trace]).end.tolist()
          [[20.0, 90.0]]

        Reference:
          Lai et al. 2022.
        """
        needed = ("active", "inactive", "finish_time")
        for client, trace in enumerate(traces):
            if missing := [name for name in needed if name not in trace]:
                raise ValueError(
                    f"the trace of client {client} has no {missing[0]!r}; FedScale's have "
                    f"{', '.join(needed)}."
                )
        lengths = {float(trace["finish_time"]) for trace in traces}
        if len(lengths) != 1:
            raise ValueError(
                f"traces must have one length, got finish_time {sorted(lengths)}; cut them."
            )
        pairs = [[*zip(t["active"], t["inactive"], strict=False)] for t in traces]
        return cls.from_lists(pairs, *lengths)

    def check(self, clients: int) -> None:
        """Raise ``ValueError`` unless the intervals are of this many clients."""
        if len(self.start) != clients:
            raise ValueError(
                f"the availability is of {len(self.start)} clients, and the problem has {clients}."
            )

    def at(
        self, seconds: Float[Array, "*clients"], clients: Int[Array, " clients"]
    ) -> Availability:
        """Return the availability of some clients, at one time or at one each."""
        start = jnp.asarray(self.start)[clients]
        end = jnp.asarray(self.end)[clients]
        dtype = start.dtype
        time = jnp.broadcast_to(seconds.astype(dtype), clients.shape)[:, None]
        again = jnp.inf
        if self.period is not None:
            period = jnp.asarray(self.period, dtype)
            time = time % period
            again = period
        inside = (start <= time) & (time < end)
        length = end - start
        if self.period is not None:
            # An interval up to the end of the period continues in one from its beginning.
            first = jnp.max(jnp.where(start == 0, end, 0), axis=1, keepdims=True)
            length = length + jnp.where(end == period, first, 0)
        until = jnp.where(start >= time, start - time, start + again - time)
        until = jnp.where(jnp.isnan(start), jnp.inf, until)
        soonest = jnp.argmin(until, axis=1)[:, None]
        wait, next_length = (jnp.take_along_axis(a, soonest, 1)[:, 0] for a in (until, length))
        on = jnp.any(inside, axis=1)
        left = jnp.max(jnp.where(inside, length - (time - start), 0), axis=1)
        return Availability(on, jnp.where(on, left, next_length), jnp.where(on, 0, wait))
