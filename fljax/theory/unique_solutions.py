"""Systems of linear equations that may have no unique solution.

Rounding makes almost every singular matrix invertible, and its inverse then turns the roundings
into a solution that looks like any other. A matrix is therefore singular here if it is within
rounding of a singular one.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def is_singular(least: Float[Array, "*batch"], largest: Float[Array, "*batch"], size: int) -> Array:
    """Whether a matrix with these extreme singular values is within rounding of a singular one.

    Args:
      least: the least singular value, or the least eigenvalue of a symmetric matrix.
      largest: the largest.
      size: number of rows.
    """
    return ~(least > 8 * size * jnp.finfo(least.dtype).eps * largest)


def solved(
    matrices: Float[Array, "*batch rows rows"], right: Float[Array, "*batch rows"]
) -> Float[Array, "*batch rows"]:
    """Return the solutions; NaN where one is not unique."""
    values = jnp.linalg.svd(matrices, compute_uv=False)
    singular = is_singular(values[..., -1], values[..., 0], matrices.shape[-1])
    solution = jnp.linalg.solve(matrices, right[..., None])[..., 0]
    return jnp.where(singular[..., None], jnp.nan, solution)


def solved_or_refused(matrix: np.ndarray, right: np.ndarray, remedy: str) -> np.ndarray:
    """Return the solution, by NumPy in double precision.

    Args:
      matrix: ``[rows, rows]``.
      right: ``[rows]``.
      remedy: the end of the error message, after "the solution is not unique".

    Raises:
      numpy.linalg.LinAlgError: a solution that is not unique.
    """
    values = np.linalg.svd(matrix, compute_uv=False)
    if is_singular(values[-1], values[0], len(matrix)):
        raise np.linalg.LinAlgError(f"the solution is not unique: {remedy}")
    return np.linalg.solve(matrix, right)
