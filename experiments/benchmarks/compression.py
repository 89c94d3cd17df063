"""Rounds of methods that compress clients' messages, compared with federated averaging with the
same compressor; and rounds of a tree of servers, compared with one server. All are in one process.

    python -m experiments.benchmarks.compression [--clients K] [--dim D] [--seeds S] [--rounds N]
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import fljax as fl
from experiments.benchmarks.machine import header

#: Samples of each client.
SAMPLES = 50

#: Share of a message's numbers that are sent.
SHARE = 0.01

#: Clients and edges of the tree.
TREE = 1000, 20


def compressed(dim: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Parts of simulations by compressor, federated averaging first."""
    algorithms = fl.algorithms
    kept = max(1, int(SHARE * dim))
    top = fl.link.TopK(kept)
    drawn = fl.link.RandomK(kept)
    averaging = {"algorithm": algorithms.FedAvg(0.01)}
    return {
        "the largest numbers": {
            "FedAvg": averaging | {"compression": top},
            "EF-SGD": {"algorithm": algorithms.EFSGD(0.01, compression=top)},
            "EF21": {"algorithm": algorithms.EF21(0.01, compression=top)},
        },
        "drawn numbers": {
            "FedAvg": averaging | {"compression": drawn},
            "DIANA": {"algorithm": algorithms.DIANA(0.01, compression=drawn)},
            "MARINA": {"algorithm": algorithms.MARINA(0.01, compression=drawn, probability=SHARE)},
            "DASHA": {"algorithm": algorithms.DASHA(0.01, compression=drawn)},
        },
    }


def on_trees() -> dict[str, dict[str, Any]]:
    """Parts of simulations of one server and of edges below a cloud."""
    clients, edges = TREE
    tree = fl.graphs.tree([edges, clients // edges])
    return {
        "FedAvg": {"algorithm": fl.algorithms.FedAvg(0.01)},
        "HierFAVG": {"algorithm": fl.algorithms.HierFAVG(0.01, intervals=5), "network": tree},
    }


def measured(
    simulations: Mapping[str, Mapping[str, Any]],
    clients: int,
    dim: int,
    seeds: int,
    rounds: int,
    turns: int,
) -> dict[str, float]:
    """Microseconds of a round and seed, the least of some turns.

    Tracing and compiling are apart (``run_seconds``): a tree's program takes longer to trace, which
    does not depend on how many rounds it runs.
    """
    # One problem of all seeds: drawing one for each would take more time than the rounds.
    problem = fl.problems.logistic(jax.random.key(0), clients=clients, samples=SAMPLES, dim=dim)

    def scenario(parts: Mapping[str, Any]) -> Callable[[Any], fl.Simulation]:
        return lambda key: fl.Simulation(problem, **parts)

    least: dict[str, float] = {}
    for _ in range(turns + 1):
        for name, parts in simulations.items():
            study = fl.sweep(
                scenario(parts), rounds=rounds, seeds=seeds, record_every=rounds, progress=False
            )
            took = study.attrs["run_seconds"] / seeds / rounds * 1e6
            least[name] = min(took, least.get(name, took))
    return least


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = ("clients", 20), ("dim", 10_000), ("seeds", 4), ("rounds", 100), ("turns", 3)
    for name, default in sizes:
        parser.add_argument(f"--{name}", type=int, default=default)
    request = parser.parse_args(arguments)
    effort = {"seeds": request.seeds, "rounds": request.rounds, "turns": request.turns}
    print(header())
    print("| sent | method | a round and seed, microseconds | of FedAvg's |")
    print("| --- | --- | --- | --- |")
    groups = [
        (sent, simulations, request.clients, request.dim)
        for sent, simulations in compressed(request.dim).items()
    ]
    groups.append((f"all, {TREE[0]} clients of {TREE[1]} edges", on_trees(), TREE[0], 100))
    for sent, simulations, clients, dim in groups:
        times = measured(simulations, clients, dim, **effort)
        for name, took in times.items():
            print(f"| {sent} | {name} | {took:.0f} | {took / times['FedAvg']:.2f} |")


if __name__ == "__main__":
    main()
