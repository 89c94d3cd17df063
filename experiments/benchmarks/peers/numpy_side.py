"""The workloads in plain NumPy: the yardstick of every final error, and a rival of its own.

    python -m experiments.benchmarks.peers.numpy_side {least_squares,softmax,dgd} --form loop

``loop`` goes client by client, as most simulators do; ``clients`` does all clients of a round in
one array operation and keeps Gram matrices in place of samples where the loss is quadratic.
"""

import argparse

import numpy as np

from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.workloads import Classification, Decentralized, Regression


def least_squares_loop(workload: Regression, seed: int, watch: Stopwatch) -> np.ndarray:
    """Federated gradient descent, client by client."""
    features, targets = workload.data(seed)
    with watch.run():
        model = np.zeros(workload.dim, np.float32)
        for _ in range(workload.rounds):
            messages = [
                model - workload.step * squared_gradient(model, x, y)
                for x, y in zip(features, targets, strict=True)
            ]
            model = np.mean(messages, 0)
    return model


def least_squares_clients(workload: Regression, seed: int, watch: Stopwatch) -> np.ndarray:
    """Federated gradient descent, vectorized over clients."""
    features, targets = workload.data(seed)
    with watch.run():
        gram, moment = statistics(features, targets)
        step = np.float32(workload.step)
        model = np.zeros(workload.dim, np.float32)
        for _ in range(workload.rounds):
            messages = model - step * (gram @ model - moment)
            model = messages.mean(0)
    return model


def softmax_loop(workload: Classification, seed: int, watch: Stopwatch) -> np.ndarray:
    """Federated averaging, client by client."""
    features, labels = workload.data()
    rng = np.random.default_rng(seed)
    with watch.run():
        model = np.zeros((workload.features, workload.classes), np.float32)
        for _ in range(workload.rounds):
            chosen = rng.choice(workload.clients, workload.per_round, replace=False)
            messages = [local_epoch(workload, model, features[k], labels[k], rng) for k in chosen]
            model = np.mean(messages, 0)
    return model


def local_epoch(
    workload: Classification,
    model: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """One client's pass through its samples in shuffled batches, from ``model``."""
    model = model.copy()
    for batch in rng.permutation(workload.samples).reshape(-1, workload.batch):
        model -= workload.step * softmax_gradient(model, features[batch], labels[batch])
    return model


def softmax_clients(workload: Classification, seed: int, watch: Stopwatch) -> np.ndarray:
    """Federated averaging, the participants of a round side by side."""
    features, labels = workload.data()
    rng = np.random.default_rng(seed)
    batches = workload.samples // workload.batch
    with watch.run():
        model = np.zeros((workload.features, workload.classes), np.float32)
        for _ in range(workload.rounds):
            chosen = rng.choice(workload.clients, workload.per_round, replace=False)
            order = np.tile(np.arange(workload.samples), (workload.per_round, 1))
            order = rng.permuted(order, axis=1).reshape(workload.per_round, batches, -1)
            models = np.tile(model, (workload.per_round, 1, 1))
            for batch in range(batches):
                rows = chosen[:, None], order[:, batch]
                models -= workload.step * softmax_gradient(models, features[rows], labels[rows])
            model = models.mean(0)
    return model


def dgd_loop(workload: Decentralized, seed: int, watch: Stopwatch) -> np.ndarray:
    """Decentralized gradient descent, node by node."""
    features, targets = workload.data(seed)
    weights = workload.weights(seed).astype(np.float32)
    neighbors = [np.flatnonzero(row) for row in weights]
    with watch.run():
        models = np.zeros((workload.clients, workload.dim), np.float32)
        for _ in range(workload.rounds):
            models = np.stack(
                [
                    sum(weights[k, other] * models[other] for other in neighbors[k])
                    - workload.step * squared_gradient(models[k], features[k], targets[k])
                    for k in range(workload.clients)
                ]
            )
    return models


def dgd_clients(workload: Decentralized, seed: int, watch: Stopwatch) -> np.ndarray:
    """Decentralized gradient descent, vectorized over nodes."""
    features, targets = workload.data(seed)
    weights = workload.weights(seed).astype(np.float32)
    with watch.run():
        gram, moment = statistics(features, targets)
        step = np.float32(workload.step)
        models = np.zeros((workload.clients, workload.dim), np.float32)
        for _ in range(workload.rounds):
            gradient = (gram @ models[..., None])[..., 0] - moment
            models = weights @ models - step * gradient
    return models


def atc_loop(workload: Decentralized, seed: int, watch: Stopwatch) -> np.ndarray:
    """Adapt, then combine, node by node."""
    features, targets = workload.data(seed)
    weights = workload.weights(seed).astype(np.float32)
    neighbors = [np.flatnonzero(row) for row in weights]
    with watch.run():
        models = np.zeros((workload.clients, workload.dim), np.float32)
        for _ in range(workload.rounds):
            moved = [
                models[k] - workload.step * squared_gradient(models[k], features[k], targets[k])
                for k in range(workload.clients)
            ]
            models = np.stack(
                [
                    sum(weights[k, other] * moved[other] for other in neighbors[k])
                    for k in range(workload.clients)
                ]
            )
    return models


def atc_clients(workload: Decentralized, seed: int, watch: Stopwatch) -> np.ndarray:
    """Adapt, then combine, vectorized over nodes."""
    features, targets = workload.data(seed)
    weights = workload.weights(seed).astype(np.float32)
    with watch.run():
        gram, moment = statistics(features, targets)
        step = np.float32(workload.step)
        models = np.zeros((workload.clients, workload.dim), np.float32)
        for _ in range(workload.rounds):
            gradient = (gram @ models[..., None])[..., 0] - moment
            models = weights @ (models - step * gradient)
    return models


def squared_gradient(model: np.ndarray, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """``2/N X'(Xw - y)``."""
    return np.float32(2 / len(targets)) * ((features @ model - targets) @ features)


def statistics(features: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[K, D, D]`` and ``[K, D]``: the mean squared residual has the gradient ``G w - b``."""
    scaled = np.float32(2 / targets.shape[1]) * features.transpose(0, 2, 1)
    return scaled @ features, (scaled @ targets[..., None])[..., 0]


def softmax_gradient(model: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Gradient of the mean cross-entropy; leading axes are clients."""
    logits = features @ model
    residual = np.exp(logits - logits.max(-1, keepdims=True))
    residual /= residual.sum(-1, keepdims=True)
    residual -= labels[..., None] == np.arange(model.shape[-1])
    return features.swapaxes(-1, -2) @ residual / np.float32(labels.shape[-1])


FORMS = {
    "loop": {
        "least_squares": least_squares_loop,
        "softmax": softmax_loop,
        "dgd": dgd_loop,
        "atc": atc_loop,
    },
    "clients": {
        "least_squares": least_squares_clients,
        "softmax": softmax_clients,
        "dgd": dgd_clients,
        "atc": atc_clients,
    },
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--form", choices=FORMS, default="loop")
    given, rest = parser.parse_known_args()
    notes: dict[str, str] = dict.fromkeys(("cnn", "mlp"), "no network was written in it")
    main("numpy", FORMS[given.form], notes, f"NumPy, {given.form}", rest)
