"""The workloads in FedLab: its standalone pipeline, FedAvg handler and serial client trainer."""
# pyright: reportMissingImports=false

from experiments.benchmarks.peers import torch_parts

# isort: split
import logging
import random

import numpy as np
import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
from torch.utils.data import DataLoader

from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.workloads import Layers, Regression, Workload


class Clients(FedDataset):
    """All clients' tensors, handed out as shuffled loaders."""

    def __init__(self, workload: Workload, seed: int):
        super().__init__()
        self.sets = [BaseDataset(x, y) for x, y in torch_parts.client_tensors(workload, seed)]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        return DataLoader(self.sets[id], batch_size, shuffle=True)


class Trainer(FedAvgSerialClientTrainer):
    """Says how many samples a client has."""

    def train(self, model_parameters: torch.Tensor, train_loader: DataLoader) -> list[torch.Tensor]:
        trained = super().train(model_parameters, train_loader)
        return [*trained, torch.tensor(len(train_loader.dataset))]


class Handler(FedAvgServerHandler):
    """Weighs clients by their samples; equally otherwise."""

    def global_update(self, buffer: list[list[torch.Tensor]]) -> None:
        models, counts = zip(*buffer, strict=True)
        mean = Aggregators.fedavg_aggregate(list(models), torch.stack(counts))
        SerializationTool.deserialize_model(self._model, mean)


class Pipeline(StandalonePipeline):
    """Without an evaluation after every round."""

    def evaluate(self) -> None:
        pass


def federated_averaging(workload: Workload, seed: int, watch: Stopwatch) -> np.ndarray | Layers:
    random.seed(seed)
    torch.manual_seed(seed)
    model = torch_parts.model(workload, seed)
    trainer = Trainer(model, workload.clients)
    trainer.setup_dataset(Clients(workload, seed))
    full = isinstance(workload, Regression)
    batch = workload.samples if full else workload.batch
    trainer.setup_optim(epochs=1, batch_size=batch, lr=workload.step)
    trainer.criterion = torch_parts.loss(workload)
    share = 1.0 if full else workload.per_round / workload.clients
    handler = Handler(model, workload.rounds, share)
    with watch.run():
        Pipeline(handler, trainer).main()
    return torch_parts.weights(workload, handler.model)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main(
        "fedlab",
        dict.fromkeys(("least_squares", "softmax", "cnn", "mlp"), federated_averaging),
        dict.fromkeys(("dgd", "atc"), "a server only: no peer-to-peer algorithms"),
    )
