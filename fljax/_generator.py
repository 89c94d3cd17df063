"""The random numbers of runs: the house's generator, others by name, normal numbers.

A number costs one block of Threefry-2x32 (20 rounds; Salmon, Moraes, Dror & Shaw 2011, the function
behind JAX's own default), written out instead of looped over: XLA's CPU backend then keeps it in
registers. Number ``k`` of a draw depends on the key and on ``k`` alone, whatever the shape,
``vmap``, blocks and devices, and the function has neither wide multiplications nor loops, so that
every partitioner splits it.

A block maps 64 bits to 64 bits, one to one for each key. The first two bits of what goes in tell
what it is for: the numbers of a draw, keys that are split off, keys that are folded. So the keys
derived from one key are all different, at most 2**62 of either kind, and are no numbers of its own.
Keys of different ancestors meet by chance only, as 64 random bits do.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl
from jaxtyping import Array

from fljax import _check
from fljax._arguments import checked
from fljax._module import float_dtype

__all__ = [
    "GENERATOR",
    "GENERATORS",
    "NORMAL_END",
    "WIDE_END",
    "as_key",
    "bernoulli",
    "check_generator",
    "house_key",
    "integers_below",
    "laplace_steps",
    "name_of",
    "normal",
    "normal_steps",
    "private_laplace",
    "private_normal",
    "random_key",
    "rate_drawn",
    "threefry",
    "uniform_of_pairs",
    "words",
]

#: The name of the house's generator.
GENERATOR = "fljax-threefry"

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)
_ROUNDS = 20

#: What a block is for, in the first bits of what goes in.
_DRAWN, _SPLIT, _FOLDED = np.uint32(0), np.uint32(1 << 30), np.uint32(1 << 31)

#: :math:`-2\ln(1+x)/x` for :math:`1/\sqrt2\le1+x\le\sqrt2`, relative error 3e-8 (Remez).
_LOG = (
    -1.9999999483794695,
    0.9999997592873947,
    -0.6666837124915674,
    0.5000414812247297,
    -0.3991366715897723,
    0.3312478634916841,
    -0.29904533059601884,
    0.28733685435040807,
    -0.17444711465032592,
)
#: :math:`\sin(\pi x)/x` in :math:`x^2` for :math:`|x|\le1/2`, relative error 5e-9 (Remez).
_SINE = (
    3.1415926368954117,
    -5.167709684799477,
    2.5500697263299963,
    -0.5982421263420936,
    0.07756038679079723,
)

#: The same by its Taylor series, to double precision.
_WIDE_SINE = tuple(
    (-1) ** i * math.pi ** (2 * i + 1) / math.factorial(2 * i + 1) for i in range(12)
)

#: Steps per standard deviation, or scale, of private draws: of normal numbers in short and in long
#: rows in single precision, of Laplace numbers in single, and of all in double precision. The
#: largest draw must be an integer below 2**24 (2**53) steps, which a float has exactly.
SHORT_STEPS, FINE_STEPS, LAPLACE_STEPS, WIDE_STEPS = 2.0**17, 2.0**20, 2.0**18, 2.0**40

#: Numbers of a row up to which steps are so coarse that one normal number makes a draw. Rounding a
#: row to a grid counts as its square root.
SHORT_ROW = 512

#: Steps of the first of the two numbers that another draw in single precision is made of. A product
#: with them keeps eight bits or more behind the point, so that no step is likelier than it should.
COARSE_STEPS = 2.0**12

#: Standard deviation of the second, in steps of the first.
SMOOTHING = 4.0

#: Standard deviations at which private normal numbers end, in single and in double precision: those
#: of half of the smallest of 2**40 and 2**64 equal parts of (0, 1).
NORMAL_END, WIDE_END = math.sqrt(82 * math.log(2)), math.sqrt(130 * math.log(2))

#: The key under which keys of other generators become keys of the library's: arbitrary digits.
_FOREIGN = np.array([0x243F6A88, 0x85A308D3], np.uint32)


class _Words(NamedTuple):
    """64 bits."""

    high: Array
    low: Array


@jax.jit
def threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """The words of Threefry-2x32 with 20 rounds for a key ``[2]`` at these counters."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = high + keys[0], low + keys[1]
    for number in range(_ROUNDS):
        turn = _ROTATIONS[number % 8]
        x = x + y
        y = ((y << np.uint32(turn)) | (y >> np.uint32(32 - turn))) ^ x
        if number % 4 == 3:
            times = number // 4 + 1
            x = x + keys[times % 3]
            y = y + keys[(times + 1) % 3] + np.uint32(times)
    return x, y


