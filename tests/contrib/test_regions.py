"""Test regions, (180), and the scale of Gaussian noise: T30 and T31."""

import numpy as np
import pytest
from scipy import stats

from fljax.contrib import RegionErrors, gaussian_region, region_errors
from fljax.privacy import accounting

THRESHOLDS = np.linspace(-20, 20, 4001)
DELTA = 1e-5


@pytest.mark.parametrize("epsilon", [0.5, 0.9])
def test_180_holds_of_the_mechanism_as_printed(epsilon):
    sigma = accounting.classical_gaussian_sigma(1.0, epsilon, DELTA)
    errors = gaussian_region(1.0, sigma, THRESHOLDS * sigma)
    assert np.all(errors.margin(epsilon, DELTA) >= 0)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_180_is_tight_with_the_least_noise_and_fails_with_less(epsilon):
    sigma = accounting.analytic_gaussian_sigma(1.0, epsilon, DELTA)
    errors = gaussian_region(1.0, sigma, THRESHOLDS * sigma)
    assert np.min(errors.margin(epsilon, DELTA)) == pytest.approx(0, abs=1e-8)
    less = gaussian_region(1.0, 0.9 * sigma, THRESHOLDS * sigma)
    assert np.min(less.margin(epsilon, DELTA)) < 0


@pytest.mark.parametrize(
    ("epsilon", "exact"), [(0.5, 1.6e-8), (1, 4e-8), (6, 2.5e-6), (8, 8e-6), (10, 2.3e-5)]
)
def test_exact_results_of_the_printed_scale(epsilon, exact):
    sigma = np.sqrt(2 * np.log(1.25 / DELTA)) / epsilon
    delta = accounting.zcdp_delta(1 / (2 * sigma**2), float(epsilon), "gaussian")
    assert delta == pytest.approx(exact, rel=0.05)
    assert (delta > DELTA) == (epsilon == 10)  # why the theorem has its condition
    if epsilon >= 1:
        with pytest.raises(ValueError, match="epsilon must be finite and > 0 and < 1"):
            accounting.classical_gaussian_sigma(1.0, float(epsilon), DELTA)


def test_both_errors_by_monte_carlo():
    rng = np.random.default_rng(0)
    first = 2 * rng.normal(size=20_000)
    second = 1 + 2 * rng.normal(size=20_000)
    result = region_errors(first, second, lambda release: release < 0.3)
    exact = gaussian_region(1.0, 2.0, 0.3)
    assert result.missed == pytest.approx(float(exact.missed), abs=0.015)
    assert result.alarms == pytest.approx(float(exact.alarms), abs=0.015)
    above = region_errors(first, second, lambda release: release < 0.3, confidence=0.95)
    wrong = round(result.missed * 20_000)
    assert above.missed == pytest.approx(stats.beta.ppf(0.975, wrong + 1, 20_000 - wrong))
    assert above.alarms > result.alarms


def test_a_true_claim_is_refuted_at_the_stated_rate():
    rng = np.random.default_rng(1)
    epsilon = np.log(3)  # randomized response: its best region is exactly tight
    refuted = 0
    for _ in range(400):
        first = rng.random(500) > 0.25
        second = rng.random(500) > 0.75
        errors = region_errors(first, second, lambda release: release, confidence=0.9)
        refuted += errors.margin(epsilon, 0.0) < 0
    assert refuted / 400 < 0.1
    assert RegionErrors(0.25, 0.25).margin(epsilon, 0.0) == pytest.approx(0)


def test_bad_input():
    with pytest.raises(ValueError, match="sigma must be finite and > 0"):
        gaussian_region(1.0, 0.0, 0.5)
    with pytest.raises(ValueError, match="one truth value for each of the 5 releases of one"):
        region_errors(np.ones(5), np.ones(5), lambda release: release)
    with pytest.raises(ValueError, match="confidence must be"):
        region_errors(np.ones(5), np.ones(5), lambda release: release > 0, confidence=1.0)
    with pytest.raises(ValueError, match="delta must be finite and >= 0 and < 1"):
        RegionErrors(0.1, 0.2).margin(1.0, 1.0)
