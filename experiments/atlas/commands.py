"""The commands of the atlas: list, run and report scenarios."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from experiments.atlas import convex, graphs, labels, links, others, trust
from experiments.atlas.report import pages
from experiments.atlas.running import FULL, QUICK, ScenarioInUse, compute, path_of, read, unfinished
from experiments.atlas.scenario import SCENARIOS, Scenario
from experiments.commands import discard_stale, readable, writable
from experiments.errors import UsageError
from fljax import OtherStudyError, StoreError
from fljax.__main__ import one_line
from fljax._core import checks
from fljax._core.storage import replace_file

#: Importing one declares its scenarios.
FAMILIES = (convex, links, graphs, trust, labels, others)

#: What ``--quick`` runs: one scenario of each kind of network.
SHORT = ("squares-well-mildly", "peers-ring", "clusters-servers")


def find(names: Sequence[str]) -> list[Scenario]:
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


def run(names: Sequence[str], every: bool, quick: bool, folder: Path, store: Path | None) -> int:
    scenarios = find(names or (list(SCENARIOS) if every else SHORT))
    effort = QUICK if quick else FULL
    work = writable(unfinished(effort) if store is None else store)
    writable(folder)
    for scenario in scenarios:
        if store is None:
            discard_stale(work, scenario.name)
        print(f"{scenario.name}: {scenario.title}", flush=True)
        began = time.perf_counter()
        try:
            result = compute(scenario, effort, folder, work)
        except ScenarioInUse:
            print("  another process is at it")
            continue
        except FileNotFoundError as error:  # without the data, missing methods cannot be listed
            stored = read(scenario.name, folder) is not None
            print(f"  {'stored, not looked at' if stored else 'not run'}: {error}")
            continue
        except (StoreError, OtherStudyError) as error:
            raise UsageError(one_line(error)) from None
        if result is None:
            print(f"  finished; delete {path_of(scenario.name, folder)} to compute it again")
            continue
        count = f"{len(result['methods'])} algorithms, {len(result['refused'])} refused"
        print(f"  {count}, {time.perf_counter() - began:.0f} s", flush=True)
    return 0


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


def report(folder: Path) -> int:
    results = read_all(folder)
    writable(folder)
    mpl.use("Agg")
    for name, text in pages(results, folder).items():
        replace_file(folder / name, text)
    print(f"written to {folder / 'README.md'}, and a page a scenario beside it")
    return 0
