"""What reads a network's logits or representation, client by client: NumPy alone, no gradients but
by the chain rule.

FedLC (Zhang et al. 2022), FedRS (Li and Zhan 2021), FedNTD (Lee et al. 2022), MOON (Li, He and
Song 2021), FedProto (Tan et al. 2022), FedDistill (Jeong et al. 2018), FedROD (Chen and Chao
2022), FML (Shen et al. 2020), CCVR (Luo et al. 2021), FedPHP (Li et al. 2021), FedPAC
(Xu, Tong and Huang 2023), FedKD (Wu et al. 2022) and FedGen (Zhu, Hong and Zhou 2021).

A `Net` is the network of two layers of :mod:`tests.reference.network` with the clients' samples.
Who takes part and on which rows each step is, is injected: ``visits`` of a round is a dict of
participants, ``None`` for all rows. A result has the models of every round.
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.network import parts


@dataclass(frozen=True)
class Net:
    data: tuple  # of each client its samples and their classes
    hidden: int
    classes: int
    shift: np.ndarray  # what is added to a model's parameters

    @property
    def clients(self):
        return len(self.data)

    def rows(self, k, rows):
        x, y = self.data[k]
        x, y = (x, y) if rows is None else (x[rows], y[rows])
        return x, y.astype(int)

    def layers(self, w, x):
        return parts(w + self.shift, x.shape[1], self.hidden, self.classes)

    def represent(self, w, x):
        a, b, _, _ = self.layers(w, x)
        return np.stack([np.tanh(row @ a + b) for row in x])

    def logits(self, w, x):
        _, _, c, d = self.layers(w, x)
        return np.stack([h @ c + d for h in self.represent(w, x)])

    def back(self, w, x, by_logits, by_representation=None):
        """``[D]``, of the mean over samples, given the slope of each sample's loss."""
        _, _, c, _ = self.layers(w, x)
        result = np.zeros_like(w)
        for n, (row, h) in enumerate(zip(x, self.represent(w, x), strict=True)):
            by_h = c @ by_logits[n]
            if by_representation is not None:
                by_h = by_h + by_representation[n]
            inner = by_h * (1 - h**2)
            pieces = [np.outer(row, inner).ravel(), inner]
            pieces += [np.outer(h, by_logits[n]).ravel(), by_logits[n]]
            result = result + np.concatenate(pieces) / len(x)
        return result

    def counts(self, k):
        _, y = self.rows(k, None)
        return np.array([np.sum(y == c) for c in range(self.classes)])


def softmax(z):
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


def wrong_by(z, y):
    """The slope of the cross-entropy by each logit."""
    return np.stack([softmax(row) - np.eye(len(row))[t] for row, t in zip(z, y, strict=True)])


def averaging(net, start, step, weights, visits, slope, after=lambda k, w: None):
    """The server's models, ``[T, D]``, of steps along ``slope(k, w, x, y, server)``; a participant
    tells what it ends with.
    """
    server, history = start, []
    for n, each in enumerate(visits, 1):
        said = {}
        for k, turns in each.items():
            w = server
            for rows in turns:
                w = w - step(n) * slope(k, w, *net.rows(k, rows), server)
            said[k] = w
        for k, w in said.items():
            after(k, w)
        if said:
            total = sum(weights[k] for k in said)
            server = sum(weights[k] / total * w for k, w in said.items())
        history.append(server)
    return np.array(history)


def fedlc(net, start, step, weights, visits, calibration):
    def slope(k, w, x, y, server):
        counts, out = net.counts(k), []
        for z, target in zip(net.logits(w, x), y, strict=True):
            # The classes that are there; all, where none has a margin.
            some = [c for c in range(net.classes) if counts[c] or calibration == 0]
            margin = [calibration * counts[c] ** -0.25 if calibration else 0.0 for c in some]
            out.append(np.zeros(net.classes))
            out[-1][some] = softmax(z[some] - np.array(margin))
            out[-1][target] -= 1
        return net.back(w, x, np.array(out))

    return averaging(net, start, step, weights, visits, slope)


def fedrs(net, start, step, weights, visits, restriction):
    def slope(k, w, x, y, server):
        scale = np.where(net.counts(k) > 0, 1.0, restriction)
        return net.back(w, x, scale * wrong_by(scale * net.logits(w, x), y))

    return averaging(net, start, step, weights, visits, slope)


