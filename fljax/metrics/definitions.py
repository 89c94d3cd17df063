"""Metrics of a run, reduced to a few numbers inside the scan."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from fljax._core import checks
from fljax._core.annotations import check, check_fields, checked, rule_of
from fljax._core.module import float_dtype, replace
from fljax.clock.round_clock import PHASES
from fljax.link.backdoor import Trigger
from fljax.link.traffic import narrow
from fljax.metrics.names import RESERVED
from fljax.metrics.quantities import QUANTITIES, held_out
from fljax.problems import Loss, Problem
from fljax.problems.explanation import explanation_error, signal_points
from fljax.problems.gtv import GTVMin
from fljax.problems.problem import value_of
from fljax.problems.streams import Stream
from fljax.problems.variation import Penalty, SquaredNorm

__all__ = [
    "METRICS",
    "Metric",
    "Snapshot",
    "accuracy",
    "as_metric",
    "backdoor_success",
    "client_accuracy",
    "client_drift",
    "consensus_error",
    "deviation_by_norm",
    "error_rate",
    "explanation",
    "f1_score",
    "gradient_dissimilarity",
    "gtv_objective",
    "joint_error",
    "level_bits",
    "mean_square_deviation",
    "network_deviation",
    "normalized_error",
    "objective",
    "participation",
    "precision",
    "recall",
    "signal_to_noise",
    "squared_gradient_norm",
    "suboptimality",
    "test_error",
    "timeline",
    "total_variation",
    "train_error",
    "trajectory",
    "validation_error",
]

#: Axes that a metric may share with the final models: the clients and the parameters of a model.
ROWS = ("client", "parameter")


class Snapshot(NamedTuple):
    """The quantities that are available to a metric in a recorded round."""

    problem: Any  # Problem, or Stream
    network: Any  # Graph, Federation or None
    model: Array  # [K, D]  the exact models w_k (not the sent ones)
    #: [D] the centralized solution, or [K, D] if the clients' models are meant to differ
    #: (:meth:`Algorithm.optimum <fljax.algorithms.Algorithm.optimum>`), if the metric asked for it
    optimum: Array | None
    shared: Array | None = None  # [D]  the model, where all clients share one
    state: PyTree = None  # of the algorithm
    honest: Array | None = None  # [K]  which clients follow the protocol; None without an attack
    #: [K] each: the quantities of the round that metrics need (:mod:`fljax.metrics.quantities`),
    #: NaN for clients without one
    quantities: Mapping[str, Array] = MappingProxyType({})
    #: how clients predict, ``data -> [K, N, ...]``, if not by their models
    #: (:meth:`Algorithm.predictor <fljax.algorithms.Algorithm.predictor>`)
    predict: Callable[[Problem], Array] | None = None


@dataclass(frozen=True)
class Metric:
    r"""A named quantity per round; ``metrics=`` accepts custom ones as well as names.

    ====================================  =========================================================
    ``normalized_error``                  :math:`\sum_k\|w_k-w_c\|^2/\|w_c\|^2`, ``K`` at zero
    ``mean_square_deviation``             :math:`\frac1K\sum_k\|w_k-w_c\|^2`
    ``consensus_error``                   :math:`\frac1K\sum_k\|w_k-\bar w\|^2`
    ``objective``, ``suboptimality``      :math:`\sum_kf_k(\bar w)`, and its excess over the minimum
    ``squared_gradient_norm``             :math:`\|\nabla\sum_kf_k(\bar w)\|^2`
    ``gradient_dissimilarity``            :math:`\sum_kp_k\|\nabla f_k(\bar w)\|^2/
                                          \|\sum_kp_k\nabla f_k(\bar w)\|^2`
    ``test_error``                        mean loss on held-out data
    ``validation_error``                  the same for each client's model, ``[K]``
    ``train_error``                       the same on its training data
    ``joint_error``                       mean loss of the clients' combined predictions, each from
                                          its own columns
    ``network_deviation``                 :math:`\frac1K\sum_k\|w_k-w_k^\star\|^2/\|w_k^\star\|^2`
    ``accuracy``                          share of held-out data that is classified correctly
    ``error_rate``                        one minus this
    ``client_accuracy``                   the accuracy of each client's model, ``[K]``
    :func:`precision`, :func:`recall`     of one class, over all held-out data
    :func:`f1_score`                      the harmonic mean of these two
    ``client_drift``                      :math:`\frac1{|S|}\sum_{k\in S}\|w_k-w\|^2` after the
                                          local steps of this round's participants from the
                                          server's :math:`w`
    ``participation``                     which clients sent a message in this round, ``[K]``
    ``signal_to_noise``                   :math:`\|m_k\|^2/(D\sigma_k^2)` of this round's private
                                          messages, the median over clients
    ``timeline``                          when each client began its part of this round on a clock,
                                          and how long it took, ``[K, 5]``
    ``level_bits``                        the bits so far on each level of a tree of servers,
                                          ``[levels, 3]``: up, down, and among its servers
    ``total_variation``                   :math:`\sum_{\{k,l\}}a_{kl}\|w_k-w_l\|^2`
    ====================================  =========================================================

    Under an attack the means are over the honest clients. If an algorithm learns a separate model
    for each client (:class:`~fljax.algorithms.FedGD`), :math:`w_c` is the target of client
    :math:`k`.

    Attributes:
      name: name of its variable in the results.
      measure: ``Snapshot -> []``.
      label: text for the axes of plots.
      needs: names of its inputs that not every simulation has: ``"optimum"``, the centralized
        one, which is then computed once per run; ``"data"``, all of the clients' data, which a
        stream does not store; ``"test"``, held-out data (:func:`held_out`); ``"labels"``, held-out
        data whose targets are class labels; ``"tasks.truth"``, ``"tasks.test"`` or
        ``"tasks.validation"``, a part of the problem's tasks; ``"graph"``, which must then be the
        same in all rounds; and of the round, which ``Snapshot.quantities`` holds, the
        ``"signal_to_noise"`` of private messages, the ``"participants"``, and their ``"drift"``
        from the server's model; on a clock ``"clock.begin"``, ``"clock.download"``,
        ``"clock.compute"``, ``"clock.upload"`` and ``"clock.arrived"``.
      decibel: whether it is a non-negative quantity that is shown on a dB scale, as the errors
        above are; otherwise it is shown in its own unit.
      dims: names of its axes, if it is not a scalar: ``"client"`` and ``"parameter"``, or custom
        names. They come after ``round`` in the results.
      bounds: its least and greatest possible value, infinite if there is none; the confidence
        intervals of its means stay within them (:func:`fljax.statistics.summary`).
      larger_is_better: as of an accuracy; everything that orders or tunes by the metric, or waits
        for a target, goes by it.
      check: raises ``ValueError`` for a problem, or stream, for which it cannot be computed; called
        when a simulation is created.

    Raises:
      ValueError: an empty or reserved name; an axis with a reserved name, or two axes of the same
        name; bounds in the wrong order.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> def largest(now):
      ...     return jnp.max(jnp.sum((now.model - now.optimum[None]) ** 2, axis=1))
      >>> worst = Metric("worst_client", largest, "error of the worst client", needs={"optimum"})
      >>> def each(now):
      ...     return jnp.sum((now.model - now.optimum[None]) ** 2, axis=1)
      >>> of_each = Metric("error", each, "error of a client", needs={"optimum"}, dims=("client",))
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2),
      ...     network=fl.graphs.ring(4),
      ...     algorithm=fl.algorithms.NetworkedADMM(1.0),
      ...     metrics=[worst, of_each, "normalized_error"],
      ... )
      >>> dict(fl.run(simulation, rounds=5).error.sizes)
      {'round': 5, 'client': 4}
    """

    name: str
    measure: Callable[[Snapshot], Float[Array, "..."]]
    label: str
    needs: Collection[str] = ()
    decibel: bool = False
    dims: tuple[str, ...] = ()
    bounds: tuple[float, float] = (-math.inf, math.inf)
    check: Callable[[Any], None] | None = None
    larger_is_better: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        needs = (self.needs,) if isinstance(self.needs, str) else self.needs
        if isinstance(needs, jax.Array):
            raise TypeError(f"needs must be names, got {checks.shown(needs)}.")
        for need in needs:
            checks.choice("needs", need, QUANTITIES)
        # Sorted, since the order of a set differs between processes, and stores compare metrics.
        object.__setattr__(self, "needs", tuple(sorted(set(needs))))
        if not self.name or self.name in RESERVED or self.name.startswith("privacy_"):
            raise ValueError(
                f"a metric cannot be called {self.name!r}, which results use themselves; rename it."
            )
        object.__setattr__(self, "dims", tuple(self.dims))
        for dim in self.dims:
            if not dim or (dim in RESERVED and dim not in ROWS) or dim == self.name:
                raise ValueError(
                    f"an axis of the metric {self.name!r} cannot be called {dim!r}, which results "
                    "use themselves; rename it."
                )
        if len(set(self.dims)) < len(self.dims):
            raise ValueError(f"the axes of a metric need distinct names, got {self.dims}.")
        object.__setattr__(self, "bounds", tuple(map(float, self.bounds)))
        if not self.bounds[0] < self.bounds[1]:
            raise ValueError(
                f"bounds of the metric {self.name!r} must be (least, greatest), got {self.bounds}."
            )


def _mean(
    now: Snapshot,
    rows: Float[Array, "clients ..."],
    included: Bool[Array, " clients"] | None = None,
) -> Float[Array, "..."]:
    """The mean over the clients, or over the honest clients under an attack; over the ``included``
    ones of these only, if given.
    """
    if now.honest is None and included is None:
        return jnp.mean(rows, axis=0)
    masks = [clients for clients in (now.honest, included) if clients is not None]
    counted = functools.reduce(jnp.logical_and, masks)
    mask = counted.reshape((-1,) + (1,) * (rows.ndim - 1))
    return jnp.sum(jnp.where(mask, rows, 0), axis=0) / jnp.sum(counted, dtype=rows.dtype)


def _optima(now: Snapshot) -> Float[Array, "#clients dim"]:
    assert now.optimum is not None
    return now.optimum if now.optimum.ndim == 2 else now.optimum[None]


def _normalized_error(now: Snapshot) -> Array:
    optima = _optima(now)
    distance = jnp.sum((now.model - optima) ** 2, axis=1)
    return len(distance) * _mean(now, distance) * len(optima) / jnp.sum(optima**2)


def _consensus_error(now: Snapshot) -> Array:
    return _mean(now, jnp.sum((now.model - _mean(now, now.model)[None]) ** 2, axis=1))


def _deviation(now: Snapshot) -> Array:
    return _mean(now, jnp.sum((now.model - _optima(now)) ** 2, axis=1))


def _objective(now: Snapshot) -> Array:
    mean = jnp.broadcast_to(_mean(now, now.model)[None], now.model.shape)
    return jnp.sum(now.problem.objective(mean))


def _gradients_at_mean(now: Snapshot, problem: Any) -> Float[Array, "clients dim"]:
    """Each client's gradient at the mean of the models, without clipping."""
    mean = jnp.broadcast_to(_mean(now, now.model)[None], now.model.shape)
    return replace(problem, clip=None).gradient(mean)


