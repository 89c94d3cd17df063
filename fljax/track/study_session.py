"""What all trackers share: which curves of a study are new, its settings, table and pictures."""

import importlib.util
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from fljax._core import checks
from fljax.plotting.curves import learning_curves
from fljax.results import statistics, tables
from fljax.results.tracker import Session, Tracker

#: The curves of a mean over seeds and of its confidence interval.
MEAN_CURVES = ("mean", "low", "high")

#: Up to this number of grid points, pictures have a curve for each.
MAX_DRAWN_POINTS = 60

#: Attributes of results that say where and with which versions they were computed.
ENVIRONMENT = (
    *("fljax", "code", "python", "jax", "jaxlib", "numpy", "platform", "device", "device_count"),
    *("machine", "x64", "matmul_precision", "dtype", "prng", "created"),
)

#: Attributes that are known only after the study.
_TIMES = ("block", "run_seconds", "compile_seconds", "compilations")


class Point(NamedTuple):
    """A grid point of a study: one run of a tracker."""

    position: int  # in the order of the grid
    values: dict[str, Any]  # by axis

    @property
    def label(self) -> str:
        """Such as ``"penalty=0.5, neighbors=3"``; ``"study"`` without a grid."""
        return ", ".join(f"{axis}={value}" for axis, value in self.values.items()) or "study"


class Curve(NamedTuple):
    """New rounds of one curve of a grid point, for all metrics."""

    name: str  # "mean", "low", "high", or "seed 3"
    rounds: list[int]  # [R]
    values: dict[str, np.ndarray]  # [R] by metric


class Summary(NamedTuple):
    """The last results of a study."""

    state: str  # "finished", "interrupted" or "failed"
    table: tables.Table | None  # None if no run is done
    final: list[dict[str, float]]  # by grid point: "metric/mean", "metric/low", "metric/high"
    pictures: dict[str, bytes]  # PNG files by name
    times: dict[str, Any]  # seconds and compilations


class StudySession(Session):
    """A study at a tracker: a subclass writes curves and the summary in its library's terms.

    Args:
      tracker: whose session it is.
      results: of the study, at its beginning.

    Attributes:
      name: of the study, from its scenario and the time.
      points: the grid points, in order.
      settings: the arguments of the study by name, and the grid.
      environment: versions and devices.
    """

    def __init__(self, tracker: "StudyTracker", results: xr.Dataset) -> None:
        attributes = results.attrs
        self.name = tracker.name or study_name(attributes)
        self.points = points_of(results)
        self.environment = {name: attributes[name] for name in ENVIRONMENT if name in attributes}
        axes = {axis: results[axis].values.tolist() for axis in _grid_axes(results)}
        rest = attributes.keys() - {*ENVIRONMENT, *_TIMES, "cite"}
        self.settings = {name: attributes[name] for name in attributes if name in rest}
        self.settings |= {"grid": axes, "seeds": results["seed"].values.tolist()}
        self._seed_curves = tracker.seed_curves
        #: The last round that was written, by position of the point and name of the curve.
        self._written: dict[tuple[int, str], int] = {}

    @checks.required
    def write(self, point: Point, curve: Curve) -> None:
        """Show the new rounds of a curve."""
        raise NotImplementedError

    @checks.required
    def close(self, summary: Summary) -> None:
        """Show the summary, and close."""
        raise NotImplementedError

    def update(self, results: xr.Dataset) -> None:
        """Write the new rounds of all curves."""
        self._write_new(results, is_last=False)

    def end(self, results: xr.Dataset, state: str, pictures: dict[str, bytes]) -> None:
        """Write what is new, and the summary."""
        self._write_new(results, is_last=True)
        times = {name: results.attrs[name] for name in _TIMES if name in results.attrs}
        table = None
        final: list[dict[str, float]] = [{} for _ in self.points]
        if names := _metrics(results):
            table = tables.table(results)
            for name in names:
                parts = statistics.summary(statistics.at_round(results), name)
                for part in MEAN_CURVES:
                    values = parts[part].transpose(*_grid_axes(results)).values.ravel()
                    for numbers, value in zip(final, values.tolist(), strict=True):
                        numbers[f"{name}/{part}"] = value
        self.close(Summary(state, table, final, pictures, times))

    def _write_new(self, results: xr.Dataset, is_last: bool) -> None:
        for position, curve in self._new_curves(results, is_last):
            self._written[position, curve.name] = curve.rounds[-1]
            self.write(self.points[position], curve)

    def _new_curves(self, results: xr.Dataset, is_last: bool) -> Iterator[tuple[int, Curve]]:
        """The curves with new rounds, with the positions of their points."""
        names = _metrics(results)
        if not names:
            return
        axes = _grid_axes(results)
        rounds = results["round"].values
        seeds = results["seed"].values.tolist()

        def by_point(values: xr.DataArray, *rest: str) -> np.ndarray:
            """The values with all axes of the grid as the first axis, ``[C, ...]``."""
            array = values.transpose(*axes, *rest).values
            return array.reshape(len(self.points), *array.shape[len(axes) :])

        runs = {name: by_point(results[name], "seed", "round") for name in names}  # [C, S, R]
        counts = np.arange(1, len(rounds) + 1)
        is_recorded = np.any([~np.isnan(values) for values in runs.values()], axis=0)
        recorded = np.max(is_recorded * counts, axis=-1)  # [C, S]  records of each run
        is_done = by_point(results["done"], "seed") if "done" in results else True
        recorded = np.where(is_done, len(rounds), recorded)
        for number, seed in enumerate(seeds[: self._seed_curves]):
            for position in range(len(self.points)):
                until = recorded[position, number]
                values = {name: array[position, number] for name, array in runs.items()}
                yield from self._new(position, f"seed {seed}", rounds[:until], values)
        # The mean needs all seeds, until the study has ended: a written mean cannot be changed.
        common = recorded.max(axis=1) if is_last else recorded.min(axis=1)  # [C]
        written = [self._records_of(i, "mean", rounds) for i in range(len(self.points))]
        if np.all(common <= written):
            return
        # Means of the other rounds are not computed again: there may be millions of runs.
        first = min(written)
        last = int(common.max())
        part_of_rounds = results.isel(round=slice(first, last))
        summaries = {name: statistics.summary(part_of_rounds, name) for name in names}
        for part in MEAN_CURVES:
            curves = {name: by_point(summaries[name][part], "round") for name in names}
            for position, until in enumerate(common):
                values = {name: array[position] for name, array in curves.items()}
                if not all(np.isnan(array[: until - first]).all() for array in values.values()):
                    yield from self._new(position, part, rounds[:until], values, first)

    def _records_of(self, position: int, name: str, rounds: np.ndarray) -> int:
        """Number of records of a curve that are written."""
        return int(np.searchsorted(rounds, self._written.get((position, name), 0), "right"))

    def _new(
        self,
        position: int,
        name: str,
        rounds: np.ndarray,
        values: dict[str, np.ndarray],
        start: int = 0,
    ) -> Iterator[tuple[int, Curve]]:
        """The part of a curve that is not written yet, if there is any.

        Args:
          position: of the point.
          name: of the curve.
          rounds: of the curve so far.
          values: from the record ``start`` on.
          start: number of records before the first value.
        """
        first = self._records_of(position, name, rounds)
        if first < len(rounds):
            new = {m: array[first - start : len(rounds) - start] for m, array in values.items()}
            yield position, Curve(name, rounds[first:].tolist(), new)


