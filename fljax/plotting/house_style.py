"""The house style of figures: colors, legends and files."""

import io
import re
import textwrap
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

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.numerics import as_typed
from fljax._core.storage import replace_file
from fljax.results.tables import shown

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
SMALL_TEXT: dict[str, Any] = {"fontsize": 7.5, "color": "#555555"}

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
def save_figure(picture: Any, path: str | PathLike) -> Path:
    """Save a figure in the house style, in the format of the suffix: ``.pdf``, ``.png``, ``.svg``
    ...

    Text remains text, in PDF and PostScript with fonts of type 42 (TrueType), which publishers
    require and ``savefig`` alone would not embed. The same figure, drawn again, gives the same
    file.

    Args:
      picture: a return value of the functions of this package (axes, or an array of the axes of one
        figure), or the figure.
      path: path of the file; ``~`` is the home folder.

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
      ...     save_figure(ax, f"{folder}/network.pdf").name
      'network.pdf'
      >>> plt.close(ax.figure)
    """
    several = isinstance(picture, np.ndarray | list | tuple)
    parts = np.asarray(picture, object).ravel() if several else [picture]
    if not len(parts) or not all(isinstance(part, Axes | Figure) for part in parts):
        raise TypeError(
            "a picture must be axes, an array of a figure's axes, or a figure, got "
            f"{checks.shown(picture)}."
        )
    path = Path(path).expanduser()
    figure = whole(parts[0])
    endings = figure.canvas.get_supported_filetypes()
    ending = path.suffix.lower()
    checks.choice("ending of a picture's file", ending, [f".{name}" for name in endings])
    dated = {".pdf": "CreationDate", ".svg": "Date", ".png": "Software"}
    metadata = {dated[ending]: None} if ending in dated else None
    content = io.BytesIO()  # a picture that is there is replaced by a whole one, or not at all
    with style():
        figure.savefig(content, format=ending[1:], metadata=metadata)
    return replace_file(path, content.getvalue())


def named(value: object, labels: Mapping[Any, str] | None) -> str:
    """The name of a value of an axis; of single precision it is looked up as typed, too."""
    labels = labels or {}
    return labels.get(value, labels.get(as_typed(value), shown(value)))


def name_of(dataset: xr.Dataset, axis: str) -> str:
    """The label of an axis."""
    return str(dataset[axis].attrs.get("long_name", axis))


def whole(picture: Axes | Figure) -> Figure:
    """The figure, given itself or its axes."""
    return cast(Figure, cast(Any, picture.figure).figure)  # of a part of a figure, the whole


def look_of(position: int) -> dict[str, Any]:
    """The look of the curve at a position; from the eighth on with hollow markers, other lines."""
    lap, index = divmod(position, len(LOOKS))
    look = dict(LOOKS[index])
    if lap:
        look["linestyle"] = LOOKS[(index + lap) % len(LOOKS)]["linestyle"]
        look["markerfacecolor"] = "white"
    return look


#: Letters of a name in one column of a legend; letters side by side in all columns.
COLUMN_LETTERS = 28
ROW_LETTERS = 48

#: Lines of a legend right of axes, and of one with many entries, in smaller letters.
MAX_LINES = 16
SMALL_LINES = 22

#: The least share of a figure's width and height that its axes keep next to a legend.
LEAST_AXES_SHARE = 0.62


def entries(ax: Axes) -> tuple[list[Any], list[str]]:
    """What has a name in the axes, and the names: also such that begin with an underscore, which
    matplotlib takes for its own.
    """
    named = {part: str(part.get_label()) for part in (*ax.lines, *ax.collections)}
    named = {part: n for part, n in named.items() if n and not re.fullmatch(r"_child\d+", n)}
    return list(named), list(named.values())


def legend_of(ax: Axes, title: str, outside: bool, **more: Any) -> Legend:
    """Draw a legend at the emptiest place inside the axes, or to their right."""
    corner = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    location = corner if outside else {"loc": "best"}
    return listed(ax, *entries(ax), title=title, **location, **more)


def listed(where: Axes | Figure, handles: list[Any], names: list[str], **more: Any) -> Legend:
    """A legend with as many columns, and names as short, as leave room for the axes."""
    names, columns, small = _fitted(names)
    size = {"fontsize": 6.5, "handlelength": 2.2, "columnspacing": 1.0} if small else {}
    numbers = [*map(str, range(len(names)))]  # matplotlib leaves out names that begin with "_"
    more = {"alignment": "left", "ncols": columns} | size | more
    legend = where.legend(handles, numbers, **more)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)
    return legend


def _fitted(names: list[str]) -> tuple[list[str], int, bool]:
    """The names, wrapped or shortened; the number of columns, and whether letters are small."""
    wrapped = [textwrap.wrap(name, COLUMN_LETTERS) or [""] for name in names]
    if sum(map(len, wrapped)) <= MAX_LINES:
        return ["\n".join(lines) for lines in wrapped], 1, False
    small = len(names) > MAX_LINES
    columns = -(-len(names) // SMALL_LINES) if small else 1
    return _shortened(names, min(COLUMN_LETTERS, ROW_LETTERS // columns)), columns, small


def _shortened(names: list[str], letters: int) -> list[str]:
    """Names without their middle, or the first part of them by which all can be told apart."""
    head = (letters - 1) // 2

    def part(name: str, start: int | None) -> str:
        if len(name) <= letters:
            return name
        if start is None:
            return f"{name[:head]}\u2026{name[len(name) - (letters - 1 - head) :]}"
        rest = name[start:]
        rest = f"\u2026{rest[1:]}" if start else rest
        return rest if len(rest) <= letters else f"{rest[: letters - 1]}\u2026"

    for start in (None, *range(max(map(len, names)))):
        short = [part(name, start) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    return [f"{part(name, 0)[:-5]}\u2026 ({number})" for number, name in enumerate(names, start=1)]


def widen(figure: Figure, legend: Legend) -> None:
    """Enlarge a figure by the width of the legend right of its axes, which keep most of it."""
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    figure.set_figwidth(figure.get_figwidth() + box.width / figure.dpi)
    figure.set_figheight(max(figure.get_figheight(), 1.04 * box.height / figure.dpi))
    figure.draw_without_rendering()
    boxes = [ax.get_window_extent() for ax in figure.axes if ax.get_subplotspec() is not None]
    if not boxes:
        return
    figure_box = figure.bbox
    width = max(box.x1 for box in boxes) - min(box.x0 for box in boxes)
    if width < LEAST_AXES_SHARE * figure_box.width:
        figure.set_figwidth((figure_box.width - width) / (1 - LEAST_AXES_SHARE) / figure.dpi)


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
    if any(first.overlaps(other) for first, other in pairwise(boxes)):
        plt.setp(ax.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor")