def _squared_gradient_norm(now: Snapshot) -> Array:
    return jnp.sum(jnp.sum(_gradients_at_mean(now, now.problem), axis=0) ** 2)


def _gradient_dissimilarity(now: Snapshot) -> Array:
    gradients = _gradients_at_mean(now, now.problem.unweighted())
    importance = now.problem.importance
    weights = jnp.ones(len(gradients), gradients.dtype) if importance is None else importance
    weights = weights / jnp.sum(weights)
    mean = jnp.sum(weights[:, None] * gradients, axis=0)
    return jnp.sum(weights * jnp.sum(gradients**2, axis=1)) / jnp.sum(mean**2)


def _suboptimality(now: Snapshot) -> Array:
    best = jnp.broadcast_to(now.optimum[None], now.model.shape)
    return _objective(now) - jnp.sum(now.problem.objective(best))


#: ``(loss, predictions, targets)`` -> the score of each sample.
Score = Callable[[Loss, Array, Array], Array]


def mean_score(
    now: Snapshot, score: Score, changed: Callable[[Any], Any] = lambda test: test
) -> Array:
    """The mean over clients of the mean score of their models, each on the client's held-out data;
    clients without any are left out.

    Args:
      now: the round.
      score: score of the samples.
      changed: transformation of the held-out data before scoring.
    """
    scores = _client_scores(now, score, changed)
    has_data = _has_data(now, changed)
    return scores[0] if len(scores) == 1 else _mean(now, scores, has_data)


