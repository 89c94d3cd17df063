"""Exact peer-to-peer methods as loops over rounds and peers, as their papers print them.

Each is given ``gradient(k, w, n, e)``, of peer ``k`` at ``w`` in step ``e`` of round ``n``, which
counts from one, so that one loop serves for every objective and for batches; ``A``, ``[K, K]``,
symmetric; and ``start``, ``[K, D]``. Each returns ``[T, K, D]``.
"""

import numpy as np


def combined(matrix, models):
    """Each peer's weighted sum of all messages."""
    peers = len(models)
    return np.array([sum(matrix[k, j] * models[j] for j in range(peers)) for k in range(peers)])


def slopes(gradient, models, n, e=0):
    return np.array([gradient(k, w, n, e) for k, w in enumerate(models)])


def lazy(matrix):
    return (np.eye(len(matrix)) + matrix) / 2


def as_it_is(points, step):
    return points


def extra(gradient, A, start, step, rounds, theta=0.5, prox=as_it_is):
    """Shi et al. 2015, Algorithm 1; with ``prox(points, step)`` PG-EXTRA."""
    second = (1 - theta) * np.eye(len(A)) + theta * A
    before = start
    direction = slopes(gradient, start, 1)
    point = combined(A, start) - step * direction
    model = prox(point, step)
    history = [model]
    for n in range(2, rounds + 1):
        new = slopes(gradient, model, n)
        point = combined(A, model) + point - combined(second, before) - step * (new - direction)
        before = model
        direction = new
        model = prox(point, step)
        history.append(model)
    return np.array(history)


def nids(gradient, A, start, steps, rounds, c, prox):
    """Li, Shi & Yan 2019, Algorithm 1; ``steps`` ``[K]``; ``prox(points, steps)``."""
    scale = np.diag(steps)
    tilde = np.eye(len(A)) - c * scale @ (np.eye(len(A)) - A)
    before = start
    direction = slopes(gradient, start, 1)
    z = start - scale @ direction
    w = prox(z, steps)
    history = [w]
    for n in range(2, rounds + 1):
        new = slopes(gradient, w, n)
        z = z - w + combined(tilde, 2 * w - before - scale @ (new - direction))
        before = w
        direction = new
        w = prox(z, steps)
        history.append(w)
    return np.array(history)


def exact_diffusion(gradient, A, start, step, rounds):
    """Yuan et al. 2019, Algorithm 1, with symmetric weights."""
    w = start
    last = start
    history = []
    for n in range(1, rounds + 1):
        psi = w - step * slopes(gradient, w, n)
        phi = psi + w - last
        w = combined(lazy(A), phi)
        last = psi
        history.append(w)
    return np.array(history)


def led(gradient, A, start, step, rounds, local_steps, beta):
    """Alghunaim 2024, Algorithm 1."""
    w = start
    y = np.zeros_like(start)
    history = []
    for n in range(1, rounds + 1):
        phi = w.copy()
        for e in range(local_steps):
            phi = phi - step * slopes(gradient, phi, n, e) - beta * y
        w = combined(lazy(A), phi)
        y = y + phi - w
        history.append(w)
    return np.array(history)


def tracking(gradient, graphs, start, step, rounds, kind):
    """DIGing, NEXT and Aug-DGM; ``graphs[n - 1]`` are the weights of round ``n``."""
    w = start
    direction = slopes(gradient, w, 1)
    y = direction
    history = []
    for n in range(1, rounds + 1):
        A = graphs[n - 1]
        w = combined(A, w) - step * y if kind == "DIGing" else combined(A, w - step * y)
        history.append(w)
        new = slopes(gradient, w, n + 1)
        y = (
            combined(A, y + new - direction)
            if kind == "Aug-DGM"
            else combined(A, y) + new - direction
        )
        direction = new
    return np.array(history)


def kgt(gradient, A, start, step, rounds, local_steps, outer):
    """Liu et al. 2024, Algorithm 1, from c = 0."""
    w = start
    c = np.zeros_like(start)
    history = []
    for n in range(1, rounds + 1):
        v = w.copy()
        for e in range(local_steps):
            v = v - step * (slopes(gradient, v, n, e) + c)
        z = (w - v) / (local_steps * step)
        c = c - z + combined(A, z)
        w = combined(A, w - local_steps * outer * step * z)
        history.append(w)
    return np.array(history)


def dlm(gradient, adjacency, start, c, rho, rounds):
    """Ling et al. 2015, Algorithm 1."""
    peers = range(len(start))
    x = start
    phi = np.zeros_like(start)
    history = []

    def differences(x):
        return np.array([sum(adjacency[k, j] * (x[k] - x[j]) for j in peers) for k in peers])

    for n in range(1, rounds + 1):
        right = slopes(gradient, x, n) + phi + c * differences(x)
        x = np.array([x[k] - right[k] / (2 * c * adjacency[k].sum() + rho) for k in peers])
        phi = phi + c * differences(x)
        history.append(x)
    return np.array(history)


def dinno(gradient, adjacency, start, rho, step, rounds, local_steps):
    """Yu et al. 2022, Algorithm 1, with gradient descent."""
    peers = range(len(start))
    w = start
    p = np.zeros_like(start)
    history = []
    for n in range(1, rounds + 1):
        new = w.copy()
        for k in peers:
            p[k] = p[k] + rho * sum(adjacency[k, j] * (w[k] - w[j]) for j in peers)
        for k in peers:
            for e in range(local_steps):
                penalty_gradient = sum(
                    2 * adjacency[k, j] * (new[k] - (w[k] + w[j]) / 2) for j in peers
                )
                new[k] = new[k] - step * (gradient(k, new[k], n, e) + p[k] + rho * penalty_gradient)
        w = new
        history.append(w)
    return np.array(history)


def wang_elia(gradient, A, start, step, rounds):
    """Wang & Elia 2010 with ``K = (I - A) / 2``."""
    x = start
    z = np.zeros_like(start)
    history = []
    K = (np.eye(len(A)) - A) / 2
    for n in range(1, rounds + 1):
        new = x - combined(K, x + z) - step * slopes(gradient, x, n)
        z = z + combined(K, x)
        x = new
        history.append(x)
    return np.array(history)


def admm_tracking(gradient, adjacency, start, rho, alpha, gamma, step, rounds):
    """Carnevale et al. 2025, Algorithm 1, with the variables of every edge."""
    peers = len(start)
    dim = start.shape[1]
    near = [[j for j in range(peers) if adjacency[k, j]] for k in range(peers)]
    none = np.zeros(dim)  # all know all starts
    z = {(k, j): np.append(rho * start[j], none) for k in range(peers) for j in near[k]}
    x = start
    history = []
    for n in range(1, rounds + 1):
        averages = []
        for k in range(peers):
            values = np.concatenate([x[k], gradient(k, x[k], n, 0)])
            averages.append((values + sum(z[k, j] for j in near[k])) / (1 + rho * len(near[k])))
        x = np.array(
            [
                (1 - gamma) * x[k] + gamma * (averages[k][:dim] - step * averages[k][dim:])
                for k in range(peers)
            ]
        )
        messages = {(j, k): 2 * rho * averages[j] - z[j, k] for j, k in z}
        z = {(k, j): (1 - alpha) * z[k, j] + alpha * messages[j, k] for k, j in z}
        history.append(x)
    return np.array(history)
