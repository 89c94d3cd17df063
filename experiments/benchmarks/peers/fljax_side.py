"""The workloads in fljax: one seed on the very data of the others, and a study of a hundred.

A study draws its data, graph and optimum inside the program and is timed with them, but for
``softmax`` and the networks; the other sides' data are not timed. A hundred runs of the networks
would take an hour: the time of a study with a few runs is scaled.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.peers.measure import STUDY, Run, Stopwatch, main
from experiments.benchmarks.peers.workloads import (
    ATC,
    DGD,
    LEAST_SQUARES,
    NETWORKS,
    SOFTMAX,
    WORKLOADS,
    Classification,
    Decentralized,
    Layers,
    Network,
    Regression,
)
from fljax._core.devices import cores

Scenario = Callable[..., fl.Simulation]


def with_data(
    key: jax.Array,
    problem: fl.problems.Problem,
    algorithm: fl.algorithms.Algorithm,
    network: fl.graphs.Graph | None = None,
) -> fl.Simulation:
    """A run on given data, which are arguments of the program and not compiled into it."""
    return fl.Simulation(problem, algorithm, network)


def drawn_least_squares(key: jax.Array) -> fl.Simulation:
    """A run of ``least_squares`` on data of its own."""
    w = LEAST_SQUARES
    return fl.Simulation(
        problem=fl.problems.least_squares(key, clients=w.clients, samples=w.samples, dim=w.dim),
        algorithm=fl.algorithms.ConventionalFL(w.step),
        metrics=["normalized_error"],
    )


def drawn_decentralized(key: jax.Array, algorithm: fl.algorithms.Algorithm) -> fl.Simulation:
    """A run of ``dgd`` or ``atc`` on data and a graph of its own."""
    w = DGD
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.least_squares(k_data, clients=w.clients, samples=w.samples, dim=w.dim),
        network=fl.graphs.random_connected(k_graph, nodes=w.clients, mean_degree=w.mean_degree),
        algorithm=algorithm,
        metrics=["normalized_error"],
    )


def least_squares(workload: Regression, seed: int, watch: Stopwatch) -> np.ndarray:
    """Federated gradient descent."""
    problem = fl.problems.Problem(*workload.data(seed), fl.problems.LeastSquares())
    algorithm = fl.algorithms.ConventionalFL(workload.step)
    return once(workload.rounds, seed, watch, problem=problem, algorithm=algorithm)[0]


def softmax(workload: Classification, seed: int, watch: Stopwatch) -> np.ndarray:
    """Federated averaging; the seed draws clients and batches."""
    model = once(workload.rounds, seed, watch, **averaging(workload))[0]
    return model.reshape(workload.classes, workload.features).T


def network(workload: Network, seed: int, watch: Stopwatch, over: str = "seeds") -> Layers:
    """Federated averaging of a network; the seed draws its start, clients and batches."""
    problem = images(workload)
    start = row(problem, workload.start(seed))
    model = once(workload.rounds, seed, watch, learning(workload), over, start=start)[0]
    return layers(problem, model)


def row(problem: fl.problems.Model, layers: Layers) -> jax.Array:
    """A network's numbers as fljax has them."""
    arrays = iter(map(np.asarray, layers))
    # Convolutions come before layers, in their order, as sorted names do.
    return problem.layout.row(
        {
            part: {"kernel": next(arrays), "bias": next(arrays)}
            for part in sorted(problem.parameters(jnp.zeros(problem.dim)))
        }
    )


def layers(problem: fl.problems.Model, row: np.ndarray) -> Layers:
    """A network's numbers as the workload has them."""
    result = problem.parameters(jnp.asarray(row))
    return [np.asarray(result[p][name]) for p in sorted(result) for name in ("kernel", "bias")]


@functools.cache
def images(workload: Network) -> fl.problems.Model:
    """The clients' images; the start is any."""
    data = workload.data()
    form = (28, 28) if workload.channels else (workload.features,)
    return fl.problems.Model.from_clients(
        fl.models.cnn(workload.classes, channels=workload.channels, hidden=(workload.hidden,)),
        jax.random.key(0),
        [(x.reshape(-1, *form), y) for x, y in data],
        fl.problems.Softmax(workload.classes),
    )


def decentralized(
    algorithm: fl.algorithms.Algorithm, workload: Decentralized, seed: int, watch: Stopwatch
) -> np.ndarray:
    """A step of every node, and combinations with its neighbors."""
    problem = fl.problems.Problem(*workload.data(seed), fl.problems.LeastSquares())
    network = fl.graphs.from_edges(workload.clients, workload.edges(seed))
    return once(workload.rounds, seed, watch, problem=problem, algorithm=algorithm, network=network)


