"""The undirected graph as a pytree: its linear maps, edges and connectivity."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype, module, static
from fljax.graphs import neighbor_tables, spectra
from fljax.graphs.combination import Combination, Mixing, by_rule
from fljax.graphs.display import html_of
from fljax.graphs.neighbor_tables import Overflow

if TYPE_CHECKING:
    import networkx

_EIGEN_LIMIT = 2000  # largest network whose spectrum is computed only to check a step size


@module
class Graph:
    """An undirected weighted graph without self-loops.

    With adjacency matrix ``A`` (``a_kl = a_lk >= 0``, ``a_kk = 0``) and degrees
    ``d_k = sum_l a_kl``, the Laplacian is ``L = diag(d) - A`` and the signless Laplacian
    ``diag(d) + A``. A node is never its own neighbor. Build one with the functions of this
    module rather than directly; exactly one of the two forms below is present.

    Attributes:
        nodes: number of nodes ``K``.
        adjacency: dense form, ``[K, K]``, or None.
        neighbors: padded form, ``[K, S]`` neighbor identifiers, or None. An empty slot of node
            ``k`` holds ``k`` and has weight zero.
        weights: padded form, ``[K, S]``, or None.
        degree: weighted degrees ``[K]``; the number of neighbors if all weights are one.
        overflow: padded form, the neighbors beyond the slots of the table, or None.

    Example:
      >>> import fljax as fl
      >>> graph = fl.graphs.star(4)
      >>> graph.degree.tolist(), graph.edge_list()
      ([3.0, 1.0, 1.0, 1.0], [(0, 1), (0, 2), (0, 3)])
      >>> graph.mixing("metropolis").self_weight.tolist()
      [0.25, 0.75, 0.75, 0.75]
    """

    nodes: int = static()
    adjacency: Float[Array, "nodes nodes"] | None
    neighbors: Int[Array, "nodes slots"] | None
    weights: Float[Array, "nodes slots"] | None
    degree: Float[Array, " nodes"]
    overflow: Overflow | None = None

    def validate(self) -> None:
        dense = self.adjacency is not None
        padded = self.neighbors is not None and self.weights is not None
        if dense == padded:
            raise ValueError(
                "a Graph needs either adjacency or both neighbors and weights, got "
                f"{'both forms' if dense else 'neither form whole'}; "
                "build it with fljax.graphs.from_edges or from_adjacency."
            )

    @property
    def form(self) -> str:
        """``"dense"`` or ``"padded"``."""
        return "padded" if self.adjacency is None else "dense"

    # Linear maps --------------------------------------------------------------------------------

    def neighbor_sum(self, x: Shaped[Array, "nodes ..."]) -> Float[Array, "nodes ..."]:
        """Sum over neighbors ``y_k = sum_l a_kl x_l`` for ``x`` of shape ``[K, ...]``."""
        return self.entries.sum(x)

    def laplacian(self, x: Shaped[Array, "nodes ..."]) -> Float[Array, "nodes ..."]:
        """``y_k = sum_l a_kl (x_k - x_l)``, that is ``L_- x = (diag(d) - A) x``."""
        return neighbor_tables.scale_rows(self.degree, x) - self.neighbor_sum(x)

    def signless_laplacian(self, x: Float[Array, "nodes ..."]) -> Float[Array, "nodes ..."]:
        """``y_k = sum_l a_kl (x_k + x_l)``, that is ``L_+ x = (diag(d) + A) x``."""
        return neighbor_tables.scale_rows(self.degree, x) + self.neighbor_sum(x)

    def mixing(
        self,
        rule: str | Mixing = "metropolis",
        step: Array | float | None = None,
        target: ArrayLike | Sequence[float] | None = None,
    ) -> Combination:
        """Weights ``W`` with rows that sum to one, supported on the edges and the diagonal.

        ===================  =============================================  ====================
        rule                 ``w_kl`` for ``l`` next to ``k``               ``W`` is
        ===================  =============================================  ====================
        ``metropolis``       ``a_kl / (1 + max(d_k, d_l))``                 doubly stochastic
        ``max-degree``       ``a_kl / (1 + max_j d_j)``                     doubly stochastic
        ``averaging``        ``a_kl / (1 + d_k)``                           row-stochastic only
        ``relative-degree``  ``a_kl n_l / (n_k + sum_m a_km n_m)``          row-stochastic only
        ``hastings``         ``a_kl min(p_k / n_k, p_l / n_l) / p_k``       row-stochastic only
        ``neighbors``        ``a_kl / d_k``, none of its own                row-stochastic only
        ``laplacian``        ``step * a_kl``, ``W = I-step*L``              symmetric, rows sum
                                                                            to one
        ===================  =============================================  ====================

        with ``n_k = 1 + d_k``. The diagonal is the remainder to one. All but the last two are
        non-negative with a positive diagonal, so on a connected graph ``W^n x`` converges: to the
        mean for the symmetric rules, to the mean weighted by ``n_k`` for ``averaging``, by
        ``n_k (n_k + sum_m a_km n_m)`` for ``relative-degree``, by the target ``p`` for
        ``hastings``, which with a uniform one is ``metropolis``. ``neighbors`` is the mean over the
        neighbors alone (for a node without neighbors, its own value), whose powers need not
        converge. The last may have negative diagonal entries when ``step > 1 / max_j d_j``.

        Args:
            rule: one of the seven names above, or a :class:`Mixing`, which has the other two.
            step: only for ``laplacian``; in ``(0, 2 / lambda_max(L))``, where ``I - step*L`` is
                a contraction towards consensus. Default ``1 / (1 + max_j d_j)``.
            target: only for ``hastings``, which needs it; the Perron vector ``p``, ``[K]``,
                positive, scaled to sum to one.

        Raises:
            ValueError: unknown rule, a step or target for another rule, a step outside its
                interval, or a target that is missing, not positive or of the wrong shape.

        Example:
            >>> from fljax import graphs
            >>> weights = graphs.path(3).mixing("hastings", target=[1.0, 1.0, 2.0])
            >>> [[round(float(entry), 3) for entry in row] for row in weights.matrix()]
            [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.167, 0.833]]

        Reference: Xiao and Boyd, Fast linear iterations for distributed averaging (2004);
        Xiao, Boyd and Kim, Distributed average consensus with least-mean-square deviation (2007);
        Sayed, Adaptation, learning, and optimization over networks (2014), chapter 14
        (relative-degree and Hastings rules); Hastings, Monte Carlo sampling methods using Markov
        chains and their applications (1970).
        """
        how = rule if isinstance(rule, Mixing) else Mixing(rule, step, target)
        self.check_mixing(how)
        return by_rule(self.entries, self.degree, how.rule, how.step, how.target)

    def check_mixing(self, how: Mixing) -> None:
        """Raise ``ValueError`` unless the rule's parameters fit the graph, see :meth:`mixing`."""
        if how.target is not None and np.shape(how.target) != (self.nodes,):
            raise ValueError(
                f"target must have shape ({self.nodes},), one weight per node, got shape "
                f"{np.shape(how.target)}."
            )
        if how.step is not None:
            self._check_step(how.step)

    def reweighted(self, factor: Callable[[Array, Array], Array]) -> "Graph":
        """The graph with weights ``a_kl f(k, l)`` in place of ``a_kl``, to be read row by row.

        If ``f`` is not symmetric the result is not an undirected graph any more: ``neighbor_sum``
        is ``sum_l a_kl f(k, l) x_l`` and ``degree`` the sum of a row.

        Args:
            factor: function of two arrays of node numbers ``k`` and ``l`` that broadcast to all
                stored pairs; finite for every pair of nodes.
        """
        return of_entries(*self.entries.scaled(factor))

    def thinned(self, keep: Callable[[Array, Array], Array]) -> "Graph":
        """The graph when some messages are not received, to be read row by row.

        ``a_kl`` is replaced by ``a_kl keep(k, l)``, as in :meth:`reweighted`; see
        :meth:`Combination.thinned` for weights that still sum to one.

        Args:
            keep: function of two arrays of node numbers, receiver ``k`` and sender ``l``, that
                broadcast to all stored pairs; boolean, or factors in ``[0, 1]``.

        Example:
            >>> from fljax import graphs
            >>> graphs.ring(4).thinned(lambda receiver, sender: sender != 0).degree.tolist()
            [2.0, 1.0, 2.0, 1.0]
        """
        return self.reweighted(keep)

    @checked
    def agreeing(
        self, values: Float[Array, "nodes dim"], tolerance: Float[Array, ""] | float
    ) -> "Graph":
        r"""The subgraph of the edges whose ends differ little, :math:`\|x_k-x_l\|\le\epsilon`.

        Args:
            values: ``[K, D]``, such as models.
            tolerance: :math:`\epsilon\ge0`.
        """
        parts = self.entries.parts
        weights = [jnp.where(p.distances(values) <= tolerance, p.weights, 0) for p in parts]
        entries = self.entries.with_weights(weights)
        return of_entries(entries, entries.row_sums())

    def neighbor_table(self) -> tuple[Int[Array, "nodes slots"], Float[Array, "nodes slots"]]:
        """The neighbors of each node, one per slot, and their weights, both ``[K, S]``.

        In the padded form this is its table, with the overflow in further columns; an empty slot of
        node ``k`` holds ``k`` and weight zero. In the dense form every node is a slot, in order,
        and the weights are the matrix. Valid while tracing; ``x[neighbors]`` is ``[K, S, D]`` in
        memory.

        Example:
            >>> from fljax import graphs
            >>> neighbors, weights = graphs.star(3, form="padded").neighbor_table()
            >>> neighbors.tolist(), weights.tolist()
            ([[1, 2], [0, 1], [0, 2]], [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
        """
        return self.entries.slots()

    def single_table(self) -> "Graph":
        """The same graph without overflow, for algorithms that visit one neighbor after the
        other.
        """
        if self.overflow is None:
            return self
        return Graph(self.nodes, None, *self.entries.slots(), self.degree)

    @property
    def entries(self) -> neighbor_tables.Entries:
        """The stored weights of the edges."""
        return neighbor_tables.Entries(
            self.nodes, self.adjacency, self.neighbors, self.weights, self.overflow
        )

    def _check_step(self, step: object) -> None:
        if self._concrete:
            checks.check_when_concrete(self._check_size, step)

    def _check_size(self, step: Array | float) -> None:
        most = float(np.max(np.asarray(self.degree)))
        if float(step) * most <= 1.0:  # then every weight is non-negative: nothing more to check
            return
        # lambda_max >= d_max always; the eigenvalues themselves only where they are cheap.
        largest = most
        if self.nodes <= _EIGEN_LIMIT:
            with jax.ensure_compile_time_eval():
                matrix = np.asarray(self.laplacian_matrix(), np.float64)
            largest = float(np.linalg.eigvalsh(matrix)[-1])
        if float(step) >= 2.0 / largest:
            raise ValueError(
                f"step must be below 2 / lambda_max(L) = {2.0 / largest:.4g} for I - step*L to "
                f"contract, got {float(step):g}; leave it out to get 1 / (1 + max degree) = "
                f"{1.0 / (1.0 + most):.4g}."
            )

    # Matrices -----------------------------------------------------------------------------------

    def dense(self) -> Float[Array, "nodes nodes"]:
        """The adjacency matrix ``[K, K]``."""
        return self.entries.dense()

    def laplacian_matrix(self) -> Float[Array, "nodes nodes"]:
        """``L = diag(d) - A``, ``[K, K]``, positive semidefinite with ``L 1 = 0``."""
        return jnp.diag(self.degree) - self.dense()

    def signless_laplacian_matrix(self) -> Float[Array, "nodes nodes"]:
        """``diag(d) + A``, ``[K, K]``; singular exactly if some component is bipartite."""
        return jnp.diag(self.degree) + self.dense()

    def as_form(self, form: str = "auto", max_degree: int | None = None) -> "Graph":
        """The same graph in another form; ``"padded"`` also trims a table that is too wide.

        A traced graph has no known width and then needs ``max_degree``; neighbors beyond it would
        be lost, so it must be a valid bound.
        """
        if self._concrete:
            return of_edges(self.nodes, *self._edge_data(), form, max_degree)
        return of_matrix(self.dense(), self.nodes, form, max_degree)

    # Edges --------------------------------------------------------------------------------------

    @property
    def edges(self) -> Int[np.ndarray, "edges 2"]:
        """Edges ``k < l`` as a NumPy array ``[E, 2]`` in lexicographic order (concrete only)."""
        self._need_concrete("edges")
        return self._edge_data()[0]

    def edge_list(self) -> list[tuple[int, int]]:
        """The edges as Python pairs ``(k, l)``, ``k < l`` (concrete only)."""
        return [(int(k), int(m)) for k, m in self.edges]

    def edge_weights(self) -> Float[np.ndarray, " edges"]:
        """Weights in the order of ``edges``, ``[E]`` (concrete only)."""
        self._need_concrete("edge_weights()")
        return self._edge_data()[1]

    def _edge_data(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges ``[E, 2]`` in lexicographic order and their weights ``[E]``."""
        near, far, weights = self.entries.arcs()
        once = (weights > 0) & (near < far)
        edges = np.stack([near[once], far[once]], axis=1).astype(np.int32)
        order = np.argsort(neighbor_tables.pair_codes(edges, self.nodes))
        return edges[order], weights[once][order]

    def edge_count(self) -> Int[Array, ""]:
        """Number ``E`` of undirected edges."""
        return jnp.sum(self.neighbor_counts()) // 2

    def neighbor_counts(self) -> Int[Array, " nodes"]:
        """Number of neighbors of every node regardless of the weights, ``[K]``."""
        parts = self.entries.parts
        return neighbor_tables.add_rows(
            parts, [jnp.sum(part.weights > 0, axis=1, dtype=np.int32) for part in parts]
        )

    def incidence(self, oriented: bool = True) -> Float[Array, "nodes edges"]:
        """Incidence matrix ``B`` of shape ``[K, E]`` (concrete only).

        Column ``e = (k, l)``, ``k < l``, holds ``sqrt(a_kl)`` in row ``k`` and, in row ``l``,
        minus that if oriented and the same if not: ``B B' = L`` or ``diag(d) + A``.
        """
        low, high = self.edges.T
        root = np.sqrt(self.edge_weights())
        matrix = np.zeros((self.nodes, len(root)))
        matrix[low, np.arange(len(root))] = root
        matrix[high, np.arange(len(root))] = -root if oriented else root
        return neighbor_tables.constant(matrix, float_dtype())

    # Connectivity -------------------------------------------------------------------------------

    def components(self) -> Int[Array, " nodes"]:
        """For every node the smallest identifier in its connected component, ``[K]``."""
        return _component_labels(self)

    def connected(self) -> Bool[Array, ""]:
        """Whether every node can be reached from every other."""
        return jnp.all(self.components() == 0)

    def require_connected(self) -> "Graph":
        """The graph itself; raise ``ValueError`` if it is disconnected. A traced graph is not
        checked.
        """
        if self._concrete:
            with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
                component = np.asarray(self.components())
            labels, sizes = np.unique(component, return_counts=True)
            if len(labels) > 1:
                smallest = int(np.argmin(sizes))
                members = np.flatnonzero(component == labels[smallest])
                numbers = ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
                raise ValueError(
                    f"the graph is disconnected: {len(labels)} components, the smallest has "
                    f"{len(members)} of {self.nodes} nodes ({numbers}). Add edges, raise the "
                    "density, draw again, or pass allow_disconnected=True where it is offered."
                )
        return self

    def algebraic_connectivity(
        self, members: Bool[Array, " nodes"] | None = None
    ) -> Float[Array, ""]:
        """Second smallest eigenvalue of ``L``, positive iff connected.

        ``O(K^3)`` for a traced graph and for up to two thousand nodes; beyond, with sparse matrices
        on the host (SciPy's Lanczos method, with a factorization where that is slow).

        Args:
            members: ``[K]``, restrict to the subgraph of these nodes, at least two; all by default.
        """
        concrete = self._concrete and (members is None or checks.is_concrete(members))
        if concrete and self.nodes > _EIGEN_LIMIT:
            connectivity = spectra.sparse_connectivity(self._sparse(members))
            return neighbor_tables.constant(connectivity, float_dtype())
        matrix = self.laplacian_matrix()
        if members is not None:
            inside = jnp.asarray(members)
            within = self.reweighted(lambda k, m: inside[k] & inside[m])
            # Others stand above every eigenvalue of members: 2 max degree bounds these.
            above = jnp.where(inside, 0, 1 + 2 * jnp.max(within.degree))
            matrix = within.laplacian_matrix() + jnp.diag(above)
        return jnp.linalg.eigvalsh(matrix)[1]

    def laplacian_norm(self) -> Float[Array, ""]:
        """Largest eigenvalue of ``L``, at most twice the largest degree; computed likewise."""
        if self._concrete and self.nodes > _EIGEN_LIMIT:
            return neighbor_tables.constant(spectra.sparse_norm(self._sparse()), float_dtype())
        return jnp.linalg.eigvalsh(self.laplacian_matrix())[-1]

    def _sparse(self, members: object = None) -> Any:
        """The Laplacian of the nodes, or of some, as a SciPy matrix."""
        near, far, weights = self.entries.arcs()
        shape = (self.nodes, self.nodes)
        matrix = scipy.sparse.csr_array((weights.astype(np.float64), (near, far)), shape)
        if members is not None:
            chosen = np.flatnonzero(np.asarray(members))
            matrix = matrix[chosen][:, chosen]
        return scipy.sparse.csgraph.laplacian(matrix)

    # networkx --------------------------------------------------------------------------------

    def to_networkx(self) -> "networkx.Graph":
        """A ``networkx.Graph`` on ``0..K-1`` with the edge attribute ``weight`` (concrete only)."""
        try:
            import networkx
        except ImportError:
            raise ImportError(
                "Graph.to_networkx needs networkx, which is not installed; "
                "pip install 'fljax[graphs]'."
            ) from None
        graph = networkx.Graph()
        graph.add_nodes_from(range(self.nodes))
        graph.add_weighted_edges_from(
            (k, m, float(weight))
            for (k, m), weight in zip(self.edge_list(), self.edge_weights(), strict=True)
        )
        return graph

    # Notebooks ----------------------------------------------------------------------------------

    def _repr_html_(self) -> str | None:
        """A drawing and the numbers of nodes and edges; the text of a traced or batched graph."""
        return html_of(self) if self._concrete and np.ndim(self.degree) == 1 else None

    @property
    def _concrete(self) -> bool:
        return checks.is_concrete(self.degree)

    def _need_concrete(self, what: str) -> None:
        if not self._concrete:
            raise TypeError(
                f"Graph.{what} has a shape that depends on the graph and cannot be traced; "
                "call it outside jit and vmap, or use dense() or neighbor_counts()."
            )
        if np.ndim(self.degree) != 1:
            raise ValueError(
                f"Graph.{what} is for one graph, this one is batched with shape "
                f"{np.shape(self.degree)[:-1]}; take one with jax.tree.map(lambda a: a[0], graph)."
            )


@jax.jit
def _component_labels(graph: Graph) -> Int[Array, " nodes"]:
    """Smallest-identifier propagation with pointer jumping, ``O(log K)`` rounds in practice."""

    def spread(state: tuple[Array, Array]) -> tuple[Array, Array]:
        labels, _ = state
        lower = labels
        for part in parts:
            far = jnp.where(part.weights > 0, part.of_neighbors(labels), graph.nodes)
            lower = lower.at[part.nodes].min(jnp.min(far, axis=1), **neighbor_tables.DISTINCT)
        # A label names a node of the same component, whose own label may be lower still.
        lower = lower[lower]
        return lower, jnp.any(lower != labels)

    parts = graph.entries.parts
    start = jnp.arange(graph.nodes, dtype=np.int32)
    return jax.lax.while_loop(lambda state: state[1], spread, (start, jnp.asarray(True)))[0]


def of_edges(
    nodes: int, edges: np.ndarray, weights: np.ndarray, form: str, max_degree: int | None
) -> Graph:
    """A graph from checked NumPy edges ``[E, 2]`` and weights ``[E]``."""
    ends = np.concatenate([edges, edges[:, ::-1]])
    order = np.argsort(neighbor_tables.pair_codes(ends, nodes))
    near, far = ends[order].T
    of_both_ends = np.concatenate([weights, weights])[order]
    entries = neighbor_tables.pack(nodes, near, far, of_both_ends, form, max_degree)
    degree = neighbor_tables.constant(
        np.bincount(near, of_both_ends, minlength=nodes), float_dtype()
    )
    return of_entries(entries, degree)


def of_matrix(matrix: Array, nodes: int, form: str, slots: int | None) -> Graph:
    """A graph from a traced adjacency matrix."""
    degree = jnp.sum(matrix, axis=1)
    return of_entries(neighbor_tables.repack(matrix, nodes, form, slots), degree)


def of_entries(entries: neighbor_tables.Entries, degree: Array) -> Graph:
    return Graph(
        entries.nodes, entries.matrix, entries.neighbors, entries.weights, degree, entries.overflow
    )
