"""The commands of the command line: list, run, check and report the figures."""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import importlib
import multiprocessing
import os
import pkgutil
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
from filelock import FileLock, Timeout

import experiments
import fljax as fl
from experiments import records
from experiments.errors import UsageError
from experiments.figure import (
    REGISTRY,
    REPLACED,
    Effort,
    Figure,
    Replaced,
    Studies,
    replace_numbers,
)
from experiments.recomputing import compared, verdict
from experiments.records import Broken
from experiments.replacing import applied, described, replacements
from experiments.report import claims_lines, pages, privacy_lines, tuning_lines, value_text
from experiments.thinning import thinned
from experiments.workers import hand_out
from fljax.__main__ import one_line
from fljax._core import checks, storage
from fljax._core.devices import configured
from fljax._core.storage import replace_file, write_whole
from fljax.results.dataset import versions_in_use
from fljax.study.batched_program import program


def figure_modules() -> list[str]:
    """The modules of all documents that each declare a figure, in order."""
    documents = [d.name for d in pkgutil.iter_modules(experiments.__path__) if d.ispkg]
    return [
        f"experiments.{document}.{module.name}"
        for document in documents
        for module in pkgutil.iter_modules([str(Path(__file__).parent / document)])
        if module.name.startswith("figure_")
    ]


#: Importing one declares its figure.
MODULES = figure_modules()
#: Errors of figures that cannot be imported with the numbers that replace the published ones.
IMPORT_ERRORS: list[Exception] = []
for _module in MODULES:
    try:
        importlib.import_module(_module)
    except Exception as _error:
        if not REPLACED:
            raise
        IMPORT_ERRORS.append(_error)

FULL = Effort()
QUICK = Effort(seeds=8, tuning_seeds=4, quick=True)


def in_order() -> list[Figure]:
    """All figures by name, whichever was imported first."""
    return [REGISTRY[name] for name in sorted(REGISTRY)]


def find(names: Sequence[str]) -> list[Figure]:
    """The figures of these names; all figures without names."""
    if not names:
        return in_order()
    try:
        for name in names:
            checks.choice("figure", name, REGISTRY)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [REGISTRY[name] for name in dict.fromkeys(names)]


def writable(folder: Path) -> Path:
    """The folder, created if missing; checked before anything is computed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder} ({error.strerror}); choose another folder with --out."
        ) from None
    return folder


def readable(folder: Path) -> None:
    """Raise ``UsageError`` unless it is a folder."""
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}; python -m experiments run --out {folder} makes it.")


def list_figures(names: Sequence[str] = ()) -> int:
    """Name all figures, or the settings of some."""
    for figure in find(names):
        print(f"{figure.name:<18} {figure.title} ({figure.source}; {len(figure.claims)} claims)")
        if names:
            lines = (f"{s.name} = {value_text(s.value)}: {s.why}" for s in figure.settings)
            print("\n".join(f"  {line}" for line in lines))
    return 0


def run(
    names: Sequence[str],
    quick: bool,
    seeds: int | None,
    folder: Path,
    store: Path | None,
    jobs: int = 1,
    requests: Sequence[str] = (),
    executor: Executor | None = None,
) -> int:
    """Compute figures.

    Args:
      names: of the figures.
      quick: fewer seeds, budgets and candidates.
      seeds: Monte-Carlo runs; ``None`` for as many as each figure is published with, or few if
        quick.
      folder: of the results; a figure whose numbers are replaced has a folder in it.
      store: folder of unfinished studies; ``None`` for a folder in the cache.
      jobs: figures side by side.
      requests: the numbers of the one figure that are replaced, as typed.
      executor: whose workers compute the figures, instead of processes of this machine.
    """
    figures = find(names)
    replaced = replacements(figures[0], requests) if requests else {}
    base = QUICK if quick else FULL
    effort = base if seeds is None else Effort(seeds, min(base.tuning_seeds, seeds), quick)
    # Workers of an executor may start in other folders.
    work = writable(unfinished(effort, replaced) if store is None else store).resolve()
    writable(folder)
    if store is None:
        for figure in figures:
            discard_stale(work, figure.name)
    requested = effort if quick or seeds is not None else None
    compute = functools.partial(_run_one, effort=requested, work=work, folder=folder)
    if executor is not None:
        compute = functools.partial(compute, folder=folder.resolve())
        hand_out(executor, compute, [figure.name for figure in figures])
    elif replaced:
        _side_by_side(compute, figures, 1, replaced)
    elif min(jobs, len(figures)) == 1:
        for figure in figures:
            compute(figure.name)
    else:
        _side_by_side(compute, figures, jobs)
    if store is None:
        for figure in figures:  # another run of this effort may be at work on others
            shutil.rmtree(work / figure.name, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()
    return 0


class Clock:
    """The seconds spent on a figure, including earlier parts that its store holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = 0.0
        self.seconds = 0.0
        with contextlib.suppress(OSError, ValueError):
            self.before = float(path.read_text())

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds = self.before + time.perf_counter() - self.began
        with contextlib.suppress(OSError):  # results must not be lost to a full disk
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, f"{self.seconds}\n".encode())


