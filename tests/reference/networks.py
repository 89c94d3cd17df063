"""Federated learning networks as loops over nodes and events (Jung 2025).

Event ``t`` is the book's: it makes iterate ``t + 1`` of ``t``, and is the library's round
``t + 1``. ``delay[t, k, l]`` is how many events old the copy of node ``l`` is that node ``k`` has
at event ``t``; copies older than the start are the start. A node's own model is always current.
"""

import numpy as np


def weights_of(nodes, edges):
    """The adjacency matrix of edges ``(k, l)`` or ``(k, l, weight)``."""
    matrix = np.zeros((nodes, nodes))
    for k, l, *weight in edges:  # noqa: E741
        matrix[k, l] = matrix[l, k] = weight[0] if weight else 1.0
    return matrix


def asynchronous(operator, start, active, delay=None):
    """(128)-(129): ``[T, K, D]`` for ``active``, ``[T, K]``.

    ``operator(k, received, t)`` computes node ``k``'s next model from the ones ``[K, D]`` that it
    received.
    """
    history = [np.array(start, float)]
    nodes = len(start)
    for t in range(len(active)):
        new = history[t].copy()
        for k in range(nodes):
            if not active[t, k]:
                continue
            received = history[t].copy()
            for l in range(nodes):  # noqa: E741
                if delay is not None and l != k:
                    received[l] = history[max(0, t - delay[t, k, l])][l]
            new[k] = operator(k, received, t)
        history.append(new)
    return np.array(history[1:])


def synchronous(operator, start, rounds):
    """(127)."""
    return asynchronous(operator, start, np.ones((rounds, len(start)), bool))


def gradient_step(gradient, adjacency, coupling, step):
    """Algorithms 4 to 7 and, with its alpha, (130). ``slope(k, w, t)``; ``step(k, t)``."""

    def operator(k, received, t):
        direction = gradient(k, received[k], t)
        for l in range(len(received)):  # noqa: E741
            direction = direction + 2 * coupling * adjacency[k, l] * (received[k] - received[l])
        return received[k] - step(k, t) * direction

    return operator


def mean_squared_slope(data, k, w, rows=None, ridge=0.0):
    """(110), component (I), or over a batch, (113); ``ridge |w|^2`` besides."""
    X, y = data[k]
    rows = range(len(y)) if rows is None else rows
    total = 2 * ridge * w
    for r in rows:
        total = total + 2 / len(rows) * X[r] * (X[r] @ w - y[r])
    return total


def quadratic(data, k, ridge=0.0):
    """``Q`` and ``q`` of (55), (56): ``w'Qw + q'w``."""
    X, y = data[k]
    return X.T @ X / len(y) + ridge * np.eye(X.shape[1]), -2 / len(y) * X.T @ y


def relaxation_by_norm(data, adjacency, coupling, iterations=4000):
    """(170) with the norm, by least squares that are reweighted, from the own minimizer."""

    def operator(k, received, t):
        Q, q = quadratic(data, k)
        w = np.linalg.solve(Q, -q / 2)
        for _ in range(iterations):
            distance = np.linalg.norm(received - w, axis=1)
            weight = coupling * adjacency[k] / np.maximum(2 * distance, 1e-12)
            w = np.linalg.solve(Q + weight.sum() * np.eye(len(q)), weight @ received - q / 2)
        return w

    return operator


def relaxation(data, adjacency, coupling, ridge=0.0):
    """Algorithm 11, the last line of (123), for local linear models."""

    def operator(k, received, t):
        Q, q = quadratic(data, k, ridge)
        system = Q.copy()
        right = -q / 2
        for l in range(len(received)):  # noqa: E741
            system = system + adjacency[k, l] * np.diag(np.broadcast_to(coupling, len(q)))
            right = right + coupling * adjacency[k, l] * received[l]
        return np.linalg.solve(system, right)

    return operator


def closed_form(data, adjacency, coupling, ridge=0.0):
    """(58): GTVMin of local linear models; a node whose data are ``None`` has no loss."""
    nodes = len(data)
    dim = next(X.shape[1] for X, _ in (pair for pair in data if pair is not None))
    Q = np.zeros((nodes * dim, nodes * dim))
    q = np.zeros(nodes * dim)
    laplacian = np.diag(adjacency.sum(axis=1)) - adjacency
    for k in range(nodes):
        block = slice(k * dim, (k + 1) * dim)
        if data[k] is not None:
            Q[block, block], q[block] = quadratic(data, k, ridge)
        for l in range(nodes):  # noqa: E741
            theirs = slice(l * dim, (l + 1) * dim)
            Q[block, theirs] += laplacian[k, l] * np.diag(np.broadcast_to(coupling, dim))
    return np.linalg.solve(Q, -q / 2).reshape(nodes, dim)


def server(data, step, local_steps, rounds, ridge=0.0):
    """Algorithm 8: ``[T, D]``, the server's models."""
    model = np.zeros(data[0][0].shape[1])
    history = []
    for _ in range(rounds):
        gathered = []
        for k in range(len(data)):
            v = model
            for _ in range(local_steps):
                v = v - step * mean_squared_slope(data, k, v, ridge=ridge)
            gathered.append(v)
        model = np.mean(gathered, axis=0)
        history.append(model)
    return np.array(history)


def projected(data, step, rounds):
    """(115)-(116): a gradient step of each node, and the projection onto consensus."""
    models = np.zeros((len(data), data[0][0].shape[1]))
    history = []
    for _ in range(rounds):
        half = [w - step * mean_squared_slope(data, k, w) for k, w in enumerate(models)]
        models = np.tile(np.mean(half, axis=0), (len(data), 1))
        history.append(models)
    return np.array(history)


def fedprox(data, step, rounds, ridge=0.0, chosen=None):
    """Algorithm 10 with (119): ``[T, D]``; ``chosen[t]`` are the participants, by default all."""
    dim = data[0][0].shape[1]
    history = []
    model = np.zeros(dim)
    for t in range(rounds):
        gathered = []
        for k in range(len(data)) if chosen is None else chosen[t]:
            Q, q = quadratic(data, k, ridge)
            gathered.append(np.linalg.solve(Q + np.eye(dim) / step, model / step - q / 2))
        model = np.mean(gathered, axis=0)
        history.append(model)
    return np.array(history)
