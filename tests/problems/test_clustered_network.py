import itertools

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.problems import clustered_network

SIZES = (4, 7, 5)


def test_clusters_share_a_model_and_joins_are_within_and_between(key):
    draw = jax.jit(
        lambda key, within: clustered_network(
            key, SIZES, [3] * 8 + [60] * 8, 4, within, 0.1, noise_variance=0.0
        )
    )
    problem, _ = draw(key, 0.9)
    cluster = np.repeat([0, 1, 2], SIZES)
    np.testing.assert_array_equal(problem.tasks.cluster, cluster)
    assert problem.sample_counts().tolist() == [3] * 8 + [60] * 8
    truth = np.asarray(problem.tasks.truth)
    assert np.unique(truth).size == 12
    clean = np.einsum("knp,kp->kn", problem.features, truth[cluster])
    np.testing.assert_allclose(problem.targets, clean, atol=1e-12)
    assert not np.asarray(problem.features[:8, 3:]).any()
    within = between = 0.0
    draws = 40
    for other in jax.random.split(key, draws):
        matrix = np.asarray(draw(other, 0.9)[1].dense())
        assert set(np.unique(matrix)) <= {0.0, 1.0}
        same = cluster[:, None] == cluster
        within += matrix[same].sum() / (same.sum() - 16) / draws
        between += matrix[~same].mean() / draws
    assert within == pytest.approx(0.9, abs=0.05)
    assert between == pytest.approx(0.1, abs=0.03)


@pytest.mark.slow
def test_features_and_noise_have_the_variances_asked_for(key):
    truth = np.array([[1.0, -2.0], [0.5, 0.0]])
    problem, graph = clustered_network(key, (3, 3), 4000, 2, 1.0, 0.0, 0.25, truth)
    np.testing.assert_array_equal(problem.tasks.truth, truth)
    x = np.asarray(problem.features)
    residual = np.asarray(problem.targets)
    residual = residual - np.einsum("knp,kp->kn", x, truth[[0, 0, 0, 1, 1, 1]])
    assert residual.var() == pytest.approx(0.25, rel=0.05)
    np.testing.assert_allclose(np.cov(x.reshape(-1, 2).T), np.eye(2), atol=0.04)
    assert graph.edge_list() == [
        *itertools.combinations(range(3), 2),
        *itertools.combinations(range(3, 6), 2),
    ]


@pytest.mark.slow
def test_a_network_in_pieces_runs_over_a_grid_of_its_numbers(key, recwarn):
    def scenario(key, within, noise, allowed=True):
        k_draw, k_labels = jax.random.split(key)
        problem, graph = clustered_network(k_draw, (3, 3), 4, 2, within, 0.0, noise)
        return fl.Simulation(
            fl.data.few_shot(k_labels, problem, [4, 4, 0, 1, 4, 4]),
            fl.algorithms.ATC(0.02),
            graph,
            metrics=["network_deviation"],
            allow_disconnected=allowed,
        )

    grid = {"within": [0.5, 1.0], "noise": [0.0, 0.1]}
    results = fl.sweep(scenario, grid=grid, seeds=2, rounds=3)
    assert np.isfinite(results.network_deviation).all()
    assert not [w for w in recwarn if "disconnected" in str(w.message)]
    grid = {"within": [0.5], "noise": [0.0], "allowed": fl.static([False, True])}
    with pytest.warns(fl.AssumptionWarning, match="2 of 4 runs had a disconnected graph"):
        fl.sweep(scenario, grid=grid, seeds=2, rounds=3)


def test_objects_that_do_not_build_networks_are_refused(key):
    for changes, message in (
        ({"sizes": (3, 0)}, r"sizes\[1\] must be >= 1, got 0"),
        ({"within": 1.5}, "within must be finite and >= 0 and <= 1, got 1.5"),
        ({"between": -0.5}, "between must be finite and >= 0 and <= 1, got -0.5"),
        ({"noise_variance": -1.0}, "noise_variance must be finite and >= 0"),
        ({"samples": [2, 2]}, "samples must be one integer or 6 integers"),
        ({"truth": np.ones((3, 2))}, r"one model of each cluster, \[2, 2\], got shape \(3, 2\)"),
        ({"truth": np.full((2, 2), np.nan)}, "truth holds 4 NaN"),
    ):
        good = {"sizes": (3, 3), "samples": 4, "dim": 2, "within": 1.0, "between": 0.0}
        with pytest.raises(ValueError, match=message):
            clustered_network(key, **good | changes)
