r"""Private selection: the privacy of the best of a random number of trials.

A trial is a private mechanism whose output has a score, such as a training run with hyperparameters
drawn at random. Publishing the best of a *fixed* number of trials costs as much as publishing all
of them, up to small factors, even if only one number is shown. If the number of trials is random
and stays secret, the cost is a small multiple of that of a single trial (Liu & Talwar 2019;
Papernot & Steinke 2022). The theorems require that

* all trials are independent and identically distributed (fresh noise, the same way of drawing the
  hyperparameters, independent of the results of other trials), on the same data;
* the number of trials is drawn from one of the distributions below, independently of the data;
* nothing but the output of the best trial is published: neither the number of trials nor anything
  of the others;
* the score is a part of the trial's output, or computed from it and from data that are not
  protected: the guarantee of a trial includes it.

References:
* *Papernot & Steinke 2022*: Hyperparameter tuning with Rényi differential privacy, ICLR
  (numbering of arXiv:2110.03620v2).
* *Liu & Talwar 2019*: Private selection from private candidates, STOC.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from jax.typing import ArrayLike

from fljax._core import checks
from fljax.privacy.accounting import inputs
from fljax.privacy.accounting.conversions import zcdp_delta
from fljax.privacy.accounting.inputs import Numbers, Result, checked
from fljax.privacy.accounting.renyi import renyi_delta

#: Shapes closer to zero than this are the logarithmic distribution, their limit.
_LOGARITHMIC = 1e-9

#: Orders minus one at which a conversion is evaluated before its minimum is refined.
_ORDERS = np.geomspace(1e-4, 1e7, 400)


def _check_trials(shape: float, stop: float) -> None:
    checks.interval("shape", shape, above=-1, hint="1 is the geometric distribution.")
    checks.interval("stop", stop, above=0, below=1, hint="1 / stop trials are made on average.")


@checked
def selection_mean(shape: float, stop: float) -> float:
    r"""Mean number of trials of the truncated negative binomial distribution,

    .. math::
        \Pr[K=k]=\frac{(1-\gamma)^k}{\gamma^{-\eta}-1}\prod_{l=0}^{k-1}\frac{l+\eta}{l+1},\quad
        k\ge1,\qquad \mathbb E[K]=\frac{\eta(1-\gamma)}{\gamma(1-\gamma^\eta)} .

    For :math:`\eta=0` it is the logarithmic distribution, :math:`(1-\gamma)^k/(k\ln(1/\gamma))`,
    and for :math:`\eta=1` the geometric one.

    Args:
        shape: :math:`\eta>-1`.
        stop: :math:`\gamma` in (0, 1).

    References:
        Papernot & Steinke 2022, Definition 1.

    Example:
        >>> round(selection_mean(1.0, 0.1), 3), round(selection_mean(0.0, 0.1), 3)
        (10.0, 3.909)
    """
    _check_trials(shape, stop)
    shape = float(shape)
    stop = float(stop)
    if abs(shape) < _LOGARITHMIC:
        return (1 - stop) / (stop * -math.log(stop))
    return shape * (1 - stop) / (stop * -math.expm1(shape * math.log(stop)))


@checked
def selection_stop(mean: float, shape: float = 1.0) -> float:
    """Return the ``stop`` parameter for a mean number of trials, the inverse of `selection_mean`.

    Args:
        mean: Mean number of trials, > 1.
        shape: As for `selection_mean`.

    Example:
        >>> round(selection_stop(20.0), 4), round(selection_stop(20.0, shape=0.0), 4)
        (0.05, 0.011)
    """
    checks.interval("mean", mean, above=1, hint="A single trial selects nothing.")
    checks.interval("shape", shape, above=-1)

    def excess(log: float) -> float:
        return math.log(selection_mean(shape, math.exp(log))) - math.log(mean)

    low = -1.0
    high = -1e-12
    if excess(high) > 0:
        raise ValueError(
            f"mean must be larger, got {mean!r}: with shape {shape:g} more trials are made."
        )
    while excess(low) < 0:  # the mean grows without bound as the parameter falls
        low *= 2
        if low < -700:
            raise ValueError(f"no distribution of shape {shape:g} has the mean {mean:g}.")
    root: Any = scipy.optimize.brentq(excess, low, high, xtol=1e-14)
    return math.exp(root)


@checked
def selection_probabilities(most: int, shape: float, stop: float) -> np.ndarray:
    """Probabilities of 1, 2, ..., ``most`` trials, ``[most]``; see `selection_mean`.

    Example:
        >>> selection_probabilities(3, shape=1.0, stop=0.5).tolist()
        [0.5, 0.25, 0.125]
    """
    _check_trials(shape, stop)
    checks.count("most", most)
    shape, first = _first(float(shape), float(stop))
    before = np.arange(1, most)
    return first * np.cumprod(np.append(1.0, (1 - stop) * (before + shape) / (before + 1)))


def _first(shape: float, stop: float) -> tuple[float, float]:
    """The shape, zero where it is that of the logarithmic distribution, and the probability of one
    trial; each next probability is ``(1 - stop) (k + shape) / (k + 1)`` times the one before.
    """
    if abs(shape) < _LOGARITHMIC:
        return 0.0, (1 - stop) / -math.log(stop)
    exponent = -shape * math.log(stop)
    if exponent > 700:
        raise ValueError(
            f"with shape {shape:g} and stop {stop:g} a single trial is less probable than the "
            f"smallest number can say; {selection_mean(shape, stop):.3g} are made on average. Take "
            "a larger stop or a smaller shape."
        )
    return shape, (1 - stop) * shape / math.expm1(exponent)


@checked
def draw_trials(uniform: Callable[[], float], shape: float, stop: float) -> int:
    """Draw a number of trials from the truncated negative binomial distribution.

    Args:
        uniform: Returns a number in [0, 1) at each call; ``random.SystemRandom().random`` draws
            from the system's entropy.
        shape: As for `selection_mean`.
        stop: As for `selection_mean`.

    Example:
        >>> [draw_trials(lambda: u, shape=1.0, stop=0.5) for u in (0.1, 0.6, 0.9)]
        [1, 2, 4]
    """
    _check_trials(shape, stop)
    shape, probability = _first(float(shape), float(stop))
    left = uniform()
    number = 1
    while left >= probability and probability > 0:
        left -= probability
        probability *= (1 - stop) * (number + shape) / (number + 1)
        number += 1
    return number


@checked
def selection_renyi(orders: Numbers, rdp: Numbers, shape: float, stop: float) -> np.ndarray:
    r"""Rényi-DP curve of the best of a random number of trials, from the curve of one trial.

    A trial is :math:`(\lambda,\varepsilon_\lambda)`-RDP at each order; the output of the best of
    :math:`K` trials is :math:`(\lambda,\varepsilon')`-RDP with

    .. math::
        \varepsilon'=\varepsilon_\lambda+\min_{\hat\lambda}(1+\eta)\Big(\big(1-\tfrac1{\hat\lambda}
        \big)\varepsilon_{\hat\lambda}+\frac{\ln(1/\gamma)}{\hat\lambda}\Big)
        +\frac{\ln\mathbb E[K]}{\lambda-1} .

    The minimum is over the given orders and :math:`\hat\lambda=1`, where the first term vanishes.

    Args:
        orders: :math:`\lambda` > 1, ``[A]``.
        rdp: Curve of one trial, ``[A]``.
        shape: :math:`\eta`, as for `selection_mean`.
        stop: :math:`\gamma`.

    References:
        Papernot & Steinke 2022, Theorem 2.

    Example:
        >>> from fljax.privacy.accounting import RENYI_ORDERS, renyi_epsilon, renyi_gaussian
        >>> trial = renyi_gaussian(RENYI_ORDERS, sensitivity=1.0, sigma=2.0)
        >>> best = selection_renyi(RENYI_ORDERS, trial, shape=1.0, stop=0.1)
        >>> [round(float(renyi_epsilon(RENYI_ORDERS, curve, 1e-5)), 2) for curve in (trial, best)]
        [2.17, 4.32]
    """
    _check_trials(shape, stop)
    alpha, curve = _curve(orders, rdp)
    log = -math.log(stop)
    other = min(float(np.min((1 - 1 / alpha) * curve + log / alpha)), log)
    return curve + (1 + shape) * other + math.log(selection_mean(shape, stop)) / (alpha - 1)


@checked
def selection_epsilon(rho: float, delta: float, shape: float, stop: float) -> float:
    r"""Epsilon at ``delta`` of the best of a random number of trials that are :math:`\rho`-zCDP.

    The curve of a trial is :math:`\rho\lambda`, so that the minimum of `selection_renyi` over
    :math:`\hat\lambda` has a closed form, :math:`(1+\eta)(2\sqrt{\rho\ln(1/\gamma)}-\rho)` for
    :math:`\rho\le\ln(1/\gamma)` and :math:`(1+\eta)\ln(1/\gamma)` beyond. It is converted at the
    best order :math:`\lambda` (Canonne, Kamath & Steinke 2020, Proposition 12).

    Args:
        rho: zCDP parameter of one trial.
        delta: In (0, 1).
        shape: :math:`\eta`, as for `selection_mean`.
        stop: :math:`\gamma`.

    Guarantees:
        (epsilon, delta)-DP of the output of the best trial, under the conditions in
        :mod:`fljax.privacy.accounting.selection`.

    References:
        Papernot & Steinke 2022, Theorem 2.

    Example:
        >>> from fljax.privacy.accounting import zcdp_epsilon
        >>> once = float(zcdp_epsilon(0.1, 1e-5, "canonne-kamath-steinke"))
        >>> round(once, 2), round(selection_epsilon(0.1, 1e-5, shape=1.0, stop=0.1), 2)
        (1.91, 3.86)
    """
    _check_trials(shape, stop)
    checks.nonnegative("rho", rho)
    inputs.probability("delta", delta)
    rho = float(rho)
    shape = float(shape)
    if rho == 0:
        return 0.0
    log = -math.log(stop)
    other = 2 * math.sqrt(rho * log) - rho if rho <= log else log
    extra = (1 + shape) * other
    mean = math.log(selection_mean(shape, stop))
    return _converted(lambda t: rho * (t + 1) + extra + mean / t, delta)


@checked
def poisson_selection_renyi(
    orders: Numbers, rdp: Numbers, mean: float, delta: Numbers | None = None
) -> np.ndarray:
    r"""Rényi-DP curve of the best of a Poisson number of trials, from the curve of one trial.

    If a trial is :math:`(\lambda,\varepsilon)`-RDP and also :math:`(\hat\varepsilon,\hat\delta)`-DP
    with :math:`e^{\hat\varepsilon}\le1+\frac1{\lambda-1}`, the output is
    :math:`(\lambda,\varepsilon')`-RDP with
    :math:`\varepsilon'=\varepsilon+\mu\hat\delta+\frac{\ln\mu}{\lambda-1}`. Where no trial is made,
    an output that depends on no data is published. That outcome, of probability
    :math:`e^{-\mu}`, is counted as one of its own here:

    .. math:: \varepsilon'=\frac1{\lambda-1}\ln\Big(e^{-\mu}
        +\mu\,e^{(\lambda-1)(\varepsilon+\mu\hat\delta)}\Big) .

    Args:
        orders: :math:`\lambda` > 1, ``[A]``.
        rdp: Curve of one trial, ``[A]``.
        mean: :math:`\mu` > 0, the mean number of trials.
        delta: :math:`\hat\delta` of one trial at
            :math:`\hat\varepsilon=\ln(1+\frac1{\lambda-1})` of each order, ``[A]``; by default
            the bound that follows from its curve at the given orders.

    References:
        Papernot & Steinke 2022, Theorem 6.

    Example:
        >>> from fljax.privacy.accounting import RENYI_ORDERS, renyi_epsilon, renyi_gaussian
        >>> trial = renyi_gaussian(RENYI_ORDERS, sensitivity=1.0, sigma=4.0)
        >>> best = poisson_selection_renyi(RENYI_ORDERS, trial, mean=10.0)
        >>> [round(float(renyi_epsilon(RENYI_ORDERS, curve, 1e-5)), 2) for curve in (trial, best)]
        [1.01, 2.35]
    """
    checks.positive("mean", mean)
    alpha, curve = _curve(orders, rdp)
    allowed = -np.log1p(-1 / alpha)  # = ln(1 + 1 / (alpha - 1))
    if delta is None:
        missed = np.array([float(renyi_delta(alpha, curve, epsilon)) for epsilon in allowed])
    else:
        checks.interval("delta", delta, at_least=0, at_most=1)
        missed = np.asarray(delta, np.float64)
        if missed.shape not in ((), alpha.shape):
            raise ValueError(
                f"delta must be one number, or one for each of the {alpha.size} orders, got shape "
                f"{missed.shape}."
            )
    exponent = math.log(mean) + (alpha - 1) * (curve + mean * missed)
    return np.logaddexp(-mean, exponent) / (alpha - 1)


@checked
def poisson_selection_epsilon(rho: float, delta: float, mean: float) -> float:
    r"""Epsilon at ``delta`` of the best of a Poisson number of trials that are :math:`\rho`-zCDP.

    As `poisson_selection_renyi`, with :math:`\hat\delta` by the conversion of zCDP (Canonne, Kamath
    & Steinke 2020, Corollary 13), at the best order.

    Args:
        rho: zCDP parameter of one trial.
        delta: In (0, 1).
        mean: :math:`\mu` > 0, the mean number of trials.

    Example:
        >>> round(poisson_selection_epsilon(0.1, 1e-5, mean=10.0), 2)
        4.36
    """
    checks.positive("mean", mean)
    checks.nonnegative("rho", rho)
    inputs.probability("delta", delta)
    rho = float(rho)
    if rho == 0:
        return 0.0

    def curve(t: float) -> float:
        missed = float(zcdp_delta(rho, math.log1p(1 / t), "canonne-kamath-steinke"))
        exponent = math.log(mean) + t * (rho * (t + 1) + mean * missed)
        return float(np.logaddexp(-mean, exponent)) / t

    return _converted(curve, delta)


def _curve(orders: Numbers, rdp: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Orders and the curve of one trial as float64 arrays ``[A]``."""
    checks.interval("orders", orders, above=1, hint="RENYI_ORDERS is a good default.")
    checks.nonnegative("rdp", rdp)
    inputs.same_length(orders=orders, rdp=rdp)
    alpha, curve = inputs.on_host("selection_renyi", "", orders=orders, rdp=rdp)
    if alpha.ndim != 1 or curve.shape != alpha.shape:
        raise ValueError(
            f"rdp must be the curve of one trial, one number for each order, got shapes "
            f"{curve.shape} and {alpha.shape}."
        )
    return alpha, curve


def _converted(curve: Callable[[float], float], delta: ArrayLike) -> Result:
    """Epsilon at ``delta`` from a Rényi-DP curve of the order minus one; every order gives a valid
    epsilon, so that the search for the best need not be exact.
    """
    log = -math.log(float(delta))  # pyright: ignore[reportArgumentType]

    def epsilon(log_t: float) -> float:
        t = math.exp(log_t)
        return curve(t) + (log - math.log1p(t)) / t - math.log1p(1 / t)

    values = [epsilon(math.log(t)) for t in _ORDERS]
    best = int(np.argmin(values))
    bracket = _ORDERS[max(best - 1, 0)], _ORDERS[min(best + 1, len(_ORDERS) - 1)]
    optimum = scipy.optimize.minimize_scalar(
        epsilon, bounds=tuple(map(math.log, bracket)), method="bounded", options={"xatol": 1e-10}
    )
    return max(0.0, min(float(optimum.fun), values[best]))
