"""Random numbers of runs: the library's generator, others by name, normal and private draws.

A number costs one block of Threefry-2x32 (20 rounds; Salmon, Moraes, Dror & Shaw 2011, the function
behind JAX's default generator). It is unrolled, so that XLA's CPU backend keeps it in registers.
Number ``k`` of a draw depends only on the key and on ``k``, not on the shape, ``vmap``, blocks or
devices. The function has neither wide multiplications nor loops, so every partitioner can split it.

A block is a bijection of 64 bits for each key. The first two bits of its input encode the purpose:
numbers of a draw, keys from ``split``, keys from ``fold_in``. So all keys derived from one key
differ, at most 2**62 of either kind, and differ from the numbers drawn with it. Keys with different
ancestors collide only by chance, as 64 random bits do.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype

#: The name of the library's generator.
GENERATOR = "fljax-threefry"

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)
_ROUNDS = 20

#: The purpose of a block, in the first two bits of its input.
_DRAWN = np.uint32(0)
_SPLIT = np.uint32(1 << 30)
_FOLDED = np.uint32(1 << 31)

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

#: Coefficients of the same function's Taylor series, to double precision.
_WIDE_SINE = tuple(
    (-1) ** i * math.pi ** (2 * i + 1) / math.factorial(2 * i + 1) for i in range(12)
)

#: Steps per standard deviation, or scale, of private draws: normal numbers in short and in long
#: rows in single precision, Laplace numbers in single precision, all numbers in double precision.
#: The largest draw must be less than 2**24 (2**53) steps, so that it is represented exactly.
SHORT_STEPS = 2.0**17
FINE_STEPS = 2.0**20
LAPLACE_STEPS = 2.0**18
WIDE_STEPS = 2.0**40

#: Rows up to this length have coarse steps, for which one normal number per draw has enough bits.
#: The cost of rounding to the grid, in sensitivity, grows with the square root of the length.
SHORT_ROW = 512

#: Steps of the first of the two numbers that make up a draw in longer rows. A product with it keeps
#: at least eight bits behind the point, so that the probabilities of all steps are accurate.
COARSE_STEPS = 2.0**12

#: Standard deviation of the second number, in steps of the first.
SMOOTHING = 4.0

#: The largest private normal numbers in single and in double precision, in standard deviations.
#: They come from half of the smallest of 2**40 and 2**64 equal parts of (0, 1).
NORMAL_END = math.sqrt(82 * math.log(2))
WIDE_END = math.sqrt(130 * math.log(2))

#: The key with which keys of other generators are converted: arbitrary digits (of pi).
_CONVERSION_KEY = np.array([0x243F6A88, 0x85A308D3], np.uint32)


class _Counter(NamedTuple):
    """A counter of 64 bits, in two words."""

    high: Array
    low: Array


@jax.jit
def threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """The words of Threefry-2x32 with 20 rounds for a key ``[2]`` at these counters."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x = high + keys[0]
    y = low + keys[1]
    for round_number in range(_ROUNDS):
        rotation = _ROTATIONS[round_number % 8]
        x = x + y
        y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        if round_number % 4 == 3:
            injection = round_number // 4 + 1
            x = x + keys[injection % 3]
            y = y + keys[(injection + 1) % 3] + np.uint32(injection)
    return x, y


def _counters(shape: tuple[int, ...]) -> _Counter:
    """The index of each entry of an array.

    If an array has more than 2**32 entries, the index of its leading axes is in the upper word.
    """
    first = len(shape)
    while first > 0 and math.prod(shape[first - 1 :]) < 2**32:
        first -= 1
    if math.prod(shape[:first]) > 2**30:  # the other two bits of the upper word are the purpose
        raise ValueError(f"2**32 numbers along an axis are more than can be drawn, got {shape}.")

    def count(axes: range) -> Array:
        total = jnp.zeros(shape, np.uint32)
        stride = 1
        for axis in reversed(axes):
            # A sum of iotas instead of a reshaped arange: partitioners can split it along any axis.
            total = total + lax.broadcasted_iota(np.uint32, shape, axis) * np.uint32(stride)
            stride *= shape[axis]
        return total

    return _Counter(count(range(first)), count(range(first, len(shape))))


