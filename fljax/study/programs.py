"""Compiled programs kept on disk, for the next process that asks for the same one.

A program is kept by everything that its machine code depends on: its StableHLO text, the versions
of JAX and jaxlib, their options, the kind of processor and its features. A file is whole or not
there, and its digest is looked at before it is loaded; whatever is wrong with it, the program is
compiled again and the study runs. The folder is emptied of what was not used for longest.

What is loaded is executed: the folder is the user's own, like every other cache of programs.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import zlib
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.experimental import serialize_executable

from fljax.study import machine
from fljax.study.store import write_whole

__all__ = ["compile_or_load"]

log = logging.getLogger("fljax")

#: Programs are forgotten, the least recently used first, beyond so much.
KEPT_BYTES = 2**29


def compile_or_load(lowered: jax.stages.Lowered, text: str, device: jax.Device) -> Any:
    """The executable of a program for one device, from the disk if it was compiled before.

    Args:
      lowered: the program, of ``jax.jit(..., keep_unused=True)``: without, functions of different
        arguments have the same text.
      text: its StableHLO.
      device: that it is for.
    """
    # Callbacks into Python are addresses of this process.
    if not _is_on() or "callback" in text:
        return lowered.compile()
    path = _folder() / _name(text, device)
    if (kept := _load(path, lowered, device)) is not None:
        return kept
    executable = lowered.compile()
    _keep(path, executable)
    return executable


def _is_on() -> bool:
    """Not where JAX is told to keep nothing, or keeps programs in a folder of the user's choice."""
    config: Any = jax.config
    return config.jax_enable_compilation_cache and config.jax_compilation_cache_dir is None


def _folder() -> Path:
    return machine.cache() / "programs"


def _name(text: str, device: jax.Device) -> str:
    """Of a program's file: whatever changes its machine code changes its name."""
    config: Any = jax.config
    digest = hashlib.sha256(text.encode())
    about = (
        (jax.__version__, jaxlib.version.__version__, device.client.platform_version),
        (device.platform, device.device_kind, device.id, machine.cores(), _processor()),
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


def _load(path: Path, lowered: jax.stages.Lowered, device: jax.Device) -> Any | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    try:
        if hashlib.sha256(content[size:]).digest() != content[:size]:
            raise ValueError("it was cut or altered")
        found = serialize_executable.deserialize_and_load(
            zlib.decompress(content[size:]),
            jax.tree.structure(lowered.args_info),
            lowered.out_tree,
            device.client,
            [device],
        )
    except Exception as error:  # of whatever kind: it can be compiled again
        log.info("the program %s is compiled again: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return found


def _keep(path: Path, executable: Any) -> None:
    try:
        content = zlib.compress(serialize_executable.serialize(executable)[0])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_room(path.parent, len(content))
        write_whole(path, hashlib.sha256(content).digest() + content)
    except Exception as error:  # of whatever kind: it is only of use to the next process
        log.info("the program is not kept in %s: %s", path.parent, error)


def _make_room(folder: Path, size: int) -> None:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process made room, too
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    total = size + sum(entry[1] for entry in found)
    for _, held, path in sorted(found):
        if total <= KEPT_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= held
