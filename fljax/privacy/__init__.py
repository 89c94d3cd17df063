"""Budgets and mechanisms, and the exact accounting of what they cost."""

from fljax.privacy import accounting
from fljax.privacy.notions import (
    NEIGHBORS,
    ZCDP,
    ApproximateDP,
    Gap,
    Neighbors,
    Notion,
    PureDP,
)

__all__ = [
    "NEIGHBORS",
    "ZCDP",
    "ApproximateDP",
    "Gap",
    "Neighbors",
    "Notion",
    "PureDP",
    "accounting",
]
