r"""Gradient descent on any objective: step rules, stopping rules, perturbed and projected steps.

.. math:: w^{(t+1)}=\mathcal P\big(w^{(t)}-\eta_tf'(w^{(t)})+\varepsilon^{(t)}\big)

(Jung 2025, Algorithm 2 with (87) and (91).) A step rule is a number, a schedule or any
transformation of optax; a projection is any function of the point, such as one of
:mod:`optax.projections` or :func:`fljax.graphs.agreed`. The whole is one ``lax.while_loop``, which
can be compiled and mapped over starts, objectives and steps.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax._core.optax_closures import is_transformation
from fljax.optimization.schedules import StepSize, as_schedule

if TYPE_CHECKING:
    import optax

__all__ = ["Descent", "Extremes", "backtracking", "minimize", "optimal_step", "rounds_needed"]


class Descent(NamedTuple):
    """Result of a gradient descent."""

    point: Array  # as the start
    rounds: Int[Array, ""]  # steps taken
    value: Float[Array, ""]  # of the objective at the point
    settled: Bool[Array, ""]  # whether its last step changed the value by the tolerance at most


@checked
def minimize(
    objective: Callable[[Array], Array],
    start: object,
    step: StepSize,
    rounds: int,
    *,
    tolerance: Float[Array, ""] | float | None = None,
    gradient: Callable[[Array], Array] | None = None,
    perturbation: Callable[[Array, Array], Array] | None = None,
    projection: Callable[[Array], Array] | None = None,
) -> Descent:
    r"""Gradient descent from ``start``: Algorithm 2, the blueprint of gradient-based methods.

    Args:
      objective: :math:`f`, a function from a point to one number.
      start: :math:`w^{(0)}`, an array of any shape.
      step: :math:`\eta_t`, a number > 0, a schedule of :math:`t+1=1,2,\dots`, or a transformation
        of optax that computes the step from the gradient, such as :func:`backtracking`,
        ``optax.sgd(0.1, momentum=0.9)`` or ``optax.adam(0.1)``.
      rounds: maximum number of steps, >= 1; for instance that of :func:`rounds_needed`.
      tolerance: stop where :math:`|f(w^{(t)})-f(w^{(t+1)})|` is at most this, >= 0; by default all
        steps are taken.
      gradient: a function of the point that replaces the objective's derivative: an estimate, or
        the gradient of a surrogate.
      perturbation: ``(t + 1, w) -> epsilon``, added to the step from ``w``. An error ``e`` of the
        gradient corresponds to a perturbation ``-step * e``.
      projection: :math:`\mathcal P`, maps points to feasible ones.

    Returns:
      The final point, the number of steps, its value, and whether the tolerance was reached.

    Raises:
      TypeError: an objective that is not one number; an argument that is not a function.
      ValueError: a gradient, perturbation or projection of another shape than the point; a step
        that is not positive, no rounds, a negative tolerance.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> hessian = jnp.diag(jnp.array([1.0, 4.0]))
      >>> def objective(w):
      ...     return w @ hessian @ w - jnp.sum(w)
      >>> step = fl.descent.optimal_step(1.0, 4.0)
      >>> minimum = fl.descent.minimize(objective, jnp.zeros(2), step, 100, tolerance=1e-9)
      >>> [round(float(w), 3) for w in minimum.point], bool(minimum.settled)
      ([0.5, 0.125], True)

      Projected gradient descent of two nodes that share the first of two parameters:

      >>> import functools
      >>> labels = jnp.array([[0.0, 1.0], [2.0, 5.0]])
      >>> project = functools.partial(fl.graphs.agreed, shared=jnp.array([True, False]))
      >>> minimum = fl.descent.minimize(
      ...     lambda w: jnp.sum((w - labels) ** 2), jnp.zeros((2, 2)), 0.25, 50, projection=project
      ... )
      >>> minimum.point.round(3).tolist()
      [[1.0, 1.0], [1.0, 5.0]]

    Reference:
      Jung 2025, Algorithm 2, (77), (87) and (91).
    """
    checks.count("rounds", rounds)
    if tolerance is not None:
        checks.nonnegative("tolerance", tolerance)
    rule = _rule(step)
    given = checks.filled("start", start)
    checks.finite("start", given)
    real = jnp.issubdtype(given.dtype, jnp.floating)
    start = jnp.asarray(given, given.dtype if real else float_dtype())
    shape = jax.eval_shape(objective, start)
    if getattr(shape, "shape", None) != ():
        raise TypeError(f"objective must return one number for a point, got {checks.shown(shape)}.")
    for name, function, arguments in (
        ("gradient", gradient, (start,)),
        ("projection", projection, (start,)),
        ("perturbation", perturbation, (jnp.ones((), jnp.int32), start)),
    ):
        if function is not None:
            _check_matches(name, jax.eval_shape(function, *arguments), start)
    project = (lambda w: w) if projection is None else projection

    def evaluated(point: Array) -> tuple[Array, Array]:
        if gradient is not None:
            return objective(point), gradient(point)
        return jax.value_and_grad(objective)(point)

    def unfinished(carry: tuple) -> Array:
        _, _, _, _, number, settled = carry
        return (number < rounds) & ~settled

    def step_once(carry: tuple) -> tuple:
        point, value, direction, memory, number, _ = carry
        change, memory = rule.update(
            direction, memory, point, value=value, grad=direction, value_fn=objective
        )
        moved = point + change
        if perturbation is not None:
            moved = moved + perturbation(number + 1, point)
        moved = project(moved)
        after, direction = evaluated(moved)
        settled = jnp.zeros((), bool) if tolerance is None else jnp.abs(value - after) <= tolerance
        return moved, after, direction, memory, number + 1, settled

    initial = (
        start,
        *evaluated(start),
        rule.init(start),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
    )
    point, value, _, _, number, settled = jax.lax.while_loop(unfinished, step_once, initial)
    return Descent(point, number, value, settled)


def _check_matches(name: str, value: Any, start: Array) -> None:
    """Raise unless a function of the point returns the point's shape and type."""
    dtype = getattr(value, "dtype", None)
    if getattr(value, "shape", None) != start.shape or dtype is None:
        raise ValueError(
            f"{name} must return an array of the point's shape {start.shape}, got "
            f"{checks.shown(value) if dtype is None else f'shape {value.shape}'}."
        )
    if name == "projection" and dtype != start.dtype:
        raise TypeError(
            f"projection must return {start.dtype}, as the point is, got {dtype}; "
            "convert it with .astype(w.dtype)."
        )


