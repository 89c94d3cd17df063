"""Nearest-neighbor graphs: from points, from geographic coordinates, or from given discrepancies.

Points that are known when a graph is built are searched on the host, by a k-d tree in float64, with
memory linear in the edges. Traced points, which give each seed its own graph, are compared
pairwise, ``[K, K]``.
"""

from typing import Any, TypeAlias

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
from fljax.graphs.undirected import Graph, of_edges, of_matrix

#: The mean radius of the Earth in kilometers (of the WGS 84 ellipsoid).
EARTH_RADIUS = 6371.0088

#: Of the weights of edges; without one all are one.
Bandwidth: TypeAlias = Array | float | None

_METRICS = ("euclidean", "geodesic")
_RULES = ("any", "mutual")


@checked
def distances(points: object, metric: str = "euclidean") -> Float[Array, "nodes nodes"]:
    r"""The distances between all pairs of points.

    If the points are representations :math:`z^{(i)}` of local data sets, these are the
    discrepancies :math:`d^{(i,i')}=\lVert z^{(i)}-z^{(i')}\rVert` (Jung 2025, section 7.2). No
    array of shape ``[K, K, m]`` is formed.

    Args:
        points: ``[K, m]``; for geodesic distances ``[K, 2]``, latitude and longitude in degrees.
        metric: ``"euclidean"``, or ``"geodesic"``, along great circles of the Earth, in kilometers.

    Returns:
        ``[K, K]``, symmetric, zero on the diagonal.

    Raises:
        ValueError: NaN or infinite points, latitudes beyond the poles, an unknown metric.

    Example:
        >>> from fljax import graphs
        >>> helsinki, tampere = (60.17, 24.94), (61.50, 23.76)
        >>> round(float(graphs.distances([helsinki, tampere], "geodesic")[0, 1]))  # km
        161
    """
    read = _checked_points(points, metric)
    nodes = read.shape[0]
    neighbor_tables.check_nodes(nodes)
    mend = "take fewer points, or nearest_neighbors of known points, which need no such matrix"
    check_fits(f"a matrix of {nodes} x {nodes} distances", nodes, nodes, entry_bytes=4, mend=mend)
    places = jnp.asarray(read).astype(float_dtype())
    if metric == "geodesic":
        latitude, longitude = jnp.radians(places).T
        north = jnp.sin((latitude[:, None] - latitude[None, :]) / 2) ** 2
        east = jnp.sin((longitude[:, None] - longitude[None, :]) / 2) ** 2
        haversine = north + jnp.cos(latitude)[:, None] * jnp.cos(latitude)[None, :] * east
        return 2 * EARTH_RADIUS * jnp.arcsin(jnp.sqrt(jnp.minimum(haversine, 1)))

    def row(point: Array) -> Array:
        return jnp.sqrt(jnp.sum((places - point[None, :]) ** 2, axis=1))

    return jax.lax.map(row, places)