#: Decentralized gradient descent, and adapting before combining.
STRATEGIES = {
    "dgd": fl.algorithms.Consensus(DGD.step),
    "atc": fl.algorithms.ATC(ATC.step),
}
dgd, atc = (functools.partial(decentralized, strategy) for strategy in STRATEGIES.values())


@functools.cache
def averaging(workload: Classification) -> dict[str, Any]:
    """The arguments of :func:`with_data` for ``softmax``; the data are the same for all seeds."""
    problem = fl.problems.Problem(*workload.data(), fl.problems.Softmax(workload.classes))
    return {"problem": problem, "algorithm": local_epochs(workload)}


def local_epochs(workload: Classification | Network) -> fl.algorithms.FedAvg:
    """Federated averaging of some clients a round."""
    return fl.algorithms.FedAvg(
        workload.step, workload.per_round, batch=workload.batch, weighting="samples"
    )


@functools.cache
def learning(workload: Network) -> Scenario:
    """A run of a network from a model that is given, or drawn."""

    def scenario(key: jax.Array, start: Any = None) -> fl.Simulation:
        problem = images(workload)
        if start is None:
            problem = problem.initialized(key)
        else:
            problem = dataclasses.replace(problem, initial=start)
        return fl.Simulation(problem, local_epochs(workload))

    return scenario


def once(
    rounds: int,
    seed: int,
    watch: Stopwatch,
    scenario: Scenario = with_data,
    over: str = "seeds",
    **parts: Any,
) -> np.ndarray:
    """The final models ``[K, D]`` of one run."""
    with watch.run():
        study = fl.sweep(
            scenario,
            seeds=[seed],
            rounds=rounds,
            record_every=rounds,
            grid=one_point(parts),
            keep_models=True,
            shard_over=over,
            progress=False,
        )
    compiled = study.attrs["compile_seconds"]
    watch.seconds -= compiled
    watch.startup_seconds += compiled
    return study.model.values.reshape(-1, study.sizes["parameter"])


def one_point(parts: dict[str, Any]) -> dict[str, Any]:
    """A grid of one point, whose values are arrays."""
    return {name: {"given": part} for name, part in parts.items()}


#: For each workload, a study's scenario and its arguments.
STUDIES: dict[str, tuple[Scenario, Callable[[], dict[str, Any]]]] = {
    "least_squares": (drawn_least_squares, dict),
    "softmax": (with_data, lambda: one_point(averaging(SOFTMAX))),
} | {
    name: (drawn_decentralized, functools.partial(one_point, {"algorithm": strategy}))
    for name, strategy in STRATEGIES.items()
}
STUDIES |= {workload.name: (learning(workload), dict) for workload in NETWORKS}
#: Runs of a study, where it is not one of a hundred.
FEW = {workload.name: 4 for workload in NETWORKS}


def measured_study(workload: str, repeats: int) -> dict[str, Any]:
    """A study in one call, scaled to a hundred seeds: the best of ``repeats``, compiled before."""
    scenario, parts = STUDIES[workload]
    grid = parts()
    rounds = WORKLOADS[workload].rounds
    seconds = np.inf
    startup = 0.0
    seeds = FEW.get(workload, STUDY)
    for _ in range(1 + repeats):
        began = time.perf_counter()
        study = fl.sweep(
            scenario, seeds=seeds, rounds=rounds, record_every=rounds, grid=grid, progress=False
        )
        startup = max(startup, study.attrs["compile_seconds"])
        seconds = min(seconds, time.perf_counter() - began)
    return {
        "study_seconds": seconds * STUDY / seeds,
        "study_startup_seconds": startup,
        "study_measured": seeds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--devices", action="store_true", help="each core a device of its own")
    apart, rest = parser.parse_known_args()
    runs: dict[str, Run] = {
        "least_squares": least_squares,
        "softmax": softmax,
        "dgd": dgd,
        "atc": atc,
    }
    if apart.devices:
        jax.config.update("jax_num_cpu_devices", cores())
        shared: Run = functools.partial(network, over="clients")
        notes = dict.fromkeys(runs, "clients of networks alone are shared out")
        main("fljax", {w.name: shared for w in NETWORKS}, notes, arguments=rest)
    else:
        runs |= {workload.name: network for workload in NETWORKS}
        main("fljax", runs, {}, arguments=rest, study=measured_study)
