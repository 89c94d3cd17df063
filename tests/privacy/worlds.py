"""Two data sets that are as far apart as neighbors can be, for the algorithms of the cases."""

import numpy as np

from fljax import audit
from fljax.algorithms import REGISTRY
from fljax.problems import LeastSquares, SquaredL2, from_clients
from tests.cases import PRIVATE, make_data, make_problem

CLIENT = 2  # whose data differ, six samples
#: Those that minimize exactly, in closed form for the squared loss.
EXACT = [label for label in PRIVATE if REGISTRY[label].needs.minimizer]


def clipped(neighbors="replace"):
    """Corners where every gradient is at its clip, in opposite directions."""
    problem = make_problem("lad", clip=1.0)
    return audit.corners(problem, CLIENT, targets=(-1e3, 1e3), neighbors=neighbors)


def short(neighbors="replace"):
    """Features of length 0.1 and targets of 4.5: gradients of the squared loss near 0.9, wherever
    the models go within a few units of zero, and hardly any curvature.
    """
    units = [(X / np.linalg.norm(X, axis=1, keepdims=True), np.sign(y)) for X, y in make_data()]
    problem = from_clients([(0.1 * X, y) for X, y in units], LeastSquares(), SquaredL2(), 0.8)
    return audit.corners(problem, CLIENT, radius=0.1, targets=(-4.5, 4.5), neighbors=neighbors)


def worlds_of(label, neighbors="replace"):
    return short(neighbors) if label in EXACT else clipped(neighbors)
