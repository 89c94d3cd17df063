r"""Means over seeds, their confidence intervals, and comparisons of methods.

Plots, tables and the claims of `experiments` all use these functions, so that a figure and a
verdict never disagree about the same numbers.
"""

import functools
import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array
from scipy import stats

from fljax._core import checks
from fljax._core.annotations import check, checked, rule_of
from fljax.metrics.definitions import METRICS, Metric
from fljax.metrics.names import BOUNDS, PER_CLASS, PER_CLIENT, PER_RUN, PER_STATISTIC
from fljax.privacy.coverage import ledger_of
from fljax.privacy.promises import broken, not_counted
from fljax.results.times import at_seconds, seconds_of
from fljax.results.variances import variance_shares

__all__ = [
    "LEVEL",
    "at_round",
    "at_seconds",
    "best",
    "bootstrap",
    "decibels",
    "is_decibel",
    "keep_finite",
    "label_of",
    "metric_names",
    "named",
    "nominal",
    "paired_differences",
    "profile",
    "ranks",
    "remarks",
    "summary",
    "until",
    "variance_shares",
]

#: Confidence level of intervals and bands.
LEVEL = 0.95

#: Variables of a dataset of results that are not metrics.
_NOT_METRICS = (*PER_RUN, *PER_CLIENT, *PER_CLASS, *PER_STATISTIC, "model", "done", "stopped")


@checked
def metric_names(dataset: xr.Dataset) -> list[str]:
    """The variables of a dataset that have one number per seed (and round).

    Raises:
      ValueError: no ``seed`` axis.

    Example:
      >>> import xarray as xr
      >>> metric_names(xr.Dataset({"error": ("seed", [1.0, 2.0]), "diverged": ("seed", [0, 0])}))
      ['error']
    """
    if "seed" not in dataset.dims:
        raise ValueError(
            "means are taken over seeds, but one run has no seed axis; run fljax.sweep, with one "
            "seed if need be."
        )
    return [
        str(name)
        for name, variable in dataset.data_vars.items()
        if name not in _NOT_METRICS and "seed" in variable.dims
    ]


@checked
def named(dataset: xr.Dataset, metric: str | Metric) -> str:
    """The name of a metric of a dataset, given by its name or as a :class:`~fljax.metrics.Metric`.

    Raises:
      ValueError: not one of its metrics (the nearest is suggested), or no ``seed`` axis.

    Example:
      >>> import fljax as fl, xarray as xr
      >>> data = xr.Dataset({"accuracy": ("seed", [0.5, 0.75])})
      >>> named(data, "accuracy"), named(data, fl.metrics.accuracy)
      ('accuracy', 'accuracy')
    """
    name = metric.name if isinstance(metric, Metric) else metric
    checks.choice("metric", name, metric_names(dataset))
    return name


@checked
def is_decibel(dataset: xr.Dataset, metric: str | Metric) -> bool:
    """Whether the metric is a non-negative quantity that is shown on a dB scale.

    Example:
      >>> import xarray as xr
      >>> data = xr.Dataset({"error": ("seed", [1.0], {"decibel": 1}), "accuracy": ("seed", [0.5])})
      >>> is_decibel(data, "error"), is_decibel(data, "accuracy")
      (True, False)
    """
    return bool(dataset[named(dataset, metric)].attrs.get("decibel", 0))


@checked
def larger_is_better(dataset: xr.Dataset, metric: str | Metric) -> bool:
    """Whether the metric is better the larger it is, as an accuracy is."""
    name = named(dataset, metric)
    definition = metric if isinstance(metric, Metric) else METRICS.get(name)
    recorded = dataset[name].attrs.get("larger_is_better")  # older results lack it
    return bool(
        definition is not None and definition.larger_is_better if recorded is None else recorded
    )


@checked
def label_of(dataset: xr.Dataset, metric: str | Metric, decibel: bool = True) -> str:
    """The label of a metric for an axis or a column, with its unit.

    Args:
      dataset: results.
      metric: a variable of it.
      decibel: whether its numbers are in dB, if it is a metric on a dB scale.

    Example:
      >>> import xarray as xr
      >>> attrs = {"long_name": "normalized error", "units": "1", "decibel": 1}
      >>> label_of(xr.Dataset({"error": ("seed", [1.0], attrs)}), "error")
      'normalized error [dB]'
    """
    name = named(dataset, metric)
    unit = "dB" if decibel and is_decibel(dataset, name) else None
    return with_unit(dataset[name], unit)


def with_unit(variable: xr.DataArray, unit: str | None = None) -> str:
    """The quantity of a variable, with its unit in brackets unless it is a mere number."""
    unit = unit or variable.attrs.get("units", "1")
    label = variable.attrs.get("long_name", variable.name)
    return f"{label}" if unit in ("1", variable.name) else f"{label} [{unit}]"


@checked
def nominal(dataset: xr.Dataset) -> str:
    """The remark that must accompany results with nominal privacy, with the assumption concerned
    (:func:`fljax.privacy.assumptions`); empty if no run is nominal.

    Example:
      >>> import xarray as xr
      >>> nominal(xr.Dataset({"nominal": ("seed", [0, 1])}))
      'some privacy nominal'
    """
    if "nominal" not in dataset or not (dataset["nominal"] == 1).any():
        return ""
    why = ", ".join(broken(dataset))
    remark = "privacy nominal" if dataset["nominal"].min() else "some privacy nominal"
    return f"{remark} ({why})" if why else remark


