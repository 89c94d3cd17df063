"""Shared by the headline figures: dissimilar clients, and measures of promises on curves."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key
from matplotlib.axes import Axes

import fljax as fl
from experiments.figure import Effort, Estimate, Measure, Studies
from experiments.measures import (
    each_mean,
    estimate,
    gap,
    last,
    last_part,
    last_rounds,
    of_few,
    of_median,
    samples,
)
from experiments.picture import THIN
from fljax import statistics
from fljax.problems import LeastSquares, Problem

METRIC = "normalized_error"

#: What "exact" is in double precision: curves end at -280 to -290 dB there.
EXACT = -200.0

#: Between which levels the first and the second stretch of a linear rate lie.
LEVELS = (0.0, -80.0, -160.0)


def unlike(
    key: Key[Array, ""],
    clients: int,
    samples: int,
    dim: int,
    spread: Float[Array, ""] | float = 1.0,
    scales: Float[Array, " dim"] | None = None,
) -> Problem:
    """Least squares of clients whose own models are ``spread`` apart from a common one.

    Args:
      key: consumed.
      clients: ``K``.
      samples: ``N`` of each client.
      dim: ``D``.
      spread: standard deviation of the clients' models around the common one, which has 1.
      scales: ``[D]``, standard deviations of the features; one by default.
    """
    k_truth, k_own, k_features, k_noise = jax.random.split(key, 4)
    truth = jax.random.normal(k_truth, (dim,))
    models = truth[None] + spread * jax.random.normal(k_own, (clients, dim))
    features = jax.random.normal(k_features, (clients, samples, dim))
    features = features if scales is None else features * scales[None, None]
    noise = 0.1 * jax.random.normal(k_noise, (clients, samples))
    return Problem(features, jnp.einsum("knd,kd->kn", features, models) + noise, LeastSquares())


#: The texts of the two measures of an exact method below.
DOUBLE = f"a squared relative error below {EXACT:.0f} dB, in double precision"
LINEAR = "the second 80 dB take at most one and a half times the rounds of the first"
SLOWER = (
    "The first rounds fall at the rate of the clients' own problems, later ones at that of the "
    "slowest mode of the network; both are linear."
)


def final(study: str, *methods: str, metric: str = METRIC) -> Measure:
    """The mean of the last record, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = last(studies[study])
        values = {name: samples(data, name, metric) for name in methods}
        return {name: estimate(statistics.decibels, of) for name, of in values.items()}

    return measure


def straightness(study: str, *methods: str, metric: str = METRIC) -> Measure:
    """Rounds of the second 80 dB over rounds of the first, in the median run: one at a linear rate,
    unbounded at a sublinear one.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[study]
        ratio = _ratio(data["round"].values)
        return {name: of_median(ratio, samples(data, name, metric), unit="") for name in methods}

    return measure


def _ratio(rounds: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def ratio(curves: np.ndarray) -> np.ndarray:
        decibels = statistics.decibels(curves)
        start, middle, end = (first_below(decibels, level, rounds) for level in LEVELS)
        return (end - middle) / (middle - start)

    return ratio


def first_below(curves: np.ndarray, level: float, rounds: np.ndarray) -> np.ndarray:
    """``[B]``: the round at which curves ``[B, rounds]`` come to a level, on the line between two
    records; NaN where they do not.
    """
    at_target = curves <= level
    at = np.maximum(at_target.argmax(axis=1), 1)
    rows = np.arange(len(curves))
    before = curves[rows, at - 1]
    after = curves[rows, at]
    with np.errstate(divide="ignore", invalid="ignore"):  # curves that stay at a level
        share = np.clip((before - level) / (before - after), 0, 1)
    number = rounds[at - 1] + share * (rounds[at] - rounds[at - 1])
    return np.where(at_target.any(axis=1), number, np.nan)


def late_gap(study: str, over: str, under: str, parts: int) -> Measure:
    """How far one error is above another over the last of ``parts`` equal parts of the runs, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        late = last_part(parts)(studies[study])
        two = (samples(late, name, METRIC) for name in (over, under))
        return {f"{over} above {under}": gap(*two)}

    return measure


def in_the_median(ratio: Float[np.ndarray, " seeds"]) -> Estimate:
    """The median of a ratio over seeds; NaN where no run has it."""
    if np.isnan(ratio).all():
        return Estimate(np.nan, np.nan, np.nan, "times")
    return of_median(lambda medians: medians[:, 0], ratio[:, None], unit="times")


