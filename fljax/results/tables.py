r"""Tables for papers: means with their confidence intervals, in Markdown, LaTeX and CSV.

The number of digits of a mean follows from its interval: half the width of the interval has two
digits if they are below 36 and one otherwise, and the mean and both ends are rounded to the same
place (the rule of the Particle Data Group, "Review of particle physics", section 5.3 of the
introduction).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.storage import replace_file
from fljax.results import statistics

#: The ends of the interval, as variables and columns.
_PARTS = ("mean", "low", "high")

#: Shown in place of a mean of no runs.
_NOTHING = "--"

_ESCAPES = str.maketrans(
    {c: rf"\{c}" for c in "&%#_{}$"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


@dataclass(frozen=True, repr=False)
class Table:
    """A table made by :func:`table`, which prints as Markdown.

    Attributes:
      numbers: ``mean``, ``low``, ``high``, ``runs`` and ``diverged`` over the grid's axes and
        ``metric``, not rounded; the coordinate ``label`` of ``metric`` includes the unit. The
        values selected at each point (:func:`fljax.best`) are a coordinate.
      best: for each metric, whether the least or the greatest mean is printed bold, ``"min"`` or
        ``"max"``.
    """

    numbers: xr.Dataset
    best: Mapping[str, str]

    @property
    def frame(self) -> Any:
        """A pandas ``DataFrame`` with one row per grid point and metric, not rounded."""
        return self.numbers.to_dataframe(dim_order=[*self.axes, "metric"]).reset_index()

    @property
    def note(self) -> str:
        """One sentence that describes the numbers."""
        attrs = self.numbers.attrs
        runs = self.numbers["runs"].values
        seeds = f"{attrs['seeds']} seeds" if runs.min() == runs.max() == attrs["seeds"] else "seeds"
        text = f"Mean [{100 * attrs['level']:.4g} % interval] over {seeds}"
        text += "".join(f", {name} {shown(value)}" for name, value in attrs["at"].items())
        if self.numbers["diverged"].values.any():
            text += ", without the runs that diverged"
        return ". ".join([text, *(remark.capitalize() for remark in attrs["remarks"])]) + "."

    def markdown(self) -> str:
        """A table in GitHub's Markdown, followed by its note."""

        def cell(content: _Cell) -> str:
            mean = f"**{content.mean}**" if content.best else content.mean
            return f"{mean} [{content.low}, {content.high}]" if content.low else mean

        head, *rows = self._rows(cell, lambda text: " ".join(text.replace("|", r"\|").split()))
        sides = ["---"] * len(self.labels) + ["---:"] * (len(head) - len(self.labels))
        lines = [f"| {' | '.join(row)} |" for row in (head, sides, *rows)]
        return "\n".join([*lines, "", self.note, ""])

    def latex(self) -> str:
        r"""A ``tabular`` with the rules of ``\usepackage{booktabs}`` and the note as a comment."""

        def cell(content: _Cell) -> str:
            if content.mean == _NOTHING:
                return _NOTHING
            mean, low, high = (_power(number) for number in content[:3])
            mean = rf"\mathbf{{{mean}}}" if content.best else mean
            return f"${mean}$ $[{low}, {high}]$" if content.low else f"${mean}$"

        head, *rows = self._rows(cell, _escaped)
        columns = "l" * len(self.labels) + "r" * (len(head) - len(self.labels))
        head, *lines = [" & ".join(row) + r" \\" for row in (head, *rows)]
        frame = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
        return "\n".join([f"% {self.note}", *frame, *lines, r"\bottomrule", r"\end{tabular}", ""])

    def csv(self) -> str:
        """Comma-separated values, one row per grid point and metric, rounded as in the other
        formats.
        """
        frame = self.frame
        cells = [rounded(*row) for row in frame[[*_PARTS]].itertuples(index=False)]
        for column, part in enumerate(_PARTS):
            frame[part] = ["" if cell.mean == _NOTHING else cell[column] for cell in cells]
        return frame.to_csv(index=False, lineterminator="\n")

    def save(self, path: str | PathLike) -> Path:
        """Write the table in the format given by the file's suffix: ``.md``, ``.tex`` or ``.csv``.

        Raises:
          OSError: as :func:`fljax.save`.
          ValueError: another suffix.
        """
        path = Path(path)
        writers = {".md": self.markdown, ".tex": self.latex, ".csv": self.csv}
        checks.choice("ending of a table's file", path.suffix, writers)
        return replace_file(path, writers[path.suffix]())

    def __repr__(self) -> str:
        return self.markdown()

    _repr_markdown_ = markdown  # in a notebook

    @property
    def axes(self) -> list[str]:
        """The axes of the grid."""
        return [str(dim) for dim in self.numbers["mean"].dims if dim != "metric"]

    @property
    def labels(self) -> list[str]:
        """The axes, and the coordinates with the selected values."""
        chosen = (str(name) for name in self.numbers.coords if name not in self.numbers.dims)
        return [*self.axes, *chosen]

    def _rows(
        self, cell: Callable[["_Cell"], str], plain: Callable[[str], str]
    ) -> Iterator[list[str]]:
        """The header and the rows, with columns of counts that differ from the number of seeds."""
        numbers = self.numbers.transpose(*self.axes, "metric")
        points = numbers["mean"].isel(metric=0, drop=True)
        label_columns = [
            numbers[name].broadcast_like(points).transpose(*points.dims) for name in self.labels
        ]
        counts = [
            name
            for name, usual in (("runs", numbers.attrs["seeds"]), ("diverged", 0))
            if (numbers[name] != usual).any()
        ]
        heads = [str(label.attrs.get("long_name", label.name)) for label in label_columns]
        yield [plain(text) for text in (*heads, *numbers["label"].values, *counts)]
        parts = np.stack([numbers[part].values for part in _PARTS], axis=-1)
        metrics = numbers["metric"].values
        best = [self._best(name, parts[..., i, 0]) for i, name in enumerate(metrics)]
        for point in np.ndindex(parts.shape[:-2]):
            labels = [label.values[point] for label in label_columns]
            cells = [
                rounded(*content, best=bool(content[0] == wanted))
                for content, wanted in zip(parts[point], best, strict=True)
            ]
            spans = [_span(numbers[name].values[point]) for name in counts]
            yield [*map(plain, map(shown, labels)), *map(cell, cells), *spans]

    def _best(self, metric: str, means: np.ndarray) -> float:
        """The mean to be printed bold; NaN, which equals nothing, if there is none."""
        defined = means[~np.isnan(means)]
        if metric not in self.best or not defined.size:
            return np.nan
        return float(defined.min() if self.best[metric] == "min" else defined.max())


