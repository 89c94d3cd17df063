"""Small dense linear algebra as plain array operations.

XLA's CPU backend hands factorizations to LAPACK. When two programs that hold such calls run side
by side, both can wait for ever (jaxlib 0.10.2, seen with LU, eigenvalues and triangular solves of
batched 8 x 8 matrices). What a run needs is small and done once, so it is done here without.

Loops are jitted, though what calls them mostly is, too: a loop that is called as it is has a new
body each time, and is compiled each time.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._memory import on_cpu
from fljax._numerics import HIGHEST

#: Rows up to this length are summed by a product on a CPU, which gains less the longer they are.
SHORT = 16

#: Numbers that are added in an order that XLA chooses, where the number of roundings is bounded.
BLOCK = 128

#: By which the norm of a clipped row may exceed its bound: half of those of the sum of squares,
#: with three levels of blocks, enough for two million numbers, and ten of single operations.
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

    Eigenvalues that rounding alone may have made are taken as zero.
    """
    values, vectors = symmetric_eigen(matrices)
    rounding = matrices.shape[-1] * jnp.finfo(matrices.dtype).eps
    kept = values > rounding * jnp.max(values, axis=1, keepdims=True)
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
    return jnp.einsum("kpi,ki,kqi->kpq", vectors, inverse, vectors, precision=HIGHEST)


