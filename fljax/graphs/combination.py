"""Combination matrices: how each node combines its own value with its neighbors' values."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype, module, replace, static
from fljax.graphs import neighbor_tables, spectra
from fljax.graphs.neighbor_tables import Overflow

if TYPE_CHECKING:
    import scipy.sparse

RULES = (
    "metropolis",
    "max-degree",
    "averaging",
    "laplacian",
    "hastings",
    "relative-degree",
    "neighbors",
)
_CONVENTIONS = {"left": "columns", "right": "rows"}
_EQUALITY = 1e-6  # entries and sums that differ by less are taken for equal, in double precision


@module
class Mixing:
    """A rule for combination weights with its parameters, for algorithms that take ``mixing=``.

    Args:
        rule: one of the rules of :meth:`Graph.mixing`.
        step: only for ``laplacian``, whose weights are ``I - step*L``: in
            ``(0, 2 / lambda_max(L))``, which a simulation checks on its graph. The step is a
            number, so a grid of steps shares one program.
        target: only for ``hastings``, which needs it: the Perron vector, ``[K]``.

    Raises:
        ValueError: an unknown rule, a step or target for another rule, a step that is not positive,
            a target that is missing or not positive.

    Example:
        >>> import jax, fljax as fl
        >>> simulation = fl.Simulation(
        ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2),
        ...     network=fl.graphs.ring(6),  # 2 / lambda_max(L) = 0.5
        ...     algorithm=fl.algorithms.ZCDPGradNFL(
        ...         0.05, mixing=fl.graphs.Mixing("laplacian", step=0.3)
        ...     ),
        ...     metrics=["normalized_error"],
        ... )
        >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1)
        True
    """

    rule: str = static(default="metropolis")
    step: Float[Array, ""] | float | None = None
    target: Any = None

    def validate(self) -> None:
        checks.choice("mixing rule", self.rule, RULES)
        if self.step is not None and self.rule != "laplacian":
            raise ValueError(
                f"step={self.step} was given for the rule {self.rule!r}, whose weights follow from "
                "the graph; leave step out, or use rule='laplacian'."
            )
        if self.step is not None:
            checks.positive("step", self.step)
        if (self.target is None) == (self.rule == "hastings"):
            raise ValueError(
                "the rule 'hastings' needs target, the Perron vector to be attained, [K]."
                if self.target is None
                else (
                    f"target was given for the rule {self.rule!r}, which has a Perron vector of "
                    "its own; leave target out, or use rule='hastings'."
                )
            )
        if self.target is not None:
            checks.positive("target", checks.array("target", self.target, axes=1))


@module
class Combination:
    r"""Weights ``W = diag(self_weight) + off-diagonal`` with which nodes combine received messages.

    .. math:: y_k = \sum_l w_{kl} x_l, \qquad \sum_l w_{kl} = 1

    Row ``k`` of ``W`` holds the weights that the *receiver* ``k`` gives. The literature on
    diffusion writes the same as ``w_k = sum_l a_lk psi_l`` with a *left*-stochastic ``A``, whose
    columns sum to one: ``W = A'``. The support may be directed: ``w_kl > 0`` means that ``k``
    receives from ``l``. Made from a graph by :meth:`Graph.mixing`, from any matrix by
    :func:`from_stochastic`.

    Attributes:
        nodes: number of nodes ``K``.
        self_weight: ``w_kk``, ``[K]``.
        off_diagonal: dense form, ``[K, K]`` with zero diagonal, or None.
        neighbors: padded form, the nodes that each node receives from, ``[K, S]``, or None.
        weights: padded form, ``w_kl`` per slot ``[K, S]``, or None.
        stationary: the Perron vector ``pi`` with ``pi' W = pi'`` and sum one, ``[K]``: repeated
            combination converges to ``sum_k pi_k x_k``. Uniform if ``W`` is doubly stochastic. None
            where it is not known, as after :meth:`thinned`.
        overflow: padded form, the neighbors beyond the slots of the table, or None.

    Example:
      The receiver ``k`` weights its own message and those of its neighbors:

      >>> import jax.numpy as jnp, fljax as fl
      >>> weights = fl.graphs.path(3).mixing("metropolis")
      >>> [[round(float(entry), 3) for entry in row] for row in weights.matrix()]
      [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
      >>> [round(float(entry), 3) for entry in weights(jnp.array([3.0, 0.0, 0.0]))]
      [2.0, 1.0, 0.0]

    Reference: Sayed, Adaptation, learning, and optimization over networks (2014), chapter 8, for
    left-stochastic matrices and their Perron vectors.
    """

    nodes: int = static()
    self_weight: Float[Array, " nodes"]
    off_diagonal: Float[Array, "nodes nodes"] | None
    neighbors: Int[Array, "nodes slots"] | None
    weights: Float[Array, "nodes slots"] | None
    stationary: Float[Array, " nodes"] | None
    overflow: Overflow | None = None

    @property
    def form(self) -> str:
        """``"dense"`` or ``"padded"``."""
        return "padded" if self.off_diagonal is None else "dense"

    def __call__(self, x: Float[Array, "nodes ..."]) -> Float[Array, "nodes ..."]:
        """``W x`` for ``x`` of shape ``[K, ...]``."""
        far = self.entries.sum(x)
        return neighbor_tables.scale_rows(self.self_weight, x) + far

    def matrix(self) -> Float[Array, "nodes nodes"]:
        """``W`` as a ``[K, K]`` matrix."""
        return self.entries.dense() + jnp.diag(self.self_weight)

    def neighbor_table(self) -> tuple[Int[Array, "nodes slots"], Float[Array, "nodes slots"]]:
        """The nodes that each node receives from, one per slot, and their weights, both ``[K, S]``.

        As :meth:`Graph.neighbor_table`; a node's own value is in no slot, its weight is
        ``self_weight``.
        """
        return self.entries.slots()

    def thinned(self, keep: Callable[[Array, Array], Array]) -> "Combination":
        """The weights when some messages are not received: the receiver increases its own weight.

        ``w_kl`` is replaced by ``w_kl keep(k, l)``, and the remainder to one is added to ``w_kk``.
        Symmetric weights stay doubly stochastic if ``keep`` is symmetric. The Perron vector changes
        and is not computed; use :func:`perron_vector`.

        Args:
            keep: function of two arrays of node numbers, receiver ``k`` and sender ``l``, that
                broadcast to all stored pairs; boolean, or factors in ``[0, 1]``.

        Example:
            >>> from fljax import graphs
            >>> deaf = graphs.path(3).mixing().thinned(lambda receiver, sender: receiver != 0)
            >>> [round(float(weight), 3) for weight in deaf.self_weight]
            [1.0, 0.333, 0.667]
        """
        entries = self.entries
        before = entries.row_sums()
        left, after = entries.scaled(keep)
        return replace(
            self,
            self_weight=self.self_weight + (before - after),
            off_diagonal=left.matrix,
            weights=left.weights,
            stationary=None,
            overflow=left.overflow,
        )

    @property
    def symmetric(self) -> bool:
        """Whether ``W = W'``, up to rounding (concrete only)."""
        matrix = self._sparse("symmetric")
        return bool(abs(matrix - matrix.T).max() <= self._tolerance)

    @property
    def doubly_stochastic(self) -> bool:
        """Whether ``W >= 0`` and columns, as rows, sum to one, up to rounding (concrete only)."""
        matrix = self._sparse("doubly_stochastic")
        sums = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)])
        return bool(
            matrix.min() >= -self._tolerance and np.all(np.abs(sums - 1.0) <= self._tolerance)
        )

    def rate(self) -> Float[Array, ""]:
        """Factor by which disagreement shrinks per combination; below one iff consensus is reached.

        The second largest modulus among the eigenvalues of ``W``. For symmetric ``W`` it is the
        spectral norm of ``W - 11'/K``. If the weights are reversible, ``pi_k w_kl = pi_l w_lk``, as
        with :meth:`Graph.mixing`, the eigenvalues are equal to the symmetric matrix's
        ``P^1/2 W P^-1/2``, ``P = diag(pi)``, from which the leading eigenpair is removed. For
        traced weights, which may be arbitrary, repeated squaring is used instead. ``O(K^3)``.
        """
        stationary = self.stationary
        if not checks.is_concrete(self.self_weight):
            matrix = self.matrix()
            stationary = (
                spectra.stationary_distribution(matrix) if stationary is None else stationary
            )
            return spectra.second_modulus(matrix, stationary)
        matrix = self._sparse("rate()")
        if stationary is None or not self._reversible(matrix, np.asarray(stationary, np.float64)):
            moduli = np.abs(np.linalg.eigvals(matrix.toarray()))
            return neighbor_tables.constant(np.sort(moduli)[-2], float_dtype())
        with jax.ensure_compile_time_eval():  # the weights may be known while others are traced
            root = jnp.sqrt(stationary)
            similar = root[:, None] * self.matrix() / root[None, :]
            similar = (similar + similar.T) / 2 - root[:, None] * root[None, :]
            return jnp.max(jnp.abs(jnp.linalg.eigvalsh(similar)))

    def _reversible(self, matrix: "scipy.sparse.csr_array", stationary: np.ndarray) -> bool:
        if np.any(stationary <= 0.0):
            return False
        flow = scipy.sparse.diags_array(stationary) @ matrix
        # A strict tolerance: the general method is valid for every matrix and only slower.
        rounding = 1e3 * float(jnp.finfo(self.self_weight.dtype).eps)
        return bool(abs(flow - flow.T).max() <= rounding * abs(flow).max())

    @property
    def _tolerance(self) -> float:
        return max(_EQUALITY, 100.0 * float(jnp.finfo(self.self_weight.dtype).eps))

    @property
    def entries(self) -> neighbor_tables.Entries:
        """The stored off-diagonal weights."""
        return neighbor_tables.Entries(
            self.nodes, self.off_diagonal, self.neighbors, self.weights, self.overflow
        )

    def _sparse(self, what: str) -> "scipy.sparse.csr_array":
        """``W`` as a SciPy matrix in float64."""
        if not checks.is_concrete(self.self_weight):
            raise TypeError(
                f"Combination.{what} depends on the values of the weights and cannot be traced; "
                "call it outside jit and vmap."
            )
        if np.ndim(self.self_weight) != 1:
            raise ValueError(
                f"Combination.{what} is for one matrix, this one is batched with shape "
                f"{np.shape(self.self_weight)[:-1]}; take one with jax.tree.map(lambda a: a[0], "
                "combination)."
            )
        near, far, values = self.entries.arcs()
        diagonal = np.asarray(self.self_weight, np.float64)
        entries = (values.astype(np.float64), (near, far))
        shape = (self.nodes, self.nodes)
        off = scipy.sparse.coo_array(entries, shape)
        return scipy.sparse.csr_array(off + scipy.sparse.diags_array(diagonal))


