"""Composition of pure and approximate releases, and its inverse: a total split over rounds."""

from typing import Literal, TypeAlias

import numpy as np
from jax.typing import ArrayLike

from fljax._core import checks
from fljax.privacy.accounting import inputs
from fljax.privacy.accounting.inputs import Numbers, Result, checked

Rule: TypeAlias = Literal["uniform", "geometric", "advanced"]

#: Rules of the allocation of a total budget to rounds.
RULES = ("uniform", "geometric", "advanced")

#: Halvings after which an interval is below float64 rounding.
_BISECTIONS = 60


@checked
def pure_composition(epsilon: Numbers) -> Result:
    """Total of pure-DP releases ``[..., rounds]``: their sum.

    Example:
      >>> from fljax.privacy import accounting
      >>> float(accounting.pure_composition([0.5, 0.25, 0.25]))
      1.0

    References:
        Dwork & Roth 2014, Theorem 3.14 and Corollary 3.15; Gauthier 2024, Theorem 2.1.
    """
    checks.nonnegative("epsilon", epsilon)
    xp, epsilon = inputs.arrays(epsilon)
    return xp.sum(xp.atleast_1d(epsilon), axis=-1)


@checked
def basic_composition(epsilon: Numbers, delta: Numbers) -> tuple[Result, Result]:
    """Total of (epsilon, delta) releases ``[..., rounds]``: the sum of each.

    Args:
        epsilon: ``[..., rounds]``, or one number for all rounds.
        delta: ``[..., rounds]``, or one number, in [0, 1).

    Example:
      >>> from fljax.privacy import accounting
      >>> epsilon, delta = accounting.basic_composition([0.5, 0.25, 0.25], [1e-6, 0.0, 1e-6])
      >>> float(epsilon), round(float(delta), 8)
      (1.0, 2e-06)

    References:
        Dwork & Roth 2014, Theorem 3.16; Gauthier 2024, Theorem 2.2.
    """
    checks.nonnegative("epsilon", epsilon)
    checks.interval("delta", delta, at_least=0, below=1)
    xp, epsilon, delta = inputs.per_round(epsilon, delta)
    return xp.sum(epsilon, axis=-1), xp.sum(delta, axis=-1)


@checked
def advanced_composition(
    epsilon: ArrayLike, delta: ArrayLike, rounds: int, slack: ArrayLike
) -> tuple[Result, Result]:
    r"""Total of ``rounds`` equal (epsilon, delta) releases by advanced composition.

    .. math::
        \epsilon \sqrt{2 T \ln(1/\delta')} + T \epsilon (e^\epsilon - 1), \qquad T \delta + \delta'

    Args:
        epsilon: that of one release.
        delta: that of one release, in [0, 1).
        rounds: T, static.
        slack: :math:`\delta'` in (0, 1), paid once.

    Example:
      >>> from fljax.privacy import accounting
      >>> epsilon, delta = accounting.advanced_composition(0.01, 0.0, rounds=1000, slack=1e-5)
      >>> round(float(epsilon), 2), round(float(delta), 8)  # 10 by basic composition
      (1.62, 1e-05)

    References:
        Dwork & Roth 2014, Theorem 3.20.
    """
    checks.nonnegative("epsilon", epsilon)
    checks.interval("delta", delta, at_least=0, below=1)
    checks.count("rounds", rounds)
    inputs.probability("slack", slack)
    xp, *arrays = inputs.arrays(epsilon, delta, slack)
    per_release, delta_per_release, slack = xp.broadcast_arrays(*arrays)
    total = per_release * (xp.sqrt(-2 * rounds * xp.log(slack)) + rounds * xp.expm1(per_release))
    return total, rounds * delta_per_release + slack


@checked
def advanced_epsilon(total: ArrayLike, rounds: int, slack: ArrayLike) -> Result:
    """Per-release epsilon whose `advanced_composition` is ``total``, never more.

    Example:
      >>> from fljax.privacy import accounting
      >>> each = accounting.advanced_epsilon(1.0, rounds=1000, slack=1e-5)
      >>> total = accounting.advanced_composition(each, 0.0, rounds=1000, slack=1e-5)[0]
      >>> round(float(each), 4), round(float(total), 3)
      (0.0063, 1.0)
    """
    inputs.budget("total", total)
    checks.count("rounds", rounds)
    inputs.probability("slack", slack)
    xp, *arrays = inputs.arrays(total, slack)
    total, slack = xp.broadcast_arrays(*arrays)
    linear = xp.sqrt(-2 * rounds * xp.log(slack))
    low = xp.zeros_like(total)
    # Each term alone bounds the root; the second keeps exp from overflowing.
    high = xp.minimum(total / linear, xp.maximum(1, xp.log1p(total / rounds)))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        exceeds = middle * (linear + rounds * xp.expm1(middle)) > total
        low = xp.where(exceeds, low, middle)
        high = xp.where(exceeds, middle, high)
    return low[()]


