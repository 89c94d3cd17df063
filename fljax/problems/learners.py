"""Learners that run on the host, such as scikit-learn's, as part of a compiled run."""

import copy
import inspect
import pickle
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax.problems.problem import Problem


class Learners:
    """One learner for all clients, or one per client, with ``fit`` and ``predict`` of NumPy arrays.

    Learners are structure of a simulation: they are compared by their pickles, so an equal learner
    made again causes no new compilation.

    Args:
      learners: objects with ``fit(features, targets, sample_weight=...)`` and
        ``predict(features)``; they are copied before being fitted, and never modified.

    Raises:
      TypeError: missing methods, or a ``fit`` without ``sample_weight``.
    """

    def __init__(self, learners: Sequence[Any]) -> None:
        for learner in learners:
            _check_learner(learner)
        self.learners = tuple(learners)
        try:
            self._key: object = pickle.dumps(self.learners)
        except Exception:  # of what cannot be pickled the object itself
            self._key = tuple(map(id, self.learners))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Learners) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.learners[0] if len(self.learners) == 1 else self.learners)

    def __len__(self) -> int:
        return len(self.learners)

    def fitted(
        self, problem: Problem, points: object, labels: object, label_weights: object
    ) -> list[Any]:
        r"""Each client's learner, fitted to its samples and to pseudo-labels of a test set.

        Empirical risk minimization with weights :math:`1/m_k` for samples and :math:`c_k/m'` for
        the test set's points, which occur once with each of their labels. ``None`` for a client
        that has neither.

        Args:
          problem: the clients' samples, padded.
          points: ``[K, m', P]``, the test set.
          labels: ``[K, m']``, or several, ``[K, S, m']``.
          label_weights: ``[K]`` or ``[K, S]``, :math:`c_k\ge0`.
        """
        arguments = (
            problem.features,
            problem.targets,
            problem.weights,
            points,
            labels,
            label_weights,
        )
        return self._fit(*(np.asarray(array) for array in arguments))

    def _fit(
        self,
        features: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray,
        points: np.ndarray,
        labels: np.ndarray,
        label_weights: np.ndarray,
        chosen: np.ndarray | None = None,
    ) -> list[Any]:
        """Fit a copy of each chosen client's learner, on the host."""
        size = points.shape[1]
        fitted = []
        labels = labels.reshape(len(labels), -1, size)
        label_weights = label_weights.reshape(len(label_weights), -1)
        for k in range(len(features)):
            real = weights[k] > 0
            sets = np.flatnonzero(label_weights[k] > 0)
            if (chosen is not None and not chosen[k]) or not (real.any() or sets.size):
                fitted.append(None)
                continue
            rows = [features[k][real]]
            answers = [targets[k][real]]
            shares = [weights[k][real]]
            for i in sets:
                rows = [*rows, points[k]]
                answers = [*answers, labels[k, i]]
                shares.append(np.full(size, label_weights[k, i] / size, weights.dtype))
            learner = copy.deepcopy(self.learners[k % len(self.learners)])
            learner.fit(
                np.concatenate(rows),
                np.concatenate(answers),
                sample_weight=np.concatenate(shares),
            )
            fitted.append(learner)
        return fitted

    def predictions(
        self,
        problem: Problem,
        points: Float[Array, "clients points features"],
        labels: Float[Array, "clients ... points"],
        label_weights: Float[Array, "clients ..."],
        chosen: Bool[Array, " clients"],
    ) -> tuple[Array, Array, Array | None]:
        """Predictions of the learners of :meth:`fitted`: at the test set ``[K, m']``, at the
        clients' samples ``[K, N]``, and at their held-out data ``[K, T]`` if any. All are zero for
        learners that were not fitted. Also works in compiled code, as a host callback.
        """
        for_test = problem.test
        held_out = None
        if for_test is not None:
            shape = (problem.clients, *for_test.features.shape[1:])
            held_out = jnp.broadcast_to(for_test.features, shape)

        def on_host(*arrays: Array) -> tuple[np.ndarray, ...]:
            host_arrays = [np.asarray(array) for array in arrays[:7]]
            for_test = arrays[7:]
            learners = self._fit(*host_arrays)
            features = host_arrays[0]
            points = host_arrays[3]
            return tuple(
                np.stack([_predicted(*pair) for pair in zip(learners, places, strict=True)])
                for places in (points, features, *map(np.asarray, for_test))
            )

        arguments = [
            problem.features,
            problem.targets,
            problem.weights,
            points,
            labels,
            label_weights,
            chosen,
        ]
        places = [points, problem.features]
        if held_out is not None:
            arguments = [*arguments, held_out]
            places = [*places, held_out]
        shapes = tuple(jax.ShapeDtypeStruct(p.shape[:2], problem.dtype) for p in places)
        predictions = jax.pure_callback(on_host, shapes, *arguments, vmap_method="sequential")
        return predictions[0], predictions[1], None if held_out is None else predictions[2]


def _predicted(learner: Any, features: np.ndarray) -> np.ndarray:
    if learner is None:
        return np.zeros(len(features), features.dtype)
    predictions = np.asarray(learner.predict(features), features.dtype)
    if predictions.shape != (len(features),):
        raise ValueError(
            f"{type(learner).__name__}.predict must return one number a sample, shape "
            f"{(len(features),)}, got {predictions.shape}."
        )
    return predictions


def _check_learner(learner: Any) -> None:
    """Raise ``TypeError`` for an object that is not a learner with sample weights."""
    name = learner.__name__ if isinstance(learner, type) else type(learner).__name__
    if isinstance(learner, type) or not all(
        callable(getattr(learner, method, None)) for method in ("fit", "predict")
    ):
        raise TypeError(
            "a learner must be an object with fit and predict, such as "
            f"sklearn.tree.DecisionTreeRegressor(), got {checks.shown(learner)}."
        )
    if "sample_weight" not in inspect.signature(learner.fit).parameters:
        raise TypeError(
            f"{name}.fit takes no sample_weight, by which pseudo-labels count less or more than a "
            "client's own samples; take a learner that weighs its samples, or wrap it in a class "
            "whose fit(features, targets, sample_weight) passes the weights on."
        )


def as_learners(value: object) -> Learners:
    """Make ``Learners`` from one object, or from a sequence with one per client."""
    if isinstance(value, Learners):
        return value
    listed = isinstance(value, list | tuple)
    if listed and not value:
        raise ValueError("learners is empty; leave it out or give one for each client.")
    return Learners(value if listed else [value])
