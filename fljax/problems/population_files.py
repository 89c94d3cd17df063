"""Populations on disk: the samples of any number of clients, read a cohort at a time.

A population is a folder. ``features.npy`` and ``targets.npy`` hold the samples of all clients, one
client after the other (NumPy's own format: ``numpy.load(..., mmap_mode="r")`` opens them as well);
``clients.npy`` how many each has and a checksum of them; ``names.json`` their names, if they have
any; and ``population.json`` the shapes, and a digest of all that. The folder appears under its name
only when it is whole.

A client's samples stand together, so a cohort of :math:`M` clients is read by :math:`2M` reads of
consecutive bytes, for any number of clients; nothing else is kept in memory than two numbers
of each client. (``experiments/benchmarks/population.py`` compares formats.)
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax._core import checks, storage
from fljax._core.annotations import checked
from fljax.partitions.partitioner import Partition

FORMAT = 1
MANIFEST = "population.json"

#: Types of samples: bytes of a file become numbers, and nothing else.
TYPES = r"<(f[248]|[iu][248])|\|[iu]1"

#: A client's entry in ``clients.npy``.
ENTRY = np.dtype([("samples", "<i8"), ("checksum", "<u4")])


class CohortSamples(NamedTuple):
    """The samples of some clients of a population, padded to its largest client."""

    features: np.ndarray  # [M, N, ...]
    targets: np.ndarray  # [M, N, ...]
    sizes: np.ndarray  # [M]  numbers of samples; what comes after them repeats the last one


class PooledSamples(NamedTuple):
    """The samples of some clients of a population, one client's after the other's."""

    features: np.ndarray  # [R, ...]
    targets: np.ndarray  # [R, ...]
    starts: np.ndarray  # [M]  the first row of each
    sizes: np.ndarray  # [M]  numbers of samples; zero where a client is listed again


class Population:
    """The clients of a population on disk, opened.

    Args:
      folder: as written by :func:`write_population`.

    Raises:
      FileNotFoundError: no such folder, or no population in it.
      ValueError: a folder of another format, a file that is truncated or of other contents than the
        population was written with. (Samples are compared with their checksum when they are read.)

    Attributes:
      folder: where it is.
      sizes: ``[K]``, the number of samples of each client.
      names: ``[K]``, of the clients, or ``None``.
      digest: of all its contents; two populations with the same one are the same.

    Example:
      >>> import pathlib, tempfile, numpy as np, fljax as fl
      >>> clients = [(np.full((n, 2), n, "f4"), np.zeros(n, "i4")) for n in (3, 1, 2)]
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     population = fl.data.write_population(pathlib.Path(folder) / "three", clients)
      ...     len(population), population.sizes.tolist(), population[2][0].tolist()
      (3, [3, 1, 2], [[2.0, 2.0], [2.0, 2.0]])
    """

    @checked
    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        try:
            about = self._json(MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"no population in {str(self.folder)!r}: it has no {MANIFEST}; write one with "
                "fljax.data.write_population."
            ) from None
        if not _is_manifest(about):
            raise ValueError(
                f"{self.folder / MANIFEST} is not of a population of format {FORMAT}; write it "
                "again with this version of fljax."
            )
        entries = self._load_array("clients.npy", ENTRY)
        self.sizes = np.ascontiguousarray(entries["samples"])
        self._checksums = np.ascontiguousarray(entries["checksum"])
        self.names = self._json("names.json") if about["named"] else None
        self.digest = about["digest"]
        if self.digest != _digest(about, entries, self.names) or not self.sizes.all():
            raise ValueError(
                f"the population in {str(self.folder)!r} was changed since it was written: "
                f"{MANIFEST}, clients.npy or names.json are not what they were; write it again."
            )
        self._most_samples: dict[int, int] = {}
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self._features = _Samples(self.folder / "features.npy", about["features"], self._starts)
        self._targets = _Samples(self.folder / "targets.npy", about["targets"], self._starts)

    def _json(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.folder / name} is not JSON: {error}.") from None

    def _load_array(self, name: str, dtype: np.dtype) -> np.ndarray:
        try:
            entries = np.load(self.folder / name, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{self.folder / name} cannot be read: {error}.") from None
        if entries.dtype != dtype or entries.ndim != 1:
            raise ValueError(f"{self.folder / name} is not of a population; write it again.")
        return entries

    def __len__(self) -> int:
        return len(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Population) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> Any:
        return Population, (str(self.folder),)

    def __repr__(self) -> str:
        return (
            f"Population({str(self.folder)!r}: {len(self):,} clients, {int(self._starts[-1]):,} "
            f"samples {self.features[1]}{list(self.features[0])})"
        )

    @property
    def features(self) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of a sample's features."""
        return self._features.shape, self._features.dtype

    @property
    def targets(self) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of a sample's target."""
        return self._targets.shape, self._targets.dtype

    @property
    def largest(self) -> int:
        """The number of samples of the client with the most."""
        return int(self.sizes.max())

    def __getitem__(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """The features and targets of one client, ``[D_k, ...]`` each."""
        if not (checks.is_whole(client) and 0 <= client < len(self)):
            raise IndexError(
                f"clients are numbered from 0 to {len(self) - 1}, got {checks.shown(client)}."
            )
        features, targets = (
            np.empty((int(self.sizes[client]), *part.shape), part.dtype)
            for part in (self._features, self._targets)
        )
        self._read(int(client), features, targets)
        return features, targets

    def read(self, clients: Sequence[int] | np.ndarray) -> CohortSamples:
        """The samples of some clients, ``[M, N, ...]``, padded to the population's largest.

        Args:
          clients: ``[M]``, their numbers.

        Raises:
          IndexError: a number without a client.
          ValueError: samples that were changed since they were written.
        """
        numbers = self._numbers(clients)
        shape = len(numbers), self.largest
        features = np.empty((*shape, *self._features.shape), self._features.dtype)
        targets = np.empty((*shape, *self._targets.shape), self._targets.dtype)
        sizes = self.sizes[numbers]
        for row, (client, size) in enumerate(zip(numbers.tolist(), sizes.tolist(), strict=True)):
            self._read(client, features[row, :size], targets[row, :size])
            # As in memory: a repeated sample is valid input for any network.
            features[row, size:] = features[row, size - 1]
            targets[row, size:] = targets[row, size - 1]
        return CohortSamples(features, targets, sizes)

    def _numbers(self, clients: Any) -> np.ndarray:
        numbers = np.asarray(clients)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise TypeError(f"clients must be a list of numbers, got {checks.shown(clients)}.")
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(
                f"clients are numbered from 0 to {len(self) - 1}, got {checks.shown(clients)}."
            )
        return numbers

    def most_samples(self, clients: int) -> int:
        """The largest number of samples that this number of clients have together."""
        if clients not in self._most_samples:
            sizes = np.partition(self.sizes, len(self) - clients)
            self._most_samples[clients] = int(sizes[len(self) - clients :].sum())
        return self._most_samples[clients]

    def read_pooled(self, clients: Sequence[int] | np.ndarray) -> PooledSamples:
        """The samples of some clients, each client's once, in the :meth:`most_samples` rows that
        any choice of as many clients needs at most; the last ones are zeros.

        Args:
          clients: ``[M]``, their numbers.

        Raises:
          IndexError, TypeError, ValueError: as :meth:`read`.
        """
        numbers = self._numbers(clients)
        rows = self.most_samples(len(numbers))
        features = np.zeros((rows, *self._features.shape), self._features.dtype)
        targets = np.zeros((rows, *self._targets.shape), self._targets.dtype)
        sizes = np.zeros(len(numbers), np.int64)
        firsts = np.unique(numbers, return_index=True)[1]
        sizes[firsts] = self.sizes[numbers[firsts]]
        starts = np.cumsum(sizes) - sizes
        for row in np.sort(firsts).tolist():
            part = slice(starts[row], starts[row] + sizes[row])
            self._read(int(numbers[row]), features[part], targets[part])
        return PooledSamples(features, targets, starts, sizes)

    def _read(self, client: int, features: np.ndarray, targets: np.ndarray) -> None:
        """Fill arrays with the samples of a client."""
        self._features.into(client, features)
        self._targets.into(client, targets)
        if checksum(features, targets) != self._checksums[client]:
            raise ValueError(
                f"the samples of {self._label(client)} in {str(self.folder)!r} were changed since "
                "the population was written; write it again."
            )

    def _label(self, client: int) -> str:
        name = "" if self.names is None else f" ({self.names[client]!r})"
        return f"client {client}{name}"


def _is_manifest(about: object) -> bool:
    """Whether a manifest is of the form that :func:`write_population` writes."""
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        return False
    for name in ("features", "targets"):
        part = about.get(name)
        if not isinstance(part, dict) or not isinstance(part.get("shape"), list):
            return False
        if not re.fullmatch(TYPES, str(part.get("dtype"))):
            return False
        if not all(checks.is_whole(size) and size > 0 for size in part["shape"]):
            return False
    return isinstance(about.get("named"), bool) and isinstance(about.get("digest"), str)


class _Samples:
    """One of the two files of samples."""

    def __init__(self, path: Path, about: Mapping[str, Any], starts: np.ndarray) -> None:
        self.path = path
        self.starts = starts
        self.shape = tuple(about["shape"])
        self.dtype = np.dtype(about["dtype"])
        self._lock = threading.Lock()
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (as long as the population)
        except FileNotFoundError:
            raise FileNotFoundError(f"the population has no {path}; write it again.") from None
        try:
            version = np.lib.format.read_magic(self._file)
            header = np.lib.format.read_array_header_1_0(self._file)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is not NumPy's: {error}.") from None
        wanted = ((int(starts[-1]), *self.shape), False, self.dtype)
        if version != (1, 0) or header != wanted:
            raise ValueError(
                f"{path} must hold {wanted[2]}{list(wanted[0])}, got {header[2]}{list(header[0])}; "
                "write the population again."
            )
        self._begin = self._file.tell()
        self._each = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        size = os.fstat(self._file.fileno()).st_size
        expected = self._begin + self._each * starts[-1]
        if size != expected:
            raise ValueError(
                f"{path} is truncated: {size:,} bytes of {expected:,}; write the population again."
            )

    def into(self, client: int, rows: np.ndarray) -> None:
        """Fill consecutive rows with a client's."""
        view = _bytes(rows)
        with self._lock:
            self._file.seek(self._begin + self._each * int(self.starts[client]))
            while len(view):
                got = self._file.readinto(view)
                if not got:
                    raise ValueError(f"{self.path} ends before the samples of client {client}.")
                view = view[got:]


def _bytes(rows: np.ndarray) -> memoryview:
    """The bytes of consecutive rows, not copied."""
    return memoryview(rows.reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]


def checksum(features: np.ndarray, targets: np.ndarray) -> int:
    return zlib.crc32(_bytes(targets), zlib.crc32(_bytes(features)))


def _digest(about: Mapping[str, Any], entries: np.ndarray, names: list[str] | None) -> str:
    described = {name: about[name] for name in ("format", "features", "targets")}
    digest = hashlib.sha256(json.dumps([described, names], sort_keys=True).encode())
    digest.update(entries.tobytes())
    return digest.hexdigest()


@checked
def write_population(folder: str | os.PathLike, clients: Iterable[tuple[Any, ...]]) -> Population:
    """Write a population, one client at a time.

    Args:
      folder: where it will be; it must not exist.
      clients: of each client its features ``[D_k, ...]`` and targets ``[D_k, ...]``, and possibly
        its name: a list, or an iterator. Types are taken from the first
        client's arrays; whole numbers (images of bytes, words) take the least room and stay whole
        numbers in the network's input.

    Returns:
      The population, opened.

    Raises:
      FileExistsError: the folder exists.
      TypeError: a client that is not a pair of arrays of numbers.
      ValueError: no clients, a client without samples, of another shape or type than the first, or
        with numbers that are not finite; a name that two have, or only some have.
      OSError: a disk that is full, or cannot be written; the files written so far are removed.

    Example:
      >>> import pathlib, tempfile, numpy as np, fljax as fl
      >>> def clients():  # as they come, one in memory at a time
      ...     for writer in ("ada", "grace"):
      ...         yield np.zeros((5, 28, 28, 1), np.uint8), np.arange(5), writer
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     fl.data.write_population(pathlib.Path(folder) / "writers", clients()).names
      ['ada', 'grace']
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(
            f"{str(folder)!r} exists; a population is written once, into a new folder."
        )
    storage.parent(folder)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        _write(partial, clients)
        os.rename(partial, folder)
    except OSError as error:
        if error.filename is None and error.errno is not None:
            wanted = f"the population in {str(folder)!r} could not be written"
            raise OSError(error.errno, f"{wanted}: {error.strerror}") from error
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(partial)
    return Population(folder)


class _Growing:
    """A file of samples that is being written, of the shape and type of the first client's."""

    def __init__(self, path: Path, name: str, first: np.ndarray) -> None:
        self.name = name
        self.shape = first.shape[1:]
        self.dtype = first.dtype
        self.total = 0
        self.file = open(path, "wb")  # noqa: SIM115 (closed at the end)
        self._header()

    def _header(self) -> None:
        shape = (self.total, *self.shape)
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        # It leaves room for a first axis of any length.
        np.lib.format.write_array_header_1_0(self.file, about)

    def add(self, rows: np.ndarray) -> None:
        self.file.write(_bytes(rows))
        self.total += len(rows)

    def finish(self) -> dict[str, Any]:
        """Complete the file; return the manifest's entry of its samples."""
        self.file.seek(0)
        self._header()
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"shape": list(self.shape), "dtype": self.dtype.str}


