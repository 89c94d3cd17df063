"""Tuning at a privacy cost that is counted: private selection by a random number of trials.

A trial is a whole run of a candidate that is drawn uniformly at random, with noise of its own, on
the same data. How many trials are made is random and secret, and only the best one is published
(:mod:`fljax.privacy.accounting.selection`).
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
import xarray as xr

from fljax._core import checks, taint
from fljax._core.annotations import check_fields
from fljax._core.module import replace
from fljax._core.prng import as_key
from fljax.algorithms.algorithm import Algorithm
from fljax.metrics.definitions import Metric, Snapshot
from fljax.privacy import PureDP, accounting
from fljax.privacy.promises import ROUNDING, state
from fljax.privacy.releasing import released
from fljax.privacy.secrets import ENTROPY, secret_of
from fljax.results.dataset import labeled
from fljax.simulation import scan
from fljax.simulation.scenario import Simulation
from fljax.study.grid import Scenario
from fljax.study.sweeping import sweep

Score: TypeAlias = Literal["public"]


@dataclasses.dataclass(frozen=True)
class PrivateTuning:
    r"""Private selection for :func:`fljax.tune`: the privacy loss of the choice is counted.

    The number of trials is drawn from the truncated negative binomial distribution. Each trial
    draws a candidate uniformly at random and runs it with fresh noise on the same data; the trial
    with the best score is the result, and nothing else of the trials is kept, their number
    included.

    Args:
      delta: of the guarantee, in (0, 1).
      score: ``"public"``, your declaration that the metric is computed from released models and
        held-out data that need no protection. Metrics that read training data, the optimum or the
        state are refused.
      trials: mean number of trials, > 1.
      shape: of the distribution, > -1: 1 is the geometric one; smaller values cost less privacy and
        make a single trial more likely.
      noise_seed: as in :func:`fljax.sweep`; it draws the number of trials and the candidates, too.

    Guarantees:
      The result is (epsilon, delta)-DP for the budget's relation of neighbors, with epsilon by
      :func:`fljax.privacy.accounting.selection_epsilon` from the zCDP parameter of one trial
      (Papernot & Steinke 2022, Theorem 2), if the held-out data need no protection.

    Example:
      >>> import fljax as fl
      >>> round(fl.PrivateTuning(delta=1e-5, score="public").epsilon(rho=0.1), 2)
      4.2
    """

    delta: float
    score: Score
    trials: float = 20.0
    shape: float = 1.0
    noise_seed: int | str = ENTROPY

    def __post_init__(self) -> None:
        check_fields(self)
        checks.interval("delta", self.delta, above=0, below=1)
        checks.choice("score", self.score, ("public",))
        checks.interval("shape", self.shape, above=-1)
        checks.interval("trials", self.trials, above=1, hint="A single trial selects nothing.")
        secret_of(self.noise_seed)

    @property
    def stop(self) -> float:
        """The second parameter of the distribution of the number of trials."""
        return accounting.selection_stop(float(self.trials), float(self.shape))

    def epsilon(self, rho: float) -> float:
        """Epsilon of the result, from the zCDP parameter of one trial."""
        return accounting.selection_epsilon(rho, self.delta, float(self.shape), self.stop)


def trial_rho(simulation: Simulation) -> float:
    """The zCDP parameter that a run of a simulation has at most, known before it runs.

    Raises:
      ValueError: a budget for which none is known.
    """
    budget: Any = simulation.privacy
    if hasattr(budget, "total_rho"):
        return float(budget.total_rho)
    if isinstance(budget, PureDP):
        return float(accounting.pure_to_zcdp(float(budget.epsilon)))
    raise ValueError(
        "private= needs the zCDP parameter of a whole run in advance, which "
        f"{type(budget).__name__} does not state; take privacy=ZCDP(...), DiscreteZCDP(...) or "
        "PureDP(...)."
    )


def check_score(simulation: Simulation, metric: Metric) -> None:
    """Raise ``ValueError`` unless a metric is computed from released models, held-out data and
    public quantities alone.

    Args:
      simulation: as shapes.
      metric: one of its metrics.
    """
    if simulation.problem.online:
        raise ValueError("private= is for problems with held-out data, and not for streams.")
    covered = []

    def exit_metric(simulation: Simulation) -> None:
        prepared = scan.prepare_without_noise(simulation)
        carry = scan.begin(simulation, prepared, as_key(0))
        problem = prepared.problem
        # Mark the state before anything is computed from it: the same array may be in it twice,
        # as the model and as the last message.
        hidden = taint.private(carry.state)
        model, of_messages = scan.evaluated_models(simulation, prepared, hidden)
        covered.append(of_messages)
        shared = jnp.zeros_like(model) if model.ndim == 1 else None
        samples = {name: getattr(problem, name) for name in ("features", "targets", "statistics")}
        problem = replace(problem, **taint.private(samples))
        snapshot = Snapshot(
            problem,
            simulation.network,
            jnp.zeros((problem.clients, model.shape[-1]), model.dtype),
            taint.private(prepared.optimum),
            shared,
            hidden,
            None if simulation.attack is None else ~jnp.asarray(simulation.attack.byzantine),
            taint.private(carry.quantities),
            simulation.algorithm.predictor(hidden, problem),
        )
        taint.open_to_all(metric.measure(snapshot), metric.name)

    dependent = taint.exits(exit_metric, simulation)
    if not covered[0]:
        raise ValueError(
            "private= scores released models, and metrics of this simulation are of exact ones, "
            "which no budget covers; simulate with model='released'."
        )
    if dependent:
        raise ValueError(
            f"the metric {metric.name!r} depends on training data, their optimum or the state, "
            "which no budget covers; take one of held-out data, such as 'test_error'."
        )


def select(
    scenario: Scenario,
    candidates: Sequence[Callable[[], Algorithm]],
    private: PrivateTuning,
    rho: float,
    score: Callable[[xr.Dataset], np.ndarray],
    larger_is_better: bool = False,
    **study: Any,
) -> tuple[int, float, xr.Dataset]:
    """Run a random number of trials and return the best.

    Args:
      scenario: ``(key, algorithm) -> Simulation``.
      candidates: make the algorithms that are drawn from.
      private: the distribution of trials and the noise seed.
      rho: the zCDP parameter of a trial.
      score: the scores of the runs in a dataset, ``[algorithm]``.
      larger_is_better: whether the largest score is the best, and not the least.
      **study: ``rounds``, ``seeds`` (one), ``record_every`` and ``public``, the metric.

    Returns:
      The number of its candidate, its score, and its run as far as it is covered, with the privacy
      loss of the selection as its ledger.
    """
    metric = study.pop("public")
    has_secret_seed = private.noise_seed != ENTROPY
    source = (
        random.Random(secret_of(private.noise_seed)) if has_secret_seed else random.SystemRandom()
    )
    count = accounting.draw_trials(source.random, float(private.shape), private.stop)
    drawn = [source.randrange(len(candidates)) for _ in range(count)]
    # Noise depends on the label of a trial, so a candidate that is drawn twice gets fresh noise.
    trials = {f"trial {i}": candidates[number]() for i, number in enumerate(drawn)}
    # No progress bar: like the time or the compilations, it would reveal the number of trials.
    results = sweep(
        scenario,
        grid={"algorithm": trials},
        keep_models=True,
        noise_seed=private.noise_seed,
        progress=False,
        **study,
    )
    ledger = results.get("privacy_rho")
    if ledger is None:
        ledger = accounting.pure_to_zcdp(results["privacy_epsilon"].values)
    if float(np.max(ledger)) > rho * (1 + ROUNDING):
        raise ValueError(
            f"a trial spent {float(np.max(ledger)):.6g} of zCDP, more than the {rho:.6g} that its "
            "budget states; the guarantee of the selection does not hold for this budget."
        )
    scores = score(results)
    losses = np.nan_to_num(-scores if larger_is_better else scores, nan=np.inf)
    best = int(np.argmin(losses))
    run = released(results.isel(algorithm=best, seed=0, drop=True), public=(metric,))
    # The ledger of a trial does not cover the selection of the best one.
    ledger_names = [n for n in map(str, run.data_vars) if n.startswith(("privacy_", "client_"))]
    noise_names = ("gaussian_noise", "noise_multiplier", "sampling_rate", "drawn_from")
    relation = results[next(n for n in ledger_names if n.startswith("privacy_"))].attrs["neighbors"]
    run = run.drop_vars([*ledger_names, *(name for name in noise_names if name in run)])
    epsilon = private.epsilon(rho)
    rounds = run.sizes["round"]
    for name, value in (("privacy_epsilon", epsilon), ("privacy_delta", private.delta)):
        attributes = labeled(name) | {"neighbors": relation}
        run[name] = "round", np.full(rounds, value), attributes
    run.attrs["selection"] = (
        f"tuning counted: epsilon {epsilon:.4g} at delta {private.delta:g} is of the best of a "
        f"random number of trials (truncated negative binomial, mean {private.trials:g}, shape "
        f"{private.shape:g}), each {rho:.4g}-zCDP, by a score of {metric} that is declared to read "
        "released models and public data alone"
    )
    state(run)
    run.attrs["not_covered"] = "nothing"  # the metric is computed from public data
    return drawn[best], float(scores[best]), run
