"""Rizk 2023 as loops: decentralized strategies, batches, importance sampling.

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


def minimizer(objective, q):
    """Of ``sum_k q_k f_k`` with the squared loss and a squared regularizer."""
    agents, dim = objective.clients, objective.dim
    share = objective.strength / agents * sum(q)
    matrix, right = 2 * share * objective.l2 * np.eye(dim), np.zeros(dim)
    for k, (features, targets) in enumerate(objective.data):
        matrix = matrix + q[k] * 2 / len(targets) * features.T @ features
        right = right + q[k] * 2 / len(targets) * features.T @ targets
    return np.linalg.solve(matrix, right)


def systematic(order, probability, count, start):
    """(2.55): whose pieces of the line the points ``start + 0, 1, ...`` fall on."""
    result, ends = [], np.cumsum([count * probability[n] for n in order])
    for i in range(count):
        place = next(j for j, end in enumerate(ends) if start + i < end)
        result.append(order[place])
    return result


def federated(
    objective, server, matrix, step, chosen, steps, uploads=None, on="models", edges=None
):
    """(2.56), (2.59)-(2.60) and (3.6)-(3.8): ``[T, P, D]``, the servers' models.

    ``uploads[n - 1][k]`` is what client ``k`` adds, ``edges[n - 1][m][p]`` server ``m`` on its way
    to ``p``; ``steps[k]`` are a client's, each of them ``step(n) / steps[k]`` long.
    """
    servers, dim = len(matrix), objective.dim
    w, history = np.zeros((servers, dim)), []
    for n in range(1, len(chosen) + 1):
        mu, psi = step(n), w.copy()
        for p in range(servers):
            own, models, updates = [k for k in chosen[n - 1] if server[k] == p], 0.0, 0.0
            for k in own:
                v = w[p].copy()
                for _ in range(steps[k]):
                    v = v - mu / steps[k] * objective.gradient(k, v)
                g = np.zeros(dim) if uploads is None else uploads[n - 1][k]
                models = models + v + g
                updates = updates + (w[p] - v) / mu + g
            if own:
                psi[p] = models / len(own) if on == "models" else w[p] - mu * updates / len(own)
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
    pull = share * (objective.l1 * np.sign(w) + 2 * objective.l2 * w)
    return objective.sample_gradients(k, w) + pull


def kept(law, floor, most):
    """A share of each is uniform; what is beyond ``most`` goes to the others in proportion."""
    law = (1 - floor) * law + floor / len(law)
    fixed = np.zeros(len(law), bool)
    while most is not None and (law > most * (1 + 1e-12)).any():
        fixed |= law > most
        law = np.where(fixed, most, law * (1 - most * fixed.sum()) / law[~fixed].sum())
    return law


def need(objective, k, law, w, size, steps, slope):
    """(2.48) with (2.25)."""
    norms = np.linalg.norm(samples_of(objective, k, w), axis=1)
    sigma = 6 / (steps * size * len(norms) ** 2) * (norms**2 / law).sum()
    return np.sqrt(sigma + (3 + 6 / (steps * size)) * slope**2)


def best_probabilities(objective, w, sizes, steps, floor, cap):
    """(2.46) and (2.48) at one model."""
    samples, clients = [], []
    for k in range(objective.clients):
        norms = np.linalg.norm(samples_of(objective, k, w), axis=1)
        samples.append(norms / norms.sum())
        law = kept(samples[-1], floor, 1 / sizes[k] if cap else None)
        slope = np.linalg.norm(objective.gradient(k, w))
        clients.append(need(objective, k, law, w, sizes[k], steps[k], slope))
    return np.array(clients) / sum(clients), samples


def isfedavg(
    objective, step, rounds, count, sizes, steps, rule, floor, cap, choose, batch, optimum
):
    """Algorithm 2.1. ``choose(n, p)`` are clients, ``batch(n, e, i, k, law)`` samples of one."""
    agents = objective.clients
    w, history = np.zeros(objective.dim), []
    clients = np.full(agents, 1 / agents)
    samples = [np.full(len(y), 1 / len(y)) for _, y in objective.data]
    if rule == "optimal":
        clients, samples = best_probabilities(objective, optimum, sizes, steps, floor, cap)
    for n in range(1, rounds + 1):
        if rule == "full":
            clients, samples = best_probabilities(objective, w, sizes, steps, floor, cap)
        used = kept(clients, floor, 1 / count if cap else None)
        chosen, models, needs = choose(n, used), [], []
        for i, k in enumerate(chosen):
            v, held = w.copy(), len(objective.data[k][1])
            before = kept(samples[k], floor, 1 / sizes[k] if cap else None)
            for e in range(steps[k]):
                law = kept(samples[k], floor, 1 / sizes[k] if cap else None)
                rows = batch(n, e, i, k, law)
                total = np.zeros_like(w)
                first = np.zeros_like(w)
                for b in rows:
                    share = 1 / (sizes[k] * held * law[b])
                    total += share * samples_of(objective, k, v)[b]
                    first += share * samples_of(objective, k, w)[b]
                if e == 0:
                    slope = np.linalg.norm(first)
                v = v - step(n) / (agents * used[k] * steps[k]) * total
                if rule == "sampled":
                    norms = np.linalg.norm(samples_of(objective, k, w), axis=1)[rows]
                    samples[k] = samples[k].copy()
                    samples[k][rows] = samples[k][rows].sum() * norms / norms.sum()
            needs.append(need(objective, k, before, w, sizes[k], steps[k], slope))
            models.append(v)
        if rule == "sampled":
            clients = clients.copy()
            clients[chosen] = clients[chosen].sum() * np.array(needs) / sum(needs)
        w = np.mean(models, axis=0)
        history.append(w)
    return np.array(history)
