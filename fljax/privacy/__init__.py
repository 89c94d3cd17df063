"""Budgets and mechanisms, and the exact accounting of what they cost."""

from fljax.privacy import accounting
from fljax.privacy.central import AdaptiveClip, CentralGaussian
from fljax.privacy.gradients import NoisyGradients
from fljax.privacy.ledger import events, spent
from fljax.privacy.notions import ZCDP, ApproximateDP, Notion, PureDP

__all__ = [
    "ZCDP",
    "AdaptiveClip",
    "ApproximateDP",
    "CentralGaussian",
    "NoisyGradients",
    "Notion",
    "PureDP",
    "accounting",
    "events",
    "spent",
]
