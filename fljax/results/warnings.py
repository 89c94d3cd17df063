"""Warnings about the results of runs: divergence, undefined metrics, broken assumptions."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fljax.metrics.quantities import QUANTITIES
from fljax.privacy.promises import broken, same

if TYPE_CHECKING:
    import xarray


class DivergenceWarning(UserWarning):
    """Some runs became non-finite, or their errors grow without end."""


class MetricWarning(UserWarning):
    """A metric is NaN or infinite in runs whose models are finite."""


class AssumptionWarning(UserWarning):
    """An assumption behind a printed guarantee did not hold in some runs."""


#: By how much an error grows from the first record to the last, and from the middle one to the
#: last, in a run that is on its way to infinity. The second tells it from a run that starts at a
#: solution and then stays at the level of its noise.
GROWTH = 1e8
LATE_GROWTH = 1e3

#: What a user may do about runs that diverge.
REMEDY = "A smaller step, a larger penalty or a larger budget usually mends it."

#: The simulations behind results, or their shapes, and at which grid points each is.
Built = Sequence[tuple[Any, Any]]


def warn(dataset: "xarray.Dataset", built: Built = ()) -> None:
    """Warn of results that a reader may misunderstand, by the table :data:`CHECKS`.

    Args:
      dataset: the results.
      built: the simulations behind them, or their shapes, and at which grid points each is: a
        ``DataArray`` or ``True``; without them metrics and silent runs are not checked.
    """
    for category, text in reasons(dataset, built):
        warnings.warn(text, category, stacklevel=3)


def reasons(dataset: "xarray.Dataset", built: Built = ()) -> Iterator[tuple[type[Warning], str]]:
    """The class and the text of each warning of :func:`warn`."""
    if "diverged" not in dataset:
        return  # no run has finished
    for category, check in CHECKS:
        if text := check(dataset, built):
            yield category, text


def _runs(dataset: "xarray.Dataset") -> int:
    """The number of runs that are there."""
    return int(np.isfinite(dataset["diverged"].values).sum())


def _count_converged(dataset: "xarray.Dataset", runs: Any, points: object) -> int:
    """The number of these runs, at some grid points, that are done and did not diverge."""
    converged = (dataset["diverged"] == 0) & dataset.get("done", True)
    return int((runs & converged & points).sum())


def _diverged(dataset: "xarray.Dataset", built: Built) -> str:
    rounds = dataset["diverged"].values
    count = int((rounds > 0).sum())
    if not count:
        return ""
    return (
        f"{count} of {_runs(dataset)} runs diverged (first at round {rounds[rounds > 0].min()}); "
        f"they are kept, marked in `diverged`, and left out of plotted means. {REMEDY}"
    )


def _growing(dataset: "xarray.Dataset", built: Built) -> str:
    names = dict.fromkeys(metric.name for simulation, _ in built for metric in simulation.metrics)
    counts = Counter()
    for name in names:
        values = dataset[name]
        if not values.attrs.get("decibel") or values.sizes["round"] < 3:
            continue
        records = np.moveaxis(values.values, values.dims.index("round"), 0)
        first, middle, last = records[[0, len(records) // 2, -1]]
        with np.errstate(invalid="ignore", over="ignore"):  # in runs that became infinite
            grows = (first > 0) & (last > GROWTH * first) & (last > LATE_GROWTH * middle)
        if grows.any():  # rarely; so that xarray need not be asked
            in_run = values.isel(round=-1, drop=True).copy(data=grows)
            in_run = in_run.any(set(in_run.dims) - set(dataset["diverged"].dims))
            counts[name] = int((in_run & (dataset["diverged"] == 0)).sum())
    growing = [f"{name!r} in {count}" for name, count in counts.items() if count]
    if not growing:
        return ""
    return (
        f"errors grow without end, though they are still finite: {', '.join(growing)} of "
        f"{_runs(dataset)} runs, which are part of every mean and widen its interval. {REMEDY}"
    )


def _undefined_metrics(dataset: "xarray.Dataset", built: Built) -> str:
    counts = Counter()
    for simulation, points in built:
        for metric in simulation.metrics:
            if np.isfinite(dataset[metric.name].values).all():
                continue  # the usual case, checked without xarray in a tenth of the time
            if any(QUANTITIES[name].of_round for name in metric.needs):
                continue  # NaN in rounds without participants
            finite = np.isfinite(dataset[metric.name]).all(("round", *metric.dims))
            counts[metric] += _count_converged(dataset, ~finite, points)
    metrics = [metric for metric, count in counts.items() if count]
    if not metrics:
        return ""
    optimum = ""
    if any("optimum" in metric.needs for metric in metrics):
        optimum = (
            "A centralized optimum that is zero, or that does not exist (separable data without "
            "a regularizer), makes errors so. "
        )
    return (
        "metrics are NaN or infinite in runs whose models are finite: "
        f"{', '.join(f'{metric.name!r} in {counts[metric]}' for metric in metrics)} of "
        f"{_runs(dataset)} runs. {optimum}Look for a "
        "division by zero or an overflow."
    )


def _without_messages(dataset: "xarray.Dataset", built: Built) -> str:
    count = 0
    for simulation, points in built:
        sends = simulation.algorithm.message_size_of(simulation.problem)
        if sends and not (dataset["messages"].values[..., -1] > 0).all():
            silent = dataset["messages"].isel(round=-1) == 0
            count += _count_converged(dataset, silent, points)
    if not count:
        return ""
    return (
        f"no message was sent in {count} of {_runs(dataset)} runs: nobody took part in any "
        "round, or nobody has a neighbor. Look at participation=, the data's arrivals and "
        "the network."
    )


def _none_in_time(dataset: "xarray.Dataset", built: Built) -> str:
    if "in_time" not in dataset or not (late := dataset["in_time"] == 0).any():
        return ""
    fastest = ""
    if "fastest_seconds" in dataset:
        fastest = f": the fastest client takes {float(dataset['fastest_seconds'].min()):.3g} s"
    return (
        f"no message arrived in time in {int(late.sum())} of {_runs(dataset)} runs{fastest}. Give "
        "the clock more time, or devices that are faster, available or do not fail."
    )


def _stood_still(dataset: "xarray.Dataset", built: Built) -> str:
    if "stood_still" not in dataset or not (dataset["stood_still"] == 1).any():
        return ""
    return (
        f"the intervals in which clients are available ended before "
        f"{int((dataset['stood_still'] == 1).sum())} of {_runs(dataset)} runs, which then stood "
        "still; give Intervals a period=, or run fewer rounds."
    )


def _miscounted(dataset: "xarray.Dataset", built: Built) -> str:
    if "miscounted" not in dataset or not (dataset["miscounted"] == 1).any():
        return ""
    return (
        "messages had other lengths than the algorithm's method `exchanged` says, by which the "
        "clock determined when they arrive: the seconds are wrong. Let it return the numbers that "
        "a participant sends and receives in a round, or None if they vary."
    )


def _nominal(dataset: "xarray.Dataset", built: Built) -> str:
    if "nominal" not in dataset or not (count := int(np.nansum(dataset["nominal"].values))):
        return ""
    return (
        f"the privacy figures of {count} of {_runs(dataset)} private runs are "
        f"nominal, not a guarantee: {' '.join(broken(dataset).values())}"
    )


def _unusable_samples(dataset: "xarray.Dataset", built: Built) -> str:
    if "unusable_samples" not in dataset or not (dataset["unusable_samples"].values > 0).any():
        return ""
    return (
        f"up to {int(dataset['unusable_samples'].max())} samples have features that are not "
        "finite once mapped, and count as zero. Look at the feature map."
    )


def _clipped(dataset: "xarray.Dataset", built: Built) -> str:
    if "clipped" not in dataset or not (dataset["clipped"].values > 0).any():
        return ""
    return (
        f"up to {float(dataset['clipped'].max()):.2g} of the numbers in a round's masked "
        "messages were beyond the range of the masks and were clipped to it, so that sums are "
        "not those of the messages. Take a larger fljax.link.SecureAggregation(range=)."
    )


def _large_steps(dataset: "xarray.Dataset", built: Built) -> str:
    if "step_bound" not in dataset:
        return ""
    first, bound = same(dataset, "first_step", "step_bound")
    # Also where the bound is not a number, but not for algorithms of the grid that have no bound.
    above = ~np.isnan(first) & ~(first <= bound)
    if not above.any():
        return ""
    sources = {simulation.algorithm.stability for simulation, _ in built} - {""}
    source = f" of the theory ({'; '.join(sorted(sources))})" if sources else " of the theory"
    return (
        f"{int(above.sum())} of {_runs(dataset)} runs have a step size up to "
        f"{float(np.max(first[above])):.3g}, above the bound "
        f"{float(np.fmin.reduce(bound[above])):.3g}{source}: "
        "their errors may not settle. Take a smaller step."
    )


def _other_objective(dataset: "xarray.Dataset", built: Built) -> str:
    if "same_objective" not in dataset or dataset["same_objective"].values.all():
        return ""
    other = ~dataset["same_objective"]
    return (
        f"in {int(other.sum())} of {other.size} runs errors are measured from the optimum of "
        "another objective than the algorithm minimizes, and will not vanish: its weighting= "
        "gives clients other weights than the problem has. Leave it out; for samples that "
        'count alike take problem.weighing("samples").'
    )


def _disconnected(dataset: "xarray.Dataset", built: Built) -> str:
    if "connected" not in dataset or dataset["connected"].values.all():
        return ""
    disconnected = dataset["connected"] == 0
    for simulation, points in built:
        if simulation.allow_disconnected:
            disconnected &= np.logical_not(points)
    if not disconnected.any():
        return ""
    return (
        f"{int(disconnected.sum())} of {_runs(dataset)} runs had a disconnected graph; their "
        "clients cannot agree. Use random_connected, a larger edge probability, or "
        "allow_disconnected=True where that is meant."
    )


#: For each warning its class, and a function from results to its text, empty without a reason.
CHECKS: tuple[tuple[type[Warning], Callable[["xarray.Dataset", Built], str]], ...] = (
    (DivergenceWarning, _diverged),
    (DivergenceWarning, _growing),
    (MetricWarning, _undefined_metrics),
    (AssumptionWarning, _without_messages),
    (AssumptionWarning, _none_in_time),
    (AssumptionWarning, _stood_still),
    (AssumptionWarning, _miscounted),
    (AssumptionWarning, _nominal),
    (AssumptionWarning, _unusable_samples),
    (AssumptionWarning, _clipped),
    (AssumptionWarning, _large_steps),
    (AssumptionWarning, _other_objective),
    (AssumptionWarning, _disconnected),
)
