"""What computes, the memory at hand, and what does not fit it: said before it is allocated."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import jax

__all__ = [
    "check_fits",
    "cores",
    "host_memory",
    "human",
    "memory_at_hand",
    "on_cpu",
    "traced_for",
]

#: Share of the memory at hand that may be taken.
MEMORY_SHARE = 0.8

#: Where Linux says which control groups this process is in, and what their limits are.
MEMBERSHIP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

#: What is smaller than this is not compared with the memory at hand, which takes a moment to find.
SMALL_BYTES = 2**28


#: The platform that programs are traced for, where it is not the one that computes here.
_TARGET: ContextVar[str | None] = ContextVar("_TARGET", default=None)


def on_cpu() -> bool:
    """Whether what computes here, or what is traced for, is a CPU."""
    return (_TARGET.get() or jax.local_devices()[0].platform) == "cpu"


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows do not tell


@contextlib.contextmanager
def traced_for(platform: str) -> Iterator[None]:
    """What is traced within takes the form that suits a platform, which need not be here.

    A function that :func:`jax.jit` has traced before keeps the form that it has.
    """
    before = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(before)


def host_memory() -> int:
    """Bytes of this machine's own memory that are free, within the limit of the process's job or
    container.
    """
    return _free_memory(int(time.monotonic()))


def memory_at_hand() -> int:
    """Bytes that may be taken: of all local devices, or of this machine on a CPU."""
    if on_cpu():
        free = host_memory()
    else:
        free = sum(
            (device.memory_stats() or {}).get("bytes_limit", 2**34)
            for device in jax.local_devices()
        )
    return _share(free)


def _share(free: int) -> int:
    return int(MEMORY_SHARE * free)


@functools.lru_cache(maxsize=1)
def _free_memory(second: int) -> int:
    del second  # looked at once a second: it takes as long as a small study
    return min([_machine_memory(), *_group_memory()])


def _machine_memory() -> int:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        return free * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 2**33


def _group_memory() -> Iterator[int]:
    """Bytes that each control group around this process leaves free: of a batch job, a container.

    Groups are nested, and each may have a limit. A group's path may be one of the host, which a
    container does not see: files that are not there are passed over.
    """
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                root, names = GROUPS, ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                root = GROUPS / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    with contextlib.suppress(OSError, ValueError):  # no file; a limit of "max"
                        yield _left(folder, *names)


def _left(group: Path, limit: str, used: str, cache: str) -> int:
    """Bytes below a group's limit, with those of cached files that it can drop."""
    free = int((group / limit).read_text()) - int((group / used).read_text())
    entries = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    return max(0, free + next((int(value) for name, value in entries if name == cache), 0))


def human(count: float) -> str:
    """Bytes, readable."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def check_fits(what: str, *sizes: int, each: int, mend: str, on_host: bool = False) -> None:
    """Raise ``MemoryError`` for an array that does not fit the machines at hand.

    Args:
      what: it is, for the message.
      sizes: of its axes.
      each: bytes of an entry.
      mend: what to do instead.
      on_host: whether it is kept in this machine's own memory, and not by all devices.
    """
    needed = math.prod(map(int, sizes)) * each  # Python's integers do not overflow
    if needed < SMALL_BYTES:
        return
    free = _share(host_memory()) if on_host else memory_at_hand() * jax.process_count()
    if needed > free:
        raise MemoryError(f"{what} takes {human(needed)} and {human(free)} are at hand; {mend}.")