@checked
def nearest_neighbors(
    points: object,
    neighbors: int,
    *,
    metric: str = "euclidean",
    keep: str = "any",
    bandwidth: Float[Array, ""] | float | None = None,
    form: str = "auto",
    max_degree: int | None = None,
) -> Graph:
    r"""The graph that joins every node to its nearest neighbors.

    The relation is not symmetric: an edge is kept if *any* of its ends has the other among its
    nearest, or only if both have. The graph may be disconnected (see ``Graph.components``); this is
    not an error.

    Points and discrepancies may be traced, so that every seed of a study has its own graph; the
    number of neighbors is structure. Ties are broken in favor of the lower node number if distances
    are given or traced, otherwise arbitrarily.

    Args:
        points: ``[K, m]``: positions, or representations of the nodes' data sets
            (:func:`fljax.problems.train` and others); for geodesic distances ``[K, 2]``, latitude
            and longitude in degrees; for ``"precomputed"`` the discrepancies ``[K, K]`` >= 0
            themselves, read row by row. Pairs with infinite discrepancy are never joined; the
            diagonal is ignored.
        neighbors: ``k``, in ``[1, K - 1]``.
        metric: ``"euclidean"``; ``"geodesic"``, along great circles, in kilometers; or
            ``"precomputed"``.
        keep: ``"any"`` (the union) or ``"mutual"`` (the intersection).
        bandwidth: :math:`h` of the weights :math:`e^{-d^2/(2h^2)}`, in the units of the distance;
            by default all weights are one.
        form: as in :func:`from_edges`.
        max_degree: number of slots of the padded form; for traced points a valid bound, which
            ``"mutual"`` implies.

    Raises:
        ValueError: a number of neighbors outside ``[1, K - 1]``, NaN, latitudes beyond the poles,
            negative discrepancies, a bandwidth so small that weights vanish, an unknown metric or
            rule.

    Example:
        >>> from fljax import graphs
        >>> line = graphs.nearest_neighbors([[0.0], [1.0], [2.5], [9.0], [9.5]], neighbors=1)
        >>> line.edge_list(), line.components().tolist()
        ([(0, 1), (1, 2), (3, 4)], [0, 0, 0, 3, 3])

    Reference: Jung 2025, sections 7.3 and 3.3.
    """
    points = checked_input(points, metric)
    checks.choice("keep", keep, _RULES)
    if bandwidth is not None:
        checks.positive("bandwidth", bandwidth)
    nodes = points.shape[0]
    neighbor_tables.check_nodes(nodes)
    check_neighbors(neighbors, nodes)
    neighbor_tables.check_edges(nodes, nodes * neighbors)
    neighbor_tables.check_max_degree(max_degree)
    if checks.is_concrete(points) and (bandwidth is None or checks.is_concrete(bandwidth)):
        return _searched(points, neighbors, metric, keep, bandwidth, form, max_degree)
    if metric != "precomputed":
        points = distances(points, metric)
    matrix = _joined(jnp.asarray(points).astype(float_dtype()), neighbors, keep, bandwidth)
    slots = max_degree or (neighbors if keep == "mutual" else None)
    return of_matrix(matrix, nodes, form, slots)


def check_neighbors(neighbors: int, nodes: int) -> None:
    """Raise unless it is a number of other nodes."""
    checks.count("neighbors", neighbors)
    if neighbors >= nodes:
        raise ValueError(
            f"neighbors must be below the number of nodes, {nodes}: a node is not its own "
            f"neighbor; got {neighbors}."
        )


def checked_input(points: object, metric: str) -> Array | np.ndarray:
    """Points or discrepancies as an array; raise unless they fit the metric."""
    checks.choice("metric", metric, (*_METRICS, "precomputed"))
    return (
        _checked_discrepancies(points)
        if metric == "precomputed"
        else _checked_points(points, metric)
    )


def _checked_points(points: Any, metric: str) -> Array | np.ndarray:
    checks.choice("metric", metric, _METRICS)
    points = checks.filled("points", points, axes=2)
    checks.finite("points", points)
    if metric == "geodesic":
        if points.shape[1] != 2:
            raise ValueError(
                "points on the Earth are [K, 2], latitude and longitude in degrees, got shape "
                f"{points.shape}."
            )
        swapped = "The latitude comes first, then the longitude."
        checks.interval("the latitude", points[:, 0], at_least=-90, at_most=90, hint=swapped)
        checks.interval("the longitude", points[:, 1], at_least=-180, at_most=360, hint=swapped)
    return points


def _checked_discrepancies(matrix: Any) -> Array | np.ndarray:
    matrix = checks.filled("discrepancies", matrix, axes=2)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"discrepancies must be square, [K, K], got shape {matrix.shape}.")

    def check(smallest: Array) -> None:
        if not smallest >= 0:
            raise ValueError(f"discrepancies must be >= 0 and not NaN, got {float(smallest):g}.")

    checks.check_when_concrete(
        check, jnp.min(matrix) if isinstance(matrix, jax.Array) else np.min(matrix)
    )
    return matrix


