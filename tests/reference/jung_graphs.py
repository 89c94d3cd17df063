"""Plain NumPy loops of graph learning and clusters, written from Jung 2025, chapters 6 and 7."""

import itertools
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
    """Section 7.3: everyone and the ``k`` with the smallest discrepancy, symmetrized."""
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
    result = np.zeros((n, n))
    for e, (i, j) in enumerate(pairs):
        result[i, j] = result[j, i] = given[e]
    return result


def dykstra(matrix, degree, turns=4000):
    """Boyle and Dykstra 1986, with a correction for both sets."""
    x, p, q = matrix, np.zeros_like(matrix), np.zeros_like(matrix)
    for _ in range(turns):
        y = affine_projection(x + p, degree)
        p = x + p - y
        x = np.clip(y + q, 0, 1)
        q = y + q - x
    return x


def label_overlap(one, other):
    """Section 7.2: the share of both clients' points whose labels both have."""
    common = set(one) & set(other)
    return np.mean([label in common for label in [*one, *other]])


def adjusted_rand(found, truth):
    """Hubert and Arabie 1985, by counting pairs."""
    pairs = list(itertools.combinations(range(len(found)), 2))
    same = [(found[i] == found[j], truth[i] == truth[j]) for i, j in pairs]
    both = sum(a and b for a, b in same)
    rows, columns = sum(a for a, _ in same), sum(b for _, b in same)
    probability = rows * columns / len(pairs)
    return (both - probability) / ((rows + columns) / 2 - probability)


def cluster_quality(matrix, members):
    """Section 6.2: the second eigenvalue within, and the weights that leave."""
    inside = matrix[np.ix_(members, members)]
    values = np.linalg.eigvalsh(np.diag(inside.sum(axis=1)) - inside)
    others = set(range(len(matrix))) - set(members)
    return values[1], sum(matrix[i, j] for i in members for j in others)


def kept(matrix, models, k, keep):
    """Of the candidates' edges those to the nearest models, symmetrized."""
    n = len(matrix)
    result = np.zeros_like(matrix)
    near = [[j for j in range(n) if matrix[i, j] > 0] for i in range(n)]
    apart = lambda i, j: np.linalg.norm(models[i] - models[j])  # noqa: E731
    chosen = [set(sorted(near[i], key=lambda j: apart(i, j))[:k]) for i in range(n)]
    for i in range(n):
        for j in near[i]:
            mine, theirs = j in chosen[i], i in chosen[j]
            result[i, j] = matrix[i, j] * ((mine or theirs) if keep == "any" else (mine and theirs))
    return result
