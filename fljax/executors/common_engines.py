"""Engines whose executors are those of ``concurrent.futures``."""

import multiprocessing
import re
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.executors.engine_libraries import library_of


@checked
def processes(workers: int | None = None) -> ProcessPoolExecutor:
    """Processes of this machine that compute a study.

    They are spawned, since a fork of a process in which JAX has run hangs. A script that uses them
    needs ``if __name__ == "__main__":`` before what only the first process is to do.

    Args:
      workers: their number; by default one for each core.

    Raises:
      ValueError: workers < 1.

    Example:
      >>> import fljax as fl
      >>> with fl.executors.processes(2) as executor:
      ...     print(type(executor).__name__)
      ProcessPoolExecutor
    """
    if workers is not None:
        checks.count("workers", workers)
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@checked
def dask(address: str | None = None, options: dict[str, Any] | None = None) -> Executor:
    """Workers of Dask that compute a study.

    The same as ``distributed.Client(address, **options).get_executor()``; the connection is closed
    when the process ends. It needs the library: ``pip install 'fljax[dask]'``.

    Args:
      address: of the scheduler, ``"tcp://10.0.0.1:8786"``; by default, Dask starts workers on this
        machine.
      options: of ``distributed.Client``, such as ``{"scheduler_file": "scheduler.json"}``, or
        ``{"n_workers": 4, "threads_per_worker": 1}`` for workers of this machine.

    Raises:
      ImportError: Dask is not installed.
      OSError: no scheduler answers at the address.
      ValueError: an address without a port or protocol, options that Dask does not know.

    Example:
      >>> import fljax as fl
      >>> executor = fl.executors.dask("tcp://10.0.0.1:8786")  # doctest: +SKIP
    """
    if address is not None and not re.search(r":(\d+|//)", address):
        raise ValueError(
            f"address is that of Dask's scheduler, such as tcp://10.0.0.1:8786, got {address!r}; "
            "the scheduler's log has it."
        )
    library = library_of("distributed", "dask")
    try:
        return library.Client(address, **(options or {})).get_executor()
    except (TypeError, ValueError) as error:
        raise ValueError(f"Dask refuses these options: {error}.") from None


@checked
def mpi(options: dict[str, Any] | None = None) -> Executor:
    """Processes of MPI that compute a study.

    The same as ``mpi4py.futures.MPIPoolExecutor(**options)``. The program is started by
    ``mpiexec -n 9 python -m mpi4py.futures study.py``, of whose nine processes eight compute. It
    needs the library, and an MPI: ``pip install 'fljax[mpi]'``.

    Args:
      options: of ``MPIPoolExecutor``, such as ``{"max_workers": 8}``.

    Raises:
      ImportError: mpi4py is not installed.
      ValueError: options that it does not know.

    Example:
      >>> import fljax as fl
      >>> executor = fl.executors.mpi()  # doctest: +SKIP
    """
    library = library_of("mpi4py.futures", "mpi")
    try:
        return library.MPIPoolExecutor(**(options or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"mpi4py refuses these options: {error}.") from None
