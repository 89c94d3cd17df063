"""Monte-Carlo studies in fljax and in NumPy, side by side in one run.

    python -m experiments.benchmarks.montecarlo [--seeds 100] [--out FILE]

Two workloads: private networked ADMM (zCDP-NFL on ridge, 50 clients, 50 samples, 8 parameters)
and federated gradient descent on least squares (100 clients, 50 samples, 32 parameters), 200
rounds each. Everything is timed from the seeds to the errors: data, graph, optimum and rounds.
fljax's compile time is stated apart. NumPy's best variant is the rival that counts.
"""

import argparse
import time
from functools import partial

import jax
import numpy as np

import fljax as fl
from experiments.benchmarks import numpy_baselines as rival
from experiments.benchmarks.machine import header

ROUNDS = 200
ADMM = {"clients": 50, "samples": 50, "dim": 8}
DESCENT = {"clients": 100, "samples": 50, "dim": 32}
PENALTY, STEP, TOTAL, DECAY, BOUND = 3.0, 0.5, 11.88, 0.96, 1.0
DESCENT_STEP = 0.1


def private_admm(key):
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.ridge(k_data, **ADMM),
        network=fl.graphs.random_connected(k_graph, nodes=ADMM["clients"], mean_degree=3),
        algorithm=fl.algorithms.ZCDPNFL(PENALTY, fl.schedules.PowerDecay(STEP)),
        privacy=fl.privacy.ZCDP(TOTAL, DECAY, BOUND),
        metrics=["normalized_error"],
    )


def federated_descent(key):
    return fl.Simulation(
        problem=fl.problems.least_squares(key, **DESCENT),
        algorithm=fl.algorithms.ConventionalFL(DESCENT_STEP),
        metrics=["normalized_error"],
    )


def timed(function, repeats: int = 3):
    """The best wall time of a few calls, and the last result."""
    best = np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - began)
    return best, result


def compare(name, scenario, vectorised, loop, forms, traffic, seeds, loop_seeds):
    """Rows of one workload; returns them as text."""
    rows = []
    first = fl.sweep(scenario, rounds=ROUNDS, seeds=seeds, record_every=ROUNDS)
    compile_seconds = first.attrs["compile_seconds"]
    whole, study = timed(
        lambda: fl.sweep(scenario, rounds=ROUNDS, seeds=seeds, record_every=ROUNDS)
    )
    error = float(study.normalized_error.isel(round=-1).mean())
    every, _ = timed(lambda: fl.sweep(scenario, rounds=ROUNDS, seeds=seeds))
    rows.append((f"fljax, blocks of {study.attrs['block']} seeds", whole, error, float32_name))
    rows.append(("fljax, error recorded every round", every, error, float32_name))
    for form in forms:
        for dtype in (np.float32, np.float64):
            for block in (1, 10):
                run = partial(vectorised, block=block, dtype=dtype, form=form)
                seconds, errors = timed(lambda run=run: run(seeds=seeds), 2)
                label = f"NumPy, {form} form, {block} seed{'s' * (block > 1)} at a time"
                rows.append((label, seconds, errors.mean(), dtype.__name__))
    seconds, errors = timed(lambda: loop(seeds=loop_seeds), 1)
    rows.append(
        (f"NumPy loop over clients ({loop_seeds} seeds, scaled)",
         seconds * seeds / loop_seeds, errors.mean(), "float64")
    )  # fmt: skip
    lines = [
        f"\n{name}: {ROUNDS} rounds, {seeds} seeds; compiled in {compile_seconds:.1f} s",
        f"{'':52s} {'type':>8s} {'seconds':>8s} {'us/round':>9s} {'fljax is':>9s} {'error':>9s}",
    ]
    for label, seconds, error, dtype in rows:
        lines.append(
            f"{label:52s} {dtype:>8s} {seconds:8.3f} {seconds / seeds / ROUNDS * 1e6:9.2f} "
            f"{seconds / whole:8.1f}x {error:9.2e}"
        )
    best = min(row[1] for row in rows if row[0].startswith("NumPy,"))
    flops, moved = traffic
    rate = seeds * ROUNDS / whole
    lines.append(
        f"best NumPy / fljax: {best / whole:.1f}x;  NumPy loop / fljax: {rows[-1][1] / whole:.0f}x"
    )
    lines.append(
        f"counted per round and seed: {flops / 1e3:.0f} kflop, {moved / 1e3:.0f} kB touched "
        f"-> {flops * rate / 1e9:.1f} GFLOP/s and {moved * rate / 1e9:.1f} GB/s achieved, set-up "
        "of data and graph included"
    )
    return lines


float32_name = "float32"


def admm_traffic() -> tuple[int, int]:
    """Flops and bytes of a round: Gram product, one pass for the gradient bound, two mixings."""
    k, n, d = ADMM["clients"], ADMM["samples"], ADMM["dim"]
    flops = 2 * k * d * d + 2 * k * n * d + 2 * 2 * k * k * d + 30 * k * d
    return flops, 4 * (k * d * d + k * n * d + 2 * k * n + 2 * k * k + 12 * k * d)


def descent_traffic() -> tuple[int, int]:
    """Flops and bytes of a round: one Gram product per client."""
    k, d = DESCENT["clients"], DESCENT["dim"]
    return 2 * k * d * d + 4 * k * d, 4 * (k * d * d + 3 * k * d)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--loop-seeds", type=int, default=2)
    parser.add_argument("--out", help="also write the table to this file")
    arguments = parser.parse_args()
    lines = header().splitlines()
    admm = {
        **ADMM,
        "rounds": ROUNDS,
        "penalty": PENALTY,
        "step": STEP,
        "total": TOTAL,
        "decay": DECAY,
        "bound": BOUND,
    }
    descent = {**DESCENT, "rounds": ROUNDS, "step": DESCENT_STEP}
    lines += compare(
        "Private networked ADMM (zCDP-NFL, ridge, K=50, N=50, D=8)",
        private_admm,
        partial(rival.private_admm, **admm),
        partial(rival.private_admm_loop, **admm),
        ("gram", "samples"),
        admm_traffic(),
        arguments.seeds,
        arguments.loop_seeds,
    )
    lines += compare(
        "Federated gradient descent (least squares, K=100, N=50, D=32)",
        federated_descent,
        partial(rival.federated_descent, **descent),
        partial(rival.federated_descent_loop, **descent),
        ("gram", "samples", "pooled"),
        descent_traffic(),
        arguments.seeds,
        arguments.loop_seeds,
    )
    text = "\n".join(lines)
    print(text)
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
