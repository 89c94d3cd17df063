"""Partitions of rows by plain loops, as their papers describe them."""

import itertools
from collections import defaultdict

import numpy as np


def dirichlet(rng, labels, clients, concentration):
    """Yurochkin et al. 2019: the rows of each class, split in Dirichlet proportions."""
    parts = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, concentration))
        ends = (np.cumsum(shares) * len(rows)).astype(int)[:-1]
        for part, piece in zip(parts, np.split(rows, ends), strict=True):
            part.extend(piece)
    return parts


def equal_dirichlet(rng, labels, clients, concentration):
    """Hsu et al. 2019: one row after the other, of a class from the client's distribution."""
    classes = np.unique(labels)
    left = [list(rng.permutation(np.flatnonzero(labels == label))) for label in classes]
    prior = np.array([len(rows) for rows in left]) / len(labels)
    parts = []
    for k in range(clients):
        shares = rng.dirichlet(concentration * prior)
        size = len(labels) // clients + (k < len(labels) % clients)
        part = []
        for _ in range(size):
            available = shares * [len(rows) > 0 for rows in left]
            chosen = rng.choice(len(classes), p=available / available.sum())
            part.append(left[chosen].pop())
        parts.append(part)
    return parts


def shards(rng, labels, clients, per_client):
    """McMahan et al. 2017: rows sorted by label, cut into shards that are dealt at random."""
    rows = rng.permutation(len(labels))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    pieces = np.array_split(rows, clients * per_client)
    hands = rng.permutation(clients * per_client).reshape(clients, per_client)
    return [[row for shard in hand for row in pieces[shard]] for hand in hands]


def drawn_from_classes(share, size, left):
    """The exact distribution of the numbers of rows of each class that a client draws one by one,
    as a dict from these numbers to their probability.
    """
    states = {(0,) * len(left): 1.0}
    for _ in range(size):
        after = defaultdict(float)
        for taken, probability in states.items():
            weights = np.array(share) * (np.array(left) > taken)
            for chosen, weight in enumerate(weights / weights.sum()):
                if weight:
                    numbers = tuple(t + (c == chosen) for c, t in enumerate(taken))
                    after[numbers] += probability * weight
        states = after
    return dict(states)


def label_distance(parts, labels):
    """Half the absolute difference of each client's shares of labels from those of all rows,
    weighted by the clients' sizes.
    """
    total = 0.0
    for part, label in itertools.product(parts, np.unique(labels)):
        if len(part):
            difference = np.mean(labels[part] == label) - np.mean(labels == label)
            total += 0.5 * abs(difference) * len(part)
    return total / sum(map(len, parts))
