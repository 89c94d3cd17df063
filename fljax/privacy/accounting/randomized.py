"""Randomized response, and what a secret subsample adds to any mechanism."""

from jax.typing import ArrayLike

from fljax import _check
from fljax._arguments import checked
from fljax.privacy.accounting import _inputs
from fljax.privacy.accounting._inputs import Result

__all__ = ["randomized_response_epsilon", "randomized_response_probability", "subsampled"]


@checked
def randomized_response_epsilon(probability: ArrayLike, classes: int) -> Result:
    r"""Pure-DP cost of a label that is drawn anew with some probability.

    .. math:: \epsilon=\ln\Big(1+K\,\frac{1-p}p\Big)

    for a label of :math:`K` classes that a uniform draw among all of them replaces with probability
    :math:`p`. It is exactly that: a label stays with :math:`1-p+p/K` and becomes each other one
    with :math:`p/K`.

    Args:
        probability: :math:`p` in (0, 1].
        classes: :math:`K`, two or more.

    Guarantees:
        Local :math:`\epsilon`-DP of the label: whoever has the randomized one, with features and
        all other labels, tells two labels apart no better. Nothing of the features.

    References:
        Warner 1965; Dwork & Roth 2014, section 3.2 (with two classes and p = 1/2, ln 3).

    Example:
        >>> round(float(randomized_response_epsilon(0.5, classes=2)), 4)  # ln 3
        1.0986
    """
    _check.interval("probability", probability, above=0, at_most=1, hint="At zero nothing is said.")
    _check.count("classes", classes, at_least=2)
    xp, probability = _inputs.arrays(probability)
    return xp.log1p(classes * (1 - probability) / probability)


@checked
def randomized_response_probability(epsilon: ArrayLike, classes: int) -> Result:
    r"""How often a label must be drawn anew: the inverse of `randomized_response_epsilon`.

    Example:
        >>> round(float(randomized_response_probability(1.0986, classes=2)), 4)
        0.5
    """
    _inputs.budget("epsilon", epsilon)
    _check.count("classes", classes, at_least=2)
    xp, epsilon = _inputs.arrays(epsilon)
    return classes / (classes + xp.expm1(epsilon))


@checked
def subsampled(epsilon: ArrayLike, delta: ArrayLike, fraction: ArrayLike) -> tuple[Result, Result]:
    r"""What an (epsilon, delta)-DP mechanism is on a secret subsample of the data.

    .. math:: \epsilon'=\ln\big(1+q\,(e^\epsilon-1)\big),\qquad\delta'=q\,\delta.

    Of Gaussian noise the exact accounting of `sampled_gaussian_epsilon` is tighter over many
    releases.

    Args:
        epsilon: of the mechanism on what it is given, >= 0.
        delta: of it, in [0, 1).
        fraction: :math:`q` in (0, 1]: the probability with which each sample is drawn independently
            (neighbors by adding or removing one), or the share of all that is drawn without
            replacement (neighbors by replacing one).

    Returns:
        Epsilon and delta of the whole, for the same neighbors.

    Guarantees:
        Only if nobody learns which samples were drawn. A subsample *without* a mechanism that is
        private has no guarantee at all: the samples in it are told.

    References:
        Balle, Barthe & Gaboardi 2018, theorems 8 and 9.

    Example:
        >>> epsilon, delta = subsampled(1.0, 1e-5, fraction=0.1)
        >>> round(float(epsilon), 4), round(float(delta), 8)
        (0.1586, 1e-06)
    """
    _check.nonnegative("epsilon", epsilon)
    _check.interval("delta", delta, at_least=0, below=1)
    _check.interval("fraction", fraction, above=0, at_most=1)
    xp, epsilon, delta, fraction = _inputs.arrays(epsilon, delta, fraction)
    return xp.log1p(fraction * xp.expm1(epsilon)), fraction * delta
