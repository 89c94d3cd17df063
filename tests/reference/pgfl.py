"""Personalized graph federated learning written from the equations, in loops, no JAX.

"Personalized Graph Federated Learning with Differential Privacy", arXiv version (plain numbers;
chapter 5 of Gauthier 2024 has the same equations as (5.x)), and Rizk's graph federated learning
(numbers ``R``). Rounds count from 1, everything else from 0. ``server[k]`` and ``cluster[k]`` say
where client ``k`` belongs. Row ``n - 1`` of a result is the state after round ``n``; everything
starts at zero. Readings:

- A client that is not scheduled does nothing: it keeps ``w_k`` and its dual and sends nothing (NaN
  among the uploads). The sums of (8) are over the scheduled clients of the cell, as is ``|C|``.
- The dual is of the perturbed model: it is sent, and would give the exact one away otherwise.
- With a single cluster there is nothing to mix: (10) is the identity.
- ``ridge`` is ``lambda / |C_s|``, divided by the caller.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.reference.nfl import neighbors


@dataclass(frozen=True)
class Client:
    """``f_k(w) = mean_i l(x_i, y_i; w) + ridge |w|^2`` and its derivatives.

    ``l`` is ``(y - x'w)^2`` ("squared") or ``log(1 + exp(-y x'w))`` with ``y`` -1 or 1
    ("logistic").
    """

    X: np.ndarray  # [D_k, d]
    y: np.ndarray  # [D_k]
    loss: str = "squared"
    ridge: float = 0.0

    def value(self, w):
        if self.loss == "squared":
            losses = (self.y - self.X @ w) ** 2
        else:
            losses = np.logaddexp(0, -self.y * (self.X @ w))
        return losses.sum() / len(self.y) + self.ridge * (w @ w)

    def gradient(self, w):
        if self.loss == "squared":
            slopes = -2 * (self.y - self.X @ w)
        else:
            slopes = -self.y * np.exp(-np.logaddexp(0, self.y * (self.X @ w)))
        return self.X.T @ slopes / len(self.y) + 2 * self.ridge * w

    def hessian(self, w):
        if self.loss == "squared":
            bends = 2 * np.ones(len(self.y))
        else:
            margin = self.X @ w
            bends = np.exp(-np.logaddexp(0, margin) - np.logaddexp(0, -margin))
        data = self.X.T @ (bends[:, None] * self.X) / len(self.y)
        return data + 2 * self.ridge * np.eye(len(w))


# Minimizers ------------------------------------------------------------------------------------


def newton(value, gradient, hessian, dim):
    """The minimizer of a convex function, from zero, with halved steps where one is too long."""
    w = np.zeros(dim)
    for _ in range(200):
        move = np.linalg.solve(hessian(w), -gradient(w))
        if np.abs(move).max() <= 1e-13 * (1 + np.abs(w).max()):
            return w + move
        size = 1.0
        while value(w + size * move) > value(w) + 1e-12 * (1 + abs(value(w))):
            size /= 2
        w = w + size * move
    raise ArithmeticError("Newton's method has not converged")


def minimize(client, linear, curvature):
    """``argmin_w f_k(w) - linear'w + curvature / 2 |w|^2``."""
    eye = np.eye(len(linear))
    if client.loss == "squared":
        count = len(client.y)
        system = 2 / count * client.X.T @ client.X + (2 * client.ridge + curvature) * eye
        return np.linalg.solve(system, 2 / count * client.X.T @ client.y + linear)
    return newton(
        lambda w: client.value(w) - linear @ w + curvature / 2 * (w @ w),
        lambda w: client.gradient(w) - linear + curvature * w,
        lambda w: client.hessian(w) + curvature * eye,
        len(linear),
    )


def primal(client, dual, received, penalty):
    """(4): ``argmin_w f_k(w) - <dual, w - received> + penalty / 2 |w - received|^2``."""
    return minimize(client, dual + penalty * received, penalty)


def central(clients):
    """``argmin_w sum_k f_k(w)``, (15); of one cluster's clients, or of all."""
    return newton(
        lambda w: sum(client.value(w) for client in clients),
        lambda w: sum(client.gradient(w) for client in clients),
        lambda w: sum(client.hessian(w) for client in clients),
        clients[0].X.shape[1],
    )


