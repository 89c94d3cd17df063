"""Personalized learning with one server, client by client and message by message, no JAX.

Local training, Ditto (Li et al. 2021, Algorithm 1), pFedMe (Dinh et al. 2020, Algorithm 1), IFCA
(Ghosh et al. 2020, Algorithm 1) and federated averaging with fine-tuning (Collins et al. 2022).
Everything random is injected through a `World`; rounds count from 1, clients from 0; all batches
are full. Row ``n - 1`` of a result is the state after round ``n``.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.reference.nfl import prox


@dataclass(frozen=True)
class World:
    """The participants and the delays of messages; the same for every algorithm."""

    drawn: list  # [T] lists of clients that the server draws
    available: np.ndarray  # [T, K] bool
    delay: np.ndarray  # [T, K] int: of the message that k sends in round n; negative: lost

    @property
    def rounds(self):
        return len(self.drawn)

    def participants(self, n):
        return [int(k) for k in self.drawn[n - 1] if self.available[n - 1, k]]


class Run(NamedTuple):
    personal: np.ndarray  # [T, K, D]
    server: np.ndarray  # [T, D], or [T, Q, D]


class Mail:
    """Vectors on their way to the server, each with its weight."""

    def __init__(self, world):
        self.world = world
        self.sent = []

    def send(self, n, k, weight, vector):
        lag = int(self.world.delay[n - 1, k])
        if lag >= 0:
            self.sent.append((n + lag, weight, vector.copy()))

    def average(self, n, otherwise):
        """The weighted mean of what arrives in round ``n``, or the other where nothing does."""
        now = [(weight, vector) for at, weight, vector in self.sent if at == n]
        if not now:
            return otherwise
        return sum(weight * vector for weight, vector in now) / sum(weight for weight, _ in now)


def descent(objective, k, w, step, steps, attraction=0.0, center=0.0):
    for _ in range(steps):
        w = w - step * (objective.gradient(k, w) + attraction * (w - center))
    return w


def federated_round(objective, world, mail, n, server, step, epochs, weighting):
    """McMahan et al. 2017, Algorithm 1, with full batches."""
    for k in world.participants(n):
        weight = objective.counts[k] if weighting == "samples" else 1.0
        mail.send(n, k, weight, descent(objective, k, server, step(n), epochs))
    return mail.average(n, server)


def local_only(objective, world, step, steps=1):
    models = np.zeros((objective.clients, objective.dim))
    history = []
    for n in range(1, world.rounds + 1):
        for k in range(objective.clients):
            if world.available[n - 1, k]:
                models[k] = descent(objective, k, models[k], step(n), steps)
        history.append(models.copy())
    return Run(np.array(history), np.zeros((world.rounds, objective.dim)))


def ditto(
    objective,
    world,
    server_step_size,
    epochs,
    weighting,
    personal_step_size,
    attraction,
    personal_steps,
):
    server = np.zeros(objective.dim)
    mail = Mail(world)
    local = np.zeros((objective.clients, objective.dim))
    personal = []
    global_model = []
    for n in range(1, world.rounds + 1):
        for k in world.participants(n):
            local[k] = descent(
                objective, k, local[k], personal_step_size(n), personal_steps, attraction, server
            )
        server = federated_round(
            objective, world, mail, n, server, server_step_size, epochs, weighting
        )
        personal.append(local.copy())
        global_model.append(server)
    return Run(np.array(personal), np.array(global_model))


def fine_tuned(objective, world, server_step_size, epochs, weighting, step, steps):
    server = np.zeros(objective.dim)
    mail = Mail(world)
    personal = []
    global_model = []
    for n in range(1, world.rounds + 1):
        server = federated_round(
            objective, world, mail, n, server, server_step_size, epochs, weighting
        )
        clients = range(objective.clients)
        personal.append([descent(objective, k, server, step(n), steps) for k in clients])
        global_model.append(server)
    return Run(np.array(personal), np.array(global_model))


def pfedme(objective, world, step, attraction, local_rounds, mixing):
    server = np.zeros(objective.dim)
    mail = Mail(world)
    theta = np.zeros((objective.clients, objective.dim))
    personal = []
    global_model = []
    for n in range(1, world.rounds + 1):
        for k in range(objective.clients):
            if not world.available[n - 1, k]:
                continue
            w = server.copy()
            for _ in range(local_rounds):
                theta[k] = prox(objective, k, attraction, w)
                w = w - step(n) * attraction * (w - theta[k])
            if k in world.participants(n):
                mail.send(n, k, 1.0, w)
        server = (1 - mixing) * server + mixing * mail.average(n, server)
        personal.append(theta.copy())
        global_model.append(server)
    return Run(np.array(personal), np.array(global_model))


def ifca(objective, world, step, start, steps=1, average="models"):
    models = np.array(start, float)

    def estimate(k):
        return int(np.argmin([objective.value(k, model) for model in models]))

    personal = []
    cluster_models = []
    for n in range(1, world.rounds + 1):
        participants = world.participants(n)
        picked = {k: estimate(k) for k in participants}
        new = models.copy()
        for q in range(len(models)):
            members = [k for k in participants if picked[k] == q]
            if not members:
                continue
            if average == "models":
                new[q] = sum(descent(objective, k, models[q], step(n), steps) for k in members)
                new[q] /= len(members)
            else:
                total = sum(objective.gradient(k, models[q]) for k in members)
                new[q] = models[q] - step(n) / len(participants) * total
        models = new
        personal.append([models[estimate(k)] for k in range(objective.clients)])
        cluster_models.append(models.copy())
    return Run(np.array(personal), np.array(cluster_models))
