"""Step-size schedules over rounds: pytrees whose numbers can be swept."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import check, checked, rule_of
from fljax._core.module import float_dtype, module, static
from fljax._core.optax_closures import split

__all__ = [
    "Constant",
    "GeometricDecay",
    "PowerDecay",
    "Schedule",
    "StepSize",
    "Warmup",
    "as_schedule",
    "from_optax",
]


@runtime_checkable
class Schedule(Protocol):
    """A positive number for every round ``1, 2, ...``.

    Example:
      A function of the round, from 1:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.FedAvg(lambda round: jnp.where(round < 20, 0.2, 0.05))
      >>> run = fl.run(fl.Simulation(problem, algorithm, metrics=["normalized_error"]), rounds=100)
      >>> bool(run.normalized_error[-1] < 0.01)
      True
    """

    def __call__(self, round: Array) -> Array: ...


#: A schedule, or a positive number, which becomes a :class:`Constant` at construction.
StepSize: TypeAlias = Any


@module
class Constant:
    """The same ``value`` > 0 in every round.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> float(fl.schedules.Constant(0.25)(jnp.asarray(100)))
      0.25
    """

    value: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("step size", self.value)

    def __call__(self, round: Array | int) -> Array:
        return jnp.asarray(self.value)


@module
class PowerDecay:
    r""":math:`a\,n^{-p}` in round :math:`n`.

    The source requires only a vanishing step (Gauthier 2024, Assumption 3); the sum of steps must
    diverge too, since otherwise the iterates stall, hence :math:`p\le1`.

    Args:
      initial: :math:`a>0`, the value in round 1.
      power: :math:`0\le p\le1`; one half by default.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> schedule = fl.schedules.PowerDecay(1.0, 0.5)
      >>> [round(step, 3) for step in schedule(jnp.array([1, 4, 100])).tolist()]
      [1.0, 0.5, 0.1]
    """

    initial: Float[Array, ""] | float
    power: Float[Array, ""] | float = 0.5

    def validate(self) -> None:
        checks.positive("initial step size", self.initial)
        checks.interval(
            "power",
            self.power,
            at_least=0,
            at_most=1,
            hint="A faster decay makes the sum of the steps finite and the run stalls.",
        )

    def __call__(self, round: Array | int) -> Array:
        dtype = jnp.result_type(self.initial)
        return self.initial * jnp.asarray(round).astype(dtype) ** -self.power


@module
class _Function:
    """A plain function of the round, compiled into the program."""

    function: Callable[[Array], Array] = static()

    def validate(self) -> None:
        try:
            inspect.signature(self.function).bind(1)
        except TypeError as error:
            raise TypeError(f"a schedule is a function of the round, {error}.") from None
        except ValueError:  # a callable without signature cannot be checked
            return
        values = []
        jax.eval_shape(lambda n: values.append(self.function(n)), jnp.ones((), jnp.int32))
        if not checks.is_real(values[0]) or np.ndim(values[0]):
            raise TypeError(
                f"a schedule must return one number for a round, got {checks.shown(values[0])}."
            )
        check_rounds("a schedule", self, 1)

    def __call__(self, round: Array) -> Array:
        return jnp.asarray(self.function(round), float_dtype())


@dataclasses.dataclass(frozen=True)
class _FromZero:
    """A function of optax of steps that are counted from zero, as one of the round."""

    schedule: Callable[[Array], Array]

    def __call__(self, round: Array) -> Array:
        return self.schedule((jnp.asarray(round) - 1).astype(float_dtype()))


def check_rounds(name: str, schedule: Schedule, rounds: int) -> None:
    """Raise ``ValueError`` where the value in one of the rounds is negative or NaN."""
    with jax.ensure_compile_time_eval():  # values that depend on no tracer are concrete
        values = jax.vmap(schedule)(jnp.arange(1, rounds + 1, dtype=jnp.int32))
    where = "in round 1" if rounds == 1 else f"in all of {rounds} rounds"
    checks.nonnegative(f"{name} {where}", values, "A step against its sign leads uphill.")


def check_length(owner: Any, rounds: int) -> None:
    """Raise ``ValueError`` where a schedule of a part, from optax or a plain function, takes an
    invalid value within this number of rounds. For other schedules their parameters are checked.
    """
    for field in dataclasses.fields(owner):
        if isinstance(schedule := getattr(owner, field.name), _Function | _Optax):
            check_rounds(field.name, schedule, rounds)


def as_schedule(value: StepSize) -> Schedule:
    """Convert a number to a :class:`Constant`; schedules and functions of the round are accepted
    too. A schedule of optax, which counts steps from 0, has its step 0 in round 1.

    Raises:
      TypeError: none of these, a function of other arguments, or one that does not return a number.

    Example:
      >>> import jax.numpy as jnp, optax, fljax as fl
      >>> fl.schedules.as_schedule(0.5)
      Constant(value=0.5)
      >>> halving = fl.schedules.as_schedule(optax.exponential_decay(1.0, 1, 0.5))
      >>> [float(halving(jnp.asarray(number))) for number in (1, 2, 3)]
      [1.0, 0.5, 0.25]
    """
    if not callable(value):
        check("a step size, where it is no schedule,", value, rule_of(float))
        return Constant(value)
    schedule: Any = value
    if isinstance(value, type):
        raise TypeError(f"a step size must be a number or a schedule, got {checks.shown(value)}.")
    if not jax.tree_util.all_leaves([schedule]):
        return schedule
    module_name = str(getattr(schedule, "__module__", None))
    return _Function(_FromZero(schedule) if module_name.partition(".")[0] == "optax" else schedule)


@module
class GeometricDecay:
    r""":math:`a\,r^n` in round :math:`n`, as the inter-cluster 0.4 * 0.98^n of figure 5.3.

    Args:
      initial: :math:`a\ge0`, the value in a hypothetical round 0.
      factor: :math:`r\in(0,1]`; 1 keeps it constant.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> schedule = fl.schedules.GeometricDecay(8.0, 0.5)
      >>> schedule(jnp.array([1, 2, 3])).tolist()
      [4.0, 2.0, 1.0]
    """

    initial: Float[Array, ""] | float
    factor: Float[Array, ""] | float = 1.0

    def validate(self) -> None:
        checks.nonnegative("initial value", self.initial)
        checks.interval("factor", self.factor, above=0, at_most=1)

    def __call__(self, round: Array | int) -> Array:
        dtype = jnp.result_type(self.initial)
        return self.initial * self.factor ** jnp.asarray(round).astype(dtype)


@module
class Warmup:
    r"""From ``initial`` in round 1 along a line to ``final`` in round ``1 + rounds``, then
    constant:

    .. math:: a+(b-a)\min\Big(1,\frac{n-1}r\Big)

    Args:
      initial: :math:`a>0`.
      final: :math:`b>0`.
      rounds: :math:`r>0`, not necessarily an integer.

    Raises:
      ValueError: a number that is not positive.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> schedule = fl.schedules.Warmup(0.25, 1.0, rounds=3.0)
      >>> [float(schedule(jnp.asarray(n))) for n in (1, 2, 4, 9)]
      [0.25, 0.5, 1.0, 1.0]
    """

    initial: Float[Array, ""] | float
    final: Float[Array, ""] | float
    rounds: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("initial step size", self.initial)
        checks.positive("final step size", self.final)
        checks.positive("rounds", self.rounds)

    def __call__(self, round: Array | int) -> Array:
        dtype = jnp.result_type(self.initial)
        part = jnp.minimum(1, (jnp.asarray(round).astype(dtype) - 1) / self.rounds)
        return self.initial + (self.final - self.initial) * part


@module
class _Optax:
    """A schedule of optax; :func:`from_optax` makes it."""

    make: Callable[..., Callable] = static()
    structure: tuple[tuple[str, Any], ...] = static()
    numbers: Mapping[str, Array]

    def __call__(self, round: Array | int) -> Array:
        count = (jnp.asarray(round) - 1).astype(float_dtype())
        return jnp.asarray(self.make(**dict(self.structure), **self.numbers)(count))


@checked
def from_optax(make: Callable[..., Callable], **arguments: Any) -> Schedule:
    """A schedule of optax whose numbers can be swept like any other part's.

    Optax returns a closure with its numbers compiled in, so each value would need its own program.
    Here the floats among the arguments stay numbers, except where optax must know them to build
    the schedule; integers, booleans and the like are structure.

    Args:
      make: a function of optax that makes a schedule, such as ``optax.cosine_decay_schedule``.
      arguments: its arguments, by name. optax counts steps from 0: step 0 is round 1 here.

    Returns:
      The schedule.

    Raises:
      TypeError: arguments that ``make`` does not have, or that cannot be structure.
      ValueError: arguments rejected by optax; a swept number that optax must know.

    Example:
      >>> import jax, optax, fljax as fl
      >>> def scenario(key, step):
      ...     schedule = fl.schedules.from_optax(
      ...         optax.cosine_decay_schedule, init_value=step, decay_steps=20
      ...     )
      ...     return fl.Simulation(
      ...         problem=fl.problems.least_squares(key, clients=4, samples=9, dim=2),
      ...         algorithm=fl.algorithms.FedAvg(schedule),
      ...         metrics=["normalized_error"],
      ...     )
      >>> study = fl.sweep(scenario, rounds=20, seeds=2, grid={"step": [0.05, 0.1, 0.2]})
      >>> study.attrs["compilations"]
      1
    """
    if not arguments:
        raise TypeError(
            "from_optax takes the function that makes a schedule, and its arguments by name: "
            "from_optax(optax.cosine_decay_schedule, init_value=0.1, decay_steps=100). A "
            "schedule made already can stand for itself; of an optimizer, such as "
            "optax.adam, take fljax.optimizers.from_optax(optax.adam, learning_rate=0.01)."
        )

    def used(schedule: Any) -> Any:
        if not callable(schedule):
            name = getattr(make, "__name__", "make")
            raise TypeError(
                f"{name} makes no schedule, which is a function of the step, but "
                f"{checks.shown(schedule)}; for an optimizer take "
                f"fljax.optimizers.from_optax({name}, ...)."
            )
        return jnp.asarray(schedule(jnp.zeros((), float_dtype())))

    structure, numbers = split(
        make,
        arguments,
        used,
        remedy_swept="sweep a factor of your own, a fl.module with __call__(self, n) = factor * "
        "schedule(n - 1)",
        remedy_unhashable="make the schedule with optax and give a function of the round, "
        "lambda n: schedule(n - 1)",
    )
    schedule = _Optax(make, structure, numbers)
    check_rounds(f"{getattr(make, '__name__', 'make')}'s value", schedule, 1)
    return schedule
