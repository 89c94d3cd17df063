r"""Networks with failed edges and nodes (Jung 2025, section 8.2.4).

A network is resilient if the second eigenvalue of its Laplacian stays large, since it determines
whether nodes can still agree, and how fast. The loss due to one edge or node is computed by trying
each, or, on large networks, from one eigenvector.

Shapes: ``K`` nodes, ``E`` edges, ``F`` draws.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.graphs.spectra import sparse_fiedler
from fljax.graphs.undirected import Graph

#: Up to this many nodes, the failure of each edge and node is tried.
EXACT_NODES = 200
#: Up to this many nodes, spectra are computed from dense matrices.
DENSE_NODES = 2000
#: Number of networks that are processed together.
NETWORKS_PER_BATCH = 16

METHODS = ("auto", "exact", "spectral")


class Resilience(NamedTuple):
    """Connectivity measures of the rest of a network, each ``[]`` or ``[F]``."""

    connectivity: Array  # the second eigenvalue of the Laplacian of the nodes that are left
    components: Array  # into how many parts they fall
    largest: Array  # the share of them that is in the largest part
    rate: Array  # (l_n - l_2) / (l_n + l_2): the best factor of averaging a round; one if apart


class Critical(NamedTuple):
    """Edges or nodes, the most critical first."""

    members: Int[np.ndarray, "failures ..."]  # [E, 2] or [K]
    connectivity: Float[np.ndarray, " failures"]  # connectivity without this one alone


@checked
def pruned(
    network: Graph,
    nodes: Bool[Array, " nodes"] | None = None,
    edges: Bool[Array, "nodes nodes"] | None = None,
) -> Graph:
    """The network without the edges of failed nodes, and without failed edges.

    Nodes keep their numbers: a failed node has no neighbor. Traceable.

    Args:
      network: the network before the failures.
      nodes: ``[K]``, the mask of failed nodes.
      edges: ``[K, K]``, the symmetric mask of failed edges; pairs that are not edges are ignored.

    Raises:
      ValueError: masks that are not boolean or of another shape, edges that fail in one direction
        only, fewer than two remaining nodes.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> pruned(fl.graphs.ring(5), nodes=jnp.arange(5) == 2).edge_list()
      [(0, 1), (0, 4), (3, 4)]
    """
    alive, broken = _masks(network, nodes, edges)
    return _pruned(network, alive, broken)


def _pruned(network: Graph, alive: Array, broken: Array | None) -> Graph:
    if broken is None:
        return network.reweighted(lambda k, m: alive[k] & alive[m])
    return network.reweighted(lambda k, m: alive[k] & alive[m] & ~broken[k, m])


@checked
def resilience(
    network: Graph,
    nodes: Bool[Array, " nodes"] | None = None,
    edges: Bool[Array, "nodes nodes"] | None = None,
) -> Resilience:
    r"""Connectivity of the rest of a network.

    The rate is that of averaging with the best step, :math:`u\leftarrow u-\eta Lu`; for the rate of
    an algorithm apply :mod:`fljax.theory.network_rates` to the result of :func:`pruned`. Traceable;
    the spectrum is dense for a traced network and for up to two thousand nodes.

    Args: as for :func:`pruned`.

    Raises:
      ValueError: as :func:`pruned`.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> star = resilience(fl.graphs.star(5), nodes=jnp.arange(5) == 0)  # without its center
      >>> ring = resilience(fl.graphs.ring(5), nodes=jnp.arange(5) == 0)
      >>> int(star.components), float(star.largest), int(ring.components), float(ring.largest)
      (4, 0.25, 1, 1.0)

    Reference:
      Jung 2025, section 8.2.4; the rate, Exercise 4.4.
    """
    alive, broken = _masks(network, nodes, edges)
    return _resilience(network, alive, broken)


def _resilience(network: Graph, alive: Array, broken: Array | None) -> Resilience:
    left = _pruned(network, alive, broken)
    count = jnp.sum(alive, dtype=np.int32)
    labels = left.components()
    everyone = jnp.arange(network.nodes, dtype=np.int32)
    components = jnp.sum(alive & (labels == everyone), dtype=np.int32)
    sizes = jnp.zeros(network.nodes, np.int32).at[labels].add(alive.astype(np.int32))
    degree = jnp.asarray(left.degree)
    is_connected = (components == 1) & (count > 1)
    connectivity = jnp.where(is_connected, left.algebraic_connectivity(alive), 0)
    norm = left.laplacian_norm()
    factor = (norm - connectivity) / jnp.where(norm > 0, norm + connectivity, 1)
    share = jnp.max(sizes).astype(degree.dtype) / jnp.maximum(count, 1).astype(degree.dtype)
    return Resilience(connectivity, components, share, jnp.where(is_connected, factor, 1))


@checked
def random_failures(
    key: Key[Array, ""],
    network: Graph,
    draws: int,
    edge_probability: Float[Array, ""] | float = 0.0,
    node_probability: Float[Array, ""] | float = 0.0,
) -> Resilience:
    """Resilience of a network with independent random failures of edges and nodes.

    If fewer than two nodes are left, the connectivity is zero and the rate is one. Traceable.

    Args:
      key: consumed.
      network: the network before the failures.
      draws: number of draws, each with independent failures.
      edge_probability: probability that an edge fails, in [0, 1].
      node_probability: probability that a node fails, in [0, 1].

    Returns:
      Arrays over the draws, ``[F]``.

    Raises:
      ValueError: no draws, numbers that are not probabilities.

    Example:
      >>> import jax, fljax as fl
      >>> found = random_failures(jax.random.key(0), fl.graphs.ring(6), 1000, edge_probability=0.1)
      >>> whole = float((found.components == 1).mean())  # no edge or one fails: 0.886
      >>> 0.85 < whole < 0.92
      True

    Reference:
      Jung 2025, section 8.2.4.
    """
    checks.count("draws", draws)
    checks.interval("edge_probability", edge_probability, at_least=0, at_most=1)
    checks.interval("node_probability", node_probability, at_least=0, at_most=1)

    keys = jax.random.split(key, draws)
    return _of_draws(network, keys, jnp.asarray(edge_probability), jnp.asarray(node_probability))


@jax.jit
def _of_draws(network: Graph, keys: Array, edge: Array, node: Array) -> Resilience:
    def draw(key: Array) -> Resilience:
        of_edges, of_nodes = jax.random.split(key)
        upper = jnp.triu(jax.random.uniform(of_edges, (network.nodes,) * 2) < edge, 1)
        alive = jax.random.uniform(of_nodes, (network.nodes,)) >= node
        return _resilience(network, alive, upper | upper.T)

    return jax.lax.map(draw, keys, batch_size=NETWORKS_PER_BATCH)


@checked
def critical_edges(
    network: Graph, method: Literal["auto", "exact", "spectral"] = "auto"
) -> Critical:
    r"""Rank the edges by the loss of connectivity that the failure of each causes.

    ``"exact"`` tries each: ``E`` spectra, :math:`O(EK^3)`. ``"spectral"`` needs one, with the
    eigenvector :math:`v` of the second eigenvalue (Fiedler's),

    .. math:: \lambda_2(L\setminus\{k,l\})\le\lambda_2-a_{kl}(v_k-v_l)^2,

    and ranks by this bound, which is also the first-order change. It is tight where the eigenvalue
    is simple and the edge's weight is small compared with the gap to the third; on sparse random
    networks of 12 nodes, the edge that it ranks first causes four fifths of the loss of the most
    critical edge. In a network with symmetries (a ring) the eigenvector is not unique, and
    equivalent edges are ranked differently.

    Args:
      network: a connected, known (not traced) network.
      method: ``"auto"`` is ``"exact"`` up to 200 nodes.

    Returns:
      All edges, and the connectivity without each, or for ``"spectral"`` its bound.

    Raises:
      TypeError: a traced network.
      ValueError: a network that is disconnected or has no edge; an unknown method.

    Example:
      >>> import fljax as fl
      >>> bridge = fl.graphs.from_edges(6, [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5)])
      >>> found = critical_edges(bridge)
      >>> found.members[0].tolist(), float(found.connectivity[0])
      ([2, 3], 0.0)
      >>> critical_edges(bridge, "spectral").members[0].tolist()
      [2, 3]

    Reference:
      Jung 2025, section 8.2.4; Fiedler 1973 for the eigenvector.
    """
    edges, exact = _edges_and_method(network, method)
    low, high = edges.T
    if not exact:
        value, vector = _fiedler(network)
        bounds = value - network.edge_weights() * (vector[low] - vector[high]) ** 2
        return _ranked(edges, bounds)
    return _ranked(edges, _without_each_edge(network, jnp.asarray(edges)))


@jax.jit
def _without_each_edge(network: Graph, edges: Array) -> Array:
    alive = jnp.ones(network.nodes, bool)
    everyone = jnp.arange(network.nodes, dtype=np.int32)

    def without(edge: Array) -> Array:
        is_edge = (everyone[:, None] == edge[0]) & (everyone[None] == edge[1])
        return _resilience(network, alive, is_edge | is_edge.T).connectivity

    return jax.lax.map(without, edges, batch_size=NETWORKS_PER_BATCH)


@checked
def critical_nodes(
    network: Graph, method: Literal["auto", "exact", "spectral"] = "auto"
) -> Critical:
    r"""Rank the nodes by the connectivity that the failure of each leaves among the others.

    ``"exact"`` tries each: ``K`` spectra. ``"spectral"`` bounds the connectivity of the others by
    the Rayleigh quotient of Fiedler's vector on them, less its mean there,

    .. math:: \lambda_2(L\setminus k)\le
        \frac{\sum_{\{i,j\}\not\ni k}a_{ij}(v_i-v_j)^2}{\sum_{i\ne k}(v_i-\bar v_{-k})^2}

    The limitations of :func:`critical_edges` apply. Connectivity may increase when a weakly
    connected node fails.

    Args:
      network: a network of three nodes or more; as in :func:`critical_edges`.
      method: as in :func:`critical_edges`.

    Returns:
      All nodes, and the connectivity of the others without each, or for ``"spectral"`` its bound.

    Raises:
      TypeError, ValueError: as :func:`critical_edges`.

    Example:
      >>> import fljax as fl
      >>> critical_nodes(fl.graphs.star(5)).members[0].item()
      0
    """
    edges, exact = _edges_and_method(network, method)
    everyone = np.arange(network.nodes, dtype=np.int32)
    if network.nodes < 3:
        raise ValueError(
            "the effect of a node's failure on the others needs at least two others, got a network "
            f"of {network.nodes} nodes."
        )
    if exact:
        return _ranked(everyone, _without_each_node(network))
    _, vector = _fiedler(network)
    terms = network.edge_weights() * (vector[edges[:, 0]] - vector[edges[:, 1]]) ** 2
    of_node = np.bincount(edges.ravel(), np.repeat(terms, 2), minlength=network.nodes)
    others = network.nodes - 1
    mean = (np.sum(vector) - vector) / others
    spread = np.sum(vector**2) - vector**2 - others * mean**2
    return _ranked(everyone, (np.sum(terms) - of_node) / spread)


@jax.jit
def _without_each_node(network: Graph) -> Array:
    everyone = jnp.arange(network.nodes, dtype=np.int32)

    def without(node: Array) -> Array:
        return _resilience(network, everyone != node, None).connectivity

    return jax.lax.map(without, everyone, batch_size=NETWORKS_PER_BATCH)


def _masks(
    network: Graph, nodes: ArrayLike | None, edges: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Which nodes are alive, ``[K]``, and which edges are broken, if any, ``[K, K]``."""
    count = network.nodes
    for name, mask, shape in (("nodes", nodes, (count,)), ("edges", edges, (count, count))):
        if mask is not None and np.shape(mask) != shape:
            raise ValueError(f"{name} must be of shape {shape}, got shape {np.shape(mask)}.")
    if edges is not None:
        checks.check_when_concrete(_symmetric, edges)
    if nodes is not None:
        checks.check_when_concrete(_check_remaining, nodes)
    alive = jnp.ones(count, bool) if nodes is None else ~jnp.asarray(nodes)
    return alive, None if edges is None else jnp.asarray(edges)


