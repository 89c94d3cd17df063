r"""Test regions: differential privacy as a bound on the errors of tests, (180) of Jung 2025.

An attacker decides that a release is of data set :math:`\mathcal D` if it is in a region
:math:`\mathcal T`, and otherwise of its neighbor :math:`\mathcal D'`. Under
:math:`(\epsilon,\delta)`-DP no region has small errors of both kinds:

.. math:: e^\epsilon\,P_{\mathcal D\to\mathcal D'}+P_{\mathcal D'\to\mathcal D}\ge1-\delta.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from scipy import stats

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.audit.guessing_bounds import check_claim, probability_at_least


class RegionErrors(NamedTuple):
    r"""The error probabilities of a test region.

    Attributes:
      missed: :math:`P_{\mathcal D\to\mathcal D'}`, a release of :math:`\mathcal D` outside of it.
      alarms: :math:`P_{\mathcal D'\to\mathcal D}`, a release of :math:`\mathcal D'` inside of it.
    """

    missed: ArrayLike
    alarms: ArrayLike

    def margin(self, epsilon: float, delta: float) -> Any:
        """Return the margin of (180) and its mirror image; negative where the claim is false.

        Args:
          epsilon: of the claim, >= 0.
          delta: of the claim, in [0, 1).

        Returns:
          The smaller of the two margins.

        Example:
          >>> round(float(RegionErrors(0.2, 0.2).margin(epsilon=1.0, delta=0.0)), 4)
          -0.2563
        """
        checks.nonnegative("epsilon", epsilon)
        checks.interval("delta", delta, at_least=0, below=1)
        least = np.minimum(*self)
        most = np.maximum(*self)
        return math.exp(epsilon) * least + most - (1 - delta)


@checked
def gaussian_region(shift: ArrayLike, sigma: ArrayLike, threshold: ArrayLike) -> RegionErrors:
    r"""Return the exact errors of half-spaces for the Gaussian mechanism; no region is better.

    Args:
      shift: :math:`\|\mathcal A(\mathcal D)-\mathcal A(\mathcal D')\|`, >= 0.
      sigma: standard deviation of the noise in each coordinate.
      threshold: distance of the half-space's boundary from the first output towards the other.

    Example:
      >>> errors = gaussian_region(1.0, 1.0, 0.5)
      >>> round(float(errors.missed), 4), round(float(errors.alarms), 4)
      (0.3085, 0.3085)
    """
    checks.nonnegative("shift", shift)
    checks.positive("sigma", sigma)
    checks.interval("threshold", threshold)
    shift, sigma, threshold = (np.asarray(value, float) for value in (shift, sigma, threshold))
    return RegionErrors(
        stats.norm.sf(threshold / sigma), stats.norm.cdf((threshold - shift) / sigma)
    )


@checked
def region_errors(
    one: np.ndarray,
    other: np.ndarray,
    region: Callable[[Any], Any],
    confidence: float | None = None,
) -> RegionErrors:
    r"""Estimate the errors of any mechanism and region by Monte Carlo.

    Args:
      one: ``[L, ...]``, independent releases of a data set.
      other: ``[L', ...]``, independent releases of its neighbor.
      region: from releases ``[L, ...]`` to whether each is inside, ``[L]``. It must not have been
        chosen by these releases.
      confidence: if given, errors are upper bounds by Clopper and Pearson, each at half of the
        significance level: where their :meth:`RegionErrors.margin` is negative, the claim is
        refuted with this confidence.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> near, far = rng.normal(size=5000), 6 + rng.normal(size=5000)
      >>> errors = region_errors(near, far, lambda release: release < 3, confidence=0.95)
      >>> bool(errors.margin(epsilon=1.0, delta=1e-5) < 0)
      True
    """
    if confidence is not None:
        check_claim(0.0, confidence)
    errors = []
    for name, releases, inside in (("one", one, False), ("other", other, True)):
        releases = np.asarray(checks.filled(name, releases))
        checks.finite(name, releases)
        inside_region = np.asarray(region(releases))
        if inside_region.dtype != np.bool_ or inside_region.shape != np.shape(releases)[:1]:
            raise ValueError(
                f"region must return one truth value for each of the {len(releases)} releases of "
                f"{name}, got {checks.shown(inside_region)}."
            )
        wrong = int(np.sum(inside_region == inside))
        count = len(inside_region)
        if confidence is None:
            errors.append(wrong / count)
        else:
            errors.append(
                1 - float(probability_at_least(count - wrong, count, 1 - (1 - confidence) / 2))
            )
    return RegionErrors(*errors)
