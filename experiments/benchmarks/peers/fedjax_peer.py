"""The workloads in FedJAX: its federated averaging on data in memory, models in haiku.

Its default backend goes client by client and calls a compiled step for every batch. A step is
compiled for each size that a batch has, which counts as start-up.
"""
# pyright: reportMissingImports=false

import functools
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.workloads import Layers, Network, Regression, Workload


def predict(workload: Workload, batch: Any) -> jax.Array:
    """The workload's model: a layer without bias, or a network."""
    x = batch["x"]
    if not isinstance(workload, Network):
        outputs = 1 if isinstance(workload, Regression) else workload.classes
        return hk.Linear(outputs, with_bias=False)(x)
    if workload.channels:
        x = x.reshape(-1, 28, 28, 1)
    for channels in workload.channels:
        x = jax.nn.relu(hk.Conv2D(channels, 3)(x))
        x = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x)
    x = jax.nn.relu(hk.Linear(workload.hidden)(x.reshape(len(x), -1)))
    return hk.Linear(workload.classes)(x)


def squared(batch: Any, predictions: jax.Array) -> jax.Array:
    return (predictions[:, 0] - batch["y"]) ** 2


def cross_entropy(batch: Any, logits: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)[:, 0]


def dimension(workload: Workload) -> int:
    """Features of a sample."""
    return workload.dim if isinstance(workload, Regression) else workload.features


@functools.cache
def averaging(workload: Workload) -> Any:
    """The algorithm."""
    full_batch = isinstance(workload, Regression)
    model = fedjax.create_model_from_haiku(
        hk.transform(functools.partial(predict, workload)),
        {"x": np.zeros((1, dimension(workload)), np.float32)},
        squared if full_batch else cross_entropy,
    )
    return fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(workload.step),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(workload.samples if full_batch else workload.batch),
    )


def parameters(workload: Workload, seed: int) -> dict[str, dict[str, np.ndarray]]:
    """The model's start, as haiku names its parts."""
    if not isinstance(workload, Network):
        outputs = 1 if isinstance(workload, Regression) else workload.classes
        return {"linear": {"w": np.zeros((dimension(workload), outputs), np.float32)}}
    layers = workload.start(seed)
    counted = [*enumerate(["conv2_d"] * len(workload.channels)), *enumerate(["linear"] * 2)]
    names = [f"{name}_{count}" if count else name for count, name in counted]
    return {
        name: {"w": kernel, "b": bias}
        for name, kernel, bias in zip(names, layers[::2], layers[1::2], strict=True)
    }


def clients(workload: Workload, seed: int) -> list[dict[str, np.ndarray]]:
    """Each client's samples."""
    if isinstance(workload, Network):
        pairs: Any = workload.data()
    else:
        arrays = workload.data(seed) if isinstance(workload, Regression) else workload.data()
        pairs = zip(*arrays, strict=True)
    return [{"x": x, "y": y} for x, y in pairs]


def federated_averaging(workload: Workload, seed: int, watch: Stopwatch) -> np.ndarray | Layers:
    full_batch = isinstance(workload, Regression)
    algorithm = averaging(workload)
    samples = clients(workload, seed)
    data = fedjax.InMemoryFederatedData(dict(enumerate(samples)))
    cohort = workload.clients if full_batch else workload.per_round
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, cohort, seed)
    state = algorithm.init(parameters(workload, seed))
    with watch.startup():
        batch = workload.samples if full_batch else workload.batch
        sizes = {batch} | {len(client["y"]) % batch for client in samples} - {0}
        for size in sizes:
            few = fedjax.ClientDataset({name: part[:size] for name, part in samples[0].items()})
            algorithm.apply(state, [(0, few, jax.random.PRNGKey(0))])
    with watch.run():
        for _ in range(workload.rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
    result = layers(state)
    return result if isinstance(workload, Network) else result[0].squeeze()


def layers(state: Any) -> Layers:
    """The model's numbers, kernels and biases in turn."""
    return [
        np.asarray(layer[kind])
        for layer in state.params.values()
        for kind in ("w", "b")[: len(layer)]
    ]


if __name__ == "__main__":
    main(
        "fedjax",
        dict.fromkeys(("least_squares", "softmax", "cnn", "mlp"), federated_averaging),
        dict.fromkeys(("dgd", "atc"), "a server only: no peer-to-peer algorithms"),
    )
