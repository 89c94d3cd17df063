"""Studies: a scenario over seeds and a grid, compiled once per structure, run in blocks.

A scenario is a pure function ``(key, **point) -> Simulation``. All seeds of a block and all grid
points of the same structure are array axes of one compiled program; what does not depend on the
grid point (data, graph, optimum, noise draws) is computed once per seed and shared by all points,
so points are compared under common random numbers.

What a run computes depends on its seed and grid point alone. Everything else here is about doing
no run twice and losing none: a study is planned, its missing runs are shared out over threads,
devices, processes and machines, and every finished block is kept.
"""

import contextlib
import functools
import hashlib
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.experimental import multihost_utils
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from fljax import _check, engine, results
from fljax._module import float_dtype
from fljax._numerics import PRNG
from fljax.collection import Collection, exchange
from fljax.engine import Compiled, Program
from fljax.grid import Axis, Group, Scenario, axes_of, groups_of, label_of, numbers_of
from fljax.simulation import check_rounds
from fljax.store import Block, Store, StoreError

log = logging.getLogger("fljax")

#: Finished blocks are gathered for so long before they are written together: small enough to be
#: worth losing, large enough that writing takes no time.
FLUSH_SECONDS = 2.0

#: A stretch of a run whose rounds touch more bytes than this (half a minute or so of a CPU's
#: memory traffic) ends in a checkpoint.
SEGMENT_BYTES = 2**38


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: what was done is kept, here and in the store.

    Attributes:
      results: the dataset so far; its variable ``done`` marks the finished runs.
    """

    def __init__(self, message: str, results: xr.Dataset) -> None:
        super().__init__(message)
        self.results = results


@dataclass(frozen=True)
class Study:
    """What is asked for, checked, and how it is cut."""

    scenario: Scenario
    axes: list[Axis]
    groups: list[Group]
    seeds: list[int]
    rounds: int
    record_every: int
    root: int
    program: Program
    identities: list[str]  # of the groups' programs
    block: int | None
    workers: int
    segment: int | None  # rounds between checkpoints, if asked for
    until: dict[str, float]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.labels) for axis in self.axes)

    @property
    def labels(self) -> list[str]:
        """Of all grid points, in the order of the grid."""
        return [label_of(self.axes, p) for p in itertools.product(*map(range, self.shape))]

    def names(self, group: int) -> list[str]:
        """Labels of a group's points."""
        return [label_of(self.axes, position) for position in self.groups[group].positions]

    @property
    def records(self) -> int:
        return self.rounds // self.record_every

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        return results.describe(m for group in self.groups for m in group.shown.metrics)

    @functools.cached_property
    def root_key(self) -> np.ndarray:
        """Data of the key that is folded with a run's seed: it depends on nothing else."""
        return np.asarray(jax.random.key_data(jax.random.key(self.root, impl=PRNG)))

    def segments(self, group: Group, runs: int, done: int) -> list[int]:
        """Records of each stretch of a block's remaining rounds."""
        if self.segment is not None:
            size = self.segment // self.record_every
        elif self.until:
            size = -(-self.records // 10)
        else:
            shared, each = engine.footprint(group.shown)
            touched = self.record_every * runs * (shared + each)
            size = max(1, SEGMENT_BYTES // touched)
        left = self.records - done
        return [size] * (left // size) + ([left % size] if left % size else [])

    def description(self) -> dict[str, Any]:
        """What a store must know of it."""
        points = {}
        for group, identity in zip(self.groups, self.identities, strict=True):
            horizon = None if group.shown.privacy is None else self.rounds
            for position in group.positions:
                points[label_of(self.axes, position)] = {
                    "program": identity,
                    "numbers": numbers_of(self.axes, position),
                    "horizon": horizon,
                }
        return {
            "identity": {
                "fljax": metadata.version("fljax"),
                "jax": jax.__version__,
                "jaxlib": metadata.version("jaxlib"),
                "dtype": str(float_dtype()),
                "prng": PRNG,
                "root": self.root,
                "record_every": self.record_every,
                "keep_models": self.program.keep_models,
                "until": self.until,
            },
            "points": points,
            "axes": {axis.name: axis.labels for axis in self.axes},
            "seeds": self.seeds,
            "rounds": self.rounds,
            "metrics": self.metrics,
        }


def _study(
    scenario: Scenario,
    rounds: int,
    seeds: int | Sequence[int],
    grid: Mapping[str, Any] | None,
    record_every: int,
    root: int,
    block: int | None,
    workers: int | None,
    keep_models: bool,
    shard_over: str,
    segment: int | None,
    until: Mapping[str, float] | None,
    fresh: bool,
) -> Study:
    check_rounds(rounds, record_every)
    seed_list = _seeds(seeds)
    if block is not None:
        _check.count("block", block)
    if workers is not None:
        _check.count("workers", workers)
    if segment is not None:
        _check.count("segment", segment)
        if segment % record_every:
            raise ValueError(
                f"segment must be a multiple of record_every={record_every}, got {segment}."
            )
    _check.choice("shard_over", shard_over, ("seeds", "clients"))
    axes = axes_of(grid)
    groups = groups_of(scenario, axes, rounds)
    if shard_over == "clients":
        block, workers = block or 1, 1  # every run takes all devices
        for group in groups:
            clients, devices = group.shown.problem.clients, jax.device_count()
            if clients % devices:
                raise ValueError(
                    f"{clients} clients cannot be shared out evenly over {devices} devices; take "
                    "a multiple, or shard_over='seeds'."
                )
    shapes = {(group.shown.problem.clients, group.shown.problem.dim) for group in groups}
    if keep_models and len(shapes) > 1:
        raise ValueError(
            f"models of several shapes, {sorted(shapes)} (clients, parameters), cannot be kept in "
            "one array; run those grid points as studies of their own, or leave keep_models out."
        )
    measured = {m.name for group in groups for m in group.shown.metrics}  # pyright: ignore
    for axis in axes:
        if axis.name in measured:
            raise ValueError(
                f"grid axis {axis.name!r} has the name of a recorded metric; rename it (and the "
                "scenario's argument)."
            )
    known = set.intersection(*({m.name for m in group.shown.metrics} for group in groups))  # pyright: ignore
    for name, level in (until or {}).items():
        _check.choice("metric in until", name, sorted(known))
        _check.nonnegative(f"until[{name!r}]", level)
    program = engine.program(scenario, rounds, record_every, keep_models, shard_over, float_dtype())
    with engine.hint_at_static(axes):
        identities = [program.identity(group, fresh) for group in groups]
    return Study(
        scenario,
        axes,
        groups,
        seed_list,
        rounds,
        record_every,
        root,
        program,
        identities,
        block,
        engine.default_workers() if workers is None else workers,
        segment,
        {name: float(level) for name, level in (until or {}).items()},
    )


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int | np.integer) or not isinstance(seeds, Iterable):
        _check.count("seeds", seeds, hint="It is the number of Monte-Carlo runs per grid point.")
        return list(range(int(seeds)))
    found = [int(s) for s in seeds]
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(f"seeds must be distinct integers >= 0, at least one, got {found}.")
    return found


def parse_shard(shard: str | tuple[int, int]) -> tuple[int, int]:
    """``"2/5"`` or ``(2, 5)``, the second of five parts, as (1, 5), counted from zero.

    Raises:
      ValueError: anything else.
    """
    try:
        part, parts = shard.split("/") if isinstance(shard, str) else shard
        part, parts = int(part), int(parts)
    except (TypeError, ValueError):
        part, parts = 0, 0
    if not 1 <= part <= parts:
        raise ValueError(f"shard must be 'i/n' with 1 <= i <= n, got {shard!r}.")
    return part - 1, parts


# The plan ----------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """How runs of one structure go through."""

    points: int  # grid points per block
    seeds: int  # seeds per block
    turns: int  # blocks per call
    workers: int  # blocks in flight
    compiled: Compiled  # their first stretch
    seconds: float  # that compiling it took

    @property
    def at_once(self) -> int:
        """Seeds per call."""
        return self.seeds * self.turns


@dataclass(frozen=True)
class Part:
    """One structure of a planned study.

    Attributes:
      example: the first of its grid points.
      points: how many it has.
      points_per_block: grid points that go through together.
      seeds_per_block: seeds that go through together.
      blocks: how many there are.
      workers: blocks in flight.
      segments: stretches that a run is cut into by checkpoints.
      memory: bytes that one block takes while it runs, from the compiled program's own analysis.
      memory_per_run: the same for one run.
      state: bytes of the states of all its runs, as stored.
      records: bytes of the records of all its runs.
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


@dataclass(frozen=True)
class Plan:
    """How a study would be run, see :func:`plan`."""

    runs: int
    rounds: int
    devices: str
    compile_seconds: float
    parts: list[Part]

    @property
    def compilations(self) -> int:
        """Programs there are to compile: one a structure."""
        return len(self.parts)

    def __str__(self) -> str:
        text = (
            f"{self.runs} runs of {self.rounds} rounds on {self.devices}; {self.compilations} "
            f"program{'s' * (self.compilations > 1)}, compiled in {self.compile_seconds:.1f} s"
        )
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
        return text


def human(count: float) -> str:
    """Bytes, readable."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def plan(
    scenario: Scenario,
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    grid: Mapping[str, Any] | None = None,
    record_every: int = 1,
    block: int | None = None,
    workers: int | None = None,
    keep_models: bool = False,
    shard_over: str = "seeds",
    segment: int | None = None,
    until: Mapping[str, float] | None = None,
    measure: bool = False,
) -> Plan:
    """How :func:`sweep` would run a study, without running it.

    Everything is compiled, so that the memory is the compiled programs' own, and a :func:`sweep`
    after it in the same process compiles nothing.

    Args:
      scenario: as in :func:`sweep`, like all arguments but the last.
      rounds: of every run.
      seeds: how many, or which.
      grid: of points.
      record_every: rounds a record.
      block: seeds per block.
      workers: blocks in flight.
      keep_models: whether final models are returned.
      shard_over: what devices share.
      segment: rounds between checkpoints.
      until: tolerances.
      measure: run some blocks of several sizes, and remember the fastest for later studies of
        this program on this kind of machine (in ``~/.cache/fljax``, or where ``FLJAX_CACHE``
        says).

    Returns:
      A :class:`Plan`; printed, it is a short table.
    """
    study = _study(
        scenario,
        rounds,
        seeds,
        grid,
        record_every,
        0,
        block,
        workers,
        keep_models,
        shard_over,
        segment,
        until,
        False,
    )
    began = time.perf_counter()
    parts = []
    for number, group in enumerate(study.groups):
        if measure:
            engine.remember_block(study.identities[number], _measure(study, group))
        cut = _cut(study, number, len(group.positions), len(study.seeds))
        count, of_all = len(group.positions), len(study.seeds)
        runs = cut.points * cut.at_once
        segments = study.segments(group, runs, 0)
        shape = cut.compiled.shape
        total = count * of_all
        per_record = engine.bytes_of(shape.records) / (runs * segments[0])
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
                engine.bytes_of(shape.carry) // runs * total,
                int(total * per_record * study.records),
            )
        )
    device = jax.local_devices()[0]
    where = f"{jax.local_device_count()} x {device.device_kind} ({device.platform})"
    if engine.on_cpu():
        where += f", {engine.cores()} cores"
    return Plan(
        len(study.labels) * len(study.seeds), rounds, where, time.perf_counter() - began, parts
    )


