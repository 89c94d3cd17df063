"""Compiled programs kept on disk, for the next process that asks for the same one.

A program is kept by everything that its machine code depends on: its StableHLO text, the versions
of JAX and jaxlib, their options, the kind of processor and its features. A file is either complete
or absent, and its digest is checked before it is loaded; if anything is wrong with it, the program
is compiled again and runs. The least recently used programs are deleted.

What is loaded is executed. The folder and every file in it must therefore belong to the user, with
nobody else allowed to write; otherwise nothing is loaded or written and a warning says why. A
file's digest covers its name: the program of another study, copied here, is not run. A shared
``FLJAX_CACHE``, for instance for its data, does not share programs: they are then kept in the
user's home.

JAX has a cache of its own, `jax_compilation_cache_dir`, and where the user sets that this one keeps
out of its way. It saves as much: the first study of a second process took 2.6 s with either and
6.5 s with none (20 clients, NetworkedADMM, JAX 0.10.2 on two shared cores; 1.4 s with either under
JAX 0.12). It is not the default since it runs whatever it finds: it asks neither who owns a file
nor who may write it, keeps no digest, leaves half a file where a process was killed while it wrote,
and is set for all that a process compiles, not for its studies alone.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import re
import stat
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import jaxlib.version
from jax.experimental import serialize_executable

from fljax import _folders
from fljax._folders import alive, host
from fljax._memory import cores, on_cpu

__all__ = ["Kept", "compile_or_load"]

log = logging.getLogger("fljax")

#: Size beyond which programs are deleted, the least recently used first.
KEPT_BYTES = 2**29


#: Programs of a function that are remembered in this process.
REMEMBERED = 64

#: Names of programs' files; no others are touched.
_PROGRAM = re.compile(r"[0-9a-f]{64}\.program")

#: Files that were being written: by which process of which machine.
_LEFTOVER = re.compile(r"\.[0-9a-f]{64}\.program\.(?P<host>.+)\.(?P<process>\d+)\.\d+\.tmp")

#: Files of other machines count as left over after this many seconds.
_FORGOTTEN_SECONDS = 86400.0


def compile_or_load(lowered: jax.stages.Lowered, text: str, device: jax.Device) -> Any:
    """The executable of a program for one device, from disk if it was compiled before.

    Args:
      lowered: the program, from ``jax.jit(..., keep_unused=True)``: without this option, functions
        of different arguments may have the same text.
      text: its StableHLO.
      device: the device to compile for.
    """
    # Callbacks into Python are addresses of this process.
    if not _is_on() or "callback" in text:
        return lowered.compile()
    with _opened() as folder:
        if folder is None:
            return lowered.compile()
        name = _name(text, device)
        if (kept := _load(folder, name, lowered, device)) is not None:
            return kept
        executable = lowered.compile()
        _keep(folder, name, executable)
        return executable


class Kept:
    """A function as :func:`jax.jit` makes it, whose programs are found on disk, too.

    It is :func:`jax.jit` wherever programs are not kept, and for arguments that no program on the
    first device takes: traced ones, random keys, arrays that are elsewhere.

    Args:
      function: of trees of arrays, and of static arguments by name.
      static: names of these; their values can be hashed.

    Attributes:
      jitted: the function as :func:`jax.jit` makes it.
    """

    def __init__(self, function: Callable[..., Any], static: Sequence[str]) -> None:
        # Unused arguments, too, tell a program on disk from others.
        self.jitted = jax.jit(function, static_argnames=tuple(static), keep_unused=True)
        self._known: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, *given: Any, **static: Any) -> Any:
        form = self._form(given, static)
        if form is None:
            return self.jitted(*given, **static)
        with self._lock:
            program = self._known.pop(form, None)
        if program is None:
            lowered = self.jitted.lower(*given, **static)
            program = compile_or_load(lowered, lowered.as_text(), jax.local_devices()[0])
        with self._lock:  # the last is the last used
            self._known[form] = program
            while len(self._known) > REMEMBERED:
                self._known.pop(next(iter(self._known)))
        return program(*given)

    def _form(self, given: Any, static: Mapping[str, Any]) -> Any:
        """What programs are told apart by, or ``None`` where it is for JAX to say."""
        config: Any = jax.config
        own = config.jax_default_device is None and not config.jax_disable_jit
        if not (own and _is_on()) or jax.process_count() > 1:
            return None
        leaves, structure = jax.tree.flatten(given)
        here = {jax.local_devices()[0]}
        for leaf in leaves:
            if isinstance(leaf, jax.core.Tracer):
                return None
            if isinstance(leaf, jax.Array):
                key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                if key or leaf.sharding.device_set != here:
                    return None
        shapes = tuple(map(jax.typeof, leaves))
        options = tuple((name, repr(value)) for name, value in config.values.items())
        return structure, shapes, tuple(sorted(static.items())), options, on_cpu()


def _is_on() -> bool:
    """Not where JAX is told to keep nothing, or keeps programs in a folder of the user's choice;
    nor where the system does not tell who owns a file.
    """
    config: Any = jax.config
    told = config.jax_enable_compilation_cache and config.jax_compilation_cache_dir is None
    return told and hasattr(os, "geteuid") and os.open in os.supports_dir_fd


def _folder() -> Path:
    base = _folders.cache()
    with contextlib.suppress(OSError):
        if _whose(os.stat(base)):
            base = _folders.home_cache()
    return base / "programs"


def _whose(about: os.stat_result) -> str:
    """Who other than this user could have written the files; empty if nobody."""
    if about.st_uid != os.geteuid():
        return f"is of user {about.st_uid}"
    return "may be written by others" if about.st_mode & 0o022 else ""


@contextlib.contextmanager
def _opened() -> Iterator[int | None]:
    """The folder, as a descriptor: what is looked at is what is used, whatever its path becomes.

    ``None`` if there is none, or if it is not this user's alone.
    """
    folder, path = None, _folder()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        wrong = _whose(os.fstat(folder))
    except OSError as error:
        wrong = "is a link" if path.is_symlink() else ""
        log.info("no programs are kept in %s: %s", path, error)
    try:
        if wrong:
            warnings.warn(
                f"the folder of compiled programs {path} {wrong}, and what is in it would be "
                "executed: nothing is loaded from there or kept, and this study is compiled. "
                "Remove it, or set FLJAX_CACHE to a folder of your own.",
                stacklevel=3,
            )
        yield None if wrong else folder
    finally:
        if folder is not None:
            os.close(folder)


def _name(text: str, device: jax.Device) -> str:
    """Of a program's file: whatever changes its machine code changes its name."""
    config: Any = jax.config
    digest = hashlib.sha256(text.encode())
    about = (
        (jax.__version__, jaxlib.version.__version__, device.client.platform_version),
        (device.platform, device.device_kind, device.id, cores(), _processor()),
        sorted((name, repr(value)) for name, value in config.values.items()),
        sorted((k, v) for k, v in os.environ.items() if k.startswith(("XLA_", "LIBTPU_"))),
    )
    digest.update(repr(about).encode())
    return f"{digest.hexdigest()}.program"


