"""Data of unlike agents have the laws they are drawn from."""

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from experiments.rizk import data

KEY = jax.random.key(0)


def moments(problem):
    """``[K, M, M]``: of each agent's features."""
    x, weights = np.asarray(problem.features), np.asarray(problem.weights)
    return np.einsum("kn,knp,knq->kpq", weights, x, x)


def drawn(samples=4000, rho=0.1, **given):
    laws = {"eigenvalues": (0.5, 2.0), "noise": 0.04} | given
    return data.regression(KEY, 6, samples, 2, rho, **laws)


def quantiles():
    """Of the standard normal law, of as many agents."""
    return np.array([NormalDist().inv_cdf((k + 0.5) / 6) for k in range(6)])


@pytest.mark.slow
def test_covariances_are_the_agents_own_or_common():
    own, common = moments(drawn()), moments(drawn(common=True))
    assert 0.45 < np.linalg.eigvalsh(own).min() < np.linalg.eigvalsh(own).max() < 2.2
    assert np.abs(own - own[0]).max() > 0.3
    np.testing.assert_allclose(common, np.broadcast_to(common[0], common.shape), atol=0.15)


@pytest.mark.slow
def test_spreads_move_the_same_agents_apart():
    ratio = moments(drawn(feature_spread=1.0)) / moments(drawn())
    factor = np.log(ratio[:, 0, 0]) / 2
    same = np.broadcast_to(np.exp(2 * factor)[:, None, None], ratio.shape)
    np.testing.assert_allclose(ratio, same, rtol=1e-3)
    twice = moments(drawn(feature_spread=2.0)) / moments(drawn())
    np.testing.assert_allclose(np.log(twice[:, 0, 0]) / 2, 2 * factor, rtol=1e-3)
    np.testing.assert_allclose(np.sort(factor), quantiles(), atol=1e-6)


@pytest.mark.slow
def test_noise_has_the_agents_own_variance():
    def left(problem):
        """Variance of what the best common model leaves, each agent's."""
        model = fl.problems.optimum(problem)
        rest = problem.targets - jnp.einsum("knp,p->kn", problem.features, model)
        return np.asarray(jnp.sum(problem.weights * rest**2, axis=1))

    np.testing.assert_allclose(left(drawn(rho=0.0)), 0.04, rtol=0.1)
    uneven = left(drawn(rho=0.0, noise_spread=1.0))
    np.testing.assert_allclose(np.sort(np.log(uneven / 0.04)) / 2, quantiles(), atol=0.1)


@pytest.mark.slow
def test_sizes_are_ragged_and_padding_is_nothing():
    problem = drawn(samples=(3, 9))
    counts = np.asarray(problem.sample_counts())
    assert set(counts) <= set(range(3, 10))
    assert len(set(counts)) > 1
    padding = np.arange(9) >= counts[:, None]
    assert not np.any(np.asarray(problem.features)[padding])
    assert not np.any(np.asarray(problem.targets)[padding])
    np.testing.assert_allclose(np.asarray(problem.weights).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(problem.share, 0.1, rtol=1e-6)  # rho of each agent


@pytest.mark.slow
def test_features_get_noise_of_the_agents_own_deviation():
    clean = drawn(samples=(100, 4000)).with_test(np.eye(2), np.zeros(2))
    noisy = data.with_feature_noise(KEY, clean, jnp.arange(6.0))
    added = np.asarray(noisy.features - clean.features)
    for k, count in enumerate(np.asarray(clean.sample_counts())):
        np.testing.assert_allclose(added[k, :count].std(), k, rtol=0.2)
        assert not added[k, count:].any()
    assert noisy.test is clean.test
