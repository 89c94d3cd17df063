"""Planning a study: divide its runs into blocks that fit into memory, and compile its programs."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax._core import checks
from fljax._core.devices import on_cpu
from fljax._core.memory import human
from fljax._core.prng import GENERATOR
from fljax.study import batched_program, block_sizes
from fljax.study.batched_program import Compiled
from fljax.study.block_sizes import BlockSizes
from fljax.study.grid import Group, Scenario, label_of
from fljax.study.request import Request, Study

#: A segment of a run ends with a checkpoint once its rounds have touched this number of bytes,
#: about half a minute of a CPU's memory traffic.
SEGMENT_BYTES = 2**38


#: Approximate bytes of bookkeeping per run: its seed, in a few lists.
BOOKKEEPING_BYTES = 200


class BlockPlan(NamedTuple):
    """Division of the runs of one structure into blocks."""

    points: int  # grid points per block
    seeds: int  # seeds per block
    blocks_per_call: int  # blocks per call
    workers: int  # blocks in flight
    is_brief: bool  # faster to compute in the main thread than to pass to a worker
    compiled: Compiled  # the program of the first segment
    seconds: float  # spent compiling it

    @property
    def seeds_per_call(self) -> int:
        """Number of seeds per call."""
        return self.seeds * self.blocks_per_call


@dataclass(frozen=True)
class Part:
    """One structure of a planned study.

    Attributes:
      example: the first grid point of this structure.
      points: number of grid points.
      points_per_block: number of grid points computed together.
      seeds_per_block: number of seeds computed together.
      blocks: number of blocks.
      workers: number of blocks computed concurrently.
      segments: number of segments into which checkpoints divide a run.
      memory: bytes that one block takes while it runs, from the compiled program's own analysis.
      memory_per_run: the same for one run.
      state: bytes of the states of all its runs, as stored.
      records: bytes of the records of all its runs.
      results: bytes of this machine's memory that the results of all its runs take, if they have
        the same traffic.
      results_at_most: the same, if traffic differs from run to run.
      finished: bytes that a finished block occupies until it is collected into the results.
      finished_at_most: the same, if traffic differs from run to run.
    """

    example: str
    points: int
    points_per_block: int
    seeds_per_block: int
    blocks: int
    workers: int
    segments: int
    memory: int
    memory_per_run: int
    state: int
    records: int
    results: int
    results_at_most: int
    finished: int
    finished_at_most: int


@dataclass(frozen=True)
class Plan:
    """How a study would be run; returned by :func:`plan`."""

    runs: int
    rounds: int
    devices: str
    compile_seconds: float
    parts: list[Part]

    @property
    def memory(self) -> int:
        """Peak memory of this machine in bytes that the study takes if its runs have the same
        traffic.

        It is the sum of the results, blocks being computed (on an accelerator, they are in its
        memory), blocks that wait to be collected, and the bookkeeping of every run. Python, JAX,
        the compiled programs and the data that the scenario captures are not included.
        """
        return self._peak("")

    @property
    def memory_at_most(self) -> int:
        """The same, if traffic differs from run to run."""
        return self._peak("_at_most")

    def _peak(self, suffix: str) -> int:
        results = sum(getattr(part, f"results{suffix}") for part in self.parts)
        blocks = (
            # Besides the waiting blocks, one is being collected, which makes a copy.
            part.workers * part.memory * on_cpu()
            + (part.workers + 2) * getattr(part, f"finished{suffix}")
            for part in self.parts
        )
        return results + max(blocks) + BOOKKEEPING_BYTES * self.runs

    @property
    def compilations(self) -> int:
        """Number of programs to compile, one per structure."""
        return len(self.parts)

    def __str__(self) -> str:
        text = self._head
        for part in self.parts:
            text += (
                f"\n- {part.points} point{'s' * (part.points > 1)} like {part.example}"
                f"\n    {part.blocks} blocks of {part.seeds_per_block} seeds x "
                f"{part.points_per_block} points, {part.workers} at a time, {part.segments} "
                f"stretch{'es' * (part.segments > 1)} each"
                f"\n    memory {human(part.memory)} a block ({human(part.memory_per_run)} a run), "
                f"{human(part.workers * part.memory)} in all; on disk {human(part.records)} of "
                f"records and {human(part.state)} of states"
            )
        return f"{text}\n{self._foot}"

    def _repr_html_(self) -> str:  # in a notebook
        heads = ("structure", "points", "blocks", "seeds x points a block", "at a time")
        heads += ("stretches", "memory a block", "a run", "in all", "records", "states")
        rows = [
            (
                *(f"like {part.example}", part.points, part.blocks),
                *(f"{part.seeds_per_block} x {part.points_per_block}", part.workers, part.segments),
                *map(human, (part.memory, part.memory_per_run, part.workers * part.memory)),
                *map(human, (part.records, part.state)),
            )
            for part in self.parts
        ]
        lines = [f"<th>{'</th><th>'.join(heads)}</th>"]
        lines += [f"<td>{'</td><td>'.join(escape(str(cell)) for cell in row)}</td>" for row in rows]
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<p>{escape(self._head)}</p><table>{table}</table><p>{escape(self._foot)}</p>"

    @property
    def _head(self) -> str:
        return (
            f"{self.runs} runs of {self.rounds} rounds on {self.devices}; {self.compilations} "
            f"program{'s' * (self.compilations > 1)}, compiled in {self.compile_seconds:.1f} s"
        )

    @property
    def _foot(self) -> str:
        results = sum(part.results for part in self.parts)
        text = (
            f"results take {human(results)} of this machine's memory, and the study "
            f"{human(self.memory)} at its peak"
        )
        results_at_most = sum(part.results_at_most for part in self.parts)
        if results_at_most > results:
            text += (
                f"; {human(results_at_most)} and {human(self.memory_at_most)} if runs differ in "
                "what they send"
            )
        return text


def plan(
    scenario: Scenario,
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    grid: Mapping[str, Any] | None = None,
    record_every: int = 1,
    generator: str = GENERATOR,
    block: int | None = None,
    workers: int | None = None,
    keep_models: bool = False,
    shard_over: str = "seeds",
    segment: int | None = None,
    until: Mapping[str, float] | None = None,
    measure: bool = False,
) -> Plan:
    """How :func:`sweep` would run a study, without running it.

    Everything is compiled, so that the reported memory is that of the compiled programs, and a
    subsequent :func:`sweep` in the same process compiles nothing.

    Args:
      scenario: as in :func:`sweep`, like all arguments except the last.
      rounds: number of rounds of every run.
      seeds: number of seeds, or a list of them.
      grid: the grid points.
      record_every: number of rounds per record.
      generator: generator of all random numbers.
      block: number of seeds per block.
      workers: number of blocks computed concurrently.
      keep_models: whether final models are returned.
      shard_over: whether seeds or clients are distributed over devices.
      segment: number of rounds between checkpoints.
      until: tolerances for early stopping.
      measure: run some blocks of several sizes, and remember the fastest for later studies of this
        program on this kind of machine (in ``~/.cache/fljax``, or in the folder named by
        ``FLJAX_CACHE``).

    Returns:
      A :class:`Plan`, which prints as a short table.

    Raises:
      ValueError: a population on disk, whose runs are not divided into blocks.

    Example:
      >>> import fljax as fl
      >>> def scenario(key, step_size):
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(key, clients=6, samples=10, dim=2),
      ...         algorithm=fl.algorithms.FedAvg(step_size),
      ...         metrics=["normalized_error"])
      >>> plan = fl.plan(scenario, rounds=20, seeds=3, grid={"step_size": [0.1, 0.2]})
      >>> plan.runs, plan.compilations
      (6, 1)
    """
    checks.switch("measure", measure)
    study = Study.of(
        Request(
            scenario=scenario,
            rounds=rounds,
            seeds=seeds,
            grid=grid,
            record_every=record_every,
            generator=generator,
            block=block,
            workers=workers,
            keep_models=keep_models,
            shard_over=shard_over,
            segment=segment,
            until=until,
        )
    )
    if study.on_disk:
        raise ValueError(
            "a plan divides runs whose data are in memory into blocks; over a population on disk "
            "all grid points of a seed advance together, a cohort at a time, and fljax.sweep needs "
            "no plan."
        )
    seed_count = len(study.request.seed_list)
    began = time.perf_counter()
    parts = []
    for number, group in enumerate(study.groups):
        if measure:
            block_sizes.remember_block(study.identities[number], _measure(study, group))
        count = len(group.positions)
        blocks = plan_blocks(study, number, count, seed_count)
        runs = blocks.points * blocks.seeds_per_call
        segments = segments_of(study, group, runs, 0)
        shape = blocks.compiled.shape
        total = count * seed_count
        per_record = block_sizes.bytes_of(shape.records) / (runs * segments[0])
        parts.append(
            Part(
                label_of(study.axes, group.positions[0]),
                count,
                blocks.points,
                blocks.seeds,
                -(-count // blocks.points) * -(-seed_count // blocks.seeds),
                blocks.workers,
                len(segments),
                blocks.compiled.memory,
                blocks.compiled.memory // runs,
                block_sizes.bytes_of(shape.carry) // runs * total,
                int(total * per_record * study.request.records),
                *(
                    total * block_sizes.result_bytes(*shape[:2], study.request.records, differing)
                    for differing in (False, True)
                ),
                finished=runs * block_sizes.result_bytes(*shape[:2], segments[0]),
                finished_at_most=block_sizes.bytes_of(shape[:2]),
            )
        )
    device = jax.local_devices()[0]
    devices = f"{jax.local_device_count()} x {device.device_kind} ({device.platform})"
    if on_cpu():
        devices += f", {block_sizes.cores()} cores"
    return Plan(len(study.labels) * seed_count, rounds, devices, time.perf_counter() - began, parts)


def _measure(study: Study, group: Group) -> int:
    """Return the fastest of several numbers of seeds per block, close to the expected one."""
    points = block_sizes.points_per_block(group.footprint, len(group.positions))
    expected = block_sizes.seeds_per_block(group.footprint, points)
    sizes = {
        max(1, int(expected * factor))
        for factor in (0.25, 0.5, 1, 2, 4)
        if expected * factor * study.workers <= max(len(study.request.seed_list), expected)
    }
    rates = {}
    for size in sorted(sizes):
        blocks = _fit(study, group, points, size, 1, study.workers)
        grid_points = group.pick(np.arange(blocks.points))
        seeds = np.arange(blocks.seeds, dtype=np.uint32)

        def time_block(blocks=blocks, seeds=seeds, grid_points=grid_points) -> float:
            def block(_: int) -> None:
                arguments = seeds, study.root_key, grid_points, None, np.int32(0)
                jax.block_until_ready(blocks.compiled.call(*arguments))

            with ThreadPoolExecutor(blocks.workers) as pool:
                start = time.perf_counter()
                list(pool.map(block, range(blocks.workers)))
                return (time.perf_counter() - start) / (
                    blocks.workers * blocks.seeds * blocks.points
                )

        time_block()
        rates[blocks.seeds] = min(time_block() for _ in range(3))
    return min(rates, key=lambda size: rates[size])


def plan_blocks(study: Study, number: int, points: int, seeds: int) -> BlockPlan:
    """Choose block sizes for runs that suit the machine and fit into memory, and compile them."""
    group = study.groups[number]
    sizes = study.sizes.get(number) or choose_sizes(study, number, points, seeds, study.workers)
    workers = 1 if sizes.is_brief else study.workers
    fitted = _fit(study, group, sizes.points, sizes.seeds, sizes.blocks_per_call, workers)
    # Further segments have other programs, which must not be compiled in the main thread.
    is_one_segment = len(segments_of(study, group, fitted.points * fitted.seeds_per_call, 0)) == 1
    is_brief = sizes.is_brief and is_one_segment and not fitted.compiled.must_run_alone
    return fitted._replace(is_brief=is_brief)


def choose_sizes(study: Study, number: int, points: int, seeds: int, callers: int) -> BlockSizes:
    """Choose block sizes for some runs of a group that suit the machine; nothing is compiled.

    Args:
      study: the whole study.
      number: of the group.
      points: number of its points whose runs are missing.
      seeds: number of seeds of these runs.
      callers: number of workers that are to get calls; block sizes do not depend on it.
    """
    group = study.groups[number]
    run = group.footprint
    max_points = block_sizes.points_per_block(run, points)
    size = study.block or block_sizes.measured_block(study.identities[number])
    if size is None:
        size = block_sizes.seeds_per_block(run, max_points)
    # Use the same block sizes as for the whole study if possible, so that a part of it has bit for
    # bit the same results: an interrupted study lacks whole blocks.
    points_per_block = block_sizes.even_block_size(points, max_points, 1)
    all_points = len(group.positions)
    points_of_study = block_sizes.even_block_size(
        all_points, block_sizes.points_per_block(run, all_points), 1
    )
    if points % points_of_study in (0, all_points % points_of_study):
        points_per_block = points_of_study
    seeds_of_all = len(study.request.seed_list)
    rounds = study.request.rounds
    has_given_workers = study.request.workers is not None
    brief = not has_given_workers and block_sizes.is_brief(run, all_points * seeds_of_all, rounds)
    workers = 1 if brief else study.workers
    block = block_sizes.even_block_size(seeds_of_all, size, workers)
    if study.block is not None:
        block = min(study.block, seeds_of_all)
    blocks_per_call = block_sizes.choose_blocks_per_call(
        run, points_per_block, block, seeds, 1 if brief else callers, rounds
    )
    return BlockSizes(points_per_block, block, blocks_per_call, brief)


def segments_of(study: Study, group: Group, runs: int, done: int) -> list[int]:
    """Return the number of records of each segment of a block's remaining rounds."""
    request = study.request
    if request.segment is not None:
        size = request.segment // request.record_every
    elif study.until:
        size = -(-request.records // 10)
    else:
        run = group.footprint
        touched = request.record_every * runs * (run.touched + run.per_point)
        size = max(1, SEGMENT_BYTES // touched)
    remaining = request.records - done
    return [size] * (remaining // size) + ([remaining % size] if remaining % size else [])


def _fit(
    study: Study, group: Group, points: int, seeds: int, blocks_per_call: int, workers: int
) -> BlockPlan:
    """Compile blocks of these sizes; halve the sizes until the program fits into memory."""
    free = block_sizes.memory_at_hand()
    spent = 0.0
    while True:
        records = segments_of(study, group, points * seeds * blocks_per_call, 0)[0]
        with batched_program.hint_at_static(study.axes):
            compiled, seconds = study.program.compile(
                np.arange(seeds * blocks_per_call, dtype=np.uint32),
                study.root_key,
                # A piece of a study may have fewer points than its blocks.
                group.pick(np.minimum(np.arange(points), len(group.positions) - 1)),
                None,
                (points, blocks_per_call),
                records,
            )
        spent += seconds
        if compiled.memory <= free:
            parallel = free // max(1, compiled.memory) * jax.local_device_count()
            workers = max(1, min(workers, parallel))
            return BlockPlan(points, seeds, blocks_per_call, workers, False, compiled, spent)
        if blocks_per_call > 1:
            blocks_per_call = blocks_per_call // 2
        elif seeds > 1:
            seeds = seeds // 2
        elif points > 1:
            points = -(-points // 2)
        else:
            raise MemoryError(
                f"one run at {label_of(study.axes, group.positions[0])} takes "
                f"{human(compiled.memory)} and {human(free)} are free: use a smaller network, "
                "fewer samples, or a machine with more memory."
            )
