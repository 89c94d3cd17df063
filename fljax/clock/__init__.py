"""A virtual clock: how many seconds a run takes on clients' devices.

``Simulation(clock=...)`` takes how fast clients compute and communicate
(:class:`~fljax.clock.Devices`) and when a round ends: when all have answered
(:class:`~fljax.clock.Synchronous`), when the first have (:class:`~fljax.clock.FirstArrivals`), at a
deadline (:class:`~fljax.clock.Deadline`), with clients of equal speed
(:class:`~fljax.clock.Tiers`, :class:`~fljax.clock.AdaptiveTiers`), with fast clients whose samples
the model fits badly (:class:`~fljax.clock.Guided`), after a fixed time
(:class:`~fljax.clock.Ticks`), or with each arrival (:class:`~fljax.clock.Asynchronous`). Results
then have ``seconds`` for every record.

The files to read first are :mod:`~fljax.clock.device_model` and :mod:`~fljax.clock.clocks`.
"""

from fljax.clock.adaptive_clocks import AdaptiveTiers, Guided
from fljax.clock.availability import DAY, Intervals
from fljax.clock.clocks import (
    Asynchronous,
    Choice,
    Clock,
    Deadline,
    FirstArrivals,
    RoundBasedClock,
    Synchronous,
    Ticks,
    Tiers,
)
from fljax.clock.device_model import Devices, Rates, Times, Work
from fljax.clock.device_profiles import PROFILES, Profile, seconds_per_sample
from fljax.clock.distributions import (
    Between,
    Distribution,
    Exponential,
    HalfNormal,
    LogNormal,
    Pareto,
)

__all__ = [
    "DAY",
    "PROFILES",
    "AdaptiveTiers",
    "Asynchronous",
    "Between",
    "Choice",
    "Clock",
    "Deadline",
    "Devices",
    "Distribution",
    "Exponential",
    "FirstArrivals",
    "Guided",
    "HalfNormal",
    "Intervals",
    "LogNormal",
    "Pareto",
    "Profile",
    "Rates",
    "RoundBasedClock",
    "Synchronous",
    "Ticks",
    "Tiers",
    "Times",
    "Work",
    "seconds_per_sample",
]