def _seed(seed: Array) -> Array:
    """The 64 bits of an integer; a narrower one is sign-extended."""
    high = (seed >> 16) >> 16
    return jnp.stack([high.astype(np.uint32), seed.astype(np.uint32)])


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    counter = _counters(tuple(shape))
    return _stacked_words(threefry(key, counter.high | _SPLIT, counter.low), axis=-1)


def _fold_in(key: Array, number: Array) -> Array:
    return _stacked_words(threefry(key, jnp.full_like(number, _FOLDED), number))


def _stacked_words(block_words: tuple[Array, Array], axis: int = 0) -> Array:
    """Both words of blocks in one array, behind a barrier that keeps XLA from recomputing them.

    XLA would fuse the blocks into the loops that use them. If they do not depend on the innermost
    index (keys; numbers drawn once for a whole row), LLVM expands both words of each of the 20
    rounds recursively, more than 2**20 expressions, and does not terminate. The barrier prevents
    the fusion in the newest XLA, the stacking in older versions.
    """
    return lax.optimization_barrier(jnp.stack(block_words, axis))


def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    first, second = _stacked_words(threefry(key, *_counters(tuple(shape))))
    if width == 64:
        return (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)
    return first.astype(f"uint{width}")


_PRNG_IMPL = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,  # pyright: ignore[reportArgumentType]  # JAX passes an array
    name=GENERATOR,
    tag=GENERATOR,
)

#: The generators of runs, by JAX's name or implementation. Their bits do not depend on ``vmap``,
#: and their keys are long enough for millions of draws (not ``philox2x32``). ``threefry4x32`` is
#: missing since XLA takes minutes to compile its permutations for a CPU.
GENERATORS = {GENERATOR: _PRNG_IMPL, "threefry2x32": "threefry2x32", "philox4x32": "philox4x32"}


def check_generator(generator: str) -> None:
    """Raise ``ValueError`` unless runs can draw from the generator of this name."""
    if isinstance(generator, str) and generator in ("rbg", "unsafe_rbg"):
        raise ValueError(
            f"with generator {generator!r} a run would get different numbers in another block (its "
            f"bits change under vmap); take one of {', '.join(GENERATORS)}."
        )
    checks.choice("generator", generator, GENERATORS)


@checked
def random_key(seed: int = 0, generator: str = GENERATOR) -> Array:
    """Create a random key from an integer, as :func:`jax.random.key` does for JAX's generators.

    Args:
      seed: of the key.
      generator: as of :func:`fljax.sweep`; a result's is its attribute ``prng``.

    Example:
      >>> import fljax as fl
      >>> fl.problems.ridge(fl.random_key(1), clients=5, samples=10, dim=2).clients
      5
    """
    check_generator(generator)
    checks.seed("seed", seed)
    return jax.random.key(int(seed), impl=GENERATORS[generator])


def name_of(key: Array) -> str:
    """The name of the generator that a key is for."""
    return str(jax.random.key_impl(key))


def as_key(key: Array | int, generator: str | None = None) -> Array:
    """Return a key, or create one from an integer with a generator, by default the library's.

    Raises:
      ValueError: both a key and a generator.
      TypeError: neither a single key nor an integer.
    """
    if isinstance(key, int | np.integer):
        checks.seed("key", key)
        return random_key(key, generator or GENERATOR)
    checks.key("key", key, " or an integer")
    if generator is not None:
        raise ValueError(
            f"generator={generator!r} is for integer keys, and this key is of {name_of(key)!r}; "
            "leave generator out, or pass an integer."
        )
    return key


