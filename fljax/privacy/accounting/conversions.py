"""From concentrated to approximate differential privacy and back.

The thesis's proposition in closed form, two tighter conversions by root finding on the host.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy
from jax.typing import ArrayLike

from fljax._core import checks
from fljax.privacy.accounting import inputs
from fljax.privacy.accounting.inputs import Result, checked

Conversion: TypeAlias = Literal["proposition", "canonne-kamath-steinke", "gaussian"]

#: Conversions of a zCDP guarantee to (epsilon, delta)-DP.
CONVERSIONS = ("proposition", "canonne-kamath-steinke", "gaussian")


@checked
def pure_to_zcdp(epsilon: ArrayLike) -> Result:
    r"""ZCDP implied by :math:`\epsilon`-DP, :math:`\rho = \epsilon^2 / 2`.

    Example:
      >>> from fljax.privacy import accounting
      >>> float(accounting.pure_to_zcdp(1.0))
      0.5

    References:
        Bun & Steinke 2016, Proposition 1.4.
    """
    checks.nonnegative("epsilon", epsilon)
    _, epsilon = inputs.arrays(epsilon)
    return epsilon**2 / 2


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    # Relative accuracy only: roots may be as small as 1e-20.
    brentq: Callable[..., Any] = scipy.optimize.brentq
    return float(brentq(f, low, high, xtol=1e-300, rtol=1e-14, maxiter=1000))


def _log_delta_gaussian(rho: float, epsilon: float) -> float:
    """Log delta of a Gaussian mechanism (Balle & Wang 2018, Theorem 8; mu = sensitivity/sigma)."""
    mu = np.sqrt(2 * rho)
    upper = mu / 2 - epsilon / mu
    lower = -mu / 2 - epsilon / mu
    if mu < 1:
        # Both terms are nearly equal, and are the density at the upper point times Mills ratios.
        rise = _mills_rise(upper, lower, mu)
        return -(upper**2) / 2 - np.log(2 * np.pi) / 2 + np.log(rise) if rise > 0 else -np.inf
    first = scipy.special.log_ndtr(upper)
    second = epsilon + scipy.special.log_ndtr(lower)
    # In logarithms, so that deltas below the smallest float still steer the root finder.
    with np.errstate(divide="ignore"):
        return first + np.log(-np.expm1(min(second - first, 0.0)))


def _mills_rise(upper: float, lower: float, width: float) -> float:
    """By how much m(x) = Phi(x) / phi(x) rises from one point to the other, without cancellation.

    Close points would cancel: there it is the mean of the derivatives 1 + x m(x) at both ends,
    which is not less, since the derivative is convex.
    """

    def mills(x: float) -> float:
        return np.sqrt(np.pi / 2) * scipy.special.erfcx(-x / np.sqrt(2))

    def derivative(x: float) -> float:
        return 1 + x * mills(x) if x > -1e3 else 1 / x**2

    if width < 1e-5:
        return width * (derivative(upper) + derivative(lower)) / 2
    return mills(upper) - mills(lower)


def _log_delta_cks(rho: float, epsilon: float) -> float:
    """Least log delta over the orders (Canonne, Kamath & Steinke 2020, Corollary 13).

    With t = order - 1, log delta is t ((t + 1) rho - epsilon) + t log t - (t + 1) log(t + 1),
    convex in t; its derivative is written in u = log t, where the root is never near a boundary.
    """

    def derivative(u: float) -> float:
        return (2 * np.exp(u) + 1) * rho - epsilon - np.logaddexp(0, -u)

    u = _root(derivative, min(0.0, epsilon - 3 * rho - 1), np.log((epsilon + 1) / (2 * rho) + 1))
    t = np.exp(u)
    return t * ((t + 1) * rho - epsilon) - t * np.logaddexp(0, -u) - np.log1p(t)


_LOG_DELTA = {"canonne-kamath-steinke": _log_delta_cks, "gaussian": _log_delta_gaussian}


def _tight_epsilon(log_delta: Callable, rho: float, delta: float) -> float:
    if rho == 0 or log_delta(rho, 0.0) <= np.log(delta):
        return 0.0
    looser = rho + 2 * np.sqrt(-rho * np.log(delta))
    if log_delta(rho, looser) >= np.log(delta):  # of numbers so large that they round to one
        return looser
    return _root(lambda epsilon: log_delta(rho, epsilon) - np.log(delta), 0.0, looser)


def _tight_delta(log_delta: Callable, rho: float, epsilon: float) -> float:
    # By the proposition delta is below the smallest number where the second condition holds.
    if rho == 0 or (epsilon > rho and (epsilon - rho) * ((epsilon - rho) / rho) > 4000):
        return 0.0
    return float(np.exp(min(0.0, log_delta(rho, epsilon))))


def _tight_rho(log_delta: Callable, epsilon: float, delta: float) -> float:
    least = _proposition_rho(np, epsilon, delta)
    if not least:
        raise ValueError(
            f"an epsilon of {epsilon:g} at a delta of {delta:g} needs a rho below the smallest "
            f"number, {np.finfo(float).tiny:.3g}; no noise that can be written down gives it."
        )
    low = np.log(least)
    if log_delta(np.exp(low), epsilon) >= np.log(delta):  # of numbers that round to one
        return least * (1 - 1e-13)  # more than the logarithm's rounding, and safe
    high = low + 1
    while log_delta(np.exp(high), epsilon) < np.log(delta):
        high += 1
    return np.exp(_root(lambda r: log_delta(np.exp(r), epsilon) - np.log(delta), low, high))


def _proposition_rho(xp: ModuleType, epsilon: Any, delta: Any) -> Result:
    # (sqrt(L + epsilon) - sqrt(L))^2 without its cancellation for small epsilon.
    log = -xp.log(delta)
    return (epsilon / (xp.sqrt(log + epsilon) + xp.sqrt(log))) ** 2


def _tight(function: str, solve: Callable, conversion: str, **values: ArrayLike) -> Result:
    arrays = inputs.on_host(
        f"{function}(conversion={conversion!r})", ", or use conversion='proposition'", **values
    )
    solve_all = np.vectorize(lambda *a: solve(_LOG_DELTA[conversion], *a), otypes=[float])
    return solve_all(*arrays)[()]


@checked
def zcdp_epsilon(
    rho: ArrayLike, delta: ArrayLike, conversion: Conversion = "proposition"
) -> Result:
    r"""Epsilon at ``delta`` of a mechanism that is :math:`\rho`-zCDP.

    Args:
        rho: Total zCDP cost, the sum over releases.
        delta: In (0, 1).
        conversion: The theorem.

            * ``"proposition"``: :math:`\rho + 2 \sqrt{\rho \ln(1/\delta)}`, as in the thesis.
            * ``"canonne-kamath-steinke"``: the minimum over all orders, tighter, as general (host).
            * ``"gaussian"``: exact, but only if *every* release is Gaussian noise on a vector of
              bounded l2 sensitivity: such releases, adaptive or not, compose to
              :math:`\mu`-GDP with :math:`\mu = \sqrt{2 \rho}` (host).

    Returns:
        Epsilon, >= 0; ordered gaussian <= canonne-kamath-steinke <= proposition.

    Guarantees:
        The mechanism is (epsilon, delta)-DP, simultaneously for each delta of (0, 1).

    References:
        Bun & Steinke 2016, Proposition 1.3; Gauthier 2024, Corollary (L610). Canonne, Kamath &
        Steinke 2020, Corollary 13. Balle & Wang 2018, Theorem 8, with Dong, Roth & Su 2022,
        Theorem 2.7 and Corollary 3.3 (Gaussian mechanism, composition).

    Example:
        >>> [round(float(zcdp_epsilon(0.1, 1e-5, c)), 3) for c in CONVERSIONS]
        [2.246, 1.914, 1.76]
    """
    checks.choice("conversion", conversion, CONVERSIONS)
    checks.nonnegative("rho", rho)
    inputs.probability("delta", delta)
    if conversion == "proposition":
        xp, rho, delta = inputs.arrays(rho, delta)
        return rho + 2 * xp.sqrt(rho * -xp.log(delta))
    return _tight("zcdp_epsilon", _tight_epsilon, conversion, rho=rho, delta=delta)


@checked
def zcdp_delta(
    rho: ArrayLike, epsilon: ArrayLike, conversion: Conversion = "proposition"
) -> Result:
    r"""Delta at ``epsilon`` of a mechanism that is :math:`\rho`-zCDP; see `zcdp_epsilon`.

    ``"proposition"`` gives :math:`\exp(-(\epsilon - \rho)^2 / (4 \rho))`, and 1 where
    :math:`\epsilon \le \rho`.

    Example:
      >>> from fljax.privacy import accounting
      >>> round(float(accounting.zcdp_delta(0.1, 1.0)), 4)
      0.132
      >>> round(float(accounting.zcdp_delta(0.1, 1.0, "canonne-kamath-steinke")), 4)
      0.0089
      >>> round(float(accounting.zcdp_delta(0.1, 1.0, "gaussian")), 4)
      0.0032
    """
    checks.choice("conversion", conversion, CONVERSIONS)
    checks.nonnegative("rho", rho)
    checks.nonnegative("epsilon", epsilon)
    if conversion == "proposition":
        xp, spent, allowed = inputs.arrays(rho, epsilon)
        excess = xp.maximum(allowed - spent, 0)
        safe = xp.where(spent > 0, spent, 1)  # nothing spent: delta 0, without dividing by 0
        return xp.where(spent > 0, xp.exp(-(excess**2) / (4 * safe)), 0.0)[()]
    return _tight("zcdp_delta", _tight_delta, conversion, rho=rho, epsilon=epsilon)


@checked
def zcdp_rho(
    epsilon: ArrayLike, delta: ArrayLike, conversion: Conversion = "proposition"
) -> Result:
    r"""Largest zCDP cost whose `zcdp_epsilon` at ``delta`` is at most ``epsilon``.

    ``"proposition"`` gives :math:`(\sqrt{L + \epsilon} - \sqrt{L})^2` with
    :math:`L = \ln(1/\delta)`, computed without cancellation.

    Example:
        >>> round(float(zcdp_rho(epsilon=1.0, delta=1e-3)), 5)
        0.03379
    """
    checks.choice("conversion", conversion, CONVERSIONS)
    inputs.budget("epsilon", epsilon)
    inputs.probability("delta", delta)
    if conversion == "proposition":
        return _proposition_rho(*inputs.arrays(epsilon, delta))
    return _tight("zcdp_rho", _tight_rho, conversion, epsilon=epsilon, delta=delta)
