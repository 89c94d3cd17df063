"""Building blocks of claims: parts of studies, the seeds of a method, estimates from them.

Chapters choose the metric and the rounds; this module turns them into numbers with intervals.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike
from scipy import stats

import fljax as fl
from experiments.figure import Estimate, Measure
from fljax import statistics
from fljax.privacy.promises import ROUNDING

#: Selects rounds of a study.
Window = Callable[[xr.Dataset], xr.Dataset]

# --------------------------------------------------------------------------- parts of studies


def joined(*parts: xr.Dataset, axis: str = "algorithm") -> xr.Dataset:
    """Studies that differ along one axis as one."""
    return xr.concat(parts, axis, join="outer", combine_attrs="override")


def last(data: xr.Dataset) -> xr.Dataset:
    """The last round; data without rounds are returned unchanged."""
    return data.isel(round=-1) if "round" in data.dims else data


def first_rounds(count: int) -> Window:
    return lambda data: data.sel(round=slice(1, count))


def last_rounds(count: int) -> Window:
    return lambda data: data.sel(round=slice(_end(data) - count + 1, None))


def first_part(parts: int) -> Window:
    """The first of ``parts`` equal parts of a run."""
    return lambda data: first_rounds(_end(data) // parts)(data)


def last_part(parts: int) -> Window:
    """The last of ``parts`` equal parts of a run."""
    return lambda data: last_rounds(_end(data) // parts)(data)


def _end(data: xr.Dataset) -> int:
    return int(data["round"].values[-1])


# --------------------------------------------------------------------------- seeds


def samples(data: xr.Dataset, which: str | Mapping[str, Any], metric: str) -> np.ndarray:
    """``[S]`` or ``[S, rounds]`` of one method; NaN where a run diverged.

    Args:
      data: a study.
      which: an algorithm, or labels of several axes.
      metric: a variable of the study.

    Raises:
      ValueError: more than one method is left.
    """
    where = {"algorithm": which} if isinstance(which, str) else which
    result = statistics.keep_finite(data, metric).sel(where)
    rest = [d for d in result.dims if d not in ("seed", "round")]
    left = [d for d in rest if result.sizes[d] > 1]
    if left:
        raise ValueError(f"axes {left} are left; select them.")
    return result.squeeze(rest, drop=True).transpose("seed", ...).values


def scenario_key(seed: int) -> Key[Array, ""]:
    """The key that a sweep passes to a scenario for a seed: theory then has the same instance."""
    return jax.random.split(jax.random.fold_in(fl.random_key(0), seed))[0]


def two(
    data: xr.Dataset, first: str | Mapping[str, Any], second: str | Mapping[str, Any], metric: str
) -> tuple[np.ndarray, np.ndarray]:
    """The :func:`samples` of two methods, paired by seed."""
    return samples(data, first, metric), samples(data, second, metric)


def each_mean(values: np.ndarray) -> np.ndarray:
    """``[S]``: each seed's (or resample's) mean over rounds, if there are several."""
    return values.mean(axis=1) if values.ndim > 1 else values


# --------------------------------------------------------------------------- estimates


def estimate(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray, unit: str = "dB"
) -> Estimate:
    """A number computed from seed means, as in :func:`fljax.statistics.bootstrap`."""
    return Estimate(*statistics.bootstrap(statistic, *samples), unit=unit)


def of_few(
    statistic: Callable[..., Any], *samples: Float[np.ndarray, " seeds"], unit: str
) -> Estimate:
    """A number computed from means over paired seeds, with Student's t of the jackknife: for few
    seeds the bootstrap's interval is too narrow.
    """
    count = len(samples[0])
    value = float(statistic(*(s.mean() for s in samples)))
    if count < 2:
        return Estimate(value, np.nan, np.nan, unit)
    less_one = np.asarray(
        [statistic(*(np.delete(s, i).mean() for s in samples)) for i in range(count)]
    )
    error = np.sqrt((count - 1) * less_one.var())
    reach = float(stats.t.ppf((1 + statistics.LEVEL) / 2, count - 1) * error)
    return Estimate(value, value - reach, value + reach, unit)


def if_long_enough(of: Estimate, accept: tuple[float, float], *, long_enough: bool) -> Estimate:
    """The estimate of a statement about long runs; NaN, not run, if it fails in a run that is
    shorter than its source asks for.
    """
    low, high = accept
    fails = of.high < low or of.low > high
    return of if long_enough or not fails else Estimate(math.nan, math.nan, math.nan, of.unit)


def gap(over: np.ndarray, under: np.ndarray) -> Estimate:
    """How far one mean is above another, dB; several rounds are averaged for each seed."""
    return estimate(_above, each_mean(over), each_mean(under))


def median_gap(over: np.ndarray, under: np.ndarray) -> Estimate:
    """How far one is above the other in the median run, dB. Unlike a mean, the median is not
    dominated by a few runs.
    """
    run_gaps = _above(each_mean(over), each_mean(under))
    return of_median(lambda middle: middle[:, 0], run_gaps[:, None])


def curve_gap(over: np.ndarray, under: np.ndarray) -> Estimate:
    """How far one mean curve is above another on average over its rounds, dB."""
    return estimate(lambda a, b: each_mean(_above(a, b)), over, under)


def curve_distance(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Mean distance of two mean curves, whichever is above, dB."""
    return estimate(lambda a, b: each_mean(np.abs(_above(a, b))), first, second)


