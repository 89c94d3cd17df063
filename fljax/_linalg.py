"""Small dense linear algebra as plain array operations.

XLA's CPU backend hands factorisations to LAPACK. When two programs that hold such calls run side
by side, both can wait for ever (jaxlib 0.10.2, seen with LU, eigenvalues and triangular solves of
batched 8 x 8 matrices). What a run needs is small and done once, so it is done here without.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

HIGHEST = jax.lax.Precision.HIGHEST


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


def spd_norm_bound(matrices: Float[Array, "batch dim dim"]) -> Float[Array, " batch"]:
    """An upper bound of the largest eigenvalue: the largest absolute row sum."""
    return jnp.max(jnp.sum(jnp.abs(matrices), axis=-1), axis=-1)
