"""Other simulators on this machine, where they are installed with JAX: pfl-research and Flower.

The convolutional network of ``peers`` (MNIST from ``FLJAX_DATA``), each in a process of its own;
``python -m experiments.benchmarks.peers.run`` installs them into environments of their own. Where
they are not installed, the numbers that they published stand next to ours.
"""

import importlib.util
import os
import sys
from typing import Any

from experiments.benchmarks.gpu.rows import Row
from experiments.benchmarks.peers import run

#: By side: the modules that it needs.
NEEDS = {"fljax": (), "bare": (), "pfl": ("pfl", "torch"), "flower": ("flwr", "torch")}
WORKLOAD = "cnn"


def measure(seconds: float, rehearse: bool) -> dict[str, Any]:
    """Seconds and the final error of every side that can run."""
    if "FLJAX_DATA" not in os.environ:
        return {"note": "needs MNIST: FLJAX_DATA is not set"}
    sides = {}
    for side, modules in NEEDS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            sides[side] = {"note": f"{missing[0]} is not installed"}
        elif rehearse:
            sides[side] = {"note": "would run"}
        else:
            sides[side] = run.measured(side, WORKLOAD, sys.executable, 1, 1, seconds / len(NEEDS))
    return {"data": "MNIST", "precision": "float32", "sides": sides}


ROWS = {"simulators": Row("peers' convolutional network on MNIST, other simulators", 60, measure)}