def _symmetric(edges: ArrayLike) -> None:
    edges = np.asarray(edges)
    if not np.array_equal(edges, edges.T):
        k, other = np.argwhere(edges != edges.T)[0]
        raise ValueError(
            f"edges fail in both directions, and edges[{k}, {other}] is not edges[{other}, {k}]; "
            "give edges | edges.T. (Links that fail one way are fljax.link.Independent.)"
        )


def _check_remaining(nodes: ArrayLike) -> None:
    left = int(np.sum(~np.asarray(nodes)))
    if left < 2:
        raise ValueError(
            f"a network needs at least two nodes, but only {left} of {np.size(nodes)} would be "
            "left; let fewer nodes fail."
        )


def _edges_and_method(network: Graph, method: str) -> tuple[np.ndarray, bool]:
    """The edges, and whether each failure is tried."""
    checks.choice("method", method, METHODS)
    edges = network.edges
    network.require_connected()
    if not len(edges):
        raise ValueError("the network has no edges, so none of them is critical.")
    return edges, method == "exact" or (method == "auto" and network.nodes <= EXACT_NODES)


def _fiedler(network: Graph) -> tuple[float, np.ndarray]:
    if network.nodes > DENSE_NODES:
        return sparse_fiedler(network._sparse())
    values, vectors = np.linalg.eigh(np.asarray(network.laplacian_matrix(), np.float64))
    return float(values[1]), vectors[:, 1]


def _ranked(members: np.ndarray, connectivity: ArrayLike) -> Critical:
    left = np.maximum(np.asarray(connectivity, np.float64), 0)
    order = np.argsort(left, kind="stable")
    return Critical(members[order], left[order])
