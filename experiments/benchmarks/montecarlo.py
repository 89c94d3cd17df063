"""Monte-Carlo studies in fljax and in NumPy, side by side in one run.

    python -m experiments.benchmarks.montecarlo [STUDY ...] [--seeds 100] [--out FILE.json]

Three studies: ``admm``, private networked ADMM (zCDP-NFL on ridge, 50 clients, 50 samples, 8
parameters); ``descent``, federated gradient descent on least squares (100 clients, 50 samples, 32
parameters); ``softmax``, federated averaging of a 784-to-10 softmax regression (10 of 100 clients a
round, one epoch over 600 samples in batches of 20). Everything is timed from the seeds to the
errors: data, graph, optimum and rounds; the softmax study's data are the same for all seeds and
made beforehand, for both sides. fljax's compile time is stated apart. NumPy's best variant, at the
better number of BLAS threads, is the rival that counts.
"""

import argparse
import datetime
import json
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from threadpoolctl import threadpool_limits

import fljax as fl
from experiments.benchmarks import numpy_baselines as numpy_side
from experiments.benchmarks.machine import header
from experiments.benchmarks.peers.workloads import SOFTMAX
from fljax._core.storage import replace_file

ROUNDS = 200
ADMM = {"clients": 50, "samples": 50, "dim": 8}
DESCENT = {"clients": 100, "samples": 50, "dim": 32}
PENALTY = 3.0
STEP = 0.5
TOTAL = 11.88
DECAY = 0.96
BOUND = 1.0
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


@cache
def images():
    """The softmax study's data, the same for every seed."""
    pixels, labels = SOFTMAX.data()
    loss = fl.problems.Softmax(SOFTMAX.classes)
    return fl.problems.Problem(pixels, labels.astype(pixels.dtype), loss, strength=0.0)


def softmax_averaging(key):
    return fl.Simulation(
        problem=images(),
        algorithm=fl.algorithms.FedAvg(
            SOFTMAX.step, clients_per_round=SOFTMAX.per_round, batch=SOFTMAX.batch
        ),
        metrics=["objective"],
    )


class Rival(NamedTuple):
    """NumPy's way of doing a study."""

    label: str
    run: Callable[[int], Any]  # seeds -> errors
    dtype: str
    seeds: int  # that are run; the time is scaled


class Study(NamedTuple):
    """A study that both sides run."""

    title: str
    scenario: Callable[[jax.Array], fl.Simulation]
    rounds: int
    error: Callable[[Any], float]  # of a dataset
    rivals: list[Rival]
    work: tuple[int, int]  # flops and bytes of one seed


def timed(function, repeats: int = 3):
    """The best wall time of a few calls, and the last result."""
    best = np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - began)
    return best, result


def compare(study: Study, seeds: int) -> dict[str, Any]:
    """Run one study on both sides; seconds and errors of each side."""
    sweep = partial(
        fl.sweep, study.scenario, rounds=study.rounds, seeds=seeds, record_every=study.rounds
    )
    compile_seconds = sweep().attrs["compile_seconds"]
    ours, result = timed(sweep)
    sweep(workers=1)
    alone, _ = timed(partial(sweep, workers=1))
    error = study.error(result)
    rows = [
        (f"fljax, {result.attrs['block']} seeds a block", ours, error, "float32"),
        ("fljax, one worker", alone, error, "float32"),
    ]
    for rival in study.rivals:
        best = np.inf
        threads = ""
        for limit, name in ((1, "1 BLAS thread"), (None, "BLAS threads")):
            with threadpool_limits(limit, user_api="blas"):
                seconds, errors = timed(partial(rival.run, rival.seeds), 2)
            if seconds < best:
                best = seconds
                threads = name
        scaled = f", {rival.seeds} seeds scaled" if rival.seeds < seeds else ""
        label = f"NumPy, {rival.label}, {threads}{scaled}"
        rows.append((label, best * seeds / rival.seeds, np.mean(errors), rival.dtype))
    return {
        "title": study.title,
        "rounds": study.rounds,
        "seeds": seeds,
        "compile_seconds": compile_seconds,
        "rows": [
            {"side": label, "dtype": dtype, "seconds": seconds, "error": float(error)}
            for label, seconds, error, dtype in rows
        ],
        "work": study.work,
    }


def table(study: dict[str, Any]) -> list[str]:
    """What :func:`compare` measured, as lines."""
    seeds = study["seeds"]
    runs = seeds * study["rounds"]
    ours, alone, *rivals = (row["seconds"] for row in study["rows"])
    run = f"{study['rounds']} rounds, {seeds} seeds"
    lines = [
        f"\n{study['title']}: {run}; compiled in {study['compile_seconds']:.1f} s",
        f"{'':76s} {'type':>8s} {'seconds':>8s} {'us/round':>9s} {'fljax is':>9s} {'error':>9s}",
    ]
    for row in study["rows"]:
        seconds = row["seconds"]
        lines.append(
            f"{row['side']:76s} {row['dtype']:>8s} {seconds:8.3f} {seconds / runs * 1e6:9.2f} "
            f"{seconds / ours:8.1f}x {row['error']:9.2e}"
        )
    flops, moved = study["work"]
    rate = seeds / ours
    lines.append(
        f"best NumPy / fljax: {min(rivals) / ours:.1f}x;  both cores: {alone / ours:.2f}x one"
    )
    lines.append(
        f"counted per seed: {flops / 1e6:.0f} Mflop, {moved / 1e6:.0f} MB touched "
        f"-> {flops * rate / 1e9:.1f} GFLOP/s and {moved * rate / 1e9:.1f} GB/s achieved"
    )
    return lines


