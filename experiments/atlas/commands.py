"""The commands of the atlas: list, run and report scenarios."""

import functools
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
import xarray as xr

from experiments.atlas import (
    analysis,
    clock,
    communication,
    convex,
    graphs,
    hierarchy,
    labels,
    links,
    others,
    trust,
)
from experiments.atlas.methods import methods
from experiments.atlas.report import pages, quoted
from experiments.atlas.running import (
    FULL,
    QUICK,
    Effort,
    ScenarioInUse,
    compute,
    floats,
    last_values,
    path_of,
    read,
    together,
    unfinished,
)
from experiments.atlas.scenario import SCENARIOS, Scenario
from experiments.commands import discard_stale, readable, writable
from experiments.errors import UsageError
from experiments.recomputing import Comparison, compared, verdict
from experiments.workers import hand_out
from fljax import OtherStudyError, StoreError
from fljax.__main__ import one_line
from fljax._core import checks
from fljax._core.storage import replace_file
from fljax.metrics.definitions import METRICS
from fljax.study.batched_program import program

#: Importing one declares its scenarios.
FAMILIES = (convex, links, graphs, trust, labels, others, clock, communication, hierarchy)

#: What ``--quick`` runs: one scenario of each kind of network.
SHORT = ("squares-well-mildly", "peers-ring", "clusters-servers")


def find(names: Iterable[str]) -> list[Scenario]:
    try:
        for name in names:
            checks.choice("scenario", name, SCENARIOS)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [SCENARIOS[name] for name in dict.fromkeys(names)]


def list_scenarios() -> int:
    for scenario in SCENARIOS.values():
        print(f"{scenario.name:<26} {scenario.title}\n{'':<26} {scenario.reason}")
    return 0


def run(
    names: Sequence[str],
    every: bool,
    quick: bool,
    folder: Path,
    store: Path | None,
    executor: Executor | None = None,
) -> int:
    """Compute scenarios, here or by the workers of an executor."""
    scenarios = find(names or (list(SCENARIOS) if every else SHORT))
    effort = QUICK if quick else FULL
    # Workers of an executor may start in other folders.
    work = writable(unfinished(effort) if store is None else store).resolve()
    writable(folder)
    if store is None:
        for scenario in scenarios:
            discard_stale(work, scenario.name)
    names = [scenario.name for scenario in scenarios]
    compute_one = functools.partial(_run_one, effort=effort, folder=folder, work=work)
    if executor is not None:
        hand_out(executor, functools.partial(compute_one, folder=folder.resolve()), names)
    else:
        for name in names:
            compute_one(name)
    return 0


def _run_one(name: str, effort: Effort, folder: Path, work: Path) -> None:
    scenario = SCENARIOS[name]
    print(f"{name}: {scenario.title}", flush=True)
    began = time.perf_counter()
    try:
        result = compute(scenario, effort, folder, work)
    except ScenarioInUse:
        print("  another process is at it")
        return
    except FileNotFoundError as error:  # without the data, missing methods cannot be listed
        stored = read(name, folder) is not None
        print(f"  {'stored, not looked at' if stored else 'not run'}: {error}")
        return
    except (StoreError, OtherStudyError) as error:
        raise UsageError(one_line(error)) from None
    if result is None:
        print(f"  finished; delete {path_of(name, folder)} to compute it again")
        return
    count = f"{len(result['methods'])} algorithms, {len(result['refused'])} refused"
    print(f"  {count}, {time.perf_counter() - began:.0f} s", flush=True)


def read_all(folder: Path) -> dict[str, dict[str, Any] | None]:
    """The stored results by scenario, ``None`` for one that was not run.

    Raises:
      UsageError: no folder, or no results in it.
    """
    readable(folder)
    results = {name: read(name, folder) for name in SCENARIOS}
    if not any(results.values()):
        raise UsageError(f"no results in {folder}; python -m experiments.atlas run makes them.")
    return results


def check(folder: Path) -> int:
    """Judge stored results again, and compare every page with the stored one."""
    results = read_all(folder)
    mpl.use("Agg")
    with tempfile.TemporaryDirectory() as scratch:  # the picture is drawn beside the pages
        expected = pages(results, Path(scratch))
    wrong = []
    for name, text in expected.items():
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name}: missing")
        elif path.read_text(encoding="utf-8") != text:
            wrong.append(f"{name}: says something else than the stored results")
    missing = [name for name, result in results.items() if result is None]
    print(f"{len(results) - len(missing)} scenarios, {len(expected)} pages")
    for line in wrong:
        print(f"  DISAGREES: {line}; python -m experiments.atlas report writes it")
    for name in missing:
        print(f"  not run: {name}")
    print("pages and results disagree" if wrong else "all pages confirmed")
    return int(bool(wrong))


def recompute(requested: Sequence[str], seeds: int, turn: int | None, folder: Path) -> int:
    """Run the stored numbers for a few of the stored seeds by the code of today, and compare."""
    results = {name: result for name, result in read_all(folder).items() if result is not None}
    scenarios = [scenario for scenario in find(requested or results) if scenario.name in results]
    if missing := [name for name in requested if name not in results]:
        raise UsageError(f"no results of {', '.join(missing)} in {folder}.")
    groups = [
        (scenario, labels_of_group)
        for scenario in scenarios
        for labels_of_group in together(scenario, _tuned_in(results[scenario.name]))
    ]
    differs = False
    for scenario, labels_of_group in groups if turn is None else [groups[turn % len(groups)]]:
        try:
            admitted, _ = methods(scenario)
        except FileNotFoundError as error:
            print(f"{scenario.name}: not computed: {error}")
            continue
        if gone := [label for label in labels_of_group if label not in admitted]:
            print(f"{scenario.name}: not admitted any more: {', '.join(map(quoted, gone))}")
        if present := [label for label in labels_of_group if label in admitted]:
            few = {label: admitted[label] for label in present}
            began = time.perf_counter()
            computed = last_values(scenario, few, results[scenario.name], seeds)
            comparison = _differences(scenario, results[scenario.name], computed)
            seconds = time.perf_counter() - began
            names = ", ".join(map(quoted, present))
            print(f"{scenario.name}: {names}: {seeds} seeds, {seconds:.0f} s")
            for line in comparison.lines():
                print(line)
            differs |= bool(comparison.differs)
            program.cache_clear()
            jax.clear_caches()
    print(verdict(differs))
    return int(differs)


def _tuned_in(result: Mapping[str, Any]) -> list[str]:
    """The methods of a stored result that have numbers."""
    return [label for label, method in result["methods"].items() if "lost" not in method]


def _differences(
    scenario: Scenario, stored: Mapping[str, Any], computed: Mapping[str, np.ndarray]
) -> Comparison:
    """Compare last values, each of which is an own variable: one algorithm's tolerance is its own.

    Errors that are rounding of single precision are equal.
    """
    least = analysis.RESOLVED * scenario.target if METRICS[scenario.metric].decibel else -np.inf

    def study(values: Mapping[str, np.ndarray]) -> dict[str, xr.Dataset]:
        last = {label: ("seed", np.maximum(numbers, least)) for label, numbers in values.items()}
        count = len(next(iter(last.values()))[1])
        return {scenario.name: xr.Dataset(last, {"seed": np.arange(count)})}

    return compared(
        study({n: floats(stored["methods"][n]["final"]) for n in computed}), study(computed)
    )


def report(folder: Path) -> int:
    results = read_all(folder)
    writable(folder)
    mpl.use("Agg")
    for name, text in pages(results, folder).items():
        replace_file(folder / name, text)
    print(f"written to {folder / 'README.md'}, and a page a scenario beside it")
    return 0
