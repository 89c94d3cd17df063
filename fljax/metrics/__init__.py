"""Metrics of a run, reduced to a few numbers inside the scan.

:mod:`~fljax.metrics.definitions` defines :class:`Metric` and the library's metrics; begin there.
:mod:`~fljax.metrics.quantities` is the registry of what metrics may need of a simulation.
:mod:`~fljax.metrics.names` lists the variables that a run records besides its metrics, and
:mod:`~fljax.metrics.fairness` (imported when it is first used) compares clients and groups of
people. Means over seeds and comparisons of finished runs are in :mod:`fljax.results`.
"""

from fljax.metrics import definitions, quantities, tokens
from fljax.metrics.definitions import *  # noqa: F403  (the lists are there)
from fljax.metrics.quantities import *  # noqa: F403
from fljax.metrics.tokens import *  # noqa: F403

__all__ = []
__all__ += definitions.__all__
__all__ += quantities.__all__
__all__ += tokens.__all__
