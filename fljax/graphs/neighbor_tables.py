"""Tables of neighbors: storage and summation of the off-diagonal entries of a matrix over nodes.

*Dense*, a ``[K, K]`` matrix, is one matrix product per sum and is faster for small networks.
*Padded*, a ``[K, slots]`` table of neighbor identifiers and weights, costs ``K * slots`` gathers
and wins for large ones. A table as wide as the most connected node would be mostly empty, so the
few nodes that have more neighbors than slots own one further, wider row each: the
:class:`Overflow`. It is added at distinct nodes, hence the sums are the same on every device, run
after run. All shapes are static, so that every seed of a study may have its own topology. Nothing
but :class:`Entries` and what builds it knows which form is in use.

Shapes: ``K`` nodes (clients), ``S`` slots of the neighbor table, ``M`` rows of its overflow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.memory import check_fits
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST

DENSE_BELOW = 256
"""Networks with fewer nodes than this are dense unless ``form`` says otherwise.

Measured by ``experiments/benchmarks/mixing.py`` on two cores of an x86-64 CPU (jax 0.10.2, float32,
microseconds per neighborhood sum, one graph / eight graphs mapped over, mean degree 3 in tables
of 11 to 13 slots, 10 in tables of 25 to 28):

======  ======  ===============  ===============  ===============  ===============
``K``   degree  dense, D=8       padded, D=8      dense, D=32      padded, D=32
======  ======  ===============  ===============  ===============  ===============
50      3       1.3 / 7.2        1.3 / 11.6       2.6 / 11.8       1.3 / 9.6
50      10      1.2 / 8.8        1.4 / 17.9       2.5 / 11.8       3.1 / 19.9
100     3       2.7 / 13.0       2.1 / 23.3       5.2 / 37.5       2.3 / 20.5
100     10      2.1 / 19.0       6.9 / 25.1       5.3 / 38.7       8.3 / 36.7
200     3       5.3 / 41.8       5.1 / 61.5       19.8 / 133       4.3 / 48.0
200     10      6.3 / 41.6       8.6 / 48.1       16.9 / 134       14.2 / 72.9
400     3       17.6 / 153       9.1 / 60.4       55.7 / 433       15.2 / 79.1
400     10      20.1 / 156       9.8 / 91.4       54.8 / 432       23.9 / 153
800     3       60.3 / 528       15.1 / 134       164 / 1281       29.1 / 183
800     10      59.0 / 512       17.3 / 209       165 / 1296       44.6 / 363
1600    3       252 / 4015       29.3 / 193       553 / 8791       68.0 / 247
1600    10      249 / 2392       53.2 / 478       615 / 7849       85.7 / 674
3200    3       823 / 16653      52.2 / 384       2083 / 28243     104 / 806
3200    10      816 / 13025      71.8 / 881       2147 / 26885     216 / 1419
======  ======  ===============  ===============  ===============  ===============

Up to 200 nodes neither form wins throughout; from 400 on the table always does. These tables were
as wide as their most connected node. Split ones (:class:`Overflow`), measured beside them on a
loaded machine, take 0.41 to 0.99 of the time for 300 to 3200 nodes and 0.39 to 0.53 of it for 20
thousand to a million nodes of six neighbors, D=32. Segment sums over exact edge lists took four
times as long as the whole table at a hundred thousand nodes: XLA scatters on one core, row by row.
They may be non-deterministic on GPUs, too, and are not used. A GPU has not been measured.
"""

_ROW_COST = 16  # adding a row of the overflow to its node costs about as much as this many slots
_SPLIT_GAIN = 0.8  # a table is split if that leaves at most this share of its cost
_TABLE_GAIN = 8  # a gathered neighbor costs about as much as this many entries of a dense row
_NODES_PER_BATCH = 64  # nodes whose neighbors' rows are in memory together
_UNROLLED_SLOTS = 64  # up to here one fused multiply-add per slot, above one contraction

DISTINCT: Mapping[str, Any] = {"mode": "drop", "indices_are_sorted": True, "unique_indices": True}
_FORMS = ("auto", "dense", "padded")


class Overflow(NamedTuple):
    """The rest of a neighbor table, for nodes with more neighbors than it has slots.

    Rows are in the order of their nodes. Spare ones name nodes beyond the last and are dropped.
    """

    nodes: Int[Array, " rows"]  # [M]     whose row it is, all distinct
    neighbors: Int[Array, "rows slots"]  # [M, S'] empty slots have weight zero
    weights: Float[Array, "rows slots"]  # [M, S']


class TablePart(NamedTuple):
    """Some of the entries: for every row its node and that node's neighbors."""

    nodes: Array  # [R]
    neighbors: Array | None  # [R, S], or None: all nodes in turn
    weights: Array  # [R, S]

    def of_neighbors(self, values: Array) -> Array:
        """``values[l]`` for every stored pair ``(k, l)``, broadcastable to the weights."""
        return values[None, :] if self.neighbors is None else values[self.neighbors]

    def distances(self, rows: Array, own: Array | None = None, at: Array | None = None) -> Array:
        """``|rows_k - rows_l|`` of every stored pair, as the weights, without ``[R, S, D]``.

        Args:
            rows: ``[K, D]``, or more rows if ``at`` is given.
            own: ``[K, D]``, instead of ``rows_k``.
            at: where the neighbors' rows are, as the weights; with the neighbors by default.
        """
        rows = jnp.asarray(rows)
        own = rows if own is None else own
        if at is None:
            everyone = jnp.arange(len(rows), dtype=np.int32)
            at = jnp.broadcast_to(self.of_neighbors(everyone), self.weights.shape)

        def of_one(row: tuple[Array, Array]) -> Array:
            node, senders = row
            return jnp.sqrt(jnp.sum((own[node][None] - rows[senders]) ** 2, axis=1))

        # A spare row of the overflow is of a node beyond the last, and read as another's.
        nodes = jnp.minimum(self.nodes, len(own) - 1)
        return jax.lax.map(of_one, (nodes, at), batch_size=_NODES_PER_BATCH)


