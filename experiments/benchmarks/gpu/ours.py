"""Studies of our own, as ``platforms`` has them: many seeds, large networks, chapters 4 and 5."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax

from experiments.benchmarks import platforms
from experiments.benchmarks.gpu import cards, counts
from experiments.benchmarks.gpu.rows import Row, recorded
from experiments.benchmarks.platforms import Study

#: Seeds, rounds and peers of a rehearsal.
FEW = 2
SHORT = 4
SMALL = 40


def study(name: str, **changes: Any) -> Callable[[bool], Study]:
    """A study of ``platforms`` by its name there, with other numbers."""
    return lambda rehearse: platforms.studies()[name]._replace(**changes)


def peers(count: int) -> Callable[[bool], Study]:
    """Gradient tracking on a random network of this many peers."""

    def made(rehearse: bool) -> Study:
        scenario = functools.partial(platforms.large_network, SMALL if rehearse else count, 32)
        return Study(
            f"gradient tracking ({count:,} peers, D=32)",
            100,
            1,
            "objective",
            functools.partial(platforms.last, scenario),
        )

    return made


def measure(made: Callable[[bool], Study], seconds: float, rehearse: bool) -> dict[str, Any]:
    """Seconds of a study from its seeds to its errors: the best of two, or of one if time is up."""
    study = made(rehearse)
    rounds = (
        SHORT * 10 if rehearse and study.rounds > 1_000 else SHORT if rehearse else study.rounds
    )
    seeds = min(FEW, study.seeds) if rehearse else study.seeds
    with recorded() as programs:
        first = study.run(seeds, rounds)
    compile_seconds = first.attrs["compile_seconds"]
    elapsed = first.attrs["run_seconds"]
    result = first
    if compile_seconds + 2 * elapsed < seconds:
        began = time.perf_counter()
        result = study.run(seeds, rounds)
        elapsed = min(elapsed, time.perf_counter() - began)
    limits = [counts.count(program.as_text()) for program in programs]
    largest = max(limits, key=lambda limit: limit.kernels, default=counts.Count())
    block = int(str(result.attrs["block"]).strip("[]").split(",")[0])
    blocks = -(-seeds // block)
    moved = largest.bytes * blocks
    kind = jax.devices()[0].device_kind
    errors = result[study.metric].isel(round=-1).values
    return {
        "data": "drawn in the run",
        "precision": "float32",
        "seeds": seeds,
        "rounds": rounds,
        "rounds_done": rounds,
        "seconds": elapsed,
        "scaled": False,
        "rounds_per_second": rounds / elapsed,
        "seed_rounds_per_second": seeds * rounds / elapsed,
        "compile_seconds": compile_seconds,
        "error": float(errors.mean()),
        "bytes_per_round": moved / rounds,
        "kernels_per_step": largest.kernels * blocks / rounds,
        "waits_per_round": largest.waits * blocks / rounds,
        "callbacks": largest.callbacks,
        "roofline": cards.share(kind, elapsed, 0.0, moved, "float32"),
    }


def row(title: str, seconds: float, made: Callable[[bool], Study]) -> Row:
    return Row(title, seconds, functools.partial(measure, made))


ADMM = "private networked ADMM (50 clients, D=8), 200 rounds"

ROWS = {
    "admm-10k": row(f"{ADMM}, 10,000 seeds", 15, study("admm-many")),
    "admm-100k": row(f"{ADMM}, 100,000 seeds", 20, study("admm-many", seeds=100_000)),
    "peers-100k": row("gradient tracking, 100,000 peers, 100 rounds", 15, peers(100_000)),
    "peers-1m": row("gradient tracking, 1,000,000 peers, 100 rounds", 25, peers(1_000_000)),
    "pao-fed": row("PAO-Fed, figure 4.3(a), 100 seeds, 2,000 rounds", 20, study("online")),
    "pgfl": row("PGFL, figure 5.1(a), 1,000 seeds, 300 rounds", 15, study("personalized")),
}