def _write(folder: Path, clients: Iterable[object]) -> None:
    """Write all files of a population; the manifest is last, so that an interrupted write is not
    taken for a population.
    """
    entries = bytearray()
    names = []
    parts: list[_Growing] = []
    try:
        for number, client in enumerate(clients):
            features, targets, name = as_samples(number, client, parts)
            if not parts:
                for part, rows in (("features", features), ("targets", targets)):
                    parts.append(_Growing(folder / f"{part}.npy", part, rows))
            for part, rows in zip(parts, (features, targets), strict=True):
                part.add(rows)
            entries += np.array((len(features), checksum(features, targets)), ENTRY).tobytes()
            names.append(name)
        if not parts:
            raise ValueError("a population needs at least one client, got none.")
        about: dict[str, Any] = {part.name: part.finish() for part in parts}
    finally:
        for part in parts:
            part.file.close()
    named = _checked_names(names)
    table = np.frombuffer(bytes(entries), ENTRY)
    with open(folder / "clients.npy", "wb") as file:
        np.save(file, table)
    if named is not None:
        (folder / "names.json").write_text(json.dumps(named), encoding="utf-8")
    about |= {"format": FORMAT, "named": named is not None}
    about |= {"clients": len(table), "samples": int(table["samples"].sum())}
    about["digest"] = _digest(about, table, named)
    (folder / MANIFEST).write_text(json.dumps(about, indent=1), encoding="utf-8")


