"""Studies: a scenario over seeds and a grid, compiled once per structure, run in blocks.

A scenario is a pure function ``(key, **point) -> Simulation``. All seeds of a block and all grid
points of the same structure are array axes of one compiled program; what does not depend on the
grid point (data, graph, optimum, noise draws) is computed once per seed and shared by all points,
so points are compared under common random numbers.

The result of a run depends on its seed and grid point alone. Everything else here serves to repeat
no run and to lose none: the request is checked (:mod:`~fljax.study.request`) and cut into blocks
(:mod:`~fljax.study.planning`), the missing ones are distributed over threads, devices, processes
and machines (:mod:`~fljax.study.running`), and every finished block is kept
(:mod:`~fljax.study.store`).
"""

from fljax.study.planning import Part, Plan, plan
from fljax.study.results import load, save
from fljax.study.running import Interrupted, sweep
from fljax.study.selection import PrivateTuning
from fljax.study.store import DamageWarning, OtherStudyError, StoreError, merge

__all__ = [
    "DamageWarning",
    "Interrupted",
    "OtherStudyError",
    "Part",
    "Plan",
    "PrivateTuning",
    "StoreError",
    "load",
    "merge",
    "plan",
    "save",
    "sweep",
]
