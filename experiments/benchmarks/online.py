"""Asynchronous online learning, figure 4.3(a) of Gauthier 2024, in fljax and in NumPy.

256 clients, 200 random Fourier features, 2000 iterations, data, participation and delays drawn in
each run, the error on 1000 held-out samples every tenth iteration. Everything is timed from the
seeds to the errors, compilation apart.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import fljax as fl
from experiments.benchmarks import numpy_online
from experiments.benchmarks.machine import best_of, header
from experiments.gauthier import chapter4 as ch4
from experiments.gauthier.figure_4_3 import PSO
from fljax.algorithms import Algorithm
from fljax.participation.patterns import groups
from fljax.study.block_sizes import cores

#: Of Online-FedSGD and Online-Fed, as tuned for figure 4.3(a).
FEDSGD_STEP = 0.08
FED_STEP = 0.5
FED_FRACTION = ch4.PORTION.value / ch4.DIM.value


def setting(rounds: int) -> numpy_online.Setting:
    k = ch4.CLIENTS.value
    return numpy_online.Setting(
        clients=k,
        dim=ch4.DIM.value,
        rounds=rounds,
        rates=groups(np.asarray(ch4.SIZES.value) / max(ch4.SIZES.value), k),
        available=groups(ch4.AVAILABILITY.value, k, nested=len(ch4.SIZES.value)),
        bandwidth=ch4.BANDWIDTH.value,
        delta=ch4.DELTA.value,
        longest=ch4.LONGEST.value,
        test=ch4.TEST.value,
        record_every=ch4.RECORD_EVERY,
    )


def methods() -> dict[str, tuple[Algorithm, Callable[..., list[float]]]]:
    """By name, the algorithm here and its rival in NumPy."""
    step = ch4.STEP.value
    size = ch4.PORTION.value
    fraction, shared = PSO.value
    pao = partial(numpy_online.partial_sharing, step=step, size=size)
    pso = partial(numpy_online.partial_sharing, step=step, size=shared, fraction=fraction)
    fed = numpy_online.online_fed
    return {
        "PAO-Fed-U1": (ch4.pao("U1"), pao),
        "PAO-Fed-U2": (ch4.pao("U2"), partial(pao, discount=0.2)),
        "PSO-Fed": (ch4.pso(fraction, shared)(step), partial(pso, pooled=True)),
        "Online-Fed": (
            ch4.online_fed(FED_FRACTION)(FED_STEP),
            partial(fed, step=FED_STEP, fraction=FED_FRACTION),
        ),
        "Online-FedSGD": (ch4.online_fed(1.0)(FEDSGD_STEP), partial(fed, step=FEDSGD_STEP)),
    }


def study(algorithms: Mapping[str, Algorithm], seeds: int, rounds: int, **given: Any) -> Any:
    return fl.sweep(
        ch4.scenario(ch4.DEFAULT),
        rounds=rounds,
        seeds=seeds,
        grid={"algorithm": dict(algorithms)},
        record_every=ch4.RECORD_EVERY,
        progress=False,
        **given,
    )


def _run_seed(
    run: Callable[..., list[float]], setting: numpy_online.Setting, seed: int
) -> list[float]:
    with threadpool_limits(1, user_api="blas"):
        return run(setting, seed)


def compare(seeds: int, few: int, rounds: int) -> list[str]:
    """A line for each method, and for all five."""
    result = methods()
    head = ("method", "fljax", "one core", f"NumPy, {cores()} procs", "one", "error", "NumPy's")
    lines = [
        f"{rounds} iterations; us an iteration and seed; {seeds} seeds, NumPy {few} seeds",
        f"{head[0]:16s}" + "".join(f"{h:>16s}" for h in head[1:]),
    ]
    sums = np.zeros(4)
    settings = setting(rounds)
    with ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn")) as pool:
        for name, (algorithm, run) in result.items():
            single_method = {name: algorithm}
            error = float(study(single_method, seeds, rounds).test_error.isel(round=-1).mean())
            all_cores = best_of(lambda methods=single_method: study(methods, seeds, rounds)) / seeds
            study(single_method, seeds, rounds, workers=1)
            alone = (
                best_of(lambda methods=single_method: study(methods, seeds, rounds, workers=1))
                / seeds
            )
            call = partial(_run_seed, run, settings)
            rival = best_of(lambda call=call: list(pool.map(call, range(few))), 2) / few
            errors = [call(seed)[-1] for seed in range(few)]
            single = best_of(lambda call=call: [call(seed) for seed in range(few)], 1) / few
            row = np.array([all_cores, alone, rival, single])
            sums += row
            lines.append(_line(name, row / rounds, error, float(np.mean(errors))))
    lines.append(_line("all five apart", sums / rounds, np.nan, np.nan))
    together = {name: algorithm for name, (algorithm, _) in result.items()}
    study(together, seeds, rounds)
    seconds = best_of(lambda: study(together, seeds, rounds), 1)
    lines.append(
        f"all five in one study of {seeds} seeds: {seconds:.1f} s, "
        f"{seconds / seeds / rounds * 1e6:.1f} us an iteration and seed"
    )
    return lines


def _line(name: str, row: np.ndarray, error: float, rivals: float) -> str:
    all_cores, alone, rival, single = row * 1e6
    cells = (
        f"{all_cores:.1f}",
        f"{alone:.1f}",
        f"{rival:.1f} ({rival / all_cores:.1f}x)",
        f"{single:.1f} ({single / all_cores:.1f}x)",
        f"{error:.4f}",
        f"{rivals:.4f}",
    )
    return f"{name:16s}" + "".join(f"{c:>16s}" for c in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--numpy-seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=ch4.ROUNDS.value)
    options = parser.parse_args()
    print(header())
    print("\n".join(compare(options.seeds, options.numpy_seeds, options.rounds)))


if __name__ == "__main__":
    main()