@checked
def from_stochastic(
    matrix: Any,
    *,
    convention: str,
    form: str = "auto",
    max_degree: int | None = None,
    allow_imprimitive: bool = False,
) -> Combination:
    """A combination from any stochastic matrix, such as one given in a paper.

    A traced matrix cannot be checked; it is kept dense unless ``max_degree``, a bound on the number
    of neighbors that must hold, is given. Sums that differ from one by rounding are normalized.

    Args:
        matrix: ``[K, K]``, finite and non-negative; its support may be directed.
        convention: ``"left"`` for ``A`` whose *columns* sum to one, ``a_lk`` being the weight that
            ``k`` gives to ``l`` (Sayed, Rizk); ``"right"`` for ``W = A'`` whose *rows* do. A doubly
            stochastic matrix satisfies both, so the convention must be stated.
        form: as in :func:`from_edges`.
        max_degree: as in :func:`from_edges`, for the number of nodes that a node receives from.
        allow_imprimitive: accept a matrix whose powers do not converge to a unique stationary
            distribution, that is, a reducible or periodic one.

    Raises:
        ValueError: not square, negative or not finite entries, sums other than one, or an
            imprimitive matrix.

    Example:
        >>> from fljax import graphs
        >>> a = [[0.8, 0.5, 0.0], [0.2, 0.0, 0.5], [0.0, 0.5, 0.5]]
        >>> combination = graphs.from_stochastic(a, convention="left")
        >>> [round(float(p), 3) for p in combination.stationary]
        [0.556, 0.222, 0.222]
        >>> combination.doubly_stochastic
        False
    """
    checks.choice("convention", convention, _CONVENTIONS)
    matrix = checks.array("matrix", matrix)
    shape = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"the combination matrix must be square, [K, K], got shape {shape}.")
    nodes = shape[0]
    neighbor_tables.check_nodes(nodes)
    name = "the combination matrix"
    axis, other = (0, "right") if convention == "left" else (1, "left")

    def check(matrix: Array) -> None:
        array = np.asarray(matrix, np.float64)
        spectra.check_stochastic(name, array, axis, f"give convention={other!r}")
        if not allow_imprimitive:
            spectra.check_primitive(name, array.T if convention == "left" else array)

    checks.check_when_concrete(check, matrix)
    if not checks.is_concrete(matrix):
        traced = jnp.asarray(matrix).astype(float_dtype())
        traced = traced.T if convention == "left" else traced
        off = jnp.where(jnp.eye(nodes, dtype=bool), 0, traced)
        entries = neighbor_tables.repack(off, nodes, form, max_degree)
        return combination_of(
            entries, jnp.diagonal(traced), spectra.stationary_distribution(traced)
        )
    array = np.asarray(matrix, np.float64)
    array = array.T if convention == "left" else array
    array = array / array.sum(axis=1, keepdims=True)
    near, far = np.nonzero(array * ~np.eye(nodes, dtype=bool))
    entries = neighbor_tables.pack(nodes, near, far, array[near, far], form, max_degree)
    self_weight = neighbor_tables.constant(np.diagonal(array), float_dtype())
    return combination_of(entries, self_weight, spectra.stationary_distribution(array))


