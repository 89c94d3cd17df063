"""Run, check and report the figures: ``python -m experiments list | run | check | report``."""

import argparse
import dataclasses
import importlib
import os
import pkgutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import matplotlib as mpl

import experiments
import fljax as fl
from experiments import records
from experiments.figure import REGISTRY, Effort, Figure
from experiments.records import Broken
from experiments.report import claims_lines, gallery, privacy_lines, tuning_lines
from fljax import _check
from fljax.study.engine import configured


def figure_modules() -> list[str]:
    """The modules of all documents that declare a figure each, in order."""
    documents = [d.name for d in pkgutil.iter_modules(experiments.__path__) if d.ispkg]
    return [
        f"experiments.{document}.{module.name}"
        for document in documents
        for module in pkgutil.iter_modules([str(Path(__file__).parent / document)])
        if module.name.startswith("figure_")
    ]


#: Importing one declares its figure.
MODULES = figure_modules()
for _module in MODULES:
    importlib.import_module(_module)

FULL, QUICK = Effort(), Effort(seeds=8, tuning_seeds=4, quick=True)

FIGURES = Path("figures")
#: Quick results never overwrite full ones unless told to.
QUICK_FIGURES = FIGURES / "quick"


class UsageError(Exception):
    """What the user asked for cannot be done; one line."""


class Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    commands.add_parser("list", help="name all figures")
    run = commands.add_parser("run", help="compute figures, judge their claims, store all")
    run.add_argument("names", nargs="+", metavar="NAME", help="of a figure, or 'all'")
    run.add_argument("--quick", action="store_true", help="fewer seeds, budgets and candidates")
    run.add_argument("--seeds", type=int, help=f"Monte-Carlo runs (default {FULL.seeds})")
    run.add_argument(
        "--out", type=Path, help=f"folder (default {FIGURES}, with --quick {QUICK_FIGURES})"
    )
    run.add_argument(
        "--store", type=Path, help="folder that keeps unfinished work: run again to go on"
    )
    check = commands.add_parser("check", help="judge all claims again on the stored results")
    check.add_argument("names", nargs="*", metavar="NAME", help="default: all figures")
    report = commands.add_parser("report", help="write the gallery, README.md of the folder")
    for command in (check, report):
        command.add_argument("--out", type=Path, default=FIGURES, help=f"default {FIGURES}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if a check failed, 2 if the request was wrong."""
    try:
        asked = arguments(argv)
        if asked.command == "list":
            return list_figures()
        if asked.command == "run":
            return run(asked.names, asked.quick, asked.seeds, asked.out, asked.store)
        if asked.command == "check":
            return check(asked.names, asked.out)
        return report(asked.out)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(stop or "interrupted", file=sys.stderr)
        return 130


def in_order() -> list[Figure]:
    """All figures by name, whichever was imported first."""
    return [REGISTRY[name] for name in sorted(REGISTRY)]


def find(names: Sequence[str]) -> list[Figure]:
    """The figures of these names; all of them for none or ``all``."""
    if not names or list(names) == ["all"]:
        return in_order()
    try:
        for name in names:
            _check.choice("figure", name, REGISTRY)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [REGISTRY[name] for name in dict.fromkeys(names)]


def writable(folder: Path) -> Path:
    """The folder, made if need be; checked before anything is computed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder} ({error.strerror}); choose another folder with --out."
        ) from None
    return folder


def list_figures() -> int:
    for figure in in_order():
        print(f"{figure.name:<18} {figure.title} ({figure.source}; {len(figure.claims)} claims)")
    return 0


def run(
    names: Sequence[str],
    quick: bool,
    seeds: int | None,
    out: Path | None,
    store: Path | None = None,
) -> int:
    figures = find(names)
    if seeds is not None and seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {seeds}.")
    base = QUICK if quick else FULL
    count = base.seeds if seeds is None else seeds
    effort = Effort(count, min(base.tuning_seeds, count), quick)
    if store is not None:
        writable(store)
    folder = writable(out or (QUICK_FIGURES if quick else FIGURES))
    mpl.use("Agg")
    for figure in figures:
        print(f"{figure.name}: {figure.title}\n  {figure.source}")
        print(f"  {effort.seeds} seeds, {effort.tuning_seeds} other seeds for tuning", flush=True)
        began = time.perf_counter()
        with configured("jax_enable_x64", figure.double), warnings.catch_warnings():
            # Broken bounds and diverged runs are part of what is printed and stored below.
            warnings.simplefilter("ignore", fl.AssumptionWarning)
            warnings.simplefilter("ignore", fl.DivergenceWarning)
            kept = None if store is None else store / figure.name
            try:
                found = figure.study(dataclasses.replace(effort, store=kept))
            except fl.StoreError as error:
                raise UsageError(str(error)) from None
            studies = {k: records.slim(v) for k, v in found.items()}
        seconds = time.perf_counter() - began
        try:
            written = records.store(figure, studies, folder, effort, seconds)
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {error}") from None
        show(written)
        print(f"\nwritten to {folder}{os.sep}{figure.name}*  ({seconds:.0f} s of computing)\n")
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


def check(names: Sequence[str], folder: Path) -> int:
    failed = False
    for figure in find(names):
        print(figure.name)
        try:
            verdicts, wrong = records.check(figure, folder)
        except Broken as error:
            print(f"  BROKEN: {error}")
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
    found = []
    for figure in in_order():
        try:
            found.append(records.read_record(figure, folder))
        except Broken as error:
            print(f"left out: {error}", file=sys.stderr)
    if not found:
        raise UsageError(f"no results in {folder}; python -m experiments run all makes them.")
    path = writable(folder) / "README.md"
    path.write_text(gallery(found), encoding="utf-8")
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
