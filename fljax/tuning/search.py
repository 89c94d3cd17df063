"""Tuning: choose the hyperparameters of each method by the same rule, on seeds for tuning only."""

import contextlib
import functools
import inspect
import itertools
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy.stats import qmc

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.prng import random_key
from fljax._core.storage import replace_file, sealed, text_of, unsealed
from fljax.algorithms.algorithm import REGISTRY, Algorithm, meanings
from fljax.metrics.definitions import METRICS, Metric, as_metric, check_scalar
from fljax.metrics.names import COMPUTED
from fljax.plotting.house_style import SMALL_TEXT, look_of, style, widen
from fljax.results import statistics
from fljax.results.warnings import AssumptionWarning, DivergenceWarning, MetricWarning
from fljax.simulation.running import evaluations
from fljax.study.distribution import check_executor
from fljax.study.grid import LabeledValues, Scenario
from fljax.study.request import Request, Study
from fljax.study.sweeping import sweep
from fljax.tuning.private_selection import PrivateTuning, check_score, select, trial_rho

#: Tuning seeds are numbered from here on; an evaluation's are numbered from 0.
FIRST_SEED = 1_000_000_000

#: Initial search ranges of the numbers of algorithms. The search extends logarithmic ranges whose
#: best value lies on an edge, so they need not contain the optimum.
RANGES: dict[str, tuple] = {
    **dict.fromkeys(("step_size", "mixture_step_size", "personal_step_size"), (1e-3, 1.0)),
    **dict.fromkeys(("tuning_step_size", "attention_step_size"), (1e-3, 1.0)),
    "alignment_step_size": (1e-3, 1.0),
    "guidance": (1e-4, 1e-1),
    "relationship_step_size": (1e-4, 1e-1),
    "generator_step_size": (1e-3, 1.0),
    "server_step_size": (1e-2, 1e1),
    "penalty": (1e-2, 1e2),
    **dict.fromkeys(("coupling", "attraction", "orthogonality"), (1e-3, 1e1)),
    **dict.fromkeys(("pull", "scale"), (1e-2, 1e1)),
    **dict.fromkeys(("probability", "consensus_step_size"), (1e-2, 1.0)),
    **dict.fromkeys(("adaptivity", "damping"), (1e-4, 1e-1)),
    **dict.fromkeys(("contrast", "distillation", "calibration"), (1e-1, 1e1)),
    "inter_cluster": (1e-3, 1.0),
    "moving_rate": (1e-3, 1e-1),
    "radius": (1e-3, 1.0),
    "outer_step_size": (1e-1, 1.0),
    "blend": (1e-2, 1.0),
    "momentum": (0.0, 0.99, "linear"),
    **dict.fromkeys(("interpolation", "supervision", "restriction"), (0.05, 0.95, "linear")),
}

#: Arguments with a default that an algorithm's paper chooses for each problem, as it does its step
#: size. They are searched as well: an algorithm whose additional part is off equals another one.
SEARCHED_OPTIONS: dict[str, dict[str, tuple]] = {
    label: {name: RANGES[name] for name in names}
    for labels, names in {
        ("ADMM tracking",): ("penalty", "blend"),
        ("APFL",): ("interpolation",),
        ("ClusterFL", "PGFL", "PGFL, single step"): ("inter_cluster",),
        ("PGFL, by gradient", "PGFL, by loss"): ("inter_cluster",),
        ("NPFL", "NPFL, by gradient", "NPFL, by loss"): ("inter_cluster",),
        ("FedAdagrad", "FedAdam", "FedYogi"): ("adaptivity",),
        ("FML", "FedPHP"): ("supervision",),
        ("FedBuff", "pFedMe", "pFedMe, by gradient"): ("server_step_size",),
        ("FedAvgM", "MIME", "MIMELite", "MoTEF", "QG-DSGDm", "FedNova"): ("momentum",),
        ("APPLE", "FedDistill", "FedPAC", "FedProto"): ("attraction",),
        ("FedAS",): ("alignment_step_size",),
        ("FedExP",): ("damping",),
        ("FedGen", "FedNTD"): ("distillation",),
        ("FedLC",): ("calibration",),
        ("GPFL",): ("guidance",),
        ("FedRS",): ("restriction",),
        ("FedSAM",): ("radius",),
        ("K-GT",): ("outer_step_size",),
        ("MOON",): ("contrast",),
        ("SuPerFed",): ("attraction", "orthogonality"),
    }.items()
    for label in labels
} | {"FedAsync": {"server_step_size": (1e-2, 1.0)}}  # the weight of a received model

#: Required arguments of algorithms that are not searched.
GIVEN = {
    "clients_per_round": "it is the scenario's participation",
    "clusters": "it is the scenario's structure",
    "components": "it is the scenario's structure",
    "compression": "it decides what a round sends",
    "compressors_up": "it decides what a round sends",
    "convexity": "it is the problem's",
    "count": "it decides what a round changes",
    "downlink": "it decides what a round sends",
    "sketch": "it decides what a round sends",
    "sparsity": "it decides what a round sends",
    "fairness": "another one is another objective",
    "local_steps": "its sensible values depend on the number of samples",
    "period": "its sensible values depend on the number of samples",
    "personal": "it is a part of the scenario's model",
    "policy": "it is an object of its own",
    "public": "it is data that the scenario has",
    "server": "it is an object of its own",
    "solver": "it is an algorithm of its own",
    "topology": "it is a part of the scenario's network",
}

#: Goals that need a target, and the variable of the results that they count.
COUNTED = {"rounds": "round", "bits": "bits", "gradients": "gradients", "seconds": "seconds"}

#: The criteria: the last record, the mean over all records, or the effort needed to reach the
#: target.
GOALS = ("final", "area", *COUNTED)

#: A metric that grows by more than this factor from its first to its last record has diverged.
MAX_GROWTH = 100

#: A run that never reaches the target counts as this multiple of the most rounds, bits, gradients
#: or seconds that any candidate of its method spends in all its rounds (the penalized average
#: runtime PAR2 of algorithm configuration). A candidate that spends little must not win by not
#: arriving.
PENALTY = 2.0

#: Two values count as equally good if their means differ by at most this, in dB.
TOLERANCE = 1.0


