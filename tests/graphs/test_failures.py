"""Networks that lose edges and nodes: against NumPy and networkx, by trying, and by one vector."""

import itertools

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest

from fljax import graphs
from fljax.graphs import failures, spectra

close = np.testing.assert_allclose


def weighted(seed, nodes=9, density=0.4):
    rng = np.random.default_rng(seed)
    joined = np.triu(rng.random((nodes, nodes)) < density, 1)
    joined[np.arange(nodes - 1), np.arange(1, nodes)] = True
    weights = joined * rng.uniform(0.5, 2, (nodes, nodes))
    return weights + weights.T


def expected(weights, alive):
    """Connectivity, components, the largest share and the rate, from the submatrix of surviving
    nodes.
    """
    left = weights[np.ix_(alive, alive)]
    values = np.linalg.eigvalsh(np.diag(left.sum(axis=1)) - left)
    parts = [len(part) for part in networkx.connected_components(networkx.Graph(left > 0))]
    second = values[1] if len(parts) == 1 else 0.0
    rate = (values[-1] - second) / (values[-1] + second) if len(parts) == 1 else 1.0
    return [second, len(parts), max(parts) / alive.sum(), rate]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_the_surviving_network_is_the_submatrix(form):
    rng = np.random.default_rng(0)
    for seed in range(12):
        weights = weighted(seed)
        network = graphs.from_adjacency(weights, form=form)
        nodes = rng.random(9) < 0.25
        edges = np.triu(rng.random((9, 9)) < 0.3, 1)
        edges = edges | edges.T
        result = graphs.resilience(network, nodes, edges)
        close(result, expected(weights * ~edges, ~nodes), atol=1e-10)
        left = graphs.pruned(network, nodes, edges)
        submatrix = weights * ~edges * ~nodes[:, None] * ~nodes[None]
        close(left.dense(), submatrix)
        close(left.degree, submatrix.sum(axis=1))
    close(graphs.resilience(network), expected(weights, np.ones(9, bool)), atol=1e-10)


@pytest.mark.slow
def test_failures_have_their_stated_probability():
    """Against all 2^6 states of a ring's edges, and all 2^5 of a path's nodes."""
    ring = graphs.ring(6)
    result = graphs.random_failures(jax.random.key(0), ring, 20_000, edge_probability=0.3)
    assert result.connectivity.shape == (20_000,)
    probability = {0: 0.7**6, 1: 6 * 0.3 * 0.7**5}
    close(np.mean(result.components == 1), sum(probability.values()), atol=0.01)
    close(np.mean(np.abs(result.connectivity - 1) < 1e-6), probability[0], atol=0.01)
    path = graphs.path(5)
    result = graphs.random_failures(jax.random.key(1), path, 20_000, node_probability=0.4)
    connected = 0.0
    for alive in itertools.product([False, True], repeat=5):
        runs = sum(not a and b for a, b in zip((False, *alive), alive, strict=False))
        connected += (runs == 1) * 0.6 ** sum(alive) * 0.4 ** (5 - sum(alive))
    close(np.mean(result.components == 1), connected, atol=0.01)
    assert np.all(np.isin(result.components, [0, 1, 2, 3]))
    nobody = graphs.random_failures(jax.random.key(1), path, 3, node_probability=1.0)
    close(nobody.rate, 1)
    close(np.stack(nobody[:3]), 0)


@pytest.mark.slow
def test_probabilities_are_swept_and_traced():
    def of(key, probability):
        result = graphs.random_failures(key, graphs.ring(6), 50, edge_probability=probability)
        return jnp.mean(result.connectivity)

    keys = jax.random.split(jax.random.key(0), 3)
    levels = jnp.array([0.0, 0.2, 1.0])
    result = jax.jit(jax.vmap(of))(keys, levels)
    close(np.asarray(result)[[0, 2]], [1.0, 0.0], atol=1e-9)
    assert 0 < result[1] < 1


def test_each_failure_is_tried():
    weights = weighted(3)
    network = graphs.from_adjacency(weights)
    result = graphs.critical_edges(network)
    assert sorted(map(tuple, result.members)) == sorted(network.edge_list())
    assert np.all(np.diff(result.connectivity) >= 0)
    for (k, m), left in zip(result.members, result.connectivity, strict=True):
        without = weights.copy()
        without[k, m] = without[m, k] = 0
        close(left, expected(without, np.ones(9, bool))[0], atol=1e-10)
    result = graphs.critical_nodes(network)
    for node, left in zip(result.members, result.connectivity, strict=True):
        close(left, expected(weights, np.arange(9) != node)[0], atol=1e-10)


@pytest.mark.slow
def test_one_vector_bounds_all_failures():
    """For every network the top-ranked failure costs about as much as the most critical one."""
    cost = {"edges": [], "nodes": []}
    for seed in range(40):
        network = graphs.from_adjacency(weighted(seed, 12, 0.15), form="dense")
        before = float(network.algebraic_connectivity())
        for kind, function in (("edges", graphs.critical_edges), ("nodes", graphs.critical_nodes)):
            exact = function(network, "exact")
            bound = function(network, "spectral")
            left, most = (
                dict(zip(map(str, result.members), result.connectivity, strict=True))
                for result in (exact, bound)
            )
            assert left.keys() == most.keys()
            assert all(left[member] <= most[member] + 1e-9 for member in left)
            first = before - left[str(bound.members[0])]
            cost[kind].append(first / (before - exact.connectivity[0]))
    assert 0.75 < np.mean(cost["edges"]) < 0.9
    assert np.mean(cost["nodes"]) > 0.6


