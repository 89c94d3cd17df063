"""Networks that change in every round: a schedule of graphs, or a random process."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array

from fljax._core import checks
from fljax._core.module import float_dtype, module, static
from fljax.graphs import neighbor_tables, spectra
from fljax.graphs.undirected import Graph, of_entries

if TYPE_CHECKING:
    import scipy.sparse

#: Entries of a matrix and of its transpose that differ by less are equal.
SYMMETRY_TOLERANCE = 1e-9


class Varying:
    """A graph for every round; subclass it to define your own process.

    Attributes:
      first: a graph with the same nodes and shapes, used before the first round.
      directed: whether some node may receive from a node that does not receive from it; the rows of
        a round's graph then belong to receivers.

    Example:
      A ring and a star in turn:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class InTurn(fl.graphs.Varying):
      ...     ring: fl.graphs.Graph
      ...     star: fl.graphs.Graph
      ...     @property
      ...     def first(self):
      ...         return self.ring
      ...     def at(self, key, round):
      ...         return jax.lax.cond(round % 2 == 1, lambda: self.ring, lambda: self.star)
      >>> network = InTurn(fl.graphs.ring(4), fl.graphs.star(4))
      >>> network.at(jax.random.key(0), jnp.asarray(2)).degree.tolist()
      [3.0, 1.0, 1.0, 1.0]
    """

    first: Graph
    directed: bool = False

    @property
    def nodes(self) -> int:
        """The number of nodes ``K``."""
        return self.first.nodes

    def check(self, rounds: int) -> None:
        """Raise ``ValueError`` unless there are graphs for a run of this length."""

    @checks.required
    def at(self, key: Array, round: Array) -> Graph:
        """The graph of a round; ``key`` is that of this round and consumed."""
        raise NotImplementedError

    def single_table(self) -> "Varying":
        """The same network, with graphs without overflow."""
        return self

    def require_connected(self) -> "Varying":
        """The network itself: graphs of single rounds may be disconnected."""
        return self


@module
class GraphSchedule(Varying):
    """Graphs used one after the other, cyclically.

    Args:
      graphs: graphs of the same nodes, in dense form.

    Raises:
      ValueError: no graph, or graphs of different sizes.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.GraphSchedule([fl.graphs.ring(4), fl.graphs.star(4)]).nodes
      4
    """

    graphs: Any  # a sequence of graphs, stacked once constructed

    def validate(self) -> None:
        is_numbers = isinstance(self.graphs, jax.Array | np.ndarray | range)
        if not isinstance(self.graphs, Iterable) or is_numbers:
            raise TypeError(
                "graphs must be a list of graphs, one for each round, got "
                f"{checks.shown(self.graphs)}; for a graph that does not change, give the graph "
                "itself."
            )
        graphs = list(self.graphs)
        for graph in graphs:
            checks.kind("graphs", graph, Graph)
        sizes = sorted({graph.nodes for graph in graphs})
        if len(sizes) != 1:
            raise ValueError(
                f"graphs must be at least one, all of the same nodes, got {len(graphs)} of sizes "
                f"{sizes}."
            )
        graphs = [graph.as_form("dense") for graph in graphs]
        object.__setattr__(self, "graphs", jax.tree.map(lambda *a: jnp.stack(a), *graphs))

    @property
    def first(self) -> Graph:  # pyright: ignore[reportIncompatibleVariableOverride]
        return jax.tree.map(lambda a: a[0], self.graphs)

    def at(self, key: Array, round: Array) -> Graph:
        index = (round - 1) % np.shape(self.graphs.degree)[0]
        return jax.tree.map(lambda a: jnp.asarray(a)[index], self.graphs)


@module
class MixingSchedule(Varying):
    r"""Mixing matrices used one after the other, cyclically.

    The weights of the edges of a round are the entries of its matrix :math:`W` off the diagonal, so
    that the rule ``Mixing("laplacian", step=1.0)`` gives :math:`W` itself. Other rules make other
    matrices of the same edges. :func:`base_graphs` and :func:`one_peer_exponential` are such
    schedules.

    Args:
      matrices: ``[T, K, K]``, or a list of ``[K, K]``, dense or of SciPy's sparse kinds: doubly
        stochastic, ``w_kl`` being the weight that node ``k`` gives to the message of ``l``. They
        are stored as graphs, as tables of neighbors where there are many nodes.
      directed: whether matrices may be asymmetric. Every node must then send to as many nodes as
        it receives from, and only algorithms that support directed networks run on it.

    Raises:
      ValueError: no matrix; matrices of different sizes, with negative entries, with a row or a
        column that does not sum to one, or that are asymmetric without ``directed=True``.

    Example:
      >>> import numpy as np, fljax as fl
      >>> first = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
      >>> network = fl.graphs.MixingSchedule([first, first[::-1, ::-1]])
      >>> network.rounds, network.nodes
      (2, 3)
    """

    matrices: Any  # a sequence of matrices, graphs in stacked form once constructed
    directed: bool = static(default=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    def validate(self) -> None:
        checks.switch("directed", self.directed)
        matrices = _as_sparse(self.matrices)
        for number, matrix in enumerate(matrices):
            _check_mixing_matrix(f"matrix {number}", matrix, self.directed)
        without_diagonal = []
        for matrix in matrices:
            arcs = matrix.copy()
            arcs.setdiag(0)
            arcs.eliminate_zeros()
            without_diagonal.append(arcs)
        # One width of the table for all rounds, whose graphs are stacked.
        width = max(1, *(int(np.diff(arcs.indptr).max()) for arcs in without_diagonal))
        graphs = [_of_arcs(arcs, width) for arcs in without_diagonal]
        stacked = jax.tree.map(
            lambda *leaves: neighbor_tables.constant(np.stack(leaves), leaves[0].dtype), *graphs
        )
        object.__setattr__(self, "matrices", stacked)

    @property
    def rounds(self) -> int:
        """The number ``T`` of matrices."""
        return np.shape(self.matrices.degree)[0]

    @property
    def first(self) -> Graph:  # pyright: ignore[reportIncompatibleVariableOverride]
        return jax.tree.map(lambda a: a[0], self.matrices)

    def at(self, key: Array, round: Array) -> Graph:
        index = (round - 1) % self.rounds
        return jax.tree.map(lambda a: jnp.asarray(a)[index], self.matrices)


def _as_sparse(matrices: Any) -> "list[scipy.sparse.csr_array]":
    """The matrices in SciPy's compressed rows, with sorted columns and in double precision."""
    is_list = isinstance(matrices, Iterable) and not isinstance(matrices, str | range | Mapping)
    if not is_list or getattr(matrices, "ndim", 3) != 3:
        raise TypeError(
            "matrices must be a list of mixing matrices [K, K], one for each round, got "
            f"{checks.shown(matrices)}."
        )
    converted = []
    for number, matrix in enumerate(matrices):
        if not hasattr(matrix, "tocsr"):
            matrix = np.asarray(checks.array(f"matrix {number}", checks.plain(matrix), axes=2))
        matrix = scipy.sparse.csr_array(matrix, dtype=np.float64)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        converted.append(matrix)
    shapes = sorted({matrix.shape for matrix in converted})
    if len(shapes) != 1 or shapes[0][0] != shapes[0][1]:
        raise ValueError(
            "matrices must be at least one, all of them [K, K] with the same nodes, got "
            f"{len(converted)} of shapes {shapes}."
        )
    neighbor_tables.check_nodes(shapes[0][0])
    return converted


