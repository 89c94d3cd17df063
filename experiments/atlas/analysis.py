"""Statistics of the atlas's results: rankings, costs, profiles, and sensitivity to tuning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from experiments.atlas.running import floats
from experiments.atlas.scenario import Scenario
from fljax import statistics
from fljax.metrics.definitions import METRICS

Result = Mapping[str, Any]

#: Errors so far below the target are rounding of single precision, and count as equal.
RESOLVED = 1e-5

#: The costs that are counted until the target is reached.
COSTS: tuple[str, ...] = ("rounds", "bits", "gradients")

#: A profile is summarized by its mean up to this factor, on a logarithmic scale.
FACTOR = 10.0


@dataclass(frozen=True)
class Row:
    """An algorithm in a scenario.

    Attributes:
      rank: by the mean, with the ends of its simultaneous interval; ``None`` if all runs diverged.
      value: mean of the metric with its interval, in dB if it has a dB scale.
      cost: median until the target by name, infinite where half of the runs never reach it, NaN
        where it is unknown.
      width: decades within 1 dB of the best by name of a number, of linear ones the range itself.
      slack: decades of the most delicate number.
      remark: the reason for a missing rank; empty otherwise.
    """

    label: str
    rank: tuple[int, int, int] | None
    value: tuple[float, float, float]
    cost: dict[str, float]
    chosen: dict[str, Any]
    width: dict[str, tuple[float, float]]
    slack: float
    interior: bool
    tried: int
    diverged: int
    remark: str = ""


def dataset(scenario: Scenario, result: Result) -> xr.Dataset:
    """The metric's last values for the tuned algorithms, as the library's statistics read them."""
    metric = METRICS[scenario.metric]
    tuned = {label: method for label, method in result["methods"].items() if "lost" not in method}
    values = np.array([floats(method["final"]) for method in tuned.values()])
    if metric.decibel:
        values = np.maximum(values, RESOLVED * scenario.target)
    attrs: dict[str, Any] = {"long_name": metric.label, "units": "1"}
    attrs["decibel"] = int(metric.decibel)
    attrs |= {
        end: bound
        for end, bound in zip(("least", "greatest"), metric.bounds, strict=True)
        if math.isfinite(bound)
    }
    diverged = np.array([method["diverged"] for method in tuned.values()])
    axes = ("algorithm", "seed")
    return xr.Dataset(
        {scenario.metric: (axes, values, attrs), "diverged": (axes, diverged)},
        {"algorithm": [*tuned]},
    )


def table(scenario: Scenario, result: Result) -> list[Row]:
    """All algorithms that ran, the best first; algorithms that always diverged come last."""
    data = dataset(scenario, result)
    means = statistics.summary(data, scenario.metric)
    if statistics.is_decibel(data, scenario.metric):
        means = means.assign(statistics.decibels(means[["mean", "low", "high"]]))
    several = data.sizes["algorithm"] > 1
    ranks = statistics.ranks(data, scenario.metric, "algorithm") if several else None
    rows = []
    for label, method in result["methods"].items():
        if "lost" in method:
            rows.append(lost(label))
            continue
        at = {"algorithm": label}
        mean, low, high = (float(means[part].sel(at)) for part in ("mean", "low", "high"))
        rank = None
        if ranks is not None and not math.isnan(float(ranks["rank"].sel(at))):
            position, first, last = (int(ranks[part].sel(at)) for part in ("rank", "low", "high"))
            rank = position, first, last
        width = {name: (float(low), float(high)) for name, (low, high) in method["width"].items()}
        rows.append(
            Row(
                label,
                rank,
                (mean, low, high),
                {of: median(method["until"][of]) for of in COSTS},
                method["chosen"],
                width,
                min((decades(ends) for ends in width.values()), default=math.nan),
                all(method["interior"].values()),
                method["tried"],
                sum(method["diverged"]),
                "" if rank or ranks is None else "all runs diverged",
            )
        )
    return sorted(rows, key=order)


def lost(label: str) -> Row:
    nothing = (math.nan, math.nan, math.nan)
    never = dict.fromkeys(COSTS, math.inf)
    why = "diverged with every candidate"
    return Row(label, None, nothing, never, {}, {}, math.nan, False, 0, 0, why)


def order(row: Row) -> tuple[bool, float, float]:
    """The best first, and among equal ones the faster."""
    nothing = math.isnan(row.value[0])
    return nothing, 0.0 if nothing else row.value[0], row.cost["rounds"]


def median(values: Any) -> float:
    """The median of a cost over seeds: infinite if half never reach the target."""
    return float(np.median(floats(values)))


def decades(ends: tuple[float, float]) -> float:
    low, high = ends
    return math.log10(high / low) if low > 0 else math.nan


def best(rows: list[Row]) -> list[Row]:
    """The rows whose rank may be the first."""
    return [row for row in rows if row.rank is not None and row.rank[1] == 1]


def least(rows: list[Row], of: str) -> tuple[list[str], float]:
    """The algorithms that reach the target at the least cost, and that cost; an empty list and
    infinity if none does.
    """
    finite = {row.label: row.cost[of] for row in rows if math.isfinite(row.cost[of])}
    if not finite:
        return [], math.inf
    lowest = min(finite.values())
    return [label for label, cost in finite.items() if cost == lowest], lowest


def costs(scenarios: list[Scenario], results: Mapping[str, Result | None], of: str) -> xr.DataArray:
    """A cost of all algorithms in all instances, the seeds of the scenarios that were run; infinite
    where an algorithm is refused.
    """
    ran = [(s, r) for s in scenarios if (r := results.get(s.name))]
    labels = sorted({label for _, result in ran for label in result["methods"]})
    columns = []
    for _, result in ran:
        seeds = result["effort"]["seeds"]
        never = np.full(seeds, np.inf)
        columns.append(
            [
                never
                if "lost" in (method := result["methods"].get(label, {"lost": ""}))
                else floats(method["until"][of])
                for label in labels
            ]
        )
    values = np.concatenate(columns, axis=1) if columns else np.empty((0, 0))
    # NaN: the algorithm does not incur this cost, and must not count as the cheapest.
    values = np.where(np.isnan(values), np.inf, values)
    return xr.DataArray(values, {"algorithm": labels}, ("algorithm", "instance"), name=of)


def scores(shares: xr.DataArray) -> xr.DataArray:
    """The mean of each profile between the factors 1 and ``FACTOR``, on a logarithmic scale."""
    factors = shares["factor"].values
    inside = factors[factors < FACTOR]
    weights = np.diff(np.log([*inside, FACTOR])) / math.log(FACTOR)
    return (shares.isel(factor=slice(len(inside))) * weights[None]).sum("factor")


def within(shares: xr.DataArray, label: str, factor: float) -> float:
    """The share of instances in which an algorithm is within a factor of the best."""
    at = int(np.searchsorted(shares["factor"].values, factor, side="right")) - 1
    return float(shares.sel(algorithm=label).isel(factor=at))