def _has_data(now: Snapshot, changed: Callable[[Any], Any]) -> Bool[Array, " clients"] | None:
    """Which clients have held-out data; ``None`` where all of them do."""
    test = changed(held_out(now.problem))
    # Pairs of held-out data (`fairness.flip_effect`) have no importance; all clients have data.
    if test.clients == 1 or getattr(test, "importance", None) is None:
        return None
    has_samples = jnp.sum(jnp.asarray(test.weights), axis=1) > 0
    return has_samples if now.problem.test is not None else has_samples[now.problem.tasks.cluster]


def measured_clients(metric: Metric, now: Snapshot) -> Bool[Array, " clients"] | None:
    """Which clients have the data, held out or for training, that a per-client metric uses;
    ``None`` for all.
    """
    if "test" in metric.needs or "labels" in metric.needs:
        return None if held_out(now.problem) is None else _has_data(now, lambda test: test)
    if "data" in metric.needs and now.problem.importance is not None:
        return jnp.sum(jnp.asarray(now.problem.weights), axis=1) > 0
    return None


def _by_samples(test: Problem) -> Problem:
    """Held-out data with weights such that all samples count equally, not all clients."""
    weights = jnp.asarray(test.weights)
    counts = jnp.sum(weights > 0, axis=1, keepdims=True, dtype=weights.dtype)
    total = jnp.sum(weights, axis=1, keepdims=True)
    return replace(test, weights=weights * counts / jnp.where(total > 0, total, 1))


def mean_of_all_samples(now: Snapshot, score: Score) -> Array:
    """As :func:`mean_score` over all held-out samples together, up to a factor that all scores have
    in common: the ratio of two is that of their sums.
    """
    return mean_score(now, score, _by_samples)


def _client_scores(
    now: Snapshot, score: Score, changed: Callable[[Any], Any] = lambda test: test
) -> Array:
    """The mean scores ``[K]``, or ``[1]`` for one model on one set of held-out data."""
    test = changed(held_out(now.problem))
    if (predictions := getattr(now.state, "held_out", None)) is not None:
        if test.features is not held_out(now.problem).features:
            raise ValueError(
                "predictions for other data than the held-out ones are not known of an algorithm "
                "that makes them itself; leave this metric out."
            )
        return _predicted_scores(test, predictions, score)
    if now.predict is not None:
        of_clusters = now.problem.test is None and test.clients > 1
        data = test.take(now.problem.tasks.cluster) if of_clusters else test
        return _predicted_scores(data, now.predict(data), score)
    per_client = now.problem.test is not None and test.clients > 1
    # Where clients have running statistics or networks of their own, a common model has different
    # predictions at each of them.
    is_one = now.shared is not None and test.predicts_alike
    if per_client or is_one:
        shape = (test.clients, now.model.shape[1])
        models = now.model if per_client else jnp.broadcast_to(now.shared, shape)  # pyright: ignore[reportArgumentType]
        means = test.scores(models, score)
        return means if per_client or test.clients == 1 else means[now.problem.tasks.cluster]
    means = test.cross_scores(now.model, score)
    if test.clients == 1:
        return means[0]
    return means[now.problem.tasks.cluster, jnp.arange(len(now.model), dtype=jnp.int32)]


