r"""Graphs learned from discrepancies of nodes under a budget of edges or degrees.

Both problems minimize :math:`\sum_{i,i'}A_{ii'}d^{(i,i')}` (Jung 2025, (158)) over symmetric
weights in [0, 1]: with a total budget of edges (161), whose solution has a closed form, or with one
budget per node (160), a linear program.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.memory import check_fits
from fljax._core.module import float_dtype
from fljax.graphs import neighbor_tables
from fljax.graphs.builders import from_adjacency
from fljax.graphs.nearest import checked_input, distances, flat_points
from fljax.graphs.undirected import Graph, of_edges, of_matrix

_METHODS = ("projected", "exact")

#: Number of points whose distances to all others are in memory together, at most 32 MB.
_BLOCK_ENTRIES = 2**22

#: Dykstra's projection ends once no row sum differs from the degree by more than this, in rounding
#: errors, ...
_ROUNDINGS = 64
#: ... and after this number of iterations at the latest: within a descent, and at its end.
_PROJECTIONS = 50
_LAST_PROJECTIONS = 10_000
#: Number of steps after which a descent's steps are half as long.
_HALVED_AFTER = 10


@checked
def edge_budget(
    points: Any,
    edges: int,
    *,
    metric: str = "euclidean",
    form: str = "auto",
    max_degree: int | None = None,
) -> Graph:
    r"""The graph of the ``E`` most similar pairs of nodes, with weights one.

    .. math:: \min_A\sum_{i,i'}A_{ii'}d^{(i,i')}\quad\text{s.t. } A=A^\top,\ A_{ii}=0,\
        A_{ii'}\in[0,1],\ \sum_{i,i'}A_{ii'}=E_{\max}

    where the sum is over ordered pairs, so :math:`E_{\max}=2E`. Among equal discrepancies any
    choice is optimal. The graph may be disconnected, with isolated nodes.

    Args:
        points: as in :func:`~fljax.graphs.nearest_neighbors`; given discrepancies must be
            symmetric. For known points no ``[K, K]`` matrix is formed. The points may be traced.
        edges: ``E``, in ``[1, K (K-1) / 2]``.
        metric: as in :func:`~fljax.graphs.nearest_neighbors`.
        form: as in :func:`~fljax.graphs.from_edges`.
        max_degree: as in :func:`~fljax.graphs.nearest_neighbors`.

    Raises:
        ValueError: more edges than pairs or none, and as :func:`~fljax.graphs.nearest_neighbors`.

    Example:
        >>> from fljax import contrib
        >>> contrib.edge_budget([[0.0], [1.0], [2.5], [9.0], [9.5]], edges=2).edge_list()
        [(0, 1), (3, 4)]

    Reference: Jung 2025, (161).
    """
    points = checked_input(points, metric)
    nodes = points.shape[0]
    neighbor_tables.check_nodes(nodes)
    pairs = nodes * (nodes - 1) // 2
    checks.count("edges", edges)
    if edges > pairs:
        raise ValueError(f"edges must be at most the {pairs} pairs of {nodes} nodes, got {edges}.")
    neighbor_tables.check_edges(nodes, edges)
    neighbor_tables.check_max_degree(max_degree)
    if metric == "precomputed":
        checks.check_when_concrete(_check_symmetric, points)
    if checks.is_concrete(points):
        chosen = _smallest(np.asarray(points, np.float64), edges, metric)
        return of_edges(nodes, chosen, np.ones(edges), form, max_degree)
    if metric != "precomputed":
        points = distances(points, metric)
    low, high = np.triu_indices(nodes, 1)
    _, chosen_pairs = jax.lax.top_k(-jnp.asarray(points)[low, high], edges)
    low = jnp.asarray(low)[chosen_pairs]
    high = jnp.asarray(high)[chosen_pairs]
    matrix = jnp.zeros((nodes, nodes), float_dtype()).at[low, high].set(1.0)
    return of_matrix(matrix + matrix.T, nodes, form, max_degree)


@checked
def regular_similarity(
    points: Any,
    degree: Float[Array, ""] | float,
    *,
    metric: str = "euclidean",
    method: str = "projected",
    steps: int = 200,
) -> Graph:
    r"""The most similar neighbors with the same weighted degree at every node.

    .. math:: \min_A\sum_{i,i'}A_{ii'}d^{(i,i')}\quad\text{s.t. } A=A^\top,\ A_{ii}=0,\
        A_{ii'}\in[0,1],\ \sum_{i'}A_{ii'}=d_{\max}\ \text{for all } i

    By projected gradient descent (:func:`project_regular`), which may be traced: the degrees hold
    to rounding, and the objective is within a per cent of the least one. Or exactly, at a vertex,
    by the dual simplex method on the host (HiGHS), for a few hundred nodes. Weights of one half are
    correct: not every vertex is integral.

    Args:
        points: as in :func:`edge_budget`, for three nodes or more.
        degree: :math:`d_{\max}`, in ``(0, K - 1]``.
        metric: as in :func:`~fljax.graphs.nearest_neighbors`.
        method: ``"projected"`` or ``"exact"``.
        steps: number of steps of gradient descent.

    Returns:
        The graph, dense; it may be disconnected.

    Raises:
        ValueError: a degree that no graph with this number of nodes has, and as
            :func:`~fljax.graphs.nearest_neighbors`.
        TypeError: traced discrepancies or degree with ``"exact"``.

    Example:
        >>> from fljax import contrib
        >>> points = [[0.0], [0.1], [0.3], [5.0], [5.1], [5.3]]
        >>> graph = contrib.regular_similarity(points, degree=2, method="exact")
        >>> graph.components().tolist(), graph.degree.tolist()
        ([0, 0, 0, 3, 3, 3], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0])

    Reference: Jung 2025, (158)-(160).
    """
    checks.choice("method", method, _METHODS)
    checks.count("steps", steps)
    points = checked_input(points, metric)
    nodes = points.shape[0]
    neighbor_tables.check_nodes(nodes, at_least=3)
    hint = f"A node has {nodes - 1} others, each with a weight of at most one."
    checks.interval("degree", degree, above=0.0, at_most=nodes - 1, hint=hint)
    if metric == "precomputed":
        checks.check_when_concrete(_check_symmetric, points)
        checks.finite("discrepancies", points)
    distance = points if metric == "precomputed" else distances(points, metric)
    if method == "exact":
        if not (checks.is_concrete(distance) and checks.is_concrete(degree)):
            raise TypeError(
                "method 'exact' works on the host and cannot be traced; take 'projected'."
            )
        matrix = _vertex(np.asarray(distance, np.float64), float(np.asarray(degree)))
    else:
        matrix = _descend(jnp.asarray(distance).astype(float_dtype()), jnp.asarray(degree), steps)
    return from_adjacency(matrix, form="dense", allow_disconnected=True)


@checked
def project_regular(
    matrix: Float[Array, "nodes nodes"], degree: Float[Array, ""] | float
) -> Float[Array, "nodes nodes"]:
    r"""The nearest weights that are symmetric, in [0, 1], and give every node the same degree.

    Dykstra's alternating projections: on the box, and on the affine set of symmetric matrices with
    a zero diagonal and row sums :math:`d`, which for such a :math:`Y` of :math:`n` rows is
    :math:`Y-u1^\top-1u^\top` off the diagonal, :math:`u=(r-s1)/(n-2)`, :math:`r=Y1-d1`,
    :math:`s=1^\top r/(2n-2)`.

    Args:
        matrix: ``[K, K]``, for three nodes or more.
        degree: :math:`d`, in ``(0, K - 1]``.

    Raises:
        ValueError: not a square matrix, NaN, or a degree that no graph with this number of nodes
            has.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> weights = jnp.array([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
      >>> nearest = fl.contrib.project_regular(weights, degree=1.0)
      >>> nearest.sum(axis=1).round(3).tolist()
      [1.0, 1.0, 1.0]

    Reference: Boyle and Dykstra, A method for finding projections onto the intersection of convex
    sets in Hilbert spaces (1986); Jung 2025, (89) and (160).
    """
    nodes = matrix.shape[0]
    if matrix.shape[1] != nodes:
        raise ValueError(f"matrix must be square, [K, K], got shape {matrix.shape}.")
    checks.finite("matrix", matrix)
    neighbor_tables.check_nodes(nodes, at_least=3)
    checks.interval("degree", degree, above=0.0, at_most=nodes - 1)
    matrix = jnp.asarray(matrix).astype(float_dtype())
    return _projected(matrix, jnp.asarray(degree).astype(matrix.dtype), _LAST_PROJECTIONS)


@jax.jit
def _projected(matrix: Array, degree: Array, max_iterations: Array | int) -> Array:
    """Dykstra's projection, see :func:`project_regular`."""
    nodes = len(matrix)
    dtype = matrix.dtype
    off = 1 - jnp.eye(nodes, dtype=dtype)
    tolerance = _ROUNDINGS * jnp.finfo(dtype).eps * (1 + degree)

    def affine(matrix: Array) -> Array:
        matrix = (matrix + matrix.T) / 2 * off
        excess = jnp.sum(matrix, axis=1) - degree
        excess = (excess - jnp.sum(excess) / (2 * nodes - 2)) / (nodes - 2)
        return (matrix - excess[:, None] - excess[None, :]) * off

    def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
        _, _, wrong, iteration = state
        return (wrong > tolerance) & (iteration < max_iterations)

    def alternate(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        # Dykstra's correction does not change the projection on an affine set, so it is left out.
        inside, correction, _, iteration = state
        flat = affine(inside)
        boxed = jnp.clip(flat + correction, 0, 1) * off
        wrong = jnp.max(jnp.abs(jnp.sum(boxed, axis=1) - degree))
        return boxed, flat + correction - boxed, wrong, iteration + 1

    start = (matrix, jnp.zeros_like(matrix), jnp.asarray(jnp.inf, dtype), jnp.asarray(0))
    return jax.lax.while_loop(unfinished, alternate, start)[0]


@jax.jit
def _descent(distance: Array, degree: Array, steps: Array) -> Array:
    """Projected gradient descent with decreasing steps from equal weights."""
    nodes = len(distance)
    # In units in which discrepancies are one in the mean, so that step sizes fit.
    mean = jnp.sum(distance) / (nodes * (nodes - 1))
    gradient = distance / jnp.where(mean > 0, mean, 1)
    even = jnp.full_like(distance, degree / (nodes - 1)) * (
        1 - jnp.eye(nodes, dtype=distance.dtype)
    )

    def step(iteration: Array, weights: Array) -> Array:
        # Long steps reach a vertex; the last ones are short, so that they stay near the
        # constraints.
        return _projected(
            weights - gradient / (1 + iteration / _HALVED_AFTER), degree, _PROJECTIONS
        )

    last = jax.lax.fori_loop(0, steps, step, even)
    return _projected(last, degree, _LAST_PROJECTIONS)


def _descend(distance: Array, degree: Array, steps: int) -> Array:
    distance = jnp.where(jnp.eye(len(distance), dtype=bool), 0, distance)
    return _descent(distance, degree.astype(distance.dtype), jnp.asarray(steps))


def _vertex(distance: np.ndarray, degree: float) -> np.ndarray:
    """An optimal vertex of the linear program; its variables are the pairs of nodes."""
    nodes = len(distance)
    low, high = np.triu_indices(nodes, 1)
    mend = "take method='projected'"
    check_fits(f"a linear program of {len(low)} variables", len(low), entry_bytes=200, mend=mend)
    variables = np.arange(len(low))
    rows = np.concatenate([low, high])
    columns = np.concatenate([variables, variables])
    sums = scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), (nodes, len(low)))
    answer = scipy.optimize.linprog(
        distance[low, high],
        A_eq=sums,
        b_eq=np.full(nodes, degree),
        bounds=(0, 1),
        method="highs-ds",
    )
    if answer.x is None:
        raise ValueError(f"the linear program has no solution: {answer.message}")
    matrix = np.zeros_like(distance)
    matrix[low, high] = np.clip(answer.x, 0, 1)
    return matrix + matrix.T


def _check_symmetric(matrix: object) -> None:
    array = np.asarray(matrix, np.float64)
    wrong = ~np.isclose(array, array.T, rtol=1e-6, atol=0.0)
    if np.any(wrong):
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"discrepancies must be symmetric, entry ({row}, {column}) is {array[row, column]:g}, "
            f"its mirror is {array[column, row]:g}; take (D + D.T) / 2."
        )


def _smallest(points: np.ndarray, edges: int, metric: str) -> np.ndarray:
    """The pairs ``k < l`` with the smallest discrepancies, ``[E, 2]``, on the host."""
    nodes = len(points)
    least = np.zeros(0)
    pairs = np.zeros((0, 2), np.int64)
    precomputed = metric == "precomputed"
    points = points if precomputed else flat_points(points, metric)
    rows = max(1, _BLOCK_ENTRIES // nodes)
    for first in range(0, nodes - 1, rows):
        block = points[first : first + rows]
        distance = block if precomputed else scipy.spatial.distance.cdist(block, points)
        later = np.arange(nodes) > first + np.arange(len(block))[:, None]
        low, high = np.nonzero(later & (distance < least.max()) if len(least) == edges else later)
        least = np.concatenate([least, distance[low, high]])
        pairs = np.concatenate([pairs, np.stack([low + first, high], axis=1)])
        if len(least) > edges:
            order = np.argpartition(least, edges - 1)[:edges]
            least = least[order]
            pairs = pairs[order]
    if not np.all(np.isfinite(least)):
        raise ValueError(
            f"only {np.isfinite(least).sum()} pairs have a finite discrepancy, too few for {edges} "
            "edges."
        )
    return pairs
