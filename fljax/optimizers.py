"""Optimizers of optax, at clients or at a server, whose numbers can be swept."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._arguments import checked
from fljax._module import float_dtype, module, static
from fljax._numerics import foreign
from fljax._optax import is_transformation, split
from fljax.schedules import Schedule, StepSize, as_schedule

if TYPE_CHECKING:
    import optax

__all__ = ["Optimizer", "as_optimizer", "as_step", "from_optax"]


#: A gradient of which optimizers take a step on trial, far above what noise some of them add.
TRIAL = [1e3, -2e3]


class Optimizer:
    """An optimizer with its state; made by :func:`from_optax`."""

    @_check.required
    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        """The optimizer as an optax transformation."""
        raise NotImplementedError

    def init(self, model: Float[Array, "*batch dim"]) -> Any:
        """The initial state for one model, or for each of several."""
        with foreign():
            start = self.transformation().init
            return start(model) if model.ndim == 1 else jax.vmap(start)(model)

    def move(
        self, model: Float[Array, "*batch dim"], slope: Float[Array, "*batch dim"], memory: Any
    ) -> tuple[Float[Array, "*batch dim"], Any]:
        """The model, or each of several, after a step along the negative gradient, and the new
        state.
        """
        update = self.transformation().update

        def one(model: Array, slope: Array, memory: Any) -> tuple[Array, Any]:
            change: Any
            change, memory = update(slope, memory, model)
            return jnp.asarray(model + change, model.dtype), memory

        with foreign():
            return (one if model.ndim == 1 else jax.vmap(one))(model, slope, memory)


@module
class _Optax(Optimizer):
    """Of numbers that are leaves; :func:`from_optax` makes it."""

    make: Callable[..., "optax.GradientTransformation"] = static()
    structure: tuple[tuple[str, Any], ...] = static()
    numbers: Mapping[str, Any]

    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        import optax

        given = {name: _counted(number) for name, number in self.numbers.items()}
        return optax.with_extra_args_support(self.make(**dict(self.structure), **given))


@module
class _Given(Optimizer):
    """An existing transformation, compiled into the program."""

    given: Any = static()

    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        import optax

        return optax.with_extra_args_support(self.given)


def _counted(number: Any) -> Any:
    """A schedule as optax takes it: of steps counted from zero."""
    return (lambda count: number(count + 1)) if callable(number) else number


@checked
def from_optax(make: Callable[..., "optax.GradientTransformation"], **arguments: Any) -> Optimizer:
    """An optimizer of optax whose numbers can be swept like those of any other part.

    Optax returns a closure with its numbers compiled in, so each value would need its own program.
    Here the floats among the arguments, and those of schedules of :mod:`fljax.schedules`, stay
    numbers, except for those that optax must know to build the optimizer; integers, booleans and
    the like are structure, as is a function of optax's step count. A schedule counts the steps of
    the optimizer: at clients whose optimizer restarts in every round, the steps within the round.

    Args:
      make: a function of optax that makes a transformation, such as ``optax.adam``.
      arguments: its arguments, by name.

    Raises:
      TypeError: arguments that ``make`` does not have, or that cannot be structure; a ``make`` that
        does not return a transformation.
      ValueError: arguments rejected by optax; a swept number that optax must know; an optimizer
        that cannot update a model given as one row of numbers, or whose first step is not finite or
        an ascent step, as with a negative learning rate.

    Example:
      >>> import jax, optax, fljax as fl
      >>> def scenario(key, rate):
      ...     adam = fl.optimizers.from_optax(optax.adam, learning_rate=rate, b1=0.8)
      ...     return fl.Simulation(
      ...         problem=fl.problems.least_squares(key, clients=4, samples=9, dim=2),
      ...         algorithm=fl.algorithms.FedAvg(adam, epochs=5),
      ...         metrics=["normalized_error"],
      ...     )
      >>> study = fl.sweep(scenario, rounds=20, seeds=2, grid={"rate": [0.05, 0.1, 0.2]})
      >>> study.attrs["compilations"]
      1
    """
    if not arguments:
        raise TypeError(
            "from_optax takes the function that makes a transformation, and its arguments by name: "
            "from_optax(optax.adam, learning_rate=0.01). A transformation that is made already can "
            "stand for itself."
        )

    def used(transformation: Any) -> Any:
        _check_transformation(transformation)
        return _step(transformation)

    known, numbers = split(
        make,
        arguments,
        used,
        swept="sweep a step size of the algorithm's own",
        made="make the transformation with optax and give it as it is",
    )
    optimizer = _Optax(make, known, numbers)
    _check_moves(optimizer)
    return optimizer


def as_optimizer(value: Any) -> Optimizer:
    """Convert an optax transformation to an optimizer; those of :func:`from_optax` are returned as
    they are.

    Raises:
      TypeError: neither.
      ValueError: one that cannot update a model given as one row of numbers.
    """
    if isinstance(value, Optimizer):
        return value
    _check_transformation(value)
    optimizer = _Given(value)
    _check_moves(optimizer)
    return optimizer


def as_step(value: "StepSize | Optimizer | optax.GradientTransformation") -> Schedule | Optimizer:
    """Convert a client's step size to a schedule, or its optimizer to an optimizer.

    Raises:
      TypeError, ValueError: as :func:`~fljax.schedules.as_schedule` and :func:`as_optimizer`.
    """
    if isinstance(value, Optimizer) or is_transformation(value):
        return as_optimizer(value)
    try:
        return as_schedule(value)
    except TypeError as error:
        if not callable(value):
            raise
        name = getattr(value, "__name__", "it")
        raise TypeError(
            f"{error} If {name} makes an optimizer, give what it makes, or "
            f"fljax.optimizers.from_optax({name}, ...)."
        ) from error


def _check_transformation(value: Any) -> None:
    if not is_transformation(value):
        raise TypeError(
            "an optimizer must be an optax.GradientTransformation, such as optax.adam(0.01), or "
            f"fljax.optimizers.from_optax(optax.adam, learning_rate=0.01), got "
            f"{_check.shown(value)}."
        )


def _step(transformation: Any, slope: Array | None = None) -> Any:
    import optax

    start = jnp.zeros(2, float_dtype())
    slope = start if slope is None else slope
    update = optax.with_extra_args_support(transformation).update
    return update(slope, transformation.init(start), start)


def _check_first(change: Any) -> None:
    """Raise ``ValueError`` for a step that is no number, or leads up the slope."""
    if not np.all(np.isfinite(change)):
        raise ValueError(
            f"the optimizer's step of the gradient {TRIAL} is {np.asarray(change).tolist()}; give "
            "it finite numbers, such as a learning rate > 0."
        )
    if np.dot(np.asarray(change), TRIAL) > 0:
        raise ValueError(
            f"the optimizer's step of the gradient {TRIAL}, {np.asarray(change).tolist()}, goes up "
            "the objective; is its learning rate negative, or does it lack one (optax.chain(..., "
            "optax.scale_by_learning_rate(0.1)))?"
        )


def _check_moves(optimizer: Optimizer) -> None:
    """Raise ``ValueError`` unless its step of a row of numbers is such a row, and its state fits
    the next step.
    """
    transformation = optimizer.transformation()
    with foreign():
        memory = jax.eval_shape(transformation.init, jnp.zeros(2, float_dtype()))
        try:
            change, after = jax.eval_shape(lambda: _step(transformation))
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise ValueError(
                "the optimizer cannot move a model, which is one row of numbers, along its "
                f"gradient alone: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            ) from error
    if jax.tree.structure(change) != jax.tree.structure(0) or change.shape != (2,):
        raise ValueError(
            "the optimizer must turn the gradient of a row of numbers into such a row, and makes "
            f"{_check.shown(change)} of one of shape (2,)."
        )
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), m) for m in (memory, after)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "the optimizer's state must keep its shapes from step to step, and goes from "
            f"{shapes[0]} to {shapes[1]}."
        )
    with foreign():
        change = _step(transformation, jnp.asarray(TRIAL, float_dtype()))[0]
    _check.known(_check_first, change)
