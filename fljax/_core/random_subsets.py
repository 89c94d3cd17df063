"""Random subsets and orders of indices, for clients, samples and parameters."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from fljax._core.devices import on_cpu
from fljax._core.prng import integers_below
from fljax._core.sorting import in_order

#: Up to this number of indices, index and random number share 31 bits, with 20 for the latter.
PACKED_SIZE = 2**11


#: ``top_k`` is used if at most one index in this many is wanted; otherwise all are sorted.
SELECTED_BELOW = 10


#: Beyond this number of units, the segment of a point is found by binary search. Otherwise a point
#: is compared with all units, which XLA fuses into one pass (a quarter of the time for a hundred).
SEARCHED_BEYOND = 2**9


def systematic(
    key: Array, probability: Float[Array, " units"], count: Array | int, most: int
) -> Int[Array, " most"]:
    """Draw ``count`` units, unit ``n`` in expectation ``count * probability[n]`` times.

    Units in random order are placed as segments on a line of length ``count``; those whose segments
    contain the points ``u, u + 1, ...`` are drawn. A unit longer than one may be drawn repeatedly.

    Args:
      key: consumed.
      probability: ``[N]``, with sum one.
      count: number of draws, possibly traced.
      most: the largest count; draws beyond ``count`` must be ignored.

    Reference:
      Rizk 2023, section 2.4.3, (2.55), with the random order of Hartley and Rao 1962.
    """
    order, start = jax.random.split(key)
    units = subset(order, len(probability), len(probability))
    start = jax.random.uniform(start, (1,), probability.dtype)
    return on_line(units, start, probability, count, most)[0]


def on_line(
    units: Int[Array, " units"],
    starts: Float[Array, " draws"],
    probability: Float[Array, " units"],
    count: Array | int,
    most: int,
) -> Int[Array, "draws most"]:
    """The units, in this order, whose segments contain ``start``, ``start + 1``, ..."""
    length = probability[units]
    ends = _cumulative_sum(length)
    # The last end is exactly `count` in spite of rounding.
    ends = ends * (jnp.asarray(count, ends.dtype) / ends[-1])
    points = starts[:, None] + jnp.arange(most, dtype=probability.dtype)[None]
    if len(units) > SEARCHED_BEYOND:
        segment = jnp.searchsorted(ends, points, side="right")
    else:
        segment = jnp.sum(ends[None, None] <= points[..., None], axis=2, dtype=jnp.int32)
    # In spite of rounding a unit of zero length is never drawn.
    last = jnp.max(jnp.where(length > 0, jnp.arange(len(units), dtype=jnp.int32), 0))
    return units[jnp.minimum(segment, last)]


def _cumulative_sum(values: Float[Array, " units"]) -> Float[Array, " units"]:
    """Cumulative sums by repeated doubling of the summed range (Hillis and Steele 1986).

    On a CPU three times as fast as ``jnp.cumsum`` for a hundred numbers.
    """
    distance = 1
    while distance < len(values):
        zero = jnp.zeros((), values.dtype)
        values = values + jax.lax.pad(values, zero, [(distance, -distance, 0)])
        distance *= 2
    return values


def subset(key: Array, clients: int, count: int) -> Int[Array, " count"]:
    """Draw ``count`` clients uniformly without replacement, in random order.

    Every subset is equally likely, up to a share of ``clients * count / 2**64``.
    """
    if clients <= PACKED_SIZE or count**2 > clients:
        return uniform_subsets(key, jnp.ones((1, clients), bool), count)[0]
    # Sorting a million numbers takes half a second, so only the drawn ones are sorted.
    k_drawn, k_order = jax.random.split(key)
    sizes, counts = (jnp.full(1, n, jnp.int32) for n in (clients, count))
    drawn = distinct(k_drawn, sizes, counts, (1, 1, count), clients)[0, 0]
    return drawn[shuffled(k_order, jnp.ones(count, bool))]


def distinct(
    key: Array,
    counts: Int[Array, " chosen"],
    sizes: Int[Array, " chosen"],
    shape: tuple[int, int, int],
    none: int,
) -> Int[Array, "chosen steps most"]:
    """Draw ``sizes`` distinct numbers below ``counts`` in each step; unused entries are ``none``.

    Each number is drawn from a range larger by one than the previous; if it was drawn before, the
    newest number of the range replaces it (Floyd; Bentley 1987). Without sorting, ten of a hundred
    samples are drawn in a tenth of the time.
    """
    counts = counts[:, None, None]
    sizes = sizes[:, None, None]
    position = jnp.arange(shape[2], dtype=jnp.int32)[None, None]
    newest = jnp.broadcast_to(counts - sizes + position, shape)
    drawn = integers_below(key, shape, newest + 1)

    def insert(i: Array, chosen: Array) -> Array:
        newest_number, candidate = (
            jax.lax.dynamic_index_in_dim(a, i, axis=2) for a in (newest, drawn)
        )
        candidate = jnp.where(
            jnp.any(chosen == candidate, axis=2, keepdims=True), newest_number, candidate
        )
        return jnp.where((position == i) & (i < sizes), candidate, chosen)

    return jax.lax.fori_loop(0, shape[2], insert, jnp.full(shape, none, jnp.int32))


def uniform_subsets(
    key: Array, first: Bool[Array, "*batch size"], most: int
) -> Int[Array, "*batch most"]:
    """As :func:`shuffled`, but all subsets of ``most`` marked indices are exactly equally likely.

    In :func:`shuffled` the smaller of two indices with equal random numbers is first, so that small
    indices are drawn too often (one of 2,048 by a thousandth). Here a row is redrawn if the last
    chosen and the first other random number are equal. This event does not depend on which index
    has which number, so given that it does not occur, all subsets are equally likely.

    Args:
      key: consumed.
      first: ``[..., n]``.
      most: how many indices of each row are wanted.
    """
    size = first.shape[-1]
    if most >= size or most == 0:  # there is only one subset
        return shuffled(key, first, most)

    def tied(number: Array) -> Array:
        return number[..., most - 1] == number[..., most]

    def redraw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tries, order, number = state
        redrawn = _shuffled_with_numbers(jax.random.fold_in(key, tries), first, most + 1)
        is_tied = tied(number)[..., None]
        order, number = (
            jnp.where(is_tied, *choices) for choices in zip(redrawn, (order, number), strict=True)
        )
        return tries + 1, order, number

    state = (jnp.int32(1), *_shuffled_with_numbers(key, first, most + 1))
    order = jax.lax.while_loop(lambda state: jnp.any(tied(state[2])), redraw, state)[1]
    return order[..., :most]


def shuffled(
    key: Array, first: Bool[Array, "*batch size"], most: int | None = None
) -> Int[Array, "*batch most"]:
    """Return indices of the last axis in random order, indices marked ``first`` before the others.

    While both fit, one integer holds a random number and, in its last bits, the index: XLA sorts
    single numbers five times faster than pairs. For equal random numbers the smaller index is
    first, which matters where many indices leave few bits for the random numbers.

    Args:
      key: consumed.
      first: ``[..., n]``.
      most: how many indices of each row are wanted, by default all. The result is a prefix of that
        of the default, in an eighth of the time for few of 300, since the others are not sorted.
    """
    return _shuffled_with_numbers(key, first, first.shape[-1] if most is None else most)[0]


def shuffled_by_count(key: Array, first: Bool[Array, "*batch size"]) -> Int[Array, "*batch size"]:
    """As :func:`shuffled`, in time that goes by the marked indices of a row and not by its length.

    Indices after the last marked one need no order, and are ``n`` or any of them. On a CPU each row
    is sorted by a program for the next power of two, of which there are a few: rows of a power law
    in a fifth of the time.

    Args:
      key: consumed.
      first: ``[..., n]``.
    """
    size = first.shape[-1]
    if size <= PACKED_SIZE:
        return shuffled(key, first)
    index = jax.lax.broadcasted_iota(jnp.int32, first.shape, first.ndim - 1)
    extent = jnp.max(jnp.where(first, index + 1, 0), axis=-1)
    bits = jax.random.bits(key, first.shape, jnp.uint32) >> 1
    # Where index and random number share an integer, the number has fewer bits on every device.
    bits = jnp.where(extent[..., None] <= PACKED_SIZE, bits & ~jnp.uint32(PACKED_SIZE - 1), bits)
    bits = jnp.where(first, jnp.uint32(0), jnp.uint32(2**31)) | bits
    if on_cpu():
        rows = _order_up_to(bits.reshape(-1, size), extent.reshape(-1))
        return rows.reshape(first.shape)
    return jax.lax.sort((bits, index), num_keys=1)[1]


@jax.custom_batching.custom_vmap
def _order_up_to(
    numbers: UInt32[Array, "rows size"], extents: Int[Array, " rows"]
) -> Int[Array, "rows size"]:
    """The order of each row's numbers up to its extent; under ``vmap`` still row by row, so that
    each row has a length of its own.
    """
    size = numbers.shape[1]
    lengths = [2**power for power in range(6, (size - 1).bit_length())] + [size]

    def order_of_first(length: int, row: Array) -> Array:
        index = jnp.arange(length, dtype=jnp.uint32)
        if length <= PACKED_SIZE:
            packed = jax.lax.sort(row[:length] | index, is_stable=False)
            order = packed & jnp.uint32(PACKED_SIZE - 1)
        else:
            order = jax.lax.sort((row[:length], index), num_keys=1)[1]
        return jnp.pad(order.astype(jnp.int32), (0, size - length), constant_values=size)

    def order_of(row: tuple[Array, Array]) -> Array:
        numbers, extent = row
        shortest = jnp.sum(jnp.asarray(lengths, jnp.int32) < extent, dtype=jnp.int32)
        programs = [partial(order_of_first, length) for length in lengths]
        return jax.lax.switch(shortest, programs, numbers)

    return jax.lax.map(order_of, (numbers, extents))


@_order_up_to.def_vmap
def _order_up_to_over_seeds(
    size: int, mapped: list[bool], numbers: Array, extents: Array
) -> tuple[Array, bool]:
    numbers, extents = (
        array if is_mapped else jnp.broadcast_to(array, (size, *array.shape))
        for array, is_mapped in zip((numbers, extents), mapped, strict=True)
    )
    length = numbers.shape[-1]
    rows = _order_up_to(numbers.reshape(-1, length), extents.reshape(-1))
    return rows.reshape(numbers.shape), True


def _shuffled_with_numbers(
    key: Array, first: Bool[Array, "*batch size"], most: int
) -> tuple[Int[Array, "*batch most"], Array]:
    """Indices as in :func:`shuffled`, and the random numbers that they are sorted by."""
    size = first.shape[-1]
    bits = jax.random.bits(key, first.shape, jnp.uint32) >> 1
    bits = jnp.where(first, jnp.uint32(0), jnp.uint32(2**31)) | bits
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), first.shape)
    if size > PACKED_SIZE:
        numbers, order = jax.lax.sort((bits, index), num_keys=1)
        return order[..., :most].astype(jnp.int32), numbers[..., :most]
    width = (size - 1).bit_length()
    # XLA's top_k is fast in single precision: random bits must fit into its 24 bits.
    if SELECTED_BELOW * most <= size and 32 - width <= jnp.finfo(jnp.float32).nmant + 1:
        score = -(bits >> width).astype(jnp.int32).astype(jnp.float32)
        numbers, order = jax.lax.top_k(score, most)
        return order.astype(jnp.int32), numbers
    low = jnp.uint32(2**width - 1)
    packed = _ascending((bits & ~low) | index)[..., :most]
    return (packed & low).astype(jnp.int32), packed >> width


@jax.custom_batching.custom_vmap
def _ascending(rows: UInt32[Array, "*batch size"]) -> UInt32[Array, "*batch size"]:
    """Sort along the last axis; under ``vmap`` the rows of all seeds are sorted together."""
    flat = rows.reshape(-1, rows.shape[-1], 1)
    return in_order(flat)[0].reshape(rows.shape)


@_ascending.def_vmap
def _ascending_over_seeds(size: int, mapped: list[bool], rows: Array) -> tuple[Array, bool]:
    del size, mapped  # the only argument, with its new axis in front
    return _ascending(rows), True
