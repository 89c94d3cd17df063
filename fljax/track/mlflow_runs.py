"""A study at an MLflow server or in its database file."""

import dataclasses
import os
import re
import tempfile
import time
from pathlib import Path

import xarray as xr

from fljax._core.annotations import checked
from fljax._core.storage import replace_file
from fljax.track.study_session import (
    Curve,
    Point,
    StudySession,
    StudyTracker,
    Summary,
    as_text,
    require_library,
)

#: MLflow's largest number of metrics in one call.
BATCH = 1000

#: MLflow's longest value of a parameter.
MAX_PARAMETER = 6000


@dataclasses.dataclass(frozen=True)
class MlflowTracker(StudyTracker):
    """Made by :func:`mlflow`."""

    experiment: str
    uri: str | None
    name: str | None
    artifacts: str | None
    seed_curves: int

    def check(self) -> None:
        self.check_settings()
        require_library("mlflow", "mlflow")

    def start(self, results: xr.Dataset) -> "MlflowSession":
        return MlflowSession(self, results)


@checked
def mlflow(
    experiment: str = "fljax",
    *,
    uri: str | None = None,
    name: str | None = None,
    artifacts: str | os.PathLike | None = None,
    seed_curves: int = 20,
) -> MlflowTracker:
    """A tracker that sends a study to MLflow.

    The study is a run with the settings as parameters, the environment as tags, and the table and
    pictures as artifacts. Each grid point is a run within it, with the values of the grid's axes as
    parameters and the curves ``normalized_error/mean``, ``/low``, ``/high`` and ``/seed 0`` as
    metrics, whose steps are rounds. It needs MLflow: ``pip install 'fljax[mlflow]'``.

    Args:
      experiment: name of the experiment, created if it does not exist.
      uri: of a server, ``"http://host:5000"``, or of a database, ``"sqlite:///studies.db"``; by
        default what ``MLFLOW_TRACKING_URI`` says, else MLflow's default.
      name: of the study's run; by default the scenario and the time.
      artifacts: a folder for the tables and pictures of a new experiment; by default the server
        chooses.
      seed_curves: of how many seeds each metric has a curve.

    Raises:
      ValueError: an empty experiment, an impossible name, a URI without a scheme.

    Example:
      >>> import fljax as fl
      >>> tracker = fl.track.mlflow("networks", uri="sqlite:///studies.db")
    """
    if not experiment.strip():
        raise ValueError("experiment must be the name of an MLflow experiment, got an empty one.")
    if uri is not None and not re.match(r"[a-z][a-z0-9+.-]*:|databricks$|uc$", uri):
        raise ValueError(
            f"uri must be of a server, such as 'http://host:5000', or of a database, such as "
            f"'sqlite:///studies.db', got {uri!r}."
        )
    location = None if artifacts is None else Path(artifacts).resolve().as_uri()
    tracker = MlflowTracker(experiment, uri, name, location, seed_curves)
    tracker.check_settings()
    return tracker


class MlflowSession(StudySession):
    """A study as a run with a run for each grid point.

    The library's client is used and not its functions: these have one current run, which may be the
    user's.
    """

    def __init__(self, tracker: MlflowTracker, results: xr.Dataset) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        super().__init__(tracker, results)
        self.client = MlflowClient(tracker.uri)
        experiment = self.client.get_experiment_by_name(tracker.experiment)
        if experiment is None:
            self.experiment = self.client.create_experiment(tracker.experiment, tracker.artifacts)
        else:
            self.experiment = experiment.experiment_id
        self._runs: dict[int, str] = {}
        tags = {name: as_text(value) for name, value in self.environment.items()}
        self._study = self._run(self.name, tags)
        parameters = {name: as_text(value) for name, value in self.settings.items()}
        short = [Param(n, v) for n, v in parameters.items() if len(v) <= MAX_PARAMETER]
        self.client.log_batch(self._study, params=short)
        content = {"settings": self.settings, "environment": self.environment}
        self.client.log_dict(self._study, content, "settings.json")

    def write(self, point: Point, curve: Curve) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        run = self._run_of(point)
        metrics = [
            Metric(f"{name}/{curve.name}", value, now, number)
            for name, values in curve.values.items()
            for number, value in zip(curve.rounds, values.tolist(), strict=True)
        ]
        for first in range(0, len(metrics), BATCH):
            self.client.log_batch(run, metrics=metrics[first : first + BATCH])

    def close(self, summary: Summary) -> None:
        status = {"finished": "FINISHED", "interrupted": "KILLED"}.get(summary.state, "FAILED")
        for point in self.points:
            self.client.set_terminated(self._run_of(point), status)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in summary.pictures.items():
                replace_file(Path(folder, f"{name}.png"), content)
            if summary.table is not None:
                replace_file(Path(folder, "table.csv"), summary.table.csv())
                replace_file(Path(folder, "table.md"), str(summary.table))
            self.client.log_artifacts(self._study, folder)
        for name, value in summary.times.items():
            self.client.set_tag(self._study, name, as_text(value))
        self.client.set_terminated(self._study, status)

    def _run_of(self, point: Point) -> str:
        from mlflow.entities import Param

        if point.position not in self._runs:
            run = self._run(point.label, {"mlflow.parentRunId": self._study})
            values = [Param(name, as_text(value)) for name, value in point.values.items()]
            self.client.log_batch(run, params=values)
            self._runs[point.position] = run
        return self._runs[point.position]

    def _run(self, name: str, tags: dict[str, str]) -> str:
        run = self.client.create_run(self.experiment, tags=tags, run_name=name)
        return run.info.run_id
