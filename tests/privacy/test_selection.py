"""Accounting of the best of a random number of trials, against exact divergences."""

import math
import random

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import logsumexp

from fljax.privacy import accounting as acc

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

SHAPES = (-0.5, 0.0, 0.5, 1.0, 3.0)


def renyi(order, p, q):
    """Exact divergence of distributions on finitely many outputs."""
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1))


def generating(shape, stop):
    """``f(x) = E[x^K]`` of the truncated negative binomial distribution, in closed form."""
    if shape == 0:
        return lambda x: np.log1p(-(1 - stop) * x) / math.log(stop)
    bottom = stop**-shape - 1
    return lambda x: ((1 - (1 - stop) * x) ** -shape - 1) / bottom


def best_of(generate, outputs, empty=0.0):
    """Distribution of the largest output of a random number of trials; first that of no trial."""
    below = generate(np.append(0.0, np.cumsum(outputs)))
    return np.append(empty, np.diff(below)) if empty else np.diff(below)


def pairs(count=25):
    """Neighboring distributions of one trial: random ones, and ones that separate the worlds."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        size = int(rng.integers(2, 6))
        p = rng.dirichlet(np.full(size, 10 ** rng.uniform(-0.5, 1)))
        q = p * np.exp(rng.uniform(0.05, 2) * rng.uniform(-1, 1, size))
        yield np.maximum(p, 1e-12) / np.maximum(p, 1e-12).sum(), q / q.sum()
    for epsilon in (0.1, 1.0):  # the best output is rare, and e^epsilon times as rare in a world
        for rare in (1e-3, 0.1):
            yield (
                np.array([1 - rare, rare]),
                np.array([1 - rare * math.exp(-epsilon), rare * math.exp(-epsilon)]),
            )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stop", [0.5, 0.05, 1e-3])
def test_the_number_of_trials_has_its_distribution(shape, stop):
    probabilities = acc.selection_probabilities(60_000, shape, stop)
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    mean = float(probabilities @ np.arange(1, 60_001))
    assert acc.selection_mean(shape, stop) == pytest.approx(mean, rel=1e-8)
    x = np.linspace(0, 1, 7)
    powers = [float(probabilities @ value ** np.arange(1, 60_001)) for value in x]
    np.testing.assert_allclose(generating(shape, stop)(x), powers, atol=1e-9)
    again = acc.selection_stop(acc.selection_mean(shape, stop), shape)
    assert again == pytest.approx(stop, rel=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_trials_are_drawn_with_their_probabilities(shape):
    source = random.Random(0)
    probabilities = acc.selection_probabilities(12, shape, 0.2)
    drawn = np.array([acc.draw_trials(source.random, shape, 0.2) for _ in range(2_000)])
    observed = np.append(np.bincount(drawn, minlength=13)[1:13], np.sum(drawn > 12))
    expected = np.append(probabilities, 1 - probabilities.sum()) * len(drawn)
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    assert drawn.min() == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_no_pair_of_worlds_exceeds_the_curve(shape):
    """Exact divergences of the best of K trials, from the generating function of K."""
    orders = np.concatenate([[1.1, 1.5], np.arange(2, 65.0, 4)])
    closest = 0.0
    for stop in (0.5, 0.1, 0.01):
        generate = generating(shape, stop)
        for p, q in pairs():
            trial = np.array([max(renyi(a, p, q), renyi(a, q, p)) for a in orders])
            bound = acc.selection_renyi(orders, trial, shape, stop)
            best = best_of(generate, p), best_of(generate, q)
            exact = np.array([max(renyi(a, *best), renyi(a, *best[::-1])) for a in orders])
            assert (exact <= bound + 1e-9).all()
            closest = max(closest, float((exact / bound).max()))
    assert closest > 0.6  # it is not loose either


@pytest.mark.parametrize("mean", [0.3, 1.0, 5.0, 50.0])
def test_a_poisson_number_of_trials_has_its_exact_curve(mean):
    orders = np.arange(1.5, 20.0, 1.5)
    closest = 0.0
    for p, q in pairs():
        trial = np.array([max(renyi(a, p, q), renyi(a, q, p)) for a in orders])
        allowed = 1 + 1 / (orders - 1)
        missed = [
            max(np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum()) for e in allowed
        ]
        bound = acc.poisson_selection_renyi(orders, trial, mean, missed)
        looser = acc.poisson_selection_renyi(orders, trial, mean)
        assert (bound <= looser + 1e-12).all()
        best = [
            best_of(lambda x: np.exp(mean * (x - 1)), weights, math.exp(-mean))
            for weights in (p, q)
        ]
        exact = np.array([max(renyi(a, *best), renyi(a, *best[::-1])) for a in orders])
        assert (exact <= bound + 1e-9).all()
        closest = max(closest, float((exact / bound).max()))
    assert closest > 0.3


def test_the_best_of_gaussian_trials_equals_its_integral():
    """The best of K Gaussian releases by their value: numerically integrated."""
    sigma = 2.0
    shape = 1.0
    stop = 0.1
    x = np.linspace(-30, 30, 400_001)
    derivative = lambda c: stop / (1 - (1 - stop) * c) ** 2  # noqa: E731  # of the geometric f
    densities = [
        np.log(derivative(stats.norm.cdf(x, at, sigma))) + stats.norm.logpdf(x, at, sigma)
        for at in (0.0, 1.0)
    ]
    trial = acc.renyi_gaussian(acc.RENYI_ORDERS, 1.0, sigma)
    bound = acc.selection_renyi(acc.RENYI_ORDERS, trial, shape, stop)
    for order, most in zip(acc.RENYI_ORDERS[::20], bound[::20], strict=True):
        if order > 20:  # the integral's weight leaves the grid
            break
        for p, q in (densities, densities[::-1]):
            integral = np.trapezoid(np.exp(order * p + (1 - order) * q), x)
            assert math.log(integral) / (order - 1) <= most


def test_known_costs_of_selection():
    """Pure trials cost (2 + eta) epsilon (Liu & Talwar 2019 for the geometric distribution), and
    trials that depend on no data cost nothing.
    """
    orders = np.geomspace(1.01, 1e9, 4000)
    for shape in SHAPES:
        curve = acc.selection_renyi(orders, np.full_like(orders, 0.5), shape, 0.01)
        assert curve[-1] == pytest.approx((2 + shape) * 0.5, rel=1e-6)
        assert acc.selection_epsilon(0.0, 1e-5, shape, 0.01) == 0
    assert acc.poisson_selection_epsilon(0.0, 1e-5, 3.0) == 0
    assert acc.selection_epsilon(1e-9, 1e-5, 1.0, 0.1) < 1e-3


@pytest.mark.parametrize("rho", [1e-4, 0.1, 3.0, 40.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_closed_form_for_zcdp_is_the_least_over_both_orders(rho, shape):
    delta = 1e-6
    stop = 0.02
    log = -math.log(stop)
    mean = math.log(acc.selection_mean(shape, stop))

    def epsilon(logs):
        t = math.exp(logs[0])
        other = 1 + math.exp(logs[1])
        extra = (1 + shape) * ((1 - 1 / other) * rho * other + log / other)
        first = rho * (1 + t) + extra + (mean - math.log(delta) - math.log1p(t)) / t
        return first - math.log1p(1 / t)

    starts = [(a, b) for a in (-4, 0, 4) for b in (-3, 0, 3)]
    least = min(optimize.minimize(epsilon, start, method="Nelder-Mead").fun for start in starts)
    closed = acc.selection_epsilon(rho, delta, shape, stop)
    assert closed == pytest.approx(least, rel=1e-3)
    assert closed <= least * (1 + 1e-9)
    orders = 1 + np.geomspace(1e-3, 1e6, 20_000)
    curve = acc.selection_renyi(orders, rho * orders, shape, stop)
    assert closed <= float(acc.renyi_epsilon(orders, curve, delta)) * (1 + 1e-9)


def test_selection_costs_more_than_a_trial_and_less_than_all_of_them():
    for rho in (0.01, 0.1, 1.0):
        once = float(acc.zcdp_epsilon(rho, 1e-6, "canonne-kamath-steinke"))
        everything = float(acc.zcdp_epsilon(100 * rho, 1e-6, "canonne-kamath-steinke"))
        geometric = acc.selection_epsilon(rho, 1e-6, 1.0, 0.01)
        poisson = acc.poisson_selection_epsilon(rho, 1e-6, 100.0)
        assert once < min(geometric, poisson) <= max(geometric, poisson) < everything


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acc.selection_mean(-1.0, 0.5), "shape must be"),
        (lambda: acc.selection_mean(1.0, 1.0), "stop must be"),
        (lambda: acc.selection_stop(1.0), "mean must be"),
        (lambda: acc.selection_epsilon(-1.0, 1e-5, 1.0, 0.1), "rho must be"),
        (lambda: acc.selection_epsilon(1.0, 0.0, 1.0, 0.1), "delta must be"),
        (lambda: acc.selection_renyi([0.9], [1.0], 1.0, 0.1), "orders must be"),
        (lambda: acc.selection_renyi([2.0, 3.0], [1.0], 1.0, 0.1), "equally long"),
        (lambda: acc.poisson_selection_epsilon(1.0, 1e-5, 0.0), "mean must be"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