def _places(shape: tuple[int, ...]) -> _Words:
    """The number of each entry of an array. Entries that 32 bits do not tell apart are counted by
    the leading axes in the upper word.
    """
    first = len(shape)
    while first > 0 and math.prod(shape[first - 1 :]) < 2**32:
        first -= 1
    if math.prod(shape[:first]) > 2**30:  # the upper word's other two bits tell the purpose
        raise ValueError(f"2**32 numbers along an axis are more than can be drawn, got {shape}.")

    def count(axes: range) -> Array:
        total, stride = jnp.zeros(shape, np.uint32), 1
        for axis in reversed(axes):
            # No reshaped count of all: a partitioner splits this one along any axis.
            total = total + lax.broadcasted_iota(np.uint32, shape, axis) * np.uint32(stride)
            stride *= shape[axis]
        return total

    return _Words(count(range(first)), count(range(first, len(shape))))


def _seed(seed: Array) -> Array:
    """The 64 bits of an integer, a narrower one widened with its sign."""
    high = (seed >> 16) >> 16
    return jnp.stack([high.astype(np.uint32), seed.astype(np.uint32)])


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    place = _places(tuple(shape))
    return _apart(threefry(key, place.high | _SPLIT, place.low), axis=-1)


def _fold_in(key: Array, number: Array) -> Array:
    return _apart(threefry(key, jnp.full_like(number, _FOLDED), number))


def _apart(words: tuple[Array, Array], axis: int = 0) -> Array:
    """Both words of blocks side by side, which no loop that uses them computes anew.

    XLA would fuse the blocks into it. Where they do not depend on the innermost loop's number, as a
    key does not, nor what is drawn once for a whole row, LLVM follows both numbers of each of their
    20 rounds back to the key, more than 2**20 ways, and does not end. A barrier keeps the newest
    XLA from it, an array of both words the older ones.
    """
    return lax.optimization_barrier(jnp.stack(words, axis))


def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    first, second = _apart(threefry(key, *_places(tuple(shape))))
    if width == 64:
        return (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)
    return first.astype(f"uint{width}")


_HOUSE = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,  # pyright: ignore[reportArgumentType]  # JAX passes an array
    name=GENERATOR,
    tag=GENERATOR,
)

#: Every generator of runs, and what JAX takes for it: those whose bits are the same under ``vmap``
#: and whose keys are long enough to differ between millions of draws (not ``philox2x32``). XLA
#: takes minutes to compile the permutations of ``threefry4x32`` for a CPU.
GENERATORS = {GENERATOR: _HOUSE, "threefry2x32": "threefry2x32", "philox4x32": "philox4x32"}


def check_generator(generator: str) -> None:
    """Raise ``ValueError`` unless runs can draw from the generator of this name."""
    if generator in ("rbg", "unsafe_rbg"):
        raise ValueError(
            f"with generator {generator!r} a run would get different numbers in another block (its "
            f"bits change under vmap); take one of {', '.join(GENERATORS)}."
        )
    _check.choice("generator", generator, GENERATORS)


@checked
def random_key(seed: int = 0, generator: str = GENERATOR) -> Array:
    """The random key that a generator makes of an integer, as :func:`jax.random.key` for JAX's.

    Args:
      seed: of the key.
      generator: as of :func:`fljax.sweep`; a result's is its attribute ``prng``.

    Example:
      >>> import fljax as fl
      >>> fl.problems.ridge(fl.random_key(1), clients=5, samples=10, dim=2).clients
      5
    """
    check_generator(generator)
    return jax.random.key(int(seed), impl=GENERATORS[generator])


def name_of(key: Array) -> str:
    """Of the generator that a key is for."""
    return str(jax.random.key_impl(key))