def by_rule(
    entries: neighbor_tables.Entries,
    degree: Array,
    rule: str,
    step: Array | float | None = None,
    target: Any = None,
) -> Combination:
    """The weights of :meth:`Graph.mixing` on an undirected graph, from checked arguments."""
    if rule == "hastings":
        target = jnp.asarray(target, degree.dtype)
        flow = target / (1.0 + degree)
    elif rule == "relative-degree":
        total = 1.0 + degree + entries.sum(1.0 + degree)

    def scaled(part: neighbor_tables.TablePart) -> Array:
        receiver_degree = degree[part.nodes][:, None]
        if rule == "metropolis":
            scale = 1.0 / (1.0 + jnp.maximum(receiver_degree, part.of_neighbors(degree)))
        elif rule == "averaging":
            scale = 1.0 / (1.0 + receiver_degree)
        elif rule == "neighbors":
            scale = jnp.where(
                receiver_degree > 0, 1.0 / jnp.where(receiver_degree > 0, receiver_degree, 1.0), 0.0
            )
        elif rule == "hastings":
            least = jnp.minimum(flow[part.nodes][:, None], part.of_neighbors(flow))
            scale = least / target[part.nodes][:, None]
        elif rule == "relative-degree":
            scale = (1.0 + part.of_neighbors(degree)) / total[part.nodes][:, None]
        elif rule == "max-degree" or step is None:
            scale = 1.0 / (1.0 + jnp.max(degree))[None, None]
        else:
            scale = jnp.asarray(step, degree.dtype)[None, None]
        return part.weights * scale

    parts = entries.parts
    weights = [scaled(part) for part in parts]
    if rule == "averaging":
        unnormalized = 1.0 + degree
    elif rule == "neighbors":
        unnormalized = degree
    elif rule == "hastings":
        unnormalized = target
    elif rule == "relative-degree":
        unnormalized = (1.0 + degree) * total
    else:
        unnormalized = jnp.ones_like(degree)
    self_weight = 1.0 - neighbor_tables.add_rows(
        parts, [jnp.sum(part_weights, axis=1) for part_weights in weights]
    )
    return combination_of(
        entries.with_weights(weights), self_weight, unnormalized / jnp.sum(unnormalized)
    )