def _predicted_scores(data: Problem, predictions: Array, score: Score) -> Array:
    """The weighted sums of the scores of clients' predictions of this data, ``[K]``."""
    targets = jnp.broadcast_to(data.targets, (len(predictions), *data.targets.shape[1:]))
    scores = score(data.loss, predictions, targets)
    scores = jnp.mean(scores, axis=tuple(range(2, scores.ndim)))
    return jnp.sum(data.weights * scores, axis=1)


def _test_error(now: Snapshot) -> Array:
    return mean_score(now, value_of)


def _joint_error(now: Snapshot) -> Array:
    test = now.problem.test
    combined = jnp.sum(test.predictions(now.model), axis=0)
    return jnp.sum(test.weights[0] * test.loss.value(combined, jnp.sum(test.targets, axis=0)))


def _validation_error(now: Snapshot) -> Array:
    return jnp.broadcast_to(_client_scores(now, value_of), (len(now.model),))


def _train_error(now: Snapshot) -> Array:
    problem = now.problem
    predictions = getattr(now.state, "fitted", None)
    if now.predict is not None:
        predictions = now.predict(problem)
    if predictions is None:
        losses = problem.mean_loss(now.model)
    else:
        losses = _predicted_scores(problem, predictions, value_of)
    total = jnp.sum(problem.weights, axis=1)
    return losses / jnp.where(total > 0, total, 1)


def _distance_from_truth(now: Snapshot) -> tuple[Array, Array]:
    """Squared distance of each client's model from its cluster's true model, and the squared norm
    of the latter.
    """
    tasks = now.problem.tasks
    truth = jnp.asarray(tasks.truth)[tasks.cluster]
    return jnp.sum((now.model - truth) ** 2, axis=1), jnp.sum(truth**2, axis=1)


def _network_deviation(now: Snapshot) -> Array:
    distance, size = _distance_from_truth(now)
    return _mean(now, distance / size)


def _deviation_by_norm(now: Snapshot) -> Array:
    distance, size = _distance_from_truth(now)
    return _mean(now, distance / jnp.sqrt(size))


def _correct(now: Snapshot) -> Score:
    """The score that is one for correctly classified samples."""
    return lambda loss, *arrays: loss.correct(*arrays).astype(now.model.dtype)


def _accuracy(now: Snapshot) -> Array:
    return mean_score(now, _correct(now))


def _error_rate(now: Snapshot) -> Array:
    return 1 - _accuracy(now)


def _client_accuracy(now: Snapshot) -> Array:
    return jnp.broadcast_to(_client_scores(now, _correct(now)), (len(now.model),))


def _signal_to_noise(now: Snapshot) -> Array:
    return jnp.nanmedian(now.quantities["signal_to_noise"])


def _level_bits(now: Snapshot) -> Array:
    if (bits := getattr(now.state, "bits", None)) is None:
        raise ValueError(
            "the metric level_bits needs an algorithm that counts the bits of each level of "
            "servers; take HierFAVG or HierLocalQSGD, or the results' bits."
        )
    return narrow(bits)


def _client_drift(now: Snapshot) -> Array:
    honest = True if now.honest is None else now.honest
    return jnp.nanmean(now.quantities["drift"], where=honest)


def _participation(now: Snapshot) -> Array:
    return now.quantities["participants"] > 0


def _timeline(now: Snapshot) -> Array:
    return jnp.stack([now.quantities[f"clock.{name}"] for name in PHASES], axis=1)


def _graph_of_honest(now: Snapshot) -> Any:
    if now.honest is None:
        return now.network
    return now.network.thinned(lambda near, far: now.honest[near] & now.honest[far])


def _total_variation(now: Snapshot) -> Array:
    return GTVMin(now.problem, _graph_of_honest(now), 1.0).variation(now.model)


#: ``sum_k ||w_k - w_c||^2 / ||w_c||^2`` (Gauthier 2024, 3.4; no ``1/K``: K at a zero start).
normalized_error = Metric(
    "normalized_error", _normalized_error, "normalized error", needs={"optimum"}, decibel=True
)
#: ``(1/K) sum_k ||w_k - w_c||^2``.
mean_square_deviation = Metric(
    "mean_square_deviation", _deviation, "mean-square deviation", needs={"optimum"}, decibel=True
)
#: ``(1/K) sum_k ||w_k - mean w||^2``.
consensus_error = Metric("consensus_error", _consensus_error, "consensus error", decibel=True)
#: ``sum_k f_k`` at the mean of the models.
objective = Metric(
    "objective", _objective, "objective at the mean model, sum over clients", needs={"data"}
)
#: ``sum_k f_k(mean w) - sum_k f_k(w_c)``, non-negative because the mean model is consensual.
suboptimality = Metric(
    "suboptimality",
    _suboptimality,
    "objective gap of the mean model, sum over clients",
    needs={"optimum", "data"},
    decibel=True,
)
#: ``||grad sum_k f_k||^2`` at the mean of the models, of the unclipped objective; zero at a
#: stationary point; theorems on nonconvex losses bound it.
squared_gradient_norm = Metric(
    "squared_gradient_norm",
    _squared_gradient_norm,
    "squared gradient norm at the mean model",
    decibel=True,
    needs={"data"},
)
#: ``sum_k p_k ||grad f_k||^2 / ||sum_k p_k grad f_k||^2`` at the mean of the models, with the
#: clients' shares ``p_k``: one for equal clients, and the square of B in Definition 3 of Li et al.
#: 2020 (FedProx); the gradient diversity of Yin et al. 2018 times the number of clients.
gradient_dissimilarity = Metric(
    "gradient_dissimilarity",
    _gradient_dissimilarity,
    "dissimilarity of gradients at the mean model",
    decibel=True,
    needs={"data"},
)
#: Mean loss on held-out data (of the client, its cluster or all clients) of the server's model, or
#: its mean over the clients' models: for least squares (4.36) of Gauthier 2024.
test_error = Metric("test_error", _test_error, "test error", decibel=True, needs={"test"})
#: Mean loss of the clients' combined predictions on held-out data whose columns are split among the
#: clients (:func:`fljax.problems.vertical`).
joint_error = Metric(
    "joint_error", _joint_error, "test error of all together", decibel=True, needs={"test"}
)
#: Mean loss of each client's model on the client's held-out data, ``[K]``: the validation error of
#: Algorithm 1 of Jung 2025. Zero for clients without held-out data, which
#: :func:`fljax.fairness.spread` and :func:`fljax.fairness.worst` leave out.
validation_error = Metric(
    "validation_error",
    _validation_error,
    "validation error",
    decibel=True,
    needs={"test"},
    dims=("client",),
)
#: Mean loss of each client's model on its training data, ``[K]``; zero for clients without labels.
train_error = Metric(
    "train_error", _train_error, "training error", decibel=True, needs={"data"}, dims=("client",)
)

