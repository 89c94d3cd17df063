"""The records of a study, filled block by block, in memory."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from os import PathLike
from typing import Any

import numpy as np
import xarray as xr
from jax.experimental import multihost_utils

from fljax._memory import check_fits
from fljax.privacy import promises
from fljax.records import COUNTS, assemble, joined
from fljax.study import machine
from fljax.study.grid import label
from fljax.study.store import Block, Store, pack, unpack

__all__ = ["Collection", "exchange", "of_study", "read"]

#: What to do about results that do not fit.
SMALLER = (
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
        self.shape, self.seeds, self.records = shape, list(seeds), records
        self._row = {label: row for row, label in enumerate(labels)}
        self._column = {seed: column for column, seed in enumerate(seeds)}
        self._values: dict[str, np.ndarray] = {}
        self._counts: dict[str, _Counts] = {}
        #: [C, S] each  the runs that have a metric, which need not be one of all grid points
        self._measured: dict[str, np.ndarray] = {}
        #: [C, S]  records that are there, and how many there were when the run was stopped early.
        self.reached = np.zeros((len(labels), len(seeds)), int)
        self.stopped = np.zeros((len(labels), len(seeds)), int)

    @property
    def done(self) -> np.ndarray:
        """``[C, S]``: which runs are finished."""
        return (self.reached >= self.records) | (self.stopped > 0)

    def rows(self, labels: Sequence[str]) -> np.ndarray:
        """Rows of grid points in ``reached`` and ``done``."""
        return np.asarray([self._row[label] for label in labels])

    def add(self, block: Block) -> None:
        """Insert a block; values that the study did not request, or already has, are skipped."""
        beyond = block.last > self.records
        if block.first >= self.records or (beyond and "model" in block.outcome):
            return  # the models of a later round are not those asked for
        last, stopped = min(block.last, self.records), block.stopped and not beyond
        rows = np.asarray([self._row.get(point, -1) for point in block.points])
        columns = np.asarray([self._column.get(seed, -1) for seed in block.seeds])
        there = self.reached[rows][:, columns]
        # A stretch without the one before is of no use, nor is one that is there already.
        wanted = (block.first <= there) & (there < last) & (rows >= 0)[:, None] & (columns >= 0)
        points, seeds = np.nonzero(wanted)
        if not points.size:
            return
        row, to = rows[points], columns[seeds]
        for name, values in block.records.items():
            values = values[:, :, : last - block.first]
            if name in COUNTS and not any(values.strides[:2]):  # of all runs alike, held once
                values = values[:1, 0]
            else:
                values = values[seeds, points]
            if name in COUNTS:
                counts = self._counts.setdefault(name, _Counts(self.reached, self.records))
                counts.add(row, to, block.first, joined(values))
                continue
            whole = self._of(name, (self.records, *values.shape[2:]), values.dtype)
            whole[row, to, block.first : last] = values
            self._measured.setdefault(name, np.zeros_like(self.reached, bool))[row, to] = True
            if stopped:  # a stopped run keeps its model
                whole[row, to, last:] = values[:, -1:]
        for name, values in block.outcome.items():
            values = values[seeds, points]
            self._of(name, values.shape[1:], values.dtype)[row, to] = values
        self.reached[row, to] = last
        if stopped:
            self.stopped[row, to] = last

    def _of(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in self._values:
            missing = np.nan if dtype.kind in "fc" else 1 if dtype.kind == "b" else 0
            self._values[name] = np.full((*self.reached.shape, *shape), missing, dtype)
        return self._values[name]

    def require_room(self, records: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """Raise ``MemoryError`` unless there is memory for results still to be computed.

        Args:
          records: of some runs, as shapes ``[S, C, R, ...]``.
          outcome: the same, ``[S, C, ...]``.
        """
        new = {name: shape for name, shape in outcome.items() if name not in self._values}
        each = machine.result_bytes(records if not self._values else {}, new, self.records)
        runs = self.reached.size
        what = f"the dataset of {runs} runs"
        check_fits(what, runs, each=each, mend=SMALLER, on_host=True)

    def dataset(
        self,
        axes: Mapping[str, Sequence[Any]],
        record_every: int,
        metrics: Mapping[str, Mapping[str, Any]],
    ) -> xr.Dataset:
        """The results so far. If runs are missing, ``done`` marks the finished ones, and all other
        values of the missing runs are NaN, counts and booleans included, which are then floats.

        Args:
          axes: the grid's names and labels.
          record_every: number of rounds per record.
          metrics: attributes by name, see :func:`fljax.records.describe`.
        """
        dims = (*axes, "seed")
        shape = (*self.shape, len(self.seeds))
        values = self._values | {name: counts.so_far() for name, counts in self._counts.items()}
        shaped = {name: v.reshape(*shape, *v.shape[2:]) for name, v in values.items()}
        model = shaped.pop("model", None)
        rounds = self.records * record_every
        if "diverged" in shaped:  # a stored run may have gone on, and diverged only then
            shaped["diverged"] = np.where(shaped["diverged"] > rounds, 0, shaped["diverged"])
        coords = {**axes, "seed": self.seeds}
        dataset = assemble(shaped, dims, coords, rounds, record_every, metrics)
        if model is not None:
            dataset["model"] = ((*dims, "client", "parameter"), model)
        if self.stopped.any():
            attrs = {"long_name": "round at which the run was stopped early, 0 if it was not"}
            dataset["stopped"] = (dims, (self.stopped * record_every).reshape(shape), attrs)
        for name, values in list(dataset.variables.items()):
            if values.dtype.kind not in "biu" or name in values.dims:  # the axes are whole
                continue
            measured = self._measured.get(str(name), self.reached > 0)
            if not (self.done & measured).all():
                there = np.where(self.done, self.records, self.reached) * measured * record_every
                there = xr.DataArray(there.reshape(shape), dims=dims)
                there = dataset["round"] <= there if "round" in values.dims else there > 0
                # As floats have it from the start.
                dataset[name] = dataset[name].astype(float).where(there)
        if not self.done.all():
            dataset["done"] = (dims, self.done.reshape(shape))
        return dataset


class _Counts:
    """The traffic so far, ``[C, S, R]``, stored for one run only as long as all runs have the same.

    They do, unless it is random who sends what; stored for every run it would be most of the
    results' memory.

    Args:
      reached: ``[C, S]``, of the collection, which changes it when all of a block was added.
      records: per run.
    """

    def __init__(self, reached: np.ndarray, records: int) -> None:
        self.reached = reached
        self.common = np.zeros(records, np.int64)
        self.known = 0  # records there are of the run that all are like
        self.each: np.ndarray | None = None

    def add(self, row: np.ndarray, to: np.ndarray, first: int, more: np.ndarray) -> None:
        """What runs at some rows and columns sent from record to record, ``[n, records]``, or
        ``[1, records]`` of all alike.
        """
        last = first + more.shape[1]
        if self.each is None:
            so_far = np.cumsum(more[0]) + (self.common[first - 1] if first else 0)
            seen = slice(first, min(last, self.known))
            if (more == more[0]).all() and (so_far[: seen.stop - first] == self.common[seen]).all():
                self.common[first:last], self.known = so_far, max(last, self.known)
                return
            size = (*self.reached.shape, len(self.common))
            check_fits(
                f"the traffic of {self.reached.size} runs, which differs from run to run,",
                *size,
                each=(len(COUNTS) + 1) * 8,
                mend=SMALLER,
                on_host=True,
            )
            whole = self.so_far()
            self.each = whole if whole.flags.writeable else whole.copy()  # a view of one run's
        before = self.each[row, to, first - 1, None] if first else 0
        self.each[row, to, first:last] = before + np.cumsum(more, axis=1)
        self.each[row, to, last:] = self.each[row, to, last - 1, None]

    def so_far(self) -> np.ndarray:
        """Cumulative counts of every run; those of an unfinished run stay constant after its last
        record.
        """
        if self.each is not None:
            return self.each
        size = (*self.reached.shape, len(self.common))
        if self.known and (self.reached == len(self.common)).all():
            return np.broadcast_to(self.common, size)
        padded, whole = np.append(0, self.common), np.empty(size, np.int64)
        for row, reached in enumerate(self.reached):
            whole[row] = padded[np.minimum(np.arange(1, size[2] + 1), reached[:, None])]
        return whole


def read(folder: str | PathLike) -> xr.Dataset:
    """Read the part of a study that a store holds; if incomplete, ``done`` marks the finished runs.

    Raises:
      StoreError: no store.
    """
    store = Store(folder, lock=None, create=False)
    study = store.manifest()
    axes, identity = study["axes"], study["identity"]
    labels = [label(dict(zip(axes, point, strict=True))) for point in product(*axes.values())]
    every = identity["record_every"]
    shape = tuple(len(values) for values in axes.values())
    collection = Collection(labels, shape, study["seeds"], study["rounds"] // every)
    for block in store.blocks():
        collection.add(block)
    dataset = collection.dataset(axes, every, study["metrics"])
    programs = [point["program"] for point in study["points"].values()]
    dataset.attrs |= study["attributes"] | of_study(study["rounds"], programs)
    promises.state(dataset)
    return dataset


def of_study(rounds: int, programs: Iterable[str]) -> dict[str, Any]:
    """Attributes of the results that depend on how much was requested."""
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