def bound(scenario: Callable[..., fl.Simulation], name: str) -> Callable[[Array], fl.Simulation]:
    """A scenario of one name, which is a program of its own; stores know it by this name."""

    def build(key: Array) -> fl.Simulation:
        return scenario(key, name)

    build.__qualname__ = f"{scenario.__name__}({name})"
    return build


# --------------------------------------------------------------------------- tuned methods


def built(cls: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """A constructor of an algorithm from its searched numbers."""

    def build(step_size: float, **numbers: float) -> Any:
        return cls(step_size, **numbers, **fixed)

    return build


def compared(
    effort: Effort,
    name: str,
    scenario: Callable[..., fl.Simulation],
    methods: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]],
    *,
    metric: str,
    rounds: int,
    seeds: int,
    tuning_seeds: int = 5,
    points: int = 4,
    record_every: int = 2,
    also: tuple[str, ...] = (),
    **goal: Any,
) -> xr.Dataset:
    """Methods tuned by one rule, then run on other seeds (:func:`fljax.compare`).

    A quick effort tries fewer points, and ``tuning_seeds`` are at most the effort's.

    Returns:
      The runs with the metric and the variables ``also``; the coordinate ``chosen`` has the tuned
      numbers of each method.
    """
    comparison = fl.compare(
        scenario,
        methods,
        metric=metric,
        rounds=rounds,
        seeds=seeds,
        tuning_seeds=min(effort.tuning_seeds, tuning_seeds),
        points=3 if effort.quick else points,
        refinements=0,
        extensions=0 if effort.quick else 1,
        record_every=record_every,
        **goal,
        store=None if effort.store is None else effort.store / name,
    )
    numbers = comparison.tuned.chosen.values()
    chosen = [", ".join(f"{key} = {value:.3g}" for key, value in of.items()) for of in numbers]
    return comparison.results[[metric, "diverged", *also]].assign_coords(
        chosen=("algorithm", chosen)
    )


def chosen(*names: str) -> Callable[[Studies], list[dict[str, Any]]]:
    """The rows of a figure's tuning table for these studies."""

    def rows(studies: Studies) -> list[dict[str, Any]]:
        return [
            {"method": method, "numbers": numbers, "chosen": True}
            for data in map(studies.__getitem__, names)
            for method, numbers in zip(
                data["algorithm"].values.tolist(), data["chosen"].values.tolist(), strict=True
            )
        ]

    return rows


def counting(data: xr.Dataset, in_each: int) -> xr.Dataset:
    """A study of tuned methods by its number of steps or messages; each round has ``in_each``."""
    # The numbers of each method are in its `chosen`.
    coords = {
        "chosen": ("algorithm", data["chosen"].values),
        "round": in_each * data["round"].values,
    }
    return data.reset_coords(drop=True).assign_coords(coords)


def fewer_errors(
    study: str, over: str | Sequence[str], *under: str, metric: str, rounds: int
) -> Measure:
    """By how many points methods err more than others, in the mean over the last ``rounds``."""
    above = (over,) if isinstance(over, str) else over

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = last_rounds(rounds)(studies[study])

        def of(name: str) -> np.ndarray:
            return 100 * each_mean(samples(data, name, metric))

        return {
            f"{more} above {less}": of_few(lambda a, b: a - b, of(more), of(less), unit="points")
            for more, less in itertools.product(above, under)
        }

    return measure


def ranked(ax: Axes, data: xr.Dataset, metric: str, rounds: int, above: str = "") -> None:
    """Methods from the best to the worst, by their mean over the last ``rounds``; or by how many
    points they are above one of them, paired by seed, whose intervals are of what claims compare.
    """
    late = last_rounds(rounds)(data)
    values = {str(n): each_mean(samples(late, str(n), metric)) for n in data["algorithm"].values}
    if above:
        values = {name: 100 * (value - values[above]) for name, value in values.items()}
    names = [*values]
    estimates = {name: of_few(float, value, unit="") for name, value in values.items()}
    names.sort(key=lambda name: estimates[name].value)
    places = np.arange(len(names))
    middles = np.array([estimates[name].value for name in names])
    reach = np.array([(estimates[name].low, estimates[name].high) for name in names]).T - middles
    ax.errorbar(middles, places, xerr=abs(reach), fmt="o", markersize=3, color="#333333")
    ax.set_yticks(places, names, fontsize=5.5 if len(names) > 14 else None)
    ax.invert_yaxis()
    label = data[metric].attrs.get("long_name", metric.replace("_", " "))
    ax.set_xlabel(f"{label} above {above}'s [points]" if above else label)
    if above:
        ax.axvline(0, **THIN)
