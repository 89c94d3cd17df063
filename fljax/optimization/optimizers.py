"""Optimizers of optax, at clients or at a server, whose numbers can be swept."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype, module, static
from fljax._core.numerics import default_promotion
from fljax._core.optax_closures import is_transformation, split
from fljax.models.architecture import Layout
from fljax.optimization.schedules import Schedule, StepSize, as_schedule

if TYPE_CHECKING:
    import optax
from jax.tree_util import PyTreeDef

__all__ = ["Optimizer", "as_optimizer", "as_step", "from_optax"]


#: The gradient of an optimizer's trial step, far larger than the noise that some optimizers add.
TRIAL_GRADIENT = [1e3, -2e3]

#: Parameters of a model without a network, for that trial.
ROW = Layout.of_row(len(TRIAL_GRADIENT))

#: The description of such a model in error messages.
ONE_ROW = "is one row of numbers"


class Optimizer:
    """An optimizer with its state; made by :func:`from_optax`.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = from_optax(optax.sgd, learning_rate=0.5)
      >>> model, _ = optimizer.move(jnp.ones(2), jnp.ones(2), optimizer.init(jnp.ones(2)))
      >>> model.tolist()
      [0.5, 0.5]
    """

    @checks.required
    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        """The optimizer as an optax transformation."""
        raise NotImplementedError

    def init(self, model: Float[Array, "*batch dim"], layouts: Sequence[Layout] = ()) -> PyTree:
        """The initial state for one model, or for each of several.

        Args:
          model: ``[D]`` or ``[M, D]``.
          layouts: the layout of the parameters in the row, so that optax sees a network's own
            parameters, or the parameters of each model that the row is joined of, each with a state
            of its own; by default the row is the only parameter.
        """
        start = self.transformation().init
        chosen_layouts = layouts or (Layout.of_row(model.shape[-1]),)

        def init_one(model: Array) -> PyTree:
            return [start(tree) for tree in _trees(model, chosen_layouts)]

        with default_promotion():
            return init_one(model) if model.ndim == 1 else jax.vmap(init_one)(model)

    def move(
        self,
        model: Float[Array, "*batch dim"],
        gradient: Float[Array, "*batch dim"],
        memory: PyTree,
        layouts: Sequence[Layout] = (),
    ) -> tuple[Float[Array, "*batch dim"], PyTree]:
        """The model, or each of several, after one step of the optimizer, and the new state.

        Args:
          model: ``[D]`` or ``[M, D]``.
          gradient: of the objective at the model, or of each at its own, with the model's shape;
            the optimizer itself decides on the sign and length of its step.
          memory: the state of :meth:`init` or of the last step.
          layouts: as in :meth:`init`.
        """
        update = self.transformation().update
        chosen_layouts = layouts or (Layout.of_row(model.shape[-1]),)

        def move_one(model: Array, row_gradient: Array, memory: PyTree) -> tuple[Array, PyTree]:
            rows = []
            after = []
            trees = (_trees(row, chosen_layouts) for row in (row_gradient, model))
            for layout, gradient, parameters, old in zip(
                chosen_layouts, *trees, memory, strict=True
            ):
                change, new = update(gradient, old, parameters)
                rows.append(layout.row(change))
                after.append(new)
            change = rows[0] if len(rows) == 1 else jnp.concatenate(rows)
            return jnp.asarray(model + change, model.dtype), after

        with default_promotion():
            return (move_one if model.ndim == 1 else jax.vmap(move_one))(model, gradient, memory)

    def check(self, layout: Layout) -> None:
        """Raise ``ValueError`` unless a step of a model with such parameters is such a model, and
        the state fits the next step.
        """
        _check_moves(*_abstract(self), layout)
        if not _moves_rows(self):  # such steps were not tried when it was made
            _check_first(self.transformation(), layout)


def _trees(row: Array, layouts: Sequence[Layout]) -> list[PyTree]:
    """The parameters of each of the models that a row is joined of."""
    ends = np.cumsum([layout.dim for layout in layouts])[:-1].tolist()
    rows = jnp.split(row, ends) if ends else [row]
    return [layout.parameters(part) for layout, part in zip(layouts, rows, strict=True)]


@module
class _Optax(Optimizer):
    """A transformation whose numbers are leaves; :func:`from_optax` makes it."""

    make: Callable[..., "optax.GradientTransformation"] = static()
    structure: tuple[tuple[str, Any], ...] = static()
    numbers: Mapping[str, Any]

    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        import optax

        numbers = {name: _from_zero(number) for name, number in self.numbers.items()}
        return optax.with_extra_args_support(self.make(**dict(self.structure), **numbers))


@module
class _Existing(Optimizer):
    """An existing transformation, compiled into the program."""

    given: Any = static()

    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        import optax

        return optax.with_extra_args_support(self.given)


def _from_zero(number: object) -> Any:
    """A schedule as optax takes it: of steps counted from zero."""
    return (lambda count: number(count + 1)) if callable(number) else number


@checked
def from_optax(make: Callable[..., "optax.GradientTransformation"], **arguments: Any) -> Optimizer:
    """An optimizer of optax whose numbers can be swept like any other part's.

    An optimizer sees the parameters of the problem's network as the library has them, a tree of
    arrays with its paths: masks, groups of parameters with an optimizer of their own
    (``optax.multi_transform``) and rules that go by matrices (``optax.lamb``,
    ``optax.contrib.muon``) work as in optax. Without a network they see the model as one row. Where
    an algorithm trains several models or a part of one, each is a tree of its own, with ``None``
    for parameters that are not trained.

    Optax returns a closure with its numbers compiled in, so each value would need its own program.
    Here the floats among the arguments, and among schedules of :mod:`fljax.schedules`, stay
    numbers, except where optax must know them to build the optimizer; integers, booleans and
    the like are structure, as is a function of optax's step count. A schedule counts the steps of
    the optimizer: at clients whose optimizer restarts in every round, the steps within the round.

    Args:
      make: a function of optax that makes a transformation, such as ``optax.adam``.
      arguments: its arguments, by name.

    Raises:
      TypeError: arguments that ``make`` does not have, or that cannot be structure; a ``make`` that
        does not return a transformation.
      ValueError: arguments rejected by optax; a swept number that optax must know; an optimizer
        that cannot update the problem's model by its gradient alone, or whose first step is not
        finite or an ascent step, as with a negative learning rate.

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

    def used(transformation: object) -> Any:
        _check_transformation(transformation)
        return _trial_step(transformation)

    structure, numbers = split(
        make,
        arguments,
        used,
        remedy_swept="sweep a step size of the algorithm's own",
        remedy_unhashable="make the transformation with optax and give it as it is",
    )
    optimizer = _Optax(make, structure, numbers)
    _check_rows(optimizer)
    return optimizer