def _stored_type(dtype: np.dtype) -> np.dtype:
    """The type that numbers are written in: the same where NumPy's files can hold it."""
    if dtype == np.bool_:
        return np.dtype(np.int32)
    if re.fullmatch(TYPES, dtype.newbyteorder("<").str):
        return dtype.newbyteorder("<")
    # JAX's small types fit into single precision; an extended one differs between machines.
    return np.dtype("<f4" if dtype.itemsize < 4 else "<f8")


def as_samples(
    number: int, client: object, parts: Sequence[Any]
) -> tuple[np.ndarray, np.ndarray, str | None]:
    """The arrays of a client, as they are written, and its name.

    Args:
      number: of the client, for error messages.
      client: its features and targets, and possibly its name.
      parts: of the features and targets of the first client, ``shape`` and ``dtype`` of a sample;
        empty if this is the first.
    """
    if not isinstance(client, Sequence) or len(client) not in (2, 3):
        raise TypeError(
            f"client {number} must be (features, targets) or (features, targets, name), got "
            f"{checks.shown(client)}."
        )
    if len(client) == 3 and checks.is_missing(client[2]):
        raise ValueError(
            f"client {number} must have a name, got {client[2]}; leave its samples out, or give "
            "them one."
        )
    name = str(client[2]) if len(client) == 3 else None
    called = f"client {number}" + ("" if name is None else f" ({name!r})")
    arrays = []
    for part, values in zip(("features", "targets"), client[:2], strict=True):
        rows = np.asarray(checks.array(f"{part} of {called}", values))
        _check_whole(f"{part} of {called}", values, rows)
        rows = rows.astype(_stored_type(rows.dtype), copy=False)
        if rows.ndim < 1 or 0 in rows.shape:
            what = "has no samples" if rows.shape[:1] == (0,) else f"has {part} of an empty shape"
            raise ValueError(f"{called} {what}; leave it out of the population.")
        if parts:
            first = parts[len(arrays)]
            if rows.shape[1:] != first.shape:
                raise ValueError(
                    f"{called} must have {part} [samples, {', '.join(map(str, first.shape))}] as "
                    f"the first client, got {list(rows.shape)}."
                )
            if not np.can_cast(rows.dtype, first.dtype, "same_kind"):
                raise ValueError(
                    f"{called} must have {part} of type {first.dtype} as the first client, got "
                    f"{rows.dtype}."
                )
            stored = rows.astype(first.dtype, copy=False)
            # Compared as integers: different ones may be equal as floats.
            if rows.dtype.kind in "iu" and np.any(stored.astype(rows.dtype) != rows):
                raise ValueError(
                    f"{called} has {part} that {first.dtype}, the first client's type, cannot hold."
                )
            rows = stored
        checks.finite(f"{part} of {called}", rows)
        arrays.append(np.ascontiguousarray(rows))
    if len(arrays[0]) != len(arrays[1]):
        raise ValueError(
            f"{called} must have one target of each of its {len(arrays[0])} samples, got "
            f"{len(arrays[1])}."
        )
    return arrays[0], arrays[1], name


