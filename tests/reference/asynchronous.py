"""A server that does not wait, message by message, no JAX.

FedBuff (Nguyen et al. 2022, Algorithms 1 and 2) and FedAsync (Xie et al. 2019, Algorithm 1), in
rounds: a message that is sent in round ``n`` and takes ``l`` of them is there in round ``n + l``,
``l`` rounds old. Arguments as in `tests.reference.adapted`; results are ``[T, D]``.
"""

import numpy as np


def polynomial(power):
    return lambda late: (late + 1) ** -power


def hinge(steepness, patience):
    return lambda late: 1.0 if late <= patience else 1 / (steepness * (late - patience) + 1)


def rounds_of(world, begin):
    """Arrivals of each round as ``(age, message)``; ``begin(n, k)`` computes a client's message."""
    sent = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            lag = int(world.delay[n - 1, k])
            message = begin(n, k)
            if lag >= 0:
                sent.append((n + lag, lag, message))
        yield [(lag, message) for at, lag, message in sent if at == n]


def fedbuff(gradient, world, work, start, step, size, server_step_size, staleness):
    server = start.copy()
    buffer = []
    history = []

    def begin(n, k):
        w = server.copy()
        for rows in work[n - 1][k]:
            w = w - step(n) * gradient(k, w, rows)
        return server - w  # the paper's sign

    for arriving in rounds_of(world, begin):
        buffer += [staleness(late) * change for late, change in arriving]
        if len(buffer) >= size:
            server = server - server_step_size * sum(buffer) / len(buffer)
            buffer = []
        history.append(server)
    return np.array(history)


def fedasync(gradient, world, work, start, step, mixing, staleness, attraction=0.0):
    """Several arrivals in a round: the mean of the models that each alone would give."""
    server = start.copy()
    history = []

    def begin(n, k):
        w = server.copy()
        for rows in work[n - 1][k]:
            w = w - step(n) * (gradient(k, w, rows) + attraction * (w - server))
        return w

    for arriving in rounds_of(world, begin):
        mixtures = []
        for late, model in arriving:
            alpha = mixing * staleness(late)
            mixtures.append((1 - alpha) * server + alpha * model)
        server = sum(mixtures) / len(mixtures) if mixtures else server
        history.append(server)
    return np.array(history)