def fedntd(net, start, step, weights, visits, distillation, temperature):
    def slope(k, w, x, y, server):
        z, taught = net.logits(w, x), net.logits(server, x)
        out = wrong_by(z, y)
        for n, target in enumerate(y):
            others = [c for c in range(net.classes) if c != target]
            own, old = (softmax(logits[n, others] / temperature) for logits in (z, taught))
            out[n, others] += distillation * (own - old) / temperature
        return net.back(w, x, out)

    return averaging(net, start, step, weights, visits, slope)


def cosine_and_slope(a, b):
    """Of two vectors, and its slope by the first."""
    lengths = np.linalg.norm(a), np.linalg.norm(b)
    value = a @ b / (lengths[0] * lengths[1])
    return value, b / (lengths[0] * lengths[1]) - value * a / lengths[0] ** 2


def moon(net, start, step, weights, visits, contrast, temperature):
    last = [start] * net.clients

    def slope(k, w, x, y, server):
        here, there, before = (net.represent(model, x) for model in (w, server, last[k]))
        pulls = []
        for r, near, old in zip(here, there, before, strict=True):
            (good, toward), (bad, away) = cosine_and_slope(r, near), cosine_and_slope(r, old)
            share = np.exp(bad / temperature) / (
                np.exp(good / temperature) + np.exp(bad / temperature)
            )
            pulls.append(contrast * share * (away - toward) / temperature)
        return net.back(w, x, wrong_by(net.logits(w, x), y), np.array(pulls))

    def remember(k, w):
        last[k] = w

    return averaging(net, start, step, weights, visits, slope, remember)


def class_means(net, start, step, visits, attraction, of):
    """FedProto of ``"representation"``, FedDistill of ``"logits"``: ``[T, K, D]``."""
    says = {"representation": net.represent, "logits": net.logits}[of]
    models, means, history = [start] * net.clients, {}, []

    def slope(w, x, y):
        out = wrong_by(net.logits(w, x), y)
        pulls = np.zeros_like(says(w, x))
        for n, (said, target) in enumerate(zip(says(w, x), y, strict=True)):
            if target in means:
                pulls[n] = 2 * attraction * (said - means[target]) / len(said)
        if of == "logits":
            return net.back(w, x, out + pulls)
        return net.back(w, x, out, pulls)

    for n, each in enumerate(visits, 1):
        told = {}
        for k, turns in each.items():
            w = models[k]
            for rows in turns:
                w = w - step(n) * slope(w, *net.rows(k, rows))
            models[k] = w
            x, y = net.rows(k, None)
            for said, target in zip(says(w, x), y, strict=True):
                told.setdefault(int(target), []).append(said)
        means = means | {c: np.mean(said, axis=0) for c, said in told.items()}
        history.append(np.array(models))
    return np.array(history)


def mean_of(weights, said):
    total = sum(weights[k] for k in said)
    return sum(weights[k] / total * w for k, w in said.items())


def fedrod(net, start, step, weights, visits):
    """``[T, K, D]``: the server's model, each client's own head added to its head."""
    classes, hidden = net.classes, net.hidden
    length = hidden * classes + classes
    server, heads, history = start, [np.zeros(length) for _ in range(net.clients)], []
    for n, each in enumerate(visits, 1):
        said = {}
        for k, turns in each.items():
            w, head = server, heads[k]
            counts = net.counts(k)
            for rows in turns:
                x, y = net.rows(k, rows)
                z, out, by_head = net.logits(w, x), [], np.zeros(length)
                matrix, offset = head[:-classes].reshape(hidden, classes), head[-classes:]
                for h, logits, target in zip(net.represent(w, x), z, y, strict=True):
                    odds = counts * np.exp(logits)
                    out.append(odds / odds.sum() - np.eye(classes)[target])
                    wrong = softmax(logits + h @ matrix + offset) - np.eye(classes)[target]
                    by_head = by_head + np.append(np.outer(h, wrong).ravel(), wrong) / len(y)
                w, head = w - step(n) * net.back(w, x, np.array(out)), head - step(n) * by_head
            said[k], heads[k] = w, head
        server = mean_of(weights, said) if said else server
        padded = [np.concatenate([np.zeros(len(start) - length), head]) for head in heads]
        history.append(np.array([server + head for head in padded]))
    return np.array(history)