@checked
def remarks(dataset: xr.Dataset) -> list[str]:
    """The remarks that must accompany private results in plots and tables; empty without privacy:
    that they are nominal (:func:`nominal`), that a choice by private results is not counted, and
    that their epsilon is of one of several seeds.

    Example:
      >>> import fljax as fl
      >>> def scenario(key):
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(key, clients=6, samples=9, dim=2).clipped(1.0),
      ...         network=fl.graphs.ring(6),
      ...         algorithm=fl.algorithms.ZCDPNFL(1.0, 0.3),
      ...         privacy=fl.privacy.ZCDP(1.0, decay=0.9),
      ...         metrics=["normalized_error"],
      ...     )
      >>> remarks(fl.sweep(scenario, rounds=3, seeds=2))
      ['privacy loss of one seed, not of all 2']
    """
    texts = [nominal(dataset)]
    if not ledger_of(dataset):
        return [text for text in texts if text]
    if "tuning" in dataset.attrs:
        texts.append("tuning not counted in the privacy loss")
    if (seeds := dataset.sizes.get("seed", 1)) > 1:
        texts.append(f"privacy loss of one seed, not of all {seeds}")
    return [text for text in texts if text]


def _check_unique(dataset: xr.Dataset, axis: str) -> None:
    """Raise ``ValueError`` for runs or rounds that are there twice, as where a study was joined
    with itself: they would count as independent ones, and intervals be too narrow.
    """
    if axis not in dataset.coords:
        return
    values, counts = np.unique(dataset[axis].values, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"{axis} {values[counts > 1][0]} is there {counts.max()} times; join studies of other "
            f"{axis}s, or keep one of each, dataset.drop_duplicates({axis!r})."
        )


def _check_filled(values: xr.DataArray) -> None:
    """Raise ``ValueError`` for an axis without any value, such as after a selection of nothing."""
    for axis, size in values.sizes.items():
        if not size and axis not in ("seed", "round"):
            raise ValueError(f"nothing of {values.name!r} is left: axis {axis!r} is empty.")


@checked
def at_round(dataset: xr.Dataset, round: int | None = None) -> xr.Dataset:
    """Results at one round, by default the last recorded; unchanged if they have no ``round`` axis.

    Raises:
      ValueError: a round that was not recorded (the error names the nearest).

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key):
      ...     problem = fl.problems.ridge(key, clients=3, samples=9, dim=2)
      ...     return fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=["objective"])
      >>> results = fl.sweep(scenario, seeds=4, rounds=10)
      >>> last = fl.statistics.at_round(results)
      >>> last.objective.dims, int(last["round"])
      (('seed',), 10)
    """
    if not dataset.sizes.get("round"):
        return dataset
    _check_unique(dataset, "round")
    recorded = dataset["round"].values
    if round is not None and round not in recorded:
        raise ValueError(
            f"round {round} was not recorded; the nearest is "
            f"{min(recorded.tolist(), key=lambda other: abs(other - round))}."
        )
    return dataset.sel(round=recorded[-1] if round is None else round)


@checked
def summary(dataset: xr.Dataset, metric: str | Metric, level: float = LEVEL) -> xr.Dataset:
    r"""The mean over the seeds that did not diverge, and its confidence interval.

    For non-negative metrics (those on a dB scale) the interval is Student's *t* of the logarithm of
    the mean, :math:`\bar x\exp(\pm t\,s/(\sqrt n\,\bar x))`: equal to the usual one to first order,
    symmetric in dB, and never below zero. Errors over seeds are skewed to the right; on such data
    (ratios of chi-squares, log-normal) it covered 89 to 93 % with 5 to 100 seeds, where the usual
    interval covered 82 to 93 % and the percentile bootstrap 72 to 92 %.

    For metrics between two bounds (:attr:`fljax.metrics.Metric.bounds`), such as an accuracy, it is
    Student's *t* of the logit of the mean, :math:`p\pm t\,s/(\sqrt n\,p(1-p))` in log odds of
    :math:`p`, the position of the mean between the bounds as a share of their distance: again equal
    to first order, and never outside the bounds. On beta-distributed accuracies of mean 0.9 and 0.8
    it covered 93 to 95 % with 3 to 100 seeds, where the usual interval, which exceeded 1 in up to
    93 % of the studies, covered 87 to 95 %, and no more if it was clipped at the bounds. For
    metrics with one bound the logarithm of the distance from it is used, for others the usual
    interval.

    Args:
      dataset: results with a ``seed`` axis.
      metric: a variable of it, by name or as a :class:`~fljax.metrics.Metric`.
      level: confidence level, in (0, 1).

    Returns:
      ``mean``, ``low``, ``high`` (NaN interval with fewer than two runs), ``runs`` (the number
      averaged) and ``diverged`` (the number left out), over the other axes. In incomplete results
      only the finished runs count; the attribute ``seeds`` is their number.

    Raises:
      ValueError: an unknown metric (the nearest is suggested), no ``seed`` axis, values outside the
        metric's bounds.

    Example:
      >>> import xarray as xr
      >>> data = xr.Dataset({"loss": ("seed", [1.0, 2.0, 3.0])})
      >>> [round(float(v), 3) for v in summary(data, "loss")[["mean", "low", "high"]].values()]
      [2.0, -0.484, 4.484]
      >>> attrs = {"least": 0.0, "greatest": 1.0}
      >>> data = xr.Dataset({"right": ("seed", [1.0, 0.9, 0.98, 0.96, 1.0], attrs)})
      >>> [round(float(v), 3) for v in summary(data, "right")[["mean", "low", "high"]].values()]
      [0.968, 0.852, 0.994]
    """
    metric = named(dataset, metric)
    checks.interval("level", level, above=0, below=1)
    values = keep_finite(dataset, metric)
    _check_unique(dataset, "seed")
    _check_filled(values)
    runs = values.notnull().sum("seed")
    mean = values.mean("seed")
    # With a single run ddof=1 gives 0/0: NaN, no interval.
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = values.std("seed", ddof=1) if values.sizes["seed"] > 1 else mean * np.nan
    quantile = xr.DataArray(
        stats.t.ppf((1 + level) / 2, np.maximum(runs.values - 1, 1)), runs.coords, runs.dims
    )
    half = (quantile * spread / np.sqrt(np.maximum(runs, 1))).where(runs > 1)
    low, high = _ends(mean, half, *_bounds(dataset, metric))
    diverged = 0 * runs
    seeds = dataset.sizes["seed"]
    if "diverged" in dataset:
        diverged = (dataset["diverged"] > 0).sum("seed")
        seeds = dataset["diverged"].notnull().sum("seed").max()  # others are not finished yet
    return xr.Dataset(
        {"mean": mean, "low": low, "high": high, "runs": runs, "diverged": diverged},
        attrs={"level": level, "seeds": int(seeds)},
    )


