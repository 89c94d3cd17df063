"""How numbers are made everywhere: keys by purpose, the precision of products."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._generator import GENERATOR, GENERATORS

#: Of matrix products: TF32 keeps three digits, and curves reach -40 to -60 dB.
HIGHEST = jax.lax.Precision.HIGHEST

#: What is drawn in a round: each from a stream of its own, the same for all algorithms. A new
#: purpose goes to the end: the index of one is part of its stream.
PURPOSES = (
    "participation",
    "batches",
    "stream",
    "arrivals",
    "availability",
    "delays",
    "compression",
    "sharing",
    "policy",
    "network",
    "attack",
    "losses",
    "algorithm",
    "gradients",
    "server",
    "noise",
    "uploads",
    "masks",
    "privacy",
)


#: Folded into keys of JAX's generators first: arbitrary, and no index that anybody counts to.
_BELOW = np.uint32(0xB7E15162)


def key_of(key: Array, purpose: str) -> Array:
    """A round's key for a draw of this purpose, one of :data:`PURPOSES`.

    Raises:
      ValueError: an unknown purpose.
    """
    if purpose not in PURPOSES:
        raise ValueError(
            f"unknown purpose {purpose!r} of random draws; an algorithm's own draws use "
            f"'algorithm' (for further keys, fold that one). Known: {', '.join(PURPOSES)}."
        )
    return _apart(key, 1 + PURPOSES.index(purpose))


def round_key(key: Array, round: Array | int) -> Array:
    """The key of a round, counted from 1; round 0 is what comes before all of them."""
    return _apart(key, round)


def _apart(key: Array, number: Array | int) -> Array:
    """A key derived from another one, and from nothing else that is split off or folded into it.

    JAX's own generators split and fold alike: ``split(key, n)[i] == fold_in(key, i)``. So a number
    is folded in below another one, which is not an index of anything.
    """
    if jax.random.key_impl(key) != GENERATORS[GENERATOR]:
        key = jax.random.fold_in(key, _BELOW)
    return jax.random.fold_in(key, number)


def along(numbers: Array | np.ndarray, values: Array) -> Any:
    """Numbers of the first axes of some values, with axes of one for the others."""
    return numbers.reshape(numbers.shape + (1,) * (values.ndim - numbers.ndim))


def represented(sizes: Float[Array, "*rows"], there: Bool[Array, "*rows"]) -> Array:
    """Sensitivities, where there is something to hide so large at least that noise by them has all
    its digits: of what vanishes in this precision nothing would be hidden, and more noise hides as
    well.
    """
    limits = jnp.finfo(sizes.dtype)
    return jnp.where(there, jnp.maximum(sizes, limits.tiny / limits.eps**2), sizes)


def made_finite(rows: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """What overflows as the largest number, which keeps the distance of two rows, and what is no
    number as zero.
    """
    largest = jnp.finfo(rows.dtype).max
    return jnp.where(jnp.isnan(rows), 0, jnp.clip(rows, -largest, largest))


@contextlib.contextmanager
def foreign() -> Iterator[None]:
    """Within, code of others is traced: it may promote types and ranks as JAX does by default."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
