"""The classes that declare a figure: its study, picture, settings and claims."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

import fljax as fl

INFINITE = math.inf

Studies = Mapping[str, xr.Dataset]


class Replaced(NamedTuple):
    """A setting's number that a run replaces."""

    name: str  # of the setting
    published: Any
    value: Any


#: The numbers that settings of this process have in place of the published ones, by declaration.
REPLACED: dict[str, Replaced] = {}


class _Setting(NamedTuple):
    name: str
    value: Any
    why: str
    given: bool = False
    declaration: str = ""  # identifies where the setting is declared, also under another name


class Setting(_Setting):
    """A number behind a figure: where the source gives it, or why it was chosen here."""

    __slots__ = ()

    def __new__(
        cls, name: str, value: Any, why: str, given: bool = False, declaration: str = ""
    ) -> "Setting":
        declaration = declaration or f"{name}: {value!r}, {why}"
        if declaration in REPLACED:
            value, given = REPLACED[declaration].value, False
        return super().__new__(cls, name, value, why, given, declaration)

    @property
    def replaced(self) -> Replaced | None:
        """How this run replaces the number, or ``None`` for the published one."""
        return REPLACED.get(self.declaration)


def replace_numbers(numbers: Mapping[str, Replaced]) -> None:
    """Replace the numbers of settings, by their declarations, in a process without figures.

    Other settings, default arguments and claims are computed from a number while its figure is
    imported, so that the number must be replaced before.
    """
    if REGISTRY:
        raise RuntimeError(f"{next(iter(REGISTRY))} was imported before the numbers were replaced.")
    REPLACED.update(numbers)


@dataclass(frozen=True)
class Effort:
    """How much is computed.

    Attributes:
      seeds: Monte-Carlo runs behind every point of the figure.
      tuning_seeds: other seeds, on which free parameters are chosen.
      quick: fewer budgets and candidates.
      progress: as in :func:`fljax.sweep`.
      store: folder that keeps unfinished studies, or ``None``.
    """

    seeds: int = 100
    tuning_seeds: int = 20
    quick: bool = False
    progress: bool | None = None
    store: Path | None = None

    def sweep(self, name: str, scenario: Callable[..., fl.Simulation], **given: Any) -> xr.Dataset:
        """:func:`fljax.sweep`, kept under ``name`` if there is a store."""
        store = None if self.store is None else self.store / name
        return fl.sweep(scenario, progress=self.progress, store=store, **given)

    def thin(self, values: Sequence[Any], keep: int = 3) -> list[Any]:
        """All values, or about ``keep`` of them when quick, first and last among them."""
        if not self.quick or len(values) <= keep:
            return list(values)
        return [values[i] for i in np.linspace(0, len(values) - 1, keep).round().astype(int)]


@dataclass(frozen=True)
class Estimate:
    """A measured number with its 95 % interval, which is open on a side where the measurement
    only bounds the number.
    """

    value: float
    low: float
    high: float
    unit: str = "dB"

    @classmethod
    def exact(cls, value: float, unit: str = "dB") -> "Estimate":
        """An estimate of a number without uncertainty."""
        return cls(value, value, value, unit)

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        value = f"{self.value:.2f}{unit}" if math.isfinite(self.value) else "not reached"
        open_below, open_above = np.isinf([self.low, self.high])
        # NaN: a single seed has no interval.
        if not self.low <= self.high or (open_below and open_above):
            return f"{value if math.isfinite(self.value) else 'unknown'} (no interval)"
        if self.low == self.high:
            return f"{self.value:.4g}{unit}"
        if open_above:
            return f"{value}, at least {self.low:.2f}"
        if open_below:
            return f"{value}, at most {self.high:.2f}"
        return f"{value} [{self.low:.2f}, {self.high:.2f}]"


#: Kinds of claims: the source's own statement, the same under a condition of ours, a statement of
#: our own, or one that cannot fail and is not evidence.
Kind = Literal["source", "conditional", "ours", "by construction"]

#: Computes an estimate for each case from a figure's studies.
Measure = Callable[[Studies], dict[str, Estimate]]


