"""Single arrivals on a clock beside the same gradients without one, in turns in one process.

A round without a clock is of one client, which starts from the server's model: the gradient, the
reading of its data and the update, as in a round that is an arrival. What is more on the clock is
the next arrival, the models that clients work from, and the seconds.

    python -m experiments.benchmarks.arrivals [--clients K] [--dim D] [--seeds S] [--events N]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import fljax as fl
from experiments.benchmarks.machine import header

#: Samples of each client.
SAMPLES = 20


def scenario(clients: int, dim: int, timed: bool) -> Callable[[Any], fl.Simulation]:
    """Federated averaging of one client a round, or FedAsync with every client at work."""
    # One problem of all seeds: drawing one for each would take more time than the rounds.
    problem = fl.problems.ridge(jax.random.key(0), clients=clients, samples=SAMPLES, dim=dim)

    def of_key(key: Any) -> fl.Simulation:
        if not timed:
            return fl.Simulation(problem, fl.algorithms.FedAvg(1e-4, 1))
        devices = fl.clock.Devices(seconds_per_step=fl.clock.LogNormal(1.0, spread=1.0))
        clock = fl.clock.Asynchronous(devices)
        return fl.Simulation(problem, fl.algorithms.FedAsync(1e-4), clock=clock)

    return of_key


def measured(clients: int, dim: int, seeds: int, events: int, turns: int) -> dict[str, float]:
    """Microseconds of a round and seed, the least of some turns, compiling apart."""
    least: dict[str, float] = {}
    for _ in range(turns + 1):  # the first compiles
        for name, timed in (("no clock", False), ("arrivals", True)):
            began = time.perf_counter()
            run = scenario(clients, dim, timed)
            fl.sweep(run, rounds=events, seeds=seeds, record_every=events, progress=False)
            took = (time.perf_counter() - began) / seeds / events * 1e6
            least[name] = min(took, least.get(name, took))
    return least


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("clients", 1000), ("dim", 1000), ("seeds", 20), ("events", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--turns", type=int, default=3)
    request = vars(parser.parse_args(arguments))
    print(header())
    times = measured(**request)
    print("| a round and seed, microseconds | no clock | arrivals | factor |")
    print("| --- | --- | --- | --- |")
    factor = times["arrivals"] / times["no clock"]
    sizes = "{clients} clients, {dim} numbers, {seeds} seeds, {events} rounds".format(**request)
    print(f"| {sizes} | {times['no clock']:.1f} | {times['arrivals']:.1f} | {factor:.2f} |")


if __name__ == "__main__":
    main()