class _Cell(NamedTuple):
    """A mean and the ends of its interval as text; both ends are empty without an interval."""

    mean: str
    low: str = ""
    high: str = ""
    best: bool = False


@checked
def table(
    dataset: xr.Dataset,
    *metrics: Any,  # str | Metric
    round: int | None = None,
    level: float = statistics.LEVEL,
    decibel: bool = True,
    best: str | Mapping[str, str] | None = None,
) -> Table:
    """Means over seeds with their intervals, :func:`fljax.statistics.summary`, for a paper.

    Each row is a grid point, with the values that :func:`fljax.best` selected there. For a mean
    over several rounds average beforehand: ``fl.table(results.isel(round=slice(-100,
    None)).mean("round", keep_attrs=True))`` tabulates the mean over the last hundred records of
    each run.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metrics: its variables, by name or as a :class:`~fljax.metrics.Metric`; by default all scalar
        metrics of the simulations.
      round: the round at which they are read; by default the last recorded round.
      level: confidence level of each single interval.
      decibel: whether metrics on a dB scale are given in dB, as in plots: ``10 log10`` of the mean
        and of the ends.
      best: whether the least or the greatest mean is printed bold: ``"min"`` or ``"max"``, for all
        metrics or by name. It need not be significantly better, see
        :func:`fljax.statistics.paired_differences`.

    Returns:
      The table, which prints as Markdown, with :meth:`Table.latex`, :meth:`Table.csv`,
      :meth:`Table.save`, and :attr:`Table.frame` for pandas.

    Raises:
      ValueError: an unknown metric, one given twice, metrics over different axes, a round that was
        not recorded, no ``seed`` axis.

    Example:
      >>> import xarray as xr, fljax as fl
      >>> values = [[0.010, 0.012, 0.011], [0.10, 0.14, 0.12]]
      >>> attrs = {"long_name": "normalized error", "decibel": 1}
      >>> data = xr.Dataset(
      ...     {"error": (("algorithm", "seed"), values, attrs)},
      ...     coords={"algorithm": ["PGFL", "Local only"]},
      ... )
      >>> fl.table(data, best="min")
      | algorithm | normalized error [dB] |
      | --- | ---: |
      | PGFL | **-19.6** [-20.6, -18.6] |
      | Local only | -9.2 [-11.0, -7.4] |
      <BLANKLINE>
      Mean [95 % interval] over 3 seeds.
      <BLANKLINE>
    """
    names = [statistics.named(dataset, metric) for metric in metrics]
    names = names or scalar_metrics(dataset)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a table is of one or more metrics, each once, got {names}.")
    dataset = statistics.at_round(dataset, round)
    axes = {tuple(d for d in dataset[name].dims if d != "seed") for name in names}
    if len(axes) > 1 or "round" in (*axes,)[0]:
        raise ValueError(
            f"metrics of one table must be over the same axes, at one round, got {sorted(axes)}; "
            "make one table of each."
        )
    parts: list[xr.Dataset] = []
    for name in names:
        part = statistics.summary(dataset, name, level).reset_coords(drop=True)
        if decibel and statistics.is_decibel(dataset, name):
            part = part.assign({end: statistics.decibels(part[end]) for end in _PARTS})
        parts.append(part)
    labels = [statistics.label_of(dataset, name, decibel) for name in names]
    numbers = xr.concat(parts, xr.DataArray(names, dims="metric", name="metric"))
    numbers = numbers.assign(label=("metric", labels))
    aside = {n: c for n, c in dataset.coords.items() if n not in dataset.indexes}
    chosen = {
        n: c.variable for n, c in aside.items() if c.ndim and set(c.dims) <= set(numbers.dims)
    }
    numbers = numbers.assign_coords(chosen)
    at = {name: coord.item() for name, coord in aside.items() if not coord.ndim}
    numbers.attrs |= {"remarks": statistics.remarks(dataset), "at": at}
    return Table(numbers, _directions(best, names))


