r"""The space that columns span, as their floating-point numbers have it.

A tolerance would call columns dependent that are not, and an attacker is bound by no tolerance:
a small difference of two large columns can be taken and scaled up. Columns are
therefore orthogonalized in double precision where that resolves them, and otherwise with pairs of
doubles (106 bits; Dekker 1971, Knuth's two-sum). Only remainders below :math:`2^{-90}` of a
column's size count as zero. That is far below the rounding of any data, and exactly dependent
columns, such as repeated ones or indicators of all categories, have a rest of :math:`2^{-100}` or
less.
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float

#: Least ratio of singular values down to which double precision gives a basis to ten digits.
RESOLVED = 1e-6

#: A rest of a column below this fraction of it is zero.
ZERO = 2.0**-90

#: Splits a double into two halves whose products are exact.
SPLITTER = 2.0**27 + 1

#: Numbers as unevaluated sums of two doubles, the second below half a last place of the first.
Pair: TypeAlias = tuple[np.ndarray, np.ndarray]


def span(columns: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows rank"]:
    """Return an orthonormal basis of the space that columns span.

    Args:
      columns: ``[N, M]``, finite. Their sizes may differ by any factor.
    """
    columns = np.asarray(columns, np.float64)
    largest = np.max(np.abs(columns), axis=0, initial=0.0)
    columns = columns[:, largest > 0]
    largest = largest[largest > 0]
    # Scaling by powers of two is exact.
    columns = np.ldexp(columns, -np.frexp(largest)[1][None])
    if 0 < columns.shape[1] <= columns.shape[0]:
        basis, triangle = np.linalg.qr(columns)
        sizes = np.linalg.svd(triangle, compute_uv=False)
        if sizes[-1] > RESOLVED * sizes[0]:
            return basis
    return _orthogonalized(columns)


def _orthogonalized(columns: np.ndarray) -> np.ndarray:
    """Modified Gram-Schmidt with pairs of doubles, the column with the largest rest first."""
    remainder = columns, np.zeros_like(columns)
    sizes = np.linalg.norm(columns, axis=0)
    empty = np.zeros((len(columns), 0))
    basis: Pair = empty, empty
    while basis[0].shape[1] < min(columns.shape):
        relative = np.linalg.norm(remainder[0], axis=0) / sizes
        chosen = int(np.argmax(relative))
        if not relative[chosen] > ZERO:
            break
        unit = _column(remainder, chosen)
        for _ in range(2):  # rounding of earlier projections, relative to the remainder
            unit = _unit(_minus(unit, _combined(basis, _along(basis, unit))))
        remainder = _minus(remainder, _product(_along(remainder, unit), unit))
        left = np.arange(len(sizes)) != chosen
        remainder = (remainder[0][:, left], remainder[1][:, left])
        sizes = sizes[left]
        basis = np.hstack([basis[0], unit[0]]), np.hstack([basis[1], unit[1]])
    return basis[0]


def _column(pair: Pair, index: int) -> Pair:
    return pair[0][:, index : index + 1], pair[1][:, index : index + 1]


def _unit(column: Pair) -> Pair:
    """The column divided by its norm: first in double precision, then by one step of Newton's."""
    norm = np.linalg.norm(column[0])
    # A power of two first: a division by the norm itself would not be exact.
    scaled = tuple(np.ldexp(part, -np.frexp(norm)[1]) for part in column)
    inverse = np.full((1, 1), 1 / np.linalg.norm(scaled[0]))
    scaled = _product((inverse, np.zeros_like(inverse)), (scaled[0], scaled[1]))
    square = _along(scaled, scaled)
    excess = (square[0] - 1) + square[1]  # exact by Sterbenz' lemma, and small
    return _minus(scaled, _product((excess / 2, np.zeros_like(excess)), scaled))


def _along(columns: Pair, unit: Pair) -> Pair:
    """``[1, M]``, the inner products of columns with another one."""
    return _sum(_product(columns, unit))


def _combined(basis: Pair, coefficients: Pair) -> Pair:
    """``[N, 1]``, the sum of basis vectors times coefficients ``[1, M]``."""
    products = _product(basis, coefficients)
    high, low = _sum((products[0].T, products[1].T))
    return high.T, low.T


def _product(left: Pair, right: Pair) -> Pair:
    high = left[0] * right[0]
    (a, b), (c, d) = _halves(left[0]), _halves(right[0])
    error = ((a * c - high) + a * d + b * c) + b * d
    return _renormalized(high, error + (left[0] * right[1] + left[1] * right[0]))


def _halves(values: np.ndarray) -> Pair:
    scaled = SPLITTER * values
    upper = scaled - (scaled - values)
    return upper, values - upper


def _minus(left: Pair, right: Pair) -> Pair:
    return _plus(left, (-right[0], -right[1]))


def _plus(left: Pair, right: Pair) -> Pair:
    high, error = _two_sum(left[0], right[0])
    low, least = _two_sum(left[1], right[1])
    high, error = _renormalized(high, error + low)
    return _renormalized(high, error + least)


def _two_sum(left: np.ndarray, right: np.ndarray) -> Pair:
    """The sum, and what rounding has taken from it."""
    total = left + right
    part = total - left
    return total, (left - (total - part)) + (right - part)


def _renormalized(high: np.ndarray, low: np.ndarray) -> Pair:
    total = high + low
    return total, low - (total - high)


def _sum(values: Pair) -> Pair:
    """``[N, M]`` to ``[1, M]``, by halves."""
    high, low = values
    if not len(high):
        return np.zeros((1, high.shape[1])), np.zeros((1, high.shape[1]))
    while len(high) > 1:
        if len(high) % 2:
            high, low = (np.vstack([part, np.zeros((1, part.shape[1]))]) for part in (high, low))
        half = len(high) // 2
        high, low = _plus((high[:half], low[:half]), (high[half:], low[half:]))
    return high, low
