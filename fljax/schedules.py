"""Step sizes that change from round to round: pytrees, so their numbers can be swept.

(optax's schedules are closures: their numbers are compiled in, and two equal ones compare
unequal, which would cost a compilation per grid point.)
"""

from typing import Any, Protocol, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module

__all__ = [
    "Constant",
    "GeometricDecay",
    "PowerDecay",
    "Schedule",
    "StepSize",
    "as_schedule",
]


class Schedule(Protocol):
    """A positive number for every round ``1, 2, ...``."""

    def __call__(self, round: Array) -> Array: ...


#: A schedule, or a positive number, which becomes a :class:`Constant` at construction.
StepSize: TypeAlias = Any


@module
class Constant:
    """The same ``value`` > 0 in every round."""

    value: Float[Array, ""] | float

    def validate(self) -> None:
        _check.positive("step size", self.value)

    def __call__(self, round: Array) -> Array:
        return jnp.asarray(self.value)


@module
class PowerDecay:
    r""":math:`a\,n^{-p}` in round :math:`n`.

    The source asks only for a step that vanishes (Gauthier 2024, Assumption 3); its sum must
    diverge too, or the iterates stall, hence :math:`p\le1`.

    Args:
      initial: :math:`a>0`, the value of round 1.
      power: :math:`0\le p\le1`; one half by default.
    """

    initial: Float[Array, ""] | float
    power: Float[Array, ""] | float = 0.5

    def validate(self) -> None:
        _check.positive("initial step size", self.initial)
        _check.interval(
            "power",
            self.power,
            at_least=0,
            at_most=1,
            hint="A faster decay makes the sum of the steps finite and the run stalls.",
        )

    def __call__(self, round: Array) -> Array:
        dtype = jnp.result_type(self.initial)
        return self.initial * round.astype(dtype) ** -self.power


def as_schedule(value: StepSize) -> Schedule:
    """A number as a :class:`Constant`; a schedule unchanged."""
    return value if callable(value) else Constant(value)  # pyright: ignore[reportReturnType]


@module
class GeometricDecay:
    r""":math:`a\,r^n` in round :math:`n`, as the inter-cluster 0.4 * 0.98^n of figure 5.3.

    Args:
      initial: :math:`a\ge0`, what a round 0 would have.
      factor: :math:`r\in(0,1]`; 1 keeps it constant.
    """

    initial: Float[Array, ""] | float
    factor: Float[Array, ""] | float = 1.0

    def validate(self) -> None:
        _check.nonnegative("initial value", self.initial)
        _check.interval("factor", self.factor, above=0, at_most=1)

    def __call__(self, round: Array) -> Array:
        dtype = jnp.result_type(self.initial)
        return self.initial * self.factor ** round.astype(dtype)
