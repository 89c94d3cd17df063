"""What reads a network's logits or representation, client by client: NumPy alone, no gradients but
by the chain rule.

FedLC (Zhang et al. 2022), FedRS (Li and Zhan 2021), FedNTD (Lee et al. 2022), MOON (Li, He and
Song 2021), FedProto (Tan et al. 2022), FedDistill (Jeong et al. 2018), FedROD (Chen and Chao
2022), FML (Shen et al. 2020), CCVR (Luo et al. 2021), FedPHP (Li et al. 2021), FedPAC
(Xu, Tong and Huang 2023), FedAS (Yang, Huang and Ye 2024), GPFL (Zhang et al. 2023), FedKD (Wu
et al. 2022) and FedGen (Zhu, Hong and Zhou 2021).

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
    shift: np.ndarray  # added to a model's parameters

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


def averaging(net, start, step, weights, visits, gradient, after=lambda k, w: None):
    """The server's models, ``[T, D]``, with steps along ``gradient(k, w, x, y, server)``; a
    participant sends its last model.
    """
    server = start
    history = []
    for n, participants in enumerate(visits, 1):
        sent = {}
        for k, steps in participants.items():
            w = server
            for rows in steps:
                w = w - step(n) * gradient(k, w, *net.rows(k, rows), server)
            sent[k] = w
        for k, w in sent.items():
            after(k, w)
        if sent:
            total = sum(weights[k] for k in sent)
            server = sum(weights[k] / total * w for k, w in sent.items())
        history.append(server)
    return np.array(history)


def fedlc(net, start, step, weights, visits, calibration):
    def gradient(k, w, x, y, server):
        counts = net.counts(k)
        out = []
        for z, target in zip(net.logits(w, x), y, strict=True):
            # The classes that are there; all, where none has a margin.
            present = [c for c in range(net.classes) if counts[c] or calibration == 0]
            margin = [calibration * counts[c] ** -0.25 if calibration else 0.0 for c in present]
            out.append(np.zeros(net.classes))
            out[-1][present] = softmax(z[present] - np.array(margin))
            out[-1][target] -= 1
        return net.back(w, x, np.array(out))

    return averaging(net, start, step, weights, visits, gradient)


def fedrs(net, start, step, weights, visits, restriction):
    def gradient(k, w, x, y, server):
        scale = np.where(net.counts(k) > 0, 1.0, restriction)
        return net.back(w, x, scale * wrong_by(scale * net.logits(w, x), y))

    return averaging(net, start, step, weights, visits, gradient)


def fedntd(net, start, step, weights, visits, distillation, temperature):
    def gradient(k, w, x, y, server):
        z = net.logits(w, x)
        taught = net.logits(server, x)
        out = wrong_by(z, y)
        for n, target in enumerate(y):
            wrong = [c for c in range(net.classes) if c != target]
            student, old = (softmax(logits[n, wrong] / temperature) for logits in (z, taught))
            out[n, wrong] += distillation * (student - old) / temperature
        return net.back(w, x, out)

    return averaging(net, start, step, weights, visits, gradient)


def cosine_and_slope(a, b):
    """The cosine of two vectors, and its gradient by the first."""
    lengths = np.linalg.norm(a), np.linalg.norm(b)
    value = a @ b / (lengths[0] * lengths[1])
    return value, b / (lengths[0] * lengths[1]) - value * a / lengths[0] ** 2


def moon(net, start, step, weights, visits, contrast, temperature):
    last = [start] * net.clients

    def gradient(k, w, x, y, server):
        current, global_, before = (net.represent(model, x) for model in (w, server, last[k]))
        pulls = []
        for r, near, old in zip(current, global_, before, strict=True):
            (good, toward), (bad, away) = cosine_and_slope(r, near), cosine_and_slope(r, old)
            share = np.exp(bad / temperature) / (
                np.exp(good / temperature) + np.exp(bad / temperature)
            )
            pulls.append(contrast * share * (away - toward) / temperature)
        return net.back(w, x, wrong_by(net.logits(w, x), y), np.array(pulls))

    def remember(k, w):
        last[k] = w

    return averaging(net, start, step, weights, visits, gradient, remember)


def class_means(net, start, step, visits, attraction, of):
    """FedProto of ``"representation"``, FedDistill of ``"logits"``: ``[T, K, D]``."""
    says = {"representation": net.represent, "logits": net.logits}[of]
    models = [start] * net.clients
    means = {}
    history = []

    def gradient(w, x, y):
        out = wrong_by(net.logits(w, x), y)
        pulls = np.zeros_like(says(w, x))
        for n, (output, target) in enumerate(zip(says(w, x), y, strict=True)):
            if target in means:
                pulls[n] = 2 * attraction * (output - means[target]) / len(output)
        if of == "logits":
            return net.back(w, x, out + pulls)
        return net.back(w, x, out, pulls)

    for n, participants in enumerate(visits, 1):
        outputs = {}
        for k, steps in participants.items():
            w = models[k]
            for rows in steps:
                w = w - step(n) * gradient(w, *net.rows(k, rows))
            models[k] = w
            x, y = net.rows(k, None)
            for row, target in zip(says(w, x), y, strict=True):
                outputs.setdefault(int(target), []).append(row)
        means = means | {c: np.mean(row, axis=0) for c, row in outputs.items()}
        history.append(np.array(models))
    return np.array(history)


def mean_of(weights, models):
    total = sum(weights[k] for k in models)
    return sum(weights[k] / total * w for k, w in models.items())


def fedrod(net, start, step, weights, visits):
    """``[T, K, D]``: the server's model, each client's own head added to its head."""
    classes = net.classes
    hidden = net.hidden
    length = hidden * classes + classes
    server = start
    heads = [np.zeros(length) for _ in range(net.clients)]
    history = []
    for n, participants in enumerate(visits, 1):
        sent = {}
        for k, steps in participants.items():
            w = server
            head = heads[k]
            counts = net.counts(k)
            for rows in steps:
                x, y = net.rows(k, rows)
                z = net.logits(w, x)
                out = []
                by_head = np.zeros(length)
                matrix = head[:-classes].reshape(hidden, classes)
                offset = head[-classes:]
                for h, logits, target in zip(net.represent(w, x), z, y, strict=True):
                    odds = counts * np.exp(logits)
                    out.append(odds / odds.sum() - np.eye(classes)[target])
                    wrong = softmax(logits + h @ matrix + offset) - np.eye(classes)[target]
                    by_head = by_head + np.append(np.outer(h, wrong).ravel(), wrong) / len(y)
                w = w - step(n) * net.back(w, x, np.array(out))
                head = head - step(n) * by_head
            sent[k] = w
            heads[k] = head
        server = mean_of(weights, sent) if sent else server
        padded = [np.concatenate([np.zeros(len(start) - length), head]) for head in heads]
        history.append(np.array([server + head for head in padded]))
    return np.array(history)


def fml(net, start, step, weights, visits, supervision, shared_supervision):
    """The personal models ``[T, K, D]``, and the server's ``[T, D]``."""
    server = start
    models = [start] * net.clients
    personal = []
    common = []

    def gradient(w, teacher, share, x, y):
        z = net.logits(w, x)
        teacher_logits = net.logits(teacher, x)
        taught = np.array([softmax(a) - softmax(b) for a, b in zip(z, teacher_logits, strict=True)])
        return net.back(w, x, share * wrong_by(z, y) + (1 - share) * taught)

    for n, participants in enumerate(visits, 1):
        sent = {}
        for k, steps in participants.items():
            v = models[k]
            w = server
            for rows in steps:
                data = net.rows(k, rows)
                of_v = gradient(v, w, supervision, *data)
                of_w = gradient(w, v, shared_supervision, *data)
                v = v - step(n) * of_v
                w = w - step(n) * of_w
            models[k] = v
            sent[k] = w
        server = mean_of(weights, sent) if sent else server
        personal.append(np.array(models))
        common.append(server)
    return np.array(personal), np.array(common)


