"""Asymptotics of repeated combination: Perron vectors, primitivity and rates of stochastic
matrices.

Concrete matrices are treated on the host in float64; traced ones by array operations alone, since a
run must not call LAPACK (see :mod:`fljax._core.linalg`).
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST
from fljax.graphs import neighbor_tables

#: Lanczos vectors kept, restarts, and the relative accuracy, of large sparse spectra.
_LANCZOS = 40
_RESTARTS = 20
_TOLERANCE = 1e-8
_SMALL_SHARE = 1e-3  # a connectivity below this share of the spectrum has too few digits left
_SUM_TOLERANCE = 1e-6  # how far from one a row may sum: single precision rounds less
_SQUARINGS = 40  # of a matrix, whose power then tells its spectral radius to 1e-11


def check_stochastic(name: str, matrix: np.ndarray, axis: int, mend: str = "") -> None:
    """Raise unless entries are finite and non-negative and their sums over ``axis`` are one."""
    checks.nonnegative(name, matrix)
    check_sums(name, matrix.sum(axis=axis), matrix.sum(axis=1 - axis), axis, mend)


def check_sums(
    name: str, sums: np.ndarray, other_sums: np.ndarray, axis: int, mend: str = ""
) -> None:
    """Raise unless the sums over ``axis`` are one; ``other_sums`` are those over the other axis."""
    wrong = np.flatnonzero(np.abs(sums - 1.0) > _SUM_TOLERANCE)
    if len(wrong):
        line, other = ("column", "row") if axis == 0 else ("row", "column")
        swapped = np.all(np.abs(other_sums - 1.0) <= _SUM_TOLERANCE)
        hint = f"its {other}s do: {mend or 'transpose it'}." if swapped else "divide by the sums."
        raise ValueError(
            f"every {line} of {name} must sum to one, {line} {wrong[0]} sums to "
            f"{sums[wrong[0]]:g} ({len(wrong)} of {len(sums)} are wrong); {hint}"
        )


def check_primitive(
    name: str, matrix: np.ndarray, mend: str = "or pass allow_imprimitive=True."
) -> None:
    """Raise unless some power of the non-negative ``[K, K]`` matrix is positive everywhere."""
    count, labels = scipy.sparse.csgraph.connected_components(matrix > 0, connection="strong")
    if count > 1:
        sizes = np.bincount(labels)
        members = np.flatnonzero(labels == np.argmin(sizes))
        numbers = ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
        raise ValueError(
            f"{name} is reducible: it has {count} strongly connected components, the smallest of "
            f"{len(members)} of {len(matrix)} nodes ({numbers}), so information from some nodes "
            f"never reaches others. Add weights in both directions between them, {mend}"
        )
    level = scipy.sparse.csgraph.shortest_path(matrix > 0, unweighted=True, indices=0)
    near, far = np.nonzero(matrix)
    period = int(np.gcd.reduce(np.abs(level[near] + 1 - level[far]).astype(np.int64)))
    if period > 1:
        raise ValueError(
            f"{name} is periodic: values oscillate with period {period} and never agree. Let some "
            f"node keep a part of its own value, as in (I + W) / 2, {mend}"
        )


@checked
def perron_vector(matrix: Any) -> Float[Array, " nodes"]:
    r"""The stationary distribution of a stochastic matrix.

    .. math:: \pi^\top W = \pi^\top, \qquad \pi \ge 0, \qquad 1^\top \pi = 1

    It is unique if all nodes lead to one closed class of nodes, and positive if ``W`` is
    irreducible. A traced matrix cannot be checked, and if it has several closed classes the result
    is one of several solutions; nodes are eliminated one by one without subtractions, ``O(K^3)``,
    which keeps full relative accuracy of the smallest entry.

    Args:
        matrix: ``W``, ``[K, K]``, rows sum to one.

    Raises:
        ValueError: not square, negative or not finite entries, rows that do not sum to one, or
            several closed classes, each with its own stationary distribution.

    Example:
        >>> [round(float(p), 3) for p in perron_vector([[0.9, 0.1], [0.3, 0.7]])]
        [0.75, 0.25]

    Reference: Grassmann, Taksar and Heyman, Regenerative analysis and steady state distributions
    for Markov chains (1985), for the traced matrix.
    """
    matrix = checks.array("matrix", matrix)
    shape = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"the matrix must be square, [K, K], got shape {shape}.")
    if not checks.is_concrete(matrix):
        return stationary_distribution(matrix)
    array = np.asarray(matrix, np.float64)
    check_stochastic("the matrix", array, 1)
    closed = _closed_classes(array)
    if len(closed) > 1:
        one, other = (members[0] for members in closed[:2])
        raise ValueError(
            f"the matrix has {len(closed)} closed classes of nodes, such as those of nodes {one} "
            f"and {other}, and no unique stationary distribution; take that of each class, or "
            "connect them."
        )
    return stationary_distribution(array)


def stationary_distribution(matrix: object) -> Float[Array, " nodes"]:
    """As :func:`perron_vector`, for a matrix that is known to be stochastic.

    If there are several closed classes, each is weighted by its number of nodes.
    """
    if not checks.is_concrete(matrix):
        return _eliminate(jnp.asarray(matrix).astype(float_dtype()))
    return neighbor_tables.constant(_solve(np.asarray(matrix, np.float64)), float_dtype())


def _closed_classes(matrix: np.ndarray) -> list[np.ndarray]:
    """The classes of nodes that nothing leaves."""
    count, labels = scipy.sparse.csgraph.connected_components(matrix > 0, connection="strong")
    near, far = np.nonzero(matrix)
    leaking = labels[near][labels[near] != labels[far]]
    return [np.flatnonzero(labels == label) for label in np.setdiff1d(np.arange(count), leaking)]


def _solve(matrix: np.ndarray) -> np.ndarray:
    nodes = len(matrix)
    if np.allclose(matrix.sum(axis=0), 1.0, rtol=0.0, atol=1e-12):
        return np.full(nodes, 1.0 / nodes)
    stationary = np.zeros(nodes)
    for members in _closed_classes(matrix):
        size = len(members)
        # (I - W' + 11'/n) pi = 1/n: the sum of its rows says that pi sums to one.
        system = np.eye(size) - matrix[np.ix_(members, members)].T + 1.0 / size
        stationary[members] = size * np.linalg.solve(system, np.full(size, 1.0 / size))
    stationary = np.maximum(stationary, 0.0)
    return stationary / stationary.sum()


def _eliminate(matrix: Array) -> Array:
    """Nodes leave from the last to the first, their flow shared out; then they come back."""
    nodes = matrix.shape[0]
    index = jnp.arange(nodes)

    def leave(iteration: Array, work: Array) -> Array:
        last = nodes - 1 - iteration
        row = jnp.where(index < last, work[last], 0)
        column = jnp.where(index < last, work[:, last], 0)
        total = jnp.sum(row)
        row = row / jnp.where(total > 0, total, 1)
        return work + column[:, None] * row[None, :]

    work = jax.lax.fori_loop(0, nodes - 1, leave, matrix)
    totals = jnp.sum(jnp.tril(work, -1), axis=1)

    def come_back(node: Array, stationary: Array) -> Array:
        total = totals[node]
        entry = jnp.sum(jnp.where(index < node, stationary * work[:, node], 0))
        entry = entry / jnp.where(total > 0, total, 1)
        alone = jnp.asarray(index == node, stationary.dtype)
        # Whoever reaches no earlier node is left by none: it and what follows hold all the weight.
        stationary = jnp.where(total > 0, stationary.at[node].set(entry), alone)
        return stationary / jnp.sum(stationary)  # which keeps long drifts from overflowing

    return jax.lax.fori_loop(1, nodes, come_back, jnp.asarray(index == 0, matrix.dtype))


def second_modulus(matrix: Array, stationary: Array) -> Float[Array, ""]:
    """Largest modulus of the eigenvalues of ``W - 1 pi'``, by Gelfand's ``|B^n|^(1/n)``."""
    rest = matrix - stationary[None, :]

    def square(iteration: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        power, log = state
        size = jnp.max(jnp.abs(power))
        power = power / jnp.where(size > 0, size, 1)
        weight = jnp.exp2(-iteration.astype(log.dtype))
        return jnp.matmul(power, power, precision=HIGHEST), log + weight * jnp.log(size)

    start = (rest, jnp.zeros((), rest.dtype))
    return jnp.exp(jax.lax.fori_loop(0, _SQUARINGS, square, start)[1])


def sparse_connectivity(laplacian: "scipy.sparse.coo_array") -> float:
    """Second smallest eigenvalue of a sparse Laplacian; zero if its graph is disconnected."""
    if scipy.sparse.csgraph.connected_components(laplacian, directed=False)[0] > 1:
        return 0.0
    return sparse_fiedler(laplacian)[0]


def sparse_fiedler(laplacian: "scipy.sparse.coo_array") -> tuple[float, np.ndarray]:
    """The same of a graph that is connected, and an eigenvector of it, ``[K]``."""
    nodes = laplacian.shape[0]
    above = 2.0 * float(laplacian.diagonal().max())

    def product(x: np.ndarray) -> np.ndarray:
        # The constant vector, of eigenvalue zero, goes to zero, the others to `above - lambda`.
        x = np.ravel(x)
        return above * (x - x.mean()) - laplacian @ x

    flipped = scipy.sparse.linalg.LinearOperator(laplacian.shape, matvec=product, dtype=float)
    start = np.random.default_rng(0).normal(size=nodes)
    options = {"v0": start - start.mean(), "tol": _TOLERANCE}
    with contextlib.suppress(scipy.sparse.linalg.ArpackNoConvergence):
        (largest,), vectors = scipy.sparse.linalg.eigsh(
            flipped, 1, which="LA", maxiter=_RESTARTS, ncv=_LANCZOS, **options
        )
        if above - largest > _SMALL_SHARE * above:
            return float(above - largest), vectors[:, 0]
    # Long thin graphs, whose small eigenvalues crowd together: their factors are sparse.
    shift = -1e-3 * above / nodes
    values, vectors = scipy.sparse.linalg.eigsh(laplacian.tocsc(), 2, sigma=shift, **options)
    second = int(np.argmax(values))
    return float(values[second]), vectors[:, second]


def sparse_norm(laplacian: "scipy.sparse.coo_array") -> float:
    """Largest eigenvalue of a sparse Laplacian."""
    start = np.random.default_rng(0).normal(size=laplacian.shape[0])
    options = {"v0": start, "tol": _TOLERANCE, "return_eigenvectors": False}
    return float(scipy.sparse.linalg.eigsh(laplacian, 1, which="LA", **options)[0])
