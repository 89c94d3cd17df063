"""What can be said of the rows without a GPU: their programs of full size, lowered for CUDA.

No array of full size is made. The flops of a round are counted in the traced program; kernels and
synchronizations in the rehearsal's program, traced in the form for an accelerator and compiled for
this machine's CPU, whose compiler fuses less than that for GPUs.
"""

import time
from typing import Any

import jax
import numpy as np
from jax import export

from experiments.benchmarks.gpu import (
    blazefl,
    cards,
    counts,
    flute,
    pfl_cifar10,
    stackoverflow,
    training,
)
from experiments.benchmarks.gpu.rows import Segments, segment_of, start_of
from experiments.benchmarks.gpu.training import Samples, Training
from fljax._core.devices import traced_for
from fljax._core.prng import random_key

MODULES = (pfl_cifar10, flute, blazefl, stackoverflow)


def full_size(work: Training) -> dict[str, Any]:
    """The program of a record's rounds: flops of a round, size of its text, seconds it took."""
    began = time.perf_counter()
    arrays = jax.eval_shape(lambda: training.arrays(work))
    sizes = training.sizes(work)
    key = random_key(0)

    def samples(arrays: Any) -> Samples:
        features, targets, test_features, test_targets = arrays
        return Samples(features, targets, sizes, test_features, test_targets, "shapes")

    def start(arrays: Any) -> Any:
        return start_of(work, samples(arrays))(key)

    def segment(arrays: Any, carry: Any, done: Any) -> Any:
        return segment_of(work, samples(arrays))(key, carry, done)

    with traced_for("cuda"):
        carry = jax.eval_shape(start, arrays)
        done = jax.ShapeDtypeStruct((), np.int32)
        program = export.export(jax.jit(segment), platforms=("cuda",))(arrays, carry, done)
        flops = counts.flops(segment, arrays, carry, done, iterations=work.steps)
    return {
        "flops_per_round": flops / work.record_every,
        "lowered_kilobytes": len(program.mlir_module()) / 1e3,
        "lowered_seconds": time.perf_counter() - began,
    }


def small(work: Training) -> dict[str, Any]:
    """Kernels of a local step, and loops of an unknown length in a round, of a rehearsal."""
    with traced_for("cuda"):
        text = Segments(work, work.data()).text
        found = counts.count(text, work.iterations)
    rounds = work.record_every
    return {
        "kernels_per_step": found.kernels / rounds / work.steps,
        "open_loops_per_round": counts.count(text, 0.0).waits / rounds,
        "callbacks": found.callbacks,
        "donated_arrays": counts.donated(text),
    }


def measured(name: str, card: str = "H200") -> dict[str, Any]:
    """One row; and the least time of a run at a card's peak of arithmetic."""
    row = {name: row for module in MODULES for name, row in module.ROWS.items()}[name]
    assert row.training is not None
    work = row.training(False)
    result = {"row": name, "title": row.title} | full_size(work) | small(row.training(True))
    peak = getattr(cards.CARDS[card], work.precision)
    return result | {
        "rounds": work.rounds,
        "card": card,
        "least_seconds": result["flops_per_round"] * work.rounds / peak,
    }


def names() -> list[str]:
    return [name for module in MODULES for name in module.ROWS]
