"""Computing a scenario: its methods one by one, each tuned by the same rule; what is kept of it."""

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
from experiments.atlas.scenario import Scenario
from experiments.commands import kept_folder
from experiments.errors import UsageError
from fljax import statistics
from fljax._folders import sealed, unsealed, write_whole
from fljax.records import versions_in_use
from fljax.study.engine import program
from fljax.study.tuning import COUNTED, evaluated_until, unwarned

#: Methods that are tuned together: their programs are compiled side by side. A grid of more than a
#: hundred candidates would be checked by programs of its own.
TOGETHER = 4

#: Parameters of a model beyond which computing takes longer than compiling.
LARGE = 500

#: Digits of stored numbers, and of the values at which they were computed.
DIGITS = 5


@dataclass(frozen=True)
class Effort:
    """How much is computed: the arguments of :func:`fljax.tune`, and seeds of the evaluation.

    Attributes:
      methods: at most so many methods of a scenario, in the order of their names.
    """

    seeds: int = 20
    tuning_seeds: int = 10
    points: int = 8
    extensions: int = 3
    refinements: int = 1
    methods: int | None = None


FULL = Effort()
QUICK = Effort(seeds=4, tuning_seeds=2, points=3, extensions=1, refinements=0, methods=2)


class Busy(Exception):
    """Another process computes this scenario."""


def path_of(name: str, folder: Path) -> Path:
    return folder / f"{name}.json"


def read(name: str, folder: Path) -> dict[str, Any] | None:
    """The stored result of a scenario, ``None`` where there is none.

    Raises:
      UsageError: a file that is damaged, or of another scenario.
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
    """Where a run that is killed is found again by the same code with the same effort."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    unread = ("__main__", "report", "page")
    return kept_folder("atlas", asdict(effort), [p for p in sources if p.stem not in unread])


def compute(
    scenario: Scenario, effort: Effort, folder: Path, store: Path, say: Any = print
) -> dict[str, Any] | None:
    """Run all methods that a scenario admits, and store the result; a method that is in the store
    or in the stored result is not computed again.

    Returns:
      The result; ``None`` where the stored one lacks nothing.

    Raises:
      Busy: another process computes it.
      UsageError: a stored result lacks methods, and was computed with another effort.
    """
    own = store / scenario.name
    own.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(own.with_suffix(".lock"), timeout=0):
            admitted, refused = methods(scenario)
            admitted = dict(list(admitted.items())[: effort.methods])
            known = read(scenario.name, folder)
            if known is not None:
                lacking = [label for label in admitted if label not in known["methods"]]
                if not lacking:
                    if known["refused"] != refused:
                        _write(known | {"refused": refused}, folder)
                    return None
                if known["effort"] != asdict(effort):
                    raise UsageError(
                        f"the stored result of {scenario.name} lacks {', '.join(lacking)}, and was "
                        "computed with another effort; delete it, or give another folder by --out."
                    )
                say(f"  the stored result lacks {', '.join(lacking)}", flush=True)
            known = known or {"methods": {}, "versions": []}
            result = {
                "scenario": scenario.name,
                "effort": asdict(effort),
                "versions": sorted({*known["versions"], versions_in_use()}),
                "refused": refused,
                "methods": _computed(scenario, admitted, effort, own, say, known["methods"]),
            }
            _write(result, folder)
    except filelock.Timeout:
        raise Busy from None
    shutil.rmtree(own, ignore_errors=True)
    return result


def _write(result: Mapping[str, Any], folder: Path) -> None:
    text = sealed(result, separators=(",", ":")).replace('"methods"', '\n"methods"')
    write_whole(path_of(result["scenario"], folder), (text + "\n").encode())


