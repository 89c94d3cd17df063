"""Random topologies, drawn on the device.

A sampler draws either a boolean matrix or a list of edges with a static bound on its length, never
anything whose shape depends on the draw. `_generate` redraws the whole graph until it fits its
bounds, so the distribution is the intended one conditioned on them, and no edge is dropped.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax.graphs import neighbor_tables
from fljax.graphs.neighbor_tables import Overflow, TableShape
from fljax.graphs.undirected import Graph, of_matrix

#: The probability that a random graph exceeds its default neighbor bound and is redrawn.
_OVERFLOW = 1e-3


class _Edges(NamedTuple):
    senders: Array  # [E] int32
    receivers: Array  # [E] int32
    valid: Array  # [E] bool: which entries are edges
    fits: Array  # [] bool: False if the list was too short for the draw


_Sampler = Callable[..., "_Edges | Array"]


@functools.partial(
    jax.jit, static_argnames=("sampler", "structure", "nodes", "dense", "table", "connected")
)
def _generate(
    key: Array,
    numbers: object,
    *,
    sampler: _Sampler,
    structure: tuple,
    nodes: int,
    dense: bool,
    table: TableShape,
    connected: bool = False,
) -> Graph:
    """Draw graphs until one fits ``table`` (and is connected)."""

    def attempt(key: Array) -> tuple[Graph, Array]:
        drawn = sampler(key, numbers, nodes, *structure)
        if isinstance(drawn, _Edges):
            counts = _count_neighbors(drawn, nodes)
            graph = _assemble(drawn, counts, None if dense else table)
            fits = drawn.fits & (jnp.sum(counts > table.slots) <= table.rows)
        else:
            counts = jnp.sum(drawn, axis=1, dtype=np.int32)
            form = "dense" if dense else "padded"
            graph = of_matrix(drawn.astype(float_dtype()), nodes, form, table.bound)
            fits = jnp.asarray(True)
        fits &= jnp.max(counts) <= table.bound
        return graph, fits & graph.connected() if connected else fits

    if sampler is _sample_ranked and table == _any_degree(nodes) and not connected:
        return attempt(jax.random.fold_in(key, 0))[0]  # cannot fail, so needs no loop

    def body(state: tuple[Array, Graph, Array]) -> tuple[Array, Graph, Array]:
        count, _, _ = state
        return count + 1, *attempt(jax.random.fold_in(key, count))

    blank = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(attempt, key)[0]
    )
    start = (jnp.zeros((), np.int32), blank, jnp.asarray(False))
    return jax.lax.while_loop(lambda state: ~state[2], body, start)[1]


def _count_neighbors(edges: _Edges, nodes: int) -> Int[Array, " nodes"]:
    increments = edges.valid.astype(np.int32)
    counts = jnp.zeros(nodes, np.int32)
    return counts.at[edges.senders].add(increments).at[edges.receivers].add(increments)


def _assemble(edges: _Edges, counts: Array, table: TableShape | None) -> Graph:
    """A graph of unit weights from distinct edges; in padded form if a table is given."""
    dtype = float_dtype()
    nodes = len(counts)
    degree = counts.astype(dtype)
    near = jnp.concatenate([edges.senders, edges.receivers])
    far = jnp.concatenate([edges.receivers, edges.senders])
    valid = jnp.concatenate([edges.valid, edges.valid])
    near = jnp.where(valid, near, nodes)  # empty entries go last, then out of range
    if table is None:
        matrix = jnp.zeros((nodes, nodes), dtype).at[near, far].set(1.0, mode="drop")
        return Graph(nodes, matrix, None, None, degree)
    near, far = jax.lax.sort((near, far), num_keys=2)
    first = jnp.cumsum(counts, dtype=np.int32) - counts
    slot = jnp.arange(near.size, dtype=np.int32) - first.at[near].get(mode="clip")

    def fill(owners: Array, row: Array, slot: Array, slots: int) -> tuple[Array, Array]:
        neighbor = jnp.broadcast_to(owners[:, None], (len(owners), slots))
        weights = jnp.zeros(neighbor.shape, dtype)
        return (
            neighbor.at[row, slot].set(far, mode="drop"),
            weights.at[row, slot].set(1.0, mode="drop"),
        )

    main = fill(jnp.arange(nodes, dtype=np.int32), near, slot, table.slots)
    if not table.rows:
        return Graph(nodes, None, *main, degree)
    crowded = counts > table.slots
    number = jnp.cumsum(crowded, dtype=np.int32)
    spare = jnp.arange(table.rows, dtype=np.int32)
    (owners,) = jnp.nonzero(crowded, size=table.rows)
    owners = jnp.where(spare < number[-1], owners.astype(np.int32), nodes + spare)
    row = (number - 1).at[near].get(mode="clip")
    row = jnp.where((slot >= table.slots) & (near < nodes), row, table.rows)
    slots = table.bound - table.slots
    rest = fill(jnp.minimum(owners, nodes - 1), row, slot - table.slots, slots)
    return Graph(nodes, None, *main, degree, Overflow(owners, *rest))


def _distinct(
    key: Array, edges: _Edges, free: Array, draw: Callable[[Array], tuple[Array, Array]], nodes: int
) -> _Edges:
    """Redraw ``free`` edges that coincide with another edge until all edges are distinct.

    Among coinciding edges one stays, a fixed one if there is one, else one at random. If ``draw``
    treats a set of pairs equally, so does the whole procedure, hence every set of distinct pairs
    that are not fixed is equally likely: it samples without replacement.
    """
    index = jnp.arange(edges.senders.size, dtype=np.int32)

    def clashes(key: Array, senders: Array, receivers: Array) -> Array:
        low = jnp.where(edges.valid, jnp.minimum(senders, receivers), nodes + index)
        high = jnp.maximum(senders, receivers)
        priority = jax.random.bits(key, index.shape, np.uint32) >> 1  # fixed edges before free ones
        priority = jnp.where(free, priority + np.uint32(1), np.uint32(0))
        low, high, _, order = jax.lax.sort((low, high, priority, index), num_keys=3)
        repeated = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        repeated = jnp.concatenate([jnp.zeros(1, bool), repeated])
        return jnp.zeros(index.shape, bool).at[order].set(repeated)

    def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, senders, receivers, clash = state
        k_draw, k_priority = jax.random.split(jax.random.fold_in(key, count))
        new_senders, new_receivers = draw(k_draw)
        senders = jnp.where(clash, new_senders, senders)
        receivers = jnp.where(clash, new_receivers, receivers)
        return count + 1, senders, receivers, clashes(k_priority, senders, receivers)

    first = clashes(jax.random.fold_in(key, 0), edges.senders, edges.receivers)
    start = (jnp.ones((), np.int32), edges.senders, edges.receivers, first)
    _, senders, receivers, _ = jax.lax.while_loop(lambda state: jnp.any(state[3]), body, start)
    return edges._replace(senders=senders, receivers=receivers)


def _other_node(key: Array, senders: Array, nodes: int) -> Array:
    """For every sender a uniformly chosen different node."""
    receivers = jax.random.randint(key, senders.shape, 0, nodes - 1, np.int32)
    return receivers + (receivers >= senders).astype(np.int32)


def _tail_bound(
    groups: Sequence[tuple[int, float]], nodes: int, max_degree: int | None, offset: int = 0
) -> int:
    """A bound on the neighbors of every node that holds with probability above ``1 - 1e-3``.

    Args:
        groups: pairs (number of nodes, mean) of ``offset + Poisson(mean)`` neighbors each.
        nodes: number of nodes ``K``.
        max_degree: the user's own bound, which must hold with probability one half or more, so
            that redrawing ends soon.
        offset: neighbors that every node has for certain.
    """
    support = np.arange(nodes)
    excess = sum(size * scipy.special.pdtrc(support, mean) for size, mean in groups)

    def smallest(chance: float) -> int:
        enough = np.flatnonzero(excess <= chance)
        return min(nodes - 1, max(1, offset + int(enough[0]))) if enough.size else nodes - 1

    if max_degree is None:
        return smallest(_OVERFLOW)
    neighbor_tables.check_max_degree(max_degree)
    if max_degree < smallest(0.5):
        raise ValueError(
            f"max_degree={max_degree} would be exceeded by most draws, which are redrawn until "
            f"they fit; give at least {smallest(0.5)}, or leave it out to get "
            f"{smallest(_OVERFLOW)} slots."
        )
    return min(max_degree, nodes - 1)


def _any_degree(nodes: int) -> TableShape:
    """No bound on the neighbors of a node."""
    return TableShape(nodes - 1, nodes - 1, 0)


def _layout(
    form: str,
    nodes: int,
    groups: Sequence[tuple[int, float]],
    max_degree: int | None,
    offset: int = 0,
    independent: bool = True,
) -> tuple[bool, TableShape]:
    """Whether to be dense, and the table that a draw must fit; arguments as of _tail_bound.

    Where the numbers of neighbors of different nodes are (nearly) independent, the overflow
    takes six standard deviations more nodes than are expected in it: no draw is left out for it.
    """
    bound = _tail_bound(groups, nodes, max_degree, offset)
    table = TableShape(bound, bound, 0)
    if independent:
        beyond = np.arange(bound) - offset
        mean = sum(
            size * np.where(beyond < 0, 1.0, scipy.special.pdtrc(np.maximum(beyond, 0), rate))
            for size, rate in groups
        )
        above = np.minimum(np.ceil(mean + 6.0 * np.sqrt(mean) + 6.0), nodes)
        table = neighbor_tables.split(nodes, bound, above)
    dense = neighbor_tables.is_dense(form, nodes, table.cost(nodes))
    return dense, _any_degree(nodes) if dense and max_degree is None else table


def _check_static(name: str, value: object) -> None:
    if not checks.is_concrete(value):
        raise TypeError(
            f"{name} decides shapes and must be a plain number, got a traced value; close over "
            "it, or make it a structural axis of the study rather than a swept number."
        )


@checked
def random_connected(
    key: Key[Array, ""],
    nodes: int,
    mean_degree: float,
    *,
    form: str = "auto",
    max_degree: int | None = None,
) -> Graph:
    """A random connected graph with exactly ``E = round(K * mean_degree / 2)`` edges.

    A spanning tree, drawn uniformly among the ``K^(K-2)`` labeled trees, plus ``E - K + 1`` further
    edges drawn uniformly without replacement among the remaining pairs. The tree is Aldous' random
    walk on the complete graph: node ``i`` is joined to node ``min(i - 1, U_i)``, ``U_i`` uniform,
    and the nodes are relabeled by a random permutation. Compared with the uniform distribution on
    connected graphs, this favors graphs with many spanning trees.

    Large networks are drawn in ``O(E log E)`` time and ``O(E)`` memory. Traceable, and under
    ``vmap`` every key has its own topology, all with the same shapes.

    Args:
        key: random key, consumed.
        nodes: number of nodes ``K >= 2``.
        mean_degree: average number of neighbors, in ``[2 (K-1) / K, K - 1]`` up to rounding of
            the number of edges.
        form: ``"auto"``, ``"dense"`` or ``"padded"``; the same key gives the same graph unless
            ``max_degree`` makes the difference.
        max_degree: bound on the number of neighbors of a node, which is the width of the padded
            form. A graph beyond it is redrawn as a whole, so the distribution is the one above
            conditioned on the bound. By default there is none for the dense form, and for the
            padded form one that holds with probability above 0.999 (e.g. 13 for ``K = 1000`` and
            three neighbors on average).

    Raises:
        ValueError: too few or too many edges for a connected simple graph, or a bound that most
            draws would exceed.

    Example:
      >>> import jax, fljax as fl
      >>> graph = fl.graphs.random_connected(jax.random.key(0), nodes=20, mean_degree=3)
      >>> len(graph.edge_list()), len(set(graph.components().tolist()))  # 20 * 3 / 2; connected
      (30, 1)

    Reference: Aldous, The random walk construction of uniform spanning trees and uniform
    labeled trees (1990), Algorithm 2.
    """
    neighbor_tables.check_nodes(nodes)
    _check_static("mean_degree", mean_degree)
    checks.interval("mean_degree", mean_degree)
    edges = round(nodes * float(mean_degree) / 2)
    most = nodes * (nodes - 1) // 2
    if not nodes - 1 <= edges <= most:
        raise ValueError(
            f"mean_degree={mean_degree:g} means {edges} edges, but a connected simple graph of "
            f"{nodes} nodes has {nodes - 1} to {most}; choose mean_degree in "
            f"[{2 * (nodes - 1) / nodes:g}, {nodes - 1}]."
        )
    dense, table = _layout(form, nodes, [(nodes, 2 * edges / nodes - 1)], max_degree, offset=1)
    extra = edges - nodes + 1
    spare = most - nodes + 1
    ranked = nodes <= neighbor_tables.DENSE_BELOW or 2 * extra > spare
    sampler = _sample_ranked if ranked else _sample_tree_plus
    return _generate(
        key, None, sampler=sampler, structure=(edges,), nodes=nodes, dense=dense, table=table
    )


def _uniform_tree(key: Array, nodes: int) -> tuple[Array, Array]:
    k_parent, k_label = jax.random.split(key)
    child = jnp.arange(1, nodes, dtype=np.int32)
    parent = jnp.minimum(child - 1, jax.random.randint(k_parent, child.shape, 0, nodes, np.int32))
    label = jax.random.permutation(k_label, jnp.arange(nodes, dtype=np.int32))
    return label[child], label[parent]


def _sample_tree_plus(key: Array, numbers: object, nodes: int, edges: int) -> _Edges:
    """Tree edges, which stay, then free edges redrawn until distinct: ``O(E)`` memory."""
    del numbers
    k_tree, k_first, k_distinct = jax.random.split(key, 3)
    near, far = _uniform_tree(k_tree, nodes)

    def draw(key: Array) -> tuple[Array, Array]:
        k_near, k_far = jax.random.split(key)
        senders = jax.random.randint(k_near, (edges,), 0, nodes, np.int32)
        return senders, _other_node(k_far, senders, nodes)

    senders, receivers = draw(k_first)
    senders = senders.at[: nodes - 1].set(near)
    receivers = receivers.at[: nodes - 1].set(far)
    free = jnp.arange(edges) >= nodes - 1
    drawn = _Edges(senders, receivers, jnp.ones(edges, bool), jnp.asarray(True))
    return _distinct(k_distinct, drawn, free, draw, nodes)


def _sample_ranked(key: Array, numbers: object, nodes: int, edges: int) -> _Edges:
    """The same law by ranking all pairs at random, tree edges first: ``O(K^2)`` memory."""
    del numbers
    k_tree, k_rank = jax.random.split(key)
    near, far = _uniform_tree(k_tree, nodes)
    low, high = (index.astype(np.int32) for index in np.triu_indices(nodes, 1))
    row = jnp.minimum(near, far)
    column = jnp.maximum(near, far)
    position = row * nodes - row * (row + 1) // 2 + column - row - 1
    rank = jax.random.uniform(k_rank, low.shape).at[position].set(2.0)
    _, chosen = jax.lax.top_k(rank, edges)
    return _Edges(
        jnp.asarray(low)[chosen],
        jnp.asarray(high)[chosen],
        jnp.ones(edges, bool),
        jnp.asarray(True),
    )


@checked
def erdos_renyi(
    key: Key[Array, ""],
    nodes: int,
    probability: Float[Array, ""] | float,
    *,
    form: str = "auto",
    max_degree: int | None = None,
) -> Graph:
    """Every pair of nodes joined independently with the same probability; may be disconnected.

    Large sparse networks are drawn in ``O(E log E)``: a binomial number of edges, then that many
    distinct pairs.

    Args:
        key: random key, consumed.
        nodes: number of nodes ``K``.
        probability: in ``[0, 1]``; if traced, the graph is dense.
        form: as in :func:`random_connected`.
        max_degree: as in :func:`random_connected`.

    Raises:
        ValueError: a probability outside ``[0, 1]``, or a bound that most draws would exceed.
        TypeError: a traced probability with the padded form.

    Example:
      >>> import jax, fljax as fl
      >>> graph = fl.graphs.erdos_renyi(jax.random.key(0), nodes=50, probability=0.2)
      >>> 180 < len(graph.edge_list()) < 310  # 245 in the mean
      True

    Reference: Gilbert, Random graphs (1959).
    """
    neighbor_tables.check_nodes(nodes)
    checks.interval("probability", probability, at_least=0.0, at_most=1.0)
    return _blocks(key, (nodes,), probability, form, max_degree)


@checked
def stochastic_block_model(
    key: Key[Array, ""],
    sizes: Sequence[int],
    probabilities: Any,
    *,
    form: str = "auto",
    max_degree: int | None = None,
) -> Graph:
    """Groups of nodes, joined with a probability that depends on the two groups.

    Args:
        key: random key, consumed.
        sizes: number of nodes of each of the ``Q`` groups; group 0 comes first.
        probabilities: symmetric ``[Q, Q]`` in ``[0, 1]``; if traced, the graph is dense.
        form: as in :func:`random_connected`.
        max_degree: as in :func:`random_connected`.

    Raises:
        ValueError: empty groups, a matrix of the wrong shape, asymmetric or outside ``[0, 1]``.

    Example:
      >>> import jax, fljax as fl
      >>> groups = fl.graphs.stochastic_block_model(
      ...     jax.random.key(0), sizes=[3, 3], probabilities=[[1.0, 0.0], [0.0, 1.0]]
      ... )
      >>> groups.edge_list()
      [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)]

    Reference: Holland, Laskey and Leinhardt, Stochastic blockmodels: first steps (1983).
    """
    sizes = tuple(sizes)
    for index, size in enumerate(sizes):
        checks.count(f"sizes[{index}]", size)
    neighbor_tables.check_nodes(sum(sizes))
    probabilities = checks.array("probabilities", probabilities)
    if np.shape(probabilities) != (len(sizes), len(sizes)):
        raise ValueError(
            f"probabilities must have shape ({len(sizes)}, {len(sizes)}), one row per group, got "
            f"shape {np.shape(probabilities)}."
        )
    checks.interval("probabilities", probabilities, at_least=0.0, at_most=1.0)
    checks.check_when_concrete(_check_mirrored, probabilities)
    return _blocks(key, sizes, probabilities, form, max_degree)


def _check_mirrored(probabilities: object) -> None:
    table = np.asarray(probabilities, np.float64)
    if not np.allclose(table, table.T, rtol=1e-6):
        raise ValueError(
            "probabilities is asymmetric: groups a, b need the same probability as b, a; "
            "use (P + P.T) / 2."
        )


def _blocks(
    key: Array, sizes: tuple[int, ...], probabilities: object, form: str, max_degree: int | None
) -> Graph:
    """A stochastic block model; large sparse ones are sampled by edges instead of by all pairs."""
    nodes = sum(sizes)
    blocks = len(sizes)
    numbers = jnp.asarray(probabilities).astype(float_dtype()).reshape(blocks, blocks)
    if not checks.is_concrete(probabilities):
        if form == "padded" or max_degree is not None:
            raise TypeError(
                "a traced probability leaves the number of neighbors open; use form='dense' "
                "without max_degree, or a plain number."
            )
        return _generate(
            key,
            numbers,
            sampler=_sample_block_matrix,
            structure=(sizes,),
            nodes=nodes,
            dense=True,
            table=_any_degree(nodes),
        )
    chances = np.asarray(probabilities, np.float64).reshape(blocks, blocks)
    means = chances @ np.asarray(sizes, np.float64) - np.diagonal(chances)
    groups = list(zip(sizes, means.tolist(), strict=True))
    dense, table = _layout(form, nodes, groups, max_degree)
    sampler = _sample_block_matrix
    structure = (sizes,)
    if nodes >= neighbor_tables.DENSE_BELOW and chances.max() <= 0.25:
        sampler = _sample_block_edges
        structure = (sizes, _block_caps(sizes, chances))
    return _generate(
        key,
        numbers,
        sampler=sampler,
        structure=structure,
        nodes=nodes,
        dense=dense,
        table=table,
    )


def _block_pairs(sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """For groups ``a <= b`` the triple ``(a, b, number of node pairs)``."""
    return [
        (a, b, sizes[a] * (sizes[a] - 1) // 2 if a == b else sizes[a] * sizes[b])
        for a in range(len(sizes))
        for b in range(a, len(sizes))
    ]


def _block_caps(sizes: tuple[int, ...], table: np.ndarray) -> tuple[int, ...]:
    """Length of the edge list of every pair of groups: eight deviations above the mean."""
    means = [(pairs, pairs * float(table[a, b])) for a, b, pairs in _block_pairs(sizes)]
    return tuple(min(pairs, math.ceil(m + 8.0 * math.sqrt(m) + 8.0)) for pairs, m in means)


def _sample_block_matrix(key: Array, table: Array, nodes: int, sizes: tuple[int, ...]) -> Array:
    group = np.repeat(np.arange(len(sizes)), sizes)
    chance = table[group[:, None], group[None, :]]
    upper = jnp.triu(jax.random.bernoulli(key, chance), 1)
    return upper | upper.T


def _sample_block_edges(
    key: Array, table: Array, nodes: int, sizes: tuple[int, ...], caps: tuple[int, ...]
) -> _Edges:
    """Sample binomial numbers of edges between groups, then distinct pairs for them."""
    k_count, k_first, k_distinct = jax.random.split(key, 3)
    a, b, pairs = np.asarray(_block_pairs(sizes)).T
    counts = jax.random.binomial(
        k_count, jnp.asarray(pairs, table.dtype), table[a, b], dtype=table.dtype
    ).astype(np.int32)
    limit = np.asarray(caps, np.int32)
    block = np.repeat(np.arange(len(caps)), caps)  # of every entry of the edge list
    within = np.concatenate([np.arange(cap) for cap in caps]).astype(np.int32)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    lengths = np.asarray(sizes)
    same = (a == b)[block]
    size_near = lengths[a][block].astype(np.int32)
    size_far = (lengths[b][block] - same).astype(np.int32)
    start_near, start_far = (first[g][block].astype(np.int32) for g in (a, b))

    def draw(key: Array) -> tuple[Array, Array]:
        k_near, k_far = jax.random.split(key)
        near = jax.random.randint(k_near, block.shape, 0, size_near, np.int32)
        # A group of one node has no pair inside; its entries are never valid.
        far = jax.random.randint(k_far, block.shape, 0, np.maximum(size_far, 1), np.int32)
        far = far + (same & (far >= near)).astype(np.int32)
        return near + jnp.asarray(start_near), far + jnp.asarray(start_far)

    senders, receivers = draw(k_first)
    valid = jnp.asarray(within) < counts[block]
    drawn = _Edges(senders, receivers, valid, jnp.all(counts <= limit))
    return _distinct(k_distinct, drawn, jnp.ones(block.shape, bool), draw, nodes)


@checked
def random_geometric(
    key: Key[Array, ""],
    nodes: int,
    radius: Float[Array, ""] | float,
    *,
    form: str = "auto",
    max_degree: int | None = None,
) -> Graph:
    """Nodes uniform in the unit square, joined if no further apart than ``radius``.

    Large networks are drawn in ``O(K^2 radius)``: nodes are sorted along one axis and each is
    compared only with nearby nodes on it. May be disconnected; the connectivity threshold is about
    ``sqrt(log K / (pi K))``.

    Args:
        key: random key, consumed.
        nodes: number of nodes ``K``.
        radius: positive, in units of the side of the square; if traced, the graph is dense.
        form: as in :func:`random_connected`.
        max_degree: as in :func:`random_connected`.

    Raises:
        ValueError: a radius that is not positive, or a bound that most draws would exceed.
        TypeError: a traced radius with the padded form.

    Example:
      >>> import jax, fljax as fl
      >>> near = fl.graphs.random_geometric(jax.random.key(0), nodes=20, radius=0.2)
      >>> far = fl.graphs.random_geometric(jax.random.key(0), nodes=20, radius=0.4)
      >>> set(near.edge_list()) < set(far.edge_list())  # the same nodes, with a larger radius
      True

    Reference: Penrose, Random Geometric Graphs (2003).
    """
    neighbor_tables.check_nodes(nodes)
    checks.positive("radius", radius)
    numbers = jnp.asarray(radius).astype(float_dtype())
    sampler = _sample_near_matrix
    structure = ()
    dense = True
    table = _any_degree(nodes)
    if checks.is_concrete(radius):
        area = min(1.0, math.pi * min(float(radius), 1.0) ** 2)
        groups = [(nodes, (nodes - 1) * area)]
        dense, table = _layout(form, nodes, groups, max_degree, independent=False)
        window = _tail_bound([(nodes, nodes * min(1.0, float(radius)))], nodes, None)
        if nodes >= neighbor_tables.DENSE_BELOW and 4 * window < nodes:
            reach = _tail_bound(groups, nodes, None)
            sampler = _sample_near_edges
            structure = (window, nodes * reach // 2)
    elif form == "padded" or max_degree is not None:
        raise TypeError(
            "a traced radius leaves the number of neighbors open; use form='dense' without "
            "max_degree, or a plain number."
        )
    return _generate(
        key, numbers, sampler=sampler, structure=structure, nodes=nodes, dense=dense, table=table
    )


def _sample_near_matrix(key: Array, radius: Array, nodes: int) -> Array:
    positions = jax.random.uniform(key, (nodes, 2))
    squared = jnp.sum((positions[:, None, :] - positions[None, :, :]) ** 2, axis=-1)
    return (squared <= radius**2) & ~jnp.eye(nodes, dtype=bool)


def _sample_near_edges(key: Array, radius: Array, nodes: int, window: int, cap: int) -> _Edges:
    """Pairs closer than a radius, sought in a window of nodes sorted by one coordinate."""
    positions = jax.random.uniform(key, (nodes, 2))
    order = jnp.argsort(positions[:, 0]).astype(np.int32)
    positions = positions[order]
    rows = np.arange(nodes, dtype=np.int32)[:, None]
    candidates = rows + np.arange(1, window + 2, dtype=np.int32)[None, :]
    inside = candidates < nodes
    candidates = np.minimum(candidates, nodes - 1)
    offset = positions[candidates] - positions[:, None, :]
    near = inside & (jnp.sum(offset**2, axis=-1) <= radius**2)
    # The last column is only looked at to see that nothing lies beyond the window.
    short = jnp.any(inside[:, -1] & (offset[:, -1, 0] <= radius))
    near = near[:, :-1].ravel()
    (flat,) = jnp.nonzero(near, size=cap, fill_value=0)
    total = jnp.sum(near, dtype=np.int32)
    row = flat // window
    return _Edges(
        order[row],
        order[jnp.minimum(row + flat % window + 1, nodes - 1)],
        jnp.arange(cap, dtype=np.int32) < total,
        ~short & (total <= cap),
    )


@checked
def k_regular(key: Key[Array, ""], nodes: int, degree: int, *, form: str = "auto") -> Graph:
    """A random connected graph in which every node has the same number of neighbors.

    Half-edges are paired at random; pairs that are loops or repeated are switched with randomly
    chosen ones until none is left, and the whole is redrawn until connected. The distribution is
    close to, but not exactly, uniform. Degree two is a ring under a random relabeling, and above
    half of the nodes the complement is drawn.

    Args:
        key: random key, consumed.
        nodes: number of nodes ``K``.
        degree: number of neighbors, in ``[2, K - 1]`` (or 1 for two nodes), ``K * degree`` even.
        form: as in :func:`random_connected`.

    Raises:
        ValueError: a degree out of range, or an odd ``K * degree``.

    Example:
      >>> import jax, fljax as fl
      >>> graph = fl.graphs.k_regular(jax.random.key(0), nodes=6, degree=3)
      >>> graph.degree.tolist()
      [3.0, 3.0, 3.0, 3.0, 3.0, 3.0]

    Reference: McKay and Wormald, Uniform generation of random regular graphs of moderate degree
    (1990), for switching away loops and repeated edges.
    """
    neighbor_tables.check_nodes(nodes)
    checks.count("degree", degree)
    if degree > nodes - 1 or (degree == 1 and nodes > 2):
        raise ValueError(
            f"degree must be in [{min(2, nodes - 1)}, {nodes - 1}] for a connected simple graph "
            f"of {nodes} nodes, got {degree}."
        )
    if nodes * degree % 2:
        raise ValueError(
            f"nodes * degree must be even, got {nodes} * {degree} = {nodes * degree}; "
            "change one of them by one."
        )
    dense = neighbor_tables.is_dense(form, nodes, degree)
    sampler = _sample_ring if degree == 2 else _sample_pairing
    if 2 * degree > nodes - 1 and degree != 2:
        sampler = _sample_pairing_complement
    return _generate(
        key,
        None,
        sampler=sampler,
        structure=(degree,),
        nodes=nodes,
        dense=dense,
        table=TableShape(degree, degree, 0),
        connected=True,
    )


def _sample_ring(key: Array, numbers: object, nodes: int, degree: int) -> _Edges:
    del numbers, degree
    order = jax.random.permutation(key, jnp.arange(nodes, dtype=np.int32))
    return _Edges(order, jnp.roll(order, -1), jnp.ones(nodes, bool), jnp.asarray(True))


def _sample_pairing(key: Array, numbers: object, nodes: int, degree: int) -> _Edges:
    """Pair half-edges at random and exchange ends until no pair is a loop or repeated."""
    del numbers
    count = nodes * degree // 2
    index = jnp.arange(count, dtype=np.int32)
    stubs = jnp.repeat(jnp.arange(nodes, dtype=np.int32), degree)

    def bad_pairs(near: Array, far: Array) -> Array:
        low = jnp.minimum(near, far)
        high = jnp.maximum(near, far)
        low, high, order = jax.lax.sort((low, high, index), num_keys=2)
        again = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        again = jnp.concatenate([jnp.zeros(1, bool), again])
        return jnp.zeros(count, bool).at[order].set(again) | (near == far)

    def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        step, near, far, bad = state
        keys = jax.random.split(jax.random.fold_in(key, step), 4)
        # One bad pair a-b and any pair c-d, in random direction, become a-d and c-b. Keeping a
        # change that does not help, once in a hundred, leaves no configuration a trap.
        first = jnp.argmax(jnp.where(bad, jax.random.uniform(keys[0], (count,), np.float32), -1.0))
        second = jax.random.randint(keys[1], (), 0, count)
        flip = jax.random.bernoulli(keys[2])
        new_near = near.at[second].set(jnp.where(flip, far[second], near[second]))
        other = jnp.where(flip, near[second], far[second])
        new_far = far.at[second].set(far[first]).at[first].set(other)
        new_bad = bad_pairs(new_near, new_far)
        better = jnp.sum(new_bad) <= jnp.sum(bad)
        # A pair cannot be exchanged with itself.
        keep = (first != second) & (better | jax.random.bernoulli(keys[3], 0.01))
        near = jnp.where(keep, new_near, near)
        far = jnp.where(keep, new_far, far)
        return step + 1, near, far, jnp.where(keep, new_bad, bad)

    near, far = jax.random.permutation(jax.random.fold_in(key, 0), stubs).reshape(2, count)
    start = (jnp.ones((), np.int32), near, far, bad_pairs(near, far))
    _, near, far, _ = jax.lax.while_loop(lambda state: jnp.any(state[3]), body, start)
    return _Edges(near, far, jnp.ones(count, bool), jnp.asarray(True))


def _sample_pairing_complement(key: Array, numbers: object, nodes: int, degree: int) -> Array:
    absent = jnp.eye(nodes, dtype=bool)
    if degree < nodes - 1:
        drawn = _sample_pairing(key, numbers, nodes, nodes - 1 - degree)
        absent = absent.at[drawn.senders, drawn.receivers].set(True)
        absent = absent.at[drawn.receivers, drawn.senders].set(True)
    return ~absent


@checked
def small_world(
    key: Key[Array, ""],
    nodes: int,
    degree: int,
    rewire: Float[Array, ""] | float,
    *,
    form: str = "auto",
    max_degree: int | None = None,
) -> Graph:
    """A ring lattice with some of its edges rewired: short paths and high clustering.

    Every node is joined to its ``degree / 2`` successors on a ring; the far end of every edge is
    moved, with probability ``rewire``, to a uniformly chosen node, such that edges stay distinct
    and free of loops. Exactly ``K * degree / 2`` edges. Edges are rewired all together, not in turn
    as in the original, so an edge may take the place of another that was moved. May be disconnected
    (rarely, for ``degree >= 4``).

    Args:
        key: random key, consumed.
        nodes: number of nodes ``K``.
        degree: mean number of neighbors, even, in ``[2, K / 2]`` so that rewiring finds room.
        rewire: probability in ``[0, 1]``, may be traced.
        form: as in :func:`random_connected`.
        max_degree: as in :func:`random_connected`.

    Raises:
        ValueError: an odd degree or one out of range, a probability outside ``[0, 1]``.

    Example:
      >>> import jax, fljax as fl
      >>> graph = fl.graphs.small_world(jax.random.key(0), nodes=20, degree=4, rewire=0.1)
      >>> len(graph.edge_list())  # K * degree / 2, for any share of rewired edges
      40

    Reference: Watts and Strogatz, Collective dynamics of 'small-world' networks (1998).
    """
    neighbor_tables.check_nodes(nodes, 4, "a small world")
    checks.count("degree", degree, at_least=2)
    if degree % 2 or degree > nodes // 2:
        raise ValueError(
            f"degree must be even and at most nodes // 2 = {nodes // 2}, got {degree}; every "
            "node is joined to degree / 2 nodes on either side."
        )
    checks.interval("rewire", rewire, at_least=0.0, at_most=1.0)
    half = degree // 2
    dense, table = _layout(form, nodes, [(nodes, float(half))], max_degree, offset=half)
    return _generate(
        key,
        jnp.asarray(rewire).astype(float_dtype()),
        sampler=_sample_small_world,
        structure=(degree,),
        nodes=nodes,
        dense=dense,
        table=table,
    )


def _sample_small_world(key: Array, rewire: Array, nodes: int, degree: int) -> _Edges:
    k_free, k_first, k_distinct = jax.random.split(key, 3)
    senders = jnp.repeat(jnp.arange(nodes, dtype=np.int32), degree // 2)
    offsets = jnp.tile(jnp.arange(1, degree // 2 + 1, dtype=np.int32), nodes)
    free = jax.random.bernoulli(k_free, rewire, senders.shape)

    def draw(key: Array) -> tuple[Array, Array]:
        return senders, _other_node(key, senders, nodes)

    receivers = jnp.where(free, draw(k_first)[1], (senders + offsets) % nodes)
    drawn = _Edges(senders, receivers, jnp.ones(senders.shape, bool), jnp.asarray(True))
    return _distinct(k_distinct, drawn, free, draw, nodes)
