"""A population on disk in fljax: ``fl.run`` over ``fl.data.Population``."""

from dataclasses import replace

import jax

import fljax as fl
from experiments.benchmarks.peers import fljax_side
from experiments.benchmarks.peers.on_disk import OnDisk, Rounds, Watch, main
from experiments.benchmarks.peers.workloads import Layers


def prepared(workload: OnDisk, storage: str = "") -> Rounds:
    problem = fl.problems.Model.from_population(
        fl.data.Population(workload.folder),
        fl.models.cnn(workload.classes, channels=workload.channels, hidden=(workload.hidden,)),
        jax.random.key(0),
        fl.problems.Softmax(workload.classes),
    )
    algorithm = fljax_side.local_epochs(workload)

    def run(workload: OnDisk, seed: int, watch: Watch) -> Layers:
        start = fljax_side.row(problem, workload.start(seed))
        simulation = fl.Simulation(replace(problem, initial=start), algorithm)
        with watch.run():
            result = fl.run(
                simulation, rounds=workload.rounds, key=seed, record_every=workload.rounds
            )
        return fljax_side.layers(problem, result.model.values)

    run(workload, 0, Watch())  # compiled
    return run


if __name__ == "__main__":
    main("fljax", prepared, dependencies=["jax"])
