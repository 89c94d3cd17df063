r"""Losses and regularizers: convex, composable, each with value, subgradient and prox.

A loss acts on a linear prediction :math:`z = x^\top w` (a vector of ``outputs`` entries for
softmax) and its target, entry by entry, so per-sample gradients never need to be materialized:
they are the outer product of the features with ``derivative``. A regularizer acts on the
parameters. The source's squared loss carries no factor one half (Gauthier 2024, (3.24)).
"""

from typing import ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import float_dtype, module, static


def soft_threshold(value: Array, threshold: Array | float) -> Array:
    r"""The prox of :math:`t\|\cdot\|_1`: :math:`\mathrm{sign}(v)\max(|v|-t,0)`."""
    return jnp.sign(value) * jnp.maximum(jnp.abs(value) - threshold, 0)


class Loss:
    r"""A convex loss of a prediction; subclass it to define your own.

    Attributes:
      outputs: number of predictions per sample (1: a scalar without its own axis).
      curvature: an upper bound of the second derivative in the prediction, ``None`` when the loss
        is not smooth. Solvers choose their method and step size from it.

    Example:
      The loss :math:`\log\cosh(z-y)`:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class LogCosh(fl.problems.Loss):
      ...     curvature = 1.0
      ...     def value(self, prediction, target):
      ...         return jnp.log(jnp.cosh(prediction - target))
      ...     def derivative(self, prediction, target):
      ...         return jnp.tanh(prediction - target)
      >>> key, loss = jax.random.key(0), LogCosh()
      >>> problem = fl.problems.linear(key, clients=4, samples=9, dim=2, loss=loss)
      >>> models = fl.problems.optimum(problem)[None].repeat(4, axis=0)
      >>> bool(abs(problem.gradient(models).sum(axis=0)).max() < 1e-4)
      True
    """

    outputs: ClassVar[int] = 1
    curvature: ClassVar[float | None] = None

    @checks.required
    def value(self, prediction: Array, target: Array) -> Array:
        """The loss of each prediction."""
        raise NotImplementedError

    @checks.required
    def derivative(self, prediction: Array, target: Array) -> Array:
        """A (sub)derivative with respect to the prediction."""
        raise NotImplementedError

    def prox(self, point: Array, target: Array, step: Array) -> Array:
        """``argmin_z step * value(z, target) + (z - point)^2 / 2``; required for nonsmooth
        losses.
        """
        raise NotImplementedError(
            checks.missing_method_message(type(self), "prox", "its proximal operator")
        )

    def correct(self, prediction: Array, target: Array) -> Array:
        """Whether a classifier's prediction has the target's label."""
        raise NotImplementedError(f"{type(self).__name__} is not a classification loss.")

    def slope_bound(self) -> Array | float:
        """An upper bound of the derivative's norm, infinite if there is none."""
        return float("inf")

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise ``ValueError`` for targets that are invalid for the loss."""

    def labels(self, targets: Array | np.ndarray) -> Array | np.ndarray:
        """The labels that represent the targets ``True`` and ``False``: by default 1 and 0."""
        return targets


def _check_labels(targets: np.ndarray, allowed: np.ndarray, loss: str) -> None:
    wrong = ~np.isin(targets, allowed)
    if wrong.any():
        raise ValueError(
            f"targets must be labels among {', '.join(f'{a:g}' for a in allowed)} for the {loss} "
            f"loss, got {targets[wrong].flat[0]:g}; recode them first."
        )


@module
class LeastSquares(Loss):
    r""":math:`(z-y)^2`. Its gradient is unbounded, so a privacy guarantee needs clipping.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> loss, z, y = fl.problems.LeastSquares(), jnp.array([3.0]), jnp.array([1.0])
      >>> float(loss.value(z, y)[0]), float(loss.derivative(z, y)[0])
      (4.0, 4.0)
    """

    curvature: ClassVar[float | None] = 2.0

    def value(self, prediction: Array, target: Array) -> Array:
        return (prediction - target) ** 2

    def derivative(self, prediction: Array, target: Array) -> Array:
        return 2 * (prediction - target)

    def prox(self, point: Array, target: Array, step: Array) -> Array:
        return (point + 2 * step * target) / (1 + 2 * step)


@module
class LeastAbsoluteDeviation(Loss):
    r""":math:`|z-y|`; the subgradient at a zero residual is taken to be zero.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> loss, z, y = fl.problems.LeastAbsoluteDeviation(), jnp.array([3.0]), jnp.array([1.0])
      >>> float(loss.value(z, y)[0]), float(loss.derivative(z, y)[0])
      (2.0, 1.0)
    """

    def value(self, prediction: Array, target: Array) -> Array:
        return jnp.abs(prediction - target)

    def derivative(self, prediction: Array, target: Array) -> Array:
        return jnp.sign(prediction - target)

    def prox(self, point: Array, target: Array, step: Array) -> Array:
        return target + soft_threshold(point - target, step)

    def slope_bound(self) -> float:
        return 1.0


@module
class Huber(Loss):
    r""":math:`\tfrac12 r^2` for :math:`|r|\le\tau`, else :math:`\tau|r|-\tfrac12\tau^2`.

    Args:
      threshold: :math:`\tau>0`, in the units of the target.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> loss = fl.problems.Huber(threshold=1.0)
      >>> loss.value(jnp.array([0.5, 3.0]), jnp.zeros(2)).tolist()
      [0.125, 2.5]
      >>> loss.derivative(jnp.array([0.5, 3.0]), jnp.zeros(2)).tolist()
      [0.5, 1.0]
    """

    threshold: Float[Array, ""] | float = 1.0
    curvature: ClassVar[float | None] = 1.0

    def validate(self) -> None:
        checks.positive("threshold", self.threshold)

    def value(self, prediction: Array, target: Array) -> Array:
        size = jnp.abs(prediction - target)
        return jnp.where(
            size <= self.threshold, size**2 / 2, self.threshold * (size - self.threshold / 2)
        )

    def derivative(self, prediction: Array, target: Array) -> Array:
        return jnp.clip(prediction - target, -self.threshold, self.threshold)

    def prox(self, point: Array, target: Array, step: Array) -> Array:
        residual = point - target
        inner = residual / (1 + step)
        outer = residual - step * jnp.sign(residual) * self.threshold
        return target + jnp.where(jnp.abs(inner) <= self.threshold, inner, outer)

    def slope_bound(self) -> Array | float:
        return self.threshold


@module
class Logistic(Loss):
    r""":math:`\log(1+e^{-yz})` with labels :math:`y\in\{-1,+1\}`.

    Boolean targets are labels, too: ``True`` is +1 and ``False`` is -1.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> loss, z, y = fl.problems.Logistic(), jnp.array([0.0]), jnp.array([1.0])
      >>> round(float(loss.value(z, y)[0]), 4)  # log 2
      0.6931
      >>> float(loss.derivative(z, y)[0])
      -0.5
    """

    curvature: ClassVar[float | None] = 0.25

    def check_targets(self, targets: np.ndarray) -> None:
        _check_labels(targets, np.array([-1, 1]), "logistic")

    def labels(self, targets: Array | np.ndarray) -> Array | np.ndarray:
        return 2 * targets.astype(float_dtype()) - 1

    def value(self, prediction: Array, target: Array) -> Array:
        return jax.nn.softplus(-target * prediction)

    def correct(self, prediction: Array, target: Array) -> Array:
        return (prediction >= 0) == (target > 0)  # the second class from probability 1/2 on

    def derivative(self, prediction: Array, target: Array) -> Array:
        return -target * jax.nn.sigmoid(-target * prediction)

    def slope_bound(self) -> float:
        return 1.0


@module
class Softmax(Loss):
    r"""Multinomial logistic loss :math:`\log\sum_c e^{z_c}-z_y`, labels :math:`0..C-1`.

    Args:
      classes: :math:`C \ge 2`; the parameters are the ``[classes, features]`` matrix, flattened,
        so that a product runs along the features (three times faster on a CPU than the other way).

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> loss = fl.problems.Softmax(4)
      >>> round(float(loss.value(jnp.zeros(4), jnp.array(2))), 4)  # log 4
      1.3863
      >>> loss.derivative(jnp.zeros(4), jnp.array(2)).tolist()
      [0.25, 0.25, -0.75, 0.25]
    """

    classes: int = static()
    curvature: ClassVar[float | None] = 0.5

    def validate(self) -> None:
        checks.count("classes", self.classes, at_least=2)

    def check_targets(self, targets: np.ndarray) -> None:
        _check_labels(targets, np.arange(self.classes), "softmax")

    @property
    def outputs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.classes

    def value(self, prediction: Array, target: Array) -> Array:
        onehot = jax.nn.one_hot(target.astype(jnp.int32), self.classes, dtype=prediction.dtype)
        return jax.nn.logsumexp(prediction, axis=-1) - jnp.sum(onehot * prediction, axis=-1)

    def correct(self, prediction: Array, target: Array) -> Array:
        return jnp.argmax(prediction, axis=-1).astype(target.dtype) == target

    def derivative(self, prediction: Array, target: Array) -> Array:
        onehot = jax.nn.one_hot(target.astype(jnp.int32), self.classes, dtype=prediction.dtype)
        return jax.nn.softmax(prediction, axis=-1) - onehot

    def slope_bound(self) -> float:
        return 2.0**0.5


@runtime_checkable
class Regularizer(Protocol):
    """A convex penalty :math:`R(w)` over the last axis."""

    def value(self, w: Array) -> Array: ...
    def gradient(self, w: Array) -> Array: ...
    def prox(self, point: Array, step: Array) -> Array: ...
    def quadratic(self) -> float | None:
        """The ``q`` for which ``R`` is ``q ||w||^2``, or ``None``."""
        ...

    def growth(self, dim: int) -> tuple[Array | float, Array | float]:
        """``(a, b)`` such that ``R'(w) = a w + s(w)`` with any two ``s`` at most ``b`` apart."""
        ...


