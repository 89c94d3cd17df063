"""Small dense linear algebra as plain array operations, without LAPACK.

XLA's CPU backend calls LAPACK for factorizations. If two programs with such calls run concurrently,
they can deadlock (jaxlib 0.10.2, seen with LU, eigenvalues and triangular solves of batched 8 x 8
matrices). The matrices of a run are small, so plain array operations are fast enough.

Functions with loops are jitted, although their callers mostly are, too: outside of ``jit`` a loop
has a new body function at each call, and would be compiled each time.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core.devices import on_cpu
from fljax._core.numerics import HIGHEST

#: Rows up to this length are summed by a matrix product on a CPU; it is slower for longer ones.
SHORT = 16

#: Numbers per block in :func:`sum_in_blocks`; XLA chooses the order of summation within a block.
BLOCK = 128

#: The roundings by which the norm of a clipped row may exceed its bound: half of those of the sum
#: of squares with three levels of blocks (enough for two million numbers; the square root halves
#: relative errors), and ten of single operations.
CLIP_ROUNDINGS = 3 * BLOCK // 2 + 10


@jax.jit
def spd_inverse(matrices: Float[Array, "batch dim dim"]) -> Float[Array, "batch dim dim"]:
    """Inverse of symmetric positive definite matrices by Gauss-Jordan elimination.

    Such matrices need no pivoting. A singular one gives entries that are huge or not finite.
    """
    dim = matrices.shape[-1]

    def sweep(i, work):  # one in-place Gauss-Jordan step
        unit = jax.nn.one_hot(i, dim, dtype=work.dtype)[None]
        row = jnp.take(work, i, axis=1)
        pivot = jnp.take(row, i, axis=1)[:, None]
        row = jnp.where(unit > 0, 1 / pivot, row / pivot)
        column = jnp.take(work, i, axis=2)[..., None] * (1 - unit[..., None])
        rest = work * (1 - unit[:, None, :]) - column * row[:, None, :]
        return jnp.where(unit[..., None] > 0, row[:, None, :], rest)

    return jax.lax.fori_loop(0, dim, sweep, matrices)


def spd_pseudo_inverse(matrices: Float[Array, "batch dim dim"]) -> Float[Array, "batch dim dim"]:
    """Moore-Penrose inverses of symmetric positive semidefinite matrices.

    Eigenvalues within rounding of zero count as zero.
    """
    values, vectors = symmetric_eigen(matrices)
    rounding = matrices.shape[-1] * jnp.finfo(matrices.dtype).eps
    is_positive = values > rounding * jnp.max(values, axis=1, keepdims=True)
    inverse = jnp.where(is_positive, 1 / jnp.where(is_positive, values, 1), 0)
    return jnp.einsum("kpi,ki,kqi->kpq", vectors, inverse, vectors, precision=HIGHEST)


@jax.jit
def spd_solve(matrix: Float[Array, "dim dim"], right: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Solve one consistent positive *semi*definite system; some solution of it if singular.

    A multiple of the identity makes the matrix invertible; iterative refinement removes its effect.
    """
    shift = jnp.sqrt(jnp.finfo(matrix.dtype).eps) * jnp.trace(matrix) / matrix.shape[0]
    shift = jnp.maximum(shift, jnp.finfo(matrix.dtype).tiny)
    identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    inverse = spd_inverse((matrix + shift * identity)[None])[0]

    def refine(_, x):
        return x + jnp.matmul(
            inverse, right - jnp.matmul(matrix, x, precision=HIGHEST), precision=HIGHEST
        )

    return jax.lax.fori_loop(0, 5, refine, jnp.zeros_like(right))


