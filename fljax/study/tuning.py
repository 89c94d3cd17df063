"""Choosing a number of each method by the same rule, on seeds that no evaluation meets."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from fljax import _check, statistics
from fljax._arguments import checked
from fljax.algorithms.base import REGISTRY, Algorithm
from fljax.metrics import Metric
from fljax.plotting.house import LOOKS, style
from fljax.records import AssumptionWarning, DivergenceWarning
from fljax.study.grid import Scenario
from fljax.study.request import Request, Study
from fljax.study.running import sweep

__all__ = ["FIRST_SEED", "GOALS", "RANGES", "Tuned", "tune"]

#: Tuning seeds are numbered from here on; an evaluation's are numbered from 0.
FIRST_SEED = 1_000_000_000

#: Where the search begins for the one number that an algorithm must be given. The grid leaves this
#: range where the best lies on its edge, so that it need not be right.
RANGES = {"step_size": (1e-3, 1.0), "penalty": (1e-2, 1e2), "coupling": (1e-3, 1e1)}

#: What is made least: the last record, the mean over all records, or what it took to get to the
#: target.
GOALS = ("final", "area", "rounds", "bits")

#: A run that never gets to the target counts as so many times all its rounds or bits (the penalized
#: average runtime PAR2 of algorithm configuration).
PENALTY = 2.0

#: Two values as good as one another: their means are within so many dB.
TOLERANCE = 1.0


class Method(NamedTuple):
    """What is tuned: an algorithm as a function of one number."""

    build: Callable[[float], Algorithm]
    number: str
    low: float
    high: float


@dataclass(frozen=True)
class Tuned:
    """What :func:`tune` chose, and from what.

    Attributes:
      methods: the chosen algorithms, for ``fl.sweep(grid={"algorithm": tuned.methods})``.
      chosen: the number of each method.
      interior: whether values on both sides of it were tried and are worse. If not, the best may
        lie beyond.
      width: the least and the greatest value around the chosen one whose means are within 1 dB
        of its.
      response: of each method its score over the number: ``mean``, ``low``, ``high``, ``runs``,
        ``diverged`` and ``censored`` (runs that never got to the target). The mean is infinite
        where any run diverged.
      goal: what was made least.
      seeds: that were used, and must not be those of an evaluation.
      compilations: programs that were compiled.
    """

    methods: dict[str, Algorithm]
    chosen: dict[str, float]
    interior: dict[str, bool]
    width: dict[str, tuple[float, float]]
    response: dict[str, xr.Dataset]
    goal: str
    seeds: range
    compilations: int

    def table(self) -> Any:
        """A pandas ``DataFrame`` with a row for each method."""
        rows = [
            {
                "number": str(response["mean"].dims[0]),
                "chosen": self.chosen[name],
                "interior": self.interior[name],
                "from": self.width[name][0],
                "to": self.width[name][1],
                "score": float(response["mean"].min()),
                "tried": response["mean"].size,
            }
            for name, response in self.response.items()
        ]
        return xr.Dataset(
            {key: ("method", [row[key] for row in rows]) for key in rows[0]},
            {"method": list(self.response)},
        ).to_dataframe()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Each method's mean score over its number with its 95 % band, the chosen value marked."""
        with style():
            ax = plt.subplots()[1] if ax is None else ax
            for i, (name, response) in enumerate(self.response.items()):
                look = LOOKS[i % len(LOOKS)]
                number = str(response["mean"].dims[0])
                finite = response.where(np.isfinite(response["mean"]), drop=True)
                line = {key: look[key] for key in ("color", "linestyle")}
                ax.plot(finite[number], finite["mean"], label=f"{name}, {number}", **line)
                band = finite["low"].values, finite["high"].values
                ax.fill_between(finite[number], *band, color=look["color"], alpha=0.15, linewidth=0)
                best = self.chosen[name], float(response["mean"].min())
                ax.plot(*best, color=look["color"], marker=look["marker"], linestyle="")
            label = next(iter(self.response.values())).attrs["label"]
            ax.set(xscale="log", yscale="log", xlabel="number tuned", ylabel=label)
            ax.set_title(f"mean over {len(self.seeds)} tuning seeds", fontsize=8)
            ax.legend()
        return ax


