"""Studies: a scenario over seeds and a grid, compiled once per structure, run in blocks.

A scenario is a pure function ``(key, **point) -> Simulation``. All seeds of a block and all grid
points of the same structure are array axes of one compiled program. Values that do not depend on
the grid point (data, graph, optimum, noise draws) are computed once per seed and shared by all
points, so points are compared under common random numbers.

The result of a run depends only on its seed and grid point. The request is checked
(:mod:`~fljax.study.request`) and divided into blocks (:mod:`~fljax.study.planning`). Missing blocks
are distributed over threads, devices, processes and machines (:mod:`~fljax.study.executor`), or
handed out to the workers of an executor (:mod:`~fljax.study.distribution`,
:mod:`~fljax.study.pieces`), and every finished block is stored
(:mod:`~fljax.study.store`), so that no run is repeated or lost.
"""

from fljax.study.executor import Interrupted
from fljax.study.pieces import WorkerError
from fljax.study.planning import Part, Plan, plan
from fljax.study.saving import load, save
from fljax.study.store import DamageWarning, OtherStudyError, StoreError, merge
from fljax.study.sweeping import sweep

__all__ = [
    "DamageWarning",
    "Interrupted",
    "OtherStudyError",
    "Part",
    "Plan",
    "StoreError",
    "WorkerError",
    "load",
    "merge",
    "plan",
    "save",
    "sweep",
]
