"""Noise on outputs (181) and on inputs: its law, its theorem, and where it has none."""

import decimal
import fractions
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax.contrib import input_noise, noisy_inputs, randomized_labels, replaced_features, subsample
from fljax.privacy import accounting, gaussian_release, laplace_release

MODELS = np.arange(12.0).reshape(4, 3)


def over_keys(of, count=4000):
    keys = jax.random.split(fl.random_key(0), count)
    return np.asarray(jax.jit(jax.vmap(of))(keys))


@pytest.mark.parametrize("scale", ["analytic", "classical"])
def test_gaussian_noise_is_of_the_scale_of_its_theorem(scale):
    result = over_keys(lambda key: gaussian_release(key, MODELS, 2.0, 0.5, 1e-5, scale)) - MODELS
    sigma = getattr(accounting, f"{scale}_gaussian_sigma")(2.0, 0.5, 1e-5)
    assert stats.kstest(result.ravel() / sigma, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(result.reshape(len(result), -1).T) - np.eye(12)).max() < 0.1


def test_laplace_noise_is_of_the_scale_of_its_theorem():
    result = over_keys(lambda key: laplace_release(key, MODELS, 2.0, 0.5)) - MODELS
    assert stats.kstest(result.ravel() / 4.0, "laplace").pvalue > 1e-3


@pytest.mark.slow
def test_a_sensitivity_of_the_data_may_be_traced():
    problem = fl.problems.least_squares(jax.random.key(0), 3, 5, 2)
    graph = fl.graphs.ring(3)

    @jax.jit
    def release(key):
        most = jnp.max(fl.contrib.label_sensitivity(problem, graph, 1.0))
        return gaussian_release(key, jnp.zeros((3, 2)), most, 1.0, 1e-5)

    most = float(jnp.max(fl.contrib.label_sensitivity(problem, graph, 1.0)))
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
        for sensitivity in (-1.0, 0.0):  # of zero there would be no noise
            with pytest.raises(ValueError, match="sensitivity must be finite and > 0"):
                release(sensitivity, 1.0)
        with pytest.raises(ValueError, match="epsilon must be finite and > 0"):
            release(1.0, 0.0)


# --------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(("classes", "probability"), [(2, 0.5), (2, 0.1), (10, 0.3), (3, 1.0)])
def test_randomized_labels_have_the_distribution_of_their_epsilon(classes, probability):
    values = np.arange(classes) - 1
    labels = np.repeat(values, 20_000)
    result = np.asarray(randomized_labels(0, labels, values, probability))
    assert result.dtype == labels.dtype
    counts = np.array([[np.sum(result[labels == a] == b) for b in values] for a in values]) / 20_000
    distribution = probability / classes + (1 - probability) * np.eye(classes)
    np.testing.assert_allclose(counts, distribution, atol=0.015)
    # The worst ratio of all outcomes of all pairs of labels, exactly.
    worst = max(
        np.log(distribution[a, c] / distribution[b, c])
        for a, b, c in itertools.product(range(classes), repeat=3)
    )
    epsilon = accounting.randomized_response_epsilon(probability, classes)
    assert epsilon == pytest.approx(worst)
    if probability < 1:
        back = accounting.randomized_response_probability(epsilon, classes)
        assert back == pytest.approx(probability)


def test_labels_without_chance_stay():
    labels = np.array([1.0, -1.0, 1.0])
    np.testing.assert_array_equal(randomized_labels(0, labels, np.array([-1, 1]), 0.0), labels)


# --------------------------------------------------------------------------- random bits


