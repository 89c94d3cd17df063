"""Rizk 2023 as loops: decentralized strategies, batches, importance sampling.

Matrices are as in the document: column ``p`` of ``A`` holds what agent ``p`` gives to the others.
"""

import numpy as np


def strategy(objective, before, during, after, step, rounds, visited=None, start=None):
    """(1.38)-(1.40): ``[T, K, D]``; each ``[K, K]`` left-stochastic.

    ``visited[n][k]``, if given, are the samples of agent ``k`` in round ``n``, with their weights.
    """
    agents = objective.clients
    dim = objective.dim
    w = np.zeros((agents, dim)) if start is None else start.copy()
    history = []
    for n in range(1, rounds + 1):
        phi = np.array([sum(before[q, p] * w[q] for q in range(agents)) for p in range(agents)])
        psi = np.zeros_like(w)
        for p in range(agents):
            psi[p] = sum(during[q, p] * phi[q] for q in range(agents))
            rows = None if visited is None else visited[n - 1][p]
            psi[p] -= step(n) * gradient(objective, p, phi[p], rows)
        w = np.array([sum(after[q, p] * psi[q] for q in range(agents)) for p in range(agents)])
        history.append(w)
    return np.array(history)


def gradient(objective, k, w, batch=None):
    """The gradient of agent ``k``, or its estimate from a batch of ``(rows, weights)``."""
    if batch is None:
        return objective.gradient(k, w)
    rows, weights = batch
    gradients = objective.sample_gradients(k, w)
    share = objective.strength / objective.clients
    total = share * (objective.l1 * np.sign(w) + 2 * objective.l2 * w)
    for j, weight in zip(rows, weights, strict=True):
        total = total + weight * gradients[j]
    return total


def minimizer(objective, q):
    """The minimizer of ``sum_k q_k f_k`` with the squared loss and a squared regularizer."""
    agents = objective.clients
    dim = objective.dim
    share = objective.strength / agents * sum(q)
    matrix = 2 * share * objective.l2 * np.eye(dim)
    right = np.zeros(dim)
    for k, (features, targets) in enumerate(objective.data):
        matrix = matrix + q[k] * 2 / len(targets) * features.T @ features
        right = right + q[k] * 2 / len(targets) * features.T @ targets
    return np.linalg.solve(matrix, right)


def systematic(order, probability, count, start):
    """(2.55): whose pieces of the line the points ``start + 0, 1, ...`` fall on."""
    result = []
    ends = np.cumsum([count * probability[n] for n in order])
    for i in range(count):
        position = next(j for j, end in enumerate(ends) if start + i < end)
        result.append(order[position])
    return result


def federated(
    objective, server, matrix, step, chosen, steps, uploads=None, on="models", edges=None
):
    """(2.56), (2.59)-(2.60) and (3.6)-(3.8): ``[T, P, D]``, the servers' models.

    ``uploads[n - 1][k]`` is what client ``k`` adds, ``edges[n - 1][m][p]`` server ``m`` on its way
    to ``p``; ``steps[k]`` are a client's, each of them ``step(n) / steps[k]`` long.
    """
    servers = len(matrix)
    dim = objective.dim
    w = np.zeros((servers, dim))
    history = []
    for n in range(1, len(chosen) + 1):
        mu = step(n)
        psi = w.copy()
        for p in range(servers):
            members = [k for k in chosen[n - 1] if server[k] == p]
            models = 0.0
            updates = 0.0
            for k in members:
                v = w[p].copy()
                for _ in range(steps[k]):
                    v = v - mu / steps[k] * objective.gradient(k, v)
                g = np.zeros(dim) if uploads is None else uploads[n - 1][k]
                models = models + v + g
                updates = updates + (w[p] - v) / mu + g
            if members:
                psi[p] = (
                    models / len(members) if on == "models" else w[p] - mu * updates / len(members)
                )
        w = np.zeros((servers, dim))
        for p in range(servers):
            for m in range(servers):
                g = 0.0 if edges is None or m == p else edges[n - 1][m][p]
                w[p] += matrix[m][p] * (psi[m] + g)
        history.append(w)
    return np.array(history)