def fml(net, start, step, weights, visits, supervision, shared_supervision):
    """The personal models ``[T, K, D]``, and the server's ``[T, D]``."""
    server, models, personal, common = start, [start] * net.clients, [], []

    def slope(w, teacher, share, x, y):
        z, told = net.logits(w, x), net.logits(teacher, x)
        taught = np.array([softmax(a) - softmax(b) for a, b in zip(z, told, strict=True)])
        return net.back(w, x, share * wrong_by(z, y) + (1 - share) * taught)

    for n, each in enumerate(visits, 1):
        said = {}
        for k, turns in each.items():
            v, w = models[k], server
            for rows in turns:
                data = net.rows(k, rows)
                of_v = slope(v, w, supervision, *data)
                of_w = slope(w, v, shared_supervision, *data)
                v, w = v - step(n) * of_v, w - step(n) * of_w
            models[k], said[k] = v, w
        server = mean_of(weights, said) if said else server
        personal.append(np.array(models))
        common.append(server)
    return np.array(personal), np.array(common)


def fedphp(net, start, step, weights, visits, supervision, temperature, inheritance, warmup):
    """The private models ``[T, K, D]``, and the server's ``[T, D]``."""
    server, models, times = start, [start] * net.clients, [0] * net.clients
    personal, common = [], []
    for n, each in enumerate(visits, 1):
        said = {}
        for k, turns in each.items():
            w = server
            for rows in turns:
                x, y = net.rows(k, rows)
                z, told = net.logits(w, x) / temperature, net.logits(models[k], x) / temperature
                taught = np.array([softmax(a) - softmax(b) for a, b in zip(z, told, strict=True)])
                slope = supervision * wrong_by(temperature * z, y)
                w = w - step(n) * net.back(w, x, slope + (1 - supervision) / temperature * taught)
            past = inheritance * min(times[k], warmup) / warmup
            said[k], models[k] = w, past * models[k] + (1 - past) * w
            times[k] += 1
        server = mean_of(weights, said) if said else server
        personal.append(np.array(models))
        common.append(server)
    return np.array(personal), np.array(common)


def ccvr(net, start, step, weights, visits, rate, turns, draws):
    """The calibrated models ``[T, D]``; ``draws [T, C, M, R]`` are standard normal numbers."""
    plain = averaging(
        net,
        start,
        step,
        weights,
        visits,
        lambda k, w, x, y, _: net.back(w, x, wrong_by(net.logits(w, x), y)),
    )
    length, history = net.hidden * net.classes + net.classes, []
    for n, (w, each, normal) in enumerate(zip(plain, visits, draws, strict=True), 1):
        virtual = []
        for c in range(net.classes):
            own = [
                net.represent(w, x[y == c])
                for x, y in (net.rows(k, None) for k in each)
                if np.any(y == c)
            ]
            total = sum(len(r) for r in own)
            if total < 2:
                continue
            mean = sum(len(r) / total * r.mean(axis=0) for r in own)
            spread = -total / (total - 1) * np.outer(mean, mean)
            for r in own:
                around = np.outer(r.mean(axis=0), r.mean(axis=0))
                within = np.cov(r.T) if len(r) > 1 else 0 * around
                spread = spread + (len(r) - 1) / (total - 1) * within
                spread = spread + len(r) / (total - 1) * around
            values, vectors = np.linalg.eigh(spread)
            values = np.where(values > 1e-12, values, 0)
            root = (vectors * np.sqrt(values)) @ vectors.T
            virtual += [(mean + root @ draw, c) for draw in normal[c]]
        if not each and history:  # nobody was there, and the model stays
            history.append(history[-1])
            continue
        model = w.copy()
        for _ in range(turns):
            slope = np.zeros(length)
            _, _, c, d = net.layers(model, net.data[0][0])
            for r, label in virtual:
                wrong = softmax(r @ c + d) - np.eye(net.classes)[label]
                slope = slope + np.append(np.outer(r, wrong).ravel(), wrong) / len(virtual)
            model[-length:] -= rate(n) * slope
        history.append(model)
    return np.array(history)