def scalar_metrics(dataset: xr.Dataset) -> list[str]:
    """The metrics of the simulations that have one number for each run and round."""
    axes = {"seed", "round", *dataset.coords}  # axes of a metric's own have no labels
    return [
        name
        for name in statistics.metric_names(dataset)
        if "decibel" in dataset[name].attrs and axes.issuperset(dataset[name].dims)
    ]


def _directions(best: str | Mapping[str, str] | None, names: list[str]) -> dict[str, str]:
    """For each metric, ``"min"`` or ``"max"``."""
    directions = dict.fromkeys(names, best) if isinstance(best, str) else dict(best or {})
    for name, direction in directions.items():
        checks.choice("metric in best", name, names)
        checks.choice("best", direction, ("min", "max"))
    return directions


def rounded(mean: float, low: float, high: float, best: bool = False) -> _Cell:
    """Round a mean to the digits that its interval justifies, or to four without an interval.

    Example:
      >>> rounded(12.3456, 12.30, 12.40)[:3], rounded(12.3456, 11.9, 12.8)[:3]
      (('12.35', '12.30', '12.40'), ('12.3', '11.9', '12.8'))
      >>> rounded(3.21e-5, 3.01e-5, 3.43e-5)[:3]
      ('3.21e-5', '3.01e-5', '3.43e-5')
    """
    if np.isnan(mean):
        return _Cell(_NOTHING)
    half = (high - low) / 2
    if not np.isfinite(half) or half <= 0 or not np.isfinite(mean):
        return _Cell(f"{mean:.4g}", best=best)
    first = _exponent(half)
    decimals = 1 - first if half / 10.0 ** (first - 1) < 35.45 else -first
    size = _exponent(max(abs(low), abs(high)))
    power = 0 if -3 <= size < 6 else size
    digits = max(decimals + power, 0)
    texts = []
    for number in (mean, low, high):
        text = f"{round(number, decimals) / 10.0**power + 0.0:.{digits}f}"
        texts.append(f"{text}e{power}" if power else text)
    return _Cell(*texts, best=best)


def _exponent(number: float) -> int:
    return math.floor(math.log10(number))


def shown(label: object) -> str:
    """A value of an axis as text."""
    if isinstance(label, float | np.floating) and math.isnan(label):
        return _NOTHING
    return f"{label:g}" if isinstance(label, float | np.floating) else str(label)


def _span(counts: np.ndarray) -> str:
    """The range of the counts of a row, whose metrics may differ."""
    least = counts.min()
    most = counts.max()
    return f"{least}" if least == most else f"{least} to {most}"


def _power(number: str) -> str:
    """A number in LaTeX math notation."""
    mantissa, _, power = number.replace("inf", r"\infty").partition("e")
    return rf"{mantissa}\cdot10^{{{int(power)}}}" if power else mantissa


def _escaped(text: str) -> str:
    """Text escaped for LaTeX; text between two dollar signs is math, as in the labels of plots."""
    pieces = text.split("$")
    if len(pieces) % 2 == 0:  # a dollar too many
        return text.translate(_ESCAPES)
    return "$".join(piece if i % 2 else piece.translate(_ESCAPES) for i, piece in enumerate(pieces))
