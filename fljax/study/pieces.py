"""Pieces of a study, which workers of an executor compute.

The process that hands out a study leaves a description in a folder of its store. A worker reads it,
compares versions and programs with its own, and computes the runs of its piece into a folder of the
piece, from which they are moved to the store. A piece that is computed again continues from what
its folder holds.
"""

import dataclasses
import functools
import pickle
import platform
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax._core.module import TypedKey
from fljax._core.storage import StoreError
from fljax.study.batched_program import Options
from fljax.study.block_sizes import BlockSizes
from fljax.study.collection import Collection
from fljax.study.executor import StudyRun
from fljax.study.request import Request, Study, versions
from fljax.study.store import TOKEN, Block, conflict, difference
from fljax.study.tracking import Tracking

#: The file that describes the study to workers.
DESCRIPTION = "study.pickle"


class WorkerError(RuntimeError):
    """Workers of an executor cannot compute a study; the message says why and what to change."""


class Rectangle(NamedTuple):
    """Runs of one group with the same number of finished records."""

    group: int
    points: list[int]  # positions in the group
    seeds: list[int]
    done: int
    sizes: tuple[int, int, int, bool]  # see `BlockSizes`


class Receipt(NamedTuple):
    """What a worker returns for a piece; its results are in the piece's folder."""

    attributes: dict[str, Any]  # provenance
    blocks: list[int]  # numbers of seeds per block
    error: Exception | None = None


class _WithdrawnError(Exception):
    """The study is not computed any more by the process that handed out the piece."""


def describe_study(study: Study, request: bytes, keep_state: bool) -> bytes:
    """The content of the file :data:`DESCRIPTION`: builtin types, and a pickled request within."""
    options = {
        name: option.value
        for name, option in Options.of_this_thread().values
        if isinstance(option.value, bool | int | float | str | None)
    }
    return pickle.dumps(
        {
            "versions": versions(),
            "options": options,
            "platform": jax.default_backend(),
            "request": request,
            "keep_state": keep_state,
            "description": study.description(),
        }
    )


def compute(
    session: str, token: str, number: int, rectangles: Sequence[tuple], attempt: int
) -> Receipt:
    """Compute a piece of a study in a worker of an executor.

    Errors of the study are returned, so that only a lost worker is an error for the executor.

    Args:
      session: the folder with the study's description.
      token: of the process that handed out the piece.
      number: of the piece.
      rectangles: its runs, see :class:`Rectangle`.
      attempt: a number of its own for each time that it is handed out, as executors may store
        results by arguments.
    """
    del attempt
    try:
        return _computed(Path(session), token, number, [Rectangle(*r) for r in rectangles])
    except _WithdrawnError:
        return Receipt({}, [])
    except Exception as error:
        return Receipt({}, [], _portable(error))


