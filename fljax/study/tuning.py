"""Choosing the hyperparameters of each method by the same rule, on seeds disjoint from those of the
evaluation.
"""

import contextlib
import inspect
import itertools
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy.stats import qmc

from fljax import _check, statistics
from fljax._arguments import checked
from fljax._folders import replace_file, sealed, text_of, unsealed
from fljax._generator import random_key
from fljax.algorithms.base import REGISTRY, SYNONYMS, Algorithm
from fljax.metrics import METRICS, Metric, as_metric
from fljax.plotting.house import SMALL, look_of, style, widen
from fljax.records import COMPUTED, AssumptionWarning, DivergenceWarning, MetricWarning
from fljax.running import evaluations
from fljax.study.grid import Labeled, Scenario
from fljax.study.request import Request, Study
from fljax.study.running import sweep
from fljax.study.selection import PrivateTuning, check_score, select, trial_rho

__all__ = [
    "COUNTED",
    "FIRST_SEED",
    "GIVEN",
    "GOALS",
    "RANGES",
    "Tuned",
    "evaluated_until",
    "space_of",
    "tune",
    "unwarned",
]

#: Tuning seeds are numbered from here on; an evaluation's are numbered from 0.
FIRST_SEED = 1_000_000_000

#: Initial search ranges of the required numbers of algorithms. The search extends logarithmic
#: ranges whose best value lies on an edge, so they need not contain the optimum.
RANGES: dict[str, tuple] = {
    **dict.fromkeys(("step_size", "mixture_step_size", "personal_step_size"), (1e-3, 1.0)),
    **dict.fromkeys(("tuning_step_size", "attention_step_size"), (1e-3, 1.0)),
    "relationship_step_size": (1e-4, 1e-1),
    "generator_step_size": (1e-3, 1.0),
    "server_step_size": (1e-2, 1e1),
    "penalty": (1e-2, 1e2),
    **dict.fromkeys(("coupling", "attraction"), (1e-3, 1e1)),
    **dict.fromkeys(("pull", "scale"), (1e-2, 1e1)),
    "probability": (0.05, 1.0, "linear"),
}

#: Required arguments of algorithms that are not searched.
GIVEN = {
    "clients_per_round": "it is the scenario's participation",
    "clusters": "it is the scenario's structure",
    "compression": "it decides what a round sends",
    "fairness": "another one is another objective",
    "local_steps": "its sensible values depend on the number of samples",
    "period": "its sensible values depend on the number of samples",
    "personal": "it is a part of the scenario's model",
    "policy": "it is an object of its own",
    "server": "it is an object of its own",
    "solver": "it is an algorithm of its own",
}

#: Goals that need a target, and what they count in results.
COUNTED = {"rounds": "round", "bits": "bits", "gradients": "gradients"}

#: What is minimized: the last record, the mean over all records, or the effort needed to reach the
#: target.
GOALS = ("final", "area", *COUNTED)

#: A metric that grows by more than this factor from its first record to its last one is no result.
RISEN = 100

#: A run that never reaches the target counts as this multiple of all its rounds, bits or gradients
#: (the penalized average runtime PAR2 of algorithm configuration).
PENALTY = 2.0

#: Two values count as equally good if their means differ by at most this, in dB.
TOLERANCE = 1.0


class Range(NamedTuple):
    """Search range of one hyperparameter, on its scale: for a logarithmic one, in its logarithm."""

    low: float
    high: float
    linear: bool

    def value(self, place: float) -> float:
        return float(place if self.linear else 10.0**place)


class Structure(NamedTuple):
    """What is searched together: a method with a fixed value of each of its categories."""

    build: Callable[..., Algorithm]
    ranges: dict[str, Range]
    categories: dict[str, Any]

    def values(self, place: np.ndarray) -> dict[str, Any]:
        numbers = zip(self.ranges.items(), place, strict=True)
        return {name: one.value(at) for (name, one), at in numbers} | self.categories


