"""Peers that average in pairs, one event after the other, no JAX.

AD-PSGD (Lian et al. 2018, Algorithm 1) and SwarmSGD (Nadiradze et al. 2021, Algorithm 1, blocking
averages). ``gradient(k, w, rows)`` is client ``k``'s; ``completes[n - 1]`` is the client whose work
is complete in round ``n`` and ``neighbors[n - 1]`` the one that it averages with. ``start`` is
``[K, D]``; results are ``[T, K, D]``.
"""

import heapq


def in_order_of_time(seconds, clients, rounds):
    """When each of the first events takes place, and which client's work is complete then.

    ``seconds(n, k)`` is the length of the work that client ``k`` begins after round ``n``. Events
    are in a heap of (seconds, client): of two at the same moment that of the smaller number is
    first.
    """
    heap = [(seconds(0, k), k) for k in range(clients)]
    heapq.heapify(heap)
    events = []
    for n in range(1, rounds + 1):
        now, k = heap[0]
        heapq.heapreplace(heap, (now + seconds(n, k), k))
        events.append((now, k))
    return events


def ad_psgd(gradient, step, completes, neighbors, start, rows=None):
    """``rows[n - 1]`` are the samples of the gradient of round ``n``."""
    models = start.copy()
    read = [model.copy() for model in start]  # by each client when it began
    history = []
    for n, (i, j) in enumerate(zip(completes, neighbors, strict=True), 1):
        g = gradient(i, read[i], None if rows is None else rows[n - 1])
        mean = (models[i] + models[j]) / 2
        models[j] = mean
        models[i] = mean - step(n) * g
        read[i] = models[i].copy()
        history.append(models.copy())
    return history


def swarm_sgd(gradient, step, local_steps, completes, neighbors, start, together):
    """``together``: whether both take their steps when they meet, or only the one that completes,
    from the model at the end of its last round.
    """
    models = start.copy()
    began_from = [model.copy() for model in start]
    history = []
    for n, (i, j) in enumerate(zip(completes, neighbors, strict=True), 1):
        for k in (i, j) if together else (i,):
            w = models[k].copy() if together else began_from[k].copy()
            for _ in range(local_steps):
                g = gradient(k, w)
                w = w - step(n) * g
                models[k] = models[k] - step(n) * g
        models[i] = models[j] = (models[i] + models[j]) / 2
        began_from[i] = models[i].copy()
        history.append(models.copy())
    return history
