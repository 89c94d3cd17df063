"""Networked personalized federated learning written from the equations, in loops, no JAX.

Gauthier 2024, chapter 6. Rounds count from 1, clients and clusters from 0; everything but ``tau``
starts at zero. Row ``n - 1`` of a result is the state after round ``n``. Readings:

- The primal step is (6.5) with the inter-cluster term of (6.2), ``tau_k`` outside of the square.
  For the squared loss that is (6.11) with the lost ``+`` and ``rho |N_k cap C_(q)|``.
- The dual is (6.6) with the sign of (3.4), unless asked for as printed.
- A cluster in which ``k`` has no neighbor has no (6.3): the mean is over the other clusters.
  Where there is none, neither is the inter-cluster term.
- ``ridge`` is ``lambda / |C_(q)|``, divided by the caller.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tests.reference.nfl import neighbors
from tests.reference.pgfl import minimize


class Context(NamedTuple):
    """What the primal step of one client minimizes besides ``f_k`` and ``tau``.

    ``curvature / 2 |w|^2 - linear'w + tau |w - others|^2``, up to a constant.
    """

    linear: np.ndarray  # [d]
    curvature: float
    others: np.ndarray | None  # [d], None: no neighbor in another cluster


def context(k, model, dual, cluster, near, penalty):
    linear = -dual[k]
    curvature = 0.0
    for l in near[k]:  # noqa: E741
        if cluster[l] == cluster[k]:
            linear = linear + penalty * (model[k] + model[l])
            curvature += 2 * penalty
    means = []  # (6.3), of the clusters that k has neighbors in
    for r in sorted(set(cluster)):
        members = [model[l] for l in near[k] if cluster[l] == r]  # noqa: E741
        if r != cluster[k] and members:
            means.append(sum(members) / len(members))
    return Context(linear, curvature, sum(means) / len(means) if means else None)


def primal(client, context, tau):
    """(6.5), as a function of ``tau``: ``w_k(a)`` of section 6.2.2."""
    if context.others is None:
        return minimize(client, context.linear, context.curvature)
    linear = context.linear + 2 * tau * context.others
    return minimize(client, linear, context.curvature + 2 * tau)


def ascend(model, dual, cluster, near, penalty, dual_sign="corrected"):
    """(6.6)."""
    assert dual_sign in ("corrected", "printed")
    sign = 1 if dual_sign == "corrected" else -1
    new = dual.copy()
    for k in range(len(model)):
        for l in near[k]:  # noqa: E741
            if cluster[l] == cluster[k]:
                new[k] += sign * penalty * (model[k] - model[l])
    return new


class Run(NamedTuple):
    model: np.ndarray  # [T, K, d]
    dual: np.ndarray  # [T, K, d]


def npfl(clients, cluster, edges, rounds, penalty, tau, dual_sign="corrected"):
    """(6.5) and (6.6); NFL where all clients are in one cluster.

    ``tau`` must broadcast to ``[T, K]``: one number, one a client, ``[T, 1]``, ``[T, K]``.
    """
    near = neighbors(len(clients), edges)
    tau = np.broadcast_to(tau, (rounds, len(clients)))
    model = np.zeros((len(clients), clients[0].X.shape[1]))
    dual = np.zeros_like(model)
    history = []
    for n in range(1, rounds + 1):
        new = np.zeros_like(model)
        for k, client in enumerate(clients):
            linear_terms = context(k, model, dual, cluster, near, penalty)
            new[k] = primal(client, linear_terms, tau[n - 1, k])
        model = new
        dual = ascend(model, dual, cluster, near, penalty, dual_sign)
        history.append((model, dual))
    return Run(*(np.array(part) for part in zip(*history, strict=True)))


# Learned tau -----------------------------------------------------------------------------------


def cost(client, held_out, w):
    """(6.12), ``V_v``: the client's objective with the mean over its validation samples."""
    X, y = held_out
    return replace(client, X=X, y=y).value(w)