@functools.partial(jax.jit, static_argnames="sweeps")
def symmetric_eigen(
    matrices: Float[Array, "batch dim dim"], sweeps: int = 10
) -> tuple[Float[Array, "batch dim"], Float[Array, "batch dim dim"]]:
    r"""Eigenvalues, in no order, and orthonormal eigenvectors as columns, by Jacobi's method.

    Every step rotates ``dim / 2`` disjoint pairs of coordinates in parallel. Then coordinates move
    by one position, as in a round-robin tournament, so that a sweep of ``dim - 1`` steps includes
    every pair (Brent and Luk 1985). Convergence is quadratic: ten sweeps suffice for some hundred
    rows.
    """
    batch = matrices.shape[0]
    dim = matrices.shape[-1]
    even = dim + dim % 2
    pad = even - dim
    work = jnp.pad(matrices, ((0, 0), (0, pad), (0, pad)))
    vectors = jnp.broadcast_to(jnp.eye(even, dtype=matrices.dtype)[None], work.shape)
    # Pairs are positions (0, 1), (2, 3), ... Position 0 is fixed, the others form a ring: even
    # positions ascending, then odd ones descending.
    ring = [0, *range(2, even, 2), *range(even - 1, 0, -2)]
    rotated = [ring[0], ring[-1], *ring[1:-1]]
    next_position = np.zeros(even, np.int32)
    next_position[ring] = rotated
    tiny = jnp.finfo(matrices.dtype).tiny

    def step(_, state: tuple[Array, Array]) -> tuple[Array, Array]:
        work, vectors = state
        diagonal = jnp.diagonal(work, axis1=1, axis2=2)
        p = diagonal[:, 0::2]
        q = diagonal[:, 1::2]
        off = jnp.diagonal(work[:, 0::2, 1::2], axis1=1, axis2=2)
        ratio = (q - p) / (2 * jnp.where(jnp.abs(off) > tiny, off, 1))
        tangent = jnp.sign(ratio) / (jnp.abs(ratio) + jnp.sqrt(1 + ratio**2))
        tangent = jnp.where(ratio == 0, 1, tangent)
        tangent = jnp.where(jnp.abs(off) > tiny, tangent, 0)
        cosine = 1 / jnp.sqrt(1 + tangent**2)
        sine = tangent * cosine

        def columns(matrix: Array) -> Array:
            pairs = matrix.reshape(batch, even, even // 2, 2)
            left = pairs[..., 0]
            right = pairs[..., 1]
            c = cosine[:, None]
            s = sine[:, None]
            return jnp.stack([c * left - s * right, s * left + c * right], axis=-1).reshape(
                batch, even, even
            )[:, :, next_position]

        work = jnp.swapaxes(columns(work), 1, 2)
        work = jnp.swapaxes(columns(work), 1, 2)
        return work, columns(vectors)

    work, vectors = jax.lax.fori_loop(0, sweeps * (even - 1), step, (work, vectors))
    # After whole sweeps all coordinates are in their original order, and padding was never rotated.
    return jnp.diagonal(work, axis1=1, axis2=2)[:, :dim], vectors[:, :dim, :dim]


@functools.partial(jax.jit, static_argnames="squarings")
def spd_norm(matrices: Float[Array, "batch dim dim"], squarings: int = 8) -> Float[Array, " batch"]:
    r"""An upper bound of the largest eigenvalue, at most :math:`D^{1/2^s}` times too large.

    The matrix is divided by its trace and squared repeatedly. The trace of the result is about the
    largest eigenvalue to the power :math:`2^s`: for a thousand rows within three per cent.
    """

    def square(carry: tuple[Array, Array], power: Array) -> tuple[tuple[Array, Array], None]:
        work, norm = carry
        size = jnp.trace(work, axis1=1, axis2=2)
        work = work / jnp.where(size > 0, size, 1)[:, None, None]
        work = jnp.einsum("kpq,kqr->kpr", work, work, precision=HIGHEST)
        return (work, norm * size**power), None

    powers = jnp.asarray(0.5 ** np.arange(squarings), matrices.dtype)
    start = (matrices, jnp.ones(matrices.shape[0], matrices.dtype))
    (work, norm), _ = jax.lax.scan(square, start, powers)
    return norm * jnp.trace(work, axis1=1, axis2=2) ** (powers[-1] / 2)


def spd_norm_bound(matrices: Float[Array, "batch dim dim"]) -> Float[Array, " batch"]:
    """An upper bound of the largest eigenvalue: the largest absolute row sum."""
    return jnp.max(jnp.sum(jnp.abs(matrices), axis=-1), axis=-1)


def norm(rows: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
    """Euclidean norms, ``[..., N]`` to ``[...]``, also if squares over- or underflow."""
    scale, scaled = scaled_down(rows)
    return scale * jnp.sqrt(jnp.sum(scaled**2, axis=-1))


def sum_of_squares(rows: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
    """Sums of squares, ``[..., N]`` to ``[...]``.

    On a CPU short rows are summed by a matrix product: XLA's reduction of many short rows takes up
    to three times as long.
    """
    squares = rows**2
    if on_cpu() and rows.shape[-1] <= SHORT:
        return jnp.dot(squares, jnp.ones(rows.shape[-1], rows.dtype), precision=HIGHEST)
    return jnp.sum(squares, axis=-1)


def all_finite(rows: Float[Array, "*batch size"]) -> Bool[Array, ""]:
    """Whether every number is finite.

    On a CPU rows are summed by a product as in :func:`sum_of_squares`: the sum is finite exactly if
    all numbers are, since the small weights keep sums of finite numbers from overflowing.
    """
    if on_cpu():
        small = jnp.full(rows.shape[-1], 2.0**-40, rows.dtype)
        rows = jnp.dot(rows, small, precision=HIGHEST)
    return jnp.all(jnp.isfinite(rows))


def rounding_distance(rows: Float[Array, "rows numbers"]) -> Float[Array, " rows"]:
    """How far apart rounding can move two rows of this norm.

    Each number of either row moves by at most half a unit in the last place, or by the smallest
    normal number where it underflows. Infinite if a number is NaN.
    """
    limits = jnp.finfo(rows.dtype)
    scale, scaled = scaled_down(rows)
    length = scale * jnp.sqrt(sum_of_squares(scaled))
    distance = limits.eps * length + 2 * limits.tiny * rows.shape[1] ** 0.5
    return jnp.where(jnp.isnan(distance), jnp.inf, distance)


def norm_of_sum(left: Array, right: Array, parallel: Array) -> Array:
    """The norm of the sum of two vectors, without overflow of squares.

    Args:
      left: norm of the first vector.
      right: norm of the second vector.
      parallel: the component of the first vector along the second.
    """
    perpendicular = jnp.sqrt(jnp.maximum(left - parallel, 0)) * jnp.sqrt(
        jnp.maximum(left + parallel, 0)
    )
    return norm(jnp.stack([perpendicular, right + parallel], axis=-1))


def directed(
    rows: Float[Array, "*batch size"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch size"]]:
    """Norms, and the rows divided by them; zero rows stay zero."""
    lengths = norm(rows)
    return lengths, rows / jnp.where(lengths > 0, lengths, 1)[..., None]


def scaled_down(
    rows: Float[Array, "*batch size"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch size"]]:
    """A scale of each row, its largest absolute value if that is normal, and rows divided by it."""
    smallest = np.finfo(rows.dtype).tiny  # so that both the scale and its inverse are finite
    scale = jnp.clip(jnp.max(jnp.abs(rows), axis=-1), smallest, 1 / smallest)
    # XLA would fold the square of a ratio of constants into a ratio of squares, which overflow.
    return scale, jax.lax.optimization_barrier(rows / scale[..., None])


def exact_sum(left: Array, right: Array) -> tuple[Array, Array]:
    """The rounded sum and its rounding error, which add up to the exact sum (Knuth's TwoSum)."""
    total = left + right
    part = total - left
    return total, (left - (total - part)) + (right - part)


def accumulated(total: Array, rest: Array, summand: Array) -> tuple[Array, Array]:
    """Add a number to a compensated sum ``total + rest``, with twice the digits (Dekker 1971).

    ``rest`` is within the rounding of ``total``. The relative error is at most the square of that
    of one addition.
    """
    total, error = exact_sum(total, summand)
    rest = rest + error
    new_total = total + rest
    return new_total, rest - (new_total - total)


def sum_in_blocks(values: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
    """Sums, ``[..., N]`` to ``[...]``, with bounded rounding errors.

    Sums :data:`BLOCK` numbers, then blocks of these sums, and so on. No number takes part in more
    than ``BLOCK`` additions per level, so the relative error of a sum of nonnegative numbers is at
    most ``levels * BLOCK`` roundings for any N.
    """
    while (size := values.shape[-1]) > 1:
        block = min(BLOCK, size)
        blocks = -(-size // block)
        padding = [(0, 0)] * (values.ndim - 1) + [(0, blocks * block - size)]
        values = jnp.pad(values, padding).reshape(*values.shape[:-1], blocks, block)
        # XLA would merge consecutive sums into a single one, but not matrix products.
        values = jnp.dot(values, jnp.ones(block, values.dtype), precision=HIGHEST)
    return values[..., 0]


def clipped_rows(
    rows: Float[Array, "rows size"], bound: Float[Array, ""] | Float[Array, " rows"]
) -> tuple[Float[Array, "rows size"], Bool[Array, " rows"]]:
    """Rows clipped to Euclidean norm ``bound``, one or one for each row, and which of them were
    finite and within it.

    Rows with a number that is not finite become zero. Norms exceed the bound by at most
    :data:`CLIP_ROUNDINGS` roundings.
    """
    scale, scaled = scaled_down(rows)
    norms = scale * jnp.sqrt(sum_in_blocks(scaled**2))
    finite = jnp.isfinite(norms)
    is_within = finite & (norms <= bound)
    scale = jnp.where(is_within, 1, bound / jnp.where(norms > 0, norms, 1))
    return jnp.where(finite[:, None], rows * scale[:, None], 0), is_within


def onto_simplex(point: Float[Array, " size"]) -> Float[Array, " size"]:
    r"""The nearest point of the probability simplex: :math:`\max(v-\tau,0)` that sums to one."""
    ordered = -jnp.sort(-point)
    excess = jnp.cumsum(ordered) - 1
    # The largest entries stay positive, as many as exceed the threshold computed from them alone.
    counts = jnp.arange(1, len(point) + 1, dtype=point.dtype)
    last = jnp.sum(ordered * counts > excess, dtype=jnp.int32) - 1
    return jnp.maximum(point - excess[last] / counts[last], 0)


@functools.partial(jax.jit, static_argnames="max_steps")
def simplex_minimizers(
    matrix: Float[Array, "size size"],
    linear: Float[Array, "rows size"],
    allowed: Bool[Array, " size"],
    max_steps: int = 2000,
) -> Float[Array, "rows size"]:
    r"""Minimizers of :math:`\frac12a'Ma-b'a` over the probability simplex, for several :math:`b`.

    Accelerated projected gradient steps with adaptive restart (O'Donoghue and Candès 2015), until
    no entry moves by more than rounding, or for ``max_steps`` steps. Convergence is linear if
    :math:`M` is definite.

    Args:
      matrix: :math:`M`, positive semidefinite.
      linear: rows :math:`b`.
      allowed: which entries may be positive, at least one.
      max_steps: the largest number of steps.
    """
    matrix = jnp.where(allowed[:, None] & allowed[None], matrix, 0)
    norm = jnp.max(jnp.sum(jnp.abs(matrix), axis=1))
    step = 1 / jnp.where(norm > 0, norm, 1)
    rounding = 4 * jnp.finfo(matrix.dtype).eps

    def projected(rows: Array) -> Array:
        # Entries that are more than one below the largest are projected to zero.
        largest = jnp.max(jnp.where(allowed[None], rows, -jnp.inf), axis=1, keepdims=True)
        return jax.vmap(onto_simplex)(jnp.where(allowed[None], rows, largest - 2))

    def is_moving(state: tuple) -> Array:
        number, moved, *_ = state
        return (number < max_steps) & (moved > rounding)

    def accelerated_step(state: tuple) -> tuple:
        count, _, current, extrapolated, speed = state
        gradient = jnp.matmul(extrapolated, matrix, precision=HIGHEST) - linear
        proposal = projected(extrapolated - step * gradient)
        new_speed = (1 + jnp.sqrt(1 + 4 * speed**2)) / 2
        turns_back = (
            jnp.sum((extrapolated - proposal) * (proposal - current), axis=1, keepdims=True) > 0
        )
        momentum = jnp.where(turns_back, 0, (speed - 1) / new_speed)
        extrapolated = proposal + momentum * (proposal - current)
        return (
            count + 1,
            jnp.max(jnp.abs(proposal - current)),
            proposal,
            extrapolated,
            jnp.where(turns_back, 1, new_speed),
        )

    shares = allowed.astype(matrix.dtype)
    center = jnp.broadcast_to(shares / jnp.sum(shares), linear.shape)
    unit_speeds = jnp.ones((len(linear), 1), matrix.dtype)
    initial = (
        jnp.zeros((), jnp.int32),
        jnp.asarray(jnp.inf, matrix.dtype),
        center,
        center,
        unit_speeds,
    )
    return jax.lax.while_loop(is_moving, accelerated_step, initial)[2]
