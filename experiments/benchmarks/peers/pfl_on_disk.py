"""A population on disk in pfl-research: a user's arrays are read when the user is drawn.

pfl's ``FederatedDataset`` calls a function of ours for each user of a round, which reads the memory
map of the population's files; users are drawn and shuffled as in ``pfl_peer.py``. One process, of
which PyTorch has as many threads as there are cores, or one. pfl's first round also measures the
loss of every user, before and after its training; it is not counted.
"""
# pyright: reportMissingImports=false

import os
import time
from typing import Any

import numpy as np
import torch
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.metrics import Metrics

from experiments.benchmarks.peers import pfl_peer
from experiments.benchmarks.peers.measure import Stopwatch
from experiments.benchmarks.peers.on_disk import OnDisk, Rounds, Watch, main
from experiments.benchmarks.peers.workloads import Layers


class Ends(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.times.append((time.perf_counter(), time.process_time()))
        return False, Metrics()


WAYS = ("cores", "thread")


def prepared(workload: OnDisk, storage: str) -> Rounds:
    torch.set_num_threads(len(os.sched_getaffinity(0)) if storage == "cores" else 1)

    def user(number: int) -> PyTorchTensorDataset:
        features, targets = (torch.from_numpy(part) for part in workload.client(number))
        order = torch.randperm(len(targets))
        return PyTorchTensorDataset([features[order], targets[order]])

    def run(workload: OnDisk, seed: int, watch: Watch) -> Layers:
        data = FederatedDataset(user, pfl_peer.without_replacement(workload, seed))
        ends = Ends()
        model: Any = pfl_peer.run(
            workload, data, workload.per_round, workload.batch, seed, Stopwatch(), [ends]
        )
        took = np.subtract(ends.times[-1], ends.times[0]) / (workload.rounds - 1)
        watch.seconds, watch.processor_seconds = (took * workload.rounds).tolist()
        return model

    return run


if __name__ == "__main__":
    main("pfl", prepared, WAYS, ["torch"])