def cost_slope(client, held_out, context, tau):
    """``d V_v(w(a)) / da`` at ``a = tau``.

    Differentiating ``grad f(w(a)) + curvature w(a) - linear + 2 a (w(a) - others) = 0`` gives
    ``dw/da = H^-1 2 (others - w)`` with the Hessian ``H`` of what ``w(a)`` minimizes.
    """
    if context.others is None:
        return 0.0
    w = primal(client, context, tau)
    system = client.hessian(w) + (context.curvature + 2 * tau) * np.eye(len(w))
    motion = np.linalg.solve(system, 2 * (context.others - w))
    X, y = held_out
    return replace(client, X=X, y=y).gradient(w) @ motion


class LearnedRun(NamedTuple):
    model: np.ndarray  # [T, K, d]
    dual: np.ndarray  # [T, K, d]
    tau: np.ndarray  # [T, K], with which the models of the round were made


def npfl_rl(
    clients,
    validation,
    cluster,
    edges,
    rounds,
    penalty,
    tau,
    policy,
    rate,
    epochs=1,
    probes=None,
    clip=None,
    cap=None,
):
    """Algorithm 6, and its batch form (``epochs`` steps of the policy a round).

    ``validation`` holds one ``(X, y)`` a client; ``tau`` is ``tau_k(0)``, which round 1 uses too,
    one number or one a client. ``policy`` is "dpg", (6.13), or "probe", (6.14) with the random
    directions ``probes`` ``[T, E, K]`` (row 0 is not used). From round 2 on the policy acts before
    the primal step, on the functions ``w_k(a)`` that the last primal step was an evaluation of.

    In every epoch the step is cut to ``[-cap, cap]``, then ``tau_k`` to ``clip = (low, high)``;
    neither is in the thesis. The action that a probe tries is not cut.
    """
    assert policy in ("dpg", "probe")
    near = neighbors(len(clients), edges)
    model = np.zeros((len(clients), clients[0].X.shape[1]))
    dual = np.zeros_like(model)
    tau = np.broadcast_to(tau, len(clients)).astype(float)
    contexts = []
    history = []
    for n in range(1, rounds + 1):
        tau = tau.copy()
        if n > 1:
            for e in range(epochs):
                for k, client in enumerate(clients):
                    if policy == "dpg":
                        move = -rate * cost_slope(client, validation[k], contexts[k], tau[k])
                    else:
                        alpha = probes[n - 1, e, k]
                        tried = primal(client, contexts[k], tau[k] + alpha)
                        stays = primal(client, contexts[k], tau[k])
                        excess = cost(client, validation[k], tried)
                        excess -= cost(client, validation[k], stays)
                        move = -rate * np.sign(excess) * alpha
                    if cap is not None:
                        move = min(max(move, -cap), cap)
                    tau[k] += move
                    if clip is not None:
                        tau[k] = min(max(tau[k], clip[0]), clip[1])
        contexts = [context(k, model, dual, cluster, near, penalty) for k in range(len(clients))]
        model = np.array([primal(c, contexts[k], tau[k]) for k, c in enumerate(clients)])
        dual = ascend(model, dual, cluster, near, penalty)
        history.append((model, dual, tau))
    return LearnedRun(*(np.array(part) for part in zip(*history, strict=True)))


# Clusters discovered ---------------------------------------------------------------------------


