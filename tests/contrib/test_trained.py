"""The audit by a trained attacker: it catches faults, and accuses as rarely as it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import fljax as fl
from fljax.contrib import TrainedAttack, most_accurate, trained_attack
from fljax.privacy import accounting, gaussian_release, laplace_release

ZERO = np.zeros(1)
ONE = np.ones(1)
EPSILON = 1.0
DELTA = 1e-5


def laplace(scale):
    return lambda key, data: laplace_release(key, data, scale, EPSILON)


def response(probability):
    def release(key, label):
        return fl.contrib.randomized_labels(key, label, jnp.array([0.0, 1.0]), probability)

    return release


RIGHT = float(accounting.randomized_response_probability(EPSILON, 2))


def test_half_of_the_noise_is_found():
    assert trained_attack(laplace(0.5), ZERO, ONE, EPSILON, 0.0).broken
    result = trained_attack(laplace(1.0), ZERO, ONE, EPSILON, 0.0)
    assert not result.broken
    best = 1 - np.exp(-EPSILON / 2) / 2  # of Laplace noise, by the likelihood ratio
    assert result.accuracy == pytest.approx(best, abs=0.03)


def test_half_of_gaussian_noise_is_found_at_its_curve():
    rho = float(accounting.zcdp_rho(EPSILON, DELTA, "gaussian"))
    epsilons = np.array([0.0, 0.5, EPSILON])
    deltas = accounting.zcdp_delta(rho, epsilons, "gaussian")
    for scale, broken in ((1.0, False), (0.5, True)):

        def release(key, data, scale=scale):
            return gaussian_release(key, data, scale, EPSILON, DELTA)

        assert trained_attack(release, ZERO, ONE, epsilons, deltas).broken == broken
        result = trained_attack(release, ZERO, ONE, EPSILON, DELTA)
        assert not result.broken  # with small deltas the threshold is far above
        assert result.threshold > 0.73


@pytest.mark.slow
def test_a_tight_mechanism_is_refuted_at_the_stated_rate():
    """Randomized response: the best attacker is right exactly as often as is allowed."""
    release = response(RIGHT)
    accused = [
        trained_attack(release, ZERO, ONE, EPSILON, 0.0, 200, key=k, confidence=0.9).broken
        for k in range(300)
    ]
    assert 0.02 < np.mean(accused) < 0.1 + 3 * np.sqrt(0.09 / 300)
    assert trained_attack(response(RIGHT / 2), ZERO, ONE, EPSILON, 0.0).broken


def test_attackers_of_scikit_learn():
    def release(key, sign):  # told by the square alone
        return jax.random.normal(key, (2,)) * (1 + sign)

    for attacker, broken in (
        (LogisticRegression(), False),
        (RandomForestClassifier(50, max_depth=4), True),
    ):
        result = trained_attack(release, ZERO, 2 * ONE, 0.5, 0.0, attacker=attacker)
        assert result.broken == broken


def test_a_number_without_noise_is_exposed():
    result = trained_attack(lambda key, data: data, ZERO, ONE, 3.0, 0.0, trials=400)
    assert result.accuracy == 1
    assert result.broken
    assert result.bound == pytest.approx(stats_epsilon(200))


def stats_epsilon(tests):
    least = stats.beta.ppf(0.05, tests, 1)
    return np.log(least / (1 - least))


@pytest.mark.slow
def test_problems_and_training():
    """A released model of two problems that differ in one label, with its exact sensitivity."""
    problem = fl.problems.least_squares(jax.random.key(0), 3, 4, 2)
    graph = fl.graphs.ring(3)
    quotient = np.asarray(fl.contrib.label_sensitivity(problem, graph, 1.0))
    k, n = np.unravel_index(np.argmax(quotient), quotient.shape)
    targets = np.asarray(problem.targets).copy()
    targets[k, n] += 1.0
    other = fl.problems.Problem(problem.features, targets, problem.loss)
    original = fl.problems.Problem(problem.features, problem.targets, problem.loss)
    rho = accounting.zcdp_rho(EPSILON, DELTA, "gaussian")
    curve = (0.0, float(accounting.zcdp_delta(rho, 0.0, "gaussian")))
    for factor, broken in ((1.0, False), (0.4, True)):

        def release(key, data, factor=factor):
            models = fl.problems.GTVMin(data, graph, 1.0).solve()
            return gaussian_release(key, models, factor * quotient.max(), EPSILON, DELTA)

        assert trained_attack(release, original, other, *curve, trials=3000).broken == broken


@pytest.mark.slow
def test_functions_of_the_host_give_the_same():
    compiled = trained_attack(laplace(0.5), ZERO, ONE, EPSILON, 0.0, trials=100)
    called = trained_attack(laplace(0.5), ZERO, ONE, EPSILON, 0.0, trials=100, compiled=False)
    assert compiled == called

    def host(key, data):
        return data + np.random.default_rng(int(jax.random.bits(key))).laplace(size=1)

    assert not trained_attack(host, ZERO, ONE, EPSILON, 0.0, trials=200, compiled=False).broken


def test_the_threshold_is_that_of_the_best_region():
    """Over all regions, by linear programming: the sup of accuracy under (180) and its mirror."""
    for epsilon, delta in ((0.0, 0.0), (0.5, 0.1), (2.0, 1e-3)):
        alarms = np.linspace(0, 1, 200_001)
        hits = np.minimum(
            np.exp(epsilon) * alarms + delta, 1 - np.exp(-epsilon) * (1 - delta - alarms)
        )
        assert most_accurate(epsilon, delta) == pytest.approx(
            float(np.max((np.minimum(hits, 1) + 1 - alarms) / 2)), abs=1e-5
        )


def test_verdicts():
    verdict = TrainedAttack(1900, 2000, 1.0, 0.0, 0.95).verdict
    assert verdict.startswith("BROKEN: right in 95.0% of 2000 tests, at least 94.1%")
    assert "allows 73.1%" in verdict
    verdict = TrainedAttack(1000, 2000, 1.0, 0.0, 0.95).verdict
    assert "not broken" in verdict
    assert "Another attacker may find more" in verdict
    assert "take more" in TrainedAttack(20, 20, 5.0, 0.0, 0.95).verdict


def test_bad_input():
    class Silent:
        fit = predict = lambda self, *a: np.full(len(a[0]), 2)

    release = laplace(1.0)
    with pytest.raises(ValueError, match="trials must be >= 40"):
        trained_attack(release, ZERO, ONE, 1.0, 0.0, trials=10)
    with pytest.raises(ValueError, match=r"one and other must be of the same structure"):
        trained_attack(release, ZERO, np.ones(2), 1.0, 0.0)
    with pytest.raises(ValueError, match=r"attacker must have fit\(X, y\) and predict\(X\)"):
        trained_attack(release, ZERO, ONE, 1.0, 0.0, attacker=3)
    with pytest.raises(ValueError, match="predict must return 0 or 1 for each of 20 releases"):
        trained_attack(release, ZERO, ONE, 1.0, 0.0, trials=40, attacker=Silent())
    with pytest.raises(ValueError, match="release holds 40 NaN or infinite"):
        trained_attack(lambda key, data: data / 0, ZERO, ONE, 1.0, 0.0, trials=40)
    with pytest.raises(ValueError, match="delta must be finite and >= 0 and < 1"):
        trained_attack(release, ZERO, ONE, 1.0, 1.0)
