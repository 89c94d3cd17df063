"""The libraries of engines, which are optional."""

import importlib.util
from typing import Any


def library_of(module: str, engine: str | None = None) -> Any:
    """An engine's library.

    Args:
      module: that is imported.
      engine: its name here and as an extra; by default, that of the module.

    Raises:
      ImportError: it is not installed.
    """
    package = module.partition(".")[0]
    engine = engine or module
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"fljax.executors.{engine} needs {package}, which is not installed; "
            f"pip install 'fljax[{engine}]'."
        )
    return importlib.import_module(module)
