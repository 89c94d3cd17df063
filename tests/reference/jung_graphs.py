"""Plain NumPy loops of graph learning and clusters, written from Jung 2026, chapters 6 and 7."""

import math

import numpy as np


def great_circle(one, other, radius):
    """Vincenty's formula on a sphere, of (latitude, longitude) in degrees."""
    (a, b), (c, d) = np.radians(one), np.radians(other)
    east = d - b
    across = math.hypot(
        math.cos(c) * math.sin(east),
        math.cos(a) * math.sin(c) - math.sin(a) * math.cos(c) * math.cos(east),
    )
    along = math.sin(a) * math.sin(c) + math.cos(a) * math.cos(c) * math.cos(east)
    return radius * math.atan2(across, along)


def nearest(discrepancy, k, keep):
    """Line 2585: everyone and the ``k`` with the smallest discrepancy, symmetrised."""
    n = len(discrepancy)
    chosen = np.zeros((n, n), bool)
    for i in range(n):
        others = [j for j in range(n) if j != i and np.isfinite(discrepancy[i, j])]
        for j in sorted(others, key=lambda j: (discrepancy[i, j], j))[:k]:
            chosen[i, j] = True
    return chosen | chosen.T if keep == "any" else chosen & chosen.T
