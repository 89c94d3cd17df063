"""Statistics of the atlas's results: rankings, costs, profiles, and sensitivity to tuning."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from experiments.atlas.methods import PRIVATE_VARIANTS
from experiments.atlas.running import floats, is_complete
from experiments.atlas.scenario import Scenario
from fljax import statistics
from fljax.metrics.definitions import METRICS

Result = Mapping[str, Any]

#: Errors so far below the target are rounding of single precision, and count as equal.
RESOLVED = 1e-5

#: A run that ends this many times above the median of the same algorithm's runs has diverged, even
#: if its numbers are finite: with its mean, no other algorithm could be told from this one.
EXPLODED = 1e8

#: A profile is summarized by its mean up to this factor, on a logarithmic scale.
FACTOR = 10.0


@dataclass(frozen=True)
class Row:
    """An algorithm in a scenario.

    Attributes:
      rank: by the mean, with the ends of its simultaneous interval; ``None`` if all runs diverged.
      value: mean of the metric with its interval, in dB if it has a dB scale.
      cost: median until the target by name with the numbers that were chosen for it, infinite where
        half of the runs never reach it, NaN where it is unknown.
      width: decades within 1 dB of the best by name of a number, of linear ones the range itself.
      slack: decades of the most delicate number.
      remark: the reason for a missing rank; empty otherwise.
      equals: other algorithms with the same runs, whose additional parts are off here.
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
    equals: tuple[str, ...] = ()


def names_of_runs(result: Result) -> dict[str, tuple[str, ...]]:
    """The algorithms that did not run as another one did, each with the names of its equals.

    An algorithm whose additional part is off equals another one: counted twice, it would displace
    others from the ranks. The name that stands for all is of the algorithm with the fewest numbers,
    and not a private variant's.
    """
    groups: dict[tuple, list[str]] = {}
    for label, method in result["methods"].items():
        runs = (label,) if "lost" in method else _runs_of(method)
        groups.setdefault(runs, []).append(label)
    names = {}
    for labels in groups.values():
        chosen = {label: result["methods"][label].get("chosen", ()) for label in labels}
        first = min(labels, key=lambda label: (label in PRIVATE_VARIANTS, len(chosen[label])))
        names[first] = tuple(label for label in labels if label != first)
    return {label: names[label] for label in result["methods"] if label in names}


def _runs_of(method: Mapping[str, Any]) -> tuple:
    """The stored numbers of a method's runs that another method has if it does the same, to four
    digits: programs that order their sums otherwise differ in the last ones.
    """
    costs = method["costs"].values() if "costs" in method else ()
    until = [cost["until"] for cost in costs] if costs else [*method["until"].values()]
    return tuple(
        tuple(None if value is None else float(f"{value:.4g}") for value in values)
        for values in [method["final"], method["diverged"], *until]
    )


def distinct(result: Result) -> Result:
    """A result without the algorithms that ran as another one did."""
    names = names_of_runs(result)
    return {**result, "methods": {label: result["methods"][label] for label in names}}


def dataset(scenario: Scenario, result: Result) -> xr.Dataset:
    """The metric's last values for the tuned algorithms, as the library's statistics read them."""
    metric = METRICS[scenario.metric]
    tuned = {label: method for label, method in result["methods"].items() if "lost" not in method}
    values = np.array([floats(method["final"]) for method in tuned.values()])
    diverged = np.array([method["diverged"] for method in tuned.values()], dtype=int)
    if metric.decibel:
        values = np.maximum(values, RESOLVED * scenario.target)
        ends = np.where(np.isnan(values), np.inf, values)
        exploded = values > EXPLODED * np.median(ends, axis=1, keepdims=True)
        diverged = np.maximum(diverged, exploded)
    attrs: dict[str, Any] = {"long_name": metric.label, "units": "1"}
    attrs["decibel"] = int(metric.decibel)
    attrs |= {
        end: bound
        for end, bound in zip(("least", "greatest"), metric.bounds, strict=True)
        if math.isfinite(bound)
    }
    axes = ("algorithm", "seed")
    return xr.Dataset(
        {scenario.metric: (axes, values, attrs), "diverged": (axes, diverged)},
        {"algorithm": [*tuned]},
    )