def fedphp(net, start, step, weights, visits, supervision, temperature, inheritance, warmup):
    """The private models ``[T, K, D]``, and the server's ``[T, D]``."""
    server = start
    models = [start] * net.clients
    times = [0] * net.clients
    personal = []
    common = []
    for n, participants in enumerate(visits, 1):
        sent = {}
        for k, steps in participants.items():
            w = server
            for rows in steps:
                x, y = net.rows(k, rows)
                z = net.logits(w, x) / temperature
                old_logits = net.logits(models[k], x) / temperature
                taught = np.array(
                    [softmax(a) - softmax(b) for a, b in zip(z, old_logits, strict=True)]
                )
                gradient = supervision * wrong_by(temperature * z, y)
                w = w - step(n) * net.back(
                    w, x, gradient + (1 - supervision) / temperature * taught
                )
            past = inheritance * min(times[k], warmup) / warmup
            sent[k], models[k] = w, past * models[k] + (1 - past) * w
            times[k] += 1
        server = mean_of(weights, sent) if sent else server
        personal.append(np.array(models))
        common.append(server)
    return np.array(personal), np.array(common)


def ccvr(net, start, step, weights, visits, rate, steps, draws):
    """The calibrated models ``[T, D]``; ``draws [T, C, M, R]`` are standard normal numbers."""
    plain = averaging(
        net,
        start,
        step,
        weights,
        visits,
        lambda k, w, x, y, _: net.back(w, x, wrong_by(net.logits(w, x), y)),
    )
    length = net.hidden * net.classes + net.classes
    history = []
    for n, (w, participants, normal) in enumerate(zip(plain, visits, draws, strict=True), 1):
        virtual = []
        for c in range(net.classes):
            representations = [
                net.represent(w, x[y == c])
                for x, y in (net.rows(k, None) for k in participants)
                if np.any(y == c)
            ]
            total = sum(len(r) for r in representations)
            if total < 2:
                continue
            mean = sum(len(r) / total * r.mean(axis=0) for r in representations)
            spread = -total / (total - 1) * np.outer(mean, mean)
            for r in representations:
                mean_outer = np.outer(r.mean(axis=0), r.mean(axis=0))
                within = np.cov(r.T) if len(r) > 1 else 0 * mean_outer
                spread = spread + (len(r) - 1) / (total - 1) * within
                spread = spread + len(r) / (total - 1) * mean_outer
            values, vectors = np.linalg.eigh(spread)
            values = np.where(values > 1e-12, values, 0)
            root = (vectors * np.sqrt(values)) @ vectors.T
            virtual += [(mean + root @ draw, c) for draw in normal[c]]
        if not participants and history:  # without participants the model stays
            history.append(history[-1])
            continue
        model = w.copy()
        for _ in range(steps):
            gradient = np.zeros(length)
            _, _, c, d = net.layers(model, net.data[0][0])
            for r, label in virtual:
                wrong = softmax(r @ c + d) - np.eye(net.classes)[label]
                gradient = gradient + np.append(np.outer(r, wrong).ravel(), wrong) / len(virtual)
            model[-length:] -= rate(n) * gradient
        history.append(model)
    return np.array(history)


