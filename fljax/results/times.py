"""Records at times instead of rounds, for runs on a clock, whose rounds end at other times in each.

Nothing is known of a run between two records, so its value at a time is that of its last record at
or before it. A line between the two would use the later one, which the run had not reached yet.
"""

import numpy as np
import xarray as xr

from fljax._core import checks
from fljax._core.annotations import checked

#: Number of times at which curves over time are computed, more than a figure has room for.
POINTS = 400


def seconds_of(dataset: xr.Dataset) -> xr.DataArray:
    """The seconds of each record, in float64.

    Raises:
      ValueError: results of runs without a clock; a time that decreases from record to record.
    """
    if "seconds" not in dataset or "round" not in dataset["seconds"].dims:
        raise ValueError(
            "these results have no seconds, since their simulations have no clock; give one, "
            "Simulation(clock=fljax.clock.Synchronous(...)), or the time until each round, "
            'results.assign(seconds=2.5 * results["round"]).'
        )
    seconds = dataset["seconds"].astype(np.float64)
    if (seconds.diff("round") < 0).any():
        raise ValueError(
            "seconds must not decrease from record to record; give the time since the start of "
            'the run, seconds.cumsum("round"), and not that of each round.'
        )
    return seconds


@checked
def at_seconds(dataset: xr.Dataset, seconds: float) -> xr.Dataset:
    """Results of runs on a clock at one time: of each run its last record at or before it.

    The records of different runs may be of different rounds. Tables, intervals and comparisons of
    the result are at that time: ``fl.table(fl.statistics.at_seconds(results, 60.0))``.

    Args:
      dataset: the results of :func:`fljax.sweep` or :func:`fljax.run`, with the variable
        ``seconds``.
      seconds: since the start of the runs.

    Returns:
      The results without the ``round`` axis; ``seconds`` is a coordinate.

    Raises:
      ValueError: results without ``seconds``; a time before the first record of a run or after the
        end of one, as its value is not known then. Runs that diverged do not count.

    Example:
      >>> import xarray as xr
      >>> data = xr.Dataset(
      ...     {
      ...         "error": (("seed", "round"), [[4.0, 2.0, 1.0], [4.0, 3.0, 2.5]]),
      ...         "seconds": (("seed", "round"), [[1.0, 2.0, 3.0], [1.5, 3.0, 4.5]]),
      ...     },
      ...     {"round": [1, 2, 3]},
      ... )
      >>> at_seconds(data, 2.5).error.values.tolist()
      [2.0, 4.0]
    """
    checks.nonnegative("seconds", seconds)
    times = seconds_of(dataset)
    counted = times if "diverged" not in dataset else times.where(dataset["diverged"] == 0)
    first = counted.min("round")
    last = counted.max("round")
    if (first > seconds).any():
        run, start = _extreme(first, largest=True)
        raise ValueError(
            f"at {seconds:g} s {run} has no record yet, its first is at {start:g} s; take a later "
            "time, or record more often (record_every=)."
        )
    if (last < seconds).any():
        run, end = _extreme(last, largest=False)
        raise ValueError(
            f"at {seconds:g} s {run} is over, it ends at {end:g} s; take an earlier time, or more "
            "rounds."
        )
    order = xr.DataArray(np.arange(times.sizes["round"]), dims="round")
    position = order.where(times <= seconds, 0).max("round").astype(int)
    read = dataset.drop_vars("seconds").isel(round=position).drop_vars("round", errors="ignore")
    return read.assign_coords(seconds=((), float(seconds), dataset["seconds"].attrs))


def _extreme(times: xr.DataArray, largest: bool) -> tuple[str, float]:
    """The run with the largest or least time, in words, and that time."""
    flat = (np.nanargmax if largest else np.nanargmin)(times.values)
    labels = [
        f"{dim}={times[dim].values[i]}"
        for dim, i in zip(times.dims, np.unravel_index(flat, times.shape), strict=True)
    ]
    return ", ".join(labels) or "the run", float(times.values.flat[flat])


def of_runs(times: xr.DataArray, values: xr.DataArray) -> xr.DataArray:
    """The times of the runs that have any value of a metric, NaN for others, such as runs that
    diverged.
    """
    others = [dim for dim in values.dims if dim == "round" or dim not in times.dims]
    return times.where(values.notnull().any(others))


def differ(times: xr.DataArray) -> bool:
    """Whether seeds have their records at different times."""
    return "seed" in times.dims and bool((times.max("seed") > times.min("seed")).any())


def in_common(times: xr.DataArray, points: int = POINTS) -> xr.DataArray:
    """Times from when all seeds have a record to the end of the first: a later mean would be over
    the slowest seeds alone.

    Args:
      times: of records, with the axes ``seed`` and ``round``; NaN for runs that do not count.
      points: number of times.

    Returns:
      The times, with the axis ``point`` instead of both.

    Raises:
      ValueError: seeds without a time in common.
    """
    first = times.min("round")
    last = times.max("round")
    start = first.max("seed")
    end = last.min("seed")
    if (apart := start > end).any():
        late, begin = _extreme(first.where(apart), largest=True)
        early, over = _extreme(last.where(apart), largest=False)
        raise ValueError(
            f"seeds have no time in common: the first record of {late} is at {begin:g} s, and the "
            f"last of {early} at {over:g} s; record more often (record_every=), or run longer."
        )
    # The ends are exact, so that the last record of the first seed that ends is a part.
    share = xr.DataArray(np.linspace(0, 1, points), dims="point")
    return start * (1 - share) + end * share


def read(values: xr.DataArray, times: xr.DataArray, at: xr.DataArray) -> xr.DataArray:
    """The values of all runs at common times, with the axis ``point``.

    Args:
      values: of a metric, with the axis ``round`` and others.
      times: of its records.
      at: the common times, with the axis ``point``.
    """
    return xr.apply_ufunc(
        _last_before,
        values,
        times,
        at,
        input_core_dims=[["round"], ["round"], ["point"]],
        output_core_dims=[["point"]],
        vectorize=True,
    )


def _last_before(values: np.ndarray, times: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The last of ``[T]`` values at or before each time; NaN where there is none. Records without
    a time, as where studies of other rounds were joined, do not count.
    """
    recorded = ~np.isnan(times)
    values = np.concatenate([[np.nan], values[recorded]])
    position = np.searchsorted(times[recorded], at, side="right")
    return np.where(np.isnan(at), np.nan, values[position])
