"""Drawings of networks, with a computed layout or on a map."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.graphs import Graph
from fljax.plotting.house_style import LOOKS, SCALE, style


@checked
def draw_graph(
    graph: Graph, ax: Axes | None = None, *, values: object = None, label: str = ""
) -> Axes:
    """Draw the nodes and edges of a graph, laid out by networkx if installed, else on a circle.

    Args:
      graph: concrete (not traced).
      ax: where to draw; by default a new figure.
      values: ``[K]``, one number per node, shown as its color (gray if it is not finite), such as a
        per-client metric; a ``DataArray`` is labeled by its attributes.
      label: label of the color bar, with the unit.

    Returns:
      The axes.

    Raises:
      ValueError: values of another shape, or without any finite one.

    Example:
      >>> import fljax as fl
      >>> ax = draw_graph(fl.graphs.ring(4), values=[0.1, 0.2, 0.4, 0.2], label="error of a client")
      >>> plt.close(ax.figure)
    """
    colors = _colors(values, graph.nodes)
    angle = 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    positions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    try:
        import networkx
    except ImportError:
        pass
    else:
        laid = networkx.kamada_kawai_layout(networkx.Graph(graph.edge_list()))
        for node, position in laid.items():  # isolated nodes stay on the circle
            positions[node] = position
    with style():
        if ax is None:
            _, ax = plt.subplots(figsize=(4, 4) if values is None else (4.8, 4))
        assert ax is not None
        _network(ax, graph, positions, colors, label or _named(values))
        ax.set_aspect("equal")
        ax.set_axis_off()
    return ax


@checked
def network_map(
    graph: Graph,
    coordinates: object,
    values: object = None,
    *,
    metric: str = "euclidean",
    ax: Axes | None = None,
    label: str = "",
    unit: str = "",
) -> Axes:
    """Draw a network on a map: nodes at their positions, edges as thin lines, values as colors.

    With geodesic coordinates a degree of longitude is shortened relative to one of latitude by its
    ratio in the middle of the map, so that shapes are correct there; nothing is wrapped around the
    date line.

    Args:
      graph: concrete (not traced); it may be disconnected.
      coordinates: ``[K, 2]``, positions ``(x, y)``; for ``metric="geodesic"`` latitude and
        longitude in degrees, as in :func:`fljax.graphs.nearest_neighbors`.
      values: ``[K]``, one number per node, shown as its color (gray if it is not finite), such as
        its test error; a ``DataArray`` is labeled by its attributes.
      metric: ``"euclidean"`` or ``"geodesic"``.
      ax: where to draw; by default a new figure.
      label: label of the color bar, with the unit.
      unit: unit of positions ``(x, y)``, such as ``"km"``.

    Returns:
      The axes.

    Raises:
      ValueError: positions or values for another number of nodes, positions that are not finite or
        not on the Earth, values without any finite one.

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
    checks.choice("metric", metric, ("euclidean", "geodesic"))
    positions = np.asarray(checks.array("coordinates", coordinates, axes=2), np.float64)
    if positions.shape != (graph.nodes, 2):
        raise ValueError(
            f"coordinates must be two of each of the {graph.nodes} nodes, got shape "
            f"{positions.shape}."
        )
    checks.finite("coordinates", positions)
    names = [f"{axis} [{unit}]" if unit else axis for axis in "xy"]
    ratio = 1.0
    if metric == "geodesic":
        hint = "The latitude comes first, then the longitude."
        checks.interval("the latitude", positions[:, 0], at_least=-90, at_most=90, hint=hint)
        checks.interval("the longitude", positions[:, 1], at_least=-180, at_most=360, hint=hint)
        positions = positions[:, ::-1]
        names = ["longitude [° E]", "latitude [° N]"]
        middle = np.deg2rad((positions[:, 1].min() + positions[:, 1].max()) / 2)
        ratio = 1 / max(np.cos(middle), 0.05)  # at a pole the map would be a line
    colors = _colors(values, graph.nodes)
    low = positions.min(axis=0)
    high = positions.max(axis=0)
    wide, tall = np.maximum((high - low) * (1, ratio), 1e-9 * max(1.0, np.abs(positions).max()))
    with style():
        if ax is None:
            width = np.clip(4.4 * wide / tall, 2.4, 6.0)
            extra = 0.9 if values is None else 1.9
            _, ax = plt.subplots(figsize=(width + extra, np.clip(width * tall / wide, 2, 5) + 0.8))
        assert ax is not None
        _network(ax, graph, positions, colors, label or _named(values))
        ax.set_aspect(ratio)
        ax.set_xlabel(names[0])
        ax.set_ylabel(names[1])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=metric == "geodesic"))
    return ax


def _colors(values: object, nodes: int) -> dict[str, Any]:
    """The fill of the nodes: the colors of their values, if there are any."""
    if values is None:
        return {"color": LOOKS[0]["color"]}
    return {"c": _of_each(values, nodes), "cmap": SCALE, "plotnonfinite": True}


def _network(ax: Axes, graph: Graph, positions: np.ndarray, colors: dict[str, Any], label: str):
    """Draw edges and nodes at their positions ``[K, 2]``, with a color bar if there are values."""
    ends = positions[graph.edges]  # [E, 2, 2]
    ax.plot(*ends.transpose(2, 1, 0), color="#999999", lw=0.8, zorder=1)
    values = colors.get("c")
    size = 30 if values is None else np.clip(3000 / graph.nodes, 20, 60)
    nodes = ax.scatter(*positions.T, s=size, edgecolors="white", lw=0.6, zorder=2, **colors)
    if values is not None:
        nodes.set_edgecolor("#333333")
        ax.figure.colorbar(nodes, ax=ax, label=label, shrink=0.8)
        if np.ma.is_masked(values):
            ax.annotate("gray: not finite", (0.015, 0.02), xycoords="axes fraction", fontsize=7.5)
    ax.set_title(f"{graph.nodes} nodes, {len(graph.edges)} links")


def _named(values: object) -> str:
    """The label and unit of a ``DataArray``."""
    attrs = getattr(values, "attrs", {})
    label = str(attrs.get("long_name", ""))
    unit = attrs.get("units", "1")
    return label if unit == "1" else f"{label} [{unit}]"


def _of_each(values: object, nodes: int) -> np.ndarray:
    """The values as an array ``[K]``.

    Raises:
      TypeError, ValueError: values that are not one number per node.
    """
    array = checks.array("values", getattr(values, "values", values), axes=1)
    if len(array) != nodes or not np.isfinite(array).any():
        raise ValueError(
            f"values must be a finite number of each of the {nodes} nodes, got "
            f"{np.isfinite(array).sum()} of {len(array)}."
        )
    return np.ma.masked_invalid(np.asarray(array, np.float64))
