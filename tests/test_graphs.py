"""Topologies against networkx, NumPy and the laws they claim to follow."""

import math
import sys

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fljax import graphs

FORMS = ("dense", "padded")
SYMMETRIC_RULES = ("metropolis", "max-degree", "laplacian")
RULES = (*SYMMETRIC_RULES, "averaging")

RANDOM = {
    "random_connected": lambda key, **kw: graphs.random_connected(key, 40, 3.0, **kw),
    "random_connected crowded": lambda key, **kw: graphs.random_connected(key, 20, 15.0, **kw),
    "erdos_renyi": lambda key, **kw: graphs.erdos_renyi(key, 30, 0.2, **kw),
    "random_geometric": lambda key, **kw: graphs.random_geometric(key, 30, 0.3, **kw),
    "k_regular": lambda key, **kw: graphs.k_regular(key, 20, 3, **kw),
    "k_regular crowded": lambda key, **kw: graphs.k_regular(key, 20, 13, **kw),
    "small_world": lambda key, **kw: graphs.small_world(key, 30, 4, 0.3, **kw),
    "stochastic_block_model": lambda key, **kw: graphs.stochastic_block_model(
        key, (10, 1, 15), np.full((3, 3), 0.1) + 0.4 * np.eye(3), **kw
    ),
}
# Above DENSE_BELOW: other samplers, and tables by default.
LARGE = {
    "random_connected": lambda key: graphs.random_connected(key, 600, 4.0),
    "erdos_renyi": lambda key: graphs.erdos_renyi(key, 600, 0.01),
    "random_geometric": lambda key: graphs.random_geometric(key, 1000, 0.04),
    "k_regular": lambda key: graphs.k_regular(key, 600, 4),
    "small_world": lambda key: graphs.small_world(key, 600, 4, 0.2),
    "stochastic_block_model": lambda key: graphs.stochastic_block_model(
        key, (400, 200), [[0.02, 0.002], [0.002, 0.03]]
    ),
}
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


