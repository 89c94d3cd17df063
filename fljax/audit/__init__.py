r"""Audits: what an attacker can really tell, against what is claimed.

* :func:`two_worlds` and :func:`one_run` audit a budget from the outside: they run the simulation,
  listen, and guess which of two data sets was there (:mod:`fljax.audit.guessing`).
* :func:`worst_neighbors` searches for data that move a message by more than its stated sensitivity
  (:mod:`fljax.audit.worst`).
* :func:`unperturbed` follows a run's program from the samples to all that leaves, and names what
  was not perturbed on its way.
* :func:`overheard` and :func:`overheard_upload` say exactly who is protected from whom by the noise
  that peers, servers or clients add by a rule and without a budget, and :func:`protection` and
  :func:`upload_protection` make a table of it (:mod:`fljax.audit.overhearing`).
* :func:`twins` runs a simulation on two data sets with the same draws, and records how far apart
  trajectories and messages come: what proofs by a bound on trajectories rest on
  (:mod:`fljax.audit.trajectories`).
* :func:`reach` says in which round an attack changes whose model.
* :func:`quadratic` and :func:`invert` find a client's data from the gradients that it sends
  (:mod:`fljax.audit.inversion`); :func:`membership` tells who was among them from the model
  (:mod:`fljax.audit.membership`).
"""

from fljax import _renamed
from fljax.audit.guessing import (
    OneRun,
    Report,
    TwoWorlds,
    claimed_epsilon,
    corners,
    counted_epsilon,
    gaussian_misses,
    guessed_epsilon,
    one_run,
    shaped_epsilon,
    two_worlds,
)
from fljax.audit.inversion import Inverted, Quadratic, invert, peak_ratio, quadratic
from fljax.audit.membership import Membership, membership
from fljax.audit.overhearing import (
    Overheard,
    Protection,
    overheard,
    overheard_upload,
    protection,
    upload_protection,
)
from fljax.audit.reach import reach
from fljax.audit.trajectories import twins, within
from fljax.audit.worst import WorstNeighbors, worst_neighbors
from fljax.running import unperturbed

__all__ = [
    "Inverted",
    "Membership",
    "OneRun",
    "Overheard",
    "Protection",
    "Quadratic",
    "Report",
    "TwoWorlds",
    "WorstNeighbors",
    "claimed_epsilon",
    "corners",
    "counted_epsilon",
    "gaussian_misses",
    "guessed_epsilon",
    "invert",
    "membership",
    "one_run",
    "overheard",
    "overheard_upload",
    "peak_ratio",
    "protection",
    "quadratic",
    "reach",
    "shaped_epsilon",
    "twins",
    "two_worlds",
    "unperturbed",
    "upload_protection",
    "within",
    "worst_neighbors",
]

__getattr__ = _renamed.lookup("fljax.audit")
