"""Averages on a tree of servers, node by node: HierFAVG (Liu et al. 2020, Algorithm 1),
Hier-Local-QSGD (Liu et al. 2023), and the same on more levels; DP-FedAvg at every edge.
"""

import numpy as np

from tests.reference.private import clip


def hierarchy(
    gradient,
    parents,
    weights,
    start,
    step,
    intervals,
    visits,
    sends=lambda n, level, s: True,
    compress=lambda n, level, s, vector: vector,
    noise=lambda n, level, s: 0.0,
):
    """The edges' models after every round, ``[T, P, D]``.

    Args:
      gradient: ``(k, w, rows) -> [D]``.
      parents: of each level from the clients up, the number of the server above each node.
      weights: of the clients.
      start: ``[D]``.
      step: of the round.
      intervals: rounds of a level below an average, for each level above the edges.
      visits: of each round, the rows of every step of each participant.
      sends: whether a server takes part in an average above it.
      compress: of the vector that a node sends, clients being level 0.
      noise: on it.
    """
    levels = [max(above) + 1 for above in parents]
    model = [[start.copy() for _ in range(count)] for count in levels]
    received = [[start.copy() for _ in range(count)] for count in levels]
    total = [np.asarray(weights, float)]
    for above in parents:
        sums = np.zeros(max(above) + 1)
        for node, parent in enumerate(above):
            sums[parent] += total[-1][node]
        total.append(sums)
    history = []
    for n, visit in enumerate(visits, 1):
        for edge in range(levels[0]):
            members = [k for k in visit if parents[0][k] == edge]
            share = sum(weights[k] for k in members)
            change = np.zeros_like(start)
            for k in members:
                w = model[0][edge].copy()
                for rows in visit[k]:
                    w = w - step(n) * gradient(k, w, rows)
                change += weights[k] / share * compress(n, 0, k, w - model[0][edge])
            model[0][edge] = model[0][edge] + change
        period = 1
        senders = []
        for level in range(1, len(parents)):
            period *= intervals[level - 1]
            due = n % period == 0
            senders.append([due and sends(n, level, s) for s in range(levels[level - 1])])
            for parent in range(levels[level]):
                below = [
                    s
                    for s in range(levels[level - 1])
                    if parents[level][s] == parent and senders[-1][s]
                ]
                share = sum(total[level][s] for s in below)
                mean = np.zeros_like(start)
                for s in below:
                    said = model[level - 1][s] + noise(n, level, s)
                    reference = received[level - 1][s]
                    said = reference + compress(n, level, s, said - reference)
                    mean += total[level][s] / share * said
                if below:
                    model[level][parent] = mean
        for level in range(len(parents) - 1, 0, -1):
            for s in range(levels[level - 1]):
                if senders[level - 1][s]:
                    model[level - 1][s] = model[level][parents[level][s]].copy()
                    received[level - 1][s] = model[level - 1][s].copy()
        history.append(np.array(model[0]))
    return np.array(history)


def private_edges(gradient, home, above, step, interval, took_part, expected, z, bound, draws):
    """Clients below edges below a cloud: each edge perturbs the sum of its clients' clipped
    updates, the cloud averages the edges by their numbers of clients. ``[T, P, D]``.
    """
    edges = max(home) + 1
    dim = draws.shape[-1]
    model = np.zeros((edges, dim))
    history = []
    for n, present in enumerate(took_part, 1):
        for edge in range(edges):
            total = np.zeros(dim)
            for k in present:
                if home[k] == edge:
                    update = -step * gradient(k, model[edge])
                    total += clip(update, bound)
            model[edge] = model[edge] + (total + z * bound * draws[n - 1, edge]) / expected[edge]
        if above and n % interval == 0:
            cloud = sum(home.count(edge) * model[edge] for edge in range(edges)) / len(home)
            model[:] = cloud
        history.append(model.copy())
    return np.array(history)
