"""Compression at a server, with its errors corrected: client by client, no JAX.

Error feedback (Stich et al. 2018, Algorithm 1; Karimireddy et al. 2019, Algorithm 2), EF21 and
EF21-BC (Richtarik et al. 2021, Algorithm 2; Fatkhullin et al. 2021, Algorithms 4 and 5), DIANA
(Mishchenko et al. 2019, Algorithm 1), MARINA and PP-MARINA (Gorbunov et al. 2021, Algorithms 1 and
4), DASHA (Tyurin and Richtarik 2023, Algorithm 1), ADIANA (Li et al. 2020, Algorithm 1), TAMUNA
(Condat et al. 2023, Algorithm 1), PowerSGD (Vogels et al. 2019, Algorithms 1 and 2), CANITA (Li and
Richtarik 2021, Algorithm 1), FetchSGD (Rothchild et al. 2020, Algorithm 1).

All is injected through a `World`. Rounds count from 1, clients from 0; a result is the server's
model of every round, ``[T, D]``, and the clients' last vectors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class World:
    gradient: Callable  # (n, k, w) -> [D], in round n
    compress: Callable  # (n, k, v, m) -> [D], the m-th message of client k in round n
    start: np.ndarray  # [D]
    clients: int
    active: list  # [T] lists: the participants of each round
    lost: frozenset = frozenset()  # of pairs (n, k): messages that do not arrive

    def arrived(self, n, k):
        return (n, k) not in self.lost


def error_feedback(world, step):
    x = world.start
    memory = [np.zeros_like(x) for _ in range(world.clients)]
    history = []
    for n, active in enumerate(world.active, 1):
        arrived = []
        for k in active:
            wanted = memory[k] - step(n) * world.gradient(n, k, x)
            sent = world.compress(n, k, wanted, 1)
            memory[k] = wanted
            if world.arrived(n, k):
                memory[k] = wanted - sent
                arrived.append(sent)
        if arrived:
            x = x + sum(arrived) / len(arrived)
        history.append(x)
    return np.array(history), np.array(memory)


def ef21(world, step):
    x = world.start
    estimates = [np.zeros_like(x) for _ in range(world.clients)]
    history = []
    for n, active in enumerate(world.active, 1):
        for k in active:
            change = world.compress(n, k, world.gradient(n, k, x) - estimates[k], 1)
            if world.arrived(n, k):
                estimates[k] = estimates[k] + change
        x = x - step(n) * sum(estimates) / world.clients
        history.append(x)
    return np.array(history), np.array(estimates)


def ef21_bc(world, step, compress_down):
    """``compress_down(n, v)`` is the server's compressor."""
    x = world.start
    estimates = [np.zeros_like(x) for _ in range(world.clients)]
    direction = np.zeros_like(x)
    history = []
    for n in range(1, len(world.active) + 1):
        for k in range(world.clients):
            change = world.compress(n, k, world.gradient(n, k, x) - estimates[k], 1)
            if world.arrived(n, k):
                estimates[k] = estimates[k] + change
        direction = direction + compress_down(n, sum(estimates) / world.clients - direction)
        x = x - step(n) * direction
        history.append(x)
    return np.array(history), np.array(estimates)


def diana(world, step, memory_step, momentum=0.0):
    x = world.start
    shifts = [np.zeros_like(x) for _ in range(world.clients)]
    velocity = np.zeros_like(x)
    history = []
    for n, active in enumerate(world.active, 1):
        before = sum(shifts) / world.clients
        changes = []
        for k in active:
            change = world.compress(n, k, world.gradient(n, k, x) - shifts[k], 1)
            if world.arrived(n, k):
                shifts[k] = shifts[k] + memory_step * change
                changes.append(change)
        if changes:
            velocity = momentum * velocity + before + sum(changes) / len(changes)
            x = x - step(n) * velocity
        history.append(x)
    return np.array(history), np.array(shifts)


def marina(world, step, coins):
    """``coins[n - 1]``: whether round ``n`` has full gradients; the first one has."""
    x = world.start
    last = x
    estimate = np.zeros_like(x)
    history = []
    everyone = range(world.clients)
    for n, active in enumerate(world.active, 1):
        if n == 1 or coins[n - 1]:
            full = [world.gradient(n, k, x) for k in everyone if world.arrived(n, k)]
            estimate = sum(full) / len(full) if full else estimate
        else:
            changes = [
                world.compress(n, k, world.gradient(n, k, x) - world.gradient(n, k, last), 2)
                for k in active
                if world.arrived(n, k)
            ]
            estimate = estimate + (sum(changes) / len(changes) if changes else 0)
        last, x = x, x - step(n) * estimate
        history.append(x)
    return np.array(history), np.array([world.gradient(n, k, last) for k in everyone])