#: ``(1/K) sum_k ||w_k - w*_q||^2 / ||w*_q||^2`` with the true model of each client's cluster:
#: NMSD (Gauthier 2024, (53) of the paper, section 5.4.1).
network_deviation = Metric(
    "network_deviation", _network_deviation, "NMSD", decibel=True, needs={"tasks.truth"}
)
#: The same divided by ``||w*_q||``, not squared: the "test MSE" exactly as written in (6.15).
deviation_by_norm = Metric(
    "deviation_by_norm", _deviation_by_norm, "test MSE (6.15)", decibel=True, needs={"tasks.truth"}
)
#: Test accuracy: the share of held-out data that is classified correctly, averaged as in
#: ``test_error``.
accuracy = Metric(
    "accuracy",
    _accuracy,
    "test accuracy",
    needs={"labels"},
    bounds=(0.0, 1.0),
    larger_is_better=True,
)
#: One minus the test accuracy: the share of held-out data that is classified wrongly.
error_rate = Metric(
    "error_rate", _error_rate, "test error rate", needs={"labels"}, bounds=(0.0, 1.0)
)
#: Test accuracy of each client's model on the client's held-out data, ``[K]``; zero for clients
#: without any, as ``validation_error``.
client_accuracy = Metric(
    "client_accuracy",
    _client_accuracy,
    "test accuracy",
    needs={"labels"},
    dims=("client",),
    bounds=(0.0, 1.0),
    larger_is_better=True,
)
#: ``||m_k||^2 / (D sigma_k^2)`` of the round's private messages: the median over the clients that
#: sent one.
signal_to_noise = Metric(
    "signal_to_noise",
    _signal_to_noise,
    "signal to noise of a message",
    decibel=True,
    needs={"signal_to_noise"},
)
#: How far local steps move participants from the server's model: ``||w_k - w||^2``, the mean over
#: the round's participants, NaN where there were none. For algorithms with local steps at clients
#: of a server (:class:`~fljax.algorithms.FedAvg` and its like).
client_drift = Metric("client_drift", _client_drift, "client drift", decibel=True, needs={"drift"})
#: Which clients took part in the recorded round: the ones that sent a message, to a server or a
#: neighbor, ``[K]`` booleans. A late message counts in the round in which it was sent.
participation = Metric(
    "participation",
    _participation,
    "participation",
    needs={"participants"},
    dims=("client",),
    bounds=(0.0, 1.0),
)
#: The recorded round of each client on a clock, ``[K, 5]``, NaN for clients that do not take part:
#: the second at which it began, the seconds of its download, computations and upload, as far as it
#: got, and whether its message arrived (1 or 0). :func:`fljax.plotting.timeline` draws it.
timeline = Metric(
    "timeline",
    _timeline,
    "parts of clients' rounds",
    needs={f"clock.{name}" for name in PHASES},
    dims=("client", "phase"),
)
#: The bits so far on each level of a hierarchy (:class:`~fljax.graphs.Tree`), ``[levels, 3]``: the
#: first level is between clients and edges, the second between edges and the servers above them,
#: and so on; sent up, sent down, and between edges of a graph. They are rounded to the precision in
#: use; ``bits`` is their exact sum.
level_bits = Metric("level_bits", _level_bits, "bits of a level", dims=("level", "direction"))
#: ``sum_{k,l} a_kl ||w_k - w_l||^2`` over the edges (Jung 2025, (33)).
total_variation = Metric(
    "total_variation", _total_variation, "total variation", decibel=True, needs={"graph"}
)

#: The metrics that a simulation accepts by name.
METRICS = {
    m.name: m
    for m in (
        normalized_error,
        mean_square_deviation,
        consensus_error,
        objective,
        suboptimality,
        squared_gradient_norm,
        gradient_dissimilarity,
        test_error,
        joint_error,
        train_error,
        validation_error,
        network_deviation,
        deviation_by_norm,
        accuracy,
        error_rate,
        client_accuracy,
        client_drift,
        participation,
        signal_to_noise,
        timeline,
        level_bits,
        total_variation,
    )
}


