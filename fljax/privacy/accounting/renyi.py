"""Rényi differential privacy: curves of releases, and their epsilon at a delta."""

from typing import Any, Literal, TypeAlias

import numpy as np
from jax.typing import ArrayLike

from fljax import _check
from fljax._arguments import checked
from fljax.privacy.accounting import _inputs
from fljax.privacy.accounting._inputs import Numbers, Result

__all__ = [
    "RENYI_CONVERSIONS",
    "RENYI_ORDERS",
    "RenyiConversion",
    "renyi_delta",
    "renyi_epsilon",
    "renyi_gaussian",
    "renyi_laplace",
    "renyi_pure",
]

RenyiConversion: TypeAlias = Literal["mironov", "canonne-kamath-steinke"]

#: Conversions of a Rényi-DP guarantee to (epsilon, delta)-DP.
RENYI_CONVERSIONS = ("mironov", "canonne-kamath-steinke")

#: Orders fine enough for most uses of `renyi_epsilon`: dense near 1, where weak guarantees have
#: their optimum, then geometric up to 1024, where strong ones have it.
RENYI_ORDERS = np.concatenate([np.arange(1.02, 2, 0.02), np.geomspace(2, 1024, 200)])


def _orders(orders: Numbers) -> None:
    _check.interval("orders", orders, above=1, hint="RENYI_ORDERS is a good default.")


@checked
def renyi_gaussian(orders: ArrayLike, sensitivity: ArrayLike, sigma: ArrayLike) -> Result:
    r"""Rényi-DP curve of one Gaussian release, :math:`\alpha \Delta^2 / (2 \sigma^2)`.

    Curves of several releases, adaptive or not, add up (Mironov 2017, Proposition 1).

    References:
        Mironov 2017, Corollary 3.
    """
    _orders(orders)
    _check.nonnegative("sensitivity", sensitivity)
    _check.positive("sigma", sigma, "A release without noise has no finite privacy cost.")
    _, orders, sensitivity, sigma = _inputs.arrays(orders, sensitivity, sigma)
    return orders * ((sensitivity / sigma) ** 2 / 2)


@checked
def renyi_laplace(orders: ArrayLike, sensitivity: ArrayLike, scale: ArrayLike) -> Result:
    r"""Rényi-DP curve of one scalar Laplace release; with :math:`r = \Delta_1 / b`,

    .. math::
        \frac{1}{\alpha - 1} \ln \Big( \frac{\alpha}{2\alpha - 1} e^{(\alpha - 1) r}
        + \frac{\alpha - 1}{2\alpha - 1} e^{-\alpha r} \Big) .

    References:
        Mironov 2017, Proposition 6.
    """
    _orders(orders)
    _check.nonnegative("sensitivity", sensitivity)
    _check.positive("scale", scale, "A release without noise has no finite privacy cost.")
    xp, alpha, sensitivity, scale = _inputs.arrays(orders, sensitivity, scale)
    ratio, both = sensitivity / scale, 2 * alpha - 1
    # The larger exponential is taken out, so that large orders cannot overflow.
    large = ratio + xp.log1p((alpha - 1) / both * xp.expm1(-both * ratio)) / (alpha - 1)
    # Of small ratios that is the difference of nearly equal numbers. The mean of the exponentials
    # is one and these remainders, of which none is negative.
    near = xp.minimum(ratio, 1 / (2 * alpha))
    rest = alpha * _remainder(xp, (alpha - 1) * near)
    rest = rest + (alpha - 1) * _remainder(xp, -alpha * near)
    small = xp.log1p(rest / both) / (alpha - 1)
    return xp.where(alpha * ratio < 0.5, small, large)[()]


def _remainder(xp: Any, x: Any) -> Any:
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

    References:
        Bun & Steinke 2016, Proposition 3.3 and its proof; attained, hence tight.
    """
    _orders(orders)
    _check.nonnegative("epsilon", epsilon)
    xp, alpha, pure = _inputs.arrays(orders, epsilon)
    rest = xp.log1p(xp.exp(-(2 * alpha - 1) * pure)) - xp.log1p(xp.exp(-pure))
    large = pure + rest / (alpha - 1)
    # Of small ones that is the difference of nearly equal numbers, and the same fraction is
    # cosh((alpha - 1/2) epsilon) / cosh(epsilon / 2).
    near = xp.minimum(pure, 40 / alpha)
    half = xp.sinh(alpha * near / 2) * xp.sinh((alpha - 1) * near / 2)
    small = xp.log1p(2 * half / xp.cosh(near / 2)) / (alpha - 1)
    return xp.where(alpha * pure < 40, small, large)[()]


def _along_orders(xp: Any, orders: Any, rdp: Any, value: Any) -> tuple[Any, Any]:
    """Orders ``[A]`` and a value ``[...]`` in the shape of the curves ``[..., A]``."""
    _inputs.same_length(orders=orders, rdp=rdp)
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
        (epsilon, delta)-DP whatever the orders; with more of them epsilon can only fall.

    References:
        Mironov 2017, Proposition 3; Canonne, Kamath & Steinke 2020, Proposition 12.

    Example:
        >>> curve = 100 * renyi_gaussian(RENYI_ORDERS, sensitivity=1.0, sigma=50.0)
        >>> round(float(renyi_epsilon(RENYI_ORDERS, curve, delta=1e-5)), 3)
        0.794
    """
    _check.choice("conversion", conversion, RENYI_CONVERSIONS)
    _orders(orders)
    _check.nonnegative("rdp", rdp)
    _inputs.probability("delta", delta)
    xp, alpha, rdp, delta = _inputs.arrays(orders, rdp, delta)
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
    """Delta at ``epsilon`` of a mechanism with a given Rényi-DP curve; see `renyi_epsilon`."""
    _check.choice("conversion", conversion, RENYI_CONVERSIONS)
    _orders(orders)
    _check.nonnegative("rdp", rdp)
    _check.nonnegative("epsilon", epsilon)
    xp, orders, curve, epsilon = _inputs.arrays(orders, rdp, epsilon)
    alpha, allowed = _along_orders(xp, orders, curve, epsilon)
    log_delta = (alpha - 1) * (curve - allowed)
    if conversion == "canonne-kamath-steinke":
        log_delta = log_delta + (alpha - 1) * xp.log1p(-1 / alpha) - xp.log(alpha)
    return xp.exp(xp.minimum(xp.min(log_delta, axis=-1), 0))
