"""Links that fail, stale copies, changing graphs and attackers, written as loops: no JAX.

Distributed (sub)gradient descent among peers and federated gradient descent with one server, with
losses, delays and attacks given as tables. A missing message is replaced by the receiver's own.
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


#: name -> aggregate of messages, their weights and the receiver's own model.
AGGREGATES = {
    "mean": lambda xs, ws, local: robust.mean(xs),
    "weighted": lambda xs, ws, local: robust.weighted_mean(xs, ws),
    "median": lambda xs, ws, local: robust.median(xs),
    "trimmed": lambda xs, ws, local: robust.trimmed_mean(xs, 1),
    "winsorized": lambda xs, ws, local: robust.winsorized_mean(xs, 1),
    "geometric": lambda xs, ws, local: robust.geometric_median(xs, ws),
    "krum": lambda xs, ws, local: robust.krum(xs, 1),
    "multi-krum": lambda xs, ws, local: robust.krum(xs, 1, 3),
    "centered": lambda xs, ws, local: robust.centered_clipping(xs, local, 0.5, 3),
    "norm": lambda xs, ws, local: robust.norm_clipping(xs, ws, local, 0.5),
}


def flipped(message, center, attackers, scale):
    sent = message.copy()
    for k in np.flatnonzero(attackers):
        sent[k] = center - scale * (message[k] - center)
    return sent


def peers(
    objective,
    graphs,
    step,
    rounds,
    works=None,
    ages=None,
    available=None,
    attackers=None,
    scale=1.0,
    aggregate=None,
):
    """Models ``[rounds, K, D]`` of distributed gradient descent.

    Args:
      graphs: of each round, ``[rounds, K, K]`` zeros and ones.
      works: ``[rounds, K, K]``, whether ``k`` hears ``l``.
      ages: ``[rounds, K, K]``, how many rounds old the copy of ``l`` is that ``k`` hears.
      available: ``[rounds, K]``, whether ``k`` is active.
      attackers: ``[K]``, whether ``k`` sends ``-scale`` times its message.
      aggregate: a name of :data:`AGGREGATES`; the weighted sum by default.
    """
    clients = objective.clients
    dim = objective.dim
    zero = np.zeros((clients, dim))
    history = [zero]
    mixed = zero.copy()
    model = zero.copy()
    out = []
    for n in range(rounds):
        weights = metropolis(graphs[n])
        active = np.ones(clients, bool) if available is None else available[n]
        received = history[-1]
        new = model.copy()
        for k in np.flatnonzero(active):
            new[k] = mixed[k] - step * objective.gradient(k, received[k])
        sent = new if attackers is None else flipped(new, np.zeros(dim), attackers & active, scale)
        sent = np.where(active[:, None], sent, received)
        history.append(sent)
        after = mixed.copy()
        for k in np.flatnonzero(active):
            messages = [sent[k]]
            shares = [weights[k, k]]
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
                after[k] = AGGREGATES[aggregate](np.array(messages), np.array(shares), sent[k])
        mixed = after
        model = np.where(active[:, None], new, model)
        out.append(model)
    return np.array(out)


def server(objective, step, rounds, works=None, attackers=None, scale=1.0, aggregate="mean"):
    """Models ``[rounds, D]`` of a server whose clients take one gradient step each."""
    clients = objective.clients
    dim = objective.dim
    model = np.zeros(dim)
    out = []
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
    clients = objective.clients
    dim = objective.dim
    near = nfl.neighbors(clients, edges)
    zero = np.zeros((clients, dim))
    perturbed = zero
    received = zero
    dual = zero
    out = []
    for n in range(len(works)):
        model = np.zeros((clients, dim))
        for k in range(clients):
            degree = len(near[k])
            linear = penalty * (degree * perturbed[k] + received[k]) + perturbed[k] / step
            gradient = objective.gradient(k, perturbed[k])
            model[k] = (linear - dual[k] - gradient) / (2 * penalty * degree + 1 / step)
        perturbed = model
        received = np.zeros((clients, dim))
        change = np.zeros((clients, dim))
        for k in range(clients):
            for l in near[k]:  # noqa: E741
                other = perturbed[l] if works[n][k, l] else perturbed[k]
                received[k] += other
                change[k] += perturbed[k] - other
        dual = dual + penalty * change
        out.append(model)
    return np.array(out)
