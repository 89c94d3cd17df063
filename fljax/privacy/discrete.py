r"""Noise on a grid: how a message is perturbed without traces of it in the last bits.

Noise that is drawn as a real number in floating point and added to a float leaves traces of the
perturbed value in the last bits of the sum: near zero the sum can only lie on a lattice that
depends on the message (Mironov 2012). Integers leave none. So a message is rounded to a grid, noise
is an integer number of grid steps, and the two are added exactly:

* :func:`perturbed`: normal or Laplace numbers that are multiples of a fixed step. What leaves is a
  function of the sum of two integers. The first has the sensitivity of the message plus that of
  rounding; the second has a distribution of its own, which depends on nothing.
* :func:`on_grid`, with :func:`discrete_gaussian` and :func:`discrete_laplace`: integers with
  probabilities :math:`\Pr[x]\propto e^{-x^2/2s^2}` or :math:`e^{-|x|/s}`, from tables.
"""

import decimal
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from fljax._core.numerics import clip_to_finite, with_trailing_axes
from fljax._core.prng import NORMAL_END, WIDE_END, normal_steps, words

#: Uniform bits of a table lookup: more than the number of draws of any run could reveal.
BITS = 96

#: Decimal digits to which tables are computed, more than the 29 of these bits.
DIGITS = 50

#: Largest number of grid steps per Laplace scale: noise of more steps would not fit an integer.
MOST_STEPS = 2**24

#: Messages are clipped to this power of two in grid steps, which is far beyond all noise.
FARTHEST = 50

#: Steps are counted in two integers, the lower one of this number of bits, so that neither
#: overflows.
LOWER = 20


def _alias(weights: Sequence[decimal.Decimal], bits: int = BITS) -> np.ndarray:
    r"""``[4, 2^n]``: the table of Walker's alias method for whole numbers from zero.

    A uniform number of ``bits`` bits chooses a column by its first :math:`n` and, if the rest is
    below the first three rows (high, middle and low 32 bits), that column's number, else that of
    the fourth. Each has its probability up to :math:`2^{-bits}`; the likeliest one has the
    remainder.
    """
    with decimal.localcontext(prec=DIGITS):
        unit = decimal.Decimal(2**bits) / sum(weights, decimal.Decimal(0))
        remaining = [int(weight * unit) for weight in weights]
    likeliest = max(range(len(remaining)), key=remaining.__getitem__)
    remaining[likeliest] += 2**bits - sum(remaining)
    columns = 2 ** max(1, (len(remaining) - 1).bit_length())
    capacity = 2**bits // columns
    remaining += [0] * (columns - len(remaining))
    below = [0] * columns
    other = list(range(columns))
    below_capacity = [
        number for number, probability in enumerate(remaining) if probability < capacity
    ]
    above_capacity = [
        number for number, probability in enumerate(remaining) if probability >= capacity
    ]
    while below_capacity:
        poor = below_capacity.pop()
        giver = above_capacity[-1]
        below[poor] = remaining[poor] << BITS - bits
        other[poor] = giver
        remaining[giver] -= capacity - remaining[poor]
        if remaining[giver] < capacity:
            below_capacity.append(above_capacity.pop())
    parts = [[value >> shift & 0xFFFFFFFF for value in below] for shift in (64, 32, 0)]
    return np.array([*parts, other], np.uint32)


def _look_up(table: np.ndarray, bits: Sequence[Array]) -> Int[Array, "..."]:
    """What a table has for these 96 uniform bits, three words."""
    shift = 33 - table.shape[1].bit_length()  # of the first word
    column = (bits[0] >> np.uint32(shift)).astype(jnp.int32)
    high = bits[0] & np.uint32(2**shift - 1)
    # Row by row: each is a flat look-up, many times as fast as one of all four.
    first, second, third, other = (jnp.asarray(row)[column] for row in table)
    last = (bits[1] < second) | ((bits[1] == second) & (bits[2] < third))
    keeps_column = (high < first) | ((high == first) & last)
    return jnp.where(keeps_column, column, other.astype(jnp.int32))