def _bounds(dataset: xr.Dataset, metric: str) -> tuple[float, float]:
    """The least and the greatest possible value of a metric.

    Raises:
      ValueError: values outside these bounds.
    """
    attrs = dataset[metric].attrs
    values = keep_finite(dataset, metric)
    least = float(attrs.get("least", 0.0 if is_decibel(dataset, metric) else -np.inf))
    greatest = float(attrs.get("greatest", np.inf))
    slack = 1e-5 * (greatest - least) if np.isfinite(greatest - least) else 0.0  # of float32
    stated = [end for end in BOUNDS if end in attrs]
    if stated and ((values < least - slack) | (values > greatest + slack)).any():
        raise ValueError(
            f"{metric!r} has values from {float(values.min()):g} to {float(values.max()):g}, "
            f"outside of its bounds {least:g} and {greatest:g}; give others, "
            f"dataset[{metric!r}].attrs[{stated[0]!r}] = ..., or delete them."
        )
    return least, greatest


def _ends(
    mean: xr.DataArray, half: xr.DataArray, least: float, greatest: float
) -> tuple[xr.DataArray, xr.DataArray]:
    """The ends of an interval within bounds, given half its width for an unbounded metric."""
    if np.isinf(least):
        if np.isinf(greatest):
            return mean - half, mean + half
        low, high = _ends(-mean, half, -greatest, -least)
        return -high, -low
    above = (mean - least).where(mean > least)
    if np.isinf(greatest):
        factor = np.exp(half / above)
        return least + above / factor, least + above * factor
    share = ((mean - least) / (greatest - least)).clip(0, 1)
    inside = share.where((share > 0) & (share < 1))
    factor = np.exp(half / (greatest - least) / (inside * (1 - inside)))
    ends = (inside / (inside + (1 - inside) * f) for f in (factor, 1 / factor))
    agreed = share.where(inside.isnull() & half.notnull())  # all runs at one bound
    low, high = (least + (greatest - least) * end.fillna(agreed) for end in ends)
    return low, high


@checked
def keep_finite(dataset: xr.Dataset, metric: str | Metric) -> xr.DataArray:
    """A metric in float64, with runs that diverged in any round set to NaN.

    Example:
      >>> import xarray as xr
      >>> data = xr.Dataset({"error": ("seed", [1.0, 2.0]), "diverged": ("seed", [0, 40])})
      >>> keep_finite(data, "error").values.tolist()
      [1.0, nan]
    """
    values = dataset[named(dataset, metric)]
    if values.dtype.kind in "cSUTmM":
        raise TypeError(f"{values.name!r} must be of real numbers, got {values.dtype}.")
    values = values.astype(np.float64)
    return values if "diverged" not in dataset else values.where(dataset["diverged"] == 0)


