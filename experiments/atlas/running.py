"""Compute and store a scenario: its methods one by one, each tuned by the same rule."""

import re
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock
import jax
import numpy as np
import xarray as xr

import fljax as fl
from experiments.atlas.methods import Method, methods
from experiments.atlas.scenario import Scenario, Setup
from experiments.commands import resume_folder
from experiments.errors import UsageError
from experiments.records import commit
from fljax import statistics
from fljax._core.storage import sealed, unsealed, write_whole
from fljax.algorithms import Algorithm
from fljax.graphs import Tree
from fljax.results.dataset import versions_in_use
from fljax.study.batched_program import program
from fljax.tuning.search import COUNTED, evaluated_until, unwarned

#: Methods that are tuned together: their programs are compiled side by side. A grid of more than a
#: hundred candidates would be checked by programs of its own.
TOGETHER = 4

#: Parameters of a model beyond which computing takes longer than compiling.
LARGE = 500

#: The results' variable of each cost.
VARIABLE = {**COUNTED, "bits up": "bits_up", "distant bits": "distant_bits"}

#: Digits of stored numbers, and of the values at which they were computed.
DIGITS = 5


@dataclass(frozen=True)
class Effort:
    """How much is computed: the arguments of :func:`fljax.tune`, and seeds of the evaluation.

    Attributes:
      methods: the maximal number of methods of a scenario, in the order of their names.
    """

    seeds: int = 20
    tuning_seeds: int = 5
    points: int = 8
    extensions: int = 3
    refinements: int = 2
    methods: int | None = None


FULL = Effort()
QUICK = Effort(seeds=4, tuning_seeds=2, points=3, extensions=1, refinements=0, methods=2)


class ScenarioInUse(Exception):
    """Another process computes this scenario."""


def path_of(name: str, folder: Path) -> Path:
    return folder / f"{name}.json"


def read(name: str, folder: Path) -> dict[str, Any] | None:
    """The stored result of a scenario, ``None`` if it has none.

    Raises:
      UsageError: the file is damaged or belongs to another scenario.
    """
    path = path_of(name, folder)
    try:
        content = unsealed(path.read_text(encoding="utf-8"))
        if content["scenario"] != name:
            raise UsageError(f"{path} is of the scenario {content['scenario']!r}; delete it.")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read {path} ({error}); delete it and run again.") from None
    return content