def _studies_of(figure: Figure, effort: Effort) -> Studies:
    """The figure's studies, computed."""
    with configured("jax_enable_x64", figure.double), warnings.catch_warnings():
        # Broken bounds and diverged runs are printed and stored.
        warnings.simplefilter("ignore", fl.AssumptionWarning)
        warnings.simplefilter("ignore", fl.DivergenceWarning)
        try:
            return figure.study(effort)
        except (fl.StoreError, fl.OtherStudyError, Broken) as error:
            raise UsageError(one_line(error)) from None


@contextlib.contextmanager
def explain_replaced(figure: Figure) -> Iterator[None]:
    """Explain that a figure cannot be computed or judged with the numbers that were asked for."""
    try:
        yield
    except Exception as error:
        numbers = described(applied(figure))
        if not numbers or isinstance(error, UsageError | Broken | OSError):
            raise
        raise UsageError(
            f"{figure.name} cannot be computed where {numbers}: {type(error).__name__}: "
            f"{one_line(error)}"
        ) from error


def check_folder(figure: Figure, folder: Path) -> None:
    """Raise ``UsageError`` if results would be lost that are of other numbers."""
    try:
        stored = records.read_record(figure, folder, any_numbers=True)
    except Broken:
        return
    if numbers := records.other_numbers(figure, stored):
        raise UsageError(
            f"{folder} has results of {figure.name} with {numbers}; name another folder by --out."
        )


def _run_one(name: str, effort: Effort | None, work: Path, folder: Path) -> None:
    """Compute a figure and store it; no effort stands for the one it is published with."""
    if name not in REGISTRY:
        replaced = described(REPLACED.values())
        raise UsageError(
            f"{name} cannot be computed where {replaced}: {one_line(IMPORT_ERRORS[0])}"
        )
    figure = REGISTRY[name]
    effort = dataclasses.replace(FULL, seeds=figure.seeds) if effort is None else effort
    check_folder(figure, folder)
    mpl.use("Agg")
    # Objects made by imports stay: scanning them in every collection is a tenth of tracing time.
    gc.freeze()
    print(f"{figure.name}: {figure.title}\n  {figure.source}")
    if numbers := described(applied(figure)):
        print(f"  {numbers}")
    tuned = f"{effort.tuning_seeds} other seeds for tuning"
    print(f"  up to {effort.seeds} seeds, {tuned}", flush=True)
    resumed = (work / figure.name).is_dir()
    clock = Clock(work / figure.name / "seconds")
    with clock, explain_replaced(figure):
        results = _studies_of(figure, dataclasses.replace(effort, store=work / figure.name))
        with configured("jax_enable_x64", figure.double):
            try:
                studies = thinned(figure, results, effort)
            except Broken as error:
                raise UsageError(str(error)) from None
    if resumed:
        print(f"  went on from what {work} held: the time counts earlier parts, killed ones aside")
    try:
        with explain_replaced(figure):
            written = records.store(figure, studies, folder, effort, clock.seconds)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error}") from None
    except Broken as error:
        raise UsageError(str(error)) from None
    show(written)
    print(f"\nwritten to {folder}{os.sep}{figure.name}*  ({clock.seconds:.0f} s of computing)")
    print(f"the picture: {folder / figure.name}.png\n")
    # Machine code of all figures together does not fit a process.
    program.cache_clear()
    jax.clear_caches()


