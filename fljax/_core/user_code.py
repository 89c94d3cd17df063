"""Code of users by its name, and the part of a traceback that is theirs."""

import functools
import importlib
import importlib.util
import io
import pickle
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fljax._core.version import PACKAGE

#: The files of modules that were imported as files, which have no name that others can import.
FILES: dict[str, Path] = {}

#: The folder of the package: code in other files is a user's or another library's.
HERE = str(PACKAGE)


class UsageError(Exception):
    """What the user asked for cannot be done; one line."""


def scenario_of(text: str) -> Callable[..., Any]:
    """The function behind ``file.py:name`` or ``module:name``."""
    source, _, name = text.rpartition(":")
    file = source.endswith(".py")
    if not ((file or source.strip(".") == source) and source and name):
        raise UsageError(f"a scenario is FILE.py:NAME or module:NAME, got {text!r}.")
    try:
        module = module_of(source)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        lines = user_lines(error)
        raise UsageError(
            f"{source} cannot be imported: {type(error).__name__}: {one_line(error)}{lines}"
        ) from None
    scenario = getattr(module, name, None)
    if scenario is None:
        raise UsageError(f"{source} has no function {name}.")
    if not callable(scenario):
        kind = type(scenario).__name__
        raise UsageError(f"{name} of {source} is no function but of type {kind}.")
    return scenario


def module_of(source: str) -> Any:
    """The module of a file, or of an importable name."""
    if not source.endswith(".py"):
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name and f"{source}.".startswith(f"{error.name}."):
                raise UsageError(f"no module {source} and no file {source}.py.") from None
            raise
    if not Path(source).is_file():
        raise UsageError(f"no file {source}.")
    spec = importlib.util.spec_from_file_location(Path(source).stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)  # dataclasses look their module up
    FILES[spec.name] = Path(source).resolve()
    spec.loader.exec_module(module)
    return module


class _FilePickler(pickle.Pickler):
    """Refers to functions and classes of :data:`FILES` by their file, not by a module's name."""

    def reducer_override(self, value: Any) -> Any:
        name = getattr(value, "__qualname__", None)  # instances have none
        module = getattr(value, "__module__", None)
        if not isinstance(name, str) or module not in FILES or "<locals>" in name:
            return NotImplemented
        return _from_file, (str(FILES[module]), name)


def pickled(value: Any) -> bytes:
    """A value as bytes from which another process has it, which sees the same files.

    Raises:
      pickle.PicklingError, AttributeError, TypeError: a part of it has no name.
    """
    content = io.BytesIO()
    _FilePickler(content).dump(value)
    return content.getvalue()


def _from_file(file: str, name: str) -> Any:
    """What has this name in a file that another process imported."""
    value = _imported_file(file)
    for part in name.split("."):
        value = getattr(value, part)
    return value


@functools.cache
def _imported_file(file: str) -> Any:
    """The module of a file, imported once: its classes must stay the same."""
    try:
        return module_of(file)
    except UsageError as error:
        raise ImportError(str(error)) from None


def one_line(error: object) -> str:
    return " ".join(str(error).split())


def user_lines(error: BaseException) -> str:
    """The part of the traceback in the user's files, each line of it on a new one."""
    folders = (HERE, "<", *(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")))
    stack = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in stack if not frame.filename.startswith(folders)]
    return "".join(f"\n{line}" for line in "".join(traceback.format_list(user_frames)).splitlines())
