"""Personalized models, client by client and message by message, without JAX.

Per-FedAvg (Fallah et al. 2020, Algorithm 1), APFL (Deng et al. 2020, Algorithm 1), pFedMe by
gradient (Dinh et al. 2020, Algorithm 1), models shared in part: FedPer (Arivazhagan et al. 2019),
LG-FedAvg (Liang et al. 2020), FedBN (Li et al. 2021), all trained together, FedRep (Collins et al.
2021, Algorithm 1) and FedBABU (Oh et al. 2022, Algorithm 1); FedALA (Zhang et al. 2023), FedAMP
(Huang et al. 2021), SuPerFed (Hahn et al. 2022), FedFomo (Zhang et al. 2021), APPLE (Luo and Wu
2022), CFL (Sattler et al. 2021) and FedEM (Marfoq et al. 2021).

``gradient(k, w, rows)`` is client ``k``'s on some of its samples, ``None`` for all. ``world`` is
one of `tests.reference.personal`; ``work[n - 1][k]`` lists the samples of client ``k``'s steps in
round ``n``; ``counts[k]`` is its weight. Row ``n - 1`` of a result is the state after round ``n``.
"""

import itertools

import numpy as np

from tests.reference.personal import Mail, Run


def curvature(gradient, variant, offset, hessian):
    """``d(k, w, v, rows)``, which replaces the product of the Hessian and ``v``."""
    if variant == "first_order":
        return lambda k, w, v, rows: np.zeros_like(w)
    if variant == "exact":
        return lambda k, w, v, rows: hessian(k, w, rows) @ v

    def difference(k, w, v, rows):
        forward = gradient(k, w + offset * v, rows)
        behind = gradient(k, w - offset * v, rows)
        return (forward - behind) / (2 * offset)

    return difference


def per_fedavg(gradient, world, work, counts, start, step, personal_step_size, times, steps=1):
    """``times``: of :func:`curvature`; ``work`` has three sets of samples for each step."""
    server = start.copy()
    mail = Mail(world)
    models = []
    servers = []
    for n in range(1, world.rounds + 1):
        alpha = personal_step_size(n)
        for k in world.participants(n):
            w = server.copy()
            for first, second, third in work[n - 1][k]:
                adapted = w - alpha * gradient(k, w, first)
                direction = gradient(k, adapted, second)
                w = w - step(n) * (direction - alpha * times(k, w, direction, third))
            mail.send(n, k, counts[k], w)
        server = mail.average(n, server)
        personal = []
        for k in range(len(counts)):
            w = server.copy()
            for _ in range(steps):
                w = w - alpha * gradient(k, w, None)
            personal.append(w)
        models.append(personal)
        servers.append(server)
    return Run(np.array(models), np.array(servers))


def apfl(gradient, world, work, counts, start, step, mixing, adaptation=None):
    """Also returns the mixing of every client and round, ``[T, K]``."""
    clients = len(counts)
    server = start.copy()
    mail = Mail(world)
    personal = [start.copy() for _ in range(clients)]
    alpha = np.array(np.broadcast_to(mixing, clients))
    models = []
    servers = []
    mixings = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            w = server.copy()
            v = personal[k]
            if adaptation is not None:
                mixture = alpha[k] * v + (1 - alpha[k]) * w
                derivative = (v - w) @ gradient(k, mixture, work[n - 1][k][0])
                alpha[k] = min(max(alpha[k] - adaptation(n) * derivative, 0.0), 1.0)
            for rows in work[n - 1][k]:
                mixture = alpha[k] * v + (1 - alpha[k]) * w
                direction = gradient(k, mixture, rows)
                w = w - step(n) * gradient(k, w, rows)
                v = v - step(n) * alpha[k] * direction
            personal[k] = v
            mail.send(n, k, counts[k], w)
        server = mail.average(n, server)
        models.append([alpha[k] * personal[k] + (1 - alpha[k]) * server for k in range(clients)])
        servers.append(server)
        mixings.append(alpha.copy())
    return Run(np.array(models), np.array(servers)), np.array(mixings)


