"""What optax makes of numbers: closures, taken apart so that their numbers can be swept.

Optax is loaded by those who use it, at the first use: it takes a tenth as long to load as JAX.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import jax.numpy as jnp

from fljax import _check
from fljax._module import as_leaf
from fljax._numerics import foreign

if TYPE_CHECKING:
    import optax

__all__ = ["is_transformation", "split"]


def is_transformation(value: Any) -> TypeGuard["optax.GradientTransformation"]:
    """Whether a value is a transformation of optax, which has made none where it is not loaded."""
    optax = sys.modules.get("optax")
    return optax is not None and isinstance(value, optax.GradientTransformation)


def split(
    make: Callable[..., Any],
    arguments: Mapping[str, Any],
    used: Callable[[Any], Any],
    *,
    swept: str,
    made: str,
) -> tuple[tuple[tuple[str, Any], ...], dict[str, Any]]:
    """The arguments that are structure, and those that stay numbers.

    Floats stay numbers, but for those that optax must know to build what it makes; so do parts of
    the house that are made of numbers, such as schedules. Whole numbers and switches are structure.

    Args:
      make: a function of optax.
      arguments: of it, by name.
      used: what is done with what it makes, to see which numbers optax reads.
      swept: what to do about a number that optax must know and that is swept.
      made: what to do about arguments that can be neither.

    Raises:
      TypeError: arguments that ``make`` does not take, or that cannot be structure.
      ValueError: what optax refuses; a swept number that optax must know.
    """
    numbers, structure = {}, {}
    for name, value in arguments.items():
        leaf = value if isinstance(value, int) else as_leaf(value)
        is_float = jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.floating)
        is_part = callable(value) and not jax.tree_util.all_leaves([value])
        (numbers if is_float or is_part else structure)[name] = leaf

    stand_in = {
        n: float(v) if _check.is_concrete(v) else v if callable(v) else 0.5
        for n, v in numbers.items()
    }

    def reads(name: str) -> bool:
        """Whether optax must know this number to build what it makes."""

        def first(number: Any) -> Any:
            return used(make(**structure | stand_in | {name: number}))

        try:
            with foreign():
                jax.eval_shape(first, numbers[name])
        except jax.errors.ConcretizationTypeError:
            return True
        return False

    for name in [name for name, number in numbers.items() if not callable(number)]:
        if not reads(name):
            continue
        if not _check.is_concrete(numbers[name]):
            raise ValueError(
                f"optax reads {name} while it builds {make.__name__}, so it cannot be swept as a "
                f"number: make it structure, grid={{..: fl.static([...])}}, or {swept}."
            )
        structure[name] = float(numbers.pop(name))
    known = tuple(sorted(structure.items()))
    try:
        hash(known)
    except TypeError:
        raise TypeError(
            f"the arguments of {make.__name__} must be numbers, switches or names; {made}."
        ) from None
    return known, numbers
