"""Bounds on the host: never below the exact numbers, and close to them."""

import fractions

import jax
import numpy as np
import pytest

from fljax._core import certified_bounds


def test_rounding_has_a_direction():
    values = np.concatenate([np.random.default_rng(0).normal(size=1000), [0.0, 1e-60, -1e-60]])
    up, down = (
        rounded(values, np.float32)
        for rounded in (certified_bounds.rounded_up, certified_bounds.rounded_down)
    )
    assert up.dtype == down.dtype == np.float32
    assert np.all(up.astype(np.float64) >= values)
    assert np.all(down.astype(np.float64) <= values)
    assert np.all(np.nextafter(up, np.float32(-np.inf)).astype(np.float64) < values)
    np.testing.assert_array_equal(certified_bounds.rounded_up(values, np.float64), values)


@pytest.mark.parametrize("power", [0, 4, 8, 11])
def test_solutions_are_bounded_entry_by_entry(power):
    """Integer matrices, whose inverses are exact as fractions."""
    rng = np.random.default_rng(power)
    size = 4
    for _ in range(5):
        base = rng.integers(-3, 4, (size, size)) + 5 * np.eye(size, dtype=int)
        base[-1] = base[0] + (np.arange(size) == 2)  # nearly singular, scaled by a power of two
        matrix = base.astype(np.float64)
        matrix[-1] = matrix[0] + np.ldexp(matrix[-1] - matrix[0], -3 * power)
        bound = certified_bounds.inverse_bound(matrix, np.abs(matrix), 1)
        assert bound.norm < 1
        right = rng.integers(-9, 10, (size, 3)).astype(np.float64)
        exact = _solved(matrix, right)
        result = bound.solutions(right, slice(0, size))
        assert np.all(result >= np.abs(exact))
        assert np.all(result <= np.abs(exact) + np.max(np.abs(exact)) * 1e-11 * 8.0**power)


def _solved(matrix, right):
    rows = np.vectorize(fractions.Fraction, otypes=[object])(np.concatenate([matrix, right], 1))
    for i in range(len(rows)):
        pivot = next(j for j in range(i, len(rows)) if rows[j, i] != 0)
        rows[[i, pivot]] = rows[[pivot, i]]
        rows[i] = rows[i] / rows[i, i]
        for j in range(len(rows)):
            if j != i:
                rows[j] = rows[j] - rows[j, i] * rows[i]
    return rows[:, len(rows) :].astype(np.float64)


@pytest.mark.parametrize("matrix", [np.ones((3, 3)), np.zeros((2, 2)), np.diag([1.0, 1e-40])])
def test_singular_matrices_have_no_bound(matrix):
    bound = certified_bounds.inverse_bound(matrix, np.maximum(np.abs(matrix), 1.0), 1)
    assert not bound.norm < 1
    assert np.all(np.isinf(bound.solutions(np.ones((len(matrix), 1)), slice(0, len(matrix)))))


@pytest.mark.parametrize("dim", [1, 2, 9, 40])
def test_spectral_norms_are_bounded(dim):
    rng = np.random.default_rng(dim)
    vectors = np.linalg.qr(rng.normal(size=(20, dim, dim)))[0]
    values = rng.normal(size=(20, dim))
    matrices = np.einsum("kpi,ki,kqi->kpq", vectors, values, vectors)
    matrices = (matrices + np.swapaxes(matrices, 1, 2)) / 2
    result = certified_bounds.spectral_norm_bound(matrices, np.zeros(20))
    exact = np.linalg.norm(matrices.astype(np.longdouble).astype(np.float64), 2, axis=(1, 2))
    assert np.all(result >= exact * (1 - 1e-15))
    np.testing.assert_allclose(result, exact, rtol=1e-9)
    more = certified_bounds.spectral_norm_bound(matrices, np.full(20, 0.5))
    np.testing.assert_allclose(more, exact + 0.5, rtol=1e-9)


def test_lengths_neither_overflow_nor_vanish():
    rows = np.array([[3e200, 4e200], [3e-200, 4e-200], [0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(certified_bounds.lengths(rows, 1), [5e200, 5e-200, 0, 5], rtol=1e-15)
    assert certified_bounds.lengths(np.array([[np.inf, 1.0]]), 1) == np.inf


def test_concrete_numbers_keep_their_precision_in_compiled_code():
    with jax.enable_x64(False):
        shape = jax.ShapeDtypeStruct((), np.float32)
        third = np.float64(1 / 3)

        def difference(factor, other):
            assert other == third
            return np.float32(factor * (other - np.float32(other)) * 1e8)

        result = jax.jit(
            lambda x: certified_bounds.on_host(difference, shape, x, third, refused=lambda _: None)
        )(np.float32(1))
        assert float(result) == pytest.approx((third - np.float32(third)) * 1e8, rel=1e-6)
