"""The same studies on a machine's CPU and on its accelerator.

    python -m experiments.benchmarks.platforms [STUDY ...] [--platforms cpu cuda] [--minutes 4]

Each platform has its own process, in which JAX uses that platform alone. A study is timed from its
seeds to its errors, without compiling: the best of two. The largest relative difference of single
runs' errors from the first platform is reported, too: both draw the same keys, so only the order
of sums differs, amplified by the dynamics. A platform is stopped after ``--minutes``; studies it
has not finished are listed.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import fljax as fl
from experiments.benchmarks import montecarlo, online, personalized
from experiments.benchmarks.machine import header
from experiments.benchmarks.peers import fljax_side
from experiments.benchmarks.peers.workloads import NETWORKS, SOFTMAX, Network


class Study(NamedTuple):
    """A study that every platform runs."""

    title: str
    rounds: int
    seeds: int
    metric: str
    run: Callable[[int, int], Any]  # seeds, rounds -> dataset


def last(scenario: Callable[..., fl.Simulation], seeds: int, rounds: int) -> Any:
    """A study that records its last round."""
    return fl.sweep(scenario, seeds=seeds, rounds=rounds, record_every=rounds, progress=False)


def large_network(clients: int, dim: int, key: jax.Array) -> fl.Simulation:
    """Gradient tracking on a random network of six neighbors."""
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.least_squares(k_data, clients=clients, samples=8, dim=dim),
        network=fl.graphs.random_connected(k_graph, nodes=clients, mean_degree=6),
        algorithm=fl.algorithms.DIGing(0.02),
        metrics=["objective"],
    )


def long_models(key: jax.Array) -> fl.Simulation:
    """Federated averaging of many parameters, all clients in each round."""
    return fl.Simulation(
        problem=fl.problems.least_squares(key, clients=256, samples=64, dim=2048),
        algorithm=fl.algorithms.FedAvg(0.005, local_steps=5),
        metrics=["objective"],
    )


def image_model(workload: Network, key: jax.Array) -> fl.Simulation:
    """Federated averaging of a network; the loss over all data is measured."""
    return dataclasses.replace(fljax_side.learning(workload)(key), metrics=["objective"])


def online_methods(seeds: int, rounds: int) -> Any:
    return online.study({"PAO-Fed-U1": online.methods()["PAO-Fed-U1"][0]}, seeds, rounds)


def personalized_methods(seeds: int, rounds: int) -> Any:
    name = personalized.ch5.PGFL_MIXED
    return personalized.study({name: personalized.methods()[name][0]}, seeds, rounds)


def studies() -> dict[str, Study]:
    """By the name on the command line."""
    admm = "private networked ADMM (50 clients, D=8)"
    descent = "federated descent (100 clients, D=32)"
    private, plain = (
        partial(last, s) for s in (montecarlo.private_admm, montecarlo.federated_descent)
    )
    error = "normalized_error"
    result = {
        "admm": Study(admm, 200, 100, error, private),
        "admm-many": Study(admm, 200, 10_000, error, private),
        "descent-many": Study(descent, 200, 10_000, error, plain),
        "softmax": Study(
            "federated averaging (softmax 784-10, 10 of 100 clients)",
            SOFTMAX.rounds,
            100,
            "objective",
            partial(last, montecarlo.softmax_averaging),
        ),
        "network": Study(
            "gradient tracking (100,000 clients, D=32)",
            100,
            1,
            "objective",
            partial(last, partial(large_network, 100_000, 32)),
        ),
        "long": Study(
            "federated averaging (256 clients, D=2048)",
            20,
            8,
            "objective",
            partial(last, long_models),
        ),
        "personalized": Study(
            "PGFL, figure 5.1(a) of Gauthier 2024 (150 clients, D=60)",
            300,
            1000,
            "network_deviation",
            personalized_methods,
        ),
        "online": Study(
            "PAO-Fed, figure 4.3(a) of Gauthier 2024 (256 clients, D=200)",
            2000,
            100,
            "test_error",
            online_methods,
        ),
    }
    for network in NETWORKS:
        result[network.name] = Study(
            f"federated averaging ({network.name} on MNIST, {network.per_round} of "
            f"{network.clients} clients)",
            20,
            2,
            "objective",
            partial(last, partial(image_model, network)),
        )
    return result


def measure(study: Study) -> dict[str, Any]:
    """One study on this process's platform."""
    first = study.run(study.seeds, study.rounds)
    seconds, result = montecarlo.timed(lambda: study.run(study.seeds, study.rounds), 2)
    errors = result[study.metric].isel(round=-1).values.ravel()
    return {
        "compiled": first.attrs["compile_seconds"],
        "seconds": seconds,
        "block": str(result.attrs["block"]).strip("[]"),
        "errors": errors.astype(float).tolist(),
    }