def _powers(
    first: decimal.Decimal, fall: decimal.Decimal = decimal.Decimal(1), count: int | None = None
) -> list[decimal.Decimal]:
    r""":math:`\prod_{i<x}qf^i` for :math:`x=0,1,\dots`, with :math:`q` the first ratio and
    :math:`f` its fall: this number of them, or as far as 96 bits reach.
    """
    powers = [decimal.Decimal(1)]
    ratio = first
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
    drawn = _look_up(_gaussian_table(steps), bits)
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
    upper = _look_up(high, bits[:3])
    size = ((upper >> 1) << lower) + _look_up(low, bits[3:])
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
    rounded = jnp.round(message / jnp.where(none, 1, grid))
    rounded = jnp.clip(rounded, -(2.0**FARTHEST), 2.0**FARTHEST)
    upper = jnp.floor(rounded / unit)  # exact, and so is the difference
    lower = (rounded - upper * unit).astype(jnp.int32) + steps
    upper = upper.astype(jnp.int32) + (lower >> LOWER)
    lower = lower & (2**LOWER - 1)
    result = grid * (upper.astype(message.dtype) * unit + lower.astype(message.dtype))
    return jnp.where(none, message, result)


def widened(
    scale: Float[Array, "*rows"],
    sensitivity: Float[Array, "*rows"],
    numbers: int,
    dtype: DTypeLike,
    releases: Array | int = 1,
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    r"""Return the deviation of Gaussian noise that hides the sensitivity of messages after rounding
    to its grid as well as the given one hides the sensitivity before, and the share of the
    sensitivity that it does not hide.

    Rounding to a grid of step :math:`g` moves each of :math:`D` numbers by at most :math:`g/2`, and
    so two messages apart by at most :math:`g\sqrt D`. With :math:`g=\sigma'/s`,

    .. math:: \frac{\Delta+\sigma'\sqrt D/s}{\sigma'}=\frac\Delta\sigma
        \quad\text{for}\quad\sigma'=\frac\sigma{1-\kappa},\qquad
        \kappa=\frac{\sigma\sqrt D}{s\Delta}.

    With :math:`\sigma=\Delta` the noise of 100 numbers grows by 8e-5 in single precision. It is at
    most doubled; beyond that, a share of the sensitivity remains that no noise hides.

    Args:
      scale: :math:`\sigma`, standard deviations.
      sensitivity: :math:`\Delta`; where it is zero there is nothing to hide.
      numbers: :math:`D`.
      dtype: of the messages.
      releases: that one client's data may move together; then :math:`D` is that of all of them.
    """
    exposed = sensitivity > 0
    steps = normal_steps(dtype, (numbers,))
    ratio = jnp.where(exposed, scale, 0) / jnp.where(exposed, sensitivity, 1)
    lost = ratio * ((float(numbers) * releases) ** 0.5 / steps)
    # A step below the smallest number would be no grid.
    least = float(jnp.finfo(scale.dtype).tiny) * 2 * steps
    scale = jnp.where(exposed, jnp.maximum(scale, least), scale)
    return scale / (1 - jnp.minimum(lost, 0.5)), jnp.maximum(lost - 0.5, 0)


def least_delta(rho: float, release_rho: float, dtype: DTypeLike) -> float:
    r"""Return a delta below which no epsilon holds for Gaussian noise, since the numbers that are
    drawn end at :math:`b` standard deviations: 7.54 in single precision, 9.49 in double.

    A message that a neighbor moves by :math:`\mu` deviations takes values that the other cannot
    take with the probability :math:`Q(b-\mu)-Q(b)`. Over all ways in which :math:`n` equal moves,
    of numbers or of releases, may make up the total :math:`\rho=n\mu^2/2`, none larger than that
    of a single release and at most a billion, the largest sum of these is returned.

    Args:
      rho: of all releases.
      release_rho: the largest of a single one.
      dtype: of the messages.

    Example:
      >>> least_delta(0.5, 0.5, "float32") < 1e-8, least_delta(30, 30, "float32") > 0.5
      (True, True)
    """
    from scipy import special  # imported only where it is used

    end = WIDE_END if np.dtype(dtype) == np.float64 else NORMAL_END
    if not rho > 0:
        return 0.0
    fewest = max(1.0, rho / release_rho if release_rho > 0 else 1.0)
    moves = np.maximum(fewest, np.geomspace(1, 1e9, 400))
    size = np.sqrt(2 * rho / moves)
    outside = special.ndtr(size - end) - special.ndtr(-end)
    return float(min(1.0, np.max(moves * outside)))


def perturbed(
    message: Float[Array, "*shape"],
    drawn: Float[Array, "*shape"],
    scale: Float[Array, "..."] | float,
    steps: float | None = None,
) -> Float[Array, "*shape"]:
    r"""Return the message on a grid plus noise on it,
    :math:`g\,(\lfloor m/g\rceil+\lfloor sz\rceil)` with the step :math:`g=\sigma/s`.

    Both summands are integers, and a float sum of two integers is the rounded exact sum: a function
    of it alone. So the result is a post-processing of the integer
    :math:`\lfloor m/g\rceil` plus noise whose distribution does not depend on the message, at any
    precision, and two messages have the same set of possible results, except where the noise ends
    (:func:`least_delta`). Where the scale is zero no noise is added, and the message is returned
    as it is.

    Args:
      message: a number that is infinite is the largest one, NaN is zero.
      drawn: noise of deviation, or scale, one: multiples of ``1 / steps``; others are rounded.
      scale: :math:`\sigma\ge0`, of leading axes.
      steps: :math:`s`, by default that of Gaussian noise.

    Example:
      >>> import jax.numpy as jnp
      >>> noise = jnp.arange(-3.0, 4) / 8  # in steps of an eighth of the deviation
      >>> perturbed(jnp.full(7, 0.034), noise, 0.08, steps=8).round(3).tolist()
      [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
    """
    dtype = jnp.dtype(jnp.float64 if message.dtype == jnp.float64 else jnp.float32)
    steps = normal_steps(dtype, message.shape) if steps is None else steps
    message = clip_to_finite(message)
    scale = with_trailing_axes(jnp.asarray(scale, dtype), message)
    none = scale == 0
    step = jnp.where(none, 1, scale / steps)
    rounded = jnp.round(message.astype(dtype) * (1 / step))
    result = step * (rounded + jnp.round(drawn.astype(dtype) * steps))
    result = clip_to_finite(result.astype(message.dtype))
    return jnp.where(none, message, result)


class PrivateNoise(NamedTuple):
    """The noise on the rows of a release."""

    drawn: Shaped[Array, "rows numbers"]  # of deviation, or scale, one; or in steps of the grid
    scale: Float[Array, " rows"]  # without the growth for rounding to the grid
    grid: Float[Array, " rows"] | None = (
        None  # of noise in whole steps, whose scale provides for it
    )
    releases: Array | int = 1  # in which one client's data may appear, and move them together

    def added_to(
        self, clean: Float[Array, "rows numbers"], sensitivity: Float[Array, " rows"]
    ) -> tuple[Float[Array, "rows numbers"], Float[Array, " rows"]]:
        """Return the perturbed rows, and the share of the sensitivity that the noise does not hide.

        Args:
          clean: without noise.
          sensitivity: of the rows.
        """
        if self.grid is not None:
            released = on_grid(clip_to_finite(clean), self.drawn, self.grid[:, None])
            return released, jnp.zeros_like(sensitivity)
        scale, unhidden = widened(
            self.scale, sensitivity, clean.shape[1], clean.dtype, self.releases
        )
        return perturbed(clean, self.drawn, scale), unhidden
