"""One model of all clients, learned by a server and local steps: client by client, no JAX.

FedOpt and its adaptive servers (Reddi et al. 2021, Algorithms 1 and 2), FedAvgM (Hsu, Qi and Brown
2019), SCAFFOLD (Karimireddy et al. 2020, Algorithm 1), FedNova (Wang et al. 2020), FedDyn (Acar et
al. 2021, Algorithm 1), MIME and MIMELite (Karimireddy et al. 2021), q-FedAvg (Li et al. 2020,
fair), AFL (Mohri et al. 2019), FedExP (Jhunjhunwala et al. 2023), FedSAM (Qu et al. 2022), FedProx
(Li et al. 2020), FedPD (Zhang et al. 2021), Fed-LT (Bastianello et al. 2024), FedADMM (Gong et al.
2022), EASGD (Zhang et al. 2015) and FedCross (Hu et al. 2024).

All is injected through a `World`: ``gradient(k, w, rows)`` of client ``k`` on some of its samples
(``None``: all), the participants of each round, and the rows of each of their steps. Rounds count
from 1, clients from 0; a result is the server's model of every round, ``[T, D]``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class World:
    gradient: Callable  # (k, w, rows) -> [D]
    start: np.ndarray  # [D]
    weights: np.ndarray  # [K]  weights of clients in an average over participants
    visits: list  # [T] dicts: participant -> the rows of each of its steps
    value: Callable | None = None  # (k, w) -> its objective

    @property
    def clients(self):
        return len(self.weights)


def descent(world, k, w, step, visits, extra=lambda w, rows: 0.0):
    for rows in visits:
        w = w - step * (world.gradient(k, w, rows) + extra(w, rows))
    return w


def average(world, messages):
    """The weighted mean of what participants said, a dict."""
    total = sum(world.weights[k] for k in messages)
    return sum(world.weights[k] / total * vector for k, vector in messages.items())


def rounds(world, server_round):
    """``server_round(n, visits)`` returns the server's next model; without participants the model
    stays.
    """
    history = []
    last = world.start
    for n, visits in enumerate(world.visits, 1):
        if visits:
            last = server_round(n, visits)
        history.append(np.array(last))
    return np.array(history)


def fedopt(world, step, server):
    """``server(n, x, delta)`` is ServerOpt with its own memory."""
    x = world.start

    def server_round(n, visits):
        nonlocal x
        changes = {k: descent(world, k, x, step(n), rows) - x for k, rows in visits.items()}
        x = server(n, x, average(world, changes))
        return x

    return rounds(world, server_round)


class HeavyBall:
    """Hsu et al. 2019: v <- beta v + delta, w <- w + v."""

    def __init__(self, momentum):
        self.momentum = momentum
        self.v = 0.0

    def __call__(self, n, x, delta):
        self.v = self.momentum * self.v + delta
        return x + self.v


class Adaptive:
    """Reddi et al. 2021, Algorithm 2: one of the three lines for v, coordinate by coordinate."""

    def __init__(self, kind, step, beta1, tau, beta2=None):
        self.kind = kind
        self.step = step
        self.beta1 = beta1
        self.beta2 = beta2
        self.tau = tau
        self.m = self.v = None

    def __call__(self, n, x, delta):
        if self.m is None:
            self.m, self.v = np.zeros_like(x), np.full_like(x, self.tau**2)
        new = np.zeros_like(x)
        for i, d in enumerate(delta):
            self.m[i] = self.beta1 * self.m[i] + (1 - self.beta1) * d
            if self.kind == "adagrad":
                self.v[i] = self.v[i] + d**2
            elif self.kind == "yogi":
                self.v[i] = self.v[i] - (1 - self.beta2) * d**2 * np.sign(self.v[i] - d**2)
            else:
                self.v[i] = self.beta2 * self.v[i] + (1 - self.beta2) * d**2
            new[i] = x[i] + self.step(n) * self.m[i] / (np.sqrt(self.v[i]) + self.tau)
        return new


def fedprox(world, step, attraction):
    x = world.start

    def server_round(n, visits):
        nonlocal x
        center = x
        models = {}
        for k, rows in visits.items():
            models[k] = descent(world, k, x, step(n), rows, lambda w, _: attraction * (w - center))
        x = average(world, models)
        return x

    return rounds(world, server_round)


def scaffold(world, step, server_step_size=1.0, option="II"):
    x = world.start
    c = np.zeros_like(world.start)
    controls = np.zeros((world.clients, len(x)))

    def server_round(n, visits):
        nonlocal x, c
        moves = []
        renewals = []
        for k, rows in visits.items():
            y = x.copy()
            for batch in rows:
                y = y - step(n) * (world.gradient(k, y, batch) - controls[k] + c)
            if option == "I":
                new = world.gradient(k, x, None)
            else:
                new = controls[k] - c + (x - y) / (len(rows) * step(n))
            moves.append(y - x)
            renewals.append(new - controls[k])
            controls[k] = new
        x = x + server_step_size * sum(moves) / len(moves)
        c = c + sum(renewals) / world.clients
        return x

    return rounds(world, server_round)


def dane(gradient, minimize, weight, step, rounds, start):
    """Shamir et al. 2014, Figure 1, ``[T, 1, D]``; ``minimize(k, weight, center)`` is the minimizer
    of ``f_k(v) + weight / 2 |v - center|^2``.
    """
    clients = len(start)
    w = start[0]
    history = []
    for _ in range(rounds):
        slopes = [gradient(k, w) for k in range(clients)]
        g = sum(slopes) / clients
        # -<a, v> + weight / 2 |v - w|^2 is, but for a constant, weight / 2 |v - w - a / weight|^2.
        models = [minimize(k, weight, w + (slopes[k] - step * g) / weight) for k in range(clients)]
        w = sum(models) / clients
        history.append(w[None])
    return np.array(history)


def fednova(world, step, momentum=0.0, attraction=0.0):
    """With the vectors a_k, and the matrix G_k of all computed gradients."""
    x = world.start

    def server_round(n, visits):
        nonlocal x
        total = sum(world.weights[k] for k in visits)
        effective = 0.0
        direction = np.zeros_like(x)
        for k, rows in visits.items():
            y = x.copy()
            u = np.zeros_like(x)
            gradients = []
            for batch in rows:
                gradients.append(world.gradient(k, y, batch))
                u = momentum * u + gradients[-1] + attraction * (y - x)
                y = y - step(n) * u
            a = coefficients(len(rows), step(n), momentum, attraction)
            d = sum(a_i * g for a_i, g in zip(a, gradients, strict=True)) / sum(a)
            np.testing.assert_allclose(x - y, step(n) * sum(a) * d, rtol=1e-9, atol=1e-12)
            share = world.weights[k] / total
            effective += share * sum(a)
            direction += share * d
        x = x - effective * step(n) * direction
        return x

    return rounds(world, server_round)


def coefficients(steps, step, momentum, attraction):
    """Wang et al. 2020, section 4.1: of momentum, or of attraction."""
    assert not (momentum and attraction)
    if momentum:
        return [(1 - momentum ** (steps - j)) / (1 - momentum) for j in range(steps)]
    return [(1 - step * attraction) ** (steps - 1 - j) for j in range(steps)]


def feddyn(world, step, attraction):
    theta = world.start
    h = np.zeros_like(world.start)
    duals = np.zeros((world.clients, len(theta)))

    def server_round(n, visits):
        nonlocal theta, h
        result = []
        center = theta
        for k, rows in visits.items():
            dual = duals[k].copy()
            model = descent(
                world, k, theta, step(n), rows,
                lambda w, _, dual=dual: -dual + attraction * (w - center),
            )  # fmt: skip
            duals[k] = duals[k] - attraction * (model - theta)
            result.append(model)
        h = h - attraction / world.clients * sum(model - theta for model in result)
        theta = sum(result) / len(result) - h / attraction
        return theta

    return rounds(world, server_round)


def mime(world, step, momentum=0.0, lite=False):
    x = world.start
    m = np.zeros_like(world.start)

    def server_round(n, visits):
        nonlocal x, m
        c = average(world, {k: world.gradient(k, x, None) for k in visits})
        models = {}
        for k, rows in visits.items():
            y = x.copy()
            for batch in rows:
                g = world.gradient(k, y, batch)
                if not lite:
                    g = g - world.gradient(k, x, batch) + c
                y = y - step(n) * ((1 - momentum) * g + momentum * m)
            models[k] = y
        m = (1 - momentum) * c + momentum * m
        x = average(world, models)
        return x

    return rounds(world, server_round)


def qfedavg(world, step, fairness, curvature=None):
    x = world.start

    def server_round(n, visits):
        nonlocal x
        L = 1 / step(n) if curvature is None else curvature
        total = np.zeros_like(x)
        bound = 0.0
        for k, rows in visits.items():
            change = L * (x - descent(world, k, x, step(n), rows))
            loss = world.value(k, x)
            total += world.weights[k] * loss**fairness * change
            bound += world.weights[k] * fairness * loss ** (fairness - 1) * (change @ change)
            bound += world.weights[k] * L * loss**fairness
        x = x - total / bound
        return x

    return rounds(world, server_round)


def nearest_on_simplex(point):
    """max(point - tau, 0), with the tau at which it sums to one by halving."""
    low = point.min() - 1
    high = point.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(point - tau, 0).sum() > 1 else (low, tau)
    return np.maximum(point - tau, 0)


def afl(world, step, ascent):
    """Mohri et al. 2019, Figure 2, with several steps of some clients."""
    x = world.start
    mixture = np.full(world.clients, 1 / world.clients)

    def server_round(n, visits):
        nonlocal x, mixture
        changes = {k: descent(world, k, x, step(n), rows) - x for k, rows in visits.items()}
        total = sum(mixture[k] for k in visits)
        raised = mixture.copy()
        for k in visits:
            raised[k] += ascent(n) * world.clients / len(visits) * world.value(k, x)
        if total > 0:
            x = x + sum(mixture[k] / total * change for k, change in changes.items())
        mixture = nearest_on_simplex(raised)
        return x

    return rounds(world, server_round)


def fedexp(world, step, damping, averaged=False):
    x = world.start

    def server_round(n, visits):
        nonlocal x
        deltas = {k: x - descent(world, k, x, step(n), rows) for k, rows in visits.items()}
        mean = average(world, deltas)
        squares = average(world, {k: delta @ delta for k, delta in deltas.items()})
        before = x
        x = x - max(1.0, squares / (2 * (mean @ mean + damping))) * mean
        return (before + x) / 2 if averaged else x

    return rounds(world, server_round)


def fedsam(world, step, radius):
    x = world.start

    def server_round(n, visits):
        nonlocal x
        models = {}
        for k, rows in visits.items():
            w = x.copy()
            for batch in rows:
                g = world.gradient(k, w, batch)
                w = w - step(n) * world.gradient(k, w + radius * g / np.sqrt(g @ g), batch)
            models[k] = w
        x = average(world, models)
        return x

    return rounds(world, server_round)


def fedpd(world, step, penalty, talks=None):
    """``talks[n - 1]``: whether round ``n`` has messages. Absent clients repeat their last."""
    clients = range(world.clients)
    x0 = world.start
    x = [np.array(x0) for _ in clients]
    dual = [np.zeros_like(x0) for _ in clients]
    center = [np.array(x0) for _ in clients]
    sent = [np.array(x0) for _ in clients]

    def server_round(n, visits):
        nonlocal x0
        for k, rows in visits.items():
            for batch in rows:
                direction = world.gradient(k, x[k], batch) + dual[k] + (x[k] - center[k]) / penalty
                x[k] = x[k] - step(n) * direction
            dual[k] = dual[k] + (x[k] - center[k]) / penalty
            center[k] = x[k] + penalty * dual[k]
        if talks is None or talks[n - 1]:
            for k in visits:
                sent[k] = center[k]
            x0 = sum(sent) / world.clients
            for k in visits:
                center[k] = x0
        return x0

    return rounds(world, server_round)


def fedlt(world, step, penalty):
    clients = range(world.clients)
    x, z = ([np.array(world.start) for _ in clients] for _ in range(2))

    def server_round(n, visits):
        y = sum(z) / world.clients
        for k, rows in visits.items():
            v = 2 * y - z[k]
            for batch in rows:
                x[k] = x[k] - step(n) * (world.gradient(k, x[k], batch) + (x[k] - v) / penalty)
            z[k] = z[k] + 2 * (x[k] - y)
        return sum(z) / world.clients

    return rounds(world, server_round)


def fedadmm(world, step, penalty, server_step=None, from_server=False):
    theta = np.array(world.start)
    w = [theta.copy() for _ in range(world.clients)]
    y = [np.zeros_like(theta) for _ in range(world.clients)]

    def server_round(n, visits):
        nonlocal theta
        changes = []
        for k, rows in visits.items():
            augmented = w[k] + y[k] / penalty
            v = theta if from_server else w[k]
            for batch in rows:
                v = v - step(n) * (world.gradient(k, v, batch) + y[k] + penalty * (v - theta))
            w[k] = v
            y[k] = y[k] + penalty * (v - theta)
            changes.append(w[k] + y[k] / penalty - augmented)
        eta = len(visits) / world.clients if server_step is None else server_step
        theta = theta + eta / len(visits) * sum(changes)
        return theta

    return rounds(world, server_round)


def easgd(world, step, alpha):
    center = np.array(world.start)
    x = [center.copy() for _ in range(world.clients)]

    def server_round(n, visits):
        nonlocal center
        pulls = {k: alpha * (x[k] - center) for k in visits}
        for k, rows in visits.items():
            x[k] = x[k] - pulls[k] - step(n) * world.gradient(k, x[k], rows[0])
            for batch in rows[1:]:
                x[k] = x[k] - step(n) * world.gradient(k, x[k], batch)
        center = center + sum(pulls.values())
        return center

    return rounds(world, server_round)


def fedcross(world, step, alpha, partner, dealt, count):
    """``dealt[n - 1][k]``: the model that client ``k`` trains in round ``n``."""
    models = [np.array(world.start) for _ in range(count)]

    def cosine(a, b):
        sizes = np.linalg.norm(a) * np.linalg.norm(b)
        return a @ b / sizes if sizes > 0 else 0.0

    def partner_of(n, m):
        if partner == "in_order":
            return (m + 1 + n % (count - 1)) % count
        others = [j for j in range(count) if j != m]
        best = max if partner == "most_similar" else min
        return best(others, key=lambda j: cosine(models[m], models[j]))

    def server_round(n, visits):
        nonlocal models
        for k, rows in visits.items():
            m = dealt[n - 1][k]
            models[m] = descent(world, k, models[m], step(n), rows)
        chosen = [partner_of(n, m) for m in range(count)]
        models = [alpha * models[m] + (1 - alpha) * models[chosen[m]] for m in range(count)]
        return sum(models) / count

    return rounds(world, server_round)