def fedgen(net, start, step, weights, visits, rate, distillation, generator, draws):
    """``generator``: its two layers; ``draws``: of each round the server's steps, and of each
    client its own, pairs of uniform numbers and noise. Also the generators' numbers, ``[T, G]``.
    """
    server = start
    frequency = np.zeros(net.classes)
    models = []
    generators = []
    layers = [layer.copy() for layer in generator]

    def classes_of(uniform):
        below = np.cumsum(frequency)[:-1]
        return [int(np.sum(below <= u)) for u in uniform]

    def generated(noise, y):
        a, b, c, d = layers
        unit = np.concatenate([noise, np.eye(net.classes)[y]])
        inner = unit @ a + b
        return unit, inner, np.maximum(inner, 0) @ c + d

    for n, participants in enumerate(visits, 1):
        sent = {}
        total = np.zeros(net.classes)
        of_server, of_clients = draws[n - 1]
        any_labels = frequency.any()
        for k, steps in participants.items():
            w = server
            for i, rows in enumerate(steps):
                x, y = net.rows(k, rows)
                gradient = net.back(w, x, wrong_by(net.logits(w, x), y))
                _, _, c, d = net.layers(w, x)
                by_c = np.zeros_like(c)
                by_d = np.zeros_like(d)
                uniform, noise = of_clients[k][i]
                for draw, target in zip(noise, classes_of(uniform), strict=True):
                    h = generated(draw, target)[2]
                    wrong = softmax(h @ c + d) - np.eye(net.classes)[target]
                    by_c = by_c + np.outer(h, wrong)
                    by_d = by_d + wrong
                by_head = (
                    np.concatenate([by_c.ravel(), by_d]) * any_labels * distillation / len(noise)
                )
                gradient[-len(by_head) :] += by_head
                w = w - step(n) * gradient
            sent[k], total = w, total + net.counts(k)
        if sent:
            server = mean_of(weights, sent)
            frequency = total / total.sum()
            shares = {k: weights[k] / sum(weights[j] for j in sent) for k in sent}
            heads = {k: net.layers(w, net.data[k][0])[2:] for k, w in sent.items()}
            for uniform, noise in of_server:
                slopes = [np.zeros_like(layer) for layer in layers]
                for draw, target in zip(noise, classes_of(uniform), strict=True):
                    unit, inner, h = generated(draw, target)
                    logits = sum(shares[k] * (h @ c + d) for k, (c, d) in heads.items())
                    wrong = (softmax(logits) - np.eye(net.classes)[target]) / len(noise)
                    by_h = sum(shares[k] * (c @ wrong) for k, (c, _) in heads.items())
                    by_inner = (layers[2] @ by_h) * (inner > 0)
                    slopes[0] += np.outer(unit, by_inner)
                    slopes[1] += by_inner
                    slopes[2] += np.outer(np.maximum(inner, 0), by_h)
                    slopes[3] += by_h
                layers = [
                    a - rate(n) * gradient for a, gradient in zip(layers, slopes, strict=True)
                ]
        models.append(server)
        generators.append(np.concatenate([layer.ravel() for layer in layers]))
    return np.array(models), np.array(generators)


