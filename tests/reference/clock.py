"""A server whose clients work at their own speeds: one event after the other, no JAX.

FedAsync (Xie et al. 2019, Algorithm 1), FedBuff (Nguyen et al. 2022, Algorithm 1), and an average
of the updates of the clients that arrive first while the others go on (Dutta et al. 2018, K-async).
Events are in a heap of (seconds, client): of two at the same moment that of the smaller number
comes first. ``local(n, k, w)`` returns a client's model after its steps from ``w`` in round ``n``;
``use(w, arrived)`` returns the server's next model, from ``(client, its start, its model, versions,
seconds)`` of each.
"""

import heapq

import numpy as np


def arrivals(duration, local, use, start, rounds, at_once=1, first=None, next_clients=None):
    """Return the seconds, the server's model and the clients of each round, and the busy seconds.

    Args:
      duration: ``(n, k)`` to the seconds of the part that client ``k`` begins after round ``n``,
        and whether it fails then.
      local: as above.
      use: as above.
      start: the first model.
      rounds: how many.
      at_once: arrivals of a round.
      first: the clients that work at the start; all by default.
      next_clients: from the round, the time and the clients at work, the clients that begin; by
        default all that have arrived.
    """
    server = start
    version = 0
    heap = []
    busy = {}
    now = 0.0

    def begin(n, k):
        seconds, fails = duration(n, k)
        heapq.heappush(heap, (now + seconds, k, now, seconds, fails, version, server))

    for k in range(duration.clients) if first is None else first:
        begin(0, k)
    history = []
    for n in range(1, rounds + 1):
        events = [heapq.heappop(heap) for _ in range(at_once)]
        now = events[-1][0]
        arrived = []
        for _, k, began, seconds, fails, received, model in events:
            busy[k] = busy.get(k, 0.0) + seconds
            if not fails:
                arrived.append((k, model, local(n, k, model), version - received, now - began))
        moved = use(server, arrived) if arrived else server
        version += int(np.any(moved != server))
        server = moved
        ended = [event[1] for event in events]
        works = {event[1] for event in heap}
        for k in ended if next_clients is None else next_clients(n, now, works):
            begin(n, k)
        history.append((now, server, ended))
    seconds, models, ended = zip(*history, strict=True)
    for _, k, began, full, *_ in heap:
        busy[k] = busy.get(k, 0.0) + min(full, max(now - began, 0.0))
    return np.array(seconds), np.array(models), ended, busy


def fedasync(mixing, weight):
    """``weight(versions, seconds)`` is the staleness."""

    def use(server, arrived):
        for _, _, model, versions, seconds in arrived:
            alpha = mixing * weight(versions, seconds)
            server = (1 - alpha) * server + alpha * model
        return server

    return use


class FedBuff:
    """A buffer of updates that the server uses when it is full."""

    def __init__(self, size, step, weight):
        self.size = size
        self.step = step
        self.weight = weight
        self.buffer = []

    def __call__(self, server, arrived):
        for _, start, model, versions, seconds in arrived:
            self.buffer.append(self.weight(versions, seconds) * (model - start))
        if len(self.buffer) < self.size:
            return server
        moved = server + self.step * sum(self.buffer) / len(self.buffer)
        self.buffer = []
        return moved


def mean_of_updates(server, arrived):
    return server + sum(model - start for _, start, model, *_ in arrived) / len(arrived)


def synchronous(times, invited, mode):
    """The seconds of a round and the clients whose messages count.

    Args:
      times: seconds of each client, and when it fails (infinite if it does not).
      invited: clients.
      mode: ``("all",)``, ``("first", count)`` or ``("deadline", seconds)``.
    """
    events = []
    for k in invited:
        seconds, fails_at = times[k]
        heapq.heappush(events, (min(seconds, fails_at), k, seconds <= fails_at))
    now = 0.0
    counted = []
    while events:
        at, k, arrives = heapq.heappop(events)
        if mode[0] == "deadline" and at > mode[1]:
            return mode[1], counted
        now = at
        if arrives:
            counted.append(k)
        if mode[0] == "first" and len(counted) == mode[1]:
            break
    return now, counted
