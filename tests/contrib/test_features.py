"""The private linear map and what can be reconstructed: (184), T32, exercise 9.2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.discriminant_analysis
import sklearn.linear_model

from fljax.contrib import private_map, reconstruction_error
from fljax.privacy.column_span import span


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
    assert result.shape == (6, 5)
    np.testing.assert_allclose(result.T @ result, np.eye(5), atol=1e-12)
    projection = result @ result.T
    np.testing.assert_allclose(projection, np.eye(6) - np.outer(c, c) / (c @ c), atol=1e-12)
    z = x @ result
    variances = np.diag(z.T @ z)
    assert np.all(np.diff(variances) <= 0)
    np.testing.assert_allclose(z.T @ z, np.diag(variances), atol=1e-10 * variances[0])
    assert explained(x, s) > 0.1
    assert abs(explained(x @ result, s)) < 1e-10


def test_several_attributes_are_hidden_together():
    x, s = instance(0, attributes=3)
    s[:, 2] = 1e4 * s[:, 0] - s[:, 1]  # adds nothing, in another unit, and costs a dimension
    result = np.asarray(private_map(x, s))
    assert result.shape == (6, 3)
    np.testing.assert_allclose(result.T @ result, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(result.T @ (x.T @ s), 0, atol=1e-6)
    for attribute in s.T:
        assert abs(explained(x @ result, attribute)) < 1e-10


def test_the_private_map_keeps_the_most_of_all_uncorrelated_maps():
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
    repeated = np.concatenate([x, 4 * x[:, :1], x[:, 1:2]], axis=1)
    np.testing.assert_allclose(reconstruction_error(repeated, s), wanted, rtol=1e-10)
    # Its rounding is a further feature, which explains about one of 200 parts by chance.
    rounded = np.concatenate([x, x[:, :1] - 1e5 * x[:, 1:2]], axis=1)
    result = np.asarray(reconstruction_error(rounded, s))
    assert np.all((0.95 * wanted < result) & (result < wanted))
    np.testing.assert_allclose(
        reconstruction_error(x + 3.0, s - 1.0, center=True), wanted, rtol=1e-10
    )


def test_error_after_the_map_is_the_variance():
    x, s = instance(4)
    result = reconstruction_error(x @ private_map(x, s), s)
    np.testing.assert_allclose(result, np.mean(s**2, axis=0), rtol=1e-10)


def test_an_attribute_costs_a_dimension_even_if_it_does_not_covary():
    x = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    for s in (x[:, 0] * x[:, 1], np.zeros(4)):
        result = np.asarray(private_map(x, s))
        assert result.shape == (2, 1)
        assert np.linalg.norm(result) == pytest.approx(1)


# --------------------------------------------------------------------------- floating point


def best_prediction(z, s):
    """Coefficients of least squares without tolerance, each column in its own unit."""
    z = np.asarray(z, np.float64)
    s = np.asarray(s, np.float64)
    offset = z.mean(0)
    size = z.std(0)
    used = size > 0
    rows = (z[:, used] - offset[used]) / size[used]
    coefficients = np.linalg.lstsq(rows, s - s.mean(0), rcond=0)[0]

    def predict(other):
        other = np.asarray(other, np.float64)
        return (other[:, used] - offset[used]) / size[used] @ coefficients + s.mean(0)

    return predict


def attacked(z, s, fresh_z, fresh_s):
    """R^2 in sample, and on other samples."""
    predict = best_prediction(z, s)
    return [
        1 - np.mean((np.asarray(b, np.float64) - predict(a)) ** 2) / np.var(b)
        for a, b in ((z, s), (fresh_z, fresh_s))
    ]


def features_of(case, rng, samples):
    """Features and an attribute that they tell much of."""
    x = rng.normal(size=(samples, 6))
    s = x @ [1.0, 0.5, 0.0, 0.0, -1.0, 0.0] + 0.1 * rng.normal(size=samples)
    if case == "repeated":
        x = np.column_stack([x, x[:, :2]])
    elif case == "a sum of others":
        x = np.column_stack([x, x[:, 0] + x[:, 1] - x[:, 2]])
    elif case == "nearly equal":
        distances = np.array([1e-3, 1e-6, 1e-9, 1e-12])
        x = np.column_stack([x, x[:, :4] + distances * rng.normal(size=(samples, 4))])
    elif case == "all units":
        x = x * 10.0 ** np.arange(-9, 9, 3)
    elif case == "indicators":
        which = rng.integers(0, 4, samples)
        x = np.column_stack([x, np.eye(4)[which]])
        s = s + which
    elif case == "far from zero":
        x = x + np.array([0.0, 10.0, 1e2, 1e3, 1e4, 1e5])
    elif case == "told by a difference":  # of two large features
        x[:, 4] = x[:, 0] + 1e-5 * x[:, 4]
    return x, s


CASES = (
    "plain", "repeated", "a sum of others", "nearly equal", "all units", "indicators",
    "far from zero", "told by a difference",
)  # fmt: skip


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_mapped_features_in_floating_point_have_no_linear_information(case, double):
    """Least squares without a tolerance, on these samples and on others."""
    dtype = np.float64 if double else np.float32
    x, s = (a.astype(dtype) for a in features_of(case, np.random.default_rng(0), 2000))
    other, other_s = (a.astype(dtype) for a in features_of(case, np.random.default_rng(1), 20_000))
    with jax.enable_x64(double):
        hidden = np.asarray(private_map(x, s, center=True))
    assert hidden.dtype == dtype
    assert hidden.shape == (x.shape[1], x.shape[1] - 1)
    correlation, _ = attacked(x @ hidden, s, x @ hidden, s)
    assert abs(correlation) < 1e-6 * x.shape[1]
    # A correlation of the order of sqrt(D / N) remains on others, as documented.
    half = len(other) // 2
    z = other[:half] @ hidden
    rest = other[half:] @ hidden
    assert attacked(z, other_s[:half], rest, other_s[half:])[1] < 10 * x.shape[1] / 2000
    assert attacked(other[:half], other_s[:half], other[half:], other_s[half:])[1] > 0.4
    with jax.enable_x64(double):
        error = float(reconstruction_error(x @ hidden, s, center=True))
    assert error == pytest.approx(np.var(s.astype(np.float64)), rel=1e-6 * x.shape[1])


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("distance", [1.0, 1e-3, 1e-5, 1e-7, 1e-12, 1e-15])
def test_the_error_is_not_above_that_of_least_squares(distance, double):
    """The attribute is the small difference of two features, exactly."""
    dtype = np.float64 if double else np.float32
    rng = np.random.default_rng(0)
    steps = 2.0 ** np.round(np.log2(distance)) * rng.integers(-2, 3, 300)
    column = rng.integers(-1, 2, 300) * 1.0
    features = np.column_stack([column, column + steps, rng.normal(size=300)]).astype(dtype)
    s = (features[:, 1] - features[:, 0]).astype(dtype)  # exact, by Sterbenz' lemma
    if not s.any():
        pytest.skip("not representable in this precision")
    s = s / dtype(2.0 ** np.round(np.log2(distance)))
    with jax.enable_x64(double):
        assert float(reconstruction_error(features, s, center=True)) < 1e-9 * np.var(s)


@pytest.mark.parametrize("double", [True, False])
def test_the_error_of_the_projection_as_a_matrix_is_noticed(double):
    """The invertible matrix of (184), from whose image the attribute can be scaled up."""
    dtype = np.float64 if double else np.float32
    x, s = (a.astype(dtype) for a in features_of("plain", np.random.default_rng(0), 2000))
    x = x - x.mean(0)
    s = s - s.mean(0)
    c = x.T @ s / dtype(np.linalg.norm(x.T @ s))
    # Rounded to fewer digits than the products have: how much of the attribute the rounding of the
    # products alone leaves depends on the processor.
    projection = np.eye(6, dtype=dtype) - np.outer(c, c)
    z = x @ projection.astype(np.float32 if double else np.float16).astype(dtype)
    with jax.enable_x64(double):
        error = float(reconstruction_error(z, s, center=True))
    assert error < 0.8 * np.var(s)


def test_spans_are_of_all_that_columns_have():
    rng = np.random.default_rng(0)
    base = rng.integers(-9, 10, (40, 3)).astype(np.float64)
    for small in (1.0, 2.0**-30, 2.0**-45):
        near = base[:, :1] + small * rng.integers(-9, 10, (40, 1))
        for columns, rank in (
            (np.hstack([base, near]), 4),
            (np.hstack([base, near, near - base[:, :1]]), 4),
            (np.hstack([base, 0 * base, base @ rng.integers(-3, 4, (3, 2))]), 3),
            (np.hstack([base * [2.0**-700, 1.0, 2.0**700], near]), 4),
        ):
            basis = span(columns)
            assert basis.shape == (40, rank)
            np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-14)
            if rank == 4:  # the difference, which is exact, is in the span
                step = near[:, 0] - base[:, 0]
                step = step / np.linalg.norm(step)
                np.testing.assert_allclose(basis @ (basis.T @ step), step, atol=1e-9)
    assert span(np.zeros((5, 2))).shape == (5, 0)
    assert span(rng.normal(size=(3, 7))).shape == (3, 3)


def test_a_map_without_any_coordinate_is_refused():
    x, s = instance(0, attributes=2)
    with pytest.raises(ValueError, match="attributes must be fewer than the 2 features, got 2"):
        private_map(x[:, :2], s)


def test_nonlinear_dependence_is_not_removed():
    x = np.random.default_rng(0).normal(size=(500, 2))
    s = x[:, 0] ** 2 + x[:, 1]
    z = x @ np.asarray(private_map(x, s, center=True))
    assert abs(explained(z, s)) < 1e-10
    assert explained(np.column_stack([z, z[:, 0] ** 2]), s) > 0.3


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
def test_exercise_9_2_a_discriminant_without_information_on_an_attribute(seed):
    """The largest Fisher ratio of all directions along which the attribute has no covariance."""
    rng = np.random.default_rng(seed)
    label = rng.choice([-1, 1], 400)
    s = rng.normal(size=400)
    mixed = rng.normal(size=(4, 4))
    x = (np.outer(label, rng.normal(size=4)) + np.outer(s, rng.normal(size=4))) / 2
    x = x + rng.normal(size=(400, 4)) @ mixed / 2
    mean_difference = x[label > 0].mean(0) - x[label < 0].mean(0)
    within = sum(np.cov(x[label == side].T, bias=True) * np.mean(label == side) for side in (-1, 1))
    c = np.cov(x.T, s, bias=True)[:4, 4]

    def ratio(a):
        return (a @ mean_difference) ** 2 / (a @ within @ a)

    hidden = np.asarray(private_map(x, s, center=True))
    z = x @ hidden
    model = sklearn.discriminant_analysis.LinearDiscriminantAnalysis(tol=1e-8).fit(z, label)
    a = hidden @ model.coef_[0]
    assert abs(np.corrcoef(x @ a, s)[0, 1]) < 1e-8
    # By Lagrange: a = within^-1 (apart - nu c) with a @ c = 0.
    best, off = np.linalg.solve(within, np.stack([mean_difference, c], axis=1)).T
    exact = best - (best @ c) / (off @ c) * off
    assert ratio(a) == pytest.approx(ratio(exact), rel=1e-6)
    assert ratio(a) < ratio(best)
