"""Free memory of devices and of the host, and errors for arrays that will not fit."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from fljax._core.devices import on_cpu

#: Share of the free memory that may be used.
MEMORY_SHARE = 0.8

#: Where Linux lists the control groups of this process, and their limits.
CGROUP_MEMBERSHIP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")

#: Smaller arrays are not compared with the free memory, since reading it takes some time.
SMALL_BYTES = 2**28


def host_memory() -> int:
    """Free bytes of this machine's memory, within the limits of the process's job or container."""
    return _free_memory(int(time.monotonic()))


def memory_at_hand() -> int:
    """Bytes that may be used: of all local devices, or of this machine on a CPU."""
    if on_cpu():
        free = host_memory()
    else:
        free = sum(
            (device.memory_stats() or {}).get("bytes_limit", 2**34)
            for device in jax.local_devices()
        )
    return _usable(free)


def _usable(free: int) -> int:
    return int(MEMORY_SHARE * free)


@functools.lru_cache(maxsize=1)
def _free_memory(second: int) -> int:
    del (
        second
    )  # part of the cache's key: read once a second, since it takes as long as a small study
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
    """Free bytes within each control group of this process, such as a batch job or a container.

    Groups are nested, and each may have a limit. In a container the path of a group may be that on
    the host, which does not exist here; missing files are skipped.
    """
    with contextlib.suppress(OSError):
        for line in CGROUP_MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                root = CGROUP_ROOT
                names = ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                root = CGROUP_ROOT / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    with contextlib.suppress(OSError, ValueError):  # no file; a limit of "max"
                        yield _free_in_group(folder, *names)


def _free_in_group(group: Path, limit: str, used: str, cache: str) -> int:
    """Free bytes within a control group's limit, counting its droppable file cache as free."""
    free = int((group / limit).read_text()) - int((group / used).read_text())
    statistics = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    return max(0, free + next((int(value) for name, value in statistics if name == cache), 0))


def human(count: float) -> str:
    """A number of bytes in a readable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def check_fits(what: str, *sizes: int, entry_bytes: int, mend: str, on_host: bool = False) -> None:
    """Raise ``MemoryError`` for an array that does not fit into memory.

    Args:
      what: names the array in the message.
      sizes: of its axes.
      entry_bytes: bytes of an entry.
      mend: what to do instead, for the message.
      on_host: whether it is stored in this machine's memory instead of on all devices.
    """
    needed = math.prod(map(int, sizes)) * entry_bytes  # Python's integers do not overflow
    if needed < SMALL_BYTES:
        return
    free = _usable(host_memory()) if on_host else memory_at_hand() * jax.process_count()
    if needed > free:
        raise MemoryError(f"{what} takes {human(needed)} and {human(free)} are at hand; {mend}.")
