r"""Privacy audits: the information that an attacker can actually infer, against the claim.

* :func:`two_worlds` and :func:`one_run` audit a budget as a black box: they run the simulation,
  observe its messages, and guess which of two data sets was used
  (:mod:`fljax.audit.world_guessing`).
* :func:`worst_neighbors` searches for data that move a message by more than its stated sensitivity
  (:mod:`fljax.audit.worst`).
* :func:`unperturbed` follows a run's program from the samples to all released values, and names
  the inputs that are not perturbed on their way.
* :func:`overheard` and :func:`overheard_upload` compute exactly which clients are protected from
  which others by the noise that peers, servers or clients add by a rule and without a budget;
  :func:`protection` and :func:`upload_protection` return tables of it
  (:mod:`fljax.audit.overhearing`).
* :func:`twins` runs a simulation on two data sets with the same draws, and records the distances
  between trajectories and between messages, on which proofs by a bound on trajectories rest
  (:mod:`fljax.audit.trajectories`).
* :func:`quadratic` and :func:`invert` reconstruct a client's data from the gradients that it sends
  (:mod:`fljax.audit.inversion`); :func:`membership` infers the training samples from the model
  (:mod:`fljax.audit.membership`).

Read :mod:`~fljax.audit.world_guessing` first. What a budget costs is :mod:`fljax.privacy`.
"""

import sys

from fljax._core.nearest_names import suggest_names
from fljax.audit.audit_report import Report
from fljax.audit.canary_guessing import OneRun, one_run
from fljax.audit.guessing_bounds import (
    counted_epsilon,
    gaussian_misses,
    guessed_epsilon,
    measured_rho,
    shaped_epsilon,
)
from fljax.audit.inversion import Inverted, Quadratic, invert, peak_ratio, quadratic
from fljax.audit.membership import Membership, membership
from fljax.audit.neighbors import corners, without
from fljax.audit.overhearing import (
    Overheard,
    Protection,
    overheard,
    overheard_upload,
    protection,
    upload_protection,
)
from fljax.audit.trajectories import twins, within
from fljax.audit.world_guessing import TwoWorlds, two_worlds
from fljax.audit.worst import WorstNeighbors, worst_neighbors
from fljax.privacy.ledger import claimed_epsilon
from fljax.simulation.leaks import unperturbed

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
    "measured_rho",
    "membership",
    "one_run",
    "overheard",
    "overheard_upload",
    "peak_ratio",
    "protection",
    "quadratic",
    "shaped_epsilon",
    "twins",
    "two_worlds",
    "unperturbed",
    "upload_protection",
    "within",
    "without",
    "worst_neighbors",
]

suggest_names(sys.modules[__name__])
