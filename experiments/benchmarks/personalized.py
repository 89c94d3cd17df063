"""Personalized graph federated learning, figure 5.1(a) of Gauthier 2024, in fljax and in NumPy.

150 clients of 10 servers, 60 parameters, 300 iterations, graph, clusters and data drawn in each
run, the NMSD in every iteration. Everything is timed from the seeds to the errors, compilation
apart, in single precision. Also reported: the bytes that a round must move, and the time for them
at the measured copy bandwidth.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import fljax as fl
from experiments.benchmarks.machine import best_of, header, update_bandwidth
from experiments.benchmarks.numpy_personalized import Setting, pgfl
from experiments.gauthier import chapter5 as ch5
from fljax.algorithms import Algorithm

WORD = 4
#: One object, so that it is compiled once.
SCENARIO = partial(ch5.scenario, private=False)
#: Seeds that NumPy takes side by side; of 1, 4, 10 and 25 the fastest.
TOGETHER = 10


def setting(rounds: int) -> Setting:
    return Setting(
        servers=ch5.SERVERS.value,
        per_server=ch5.PER_SERVER.value,
        clusters=ch5.CLUSTERS.value,
        samples=ch5.SAMPLES.value,
        dim=ch5.DIM.value,
        edges=ch5.SERVERS.value * ch5.MEAN_DEGREE.value // 2,
        rounds=rounds,
        penalty=ch5.PENALTY.value,
        strength=ch5.STRENGTH.value,
        noise=ch5.NOISE.value,
        spread=ch5.SPREAD.value,
    )


def methods() -> dict[str, tuple[Algorithm, dict[str, Any]]]:
    """By name, the algorithm here and what makes it in NumPy."""
    fixed = {"inter_cluster": 0.0, "single": False, "alone": False}
    result = ch5.compared(step_size=0.1, scheduled=False)
    return {
        ch5.GFL_ADMM: (result[ch5.GFL_ADMM], fixed | {"single": True}),
        ch5.CLUSTER_FL: (
            result[ch5.CLUSTER_FL],
            fixed | {"alone": True, "inter_cluster": ch5.MIXED.value},
        ),
        ch5.PGFL_0: (result[ch5.PGFL_0], fixed),
        ch5.PGFL_MIXED: (result[ch5.PGFL_MIXED], fixed | {"inter_cluster": ch5.MIXED.value}),
    }


def study(algorithms: Mapping[str, Algorithm], seeds: int, rounds: int, **given: Any) -> Any:
    return fl.sweep(
        SCENARIO,
        rounds=rounds,
        seeds=seeds,
        grid={"algorithm": dict(algorithms)},
        progress=False,
        **given,
    )


def rival(setting: Setting, seeds: int, **kind: Any) -> np.ndarray:
    firsts = range(0, seeds, TOGETHER)
    with threadpool_limits(1, user_api="blas"):
        return np.concatenate(
            [pgfl(setting, range(s, min(s + TOGETHER, seeds)), **kind) for s in firsts]
        )


def round_bytes() -> int:
    """Bytes that one round of one run must move, each array once.

    Read: samples, their factor, the moments, models' truth, duals; written: models and duals.
    """
    settings = setting(1)
    clients = settings.servers * settings.per_server
    most = settings.samples[1]
    per_client = 2 * most * settings.dim + most**2 + 2 * most + 6 * settings.dim  # two passes
    return WORD * (clients * per_client + 4 * settings.servers * settings.clusters * settings.dim)


def compare(seeds: int, few: int, rounds: int) -> list[str]:
    """A line for each method, and for all four."""
    settings = setting(rounds)
    total = np.zeros(3)
    lines = [f"{rounds} iterations, us an iteration and seed; {seeds} seeds, NumPy {few}"]
    head = ("fljax", "one core", "NumPy, one core", "NMSD", "NumPy's")
    lines.append(f"{'method':20s}" + "".join(f"{h:>16s}" for h in head))
    for name, (algorithm, kind) in methods().items():
        single = {name: algorithm}
        error = float(study(single, seeds, rounds).network_deviation.isel(round=-1).mean())
        all_cores = best_of(lambda single=single: study(single, seeds, rounds)) / seeds
        study(single, seeds, rounds, workers=1)
        alone = best_of(lambda single=single: study(single, seeds, rounds, workers=1)) / seeds
        theirs = best_of(lambda kind=kind: rival(settings, few, **kind), 2) / few
        check = float(rival(settings, few, **kind)[:, -1].mean())
        row = np.array([all_cores, alone, theirs]) / rounds * 1e6
        total += row
        lines.append(_line(name, row, f"{error:.5f}", f"{check:.5f}"))
    lines.append(_line("all, one by one", total))
    together = {name: algorithm for name, (algorithm, _) in methods().items()}
    study(together, seeds, rounds)
    seconds = best_of(lambda: study(together, seeds, rounds), 1)
    lines.append(f"all four in one study of {seeds} seeds: {seconds:.1f} s")
    moved = round_bytes()
    bandwidth = update_bandwidth(round_bytes())
    lines.append(
        f"a round must move {moved / 1e3:.0f} kB: {moved / bandwidth * 1e6:.1f} us at the measured "
        f"{bandwidth / 1e9:.1f} GB/s"
    )
    return lines


def _line(name: str, row: np.ndarray, *errors: str) -> str:
    all_cores, alone, theirs = row
    cells = (
        f"{all_cores:.1f}",
        f"{alone:.1f}",
        f"{theirs:.1f} ({theirs / all_cores:.1f}x)",
        *errors,
    )
    return f"{name:20s}" + "".join(f"{c:>16s}" for c in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--numpy-seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=ch5.ROUNDS.value)
    options = parser.parse_args()
    print(header())
    print("\n".join(compare(options.seeds, options.numpy_seeds, options.rounds)))


if __name__ == "__main__":
    main()