def test_bridges_and_hubs_come_first():
    bridge = graphs.from_edges(
        8, [*itertools.combinations(range(4), 2), (3, 4), *itertools.combinations(range(4, 8), 2)]
    )
    for method in ("exact", "spectral"):
        assert graphs.critical_edges(bridge, method).members[0].tolist() == [3, 4]
        assert set(graphs.critical_nodes(bridge, method).members[:2]) == {3, 4}
        assert graphs.critical_nodes(graphs.star(9), "exact").members[0] == 0


def test_large_networks_are_stored_sparsely(monkeypatch):
    """Bounds by Lanczos' method, and by a factorization where that is slow."""
    for network in (graphs.from_adjacency(weighted(5, 60, 0.2)), graphs.path(60)):
        dense = graphs.critical_edges(network, "spectral")
        with monkeypatch.context() as patched:
            patched.setattr(failures, "DENSE_NODES", 10)
            sparse = graphs.critical_edges(network, "spectral")
        close(sparse.connectivity, dense.connectivity, rtol=1e-5)
        value, vector = spectra.sparse_fiedler(network._sparse())
        close(network.laplacian(vector), value * vector, atol=1e-6)
    with monkeypatch.context() as patched:
        patched.setattr(failures, "EXACT_NODES", 10)
        auto = graphs.critical_edges(network)
    close(auto.connectivity, dense.connectivity)


def test_a_server_is_one_point_of_failure_and_a_peer_is_not():
    """The star falls apart with its center; a ring with chords loses a little."""

    def worst(network):
        return graphs.critical_nodes(network).connectivity[0] / network.algebraic_connectivity()

    assert worst(graphs.star(20)) == 0
    chords = graphs.from_edges(20, [(k, (k + s) % 20) for k in range(20) for s in (1, 5)])
    assert worst(chords) > 0.8


def test_bad_input():
    ring = graphs.ring(5)
    for function in (graphs.pruned, graphs.resilience):
        with pytest.raises(ValueError, match="0 of 5 would be left"):
            function(ring, np.ones(5, bool))
        with pytest.raises(ValueError, match="1 of 5 would be left"):
            function(ring, np.arange(5) > 0)
        with pytest.raises(ValueError, match="nodes must be a boolean array"):
            function(ring, np.array([0, 2, 0, 0, 0]))
        with pytest.raises(ValueError, match=r"nodes must be of shape \(5,\), got shape \(4,\)"):
            function(ring, np.zeros(4, bool))
        with pytest.raises(ValueError, match=r"edges must be of shape \(5, 5\)"):
            function(ring, edges=np.zeros((5, 4), bool))
        with pytest.raises(ValueError, match=r"edges\[0, 1\] is not edges\[1, 0\]"):
            function(ring, edges=np.eye(5, k=1, dtype=bool))
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="edge_probability"):
        graphs.random_failures(key, ring, 3, edge_probability=1.5)
    with pytest.raises(ValueError, match="node_probability"):
        graphs.random_failures(key, ring, 3, node_probability=-0.1)
    with pytest.raises(ValueError, match="draws"):
        graphs.random_failures(key, ring, 0)
    disconnected = graphs.from_edges(4, [(0, 1), (2, 3)], allow_disconnected=True)
    for function in (graphs.critical_edges, graphs.critical_nodes):
        with pytest.raises(ValueError, match="the graph is disconnected"):
            function(disconnected)
        with pytest.raises(ValueError, match="method"):
            function(ring, "fast")
        with pytest.raises(TypeError, match="cannot be traced"):
            jax.jit(lambda network, f=function: f(network).connectivity)(ring)
    with pytest.raises(ValueError, match="at least two others"):
        graphs.critical_nodes(graphs.path(2))


@pytest.mark.slow
def test_null_spaces_of_laplacians():
    """Exercise 3.3: of two nodes; 3.4: of several components a basis is one of many."""
    two = np.asarray(graphs.path(2).laplacian_matrix())
    close(two @ [1, 1], 0)
    vectors = np.linalg.eigh(two)[1]
    close(np.abs(vectors[:, 0] @ [1, -1]), 0, atol=1e-12)  # the subspace {w1 = w2} and ...
    close(np.abs(vectors[:, 1] @ [1, -1]), np.sqrt(2))  # ... its complement, along (1, -1)
    disconnected = graphs.from_edges(5, [(0, 1), (2, 3), (3, 4)], allow_disconnected=True)
    matrix = np.asarray(disconnected.laplacian_matrix())
    labels = np.asarray(disconnected.components())
    members = np.stack([labels == label for label in np.unique(labels)], axis=1)
    basis = members / np.sqrt(members.sum(axis=0))
    close(np.sum(np.linalg.eigvalsh(matrix) < 1e-9), basis.shape[1])
    for angle in (0.3, 1.1):
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        other = basis @ rotation
        close(matrix @ other, 0, atol=1e-12)
        close(other.T @ other, np.eye(2), atol=1e-12)
        assert np.abs(other - basis).max() > 0.1
