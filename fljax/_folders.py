"""Where a user's files are kept and how they are written; what was downloaded, compiled or measured
once; and by whom.
"""

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

__all__ = [
    "OtherStudyError",
    "StoreError",
    "alive",
    "array_digest",
    "cache",
    "claim",
    "digest",
    "home_cache",
    "host",
    "named",
    "replace_file",
    "restored",
    "sealed",
    "storable",
    "unsealed",
    "write_whole",
    "writing",
]


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


class OtherStudyError(ValueError):
    """A store holds another study or run than the one that is to go on in it; it is unharmed."""


def named(folder: str | os.PathLike) -> Path:
    """The path of a folder; raise ``ValueError`` for one without a name."""
    if not os.fspath(folder):
        raise ValueError(
            "store must be the name of a folder, got ''; give it a name, or '.' for this folder."
        )
    return Path(folder)


def claim(folder: str | os.PathLike, mark: str, kind: str) -> Path:
    """A folder for a user's results, made if it does not exist: every store is opened by this.

    Args:
      folder: as the user names it.
      mark: the file that is in each folder of this kind, and the first that is written into one.
      kind: of store, in words.

    Raises:
      StoreError: it holds something else, or cannot be made.
      ValueError: it has no name.
    """
    path = named(folder)
    if not path.is_dir():  # who only reads may lack the right to make it
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
    # In this order: another process may write the mark in between.
    others = any(not found.name.startswith(".") for found in path.iterdir())
    if others and not (path / mark).is_file():
        raise StoreError(
            f"{path} is no {kind} of fljax and is not empty; give an empty folder or one that does "
            "not exist yet."
        )
    return path


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say of what goes wrong which store could not be written, and how to go on."""
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
    """Write a file atomically; one that is replaced passes on who may read it."""
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
        file (the message says which); an existing file is left unchanged.
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
    """Of a file's bytes, to know later whether they were changed."""
    return hashlib.sha256(content).hexdigest()[:24]


def array_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Of the names, types, shapes and bytes of arrays."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
        whole.update(array.tobytes())
    return whole.hexdigest()[:24]


def storable(array: np.ndarray) -> tuple[np.ndarray, str]:
    """An array as NumPy's files have it, and the type of which its bytes are: one of JAX's small
    types, of which files would say only how many bytes they have; empty for all others.
    """
    if array.dtype.isbuiltin != 2:  # registered by another library than NumPy
        return array, ""
    return array.view(f"u{array.dtype.itemsize}"), array.dtype.name


def restored(array: np.ndarray, kind: str) -> np.ndarray:
    """What :func:`storable` made storable."""
    return array.view(jax.numpy.dtype(kind)) if kind else array


def sealed(content: Mapping[str, Any], **style: Any) -> str:
    """JSON of a mapping with a digest of it, which :func:`unsealed` reads.

    Args:
      content: the mapping.
      style: what :func:`json.dumps` takes, of the looks of the text alone.
    """
    return json.dumps({**content, "digest": digest(json.dumps(content).encode())}, **style)


def unsealed(text: str) -> dict[str, Any]:
    """What was passed to :func:`sealed`.

    Raises:
      ValueError: it is not what was written; the message says why, and goes on from "it".
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