def _check_whole(what: str, values: object, rows: np.ndarray) -> None:
    """Raise ``ValueError`` for whole numbers in a list that became other ones as floats."""
    if not isinstance(values, list | tuple) or rows.dtype.kind != "f":
        return
    if rows.size and np.max(np.abs(rows)) >= 2**53:
        for entry in jax.tree.leaves(values):
            if isinstance(entry, int) and int(float(entry)) != entry:
                raise ValueError(
                    f"{what} hold {entry} beside numbers of another type, and {rows.dtype} cannot "
                    "hold it; give an array of one type."
                )


def _checked_names(names: list[str | None]) -> list[str] | None:
    if all(name is None for name in names):
        return None
    if None in names:
        raise ValueError(
            f"client {names.index(None)} has no name, and others have; give all of them one."
        )
    if len(set(names)) < len(names):
        previous: set[str | None] = set()
        twice = next(name for name in names if name in previous or previous.add(name))
        raise ValueError(f"two clients are called {twice!r}; join their samples into one client.")
    return names  # pyright: ignore[reportReturnType]


@checked
def clients_of_dataset(
    dataset: Any, client: str | Partition, features: str, target: str
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """The clients of a table, one after the other: by a column that says whose a sample is, or by
    a partition of its rows.

    The samples of one client are read at a time, so that columns may be larger than memory
    (``numpy.load(path, mmap_mode="r")``).

    Args:
      dataset: one of Hugging Face's ``datasets``, a ``DataFrame`` of any index, or a mapping from
        names to columns: what ``dataset[name]`` gives, and for rows at a time ``dataset.select``.
      client: the column of the clients' names, text or numbers; or a partition, such as
        ``fl.partitions.Dirichlet(0.5).draw(0, labels, clients=1000)``, whose clients are named by
        their numbers.
      features: the column of the features.
      target: the column of the targets.

    Returns:
      For :func:`write_population`: clients in the order of their names' first appearance, or of a
      partition.

    Raises:
      TypeError: no data set.
      ValueError: no such column; the existing ones are named. A row without a client, features or a
        target; columns of different lengths; clients named partly by text and partly by numbers,
        since ``"1"`` and ``1`` would be one client or two; a partition of other rows, or with a
        client without any.

    Example:
      >>> table = {"who": ["b", "a", "b"], "x": [[1.0], [2.0], [3.0]], "y": [0, 1, 1]}
      >>> clients = clients_of_dataset(table, client="who", features="x", target="y")
      >>> [(x.tolist(), y.tolist(), name) for x, y, name in clients]
      [([[1.0], [3.0]], [0, 1], 'b'), ([[2.0]], [1], 'a')]
    """
    names = checks.column_names(dataset)
    if names is None:
        raise TypeError(
            "dataset must have named columns: a data set of Hugging Face's datasets, a DataFrame "
            f"or a mapping from names to columns, got {checks.shown(dataset)}."
        )
    by_column = [client] if isinstance(client, str) else []
    for name in (*by_column, features, target):
        if name not in names:
            raise ValueError(f"no column {name!r}; there are {', '.join(map(repr, names))}.")
    owners = {name: checks.names(f"column {name!r}", dataset[name]) for name in by_column}
    # A table on disk selects rows by number; other tables are read by columns.
    if hasattr(dataset, "select") and not checks.is_frame(dataset):
        select = dataset.select
        count = len(dataset) if isinstance(client, Partition) else 0
    else:
        columns = {name: _by_position(name, dataset[name]) for name in (features, target)}
        count = checks.common_length({**owners, **columns})

        def select(rows: np.ndarray) -> dict[str, Any]:
            return {name: [column[row] for row in rows] for name, column in columns.items()}

    if isinstance(client, Partition):
        groups = rows_of_partition(client, count)
    else:
        groups = rows_by_name(owners[client])
    return _samples_of(groups, features, target, select)


def _by_position(name: str, column: Any) -> Any:
    """A column whose entries are found by row number, not by the index of a frame.

    Raises:
      ValueError: a missing entry, with its row.
    """
    column = column.to_numpy() if checks.is_frame(column) else column
    if np.ndim(column[0] if len(column) else 0) == 0:
        column = np.asarray(checks.column(f"column {name!r}", column))
        for row in np.flatnonzero([checks.is_missing(entry) for entry in column.tolist()]):
            raise ValueError(
                f"column {name!r} has nothing in row {row}; leave the row out, or fill it in."
            )
        if column.dtype.kind == "O":
            column = column.tolist()
    return column


def rows_by_name(owner: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Each client's name and rows, in the order of their first appearance."""
    _, first, inverse = np.unique(owner, return_index=True, return_inverse=True)
    first_row = first[inverse.reshape(-1)]  # where its client appeared first
    order = np.argsort(first_row, kind="stable")
    bounds = np.flatnonzero(np.diff(first_row[order])) + 1
    for rows in np.split(order, bounds):
        yield str(owner[rows[0]]), rows


def rows_of_partition(partition: Partition, count: int) -> list[tuple[str, np.ndarray]]:
    """Each client's number and rows."""
    groups = partition.rows()
    order = np.asarray(partition.order)
    if len(order) < count or order.max() >= count:
        raise ValueError(
            f"the partition must be of the {count} rows of the table, got one of {len(order)}."
        )
    empty = [number for number, rows in enumerate(groups) if not len(rows)]
    if empty:
        raise ValueError(
            f"client {empty[0]} of the partition has no rows; use fljax.partitions.AtLeast."
        )
    return [(str(number), rows) for number, rows in enumerate(groups)]


def _samples_of(
    groups: Iterable[tuple[str, np.ndarray]],
    features: str,
    target: str,
    select: Callable[[np.ndarray], Any],
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Read one client after the other."""
    for name, rows in groups:
        part = select(rows)
        x, y = (np.asarray([np.asarray(v) for v in part[key]]) for key in (features, target))
        yield x, y, name
