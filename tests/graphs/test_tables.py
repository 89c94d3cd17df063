"""Both forms, and the overflow of a table, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import graphs
from tests.graphs.samples import check_simple, hub_matrix, weighted_matrix

RULES = ("metropolis", "max-degree", "laplacian", "averaging")
CROWDED = {
    "hub": lambda: graphs.from_adjacency(hub_matrix(40), form="padded"),
    "star": lambda: graphs.star(300),
    "drawn": lambda: graphs.random_connected(jax.random.key(5), 600, 4.0),
    "drawn, spare rows": lambda: graphs.erdos_renyi(jax.random.key(6), 500, 0.01),
}


def test_wide_tables_take_the_contraction_and_agree(monkeypatch):
    graph = graphs.from_adjacency(weighted_matrix(3, 12), form="padded")
    x = jax.random.normal(jax.random.key(0), (12, 4))
    unrolled = graph.neighbor_sum(x)
    monkeypatch.setattr(graphs.neighbor_tables, "_UNROLLED_SLOTS", 0)
    np.testing.assert_allclose(graph.neighbor_sum(x), unrolled, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("name", CROWDED)
def test_neighbors_without_a_slot_overflow_and_count_all_the_same(name):
    graph = CROWDED[name]()
    assert graph.form == "padded"
    assert graph.overflow is not None
    matrix = check_simple(graph)
    assert graph.neighbors.shape[1] < (matrix > 0).sum(axis=1).max()
    dense = graph.as_form("dense")
    np.testing.assert_array_equal(dense.dense(), matrix)
    np.testing.assert_array_equal(graph.edges, dense.edges)
    np.testing.assert_array_equal(graph.edge_weights(), dense.edge_weights())
    np.testing.assert_array_equal(graph.components(), dense.components())
    x = np.random.default_rng(1).normal(size=(graph.nodes, 3))
    np.testing.assert_allclose(graph.neighbor_sum(x), matrix @ x, rtol=1e-12, atol=1e-12)
    many = np.stack([x, 2 * x])
    got = jax.vmap(graph.neighbor_sum)(many)
    np.testing.assert_allclose(got, matrix @ many, rtol=1e-12, atol=1e-12)
    for rule in RULES:
        mixing = graph.mixing(rule)
        reference = dense.mixing(rule)
        np.testing.assert_allclose(mixing.matrix(), reference.matrix(), atol=1e-14)
        np.testing.assert_allclose(mixing(x), reference(x), atol=1e-12)


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("draw", ["random_connected", "erdos_renyi", "small_world"])
def test_tables_of_large_random_graphs_visit_few_empty_slots(draw):
    # What a table holds grows with the edges, not with the most connected node.
    graph = {
        "random_connected": lambda key: graphs.random_connected(key, 20_000, 6.0),
        "erdos_renyi": lambda key: graphs.erdos_renyi(key, 20_000, 6.0 / 20_000),
        "small_world": lambda key: graphs.small_world(key, 20_000, 6, 0.5),
    }[draw](jax.random.key(0))
    stored = graph.weights.size + graph.overflow.weights.size
    assert stored < 2.2 * int(graph.neighbor_counts().sum())
    assert int(graph.edge_count()) == len(graph.edges)


def test_wrong_number_of_rows():
    with pytest.raises(ValueError, match=r"one row per node, shape \[5, ...\], got shape \(4, 2\)"):
        graphs.ring(5).neighbor_sum(jnp.ones((4, 2)))


def test_form_is_chosen_by_size_and_by_width():
    assert graphs.ring(graphs.DENSE_BELOW - 1).form == "dense"
    assert graphs.ring(graphs.DENSE_BELOW).form == "padded"
    assert graphs.complete(graphs.DENSE_BELOW).form == "dense"  # a table would be as large
    assert graphs.ring(graphs.DENSE_BELOW).neighbors.shape[1] == 2
    assert graphs.from_edges(3, [(0, 1), (1, 2)], form="padded", max_degree=5).weights.shape == (
        3,
        5,
    )
