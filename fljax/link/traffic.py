"""Traffic: exact counts of sent messages, numbers and bits, for runs of any length."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax._core.module import float_dtype

#: Mask of the lower half of a count.
LOW = np.uint32(2**31 - 1)


class Traffic(NamedTuple):
    """The traffic of the whole network in one round, as 62-bit counts (see :func:`wide`)."""

    messages: Array  # [2]  point-to-point messages
    scalars: Array  # [2]  real numbers in them
    bits_up: Array  # [2]  bits that clients sent
    bits_down: Array  # [2]  bits that servers sent, to clients and to each other

    @classmethod
    def none(cls) -> "Traffic":
        return cls(*(jnp.zeros(2, jnp.uint32) for _ in cls._fields))

    @property
    def bits(self) -> Array:
        """The bits of both directions, ``[2]``."""
        return wide_sum(self.bits_up, self.bits_down)

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(*(wide_sum(a, b) for a, b in zip(self, other, strict=True)))


def wide(count: Array, times: int) -> Array:
    """``count * times``, both in [0, 2^31), as ``[high, low]`` with ``low < 2^31``.

    JAX has no 64-bit integers by default.

    Raises:
      ValueError: ``times`` beyond the range.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> fl.link.wide(jnp.int32(2**30), 6).tolist()  # 3 * 2^31 + 0
      [3, 0]
    """
    if times >= 2**31:
        raise ValueError(f"a message has {times} bits, more than the 2^31 that can be counted.")
    high = low = jnp.zeros((), jnp.uint32)
    for shift in (0, 16):
        limb = (count.astype(jnp.uint32) >> shift) & 0xFFFF
        for more in (0, 16):
            factor = (times >> more) & 0xFFFF
            if not factor:
                continue  # known before compilation, and nothing to add
            part = limb * jnp.uint32(factor)
            by = shift + more  # part * 2^by, part < 2^32
            above, below = {
                0: (part >> 31, part),
                16: (part >> 15, part << 16),
                32: (part << 1, jnp.zeros_like(part)),
            }[by]
            low += below & LOW
            high += above + (low >> 31)
            low &= LOW
    return jnp.stack([high, low])


def wide_difference(larger: Array, smaller: Array) -> Array:
    """A count minus another one that is part of it."""
    high, low = larger - smaller  # below zero a half wraps around, which sets its highest bit
    return jnp.stack([high - (low >> 31), low & LOW])


def narrow(count: Array) -> Array:
    """A count ``[high, low]`` as a real number, of at least 24 digits in base two."""
    return count[0].astype(float_dtype()) * 2.0**31 + count[1].astype(float_dtype())


def wide_sum(a: Array, b: Array) -> Array:
    """The sum of two such numbers.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> once = fl.link.wide(jnp.int32(2**30), 1)
      >>> fl.link.wide_sum(once, once).tolist()  # 2^31
      [1, 0]
    """
    high, low = a + b
    return jnp.stack([high + (low >> 31), low & LOW])
