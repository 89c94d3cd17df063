"""Random walk SGD (Ayache & El Rouayheb 2021), one visit after the other, no JAX.

Which neighbor is proposed in a round, and the uniform number by which the walk goes there, are
given. ``gradient(k, w)`` is client ``k``'s; results are ``[T, K, D]``, the model that each client
has seen last.
"""

import heapq


def random_walk(gradient, step, proposals, uniforms, degree, start, places, rounds, clock=None):
    """Return the models, and with a clock the seconds and the client of each visit.

    Args:
      gradient: as above.
      step: of the round.
      proposals: of each client, the neighbor that is proposed in each round.
      uniforms: of each round.
      degree: of each client.
      start: ``[K, D]``.
      places: where the walks begin.
      rounds: how many visits.
      clock: ``compute(n, k)`` and ``transfer(i, j)``, in seconds. Events are in a heap of (seconds,
        client, walk). Without it walks take turns.
    """
    models = start.copy()
    walking = [start[p].copy() for p in places]
    places = list(places)
    history, seconds, visits = [], [], []
    heap = []
    free = dict.fromkeys(range(len(start)), 0.0)  # when a client has computed all that was sent
    if clock is not None:
        compute, transfer = clock
        for walk, k in enumerate(places):
            free[k] = compute(0, k)
            heapq.heappush(heap, (free[k], k, walk))
    for n in range(1, rounds + 1):
        now, i, walk = heapq.heappop(heap) if clock else (n, None, (n - 1) % len(places))
        i = places[walk] if i is None else i
        assert i == places[walk]
        w = walking[walk] - step(n) * gradient(i, walking[walk])
        models[i] = w
        j = proposals[i][n - 1]
        if uniforms[n - 1] >= min(1.0, degree[i] / degree[j]):
            j = i
        walking[walk], places[walk] = w, j
        if clock is not None:
            arrives = now + (transfer(i, j) if i != j else 0.0)
            free[j] = max(arrives, free[j]) + compute(n, j)
            heapq.heappush(heap, (free[j], j, walk))
        history.append(models.copy())
        seconds.append(now)
        visits.append(i)
    return history, seconds, visits
