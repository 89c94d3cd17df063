r"""Privacy audits: what an attacker can actually infer, compared with the claim.

* :func:`two_worlds` and :func:`one_run` audit a budget as a black box: they run the simulation,
  observe its messages, and guess which of two data sets was used (:mod:`fljax.audit.guessing`).
* :func:`trained_attack` audits any mechanism that releases numbers, by a classifier that is trained
  to distinguish two data sets (:mod:`fljax.audit.trained`).
* :func:`queried_loss` is what a peer learns of another peer's data by queries, and
  :func:`matched_client` the client whose data they are (:mod:`fljax.audit.queries`).
* :func:`region_errors` and :func:`gaussian_region` are the errors of one test between two data sets
  (:mod:`fljax.audit.regions`).
* :func:`worst_neighbors` searches for data that move a message by more than its stated sensitivity
  (:mod:`fljax.audit.worst`).
* :func:`unperturbed` follows a run's program from the samples to all released values, and names
  those that are not perturbed on their way.
* :func:`overheard` and :func:`overheard_upload` compute exactly who is protected from whom by the
  noise that peers, servers or clients add by a rule and without a budget; :func:`protection` and
  :func:`upload_protection` return tables of it (:mod:`fljax.audit.overhearing`).
* :func:`twins` runs a simulation on two data sets with the same draws, and records the distances
  between trajectories and between messages, on which proofs by a bound on trajectories rest
  (:mod:`fljax.audit.trajectories`).
* :func:`reach` returns the round in which an attack first changes each client's model.
* :func:`quadratic` and :func:`invert` reconstruct a client's data from the gradients that it sends
  (:mod:`fljax.audit.inversion`); :func:`membership` infers the training samples from the model
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
    measured_rho,
    one_run,
    shaped_epsilon,
    two_worlds,
    without,
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
    "measured_rho",
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
    "without",
    "worst_neighbors",
]

__getattr__ = _renamed.lookup("fljax.audit")
