"""Handing out a study to the workers of an executor.

The executor schedules: queues, workers and their lives are its own business. Its tasks are pieces
of the study, whole blocks as they would be computed by one process, so that results do not depend
on who computes them.
"""

import contextlib
import itertools
import os
import pickle
import queue
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any

import jax

from fljax._core import checks, user_code
from fljax._core.storage import write_whole, writing
from fljax.study import pieces
from fljax.study.executor import FLUSH_SECONDS, StudyRun
from fljax.study.pieces import Receipt, Rectangle, WorkerError
from fljax.study.planning import choose_sizes
from fljax.study.population_study import PopulationStudyRun
from fljax.study.request import Request, Study
from fljax.study.store import PIECES, TOKEN, Block

#: A study with enough blocks is divided into calls that keep this number of workers busy:
#: how many workers an executor has or will have is not known.
WORKERS = 16

#: The largest number of pieces; beyond it, a piece has several calls. Executors with an attribute
#: ``most_tasks`` set another one.
MOST_PIECES = 1000

#: How often a piece is handed out that was lost without having left a new block.
ATTEMPTS = 4

#: Share of the time for looking at blocks of running pieces.
LOOK_SHARE = 0.05


def check_executor(executor: Any, request: Request, store: object, shard: object = None) -> None:
    """Raise an error for an executor that cannot compute the study."""
    if not isinstance(executor, Executor):
        hint = ""
        if hasattr(executor, "get_executor"):
            hint = " Dask has one: client.get_executor()."
        raise TypeError(
            "executor must be a concurrent.futures.Executor, such as those of "
            f"fljax.executors, got {checks.shown(executor)}.{hint}"
        )
    context = getattr(executor, "_mp_context", None)
    if isinstance(executor, ProcessPoolExecutor) and context is not None:
        method = context.get_start_method()
        if method == "fork":
            raise ValueError(
                "executor starts its processes by fork, and a fork of a process in which JAX has "
                "run hangs; pass mp_context=multiprocessing.get_context('spawn') to "
                "ProcessPoolExecutor."
            )
    if shard is not None:
        raise ValueError(
            "executor= divides the study by itself; leave shard= out, or run each shard without an "
            "executor."
        )
    if store is None:
        raise ValueError(
            "executor= needs a store in which its workers leave their runs; pass store=, a folder "
            "that all of them see."
        )
    if request.secret:
        raise ValueError(
            "noise_seed is a secret, and executors write what they hand out to files and networks; "
            "run the study without an executor, by shards if it is long."
        )
    if request.shard_over == "clients":
        raise ValueError(
            "shard_over='clients' divides every run over the devices of this process; leave it "
            "out with executor=, which divides the study into runs."
        )
    if jax.process_count() > 1:
        raise ValueError(
            "processes joined by jax.distributed share a study by themselves; leave executor= out."
        )