def pfedme(gradient, world, work, counts, start, step, attraction, personal_step, steps, mixing):
    """Dinh et al. 2020, Algorithm 1, whose personal models take gradient steps on a batch."""
    server = start.copy()
    mail = Mail(world)
    personal = [start.copy() for _ in counts]
    models = []
    servers = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            w = server.copy()
            theta = server.copy()
            for rows in work[n - 1][k]:
                for _ in range(steps):
                    direction = gradient(k, theta, rows) + attraction * (theta - w)
                    theta = theta - personal_step(n) * direction
                w = w - step(n) * attraction * (w - theta)
            personal[k] = theta
            mail.send(n, k, counts[k], w)
        server = (1 - mixing) * server + mixing * mail.average(n, server)
        models.append(list(personal))
        servers.append(server)
    return Run(np.array(models), np.array(servers))


def partial(gradient, world, work, counts, start, step, personal, heads=None):
    """All parameters together; or, with the ``heads``' own work, these before the others.

    ``personal``: the places of a client's own parameters; ``start``: ``[K, D]``.
    """
    shared = [i for i in range(start.shape[1]) if i not in personal]
    model_rows = [row.copy() for row in start]
    mail = Mail(world)
    server = start[:, shared].mean(axis=0)
    models = []
    servers = []

    def moved(k, w, places, n, rows):
        new = w.copy()
        new[places] -= step(n) * gradient(k, w, rows)[places]
        return new

    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            w = model_rows[k].copy()
            w[shared] = server
            for rows in [] if heads is None else heads[n - 1][k]:
                w = moved(k, w, personal, n, rows)
            for rows in work[n - 1][k]:
                w = moved(k, w, range(len(w)) if heads is None else shared, n, rows)
            model_rows[k] = w
            mail.send(n, k, counts[k], w[shared])
        server = mail.average(n, server)
        models.append([])
        for row in model_rows:
            now = row.copy()
            now[shared] = server
            models[-1].append(now)
        servers.append(server)
    return Run(np.array(models), np.array(servers))


def fedbabu(gradient, world, work, counts, start, step, head, tuning_step_size, steps=1):
    """``head``: the places of what stays at its ``start``, ``[K, D]``, until it is tuned."""
    body = [i for i in range(start.shape[1]) if i not in head]
    server = start[:, body].mean(axis=0)
    mail = Mail(world)
    models = []
    servers = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            w = start[k].copy()
            w[body] = server
            for rows in work[n - 1][k]:
                w[body] = w[body] - step(n) * gradient(k, w, rows)[body]
            mail.send(n, k, counts[k], w[body])
        server = mail.average(n, server)
        tuned = start.copy()
        for k in range(len(counts)):
            tuned[k][body] = server
            for _ in range(steps):
                tuned[k] = tuned[k] - tuning_step_size(n) * gradient(k, tuned[k], None)
        models.append(tuned)
        servers.append(server)
    return Run(np.array(models), np.array(servers))


def fedala(gradient, world, work, counts, start, step, blend_step_size, blend_steps, places):
    """``places``: the blended coordinates. Also returns the shares, ``[T, K, D]``."""
    personal = [row.copy() for row in start]
    shares = [np.ones(start.shape[1]) for _ in start]
    server = start.mean(axis=0)
    mail = Mail(world)
    models = []
    servers = []
    blends = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            for _ in range(blend_steps):
                w = personal[k] + (server - personal[k]) * shares[k]
                direction = (server - personal[k]) * gradient(k, w, None)
                for i in places:
                    shares[k][i] = min(
                        max(shares[k][i] - blend_step_size(n) * direction[i], 0.0), 1.0
                    )
            w = personal[k] + (server - personal[k]) * shares[k]
            for rows in work[n - 1][k]:
                w = w - step(n) * gradient(k, w, rows)
            personal[k] = w
            mail.send(n, k, counts[k], w)
        server = mail.average(n, server)
        models.append([row.copy() for row in personal])
        servers.append(server)
        blends.append([row.copy() for row in shares])
    return Run(np.array(models), np.array(servers)), np.array(blends)


def fedamp(gradient, world, work, start, step, attraction, attention, scale, arrives):
    """``arrives[n - 1][k]``: whether a participant's message reaches the server."""
    clients = len(start)
    personal = [row.copy() for row in start]
    received = [row.copy() for row in start]
    models = []
    for n in range(1, world.rounds + 1):
        alpha = attention(n)
        clouds = {}
        for k in world.participants(n):
            clouds[k] = received[k].copy()
            for other in range(clients):
                if other != k:
                    away = received[other] - received[k]
                    clouds[k] += alpha * np.exp(-(away @ away) / scale) / scale * away
        for k, cloud in clouds.items():
            w = personal[k].copy()
            for rows in work[n - 1][k]:
                w = w - step(n) * (gradient(k, w, rows) + attraction / alpha * (w - cloud))
            personal[k] = w
            if arrives[n - 1][k]:
                received[k] = w.copy()
        models.append([row.copy() for row in personal])
    return Run(np.array(models), np.zeros((world.rounds, start.shape[1])))


