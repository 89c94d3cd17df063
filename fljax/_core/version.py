"""The version of this package, and its folder."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The folder of the package. Code that looks for its files takes it from here and not from its own
#: ``__file__``, which moves with the file.
PACKAGE = Path(__file__).parents[1]


def _of_source() -> str:
    """The version in the project's own file, for a source tree that was never installed."""
    try:
        project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
        return project["project"]["version"] if project["project"]["name"] == "fljax" else "0"
    except (OSError, KeyError, ValueError):  # the package alone was copied
        return "0"


try:
    __version__ = version("fljax")
except PackageNotFoundError:
    __version__ = _of_source()
