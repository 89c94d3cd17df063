"""Split the arguments of optax's functions into static values and numbers that can be swept.

Optax returns closures over its arguments, which are not pytrees; so the library stores the function
and its arguments instead. Optax is imported at the first use: it takes a tenth as long as JAX.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import jax.numpy as jnp

from fljax._core import checks
from fljax._core.module import as_leaf
from fljax._core.numerics import default_promotion

if TYPE_CHECKING:
    import optax


def is_transformation(value: object) -> TypeGuard["optax.GradientTransformation"]:
    """Whether a value is a transformation of optax; if optax is not imported, it cannot be."""
    optax = sys.modules.get("optax")
    return optax is not None and isinstance(value, optax.GradientTransformation)


def split(
    make: Callable[..., Any],
    arguments: Mapping[str, Any],
    evaluate: Callable[[Any], Any],
    *,
    remedy_swept: str,
    remedy_unhashable: str,
) -> tuple[tuple[tuple[str, Any], ...], dict[str, Any]]:
    """Split the arguments of an optax function into static ones and numbers.

    Floats are numbers, unless optax reads them in Python while it builds its result, as in
    ``if momentum > 0``. Modules of numbers, such as schedules, are numbers, too. Integers and
    switches are static.

    Args:
      make: a function of optax.
      arguments: its arguments by name.
      evaluate: uses the result of ``make``. It is traced to find the numbers that optax reads.
      remedy_swept: what to do about a swept number that optax reads, for the error.
      remedy_unhashable: what to do about an argument that can be neither, for the error.

    Returns:
      Sorted pairs of static arguments, and the numbers by name.

    Raises:
      TypeError: arguments that ``make`` does not have, or that are unhashable.
      ValueError: arguments that optax refuses; a swept number that optax reads.
    """
    numbers = {}
    structure = {}
    for name, value in arguments.items():
        leaf = value if isinstance(value, int) else as_leaf(value)
        is_float = jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating)
        is_part = callable(value) and not jax.tree_util.all_leaves([value])
        (numbers if is_float or is_part else structure)[name] = leaf

    concrete = {
        n: float(v) if checks.is_concrete(v) else v if callable(v) else 0.5
        for n, v in numbers.items()
    }

    def is_read(name: str) -> bool:
        """Whether optax reads this number in Python, which fails for a tracer."""

        def first(number: object) -> Any:
            return evaluate(make(**structure | concrete | {name: number}))

        try:
            with default_promotion():
                jax.eval_shape(first, numbers[name])
        except jax.errors.ConcretizationTypeError:
            return True
        return False

    for name in [name for name, number in numbers.items() if not callable(number)]:
        if not is_read(name):
            continue
        if not checks.is_concrete(numbers[name]):
            raise ValueError(
                f"optax reads {name} while it builds {make.__name__}, so it cannot be swept as a "
                f"number: make it structure, grid={{..: fl.static([...])}}, or {remedy_swept}."
            )
        structure[name] = float(numbers.pop(name))
    static_arguments = tuple(sorted(structure.items()))
    try:
        hash(static_arguments)
    except TypeError:
        raise TypeError(
            f"the arguments of {make.__name__} must be numbers, switches or names; "
            f"{remedy_unhashable}."
        ) from None
    return static_arguments, numbers
