r"""Fairness: between clients, between groups of people, and towards a sensitive feature.

*Clients*: any per-client metric can be reduced to its spread over clients (:func:`spread`) or to
its value at the worst clients (:func:`worst`). Algorithms that train for fairness are
:class:`fljax.algorithms.QFedAvg`, and :class:`fljax.algorithms.AFL` for the worst-case mixture of
the clients.

*Groups*: a column of the features gives the group of each sample; :func:`group_rates` returns a
rate for each group and :func:`parity_difference` the largest difference between groups.

*Features*: copies of the training data with a perturbed sensitive feature and unchanged labels
teach a model to ignore this feature (:func:`augmented`; Jung 2025, section 8.5, "Diversity,
Non-Discrimination and Fairness", Figure 8.4); :func:`flip_effect` measures the remaining effect.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.linalg import norm
from fljax._core.module import replace
from fljax.metrics.definitions import (
    Metric,
    Score,
    Snapshot,
    as_metric,
    check_label,
    held_out,
    mean_score,
    measured_clients,
)
from fljax.problems import Loss, Problem
from fljax.problems.problem import value_of
from fljax.problems.streams import Stream

__all__ = ["augmented", "flip_effect", "group_rates", "parity_difference", "spread", "worst"]


# Clients -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spread:
    """The spread over the honest clients. As for all metrics here, instances with equal fields are
    equal, which avoids retracing.
    """

    metric: Metric
    squared: bool

    def __call__(self, now: Snapshot) -> Array:
        values, honest = _client_values(self.metric, now)
        variance = jnp.var(values, axis=0, where=honest)
        return variance if self.squared else jnp.sqrt(variance)


@dataclass(frozen=True)
class _Worst:
    metric: Metric
    share: float | None
    largest: bool

    def __call__(self, now: Snapshot) -> Array:
        (values, honest), sign = _client_values(self.metric, now), -1 if self.largest else 1
        ordered = sign * jnp.sort(jnp.where(honest, sign * values, jnp.inf), axis=0)
        if self.share is None:
            return ordered[0]
        # A tenth of 20 clients is 2, also where 0.1 * 20 is a bit above it.
        count = jnp.ceil(self.share * jnp.sum(honest, dtype=values.dtype) - 1e-3)
        index = jnp.arange(len(values), dtype=values.dtype).reshape(honest.shape)
        return jnp.mean(ordered, axis=0, where=index < jnp.maximum(count, 1))


def _client_values(metric: Metric, now: Snapshot) -> tuple[Array, Array]:
    """The metric per client, ``[K, ...]``, and which clients count: honest ones that have the data
    that it uses, ``[K, 1, ...]``.
    """
    values = metric.measure(now)
    counting = jnp.ones(len(values), bool) if now.honest is None else now.honest
    if (measured := measured_clients(metric, now)) is not None:
        counting = counting & measured
    return values, counting.reshape((-1,) + (1,) * (values.ndim - 1))


@checked
def spread(metric: Metric | str, *, squared: bool = False) -> Metric:
    r"""Standard deviation of a per-client metric over the clients.

    It becomes ``<name>_deviation`` in the results, or ``<name>_variance``. Under an attack only the
    honest clients count, and clients without the data that the metric is of are left out.

    Args:
      metric: a per-client metric, or its name, such as ``"client_accuracy"`` and
        ``"validation_error"``.
      squared: whether to return the variance instead.

    Raises:
      ValueError: a metric that is not per client.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2)
      >>> simulation = fl.Simulation(
      ...     problem.split(jax.random.key(1)),
      ...     fl.algorithms.FedAvg(0.1),
      ...     metrics=["validation_error", spread("validation_error"), worst("validation_error")],
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> each = run.validation_error[-1]
      >>> bool(abs(run.validation_error_deviation[-1] - each.std()) < 1e-6)
      True
      >>> bool(run.validation_error_worst[-1] == each.max())
      True
    """
    metric = _per_client(metric)
    kind = "variance" if squared else "deviation"
    return dataclasses.replace(
        metric,
        name=f"{metric.name}_{kind}",
        measure=_Spread(metric, squared),
        label=f"{'variance' if squared else 'standard deviation'} of the {metric.label}",
        dims=metric.dims[1:],
        bounds=(0.0, math.inf),
    )


@checked
def worst(
    metric: Metric | str, share: float | None = None, *, largest: bool | None = None
) -> Metric:
    r"""A metric at the worst client, or its mean over the worst share of clients.

    It becomes ``<name>_worst`` in the results, or for a share such as one tenth
    ``<name>_worst_10``: the mean over the worst :math:`\lceil sK\rceil` clients (Li et al. 2020,
    fair). Under an attack only the honest clients count, and clients without the data that the
    metric is of are left out.

    Args:
      metric: as for :func:`spread`.
      share: :math:`s\in(0,1]`; the single worst client by default.
      largest: whether the largest values are the worst. By default true for metrics on a dB scale,
        such as errors, and false for metrics that are better the larger they are or have an upper
        bound, such as an accuracy.

    Raises:
      ValueError: a metric that is not per client, or that does not determine which values are
        worse; a share outside (0, 1].

    Example:
      >>> worst("client_accuracy", 0.1).name, worst("validation_error").name
      ('client_accuracy_worst_10', 'validation_error_worst')
    """
    metric = _per_client(metric)
    if share is not None:
        checks.interval("share", share, above=0, at_most=1, hint="It is one of the clients.")
    if largest is None:
        has_direction = metric.decibel or metric.larger_is_better
        if not has_direction and math.isinf(metric.bounds[1]):
            raise ValueError(
                f"it is not known whether large or small values of {metric.name!r} are the worst; "
                "give largest=True or largest=False."
            )
        largest = metric.decibel and not metric.larger_is_better
    part = "" if share is None else f"_{100 * share:g}".replace(".", "_")
    description = "worst client" if share is None else f"worst {100 * share:g} % of the clients"
    return dataclasses.replace(
        metric,
        name=f"{metric.name}_worst{part}",
        measure=_Worst(metric, share, largest),
        label=f"{metric.label} of the {description}",
        dims=metric.dims[1:],
    )


def _per_client(metric: Metric | str) -> Metric:
    metric = as_metric(metric)
    if metric.dims[:1] != ("client",):
        axes = f"over {metric.dims}" if metric.dims else "one number"
        raise ValueError(
            "the metric must have one value for each client, dims=('client', ...), but "
            f"{metric.name!r} is {axes}; take 'client_accuracy', 'validation_error', 'train_error' "
            "or one of your own."
        )
    return metric


# Groups ------------------------------------------------------------------------------------------

#: Rates of groups: their names, the names of the differences, and descriptions.
RATES = {
    "accuracy": ("accuracy_difference", "accuracy"),
    "positive_rate": ("demographic_parity_difference", "share labeled positive"),
    "true_positive_rate": ("equal_opportunity_difference", "true positive rate"),
}


@dataclass(frozen=True)
class _Rates:
    rate: str
    feature: int
    groups: tuple[float, ...]
    positive: float
    difference: bool

    def __call__(self, now: Snapshot) -> Array:
        def share(group: float) -> Array:
            def members(test: Problem) -> Problem:
                inside = self._in_denominator(test.features[..., self.feature], test.targets, group)
                return replace(test, weights=jnp.where(inside, test.weights, 0))

            hits = mean_score(now, self._predicted_label, members)
            return hits / mean_score(now, _unit_score, members)

        rates = jnp.stack([share(group) for group in self.groups])
        return jnp.max(rates) - jnp.min(rates) if self.difference else rates

    def _predicted_label(self, loss: Loss, prediction: Array, target: Array) -> Array:
        label = target if self.rate == "accuracy" else jnp.full_like(target, self.positive)
        return loss.correct(prediction, label).astype(prediction.dtype)

    def _in_denominator(self, column: object, target: object, group: float) -> Any:
        """Whether each sample is in the denominator of a group's rate."""
        member = column == group
        return member & (target == self.positive) if self.rate == "true_positive_rate" else member

    def check(self, problem: Problem | Stream) -> None:
        test = _unmapped(problem)
        if self.rate == "positive_rate":
            check_label(
                "positive", self.positive, test
            )  # the other rates check that samples have it

        def check_groups_occur(column: object, targets: object, weights: object) -> None:
            column = np.asarray(column)
            targets = np.asarray(targets)
            for group in self.groups:
                counted = self._in_denominator(column, targets, group) & (np.asarray(weights) > 0)
                if not counted.any():
                    label = f" with the label {self.positive:g}" * (
                        self.rate == "true_positive_rate"
                    )
                    values = ", ".join(f"{v:g}" for v in np.unique(column)[:8])
                    raise ValueError(
                        f"group {group:g} has no member: no held-out sample{label} has it as its "
                        f"feature {self.feature}, whose values are {values}."
                    )

        checks.check_when_concrete(
            check_groups_occur, _column(test, self.feature), test.targets, test.weights
        )


def _unit_score(loss: Loss, prediction: Array, target: Array) -> Array:
    return jnp.ones_like(loss.correct(prediction, target), prediction.dtype)


@checked
def group_rates(
    rate: str, feature: int, groups: Sequence[float] = (0.0, 1.0), *, positive: float = 1.0
) -> Metric:
    r"""Rate of correct or favorable predictions on each group of held-out samples.

    It becomes ``group_<rate>`` in the results, with an axis ``group``. Each client's model is
    evaluated on the client's held-out data; samples count by their weights, and clients count
    equally.

    Args:
      rate: ``"accuracy"``, the share classified correctly; ``"positive_rate"``, the share
        classified as positive; ``"true_positive_rate"``, the share of the positive samples
        classified as positive.
      feature: the column of the held-out features that holds the group of a sample.
      groups: two or more values of this column, one per group.
      positive: the favorable label.

    Raises:
      ValueError: an unknown rate, fewer than two groups or a duplicate, a negative column; when the
        simulation is created, a column that the problem lacks, or a group without members.

    Example:
      >>> import numpy as np, fljax as fl
      >>> x = np.array([[[0.0, -1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]])
      >>> problem = fl.problems.Problem(x, np.array([[-1.0, 1, 1, -1]]), fl.problems.Logistic())
      >>> problem = problem.with_test(x[0], problem.targets[0])
      >>> simulation = fl.Simulation(
      ...     problem.starting_at(np.array([0.0, 1.0])),
      ...     fl.algorithms.FedAvg(1e-6),
      ...     metrics=[group_rates("accuracy", 0), parity_difference("positive_rate", 0)],
      ... )
      >>> run = fl.run(simulation, rounds=1)
      >>> run.group_accuracy.values.tolist()
      [[1.0, 0.5]]
      >>> run.demographic_parity_difference.values.tolist()
      [0.5]
    """
    measure = _rates(rate, feature, groups, positive, difference=False)
    label = f"{RATES[rate][1]} by group"
    return Metric(
        f"group_{rate}",
        measure,
        label,
        needs={"labels"},
        dims=("group",),
        bounds=(0.0, 1.0),
        check=measure.check,
    )


@checked
def parity_difference(
    rate: str, feature: int, groups: Sequence[float] = (0.0, 1.0), *, positive: float = 1.0
) -> Metric:
    r"""Difference between the largest and the smallest rate over groups, zero at parity.

    Its name in the results depends on the rate: ``accuracy_difference``;
    ``demographic_parity_difference`` for positive rates, :math:`\max_g\Pr(\hat y=1\mid
    g)-\min_g\Pr(\hat y=1\mid g)`; ``equal_opportunity_difference`` for true positive rates,
    :math:`\max_g\Pr(\hat y=1\mid y=1,g)-\min_g\Pr(\hat y=1\mid y=1,g)`.

    Args:
      rate: as for :func:`group_rates`.
      feature: as for :func:`group_rates`.
      groups: as for :func:`group_rates`.
      positive: as for :func:`group_rates`.

    Raises:
      ValueError: as for :func:`group_rates`.

    Reference:
      Dwork et al. 2012; Hardt, Price and Srebro 2016.

    Example:
      >>> parity_difference("true_positive_rate", feature=2).name
      'equal_opportunity_difference'
    """
    measure = _rates(rate, feature, groups, positive, difference=True)
    name, label = RATES[rate]
    label = f"difference of groups' {label}"
    return Metric(name, measure, label, needs={"labels"}, bounds=(0.0, 1.0), check=measure.check)


def _rates(
    rate: str, feature: int, groups: Sequence[float], positive: float, difference: bool
) -> _Rates:
    checks.choice("rate", rate, RATES)
    checks.count("feature", feature, at_least=0)
    values = checks.array("groups", groups)
    checks.finite("groups", values)
    checks.interval("positive", positive)
    groups = tuple(np.asarray(values, np.float64).tolist())
    if len(set(groups)) < max(2, len(groups)):
        raise ValueError(f"groups must be two values or more, all different, got {groups}.")
    return _Rates(rate, int(feature), groups, float(positive), difference)


# Features ----------------------------------------------------------------------------------------


@checked
def augmented(
    problem: Problem, feature: int, key: Key[Array, ""] | None = None, *, copies: int = 1
) -> Problem:
    r"""Augment a problem with copies of its samples whose sensitive feature is perturbed.

    Labels are unchanged. By default the feature, which must have two values, is flipped: then it
    carries no information on labels or other features, even if it did before. (With values 0
    and 1 a linear model without a constant may still form one from the feature; with -1 and 1 it
    cannot.) With a key it is redrawn from its values at all clients' samples. The original and the
    copies of a sample have equal weights, and together the weight that the original had.

    Args:
      problem: the problem of the clients; held-out data are unchanged.
      feature: a column of the features, ``[K, N, P]``.
      key: PRNG key of the draws, consumed; by default the feature is flipped.
      copies: number of perturbed copies per sample, >= 1; one if the feature is flipped.

    Raises:
      ValueError: a column that does not exist; one to be flipped that does not have two values;
        several copies with a flip.

    Reference:
      Jung 2025, section 8.5, Figure 8.4.

    Example:
      >>> import numpy as np, fljax as fl
      >>> x = np.array([[[0.0, 5.0], [1.0, 7.0]]])
      >>> problem = fl.problems.Problem(x, np.array([[-1.0, 1.0]]), fl.problems.Logistic())
      >>> fl.fairness.augmented(problem, 0).features.tolist()
      [[[0.0, 5.0], [1.0, 7.0], [1.0, 5.0], [0.0, 7.0]]]
    """
    checks.count("copies", copies)
    if key is None and copies > 1:
        raise ValueError(
            f"all copies with a flipped feature are the same; give copies=1, got {copies}."
        )
    if key is None:
        copied = _flipped(problem, feature)[None]
    else:
        copied = _drawn(key, problem, feature, copies)
    features = jnp.concatenate([jnp.asarray(problem.features), *copied], axis=1)
    share = jnp.asarray(problem.weights) / (copies + 1)
    again = (1, copies + 1) + (1,) * (jnp.ndim(problem.targets) - 2)
    return replace(
        problem,
        features=features,
        targets=jnp.tile(jnp.asarray(problem.targets), again),
        weights=jnp.tile(share, (1, copies + 1)),
        statistics=None,
    )


class _Pair(NamedTuple):
    """Held-out data and a copy with one feature changed; scores are distances of predictions."""

    test: Problem
    other: Problem

    @property
    def clients(self) -> int:
        return self.test.clients

    @property
    def predicts_alike(self) -> bool:
        return self.test.predicts_alike

    def scores(self, w: Array, score: Score) -> Float[Array, " clients"]:
        change = self.test.predictions(w) - self.other.predictions(w)
        size = norm(change.reshape(*change.shape[:2], -1))
        return jnp.sum(self.test.weights * size, axis=1)

    def cross_scores(self, models: Array, score: Score) -> Float[Array, "clients models"]:
        everyone = (self.clients, models.shape[1])

        def score_model(given: tuple[Array, Array]) -> Array:
            row, number = given
            pair = _Pair(self.test.seen_by(number), self.other.seen_by(number))
            return pair.scores(jnp.broadcast_to(row, everyone), score)

        numbers = jnp.arange(len(models), dtype=jnp.int32)
        return jax.lax.map(score_model, (models, numbers)).T


@dataclass(frozen=True)
class _Flip:
    feature: int

    def __call__(self, now: Snapshot) -> Array:
        if getattr(now.state, "held_out", None) is not None or now.predict is not None:
            raise ValueError(
                "the models' predictions for other data are not known of an algorithm that makes "
                "predictions itself; leave this metric out."
            )

        def pair(test: Problem) -> _Pair:
            return _Pair(test, replace(test, features=_flipped(test, self.feature)))

        return mean_score(now, value_of, pair)

    def check(self, problem: Problem | Stream) -> None:
        _flipped(_unmapped(problem), self.feature)


@checked
def flip_effect(feature: int) -> Metric:
    r"""Effect of flipping a sensitive feature: the mean of :math:`|h(x')-h(x)|` over held-out
    samples, where :math:`x'` has the other value of the feature.

    It becomes ``flip_effect`` in the results. For several outputs it is the Euclidean distance.

    Args:
      feature: a column of the held-out features that has two values.

    Raises:
      ValueError: a negative column; when the simulation is created, a column that the problem lacks
        or that does not have two values.

    Reference:
      Jung 2025, section 8.5, Figure 8.4.

    Example:
      >>> import numpy as np, fljax as fl
      >>> x = np.array([[[0.0, 5.0], [1.0, 7.0]]])
      >>> problem = fl.problems.Problem(x, np.array([[0.0, 1.0]]), fl.problems.LeastSquares())
      >>> simulation = fl.Simulation(
      ...     problem.with_test(x[0], np.zeros(2)).starting_at(np.array([-3.0, 1.0])),
      ...     fl.algorithms.FedAvg(1e-6),
      ...     metrics=[fl.fairness.flip_effect(0)],
      ... )
      >>> fl.run(simulation, rounds=1).flip_effect.values.round(2).tolist()
      [3.0]
    """
    checks.count("feature", feature, at_least=0)
    measure = _Flip(int(feature))
    label = f"change by flipping feature {feature}"
    bounds = (0.0, math.inf)
    return Metric("flip_effect", measure, label, needs={"test"}, bounds=bounds, check=measure.check)


def _unmapped(problem: Problem | Stream) -> Problem:
    """The held-out data, whose features must have identifiable columns."""
    test = held_out(problem)
    if test.feature_map is not None:
        raise ValueError(
            "a sensitive feature is a column of the held-out features, and a feature map leaves "
            "none; apply the map before (problem.mapped())."
        )
    return test


def _column(problem: Problem, feature: int) -> Float[Array, "clients samples"]:
    if np.ndim(problem.features) != 3:
        raise ValueError(
            "a sensitive feature is a column of features [clients, samples, features], got shape "
            f"{np.shape(problem.features)}."
        )
    columns = problem.features.shape[2]
    checks.count("feature", feature, at_least=0)
    if feature >= columns:
        raise ValueError(f"feature must be one of the {columns} columns, got {feature}.")
    return jnp.asarray(problem.features)[..., feature]


def _flipped(problem: Problem, feature: int) -> Float[Array, "clients samples features"]:
    """The features, with a column of two values flipped."""
    column = _column(problem, feature)
    real = jnp.asarray(problem.weights) > 0

    def binary(column: Array, real: Array) -> None:
        values = np.unique(np.asarray(column)[np.asarray(real)])
        if len(values) != 2:
            raise ValueError(
                f"feature {feature} must have two values to be flipped, got {len(values)}; pass "
                "key= to draw it anew."
            )

    checks.check_when_concrete(binary, column, real)
    low = jnp.min(jnp.where(real, column, jnp.inf))
    high = jnp.max(jnp.where(real, column, -jnp.inf))
    return jnp.asarray(problem.features).at[..., feature].set(low + high - column)


def _drawn(
    key: Array, problem: Problem, feature: int, copies: int
) -> Float[Array, "copies clients samples features"]:
    """The features, with a column redrawn from its values at all clients' samples."""
    column = _column(problem, feature)
    weights = jnp.asarray(problem.weights)
    probability = weights.reshape(-1) / jnp.sum(weights)
    drawn = jax.random.choice(key, column.reshape(-1), (copies, *column.shape), p=probability)
    return jax.vmap(jnp.asarray(problem.features).at[..., feature].set)(drawn)
