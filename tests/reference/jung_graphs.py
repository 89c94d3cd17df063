"""Plain NumPy loops of graph learning and clusters, written from Jung 2025, chapters 6 and 7."""

import itertools
import math

import numpy as np


def great_circle(start, end, radius):
    """Vincenty's formula on a sphere, of (latitude, longitude) in degrees."""
    (a, b), (c, d) = np.radians(start), np.radians(end)
    east = d - b
    across = math.hypot(
        math.cos(c) * math.sin(east),
        math.cos(a) * math.sin(c) - math.sin(a) * math.cos(c) * math.cos(east),
    )
    inner = math.sin(a) * math.sin(c) + math.cos(a) * math.cos(c) * math.cos(east)
    return radius * math.atan2(across, inner)


def nearest(discrepancy, k, keep):
    """Section 7.3: everyone and the ``k`` with the smallest discrepancy, symmetrized."""
    n = len(discrepancy)
    chosen = np.zeros((n, n), bool)
    for i in range(n):
        candidates = [j for j in range(n) if j != i and np.isfinite(discrepancy[i, j])]
        for j in sorted(candidates, key=lambda j: (discrepancy[i, j], j))[:k]:
            chosen[i, j] = True
    return chosen | chosen.T if keep == "any" else chosen & chosen.T


def pairs_by_discrepancy(discrepancy):
    """All pairs by (161), the most similar first."""
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
    vector = np.array([(matrix[i, j] + matrix[j, i]) / 2 for i, j in pairs])
    vector = vector - np.linalg.pinv(sums) @ (sums @ vector - degree)
    result = np.zeros((n, n))
    for e, (i, j) in enumerate(pairs):
        result[i, j] = result[j, i] = vector[e]
    return result


def dykstra(matrix, degree, iterations=4000):
    """Boyle and Dykstra 1986, with a correction for both sets."""
    x = matrix
    p = np.zeros_like(matrix)
    q = np.zeros_like(matrix)
    for _ in range(iterations):
        y = affine_projection(x + p, degree)
        p = x + p - y
        x = np.clip(y + q, 0, 1)
        q = y + q - x
    return x


def label_overlap(first, second):
    """Section 7.2: the share of both clients' points whose labels both have."""
    common = set(first) & set(second)
    return np.mean([label in common for label in [*first, *second]])


def adjusted_rand(assigned, truth):
    """Hubert and Arabie 1985, by counting pairs."""
    pairs = list(itertools.combinations(range(len(assigned)), 2))
    same = [(assigned[i] == assigned[j], truth[i] == truth[j]) for i, j in pairs]
    joint = sum(a and b for a, b in same)
    rows = sum(a for a, _ in same)
    columns = sum(b for _, b in same)
    probability = rows * columns / len(pairs)
    return (joint - probability) / ((rows + columns) / 2 - probability)


def cluster_quality(matrix, members):
    """Section 6.2: the second eigenvalue within, and the weights that leave."""
    inside = matrix[np.ix_(members, members)]
    values = np.linalg.eigvalsh(np.diag(inside.sum(axis=1)) - inside)
    outside = set(range(len(matrix))) - set(members)
    return values[1], sum(matrix[i, j] for i in members for j in outside)


def nearest_edges(matrix, models, k, keep):
    """The candidate edges to the nearest models, symmetrized."""
    n = len(matrix)
    result = np.zeros_like(matrix)
    near = [[j for j in range(n) if matrix[i, j] > 0] for i in range(n)]
    distance = lambda i, j: np.linalg.norm(models[i] - models[j])  # noqa: E731
    chosen = [set(sorted(near[i], key=lambda j: distance(i, j))[:k]) for i in range(n)]
    for i in range(n):
        for j in near[i]:
            chosen_here = j in chosen[i]
            theirs = i in chosen[j]
            result[i, j] = matrix[i, j] * (
                (chosen_here or theirs) if keep == "any" else (chosen_here and theirs)
            )
    return result
