"""Accuracy of pfl-research's network for CIFAR10, with dropout, by pfl-research and by fljax.

Both train the same network from the same parameters on the same synthetic images: ten classes,
each a smooth pattern, with noise. A round is of ten of fifty clients, one epoch in batches of ten,
and an average by numbers of samples; participants, batches and dropout are drawn by each side, so
that curves agree in distribution and not exactly. Each side runs in its own environment:

    python -m experiments.benchmarks.peers.cifar_curves --side fljax --out fljax.json
    python -m experiments.benchmarks.peers.cifar_curves --side pfl --out pfl.json
    python -m experiments.benchmarks.peers.cifar_curves --compare fljax.json pfl.json
"""
# pyright: reportMissingImports=false

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS = 50
PARTICIPANTS = 10
SAMPLES = 50
TEST = 1000
ROUNDS = 40
EVERY = 5
STEP_SIZE = 0.03
BATCH = 10
NOISE = 2.0
RATES = (0.25, 0.5)
#: Student's quantile of 95 % for the default number of seeds, five.
QUANTILE = 2.776

Layers = dict[str, tuple[np.ndarray, np.ndarray]]
Curve = list[tuple[int, float]]


def images(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """``[N, 32, 32, 3]``: a low-frequency pattern of each class, moved at random, and noise."""
    patterns = np.random.default_rng(0).normal(size=(10, 4, 4, 3)).repeat(8, 1).repeat(8, 2)
    moved = [np.roll(patterns[y], tuple(rng.integers(-6, 7, 2)), (0, 1)) for y in labels]
    return (0.5 * np.array(moved) + NOISE * rng.normal(size=(len(labels), 32, 32, 3))).astype(
        np.float32
    )


def data() -> tuple[list[tuple[np.ndarray, np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """The clients' samples, of two or three classes each, and held-out ones of all."""
    rng = np.random.default_rng(1)
    clients = []
    for _ in range(CLIENTS):
        labels = rng.choice(rng.permutation(10)[:3], SAMPLES)
        clients.append((images(rng, labels), labels))
    labels = rng.integers(0, 10, TEST)
    return clients, (images(rng, labels), labels)


def start(seed: int) -> Layers:
    """Kernels drawn uniformly as by Glorot and Bengio 2010, in the order of flax, and zeros."""
    rng = np.random.default_rng([seed, 2])
    layers = {}
    shapes = {
        "Conv_0": (3, 3, 3, 32),
        "Conv_1": (3, 3, 32, 64),
        "Dense_0": (14 * 14 * 64, 128),
        "Dense_1": (128, 10),
    }
    for name, shape in shapes.items():
        area = int(np.prod(shape[:-2]))
        limit = (6 / (area * (shape[-2] + shape[-1]))) ** 0.5
        kernel = rng.uniform(-limit, limit, shape).astype(np.float32)
        layers[name] = kernel, np.zeros(shape[-1], np.float32)
    return layers


def by_fljax(seed: int) -> Curve:
    import jax

    import fljax as fl

    clients, test = data()
    network = fl.models.dropout_cnn(10, RATES)
    problem = fl.problems.Model.from_clients(
        network, jax.random.key(0), clients, fl.problems.Softmax(10), test=[test]
    )
    layers = start(seed)
    parameters = {name: {"kernel": k, "bias": b} for name, (k, b) in layers.items()}
    simulation = fl.Simulation(
        problem.starting_at(problem.layout.row(parameters)),
        fl.algorithms.FedAvg(STEP_SIZE, clients_per_round=PARTICIPANTS, epochs=1, batch=BATCH),
        metrics=["accuracy"],
    )
    run = fl.run(simulation, ROUNDS, key=fl.random_key(seed), record_every=EVERY)
    return list(zip(run["round"].values.tolist(), run.accuracy.values.tolist(), strict=True))


def by_pfl(seed: int) -> Curve:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    nn = torch.nn
    clients, (x_test, y_test) = data()

    def tensors(x: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
        return torch.from_numpy(np.moveaxis(x, -1, 1).copy()), torch.from_numpy(y)

    users = [tensors(x, y) for x, y in clients]
    test = tensors(x_test, y_test)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
                *(nn.MaxPool2d(2), nn.Dropout(RATES[0]), nn.Flatten()),
                *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(RATES[1])),
                nn.Linear(128, 10),
            )
            trained = [layer for layer in self.layers if hasattr(layer, "weight")]
            for layer, (kernel, bias) in zip(trained, start(seed).values(), strict=True):
                kernel = torch.from_numpy(kernel)
                if kernel.ndim == 4:
                    kernel = kernel.permute(3, 2, 0, 1)
                elif len(kernel) == 14 * 14 * 64:  # the pixels of a channel follow each other here
                    kernel = kernel.reshape(14, 14, 64, 128).permute(3, 2, 0, 1).flatten(1)
                else:
                    kernel = kernel.T
                with torch.no_grad():
                    layer.weight.copy_(kernel)
                    layer.bias.copy_(torch.from_numpy(bias))

        def loss(self, x: Any, y: Any, eval: bool = False) -> Any:
            self.eval() if eval else self.train()
            return nn.functional.cross_entropy(self.layers(x), y)

        @torch.no_grad()
        def metrics(self, x: Any, y: Any, eval: bool = True) -> dict[str, Weighted]:
            return {"loss": Weighted(self.loss(x, y, eval).item() * len(y), len(y))}

    def shuffled(user: int) -> Any:
        x, y = users[user]
        order = torch.randperm(len(y))
        return PyTorchTensorDataset([x[order], y[order]])

    rng = np.random.default_rng(seed)

    def participants() -> Any:
        while True:
            yield from rng.choice(CLIENTS, PARTICIPANTS, replace=False)

    curve: Curve = []

    class Evaluation(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            number = central_iteration + 1
            if number % EVERY == 0:
                module = model.pytorch_model.eval()
                with torch.no_grad():
                    right = module.layers(test[0]).argmax(1) == test[1]
                curve.append((number, right.float().mean().item()))
            return False, Metrics()

    np.random.seed(seed)  # noqa: NPY002 (pfl draws from NumPy's global generator)
    torch.manual_seed(seed)
    module = Network()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    dataset = FederatedDataset(shuffled, participants().__next__)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,
            train_cohort_size=PARTICIPANTS,
            val_cohort_size=None,
        ),
        SimulatedBackend(
            training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]
        ),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=STEP_SIZE, local_batch_size=BATCH
        ),
        callbacks=[Evaluation()],
    )
    return curve


