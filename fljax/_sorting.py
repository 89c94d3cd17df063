"""Sorting along the second axis, many rows side by side."""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Shaped

#: Fewer rows than these are not worth the exchanges' loop; of one array, which XLA sorts in less
#: time than several together, ten to sixty rows of hundreds take it up to five times as long.
FEW, FEW_ALONE = 8, 64
#: Of the columns that are sorted together, and the least number of these: a core's own cache holds
#: the bytes several times, and shorter rows take longer to find than to exchange.
BLOCK_BYTES, LEAST = 2**16, 128


def in_order(*arrays: Shaped[Array, "outer size inner"], keys: int = 1) -> list[Array]:
    """The arrays sorted along their second axis by the first, its ties by the next of ``keys``.

    Numbers that are equal in all keys keep no order. Keys must not be NaN.

    XLA sorts one short row after the other on a CPU, by a function for two numbers. Batcher's
    network of exchanges (Knuth 1998, Algorithm 5.2.2M) treats all rows alike, whatever is in them,
    so that a CPU exchanges many numbers at once: it sorts 13 to 1,000 numbers in a tenth of the
    time, 20 of them in less than NumPy. On other devices, and of few rows, XLA's own function is
    taken.
    """

    def sort(*arrays: Array) -> list[Array]:
        return list(jax.lax.sort(arrays, dimension=1, num_keys=keys, is_stable=False))

    def exchange(*arrays: Array) -> list[Array]:
        return _exchanged(arrays, keys)

    outer, _, inner = arrays[0].shape
    if outer * inner < (FEW_ALONE if len(arrays) == 1 else FEW):
        return sort(*arrays)
    return jax.lax.platform_dependent(*arrays, cpu=exchange, default=sort)


def _exchanged(arrays: tuple[Array, ...], keys: int) -> list[Array]:
    outer, size, inner = arrays[0].shape
    if size < 2:
        return list(arrays)
    columns = outer * inner
    flat = [jnp.swapaxes(array, 0, 1).reshape(size, columns) for array in arrays]
    few = max(LEAST, BLOCK_BYTES // (size * sum(array.dtype.itemsize for array in flat)))
    found = _in_blocks(flat, few, keys) if few < columns else _network(flat, keys)
    return [jnp.swapaxes(array.reshape(size, outer, inner), 0, 1) for array in found]


def _in_blocks(arrays: list[Array], few: int, keys: int) -> list[Array]:
    """So few columns after so few, which stay in a core's own cache meanwhile."""
    size, columns = arrays[0].shape

    def block(number: Array, found: list[Array]) -> list[Array]:
        # The last one begins earlier, and finds some once more.
        first = jnp.minimum(number * few, columns - few)
        these = [jax.lax.dynamic_slice(array, (0, first), (size, few)) for array in arrays]
        return [
            jax.lax.dynamic_update_slice(whole, part, (0, first))
            for whole, part in zip(found, _network(these, keys), strict=True)
        ]

    return jax.lax.fori_loop(0, -(-columns // few), block, arrays)


def _network(arrays: list[Array], keys: int) -> list[Array]:
    """Sorted along the first axis."""
    size = len(arrays[0])
    place = jnp.arange(size, dtype=jnp.int32)
    steps = jnp.asarray(_steps(size))

    def step(number: Array, now: list[Array]) -> list[Array]:
        """Everyone in a pair takes the smaller or the larger one, by its place."""
        bit, value, distance = steps[number]
        first = ((place & bit) == value) & (place < size - distance)
        last = ((place - distance & bit) == value) & (place >= distance)
        partner = place + jnp.where(first, distance, 0) - jnp.where(last, distance, 0)
        other = [array.at[partner].get(mode="promise_in_bounds") for array in now]
        first, last = first[:, None], last[:, None]
        if len(now) == 1:
            (mine,), (its,) = now, other
            larger = jnp.where(last, jnp.maximum(mine, its), mine)
            return [jnp.where(first, jnp.minimum(mine, its), larger)]
        swap = jnp.where(first, _after(now, other, keys), last & _after(other, now, keys))
        return [jnp.where(swap, its, mine) for mine, its in zip(now, other, strict=True)]

    return jax.lax.fori_loop(0, len(steps), step, arrays)


def _after(some: list[Array], others: list[Array], keys: int) -> Bool[Array, "size columns"]:
    """Which are greater than the others by the keys, the first one first."""
    pairs = list(zip(some, others, strict=True))[:keys]

    def with_ties(after: Any, pair: tuple[Array, Array]) -> Any:
        one, other = pair
        return (one > other) | ((one == other) & after)

    return reduce(with_ties, reversed(pairs), False)


def _steps(size: int) -> np.ndarray:
    """The steps of the network: numbers ``i`` and ``i + distance`` are a pair where the bit of
    ``i`` has the value.
    """
    steps = []
    bit = top = 1 << ((size - 1).bit_length() - 1)
    while bit:
        far, value, distance = top, 0, bit
        while True:
            steps.append((bit, value, distance))
            if far == bit:
                break
            far, value, distance = far // 2, bit, far - bit
        bit //= 2
    return np.array(steps, np.int32)
