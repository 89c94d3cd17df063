r"""Model-agnostic learning: nodes with different kinds of models exchange predictions.

Where parameters cannot be compared, predictions can: on an unlabeled test set
:math:`x_1,\dots,x_{m'}` known to all nodes, the discrepancy of two models is

.. math:: \frac1{m'}\sum_j\big(h_k(x_j)-h_l(x_j)\big)^2

(Jung 2025, (65)). :class:`ModelAgnosticFedRelax` couples neighbors by it and minimizes (66);
:class:`GeneralizedGradient` uses it as the proximity term between successive hypotheses of each
node, without communication. In both, a step is plain empirical risk minimization on augmented data,
a node's samples and the test set with pseudo-labels, so that any learner can be used: models linear
in features of each node's own, all computed as one array program, or learners on the host with the
interface of scikit-learn.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import replace
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Algorithm, start_models
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.problems import NoRegularizer, Problem
from fljax.problems.learners import Learners
from fljax.problems.solvers import response


class Regression(NamedTuple):
    """The linear map from pseudo-labels to linear models, constant over a run."""

    base: Array  # [K, D]  by the node's own samples
    gain: Array  # [K, D, m']  by each pseudo-label


class OnTestSetState(NamedTuple):
    """State of the nodes between rounds."""

    model: Array  # [K, D]  w_k; of learners [K, m'], their predictions at the test set
    received: Array  # [K, m']  the weighted mean of its neighbors' predictions there; or [K, S, m']
    labels: Array  # [K, m']  the pseudo-labels that the model was fitted to; or [K, S, m']
    kept: Regression | None  # of linear models
    fitted: Array | None = None  # [K, N]  predictions of learners at their own samples
    held_out: Array | None = None  # [K, T]  and at their held-out data


class OnTestSet(Algorithm):
    """Base class of both algorithms: fits to samples and to pseudo-labels of the test set."""

    test_set: Array | None
    learners: Learners | None

    def _validate(self) -> None:
        if self.test_set is not None:
            points = checks.filled("test_set", self.test_set)
            if np.ndim(points) not in (2, 3):
                raise ValueError(
                    "test_set must be points of shape [points, features], or of each client, "
                    f"[clients, points, features], got shape {np.shape(points)}."
                )
            checks.finite("test_set", points)
            object.__setattr__(self, "test_set", points)
        elif self.learners is not None:
            raise ValueError(
                "learners are compared by what they predict; give a test_set, [points, features]."
            )

    def check(self, problem: Problem, network: Network) -> None:
        if problem.loss.outputs > 1:
            raise ValueError(f"{self.label} is for models with one prediction a sample.")
        points = self.test_set
        width = problem.dim
        if points is not None and (
            points.shape[-1] != width or (points.ndim == 3 and len(points) != problem.clients)
        ):
            raise ValueError(
                f"test_set must have shape [points, {width}], or [{problem.clients}, points, "
                f"{width}] with one for each client, got {points.shape}; of a problem with "
                "a feature map it is of the map's values."
            )
        if self.learners is not None and problem.initial is not None:
            raise ValueError(
                "learners have no parameters to start at, and begin by predicting zero; leave out "
                "starting_at(), or learners=."
            )
        if self.learners is not None and not isinstance(problem.regularizer, NoRegularizer):
            raise ValueError(
                "learners are regularized by their own settings, not by the problem's "
                f"{type(problem.regularizer).__name__}; leave it out."
            )
        if self.learners is not None and len(self.learners) not in (1, problem.clients):
            raise ValueError(
                f"learners must be one for all or one for each of the {problem.clients} clients, "
                f"got {len(self.learners)}."
            )

    def points(self, problem: Problem) -> Float[Array, "clients points features"]:
        """Return the test set of each client."""
        if self.test_set is None:
            points = problem.dim**0.5 * jnp.eye(problem.dim, dtype=problem.dtype)
        else:
            points = jnp.asarray(self.test_set, problem.dtype)
        return jnp.broadcast_to(points, (problem.clients, *points.shape[-2:]))

    def _regression(self, problem: Problem, label_weights: Array) -> Regression:
        points = self.points(problem)
        size = points.shape[1]
        shares = jnp.broadcast_to(label_weights[:, None] / size, points.shape[:2])
        augmented = replace(
            problem,
            features=jnp.concatenate([problem.design, points], axis=1),
            targets=jnp.concatenate([problem.targets, jnp.zeros_like(shares)], axis=1),
            weights=jnp.concatenate([problem.weights, shares], axis=1),
            feature_map=None,
            statistics=None,
        )
        gains = response(augmented)
        sample_gains = gains[:, :, : problem.samples]
        base = jnp.einsum("kpn,kn->kp", sample_gains, problem.targets, precision=HIGHEST)
        return Regression(base, gains[:, :, problem.samples :])

    def _initial_state(self, problem: Problem, label_weights: Array) -> OnTestSetState:
        """Return the initial state, with the predictions of the initial models (zero if they are
        zero).
        """
        model = start_models(problem)
        points = self.points(problem)
        if self.learners is not None:
            zero = jnp.zeros(points.shape[:2], problem.dtype)
            held_out = problem.test
            rows = (problem.clients, held_out.features.shape[1]) if held_out is not None else None
            return OnTestSetState(
                zero,
                zero,
                zero,
                None,
                jnp.zeros((problem.clients, problem.samples), problem.dtype),
                None if rows is None else jnp.zeros(rows, problem.dtype),
            )
        predicted = jnp.einsum("kmp,kp->km", points, model, precision=HIGHEST)
        return OnTestSetState(model, predicted, predicted, self._regression(problem, label_weights))

    def _fit(
        self, state: OnTestSetState, labels: Array, label_weights: Array, now: Round
    ) -> tuple[OnTestSetState, Array]:
        """Return the state with models fitted to these pseudo-labels, and their predictions."""
        points = self.points(now.problem)
        if self.learners is not None:
            predicted, fitted, held_out = self.learners.predictions(
                now.problem, points, labels, label_weights, now.available
            )
            return OnTestSetState(
                predicted, state.received, labels, None, fitted, held_out
            ), predicted
        assert state.kept is not None
        model = state.kept.base + jnp.einsum(
            "kpm,km->kp", state.kept.gain, labels, precision=HIGHEST
        )
        predicted = jnp.einsum("kmp,kp->km", points, model, precision=HIGHEST)
        return state._replace(model=model, labels=labels), predicted

    def _fitted_learners(
        self, problem: Problem, argument: object, label_weights: Array
    ) -> list[Any]:
        if self.learners is None:
            raise ValueError(f"this {type(self).__name__} has linear models, and no learners.")
        labels = checks.array("labels", argument)
        wanted = (*np.shape(label_weights), self.test_set.shape[-2])
        if np.shape(labels) != wanted:
            raise ValueError(f"labels must have shape {wanted}, got {np.shape(labels)}.")
        return self.learners.fitted(problem.mapped(), self.points(problem), labels, label_weights)
