"""Rényi differential privacy: curves of releases, and their epsilon at a delta."""

from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
from jax.typing import ArrayLike

from fljax._core import checks
from fljax.privacy.accounting import inputs
from fljax.privacy.accounting.inputs import Numbers, Result, checked

RenyiConversion: TypeAlias = Literal["mironov", "canonne-kamath-steinke"]

#: Conversions of a Rényi-DP guarantee to (epsilon, delta)-DP.
RENYI_CONVERSIONS = ("mironov", "canonne-kamath-steinke")

#: Orders fine enough for most uses of `renyi_epsilon`: dense near 1, where weak guarantees have
#: their optimum, then geometric up to 1024, where strong ones have it.
RENYI_ORDERS = np.concatenate([np.arange(1.02, 2, 0.02), np.geomspace(2, 1024, 200)])


def _orders(orders: Numbers) -> None:
    checks.interval("orders", orders, above=1, hint="RENYI_ORDERS is a good default.")


@checked
def renyi_gaussian(orders: ArrayLike, sensitivity: ArrayLike, sigma: ArrayLike) -> Result:
    r"""Rényi-DP curve of one Gaussian release, :math:`\alpha \Delta^2 / (2 \sigma^2)`.

    Curves of several releases, adaptive or not, add up (Mironov 2017, Proposition 1).

    Example:
      >>> from fljax.privacy import accounting
      >>> accounting.renyi_gaussian([2.0, 4.0, 8.0], sensitivity=1.0, sigma=2.0).tolist()
      [0.25, 0.5, 1.0]

    References:
        Mironov 2017, Corollary 3.
    """
    _orders(orders)
    checks.nonnegative("sensitivity", sensitivity)
    checks.positive("sigma", sigma, "A release without noise has no finite privacy cost.")
    _, orders, sensitivity, sigma = inputs.arrays(orders, sensitivity, sigma)
    return orders * ((sensitivity / sigma) ** 2 / 2)


@checked
def renyi_laplace(orders: ArrayLike, sensitivity: ArrayLike, scale: ArrayLike) -> Result:
    r"""Rényi-DP curve of one scalar Laplace release; with :math:`r = \Delta_1 / b`,

    .. math::
        \frac{1}{\alpha - 1} \ln \Big( \frac{\alpha}{2\alpha - 1} e^{(\alpha - 1) r}
        + \frac{\alpha - 1}{2\alpha - 1} e^{-\alpha r} \Big) .

    Example:
      >>> from fljax.privacy import accounting
      >>> curve = accounting.renyi_laplace([2.0, 8.0, 1000.0], sensitivity=1.0, scale=2.0)
      >>> curve.round(3).tolist()  # up to epsilon = 1/2
      [0.2, 0.41, 0.499]

    References:
        Mironov 2017, Proposition 6.
    """
    _orders(orders)
    checks.nonnegative("sensitivity", sensitivity)
    checks.positive("scale", scale, "A release without noise has no finite privacy cost.")
    xp, alpha, sensitivity, scale = inputs.arrays(orders, sensitivity, scale)
    ratio = sensitivity / scale
    orders_sum = 2 * alpha - 1
    # The larger exponential is taken out, so that large orders cannot overflow.
    large = ratio + xp.log1p((alpha - 1) / orders_sum * xp.expm1(-orders_sum * ratio)) / (alpha - 1)
    # For small ratios that is the difference of nearly equal numbers. The mean of the
    # exponentials is one plus these remainders, which are not negative.
    small_ratio = xp.minimum(ratio, 1 / (2 * alpha))
    rest = alpha * _remainder(xp, (alpha - 1) * small_ratio)
    rest = rest + (alpha - 1) * _remainder(xp, -alpha * small_ratio)
    small = xp.log1p(rest / orders_sum) / (alpha - 1)
    return xp.where(alpha * ratio < 0.5, small, large)[()]


def _remainder(xp: ModuleType, x: Any) -> Result:
    """``exp(x) - 1 - x`` for ``|x| <= 1/2``, by its series: to the last place after 14 terms."""
    total = xp.ones_like(x)
    for term in range(15, 2, -1):
        total = 1 + total * x / term
    return x**2 / 2 * total