def unfinished(effort: Effort) -> Path:
    """The folder in which the same code with the same effort resumes a killed run."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    unread = ("__main__", "report", "page")
    return resume_folder("atlas", asdict(effort), [p for p in sources if p.stem not in unread])


def compute(
    scenario: Scenario, effort: Effort, folder: Path, store: Path, say: Any = print
) -> dict[str, Any] | None:
    """Run all methods that a scenario admits, and store the result; a method that is in the store
    or in the stored result is not computed again.

    Returns:
      The result; ``None`` where the stored one lacks nothing.

    Raises:
      ScenarioInUse: another process computes it.
      UsageError: a stored result lacks methods, and was computed with another effort.
    """
    work = store / scenario.name
    work.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(work.with_suffix(".lock"), timeout=0):
            admitted, refused = methods(scenario)
            admitted = dict(list(admitted.items())[: effort.methods])
            stored = read(scenario.name, folder)
            if stored is not None and not all(map(is_complete, stored["methods"].values())):
                say("  the stored result was not tuned for each question; all is computed again")
                stored = None
            if stored is not None:
                lacking = [label for label in admitted if label not in stored["methods"]]
                if not lacking:
                    if stored["refused"] != refused:
                        _write(stored | {"refused": refused}, folder)
                    return None
                if stored["effort"] != asdict(effort):
                    raise UsageError(
                        f"the stored result of {scenario.name} lacks {', '.join(lacking)}, and was "
                        "computed with another effort; delete it, or give another folder by --out."
                    )
                say(f"  the stored result lacks {', '.join(lacking)}", flush=True)
            stored = stored or {"methods": {}, "versions": []}
            result = {
                "scenario": scenario.name,
                "effort": asdict(effort),
                "versions": sorted({*stored["versions"], versions_in_use()}),
                "commits": sorted({*stored.get("commits", ()), commit()}),
                "refused": refused,
                "methods": _computed(scenario, admitted, effort, work, say, stored["methods"]),
            }
            _write(result, folder)
    except filelock.Timeout:
        raise ScenarioInUse from None
    shutil.rmtree(work, ignore_errors=True)
    return result


def is_complete(method: Mapping[str, Any]) -> bool:
    """Whether a stored method was tuned for its costs as well, as older results are not."""
    return "lost" in method or "costs" in method


def _write(result: Mapping[str, Any], folder: Path) -> None:
    text = sealed(result, separators=(",", ":")).replace('"methods"', '\n"methods"')
    write_whole(path_of(result["scenario"], folder), (text + "\n").encode())


def _computed(
    scenario: Scenario,
    admitted: Mapping[str, Method],
    effort: Effort,
    work: Path,
    say: Any,
    stored: Mapping[str, Any],
) -> dict[str, Any]:
    """The stored numbers of every method, computed where they are missing."""
    numbers = dict(stored)
    about = {"scenario": scenario.name, "effort": asdict(effort), "versions": versions_in_use()}

    def path(label: str) -> Path:
        return work / f"{re.sub('[^A-Za-z0-9]+', '-', label)}.json"

    missing = []
    for label in admitted:
        if label in numbers:
            continue
        if (part := _part(path(label), about | {"method": label})) is None:
            missing.append(label)
        else:
            numbers[label] = part
    for labels in together(scenario, missing):
        results = evaluated(scenario, {label: admitted[label] for label in labels}, effort)
        for label in labels:
            part = sealed({"of": about | {"method": label}, "kept": results[label]})
            write_whole(path(label), part.encode())
        numbers |= results
        seconds = sum(result["seconds"] for result in results.values())
        say(f"  {', '.join(labels)}: {seconds:.0f} s", flush=True)
    # Machine code of all methods together does not fit a process.
    program.cache_clear()
    jax.clear_caches()
    return {label: numbers[label] for label in admitted}


def _part(path: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """A method's stored numbers, ``None`` if the file is damaged or comes from another effort or
    other versions.
    """
    try:
        content = unsealed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content["kept"] if content.get("of") == about else None


def evaluated(
    scenario: Scenario, admitted: Mapping[str, Method], effort: Effort
) -> dict[str, dict[str, Any]]:
    """Tune some methods, whose runs are equally long, for each question and run them on new seeds:
    as :func:`fljax.compare`, with one program for both. Each method is charged an equal share of
    the processor's time.

    Numbers that are best for the last value need many times the least rounds until a target, so
    costs are those of methods tuned for them.
    """
    began = time.process_time()
    try:
        with unwarned(), warnings.catch_warnings():
            warnings.simplefilter("ignore", fl.DamageWarning)
            warnings.simplefilter("ignore", fl.MetricWarning)  # that no run reaches the target
            tuned = {}
            results = {}
            for goal, labels in _questions(scenario, admitted).items():
                tuned[goal] = _tuned(
                    scenario, {label: admitted[label] for label in labels}, effort, goal
                )
                results[goal] = _run(scenario, tuned[goal], effort)
    except ValueError as error:
        if "every candidate had runs that diverged" not in str(error):
            raise
        if len(admitted) > 1:  # again, one at a time: the programs are compiled already
            single = (
                evaluated(scenario, {label: numbers}, effort) for label, numbers in admitted.items()
            )
            return {label: numbers for stored in single for label, numbers in stored.items()}
        stored = {label: {"lost": str(error)} for label in admitted}
    else:
        stored = {label: _stored(scenario, label, tuned, results) for label in admitted}
    seconds = (time.process_time() - began) / len(admitted)
    return {label: numbers | {"seconds": seconds} for label, numbers in stored.items()}


def _questions(scenario: Scenario, admitted: Mapping[str, Method]) -> dict[str, list[str]]:
    """The goals of :func:`fljax.tune`, with the methods that are tuned for each.

    A round costs the same bits and gradients for all candidates, so that the fewest rounds are the
    fewest of these as well; unless the share of rounds in which clients communicate is tuned. On a
    clock it lasts as long for all candidates, too.
    """
    communicating = [label for label, method in admitted.items() if "probability" in method.space]
    questions = {"final": [*admitted], scenario.goal: [*admitted], "bits": communicating}
    return {goal: labels for goal, labels in questions.items() if labels}


def _tuned(
    scenario: Scenario, admitted: Mapping[str, Method], effort: Effort, goal: str
) -> fl.Tuned:
    # The same function for both, where it may be, has the same compiled program.
    is_validated = scenario.tuning_parts is not None
    rounds, record_every = scenario.length(next(iter(admitted)))
    return fl.tune(
        scenario.build_for_tuning if is_validated else scenario.build,
        {label: tuple(numbers) for label, numbers in admitted.items()},
        metric=scenario.metric,
        goal=goal,
        target=None if goal == "final" else scenario.target,
        seeds=effort.tuning_seeds,
        points=effort.points,
        extensions=effort.extensions,
        refinements=effort.refinements,
        rounds=rounds,
        record_every=record_every,
    )


def _run(scenario: Scenario, tuned: fl.Tuned, effort: Effort) -> dict[str, xr.Dataset]:
    """The runs of the chosen algorithms on fresh seeds.

    For a small model, running the tuning's compiled programs again costs less than compiling: each
    algorithm is copied to the batch size of its tuning, and one copy's results are used. For a
    large model, compiling a program without copies is cheaper than running the copies.
    """
    costly = scenario.parts(jax.random.key(0))["problem"].dim > LARGE
    points = 0 if costly else effort.points
    copies = {
        label: [f"{label} {i}" for i in range(points * len(tuned.interior[label]) or 1)]
        for label in tuned.methods
    }
    grid = {name: tuned.methods[label] for label, names in copies.items() for name in names}
    count = effort.seeds if costly else effort.tuning_seeds
    length = scenario.length(next(iter(copies)))
    parts = [_sweep(scenario, grid, length, seeds) for seeds in pieces(range(effort.seeds), count)]
    runs = xr.concat(parts, "seed", combine_attrs="override")
    return {
        label: runs.sel(algorithm=[names[0]]).assign_coords(algorithm=[label])
        for label, names in copies.items()
    }


def _sweep(
    scenario: Scenario,
    algorithms: Mapping[str, Algorithm | Setup],
    length: tuple[int, int],
    seeds: Sequence[int],
) -> xr.Dataset:
    """The runs of some algorithms on seeds of an evaluation, with so many rounds and between
    records.
    """
    rounds, record_every = length
    return fl.sweep(
        scenario.build,
        grid={"algorithm": algorithms},
        seeds=seeds,
        rounds=rounds,
        record_every=record_every,
        progress=False,
    )


def _stored(
    scenario: Scenario,
    label: str,
    tuned: Mapping[str, fl.Tuned],
    results: Mapping[str, Mapping[str, xr.Dataset]],
) -> dict[str, Any]:
    """The numbers that are stored for a method."""
    last = _last(scenario, results["final"][label])
    costs = {}
    for cost in scenario.costs:
        goal = cost if label in results.get(cost, {}) else scenario.goal
        costs[cost] = _cost(scenario, label, cost, tuned[goal], results[goal][label])
    return {
        "final": plain(last[scenario.metric].values[0]),
        "diverged": (last["diverged"].values[0] > 0).astype(int).tolist(),
        "tried": tuned["final"].response[label].sizes["candidate"],
        "width": {
            name: [sized(end) for end in ends] for name, ends in tuned["final"].width[label].items()
        },
        **_choice(tuned["final"], label),
        "costs": costs,
    }


def _last(scenario: Scenario, runs: xr.Dataset) -> xr.Dataset:
    """The last records; on a clock those when its seconds have passed, and where messages are
    compressed those when the bits of the scenario have been sent.
    """
    if scenario.seconds is not None:
        return statistics.at_seconds(runs, scenario.seconds)
    if scenario.bits is not None:
        return at_bits(runs, scenario.bits)
    return statistics.at_round(runs)


def at_bits(runs: xr.Dataset, bits: float) -> xr.Dataset:
    """Of each run the last record until which clients have sent at most these bits.

    Raises:
      ValueError: a run that sent more before its first record.
    """
    sent = runs["bits_up"]
    if (sent.isel(round=0) > bits).any():
        raise ValueError(
            f"runs have sent more than {bits:g} bits in {int(runs['round'][0])} rounds, the first "
            "that are recorded; record more often."
        )
    position = (sent <= bits).sum("round") - 1
    return runs.isel(round=position).drop_vars("round", errors="ignore")


def _choice(tuned: fl.Tuned, label: str) -> dict[str, Any]:
    """The chosen values of a method, and whether each is inside the values tried."""
    chosen = {name: sized(value) for name, value in tuned.chosen[label].items()}
    return {"chosen": chosen, "interior": tuned.interior[label]}


def _cost(
    scenario: Scenario, label: str, cost: str, tuned: fl.Tuned, runs: xr.Dataset
) -> dict[str, Any]:
    """A cost until the target with the numbers that were chosen for it."""
    if cost == "gradients":
        counted = evaluated_until(scenario.build, tuned.methods[label], runs["round"].values)
        gradients = counted["gradients"]
        # An algorithm that computes no gradients does not incur this cost.
        gradients = np.where(gradients[-1] > 0, gradients, np.nan)
        runs["gradients"] = ("algorithm", "round"), gradients[None]
    if cost == "distant bits":
        runs[VARIABLE[cost]] = distant_bits(scenario, label, runs)
    until = statistics.until(runs, scenario.metric, scenario.target, VARIABLE[cost])
    return {"until": plain(until.values[0]), **_choice(tuned, label)}


def distant_bits(scenario: Scenario, label: str, runs: xr.Dataset) -> xr.DataArray:
    """The bits so far to and from the cloud and between edges; all bits without edges."""
    network = (scenario.parts(jax.random.key(0)) | scenario.rules[label].all_parts).get("network")
    if network is None:
        return runs["bits"]
    if isinstance(network, Tree):
        up, down, among = (runs["level_bits"].isel(direction=i) for i in range(3))
        return up.isel(level=-1) + down.isel(level=-1) + among.sum("level")
    # Servers of one level send models to their clients, and receive as many bits.
    return runs["bits_down"] - runs["bits_up"]


def last_values(
    scenario: Scenario, methods: Mapping[str, Method], result: Mapping[str, Any], seeds: int
) -> dict[str, np.ndarray]:
    """The metric's last values of some stored methods, whose runs are equally long, for the first
    seeds, by the code of today.

    The stored numbers have few digits, which changes the values by as little.
    """
    algorithms = {
        label: method.build(**result["methods"][label]["chosen"])
        for label, method in methods.items()
    }
    with unwarned():
        runs = _sweep(scenario, algorithms, scenario.length(next(iter(methods))), range(seeds))
    values = _last(scenario, runs)[scenario.metric].values
    return dict(zip(algorithms, values, strict=True))


def together(scenario: Scenario, labels: Sequence[str]) -> list[Sequence[str]]:
    """The methods that are computed at a time: a few, whose runs are equally long."""
    groups: dict[tuple[int, int], list[str]] = {}
    for label in labels:
        groups.setdefault(scenario.length(label), []).append(label)
    return [piece for group in groups.values() for piece in pieces(group, TOGETHER)]


def pieces(items: Sequence, size: int) -> list[Sequence]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def sized(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def plain(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Numbers as JSON has them: infinite ones are -1, unknown ones are null."""
    return [
        None if np.isnan(value) else -1 if np.isinf(value) else sized(float(value))
        for value in np.asarray(values, np.float64)
    ]


def floats(values: Sequence[float | None]) -> np.ndarray:
    """The inverse of :func:`plain`."""
    array = np.array([np.nan if value is None else value for value in values], np.float64)
    return np.where(array == -1, np.inf, array)
