"""A comparison of methods from tuning to table: each tuned by the same rule, all evaluated on fresh
seeds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.algorithms.algorithm import Algorithm
from fljax.metrics.definitions import Metric
from fljax.metrics.names import COMPUTED
from fljax.plotting import learning_curves, performance_profile
from fljax.plotting.curves import TIME_ATTRIBUTES
from fljax.results import statistics
from fljax.results.dataset import labeled
from fljax.results.tables import shown
from fljax.study.grid import Scenario
from fljax.study.request import Request
from fljax.study.saving import load, save
from fljax.study.sweeping import sweep
from fljax.tuning.search import (
    COUNTED,
    FIRST_SEED,
    Tuned,
    check_target,
    check_unclocked,
    check_window,
    evaluated_until,
    tune,
    unwarned,
)

#: The costs of reaching a target in tables.
COSTS = ("round", "bits", *COMPUTED, "seconds")

#: How often a run is timed; the least time counts.
TIMED = 3


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`fljax.compare`.

    Attributes:
      tuned: the tuned methods, and how they were chosen.
      results: their runs on the seeds of the evaluation, which :func:`fljax.table`,
        :mod:`fljax.statistics` and :mod:`fljax.plotting` accept; the tuned values are coordinates.
      metric: name of the metric that was minimized, or maximized if it is better the larger it is.
      target: target value of the metric, if one was given.
      window: number of records whose mean must be at the target, see
        :func:`fljax.statistics.until`.
    """

    tuned: Tuned
    results: xr.Dataset
    metric: str
    target: float | None
    window: int = 1

    def table(self, baseline: str | None = None, level: float = statistics.LEVEL) -> Any:
        """Return a pandas ``DataFrame`` with a row for each method, the best first.

        Args:
          baseline: the method that all others are compared with; by default the one with the best
            mean. As that one is selected from the same results, the intervals are then corrected
            for all pairs, and hold whichever it is; with a given baseline they are narrower.
          level: confidence level: of each single mean, and simultaneous for all differences and for
            all ranks.

        Returns:
          The mean of the metric in the last round under its label, in dB if it has a dB scale, with
          its interval, ``low`` and ``high``; ``diverged``, the number of runs left out; ``tuned``,
          the chosen values; ``difference`` to the baseline, paired by seed, and its interval,
          ``difference low`` and ``difference high``
          (:func:`fljax.statistics.paired_differences`); ``rank``, ``rank low`` and ``rank high``
          (:func:`fljax.statistics.ranks`). For private runs the column ``privacy`` states that the
          tuning is not counted. With a target also ``round``, ``bits``, ``gradients``,
          ``proximal`` and ``seconds`` (see :func:`fljax.compare`): the median over all seeds of
          the cost to reach it, infinite if half of the runs or more do not, NaN if it is unknown;
          and ``never``, the number of runs that never reach it, diverged ones included.
        """
        last = statistics.at_round(self.results)
        label = statistics.label_of(last, self.metric)
        means = statistics.summary(last, self.metric, level)
        parts = means[["mean", "low", "high"]]
        if statistics.is_decibel(last, self.metric):
            parts = statistics.decibels(parts)
        chosen_texts = [
            ", ".join(f"{name}={shown(value)}" for name, value in values.items())
            for values in self.tuned.chosen.values()
        ]
        columns = {label: parts["mean"], "low": parts["low"], "high": parts["high"]}
        columns |= {
            "diverged": means["diverged"],
            "tuned": xr.DataArray(chosen_texts, dims="algorithm"),
        }
        differences = self._differences(last, baseline, level)
        ranks = statistics.ranks(last, self.metric, "algorithm", level=level)
        for name, intervals in (("difference", differences), ("rank", ranks)):
            columns[name] = intervals[name]
            columns |= {f"{name} {end}": intervals[end] for end in ("low", "high")}
        if self.target is not None:
            costs = {of: self.cost(of) for of in COSTS if of in self.results.variables}
            columns |= {of: cost.median("seed") for of, cost in costs.items()}
            columns["never"] = (costs["round"] == np.inf).sum("seed")
        if self.tuned.privacy:
            texts = ["tuning not counted"] * len(chosen_texts)
            columns["privacy"] = xr.DataArray(texts, dims="algorithm")
        values = {name: ("algorithm", column.values) for name, column in columns.items()}
        frame = xr.Dataset(values, {"algorithm": last["algorithm"].values}).to_dataframe()
        larger = statistics.larger_is_better(last, self.metric)
        return frame.sort_values(label, kind="stable", ascending=not larger)

    def _differences(self, last: xr.Dataset, baseline: str | None, level: float) -> xr.Dataset:
        """Paired differences of all methods to the baseline, NaN for itself."""
        names = last["algorithm"].values
        if baseline is None:
            # With 2/A of the error, the correction for A-1 comparisons is that for A(A-1)/2 pairs.
            level = 1 - (1 - level) * 2 / len(names)
            means = statistics.summary(last, self.metric)["mean"].values
            larger = statistics.larger_is_better(last, self.metric)
            baseline = names[np.nanargmax(means) if larger else np.nanargmin(means)]
        paired = statistics.paired_differences(
            last, self.metric, baseline, "algorithm", level=level
        )
        return paired.reindex(algorithm=names)

    def cost(self, of: str | Mapping[str, float] = "round") -> xr.DataArray:
        """Return the cost of each run until the target is reached, :func:`fljax.statistics.until`;
        without a target the final value of the metric.

        Args:
          of: the counted quantity, as ``x`` in :meth:`plot`, or the price of each of several
            quantities, as ``{"gradients": 1, "proximal": 50, "bits": 0.01}``. The cost in gradients
            or proximal steps alone is NaN for a method that evaluates none.

        Raises:
          ValueError: an unknown cost; without a target, a metric that may be negative or is better
            the larger it is.
        """
        if self.target is not None:
            results = self.results
            if isinstance(of, str) and of in COMPUTED and of in results:
                results = results.assign({of: results[of].where(results[of].max("round") > 0)})
            return statistics.until(results, self.metric, self.target, of, window=self.window)
        if statistics.larger_is_better(self.results, self.metric):
            raise ValueError(
                f"{self.metric!r} is better the larger it is and is no cost; give a target= to "
                "compare what methods need to reach it."
            )
        if not statistics.is_decibel(self.results, self.metric):
            raise ValueError(
                f"{self.metric!r} may be negative and has no ratios; give a target= to compare "
                "what methods need to reach it."
            )
        last = statistics.at_round(self.results)
        name = f"final {statistics.label_of(last, self.metric, decibel=False)}"
        return statistics.keep_finite(last, self.metric).assign_attrs(long_name=name)

    def plot(self, x: str = "round") -> Axes:
        """Plot the metric of all methods against the rounds, the communication, the gradients that
        were evaluated, or time.

        Args:
          x: ``"round"``, ``"bits"`` (and all of :func:`fljax.plotting.learning_curves`),
            ``"gradients"`` or ``"proximal"`` (methods that evaluate none, or not a fixed number,
            are left out), or ``"seconds"``, of runs on a clock or if they were measured.

        Returns:
          The axes; a horizontal line is the target.
        """
        results = self.results
        if x in COMPUTED and x in results:
            results = results.sel(algorithm=(results[x] > 0).all("round"))
        ax = learning_curves(results, self.metric, "algorithm", x=x)
        if self.target is not None:
            decibel = statistics.is_decibel(self.results, self.metric)
            level = statistics.decibels(self.target) if decibel else self.target
            ax.axhline(level, color="#555555", linewidth=0.8, zorder=0)
        return ax

    def plot_profile(self, of: str | Mapping[str, float] = "round") -> Axes:
        """Plot performance profiles over the seeds, :func:`fljax.plotting.performance_profile`, of
        the cost until the target is reached; without a target of the final value of the metric.
        Methods whose cost is unknown are left out.

        Args:
          of: the counted quantity, see :meth:`cost`.
        """
        cost = self.cost(of).dropna("algorithm", how="all")
        if self.tuned.privacy:
            cost = cost.assign_attrs(remark="tuning not counted in the privacy loss")
        return performance_profile(cost)

    def save(self, path: str | PathLike) -> Path:
        """Write everything to one netCDF-4 file, atomically; :meth:`load` reads it, and
        :func:`fljax.load` its results.
        """
        about = {"tuned": self.tuned.text(), "metric": self.metric, "target": self.target}
        about["window"] = self.window
        return save(self.results.assign_coords(comparison=json.dumps(about)), path)

    @classmethod
    def load(
        cls, path: str | PathLike, methods: Sequence[str] | Mapping[str, tuple]
    ) -> "Comparison":
        """Read a file written by :meth:`save`.

        Args:
          path: path of the file.
          methods: the methods given to :func:`fljax.compare`; functions are not stored in the file.

        Raises:
          ValueError: a file of other methods, of no comparison, or one that is damaged.
        """
        results = load(path)
        if "comparison" not in results.coords:
            raise ValueError(
                f"{path} is of no comparison; fljax.load reads the results of a study."
            )
        about = json.loads(results["comparison"].item())
        tuned = Tuned.of_text(about["tuned"], methods, path)
        results = results.drop_vars("comparison")
        window = about.get("window", 1)  # older files do not say it
        return cls(tuned, results, about["metric"], about["target"], window)


