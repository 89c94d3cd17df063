"""Inputs of the accounting functions (numbers, NumPy or JAX arrays), and their checks."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fljax._core import annotations, checks
from fljax._core.module import float_dtype

F = TypeVar("F", bound=Callable)

Numbers: TypeAlias = ArrayLike | Sequence[float]
Result: TypeAlias = Any  # jax.Array if any argument is one, else np.ndarray or np.float64


def checked(function: F) -> F:
    """As of :mod:`fljax._core.annotations`. What exceeds the largest number is infinite, without
    NumPy's
    warning: as much is lost, or as much noise is needed, as no number can say.
    """
    return annotations.checked(np.errstate(over="ignore")(function))


def arrays(*values: Numbers) -> tuple[Any, ...]:
    """``numpy`` or ``jax.numpy``, then the values as its arrays, all of one float dtype."""
    jax_values = [v for v in values if isinstance(v, jax.Array)]
    if not jax_values:
        return np, *(np.asarray(v, np.float64) for v in values)
    floats = [v.dtype for v in jax_values if jnp.issubdtype(v.dtype, jnp.floating)]
    dtype = jnp.result_type(*floats) if floats else float_dtype()
    return jnp, *(jnp.asarray(v, dtype) for v in values)


def same_length(**values: Numbers) -> None:
    """Raise ``ValueError`` unless all are as long along their last axis, or single numbers."""
    lengths = {name: np.shape(value)[-1] for name, value in values.items() if np.ndim(value)}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"{' and '.join(lengths)} must be equally long, got lengths "
            f"{' and '.join(map(str, lengths.values()))}; give each release its own, or one number "
            "for all."
        )


def per_round(epsilon: Numbers, delta: Numbers) -> tuple[Any, ...]:
    """`arrays` of (epsilon, delta) releases ``[..., rounds]``; one number counts in every round."""
    same_length(epsilon=epsilon, delta=delta)
    xp, per_release, delta_per_release = arrays(epsilon, delta)
    rounds = max(per_release.shape[-1:], delta_per_release.shape[-1:])
    spread = (v if v.ndim else xp.broadcast_to(v, rounds) for v in (per_release, delta_per_release))
    return xp, *spread


def on_host(function: str, instead: str, **values: Numbers) -> list[np.ndarray]:
    """The values as float64 NumPy arrays; ``TypeError`` if one is traced."""
    for name, value in values.items():
        if not checks.is_concrete(value):
            raise TypeError(
                f"{function} finds a root on the host and cannot take the traced value {name}; "
                f"compute it outside jax.jit and jax.vmap and pass the result in{instead}."
            )
    return [np.asarray(value, np.float64) for value in values.values()]


def probability(name: str, value: Numbers) -> None:
    checks.interval(
        name, value, above=0, below=1, hint="It is a probability; usual values are below 1/samples."
    )


def budget(name: str, value: Numbers) -> None:
    checks.positive(name, value, "No finite noise attains a zero budget; leave the release out.")
