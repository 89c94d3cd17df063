"""The plots a study ends with: print-readable, with units, seeds and the 95 % band on each.

Decibels are ``10 log10`` of the mean over seeds. Runs that diverged are left out of means, counted,
and shown in the legend. Nothing here changes matplotlib's global state.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from fljax import _check, statistics
from fljax._arguments import checked
from fljax.graphs import Graph
from fljax.metrics import Metric
from fljax.records import TRAFFIC

__all__ = [
    "HOUSE",
    "LOOKS",
    "draw_graph",
    "draw_partition",
    "learning_curves",
    "network_map",
    "save",
    "style",
    "trade_off",
]

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

#: Numbers as colours: from dark to light, in hues that colour-blind readers can tell apart.
SCALE = mpl.colormaps["viridis"].with_extremes(bad="#cccccc")

#: Counts as colours: the more, the darker, and none on white paper.
SHADES = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.2, 1, 256)))

#: What the style is changed to, for all that is drawn within its block.
_changes: ContextVar[dict[str, Any]] = ContextVar("changes", default={})  # noqa: B039

#: The ``gid`` of the note in a corner that says how many seeds there are, to find it again.
NOTE = "fljax-note"

#: As many clients and classes as dots can be told apart of.
MOST_CLIENTS, MOST_CLASSES = 40, 20

#: The height of the bars above a partition, in that of its axes.
TOTALS = 0.14

#: Entries of a legend that leave room for the curves.
ROOM = 7

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
    "pdf.fonttype": 42,  # TrueType, which publishers ask for, instead of Type 3
    "ps.fonttype": 42,
    "svg.hashsalt": "fljax",
}


@contextmanager
def style(**changes: Any) -> Iterator[None]:
    """The house style for as long as the block lasts; changes hold in blocks within it, too.

    Example:
      >>> with style(**{"font.size": 12}):
      ...     figure, axes = plt.subplots()
      >>> plt.close(figure)
    """
    changes = _changes.get() | changes
    rc: dict[Any, Any] = HOUSE | changes
    token = _changes.set(changes)
    try:
        with mpl.rc_context(rc):
            yield
    finally:
        _changes.reset(token)


@checked
def save(picture: Axes | Figure, path: str | PathLike) -> Path:
    """Write a picture in the house style, as the file's name ends: ``.pdf``, ``.png``, ``.svg`` ...

    Text stays text, in fonts of type 42 (TrueType) in PDF and PostScript, which publishers ask for
    and ``savefig`` alone would not embed. The same picture, drawn again, gives the same file.

    Args:
      picture: what the functions here return, or its figure.
      path: of the file.

    Returns:
      The path.

    Raises:
      ValueError: an ending that matplotlib does not know.
      FileNotFoundError: no such folder.

    Example:
      >>> import tempfile, fljax as fl
      >>> ax = draw_graph(fl.graphs.ring(5))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save(ax, f"{folder}/network.pdf").name
      'network.pdf'
      >>> plt.close(ax.figure)
    """
    path, figure = Path(path), _whole(picture)
    known = figure.canvas.get_supported_filetypes()
    _check.choice("ending of a picture's file", path.suffix, [f".{name}" for name in known])
    dated = {".pdf": "CreationDate", ".svg": "Date", ".png": "Software"}
    metadata = {dated[path.suffix]: None} if path.suffix in dated else None
    with style():
        figure.savefig(path, metadata=metadata)
    return path


def _whole(picture: Axes | Figure) -> Figure:
    """The figure that it is, or is part of."""
    return cast(Figure, cast(Any, picture.figure).figure)  # of a part of a figure, the whole


@checked
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


@checked
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
      ValueError: as for :func:`learning_curves`; a round that was not recorded, an axis without
        numbers.
    """
    if x in dataset.coords and not np.issubdtype(dataset[x].dtype, np.number):
        known = ", ".join(map(str, dataset[x].values))
        raise ValueError(
            f"axis {x!r} must hold numbers, got {known}; draw it as hue, and swept numbers as x."
        )
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
        own = ax is None
        if ax is None:
            _, ax = plt.subplots()
        for position, value in enumerate([None] if hue is None else dataset[hue].values):
            one = numbers if hue is None else numbers.sel({hue: value})
            look = _look(position)
            label = None if value is None else (labels or {}).get(value, str(value))
            _line(ax, one, x, look, label, statistics.is_decibel(dataset, metric), numbers)
        _describe(ax, dataset, metric, against, numbers)
        if legend and (hue is not None or int(numbers["diverged"].sum())):
            title = "" if hue is None else dataset[hue].attrs.get("long_name", hue)
            beside = len(ax.get_legend_handles_labels()[0]) > ROOM
            found = _legend(ax, str(title), beside)
            if own and (beside or _hides(ax, found)):
                _legend(ax, str(title), beside=True)
                figure, width = _whole(ax), found.get_window_extent().width
                figure.set_figwidth(figure.get_figwidth() + width / figure.dpi)
    return ax


