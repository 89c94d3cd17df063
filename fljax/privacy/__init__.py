"""Budgets and mechanisms, and the exact accounting of what they cost."""

from fljax.privacy import accounting
from fljax.privacy.notions import ApproximateDP, Notion, PureDP, ZCDP

__all__ = ["ZCDP", "ApproximateDP", "Notion", "PureDP", "accounting"]