def _rule(step: object) -> "optax.GradientTransformationExtraArgs":
    import optax

    if is_transformation(step):
        return optax.with_extra_args_support(step)
    schedule = as_schedule(step)
    return optax.with_extra_args_support(optax.sgd(lambda count: schedule(count + 1)))  # pyright: ignore[reportArgumentType]


@checked
def backtracking(
    largest: Float[Array, ""] | float = 1.0,
    shrink: Float[Array, ""] | float = 0.5,
    sufficient: Float[Array, ""] | float = 1e-4,
    trials: int = 40,
) -> "optax.GradientTransformationExtraArgs":
    r"""The backtracking step rule: in every round, ``largest`` is multiplied by ``shrink`` until
    :math:`f(w-\eta f'(w))\le f(w)-c\,\eta\|f'(w)\|^2` (Armijo), as optax searches.

    Args:
      largest: the initial step, > 0.
      shrink: in (0, 1).
      sufficient: :math:`c`, in (0, 1); the source does not specify it; 1e-4 is the textbook value.
      trials: maximum number of trials.

    Raises:
      ValueError: numbers outside their ranges.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> rule = fl.descent.backtracking(largest=10.0)
      >>> minimum = fl.descent.minimize(lambda w: jnp.sum((w - 3) ** 4), jnp.zeros(2), rule, 50)
      >>> bool(minimum.value < 1e-4)
      True

    Reference:
      Jung 2025, section 4.2.
    """
    checks.positive("largest", largest)
    for name, value in (("shrink", shrink), ("sufficient", sufficient)):
        checks.interval(name, value, above=0, below=1)
    checks.count("trials", trials)
    import optax

    search = optax.scale_by_backtracking_linesearch(
        trials,
        slope_rtol=sufficient,
        decrease_factor=shrink,
        increase_factor=math.inf,
        max_learning_rate=largest,
    )
    return optax.chain(optax.sgd(1.0), search)