def normal(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    r"""Standard normal draws.

    With a key of another generator, or in double precision, this is ``jax.random.normal``.

    Number :math:`k` is :math:`\sqrt{-2\ln q}\,\sin\pi t`, with :math:`q\in(0,1)` and
    :math:`t\in(-\frac12,\frac12)` uniform, from the two words of block :math:`k` (Box & Muller
    1958; the sine of an angle uniform on a half circle has the same distribution as on the circle).
    The 32 bits of :math:`q` limit draws to 6.66 standard deviations; :math:`x` and :math:`-x` are
    equally likely. The result is within 5 ulp of the formula: for :math:`q` near 1 the logarithm is
    computed from the exact distance to 1.

    Args:
      key: consumed.
      shape: of the draws.
      dtype: of the draws.
    """
    if not _is_library_key(key) or np.dtype(dtype) != np.float32:
        return jax.random.normal(key, shape, dtype)
    return _normal(jax.random.key_data(key), tuple(shape))


def private_normal(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    r"""Standard normal draws for private messages: multiples of a step (:func:`normal_steps`).

    Keys of any generator are converted to the library's. The sum of two floats has traces of both
    in its last bits (Mironov 2012). A multiple of a step, added to a message that is rounded to
    multiples of the same step (:func:`fljax.privacy.discrete.perturbed`), leaves none. In single
    precision there are two kinds.

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
    shape = tuple(shape)
    key = library_key(key)
    steps = normal_steps(dtype, shape)
    if np.dtype(dtype) == np.float64:
        return jnp.floor(_wide_normal(*words(key, shape, 4)) * steps + 0.5) / steps
    bits = _noise(jax.random.key_data(key), shape)
    if steps == FINE_STEPS:
        return _smoothed_on_fine_steps(*_normal_pair(*bits), steps)
    squared_radius, sine = _polar(*bits)
    return jnp.floor(jnp.sqrt(squared_radius) * sine * steps + 0.5) / steps


def normal_steps(dtype: DTypeLike, shape: tuple[int, ...]) -> float:
    """Steps per standard deviation of private normal draws of this type and shape."""
    if np.dtype(dtype) == np.float64:
        return WIDE_STEPS
    return SHORT_STEPS if not shape or shape[-1] <= SHORT_ROW else FINE_STEPS


def private_laplace(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    r"""Laplace draws of scale one for private messages.

    A draw is :math:`\sqrt{-2\ln q}` times a standard normal number, from 95 random bits and up to
    50 scales, or from 192 bits and up to 90 scales in double precision.

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
    return _smoothed_on_fine_steps(
        jnp.sqrt(_minus_two_log(first)) * normal, smoothing, LAPLACE_STEPS
    )


def laplace_steps(dtype: DTypeLike) -> float:
    """Steps per scale of private Laplace draws of this type."""
    return WIDE_STEPS if np.dtype(dtype) == np.float64 else LAPLACE_STEPS


def library_key(key: Array) -> Array:
    """Convert a key of any generator to a key of the library's generator.

    JAX's generators derive keys with the function that also draws numbers: the ``i``-th key of
    ``split`` equals ``fold_in(key, i)``, and both are numbers of a draw. Private draws must differ
    from public ones. So a key of another generator is encrypted as a counter of the library's
    generator under a constant key: different keys stay different, and collide with keys that JAX
    derives only by chance, as 64 random bits do.
    """
    if _is_library_key(key):
        return key
    data = jax.random.key_data(key)
    mixed = jnp.asarray(_CONVERSION_KEY)
    for first in range(0, data.shape[-1], 2):
        high = data[..., first]
        low = data[..., min(first + 1, data.shape[-1] - 1)]
        mixed = jnp.stack(threefry(mixed, high, low))
    return jax.random.wrap_key_data(mixed, impl=_PRNG_IMPL)


def words(key: Array, shape: tuple[int, ...], count: int) -> list[Array]:
    """``count`` random words of 32 bits for every entry of an array.

    Args:
      key: consumed; of any generator, see :func:`library_key`.
      shape: of the array.
      count: number of words.
    """
    keys = jax.random.key_data(jax.random.split(library_key(key), -(-count // 2)))
    return [word for part in keys for word in _noise(part, tuple(shape))][:count]


def rate_drawn(rate: ArrayLike) -> Array | float:
    r"""Return the probability with which :func:`bernoulli` draws for this rate, exactly.

    It is the rate in the default precision, rounded down to a multiple of :math:`2^{-64}`.

    In single precision this is the rate itself from :math:`2^{-40}` on, in double precision from
    :math:`2^{-11}` on; from :math:`2^{-24}` on it is less by a share of at most :math:`2^{-40}`.
    Below :math:`2^{-64}` it is zero. Privacy accounting uses this number.

    Args:
      rate: in [0, 1], possibly traced.
    """
    if checks.is_concrete(rate) and not np.ndim(rate):
        return float(np.floor(np.asarray(rate, float_dtype()) * 2.0**64)) * 2.0**-64
    return jnp.floor(jnp.asarray(rate, float_dtype()) * 2.0**64) * 2.0**-64


def bernoulli(key: Array, shape: tuple[int, ...], rate: object) -> Array:
    r"""Return booleans that are true with probability :func:`rate_drawn`, independently.

    A uniform integer of 64 bits is compared with :math:`\lfloor2^{64}p\rfloor`, in two words: with
    the library's generator both come from one block. (A uniform float of single precision has 23
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
    upper, rest = _wide_product(high, limit)
    carry_in, _ = _wide_product(low, limit)
    # The sum of two words wraps where it is less than either of them.
    return (upper + (rest + carry_in < rest).astype(np.uint32)).astype(np.int32)


def _wide_product(first: Array, second: Array) -> tuple[Array, Array]:
    """Both words of the product of 32-bit integers, from products of 16-bit halves."""
    half = np.uint32(16)
    low = np.uint32(0xFFFF)
    first_high = first >> half
    first_low = first & low
    second_high = second >> half
    second_low = second & low
    middle = first_high * second_low + ((first_low * second_low) >> half)
    other = first_low * second_high + (middle & low)
    return first_high * second_high + (middle >> half) + (other >> half), first * second


def _two_words(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Two random words for every entry of an array, from one block of the library's generator."""
    data = jax.random.key_data(library_key(key))
    high, low = _stacked_words(threefry(data, *_counters(shape)))
    return high, low


def uniform_of_pairs(key: Array, first: Array, second: Array, dtype: DTypeLike) -> Array:
    """One number in [0, 1) for each pair of integers, which depends only on the pair and the key.

    The library's generator needs one block; with others both integers are folded into the key.

    Args:
      key: consumed.
      first: of the pairs, from 0 to 2**30 - 1.
      second: of the pairs, of the same shape.
      dtype: of the numbers.
    """
    float_type = np.dtype(dtype)
    if not _is_library_key(key) or float_type not in (np.float32, np.float64):

        def fold_pair(first: Array, second: Array) -> Array:
            pair = jax.random.fold_in(jax.random.fold_in(key, first), second)
            return jax.random.uniform(pair, (), dtype)

        return jax.vmap(fold_pair)(first.reshape(-1), second.reshape(-1)).reshape(first.shape)
    high, low = (number.astype(np.uint32) for number in (first, second))
    high, low = _stacked_words(threefry(jax.random.key_data(key), high, low))
    if float_type == np.float32:
        return (high >> np.uint32(8)).astype(dtype) * np.float32(2.0**-24)
    high = (high >> np.uint32(5)).astype(dtype)
    low = (low >> np.uint32(6)).astype(dtype)
    return (high * 2.0**26 + low) * 2.0**-53


def _is_library_key(key: Array) -> bool:
    return jax.random.key_impl(key) == _PRNG_IMPL


@functools.partial(jax.jit, static_argnums=1)
def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    return _box_muller(*_stacked_words(threefry(key, *_counters(shape))))


@functools.partial(jax.jit, static_argnums=1)
def _noise(key: Array, shape: tuple[int, ...]) -> list[Array]:
    """Both words of blocks for noise that is added to an array.

    XLA fuses them into the loop that adds the noise, unless one number is used for a whole row.
    """
    drawn = threefry(key, *_counters(shape))
    return list(_stacked_words(drawn) if shape[-1:] in ((), (1,)) else drawn)


def _box_muller(first: Array, second: Array) -> Array:
    return jnp.sqrt(_minus_two_log(first)) * _sin_pi(second)


def _polar(first: Array, second: Array) -> tuple[Array, Array]:
    """The squared radius and the sine of the angle of two normal numbers, from 63 bits.

    The angle is uniform over half a turn, so that its sine has either sign but its cosine is
    positive. The radius has 31 bits of the first word and the last nine of the second, so that its
    distribution reaches to 7.54; the angle has the other 23. One bit remains for the cosine's sign.
    """
    fraction = (second & np.uint32(0x1FF)).astype(np.float32) + np.float32(0.5)
    fraction = fraction * np.float32(2**-9)
    angle = (_signed(second) >> np.int32(9)).astype(np.float32) * np.float32(2**-23)
    angle = angle + np.float32(2**-24)
    return _minus_two_log(first, fraction), angle * _horner(_SINE, angle * angle)


def _normal_pair(first: Array, second: Array) -> tuple[Array, Array]:
    """Two independent standard normal numbers from 64 bits."""
    squared_radius, sine = _polar(first, second)
    cosine = jnp.sqrt(jnp.maximum(1 - sine * sine, 0))
    signed = jnp.where((first & np.uint32(1)) == 1, -cosine, cosine)
    radius = jnp.sqrt(squared_radius)
    return radius * sine, radius * signed


def _smoothed_on_fine_steps(drawn: Array, smoothing: Array, fine_steps: float) -> Array:
    """Round a draw to coarse steps, and smooth it by a normal number on fine steps.

    All operations are exact: they are on integers below 2**24 times powers of two.
    """
    coarse = jnp.floor(drawn * COARSE_STEPS + 0.5) / COARSE_STEPS
    deviation = SMOOTHING * fine_steps / COARSE_STEPS  # in fine steps
    return coarse + jnp.floor(smoothing * deviation + 0.5) / fine_steps


def _minus_two_log(word: Array, fraction: Array | float = 0.5) -> Array:
    """-2 ln(q) for a number q in (0, 1).

    The first 31 bits of the word select one of 2**31 equal parts of (0, 1), and ``fraction`` the
    position within this part, by default its middle.
    """
    part = _signed(word >> np.uint32(1))
    offset = np.float32(2**-31) * fraction
    q = part.astype(np.float32) * np.float32(2**-31) + offset
    # q = 2**power * (1 + rest) with 1 + rest from 1/sqrt(2) to sqrt(2): subtracting the bits of
    # 1/sqrt(2) makes the exponent of q the power.
    sqrt_half_bits = np.float32(0.5**0.5).view(np.int32)
    bits = lax.bitcast_convert_type(q, np.int32) - sqrt_half_bits
    power = bits >> np.int32(23)
    scaled = lax.bitcast_convert_type((bits & np.int32(0x7FFFFF)) + sqrt_half_bits, np.float32)
    distance_to_one = (part - np.int32(2**31 - 1) - np.int32(1)).astype(np.float32) * np.float32(
        2**-31
    )
    rest = jnp.where(power == 0, distance_to_one + offset, scaled - 1)
    return rest * _horner(_LOG, rest) - np.float32(2 * np.log(2)) * power.astype(np.float32)


def _sin_pi(word: Array) -> Array:
    r""":math:`\sin\pi t` for :math:`t` from 32 bits."""
    angle = _midpoint(_signed(word)) * np.float32(0.5)
    return angle * _horner(_SINE, angle * angle)


def _wide_normal(*bits: Array) -> Array:
    """A standard normal number in double precision, from 64 bits for q and 64 for t."""
    high = _signed(bits[2]).astype(np.float64)
    low = bits[3].astype(np.float64)
    angle = high * 2.0**-32 + (low + 0.5) * 2.0**-64
    return jnp.sqrt(_wide_minus_two_log(*bits[:2])) * (angle * _horner(_WIDE_SINE, angle * angle))


def _wide_minus_two_log(high: Array, low: Array) -> Array:
    """-2 ln(q), accurate to the rounding of ``log``; arguments near 1 are too rare to matter."""
    q = high.astype(np.float64) * 2.0**-32 + (low.astype(np.float64) + 0.5) * 2.0**-64
    return -2 * jnp.log(q)


def _signed(word: Array) -> Array:
    return lax.bitcast_convert_type(word, np.int32)


def _midpoint(part: Array) -> Array:
    """Map an integer of 32 bits to (-1, 1), symmetrically about zero."""
    return part.astype(np.float32) * np.float32(2**-31) + np.float32(2**-32)


def _horner(coefficients: Sequence[float], x: Array) -> Array:
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + np.asarray(coefficient, x.dtype)
    return total


#: Purposes of the draws in a round. Each has a separate stream, the same for all algorithms. Append
#: new ones at the end: the index of a purpose determines its stream.
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
    "training",
    "clock",
)


#: Folded into keys of JAX's generators first: an arbitrary number, larger than any index in use.
_DERIVATION_NUMBER = np.uint32(0xB7E15162)


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
    return _derived(key, 1 + PURPOSES.index(purpose))


def round_key(key: Array, round: Array | int) -> Array:
    """The key of a round, counted from 1; round 0 is the preparation of a run."""
    return _derived(key, round)


def _derived(key: Array, number: Array | int) -> Array:
    """Derive a key that differs from all keys that users split off or fold in.

    With JAX's generators ``split(key, n)[i] == fold_in(key, i)``. So a constant that is not an
    index is folded in first.
    """
    if jax.random.key_impl(key) != GENERATORS[GENERATOR]:
        key = jax.random.fold_in(key, _DERIVATION_NUMBER)
    return jax.random.fold_in(key, number)
