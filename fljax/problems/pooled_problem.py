"""Problems whose clients have rows of one pool of samples, by a partition drawn from a key."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.partitions.shifts import Shift
from fljax.problems.objectives import Loss, NoRegularizer, Regularizer
from fljax.problems.pool import (
    PoolData,
    checked_pool,
    clients_of_pool,
    partition_of_pool,
    shifted,
)
from fljax.problems.problem import Problem, as_floats


@checked
def from_pool(
    features: Any,
    targets: Any,
    loss: Loss,
    partition: Any,
    clients: int | None = None,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
    *,
    key: Key[Array, ""] | int = 0,
    classes: int | None = None,
    feature_map: object = None,
    feature_bound: Float[Array, ""] | float | None = None,
    held_out: float = 0.0,
    shifts: Shift | Sequence[Shift] = (),
) -> Problem:
    """Clients that have rows of one data set, which is stored once.

    The partition is drawn from the key: within a scenario every seed has its own, and numbers of
    the rule may be axes of a grid, all with the same data in memory. Gradients of all samples work
    through tiles of each client's samples, whatever their sizes, and batches read their rows. Fixed
    is the partition of a key that does not depend on the seed.

    A client without samples has importance zero; :class:`fljax.partitions.AtLeast` gives each some.
    Arrays of indices have room for the largest client that the rule allows, and local epochs as
    many steps: bound it by :class:`fljax.partitions.AtMost` where sizes differ much.

    Args:
      features: ``[R, P]``, the samples of all clients.
      targets: ``[R]``.
      loss: as in :class:`Problem`.
      partition: a rule of :mod:`fljax.partitions`, a :class:`fljax.partitions.Partition`, or a
        function from a key to one. Rules that look at labels look at the targets.
      clients: ``K``, for a rule.
      regularizer: as in :class:`Problem`.
      strength: as in :class:`Problem`.
      key: of the partition, consumed.
      classes: number of labels, for targets that are traced.
      feature_map: as in :class:`Problem`.
      feature_bound: as in :class:`Problem`.
      held_out: the share of each client's samples that are its test set.
      shifts: changes of samples that depend on their client, such as
        :class:`fljax.partitions.FeatureNoise`, one after the other; the pool is then copied, once
        for each seed.

    Raises:
      TypeError, ValueError: as :class:`Problem`, the rule and the shifts; samples and targets of
        different numbers, a rule without ``clients``, a partition of another number of rows;
        ``held_out`` or ``shifts`` of clients that share rows.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=1, samples=600, dim=4, classes=3)
      >>> x, y = data.features[0], data.targets[0]
      >>> def scenario(key, concentration):
      ...     problem = fl.problems.from_pool(
      ...         x, y, fl.problems.Softmax(3), fl.partitions.EqualDirichlet(concentration),
      ...         clients=20, key=key,
      ...     )
      ...     algorithm = fl.algorithms.FedAvg(0.5, epochs=2, batch=10)
      ...     return fl.Simulation(problem, algorithm, metrics=["train_error"])
      >>> study = fl.sweep(scenario, rounds=5, seeds=3, grid={"concentration": [0.1, 100.0]})
      >>> study.train_error.isel(round=-1).mean(["seed", "client"]).shape
      (2,)
    """
    features, targets = checked_pool(features, targets)
    features = as_floats(features)
    if np.ndim(targets) != 1:
        raise ValueError(
            "targets of a pool must be one number of each sample, [R], got "
            f"{checks.shown(targets)}."
        )
    if np.ndim(features) != 2:
        raise ValueError(
            f"features of a pool must be rows, [R, P], got shape {np.shape(features)}; of other "
            "samples take a network (fljax.problems.Model.from_pool)."
        )
    labels = loss.labels(targets) if targets.dtype == np.bool_ else targets
    of_clients = partition_of_pool(partition, key, labels, clients, classes)
    features, labels = shifted(
        shifts, key, features, as_floats(labels), of_clients[0], classes, loss
    )

    def build(data: PoolData, **settings: Any) -> Problem:
        settings |= {"weights": data.weights, "importance": data.importance}
        return Problem(*data[:2], loss, **settings)

    train, test = clients_of_pool(features, labels, *of_clients, held_out)
    return build(
        train,
        regularizer=regularizer,
        strength=strength,
        feature_map=feature_map,
        feature_bound=feature_bound,
        test=None if test is None else build(test, feature_map=feature_map),
    )