class Entries(NamedTuple):
    """Coefficients ``c_kl``, ``k != l``, in one of the two forms.

    Row ``k`` belongs to the receiver ``k``; its entries are the weights of each sender ``l``.
    """

    nodes: int
    matrix: Array | None  # [K, K] dense form
    neighbors: Array | None  # [K, S] padded form; an empty slot of node k holds k
    weights: Array | None  # [K, S] padded form
    overflow: Overflow | None

    @property
    def parts(self) -> list[TablePart]:
        """Where the entries are stored: the matrix, or the table and the tables of the rest."""
        everyone = jnp.arange(self.nodes, dtype=np.int32)
        if self.matrix is not None:
            return [TablePart(everyone, None, self.matrix)]
        assert self.weights is not None
        table = [TablePart(everyone, self.neighbors, self.weights)]
        return table if self.overflow is None else [*table, TablePart(*self.overflow)]

    def with_weights(self, weights: Sequence[Array]) -> "Entries":
        """The same places with other weights, one array for each of the parts."""
        return self._replace(
            matrix=weights[0] if self.neighbors is None else None,
            weights=None if self.neighbors is None else weights[0],
            overflow=None if self.overflow is None else self.overflow._replace(weights=weights[1]),
        )

    def scaled(self, factor: Callable[[Array, Array], Array]) -> "tuple[Entries, Array]":
        """``c_kl f(k, l)`` and its row sums, for an ``f`` of node numbers that broadcast."""
        parts = self.parts
        everyone = jnp.arange(self.nodes, dtype=np.int32)
        weights = [
            p.weights * factor(p.nodes[:, None], p.of_neighbors(everyone)).astype(p.weights.dtype)
            for p in parts
        ]
        return self.with_weights(weights), add_rows(parts, [jnp.sum(w, axis=1) for w in weights])

    def row_sums(self) -> Array:
        """``sum_l c_kl``, ``[K]``."""
        parts = self.parts
        return add_rows(parts, [jnp.sum(part.weights, axis=1) for part in parts])

    def slots(self) -> tuple[Array, Array]:
        """Columns and weights of one table ``[K, S + S']``, or of the whole matrix ``[K, K]``."""
        everyone = jnp.arange(self.nodes, dtype=np.int32)
        if self.matrix is not None:
            return jnp.broadcast_to(everyone[None, :], self.matrix.shape), self.matrix
        neighbors = self.neighbors
        weights = self.weights
        assert neighbors is not None
        assert weights is not None
        if self.overflow is not None:
            owners, far, more = self.overflow
            blank = jnp.zeros((self.nodes, more.shape[1]), np.int32)
            far = blank.at[owners].set(far, **DISTINCT)
            more = blank.astype(more.dtype).at[owners].set(more, **DISTINCT)
            neighbors = jnp.concatenate([neighbors, far], axis=1)
            weights = jnp.concatenate([weights, more], axis=1)
        return jnp.where(weights != 0, neighbors, everyone[:, None]), weights

    def arcs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, columns and values of the nonzero entries, as NumPy arrays (concrete only)."""
        with jax.ensure_compile_time_eval():
            parts = [jax.tree.map(np.asarray, part) for part in self.parts]
        arcs = []
        for near, far, values in parts:
            if far is None:
                far = np.arange(self.nodes)[None, :]
            rows, columns = np.nonzero(values)
            far = np.broadcast_to(far, values.shape)[rows, columns]
            arcs.append((near[rows], far, values[rows, columns]))
        near, far, values = zip(*arcs, strict=True)
        return np.concatenate(near), np.concatenate(far), np.concatenate(values)

    def dense(self) -> Array:
        """``[K, K]``."""
        if self.matrix is not None:
            return self.matrix
        parts = self.parts
        matrix = jnp.zeros((self.nodes, self.nodes), parts[0].weights.dtype)
        for part in parts:
            matrix = matrix.at[part.nodes[:, None], part.neighbors].add(part.weights, mode="drop")
        return matrix

    def sum(self, x: Array) -> Array:
        """``y_k = sum_l c_kl x_l`` for ``x`` of shape ``[K, ...]``."""
        coefficients = self.weights if self.matrix is None else self.matrix
        assert coefficients is not None
        x = jnp.asarray(x)
        if x.ndim == 0 or x.shape[0] != self.nodes:
            raise ValueError(
                f"x must have one row per node, shape [{self.nodes}, ...], got shape {x.shape}; "
                "move the node axis to the front."
            )
        # The values decide the precision of the result: a float32 model stays float32.
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else coefficients.dtype
        rows = x.astype(dtype).reshape(self.nodes, -1)
        if self.neighbors is None:
            total = jnp.matmul(coefficients.astype(dtype), rows, precision=HIGHEST)
        else:
            total = gather_sum(self.neighbors, coefficients.astype(dtype), rows)
        if self.overflow is not None:
            rest = self.overflow
            more = gather_sum(rest.neighbors, rest.weights.astype(dtype), rows)
            total = total.at[rest.nodes].add(more, **DISTINCT)
        return total.reshape(x.shape)


def gather_sum(neighbors: Array, weights: Array, rows: Array) -> Array:
    """``sum_s weights[:, s] * rows[neighbors[:, s]]`` for every row of a table."""
    if neighbors.shape[1] > _UNROLLED_SLOTS:
        gathered = _take_in_bounds(rows, neighbors)
        return jnp.einsum("ks,ksd->kd", weights, gathered, precision=HIGHEST)
    # One gather per slot fuses into a running sum; [K, S, D] is never written to memory.
    total = jnp.zeros((len(neighbors), rows.shape[1]), rows.dtype)
    for slot in range(neighbors.shape[1]):
        total = total + weights[:, slot, None] * _take_in_bounds(rows, neighbors[:, slot])
    return total


def _take_in_bounds(rows: Array, index: Array) -> Array:
    """``rows[index]`` for indices known to be in range, which saves looking."""
    return rows.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def scale_rows(scale: Array, x: Array) -> Array:
    """``scale_k x_k`` for ``x`` of shape ``[K, ...]``, in the float type of ``x``."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(scale.dtype)
    return scale.astype(x.dtype).reshape((-1,) + (1,) * (x.ndim - 1)) * x


