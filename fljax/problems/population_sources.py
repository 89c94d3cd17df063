"""Populations whose samples stay where they are: in an Arrow file, or behind ``source[row]``.

A client's rows are read when the client takes part, straight into the arrays of its cohort. Arrow's
columns of numbers, and of lists of them of one length, are read from the memory-mapped file without
a copy in between; other sources give one row, or a list of rows, at a time.
"""

import hashlib
import importlib
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.partitions.partitioner import Partition
from fljax.problems.population_files import (
    Population,
    as_samples,
    checksum,
    rows_by_name,
    rows_of_partition,
)


class _SampleType(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


class SourcePopulation(Population):
    """The clients of a random-access source of rows, read in place a cohort at a time.

    It takes the place of a population of files (:func:`write_population`) in
    :meth:`Model.from_population <fljax.problems.Model.from_population>` and
    :func:`fljax.problems.from_population`: a run over it is bit for bit that over the same samples
    in files. Nothing is written, and memory holds a cohort and the numbers of each client's rows. A
    client's rows are read fastest where they stand together: sort the source by client.

    Args:
      source: a data set of Hugging Face's ``datasets`` (on disk, memory-mapped) or a
        ``pyarrow.Table`` (of ``pyarrow.memory_map``, for instance); or any object with ``len`` and
        ``source[row]`` (``grain``'s sources and ``MapDataset``, a list), whose rows are mappings or
        tuples. Its method ``__getitems__``, if there is one, is called with lists of rows.
      client: the column of the clients' names, text or numbers; the names themselves, one of each
        row; or a partition of the rows.
      features: the column of the features, or the position in a row that is a tuple.
      target: the column of the targets.
      version: a name of the contents, by which stores recognize them. By default the fingerprint of
        a data set of ``datasets``, or else a hash of all samples, for which a study or a store
        reads the source once.

    Raises:
      TypeError: no source, samples that are not arrays of numbers.
      ValueError: no such column, no rows, a row without a client, names or a partition of another
        number of rows; when a client is read, samples of another shape or type than the first
        client's, or numbers that are not finite.

    Example:
      >>> import fljax as fl
      >>> rows = [{"who": who, "x": [float(i)], "y": i % 2} for i, who in enumerate("abab")]
      >>> population = fl.data.SourcePopulation(rows, client="who", features="x", target="y")
      >>> population.names, population[1][0].tolist()
      (['a', 'b'], [[1.0], [3.0]])
    """

    @checked
    def __init__(
        self,
        source: Any,
        client: str | int | Partition | Sequence[Any] | np.ndarray,
        features: str | int,
        target: str | int,
        *,
        version: str | None = None,
    ) -> None:
        self._arguments = source, client, features, target, version
        is_column = isinstance(client, str | int)
        needed = [client, features, target] if is_column else [features, target]
        self._reader = _reader_of(source, needed, (features, target))
        count = len(source)
        if not count:
            raise ValueError("the source has no rows.")
        if isinstance(client, Partition):
            groups = rows_of_partition(client, count)
        else:
            owners = checks.names("client", self._reader.column(client) if is_column else client)
            if len(owners) != count:
                raise ValueError(
                    f"client must name the client of each of the {count} rows, got {len(owners)}."
                )
            groups = rows_by_name(owners)
        pairs = list(groups)
        self.names = [name for name, _ in pairs]
        self.sizes = np.array([len(rows) for _, rows in pairs], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self._rows = np.concatenate([rows for _, rows in pairs])
        self._most_samples = {}
        self._lock = threading.Lock()
        self._features, self._targets = (
            _SampleType(rows.shape[1:], rows.dtype) for rows in self._samples(0)
        )
        fingerprint = getattr(source, "_fingerprint", None)  # of a data set of `datasets`
        self._version = version or (fingerprint if isinstance(fingerprint, str) else None)
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """A hash of all its contents."""
        if self._digest is None:
            digest = hashlib.sha256(repr((self.features, self.targets, self.names)).encode())
            digest.update(self._rows.tobytes())
            if self._version is not None:
                digest.update(repr((self._version, self._arguments[2:4])).encode())
            else:
                for client in range(len(self)):
                    digest.update(checksum(*self._samples(client)).to_bytes(4, "little"))
            self._digest = digest.hexdigest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, SourcePopulation)
            and np.array_equal(self._rows, other._rows)
            and self.digest == other.digest
        )

    def __hash__(self) -> int:
        return zlib.crc32(self.sizes.tobytes())  # without reading the samples

    def __reduce__(self) -> Any:
        return _reopened, self._arguments

    def __repr__(self) -> str:
        return (
            f"SourcePopulation({type(self._arguments[0]).__name__}: {len(self):,} clients, "
            f"{len(self._rows):,} samples {self.features[1]}{list(self.features[0])})"
        )

    def _samples(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """The checked samples of a client."""
        rows = self._rows[self._starts[client] : self._starts[client + 1]]
        with self._lock:
            try:
                features, targets = self._reader.read(rows)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise ValueError(
                    f"the samples of {self._label(client)} cannot be read: {error}"
                ) from error
        known = [self._features, self._targets] if hasattr(self, "_features") else []
        return as_samples(client, (features, targets, self.names[client]), known)[:2]

    def _read(self, client: int, features: np.ndarray, targets: np.ndarray) -> None:
        features[...], targets[...] = self._samples(client)


def _reopened(
    source: Any, client: Any, features: str | int, target: str | int, version: str | None
) -> SourcePopulation:
    return SourcePopulation(source, client, features, target, version=version)


class _Items:
    """Rows of a source that gives them one at a time, or a list of them."""

    def __init__(self, source: Any, columns: tuple[str | int, str | int]) -> None:
        self.source = source
        self.columns = columns

    def _items(self, rows: np.ndarray) -> Any:
        numbers = rows.tolist()
        if hasattr(self.source, "__getitems__"):
            return self.source.__getitems__(numbers)
        return [self.source[number] for number in numbers]

    def column(self, name: str | int) -> list[Any]:
        return [self._entry(self.source[row], name) for row in range(len(self.source))]

    def read(self, rows: np.ndarray) -> list[Any]:
        items = self._items(rows)
        return [
            np.stack([np.asarray(self._entry(item, name)) for item in items])
            for name in self.columns
        ]

    def _entry(self, item: Any, name: str | int) -> Any:
        try:
            return item[name]
        except (KeyError, IndexError, TypeError):
            raise ValueError(
                f"no {name!r} in a row; rows must be mappings from names or tuples, got "
                f"{checks.shown(item)}."
            ) from None


class _ArrowRows:
    """Rows of a ``pyarrow.Table``, or of the table of a data set of ``datasets``."""

    def __init__(self, source: Any, columns: tuple[Any, Any], is_table: bool) -> None:
        self.source = source
        self.columns = columns
        self.is_table = is_table
        self.table = source if is_table else source.with_format("arrow", columns=[*columns])

    def column(self, name: str | int) -> Any:
        column = self.source[name]
        return column.to_numpy() if self.is_table else column

    def read(self, rows: np.ndarray) -> list[Any]:
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows):  # in order: a view of the file
            together = slice(first, last)
            table = self.table.slice(first, len(rows)) if self.is_table else self.table[together]
        else:
            table = self.table.take(rows) if self.is_table else self.table[rows.tolist()]
        arrays = [_numbers_of(table[name]) for name in self.columns]
        if any(array is None for array in arrays) and not self.is_table:
            decoded = self.source[rows.tolist()]  # images, for instance
            arrays = [
                np.stack([np.asarray(entry) for entry in decoded[name]]) if array is None else array
                for name, array in zip(self.columns, arrays, strict=True)
            ]
        return arrays


