"""The version of this package, and its folder."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The folder of the package. Code that looks for its files takes it from here and not from its own
#: ``__file__``, which moves with the file.
PACKAGE = Path(__file__).parents[1]

try:
    __version__ = version("fljax")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