@checked
def tune(
    scenario: Scenario,
    methods: Sequence[str] | Mapping[str, tuple],
    *,
    metric: str | Metric,
    rounds: int,
    goal: str = "final",
    target: float | None = None,
    seeds: int = 10,
    points: int = 8,
    extensions: int = 3,
    refinements: int = 1,
    record_every: int = 1,
    store: str | PathLike | None = None,
) -> Tuned:
    """Choose one number of each method, all by the same rule, on seeds of the tuning's own.

    The candidates of a method are a grid of equal ratios. It goes on past the edge on which the
    best lies, at most ``extensions`` times, and is refined between the neighbors of the best. Every
    grid has as many points, so that all those of a method are one compiled program. A candidate of
    which any run diverged counts as infinite.

    Seeds of the tuning are numbered from 10^9 on, in the same root as those of :func:`fljax.sweep`,
    which begin at 0: no run of an evaluation was tuned on. Under a privacy budget a choice that
    looks at private data spends privacy that no ledger here counts.

    Args:
      scenario: ``(key, algorithm) -> Simulation``, pure.
      methods: names of algorithms that need one number (``"FedAvg"``, ``"EXTRA"``), searched from
        :data:`RANGES` on; or by name of one's own what makes an algorithm of a number, that
        number's name, and the least and greatest value to begin with:
        ``{"five steps": (lambda step_size: FedAvg(step_size, local_steps=5), "step_size", 1e-3,
        1)}``.
      metric: that is made small.
      rounds: of every run.
      goal: ``"final"``, its last record; ``"area"``, the mean over all records; ``"rounds"`` or
        ``"bits"``, what it takes until it is at or below the target. A run that never is counts
        as twice all its rounds or bits.
      target: of the goals ``"rounds"`` and ``"bits"``.
      seeds: how many.
      points: of each grid.
      extensions: how often the grid of a method goes on past its edge.
      refinements: how often it is refined.
      record_every: measure after every so many rounds.
      store: a folder that keeps all runs; a tuning that was killed goes on from there.

    Returns:
      What was chosen, and all that was tried.

    Raises:
      ValueError: before anything is compiled, an unknown or ambiguous method, an empty or inverted
        range, an unknown goal, a goal without its target or a target without its goal, a number
        that the algorithm does not take; an unknown metric; a method of which every candidate
        diverged.

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key, algorithm):
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(key, clients=6, samples=10, dim=2),
      ...         network=fl.graphs.ring(6),
      ...         algorithm=algorithm,
      ...         metrics=["normalized_error"],
      ...     )
      >>> tuned = fl.tune(scenario, ["EXTRA"], metric="normalized_error", rounds=20, seeds=2)
      >>> tuned.interior
      {'EXTRA': True}
      >>> results = fl.sweep(scenario, grid={"algorithm": tuned.methods}, rounds=20, seeds=3)
      >>> results.algorithm.values.tolist()
      ['EXTRA']
    """
    for name, count, least in (
        ("points", points, 3),
        ("seeds", seeds, 1),
        ("extensions", extensions, 0),
        ("refinements", refinements, 0),
    ):
        _check.count(name, count, at_least=least)
    _check.choice("goal", goal, GOALS)
    if (target is None) == (goal in ("rounds", "bits")):
        raise ValueError(
            f"target= is for the goals 'rounds' and 'bits', which need it; got goal={goal!r} and "
            f"target={target}."
        )
    tuned_on = range(FIRST_SEED, FIRST_SEED + seeds)
    asked = _methods(methods)
    grids = {name: np.geomspace(m.low, m.high, points) for name, m in asked.items()}
    left = {name: [extensions, refinements] for name in asked}
    first = {name: m.build(m.low) for name, m in asked.items()}
    request = Request(scenario=scenario, rounds=rounds, grid={"algorithm": first})
    numbers = (m.name for g in Study.of(request).groups for m in g.shown.metrics if not m.dims)  # pyright: ignore
    _check.choice("metric", metric.name if isinstance(metric, Metric) else metric, set(numbers))
    response: dict[str, xr.Dataset] = {}
    compilations, stage = 0, 0
    while grids:
        rows = [(name, value) for name, grid in grids.items() for value in grid]
        labels = {f"{n} {float(v)!r}": asked[n].build(float(v)) for n, v in rows}
        with warnings.catch_warnings():  # candidates may be bad; who runs the chosen one is warned
            for kind in (AssumptionWarning, DivergenceWarning):
                warnings.simplefilter("ignore", kind)
            results = sweep(
                scenario,
                grid={"algorithm": labels},
                rounds=rounds,
                seeds=tuned_on,
                record_every=record_every,
                store=None if store is None else Path(store) / f"stage-{stage}",
            )
        compilations, stage = compilations + results.attrs["compilations"], stage + 1
        places = np.arange(len(rows)).reshape(len(grids), points)
        following = {}
        for (name, grid), place in zip(grids.items(), places, strict=True):
            number = asked[name].number
            part = results.isel(algorithm=place).rename(algorithm=number)
            scored = _scored(part.assign_coords({number: grid}), metric, goal, target, number)
            if name in response:
                scored = xr.concat([response[name], scored], number, combine_attrs="override")
            response[name] = scored.drop_duplicates(number).sortby(number)
            grid = _next(response[name], left[name], points)
            if grid is not None:
                following[name] = grid
        grids = following
    chosen = {name: _chosen(name, one) for name, one in response.items()}
    return Tuned(
        methods={name: asked[name].build(value) for name, value in chosen.items()},
        chosen=chosen,
        interior={name: 0 < _place(one) < one["mean"].size - 1 for name, one in response.items()},
        width={name: _width(one) for name, one in response.items()},
        response=response,
        goal=goal,
        seeds=tuned_on,
        compilations=compilations,
    )


