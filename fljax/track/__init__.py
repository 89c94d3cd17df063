"""Trackers: the curves of a study in TensorBoard, Weights & Biases, MLflow, or in plain files.

``fl.sweep(..., track=fl.track.tensorboard("runs"))`` shows a study while it runs, and stores its
settings, the versions and devices it ran on, its table and its pictures. Several trackers at a time
are a list. Each grid point is a run of the tracker, in which every metric has one curve for each of
the first seeds and, as soon as all seeds have reached a round, the mean over all of them with its
confidence interval.

A tracker that fails never stops a study: there is one :class:`TrackerWarning`, and the study
continues without it. What would be wrong from the first round on, such as a missing library or a
missing login, is an error before anything is compiled.

Under a privacy budget a tracker receives what files of results hold as well: metrics that no budget
covers, and the root and seeds from which the noise can be drawn again (the setting ``not_covered``
lists all of it). Do not send private studies to a server that others read.

A tracker for another service is a subclass of :class:`Tracker` whose :meth:`Tracker.start` returns
a :class:`StudySession` with three methods. :mod:`~fljax.track.csv_files` is the shortest example.
"""

from fljax.results.tracker import Session, Tracker, TrackerWarning
from fljax.track.csv_files import csv
from fljax.track.mlflow_runs import mlflow
from fljax.track.study_session import Curve, Point, StudySession, StudyTracker, Summary
from fljax.track.tensorboard_files import tensorboard
from fljax.track.wandb_runs import wandb

__all__ = [
    "Curve",
    "Point",
    "Session",
    "StudySession",
    "StudyTracker",
    "Summary",
    "Tracker",
    "TrackerWarning",
    "csv",
    "mlflow",
    "tensorboard",
    "wandb",
]
