"""The same clients on disk for every side: the reader, and the measurement of one side on request.

Like ``workloads.py`` this runs in each peer's environment and needs NumPy only. A population is the
folder that ``fljax.data.write_population`` writes, with NumPy files; next to it are images of
other writers, on which every final model is tested.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np

from experiments.benchmarks.peers.measure import Stopwatch
from experiments.benchmarks.peers.workloads import Layers, Network

#: Held-out images, in the population's folder's parent.
HELD_OUT = "held-out.npz"


@dataclass(frozen=True)
class OnDisk(Network):
    """Federated averaging of a small convolutional network over a population.

    Attributes:
      folder: the population's, without which nothing is read.
    """

    name: str = "writers"
    clients: int = 3_550
    per_round: int = 10
    rounds: int = 50
    step: float = 0.1
    channels: tuple[int, ...] = (8, 16)
    hidden: int = 64
    folder: str = ""

    @property
    def classes(self) -> int:
        return 62

    @cached_property
    def sizes(self) -> np.ndarray:
        """``[K]``, how many images each client has."""
        return np.load(Path(self.folder) / "clients.npy")["samples"]

    @cached_property
    def _files(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        features, targets = (
            np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r")
            for name in ("features", "targets")
        )
        return np.concatenate([[0], np.cumsum(self.sizes)]), features, targets

    def client(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Features ``[N_k, 784]`` and labels ``[N_k]`` of one client, read from the files."""
        starts, features, targets = self._files
        rows = slice(starts[number], starts[number + 1])
        return np.array(features[rows]).reshape(-1, 784), targets[rows].astype(np.int64)

    def data(self) -> list[tuple[np.ndarray, np.ndarray]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return [self.client(k) for k in range(self.clients)]

    def test(self) -> tuple[np.ndarray, np.ndarray]:  # pyright: ignore[reportIncompatibleVariableOverride]
        with np.load(Path(self.folder).parent / HELD_OUT) as file:
            return file["features"].reshape(-1, 784), file["targets"]


class Watch(Stopwatch):
    """The time of a run's rounds, and the processor time of all cores."""

    def __init__(self) -> None:
        super().__init__()
        self.processor_seconds = 0.0

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        began = time.process_time()
        with super().run():
            yield
        self.processor_seconds += time.process_time() - began


def resident() -> int:
    """The most bytes that this program had in memory; ``getrusage`` would count the process that
    started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


#: ``(workload, seed, watch) -> final model``: the rounds are inside ``watch.run()``.
Rounds = Callable[[OnDisk, int, Watch], Layers]


def main(
    package: str,
    prepared: Callable[[OnDisk, str], Rounds],
    ways: Sequence[str] = ("",),
    dependencies: Sequence[str] = (),
) -> None:
    """Prepare a side, then run it once for each seed that is read, printing a line of JSON.

    Args:
      package: distribution whose version is reported.
      prepared: sets up everything that precedes the first round, in one of the ways, and returns
        a run.
      ways: variants of the side; the first by default.
      dependencies: further distributions whose versions matter.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--way", choices=ways, default=ways[0])
    parser.add_argument("--rounds", type=int, default=OnDisk.rounds)
    options = parser.parse_args()
    workload = OnDisk(folder=options.folder, rounds=options.rounds)
    run = prepared(workload, options.way)
    versions = ", ".join([version(package), *(f"{name} {version(name)}" for name in dependencies)])
    print(json.dumps({"version": versions}), flush=True)
    for line in sys.stdin:
        watch = Watch()
        model = run(workload, int(line), watch)
        report = {
            "version": versions,
            "seconds": watch.seconds / workload.rounds,
            "processor": watch.processor_seconds / workload.rounds,
            "accuracy": 1 - workload.error(model),
            "resident": resident(),
        }
        print(json.dumps(report), flush=True)