def truncated(net, row, energy):
    """An update of low rank, matrix by matrix, and how many numbers it has."""
    result = []
    numbers = 0
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
    size = len(start)
    width = net.hidden
    mentee = start
    mentors = [start] * net.clients
    rotations = [np.eye(width)] * net.clients
    missed = [0] * net.clients
    history = [[], [], [], []]

    def loss(w, x, y):
        return np.mean([-np.log(softmax(z)[t]) for z, t in zip(net.logits(w, x), y, strict=True)])

    for n, participants in enumerate(visits, 1):
        sent = {}
        up = 0
        down = 0
        for k, steps in participants.items():
            down += missed[k]
            missed[k] = 0
            v = mentors[k]
            w = mentee
            a = rotations[k]
            for rows in steps:
                x, y = net.rows(k, rows)
                share = 1 / (loss(v, x, y) + loss(w, x, y))
                of_v = net.logits(v, x)
                of_w = net.logits(w, x)
                p, q = (np.array([softmax(z) for z in of]) for of in (of_v, of_w))
                h = net.represent(v, x)
                g = net.represent(w, x)
                error = np.array([student - a @ other for student, other in zip(h, g, strict=True)])
                by_a = sum(np.outer(e, other) for e, other in zip(error, g, strict=True))
                by_h = 2 * share * error / width
                by_g = -2 * share * error @ a / width
                by_v = net.back(v, x, wrong_by(of_v, y) + share * (p - q), by_h)
                by_w = net.back(w, x, wrong_by(of_w, y) + share * (q - p), by_g)
                a = a + step(n) * 2 * share * by_a / (width * len(y))
                v = v - step(n) * by_v
                w = w - step(n) * by_w
            mentors[k] = v
            rotations[k] = a
            sent[k], numbers = truncated(net, w - mentee, energy(n))
            up += numbers
        if sent:
            change, numbers = truncated(net, mean_of(weights, sent), energy(n))
            mentee = mentee + change
            missed = [min(old + numbers, size) for old in missed]
        for record, now in zip(history, (np.array(mentors), mentee, up, down), strict=True):
            record.append(now)
    return [np.array(record) for record in history]