@functools.cache
def _processor() -> str:
    """The kind of processor and its features: machine code of another one may not run here."""
    known = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told = ("model name", "flags", "Features")  # the last on ARM
        known += sorted({line for line in lines if line.startswith(told)})
    return "\n".join(known)


def _load(folder: int, name: str, lowered: jax.stages.Lowered, device: jax.Device) -> Any | None:
    try:
        content = _read(folder, name)
        size = hashlib.sha256().digest_size
        if _digest(name, content[size:]) != content[:size]:
            raise ValueError("it was cut or altered")
        program = serialize_executable.deserialize_and_load(
            zlib.decompress(content[size:]),
            jax.tree.structure(lowered.args_info),
            lowered.out_tree,
            device.client,
            [device],
        )
    except FileNotFoundError:
        return None
    except Exception as error:  # of whatever kind: it can be compiled again
        log.info("the program %s is compiled again: %s", name, error)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        return None
    with contextlib.suppress(OSError):
        os.utime(name, dir_fd=folder, follow_symlinks=False)
    return program


def _read(folder: int, name: str) -> bytes:
    """A file's bytes.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no file, or another than this user could have written it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is no file")
        if wrong := _whose(about):
            raise ValueError(f"it {wrong}")
        return file.read()


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + content).digest()


def _keep(folder: int, name: str, executable: Any) -> None:
    try:
        content = zlib.compress(serialize_executable.serialize(executable)[0])
        _clear(folder)
        _make_room(folder, len(content))
        _write(folder, name, _digest(name, content) + content)
    except Exception as error:  # of whatever kind: it is only of use to the next process
        log.info("the program %s is not kept: %s", name, error)


def _write(folder: int, name: str, content: bytes) -> None:
    """Whole or not at all, and readable by this user alone."""
    temporary = f".{name}.{host()}.{os.getpid()}.{threading.get_ident()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _clear(folder: int) -> None:
    """Remove what processes left that were killed while they wrote."""
    for name in os.listdir(folder):
        if (match := _LEFTOVER.fullmatch(name)) is None:
            continue
        with contextlib.suppress(OSError):
            if match["host"] == host():
                over = not alive(int(match["process"]))
            else:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                over = time.time() - about.st_mtime > _FORGOTTEN_SECONDS
            if over:
                os.unlink(name, dir_fd=folder)


def _make_room(folder: int, size: int) -> None:
    """Remove the least recently used programs, and nothing else."""
    files = []
    for name in filter(_PROGRAM.fullmatch, os.listdir(folder)):
        with contextlib.suppress(OSError):  # another process made room, too
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                files.append((about.st_mtime, about.st_size, name))
    total = size + sum(entry[1] for entry in files)
    for _, amount, name in sorted(files):
        if total <= KEPT_BYTES:
            break
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
            total -= amount
