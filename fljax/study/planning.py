"""Planning a study: its runs are cut into blocks that fit, and its programs compiled."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax import _check
from fljax._generator import GENERATOR
from fljax._memory import human, on_cpu
from fljax.study import engine, machine
from fljax.study.engine import Compiled
from fljax.study.grid import Group, Scenario, label_of
from fljax.study.request import Request, Study

__all__ = ["Cut", "Part", "Plan", "cut_of", "plan", "segments_of"]

#: A stretch of a run whose rounds touch more bytes than this (half a minute or so of a CPU's
#: memory traffic) ends in a checkpoint.
SEGMENT_BYTES = 2**38


#: What is noted of a run while a study goes through, about: its seed, in a few lists.
NOTED_BYTES = 200


class Cut(NamedTuple):
    """Division of the runs of one structure into blocks."""

    points: int  # grid points per block
    seeds: int  # seeds per block
    turns: int  # blocks per call
    workers: int  # blocks in flight
    brief: bool  # computed sooner than handed out
    compiled: Compiled  # their first stretch
    seconds: float  # that compiling it took

    @property
    def at_once(self) -> int:
        """Number of seeds per call."""
        return self.seeds * self.turns


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
        traffic: the results, the blocks being computed (on an accelerator, they are in its memory),
        those that wait to be collected, and the bookkeeping of every run. Python, JAX, the compiled
        programs and the data that the scenario captures come on top.
        """
        return self._peak("")

    @property
    def memory_at_most(self) -> int:
        """The same, if traffic differs from run to run."""
        return self._peak("_at_most")

    def _peak(self, most: str) -> int:
        results = sum(getattr(part, f"results{most}") for part in self.parts)
        blocks = (
            # One is being collected beside those that wait, and copied where it belongs.
            part.workers * part.memory * on_cpu()
            + (part.workers + 2) * getattr(part, f"finished{most}")
            for part in self.parts
        )
        return results + max(blocks) + NOTED_BYTES * self.runs

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
        most = sum(part.results_at_most for part in self.parts)
        if most > results:
            text += (
                f"; {human(most)} and {human(self.memory_at_most)} if runs differ in what they send"
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
      shard_over: what is distributed over devices.
      segment: number of rounds between checkpoints.
      until: tolerances for early stopping.
      measure: run some blocks of several sizes, and remember the fastest for later studies of this
        program on this kind of machine (in ``~/.cache/fljax``, or in the folder named by
        ``FLJAX_CACHE``).

    Returns:
      A :class:`Plan`, which prints as a short table.
    """
    _check.switch("measure", measure)
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
    of_all = len(study.asked.seed_list)
    began = time.perf_counter()
    parts = []
    for number, group in enumerate(study.groups):
        if measure:
            machine.remember_block(study.identities[number], _measure(study, group))
        count = len(group.positions)
        cut = cut_of(study, number, count, of_all)
        runs = cut.points * cut.at_once
        segments = segments_of(study, group, runs, 0)
        shape = cut.compiled.shape
        total = count * of_all
        per_record = machine.bytes_of(shape.records) / (runs * segments[0])
        parts.append(
            Part(
                label_of(study.axes, group.positions[0]),
                count,
                cut.points,
                cut.seeds,
                -(-count // cut.points) * -(-of_all // cut.seeds),
                cut.workers,
                len(segments),
                cut.compiled.memory,
                cut.compiled.memory // runs,
                machine.bytes_of(shape.carry) // runs * total,
                int(total * per_record * study.asked.records),
                *(
                    total * machine.result_bytes(*shape[:2], study.asked.records, differing)
                    for differing in (False, True)
                ),
                finished=runs * machine.result_bytes(*shape[:2], segments[0]),
                finished_at_most=machine.bytes_of(shape[:2]),
            )
        )
    device = jax.local_devices()[0]
    where = f"{jax.local_device_count()} x {device.device_kind} ({device.platform})"
    if on_cpu():
        where += f", {machine.cores()} cores"
    return Plan(len(study.labels) * of_all, rounds, where, time.perf_counter() - began, parts)


def _measure(study: Study, group: Group) -> int:
    """Return the fastest of several numbers of seeds per block, close to the expected one."""
    points = machine.points_per_block(group.footprint, len(group.positions))
    expected = machine.seeds_per_block(group.footprint, points)
    tried = {
        max(1, int(expected * factor))
        for factor in (0.25, 0.5, 1, 2, 4)
        if expected * factor * study.workers <= max(len(study.asked.seed_list), expected)
    }
    rates = {}
    for size in sorted(tried):
        cut = _fit(study, group, points, size, 1, study.workers)
        picked, seeds = group.pick(np.arange(cut.points)), np.arange(cut.seeds, dtype=np.uint32)

        def turn(cut=cut, seeds=seeds, picked=picked) -> float:
            def block(_: int) -> None:
                given = seeds, study.root_key, picked, None, np.int32(0)
                jax.block_until_ready(cut.compiled.call(*given))

            with ThreadPoolExecutor(cut.workers) as pool:
                began = time.perf_counter()
                list(pool.map(block, range(cut.workers)))
                return (time.perf_counter() - began) / (cut.workers * cut.seeds * cut.points)

        turn()
        rates[cut.seeds] = min(turn() for _ in range(3))
    return min(rates, key=lambda size: rates[size])


def cut_of(study: Study, number: int, points: int, seeds: int) -> Cut:
    """Return block sizes for some runs that suit the machine and fit its memory; compiles them."""
    group = study.groups[number]
    run = group.footprint
    most = machine.points_per_block(run, points)
    size = study.block or machine.measured_block(study.identities[number])
    if size is None:
        size = machine.seeds_per_block(run, most)
    # As for all points and seeds of the study, so that a part of it computes to the same last
    # digit: what is missing of a study that was stopped are whole blocks.
    even, all_points = machine.spread(points, most, 1), len(group.positions)
    cut = machine.spread(all_points, machine.points_per_block(run, all_points), 1)
    if points % cut in (0, all_points % cut):
        even = cut
    seeds_of_all, rounds = len(study.asked.seed_list), study.asked.rounds
    asked = study.asked.workers is not None
    brief = not asked and machine.is_brief(run, all_points * seeds_of_all, rounds)
    workers = 1 if brief else study.workers
    block = machine.spread(seeds_of_all, size, workers)
    if study.block is not None:
        block = min(study.block, seeds_of_all)
    turns = machine.turns_per_call(run, even, block, seeds, workers, rounds)
    fitted = _fit(study, group, even, block, turns, workers)
    # Another stretch has a program of its own, and compiling is not for the calling thread.
    whole = len(segments_of(study, group, fitted.points * fitted.at_once, 0)) == 1
    return fitted._replace(brief=brief and whole and not fitted.compiled.alone)


def segments_of(study: Study, group: Group, runs: int, done: int) -> list[int]:
    """Return the number of records of each segment of a block's remaining rounds."""
    asked = study.asked
    if asked.segment is not None:
        size = asked.segment // asked.record_every
    elif study.until:
        size = -(-asked.records // 10)
    else:
        run = group.footprint
        touched = asked.record_every * runs * (run.touched + run.each)
        size = max(1, SEGMENT_BYTES // touched)
    left = asked.records - done
    return [size] * (left // size) + ([left % size] if left % size else [])


def _fit(study: Study, group: Group, points: int, seeds: int, turns: int, workers: int) -> Cut:
    free, spent = machine.memory_at_hand(), 0.0
    while True:
        records = segments_of(study, group, points * seeds * turns, 0)[0]
        with engine.hint_at_static(study.axes):
            compiled, seconds = study.program.compile(
                np.arange(seeds * turns, dtype=np.uint32),
                study.root_key,
                group.pick(np.arange(points)),
                None,
                (points, turns),
                records,
            )
        spent += seconds
        if compiled.memory <= free:
            together = free // max(1, compiled.memory) * jax.local_device_count()
            workers = max(1, min(workers, together))
            return Cut(points, seeds, turns, workers, False, compiled, spent)
        if turns > 1:
            turns = turns // 2
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