def as_key(key: Array | int, generator: str | None = None) -> Array:
    """A key, or the one that a generator makes of an integer, by default the house's.

    Raises:
      ValueError: a key and a generator.
      TypeError: what is neither one key nor an integer.
    """
    if isinstance(key, int | np.integer):
        _check.seed("key", key)
        return random_key(key, generator or GENERATOR)
    _check.key("key", key, " or an integer")
    if generator is not None:
        raise ValueError(
            f"generator={generator!r} is for integer keys, and this key is of {name_of(key)!r}; "
            "leave generator out, or pass an integer."
        )
    return key


def normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    r"""Standard normal draws. With a key of another generator, or in double precision, those of
    ``jax.random.normal``.

    Number :math:`k` is :math:`\sqrt{-2\ln q}\,\sin\pi t`, with :math:`q\in(0,1)` and
    :math:`t\in(-\frac12,\frac12)` uniform, from the two words of block :math:`k` (Box & Muller
    1958; the sine of half a turn has the law of that of a whole one). It ends at 6.66 standard
    deviations, where 32 bits of :math:`q` end; :math:`x` and :math:`-x` are equally likely. Within
    5 ulp of the formula: of :math:`q` near 1 the distance to 1 counts, and is kept.

    Args:
      key: consumed.
      shape: of the draws.
      dtype: of the draws.
    """
    if not _is_house(key) or np.dtype(dtype) != np.float32:
        return jax.random.normal(key, shape, dtype)
    return _normal(jax.random.key_data(key), tuple(shape))


def private_normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    r"""Standard normal draws to hide something under: multiples of a fixed step
    (:func:`normal_steps`), with every generator drawn by the library's own.

    Noise that is a float can only be added to a float with traces of both in the last bits
    (Mironov 2012). A multiple of a step, added to a message that is rounded to multiples of the
    same step (:func:`fljax.privacy.discrete.perturbed`), leaves none. In single precision there are
    two kinds.

    Rows of up to :data:`SHORT_ROW` numbers have :math:`2^{-17}\lfloor 2^{17}z+\frac12\rfloor`
    with a normal number :math:`z` that has four bits or more behind that step. To the sum of a
    message on the grid and :math:`z` this rounding is a post-processing.

    Longer rows need finer steps. Theirs is

    .. math:: 2^{-20}\big(2^8\lfloor 2^{12}z_1\rceil+\lfloor 2^{10}z_2\rceil\big)

    with two independent standard normal numbers, the radius times the sine and the cosine of one
    angle (Box & Muller 1958). The second smooths the coarse steps of the first: by Poisson's
    summation formula the sum has the distribution of a normal number of variance
    :math:`1+2^{-20}` plus a uniform one of :math:`2^{-12}`, rounded to the fine grid, up to a
    factor :math:`1\pm e^{-2\pi^2\cdot4^2}`: more noise than was asked for, and a post-processing of
    it.

    Either takes one block: 40 bits for the radius, 23 for the angle, and a sign. Draws end at 7.54
    standard deviations, beyond which 5 in 10^14 would lie. In double precision a draw is
    :math:`2^{-40}\lfloor 2^{40}z+\frac12\rfloor` of 128 random bits, and ends at 9.49.

    Args:
      key: consumed.
      shape: of the draws; the last axis is a row.
      dtype: of the draws; less than single precision is drawn in single precision.
    """
    shape, key = tuple(shape), house_key(key)
    steps = normal_steps(dtype, shape)
    if np.dtype(dtype) == np.float64:
        return jnp.floor(_wide_normal(*words(key, shape, 4)) * steps + 0.5) / steps
    bits = _noise(jax.random.key_data(key), shape)
    if steps == FINE_STEPS:
        return _on_fine_steps(*_normal_pair(*bits), steps)
    squared_radius, sine = _polar(*bits)
    return jnp.floor(jnp.sqrt(squared_radius) * sine * steps + 0.5) / steps


def normal_steps(dtype: Any, shape: tuple[int, ...]) -> float:
    """Steps per standard deviation of private normal draws of this type and shape."""
    if np.dtype(dtype) == np.float64:
        return WIDE_STEPS
    return SHORT_STEPS if not shape or shape[-1] <= SHORT_ROW else FINE_STEPS


