"""Precision and range of floating-point numbers, shapes, and JAX's promotion rules."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

#: Precision of matrix products: TF32 has three digits, and curves reach -40 to -60 dB.
HIGHEST = jax.lax.Precision.HIGHEST


def as_typed(value: object) -> Any:
    """A NumPy number as one of Python, of any precision as it was typed: the shortest decimal that
    is rounded to it, 0.1 instead of 0.10000000149; other values as they are.
    """
    if isinstance(value, np.floating):
        return float(str(value))
    return value.item() if isinstance(value, np.generic) else value


def with_trailing_axes(numbers: Array | np.ndarray, values: Array) -> Any:
    """Append axes of size one to numbers, so that they broadcast along the first axes of values."""
    return numbers.reshape(numbers.shape + (1,) * (values.ndim - numbers.ndim))


def representable_sensitivity(
    sizes: Float[Array, "*rows"], is_positive: Bool[Array, "*rows"]
) -> Array:
    """Raise tiny positive sensitivities to a size for which noise has all its digits.

    A positive sensitivity that underflows to zero (``is_positive`` says which numbers are positive)
    would give no noise at all. More noise is safe.
    """
    limits = jnp.finfo(sizes.dtype)
    return jnp.where(is_positive, jnp.maximum(sizes, limits.tiny / limits.eps**2), sizes)


def clip_to_finite(rows: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Clip infinite numbers to the largest float and replace NaN by zero.

    Clipping does not increase the distance between two rows.
    """
    largest = jnp.finfo(rows.dtype).max
    return jnp.where(jnp.isnan(rows), 0, jnp.clip(rows, -largest, largest))


@contextlib.contextmanager
def default_promotion() -> Iterator[None]:
    """Within, use JAX's default promotion of types and ranks, for code of users and libraries.

    The library's code is traced under stricter rules.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
