"""What the headline figures share: clients that differ, and how a promise is read from curves."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from experiments.figure import Estimate, Measure, Studies
from experiments.measures import estimate, last, of_median, samples
from fljax import statistics
from fljax.problems import LeastSquares, Problem

METRIC = "normalized_error"

#: What "exact" is in double precision: curves end at -280 to -290 dB there.
EXACT = -200.0

#: Between which levels the first and the second stretch of a linear rate lie.
LEVELS = (0.0, -80.0, -160.0)


def unlike(
    key: Key[Array, ""],
    clients: int,
    samples: int,
    dim: int,
    spread: Float[Array, ""] | float = 1.0,
    scales: Float[Array, " dim"] | None = None,
) -> Problem:
    """Least squares of clients whose own models are ``spread`` apart from a common one.

    Args:
      key: consumed.
      clients: ``K``.
      samples: ``N`` of each client.
      dim: ``D``.
      spread: standard deviation of the clients' models around the common one, which has 1.
      scales: ``[D]``, standard deviations of the features; one by default.
    """
    k_truth, k_own, k_features, k_noise = jax.random.split(key, 4)
    truth = jax.random.normal(k_truth, (dim,))
    models = truth[None] + spread * jax.random.normal(k_own, (clients, dim))
    features = jax.random.normal(k_features, (clients, samples, dim))
    features = features if scales is None else features * scales[None, None]
    noise = 0.1 * jax.random.normal(k_noise, (clients, samples))
    return Problem(features, jnp.einsum("knd,kd->kn", features, models) + noise, LeastSquares())


def final(study: str, *methods: str, metric: str = METRIC) -> Measure:
    """The mean of the last record, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = last(studies[study])
        found = {name: samples(data, name, metric) for name in methods}
        return {name: estimate(statistics.decibels, of) for name, of in found.items()}

    return measure


def straightness(study: str, *methods: str, metric: str = METRIC) -> Measure:
    """Rounds of the second 80 dB over those of the first, of the median run: one at a linear rate,
    and growing without end at any that is slower.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[study]
        ratio = _ratio(data["round"].values)
        return {name: of_median(ratio, samples(data, name, metric), unit="") for name in methods}

    return measure


def _ratio(rounds: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def ratio(curves: np.ndarray) -> np.ndarray:
        decibels = statistics.decibels(curves)
        start, middle, end = (first_below(decibels, level, rounds) for level in LEVELS)
        return (end - middle) / (middle - start)

    return ratio


def first_below(curves: np.ndarray, level: float, rounds: np.ndarray) -> np.ndarray:
    """``[B]``: the round at which curves ``[B, rounds]`` come to a level, on the line between two
    records; NaN where they do not.
    """
    reached = curves <= level
    at = np.maximum(reached.argmax(axis=1), 1)
    rows = np.arange(len(curves))
    before, after = curves[rows, at - 1], curves[rows, at]
    share = np.clip((before - level) / (before - after), 0, 1)
    number = rounds[at - 1] + share * (rounds[at] - rounds[at - 1])
    return np.where(reached.any(axis=1), number, np.nan)
