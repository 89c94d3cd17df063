"""fljax: federated, networked and private learning as one compiled array program."""

from fljax import (
    aggregation,
    algorithms,
    attacks,
    audit,
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
from fljax._generator import random_key
from fljax._module import module, static
from fljax._version import __version__ as __version__
from fljax.citation import citation
from fljax.records import AssumptionWarning, DivergenceWarning, MetricWarning
from fljax.simulation import Simulation, run, view
from fljax.study import (
    DamageWarning,
    Interrupted,
    Plan,
    StoreError,
    load,
    merge,
    plan,
    save,
    sweep,
)

# An audit runs simulations, which privacy is below and knows nothing of.
privacy.audit = audit  # pyright: ignore[reportAttributeAccessIssue]

__all__ = [
    "AssumptionWarning",
    "DamageWarning",
    "DivergenceWarning",
    "Interrupted",
    "MetricWarning",
    "Plan",
    "Simulation",
    "StoreError",
    "aggregation",
    "algorithms",
    "attacks",
    "audit",
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
    "random_key",
    "run",
    "save",
    "schedules",
    "static",
    "streams",
    "sweep",
    "theory",
    "view",
]
