"""What the papers prove, as functions to be overlaid on and tested against simulation."""

from fljax.theory import zcdp_nfl

__all__ = ["zcdp_nfl"]