class Search:
    """The candidates of one structure, batch by batch, on the scale of each number."""

    def __init__(self, structure: Structure, points: int, extensions: int, refinements: int):
        self.ranges = list(structure.ranges.values())
        count = len(self.ranges)
        self.points, self.size = points, points * count or 1
        self.extensions, self.refinements = extensions, refinements
        self.low = np.array([one.low for one in self.ranges])
        self.high = np.array([one.high for one in self.ranges])
        self.step = (self.high - self.low) / (points - 1)
        # Candidates of one number have neighbors; of several, whose are random, a quarter is near.
        self.reach = self.step if count == 1 else (self.high - self.low) / 4
        self.margin = 0.0 if count == 1 else self.step / 2
        self.places = np.empty((0, count))
        self.batch: np.ndarray | None = self._spread(self.low, self.high)

    def edges(self, best: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether a candidate lies on the lower and on the upper edge of the values tried."""
        return best <= self.low + self.margin, best >= self.high - self.margin

    def advance(self, scores: np.ndarray) -> None:
        """Choose the next batch from the scores of all candidates so far."""
        best = self.places[scores.argmin()]
        below, above = self.edges(best)
        if not np.isfinite(scores).any():  # what is too long a step diverges
            below, above = np.ones_like(below), np.zeros_like(above)
        free = np.array([not one.linear for one in self.ranges], bool)
        below, above = below & free, above & free & ~below
        self.batch = None
        if (below | above).any():
            if self.extensions:
                self.extensions -= 1
                self.batch = self._extended(below, above)
        elif self.refinements and free.size:
            self.refinements -= 1
            ends = [(one.low, one.high) if one.linear else (-np.inf, np.inf) for one in self.ranges]
            low, high = np.clip([best - self.reach, best + self.reach], *np.array(ends).T)
            self.batch = self._spread(low, high, inner=True)
            self.reach = self.reach * 2 / (self.points + 1)

    def _extended(self, below: np.ndarray, above: np.ndarray) -> np.ndarray:
        beyond = self.step * self.points
        low = np.where(below, self.low - beyond, np.where(above, self.high + self.step, self.low))
        high = np.where(below, self.low - self.step, np.where(above, self.high + beyond, self.high))
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        return self._spread(low, high)

    def _spread(self, low: np.ndarray, high: np.ndarray, inner: bool = False) -> np.ndarray:
        if len(self.ranges) == 1:
            grid = np.linspace(low, high, self.points + 2 * inner)
            return grid[1:-1] if inner else grid
        if not self.ranges:
            return np.empty((1, 0))
        sampler = qmc.Halton(len(self.ranges), scramble=False)
        sampler.fast_forward(1 + len(self.places))
        return low + (high - low) * sampler.random(self.size)


@dataclass(frozen=True)
class Tuned:
    """The choices of :func:`tune`, and the scores they are based on.

    Attributes:
      methods: the chosen algorithms, for ``fl.sweep(grid={"algorithm": tuned.methods})``.
      chosen: for each method, the chosen values by name.
      interior: for each number, whether values on both sides of it were tried and are worse. If
        not, the optimum may lie outside the values tried.
      width: for each number, the least and the greatest value among the candidates with the chosen
        categories whose means are within 1 dB of the best.
      response: for each method, the scores of its candidates, with their values as coordinates:
        ``mean``, ``low``, ``high``, ``runs``, ``diverged``, ``censored`` (runs that never reached
        the target) and ``rounds``. The mean is infinite where any run diverged, and where the
        candidate was eliminated after fewer rounds than the others.
      goal: the criterion that was minimized.
      seeds: the seeds used, which must not be used in an evaluation.
      compilations: number of the methods' programs that were compiled. What several of them draw
        from a seed (the data, the network) is one program more.
      privacy: what the choice cost if the runs were private: ``"tuning not counted: ..."``, or with
        ``private=`` the guarantee of the result; empty for runs without privacy.
      released: with ``private=``, the run of the best trial as far as its guarantee covers it; its
        ledger is that of the selection. Other runs with the chosen values are further releases.
    """

    methods: dict[str, Algorithm]
    chosen: dict[str, dict[str, Any]]
    interior: dict[str, dict[str, bool]]
    width: dict[str, dict[str, tuple[float, float]]]
    response: dict[str, xr.Dataset]
    goal: str
    seeds: list[int]
    compilations: int
    privacy: str = ""
    released: xr.Dataset | None = None

    def table(self) -> Any:
        """Return a pandas ``DataFrame`` with a row for each method and chosen value.

        Of private runs a column ``privacy`` says whether the choice is counted.
        """
        rows = [
            {
                "method": method,
                "parameter": name,
                "chosen": value,
                "interior": self.interior[method].get(name, ""),
                "from": self.width[method].get(name, ("", ""))[0],
                "to": self.width[method].get(name, ("", ""))[1],
                "score": float(self.response[method]["mean"].min()),
                "tried": self.response[method].attrs.get(
                    "tried", self.response[method].sizes["candidate"]
                ),
            }
            | ({"privacy": self._short} if self.privacy else {})
            for method, values in self.chosen.items()
            for name, value in values.items()
        ]
        columns = {key: ("row", np.array([r[key] for r in rows], object)) for key in rows[0]}
        return xr.Dataset(columns).to_dataframe().set_index(["method", "parameter"])

    @property
    def _short(self) -> str:
        """The first words of what the choice cost."""
        return self.privacy.partition(" is of" if self.released is not None else ": ")[0]

    def plot(self) -> np.ndarray:
        """Plot the mean scores over each number, with 95 % bands and the chosen value marked.

        For methods with several numbers, each candidate is a point; only the chosen categories are
        drawn.

        Returns:
          Axes, one for each name of a number.
        """
        names = list(dict.fromkeys(name for numbers in self.width.values() for name in numbers))
        if not names:
            raise ValueError("no method has a numeric hyperparameter to plot; see table().")
        with style():
            size = 4.2 * len(names) + 0.8, 3.6
            figure, row = plt.subplots(
                1, len(names), figsize=size, sharey=True, squeeze=False, layout="constrained"
            )
            for i, method in enumerate(self.response):
                for name, ax in zip(names, row[0], strict=True):
                    if name in self.width[method]:
                        self._draw(ax, method, name, look_of(i))
            attrs = next(iter(self.response.values())).attrs
            for name, ax in zip(names, row[0], strict=True):
                linear = any(one.attrs["linear"].get(name) for one in self.response.values())
                ax.set(xlabel=name.replace("_", " "), xscale="linear" if linear else "log")
                if not attrs["decibel"]:
                    ax.set(yscale="log" if attrs["cost"] else "linear")
            row[0, 0].set(ylabel=attrs["label"])
            seeds = f"mean over {len(self.seeds)} tuning seeds, 95 % interval"
            note = "; ".join(filter(None, [self._short, seeds]))
            figure.suptitle(note, **SMALL)
            entries = [
                Line2D([], [], markersize=8, label=method, **look_of(i))
                for i, method in enumerate(self.response)
                if self.width[method]
            ]
            widen(figure, figure.legend(handles=entries, loc="outside right upper"))
        return row[0]

    def _draw(self, ax: Axes, method: str, name: str, look: dict[str, Any]) -> None:
        response, chosen = self.response[method], self.chosen[method]
        scale = statistics.decibels if response.attrs["decibel"] else lambda value: value
        for category in chosen.keys() - self.width[method].keys():
            response = response.where(response[category] == str(chosen[category]), drop=True)
        finite = response.where(np.isfinite(response["mean"]), drop=True).sortby(name)
        mean, low, high = (scale(finite[part].values) for part in ("mean", "low", "high"))
        at = finite[name].values
        if len(self.width[method]) == 1:
            ax.plot(at, mean, color=look["color"], linestyle=look["linestyle"])
            ax.fill_between(at, low, high, color=look["color"], alpha=0.15, linewidth=0)
        else:
            error = np.nan_to_num([mean - low, high - mean])
            ax.errorbar(at, mean, error, color=look["color"], fmt=".", alpha=0.5, linewidth=0.8)
        mark = {key: value for key, value in look.items() if key != "linestyle"}
        ax.plot(chosen[name], mean.min(), linestyle="", markersize=8, **mark)

    def save(self, path: str | PathLike) -> Path:
        """Write the result to a JSON file, atomically; :meth:`load` reads it.

        Raises:
          OSError: as :func:`fljax.save`.
        """
        return replace_file(Path(path), self.text())

    def text(self) -> str:
        """The content of a file written by :meth:`save`."""
        content = {
            "response": {name: one.to_dict() for name, one in self.response.items()},
            "goal": self.goal,
            "seeds": self.seeds,
            "compilations": self.compilations,
            "privacy": self.privacy,
            "released": None if self.released is None else self.released.to_dict(),
        }
        return sealed(content)

    @classmethod
    def load(cls, path: str | PathLike, methods: Sequence[str] | Mapping[str, tuple]) -> "Tuned":
        """Read a file written by :meth:`save`.

        Args:
          path: path of the file.
          methods: the methods given to :func:`tune`; functions are not stored in the file.

        Raises:
          FileNotFoundError: no such file.
          ValueError: other methods than those of the file; a file that was cut or edited, or that
            :meth:`save` did not write.
        """
        return cls.of_text(text_of(Path(path)), methods, path)

    @classmethod
    def of_text(
        cls, text: str, methods: Sequence[str] | Mapping[str, tuple], path: str | PathLike
    ) -> "Tuned":
        """Read what :meth:`text` returned, from the file at a path.

        Raises:
          ValueError: as :meth:`load`.
        """
        try:
            content = unsealed(text)
        except ValueError as error:
            raise ValueError(
                f"{path} is not what Tuned.save wrote ({error}); tune again, or restore the file."
            ) from None
        if "response" not in content:
            raise ValueError(f"{path} is of no tuning; name a file that Tuned.save wrote.")
        response = {n: xr.Dataset.from_dict(one) for n, one in content.pop("response").items()}
        structures = _structures(methods)
        if (run := content.get("released")) is not None:
            content["released"] = xr.Dataset.from_dict(run)
            structures = {name: one for name, one in structures.items() if name in response}
        if set(structures) != set(response):
            raise ValueError(f"{path} is of the methods {list(response)}, got {list(structures)}.")
        return _tuned(structures, response, **content)


@checked
def tune(
    scenario: Scenario,
    methods: Sequence[str] | Mapping[str, tuple],
    *,
    metric: str | Metric,
    rounds: int,
    goal: str = "final",
    target: float | None = None,
    seeds: int | Sequence[int] = 10,
    points: int = 8,
    extensions: int = 3,
    refinements: int = 1,
    halvings: int = 0,
    record_every: int = 1,
    store: str | PathLike | None = None,
    private: PrivateTuning | None = None,
) -> Tuned:
    """Choose the hyperparameters of each method, all by the same rule, on seeds reserved for
    tuning.

    The candidates of a single number are a grid, evenly spaced on its scale; those of several
    numbers are a Halton sequence. Where the best candidate lies on the edge of a logarithmic range,
    the search continues beyond it, at most ``extensions`` times; then it is refined around the
    best. Linear ranges are never exceeded. All batches have the same number of candidates, so that
    each structure needs one compiled program. The score of a candidate with a diverged run is
    infinite.

    With ``halvings`` the candidates of a batch race (successive halving, Jamieson & Talwalkar
    2016): all of them run for a part of the rounds, ``rounds / 2**halvings``, then the better half
    of each structure's continues from its states for twice as many, and so on. The best candidate
    can be eliminated early, as long steps are often better at first; each stage compiles programs
    of its own, so halving pays for long runs only.

    Seeds of the tuning are numbered from 10^9 on, in the same root as those of :func:`fljax.sweep`,
    which begin at 0, so no run of an evaluation was used for tuning. Under a privacy budget, a
    choice based on private data incurs a privacy loss that no ledger accounts for: the result, its
    table and plot, and studies of the chosen methods say "tuning not counted".

    With ``private`` the loss is counted (:class:`PrivateTuning`): candidates, of the
    initial ranges of all methods, are drawn uniformly at random, a random number of them is run on
    the data of one seed, and the best trial is the result: one method, and its run in
    :attr:`Tuned.released`. Everything else of the trials is forgotten. The data must be the same in
    all trials, whatever their noise: those of the scenario for one seed are.

    Args:
      scenario: ``(key, algorithm) -> Simulation``, pure.
      methods: names of algorithms (``"FedAvg"``, ``"EXTRA"``), whose required numbers are searched
        starting from :data:`RANGES`; or a mapping from names of your choice to a function or class
        that makes an algorithm and the values of its arguments to search: ``(least, greatest)``, an
        initial range on a logarithmic scale, ``(least, greatest, "linear")``, or a list of
        categories, each of which is a structure searched separately: ``{"momentum":
        (fl.algorithms.FedAvgM, {"step_size": (1e-3, 1), "momentum": (0, 0.99, "linear"),
        "local_steps": [1, 5]})}``.
      metric: the metric to minimize.
      rounds: number of rounds of every run.
      goal: ``"final"``, the last record of the metric; ``"area"``, its mean over all records;
        ``"rounds"``, ``"bits"`` or ``"gradients"`` (sample gradients that all clients evaluate),
        the number needed until it is at or below the target. A run that never reaches the target
        counts as twice all its rounds, bits or gradients; if none of a method does, a warning says
        so.
      target: target value, for the goals that need one.
      seeds: number of seeds, or a list of them, from 10^9 on.
      points: number of candidates per batch, for each hyperparameter.
      extensions: maximum number of times that the search of a structure continues beyond an edge.
      refinements: number of refinements.
      halvings: number of times that half of the candidates of a batch are eliminated, by the last
        record of the metric where the goal has a target, otherwise by the goal; 0: none.
      record_every: number of rounds between records of the metrics.
      store: a folder that keeps all runs; a tuning that was killed resumes from there.
      private: count the privacy loss of the choice. The goals are then ``"final"`` and ``"area"``,
        ``seeds`` is 1 or a single seed, and extensions, refinements, halvings and a store, which
        look at more than the best trial, are left out.

    Returns:
      The chosen values, and the scores of all candidates.

    Raises:
      ValueError: before anything is compiled, an unknown method or one with required arguments
        other than numbers, an empty or inverted range, an argument that the method does not have,
        an unknown goal, a goal without its target or a target without its goal, an unknown metric,
        seeds of an evaluation, a metric that is better the larger it is, halvings of private runs,
        whose budget is spread over all rounds, or of too few rounds; a method of which every
        candidate diverged; private selection of runs without privacy, with nominal privacy or with
        a budget whose zCDP parameter is not known in advance, by a metric that is not of released
        models and held-out data, or with arguments that look at other trials.

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key, algorithm):
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(key, clients=6, samples=10, dim=2),
      ...         network=fl.graphs.ring(6),
      ...         algorithm=algorithm,
      ...         metrics=["normalized_error"],
      ...     )
      >>> tuned = fl.tune(scenario, ["EXTRA"], metric="normalized_error", rounds=20, seeds=2)
      >>> tuned.interior
      {'EXTRA': {'step_size': True}}
      >>> results = fl.sweep(scenario, grid={"algorithm": tuned.methods}, rounds=20, seeds=3)
      >>> results.algorithm.values.tolist()
      ['EXTRA']
    """
    for name, count, least in (
        ("points", points, 3),
        ("extensions", extensions, 0),
        ("refinements", refinements, 0),
        ("halvings", halvings, 0),
    ):
        _check.count(name, count, at_least=least)
    _check.choice("goal", goal, GOALS)
    if (target is None) == (goal in COUNTED):
        raise ValueError(
            f"target= is for the goals {', '.join(map(repr, COUNTED))}, which need it; got "
            f"goal={goal!r} and target={target}."
        )
    check_target(metric, target)
    if private is not None:
        seeds, extensions, refinements = _private_request(
            goal, seeds, extensions, refinements, halvings, store
        )
    if _check.is_whole(seeds):
        _check.count("seeds", seeds)
        seeds = range(FIRST_SEED, FIRST_SEED + int(seeds))
    methods_ = _structures(methods)
    rows = [(name, one) for name, several in methods_.items() for one in several]
    searches = [Search(one, points, extensions, refinements) for _, one in rows]
    first = {
        f"{name} {i}": one.build(**one.values(search.low))
        for i, ((name, one), search) in enumerate(zip(rows, searches, strict=True))
    }
    request = Request(
        scenario=scenario,
        rounds=rounds,
        grid={"algorithm": first},
        seeds=seeds,
        record_every=record_every,
    )
    tuned_on = request.seed_list
    if min(tuned_on) < FIRST_SEED:
        raise ValueError(
            f"seeds of a tuning are numbered from {FIRST_SEED} on, as those below are an "
            f"evaluation's, got {min(tuned_on)}; give their number alone."
        )
    shown = [group.shown for group in Study.of(request).groups]
    known = {m.name: as_metric(m) for one in shown for m in one.metrics}
    name = metric.name if isinstance(metric, Metric) else metric
    _check.choice("metric", name, [one for one, m in known.items() if not m.dims])
    if known[name].larger_is_better:
        raise ValueError(
            f"{name!r} is better the larger it is, and a tuning minimizes; take a metric of "
            "errors, as 'error_rate' is for 'accuracy'."
        )
    is_private = any(one.privacy is not None for one in shown)
    compared_by = name
    if private is not None:
        for one in shown:
            if one.privacy is None:
                raise ValueError("private= counts the cost of private runs; give them privacy=.")
            check_score(one, next(as_metric(m) for m in one.metrics if m.name == name))
        study = {"rounds": rounds, "seeds": tuned_on, "record_every": record_every}
        return _selected(scenario, methods_, rows, searches, first, private, name, goal, study)
    stages = _stages(rounds, halvings, record_every)
    if halvings and is_private:
        raise ValueError(
            "halvings= continues runs that ended early, and a privacy budget is spread over the "
            "rounds that were planned; leave out halvings=."
        )
    counted = []  # of each structure, until each round
    if goal == "gradients":
        numbers = np.arange(1, rounds + 1)
        counted = [
            evaluated_until(scenario, algorithm, numbers)["gradients"]
            for algorithm in first.values()
        ]
        for (method, _), count in zip(rows, counted, strict=True):
            if not (np.isfinite(count).all() and count[-1]):
                raise ValueError(
                    f"{method} does not evaluate a fixed number of gradients in a round; take the "
                    "goal 'rounds' or 'bits'."
                )
    scores: list[list[xr.Dataset]] = [[] for _ in rows]
    risen: dict[tuple[int, float], float] = {}  # by structure and score: the first record
    compilations = 0

    def scored(racing: Mapping[str, int], stage: int) -> xr.Dataset:
        nonlocal compilations
        with unwarned():  # candidates may be bad; who runs the chosen one is warned
            results = sweep(
                scenario,
                grid={"algorithm": {name: candidates[name] for name in racing}},
                rounds=stage,
                seeds=tuned_on,
                record_every=record_every,
                store=folder,
            )
        compilations += results.attrs["compilations"]
        if goal == "gradients":
            at = results["round"].values - 1
            rows_of = np.stack([counted[owner][at] for owner in racing.values()])
            results["gradients"] = ("algorithm", "round"), rows_of
        whole = stage == rounds or target is None
        found = _scored(results, metric, *((goal, target) if whole else ("final", None)))
        if goal == "final" and stage == rounds and results.sizes["round"] > 1:
            first = _scored(results.isel(round=slice(1)), metric, goal, None)["mean"].values
            for owner, end, start in zip(racing.values(), found["mean"].values, first, strict=True):
                risen[owner, float(end)] = float(start)
        return found

    kept = contextlib.nullcontext(store)
    with tempfile.TemporaryDirectory() if halvings and store is None else kept as folder:
        while any(search.batch is not None for search in searches):
            candidates, owners = {}, {}
            for i, ((name, one), search) in enumerate(zip(rows, searches, strict=True)):
                for place in () if search.batch is None else search.batch:
                    values = one.values(place)
                    label = ", ".join(f"{key}={value!r}" for key, value in values.items())
                    candidates[f"{name}: {label}"] = one.build(**values)
                    owners[f"{name}: {label}"] = i
            raced = _race(scored, owners, stages)
            for i, ((_, one), search) in enumerate(zip(rows, searches, strict=True)):
                if search.batch is None:
                    continue
                part = raced.sel(algorithm=[n for n, owner in owners.items() if owner == i])
                scores[i].append(_labeled(part, one, search.batch))
                search.places = np.concatenate([search.places, search.batch])
                search.advance(np.concatenate([s["mean"].values for s in scores[i]]))
    response = {}
    for method in methods_:
        own = [i for i, row in enumerate(rows) if row[0] == method]
        parts = [xr.concat(scores[i], "candidate", combine_attrs="override") for i in own]
        inside = [_interior(part, searches[i]) for part, i in zip(parts, own, strict=True)]
        best = int(np.argmin([float(part["mean"].min()) for part in parts]))
        whole = xr.concat(parts, "candidate", combine_attrs="override")
        response[method] = whole.assign_attrs(interior=inside[best])
    privacy = ""
    if is_private:
        tried = sum(one.sizes["candidate"] for one in response.values())
        privacy = (
            f"tuning not counted: {tried} candidates were compared by {compared_by} ({goal}) of "
            "private runs, at a cost that no budget here covers"
        )
    tuned = _tuned(methods_, response, goal, tuned_on, compilations, privacy)
    lost = {
        n: (one["censored"] == len(tuned_on)) | np.isinf(one["mean"]) for n, one in response.items()
    }
    for method in methods_:
        own = [i for i, row in enumerate(rows) if row[0] == method]
        end = float(response[method]["mean"].min())
        start = max((risen.get((i, end), math.inf) for i in own), default=math.inf)
        if 0 < RISEN * start < end < math.inf:
            warnings.warn(
                f"the best candidate of {method} ends at {end:.3g} and began at {start:.3g}: all "
                "diverge, or nearly; give a range of smaller step sizes.",
                MetricWarning,
                stacklevel=3,
            )
    if target is not None and (never := [n for n, one in lost.items() if one.all()]):
        warnings.warn(
            f"no run of {', '.join(never)} reached the target {target:g} with any candidate; all "
            f"count as {PENALTY:g} times all their {goal}, so that the choice is arbitrary. Take a "
            "target within reach, more rounds, or the goal 'final'.",
            MetricWarning,
            stacklevel=3,
        )
    return tuned


def check_target(metric: str | Metric, target: float | None) -> None:
    """Raise ``ValueError`` for a target that no value of the metric can have."""
    if target is None:
        return
    _check.interval("target", target)
    known = METRICS.get(metric) if isinstance(metric, str) else metric
    least, most = (-math.inf, math.inf) if known is None else known.bounds
    if not least <= target <= most:
        raise ValueError(f"target must be from {least:g} to {most:g}, got {target:g}.")
    if known is not None and known.decibel and target <= 0:
        raise ValueError(
            f"target must be > 0, as {known.name!r} is, got {target:g}; of decibels take "
            f"10 ** ({target:g} / 10)."
        )


def _private_request(
    goal: str, seeds: Any, extensions: int, refinements: int, halvings: int, store: Any
) -> tuple[Any, int, int]:
    """The seeds, extensions and refinements of a private selection.

    Raises:
      ValueError: arguments that look at more than the output of the best trial.
    """
    default = inspect.signature(tune).parameters
    for name, value in (
        ("extensions", extensions),
        ("refinements", refinements),
        ("halvings", halvings),
    ):
        if value not in (0, default[name].default):
            raise ValueError(
                f"private= draws its candidates before it looks at any run, and {name}= looks at "
                f"runs to choose candidates, got {name}={value}; leave it out."
            )
    if store is not None:
        raise ValueError(
            "store= keeps all trials, and the guarantee of private= is of the best one alone; "
            "leave it out."
        )
    if goal not in ("final", "area"):
        raise ValueError(f"private= is for the goals 'final' and 'area', got {goal!r}.")
    if seeds == default["seeds"].default:
        seeds = 1
    if (len(seeds) if not _check.is_whole(seeds) else int(seeds)) != 1:
        raise ValueError(
            "private= runs all trials on the data of one seed, as a mean over seeds would publish "
            f"more than the best trial, got seeds={seeds}; pass seeds=1 or a list of one."
        )
    return seeds, 0, 0


def _selected(
    scenario: Scenario,
    structures: Mapping[str, list[Structure]],
    rows: list[tuple[str, Structure]],
    searches: list[Search],
    first: Mapping[str, Algorithm],
    private: PrivateTuning,
    metric: str,
    goal: str,
    study: dict[str, Any],
) -> Tuned:
    """The result of private selection, see :func:`tune`."""
    candidates = [
        (name, one, place)
        for (name, one), search in zip(rows, searches, strict=True)
        for place in (() if search.batch is None else search.batch)
    ]

    def made(one: Structure, place: np.ndarray) -> Callable[[], Algorithm]:
        return lambda: one.build(**one.values(place))

    rho = max(trial_rho(scenario(random_key(0), algorithm)) for algorithm in first.values())
    with unwarned():
        number, score, run = select(
            scenario,
            [made(one, place) for _, one, place in candidates],
            private,
            rho,
            lambda results: _of_goal(results, metric, goal).isel(seed=0).values,
            public=metric,
            **study,
        )
    method, one, place = candidates[number]
    numbers = {"mean": score, "low": np.nan, "high": np.nan}
    response = xr.Dataset({n: ("candidate", [v]) for n, v in numbers.items()}).assign_coords(
        {
            name: ("candidate", [value if name in one.ranges else str(value)])
            for name, value in one.values(place).items()
        }
    )
    is_decibel = bool(run[metric].attrs.get("decibel", 0))
    response.attrs = {
        "linear": {name: r.linear for name, r in one.ranges.items()},
        "interior": {},
        "label": f"{goal} {run[metric].attrs.get('long_name', metric)}",
        "decibel": is_decibel,
        "cost": False,
        "tried": "a secret number",
    }
    chosen = {method: structures[method]}
    privacy = run.attrs["selection"]
    return _tuned(chosen, {method: response}, goal, study["seeds"], 0, privacy, run)


def _of_goal(results: xr.Dataset, metric: str, goal: str) -> xr.DataArray:
    """The last record of a metric, or the mean over all of them."""
    values = results[metric]
    last = values.isel(round=-1, drop=True)
    return last if goal == "final" else values.mean("round", skipna=False)


def _stages(rounds: int, halvings: int, record_every: int) -> list[int]:
    """The rounds after which candidates are judged, the last after all of them."""
    stages = [rounds // 2**left // record_every * record_every for left in range(halvings, -1, -1)]
    stages[-1] = rounds
    if not all(one < other for one, other in itertools.pairwise([0, *stages])):
        raise ValueError(
            f"{rounds} rounds, recorded every {record_every}, cannot be halved {halvings} times; "
            "take fewer halvings= or more rounds."
        )
    return stages


def _race(
    scored: Callable[[Mapping[str, int], int], xr.Dataset],
    owners: Mapping[str, int],
    stages: Sequence[int],
) -> xr.Dataset:
    """The scores of all candidates; the worse half of each owner's ends at every stage but the
    last, with an infinite mean.
    """
    racing, parts = dict(owners), []
    for stage in stages:
        numbers = scored(racing, stage)
        numbers["rounds"] = "algorithm", np.full(len(racing), stage)
        if stage < stages[-1]:
            mean = dict(zip(racing, numbers["mean"].values, strict=True))
            eliminated = []
            for owner in set(racing.values()):
                own = sorted((n for n, one in racing.items() if one == owner), key=mean.__getitem__)
                eliminated += own[(len(own) + 1) // 2 :]
            for name in eliminated:
                del racing[name]
            numbers = numbers.sel(algorithm=eliminated)
            numbers["mean"] = xr.full_like(numbers["mean"], np.inf)
        parts.append(numbers)
    whole = xr.concat(parts, "algorithm", combine_attrs="drop").assign_attrs(parts[-1].attrs)
    return whole.sel(algorithm=[*owners])


def evaluated_until(
    scenario: Scenario, algorithm: Algorithm, round: np.ndarray
) -> dict[str, np.ndarray]:
    """The numbers of sample gradients and proximal steps that an algorithm has evaluated until each
    round; NaN where they are not fixed.
    """
    before, each = evaluations(lambda key: scenario(key, algorithm), int(round[-1]))
    parts = zip(COMPUTED, before, each, strict=True)
    return {name: first + round * more for name, first, more in parts}


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Without the warnings of what runs show."""
    with warnings.catch_warnings():
        for kind in (AssumptionWarning, DivergenceWarning, MetricWarning):
            warnings.simplefilter("ignore", kind)
        yield