def dasha(world, step, momentum):
    x = world.start
    estimates = [np.zeros_like(x) for _ in range(world.clients)]
    gradients = [np.zeros_like(x) for _ in range(world.clients)]
    history = []
    for n in range(1, len(world.active) + 1):
        for k in range(world.clients):
            new = world.gradient(n, k, x)
            pull = momentum * (estimates[k] - gradients[k])
            message = world.compress(n, k, new - gradients[k] - pull, 1)
            if world.arrived(n, k):
                estimates[k] = estimates[k] + message
            gradients[k] = new
        x = x - step(n) * sum(estimates) / world.clients
        history.append(x)
    return np.array(history), np.array(estimates)


def adiana(world, step, convexity, probability, memory_step, coins):
    """``coins[n - 1]``: whether ``w`` becomes ``y`` in round ``n``."""
    y = z = w = world.start
    shifts = [np.zeros_like(y) for _ in range(world.clients)]
    everyone = range(world.clients)
    history = []
    for n in range(1, len(world.active) + 1):
        eta = step(n)
        theta = min(1 / 4, (eta * convexity / probability) ** 0.5)
        gamma = eta / (2 * (theta + eta * convexity))
        x = theta * z + w / 2 + (1 - theta - 1 / 2) * y
        g = sum(shifts) / world.clients
        new = []
        for k in everyone:
            change = world.compress(n, k, world.gradient(n, k, x) - shifts[k], 1)
            learned = world.compress(n, k, world.gradient(n, k, w) - shifts[k], 2)
            if world.arrived(n, k):
                g = g + change / world.clients
            new.append(shifts[k] + memory_step * learned * world.arrived(n, k))
        shifts = new
        if coins[n - 1]:
            w = y
        y = x - eta * g
        z = (1 - gamma * convexity) * z + gamma * convexity * x + gamma / eta * (y - x)
        history.append(y)
    return np.array(history), np.array(shifts)


def canita(world, step, share, probability, memory_step, coins):
    """``share(n)`` is theta; ``coins[n - 1]``: whether ``w`` becomes ``z`` in round ``n``. Messages
    of the first round are gradients.
    """
    x = w = world.start
    everyone = range(world.clients)
    shifts = [np.zeros_like(x) for _ in everyone]
    history = []
    for n in range(1, len(world.active) + 1):
        theta = share(n)
        y = theta * x + (1 - theta) * w
        if n == 1:
            for k in everyone:
                if world.arrived(n, k):
                    shifts[k] = world.gradient(n, k, y)
            g = sum(shifts) / world.clients
        else:
            g = sum(shifts) / world.clients
            new = []
            for k in everyone:
                change = world.compress(n, k, world.gradient(n, k, y) - shifts[k], 2)
                learned = world.compress(n, k, world.gradient(n, k, w) - shifts[k], 3)
                if world.arrived(n, k):
                    g = g + change / world.clients
                new.append(shifts[k] + memory_step * learned * world.arrived(n, k))
            shifts = new
        x = x - step(n) / theta * g
        if coins[n - 1]:
            w = theta * x + (1 - theta) * w
        history.append(w)
    return np.array(history), np.array(shifts)


def count_sketch(vector, cells, signs, columns):
    """The table: entry ``i`` is added to column ``cells[j][i]`` of row ``j``."""
    table = np.zeros((len(cells), columns))
    for j in range(len(cells)):
        for i in range(len(vector)):
            table[j, cells[j][i]] += signs[j][i] * vector[i]
    return table


def estimates_of(table, cells, signs):
    """Of each entry the median of the rows' estimates."""
    rows, dim = np.shape(cells)
    return np.array(
        [np.median([signs[j][i] * table[j, cells[j][i]] for j in range(rows)]) for i in range(dim)]
    )


