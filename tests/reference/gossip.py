"""Methods of gossip from 2018 on as loops over peers."""

import numpy as np


def combined(weights, vectors):
    """The combination of each peer: ``weights[k, m]``, of ``m`` at ``k``."""
    clients = len(vectors)
    return np.array(
        [sum(weights[k, m] * vectors[m] for m in range(clients)) for k in range(clients)]
    )


def compressed(compress, vectors):
    return np.array([compress(vector) for vector in vectors])


def gradients_of(gradient, models):
    return np.array([gradient(k, models[k]) for k in range(len(models))])


def d2(gradient, weights, step, rounds, start):
    """Tang et al. 2018, Algorithm 1, with the paper's matrix ``W``."""
    before = start
    gradient_before = gradients_of(gradient, start)
    x = combined(weights, start - step * gradient_before)
    history = [x]
    for _ in range(rounds - 1):
        new = gradients_of(gradient, x)
        half = 2 * x - before - step * new + step * gradient_before
        before = x
        gradient_before = new
        x = combined(weights, half)
        history.append(x)
    return np.array(history)


def motef(gradient, weights, step, gamma, share, compress, rounds, start):
    """Islamov, Gao and Stich 2024, Algorithm 1: ``share`` is ``lambda``; at 1, Zhao et al. 2022."""
    x = start.copy()
    m = gradients_of(gradient, x)
    v = m.copy()
    h = start.copy()
    g = np.zeros_like(x)
    history = []
    for t in range(1, rounds + 1):
        x = x + gamma * (combined(weights, h) - h) - step(t) * v
        h = h + compressed(compress, x - h)
        new = (1 - share) * m + share * gradients_of(gradient, x)
        v = v + gamma * (combined(weights, g) - g) + new - m
        m = new
        g = g + compressed(compress, v - g)
        history.append(x)
    return np.array(history)


def lead(gradient, weights, step, gamma, alpha, compress, rounds, start):
    """Liu et al. 2021, Algorithm 1 with COMM, from ``D = 0`` and copies of the start."""
    d = np.zeros_like(start)
    h = start.copy()
    mixed_h = combined(weights, h)
    x = start - step(1) * gradients_of(gradient, start)
    history = [x]
    for t in range(2, rounds + 1):
        new = gradients_of(gradient, x)
        y = x - step(t) * new - step(t) * d
        q = compressed(compress, y - h)
        estimate = h + q
        mixed_estimate = mixed_h + combined(weights, q)
        h = (1 - alpha) * h + alpha * estimate
        mixed_h = (1 - alpha) * mixed_h + alpha * mixed_estimate
        d = d + gamma / (2 * step(t)) * (estimate - mixed_estimate)
        x = x - step(t) * new - step(t) * d
        history.append(x)
    return np.array(history)


def cedas(gradient, weights, step, gamma, alpha, compress, rounds, start):
    """Huang and Pu 2023: the same with a dual variable that the step size does not scale."""
    d = np.zeros_like(start)
    h = start.copy()
    x = start - step(1) * gradients_of(gradient, start)
    history = [x]
    for t in range(2, rounds + 1):
        moved = x - step(t) * gradients_of(gradient, x)
        estimate = h + compressed(compress, moved - d - h)
        h = h + alpha * (estimate - h)
        d = d + gamma / 2 * (estimate - combined(weights, estimate))
        x = moved - d
        history.append(x)
    return np.array(history)


def epidemic_learning(gradient, step, receivers, start):
    """de Vos et al. 2023, Algorithm 1: ``receivers[t][k]``, to whom ``k`` sends in a round."""
    clients = len(start)
    x = start.copy()
    history = []
    for t, chosen in enumerate(receivers, 1):
        half = [x[k] - step(t) * gradient(k, x[k]) for k in range(clients)]
        inbox = [[half[k]] for k in range(clients)]
        for k in range(clients):
            for m in chosen[k]:
                inbox[m].append(half[k])
        x = np.array([sum(messages) / len(messages) for messages in inbox])
        history.append(x)
    return np.array(history)


def accelerated_gossip(weights, vectors, rounds, eta):
    """Liu and Morse 2011."""
    before = vectors
    for _ in range(rounds):
        newer = (1 + eta) * combined(weights, vectors) - eta * before
        before = vectors
        vectors = newer
    return vectors


def fastest_acceleration(weights):
    modulus = np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2]
    root = np.sqrt(1 - modulus**2)
    return (1 - root) / (1 + root)


def detag(gradient, weights, step, exchanges, eta, rounds, start):
    """Lu and De Sa 2021, Algorithm 3, a phase a round: gradients at the phase's first models."""
    x = start.copy()
    y = np.zeros_like(x)
    last = np.zeros_like(x)
    history = []
    for t in range(1, rounds + 1):
        accumulated = gradients_of(gradient, x)
        mixed_x = accelerated_gossip(weights, x, exchanges, eta)
        mixed_y = accelerated_gossip(weights, y, exchanges, eta)
        x = mixed_x - step(t) * mixed_y
        y = mixed_y + accumulated - last
        last = accumulated
        history.append(x)
    return np.array(history)


def teleportation(gradient, weights, step, active, start):
    """Takezawa and Stich 2025, Algorithm 1: ``active[t]``, the peers that hold the models in turn;
    the mean of these after each round.
    """
    held = [start[k] for k in active[0]]
    history = []
    for t, peers in enumerate(active, 1):
        half = [w - step(t) * gradient(k, w) for w, k in zip(held, peers, strict=True)]
        held = list(combined(weights, half))
        history.append(np.tile(np.mean(held, axis=0), (len(start), 1)))
    return np.array(history)
