r"""Predictions of linear models with their uncertainty (Jung 2025, section 8.4).

A prediction is useful only if its uncertainty is known. Minimizers of GTVMin with a squared penalty
are linear in the labels, so the effect of label noise on a prediction is known for any coupling.

Shapes: ``K`` clients, ``N`` samples, ``M`` predictions, ``P`` features, ``D`` parameters.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax._core.numerics import HIGHEST
from fljax.problems.gtv import CLOSED_FORM_LIMIT, GTVMin
from fljax.problems.solvers import is_quadratic, strong_convexity


class Interval(NamedTuple):
    """An interval that contains a number with a given probability."""

    low: np.ndarray
    high: np.ndarray


class Prediction(NamedTuple):
    """Predictions of the clients' models, and their standard errors."""

    mean: Array  # [K, M]
    standard_error: Array  # [K, M]  of the mean: of what noisy labels make of the model
    noise: Array  # []  the standard deviation of labels, from all clients' residuals
    degrees: Array  # []  degrees of freedom: samples minus fitted parameters

    def confidence(self, level: float = 0.95) -> Interval:
        """Confidence interval of the mean of the labels.

        Args:
          level: the probability, in (0, 1).
        """
        return self._interval(np.asarray(self.standard_error), level)

    def interval(self, level: float = 0.95) -> Interval:
        """Prediction interval of a new label.

        Args:
          level: the probability, in (0, 1).
        """
        noise = np.asarray(self.noise)[..., None, None]
        return self._interval(np.hypot(np.asarray(self.standard_error), noise), level)

    def _interval(self, error: np.ndarray, level: float) -> Interval:
        checks.interval("level", level, above=0, below=1)
        quantile = scipy.special.stdtrit(np.asarray(self.degrees), (1 + level) / 2)
        reach = np.asarray(quantile)[..., None, None] * error
        return Interval(np.asarray(self.mean) - reach, np.asarray(self.mean) + reach)


@checked
def predict(coupled: GTVMin, features: Float[Array, "*clients points features"]) -> Prediction:
    r"""Predictions of the clients' models, with the standard error of each.

    .. math:: \hat y=x^\top\hat w_k,\qquad\hat w=Ry,\qquad
        \mathrm{se}^2=\hat\sigma^2\|R_k^\top x\|^2,\qquad
        \hat\sigma^2=\frac{\|y-Hy\|^2}{\mathrm{tr}((I-H)^\top(I-H))}

    where :math:`Hy` are the predictions of all training labels. Without a coupling this is ordinary
    least squares at each client, with a common variance of the label noise (59). Intervals are then
    exact for Gaussian noise, and nearly exact with a coupling if the clients' true models are
    equal, (60); they do not include the bias due to differing clients or a regularizer. Held-out
    data reveal that bias (:func:`fljax.problems.validate`).

    Args:
      coupled: a problem with squared losses, no or a squared regularizer, and a squared penalty;
        ``coupling=0.0`` for local models.
      features: :math:`x`, ``[M, P]`` shared by all clients, or ``[K, M, P]``, one set per client.

    Raises:
      ValueError: another loss or penalty, more than 4000 unknowns or samples, no unique solution,
        features of another shape.

    Example:
      >>> import jax, numpy as np, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> alone, together = (
      ...     predict(fl.problems.GTVMin(problem, fl.graphs.ring(6), coupling), np.eye(2))
      ...     for coupling in (0.0, 10.0)
      ... )
      >>> bool((together.standard_error < alone.standard_error).all())
      True
      >>> low, high = together.interval(0.9)
      >>> bool((low < together.mean).all() and (together.mean < high).all())
      True

    Reference:
      Jung 2025, section 8.4.
    """
    problem = coupled.problem
    square = coupled._squared_coupling()
    if square is None or not is_quadratic(problem) or problem.clip is not None:
        raise ValueError(
            "a prediction's error is known where models are linear in the labels: give a squared "
            "loss, no or a squared regularizer, a squared penalty, and no clip."
        )
    largest = max(problem.clients * problem.dim, problem.clients * problem.samples)
    if largest > CLOSED_FORM_LIMIT:
        raise ValueError(
            f"the matrix of predictions and labels has {largest} rows or columns, at most "
            f"{CLOSED_FORM_LIMIT} are taken; predict for fewer clients."
        )
    width = problem.features.shape[2]
    shape = np.shape(features)
    if len(shape) not in (2, 3) or shape[-1] != width or shape[:-2] not in ((), (problem.clients,)):
        raise ValueError(
            f"features must be [points, {width}], or of each client, "
            f"[{problem.clients}, points, {width}], got shape {shape}."
        )
    checks.finite("features", features)
    coupled._require_unique(square)
    points = jnp.asarray(features, problem.dtype)
    points = problem._features_of(points)
    points = jnp.broadcast_to(points, (problem.clients, *points.shape[-2:]))
    plain = replace(problem.mapped(), tasks=None, test=None, initial=None, statistics=None)
    return _predict(replace(coupled, problem=plain), points)


@jax.jit
def _predict(coupled: GTVMin, points: Array) -> Prediction:
    """Predictions of linear smoothers, with their variances from all clients' residuals."""
    problem = coupled.problem
    square = coupled._squared_coupling()
    assert square is not None
    clients, samples, dim = problem.features.shape
    everyone = jnp.arange(clients)
    # The gradient's half, A w - B y, is zero at the models.
    blocks = problem.second_moment() + jax.vmap(lambda c: c / 2 * jnp.eye(dim))(
        jnp.broadcast_to(strong_convexity(problem), clients).astype(problem.dtype)
    )
    laplacian = coupled.network.laplacian_matrix().astype(problem.dtype)
    system = jnp.einsum("kl,pq->kplq", laplacian, jnp.diag(square))
    system = system.at[everyone, :, everyone, :].add(blocks)
    weights = jnp.asarray(problem.weights)
    right = jnp.zeros((clients, dim, clients, samples), problem.dtype)
    right = right.at[everyone, :, everyone, :].set(
        jnp.swapaxes(weights[..., None] * problem.features, 1, 2)
    )
    size = clients * dim
    response = jnp.linalg.solve(system.reshape(size, size), right.reshape(size, -1))
    response = response.reshape(clients, dim, clients * samples)

    def of_labels(rows: Array) -> Array:
        return jnp.einsum("kmp,kpn->kmn", rows, response, precision=HIGHEST)

    real = (weights > 0).ravel()
    labels = jnp.asarray(problem.targets).ravel()
    labels = jnp.where(real, labels, 0)
    hat = of_labels(problem.features).reshape(len(real), len(real))
    rest = jnp.where(real[:, None] & real[None], jnp.eye(len(real), dtype=hat.dtype) - hat, 0)
    degrees = jnp.sum(rest**2)
    noise = jnp.sqrt(jnp.sum(jnp.matmul(rest, labels, precision=HIGHEST) ** 2) / degrees)
    influence = of_labels(points)
    mean = jnp.einsum("kmn,n->km", influence, labels, precision=HIGHEST)
    return Prediction(mean, noise * jnp.sqrt(jnp.sum(influence**2, axis=2)), noise, degrees)
