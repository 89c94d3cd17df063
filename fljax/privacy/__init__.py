"""Budgets and mechanisms, and the exact accounting of what they cost."""

from fljax.privacy import accounting
from fljax.privacy.notions import ZCDP, ApproximateDP, Notion, PureDP

__all__ = ["ZCDP", "ApproximateDP", "Notion", "PureDP", "accounting"]
