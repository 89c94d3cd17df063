"""fljax: federated, networked and private learning as one compiled array program."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fljax import (
    algorithms,
    clock,
    data,
    graphs,
    link,
    metrics,
    models,
    participation,
    partitions,
    privacy,
    problems,
)
from fljax._core.module import field, module, static
from fljax._core.nearest_names import attribute_error, nearest, same_form, suggest_names
from fljax._core.prng import random_key
from fljax._core.version import __version__ as __version__
from fljax.graphs import federation
from fljax.link import aggregation, attacks
from fljax.optimization import optimizers, schedules
from fljax.problems import augmentations, batches, clustering, streams
from fljax.results.warnings import AssumptionWarning, DivergenceWarning, MetricWarning
from fljax.simulation.citation import citation
from fljax.simulation.decisions import decisions
from fljax.simulation.running import run, view
from fljax.simulation.scenario import Simulation

if TYPE_CHECKING:
    from fljax import audit, contrib, executors, plotting, study_files, theory, track
    from fljax.metrics import fairness
    from fljax.optimization import descent
    from fljax.results import monitoring, statistics
    from fljax.results.statistics import best
    from fljax.results.tables import table
    from fljax.study import (
        DamageWarning,
        Interrupted,
        OtherStudyError,
        Plan,
        StoreError,
        WorkerError,
        load,
        merge,
        plan,
        save,
        sweep,
    )
    from fljax.tuning import Comparison, PrivateTuning, Tuned, compare, report, tune

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
    "WorkerError",
    "aggregation",
    "algorithms",
    "attacks",
    "audit",
    "augmentations",
    "batches",
    "best",
    "citation",
    "clock",
    "clustering",
    "compare",
    "contrib",
    "data",
    "decisions",
    "descent",
    "executors",
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
    "partitions",
    "plan",
    "plotting",
    "privacy",
    "problems",
    "random_key",
    "report",
    "run",
    "save",
    "schedules",
    "static",
    "statistics",
    "streams",
    "study_files",
    "sweep",
    "table",
    "theory",
    "track",
    "tune",
    "view",
]

#: Modules that are imported when they are first used: simulations are made without them, and
#: matplotlib, xarray and SciPy's statistics, which some of them need, take longer to import than
#: JAX.
_LAZY_MODULES = {
    "audit": "fljax.audit",
    "contrib": "fljax.contrib",
    "descent": "fljax.optimization.descent",
    "executors": "fljax.executors",
    "fairness": "fljax.metrics.fairness",
    "monitoring": "fljax.results.monitoring",
    "plotting": "fljax.plotting",
    "statistics": "fljax.results.statistics",
    "study": "fljax.study",
    "study_files": "fljax.study_files",
    "theory": "fljax.theory",
    "track": "fljax.track",
    "tuning": "fljax.tuning",
}

#: Where functions and classes are defined that are imported when they are first used; all other
#: names of ``__all__`` that are not here yet are of studies.
_LAZY_NAMES = {
    "best": "fljax.results.statistics",
    "table": "fljax.results.tables",
    "Comparison": "fljax.tuning",
    "PrivateTuning": "fljax.tuning",
    "Tuned": "fljax.tuning",
    "compare": "fljax.tuning",
    "report": "fljax.tuning",
    "tune": "fljax.tuning",
}


#: The modules of public names that are imported here.
_NAMESPACES = {
    name: globals()[name] for name in __all__ if isinstance(globals().get(name), ModuleType)
}
for _module in (*_NAMESPACES.values(), privacy.accounting, privacy.matrices):
    if _module is not algorithms:  # which knows the synonyms of its names
        suggest_names(_module)


def _import_when_used(name: str) -> Any:
    """Import a lazy module or name; raise ``AttributeError`` with the nearest names otherwise."""
    if name in _LAZY_MODULES:
        imported = importlib.import_module(_LAZY_MODULES[name])
        suggest_names(imported)
        return imported
    if name in __all__:
        return getattr(importlib.import_module(_LAZY_NAMES.get(name, "fljax.study")), name)
    if name.startswith("__"):
        raise attribute_error(__name__, name, ())
    elsewhere = [
        f"fljax.{namespace}.{same}"
        for namespace, imported in _NAMESPACES.items()
        for same in same_form(name, imported.__all__)
    ]
    papers = [] if elsewhere else same_form(name, algorithms.meanings())
    if papers:
        raise AttributeError(f"{'; '.join(map(algorithms.explained, papers))}.")
    raise attribute_error(__name__, name, elsewhere or nearest(name, __all__))


if not TYPE_CHECKING:  # static checkers accept any name of a module with this function
    __getattr__ = _import_when_used


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