@checked
def best(
    dataset: xr.Dataset,
    metric: str | Metric,
    over: str | Sequence[str],
    *,
    of: str | None = None,
    round: int | None = None,
) -> xr.Dataset:
    """Select the best value along an axis of a study, such as the best step size of each method.

    The criterion is the mean over seeds at one round. Values at which the fewest runs diverged are
    preferred to all others (a diverged run counts as infinite); in incomplete results only the
    finished runs count. Selecting and evaluating on the same seeds is biased in favor of the
    selected value: for a grid of many values, evaluate on seeds that were not used for the
    selection.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metric: a variable of it with one number per run and round, by name or as a
        :class:`~fljax.metrics.Metric`.
      over: the axis to select along, or several, which are then selected jointly.
      of: whether the least or the greatest mean is best, ``"min"`` or ``"max"``; by default as the
        metric has it, so the greatest of an accuracy and the least of an error.
      round: the round at which the metric is read; by default the last recorded round.

    Returns:
      The results, with all rounds and variables, at the selected values only, which may differ
      between the points of the other axes. The selected values remain as a coordinate over these
      axes, which tables show. In private results the attribute ``tuning`` states that the choice
      is not counted in their privacy loss.

    Raises:
      ValueError: an unknown metric or axis; a metric with axes of its own; a round that was not
        recorded; a point at which every run diverged or is missing; values whose runs end before
        that round, as where studies of other rounds were joined.

    Example:
      >>> import xarray as xr
      >>> values = [[[4.0, 2.0], [1.0, 2.0]], [[3.0, 5.0], [9.0, 7.0]]]
      >>> data = xr.Dataset(
      ...     {"error": (("algorithm", "step_size", "seed"), values, {"decibel": 1})},
      ...     coords={"algorithm": ["FedAvg", "PGFL"], "step_size": [0.1, 0.5]},
      ... )
      >>> best(data, "error", over="step_size").step_size.to_series().to_dict()
      {'FedAvg': 0.5, 'PGFL': 0.1}
    """
    metric = named(dataset, metric)
    of = of or ("max" if larger_is_better(dataset, metric) else "min")
    checks.choice("of", of, ("min", "max"))
    chosen = [over] if isinstance(over, str) else list(over)
    values = keep_finite(at_round(dataset, round), metric).reset_coords(drop=True)
    values = values.where(np.isfinite(values))
    present = _present(dataset, metric).reset_coords(drop=True) & dataset.get("done", True)
    if present.sizes.get("round"):
        at = int(dataset["round"][-1]) if round is None else round
        now = present.sel(round=at, drop=True)
        _check_last_rounds(present, now, at)
        present = now
    axes = [str(dim) for dim in values.dims if dim not in ("seed", "round")]
    for axis in chosen:
        checks.choice("axis", axis, axes)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"best is over one or more axes, each once, got {chosen}.")
    if empty := [str(dim) for dim, size in values.sizes.items() if not size]:
        raise ValueError(f"nothing of {metric!r} is left to choose: axis {empty[0]!r} is empty.")
    if unlabeled := [axis for axis in axes if axis not in dataset.coords]:
        raise ValueError(
            f"{metric!r} has an axis of its own, {unlabeled[0]!r}; reduce it first, dataset.assign("
            f"{metric}=dataset[{metric!r}].mean({unlabeled[0]!r}, keep_attrs=True))."
        )
    lost = values.isnull() & present
    if "diverged" in dataset:
        lost = lost | (dataset["diverged"] > 0)
    mean = values.mean("seed")
    lost = lost.sum("seed")
    mean = mean.where(lost == lost.where(mean.notnull()).min(chosen))
    no_finite_mean = mean.isnull().all(chosen)
    if no_finite_mean.any():
        first = zip(no_finite_mean.dims, np.argwhere(no_finite_mean.values)[0], strict=True)
        where = "".join(f" at {dim}={no_finite_mean[dim].values[i]}" for dim, i in first)
        raise ValueError(
            f"no value of {', '.join(chosen)} is best{where}: no run is there whose {metric!r} is "
            "finite. Try other values, or leave that point out with dataset.sel."
        )
    selected = dataset.isel((mean if of == "min" else -mean).argmin(chosen))
    return not_counted(selected, f"{', '.join(chosen)} chosen by {metric} of the private runs")


