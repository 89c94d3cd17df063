"""Run, judge and report figures: ``python -m experiments {list,run,check,judge,draw,report}``."""

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from experiments.errors import UsageError, exit_code

if TYPE_CHECKING:
    from concurrent.futures import Executor

#: The stored results, which version control knows: written only when told to.
FIGURES = Path("figures")
#: Where results go, and quick ones.
RESULTS = Path("results")
QUICK_RESULTS = RESULTS / "quick"

EXAMPLES = {
    "list": """
  python -m experiments list
  python -m experiments list gauthier-3.1
""",
    "run": """
  python -m experiments run gauthier-3.1 --quick
  python -m experiments run gauthier-3.1 gauthier-3.2 --seeds 20 --out mine
  python -m experiments run gauthier-3.1 --store kept
  python -m experiments run gauthier-3.1 --set penalty=2 --set zeta=0.98
  python -m experiments run --all --jobs 4 --update
  python -m experiments run --all --store kept --executor dask
""",
    "check": """
  python -m experiments check
  python -m experiments check gauthier-3.1 --recompute --seeds 2
  python -m experiments check --recompute --turn 7
  python -m experiments check gauthier-3.1 --out mine
""",
    "judge": """
  python -m experiments judge
  python -m experiments judge gauthier-3.1 --out mine
""",
    "draw": """
  python -m experiments draw
  python -m experiments draw gauthier-3.1 --out mine
  python -m experiments draw gauthier-3.1 --pdf paper
""",
    "report": """
  python -m experiments report --out mine
""",
}


class Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class Version(argparse.Action):
    """Says the library's version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from fljax._core.version import __version__

        print(f"fljax {__version__}")
        parser.exit()


def add_command(commands: Any, examples: Mapping[str, str], name: str, does: str) -> Parser:
    """A subcommand with its examples."""
    return commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"examples:{examples[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def parser() -> Parser:
    """All commands and options."""
    result = Parser(prog="python -m experiments", description=__doc__)
    result.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    commands = result.add_subparsers(dest="command", required=True, parser_class=Parser)

    command = functools.partial(add_command, commands, EXAMPLES)

    listing = command("list", "name all figures, or the settings of some")
    listing.add_argument("names", nargs="*", metavar="NAME", help="default: all, without settings")
    run = command("run", "compute figures, judge their claims, store all")
    run.add_argument("names", nargs="*", metavar="NAME", help="of a figure (required, or --all)")
    run.add_argument("--all", action="store_true", help="all figures (default: those named)")
    run.add_argument(
        "--quick",
        action="store_true",
        help="fewer seeds, budgets and candidates (default: as the figures are published)",
    )
    run.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="Monte-Carlo runs (default: as the figures are published, with --quick 8)",
    )
    add_folders(run, FIGURES, RESULTS, QUICK_RESULTS)
    run.add_argument(
        "--store",
        type=Path,
        metavar="FOLDER",
        help="folder that keeps what is computed: run again to go on (default: one in the cache, "
        "emptied when all is written)",
    )
    run.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        default=2,
        help="figures computed side by side, each in a process (default %(default)s)",
    )
    add_executor(run, "figures")
    run.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        dest="requests",
        default=[],
        help="another number for a setting of the one figure, named by some of its words; give it "
        f"again for more (default: as published; results go to a folder of their own in {RESULTS})",
    )
    check = command("check", "judge all claims again on the stored results")
    check.add_argument("names", nargs="*", metavar="NAME", help="default: all figures")
    add_recomputing(check, "figures that take less than half a minute")
    judge = command("judge", "judge claims again on the stored results, and store the verdicts")
    judge.add_argument("names", nargs="*", metavar="NAME", help="default: all figures")
    draw = command("draw", "draw figures and judge their claims from the stored results")
    draw.add_argument("names", nargs="*", metavar="NAME", help="default: all figures")
    draw.add_argument(
        "--pdf",
        type=Path,
        metavar="FOLDER",
        help="only draw, as PDF into this folder (default: the gallery's pictures, and claims)",
    )
    report = command("report", "write the gallery, README.md of the folder")
    for subcommand in (check, judge, draw, report):
        subcommand.add_argument(
            "--out", type=Path, default=FIGURES, metavar="FOLDER", help="default %(default)s"
        )
    return result


def add_executor(run: argparse.ArgumentParser, tasks: str) -> None:
    """The option of a command whose tasks may be computed by workers of an executor."""
    run.add_argument(
        "--executor",
        metavar="ENGINE",
        help=f"workers that compute the {tasks}, each of them whole: processes, dask, ray, "
        """submitit, mpi, or with arguments '{"name": "dask", "address": "tcp://node:8786"}'; """
        "they see all folders under the same paths (default: this machine)",
    )


def add_folders(run: argparse.ArgumentParser, stored: Path, results: Path, quick: Path) -> None:
    """The options of a command that says where results go."""
    run.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"folder of the results (default {results}, with --quick {quick})",
    )
    run.add_argument(
        "--update",
        action="store_true",
        help=f"replace the stored results in {stored} (default: they stay as they are)",
    )


def folder_of(options: argparse.Namespace, stored: Path, results: Path, quick: Path) -> Path:
    """Where the results of this request go.

    Raises:
      UsageError: ``--update`` with another folder or with quick results.
    """
    if options.update and options.out is not None:
        raise UsageError(f"--update writes to {stored}, and --out names a folder; give one.")
    if options.update and options.quick:
        raise UsageError("--update replaces full results, and --quick computes few; give one.")
    if options.update:
        return stored
    return options.out or (quick if options.quick else results)


@contextlib.contextmanager
def engine(description: str | None) -> "Iterator[Executor | None]":
    """The executor that was asked for, while its tasks are computed; ``None`` without."""
    if description is None:
        yield None
        return
    from experiments.workers import executor_of

    with executor_of(description) as executor:
        yield executor


def check_replacing(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` for options that do not go with replaced numbers."""
    if options.executor is not None:
        raise UsageError(
            "--set replaces numbers in a process of its own, before it imports the figure; leave "
            "--executor out."
        )
    if options.all or len(set(options.names)) > 1:
        raise UsageError("--set replaces numbers of one figure; name it alone.")
    if options.update:
        raise UsageError(f"--update is of published numbers in {FIGURES}, and --set replaces some.")
    if options.out is not None and options.out.resolve() == FIGURES.resolve():
        raise UsageError(
            f"{FIGURES} has published numbers, and --set replaces some; leave out --out."
        )


