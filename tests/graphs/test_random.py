"""Random topologies against networkx and the laws they claim to follow."""

import math

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from scipy import stats

from fljax import graphs
from fljax.graphs import random_graphs
from tests.graphs.samples import FORMS, check_simple

KEY = jax.random.key(0)
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


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
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


@pytest.mark.slow
@pytest.mark.thin(2, every=24)
@pytest.mark.parametrize("name", LARGE)
def test_large_random_graphs_are_tables_of_simple_graphs(name):
    graph = LARGE[name](jax.random.key(2))
    assert graph.form == "padded"
    assert graph.weights.shape[1] < 40
    check_simple(graph)
    assert np.all(graph.edge_weights() == 1.0)


@pytest.mark.slow
@pytest.mark.thin(2, every=24)
@pytest.mark.parametrize(
    ("nodes", "mean_degree", "edges"),
    [(50, 3, 75), (2, 1, 1), (3, 2, 3), (50, 1.96, 49), (12, 11, 66), (30, 20, 300), (300, 5, 750)],
)
def test_random_connected_has_exactly_the_edges_asked_for(nodes, mean_degree, edges):
    keys = jax.random.split(jax.random.key(5), 20)
    batch = jax.vmap(lambda key: graphs.random_connected(key, nodes, mean_degree))(keys)
    assert jax.vmap(lambda graph: graph.edge_count())(batch).tolist() == [edges] * 20
    assert jax.vmap(lambda graph: graph.connected())(batch).all()


@pytest.mark.slow
def test_spanning_tree_is_uniform_over_labeled_trees():
    # 125 trees on five nodes (Cayley); chi-squared at level 1e-3, fixed key.
    draws = 10_000
    keys = jax.random.split(jax.random.key(11), draws)
    trees = jax.vmap(lambda key: graphs.random_connected(key, 5, 1.6).dense())(keys)
    codes = np.asarray(trees, int)[:, *np.triu_indices(5, 1)] @ (2 ** np.arange(10))
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 125
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("mean_degree", "sampler"),
    [(2.5, "_sample_ranked"), (2.0, "_sample_ranked"), (2.0, "_sample_tree_plus")],
)
def test_extra_edges_are_uniform_given_the_tree(mean_degree, sampler, monkeypatch):
    # Four nodes, one or two edges beyond the tree: a graph with t spanning trees has probability
    # (t / 16) / C(3, extra), whichever of the two samplers is in use: large networks redraw.
    if sampler == "_sample_tree_plus":
        monkeypatch.setattr(graphs.neighbor_tables, "DENSE_BELOW", 0)
    used = []
    genuine = random_graphs._generate
    monkeypatch.setattr(
        random_graphs, "_generate", lambda *a, **kw: used.append(kw["sampler"]) or genuine(*a, **kw)
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
    assert used == [getattr(random_graphs, sampler)]
    assert sum(expected) == pytest.approx(1.0)
    assert stats.chisquare(counts, draws * np.asarray(expected)).pvalue > 1e-3


@pytest.mark.thin(1)
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


@pytest.mark.slow
def test_large_block_model_has_the_right_density_per_block():
    table = np.array([[0.03, 0.005], [0.005, 0.02]])
    draw = jax.jit(lambda key: graphs.stochastic_block_model(key, (300, 200), table).dense())
    total = sum(np.asarray(draw(jax.random.key(seed))) for seed in range(5))
    for rows, columns, pairs, probability in (
        (slice(0, 300), slice(0, 300), 300 * 299, 0.03),
        (slice(300, 500), slice(300, 500), 200 * 199, 0.02),
        (slice(0, 300), slice(300, 500), 300 * 200, 0.005),
    ):
        result = total[rows, columns].sum()
        halves = 1 if columns != rows else 2
        test = stats.binomtest(int(result / halves), 5 * pairs // halves, probability)
        assert test.pvalue > 1e-3


@pytest.mark.slow
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
@pytest.mark.slow
def test_random_geometric_joins_exactly_the_near_nodes(nodes):
    radius = 0.2 if nodes < graphs.DENSE_BELOW else 0.04
    key = jax.random.key(8)
    graph = graphs.random_geometric(key, nodes, radius)
    # The positions belong to the first attempt unless it was redrawn.
    for attempt in range(3):
        position = np.asarray(jax.random.uniform(jax.random.fold_in(key, attempt), (nodes, 2)))
        near = np.linalg.norm(position[:, None] - position[None], axis=-1) <= radius
        expected = near & ~np.eye(nodes, dtype=bool)
        if np.array_equal(np.asarray(graph.dense()) > 0, expected):
            break
    else:
        pytest.fail("no attempt explains the graph")


@pytest.mark.thin(1)
@pytest.mark.parametrize(("nodes", "degree"), [(2, 1), (10, 2), (10, 4), (11, 6), (8, 7), (50, 24)])
def test_k_regular_is_regular_and_connected(nodes, degree):
    keys = jax.random.split(jax.random.key(4), 10)
    batch = jax.vmap(lambda key: graphs.k_regular(key, nodes, degree))(keys)
    assert np.all(np.asarray(batch.degree) == degree)
    assert jax.vmap(lambda graph: graph.connected())(batch).all()
    check_simple(graphs.k_regular(keys[0], nodes, degree))


@pytest.mark.slow
def test_k_regular_edges_are_equally_likely():
    # Every pair is an edge with probability k / (K - 1) by symmetry; five standard errors.
    keys = jax.random.split(jax.random.key(4), 4000)
    frequency = np.asarray(jax.vmap(lambda k: graphs.k_regular(k, 10, 3).dense())(keys)).mean(
        axis=0
    )
    off = frequency[np.triu_indices(10, 1)]
    probability = 3 / 9
    assert np.abs(off - probability).max() < 5 * math.sqrt(probability * (1 - probability) / 4000)


@pytest.mark.long
@pytest.mark.slow
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


@pytest.mark.slow
def test_crowded_small_world_terminates_on_saturated_nodes():
    # Small and fully rewired: free edges often find their sender joined to everybody.
    keys = jax.random.split(jax.random.key(0), 500)
    batch = jax.vmap(lambda key: graphs.small_world(key, 4, 2, 1.0))(keys)
    assert jax.vmap(lambda graph: graph.edge_count())(batch).tolist() == [4] * 500


@pytest.mark.slow
def test_max_degree_bounds_the_neighbors_and_drops_nothing():
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


@pytest.mark.long
@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: graphs.random_connected(KEY, 1, 0), "nodes must be >= 2, got 1"),
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
    ],
)
def test_bad_input_is_one_clear_error(build, message):
    with pytest.raises(ValueError, match=message):
        build()
