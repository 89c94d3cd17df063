"""The workloads in pfl-research: federated averaging on its simulated backend, with PyTorch.

pfl cuts a user's data into batches once and keeps their order, so the dataset function below
shuffles a user whenever it is drawn. Its own user samplers go through the users in turn, or draw
with replacement; the sampler below draws the ten users of a round without.
"""
# pyright: reportMissingImports=false

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

from experiments.benchmarks.peers import torch_parts
from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.workloads import (
    Classification,
    Layers,
    Network,
    Regression,
    Workload,
)


class Module(torch.nn.Module):
    """A model with the two methods that pfl asks for."""

    def __init__(self, workload: Workload, seed: int):
        super().__init__()
        self.model = torch_parts.model(workload, seed)
        self.criterion = torch_parts.loss(workload)

    def loss(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.criterion(self.model(features), targets)

    def metrics(self, features: torch.Tensor, targets: torch.Tensor) -> dict[str, Weighted]:
        samples = len(targets)
        return {"loss": Weighted(self.loss(features, targets).item() * samples, samples)}


def least_squares(workload: Regression, seed: int, watch: Stopwatch) -> np.ndarray | Layers:
    users = [PyTorchTensorDataset(list(t)) for t in torch_parts.client_tensors(workload, seed)]
    sampler = get_user_sampler("minimize_reuse", list(range(workload.clients)))
    data = FederatedDataset(users.__getitem__, sampler)
    return run(workload, data, workload.clients, None, seed, watch)


def classification(
    workload: Classification | Network, seed: int, watch: Stopwatch
) -> np.ndarray | Layers:
    tensors = torch_parts.client_tensors(workload, seed)

    def shuffled(user: int) -> PyTorchTensorDataset:
        order = torch.randperm(len(tensors[user][1]))
        return PyTorchTensorDataset([tensor[order] for tensor in tensors[user]])

    data = FederatedDataset(shuffled, without_replacement(workload, seed))
    return run(workload, data, workload.per_round, workload.batch, seed, watch)


def without_replacement(workload: Classification | Network, seed: int) -> Callable[[], int]:
    """Users one by one, no user twice in a round."""
    rng = np.random.default_rng(seed)

    def rounds():
        while True:
            yield from rng.choice(workload.clients, workload.per_round, replace=False)

    return rounds().__next__


def run(
    workload: Workload,
    data: FederatedDataset,
    cohort: int,
    batch: int | None,
    seed: int,
    watch: Stopwatch,
    callbacks: Sequence[Any] = (),
) -> np.ndarray | Layers:
    np.random.seed(seed)  # noqa: NPY002 (pfl draws from NumPy's global generator)
    torch.manual_seed(seed)
    module = Module(workload, seed)
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    with watch.run():
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=workload.rounds,
                # The first round always counts as one of evaluation; more are not asked for.
                evaluation_frequency=workload.rounds,
                train_cohort_size=cohort,
                val_cohort_size=None,
            ),
            SimulatedBackend(
                training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]
            ),
            model,
            NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=workload.step, local_batch_size=batch
            ),
            callbacks=list(callbacks),
        )
    return torch_parts.weights(workload, module)


if __name__ == "__main__":
    main(
        "pfl",
        {"least_squares": least_squares} | dict.fromkeys(("softmax", "cnn", "mlp"), classification),
        dict.fromkeys(("dgd", "atc"), "a server only: no peer-to-peer algorithms"),
    )