def _side_by_side(
    compute: Callable[[str], None],
    figures: Sequence[Figure],
    jobs: int,
    replaced: Mapping[str, Replaced] | None = None,
) -> None:
    """Each figure in its own process, so that one compiles while another computes, and replaced
    numbers are there when it is imported.
    """
    with ProcessPoolExecutor(
        jobs,
        multiprocessing.get_context("spawn"),
        initializer=replace_numbers,
        initargs=(replaced or {},),
        max_tasks_per_child=1,
    ) as pool:
        remedy = "with --jobs 1 goes on from what is stored."
        hand_out(pool, compute, [figure.name for figure in figures], remedy)


def unfinished(effort: Effort, replaced: Mapping[str, Replaced]) -> Path:
    """The folder in which the same code with the same effort and numbers resumes a killed run."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    request = dataclasses.astuple(effort)
    return resume_folder("figures", (request, replaced) if replaced else request, sources)


def resume_folder(kind: str, effort: Any, sources: Sequence[Path]) -> Path:
    """A folder named by digests of the effort and of all code: its stores are resumed only by the
    same code with the same effort.
    """
    code = hashlib.sha256(versions_in_use().encode())
    for path in sources:
        code.update(path.read_bytes())
    effort_digest = hashlib.sha256(repr(effort).encode())
    return storage.cache() / kind / f"{effort_digest.hexdigest()[:8]}-{code.hexdigest()[:16]}"


def discard_stale(work: Path, name: str) -> None:
    """Remove unfinished work of the same command under another version of the code or of JAX, which
    cannot be resumed.
    """
    for other in work.parent.glob(f"{work.name.partition('-')[0]}-*"):
        left = other / name
        if other == work or not left.is_dir() or _is_in_use(left):
            continue
        shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(OSError):
            other.rmdir()
        print(
            f"{name} begins anew: what another version of the code or of JAX left unfinished in "
            f"{left} is removed"
        )


def _is_in_use(folder: Path) -> bool:
    """Whether a process works on one of the stores in a folder."""
    locks = [*folder.rglob("*.lock"), *folder.parent.glob(f"{folder.name}.lock")]
    for path in locks:
        try:
            with FileLock(path, timeout=0):
                pass
        except (Timeout, OSError):
            return True
    return False


def draw(names: Sequence[str], folder: Path) -> int:
    """Draw pictures and judge claims again, from stored results."""
    mpl.use("Agg")
    return _write_again(names, folder, _draw)


def draw_for_print(names: Sequence[str], folder: Path, printed: Path) -> int:
    """Draw pictures as PDF from stored results, into a folder of their own."""
    mpl.use("Agg")
    figures = find(names)
    readable(folder)
    writable(printed)
    for figure in figures:
        try:
            records.read_record(figure, folder)
            studies = records.read_studies(figure, folder)
            print(records.save_picture(figure, studies, printed / f"{figure.name}.pdf"))
        except Broken as error:
            raise UsageError(str(error)) from None
    return 0


def judge(names: Sequence[str], folder: Path) -> int:
    """Judge claims again from stored results, and write the verdicts; pictures stay."""
    return _write_again(names, folder, records.judge)


def _draw(figure: Figure, folder: Path) -> dict[str, Any]:
    stored = records.read_record(figure, folder)
    studies = records.read_studies(figure, folder)
    effort = Effort(**stored["effort"])
    return records.describe(figure, studies, folder, effort, stored["seconds"])


def _write_again(
    names: Sequence[str], folder: Path, write: Callable[[Figure, Path], dict[str, Any]]
) -> int:
    """Write the records of figures again, and print their claims."""
    figures = find(names)
    readable(folder)
    for figure in figures:
        try:
            written = write(figure, folder)
        except Broken as error:
            raise UsageError(str(error)) from None
        print(figure.name)
        print("\n".join(f"  {line}" for line in claims_lines(written["claims"])))
    return 0


def show(written: dict[str, Any]) -> None:
    for title, lines in (
        ("tuning", tuning_lines(written)),
        ("privacy spent", privacy_lines(written)),
        ("claims", claims_lines(written["claims"])),
    ):
        if lines:
            print(f"\n{title}")
            print("\n".join(f"  {line}" for line in lines))


#: The longest that computing some seeds of a figure may take, by its record, to take turns [s].
AFFORDABLE = 30


def in_turn(turn: int, seeds: int, folder: Path) -> Figure:
    """Return one of the figures that take less than :data:`AFFORDABLE` for this number of seeds.

    Args:
      turn: its number, counted around.
      seeds: to be computed.
      folder: of the stored figures.
    """
    quick = []
    for figure in in_order():
        record = records.read_record(figure, folder)
        stored = max(record["seeds"], default=seeds)
        if record["seconds"] * min(seeds, stored) / stored < AFFORDABLE:
            quick.append(figure)
    if not quick:
        raise UsageError(f"no figure in {folder} takes less than {AFFORDABLE} s for {seeds} seeds.")
    return quick[turn % len(quick)]


def recompute(names: Sequence[str], seeds: int, turn: int | None, folder: Path) -> int:
    """Compute a few of the stored seeds by the current code, and compare the numbers."""
    readable(folder)
    try:
        figures = find(names) if turn is None else [in_turn(turn, seeds, folder)]
    except Broken as error:
        raise UsageError(str(error)) from None
    differs = False
    for figure in figures:
        try:
            effort = Effort(**records.read_record(figure, folder)["effort"])
            stored = records.read_studies(figure, folder)
        except Broken as error:
            raise UsageError(str(error)) from None
        began = time.perf_counter()
        few = dataclasses.replace(effort, seeds=min(seeds, effort.seeds), progress=False)
        comparison = compared(stored, _studies_of(figure, few))
        print(f"{figure.name}: {few.seeds} seeds, {time.perf_counter() - began:.0f} s")
        print("\n".join(comparison.lines() or ["  the stored numbers"]))
        differs |= bool(comparison.differs)
        program.cache_clear()
        jax.clear_caches()
    print(verdict(differs))
    return int(differs)


def check(names: Sequence[str], folder: Path) -> int:
    figures = find(names)
    failed = False
    readable(folder)
    for figure in figures:
        print(figure.name)
        try:
            verdicts, wrong = records.check(figure, folder)
        except Exception as error:  # a claim may raise anything; the others are still judged
            kind = "" if isinstance(error, Broken) else f"{type(error).__name__}: "
            print(f"  BROKEN: {kind}{error}")
            failed = True
            continue
        claims = {claim.name: claim for claim in figure.claims}
        judged = [records.plain(records.claim_record(claims[v.claim], v)) for v in verdicts]
        print("\n".join(f"  {line}" for line in claims_lines(judged)))
        for line in wrong:
            print(f"  DISAGREES: {line}")
        failed |= bool(wrong)
    print("stored and recomputed results disagree" if failed else "all stored verdicts confirmed")
    return int(failed)


def report(folder: Path) -> int:
    readable(folder)
    result = []
    missing = []
    for figure in in_order():
        try:
            result.append(records.read_record(figure, folder, any_numbers=True))
        except Broken as error:
            missing.append(f"left out: {error}")
    if not result:
        raise UsageError(
            f"no results in {folder}; python -m experiments run NAME --out {folder} makes them."
        )
    print("\n".join(missing), end="\n" if missing else "", file=sys.stderr)
    writable(folder)
    for name, text in pages(result, records.first_edition()).items():
        replace_file(folder / name, text)
    print(f"written to {folder / 'README.md'}, and a page a figure beside it")
    return 0