def npfl_choosing(clients, validation, edges, rounds, penalty, tau, clusters, warmup, step=None):
    """(6.5) and (6.6) with duals of links, each client of the cluster that suits it.

    Clusters are ``k % clusters`` until, after round ``warmup``, a client takes that whose mean
    model among its neighbors (as of the last message; of a cluster that it hears of no more, as it
    was) has least loss on its validation data, or, given a ``step``, is nearest to a gradient step
    of its own model on them. It tells the choice with the model; both count from the next round.
    """
    near = neighbors(len(clients), edges)
    count = len(clients)
    dim = clients[0].X.shape[1]
    model = np.zeros((count, dim))
    cluster = [k % clusters for k in range(count)]
    dual = {(k, l): np.zeros(dim) for k in range(count) for l in near[k]}  # noqa: E741
    received = np.zeros((count, clusters, dim))
    history = []
    for n in range(1, rounds + 1):
        total = np.zeros((count, dim))
        for k, l in dual:  # noqa: E741
            total[k] += dual[k, l]
        new = np.zeros_like(model)
        chosen = list(cluster)
        for k, client in enumerate(clients):
            linear_terms = context(k, model, total, cluster, near, penalty)
            new[k] = primal(client, linear_terms, tau)
            if n <= warmup:
                continue
            X, y = validation[k]
            held_out = replace(client, X=X, y=y, ridge=0.0)
            if step is None:
                misfit = [held_out.value(w) for w in received[k]]
            else:
                moved = new[k] - step * held_out.gradient(new[k])
                misfit = [((w - moved) ** 2).sum() for w in received[k]]
            chosen[k] = int(np.argmin(misfit))
        model = new
        cluster = chosen
        for k, l in dual:  # noqa: E741
            together = cluster[k] == cluster[l]
            dual[k, l] = together * (dual[k, l] + penalty * (model[k] - model[l]))
        for k in range(count):
            for q in range(clusters):
                members = [model[l] for l in near[k] if cluster[l] == q]  # noqa: E741
                if members:
                    received[k, q] = sum(members) / len(members)
        history.append((model, np.array(cluster)))
    return tuple(np.array(part) for part in zip(*history, strict=True))


def npfl_by_parameters(
    clients, validation, edges, rounds, penalty, start, threshold, policy, rate, probes=None
):
    """(6.5) with a parameter for each neighbor, and (6.6) over pairs whose two parameters both
    reach the threshold.

    ``policy`` and ``probes``, ``[T, K, K]`` by receiver and neighbor, as of ``npfl_rl``; all
    parameters of a client move by the same comparison. Kept in [0, 1].
    """
    near = neighbors(len(clients), edges)
    count = len(clients)
    dim = clients[0].X.shape[1]
    model = np.zeros((count, dim))
    tau = {(k, l): start for k in range(count) for l in near[k]}  # noqa: E741
    dual = {link: np.zeros(dim) for link in tau}

    def solve(k, tau, contexts, extra=0.0):
        linear, curvature, models = contexts[k]
        for l in near[k]:  # noqa: E741
            share = (tau[k, l] + (0.0 if np.isscalar(extra) else extra[l])) / len(near[k])
            linear = linear + 2 * share * models[l]
            curvature = curvature + 2 * share
        return minimize(clients[k], linear, curvature), curvature

    terms = {}
    history = []
    for n in range(1, rounds + 1):
        if n > 1:
            moved = dict(tau)
            for k, client in enumerate(clients):
                w, curvature = solve(k, tau, terms)
                if policy == "probe":
                    tried, _ = solve(k, tau, terms, probes[n - 1, k])
                    sign = np.sign(
                        cost(client, validation[k], tried) - cost(client, validation[k], w)
                    )
                for l in near[k]:  # noqa: E741
                    if policy == "probe":
                        move = -rate * sign * probes[n - 1, k, l]
                    else:
                        system = client.hessian(w) + curvature * np.eye(dim)
                        towards = 2 * (terms[k][2][l] - w) / len(near[k])
                        X, y = validation[k]
                        gradient = replace(client, X=X, y=y).gradient(w)
                        move = -rate * gradient @ np.linalg.solve(system, towards)
                    moved[k, l] = min(max(tau[k, l] + move, 0.0), 1.0)
            before = tau
            tau = moved
        else:
            before = tau
        terms = {}
        for k in range(count):
            linear = np.zeros(dim)
            curvature = 0.0
            for l in near[k]:  # noqa: E741
                if min(before[k, l], before[l, k]) >= threshold:
                    linear = linear + penalty * (model[k] + model[l]) - dual[k, l]
                    curvature += 2 * penalty
            terms[k] = linear, curvature, model
        model = np.array([solve(k, tau, terms)[0] for k in range(count)])
        for k, l in dual:  # noqa: E741
            similar = min(tau[k, l], tau[l, k]) >= threshold
            dual[k, l] = similar * (dual[k, l] + penalty * (model[k] - model[l]))
        table = np.zeros((count, count))
        for (k, l), value in tau.items():  # noqa: E741
            table[k, l] = value
        history.append((model, table))
    return tuple(np.array(part) for part in zip(*history, strict=True))
