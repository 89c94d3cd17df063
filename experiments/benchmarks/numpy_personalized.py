"""PGFL in vectorized NumPy, written with the care of the library: the rival of `personalized`.

Clients are sorted by cell once, so that a cell's sum is over a slice; systems are solved in the
space of a client's few samples; several seeds are stacked as one longer list of clients.
"""

from typing import NamedTuple

import numpy as np


class Setting(NamedTuple):
    """Figure 5.1(a): all clients take part, without noise."""

    servers: int
    per_server: int
    clusters: int
    samples: tuple[int, int]
    dim: int
    edges: int
    rounds: int
    penalty: float
    strength: float
    noise: float
    spread: float


def pgfl(setting: Setting, seeds: range, inter_cluster: float, single: bool, alone: bool):
    """``[seeds, rounds]`` NMSD of PGFL; of GFL (``single``), of ClusterFL (``alone``)."""
    rng = np.random.default_rng(seeds.start)
    real = np.float32
    count = len(seeds)
    clients = setting.servers * setting.per_server
    dim = setting.dim
    tasks = 1 if single else setting.clusters
    cells = setting.servers * tasks
    even = np.arange(clients) % setting.clusters
    cluster = np.stack([rng.permutation(even) for _ in seeds])  # [B, K]
    task = np.zeros_like(cluster) if single else cluster
    home = np.repeat(np.arange(setting.servers), setting.per_server)
    cell = home * tasks + task
    order = np.argsort(cell, axis=1, kind="stable")
    cell, cluster = (np.take_along_axis(a, order, 1) for a in (cell, cluster))

    least, most = setting.samples
    offset = 1 + rng.uniform(-setting.spread, setting.spread, (count, setting.clusters))
    truth = (offset[:, :, None] * rng.normal(size=(count, 1, dim))).astype(real)
    target = np.take_along_axis(truth, cluster[:, :, None], 1)  # [B, K, D]
    sizes = rng.integers(least, most + 1, (count, clients))
    weights = (np.arange(most) < sizes[..., None]) / sizes[..., None]
    features = rng.standard_normal((count, clients, most, dim), dtype=real)
    noise = np.sqrt(setting.noise) * rng.standard_normal((count, clients, most), dtype=real)
    responses = np.matmul(features, target[..., None])[..., 0] + noise
    root = np.sqrt(2 * weights).astype(real)
    # A client's system is (rows' rows + shift I) w = right. It has fewer samples than parameters,
    # so it is inverted in the space of samples (Woodbury).
    rows = root[..., None] * features  # [B, K, N, D]
    moment = np.matmul((root * responses)[..., None, :], rows)[..., 0, :]
    shift = setting.penalty + 2 * setting.strength / setting.per_server
    gram = np.matmul(rows, rows.swapaxes(-1, -2)) + shift * np.eye(most, dtype=real)
    inverse = np.linalg.inv(gram).astype(real)
    inner = np.matmul(inverse, rows)  # [B, K, N, D]

    averages = np.stack([_averages(rng, setting, alone) for _ in seeds]).astype(real)
    # Clients are sorted by cell, so that sums over cells are sums over slices (`reduceat`).
    everyone = (cell + cells * np.arange(count)[:, None]).ravel()
    present, starts, sums = np.unique(everyone, return_index=True, return_counts=True)
    size = (target**2).sum(-1)
    server = np.zeros((count * cells, dim), real)
    dual = np.zeros((count * clients, dim), real)
    rho = real(setting.penalty)
    result = np.empty((count, setting.rounds))
    rows, inner = (a.reshape(-1, most, dim) for a in (rows, inner))
    moment = moment.reshape(-1, dim)
    target = target.reshape(-1, dim)
    for n in range(setting.rounds):
        right = server[everyone]
        right *= rho
        right += dual
        right += moment
        weight = np.matmul(inner, right[..., None])
        model = right - np.matmul(weight.swapaxes(-1, -2), rows)[:, 0]
        model /= real(shift)
        message = model - dual / rho
        aggregate = server.copy()
        aggregate[present] = np.add.reduceat(message, starts, axis=0) / sums[:, None]
        mixed = np.matmul(averages, aggregate.reshape(count, setting.servers, -1))
        mixed = mixed.reshape(count * setting.servers, tasks, dim)
        if tasks > 1 and inter_cluster:
            share = real(inter_cluster)
            other_tasks = mixed.sum(1, keepdims=True) - mixed
            mixed = (1 - share) * mixed + share / (tasks - 1) * other_tasks
        server = mixed.reshape(-1, dim)
        dual += rho * (server[everyone] - model)
        squared_error = ((model - target) ** 2).sum(-1).reshape(count, clients)
        result[:, n] = (squared_error / size).mean(-1)
    return result


def _averages(rng, setting: Setting, alone: bool) -> np.ndarray:
    """Means over neighborhoods of a random connected graph."""
    adjacency = np.eye(setting.servers)
    if not alone:
        permuted = rng.permutation(setting.servers)
        pairs = [(permuted[i], permuted[rng.integers(i)]) for i in range(1, setting.servers)]
        near = np.triu(np.ones((setting.servers, setting.servers)), 1)
        for a, b in pairs:
            near[min(a, b), max(a, b)] = 0
        free = np.argwhere(near)
        pairs += list(free[rng.permutation(len(free))[: setting.edges - len(pairs)]])
        for a, b in pairs:
            adjacency[a, b] = adjacency[b, a] = 1
    return adjacency / adjacency.sum(1, keepdims=True)