@dataclass(frozen=True)
class _Field:
    """Reads an array by its name; instances with equal names are equal, which avoids retracing."""

    name: str

    def __call__(self, now: Snapshot) -> Array:
        fields = {"model": now.model, "shared": now.shared}
        if self.name not in fields:
            fields |= {name: getattr(now.state, name) for name in getattr(now.state, "_fields", ())}
        arrays = sorted(name for name, value in fields.items() if isinstance(value, jax.Array))
        checks.choice("array of the state", self.name, arrays)
        return fields[self.name]


@checked
def trajectory(name: str = "model", dims: Sequence[str] = ROWS) -> Metric:
    """An array in every recorded round: the models, or a field of the algorithm's state.

    It becomes ``<name>_trajectory`` in the results, over ``seed``, ``round`` and ``dims``.
    :func:`fljax.plan` tells its memory in advance; ``record_every`` reduces it.

    Args:
      name: ``"model"``, the models that metrics evaluate; ``"shared"``, the common model of all
        clients, ``[D]``; or a field of the algorithm's state, such as ``"dual"``.
      dims: names of its axes.

    Raises:
      ValueError: an algorithm without such an array, before anything is compiled.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2),
      ...     network=fl.graphs.ring(4),
      ...     algorithm=fl.algorithms.NetworkedADMM(1.0),
      ...     metrics=[fl.metrics.trajectory(), fl.metrics.trajectory("dual")],
      ... )
      >>> results = fl.run(simulation, rounds=6, record_every=2)
      >>> dict(results.model_trajectory.sizes)
      {'round': 3, 'client': 4, 'parameter': 2}
      >>> bool(abs(results.dual_trajectory.sum("client")).max() < 1e-4)
      True
    """
    label = "model" if name == "model" else f"{name} of the state"
    return Metric(f"{name}_trajectory", _Field(name), label, dims=tuple(dims))


@dataclass(frozen=True)
class _Explanation:
    """Instances with equal numbers are equal, which avoids retracing."""

    numbers: tuple[object, ...]
    signal: Any = field(compare=False)
    features: Any = field(compare=False)

    def __call__(self, now: Snapshot) -> Array:
        return explanation_error(now.model, self.signal, self.features)


@checked
def explanation(
    signal: Float[Array, "*clients points"], features: Float[Array, "*clients points features"]
) -> Metric:
    r"""Mean-square deviation of each client's model from a user's signal,
    :math:`\frac1M\sum_j(u_k(x_j)-x_j^\top w_k)^2` (Jung 2025, (177)).

    It becomes ``explanation`` in the results, over ``client``; see
    :func:`fljax.problems.explanation_error`, which has the same arguments, and
    :func:`fljax.problems.explained` for training models that follow the signal.

    Args:
      signal: ``[M]`` or ``[K, M]``, concrete when the simulation is created.
      features: ``[M, D]`` or ``[K, M, D]``, concrete when the simulation is created.

    Raises:
      TypeError: a signal that is random or swept.
      ValueError: shapes that do not match each other, or (raised when the run is traced) the
        models.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> signal, points = jnp.array([1.0, -1.0]), jnp.eye(2)
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2)
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.explained(problem, signal, points, strength=100.0),
      ...     network=fl.graphs.ring(4),
      ...     algorithm=fl.algorithms.FedRelax(1.0),
      ...     metrics=[explanation(signal, points)],
      ... )
      >>> bool((fl.run(simulation, rounds=3).explanation[-1] < 0.01).all())
      True
    """
    if not all(map(checks.is_concrete, (signal, features))):
        raise TypeError(
            "the signal of explanation must not be traced; for a random signal, compute "
            "fljax.problems.explanation_error of the final models."
        )
    values, points = arrays = [np.asarray(a, np.float64) for a in (signal, features)]
    clients = len(points) if points.ndim > 2 else len(values) if values.ndim > 1 else 1
    signal_points(values, points, clients, points.shape[-1], float_dtype())
    numbers = tuple((a.shape, a.tobytes()) for a in arrays)
    label = "distance from the user's signal"
    measure = _Explanation(numbers, values, points)
    return Metric("explanation", measure, label, decibel=True, needs={"data"}, dims=("client",))


@dataclass(frozen=True)
class _GTVObjective:
    """Instances with equal numbers are equal, which avoids retracing."""

    numbers: tuple[object, ...]
    coupling: np.ndarray = field(compare=False)
    penalty: Penalty = field(compare=False)

    def __call__(self, now: Snapshot) -> Array:
        coupling = jnp.asarray(self.coupling, now.model.dtype)
        coupled = GTVMin(now.problem, _graph_of_honest(now), coupling, self.penalty)
        total = coupled.objective(now.model)
        if now.honest is None:
            return total
        return total - jnp.sum(jnp.where(now.honest, 0, now.problem.objective(now.model)))


