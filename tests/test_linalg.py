"""The LAPACK-free linear algebra against NumPy's."""

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import _linalg


def definite(rng, batch, dim, spread):
    basis = np.linalg.qr(rng.normal(size=(batch, dim, dim)))[0]
    values = spread ** rng.uniform(0, 1, (batch, dim))
    return basis * values[:, None] @ np.swapaxes(basis, 1, 2)


@pytest.mark.parametrize(("dim", "spread"), [(1, 1.0), (2, 1e2), (8, 1e6), (33, 1e4)])
def test_inverse(dim, spread):
    matrices = definite(np.random.default_rng(dim), 3, dim, spread)
    found = _linalg.spd_inverse(jnp.asarray(matrices))
    np.testing.assert_allclose(found, np.linalg.inv(matrices), rtol=1e-7, atol=1e-12 * spread)


def test_single_precision_is_as_good_as_can_be_had():
    matrices = definite(np.random.default_rng(0), 5, 20, 1e3)
    found = np.asarray(_linalg.spd_inverse(jnp.asarray(matrices, jnp.float32)))
    exact, theirs = np.linalg.inv(matrices), np.linalg.inv(matrices.astype(np.float32))
    assert np.linalg.norm(found - exact) < 4 * np.linalg.norm(theirs - exact)


def test_solve_regular_and_singular_systems():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(5, 9))
    singular, right = rows.T @ rows, rows.T @ rng.normal(size=5)
    found = _linalg.spd_solve(jnp.asarray(singular), jnp.asarray(right))
    np.testing.assert_allclose(singular @ found, right, atol=1e-7)
    assert np.linalg.norm(found) < 3 * np.linalg.norm(np.linalg.pinv(singular) @ right)
    regular = definite(rng, 1, 9, 1e3)[0]
    found = _linalg.spd_solve(jnp.asarray(regular), jnp.asarray(right))
    np.testing.assert_allclose(found, np.linalg.solve(regular, right), rtol=1e-8)


def test_norm_bound_is_one():
    matrices = definite(np.random.default_rng(2), 6, 7, 1e3)
    bound = np.asarray(_linalg.spd_norm_bound(jnp.asarray(matrices)))
    largest = np.linalg.eigvalsh(matrices)[:, -1]
    assert (bound >= largest * (1 - 1e-12)).all()
    assert (bound <= np.sqrt(7) * largest).all()