@checked
def compare(
    scenario: Scenario,
    methods: Sequence[str] | Mapping[str, tuple],
    *,
    metric: str | Metric,
    rounds: int,
    goal: str = "final",
    target: float | None = None,
    window: int = 1,
    seeds: int | Sequence[int] = 20,
    tuning_seeds: int | Sequence[int] = 10,
    record_every: int = 1,
    timed: bool = False,
    store: str | PathLike | None = None,
    executor: Any = None,  # concurrent.futures.Executor | None
    **search: Any,
) -> Comparison:
    """Compare methods from tuning to table: tune each by the same rule with :func:`fljax.tune`, and
    evaluate the tuned ones on fresh seeds with :func:`fljax.sweep`.

    The results have variables ``gradients``, the number of sample gradients that all clients have
    evaluated until each round, and ``proximal``, the number of their proximal steps (exact
    minimizations of a client's objective plus a quadratic). They are counted in the program of a
    round: a batch counts as many gradients as it has samples; gradients of absent clients and
    within an iterative proximal step count as well. Both are NaN for methods that do not evaluate a
    fixed number of them (full gradients in random rounds). Simulations with a clock
    (:mod:`fljax.clock`) have ``seconds``, the time on their devices. If ``timed``, others have them
    as well, as the rounds times the wall time of one round of a simulation on this machine: the
    difference between a complete and half a run, one at a time and compiled, the least of three
    times each. It is the time to compute all clients and the metrics, not the time of a network.

    Args:
      scenario: ``(key, algorithm) -> Simulation``, pure.
      methods: two or more, as for :func:`fljax.tune`: names of algorithms, or a mapping from names
        of your choice to a function that makes an algorithm and the values to search.
      metric: the metric to minimize, or to maximize if it is better the larger it is.
      rounds: number of rounds of every run, in the tuning and in the evaluation.
      goal: the criterion of the tuning, ``"final"``, ``"area"``, ``"rounds"``, ``"bits"``,
        ``"gradients"`` or, on a clock, ``"seconds"``.
      target: target value of the metric; given one, the table and the profiles show the cost that
        each method needs until the metric is at or below it, or at or above it if larger is better.
        All goals but the first two need one.
      window: number of records whose mean must be at the target, in the tuning and in the table
        (:func:`fljax.statistics.until`); 1 is the first touch.
      seeds: number of seeds of the evaluation, or a list of them, below 10^9.
      tuning_seeds: number of seeds of the tuning, or a list of them, from 10^9 on.
      record_every: number of rounds between records of the metrics.
      timed: whether to measure the seconds of a round of each method as well, which takes two more
        compilations of each; for simulations without a clock.
      store: a folder that keeps all runs; a comparison that was killed resumes from there.
      executor: computes the runs on its workers, as in :func:`fljax.sweep`; it needs a store.
      **search: further arguments of :func:`fljax.tune`, such as ``points`` and ``extensions``.

    Returns:
      The tuned methods, their results, and the table and plots of both.

    Raises:
      ValueError: before anything is compiled, fewer than two methods, seeds of the evaluation that
        are the tuning's, ``timed`` simulations with a clock, or what :func:`fljax.tune` raises.

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key, algorithm):
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(key, clients=6, samples=10, dim=2),
      ...         network=fl.graphs.ring(6),
      ...         algorithm=algorithm,
      ...         metrics=["normalized_error"],
      ...     )
      >>> comparison = fl.compare(
      ...     scenario, ["CTA", "EXTRA"], metric="normalized_error", rounds=30, seeds=5,
      ...     tuning_seeds=2, target=0.01,
      ... )
      >>> table = comparison.table()
      >>> table.index.tolist(), table["rank high"].tolist(), table["never"].tolist()
      (['EXTRA', 'CTA'], [1.0, 2.0], [0, 2])
    """
    request = Request(scenario=scenario, rounds=rounds, seeds=seeds, record_every=record_every)
    evaluated = request.seed_list
    if max(evaluated) >= FIRST_SEED:
        raise ValueError(
            f"seeds of the evaluation must be below {FIRST_SEED}, as the tuning's are numbered "
            f"from there on, got {max(evaluated)}."
        )
    if search.get("private") is not None:
        raise ValueError(
            "a comparison runs every method on the data again, which private= does not count; use "
            "fljax.tune(private=...), whose result is the best method with its run."
        )
    if len(methods) < 2:
        raise ValueError(f"two or more methods are compared, got {checks.shown(methods)}.")
    check_target(metric, target)
    checks.count("window", window)
    check_window(target, window, request.records)
    checks.switch("timed", timed)
    if timed and rounds < 2 * record_every:
        raise ValueError(f"timed= needs two records or more, got rounds={rounds}.")
    if timed:
        check_unclocked(scenario, methods, rounds)
    tuned = tune(
        scenario,
        methods,
        metric=metric,
        rounds=rounds,
        goal=goal,
        target=target if goal in COUNTED else None,
        window=window if goal in COUNTED else 1,
        seeds=tuning_seeds,
        record_every=record_every,
        store=store,
        executor=executor,
        **search,
    )
    results = sweep(
        scenario,
        grid={"algorithm": tuned.methods},
        rounds=rounds,
        seeds=evaluated,
        record_every=record_every,
        store=store,
        executor=executor,
    )
    numbers = results["round"].values
    counts = [evaluated_until(scenario, method, numbers) for method in tuned.methods.values()]
    for name in COMPUTED:
        values = np.stack([count[name] for count in counts])
        results[name] = ("algorithm", "round"), values, labeled(name)
    if timed:
        pace = [_pace(scenario, method, rounds, record_every) for method in tuned.methods.values()]
        pace = xr.DataArray(pace, dims="algorithm")
        results["seconds"] = (pace * results["round"]).assign_attrs(TIME_ATTRIBUTES)
    return Comparison(tuned, results, statistics.named(results, metric), target, window)


def _pace(scenario: Scenario, method: Algorithm, rounds: int, record_every: int) -> float:
    """Seconds of a round of a method; NaN where they are too few to be measured."""
    half = rounds // record_every // 2 * record_every
    with unwarned():
        run_seconds, half_seconds = (
            min(
                sweep(
                    scenario,
                    grid={"algorithm": {"timed": method}},
                    rounds=length,
                    record_every=record_every,
                    workers=1,
                    progress=False,
                ).attrs["run_seconds"]
                for _ in range(TIMED)
            )
            for length in (rounds, half)
        )
    return (run_seconds - half_seconds) / (rounds - half) if run_seconds > half_seconds else np.nan
