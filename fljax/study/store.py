"""A study on disk: every finished block of runs, whole or not at all.

A store is a folder. ``study.json`` describes the study, with a digest of its content; each
``runs-<digest>.npz`` holds the records of some finished blocks and each ``state-<digest>.npz`` the
states to go on from; both say what programs made them. A file's name is the digest of its bytes, it
appears under that name only when it is whole, and it is never changed: so a process may be killed
at any moment, and a cut or altered file is known for what it is. What a run computes depends on its
grid point and seed alone, so any mixture of a study's files is that study, and what is missing is
found by looking.
"""

import contextlib
import io
import itertools
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from fljax._arguments import check, rule
from fljax._folders import (
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

__all__ = [
    "Block",
    "DamageWarning",
    "OtherStudyError",
    "Store",
    "StoreError",
    "difference",
    "merge",
    "pack",
    "unpack",
]

FORMAT = 3
MANIFEST = "study.json"


class DamageWarning(UserWarning):
    """A file of a store was truncated or altered; it was set aside and its runs are recomputed."""


class Block(NamedTuple):
    """A segment of some runs: seeds times grid points, ``[S, C, ...]``."""

    points: list[str]  # [C]  labels of grid points
    seeds: list[int]  # [S]
    first: int  # records that came before
    stopped: bool  # whether these runs are over, early
    records: dict[str, np.ndarray]  # [S, C, R, ...]
    outcome: dict[str, np.ndarray]  # [S, C, ...]
    state: list[np.ndarray] | None = None  # leaves of the state after it, [S, C, ...]

    @property
    def last(self) -> int:
        """Number of records after it."""
        return self.first + next(iter(self.records.values())).shape[2]


#: Where the two sides of a difference are found, unless said otherwise.
_HERE = ("in the store", "now")


def difference(
    one: Mapping[str, Any], other: Mapping[str, Any], places: tuple[str, str] = _HERE
) -> str:
    """Return the differences between two identities, one line per field; empty if there is none."""
    return "".join(
        f"\n  {name}: {one.get(name)!r} {places[0]}, {other.get(name)!r} {places[1]}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    )


def _conflict(
    one: Mapping[str, Any], other: Mapping[str, Any], places: tuple[str, str] = _HERE
) -> str:
    """Return the conflicting fields of two studies where both are specified; empty if there is
    none.
    """
    text = difference(one["identity"], other["identity"], places)
    for label, point in other["points"].items():
        if conflict := difference(one["points"].get(label, point), point, places):
            text += f"\n at grid point {label}:{conflict}"
    return text + difference({"axes": sorted(one["axes"])}, {"axes": sorted(other["axes"])}, places)


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The union of two studies that do not conflict: all axes, seeds and rounds of both."""
    axes = {name: _union(labels, other["axes"][name]) for name, labels in one["axes"].items()}
    return {
        **other,
        "points": {**one["points"], **other["points"]},
        "axes": axes,
        "seeds": _union(one["seeds"], other["seeds"]),
        "rounds": max(one["rounds"], other["rounds"]),
        "metrics": {**one["metrics"], **other["metrics"]},
    }


def _attributes(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """How the numbers of both came about: texts that differ one after the other (which devices),
    the larger number (seconds of the slowest part); of what is in both already, the same again.
    """

    def joined(name: str) -> Any:
        both = one.get(name, other.get(name)), other.get(name, one.get(name))
        if isinstance(both[0], str):
            return "; ".join(dict.fromkeys("; ".join(both).split("; ")))
        return max(both)

    return {name: joined(name) for name in {**one, **other}}


def _union(one: list[Any], other: list[Any]) -> list[Any]:
    """The values of both; sorted, if both are sorted numbers."""
    if set(one) <= set(other):
        return other
    both = [*one, *(value for value in other if value not in one)]
    numbers = all(isinstance(value, int | float) for value in both)
    return sorted(both) if numbers and [sorted(one), sorted(other)] == [one, other] else both


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
      unwritable: why nothing can be written, of a user who may only read; what is there is read.
    """

    def __init__(
        self, folder: str | os.PathLike, lock: str | None = "study", create: bool = True
    ) -> None:
        self.folder = claim(folder, MANIFEST, "store") if create else named(folder)
        if not create and not (self.folder / MANIFEST).is_file():
            raise StoreError(f"{self.folder} is no store of fljax: it has no {MANIFEST}.")
        self._waiting: list[Block] = []
        self._study: dict[str, Any] = {}  # the manifest, as it was last read or written
        #: Where the states of a point and seed lie, by the records there are at that point of the
        #: run: file, block in it, row and column.
        self._states: dict[tuple[str, int], dict[int, tuple[str, int, int, int]]] = {}
        self._lock, self.unwritable = None, None
        if lock is not None:
            self._lock = FileLock(self.folder / f".{lock}.lock")
            try:
                self._lock.acquire(timeout=0)
            except OSError as error:
                if not isinstance(error, Timeout):
                    self._lock, self.unwritable = None, error
                    return
                raise StoreError(
                    f"another process is at work on {self.folder} ({lock}); wait for it, stop it, "
                    "or choose another store. Nothing was changed."
                ) from None

    def close(self) -> None:
        """Release the store for other processes."""
        if self._lock is not None:
            self._lock.release()

    # What the study is ---------------------------------------------------------------------------

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
        self._study = manifest
        return manifest

    def agree(self, study: Mapping[str, Any]) -> None:
        """Claim the store for ``study``, or raise an error that names the difference.

        The manifest is merged with it: the grid's values, the seeds and the rounds may grow but not
        shrink.

        Raises:
          OtherStudyError: the store holds another study.
        """
        with contextlib.nullcontext() if self.unwritable else self._alone():
            stored = self.manifest()
            if stored:
                if text := _conflict(stored, study):
                    raise OtherStudyError(
                        f"the store {self.folder} holds another study:{text}\n"
                        "Finish it with what it was begun with, or choose another store. "
                        "(`program` stands for the scenario and the algorithms in it, `numbers` "
                        "for the grid's values, `horizon` for the rounds a privacy budget is "
                        "spread over, `prng` for generator=.)"
                    )
                study = _joined(stored, study)
            if not self.unwritable:
                self._tell(study)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Store provenance, which is returned when the store is read."""
        if self.unwritable:
            return
        with self._alone():
            self._tell(self.manifest() | {"attributes": dict(attributes)})

    def _tell(self, study: Mapping[str, Any]) -> None:
        self._study = {**study, "format": FORMAT}
        self._write(MANIFEST, sealed(self._study, indent=1).encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The manifest is read, changed and written by one process at a time, of all shards."""
        with writing(self.folder), FileLock(self.folder / ".manifest.lock"):
            yield

    # Writing -------------------------------------------------------------------------------------

    def add(self, block: Block) -> None:
        """Add a finished block; :meth:`flush` writes it."""
        self._waiting.append(block)

    def flush(self) -> None:
        """Write the blocks that are waiting.

        Raises:
          StoreError: the disk is full or the folder not writable; what was stored before is intact.
        """
        blocks = list(self._waiting)
        if blocks:
            # Of stretches that are written together only the last one's state is of use.
            latest = {(*block.points, *block.seeds): block for block in blocks}
            stateful = [block for block in latest.values() if block.state is not None]
            if stateful:
                name = self._save("state", _pack_states(stateful, self._study))
                for i, block in enumerate(stateful):
                    self._place(name, i, block.points, block.seeds, block.last)
            self._save("runs", pack(blocks, self._study))
            del self._waiting[: len(blocks)]  # not before: a flush may be interrupted
            # Only now is the later stretch safe, and the states before it of no more use.
            superseded = set()
            for block in blocks:
                superseded |= self._forget(block.points, block.seeds, block.last)
            named = {place[0] for places in self._states.values() for place in places.values()}
            for old in superseded - named:
                (self.folder / old).unlink(missing_ok=True)

    def _place(self, file: str, block: int, points: list[str], seeds: list[int], last: int) -> None:
        """Record where the states of some runs are stored."""
        for row, seed in enumerate(seeds):
            for column, point in enumerate(points):
                self._states.setdefault((point, seed), {})[last] = (file, block, row, column)

    def _forget(self, points: list[str], seeds: list[int], last: int) -> set[str]:
        """Forget the states of some runs before ``last``; returns the files that held them."""
        gone = set()
        for pair in itertools.product(points, seeds):
            places = self._states.get(pair, {})
            gone |= {places.pop(before)[0] for before in list(places) if before < last}
        return gone

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
                with contextlib.suppress(OSError):  # who only reads may lack the right
                    leftover.unlink(missing_ok=True)
        self.manifest()
        states = [(path.name, self._read(path)) for path in self._files("state-*.npz")]
        names = [
            (about["last"], name, i, about)
            for name, content in states
            if content is not None
            for i, about in enumerate(_about(content)["blocks"])
        ]
        for _, name, i, about in sorted(names, key=lambda entry: entry[:3]):
            self._place(name, i, about["points"], about["seeds"], about["last"])
        blocks = []
        for path in self._files("runs-*.npz"):
            if (content := self._read(path)) is not None:
                blocks += unpack(content)
        return sorted(blocks, key=lambda block: block.first)

    def state(
        self, points: Sequence[str], seeds: Sequence[int], last: int
    ) -> list[np.ndarray] | None:
        """The states of some runs after ``last`` records, ``[S, C, ...]`` each, or ``None`` if one
        of them is not available.
        """
        places = [[self._states.get((p, s), {}).get(last) for p in points] for s in seeds]
        names = {place[0] for row in places for place in row if place is not None}
        if any(place is None for row in places for place in row):
            return None
        files = {name: self._read(self.folder / name) for name in names}
        if any(content is None for content in files.values()):
            return None
        arrays = {name: np.load(io.BytesIO(content or b"")) for name, content in files.items()}
        kinds = {name: _about(content or b"").get("types", {}) for name, content in files.items()}
        name, block, *_ = places[0][0]  # pyright: ignore[reportGeneralTypeIssues]
        count = sum(key.startswith(f"{block}/") for key in arrays[name].files)

        def leaf(number: int) -> np.ndarray:
            parts = {
                (name, block): restored(
                    arrays[name][key := f"{block}/{number}"], kinds[name].get(key, "")
                )
                for name, block in {place[:2] for row in places for place in row}  # pyright: ignore
            }
            return np.asarray([[parts[place[:2]][place[2:]] for place in row] for row in places])  # pyright: ignore

        return [leaf(number) for number in range(count)]

    def _files(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.folder.glob(pattern) if not path.name.startswith("."))

    def _read(self, path: Path) -> bytes | None:
        """A file's bytes; ``None``, and the file set aside, if they are not what was written."""
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        if path.stem.rpartition("-")[2] == digest(content):
            self._require_own(path, content)
            return content
        aside = path.with_suffix(".damaged")
        try:
            os.replace(path, aside)
        except OSError:
            outcome = "What it held is left out."
        else:
            outcome = f"It is set aside as {aside.name}, and what it held is computed again."
        warnings.warn(
            f"{path.name} in {self.folder} was cut or altered: its bytes do not match its name. "
            f"{outcome}",
            DamageWarning,
            stacklevel=2,
        )
        return None

    def _require_own(self, path: Path, content: bytes) -> None:
        """Raise ``StoreError`` for a file that was made by another study."""
        if text := _conflict(self._study, _about(content), ("in the store", "in the file")):
            raise StoreError(
                f"{path.name} in {self.folder} is of another study:{text}\n"
                "Take it out of the folder; fljax.merge joins stores of one study."
            )


def pack(blocks: Sequence[Block], study: Mapping[str, Any] | None = None) -> bytes:
    """Blocks without their states as the bytes of one file, of a study if there is one."""
    arrays = {
        f"{i}/{kind}/{key}": value
        for i, block in enumerate(blocks)
        for kind, values in (("records", block.records), ("outcome", block.outcome))
        for key, value in values.items()
    }
    return _file(blocks, arrays, study or {})


def _pack_states(blocks: Sequence[Block], study: Mapping[str, Any]) -> bytes:
    leaves = enumerate(block.state or () for block in blocks)
    arrays = {f"{i}/{j}": leaf for i, state in leaves for j, leaf in enumerate(state)}
    return _file(blocks, arrays, study)


def _file(
    blocks: Sequence[Block], arrays: Mapping[str, np.ndarray], study: Mapping[str, Any]
) -> bytes:
    known = study.get("points", {})
    parts = {name: storable(np.asarray(array)) for name, array in arrays.items()}
    about = {
        "types": {name: kind for name, (_, kind) in parts.items() if kind},
        "identity": study.get("identity", {}),
        "axes": [*study.get("axes", {})],
        "points": {p: known[p] for block in blocks for p in block.points if p in known},
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
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays = {name: array for name, (array, _) in parts.items()}
    np.savez(buffer, about=text, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def _about(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content)) as arrays:
        return json.loads(arrays["about"].tobytes())


def unpack(content: bytes) -> list[Block]:
    """The blocks that were passed to :func:`pack`."""
    about = _about(content)
    kinds = about.get("types", {})
    blocks = [
        Block(a["points"], a["seeds"], a["first"], a["stopped"], {}, {}) for a in about["blocks"]
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
      StoreError: one of them is no store; ``into`` is in use or cannot be written.
      ValueError: a store given twice, stores of different studies or of other rounds, with the
        difference named; nothing is written.
    """
    for number, folder in enumerate((into, *stores)):
        check("into" if not number else f"store {number}", folder, rule(str | os.PathLike))
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
    begun = [into] if (Path(into) / MANIFEST).is_file() else []
    first, *others = parts = [Store(f, lock=None, create=False) for f in (*begun, *stores)]
    study = first.manifest()
    for part in others:
        manifest, places = part.manifest(), (f"in {first.folder}", f"in {part.folder}")
        text = _conflict(study, manifest, places)
        text += difference({"rounds": study["rounds"]}, {"rounds": manifest["rounds"]}, places)
        if text:
            raise OtherStudyError(
                f"{part.folder} does not fit {first.folder}:{text}\n"
                "Only stores of one study, of as many rounds, can be merged."
            )
        attributes = _attributes(study["attributes"], manifest["attributes"])
        study = _joined(study, manifest) | {"attributes": attributes}
    whole = Store(into)
    try:
        whole.agree(study)
        for part in parts:
            for path in [*part._files("state-*.npz"), *part._files("runs-*.npz")]:
                present = (whole.folder / path.name).exists()
                if not present and (content := part._read(path)) is not None:
                    whole._write(path.name, content)
    finally:
        whole.close()
    return whole.folder
