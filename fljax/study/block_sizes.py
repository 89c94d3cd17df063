"""Block sizes that suit the machine: its cores, caches and memory.

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
from jaxtyping import PyTree

from fljax._core import checks, storage
from fljax._core.devices import cores, on_cpu
from fljax._core.memory import memory_at_hand
from fljax._core.storage import sealed, unsealed, write_whole
from fljax.link.sender_groups import GROUP
from fljax.metrics.names import COUNTS
from fljax.problems import Problem
from fljax.simulation.scenario import Simulation

#: Working set of the rounds of one block of seeds on a CPU. Both larger and smaller blocks were
#: slower (`experiments/benchmarks/blocks.py`).
CACHE_BYTES = 2**20

#: Bytes that the seeds of a block may draw before their first round. These arrays are read once or
#: twice; blocks of twice this size exceeded the third-level cache.
DRAWN_BYTES = 2**22

#: Bytes that a call with several blocks touches on a CPU, in about a second.
CALL_BYTES = 2**33

#: Runs that touch less than this on a CPU take about a millisecond, less than passing them to a
#: worker.
BRIEF_BYTES = 2**23

#: Work before the first round (data, graph, statistics, optimum), in rounds.
ROUNDS_BEFORE = 10

#: More points of one structure are divided into several blocks on a CPU: beyond this number, the
#: data, graph and optimum that points share are a small part of the work.
POINTS_AT_ONCE = 64


class BlockSizes(NamedTuple):
    """How the runs of one structure are divided into blocks."""

    points: int  # grid points per block
    seeds: int  # seeds per block
    blocks_per_call: int  # blocks per call of a program
    is_brief: bool  # too little work for several workers

    @property
    def seeds_per_call(self) -> int:
        """Number of seeds per call."""
        return self.seeds * self.blocks_per_call


def default_workers() -> int:
    """Number of concurrent blocks: one per device, or one per core of a single CPU device."""
    devices = jax.local_device_count()
    return cores() if on_cpu() and devices == 1 else devices


# Sizes -------------------------------------------------------------------------------------------


class Footprint(NamedTuple):
    """Bytes of a run. All but ``per_point`` are of arrays that its grid points share."""

    drawn: int  # arrays that differ between seeds, such as drawn data
    retained: int  # the part of them used after the first round: statistics may replace samples
    touched: int  # arrays that a round may read, including those shared by all seeds
    per_point: int  # state, gradient, message, noise and temporaries of a grid point


@functools.lru_cache(maxsize=64)  # computed several times for each block
def footprint(abstract: Simulation, is_drawn: Simulation) -> Footprint:
    """The memory footprint of a run.

    Args:
      abstract: the simulation with shapes in place of arrays.
      is_drawn: the same structure with booleans, whether an array differs between seeds.
    """
    problem = abstract.problem
    rows = problem.clients
    model_bytes = problem.dim * problem.dtype.itemsize
    all_bytes = bytes_of(abstract)
    if not on_cpu():
        return Footprint(all_bytes, all_bytes, all_bytes, 6 * rows * model_bytes)
    if problem.online:  # at most the rows of the state, or of a group of senders
        state = jax.eval_shape(lambda s: s.algorithm.init(s.problem, s.network), abstract)
        rows = min(rows, max(GROUP, bytes_of(state) // model_bytes))
    seed_bytes = _drawn_bytes(abstract, is_drawn)
    retained = seed_bytes
    touched = all_bytes
    if isinstance(problem, Problem) and problem.is_summarized:
        samples, is_own = (_samples(p) for p in (problem, is_drawn.fixed_problem))
        statistics = problem.clients * (problem.dim + 1) * model_bytes
        retained += any(is_own) * statistics - _drawn_bytes(samples, is_own)
        touched += statistics - bytes_of(samples)
    return Footprint(seed_bytes, retained, touched, 6 * rows * model_bytes)


def _samples(problem: Problem) -> tuple[Any, Any, Any]:
    return problem.features, problem.targets, problem.weights


def _drawn_bytes(shapes: object, is_drawn: PyTree) -> int:
    """Bytes of the arrays of a tree that differ between seeds."""
    pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(is_drawn), strict=True)
    return bytes_of([leaf for leaf, is_own in pairs if is_own])


def bytes_of(shapes: object) -> int:
    """Bytes of all arrays of a tree."""
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def result_bytes(
    records: Mapping[str, Any], outcome: Mapping[str, Any], count: int, differing: bool = False
) -> int:
    """Bytes of this machine's memory for the results of a run.

    Args:
      records: records of some runs, as shapes ``[S, C, R, ...]``.
      outcome: the same, ``[S, C, ...]``.
      count: number of records of a run.
      differing: whether the traffic differs between runs; otherwise it is stored once.
    """
    measured = {name: shape for name, shape in records.items() if name not in COUNTS}
    total = count * sum(_per_element(shape, 3) for shape in measured.values())
    total += sum(_per_element(shape, 2) for shape in outcome.values())
    count_metrics = len(records) - len(measured)
    # One more count: the results also have the bits of both directions together.
    return total + 8 * count * (count_metrics + 1) * (differing and count_metrics > 0)


def _per_element(shape: jax.ShapeDtypeStruct, axes: int) -> int:
    """Bytes of an array per element of its leading axes."""
    return int(np.prod(shape.shape[axes:])) * shape.dtype.itemsize


def points_per_block(run: Footprint, points: int) -> int:
    """Number of a group's points computed together."""
    if on_cpu():
        return min(points, max(POINTS_AT_ONCE, run.drawn // run.per_point))
    return max(1, min(points, int((memory_at_hand() - run.drawn) // run.per_point)))


def seeds_per_block(run: Footprint, points: int) -> int:
    """Number of seeds computed together."""
    of_points = points * run.per_point
    if not on_cpu():
        return max(1, int(memory_at_hand() // (run.drawn + of_points)))
    return max(
        1, min(CACHE_BYTES // (run.retained + of_points), DRAWN_BYTES // (run.drawn + of_points))
    )


def even_block_size(seeds: int, block: int, workers: int) -> int:
    """The largest block size, up to the given one, with the same number of blocks per worker."""
    rounds_of_blocks = -(-seeds // (min(block, seeds) * workers))
    return max(1, -(-seeds // (rounds_of_blocks * workers)))


def choose_blocks_per_call(
    run: Footprint, points: int, block: int, seeds: int, workers: int, rounds: int
) -> int:
    """Number of blocks of seeds that one call of a program computes one after the other.

    On a CPU computing a small block takes less time than a call. Every worker gets at least four
    calls, so that none waits long for another at the end, and calls stay short.
    """
    if not on_cpu():
        return 1
    blocks_within_bytes = CALL_BYTES // (block * rounds * (run.touched + points * run.per_point))
    max_blocks = max(1, min(blocks_within_bytes, -(-seeds // (block * workers * 4))))
    padded = {n: -(-seeds // (block * n)) * block * n for n in range(1, max_blocks + 1)}
    return min(padded, key=lambda blocks: (padded[blocks], -blocks))


def is_brief(run: Footprint, runs: int, rounds: int) -> bool:
    """Whether these runs are too little work for several workers."""
    before = ROUNDS_BEFORE * (run.drawn + run.per_point)
    return on_cpu() and runs * (before + rounds * (run.touched + run.per_point)) < BRIEF_BYTES


# Measured block sizes ----------------------------------------------------------------------------


def measurements() -> Path:
    """The file of block sizes measured on this machine."""
    return storage.cache() / "blocks.json"


def measured_block(identity: str) -> int | None:
    """The number of seeds per block that :func:`fljax.plan` measured as the fastest, if any."""
    try:
        block = unsealed(measurements().read_text()).get(_measurement(identity))
    except (OSError, ValueError):
        return None
    return block if checks.is_whole(block) and block > 0 else None


def remember_block(identity: str, block: int) -> None:
    """Store a measurement for later studies of the same program on this kind of machine."""
    path = measurements()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        stored = unsealed(path.read_text())
    except (OSError, ValueError):
        stored = {}
    write_whole(path, sealed(stored | {_measurement(identity): block}, indent=1).encode())


def _measurement(identity: str) -> str:
    device = jax.local_devices()[0]
    machine = f"{device.device_kind} x{jax.local_device_count()}, {cores()} cores"
    return f"{identity}, {machine}, jax {jax.__version__}"
