"""Where a user's files are kept and how they are written; what was downloaded, compiled or measured
once; and by whom.
"""

import contextlib
import functools
import os
import platform
import stat
import tempfile
import threading
from pathlib import Path

__all__ = ["StoreError", "alive", "cache", "home_cache", "host", "write_whole"]


def cache() -> Path:
    """The folder of what was found out once: ``FLJAX_CACHE``, by default ``~/.cache/fljax``."""
    given = os.environ.get("FLJAX_CACHE")
    return Path(given) if given else home_cache()


def home_cache() -> Path:
    """``~/.cache/fljax``, or a folder of this user's alone for one without a home."""
    try:
        return Path.home() / ".cache" / "fljax"
    except RuntimeError:  # a user without a name, as in a container
        return _without_home()


@functools.cache
def _without_home() -> Path:
    folder = Path(tempfile.gettempdir()) / f"fljax-{os.geteuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
        if (
            stat.S_ISDIR(about.st_mode)
            and about.st_uid == os.geteuid()
            and not about.st_mode & 0o77
        ):
            return folder
    return Path(tempfile.mkdtemp(prefix="fljax-"))  # anyone could have made the other


def host() -> str:
    """Name of the machine, as part of a file's."""
    return platform.node().replace(".", "-") or "host"


def alive(process: int) -> bool:
    """Whether a process of this machine is running."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class StoreError(OSError):
    """A store cannot be written, or is invalid; its contents are unharmed."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    process = f"{host()}.{os.getpid()}.{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{process}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def parent(path: Path) -> None:
    """Make the folder that a file or folder is to be in; raise if a file is in its place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(
            f"{path.parent} is, or is below, a file, and cannot be a folder; give another place."
        ) from None


def text_of(path: Path) -> str:
    """The text of a file.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a file that is no text.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text.") from None
