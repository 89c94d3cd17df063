"""Curves of a metric against the round, time, communication, or a swept number."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.metrics.definitions import Metric
from fljax.metrics.names import EFFORTS
from fljax.plotting import house_style
from fljax.plotting.house_style import NOTE, SMALL_TEXT, style
from fljax.results import statistics, times
from fljax.results.tables import shown

#: Largest number of legend entries that leaves room for the curves.
MAX_ENTRIES_INSIDE = 7

#: Size in inches of one of several panels, and of the margin around them.
PANEL = np.array([2.5, 2.1])
MARGIN = np.array([0.7, 0.8])

#: Attributes of the seconds until a round.
TIME_ATTRIBUTES = {"long_name": "time", "units": "s"}


@checked
def learning_curves(
    dataset: xr.Dataset,
    metric: str | Metric = "normalized_error",
    hue: str | None = None,
    ax: Axes | None = None,
    *,
    col: str | None = None,
    row: str | None = None,
    x: str = "round",
    seconds_per_round: float | xr.DataArray | None = None,
    labels: Mapping[Any, str] | None = None,
    level: float = statistics.LEVEL,
    legend: bool = True,
) -> Axes | Any:
    """Plot a metric against the round, time, or communication: mean over seeds with its band.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metric: a variable of it, by name or as a :class:`~fljax.metrics.Metric`.
      hue: the axis with one curve per value; by default the only one left besides seed, round and
        the panels' axes.
      ax: where to draw; by default a new figure.
      col: the axis with one column of panels per value, which share their axes and a legend.
      row: the axis with one row of panels per value.
      x: ``"round"``; the communication until each round, the mean over seeds on a logarithmic axis:
        ``"bits"``, ``"bits_up"``, ``"bits_down"``, ``"scalars"`` or ``"messages"``; in the same
        way ``"gradients"``, which :func:`fljax.compare` counts, and the energy of runs on a clock,
        ``"joules"``; or the time, ``"seconds"``. Where seeds have their records at different
        times, the mean and its band are over all of them at each time, the value of a seed being
        that of its last record; a curve begins when each seed has a record, and ends with the seed
        that ends first.
      seconds_per_round: the duration of a round, for ``x="seconds"`` of simulations without a
        clock: a number, or one for each value of some axes of the dataset. For rounds of different
        durations supply the time until each round as the variable ``"seconds"``:
        ``dataset.assign(seconds=0.2 * dataset["round"] + dataset["bits"] / 1e6)``.
      labels: names for the legend and titles, by value of an axis; others are shown as they are.
      level: confidence level.
      legend: whether to draw a legend.

    Returns:
      The axes; for panels, an array ``[rows, columns]`` of axes, which :func:`save` accepts as
      well.

    Raises:
      ValueError: an unknown metric or axis, an axis that is neither drawn nor selected, or one that
        is drawn twice; nothing to plot; seconds that are missing, not positive or given twice;
        seeds that have no time in common.

    Example:
      >>> import numpy as np, xarray as xr
      >>> error = np.geomspace(1, 0.01, 10) * np.ones((2, 3, 5, 1))
      >>> data = xr.Dataset(
      ...     {"error": (("algorithm", "budget", "seed", "round"), error)},
      ...     {"algorithm": ["ADMM", "gradient"], "budget": [0.1, 1, 10], "round": range(1, 11)},
      ... )
      >>> panels = learning_curves(data, "error", col="budget", x="seconds", seconds_per_round=0.5)
      >>> panels.shape, panels[0, 1].get_title(), panels[0, 1].figure.get_supxlabel()
      ((1, 3), 'budget = 1', 'time [s]')
      >>> plt.close(panels[0, 0].figure)
    """
    if x == "seconds":
        dataset = _with_seconds(dataset, seconds_per_round)
    elif seconds_per_round is not None:
        raise ValueError(f"seconds_per_round is for x='seconds', got x={x!r}; leave one out.")
    checks.choice("x axis", x, ("round", *(n for n in EFFORTS if n in dataset), "seconds"))
    if x == "joules" and not (dataset[x] > 0).any():
        raise ValueError(
            "devices of these runs use no energy; give Devices(watts=..., joules_per_bit=...)."
        )
    if x == "seconds":
        dataset = _over_time(dataset, drawable(dataset, metric))
    return _curves(dataset, metric, "round", (hue, col, row), ax, labels, level, legend, x)


@checked
def trade_off(
    dataset: xr.Dataset,
    x: str = "budget",
    metric: str | Metric = "normalized_error",
    hue: str | None = None,
    ax: Axes | None = None,
    *,
    col: str | None = None,
    row: str | None = None,
    round: int | None = None,
    against: str | None = None,
    labels: Mapping[Any, str] | None = None,
    level: float = statistics.LEVEL,
    legend: bool = True,
) -> Axes | Any:
    """Plot a metric at one round against a swept number, or against what it brings about.

    The axis is logarithmic if the numbers are positive and span more than a factor of three.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      x: the axis with the numbers; its ``long_name`` attribute, if any, labels it.
      metric: a variable of it, by name or as a :class:`~fljax.metrics.Metric`.
      hue: the axis with one curve per value; by default the only one left besides seed, ``x`` and
        the panels' axes.
      ax: where to draw; by default a new figure.
      col: the axis with one column of panels per value, see :func:`learning_curves`.
      row: the axis with one row of panels per value.
      round: the round at which the metric is read; by default the last recorded round.
      against: a number of each run whose mean over seeds is drawn in the place of the values of
        ``x``: ``trade_off(study, "concentration", "accuracy", against="label_distance")`` is the
        accuracy by how different the clients are.
      labels: names for the legend and titles, by value of an axis.
      level: confidence level.
      legend: whether to draw a legend.

    Returns:
      The axes; for panels, an array ``[rows, columns]`` of axes.

    Raises:
      ValueError: as for :func:`learning_curves`; a round that was not recorded, an axis without
        numbers, ``against`` something that is not one number of each run.

    Example:
      >>> import numpy as np, xarray as xr
      >>> error = np.array([1.0, 0.1, 0.01])[:, None] * np.ones((2, 3, 5))
      >>> data = xr.Dataset(
      ...     {"error": (("algorithm", "budget", "seed"), error)},
      ...     {"algorithm": ["ADMM", "gradient"], "budget": [0.1, 1, 10]},
      ... )
      >>> ax = trade_off(data, "budget", "error")
      >>> ax.get_xlabel(), ax.get_xscale(), [text.get_text() for text in ax.get_legend().texts]
      ('budget', 'log', ['ADMM', 'gradient'])
      >>> plt.close(ax.figure)
    """
    if x in dataset.coords and not np.issubdtype(dataset[x].dtype, np.number):
        values = ", ".join(map(str, dataset[x].values))
        raise ValueError(
            f"axis {x!r} must hold numbers, got {values}; draw it as hue, and swept numbers as x."
        )
    dataset = statistics.at_round(dataset, round)
    if against is not None:
        checks.choice("against", against, map(str, dataset.data_vars))
        if more := set(dataset[against].dims) - set(
            dataset[statistics.named(dataset, metric)].dims
        ):
            raise ValueError(
                f"against must be one number of each run, and {against!r} has the axes "
                f"{', '.join(sorted(map(str, more)))}; reduce them, or take another."
            )
    return _curves(dataset, metric, x, (hue, col, row), ax, labels, level, legend, against or x)


def _with_seconds(dataset: xr.Dataset, seconds: float | xr.DataArray | None) -> xr.Dataset:
    """Add the seconds until each round.

    Raises:
      ValueError: no duration of a round, or none for some value of an axis; one for runs on a
        clock.
    """
    if seconds is None:
        if "seconds" not in dataset:
            raise ValueError(
                "these runs have no clock: give one to the simulation, Simulation(clock="
                "fljax.clock.Synchronous(...)), or say how long a round takes, "
                "seconds_per_round=..., or the time until each, dataset.assign(seconds=...), over "
                "'round'."
            )
        return dataset.assign(seconds=times.seconds_of(dataset).assign_attrs(TIME_ATTRIBUTES))
    if "client_busy_seconds" in dataset:
        raise ValueError(
            "these runs have a clock, which says how long each round takes; leave "
            "seconds_per_round out."
        )
    checks.positive("seconds_per_round", getattr(seconds, "values", seconds))
    coordinates = {str(dim): dataset[dim] for dim in dataset.dims if dim != "round"}
    axes = (
        {str(dim): seconds[dim] for dim in seconds.dims}
        if isinstance(seconds, xr.DataArray)
        else {}
    )
    for dim, values in axes.items():
        checks.choice("axis of seconds_per_round", dim, coordinates)
        if not coordinates[dim].equals(values):
            order = ", ".join(map(shown, coordinates[dim].values))
            raise ValueError(f"seconds_per_round must be of each {dim}, in this order: {order}.")
    return dataset.assign(seconds=(dataset["round"] * seconds).assign_attrs(TIME_ATTRIBUTES))


def _over_time(dataset: xr.Dataset, metric: str) -> xr.Dataset:
    """A metric at times that all seeds have in common, where their records are at others."""
    values = statistics.keep_finite(dataset, metric)
    if "round" not in values.dims:
        return dataset
    counted = times.of_runs(dataset["seconds"], values)
    if not times.differ(counted):
        return dataset
    at = times.in_common(counted)
    drawn = {"seconds": at.assign_attrs(TIME_ATTRIBUTES)}
    drawn[metric] = times.read(values, dataset["seconds"], at).assign_attrs(dataset[metric].attrs)
    drawn = {name: variable.rename(point="round") for name, variable in drawn.items()}
    # Other variables, such as the privacy ledger, remain at their rounds.
    return dataset.drop_vars(drawn).rename(round="record").assign(drawn)


def _curves(dataset, metric, x, axes, ax, labels, level, legend, against) -> Axes | Any:
    """Draw curves over ``x`` in given axes, a new figure, or a figure of panels."""
    metric = drawable(dataset, metric)
    hue, col, row = _axes_of_panels(dataset, metric, x, *axes)
    if ax is not None and (col or row):
        raise ValueError("panels make a figure of their own; leave ax, or col and row, out.")
    needed = (x, "seed", hue, col, row)
    single = [dim for dim in dataset.dims if dataset.sizes[dim] == 1 and dim not in needed]
    dataset = dataset.squeeze(single, drop=True)
    numbers = statistics.summary(dataset, metric, level)
    at = dataset[against]
    numbers = numbers.assign(at=at.mean("seed") if "seed" in at.dims else at)
    title = statistics.with_unit(dataset[hue]) if hue else ""
    legend = legend and bool(hue or numbers["diverged"].any())
    with style():
        if col or row:
            panels = _panels(dataset, col, row, labels)
            panel: Axes
            for (r, c), panel in np.ndenumerate(panels):
                panel_values = numbers.isel({dim: i for dim, i in ((row, r), (col, c)) if dim})
                _panel(panel, dataset, metric, against, panel_values, numbers, x, hue, labels)
                panel.label_outer()
            figure = house_style.whole(panels[0, 0])
            size = {"fontsize": mpl.rcParams["axes.labelsize"]}
            figure.supxlabel(panels[-1, 0].get_xlabel(), **size)
            figure.supylabel(panels[-1, 0].get_ylabel(), **size)
            for ax in panels.flat:  # in narrow panels they would overlap
                ax.set(xlabel="", ylabel="")
            figure.suptitle("; ".join(_note(dataset, numbers)), **SMALL_TEXT)
            if legend:
                layout = {"loc": "outside right upper", "title": title}
                house_style.widen(
                    figure, house_style.listed(figure, *house_style.entries(panels[0, 0]), **layout)
                )
            return panels
        is_new = ax is None
        if ax is None:
            _, ax = plt.subplots()
        _panel(ax, dataset, metric, against, numbers, numbers, x, hue, labels)
        corner = {"xy": (0.015, 0.02), "xycoords": "axes fraction"}
        ax.annotate("\n".join(_note(dataset, numbers)), **corner, **SMALL_TEXT, gid=NOTE)
        if legend:
            outside = len(house_style.entries(ax)[0]) > MAX_ENTRIES_INSIDE
            drawn_legend = house_style.legend_of(ax, title, outside)
            if is_new and (outside or house_style.hides(ax, drawn_legend)):
                drawn_legend = house_style.legend_of(ax, title, outside=True)
                house_style.widen(house_style.whole(ax), drawn_legend)
    return ax


def _panels(
    dataset: xr.Dataset, col: str | None, row: str | None, labels: Mapping[Any, str] | None
) -> np.ndarray:
    """``[rows, columns]`` axes with common scales, titled with the values that they show."""
    rows, columns = (dataset.sizes[dim] if dim else 1 for dim in (row, col))
    size = MARGIN + PANEL * (columns, rows)
    _, panels = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    panel: Axes
    for (r, c), panel in np.ndenumerate(panels):
        values = {dim: dataset[dim].values[i] for dim, i in ((row, r), (col, c)) if dim}
        texts = [
            f"{house_style.name_of(dataset, d)} = {house_style.named(v, labels)}"
            for d, v in values.items()
        ]
        panel.set_title(", ".join(texts))
    return panels


def _panel(ax, dataset, metric, against, values, numbers, x, hue, labels) -> None:
    """Draw the curves of ``values`` part of all numbers, with the labels common to all panels."""
    decibel = statistics.is_decibel(dataset, metric)
    several = values is not numbers
    for position, value in enumerate(dataset[hue].values if hue else [None]):
        chosen = {hue: position} if hue else {}
        label = house_style.named(value, labels) if hue else None
        if lost := int(numbers.isel(chosen)["diverged"].max()):
            most = f"{'up to ' * several}{lost}/{numbers.attrs['seeds']}"
            label = f"{label or 'mean'} ({most} diverged)"
        _line(ax, values.isel(chosen), x, house_style.look_of(position), label, decibel)
    if not values["mean"].notnull().any():
        middle = {"xy": (0.5, 0.5), "xycoords": "axes fraction", "ha": "center"}
        ax.annotate("no finite value", **middle, **SMALL_TEXT)
    _describe(ax, dataset, metric, against)


def _axes_of_panels(dataset, metric, x, hue, col, row) -> tuple[str | None, str | None, str | None]:
    """The axes that curves and panels range over.

    Raises:
      ValueError: an axis that is unknown, used twice, or not used.
    """
    checks.choice("axis", x, map(str, dataset[metric].dims))
    axes = [str(dim) for dim in dataset[metric].dims if dim not in (x, "seed")]
    chosen = [dim for dim in (hue, col, row) if dim is not None]
    for dim in chosen:
        checks.choice("axis", dim, axes)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"hue, col and row must be different axes, got {', '.join(chosen)}.")
    left = [dim for dim in axes if dataset.sizes[dim] > 1 and dim not in chosen]
    if hue is None and len(left) == 1:
        hue = left.pop()
    if left:
        raise ValueError(
            f"axes {left} of {metric!r} are neither drawn nor selected; choose one value with "
            f"dataset.sel({left[0]}=...), or draw one as {'' if hue else 'hue, '}col or row."
        )
    return hue, col, row


def drawable(dataset: xr.Dataset, metric: str | Metric) -> str:
    """The name of a metric, after checking that it has values to draw.

    Raises:
      ValueError: a metric without values to draw.
    """
    name = statistics.named(dataset, metric)
    if empty := [str(dim) for dim, size in dataset[name].sizes.items() if not size]:
        raise ValueError(f"nothing of {name!r} is left to plot: axis {empty[0]!r} is empty.")
    if not statistics.keep_finite(dataset, name).notnull().any():
        raise ValueError(
            f"nothing of {name!r} can be plotted: no value is finite, or every run diverged."
        )
    return name


def _line(
    ax: Axes, interval: xr.Dataset, x: str, look: dict[str, Any], label: str | None, decibel: bool
):
    scale = statistics.decibels if decibel else np.asarray
    at = interval["at"].values
    if x == "round":
        look["markevery"] = (len(at) // 20, max(1, len(at) // 8))
    low = scale(interval["low"].values)
    high = scale(interval["high"].values)
    ax.plot(at, scale(interval["mean"].values), label=label, **look)
    ax.fill_between(at, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _describe(ax: Axes, dataset: xr.Dataset, metric: str, x: str) -> None:
    ax.set_ylabel(statistics.label_of(dataset, metric))
    ax.set_xlabel(statistics.with_unit(dataset[x]))
    if x in EFFORTS:
        ax.set_xscale("log")
    elif (
        x in dataset.coords
        and x not in ("round", "seconds")
        and 0 < 3 * dataset[x].min() < dataset[x].max()
    ):
        ax.set_xscale("log")
        ax.set_xticks(dataset[x].values, [*map(shown, dataset[x].values)])
        ax.minorticks_off()


def _note(dataset: xr.Dataset, numbers: xr.Dataset) -> list[str]:
    """Lines of the note: the remarks on privacy, if any, and the number of seeds."""
    seeds = numbers.attrs["seeds"]
    text = f"{seeds} seeds, mean and {100 * numbers.attrs['level']:.0f} % band"
    text = text if seeds > 1 else "1 seed, no band"
    return [*statistics.remarks(dataset), text]
