r"""Models whose predictions should agree with a user's expectations (Jung 2025, section 8.4).

A user's signal :math:`u_k(x)` is the prediction that the user expects at some points, by knowledge
or habit. A model is explainable to that user to the extent that it predicts the same, measured by
an average squared difference (177), which may also be part of the loss (178).

Shapes: ``K`` clients, ``M`` points, ``P`` features, ``D`` parameters.
"""

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax._core.numerics import HIGHEST
from fljax.problems.problem import Problem
from fljax.problems.validation import check_squared


@checked
def explained(
    problem: Problem,
    signal: Float[Array, "*clients points"],
    features: Float[Array, "*clients points features"],
    strength: Float[Array, ""] | float,
) -> Problem:
    r"""The problem with a user's signal among its labels, (178).

    .. math:: \frac1{m_k}\|y^{(k)}-X^{(k)}w\|^2+\rho\,\frac1M\sum_{j=1}^M\big(u_k(x_j)-x_j^\top
        w\big)^2

    This is least squares on augmented data: each client has ``M`` additional samples of weight
    :math:`\rho/M`. The objective is matched exactly, so a client's weights sum to :math:`\rho` more
    than before (:meth:`Problem.weighing <fljax.problems.Problem.weighing>`). A correct signal is as
    good as more data; a wrong one biases the model.

    Args:
      problem: of squared losses.
      signal: :math:`u_k(x_j)`, ``[M]`` shared by all clients, or ``[K, M]``, one per client.
      features: :math:`x_j`, ``[M, P]`` or ``[K, M, P]``, before the problem's feature map.
      strength: :math:`\rho\ge0`.

    Raises:
      ValueError: another loss, a negative strength, shapes that do not fit, NaN or infinite
        numbers.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=4, samples=3, dim=2)
      >>> expected = explained(problem, jnp.array([1.0, -1.0]), jnp.eye(2), strength=1e4)
      >>> fl.problems.train(expected)[0].round(2).tolist()
      [1.0, -1.0]

    Reference:
      Jung 2025, (178).
    """
    check_squared(problem)
    checks.nonnegative("strength", strength)
    clients = problem.clients
    dtype = problem.dtype
    values, points = signal_points(signal, features, clients, problem.features.shape[2], dtype)
    strength = jnp.asarray(strength, dtype)
    weights = jnp.asarray(problem.weights)
    before = 1 if problem.importance is None else jnp.asarray(problem.importance)
    more = jnp.broadcast_to(strength / values.shape[1], values.shape)
    return replace(
        problem,
        features=jnp.concatenate([problem.features, points], axis=1),
        targets=jnp.concatenate([problem.targets, values], axis=1),
        weights=jnp.concatenate([weights, more], axis=1),
        importance=jnp.broadcast_to(before + strength, (clients,)),
        statistics=None,
    )


@checked
def explanation_error(
    models: Float[Array, "clients dim"],
    signal: Float[Array, "*clients points"],
    features: Float[Array, "*clients points features"],
) -> Float[Array, " clients"]:
    r"""(177): :math:`\frac1M\sum_j(u_k(x_j)-x_j^\top w_k)^2`, the mean-square deviation of models
    from a user's signal.

    Args:
      models: ``[K, D]``, models with linear predictions.
      signal: as in :func:`explained`.
      features: the inputs of the models: for a problem with a feature map, its values.

    Raises:
      ValueError: shapes that do not fit, NaN or infinite numbers.

    Example:
      >>> import jax.numpy as jnp
      >>> models = jnp.array([[1.0, 0.0], [0.0, 2.0]])
      >>> explanation_error(models, jnp.array([1.0, 1.0]), jnp.eye(2)).tolist()
      [0.5, 1.0]

    Reference:
      Jung 2025, (177).
    """
    checks.finite("models", models)
    models = jnp.asarray(models)
    if models.ndim != 2:
        raise ValueError(f"models must be [clients, parameters], got shape {models.shape}.")
    clients, width = models.shape
    values, points = signal_points(signal, features, clients, width, models.dtype)
    predictions = jnp.einsum("kmp,kp->km", points, models, precision=HIGHEST)
    return jnp.mean((values - predictions) ** 2, axis=1)


def signal_points(
    signal: ArrayLike, features: ArrayLike, clients: int, width: int, dtype: DTypeLike
) -> tuple[Array, Array]:
    """Each client's signal and its points, ``[K, M]`` and ``[K, M, P]``."""
    shape = np.shape(features)
    size = np.shape(signal)
    if len(shape) not in (2, 3) or shape[-1] != width or shape[:-2] not in ((), (clients,)):
        raise ValueError(
            f"features must be [points, {width}], or of each client, [{clients}, points, {width}], "
            f"got shape {shape}."
        )
    count = shape[-2]
    if not count or size not in ((count,), (clients, count)):
        raise ValueError(
            f"signal must be one number of each of the {count} points, at least one, or of each "
            f"client's, {(clients, count)}, got shape {size}."
        )
    for name, value in (("signal", signal), ("features", features)):
        checks.finite(name, value)
    return (
        jnp.broadcast_to(jnp.asarray(signal, dtype), (clients, count)),
        jnp.broadcast_to(jnp.asarray(features, dtype), (clients, count, width)),
    )