def final(name: str) -> Callable[[Any], float]:
    """The mean over seeds of a metric's last record."""
    return lambda results: float(results[name].isel(round=-1).mean())


def vectorized(run: Callable[..., Any], seeds: int, *forms: str) -> list[Rival]:
    """Every form, precision and number of seeds at a time of a vectorized rival."""
    return [
        Rival(
            f"{form} form, {block} seed{'s' * (block > 1)} at a time",
            partial(run, block=block, dtype=dtype, form=form),
            dtype.__name__,
            seeds,
        )
        for form in forms
        for dtype in (np.float32, np.float64)
        for block in (1, 5, 10, 25)
    ]


def admm(seeds: int, few: int) -> Study:
    k, n, d = ADMM.values()
    settings = {"penalty": PENALTY, "step": STEP, "total": TOTAL, "decay": DECAY, "bound": BOUND}
    settings |= {**ADMM, "rounds": ROUNDS}
    run, loop = (
        partial(f, **settings) for f in (numpy_side.private_admm, numpy_side.private_admm_loop)
    )
    # Gram product, one pass for the gradient bound, one mixing; the data and their Gram matrices.
    flops = 2 * k * d * d + 2 * k * n * d + 2 * k * k * d + 30 * k * d
    moved = 4 * (k * d * d + k * n * d + 2 * k * n + k * k + 12 * k * d)
    work = (ROUNDS * flops + 2 * k * n * d * d, ROUNDS * moved + 8 * k * n * d)
    return Study(
        "Private networked ADMM (zCDP-NFL, ridge, K=50, N=50, D=8)",
        private_admm,
        ROUNDS,
        final("normalized_error"),
        [
            *vectorized(run, seeds, "gram", "samples"),
            Rival("client by client", loop, "float64", few),
        ],
        work,
    )


def descent(seeds: int, few: int) -> Study:
    k, n, d = DESCENT.values()
    # The pooled Gram matrix of data that are written and read once, one product with it a round.
    work = (2 * k * n * d * d + 2 * ROUNDS * d * d, 8 * k * n * d + 4 * ROUNDS * d * d)
    settings = {**DESCENT, "rounds": ROUNDS, "step": DESCENT_STEP}
    run = partial(numpy_side.federated_descent, **settings)
    loop = partial(numpy_side.federated_descent_loop, **settings)
    return Study(
        "Federated gradient descent (least squares, K=100, N=50, D=32)",
        federated_descent,
        ROUNDS,
        final("normalized_error"),
        [
            *vectorized(run, seeds, "gram", "samples", "pooled"),
            Rival("client by client", loop, "float64", few),
        ],
        work,
    )


def softmax(seeds: int, few: int) -> Study:
    pixels, labels = SOFTMAX.data()
    settings = {
        "rounds": SOFTMAX.rounds,
        "features": pixels,
        "labels": labels,
        "per_round": SOFTMAX.per_round,
        "batch": SOFTMAX.batch,
        "step": SOFTMAX.step,
    }
    visited = SOFTMAX.rounds * SOFTMAX.per_round * SOFTMAX.samples
    wide = SOFTMAX.features * SOFTMAX.classes
    # Two products a sample; each sample is read once, each model twice and written once a step.
    moved = visited * SOFTMAX.features + 3 * visited // SOFTMAX.batch * wide
    return Study(
        "Federated averaging (softmax 784-10, 10 of 100 clients, 30 steps of 20 samples)",
        softmax_averaging,
        SOFTMAX.rounds,
        lambda results: final("objective")(results) / SOFTMAX.clients,
        [
            *(
                Rival(
                    f"participants of {block} seed{'s' * (block > 1)} side by side",
                    partial(numpy_side.averaging, **settings, block=block),
                    "float32",
                    min(seeds, 4),
                )
                for block in (1, 4)
            ),
            Rival(
                "client by client", partial(numpy_side.averaging_loop, **settings), "float32", few
            ),
        ],
        (4 * visited * wide, 4 * moved),
    )


STUDIES = {"admm": admm, "descent": descent, "softmax": softmax}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--loop-seeds", type=int, default=2, help="of NumPy client by client")
    parser.add_argument("--out", help="also write the numbers to this file, in JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.studies) - set(STUDIES)
    if unknown:
        parser.error(f"unknown study {', '.join(unknown)}; known: {', '.join(STUDIES)}")
    report: dict[str, Any] = {
        "machine": header(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "studies": [],
    }
    print(report["machine"])
    for name in arguments.studies or STUDIES:
        measured = compare(STUDIES[name](arguments.seeds, arguments.loop_seeds), arguments.seeds)
        report["studies"].append(measured)
        print("\n".join(table(measured)), flush=True)
        if arguments.out:
            replace_file(Path(arguments.out), json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