def add_rows(parts: Sequence[TablePart], values: Sequence[Array]) -> Array:
    """Sum over a node's rows: the first part has one of every node, the second of a few."""
    total = values[0]
    for part, more in zip(parts[1:], values[1:], strict=True):
        total = total.at[part.nodes].add(more, **DISTINCT)
    return total


# Building ------------------------------------------------------------------------------------


def constant(array: object, dtype: DTypeLike) -> Array:
    """A JAX array that stays concrete, hence checkable, even when made while tracing."""
    with jax.ensure_compile_time_eval():
        return jnp.asarray(np.asarray(array, dtype))


def is_dense(form: str, nodes: int, slots: float | None) -> bool:
    checks.choice("form", form, _FORMS)
    dense = form == "dense"
    if form == "auto":
        dense = nodes < DENSE_BELOW or slots is None or slots * _TABLE_GAIN > nodes
    columns, each = (nodes, 4) if dense or slots is None else (math.ceil(slots), 8)
    check_fits(
        f"a network of {nodes} nodes with {columns} entries each",
        nodes,
        columns,
        entry_bytes=each,
        mend="take fewer nodes or edges",
    )
    return dense


def check_nodes(nodes: int, at_least: int = 2, what: str = "a network") -> None:
    checks.count(
        "nodes",
        nodes,
        at_least=at_least,
        hint=f"{what} has at least {at_least} nodes; a single client has nobody to mix with.",
    )
    check_edges(nodes, nodes)


