"""The house style of figures: colors, legends and files."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from fljax import _check
from fljax._arguments import checked
from fljax._folders import replace_file
from fljax.tables import shown

__all__ = ["HOUSE", "LOOKS", "NOTE", "save", "style"]

#: The colors of Okabe and Ito, which most color-blind readers can tell apart (without yellow, which
#: is hard to see on paper), each with its own line style and marker for print without color.
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#000000", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#E69F00", "linestyle": (0, (8, 2)), "marker": "P"},
    {"color": "#56B4E9", "linestyle": (0, (3, 2)), "marker": "X"},
)

#: Color map for numbers: from dark to light, in hues that color-blind readers can tell apart.
SCALE = mpl.colormaps["viridis"].with_extremes(bad="#cccccc")

#: Changes of the style that apply within the current block.
_changes: ContextVar[dict[str, Any]] = ContextVar("changes", default={})  # noqa: B039

#: The ``gid`` by which the note with the number of seeds is identified.
NOTE = "fljax-note"

#: Text properties of notes.
SMALL: dict[str, Any] = {"fontsize": 7.5, "color": "#555555"}

#: Matplotlib settings of the house style.
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
    """Apply the house style within a block; changes also hold in nested blocks.

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
            interactive = mpl.is_interactive()
        mpl.interactive(interactive)  # a notebook's backend turns it on with its first figure
    finally:
        _changes.reset(token)


@checked
def save(picture: Any, path: str | PathLike) -> Path:
    """Save a figure in the house style, in the format of the suffix: ``.pdf``, ``.png``, ``.svg``
    ...

    Text remains text, in PDF and PostScript with fonts of type 42 (TrueType), which publishers
    require and ``savefig`` alone would not embed. The same figure, drawn again, gives the same
    file.

    Args:
      picture: a return value of the functions of this package (axes, or an array of the axes of one
        figure), or the figure.
      path: path of the file.

    Returns:
      The path.

    Raises:
      TypeError: not a figure.
      ValueError: a suffix that matplotlib does not support.
      OSError: as :func:`fljax.save`, such as for a folder that does not exist.

    Example:
      >>> import tempfile, fljax as fl
      >>> ax = fl.plotting.draw_graph(fl.graphs.ring(5))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save(ax, f"{folder}/network.pdf").name
      'network.pdf'
      >>> plt.close(ax.figure)
    """
    parts = np.asarray(picture, object).ravel()
    if not parts.size or not all(isinstance(part, Axes | Figure) for part in parts):
        raise TypeError(
            "a picture must be axes, an array of a figure's axes, or a figure, got "
            f"{_check.shown(picture)}."
        )
    path, figure = Path(path), whole(parts[0])
    known = figure.canvas.get_supported_filetypes()
    _check.choice("ending of a picture's file", path.suffix, [f".{name}" for name in known])
    dated = {".pdf": "CreationDate", ".svg": "Date", ".png": "Software"}
    metadata = {dated[path.suffix]: None} if path.suffix in dated else None
    content = io.BytesIO()  # a picture that is there is replaced by a whole one, or not at all
    with style():
        figure.savefig(content, format=path.suffix[1:], metadata=metadata)
    return replace_file(path, content.getvalue())


def named(value: Any, labels: Mapping[Any, str] | None) -> str:
    """The name of a value of an axis."""
    return (labels or {}).get(value, shown(value))


def name_of(dataset: xr.Dataset, axis: str) -> str:
    """The label of an axis."""
    return str(dataset[axis].attrs.get("long_name", axis))


def whole(picture: Axes | Figure) -> Figure:
    """The figure, given itself or its axes."""
    return cast(Figure, cast(Any, picture.figure).figure)  # of a part of a figure, the whole


def look_of(position: int) -> dict[str, Any]:
    """The look of the curve at a position; from the eighth on with hollow markers, other lines."""
    lap, place = divmod(position, len(LOOKS))
    look = dict(LOOKS[place])
    if lap:
        look["linestyle"] = LOOKS[(place + lap) % len(LOOKS)]["linestyle"]
        look["markerfacecolor"] = "white"
    return look


def legend_of(ax: Axes, title: str, beside: bool, **more: Any) -> Legend:
    """Draw a legend at the emptiest place inside the axes, or beside them."""
    corner = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    place = corner if beside else {"loc": "best"}
    return ax.legend(**place, title=title, alignment="left", **more)


def widen(figure: Figure, legend: Legend) -> None:
    """Widen a figure by the width of the legend beside it."""
    figure.draw_without_rendering()
    width = legend.get_window_extent().width
    figure.set_figwidth(figure.get_figwidth() + width / figure.dpi)


def hides(ax: Axes, legend: Legend) -> bool:
    """Whether a legend covers part of a curve, a band or a note."""
    whole(ax).draw_without_rendering()
    box = legend.get_window_extent()
    drawn = [line.get_transform().transform_path(line.get_path()) for line in ax.lines]
    drawn += [ax.transData.transform_path(p) for band in ax.collections for p in band.get_paths()]
    notes = (note.get_window_extent() for note in ax.texts)
    return any(path.intersects_bbox(box) for path in drawn) or any(map(box.overlaps, notes))


def untangle(ax: Axes) -> None:
    """Rotate the labels of the x ticks if they would overlap."""
    whole(ax).draw_without_rendering()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    if any(one.overlaps(other) for one, other in pairwise(boxes)):
        plt.setp(ax.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor")
