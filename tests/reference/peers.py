"""Peers that save gradients or messages, as loops over clients, edges and samples.

``gradient(k, w)`` is client ``k``'s whole gradient, ``gradient(k, w, rows)`` the mean of some of
its samples, each with the client's regularizer. Random draws are injected. ``start`` is ``[K, D]``,
``weights[k, m]`` the weight that ``k`` gives to the message of ``m``.
"""

import numpy as np


def mixed(weights, values):
    return np.array(
        [sum(weights[k, m] * values[m] for m in range(len(values))) for k in range(len(values))]
    )


# Gradient tracking (Xin, Khan and Kar 2020) ------------------------------------------------------


def gt_saga(gradient, sizes, weights, step, rows, start):
    """Algorithm 1: ``[T, K, D]``; ``rows[n - 1][k]``: client ``k``'s samples in round ``n``."""
    clients = len(start)
    x = start.copy()
    history = []
    points = [[start[k].copy() for _ in range(sizes[k])] for k in range(clients)]
    g = np.array([gradient(k, x[k]) for k in range(clients)])
    y = g.copy()
    for n in range(1, len(rows) + 1):
        x_new = mixed(weights, x) - step(n) * y
        g_new = np.zeros_like(g)
        for k in range(clients):
            batch = rows[n - 1][k]
            table_mean = sum(gradient(k, points[k][j], [j]) for j in range(sizes[k])) / sizes[k]
            differences = [
                gradient(k, x_new[k], [s]) - gradient(k, points[k][s], [s]) for s in batch
            ]
            g_new[k] = sum(differences) / len(batch) + table_mean
            for s in batch:
                points[k][s] = x_new[k].copy()
        y = mixed(weights, y) + g_new - g
        x = x_new
        g = g_new
        history.append(x)
    return np.array(history)


def gt_svrg(gradient, period, weights, step, rows, start):
    """Algorithm 2."""
    clients = len(start)
    x = start.copy()
    history = []
    v = np.array([gradient(k, x[k]) for k in range(clients)])
    y = v.copy()
    snapshot = x.copy()
    for n in range(1, len(rows) + 1):
        x = mixed(weights, x) - step(n) * y
        if n % period == 0:
            snapshot = x.copy()
        v_new = np.zeros_like(v)
        for k in range(clients):
            batch = rows[n - 1][k]
            at = snapshot[k]
            v_new[k] = gradient(k, x[k], batch) - gradient(k, at, batch) + gradient(k, at)
        y = mixed(weights, y) + v_new - v
        v = v_new
        history.append(x)
    return np.array(history)


# GT-SARAH (Xin, Khan and Kar 2022) ---------------------------------------------------------------


def gt_sarah(gradient, period, weights, step, rows, start):
    clients = len(start)
    x = start.copy()
    history = []
    v = np.array([gradient(k, x[k]) for k in range(clients)])
    y = v.copy()
    for n in range(1, len(rows) + 1):
        before = x
        x = mixed(weights, x) - step(n) * y
        v_new = np.zeros_like(v)
        for k in range(clients):
            if n % period == 0:
                v_new[k] = gradient(k, x[k])
            else:
                batch = rows[n - 1][k]
                v_new[k] = v[k] + gradient(k, x[k], batch) - gradient(k, before[k], batch)
        y = mixed(weights, y) + v_new - v
        v = v_new
        history.append(x)
    return np.array(history)


# GT-VR (Jiang, Zeng, Sun and Chen 2023) ----------------------------------------------------------


def gt_vr(gradient, coins, weights, step, rows, start):
    """Algorithm 1; ``coins[n - 1][k]``: whether client ``k`` moves its snapshot in round ``n``."""
    clients = len(start)
    x = start.copy()
    history = []
    tau = [start[k].copy() for k in range(clients)]
    v = np.array([gradient(k, x[k]) for k in range(clients)])
    y = v.copy()
    for n in range(1, len(rows) + 1):
        x = mixed(weights, x - step(n) * y)
        v_new = np.zeros_like(v)
        for k in range(clients):
            if coins[n - 1][k]:
                tau[k] = x[k].copy()
            batch = rows[n - 1][k]
            v_new[k] = gradient(k, x[k], batch) - gradient(k, tau[k], batch) + gradient(k, tau[k])
        y = mixed(weights, y + v_new - v)
        v = v_new
        history.append(x)
    return np.array(history)


