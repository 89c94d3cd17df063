"""The same studies on a machine's CPU and on its accelerator.

    python -m experiments.benchmarks.platforms [STUDY ...] [--platforms cpu cuda] [--minutes 4]
        [--out FILE.json]

Each platform has its own process, in which JAX uses that platform alone. A study is timed from its
seeds to its errors, without compiling: the best of two. The largest relative difference of single
runs' errors from the first platform is reported, too: both draw the same keys, so only the order
of sums differs, amplified by the dynamics. A platform is stopped after ``--minutes``; studies it
has not finished are listed.
"""

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fljax as fl
from experiments.benchmarks import montecarlo, online, personalized
from experiments.benchmarks.machine import header
from experiments.benchmarks.peers import fljax_side
from experiments.benchmarks.peers.workloads import NETWORKS, SOFTMAX, Network
from fljax._core.storage import replace_file


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


def compared(
    names: list[str], measured: dict[str, dict[str, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Seconds and errors of each study on each platform; errors relative to the first's."""
    first, *_ = measured
    available = studies()
    rows = []
    for name in names:
        study = available[name]
        for platform, results in measured.items():
            row: dict[str, Any] = {
                "study": study.title,
                "seeds": study.seeds,
                "rounds": study.rounds,
                "platform": platform,
            }
            rows.append(row)
            result = results.get(name, {"failed": "not done in time"})
            if "failed" in result:
                row["failed"] = result["failed"]
                continue
            errors = np.asarray(result["errors"])
            row |= {
                "block": result["block"],
                "compile_seconds": result["compiled"],
                "seconds": result["seconds"],
                "error": float(errors.mean()),
            }
            reference = measured[first].get(name, {})
            if platform != first and "seconds" in reference:
                theirs = np.asarray(reference["errors"])
                row["off_by"] = float(np.max(np.abs(errors - theirs) / np.abs(theirs)))
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each study and platform."""
    heads = f"{'study':78s} {'platform':>8s} {'block':>6s} {'compile s':>9s} {'run s':>8s}"
    lines = [f"{heads} {'us/round':>9s} {'faster':>8s} {'error':>10s} {'off by':>8s}"]
    reference: dict[str, Any] = {}
    for row in rows:
        title = f"{row['study']}, {row['seeds']:,} seeds"
        if row["platform"] == rows[0]["platform"]:
            reference = row
        else:
            title = ""
        if "failed" in row:
            lines.append(f"{title:78s} {row['platform']:>8s} {row['failed']}")
            continue
        ratio = f"{reference['seconds'] / row['seconds']:.1f}x" if "off_by" in row else ""
        off_by = f"{row['off_by']:.1e}" if "off_by" in row else ""
        cost = row["seconds"] / row["seeds"] / row["rounds"] * 1e6
        lines.append(
            f"{title:78s} {row['platform']:>8s} {row['block']:>6s} {row['compile_seconds']:9.1f} "
            f"{row['seconds']:8.3f} {cost:9.2f} {ratio:>8s} {row['error']:10.3e} {off_by:>8s}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(studies())}")
    parser.add_argument("--platforms", nargs="+", default=["cpu", "cuda"], help="the first is 1x")
    parser.add_argument("--minutes", type=float, default=4.0, help="of each platform")
    parser.add_argument("--out", type=Path, help="also write the numbers to this file, in JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.studies) - set(studies()):
        parser.error(f"unknown study {', '.join(unknown)}; known: {', '.join(studies())}")
    names = options.studies or list(studies())
    if options.child:
        child(names)
        return
    measured = {}
    machines = {}
    for platform in options.platforms:
        machines[platform], measured[platform] = on(platform, names, options.minutes)
        print(f"{machines[platform]}\n", flush=True)
    rows = compared(names, measured)
    print("\n".join(table(rows)))
    if options.out:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        report = {"machines": machines, "date": date, "rows": rows}
        replace_file(options.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
