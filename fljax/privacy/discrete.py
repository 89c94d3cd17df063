r"""Discrete noise: integers with probabilities :math:`\Pr[x]\propto e^{-x^2/2s^2}` or
:math:`e^{-|x|/s}`, from tables.

Noise that is drawn as a real number in floating point leaves traces of the perturbed value in the
last bits of the sum. Integers leave none: a message is rounded to a grid, and noise on that grid is
added in exact integer arithmetic.
"""

import decimal
import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._generator import words

__all__ = ["MOST_STEPS", "discrete_gaussian", "discrete_laplace", "on_grid"]

#: Uniform bits of a table lookup, and decimal digits to which tables are computed: more than the
#: number of draws of any run could reveal.
BITS = 96
DIGITS = 50

#: Largest number of grid steps per Laplace scale: noise of more steps would not fit an integer.
MOST_STEPS = 2**24

#: Messages are clipped to this power of two in grid steps, which is far beyond all noise.
FARTHEST = 50

#: Steps are counted in two integers, the lower one of so many bits, so that neither overflows.
LOWER = 20


def _alias(weights: Sequence[decimal.Decimal], bits: int = BITS) -> np.ndarray:
    r"""``[4, 2^n]``: the table of Walker's alias method for whole numbers from zero.

    A uniform number of so many bits chooses a column by its first :math:`n` and, if the rest is
    below the first three rows (high, middle and low 32 bits), that column's number, else that of
    the fourth. Each has its probability up to :math:`2^{-bits}`, the likeliest one what is missing.
    """
    with decimal.localcontext(prec=DIGITS):
        unit = decimal.Decimal(2**bits) / sum(weights, decimal.Decimal(0))
        left = [int(weight * unit) for weight in weights]
    likeliest = max(range(len(left)), key=left.__getitem__)
    left[likeliest] += 2**bits - sum(left)
    columns = 2 ** max(1, (len(left) - 1).bit_length())
    room = 2**bits // columns
    left += [0] * (columns - len(left))
    below, other = [0] * columns, list(range(columns))
    poor = [number for number, probability in enumerate(left) if probability < room]
    rich = [number for number, probability in enumerate(left) if probability >= room]
    while poor:
        one, giver = poor.pop(), rich[-1]
        below[one], other[one] = left[one] << BITS - bits, giver
        left[giver] -= room - left[one]
        if left[giver] < room:
            poor.append(rich.pop())
    parts = [[value >> shift & 0xFFFFFFFF for value in below] for shift in (64, 32, 0)]
    return np.array([*parts, other], np.uint32)


def _chosen(table: np.ndarray, bits: Sequence[Array]) -> Int[Array, "..."]:
    """What a table has for these 96 uniform bits, three words."""
    rest = 33 - table.shape[1].bit_length()  # of the first word
    column = (bits[0] >> np.uint32(rest)).astype(jnp.int32)
    high = bits[0] & np.uint32(2**rest - 1)
    # Row by row: each is a flat look-up, many times as fast as one of all four.
    first, second, third, other = (jnp.asarray(row)[column] for row in table)
    last = (bits[1] < second) | ((bits[1] == second) & (bits[2] < third))
    own = (high < first) | ((high == first) & last)
    return jnp.where(own, column, other.astype(jnp.int32))


def _powers(
    first: decimal.Decimal, fall: decimal.Decimal = decimal.Decimal(1), count: int | None = None
) -> list[decimal.Decimal]:
    r""":math:`\prod_{i<x}qf^i` for :math:`x=0,1,\dots`, with :math:`q` the first ratio and
    :math:`f` its fall: so many, or as far as 96 bits reach.
    """
    powers, ratio = [decimal.Decimal(1)], first
    least = decimal.Decimal(2) ** -(BITS + 8)
    while len(powers) < count if count else powers[-1] > least:
        powers.append(powers[-1] * ratio)
        ratio *= fall
    return powers


@functools.cache
def _gaussian_table(steps: int) -> np.ndarray:
    """The alias table of absolute values. The last bit of the three words is left for the sign."""
    with decimal.localcontext(prec=DIGITS):
        ratio = (-1 / (2 * decimal.Decimal(steps) ** 2)).exp()
        weights = _powers(ratio, ratio**2)
        weights[0] /= 2  # which has two signs
        return _alias(weights, BITS - 1)


