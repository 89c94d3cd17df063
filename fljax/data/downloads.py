"""Locations of data files: a folder of the user's, or a cache for downloads.

A loader identifies its file by a path relative to either place and by the SHA-256 of its bytes, so
that a study never runs on data other than stated. Nothing is downloaded unless :func:`download` is
called.
"""

import functools
import hashlib
import http.client
import os
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path

from fljax._core import storage
from fljax._core.annotations import checked

CHUNK = 2**20
TIMEOUT = 60  # seconds without an answer


def cache_folder() -> Path:
    """The folder of downloads: ``$FLJAX_CACHE/data``, by default ``~/.cache/fljax/data``.

    Without a home directory, as in a container, a private folder of this user among temporary
    files.
    """
    return storage.cache() / "data"


@checked
def locate(relative_path: str, sha256: str, how: str) -> Path:
    """Return the path of a file, with verified checksum: first in the folder ``FLJAX_DATA``, then
    in the cache.

    Args:
      relative_path: the file's name below either folder, such as ``"mnist/train-images.gz"``.
      sha256: SHA-256 of its bytes, in hexadecimal.
      how: a description of the file and of how to get it: sentences for the message of the error.

    Raises:
      FileNotFoundError: it is in neither place.
      ValueError: the file has another checksum. A corrupt file in ``FLJAX_DATA`` does not fall back
        on the cache.
    """
    folder = os.environ.get("FLJAX_DATA")
    places = [Path(folder)] if folder else []
    places = [root / relative_path for root in [*places, cache_folder()]]
    for path in places:
        if path.is_file():
            digest = _digest(path)
            if digest != sha256:
                raise ValueError(
                    f"{path} is corrupted or another version: expected SHA-256 {sha256}, found "
                    f"{digest}. Delete it and get it again. {how}"
                )
            return path
    looked = [f"  {path}" for path in places]
    if not folder:
        looked.insert(0, "  (the environment variable FLJAX_DATA is not set)")
    raise FileNotFoundError(
        f"{relative_path} was not found. Looked for:\n"
        + "\n".join(looked)
        + f"\n{how}\nThen set FLJAX_DATA to the folder that holds {relative_path}."
    )


def find(relative_path: str, sha256: str, how: str, urls: Sequence[str], fetch: bool) -> Path:
    """:func:`locate` a file, or :func:`download` it from these mirrors if it is missing and this is
    allowed.

    Raises:
      FileNotFoundError, ValueError, OSError: as both.
    """
    try:
        return locate(relative_path, sha256, how)
    except FileNotFoundError:
        if not fetch:
            raise
        return download(urls, relative_path, sha256)


@checked
def download(urls: str | Sequence[str], relative_path: str, sha256: str) -> Path:
    """Return a file in the cache, fetched from the first mirror that has it if it is missing.

    The file gets its name only when it is complete and its checksum is correct; until then it has a
    name that no other process uses.

    Args:
      urls: one address or several mirrors, in the order to try.
      relative_path: as in :func:`locate`, which finds the file from then on.
      sha256: SHA-256 of its bytes, in hexadecimal.

    Raises:
      OSError: no mirror delivered the file; the message lists what happened at each.
    """
    path = cache_folder() / relative_path
    if path.is_file() and _digest(path) == sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    failures = []
    for url in [urls] if isinstance(urls, str) else urls:
        try:
            _fetch(url, part, sha256)
            part.replace(path)
            return path
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"  {url}: {type(error).__name__}: {error}")
        finally:
            part.unlink(missing_ok=True)
    raise OSError(
        f"{relative_path} could not be downloaded:\n"
        + "\n".join(failures)
        + f"\nGet it in another way and set FLJAX_DATA to the folder that holds {relative_path}."
    )


def _fetch(url: str, part: Path, sha256: str) -> None:
    """Write the address's bytes; ``OSError`` if they are not the right ones."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, part.open("wb") as file:
        while chunk := answer.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != sha256:
        raise OSError(f"expected SHA-256 {sha256}, got {digest.hexdigest()}")


def _digest(path: Path) -> str:
    """SHA-256 of a file, read once a process unless size or time of change are others."""
    stat = path.stat()
    return _digest_of(path.resolve(), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _digest_of(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