class DistributedRun(StudyRun):
    """A call of :func:`sweep` whose runs are computed by the workers of an executor.

    Attributes:
      executor: of ``concurrent.futures``.
      receipts: of finished pieces.
      looked_at: names of the files of each piece that were read while it was running.
      known_before: their number when the piece was handed out.
    """

    def __init__(self, executor: Executor, *args: Any) -> None:
        study: Study = args[0]
        # Before the store is opened: what cannot be handed out changes nothing.
        self.pickled_request = pickled(study.request, executor)
        self.executor = executor
        self.receipts: list[Receipt] = []
        self.looked_at: dict[int, set[str]] = {}
        self.known_before: dict[int, int] = {}
        self.next_look = 0.0
        self.futures: dict[int, Future] = {}
        self.returned: queue.SimpleQueue[tuple[int, Future]] = queue.SimpleQueue()
        super().__init__(*args)
        assert self.store is not None
        self.token = uuid.uuid4().hex
        self.session = self.store.folder.resolve() / f"{PIECES}-{self.token[:12]}"

    # Pieces --------------------------------------------------------------------------------------

    def _calls(self) -> Iterator[Rectangle]:
        """The missing runs, divided as calls of a program would compute them."""
        callers = max(WORKERS, self.study.workers)
        for number in range(len(self.study.groups)):
            rectangles = list(self._rectangles(number))
            if rectangles:
                self.collection.require_room(*self._shapes(number))
            for points, seeds, done in rectangles:
                sizes = choose_sizes(self.study, number, len(points), len(seeds), callers)
                for i in range(0, len(points), sizes.points):
                    chosen_points = [int(point) for point in points[i : i + sizes.points]]
                    for j in range(0, len(seeds), sizes.seeds_per_call):
                        rectangle = seeds[j : j + sizes.seeds_per_call]
                        yield Rectangle(number, chosen_points, rectangle, done, sizes)

    def _shapes(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Records and outcome of one run as shapes, with axes of one seed and one grid point."""
        output = self.study.program.shapes(self.study.groups[number])
        records, outcome = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, 1, *leaf.shape), leaf.dtype),
            (output.records, output.outcome),
        )
        return records, outcome

    def _pieces(self) -> list[list[Rectangle]]:
        """The missing runs by piece. All rectangles of a group in a piece have the same sizes."""
        calls = list(self._calls())
        count = min(len(calls), getattr(self.executor, "most_tasks", MOST_PIECES))
        ends = [len(calls) * (i + 1) // count for i in range(count)]
        result = []
        for first, last in itertools.pairwise([0, *ends]):
            piece: list[Rectangle] = []
            sizes: dict[int, Any] = {}
            for call in calls[first:last]:
                if sizes.setdefault(call.group, call.sizes) != call.sizes:
                    result.append(piece)
                    piece = []
                    sizes = {call.group: call.sizes}
                piece.append(call)
            result.append(piece)
        return result

    def _describe(self) -> None:
        """Write the parts that all pieces share, for workers to read."""
        content = pieces.describe_study(self.study, self.pickled_request, self.keep_state)
        with writing(self.session):
            self.session.mkdir()
            write_whole(self.session / pieces.DESCRIPTION, content)
            write_whole(self.session / TOKEN, self.token.encode())

    # Waiting -------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Hand out the missing runs, and collect them."""
        missing = self._pieces()
        if not missing:
            self._flush()
            return
        self._describe()
        began = time.perf_counter()
        attempts = dict.fromkeys(range(len(missing)), 0)
        linked = [self._linked_states(number, piece) for number, piece in enumerate(missing)]
        try:
            for number, piece in enumerate(missing):
                self._hand_out(number, piece)
            self.progress.start()
            while self.futures:
                number, future = self._next_future()
                if self.futures.get(number) is not future:
                    continue  # of an earlier attempt
                del self.futures[number]
                if future.cancelled() or future.exception() is not None:
                    # A worker with a limited time may need several to end a long piece.
                    attempts[number] = 0 if self._has_new_blocks(number) else attempts[number] + 1
                    self._require_retry(future, attempts[number])
                    self._hand_out(number, missing[number])
                    continue
                self._collect_piece(number, Receipt(*future.result()), linked[number])
        except BaseException as error:
            self._withdraw(isinstance(error, KeyboardInterrupt))
            if isinstance(error, KeyboardInterrupt):
                raise self._interrupted() from None
            raise
        finally:
            self.started = began
            self.ended = time.perf_counter()
        shutil.rmtree(self.session, ignore_errors=True)
        self._flush()

    def _linked_states(self, number: int, piece: Sequence[Rectangle]) -> set[str]:
        """Give a piece the states from which its runs continue; return the names of their files."""
        assert self.store is not None
        folder = self.session / str(number)
        linked = set()
        for rectangle in piece:
            if rectangle.done:
                names = self.study.names(rectangle.group)
                labels = [names[point] for point in rectangle.points]
                linked |= self.store.link_states(folder, labels, rectangle.seeds, rectangle.done)
        return linked

    def _hand_out(self, number: int, piece: Sequence[Rectangle]) -> None:
        rectangles = [tuple(rectangle) for rectangle in piece]
        # An executor may store results by arguments, so that another attempt needs others.
        arguments = str(self.session), self.token, number, rectangles, time.time_ns()
        try:
            future = self.executor.submit(pieces.compute, *arguments)
        except (BrokenExecutor, RuntimeError) as error:
            raise WorkerError(
                f"the executor takes no tasks ({_text(error)}); {self._stored_text()} "
                f"{self._broken_hint(error)}"
            ) from error
        self.futures[number] = future
        self.known_before[number] = len(self.looked_at.get(number, ()))
        future.add_done_callback(lambda done: self.returned.put((number, done)))

    def _next_future(self) -> tuple[int, Future]:
        """Wait for a piece; meanwhile, show what running ones have left."""
        while True:
            wait = min(self.progress.patience, max(0.0, self.next_look - time.perf_counter()))
            with contextlib.suppress(queue.Empty):
                return self.returned.get(timeout=max(0.01, wait))
            self.progress.update()
            if time.perf_counter() >= self.next_look:
                self._look()

    def _look(self) -> None:
        """Collect blocks of running pieces; they are moved into the store with the whole piece."""
        assert self.store is not None
        start = time.perf_counter()
        for folder in self.session.glob("[0-9]*"):
            if int(folder.name) in self.futures:
                self._read_blocks(int(folder.name))
        spent = time.perf_counter() - start
        self.next_look = time.perf_counter() + max(FLUSH_SECONDS, spent / LOOK_SHARE)

    def _has_new_blocks(self, number: int) -> bool:
        """Whether a lost piece has finished blocks since it was handed out."""
        self._read_blocks(number)
        return len(self.looked_at[number]) > self.known_before[number]

    def _read_blocks(self, number: int) -> None:
        """Collect new blocks in the folder of a piece."""
        assert self.store is not None
        files_read = self.looked_at.setdefault(number, set())
        blocks_by_file = self.store.blocks_in(self.session / str(number), files_read)
        files_read |= blocks_by_file.keys()
        blocks = [block for of_file in blocks_by_file.values() for block in of_file]
        for block in sorted(blocks, key=lambda block: block.first):
            self.uncollected[id(block)] = block
            self._collect_and_report(block)

    def _collect(self, block: Block) -> None:
        """Add a block to the results; its file is moved to the store."""
        self.collection.add(block)
        del self.uncollected[id(block)]

    def _collect_piece(self, number: int, receipt: Receipt, linked: set[str]) -> None:
        """Add a finished piece to the results and to the store."""
        assert self.store is not None
        folder = self.session / str(number)
        if receipt.error is not None:
            raise receipt.error
        self._read_blocks(number)
        self.store.adopt(folder, linked)
        shutil.rmtree(folder, ignore_errors=True)
        self.receipts.append(receipt)
        self.blocks_used.update(receipt.blocks)

    # What goes wrong -----------------------------------------------------------------------------

    def _require_retry(self, future: Future, attempts: int) -> None:
        """Raise ``WorkerError`` if a lost piece is not handed out again."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, ImportError | AttributeError | pickle.PicklingError):
            raise WorkerError(
                f"a worker of the executor cannot import fljax or read what it is handed: "
                f"{_text(error)}. Install the same versions on all machines."
            ) from error
        if attempts >= ATTEMPTS:
            raise WorkerError(
                f"a piece of the study was lost {attempts} times without finishing a block: "
                f"{_text(error)}; {self._stored_text()} Workers that are killed may lack memory: "
                "take fewer of them, or a smaller block=."
            ) from error

    def _broken_hint(self, error: BaseException) -> str:
        hint = "Make a new executor and run the same study again."
        if isinstance(error, BrokenExecutor) and not self.receipts:
            hint += (
                " (A script that starts processes needs `if __name__ == '__main__':` before what "
                "only the first one is to do.)"
            )
        return hint

    def _stored_text(self) -> str:
        done = self.collection.done
        assert self.store is not None
        return f"{int(done.sum())} of {done.size} runs are done and kept in {self.store.folder}."

    def _withdraw(self, interrupted: bool) -> None:
        """Cancel all pieces; wait for running ones to stop; store the finished ones.

        A second Ctrl-C does not wait. What remains is adopted when the study is run again.
        """
        assert self.store is not None
        (self.session / TOKEN).unlink(missing_ok=True)
        cancelled = {number for number, future in self.futures.items() if future.cancel()}
        running = [self.futures[number] for number in self.futures.keys() - cancelled]
        if running and interrupted:
            self.progress.write(
                f"interrupted; waiting for {len(running)} tasks of the executor to end their "
                "blocks. Ctrl-C again leaves them behind."
            )
        with contextlib.suppress(KeyboardInterrupt, OSError):
            for future in running:
                with contextlib.suppress(Exception):
                    future.exception()
            for number in self.futures:
                self._read_blocks(number)
            # Executors that cancel a task which has begun may leave its worker at work in there.
            if not any((self.session / str(number)).is_dir() for number in cancelled):
                self.store.adopt_leftovers()

    def _attributes(self) -> dict[str, Any]:
        return pieces.merged_attributes(super()._attributes(), self.receipts)


def pickled(request: Request, executor: Executor) -> bytes:
    """The request, for workers.

    Raises:
      ValueError: a part of it cannot be pickled; it is named.
    """
    parts: dict[str, Any] = {"scenario": request.scenario}
    for name, values in (request.grid or {}).items():
        parts[f"grid[{name!r}]"] = values
    for name, value in parts.items():
        try:
            user_code.pickled(value)
        except Exception as error:
            raise ValueError(
                f"{name} cannot be sent to workers of the executor: {_text(error)}. Define it in a "
                "module (a file), by its own name; lambdas and functions within functions have "
                "none."
            ) from None
    content = user_code.pickled(request)
    if b"__main__" not in content or _imports_main(executor):
        return content
    try:
        import cloudpickle
    except ImportError:
        raise ValueError(
            "the scenario or a value of the grid is defined in the program that was started, which "
            "workers of the executor do not import; define it in a module (another file)."
        ) from None
    return cloudpickle.dumps(request)


def _imports_main(executor: Executor) -> bool:
    """Whether workers have the names of the program that was started."""
    module = type(executor).__module__
    if module.startswith("mpi4py") or module == "concurrent.futures.thread":
        return True
    main = sys.modules["__main__"]
    is_file = os.path.isfile(getattr(main, "__file__", None) or "")
    return isinstance(executor, ProcessPoolExecutor) and is_file


def _text(error: BaseException | None) -> str:
    """An error in one line."""
    if error is None:
        return "cancelled by the executor"
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(".")


def open_run(executor: Executor | None, study: Study, *args: Any) -> StudyRun:
    """The run of a study in this process, or by an executor."""
    if executor is not None:
        return DistributedRun(executor, study, *args)
    kind = PopulationStudyRun if study.on_disk else StudyRun
    return kind(study, *args)
