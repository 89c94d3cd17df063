"""Studies from the command line: ``python -m fljax run | plan | show | merge | init``."""

import argparse
import contextlib
import json
import logging
import math
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import fljax as fl
from fljax._core import storage
from fljax._core.prng import GENERATOR, GENERATORS
from fljax._core.user_code import HERE, UsageError, one_line, scenario_of, user_lines

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import xarray

    from fljax.study_files import StudyFile

#: How the names of files that fljax.save writes end.
FORMATS = (".nc", ".nc4", ".h5", ".hdf5")

#: How the names of study files end.
STUDY_FILES = (".yaml", ".yml")

EXAMPLES = {
    "run": """
  python -m fljax run mine.py:study --rounds 200 --seeds 100 --grid budget=0.1,1,10
  python -m fljax run mine.py:study --rounds 200 --static clients=10,100 --record-every 10 --x64
  python -m fljax run mine.py:study --rounds 200 --until normalized_error=1e-6 --out results.nc
  python -m fljax run mine.py:study --rounds 9000 --store kept --segment 1000 --generator philox4x32
  python -m fljax run mine.py:study --rounds 200 --seeds 100 --store part-1 --shard 1/2
  python -m fljax run mine.py:study --rounds 200 --seeds 100 --store kept --executor dask
  python -m fljax run mine.py:study --rounds 200 --root 1 --block 8 --workers 2
  python -m fljax run mine.py:study --rounds 200 --shard-over clients --distributed node1:9999,1/2
  python -m fljax run study.yaml grid.budget=[0.1,1] seeds=100
""",
    "plan": """
  python -m fljax plan mine.py:study --rounds 200 --seeds 100 --grid budget=0.1,1,10 --measure
  python -m fljax plan mine.py:study --rounds 200 --static clients=10,100 --record-every 10 --x64
  python -m fljax plan mine.py:study --rounds 9000 --segment 1000 --generator philox4x32
  python -m fljax plan mine.py:study --rounds 9000 --block 8 --workers 2
  python -m fljax plan mine.py:study --rounds 200 --shard-over clients
  python -m fljax plan study.yaml grid.budget=[0.1,1] seeds=100
""",
    "show": """
  python -m fljax show kept
""",
    "merge": """
  python -m fljax merge whole part-1 part-2
""",
    "init": """
  python -m fljax init study.yaml
""",
}


class Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parser() -> Parser:
    """All commands and options."""
    main_parser = Parser(prog="python -m fljax", description=__doc__)
    main_parser.add_argument("--version", action="version", version=f"fljax {fl.__version__}")
    commands = main_parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    def command(name: str, does: str) -> Parser:
        return commands.add_parser(
            name,
            help=does,
            description=f"{does[0].upper()}{does[1:]}.",
            epilog=f"examples:{EXAMPLES[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    run = command("run", "run a study, or a shard of it")
    plan = command("plan", "show how a study would be run")
    for subparser in (run, plan):
        _add_study(subparser)
    plan.add_argument(
        "--measure", action="store_true", help="measure the best block, remember it (default: no)"
    )
    run.add_argument(
        "--root",
        type=integer(-(2**31), 2**32 - 1),
        default=0,
        metavar="N",
        help="the seed of seeds (default %(default)s)",
    )
    run.add_argument(
        "--until",
        action="append",
        default=[],
        metavar="METRIC=LEVEL",
        help="end runs once the metric is at or below the level; again for another metric, then "
        "all must be (default: never)",
    )
    run.add_argument(
        "--store",
        type=Path,
        metavar="FOLDER",
        help="folder that keeps the study: killed, it goes on from there (default: none)",
    )
    run.add_argument(
        "--shard",
        type=share,
        metavar="I/N",
        help="only the I-th of N parts, into the store (default: all)",
    )
    run.add_argument(
        "--executor",
        metavar="ENGINE",
        help="workers that compute the study, into the store: processes, dask, ray, submitit, mpi, "
        """or with arguments '{"name": "processes", "workers": 4}' (default: this process)""",
    )
    run.add_argument(
        "--out", type=Path, metavar="FILE.nc", help="write the results there (default: nowhere)"
    )
    run.add_argument(
        "--distributed",
        nargs="?",
        const="",
        type=address,
        metavar="HOST:PORT,I/N",
        help="one of several processes: as the launcher says (SLURM, MPI, Kubernetes), or the "
        "I-th of N with process 1 at HOST:PORT (default: the only one)",
    )
    show = command("show", "show what a store holds")
    show.add_argument("store", type=Path, metavar="FOLDER", help="a store (required)")
    merge = command("merge", "join stores of one study, such as its shards")
    merge.add_argument(
        "into", type=Path, metavar="INTO", help="a new folder, or a store (required)"
    )
    merge.add_argument(
        "stores", type=Path, nargs="+", metavar="FOLDER", help="stores that are joined (required)"
    )
    init = command("init", "write a commented study file, with a JSON schema for editors")
    init.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path("study.yaml"),
        metavar="FILE.yaml",
        help="the new file (default %(default)s); the schema is written beside it",
    )
    return main_parser


