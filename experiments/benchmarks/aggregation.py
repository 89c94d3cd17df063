"""Robust aggregation: milliseconds to combine messages, in fljax and in NumPy, float32.

A server combines all messages, each peer the messages of its thirteen neighbors. "XLA's sort" is
fljax without its sorting network, which only CPUs use.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.machine import best_of, header
from fljax._core import sorting
from fljax.link.aggregation import Aggregator, GeometricMedian, Krum, Mean, Median, TrimmedMean

ATTACKERS = 3
TRIMMED = 0.2
#: Receivers, messages of each, numbers in a message.
SHAPES = ((1, 20, 7850), (1, 100, 10_000), (1, 1000, 1000), (50, 13, 64))


def trimmed_mean(x: np.ndarray) -> np.ndarray:
    cut = int(TRIMMED * x.shape[1] + 1e-9)
    return np.sort(x, axis=1)[:, cut : x.shape[1] - cut].mean(axis=1)


def geometric_median(x: np.ndarray) -> np.ndarray:
    rule = GeometricMedian()
    center = np.sort(x, axis=1)[:, (x.shape[1] - 1) // 2]  # the lower median, of equal weights
    for _ in range(rule.iterations):
        distance = np.linalg.norm(x - center[:, None], axis=2)
        weight = 1 / np.maximum(rule.smoothing, distance)
        center = np.einsum("rm,rmd->rd", weight / weight.sum(axis=1, keepdims=True), x)
    return center


def krum(x: np.ndarray) -> np.ndarray:
    square = (x**2).sum(axis=2)
    distances = square[:, :, None] + square[:, None] - 2 * x @ x.swapaxes(1, 2)
    nearest = np.sort(distances, axis=2)[:, :, 1 : x.shape[1] - ATTACKERS - 1]
    return x[np.arange(len(x)), nearest.sum(axis=2).argmin(axis=1)]


RULES: dict[str, tuple[Aggregator, Callable[[np.ndarray], np.ndarray]]] = {
    "mean": (Mean(), lambda x: x.mean(axis=1)),
    "median": (Median(), lambda x: np.median(x, axis=1)),
    "trimmed mean": (TrimmedMean(TRIMMED), trimmed_mean),
    "geometric median": (GeometricMedian(), geometric_median),
    "Krum": (Krum(ATTACKERS), krum),
}


def compiled(rule: Aggregator, arguments: tuple[Any, ...], exchanged: bool) -> Callable[..., Any]:
    """The rule's compiled program, with the sorting network or without."""
    few = sorting.MIN_ROWS
    sorting.MIN_ROWS = few if exchanged else np.inf
    try:
        return jax.jit(rule.combine).lower(*arguments).compile()
    finally:
        sorting.MIN_ROWS = few


def compare(shape: tuple[int, int, int]) -> list[str]:
    """A line for each rule."""
    x = np.random.default_rng(0).standard_normal(shape, np.float32) + 1
    arguments = (jnp.asarray(x), jnp.ones(shape[:2]), jnp.zeros((shape[0], shape[2])))
    lines = []
    for name, (rule, numpys) in RULES.items():
        ours, sorting = (compiled(rule, arguments, exchanged) for exchanged in (True, False))
        theirs = numpys(x)
        result = np.asarray(ours(*arguments))
        off = np.max(np.abs(result - theirs)) / np.max(np.abs(theirs))
        seconds = [
            best_of(lambda: jax.block_until_ready(ours(*arguments))),  # noqa: B023 (called at once)
            best_of(lambda: jax.block_until_ready(sorting(*arguments))),  # noqa: B023
            best_of(lambda: numpys(x)),  # noqa: B023
        ]
        times = "".join(f"{1e3 * second:13.3f}" for second in seconds)
        lines.append(f"{name:18s}{times}{seconds[2] / seconds[0]:9.1f}x{off:11.1e}")
    return lines


def main() -> None:
    print(header())
    for shape in SHAPES:
        receivers, messages, dim = shape
        print(f"\n{receivers} x {messages} messages of {dim} numbers")
        head = ("fljax", "XLA's sort", "NumPy")
        print(f"{'ms':18s}{''.join(f'{h:>13s}' for h in head)}{'fljax is':>10s}{'off':>11s}")
        for line in compare(shape):
            print(line, flush=True)


if __name__ == "__main__":
    main()