@checked
def gtv_objective(
    coupling: Float[Array, "*dim"] | float,
    penalty: Penalty = SquaredNorm(),  # noqa: B008 (immutable)
) -> Metric:
    r"""The objective of GTV minimization, :math:`\sum_kf_k(w_k)+\alpha\,\mathrm{GTV}`, at the
    models.

    It becomes ``gtv_objective`` in the results; see :class:`fljax.problems.GTVMin`.

    Args:
      coupling: :math:`\alpha\ge0`, a number that is concrete when the simulation is created; with a
        squared penalty also ``[D]``.
      penalty: :math:`\phi`, the squared norm by default.

    Raises:
      ValueError: a negative coupling.
      TypeError: a coupling that is random or swept.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2),
      ...     network=fl.graphs.ring(4),
      ...     algorithm=fl.algorithms.NetworkedADMM(1.0),
      ...     metrics=[gtv_objective(0.5), "total_variation"],
      ... )
      >>> dict(fl.run(simulation, rounds=3).gtv_objective.sizes)
      {'round': 3}
    """
    if not all(map(checks.is_concrete, jax.tree.leaves((coupling, penalty)))):
        raise TypeError(
            "the coupling of gtv_objective must be a known number, got a traced one; a grid over "
            "it needs fljax.static([...])."
        )
    checks.nonnegative("coupling", coupling)
    leaves, tree = jax.tree.flatten((coupling, penalty))
    arrays = [np.asarray(leaf, np.float64) for leaf in leaves]
    numbers = (tree, *((array.shape, array.tobytes()) for array in arrays))
    measure = _GTVObjective(numbers, np.asarray(coupling, np.float64), penalty)
    label = "GTV objective, sum over clients"
    return Metric("gtv_objective", measure, label, needs={"data", "graph"})


def check_label(name: str, label: float, test: Problem) -> None:
    """Raise ``ValueError`` for a label that the loss of held-out data does not have: no prediction
    would ever agree with it.
    """
    try:
        test.loss.check_targets(np.array([label]))
    except ValueError as error:
        raise ValueError(f"{name}={label:g} is a label of no class: {error}") from None


@dataclass(frozen=True)
class _BackdoorSuccess:
    trigger: Trigger
    target: float

    def __call__(self, now: Snapshot) -> Array:
        # Predictions in a learner's state are of samples without the trigger, so they are not used.
        return mean_score(now._replace(state=None), _correct(now), self._with_trigger)

    def _with_trigger(self, test: Problem) -> Problem:
        of_other_labels = test.targets != jnp.asarray(self.target).astype(test.targets.dtype)
        weights = jnp.where(of_other_labels, test.weights, 0)
        total = jnp.sum(weights, axis=1, keepdims=True)
        return replace(
            test,
            features=self.trigger.stamp(test.features),
            targets=jnp.full_like(test.targets, self.target),
            weights=weights / jnp.where(total > 0, total, 1),
            # Clients without samples do not count.
            importance=(total[:, 0] > 0).astype(weights.dtype),
            statistics=None,
        )

    def check(self, problem: Problem | Stream) -> None:
        def check_other_labels(targets: object, weights: object) -> None:
            if not np.any((np.asarray(targets) != self.target) & (np.asarray(weights) > 0)):
                raise ValueError(
                    "backdoor_success is of samples with other labels than the target "
                    f"{self.target:g}, and no held-out sample has one; take another target."
                )

        test = held_out(problem)
        check_label("target", self.target, test)
        checks.check_when_concrete(check_other_labels, test.targets, test.weights)


@checked
def backdoor_success(trigger: Trigger, target: float) -> Metric:
    """Success rate of the attack :func:`fljax.attacks.backdoor` on a classifier.

    The share of held-out samples with other labels that are classified as the target once they
    carry the trigger; the mean over (honest) clients that have such samples. ``accuracy`` shows the
    performance without the trigger. It becomes ``backdoor_success`` in the results.

    Args:
      trigger: the trigger that was planted.
      target: the label that the attacker intends.

    Raises:
      ValueError: held-out samples that all have the target's label.

    Example:
      >>> import jax, fljax as fl
      >>> clean = fl.problems.logistic(jax.random.key(0), clients=4, samples=60, dim=5)
      >>> trigger, bad = fl.attacks.Trigger([4], 6.0), fl.attacks.first(1, 4)
      >>> k_split, k_stamp = jax.random.split(jax.random.key(1))
      >>> split = clean.split(k_split, test=0.5)
      >>> planted = fl.attacks.backdoor(split, bad, trigger, 1.0, key=k_stamp, share=0.5)
      >>> metrics = ["accuracy", backdoor_success(trigger, 1.0)]
      >>> simulation = fl.Simulation(planted, fl.algorithms.FedAvg(0.2), metrics=metrics)
      >>> bool(fl.run(simulation, rounds=50).backdoor_success[-1] > 0.8)
      True

    Reference:
      Bagdasaryan et al. 2020.
    """
    checks.interval("target", target)
    label = "backdoor success"
    measure = _BackdoorSuccess(trigger, float(target))
    return Metric(
        "backdoor_success",
        measure,
        label,
        needs={"labels"},
        bounds=(0.0, 1.0),
        check=measure.check,
    )