# PGFL ------------------------------------------------------------------------------------------


class Run(NamedTuple):
    model: np.ndarray  # [T, K, d]  w_k, exact
    upload: np.ndarray  # [T, K, d]  (11); NaN: nothing sent
    dual: np.ndarray  # [T, K, d]
    aggregate: np.ndarray  # [T, S, Q, d]  (8), (12); NaN: left out, see "skip"
    averaged: np.ndarray  # [T, S, Q, d]  (9)
    mixed: np.ndarray  # [T, S, Q, d]  (10), sent to the clients


def mix(averaged, tau):
    """(10) for one server, ``[Q, d]``."""
    clusters = len(averaged)
    if clusters == 1:
        return averaged.copy()
    mixed = np.zeros_like(averaged)
    for q in range(clusters):
        mixed[q] = (1 - tau) * averaged[q]
        for r in range(clusters):
            if r != q:
                mixed[q] += tau / (clusters - 1) * averaged[r]
    return mixed


def pgfl(
    clients,
    server,
    cluster,
    edges,
    rounds,
    penalty,
    tau,
    servers,
    clusters,
    scheduled=None,
    noise=None,
    empty_cell="keep",
    dual_reference="received",
    assign=None,
):
    """Algorithms 1 and 2 (with noise): (4), (11), (12), (9), (10), (5).

    ``tau(n)``; ``scheduled`` ``[T, K]`` bool, everyone if None; ``noise`` ``[T, K, d]`` is added to
    the messages without scaling. ``edges`` are between servers.

    A cell (server, cluster) without participants has no (8). "keep": the model that the server last
    sent to the cell stands for it, ``w_{s,(q)}(n-1)`` of (10). "skip": it does not enter (9), which
    averages the nonempty cells of the neighborhood; if all are empty, ``w_{s,(q)}(n-1)`` stands for
    the average and goes through (10) like any other.

    ``dual_reference``: (5) with (10), "received", or with (12), "aggregate".

    ``assign(n, mixed, dual, cluster, present)``: the clusters of a round, or ``None`` while all
    clients form one cluster, whose model then stands for all clusters. By default the given
    clusters.
    """
    assert empty_cell in ("keep", "skip")
    assert dual_reference in ("received", "aggregate")
    dim = clients[0].X.shape[1]
    neighbors_of = neighbors(servers, edges)
    model = np.zeros((len(clients), dim))
    dual = np.zeros((len(clients), dim))
    mixed = np.zeros((servers, clusters, dim))
    history = []
    for n in range(1, rounds + 1):
        present = [k for k in range(len(clients)) if scheduled is None or scheduled[n - 1, k]]
        same_clusters = False
        if assign is not None:
            assigned = assign(n, mixed, dual, cluster, present)
            same_clusters = assigned is None
            cluster = [0] * len(clients) if same_clusters else assigned

        # Clients: (4) and (11)
        model = model.copy()
        upload = np.full((len(clients), dim), np.nan)
        for k in present:
            model[k] = primal(clients[k], dual[k], mixed[server[k], cluster[k]], penalty)
            upload[k] = model[k] if noise is None else model[k] + noise[n - 1, k]

        # Server aggregation: (12)
        aggregate = np.full((servers, clusters, dim), np.nan)
        empty = np.zeros((servers, clusters), bool)
        for s in range(servers):
            for q in range(clusters):
                cell = [k for k in present if server[k] == s and cluster[k] == q]
                if cell:
                    total = np.zeros(dim)
                    for k in cell:
                        total += upload[k] - dual[k] / penalty
                    aggregate[s, q] = total / len(cell)
                elif empty_cell == "keep":
                    aggregate[s, q] = mixed[s, q]
                else:
                    empty[s, q] = True

        # Inter-server aggregation: (9)
        averaged = np.zeros((servers, clusters, dim))
        for s in range(servers):
            for q in range(clusters):
                near = [p for p in (s, *neighbors_of[s]) if not empty[p, q]]
                for p in near:
                    averaged[s, q] += aggregate[p, q] / len(near)
                if not near:
                    averaged[s, q] = mixed[s, q]

        # Inter-cluster learning: (10)
        mixed = np.array([mix(averaged[s], 0 if same_clusters else tau(n)) for s in range(servers)])
        if same_clusters:
            for q in range(clusters):
                mixed[:, q] = mixed[:, 0]

        # Clients: (5)
        dual = dual.copy()
        reference = mixed if dual_reference == "received" else aggregate
        for k in present:
            dual[k] += penalty * (reference[server[k], cluster[k]] - upload[k])
        history.append((model, upload, dual, aggregate, averaged, mixed))
    return Run(*(np.array(part) for part in zip(*history, strict=True)))


