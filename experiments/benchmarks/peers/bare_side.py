"""The networks as one would write them in JAX for nothing else: no library, one program a run.

A round is compiled with everything in it (drawn participants, shuffled batches, local steps,
average); clients run one after the other and rounds are a scan. It is the limit that fljax is held
against, and in ``cnn`` and ``mlp`` the yardstick of every final error.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.workloads import Layers, Network


def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution as a product of shifted copies: ten times as fast as XLA's own on a CPU."""
    samples, height, width, _ = x.shape
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    rows = jnp.concatenate(shifted, -1).reshape(samples * height * width, -1)
    return (rows @ kernel.reshape(-1, kernel.shape[-1])).reshape(samples, height, width, -1)


def halved(x: jax.Array) -> jax.Array:
    """The maximum of each square of 2 x 2."""
    samples, height, width, channels = x.shape
    x = x.reshape(samples, height // 2, 2, width // 2, 2, channels)
    x = jnp.maximum(x[:, :, 0], x[:, :, 1])
    return jnp.maximum(x[:, :, :, 0], x[:, :, :, 1])


def loss(workload: Network, model: list[Any], x: Any, labels: Any, real: Any) -> jax.Array:
    """Mean cross-entropy over the samples of a batch that are there."""
    kernels = model[::2]
    biases = model[1::2]
    if workload.channels:
        x = x.reshape(-1, 28, 28, 1)
    for kernel, bias in zip(kernels[:-2], biases[:-2], strict=True):
        x = halved(jax.nn.relu(convolved(x, kernel) + bias))
    x = jax.nn.relu(x.reshape(len(x), -1) @ kernels[-2] + biases[-2])
    logits = x @ kernels[-1] + biases[-1]
    chosen = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
    cross_entropy = jax.nn.logsumexp(logits, axis=1) - chosen
    return jnp.where(real, cross_entropy, 0).sum() / jnp.maximum(real.sum(), 1)


def rounds(
    workload: Network, key: jax.Array, model: Any, pixels: Any, labels: Any, sizes: Any
) -> Any:
    """All of them."""
    largest = pixels.shape[1]
    steps = -(-largest // workload.batch)

    def client(model: Any, participant: Any) -> Any:
        number, key = participant
        size = sizes[number]
        # Its own samples, shuffled, come before the padding.
        rank = jnp.where(jnp.arange(largest) < size, jax.random.uniform(key, (largest,)), 2.0)
        order = jnp.argsort(rank)
        order = jnp.pad(order, (0, steps * workload.batch - largest))

        def step(iteration: Any, local: Any) -> Any:
            places = iteration * workload.batch + jnp.arange(workload.batch)
            rows = jax.lax.dynamic_slice(order, (iteration * workload.batch,), (workload.batch,))
            gradient = jax.grad(functools.partial(loss, workload))(
                local, pixels[number, rows], labels[number, rows], places < size
            )
            return jax.tree.map(lambda w, g: w - workload.step * g, local, gradient)

        return jax.lax.fori_loop(0, -(-size // workload.batch), step, model)

    def one_round(model: Any, key: jax.Array) -> Any:
        k_clients, k_batches = jax.random.split(key)
        chosen = jax.random.permutation(k_clients, workload.clients)[: workload.per_round]
        shares = sizes[chosen] / sizes[chosen].sum()

        def add(total: Any, participant: Any) -> Any:
            share, rest = participant
            local = client(model, rest)
            return jax.tree.map(lambda t, w: t + share * w, total, local), None

        keys = jax.random.split(k_batches, workload.per_round)
        nothing = jax.tree.map(jnp.zeros_like, model)
        return jax.lax.scan(add, nothing, (shares, (chosen, keys)))[0], None

    return jax.lax.scan(one_round, model, jax.random.split(key, workload.rounds))[0]


@functools.cache
def padded(workload: Network) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pixels ``[K, N, 784]``, labels ``[K, N]`` and sizes ``[K]``."""
    sizes = np.array([len(labels) for _, labels in workload.data()])
    pixels = np.zeros((workload.clients, sizes.max(), workload.features), np.float32)
    labels = np.zeros(pixels.shape[:2], np.int32)
    for k, (x, y) in enumerate(workload.data()):
        pixels[k, : sizes[k]] = x
        labels[k, : sizes[k]] = y
    return jnp.asarray(pixels), jnp.asarray(labels), jnp.asarray(sizes)


@functools.cache
def compiled(workload: Network) -> tuple[Any, float]:
    """The compiled program, and the seconds of compiling."""
    arguments = jax.random.key(0), list(map(jnp.asarray, workload.start(0))), *padded(workload)
    began = time.perf_counter()
    program = jax.jit(functools.partial(rounds, workload)).lower(*arguments).compile()
    return program, time.perf_counter() - began


def averaged(workload: Network, seed: int, watch: Stopwatch) -> Layers:
    """Federated averaging."""
    (program, took), data = compiled(workload), padded(workload)
    start = list(map(jnp.asarray, workload.start(seed)))
    with watch.run():
        model = jax.block_until_ready(program(jax.random.key(seed), start, *data))
    watch.startup_seconds += took
    return list(map(np.asarray, model))


if __name__ == "__main__":
    notes: dict[str, str] = dict.fromkeys(
        ("least_squares", "softmax", "dgd", "atc"), "written for the networks alone"
    )
    main("jax", {"cnn": averaged, "mlp": averaged}, notes, "bare")