@checked
def paired_differences(
    dataset: xr.Dataset,
    metric: str | Metric,
    baseline: object = None,
    along: str | None = None,
    *,
    round: int | None = None,
    level: float = LEVEL,
) -> xr.Dataset:
    r"""Differences between methods, paired by seed, with simultaneous confidence intervals.

    With the same seed methods see the same data, network and noise, and this common variation
    cancels in their difference: the difference of their means or, for metrics on a dB scale, of
    ``10 log10`` of the means, which is their ratio in dB. Its standard error is that of the
    jackknife over the seeds (Tukey 1958; for plain means equal to that of the paired *t* test), its
    interval Student's *t* with ``runs - 1`` degrees of freedom. If methods have nothing in common
    the interval is still valid, only wider.

    Intervals and p-values are Bonferroni-corrected for all comparisons that are returned: the
    probability that any interval misses the true difference is at most ``1 - level``, for any
    dependence between the comparisons (Dunn, "Multiple comparisons among means", JASA 1961), such
    as the one through their common seeds and baseline. An interval excludes zero exactly if its
    p-value is below ``1 - level``. On ratios of skewed metrics (gamma, chi-squares over
    chi-squares, log-normal with a variance of one) eleven intervals of 95 % covered simultaneously
    in 94, 86, 83 % of studies of 5 seeds and in 96, 94, 94 % of studies of 100; intervals of the
    percentile bootstrap in 51, 46, 39 and 93, 91, 92 %.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metric: a variable of it, by name or as a :class:`~fljax.metrics.Metric`.
      baseline: the label of the method that all others are compared with; by default all pairs are
        compared.
      along: the axis with the methods; by default the only one besides seed and round.
      round: the round at which the metric is read; by default the last recorded round.
      level: simultaneous confidence level of all comparisons.

    Returns:
      ``difference`` (method minus baseline, or the first of a pair minus the second), ``low``,
      ``high``, ``p`` (two-sided p-value of the hypothesis of no difference), ``runs`` (the number
      of pairs of runs) and ``diverged`` (the number of pairs left out because one of the two
      diverged), over the methods, or ``pair``, and all other axes. The attributes hold the unit and
      the number of comparisons that the correction accounts for.

    Raises:
      ValueError: an unknown metric, axis or baseline, a round that was not recorded, or fewer than
        two methods.

    Example:
      >>> import xarray as xr
      >>> values = [[4.0, 8.0, 2.0, 6.0], [1.0, 2.0, 1.0, 2.0]]
      >>> data = xr.Dataset(
      ...     {"error": (("algorithm", "seed"), values, {"decibel": 1})},
      ...     coords={"algorithm": ["FedAvg", "PGFL"]},
      ... )
      >>> comparison = paired_differences(data, "error", baseline="FedAvg").sel(algorithm="PGFL")
      >>> [round(float(comparison[name]), 2) for name in ("difference", "low", "high")]
      [-5.23, -6.96, -3.5]
    """
    metric = named(dataset, metric)
    checks.interval("level", level, above=0, below=1)
    dataset = at_round(dataset, round)
    values = keep_finite(dataset, metric).drop_attrs()
    if "round" in values.dims:
        raise ValueError(f"nothing of {metric!r} is left to compare: axis 'round' is empty.")
    _check_unique(dataset, "seed")
    when = {"round": int(dataset["round"])} if "round" in dataset.coords else {}
    values = values.reset_coords(drop=True)
    along = _compared_axis(values, along)
    lost = dataset["diverged"] > 0 if "diverged" in dataset else xr.zeros_like(values, bool)
    lost = lost.reset_coords(drop=True).broadcast_like(values)
    if baseline is None:
        pairs = list(combinations(range(values.sizes[along]), 2))
        labels = [str(label) for label in values[along].values]
        names = [f"{labels[i]} - {labels[j]}" for i, j in pairs]
        first, second = (
            xr.DataArray(list(side), {"pair": names}, "pair") for side in zip(*pairs, strict=True)
        )
        left, right = (
            values.isel({along: side}).drop_vars(along, errors="ignore") for side in (first, second)
        )
        lost = lost.isel({along: first}) | lost.isel({along: second})
        lost = lost.drop_vars(along, errors="ignore")
    else:
        position = _position_of(values[along].values, baseline)
        methods = np.delete(np.arange(values.sizes[along]), position)
        left = values.isel({along: methods})
        right = values.isel({along: position}, drop=True)
        lost = lost.isel({along: methods}) | lost.isel({along: position}, drop=True)
    decibel = is_decibel(dataset, metric)
    unit = "dB" if decibel else dataset[metric].attrs.get("units", "1")
    difference, error, runs = _jackknife(left, right, decibels if decibel else lambda mean: mean)
    count = difference.size
    free = (runs - 1).clip(min=1)
    half = error * free.copy(data=stats.t.ppf(1 - (1 - level) / (2 * count), free))
    with np.errstate(invalid="ignore", divide="ignore"):
        statistic = abs(difference / error).where(difference != 0, 0.0)  # equal in all: 0/0
    tail = xr.apply_ufunc(stats.t.sf, statistic, free)
    least, greatest = (-np.inf, np.inf) if decibel else _bounds(dataset, metric)
    spread = greatest - least
    p = (2 * count * tail).clip(max=1).where(runs > 1)
    return xr.Dataset(
        {
            "difference": difference,
            "low": (difference - half).clip(min=-spread),
            "high": (difference + half).clip(max=spread),
            "p": p,
            "runs": runs,
            "diverged": lost.sum("seed"),
        },
        attrs={
            "unit": unit,
            **when,
            "level": level,
            "comparisons": count,
            "correction": "Bonferroni",
        },
    )


@checked
def ranks(
    dataset: xr.Dataset,
    metric: str | Metric,
    along: str | None = None,
    *,
    round: int | None = None,
    level: float = LEVEL,
) -> xr.Dataset:
    r"""Ranks of methods, the best mean first, with simultaneous confidence intervals.

    The best mean is the least one, or the greatest of a metric that is better the larger it is. The
    rank of a method among :math:`A` is at least one more than the number of methods that are
    significantly better, and at most :math:`A` less the number of methods that are significantly
    worse, both by the intervals of :func:`paired_differences` for all pairs (Al Mohamad, van Zwet,
    Goeman & Solari, "Simultaneous confidence intervals for ranks with application to ranking
    institutions", Biometrics 2022). All intervals hold together with a probability of at least
    ``level``.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metric: a variable of it, by name or as a :class:`~fljax.metrics.Metric`.
      along: the axis with the methods; by default the only one besides seed and round.
      round: the round at which the metric is read; by default the last recorded round.
      level: simultaneous confidence level.

    Returns:
      ``rank`` (by the means; methods with equal means share one), ``low`` and ``high``, over the
      methods and all other axes; NaN where no run of a method is finite.

    Raises:
      ValueError: as :func:`paired_differences`.

    Example:
      >>> import xarray as xr
      >>> values = [[4.0, 8.0, 2.0, 6.0], [1.0, 2.0, 1.0, 2.0], [1.1, 1.8, 1.1, 1.9]]
      >>> data = xr.Dataset({"error": (("algorithm", "seed"), values, {"decibel": 1})})
      >>> ranks(data, "error").to_dataframe().astype(int).values.tolist()
      [[3, 3, 3], [2, 1, 2], [1, 1, 2]]
    """
    metric = named(dataset, metric)
    pairs = paired_differences(dataset, metric, along=along, round=round, level=level)
    if larger_is_better(dataset, metric):
        ends = {"difference": -pairs["difference"], "low": -pairs["high"], "high": -pairs["low"]}
        pairs = pairs.assign(ends)
    values = keep_finite(at_round(dataset, round), metric).reset_coords(drop=True)
    along = _compared_axis(values, along)
    count = values.sizes[along]
    first, second = (
        xr.DataArray(np.equal.outer(side, np.arange(count)), dims=("pair", along)).astype(int)
        for side in zip(*combinations(range(count), 2), strict=True)
    )

    def above(high: xr.DataArray, low: xr.DataArray) -> xr.DataArray:
        """The number of pairs in which a method is worse than the other one."""
        high, low = ((part > 0).drop_vars("pair").astype(int) for part in (high, low))
        return (high * first).sum("pair") + (low * second).sum("pair")

    order = xr.Dataset(
        {
            "rank": 1 + above(pairs["difference"], -pairs["difference"]),
            "low": 1 + above(pairs["low"], -pairs["high"]),
            "high": count - above(-pairs["high"], pairs["low"]),
        },
        coords={along: values[along]} if along in values.coords else None,
        attrs={"level": level},
    )
    return order.where(values.notnull().any("seed"))


