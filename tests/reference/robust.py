"""Robust aggregation and attacks written from their definitions, in loops, no JAX.

Each aggregator takes the list of the messages that one receiver heard (vectors), in the notation of
its paper. Yin et al. 2018, Definitions 1 and 2; Blanchard et al. 2017; Chen, Su and Xu 2017; El
Mhamdi et al. 2018; Cao et al. 2021; Karimireddy et al. 2021; Sun et al. 2019; Baruch et al. 2019;
Xie et al. 2020; Jung 2025, (188) and (189).
"""

import math

import numpy as np
from scipy import optimize, stats


def by_coordinate(rule, xs):
    return np.array([rule(sorted(float(x[k]) for x in xs)) for k in range(len(xs[0]))])


def mean(xs):
    return sum(xs) / len(xs)


def weighted_mean(xs, weights):
    total = np.zeros_like(xs[0])
    for x, w in zip(xs, weights, strict=True):
        total = total + w * x
    return total / sum(weights)


def median(xs):
    def rule(values):
        n = len(values)
        return values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2

    return by_coordinate(rule, xs)


def part(share, n):
    """``floor(share n)`` of decimal shares."""
    return math.floor(round(share * n, 9))


def trimmed_mean(xs, b):
    return by_coordinate(lambda values: np.mean(values[b : len(values) - b]), xs)


def winsorized_mean(xs, b):
    def rule(values):
        low = values[b]
        high = values[len(values) - 1 - b]
        return np.mean([low if v < low else high if v > high else v for v in values])

    return by_coordinate(rule, xs)


def clipped_by_weight(xs, weights, b):
    """(188) with thresholds from order statistics, of unequal weights."""
    result = []
    for k in range(len(xs[0])):
        values = sorted(float(x[k]) for x in xs)
        low = values[b]
        high = values[len(values) - 1 - b]
        total = sum(w * min(max(x[k], low), high) for x, w in zip(xs, weights, strict=True))
        result.append(total / sum(weights))
    return np.array(result)


def trimmed_by_weight(xs, weights, b):
    """(189), divided by the weight that is kept."""
    result = []
    for k in range(len(xs[0])):
        values = sorted(float(x[k]) for x in xs)
        low = values[b]
        high = values[len(values) - 1 - b]
        retained = [(w, x[k]) for x, w in zip(xs, weights, strict=True) if low <= x[k] <= high]
        result.append(sum(w * x for w, x in retained) / sum(w for w, _ in retained))
    return np.array(result)


def total_distance(v, xs, weights):
    return sum(w * math.dist(x, v) for x, w in zip(xs, weights, strict=True))


def geometric_median(xs, weights):
    """The minimizer, by a simplex that is started again and again where it stopped."""
    best = weighted_mean(xs, weights)
    tolerance = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000}
    for _ in range(4):
        best = optimize.minimize(
            total_distance, best, (xs, weights), method="Nelder-Mead", options=tolerance
        ).x
    return best


def median_of_means(xs, groups, rule):
    """Consecutive groups, whose sizes differ by one at most; the rule is of their means."""
    n = len(xs)
    groups = min(groups, len(xs))
    members = [[x for i, x in enumerate(xs) if i * groups // n == g] for g in range(groups)]
    return rule([mean(group) for group in members])


def krum_order(xs, f, at_least=1):
    """Numbers of the vectors by their score ``sum_{i -> j} |x_i - x_j|^2``."""
    n = len(xs)
    scores = []
    for i in range(n):
        distances = sorted(sum((xs[i] - xs[j]) ** 2) for j in range(n) if j != i)
        scores.append(sum(distances[: max(n - f - 2, min(n - 1, at_least))]))
    return sorted(range(n), key=lambda i: scores[i])


def krum(xs, f, m=1):
    """The mean of the ``m`` vectors of least score."""
    return mean([xs[i] for i in krum_order(xs, f)[:m]])


def bulyan(xs, f):
    left = list(xs)
    chosen = []
    theta = max(len(xs) - 2 * f, 1)
    while len(chosen) < theta:
        chosen.append(left.pop(krum_order(left, f, 2)[0]))

    def rule(values):
        middle = (values[(theta - 1) // 2] + values[theta // 2]) / 2
        return np.mean(sorted(values, key=lambda v: abs(v - middle))[: max(theta - 2 * f, 1)])

    return by_coordinate(rule, chosen)


def fltrust(updates, trusted):
    """The update from the clients' updates and the trusted one."""
    total = np.zeros_like(trusted)
    trust = 0.0
    for update in updates:
        cosine = update @ trusted / math.sqrt(sum(update**2) * sum(trusted**2))
        if cosine > 0:
            trust += cosine
            total = total + cosine * update * math.sqrt(sum(trusted**2) / sum(update**2))
    return total / trust if trust else total


def clip(v, radius):
    length = math.sqrt(sum(v**2))
    return v if length <= radius else v * radius / length


def centered_clipping(xs, v, radius, iterations):
    for _ in range(iterations):
        v = v + sum(clip(x - v, radius) for x in xs) / len(xs)
    return v


def norm_clipping(xs, weights, v, radius):
    return v + weighted_mean([clip(x - v, radius) for x in xs], weights)


def hidden_deviations(n, m):
    """``z`` of ``n`` senders with ``m`` attackers among them."""
    s = max(math.floor(n / 2 + 1) - m, 1)
    return max(stats.norm.ppf((n - m - s) / (n - m)), 0)


def a_little_is_enough(honest, z):
    mu = mean(honest)
    variance = sum((x - mu) ** 2 for x in honest) / len(honest)
    return mu - z * np.sqrt(variance)


def inner_product_manipulation(changes, scale):
    return -scale * mean(changes)
