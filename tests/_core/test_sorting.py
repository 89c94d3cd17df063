"""Sorting by a network of exchanges, against NumPy's sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax._core import sorting
from fljax._core.sorting import in_order

SIZES = [*range(1, 10), 13, 16, 17, 33, 100]


def numbers_with_ties(size, inner=32, values=None, outer=2):
    """Numbers with many ties, unless there are as many values as is wanted."""
    draw = np.random.default_rng(size).integers(
        0, values or max(size // 2, 2), (outer, size, inner)
    )
    return draw.astype(np.float32)


@pytest.mark.parametrize("inner", [3, 13, 32])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_sorted(size, inner):
    array = numbers_with_ties(size, inner, outer=5)
    array[:, :: max(size // 3, 1)] = np.inf
    (ordered,) = in_order(jnp.asarray(array))
    np.testing.assert_array_equal(ordered, np.sort(array, axis=1))


@pytest.mark.parametrize("size", SIZES)
def test_ties_go_by_the_next_key(size):
    first = numbers_with_ties(size)
    second = numbers_with_ties(size + 1)[:, :size]
    third = np.broadcast_to(np.arange(size, dtype=np.int32)[None, :, None], first.shape)
    ordered = in_order(*map(jnp.asarray, (first, second, third)), keys=3)
    order = np.lexsort((third, second, first), axis=1)
    for array, result in zip((first, second, third), ordered, strict=True):
        np.testing.assert_array_equal(result, np.take_along_axis(array, order, 1))


def test_carried_values_stay_with_their_keys():
    keys = numbers_with_ties(21)
    ordered, places = in_order(
        jnp.asarray(keys),
        jnp.broadcast_to(jnp.arange(21, dtype=jnp.int32)[None, :, None], keys.shape),
    )
    np.testing.assert_array_equal(np.sort(places, axis=1)[..., 0], [np.arange(21)] * 2)
    np.testing.assert_array_equal(np.take_along_axis(keys, np.asarray(places), 1), ordered)


@pytest.mark.parametrize(
    "columns",
    [sorting.MIN_BLOCK_COLUMNS, sorting.MIN_BLOCK_COLUMNS + 1, 3 * sorting.MIN_BLOCK_COLUMNS - 1],
)
def test_blocks_of_columns_are_sorted_one_after_the_other(columns, monkeypatch):
    monkeypatch.setattr(sorting, "BLOCK_BYTES", 1)
    keys = numbers_with_ties(7, columns, outer=1)
    second = numbers_with_ties(8, columns, outer=1)[:, :7]
    ordered = in_order(jnp.asarray(keys), jnp.asarray(second), keys=2)
    order = np.lexsort((second, keys), axis=1)
    np.testing.assert_array_equal(ordered[0], np.take_along_axis(keys, order, 1))
    np.testing.assert_array_equal(ordered[1], np.take_along_axis(second, order, 1))


def test_side_by_side_as_one_by_one():
    array = jnp.asarray(
        np.stack([numbers_with_ties(13, values=1000), -numbers_with_ties(13, values=1000)])
    )
    ordered = jax.jit(jax.vmap(lambda keys: in_order(keys)[0]))(array)
    np.testing.assert_array_equal(ordered, np.sort(array, axis=2))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="others sort by their own functions")
def test_few_rows_are_sorted_by_the_function_of_the_library():
    def program(rows):
        array = jnp.asarray(numbers_with_ties(9, rows, outer=1))
        return jax.jit(in_order).lower(array).compile().as_text()

    assert "sort(" in program(sorting.MIN_ROWS_SINGLE - 1)
    assert "sort(" not in program(sorting.MIN_ROWS_SINGLE)


def test_a_gradient_goes_to_the_place_of_each_number():
    array = jnp.asarray(numbers_with_ties(10, values=10**6))
    weights = jnp.arange(10.0, dtype=array.dtype)[None, :, None]
    gradient = jax.grad(lambda x: jnp.sum(weights * in_order(x)[0]))(array)
    np.testing.assert_array_equal(gradient, np.argsort(np.argsort(array, axis=1), axis=1))
