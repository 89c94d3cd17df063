"""Linear maps, edges and connectivity of graphs against NumPy and networkx."""

import sys

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from fljax import graphs
from tests.graphs.samples import FORMS, weighted_matrix

KEY = jax.random.key(0)


@pytest.mark.thin(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_linear_maps_equal_numpy(form, shape):
    matrix = weighted_matrix(0, 11)
    graph = graphs.from_adjacency(matrix, form=form)
    assert graph.form == form
    x = np.random.default_rng(1).normal(size=(11, *shape))
    degree = np.diag(matrix.sum(axis=1))
    for got, operator in (
        (graph.neighbor_sum(x), matrix),
        (graph.laplacian(x), degree - matrix),
        (graph.signless_laplacian(x), degree + matrix),
    ):
        np.testing.assert_allclose(got, np.tensordot(operator, x, 1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(graph.laplacian_matrix(), degree - matrix, atol=1e-12)
    np.testing.assert_allclose(graph.signless_laplacian_matrix(), degree + matrix, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_float32_values_stay_float32_and_integers_become_floats(form):
    graph = graphs.ring(5, form=form)
    assert graph.neighbor_sum(jnp.ones((5, 2), jnp.float32)).dtype == jnp.float32
    assert graph.laplacian(jnp.ones((5, 2), jnp.float32)).dtype == jnp.float32
    assert graph.mixing()(jnp.ones((5, 2), jnp.float32)).dtype == jnp.float32
    np.testing.assert_array_equal(graph.laplacian(jnp.arange(5) == 0), [2.0, -1.0, 0.0, 0.0, -1.0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.thin(1)
def test_incidence_and_arc_matrices_give_both_laplacians(form):
    # L_+ = H_+ H_+' / 2 = Deg + Adj and L_- = H_- H_-' / 2 = Deg - Adj, H = A1' +- A2'.
    graph = graphs.random_connected(jax.random.key(3), 12, 3.0, form=form)
    arcs = np.concatenate([graph.edges, graph.edges[:, ::-1]])
    a1 = np.eye(12)[arcs[:, 0]]
    a2 = np.eye(12)[arcs[:, 1]]
    plus = (a1 + a2).T
    minus = (a1 - a2).T
    np.testing.assert_allclose(plus @ plus.T / 2, graph.signless_laplacian_matrix(), atol=1e-12)
    np.testing.assert_allclose(minus @ minus.T / 2, graph.laplacian_matrix(), atol=1e-12)
    weighted = graphs.from_adjacency(weighted_matrix(5, 9), form=form)
    oriented = weighted.incidence()
    plain = weighted.incidence(oriented=False)
    np.testing.assert_allclose(oriented @ oriented.T, weighted.laplacian_matrix(), atol=1e-12)
    np.testing.assert_allclose(plain @ plain.T, weighted.signless_laplacian_matrix(), atol=1e-12)


# Connectivity -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_components_equal_networkx(form):
    for seed in range(5):
        reference = nx.gnp_random_graph(40, 0.04, seed=seed)
        graph = graphs.from_networkx(reference, form=form, allow_disconnected=True)
        expected = np.empty(40, int)
        for members in nx.connected_components(reference):
            expected[list(members)] = min(members)
        np.testing.assert_array_equal(graph.components(), expected)
        assert bool(graph.connected()) == nx.is_connected(reference)
    rng = np.random.default_rng(0)
    order = rng.permutation(3000)  # the longest possible distances, in a bad numbering
    long_path = graphs.from_edges(3000, np.stack([order[:-1], order[1:]], axis=1))
    assert bool(long_path.connected())


def test_connected_under_vmap():
    joined = np.asarray(graphs.path(4).dense())
    split = joined.copy()
    split[1, 2] = split[2, 1] = 0.0
    batch = jnp.asarray(np.stack([joined, split]))
    result = jax.vmap(lambda a: graphs.from_adjacency(a).require_connected().connected())(batch)
    assert result.tolist() == [True, False]


def test_only_an_edge_of_the_overflow_joins_two_halves():
    # Both ends find the bridge beyond their slots: components must look there.
    nodes = 60
    matrix = np.zeros((nodes, nodes))
    matrix[0, 1:30] = matrix[59, 30:59] = 1.0
    halves = graphs.from_adjacency(matrix + matrix.T, form="padded", allow_disconnected=True)
    assert not halves.connected()
    matrix[0, 59] = 1.0
    joined = graphs.from_adjacency(matrix + matrix.T, form="padded")
    assert 59 not in np.asarray(joined.neighbors[0])
    assert joined.connected()


def test_same_structure_compiles_once():
    traces = []

    @jax.jit
    def use(graph, x):
        traces.append(1)
        return graph.neighbor_sum(x)

    for seed in range(3):
        use(graphs.random_connected(jax.random.key(seed), 20, 3.0, form="padded"), jnp.ones(20))
    assert len(traces) == 1


# Bad inputs -------------------------------------------------------------------------------------


def test_a_graph_needs_a_form():
    with pytest.raises(ValueError, match="neither form whole"):
        graphs.Graph(3, None, None, None, jnp.ones(3))


def test_untraceable_functions_are_refused():
    keys = jax.random.split(KEY, 2)
    with pytest.raises(TypeError, match=r"Graph\.edges has a shape that depends on the graph"):
        jax.jit(lambda key: graphs.random_connected(key, 10, 3.0).edges)(KEY)
    with pytest.raises(TypeError, match="mean_degree decides shapes"):
        jax.jit(lambda d: graphs.random_connected(KEY, 10, d).degree)(3.0)
    batch = jax.vmap(lambda key: graphs.random_connected(key, 10, 3.0))(keys)
    with pytest.raises(
        ValueError, match=r"is for one graph, this one is batched with shape \(2,\)"
    ):
        batch.edge_list()
    with pytest.raises(ValueError, match="needs max_degree"):
        jax.jit(lambda a: graphs.from_adjacency(a, form="padded"))(jnp.ones((3, 3)))


def test_missing_networkx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"fljax\[graphs\]"):
        graphs.ring(4).to_networkx()