@module
class NoRegularizer:
    r""":math:`R(w)=0`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=3, samples=9, dim=2)
      >>> problem.regularizer, problem.regularizer.quadratic()
      (NoRegularizer(), 0.0)
    """

    def value(self, w: Array) -> Array:
        return jnp.zeros_like(w, shape=w.shape[:-1])

    def gradient(self, w: Array) -> Array:
        return jnp.zeros_like(w)

    def prox(self, point: Array, step: Array) -> Array:
        return point

    def quadratic(self) -> float:
        return 0.0

    def growth(self, dim: int) -> tuple[float, float]:
        return 0.0, 0.0


@module
class L1:
    r""":math:`R(w)=\|w\|_1`, with :math:`\mathrm{sign}(0)=0`.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> regularizer, w = fl.problems.L1(), jnp.array([3.0, -1.5])
      >>> float(regularizer.value(w)), regularizer.prox(w[None], jnp.ones((1, 1)))[0].tolist()
      (4.5, [2.0, -0.5])
    """

    def value(self, w: Array) -> Array:
        return jnp.sum(jnp.abs(w), axis=-1)

    def gradient(self, w: Array) -> Array:
        return jnp.sign(w)

    def prox(self, point: Array, step: Array) -> Array:
        return soft_threshold(point, step)

    def quadratic(self) -> None:
        return None

    def growth(self, dim: int) -> tuple[float, float]:
        return 0.0, 2 * dim**0.5


