r"""Bounds that hold for the exact numbers, computed on the host in double precision.

A number that noise is calibrated to must not be too small, whatever the rounding on the way to it.
The functions here return upper bounds: a computed result plus what rounding can have taken from it,
by the standard error analysis of floating-point arithmetic (Higham 2002, chapter 3): a sum of
:math:`n` products differs from the exact one by at most :math:`\gamma_n=nu/(1-nu)` times the sum of
their absolute values, with the unit roundoff :math:`u=2^{-53}`, in any order of summation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _check

__all__ = [
    "InverseBound",
    "gamma",
    "inverse_bound",
    "lengths",
    "on_host",
    "rounded_down",
    "rounded_up",
    "spectral_norm_bound",
]

#: The unit roundoff of double precision.
UNIT = 2.0**-53

#: Added to every entry of a scaled matrix, it covers products that are too small to be represented.
UNDERFLOW = 1e-30


def gamma(terms: int) -> float:
    """The relative error bound of so many operations in a row, in double precision.

    Raises:
      ValueError: more operations than double precision can sum.
    """
    if terms * UNIT > 0.01:
        raise ValueError(f"a sum of {terms} terms is too long for double precision.")
    return terms * UNIT / (1 - terms * UNIT)


def rounded_up(values: Any, dtype: Any) -> np.ndarray:
    """The least numbers of a type that are not below the values."""
    values = np.asarray(values, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        cast = values.astype(dtype)
    return np.where(cast < values, np.nextafter(cast, np.asarray(np.inf, dtype)), cast)


def rounded_down(values: Any, dtype: Any) -> np.ndarray:
    """The largest numbers of a type that are not above the values."""
    return -rounded_up(-np.asarray(values, np.float64), dtype)


def on_host(
    function: Callable[..., Any],
    shapes: Any,
    *arguments: Any,
    refused: Callable[[Any], None] | None = None,
) -> Any:
    """Call a function of NumPy arrays, from compiled code by a callback.

    Args:
      function: of NumPy arrays; returns arrays of these shapes and types.
      shapes: of what it returns.
      arguments: numbers or arrays, concrete or traced.
      refused: called with the result; raises where it cannot be used. Not called if an argument is
        traced.
    """
    values = [np.asarray(one) if _check.is_concrete(one) else None for one in arguments]
    traced = [one for one, value in zip(arguments, values, strict=True) if value is None]
    if not traced:
        result = function(*values)
        if refused is not None:
            refused(result)
        return jax.tree.map(jnp.asarray, result)

    def call(*arrays: Any) -> Any:
        # Concrete numbers keep their own precision; those that are passed would be JAX's.
        rest = map(np.asarray, arrays)
        return function(*(next(rest) if value is None else value for value in values))

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
        more = self.norm / (1 - self.norm) * np.max(first, axis=0, keepdims=True)
        return (first + self.residual @ (first + more)) * (1 + 4 * gamma(len(self.inverse) + 8))


def inverse_bound(matrix: np.ndarray, sizes: np.ndarray, terms: int) -> InverseBound:
    """Invert a matrix that was itself computed, with a bound on the error of the inverse.

    Args:
      matrix: ``[n, n]``, as computed, with a diagonal of about one.
      sizes: ``[n, n]``, for each entry the sum of the absolute values of its terms.
      terms: the number of operations that an entry took.
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
    r"""Upper bounds on the spectral norms of symmetric matrices that are known up to an error.

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
    along = np.max(np.sum(np.abs(transposed @ matrices @ vectors), axis=2), axis=1)
    off = np.max(np.sum(np.abs(transposed @ vectors - np.eye(dim)[None]), axis=2), axis=1)
    along, off = along + slack * dim * size, off + slack * dim
    bound = np.where(off < 0.5, along / (1 - np.minimum(off, 0.5)), size)
    return (np.minimum(bound, size * (1 + slack)) + errors) * (1 + slack)
