"""Private learners written from their papers' boxes, with all draws injected: loops, no JAX."""

import math

import numpy as np


def clip(v, bound):
    size = math.sqrt(sum(x * x for x in v))
    return v if size <= bound else v * (bound / size)


def prefix_root(rounds, bands):
    """Lower-triangular ``[T, T]``: the banded square root of the matrix of prefix sums, columns of
    norm one but for the last ones, whose ends are cut off.
    """
    column = np.array([math.comb(2 * j, j) / 4**j for j in range(bands)])
    column = column / np.sqrt((column**2).sum())
    matrix = np.zeros((rounds, rounds))
    for n in range(rounds):
        for j in range(min(bands, rounds - n)):
            matrix[n + j, n] = column[j]
    return matrix


def dp_fedavg(objective, step, epochs, took_part, expected, z, bound, draws, matrix=None):
    """McMahan et al. 2018, Algorithm 1, a fixed divisor; correlated noise as a whole matrix
    (Choquette-Choo et al. 2023): ``inv(C) G``. ``[T, D]``.
    """
    noise = draws if matrix is None else np.linalg.solve(matrix, draws)
    server = np.zeros(objective.dim)
    history = []
    for n, present in enumerate(took_part):
        total = np.zeros(objective.dim)
        for k in present:
            w = server.copy()
            for _ in range(epochs):
                w = w - step * objective.gradient(k, w)
            total += clip(w - server, bound)
        server = server + (total + z * bound * noise[n]) / expected
        history.append(server)
    return np.array(history)


def dp_fedavg_adaptive(
    objective,
    step,
    took_part,
    expected,
    z,
    draws,
    share_draws,
    initial,
    quantile,
    rate,
    share,
    matrix=None,
):
    """Andrew et al. 2021, Algorithm 1: models ``[T, D]`` and the clip after the last round."""
    if matrix is not None:
        draws, share_draws = (np.linalg.solve(matrix, values) for values in (draws, share_draws))
    deviation = share * expected
    z_updates = (z**-2 - (2 * deviation) ** -2) ** -0.5
    server = np.zeros(objective.dim)
    bound = initial
    history = []
    for n, present in enumerate(took_part):
        total = np.zeros(objective.dim)
        counted = 0.0
        for k in present:
            update = -step * objective.gradient(k, server)
            counted += (np.linalg.norm(update) <= bound) - 0.5
            total += clip(update, bound)
        result = 0.5 + (counted + deviation * share_draws[n]) / expected
        server = server + (total + z_updates * bound * draws[n]) / expected
        bound = bound * math.exp(-rate * (result - quantile))
        history.append(server)
    return np.array(history), bound


def dp_sgd(objective, step, took_part, sampled, sizes, z, draws):
    """Abadi et al. 2016, Algorithm 1 at clients, then the mean: ``[T, D]``.

    ``sampled[n][k][i]`` is the batch of client ``k`` in its ``i``-th step of round ``n``,
    ``sizes[k]`` that of batches on average; ``objective.clip`` bounds its sample gradients.
    """
    server = np.zeros(objective.dim)
    history = []
    for n, present in enumerate(took_part):
        models = []
        for k in present:
            w = server.copy()
            for i, batch in enumerate(sampled[n][k]):
                gradients = objective.sample_gradients(k, w)
                total = np.zeros(objective.dim)
                for j in batch:
                    total += gradients[j]
                noise = z * (objective.clip or 0.0) * draws[n][k][i]
                share = objective.strength / objective.clients
                penalty = share * (objective.l1 * np.sign(w) + 2 * objective.l2 * w)
                w = w - step * ((total + noise) / sizes[k] + penalty)
            models.append(w)
        server = np.mean(models, axis=0) if models else server
        history.append(server)
    return np.array(history)


def correlated(matrix, took_part, draws):
    """Draws ``[n][k][i]`` of clients' steps as noise of a matrix mechanism: of each client's own
    steps, one after the other, ``inv(C) G`` (Choquette-Choo et al. 2023).
    """
    noise = [[list(steps) for steps in clients] for clients in draws]
    for k in range(len(draws[0])):
        rounds = [n for n, participants in enumerate(took_part) if k in participants]
        of_client = [(n, i) for n in rounds for i in range(len(draws[n][k]))]
        if not of_client:
            continue
        rows = np.linalg.solve(
            matrix[: len(of_client), : len(of_client)], [draws[n][k][i] for n, i in of_client]
        )
        for (n, i), row in zip(of_client, rows, strict=True):
            noise[n][k][i] = row
    return noise