def private_laplace(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    r"""Laplace draws of scale one to hide something under: :math:`\sqrt{-2\ln q}` times a standard
    normal number, of 95 random bits up to 50 scales, or of 192 up to 90 in double precision.

    They are multiples of a fixed step, :math:`2^{-18}` or :math:`2^{-40}`, for the reason given at
    :func:`private_normal`, and in single precision smoothed in the same way. No budget rests on
    them: pure differential privacy is claimed for integers only
    (:func:`fljax.privacy.discrete.discrete_laplace`).

    Args:
      key: consumed.
      shape: of the draws.
      dtype: of the draws; less than single precision is drawn in single precision.
    """
    if np.dtype(dtype) == np.float64:
        first, second, *rest = words(key, shape, 6)
        drawn = jnp.sqrt(_wide_minus_two_log(first, second)) * _wide_normal(*rest)
        return jnp.floor(drawn * WIDE_STEPS + 0.5) / WIDE_STEPS
    first, second, third = words(key, shape, 3)
    normal, smoothing = _normal_pair(second, third)
    return _on_fine_steps(jnp.sqrt(_minus_two_log(first)) * normal, smoothing, LAPLACE_STEPS)


def laplace_steps(dtype: Any) -> float:
    """Steps per scale of private Laplace draws of this type."""
    return WIDE_STEPS if np.dtype(dtype) == np.float64 else LAPLACE_STEPS


def house_key(key: Array) -> Array:
    """The key of the library's generator that belongs to a key of any generator.

    JAX's own generators derive keys by the function by which they draw, so that the ``i``-th key
    that is split off is the one into which ``i`` is folded, and both are numbers of the draw
    itself. Private draws must not meet public ones. So a key of another generator is taken as a
    counter of the library's generator under a constant key: different keys stay different, and
    meet no key that JAX derives but by chance, as 64 random bits do.
    """
    if _is_house(key):
        return key
    data = jax.random.key_data(key)
    mixed = jnp.asarray(_FOREIGN)
    for first in range(0, data.shape[-1], 2):
        high, low = data[..., first], data[..., min(first + 1, data.shape[-1] - 1)]
        mixed = jnp.stack(threefry(mixed, high, low))
    return jax.random.wrap_key_data(mixed, impl=_HOUSE)


def words(key: Array, shape: tuple[int, ...], count: int) -> list[Array]:
    """So many random words of 32 bits for every entry of an array, with every generator from the
    library's own (:func:`house_key`).

    Args:
      key: consumed.
      shape: of the array.
      count: of words.
    """
    keys = jax.random.key_data(jax.random.split(house_key(key), -(-count // 2)))
    return [word for part in keys for word in _noise(part, tuple(shape))][:count]


def rate_drawn(rate: Any) -> Any:
    r"""Return the probability with which :func:`bernoulli` draws for this rate, exactly.

    It is the rate in the precision in use, rounded down to a multiple of :math:`2^{-64}`.

    In single precision this is the rate itself from :math:`2^{-40}` on, in double precision from
    :math:`2^{-11}` on; from :math:`2^{-24}` on it is less by a share of at most :math:`2^{-40}`.
    Below :math:`2^{-64}` it is zero. Privacy accounting uses this number.

    Args:
      rate: in [0, 1], possibly traced.
    """
    if _check.is_concrete(rate) and not np.ndim(rate):
        return float(np.floor(np.asarray(rate, float_dtype()) * 2.0**64)) * 2.0**-64
    return jnp.floor(jnp.asarray(rate, float_dtype()) * 2.0**64) * 2.0**-64


def bernoulli(key: Array, shape: tuple[int, ...], rate: Any) -> Array:
    r"""Return booleans that are true with probability :func:`rate_drawn`, independently.

    A uniform integer of 64 bits is compared with :math:`\lfloor2^{64}p\rfloor`, in two words: with
    the house's generator both come from one block. (A uniform float of single precision has 23
    bits, so that rates below :math:`10^{-5}` would be rounded up noticeably.)

    Args:
      key: consumed.
      shape: of the result.
      rate: :math:`p\in[0,1]`, a scalar or of this shape.
    """
    rate = jnp.asarray(rate, float_dtype())
    # Products with powers of two, whole parts and their remainders are exact.
    scaled = rate * 2.0**32
    upper = jnp.floor(scaled)
    lower = jnp.floor((scaled - upper) * 2.0**32).astype(np.uint32)
    upper = jnp.where(rate < 1, upper, 0).astype(np.uint32)  # at one: see below
    high, low = _two_words(key, tuple(shape))
    below = (high < upper) | ((high == upper) & (low < lower))
    return below | (rate >= 1)


def integers_below(key: Array, shape: tuple[int, ...], limit: Array) -> Array:
    r"""Return uniform integers in :math:`[0,n)`, in 32 bits.

    Each is the whole part of :math:`nW/2^{64}` for a uniform 64-bit integer :math:`W`, so that the
    probability of each is :math:`1/n` up to a share of :math:`n/2^{64}`. (The integers of
    ``jax.random.randint`` are less uniform beyond :math:`2^{16}`, where its products wrap.)

    Args:
      key: consumed.
      shape: of the result.
      limit: :math:`n\ge1`, of a shape that broadcasts to this one.
    """
    limit = limit.astype(np.uint32)
    high, low = _two_words(key, tuple(shape))
    upper, rest = _product(high, limit)
    carried, _ = _product(low, limit)
    # The sum of two words wraps where it is less than either of them.
    return (upper + (rest + carried < rest).astype(np.uint32)).astype(np.int32)


def _product(first: Array, second: Array) -> tuple[Array, Array]:
    """Both words of the product of 32-bit integers, from products of 16 bits, which do not wrap."""
    half, low = np.uint32(16), np.uint32(0xFFFF)
    first_high, first_low = first >> half, first & low
    second_high, second_low = second >> half, second & low
    middle = first_high * second_low + ((first_low * second_low) >> half)
    other = first_low * second_high + (middle & low)
    return first_high * second_high + (middle >> half) + (other >> half), first * second


def _two_words(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Two random words for every entry of an array, from one block of the library's generator."""
    data = jax.random.key_data(house_key(key))
    high, low = _apart(threefry(data, *_places(shape)))
    return high, low


def uniform_of_pairs(key: Array, first: Array, second: Array, dtype: Any) -> Array:
    """One number in [0, 1) for each pair of whole numbers, which depends on the pair and the key
    alone, wherever the pair stands.

    With the house's generator it takes one block; others fold both numbers into the key.

    Args:
      key: consumed.
      first: of the pairs, from 0 to 2**30 - 1.
      second: of the pairs, of the same shape.
      dtype: of the numbers.
    """
    width = np.dtype(dtype)
    if not _is_house(key) or width not in (np.float32, np.float64):

        def one(first: Array, second: Array) -> Array:
            pair = jax.random.fold_in(jax.random.fold_in(key, first), second)
            return jax.random.uniform(pair, (), dtype)

        return jax.vmap(one)(first.reshape(-1), second.reshape(-1)).reshape(first.shape)
    high, low = (number.astype(np.uint32) for number in (first, second))
    high, low = _apart(threefry(jax.random.key_data(key), high, low))
    if width == np.float32:
        return (high >> np.uint32(8)).astype(dtype) * np.float32(2.0**-24)
    high, low = (high >> np.uint32(5)).astype(dtype), (low >> np.uint32(6)).astype(dtype)
    return (high * 2.0**26 + low) * 2.0**-53


def _is_house(key: Array) -> bool:
    return jax.random.key_impl(key) == _HOUSE


@functools.partial(jax.jit, static_argnums=1)
def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    return _box_muller(*_apart(threefry(key, *_places(shape))))


@functools.partial(jax.jit, static_argnums=1)
def _noise(key: Array, shape: tuple[int, ...]) -> list[Array]:
    """Both words of blocks for an array that is added to another: in the loop that adds them,
    unless one number is for a whole row.
    """
    drawn = threefry(key, *_places(shape))
    return list(_apart(drawn) if shape[-1:] in ((), (1,)) else drawn)


def _box_muller(first: Array, second: Array) -> Array:
    return jnp.sqrt(_minus_two_log(first)) * _half_turn(second)


def _polar(first: Array, second: Array) -> tuple[Array, Array]:
    """The square of the radius and the sine of the angle of two normal numbers, of 63 bits.

    The angle is uniform over half a turn, so that its sine has either sign and its cosine has not.
    The radius has the last nine bits of the second word besides its own 31, by which its
    distribution reaches to 7.54; the angle has the first 23, and the last of the first is left.
    """
    finer = ((second & np.uint32(0x1FF)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-9)
    turn = (_signed(second) >> np.int32(9)).astype(np.float32) * np.float32(2**-23)
    turn = turn + np.float32(2**-24)
    return _minus_two_log(first, finer), turn * _horner(_SINE, turn * turn)


def _normal_pair(first: Array, second: Array) -> tuple[Array, Array]:
    """Two independent standard normal numbers, of 64 bits."""
    squared_radius, sine = _polar(first, second)
    cosine = jnp.sqrt(jnp.maximum(1 - sine * sine, 0))
    signed = jnp.where((first & np.uint32(1)) == 1, -cosine, cosine)
    radius = jnp.sqrt(squared_radius)
    return radius * sine, radius * signed


def _on_fine_steps(drawn: Array, smoothing: Array, fine: float) -> Array:
    """A draw on coarse steps, which a normal number on fine steps smooths. All products and sums
    are of integers below 2**24 times powers of two, and exact.
    """
    own = jnp.floor(drawn * COARSE_STEPS + 0.5) / COARSE_STEPS
    deviation = SMOOTHING * fine / COARSE_STEPS  # in fine steps
    return own + jnp.floor(smoothing * deviation + 0.5) / fine


def _minus_two_log(word: Array, finer: Array | float = 0.5) -> Array:
    """Of the number in the ``word``-th of equal parts of (0, 1), 31 bits of it; ``finer`` is where
    in that part, its middle by default.
    """
    part = _signed(word >> np.uint32(1))
    behind = np.float32(2**-31) * finer
    q = part.astype(np.float32) * np.float32(2**-31) + behind
    # q = 2**power * (1 + rest), with 1 + rest from 1/sqrt(2) to sqrt(2): its bits from there on
    least = np.float32(0.5**0.5).view(np.int32)
    bits = lax.bitcast_convert_type(q, np.int32) - least
    power = bits >> np.int32(23)
    scaled = lax.bitcast_convert_type((bits & np.int32(0x7FFFFF)) + least, np.float32)
    to_one = (part - np.int32(2**31 - 1) - np.int32(1)).astype(np.float32) * np.float32(2**-31)
    rest = jnp.where(power == 0, to_one + behind, scaled - 1)
    return rest * _horner(_LOG, rest) - np.float32(2 * np.log(2)) * power.astype(np.float32)


def _half_turn(word: Array) -> Array:
    r""":math:`\sin\pi t` of the 32 bits of :math:`t`."""
    turn = _middle(_signed(word)) * np.float32(0.5)
    return turn * _horner(_SINE, turn * turn)


def _wide_normal(*bits: Array) -> Array:
    """In double precision, of 64 bits of :math:`q` and of :math:`t` each."""
    high, low = _signed(bits[2]).astype(np.float64), bits[3].astype(np.float64)
    turn = high * 2.0**-32 + (low + 0.5) * 2.0**-64
    return jnp.sqrt(_wide_minus_two_log(*bits[:2])) * (turn * _horner(_WIDE_SINE, turn * turn))


def _wide_minus_two_log(high: Array, low: Array) -> Array:
    """As the logarithm rounds, whose argument is near 1 too seldom to matter."""
    q = high.astype(np.float64) * 2.0**-32 + (low.astype(np.float64) + 0.5) * 2.0**-64
    return -2 * jnp.log(q)


def _signed(word: Array) -> Array:
    return lax.bitcast_convert_type(word, np.int32)


def _middle(part: Array) -> Array:
    """In (-1, 1), of an integer of 32 bits: symmetric about zero."""
    return part.astype(np.float32) * np.float32(2**-31) + np.float32(2**-32)


def _horner(coefficients: Sequence[float], x: Array) -> Array:
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + np.asarray(coefficient, x.dtype)
    return total
