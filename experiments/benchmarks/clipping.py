"""Clipped gradients of samples of networks: milliseconds of one sum over a batch, float32.

"Formed" computes the gradient of every sample, a few at a time, as for networks with unknown
layers; "plain" is the gradient without a clip.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.machine import best_of, header
from fljax._core import clipped_sums
from fljax.models import Architecture
from fljax.problems import Model, Softmax

CLIP = 1.0
#: Networks, and the shape of a sample.
NETWORKS: dict[str, tuple[Architecture, tuple[int, ...]]] = {
    "64-1000-10": (fl.models.mlp(10, hidden=[1000]), (64,)),
    "784-128-60": (fl.models.mlp(60, hidden=[128]), (784,)),
    "cnn 16-32, 64": (fl.models.cnn(10, (16, 32), (64,)), (28, 28, 1)),
}
SAMPLES = 600


def problem_of(name: str, samples: int) -> Model:
    architecture, shape = NETWORKS[name]
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, samples, *shape), np.float32)
    targets = rng.integers(0, 10, (1, samples)).astype(np.float32)
    problem = Model(
        features, targets, Softmax(60 if "60" in name else 10), architecture=architecture
    )
    return problem.initialized(fl.random_key(1))


def compiled(problem: Model, w: jax.Array, formed: bool = False) -> Callable[[], Any]:
    """The sum's program, with outer products as such or formed."""

    def none(*_: Any) -> None:
        return None

    with mock.patch.object(
        clipped_sums,
        "_outer_product_factors",
        none if formed else clipped_sums._outer_product_factors,
    ):
        program = jax.jit(lambda problem, w: problem.loss_gradient(w)).lower(problem, w).compile()
    return lambda: jax.block_until_ready(program(problem, w))


def compare(name: str, samples: int = SAMPLES) -> str:
    """The line of a network."""
    plain = jax.tree.map(jnp.asarray, problem_of(name, samples))
    clipped = plain.clipped(CLIP)
    w = jnp.broadcast_to(jnp.asarray(plain.initial), (1, plain.dim))
    ours = compiled(clipped, w)
    formed = compiled(clipped, w, formed=True)
    off = float(jnp.linalg.norm(ours() - formed()) / jnp.linalg.norm(formed()))
    seconds = [best_of(call) for call in (ours, formed, compiled(plain, w))]
    times = "".join(f"{1e3 * second:11.2f}" for second in seconds)
    return f"{name:16s}{plain.dim:10d}{times}{seconds[1] / seconds[0]:9.1f}x{off:11.1e}"


def main() -> None:
    print(header())
    print(f"\n{SAMPLES} samples")
    head = "".join(f"{name:>11s}" for name in ("fljax", "formed", "plain"))
    print(f"{'ms':16s}{'numbers':>10s}{head}{'fljax is':>10s}{'off':>11s}")
    for name in NETWORKS:
        print(compare(name), flush=True)


if __name__ == "__main__":
    main()
