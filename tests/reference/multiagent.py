"""Rizk 2023 as loops: decentralised strategies, batches, importance sampling.

Matrices are as in the document: column ``p`` of ``A`` holds what agent ``p`` gives to the others.
"""

import numpy as np


def strategy(objective, before, beside, after, step, rounds, visited=None, start=None):
    """(1.38)-(1.40): ``[T, K, D]``; each ``[K, K]`` left-stochastic.

    ``visited[n][k]``, if given, are the samples of agent ``k`` in round ``n``, with their weights.
    """
    agents, dim = objective.clients, objective.dim
    w = np.zeros((agents, dim)) if start is None else start.copy()
    history = []
    for n in range(1, rounds + 1):
        phi = np.array([sum(before[q, p] * w[q] for q in range(agents)) for p in range(agents)])
        psi = np.zeros_like(w)
        for p in range(agents):
            psi[p] = sum(beside[q, p] * phi[q] for q in range(agents))
            some = None if visited is None else visited[n - 1][p]
            psi[p] -= step(n) * slope(objective, p, phi[p], some)
        w = np.array([sum(after[q, p] * psi[q] for q in range(agents)) for p in range(agents)])
        history.append(w)
    return np.array(history)


def slope(objective, k, w, some=None):
    """The gradient of agent ``k``, or what a batch of ``(rows, weights)`` makes of it."""
    if some is None:
        return objective.gradient(k, w)
    rows, weights = some
    each, share = objective.sample_gradients(k, w), objective.strength / objective.clients
    total = share * (objective.l1 * np.sign(w) + 2 * objective.l2 * w)
    for j, weight in zip(rows, weights, strict=True):
        total = total + weight * each[j]
    return total


def minimiser(objective, q):
    """Of ``sum_k q_k f_k`` with the squared loss and a squared regulariser."""
    agents, dim = objective.clients, objective.dim
    share = objective.strength / agents * sum(q)
    matrix, right = 2 * share * objective.l2 * np.eye(dim), np.zeros(dim)
    for k, (features, targets) in enumerate(objective.data):
        matrix = matrix + q[k] * 2 / len(targets) * features.T @ features
        right = right + q[k] * 2 / len(targets) * features.T @ targets
    return np.linalg.solve(matrix, right)


def systematic(order, probability, count, start):
    """(2.55): whose pieces of the line the points ``start + 0, 1, ...`` fall on."""
    found, ends = [], np.cumsum([count * probability[n] for n in order])
    for i in range(count):
        place = next(j for j, end in enumerate(ends) if start + i < end)
        found.append(order[place])
    return found
