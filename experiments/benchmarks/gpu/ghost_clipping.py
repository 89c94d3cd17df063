"""The sum of clipped gradients of a batch, by fljax and by jax_privacy where it is installed.

fljax does not form the gradients of dense layers sample by sample (ghost clipping); jax_privacy
forms all of them. Same network, same batch, same model.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks import clipping
from experiments.benchmarks.gpu import cards, counts
from experiments.benchmarks.gpu.rows import Row
from fljax.problems import Model

NETWORK = "cnn 16-32, 64"
SAMPLES = 600
FEW = 6


def by_fljax(problem: Model, w: jax.Array) -> Any:
    """``[1, D]``, compiled: the sum over the samples divided by their number."""
    return jax.jit(lambda problem, w: problem.loss_gradient(w)).lower(problem, w).compile()


def by_jax_privacy(problem: Model) -> Callable[[jax.Array], Any]:
    """The same of ``[D]``."""
    import jax_privacy  # pyright: ignore[reportMissingImports]

    features, targets = problem.features[0], problem.targets[0].astype(jnp.int32)

    def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        scores = problem.architecture.evaluate(problem.parameters(w), (), x)
        return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(scores, y))

    clipped = jax_privacy.clipped_grad(
        loss, l2_clip_norm=clipping.CLIP, batch_argnums=(1, 2), normalize_by=len(targets)
    )

    @jax.jit
    def total(w: jax.Array) -> Any:
        with jax.default_matmul_precision("highest"):
            return clipped(w, features, targets)

    return total


def seconds_of(call: Callable[[], Any], most: float) -> float:
    """The mean time of a call, over a part of a second or more."""
    jax.block_until_ready(call())
    began = time.perf_counter()
    calls = 0
    while calls == 0 or time.perf_counter() - began < most:
        jax.block_until_ready(call())
        calls += 1
    return (time.perf_counter() - began) / calls


def measure(seconds: float, rehearse: bool) -> dict[str, Any]:
    samples = FEW if rehearse else SAMPLES
    plain = jax.tree.map(jnp.asarray, clipping.problem_of(NETWORK, samples))
    problem = plain.clipped(clipping.CLIP)
    w = jnp.asarray(plain.initial)[None]
    began = time.perf_counter()
    program = by_fljax(problem, w)
    compile_seconds = time.perf_counter() - began
    took = seconds_of(lambda: program(problem, w), min(2.0, seconds / 5))
    limits = counts.count(program.as_text())
    flops = counts.flops(lambda problem, w: problem.loss_gradient(w), problem, w)
    kind = jax.devices()[0].device_kind
    result = {
        "data": f"drawn images, a batch of {samples}",
        "precision": "float32",
        "parameters": problem.dim,
        "seconds": took,
        "compile_seconds": compile_seconds,
        "steps_per_second": 1 / took,
        "flops_per_round": flops,
        "bytes_per_round": limits.bytes,
        "kernels_per_step": limits.kernels,
        "callbacks": limits.callbacks,
        "roofline": cards.share(kind, took, flops, limits.bytes, "float32"),
    }
    if importlib.util.find_spec("jax_privacy") is None:
        return result | {"note": "jax_privacy is not installed"}
    theirs = by_jax_privacy(plain)
    value = np.asarray(theirs(w[0]))
    ours = np.asarray(program(problem, w))[0]
    return result | {
        "jax_privacy_seconds": seconds_of(lambda: theirs(w[0]), min(2.0, seconds / 5)),
        "differs_by": float(np.linalg.norm(value - ours) / np.linalg.norm(value)),
    }


ROWS: dict[str, Row] = {
    "ghost-clipping": Row(
        f"DP-SGD's sum of clipped gradients, {NETWORK}, batch of {SAMPLES}", 15, measure
    )
}