def as_optimizer(value: object) -> Optimizer:
    """Convert an optax transformation to an optimizer; results of :func:`from_optax` are returned
    unchanged.

    Raises:
      TypeError: neither.
      ValueError: as for :func:`from_optax`.

    Example:
      >>> import optax, fljax as fl
      >>> optimizer = fl.optimizers.as_optimizer(optax.adam(0.01))
      >>> fl.optimizers.as_optimizer(optimizer) is optimizer
      True
    """
    if isinstance(value, Optimizer):
        return value
    _check_transformation(value)
    optimizer = _Existing(value)
    _check_rows(optimizer)
    return optimizer


def as_step(value: "StepSize | Optimizer | optax.GradientTransformation") -> Schedule | Optimizer:
    """Convert a client's step size to a schedule, or its optimizer to an optimizer.

    Raises:
      TypeError, ValueError: as :func:`~fljax.schedules.as_schedule` and :func:`as_optimizer`.

    Example:
      >>> import fljax as fl
      >>> fl.optimizers.as_step(0.5)
      Constant(value=0.5)
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


def check_optimizer(value: object, layout: Layout) -> None:
    """Raise ``ValueError`` for an optimizer, if it is one, that cannot move such parameters."""
    if isinstance(value, Optimizer):
        value.check(layout)


def _check_transformation(value: object) -> None:
    if not is_transformation(value):
        raise TypeError(
            "an optimizer must be an optax.GradientTransformation, such as optax.adam(0.01), or "
            f"fljax.optimizers.from_optax(optax.adam, learning_rate=0.01), got "
            f"{checks.shown(value)}."
        )


class _CannotMove(ValueError):
    """An optimizer that fails on a model's parameters."""