def _portable(error: Exception) -> Exception:
    """The error, or if it cannot be pickled another one of the same text, with its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = WorkerError(f"{type(error).__name__}: {error}")
    error.add_note(f"on a worker of the executor, {platform.node()}:\n{text}")
    return error


def _computed(session: Path, token: str, number: int, rectangles: list[Rectangle]) -> Receipt:
    described = _described(session, token)
    if described["versions"] != versions():
        text = difference(described["versions"], versions(), ("in the study", "on the worker"))
        raise WorkerError(
            f"a worker on {platform.node()} has other versions than the process that hands out the "
            f"study:{text}\nInstall the same versions on all machines."
        )
    # The thread's options, as programs depend on them, are those of the other process.
    options = [(name, TypedKey(value)) for name, value in described["options"].items()]
    with Options(tuple(sorted(options))).applied():
        study = _study(str(session), token)
        part = _part(study, rectangles, described["platform"])
        if text := conflict(
            described["description"], part.description(), ("in the study", "on the worker")
        ):
            raise WorkerError(
                f"a worker on {platform.node()} builds another study from the scenario:{text}\n"
                "All machines need the same files, data and settings."
            )
        folder = session / str(number)
        with _PieceRun(part, folder, described["keep_state"], rectangles, session) as run:
            run.execute()
            return run.receipt()


def _described(session: Path, token: str) -> dict[str, Any]:
    """The description of the study; raise ``WorkerError`` if the folder is not the same one."""
    try:
        if (session / TOKEN).read_text() == token:
            return _description(str(session), token)
    except FileNotFoundError:
        if session.is_dir():  # the other process has deleted the token
            raise _WithdrawnError from None
    raise WorkerError(
        f"the store is not shared: a worker on {platform.node()} does not find {session} as the "
        "process that hands out the study has written it. Give store= a folder that all machines "
        "see under the same path."
    )


@functools.lru_cache(maxsize=1)
def _description(session: str, token: str) -> dict[str, Any]:
    del token
    return pickle.loads((Path(session) / DESCRIPTION).read_bytes())


_STUDY_LOCK = threading.Lock()


def _study(session: str, token: str) -> Study:
    """The whole study, built once in each process."""
    with _STUDY_LOCK:  # workers may be threads
        return _built(session, token, jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


@functools.lru_cache(maxsize=1)
def _built(session: str, token: str, x64: bool) -> Study:
    del x64
    content = _described(Path(session), token)["request"]
    try:
        request: Request = pickle.loads(content)
    except (ImportError, AttributeError) as error:
        raise WorkerError(
            f"a worker on {platform.node()} cannot import the scenario or a value of the grid: "
            f"{error}. Put its file where workers find it (the folder in which they start, a "
            "folder of PYTHONPATH, or an installed package)."
        ) from None
    return Study.of(request)


def _part(study: Study, rectangles: list[Rectangle], platform_name: str) -> Study:
    """The study of some rectangles alone, with the block sizes of the whole study.

    On a device of another kind it has sizes of its own.
    """
    seeds = {seed for rectangle in rectangles for seed in rectangle.seeds}
    seed_list = [seed for seed in study.request.seed_list if seed in seeds]
    groups = []
    identities = []
    sizes = {}
    for number in _groups_of(rectangles):
        group = study.groups[number]
        points = np.asarray(_points_of(rectangles, number))
        if jax.default_backend() == platform_name:
            first = next(rectangle for rectangle in rectangles if rectangle.group == number)
            sizes[len(groups)] = BlockSizes(*first.sizes)
        positions = [group.positions[point] for point in points]
        groups.append(group._replace(positions=positions, points=group.pick(points)))
        identities.append(study.identities[number])
    return dataclasses.replace(
        study,
        request=dataclasses.replace(study.request, seeds=seed_list),
        groups=groups,
        identities=identities,
        sizes=sizes,
    )


def _groups_of(rectangles: list[Rectangle]) -> list[int]:
    """The groups that rectangles are of, in the order of the study."""
    return sorted({rectangle.group for rectangle in rectangles})


def _points_of(rectangles: list[Rectangle], group: int) -> list[int]:
    """Positions of a group's points in rectangles, in the order of the study."""
    return sorted({point for r in rectangles if r.group == group for point in r.points})


class _PieceRun(StudyRun):
    """The runs of a piece, which stop when the piece is withdrawn."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        keep_state: bool,
        rectangles: list[Rectangle],
        session: Path,
    ) -> None:
        self.rectangles = rectangles
        self.session = session
        super().__init__(study, folder, keep_state, 0, 1, True, None, Tracking([]), False)

    @property
    def _lock_name(self) -> None:
        """No lock: a worker that was believed to be lost may still be at work on the piece, and
        both write the same results.
        """

    def _open(self, folder: Any) -> Any:
        names: dict[tuple[int, int], str] = {}  # of points, by group and position in the group
        for index, number in enumerate(_groups_of(self.rectangles)):
            points = _points_of(self.rectangles, number)
            labels = zip(points, self.study.names(index), strict=True)
            names |= {(number, point): label for point, label in labels}
        # Results of the piece alone: arrays for the whole study would be much larger.
        self.collection = Collection(
            [*names.values()], (len(names),), self.request.seed_list, self.request.records
        )
        self.assigned_runs = np.zeros(self.collection.finished_records.shape, bool)
        columns = {seed: column for column, seed in enumerate(self.request.seed_list)}
        for rectangle in self.rectangles:
            labels = [names[rectangle.group, point] for point in rectangle.points]
            rows = self.collection.rows(labels)
            runs = np.ix_(rows, np.asarray([columns[seed] for seed in rectangle.seeds]))
            self.assigned_runs[runs] = True
            # Their records are in the store of the whole study.
            self.collection.finished_records[runs] = rectangle.done
        return super()._open(folder)

    def _collect_and_report(self, block: Block) -> None:
        super()._collect_and_report(block)
        if not (self.session / TOKEN).is_file():
            raise _WithdrawnError

    def receipt(self) -> Receipt:
        """What the other process needs to know."""
        if not self.collection.done[self.assigned_runs].all():
            raise StoreError(f"runs are missing in {self.session}; run the same study again.")
        return Receipt(self._attributes(), sorted(self.blocks_used))


def merged_attributes(attributes: Mapping[str, Any], receipts: Sequence[Receipt]) -> dict[str, Any]:
    """The provenance of a study whose pieces were computed elsewhere."""
    merged = dict(attributes)
    if not receipts:
        return merged
    for name in ("platform", "device", "machine"):
        texts = [receipt.attributes[name] for receipt in receipts]
        merged[name] = "; ".join(dict.fromkeys(texts))
    for name in ("compile_seconds", "compilations"):
        merged[name] = sum(receipt.attributes[name] for receipt in receipts)
    return merged