def _add_study(command: Parser) -> None:
    """Options that determine the runs, and options of their execution."""
    command.add_argument(
        "scenario",
        metavar="FILE.py:NAME",
        help="the scenario function NAME of a file, or module:NAME; or a study file, FILE.yaml, "
        "which has all further settings (required)",
    )
    command.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings that replace those of a study file, as in grid.budget=[0.1,1] "
        "(default: none)",
    )
    command.add_argument(
        "--rounds",
        type=integer(1, 2**31 - 1),
        metavar="N",
        help="iterations of every run (required unless a study file has them)",
    )
    command.add_argument(
        "--seeds",
        type=integer(1, 10**7),
        default=1,
        metavar="N",
        help="Monte-Carlo runs per grid point (default %(default)s)",
    )
    command.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="AXIS=V1,V2",
        help="numbers or words that an argument of the scenario takes; again for another one, then "
        "all combinations run (default: the scenario's own defaults)",
    )
    command.add_argument(
        "--static",
        action="append",
        default=[],
        metavar="AXIS=V1,V2",
        help="the same for sizes and switches, each compiled for itself (default: none)",
    )
    command.add_argument(
        "--record-every",
        type=integer(1, 2**31 - 1),
        default=1,
        metavar="N",
        help="rounds a record (default %(default)s)",
    )
    command.add_argument(
        "--generator",
        choices=tuple(GENERATORS),
        default=GENERATOR,
        help="of random numbers (default %(default)s)",
    )
    command.add_argument(
        "--block",
        type=integer(1, 10**9),
        metavar="N",
        help="seeds per block (default: what fits the machine)",
    )
    command.add_argument(
        "--workers",
        type=integer(1, 10**4),
        metavar="N",
        help="blocks in flight (default: the cores at hand, or the devices)",
    )
    command.add_argument(
        "--segment",
        type=integer(1, 2**31 - 1),
        metavar="N",
        help="rounds between checkpoints (default: only long runs have some)",
    )
    command.add_argument(
        "--shard-over",
        choices=("seeds", "clients"),
        default="seeds",
        help="what several devices share (default %(default)s)",
    )
    command.add_argument(
        "--x64", action="store_true", help="double precision (default: single precision)"
    )


def integer(least: int, most: int) -> Callable[[str], int]:
    """Reads one from the interval."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}.") from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"must be an integer from {least} to {most}, got {number}."
            )
        return number

    return read


def share(text: str) -> tuple[int, int]:
    """``"2/5"`` as (2, 5)."""
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    part, parts = (int(number) for number in match.groups()) if match else (0, 0)
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"must be I/N with 1 <= I <= N, got {text!r}.")
    return part, parts


def address(text: str) -> tuple[str, int, int] | tuple[()]:
    """``"node:9999,1/2"`` as ("node:9999", 1, 2); of nothing nothing."""
    if not text:
        return ()
    coordinator, _, part = text.rpartition(",")
    host, _, port = coordinator.rpartition(":")
    if not (host and re.fullmatch(r"\d+", port, re.ASCII) and 0 < int(port) < 2**16):
        raise argparse.ArgumentTypeError(
            f"must be HOST:PORT,I/N with a port below 65536, got {text!r}."
        )
    return coordinator, *share(part)


def axes(texts: Sequence[str], option: str) -> dict[str, list[Any]]:
    """``["budget=0.1,1"]`` as ``{"budget": [0.1, 1]}``."""
    grid = {}
    for text in texts:
        name, _, values = text.partition("=")
        if not (name.isidentifier() and values):
            raise UsageError(f"{option} must be NAME=VALUE,VALUE..., got {text!r}.")
        if name in grid:
            raise UsageError(
                f"{option} {name} is given twice; write all its values as {name}=VALUE,VALUE..."
            )
        grid[name] = [value(word, f"{option} {text}") for word in values.split(",")]
    return grid


def value(word: str, where: str) -> Any:
    """A number, ``true``, ``false`` or a word."""
    number: str | float | bool | None = {"true": True, "false": False, "null": None}.get(word, word)
    with contextlib.suppress(ValueError):  # as Python has numbers: .2, 2., +0.1, 007
        number = float(word)
        number = int(word)
    finite = not isinstance(number, float) or math.isfinite(number)
    if not (isinstance(number, str | int | float) and finite and word == word.strip() != ""):
        raise UsageError(
            f"{where}: a value must be a finite number, true, false or a word, got {word!r}."
        )
    if isinstance(number, str) and re.search(r"""[][{}"'\s]""", number):
        raise UsageError(
            f"{where}: values are separated by commas and have no brackets, quotes or blanks, got "
            f"{word!r}."
        )
    return number