@checked
def until(
    dataset: xr.Dataset,
    metric: str | Metric,
    target: float,
    of: str | Mapping[str, float] = "round",
    *,
    window: int = 1,
) -> xr.DataArray:
    """The cost of each run until a metric is at or below a target for the first time; at or above
    it, if the metric is better the larger it is.

    A noisy curve touches a target long before it stays there: with a ``window`` the mean over the
    last records (of the values, not of their dB) must be at the target, and the cost is that of the
    last record of the window.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metric: a variable of it, by name or as a :class:`~fljax.metrics.Metric`.
      target: the target value of the metric.
      of: the quantity to count: ``"round"``, the communication (``"bits"``, ``"messages"``, ...),
        the time of runs on a clock (``"seconds"``), or another variable that has accumulated until
        each round; or the price of each of several such quantities, whose sum is then the cost.
      window: number of records in the trailing mean; 1 is the first touch.

    Returns:
      The cost over all axes but the round: infinite where a run never reaches the target or
      diverges, NaN where its cost is unknown, or where it has not reached the target and its later
      rounds are not there: of an unfinished run, or where studies of other seeds or rounds were
      joined.

    Raises:
      ValueError: an unknown metric or cost, seconds of runs without a clock, a negative price,
        results without a round axis, or a window of more records than there are.

    Example:
      >>> import xarray as xr
      >>> values = [[4.0, 2.0, 1.0], [4.0, 3.0, 2.5]]
      >>> data = xr.Dataset({"error": (("seed", "round"), values)}, {"round": [10, 20, 30]})
      >>> until(data, "error", target=2.0).values.tolist()
      [20.0, inf]
      >>> until(data, "error", target=2.0, window=2).values.tolist()  # means 3 and 1.5
      [30.0, inf]
    """
    checks.interval("target", target)
    checks.count("window", window)
    values = keep_finite(dataset, metric)
    costs = [str(name) for name, variable in dataset.variables.items() if "round" in variable.dims]
    if not costs or not values.sizes.get("round"):
        raise ValueError("nothing is reached in results of a single round; give those of all.")
    prices = {of: 1.0} if isinstance(of, str) else of
    if not prices:
        raise ValueError("of={} counts nothing; give the price of at least one quantity.")
    for name, price in prices.items():
        if name == "seconds":
            seconds_of(dataset)
        checks.choice("cost", name, costs)
        checks.interval(f"price of {name}", price, at_least=0)
    parts = (price * dataset[name].astype(np.float64) for name, price in prices.items())
    so_far = functools.reduce(operator.add, parts)
    if window > values.sizes["round"]:
        raise ValueError(
            f"window={window} is longer than a run, which has {values.sizes['round']} records."
        )
    if window > 1:
        values = xr.apply_ufunc(
            functools.partial(_trailing_mean, window=window),
            values,
            input_core_dims=[["round"]],
            output_core_dims=[["round"]],
            vectorize=True,
        )
    at_target = values >= target if larger_is_better(dataset, metric) else values <= target
    cost = so_far.where(at_target).min("round").fillna(np.inf)
    cost = cost.where(so_far.notnull().any("round"))
    over = _present(dataset, named(dataset, metric)).isel(round=-1, drop=True)
    if "diverged" in dataset:
        over = over | (dataset["diverged"] > 0)
    cost = cost.where(np.isfinite(cost) | over)
    if "done" in dataset:
        cost = cost.where(dataset["done"])
    long_name = dataset[named(dataset, metric)].attrs.get("long_name", metric)
    what = "rounds" if of == "round" else of if isinstance(of, str) else "cost"
    return cost.assign_attrs(long_name=f"{what} until {long_name} is {target:g}")


