"""A study at Weights & Biases."""

import dataclasses
import io
import os
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.track.study_session import (
    Curve,
    Point,
    StudySession,
    StudyTracker,
    Summary,
    require_library,
)


@dataclasses.dataclass(frozen=True)
class WandbTracker(StudyTracker):
    """Made by :func:`wandb`."""

    project: str
    name: str | None
    entity: str | None
    mode: Literal["online", "offline"] | None
    folder: str | None
    seed_curves: int

    def check(self) -> None:
        self.check_settings()
        require_library("wandb", "wandb")
        if self._mode() == "online" and not _has_login():
            raise ValueError(
                "fljax.track.wandb has no login: run `wandb login`, set WANDB_API_KEY, or pass "
                "mode='offline' and send the folder later with `wandb sync`."
            )

    def _mode(self) -> str:
        return self.mode or os.environ.get("WANDB_MODE", "online")

    def start(self, results: xr.Dataset) -> "WandbSession":
        return WandbSession(self, results)


def _has_login() -> bool:
    """Whether the library has a key, from its settings, the environment or ``~/.netrc``."""
    import wandb

    return wandb.login(prompt=False, verify=False)


@checked
def wandb(
    project: str,
    *,
    name: str | None = None,
    entity: str | None = None,
    mode: Literal["online", "offline"] | None = None,
    folder: str | os.PathLike | None = None,
    seed_curves: int = 20,
) -> WandbTracker:
    """A tracker that sends a study to Weights & Biases.

    Each grid point is a run of one group, with the values of the grid's axes as its configuration;
    ``normalized_error/mean``, ``/low``, ``/high`` and ``/seed 0`` are its curves, over ``round``.
    One further run, of type *study*, has the settings, the environment, the table and the pictures.
    It needs the library of that name: ``pip install 'fljax[wandb]'``.

    Args:
      project: of Weights & Biases.
      name: of the group; by default the scenario and the time.
      entity: the user or team; by default that of the login.
      mode: ``"online"``, or ``"offline"``, which writes a folder that ``wandb sync`` sends later;
        by default what ``WANDB_MODE`` says, else online.
      folder: where the library stores its files; by default ``wandb`` in the current folder.
      seed_curves: of how many seeds each metric has a curve.

    Raises:
      ValueError: an impossible project, name or mode.

    Example:
      >>> import fljax as fl
      >>> tracker = fl.track.wandb("networks", mode="offline")
    """
    if not project or set(project) & set("/\\#?%:\n"):
        raise ValueError(f"project must be a name without any of / \\ # ? % :, got {project!r}.")
    if mode is not None:
        checks.choice("mode", mode, ("online", "offline"))
    folder = None if folder is None else os.fspath(folder)
    tracker = WandbTracker(project, name, entity, mode, folder, seed_curves)
    tracker.check_settings()
    return tracker


class WandbSession(StudySession):
    """A study as a group of runs."""

    def __init__(self, tracker: WandbTracker, results: xr.Dataset) -> None:
        super().__init__(tracker, results)
        self.tracker = tracker
        if tracker.folder is not None:
            Path(tracker.folder).mkdir(parents=True, exist_ok=True)
        self._runs: dict[int, Any] = {}
        settings = {"settings": self.settings, "environment": self.environment}
        self._study = self._run(self.name, "study", settings)

    def write(self, point: Point, curve: Curve) -> None:
        run = self._run_of(point)
        names = [f"{metric}/{curve.name}" for metric in curve.values]
        numbers = np.stack([*curve.values.values()], axis=1).tolist()  # [R, metrics]
        for number, row in zip(curve.rounds, numbers, strict=True):
            run.log({"round": number, **dict(zip(names, row, strict=True))})

    def close(self, summary: Summary) -> None:
        import wandb

        for point, final in zip(self.points, summary.final, strict=True):
            run = self._run_of(point)
            run.summary.update({f"final/{name}": value for name, value in final.items()})
            run.finish(exit_code=_exit_code(summary.state))
        media: dict[str, Any] = {
            name: wandb.Image(plt.imread(io.BytesIO(content), format="png"))
            for name, content in summary.pictures.items()
        }
        if summary.table is not None:
            media["table"] = wandb.Table(dataframe=summary.table.frame)
        if media:
            self._study.log(media)
        self._study.summary.update({"state": summary.state} | summary.times)
        self._study.finish(exit_code=_exit_code(summary.state))

    def _run_of(self, point: Point) -> Any:
        if point.position not in self._runs:
            run = self._run(point.label, "grid point", dict(point.values))
            # Seeds reach a round at different times, so the library's own steps are no rounds.
            run.define_metric("round")
            run.define_metric("*", step_metric="round")
            self._runs[point.position] = run
        return self._runs[point.position]

    def _run(self, name: str, kind: str, configuration: dict[str, Any]) -> Any:
        import wandb

        tracker = self.tracker
        return wandb.init(
            project=tracker.project,
            entity=tracker.entity,
            name=name,
            group=self.name,
            job_type=kind,
            config=configuration,
            dir=tracker.folder,
            mode=tracker.mode,
            reinit="create_new",  # all grid points are open at the same time
            settings=wandb.Settings(console="off", silent=True),
        )


def _exit_code(state: str) -> int:
    """What the library shows as finished, killed or crashed."""
    return {"finished": 0, "interrupted": 255}.get(state, 1)
