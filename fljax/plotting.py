"""The plots a study ends with: print-readable, with units, seeds and the 95 % band on each.

Decibels are ``10 log10`` of the mean over seeds. Runs that diverged are left out of means, counted,
and shown in the legend. Nothing here changes matplotlib's global state.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from fljax import _check, statistics
from fljax.graphs import Graph
from fljax.metrics import Metric
from fljax.records import TRAFFIC

__all__ = ["HOUSE", "LOOKS", "draw_graph", "learning_curves", "style", "trade_off"]

#: Okabe and Ito's colours, which most colour-blind readers can tell apart (yellow left out: it
#: vanishes on paper), each with a line style and a marker of its own, for print without colour.
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#000000", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#E69F00", "linestyle": (0, (8, 2)), "marker": "P"},
    {"color": "#56B4E9", "linestyle": (0, (3, 2)), "marker": "X"},
)

HOUSE: dict[str, Any] = {
    "figure.figsize": (5.0, 3.6),
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.framealpha": 0.9,
    "legend.edgecolor": "none",
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.hashsalt": "fljax",
}


@contextmanager
def style(**changes: Any) -> Iterator[None]:
    """The house style for as long as the block lasts.

    Example:
      >>> with style(**{"font.size": 12}):
      ...     figure, axes = plt.subplots()
      >>> plt.close(figure)
    """
    rc: dict[Any, Any] = {**HOUSE, **changes}
    with mpl.rc_context(rc):
        yield


def learning_curves(
    dataset: xr.Dataset,
    metric: str | Metric = "normalized_error",
    hue: str | None = None,
    ax: Axes | None = None,
    *,
    x: str = "round",
    labels: Mapping[Any, str] | None = None,
    level: float = statistics.LEVEL,
    legend: bool = True,
) -> Axes:
    """A metric against the round, or the communication: mean over seeds with its band.

    Args:
      dataset: what :func:`fljax.sweep` returned.
      metric: a variable of it, by its name or as the metric it is.
      hue: the axis with one curve per value; by default the only one beside seed and round.
      ax: where to draw; by default a new figure.
      x: ``"round"``, or what was sent until then, the mean over seeds on a logarithmic axis:
        ``"bits"``, ``"bits_up"``, ``"bits_down"``, ``"scalars"`` or ``"messages"``.
      labels: names for the legend, by value of ``hue``; others are shown as they are.
      level: of confidence.
      legend: whether to draw one.

    Returns:
      The axes.

    Raises:
      ValueError: an unknown metric or axis, an axis left that is neither drawn nor selected, or
        nothing to plot.
    """
    _check.choice("x axis", x, ("round", *(n for n in TRAFFIC if n in dataset)))
    return _curves(dataset, metric, "round", hue, ax, labels, level, legend, x)


def trade_off(
    dataset: xr.Dataset,
    x: str = "budget",
    metric: str | Metric = "normalized_error",
    hue: str | None = None,
    ax: Axes | None = None,
    *,
    round: int | None = None,
    labels: Mapping[Any, str] | None = None,
    level: float = statistics.LEVEL,
    legend: bool = True,
) -> Axes:
    """A metric at one round against a swept number.

    The axis is logarithmic where the numbers are positive and span more than a factor of three.

    Args:
      dataset: what :func:`fljax.sweep` returned.
      x: the axis with the numbers; its ``long_name`` attribute, if any, labels it.
      metric: a variable of it, by its name or as the metric it is.
      hue: the axis with one curve per value; by default the only one beside seed and ``x``.
      ax: where to draw; by default a new figure.
      round: when to read the metric; by default the last recorded round.
      labels: names for the legend, by value of ``hue``.
      level: of confidence.
      legend: whether to draw one.

    Returns:
      The axes.

    Raises:
      ValueError: as for :func:`learning_curves`; a round that was not recorded.
    """
    return _curves(statistics.at_round(dataset, round), metric, x, hue, ax, labels, level, legend)


def _curves(dataset, metric, x, hue, ax, labels, level, legend, against=None) -> Axes:
    against, metric = against or x, statistics.named(dataset, metric)
    if empty := [str(dim) for dim, size in dataset[metric].sizes.items() if not size]:
        raise ValueError(f"nothing of {metric!r} is left to plot: axis {empty[0]!r} is empty.")
    if not statistics.keep_finite(dataset, metric).notnull().any():
        raise ValueError(
            f"nothing of {metric!r} can be plotted: no value is finite, or every run diverged."
        )
    free = [
        str(dim)
        for dim in dataset[metric].dims
        if dim not in (x, "seed") and (dataset.sizes[dim] > 1 or dim == hue)
    ]
    _check.choice("axis", x, map(str, dataset[metric].dims))
    if hue is None and len(free) == 1:
        hue = free[0]
    if hue is not None:
        _check.choice("axis", hue, map(str, dataset[metric].dims))
    left = [dim for dim in free if dim != hue]
    if left:
        raise ValueError(
            f"axes {left} of {metric!r} are neither drawn nor selected; choose one value with "
            f"dataset.sel({left[0]}=...)" + ("." if hue else " or draw one as hue.")
        )
    single = [d for d in dataset.dims if dataset.sizes[d] == 1 and d not in (x, "seed", hue)]
    dataset = dataset.squeeze(single, drop=True)
    numbers = statistics.summary(dataset, metric, level)
    if against == x:
        numbers = numbers.assign(at=numbers[x])
    else:
        numbers = numbers.assign(at=dataset[against].mean("seed"))
    with style():
        if ax is None:
            _, ax = plt.subplots()
        for position, value in enumerate([None] if hue is None else dataset[hue].values):
            one = numbers if hue is None else numbers.sel({hue: value})
            look = LOOKS[position % len(LOOKS)]
            label = None if value is None else (labels or {}).get(value, str(value))
            _line(ax, one, x, look, label, statistics.is_decibel(dataset, metric), numbers)
        _describe(ax, dataset, metric, against, numbers)
        if legend and (hue is not None or int(numbers["diverged"].sum())):
            ax.legend(loc="best")
    return ax


def _line(ax, one: xr.Dataset, x: str, look, label, decibel: bool, numbers: xr.Dataset) -> None:
    scale = statistics.decibels if decibel else np.asarray
    at, look = one["at"].values, dict(look)
    lost = int(one["diverged"].max())
    if lost:
        label = f"{label or 'mean'} ({lost}/{numbers.attrs['seeds']} diverged)"
    if x == "round":
        look["markevery"] = (len(at) // 20, max(1, len(at) // 8))
    low, high = scale(one["low"].values), scale(one["high"].values)
    ax.plot(at, scale(one["mean"].values), label=label, **look)
    ax.fill_between(at, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _describe(ax: Axes, dataset: xr.Dataset, metric: str, x: str, numbers: xr.Dataset) -> None:
    ax.set_ylabel(statistics.label_of(dataset, metric))
    name = dataset[x].attrs.get("long_name", "iteration" if x == "round" else x)
    unit = dataset[x].attrs.get("units", "1") if x in TRAFFIC else "1"
    ax.set_xlabel(name if unit in ("1", x) else f"{name} [{unit}]")
    if x in TRAFFIC:
        ax.set_xscale("log")
    elif x != "round" and dataset[x].min() > 0 and dataset[x].max() > 3 * dataset[x].min():
        ax.set_xscale("log")
        ax.set_xticks(dataset[x].values, [f"{v:g}" for v in dataset[x].values])
        ax.minorticks_off()
    seeds = numbers.attrs["seeds"]
    text = f"{seeds} seeds, mean and {100 * numbers.attrs['level']:.0f} % band"
    text = text if seeds > 1 else "1 seed, no band"
    if nominal := statistics.nominal(dataset):
        text = f"{nominal}\n{text}"  # beside the legend there is no room for one line
    ax.annotate(
        text,
        (0.015, 0.02),
        xycoords="axes fraction",
        fontsize=7.5,
        color="#555555",
    )


def draw_graph(graph: Graph, ax: Axes | None = None) -> Axes:
    """The network's nodes and links, laid out by networkx if it is installed, else on a circle.

    Args:
      graph: concrete (not traced).
      ax: where to draw; by default a new figure.
    """
    angle = 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    try:
        import networkx
    except ImportError:
        pass
    else:
        laid = networkx.kamada_kawai_layout(networkx.Graph(graph.edge_list()))
        for node, position in laid.items():  # isolated nodes stay on the circle
            place[node] = position
    with style():
        if ax is None:
            _, ax = plt.subplots(figsize=(4, 4))
        assert ax is not None
        ends = place[graph.edges]  # [E, 2, 2]
        ax.plot(*ends.transpose(2, 1, 0), color="#999999", lw=0.8, zorder=1)
        ax.scatter(*place.T, s=30, color=LOOKS[0]["color"], edgecolors="white", lw=0.6, zorder=2)
        ax.set_title(f"{graph.nodes} nodes, {len(graph.edges)} links")
        ax.set_aspect("equal")
        ax.set_axis_off()
    return ax