def _look(position: int) -> dict[str, Any]:
    """Of the curve at a position; from the eighth on with hollow markers and other lines."""
    lap, place = divmod(position, len(LOOKS))
    look = dict(LOOKS[place])
    if lap:
        look["linestyle"] = LOOKS[(place + lap) % len(LOOKS)]["linestyle"]
        look["markerfacecolor"] = "white"
    return look


def _legend(ax: Axes, title: str, beside: bool, **more: Any) -> Legend:
    """Where there is most room inside of the axes, or beside them."""
    corner = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    place = corner if beside else {"loc": "best"}
    return ax.legend(**place, title=title, alignment="left", **more)


def _hides(ax: Axes, legend: Legend) -> bool:
    """Whether a legend covers part of a curve, a band or a note."""
    _whole(ax).draw_without_rendering()
    box = legend.get_window_extent()
    drawn = [line.get_transform().transform_path(line.get_path()) for line in ax.lines]
    drawn += [ax.transData.transform_path(p) for band in ax.collections for p in band.get_paths()]
    notes = (note.get_window_extent() for note in ax.texts)
    return any(path.intersects_bbox(box) for path in drawn) or any(map(box.overlaps, notes))


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
        gid=NOTE,
    )


@checked
def draw_graph(
    graph: Graph, ax: Axes | None = None, *, values: Any = None, label: str = ""
) -> Axes:
    """The network's nodes and links, laid out by networkx if it is installed, else on a circle.

    Args:
      graph: concrete (not traced).
      ax: where to draw; by default a new figure.
      values: ``[K]``, a number of each node as its colour (grey where it is not finite), such as a
        metric of each client; of a ``DataArray`` its attributes label them.
      label: of the colours, with their unit.

    Returns:
      The axes.

    Raises:
      ValueError: values of another shape, none of them finite.

    Example:
      >>> import fljax as fl
      >>> ax = draw_graph(fl.graphs.ring(4), values=[0.1, 0.2, 0.4, 0.2], label="error of a client")
      >>> plt.close(ax.figure)
    """
    colours = _colours(values, graph.nodes)
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
            _, ax = plt.subplots(figsize=(4, 4) if values is None else (4.8, 4))
        assert ax is not None
        _network(ax, graph, place, colours, label or _named(values))
        ax.set_aspect("equal")
        ax.set_axis_off()
    return ax


@checked
def network_map(
    graph: Graph,
    coordinates: Any,
    values: Any = None,
    *,
    metric: str = "euclidean",
    ax: Axes | None = None,
    label: str = "",
    unit: str = "",
) -> Axes:
    """The network where it is: nodes at their places, links as thin lines, a number as the colour.

    On the Earth a degree of longitude is drawn as much shorter than one of latitude as it is in the
    middle of the map, so that shapes are right there; nothing is wrapped around the date line.

    Args:
      graph: concrete (not traced); it may fall apart.
      coordinates: ``[K, 2]``, positions ``(x, y)``; of ``metric="geodesic"`` latitude and longitude
        in degrees, as :func:`fljax.graphs.nearest_neighbors` takes them.
      values: ``[K]``, a number of each node as its colour (grey where it is not finite), such as
        its test error; of a ``DataArray`` its attributes label them.
      metric: ``"euclidean"`` or ``"geodesic"``.
      ax: where to draw; by default a new figure.
      label: of the colours, with their unit.
      unit: of positions ``(x, y)``, such as ``"km"``.

    Returns:
      The axes.

    Raises:
      ValueError: places or values of another number of nodes, places that are not finite or not on
        the Earth, values none of which is finite.

    Example:
      >>> import fljax as fl
      >>> towns = [(60.17, 24.94), (61.50, 23.76), (60.45, 22.27), (65.01, 25.47)]
      >>> graph = fl.graphs.star(4)
      >>> error = [0.9, 1.4, 1.1, 2.3]
      >>> ax = network_map(graph, towns, error, metric="geodesic", label="test error [K]")
      >>> ax.get_xlabel(), ax.get_ylabel()
      ('longitude [° E]', 'latitude [° N]')
      >>> plt.close(ax.figure)
    """
    _check.choice("metric", metric, ("euclidean", "geodesic"))
    place = np.asarray(_check.array("coordinates", coordinates, axes=2), np.float64)
    if place.shape != (graph.nodes, 2):
        raise ValueError(
            f"coordinates must be two of each of the {graph.nodes} nodes, got shape {place.shape}."
        )
    _check.finite("coordinates", place)
    names, ratio = [f"{axis} [{unit}]" if unit else axis for axis in "xy"], 1.0
    if metric == "geodesic":
        hint = "The latitude comes first, then the longitude."
        _check.interval("the latitude", place[:, 0], at_least=-90, at_most=90, hint=hint)
        _check.interval("the longitude", place[:, 1], at_least=-180, at_most=360, hint=hint)
        place, names = place[:, ::-1], ["longitude [° E]", "latitude [° N]"]
        middle = np.deg2rad((place[:, 1].min() + place[:, 1].max()) / 2)
        ratio = 1 / max(np.cos(middle), 0.05)  # at a pole the map would be a line
    colours = _colours(values, graph.nodes)
    low, high = place.min(axis=0), place.max(axis=0)
    wide, tall = np.maximum((high - low) * (1, ratio), 1e-9 * max(1.0, np.abs(place).max()))
    with style():
        if ax is None:
            width = np.clip(4.4 * wide / tall, 2.4, 6.0)
            extra = 0.9 if values is None else 1.9
            _, ax = plt.subplots(figsize=(width + extra, np.clip(width * tall / wide, 2, 5) + 0.8))
        assert ax is not None
        _network(ax, graph, place, colours, label or _named(values))
        ax.set_aspect(ratio)
        ax.set_xlabel(names[0])
        ax.set_ylabel(names[1])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=metric == "geodesic"))
    return ax