def table(scenario: Scenario, result: Result) -> list[Row]:
    """All algorithms that ran, the best first; algorithms that always diverged come last."""
    names = names_of_runs(result)
    result = distinct(result)
    data = dataset(scenario, result)
    means = statistics.summary(data, scenario.metric)
    if statistics.is_decibel(data, scenario.metric):
        means = means.assign(statistics.decibels(means[["mean", "low", "high"]]))
    several = data.sizes["algorithm"] > 1
    ranks = statistics.ranks(data, scenario.metric, "algorithm") if several else None
    rows = []
    for label, method in result["methods"].items():
        if "lost" in method:
            rows.append(lost(scenario, label))
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
                {of: median(until(method, of)) for of in scenario.costs},
                method["chosen"],
                width,
                min((decades(ends) for ends in width.values()), default=math.nan),
                all(method["interior"].values()),
                method["tried"],
                int(data["diverged"].sel(at).sum()),
                "" if rank or ranks is None else "all runs diverged",
                names[label],
            )
        )
    return sorted(rows, key=order)


def lost(scenario: Scenario, label: str) -> Row:
    nothing = (math.nan, math.nan, math.nan)
    never = dict.fromkeys(scenario.costs, math.inf)
    why = "diverged with every candidate"
    return Row(label, None, nothing, never, {}, {}, math.nan, False, 0, 0, why)


def order(row: Row) -> tuple[bool, float, float]:
    """The best first, and among equal ones the faster."""
    nothing = math.isnan(row.value[0])
    return nothing, 0.0 if nothing else row.value[0], next(iter(row.cost.values()))


def until(method: Mapping[str, Any], cost: str) -> np.ndarray:
    """A cost of every seed until the target; NaN where no numbers were chosen for it."""
    if "costs" not in method:  # of an older result
        return np.full(len(method["final"]), np.nan)
    return floats(method["costs"][cost]["until"])


def median(values: np.ndarray) -> float:
    """The median of a cost over seeds: infinite if half never reach the target."""
    return float(np.median(values))


def has_costs(result: Result) -> bool:
    """Whether its methods were tuned for the costs as well."""
    return all(map(is_complete, result["methods"].values()))


def decades(ends: tuple[float, float]) -> float:
    low, high = ends
    return math.log10(high / low) if low > 0 else math.nan


def best(rows: list[Row]) -> list[Row]:
    """The rows whose rank may be the first of those without runs that diverged; of all rows where
    every algorithm has such runs.
    """
    ranked = [(row, row.rank[1]) for row in rows if row.rank is not None]
    steady = [(row, first) for row, first in ranked if not row.diverged] or ranked
    best_rank = min((first for _, first in steady), default=1)
    return [row for row, first in steady if first == best_rank]


def least(rows: list[Row], of: str) -> tuple[list[str], float]:
    """The algorithms that reach the target at the least cost, and that cost; an empty list and
    infinity if none does.
    """
    finite = {row.label: row.cost[of] for row in rows if math.isfinite(row.cost[of])}
    if not finite:
        return [], math.inf
    lowest = min(finite.values())
    return [label for label, cost in finite.items() if cost == lowest], lowest


def costs(pages: Sequence[Any], of: str) -> xr.DataArray:
    """A cost of all algorithms in all instances, the seeds of the scenarios; infinite where an
    algorithm is refused.
    """
    labels = sorted({row.label for page in pages for row in page.rows})
    columns = []
    for page in pages:
        never = np.full(page.result["effort"]["seeds"], np.inf)
        methods = {row.label: page.result["methods"][row.label] for row in page.rows}
        columns.append(
            [
                until(methods[label], of) if "costs" in methods.get(label, ()) else never
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
