"""One side of the comparison, measured: its command line and the JSON line that it prints.

Like ``workloads.py`` this runs in each peer's environment and needs NumPy only.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from experiments.benchmarks.peers.workloads import WORKLOADS

#: Runs that a study has.
STUDY = 100


class Stopwatch:
    """Seconds of one run's rounds, and separately of the simulator's start."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.startup_seconds = 0.0

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Adds the time of the block to the run's."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    @contextlib.contextmanager
    def startup(self) -> Iterator[None]:
        """Adds the time of the block, without the run's, to the simulator's startup."""
        began = time.perf_counter()
        before = self.seconds
        yield
        self.startup_seconds += time.perf_counter() - began - (self.seconds - before)


#: ``(workload, seed, watch) -> final model``: prepares, then runs inside ``watch.run()``.
Run = Callable[[Any, int, Stopwatch], Any]


def main(
    package: str,
    runs: dict[str, Run],
    notes: dict[str, str],
    name: str | None = None,
    arguments: Sequence[str] | None = None,
    study: Callable[[str, int], dict[str, Any]] | None = None,
) -> None:
    """Measure one workload and print one JSON line.

    Args:
      package: distribution whose version is reported.
      runs: a function for each workload that this side can express.
      notes: by workload, how it was expressed or why it cannot be.
      name: of the side, the package by default.
      arguments: the command line by default.
      study: measures a hundred seeds of a workload, for a side that does not run them in turn.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seeds", type=int, default=1, help="distinct seeds, from zero")
    parser.add_argument("--repeats", type=int, default=1, help="the best of so many runs of each")
    options = parser.parse_args(arguments)
    line = {
        "peer": name or package,
        "version": version(package),
        "workload": options.workload,
        "note": notes.get(options.workload, ""),
    }
    if options.workload in runs:
        line |= measure(runs[options.workload], options.workload, options.seeds, options.repeats)
        if study is not None:
            line |= study(options.workload, options.repeats)
    print(json.dumps(line), flush=True)


def measure(run: Run, workload: str, seeds: int, repeats: int) -> dict[str, Any]:
    """Times and error of a side that runs seed after seed.

    Returns:
      ``seconds`` of the fastest run, ``startup_seconds`` of the first; the same of a ``study`` of
      a hundred seeds, scaled from the ``study_measured`` that were run, each at its fastest; the
      mean ``error`` of the final models.
    """
    runs = []
    errors = []
    for seed in range(seeds):
        for _ in range(repeats):
            watch = Stopwatch()
            model = run(WORKLOADS[workload], seed, watch)
            runs.append(watch)
        errors.append(WORKLOADS[workload].error(model, seed))
    seconds = np.reshape([r.seconds for r in runs], (seeds, repeats)).min(1)
    startup = np.reshape([r.startup_seconds for r in runs], (seeds, repeats)).min(1)
    return {
        "seconds": seconds.min(),
        "startup_seconds": runs[0].startup_seconds,
        "study_seconds": seconds.mean() * STUDY,
        "study_startup_seconds": startup.mean() * STUDY,
        "study_measured": seeds,
        "error": float(np.mean(errors)),
    }
