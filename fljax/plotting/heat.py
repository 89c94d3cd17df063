"""Heat maps of a metric over two axes of the grid."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.metrics.definitions import Metric
from fljax.plotting import house_style
from fljax.plotting.curves import drawable
from fljax.plotting.house_style import NOTE, SCALE, SMALL_TEXT, style
from fljax.results import statistics
from fljax.results.tables import rounded

#: Mark behind the number of a cell from which diverged runs were left out.
DIVERGED_MARK = "†"

#: Size in inches of a cell, and of the margin around the cells.
CELL = np.array([0.62, 0.42])
MARGIN = np.array([2.3, 1.0])

#: Least and greatest number of cells along an axis with which a new figure grows.
FEWEST_CELLS = 4
MOST_CELLS_ALONG = 14

#: Largest number of values that are labeled along an axis.
MOST_TICKS = 20

#: Hatching of cells without a number.
HATCH: dict[str, Any] = {"edgecolor": "#888888", "linewidth": 0}

#: Perceived brightness of red, green and blue.
LUMINANCE = np.array([0.299, 0.587, 0.114])

#: Largest number of cells that show their numbers.
MOST_CELLS = 1000

#: Smallest font size in cells, in points; if a smaller one would be needed, numbers are omitted.
SMALLEST = 5.0


@checked
def heat_map(
    dataset: xr.Dataset,
    metric: str | Metric = "normalized_error",
    x: str | None = None,
    y: str | None = None,
    ax: Axes | None = None,
    *,
    round: int | None = None,
    labels: Mapping[Any, str] | None = None,
    intervals: bool = False,
    level: float = statistics.LEVEL,
) -> Axes:
    """Plot a metric at one round over two axes of the grid: the mean over seeds as color and
    number.

    The digits of a number follow from its confidence interval, as in :func:`fljax.table`; if there
    are too many cells for numbers, only colors are shown. Cells have equal sizes for all
    values of the axes; numeric values ascend. A cell with diverged runs, which are left out, is
    marked with a dagger; one without any finite value is hatched.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metric: a variable of it, by name or as a :class:`~fljax.metrics.Metric`.
      x: the horizontal axis; by default the last of the two that have several values.
      y: the vertical axis; by default the other.
      ax: where to draw; by default a new figure.
      round: the round at which the metric is read; by default the last recorded round.
      labels: names for the ticks, by value of an axis; others are shown as they are.
      intervals: whether to show the confidence interval below each number.
      level: confidence level.

    Returns:
      The axes.

    Raises:
      ValueError: an unknown metric or axis, one axis twice, an axis that is neither drawn nor
        selected, a round that was not recorded, nothing to plot.

    Example:
      >>> import numpy as np, xarray as xr
      >>> error = np.geomspace(1, 0.01, 6).reshape(2, 3, 1) * [0.9, 1.0, 1.1]
      >>> data = xr.Dataset(
      ...     {"error": (("noise", "step", "seed"), error, {"decibel": 1})},
      ...     {"noise": ["none", "strong"], "step": [0.01, 0.1, 1.0]},
      ... )
      >>> ax = heat_map(data, "error", x="step", y="noise")
      >>> [text.get_text() for text in ax.texts[:4]]
      ['mean over 3 seeds', '0.0', '-4.0', '-8.0']
      >>> plt.close(ax.figure)
    """
    dataset = statistics.at_round(dataset, round)
    metric = drawable(dataset, metric)
    x, y = _sides(dataset, metric, x, y)
    single = [d for d, size in dataset.sizes.items() if size == 1 and d not in (x, y, "seed")]
    dataset = dataset.squeeze(single)
    for dim in (x, y):
        if np.issubdtype(dataset[dim].dtype, np.number):
            dataset = dataset.sortby(dim)
    numbers = statistics.summary(dataset, metric, level).transpose(y, x)
    scale = statistics.decibels if statistics.is_decibel(dataset, metric) else np.asarray
    parts = np.stack([scale(numbers[part].values) for part in ("mean", "low", "high")], axis=-1)
    means = np.ma.masked_invalid(parts[..., 0])
    lost = numbers["diverged"].broadcast_like(numbers["mean"]).transpose(y, x).values
    with style(**{"axes.grid": False}):
        if ax is None:
            shape = np.clip(means.shape[::-1], FEWEST_CELLS, MOST_CELLS_ALONG)
            _, ax = plt.subplots(figsize=MARGIN + CELL * (1 + intervals, 1) * shape)
        assert ax is not None
        cells = ax.pcolormesh(means, cmap=SCALE, edgecolors="white", linewidth=0.8)
        for row, column in np.argwhere(np.ma.getmaskarray(means)):
            ax.add_patch(Rectangle((column, row), 1, 1, fill=False, hatch="////", **HATCH))
        bar = ax.figure.colorbar(cells, ax=ax, label=statistics.label_of(dataset, metric), pad=0.02)
        bar.outline.set_visible(False)
        _ticks(ax.xaxis, dataset, x, labels)
        _ticks(ax.yaxis, dataset, y, labels)
        note = "\n".join(_note(dataset, numbers, means, intervals))
        above = {"xy": (0, 1), "xycoords": "axes fraction", "va": "bottom"}
        shift = {"xytext": (0, 3), "textcoords": "offset points"}
        ax.annotate(note, **above, **shift, **SMALL_TEXT, gid=NOTE)
        house_style.untangle(ax)
        shades = cells.to_rgba(means)[..., :3] @ LUMINANCE
        texts = []
        for row, column in np.ndindex(means.shape):
            text = DIVERGED_MARK * bool(lost[row, column])
            if means.size <= MOST_CELLS:
                label = rounded(*parts[row, column])
                text = label.mean + text
                text += f"\n[{label.low}, {label.high}]" * bool(intervals and label.low)
            color = "white" if shades[row, column] < 0.5 else "black"
            middle = (column + 0.5, row + 0.5)
            texts.append(ax.text(*middle, text, color=color, ha="center", va="center"))
        _fit(ax, [text for text in texts if text.get_text()])
    return ax


def _sides(dataset: xr.Dataset, metric: str, x: str | None, y: str | None) -> tuple[str, str]:
    """The horizontal and the vertical axis.

    Raises:
      ValueError: fewer than two axes, or further axes that are not used.
    """
    axes = [str(dim) for dim in dataset[metric].dims if dim != "seed"]
    chosen = [dim for dim in (x, y) if dim is not None]
    for dim in chosen:
        checks.choice("axis", dim, axes)
    left = [dim for dim in axes if dataset.sizes[dim] > 1 and dim not in chosen]
    if len(chosen) == 2 and x == y:
        raise ValueError(f"x and y must be different axes, got {x!r} twice.")
    if len(chosen) + len(left) != 2:
        sizes = ", ".join(f"{dim!r} ({dataset.sizes[dim]})" for dim in axes) or "none"
        raise ValueError(
            f"a heat map is over two axes of {metric!r}, which has {sizes}; say x= and y=, and "
            "choose one value of any other with dataset.sel(...). Over one axis draw trade_off."
        )
    y = y or left.pop(0)
    return x or left.pop(), y


def _ticks(axis: Axis, dataset: xr.Dataset, dim: str, labels: Mapping[Any, str] | None) -> None:
    values = dataset[dim].values
    chosen = range(0, len(values), -(-len(values) // MOST_TICKS))
    axis.set_ticks(
        [i + 0.5 for i in chosen], [house_style.named(values[i], labels) for i in chosen]
    )
    axis.set_tick_params(length=0)
    axis.set_label_text(statistics.with_unit(dataset[dim]))


def _note(
    dataset: xr.Dataset, numbers: xr.Dataset, means: np.ma.MaskedArray, intervals: bool
) -> list[str]:
    """Lines of the note that describes the numbers."""
    seeds = numbers.attrs["seeds"]
    lost = int(numbers["diverged"].max())
    what = f"mean [{100 * numbers.attrs['level']:.4g} % interval]" if intervals else "mean"
    when = f", round {int(dataset['round'])}" if "round" in dataset.coords else ""
    lines = [*statistics.remarks(dataset), f"{what} over {seeds} seed{'s' * (seeds > 1)}{when}"]
    if lost:
        lines.append(f"{DIVERGED_MARK} without runs that diverged, up to {lost} of {seeds}")
    if np.ma.is_masked(means):
        lines.append("hatched: no finite value")
    return [line for line in lines if line]


def _fit(ax: Axes, texts: Sequence[Text]) -> None:
    """Shrink all texts to fit their cells, or keep only the marks if that would be too small."""
    house_style.whole(ax).draw_without_rendering()
    cell = 0.92 * (ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)))
    shares = [cell / text.get_window_extent().size for text in texts]
    size = mpl.rcParams["font.size"] * min([1.0, *np.ravel(shares)])
    for text in texts:
        if size < SMALLEST:
            text.set_text(DIVERGED_MARK * (DIVERGED_MARK in text.get_text()))
        else:
            text.set_fontsize(size)
