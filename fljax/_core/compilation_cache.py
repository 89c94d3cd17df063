"""A cache of compiled programs on disk, shared between processes.

Its keys cover everything that machine code depends on: the StableHLO text, the versions of JAX and
jaxlib, their options, the kind of processor and its features. A file is either complete or absent,
and its digest is checked before it is loaded. If anything is wrong with it, the program is compiled
again. The least recently used programs are deleted.

Loaded files are executed. So the folder and every file in it must belong to the user, and no other
user may have write permission; otherwise nothing is loaded or written, and a warning says why. A
file's digest covers its name: a copied program of another study is not run. Programs are not stored
in an ``FLJAX_CACHE`` that others may write, such as one with shared data, but in the user's home.

JAX has a cache, too, `jax_compilation_cache_dir`; if the user sets it, this one is disabled. It
saves as much time: the first study of a second process took 2.6 s with either and 6.5 s with none
(20 clients, NetworkedADMM, JAX 0.10.2 on two shared cores; 1.4 s with either under JAX 0.12). It is
not the default, because it executes any file that it finds: it checks neither owner nor permissions
nor a digest, leaves incomplete files if a process is killed while writing, and applies to all
programs of a process, not only to studies.
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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import jaxlib.version
from jax.experimental import serialize_executable
from jax.stages import Compiled, Lowered

from fljax._core import storage
from fljax._core.devices import cores, on_cpu
from fljax._core.storage import alive, host

log = logging.getLogger("fljax")

#: Programs are deleted beyond this total size, the least recently used first.
MAX_CACHE_BYTES = 2**29


#: Programs of one function that a process keeps in memory.
MAX_PROGRAMS_PER_FUNCTION = 64

#: Names of program files; files with other names are not touched.
_PROGRAM = re.compile(r"[0-9a-f]{64}\.program")

#: Names of temporary files, with the machine and the process that write them.
_LEFTOVER = re.compile(r"\.[0-9a-f]{64}\.program\.(?P<host>.+)\.(?P<process>\d+)\.\d+\.tmp")

#: Temporary files of other machines count as abandoned after this many seconds.
_LEFTOVER_SECONDS = 86400.0


def compile_or_load(lowered: Lowered, text: str, device: jax.Device) -> Compiled:
    """The executable of a program for one device, from disk if it was compiled before.

    Args:
      lowered: the program, from ``jax.jit(..., keep_unused=True)``: without this option, functions
        of different arguments may have the same text.
      text: its StableHLO.
      device: the device to compile for.
    """
    # Machine code with callbacks into Python holds addresses of this process.
    if not _is_on() or "callback" in text:
        return lowered.compile()
    with _opened_folder() as folder:
        if folder is None:
            return lowered.compile()
        name = _file_name(text, device)
        if (loaded := _load(folder, name, lowered, device)) is not None:
            return loaded
        executable = lowered.compile()
        _store(folder, name, executable)
        return executable


class PersistentJit:
    """As :func:`jax.jit`, with the compiled programs in the cache on disk.

    Falls back to :func:`jax.jit` if the cache is off, and for arguments that a stored program
    cannot handle: traced arrays, random keys, arrays that are not on the first device.

    Args:
      function: its positional arguments are trees of arrays, its keyword arguments static.
      static: names of the static arguments; their values are hashable.

    Attributes:
      jitted: the result of :func:`jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], static: Sequence[str]) -> None:
        # Dropping unused arguments could give functions of different arguments the same text.
        self.jitted = jax.jit(function, static_argnames=tuple(static), keep_unused=True)
        self._programs: dict[Hashable, Compiled] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: object, **static: Hashable) -> Any:
        key = self._program_key(arguments, static)
        if key is None:
            return self.jitted(*arguments, **static)
        with self._lock:
            program = self._programs.pop(key, None)
        if program is None:
            lowered = self.jitted.lower(*arguments, **static)
            program = compile_or_load(lowered, lowered.as_text(), jax.local_devices()[0])
        with self._lock:  # dicts are ordered: the last entry is the most recently used
            self._programs[key] = program
            while len(self._programs) > MAX_PROGRAMS_PER_FUNCTION:
                self._programs.pop(next(iter(self._programs)))
        return program(*arguments)

    def _program_key(self, arguments: object, static: Mapping[str, Any]) -> Hashable:
        """The key of a program in memory; ``None`` if :func:`jax.jit` has to handle the call."""
        config: Any = jax.config
        uses_default_device = config.jax_default_device is None and not config.jax_disable_jit
        if not (uses_default_device and _is_on()) or jax.process_count() > 1:
            return None
        leaves, structure = jax.tree.flatten(arguments)
        default_devices = {jax.local_devices()[0]}
        for leaf in leaves:
            if isinstance(leaf, jax.core.Tracer):
                return None
            if isinstance(leaf, jax.Array):
                is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                if is_key or leaf.sharding.device_set != default_devices:
                    return None
        shapes = tuple(map(jax.typeof, leaves))
        options = tuple((name, repr(value)) for name, value in config.values.items())
        return structure, shapes, tuple(sorted(static.items())), options, on_cpu()


def _is_on() -> bool:
    """Whether programs are cached: not if the user disables JAX's cache or sets its folder.

    Nor on systems where the owner of a file is unknown.
    """
    config: Any = jax.config
    is_enabled = config.jax_enable_compilation_cache and config.jax_compilation_cache_dir is None
    return is_enabled and hasattr(os, "geteuid") and os.open in os.supports_dir_fd


def _folder() -> Path:
    base = storage.cache()
    with contextlib.suppress(OSError):
        if _ownership_problem(os.stat(base)):
            base = storage.home_cache()
    return base / "programs"


def _ownership_problem(status: os.stat_result) -> str:
    """Why another user could have written a file; empty if none could."""
    if status.st_uid != os.geteuid():
        return f"is of user {status.st_uid}"
    return "may be written by others" if status.st_mode & 0o022 else ""


@contextlib.contextmanager
def _opened_folder() -> Iterator[int | None]:
    """A descriptor of the folder; ``None`` if it cannot be opened or others may write to it.

    With a descriptor the folder that is checked is the one that is used, even if its path is
    replaced meanwhile.
    """
    folder = None
    path = _folder()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        problem = _ownership_problem(os.fstat(folder))
    except OSError as error:
        problem = "is a link" if path.is_symlink() else ""
        log.info("no programs are kept in %s: %s", path, error)
    try:
        if problem:
            warnings.warn(
                f"the folder of compiled programs {path} {problem}, and what is in it would be "
                "executed: nothing is loaded from there or kept, and this study is compiled. "
                "Remove it, or set FLJAX_CACHE to a folder of your own.",
                stacklevel=3,
            )
        yield None if problem else folder
    finally:
        if folder is not None:
            os.close(folder)


def _file_name(text: str, device: jax.Device) -> str:
    """The name of a program's file: a digest of everything that can change its machine code."""
    digest = hashlib.sha256(text.encode())
    environment = (
        (jax.__version__, jaxlib.version.__version__, device.client.platform_version),
        (device.platform, device.device_kind, device.id, cores(), _processor()),
        sorted((name, repr(value)) for name, value in jax.config.values.items()),
        sorted((k, v) for k, v in os.environ.items() if k.startswith(("XLA_", "LIBTPU_"))),
    )
    digest.update(repr(environment).encode())
    return f"{digest.hexdigest()}.program"


@functools.cache
def _processor() -> str:
    """The kind of processor and its features: machine code for others may not run."""
    description = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        prefixes = ("model name", "flags", "Features")  # the last on ARM
        description += sorted({line for line in lines if line.startswith(prefixes)})
    return "\n".join(description)


def _load(folder: int, name: str, lowered: Lowered, device: jax.Device) -> Compiled | None:
    """The executable in a file; ``None`` if the file is missing or damaged, which is removed."""
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
    except Exception as error:  # any failure is harmless: it can be compiled again
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
      ValueError: it is not a regular file, or another user could have written it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no file")
        if problem := _ownership_problem(status):
            raise ValueError(f"it {problem}")
        return file.read()


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + content).digest()


def _store(folder: int, name: str, executable: Compiled) -> None:
    try:
        content = zlib.compress(serialize_executable.serialize(executable)[0])
        _remove_leftovers(folder)
        _evict(folder, len(content))
        _write(folder, name, _digest(name, content) + content)
    except Exception as error:  # any failure is harmless: only the next process could profit
        log.info("the program %s is not kept: %s", name, error)


def _write(folder: int, name: str, content: bytes) -> None:
    """Write a file atomically, readable by this user alone."""
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


def _remove_leftovers(folder: int) -> None:
    """Remove temporary files of processes that were killed while writing."""
    for name in os.listdir(folder):
        if (match := _LEFTOVER.fullmatch(name)) is None:
            continue
        with contextlib.suppress(OSError):
            if match["host"] == host():
                is_stale = not alive(int(match["process"]))
            else:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                is_stale = time.time() - status.st_mtime > _LEFTOVER_SECONDS
            if is_stale:
                os.unlink(name, dir_fd=folder)


def _evict(folder: int, size: int) -> None:
    """Remove the least recently used programs until ``size`` more bytes fit."""
    files = []
    for name in filter(_PROGRAM.fullmatch, os.listdir(folder)):
        with contextlib.suppress(OSError):  # another process may have removed it
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime, status.st_size, name))
    total = size + sum(file[1] for file in files)
    for _, file_size, name in sorted(files):
        if total <= MAX_CACHE_BYTES:
            break
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
            total -= file_size
