"""Plots of the number of samples per client and class."""

from collections.abc import Sequence
from typing import cast

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.ticker import MaxNLocator

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.partitions import Partition
from fljax.plotting.house_style import LOOKS, legend_of, style, whole
from fljax.problems import Problem

#: Color map for counts: larger counts are darker, and zero is white.
SHADES = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.2, 1, 256)))

#: Largest numbers of clients and classes for which dots can be told apart.
MOST_CLIENTS = 40
MOST_CLASSES = 20

#: Height of the bars above a partition, relative to that of its axes.
BARS_HEIGHT = 0.14


@checked
def draw_partition(
    labels: np.ndarray | Sequence[np.ndarray] | Problem | xr.Dataset,
    parts: Sequence[np.ndarray] | Partition | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot the number of samples of each class per client, with the totals as bars above.

    Counts are the areas of dots; for more than 40 clients or 20 classes, the colors of cells on a
    logarithmic scale (white: none).

    Args:
      labels: ``[n]``, the class of each row of a data set, of any type; without ``parts`` a list of
        the labels of each client, ``[y for _, y in clients]``; or a problem with the loss
        :class:`~fljax.problems.Softmax`; or the results of one run on a pool of labeled samples,
        ``study.sel(concentration=0.1, seed=0)``.
      parts: the rows of each client, as a rule of :mod:`fljax.partitions` draws them, or
        :func:`fljax.data.dirichlet` and similar functions.
      ax: where to draw; by default a new figure.

    Returns:
      The axes.

    Raises:
      ValueError: labels that are not one per row, no parts, rows that do not exist; results
        without counts of labels, or of several runs.

    Example:
      >>> import numpy as np, fljax as fl
      >>> labels = np.repeat(np.arange(10), 50)
      >>> ax = draw_partition(labels, fl.partitions.Dirichlet(0.3).draw(0, labels, clients=8))
      >>> ax.get_xlabel(), ax.get_ylabel()
      ('client', 'class')
      >>> plt.close(ax.figure)
    """
    if isinstance(labels, xr.Dataset):
        counts = _of_run(labels)
        classes = np.arange(counts.shape[1])
    elif isinstance(labels, Problem):
        counts = np.asarray(labels.class_counts())
        classes = np.arange(counts.shape[1])
    else:
        parts = parts.rows() if isinstance(parts, Partition) else parts
        classes, counts = _counts(*_labels_and_rows(labels, parts))
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
        ticks = np.arange(0, kinds, -(-kinds // MOST_CLASSES))  # few enough not to overlap
        ax.set_yticks(ticks, [str(classes[c]) for c in ticks])
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        _totals(ax, counts.sum(1))
        title = f"{counts.sum()} samples of {kinds} classes at {clients} clients"
        ax.set_title(title)
        few = clients <= MOST_CLIENTS and kinds <= MOST_CLASSES
        (_dots if few else _cells)(ax, counts)
    return ax


def _of_run(results: xr.Dataset) -> np.ndarray:
    """``[K, C]``, the counts of one run."""
    if "label_counts" not in results:
        raise ValueError(
            "results must have the variable 'label_counts', as those of problems on a pool "
            "(fljax.problems.from_pool) with Softmax have, up to 4096 numbers a run."
        )
    counts = results["label_counts"].squeeze()
    if more := [str(name) for name in counts.dims if name not in ("client", "population", "class")]:
        raise ValueError(
            f"results must be of one run, got several over {', '.join(more)}; choose one, "
            f"results.isel({more[0]}=0)."
        )
    return counts.transpose(..., "class").values


def _totals(ax: Axes, sizes: np.ndarray) -> None:
    """Draw the clients' numbers of samples as bars above the axes."""
    bars = ax.inset_axes((0, 1.03, 1, BARS_HEIGHT), sharex=ax)
    bars.bar(np.arange(len(sizes)), sizes, width=0.7, color="#999999")
    bars.set_ylim(0, 1.05 * sizes.max())
    bars.set_yticks([0, sizes.max()])
    bars.tick_params(axis="x", labelbottom=False, bottom=False)
    bars.tick_params(axis="y", labelsize=7.5)
    bars.set_ylabel("samples", fontsize=7.5, rotation=0, ha="right", va="center")


def _dots(ax: Axes, counts: np.ndarray) -> None:
    """A dot for each client and class, of an area proportional to its number of samples."""
    most = counts.max()
    (client, kind) = np.nonzero(counts)
    dots = {ax.scatter(client, kind): counts[client, kind]}
    for count in dict.fromkeys(max(1, round(most * share)) for share in (1, 0.5, 0.1)):
        dots[ax.scatter([], [], label=str(count))] = np.array([count])
    widest = 10.0  # points
    for _ in range(2):  # dots scale with the room that the legend leaves
        for scatter, sizes in dots.items():
            scatter.set(sizes=widest**2 * sizes / most, color=LOOKS[0]["color"], linewidths=0)
        spacing = 0.3 + widest / mpl.rcParams["legend.fontsize"]
        legend_of(ax, "samples", outside=True, labelspacing=spacing - 0.6, borderpad=spacing / 2)
        whole(ax).draw_without_rendering()
        cell = np.divide(ax.get_window_extent().size, counts.shape) * 72 / ax.figure.dpi
        widest = min(0.95 * cell.min(), 16.0)


def _cells(ax: Axes, counts: np.ndarray) -> None:
    clients, kinds = (np.arange(size + 1) - 0.5 for size in counts.shape)
    cells = ax.pcolormesh(
        *(clients, kinds, np.ma.masked_equal(counts, 0).T),
        cmap=SHADES,
        norm=LogNorm(1, max(10, counts.max())),
    )
    label = "samples of a class (white: none)"
    ax.figure.colorbar(cells, ax=ax, label=label, pad=0.02, format="{x:g}")


def _labels_and_rows(
    labels: np.ndarray | Sequence[np.ndarray], parts: Sequence[np.ndarray] | None
) -> tuple[np.ndarray, Sequence[np.ndarray]]:
    """The labels ``[n]`` and the rows of each client."""
    if parts is not None:
        return cast(np.ndarray, labels), parts
    by_client = [checks.column("labels", part) for part in labels]
    if not by_client or any(part.ndim != 1 for part in by_client):
        raise ValueError(
            "labels must be [n] with the parts of the clients, or without them a list of [D_k], "
            f"the labels of each client; got {checks.shown(labels)}."
        )
    ends = np.cumsum([len(part) for part in by_client])
    return np.concatenate(by_client), np.split(np.arange(ends[-1]), ends[:-1])


def _counts(labels: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and ``[K, classes]`` the number of samples of each class per client.

    Raises:
      ValueError: invalid labels or parts.
    """
    nested = isinstance(labels, list | tuple) and any(map(np.ndim, labels))
    if nested or np.ndim(labels) != 1 or not len(labels) or not len(parts):
        raise ValueError(
            f"labels must be one for each row, [n], and parts the rows of each client, got "
            f"{checks.shown(labels)} and {len(parts)} parts."
        )
    labels = checks.names("labels", labels, "label")
    classes, kind = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(parts), len(classes)), int)
    for k, rows in enumerate(parts):
        rows = checks.array("parts", rows)
        is_valid = rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer)
        if not is_valid or (len(rows) and not 0 <= rows.min() <= rows.max() < len(kind)):
            raise ValueError(
                f"parts must hold the rows of each client, whole numbers below {len(kind)}, got "
                f"{checks.shown(rows)} of client {k}."
            )
        counts[k] = np.bincount(kind[rows], minlength=len(classes))
    if not counts.any():
        raise ValueError("parts must hold some rows, got none at any client.")
    return classes, counts
