"""A study on disk: a folder with a file for every group of finished blocks.

``study.json`` describes the study, with a digest of its content. Each ``runs-<digest>.npz`` has the
records of finished blocks, and each ``state-<digest>.npz`` the states from which runs continue;
both name the programs that computed them. Files are named by the digest of their bytes, written
atomically and never changed. So a process may be killed at any moment, and damaged files are
detected. A run depends only on its grid point and seed, so any set of a study's files is valid, and
the missing runs follow from the existing files.
"""

import contextlib
import io
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from fljax._core.annotations import check, rule_of
from fljax._core.storage import (
    OtherStudyError,
    StoreError,
    alive,
    claim,
    digest,
    host,
    named,
    restored,
    sealed,
    storable,
    unsealed,
    write_whole,
    writing,
)

FORMAT = 3
MANIFEST = "study.json"

#: The start of the names of folders in which workers of an executor leave their runs, and the file
#: in each without which they stop.
PIECES = "pieces"
TOKEN = "token"


class DamageWarning(UserWarning):
    """A file of a store was truncated or altered; it was set aside and its runs are recomputed."""


class Block(NamedTuple):
    """A segment of some runs: seeds times grid points, ``[S, C, ...]``."""

    points: list[str]  # [C]  labels of grid points
    seeds: list[int]  # [S]
    first: int  # number of records before it
    stopped: bool  # whether these runs have ended early
    records: dict[str, np.ndarray]  # [S, C, R, ...]
    outcome: dict[str, np.ndarray]  # [S, C, ...]
    state: list[np.ndarray] | None = None  # leaves of the state after it, [S, C, ...]

    @property
    def last(self) -> int:
        """Number of records after it."""
        return self.first + next(iter(self.records.values())).shape[2]


#: The default names of the two sides of a difference.
_STORE_AND_REQUEST = ("in the store", "now")


def difference(
    first: Mapping[str, Any], second: Mapping[str, Any], sides: tuple[str, str] = _STORE_AND_REQUEST
) -> str:
    """Return the differences between two identities, one line per field; empty if there is none."""
    return "".join(
        f"\n  {name}: {first.get(name)!r} {sides[0]}, {second.get(name)!r} {sides[1]}"
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name)
    )


def conflict(
    first: Mapping[str, Any], second: Mapping[str, Any], sides: tuple[str, str] = _STORE_AND_REQUEST
) -> str:
    """Return the fields of two studies that differ and are specified by both; empty if none do."""
    text = difference(first["identity"], second["identity"], sides)
    for label, point in second["points"].items():
        if conflict := difference(first["points"].get(label, point), point, sides):
            text += f"\n at grid point {label}:{conflict}"
    return text + difference(
        {"axes": sorted(first["axes"])}, {"axes": sorted(second["axes"])}, sides
    )


