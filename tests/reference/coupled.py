"""Jung 2025: bounds of models coupled over a graph, instance by instance, in plain NumPy.

Shapes: ``K`` clients, ``N`` samples, ``D`` parameters. A client's loss is
``1 / N * |y - X w|^2``; GTVMin adds ``coupling`` times the squared differences along edges.
"""

import numpy as np


def laplacian(adjacency):
    return np.diag(adjacency.sum(axis=1)) - adjacency


def variation(adjacency, models):
    total = 0.0
    for k in range(len(models)):
        for far in range(k + 1, len(models)):
            total += adjacency[k, far] * np.sum((models[k] - models[far]) ** 2)
    return total


def halves(features):
    """``Q^(k)``, half of the Hessians, (55)."""
    return [X.T @ X / len(X) for X in features]


def system(features, targets, adjacency, coupling):
    """``Q`` and ``q`` of ``w'Qw + q'w``, (55)-(56); ``coupling`` one number or ``[D]``."""
    clients = len(features)
    dim = features[0].shape[1]
    strength = np.diag(np.broadcast_to(coupling, dim))
    Q = np.kron(laplacian(adjacency), strength)
    for k, half in enumerate(halves(features)):
        Q[k * dim : (k + 1) * dim, k * dim : (k + 1) * dim] += half
    q = [-2 * X.T @ y / len(y) for X, y in zip(features, targets, strict=True)]
    return Q, np.concatenate(q).reshape(clients, dim)


def gtvmin(features, targets, adjacency, coupling):
    """(58)."""
    Q, q = system(features, targets, adjacency, coupling)
    return np.linalg.solve(Q, -q.ravel() / 2).reshape(q.shape)


def fedrelax(features, targets, adjacency, coupling, models):
    """One round, client by client, (123)."""
    new = np.zeros_like(models)
    for k, (X, y) in enumerate(zip(features, targets, strict=True)):
        weight = coupling * adjacency[k].sum()
        left = X.T @ X / len(y) + weight * np.eye(X.shape[1])
        new[k] = np.linalg.solve(left, coupling * adjacency[k] @ models + X.T @ y / len(y))
    return new


def noise(features, targets, truth):
    """Each client's ``|eps|^2 / m``."""
    return np.array([np.mean((y - X @ truth) ** 2) for X, y in zip(features, targets, strict=True)])


def local_error_bound(X, y, truth):
    """(16)."""
    least = np.linalg.eigvalsh(X.T @ X / len(y))[0]
    return 4 / len(y) ** 2 * np.sum((X.T @ (y - X @ truth)) ** 2) / least**2


def deviation_bound(features, targets, adjacency, coupling, truth):
    """(63)."""
    second = np.linalg.eigvalsh(laplacian(adjacency))[1]
    return noise(features, targets, truth).sum() / (second * coupling)


def cluster_deviation_bound(features, targets, adjacency, coupling, truth, members, solution):
    """(148)."""
    inside = np.flatnonzero(members)
    second = np.linalg.eigvalsh(laplacian(adjacency[np.ix_(inside, inside)]))[1]
    outside = [k for k in range(len(members)) if k not in inside]
    boundary = sum(adjacency[k, far] for k in inside for far in outside)
    farthest = max((np.sum(solution[far] ** 2) for far in outside), default=0.0)
    coupling_term = coupling * boundary * 2 * (np.sum(truth**2) + farthest)
    return (noise(features, targets, truth)[inside].sum() + coupling_term) / (coupling * second)


def curvature(features):
    """(105): ``lambda_max`` and the smallest eigenvalue of the mean."""
    hessians = halves(features)
    most = max(np.linalg.eigvalsh(hessian)[-1] for hessian in hessians)
    return most, np.linalg.eigvalsh(np.mean(hessians, axis=0))[0]


