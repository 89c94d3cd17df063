"""Learned graphs, against loops over pairs and linear programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from fljax import contrib, graphs
from tests.graphs.samples import check_simple
from tests.reference import jung_graphs as reference


def discrepancies(seed, nodes):
    upper = np.triu(np.random.default_rng(seed).random((nodes, nodes)), 1)
    return upper + upper.T


POINTS = np.random.default_rng(0).normal(size=(12, 3))


def test_an_edge_budget_takes_the_most_similar_pairs(monkeypatch):
    discrepancy = np.asarray(graphs.distances(POINTS))
    pairs = sorted(reference.pairs_by_discrepancy(discrepancy)[:17])
    graph = contrib.edge_budget(POINTS, 17)
    assert graph.edge_list() == pairs
    np.testing.assert_array_equal(check_simple(graph), graph.dense())
    monkeypatch.setattr("fljax.contrib.graph_learning._BLOCK_ENTRIES", 12)  # one row at a time
    assert contrib.edge_budget(POINTS, 17).edge_list() == pairs
    assert contrib.edge_budget(discrepancy, 17, metric="precomputed").edge_list() == pairs
    traced = jax.jit(lambda at: contrib.edge_budget(at, 17).dense())(POINTS)
    np.testing.assert_array_equal(traced, graph.dense())
    everyone = contrib.edge_budget(POINTS, 66)
    np.testing.assert_array_equal(everyone.dense(), graphs.complete(12).dense())


def test_an_edge_budget_is_the_optimum_of_its_linear_programme():
    discrepancy = discrepancies(1, 7)
    low, high = np.triu_indices(7, 1)
    budget = 2 * 8.0  # of ordered pairs
    answer = scipy.optimize.linprog(
        2 * discrepancy[low, high], A_eq=np.full((1, 21), 2.0), b_eq=[budget], bounds=(0, 1)
    )
    graph = contrib.edge_budget(discrepancy, 8, metric="precomputed")
    assert float(jnp.sum(graph.dense() * discrepancy)) == pytest.approx(answer.fun, rel=1e-12)


def test_geodesic_edge_budgets_take_the_shortest_distances():
    rng = np.random.default_rng(2)
    places = np.stack([rng.uniform(-80, 80, 15), rng.uniform(-180, 180, 15)], axis=1)
    discrepancy = np.asarray(graphs.distances(places, "geodesic"))
    graph = contrib.edge_budget(places, 9, metric="geodesic")
    assert graph.edge_list() == sorted(reference.pairs_by_discrepancy(discrepancy)[:9])


def test_the_projection_is_the_nearest_of_the_polytope():
    matrix = np.random.default_rng(3).normal(size=(7, 7))
    result = np.asarray(contrib.project_regular(matrix, 2.5))
    np.testing.assert_allclose(result, reference.dykstra(matrix, 2.5), atol=1e-8)
    np.testing.assert_allclose(result.sum(axis=1), 2.5, rtol=1e-12)
    # The obtuse angle that defines a projection, to some points of the polytope.
    for seed in range(5):
        other = contrib.regular_similarity(
            discrepancies(seed, 7), 2.5, metric="precomputed", method="exact"
        )
        inner = (matrix + matrix.T) / 2 * (1 - np.eye(7)) - result
        assert np.sum(inner * (np.asarray(other.dense()) - result)) <= 1e-9


def test_regular_similarity_is_near_the_optimum_and_may_be_traced():
    build = jax.jit(
        jax.vmap(lambda d: contrib.regular_similarity(d, 2, metric="precomputed").dense())
    )
    cases = np.stack([discrepancies(seed, 9) for seed in range(4)])
    for discrepancy, result in zip(cases, np.asarray(build(cases)), strict=True):
        exact = contrib.regular_similarity(discrepancy, 2, metric="precomputed", method="exact")
        np.testing.assert_allclose(result.sum(axis=1), 2, rtol=1e-10)
        np.testing.assert_allclose(exact.degree, 2, rtol=1e-12)
        assert np.all((result >= 0) & (result <= 1))
        best = np.sum(exact.dense() * discrepancy)
        assert best * (1 - 1e-12) <= np.sum(result * discrepancy) <= 1.01 * best


def half_integral(seed):
    exact = contrib.regular_similarity(
        discrepancies(seed, 9), 2, metric="precomputed", method="exact"
    )
    weights = np.asarray(exact.dense())
    halves = np.abs(weights - 0.5) < 1e-9
    assert np.all(halves | (np.abs(weights - np.round(weights)) < 1e-9))
    return bool(halves.any())


def test_a_vertex_may_have_weights_of_one_half():
    """Two separate triangles of degree one: no integral solution stays within them."""
    points = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    graph = contrib.regular_similarity(points, 1, method="exact")
    triangle = 0.5 * (1 - np.eye(3))
    np.testing.assert_allclose(graph.dense(), np.kron(np.eye(2), triangle), atol=1e-12)


@pytest.mark.slow
def test_some_vertices_are_half_integral():
    share = np.mean([half_integral(seed) for seed in range(200)])
    assert share == pytest.approx(0.085, abs=4 * np.sqrt(0.085 * 0.915 / 200))


def test_separated_clusters_stay_separate():
    rng = np.random.default_rng(4)
    points = np.repeat([[0.0, 0.0], [20.0, 0.0]], 6, axis=0) + rng.normal(size=(12, 2))
    graph = contrib.regular_similarity(points, 3)
    across = np.asarray(graph.dense())[:6, 6:]
    assert np.max(across) < 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: contrib.edge_budget(POINTS, 67), "at most the 66 pairs of 12 nodes, got 67"),
        (lambda: contrib.edge_budget(POINTS, 0), "edges must be >= 1"),
        (lambda: contrib.edge_budget(POINTS * np.nan, 3), "points holds 36 NaN"),
        (
            lambda: contrib.edge_budget(np.triu(np.ones((4, 4)), 1), 3, metric="precomputed"),
            r"symmetric, entry \(0, 1\) is 1, its mirror is 0",
        ),
        (
            lambda: contrib.edge_budget(np.where(np.eye(4), 0, np.inf), 3, metric="precomputed"),
            "only 0 pairs have a finite discrepancy, too few for 3",
        ),
        (lambda: contrib.regular_similarity(POINTS, 11.5), "degree must be .* <= 11, got 11.5"),
        (lambda: contrib.regular_similarity(POINTS, 0), "degree must be .* > 0"),
        (lambda: contrib.regular_similarity(POINTS[:2], 1), "at least 3 nodes"),
        (lambda: contrib.regular_similarity(POINTS, 3, method="simplex"), "unknown method"),
        (lambda: contrib.project_regular(np.ones((3, 4)), 1), "matrix must be square"),
    ],
)
def test_errors_are_reported(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_exact_optimum_is_for_known_values():
    with pytest.raises(TypeError, match="works on the host and cannot be traced; take 'projected'"):
        jax.jit(lambda d: contrib.regular_similarity(d, 2, method="exact").dense())(POINTS)
