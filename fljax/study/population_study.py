"""A study over populations on disk: all grid points of a seed advance together.

The participants of a round depend on the seed and on the rule by which they are chosen, not on
models. So points with the same rule have the same participants, and their samples are read once
for all of these points (:func:`fljax.simulation.population_run.cohorts`). Each run is bit for bit
that of :func:`fljax.run` with the simulation and the key of this point and seed.

Each run is a block in the store; its state includes the algorithm's memory of clients.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax._core.memory import MEMORY_SHARE, check_fits, host_memory, memory_at_hand
from fljax._core.prng import GENERATORS
from fljax.simulation import population_run
from fljax.simulation.checkpoints import (
    CHECKPOINT_OF_CLIENTS,
    CHECKPOINT_SECONDS,
    from_each_process,
)
from fljax.simulation.population_run import CohortRun, cohorts, named_demand, with_partitioner
from fljax.study import block_sizes
from fljax.study.executor import StudyRun
from fljax.study.grid import NOISE, label_of, naming_point
from fljax.study.store import Block, StoreError

#: Seconds between two blocks of a run, as a multiple of the time to collect and store one.
LEAST_INTERVAL = 10.0

#: Copies of a run's state on the device: in use, and the arguments and results of a round.
STATES_AT_ONCE = 3


class PopulationStudyRun(StudyRun):
    """A :class:`StudyRun` whose runs are over populations on disk."""

    def execute(self) -> None:
        """Compute the missing runs, one seed after the other; store blocks of them."""
        self.last_blocks = time.monotonic()
        self.storing_seconds = 0.0
        self.run_bytes: dict[int, tuple[int, int]] = {}
        self.blocks_used.add(1)
        try:
            for column, seed in enumerate(self.request.seed_list):
                for points in self._advanced_together(column):
                    self._compute(points, seed)
        except BaseException as error:
            if self.store is not None:
                with contextlib.suppress(StoreError):  # perhaps the error itself
                    self.store.flush()
            if isinstance(error, KeyboardInterrupt):
                raise self._interrupted() from None
            raise
        self._flush()

    # Runs ----------------------------------------------------------------------------------------

    def _missing_points(self, column: int) -> list[tuple[int, int]]:
        """The points of a seed that are to be computed, as a group and a position in it."""
        missing = []
        for number, group in enumerate(self.study.groups):
            rows = self._missing_records(number)[:, column] >= 0
            missing += [(number, i) for i in range(len(group.positions)) if rows[i]]
        return missing

    def _advanced_together(self, column: int) -> Iterator[list[tuple[int, int]]]:
        """The missing points of a seed, as many at a time as there is memory for.

        Raises:
          MemoryError: the states that one run keeps of clients do not fit.
        """
        points = self._missing_points(column)
        if not points:
            return
        numbers = {number for number, _ in points}
        device, host = (max(sizes) for sizes in zip(*map(self._bytes_of_run, numbers), strict=True))
        check_fits(
            "the state that one run keeps of the clients of a population",
            host,
            entry_bytes=1,
            mend="take an algorithm that keeps none, or fljax.run(store=), which has it in a file",
            on_host=True,
        )
        fitting = memory_at_hand() // max(1, STATES_AT_ONCE * device)
        if host:
            fitting = min(fitting, int(MEMORY_SHARE * host_memory()) // host)
        size = max(1, fitting)
        if self.shares_runs:  # all processes compute the same rounds at the same time
            size = int(from_each_process(min(size, len(points))).min())
        for start in range(0, len(points), size):
            yield points[start : start + size]

    def _bytes_of_run(self, number: int) -> tuple[int, int]:
        """The most bytes of a run of a group on the device, and of its clients' states."""
        if number not in self.run_bytes:
            run = self._built(number, 0, 0)
            record_rows = min(run.problem.clients, len(run.shapes.here) * run.rounds)
            state = block_sizes.bytes_of(run.structure)
            self.run_bytes[number] = state, record_rows * run.states.record_size
        return self.run_bytes[number]

    def _built(self, number: int, position: int, seed: int) -> CohortRun:
        """The run of a grid point and seed, before its first round."""
        study = self.study
        group = study.groups[number]
        grid_position = group.positions[position]
        indexed_axes = zip(study.axes, grid_position, strict=True)
        values = {axis.name: axis.values[index] for axis, index in indexed_axes}
        root = jax.random.wrap_key_data(
            jnp.asarray(study.root_key), impl=GENERATORS[self.request.generator]
        )
        k_scenario, k_run = jax.random.split(jax.random.fold_in(root, np.uint32(seed)))
        for word in group.points.get(NOISE, np.zeros((position + 1, 0)))[position]:
            k_run = jax.random.fold_in(k_run, word)
        with naming_point(study.axes, grid_position):
            simulation = self.request.scenario(k_scenario, **values)
            shared = self.request.shard_over == "clients"
            return CohortRun(
                simulation, k_run, self.request.rounds, self.request.record_every, shared
            )

    def _compute(self, points: list[tuple[int, int]], seed: int) -> None:
        """Advance the runs of some points to their ends, round by round."""
        runs = [_PointRun(self, number, position, seed) for number, position in points]
        by_run = {id(point_run.run): point_run for point_run in runs}
        self.progress.start()
        self.started = min(self.started, time.perf_counter())
        shared = runs[0].run.shared
        due_round = 0
        is_due = False
        with with_partitioner(runs[0].run.key, shared), contextlib.ExitStack() as closing:
            for point_run in runs:
                closing.callback(point_run.run.states.close)
            for users, data in cohorts([point_run.run for point_run in runs]):
                users = [(run, participants) for run, participants in users if not run.ended]
                for run, participants in users:
                    with by_run[id(run)].named():
                        self._start_round(run, participants, data)
                del data  # frees the samples while the next ones are read
                for run, participants in users:
                    run.end_round(participants)
                    if run.number != due_round:  # all runs of a round are stored, or none is
                        due_round = run.number
                        is_due = self._is_due()
                    if by_run[id(run)].is_block(is_due):
                        self._store_block(by_run[id(run)])
                self.progress.update()
        self.ended = max(self.ended, time.perf_counter())

    def _start_round(self, run: CohortRun, participants: Any, data: Any) -> None:
        """Start a round, and count the programs that are compiled for it."""
        compiled = population_run.count_programs()
        began = time.perf_counter()
        run.start_round(participants, data)
        if added := population_run.count_programs() - compiled:
            self.timing["compilations"] += added
            self.timing["compile_seconds"] += time.perf_counter() - began

    # Blocks --------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Whether enough time has passed since the last blocks; processes that share a run cannot
        agree on that.
        """
        if self.shares_runs:
            return False
        wait = max(CHECKPOINT_SECONDS, LEAST_INTERVAL * self.storing_seconds)
        is_due = time.monotonic() - self.last_blocks >= wait
        if is_due:
            self.last_blocks = time.monotonic()
            self.storing_seconds = 0.0
        return is_due

    def _store_block(self, point_run: "_PointRun") -> None:
        """Collect the records of a run since its last block, with its state if there is a store."""
        began = time.monotonic()
        block = point_run.block(self.request.keep_models)
        is_last = point_run.run.number == point_run.run.rounds
        if (
            point_run.fixed_segment
            and not is_last
            and self._has_ended(block.records, block.outcome)
        ):
            point_run.run.ended = True
            block = block._replace(stopped=True)
        if self.store is not None and (self.keep_state or not (is_last or point_run.run.ended)):
            block = block._replace(state=point_run.state())
        self.uncollected[id(block)] = block
        self.ended = max(self.ended, time.perf_counter())
        self._collect_and_report(block)
        self.storing_seconds += time.monotonic() - began


class _PointRun:
    """The run of a grid point and a seed: its label and its blocks.

    Attributes:
      run: the run.
      fixed_segment: number of records between blocks, where it is given; 0: by the time.
    """

    def __init__(
        self, study_run: PopulationStudyRun, number: int, position: int, seed: int
    ) -> None:
        study = study_run.study
        request = study_run.request
        self.grid_position = study.groups[number].positions[position]
        self.axes = study.axes
        self.label = label_of(study.axes, self.grid_position)
        self.seed = seed
        self.run = study_run._built(number, position, seed)
        self.fixed_segment = 0
        if request.segment is not None:
            self.fixed_segment = request.segment // request.record_every
        elif study.until:
            self.fixed_segment = -(-request.records // 10)
        self.done = 0  # number of records in blocks
        collection = study_run.collection
        row = collection.rows([self.label])[0]
        done = int(collection.finished_records[row, collection.seeds.index(seed)])
        if done and study_run.store is not None:
            leaves = study_run.store.state([self.label], [seed], done)
            if leaves is None:  # the run starts again
                study_run._report_restart(1, done)
            else:
                self.run.restore(self._checkpoint(leaves))
                self.done = done

    def _checkpoint(self, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
        """The checkpoint whose arrays are the leaves of a state in the store."""
        carry = range(len(jax.tree.leaves(self.run.structure)))
        names = [*(f"carry/{i}" for i in carry), *CHECKPOINT_OF_CLIENTS, "number"]
        return {name: leaf[0, 0] for name, leaf in zip(sorted(names), leaves, strict=True)}

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Within, name the grid point in errors."""
        with naming_point(self.axes, self.grid_position), named_demand(self.run.template.algorithm):
            yield

    def is_block(self, is_due: bool) -> bool:
        """Whether the records since the last block are one now."""
        records, rest = divmod(self.run.number, self.run.record_every)
        if rest:
            return False
        if self.run.number == self.run.rounds:
            return True
        return records % self.fixed_segment == 0 if self.fixed_segment else is_due

    def block(self, keep_models: bool) -> Block:
        """The records since the last block, and the outcome so far."""
        run = self.run
        records = run.recorded()
        run.records.clear()
        outcome, ledger = run.outcome()
        if keep_models:
            model = run.model()
            outcome |= ledger if model is None else {**ledger, "model": model}
        first = self.done
        self.done = run.number // run.record_every
        records, outcome = jax.tree.map(lambda a: a[None, None], (records, outcome))
        return Block([self.label], [self.seed], first, False, records, outcome)

    def state(self) -> list[np.ndarray]:
        """The leaves of the state in the store, without the records, which are in blocks."""
        checkpoint = self.run.checkpoint()
        return [np.array(checkpoint[name])[None, None] for name in sorted(checkpoint)]