def fedgen(net, start, step, weights, visits, rate, distillation, generator, draws):
    """``generator``: its two layers; ``draws``: of each round the server's steps, and of each
    client its own, pairs of uniform numbers and noise. Also the generators' numbers, ``[T, G]``.
    """
    server, frequency, models, generators = start, np.zeros(net.classes), [], []
    layers = [layer.copy() for layer in generator]

    def classes_of(uniform):
        below = np.cumsum(frequency)[:-1]
        return [int(np.sum(below <= one)) for one in uniform]

    def made(noise, y):
        a, b, c, d = layers
        unit = np.concatenate([noise, np.eye(net.classes)[y]])
        inner = unit @ a + b
        return unit, inner, np.maximum(inner, 0) @ c + d

    for n, each in enumerate(visits, 1):
        said, total = {}, np.zeros(net.classes)
        of_server, of_clients = draws[n - 1]
        known = frequency.any()
        for k, turns in each.items():
            w = server
            for turn, rows in enumerate(turns):
                x, y = net.rows(k, rows)
                slope = net.back(w, x, wrong_by(net.logits(w, x), y))
                _, _, c, d = net.layers(w, x)
                by_c, by_d = np.zeros_like(c), np.zeros_like(d)
                uniform, noise = of_clients[k][turn]
                for one, target in zip(noise, classes_of(uniform), strict=True):
                    h = made(one, target)[2]
                    wrong = softmax(h @ c + d) - np.eye(net.classes)[target]
                    by_c, by_d = by_c + np.outer(h, wrong), by_d + wrong
                by_head = np.concatenate([by_c.ravel(), by_d]) * known * distillation / len(noise)
                slope[-len(by_head) :] += by_head
                w = w - step(n) * slope
            said[k], total = w, total + net.counts(k)
        if said:
            server, frequency = mean_of(weights, said), total / total.sum()
            shares = {k: weights[k] / sum(weights[j] for j in said) for k in said}
            heads = {k: net.layers(w, net.data[k][0])[2:] for k, w in said.items()}
            for uniform, noise in of_server:
                slopes = [np.zeros_like(layer) for layer in layers]
                for one, target in zip(noise, classes_of(uniform), strict=True):
                    unit, inner, h = made(one, target)
                    logits = sum(shares[k] * (h @ c + d) for k, (c, d) in heads.items())
                    wrong = (softmax(logits) - np.eye(net.classes)[target]) / len(noise)
                    by_h = sum(shares[k] * (c @ wrong) for k, (c, _) in heads.items())
                    by_inner = (layers[2] @ by_h) * (inner > 0)
                    slopes[0] += np.outer(unit, by_inner)
                    slopes[1] += by_inner
                    slopes[2] += np.outer(np.maximum(inner, 0), by_h)
                    slopes[3] += by_h
                layers = [a - rate(n) * slope for a, slope in zip(layers, slopes, strict=True)]
        models.append(server)
        generators.append(np.concatenate([layer.ravel() for layer in layers]))
    return np.array(models), np.array(generators)


def truncated(net, row, energy):
    """An update of low rank, matrix by matrix, and how many numbers it has."""
    result, numbers = [], 0
    for part in parts(row, net.data[0][0].shape[1], net.hidden, net.classes):
        if part.ndim < 2:
            result.append(part)
            numbers += part.size
            continue
        left, values, right = np.linalg.svd(part, full_matrices=False)
        rank = 0
        while rank < len(values) and np.sum(values[:rank] ** 2) <= energy * np.sum(values**2):
            rank += 1
        rank = min(rank, int(np.sum(values > 0)))
        result.append((left[:, :rank] * values[:rank] @ right[:rank]).ravel())
        numbers += min(rank * (sum(part.shape) + 1), part.size)
    return np.concatenate(result), numbers


