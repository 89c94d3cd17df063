"""Links that fail, stale copies, changing graphs and attackers, written as loops: no JAX.

Distributed (sub)gradient descent among peers and federated gradient descent with one server, with
whatever happens to their messages given as tables. Where a receiver does not hear a neighbor, its
own message stands in.
"""

import numpy as np

from tests.reference import nfl, robust


def metropolis(adjacency):
    nodes = len(adjacency)
    degree = adjacency.sum(axis=1)
    weights = np.zeros((nodes, nodes))
    for k in range(nodes):
        for l in range(nodes):  # noqa: E741
            if adjacency[k, l]:
                weights[k, l] = 1 / (1 + max(degree[k], degree[l]))
        weights[k, k] = 1 - weights[k].sum()
    return weights


#: name -> what a receiver makes of messages, their weights and what it has itself.
AGGREGATES = {
    "mean": lambda xs, ws, own: robust.mean(xs),
    "weighted": lambda xs, ws, own: robust.weighted_mean(xs, ws),
    "median": lambda xs, ws, own: robust.median(xs),
    "trimmed": lambda xs, ws, own: robust.trimmed_mean(xs, 1),
    "winsorized": lambda xs, ws, own: robust.winsorized_mean(xs, 1),
    "geometric": lambda xs, ws, own: robust.geometric_median(xs, ws),
    "krum": lambda xs, ws, own: robust.krum(xs, 1),
    "multi-krum": lambda xs, ws, own: robust.krum(xs, 1, 3),
    "centered": lambda xs, ws, own: robust.centered_clipping(xs, own, 0.5, 3),
    "norm": lambda xs, ws, own: robust.norm_clipping(xs, ws, own, 0.5),
}


def flipped(message, around, attackers, scale):
    said = message.copy()
    for k in np.flatnonzero(attackers):
        said[k] = around - scale * (message[k] - around)
    return said


def peers(
    objective,
    graphs,
    step,
    rounds,
    works=None,
    ages=None,
    there=None,
    attackers=None,
    scale=1.0,
    aggregate=None,
):
    """Models ``[rounds, K, D]`` of distributed gradient descent.

    Args:
      graphs: of each round, ``[rounds, K, K]`` zeros and ones.
      works: ``[rounds, K, K]``, whether ``k`` hears ``l``.
      ages: ``[rounds, K, K]``, how many rounds old the copy of ``l`` is that ``k`` hears.
      there: ``[rounds, K]``, who is active.
      attackers: ``[K]``, who says ``-scale`` times its message.
      aggregate: a name of :data:`AGGREGATES`; the weighted sum by default.
    """
    clients, dim = objective.clients, objective.dim
    zero = np.zeros((clients, dim))
    history, mixed, model, out = [zero], zero.copy(), zero.copy(), []
    for n in range(rounds):
        weights = metropolis(graphs[n])
        active = np.ones(clients, bool) if there is None else there[n]
        heard, new = history[-1], model.copy()
        for k in np.flatnonzero(active):
            new[k] = mixed[k] - step * objective.gradient(k, heard[k])
        said = new if attackers is None else flipped(new, np.zeros(dim), attackers & active, scale)
        said = np.where(active[:, None], said, heard)
        history.append(said)
        after = mixed.copy()
        for k in np.flatnonzero(active):
            messages, shares = [said[k]], [weights[k, k]]
            for l in range(clients):  # noqa: E741
                if l == k or not graphs[n][k, l]:
                    continue
                if works is not None and not works[n][k, l]:
                    shares[0] += weights[k, l]
                    continue
                age = 0 if ages is None else ages[n][k, l]
                messages.append(history[max(len(history) - 1 - age, 0)][l])
                shares.append(weights[k, l])
            if aggregate is None:
                after[k] = sum(
                    share * message for share, message in zip(shares, messages, strict=True)
                )
            else:
                if works is not None:
                    shares[0] = weights[k, k]  # an aggregator sees the messages that are there
                after[k] = AGGREGATES[aggregate](np.array(messages), np.array(shares), said[k])
        mixed, model = after, np.where(active[:, None], new, model)
        out.append(model)
    return np.array(out)


def server(objective, step, rounds, works=None, attackers=None, scale=1.0, aggregate="mean"):
    """Models ``[rounds, D]`` of a server whose clients take one gradient step each."""
    clients, dim = objective.clients, objective.dim
    model, out = np.zeros(dim), []
    for n in range(rounds):
        message = np.array([model - step * objective.gradient(k, model) for k in range(clients)])
        if attackers is not None:
            message = flipped(message, model, attackers, scale)
        hears = np.ones(clients, bool) if works is None else works[n]
        if hears.any():
            model = AGGREGATES[aggregate](message[hears], np.ones(hears.sum()), model)
        out.append(model)
    return np.array(out)


def zcdp_nfl(objective, edges, penalty, step, works):
    """Models ``[rounds, K, D]`` of linearized ADMM over links that fail in both directions."""
    clients, dim = objective.clients, objective.dim
    near = nfl.neighbors(clients, edges)
    zero = np.zeros((clients, dim))
    heard, received, dual, out = zero, zero, zero, []
    for n in range(len(works)):
        model = np.zeros((clients, dim))
        for k in range(clients):
            degree = len(near[k])
            pull = penalty * (degree * heard[k] + received[k]) + heard[k] / step
            slope = objective.gradient(k, heard[k])
            model[k] = (pull - dual[k] - slope) / (2 * penalty * degree + 1 / step)
        heard, received, change = model, np.zeros((clients, dim)), np.zeros((clients, dim))
        for k in range(clients):
            for l in near[k]:  # noqa: E741
                other = heard[l] if works[n][k, l] else heard[k]
                received[k] += other
                change[k] += heard[k] - other
        dual = dual + penalty * change
        out.append(model)
    return np.array(out)
