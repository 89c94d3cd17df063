"""Choices of participants by speed and by a model's value on their data, no JAX.

The adaptive tiers of Chai et al. 2020 (Algorithm 2) and the guided selection of Lai et al. 2021
(Algorithm 1, with a constant preferred time). Random numbers are given: ``draw(weights)`` returns a
tier, and ``gumbel`` the numbers by which clients are drawn without replacement in proportion to
their weights: those with the largest ``log(weight) + gumbel``.
"""

import math

import numpy as np


class AdaptiveTiers:
    """The tier of one round after the other."""

    def __init__(self, tiers, interval, credits):
        self.probability = np.full(tiers, 1 / tiers)
        self.credits = list(credits)
        self.interval = interval
        self.before = None
        self.current = 0
        self.changes = 0

    def __call__(self, n, accuracies, draw):
        """``accuracies()`` has the numbers of all tiers before round ``n``."""
        if (n - 1) % self.interval == 0:
            now = accuracies()
            if n > 1 and now[self.current] <= self.before[self.current]:
                self.change(now)
            self.before = now
        affordable = np.where(np.array(self.credits) > 0, self.probability, 0.0)
        self.current = draw(affordable / affordable.sum())
        self.credits[self.current] -= 1
        return self.current

    def change(self, accuracies):
        self.changes += 1
        left = [t for t in range(len(self.credits)) if self.credits[t] > 0]
        n = len(left)
        self.probability = np.zeros(len(self.credits))
        for i, t in enumerate(sorted(left, key=lambda t: accuracies[t])):
            self.probability[t] = (n - i) / (n * (n + 1) / 2)


class Guided:
    """The participants of one round after the other."""

    def __init__(self, clients, count, preferred, penalty, exploration, decay, least, cutoff):
        self.clients = range(clients)
        self.count = count
        self.preferred = preferred
        self.penalty = penalty
        self.exploration = exploration
        self.decay = decay
        self.least = least
        self.cutoff = cutoff
        self.utility = {}
        self.last = {}
        self.seconds = {}

    def worth(self, n, tried):
        ascending = sorted(self.utility[k] for k in tried)
        most = ascending[min(math.floor(0.95 * len(ascending) + 1e-9), len(ascending) - 1)]
        spread = most - ascending[0] if most > ascending[0] else 1.0
        worth = {}
        for k in tried:
            worth[k] = (min(self.utility[k], most) - ascending[0]) / spread
            worth[k] += math.sqrt(0.1 * math.log(n) / self.last[k])
            if self.seconds[k] > self.preferred:
                worth[k] *= (self.preferred / self.seconds[k]) ** self.penalty
        return worth

    def __call__(self, n, available, expected, gumbel):
        """``expected`` seconds of each client; two sets of ``gumbel`` numbers."""
        tried = [k for k in self.clients if available[k] and k in self.last]
        untried = [k for k in self.clients if available[k] and k not in self.last]
        share = max(self.exploration * self.decay ** (n - 1), self.least)
        by_utility = math.floor((1 - share) * self.count + 1e-9)
        new = min(self.count - by_utility, len(untried))
        by_utility = min(self.count - new, len(tried))
        new = min(self.count - by_utility, len(untried))
        chosen = []
        if by_utility:
            worth = self.worth(n, tried)
            bound = self.cutoff * sorted(worth.values(), reverse=True)[by_utility - 1]
            eligible = [k for k in tried if worth[k] >= bound]
            score = {k: np.log(worth[k]) + gumbel[0][k] for k in eligible}
            chosen += sorted(eligible, key=lambda k: -score[k])[:by_utility]
        score = {k: np.log(1 / expected[k]) + gumbel[1][k] for k in untried}
        chosen += sorted(untried, key=lambda k: -score[k])[:new]
        return sorted(chosen)

    def told(self, n, k, losses, seconds):
        self.utility[k] = len(losses) * math.sqrt(np.mean(np.square(losses)))
        self.last[k] = n
        self.seconds[k] = seconds