def fetch_sgd(world, step, cells, signs, columns, count, momentum, zeroing):
    """The models, and the last table of errors, its rows one after the other."""
    x = world.start
    velocity = errors = np.zeros((len(cells), columns))
    history = []
    for n, active in enumerate(world.active, 1):
        received = [
            count_sketch(world.gradient(n, k, x), cells, signs, columns)
            for k in active
            if world.arrived(n, k)
        ]
        if received:
            velocity = momentum * velocity + sum(received) / len(received)
            errors = errors + step(n) * velocity
            estimate = estimates_of(errors, cells, signs)
            update = np.zeros_like(x)
            for i in sorted(range(len(x)), key=lambda i: -abs(estimate[i]))[:count]:
                update[i] = estimate[i]
            table = count_sketch(update, cells, signs, columns)
            if zeroing:
                velocity = np.where(table != 0, 0, velocity)
                errors = np.where(table != 0, 0, errors)
            else:
                errors = errors - table
            x = x - update
        history.append(x)
    return np.array(history), errors.reshape(-1)


def mask_of(column, order, sparsity, columns, dim):
    """The parameters of a participant: parameter d is in the ``sparsity`` columns that follow those
    of parameter d - 1 in a cycle; ``order`` says which column each participant has.
    """
    mask = np.zeros(dim, bool)
    next_column = 0
    for d in range(dim):
        ones = [(next_column + j) % columns for j in range(sparsity)]
        mask[d] = order[column] in ones
        next_column = (next_column + sparsity) % columns
    return mask


def tamuna(world, step, local_steps, sparsity, control_step, orders):
    """``orders[n - 1]``: the column of the pattern that each drawn client has; ``world.active``
    lists drawn clients, and absent ones among them as ``None``.
    """
    x = world.start
    controls = [np.zeros_like(x) for _ in range(world.clients)]
    history = []
    for n, active in enumerate(world.active, 1):
        received = {}
        for column, k in enumerate(active):
            if k is None:
                continue
            local = x
            for _ in range(local_steps):
                local = local - step(n) * (world.gradient(n, k, local) - controls[k])
            if world.arrived(n, k):
                mask = mask_of(column, orders[n - 1], sparsity, len(active), len(x))
                received[k] = local, mask
        for d in range(len(x)):
            values = [local[d] for local, mask in received.values() if mask[d]]
            if not values:
                continue
            x = np.where(np.arange(len(x)) == d, sum(values) / len(values), x)
        for k, (local, mask) in received.items():
            controls[k] = controls[k] + control_step / step(n) * mask * (x - local)
        history.append(x)
    return np.array(history), np.array(controls)


def orthonormalized(columns):
    """By Gram and Schmidt, column by column."""
    result = []
    for column in columns.T:
        for other in result:
            column = column - (other @ column) * other
        result.append(column / np.linalg.norm(column))
    return np.array(result).T


def power_sgd(world, step, shapes, rank, momentum, first):
    """``shapes``: of the parameters, in their order in a model; ``first``: the numbers of the first
    right factors, in this order.
    """
    x = world.start
    velocity = np.zeros_like(x)
    errors = [np.zeros_like(x) for _ in range(world.clients)]
    everyone = range(world.clients)
    factors = {}
    history = []
    for n in range(1, len(world.active) + 1):
        wanted = [world.gradient(n, k, x) + errors[k] for k in everyone]
        arrived = [k for k in everyone if world.arrived(n, k)]
        change = np.zeros_like(x)
        errors = [vector.copy() for vector in wanted]
        start = used = 0
        for number, shape in enumerate(shapes):
            size = int(np.prod(shape))
            part = slice(start, start + size)
            start += size
            if len(shape) == 1:
                if arrived:
                    change[part] = sum(wanted[k][part] for k in arrived) / len(arrived)
                for k in arrived:
                    errors[k][part] = 0
                continue
            if n == 1:
                columns = min(rank, *shape)
                count = shape[1] * columns
                factors[number] = first[used : used + count].reshape(shape[1], columns)
                used += count
            if not arrived:
                continue
            matrices = {k: wanted[k][part].reshape(shape) for k in arrived}
            left = sum(matrix @ factors[number] for matrix in matrices.values()) / len(arrived)
            left = orthonormalized(left)
            factors[number] = sum(matrix.T @ left for matrix in matrices.values()) / len(arrived)
            change[part] = (left @ factors[number].T).reshape(-1)
            for k in arrived:
                errors[k][part] = wanted[k][part] - change[part]
        if arrived:
            velocity = momentum * velocity + change
            x = x - step(n) * (change + velocity)
        history.append(x)
    return np.array(history), np.array(errors)