def _methods(given: Sequence[str] | Mapping[str, tuple]) -> dict[str, Method]:
    if isinstance(given, str) or not given:
        raise ValueError(f"methods are a list of names or a dict, at least one, got {given!r}.")
    if not isinstance(given, Mapping):
        if len(set(given)) < len(given):
            raise ValueError(f"each method once, got {list(given)}.")
        return {name: _named(name) for name in given}
    methods = {}
    for name, parts in given.items():
        if not isinstance(parts, tuple) or len(parts) != 4 or not callable(parts[0]):
            raise ValueError(
                f"method {name!r} must be (function, name of its number, least, greatest), got "
                f"{_check.shown(parts)}."
            )
        method = Method(*parts)
        _check.positive(f"the least {method.number} of {name!r}", method.low)
        _check.positive(f"the greatest {method.number} of {name!r}", method.high)
        if not method.low < method.high:
            raise ValueError(
                f"the range of {method.number} of {name!r} is empty or inverted: {method.low:g} to "
                f"{method.high:g}; give the least value first."
            )
        methods[name] = method
    return methods


def _named(name: str) -> Method:
    """A registered algorithm with the range of the one number it must be given."""
    _check.choice("method", name, REGISTRY)
    cls: Any = REGISTRY[name]
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if len(needed) != 1 or needed[0] not in RANGES:
        raise ValueError(
            f"{name} must be given {', '.join(needed)}: no one number with a range of its own; "
            f"say what is tuned, methods={{{name!r}: (function, name, least, greatest)}}."
        )
    (number,) = needed
    return Method(lambda value: cls(**{number: value}), number, *RANGES[number])


def _scored(
    results: xr.Dataset, metric: str | Metric, goal: str, target: float | None, number: str
) -> xr.Dataset:
    """How bad each candidate is, as a summary over seeds."""
    name = statistics.named(results, metric)
    values = results[name]
    censored = xr.zeros_like(results["diverged"], dtype=int)
    if target is None:
        score = values.isel(round=-1, drop=True) if goal == "final" else values.mean("round")
        attrs, label = values.attrs, f"{goal} {name}"
    else:
        reached = values <= target
        cost = (results["bits"] if goal == "bits" else results["round"]).broadcast_like(values)
        censored = (~reached.any("round")).astype(int)
        score = cost.where(reached).min("round").where(censored == 0, PENALTY * cost.max("round"))
        attrs, label = {}, f"{goal} until {name} is {target:g}"
    data = xr.Dataset({"score": score.assign_attrs(attrs), "diverged": results["diverged"]})
    numbers = statistics.summary(data, "score")
    # Where the metric itself is no number the run is as lost as one that diverged.
    lost = (numbers["diverged"] > 0) | (numbers["runs"] < results.sizes["seed"])
    numbers["mean"] = numbers["mean"].where(~lost & np.isfinite(numbers["mean"]), np.inf)
    numbers["censored"] = censored.sum("seed").astype(int)
    return numbers.assign_attrs(label=label).transpose(number)


def _place(response: xr.Dataset) -> int:
    return int(response["mean"].values.argmin())


def _next(response: xr.Dataset, left: list[int], points: int) -> np.ndarray | None:
    """The grid to try next, with what is left of extensions and refinements counted down."""
    means, place = response["mean"].values, _place(response)
    values = response[str(response["mean"].dims[0])].values
    ratio = values[1] / values[0], values[-1] / values[-2]
    if not np.isfinite(means).any() or place == 0:  # what is too long a step diverges
        if left[0] == 0:
            return None
        left[0] -= 1
        return values[0] / ratio[0] ** np.arange(points, 0, -1)
    if place == len(values) - 1:
        if left[0] == 0:
            return None
        left[0] -= 1
        return values[-1] * ratio[1] ** np.arange(1, points + 1)
    if left[1] == 0:
        return None
    left[1] -= 1
    return np.geomspace(values[place - 1], values[place + 1], points + 2)[1:-1]


def _chosen(name: str, response: xr.Dataset) -> float:
    number = str(response["mean"].dims[0])
    if not np.isfinite(response["mean"]).any():
        raise ValueError(
            f"no {number} of {name} is left: every candidate had runs that diverged, down to "
            f"{float(response[number].min()):g}. Begin at smaller values, or look at the scenario."
        )
    return float(response[number][_place(response)])


def _width(response: xr.Dataset) -> tuple[float, float]:
    """The values around the best, without a gap, whose means are within the tolerance."""
    means, place = response["mean"].values, _place(response)
    values = response[str(response["mean"].dims[0])].values
    good = means <= means[place] * 10 ** (TOLERANCE / 10)
    low = high = place
    while low > 0 and good[low - 1]:
        low -= 1
    while high < len(values) - 1 and good[high + 1]:
        high += 1
    return float(values[low]), float(values[high])
