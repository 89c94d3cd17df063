"""Run and report the atlas: ``python -m experiments.atlas {list,run,check,report}``."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.__main__ import (
    FIGURES,
    QUICK_RESULTS,
    RESULTS,
    Parser,
    add_command,
    add_executor,
    add_folders,
    add_recomputing,
    check_recomputing,
    engine,
    folder_of,
)
from experiments.errors import UsageError, exit_code

ATLAS = FIGURES / "atlas"
FOLDERS = ATLAS, RESULTS / "atlas", QUICK_RESULTS / "atlas"

EXAMPLES = {
    "list": """
  python -m experiments.atlas list
""",
    "run": """
  python -m experiments.atlas run --quick
  python -m experiments.atlas run peers-ring peers-grid --out mine
  python -m experiments.atlas run --all --update
  python -m experiments.atlas run --all --out mine --executor processes
""",
    "check": """
  python -m experiments.atlas check
  python -m experiments.atlas check --out mine
  python -m experiments.atlas check peers-ring --recompute --seeds 2
  python -m experiments.atlas check --recompute --turn 7
""",
    "report": """
  python -m experiments.atlas report --out mine
""",
}


def parser() -> Parser:
    """All commands and options."""
    result = Parser(prog="python -m experiments.atlas", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True, parser_class=Parser)

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
    add_executor(run, "scenarios")
    check = command("check", "judge the stored results again, and compare the stored pages")
    check.add_argument("names", nargs="*", metavar="NAME", help="of --recompute (default: all)")
    add_recomputing(check, "groups of four algorithms in a scenario")
    report = command("report", "write the pages from the stored results")
    add_folders(run, *FOLDERS)
    for subcommand in (check, report):
        subcommand.add_argument(
            "--out",
            type=Path,
            metavar="FOLDER",
            default=ATLAS,
            help="folder of results (default %(default)s)",
        )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 if the request was wrong."""
    return exit_code(functools.partial(answer, argv))


def answer(argv: Sequence[str] | None) -> int:
    """Run the requested command."""
    options = parser().parse_args(argv)
    from experiments.atlas import commands  # JAX and all scenarios, for more than --help

    if options.command == "list":
        return commands.list_scenarios()
    if options.command == "check":
        check_recomputing(options, "scenarios")
        if options.recompute:
            return commands.recompute(options.names, options.seeds or 3, options.turn, options.out)
        if options.names:
            raise UsageError("check compares all pages; name scenarios with --recompute.")
        return commands.check(options.out)
    if options.command == "report":
        return commands.report(options.out)
    if options.names and options.all:
        raise UsageError("name the scenarios to run, or all of them by --all alone.")
    if not (options.names or options.all or options.quick):
        raise UsageError("name the scenarios to run, or all of them by --all.")
    folder = folder_of(options, *FOLDERS)
    with engine(options.executor) as executor:
        return commands.run(
            options.names, options.all, options.quick, folder, options.store, executor
        )


if __name__ == "__main__":
    sys.exit(main())