def levels(texts: Sequence[str]) -> dict[str, float]:
    """``["objective=0.1"]`` as ``{"objective": 0.1}``."""
    thresholds = axes(texts, "--until")
    for name, values in thresholds.items():
        if len(values) > 1 or isinstance(values[0], str | bool):
            raise UsageError(
                f"--until must be METRIC=LEVEL with one number, got {name}="
                f"{','.join(map(str, values))}."
            )
    return {name: float(values[0]) for name, values in thresholds.items()}


def writable(path: Path) -> None:
    """Raise ``UsageError`` unless a file can be put there."""
    if path.is_dir() or not path.name:
        raise UsageError(f"--out {path} is a folder; name a file in it, such as results.nc.")
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"--out writes netCDF, and {path.name!r} does not end in {' or '.join(FORMATS)}; name "
            f"it {path.stem}.nc (other formats: fljax.load it, then to_dataframe().to_csv(...))."
        )
    if not path.parent.is_dir():
        raise UsageError(f"no folder {path.parent}; create it first.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {path.parent} ({error.strerror}); choose another folder with --out."
        ) from None


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, as far as possible without the scenario."""
    request = parser().parse_args(argv)
    request.file = request.file if request.command == "init" else None
    if request.command in ("run", "plan") and request.scenario.endswith(STUDY_FILES):
        _check_options(request)
        request.file = Path(request.scenario)
        return request
    if request.command in ("run", "plan"):
        if request.overrides:
            raise UsageError(
                f"unrecognized arguments: {' '.join(request.overrides)}; KEY=VALUE is for study "
                "files, FILE.yaml."
            )
        if request.rounds is None:
            raise UsageError("the following arguments are required: --rounds")
        request.grid = axes(request.grid, "--grid")
        request.static = axes(request.static, "--static")
        if common := request.grid.keys() & request.static.keys():
            raise UsageError(
                f"{', '.join(sorted(common))} must be in --grid or in --static, not both."
            )
    if request.command == "run":
        request.until = levels(request.until)
        if request.out is not None:
            writable(request.out)
        if request.shard is not None and request.store is None:
            raise UsageError("--shard needs a --store to leave its runs in.")
        if request.executor is not None and request.store is None:
            raise UsageError("--executor needs a --store in which its workers leave their runs.")
    return request


def _check_options(request: argparse.Namespace) -> None:
    """Raise ``UsageError`` for options, which a study file has as settings."""
    (commands,) = (action for action in parser()._actions if action.dest == "command")
    assert isinstance(commands.choices, dict)
    for action in commands.choices[request.command]._actions:
        value = getattr(request, action.dest, action.default)
        if not action.option_strings or action.dest in ("distributed", "measure"):
            continue
        if value != action.default:
            option = action.option_strings[-1]
            raise UsageError(
                f"{option} is a setting of the study file; write "
                f"{option.removeprefix('--').replace('-', '_')}=VALUE, or change the file."
            )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 2 if the request was wrong, 130 after Ctrl-C, 141 if output is closed."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for noisy in ("jax", "filelock", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        request = arguments(argv)
        commands = {"run": run, "plan": plan, "show": show, "merge": merge, "init": init}
        code = commands[request.command](request)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt as stop:
        print(stop or "interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Unflushed output must not raise again when Python closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        stores = fl.StoreError | fl.OtherStudyError
        text = one_line(error) if isinstance(error, stores) else error_text(error)
        if text is None:
            raise
        print(f"error: {text}", file=sys.stderr)
    return 2


# Commands ------------------------------------------------------------------------------------


def run(request: argparse.Namespace) -> int:
    import jax

    if request.distributed is not None:
        join(request.distributed)
    if request.file is not None:
        study_file = study_file_of(request)
        results = study_file.sweep()
        if jax.process_index() == 0:
            if study_file.out is not None:
                print(f"written to {study_file.out}")
            summarize(results)
        return 0
    text = request.executor
    with contextlib.nullcontext() if text is None else executor_of(text) as executor:
        results = fl.sweep(
            scenario_of(request.scenario),
            **study(request),
            root=request.root,
            until=request.until,
            store=request.store,
            shard=request.shard,
            executor=executor,
        )
    if jax.process_index() == 0:
        if request.out is not None:
            save(results, request.out)
            print(f"written to {request.out}")
        summarize(results)
    return 0


def executor_of(text: str) -> "Executor":
    """The executor that the command line names."""
    try:
        return fl.executors.executor_of(text)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise UsageError(one_line(error)) from None


def study_file_of(request: argparse.Namespace) -> "StudyFile":
    try:
        study_file = fl.study_files.read(request.file, request.overrides)
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(one_line(error)) from None
    if study_file.out is not None:
        writable(study_file.out)
    return study_file


def plan(request: argparse.Namespace) -> int:
    if request.file is not None:
        print(study_file_of(request).plan(request.measure))
        return 0
    print(fl.plan(scenario_of(request.scenario), **study(request), measure=request.measure))
    return 0


def show(request: argparse.Namespace) -> int:
    from fljax._core.memory import human

    if not request.store.is_dir():
        raise UsageError(f"{request.store} is no store of fljax: it is no folder.")
    size = sum(path.stat().st_size for path in request.store.glob("*.npz"))
    summarize(fl.load(request.store))
    print(f"{human(size)} in {request.store}")
    return 0


def merge(request: argparse.Namespace) -> int:
    try:
        fl.merge(request.into, *request.stores)
    except ValueError as error:
        raise UsageError(one_line(error)) from None
    return show(argparse.Namespace(store=request.into))


def init(request: argparse.Namespace) -> int:
    path = request.file
    if path.suffix not in STUDY_FILES:
        raise UsageError(f"a study file ends in .yaml or .yml, got {path}; name it {path}.yaml.")
    if path.exists():
        raise UsageError(f"{path} exists and is not replaced; give another name.")
    if not path.parent.is_dir():
        raise UsageError(f"no folder {path.parent}; create it first.")
    schema = path.with_name(f"{path.stem}.schema.json")
    storage.replace_file(path, fl.study_files.example(str(path), schema.name))
    storage.replace_file(schema, json.dumps(fl.study_files.schema(), separators=(",", ":")))
    print(f"written: {path} and {schema}; next: python -m fljax run {path}")
    return 0


def save(results: "xarray.Dataset", path: Path) -> None:
    try:
        fl.save(results, path)
    except OSError as error:
        raise UsageError(f"{error.strerror or error}.") from None


def summarize(results: "xarray.Dataset") -> None:
    """Sizes, and how many runs are done."""
    if "diverged" not in results:
        print("no run is done")
        return
    total = results["diverged"].size
    done = int(results["done"].sum()) if "done" in results else total
    sizes = ", ".join(f"{name} {size}" for name, size in results["diverged"].sizes.items())
    print(f"{done} of {total} runs of {results.attrs['rounds']} rounds are done ({sizes})")


def study(request: argparse.Namespace) -> dict[str, Any]:
    """What the two commands have in common, as arguments of :func:`fljax.sweep`."""
    if request.x64:
        import jax

        jax.config.update("jax_enable_x64", True)
    fixed = {name: fl.static(values) for name, values in request.static.items()}
    return {
        "rounds": request.rounds,
        "seeds": request.seeds,
        "grid": request.grid | fixed,
        "record_every": request.record_every,
        "generator": request.generator,
        "block": request.block,
        "workers": request.workers,
        "segment": request.segment,
        "shard_over": request.shard_over,
    }


def join(where: tuple[str, int, int] | tuple[()]) -> None:
    """Join the other processes, before JAX looks for devices."""
    import jax

    if where:
        coordinator, part, parts = where
        jax.distributed.initialize(coordinator, parts, part - 1)
        return
    try:
        jax.distributed.initialize()
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"--distributed found no launcher (SLURM, MPI, Kubernetes) that says which processes "
            f"there are ({one_line(error)}); give it HOST:PORT,I/N."
        ) from None


# Messages about errors ----------------------------------------------------------------------------


def error_text(error: Exception) -> str | None:
    """An error as text: the library's message in one line, or the user's lines of the traceback for
    other errors in a scenario; ``None`` for errors within the library.
    """
    notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
    text = " ".join([one_line(error), *notes])
    *_, last = traceback.extract_tb(error.__traceback__)
    if last.filename.startswith(HERE) and isinstance(error, TypeError | ValueError | MemoryError):
        return text
    lines = user_lines(error)
    return f"the scenario failed: {type(error).__name__}: {text}{lines}" if lines else None


if __name__ == "__main__":
    sys.exit(main())
