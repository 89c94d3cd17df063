"""Sides that learn from the same population on disk, measured in turns.

Every side is a process that prepares itself (reads, compiles) and then runs on request while the
others wait. Each peer runs right after fljax, several times, so that a machine whose speed drifts
is equally fast for both; the reported ratio is the median over these pairs. The processor time is
reported as well, because other work on the machine affects it less. All files are in the page
cache. A peer that fails or has no environment loses only its row.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.peers.on_disk import OnDisk
from experiments.benchmarks.peers.run import ROOT, Side, brief, interpreter, label, last_line

FLJAX = "fljax"
SIDES = {
    FLJAX: Side("fljax_on_disk"),
    "pfl": Side("pfl_on_disk", "pfl"),
    "pfl-thread": Side("pfl_on_disk", "pfl", arguments=("--way", "thread")),
    "fedjax": Side("fedjax_on_disk", "fedjax"),
    "fedjax-memory": Side("fedjax_on_disk", "fedjax", arguments=("--way", "memory")),
}

PYTHONS = {"3.11": shutil.which("python3.11") or ""}
ENVIRONMENTS = Path.home() / ".cache" / "fljax" / "peers"


class Worker:
    """The process of a side.

    Args:
      name: of the side.
      python: the interpreter of its environment.
      folder: the population's.
      rounds: of every run.
      limit: seconds it may take for its preparations, and for a run.

    Raises:
      RuntimeError: it ended before it was ready.
    """

    def __init__(self, name: str, python: str, folder: Path, rounds: int, limit: float) -> None:
        side = SIDES[name]
        command = [python, "-W", "ignore", "-m", f"{__package__}.{side.module}", *side.arguments]
        self.name = name
        self.limit = limit
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        self.process = subprocess.Popen(
            [*command, str(folder), "--rounds", str(rounds)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        try:
            self._line()
        except BaseException:
            self.stop()
            raise

    def run(self, seed: int) -> dict[str, Any]:
        """One run of all rounds.

        Raises:
          RuntimeError: it ended, or took too long.
        """
        assert self.process.stdin is not None
        try:
            print(seed, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise RuntimeError(self._ended()) from None
        return self._line() | {"peer": self.name}

    def _line(self) -> dict[str, Any]:
        """The next line of JSON; libraries may print others."""
        assert self.process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.stop()

        timer = threading.Timer(self.limit, stop)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            timer.cancel()
        raise RuntimeError(f"stopped after {self.limit:.0f} s" if late.is_set() else self._ended())

    def _ended(self) -> str:
        self.process.wait()
        self._errors.seek(0)
        return f"failed: {last_line(self._errors.read())}"

    def stop(self) -> None:
        """Kill the process and its children."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


def measured(
    folder: Path,
    peers: Sequence[str],
    repeats: int,
    rounds: int = OnDisk.rounds,
    environments: Path = ENVIRONMENTS,
    limit: float = 1800,
) -> list[dict[str, Any]]:
    """A row for each side, with its runs; a peer's runs have ratios to the fljax runs before them.

    Args:
      folder: the population's; images of other writers are next to it.
      peers: names of ``SIDES``.
      repeats: runs of each peer.
      rounds: of every run.
      environments: the folder of the peers' environments, which are made where they are missing.
      limit: seconds that a side may take to prepare, or for a run.
    """
    workers: list[Worker] = []
    rows: dict[str, dict[str, Any]] = {name: {"peer": name, "runs": []} for name in (FLJAX, *peers)}
    try:
        for name, row in rows.items():
            try:
                python = interpreter(SIDES[name], environments, PYTHONS)
                workers.append(Worker(name, python, folder, rounds, limit))
            except RuntimeError as error:
                if name == FLJAX:
                    raise
                row["note"] = str(error)
            print(f"{name}: {row.get('note', 'ready')}", file=sys.stderr, flush=True)
        fljax_worker = workers[0]
        peer_workers = workers[1:]
        in_cache(folder.parent)
        for seed in range(1, repeats + 1):
            for peer in peer_workers or [None]:
                first = fljax_worker.run(seed)
                rows[FLJAX]["runs"].append(first)
                print(json.dumps(first), file=sys.stderr, flush=True)
                if peer is None or "note" in rows[peer.name]:
                    continue
                try:
                    second = peer.run(seed)
                    print(json.dumps(second), file=sys.stderr, flush=True)
                except RuntimeError as error:
                    rows[peer.name]["note"] = str(error)
                    continue
                for kind in ("seconds", "processor"):
                    second[f"{kind} ratio"] = second[kind] / first[kind]
                rows[peer.name]["runs"].append(second)
    finally:
        for worker in workers:
            worker.stop()
    return list(rows.values())


def in_cache(folder: Path) -> None:
    """Read all files of a folder, so that none of them comes from the disk later."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(2**24):
                    pass


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: medians, and the range of all runs."""
    lines = [
        "| | ms a round | of fljax's | processor ms a round | of fljax's | accuracy | resident |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    for row in rows:
        if row["runs"]:
            runs = row["runs"]
            cells = [label(runs[0])]
            for kind in ("seconds", "processor"):
                cells.append(_spread([run[kind] * 1e3 for run in runs]))
                ratio = f"{kind} ratio"
                cells.append(_spread([run[ratio] for run in runs]) if ratio in runs[0] else "1")
            cells.append(_spread([run["accuracy"] for run in runs]))
            cells.append(f"{max(run['resident'] for run in runs) / 1e9:.2f} GB")
            lines.append(f"| {' | '.join(cells)} |")
        if "note" in row:
            notes.append(f"- {row['peer']}: {row['note']}.")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _spread(values: Sequence[float]) -> str:
    low, middle, high = (brief(v) for v in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"
