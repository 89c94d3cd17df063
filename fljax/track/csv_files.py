"""A study in plain files."""

import csv as csv_writer
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import xarray as xr

from fljax._core.annotations import checked
from fljax._core.storage import replace_file
from fljax.track.study_session import Curve, Point, StudySession, StudyTracker, Summary


@dataclasses.dataclass(frozen=True)
class CsvTracker(StudyTracker):
    """Made by :func:`csv`."""

    folder: Path
    seed_curves: int
    name: str | None = None

    def check(self) -> None:
        self.check_settings()

    def start(self, results: xr.Dataset) -> "CsvSession":
        return CsvSession(self, results)


@checked
def csv(folder: str | os.PathLike, *, seed_curves: int = 1000) -> CsvTracker:
    """A tracker that writes a folder of plain files, without any further library.

    - ``curves.csv`` has a row for each curve and round: the values of the grid's axes, ``curve``
      (``mean``, ``low``, ``high`` or ``seed 0``, ...), ``round``, and a column for each metric. It
      grows while the study runs.
    - ``settings.json`` has the arguments of the study, versions and devices, and in the end its
      state and duration.
    - ``table.csv`` and a picture of each metric, ``<metric>.png``, are written in the end.

    Files of an earlier study in the folder are replaced.

    Args:
      folder: created if it is missing.
      seed_curves: of how many seeds each metric has a curve.

    Raises:
      ValueError: the name of a file.

    Example:
      >>> import jax, fljax as fl, pandas
      >>> def scenario(key, penalty):
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(key, clients=6, samples=10, dim=2),
      ...         network=fl.graphs.ring(6),
      ...         algorithm=fl.algorithms.NetworkedADMM(penalty),
      ...         metrics=["normalized_error"])
      >>> folder = getfixture("tmp_path") / "files"
      >>> study = fl.sweep(scenario, rounds=4, seeds=3, grid={"penalty": [0.5, 1.0]},
      ...                  track=fl.track.csv(folder))
      >>> sorted(path.name for path in folder.iterdir())
      ['curves.csv', 'normalized_error.png', 'settings.json', 'table.csv']
      >>> curves = pandas.read_csv(folder / "curves.csv")
      >>> list(curves.columns), len(curves)  # two points, three seeds and the mean with its band
      (['penalty', 'curve', 'round', 'normalized_error'], 48)
    """
    folder = Path(folder)
    if folder.suffix == ".csv" or folder.is_file():
        raise ValueError(
            f"fljax.track.csv writes several files into a folder, got the file {folder}; give a "
            f"folder, such as {folder.with_suffix('')}."
        )
    tracker = CsvTracker(folder, seed_curves)
    tracker.check_settings()
    return tracker


class CsvSession(StudySession):
    """A study in a folder."""

    def __init__(self, tracker: CsvTracker, results: xr.Dataset) -> None:
        super().__init__(tracker, results)
        self.folder = tracker.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_settings({"state": "running"})
        self._has_header = False

    def write(self, point: Point, curve: Curve) -> None:
        mode = "a" if self._has_header else "w"
        with open(self.folder / "curves.csv", mode, newline="", encoding="utf-8") as file:
            writer = csv_writer.writer(file)
            if not self._has_header:
                writer.writerow([*point.values, "curve", "round", *curve.values])
                self._has_header = True
            numbers = np.stack([*curve.values.values()], axis=1).tolist()  # [R, metrics]
            for number, row in zip(curve.rounds, numbers, strict=True):
                writer.writerow([*point.values.values(), curve.name, number, *row])

    def close(self, summary: Summary) -> None:
        if summary.table is not None:
            replace_file(self.folder / "table.csv", summary.table.csv())
        for name, content in summary.pictures.items():
            replace_file(self.folder / f"{name}.png", content)
        self._write_settings({"state": summary.state} | summary.times)

    def _write_settings(self, more: dict) -> None:
        content = {"study": self.name} | more
        content |= {"settings": self.settings, "environment": self.environment}
        text = json.dumps(content, indent=2, default=str)
        replace_file(self.folder / "settings.json", text)