@jax.jit
def spd_solve(matrix: Float[Array, "dim dim"], right: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Solve one consistent positive *semi*definite system; some solution of it if singular.

    The matrix is lifted off singularity and what that costs in accuracy won back by refinement.
    """
    lift = jnp.sqrt(jnp.finfo(matrix.dtype).eps) * jnp.trace(matrix) / matrix.shape[0]
    lift = jnp.maximum(lift, jnp.finfo(matrix.dtype).tiny)
    identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    inverse = spd_inverse((matrix + lift * identity)[None])[0]

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

    Every step rotates ``dim / 2`` disjoint pairs of coordinates at once; after it they move on one
    place, as in a round-robin tournament, so that in a sweep of ``dim - 1`` steps each meets each
    (Brent and Luk 1985). Convergence is quadratic: ten sweeps are ample up to some hundred rows.
    """
    batch, dim = matrices.shape[0], matrices.shape[-1]
    even = dim + dim % 2
    pad = even - dim
    work = jnp.pad(matrices, ((0, 0), (0, pad), (0, pad)))
    vectors = jnp.broadcast_to(jnp.eye(even, dtype=matrices.dtype)[None], work.shape)
    # Pairs are (0, 1), (2, 3), ...; the first stays, the others go round: odd places forwards,
    # even ones backwards.
    ring = [0, *range(2, even, 2), *range(even - 1, 0, -2)]
    turned = [ring[0], ring[-1], *ring[1:-1]]
    after = np.zeros(even, np.int32)
    after[ring] = turned
    tiny = jnp.finfo(matrices.dtype).tiny

    def step(_, state: tuple[Array, Array]) -> tuple[Array, Array]:
        work, vectors = state
        diagonal = jnp.diagonal(work, axis1=1, axis2=2)
        p, q = diagonal[:, 0::2], diagonal[:, 1::2]
        off = jnp.diagonal(work[:, 0::2, 1::2], axis1=1, axis2=2)
        ratio = (q - p) / (2 * jnp.where(jnp.abs(off) > tiny, off, 1))
        tangent = jnp.sign(ratio) / (jnp.abs(ratio) + jnp.sqrt(1 + ratio**2))
        tangent = jnp.where(ratio == 0, 1, tangent)
        tangent = jnp.where(jnp.abs(off) > tiny, tangent, 0)
        cosine = 1 / jnp.sqrt(1 + tangent**2)
        sine = tangent * cosine

        def columns(matrix: Array) -> Array:
            pairs = matrix.reshape(batch, even, even // 2, 2)
            left, right = pairs[..., 0], pairs[..., 1]
            c, s = cosine[:, None], sine[:, None]
            return jnp.stack([c * left - s * right, s * left + c * right], axis=-1).reshape(
                batch, even, even
            )[:, :, after]

        work = jnp.swapaxes(columns(work), 1, 2)
        work = jnp.swapaxes(columns(work), 1, 2)
        return work, columns(vectors)

    work, vectors = jax.lax.fori_loop(0, sweeps * (even - 1), step, (work, vectors))
    # Whole sweeps bring everyone home, and padding has nothing to rotate with.
    return jnp.diagonal(work, axis1=1, axis2=2)[:, :dim], vectors[:, :dim, :dim]


@functools.partial(jax.jit, static_argnames="squarings")
def spd_norm(matrices: Float[Array, "batch dim dim"], squarings: int = 8) -> Float[Array, " batch"]:
    r"""The largest eigenvalue, from above: at most :math:`D^{1/2^s}` times too large.

    After so many squarings, each of a matrix divided by its trace, the trace is that eigenvalue's
    power and little else: of a thousand rows within three per cent.
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
    """Euclidean, ``[..., N]`` to ``[...]``, also where squares overflow or vanish."""
    scale, scaled = scaled_down(rows)
    return scale * jnp.sqrt(jnp.sum(scaled**2, axis=-1))


def sum_of_squares(rows: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
    """``[..., N]`` to ``[...]``; of short rows on a CPU by a product: where there are many, XLA's
    own sums take up to three times as long.
    """
    squares = rows**2
    if on_cpu() and rows.shape[-1] <= SHORT:
        return jnp.dot(squares, jnp.ones(rows.shape[-1], rows.dtype), precision=HIGHEST)
    return jnp.sum(squares, axis=-1)


def all_finite(rows: Float[Array, "*batch size"]) -> Bool[Array, ""]:
    """Whether every number is finite; on a CPU by a product, as above, with small numbers, so that
    no sum of what is finite overflows.
    """
    if on_cpu():
        small = jnp.full(rows.shape[-1], 2.0**-40, rows.dtype)
        rows = jnp.dot(rows, small, precision=HIGHEST)
    return jnp.all(jnp.isfinite(rows))


def rounded_off(rows: Float[Array, "rows numbers"]) -> Float[Array, " rows"]:
    """How far rounding can bring two rows of this length apart: by half a last place of each
    number, once in each row, and by what is too small to be represented. Infinite where a number is
    none.
    """
    limits = jnp.finfo(rows.dtype)
    scale, scaled = scaled_down(rows)
    length = scale * jnp.sqrt(sum_of_squares(scaled))
    moved = limits.eps * length + 2 * limits.tiny * rows.shape[1] ** 0.5
    return jnp.where(jnp.isnan(moved), jnp.inf, moved)


def norm_of_sum(left: Array, right: Array, along: Array) -> Array:
    """The norm of the sum of two vectors, from their norms and what the first is along the second;
    no squares overflow.
    """
    across = jnp.sqrt(jnp.maximum(left - along, 0)) * jnp.sqrt(jnp.maximum(left + along, 0))
    return norm(jnp.stack([across, right + along], axis=-1))


def directed(
    rows: Float[Array, "*batch size"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch size"]]:
    """Norms, and the rows divided by them; what is zero has no direction, and stays zero."""
    lengths = norm(rows)
    return lengths, rows / jnp.where(lengths > 0, lengths, 1)[..., None]


def scaled_down(
    rows: Float[Array, "*batch size"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch size"]]:
    """Numbers near the largest of each row, and the rows divided by them."""
    smallest = np.finfo(rows.dtype).tiny  # whose inverse is still a number, and the other way round
    scale = jnp.clip(jnp.max(jnp.abs(rows), axis=-1), smallest, 1 / smallest)
    # Of data that it knows XLA would make the ratio's square the ratio of squares, which overflow.
    return scale, jax.lax.optimization_barrier(rows / scale[..., None])


def exact_sum(left: Array, right: Array) -> tuple[Array, Array]:
    """The sum as floats have it, and its rounding error: together the exact sum (Knuth)."""
    total = left + right
    part = total - left
    return total, (left - (total - part)) + (right - part)


def accumulated(total: Array, rest: Array, more: Array) -> tuple[Array, Array]:
    """A sum of two numbers, the second within the rounding of the first, and another summand: twice
    the digits (Dekker 1971). Its relative error is at most the square of that of one addition.
    """
    total, error = exact_sum(total, more)
    rest = rest + error
    both = total + rest
    return both, rest - (both - total)


def sum_in_blocks(values: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
    """``[..., N]`` to ``[...]``, by sums of :data:`BLOCK` numbers, of these sums, and so on: no
    number is part of more than ``BLOCK`` additions a level, so that the relative error of a sum of
    nonnegative numbers is at most ``levels * BLOCK`` roundings for any N.
    """
    while (size := values.shape[-1]) > 1:
        block = min(BLOCK, size)
        blocks = -(-size // block)
        padding = [(0, 0)] * (values.ndim - 1) + [(0, blocks * block - size)]
        values = jnp.pad(values, padding).reshape(*values.shape[:-1], blocks, block)
        # XLA would make one sum of two, but leaves products as they are.
        values = jnp.dot(values, jnp.ones(block, values.dtype), precision=HIGHEST)
    return values[..., 0]


def clipped_rows(
    rows: Float[Array, "rows size"], bound: Float[Array, ""]
) -> tuple[Float[Array, "rows size"], Bool[Array, " rows"]]:
    """Rows scaled down to Euclidean norm ``bound`` at most, zero for those that are not finite;
    and which of them were finite and within it. Their norms exceed the bound by at most
    :data:`CLIP_ROUNDINGS` roundings.
    """
    scale, scaled = scaled_down(rows)
    norms = scale * jnp.sqrt(sum_in_blocks(scaled**2))
    finite = jnp.isfinite(norms)
    within = finite & (norms <= bound)
    scale = jnp.where(within, 1, bound / jnp.where(norms > 0, norms, 1))
    return jnp.where(finite[:, None], rows * scale[:, None], 0), within


def onto_simplex(point: Float[Array, " size"]) -> Float[Array, " size"]:
    r"""The nearest point of the probability simplex: :math:`\max(v-\tau,0)` that sums to one."""
    ordered = -jnp.sort(-point)
    excess = jnp.cumsum(ordered) - 1
    # As many entries stay above zero as are larger than the threshold that they alone would have.
    counts = jnp.arange(1, len(point) + 1, dtype=point.dtype)
    last = jnp.sum(ordered * counts > excess, dtype=jnp.int32) - 1
    return jnp.maximum(point - excess[last] / counts[last], 0)


@functools.partial(jax.jit, static_argnames="most")
def simplex_minimizers(
    matrix: Float[Array, "size size"],
    linear: Float[Array, "rows size"],
    allowed: Bool[Array, " size"],
    most: int = 2000,
) -> Float[Array, "rows size"]:
    r"""Minimizers of :math:`\frac12a'Ma-b'a` over the probability simplex, of several :math:`b`.

    Accelerated projected gradient steps, restarted where they turn back (O'Donoghue and Candès
    2015), until no entry moves by more than rounding, which is at a linear rate where :math:`M` is
    definite; or ``most`` steps.

    Args:
      matrix: :math:`M`, positive semidefinite.
      linear: :math:`b`, a row each.
      allowed: which entries may be positive, one of them at least.
      most: the largest number of steps.
    """
    matrix = jnp.where(allowed[:, None] & allowed[None], matrix, 0)
    norm = jnp.max(jnp.sum(jnp.abs(matrix), axis=1))
    step = 1 / jnp.where(norm > 0, norm, 1)
    rounding = 4 * jnp.finfo(matrix.dtype).eps

    def projected(rows: Array) -> Array:
        # What is two below the largest is beyond the simplex.
        largest = jnp.max(jnp.where(allowed[None], rows, -jnp.inf), axis=1, keepdims=True)
        return jax.vmap(onto_simplex)(jnp.where(allowed[None], rows, largest - 2))

    def moving(state: tuple) -> Array:
        number, moved, *_ = state
        return (number < most) & (moved > rounding)

    def one(state: tuple) -> tuple:
        number, _, here, ahead, speed = state
        slope = jnp.matmul(ahead, matrix, precision=HIGHEST) - linear
        there = projected(ahead - step * slope)
        faster = (1 + jnp.sqrt(1 + 4 * speed**2)) / 2
        back = jnp.sum((ahead - there) * (there - here), axis=1, keepdims=True) > 0
        further = jnp.where(back, 0, (speed - 1) / faster)
        ahead = there + further * (there - here)
        return number + 1, jnp.max(jnp.abs(there - here)), there, ahead, jnp.where(back, 1, faster)

    shares = allowed.astype(matrix.dtype)
    even = jnp.broadcast_to(shares / jnp.sum(shares), linear.shape)
    ones = jnp.ones((len(linear), 1), matrix.dtype)
    begin = jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf, matrix.dtype), even, even, ones
    return jax.lax.while_loop(moving, one, begin)[2]