def superfed(gradient, world, work, counts, start, step, shares, attraction, angle, warmup, mixing):
    """``shares[n - 1][k]``: the number drawn for each step; ``start``: ``[K, D]``."""

    def slope_of_angle(a, b):
        lengths = np.linalg.norm(a), np.linalg.norm(b)
        if min(lengths) == 0:
            return np.zeros_like(a)
        cosine = a @ b / (lengths[0] * lengths[1])
        return 2 * cosine * (b / lengths[1] - cosine * a / lengths[0]) / lengths[0]

    local = [row.copy() for row in start]
    server = start.mean(axis=0)
    mail = Mail(world)
    models = []
    servers = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            f = server.copy()
            w = local[k].copy()
            for i, rows in enumerate(work[n - 1][k]):
                share = shares[n - 1][k][i] if n > warmup else 0.0
                direction = gradient(k, (1 - share) * f + share * w, rows)
                common = (1 - share) * direction + attraction * (f - server)
                personal = share * direction
                if n > warmup:
                    common = common + angle * slope_of_angle(f, w)
                    personal = personal + angle * slope_of_angle(w, f)
                f = f - step(n) * common
                w = w - step(n) * personal
            local[k] = w
            mail.send(n, k, counts[k], f)
        server = mail.average(n, server)
        models.append([(1 - mixing) * server + mixing * w for w in local])
        servers.append(server)
    return Run(np.array(models), np.array(servers))


def fedfomo(gradient, value, world, work, start, step, arrives, downloads=None, draws=None):
    """``value(k, w)``: what client ``k`` compares models by; ``draws[n - 1][k]``: an order of the
    clients, and whether ``k`` explores. Also the sums of the shares, ``[T, K, K]``.
    """
    clients = len(start)
    personal = [row.copy() for row in start]
    received = [row.copy() for row in start]
    affinity = np.zeros((clients, clients))
    models = []
    sums = []
    for n in range(1, world.rounds + 1):
        trained = {}
        for k in world.participants(n):
            w = personal[k].copy()
            for rows in work[n - 1][k]:
                w = w - step(n) * gradient(k, w, rows)
            trained[k] = w
        for k, w in trained.items():
            if arrives[n - 1][k]:
                received[k] = w
        for k, w in trained.items():
            candidates = [j for j in range(clients) if j != k]
            if downloads is not None:
                order, explores = draws[n - 1][k]
                candidates = [int(j) for j in order if j != k]
                if not explores:
                    candidates.sort(key=lambda j, k=k: -affinity[k, j])
                candidates = candidates[:downloads]
            gains = {}
            for number, model in [(k, w), *((j, received[j]) for j in candidates)]:
                away = np.linalg.norm(model - personal[k])
                gain = value(k, personal[k]) - value(k, model)
                if away > 0 and gain > 0:
                    gains[number] = gain / away, model - personal[k]
            total = sum(weight for weight, _ in gains.values())
            personal[k] = personal[k] + sum(
                weight / total * away for weight, away in gains.values()
            )
            for number, (weight, _) in gains.items():
                if number != k:
                    affinity[k, number] += weight / total
        models.append([row.copy() for row in personal])
        sums.append(affinity.copy())
    return Run(np.array(models), np.zeros((world.rounds, start.shape[1]))), np.array(sums)