def _trailing_mean(curve: np.ndarray, window: int) -> np.ndarray:
    """The mean of each record of ``[rounds]`` and those before it, ``window`` in all; NaN until
    there are as many. Rounds without a record, as in studies of other records that were joined,
    are not part of a window.
    """
    result = np.full(curve.shape, np.nan)
    recorded = np.flatnonzero(~np.isnan(curve))
    if len(recorded) >= window:
        windows = np.lib.stride_tricks.sliding_window_view(curve[recorded], window)
        result[recorded[window - 1 :]] = windows.mean(axis=-1, dtype=np.float64)
    return result


def _present(dataset: xr.Dataset, metric: str) -> xr.DataArray:
    """Whether a dataset has a round of a run: elsewhere no variable has a value, as where studies
    of other seeds or rounds were joined.
    """
    if "diverged" not in dataset:
        return _up_to_last(dataset[metric].notnull())
    runs = dataset["diverged"].notnull()
    parts = [
        variable.notnull().any([d for d in variable.dims if d not in (*runs.dims, "round")])
        for variable in dataset.data_vars.values()
        if "round" in variable.dims
    ]
    return runs & _up_to_last(functools.reduce(operator.or_, parts)) if parts else runs


def _up_to_last(present: xr.DataArray) -> xr.DataArray:
    """All rounds of each run up to its last one."""
    if "round" not in present.dims:
        return present
    back = {"round": slice(None, None, -1)}
    return present.isel(back).cumsum("round").isel(back) > 0


def _check_last_rounds(present: xr.DataArray, now: xr.DataArray, round: int) -> None:
    """Raise ``ValueError`` at points whose runs all end before this round."""
    ended = present.any({"seed", "round"} & {*present.dims}) & ~now.any({"seed"} & {*now.dims})
    if not ended.any():
        return
    last = present["round"].where(present).max({"seed", "round"} & {*present.dims})
    where = dict(zip(ended.dims, np.argwhere(ended.values)[0], strict=True))
    points = ", ".join(f"{dim}={ended[dim].values[index]}" for dim, index in where.items())
    raise ValueError(
        f"at round {round} no run is there of {points}: its runs end at round "
        f"{int(last.isel(where))}, as studies of other rounds were joined. Compare at a round that "
        f"all have, round={int(last.min())}."
    )


@checked
def profile(cost: xr.DataArray, along: str = "algorithm") -> xr.DataArray:
    r"""Performance profiles: how often each method is within a factor of the best.

    .. math:: \rho_a(\tau)=\frac1I\bigl|\{i: c_{a,i}\le\tau\min_b c_{b,i}\}\bigr|

    for the costs :math:`c_{a,i}` of method :math:`a` on instance :math:`i` out of :math:`I` (Dolan
    & Moré, "Benchmarking optimization software with performance profiles", Mathematical Programming
    2002). At the factor 1 it is the share of instances on which a method is best, ties included; in
    the limit it is the share that the method solves at all.

    Args:
      cost: non-negative costs of every method and instance, such as returned by :func:`until`;
        infinite where a method does not solve an instance, NaN where it is not known whether it
        does: such an instance is none of the method's. All axes besides the methods (seeds,
        problems) are instances.
      along: the axis with the methods.

    Returns:
      The share of instances over the methods and ``factor``, at those factors :math:`\tau` at which
      any profile increases: between them profiles are constant.

    Raises:
      ValueError: an unknown axis, no instances, negative costs.

    Example:
      >>> import xarray as xr
      >>> cost = xr.DataArray([[10.0, 20.0], [30.0, 10.0]], dims=("algorithm", "seed"))
      >>> shares = profile(cost)
      >>> shares.factor.values.tolist(), shares.values.tolist()
      ([1.0, 2.0, 3.0], [[0.5, 1.0, 1.0], [0.5, 0.5, 1.0]])
    """
    checks.choice("axis", along, map(str, cost.dims))
    costs = np.moveaxis(cost.values, cost.dims.index(along), 0).reshape(cost.sizes[along], -1)
    if not costs.size:
        raise ValueError(f"costs of no method or no instance, of shape {cost.shape}.")
    if (costs < 0).any():
        raise ValueError(f"costs must not be negative, as ratios are taken, got {costs.min():g}.")
    defined = ~np.isnan(costs)
    least = np.where(defined, costs, np.inf).min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(costs == least, 1.0, costs / least)
    ratios[~np.isfinite(costs)] = np.inf
    factors = np.unique([1.0, *ratios[np.isfinite(ratios)]])
    within = (ratios[:, None] <= factors[:, None]).sum(axis=-1)
    with np.errstate(invalid="ignore"):
        shares = within / defined.sum(axis=-1)[:, None]
    coords = {along: cost[along]} if along in cost.coords else {}
    return xr.DataArray(shares, {**coords, "factor": factors}, (along, "factor"))


def _compared_axis(values: xr.DataArray, axis: str | None) -> str:
    """The axis whose values are compared.

    Raises:
      ValueError: an unknown axis, no unique choice of the axis, fewer than two values.
    """
    axes = [str(dim) for dim in values.dims if dim not in ("seed", "round")]
    if axis is None:
        several = [dim for dim in axes if values.sizes[dim] > 1]
        if len(several) != 1:
            raise ValueError(f"say what is compared: along= one of the axes {axes}.")
        axis = several[0]
    checks.choice("axis", axis, axes)
    if values.sizes[axis] < 2:
        raise ValueError(f"axis {axis!r} has a single value; there is nothing to compare.")
    return axis