def _merged_manifest(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The union of two studies that do not conflict: all axes, seeds and rounds of both."""
    axes = {
        name: _merged_values(labels, second["axes"][name]) for name, labels in first["axes"].items()
    }
    return {
        **second,
        "points": {**first["points"], **second["points"]},
        "axes": axes,
        "seeds": _merged_values(first["seeds"], second["seeds"]),
        "rounds": max(first["rounds"], second["rounds"]),
        "metrics": {**first["metrics"], **second["metrics"]},
    }


def _merged_attributes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of two parts of a study.

    Different texts (devices) are concatenated, without repetition; of numbers (seconds) it has the
    larger one. Merging the same attributes again changes nothing.
    """

    def merged(name: str) -> Any:
        values = first.get(name, second.get(name)), second.get(name, first.get(name))
        if isinstance(values[0], str):
            return "; ".join(dict.fromkeys("; ".join(values).split("; ")))
        return max(values)

    return {name: merged(name) for name in {**first, **second}}


def _merged_values(first: list[Any], second: list[Any]) -> list[Any]:
    """The values of both; sorted, if both are sorted numbers."""
    if set(first) <= set(second):
        return second
    union = [*first, *(value for value in second if value not in first)]
    numbers = all(isinstance(value, int | float) for value in union)
    return (
        sorted(union) if numbers and [sorted(first), sorted(second)] == [first, second] else union
    )


class Store:
    """A study's folder, opened for one process.

    Args:
      folder: created if it does not exist.
      lock: name of the part of the work that this process does, locked against a second one;
        ``None`` takes no lock.
      create: whether the folder may be new; else it must be a store.

    Raises:
      StoreError: the folder is not a store, cannot be made, or is in use.

    Attributes:
      unwritable: the error for a user without write permission, who can still read the store.
    """

    def __init__(
        self, folder: str | os.PathLike, lock: str | None = "study", create: bool = True
    ) -> None:
        self.folder = claim(folder, MANIFEST, "store") if create else named(folder)
        if not create and not (self.folder / MANIFEST).is_file():
            raise StoreError(f"{self.folder} is no store of fljax: it has no {MANIFEST}.")
        self._unwritten: list[Block] = []
        self._manifest: dict[str, Any] = {}  # as last read or written
        #: For each point and seed: where states are stored, by the number of records before the
        #: state, as (file, block in the file, row, column).
        self._state_locations: dict[tuple[str, int], dict[int, tuple[str, int, int, int]]] = {}
        self._lock = None
        self.unwritable = None
        if lock is not None:
            self._lock = FileLock(self.folder / f".{lock}.lock")
            try:
                self._lock.acquire(timeout=0)
            except OSError as error:
                if not isinstance(error, Timeout):
                    self._lock = None
                    self.unwritable = error
                    return
                raise StoreError(
                    f"another process is at work on {self.folder} ({lock}); wait for it, stop it, "
                    "or choose another store. Nothing was changed."
                ) from None

    def close(self) -> None:
        """Release the store for other processes."""
        if self._lock is not None:
            self._lock.release()

    # Manifest ------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        """The description of the study; empty for a new store.

        Raises:
          StoreError: it is truncated, edited, or of another format.
        """
        path = self.folder / MANIFEST
        try:
            text = path.read_text(encoding="utf-8")
            written = json.loads(text)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}); restore it or start anew."
            ) from None
        if not isinstance(written, dict):
            raise StoreError(f"{path} cannot be read (no manifest); restore it or start anew.")
        if written.get("format") != FORMAT:
            raise StoreError(
                f"{path} has format {written.get('format')!r}, this version reads {FORMAT}; open "
                "it with the version of fljax that wrote it."
            )
        try:
            manifest = unsealed(text)
        except ValueError:
            raise StoreError(
                f"{path} was edited: it does not match its own digest, so what its runs are of is "
                "not known. Restore it or start anew."
            ) from None
        self._manifest = manifest
        return manifest

    def agree(self, study: Mapping[str, Any]) -> None:
        """Claim the store for ``study``, or raise an error that names the difference.

        The manifest is merged with it: the grid's values, the seeds and the rounds may grow but not
        shrink.

        Raises:
          OtherStudyError: the store holds another study.
        """
        with contextlib.nullcontext() if self.unwritable else self._manifest_lock():
            stored = self.manifest()
            if stored:
                if text := conflict(stored, study):
                    raise OtherStudyError(
                        f"the store {self.folder} holds another study:{text}\n"
                        "Finish it with what it was begun with, or choose another store. "
                        "(`program` stands for the scenario and the algorithms in it, `numbers` "
                        "for the grid's values, `horizon` for the rounds a privacy budget is "
                        "spread over, `prng` for generator=.)"
                    )
                study = _merged_manifest(stored, study)
            if not self.unwritable:
                self._write_manifest(study)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Store provenance, which is returned when the store is read."""
        if self.unwritable:
            return
        with self._manifest_lock():
            self._write_manifest(self.manifest() | {"attributes": dict(attributes)})

    def _write_manifest(self, study: Mapping[str, Any]) -> None:
        self._manifest = {**study, "format": FORMAT}
        self._write(MANIFEST, sealed(self._manifest, indent=1).encode())

    @contextlib.contextmanager
    def _manifest_lock(self) -> Iterator[None]:
        """A lock, so that only one process at a time reads, changes and writes the manifest."""
        with writing(self.folder), FileLock(self.folder / ".manifest.lock"):
            yield

    # Writing -------------------------------------------------------------------------------------

    def add(self, block: Block) -> None:
        """Add a finished block; :meth:`flush` writes it."""
        self._unwritten.append(block)

    def flush(self) -> None:
        """Write the blocks that are waiting.

        Raises:
          StoreError: the disk is full or the folder not writable; earlier files are intact.
        """
        blocks = list(self._unwritten)
        if blocks:
            # If several segments of a run are written together, only the last state is useful.
            latest = {(*block.points, *block.seeds): block for block in blocks}
            stateful = [block for block in latest.values() if block.state is not None]
            if stateful:
                name = self._save("state", _pack_states(stateful, self._manifest))
                for i, block in enumerate(stateful):
                    self._add_state_locations(name, i, block.points, block.seeds, block.last)
            self._save("runs", pack(blocks, self._manifest))
            del self._unwritten[: len(blocks)]  # only after writing: a flush may be interrupted
            self._delete_states_before(blocks)

    def _delete_states_before(self, blocks: Sequence[Block]) -> None:
        """Delete states that are not needed any more, since these later segments are safe."""
        superseded = set()
        for block in blocks:
            superseded |= self._remove_state_locations(block.points, block.seeds, block.last)
        named = {
            location[0]
            for locations in self._state_locations.values()
            for location in locations.values()
        }
        for file in superseded - named:
            (self.folder / file).unlink(missing_ok=True)

    def _add_state_locations(
        self, file: str, block: int, points: list[str], seeds: list[int], last: int
    ) -> None:
        """Note where the states of some runs are stored."""
        for row, seed in enumerate(seeds):
            for column, point in enumerate(points):
                self._state_locations.setdefault((point, seed), {})[last] = (
                    file,
                    block,
                    row,
                    column,
                )

    def _remove_state_locations(self, points: list[str], seeds: list[int], last: int) -> set[str]:
        """Remove the locations of states before ``last``; return the files that have them."""
        files = set()
        for pair in itertools.product(points, seeds):
            locations = self._state_locations.get(pair, {})
            files |= {locations.pop(earlier)[0] for earlier in list(locations) if earlier < last}
        return files

    # Pieces --------------------------------------------------------------------------------------

    def link_states(self, folder: Path, points: list[str], seeds: list[int], last: int) -> set[str]:
        """Make a folder a store of the same study with the states of some runs.

        Args:
          folder: a new one, or one that this method made.
          points: labels of the runs' points.
          seeds: of the runs.
          last: number of records before the states.

        Returns:
          the names of the files with the states.
        """
        pairs = itertools.product(points, seeds)
        locations = [self._state_locations.get(pair, {}).get(last) for pair in pairs]
        names = {location[0] for location in locations if location is not None}
        with writing(folder):
            folder.mkdir(exist_ok=True)
            shutil.copy2(self.folder / MANIFEST, folder / MANIFEST)
            for name in names:
                try:
                    os.link(self.folder / name, folder / name)
                except FileExistsError:
                    pass
                except OSError:  # a file system without links
                    shutil.copy2(self.folder / name, folder / name)
        return names

    def blocks_in(self, folder: Path, known: Container[str]) -> dict[str, list[Block]]:
        """The blocks in a folder's files of this study by file name, except for known names."""
        paths = [path for path in _files(folder, "runs-*.npz") if path.name not in known]
        contents = {path.name: self._read(path) for path in paths}
        return {name: unpack(content) for name, content in contents.items() if content is not None}

    def adopt(self, folder: Path, linked: Container[str] = ()) -> None:
        """Move the finished blocks of a folder, and their states, into the store.

        States are moved first, so that there are no records without their state.

        Args:
          folder: of a piece of this study.
          linked: names of states that :meth:`link_states` put there.
        """
        blocks = [block for some in self.blocks_in(folder, ()).values() for block in some]
        with writing(self.folder):
            for path in [*_files(folder, "state-*.npz"), *_files(folder, "runs-*.npz")]:
                if path.name not in linked:
                    os.replace(path, self.folder / path.name)
        self._delete_states_before(blocks)

    def adopt_leftovers(self) -> None:
        """Adopt what workers of an executor have left that were not collected, and stop them."""
        self.manifest()
        for session in self.folder.glob(f"{PIECES}-*"):
            (session / TOKEN).unlink(missing_ok=True)
            for piece in session.glob("[0-9]*"):
                self.adopt(piece)
            shutil.rmtree(session, ignore_errors=True)

    def _save(self, kind: str, content: bytes) -> str:
        name = f"{kind}-{digest(content)}.npz"
        self._write(name, content)
        return name

    def _write(self, name: str, content: bytes) -> None:
        with writing(self.folder):
            write_whole(self.folder / name, content)

    # Reading -------------------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        """All finished blocks, by the records before them; damaged files are set aside.

        Raises:
          StoreError: a file in it is of another study.
        """
        for leftover in self.folder.glob(f".*.{host()}.*.tmp"):
            if not alive(int(leftover.name.split(".")[-3])):
                with contextlib.suppress(OSError):  # the user may lack write permission
                    leftover.unlink(missing_ok=True)
        self.manifest()
        states = [(path.name, self._read(path)) for path in self._files("state-*.npz")]
        names = [
            (header["last"], name, i, header)
            for name, content in states
            if content is not None
            for i, header in enumerate(_header(content)["blocks"])
        ]
        for _, name, i, header in sorted(names, key=lambda entry: entry[:3]):
            self._add_state_locations(name, i, header["points"], header["seeds"], header["last"])
        blocks = []
        for path in self._files("runs-*.npz"):
            if (content := self._read(path)) is not None:
                blocks += unpack(content)
        return sorted(blocks, key=lambda block: block.first)

    def state(
        self, points: Sequence[str], seeds: Sequence[int], last: int
    ) -> list[np.ndarray] | None:
        """The states of some runs after ``last`` records, ``[S, C, ...]`` each.

        ``None`` if any of them is missing.
        """
        locations = [
            [self._state_locations.get((p, s), {}).get(last) for p in points] for s in seeds
        ]
        names = {location[0] for row in locations for location in row if location is not None}
        if any(location is None for row in locations for location in row):
            return None
        files = {name: self._read(self.folder / name) for name in names}
        if any(content is None for content in files.values()):
            return None
        arrays = {name: np.load(io.BytesIO(content or b"")) for name, content in files.items()}
        kinds = {name: _header(content or b"").get("types", {}) for name, content in files.items()}
        name, block, *_ = locations[0][0]  # pyright: ignore[reportGeneralTypeIssues]
        count = sum(key.startswith(f"{block}/") for key in arrays[name].files)

        def load_leaf(number: int) -> np.ndarray:
            parts = {
                (name, block): restored(
                    arrays[name][key := f"{block}/{number}"], kinds[name].get(key, "")
                )
                for name, block in {location[:2] for row in locations for location in row}  # pyright: ignore
            }
            return np.asarray(
                [[parts[location[:2]][location[2:]] for location in row] for row in locations]
            )  # pyright: ignore

        return [load_leaf(number) for number in range(count)]

    def _files(self, pattern: str) -> list[Path]:
        return _files(self.folder, pattern)

    def _read(self, path: Path) -> bytes | None:
        """A file's bytes; if they were changed, rename the file and return ``None``."""
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        if path.stem.rpartition("-")[2] == digest(content):
            self._require_own(path, content)
            return content
        damaged = path.with_suffix(".damaged")
        try:
            os.replace(path, damaged)
        except OSError:
            outcome = "What it held is left out."
        else:
            outcome = f"It is set aside as {damaged.name}, and what it held is computed again."
        warnings.warn(
            f"{path.name} in {self.folder} was cut or altered: its bytes do not match its name. "
            f"{outcome}",
            DamageWarning,
            stacklevel=2,
        )
        return None

    def _require_own(self, path: Path, content: bytes) -> None:
        """Raise ``StoreError`` for a file that was made by another study."""
        if text := conflict(self._manifest, _header(content), ("in the store", "in the file")):
            raise StoreError(
                f"{path.name} in {self.folder} is of another study:{text}\n"
                "Take it out of the folder; fljax.merge joins stores of one study."
            )


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def pack(blocks: Sequence[Block], study: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of a file with blocks, without their states, and optionally their study."""
    arrays = {
        f"{i}/{kind}/{key}": value
        for i, block in enumerate(blocks)
        for kind, values in (("records", block.records), ("outcome", block.outcome))
        for key, value in values.items()
    }
    return _packed(blocks, arrays, study or {})


def _pack_states(blocks: Sequence[Block], study: Mapping[str, Any]) -> bytes:
    leaves = enumerate(block.state or () for block in blocks)
    arrays = {f"{i}/{j}": leaf for i, state in leaves for j, leaf in enumerate(state)}
    return _packed(blocks, arrays, study)


def _packed(
    blocks: Sequence[Block], arrays: Mapping[str, np.ndarray], study: Mapping[str, Any]
) -> bytes:
    """The bytes of an ``npz`` file with arrays, and a header about their blocks and study."""
    points = study.get("points", {})
    parts = {name: storable(np.asarray(array)) for name, array in arrays.items()}
    header = {
        "types": {name: kind for name, (_, kind) in parts.items() if kind},
        "identity": study.get("identity", {}),
        "axes": [*study.get("axes", {})],
        "points": {p: points[p] for block in blocks for p in block.points if p in points},
        "blocks": [
            {
                "points": block.points,
                "seeds": block.seeds,
                "first": block.first,
                "last": block.last,
                "stopped": block.stopped,
            }
            for block in blocks
        ],
    }
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    arrays = {name: array for name, (array, _) in parts.items()}
    np.savez(buffer, about=text, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def _header(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content)) as arrays:
        return json.loads(arrays["about"].tobytes())


def unpack(content: bytes) -> list[Block]:
    """The blocks that were passed to :func:`pack`."""
    header = _header(content)
    kinds = header.get("types", {})
    blocks = [
        Block(a["points"], a["seeds"], a["first"], a["stopped"], {}, {}) for a in header["blocks"]
    ]
    with np.load(io.BytesIO(content)) as arrays:
        for key in arrays.files:
            if key != "about":
                i, kind, name = key.split("/", 2)
                getattr(blocks[int(i)], kind)[name] = restored(arrays[key], kinds.get(key, ""))
    return blocks


def merge(into: str | os.PathLike, *stores: str | os.PathLike) -> Path:
    """Join stores of one study, such as the shards of :func:`fljax.sweep`.

    Running the study on the merged store computes only the missing runs, if any; :func:`fljax.load`
    reads it.

    Args:
      into: a new folder, or a store of the same study. Its provenance attributes cover all parts.
      stores: the stores to join; they are left unchanged, except that damaged files are set aside.

    Raises:
      StoreError: one of them is not a store; ``into`` is in use or cannot be written.
      ValueError: a store given twice, stores of different studies or of other rounds, with the
        difference named; nothing is written.

    Example:
      >>> import fljax as fl
      >>> def scenario(key):
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(key, clients=6, samples=10, dim=2),
      ...         algorithm=fl.algorithms.FedAvg(0.1),
      ...         metrics=["normalized_error"])
      >>> folder = getfixture("tmp_path")
      >>> parts = [folder / "one", folder / "two"]
      >>> for shard, store in zip(["1/2", "2/2"], parts):
      ...     _ = fl.sweep(scenario, rounds=5, seeds=4, shard=shard, store=store)
      >>> dict(fl.load(fl.merge(folder / "all", *parts)).sizes)
      {'seed': 4, 'round': 5}
    """
    for number, folder in enumerate((into, *stores)):
        check("into" if not number else f"store {number}", folder, rule_of(str | os.PathLike))
        named(folder)
    if not stores:
        raise ValueError("merge needs at least one store to take runs from.")
    folders = [Path(folder).resolve() for folder in (into, *stores)]
    for position, folder in enumerate(folders):
        if folder in folders[:position]:
            raise ValueError(
                f"merge joins several stores, and {folder} is given twice; name each once, and a "
                "folder of its own to join them into."
            )
    existing = [into] if (Path(into) / MANIFEST).is_file() else []
    first_store, *other_stores = parts = [
        Store(f, lock=None, create=False) for f in (*existing, *stores)
    ]
    study = first_store.manifest()
    for part in other_stores:
        manifest = part.manifest()
        sides = (f"in {first_store.folder}", f"in {part.folder}")
        text = conflict(study, manifest, sides)
        text += difference({"rounds": study["rounds"]}, {"rounds": manifest["rounds"]}, sides)
        if text:
            raise OtherStudyError(
                f"{part.folder} does not fit {first_store.folder}:{text}\n"
                "Only stores of one study, of as many rounds, can be merged."
            )
        attributes = _merged_attributes(study["attributes"], manifest["attributes"])
        study = _merged_manifest(study, manifest) | {"attributes": attributes}
    merged = Store(into)
    try:
        merged.agree(study)
        for part in parts:
            for path in [*part._files("state-*.npz"), *part._files("runs-*.npz")]:
                present = (merged.folder / path.name).exists()
                if not present and (content := part._read(path)) is not None:
                    merged._write(path.name, content)
    finally:
        merged.close()
    return merged.folder