def _computed(
    scenario: Scenario,
    admitted: Mapping[str, Method],
    effort: Effort,
    own: Path,
    say: Any,
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """What is kept of every method; of those that are known already, what is known."""
    numbers = dict(known)
    about = {"scenario": scenario.name, "effort": asdict(effort), "versions": versions_in_use()}

    def path(label: str) -> Path:
        return own / f"{re.sub('[^A-Za-z0-9]+', '-', label)}.json"

    missing = []
    for label in admitted:
        if label in numbers:
            continue
        if (part := _part(path(label), about | {"method": label})) is None:
            missing.append(label)
        else:
            numbers[label] = part
    for some in pieces(missing, TOGETHER):
        found = evaluated(scenario, {label: admitted[label] for label in some}, effort)
        for label in some:
            part = sealed({"of": about | {"method": label}, "kept": found[label]})
            write_whole(path(label), part.encode())
        numbers |= found
        seconds = sum(one["seconds"] for one in found.values())
        say(f"  {', '.join(some)}: {seconds:.0f} s", flush=True)
    # Machine code of all methods together does not fit a process.
    program.cache_clear()
    jax.clear_caches()
    return {label: numbers[label] for label in admitted}


def _part(path: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is kept of a method in a file, ``None`` where it is not of this effort and these
    versions, or not what was written.
    """
    try:
        content = unsealed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content["kept"] if content.get("of") == about else None


def evaluated(
    scenario: Scenario, made: Mapping[str, Method], effort: Effort
) -> dict[str, dict[str, Any]]:
    """Some methods tuned, and run on fresh seeds: what :func:`fljax.compare` does, with one program
    for both. The processor's time is shared out evenly.
    """
    began = time.process_time()
    settings: dict[str, Any] = {"rounds": scenario.rounds, "record_every": scenario.record_every}
    try:
        with unwarned(), warnings.catch_warnings():
            warnings.simplefilter("ignore", fl.DamageWarning)
            tuned = fl.tune(
                scenario.build,
                {label: tuple(one) for label, one in made.items()},
                metric=scenario.metric,
                seeds=effort.tuning_seeds,
                points=effort.points,
                extensions=effort.extensions,
                refinements=effort.refinements,
                **settings,
            )
            results = _run(scenario, tuned, effort, settings)
    except ValueError as error:
        if "every candidate had runs that diverged" not in str(error):
            raise
        if len(made) > 1:  # the others are tuned again, by programs that are compiled
            each = (evaluated(scenario, {label: one}, effort) for label, one in made.items())
            return {label: one for found in each for label, one in found.items()}
        found = {label: {"lost": str(error)} for label in made}
    else:
        found = {label: _stored(scenario, label, tuned, results[label]) for label in made}
    seconds = (time.process_time() - began) / len(made)
    return {label: one | {"seconds": seconds} for label, one in found.items()}


def _run(
    scenario: Scenario, tuned: fl.Tuned, effort: Effort, settings: dict[str, Any]
) -> dict[str, xr.Dataset]:
    """The runs of the chosen algorithms on fresh seeds.

    Of a small model the programs of the tuning take less time than compiling others: every
    algorithm is run as often as a batch of its tuning had candidates, and one is kept. Runs of a
    large one take longer than compiling a program for them alone.
    """
    costly = scenario.parts(jax.random.key(0))["problem"].dim > LARGE
    points = 0 if costly else effort.points
    copies = {
        label: [f"{label} {i}" for i in range(points * len(tuned.interior[label]) or 1)]
        for label in tuned.methods
    }
    grid = {name: tuned.methods[label] for label, names in copies.items() for name in names}
    together = effort.seeds if costly else effort.tuning_seeds
    parts = [
        fl.sweep(scenario.build, grid={"algorithm": grid}, seeds=seeds, progress=False, **settings)
        for seeds in pieces(range(effort.seeds), together)
    ]
    whole = xr.concat(parts, "seed", combine_attrs="override")
    return {
        label: whole.sel(algorithm=[names[0]]).assign_coords(algorithm=[label])
        for label, names in copies.items()
    }


def _stored(scenario: Scenario, label: str, tuned: fl.Tuned, results: xr.Dataset) -> dict[str, Any]:
    """What is kept of a method."""
    counted = evaluated_until(scenario.build, tuned.methods[label], results["round"].values)
    gradients = counted["gradients"]
    gradients = np.where(gradients[-1] > 0, gradients, np.nan)  # none is no cost
    results["gradients"] = ("algorithm", "round"), gradients[None]
    last = statistics.at_round(results)
    until = {
        of: plain(statistics.until(results, scenario.metric, scenario.target, by).values[0])
        for of, by in COUNTED.items()
    }
    response = tuned.response[label]
    return {
        "final": plain(last[scenario.metric].values[0]),
        "diverged": (last["diverged"].values[0] > 0).astype(int).tolist(),
        "until": until,
        "chosen": {k: sized(v) for k, v in tuned.chosen[label].items()},
        "interior": tuned.interior[label],
        "width": {k: [sized(v) for v in ends] for k, ends in tuned.width[label].items()},
        "tried": response.sizes["candidate"],
    }


def pieces(whole: Sequence, size: int) -> list[Sequence]:
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def sized(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def plain(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Numbers as JSON has them: infinite ones are -1, unknown ones are null."""
    return [
        None if np.isnan(value) else -1 if np.isinf(value) else sized(float(value))
        for value in np.asarray(values, np.float64)
    ]


def floats(values: Sequence[float | None]) -> np.ndarray:
    """What :func:`plain` was given."""
    array = np.array([np.nan if value is None else value for value in values], np.float64)
    return np.where(array == -1, np.inf, array)