@checked
def renyi_pure(orders: ArrayLike, epsilon: ArrayLike) -> Result:
    r"""Rényi-DP curve of an :math:`\epsilon`-DP release: that of randomized response.

    .. math::
        \frac{1}{\alpha - 1} \ln \frac{e^{\alpha \epsilon} + e^{(1 - \alpha) \epsilon}}
        {1 + e^{\epsilon}} \le \min(\epsilon, \alpha \epsilon^2 / 2)

    Example:
      >>> from fljax.privacy import accounting
      >>> accounting.renyi_pure([2.0, 8.0, 1000.0], epsilon=0.5).round(3).tolist()
      [0.227, 0.432, 0.5]

    References:
        Bun & Steinke 2016, Proposition 3.3 and its proof; attained, hence tight.
    """
    _orders(orders)
    checks.nonnegative("epsilon", epsilon)
    xp, alpha, pure = inputs.arrays(orders, epsilon)
    rest = xp.log1p(xp.exp(-(2 * alpha - 1) * pure)) - xp.log1p(xp.exp(-pure))
    large = pure + rest / (alpha - 1)
    # For small ones that is the difference of nearly equal numbers, and the same fraction is
    # cosh((alpha - 1/2) epsilon) / cosh(epsilon / 2).
    limited = xp.minimum(pure, 40 / alpha)
    half = xp.sinh(alpha * limited / 2) * xp.sinh((alpha - 1) * limited / 2)
    small = xp.log1p(2 * half / xp.cosh(limited / 2)) / (alpha - 1)
    return xp.where(alpha * pure < 40, small, large)[()]


def _along_orders(xp: ModuleType, orders: Any, rdp: Any, value: Any) -> tuple[Result, Result]:
    """Orders ``[A]`` and a value ``[...]`` in the shape of the curves ``[..., A]``."""
    inputs.same_length(orders=orders, rdp=rdp)
    if orders.ndim > rdp.ndim:
        raise ValueError(f"rdp must be a curve over the orders, got one number for {orders.size}.")
    if value.ndim and value.shape != rdp.shape[:-1]:
        raise ValueError(
            f"curves of shape {rdp.shape} need one number, or one for each curve, got shape "
            f"{value.shape}."
        )
    return xp.broadcast_to(orders, rdp.shape), xp.broadcast_to(value[..., None], rdp.shape)


@checked
def renyi_epsilon(
    orders: Numbers,
    rdp: ArrayLike,
    delta: ArrayLike,
    conversion: RenyiConversion = "canonne-kamath-steinke",
) -> Result:
    r"""Epsilon at ``delta`` of a mechanism with a given Rényi-DP curve.

    It is the minimum over the given orders of :math:`\mathrm{rdp} + \ln(1/\delta) / (\alpha - 1)`
    (``"mironov"``), or of
    :math:`\mathrm{rdp} + \ln(1/(\alpha\delta)) / (\alpha - 1) + \ln(1 - 1/\alpha)`.

    Args:
        orders: :math:`\alpha` > 1, ``[A]``.
        rdp: Total curve, ``[..., A]``.
        delta: In (0, 1), a number or ``[...]``.
        conversion: The second is never larger.

    Guarantees:
        (epsilon, delta)-DP for any orders; with more of them epsilon can only fall.

    References:
        Mironov 2017, Proposition 3; Canonne, Kamath & Steinke 2020, Proposition 12.

    Example:
        >>> curve = 100 * renyi_gaussian(RENYI_ORDERS, sensitivity=1.0, sigma=50.0)
        >>> round(float(renyi_epsilon(RENYI_ORDERS, curve, delta=1e-5)), 3)
        0.794
    """
    checks.choice("conversion", conversion, RENYI_CONVERSIONS)
    _orders(orders)
    checks.nonnegative("rdp", rdp)
    inputs.probability("delta", delta)
    xp, alpha, rdp, delta = inputs.arrays(orders, rdp, delta)
    alpha, log = _along_orders(xp, alpha, rdp, -xp.log(delta))
    if conversion == "mironov":
        return xp.min(rdp + log / (alpha - 1), axis=-1)
    epsilon = rdp + (log - xp.log(alpha)) / (alpha - 1) + xp.log1p(-1 / alpha)
    return xp.maximum(xp.min(epsilon, axis=-1), 0)


@checked
def renyi_delta(
    orders: Numbers,
    rdp: ArrayLike,
    epsilon: ArrayLike,
    conversion: RenyiConversion = "canonne-kamath-steinke",
) -> Result:
    """Delta at ``epsilon`` of a mechanism with a given Rényi-DP curve; see `renyi_epsilon`.

    Example:
      >>> from fljax.privacy import accounting
      >>> orders = [2.0, 4.0, 8.0, 16.0, 32.0]
      >>> curve = accounting.renyi_gaussian(orders, sensitivity=1.0, sigma=4.0)
      >>> f"{accounting.renyi_delta(orders, curve, epsilon=1.0):.1e}"
      '1.3e-05'
    """
    checks.choice("conversion", conversion, RENYI_CONVERSIONS)
    _orders(orders)
    checks.nonnegative("rdp", rdp)
    checks.nonnegative("epsilon", epsilon)
    xp, orders, curve, epsilon = inputs.arrays(orders, rdp, epsilon)
    alpha, allowed = _along_orders(xp, orders, curve, epsilon)
    log_delta = (alpha - 1) * (curve - allowed)
    if conversion == "canonne-kamath-steinke":
        log_delta = log_delta + (alpha - 1) * xp.log1p(-1 / alpha) - xp.log(alpha)
    return xp.exp(xp.minimum(xp.min(log_delta, axis=-1), 0))