def _joined(distance: Array, neighbors: int, keep: str, bandwidth: Bandwidth) -> Array:
    """The adjacency matrix from traced discrepancies."""
    nodes = len(distance)
    distance = jnp.where(jnp.eye(nodes, dtype=bool), jnp.inf, distance)
    near, chosen = jax.lax.top_k(-distance, neighbors)
    rows = jnp.arange(nodes, dtype=chosen.dtype)[:, None]
    theirs = jnp.zeros((nodes, nodes), bool).at[rows, chosen].set(jnp.isfinite(near))
    joined = theirs | theirs.T if keep == "any" else theirs & theirs.T
    weight = gaussian(jnp.minimum(distance, distance.T), bandwidth)
    return jnp.where(joined, weight, 0)


def gaussian(distance: Array, bandwidth: Bandwidth) -> Array:
    """Weights of edges: one, or a Gaussian kernel of the distance."""
    if bandwidth is None:
        return jnp.ones_like(distance)
    return jnp.exp(-((distance / bandwidth) ** 2) / 2)


def _searched(
    points: object,
    neighbors: int,
    metric: str,
    keep: str,
    bandwidth: Bandwidth,
    form: str,
    max_degree: int | None,
) -> Graph:
    """The graph of known points, on the host."""
    points = np.asarray(points, np.float64)
    nodes = len(points)
    if metric == "precomputed":
        distance = points + np.diag(np.full(nodes, np.inf))
        chosen = np.argsort(distance, axis=1, kind="stable")[:, :neighbors]
        length = np.take_along_axis(distance, chosen, axis=1)
    else:
        chosen, length = _nearest(flat_points(points, metric), neighbors)
        if metric == "geodesic":
            length = 2 * EARTH_RADIUS * np.arcsin(np.minimum(length / 2, 1))
    near = np.repeat(np.arange(nodes), neighbors)
    far = chosen.ravel()
    length = length.ravel()
    real = np.isfinite(length)
    pairs = np.stack([np.minimum(near, far), np.maximum(near, far)], axis=1)[real]
    order = np.lexsort((length[real], neighbor_tables.pair_codes(pairs, nodes)))
    pairs = pairs[order]
    length = length[real][order]
    _, first, times = np.unique(
        neighbor_tables.pair_codes(pairs, nodes), return_index=True, return_counts=True
    )
    if keep == "mutual":
        first = first[times == 2]
    pairs = pairs[first]
    length = length[first]
    weights = np.ones(len(pairs))
    if bandwidth is not None:
        weights = np.exp(-((length / float(bandwidth)) ** 2) / 2)
        if np.any(weights < jnp.finfo(float_dtype()).tiny):
            raise ValueError(
                f"bandwidth = {float(bandwidth):g} leaves no weight to edges as long as "
                f"{length.max():g}; take one of about the distance of neighbors, such as their "
                f"median {np.median(length):g}."
            )
    return of_edges(nodes, pairs, weights, form, max_degree)


def flat_points(points: np.ndarray, metric: str) -> np.ndarray:
    """Points in a Euclidean space, in which the order of distances is the same: on a unit ball."""
    if metric != "geodesic":
        return points
    latitude, longitude = np.radians(points).T
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)


def _nearest(points: np.ndarray, neighbors: int) -> tuple[np.ndarray, np.ndarray]:
    """The other points nearest to each, ``[K, k]``, and how far they are."""
    # Where many points coincide, medians would split a tree without end.
    tree = scipy.spatial.KDTree(points, balanced_tree=False, compact_nodes=False)
    length, neighbor = tree.query(points, neighbors + 1, workers=-1)
    itself = neighbor == np.arange(len(points))[:, None]
    # Among many that coincide a point may not find itself: then the last found is one too many.
    itself[:, -1] |= ~itself.any(axis=1)
    shape = (len(points), neighbors)
    return neighbor[~itself].reshape(shape), length[~itself].reshape(shape)