# Clusters discovered ---------------------------------------------------------------------------


def best_partition(points, clusters):
    """The partition of a few points with the least squared distances, up to relabeling."""
    best = None
    for names in itertools.product(range(clusters), repeat=len(points)):
        if len(set(names)) < clusters:
            continue
        total = 0.0
        for q in range(clusters):
            part = points[np.array(names) == q]
            total += ((part - part.mean(axis=0)) ** 2).sum()
        if best is None or total < best[0] - 1e-12:
            best = total, list(names)
    return best[1]


def discovery(clients, server, clusters, warmup, step=None):
    """The discovered clusters: one cluster at first; then the best partition of the duals along
    their ``clusters - 1`` principal directions; then each present client moves to the cluster of
    least loss or, given a ``step``, to the model nearest to a step along the dual.
    """

    def assign(n, mixed, dual, cluster, present):
        if n <= warmup:
            return None
        if n == warmup + 1:
            centered = dual - dual.mean(axis=0)
            _, vectors = np.linalg.eigh(centered.T @ centered)
            return best_partition(centered @ vectors[:, ::-1][:, : clusters - 1], clusters)
        new = list(cluster)
        for k in present:
            models = mixed[server[k]]
            if step is None:
                misfit = [clients[k].value(model) for model in models]
            else:
                moved = models[cluster[k]] - step * dual[k]
                misfit = [((model - moved) ** 2).sum() for model in models]
            # Cells that stood empty together have one model, but for rounding: the first of equals.
            least = min(misfit)
            new[k] = next(
                q for q, value in enumerate(misfit) if value <= least + 1e-12 * abs(least)
            )
        return new

    return assign


# In a single step ------------------------------------------------------------------------------


class SingleStep(NamedTuple):
    model: np.ndarray  # [T, K, d]  w_k
    dual: np.ndarray  # [T, K, d]
    server: np.ndarray  # [T, S, Q, d]  (6)
    server_dual: np.ndarray  # [T, S, Q, d]  (7)


def pgfl_single_step(
    clients,
    server,
    cluster,
    edges,
    rounds,
    penalty,
    tau,
    servers,
    clusters,
    signs="corrected",
):
    """(4), (6), (7), (5): everyone takes part, no noise, no empty cell.

    ``signs``: "printed", or "corrected", with ``+ w_p`` in the second line of (6) and
    ``w_s - w_p`` in (7), as (3.4) of the thesis has it. A single cluster: ``tau = 0``.
    """
    assert signs in ("corrected", "printed")
    sign = 1 if signs == "corrected" else -1
    dim = clients[0].X.shape[1]
    neighbors_of = neighbors(servers, edges)
    dual = np.zeros((len(clients), dim))
    received = np.zeros((servers, clusters, dim))
    psi = np.zeros((servers, clusters, dim))
    history = []
    for n in range(1, rounds + 1):
        model = np.zeros((len(clients), dim))
        for k in range(len(clients)):
            model[k] = primal(clients[k], dual[k], received[server[k], cluster[k]], penalty)

        share = tau(n) if clusters > 1 else 0.0
        new = np.zeros((servers, clusters, dim))
        for s in range(servers):
            for q in range(clusters):
                cell = [k for k in range(len(clients)) if (server[k], cluster[k]) == (s, q)]
                assert cell, "(6) divides by the number of clients of the cell"
                for k in cell:
                    new[s, q] += (model[k] - dual[k] / penalty) / len(cell)
                new[s, q] -= psi[s, q] / 2
                for p in neighbors_of[s]:
                    new[s, q] += penalty / 2 * (received[s, q] + sign * received[p, q])
                for r in range(clusters):
                    for p in (s, *neighbors_of[s]):
                        if r != q:
                            weight = share / (clusters - 1) / (1 + len(neighbors_of[s]))
                            new[s, q] += weight * received[p, r]
                new[s, q] /= 1 + share + penalty * len(neighbors_of[s])
        received = new

        psi = psi.copy()
        for s in range(servers):
            for q in range(clusters):
                for p in neighbors_of[s]:
                    psi[s, q] += sign * penalty * (received[s, q] - received[p, q])
        dual = dual.copy()
        for k in range(len(clients)):
            dual[k] += penalty * (received[server[k], cluster[k]] - model[k])
        history.append((model, dual, received, psi))
    return SingleStep(*(np.array(part) for part in zip(*history, strict=True)))


