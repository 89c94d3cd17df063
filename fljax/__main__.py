"""Studies from the command line: ``python -m fljax run | plan | show | merge``."""

import argparse
import importlib
import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax

import fljax as fl
from fljax._generator import GENERATOR, GENERATORS
from fljax.study.collection import read
from fljax.study.planning import human
from fljax.study.request import parse_shard


class UsageError(Exception):
    """What the user asked for cannot be done; one line."""


class Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m fljax", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    run = commands.add_parser("run", help="run a study, or a shard of it")
    plan = commands.add_parser("plan", help="show how a study would be run")
    for command in (run, plan):
        command.add_argument(
            "scenario", metavar="FILE.py:NAME", help="a scenario function, also module:NAME"
        )
        command.add_argument("--rounds", type=int, required=True, help="iterations of every run")
        command.add_argument("--seeds", type=int, default=1, help="Monte-Carlo runs per grid point")
        command.add_argument(
            "--grid", action="append", default=[], metavar="AXIS=V1,V2", help="numbers or words"
        )
        command.add_argument(
            "--static", action="append", default=[], metavar="AXIS=V1,V2", help="sizes, switches"
        )
        command.add_argument("--record-every", type=int, default=1, metavar="N")
        command.add_argument("--generator", choices=tuple(GENERATORS), default=GENERATOR)
        command.add_argument("--block", type=int, help="seeds per block")
        command.add_argument("--workers", type=int, help="blocks in flight")
        command.add_argument("--segment", type=int, help="rounds between checkpoints")
        command.add_argument("--shard-over", choices=("seeds", "clients"), default="seeds")
        command.add_argument("--x64", action="store_true", help="double precision")
    plan.add_argument("--measure", action="store_true", help="measure the best block, remember it")
    run.add_argument("--root", type=int, default=0, help="the seed of seeds")
    run.add_argument("--until", action="append", default=[], metavar="METRIC=TOLERANCE")
    run.add_argument("--store", type=Path, help="folder that keeps the study")
    run.add_argument("--shard", metavar="I/N", help="only the I-th of N parts, into the store")
    run.add_argument("--out", type=Path, metavar="FILE.nc", help="write the results there")
    run.add_argument(
        "--distributed",
        nargs="?",
        const="",
        metavar="HOST:PORT,I/N",
        help="one of several processes: as the launcher says (SLURM, MPI, Kubernetes), or the "
        "I-th of N with process 1 at HOST:PORT",
    )
    show = commands.add_parser("show", help="what a store holds")
    show.add_argument("store", type=Path)
    merge = commands.add_parser("merge", help="join stores of one study, such as its shards")
    merge.add_argument("into", type=Path)
    merge.add_argument("stores", type=Path, nargs="+")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 2 if the request was wrong, 130 after Ctrl-C."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for noisy in ("jax", "filelock", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        asked = arguments(argv)
        return {"run": run, "plan": plan, "show": show, "merge": merge}[asked.command](asked)
    except (UsageError, fl.StoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(stop or "interrupted", file=sys.stderr)
        return 130


def run(asked: argparse.Namespace) -> int:
    if asked.out is not None and not asked.out.parent.is_dir():
        raise UsageError(f"no folder {asked.out.parent}; create it first.")
    if asked.shard is not None and asked.store is None:
        raise UsageError("--shard needs a --store to leave its runs in.")
    if asked.distributed is not None:
        join(asked.distributed)
    until = {name: float(values[0]) for name, values in axes(asked.until, "--until").items()}
    results = fl.sweep(
        scenario_of(asked.scenario),
        **study(asked),
        root=asked.root,
        until=until,
        store=asked.store,
        shard=asked.shard,
    )
    if jax.process_index() == 0:
        if asked.out is not None:
            fl.save(results, asked.out)
            print(f"written to {asked.out}")
        summarise(results)
    return 0


def plan(asked: argparse.Namespace) -> int:
    print(fl.plan(scenario_of(asked.scenario), **study(asked), measure=asked.measure))
    return 0


def show(asked: argparse.Namespace) -> int:
    size = sum(path.stat().st_size for path in asked.store.glob("*.npz"))
    summarise(read(asked.store))
    print(f"{human(size)} in {asked.store}")
    return 0


def merge(asked: argparse.Namespace) -> int:
    try:
        fl.merge(asked.into, *asked.stores)
    except ValueError as error:
        raise UsageError(error) from None
    return show(argparse.Namespace(store=asked.into))


def summarise(results: Any) -> None:
    """Sizes, and how many runs are done."""
    total = results["diverged"].size if "diverged" in results else 0
    done = int(results["done"].sum()) if "done" in results else total
    axes = ", ".join(f"{name} {size}" for name, size in results["diverged"].sizes.items())
    print(f"{done} of {total} runs of {results.attrs['rounds']} rounds are done ({axes})")


def study(asked: argparse.Namespace) -> dict[str, Any]:
    """What the two commands have in common, as arguments of :func:`fljax.sweep`."""
    if asked.x64:
        jax.config.update("jax_enable_x64", True)
    fixed = {name: fl.static(values) for name, values in axes(asked.static, "--static").items()}
    grid = axes(asked.grid, "--grid")
    if both := grid.keys() & fixed.keys():
        raise UsageError(f"{', '.join(sorted(both))} must be in --grid or in --static, not both.")
    return {
        "rounds": asked.rounds,
        "seeds": asked.seeds,
        "grid": grid | fixed,
        "record_every": asked.record_every,
        "generator": asked.generator,
        "block": asked.block,
        "workers": asked.workers,
        "segment": asked.segment,
        "shard_over": asked.shard_over,
    }


def axes(given: Sequence[str], option: str) -> dict[str, list[Any]]:
    """``["budget=0.1,1"]`` as ``{"budget": [0.1, 1]}``."""
    found = {}
    for text in given:
        name, separator, values = text.partition("=")
        if not (name and separator and values):
            raise UsageError(f"{option} must be NAME=VALUE,VALUE..., got {text!r}.")
        if name in found:
            raise UsageError(
                f"{option} {name} is given twice; write all its values as {name}=VALUE,VALUE..."
            )
        found[name] = [value(word) for word in values.split(",")]
    return found


def value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def scenario_of(text: str) -> Callable[..., fl.Simulation]:
    """The function behind ``file.py:name`` or ``module:name``."""
    place, _, name = text.rpartition(":")
    if not place:
        raise UsageError(f"a scenario is FILE.py:NAME or module:NAME, got {text!r}.")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None or not Path(place).is_file():
            raise UsageError(f"no file {place}.")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    if not hasattr(module, name):
        raise UsageError(f"{place} has no function {name}.")
    return getattr(module, name)


def join(where: str) -> None:
    """Join the other processes, before JAX looks for devices."""
    if not where:
        jax.distributed.initialize()
        return
    address, _, share = where.rpartition(",")
    try:
        part, parts = parse_shard(share)
    except ValueError:
        raise UsageError(f"--distributed must be HOST:PORT,I/N, got {where!r}.") from None
    jax.distributed.initialize(address, parts, part)


if __name__ == "__main__":
    sys.exit(main())
