"""What was spent, as events of ``dp_accounting``, to be composed with what others spend."""

from typing import Any

import numpy as np

from fljax import _check

__all__ = ["gaussian_event"]


def gaussian_event(rho: float) -> Any:
    r"""Gaussian releases of :math:`\rho` in total as the one event of ``dp_accounting`` they are.

    Any number of Gaussian releases, adaptive or not, of vectors of bounded l2 sensitivity are
    together one of :math:`\mu=\sqrt{2\rho}` (Dong, Roth & Su 2022, Corollary 3.3): a Gaussian
    release whose noise is :math:`1/\mu` times its sensitivity. The ledger of a run under ZCDP, and
    ``client_rho``, count just these. Neighbours differ in one sample replaced, so compose it under
    ``NeighboringRelation.REPLACE_ONE``, which states noise in units of what adding a sample moves:
    half of what replacing one does, hence the multiplier :math:`2/\mu`.

    Args:
      rho: total, > 0.

    Returns:
      A ``dp_accounting.GaussianDpEvent``.

    Raises:
      ImportError: without ``dp_accounting``, which the extra ``accounting`` brings.
      ValueError: a rho that is not positive.

    Example:
      >>> gaussian_event(0.5)
      GaussianDpEvent(noise_multiplier=2.0)
    """
    _check.positive("rho", rho)
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "gaussian_event needs dp_accounting, which is not installed; "
            "python -m pip install 'fljax[accounting]' brings it."
        ) from error
    return dp_accounting.GaussianDpEvent(float(2 / np.sqrt(2 * rho)))