def _structures(given: Sequence[str] | Mapping[str, tuple]) -> dict[str, list[Structure]]:
    """The structures of all methods: one for every combination of a method's categories."""
    if isinstance(given, str) or not given:
        raise ValueError(f"methods are a list of names or a dict, at least one, got {given!r}.")
    if not isinstance(given, Mapping):
        if len(set(given)) < len(given):
            raise ValueError(f"each method once, got {list(given)}.")
        given = {name: space_of(name) for name in given}
    structures = {}
    for method, parts in given.items():
        if not (
            isinstance(parts, tuple)
            and len(parts) == 2
            and callable(parts[0])
            and isinstance(parts[1], Mapping)
            and parts[1]
        ):
            raise ValueError(
                f"method {method!r} must be (function, {{argument: its values}}), got "
                f"{_check.shown(parts)}."
            )
        build, space = parts
        try:
            inspect.signature(build).bind(**space)
        except TypeError as error:
            raise ValueError(
                f"method {method!r} cannot be made of {', '.join(space)}: {error}."
            ) from None
        lists = {name: values for name, values in space.items() if isinstance(values, list)}
        ranges = {
            name: _range(f"{name} of {method!r}", values)
            for name, values in space.items()
            if name not in lists
        }
        for name, values in lists.items():
            if not values or len(set(map(str, values))) < len(values):
                raise ValueError(
                    f"categories of {name} of {method!r} must be one or more, each once, got "
                    f"{values}."
                )
        structures[method] = [
            Structure(build, ranges, dict(zip(lists, values, strict=True)))
            for values in itertools.product(*lists.values())
        ]
    return structures


