r"""Audits: what an attacker can really tell, against what is claimed.

* :func:`two_worlds` and :func:`one_run` audit a budget from the outside: they run the simulation,
  listen, and guess which of two data sets was there (:mod:`fljax.audit.guessing`).
* :func:`trained_attack` audits anything that releases numbers, by a classifier that is trained to
  tell two data sets apart (:mod:`fljax.audit.trained`).
* :func:`queried_loss` is what a peer learns of another's data by asking, and
  :func:`matched_client` whose they are (:mod:`fljax.audit.queries`).
* :func:`region_errors` and :func:`gaussian_region` are the errors of one test of two data sets
  (:mod:`fljax.audit.regions`).
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
from fljax.audit.queries import QueriedLoss, matched_client, queried_loss
from fljax.audit.reach import reach
from fljax.audit.regions import RegionErrors, gaussian_region, region_errors
from fljax.audit.trained import Attacker, TrainedAttack, most_accurate, trained_attack
from fljax.audit.trajectories import twins, within
from fljax.audit.worst import WorstNeighbors, worst_neighbors
from fljax.running import unperturbed

__all__ = [
    "Attacker",
    "Inverted",
    "Membership",
    "OneRun",
    "Overheard",
    "Protection",
    "Quadratic",
    "QueriedLoss",
    "RegionErrors",
    "Report",
    "TrainedAttack",
    "TwoWorlds",
    "WorstNeighbors",
    "claimed_epsilon",
    "corners",
    "counted_epsilon",
    "gaussian_misses",
    "gaussian_region",
    "guessed_epsilon",
    "invert",
    "matched_client",
    "membership",
    "most_accurate",
    "one_run",
    "overheard",
    "overheard_upload",
    "peak_ratio",
    "protection",
    "quadratic",
    "queried_loss",
    "reach",
    "region_errors",
    "shaped_epsilon",
    "trained_attack",
    "twins",
    "two_worlds",
    "unperturbed",
    "upload_protection",
    "within",
    "worst_neighbors",
]

__getattr__ = _renamed.lookup("fljax.audit")
