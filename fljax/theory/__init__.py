"""Theoretical results of the papers, as functions to compare with simulations.

Each module is a document's or a subject's statements, corrected where they are misprinted; read
:mod:`~fljax.theory.network_rates` first. Within the package only :mod:`fljax.audit` computes with
them; bounds that privacy rests on are in :mod:`fljax.privacy.accounting`.
"""

import sys

from fljax._core.nearest_names import suggest_names
from fljax.theory import compression_rates as compression
from fljax.theory import gtvmin_theory as networks
from fljax.theory import (
    multiagent,
    multiagent_privacy,
    network_rates,
    operators,
    step_bounds,
)
from fljax.theory import pao_fed_theory as pao_fed
from fljax.theory import pgfl_theory as pgfl
from fljax.theory import zcdp_nfl_theory as zcdp_nfl

__all__ = [
    "compression",
    "multiagent",
    "multiagent_privacy",
    "network_rates",
    "networks",
    "operators",
    "pao_fed",
    "pgfl",
    "step_bounds",
    "zcdp_nfl",
]

suggest_names(sys.modules[__name__])