def apple(gradient, world, work, counts, start, step, relating, attraction, annealing, arrives):
    """``relating``: the step of the relationship vectors. Also these, ``[T, K, K]``."""
    clients = len(start)
    even = np.array([count / sum(counts) for count in counts])
    core = [row.copy() for row in start]
    published = [row.copy() for row in start]
    relation = [even.copy() for _ in range(clients)]
    personal = [sum(even[j] * start[j] for j in range(clients)) for _ in range(clients)]
    models = []
    relations = []
    for n in range(1, world.rounds + 1):
        proximity = attraction * (1 + np.cos(np.pi * n / annealing)) / 2 if n < annealing else 0.0
        received = [row.copy() for row in published]
        for k in world.participants(n):
            c = core[k].copy()
            p = relation[k].copy()

            for rows in work[n - 1][k]:
                cores = [*received[:k], c, *received[k + 1 :]]
                direction = gradient(k, sum(p[j] * w for j, w in enumerate(cores)), rows)
                by_p = [direction @ w + proximity * (p[j] - even[j]) for j, w in enumerate(cores)]
                c = c - step(n) * p[k] * direction
                p = p - relating(n) * np.array(by_p)
            core[k] = c
            relation[k] = p
            cores = [*received[:k], c, *received[k + 1 :]]
            personal[k] = sum(p[j] * w for j, w in enumerate(cores))
            if arrives[n - 1][k]:
                published[k] = c.copy()
        models.append([row.copy() for row in personal])
        relations.append([row.copy() for row in relation])
    return Run(np.array(models), np.zeros((world.rounds, start.shape[1]))), np.array(relations)


def halves(similarity, members):
    """The two parts between which the largest similarity is least: all bipartitions are tried."""
    first, *others = members
    best = None
    for size in range(len(others)):
        for joined in itertools.combinations(others, size):
            one = [first, *joined]
            two = [k for k in others if k not in joined]
            across = max(similarity[k][m] for k in one for m in two)
            if best is None or across < best[0]:
                best = across, one, two
    return best[1:]


def cfl(gradient, world, work, counts, start, step, most, mean_threshold, client_threshold, warmup):
    """``most``: clusters; also returns the clusters of every round, lists of their members."""
    clients = len(counts)
    clusters = [list(range(clients))]
    models = [np.array(row) for row in start]
    history = []
    partitions = []
    for n in range(1, world.rounds + 1):
        changes = {}
        for k in world.participants(n):
            w = models[k].copy()
            for rows in work[n - 1][k]:
                w = w - step(n) * gradient(k, w, rows)
            changes[k] = w - models[k]

        def mean(members, changes=changes):
            heard = [k for k in members if k in changes]
            if not heard:
                return np.zeros_like(models[0])
            total = sum(counts[k] for k in heard)
            return sum(counts[k] * changes[k] for k in heard) / total

        def cosine(k, m, changes=changes):
            return changes[k] @ changes[m] / np.linalg.norm(changes[k]) / np.linalg.norm(changes[m])

        new = []
        room = most - len(clusters)
        for members in clusters:
            splits = n > warmup and room > 0 and len(members) > 2
            splits = splits and all(k in changes for k in members)
            splits = splits and np.linalg.norm(mean(members)) < mean_threshold
            if splits and max(np.linalg.norm(changes[k]) for k in members) > client_threshold:
                table = {k: {m: cosine(k, m) for m in members} for k in members}
                new.extend(halves(table, members))
                room -= 1
            else:
                new.append(members)
        clusters = new
        for members in clusters:
            moved = models[members[0]] + mean(members)
            for k in members:
                models[k] = moved
        history.append([model.copy() for model in models])
        partitions.append(sorted(map(sorted, clusters)))
    return Run(np.array(history), np.zeros((world.rounds, start.shape[1]))), partitions


def fedem(losses, gradient, world, work, counts, start, step):
    """``losses(k, w)``: of client ``k``'s samples; ``gradient(k, w, shares, rows)``: of the mean of
    its samples' losses times their shares; ``start``: the components. Also returns the weights of
    every round, ``[T, K, M]``.
    """
    components = np.array(start, float)
    weights = np.full((len(counts), len(components)), 1 / len(components))
    mail = Mail(world)
    history = []
    weight_history = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            likelihood = np.exp(-np.array([losses(k, theta) for theta in components]))
            joint = weights[k][:, None] * likelihood
            shares = joint / joint.sum(axis=0)
            weights[k] = shares.mean(axis=1)
            local = components.copy()
            for rows in work[n - 1][k]:
                for m in range(len(components)):
                    local[m] = local[m] - step(n) * gradient(k, local[m], shares[m], rows)
            mail.send(n, k, counts[k], local)
        components = mail.average(n, components)
        history.append([row @ components for row in weights])
        weight_history.append(weights.copy())
    return Run(np.array(history), np.array(weight_history))
