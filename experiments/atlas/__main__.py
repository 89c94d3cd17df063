"""Run and report the atlas: ``python -m experiments.atlas {list,run,report}``."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.__main__ import FIGURES, QUICK_FIGURES, Parser, add_command
from experiments.errors import UsageError, exit_code

ATLAS, QUICK_ATLAS = FIGURES / "atlas", QUICK_FIGURES / "atlas"

EXAMPLES = {
    "list": """
  python -m experiments.atlas list
""",
    "run": """
  python -m experiments.atlas run --quick
  python -m experiments.atlas run peers-ring peers-grid --out mine
  python -m experiments.atlas run --all
""",
    "report": """
  python -m experiments.atlas report --out mine
""",
}


def parser() -> Parser:
    """All commands and options."""
    whole = Parser(prog="python -m experiments.atlas", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True, parser_class=Parser)

    command = functools.partial(add_command, commands, EXAMPLES)

    command("list", "name all scenarios, and why each is standard")
    run = command("run", "tune and run every algorithm in scenarios that admit it")
    run.add_argument("names", nargs="*", metavar="NAME", help="of a scenario (or --all, --quick)")
    run.add_argument("--all", action="store_true", help="all scenarios (default: those named)")
    run.add_argument(
        "--quick",
        action="store_true",
        help="few seeds, candidates and methods; without names three scenarios, in a minute",
    )
    run.add_argument(
        "--store",
        type=Path,
        metavar="FOLDER",
        help="folder that keeps what is computed of an unfinished scenario (default: in the cache)",
    )
    report = command("report", "write the pages from the stored results")
    for one in (run, report):
        one.add_argument(
            "--out",
            type=Path,
            metavar="FOLDER",
            help=f"folder of results (default {ATLAS}"
            + (f", with --quick {QUICK_ATLAS})" if one is run else ")"),
        )
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 if the request was wrong."""
    return exit_code(functools.partial(answer, argv))


def answer(argv: Sequence[str] | None) -> int:
    """Do what is asked for."""
    asked = parser().parse_args(argv)
    from experiments.atlas import commands  # JAX and all scenarios, for more than --help

    if asked.command == "list":
        return commands.list_scenarios()
    if asked.command == "report":
        return commands.report(asked.out or ATLAS)
    if asked.names and asked.all:
        raise UsageError("name the scenarios to run, or all of them by --all alone.")
    if not (asked.names or asked.all or asked.quick):
        raise UsageError("name the scenarios to run, or all of them by --all.")
    folder = asked.out or (QUICK_ATLAS if asked.quick else ATLAS)
    return commands.run(asked.names, asked.all, asked.quick, folder, asked.store)


if __name__ == "__main__":
    sys.exit(main())