def weighted_matrix(seed: int, nodes: int) -> np.ndarray:
    """A connected weighted graph: a path plus random edges."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(0.2, 2.0, (nodes, nodes)) * (rng.random((nodes, nodes)) < 0.3), 1)
    upper[np.arange(nodes - 1), np.arange(1, nodes)] = rng.uniform(0.2, 2.0, nodes - 1)
    return upper + upper.T


def check_simple(graph: graphs.Graph) -> np.ndarray:
    """Symmetric, non-negative, no loops, degrees and counts consistent; the dense matrix."""
    matrix = np.asarray(graph.dense())
    assert matrix.shape == (graph.nodes, graph.nodes)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert np.all(np.diagonal(matrix) == 0.0)
    assert np.all(matrix >= 0.0)
    np.testing.assert_allclose(graph.degree, matrix.sum(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(graph.neighbor_counts(), (matrix > 0).sum(axis=1))
    assert int(graph.edge_count()) == len(graph.edges) == np.count_nonzero(np.triu(matrix))
    if graph.neighbors is not None:
        empty = np.asarray(graph.weights) == 0.0
        itself = np.broadcast_to(np.arange(graph.nodes)[:, None], empty.shape)
        np.testing.assert_array_equal(np.asarray(graph.neighbors) == itself, empty)
        assert graph.neighbors.dtype == jnp.int32
    if graph.overflow is not None:
        owners, far, weights = (np.asarray(leaf) for leaf in graph.overflow)
        assert np.all(np.diff(owners) > 0)
        assert np.all((far >= 0) & (far < graph.nodes))
        assert np.all(weights[owners >= graph.nodes] == 0.0)
    return matrix


# Linear maps ------------------------------------------------------------------------------------


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
def test_float32_values_stay_float32_and_integers_become_floats(form):
    graph = graphs.ring(5, form=form)
    assert graph.neighbor_sum(jnp.ones((5, 2), jnp.float32)).dtype == jnp.float32
    assert graph.laplacian(jnp.ones((5, 2), jnp.float32)).dtype == jnp.float32
    assert graph.mixing()(jnp.ones((5, 2), jnp.float32)).dtype == jnp.float32
    np.testing.assert_array_equal(graph.laplacian(jnp.arange(5) == 0), [2.0, -1.0, 0.0, 0.0, -1.0])


def test_wide_tables_take_the_contraction_and_agree(monkeypatch):
    graph = graphs.from_adjacency(weighted_matrix(3, 12), form="padded")
    x = jax.random.normal(jax.random.key(0), (12, 4))
    unrolled = graph.neighbor_sum(x)
    monkeypatch.setattr(graphs, "_UNROLLED_SLOTS", 0)
    np.testing.assert_allclose(graph.neighbor_sum(x), unrolled, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_incidence_and_arc_matrices_give_both_laplacians(form):
    # L_+ = H_+ H_+' / 2 = Deg + Adj and L_- = H_- H_-' / 2 = Deg - Adj, H = A1' +- A2'.
    graph = graphs.random_connected(jax.random.key(3), 12, 3.0, form=form)
    arcs = np.concatenate([graph.edges, graph.edges[:, ::-1]])
    a1, a2 = np.eye(12)[arcs[:, 0]], np.eye(12)[arcs[:, 1]]
    plus, minus = (a1 + a2).T, (a1 - a2).T
    np.testing.assert_allclose(plus @ plus.T / 2, graph.signless_laplacian_matrix(), atol=1e-12)
    np.testing.assert_allclose(minus @ minus.T / 2, graph.laplacian_matrix(), atol=1e-12)
    weighted = graphs.from_adjacency(weighted_matrix(5, 9), form=form)
    oriented, plain = weighted.incidence(), weighted.incidence(oriented=False)
    np.testing.assert_allclose(oriented @ oriented.T, weighted.laplacian_matrix(), atol=1e-12)
    np.testing.assert_allclose(plain @ plain.T, weighted.signless_laplacian_matrix(), atol=1e-12)


CROWDED = {
    "hub": lambda: graphs.from_adjacency(hub_matrix(40), form="padded"),
    "star": lambda: graphs.star(300),
    "drawn": lambda: graphs.random_connected(jax.random.key(5), 600, 4.0),
    "drawn, spare rows": lambda: graphs.erdos_renyi(jax.random.key(6), 500, 0.01),
}


def hub_matrix(nodes: int) -> np.ndarray:
    """A weighted ring whose first two nodes know nearly everybody."""
    rng = np.random.default_rng(nodes)
    upper = np.zeros((nodes, nodes))
    upper[np.arange(nodes - 1), np.arange(1, nodes)] = 1.0
    upper[0, 2:], upper[1, 5:] = 1.0, 1.0
    upper *= rng.uniform(0.5, 2.0, upper.shape)
    return upper + upper.T


@pytest.mark.parametrize("name", CROWDED)
def test_neighbours_without_a_slot_overflow_and_count_all_the_same(name):
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
        mixing, reference = graph.mixing(rule), dense.mixing(rule)
        np.testing.assert_allclose(mixing.matrix(), reference.matrix(), atol=1e-14)
        np.testing.assert_allclose(mixing(x), reference(x), atol=1e-12)


def test_only_an_edge_of_the_overflow_joins_two_halves():
    # Both ends find the bridge beyond their slots: components must look there.
    nodes = 60
    matrix = np.zeros((nodes, nodes))
    matrix[0, 1:30] = matrix[59, 30:59] = 1.0
    halves = graphs.from_adjacency(matrix + matrix.T, form="padded", allow_disconnected=True)
    assert not halves.connected()
    matrix[0, 59] = 1.0
    whole = graphs.from_adjacency(matrix + matrix.T, form="padded")
    assert 59 not in np.asarray(whole.neighbors[0])
    assert whole.connected()


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


# Mixing -----------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.sampled_from([3, 6, 11]),
    rule=st.sampled_from(RULES),
    form=st.sampled_from(FORMS),
)
def test_mixing_is_stochastic_keeps_its_mean_and_commutes_with_relabelling(seed, nodes, rule, form):
    matrix = weighted_matrix(seed, nodes)
    mixing = graphs.from_adjacency(matrix, form=form).mixing(rule)
    weights = np.asarray(mixing.matrix())
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
    assert np.all(weights >= 0.0)
    assert np.all(np.diagonal(weights) > 0.0)
    off = ~np.eye(nodes, dtype=bool)
    np.testing.assert_array_equal(weights[off] > 0, matrix[off] > 0)

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(nodes, 3))
    mixed = np.asarray(mixing(x))
    np.testing.assert_allclose(mixed, weights @ x, atol=1e-12)
    stationary = np.asarray(mixing.stationary)
    np.testing.assert_allclose(stationary @ weights, stationary, atol=1e-12)
    np.testing.assert_allclose(stationary @ mixed, stationary @ x, atol=1e-12)
    if rule in SYMMETRIC_RULES:
        np.testing.assert_allclose(weights, weights.T, atol=1e-12)
        np.testing.assert_allclose(mixed.mean(axis=0), x.mean(axis=0), atol=1e-12)

    order = rng.permutation(nodes)
    moved = graphs.from_adjacency(matrix[np.ix_(order, order)], form=form).mixing(rule)
    np.testing.assert_allclose(moved(x[order]), mixed[order], atol=1e-12)


def test_mixing_rules_by_hand_on_a_path():
    graph = graphs.path(3)  # degrees 1, 2, 1
    third, half = 1 / 3, 1 / 2
    symmetric = [[1 - third, third, 0], [third, third, third], [0, third, 1 - third]]
    for rule in SYMMETRIC_RULES:
        np.testing.assert_allclose(graph.mixing(rule).matrix(), symmetric, atol=1e-15)
    averaging = [[half, half, 0], [third, third, third], [0, half, half]]
    np.testing.assert_allclose(graph.mixing("averaging").matrix(), averaging, atol=1e-15)
    explicit = np.eye(3) - 0.6 * np.asarray(graph.laplacian_matrix())
    np.testing.assert_allclose(graph.mixing("laplacian", step=0.6).matrix(), explicit, atol=1e-15)
    # Metropolis differs from max-degree where degrees differ along an edge.
    tree = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (2, 4)])
    assert float(tree.mixing().matrix()[0, 1]) == pytest.approx(1 / 3)
    assert float(tree.mixing("max-degree").matrix()[0, 1]) == pytest.approx(1 / 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_rate_is_the_second_largest_eigenvalue(rule, form):
    graph = graphs.from_adjacency(weighted_matrix(7, 10), form=form)
    mixing = graph.mixing(rule)
    weights = np.asarray(mixing.matrix())
    moduli = np.sort(np.abs(np.linalg.eigvals(weights)))
    assert float(mixing.rate()) == pytest.approx(moduli[-2], abs=1e-10)
    if rule in SYMMETRIC_RULES:
        assert float(mixing.rate()) == pytest.approx(np.linalg.norm(weights - 0.1, 2), abs=1e-10)
    x = np.random.default_rng(0).normal(size=10)
    limit = np.linalg.matrix_power(weights, 400) @ x
    np.testing.assert_allclose(limit, np.asarray(mixing.stationary) @ x, atol=1e-8)


def test_mixing_refuses_bad_rules_and_steps():
    graph = graphs.ring(6)  # lambda_max = 4
    with pytest.raises(ValueError, match="Did you mean 'metropolis'"):
        graph.mixing("metropoliss")
    with pytest.raises(ValueError, match="leave step out"):
        graph.mixing("metropolis", step=0.1)
    with pytest.raises(ValueError, match="step must be finite and > 0"):
        graph.mixing("laplacian", step=0.0)
    with pytest.raises(ValueError, match=r"2 / lambda_max\(L\) = 0.5 .* got 0.51"):
        graph.mixing("laplacian", step=0.51)
    triangle = graphs.complete(3)  # lambda_max = 3: 0.6 is fine though some weights are negative
    assert float(triangle.mixing("laplacian", step=0.6).rate()) == pytest.approx(0.8)


# Construction -----------------------------------------------------------------------------------


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


def test_form_is_chosen_by_size_and_by_width():
    assert graphs.ring(graphs.DENSE_BELOW - 1).form == "dense"
    assert graphs.ring(graphs.DENSE_BELOW).form == "padded"
    assert graphs.complete(graphs.DENSE_BELOW).form == "dense"  # a table would be as large
    assert graphs.ring(graphs.DENSE_BELOW).neighbors.shape[1] == 2
    assert graphs.from_edges(3, [(0, 1), (1, 2)], form="padded", max_degree=5).weights.shape == (
        3,
        5,
    )


def test_fixed_topologies_stay_concrete_while_tracing():
    @jax.jit
    def traced(x):
        graph = graphs.ring(5).require_connected()
        assert graph.edge_list()[0] == (0, 1)
        return graph.neighbor_sum(x)

    np.testing.assert_array_equal(traced(jnp.arange(5.0)), [5.0, 2.0, 4.0, 6.0, 3.0])


def test_float_type_follows_the_configuration():
    assert graphs.ring(5).degree.dtype == jnp.float64
    with jax.enable_x64(False):
        assert graphs.ring(5).degree.dtype == jnp.float32
        drawn = graphs.random_connected(jax.random.key(0), 300, 3.0)
        assert drawn.weights.dtype == jnp.float32
        assert drawn.neighbors.dtype == jnp.int32
        assert graphs.erdos_renyi(jax.random.key(0), 300, 0.01).degree.dtype == jnp.float32


# Connectivity -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
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


def test_disconnected_graphs_are_refused_by_default():
    edges = [(0, 1), (1, 2), (3, 4)]
    with pytest.raises(ValueError, match=r"2 components, the smallest has 2 of 5 nodes \(3, 4\)"):
        graphs.from_edges(5, edges)
    with pytest.raises(ValueError, match="disconnected"):
        graphs.from_networkx(nx.empty_graph(3))
    loose = graphs.from_edges(5, edges, allow_disconnected=True)
    assert not bool(loose.connected())
    assert float(loose.algebraic_connectivity()) == pytest.approx(0.0, abs=1e-12)


# Random topologies ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RANDOM)
def test_random_graphs_under_jit_and_vmap(name):
    draw = RANDOM[name]
    keys = jax.random.split(jax.random.key(1), 6)
    batches = {
        form: jax.jit(jax.vmap(lambda key, form=form: draw(key, form=form)))(keys) for form in FORMS
    }
    matrices = []
    for index in range(6):
        dense, padded = (
            jax.tree.map(lambda leaf, i=index: leaf[i], batches[form]) for form in FORMS
        )
        assert (dense.form, padded.form) == FORMS
        matrices.append(check_simple(dense))
        # The form changes nothing else, nor does being mapped over.
        np.testing.assert_array_equal(check_simple(padded), matrices[-1])
        np.testing.assert_array_equal(draw(keys[index]).dense(), matrices[-1])
    assert len({matrix.tobytes() for matrix in matrices}) == 6
    connected = np.asarray(jax.vmap(lambda graph: graph.connected())(batches["padded"]))
    expected = [nx.is_connected(nx.from_numpy_array(matrix)) for matrix in matrices]
    assert connected.tolist() == expected
    if name.startswith(("random_connected", "k_regular")):
        assert connected.all()


@pytest.mark.parametrize("name", LARGE)
def test_large_random_graphs_are_tables_of_simple_graphs(name):
    graph = LARGE[name](jax.random.key(2))
    assert graph.form == "padded"
    assert graph.weights.shape[1] < 40
    check_simple(graph)
    assert np.all(graph.edge_weights() == 1.0)


@pytest.mark.parametrize(
    ("nodes", "mean_degree", "edges"),
    [(50, 3, 75), (2, 1, 1), (3, 2, 3), (50, 1.96, 49), (12, 11, 66), (30, 20, 300), (300, 5, 750)],
)
def test_random_connected_has_exactly_the_edges_asked_for(nodes, mean_degree, edges):
    keys = jax.random.split(jax.random.key(5), 20)
    batch = jax.vmap(lambda key: graphs.random_connected(key, nodes, mean_degree))(keys)
    assert jax.vmap(lambda graph: graph.edge_count())(batch).tolist() == [edges] * 20
    assert jax.vmap(lambda graph: graph.connected())(batch).all()


def test_spanning_tree_is_uniform_over_labelled_trees():
    # 125 trees on five nodes (Cayley); chi-squared at level 1e-3, fixed key.
    draws = 10_000
    keys = jax.random.split(jax.random.key(11), draws)
    trees = jax.vmap(lambda key: graphs.random_connected(key, 5, 1.6).dense())(keys)
    codes = np.asarray(trees, int)[:, *np.triu_indices(5, 1)] @ (2 ** np.arange(10))
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 125
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("mean_degree", "sampler"),
    [(2.5, "_sample_ranked"), (2.0, "_sample_ranked"), (2.0, "_sample_tree_plus")],
)
def test_extra_edges_are_uniform_given_the_tree(mean_degree, sampler, monkeypatch):
    # Four nodes, one or two edges beyond the tree: a graph with t spanning trees has probability
    # (t / 16) / C(3, extra), whichever of the two samplers is in use: large networks redraw.
    if sampler == "_sample_tree_plus":
        monkeypatch.setattr(graphs, "DENSE_BELOW", 0)
    used = []
    genuine = graphs._generate
    monkeypatch.setattr(
        graphs, "_generate", lambda *a, **kw: used.append(kw["sampler"]) or genuine(*a, **kw)
    )
    edges = round(4 * mean_degree / 2)
    draws = 20_000
    keys = jax.random.split(jax.random.key(12), draws)
    drawn = jax.vmap(lambda key: graphs.random_connected(key, 4, mean_degree).dense())(keys)
    codes = np.asarray(drawn, int)[:, *np.triu_indices(4, 1)] @ (2 ** np.arange(6))
    values, counts = np.unique(codes, return_counts=True)
    pairs = np.stack(np.triu_indices(4, 1), axis=1)
    expected = []
    for value in values:
        chosen = pairs[[bool(value >> bit & 1) for bit in range(6)]]
        laplacian = nx.laplacian_matrix(nx.from_edgelist(chosen.tolist())).toarray()
        expected.append(np.linalg.det(laplacian[1:, 1:]) / 16 / math.comb(3, edges - 3))
    assert used == [getattr(graphs, sampler)]
    assert sum(expected) == pytest.approx(1.0)
    assert stats.chisquare(counts, draws * np.asarray(expected)).pvalue > 1e-3


@pytest.mark.parametrize(("nodes", "probability"), [(40, 0.3), (800, 0.01)])
def test_erdos_renyi_edge_frequency(nodes, probability):
    # Total over seeds is binomial: two-sided test at level 1e-3; its variance too.
    seeds = 60
    keys = jax.random.split(jax.random.key(21), seeds)
    draw = jax.jit(jax.vmap(lambda key: graphs.erdos_renyi(key, nodes, probability).edge_count()))
    counts = np.asarray(draw(keys))
    pairs = nodes * (nodes - 1) // 2
    assert stats.binomtest(int(counts.sum()), seeds * pairs, probability).pvalue > 1e-3
    spread = (seeds - 1) * counts.var(ddof=1) / (pairs * probability * (1 - probability))
    assert 1e-3 < stats.chi2.cdf(spread, seeds - 1) < 1 - 1e-3


def test_large_block_model_has_the_right_density_per_block():
    table = np.array([[0.03, 0.005], [0.005, 0.02]])
    draw = jax.jit(lambda key: graphs.stochastic_block_model(key, (300, 200), table).dense())
    total = sum(np.asarray(draw(jax.random.key(seed))) for seed in range(5))
    for rows, columns, pairs, chance in (
        (slice(0, 300), slice(0, 300), 300 * 299, 0.03),
        (slice(300, 500), slice(300, 500), 200 * 199, 0.02),
        (slice(0, 300), slice(300, 500), 300 * 200, 0.005),
    ):
        found = total[rows, columns].sum()
        halves = 1 if columns != rows else 2
        test = stats.binomtest(int(found / halves), 5 * pairs // halves, chance)
        assert test.pvalue > 1e-3


def test_probabilities_zero_and_one():
    key = jax.random.key(0)
    assert int(graphs.erdos_renyi(key, 10, 0.0).edge_count()) == 0
    assert int(graphs.erdos_renyi(key, 10, 1.0).edge_count()) == 45
    assert int(graphs.erdos_renyi(key, 400, 0.0).edge_count()) == 0
    split = graphs.stochastic_block_model(key, (3, 4), np.eye(2))
    assert sorted(np.asarray(split.components()).tolist()) == [0, 0, 0, 3, 3, 3, 3]


def test_swept_probability_may_be_traced():
    draw = jax.jit(jax.vmap(lambda p: graphs.erdos_renyi(jax.random.key(0), 30, p).edge_count()))
    few, many = draw(jnp.asarray([0.1, 0.9]))
    assert few < 100 < 300 < many
    with pytest.raises(TypeError, match="use form='dense'"):
        jax.jit(lambda p: graphs.erdos_renyi(jax.random.key(0), 30, p, form="padded"))(0.1)


@pytest.mark.parametrize("nodes", [60, 1200])
def test_random_geometric_joins_exactly_the_near_nodes(nodes):
    radius = 0.2 if nodes < graphs.DENSE_BELOW else 0.04
    key = jax.random.key(8)
    graph = graphs.random_geometric(key, nodes, radius)
    # The positions are those of the first attempt unless it was redrawn.
    for attempt in range(3):
        place = np.asarray(jax.random.uniform(jax.random.fold_in(key, attempt), (nodes, 2)))
        near = np.linalg.norm(place[:, None] - place[None], axis=-1) <= radius
        expected = near & ~np.eye(nodes, dtype=bool)
        if np.array_equal(np.asarray(graph.dense()) > 0, expected):
            break
    else:
        pytest.fail("no attempt explains the graph")


@pytest.mark.parametrize(("nodes", "degree"), [(2, 1), (10, 2), (10, 4), (11, 6), (8, 7), (50, 24)])
def test_k_regular_is_regular_and_connected(nodes, degree):
    keys = jax.random.split(jax.random.key(4), 10)
    batch = jax.vmap(lambda key: graphs.k_regular(key, nodes, degree))(keys)
    assert np.all(np.asarray(batch.degree) == degree)
    assert jax.vmap(lambda graph: graph.connected())(batch).all()
    check_simple(graphs.k_regular(keys[0], nodes, degree))


def test_k_regular_edges_are_equally_likely():
    # Every pair is an edge with probability k / (K - 1) by symmetry; five standard errors.
    keys = jax.random.split(jax.random.key(4), 4000)
    frequency = np.asarray(jax.vmap(lambda k: graphs.k_regular(k, 10, 3).dense())(keys)).mean(
        axis=0
    )
    off = frequency[np.triu_indices(10, 1)]
    chance = 3 / 9
    assert np.abs(off - chance).max() < 5 * math.sqrt(chance * (1 - chance) / 4000)


def test_small_world_between_lattice_and_random():
    key = jax.random.key(6)
    lattice = graphs.small_world(key, 30, 4, 0.0)
    expected = nx.to_numpy_array(nx.watts_strogatz_graph(30, 4, 0.0), nodelist=range(30))
    np.testing.assert_array_equal(lattice.dense(), expected)
    clustering = []
    for rewire in (0.0, 0.1, 1.0):
        graph = graphs.small_world(key, 100, 6, rewire)
        assert int(graph.edge_count()) == 300
        assert int(graph.neighbor_counts().min()) >= 3
        clustering.append(nx.average_clustering(graph.to_networkx()))
    assert clustering[0] == pytest.approx(0.6)
    assert clustering[0] > clustering[1] > clustering[2]
    moved = 600 - np.sum(
        np.asarray(graphs.small_world(key, 300, 4, 0.25).dense())[
            np.arange(300)[:, None], (np.arange(300)[:, None] + [1, 2]) % 300
        ]
    )
    assert 0.15 < moved / 600 < 0.33  # 0.25 of 600, less a few that land on the lattice again


def test_crowded_small_world_terminates_on_saturated_nodes():
    # Small and fully rewired: free edges often find their sender joined to everybody.
    keys = jax.random.split(jax.random.key(0), 500)
    batch = jax.vmap(lambda key: graphs.small_world(key, 4, 2, 1.0))(keys)
    assert jax.vmap(lambda graph: graph.edge_count())(batch).tolist() == [4] * 500


def test_max_degree_bounds_the_neighbours_and_drops_nothing():
    keys = jax.random.split(jax.random.key(9), 200)
    free = jax.vmap(lambda key: graphs.random_connected(key, 50, 3.0))(keys)
    bound = jax.vmap(lambda key: graphs.random_connected(key, 50, 3.0, max_degree=7))(keys)
    most = np.asarray(jax.vmap(lambda graph: graph.neighbor_counts().max())(free))
    assert most.max() > 7  # else the bound is not tested
    counts = np.asarray(jax.vmap(lambda graph: graph.neighbor_counts())(bound))
    assert counts.max() <= 7
    assert np.all(counts.sum(axis=1) == 150)
    # Draws that fit already are left alone.
    same = np.all(np.asarray(free.adjacency) == np.asarray(bound.adjacency), axis=(1, 2))
    np.testing.assert_array_equal(same, most <= 7)


def test_twenty_thousand_nodes_stay_sparse():
    draw = jax.jit(lambda key: graphs.random_connected(key, 20_000, 3.0))
    shapes = {str(jax.typeof(v)) for v in jax.tree.leaves(jax.eval_shape(draw, jax.random.key(0)))}
    assert not any("20000,20000" in shape for shape in shapes)
    graph = draw(jax.random.key(1))
    memory = jax.jit(draw).lower(jax.random.key(0)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 50e6  # a matrix of bits alone would take 50 MB
    assert graph.form == "padded"
    assert graph.weights.shape[1] < 25
    assert len(graph.edges) == 30_000 == int(graph.edge_count())
    assert bool(graph.connected())
    assert nx.is_connected(graph.to_networkx())


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

KEY = jax.random.key(0)
ASYMMETRIC = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 1.0], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: graphs.path(1), "nodes must be >= 2, got 1"),
        (lambda: graphs.random_connected(KEY, 1, 0), "nodes must be >= 2, got 1"),
        (lambda: graphs.ring(2), "nodes must be >= 3, got 2"),
        (lambda: graphs.grid(2, 5, torus=True), "rows must be >= 3, got 2"),
        (lambda: graphs.from_edges(3, [(0, 1), (1, 3)]), r"edge \(1, 3\) is out of range for 3"),
        (lambda: graphs.from_edges(3, [(0, 1), (-1, 2)]), r"edge \(-1, 2\) is out of range"),
        (lambda: graphs.from_edges(3, [(0, 1), (1, 0), (1, 2)]), "1 duplicate edges.*(0, 1)"),
        (lambda: graphs.from_edges(3, [(0, 1), (2, 2)]), "1 self-loops, the first at node 2"),
        (lambda: graphs.from_edges(3, [(0, 1, 2)]), r"array of shape \[E, 2\], got shape \(1, 3\)"),
        (lambda: graphs.from_edges(3, [(0.0, 1.0)]), "integer pairs"),
        (lambda: graphs.from_edges(2, [(0, 1)], [-1.0]), "weights must be finite and > 0, got -1"),
        (lambda: graphs.from_edges(2, [(0, 1)], [0.0]), "rather than give it weight zero"),
        (lambda: graphs.from_edges(2, [(0, 1)], [1.0, 2.0]), r"one per edge, shape \(1,\)"),
        (
            lambda: graphs.from_edges(3, [(0, 1), (0, 2)], form="padded", max_degree=1),
            "max_degree=1 is too small: node 0 has 2 neighbours",
        ),
        (lambda: graphs.from_edges(2, [(0, 1)], form="sparse"), "unknown form 'sparse'"),
        (lambda: graphs.from_adjacency(np.ones((2, 3))), r"square, \[K, K\], got shape \(2, 3\)"),
        (lambda: graphs.from_adjacency(ASYMMETRIC), r"entry \(0, 1\) is 1, its mirror is 0.5"),
        (lambda: graphs.from_adjacency(np.eye(3)), "has 3 self-loops"),
        (lambda: graphs.from_adjacency(-np.ones((3, 3))), "finite and >= 0, got -1"),
        (lambda: graphs.from_adjacency(np.full((3, 3), np.nan)), "finite and >= 0, got nan"),
        (lambda: graphs.from_networkx(nx.DiGraph([(0, 1)])), "is directed"),
        (lambda: graphs.from_networkx(nx.MultiGraph([(0, 1)])), "is a multigraph"),
        (lambda: graphs.random_connected(KEY, 50, 1.9), r"means 48 edges.* has 49 to 1225"),
        (lambda: graphs.random_connected(KEY, 50, 60), r"means 1500 edges.* has 49 to 1225"),
        (lambda: graphs.random_connected(KEY, 50, math.nan), "mean_degree must be finite"),
        (
            lambda: graphs.random_connected(KEY, 5000, 3, max_degree=4),
            "max_degree=4 would be exceeded by most draws",
        ),
        (lambda: graphs.erdos_renyi(KEY, 5, 1.5), "probability must be .* got 1.5"),
        (lambda: graphs.erdos_renyi(KEY, 5, -0.1), "probability must be .* got -0.1"),
        (lambda: graphs.random_geometric(KEY, 5, 0.0), "radius must be finite and > 0"),
        (lambda: graphs.k_regular(KEY, 5, 3), r"must be even, got 5 \* 3 = 15"),
        (lambda: graphs.k_regular(KEY, 5, 5), r"degree must be in \[2, 4\]"),
        (lambda: graphs.k_regular(KEY, 4, 1), r"degree must be in \[2, 3\]"),
        (lambda: graphs.small_world(KEY, 10, 3, 0.1), "degree must be even"),
        (lambda: graphs.small_world(KEY, 10, 6, 0.1), "at most nodes // 2 = 5, got 6"),
        (lambda: graphs.small_world(KEY, 10, 4, 1.1), "rewire must be .* got 1.1"),
        (lambda: graphs.stochastic_block_model(KEY, (3, 0), np.eye(2)), r"sizes\[1\] must be >= 1"),
        (lambda: graphs.stochastic_block_model(KEY, (3, 2), np.eye(3)), r"shape \(2, 2\), one row"),
        (
            lambda: graphs.stochastic_block_model(KEY, (3, 2), [[0.1, 0.2], [0.3, 0.1]]),
            "probabilities is asymmetric",
        ),
        (lambda: graphs.Graph(3, None, None, None, jnp.ones(3)), "neither form whole"),
    ],
)
def test_bad_input_is_one_clear_error(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_what_cannot_be_traced_says_so():
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
