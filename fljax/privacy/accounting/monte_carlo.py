r"""Accounting by simulation: upper confidence bounds on delta from draws of the privacy loss.

Where a pair of distributions :math:`P,Q` dominates a mechanism but has no closed form,

.. math:: \delta(\epsilon)=\mathbb E_{y\sim P}\big[\max(0,1-e^{\epsilon-L(y)})\big],\qquad
   L(y)=\ln\frac{P(y)}{Q(y)},

is the mean of a bounded random variable, and is bounded from above with confidence
:math:`1-\beta`. The numbers returned here contain that confidence: where the bound is
:math:`\bar\delta`, the result is :math:`\bar\delta+\beta`. So the statement holds for the
mechanism that draws these losses first and then runs: with probability :math:`\beta` the bound
fails, and then delta is at most one.

The epsilon at a given delta is the smallest whose bound is within it. As each draw's term
falls with epsilon, so does the bound on every sample path, and the smallest epsilon that passes is
below the true one only if the bound fails *at* the true one: one confidence covers all of them, and
no union over the epsilons tried is needed.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from fljax._core import checks
from fljax.privacy.accounting.inputs import checked, probability


def hockey_stick_terms(losses: np.ndarray, epsilon: float) -> np.ndarray:
    """The positive part of ``1 - exp(epsilon - loss)`` of each draw."""
    return -np.expm1(np.minimum(epsilon - losses, 0.0))


def betting_excess(terms: np.ndarray, unseen: int, mean: float, stake: float) -> float:
    r"""Logarithm of the wealth of a bet, per draw, that the terms' mean is below ``mean``.

    With the stake :math:`\lambda` it is :math:`\sum_i\ln(1+\lambda(m-X_i))`. If the mean is
    :math:`m` and no factor can be negative, the wealth has mean 1, so that it exceeds
    :math:`1/\beta` with probability :math:`\beta` at most (Markov). The stake must not depend on
    the draws.

    Args:
      terms: :math:`X_i`, the terms that may be positive.
      unseen: number of further draws, whose terms are zero.
      mean: :math:`m`.
      stake: :math:`\lambda`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.sum(np.log1p(stake * (mean - terms))) + unseen * math.log1p(stake * mean))


def smallest(passes: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number of an interval that passes, to a relative 1e-9 from above.

    ``high`` passes, and so does every number above one that passes.
    """
    if passes(low):
        return low
    while high - low > 1e-9 * max(1.0, abs(high)):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def _kl_bound(mean: float, count: int, failure: float) -> float:
    r"""The largest mean :math:`p` with :math:`N\,\text{kl}(\text{mean},p)\le\ln(1/\beta)`."""
    if mean >= 1:
        return 1.0

    def passes(p: float) -> bool:
        divergence = (1 - mean) * math.log((1 - mean) / (1 - p)) if p < 1 else math.inf
        if mean > 0:
            divergence += mean * math.log(mean / p)
        return count * divergence >= math.log(1 / failure)

    # The bound is found on a logarithmic scale, as small ones matter.
    start = max(mean, 1e-3 / count)
    if passes(start):
        return start
    return math.exp(smallest(lambda x: passes(math.exp(x)), math.log(start), 0.0))


def _losses(losses: Float[np.ndarray, " samples"] | Sequence[float]) -> np.ndarray:
    array = np.asarray(checks.filled("losses", losses, 1), np.float64)
    if np.isnan(array).any():
        raise ValueError("losses must be numbers, and some are nan; mend what computes them.")
    return array


@checked
def monte_carlo_delta(
    losses: Float[np.ndarray, " samples"] | Sequence[float], epsilon: float, failure: float = 1e-9
) -> float:
    r"""Return delta at ``epsilon`` from draws of the privacy loss, with its confidence.

    Args:
      losses: independent draws of :math:`L(y)` with :math:`y\sim P`.
      epsilon: >= 0.
      failure: :math:`\beta`, the probability that the bound fails, which is added to it.

    Returns:
      The mean's upper bound by Hoeffding's inequality in its form with the binary divergence, plus
      ``failure``; 1 at most.

    Raises:
      ValueError: numbers out of their ranges, no losses.

    Guarantees:
      An upper bound on :math:`\delta(\epsilon)` of the pair with probability :math:`1-\beta`; where
      neither of two directions dominates, take the larger of both.

    Reference:
      Hoeffding 1963, Theorem 1; Choquette-Choo et al. 2024; Wang et al. 2023 (verification as part
      of a mechanism).

    Example:
      >>> import numpy as np
      >>> from fljax.privacy.accounting import zcdp_delta
      >>> losses = np.random.default_rng(0).normal(0.125, 0.5, size=100_000)  # a Gaussian release
      >>> exact = zcdp_delta(0.125, 1.0, "gaussian")
      >>> exact.round(5), round(monte_carlo_delta(losses, epsilon=1.0), 5)
      (np.float64(0.00683), 0.00866)
    """
    array = _losses(losses)
    checks.nonnegative("epsilon", epsilon)
    probability("failure", failure)
    return min(1.0, _bound(array, epsilon, failure) + failure)


def _bound(losses: np.ndarray, epsilon: float, failure: float) -> float:
    """The upper confidence bound without its probability of failure."""
    return _kl_bound(float(np.mean(hockey_stick_terms(losses, epsilon))), len(losses), failure)


@checked
def monte_carlo_epsilon(
    losses: Float[np.ndarray, " samples"] | Sequence[float],
    delta: float,
    failure: float | None = None,
) -> float:
    r"""Return epsilon at ``delta`` from draws of the privacy loss, with its confidence.

    Args:
      losses: independent draws of :math:`L(y)` with :math:`y\sim P`.
      delta: in (0, 1).
      failure: :math:`\beta<\delta`, the probability that the bound fails, which is a part of delta;
        a hundredth of it by default.

    Returns:
      The smallest epsilon for which :func:`monte_carlo_delta` is at most ``delta``; infinity where
      so few draws show nothing about so small a delta, fewer than
      :math:`\ln(1/\beta)/(\delta-\beta)`.

    Raises:
      ValueError: numbers out of their ranges, no losses.

    Reference:
      As for :func:`monte_carlo_delta`.

    Example:
      >>> import numpy as np
      >>> from fljax.privacy.accounting import zcdp_epsilon
      >>> losses = np.random.default_rng(0).normal(0.125, 0.5, size=100_000)  # a Gaussian release
      >>> exact = zcdp_epsilon(0.125, 1e-3, "gaussian")
      >>> exact.round(2), round(monte_carlo_epsilon(losses, 1e-3), 2)
      (np.float64(1.35), 1.46)
    """
    array = _losses(losses)
    probability("delta", delta)
    failure = delta / 100 if failure is None else failure
    checks.interval("failure", failure, above=0, below=delta, hint="It is a part of delta.")

    def passes(epsilon: float) -> bool:
        return _bound(array, epsilon, failure) + failure <= delta

    most = float(max(np.max(array), 0.0))
    if not (math.isfinite(most) and passes(most)):
        return math.inf
    return smallest(passes, 0.0, most)