def exact_law(probability, count, monkeypatch):
    """The law of one label as it is drawn, exactly, by a search among all 64 bits of each draw.

    Returns the number of first words, of 2**64, at which the label is replaced; and the first of
    the second words at which the class is at least 1, half of all, and the last.
    """
    bits = []
    monkeypatch.setattr(input_noise, "words", lambda key, shape, number: bits[-1])

    def drawn(coins, classes):
        parts = [(word >> shift) & 0xFFFFFFFF for word in (coins, classes) for shift in (32, 0)]
        bits.append([jnp.asarray(part.astype(np.uint32)) for part in parts])
        labels = np.zeros(len(coins), np.int32)
        return np.asarray(
            randomized_labels(0, labels, np.arange(count, dtype=np.int32), probability)
        )

    def first(holds):
        """The least word for which it holds, as it does from some word on; or 2**64."""
        low = 0
        high = 2**64
        while low < high:
            size = min(high - low, 2**13)
            tried = [low + (high - low) * i // size for i in range(size)]
            number = int(np.sum(~holds(np.array(tried, object))))
            high = tried[number] if number < size else high
            low = tried[number - 1] + 1 if number else low
        return low

    def fixed(word, template):
        return np.full(len(template), word, object)

    replaced = first(lambda first_words: drawn(first_words, fixed(2**64 - 1, first_words)) == 0)
    ends = (1, count // 2, count - 1)
    return replaced, [
        first(lambda first_words, c=c: drawn(fixed(0, first_words), first_words) >= c) for c in ends
    ]


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("count", [2, 3, 1000, 70_000])
def test_the_drawn_distribution_has_the_stated_epsilon(count, double, monkeypatch):
    """Over all 2**128 draws: in single precision 1000 classes at 1e-4 were 1.19 times worse."""
    for epsilon in (1e-9, 1e-4, 1.0, 30.0):
        with jax.enable_x64(double):
            probability = accounting.randomized_response_probability(epsilon, count)
            replaced, starts = exact_law(probability, count, monkeypatch)
        wanted = fractions.Fraction(float(probability)) * 2**64
        assert wanted <= replaced < wanted + 1
        for c, start in zip((1, count // 2, count - 1), starts, strict=True):
            assert abs(start - fractions.Fraction(2**64 * c, count)) <= 1
        # The likeliest result of a label against the least likely one of another label.
        sizes = [starts[0], 2**64 - starts[-1]]  # of the first class and of the last
        p = fractions.Fraction(replaced, 2**64)
        shares = [fractions.Fraction(size, 2**64) for size in sizes]
        worst = (1 - p + p * max(shares)) / (p * min(shares))
        loss = np.log1p(float(worst - 1))
        assert loss <= epsilon * (1 + 1e-12) + count * 2.0**-62


@pytest.mark.parametrize("double", [True, False])
def test_traced_probabilities_are_drawn_with_all_their_bits(double):
    """The same 64-bit threshold as of concrete ones, at its edge and around it."""
    dtype = np.float64 if double else np.float32
    rng = np.random.default_rng(0)
    probabilities = np.concatenate(
        [
            2.0 ** -rng.uniform(0, 64, 100),
            1 - 2.0 ** -rng.uniform(1, 24, 50),
            [0.0, 1.0, 2.0**-64, 2.0**-32, 0.5, 1 - 2.0**-24, 2.0**-32 * (1 - 2.0**-53)],
        ]
    ).astype(dtype)
    with jax.enable_x64(double):
        happens = jax.jit(input_noise._bits_below)
        for probability in probabilities:
            threshold = math.ceil(fractions.Fraction(float(probability)) * 2**64)
            near = [word for word in (threshold - 1, threshold) if 0 <= word < 2**64]
            bits = [np.array([word >> 32 for word in near], np.uint32)]
            bits.append(np.array([word & 0xFFFFFFFF for word in near], np.uint32))
            wanted = [word < threshold for word in near]
            for compare in (happens, input_noise._bits_below):
                result = compare(*map(jnp.asarray, bits), jnp.asarray(probability))
                assert np.asarray(result).tolist() == wanted
            concrete = input_noise._bits_below(*map(jnp.asarray, bits), float(probability))
            assert np.asarray(concrete).tolist() == wanted


def test_the_redrawing_probability_is_never_too_small():
    """Against decimals of fifty digits, in both precisions and for any budget."""
    epsilons = np.concatenate([10.0 ** np.linspace(-18, 2, 81), [300.0, 740.0, 1e4]])
    for dtype in (np.float64, np.float32):
        with jax.enable_x64(dtype == np.float64), decimal.localcontext(prec=60):
            for count in (2, 10, 1000):
                argument = epsilons if dtype == np.float64 else jnp.asarray(epsilons, dtype)
                result = np.asarray(accounting.randomized_response_probability(argument, count))
                assert result.dtype == dtype
                assert np.all((result > 0) & (result <= 1))
                for epsilon, probability in zip(np.asarray(argument), result, strict=True):
                    odds = decimal.Decimal(float(epsilon)).exp() - 1
                    exact = count / (count + odds)
                    p = decimal.Decimal(float(probability))
                    assert p >= exact
                    tiny = decimal.Decimal(float(np.finfo(dtype).tiny))
                    slack = 64 * decimal.Decimal(float(np.finfo(dtype).eps))
                    # Close, relative to the smaller of the probability and its complement.
                    small = exact if exact < 0.5 else 1 - exact
                    rounded = slack * small + (tiny if exact < 0.5 else slack / 32)
                    assert p - exact <= rounded


@pytest.mark.parametrize("probability", [1e-40, 1e-20, np.float32(1e-38)])
def test_probabilities_that_cannot_be_drawn_are_refused(probability):
    with pytest.raises(ValueError, match=r"zero or at least 2\*\*-64 = 5.42e-20, got"):
        randomized_labels(0, np.zeros(3, int), np.arange(2), probability)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (np.zeros(3, int), np.array([0, 1, 1]), "different from each other, got 1 2 times"),
        (np.zeros(3, int), np.array([0.0, 0.5, 1.0]), "cannot hold the class 0.5"),
        (np.zeros(3, np.uint8), np.array([-1, 0]), "labels of uint8 cannot hold the class -1"),
        (
            np.zeros(3, np.float32),
            np.array([0.0, 1.0, 1.0 + 1e-12]),
            "different from each other, got 1.0 2 times as float32",
        ),
        (np.zeros(3), np.array([0.0, np.nan]), "classes holds 1 NaN"),
        (np.zeros(3), np.array([0.0, 1.0, 1.0]), "got 1.0 2 times as float64"),
    ],
)
def test_classes_that_would_not_be_uniform_are_refused(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        randomized_labels(0, labels, classes, 0.5)


def test_labels_of_single_precision_may_be_fractions():
    labels = np.array([0.1, 0.2, 0.1], np.float32)
    result = np.asarray(randomized_labels(0, labels, np.array([0.1, 0.2]), 0.5))
    assert set(result.tolist()) <= set(labels.tolist())


@pytest.mark.slow
def test_noisy_inputs():
    x = np.ones((3000, 2))
    y = np.zeros(3000)
    features, targets = noisy_inputs(0, x, y, 0.5, 2.0)
    assert stats.kstest((np.asarray(features) - 1).ravel() / 0.5, "norm").pvalue > 1e-3
    assert stats.kstest(np.asarray(targets) / 2.0, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(features[:, 0], targets)[0, 1]) < 0.1
    same = noisy_inputs(0, x, y, 0.0, 0.0)
    np.testing.assert_array_equal(same[0], x)


def test_replaced_features_keep_only_mean_and_covariance():
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
    chosen = over_keys(lambda key: subsample(key, y[:, None] * 1.0, y, 3)[1])
    assert all(len(set(rows)) == 3 for rows in chosen.tolist())
    counts = np.bincount(chosen.ravel(), minlength=8)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_subsampling_amplifies_by_its_theorem(fraction, epsilon):
    """A sampled randomized response is the mechanism for which the theorem is tight."""
    result, delta = accounting.subsampled(epsilon, 1e-4, fraction)
    right = np.exp(epsilon) / (1 + np.exp(epsilon))
    # The one record that differs is in the sample, or a record that both data sets have.
    probability = fraction * right + (1 - fraction) * (1 - right)
    assert np.log(probability / (1 - right)) == pytest.approx(float(result))
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