def _range(name: str, values: Any) -> Range:
    linear = isinstance(values, tuple) and len(values) == 3 and values[2] == "linear"
    if not linear and not (isinstance(values, tuple) and len(values) == 2):
        raise ValueError(
            f"the range of {name} must be (least, greatest), (least, greatest, 'linear') or a list "
            f"of categories, got {_check.shown(values)}."
        )
    low, high = values[:2]
    for which, value in (("least", low), ("greatest", high)):
        (_check.interval if linear else _check.positive)(f"the {which} {name}", value)
    if not low < high:
        raise ValueError(
            f"the range of {name} is empty or inverted: {low:g} to {high:g}; give the least value "
            "first."
        )
    return Range(low, high, True) if linear else Range(math.log10(low), math.log10(high), False)


def space_of(name: str) -> tuple[Callable[..., Algorithm], dict[str, Any]]:
    """A registered algorithm, by its name or another, with the ranges of its required numbers."""
    _check.choice("method", name, [*REGISTRY, *SYNONYMS])
    label, how = SYNONYMS.get(name, (name, ""))
    cls = REGISTRY[label]
    if how:
        raise ValueError(
            f"{name} is fljax.algorithms.{cls.__name__} {how}; give a function that makes it so, "
            f"methods={{{name!r}: (function, {{argument: (least, greatest)}})}}."
        )
    needed = [
        one.name
        for one in fields(cls)  # pyright: ignore[reportArgumentType]  # of fljax's modules
        if one.default is MISSING and one.default_factory is MISSING
    ]
    for one in needed:
        if one not in RANGES:
            why = GIVEN.get(one, "no range is known for it")
            raise ValueError(
                f"{name} must be given {one}, and {why}; say what is tuned, "
                f"methods={{{name!r}: (function, {{argument: (least, greatest)}})}}."
            )
    space = {one: RANGES[one] for one in needed}
    try:
        cls(**{one: values[0] for one, values in space.items()})
    except ValueError as error:
        raise ValueError(
            f"{name} must be given more than numbers ({error}); say what is tuned, "
            f"methods={{{name!r}: (function, {{argument: (least, greatest)}})}}."
        ) from None
    return cls, space