class Extremes(NamedTuple):
    r"""The extreme eigenvalues of :math:`Q` in :math:`w^\top Qw+q^\top w`, half the
    Hessian's, and their implications for gradient steps :math:`w-\eta(2Qw+q)`, section 4.3.
    """

    smallest: Array | float  # []
    largest: Array | float  # []

    @property
    def step_limit(self) -> Float[Array, ""]:
        r"""Steps below :math:`1/\lambda_d` converge, (85), since (81) is then below one; at this
        limit some iterates never converge, beyond it they diverge.
        """
        return 1 / jnp.asarray(self.largest)

    @property
    def best_step(self) -> Float[Array, ""]:
        r""":math:`1/(\lambda_1+\lambda_d)`, (83): the step with the fastest convergence from the
        worst start.
        """
        return 1 / jnp.asarray(self.smallest + self.largest)

    @property
    def best_factor(self) -> Float[Array, ""]:
        r""":math:`(\lambda_d-\lambda_1)/(\lambda_d+\lambda_1)`, (84) and (86)."""
        return jnp.asarray((self.largest - self.smallest) / (self.largest + self.smallest))

    @property
    def condition(self) -> Float[Array, ""]:
        r""":math:`\lambda_d/\lambda_1`, section 7.1; infinite where :math:`Q` is singular."""
        smallest = jnp.asarray(self.smallest)
        largest = jnp.asarray(self.largest)
        return jnp.where(smallest > 0, largest / jnp.where(smallest > 0, smallest, 1), jnp.inf)

    def factor(self, step_size: Float[Array, "*steps"] | float) -> Float[Array, "*steps"]:
        r""":math:`\kappa^{(\eta)}=\max\{|1-2\eta\lambda_1|,|1-2\eta\lambda_d|\}`, (81): every step
        shrinks the distance to the solution by at least this factor, (80), and by exactly this
        factor from the worst start.
        """
        step = jnp.asarray(step_size)
        return jnp.maximum(
            jnp.abs(1 - 2 * step * self.smallest), jnp.abs(1 - 2 * step * self.largest)
        )


@checked
def optimal_step(
    smallest: Float[Array, ""] | float, largest: Float[Array, ""] | float
) -> Float[Array, ""]:
    r""":math:`\eta^*=1/(\lambda_1+\lambda_D)`, the step size with the fastest convergence to the
    minimizer of :math:`w^\top Qw+q^\top w`: every step shrinks the distance by
    :math:`\kappa^*=(\lambda_D-\lambda_1)/(\lambda_D+\lambda_1)` at least.

    Args:
      smallest: :math:`\lambda_1>0`, of :math:`Q`, which is half the Hessian.
      largest: :math:`\lambda_D\ge\lambda_1`.

    Raises:
      ValueError: eigenvalues that are not positive, or in the other order.

    Example:
      >>> import fljax as fl
      >>> float(fl.descent.optimal_step(1.0, 4.0))
      0.2...

    Reference:
      Jung 2025, (83).
    """
    checks.positive("smallest", smallest)
    checks.positive("largest", largest)
    checks.check_when_concrete(_check_order, smallest, largest)
    return Extremes(smallest, largest).best_step


def _check_order(smallest: ArrayLike, largest: ArrayLike) -> None:
    if np.any(np.asarray(smallest) > np.asarray(largest)):
        raise ValueError(
            f"smallest must be an eigenvalue <= largest, got {smallest} and {largest}; swap them."
        )


@checked
def rounds_needed(
    distance: Float[Array, "*some"] | float,
    accuracy: Float[Array, "*some"] | float,
    factor: Float[Array, "*some"] | float,
) -> Float[Array, "*some"]:
    r"""The number of steps that guarantees :math:`\|w^{(t)}-\hat w\|\le\epsilon`, known in advance:
    :math:`\lceil\log(\|w^{(0)}-\hat w\|/\epsilon)/\log(1/\kappa)\rceil`.

    Zero if the start is already that close, one if :math:`\kappa=0`, infinity if
    :math:`\kappa\ge1`.

    Args:
      distance: distance of the start from the minimizer, > 0, or an upper bound of it.
      accuracy: :math:`\epsilon>0`.
      factor: :math:`\kappa\ge0`, the factor by which a step shrinks the distance at least.

    Raises:
      ValueError: numbers outside their ranges.

    Example:
      >>> import fljax as fl
      >>> int(fl.descent.rounds_needed(distance=10.0, accuracy=1e-3, factor=0.6))
      19

    Reference:
      Jung 2025, (82).
    """
    checks.positive("distance", distance)
    checks.positive("accuracy", accuracy)
    checks.nonnegative("factor", factor)
    factor, distance, accuracy = (
        jnp.asarray(value, float_dtype()) for value in (factor, distance, accuracy)
    )
    factor, gain = jnp.broadcast_arrays(factor, distance / accuracy)
    inside = (factor > 0) & (factor < 1)
    steps = jnp.log(gain) / -jnp.log(jnp.where(inside, factor, 0.5))
    # Whole numbers that rounding errors lift a little must not be rounded up.
    steps = jnp.ceil(steps * (1 - 4 * jnp.finfo(steps.dtype).eps))
    steps = jnp.where(factor == 0, 1, jnp.where(inside, steps, jnp.inf))
    return jnp.where(gain <= 1, 0, steps)