def child(names: list[str]) -> None:
    """Measure the studies here, one JSON line each after the header's."""
    warnings.simplefilter("ignore", fl.AssumptionWarning)
    print(json.dumps({"header": header()}), flush=True)
    available = studies()
    for name in names:
        try:
            print(json.dumps({"study": name, **measure(available[name])}), flush=True)
        except Exception as error:  # the other studies are still measured
            failed = f"{type(error).__name__}: {error}".splitlines()[0]
            print(json.dumps({"study": name, "failed": failed}), flush=True)


def on(platform: str, names: list[str], minutes: float) -> tuple[str, dict[str, dict[str, Any]]]:
    """The header of a platform, and its measurements by study."""
    command = [sys.executable, "-m", "experiments.benchmarks.platforms", *names, "--child"]
    environment = os.environ | {"JAX_PLATFORMS": platform}
    head = ""
    measured = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(60 * minutes, process.kill)
        limit.start()
        for line in process.stdout or ():
            message = json.loads(line)
            if "header" in message:
                head = message["header"]
            else:
                measured[name := message.pop("study")] = message
                print(f"{platform}: {name}", file=sys.stderr, flush=True)
        limit.cancel()
    if not head:
        raise SystemExit(f"nothing was measured on {platform!r}; see above.")
    return head, measured


def table(names: list[str], measured: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """A line for each study and platform."""
    first, *_ = measured
    heads = f"{'study':78s} {'platform':>8s} {'block':>6s} {'compile s':>9s} {'run s':>8s}"
    lines = [f"{heads} {'us/round':>9s} {'faster':>8s} {'error':>10s} {'off by':>8s}"]
    available = studies()
    for name in names:
        study = available[name]
        title = f"{study.title}, {study.seeds:,} seeds"
        for platform, results in measured.items():
            if (result := results.get(name)) is None:
                lines.append(f"{title:78s} {platform:>8s} not done in time")
                continue
            if "failed" in result:
                lines.append(f"{title:78s} {platform:>8s} {result['failed']}")
                continue
            errors = np.asarray(result["errors"])
            reference = measured[first].get(name, {})
            cells = f"{'':>8s} {errors.mean():10.3e} {'':>8s}"
            if platform != first and "seconds" in reference:
                theirs = np.asarray(reference["errors"])
                off = np.max(np.abs(errors - theirs) / np.abs(theirs))
                ratio = f"{reference['seconds'] / result['seconds']:.1f}x"
                cells = f"{ratio:>8s} {errors.mean():10.3e} {off:8.1e}"
            cost = result["seconds"] / study.seeds / study.rounds * 1e6
            lines.append(
                f"{title:78s} {platform:>8s} {result['block']:>6s} {result['compiled']:9.1f} "
                f"{result['seconds']:8.3f} {cost:9.2f} {cells}"
            )
            title = ""
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(studies())}")
    parser.add_argument("--platforms", nargs="+", default=["cpu", "cuda"], help="the first is 1x")
    parser.add_argument("--minutes", type=float, default=4.0, help="of each platform")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.studies) - set(studies()):
        parser.error(f"unknown study {', '.join(unknown)}; known: {', '.join(studies())}")
    names = options.studies or list(studies())
    if options.child:
        child(names)
        return
    measured = {}
    for platform in options.platforms:
        head, measured[platform] = on(platform, names, options.minutes)
        print(f"{head}\n", flush=True)
    print("\n".join(table(names, measured)))


if __name__ == "__main__":
    main()
