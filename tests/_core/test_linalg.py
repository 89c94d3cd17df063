"""The LAPACK-free linear algebra against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from fljax._core import linalg
from fljax._core.devices import traced_for
from tests.reference import readings, server


def definite(rng, batch, dim, spread):
    basis = np.linalg.qr(rng.normal(size=(batch, dim, dim)))[0]
    values = spread ** rng.uniform(0, 1, (batch, dim))
    return basis * values[:, None] @ np.swapaxes(basis, 1, 2)


@pytest.mark.parametrize(("dim", "spread"), [(1, 1.0), (2, 1e2), (8, 1e6), (33, 1e4)])
def test_inverse(dim, spread):
    matrices = definite(np.random.default_rng(dim), 3, dim, spread)
    result = linalg.spd_inverse(jnp.asarray(matrices))
    np.testing.assert_allclose(result, np.linalg.inv(matrices), rtol=1e-7, atol=1e-12 * spread)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_largest_eigenvalue_is_bounded_closely_from_above(dtype):
    rng = np.random.default_rng(2)
    equal = np.broadcast_to(np.eye(7), (3, 7, 7))  # the worst: all of them the largest
    matrices = np.concatenate([definite(rng, 4, 7, 1e4), 3.5e6 * equal[:1], 2e-9 * equal[:2]])
    matrices[-1] = 0
    result = np.asarray(linalg.spd_norm(jnp.asarray(matrices, dtype)), np.float64)
    exact = np.linalg.eigvalsh(matrices)[:, -1]
    rounding = 20 * np.finfo(dtype).eps
    assert (result >= exact * (1 - rounding)).all()
    assert (result <= exact * 7 ** (2.0**-8) * (1 + rounding)).all()


def test_single_precision_is_as_good_as_can_be_had():
    matrices = definite(np.random.default_rng(0), 5, 20, 1e3)
    result = np.asarray(linalg.spd_inverse(jnp.asarray(matrices, jnp.float32)))
    exact = np.linalg.inv(matrices)
    theirs = np.linalg.inv(matrices.astype(np.float32))
    assert np.linalg.norm(result - exact) < 4 * np.linalg.norm(theirs - exact)


def test_solve_regular_and_singular_systems():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(5, 9))
    singular = rows.T @ rows
    right = rows.T @ rng.normal(size=5)
    result = linalg.spd_solve(jnp.asarray(singular), jnp.asarray(right))
    np.testing.assert_allclose(singular @ result, right, atol=1e-7)
    assert np.linalg.norm(result) < 3 * np.linalg.norm(np.linalg.pinv(singular) @ right)
    regular = definite(rng, 1, 9, 1e3)[0]
    result = linalg.spd_solve(jnp.asarray(regular), jnp.asarray(right))
    np.testing.assert_allclose(result, np.linalg.solve(regular, right), rtol=1e-8)


def test_norm_bound_is_one():
    matrices = definite(np.random.default_rng(2), 6, 7, 1e3)
    bound = np.asarray(linalg.spd_norm_bound(jnp.asarray(matrices)))
    largest = np.linalg.eigvalsh(matrices)[:, -1]
    assert (bound >= largest * (1 - 1e-12)).all()
    assert (bound <= np.sqrt(7) * largest).all()


def symmetric(batch, dim, rows=None):
    """Random ones, with zeros beyond the first rows as of a client with fewer samples."""
    rng = np.random.default_rng(dim)
    matrices = rng.normal(size=(batch, dim, dim)) * 10.0 ** rng.uniform(-3, 3, (batch, 1, 1))
    real = np.arange(dim) < (dim if rows is None else rows)
    return (matrices + np.swapaxes(matrices, 1, 2)) * real[:, None] * real


def check_eigen(matrices, values, vectors):
    """Within a few units of rounding a row, and NumPy's eigenvalues."""
    exact, values, vectors = (np.asarray(a, float) for a in (matrices, values, vectors))
    dim = exact.shape[-1]
    error = (10 + 2 * dim) * np.finfo(matrices.dtype).eps
    size = np.linalg.norm(exact, axis=(1, 2))
    expected = np.linalg.eigvalsh(exact)
    assert (np.abs(np.sort(values) - expected).max(1) <= error * size).all()
    gram = np.swapaxes(vectors, 1, 2) @ vectors
    assert np.abs(gram - np.eye(dim)).max() < error
    again = vectors * values[:, None] @ np.swapaxes(vectors, 1, 2)
    assert (np.linalg.norm(again - exact, axis=(1, 2)) <= error * size).all()


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("dim", "rows"), [(1, 1), (2, 2), (3, 3), (35, 35), (35, 8), (60, 60)])
def test_symmetric_eigen(dim, rows, dtype):
    matrices = jnp.asarray(symmetric(5, dim, rows), dtype)
    values, vectors = linalg.symmetric_eigen(matrices)
    assert values.dtype == vectors.dtype == dtype
    check_eigen(matrices, values, vectors)


def test_symmetric_eigen_of_a_batch_of_batches():
    matrices = jnp.asarray(symmetric(6, 9, 7)).reshape(2, 3, 9, 9)
    values, vectors = jax.jit(jax.vmap(linalg.symmetric_eigen))(matrices)
    for i in range(2):
        check_eigen(matrices[i], values[i], vectors[i])


