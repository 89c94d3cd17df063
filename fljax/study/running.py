"""Running a study: its missing runs are distributed, and every finished block is kept.

Threads, devices, processes and machines each take different runs; the result of a run depends on
its seed and grid point alone.
"""

import contextlib
import functools
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.experimental import multihost_utils
from threadpoolctl import ThreadpoolController

from fljax import _check
from fljax._arguments import check, rule
from fljax._folders import named, writing
from fljax._generator import GENERATOR
from fljax.decisions import recorded
from fljax.privacy import promises
from fljax.privacy.secrets import origin_of
from fljax.records import COUNTS, provenance, warn
from fljax.study import machine
from fljax.study.collection import Collection, exchange, of_study
from fljax.study.grid import Scenario
from fljax.study.planning import Cut, cut_of, segments_of
from fljax.study.progress import Progress
from fljax.study.request import Request, Study, parse_shard
from fljax.study.store import Block, Store, StoreError

__all__ = ["Interrupted", "Work", "sweep"]

log = logging.getLogger("fljax")

#: Time for which finished blocks are gathered before they are written together: short enough that
#: losing them costs little, long enough that writing takes negligible time.
FLUSH_SECONDS = 2.0


class Interrupted(KeyboardInterrupt):
    """The study was interrupted by Ctrl-C; finished runs are kept, here and in the store.

    Attributes:
      results: the dataset so far; its variable ``done`` marks the finished runs. Values that were
        not computed are NaN.
    """

    def __init__(self, message: str, results: xr.Dataset) -> None:
        super().__init__(message)
        self.results = results