def _check_mixing_matrix(name: str, matrix: "scipy.sparse.csr_array", directed: bool) -> None:
    """Raise ``ValueError`` unless a matrix is doubly stochastic, and symmetric if undirected."""
    checks.nonnegative(name, matrix.data)
    for axis in (1, 0):
        spectra.check_sums(name, matrix.sum(axis=axis), matrix.sum(axis=1 - axis), axis)
    if not directed and abs(matrix - matrix.T).max() > SYMMETRY_TOLERANCE:
        raise ValueError(
            f"{name} is asymmetric: some node receives from another with another weight than the "
            "reverse; pass directed=True, or symmetric matrices."
        )
    received = np.diff(matrix.indptr)
    sent = np.bincount(matrix.indices, minlength=matrix.shape[0])
    if np.any(received != sent):
        node = int(np.flatnonzero(received != sent)[0])
        raise ValueError(
            f"in {name} node {node} receives from {received[node]} nodes and sends to "
            f"{sent[node]}, itself included; the traffic is counted for equal numbers."
        )


def _of_arcs(arcs: "scipy.sparse.csr_array", width: int) -> Graph:
    """The graph of a round; its rows belong to receivers."""
    nodes = arcs.shape[0]
    near = np.repeat(np.arange(nodes), np.diff(arcs.indptr))
    entries = neighbor_tables.pack(nodes, near, arcs.indices, arcs.data, "auto", width)
    degree = neighbor_tables.constant(arcs.sum(axis=1), float_dtype())
    return of_entries(entries, degree)


@module
class DrawnGraphs(Varying):
    """A new random graph in every round, drawn inside the run.

    Args:
      draw: ``key -> Graph``, traceable, with the same shapes for every key; for instance ``lambda
        key: fl.graphs.erdos_renyi(key, nodes=20, probability=0.2)``.

    Raises:
      TypeError: the result of ``draw`` is not a graph.

    Example:
      >>> import fljax as fl
      >>> network = fl.graphs.DrawnGraphs(lambda key: fl.graphs.k_regular(key, nodes=6, degree=3))
      >>> network.nodes
      6
    """

    draw: Callable[[Array], Graph] = static()

    def validate(self) -> None:
        try:
            drawn = jax.eval_shape(self.draw, jax.random.key(0))
        except Exception as error:
            raise TypeError(
                "draw must be a function key -> Graph that can be traced, such as lambda key: "
                f"fl.graphs.k_regular(key, nodes=6, degree=3), but its call ended in an error: "
                f"{str(error).partition(chr(10))[0]}"
            ) from error
        checks.kind("what draw returns", drawn, Graph)

    @property
    def first(self) -> Graph:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.draw(jax.random.key(0))

    def at(self, key: Array, round: Array) -> Graph:
        return self.draw(key)
