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


def pairs_by_discrepancy(discrepancy):
    """Of (161): all pairs, the most similar first."""
    n = len(discrepancy)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    return sorted(pairs, key=lambda pair: discrepancy[pair])


def affine_projection(matrix, degree):
    """On symmetric matrices, zero diagonal, row sums: the least squares correction, written out."""
    n = len(matrix)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    sums = np.zeros((n, len(pairs)))
    for e, (i, j) in enumerate(pairs):
        sums[i, e] = sums[j, e] = 1.0
    given = np.array([(matrix[i, j] + matrix[j, i]) / 2 for i, j in pairs])
    given = given - np.linalg.pinv(sums) @ (sums @ given - degree)
    found = np.zeros((n, n))
    for e, (i, j) in enumerate(pairs):
        found[i, j] = found[j, i] = given[e]
    return found


def dykstra(matrix, degree, turns=4000):
    """Boyle and Dykstra 1986, with a correction for both sets."""
    x, p, q = matrix, np.zeros_like(matrix), np.zeros_like(matrix)
    for _ in range(turns):
        y = affine_projection(x + p, degree)
        p = x + p - y
        x = np.clip(y + q, 0, 1)
        q = y + q - x
    return x