def add_recomputing(check: argparse.ArgumentParser, in_turn: str) -> None:
    """The options of a command that compares stored results with those of today's code."""
    check.add_argument(
        "--recompute",
        action="store_true",
        help="compute some of the stored seeds by the code of today and compare the numbers "
        "(default: judge the stored results)",
    )
    check.add_argument(
        "--seeds", type=count, metavar="N", help="seeds that are computed (default 3)"
    )
    check.add_argument(
        "--turn",
        type=count,
        metavar="K",
        help=f"compute one of the {in_turn}, the K-th in turn (default: those that are named)",
    )


def check_recomputing(options: argparse.Namespace, what: str) -> None:
    """Raise ``UsageError`` for options of recomputing that do not go together."""
    if options.recompute and options.names and options.turn is not None:
        raise UsageError(f"name the {what} to compute, or one by --turn.")
    for name in ("seeds", "turn"):
        if not options.recompute and getattr(options, name) is not None:
            raise UsageError(f"--{name} is of --recompute; give both, or neither.")


def count(text: str) -> int:
    """Reads an integer >= 1."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10**7):
        raise argparse.ArgumentTypeError(f"must be an integer from 1 to {10**7}, got {text!r}.")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if a check failed, 2 if the request was wrong."""
    return exit_code(functools.partial(answer, argv))


def answer(argv: Sequence[str] | None) -> int:
    """Run the requested command."""
    options = parser().parse_args(argv)
    # They import matplotlib, JAX and all figures, which --help does not need.
    from experiments import commands, replacing

    if options.command == "list":
        return commands.list_figures(options.names)
    if options.command == "run":
        if bool(options.names) == options.all:
            raise UsageError("name the figures to run, or all of them by --all alone.")
        if options.requests:
            check_replacing(options)
        folder = folder_of(options, FIGURES, RESULTS, QUICK_RESULTS)
        if options.requests and options.out is None:
            folder /= replacing.folder_name(options.names[0], options.requests)
        with engine(options.executor) as executor:
            return commands.run(
                options.names,
                options.quick,
                options.seeds,
                folder,
                options.store,
                options.jobs,
                options.requests,
                executor,
            )
    if options.command == "check":
        check_recomputing(options, "figures")
        if options.recompute:
            return commands.recompute(options.names, options.seeds or 3, options.turn, options.out)
        return commands.check(options.names, options.out)
    if options.command == "judge":
        return commands.judge(options.names, options.out)
    if options.command == "draw":
        if options.pdf is not None:
            return commands.draw_for_print(options.names, options.out, options.pdf)
        return commands.draw(options.names, options.out)
    return commands.report(options.out)


if __name__ == "__main__":
    sys.exit(main())
