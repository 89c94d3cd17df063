"""Robust aggregation and attacks written from their definitions, in loops, no JAX.

Each aggregator takes the list of the messages that one receiver heard (vectors), in the notation of
its paper. Yin et al. 2018, Definitions 1 and 2; Blanchard et al. 2017; Karimireddy et al. 2021;
Sun et al. 2019; Baruch et al. 2019; Xie et al. 2020.
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
        low, high = values[b], values[len(values) - 1 - b]
        return np.mean([low if v < low else high if v > high else v for v in values])

    return by_coordinate(rule, xs)


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


def krum(xs, f, m=1):
    """The mean of the ``m`` vectors of least score ``sum_{i -> j} |x_i - x_j|^2``."""
    n, scores = len(xs), []
    for i in range(n):
        others = sorted(sum((xs[i] - xs[j]) ** 2) for j in range(n) if j != i)
        scores.append(sum(others[: n - f - 2]))
    chosen = sorted(range(n), key=lambda i: scores[i])[:m]
    return mean([xs[i] for i in chosen])


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