def _above(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    return statistics.decibels(over / under)


def saving(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """By how much less one uses than another, per cent of the other."""
    return estimate(lambda a, b: 100 * (1 - a / b), ours, theirs, unit="%")


def share(done: np.ndarray) -> Estimate:
    """The percentage of runs, ``[S]``, with a property."""
    return estimate(lambda a: a, 100.0 * done, unit="%")


def gaps(
    panel: str, *pairs: tuple[str, str], measure: Callable[[xr.Dataset, str, str], Estimate]
) -> Measure:
    """A measure of every (over, under) of a panel."""
    return lambda studies: {
        f"{over} above {under}": measure(studies[panel], over, under) for over, under in pairs
    }


def exponent(values: np.ndarray, at: ArrayLike) -> np.ndarray:
    """``[B]``: the exponent of values ``[B, points]`` as a power of ``at``, by least squares of
    their logarithms.
    """
    logarithms = np.log(np.asarray(at, float))
    logarithms = logarithms - logarithms.mean()
    return np.log(values) @ logarithms / (logarithms @ logarithms)


def bound_held(norm: float, bound: float) -> bool:
    """Whether no gradient is longer than the bound, up to rounding."""
    return norm <= bound * (1 + ROUNDING)


def gap_band(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """``[3, rounds]``: how far one mean curve is above another, dB, and its 95 % band by the
    jackknife over paired seeds, as :func:`fljax.statistics.paired_differences` has it of one round.
    """
    finite = np.isfinite(over + under).all(axis=1)
    over = over[finite]
    under = under[finite]
    runs = int(finite.sum())
    middle = _above(over.mean(0), under.mean(0))
    less_one = _above(over.sum(0) - over, under.sum(0) - under)
    error = np.sqrt((runs - 1) * less_one.var(axis=0))
    reach = stats.t.ppf((1 + statistics.LEVEL) / 2, max(runs - 1, 1)) * error
    return np.stack([middle, middle - reach, middle + reach])


def of_median(
    statistic: Callable[[np.ndarray], np.ndarray],
    samples: np.ndarray,
    unit: str = "dB",
    resamples: int = 500,
) -> Estimate:
    """A number computed from the median trajectory of the runs, with its bootstrap interval.

    Args:
      statistic: of trajectories ``[B, rounds]`` to ``[B]``.
      samples: ``[S, rounds]``.
      unit: of the number.
      resamples: of the seeds.
    """
    runs = samples[np.isfinite(samples).all(axis=1)]
    value = float(statistic(np.median(runs, axis=0)[None])[0])
    chosen = np.random.default_rng(0).integers(len(runs), size=(resamples, len(runs)))
    result = statistic(np.stack([np.median(runs[rows], axis=0) for rows in chosen]))
    low, high = np.percentile(result, [50 * (1 - statistics.LEVEL), 50 * (1 + statistics.LEVEL)])
    none = len(runs) < 2
    return Estimate(value, *((math.nan, math.nan) if none else (float(low), float(high))), unit)


# --------------------------------------------------------------------------- differences of curves

#: The variable that :func:`above` adds.
ABOVE = "above"


def above(data: xr.Dataset, metric: str, reference: str) -> xr.Dataset:
    """Every seed's curve of a method over that of another one: for pictures in which the curves
    themselves would coincide. A quotient, whose mean over seeds is drawn in dB.
    """
    over = data[metric] / data[metric].sel(algorithm=reference, drop=True)
    over.attrs = {"long_name": f"above {reference}", "units": "1", "decibel": 1}
    return data.assign({ABOVE: over})
