"""A population on disk in FedJAX: its own file, SQLite's, or all clients in memory.

``SQLiteFederatedDataBuilder`` writes the population once, next to it, in FedJAX's default form
(compressed), and ``SQLiteFederatedData`` reads the clients that ``UniformGetClientSampler`` draws.
The default backend calls a compiled step for each batch; the one for several devices wants batches
of one size, and a client's last is smaller. In the other way all clients are in an
``InMemoryFederatedData``.
"""
# pyright: reportMissingImports=false

import os
from pathlib import Path
from typing import Any

import fedjax
import jax
import numpy as np

from experiments.benchmarks.peers import fedjax_peer
from experiments.benchmarks.peers.on_disk import OnDisk, Rounds, Watch, main
from experiments.benchmarks.peers.workloads import Layers


def examples(workload: OnDisk, number: int) -> dict[str, np.ndarray]:
    """One client's."""
    x, y = workload.client(number)
    return {"x": x, "y": y}


def written(workload: OnDisk) -> Any:
    """The population in FedJAX's own file, which appears under its name when it is whole."""
    path = Path(workload.folder).with_suffix(".sqlite")
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        with fedjax.SQLiteFederatedDataBuilder(str(partial)) as builder:
            numbers = range(workload.clients)
            builder.add_many((b"%d" % k, examples(workload, k)) for k in numbers)
        os.rename(partial, path)
    return fedjax.SQLiteFederatedData.new(str(path))


def in_memory(workload: OnDisk) -> Any:
    """The population in memory."""
    clients = {b"%d" % k: examples(workload, k) for k in range(workload.clients)}
    return fedjax.InMemoryFederatedData(clients)


WAYS = {"sqlite": written, "memory": in_memory}


def prepared(workload: OnDisk, storage: str) -> Rounds:
    data = WAYS[storage](workload)
    algorithm = fedjax_peer.averaging(workload)
    largest = examples(workload, int(workload.sizes.argmax()))
    state = algorithm.init(fedjax_peer.parameters(workload, 0))
    for size in {workload.batch} | set((workload.sizes % workload.batch).tolist()) - {0}:
        few = fedjax.ClientDataset({name: part[:size] for name, part in largest.items()})
        algorithm.apply(state, [(b"0", few, jax.random.PRNGKey(0))])

    def run(workload: OnDisk, seed: int, watch: Watch) -> Layers:
        sampler = fedjax.client_samplers.UniformGetClientSampler(data, workload.per_round, seed)
        state = algorithm.init(fedjax_peer.parameters(workload, seed))
        with watch.run():
            for _ in range(workload.rounds):
                state, _ = algorithm.apply(state, sampler.sample())
            jax.block_until_ready(state.params)
        return fedjax_peer.layers(state)

    return run


if __name__ == "__main__":
    main("fedjax", prepared, list(WAYS), ["jax", "dm-haiku"])
