"""fljax: federated, networked and private learning as one compiled array program."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fljax")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

from fljax import (
    aggregation,
    algorithms,
    attacks,
    data,
    federation,
    graphs,
    link,
    metrics,
    participation,
    plotting,
    privacy,
    problems,
    schedules,
    streams,
    theory,
)
from fljax._module import module
from fljax.citation import citation
from fljax.grid import static
from fljax.results import AssumptionWarning, DivergenceWarning, load, save
from fljax.simulation import Simulation, run, view
from fljax.store import DamageWarning, StoreError, merge
from fljax.sweep import Interrupted, Plan, plan, sweep

__all__ = [
    "AssumptionWarning",
    "DamageWarning",
    "DivergenceWarning",
    "Interrupted",
    "Plan",
    "Simulation",
    "StoreError",
    "aggregation",
    "algorithms",
    "attacks",
    "citation",
    "data",
    "federation",
    "graphs",
    "link",
    "load",
    "merge",
    "metrics",
    "module",
    "participation",
    "plan",
    "plotting",
    "privacy",
    "problems",
    "run",
    "save",
    "schedules",
    "static",
    "streams",
    "sweep",
    "theory",
    "view",
]
