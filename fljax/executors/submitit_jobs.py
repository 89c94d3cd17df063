"""Jobs of SLURM, by submitit."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Literal

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.executors.engine_libraries import library_of

#: Seconds between looks at the results of jobs.
LOOK_SECONDS = 0.5


class _JobFuture(Future):
    """The result of a job; to cancel it cancels the job."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.job = job

    def cancel(self) -> bool:
        if self.done() or not super().cancel():
            return False
        self.job.cancel(check=False)
        return True

    def look(self) -> None:
        """Take the result of the job if there is one."""
        if not self.job.done() or not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(self.job.result())
        except BaseException as error:
            self.set_exception(error)


class SubmititExecutor(Executor):
    """Made by :func:`submitit`.

    Attributes:
      engine: the executor of submitit.
      most_tasks: the number of jobs into which a study is divided.
    """

    def __init__(self, engine: Any, jobs: int) -> None:
        self.engine = engine
        self.most_tasks = jobs
        self._waiting: list[_JobFuture] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _JobFuture(self.engine.submit(fn, *args, **kwargs))
        with self._lock:
            self._waiting.append(future)
            if len(self._waiting) == 1:
                threading.Thread(target=self._look, name="fljax-submitit", daemon=True).start()
        return future

    def _look(self) -> None:
        """Look at all jobs until none is left."""
        while True:
            for future in list(self._waiting):
                future.look()
            with self._lock:
                self._waiting = [future for future in self._waiting if not future.done()]
                if not self._waiting:
                    return
            time.sleep(LOOK_SECONDS)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_closed = True
        for future in list(self._waiting):
            if cancel_futures:
                future.cancel()
            elif wait:
                with contextlib.suppress(BaseException):
                    future.exception()


@checked
def submitit(
    folder: str | os.PathLike,
    *,
    jobs: int = 20,
    cluster: Literal["slurm", "local", "debug"] | None = None,
    parameters: dict[str, Any] | None = None,
) -> SubmititExecutor:
    """Jobs of SLURM that compute a study, submitted by submitit.

    A job that is killed, or whose time is over, is submitted again and continues from the last
    checkpoint of its piece. It needs the library: ``pip install 'fljax[submitit]'``.

    Args:
      folder: for scripts and logs of the jobs; the nodes must see it, as they must see the store.
      jobs: the number of jobs into which a study is divided, at most one for each of its calls.
      cluster: ``"slurm"``, or ``"local"`` for processes of this machine; by default SLURM if there
        is one.
      parameters: of ``submitit.AutoExecutor.update_parameters``: ``{"timeout_min": 240,
        "cpus_per_task": 4, "mem_gb": 8, "slurm_partition": "gpu"}``.

    Raises:
      ImportError: submitit is not installed.
      ValueError: jobs < 1; another cluster; parameters that submitit does not know.

    Example:
      >>> import fljax as fl
      >>> folder = getfixture("tmp_path") / "jobs"
      >>> fl.executors.submitit(folder, cluster="local", jobs=2)  # doctest: +SKIP
    """
    checks.count("jobs", jobs)
    if cluster is not None:
        checks.choice("cluster", cluster, ("slurm", "local", "debug"))
    library = library_of("submitit")
    try:
        engine = library.AutoExecutor(folder=folder, cluster=cluster)
        engine.update_parameters(**(parameters or {}))
    except (NameError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"submitit refuses these parameters: {error}.") from None
    return SubmititExecutor(engine, jobs)