@pytest.mark.parametrize("kind", ["zero", "identity", "diagonal", "repeated", "rank one"])
def test_symmetric_eigen_where_eigenvalues_coincide(kind):
    basis = np.linalg.qr(np.random.default_rng(3).normal(size=(7, 7)))[0]
    matrix = {
        "zero": np.zeros((7, 7)),
        "identity": np.eye(7),
        "diagonal": np.diag([3.0, -1, 3, 0, 0, 2, 3]),
        "repeated": basis * np.array([2, 2, 2, -1, -1, 5, 5]) @ basis.T,
        "rank one": np.ones((7, 7)),
    }[kind]
    matrices = jnp.asarray(matrix)[None]
    check_eigen(matrices, *linalg.symmetric_eigen(matrices))


def quadratics(rng, size, rows, spread, rank):
    """Quadratics that are definite only by a diagonal, as those of FedPAC, and scales."""
    between = rng.normal(size=(size, rank))
    matrix = np.diag(spread ** -rng.uniform(0, 1, size)) + between @ between.T
    return matrix, rng.normal(size=(rows, size))


@pytest.mark.parametrize(("size", "rank", "spread"), [(1, 1, 1.0), (3, 1, 10.0), (6, 4, 1e3)])
def test_minimizers_on_the_simplex_equal_those_of_all_supports(size, rank, spread):
    """For each set of positive entries the unconstrained minimizer; the best feasible one."""
    matrix, linear = quadratics(np.random.default_rng(size), size, 7, spread, rank)
    allowed = np.ones(size, bool)
    result = linalg.simplex_minimizers(matrix, linear, allowed)
    expected = [readings.on_simplex(matrix, row) for row in linear]
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-11)
    assert size == 1 or (np.asarray(result) == 0).any()


def test_minimizers_on_the_simplex_equal_scipys_on_allowed_supports():
    rng = np.random.default_rng(3)
    matrix, linear = quadratics(rng, 12, 3, 30.0, 5)
    allowed = rng.uniform(size=12) < 0.7
    result = np.asarray(linalg.simplex_minimizers(matrix, linear, allowed))
    assert (result[:, ~allowed] == 0).all()
    for row, minimizer in zip(linear, result, strict=True):
        best = scipy.optimize.minimize(
            lambda a, row=row: a @ matrix @ a / 2 - row @ a,
            allowed / allowed.sum(),
            jac=lambda a, row=row: matrix @ a - row,
            method="SLSQP",
            bounds=[(0, 1 if may_be_positive else 0) for may_be_positive in allowed],
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-15, "maxiter": 500},
        )
        np.testing.assert_allclose(minimizer, best.x, rtol=0, atol=1e-6)


def test_on_the_simplex_singular_quadratics_have_some_minimizer():
    """In single precision too: sums are one, and no vertex is better by more than rounding."""
    rng = np.random.default_rng(4)
    between = rng.normal(size=(8, 2))
    matrix = between @ between.T
    linear = between @ rng.normal(size=(2, 5))
    for dtype, near in ((np.float64, 1e-10), (np.float32, 1e-4)):
        arguments = matrix.astype(dtype), linear.T.astype(dtype), np.ones(8, bool)
        result = np.asarray(linalg.simplex_minimizers(*arguments), np.float64)
        np.testing.assert_allclose(result.sum(axis=1), 1, atol=near)
        gradient = result @ matrix - linear.T
        gap = np.sum(gradient * result, axis=1) - gradient.min(axis=1)  # to the best, at most
        assert gap.max() < near * 100


@pytest.mark.parametrize("size", [1, 2, linalg.SHORT, linalg.SHORT + 1, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_sums_of_squares_equal_those_of_each_row(size, dtype, device):
    rows = np.random.default_rng(size).standard_normal((3, 5, size)).astype(dtype)
    with traced_for(device):
        result = linalg.sum_of_squares(jnp.asarray(rows))
    assert result.dtype == dtype
    np.testing.assert_allclose(result, np.sum(rows**2, axis=-1), rtol=10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_one_nonfinite_number_is_detected(dtype, device):
    most = np.finfo(dtype).max
    with traced_for(device):
        all_finite = linalg.all_finite  # not compiled: each form is asked for
        for fill in (0.0, most, -most, np.finfo(dtype).tiny):
            finite = jnp.full((4, 50_000), fill, dtype)
            assert all_finite(finite)
            for bad in (np.nan, np.inf, -np.inf):
                assert not all_finite(finite.at[2, 7].set(bad))
        assert not all_finite(jnp.asarray([[np.inf, -np.inf]], dtype))


@pytest.mark.parametrize("seed", range(5))
def test_a_point_goes_to_the_nearest_of_the_simplex(seed):
    point = np.random.default_rng(seed).normal(size=9) * 10.0 ** (seed - 2)
    result = linalg.onto_simplex(jnp.asarray(point))
    np.testing.assert_allclose(result, server.nearest_on_simplex(point), atol=1e-12)
    np.testing.assert_allclose(linalg.onto_simplex(result), result, atol=1e-15)