# Importance sampling ---------------------------------------------------------------------------


def samples_of(objective, k, w):
    """``Q_k'(w; x_n)`` of every sample, the regularizer in each."""
    share = objective.strength / objective.clients
    regularizer_gradient = share * (objective.l1 * np.sign(w) + 2 * objective.l2 * w)
    return objective.sample_gradients(k, w) + regularizer_gradient


def floored_and_capped(probability, floor, most):
    """Mix with the uniform distribution; excess over ``most`` goes to the rest in proportion."""
    probability = (1 - floor) * probability + floor / len(probability)
    fixed = np.zeros(len(probability), bool)
    while most is not None and (probability > most * (1 + 1e-12)).any():
        fixed |= probability > most
        probability = np.where(
            fixed, most, probability * (1 - most * fixed.sum()) / probability[~fixed].sum()
        )
    return probability


def need(objective, k, probability, w, size, steps, gradient_norm):
    """(2.48) with (2.25)."""
    norms = np.linalg.norm(samples_of(objective, k, w), axis=1)
    sigma = 6 / (steps * size * len(norms) ** 2) * (norms**2 / probability).sum()
    return np.sqrt(sigma + (3 + 6 / (steps * size)) * gradient_norm**2)


def best_probabilities(objective, w, sizes, steps, floor, cap):
    """(2.46) and (2.48) at one model."""
    samples = []
    clients = []
    for k in range(objective.clients):
        norms = np.linalg.norm(samples_of(objective, k, w), axis=1)
        samples.append(norms / norms.sum())
        probability = floored_and_capped(samples[-1], floor, 1 / sizes[k] if cap else None)
        gradient_norm = np.linalg.norm(objective.gradient(k, w))
        clients.append(need(objective, k, probability, w, sizes[k], steps[k], gradient_norm))
    return np.array(clients) / sum(clients), samples


def isfedavg(
    objective, step, rounds, count, sizes, steps, rule, floor, cap, choose, batch, optimum
):
    """Algorithm 2.1. ``choose(n, p)`` are clients, ``batch(n, e, i, k, law)`` samples of one."""
    agents = objective.clients
    w = np.zeros(objective.dim)
    history = []
    clients = np.full(agents, 1 / agents)
    samples = [np.full(len(y), 1 / len(y)) for _, y in objective.data]
    if rule == "optimal":
        clients, samples = best_probabilities(objective, optimum, sizes, steps, floor, cap)
    for n in range(1, rounds + 1):
        if rule == "full":
            clients, samples = best_probabilities(objective, w, sizes, steps, floor, cap)
        used = floored_and_capped(clients, floor, 1 / count if cap else None)
        chosen = choose(n, used)
        models = []
        needs = []
        for i, k in enumerate(chosen):
            v = w.copy()
            samples_of_k = len(objective.data[k][1])
            before = floored_and_capped(samples[k], floor, 1 / sizes[k] if cap else None)
            for e in range(steps[k]):
                probability = floored_and_capped(samples[k], floor, 1 / sizes[k] if cap else None)
                rows = batch(n, e, i, k, probability)
                total = np.zeros_like(w)
                first = np.zeros_like(w)
                for b in rows:
                    share = 1 / (sizes[k] * samples_of_k * probability[b])
                    total += share * samples_of(objective, k, v)[b]
                    first += share * samples_of(objective, k, w)[b]
                if e == 0:
                    gradient_norm = np.linalg.norm(first)
                v = v - step(n) / (agents * used[k] * steps[k]) * total
                if rule == "sampled":
                    norms = np.linalg.norm(samples_of(objective, k, w), axis=1)[rows]
                    samples[k] = samples[k].copy()
                    samples[k][rows] = samples[k][rows].sum() * norms / norms.sum()
            needs.append(need(objective, k, before, w, sizes[k], steps[k], gradient_norm))
            models.append(v)
        if rule == "sampled":
            clients = clients.copy()
            clients[chosen] = clients[chosen].sum() * np.array(needs) / sum(needs)
        w = np.mean(models, axis=0)
        history.append(w)
    return np.array(history)