@module
class SquaredL2:
    r""":math:`R(w)=\|w\|^2` (no factor one half: Gauthier 2024, (3.24)).

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> regularizer, w = fl.problems.SquaredL2(), jnp.array([3.0, -1.0])
      >>> float(regularizer.value(w)), regularizer.gradient(w).tolist()
      (10.0, [6.0, -2.0])
    """

    def value(self, w: Array) -> Array:
        return jnp.sum(w**2, axis=-1)

    def gradient(self, w: Array) -> Array:
        return 2 * w

    def prox(self, point: Array, step: Array) -> Array:
        return point / (1 + 2 * step)

    def quadratic(self) -> float:
        return 1.0

    def growth(self, dim: int) -> tuple[float, float]:
        return 2.0, 0.0


@module
class ElasticNet:
    r""":math:`R(w)=\lambda_1\|w\|_1+\lambda_2\|w\|^2` (Gauthier 2024, section 3.4.1).

    Args:
      l1: :math:`\lambda_1\ge0`.
      l2: :math:`\lambda_2\ge0`.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> regularizer = fl.problems.ElasticNet(l1=1.0, l2=0.5)
      >>> float(regularizer.value(jnp.array([3.0, -1.0])))  # 4 + 0.5 * 10
      9.0
    """

    l1: Float[Array, ""] | float
    l2: Float[Array, ""] | float

    def validate(self) -> None:
        checks.nonnegative("l1", self.l1)
        checks.nonnegative("l2", self.l2)

    def value(self, w: Array) -> Array:
        return self.l1 * jnp.sum(jnp.abs(w), axis=-1) + self.l2 * jnp.sum(w**2, axis=-1)

    def gradient(self, w: Array) -> Array:
        return self.l1 * jnp.sign(w) + 2 * self.l2 * w

    def prox(self, point: Array, step: Array) -> Array:
        return soft_threshold(point, step * self.l1) / (1 + 2 * step * self.l2)

    def quadratic(self) -> None:
        return None

    def growth(self, dim: int) -> tuple[Array | float, Array | float]:
        return 2 * self.l2, 2 * self.l1 * dim**0.5