class Range(NamedTuple):
    """Search range of one hyperparameter, on its scale: for a logarithmic one, in its logarithm."""

    low: float
    high: float
    linear: bool

    def value(self, position: float) -> float:
        return float(position if self.linear else 10.0**position)


class Structure(NamedTuple):
    """A method with a fixed value of each of its categories, whose numbers are searched."""

    build: Callable[..., Any]  # an algorithm, or an algorithm with a clock
    ranges: dict[str, Range]
    categories: dict[str, Any]

    def values(self, position: np.ndarray) -> dict[str, Any]:
        numbers = zip(self.ranges.items(), position, strict=True)
        return {
            name: range_.value(coordinate) for (name, range_), coordinate in numbers
        } | self.categories


class Search:
    """The candidates of one structure, batch by batch, on the scale of each number."""

    def __init__(self, structure: Structure, points: int, extensions: int, refinements: int):
        self.structure = structure
        self.ranges = list(structure.ranges.values())
        count = len(self.ranges)
        self.points = points
        self.size = points * count or 1
        self.extensions = extensions
        self.refinements = refinements
        self.low = np.array([range_.low for range_ in self.ranges])
        self.high = np.array([range_.high for range_ in self.ranges])
        self.step = (self.high - self.low) / (points - 1)
        # Refine between the neighbors of a single number; for several numbers, whose candidates are
        # scattered, within a quarter of each range.
        self.radius = self.step if count == 1 else (self.high - self.low) / 4
        self.margin = 0.0 if count == 1 else self.step / 2
        self.positions = np.empty((0, count))
        self.batch: np.ndarray | None = self._spread(self.low, self.high)

    def edges(self, best: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether a candidate lies on the lower and on the upper edge of the values tried, beyond
        which the algorithm admits other values.
        """
        below = best <= self.low + self.margin
        above = best >= self.high - self.margin
        for i in range(len(best)):
            just_beyond = 1e-3 * self.step[i]
            below[i] = below[i] and self._admits(best, i, self.low[i] - just_beyond)
            above[i] = above[i] and self._admits(best, i, self.high[i] + just_beyond)
        return below, above

    def _admits(self, best: np.ndarray, i: int, coordinate: float) -> bool:
        """Whether the algorithm can be made with another value of the i-th number."""
        position = best.copy()
        position[i] = coordinate
        try:
            self.structure.build(**self.structure.values(position))
        except ValueError:
            return False
        return True

    def _farthest(self, best: np.ndarray, i: int, near: float, far: float) -> float:
        """The farthest coordinate toward ``far`` that the algorithm admits, such as the logarithm
        of the probability 1.
        """
        if self._admits(best, i, far):
            return far
        for _ in range(30):
            middle = (near + far) / 2
            near, far = (middle, far) if self._admits(best, i, middle) else (near, middle)
        return near

    def advance(self, scores: np.ndarray) -> None:
        """Choose the next batch from the scores of all candidates so far."""
        best = self.positions[scores.argmin()]
        below, above = self.edges(best)
        if not np.isfinite(scores).any():  # steps are too long: search among smaller values
            below = np.ones_like(below)
            above = np.zeros_like(above)
        extensible = np.array([not range_.linear for range_ in self.ranges], bool)
        below = below & extensible
        above = above & extensible & ~below
        self.batch = None
        if (below | above).any():
            if self.extensions:
                self.extensions -= 1
                self.batch = self._extended(best, below, above)
        elif self.refinements and extensible.size:
            self.refinements -= 1
            limits = [
                (range_.low, range_.high) if range_.linear else (-np.inf, np.inf)
                for range_ in self.ranges
            ]
            low, high = np.clip([best - self.radius, best + self.radius], *np.array(limits).T)
            for i in range(len(best)):
                low[i] = self._farthest(best, i, best[i], low[i])
                high[i] = self._farthest(best, i, best[i], high[i])
            self.batch = self._spread(low, high, inner=True)
            self.radius = self.radius * 2 / (self.points + 1)

    def _extended(self, best: np.ndarray, below: np.ndarray, above: np.ndarray) -> np.ndarray:
        beyond = self.step * self.points
        least = self.low - beyond
        most = self.high + beyond
        for i in range(len(best)):
            if below[i]:
                least[i] = self._farthest(best, i, self.low[i], least[i])
            if above[i]:
                most[i] = self._farthest(best, i, self.high[i], most[i])
        after_low = np.maximum(self.low - self.step, least)
        after_high = np.minimum(self.high + self.step, most)
        low = np.where(below, least, np.where(above, after_high, self.low))
        high = np.where(below, after_low, np.where(above, most, self.high))
        self.low = np.minimum(self.low, low)
        self.high = np.maximum(self.high, high)
        return self._spread(low, high)

    def _spread(self, low: np.ndarray, high: np.ndarray, inner: bool = False) -> np.ndarray:
        if len(self.ranges) == 1:
            grid = np.linspace(low, high, self.points + 2 * inner)
            return grid[1:-1] if inner else grid
        if not self.ranges:
            return np.empty((1, 0))
        sampler = qmc.Halton(len(self.ranges), scramble=False)
        sampler.fast_forward(1 + len(self.positions))
        return low + (high - low) * sampler.random(self.size)


@dataclass(frozen=True)
class Tuned:
    """The choices of :func:`tune`, and the scores they are based on.

    Attributes:
      methods: the chosen algorithms, for ``fl.sweep(grid={"algorithm": tuned.methods})``.
      chosen: for each method, the chosen values by name.
      interior: for each number, whether values on both sides of it were tried and are worse, or
        the algorithm admits none beyond it, such as a probability above 1. If not, the optimum may
        lie outside the values tried.
      width: for each number, the least and the greatest value among the candidates with the chosen
        categories whose means are within 1 dB of the best: of a metric that is better the larger it
        is, with a greatest possible value, in their distance from it, so that an accuracy is judged
        as its error rate would be.
      response: for each method, the scores of its candidates, with their values as coordinates:
        ``mean``, ``low``, ``high``, ``runs``, ``diverged``, ``censored`` (runs that never reached
        the target) and ``rounds``. The mean is infinite where any run diverged, and where the
        candidate was eliminated after fewer rounds than the others; it is minus infinity if
        scores are better the larger they are.
      goal: the criterion, see :func:`tune`.
      seeds: the seeds used, which must not be used in an evaluation.
      compilations: number of the methods' programs that were compiled. The program that draws the
        data and the network for several of them is not counted.
      privacy: the cost of the choice if the runs were private: ``"tuning not counted: ..."``, or
        with ``private=`` the guarantee of the result; empty for runs without privacy.
      released: with ``private=``, the run of the best trial as far as its guarantee covers it; its
        ledger is that of the selection. Other runs with the chosen values are further releases.
    """

    methods: dict[str, Any]
    chosen: dict[str, dict[str, Any]]
    interior: dict[str, dict[str, bool]]
    width: dict[str, dict[str, tuple[float, float]]]
    response: dict[str, xr.Dataset]
    goal: str
    seeds: list[int]
    compilations: int
    privacy: str = ""
    released: xr.Dataset | None = None

    @property
    def larger_is_better(self) -> bool:
        """Whether the largest score was chosen, as of an accuracy, and not the least."""
        return any(_is_larger_better(scores) for scores in self.response.values())

    def table(self) -> Any:
        """Return a pandas ``DataFrame`` with a row for each method and chosen value.

        For private runs the column ``privacy`` states whether the choice is counted.
        """
        rows = [
            {
                "method": method,
                "parameter": name,
                "chosen": value,
                "interior": self.interior[method].get(name, ""),
                "from": self.width[method].get(name, ("", ""))[0],
                "to": self.width[method].get(name, ("", ""))[1],
                "score": _best_mean(self.response[method]),
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
        """The first words of :attr:`privacy`."""
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
            figure, axes = plt.subplots(
                1, len(names), figsize=size, sharey=True, squeeze=False, layout="constrained"
            )
            for i, method in enumerate(self.response):
                for name, ax in zip(names, axes[0], strict=True):
                    if name in self.width[method]:
                        self._draw(ax, method, name, look_of(i))
            attrs = next(iter(self.response.values())).attrs
            for name, ax in zip(names, axes[0], strict=True):
                is_linear = any(
                    scores.attrs["linear"].get(name) for scores in self.response.values()
                )
                ax.set(xlabel=name.replace("_", " "), xscale="linear" if is_linear else "log")
                if not attrs["decibel"]:
                    ax.set(yscale="log" if attrs["cost"] else "linear")
            axes[0, 0].set(ylabel=attrs["label"])
            seeds = f"mean over {len(self.seeds)} tuning seeds, 95 % interval"
            note = "; ".join(filter(None, [self._short, seeds]))
            figure.suptitle(note, **SMALL_TEXT)
            entries = [
                Line2D([], [], markersize=8, label=method, **look_of(i))
                for i, method in enumerate(self.response)
                if self.width[method]
            ]
            widen(figure, figure.legend(handles=entries, loc="outside right upper"))
        return axes[0]

    def _draw(self, ax: Axes, method: str, name: str, look: dict[str, Any]) -> None:
        """Draw the scores of one method over one number."""
        response = self.response[method]
        chosen = self.chosen[method]
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
        ax.plot(chosen[name], scale(_best_mean(finite)), linestyle="", markersize=8, **mark)

    def save(self, path: str | PathLike) -> Path:
        """Write the result to a JSON file, atomically; :meth:`load` reads it.

        Raises:
          OSError: as :func:`fljax.save`.
        """
        return replace_file(Path(path), self.text())

    def text(self) -> str:
        """The content of a file written by :meth:`save`."""
        content = {
            "response": {name: scores.to_dict() for name, scores in self.response.items()},
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
          ValueError: other methods than in the file; a file that was cut or edited, or that
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
        response = {
            n: xr.Dataset.from_dict(scores) for n, scores in content.pop("response").items()
        }
        structures = _structures_of(methods)
        if (run := content.get("released")) is not None:
            content["released"] = xr.Dataset.from_dict(run)
            structures = {name: scores for name, scores in structures.items() if name in response}
        if set(structures) != set(response):
            raise ValueError(f"{path} is of the methods {list(response)}, got {list(structures)}.")
        return _result_of(structures, response, **content)


@checked
def tune(
    scenario: Scenario,
    methods: Sequence[str] | Mapping[str, tuple],
    *,
    metric: str | Metric,
    rounds: int,
    goal: str = "final",
    target: float | None = None,
    window: int = 1,
    seeds: int | Sequence[int] = 10,
    points: int = 8,
    extensions: int = 3,
    refinements: int = 1,
    halvings: int = 0,
    record_every: int = 1,
    store: str | PathLike | None = None,
    executor: Any = None,  # concurrent.futures.Executor | None
    private: PrivateTuning | None = None,
) -> Tuned:
    """Choose the hyperparameters of each method, all by the same rule, on seeds reserved for
    tuning.

    The candidates of a single number are a grid, evenly spaced on its scale; the candidates of
    several numbers are a Halton sequence. Where the best candidate lies on the edge of a
    logarithmic range, the search continues beyond it, at most ``extensions`` times; then it is
    refined around the best. Linear ranges are never exceeded. All batches have the same number of
    candidates, so that each structure needs one compiled program. A candidate with a diverged run
    is worse than all others.

    With ``halvings`` the candidates of a batch race (successive halving, Jamieson & Talwalkar
    2016): all of them run for a part of the rounds, ``rounds / 2**halvings``, then the better half
    of each structure's continues from its states for twice as many, and so on. The best candidate
    can be eliminated early, as long steps are often better at first; each stage compiles other
    programs, so halving pays for long runs only.

    Seeds of the tuning are numbered from 10^9 on, with the same root as the seeds of
    :func:`fljax.sweep`, which begin at 0, so no run of an evaluation was used for tuning. Under a
    privacy budget, a choice based on private data incurs a privacy loss that no ledger accounts
    for: the result, its table and plot, and studies of the chosen methods say "tuning not counted".

    With ``private`` the loss is counted (:class:`PrivateTuning`): candidates in the initial ranges
    of all methods are drawn uniformly at random, a random number of them is run on the data of one
    seed, and the best trial is the result: one method, and its run in :attr:`Tuned.released`.
    Everything else of the trials is forgotten. All trials must have the same data, but different
    noise; the data that the scenario draws for one seed satisfy this.

    Args:
      scenario: ``(key, algorithm) -> Simulation``, pure.
      methods: names of algorithms (``"FedAvg"``, ``"EXTRA"``), whose required numbers and
        :data:`SEARCHED_OPTIONS` are searched starting from :data:`RANGES`; or a mapping from names
        of your choice to a function or class that makes an algorithm (or whatever else the scenario
        takes, such as a pair of an algorithm and a clock) and the values of its arguments to
        search: ``(least, greatest)``, an initial range on a logarithmic scale,
        ``(least, greatest, "linear")``, or a list of categories, each searched separately as a
        structure: ``{"momentum": (fl.algorithms.FedAvgM, {"step_size": (1e-3, 1), "momentum": (0,
        0.99, "linear"), "local_steps": [1, 5]})}``.
      metric: the metric to minimize, or to maximize if it is better the larger it is, as an
        accuracy is (:attr:`fljax.metrics.Metric.larger_is_better`).
      rounds: number of rounds of every run.
      goal: ``"final"``, the last record of the metric; ``"area"``, its mean over all records;
        ``"rounds"``, ``"bits"``, ``"gradients"`` (sample gradients that all clients evaluate) or,
        on a clock, ``"seconds"``, the number needed until it is at or below the target, or at or
        above it if larger is better. A run that never reaches the target counts as twice the most
        rounds, bits, gradients or seconds that a candidate of its method spends; there is a warning
        if none of a method's runs does.
      target: target value, for the goals that need one.
      window: number of records whose mean must be at the target, see
        :func:`fljax.statistics.until`: noisy methods touch it before they stay there.
      seeds: number of seeds, or a list of them, from 10^9 on.
      points: number of candidates per batch, for each hyperparameter.
      extensions: maximum number of times that the search of a structure continues beyond an edge.
      refinements: number of refinements.
      halvings: number of times that half of the candidates of a batch are eliminated, by the last
        record of the metric where the goal has a target, otherwise by the goal; 0: none.
      record_every: number of rounds between records of the metrics.
      store: a folder that keeps all runs; a tuning that was killed resumes from there.
      executor: computes the runs on its workers, as in :func:`fljax.sweep`; it needs a store.
      private: count the privacy loss of the choice. The goals are then ``"final"`` and ``"area"``,
        ``seeds`` is 1 or a single seed, and extensions, refinements, halvings and a store, which
        look at more than the best trial, are left out.

    Returns:
      The chosen values, and the scores of all candidates.

    Raises:
      ValueError: before anything is compiled, an unknown method or one with required arguments
        other than numbers, an empty or inverted range, an argument that the method does not have,
        an unknown goal, a goal without its target or a target without its goal, seconds of
        simulations without a clock, an unknown metric,
        seeds of an evaluation, halvings of private runs, whose budget is spread over all rounds, or
        of too few rounds; a method whose candidates all diverged; private selection of runs
        without privacy, with nominal privacy or with a budget whose zCDP parameter is not known in
        advance, by a metric that is not of released models and held-out data, or with arguments
        that look at other trials.

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
    _check_counts(points, extensions, refinements, halvings)
    checks.count("window", window)
    checks.choice("goal", goal, GOALS)
    if (target is None) == (goal in COUNTED):
        raise ValueError(
            f"target= is for the goals {', '.join(map(repr, COUNTED))}, which need it; got "
            f"goal={goal!r} and target={target}."
        )
    check_target(metric, target)
    if private is not None:
        seeds, extensions, refinements = _private_request(
            goal, seeds, extensions, refinements, halvings, store, executor
        )
    if checks.is_whole(seeds):
        checks.count("seeds", seeds)
    structures = _structures_of(methods)
    rows = [(method, s) for method, several in structures.items() for s in several]
    searches = [Search(structure, points, extensions, refinements) for _, structure in rows]
    first = _first_candidates(rows)
    request = _tuning_request(scenario, first, rounds, seeds, record_every)
    check_window(target, window, request.records)
    simulations = [group.abstract for group in Study.of(request).groups]
    if goal == "seconds" and any(simulation.clock is None for simulation in simulations):
        raise ValueError(
            "goal='seconds' counts the time of a clock, and a simulation of the scenario has none; "
            "give it one, clock=fljax.clock.Synchronous(...), or take the goal 'rounds'."
        )
    metrics = {m.name: as_metric(m) for simulation in simulations for m in simulation.metrics}
    name = metric.name if isinstance(metric, Metric) else metric
    check_scalar("metric", name, metrics)
    is_private = any(simulation.privacy is not None for simulation in simulations)
    if private is not None:
        for simulation in simulations:
            if simulation.privacy is None:
                raise ValueError("private= counts the cost of private runs; give them privacy=.")
            check_score(
                simulation, next(as_metric(m) for m in simulation.metrics if m.name == name)
            )
        study = {"rounds": rounds, "seeds": request.seed_list, "record_every": record_every}
        larger = metrics[name].larger_is_better
        return _select_privately(
            scenario, structures, rows, searches, first, private, name, goal, larger, study
        )
    if executor is not None:
        check_executor(executor, request, store)
    stages = _stages(rounds, halvings, record_every)
    if halvings and is_private:
        raise ValueError(
            "halvings= continues runs that ended early, and a privacy budget is spread over the "
            "rounds that were planned; leave out halvings=."
        )
    methods_of_rows = [method for method, _ in rows]
    evaluator = _Evaluator(request, metric, goal, target, methods_of_rows, window, executor)
    if goal == "gradients":
        evaluator.gradients = _gradient_counts(scenario, first, rows, rounds)
    scores = _search(evaluator, rows, searches, stages, store)
    response = _responses(structures, rows, searches, scores)
    privacy = ""
    if is_private:
        tried = sum(scores.sizes["candidate"] for scores in response.values())
        privacy = (
            f"tuning not counted: {tried} candidates were compared by {name} ({goal}) of "
            "private runs, at a cost that no budget here covers"
        )
    tuned = _result_of(
        structures, response, goal, request.seed_list, evaluator.compilations, privacy
    )
    _warn_of_growth(evaluator, rows, response)
    _warn_of_missed_target(evaluator, response)
    return tuned


def _first_candidates(rows: Sequence[tuple[str, Structure]]) -> dict[str, Any]:
    """A candidate of each structure, with the least values of its numbers."""
    return {
        f"{name} {i}": structure.build(
            **structure.values(np.array([range_.low for range_ in structure.ranges.values()]))
        )
        for i, (name, structure) in enumerate(rows)
    }


def check_unclocked(
    scenario: Scenario, methods: Sequence[str] | Mapping[str, tuple], rounds: int
) -> None:
    """Raise ``ValueError`` for simulations with a clock, whose rounds are not timed."""
    structures = _structures_of(methods)
    first = _first_candidates([(name, several[0]) for name, several in structures.items()])
    request = Request(scenario=scenario, rounds=rounds, grid={"algorithm": first}, seeds=1)
    if any(group.abstract.clock is not None for group in Study.of(request).groups):
        raise ValueError(
            "timed= measures the time of a round on this machine, and the simulations have a "
            "clock, which says how long rounds take; leave one of the two out."
        )


def _tuning_request(
    scenario: Scenario,
    first: Mapping[str, Any],
    rounds: int,
    seeds: int | Sequence[int],
    record_every: int,
) -> Request:
    """A study of the first candidates, which is not run: it has the checks of the arguments."""
    if checks.is_whole(seeds):
        seeds = range(FIRST_SEED, FIRST_SEED + int(seeds))
    request = Request(
        scenario=scenario,
        rounds=rounds,
        grid={"algorithm": first},
        seeds=seeds,
        record_every=record_every,
    )
    if min(request.seed_list) < FIRST_SEED:
        raise ValueError(
            f"seeds of a tuning are numbered from {FIRST_SEED} on, as those below are an "
            f"evaluation's, got {min(request.seed_list)}; give their number alone."
        )
    return request


def _check_counts(points: int, extensions: int, refinements: int, halvings: int) -> None:
    """Raise unless the sizes of the search are in range."""
    for name, count, least in (
        ("points", points, 3),
        ("extensions", extensions, 0),
        ("refinements", refinements, 0),
        ("halvings", halvings, 0),
    ):
        checks.count(name, count, at_least=least)


def _gradient_counts(
    scenario: Scenario,
    first: Mapping[str, Any],
    rows: Sequence[tuple[str, Structure]],
    rounds: int,
) -> list[np.ndarray]:
    """For each structure the number of sample gradients until each round.

    It does not depend on the numbers of a candidate, so the first one of a structure is counted.
    """
    numbers = np.arange(1, rounds + 1)
    counts = [
        evaluated_until(scenario, algorithm, numbers)["gradients"] for algorithm in first.values()
    ]
    for (method, _), count in zip(rows, counts, strict=True):
        if not (np.isfinite(count).all() and count[-1]):
            raise ValueError(
                f"{method} does not evaluate a fixed number of gradients in a round; take the "
                "goal 'rounds' or 'bits'."
            )
    return counts


@dataclass
class _Evaluator:
    """Runs candidates and scores them.

    Attributes:
      request: the scenario, rounds, seeds and records of all studies.
      method_of: the method of each structure.
      executor: computes the runs; ``None`` for this process.
      gradients: for the goal "gradients", the number until each round, by structure.
      most: the most that a candidate of a method spent in all its rounds so far, by method.
      compilations: number of compiled programs so far.
      first_records: mean first record of the metric, by structure and final score.
    """

    request: Request
    metric: str | Metric
    goal: str
    target: float | None
    method_of: Sequence[str]
    window: int = 1
    executor: Any = None
    gradients: list[np.ndarray] = field(default_factory=list)
    most: dict[str, float] = field(default_factory=dict)
    compilations: int = 0
    first_records: dict[tuple[int, float], float] = field(default_factory=dict)

    def score(
        self,
        candidates: Mapping[str, Any],
        folder: str | PathLike | None,
        owners: Mapping[str, int],
        stage: int,
    ) -> xr.Dataset:
        """The scores of candidates after some rounds.

        Args:
          candidates: by label.
          folder: the store of their runs.
          owners: the labels to score, with the index of their structure.
          stage: number of rounds.
        """
        request = self.request
        with unwarned():  # candidates may be bad; runs of the chosen one have warnings again
            results = sweep(
                request.scenario,
                grid={"algorithm": {name: candidates[name] for name in owners}},
                rounds=stage,
                seeds=request.seed_list,
                record_every=request.record_every,
                store=folder,
                executor=self.executor,
            )
        self.compilations += results.attrs["compilations"]
        if self.goal == "gradients":
            rounds = results["round"].values - 1
            counts = np.stack([self.gradients[owner][rounds] for owner in owners.values()])
            results["gradients"] = ("algorithm", "round"), counts
        is_complete = stage == request.rounds or self.target is None
        if is_complete and self.target is not None:
            spent = results[COUNTED[self.goal]].max("round")
            most = self._most_spent(spent.broadcast_like(results["algorithm"]), owners)
            of_target = self.target, most, self.window
            scores = _summarize_scores(results, self.metric, self.goal, *of_target)
        else:
            goal = "final" if self.target is not None else self.goal
            scores = _summarize_scores(results, self.metric, goal)
        is_final = self.goal == "final" and stage == request.rounds
        if is_final and not _is_larger_better(scores) and results.sizes["round"] > 1:
            self._note_first_records(results, scores, owners)
        return scores

    def _most_spent(self, spent: xr.DataArray, owners: Mapping[str, int]) -> xr.DataArray:
        """The most that any candidate of a method has spent so far, for each candidate."""
        methods = [self.method_of[owner] for owner in owners.values()]
        for i, method in enumerate(methods):
            now = float(spent.isel(algorithm=i).max())
            self.most[method] = max(self.most.get(method, 0.0), now)
        most = np.array([self.most[method] for method in methods])
        return xr.DataArray(most, {"algorithm": spent["algorithm"]}, ("algorithm",))

    def _note_first_records(
        self, results: xr.Dataset, scores: xr.Dataset, owners: Mapping[str, int]
    ) -> None:
        first = _summarize_scores(results.isel(round=slice(1)), self.metric, self.goal)
        starts = first["mean"].values
        for owner, end, start in zip(owners.values(), scores["mean"].values, starts, strict=True):
            self.first_records[owner, float(end)] = float(start)


def _search(
    evaluator: _Evaluator,
    rows: Sequence[tuple[str, Structure]],
    searches: Sequence[Search],
    stages: Sequence[int],
    store: str | PathLike | None,
) -> list[list[xr.Dataset]]:
    """Evaluate batches of candidates until all searches have ended.

    All structures search in parallel: each study has the current batches of all of them. Racing
    candidates continue from their states, which needs a store.

    Returns:
      The scores of each batch, by structure.
    """
    scores: list[list[xr.Dataset]] = [[] for _ in rows]
    is_racing = len(stages) > 1
    opened = contextlib.nullcontext(store)
    with tempfile.TemporaryDirectory() if is_racing and store is None else opened as folder:
        while any(search.batch is not None for search in searches):
            candidates = {}
            owners = {}
            for i, ((name, structure), search) in enumerate(zip(rows, searches, strict=True)):
                for position in () if search.batch is None else search.batch:
                    values = structure.values(position)
                    label = ", ".join(f"{key}={value!r}" for key, value in values.items())
                    candidates[f"{name}: {label}"] = structure.build(**values)
                    owners[f"{name}: {label}"] = i
            score = functools.partial(evaluator.score, candidates, folder)
            raced = _race(score, owners, stages)
            for i, ((_, structure), search) in enumerate(zip(rows, searches, strict=True)):
                if search.batch is None:
                    continue
                batch = raced.sel(algorithm=[n for n, owner in owners.items() if owner == i])
                scores[i].append(_with_candidate_values(batch, structure, search.batch))
                search.positions = np.concatenate([search.positions, search.batch])
                search.advance(np.concatenate([_losses(s) for s in scores[i]]))
    return scores


def _responses(
    methods: Mapping[str, Any],
    rows: Sequence[tuple[str, Structure]],
    searches: Sequence[Search],
    scores: Sequence[Sequence[xr.Dataset]],
) -> dict[str, xr.Dataset]:
    """The scores of each method, of all its structures and batches."""
    response = {}
    for method in methods:
        indices = [i for i, row in enumerate(rows) if row[0] == method]
        parts = [xr.concat(scores[i], "candidate", combine_attrs="override") for i in indices]
        interior = [_interior(part, searches[i]) for part, i in zip(parts, indices, strict=True)]
        best = int(np.argmin([_losses(part).min() for part in parts]))
        joined = xr.concat(parts, "candidate", combine_attrs="override")
        response[method] = joined.assign_attrs(interior=interior[best])
    return response


def _warn_of_growth(
    evaluator: _Evaluator,
    rows: Sequence[tuple[str, Structure]],
    response: Mapping[str, xr.Dataset],
) -> None:
    """Warn of methods whose best candidate ends far above its first record."""
    for method, scores in response.items():
        end = _best_mean(scores)
        starts = (
            evaluator.first_records.get((i, end), math.inf)
            for i, row in enumerate(rows)
            if row[0] == method
        )
        start = max(starts, default=math.inf)
        if 0 < MAX_GROWTH * start < end < math.inf:
            warnings.warn(
                f"the best candidate of {method} ends at {end:.3g} and began at {start:.3g}: all "
                "diverge, or nearly; give a range of smaller step sizes.",
                MetricWarning,
                stacklevel=4,
            )


def _warn_of_missed_target(evaluator: _Evaluator, response: Mapping[str, xr.Dataset]) -> None:
    """Warn of methods without any run that reached the target."""
    if evaluator.target is None:
        return
    seed_count = len(evaluator.request.seed_list)
    missed = [
        method
        for method, scores in response.items()
        if ((scores["censored"] == seed_count) | np.isinf(scores["mean"])).all()
    ]
    if missed:
        warnings.warn(
            f"no run of {', '.join(missed)} reached the target {evaluator.target:g} with any "
            f"candidate; all count as {PENALTY:g} times all their {evaluator.goal}, so that the "
            "choice is arbitrary. Take a target within reach, more rounds, or the goal 'final'.",
            MetricWarning,
            stacklevel=4,
        )


def check_target(metric: str | Metric, target: float | None) -> None:
    """Raise ``ValueError`` for a target that no value of the metric can have."""
    if target is None:
        return
    checks.interval("target", target)
    metric_ = METRICS.get(metric) if isinstance(metric, str) else metric
    least, most = (-math.inf, math.inf) if metric_ is None else metric_.bounds
    if not least <= target <= most:
        raise ValueError(f"target must be from {least:g} to {most:g}, got {target:g}.")
    if metric_ is not None and metric_.decibel and target <= 0:
        raise ValueError(
            f"target must be > 0, as {metric_.name!r} is, got {target:g}; of decibels take "
            f"10 ** ({target:g} / 10)."
        )


def check_window(target: float | None, window: int, records: int) -> None:
    """Raise ``ValueError`` for a window without a target, or longer than a run."""
    if window > 1 and target is None:
        raise ValueError(f"window={window} is of records at a target; give target= as well.")
    if window > records:
        raise ValueError(f"window={window} is longer than a run, which has {records} records.")


def _private_request(
    goal: str,
    seeds: Any,
    extensions: int,
    refinements: int,
    halvings: int,
    store: object,
    executor: object,
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
    if executor is not None:
        raise ValueError(
            "executor= leaves all trials in a store, and the guarantee of private= is of the best "
            "one alone; leave it out."
        )
    if goal not in ("final", "area"):
        raise ValueError(f"private= is for the goals 'final' and 'area', got {goal!r}.")
    if seeds == default["seeds"].default:
        seeds = 1
    if (len(seeds) if not checks.is_whole(seeds) else int(seeds)) != 1:
        raise ValueError(
            "private= runs all trials on the data of one seed, as a mean over seeds would publish "
            f"more than the best trial, got seeds={seeds}; pass seeds=1 or a list of one."
        )
    return seeds, 0, 0


def _select_privately(
    scenario: Scenario,
    structures: Mapping[str, list[Structure]],
    rows: list[tuple[str, Structure]],
    searches: list[Search],
    first: Mapping[str, Any],
    private: PrivateTuning,
    metric: str,
    goal: str,
    larger_is_better: bool,
    study: dict[str, Any],
) -> Tuned:
    """The result of private selection, see :func:`tune`."""
    candidates = [
        (name, structure, position)
        for (name, structure), search in zip(rows, searches, strict=True)
        for position in (() if search.batch is None else search.batch)
    ]

    def builder(structure: Structure, position: np.ndarray) -> Callable[[], Algorithm]:
        return lambda: structure.build(**structure.values(position))

    rho = max(trial_rho(scenario(random_key(0), algorithm)) for algorithm in first.values())
    with unwarned():
        index, score, run = select(
            scenario,
            [builder(structure, position) for _, structure, position in candidates],
            private,
            rho,
            lambda results: _goal_value(results, metric, goal).isel(seed=0).values,
            larger_is_better=larger_is_better,
            public=metric,
            **study,
        )
    method, structure, position = candidates[index]
    score_columns = {"mean": score, "low": np.nan, "high": np.nan}
    response = xr.Dataset({n: ("candidate", [v]) for n, v in score_columns.items()}).assign_coords(
        {
            name: ("candidate", [value if name in structure.ranges else str(value)])
            for name, value in structure.values(position).items()
        }
    )
    is_decibel = bool(run[metric].attrs.get("decibel", 0))
    response.attrs = {
        "linear": {name: r.linear for name, r in structure.ranges.items()},
        "interior": {},
        "label": f"{goal} {run[metric].attrs.get('long_name', metric)}",
        "decibel": is_decibel,
        "larger_is_better": larger_is_better,
        "cost": False,
        "tried": "a secret number",
    }
    chosen = {method: structures[method]}
    privacy = run.attrs["selection"]
    return _result_of(chosen, {method: response}, goal, study["seeds"], 0, privacy, run)


def _goal_value(results: xr.Dataset, metric: str, goal: str) -> xr.DataArray:
    """The last record of a metric, or the mean over all of them."""
    values = results[metric]
    last = values.isel(round=-1, drop=True)
    return last if goal == "final" else values.mean("round", skipna=False)


def _stages(rounds: int, halvings: int, record_every: int) -> list[int]:
    """The rounds after which candidates are judged, the last after all of them."""
    stages = [
        rounds // 2**remaining_halvings // record_every * record_every
        for remaining_halvings in range(halvings, -1, -1)
    ]
    stages[-1] = rounds
    if not all(earlier < later for earlier, later in itertools.pairwise([0, *stages])):
        raise ValueError(
            f"{rounds} rounds, recorded every {record_every}, cannot be halved {halvings} times; "
            "take fewer halvings= or more rounds."
        )
    return stages


def _race(
    score: Callable[[Mapping[str, int], int], xr.Dataset],
    owners: Mapping[str, int],
    stages: Sequence[int],
) -> xr.Dataset:
    """The scores of all candidates after successive halving.

    At every stage but the last the worse half of each structure's candidates is eliminated. They
    get the worst possible mean.
    """
    racing = dict(owners)
    parts = []
    for stage in stages:
        stage_scores = score(racing, stage)
        stage_scores["rounds"] = "algorithm", np.full(len(racing), stage)
        if stage < stages[-1]:
            losses = dict(zip(racing, _losses(stage_scores), strict=True))
            eliminated = []
            for owner in set(racing.values()):
                ordered = sorted(
                    (n for n, structure in racing.items() if structure == owner),
                    key=losses.__getitem__,
                )
                eliminated += ordered[(len(ordered) + 1) // 2 :]
            for name in eliminated:
                del racing[name]
            stage_scores = stage_scores.sel(algorithm=eliminated)
        parts.append(stage_scores)
    scores = xr.concat(parts, "algorithm", combine_attrs="drop").assign_attrs(parts[-1].attrs)
    scores["mean"] = scores["mean"].where(scores["rounds"] == stages[-1], _worst(scores))
    return scores.sel(algorithm=[*owners])


def evaluated_until(scenario: Scenario, algorithm: Any, round: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers of sample gradients and proximal steps that an algorithm evaluates until rounds.

    NaN if they are not fixed.
    """
    initial, per_round = evaluations(lambda key: scenario(key, algorithm), int(round[-1]))
    parts = zip(COMPUTED, initial, per_round, strict=True)
    return {name: first + round * increment for name, first, increment in parts}


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Within, ignore the warnings about results of runs."""
    with warnings.catch_warnings():
        for kind in (AssumptionWarning, DivergenceWarning, MetricWarning):
            warnings.simplefilter("ignore", kind)
        yield


def _structures_of(methods: Sequence[str] | Mapping[str, tuple]) -> dict[str, list[Structure]]:
    """The structures of all methods: one for every combination of a method's categories."""
    methods = methods.tolist() if isinstance(methods, np.ndarray) else methods
    if isinstance(methods, str) or not methods:
        raise ValueError(
            f"methods are a list of names or a dict, at least one, got {checks.shown(methods)}."
        )
    if not isinstance(methods, Mapping):
        if len(set(methods)) < len(methods):
            raise ValueError(f"each method once, got {list(methods)}.")
        methods = {name: space_of(name) for name in methods}
    structures = {}
    for method, definition in methods.items():
        if not (
            isinstance(definition, tuple)
            and len(definition) == 2
            and callable(definition[0])
            and isinstance(definition[1], Mapping)
            and definition[1]
        ):
            raise ValueError(
                f"method {method!r} must be (function, {{argument: its values}}), got "
                f"{checks.shown(definition)}."
            )
        build, space = definition
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
    """Check the range of a number."""
    linear = isinstance(values, tuple) and len(values) == 3 and values[2] == "linear"
    if not linear and not (isinstance(values, tuple) and len(values) == 2):
        raise ValueError(
            f"the range of {name} must be (least, greatest), (least, greatest, 'linear') or a list "
            f"of categories, got {checks.shown(values)}."
        )
    low, high = values[:2]
    for which, value in (("least", low), ("greatest", high)):
        (checks.interval if linear else checks.positive)(f"the {which} {name}", value)
    if not low < high:
        raise ValueError(
            f"the range of {name} is empty or inverted: {low:g} to {high:g}; give the least value "
            "first."
        )
    return Range(low, high, True) if linear else Range(math.log10(low), math.log10(high), False)


def space_of(name: str) -> tuple[Callable[..., Algorithm], dict[str, Any]]:
    """A registered algorithm, by its name, another one or that of its class, with the ranges of its
    required numbers and of the options that its paper chooses for each problem.
    """
    known_names = meanings()
    checks.choice("method", name, known_names)
    label, variation = known_names[name]
    cls = REGISTRY[label]
    if variation:
        raise ValueError(
            f"{name} is fljax.algorithms.{cls.__name__} {variation}; give a function that makes it "
            f"so, methods={{{name!r}: (function, {{argument: (least, greatest)}})}}."
        )
    needed = [
        argument.name
        for argument in fields(cls)  # pyright: ignore[reportArgumentType]  # of fljax's modules
        if argument.default is MISSING and argument.default_factory is MISSING
    ]
    for argument in needed:
        if argument not in RANGES:
            reason = GIVEN.get(argument, "no range is known for it")
            raise ValueError(
                f"{name} must be given {argument}, and {reason}; say what is tuned, "
                f"methods={{{name!r}: (function, {{argument: (least, greatest)}})}}."
            )
    space = {argument: RANGES[argument] for argument in needed} | SEARCHED_OPTIONS.get(label, {})
    try:
        cls(**{argument: values[0] for argument, values in space.items()})
    except ValueError as error:
        raise ValueError(
            f"{name} must be given more than numbers ({error}); say what is tuned, "
            f"methods={{{name!r}: (function, {{argument: (least, greatest)}})}}."
        ) from None
    return cls, space


def _is_larger_better(scores: xr.Dataset) -> bool:
    """Whether the largest mean is the best."""
    return bool(scores.attrs.get("larger_is_better", False))  # older files do not say it


def _losses(scores: xr.Dataset) -> np.ndarray:
    """The means of all candidates, negated if the largest is the best: the least is the best."""
    return -scores["mean"].values if _is_larger_better(scores) else scores["mean"].values


def _best_mean(scores: xr.Dataset) -> float:
    return float(scores["mean"].values[_losses(scores).argmin()])


def _worst(scores: xr.Dataset) -> float:
    """The mean of a candidate that is worse than all others."""
    return -np.inf if _is_larger_better(scores) else np.inf


def _summarize_scores(
    results: xr.Dataset,
    metric: str | Metric,
    goal: str,
    target: float | None = None,
    most: xr.DataArray | float = math.inf,
    window: int = 1,
) -> xr.Dataset:
    """The score of each candidate, as a summary over seeds. For a goal with a target ``most`` is,
    of each candidate, the cost of which a run that does not reach it counts as a multiple.
    """
    name = statistics.named(results, metric)
    censored = xr.zeros_like(results["diverged"], dtype=int)
    decibel = larger = False
    if target is None:
        values = results[name]
        score = _goal_value(results, name, goal)
        attrs = values.attrs
        decibel = statistics.is_decibel(results, name)
        larger = statistics.larger_is_better(results, metric)
        label = f"{goal} {statistics.label_of(results, name)}"
    else:
        cost = statistics.until(results, metric, target, COUNTED[goal], window=window)
        censored = (cost == np.inf).astype(int)
        score = cost.where(censored == 0, PENALTY * most)
        attrs = {}
        label = cost.attrs["long_name"]
    data = xr.Dataset({"score": score.assign_attrs(attrs), "diverged": results["diverged"]})
    with np.errstate(over="ignore"):  # in runs that are about to diverge
        numbers = statistics.summary(data, "score")
    attributes = {"label": label, "decibel": decibel, "larger_is_better": larger}
    numbers = numbers.assign_attrs(attributes, cost=target is not None)
    if larger and "greatest" in attrs:
        numbers.attrs["greatest"] = float(attrs["greatest"])
    # A run whose metric is NaN counts as diverged.
    is_lost = (numbers["diverged"] > 0) | (numbers["runs"] < results.sizes["seed"])
    numbers["mean"] = numbers["mean"].where(
        ~is_lost & np.isfinite(numbers["mean"]), _worst(numbers)
    )
    numbers["censored"] = censored.sum("seed").astype(int)
    return numbers


def _with_candidate_values(
    scores: xr.Dataset, structure: Structure, batch: np.ndarray
) -> xr.Dataset:
    """The scores with the candidates' values as coordinates."""
    values = [structure.values(position) for position in batch]
    coords = {
        name: (
            "candidate",
            [row[name] if name in structure.ranges else str(row[name]) for row in values],
        )
        for name in values[0]
    }
    scores = scores.rename(algorithm="candidate").drop_vars("candidate").assign_coords(coords)
    return scores.assign_attrs(linear={name: r.linear for name, r in structure.ranges.items()})


def _interior(response: xr.Dataset, search: Search) -> dict[str, bool]:
    below, above = search.edges(search.positions[int(_losses(response).argmin())])
    return dict(zip(response.attrs["linear"], (~(below | above)).tolist(), strict=True))


def _result_of(
    structures: Mapping[str, list[Structure]],
    response: dict[str, xr.Dataset],
    goal: str,
    seeds: list[int],
    compilations: int,
    privacy: str = "",
    released: xr.Dataset | None = None,
) -> Tuned:
    """Choose the best candidate of each method from the scores."""
    chosen = {}
    methods = {}
    width = {}
    for method, structures_of_method in structures.items():
        structure = structures_of_method[0]
        scores = response[method]
        if not np.isfinite(scores["mean"]).any():
            least = ", ".join(f"{name} {float(scores[name].min()):g}" for name in structure.ranges)
            raise ValueError(
                f"nothing is left to choose for {method}: every candidate had runs that diverged"
                f"{least and f', down to {least}'}. Begin at smaller values, or look at the "
                "scenario."
            )
        best = scores.isel(candidate=int(_losses(scores).argmin()))
        (structure,) = (
            s
            for s in structures_of_method
            if all(best[n].item() == str(v) for n, v in s.categories.items())
        )
        numbers = {name: float(best[name]) for name in structure.ranges}
        chosen[method] = numbers | structure.categories
        methods[method] = structure.build(**chosen[method])
        size = abs(float(best["mean"]) - scores.attrs.get("greatest", 0.0))
        slack = size * (10 ** (TOLERANCE / 10) - 1)
        good = abs(scores["mean"] - best["mean"]) <= slack
        for name in structure.categories:
            good = good & (scores[name] == best[name])
        values = {name: scores[name].values[good.values] for name in structure.ranges}
        width[method] = {n: (float(v.min()), float(v.max())) for n, v in values.items()}
    interior = {method: structure.attrs["interior"] for method, structure in response.items()}
    choice = privacy.removeprefix("tuning not counted: ")
    if released is not None:
        choice = f"chosen by private selection, whose own cost is not in this ledger ({privacy})"
    return Tuned(
        LabeledValues(methods, chosen, choice),
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