# Graph federated learning ----------------------------------------------------------------------


class GraphRun(NamedTuple):
    model: np.ndarray  # [T, K, d]  w_{p,k}, exact
    upload: np.ndarray  # [T, K, d]  with noise; NaN: nothing sent
    aggregate: np.ndarray  # [T, S, d]  psi_p
    server: np.ndarray  # [T, S, d]  w_p


def gfl_gradient(
    clients,
    server,
    combination,
    rounds,
    step,
    local_steps,
    scheduled=None,
    noise=None,
):
    """(R 3.6), (R 3.7), (R 3.8) with full gradients; what servers send each other has no noise.

    ``combination[p, m]`` is ``a_pm``, the weight that server ``p`` gives to ``psi_m``. Without a
    scheduled client ``psi_p = w_p(i-1)``.
    """
    servers = len(combination)
    dim = clients[0].X.shape[1]
    model = np.zeros((len(clients), dim))
    received = np.zeros((servers, dim))
    history = []
    for n in range(1, rounds + 1):
        present = [k for k in range(len(clients)) if scheduled is None or scheduled[n - 1, k]]
        model = model.copy()
        upload = np.full((len(clients), dim), np.nan)
        for k in present:
            w = received[server[k]].copy()
            for _ in range(local_steps):
                w = w - step / local_steps * clients[k].gradient(w)
            model[k] = w
            upload[k] = w if noise is None else w + noise[n - 1, k]

        aggregate = received.copy()
        for p in range(servers):
            members = [k for k in present if server[k] == p]
            if members:
                aggregate[p] = sum(upload[k] for k in members) / len(members)

        received = np.zeros((servers, dim))
        for p in range(servers):
            for m in range(servers):
                received[p] += combination[p, m] * aggregate[m]
        history.append((model, upload, aggregate, received))
    return GraphRun(*(np.array(part) for part in zip(*history, strict=True)))


# Privacy ---------------------------------------------------------------------------------------


def sensitivity(bound, penalty, samples):
    """(42): ``2 C_k / (rho D_k)``, of the exact primal step, in every round."""
    return 2 * bound / (penalty * samples)


def zcdp_parameter(gap, variance):
    """Theorem III, per round: ``phi_k(n) = Delta^2 / (2 delta_k^2(n))``."""
    return gap**2 / (2 * variance)


def variances(gap, first, decay, rounds):
    """``delta_k^2(n) = zeta delta_k^2(n-1)`` from ``delta_k^2(0) = Delta^2 / (2 phi(0))``: [T]."""
    return np.array([gap**2 / (2 * first) * decay**n for n in range(1, rounds + 1)])


def total_of_decaying_variances(first, decay, rounds, start=1):
    """Theorem IV for the variances as defined: ``phi(n) = phi(0) zeta^-n``, growing.

    The rounds carry the superscripts ``start``, ``start + 1``, ...; the papers leave open whether
    ``phi(0)`` is spent.
    """
    return sum(first * decay**-n for n in range(start, start + rounds))


def total_of_decaying_parameters(first, decay, rounds, start=0):
    """What gives the published 0.095: ``phi(n) = phi(0) zeta^n``, with noise that would grow."""
    return sum(first * decay**n for n in range(start, start + rounds))
