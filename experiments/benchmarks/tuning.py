"""Tuning many methods in one call: first, again, and with the programs on disk.

    python -m experiments.benchmarks.tuning [--methods 40] [--candidates 15] [--seeds 10]

The first methods of the registry, in the order of their names, that have a single number to tune
and run on least squares (100 clients, 50 samples, 32 parameters, 300 rounds), with a network if
they need one. Each has a grid of candidates that is neither extended nor refined, so that the
number of runs is fixed. The first call compiles every program; a second call in the same process
compiles none and measures the checks and the runs; a new process loads programs from disk.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import islice

import jax

import fljax as fl
from experiments.benchmarks.machine import header
from fljax.algorithms.algorithm import REGISTRY
from fljax.tuning.search import space_of

SIZE = {"clients": 100, "samples": 50, "dim": 32}
ROUNDS = 300
DEGREE = 4


def drawn(key):
    k_graph, k_data = jax.random.split(key)
    graph = fl.graphs.random_connected(k_graph, nodes=SIZE["clients"], mean_degree=DEGREE)
    return fl.problems.least_squares(k_data, **SIZE), graph


def simulation(problem, graph, algorithm):
    return fl.Simulation(
        problem=problem,
        network=graph if algorithm.needs.network is fl.graphs.Graph else None,
        algorithm=algorithm,
        metrics=["normalized_error"],
    )


def scenario(key, algorithm):
    return simulation(*drawn(key), algorithm)


def tuned(methods: list[str], candidates: int, seeds: int, rounds: int = ROUNDS) -> fl.Tuned:
    return fl.tune(
        scenario,
        methods,
        metric="normalized_error",
        rounds=rounds,
        seeds=seeds,
        points=candidates,
        extensions=0,
        refinements=0,
        record_every=rounds,
    )


def suitable() -> Iterator[str]:
    """Methods that have a single number to tune and run in this scenario."""
    data = drawn(jax.random.key(0))
    for name in sorted(REGISTRY):
        try:
            make, space = space_of(name)
            simulation(*data, make(**{number: values[0] for number, values in space.items()}))
        except (TypeError, ValueError):
            continue
        if len(space) == 1:
            yield name


def timed(methods: list[str], candidates: int, seeds: int) -> str:
    began = time.perf_counter()
    result = tuned(methods, candidates, seeds)
    return f"{time.perf_counter() - began:9.1f}{result.compilations:15d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", type=int, default=40)
    parser.add_argument("--candidates", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--on-disk", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    methods = list(islice(suitable(), options.methods))
    request = methods, options.candidates, options.seeds
    if options.on_disk:
        print(timed(*request))
        return
    print(header())
    sizes = f"{options.candidates} candidates, {options.seeds} seeds, {ROUNDS} rounds"
    print(f"\n{len(methods)} methods of {sizes}")
    print(f"{'':24s}{'seconds':>9s}{'compilations':>15s}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLJAX_CACHE"] = folder
        print(f"{'from nothing':24s}{timed(*request)}", flush=True)
        print(f"{'again':24s}{timed(*request)}", flush=True)
        child = [sys.executable, "-m", "experiments.benchmarks.tuning", "--on-disk", *sys.argv[1:]]
        text = subprocess.run(child, check=True, capture_output=True, text=True).stdout
        print(f"{'programs on disk':24s}{text.rstrip()}")


if __name__ == "__main__":
    main()
