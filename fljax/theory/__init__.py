"""What the papers prove, as functions to be overlaid on and tested against simulation."""

from fljax.theory import multiagent, pao_fed, pgfl, zcdp_nfl

__all__ = ["multiagent", "pao_fed", "pgfl", "zcdp_nfl"]
