"""Perron vectors and rates by plain array operations, against closed forms and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import graphs
from fljax.graphs import spectra


def drifting(nodes: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Birth and death: up with 0.4, down with 0.4 / ratio; the law is ``ratio ** k``."""
    up = min(0.4, 0.4 * ratio)
    down = min(0.4, 0.4 / ratio)
    matrix = np.diag(np.full(nodes - 1, up), 1) + np.diag(np.full(nodes - 1, down), -1)
    matrix += np.diag(1 - matrix.sum(axis=1))
    distribution = ratio ** np.arange(nodes, dtype=float)
    return matrix, distribution / distribution.sum()


@pytest.mark.parametrize("ratio", [0.1, 0.9, 10.0])
def test_elimination_keeps_the_digits_of_the_smallest_entry(ratio):
    matrix, distribution = drifting(40, ratio)
    np.testing.assert_allclose(jax.jit(graphs.perron_vector)(matrix), distribution, rtol=1e-11)
    np.testing.assert_allclose(graphs.perron_vector(matrix), distribution, atol=1e-12)
    single = jax.jit(spectra._eliminate)(matrix.astype(np.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, distribution, rtol=1e-4, atol=1e-30)


def test_a_reducible_traced_matrix_gives_a_stationary_distribution():
    rng = np.random.default_rng(0)
    for _ in range(20):
        matrix = rng.random((6, 6)) * (rng.random((6, 6)) < 0.25)
        matrix += np.diag(matrix.sum(axis=1) == 0)
        matrix /= matrix.sum(axis=1, keepdims=True)
        for distribution in (
            jax.jit(graphs.perron_vector)(matrix),
            spectra.stationary_distribution(matrix),
        ):
            np.testing.assert_allclose(np.asarray(distribution) @ matrix, distribution, atol=1e-13)
            assert float(jnp.sum(distribution)) == pytest.approx(1.0)
            assert np.all(np.asarray(distribution) >= 0.0)


def test_traced_functions_do_not_call_lapack():
    def stationary_and_rate(a):
        combination = graphs.from_stochastic(a, convention="left")
        return combination.stationary, combination.rate()

    program = jax.jit(stationary_and_rate).lower(np.full((4, 4), 0.25)).as_text()
    assert "custom_call" not in program


def test_a_doubly_stochastic_law_is_exactly_uniform():
    np.testing.assert_array_equal(graphs.perron_vector(np.roll(np.eye(7), 1, axis=1)), 1 / 7)


@pytest.mark.parametrize("seed", range(3))
def test_second_modulus_equals_numpy(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.full(8, 0.2), size=8)
    moduli = np.sort(np.abs(np.linalg.eigvals(matrix)))
    got = jax.jit(lambda a: spectra.second_modulus(a, graphs.perron_vector(a)))(matrix)
    assert float(got) == pytest.approx(moduli[-2], rel=1e-9)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), r"square, \[K, K\], got shape \(2, 3\)"),
        ([[0.5, 0.1], [0.5, 0.9]], "every row of the matrix must sum to one.*transpose it"),
        (np.eye(2), "has 2 closed classes of nodes, such as those of nodes 0 and 1"),
        ([[2.0, -1.0], [0.5, 0.5]], "the matrix must be finite and >= 0, got -1"),
    ],
)
def test_bad_matrices(matrix, message):
    with pytest.raises(ValueError, match=message):
        graphs.perron_vector(matrix)