def _step(
    transformation: Any, parameters: PyTree, gradient: PyTree = None
) -> tuple[PyTree, PyTree, PyTree]:
    """A first step's change, along a gradient of zeros by default, and the states before and after
    it.
    """
    import optax

    memory = transformation.init(parameters)
    update = optax.with_extra_args_support(transformation).update
    change, after = update(parameters if gradient is None else gradient, memory, parameters)
    return change, memory, after


def _trial_step(transformation: object) -> Any:
    """A step of a row of numbers, to see which numbers optax reads; nothing for an optimizer that
    cannot move a row, such as one that looks for a network's layers.
    """
    try:
        return _step(transformation, jnp.zeros(ROW.dim, float_dtype()))
    except jax.errors.ConcretizationTypeError:  # of a number that optax must know
        raise
    except Exception:  # a user's function of the parameters may raise anything
        return ()


def _check_rows(optimizer: Optimizer) -> None:
    """Raise ``ValueError`` for an optimizer that fits no model, as far as a row of numbers shows
    it; one that looks for a network's layers is tried once the network is known.
    """
    if _moves_rows(optimizer):
        _check_first(optimizer.transformation(), ROW)


def _moves_rows(optimizer: Optimizer) -> bool:
    """Whether it can move a model without a network."""
    try:
        _check_moves(*_abstract(optimizer), ROW)
    except _CannotMove:
        return False
    return True


def _abstract(optimizer: Optimizer) -> tuple[Any, tuple[Any, ...]]:
    """An optimizer's structure, and the shapes and types of its numbers."""
    leaves, structure = jax.tree.flatten(optimizer)
    return structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


@functools.lru_cache(maxsize=64)
def _check_moves(structure: PyTreeDef, shapes: tuple[Any, ...], layout: Layout) -> None:
    """Raise ``ValueError`` unless a step of a model with these parameters is such a model, and the
    state fits the next step.
    """
    parameters = layout.parameters(jnp.zeros(layout.dim, float_dtype()))
    kinds: list[Any] = []

    def traced(*numbers: Array) -> None:
        transformation = jax.tree.unflatten(structure, numbers).transformation()
        kinds.extend(map(_kinds, _step(transformation, parameters)))

    try:
        with default_promotion():
            jax.eval_shape(traced, *(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    except Exception as error:  # a user's function of the parameters may raise anything
        model = f"has the parameters {_paths(layout)}" if layout.paths[0] else ONE_ROW
        raise _CannotMove(
            f"the optimizer cannot move a model, which {model}, along its gradient alone: "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    change, before, after = kinds
    if change != _kinds(parameters):
        raise ValueError(
            "the optimizer must turn a gradient into a change of the parameters, of the same "
            f"shapes and types, {_kinds(parameters)}, and makes {change}."
        )
    if before != after:
        raise ValueError(
            "the optimizer's state must keep its shapes from step to step, and goes from "
            f"{before} to {after}."
        )


def _kinds(tree: PyTree) -> PyTree:
    """A tree's shapes and types."""
    return jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", tree)


def _paths(layout: Layout) -> str:
    """The first paths of a network's parameters."""
    more = ", ..." if len(layout.paths) > 6 else ""
    return ", ".join(layout.paths[:6]) + more


def _check_first(transformation: object, layout: Layout) -> None:
    """Raise ``ValueError`` for a step that is not finite, or leads up the objective."""
    gradient = np.resize(TRIAL_GRADIENT, layout.dim).astype(float_dtype())

    def verify(change: Array | np.ndarray) -> None:
        change = np.asarray(change)
        if not np.all(np.isfinite(change)):
            raise ValueError(
                f"the optimizer's step of the gradient {TRIAL_GRADIENT} is {change[:2].tolist()}; "
                "give it finite numbers, such as a learning rate > 0."
            )
        if np.dot(change, gradient) > 0:
            raise ValueError(
                f"the optimizer's step of the gradient {TRIAL_GRADIENT}, {change[:2].tolist()}, "
                "goes up the objective; is its learning rate negative, or does it lack one "
                "(optax.chain(..., optax.scale_by_learning_rate(0.1)))?"
            )

    with default_promotion():
        start, parameters = (
            layout.parameters(jnp.asarray(row)) for row in (0 * gradient, gradient)
        )
        change = layout.row(_step(transformation, start, parameters)[0])
    checks.check_when_concrete(verify, change)
