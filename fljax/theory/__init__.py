"""What the papers prove, as functions to be overlaid on and tested against simulation."""

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