def common_error_bound(features, targets, adjacency, coupling, truth):
    """(169)."""
    most, pooled = curvature(features)
    second = np.linalg.eigvalsh(laplacian(adjacency))[1]
    total = noise(features, targets, truth).sum()
    return 2 * (most + most**2 / (second * coupling)) * total / (len(features) * pooled**2)


def label_shift(features, change, adjacency, coupling):
    """``-Q^-1 n / 2`` with ``n^(k) = -2 X' eps / m``, (163), whose factor is not printed."""
    Q = system(features, change, adjacency, coupling)[0]
    n = np.concatenate([-2 * X.T @ e / len(e) for X, e in zip(features, change, strict=True)])
    return (-0.5 * np.linalg.solve(Q, n)).reshape(len(features), -1)


def label_shift_bounds(features, change, adjacency, coupling):
    """Proposition 8.1 with ``1 / m``, and as printed."""
    most, pooled = curvature(features)
    ratio = pooled / (4 * most)
    second = np.linalg.eigvalsh(laplacian(adjacency))[1]
    gain = most * (1 + ratio**2) ** 2 / min(second * coupling * ratio**2, pooled / 2) ** 2
    return gain * sum(np.mean(e**2) for e in change), gain * sum(np.sum(e**2) for e in change)


def common_error(features, targets, truth, deviation, sign=-1):
    """The error of the mean and its bound (167); ``sign`` +1 as printed."""
    total = 0.0
    for X, y, difference in zip(features, targets, deviation, strict=True):
        total = total + X.T @ (y - X @ truth + sign * X @ difference) / len(y)
    error = np.linalg.solve(np.sum(halves(features), axis=0), total)
    return error, np.sum(total**2) / (len(features) * curvature(features)[1]) ** 2


def largest_bounds(features, adjacency, coupling):
    """(106), and the corresponding bound in (135)."""
    most = curvature(features)[0]
    of_graph = np.linalg.eigvalsh(laplacian(adjacency))[-1]
    by_degree = most + 2 * coupling * adjacency.sum(axis=1).max()
    return most + coupling * of_graph, by_degree, max(most, coupling * of_graph)


def smallest_bound(features, adjacency, coupling):
    """(107)."""
    most, pooled = curvature(features)
    second = np.linalg.eigvalsh(laplacian(adjacency))[1]
    ratio = pooled / (4 * most)
    return min(second * coupling * ratio**2, pooled / 2) / (1 + ratio**2)


def fedrelax_factors(features, adjacency, coupling):
    """(133), of each client."""
    result = []
    for k, half in enumerate(halves(features)):
        convexity = 2 * np.linalg.eigvalsh(half)[0]
        result.append(1 / (1 + convexity / (2 * coupling * adjacency[k].sum())))
    return np.array(result)


def perturbed_bounds(factor, distance, perturbations):
    """(88) after 1, ..., T steps, repaired and as printed."""
    repaired = []
    printed = []
    for t in range(1, len(perturbations) + 1):
        terms = [(back, perturbations[t - back]) for back in range(1, t + 1)]
        start = factor**t * distance
        repaired.append(start + sum(factor ** (back - 1) * size for back, size in terms))
        printed.append(start + sum(factor**back * size for back, size in terms))
    return np.array(repaired), np.array(printed)


def asynchronous(apply, start, active, ages):
    """(128)-(129): client ``k`` applies its operator to the models it received when it is active.

    Args:
        apply: ``(k, received [K, D]) -> [D]``.
        start: ``[K, D]``.
        active: ``[T, K]``.
        ages: ``[T, K, K]``, of the copies that ``k`` has of other models; its own model is current.

    Returns:
        All models, ``[T + 1, K, D]``.
    """
    past = [np.array(start)]
    for now, (on, age) in enumerate(zip(active, ages, strict=True)):
        new = past[-1].copy()
        for k in np.flatnonzero(on):
            received = np.array([past[max(now - age[k, far], 0)][far] for far in range(len(new))])
            received[k] = past[-1][k]
            new[k] = apply(k, received)
        past.append(new)
    return np.array(past)
