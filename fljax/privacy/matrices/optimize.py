r"""Strategies of least error for a number of rounds and a pattern of participation.

All minimize the *loss*, the squared sensitivity times the squared error of prefix sums
(:meth:`~fljax.privacy.matrices.Strategy.loss`), to which the variance of the noise is proportional
at a given budget. The gradients are written out, in double precision on the host; the minimizer is
L-BFGS. No guarantee rests on its convergence: all promises follow from the sensitivity of the
strategy that is returned.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from jaxtyping import Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.privacy.matrices import toeplitz
from fljax.privacy.matrices.strategies import (
    Banded,
    BufferedToeplitz,
    InverseToeplitz,
    Toeplitz,
    _workload,
)
from fljax.privacy.matrices.toeplitz import Column, Reduction

#: Norm of the rows by which the largest error is replaced where it is not that of the last row.
_SOFTMAX_POWER = 32.0


def _minimize(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    bounds: Sequence[tuple[float, float | None]] | None = None,
    steps: int = 2000,
) -> np.ndarray:
    """Minimize the logarithm of a loss; infinite values are stepped back from."""

    def logarithm(point: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            value, gradient = loss(point)
        if not (np.isfinite(value) and value > 0 and np.all(np.isfinite(gradient))):
            return 1e10, np.zeros_like(point)
        return float(np.log(value)), gradient / value

    result = scipy.optimize.minimize(
        logarithm,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": steps, "maxfun": 2 * steps, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-9},
    )
    return result.x


class _Loss:
    """Squared sensitivity times squared error of a Toeplitz strategy, with its gradient."""

    def __init__(
        self,
        rounds: int,
        separation: int,
        participations: int | None,
        reduction: Reduction,
        workload: Float[np.ndarray, " rounds"] | Sequence[float] | None,
    ) -> None:
        checks.count("rounds", rounds)
        checks.count("separation", separation)
        if participations is not None:
            checks.count("participations", participations)
        checks.choice("reduction", reduction, ("mean", "max"))
        self.rounds = rounds
        self.separation = separation
        self.count = toeplitz.most_participations(rounds, separation, participations)
        self.reduction: Reduction = reduction
        self.workload = _workload(workload, rounds)

    def of_column(self, column: Column, inverse: Column) -> tuple[float, np.ndarray]:
        """The loss, and its gradient with respect to the first column of C."""
        squared, by_column = toeplitz.sensitivity_and_gradient(column, self.separation, self.count)
        error, by_inverse = toeplitz.error_and_gradient(inverse, self.workload, self.reduction)
        # A change of C by D changes its inverse by -C^-1 D C^-1.
        twice = toeplitz.multiplied(inverse, inverse)
        gradient = by_column * error - squared * toeplitz.transpose_multiplied(twice, by_inverse)
        return squared * error, gradient

    def of_inverse(
        self, column: Column, inverse: Column, penalty: float | None = None
    ) -> tuple[float, np.ndarray]:
        """The loss, and its gradient with respect to the first column of the inverse.

        With a penalty the sensitivity is that of regular participation, which is smooth, and
        increases and negative entries of the column are penalized, as it is exact without them.
        """
        if penalty is None or self.count == 1:
            squared, by_column = toeplitz.sensitivity_and_gradient(
                column, self.separation, self.count
            )
        else:
            squared, by_column = toeplitz.regular_and_gradient(column, self.separation, self.count)
            increases = np.maximum(np.diff(column), 0.0)
            below = np.minimum(column, 0.0)
            excess = 1 + penalty * float(increases @ increases + below @ below)
            by_entry = below - np.diff(increases, prepend=0.0, append=0.0)
            by_penalty = 2 * penalty * squared * by_entry
            squared = squared * excess
            by_column = by_column * excess + by_penalty
        error, by_inverse = toeplitz.error_and_gradient(inverse, self.workload, self.reduction)
        twice = toeplitz.multiplied(column, column)
        gradient = squared * by_inverse - error * toeplitz.transpose_multiplied(twice, by_column)
        return squared * error, gradient


@checked
def optimize_banded_toeplitz(
    rounds: int,
    bands: int,
    separation: int = 1,
    participations: int | None = None,
    reduction: Reduction = "mean",
    workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None,
) -> Toeplitz:
    r"""Return the banded Toeplitz strategy of least loss, with columns of norm 1.

    With at most as many bands as the separation the columns of one client are orthogonal, and the
    strategy for one participation serves for several. With more bands than that, coefficients are
    kept nonnegative and nonincreasing, for which the sensitivity is exact.

    Args:
      rounds: number of rounds :math:`n`.
      bands: number of bands, from 1 to ``rounds``.
      separation: least distance between two rounds in which one client takes part; 1 if a client
        may take part in every round.
      participations: largest number of rounds in which one client takes part; by default as many as
        the separation leaves room for.
      reduction: ``"mean"`` or ``"max"`` of the squared errors of the prefix sums.
      workload: first column of another lower-triangular Toeplitz matrix than that of prefix sums,
        ``[rounds]``.

    Raises:
      ValueError: counts out of their ranges, a workload of another length.

    Reference:
      McKenna 2024.

    Example:
      >>> from fljax.privacy.matrices import square_root
      >>> strategy = optimize_banded_toeplitz(rounds=200, bands=8, participations=1)
      >>> best, start = (s.loss(200, participations=1) for s in (strategy, square_root(8)))
      >>> round(best, 1), round(start, 1)
      (16.8, 19.2)
    """
    loss = _Loss(rounds, separation, participations, reduction, workload)
    checks.count("bands", bands, at_most=rounds)
    start = toeplitz.square_root_column(bands)

    def of_coefficients(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        column = toeplitz.padded(coefficients, rounds)
        value, gradient = loss.of_column(column, toeplitz.inverted(coefficients, rounds))
        return value, gradient[:bands]

    if bands <= separation or loss.count == 1:
        unconstrained = _minimize(of_coefficients, start)
        return _normalized(unconstrained if unconstrained[0] > 0 else -unconstrained)

    def of_steps(steps: np.ndarray) -> tuple[float, np.ndarray]:
        # Coefficients are sums of the nonnegative steps from the last one on.
        value, gradient = of_coefficients(np.cumsum(steps[::-1])[::-1])
        return value, np.cumsum(gradient)

    steps = -np.diff(start, append=0.0)
    bounds = [(0.0, None)] * bands
    return _normalized(np.cumsum(_minimize(of_steps, steps, bounds)[::-1])[::-1])


def _normalized(coefficients: np.ndarray) -> Toeplitz:
    return Toeplitz(coefficients / np.linalg.norm(coefficients))


@checked
def optimize_inverse_toeplitz(
    rounds: int,
    bands: int,
    separation: int = 1,
    participations: int | None = None,
    reduction: Reduction = "mean",
    workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None,
) -> InverseToeplitz:
    r"""Return the Toeplitz strategy of least loss among those whose inverse has ``bands`` bands.

    Args:
      rounds: as in :func:`optimize_banded_toeplitz`.
      bands: number of bands of the inverse, from 1 to ``rounds``.
      separation: as in :func:`optimize_banded_toeplitz`.
      participations: as in :func:`optimize_banded_toeplitz`.
      reduction: as in :func:`optimize_banded_toeplitz`.
      workload: as in :func:`optimize_banded_toeplitz`.

    Raises:
      ValueError: as for :func:`optimize_banded_toeplitz`.

    Reference:
      Kalinin et al. 2025 (BandInvMF).

    Example:
      >>> from fljax.privacy.matrices import inverse_square_root
      >>> strategy = optimize_inverse_toeplitz(200, bands=4, separation=20)
      >>> [round(s.loss(200, separation=20), 1) for s in (strategy, inverse_square_root(4))]
      [112.5, 178.4]
    """
    loss = _Loss(rounds, separation, participations, reduction, workload)
    checks.count("bands", bands, at_most=rounds)
    if bands == 1:
        return InverseToeplitz(np.ones(1))

    def of_coefficients(
        coefficients: np.ndarray, penalty: float | None = None
    ) -> tuple[float, np.ndarray]:
        # The first one is 1: a common factor does not change the loss.
        inverse = np.concatenate([[1.0], coefficients])
        column = toeplitz.inverted(inverse, rounds)
        value, gradient = loss.of_inverse(column, toeplitz.padded(inverse, rounds), penalty)
        return value, gradient[1:bands]

    # The bound of the sensitivity has kinks where a column stops decreasing, and the best
    # strategies lie near them, where descent stalls; a growing penalty leads there smoothly.
    point = np.diff(toeplitz.square_root_column(bands))
    candidates = [point]
    for penalty in (0.0, 1.0, 10.0, 1e2, 1e3, 1e4, 1e6):
        point = _minimize(functools.partial(of_coefficients, penalty=penalty), point)
        candidates += [point, _minimize(of_coefficients, point)]
    best = min(candidates, key=lambda candidate: _finite(of_coefficients(candidate)[0]))
    return InverseToeplitz(np.concatenate([[1.0], best]))


@checked
def optimize_buffered_toeplitz(
    rounds: int,
    buffers: int = 4,
    separation: int = 1,
    participations: int | None = None,
    reduction: Reduction = "mean",
    workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None,
) -> BufferedToeplitz:
    r"""Return the buffered linear Toeplitz strategy (BLT) of least loss that was found.

    The loss has several local minima; the descent starts from quadratures of

    .. math::

        \binom{2t}t4^{-t}=\frac1\pi\int_0^1\lambda^{t-1}\sqrt{\frac\lambda{1-\lambda}}\,d\lambda,

    the coefficients of the square root of prefix sums as a BLT with infinitely many buffers, and
    the best result is returned.

    Args:
      rounds: as in :func:`optimize_banded_toeplitz`.
      buffers: number of buffers, at least 1; more than four rarely pay.
      separation: as in :func:`optimize_banded_toeplitz`.
      participations: as in :func:`optimize_banded_toeplitz`.
      reduction: as in :func:`optimize_banded_toeplitz`.
      workload: as in :func:`optimize_banded_toeplitz`.

    Raises:
      ValueError: as for :func:`optimize_banded_toeplitz`.

    Reference:
      Dvijotham et al. 2024; McMahan, Xu & Zhang 2024.

    Example:
      >>> from fljax.privacy.matrices import square_root
      >>> strategy = optimize_buffered_toeplitz(
      ...     rounds=200, buffers=2, participations=1, reduction="max"
      ... )
      >>> best = strategy.loss(200, participations=1, reduction="max")
      >>> bound = square_root(200).loss(200, participations=1, reduction="max")  # least of all
      >>> round(best / bound, 3)
      1.009
    """
    loss = _Loss(rounds, separation, participations, reduction, workload)
    checks.count("buffers", buffers, at_most=64)
    time = np.arange(rounds - 1)[:, None]

    def of_parameters(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        # Logarithms of the scales and of 1 - decay keep both in range and resolve decays near 1.
        scale = np.exp(parameters[:buffers])
        complement = np.exp(-np.logaddexp(0, -parameters[buffers:]))
        decay = 1 - complement
        powers = np.exp(time * np.log1p(-complement))
        column = np.concatenate([[1.0], powers @ scale])
        root = np.sqrt(scale)
        decays, vectors = np.linalg.eigh(np.diag(decay) - np.outer(root, root))
        inverse = np.concatenate([[1.0], -(decays**time) @ (root @ vectors) ** 2])
        value, gradient = loss.of_column(column, inverse)
        by_scale = gradient[1:] @ powers
        by_decay = scale * (gradient[1:] @ (time * powers)) / decay
        # The derivative of the decay by its parameter is -complement (1 - complement).
        return value, np.concatenate([by_scale * scale, -by_decay * complement * decay])

    candidates = [
        _minimize(of_parameters, start)
        for start in (_quadrature(buffers, reach * rounds) for reach in (1.0, 0.1, 10.0))
    ]
    best = min(candidates, key=lambda point: _finite(of_parameters(point)[0]))
    scale = np.exp(best[:buffers])
    complement = np.exp(-np.logaddexp(0, -best[buffers:]))
    order = np.argsort(complement)
    return BufferedToeplitz(scale=scale[order], decay=(1 - complement)[order])


def _finite(value: float) -> float:
    return value if np.isfinite(value) else np.inf


def _quadrature(buffers: int, reach: float) -> np.ndarray:
    """Parameters of a BLT for the square root of prefix sums over about ``reach`` rounds.

    The interval of decays is cut at equal steps of the logarithm of 1 - decay; each part becomes a
    buffer at its mean, scaled by its mass.
    """
    edges = np.concatenate([[1.0], np.geomspace(0.5, min(0.4, 1 / (reach + 2)), buffers)])
    edges[-1] = 0.0
    # With 1 - decay = sin(angle)^2 the measure is 2/pi cos(angle)^2 of the angle.
    angle = np.arcsin(np.sqrt(edges))
    mass = (angle + np.sin(2 * angle) / 2) / np.pi
    scale = np.maximum(mass[:-1] - mass[1:], 1e-6)
    complement = np.sqrt(edges[:-1] * np.maximum(edges[1:], 0.3 / (reach + 2)))
    complement = np.clip(complement, 1e-9, 0.9)
    return np.concatenate([np.log(scale), np.log(complement) - np.log1p(-complement)])


@checked
def optimize_banded(
    rounds: int,
    bands: int,
    reduction: Reduction = "mean",
    workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None,
) -> Banded:
    r"""Return the banded strategy of least error among all with columns of norm 1.

    Entries of a diagonal may differ, which is worth a few percent at the end of a run. For a
    separation of at least the number of bands the squared sensitivity is the number of
    participations, and the strategy is then the best for each number. Each of some hundred steps
    takes time ``rounds ** 3``: for more than a thousand rounds take
    :func:`optimize_banded_toeplitz` and
    :func:`~fljax.privacy.matrices.column_normalized`.

    Args:
      rounds: number of rounds, up to 4096.
      bands: number of bands, from 1 to ``rounds``.
      reduction: as in :func:`optimize_banded_toeplitz`.
      workload: as in :func:`optimize_banded_toeplitz`.

    Raises:
      ValueError: as for :func:`optimize_banded_toeplitz`.

    Reference:
      Choquette-Choo et al. 2023.

    Example:
      >>> strategy = optimize_banded(rounds=50, bands=8)
      >>> round(strategy.error(50), 2)
      5.8
    """
    loss = _Loss(rounds, 1, 1, reduction, workload)
    checks.count("rounds", rounds, at_most=4096)
    checks.count("bands", bands, at_most=rounds)
    matrix = scipy.linalg.toeplitz(
        np.ones(rounds) if loss.workload is None else loss.workload, np.zeros(rounds)
    )
    index = np.arange(rounds)[:, None] + np.arange(bands)
    inside = index < rounds
    row = index[inside]
    column = np.broadcast_to(np.arange(rounds)[:, None], index.shape)[inside]

    def unit_columns(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        strategy = np.zeros((rounds, rounds))
        strategy[row, column] = entries
        norms = np.linalg.norm(strategy, axis=0)
        return strategy / norms, norms

    def of_entries(entries: np.ndarray) -> tuple[float, np.ndarray]:
        strategy, norms = unit_columns(entries)
        solve = scipy.linalg.solve_triangular
        decoder = solve(strategy, matrix.T, lower=True, trans=1, check_finite=False).T
        errors = np.sum(decoder**2, axis=1)
        if reduction == "mean":
            value = np.mean(errors)
            weights = np.full(rounds, 1 / rounds)
        else:  # a norm of a high power, which is smooth, in place of the largest
            peak = np.max(errors)
            powers = (errors / peak) ** _SOFTMAX_POWER
            value = peak * np.mean(powers) ** (1 / _SOFTMAX_POWER)
            weights = powers / errors * value / np.sum(powers)
        # A change D of C changes B = A C^-1 by -B D C^-1.
        inner = decoder.T @ (weights[:, None] * decoder)
        gradient = -2 * solve(strategy, inner, lower=True, check_finite=False).T
        # Only the part orthogonal to a column changes it once normalized.
        gradient -= strategy * np.sum(gradient * strategy, axis=0)
        return float(value), (gradient / norms)[row, column]

    start = np.broadcast_to(toeplitz.square_root_column(bands), index.shape)[inside]
    strategy, _ = unit_columns(_minimize(of_entries, start, steps=500))
    columns = np.zeros(index.shape)
    columns[inside] = strategy[row, column]
    return Banded(columns)
