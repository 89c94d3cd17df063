"""The machine on which a study runs: its cores, its memory, and the block sizes that suit it.

On a CPU, one huge batch of seeds exceeds the cache, and XLA leaves cores idle on work this small.
Seeds are therefore computed in blocks that fit the second-level cache, one block per core at a
time, from a few threads. An accelerator gets the largest blocks that fit its memory, and every
device its own blocks, so no device ever waits for another.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax import _check, _folders
from fljax._folders import sealed, unsealed, write_whole
from fljax._memory import cores, memory_at_hand, on_cpu
from fljax.link.server import GROUP
from fljax.problems import Problem
from fljax.records import COUNTS
from fljax.simulation import Simulation

__all__ = [
    "Footprint",
    "bytes_of",
    "cores",
    "default_workers",
    "footprint",
    "is_brief",
    "measured_block",
    "measurements",
    "points_per_block",
    "remember_block",
    "result_bytes",
    "seeds_per_block",
    "spread",
    "turns_per_call",
]

#: Working set of the rounds of one block of seeds on a CPU. Larger blocks ran slower, small ones
#: too (`experiments/benchmarks/blocks.py`).
CACHE_BYTES = 2**20

#: The same of what the seeds of a block draw before their first round, which is passed over once
#: or twice: in blocks of twice as much the third-level cache did not hold it.
DRAWN_BYTES = 2**22

#: Bytes that a call of a program on a CPU touches, about a second's worth, if it has several
#: blocks.
CALL_BYTES = 2**33

#: Runs of a structure that touch less than this on a CPU, a millisecond's worth, are computed in
#: less time than it takes to hand them out.
BRIEF_BYTES = 2**23

#: Rounds' worth of work before the first: data, graph, statistics, optimum.
ROUNDS_BEFORE = 10

#: Points of one structure beyond this go through in several blocks on a CPU: by then what they
#: share (data, graph, optimum) is a small part of the work.
POINTS_AT_ONCE = 64


def default_workers() -> int:
    """Number of blocks computed concurrently: one per device, or one per core if all cores are one
    device.
    """
    devices = jax.local_device_count()
    return cores() if on_cpu() and devices == 1 else devices


# What fits ---------------------------------------------------------------------------------------


class Footprint(NamedTuple):
    """Bytes of a run; those of its arrays are shared by all grid points."""

    drawn: int  # of arrays that each seed has of its own, such as data that are drawn
    kept: int  # of these in use after the first round: samples may be replaced by statistics
    touched: int  # of all arrays, whoever shares them, that a round may pass over
    each: int  # of every grid point: state, gradient, message, noise and temporaries


@functools.lru_cache(maxsize=64)  # asked several times for each block
def footprint(shown: Simulation, drawn: Simulation) -> Footprint:
    """What a run keeps in use.

    Args:
      shown: shapes and structure, of which each object is its own.
      drawn: of each of these, whether a seed draws its own.
    """
    problem = shown.problem
    rows, number = problem.clients, problem.dim * problem.dtype.itemsize
    whole = bytes_of(shown)
    if not on_cpu():
        return Footprint(whole, whole, whole, 6 * rows * number)
    if problem.online:  # no more than a state or a group of senders has
        state = jax.eval_shape(lambda s: s.algorithm.init(s.problem, s.network), shown)
        rows = min(rows, max(GROUP, bytes_of(state) // number))
    own = _drawn_bytes(shown, drawn)
    kept, touched = own, whole
    if isinstance(problem, Problem) and problem.is_summarized:
        samples, is_own = (_samples(p) for p in (problem, drawn.problem))
        statistics = problem.clients * (problem.dim + 1) * number
        kept += any(is_own) * statistics - _drawn_bytes(samples, is_own)
        touched += statistics - bytes_of(samples)
    return Footprint(own, kept, touched, 6 * rows * number)


def _samples(problem: Any) -> tuple[Any, Any, Any]:
    return problem.features, problem.targets, problem.weights


def _drawn_bytes(shapes: Any, drawn: Any) -> int:
    """Bytes of those arrays of a tree that each seed draws."""
    pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(drawn), strict=True)
    return bytes_of([leaf for leaf, is_own in pairs if is_own])


def bytes_of(shapes: Any) -> int:
    """Bytes of all arrays of a tree."""
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def result_bytes(
    records: Mapping[str, Any], outcome: Mapping[str, Any], count: int, differing: bool = False
) -> int:
    """Bytes that the results of a run take in this machine's memory.

    Args:
      records: records of some runs, as shapes ``[S, C, R, ...]``.
      outcome: the same, ``[S, C, ...]``.
      count: number of records of a run.
      differing: whether the traffic differs between runs; otherwise it is stored once.
    """
    measured = {name: shape for name, shape in records.items() if name not in COUNTS}
    bytes_ = count * sum(_per_element(shape, 3) for shape in measured.values())
    bytes_ += sum(_per_element(shape, 2) for shape in outcome.values())
    counted = len(records) - len(measured)
    return bytes_ + 8 * count * (counted + 1) * (differing and counted > 0)  # and both directions


def _per_element(shape: Any, axes: int) -> int:
    """Bytes beyond some leading axes."""
    return int(np.prod(shape.shape[axes:])) * shape.dtype.itemsize


def points_per_block(run: Footprint, points: int) -> int:
    """Number of a group's points computed together."""
    if on_cpu():
        return min(points, max(POINTS_AT_ONCE, run.drawn // run.each))
    return max(1, min(points, int((memory_at_hand() - run.drawn) // run.each)))


def seeds_per_block(run: Footprint, points: int) -> int:
    """Number of seeds computed together."""
    of_points = points * run.each
    if not on_cpu():
        return max(1, int(memory_at_hand() // (run.drawn + of_points)))
    return max(
        1, min(CACHE_BYTES // (run.kept + of_points), DRAWN_BYTES // (run.drawn + of_points))
    )


def spread(seeds: int, block: int, workers: int) -> int:
    """The largest block, up to the given one, that gives every worker the same share."""
    turns = -(-seeds // (min(block, seeds) * workers))
    return max(1, -(-seeds // (turns * workers)))


def turns_per_call(
    run: Footprint, points: int, block: int, seeds: int, workers: int, rounds: int
) -> int:
    """Number of blocks of seeds that one call of a program computes one after the other.

    On a CPU a small block is done in less time than a call costs. Every worker still gets four
    calls or more, so that none waits long for another at the end, and no call is long.
    """
    if not on_cpu():
        return 1
    short = CALL_BYTES // (block * rounds * (run.touched + points * run.each))
    most = max(1, min(short, -(-seeds // (block * workers * 4))))
    padded = {turns: -(-seeds // (block * turns)) * block * turns for turns in range(1, most + 1)}
    return min(padded, key=lambda turns: (padded[turns], -turns))


def is_brief(run: Footprint, runs: int, rounds: int) -> bool:
    """Whether so many runs are too little work for several workers."""
    before = ROUNDS_BEFORE * (run.drawn + run.each)
    return on_cpu() and runs * (before + rounds * (run.touched + run.each)) < BRIEF_BYTES


# The measured block ------------------------------------------------------------------------------


def measurements() -> Path:
    """The file of block sizes measured on this machine."""
    return _folders.cache() / "blocks.json"


def measured_block(identity: str) -> int | None:
    """The number of seeds per block that :func:`fljax.plan` measured to be the fastest here, if
    any.
    """
    try:
        block = unsealed(measurements().read_text()).get(_measurement(identity))
    except (OSError, ValueError):
        return None
    return block if _check.is_whole(block) and block > 0 else None


def remember_block(identity: str, block: int) -> None:
    """Store a measurement for later studies of the same program on this kind of machine."""
    path = measurements()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        known = unsealed(path.read_text())
    except (OSError, ValueError):
        known = {}
    write_whole(path, sealed(known | {_measurement(identity): block}, indent=1).encode())


def _measurement(identity: str) -> str:
    device = jax.local_devices()[0]
    where = f"{device.device_kind} x{jax.local_device_count()}, {cores()} cores"
    return f"{identity}, {where}, jax {jax.__version__}"
