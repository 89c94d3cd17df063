r"""Bounds that hold for the exact numbers, computed on the host in double precision.

A sensitivity to which noise is calibrated must not be too small because of rounding.
The functions here return upper bounds: a computed result plus a bound on its rounding error,
by the standard error analysis of floating-point arithmetic (Higham 2002, chapter 3): a sum of
:math:`n` products differs from the exact one by at most :math:`\gamma_n=nu/(1-nu)` times the sum of
their absolute values, with the unit roundoff :math:`u=2^{-53}`, in any order of summation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from fljax._core import checks

#: The unit roundoff of double precision.
UNIT = 2.0**-53

#: Added to every entry of a scaled matrix, to cover products that underflow.
UNDERFLOW = 1e-30


def gamma(terms: int) -> float:
    """The relative error bound of this number of consecutive operations in double precision.

    Raises:
      ValueError: too many operations for a useful bound.
    """
    if terms * UNIT > 0.01:
        raise ValueError(f"a sum of {terms} terms is too long for double precision.")
    return terms * UNIT / (1 - terms * UNIT)


def rounded_up(values: object, dtype: DTypeLike) -> np.ndarray:
    """The smallest numbers of a type that are not below the values."""
    values = np.asarray(values, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        cast = values.astype(dtype)
    return np.where(cast < values, np.nextafter(cast, np.asarray(np.inf, dtype)), cast)


def rounded_down(values: object, dtype: DTypeLike) -> np.ndarray:
    """The largest numbers of a type that are not above the values."""
    return -rounded_up(-np.asarray(values, np.float64), dtype)


def on_host(
    function: Callable[..., Any],
    shapes: object,
    *arguments: object,
    refused: Callable[[Any], None] | None = None,
) -> Any:
    """Call a function of NumPy arrays, by a callback if arguments are traced.

    Args:
      function: maps NumPy arrays to arrays of the given shapes and types.
      shapes: of its results.
      arguments: numbers or arrays, concrete or traced.
      refused: called with the result; raises if it cannot be used. Not called if an argument is
        traced.
    """
    values = [
        np.asarray(argument) if checks.is_concrete(argument) else None for argument in arguments
    ]
    traced = [argument for argument, value in zip(arguments, values, strict=True) if value is None]
    if not traced:
        result = function(*values)
        if refused is not None:
            refused(result)
        return jax.tree.map(jnp.asarray, result)

    def call(*arrays: ArrayLike) -> Any:
        # Concrete numbers bypass the callback, which would round them to JAX's precision.
        remaining = map(np.asarray, arrays)
        return function(*(next(remaining) if value is None else value for value in values))

    return jax.pure_callback(call, shapes, *traced, vmap_method="sequential")


def lengths(values: np.ndarray, axis: int) -> np.ndarray:
    """Euclidean norms along an axis, also where squares overflow or vanish."""
    largest = np.max(np.abs(values), axis=axis, keepdims=True)
    usable = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.sum((values / usable) ** 2, axis=axis, keepdims=True)
        return np.squeeze(usable * np.sqrt(sums), axis)


class InverseBound(NamedTuple):
    r"""An approximate inverse :math:`X` of a matrix :math:`Q`, and how far off it can be."""

    inverse: np.ndarray  # [n, n]  X
    residual: np.ndarray  # [n, n]  at least |I - X Q|, entry by entry
    norm: float  # the largest row sum of the residual; Q is proven invertible if it is below one

    def solutions(self, right: np.ndarray, rows: slice) -> np.ndarray:
        r"""Entrywise bounds on :math:`|Q^{-1}v|`, infinite unless Q is proven invertible.

        From :math:`Q^{-1}v=(I-R)^{-1}Xv` with :math:`R=I-XQ`, whose row sums are at most
        :math:`r<1`:

        .. math:: |Q^{-1}v|\le|Xv|+|R|\Big(|Xv|+\frac r{1-r}\|Xv\|_\infty\Big).

        Args:
          right: ``[m, N]``, the nonzero rows of the right-hand sides, exact.
          rows: which rows of the right-hand sides these are.
        """
        if not self.norm < 1:
            return np.full((len(self.inverse), right.shape[1]), np.inf)
        columns = self.inverse[:, rows]
        slack = 2 * gamma(len(right) + 4)
        # Where a right-hand side is zero, so is the solution.
        first = np.abs(columns @ right) + slack * (np.abs(columns) @ np.abs(right))
        correction = self.norm / (1 - self.norm) * np.max(first, axis=0, keepdims=True)
        return (first + self.residual @ (first + correction)) * (
            1 + 4 * gamma(len(self.inverse) + 8)
        )


def inverse_bound(matrix: np.ndarray, sizes: np.ndarray, terms: int) -> InverseBound:
    """Invert a matrix with rounding errors; bound the error of the inverse.

    Args:
      matrix: ``[n, n]``, as computed, with a diagonal of about one.
      sizes: ``[n, n]``, for each entry the sum of the absolute values of its terms.
      terms: the number of operations per entry.
    """
    size = len(matrix)
    identity = np.eye(size)
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        inverse = np.full_like(matrix, np.nan)
    slack = 2 * gamma(size + terms + 16)
    with np.errstate(all="ignore"):
        residual = np.abs(identity - inverse @ matrix) * (1 + 4 * UNIT)
        residual = residual + slack * (np.abs(inverse) @ (np.abs(sizes) + UNDERFLOW))
        norm = float(np.max(np.sum(residual, axis=1))) * (1 + 2 * gamma(size + 2))
    return InverseBound(inverse, residual, norm if np.isfinite(norm) else np.inf)


def spectral_norm_bound(matrices: np.ndarray, errors: np.ndarray) -> np.ndarray:
    r"""Upper bounds on the spectral norms of symmetric matrices that have an error.

    With approximate eigenvectors :math:`V`, :math:`\|M\|\le\|V^\top MV\|/(1-\|I-V^\top V\|)`, both
    norms bounded by the largest row sum.

    Args:
      matrices: ``[K, D, D]``.
      errors: ``[K]``, bounds on the spectral norms of their errors.
    """
    dim = matrices.shape[-1]
    vectors = np.linalg.eigh(matrices)[1]
    transposed = np.swapaxes(vectors, 1, 2)
    size = np.linalg.norm(matrices, axis=(1, 2))
    # The products of matrices of Frobenius norm sqrt(D), |M| and sqrt(D) are rounded twice.
    slack = 4 * gamma(2 * dim + 8) * dim
    numerator = np.max(np.sum(np.abs(transposed @ matrices @ vectors), axis=2), axis=1)
    defect = np.max(np.sum(np.abs(transposed @ vectors - np.eye(dim)[None]), axis=2), axis=1)
    numerator = numerator + slack * dim * size
    defect = defect + slack * dim
    bound = np.where(defect < 0.5, numerator / (1 - np.minimum(defect, 0.5)), size)
    return (np.minimum(bound, size * (1 + slack)) + errors) * (1 + slack)
