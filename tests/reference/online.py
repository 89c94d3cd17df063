"""Asynchronous online federated learning written from the equations, message by message, no JAX.

Gauthier 2024, chapter 4 (numbers ``(4.x)``), and Gauthier et al. 2023 (PAO-Fed), "the paper" (plain
numbers), with the readings that the library documents. A real number is 32 bits. Everything random
is injected through an `Environment`; all models start at zero; rounds count from 1 and clients from
0. Row ``n - 1`` of a result is what stands after round ``n``, that is ``w(n + 1)`` in the notation
of the papers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

REAL = 32  # bits


@dataclass(frozen=True)
class Environment:
    """What happens to the clients, the same for every algorithm (4.4.1)."""

    features: np.ndarray  # [T, K, D]  z_k(n)
    targets: np.ndarray  # [T, K]  y_k(n)
    fresh: np.ndarray  # [T, K] bool: new data
    available: np.ndarray  # [T, K] bool: the outcome of the Bernoulli trial
    delay: np.ndarray  # [T, K] int: of the message that k sends in round n; negative: lost
    scheduled: np.ndarray | None = None  # [T, K] bool: whom the server picks; everyone if None

    @property
    def rounds(self):
        return self.features.shape[0]

    @property
    def clients(self):
        return self.features.shape[1]

    @property
    def dim(self):
        return self.features.shape[2]

    def sample(self, n, k):
        return self.features[n - 1, k], self.targets[n - 1, k]

    def has_data(self, n, k):
        return bool(self.fresh[n - 1, k])

    def participates(self, n, k):
        """Clients without new data do not participate; unscheduled ones count as unavailable."""
        picked = self.scheduled is None or self.scheduled[n - 1, k]
        return bool(self.has_data(n, k) and self.available[n - 1, k] and picked)


def environment_of(data, arrived, available, delay, feature_map=None):
    """The loops' environment: client ``k``'s ``j``-th sample where it arrives for the ``j``-th
    time.
    """
    rounds, clients = arrived.shape
    arrivals = np.cumsum(arrived, axis=0)
    new = arrived & (arrivals <= np.array([len(y) for _, y in data])[None])
    dim = data[0][0].shape[1] if feature_map is None else feature_map.dim
    features = np.full((rounds, clients, dim), np.nan)
    targets = np.full((rounds, clients), np.nan)
    for n, k in np.argwhere(new):
        x, targets[n, k] = (part[arrivals[n, k] - 1] for part in data[k])
        if feature_map is not None:
            frequencies = np.asarray(feature_map.frequencies)
            phases = feature_map.phases
            x = float(feature_map.scale) * cosine_features(x, frequencies, phases)
        features[n, k] = x
    return Environment(features, targets, new, available, delay)


@dataclass(frozen=True)
class Message:
    sender: int
    sent: int  # round
    delay: int
    mask: np.ndarray  # [D] bool: the coordinates it carries
    values: np.ndarray  # [D], read on the mask only


class Run(NamedTuple):
    server: np.ndarray  # [T, D]
    local: np.ndarray | None  # [T, K, D], where clients keep a model
    up: np.ndarray  # [T] int: bits that all clients together send
    down: np.ndarray  # [T] int: bits that the server sends to all clients together


def arrivals(in_flight, n, longest):
    """``C(n)``: what reaches the server in round ``n`` and is not discarded for its delay."""
    return [
        message
        for message in in_flight
        if message.delay >= 0 and message.sent + message.delay == n and message.delay <= longest
    ]


def portion(n, k, dim, size, coordinated):
    """Diagonal of ``M_k(n)``, ``[D]`` bool: ``size`` ones from ``size (n + k)`` on, circularly.

    (4.5) with ``M_k(n) = circshift(M_1(n), m k)``, ``M_1(n) = circshift(M_10, m n)`` (section
    4.4.1), the ones of ``M_10`` in front; coordinated: without the shift by the client.
    """
    first = size * n if coordinated else size * n + size * k
    mask = np.zeros(dim, bool)
    for i in range(size):
        mask[(first + i) % dim] = True
    return mask


# PAO-Fed ---------------------------------------------------------------------------------------


def pao_fed(
    environment,
    step,
    size,
    coordinated,
    send_next=True,
    weights: Callable[[int], float] | Sequence[float] = lambda lag: 1.0,
    conflict="freshest",
    autonomous=True,
    receive="portion",
    aggregation="per delay",
    longest=math.inf,
    aggregate=None,
):
    """Algorithm 3: (4.9)-(4.14) and the paper's rule for parameters that several messages update.

    ``weights`` is ``alpha_l``, a function of the lag or a sequence. ``send_next`` is (4.6), else
    ``S_k(n) = M_k(n)`` (the versions C0 and U0). ``receive="all"`` is ``M = I``, ``S`` as ever.
    """
    assert conflict in ("freshest", "none")
    assert receive in ("portion", "all")
    assert aggregation in ("per delay", "pooled")
    rounds = environment.rounds
    clients = environment.clients
    dim = environment.dim
    server = np.zeros(dim)
    local = np.zeros((clients, dim))
    in_flight = []
    history = []
    for n in range(1, rounds + 1):
        up = down = 0
        new = local.copy()
        for k in range(clients):
            if not environment.has_data(n, k):
                continue
            z, y = environment.sample(n, k)
            if environment.participates(n, k):
                received = portion(n, k, dim, size, coordinated)
                if receive == "all":
                    received = np.ones(dim, bool)
                merged = np.where(received, server, local[k])
                error = y - merged @ z  # (4.10)
                new[k] = merged + step * error * z  # (4.9)
                sent = portion(n + 1 if send_next else n, k, dim, size, coordinated)
                delay = int(environment.delay[n - 1, k])
                in_flight.append(Message(k, n, delay, sent, new[k].copy()))
                down += REAL * int(received.sum())
                up += REAL * int(sent.sum())
            elif autonomous:
                error = y - local[k] @ z  # (4.12)
                new[k] = local[k] + step * error * z  # (4.11)
        arrived = arrivals(in_flight, n, longest)
        if aggregate is None:
            server = pao_aggregate(server, arrived, weights, conflict, aggregation)
        else:
            server = pao_robust(server, arrived, weights, aggregate)
        local = new
        history.append((server, local, up, down))
    return Run(*(np.array(part) for part in zip(*history, strict=True)))


def pao_aggregate(server, arrived, weights, conflict, aggregation):
    """(4.13) and (4.14): one mean a class of delays, or one over all that arrives ("pooled").

    The paper, below (15): of the messages that update the same parameter only the most recently
    sent count.
    Messages of one round are averaged. Masked entries still count in ``|C|``, and messages of
    weight zero still displace older ones.
    """
    move = np.zeros_like(server)
    taken = np.zeros(len(server), bool)
    for lag in sorted({message.delay for message in arrived}):
        group = [message for message in arrived if message.delay == lag]
        count = len(group) if aggregation == "per delay" else len(arrived)
        alpha = weights[lag] if hasattr(weights, "__getitem__") else weights(lag)
        for message in group:
            for i in range(len(server)):
                if message.mask[i] and not (conflict == "freshest" and taken[i]):
                    move[i] += alpha / count * (message.values[i] - server[i])
        for message in group:
            taken = taken | message.mask
    return server + move


def pao_robust(server, arrived, weights, aggregate):
    """The ``aggregate`` of the models of the clients whose messages arrive, one row each.

    A row is the server's model, moved by ``alpha_l`` towards the parameters that its client sent;
    where two of its messages arrive together the later sent one counts.
    """
    rows = {}
    for message in sorted(arrived, key=lambda message: message.sent):
        alpha = (
            weights[message.delay] if hasattr(weights, "__getitem__") else weights(message.delay)
        )
        row = rows.setdefault(message.sender, server.copy())
        moved = server + alpha * (message.values - server)
        row[message.mask] = moved[message.mask]
    return aggregate(np.array([*rows.values()])) if rows else server


def pao_fed_graph(
    environment,
    home,
    combination,
    step,
    size,
    coordinated,
    between,
    send_next=True,
    weights: Callable[[int], float] | Sequence[float] = lambda lag: 1.0,
    longest=math.inf,
    aggregate=None,
):
    """Every server a round of Algorithm 3 with its clients; then neighbors mix a portion.

    ``home`` is the server of each client, ``combination[p, m]`` the weight of server ``m`` at
    ``p``, ``between`` the length of the servers' portion.
    """
    rounds = environment.rounds
    clients = environment.clients
    dim = environment.dim
    servers = len(combination)
    server = np.zeros((servers, dim))
    local = np.zeros((clients, dim))
    talks = int(((combination > 0) & ~np.eye(servers, dtype=bool)).sum())
    in_flight = []
    history = []
    for n in range(1, rounds + 1):
        up = down = 0
        new = local.copy()
        later = n + 1 if send_next else n
        for k in range(clients):
            if not environment.has_data(n, k):
                continue
            z, y = environment.sample(n, k)
            model = local[k].copy()
            active = environment.participates(n, k)
            if active:
                received = portion(n, k, dim, size, coordinated)
                model[received] = server[home[k], received]
                down += REAL * size
            new[k] = model + step * (y - model @ z) * z
            if active:
                sent = portion(later, k, dim, size, coordinated)
                delay = int(environment.delay[n - 1, k])
                in_flight.append(Message(k, n, delay, sent, new[k].copy()))
                up += REAL * size
        local = new
        arrived = arrivals(in_flight, n, longest)
        psi = np.zeros_like(server)
        for p in range(servers):
            messages = [message for message in arrived if home[message.sender] == p]
            if aggregate is None:
                psi[p] = pao_aggregate(server[p], messages, weights, "freshest", "per delay")
            else:
                psi[p] = pao_robust(server[p], messages, weights, aggregate)
        server = psi.copy()
        portion_sent = portion(later, 0, dim, between, True)
        for p in range(servers):
            for i in np.flatnonzero(portion_sent):
                server[p, i] = sum(combination[p, m] * psi[m, i] for m in range(servers))
        down += talks * REAL * between
        history.append((server, local, up, down))
    return Run(*(np.array(part) for part in zip(*history, strict=True)))


# The methods it is compared with ---------------------------------------------------------------


def online_fed(environment, step, aggregation="pooled", conflict="freshest", longest=math.inf):
    """(4)-(6) of the paper; Online-FedSGD where all participate.

    (6) is over what arrives: "pooled", the mean of all models; "per delay", (14)-(15) with
    ``S = I`` and ``alpha = 1``, which leaves the mean of the most recent models under the rule for
    conflicts and the sum of all classes' deviations without. Nothing arrives: nothing changes.
    """
    assert aggregation in ("pooled", "per delay")
    assert conflict in ("freshest", "none")
    dim = environment.dim
    server = np.zeros(dim)
    in_flight = []
    history = []
    for n in range(1, environment.rounds + 1):
        up = down = 0
        for k in range(environment.clients):
            if environment.participates(n, k):
                z, y = environment.sample(n, k)
                error = y - server @ z  # (5)
                model = server + step * error * z  # (4)
                delay = int(environment.delay[n - 1, k])
                in_flight.append(Message(k, n, delay, np.ones(dim, bool), model))
                down += REAL * dim
                up += REAL * dim
        models = {}  # delay -> what arrives with it
        for message in arrivals(in_flight, n, longest):
            models.setdefault(message.delay, []).append(message.values)
        if not models:
            pass
        elif aggregation == "pooled":
            server = np.mean([model for group in models.values() for model in group], axis=0)
        elif conflict == "freshest":
            server = np.mean(models[min(models)], axis=0)
        else:
            server = server + sum(np.mean(group, axis=0) - server for group in models.values())
        history.append((server, up, down))
    servers, up, down = (np.array(part) for part in zip(*history, strict=True))
    return Run(servers, None, up, down)


def pso_fed(environment, step, size, coordinated, ideal=False, longest=math.inf):
    """Gogineni et al. 2022 (arXiv 2110.06556): scheduling and partial sharing.

    ``ideal``: nothing is delayed, ``w(n+1) = mean_k [M_k(n+1) w_k(n+1) + (I - M_k(n+1)) w(n)]``
    over the participants. Otherwise the mean is over what arrives, each message completed by the
    server's model of the round in which it arrives.
    """
    dim = environment.dim
    server = np.zeros(dim)
    local = np.zeros((environment.clients, dim))
    in_flight = []
    history = []
    for n in range(1, environment.rounds + 1):
        up = down = 0
        for k in range(environment.clients):
            if not environment.has_data(n, k):
                continue
            z, y = environment.sample(n, k)
            chosen = environment.participates(n, k)
            if chosen:
                received = portion(n, k, dim, size, coordinated)
                local[k, received] = server[received]
                down += REAL * size
            local[k] = local[k] + step * (y - local[k] @ z) * z
            if chosen:
                delay = 0 if ideal else int(environment.delay[n - 1, k])
                sent = portion(n + 1, k, dim, size, coordinated)
                in_flight.append(Message(k, n, delay, sent, local[k].copy()))
                up += REAL * size
        arrived = arrivals(in_flight, n, longest)
        if arrived:
            server = np.mean([np.where(m.mask, m.values, server) for m in arrived], axis=0)
        history.append((server, local.copy(), up, down))
    return Run(*(np.array(part) for part in zip(*history, strict=True)))


def sign_sgd(
    environment,
    step,
    vote="majority",
    uniforms=None,
    bound=1.0,
    longest=math.inf,
    objective=None,
):
    """Signs of ``g_k(n) = e_k(n) z_k(n)`` at ``w(n)``, applied in the round they arrive in. With an
    ``objective``, signs of ``-f_k'(w(n)) / 2``, which equals ``g_k(n)`` for one sample.

    ``vote``: ``w + step sign(sum of the signs)`` ("majority"; a tie leaves the coordinate where it
    is) or ``w + step mean of the signs`` ("mean"). An entry of ``g`` that is exactly zero sends 0:
    it abstains from a majority and counts in the divisor of a mean; it is accounted as one bit.
    Stochastic signs (Jin et al. 2020) are drawn with ``uniforms`` ``[T, K, D]`` in ``[0, 1)``: +1
    where ``u < 1/2 + g / (2 bound)``, else -1.
    """
    assert vote in ("majority", "mean")
    dim = environment.dim
    server = np.zeros(dim)
    in_flight = []
    history = []
    for n in range(1, environment.rounds + 1):
        up = down = 0
        for k in range(environment.clients):
            if environment.participates(n, k):
                if objective is None:
                    z, y = environment.sample(n, k)
                    gradient = (y - server @ z) * z
                else:
                    gradient = -objective.gradient(k, server) / 2
                signs = np.zeros(dim)
                for i in range(dim):
                    if uniforms is None:
                        signs[i] = (gradient[i] > 0) * 1.0 - (gradient[i] < 0) * 1.0
                    else:
                        probability = 0.5 + gradient[i] / (2 * bound)
                        signs[i] = 1.0 if uniforms[n - 1, k, i] < probability else -1.0
                delay = int(environment.delay[n - 1, k])
                in_flight.append(Message(k, n, delay, np.ones(dim, bool), signs))
                down += REAL * dim
                up += dim
        arrived = arrivals(in_flight, n, longest)
        if arrived:
            total = sum(message.values for message in arrived)
            server = server + step * (
                np.sign(total) if vote == "majority" else total / len(arrived)
            )
        history.append((server, up, down))
    servers, up, down = (np.array(part) for part in zip(*history, strict=True))
    return Run(servers, None, up, down)


# Data (4.35) -----------------------------------------------------------------------------------


def ar1(theta, mean, variance, innovations, start):
    """``x(n) = theta x(n-1) + sqrt(1 - theta^2) u(n)``, ``u ~ N(mean, variance)``, ``[T, K]``.

    ``theta``, ``mean``, ``variance`` and ``start`` (``x(0)``) are ``[K]``, the unit normal
    ``innovations`` ``[T, K]``. The stationary law has the mean
    ``mean sqrt((1 + theta) / (1 - theta))`` and the variance ``variance``.
    """
    rounds, clients = innovations.shape
    path = np.zeros((rounds, clients))
    for k in range(clients):
        x = start[k]
        for n in range(rounds):
            u = mean[k] + math.sqrt(variance[k]) * innovations[n, k]
            x = theta[k] * x + math.sqrt(1 - theta[k] ** 2) * u
            path[n, k] = x
    return path


def target(x, bracket="printed"):
    """(4.35) without noise, of one input ``[4]``; where ``x[3]`` stands depends on the bracket."""
    assert bracket in ("printed", "classical")
    first, second, third, fourth = x
    root = math.sqrt(first**2 + math.sin(math.pi * fourth) ** 2)
    if bracket == "printed":
        return root + (0.8 - 0.5 * math.exp(-(second**2)) * third)
    return root + (0.8 - 0.5 * math.exp(-(second**2))) * third


def cosine_features(x, frequencies, phases):
    """``z_i = sqrt(2 / D) cos(omega_i . x + b_i)`` of one input ``[L]``: ``[D]``."""
    dim = len(phases)
    z = np.zeros(dim)
    for i in range(dim):
        z[i] = math.sqrt(2 / dim) * math.cos(frequencies[i] @ x + phases[i])
    return z