def _reader_of(
    source: Any, needed: Sequence[str | int], columns: tuple[str | int, str | int]
) -> _ArrowRows | _Items:
    """How rows of a source are read.

    Args:
      source: as in :class:`SourcePopulation`.
      needed: the columns that it must have.
      columns: the columns of the features and targets.

    Raises:
      TypeError: no source of rows.
      ValueError: a column that the source does not have.
    """
    if isinstance(source, str | bytes | Mapping) or not (
        hasattr(source, "__len__") and hasattr(source, "__getitem__")
    ):
        raise TypeError(
            "source must have len(source) and source[row], as a data set of Hugging Face's "
            "datasets, a pyarrow.Table or a list of rows do; of a mapping or a DataFrame take "
            f"fljax.data.clients_of_dataset and write_population. Got {checks.shown(source)}."
        )
    if checks.is_frame(source):
        raise TypeError(
            "a DataFrame is in memory as it is; take fljax.data.clients_of_dataset and "
            "write_population, or give a pyarrow.Table."
        )
    names = checks.column_names(source)
    if names is not None:
        for name in needed:
            if name not in names:
                raise ValueError(f"no column {name!r}; there are {', '.join(map(repr, names))}.")
    is_table = hasattr(source, "slice") and hasattr(source, "take") and names is not None
    if is_table or hasattr(source, "with_format"):
        return _ArrowRows(source, columns, is_table)
    return _Items(source, columns)


def _numbers_of(column: Any) -> np.ndarray | None:
    """A column of numbers, or of nested lists of them of one length, as an array; ``None`` for
    other types.

    Raises:
      ValueError: a missing entry, lists of different lengths.
    """
    pa = importlib.import_module("pyarrow")  # of which the column is
    pc = importlib.import_module("pyarrow.compute")
    # Joining chunks copies them, a single one as well.
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    shape = [len(array)]
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if array.null_count:
            raise ValueError("a row has nothing in a column; leave the row out, or fill it in.")
        if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)) and not (
            pa.types.is_fixed_size_list(array.type)
        ):
            break
        lengths = pc.list_value_length(array)
        if pc.min(lengths).as_py() != pc.max(lengths).as_py():
            raise ValueError("lists of a column have different lengths, and samples have one.")
        shape.append(pc.min(lengths).as_py())
        array = array.flatten()
    kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean
    if not any(of_kind(array.type) for of_kind in kinds):
        return None
    return array.to_numpy(zero_copy_only=False).reshape(shape)