def discrete_gaussian(key: Array, shape: tuple[int, ...], steps: int) -> Int[Array, "..."]:
    r"""Draw integers from the discrete Gaussian distribution of parameter ``steps``.

    Each is drawn from 96 uniform bits, so that every probability is accurate to :math:`2^{-95}`,
    except the largest one, which takes the remainder; all together to :math:`2^{-91}s`.

    Args:
      key: consumed.
      shape: of the array that is drawn.
      steps: :math:`s\ge1`, the standard deviation up to :math:`e^{-2\pi^2s^2}`.

    Example:
      >>> import jax
      >>> x = discrete_gaussian(jax.random.key(0), (100_000,), steps=5)
      >>> str(x.dtype), round(float(x.std()), 1)
      ('int32', 5.0)

    References:
      Canonne, Kamath & Steinke 2020, Definition 1.
    """
    bits = words(key, shape, 3)
    drawn = _chosen(_gaussian_table(steps), bits)
    return jnp.where((bits[2] & np.uint32(1)) == 1, -drawn, drawn)


@functools.cache
def _laplace_tables(steps: int) -> tuple[int, np.ndarray, np.ndarray]:
    """The bits of the lower digit, its table, and that of the upper one with the sign: even
    numbers for zero and above, odd ones for below.
    """
    lower = max(1, round(np.log2(np.sqrt(2 * np.log(2) * BITS * steps))))
    with decimal.localcontext(prec=DIGITS):
        ratio = (-1 / decimal.Decimal(steps)).exp()
        low = _powers(ratio, count=2**lower)
        high = [w * sign for w in _powers(low[-1] * ratio) for sign in (1, ratio)]
        return lower, _alias(low), _alias(high)


def discrete_laplace(key: Array, shape: tuple[int, ...], steps: int) -> Int[Array, "..."]:
    r"""Draw integers from the discrete Laplace distribution, :math:`\Pr[x]\propto e^{-|x|/s}`.

    A nonnegative number is geometric, and so is the absolute value of a negative one minus one; the
    digits of a geometric number are independent in any base. So one table lookup gives the sign and
    the upper digit, and another one the lower digit, from 96 uniform bits each: all probabilities
    together are accurate to :math:`2^{-78}`, for any number of steps.

    Args:
      key: consumed.
      shape: of the array that is drawn.
      steps: :math:`1\le s\le2^{24}`, the scale.

    Example:
      >>> import jax
      >>> x = discrete_laplace(jax.random.key(0), (100_000,), steps=1000)
      >>> str(x.dtype), round(float(abs(x).mean()), -1)
      ('int32', 1000.0)

    References:
      Canonne, Kamath & Steinke 2020, Definition 5 (the discrete Laplace).
    """
    lower, low, high = _laplace_tables(steps)
    bits = words(key, shape, 6)
    upper = _chosen(high, bits[:3])
    size = ((upper >> 1) << lower) + _chosen(low, bits[3:])
    return jnp.where((upper & 1) == 1, ~size, size)


def on_grid(
    message: Float[Array, "senders dim"],
    steps: Int[Array, "senders dim"],
    grid: Float[Array, "senders 1"],
) -> Float[Array, "senders dim"]:
    """Round the message to a grid and move it by integer steps, in integers until the end; messages
    with a grid of zero, which do not depend on any data, stay as they are.

    What receivers see is a function of the integer alone, so that it reveals no more than that.

    Args:
      message: ``[M, D]``.
      steps: ``[M, D]``, the noise.
      grid: ``[M, 1]``, the size of a grid step.
    """
    unit = float(2**LOWER)
    none = grid == 0
    whole = jnp.round(message / jnp.where(none, 1, grid))
    whole = jnp.clip(whole, -(2.0**FARTHEST), 2.0**FARTHEST)
    upper = jnp.floor(whole / unit)  # exact, and so is the difference
    lower = (whole - upper * unit).astype(jnp.int32) + steps
    upper = upper.astype(jnp.int32) + (lower >> LOWER)
    lower = lower & (2**LOWER - 1)
    said = grid * (upper.astype(message.dtype) * unit + lower.astype(message.dtype))
    return jnp.where(none, message, said)