# GT-SAGA in the form of Xin, Khan and Kar 2022 ---------------------------------------------------


def atc_gt_saga(gradient, sizes, weights, step, rows, stored, start):
    """Algorithm 1; ``rows`` of the estimates, ``stored`` of the table, ``[T][K]``."""
    clients = len(start)
    x = start.copy()
    history = []
    z = [[start[k].copy() for _ in range(sizes[k])] for k in range(clients)]
    y = np.zeros_like(x)
    g = np.zeros_like(x)
    for n in range(1, len(rows) + 1):
        g_new = np.zeros_like(g)
        for k in range(clients):
            batch = rows[n - 1][k]
            table_mean = sum(gradient(k, z[k][j], [j]) for j in range(sizes[k])) / sizes[k]
            differences = [gradient(k, x[k], [s]) - gradient(k, z[k][s], [s]) for s in batch]
            g_new[k] = sum(differences) / len(batch) + table_mean
        y = mixed(weights, y + g_new - g)
        x_new = mixed(weights, x - step(n) * y)
        for k in range(clients):
            for s in stored[n - 1][k]:
                z[k][s] = x[k].copy()
        x = x_new
        g = g_new
        history.append(x)
    return np.array(history)


# Network-DANE, Network-SVRG and Network-SARAH (Li, Cen, Chen and Chi 2020) ------------------------


def network_tracking(gradient, local, weights, rounds, start):
    """Algorithms 2 and 3; ``local(n, k, y, s)``: client ``k``'s update of its ``y`` and ``s``."""
    clients = len(start)
    x = start.copy()
    history = []
    y = start.copy()
    s = np.array([gradient(k, y[k]) for k in range(clients)])
    for n in range(1, rounds + 1):
        y_new = mixed(weights, x)
        s = mixed(weights, s)
        for k in range(clients):
            s[k] = s[k] + gradient(k, y_new[k]) - gradient(k, y[k])
        y = y_new
        x = np.array([local(n, k, y[k], s[k]) for k in range(clients)])
        history.append(x)
    return np.array(history)


def network_svrg(gradient, step, rows):
    def local(n, k, y, s):
        u = y.copy()
        v = s
        for batch in [*rows[n - 1][k][1:], None]:
            u = u - step(n) * v
            if batch is not None:
                v = gradient(k, u, batch) - gradient(k, y, batch) + s
        return u

    return local


def network_sarah(gradient, step, rows):
    def local(n, k, y, s):
        u = y.copy()
        v = s
        for batch in [*rows[n - 1][k][:-1], None]:
            last = u
            u = u - step(n) * v
            if batch is not None:
                v = gradient(k, u, batch) - gradient(k, last, batch) + v
        return u

    return local


# DESTRESS (Li, Li and Chi 2022) ------------------------------------------------------------------


def destress(gradient, period, probability, coins, exchanges, weights, step, rows, start):
    """Algorithm 1 with plain mixing: ``[T, K, D]``, inner iterations one after the other;
    ``coins[n - 1][k]``: whether client ``k`` is active.
    """

    def mix(values):
        for _ in range(exchanges):
            values = mixed(weights, values)
        return values

    clients = len(start)
    history = []
    n = 0
    x = np.array([start.mean(axis=0)] * clients)
    slopes = np.array([gradient(k, x[k]) for k in range(clients)])
    s = np.array([slopes.mean(axis=0)] * clients)
    while n < len(rows):
        u = x
        v = s
        for inner in range(1, period + 1):
            n += 1
            u_new = mix(u - step(n) * v)
            history.append(u_new)
            if n == len(rows):
                return np.array(history)
            if inner < period:
                g = v.copy()
                for k in range(clients):
                    if coins[n - 1][k]:
                        batch = rows[n - 1][k]
                        change = gradient(k, u_new[k], batch) - gradient(k, u[k], batch)
                        g[k] = g[k] + change / probability
                v = mix(g)
            u = u_new
        new = np.array([gradient(k, u[k]) for k in range(clients)])
        s = mix(s + new - slopes)
        x = u
        slopes = new
    return np.array(history)


