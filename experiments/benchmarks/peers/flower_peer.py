"""The workloads in Flower: its FedAvg strategy over messages, run by its Ray simulation.

The clients compute in NumPy, the lightest that Flower allows, in one worker process a core; they
open their data from memory-mapped files. ``run_simulation`` starts what the command ``flwr run``
starts, from Python. A run is timed inside the server, once every client has answered a query; what
comes before and after is the start and end of Ray.
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
from experiments.benchmarks.peers.workloads import WORKLOADS, Classification, Regression

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's share of a round."""
    config = message.content["config"]
    workload = WORKLOADS[config["workload"]]
    number = context.node_config["partition-id"]
    features, targets = (
        np.load(Path(config["folder"]) / f"{name}.npy", mmap_mode="r")[number]
        for name in ("features", "targets")
    )
    (model,) = message.content["arrays"].to_numpy_ndarrays()
    if isinstance(workload, Regression):
        model = model - workload.step * squared_gradient(model, features, targets)
    else:
        rng = np.random.default_rng([config["seed"], config["server-round"], number])
        model = local_epoch(workload, model, features, targets, rng)
    reply = {
        "arrays": ArrayRecord([model]),
        "metrics": MetricRecord({"num-examples": workload.samples}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


@client.query()
def ready(message: Message, context: Context) -> Message:
    """Answers once the worker process is up."""
    return Message(content=RecordDict(), reply_to=message)


def federated_averaging(
    workload: Regression | Classification, seed: int, watch: Stopwatch
) -> np.ndarray:
    server = ServerApp()
    final = []
    if isinstance(workload, Regression):
        arrays, start = workload.data(seed), np.zeros(workload.dim, np.float32)
        share = 1.0
    else:
        arrays = workload.data()
        start = np.zeros((workload.features, workload.classes), np.float32)
        share = workload.per_round / workload.clients

    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip(("features", "targets"), arrays, strict=True):
            np.save(Path(folder) / f"{name}.npy", array)

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
                    ArrayRecord([start]),
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
    return final[0]


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    main(
        "flwr",
        {"least_squares": federated_averaging, "softmax": federated_averaging},
        dict.fromkeys(("dgd", "atc"), "a server only: no peer-to-peer algorithms"),
    )
