"""GTV minimization as loops, from the equations of Jung (2026): no JAX."""

import numpy as np


def squared(u):
    return sum(x**2 for x in u)


def p_norm(p):
    if p == np.inf:
        return lambda u: max(abs(x) for x in u)
    return lambda u: sum(abs(x) ** p for x in u) ** (1 / p)


def variation(models, edges, weights, penalty):
    """(32): each undirected edge once."""
    return sum(a * penalty(models[k] - models[i]) for (k, i), a in zip(edges, weights, strict=True))


def local(X, y, w):
    """The mean of squared errors, (52)."""
    return sum((y[r] - X[r] @ w) ** 2 for r in range(len(y))) / len(y)


def objective(data, importance, edges, weights, coupling, penalty, models):
    """(48), with a factor of each local loss."""
    losses = [m * local(X, y, w) for m, (X, y), w in zip(importance, data, models, strict=True)]
    return sum(losses) + coupling * variation(models, edges, weights, penalty)


def gradient(data, importance, edges, weights, coupling, penalty_gradient, models):
    """The gradient of the same objective, given the gradient of the penalty."""
    result = np.zeros_like(models)
    for k, (X, y) in enumerate(data):
        result[k] = importance[k] * 2 / len(y) * X.T @ (X @ models[k] - y)
    for (k, i), a in zip(edges, weights, strict=True):
        result[k] += coupling * a * penalty_gradient(models[k] - models[i])
        result[i] += coupling * a * penalty_gradient(models[i] - models[k])
    return result


def laplacian(nodes, edges, weights):
    """(36)."""
    matrix = np.zeros((nodes, nodes))
    for (k, i), a in zip(edges, weights, strict=True):
        matrix[k, i] -= a
        matrix[i, k] -= a
        matrix[k, k] += a
        matrix[i, i] += a
    return matrix


def closed_form(data, importance, edges, weights, coupling, ridge=0.0):
    """(55), (56) and (58); ``coupling`` is one number or one for each parameter."""
    nodes = len(data)
    dim = data[0][0].shape[1]
    Q = np.kron(laplacian(nodes, edges, weights), np.diag(np.broadcast_to(coupling, dim)))
    q = np.zeros(nodes * dim)
    for k, (X, y) in enumerate(data):
        block = slice(k * dim, (k + 1) * dim)
        Q[block, block] += importance[k] / len(y) * X.T @ X + ridge * np.eye(dim)
        q[block] = -importance[k] * 2 / len(y) * X.T @ y
    return np.linalg.solve(Q, -q / 2).reshape(nodes, dim)


def dual(data, importance, edges, weights, coupling, penalty_conjugate, flow):
    """(68) and (69): ``flow[e]`` of an edge ``k < l``, head ``k`` and tail ``l``."""
    nodes = len(data)
    dim = data[0][0].shape[1]
    into = np.zeros((nodes, dim))
    for (head, tail), u in zip(edges, flow, strict=True):
        into[tail] += u
        into[head] -= u
    total = 0.0
    for k, (X, y) in enumerate(data):
        Q = importance[k] / len(y) * X.T @ X
        q = -importance[k] * 2 / len(y) * X.T @ y
        constant = importance[k] / len(y) * sum(y**2)
        v = -into[k] - q
        total -= v @ np.linalg.pinv(Q, hermitian=True) @ v / 4 - constant
    for a, u in zip(weights, flow, strict=True):
        total -= coupling * a * penalty_conjugate(u / (coupling * a))
    return total
