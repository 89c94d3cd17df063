"""Executors: the workers of a study on the cores of a machine and on clusters.

``fl.sweep(..., store="study", executor=...)``, ``fl.tune`` and ``fl.compare`` take any
``concurrent.futures.Executor``, also those that are not named here, such as
``get_reusable_executor(8)`` of loky. The functions here make one by an engine's name, as study
files and command lines need it. The engine schedules the pieces of the study; the store keeps what
is finished.
"""

from fljax.executors.by_name import executor_of
from fljax.executors.common_engines import dask, mpi, processes
from fljax.executors.ray_tasks import ray
from fljax.executors.submitit_jobs import submitit

__all__ = ["dask", "executor_of", "mpi", "processes", "ray", "submitit"]