def combination_of(
    entries: neighbor_tables.Entries, self_weight: Array, stationary: Array | None = None
) -> Combination:
    """The combination of stored weights and the nodes' own ones, which sum to one in each row."""
    return Combination(
        nodes=entries.nodes,
        self_weight=self_weight,
        off_diagonal=entries.matrix,
        neighbors=entries.neighbors,
        weights=entries.weights,
        stationary=stationary,
        overflow=entries.overflow,
    )


def averages_of_pairs(
    entries: neighbor_tables.Entries, are_pairs: Sequence[Array], share: float = 0.5
) -> Combination:
    """The weights with which paired neighbors average: one half each, and one for all others.

    Args:
        entries: of the graph.
        are_pairs: for each of its tables, which of the stored neighbors are paired, each node with
            at most one other, and both with each other.
        share: another weight than one half of the other's value.
    """
    parts = entries.parts
    dtype = parts[0].weights.dtype
    weights = [jnp.where(paired, share, 0).astype(dtype) for paired in are_pairs]
    shared = neighbor_tables.add_rows(parts, [jnp.sum(rows, axis=1) for rows in weights])
    uniform = jnp.full(entries.nodes, 1 / entries.nodes, dtype)
    return combination_of(entries.with_weights(weights), 1 - shared, uniform)
