"""Files: the cache's folder, atomic writes, digests, and folders that are claimed as a store."""

import contextlib
import functools
import hashlib
import json
import os
import platform
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy
import numpy as np


def cache() -> Path:
    """The folder of downloads, compiled programs and measurements.

    It is ``FLJAX_CACHE``, by default ``~/.cache/fljax``.
    """
    setting = os.environ.get("FLJAX_CACHE")
    return Path(setting) if setting else home_cache()


def home_cache() -> Path:
    """``~/.cache/fljax``; for a user without a home a private folder for temporary files."""
    try:
        return Path.home() / ".cache" / "fljax"
    except RuntimeError:  # a user without a name, as in a container
        return _temporary_cache()


@functools.cache
def _temporary_cache() -> Path:
    """A folder for temporary files that only this user can read and write."""
    folder = Path(tempfile.gettempdir()) / f"fljax-{os.geteuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o77
        ):
            return folder
    return Path(tempfile.mkdtemp(prefix="fljax-"))  # another user may have created the other folder


def host() -> str:
    """The name of the machine, as used in names of files."""
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


class OtherStudyError(ValueError):
    """A store holds another study or run than the one to be continued; it is unharmed."""


def named(folder: str | os.PathLike) -> Path:
    """The path of a folder; raise ``ValueError`` for an empty name."""
    if not os.fspath(folder):
        raise ValueError(
            "store must be the name of a folder, got ''; give it a name, or '.' for this folder."
        )
    return Path(folder)


def claim(folder: str | os.PathLike, marker: str, kind: str) -> Path:
    """Open a folder for a user's results, and create it if it does not exist.

    Args:
      folder: as given by the user.
      marker: name of the file that each folder of this kind has; it is written first.
      kind: of store, in words.

    Raises:
      StoreError: it holds something else, or cannot be created.
      ValueError: its name is empty.
    """
    path = named(folder)
    try:
        if not path.is_dir():  # a user who only reads need not have the permission to create it
            with writing(path):
                path.mkdir(parents=True, exist_ok=True)
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        name = os.fspath(folder)[:60]  # one that no folder of this system can have
        raise StoreError(f"store {name!r} cannot be a folder: {error}") from None
    # List the folder before looking for the marker, which another process may write in between.
    has_entries = any(not entry.name.startswith(".") for entry in path.iterdir())
    if has_entries and not (path / marker).is_file():
        raise StoreError(
            f"{path} is no {kind} of fljax and is not empty; give an empty folder or one that does "
            "not exist yet."
        )
    return path


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Within, turn errors of the system into a ``StoreError`` with the folder and a remedy."""
    try:
        yield
    except (StoreError, TimeoutError):
        raise
    except OSError as error:
        raise StoreError(
            f"cannot write to the store {folder}: {error.strerror or error}. What it holds is "
            "whole; make room or make it writable, then run the same study again to go on."
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; a replaced file passes on its permissions."""
    process = f"{host()}.{os.getpid()}.{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{process}.tmp")
    try:
        with open(temporary, "wb") as file:
            with contextlib.suppress(OSError):
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes | str) -> Path:
    """Write a file that a user names, atomically. A link stays a link.

    Raises:
      OSError: the folder is missing or not writable, the disk is full, or the path is not that of a
        file. An existing file is left unchanged.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent}; create it first.")
    if path.exists() and not path.is_file():
        raise FileExistsError(
            f"{path} is no regular file and is not replaced; give the name of a file."
        )
    try:
        write_whole(path.resolve(), content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write {path} ({error.strerror}); make room or choose another folder",
        ) from error
    return path


def digest(content: bytes) -> str:
    """The digest of a file's bytes, to detect changes."""
    return hashlib.sha256(content).hexdigest()[:24]


def array_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The digest of the names, types, shapes and bytes of arrays."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()[:24]


def storable(array: np.ndarray) -> tuple[np.ndarray, str]:
    """An array that NumPy can store, and the name of its type if the file would lose it.

    Types of ``ml_dtypes``, such as ``bfloat16``, are stored as unsigned integers. For other arrays
    the name is empty.
    """
    if array.dtype.isbuiltin != 2:  # registered by another library than NumPy
        return array, ""
    return array.view(f"u{array.dtype.itemsize}"), array.dtype.name


def restored(array: np.ndarray, kind: str) -> np.ndarray:
    """The inverse of :func:`storable`."""
    return array.view(jax.numpy.dtype(kind)) if kind else array


def sealed(content: Mapping[str, Any], **style: Any) -> str:
    """A mapping as JSON with a digest, which :func:`unsealed` checks.

    Args:
      content: the mapping.
      style: arguments of :func:`json.dumps` that only affect the layout of the text.
    """
    return json.dumps({**content, "digest": digest(json.dumps(content).encode())}, **style)


def unsealed(text: str) -> dict[str, Any]:
    """The mapping that was passed to :func:`sealed`.

    Raises:
      ValueError: the text was changed. The message is a clause with the subject "it".
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(content, dict) or "digest" not in content:
        raise ValueError("it has no digest of its content")
    if content.pop("digest") != digest(json.dumps(content).encode()):
        raise ValueError("it was cut or edited: it does not match its own digest")
    return content


def parent(path: Path) -> None:
    """Create the parent folder of a path; raise if a file has its name."""
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
      ValueError: a file that is not UTF-8 text.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text.") from None