def on_simplex(matrix, linear):
    """The minimizer of a'Ma / 2 - b'a among shares, of all sets of positive ones."""
    size = len(linear)
    best = None
    value = np.inf
    for number in range(1, 2**size):
        support = [i for i in range(size) if number >> i & 1]
        system = np.ones((len(support) + 1, len(support) + 1))
        system[:-1, :-1] = matrix[np.ix_(support, support)]
        system[-1, -1] = 0.0
        shares = np.linalg.lstsq(system, np.append(linear[support], 1.0), rcond=None)[0][:-1]
        if shares.min() < 0:
            continue
        candidate = np.zeros(size)
        candidate[support] = shares
        objective = candidate @ matrix @ candidate / 2 - linear @ candidate
        if objective < value:
            best = candidate
            value = objective
    return best


def fedpac(net, start, step, weights, visits, attraction):
    """``[T, K, D]``; ``visits``: for each participant the steps of its head and of its body."""
    head = net.hidden * net.classes + net.classes
    body = start[:-head]
    heads = [start[-head:]] * net.clients
    centroids = {}
    history = []

    def moved(w, k, steps, part, size, attracted):
        for rows in steps:
            x, y = net.rows(k, rows)
            pulls = np.zeros((len(y), net.hidden))
            for n, (h, target) in enumerate(zip(net.represent(w, x), y, strict=True)):
                if attracted and target in centroids:
                    pulls[n] = 2 * attracted * (h - centroids[target]) / net.hidden
            gradient = net.back(w, x, wrong_by(net.logits(w, x), y), pulls)
            w = w.copy()
            w[part] -= size * gradient[part]
        return w

    for n, participants in enumerate(visits, 1):
        bodies = {}
        fitted = {}
        moments = {}
        variances = {}
        sums = {}
        for k, (first, second) in participants.items():
            w = np.concatenate([body, heads[k]])
            (x, y) = net.rows(k, None)
            read = net.represent(w, x)
            rows = [read[y == c].sum(axis=0) / len(y) for c in range(net.classes)]
            moments[k] = np.concatenate(rows)
            spread = np.mean([h @ h for h in read]) - moments[k] @ moments[k]
            variances[k] = spread / len(y)
            w = moved(w, k, first, slice(-head, None), step(n), 0.0)
            w = moved(w, k, second, slice(0, len(start) - head), step(n), attraction)
            bodies[k] = w[:-head]
            fitted[k] = w[-head:]
            for h, target in zip(net.represent(w, x), y, strict=True):
                sums.setdefault(int(target), []).append(h)
        present = list(participants)
        if present:
            body = mean_of(weights, bodies)
            matrix = np.array([[moments[i] @ moments[j] for j in present] for i in present])
            matrix += np.diag([variances[i] for i in present])
            for k in present:
                shares = on_simplex(matrix, np.array([moments[k] @ moments[j] for j in present]))
                heads[k] = sum(a * fitted[j] for a, j in zip(shares, present, strict=True))
        centroids = centroids | {c: np.mean(vectors, axis=0) for c, vectors in sums.items()}
        history.append(np.array([np.concatenate([body, classifier]) for classifier in heads]))
    return np.array(history)


