"""Privacy loss as events of ``dp_accounting``, to be composed with other mechanisms."""

from typing import Any

import numpy as np

from fljax._core import checks
from fljax.privacy.accounting.inputs import checked

#: Distance between releases of neighbors, in units of the effect of adding or removing a record.
_MOVES = {"replace": 2, "add-or-remove": 1, "client": 2}


def accountants() -> Any:
    """``dp_accounting``, or an ``ImportError`` that tells how to install it."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError(
            "this needs dp_accounting, which is not installed; "
            "python -m pip install 'fljax[accounting]' brings it."
        ) from error
    return dp_accounting


@checked
def gaussian_event(rho: float, neighbors: str = "replace") -> Any:
    r"""Return Gaussian releases of :math:`\rho` in total as one event of ``dp_accounting``.

    Any number of Gaussian releases, adaptive or not, of vectors of bounded l2 sensitivity compose
    to a single one of :math:`\mu=\sqrt{2\rho}` (Dong, Roth & Su 2022, Corollary 3.3): a Gaussian
    release whose noise is :math:`1/\mu` times its sensitivity. The ledger of a run under ZCDP, and
    ``client_rho``, count exactly these; other noise is not such an event (:func:`zcdp_event`).
    ``dp_accounting`` states noise in units of the change due to adding or removing a record, and
    the relation of neighbors is an argument of its ``PLDAccountant``:

    * ``"replace"``: ``NeighboringRelation.REPLACE_ONE``, whose neighbors are two of these units
      apart, hence the multiplier :math:`2/\mu`;
    * ``"add-or-remove"``: ``REPLACE_SPECIAL``, the multiplier :math:`1/\mu`;
    * ``"client"``: ``REPLACE_ONE`` of records that are whole clients, :math:`2/\mu`. It composes
      with events of whole clients only.

    Its ``RdpAccountant`` counts Gaussian events the same for every relation: under
    ``REPLACE_ONE`` it counts a quarter of their cost.

    Args:
      rho: total, > 0.
      neighbors: the notion's relation of neighbors, for which rho was spent.

    Returns:
      A ``dp_accounting.GaussianDpEvent``.

    Raises:
      ImportError: without ``dp_accounting``, which the extra ``accounting`` brings.
      ValueError: a rho that is not positive, an unknown relation.

    Example:
      >>> gaussian_event(0.5)
      GaussianDpEvent(noise_multiplier=2.0)
      >>> gaussian_event(0.5, "add-or-remove")
      GaussianDpEvent(noise_multiplier=1.0)
    """
    checks.positive("rho", rho)
    checks.choice("neighbors", neighbors, _MOVES)
    return accountants().GaussianDpEvent(float(_MOVES[neighbors] / np.sqrt(2 * rho)))


@checked
def zcdp_event(rho: float) -> Any:
    r"""Return releases of :math:`\rho` in total as an event of ``dp_accounting``, for any noise.

    The event states :math:`\rho`-zCDP and nothing more, as for the discrete Gaussian, which is not
    at every delta as private as one Gaussian release. The ``RdpAccountant`` composes such events,
    under any relation of neighbors.

    Args:
      rho: total, > 0.

    Returns:
      A ``dp_accounting.ZCDpEvent``.

    Raises:
      ImportError: without ``dp_accounting``, which the extra ``accounting`` brings.
      ValueError: a rho that is not positive.

    Example:
      >>> zcdp_event(0.5).rho
      0.5
    """
    checks.positive("rho", rho)
    return accountants().ZCDpEvent(float(rho))
