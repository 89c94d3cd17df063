"""The cost of handing out the blocks of a study to workers, and two workers compared with one.

Workers compute with one thread each. They are started, and compile, in a first study of few blocks.

    python -m experiments.benchmarks.executors [--engine NAME] [--blocks N] [--rounds N]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import fljax as fl
from experiments.benchmarks.machine import header

#: Blocks of the study of many rounds.
FEW = 40

#: Arguments that give an engine a number of workers with one thread each.
WORKERS = {
    "processes": lambda workers: {"workers": workers},
    "dask": lambda workers: {
        "options": {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    },
}


def scenario(key: Any, step_size: float) -> fl.Simulation:
    problem = fl.problems.logistic(key, clients=50, samples=40, dim=100)
    return fl.Simulation(problem, fl.algorithms.SCAFFOLD(step_size), metrics=["objective"])


def seconds(executor: Executor, folder: str, blocks: int, rounds: int) -> tuple[float, float]:
    """Wall time and this process's own time of a study, in blocks of one seed."""
    began = time.perf_counter(), time.process_time()
    fl.sweep(
        scenario,
        grid={"step_size": [0.1]},
        seeds=blocks,
        rounds=rounds,
        record_every=rounds,
        block=1,
        workers=1,
        store=folder,
        executor=executor,
        progress=False,
    )
    return time.perf_counter() - began[0], time.process_time() - began[1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=[*WORKERS], default="processes")
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=400)
    request = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    print(header())
    print("| engine | workers | blocks x rounds | wall, s | this process, ms a block |")
    print("| --- | --- | --- | --- | --- |")
    for workers in (1, 2):
        description = {"name": request.engine, **WORKERS[request.engine](workers)}
        folder = Path(tempfile.mkdtemp())
        with fl.executors.executor_of(description) as executor:
            seconds(executor, str(folder / "first"), 2 * workers, 1)
            for blocks, rounds in ((request.blocks, 1), (FEW, request.rounds)):
                name = str(folder / f"{blocks}-{rounds}")
                # Programs of these rounds are compiled apart, too.
                seconds(executor, f"{name}-first", 2 * workers, rounds)
                wall, own = seconds(executor, name, blocks, rounds)
                print(
                    f"| {request.engine} | {workers} | {blocks} x {rounds} | {wall:.2f} | "
                    f"{1e3 * own / blocks:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