class Work(NamedTuple):
    """Some runs that are executed together: a rectangle of seeds and grid points."""

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
    generator: str = GENERATOR,
    block: int | None = None,
    workers: int | None = None,
    keep_models: bool = False,
    independent_noise: bool = False,
    noise_seed: int | str | None = None,
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

    With a ``store``, finished runs are on disk within seconds. A killed study that is run again
    resumes where it stopped; a finished one that is run again with more seeds, rounds or grid
    points computes only what is new. In several processes joined by ``jax.distributed`` each
    computes its share, and all return everything.

    Args:
      scenario: ``(key, **point) -> Simulation``, pure.
      rounds: number of iterations of every run.
      seeds: number of Monte-Carlo seeds, or a list of them (``range(100, 200)`` continues a study).
      grid: maps each axis name to a list of values, or to a dict of labels and values; all
        combinations are run.
      record_every: number of rounds between records of the metrics; must divide ``rounds``.
      root: the root seed. Run ``s`` depends on ``root`` and ``s`` alone.
      generator: the generator of all random numbers; part of a store's identity. Instead of the
        library's own it can be one of JAX's, ``"philox4x32"`` or ``"threefry2x32"``.
      block: number of seeds per block; by default the size that :func:`plan` measured to be
        fastest, else one that fits the cache (CPU) or memory (accelerator), distributed evenly over
        the workers. It changes results by no more than floating-point reassociation. With a given
        block size, a study of at least that many seeds to which seeds are added later gives bit for
        bit the results of a study that had all seeds from the start.
      workers: number of blocks computed concurrently; by default the available cores on a CPU, else
        1. Runs of about a millisecond in all are one block, computed in the calling thread.
      keep_models: also return every run's final models, ``[..., seed, client, parameter]``, and the
        privacy loss of every client.
      independent_noise: draw the noise (and participants, delays, losses) independently at each
        grid point, and also independently of any other study of the scenario (another algorithm,
        budget, data or number of rounds; since a computation is identified by its program, also
        other metrics or versions). By default a seed draws the same noise at all points and in all
        studies. This makes their differences precise, but two private runs of one seed must then
        not both be published: their difference cancels the noise, whatever the ledger of each
        states.
      noise_seed: a secret that the noise (and participants, delays, losses) of every run depends on
        besides ``root``, seed and grid point, and that is never recorded, so that nobody who has
        the results can draw the noise again; implies ``independent_noise``. ``"entropy"`` is
        forgotten after the study; an integer >= 2**63 of your own, such as
        ``secrets.randbits(128)``, repeats and resumes it.
      shard_over: what is distributed over several devices: ``"seeds"``, where each device runs its
        own blocks; or, for one very large network, its ``"clients"``, mixing included (their number
        must be a multiple of the number of devices of all processes).
      store: a folder in which the study is kept.
      keep_state: also store the state of every run, so that more rounds can be added.
      shard: ``"i/n"``: compute only the i-th of n parts, into the store; :func:`merge` joins
        them.
      segment: number of rounds between checkpoints of a run; by default only long runs have
        checkpoints.
      until: maps metrics to tolerances: a block ends once each of its runs has diverged or has
        every metric at or below its tolerance, or at or above it where larger is better, as of an
        accuracy (checked after each segment, by default a tenth of the run). A run that ended early
        keeps its model, so its later records repeat the last one and count no traffic; ``stopped``
        gives the round.
      callback: called with the dataset so far, every few seconds. It sees metrics that no budget
        covers and can end the study by an exception, so that private runs are then nominal
        (:func:`fljax.privacy.assumptions`).
      progress: by default a progress bar on a terminal and in notebooks, elsewhere a line per
        minute; ``False`` shows nothing.

    Returns:
      A dataset over the grid's axes, ``seed`` and ``round``, with the provenance as attributes. If
      it is incomplete (a shard), ``done`` marks the finished runs, and all other values of the
      remaining runs are NaN.

    Raises:
      TypeError, ValueError: invalid parts of a simulation that the scenario builds, with the grid
        point named, raised before anything is compiled; a store for a study that calls Python code
        on the host that cannot be identified (it holds a lock or a file).
      OtherStudyError: a store that holds another study; it is a ``ValueError``.
      StoreError: a store that cannot be written or is in use.
      MemoryError: a single run that does not fit; results that do not fit, before anything is
        computed.
      Interrupted: on Ctrl-C; it holds the finished runs.

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
    _check.outside("fljax.sweep")
    check("store", store, rule(str | PathLike | None))
    if store is not None:
        named(store)
    check("callback", callback, rule(Callable | None))
    _check.switch("keep_state", keep_state)
    if progress is not None:
        _check.switch("progress", progress)
    study = Study.of(
        Request(
            scenario=scenario,
            rounds=rounds,
            seeds=seeds,
            grid=grid,
            record_every=record_every,
            root=root,
            generator=generator,
            block=block,
            workers=workers,
            keep_models=keep_models,
            independent_noise=independent_noise,
            noise_seed=noise_seed,
            shard_over=shard_over,
            segment=segment,
            until=until,
            fresh=store is not None,
        )
    )
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
    warn(dataset, study.built)
    return dataset


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The linear-algebra libraries that use threads; they come with modules, so they are looked up
    again after imports.
    """
    del modules
    return ThreadpoolController()


class _Threads(ThreadPoolExecutor):
    """Threads that outlive a study: starting three takes as long as a small study computes."""

    def __init__(self, count: int) -> None:
        super().__init__(count, "fljax-study")
        self.count = count


#: Threads of finished studies. A child that was forked has none of them.
_IDLE: list[_Threads] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_IDLE.clear)


def _threads(count: int) -> _Threads:
    """So many threads that nobody else uses."""
    for threads in list(_IDLE):
        if threads.count == count:
            with contextlib.suppress(ValueError):  # another study was faster
                _IDLE.remove(threads)
                return threads
    return _Threads(count)


def _once(counts: np.ndarray) -> np.ndarray:
    """Counts of many runs, ``[S, C, R, 2]``, stored only once if all runs have the same."""
    one = counts[:1, :1]
    return np.broadcast_to(one.copy(), counts.shape) if (counts == one).all() else counts


class _Run:
    """One call of :func:`sweep`: its store, collected results and progress."""

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
        self.study, self.asked, self.sharded = study, study.asked, sharded
        self.part, self.parts = part, parts
        self.keep_state, self.callback = keep_state, callback
        #: Whether a callback sees private runs, or saw a part of them that the store holds.
        self.private = any(group.shown.privacy is not None for group in study.groups)
        self.watched = self.private and callback is not None
        self.collection = Collection(
            study.labels, study.shape, self.asked.seed_list, self.asked.records
        )
        self.finished: dict[int, Block] = {}  # that are not collected yet, in their order
        self.own: list[Block] = []  # for the other processes, if there is no store
        self.timing = {"compile_seconds": 0.0, "compilations": 0}
        self.blocks_used: set[int] = set()
        self.shown = time.perf_counter()
        self.running: dict[int, tuple[int, float]] = {}  # groups of calls, and since when they run
        self.seconds: dict[int, float] = {}  # that the last call of a group took
        self.first, self.last = math.inf, 0.0  # when blocks began and ended
        # No more than each worker's last block waits to be collected: they take memory.
        self.events: queue.Queue = queue.Queue(study.workers)
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
        total = int(self.mine.sum()) * self.asked.rounds
        self.progress = Progress(total, self.found * self.asked.record_every, progress is not False)

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.close()
        if self.store is not None:
            self.store.close()

    @property
    def reached(self) -> int:
        """Number of records finished of this part's runs."""
        return int(self.collection.reached[self.mine].sum())

    @property
    def distributed(self) -> bool:
        """Whether each process has its own runs."""
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
            stored = store.manifest().get("attributes", {})
            self.watched = self.watched or bool(self.private and stored.get("callback"))
            store.agree(self.study.description() | {"attributes": self._attributes()})
            for block in store.blocks():
                self.collection.add(block)
            if store.unwritable and not self.collection.done[self.mine].all():
                with writing(store.folder):
                    raise store.unwritable
        except BaseException:
            store.close()
            raise
        stored = int(self.collection.done.sum())
        if stored:
            log.info("%d of %d runs found in %s", stored, self.collection.done.size, folder)
        return store

    # Sharing out ---------------------------------------------------------------------------------

    def _missing(self, number: int) -> np.ndarray:
        """``[C, S]``: number of finished records of the runs in a group that this part has to
        compute, -1 for all other runs.
        """
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
                    seeds = [self.asked.seed_list[j] for j in np.flatnonzero(row == done)]
                    works += self._rectangle(number, np.asarray(points), seeds, int(done))
            self._tell(works)
        except BaseException as error:
            self._tell(error)

    def _tell(self, event: Any) -> None:
        """Pass an event to the main thread, which may be behind or may have left."""
        while not self.cancelled.is_set():
            try:
                self.events.put(event, timeout=0.1)
            except queue.Full:
                continue
            return

    def _rectangle(
        self, number: int, points: np.ndarray, seeds: list[int], done: int
    ) -> Iterator[Work]:
        cut = cut_of(self.study, number, len(points), len(seeds))
        self.blocks_used.add(cut.seeds)
        self._count(cut.seconds)
        with self.counting:
            self.collection.require_room(*cut.compiled.shape[:2])
        slots = threading.Semaphore(cut.workers)
        for i in range(0, len(points), cut.points):
            for j in range(0, len(seeds), cut.at_once):
                some = points[i : i + cut.points], seeds[j : j + cut.at_once]
                yield Work(number, cut, *some, done, slots)

    # Computing -----------------------------------------------------------------------------------

    def execute(self) -> None:
        """Compute the missing runs; blocks are kept as they finish."""
        pending = [g for g in range(len(self.study.groups)) if (self._missing(g) >= 0).any()]
        # In order where processes compute together.
        compilers = _threads(1 if self.together else machine.cores())
        workers = _threads(self.study.workers)
        # Small factorizations reach LAPACK, whose own threads would only fight over the cores.
        with _libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
            jobs: list[Future] = []
            left, idle = len(pending), False
            try:
                jobs += [compilers.submit(self._plan, g) for g in pending]
                while left:
                    event = self._next()
                    if isinstance(event, BaseException):
                        raise event
                    if isinstance(event, Block):
                        self._keep(event)
                        continue
                    self.progress.start()
                    left += len(event) - 1
                    for work in event:
                        if work.cut.brief and self.store is None:
                            self._at_once(work)
                            left -= 1
                        else:
                            jobs.append(workers.submit(self._work, work))
            except BaseException as error:
                self.cancelled.set()
                for job in jobs:
                    job.cancel()
                if isinstance(error, KeyboardInterrupt):
                    self._say_what_runs(jobs)
                with contextlib.suppress(KeyboardInterrupt):  # again: leave them behind
                    workers.shutdown(wait=bool(self.running))
                for block in list(self.finished.values()):
                    self._collect(block)
                if self.store is not None:
                    self.store.flush()
                if isinstance(error, KeyboardInterrupt):
                    raise self._interrupted() from None
                raise
            else:
                # Who told last returns in no time; nobody waits for what is still compiled.
                idle = not wait(jobs, timeout=0.01).not_done
            finally:
                for threads in (compilers, workers):
                    if idle:
                        _IDLE.append(threads)
                    else:
                        threads.shutdown(wait=False)
        self._show()

    def _next(self) -> Any:
        """Wait for the next event of the threads, updating the progress meanwhile."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=self.progress.patience)
            self.progress.tell()

    def _say_what_runs(self, jobs: list[Future]) -> None:
        """Tell the user at Ctrl-C what is still running: neither a block nor a compilation can be
        stopped.
        """
        running = list(self.running.values())
        if running:
            known, now = self.seconds, time.perf_counter()
            left = [known[group] + began - now for group, began in running if group in known]
            long = f"about {max(1.0, *left):.0f} s" if left else "for as long as one takes"
            self.progress.say(
                f"interrupted; waiting for {len(running)} running "
                f"block{'s' * (len(running) > 1)}, {long}. Ctrl-C again leaves them behind."
            )
        elif any(job.running() for job in jobs):
            self.progress.say("interrupted; the compiler, which cannot be, ends in the background.")

    def _at_once(self, work: Work) -> None:
        """Compute and keep a block in this thread: handing it out takes longer."""
        try:
            for block in self._stretches(work, jax.local_devices()[0]):
                self._keep(block)
        finally:
            self.running.pop(id(work), None)  # at Ctrl-C nobody waits for it

    def _work(self, work: Work) -> None:
        try:
            with work.slots:
                device = self.devices.get()
                try:
                    for block in self._stretches(work, device):
                        self._tell(block)
                        del block
                finally:
                    self.devices.put(device)
            self._tell([])
        except BaseException as error:
            self._tell(error)

    def _stretches(self, work: Work, device: jax.Device) -> Iterator[Block]:
        """Run a block from its current record to its end; its results, a segment at a time."""
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
        segments = segments_of(study, group, cut.points * cut.at_once, done)
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
            if self.cancelled.is_set():
                return
            self.running[id(work)] = work.group, (began := time.perf_counter())
            with self.exclusive if compiled.alone else contextlib.nullcontext():
                already = np.int32(done * self.asked.record_every)
                output = compiled.call(numbers, study.root_key, points, carry, already)
                recorded, known = jax.tree.map(np.asarray, (output.records, output.outcome))
            recorded |= {name: _once(recorded[name]) for name in COUNTS if name in recorded}
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
            self.last = max(self.last, ended := time.perf_counter())
            self.seconds[work.group] = ended - began
            block = Block(labels, work.seeds, done, over, recorded, known, state)
            self.finished[id(block)] = block
            del self.running[id(work)], output, recorded, known
            yield block
            del block
            done += records
            if over:
                return

    def _saved(self, work: Work, labels: list[str], seeds: list[int]) -> Any:
        """The stored states of a block's runs, or ``None``: then they start again."""
        assert self.store is not None  # where else would unfinished runs come from
        padded = labels + [labels[-1]] * (work.cut.points - len(labels))
        leaves = self.store.state(padded, seeds, work.done)
        if leaves is None:
            log.warning(
                "%d runs have no state in the store at round %d and start again from round 1",
                len(work.seeds) * len(labels),
                work.done * self.asked.record_every,
            )
            return None
        structure = jax.tree.structure(work.cut.compiled.shape.carry)
        return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])

    def _over(self, recorded: dict[str, np.ndarray], known: dict[str, np.ndarray]) -> bool:
        """Whether all runs of a block have ended early."""
        finished = known["diverged"] > 0
        if self.study.until:
            metrics = [m for group in self.study.groups for m in group.shown.metrics]
            rising = {m.name for m in metrics if m.larger_is_better}  # pyright: ignore[reportAttributeAccessIssue]
            reached = [
                np.greater_equal(last, level) if name in rising else np.less_equal(last, level)
                for name, level in self.study.until.items()
                for last in [recorded[name][:, :, -1]]
            ]
            finished |= np.all(reached, axis=0)
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
        del self.finished[id(block)]

    def _keep(self, block: Block) -> None:
        before = self.reached
        self._collect(block)
        done = self.collection.done
        self.progress.advance(
            (self.reached - before) * self.asked.record_every,
            f"{int(done.all(axis=0).sum())}/{done.shape[1]} seeds, "
            f"{int(done.all(axis=1).sum())}/{done.shape[0]} points",
        )
        if time.perf_counter() - self.shown >= FLUSH_SECONDS:
            self._show()

    def _show(self) -> None:
        """Write what is finished, and pass it to the callback."""
        if self.store is not None:
            self.store.flush()
        if self.callback is not None:
            self.callback(self.dataset())
        self.shown = time.perf_counter()

    def _interrupted(self) -> Interrupted:
        done = self.collection.done
        text = f"interrupted: {int(done.sum())} of {done.size} runs are done"
        if self.store is not None:
            text += f" and kept in {self.store.folder}; run the same study again to go on"
        return Interrupted(text + ".", self._last())

    def finish(self) -> xr.Dataset:
        """Return the complete dataset, in every process."""
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
        return self._last()

    def _last(self) -> xr.Dataset:
        """Return the results of this call; the store describes them in the same way."""
        dataset = self.dataset()
        if self.store is not None:
            stated = ("privacy", "not_covered")  # anew whenever the store is read
            self.store.describe({k: v for k, v in dataset.attrs.items() if k not in stated})
        return dataset

    def dataset(self) -> xr.Dataset:
        study, asked = self.study, self.asked
        axes = {axis.name: axis.labels for axis in study.axes}
        dataset = self.collection.dataset(axes, asked.record_every, study.metrics)
        for axis in study.axes:
            new = {n: (axis.name, v) for n, v in axis.beside.items() if n not in dataset.variables}
            dataset = dataset.assign_coords(new) if new else dataset
        dataset.attrs |= self._attributes()
        promises.state(dataset)
        return dataset

    def _attributes(self) -> dict[str, Any]:
        """Provenance of the results."""
        asked = self.asked
        choice = "; ".join(axis.choice for axis in self.study.axes if axis.choice)
        dtypes = {str(group.shown.problem.dtype) for group in self.study.groups}
        return provenance(
            dtype="; ".join(sorted(dtypes)),
            prng=asked.generator,
            root=asked.root,
            record_every=asked.record_every,
            keep_models=int(asked.keep_models),
            independent_noise=int(asked.independent_noise or bool(asked.secret)),
            **({"noise_seed": origin_of(asked.noise_seed)} if asked.secret else {}),
            **({"callback": 1} if self.watched else {}),
            **({"tuning": f"tuning not counted: {choice}"} if choice and self.private else {}),
            scenario=getattr(asked.scenario, "__qualname__", repr(asked.scenario)),
            **of_study(asked.rounds, self.study.identities),
            decisions=recorded(group.decided for group in self.study.groups),
            block=str(sorted(self.blocks_used)),
            run_seconds=max(0.0, self.last - self.first),
            **self.timing,
        )