SIDES: dict[str, Callable[[int], Curve]] = {"fljax": by_fljax, "pfl": by_pfl}


def compare(files: list[Path]) -> None:
    """Print both means with bands of 95 %, and whether the difference is within its own."""
    first, second = (json.loads(file.read_text()) for file in files)
    curves = [np.array([run["accuracy"] for run in side["runs"]]) for side in (first, second)]
    print(f"{'round':>6s}{first['side']:>18s}{second['side']:>18s}   difference")
    means = [side.mean(0) for side in curves]
    errors = [side.std(0, ddof=1) / len(side) ** 0.5 for side in curves]
    for i, number in enumerate(first["rounds"]):
        cells = "".join(
            f"{mean[i]:10.3f} ± {QUANTILE * error[i]:.3f}"
            for mean, error in zip(means, errors, strict=True)
        )
        gap = means[0][i] - means[1][i]
        width = QUANTILE * (errors[0][i] ** 2 + errors[1][i] ** 2) ** 0.5
        print(f"{number:6d}{cells}   {gap:+.3f} ± {width:.3f}{'' if abs(gap) < width else ' *'}")
    for side in (first, second):
        print(f"{side['side']}: {np.median([run['seconds'] for run in side['runs']]):.1f} s a run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2)
    options = parser.parse_args()
    if options.compare:
        compare(options.compare)
        return
    runs = []
    curve: Curve = []
    for seed in range(options.seeds):
        began = time.perf_counter()
        curve = SIDES[options.side](seed)
        seconds = time.perf_counter() - began
        runs.append({"accuracy": [value for _, value in curve], "seconds": seconds})
        print(options.side, seed, f"{curve[-1][1]:.3f}", f"{seconds:.1f} s", flush=True)
    rounds = [number for number, _ in curve]
    options.out.write_text(json.dumps({"side": options.side, "rounds": rounds, "runs": runs}))


if __name__ == "__main__":
    main()
