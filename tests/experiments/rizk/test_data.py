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
    x = np.asarray(problem.features)
    weights = np.asarray(problem.weights)
    return np.einsum("kn,knp,knq->kpq", weights, x, x)


def regression_data(samples=4000, rho=0.1, **options):
    laws = {"eigenvalues": (0.5, 2.0), "noise": 0.04} | options
    return data.regression(KEY, 6, samples, 2, rho, **laws)


def quantiles():
    """Quantiles of the standard normal distribution for the number of agents."""
    return np.array([NormalDist().inv_cdf((k + 0.5) / 6) for k in range(6)])


@pytest.mark.slow
def test_covariances_are_the_agents_own_or_common():
    different = moments(regression_data())
    common = moments(regression_data(common=True))
    assert 0.45 < np.linalg.eigvalsh(different).min() < np.linalg.eigvalsh(different).max() < 2.2
    assert np.abs(different - different[0]).max() > 0.3
    np.testing.assert_allclose(common, np.broadcast_to(common[0], common.shape), atol=0.15)


@pytest.mark.slow
def test_spreads_separate_the_same_agents():
    ratio = moments(regression_data(feature_spread=1.0)) / moments(regression_data())
    factor = np.log(ratio[:, 0, 0]) / 2
    same = np.broadcast_to(np.exp(2 * factor)[:, None, None], ratio.shape)
    np.testing.assert_allclose(ratio, same, rtol=1e-3)
    twice = moments(regression_data(feature_spread=2.0)) / moments(regression_data())
    np.testing.assert_allclose(np.log(twice[:, 0, 0]) / 2, 2 * factor, rtol=1e-3)
    np.testing.assert_allclose(np.sort(factor), quantiles(), atol=1e-6)


@pytest.mark.slow
def test_noise_has_the_agents_own_variance():
    def left(problem):
        """Residual variance of each agent under the best common model."""
        model = fl.problems.optimum(problem)
        rest = problem.targets - jnp.einsum("knp,p->kn", problem.features, model)
        return np.asarray(jnp.sum(problem.weights * rest**2, axis=1))

    np.testing.assert_allclose(left(regression_data(rho=0.0)), 0.04, rtol=0.1)
    uneven = left(regression_data(rho=0.0, noise_spread=1.0))
    np.testing.assert_allclose(np.sort(np.log(uneven / 0.04)) / 2, quantiles(), atol=0.1)


@pytest.mark.slow
def test_sizes_are_ragged_and_padding_has_no_weight():
    problem = regression_data(samples=(3, 9))
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
    clean = regression_data(samples=(100, 4000)).with_test(np.eye(2), np.zeros(2))
    noisy = data.with_feature_noise(KEY, clean, jnp.arange(6.0))
    added = np.asarray(noisy.features - clean.features)
    for k, count in enumerate(np.asarray(clean.sample_counts())):
        np.testing.assert_allclose(added[k, :count].std(), k, rtol=0.2)
        assert not added[k, count:].any()
    assert noisy.test is clean.test
