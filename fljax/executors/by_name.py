"""Executors by the names of their engines, for study files and command lines."""

import inspect
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.nearest_names import nearest, question
from fljax.executors.common_engines import dask, mpi, processes
from fljax.executors.ray_tasks import ray
from fljax.executors.submitit_jobs import submitit

#: The engines by name.
ENGINES: dict[str, Callable[..., Executor]] = {
    "dask": dask,
    "mpi": mpi,
    "processes": processes,
    "ray": ray,
    "submitit": submitit,
}


@checked
def executor_of(description: str | Mapping[str, Any]) -> Executor:
    """The executor of an engine that is given by its name.

    Args:
      description: ``"processes"``, ``"dask"``, ``"ray"``, ``"submitit"`` or ``"mpi"``; with
        arguments of the function of that name here a mapping,
        ``{"name": "submitit", "folder": "jobs", "jobs": 10}``, or its JSON text.

    Raises:
      ImportError: the engine's library is not installed.
      ValueError: no such engine or argument, a text that is no JSON, an argument that the engine
        refuses.

    Example:
      >>> import fljax as fl
      >>> with fl.executors.executor_of('{"name": "processes", "workers": 2}') as executor:
      ...     print(type(executor).__name__)
      ProcessPoolExecutor
    """
    if isinstance(description, str):
        description = _parsed(description)
    settings = dict(description)
    name = settings.pop("name", None)
    checks.choice("executor", name, ENGINES)
    make = ENGINES[name]
    parameters = inspect.signature(make).parameters
    for key in settings:
        if key not in parameters:
            suggestion = question(nearest(key, parameters)) or f"It has: {', '.join(parameters)}."
            raise ValueError(f"executor {name} has no argument {key!r}. {suggestion}")
    try:
        return make(**settings)
    except TypeError as error:
        raise ValueError(f"executor {name}: {error}.".replace("..", ".")) from None


def _parsed(text: str) -> Mapping[str, Any]:
    """A name alone, or a mapping as JSON."""
    if not text.lstrip().startswith("{"):
        return {"name": text}
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(
            "executor is the name of an engine, or JSON such as "
            f'\'{{"name": "processes", "workers": 4}}\', got {text!r}: {error}.'
        ) from None