def _measure(study: Study, group: Group) -> int:
    """Seeds per block that run fastest, of some around what is expected to be."""
    points = engine.points_per_block(group.shown, len(group.positions))
    expected = engine.seeds_per_block(group.shown, points)
    tried = {
        max(1, int(expected * factor))
        for factor in (0.25, 0.5, 1, 2, 4)
        if expected * factor * study.workers <= max(len(study.seeds), expected)
    }
    rates = {}
    for size in sorted(tried):
        cut = _fit(study, group, points, size, 1)
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


def _cut(study: Study, number: int, points: int, seeds: int) -> Cut:
    """Block sizes for some runs that suit the machine and fit its memory; compiles them."""
    group = study.groups[number]
    most = engine.points_per_block(group.shown, points)
    size = study.block or engine.measured_block(study.identities[number])
    if size is None:
        size = engine.seeds_per_block(group.shown, most)
    even = -(-points // -(-points // most))
    # As for all seeds of the study, so that a part of it computes to the same last digit.
    block = engine.spread(len(study.seeds), size, study.workers)
    turns = engine.turns_per_call(group.shown, even, block, seeds, study.workers, study.rounds)
    return _fit(study, group, even, block, turns)


def _fit(study: Study, group: Group, points: int, seeds: int, turns: int) -> Cut:
    free, spent = engine.memory_at_hand(), 0.0
    while True:
        records = study.segments(group, points * seeds * turns, 0)[0]
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
            workers = max(1, min(study.workers, together))
            return Cut(points, seeds, turns, workers, compiled, spent)
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


# The run -----------------------------------------------------------------------------------------


class Work(NamedTuple):
    """Some runs that go through together: a rectangle of seeds and points."""

    group: int
    cut: Cut
    points: np.ndarray  # positions in the group
    seeds: list[int]
    done: int  # records there are of them
    slots: threading.Semaphore  # how many of its kind may be in flight


def sweep(
    scenario: Scenario,
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    grid: Mapping[str, Any] | None = None,
    record_every: int = 1,
    root: int = 0,
    block: int | None = None,
    workers: int | None = None,
    keep_models: bool = False,
    shard_over: str = "seeds",
    store: str | PathLike | None = None,
    keep_state: bool = True,
    shard: str | tuple[int, int] | None = None,
    segment: int | None = None,
    until: Mapping[str, float] | None = None,
    callback: Callable[[xr.Dataset], None] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Run a scenario for every seed and grid point.

    Numbers of the grid are traced: a grid of twenty of them costs one compilation. Grid values
    of another structure (another algorithm, a size, a string) are compiled one by one; mark sizes
    with :func:`static`. A value may be any pytree, such as an algorithm object; values that
    differ in numbers only share a program.

    With a ``store``, finished runs are on disk within seconds. A killed study, run again, goes on
    where it was; a finished one, run again with more seeds, rounds or grid points, computes only
    what is new. In several processes joined by ``jax.distributed`` each computes its share, and
    all return everything.

    Args:
      scenario: ``(key, **point) -> Simulation``, pure.
      rounds: iterations of every run.
      seeds: how many Monte-Carlo seeds, or which (``range(100, 200)`` continues a study).
      grid: axis name to a list of values, or to a dict of labels and values; all combinations run.
      record_every: measure after every so many rounds; must divide ``rounds``.
      root: the seed of seeds. Run ``s`` depends on ``root`` and ``s`` alone.
      block: seeds per block; by default what :func:`plan` measured, else what fits the cache
        (CPU) or memory (accelerator). It changes numbers by no more than float re-association.
      workers: blocks in flight; by default the cores at hand on a CPU, else 1.
      keep_models: also return every run's final models, ``[..., seed, client, parameter]``.
      shard_over: what several devices share: ``"seeds"``, each running blocks of its own; or, for
        one very large network, its ``"clients"``, mixing included (their number must be a
        multiple of the devices of all processes).
      store: a folder that keeps the study.
      keep_state: also keep there every run's state, so that more rounds can be added.
      shard: ``"i/n"``: compute only the i-th of n parts, into the store; :func:`merge` joins
        them.
      segment: rounds between checkpoints of a run; by default a run is cut only if it is long.
      until: metric to tolerance: a block ends once all its runs have diverged or have every
        metric at or below its tolerance (looked at after each segment, by default a tenth of the
        run). A run that ended early keeps its model, so its later records repeat the last one
        and count no traffic; ``stopped`` tells the round.
      callback: called with the dataset so far, every few seconds.
      progress: show a bar; by default only on a terminal.

    Returns:
      A dataset over the grid's axes, ``seed`` and ``round``, with the provenance as attributes.
      If it is not whole (a shard), ``done`` tells which runs are there.

    Raises:
      TypeError, ValueError: by the checks of what the scenario builds, with the grid point named;
        all of them before anything is compiled. A store that holds another study.
      StoreError: a store that cannot be written or is in use.
      MemoryError: a single run that does not fit.
      Interrupted: Ctrl-C; it holds what is done.

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key, penalty):
      ...     k_graph, k_data = jax.random.split(key)
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(k_data, clients=6, samples=10, dim=2),
      ...         network=fl.graphs.random_connected(k_graph, nodes=6, mean_degree=3),
      ...         algorithm=fl.algorithms.NetworkedADMM(penalty),
      ...         metrics=["normalized_error"])
      >>> study = fl.sweep(scenario, rounds=20, seeds=3, grid={"penalty": [0.5, 1.0]})
      >>> dict(study.sizes)
      {'penalty': 2, 'seed': 3, 'round': 20}
    """
    study = _study(
        scenario, rounds, seeds, grid, record_every, root, block, workers, keep_models,
        shard_over, segment, until, store is not None,
    )  # fmt: skip
    part, parts = (0, 1) if shard is None else parse_shard(shard)
    processes = jax.process_count()
    if shard is not None:
        if store is None:
            raise ValueError("a shard needs a store to leave its runs in; pass store=.")
        if processes > 1:
            raise ValueError("processes joined by jax.distributed share a study by themselves.")
    if processes > 1 and shard_over == "seeds":
        part, parts = jax.process_index(), processes
    with _Run(study, store, keep_state, part, parts, shard is not None, callback, progress) as run:
        run.execute()
        dataset = run.finish()
    results.warn(dataset)
    return dataset


class _Run:
    """One call of :func:`sweep`: its store, what is collected, what is shown."""

    def __init__(
        self,
        study: Study,
        folder: str | PathLike | None,
        keep_state: bool,
        part: int,
        parts: int,
        sharded: bool,
        callback: Callable[[xr.Dataset], None] | None,
        progress: bool | None,
    ) -> None:
        self.study, self.part, self.parts, self.sharded = study, part, parts, sharded
        self.keep_state, self.callback = keep_state, callback
        self.collection = Collection(study.labels, study.shape, study.seeds, study.records)
        self.own: list[Block] = []  # for the other processes, if there is no store
        self.timing = {"compile_seconds": 0.0, "compilations": 0}
        self.blocks_used: set[int] = set()
        self.began = self.shown = time.perf_counter()
        self.first, self.last = math.inf, 0.0  # when blocks began and ended
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.cancelled = threading.Event()
        self.exclusive, self.counting = threading.Lock(), threading.Lock()
        self.devices: queue.SimpleQueue[jax.Device] = queue.SimpleQueue()
        for worker in range(study.workers):
            self.devices.put(jax.local_devices()[worker % jax.local_device_count()])
        points, seeds = self.collection.reached.shape
        # Whole seeds if there are enough, so that what their points share is computed once.
        turn = np.arange(seeds)[None, :] if seeds >= parts else np.arange(points)[:, None]
        #: [C, S]  the runs that this part has to compute
        self.mine = np.broadcast_to(turn % parts == part, (points, seeds))
        self.store = self._open(folder)
        self.found = self.reached
        self.bar = tqdm(
            total=int(self.mine.sum()) * study.rounds,
            initial=self.found * study.record_every,
            unit="round",
            unit_scale=True,
            disable=None if progress is None else not progress,
        )

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.close()
        if self.store is not None:
            self.store.close()

    @property
    def reached(self) -> int:
        """Records there are of this part's runs."""
        return int(self.collection.reached[self.mine].sum())

    @property
    def distributed(self) -> bool:
        """Whether processes have runs of their own."""
        return self.parts > 1 and not self.sharded

    @property
    def together(self) -> bool:
        """Whether the devices of several processes share every run."""
        return self.study.program.shard_over == "clients" and jax.process_count() > 1

    def _open(self, folder: str | PathLike | None) -> Store | None:
        if folder is None:
            return None
        if self.together:
            raise ValueError(
                "a store cannot keep runs that several processes share; leave store out, or use "
                "one process."
            )
        lock = f"part-{self.part + 1}-of-{self.parts}" if self.parts > 1 else "study"
        store = Store(folder, lock)
        try:
            store.agree(self.study.description())
            for block in store.blocks():
                self.collection.add(block)
        except BaseException:
            store.close()
            raise
        found = int(self.collection.done.sum())
        if found:
            log.info("%d of %d runs found in %s", found, self.collection.done.size, folder)
        return store

    # Sharing out ---------------------------------------------------------------------------------

    def _missing(self, number: int) -> np.ndarray:
        """``[C, S]``: how far a group's runs are that this part has to compute, else -1."""
        rows = self.collection.rows(self.study.names(number))
        wanted = self.mine[rows] & ~self.collection.done[rows]
        return np.where(wanted, self.collection.reached[rows], -1)

    def _plan(self, number: int) -> None:
        """Cut a group's missing runs into blocks, and compile for them."""
        try:
            missing = self._missing(number)
            alike: dict[bytes, list[int]] = {}
            for point, row in enumerate(missing):
                alike.setdefault(row.tobytes(), []).append(point)
            works = []
            for points in alike.values():
                row = missing[points[0]]
                for done in np.unique(row[row >= 0]):
                    seeds = [self.study.seeds[j] for j in np.flatnonzero(row == done)]
                    works += self._rectangle(number, np.asarray(points), seeds, int(done))
            self.events.put(works)
        except BaseException as error:
            self.events.put(error)

    def _rectangle(
        self, number: int, points: np.ndarray, seeds: list[int], done: int
    ) -> Iterator[Work]:
        cut = _cut(self.study, number, len(points), len(seeds))
        self.blocks_used.add(cut.seeds)
        self._count(cut.seconds)
        slots = threading.Semaphore(cut.workers)
        for i in range(0, len(points), cut.points):
            for j in range(0, len(seeds), cut.at_once):
                some = points[i : i + cut.points], seeds[j : j + cut.at_once]
                yield Work(number, cut, *some, done, slots)

    # Computing -----------------------------------------------------------------------------------

    def execute(self) -> None:
        """Compute what is missing; blocks are kept as they finish."""
        pending = [g for g in range(len(self.study.groups)) if (self._missing(g) >= 0).any()]
        # Small factorisations reach LAPACK, whose own threads would only fight over the cores.
        with (
            threadpool_limits(1, user_api="blas"),
            # In order where processes compute together.
            ThreadPoolExecutor(1 if self.together else engine.cores()) as compilers,
            ThreadPoolExecutor(self.study.workers) as workers,
        ):
            jobs: list[Future] = [compilers.submit(self._plan, g) for g in pending]
            left = len(jobs)
            try:
                while left:
                    event = self.events.get()
                    if isinstance(event, BaseException):
                        raise event
                    if isinstance(event, Block):
                        self._keep(event)
                        continue
                    left += len(event) - 1
                    jobs += [workers.submit(self._work, work) for work in event]
            except BaseException as error:
                self.cancelled.set()
                for job in jobs:
                    job.cancel()
                workers.shutdown()
                while not self.events.empty():
                    if isinstance(event := self.events.get(), Block):
                        self._collect(event)
                if self.store is not None:
                    self.store.flush()
                if isinstance(error, KeyboardInterrupt):
                    raise self._interrupted() from None
                raise
        self._show()

    def _work(self, work: Work) -> None:
        try:
            with work.slots:
                device = self.devices.get()
                try:
                    self._stretches(work, device)
                finally:
                    self.devices.put(device)
            self.events.put([])
        except BaseException as error:
            self.events.put(error)

    def _stretches(self, work: Work, device: jax.Device) -> None:
        """Run a block from where it stands to its end, a stretch at a time."""
        study, group, cut = self.study, self.study.groups[work.group], work.cut
        names = study.names(work.group)
        labels = [names[i] for i in work.points]
        # The last block of its kind may be smaller: it repeats its last point and seed.
        points = group.pick(work.points[np.minimum(np.arange(cut.points), len(work.points) - 1)])
        seeds = (work.seeds + work.seeds[-1:] * cut.at_once)[: cut.at_once]
        numbers = np.asarray(seeds, np.uint32)
        carry, done = None, work.done
        if done:
            carry = self._saved(work, labels, seeds)
            done = 0 if carry is None else done
        segments = study.segments(group, cut.points * cut.at_once, done)
        for number, records in enumerate(segments):
            if self.cancelled.is_set():
                return
            compiled, seconds = study.program.compile(
                numbers,
                study.root_key,
                points,
                carry,
                (cut.points, cut.turns),
                records,
                device,
            )
            self._count(seconds)
            began = time.perf_counter()
            with self.exclusive if compiled.alone else contextlib.nullcontext():
                already = np.int32(done * study.record_every)
                output = compiled.call(numbers, study.root_key, points, carry, already)
                recorded, known = jax.tree.map(np.asarray, (output.records, output.outcome))
            carry = output.carry

            def trim(tree: Any) -> Any:
                return jax.tree.map(lambda x: x[: len(work.seeds), : len(work.points)], tree)

            recorded, known = trim((recorded, known))
            last = number == len(segments) - 1
            over = not last and self._over(recorded, known)
            state = None
            if self.store is not None and (self.keep_state or not (last or over)):
                # Copies: the next stretch takes the buffers over.
                state = [np.array(leaf) for leaf in trim(jax.tree.leaves(carry))]
            self.first = min(self.first, began)
            self.last = max(self.last, time.perf_counter())
            self.events.put(Block(labels, work.seeds, done, over, recorded, known, state))
            done += records
            if over:
                return

    def _saved(self, work: Work, labels: list[str], seeds: list[int]) -> Any:
        """The states of a block's runs, or ``None``: then they start again."""
        assert self.store is not None  # where else would unfinished runs come from
        padded = labels + [labels[-1]] * (work.cut.points - len(labels))
        leaves = self.store.state(padded, seeds, work.done)
        if leaves is None:
            log.warning(
                "%d runs have no state in the store at round %d and start again from round 1",
                len(work.seeds) * len(labels),
                work.done * self.study.record_every,
            )
            return None
        structure = jax.tree.structure(work.cut.compiled.shape.carry)
        return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])

    def _over(self, recorded: dict[str, np.ndarray], known: dict[str, np.ndarray]) -> bool:
        """Whether nothing is to be expected of any run of a block."""
        finished = known["diverged"] > 0
        if self.study.until:
            levels = [recorded[name][:, :, -1] <= level for name, level in self.study.until.items()]
            finished |= np.all(levels, axis=0)
        return bool(finished.all())

    def _count(self, seconds: float) -> None:
        if seconds:
            with self.counting:
                self.timing["compile_seconds"] += seconds
                self.timing["compilations"] += 1

    # Keeping -------------------------------------------------------------------------------------

    def _collect(self, block: Block) -> None:
        self.collection.add(block)
        if self.store is not None:
            self.store.add(block)
        elif self.distributed:
            self.own.append(block)

    def _keep(self, block: Block) -> None:
        before = self.reached
        self._collect(block)
        done = self.collection.done
        self.bar.update((self.reached - before) * self.study.record_every)
        self.bar.set_postfix_str(
            f"{int(done.all(axis=0).sum())}/{done.shape[1]} seeds, "
            f"{int(done.all(axis=1).sum())}/{done.shape[0]} points"
        )
        if time.perf_counter() - self.shown >= FLUSH_SECONDS:
            self._show()

    def _show(self) -> None:
        """Write what is finished, and tell how far it is."""
        if self.store is not None:
            self.store.flush()
        if self.callback is not None:
            self.callback(self.dataset())
        now = time.perf_counter()
        left = int(self.mine.sum()) * self.study.records - self.reached
        if left > 0 and self.reached > self.found:
            rate = (self.reached - self.found) / (now - self.began)
            log.info(
                "%d of %d runs done after %.0f s, about %.0f s to go",
                int(self.collection.done[self.mine].sum()),
                int(self.mine.sum()),
                now - self.began,
                left / rate,
            )
        self.shown = now

    def _interrupted(self) -> Interrupted:
        done = self.collection.done
        text = f"interrupted: {int(done.sum())} of {done.size} runs are done"
        if self.store is not None:
            text += f" and kept in {self.store.folder}; run the same study again to go on"
        return Interrupted(text + ".", self.dataset())

    def finish(self) -> xr.Dataset:
        """The whole dataset, in every process."""
        if self.distributed and self.store is not None:
            multihost_utils.sync_global_devices("fljax: all runs are stored")
            for block in self.store.blocks():
                self.collection.add(block)
            if not self.collection.done.all():
                raise StoreError(
                    f"{int((~self.collection.done).sum())} runs of the other processes are not in "
                    f"{self.store.folder}: all processes need one folder in common, or no store."
                )
        elif self.distributed:
            for block in exchange(self.own):
                self.collection.add(block)
        return self.dataset()

    def dataset(self) -> xr.Dataset:
        study = self.study
        axes = {axis.name: axis.labels for axis in study.axes}
        dataset = self.collection.dataset(axes, study.record_every, study.metrics)
        dataset.attrs |= results.provenance(
            dtype=str(float_dtype()),
            prng=PRNG,
            root=study.root,
            rounds=study.rounds,
            record_every=study.record_every,
            scenario=getattr(study.scenario, "__qualname__", repr(study.scenario)),
            scenario_hash=hashlib.sha256("".join(study.identities).encode()).hexdigest()[:16],
            block=str(sorted(self.blocks_used)),
            run_seconds=max(0.0, self.last - self.first),
            **self.timing,
        )
        return dataset
