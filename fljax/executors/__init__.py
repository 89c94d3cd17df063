"""Executors: the workers of a study on clusters, where an engine's own interface differs.

``fl.sweep(..., store="study", executor=...)``, ``fl.tune`` and ``fl.compare`` take any
``concurrent.futures.Executor``. Most engines have one:

- ``ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("spawn"))`` of the standard
  library: processes of this machine.
- ``client.get_executor()`` of a Dask client.
- ``MPIPoolExecutor()`` of ``mpi4py.futures``.
- ``get_reusable_executor(8)`` of loky.

The functions here make one of engines with another interface. The engine schedules the pieces of
the study; the store keeps what is finished.
"""

from fljax.executors.ray_tasks import ray
from fljax.executors.submitit_jobs import submitit

__all__ = ["ray", "submitit"]