# LT-ADMM (Ren et al. 2025) -----------------------------------------------------------------------


def lt_admm(
    gradient, edges, penalty, step, proximity, local_steps, rounds, start, rows=None, table=None
):
    """Algorithm 1, with a variable and a message of every edge; ``rows[n - 1][k][t]``.

    ``table``: ``None``, or of LT-ADMM-VR each client's number of samples and whether they are all
    met again before a round.
    """
    neighbors = [
        sorted({b if a == k else a for a, b in edges if k in (a, b)}) for k in range(len(start))
    ]
    clients = len(start)
    x = start.copy()
    history = []
    z = {(k, m): penalty * (start[k] + start[m]) / 2 for k in range(clients) for m in neighbors[k]}
    if table is not None:
        sizes, restart = table
        points = [[start[k] for _ in range(sizes[k])] for k in range(clients)]
    for n in range(1, rounds + 1):
        new = np.zeros_like(x)
        for k in range(clients):
            force = penalty * len(neighbors[k]) * x[k] - sum(z[k, m] for m in neighbors[k])
            if table is not None and restart:
                points[k] = [x[k]] * sizes[k]
            phi = x[k].copy()
            for t in range(local_steps):
                batch = None if rows is None else rows[n - 1][k][t]
                if table is None:
                    g = gradient(k, phi) if batch is None else gradient(k, phi, batch)
                else:
                    table_mean = (
                        sum(gradient(k, points[k][j], [j]) for j in range(sizes[k])) / sizes[k]
                    )
                    differences = [
                        gradient(k, phi, [s]) - gradient(k, points[k][s], [s]) for s in batch
                    ]
                    g = sum(differences) / len(batch) + table_mean
                    for s in batch:
                        points[k][s] = phi.copy()
                phi = phi - step(n) * g - proximity * force
            new[k] = phi
        x = new
        messages = {(m, k): z[m, k] - 2 * penalty * x[m] for m, k in z}  # from m to k
        z = {(k, m): (z[k, m] - messages[m, k]) / 2 for k, m in z}
        history.append(x)
    return np.array(history)


# ProxSkip (Mishchenko et al. 2022) ---------------------------------------------------------------


def scaffnew(gradient, step, probability, coins, start):
    """Algorithm 2: ``[T, 1, D]``, the server's last average."""
    clients = len(start)
    x = start.copy()
    server = start.mean(axis=0)
    history = []
    h = np.zeros_like(x)
    for n, coin in enumerate(coins, 1):
        moved = np.array([x[k] - step(n) * (gradient(k, x[k]) - h[k]) for k in range(clients)])
        if coin:
            server = sum(moved) / clients
            for k in range(clients):
                h[k] = h[k] + probability / step(n) * (server - moved[k])
                x[k] = server
        else:
            x = moved
        history.append(server[None])
    return np.array(history)


def proxskip(gradient, weights, step, probability, coins, start):
    """Averages each client's own model and its mixture with neighbors."""
    clients = len(start)
    x = start.copy()
    history = []
    h = np.zeros_like(x)
    for n, coin in enumerate(coins, 1):
        moved = np.array([x[k] - step(n) * (gradient(k, x[k]) - h[k]) for k in range(clients)])
        x = (moved + mixed(weights, moved)) / 2 if coin else moved
        h = h + probability / step(n) * (x - moved)
        history.append(x)
    return np.array(history)


# Choco-SGD (Koloskova, Stich and Jaggi 2019) -----------------------------------------------------


def largest(vector, count):
    result = np.zeros_like(vector)
    for i in sorted(range(len(vector)), key=lambda i: -abs(vector[i]))[:count]:
        result[i] = vector[i]
    return result


