"""PGFL in vectorized NumPy, written with the care of the library: the rival of `personalized`.

Clients are sorted by cell once, so that a cell's sum is a stretch; systems are solved among a
client's few samples; several seeds go side by side as one longer list of clients.
"""

from typing import NamedTuple

import numpy as np


class Setting(NamedTuple):
    """Figure 5.1(a): nobody is left out and nothing perturbed."""

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


def pgfl(given: Setting, seeds: range, inter_cluster: float, single: bool, alone: bool):
    """``[seeds, rounds]`` NMSD of PGFL; of GFL (``single``), of ClusterFL (``alone``)."""
    rng, real = np.random.default_rng(seeds.start), np.float32
    count, clients, dim = len(seeds), given.servers * given.per_server, given.dim
    tasks = 1 if single else given.clusters
    cells = given.servers * tasks
    even = np.arange(clients) % given.clusters
    cluster = np.stack([rng.permutation(even) for _ in seeds])  # [B, K]
    mine = np.zeros_like(cluster) if single else cluster
    home = np.repeat(np.arange(given.servers), given.per_server)
    cell = home * tasks + mine
    order = np.argsort(cell, axis=1, kind="stable")
    cell, cluster = (np.take_along_axis(a, order, 1) for a in (cell, cluster))

    least, most = given.samples
    offset = 1 + rng.uniform(-given.spread, given.spread, (count, given.clusters))
    truth = (offset[:, :, None] * rng.normal(size=(count, 1, dim))).astype(real)
    target = np.take_along_axis(truth, cluster[:, :, None], 1)  # [B, K, D]
    sizes = rng.integers(least, most + 1, (count, clients))
    weights = (np.arange(most) < sizes[..., None]) / sizes[..., None]
    features = rng.standard_normal((count, clients, most, dim), dtype=real)
    noise = np.sqrt(given.noise) * rng.standard_normal((count, clients, most), dtype=real)
    responses = np.matmul(features, target[..., None])[..., 0] + noise
    root = np.sqrt(2 * weights).astype(real)
    rows = root[..., None] * features  # [B, K, N, D]
    moment = np.matmul((root * responses)[..., None, :], rows)[..., 0, :]
    shift = given.penalty + 2 * given.strength / given.per_server
    gram = np.matmul(rows, rows.swapaxes(-1, -2)) + shift * np.eye(most, dtype=real)
    inverse = np.linalg.inv(gram).astype(real)
    inner = np.matmul(inverse, rows)  # [B, K, N, D]

    averages = np.stack([_averages(rng, given, alone) for _ in seeds]).astype(real)
    everyone = (cell + cells * np.arange(count)[:, None]).ravel()
    present, starts, sums = np.unique(everyone, return_index=True, return_counts=True)
    size = (target**2).sum(-1)
    server = np.zeros((count * cells, dim), real)
    dual = np.zeros((count * clients, dim), real)
    rho, result = real(given.penalty), np.empty((count, given.rounds))
    rows, inner = (a.reshape(-1, most, dim) for a in (rows, inner))
    moment, target = moment.reshape(-1, dim), target.reshape(-1, dim)
    for n in range(given.rounds):
        right = server[everyone]
        right *= rho
        right += dual
        right += moment
        weight = np.matmul(inner, right[..., None])
        model = right - np.matmul(weight.swapaxes(-1, -2), rows)[:, 0]
        model /= real(shift)
        heard = model - dual / rho
        aggregate = server.copy()
        aggregate[present] = np.add.reduceat(heard, starts, axis=0) / sums[:, None]
        around = np.matmul(averages, aggregate.reshape(count, given.servers, -1))
        around = around.reshape(count * given.servers, tasks, dim)
        if tasks > 1 and inter_cluster:
            share = real(inter_cluster)
            others = around.sum(1, keepdims=True) - around
            around = (1 - share) * around + share / (tasks - 1) * others
        server = around.reshape(-1, dim)
        dual += rho * (server[everyone] - model)
        apart = ((model - target) ** 2).sum(-1).reshape(count, clients)
        result[:, n] = (apart / size).mean(-1)
    return result


def _averages(rng, given: Setting, alone: bool) -> np.ndarray:
    """Means over neighborhoods of a random connected graph."""
    adjacency = np.eye(given.servers)
    if not alone:
        place = rng.permutation(given.servers)
        pairs = [(place[i], place[rng.integers(i)]) for i in range(1, given.servers)]
        near = np.triu(np.ones((given.servers, given.servers)), 1)
        for a, b in pairs:
            near[min(a, b), max(a, b)] = 0
        free = np.argwhere(near)
        pairs += list(free[rng.permutation(len(free))[: given.edges - len(pairs)]])
        for a, b in pairs:
            adjacency[a, b] = adjacency[b, a] = 1
    return adjacency / adjacency.sum(1, keepdims=True)
