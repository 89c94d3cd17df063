"""The records of a study, filled block by block, in memory."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from os import PathLike
from typing import Any

import numpy as np
import xarray as xr
from jax.experimental import multihost_utils

from fljax._core.memory import check_fits
from fljax.metrics.names import COUNTS
from fljax.privacy import promises
from fljax.results.dataset import assemble, to_int64
from fljax.study import block_sizes
from fljax.study.grid import label
from fljax.study.store import Block, Store, pack, unpack

#: The remedy for results that do not fit into memory, in error messages.
REMEDY = (
    "record less often (record_every=), measure less, leave keep_models out, or run some of the "
    "seeds or grid points at a time and save each"
)


class Collection:
    """The records of a study, filled block by block.

    Args:
      labels: labels of all grid points, in the order of the grid.
      shape: shape of the grid.
      seeds: seeds of the study.
      records: number of records per run.
    """

    def __init__(
        self, labels: Sequence[str], shape: tuple[int, ...], seeds: Sequence[int], records: int
    ) -> None:
        self.shape = shape
        self.seeds = list(seeds)
        self.records = records
        self._row = {label: row for row, label in enumerate(labels)}
        self._column = {seed: column for column, seed in enumerate(seeds)}
        self._values: dict[str, np.ndarray] = {}
        self._counts: dict[str, _TrafficCounts] = {}
        #: [C, S] each  the runs that have a metric: grid points may have different metrics
        self._measured: dict[str, np.ndarray] = {}
        #: [C, S]  number of finished records, and their number if the run was stopped early
        self.finished_records = np.zeros((len(labels), len(seeds)), int)
        self.stopped = np.zeros((len(labels), len(seeds)), int)

    @property
    def done(self) -> np.ndarray:
        """``[C, S]``: which runs are finished."""
        return (self.finished_records >= self.records) | (self.stopped > 0)

    def rows(self, labels: Sequence[str]) -> np.ndarray:
        """Rows of grid points in ``finished_records`` and ``done``."""
        return np.asarray([self._row[label] for label in labels])

    def add(self, block: Block) -> None:
        """Insert a block; values that the study did not request, or already has, are skipped."""
        goes_beyond = block.last > self.records
        if block.first >= self.records or (goes_beyond and "model" in block.outcome):
            return  # the block has the models of a later round than the requested one
        last = min(block.last, self.records)
        stopped = block.stopped and not goes_beyond
        rows = np.asarray([self._row.get(point, -1) for point in block.points])
        columns = np.asarray([self._column.get(seed, -1) for seed in block.seeds])
        finished = self.finished_records[rows][:, columns]
        # Skip segments whose previous segment is missing, and segments that were added before.
        wanted = (
            (block.first <= finished) & (finished < last) & (rows >= 0)[:, None] & (columns >= 0)
        )
        points, seeds = np.nonzero(wanted)
        if not points.size:
            return
        row = rows[points]
        column = columns[seeds]
        for name, values in block.records.items():
            values = values[:, :, : last - block.first]
            if name in COUNTS and not any(values.strides[:2]):  # a broadcast view, the same for all
                values = values[:1, 0]
            else:
                values = values[seeds, points]
            if name in COUNTS:
                counts = self._counts.setdefault(
                    name, _TrafficCounts(self.finished_records, self.records)
                )
                counts.add(row, column, block.first, to_int64(values))
                continue
            array = self._of(name, (self.records, *values.shape[2:]), values.dtype)
            array[row, column, block.first : last] = values
            measured = np.zeros_like(self.finished_records, bool)
            self._measured.setdefault(name, measured)[row, column] = True
            if stopped:  # a stopped run keeps its model
                array[row, column, last:] = values[:, -1:]
        for name, values in block.outcome.items():
            values = values[seeds, points]
            self._of(name, values.shape[1:], values.dtype)[row, column] = values
        self.finished_records[row, column] = last
        if stopped:
            self.stopped[row, column] = last

    def _of(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in self._values:
            missing = np.nan if dtype.kind in "fc" else 1 if dtype.kind == "b" else 0
            self._values[name] = np.full((*self.finished_records.shape, *shape), missing, dtype)
        return self._values[name]

    def require_room(self, records: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """Raise ``MemoryError`` unless there is memory for results still to be computed.

        Args:
          records: of some runs, as shapes ``[S, C, R, ...]``.
          outcome: the same, ``[S, C, ...]``.
        """
        new = {name: shape for name, shape in outcome.items() if name not in self._values}
        run_bytes = block_sizes.result_bytes(records if not self._values else {}, new, self.records)
        runs = self.finished_records.size
        what = f"the dataset of {runs} runs"
        check_fits(what, runs, entry_bytes=run_bytes, mend=REMEDY, on_host=True)

    def dataset(
        self,
        axes: Mapping[str, Sequence[Any]],
        record_every: int,
        metrics: Mapping[str, Mapping[str, Any]],
        evaluated: Sequence[int] = (),
        of_servers: bool = False,
    ) -> xr.Dataset:
        """The results so far.

        If runs are missing, ``done`` marks the finished ones, and all other values of the missing
        runs are NaN. Counts and booleans are then floats.

        Args:
          axes: the grid's names and labels.
          record_every: number of rounds per record.
          metrics: attributes by name, see :func:`fljax.results.dataset.describe`.
          evaluated: the clients of a population that metrics evaluate, if not all.
          of_servers: whether models are of the servers of a population.
        """
        dims = (*axes, "seed")
        shape = (*self.shape, len(self.seeds))
        values = self._values | {name: counts.cumulative() for name, counts in self._counts.items()}
        shaped = {name: v.reshape(*shape, *v.shape[2:]) for name, v in values.items()}
        model = shaped.pop("model", None)
        rounds = self.records * record_every
        if "diverged" in shaped:  # a longer stored run may have diverged after these rounds
            shaped["diverged"] = np.where(shaped["diverged"] > rounds, 0, shaped["diverged"])
        coords = {**axes, "seed": self.seeds}
        if len(evaluated):
            coords["client"] = list(evaluated)
        dataset = assemble(shaped, dims, coords, rounds, record_every, metrics)
        if model is not None:
            of_server = model.ndim == len(dims) + 1  # the only one of a population
            owner = "server" if of_servers else "client"
            axes_of_model = ("parameter",) if of_server else (owner, "parameter")
            dataset["model"] = ((*dims, *axes_of_model), model)
        if self.stopped.any():
            attrs = {"long_name": "round at which the run was stopped early, 0 if it was not"}
            dataset["stopped"] = (dims, (self.stopped * record_every).reshape(shape), attrs)
        for name, values in list(dataset.variables.items()):
            if values.dtype.kind not in "biu" or name in values.dims:  # coordinates are complete
                continue
            measured = self._measured.get(str(name), self.finished_records > 0)
            if not (self.done & measured).all():
                last_round = (
                    np.where(self.done, self.records, self.finished_records)
                    * measured
                    * record_every
                )
                last_round = xr.DataArray(last_round.reshape(shape), dims=dims)
                last_round = (
                    dataset["round"] <= last_round if "round" in values.dims else last_round > 0
                )
                # Arrays of floats were initialized with NaN.
                dataset[name] = dataset[name].astype(float).where(last_round)
        if not self.done.all():
            dataset["done"] = (dims, self.done.reshape(shape))
        return dataset


class _TrafficCounts:
    """Cumulative traffic, ``[C, S, R]``, stored only once as long as it is the same for all runs.

    It is, unless the senders are random. Stored for every run, counts would take most of the
    memory of the results.

    Args:
      finished_records: ``[C, S]``, the array of the collection, updated after a block was added.
      records: number of records per run.

    Attributes:
      common: ``[R]``, the counts of all runs so far.
      common_records: number of records in ``common``.
      per_run: ``[C, S, R]`` once runs differ, else ``None``.
    """

    def __init__(self, finished_records: np.ndarray, records: int) -> None:
        self.finished_records = finished_records
        self.common = np.zeros(records, np.int64)
        self.common_records = 0
        self.per_run: np.ndarray | None = None

    def add(self, rows: np.ndarray, columns: np.ndarray, first: int, counts: np.ndarray) -> None:
        """Add the counts per record of runs at these rows and columns.

        They are ``[n, records]``, or ``[1, records]`` if they are the same for all runs.
        """
        last = first + counts.shape[1]
        if self.per_run is None:
            cumulative = np.cumsum(counts[0]) + (self.common[first - 1] if first else 0)
            known_records = slice(first, min(last, self.common_records))
            if (counts == counts[0]).all() and (
                cumulative[: known_records.stop - first] == self.common[known_records]
            ).all():
                self.common[first:last] = cumulative
                self.common_records = max(last, self.common_records)
                return
            size = (*self.finished_records.shape, len(self.common))
            check_fits(
                f"the traffic of {self.finished_records.size} runs, which differs from run to run,",
                *size,
                entry_bytes=(len(COUNTS) + 1) * 8,
                mend=REMEDY,
                on_host=True,
            )
            array = self.cumulative()
            self.per_run = array if array.flags.writeable else array.copy()  # a broadcast view
        previous = self.per_run[rows, columns, first - 1, None] if first else 0
        self.per_run[rows, columns, first:last] = previous + np.cumsum(counts, axis=1)
        self.per_run[rows, columns, last:] = self.per_run[rows, columns, last - 1, None]

    def cumulative(self) -> np.ndarray:
        """Cumulative counts of every run, constant after the last record of an unfinished run."""
        if self.per_run is not None:
            return self.per_run
        size = (*self.finished_records.shape, len(self.common))
        if self.common_records and (self.finished_records == len(self.common)).all():
            return np.broadcast_to(self.common, size)
        padded = np.append(0, self.common)
        array = np.empty(size, np.int64)
        for row, last_records in enumerate(self.finished_records):
            array[row] = padded[np.minimum(np.arange(1, size[2] + 1), last_records[:, None])]
        return array


def read(folder: str | PathLike) -> xr.Dataset:
    """Read the part of a study that a store holds; if incomplete, ``done`` marks the finished runs.

    Raises:
      StoreError: no store.
    """
    store = Store(folder, lock=None, create=False)
    study = store.manifest()
    axes = study["axes"]
    identity = study["identity"]
    labels = [label(dict(zip(axes, point, strict=True))) for point in product(*axes.values())]
    record_every = identity["record_every"]
    shape = tuple(len(values) for values in axes.values())
    collection = Collection(labels, shape, study["seeds"], study["rounds"] // record_every)
    for block in store.blocks():
        collection.add(block)
    dataset = collection.dataset(
        axes,
        record_every,
        study["metrics"],
        study.get("evaluated", ()),
        study.get("of_servers", False),
    )
    programs = [point["program"] for point in study["points"].values()]
    dataset.attrs |= study["attributes"] | request_attributes(study["rounds"], programs)
    promises.state(dataset)
    return dataset


def request_attributes(rounds: int, programs: Iterable[str]) -> dict[str, Any]:
    """Attributes of the results that depend on the requested rounds and grid points."""
    digest = hashlib.sha256("".join(sorted(set(programs))).encode())
    return {"rounds": rounds, "scenario_hash": digest.hexdigest()[:16]}


def exchange(blocks: Sequence[Block]) -> list[Block]:
    """Gather the results of all processes of a distributed study, in the order of the processes."""
    content = np.frombuffer(pack(blocks), np.uint8)
    lengths = multihost_utils.process_allgather(np.asarray(len(content), np.int32))
    padded = np.zeros(int(np.max(lengths)), np.uint8)
    padded[: len(content)] = content
    gathered = np.asarray(multihost_utils.process_allgather(padded))
    return [
        block
        for row, length in zip(gathered, np.ravel(lengths), strict=True)
        for block in unpack(row[: int(length)].tobytes())
    ]