def _scored(
    results: xr.Dataset, metric: str | Metric, goal: str, target: float | None
) -> xr.Dataset:
    """The score of each candidate (smaller is better), as a summary over seeds."""
    name = statistics.named(results, metric)
    censored = xr.zeros_like(results["diverged"], dtype=int)
    decibel = False
    if target is None:
        values = results[name]
        score = _of_goal(results, name, goal)
        attrs, decibel = values.attrs, statistics.is_decibel(results, name)
        label = f"{goal} {statistics.label_of(results, name)}"
    else:
        cost = statistics.until(results, name, target, COUNTED[goal])
        censored = (cost == np.inf).astype(int)
        score = cost.where(censored == 0, PENALTY * results[COUNTED[goal]].max("round"))
        attrs, label = {}, cost.attrs["long_name"]
    data = xr.Dataset({"score": score.assign_attrs(attrs), "diverged": results["diverged"]})
    with np.errstate(over="ignore"):  # of what is about to diverge
        numbers = statistics.summary(data, "score")
    # Where the metric itself is no number the run is as lost as one that diverged.
    lost = (numbers["diverged"] > 0) | (numbers["runs"] < results.sizes["seed"])
    numbers["mean"] = numbers["mean"].where(~lost & np.isfinite(numbers["mean"]), np.inf)
    numbers["censored"] = censored.sum("seed").astype(int)
    cost = target is not None
    return numbers.assign_attrs(label=label, decibel=decibel, cost=cost)


