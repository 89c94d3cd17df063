"""Privacy loss of one noisy release, and the noise for a given budget."""

import numpy as np
from jax.typing import ArrayLike

from fljax._core import checks
from fljax.privacy.accounting import inputs
from fljax.privacy.accounting.conversions import zcdp_rho
from fljax.privacy.accounting.inputs import Result, checked


@checked
def gaussian_zcdp(sensitivity: ArrayLike, sigma: ArrayLike) -> Result:
    r"""ZCDP cost of one Gaussian release, :math:`\rho = \Delta^2 / (2 \sigma^2)`.

    Args:
        sensitivity: l2 sensitivity :math:`\Delta` of the released vector.
        sigma: Standard deviation of the noise on each of its coordinates.

    Guarantees:
        Adding :math:`\mathcal{N}(0, \sigma^2 I)` is :math:`\rho`-zCDP; with equality of the Rényi
        divergences where the sensitivity is attained.

    References:
        Bun & Steinke 2016, Proposition 1.6; Gauthier 2024, Theorem I, (3.13).

    Example:
        >>> float(gaussian_zcdp(sensitivity=2.0, sigma=4.0))
        0.125
    """
    checks.nonnegative("sensitivity", sensitivity)
    checks.positive("sigma", sigma, "A release without noise has no finite privacy cost.")
    _, sensitivity, sigma = inputs.arrays(sensitivity, sigma)
    return (sensitivity / sigma) ** 2 / 2


@checked
def gaussian_sigma(sensitivity: ArrayLike, rho: ArrayLike) -> Result:
    r"""Noise level of a Gaussian release that spends rho, :math:`\sigma = \Delta / \sqrt{2 \rho}`.

    The inverse of `gaussian_zcdp`; ``rho`` is :math:`\varphi_k^{(n)}` in Gauthier 2024, (3.13).

    Example:
      >>> from fljax.privacy import accounting
      >>> float(accounting.gaussian_sigma(1.0, rho=0.5))
      1.0
    """
    checks.nonnegative("sensitivity", sensitivity)
    inputs.budget("rho", rho)
    xp, sensitivity, rho = inputs.arrays(sensitivity, rho)
    return sensitivity / xp.sqrt(2 * rho)


@checked
def laplace_epsilon(sensitivity: ArrayLike, scale: ArrayLike) -> Result:
    r"""Pure-DP cost of one Laplace release, :math:`\epsilon = \Delta_1 / b`.

    Args:
        sensitivity: l1 sensitivity :math:`\Delta_1`.
        scale: Scale :math:`b` of the noise (standard deviation :math:`\sqrt{2} b`).

    Example:
      >>> from fljax.privacy import accounting
      >>> float(accounting.laplace_epsilon(1.0, scale=2.0))
      0.5

    References:
        Dwork & Roth 2014, Theorem 3.6.
    """
    checks.nonnegative("sensitivity", sensitivity)
    checks.positive("scale", scale, "A release without noise has no finite privacy cost.")
    _, sensitivity, scale = inputs.arrays(sensitivity, scale)
    return sensitivity / scale


@checked
def laplace_scale(sensitivity: ArrayLike, epsilon: ArrayLike) -> Result:
    r"""Scale of the Laplace noise that spends epsilon: the inverse of `laplace_epsilon`.

    Example:
      >>> from fljax.privacy import accounting
      >>> float(accounting.laplace_scale(1.0, epsilon=0.5))
      2.0
    """
    checks.nonnegative("sensitivity", sensitivity)
    inputs.budget("epsilon", epsilon)
    _, sensitivity, epsilon = inputs.arrays(sensitivity, epsilon)
    return sensitivity / epsilon


@checked
def classical_gaussian_sigma(
    sensitivity: ArrayLike, epsilon: ArrayLike, delta: ArrayLike
) -> Result:
    r"""Textbook standard deviation of one (epsilon, delta) Gaussian release.

    .. math:: \sigma = \sqrt{2 \ln(1.25 / \delta)} \, \Delta / \epsilon

    Raises:
        ValueError: If a concrete ``epsilon`` is not below 1, where the theorem is not proven (and
            for large epsilon false).

    Example:
      >>> from fljax.privacy import accounting
      >>> round(float(accounting.classical_gaussian_sigma(1.0, epsilon=0.5, delta=1e-5)), 2)
      9.69

    References:
        Dwork & Roth 2014, Theorem 3.22 (proof in appendix A).
    """
    checks.nonnegative("sensitivity", sensitivity)
    checks.interval(
        "epsilon",
        epsilon,
        above=0,
        below=1,
        hint="The classical Gaussian mechanism is proven only there; "
        "use analytic_gaussian_sigma, which is exact for every epsilon.",
    )
    inputs.probability("delta", delta)
    xp, sensitivity, epsilon, delta = inputs.arrays(sensitivity, epsilon, delta)
    return xp.sqrt(2 * xp.log(1.25 / delta)) * sensitivity / epsilon


@checked
def analytic_gaussian_sigma(sensitivity: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Result:
    r"""Least standard deviation of a Gaussian release that is (epsilon, delta)-DP (on the host).

    The root in :math:`\sigma` of

    .. math::
        \Phi(\tfrac{\Delta}{2\sigma} - \tfrac{\epsilon\sigma}{\Delta})
        - e^\epsilon \Phi(-\tfrac{\Delta}{2\sigma} - \tfrac{\epsilon\sigma}{\Delta}) = \delta .

    Guarantees:
        Necessary and sufficient: any smaller noise violates (epsilon, delta)-DP.

    References:
        Balle & Wang 2018, Theorem 8.

    Example:
        >>> round(float(analytic_gaussian_sigma(1.0, epsilon=1.0, delta=1e-5)), 4)
        3.7306
    """
    checks.nonnegative("sensitivity", sensitivity)
    (sensitivity,) = inputs.on_host("analytic_gaussian_sigma", "", sensitivity=sensitivity)
    return sensitivity / np.sqrt(2 * zcdp_rho(epsilon, delta, "gaussian"))
