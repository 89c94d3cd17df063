"""Cyclic Poisson and balls-in-bins sampling, against integrals, enumeration and jax_privacy."""

import math

import jax
import numpy as np
import pytest
from scipy import integrate, stats

from fljax.privacy import accounting as acc
from fljax.privacy import matrices
from fljax.privacy.accounting import balls_in_bins, monte_carlo

close = np.testing.assert_allclose
BANDED = matrices.Toeplitz([1.0, 0.6, 0.3])


@pytest.fixture
def jax_privacy():
    """The library, which relies on promotion."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield pytest.importorskip("jax_privacy")


# --------------------------------------------------------------------------- confidence bounds


@pytest.mark.parametrize("mean", [0.0, 1e-3, 0.3, 1.0])
def test_the_bound_by_divergence_is_its_definition(mean):
    bound = monte_carlo._kl_bound(mean, 1000, 1e-4)
    assert mean <= bound <= 1
    if mean < 1:
        p = mean
        q = bound
        divergence = (p * math.log(p / q) if p else 0) + (1 - p) * math.log((1 - p) / (1 - q))
        close(1000 * divergence, math.log(1e4), rtol=1e-5)


@pytest.mark.parametrize("truth", [0.003, 0.05])
def test_bounds_fail_as_seldom_as_stated(truth):
    """Terms that are zero or one, whose mean is hardest to bound."""
    rng = np.random.default_rng(0)
    trials = 4000
    count = 500
    failure = 0.05
    hits = rng.binomial(count, truth, size=trials)
    allowed = trials * failure + 4 * math.sqrt(trials * failure)
    values = {h: monte_carlo._kl_bound(float(h / count), count, failure) for h in set(hits)}
    assert sum(values[h] < truth for h in hits) <= allowed
    stake = 0.7

    def rejected(successes):
        wealth = monte_carlo.betting_excess(np.ones(successes), count - successes, truth, stake)
        return wealth >= math.log(1 / failure)

    assert sum(rejected(h) for h in hits) <= allowed
    # The wealth of a bet at the true mean is a fair one: its mean over all outcomes is 1.
    counts = np.arange(count + 1)
    wealth = [monte_carlo.betting_excess(np.ones(k), count - k, truth, 0.1) for k in counts]
    close(stats.binom.pmf(counts, count, truth) @ np.exp(wealth), 1.0, rtol=1e-9)


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_monte_carlo_bounds_a_gaussian_release_from_above(mu):
    losses = np.random.default_rng(1).normal(mu**2 / 2, mu, size=400_000)
    for epsilon in (0.0, 1.0):
        exact = acc.zcdp_delta(mu**2 / 2, epsilon, "gaussian")
        assert exact < acc.monte_carlo_delta(losses, epsilon, 1e-6) < 1.3 * exact + 1e-3
    exact = acc.zcdp_epsilon(mu**2 / 2, 1e-2, "gaussian")
    assert exact < acc.monte_carlo_epsilon(losses, 1e-2) < exact + 0.15
    returned = acc.monte_carlo_epsilon(losses, 1e-2, failure=1e-4)
    close(acc.monte_carlo_delta(losses, returned, 1e-4), 1e-2, rtol=1e-4)


def test_few_draws_do_not_bound_a_small_delta():
    losses = np.zeros(1000)
    assert acc.monte_carlo_epsilon(losses, 1e-5) == math.inf
    assert acc.monte_carlo_epsilon(losses, 0.1) == 0
    assert acc.monte_carlo_epsilon([math.inf, *losses], 0.1) == math.inf


# --------------------------------------------------------------------------- cyclic Poisson


@pytest.mark.parametrize("rounds", [9, 10])
def test_cyclic_sampling_is_a_sampled_release_per_cycle(rounds):
    """Choquette-Choo et al. 2023, Theorem 4."""
    norm = float(np.linalg.norm(BANDED.coefficients))
    releases = -(-rounds // 3)
    got = acc.cyclic_poisson_epsilon(BANDED, 2.0, 1e-4, rounds, rate=0.2, cycle=3)
    close(got, acc.sampled_gaussian_epsilon(2.0 / norm, 1e-4, releases, 0.2), rtol=1e-9)
    event = acc.cyclic_poisson_event(BANDED, 2.0, rounds, rate=0.2, cycle=3)
    assert event.count == releases
    close(event.event.event.noise_multiplier, 2.0 / norm, rtol=1e-12)


def test_the_multiplier_of_cyclic_sampling_spends_its_budget():
    budget = {"delta": 1e-3, "rounds": 6, "rate": 0.5, "cycle": 3}
    multiplier = acc.cyclic_poisson_multiplier(BANDED, 1.0, **budget)
    assert 0.99 < acc.cyclic_poisson_epsilon(BANDED, multiplier, **budget) <= 1.0


def test_cyclic_sampling_dominates_its_enumeration():
    """Two rounds of one group each: the exact pair, by two-dimensional integration."""
    strategy = matrices.Toeplitz([1.0, 0.5])
    sigma = 1.0
    rate = 0.3
    # A record of the first group changes both rounds by the first column, or nothing.
    norm = math.hypot(1.0, 0.5)
    for epsilon in (0.1, 0.5, 1.0):
        density = lambda y, e=epsilon: max(  # noqa: E731
            0.0,
            (1 - rate) * stats.norm.pdf(y)
            + rate * stats.norm.pdf(y - norm / sigma)
            - math.exp(e) * stats.norm.pdf(y),
        )
        delta = integrate.quad(density, -10, 12, limit=400, epsabs=1e-13)[0]
        if not 1e-9 < delta < 1:
            continue
        got = acc.cyclic_poisson_epsilon(strategy, sigma, delta, 2, rate, 2)
        assert epsilon - 1e-6 <= got <= epsilon + 0.01


def test_against_the_event_of_jax_privacy(jax_privacy):
    from jax_privacy.experimental import accounting

    strategy = matrices.square_root(4)
    ours = acc.cyclic_poisson_event(strategy, 1.5, 30, rate=0.1, cycle=4)
    theirs = accounting.amplified_bandmf_event(1.5, 30, num_bands=4, sampling_prob=0.1)
    assert ours.count == theirs.count
    assert ours.event.sampling_probability == theirs.event.sampling_probability
    close(ours.event.event.noise_multiplier, theirs.event.event.noise_multiplier, rtol=1e-6)


# --------------------------------------------------------------------------- balls in bins


def deltas_by_integration(means, epsilon):
    """Delta of both directions for two means in the plane, by quadrature on a grid."""
    basis = np.linalg.qr(np.stack(means, axis=1))[0]
    points = np.stack([basis.T @ m for m in means])
    grid = np.linspace(-9, 12, 1401)
    y = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    q = np.exp(-np.sum(y**2, axis=-1) / 2) / (2 * np.pi)
    p = np.mean([np.exp(-np.sum((y - m) ** 2, axis=-1) / 2) / (2 * np.pi) for m in points], axis=0)
    area = (grid[1] - grid[0]) ** 2
    add = np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) * area
    return add, np.sum(np.maximum(q - math.exp(epsilon) * p, 0)) * area


@pytest.mark.parametrize("rounds", [2, 5])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_two_bins_have_the_delta_of_their_integral(rounds, epsilon):
    sigma = 1.3
    matrix = BANDED.matrix(rounds)
    means = [matrix[:, start::2].sum(axis=1) / sigma for start in range(2)]
    exact = deltas_by_integration(means, epsilon)
    got = acc.balls_in_bins_delta(BANDED, sigma, epsilon, rounds, 2, samples=200_000)
    assert max(exact) < got < 1.05 * max(exact) + 1e-3
    pair = balls_in_bins._pair(BANDED, sigma, rounds, 2)
    for direction, delta in zip(("add", "remove"), exact, strict=True):
        for tilt in (balls_in_bins._TILTS[direction][0], balls_in_bins._TILTS[direction][3]):
            draws = balls_in_bins._draw(pair, direction, tilt, 200_000, np.random.default_rng(2))
            mean, square = balls_in_bins._spread(draws, epsilon)
            assert abs(mean - delta) < 5 * math.sqrt(square / 200_000) + 1e-6
    bound = acc.balls_in_bins_epsilon(BANDED, sigma, max(exact), rounds, 2, samples=200_000)
    assert epsilon < bound < epsilon + 0.1


@pytest.mark.parametrize("strategy", [BANDED, matrices.BufferedToeplitz([0.4, 0.2], [0.5, 0.9])])
def test_no_weighted_term_exceeds_its_bound(strategy):
    pair = balls_in_bins._pair(strategy, 1.0, 7, 3)
    for direction, tilts in balls_in_bins._TILTS.items():
        for tilt in tilts:
            draws = balls_in_bins._draw(pair, direction, tilt, 50_000, np.random.default_rng(3))
            for epsilon in (0.0, 1.0, 4.0):
                terms = balls_in_bins._terms(draws, epsilon)
                bound = math.exp(balls_in_bins._log_bound(pair, direction, tilt, epsilon))
                assert np.max(terms, initial=0.0) <= bound * (1 + 1e-9)


def test_one_bin_is_the_gaussian_release():
    for strategy in (matrices.identity(), BANDED):
        rho = strategy.sensitivity(6) ** 2 / (2 * 3.0**2)
        exact = acc.zcdp_epsilon(rho, 1e-5, "gaussian")
        got = acc.balls_in_bins_epsilon(strategy, 3.0, 1e-5, 6, 1, samples=20_000)
        close(got, exact, rtol=1e-8)


def test_more_bins_amplify_and_more_draws_sharpen():
    arguments = {"delta": 1e-3, "rounds": 12}
    epsilons = [
        acc.balls_in_bins_epsilon(BANDED, 1.5, bins=b, samples=50_000, **arguments)
        for b in (1, 3, 6, 12)
    ]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-1] < 0.6 * epsilons[0]
    few = acc.balls_in_bins_epsilon(BANDED, 1.5, bins=12, samples=5_000, **arguments)
    assert epsilons[-1] < few <= epsilons[0] * 1.0001


def test_small_deltas_need_few_draws():
    """Importance sampling: a hundred times fewer draws than one would need to see an event."""
    pair = balls_in_bins._pair(matrices.square_root(8), 2.0, 32, 8)
    largest = float(acc.zcdp_epsilon(pair.rho, 1e-7, "gaussian"))
    got = acc.balls_in_bins_epsilon(matrices.square_root(8), 2.0, 1e-7, 32, 8, samples=100_000)
    assert got < 0.95 * largest
    draws = balls_in_bins._draw(pair, "add", 3.0, 400_000, np.random.default_rng(4))
    assert balls_in_bins._spread(draws, got)[0] < 1e-7


@pytest.mark.parametrize("direction", ["add", "remove"])
def test_bounds_fail_over_seeds_as_seldom_as_stated(direction):
    """The estimated delta is below its true value with a probability of at most one hundredth."""
    sigma = 1.3
    rounds = 5
    epsilon = 1.0
    failure = 0.01
    trials = 300
    matrix = BANDED.matrix(rounds)
    means = [matrix[:, start::2].sum(axis=1) / sigma for start in range(2)]
    exact = dict(zip(("add", "remove"), deltas_by_integration(means, epsilon), strict=True))
    pair = balls_in_bins._pair(BANDED, sigma, rounds, 2)
    refuted = {1.0: 0, 1.5: 0}
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        test = balls_in_bins._choose(pair, direction, 3000, failure, rng, epsilon, None)
        draws = balls_in_bins._draw(pair, direction, test.tilt, 3000, rng)
        for factor in refuted:
            mean = factor * exact[direction]
            refuted[factor] += balls_in_bins._passes(
                pair, direction, test, draws, epsilon, mean, failure
            )
    assert refuted[1.0] <= trials * failure + 4 * math.sqrt(trials * failure)
    assert refuted[1.5] >= 0.9 * trials


def test_the_multiplier_is_verified_and_spends_its_budget():
    arguments = {"delta": 1e-2, "rounds": 6, "bins": 3, "samples": 50_000}
    multiplier = acc.balls_in_bins_multiplier(BANDED, 2.0, **arguments)
    spent = acc.balls_in_bins_epsilon(BANDED, multiplier, seed=1, **arguments)
    assert 1.8 < spent < 2.05
    plain = BANDED.sensitivity(6, 3) / math.sqrt(2 * acc.zcdp_rho(2.0, 1e-2, "gaussian"))
    assert multiplier < 0.9 * plain


def test_a_seed_repeats_its_draws():
    draw = lambda seed: acc.balls_in_bins_delta(  # noqa: E731
        BANDED, 1.0, 1.0, 6, 3, samples=2000, seed=seed
    )
    assert draw(5) == draw(5) != draw(6)


def test_losses_are_those_of_jax_privacy(jax_privacy):
    from jax_privacy import batch_selection
    from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation

    rounds = 11
    bins = 4
    sigma = 1.2
    column = np.asarray(BANDED.coefficients)
    rng = np.random.default_rng(7)
    sampling = batch_selection.BallsInBinsSampling(iterations=rounds, cycle_length=bins)
    means = BANDED.responses(rounds, bins)
    samples = means[rng.integers(bins, size=50)] + sigma * rng.normal(size=(50, rounds))
    theirs = [
        sample_generation.compute_privacy_loss(sampling, sample, sigma, column)
        for sample in samples
    ]
    squares = np.sum(means**2, axis=1)
    ours = balls_in_bins._log_mean_exp((samples @ means.T - squares / 2) / sigma**2)
    close(ours, theirs, rtol=1e-6)
    pair = balls_in_bins._pair(BANDED, sigma, rounds, bins)
    close(pair.gram, means @ means.T / sigma**2, rtol=1e-9)
    losses = np.asarray(theirs)
    for epsilon in (0.0, 0.5):
        point = delta_calculation.delta_from_epsilon_and_samples(epsilon, losses)
        close(np.mean(monte_carlo.hockey_stick_terms(losses, epsilon)), point, rtol=1e-6)


# --------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: acc.cyclic_poisson_epsilon(BANDED, 1.0, 1e-5, 9, 0.1, 2),
            "at most 2 bands, and this Toeplitz has 3",
        ),
        (
            lambda: acc.cyclic_poisson_epsilon(
                matrices.BufferedToeplitz([0.1], [0.5]), 1.0, 1e-5, 9, 0.1, 9
            ),
            "this BufferedToeplitz has all",
        ),
        (lambda: acc.cyclic_poisson_epsilon(BANDED, 0.0, 1e-5, 9, 0.1, 3), "noise_multiplier"),
        (lambda: acc.cyclic_poisson_epsilon(BANDED, 1.0, 1e-5, 9, 1.1, 3), "rate must be"),
        (
            lambda: acc.balls_in_bins_epsilon(matrices.Toeplitz([1.0, -0.1]), 1.0, 1e-5, 9, 3),
            "nonnegative entries, and this Toeplitz has a negative one",
        ),
        (
            lambda: acc.balls_in_bins_epsilon(
                matrices.Banded([[1.0, 0.5], [1.0, -0.5], [1.0, 0.0]]), 1.0, 1e-5, 3, 1
            ),
            "this Banded has a negative one",
        ),
        (lambda: acc.balls_in_bins_epsilon(BANDED, 1.0, 0.0, 9, 3), "delta must be"),
        (lambda: acc.balls_in_bins_epsilon(BANDED, 1.0, 0.1, 9, 0), "bins must be"),
        (lambda: acc.balls_in_bins_epsilon(BANDED, 1.0, 0.1, 9, 3, samples=10), "samples must"),
        (lambda: acc.balls_in_bins_epsilon(BANDED, 1.0, 0.1, 9, 3, failure=0.1), "failure must"),
        (lambda: acc.balls_in_bins_multiplier(BANDED, 0.0, 0.1, 9, 3), "epsilon must be"),
        (lambda: acc.monte_carlo_delta([], 1.0), "losses is empty"),
        (lambda: acc.monte_carlo_delta([math.nan], 1.0), "some are nan"),
        (lambda: acc.monte_carlo_epsilon([1.0], 0.1, failure=0.2), "failure must be"),
    ],
)
def test_bad_input_is_refused_in_words(call, message):
    with pytest.raises(ValueError, match=message):
        call()
