"""Theoretical results of the papers, as functions to compare with simulations."""

from fljax.theory import (
    multiagent,
    multiagent_bounds,
    multiagent_privacy,
    network_privacy,
    network_rates,
    networks,
    operators,
    pao_fed,
    pgfl,
    robustness,
    sensitivity,
    zcdp_nfl,
)

__all__ = [
    "multiagent",
    "multiagent_bounds",
    "multiagent_privacy",
    "network_privacy",
    "network_rates",
    "networks",
    "operators",
    "pao_fed",
    "pgfl",
    "robustness",
    "sensitivity",
    "zcdp_nfl",
]
