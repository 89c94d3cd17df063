"""The workloads in fluke: its FedAvg through the Python interface, with clients built by hand.

Clients are handed over rather than split off by fluke, so that every side has the same partition;
nothing is evaluated during the run.
"""
# pyright: reportMissingImports=false

from experiments.benchmarks.peers import torch_parts

# isort: split
import numpy as np
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server

from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.workloads import Layers, Regression, Workload


def federated_averaging(workload: Workload, seed: int, watch: Stopwatch) -> np.ndarray | Layers:
    environment = FlukeENV()
    environment.set_seed(seed)
    environment.set_device("cpu")
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    full = isinstance(workload, Regression)
    batch = workload.samples if full else workload.batch
    optimizer = OptimizerConfigurator(
        optimizer_cfg=DDict(name=torch.optim.SGD, lr=workload.step),
        scheduler_cfg=DDict(name="StepLR", step_size=1, gamma=1.0),
    )
    clients = [
        Client(
            index=index,
            train_set=FastDataLoader(
                *tensors,
                num_labels=1 if isinstance(workload, Regression) else workload.classes,
                batch_size=batch,
                shuffle=True,
                skip_singleton=False,
            ),
            test_set=None,
            optimizer_cfg=optimizer,
            loss_fn=torch_parts.loss(workload),
            local_epochs=1,
        )
        for index, tensors in enumerate(torch_parts.client_tensors(workload, seed))
    ]
    server = Server(torch_parts.model(workload, seed), None, clients, weighted=True)
    algorithm = FedAVG(workload.clients, None, DDict(), clients=clients, server=server)
    share = 1 if full else workload.per_round / workload.clients
    with watch.run():
        algorithm.run(workload.rounds, share)
    return torch_parts.weights(workload, server.model)


if __name__ == "__main__":
    main(
        "fluke-fl",
        dict.fromkeys(("least_squares", "softmax", "cnn", "mlp"), federated_averaging),
        dict.fromkeys(
            ("dgd", "atc"), "peer-to-peer by gossip with one random neighbor, no mixing weights"
        ),
    )