def fedkd(net, start, step, weights, visits, energy):
    """``energy(n)``. The mentors ``[T, K, D]``, the mentee ``[T, D]``, and the numbers up and down,
    ``[T]`` each.
    """
    size, width = len(start), net.hidden
    mentee, mentors, turn = start, [start] * net.clients, [np.eye(width)] * net.clients
    missed, history = [0] * net.clients, [[], [], [], []]

    def loss(w, x, y):
        return np.mean([-np.log(softmax(z)[t]) for z, t in zip(net.logits(w, x), y, strict=True)])

    for n, each in enumerate(visits, 1):
        said, up, down = {}, 0, 0
        for k, turns in each.items():
            down += missed[k]
            missed[k] = 0
            v, w, a = mentors[k], mentee, turn[k]
            for rows in turns:
                x, y = net.rows(k, rows)
                share = 1 / (loss(v, x, y) + loss(w, x, y))
                of_v, of_w = net.logits(v, x), net.logits(w, x)
                p, q = (np.array([softmax(z) for z in of]) for of in (of_v, of_w))
                h, g = net.represent(v, x), net.represent(w, x)
                error = np.array([one - a @ other for one, other in zip(h, g, strict=True)])
                by_a = sum(np.outer(e, other) for e, other in zip(error, g, strict=True))
                by_h, by_g = 2 * share * error / width, -2 * share * error @ a / width
                by_v = net.back(v, x, wrong_by(of_v, y) + share * (p - q), by_h)
                by_w = net.back(w, x, wrong_by(of_w, y) + share * (q - p), by_g)
                a = a + step(n) * 2 * share * by_a / (width * len(y))
                v, w = v - step(n) * by_v, w - step(n) * by_w
            mentors[k], turn[k] = v, a
            said[k], numbers = truncated(net, w - mentee, energy(n))
            up += numbers
        if said:
            change, numbers = truncated(net, mean_of(weights, said), energy(n))
            mentee = mentee + change
            missed = [min(old + numbers, size) for old in missed]
        for record, now in zip(history, (np.array(mentors), mentee, up, down), strict=True):
            record.append(now)
    return [np.array(record) for record in history]


def on_simplex(matrix, linear):
    """The minimizer of a'Ma / 2 - b'a among shares, of all sets of positive ones."""
    size, best, value = len(linear), None, np.inf
    for number in range(1, 2**size):
        some = [i for i in range(size) if number >> i & 1]
        system = np.ones((len(some) + 1, len(some) + 1))
        system[:-1, :-1], system[-1, -1] = matrix[np.ix_(some, some)], 0.0
        shares = np.linalg.lstsq(system, np.append(linear[some], 1.0), rcond=None)[0][:-1]
        if shares.min() < 0:
            continue
        whole = np.zeros(size)
        whole[some] = shares
        here = whole @ matrix @ whole / 2 - linear @ whole
        if here < value:
            best, value = whole, here
    return best


def fedpac(net, start, step, weights, visits, attraction):
    """``visits``: of each participant the steps of its head, those of its body. ``[T, K, D]``."""
    head = net.hidden * net.classes + net.classes
    body, heads = start[:-head], [start[-head:]] * net.clients
    centroids, history = {}, []

    def moved(w, k, turns, part, size, pull):
        for rows in turns:
            x, y = net.rows(k, rows)
            pulls = np.zeros((len(y), net.hidden))
            for n, (h, target) in enumerate(zip(net.represent(w, x), y, strict=True)):
                if pull and target in centroids:
                    pulls[n] = 2 * pull * (h - centroids[target]) / net.hidden
            slope = net.back(w, x, wrong_by(net.logits(w, x), y), pulls)
            w = w.copy()
            w[part] -= size * slope[part]
        return w

    for n, each in enumerate(visits, 1):
        bodies, fitted, moments, variances, sums = {}, {}, {}, {}, {}
        for k, (first, second) in each.items():
            w, (x, y) = np.concatenate([body, heads[k]]), net.rows(k, None)
            read = net.represent(w, x)
            rows = [read[y == c].sum(axis=0) / len(y) for c in range(net.classes)]
            moments[k] = np.concatenate(rows)
            spread = np.mean([h @ h for h in read]) - moments[k] @ moments[k]
            variances[k] = spread / len(y)
            w = moved(w, k, first, slice(-head, None), step(n), 0.0)
            w = moved(w, k, second, slice(0, len(start) - head), step(n), attraction)
            bodies[k], fitted[k] = w[:-head], w[-head:]
            for h, target in zip(net.represent(w, x), y, strict=True):
                sums.setdefault(int(target), []).append(h)
        some = list(each)
        if some:
            body = mean_of(weights, bodies)
            matrix = np.array([[moments[i] @ moments[j] for j in some] for i in some])
            matrix += np.diag([variances[i] for i in some])
            for k in some:
                shares = on_simplex(matrix, np.array([moments[k] @ moments[j] for j in some]))
                heads[k] = sum(a * fitted[j] for a, j in zip(shares, some, strict=True))
        centroids = centroids | {c: np.mean(said, axis=0) for c, said in sums.items()}
        history.append(np.array([np.concatenate([body, own]) for own in heads]))
    return np.array(history)
