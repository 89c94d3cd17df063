"""Randomized response, and amplification of any mechanism by a secret subsample."""

from jax.typing import ArrayLike

from fljax._core import checks
from fljax.privacy.accounting import inputs
from fljax.privacy.accounting.inputs import Result, checked

#: Rounding units that the exponential functions and the arithmetic of a probability lose at most.
ROUNDINGS = 16


@checked
def randomized_response_epsilon(probability: ArrayLike, classes: int) -> Result:
    r"""Pure-DP cost of a label that is redrawn with some probability.

    .. math:: \epsilon=\ln\Big(1+K\,\frac{1-p}p\Big)

    for a label of :math:`K` classes that is replaced, with probability :math:`p`, by a uniform draw
    among all of them. The value is exact: a label stays with probability :math:`1-p+p/K` and
    becomes each other label with probability :math:`p/K`.

    Args:
        probability: :math:`p` in (0, 1].
        classes: :math:`K`, two or more.

    Guarantees:
        Local :math:`\epsilon`-DP of the label: whoever has the randomized label, with features and
        all other labels, cannot distinguish two labels better than that. Features are not
        protected.

    References:
        Warner 1965; Dwork & Roth 2014, section 3.2 (with two classes and p = 1/2, ln 3).

    Example:
        >>> round(float(randomized_response_epsilon(0.5, classes=2)), 4)  # ln 3
        1.0986
    """
    checks.interval(
        "probability", probability, above=0, at_most=1, hint="At zero no true class is reported."
    )
    checks.count("classes", classes, at_least=2)
    xp, probability = inputs.arrays(probability)
    return xp.log1p(classes * (1 - probability) / probability)


@checked
def randomized_response_probability(epsilon: ArrayLike, classes: int) -> Result:
    r"""Probability with which a label is redrawn, the inverse of `randomized_response_epsilon`.

    It is rounded up, so that its epsilon is not above the given one: one, at which nothing is left
    of a label, for budgets so small that no smaller number of its precision has them.

    Example:
        >>> round(float(randomized_response_probability(1.0986, classes=2)), 4)
        0.5
    """
    inputs.budget("epsilon", epsilon)
    checks.count("classes", classes, at_least=2)
    xp, value = inputs.arrays(epsilon)
    limits = xp.finfo(value.dtype)
    redrawn = classes * xp.exp(-value)
    retained = -xp.expm1(-value)
    # Either is computed with an error of a few last places. The smaller one has all of its digits.
    rounding = ROUNDINGS * float(limits.eps)
    rare = xp.maximum(redrawn / (redrawn + retained) * (1 + rounding), limits.tiny)
    retained_share = retained / (redrawn + retained) * (1 - rounding)
    return xp.where(
        retained_share < 0.5, xp.nextafter(1 - retained_share, xp.ones_like(retained_share)), rare
    )


@checked
def subsampled(epsilon: ArrayLike, delta: ArrayLike, fraction: ArrayLike) -> tuple[Result, Result]:
    r"""Epsilon and delta of an (epsilon, delta)-DP mechanism on a secret subsample of the data.

    .. math:: \epsilon'=\ln\big(1+q\,(e^\epsilon-1)\big),\qquad\delta'=q\,\delta.

    For Gaussian noise the exact accounting of `sampled_gaussian_epsilon` is tighter over many
    releases.

    Args:
        epsilon: of the mechanism on its input, >= 0.
        delta: of the mechanism on its input, in [0, 1).
        fraction: :math:`q` in (0, 1]: the probability with which each sample is drawn independently
            (neighbors by adding or removing one), or the share of all that is drawn without
            replacement (neighbors by replacing one).

    Returns:
        Epsilon and delta of sampling and mechanism together, for the same neighbors.

    Guarantees:
        Only if the drawn samples stay secret. A subsample *without* a private mechanism
        has no guarantee at all: the samples in it are revealed.

    References:
        Balle, Barthe & Gaboardi 2018, theorems 8 and 9.

    Example:
        >>> epsilon, delta = subsampled(1.0, 1e-5, fraction=0.1)
        >>> round(float(epsilon), 4), round(float(delta), 8)
        (0.1586, 1e-06)
    """
    checks.nonnegative("epsilon", epsilon)
    checks.interval("delta", delta, at_least=0, below=1)
    checks.interval("fraction", fraction, above=0, at_most=1)
    xp, spent, delta, share = inputs.arrays(epsilon, delta, fraction)
    # For a large epsilon the exponential is factored out, so that it cannot overflow.
    small = xp.log1p(share * xp.expm1(xp.minimum(spent, 30)))
    large = spent + xp.log(share + (1 - share) * xp.exp(-spent))
    return xp.where(spent < 30, small, large)[()], share * delta
