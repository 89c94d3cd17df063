"""A study in TensorBoard."""

import dataclasses
import io
import os
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import xarray as xr

from fljax._core.annotations import checked
from fljax.track.study_session import (
    MEAN_CURVES,
    Curve,
    Point,
    StudySession,
    StudyTracker,
    Summary,
    as_text,
    require_library,
)


@dataclasses.dataclass(frozen=True)
class TensorBoardTracker(StudyTracker):
    """Made by :func:`tensorboard`."""

    folder: Path
    name: str | None
    seed_curves: int

    def check(self) -> None:
        self.check_settings()
        require_library("tensorboardX", "tensorboard")

    def start(self, results: xr.Dataset) -> "TensorBoardSession":
        return TensorBoardSession(self, results)


@checked
def tensorboard(
    folder: str | os.PathLike = "runs", *, name: str | None = None, seed_curves: int = 20
) -> TensorBoardTracker:
    """A tracker that writes event files for TensorBoard: ``tensorboard --logdir runs``.

    Each grid point is a run, so that the means of all points are in one chart for each metric
    (``normalized_error/mean``), beside charts of the ends of the interval and of single seeds. The
    page *Custom scalars* has the mean with its band in one chart, and all seeds in another;
    *HParams* has a row for each grid point, *Text* the settings and the table, *Images* the
    pictures. It needs tensorboardX: ``pip install 'fljax[tensorboard]'``.

    Args:
      folder: the log folder, which may hold other studies; created if it is missing.
      name: of the study's folder in it; by default its scenario and the time. A study that is run
        again under the same name has its curves twice.
      seed_curves: of how many seeds each metric has a curve.

    Raises:
      ValueError: an impossible name.

    Example:
      >>> import fljax as fl
      >>> tracker = fl.track.tensorboard("runs", name="first trial", seed_curves=5)
    """
    tracker = TensorBoardTracker(Path(folder), name, seed_curves)
    tracker.check_settings()
    return tracker


class TensorBoardSession(StudySession):
    """A study as folders of event files, one for each grid point."""

    def __init__(self, tracker: TensorBoardTracker, results: xr.Dataset) -> None:
        super().__init__(tracker, results)
        self.folder = tracker.folder / self.name
        self._writers: dict[int, Any] = {}
        self._study = self._writer(self.folder)
        self._study.add_text("settings", _as_table(self.settings))
        self._study.add_text("environment", _as_table(self.environment))
        self._study.flush()
        #: Tags of the curves that each point has.
        self._tags: dict[int, dict[str, None]] = {point.position: {} for point in self.points}

    def write(self, point: Point, curve: Curve) -> None:
        writer = self._writer_of(point)
        for metric, values in curve.values.items():
            tag = _tag(f"{metric}/{curve.name}")
            self._tags[point.position][tag] = None
            for number, value in zip(curve.rounds, values.tolist(), strict=True):
                writer.add_scalar(tag, value, number)
        writer.flush()

    def close(self, summary: Summary) -> None:
        from tensorboardX.summary import hparams

        for point, final in zip(self.points, summary.final, strict=True):
            writer = self._writer_of(point)
            tags = self._tags[point.position]
            writer.add_custom_scalars(_charts([*tags]))
            parameters = {name: _parameter(value) for name, value in point.values.items()}
            final = {_tag(name): value for name, value in final.items()}
            numbers = {tag: value for tag, value in final.items() if tag in tags}
            if parameters and numbers:
                # By the writer of the curves: `add_hparams` opens another one, whose file has the
                # same name if both are opened within a second.
                for part in hparams(parameters, numbers):
                    writer.file_writer.add_summary(part)
            writer.close()
        if summary.table is not None:
            self._study.add_text("table", str(summary.table))
        for name, content in summary.pictures.items():
            pixels = plt.imread(io.BytesIO(content), format="png")
            self._study.add_image(name, pixels[..., :3], dataformats="HWC")
        self._study.add_text("state", _as_table({"state": summary.state} | summary.times))
        self._study.close()

    def _writer_of(self, point: Point) -> Any:
        if point.position not in self._writers:
            self._writers[point.position] = self._writer(self.folder / self._folder_name(point))
        return self._writers[point.position]

    def _folder_name(self, point: Point) -> str:
        """The label of a point as the name of a folder, with its position if that is not unique."""

        def allowed(label: str) -> str:
            return re.sub(r'[\\/:*?"<>|\s]+', "_", label)[:100]

        name = allowed(point.label)
        is_unique = sum(allowed(other.label) == name for other in self.points) == 1
        return name if is_unique else f"{point.position}_{name}"

    def _writer(self, folder: Path) -> Any:
        from tensorboardX import SummaryWriter

        return SummaryWriter(logdir=str(folder))


def _tag(name: str) -> str:
    """A name with the characters that TensorBoard allows: the library would replace the others in
    the tag of a curve, but not where a chart names it.
    """
    return re.sub(r"[^-/\w.]", "_", name)


def _charts(tags: list[str]) -> dict[str, dict[str, list]]:
    """The charts of the page *Custom scalars* for a run with these curves."""
    charts: dict[str, dict[str, list]] = {}
    for metric in dict.fromkeys(tag.rpartition("/")[0] for tag in tags):
        band = [f"{metric}/{part}" for part in MEAN_CURVES]
        seeds = [tag for tag in tags if tag.startswith(f"{metric}/seed_")]
        charts[metric] = {"mean and interval": ["Margin", band]} if {*band} <= {*tags} else {}
        if seeds:
            charts[metric]["seeds"] = ["Multiline", seeds]
    return charts


def _parameter(value: object) -> bool | str | float | int:
    return value if isinstance(value, bool | str | float | int) else str(value)


def _as_table(values: dict[str, Any]) -> str:
    """Names and values as a table in Markdown."""
    rows = [
        f"| {name} | {as_text(value).replace('|', '&#124;')} |" for name, value in values.items()
    ]
    return "\n".join(["| name | value |", "| --- | --- |", *rows])