@dataclass(frozen=True)
class Claim:
    """One statement, and how it is measured.

    Attributes:
      name: unique within the figure.
      text: the statement, in our words.
      source: the section that makes or suggests it, and the figure, theorem or equation.
      measure: computes the estimates; the claim must hold in every case.
      accept: the range in which each whole interval must lie.
      convention: how a word of the source became that range, from :mod:`experiments.conventions`
        if it is defined there, and the rounds that are read; a tolerance is not a condition.
      condition: our condition beyond the source's; the claim is conditional if not empty.
      ours: whether no source makes the statement.
      construction: why it cannot fail, if it is true by construction and thus not evidence.
      note: explains a verdict against it; numbers in it are computed from the results.
      changed: how its judgment differs from the first edition of the gallery, and why.
      judged: the study whose seeds the claim is judged on, where studies have different numbers.
    """

    name: str
    text: str
    source: str
    measure: Measure
    accept: tuple[float, float]
    convention: str = ""
    condition: str = ""
    ours: bool = False
    construction: str = ""
    note: str | Callable[[Studies], str] = ""
    changed: str = ""
    judged: str = ""

    def judge(self, studies: Studies) -> "Verdict":
        low, high = self.accept
        cases = self.measure(studies)
        good = {name: low <= e.low and e.high <= high for name, e in cases.items()}
        bad = {name: e.high < low or e.low > high for name, e in cases.items()}
        holds = bool(cases) and all(good.values())
        decided = holds or any(bad.values())
        note = "" if holds else self.note if isinstance(self.note, str) else self.note(studies)
        deciding = None if decided else self._deciding_seeds(cases, good, studies)
        return Verdict(self.name, cases, holds, decided, good, note, deciding)

    def _deciding_seeds(
        self, cases: dict[str, Estimate], good: dict[str, bool], studies: Studies
    ) -> int | None:
        """How many seeds would decide the claim; ``None`` if no number would, or it is unknown."""
        factor = self._more_seeds([cases[name] for name in cases if not good[name]])
        counted = [studies[self.judged]] if self.judged in studies else studies.values()
        seeds = max((s.sizes["seed"] for s in counted if "seed" in s.dims), default=0)
        return math.ceil(factor * seeds) if seeds and math.isfinite(factor) else None

    def _more_seeds(self, undecided: Sequence[Estimate]) -> float:
        """How many times as many seeds would decide the claim, if values stay as they are and
        intervals shrink by the square root.
        """
        low, high = self.accept
        for_it: list[float] = []
        against_it: list[float] = []
        for case in undecided:
            below = _factor(case.value - low, case.value - case.low)
            above = _factor(high - case.value, case.high - case.value)
            if case.value < low:
                against_it.append(_factor(low - case.value, case.high - case.value))
            elif case.value > high:
                against_it.append(_factor(case.value - high, case.value - case.low))
            else:
                for_it.append(max(below, above))
        # One case outside is enough for "does not hold"; to hold, all must be inside.
        return min(against_it) if against_it else max(for_it, default=math.inf)

    @property
    def kind(self) -> Kind:
        """The kind of evidence that the claim is."""
        if self.construction:
            return "by construction"
        if self.ours:
            return "ours"
        return "conditional" if self.condition else "source"

    @property
    def wanted(self) -> str:
        low, high = self.accept
        if math.isinf(high):
            return f"> {low:g}"
        return f"< {high:g}" if math.isinf(low) else f"{low:g} to {high:g}"


def _factor(distance: float, reach: float) -> float:
    """How many times as many seeds make an interval end at this distance from its middle."""
    if math.isnan(reach) or math.isnan(distance) or distance <= 0:
        return math.inf
    return max((reach / distance) ** 2, 1.0)


#: The words of a verdict.
VERDICTS = ("holds", "does not hold", "undecided")


def word_of(holds: bool, decided: bool) -> str:
    """One of :data:`VERDICTS`."""
    if holds:
        return "holds"
    return "does not hold" if decided else "undecided"


@dataclass(frozen=True)
class Verdict:
    """The result of judging a claim."""

    claim: str
    cases: dict[str, Estimate]
    holds: bool
    decided: bool  # False: some interval straddles the accepted range, none is outside
    good: dict[str, bool] = field(default_factory=dict)
    note: str = ""  # why not
    #: As many seeds would decide an undecided claim, judging by the intervals; None if unknown.
    deciding_seeds: int | None = None

    def __str__(self) -> str:
        return word_of(self.holds, self.decided)

    @property
    def failed(self) -> list[str]:
        return [name for name, good in self.good.items() if not good]


@dataclass(frozen=True)
class Figure:
    """A published figure as a declared object.

    Attributes:
      name: on the command line.
      title: its subject.
      source: where it was published.
      caption: notes on this reproduction for the reader.
      study: runs everything; results by name.
      plot: draws from the results.
      claims: of the source.
      settings: every number behind it.
      tuning: a table of the parameters chosen on the tuning seeds, from the results.
      table: rows for readers beyond the gallery, from the results.
      double: whether runs are in double precision, for errors that fall to the rounding of single
        precision. Results are stored in single.
      diverged: how its numbers treat diverged runs.
      keep: the counts of communication (:data:`fljax.metrics.names.TRAFFIC`) that the figure
        reads; the others are not stored.
      seeds: Monte-Carlo runs behind every point of the published figure, as many as decide its
        claims where that is affordable.
    """

    name: str
    title: str
    source: str
    caption: str
    study: Callable[[Effort], Studies]
    plot: Callable[[Studies], Picture]
    claims: Sequence[Claim]
    settings: Sequence[Setting]
    tuning: Callable[[Studies], list[dict[str, Any]]] = lambda studies: []
    table: Callable[[Studies], list[dict[str, Any]]] = lambda studies: []
    double: bool = False
    diverged: str = "left out of all means"
    keep: Sequence[str] = ()
    seeds: int = Effort.seeds

    def __post_init__(self) -> None:
        names = [claim.name for claim in self.claims]
        if len(set(names)) < len(names):
            raise ValueError(f"claims of {self.name} need distinct names, got {names}.")
        REGISTRY[self.name] = self


REGISTRY: dict[str, Figure] = {}