def _position_of(labels: np.ndarray, baseline: object) -> int:
    """The position of a label.

    Raises:
      ValueError: an unknown label.
    """
    choices = labels.tolist()
    if isinstance(baseline, str) and all(isinstance(label, str) for label in choices):
        checks.choice("baseline", baseline, choices)
    if not isinstance(baseline, str | numbers.Number | np.generic) or baseline not in choices:
        raise ValueError(
            f"baseline must be one of {', '.join(map(str, choices))}, got {checks.shown(baseline)}."
        )
    return choices.index(baseline)


def _jackknife(
    left: xr.DataArray, right: xr.DataArray, scale: Callable[[xr.DataArray], xr.DataArray]
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """The difference of two scaled means over paired seeds, its standard error, the number of
    pairs.
    """
    paired = left.notnull() & right.notnull()
    runs = paired.sum("seed")
    sides = (left.where(paired), right.where(paired))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [scale(side.mean("seed")) for side in sides]
        less_one = [scale((side.sum("seed") - side) / (runs - 1)) for side in sides]
        difference = less_one[0] - less_one[1]
        squares = ((difference - difference.mean("seed")) ** 2).where(paired, 0.0)
        error = ((runs - 1) / runs * squares.sum("seed", skipna=False)) ** 0.5
    return means[0] - means[1], error.where(runs > 1), runs


def bootstrap(
    statistic: Callable[..., np.ndarray],
    *samples: np.ndarray,
    level: float = LEVEL,
    resamples: int = 2000,
    rng: int = 0,
) -> tuple[float, float, float]:
    """A statistic of means over seeds, with its paired-bootstrap percentile interval.

    Seeds are resampled jointly for all samples: with common random numbers the variation that two
    algorithms have in common on a seed cancels in their ratio and in the interval. It
    accepts any number of means, also of curves; for methods at one round
    :func:`paired_differences` has better coverage.

    Args:
      statistic: function of the samples' means, ``[B, ...]`` each, that returns ``[B]``.
      samples: ``[S, ...]`` each, paired along the first axis. A seed with a NaN in any of them (a
        diverged run) is left out of all.
      level: confidence level.
      resamples: ``B``.
      rng: seed of the resampling; fixed, so that a verdict is reproducible.

    Returns:
      The statistic and the two ends of its interval (NaN with fewer than two seeds).

    Raises:
      TypeError: a statistic that is not callable, or a sample that is not numeric.
      ValueError: no samples, or samples with different numbers of seeds.

    Example:
      >>> worse, better = np.array([2.0, 4.0, 8.0]), np.array([1.0, 2.0, 4.0])
      >>> bootstrap(lambda a, b: a / b, worse, better)  # paired: no uncertainty at all
      (2.0, 2.0, 2.0)
    """
    check("statistic", statistic, rule_of(Callable))
    check("level", level, rule_of(float))
    checks.interval("level", level, above=0, below=1)
    checks.count("resamples", resamples)
    checks.count("rng", rng, at_least=0)
    arrays = [np.asarray(checks.array("a sample", sample), np.float64) for sample in samples]
    sizes = {a.shape[:1] for a in arrays}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            "samples must be one or more arrays of as many seeds each, got shapes "
            f"{[a.shape for a in arrays]}."
        )
    complete = np.all([np.isfinite(a).reshape(len(a), -1).all(1) for a in arrays], axis=0)
    arrays = [a[complete] for a in arrays]
    seeds = int(complete.sum())
    if seeds == 0:
        return float("nan"), float("nan"), float("nan")
    value = float(statistic(*(a.mean(0, keepdims=True) for a in arrays))[0])
    if seeds == 1:
        return value, float("nan"), float("nan")
    weights = np.random.default_rng(rng).multinomial(seeds, np.full(seeds, 1 / seeds), resamples)
    means = (np.tensordot(weights / seeds, a, axes=(1, 0)) for a in arrays)
    low, high = np.percentile(statistic(*means), [50 * (1 - level), 50 * (1 + level)])
    return value, float(low), float(high)


def decibels(value: object) -> Any:
    """Return ``10 log10`` of a non-negative quantity.

    Apply it to an average; never average values in dB. For results of a study the attributes then
    record the unit, so that plots and tables do not convert them again.

    Raises:
      TypeError: neither a number nor an array of real numbers.
      ValueError: an array of results that is in dB already.

    Example:
      >>> import xarray as xr
      >>> error = xr.DataArray([1.0, 0.1], attrs={"units": "1", "decibel": 1})
      >>> decibels(error).values.tolist(), decibels(error).attrs
      ([0.0, -10.0], {'units': 'dB', 'decibel': 0})
    """
    if isinstance(value, xr.Dataset):
        return value.assign({name: decibels(array) for name, array in value.data_vars.items()})
    if not isinstance(value, xr.DataArray):
        return _decibels(checks.array("value", value))
    if value.attrs.get("units") == "dB":
        raise ValueError(
            f"{value.name or 'the array'} is in dB already; average the quantity itself, then "
            "convert once."
        )
    attrs = {name: attr for name, attr in value.attrs.items() if name not in BOUNDS}
    unit = {"units": "dB"} | ({"decibel": 0} if "decibel" in attrs else {})
    level = _decibels(value)
    level.attrs = attrs | unit
    return level


def _decibels(value: Array | np.ndarray | xr.DataArray) -> Any:
    with np.errstate(divide="ignore"):
        return 10 * np.log10(value)
