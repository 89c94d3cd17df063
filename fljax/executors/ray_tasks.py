"""Tasks of Ray."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from fljax._core.annotations import checked
from fljax.executors.engine_libraries import library_of


class RayExecutor(Executor):
    """Made by :func:`ray`.

    Attributes:
      engine: the library.
      options: of its tasks.
    """

    def __init__(self, engine: Any, options: dict[str, Any]) -> None:
        self.engine = engine
        self.options = options

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        task = self.engine.remote(fn).options(**self.options)
        reference = task.remote(*args, **kwargs)
        future = reference.future()

        def cancel(done: Future) -> None:
            if done.cancelled():
                self.engine.cancel(reference)

        future.add_done_callback(cancel)
        return future


@checked
def ray(options: dict[str, Any] | None = None) -> RayExecutor:
    """Tasks of Ray that compute a study.

    They run where ``ray.init`` has connected this process to, by default on this machine. Ray
    starts a task again whose worker is lost. It needs the library: ``pip install 'fljax[ray]'``.

    Args:
      options: of the tasks, see ``ray.remote``: ``{"num_cpus": 4, "num_gpus": 1}``.

    Raises:
      ImportError: Ray is not installed.
      ValueError: options that Ray does not know.

    Example:
      >>> import fljax as fl
      >>> executor = fl.executors.ray({"num_cpus": 1})  # doctest: +SKIP
    """
    library = library_of("ray")
    try:
        library.remote(library_of).options(**(options or {}))
    except (ValueError, TypeError) as error:
        raise ValueError(f"Ray refuses these options: {error}.") from None
    return RayExecutor(library, options or {})
