"""The workloads in Flower: its FedAvg strategy over messages, run by its Ray simulation.

The clients compute in NumPy, the lightest that Flower allows, networks in PyTorch, in one worker
process a core; they open their data from memory-mapped files. ``run_simulation`` is the
Python entry of the command ``flwr run``. A run is timed inside the server, once every client has
answered a query; what comes before and after is the start and end of Ray.
"""
# pyright: reportMissingImports=false

import logging
import os
import tempfile
import time
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

# isort: split
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.numpy_side import local_epoch, squared_gradient
from experiments.benchmarks.peers.workloads import (
    WORKLOADS,
    Layers,
    Network,
    Regression,
    Workload,
)

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's share of a round."""
    config = message.content["config"]
    workload = WORKLOADS[config["workload"]]
    number = context.node_config["partition-id"]
    arrays = message.content["arrays"].to_numpy_ndarrays()
    if isinstance(workload, Network):
        rows = np.load(Path(config["folder"]) / "rows.npy")[number : number + 2]
    else:
        rows = [number, number + 1]
    features, targets = (
        np.load(Path(config["folder"]) / f"{name}.npy", mmap_mode="r")[slice(*rows)]
        for name in ("features", "targets")
    )
    rng = np.random.default_rng([config["seed"], config["server-round"], number])
    if isinstance(workload, Network):
        arrays = network_epoch(workload, arrays, features, targets, rng)
    elif isinstance(workload, Regression):
        arrays = [arrays[0] - workload.step * squared_gradient(arrays[0], features[0], targets[0])]
    else:
        arrays = [local_epoch(workload, arrays[0], features[0], targets[0], rng)]
    reply = {
        "arrays": ArrayRecord(arrays),
        "metrics": MetricRecord({"num-examples": targets.size}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def network_epoch(
    workload: Network,
    arrays: Layers,
    features: np.ndarray,
    targets: np.ndarray,
    rng: np.random.Generator,
) -> Layers:
    """One client's pass through its samples in shuffled batches, in PyTorch."""
    import torch  # workloads without a network start workers without torch

    from experiments.benchmarks.peers import torch_parts

    torch.set_num_threads(1)  # Ray has a worker on every core
    module = torch_parts.network(workload, arrays)
    criterion = torch_parts.loss(workload)
    optimizer = torch.optim.SGD(module.parameters(), lr=workload.step)
    order = rng.permutation(len(targets))
    x = torch.from_numpy(features[order])
    y = torch.from_numpy(targets[order])
    for first in range(0, len(y), workload.batch):
        batch = slice(first, first + workload.batch)
        optimizer.zero_grad()
        criterion(module(x[batch]), y[batch]).backward()
        optimizer.step()
    return torch_parts.layers(workload, module)


@client.query()
def ready(message: Message, context: Context) -> Message:
    """Answers once the worker process is up."""
    return Message(content=RecordDict(), reply_to=message)


def federated_averaging(workload: Workload, seed: int, watch: Stopwatch) -> np.ndarray | Layers:
    server = ServerApp()
    final = []
    if isinstance(workload, Regression):
        arrays = workload.data(seed)
        start = [np.zeros(workload.dim, np.float32)]
        share = 1.0
    else:
        share = workload.per_round / workload.clients
        if isinstance(workload, Network):
            arrays = map(np.concatenate, zip(*workload.data(), strict=True))
            start = workload.start(seed)
        else:
            arrays = workload.data()
            start = [np.zeros((workload.features, workload.classes), np.float32)]

    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip(("features", "targets"), arrays, strict=True):
            np.save(Path(folder) / f"{name}.npy", array)
        if isinstance(workload, Network):
            sizes = [len(labels) for _, labels in workload.data()]
            np.save(Path(folder) / "rows.npy", np.cumsum([0, *sizes]))

        @server.main()
        def serve(grid: Grid, context: Context) -> None:
            strategy = FedAvg(
                fraction_train=share, fraction_evaluate=0.0, min_available_nodes=workload.clients
            )
            config = {"workload": workload.name, "folder": folder, "seed": seed}
            while len(nodes := list(grid.get_node_ids())) < workload.clients:
                time.sleep(0.01)
            list(
                grid.send_and_receive(
                    Message(content=RecordDict(), message_type="query", dst_node_id=node)
                    for node in nodes
                )
            )
            with watch.run():
                result = strategy.start(
                    grid,
                    ArrayRecord(start),
                    num_rounds=workload.rounds,
                    train_config=ConfigRecord(config),
                )
            final.extend(result.arrays.to_numpy_ndarrays())

        with watch.startup():
            run_simulation(
                server,
                client,
                num_supernodes=workload.clients,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
            )
    return final if isinstance(workload, Network) else final[0]


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    main(
        "flwr",
        dict.fromkeys(("least_squares", "softmax", "cnn", "mlp"), federated_averaging),
        dict.fromkeys(("dgd", "atc"), "a server only: no peer-to-peer algorithms"),
    )