class StudyTracker(Tracker):
    """A tracker with a :class:`StudySession`.

    Attributes:
      name: of the study at the tracker; ``None`` for its scenario and the time.
      seed_curves: of how many seeds each metric has a curve.
    """

    name: str | None
    seed_curves: int

    def check_settings(self) -> None:
        """Raise an error for settings that no tracker understands."""
        checks.count("seed_curves", self.seed_curves, at_least=0)
        if self.name is not None and (not self.name or re.search(r"[\\/\0\n]", self.name)):
            raise ValueError(
                f"name must be a name without slashes, got {self.name!r}; leave it out for the "
                "scenario and the time."
            )

    def pictures(self, results: xr.Dataset) -> dict[str, bytes]:
        """Learning curves of each metric, where there are few enough for one figure."""
        axes = _grid_axes(results)
        if len(axes) > 3 or len(points_of(results)) > MAX_DRAWN_POINTS:
            return {}
        hue, col, row = (*axes, None, None, None)[:3]
        pictures = {}
        # An interactive session must not open a window for each.
        with mpl.rc_context({"interactive": False}):
            for name in _metrics(results):
                drawn = learning_curves(results, name, hue=hue, col=col, row=row)
                figure = np.ravel(np.asarray(drawn, object))[0].figure
                content = io.BytesIO()
                figure.savefig(content, format="png", dpi=100)
                plt.close(figure)
                pictures[name] = content.getvalue()
        return pictures


def points_of(results: xr.Dataset) -> list[Point]:
    """The grid points of results, in the order of the grid."""
    axes = {axis: results[axis].values.tolist() for axis in _grid_axes(results)}
    values = itertools.product(*axes.values())
    return [Point(i, dict(zip(axes, point, strict=True))) for i, point in enumerate(values)]


def study_name(attributes: dict[str, Any]) -> str:
    """The name of the scenario, and when the study began: ``"scenario 2026-01-31 12.30.59"``."""
    scenario = str(attributes.get("scenario", "study")).rpartition(".")[2]
    began = str(attributes.get("created", ""))[:19].replace("T", " ").replace(":", ".")
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', scenario).strip('-')} {began}".strip()


def as_text(value: object) -> str:
    """A setting as text: texts as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def require_library(module: str, extra: str) -> None:
    """Raise ``ImportError`` unless the library of a tracker is installed."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"fljax.track.{extra} needs {module}, which is not installed; "
            f"pip install 'fljax[{extra}]'."
        )


def _grid_axes(results: xr.Dataset) -> list[str]:
    """The axes of the grid: those with values, apart from seeds and rounds."""
    rest = {"seed", "round"}
    if "diverged" in results:
        return [str(axis) for axis in results["diverged"].dims if axis not in rest]
    return [str(axis) for axis in results.indexes if axis not in rest]


def _metrics(results: xr.Dataset) -> list[str]:
    """The metrics with one number for each run and round; none if no run has begun."""
    if "diverged" not in results:
        return []
    return [name for name in tables.scalar_metrics(results) if "round" in results[name].dims]
