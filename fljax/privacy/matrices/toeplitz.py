"""Lower-triangular Toeplitz matrices by their first columns, in NumPy and double precision.

Such matrices multiply like power series: the first column of a product is the convolution of the
two first columns, cut off after the number of rounds.
"""

from typing import Literal, TypeAlias

import numpy as np
import scipy

Column: TypeAlias = np.ndarray

#: How the squared errors of all prefix sums are summarized.
Reduction: TypeAlias = Literal["mean", "max"]


def padded(column: Column, rounds: int) -> Column:
    """The first ``rounds`` entries of a first column whose further entries are zero."""
    result = np.zeros(rounds)
    length = min(rounds, len(column))
    result[:length] = column[:length]
    return result


def multiplied(first: Column, second: Column) -> Column:
    """First column of the product of two matrices of the same size."""
    if min(len(first), len(second)) < 64:
        return np.convolve(first, second)[: len(first)]
    return scipy.signal.fftconvolve(first, second)[: len(first)]


def transpose_multiplied(column: Column, vector: np.ndarray) -> np.ndarray:
    """The transpose of the matrix times a vector."""
    return multiplied(column, vector[::-1])[::-1]


def inverted(column: Column, rounds: int) -> Column:
    """First column of the inverse, by forward substitution: O(rounds * entries)."""
    unit = np.zeros(rounds)
    unit[0] = 1.0
    return scipy.signal.lfilter([1.0], np.trim_zeros(column[:rounds], "b"), unit)


def square_root_column(entries: int) -> Column:
    r"""First column of the square root of the matrix of prefix sums, :math:`\binom{2j}j4^{-j}`."""
    steps = np.arange(1, entries)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


def rounded_up(value: float, terms: int) -> float:
    """An upper bound on a sum of nonnegative products that was computed in double precision.

    A sum of ``terms`` nonnegative products has at most the relative error
    ``(terms + 1) * eps`` to first order (Higham 2002, section 3.1); the factor 4 covers the
    higher orders and the square root.
    """
    return float(value * (1 + 4 * (terms + 8) * np.finfo(np.float64).eps))


def most_participations(rounds: int, separation: int, participations: int | None) -> int:
    """How often a client can take part in this number of rounds."""
    possible = -(-rounds // separation)
    return possible if participations is None else min(participations, possible)


def majorant(column: Column) -> Column:
    """The least nonincreasing column that is entrywise at least the column's absolute value."""
    return np.maximum.accumulate(np.abs(column)[::-1])[::-1]


def response(column: Column, separation: int, participations: int) -> np.ndarray:
    """The matrix times the indicator of rounds 0, b, 2b, ...: ``[rounds]``."""
    rounds = len(column)
    groups = -(-rounds // separation)
    table = padded(column, groups * separation).reshape(groups, separation)
    sums = np.cumsum(table, axis=0)
    # A difference of two cumulative sums would lose digits where the entries are small.
    for row in range(participations, groups):
        sums[row] = table[row - participations + 1 : row + 1].sum(axis=0)
    return sums.reshape(-1)[:rounds]


def sensitivity_and_gradient(
    column: Column, separation: int, participations: int
) -> tuple[float, np.ndarray]:
    """Squared sensitivity of a Toeplitz matrix, and its gradient with respect to the column.

    Where no two participations meet in one row of the matrix (there is one, or no more bands than
    rounds between them) it is the sum of the squared norms of the columns; otherwise that of the
    majorant, an upper bound that is attained by nonnegative nonincreasing columns.
    """
    rounds = len(column)
    last = np.flatnonzero(column)[-1] if np.any(column) else 0
    if last < separation or participations == 1:
        tails = np.zeros(rounds)  # in how many participations an entry is inside the matrix
        for start in range(0, participations * separation, separation):
            tails[: rounds - start] += 1
        return float(np.sum(tails * column**2)), 2 * tails * column
    upper = majorant(column)
    value, gradient = regular_and_gradient(upper, separation, participations)
    if np.array_equal(upper, column):
        return value, gradient
    # Entry i of the majorant is the largest of the entries from i on: its derivative goes there.
    source = np.where(np.abs(column) >= upper, np.arange(rounds), rounds)
    source = np.minimum.accumulate(source[::-1])[::-1]
    spread = np.zeros(rounds)
    np.add.at(spread, source, gradient)
    return value, spread * np.sign(column)


def regular_and_gradient(
    column: Column, separation: int, participations: int
) -> tuple[float, np.ndarray]:
    """Squared norm of the matrix times the indicator of rounds 0, b, 2b, ..., and its gradient."""
    rounds = len(column)
    summed = response(column, separation, participations)
    gradient = np.zeros(rounds)
    for start in range(0, participations * separation, separation):
        gradient[: rounds - start] += 2 * summed[start:]
    return float(summed @ summed), gradient


def row_errors(inverse: Column, workload: Column | None) -> np.ndarray:
    """Squared errors of all rows of the workload for independent unit noise: ``[rounds]``."""
    decoder = np.cumsum(inverse) if workload is None else multiplied(workload, inverse)
    return np.cumsum(decoder**2)


def error_and_gradient(
    inverse: Column, workload: Column | None, reduction: Reduction
) -> tuple[float, np.ndarray]:
    """Squared error, and its gradient with respect to the first column of the *inverse*.

    The error of a row of a Toeplitz matrix grows with the row, so that the last is the largest.
    """
    rounds = len(inverse)
    row = np.ones(rounds) if workload is None else workload
    decoder = np.cumsum(inverse) if workload is None else multiplied(workload, inverse)
    weights = np.arange(rounds, 0, -1) / rounds if reduction == "mean" else np.ones(rounds)
    weighted = weights * decoder
    return float(weighted @ decoder), 2 * transpose_multiplied(row, weighted)


def best_pattern(values: np.ndarray, separation: int, participations: int) -> np.ndarray:
    """Largest sum of ``participations`` entries, at most, that are ``separation`` apart.

    Dynamic programming over the number of entries (Choquette-Choo et al. 2023, Algorithm 3), along
    the last axis.
    """
    best = np.zeros((*values.shape[:-1], values.shape[-1] + separation))
    for _ in range(participations):
        best[..., :-separation] = values + best[..., separation:]
        best = np.maximum.accumulate(best[..., ::-1], axis=-1)[..., ::-1].copy()
    return best[..., 0]


def gram_bound(gram: np.ndarray, separation: int, participations: int) -> float:
    """Upper bound on the squared sensitivity of a matrix by its Gram matrix.

    Choquette-Choo et al. 2023, Algorithm 4: the pattern of columns is chosen separately for each
    row.
    """
    rows = best_pattern(np.abs(gram), separation, participations)
    return float(best_pattern(np.asarray(rows), separation, participations))