def _colours(values: Any, nodes: int) -> dict[str, Any]:
    """How the nodes are filled: with their values' colours, if there are any."""
    if values is None:
        return {"color": LOOKS[0]["color"]}
    return {"c": _of_each(values, nodes), "cmap": SCALE, "plotnonfinite": True}


def _network(ax: Axes, graph: Graph, place: np.ndarray, colours: dict[str, Any], label: str):
    """Links and nodes at their places ``[K, 2]``, with a bar of colours if there are values."""
    ends = place[graph.edges]  # [E, 2, 2]
    ax.plot(*ends.transpose(2, 1, 0), color="#999999", lw=0.8, zorder=1)
    values = colours.get("c")
    size = 30 if values is None else np.clip(3000 / graph.nodes, 20, 60)
    nodes = ax.scatter(*place.T, s=size, edgecolors="white", lw=0.6, zorder=2, **colours)
    if values is not None:
        nodes.set_edgecolor("#333333")
        ax.figure.colorbar(nodes, ax=ax, label=label, shrink=0.8)
        if np.ma.is_masked(values):
            ax.annotate("grey: not finite", (0.015, 0.02), xycoords="axes fraction", fontsize=7.5)
    ax.set_title(f"{graph.nodes} nodes, {len(graph.edges)} links")


def _named(values: Any) -> str:
    """The label and unit of a ``DataArray``."""
    attrs = getattr(values, "attrs", {})
    label, unit = str(attrs.get("long_name", "")), attrs.get("units", "1")
    return label if unit == "1" else f"{label} [{unit}]"


def _of_each(values: Any, nodes: int) -> np.ndarray:
    """``[K]``.

    Raises:
      TypeError, ValueError: something else.
    """
    array = _check.array("values", getattr(values, "values", values), axes=1)
    if len(array) != nodes or not np.isfinite(array).any():
        raise ValueError(
            f"values must be a finite number of each of the {nodes} nodes, got "
            f"{np.isfinite(array).sum()} of {len(array)}."
        )
    return np.ma.masked_invalid(np.asarray(array, np.float64))