def _labeled(scored: xr.Dataset, one: Structure, batch: np.ndarray) -> xr.Dataset:
    """The scores with the candidates' values as coordinates."""
    values = [one.values(place) for place in batch]
    coords = {
        name: (
            "candidate",
            [row[name] if name in one.ranges else str(row[name]) for row in values],
        )
        for name in values[0]
    }
    scored = scored.rename(algorithm="candidate").drop_vars("candidate").assign_coords(coords)
    return scored.assign_attrs(linear={name: r.linear for name, r in one.ranges.items()})


def _interior(response: xr.Dataset, search: Search) -> dict[str, bool]:
    below, above = search.edges(search.places[int(response["mean"].values.argmin())])
    return dict(zip(response.attrs["linear"], (~(below | above)).tolist(), strict=True))


def _tuned(
    structures: Mapping[str, list[Structure]],
    response: dict[str, xr.Dataset],
    goal: str,
    seeds: list[int],
    compilations: int,
    privacy: str = "",
    released: xr.Dataset | None = None,
) -> Tuned:
    chosen, methods, width = {}, {}, {}
    for method, several in structures.items():
        one, scores = several[0], response[method]
        if not np.isfinite(scores["mean"]).any():
            least = ", ".join(f"{name} {float(scores[name].min()):g}" for name in one.ranges)
            raise ValueError(
                f"nothing is left to choose for {method}: every candidate had runs that diverged"
                f"{least and f', down to {least}'}. Begin at smaller values, or look at the "
                "scenario."
            )
        best = scores.isel(candidate=int(scores["mean"].values.argmin()))
        (one,) = (
            s for s in several if all(best[n].item() == str(v) for n, v in s.categories.items())
        )
        numbers = {name: float(best[name]) for name in one.ranges}
        chosen[method] = numbers | one.categories
        methods[method] = one.build(**chosen[method])
        slack = abs(float(best["mean"])) * (10 ** (TOLERANCE / 10) - 1)
        good = scores["mean"] <= best["mean"] + slack
        for name in one.categories:
            good = good & (scores[name] == best[name])
        values = {name: scores[name].values[good.values] for name in one.ranges}
        width[method] = {n: (float(v.min()), float(v.max())) for n, v in values.items()}
    interior = {method: one.attrs["interior"] for method, one in response.items()}
    choice = privacy.removeprefix("tuning not counted: ")
    if released is not None:
        choice = f"chosen by private selection, whose own cost is not in this ledger ({privacy})"
    return Tuned(
        Labeled(methods, chosen, choice),
        chosen,
        interior,
        width,
        response,
        goal,
        seeds,
        compilations,
        privacy,
        released,
    )