def fedas(net, start, step, weights, visits, alignment_step):
    """The clients' models ``[T, K, D]``, and the server's bodies ``[T, body]``; ``visits``: for
    each participant the steps of its alignment, and of its training.
    """
    head = net.hidden * net.classes + net.classes
    server = start[:-head]
    models = [start] * net.clients
    history = []
    bodies = []
    for n, participants in enumerate(visits, 1):
        changes = []
        factors = []
        for k, (first, second) in participants.items():
            x, y = net.rows(k, None)
            own = net.represent(models[k], x)
            prototypes = {c: own[y == c].mean(axis=0) for c in set(y.tolist())}
            w = np.concatenate([server, models[k][-head:]])
            for rows in first:
                x, y = net.rows(k, rows)
                pulls = np.zeros((len(y), net.hidden))
                for i, (h, target) in enumerate(zip(net.represent(w, x), y, strict=True)):
                    # ``back`` is of the mean over the batch, and this one of a mean per class.
                    factor = len(y) / np.sum(y == target)
                    pulls[i] = factor * 2 * (h - prototypes[target]) / net.hidden
                w = w - alignment_step(n) * net.back(w, x, np.zeros((len(y), net.classes)), pulls)
            for rows in second:
                x, y = net.rows(k, rows)
                w = w - step(n) * net.back(w, x, wrong_by(net.logits(w, x), y))
            x, y = net.rows(k, None)
            trace = 0.0
            for i in range(len(y)):
                one = x[i : i + 1]
                gradient = net.back(w, one, wrong_by(net.logits(w, one), y[i : i + 1]))
                trace += gradient @ gradient / len(y)
            models[k] = w
            factors.append(weights[k] * trace)
            changes.append(w[:-head] - server)
        if factors:
            total = sum(f * change for f, change in zip(factors, changes, strict=True))
            server = server + total / sum(factors)
        history.append(np.array(models))
        bodies.append(server)
    return np.array(history), np.array(bodies)


def normalized_layer(layer, z):
    """A layer of the valve at ``z``, and a function from the slope by its values to the slopes by
    its bias, its matrix, its offset and its scale.
    """
    bias, matrix, offset, scale = layer
    before = z @ matrix + bias
    units = np.maximum(before, 0)
    deviation = np.sqrt(units.var() + 1e-5)
    normal = (units - units.mean()) / deviation

    def back(slope):
        by_normal = scale * slope
        by_units = by_normal - by_normal.mean() - normal * np.mean(by_normal * normal)
        by_before = by_units / deviation * (before > 0)
        return [by_before, np.outer(z, by_before), slope, slope * normal]

    return scale * normal + offset, back


def gpfl_parts(row, classes, width):
    """The embeddings, and the layers of the valve: of its factors, and of its offsets."""
    shapes = [(classes, width)] + 2 * [(width,), (width, width), (width,), (width,)]
    parts = []
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(row[:size].reshape(shape))
        row = row[size:]
    return parts[0], parts[1:5], parts[5:]


def gpfl_features(modules, read, z):
    """The features of each representation, and a function from the slopes by them to the slopes by
    the representations, and by the two layers.
    """
    factor, back_factor = normalized_layer(modules[1], z)
    offset, back_offset = normalized_layer(modules[2], z)
    before = [(factor + 1) * r + offset for r in read]
    features = [np.maximum(u, 0) for u in before]

    def back(slopes):
        slopes = [slope * (u > 0) for slope, u in zip(slopes, before, strict=True)]
        by_factor = sum(slope * r for slope, r in zip(slopes, read, strict=True))
        by_read = [slope * (factor + 1) for slope in slopes]
        return by_read, back_factor(by_factor) + back_offset(sum(slopes))

    return features, back