@dataclass(frozen=True)
class _OneVersusRest:
    """Predictions of one class against all others, from rates over all held-out samples."""

    kind: str
    label: float

    def __call__(self, now: Snapshot) -> Array:
        def rate(of: Callable[[Array, Array], Array]) -> Array:
            def score(loss: Loss, predictions: Array, targets: Array) -> Array:
                label = jnp.full_like(targets, self.label)
                return of(loss.correct(predictions, label), targets == label).astype(
                    now.model.dtype
                )

            # Ratios of sums over all samples, not means of the clients' ratios.
            return mean_of_all_samples(now, score)

        hits = rate(lambda predicted, true: predicted & true)
        predicted = rate(lambda predicted, _: predicted)
        true = rate(lambda _, true: true)
        totals = {"precision": predicted, "recall": true, "f1_score": (predicted + true) / 2}
        total = totals[self.kind]
        return hits / jnp.where(total > 0, total, 1)

    def check(self, problem: Problem | Stream) -> None:
        def check_label_occurs(targets: object, weights: object) -> None:
            if not ((np.asarray(targets) == self.label) & (np.asarray(weights) > 0)).any():
                raise ValueError(
                    f"{self.kind} is of the label {self.label:g}, and no held-out sample has it; "
                    "take a label of theirs."
                )

        test = held_out(problem)
        checks.check_when_concrete(check_label_occurs, test.targets, test.weights)


def _one_versus_rest(kind: str, label: float) -> Metric:
    checks.interval("label", label)
    measure = _OneVersusRest(kind, float(label))
    return Metric(
        f"{kind}_{label:g}",
        measure,
        f"{kind.replace('f1_score', 'F1 score')} of class {label:g}",
        needs={"labels"},
        bounds=(0.0, 1.0),
        check=measure.check,
        larger_is_better=True,
    )


@checked
def precision(label: float = 1.0) -> Metric:
    r"""Precision for one class: the share of samples predicted to have it that do.

    From the held-out samples of all (honest) clients together, on which a client's model is
    evaluated as for ``accuracy``; zero if no sample is predicted to have the label. It becomes
    ``precision_1`` in the results, after its label.

    Args:
      label: the class.

    Raises:
      ValueError: a label that no held-out sample has.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.logistic(jax.random.key(0), clients=4, samples=60, dim=5)
      >>> simulation = fl.Simulation(
      ...     problem=problem.split(jax.random.key(1), test=0.5),
      ...     algorithm=fl.algorithms.FedAvg(0.2),
      ...     metrics=[precision(), recall(), f1_score(-1)],
      ... )
      >>> results = fl.run(simulation, rounds=50)
      >>> bool(results.precision_1[-1] > 0.7)
      True
      >>> sorted(name for name in results if "1" in name)
      ['f1_score_-1', 'precision_1', 'recall_1']
    """
    return _one_versus_rest("precision", label)


@checked
def recall(label: float = 1.0) -> Metric:
    """Recall for one class: the share of samples with it that are predicted to have it.

    From all held-out samples together, as :func:`precision`. It becomes ``recall_1`` in the
    results, after its label.

    Args:
      label: the class.

    Raises:
      ValueError: a label that no held-out sample has.

    Example:
      >>> recall(3).label
      'recall of class 3'
    """
    return _one_versus_rest("recall", label)


@checked
def f1_score(label: float = 1.0) -> Metric:
    r"""F1 score for one class, the harmonic mean of :func:`precision` and :func:`recall`.

    From all held-out samples together, as these; zero if no sample with the label is predicted to
    have it. It becomes ``f1_score_1`` in the results, after its label.

    Args:
      label: the class.

    Raises:
      ValueError: a label that no held-out sample has.

    Example:
      >>> f1_score().bounds
      (0.0, 1.0)
    """
    return _one_versus_rest("f1_score", label)


def as_metrics(metrics: Metric | str | Sequence[Metric | str]) -> tuple[Metric, ...]:
    """Return metrics, given one or several of them or their names.

    Raises:
      ValueError: unknown name (the nearest known one is suggested).
      TypeError: neither names nor metrics.
    """
    check("metrics", metrics, rule_of(Metric | str | Sequence[Any]))
    several = (metrics,) if isinstance(metrics, str | Metric) else metrics
    return tuple(as_metric(metric) for metric in several)


def as_metric(metric: Metric | str) -> Metric:
    """Return a metric, given itself or its name.

    Raises:
      ValueError: unknown name (the nearest known one is suggested).
      TypeError: neither a name nor a :class:`Metric`.

    Example:
      >>> import fljax as fl
      >>> fl.metrics.as_metric("accuracy") is fl.metrics.accuracy
      True
    """
    if isinstance(metric, str):
        checks.choice("metric", metric, METRICS)
        return METRICS[metric]
    if not isinstance(metric, Metric):
        raise TypeError(
            f"a metric must be a name or an fljax.metrics.Metric, got {checks.shown(metric)}."
        )
    return metric


def check_scalar(argument: str, name: object, metrics: Mapping[str, Metric]) -> None:
    """Raise ``ValueError`` unless this is one of the metrics and has one number a round; the
    message's remedy is for the kind of metric that it is.
    """
    scalars = [label for label, metric in metrics.items() if not metric.dims]
    if isinstance(name, str) and name in metrics and name not in scalars:
        dims = metrics[name].dims
        remedy = f"fljax.metrics.worst({name!r}), " if dims == ("client",) else ""
        raise ValueError(
            f"{argument} {name!r} has a number for each {' and '.join(dims)}, and one number a "
            f"round is needed; give the simulation a metric that has one, {remedy}a name without "
            "such an axis or an fljax.metrics.Metric of your own."
        )
    checks.choice(argument, name, scalars)
