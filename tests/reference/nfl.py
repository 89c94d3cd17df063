"""Private networked learning written from the equations: loops over clients and samples, no JAX.

Gauthier 2024, chapter 3, with the readings that the library documents: the primal step of zCDP-NFL
as the minimizer of (7), subgradients with ``sign(0) = 0``, everything from round ``n - 1`` on the
right, zero start. Noise is injected: ``draws[n - 1, k]`` is the unit noise of client ``k`` in round
``n``, ``scale[n - 1, k]`` its factor.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


def sigmoid(z):
    return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))


#: loss -> (value, derivative) of one prediction and its target.
LOSSES = {
    "squared": (lambda z, y: (z - y) ** 2, lambda z, y: 2 * (z - y)),
    "absolute": (lambda z, y: abs(z - y), lambda z, y: float(np.sign(z - y))),
    "logistic": (
        lambda z, y: math.log1p(math.exp(-abs(y * z))) + max(-y * z, 0.0),
        lambda z, y: -y * sigmoid(-y * z),
    ),
}


@dataclass(frozen=True)
class Objective:
    """``f_k(w) = mean_j l(x_kj' w, y_kj) + strength / K * (l1 |w|_1 + l2 |w|^2)``, (3.5)."""

    data: tuple  # of (X_k [D_k, P], y_k [D_k]), one pair a client
    loss: str
    l1: float = 0.0
    l2: float = 0.0
    strength: float = 1.0
    clip: float | None = None

    @property
    def clients(self):
        return len(self.data)

    @property
    def dim(self):
        return self.data[0][0].shape[1]

    @property
    def counts(self):
        return np.array([len(y) for _, y in self.data], float)

    def value(self, k, w):
        X, y = self.data[k]
        total = 0.0
        for j in range(len(y)):
            total += LOSSES[self.loss][0](X[j] @ w, y[j]) / len(y)
        penalty = self.l1 * np.abs(w).sum() + self.l2 * (w**2).sum()
        return total + self.strength / self.clients * penalty

    def sample_gradients(self, k, w):
        X, y = self.data[k]
        rows = []
        for j in range(len(y)):
            gradient = LOSSES[self.loss][1](X[j] @ w, y[j]) * X[j]
            size = math.sqrt((gradient**2).sum())
            if self.clip is not None and size > self.clip:
                gradient = gradient * (self.clip / size)
            rows.append(gradient)
        return np.array(rows)

    def gradient(self, k, w):
        total = np.zeros_like(w)
        for row in self.sample_gradients(k, w):
            total += row / len(self.data[k][1])
        return total + self.strength / self.clients * (self.l1 * np.sign(w) + 2 * self.l2 * w)

    def replace_sample(self, k, j, x, y):
        """A neighboring data set: one sample of one client exchanged."""
        X, targets = (array.copy() for array in self.data[k])
        X[j] = x
        targets[j] = y
        return replace(self, data=(*self.data[:k], (X, targets), *self.data[k + 1 :]))


# Minimizers ------------------------------------------------------------------------------------


def prox(objective, k, weight, center, sweeps=20_000):
    """``argmin_w f_k(w) + weight / 2 |w - center|^2`` by the method that suits the loss."""
    X, y = objective.data[k]
    share = objective.strength / objective.clients
    ridge = 2 * share * objective.l2 + weight
    count, dim = X.shape
    if objective.loss == "squared" and objective.l1 == 0:
        system = 2 / count * X.T @ X + ridge * np.eye(dim)
        return np.linalg.solve(system, 2 / count * X.T @ y + weight * center)
    if objective.loss == "squared":  # cyclic coordinate descent
        w = np.zeros(dim)
        for _ in range(sweeps):
            old = w.copy()
            for i in range(dim):
                rest = y - X @ w + X[:, i] * w[i]
                correlation = 2 / count * X[:, i] @ rest + weight * center[i]
                shrunk = math.copysign(max(abs(correlation) - share * objective.l1, 0), correlation)
                w[i] = shrunk / (2 / count * X[:, i] @ X[:, i] + ridge)
            if np.abs(w - old).max() <= 1e-16 * (1 + np.abs(w).max()):
                break
        return w
    if objective.loss == "logistic" and objective.l1 == 0:  # Newton
        w = np.zeros(dim)
        for _ in range(100):
            gradient = ridge * w - weight * center
            system = ridge * np.eye(dim)
            for x, label in zip(X, y, strict=True):
                probability = sigmoid(-label * (x @ w))
                gradient -= label * probability * x / count
                system += probability * (1 - probability) * np.outer(x, x) / count
            move = np.linalg.solve(system, gradient)
            w = w - move
            if np.abs(move).max() < 1e-15:
                break
        return w
    if objective.loss == "absolute" and objective.l1 == 0:  # coordinate ascent on the box dual
        price = np.zeros(count)
        w = weight * center / ridge
        for _ in range(sweeps):
            moved = 0.0
            for j in range(count):
                size = X[j] @ X[j] / ridge
                new = min(max(price[j] + (X[j] @ w - y[j]) / size, -1 / count), 1 / count)
                w = w - (new - price[j]) * X[j] / ridge
                moved = max(moved, abs(new - price[j]))
                price[j] = new
            if moved < 1e-14 / count:
                break
        return w
    raise NotImplementedError(objective.loss)


def centralized_quadratic(objective):
    """``argmin_w sum_k f_k(w)`` of the squared loss with a squared regularizer, from (3.2)."""
    dim = objective.dim
    system = 2 * objective.strength * objective.l2 * np.eye(dim)
    right = np.zeros(dim)
    for X, y in objective.data:
        system += 2 / len(y) * X.T @ X
        right += 2 / len(y) * X.T @ y
    return np.linalg.solve(system, right)


# Networks --------------------------------------------------------------------------------------


def neighbors(nodes, edges):
    lists = [[] for _ in range(nodes)]
    for a, b in edges:
        lists[a].append(b)
        lists[b].append(a)
    return lists


def metropolis(nodes, edges):
    """Doubly stochastic: ``1 / (1 + max(deg_k, deg_l))`` on edges, the rest on the diagonal."""
    near = neighbors(nodes, edges)
    weights = np.zeros((nodes, nodes))
    for k in range(nodes):
        for l in near[k]:  # noqa: E741
            weights[k, l] = 1 / (1 + max(len(near[k]), len(near[l])))
        weights[k, k] = 1 - weights[k].sum()
    return weights


# Algorithms ------------------------------------------------------------------------------------


def left_stochastic(clients, edges, seed=3):
    """Random weights on the network's edges and loops with column sums of one, not symmetric."""
    weights = np.random.default_rng(seed).uniform(0.2, 1, (clients, clients))
    support = np.eye(clients, dtype=bool)
    for k, l in edges:  # noqa: E741
        support[k, l] = support[l, k] = True
    weights = weights * support
    return weights / weights.sum(axis=0)


class Run(NamedTuple):
    model: np.ndarray  # [T, K, D]  w_k^(n), exact
    heard: np.ndarray  # [T, K, D]  the perturbed models that are sent
    dual: np.ndarray  # [T, K, D]


def _networked_admm(
    objective, edges, penalty, draws, scale, primal, sent=lambda k, message: message
):
    """(8) and (9) around a ``primal(n, k, heard, dual, pull)``.

    ``sent(k, message)`` is the message of client ``k``, given its perturbed model.
    """
    nodes = objective.clients
    dim = objective.dim
    near = neighbors(nodes, edges)
    received = np.zeros((nodes, dim))
    dual = np.zeros((nodes, dim))
    history = []
    for n in range(1, len(draws) + 1):
        model = np.zeros((nodes, dim))
        for k in range(nodes):
            linear = np.zeros(dim)
            for l in near[k]:  # noqa: E741
                linear += penalty * (received[k] + received[l])
            model[k] = primal(n, k, received[k], dual[k], linear, len(near[k]))
        received = np.array(
            [sent(k, model[k] + scale[n - 1, k] * draws[n - 1, k]) for k in range(nodes)]
        )
        new = dual.copy()
        for k in range(nodes):
            for l in near[k]:  # noqa: E741
                new[k] += penalty * (received[k] - received[l])
        dual = new
        history.append((model, received, dual))
    return Run(*(np.array(part) for part in zip(*history, strict=True)))


def admm(objective, edges, penalty, draws, scale):
    """(3.4), and P-ADMM (section 3.4.3) when ``scale`` is not zero."""

    def primal(n, k, received, dual, linear, degree):
        weight = 2 * penalty * degree
        return prox(objective, k, weight, (linear - dual) / weight)

    return _networked_admm(objective, edges, penalty, draws, scale, primal)


def zcdp_nfl(objective, edges, penalty, step, draws, scale, **channel):
    """(7)-(9); also (eps, delta)DP-NFL, which differs in ``scale`` only. ``step(n)`` is eta."""

    def primal(n, k, received, dual, linear, degree):
        right = received / step(n) + linear - dual - objective.gradient(k, received)
        return right / (2 * penalty * degree + 1 / step(n))

    return _networked_admm(objective, edges, penalty, draws, scale, primal, **channel)


def linearized_objective(objective, edges, penalty, step, n, k, received, dual, w):
    """What (7) minimizes over ``w``: (3.6) at the perturbed models, plus ADMM's terms."""
    model = received[k]
    total = objective.value(k, model) + (w - model) @ objective.gradient(k, model)
    total += ((w - model) ** 2).sum() / (2 * step(n)) + w @ dual[k]
    for l in neighbors(objective.clients, edges)[k]:  # noqa: E741
        total += penalty * ((w - (model + received[l]) / 2) ** 2).sum()
    return total


def zcdp_grad_nfl(objective, edges, step, draws, scale):
    """Subgradient descent on perturbed messages (Nedic and Ozdaglar 2009, private form)."""
    nodes = objective.clients
    dim = objective.dim
    weights = metropolis(nodes, edges)
    received = np.zeros((nodes, dim))
    history = []
    for n in range(1, len(draws) + 1):
        model = np.zeros((nodes, dim))
        for k in range(nodes):
            for l in range(nodes):  # noqa: E741
                model[k] += weights[k, l] * received[l]
            model[k] -= step(n) * objective.gradient(k, received[k])
        received = np.array([model[k] + scale[n - 1, k] * draws[n - 1, k] for k in range(nodes)])
        history.append((model, received, np.zeros((nodes, dim))))
    return Run(*(np.array(part) for part in zip(*history, strict=True)))


def conventional_fl(objective, step, draws, scale, local_steps=1):
    """Algorithm 1: descend from the server's model, average the messages; ``[T, D]``."""
    server = np.zeros(objective.dim)
    history = []
    for n in range(1, len(draws) + 1):
        total = np.zeros(objective.dim)
        for k in range(objective.clients):
            w = server.copy()
            for _ in range(local_steps):
                w = w - step(n) * objective.gradient(k, w)
            total += w + scale[n - 1, k] * draws[n - 1, k]
        server = total / objective.clients
        history.append(server)
    return np.array(history)


def fedavg(objective, step, chosen, batches, weighting="samples", probabilities=None):
    """McMahan et al. 2017, Algorithm 1, with drawn clients and batches injected; ``[T, D]``.

    ``chosen[n - 1]`` are the participants of round ``n``, ``batches[n - 1][i]`` the index sets that
    the ``i``-th of them goes through. With probabilities the update is Horvitz and Thompson's
    estimate of the update by all clients: each client's part is divided by its expected number of
    draws.
    """
    server = np.zeros(objective.dim)
    history = []
    for n in range(1, len(chosen) + 1):
        total = np.zeros(objective.dim)
        weight = 0.0
        for k, batched in zip(chosen[n - 1], batches[n - 1], strict=True):
            X, y = objective.data[k]
            w = server.copy()
            for rows in batched:
                pair = (X[rows], y[rows])
                data = (*objective.data[:k], pair, *objective.data[k + 1 :])
                w = w - step(n) * replace(objective, data=data).gradient(k, w)
            share = len(y) if weighting == "samples" else 1
            if probabilities is not None:
                total_weight = sum(
                    len(y) if weighting == "samples" else 1 for _, y in objective.data
                )
                share = share / total_weight / (len(chosen[n - 1]) * probabilities[k])
            total += share * (w - server)
            weight += share
        server = server + total / (weight if probabilities is None else 1)
        history.append(server)
    return np.array(history)


# Sensitivities [T, K] --------------------------------------------------------------------------


def degrees(nodes, edges):
    return np.array([len(near) for near in neighbors(nodes, edges)], float)


def lemma_one(objective, edges, penalty, step, bound, rounds):
    """(3.12): ``2 c1 / (D_k (2 rho |N_k| + 1 / eta(n)))``."""
    degree = degrees(objective.clients, edges)
    return np.array(
        [
            2 * bound / (objective.counts * (2 * penalty * degree + 1 / step(n)))
            for n in range(1, rounds + 1)
        ]
    )


def gradient_sensitivity(objective, step, bound, rounds, local_steps=1):
    """Two trajectories that share their first point: the gap of one step, then of the others."""
    share = objective.strength / objective.clients
    rows = []
    for n in range(1, rounds + 1):
        gap = 2 * bound * step(n) / objective.counts
        for _ in range(local_steps - 1):
            shrink = abs(1 - 2 * step(n) * share * objective.l2)
            jump = 2 * objective.l1 * objective.dim**0.5
            gap = shrink * gap + 2 * bound * step(n) + step(n) * share * jump
        rows.append(gap)
    return np.array(rows)


def minimizer_sensitivity(objective, edges, penalty, bound, rounds):
    """Sensitivity of an exact primal step: strong convexity ``2 rho |N_k| + 2 lambda l2 / K``."""
    modulus = 2 * penalty * degrees(objective.clients, edges)
    modulus = modulus + 2 * objective.strength * objective.l2 / objective.clients
    return np.tile(2 * bound / (objective.counts * modulus), (rounds, 1))


# Noise schedules [T, K] ------------------------------------------------------------------------


def zcdp_parameters(total, decay, rounds):
    """``phi(n) = phi(1) decay^-(n-1)`` with the Corollary's first value, [T]."""
    if decay == 1:
        return np.full(rounds, total / rounds)
    first = total * (decay ** (rounds - 1) - decay**rounds) / (1 - decay**rounds)
    return np.array([first * decay ** -(n - 1.0) for n in range(1, rounds + 1)])


def privacy_schedule(sensitivity, total, decay):
    """Theorem I in every round: ``sigma^2 = Delta^2 / (2 phi)``."""
    phi = zcdp_parameters(total, decay, len(sensitivity))
    return np.array([d / math.sqrt(2 * p) for d, p in zip(sensitivity, phi, strict=True)])


def variance_schedule(sensitivity, total, decay):
    """``sigma^2(n) = decay sigma^2(n-1)``, started so that the exact sum is the total."""
    rounds, clients = sensitivity.shape
    sigma = np.zeros((rounds, clients))
    for k in range(clients):
        spent = 0.0  # with sigma(1) = 1
        for n in range(rounds):
            spent += sensitivity[n, k] ** 2 / (2 * decay**n)
        for n in range(rounds):
            sigma[n, k] = math.sqrt(spent / total * decay**n)
    return sigma


def advanced_round(total, rounds, slack):
    """Per-round epsilon by bisection of ``e sqrt(2 T ln(1/slack)) + T e (exp(e) - 1) = total``."""
    low = 0.0
    high = total
    for _ in range(200):
        e = (low + high) / 2
        spent = e * math.sqrt(2 * rounds * math.log(1 / slack)) + rounds * e * (math.exp(e) - 1)
        low, high = (low, e) if spent > total else (e, high)
    return low


def approximate_budgets(epsilon, delta, rounds, rule, decay):
    """``epsilon_n`` and ``delta_n``, ``[T]`` each, of the three rules of the comparator."""
    if rule == "uniform":
        return np.full(rounds, epsilon / rounds), np.full(rounds, delta / rounds)
    if rule == "geometric":
        shares = np.array([decay ** (-(n - 1) / 2) for n in range(1, rounds + 1)])
        return epsilon * shares / shares.sum(), np.full(rounds, delta / rounds)
    epsilon_of_round = advanced_round(epsilon, rounds, delta / 2)
    return np.full(rounds, epsilon_of_round), np.full(rounds, delta / (2 * rounds))


def approximate_schedule(sensitivity, epsilon, delta, rule, calibration, decay):
    epsilons, deltas = approximate_budgets(epsilon, delta, len(sensitivity), rule, decay)
    rows = []
    for row, e, d in zip(sensitivity, epsilons, deltas, strict=True):
        if calibration == "classical":
            rows.append(row * math.sqrt(2 * math.log(1.25 / d)) / e)
        else:
            phi = (math.sqrt(math.log(1 / d) + e) - math.sqrt(math.log(1 / d))) ** 2
            rows.append(row / math.sqrt(2 * phi))
    return np.array(rows)


def laplace_schedule(sensitivity, epsilon, decay, dim):
    rounds = len(sensitivity)
    shares = np.array([decay ** (-(n - 1) / 2) for n in range(1, rounds + 1)])
    shares = epsilon * shares / shares.sum()
    return np.array([math.sqrt(dim) * d / e for d, e in zip(sensitivity, shares, strict=True)])
