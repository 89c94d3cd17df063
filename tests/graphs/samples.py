"""What the tests of graphs share: matrices, forms, and what every graph must satisfy."""

import jax.numpy as jnp
import numpy as np

from fljax import graphs

FORMS = ("dense", "padded")


def weighted_matrix(seed: int, nodes: int) -> np.ndarray:
    """A connected weighted graph: a path plus random edges."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(0.2, 2.0, (nodes, nodes)) * (rng.random((nodes, nodes)) < 0.3), 1)
    upper[np.arange(nodes - 1), np.arange(1, nodes)] = rng.uniform(0.2, 2.0, nodes - 1)
    return upper + upper.T


def hub_matrix(nodes: int) -> np.ndarray:
    """A weighted ring whose first two nodes are connected to nearly all others."""
    rng = np.random.default_rng(nodes)
    upper = np.zeros((nodes, nodes))
    upper[np.arange(nodes - 1), np.arange(1, nodes)] = 1.0
    upper[0, 2:] = 1.0
    upper[1, 5:] = 1.0
    upper *= rng.uniform(0.5, 2.0, upper.shape)
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