def check_edges(nodes: int, edges: int) -> None:
    """Raise ``MemoryError`` for more edges than can be listed, sorted and packed."""
    mend = "take fewer nodes or edges"
    check_fits(f"a network of {nodes} nodes and {edges} edges", edges, entry_bytes=100, mend=mend)


def check_max_degree(max_degree: int | None) -> None:
    if max_degree is not None:
        checks.count("max_degree", max_degree)


def pair_codes(pairs: np.ndarray, nodes: int) -> np.ndarray:
    """One integer per pair of nodes, in lexicographic order."""
    return pairs[:, 0].astype(np.int64) * nodes + pairs[:, 1]


class TableShape(NamedTuple):
    """The shape of a neighbor table."""

    bound: int  # neighbors that a node has at most
    slots: int  # of them in the table; the rest overflow
    rows: int  # of the overflow

    def cost(self, nodes: int) -> float:
        """Slots visited per node and sum."""
        return self.slots + self.rows * (self.bound - self.slots + _ROW_COST) / nodes


def split(nodes: int, bound: int, above: np.ndarray) -> TableShape:
    """The cheapest table where ``above[s]`` nodes have more than ``s`` neighbors."""
    tables = [TableShape(bound, slots, int(above[slots])) for slots in range(1, bound)]
    single = TableShape(bound, bound, 0)
    best = min([single, *tables], key=lambda table: table.cost(nodes))
    return best if best.cost(nodes) < _SPLIT_GAIN * bound else single


def pack(
    nodes: int,
    near: np.ndarray,
    far: np.ndarray,
    values: np.ndarray,
    form: str,
    max_degree: int | None,
) -> Entries:
    """Entries ``c[near, far] = values`` from checked NumPy arcs in lexicographic order."""
    check_max_degree(max_degree)
    counts = np.bincount(near, minlength=nodes)
    needed = max(1, int(counts.max()))
    if max_degree is not None and max_degree < needed:
        raise ValueError(
            f"max_degree={max_degree} is too small: node {int(np.argmax(counts))} has {needed} "
            f"neighbors; give at least {needed}, or leave it out."
        )
    if max_degree is None:
        above = nodes - np.cumsum(np.bincount(counts, minlength=needed))[:needed]
        table = split(nodes, needed, above)
    else:
        table = TableShape(max_degree, max_degree, 0)
    dtype = float_dtype()
    if is_dense(form, nodes, table.cost(nodes)):
        matrix = np.zeros((nodes, nodes))
        matrix[near, far] = values
        return Entries(nodes, constant(matrix, dtype), None, None, None)
    slot = np.arange(len(near)) - np.concatenate([[0], np.cumsum(counts)])[near]

    def fill(
        owners: np.ndarray, selected: np.ndarray, slots: int, first: int
    ) -> tuple[Array, Array]:
        """The table rows of ``owners`` from the chosen arcs, slot ``first`` in column zero."""
        row = np.searchsorted(owners, near[selected])
        neighbor = np.repeat(owners[:, None], slots, axis=1)
        weights = np.zeros(neighbor.shape)
        neighbor[row, slot[selected] - first] = far[selected]
        weights[row, slot[selected] - first] = values[selected]
        return constant(neighbor, np.int32), constant(weights, dtype)

    main = fill(np.arange(nodes), slot < table.slots, table.slots, 0)
    overflow = None
    if table.rows:
        crowded = np.flatnonzero(counts > table.slots)
        rest = fill(crowded, slot >= table.slots, table.bound - table.slots, table.slots)
        overflow = Overflow(constant(crowded, np.int32), *rest)
    return Entries(nodes, None, *main, overflow)


def repack(matrix: Array, nodes: int, form: str, slots: int | None) -> Entries:
    """Entries from a traced matrix, whose diagonal is zero."""
    check_max_degree(slots)
    if is_dense(form, nodes, slots):
        return Entries(nodes, matrix, None, None, None)
    if slots is None:
        raise ValueError(
            "a traced network in padded form needs max_degree, the number of slots of its table, "
            "since the number of neighbors is not known before it runs."
        )
    order = jnp.argsort(matrix <= 0, axis=1, stable=True)[:, : min(slots, nodes)]
    weights = jnp.take_along_axis(matrix, order, axis=1)
    rows = jnp.arange(nodes, dtype=np.int32)[:, None]
    table = jnp.where(weights > 0, order.astype(np.int32), rows)
    return Entries(nodes, None, table, weights, None)
