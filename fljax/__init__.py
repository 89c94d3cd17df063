"""fljax: federated, networked and private learning as one compiled array program."""

import importlib
from typing import TYPE_CHECKING, Any

from fljax import (
    _renamed,
    aggregation,
    algorithms,
    attacks,
    batches,
    clustering,
    data,
    federation,
    graphs,
    link,
    metrics,
    models,
    optimizers,
    participation,
    privacy,
    problems,
    schedules,
    streams,
)
from fljax._generator import random_key
from fljax._module import field, module, static
from fljax._version import __version__ as __version__
from fljax.citation import citation
from fljax.decisions import decisions
from fljax.records import AssumptionWarning, DivergenceWarning, MetricWarning
from fljax.running import run, view
from fljax.simulation import Simulation

if TYPE_CHECKING:
    from fljax import (
        audit,
        descent,
        fairness,
        monitoring,
        plotting,
        statistics,
        theory,
    )
    from fljax.statistics import best
    from fljax.study import (
        DamageWarning,
        Interrupted,
        OtherStudyError,
        Plan,
        PrivateTuning,
        StoreError,
        load,
        merge,
        plan,
        save,
        sweep,
    )
    from fljax.study.comparing import Comparison, compare
    from fljax.study.tuning import Tuned, tune
    from fljax.tables import table

__all__ = [
    "AssumptionWarning",
    "Comparison",
    "DamageWarning",
    "DivergenceWarning",
    "Interrupted",
    "MetricWarning",
    "OtherStudyError",
    "Plan",
    "PrivateTuning",
    "Simulation",
    "StoreError",
    "Tuned",
    "aggregation",
    "algorithms",
    "attacks",
    "audit",
    "batches",
    "best",
    "citation",
    "clustering",
    "compare",
    "data",
    "decisions",
    "descent",
    "fairness",
    "federation",
    "field",
    "graphs",
    "link",
    "load",
    "merge",
    "metrics",
    "models",
    "module",
    "monitoring",
    "optimizers",
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
    "statistics",
    "streams",
    "sweep",
    "table",
    "theory",
    "tune",
    "view",
]

#: Loaded when they are first used, as simulations are made without them; matplotlib, xarray and
#: SciPy's statistics, which some of them need, take longer than JAX.
_ROOMS = (
    *("audit", "descent", "fairness", "monitoring"),
    *("plotting", "statistics", "study", "theory"),
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"fljax.{name}")
    if name in __all__:  # all that is not here yet is of studies, but for a few
        rooms = {"best": "statistics", "table": "tables"}
        rooms |= {"Comparison": "study.comparing", "compare": "study.comparing"}
        rooms |= {"Tuned": "study.tuning", "tune": "study.tuning"}
        room = rooms.get(name, "study")
        return getattr(importlib.import_module(f"fljax.{room}"), name)
    return _renamed.lookup(__name__)(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
