"""The private linear map and what can be reconstructed: (184), T32, exercise 9.2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.discriminant_analysis
import sklearn.linear_model

from fljax.privacy import private_map, reconstruction_error


def instance(seed, samples=200, dim=6, attributes=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, dim)) @ rng.normal(size=(dim, dim))
    s = x @ rng.normal(size=(dim, attributes)) + rng.normal(size=(samples, attributes))
    return x - x.mean(0), s - s.mean(0)


def explained(x, s):
    """R^2 in sample, by scikit-learn."""
    return sklearn.linear_model.LinearRegression().fit(x, s).score(x, s)


@pytest.mark.parametrize("seed", range(20))
def test_one_attribute_as_printed(seed):
    x, s = instance(seed)
    c = x.T @ s[:, 0] / len(x)
    result = np.asarray(private_map(x, s[:, 0]))
    np.testing.assert_allclose(result, np.eye(6) - np.outer(c, c) / (c @ c), atol=1e-12)
    assert np.linalg.matrix_rank(result) == 5
    np.testing.assert_allclose(result @ c, 0, atol=1e-12 * np.linalg.norm(c))
    assert explained(x, s) > 0.1
    assert abs(explained(x @ result, s)) < 1e-10


def test_several_attributes_are_hidden_together():
    x, s = instance(0, attributes=3)
    s[:, 2] = 1e4 * s[:, 0] - s[:, 1]  # adds nothing, in another unit
    result = np.asarray(private_map(x, s))
    assert np.linalg.matrix_rank(result, tol=1e-8) == 4
    np.testing.assert_allclose(result @ result, result, atol=1e-12)
    np.testing.assert_allclose(result @ (x.T @ s), 0, atol=1e-6)
    for each in s.T:
        assert abs(explained(x @ result, each)) < 1e-10


def test_of_maps_without_covariance_none_keeps_more():
    x, s = instance(1)
    result = np.asarray(private_map(x, s[:, 0]))
    rng = np.random.default_rng(2)
    c = x.T @ s[:, 0]
    for _ in range(20):
        other = rng.normal(size=(5, 6))
        other -= np.outer(other @ c, c) / (c @ c)  # other @ c = 0
        y = rng.normal(size=len(x))
        assert explained(x @ result, y) >= explained(x @ other.T, y) - 1e-10


@pytest.mark.parametrize("attributes", [1, 2])
def test_reconstruction_is_least_squares(attributes):
    x, s = instance(3, attributes=attributes)
    wanted = np.mean((s - x @ np.linalg.lstsq(x, s)[0]) ** 2, axis=0)
    np.testing.assert_allclose(reconstruction_error(x, s), wanted, rtol=1e-10)
    doubled = np.concatenate([x, x[:, :1] - 1e5 * x[:, 1:2]], axis=1)
    np.testing.assert_allclose(reconstruction_error(doubled, s), wanted, rtol=1e-6)
    np.testing.assert_allclose(
        reconstruction_error(x + 3.0, s - 1.0, center=True), wanted, rtol=1e-10
    )


def test_error_after_the_map_is_the_variance():
    x, s = instance(4)
    result = reconstruction_error(x @ private_map(x, s), s)
    np.testing.assert_allclose(result, np.mean(s**2, axis=0), rtol=1e-10)


def test_an_attribute_that_does_not_covary_leaves_features_as_they_are():
    x = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    np.testing.assert_array_equal(private_map(x, x[:, 0] * x[:, 1]), np.eye(2))
    np.testing.assert_array_equal(private_map(x, np.zeros(4)), np.eye(2))


def test_what_is_not_linear_is_not_protected():
    x = np.random.default_rng(0).normal(size=(500, 2))
    s = x[:, 0] ** 2 + x[:, 1]
    z = x @ np.asarray(private_map(x, s, center=True))
    assert abs(explained(z, s)) < 1e-10
    assert explained(np.column_stack([z, z[:, 0] ** 2, z[:, 1] ** 2]), s) > 0.3


@pytest.mark.slow
def test_under_jit_and_in_single_precision():
    x, s = instance(5)
    wanted = private_map(x, s)
    np.testing.assert_allclose(jax.jit(private_map)(x, s), wanted, atol=1e-12)
    with jax.enable_x64(False):
        result = private_map(jnp.asarray(x, jnp.float32), jnp.asarray(s, jnp.float32))
        np.testing.assert_allclose(result, wanted, atol=1e-5)


@pytest.mark.parametrize("function", [private_map, reconstruction_error])
def test_bad_input(function):
    x, s = instance(6)
    with pytest.raises(
        ValueError, match=r"attributes must be centered, got a mean of 60 in column 1.*center=True"
    ):
        function(x, np.column_stack([s, s + 60.0]))
    with pytest.raises(ValueError, match="features must be centered"):
        function(x + 1.0, s)
    with pytest.raises(ValueError, match="of the 200 samples of features"):
        function(x, s[:50])
    with pytest.raises(ValueError, match="features holds 1 NaN"):
        function(np.where(np.arange(6) + np.arange(200)[:, None] == 0, np.nan, x), s)


@pytest.mark.parametrize("seed", range(5))
def test_exercise_9_2_a_discriminant_that_tells_nothing_of_an_attribute(seed):
    """The largest Fisher ratio of all directions along which the attribute has no covariance."""
    rng = np.random.default_rng(seed)
    label, s = rng.choice([-1, 1], 400), rng.normal(size=400)
    mixed = rng.normal(size=(4, 4))
    x = (np.outer(label, rng.normal(size=4)) + np.outer(s, rng.normal(size=4))) / 2
    x = x + rng.normal(size=(400, 4)) @ mixed / 2
    apart = x[label > 0].mean(0) - x[label < 0].mean(0)
    within = sum(np.cov(x[label == side].T, bias=True) * np.mean(label == side) for side in (-1, 1))
    c = np.cov(x.T, s, bias=True)[:4, 4]

    def ratio(a):
        return (a @ apart) ** 2 / (a @ within @ a)

    hidden = np.asarray(private_map(x, s, center=True))
    z = x @ hidden
    model = sklearn.discriminant_analysis.LinearDiscriminantAnalysis(tol=1e-8).fit(z, label)
    a = hidden @ model.coef_[0]
    assert abs(np.corrcoef(x @ a, s)[0, 1]) < 1e-8
    # By Lagrange: a = within^-1 (apart - nu c) with a @ c = 0.
    best, off = np.linalg.solve(within, np.stack([apart, c], axis=1)).T
    exact = best - (best @ c) / (off @ c) * off
    assert ratio(a) == pytest.approx(ratio(exact), rel=1e-6)
    assert ratio(a) < ratio(best)
