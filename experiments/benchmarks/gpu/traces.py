"""What a trace of :mod:`jax.profiler` says: how busy the device was, and with which kernels.

    python -m experiments.benchmarks.gpu trace FOLDER

Kernels are the events of the devices' streams; on a CPU, of XLA's threads.
"""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Kernel(NamedTuple):
    """All launches of one kernel."""

    name: str
    launches: int
    seconds: float


class Summary(NamedTuple):
    """The summary of one trace."""

    span: float  # seconds from the first kernel's start to the last one's end
    busy: float  # share of it in which a kernel ran
    launches: int
    kernels: list[Kernel]  # the longest first


def summarized(folder: Path) -> Summary:
    """The newest trace below a folder.

    Raises:
      ValueError: there is none, or it has no kernels.
    """
    files = sorted(folder.rglob("*.trace.json.gz"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ValueError(
            f"no trace (*.trace.json.gz) below {folder}; make one with jax.profiler.trace(folder)."
        )
    with gzip.open(files[-1], "rt", encoding="utf-8") as content:
        return summary(json.load(content)["traceEvents"])


def summary(events: Iterable[dict]) -> Summary:
    """As :func:`summarized`, from the events of a trace."""
    events = list(events)
    names = {
        (event["name"], event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event.get("ph") == "M" and event["name"] in ("process_name", "thread_name")
    }
    processes = {pid: name for (kind, pid, _), name in names.items() if kind == "process_name"}
    threads = {
        (pid, tid): name for (kind, pid, tid), name in names.items() if kind == "thread_name"
    }
    devices = {pid for pid, name in processes.items() if name.startswith("/device:")}
    kernels = []
    for event in events:
        if event.get("ph") != "X":
            continue
        thread = threads.get((event["pid"], event["tid"]), "")
        if event["pid"] in devices:
            # Other lines of a device repeat the kernels, by module or by operation.
            is_kernel = thread.startswith("Stream")
        else:
            is_kernel = not devices and "hlo_op" in event.get("args", {})
        if is_kernel:
            kernels.append(event)
    if not kernels:
        raise ValueError("the trace has no kernels; was something computed within it?")
    intervals = sorted((event["ts"], event["ts"] + event.get("dur", 0)) for event in kernels)
    first = intervals[0][0]
    last = max(end for _, end in intervals)
    covered = 0.0
    until = first
    for start, end in intervals:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    totals: dict[str, list[float]] = {}
    for event in kernels:
        totals.setdefault(event["name"], []).append(event.get("dur", 0) / 1e6)
    by_kernel = [Kernel(name, len(times), sum(times)) for name, times in totals.items()]
    by_kernel.sort(key=lambda kernel: -kernel.seconds)
    span = (last - first) / 1e6
    return Summary(span, covered / (last - first) if last > first else 1.0, len(kernels), by_kernel)


def lines(summary: Summary, most: int = 15) -> list[str]:
    """A summary as text."""
    result = [
        f"{summary.span:.4f} s, {summary.busy:.0%} of it busy, {summary.launches:,} kernels",
        f"{'kernel':60s}{'launches':>10s}{'ms':>10s}{'share':>8s}",
    ]
    total = sum(kernel.seconds for kernel in summary.kernels)
    for kernel in summary.kernels[:most]:
        share = kernel.seconds / total if total else 0.0
        result.append(
            f"{kernel.name[:59]:60s}{kernel.launches:10,d}{1e3 * kernel.seconds:10.3f}{share:8.1%}"
        )
    return result
