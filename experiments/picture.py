"""The layout of figures' pictures: lettered panels as wide as a page, legends and notes outside
the data, theory on top.
"""

import contextlib
import copy
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.legend import Legend
from matplotlib.text import Text

from experiments.measures import gap_band
from fljax import plotting, statistics

#: Inches of one column of a journal, and of the two of its page.
COLUMN = 3.5
PAGE = 7.16

#: Letters of a note that an inch has room for.
LETTERS_OF_AN_INCH = 16

#: How theory is drawn.
THIN: dict[str, Any] = {"color": "#333333", "linewidth": 0.8, "linestyle": (0, (1, 1.5))}

#: Letters that can be read where the picture is as wide as the page.
PRINT = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "figure.titlesize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "savefig.dpi": 220,
}


@contextlib.contextmanager
def print_style() -> Iterator[None]:
    """The house's style in the size of a printed page."""
    with plotting.style(**PRINT):
        yield


def panels(
    titles: Sequence[str], columns: int = 3, height: float = 2.1, **shared: Any
) -> tuple[Picture, list[Axes]]:
    """Axes in rows, lettered (a), (b) and so on where there are several.

    Args:
      titles: one a panel.
      columns: of panels.
      height: of a panel, inches.
      shared: as for :func:`matplotlib.pyplot.subplots`.
    """
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    width = COLUMN if len(titles) == 1 else PAGE
    picture, grid = plt.subplots(
        rows, columns, figsize=(width, height * rows), squeeze=False, **shared
    )
    axes = list(grid.flat)
    for spare in axes[len(titles) :]:
        spare.remove()
    for letter, title, ax in zip("abcdefghijklmnop", titles, axes, strict=False):
        ax.set_title(f"({letter}) {title}" if len(titles) > 1 else title)
    return picture, axes[: len(titles)]


def look(index: int) -> dict[str, Any]:
    """The color and the line style of the curve with this index, as in :mod:`fljax.plotting`."""
    return {key: plotting.LOOKS[index][key] for key in ("color", "linestyle")}


def theory(ax: Axes, level: float, text: str, unit: str = " dB", **look: Any) -> None:
    """A predicted level as a thin line, its value in the legend."""
    ax.axhline(level, label=f"{text}: {level:.3g}{unit}", **THIN | look)


def predicted_curve(ax: Axes, at: np.ndarray, curve: np.ndarray, text: str, **look: Any) -> None:
    """A predicted curve as a thin line."""
    ax.plot(at, curve, label=text, **THIN | look)


def finish(picture: Picture, heading: str = "", legend_width: float = 1.1) -> Picture:
    """Place legends below the panels, or a common one if they agree; use one y label for each row
    and notes on seeds and bands at the top. Nothing covers a curve.

    Args:
      picture: with everything drawn.
      heading: of the picture.
      legend_width: the largest width of a legend as a share of its panel's width with labels;
        below 0.8 it cannot push the panel's axes together.
    """
    axes: list[Any] = [ax for ax in picture.axes if ax.get_subplotspec() is not None]
    _label_rows(axes)
    notes = _take_notes(axes)
    if heading or notes:
        notes = textwrap.fill(notes, int(LETTERS_OF_AN_INCH * picture.get_figwidth()))
        picture.suptitle("\n".join(filter(None, (heading, notes))))
    drawn = [ax for ax in axes if ax.get_legend_handles_labels()[1]]
    titles = {ax: _title(ax.get_legend()) for ax in axes}
    for ax in axes:
        if (result := ax.get_legend()) is not None:
            result.remove()
    first, *remaining = [tuple(map(_look, *ax.get_legend_handles_labels())) for ax in drawn] or [()]
    if remaining and all(other == first for other in remaining):
        entries = drawn[0].get_legend_handles_labels()
        position = {"loc": "outside lower center", "title": titles[drawn[0]]}
        legend = _fitting(picture, entries, picture.bbox.width, **position)
        _grow(picture, legend.get_window_extent().height)
        return picture
    heights: dict[int, float] = {}
    for ax in drawn:
        # Below the label of the axis.
        position = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.8}
        entries = ax.get_legend_handles_labels()
        width = legend_width * ax.get_tightbbox().width
        legend = _fitting(ax, entries, width, **position, title=titles[ax])
        row = ax.get_subplotspec().rowspan.start
        height = legend.get_window_extent().height
        # Before the next legend: several rows would leave no space to lay the panels out.
        _grow(picture, max(0.0, height - heights.get(row, 0.0)))
        heights[row] = max(heights.get(row, 0.0), height)
    return picture


def share_legend(axes: Sequence[Axes]) -> None:
    """Name the lines of all panels in each, so that :func:`finish` has one legend for them."""
    every: dict[str, Any] = {}
    for ax in axes:
        for line in ax.get_lines():
            if not str(line.get_label()).startswith("_"):
                every.setdefault(str(line.get_label()), copy.copy(line))
                line.set_label("_named once")
    for ax in axes:
        for label, line in every.items():
            (entry,) = ax.plot([], [])
            entry.update_from(line)
            entry.set_label(label)


