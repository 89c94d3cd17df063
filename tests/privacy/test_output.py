"""Noise on outputs (181) and on inputs: its law, its theorem, and where it has none."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax.data import noisy_inputs, randomized_labels, replaced_features, subsample
from fljax.privacy import accounting, gaussian_release, laplace_release

MODELS = np.arange(12.0).reshape(4, 3)


def drawn(of, count=4000):
    keys = jax.random.split(fl.random_key(0), count)
    return np.asarray(jax.jit(jax.vmap(of))(keys))


@pytest.mark.parametrize("scale", ["analytic", "classical"])
def test_gaussian_noise_is_of_the_scale_of_its_theorem(scale):
    result = drawn(lambda key: gaussian_release(key, MODELS, 2.0, 0.5, 1e-5, scale)) - MODELS
    sigma = getattr(accounting, f"{scale}_gaussian_sigma")(2.0, 0.5, 1e-5)
    assert stats.kstest(result.ravel() / sigma, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(result.reshape(len(result), -1).T) - np.eye(12)).max() < 0.1


def test_laplace_noise_is_of_the_scale_of_its_theorem():
    result = drawn(lambda key: laplace_release(key, MODELS, 2.0, 0.5)) - MODELS
    assert stats.kstest(result.ravel() / 4.0, "laplace").pvalue > 1e-3


@pytest.mark.slow
def test_a_sensitivity_of_the_data_may_be_traced():
    problem = fl.problems.least_squares(jax.random.key(0), 3, 5, 2)
    graph = fl.graphs.ring(3)

    @jax.jit
    def release(key):
        most = jnp.max(fl.theory.network_privacy.label_sensitivity(problem, graph, 1.0))
        return gaussian_release(key, jnp.zeros((3, 2)), most, 1.0, 1e-5)

    most = float(jnp.max(fl.theory.network_privacy.label_sensitivity(problem, graph, 1.0)))
    wanted = gaussian_release(1, jnp.zeros((3, 2)), most, 1.0, 1e-5)
    np.testing.assert_allclose(release(fl.random_key(1)), wanted, rtol=1e-9)


def test_bad_releases():
    with pytest.raises(ValueError, match="epsilon must be finite and > 0 and < 1"):
        gaussian_release(0, MODELS, 1.0, 2.0, 1e-5, "classical")
    with pytest.raises(ValueError, match="unknown scale"):
        gaussian_release(0, MODELS, 1.0, 2.0, 1e-5, "other")
    for release in (
        lambda s, e: gaussian_release(0, MODELS, s, e, 1e-5),
        lambda s, e: laplace_release(0, MODELS, s, e),
    ):
        with pytest.raises(ValueError, match="sensitivity must be finite and >= 0"):
            release(-1.0, 1.0)
        with pytest.raises(ValueError, match="epsilon must be finite and > 0"):
            release(1.0, 0.0)


# --------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(("classes", "probability"), [(2, 0.5), (2, 0.1), (10, 0.3), (3, 1.0)])
def test_randomized_labels_are_of_the_law_that_their_epsilon_is_of(classes, probability):
    values = np.arange(classes) - 1
    labels = np.repeat(values, 20_000)
    result = np.asarray(randomized_labels(0, labels, values, probability))
    assert result.dtype == labels.dtype
    counts = np.array([[np.sum(result[labels == a] == b) for b in values] for a in values]) / 20_000
    law = probability / classes + (1 - probability) * np.eye(classes)
    np.testing.assert_allclose(counts, law, atol=0.015)
    # The worst ratio of all outcomes of all pairs of labels, exactly.
    worst = max(
        np.log(law[a, c] / law[b, c]) for a, b, c in itertools.product(range(classes), repeat=3)
    )
    epsilon = accounting.randomized_response_epsilon(probability, classes)
    assert epsilon == pytest.approx(worst)
    if probability < 1:
        back = accounting.randomized_response_probability(epsilon, classes)
        assert back == pytest.approx(probability)


def test_labels_without_chance_stay():
    labels = np.array([1.0, -1.0, 1.0])
    np.testing.assert_array_equal(randomized_labels(0, labels, np.array([-1, 1]), 0.0), labels)


@pytest.mark.slow
def test_noisy_inputs():
    x, y = np.ones((3000, 2)), np.zeros(3000)
    features, targets = noisy_inputs(0, x, y, 0.5, 2.0)
    assert stats.kstest((np.asarray(features) - 1).ravel() / 0.5, "norm").pvalue > 1e-3
    assert stats.kstest(np.asarray(targets) / 2.0, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(features[:, 0], targets)[0, 1]) < 0.1
    same = noisy_inputs(0, x, y, 0.0, 0.0)
    np.testing.assert_array_equal(same[0], x)


def test_replaced_features_have_mean_and_covariance_and_nothing_else():
    rng = np.random.default_rng(0)
    x = rng.exponential(size=(20_000, 3)) @ rng.normal(size=(3, 3)) + 7
    x = np.column_stack([x, x[:, 0] - x[:, 1]])  # of rank three
    result = np.asarray(replaced_features(0, x))
    np.testing.assert_allclose(result.mean(0), x.mean(0), atol=0.1)
    np.testing.assert_allclose(np.cov(result.T), np.cov(x.T), atol=0.3)
    np.testing.assert_allclose(result[:, 3], result[:, 0] - result[:, 1], atol=1e-5)
    assert np.abs(np.corrcoef(result[:, 0], x[:, 0])[0, 1]) < 0.05
    assert abs(stats.skew(result[:, 0])) < 0.1


def test_subsamples_are_uniform():
    y = np.arange(8)
    chosen = drawn(lambda key: subsample(key, y[:, None] * 1.0, y, 3)[1])
    assert all(len(set(rows)) == 3 for rows in chosen.tolist())
    counts = np.bincount(chosen.ravel(), minlength=8)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_subsampling_amplifies_as_its_theorem_says(fraction, epsilon):
    """A sampled randomized response is the mechanism for which the theorem is tight."""
    result, delta = accounting.subsampled(epsilon, 1e-4, fraction)
    right = np.exp(epsilon) / (1 + np.exp(epsilon))
    # The one record that differs is in the sample, or a record that both data sets have.
    one = fraction * right + (1 - fraction) * (1 - right)
    assert np.log(one / (1 - right)) == pytest.approx(float(result))
    assert float(delta) == pytest.approx(1e-4 * fraction)


def test_bad_inputs():
    with pytest.raises(ValueError, match=r"labels must be of the classes \[0, 1\], got 3"):
        randomized_labels(0, np.array([0, 3]), np.arange(2), 0.5)
    with pytest.raises(ValueError, match="classes must be the two or more"):
        randomized_labels(0, np.zeros(3, int), np.zeros(1, int), 0.5)
    with pytest.raises(ValueError, match="probability must be finite and >= 0 and <= 1"):
        randomized_labels(0, np.zeros(3, int), np.arange(2), 1.5)
    with pytest.raises(ValueError, match="count must be <= 3"):
        subsample(0, np.zeros((3, 1)), np.zeros(3), 4)
    with pytest.raises(ValueError, match="targets must be of the 3 samples"):
        subsample(0, np.zeros((3, 1)), np.zeros(2), 1)
    with pytest.raises(ValueError, match="targets must be of the 3 samples"):
        noisy_inputs(0, np.zeros((3, 1)), np.zeros(2), 1.0, 1.0)
    with pytest.raises(ValueError, match="target_deviation must be finite and >= 0"):
        noisy_inputs(0, np.zeros((3, 1)), np.zeros(3), 1.0, -1.0)
    with pytest.raises(ValueError, match="probability must be finite and > 0 and <= 1"):
        accounting.randomized_response_epsilon(0.0, 2)
    with pytest.raises(ValueError, match="fraction must be finite and > 0"):
        accounting.subsampled(1.0, 0.0, 0.0)