@checked
def kairouz_composition(epsilon: Numbers, delta: Numbers, slack: Numbers) -> tuple[Result, Result]:
    r"""Total of unequal (epsilon, delta) releases: never worse than the basic one in epsilon.

    With :math:`m = \sum_n \epsilon_n \tanh(\epsilon_n / 2)` and :math:`s = \sum_n \epsilon_n^2`,
    the least of :math:`\sum_n \epsilon_n`, :math:`m + \sqrt{2 s \ln(1/\delta')}` and
    :math:`m + \sqrt{2 s \ln(e + \sqrt{s} / \delta')}`, at
    :math:`1 - (1 - \delta') \prod_n (1 - \delta_n)`.

    Args:
        epsilon: ``[..., rounds]``, or one number for all rounds.
        delta: ``[..., rounds]``, or one number, in [0, 1).
        slack: :math:`\delta'` in (0, 1), ``[...]``.

    Example:
      >>> from fljax.privacy import accounting
      >>> epsilon, delta = accounting.kairouz_composition([0.01] * 1000, [0.0] * 1000, slack=1e-5)
      >>> round(float(epsilon), 2), round(float(delta), 8)  # below that of advanced composition
      (1.49, 1e-05)

    References:
        Kairouz, Oh & Viswanath 2015, Theorem 3.5.
    """
    checks.nonnegative("epsilon", epsilon)
    checks.interval("delta", delta, at_least=0, below=1)
    inputs.probability("slack", slack)
    xp, per_release, delta_per_release, paid = inputs.arrays(epsilon, delta, slack)
    _, per_release, delta_per_release = inputs.per_round(per_release, delta_per_release)
    basic = xp.sum(per_release, axis=-1)
    mean = xp.sum(per_release * xp.tanh(per_release / 2), axis=-1)
    squares = xp.sum(per_release**2, axis=-1)
    log = xp.minimum(-xp.log(paid), xp.log(np.e + xp.sqrt(squares) / paid))
    total_delta = -xp.expm1(xp.log1p(-paid) + xp.sum(xp.log1p(-delta_per_release), axis=-1))
    return xp.minimum(basic, mean + xp.sqrt(2 * squares * log)), total_delta


@checked
def allocate(
    epsilon: ArrayLike,
    delta: ArrayLike,
    rounds: int,
    rule: Rule = "uniform",
    decay: ArrayLike | None = None,
) -> tuple[Result, Result]:
    r"""Split a total (epsilon, delta) over rounds, as the baseline of the thesis does.

    Args:
        epsilon: Total.
        delta: Total, in (0, 1).
        rounds: T, static.
        rule: The allocation.

            * ``"uniform"``: :math:`\epsilon / T` and :math:`\delta / T` each.
            * ``"geometric"``: :math:`\epsilon_n \propto \zeta^{-(n-1)/2}` and :math:`\delta / T`,
              so that the variance falls by :math:`\zeta` a round, as under dynamic zCDP.
            * ``"advanced"``: equal, by advanced composition, with half of delta as its slack and
              :math:`\delta / (2 T)` each.
        decay: :math:`\zeta` in (0, 1]; only ``"geometric"`` needs and reads it.

    Returns:
        Epsilon and delta of each round, both ``[..., rounds]``.

    Guarantees:
        The rounds compose to at most (epsilon, delta): by `basic_composition` for the first two
        rules, by `advanced_composition` for the third.

    References:
        Gauthier 2024 (L744) names the comparator without stating its rule; Dwork & Roth
        2014, Theorems 3.16 and 3.20.

    Example:
        >>> epsilons, deltas = allocate(1.4, 1e-3, 3, "geometric", decay=0.25)
        >>> epsilons.round(9).tolist()
        [0.2, 0.4, 0.8]
    """
    checks.choice("rule", rule, RULES)
    inputs.budget("epsilon", epsilon)
    inputs.probability("delta", delta)
    checks.count("rounds", rounds)
    if rule == "advanced":
        xp, *arrays = inputs.arrays(epsilon, delta)
        total, total_delta = xp.broadcast_arrays(*arrays)
        first = advanced_epsilon(total, rounds, total_delta / 2)[..., None]
        weights = xp.ones(rounds, total.dtype).reshape((1,) * total.ndim + (rounds,))
        return first * weights, total_delta[..., None] / (2 * rounds) * weights
    if rule == "geometric" and decay is None:
        raise ValueError(
            "rule 'geometric' needs decay, got None; "
            "pass a number in (0, 1], by which the variance falls every round."
        )
    decay = 1.0 if rule == "uniform" or decay is None else decay
    checks.interval("decay", decay, above=0, at_most=1, hint="1 is the uniform rule.")
    xp, *arrays = inputs.arrays(epsilon, delta, decay)
    total, total_delta, zeta = xp.broadcast_arrays(*arrays)
    # Counted from the last round: the weights may underflow, never overflow.
    remaining = xp.arange(rounds - 1, -1, -1, dtype=zeta.dtype)
    weights = xp.exp(xp.multiply.outer(xp.log(zeta) / 2, remaining))
    first = total[..., None] / xp.sum(weights, axis=-1, keepdims=True)
    return first * weights, total_delta[..., None] / rounds * xp.ones_like(weights)
