"""Executing a study: compile blocks of missing runs, compute them in threads, store the results.

Threads, devices, processes and machines each compute different runs; the result of a run depends
only on its seed and grid point.
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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from os import PathLike
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.experimental import multihost_utils
from jaxtyping import PyTree
from threadpoolctl import ThreadpoolController

from fljax._core.storage import writing
from fljax.metrics.names import COUNTS
from fljax.privacy import promises
from fljax.privacy.secrets import origin_of
from fljax.results.dataset import provenance
from fljax.simulation.decisions import recorded
from fljax.study import block_sizes
from fljax.study.collection import Collection, exchange, request_attributes
from fljax.study.planning import BlockPlan, plan_blocks, segments_of
from fljax.study.progress import Progress
from fljax.study.request import Study
from fljax.study.store import Block, Store, StoreError
from fljax.study.tracking import Tracking

log = logging.getLogger("fljax")

#: Seconds between writes of finished blocks: short enough that losing them costs little, long
#: enough that writing takes negligible time.
FLUSH_SECONDS = 2.0


class Interrupted(KeyboardInterrupt):
    """The study was interrupted by Ctrl-C; finished runs are available here and in the store.

    Attributes:
      results: the dataset so far; its variable ``done`` marks the finished runs. Values that were
        not computed are NaN.
    """

    def __init__(self, message: str, results: xr.Dataset) -> None:
        super().__init__(message)
        self.results = results


class BlockTask(NamedTuple):
    """Runs that are executed together: a rectangle of seeds and grid points."""

    group: int
    plan: BlockPlan
    points: np.ndarray  # positions in the group
    seeds: list[int]
    done: int  # records that the store has of them
    slots: threading.Semaphore  # limits the concurrent tasks of one rectangle


@functools.lru_cache(maxsize=1)
def _blas_libraries(modules: int) -> ThreadpoolController:
    """The loaded linear-algebra libraries that use threads.

    The number of imported modules is the cache's key, since imports load libraries.
    """
    del modules
    return ThreadpoolController()


class _ReusableThreads(ThreadPoolExecutor):
    """Threads that outlive a study: starting three takes as long as computing a small study."""

    def __init__(self, count: int) -> None:
        super().__init__(count, "fljax-study")
        self.count = count


#: Threads of finished studies. Forked processes do not inherit threads.
_IDLE_THREADS: list[_ReusableThreads] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_IDLE_THREADS.clear)


def _acquire_threads(count: int) -> _ReusableThreads:
    """Idle threads of a finished study, or new ones."""
    for threads in list(_IDLE_THREADS):
        if threads.count == count:
            with contextlib.suppress(ValueError):  # another study has just acquired them
                _IDLE_THREADS.remove(threads)
                return threads
    return _ReusableThreads(count)


def _without_repeats(counts: np.ndarray) -> np.ndarray:
    """Counts of many runs, ``[S, C, R, 2]``, as a broadcast view if they are the same for all."""
    first = counts[:1, :1]
    return np.broadcast_to(first.copy(), counts.shape) if (counts == first).all() else counts


class StudyRun:
    """One call of :func:`sweep`: its store, collected results and progress.

    Compiler threads plan the groups and post lists of tasks; worker threads compute tasks and post
    blocks. The main thread, in :meth:`execute`, receives these events, starts the tasks, and
    collects, stores and reports the blocks.

    Attributes:
      callback_saw_private: whether a callback sees private runs, or saw runs in the store.
      uncollected: finished blocks that are not collected yet, in order.
      local_blocks: blocks to send to other processes if no store is used.
      running_blocks: the groups of running calls, and when they started.
      block_seconds: duration of the last call of each group.
      events: lists of tasks, blocks and exceptions, from other threads. Its size limits how many
        blocks wait to be collected, since they take memory.
      assigned_runs: ``[C, S]``, the runs that this part of the study has to compute.
    """

    def __init__(
        self,
        study: Study,
        folder: str | PathLike | None,
        keep_state: bool,
        part: int,
        parts: int,
        sharded: bool,
        callback: Callable[[xr.Dataset], None] | None,
        tracking: Tracking,
        progress: bool | None,
    ) -> None:
        self.study = study
        self.request = study.request
        self.sharded = sharded
        self.part = part
        self.parts = parts
        self.keep_state = keep_state
        self.callback = callback
        self.tracking = tracking
        self.private = any(group.abstract.privacy is not None for group in study.groups)
        self.callback_saw_private = self.private and callback is not None
        self.collection = Collection(
            study.labels, study.shape, self.request.seed_list, self.request.records
        )
        self.uncollected: dict[int, Block] = {}
        self.local_blocks: list[Block] = []
        self.timing = {"compile_seconds": 0.0, "compilations": 0}
        self.blocks_used: set[int] = set()
        self.last_flush = time.perf_counter()
        self.running_blocks: dict[int, tuple[int, float]] = {}
        self.block_seconds: dict[int, float] = {}
        self.started = math.inf
        self.ended = 0.0
        self.events: queue.Queue = queue.Queue(study.workers)
        self.cancelled = threading.Event()
        self.exclusive_lock = threading.Lock()
        self.timing_lock = threading.Lock()
        self.devices: queue.SimpleQueue[jax.Device] = queue.SimpleQueue()
        for worker in range(study.workers):
            self.devices.put(jax.local_devices()[worker % jax.local_device_count()])
        points, seeds = self.collection.finished_records.shape
        # Parts get whole seeds if there are enough, so that data of all points is drawn only once.
        index = np.arange(seeds)[None, :] if seeds >= parts else np.arange(points)[:, None]
        self.assigned_runs = np.broadcast_to(index % parts == part, (points, seeds))
        self.store = self._open(folder)
        self.stored_records = self.finished_records
        total = int(self.assigned_runs.sum()) * self.request.rounds
        self.progress = Progress(
            total, self.stored_records * self.request.record_every, progress is not False
        )
        if self.tracking:
            self.tracking.begin(self.dataset())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.tracking and kind is not None:
            is_stop = issubclass(kind, KeyboardInterrupt)
            self.tracking.end(self.dataset(), "interrupted" if is_stop else "failed")
        self.progress.close()
        if self.store is not None:
            self.store.close()

    @property
    def finished_records(self) -> int:
        """Number of finished records of this part's runs."""
        return int(self.collection.finished_records[self.assigned_runs].sum())

    @property
    def distributed(self) -> bool:
        """Whether each process computes different runs."""
        return self.parts > 1 and not self.sharded

    @property
    def shares_runs(self) -> bool:
        """Whether the devices of several processes compute every run jointly."""
        return self.study.program.shard_over == "clients" and jax.process_count() > 1

    @property
    def _lock_name(self) -> str | None:
        """The part of the store's study that no other process may compute meanwhile."""
        return f"part-{self.part + 1}-of-{self.parts}" if self.parts > 1 else "study"

    def _open(self, folder: str | PathLike | None) -> Store | None:
        """Open the store, compare it with the study, and collect the blocks that it has."""
        if folder is None:
            return None
        if self.shares_runs:
            raise ValueError(
                "a store cannot keep runs that several processes share; leave store out, or use "
                "one process."
            )
        store = Store(folder, self._lock_name)
        try:
            stored = store.manifest().get("attributes", {})
            self.callback_saw_private = self.callback_saw_private or bool(
                self.private and stored.get("callback")
            )
            store.agree(self.study.description() | {"attributes": self._attributes()})
            if self.parts == 1 and not store.unwritable:
                store.adopt_leftovers()
            for block in store.blocks():
                self.collection.add(block)
            if store.unwritable and not self.collection.done[self.assigned_runs].all():
                with writing(store.folder):
                    raise store.unwritable
        except BaseException:
            store.close()
            raise
        stored = int(self.collection.done.sum())
        if stored:
            log.info("%d of %d runs found in %s", stored, self.collection.done.size, folder)
        return store

    # Planning ------------------------------------------------------------------------------------

    def _missing_records(self, number: int) -> np.ndarray:
        """``[C, S]``, for the runs of a group: how many records are finished of those to compute.

        It is -1 for all other runs.
        """
        rows = self.collection.rows(self.study.names(number))
        wanted = self.assigned_runs[rows] & ~self.collection.done[rows]
        return np.where(wanted, self.collection.finished_records[rows], -1)

    def _plan_group(self, number: int) -> None:
        """Divide a group's missing runs into tasks, and compile their programs."""
        try:
            tasks = []
            with self.study.program.options.applied():
                for points, seeds, done in self._rectangles(number):
                    tasks += self._tasks(number, points, seeds, done)
            self._post_event(tasks)
        except BaseException as error:
            self._post_event(error)

    def _rectangles(self, number: int) -> Iterator[tuple[np.ndarray, list[int], int]]:
        """A group's missing runs, as rectangles of points and seeds with the same number of
        finished records: positions of the points in the group, seeds, finished records.
        """
        missing = self._missing_records(number)
        points_by_row: dict[bytes, list[int]] = {}
        for point, row in enumerate(missing):
            points_by_row.setdefault(row.tobytes(), []).append(point)
        for points in points_by_row.values():
            row = missing[points[0]]
            for done in np.unique(row[row >= 0]):
                seeds = [self.request.seed_list[j] for j in np.flatnonzero(row == done)]
                yield np.asarray(points), seeds, int(done)

    def _post_event(self, event: object) -> None:
        """Pass an event to the main thread, unless it has stopped receiving them."""
        while not self.cancelled.is_set():
            try:
                self.events.put(event, timeout=0.1)
            except queue.Full:
                continue
            return

    def _tasks(
        self, number: int, points: np.ndarray, seeds: list[int], done: int
    ) -> Iterator[BlockTask]:
        """Divide a rectangle of runs with the same number of finished records into tasks."""
        plan = plan_blocks(self.study, number, len(points), len(seeds))
        self.blocks_used.add(plan.seeds)
        self._count_compilation(plan.seconds)
        with self.timing_lock:
            self.collection.require_room(*plan.compiled.shape[:2])
        slots = threading.Semaphore(plan.workers)
        for i in range(0, len(points), plan.points):
            for j in range(0, len(seeds), plan.seeds_per_call):
                rectangle = points[i : i + plan.points], seeds[j : j + plan.seeds_per_call]
                yield BlockTask(number, plan, *rectangle, done, slots)

    # Computing -----------------------------------------------------------------------------------

    def execute(self) -> None:
        """Compute the missing runs; store blocks as they finish."""
        pending = [
            g for g in range(len(self.study.groups)) if (self._missing_records(g) >= 0).any()
        ]
        # Processes that share runs have to compile and compute in the same order.
        compilers = _acquire_threads(1 if self.shares_runs else block_sizes.cores())
        workers = _acquire_threads(self.study.workers)
        # Scenarios may call LAPACK for small factorizations; its threads would compete for cores.
        with _blas_libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
            jobs: list[Future] = []
            pending_count = len(pending)
            are_idle = False
            try:
                jobs += [compilers.submit(self._plan_group, g) for g in pending]
                while pending_count:
                    event = self._next_event()
                    if isinstance(event, BaseException):
                        raise event
                    if isinstance(event, Block):
                        self._collect_and_report(event)
                        continue
                    self.progress.start()
                    pending_count += len(event) - 1
                    for task in event:
                        if task.plan.is_brief and self.store is None:
                            self._run_in_this_thread(task)
                            pending_count -= 1
                        else:
                            jobs.append(workers.submit(self._run_in_worker, task))
            except BaseException as error:
                self._cancel(jobs, workers, error)
                if isinstance(error, KeyboardInterrupt):
                    raise self._interrupted() from None
                raise
            else:
                # The last job returns immediately. Do not block on programs still being compiled.
                are_idle = not wait(jobs, timeout=0.01).not_done
            finally:
                for threads in (compilers, workers):
                    if are_idle:
                        _IDLE_THREADS.append(threads)
                    else:
                        threads.shutdown(wait=False)
        self._flush()

    def _cancel(
        self, jobs: list[Future], workers: ThreadPoolExecutor, error: BaseException
    ) -> None:
        """Stop all jobs after an error; wait for running blocks and store finished ones."""
        self.cancelled.set()
        for job in jobs:
            job.cancel()
        if isinstance(error, KeyboardInterrupt):
            self._report_running_blocks(jobs)
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: do not wait for them
            workers.shutdown(wait=bool(self.running_blocks))
        for block in list(self.uncollected.values()):
            self._collect(block)
        if self.store is not None:
            self.store.flush()

    def _next_event(self) -> Any:
        """Wait for the next event of the threads, and update the progress meanwhile."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=self.progress.patience)
            self.progress.update()

    def _report_running_blocks(self, jobs: list[Future]) -> None:
        """Tell the user at Ctrl-C what still runs: blocks and compilations cannot be stopped."""
        running = list(self.running_blocks.values())
        if running:
            durations = self.block_seconds
            now = time.perf_counter()
            remaining = [
                durations[group] + start - now for group, start in running if group in durations
            ]
            duration = (
                f"about {max(1.0, *remaining):.0f} s" if remaining else "for as long as one takes"
            )
            self.progress.write(
                f"interrupted; waiting for {len(running)} running "
                f"block{'s' * (len(running) > 1)}, {duration}. Ctrl-C again leaves them behind."
            )
        elif any(job.running() for job in jobs):
            self.progress.write(
                "interrupted; the compiler, which cannot be, ends in the background."
            )

    def _run_in_this_thread(self, task: BlockTask) -> None:
        """Compute and collect a block in this thread: passing it to another would take longer."""
        try:
            for block in self._run_segments(task, jax.local_devices()[0]):
                self._collect_and_report(block)
        finally:
            self.running_blocks.pop(id(task), None)  # after Ctrl-C it is not waited for

    def _run_in_worker(self, task: BlockTask) -> None:
        """Compute a block and post its results; an empty list of tasks marks the end."""
        try:
            with task.slots, self.study.program.options.applied():
                device = self.devices.get()
                try:
                    for block in self._run_segments(task, device):
                        self._post_event(block)
                        del block
                finally:
                    self.devices.put(device)
            self._post_event([])
        except BaseException as error:
            self._post_event(error)

    def _run_segments(self, task: BlockTask, device: jax.Device) -> Iterator[Block]:
        """Run a block from its current record to its end; yield the results of each segment."""
        study = self.study
        group = self.study.groups[task.group]
        plan = task.plan
        names = study.names(task.group)
        labels = [names[i] for i in task.points]
        # The last task of a rectangle may be smaller than the program's shape: repeat its last
        # point and seed.
        points = group.pick(task.points[np.minimum(np.arange(plan.points), len(task.points) - 1)])
        seeds = (task.seeds + task.seeds[-1:] * plan.seeds_per_call)[: plan.seeds_per_call]
        numbers = np.asarray(seeds, np.uint32)
        carry = None
        done = task.done
        if done:
            carry = self._stored_carry(task, labels, seeds)
            done = 0 if carry is None else done
        segments = segments_of(study, group, plan.points * plan.seeds_per_call, done)
        for number, records in enumerate(segments):
            if self.cancelled.is_set():
                return
            compiled, seconds = study.program.compile(
                numbers,
                study.root_key,
                points,
                carry,
                (plan.points, plan.blocks_per_call),
                records,
                device,
            )
            self._count_compilation(seconds)
            if self.cancelled.is_set():
                return
            self.running_blocks[id(task)] = task.group, (start := time.perf_counter())
            with self.exclusive_lock if compiled.must_run_alone else contextlib.nullcontext():
                rounds_done = np.int32(done * self.request.record_every)
                output = compiled.call(numbers, study.root_key, points, carry, rounds_done)
                recorded, outcome = jax.tree.map(np.asarray, (output.records, output.outcome))
            recorded |= {
                name: _without_repeats(recorded[name]) for name in COUNTS if name in recorded
            }
            carry = output.carry

            def trim(tree: PyTree) -> Any:
                return jax.tree.map(lambda x: x[: len(task.seeds), : len(task.points)], tree)

            recorded, outcome = trim((recorded, outcome))
            is_last = number == len(segments) - 1
            has_ended = not is_last and self._has_ended(recorded, outcome)
            state = None
            if self.store is not None and (self.keep_state or not (is_last or has_ended)):
                # Copies, since the next segment's program reuses (donates) the buffers.
                state = [np.array(leaf) for leaf in trim(jax.tree.leaves(carry))]
            self.started = min(self.started, start)
            self.ended = max(self.ended, end := time.perf_counter())
            self.block_seconds[task.group] = end - start
            block = Block(labels, task.seeds, done, has_ended, recorded, outcome, state)
            self.uncollected[id(block)] = block
            # Without references here, the arrays are freed as soon as the block is collected.
            del self.running_blocks[id(task)], output, recorded, outcome
            yield block
            del block
            done += records
            if has_ended:
                return

    def _stored_carry(self, task: BlockTask, labels: list[str], seeds: list[int]) -> Any:
        """The stored states of a block's runs; ``None`` if missing, so that they start again."""
        assert self.store is not None  # unfinished runs can only come from a store
        padded = labels + [labels[-1]] * (task.plan.points - len(labels))
        leaves = self.store.state(padded, seeds, task.done)
        if leaves is None:
            self._report_restart(len(task.seeds) * len(labels), task.done)
            return None
        structure = jax.tree.structure(task.plan.compiled.shape.carry)
        return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])

    def _report_restart(self, runs: int, done: int) -> None:
        log.warning(
            "%d runs have no state in the store at round %d and start again from round 1",
            runs,
            done * self.request.record_every,
        )

    def _has_ended(self, recorded: dict[str, np.ndarray], outcome: dict[str, np.ndarray]) -> bool:
        """Whether all runs of a block have diverged, reached the tolerances of ``until`` or spent
        its seconds.
        """
        has_ended = outcome["diverged"] > 0
        tolerances = dict(self.study.until)
        if (most_seconds := tolerances.pop("seconds", None)) is not None:
            has_ended |= recorded["seconds"][:, :, -1] >= most_seconds
        if tolerances:
            metrics = [m for group in self.study.groups for m in group.abstract.metrics]
            rising = {m.name for m in metrics if m.larger_is_better}  # pyright: ignore[reportAttributeAccessIssue]
            is_reached = [
                np.greater_equal(latest, level) if name in rising else np.less_equal(latest, level)
                for name, level in tolerances.items()
                for latest in [recorded[name][:, :, -1]]
            ]
            has_ended |= np.all(is_reached, axis=0)
        return bool(has_ended.all())

    def _count_compilation(self, seconds: float) -> None:
        if seconds:
            with self.timing_lock:
                self.timing["compile_seconds"] += seconds
                self.timing["compilations"] += 1

    # Collecting ----------------------------------------------------------------------------------

    def _collect(self, block: Block) -> None:
        """Add a block to the results, and to the store or the blocks for other processes."""
        self.collection.add(block)
        if self.store is not None:
            self.store.add(block)
        elif self.distributed:
            self.local_blocks.append(block)
        del self.uncollected[id(block)]

    def _collect_and_report(self, block: Block) -> None:
        """Collect a block, advance the progress, and flush if it is time."""
        previously_reached = self.finished_records
        self._collect(block)
        done = self.collection.done
        self.progress.advance(
            (self.finished_records - previously_reached) * self.request.record_every,
            f"{int(done.all(axis=0).sum())}/{done.shape[1]} seeds, "
            f"{int(done.all(axis=1).sum())}/{done.shape[0]} points",
        )
        if time.perf_counter() - self.last_flush >= FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        """Write finished blocks to the store, and pass the results so far to the callback."""
        if self.store is not None:
            self.store.flush()
        if self.tracking or self.callback is not None:
            dataset = self.dataset()
            self.tracking.update(dataset)
            if self.callback is not None:
                self.callback(dataset)
        self.last_flush = time.perf_counter()

    def _interrupted(self) -> Interrupted:
        done = self.collection.done
        text = f"interrupted: {int(done.sum())} of {done.size} runs are done"
        if self.store is not None:
            text += f" and kept in {self.store.folder}; run the same study again to go on"
        return Interrupted(text + ".", self._described_dataset())

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
            for block in exchange(self.local_blocks):
                self.collection.add(block)
        dataset = self._described_dataset()
        if self.tracking:
            self.tracking.end(dataset, "finished")
        return dataset

    def _described_dataset(self) -> xr.Dataset:
        """Return the results of this call, and write their attributes to the store."""
        dataset = self.dataset()
        if self.store is not None:
            recomputed = ("privacy", "not_covered")  # whenever the store is read
            self.store.describe({k: v for k, v in dataset.attrs.items() if k not in recomputed})
        return dataset

    def dataset(self) -> xr.Dataset:
        """The results so far, with the grid's coordinates, provenance and privacy statement."""
        study = self.study
        request = self.request
        axes = {axis.name: axis.labels for axis in study.axes}
        dataset = self.collection.dataset(
            axes, request.record_every, study.metrics, study.evaluated, study.of_servers
        )
        for axis in study.axes:
            extra_coords = {
                n: (axis.name, v)
                for n, v in axis.extra_coords.items()
                if n not in dataset.variables
            }
            dataset = dataset.assign_coords(extra_coords) if extra_coords else dataset
        dataset.attrs |= self._attributes()
        promises.state(dataset)
        return dataset

    def _attributes(self) -> dict[str, Any]:
        """Provenance of the results."""
        request = self.request
        choice = "; ".join(axis.choice for axis in self.study.axes if axis.choice)
        dtypes = {str(group.abstract.problem.dtype) for group in self.study.groups}
        return provenance(
            dtype="; ".join(sorted(dtypes)),
            prng=request.generator,
            root=request.root,
            record_every=request.record_every,
            keep_models=int(request.keep_models),
            independent_noise=int(request.independent_noise or bool(request.secret)),
            **({"noise_seed": origin_of(request.noise_seed)} if request.secret else {}),
            **({"callback": 1} if self.callback_saw_private else {}),
            **({"tuning": f"tuning not counted: {choice}"} if choice and self.private else {}),
            scenario=getattr(request.scenario, "__qualname__", repr(request.scenario)),
            **request_attributes(request.rounds, self.study.identities),
            decisions=recorded(group.decisions for group in self.study.groups),
            block=str(sorted(self.blocks_used)),
            run_seconds=max(0.0, self.ended - self.started),
            **self.timing,
        )
