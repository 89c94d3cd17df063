r"""Means over seeds and how far they can be trusted.

Used alike by the plots and by the claims of `experiments`, so that a picture and a verdict never
disagree about the same numbers.
"""

from collections.abc import Callable

import numpy as np
import xarray as xr
from scipy import stats

from fljax import _check
from fljax.records import PER_CLIENT, PER_RUN

__all__ = [
    "LEVEL",
    "bootstrap",
    "decibels",
    "is_decibel",
    "keep_finite",
    "metric_names",
    "summary",
]

LEVEL = 0.95

#: What a dataset of results holds beside metrics.
_NOT_METRICS = (*PER_RUN, *PER_CLIENT, "model", "done", "stopped")


def metric_names(dataset: xr.Dataset) -> list[str]:
    """The variables of a dataset that have one number a seed (and round)."""
    return [
        str(name)
        for name, variable in dataset.data_vars.items()
        if name not in _NOT_METRICS and "seed" in variable.dims
    ]


def is_decibel(dataset: xr.Dataset, metric: str) -> bool:
    """Whether the metric is a non-negative quantity that is read on a dB scale."""
    return bool(dataset[metric].attrs.get("decibel", 0))


def summary(dataset: xr.Dataset, metric: str, level: float = LEVEL) -> xr.Dataset:
    r"""Mean over the seeds that did not diverge, and its confidence interval.

    For non-negative metrics (those read in dB) the interval is Student's *t* of the logarithm of
    the mean, :math:`\bar x\exp(\pm t\,s/(\sqrt n\,\bar x))`: first-order the same as the usual one,
    symmetric in dB, and never below zero. Errors over seeds are skewed to the right; on such data
    (ratios of chi-squares, log-normal) it covered 89 to 93 % with 5 to 100 seeds, where the usual
    interval covered 82 to 93 % and the percentile bootstrap 72 to 92 %. Other metrics get the
    usual interval.

    Args:
      dataset: results with a ``seed`` axis.
      metric: a variable of it.
      level: of confidence, in (0, 1).

    Returns:
      ``mean``, ``low``, ``high`` (NaN interval with fewer than two runs), ``runs`` (that were
      averaged) and ``diverged`` (that were left out), over the other axes.

    Raises:
      ValueError: an unknown metric (the nearest is suggested), no ``seed`` axis.

    Example:
      >>> import xarray as xr
      >>> data = xr.Dataset({"loss": ("seed", [1.0, 2.0, 3.0])})
      >>> [round(float(v), 3) for v in summary(data, "loss")[["mean", "low", "high"]].values()]
      [2.0, -0.484, 4.484]
    """
    _check.choice("metric", metric, metric_names(dataset))
    _check.interval("level", level, above=0, below=1)
    kept = keep_finite(dataset, metric)
    runs = kept.notnull().sum("seed")
    mean = kept.mean("seed")
    # Where a single run is left, ddof=1 gives 0/0: no interval, which is the truth.
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = kept.std("seed", ddof=1) if kept.sizes["seed"] > 1 else mean * np.nan
    reach = xr.DataArray(
        stats.t.ppf((1 + level) / 2, np.maximum(runs.values - 1, 1)), runs.coords, runs.dims
    )
    half = (reach * spread / np.sqrt(np.maximum(runs, 1))).where(runs > 1)
    if is_decibel(dataset, metric):
        factor = np.exp(half / mean.where(mean > 0))
        low, high = mean / factor, mean * factor
    else:
        low, high = mean - half, mean + half
    diverged = (dataset["diverged"] > 0).sum("seed") if "diverged" in dataset else 0 * runs
    return xr.Dataset(
        {"mean": mean, "low": low, "high": high, "runs": runs, "diverged": diverged},
        attrs={"level": level, "seeds": int(dataset.sizes["seed"])},
    )


def keep_finite(dataset: xr.Dataset, metric: str) -> xr.DataArray:
    """A metric in float64 with the runs that diverged, at whatever round, set to NaN."""
    values = dataset[metric].astype(np.float64)
    return values if "diverged" not in dataset else values.where(dataset["diverged"] == 0)


def bootstrap(
    statistic: Callable[..., np.ndarray],
    *samples: np.ndarray,
    level: float = LEVEL,
    resamples: int = 2000,
    rng: int = 0,
) -> tuple[float, float, float]:
    """A number computed from seed means, with its paired-bootstrap percentile interval.

    Seeds are resampled jointly for all samples: with common random numbers what two algorithms
    share on a seed cancels in their ratio, and so it does in the interval.

    Args:
      statistic: of the samples' means, ``[B, ...]`` each, to ``[B]``.
      samples: ``[S, ...]`` each, paired along the first axis. A seed with a NaN in any of them (a
        diverged run) is left out of all.
      level: of confidence.
      resamples: ``B``.
      rng: seed of the resampling; fixed, so that a verdict can be computed again.

    Returns:
      The number, and the interval's two ends (NaN with fewer than two seeds).

    Example:
      >>> worse, better = np.array([2.0, 4.0, 8.0]), np.array([1.0, 2.0, 4.0])
      >>> bootstrap(lambda a, b: a / b, worse, better)  # paired: no uncertainty at all
      (2.0, 2.0, 2.0)
    """
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    whole = np.all([np.isfinite(a).reshape(len(a), -1).all(1) for a in arrays], axis=0)
    arrays = [a[whole] for a in arrays]
    seeds = int(whole.sum())
    if seeds == 0:
        return float("nan"), float("nan"), float("nan")
    value = float(statistic(*(a.mean(0, keepdims=True) for a in arrays))[0])
    if seeds == 1:
        return value, float("nan"), float("nan")
    weights = np.random.default_rng(rng).multinomial(seeds, np.full(seeds, 1 / seeds), resamples)
    means = (np.tensordot(weights / seeds, a, axes=(1, 0)) for a in arrays)
    low, high = np.percentile(statistic(*means), [50 * (1 - level), 50 * (1 + level)])
    return value, float(low), float(high)


def decibels(value):
    """``10 log10`` of a non-negative quantity; of an average, never an average of dB."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10(value)
