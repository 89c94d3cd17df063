"""The libraries of engines, which are optional."""

import importlib.util
from typing import Any


def library_of(name: str) -> Any:
    """An engine's library.

    Raises:
      ImportError: it is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise ImportError(
            f"fljax.executors.{name} needs {name}, which is not installed; "
            f"pip install 'fljax[{name}]'."
        )
    return importlib.import_module(name)