@checked
def draw_partition(
    labels: np.ndarray | Sequence[np.ndarray],
    parts: Sequence[np.ndarray] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """How many samples of each class every client has, and how many in all, as bars above.

    Counts are the areas of dots; of more than 40 clients or 20 classes, the colours of cells, on a
    logarithmic scale (white: none).

    Args:
      labels: ``[n]``, the class of each row of a data set, of any kind; without ``parts`` the
        labels of each client, ``[y for _, y in clients]``.
      parts: the rows of each client, as :func:`fljax.data.dirichlet`, :func:`fljax.data.iid` and
        :func:`fljax.data.by_label` share them out.
      ax: where to draw; by default a new figure.

    Returns:
      The axes.

    Raises:
      ValueError: labels that are not one of each row, no parts, rows that there are not.

    Example:
      >>> import numpy as np, fljax as fl
      >>> labels = np.repeat(np.arange(10), 50)
      >>> ax = draw_partition(labels, fl.data.dirichlet(labels, 8, concentration=0.3, seed=0))
      >>> ax.get_xlabel(), ax.get_ylabel()
      ('client', 'class')
      >>> plt.close(ax.figure)
    """
    classes, counts = _counts(*_shared_out(labels, parts))
    clients, kinds = counts.shape
    with style(**{"axes.grid": False}):
        if ax is None:
            sides = np.clip([clients, kinds], (8, 4), (MOST_CLIENTS, MOST_CLASSES))
            _, ax = plt.subplots(figsize=(2.2 + 0.22 * sides[0], 1.8 + 0.26 * sides[1]))
        assert ax is not None
        ax.set_xlim(-0.6, clients - 0.4)
        ax.set_ylim(-0.6, kinds - 0.4)
        ax.set_xlabel("client")
        ax.set_ylabel("class")
        shown = np.arange(0, kinds, -(-kinds // MOST_CLASSES))  # so many that they do not overlap
        ax.set_yticks(shown, [str(classes[c]) for c in shown])
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        _totals(ax, counts.sum(1))
        title = f"{counts.sum()} samples of {kinds} classes at {clients} clients"
        ax.set_title(title)
        few = clients <= MOST_CLIENTS and kinds <= MOST_CLASSES
        (_dots if few else _cells)(ax, counts)
    return ax


def _totals(ax: Axes, sizes: np.ndarray) -> None:
    """Bars of the clients' numbers of samples, above the axes."""
    bars = ax.inset_axes((0, 1.03, 1, TOTALS), sharex=ax)
    bars.bar(np.arange(len(sizes)), sizes, width=0.7, color="#999999")
    bars.set_ylim(0, 1.05 * sizes.max())
    bars.set_yticks([0, sizes.max()])
    bars.tick_params(axis="x", labelbottom=False, bottom=False)
    bars.tick_params(axis="y", labelsize=7.5)
    bars.set_ylabel("samples", fontsize=7.5, rotation=0, ha="right", va="center")


def _dots(ax: Axes, counts: np.ndarray) -> None:
    most, (client, kind) = counts.max(), np.nonzero(counts)
    dots = {ax.scatter(client, kind): counts[client, kind]}
    for count in dict.fromkeys(max(1, round(most * share)) for share in (1, 0.5, 0.1)):
        dots[ax.scatter([], [], label=str(count))] = np.array([count])
    widest = 10.0  # points
    for _ in range(2):  # the legend takes room, and its dots are those of the room that is left
        for some, sizes in dots.items():
            some.set(sizes=widest**2 * sizes / most, color=LOOKS[0]["color"], linewidths=0)
        spacing = 0.3 + widest / mpl.rcParams["legend.fontsize"]
        _legend(ax, "samples", beside=True, labelspacing=spacing - 0.6, borderpad=spacing / 2)
        _whole(ax).draw_without_rendering()
        room = np.divide(ax.get_window_extent().size, counts.shape) * 72 / ax.figure.dpi
        widest = min(0.95 * room.min(), 16.0)


def _cells(ax: Axes, counts: np.ndarray) -> None:
    clients, kinds = (np.arange(size + 1) - 0.5 for size in counts.shape)
    cells = ax.pcolormesh(
        *(clients, kinds, np.ma.masked_equal(counts, 0).T),
        cmap=SHADES,
        norm=LogNorm(1, max(10, counts.max())),
    )
    label = "samples of a class (white: none)"
    ax.figure.colorbar(cells, ax=ax, label=label, pad=0.02, format="{x:g}")


def _shared_out(
    labels: np.ndarray | Sequence[np.ndarray], parts: Sequence[np.ndarray] | None
) -> tuple[np.ndarray, Sequence[np.ndarray]]:
    """``[n]`` and the rows of each client."""
    if parts is not None:
        return cast(np.ndarray, labels), parts
    each = [np.asarray(some) for some in labels]
    if not each or any(some.ndim != 1 for some in each):
        raise ValueError(
            "labels must be [n] with the parts of the clients, or without them a list of [D_k], "
            f"the labels of each client; got {_check.shown(labels)}."
        )
    ends = np.cumsum([len(some) for some in each])
    return np.concatenate(each), np.split(np.arange(ends[-1]), ends[:-1])


def _counts(labels: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and ``[K, classes]`` how many of each class clients have.

    Raises:
      ValueError: no labels or parts of them.
    """
    nested = isinstance(labels, list | tuple) and any(map(np.ndim, labels))
    if nested or np.ndim(labels) != 1 or not len(labels) or not len(parts):
        raise ValueError(
            f"labels must be one of each row, [n], and parts the rows of each client, got "
            f"{_check.shown(labels)} and {len(parts)} parts."
        )
    classes, kind = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(parts), len(classes)), int)
    for k, rows in enumerate(parts):
        rows = np.asarray(rows)
        whole = rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer)
        if not whole or (len(rows) and not 0 <= rows.min() <= rows.max() < len(kind)):
            raise ValueError(
                f"parts must hold the rows of each client, whole numbers below {len(kind)}, got "
                f"{_check.shown(rows)} of client {k}."
            )
        counts[k] = np.bincount(kind[rows], minlength=len(classes))
    if not counts.any():
        raise ValueError("parts must hold some rows, got none at any client.")
    return classes, counts
