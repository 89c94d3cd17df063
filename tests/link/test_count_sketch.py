"""Count sketches: their tables, linearity, estimates, and large entries among many small ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fljax.link import CountSketch
from tests.reference.compressed import count_sketch, estimates_of

close = np.testing.assert_allclose
VECTORS = np.random.default_rng(0).normal(size=(4, 9))


@pytest.mark.parametrize("sketch", [CountSketch(1, 4), CountSketch(2, 3), CountSketch(5, 1)])
def test_tables_and_estimates_are_those_of_the_loop(sketch):
    hashes = sketch.draw(jax.random.key(1), 9)
    cells, signs = map(np.asarray, hashes)
    tables = sketch.sketch(hashes, jnp.asarray(VECTORS))
    assert tables.shape == (4, sketch.size)
    estimates = sketch.estimate(hashes, tables)
    for vector, table, estimate in zip(VECTORS, tables, estimates, strict=True):
        expected = count_sketch(vector, cells, signs, sketch.columns)
        close(table, expected.reshape(-1), rtol=0, atol=1e-14)
        close(estimate, estimates_of(expected, cells, signs), rtol=0, atol=1e-14)


def test_the_table_of_a_sum_is_the_sum_of_the_tables():
    sketch = CountSketch(3, 4)
    hashes = sketch.draw(jax.random.key(2), 9)
    weights = np.array([0.5, -2.0, 1.0, 3.0])
    mixed = sketch.sketch(hashes, jnp.asarray(weights @ VECTORS)[None])[0]
    close(weights @ np.asarray(sketch.sketch(hashes, jnp.asarray(VECTORS))), mixed, atol=1e-13)


def test_hash_functions_are_uniform_and_independent():
    cells, signs = map(np.asarray, CountSketch(4, 6).draw(jax.random.key(3), 30_000))
    assert cells.shape == signs.shape == (4, 30_000)
    for row in range(4):
        joint = 2 * cells[row] + (signs[row] > 0)
        assert stats.chisquare(np.bincount(joint, minlength=12)).pvalue > 1e-4
        other = 12 * (2 * cells[row - 1] + (signs[row - 1] > 0)) + joint
        assert stats.chisquare(np.bincount(other, minlength=144)).pvalue > 1e-4
    assert set(np.unique(signs)) == {-1, 1}


def test_entries_that_share_no_cell_are_exact():
    sketch = CountSketch(5, 4000)
    hashes = sketch.draw(jax.random.key(4), 9)
    close(sketch.estimate(hashes, sketch.sketch(hashes, jnp.asarray(VECTORS))), VECTORS, rtol=1e-13)


def test_large_entries_are_found_in_a_table_far_shorter_than_the_vector():
    """Charikar et al. 2002: an error of the norm of the small ones over the root of the columns,
    at all entries, for a number of rows that grows as the logarithm of the entries.
    """
    rng = np.random.default_rng(5)
    vector = 0.01 * rng.normal(size=20_000)
    large = rng.choice(20_000, 10, replace=False)
    vector[large] = rng.choice([-1.0, 1.0], 10) * rng.uniform(1, 2, 10)
    sketch = CountSketch(15, 200)
    hashes = sketch.draw(jax.random.key(6), 20_000)
    tables = sketch.sketch(hashes, jnp.asarray(vector)[None])
    estimate = np.asarray(sketch.estimate(hashes, tables))[0]
    assert set(np.argsort(-np.abs(estimate))[:10]) == set(large)
    small = np.delete(vector, large)
    assert np.abs(estimate - vector).max() < 4 * np.linalg.norm(small) / np.sqrt(200)