def faults(picture: Picture) -> list[str]:
    """Layout faults: a curve, band or theory below a legend or a note, and text that leaves the
    picture.
    """
    picture.draw_without_rendering()
    result = []
    for ax in picture.axes:
        legends = [*picture.legends, *filter(None, [ax.get_legend()])]
        boxes = [legend.get_window_extent() for legend in legends]
        boxes += [note.get_window_extent() for note in ax.texts if note.get_gid() == plotting.NOTE]
        drawn = [line.get_transform().transform_path(line.get_path()) for line in ax.lines]
        drawn += [ax.transData.transform_path(p) for c in ax.collections for p in c.get_paths()]
        inside = [path.clip_to_bbox(ax.bbox) for path in drawn]
        if any(len(path) and path.intersects_bbox(box) for path in inside for box in boxes):
            result.append(f"{ax.get_title()}: data below a legend or a note")
    box = picture.bbox.padded(1.0)
    ticks = {t for ax in picture.axes for axis in (ax.xaxis, ax.yaxis) for t in axis.findobj(Text)}
    ticks -= {label for ax in picture.axes for label in (ax.xaxis.label, ax.yaxis.label)}
    for text in set(picture.findobj(Text)) - ticks:
        content = text.get_text()
        extent = text.get_window_extent()
        if content and text.get_visible() and box.count_contains([extent.min, extent.max]) < 2:
            result.append(f"{content!r} leaves the picture")
    return result


def _label_rows(axes: Sequence[Any]) -> None:
    """Remove y labels that repeat the one of the row's first panel."""
    first: dict[int, str] = {}
    for ax in axes:
        spec = ax.get_subplotspec()
        row = spec.rowspan.start
        if ax.get_ylabel() == first.setdefault(row, ax.get_ylabel()) and not spec.is_first_col():
            ax.set_ylabel("")


def _take_notes(axes: Sequence[Any]) -> str:
    """Remove the notes; return each text once, with its panels unless all panels have it."""
    where: dict[str, list[str]] = {}
    panels = set()
    for ax in axes:
        for note in [note for note in ax.texts if note.get_gid() == plotting.NOTE]:
            panels.add(ax)
            for line in note.get_text().split("\n"):
                where.setdefault(line, []).append(ax.get_title().split(" ")[0])
            note.remove()
    return "; ".join(
        line if len(of) == len(panels) else f"{', '.join(of)}: {line}" for line, of in where.items()
    )


def _title(legend: Legend | None) -> str | None:
    """A legend's title, without the obvious ``algorithm``."""
    text = "" if legend is None else legend.get_title().get_text()
    return None if text in ("", "algorithm") else text


def _look(handle: Any, label: str) -> tuple[str, ...]:
    """A legend entry's visible properties."""
    style = (handle.get_color(), handle.get_linestyle()) if hasattr(handle, "get_color") else ()
    return (label, *map(str, style))


def _grow(picture: Picture, pixels: float) -> None:
    picture.set_figheight(picture.get_figheight() + pixels / picture.dpi)


def _fitting(where: Axes | Picture, entries: tuple, width: float, **place: Any) -> Legend:
    """A legend with as many columns as fit into the width."""
    drawing: Any = where.figure
    for columns in range(min(len(entries[1]), 6), 0, -1):
        legend = where.legend(*entries, ncols=columns, **place)
        legend.set_in_layout(False)  # a legend that is too wide would squeeze the panels
        drawing.draw_without_rendering()
        if columns == 1 or legend.get_window_extent().width <= width:
            legend.set_in_layout(True)
            return legend
        legend.remove()
    raise AssertionError("a legend needs entries")


def name_curves(
    ax: Axes, names: Iterable[str], at: Sequence[int], shift: Sequence[float], **text: Any
) -> None:
    """Write names next to curves, in their colors, instead of a legend.

    Args:
      ax: its lines are the curves, in the order of the names.
      names: of the curves.
      at: the index of the point next to the name; at index -1 the name ends there.
      shift: how far above it, points.
      text: further text properties.
    """
    for line, name, point, up in zip(ax.lines, names, at, shift, strict=False):
        x, y = np.asarray(line.get_xydata())[point]
        side = "right" if point == -1 else "left"
        look = {"color": line.get_color(), "ha": side, "va": "center", "fontsize": 6.5} | text
        ax.annotate(name, (x, y), (0, up), textcoords="offset points", **look)


def recolor(ax: Axes, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Give curves and their bands the looks of their names, which a whole chapter shares.

    Args:
      ax: its curves were drawn by :mod:`fljax.plotting`, and nothing else yet.
      looks: by name or beginning of a name; curves without one are unchanged.
    """
    for line, band in itertools.zip_longest(ax.lines, ax.collections):
        label = str(line.get_label())
        names = [name for name in looks if label == name or label.startswith(f"{name} (")]
        if names:
            line.set(**looks[max(names, key=len)])
            if band is not None:
                band.set_color(line.get_color())


def medians(ax: Axes, data: xr.Dataset, metric: str) -> None:
    """Add the median over seeds to every mean of a panel, as a thin line of its color: they differ
    where a few seeds dominate the mean.

    Args:
      ax: the curves of :mod:`fljax.plotting`, and nothing else yet.
      data: the drawn study.
      metric: the drawn metric.
    """
    scale = statistics.decibels if statistics.is_decibel(data, metric) else np.asarray
    middle = statistics.keep_finite(data, metric).median("seed").squeeze()
    curves = np.atleast_2d(middle.transpose("algorithm", ...).values)
    for line, curve in zip(list(ax.lines), curves, strict=True):
        ax.plot(line.get_xdata(), scale(curve), color=line.get_color(), linewidth=0.5)


#: How opaque bands are where many overlap.
FAINT = 0.1


def fade(ax: Axes) -> None:
    """Make overlapping bands transparent enough to tell them apart."""
    for band in ax.collections:
        band.set_alpha(FAINT)


def difference(
    ax: Axes, at: np.ndarray, over: np.ndarray, under: np.ndarray, text: str = "", **look: Any
) -> None:
    """How far one mean is above another along an axis, dB, with its 95 % band, paired by seed.

    Args:
      ax: the panel.
      at: the points on the axis.
      over: ``[S, points]``.
      under: ``[S, points]``.
      text: for the legend; none if empty.
      look: of the line.
    """
    mean, low, high = gap_band(over, under)
    (line,) = ax.plot(at, mean, label=text or None, **look)
    ax.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