def choco_sgd(gradient, weights, step, compress, consensus_step_size, rounds, start):
    """Algorithm 2, with a copy of every neighbor at every client."""
    clients = len(start)
    x = start.copy()
    history = []
    copies = [[start[m].copy() for m in range(clients)] for _ in range(clients)]
    for n in range(1, rounds + 1):
        half = np.array([x[k] - step(n) * gradient(k, x[k]) for k in range(clients)])
        messages = [compress(half[k] - copies[k][k]) for k in range(clients)]
        for k in range(clients):
            for m in range(clients):
                if m == k or weights[k, m]:
                    copies[k][m] = copies[k][m] + messages[m]
        x = half.copy()
        for k in range(clients):
            for m in range(clients):
                x[k] = x[k] + consensus_step_size * weights[k, m] * (copies[k][m] - copies[k][k])
        history.append(x)
    return np.array(history)


# Gossip (Boyd et al. 2006) -----------------------------------------------------------------------


def pairs_of(waiting):
    """``{(k, m): number}`` of the edges -> those whose number is the least at both ends."""
    return [
        edge
        for edge, number in waiting.items()
        if all(number <= other for e, other in waiting.items() if set(e) & set(edge))
    ]


def gossip_sgd(gradient, step, pairs, start, active=None):
    """``pairs[n - 1]`` meet in round ``n``; ``there[n - 1][k]`` says who moves at all."""
    clients = len(start)
    x = start.copy()
    history = []
    for n, meet in enumerate(pairs, 1):
        new = x.copy()
        for k in range(clients):
            if active is None or active[n - 1][k]:
                new[k] = x[k] - step(n) * gradient(k, x[k])
        for k, m in meet:
            new[k] = new[m] = (new[k] + new[m]) / 2
        x = new
        history.append(x)
    return np.array(history)


# Neighbors that are drawn (Rizk 2023, section 5.2) -----------------------------------------------


def sampled_diffusion(gradient, step, weights, draw, count, rounds, start):
    """``draw(n, distance)`` is ``(p, N)``: with which probabilities peers draw whom they hear in
    round ``n``, ``[K, K]``, and how often they did; ``distance[k, l]`` as ``l`` was heard last.
    """
    clients = len(start)
    x = start.copy()
    history = []
    distance = np.zeros((clients, clients))
    for n in range(1, rounds + 1):
        p, times = draw(n, distance)
        moved = np.array([x[k] - step(n) * gradient(k, x[k]) for k in range(clients)])
        x = moved.copy()
        for k in range(clients):
            for m in range(clients):
                if times[k, m]:
                    share = weights[k, m] * times[k, m] / (count * p[k, m])
                    x[k] += share * (moved[m] - moved[k])
                    distance[k, m] = np.linalg.norm(moved[m] - moved[k])
        history.append(x.copy())
    return np.array(history)


# Push-sum (Assran et al. 2019) -------------------------------------------------------------------


def sgp(gradient, shares, step, rounds, start):
    """Algorithm 1; ``shares[k, m]`` of what ``m`` has goes to ``k``."""
    clients = len(start)
    x = start.copy()
    history = []
    weight = np.ones(clients)
    z = start.copy()
    for n in range(1, rounds + 1):
        half = [x[k] - step(n) * gradient(k, z[k]) for k in range(clients)]
        x = np.zeros_like(x)
        before = weight
        weight = np.zeros(clients)
        for sender in range(clients):
            for k in range(clients):
                x[k] += shares[k, sender] * half[sender]
                weight[k] += shares[k, sender] * before[sender]
        z = x / weight[:, None]
        history.append(z)
    return np.array(history)


# Quasi-global momentum (Lin, Karimireddy, Stich and Jaggi 2021) -----------------------------------


def qg_dsgdm(gradient, weights, step, momentum, rounds, start):
    """Algorithm 1, DSGDm: ``[T, K, D]``."""
    clients = len(start)
    x = start.copy()
    m = np.zeros_like(start)
    history = []
    for n in range(1, rounds + 1):
        half = np.empty_like(x)
        for k in range(clients):
            half[k] = x[k] - step(n) * (momentum * m[k] + gradient(k, x[k]))
        x_new = mixed(weights, half)
        for k in range(clients):
            d = (x[k] - x_new[k]) / step(n)
            m[k] = momentum * m[k] + (1 - momentum) * d
        x = x_new
        history.append(x)
    return np.array(history)
