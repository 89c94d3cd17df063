"""The tuning of free parameters: candidates, run on separate seeds, and their scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from experiments.figure import Effort, Setting, Studies
from experiments.measures import Window, last
from fljax import statistics

FIRST_SEED = 10_000
SEEDS = Setting("tuning seeds", f"from {FIRST_SEED}", "no run that is plotted was tuned on")


def seeds(count: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + count)


def means(results: xr.Dataset, metric: str) -> xr.DataArray:
    """Mean errors over seeds; infinite for a candidate with a diverged run."""
    numbers = statistics.summary(results, metric)
    return numbers["mean"].where(numbers["diverged"] == 0, np.inf)


@dataclass(frozen=True)
class Tuning:
    """One free parameter of one comparator.

    Attributes:
      method: the comparator.
      build: makes the method from a candidate.
      candidates: the values to try.
      parameter: its name.
      rule: ``"early"`` matches the target's early learning curve; ``"final"`` minimizes the
        comparator's own final error, for methods that cannot start similarly.
    """

    method: str
    build: Callable[[float], Any]
    candidates: Sequence[float]
    parameter: str = "step size"
    rule: Literal["early", "final"] = "early"


@dataclass(frozen=True)
class Protocol:
    """How a chapter compares candidates: their learning curves against that of a target.

    Attributes:
      metric: of the curves.
      early: the rounds in which they are matched.
      late: the rounds whose mean is the final error.
      scale: maps the ratio of two curves to a difference, whose mean absolute value is their
        distance.
      method: the comparator in results without names.
      quick: the number of candidates of a quick run.
    """

    metric: str
    early: Window
    late: Window = last
    scale: Callable[[np.ndarray], np.ndarray] = statistics.decibels
    method: str = ""
    quick: int = 4

    def tune(
        self,
        run: Callable[[Mapping[str, Any], Sequence[int]], xr.Dataset],
        target: Mapping[str, Any],
        tunings: Sequence[Tuning],
        effort: Effort,
    ) -> xr.Dataset:
        """Mean learning curves of the target and of every candidate, on the tuning seeds.

        Args:
          run: studies methods, by name, on seeds.
          target: one method.
          tunings: the comparators' parameters.
          effort: how many seeds and candidates.
        """
        rows = [(t, value) for t in tunings for value in effort.thin(t.candidates, self.quick)]
        methods = {**target} | {f"{t.method} {value:g}": t.build(value) for t, value in rows}
        results = run(methods, seeds(effort.tuning_seeds))
        curves = means(results, self.metric).transpose("algorithm", "round").values
        coords = {
            "round": results["round"].values,
            "tuned": ("candidate", [t.method for t, _ in rows]),
            "parameter": ("candidate", [t.parameter for t, _ in rows]),
            "rule": ("candidate", [t.rule for t, _ in rows]),
            "value": ("candidate", np.asarray([value for _, value in rows])),
        }
        return xr.Dataset(
            {"target": ("round", curves[0]), "curve": (("candidate", "round"), curves[1:])},
            coords=coords,
            attrs=results.attrs | {"tuning_seeds": effort.tuning_seeds},
        )

    def scores(self, tuning: xr.Dataset) -> np.ndarray:
        """The score of each candidate under its rule; the least is the best."""
        early_part = self.early(tuning)
        with np.errstate(divide="ignore"):
            distances = self.scale(early_part["curve"].values / early_part["target"].values)
        early = self._names(tuning, "rule") == "early"
        return np.where(early, np.abs(distances).mean(axis=1), self._final(tuning))

    def chosen(self, tuning: xr.Dataset, method: str | None = None) -> float:
        """The tuned value of a comparator's parameter; by default of the only comparator."""
        ours = self._names(tuning, "tuned") == (method or self.method)
        if not ours.any():
            raise ValueError(f"{method!r} was not tuned; {set(self._names(tuning, 'tuned'))} were.")
        score = np.where(ours, self.scores(tuning), np.inf)
        return float(tuning["value"].values[score.argmin()])

    def table(self, studies: Studies) -> list[dict[str, Any]]:
        """Every candidate with its score, for the record."""
        rows = []
        for name, tuning in studies.items():
            if not name.startswith("tuning"):
                continue
            panel = name.removeprefix("tuning").strip("-")
            numbers = (tuning["value"].values, self.scores(tuning), self._final(tuning))
            names = (self._names(tuning, kind) for kind in ("tuned", "parameter", "rule"))
            for method, parameter, rule, value, score, final in zip(*names, *numbers, strict=True):
                rows.append(
                    {
                        "method": f"{method} ({panel})" if panel else str(method),
                        "parameter": str(parameter),
                        "value": float(value),
                        "rule": str(rule),
                        "score": float(score),
                        "final_error": float(final),
                        "chosen": self.chosen(tuning, method) == float(value),
                    }
                )
        return rows

    def _final(self, tuning: xr.Dataset) -> np.ndarray:
        curve = self.late(tuning)["curve"]
        return (curve.mean("round") if "round" in curve.dims else curve).values

    def _names(self, tuning: xr.Dataset, kind: str) -> np.ndarray:
        """A name for each candidate; stored results lack names that a whole chapter shares."""
        if kind in tuning.coords:
            return tuning[kind].values
        same = {"tuned": self.method, "parameter": "step size", "rule": "early"}
        return np.full(tuning.sizes["candidate"], same[kind])
