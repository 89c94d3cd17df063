"""Clients with networks of several sizes or kinds, client by client: NumPy alone.

HeteroFL (Diao et al. 2021), FjORD (Horvath et al. 2021), FedMD (Li and Wang 2019), FedDF (Lin et
al. 2020), and FLoRA (Wang et al. 2024) on a single layer. Networks are those of two layers of
:mod:`tests.reference.readings`; the number of hidden units of each client's is ``hidden[k]``.
Participants, their rows, the widths that FjORD draws and the batches of public samples are
injected. A result has the models of every round.
"""

import dataclasses

import numpy as np

from tests.reference.network import parts
from tests.reference.readings import softmax, wrong_by


def narrow(net, hidden):
    """The same network with fewer hidden units, the first ones."""
    a, b, c, d = parts(net.shift, net.data[0][0].shape[1], net.hidden, net.classes)
    shift = np.concatenate([a[:, :hidden].ravel(), b[:hidden], c[:hidden].ravel(), d])
    return dataclasses.replace(net, hidden=hidden, shift=shift)


def places(net, hidden):
    """Where the numbers of a narrower network are in a model of the whole one."""
    numbers = np.arange(len(net.shift))
    a, b, c, d = parts(numbers, net.data[0][0].shape[1], net.hidden, net.classes)
    return np.concatenate([a[:, :hidden].ravel(), b[:hidden], c[:hidden].ravel(), d])


def holders_mean(server, sent, weights):
    """Each parameter's mean over those that have it: ``sent[k]`` is ``(places, numbers)``."""
    after = server.copy()
    for d in range(len(server)):
        total = weight = 0.0
        for k, (at, numbers) in sent.items():
            where = np.flatnonzero(at == d)
            if len(where):
                total += weights[k] * numbers[where[0]]
                weight += weights[k]
        if weight > 0:
            after[d] = total / weight
    return after


def heterofl(net, start, step, weights, visits, hidden):
    server = start
    history = []
    for n, participants in enumerate(visits, 1):
        sent = {}
        for k, steps in participants.items():
            own = narrow(net, hidden[k])
            at = places(net, hidden[k])
            w = server[at]
            for rows in steps:
                x, y = own.rows(k, rows)
                w = w - step(n) * own.back(w, x, wrong_by(own.logits(w, x), y))
            sent[k] = at, w
        server = holders_mean(server, sent, weights)
        history.append(server)
    return np.array(history)


def fjord(net, start, step, weights, visits, hidden, widths, drawn, distillation, temperature):
    """``drawn[n][k]``: which of the ``widths`` client ``k`` has in each step of a round."""
    server = start
    history = []
    for n, participants in enumerate(visits, 1):
        sent = {}
        for k, steps in participants.items():
            teacher = narrow(net, hidden[k])
            at = places(net, hidden[k])
            w = server.copy()
            for number, rows in enumerate(steps):
                width = widths[drawn[n - 1][k][number]]
                student = narrow(net, width)
                within = places(net, width)
                x, y = student.rows(k, rows)
                z = student.logits(w[within], x)
                taught = teacher.logits(w[at], x)
                imitation = [
                    (softmax(a / temperature) - softmax(b / temperature)) / temperature
                    for a, b in zip(z, taught, strict=True)
                ]
                out = (1 - distillation) * wrong_by(z, y) + distillation * np.stack(imitation)
                w[within] -= step(n) * student.back(w[within], x, out)
            sent[k] = at, w[at]
        server = holders_mean(server, sent, weights)
        history.append(server)
    return np.array(history)


def fedmd(nets, start, step, visits, public, chosen, batches, digest, distance):
    """``nets[k]`` is a client's network, ``start[k]`` its model. In round ``n`` the public samples
    are ``public[chosen[n]]``, and those of the steps on them ``batches[n]``.
    """
    models = [row.copy() for row in start]
    history = []
    for n, participants in enumerate(visits, 1):
        points = public[chosen[n - 1]]
        if participants:
            scores = [nets[k].logits(models[k], points) for k in participants]
            consensus = sum(scores) / len(scores)
        for k, steps in participants.items():
            net = nets[k]
            w = models[k]
            for rows in batches[n - 1]:
                difference = net.logits(w, points[rows]) - consensus[rows]
                out = np.sign(difference) if distance == "absolute" else 2 * difference
                w = w - digest(n) * net.back(w, points[rows], out / difference.shape[1])
            for rows in steps:
                x, y = net.rows(k, rows)
                w = w - step(n) * net.back(w, x, wrong_by(net.logits(w, x), y))
            models[k] = w
        history.append([row.copy() for row in models])
    return history


def feddf(nets, kinds, start, step, weights, visits, public, batches, rate, temperature):
    """``nets[g]`` is a network of the server, ``start[g]`` its model; client ``k`` has
    ``nets[kinds[k]]``.
    """
    server = [row.copy() for row in start]
    history = []
    for n, participants in enumerate(visits, 1):
        sent = {}
        for k, steps in participants.items():
            net = nets[kinds[k]]
            w = server[kinds[k]]
            for rows in steps:
                x, y = net.rows(k, rows)
                w = w - step(n) * net.back(w, x, wrong_by(net.logits(w, x), y))
            sent[k] = w
        if sent:
            for g in range(len(nets)):
                own = [k for k in sent if kinds[k] == g]
                if own:
                    total = sum(weights[k] for k in own)
                    server[g] = sum(weights[k] / total * sent[k] for k in own)
            for rows in batches[n - 1]:
                points = public[rows]
                taught = sum(nets[kinds[k]].logits(w, points) for k, w in sent.items()) / len(sent)
                for g, net in enumerate(nets):
                    out = [
                        (softmax(z / temperature) - softmax(t / temperature)) / temperature
                        for z, t in zip(net.logits(server[g], points), taught, strict=True)
                    ]
                    server[g] = server[g] - rate(n) * net.back(server[g], points, np.stack(out))
        history.append([row.copy() for row in server])
    return history


def flora(data, kernel, bias, scale, step, weights, visits, draws):
    """The layer's weights ``[P, C]`` of every round; ``draws[n][k]`` is the factor that client
    ``k`` begins with, ``[P, r]``.
    """
    history = []
    for n, participants in enumerate(visits, 1):
        products = {}
        for k, steps in participants.items():
            first = draws[n - 1][k].copy()
            second = np.zeros((first.shape[1], kernel.shape[1]))
            for rows in steps:
                x, y = data[k]
                x, y = (x, y) if rows is None else (x[rows], y[rows])
                z = x @ (kernel + scale * first @ second) + bias
                by_kernel = x.T @ wrong_by(z, y.astype(int)) / len(x)
                by_first = scale * by_kernel @ second.T
                by_second = scale * first.T @ by_kernel
                first = first - step(n) * by_first
                second = second - step(n) * by_second
            products[k] = first @ second
        if products:
            total = sum(weights[k] for k in products)
            kernel = kernel + scale * sum(weights[k] / total * p for k, p in products.items())
        history.append(kernel)
    return history
