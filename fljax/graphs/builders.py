"""Graphs from edges, matrices and networkx, and the deterministic topologies."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax.graphs import neighbor_tables
from fljax.graphs.undirected import Graph, of_edges, of_matrix


@checked
def from_edges(
    nodes: int,
    edges: Any,
    weights: object = None,
    *,
    form: str = "auto",
    max_degree: int | None = None,
    allow_disconnected: bool = False,
) -> Graph:
    """A graph from a list of undirected edges.

    Args:
        nodes: number of nodes ``K >= 2``.
        edges: pairs of node identifiers in ``0..K-1``, ``[E, 2]``, each edge once in either order;
            or a mapping of such pairs to their weights.
        weights: positive weights ``[E]``; one by default.
        form: ``"auto"`` (dense below :data:`DENSE_BELOW` nodes or if some node has many
            neighbors, else padded), ``"dense"`` or ``"padded"``.
        max_degree: number of slots of the padded form, at least the largest number of neighbors
            (the default); set it where the graphs of several seeds must have the same shape.
        allow_disconnected: accept a graph of several components.

    Raises:
        ValueError: identifiers out of range, self-loops, duplicates, weights that are not
            positive and finite, weights in addition to a mapping, or a disconnected graph.

    Example:
      >>> import fljax as fl
      >>> graph = fl.graphs.from_edges(3, {(0, 1): 2.0, (1, 2): 0.5})
      >>> graph.degree.tolist()  # sums of weights
      [2.0, 2.5, 0.5]
    """
    neighbor_tables.check_nodes(nodes)
    if isinstance(edges, Mapping):
        if weights is not None:
            raise ValueError("edges map to weights already; leave out weights=, or list(edges).")
        edges, weights = list(edges), np.asarray(list(edges.values()))
    if not hasattr(edges, "tocoo"):  # a sparse matrix is not a list of pairs
        edges = checks.as_integers(edges)
    pairs = isinstance(edges, Iterable) and not isinstance(edges, jnp.ndarray)
    pairs = pairs or checks.is_concrete(edges)
    if not pairs or isinstance(edges, np.ma.MaskedArray) or hasattr(edges, "tocoo"):
        raise TypeError(f"edges must be concrete pairs of nodes, got {checks.shown(edges)}.")
    is_list = checks.is_concrete(edges) or isinstance(edges, range)
    edges = np.asarray(checks.array("edges", edges if is_list else list(edges)))
    if edges.size == 0:
        edges = np.zeros((0, 2), np.int64)
    if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
        raise ValueError(
            "edges must be integer pairs (k, l), an array of shape [E, 2], got shape "
            f"{edges.shape} of {edges.dtype}; give weights separately."
        )
    outside = (edges < 0) | (edges >= nodes)
    if np.any(outside):
        bad = edges[np.any(outside, axis=1)][0].tolist()
        raise ValueError(
            f"edge {tuple(bad)} is out of range for {nodes} nodes; nodes are 0..{nodes - 1}."
        )
    loops = edges[:, 0] == edges[:, 1]
    if np.any(loops):
        raise ValueError(
            f"{int(loops.sum())} self-loops, the first at node {int(edges[loops][0, 0])}; "
            "drop them: a node's own weight is added by Graph.mixing."
        )
    edges = np.sort(edges.astype(np.int64), axis=1)
    codes = np.sort(neighbor_tables.pair_codes(edges, nodes))
    again = codes[1:][codes[1:] == codes[:-1]]
    if len(again):
        raise ValueError(
            f"{len(again)} duplicate edges, the first is ({again[0] // nodes}, "
            f"{again[0] % nodes}); give each undirected edge once, in one direction, and add "
            "parallel weights together."
        )
    weights = np.ones(len(edges)) if weights is None else weights
    if len(edges):
        weights = checks.array("weights", weights)
    weights = np.asarray(weights, np.float64)
    if weights.shape != (len(edges),):
        raise ValueError(
            f"weights must be one per edge, shape ({len(edges)},), got shape {weights.shape}."
        )
    checks.positive("weights", weights, hint="Leave an edge out rather than give it weight zero.")
    checks.interval("weights", weights, at_most=float(jnp.finfo(float_dtype()).max))
    graph = of_edges(nodes, edges, weights, form, max_degree)
    return graph if allow_disconnected else graph.require_connected()


@checked
def from_adjacency(
    matrix: Any,
    *,
    form: str = "auto",
    max_degree: int | None = None,
    allow_disconnected: bool = False,
) -> Graph:
    """A graph from a symmetric, non-negative matrix ``[K, K]`` with zero diagonal.

    A traced matrix cannot be checked; it is kept dense unless ``max_degree``, a bound on the
    number of neighbors that must hold, is given.

    Args:
        matrix: weights ``[K, K]``; zero means no edge.
        form: as in :func:`from_edges`.
        max_degree: as in :func:`from_edges`.
        allow_disconnected: as in :func:`from_edges`.

    Raises:
        ValueError: not square, NaN or negative entries, asymmetric, self-loops, or disconnected.

    Example:
      >>> import fljax as fl
      >>> graph = fl.graphs.from_adjacency([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
      >>> graph.edge_list()
      [(0, 1), (0, 2)]
    """
    matrix = checks.array("matrix", matrix)
    shape = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"the adjacency matrix must be square, [K, K], got shape {shape}.")
    nodes = shape[0]
    neighbor_tables.check_nodes(nodes)
    checks.check_when_concrete(_check_adjacency, matrix)
    if not checks.is_concrete(matrix):
        return of_matrix(jnp.asarray(matrix).astype(float_dtype()), nodes, form, max_degree)
    array = np.asarray(matrix, np.float64)
    edges = np.argwhere(np.triu(array) > 0)
    weights = array[edges[:, 0], edges[:, 1]]
    return from_edges(
        nodes,
        edges,
        weights,
        form=form,
        max_degree=max_degree,
        allow_disconnected=allow_disconnected,
    )


def _check_adjacency(matrix: object) -> None:
    """Raise ``ValueError`` unless it is symmetric, non-negative and zero on its diagonal."""
    array = np.asarray(matrix, np.float64)
    checks.nonnegative("adjacency", array)
    if np.any(np.diagonal(array)):
        raise ValueError(
            f"the adjacency matrix has {np.count_nonzero(np.diagonal(array))} self-loops; set its "
            "diagonal to zero: a node's own weight is added by Graph.mixing."
        )
    if not np.allclose(array, array.T, rtol=1e-6, atol=0.0):
        row, column = np.argwhere(~np.isclose(array, array.T, rtol=1e-6, atol=0.0))[0]
        raise ValueError(
            f"the adjacency matrix is asymmetric: entry ({row}, {column}) is "
            f"{array[row, column]:g}, its mirror is {array[column, row]:g}; graphs here are "
            "undirected, use (A + A.T) / 2."
        )


@checked
def from_networkx(
    graph: Any,
    *,
    weight: str = "weight",
    form: str = "auto",
    max_degree: int | None = None,
    allow_disconnected: bool = False,
) -> Graph:
    """A graph from an undirected ``networkx.Graph``; nodes are numbered in its own order.

    Args:
        graph: the networkx graph, simple and undirected.
        weight: edge attribute that holds the weight; one where it is missing, and an error where
            no edge has one of another name than ``"weight"``.
        form: as in :func:`from_edges`.
        max_degree: as in :func:`from_edges`.
        allow_disconnected: as in :func:`from_edges`.

    Example:
      >>> import networkx, fljax as fl
      >>> graph = fl.graphs.from_networkx(networkx.petersen_graph())
      >>> graph.nodes, graph.degree.max().item()
      (10, 3.0)
    """
    if not hasattr(graph, "is_directed"):
        raise TypeError(f"graph must be a networkx.Graph, got {checks.shown(graph)}.")
    if graph.is_directed() or graph.is_multigraph():
        kind = "directed" if graph.is_directed() else "a multigraph"
        raise ValueError(
            f"the networkx graph is {kind}, an undirected simple graph is expected; "
            "convert it with networkx.Graph(graph)."
        )
    named = weight == "weight" or not graph.number_of_edges()
    if not named and not any(weight in data for *_, data in graph.edges(data=True)):
        raise ValueError(f"no edge of the networkx graph has an attribute {weight!r}.")
    number = {node: index for index, node in enumerate(graph.nodes)}
    triples = [
        (number[a], number[b], data.get(weight, 1.0)) for a, b, data in graph.edges(data=True)
    ]
    return from_edges(
        len(number),
        [(a, b) for a, b, _ in triples],
        [value for *_, value in triples],
        form=form,
        max_degree=max_degree,
        allow_disconnected=allow_disconnected,
    )


# Deterministic topologies -----------------------------------------------------------------------


@checked
def ring(nodes: int, *, form: str = "auto") -> Graph:
    """A cycle: every node has its two neighbors, ``E = K``.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.ring(4).edge_list()
      [(0, 1), (0, 3), (1, 2), (2, 3)]
    """
    neighbor_tables.check_nodes(nodes, 3, "a ring")
    start = np.arange(nodes)
    return from_edges(nodes, np.stack([start, (start + 1) % nodes], axis=1), form=form)


@checked
def path(nodes: int, *, form: str = "auto") -> Graph:
    """A line ``0 - 1 - ... - K-1``, ``E = K - 1``.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.path(4).degree.tolist()
      [1.0, 2.0, 2.0, 1.0]
    """
    neighbor_tables.check_nodes(nodes)
    start = np.arange(nodes - 1)
    return from_edges(nodes, np.stack([start, start + 1], axis=1), form=form)


@checked
def star(nodes: int, *, form: str = "auto") -> Graph:
    """Node 0 joined to every other, ``E = K - 1``.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.star(4).edge_list()
      [(0, 1), (0, 2), (0, 3)]
    """
    neighbor_tables.check_nodes(nodes)
    leaves = np.arange(1, nodes)
    return from_edges(nodes, np.stack([np.zeros_like(leaves), leaves], axis=1), form=form)


@checked
def complete(nodes: int, *, form: str = "auto") -> Graph:
    """Every pair of nodes joined, ``E = K (K-1) / 2``.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.complete(4).degree.tolist()
      [3.0, 3.0, 3.0, 3.0]
    """
    neighbor_tables.check_nodes(nodes)
    neighbor_tables.check_edges(nodes, nodes * (nodes - 1) // 2)
    return from_edges(nodes, np.stack(np.triu_indices(nodes, 1), axis=1), form=form)


@checked
def grid(rows: int, columns: int, torus: bool = False, *, form: str = "auto") -> Graph:
    """A rectangular lattice; node ``r * columns + c`` lies at row ``r``, column ``c``.

    Args:
        rows: number of rows, at least 3 for a torus, which otherwise has double edges.
        columns: number of columns, at least 3 for a torus.
        torus: join opposite borders, so that every node has four neighbors.
        form: as in :func:`from_edges`.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.grid(3, 3).degree.tolist()  # corners, borders, center
      [2.0, 3.0, 2.0, 3.0, 4.0, 3.0, 2.0, 3.0, 2.0]
      >>> fl.graphs.grid(3, 3, torus=True).degree.tolist()
      [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    """
    least = 3 if torus else 1
    checks.count("rows", rows, at_least=least)
    checks.count("columns", columns, at_least=least)
    neighbor_tables.check_nodes(rows * columns)
    numbers = np.arange(rows * columns).reshape(rows, columns)
    right = np.roll(numbers, -1, axis=1)
    below = np.roll(numbers, -1, axis=0)
    across = np.stack([numbers, right], axis=-1)[:, : columns if torus else columns - 1]
    down = np.stack([numbers, below], axis=-1)[: rows if torus else rows - 1]
    edges = np.concatenate([across.reshape(-1, 2), down.reshape(-1, 2)])
    return from_edges(rows * columns, edges, form=form)
