"""Budgets and mechanisms, and the exact accounting of what they cost."""

from fljax import _renamed
from fljax.privacy import accounting
from fljax.privacy.central import AdaptiveClip, CentralGaussian
from fljax.privacy.features import private_map, reconstruction_error
from fljax.privacy.gradients import NoisyGradients
from fljax.privacy.ledger import events, spent
from fljax.privacy.notions import (
    NEIGHBORS,
    ZCDP,
    ApproximateDP,
    DiscreteZCDP,
    Gap,
    Neighbors,
    Notion,
    PureDP,
)
from fljax.privacy.promises import assumptions

__all__ = [
    "NEIGHBORS",
    "ZCDP",
    "AdaptiveClip",
    "ApproximateDP",
    "CentralGaussian",
    "DiscreteZCDP",
    "Gap",
    "Neighbors",
    "NoisyGradients",
    "Notion",
    "PureDP",
    "accounting",
    "assumptions",
    "events",
    "private_map",
    "reconstruction_error",
    "spent",
]

__getattr__ = _renamed.lookup("fljax.privacy")
