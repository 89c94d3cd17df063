"""Graphs from edges, matrices and networkx against networkx."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from fljax import graphs
from tests.graphs.samples import FORMS, check_simple, weighted_matrix

FIXED = {
    "ring": (lambda **kw: graphs.ring(7, **kw), nx.cycle_graph(7)),
    "path": (lambda **kw: graphs.path(6, **kw), nx.path_graph(6)),
    "star": (lambda **kw: graphs.star(8, **kw), nx.star_graph(7)),
    "complete": (lambda **kw: graphs.complete(5, **kw), nx.complete_graph(5)),
    "grid": (
        lambda **kw: graphs.grid(3, 4, **kw),
        nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4)),
    ),
    "torus": (
        lambda **kw: graphs.grid(3, 5, torus=True, **kw),
        nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 5, periodic=True)),
    ),
}
ASYMMETRIC = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 1.0], [0.0, 1.0, 0.0]])


@pytest.mark.thin(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FIXED)
def test_fixed_topologies_equal_networkx(name, form):
    build, reference = FIXED[name]
    graph = build(form=form)
    assert graph.form == form
    matrix = check_simple(graph)
    expected = nx.to_numpy_array(reference, nodelist=sorted(reference))
    np.testing.assert_array_equal(matrix, expected)
    assert bool(graph.connected())
    assert graph.edge_list() == sorted(tuple(sorted(edge)) for edge in reference.edges)
    assert float(graph.algebraic_connectivity()) == pytest.approx(
        np.sort(nx.laplacian_spectrum(reference))[1], abs=1e-9
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_weighted_round_trips(form):
    matrix = weighted_matrix(2, 10)
    graph = graphs.from_adjacency(matrix, form=form)
    np.testing.assert_allclose(check_simple(graph), matrix, rtol=1e-15)
    again = graphs.from_networkx(graph.to_networkx(), form=form)
    np.testing.assert_allclose(again.dense(), matrix, rtol=1e-15)
    np.testing.assert_allclose(nx.to_numpy_array(graph.to_networkx()), matrix, rtol=1e-15)
    rebuilt = graphs.from_edges(10, graph.edges[:, ::-1], graph.edge_weights())
    np.testing.assert_allclose(rebuilt.dense(), matrix, rtol=1e-15)
    for other in FORMS:
        np.testing.assert_allclose(graph.as_form(other).dense(), matrix, rtol=1e-15)
        traced = jax.jit(lambda g, other=other: g.as_form(other, max_degree=9))(graph)
        assert traced.form == other
        np.testing.assert_allclose(traced.dense(), matrix, rtol=1e-15)


def test_fixed_topologies_stay_concrete_while_tracing():
    @jax.jit
    def traced(x):
        graph = graphs.ring(5).require_connected()
        assert graph.edge_list()[0] == (0, 1)
        return graph.neighbor_sum(x)

    np.testing.assert_array_equal(traced(jnp.arange(5.0)), [5.0, 2.0, 4.0, 6.0, 3.0])


@pytest.mark.slow
def test_float_type_follows_the_configuration():
    assert graphs.ring(5).degree.dtype == jnp.float64
    with jax.enable_x64(False):
        assert graphs.ring(5).degree.dtype == jnp.float32
        drawn = graphs.random_connected(jax.random.key(0), 300, 3.0)
        assert drawn.weights.dtype == jnp.float32
        assert drawn.neighbors.dtype == jnp.int32
        assert graphs.erdos_renyi(jax.random.key(0), 300, 0.01).degree.dtype == jnp.float32


def test_disconnected_graphs_are_refused_by_default():
    edges = [(0, 1), (1, 2), (3, 4)]
    with pytest.raises(ValueError, match=r"2 components, the smallest has 2 of 5 nodes \(3, 4\)"):
        graphs.from_edges(5, edges)
    with pytest.raises(ValueError, match="disconnected"):
        graphs.from_networkx(nx.empty_graph(3))
    loose = graphs.from_edges(5, edges, allow_disconnected=True)
    assert not bool(loose.connected())
    assert float(loose.algebraic_connectivity()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: graphs.path(1), "nodes must be >= 2, got 1"),
        (lambda: graphs.ring(2), "nodes must be >= 3, got 2"),
        (lambda: graphs.grid(2, 5, torus=True), "rows must be >= 3, got 2"),
        (lambda: graphs.from_edges(3, [(0, 1), (1, 3)]), r"edge \(1, 3\) is out of range for 3"),
        (lambda: graphs.from_edges(3, [(0, 1), (-1, 2)]), r"edge \(-1, 2\) is out of range"),
        (lambda: graphs.from_edges(3, [(0, 1), (1, 0), (1, 2)]), "1 duplicate edges.*(0, 1)"),
        (lambda: graphs.from_edges(3, [(0, 1), (2, 2)]), "1 self-loops, the first at node 2"),
        (lambda: graphs.from_edges(3, [(0, 1, 2)]), r"array of shape \[E, 2\], got shape \(1, 3\)"),
        (lambda: graphs.from_edges(3, [(0.5, 1.0)]), "integer pairs"),
        (lambda: graphs.from_edges(2, [(0, 1)], [-1.0]), "weights must be finite and > 0, got -1"),
        (lambda: graphs.from_edges(2, [(0, 1)], [0.0]), "rather than give it weight zero"),
        (lambda: graphs.from_edges(2, [(0, 1)], [1.0, 2.0]), r"one per edge, shape \(1,\)"),
        (
            lambda: graphs.from_edges(3, [(0, 1), (0, 2)], form="padded", max_degree=1),
            "max_degree=1 is too small: node 0 has 2 neighbors",
        ),
        (lambda: graphs.from_edges(2, [(0, 1)], form="sparse"), "unknown form 'sparse'"),
        (lambda: graphs.from_adjacency(np.ones((2, 3))), r"square, \[K, K\], got shape \(2, 3\)"),
        (lambda: graphs.from_adjacency(ASYMMETRIC), r"entry \(0, 1\) is 1, its mirror is 0.5"),
        (lambda: graphs.from_adjacency(np.eye(3)), "has 3 self-loops"),
        (lambda: graphs.from_adjacency(-np.ones((3, 3))), "finite and >= 0, got -1"),
        (lambda: graphs.from_adjacency(np.full((3, 3), np.nan)), "finite and >= 0, got nan"),
        (lambda: graphs.from_networkx(nx.DiGraph([(0, 1)])), "is directed"),
        (lambda: graphs.from_networkx(nx.MultiGraph([(0, 1)])), "is a multigraph"),
    ],
)
def test_bad_input_is_one_clear_error(build, message):
    with pytest.raises(ValueError, match=message):
        build()