def gpfl_gradients(net, w, row, x, y, inputs, old, guidance, decay):
    """The slopes by the model and by the modules; ``inputs``: the global one, the personal one."""
    modules = gpfl_parts(row, net.classes, net.hidden)
    embeddings = modules[0]
    _, _, matrix, bias = net.layers(w, x)
    read = net.represent(w, x)
    count = len(y)
    guided, back_guided = gpfl_features(modules, read, inputs[0])
    personal, back_personal = gpfl_features(modules, read, inputs[1])
    by_guided = []
    by_personal = []
    by_matrix = np.zeros_like(matrix)
    by_bias = np.zeros_like(bias)
    by_embeddings = np.zeros_like(embeddings)
    for f, p, target in zip(guided, personal, y, strict=True):
        wrong = (softmax(p @ matrix + bias) - np.eye(net.classes)[target]) / count
        by_matrix += np.outer(p, wrong)
        by_bias += wrong
        by_personal.append(matrix @ wrong)
        cosines = np.zeros(net.classes)
        by_f = np.zeros((net.classes, net.hidden))
        by_e = np.zeros((net.classes, net.hidden))
        for c, e in enumerate(embeddings):
            if np.any(f) and np.any(e):
                cosines[c], by_f[c] = cosine_and_slope(f, e)
                by_e[c] = cosine_and_slope(e, f)[1]
        wrong = (softmax(cosines) - np.eye(net.classes)[target]) / count
        by_embeddings += wrong[:, None] * by_e
        difference = f - old[target]
        toward = guidance * difference / np.linalg.norm(difference) / count
        by_guided.append(wrong @ by_f + toward)
    read_guided, layers_guided = back_guided(by_guided)
    read_personal, layers_personal = back_personal(by_personal)
    pulls = count * (np.array(read_guided) + np.array(read_personal))
    of_model = net.back(w, x, np.zeros((count, net.classes)), pulls)
    length = by_matrix.size + by_bias.size
    of_model[-length:] = np.concatenate([by_matrix.ravel(), by_bias])
    layers = [a + b for a, b in zip(layers_guided, layers_personal, strict=True)]
    of_modules = np.concatenate([part.ravel() for part in [by_embeddings, *layers]])
    return of_model, of_modules + decay * row


def gpfl(net, start, modules, step, weights, visits, guidance, decay):
    """The models ``[T, K, D]``, and the embeddings with the valve, ``[T, S]``."""
    head = net.hidden * net.classes + net.classes
    body = start[:-head]
    heads = [start[-head:]] * net.clients
    history = [[], []]
    for n, participants in enumerate(visits, 1):
        sent = {}
        old = gpfl_parts(modules, net.classes, net.hidden)[0]
        for k, steps in participants.items():
            shares = net.counts(k) / net.counts(k).sum()
            inputs = old.mean(axis=0), shares @ old
            w = np.concatenate([body, heads[k]])
            row = modules
            for rows in steps:
                x, y = net.rows(k, rows)
                of_w, of_row = gpfl_gradients(net, w, row, x, y, inputs, old, guidance, decay)
                w = w - step(n) * of_w
                row = row - step(n) * of_row
            heads[k] = w[-head:]
            sent[k] = np.concatenate([w[:-head], row])
        if sent:
            body, modules = np.split(mean_of(weights, sent), [len(body)])
        history[0].append(np.array([np.concatenate([body, one]) for one in heads]))
        history[1].append(modules)
    return np.array(history[0]), np.array(history[1])


def gpfl_logits(net, w, row, x, shares):
    """A client's predictions."""
    modules = gpfl_parts(row, net.classes, net.hidden)
    features, _ = gpfl_features(modules, net.represent(w, x), shares @ modules[0])
    _, _, matrix, bias = net.layers(w, x)
    return np.array([f @ matrix + bias for f in features])
