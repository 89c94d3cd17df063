"""How a study scales in clients, parameters, seeds, workers and devices.

    python -m experiments.benchmarks.scaling [--quick] [--largest K] [--only AXIS ...] [--out FILE]

Every point runs in its own process, so that peak memory is measured per point and device counts can
differ. Private zCDP-NFL on ridge regression with 8 samples a client, on a random connected graph
of six neighbors on average, with the inverse of the largest curvature as step size, half of what
theory allows; `--quick` takes small sizes and draws no picture. A study whose error does not
decrease is refused.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

import fljax as fl
from experiments.benchmarks.machine import header
from experiments.benchmarks.pictures import PICTURES, save
from fljax import plotting
from fljax._core.storage import replace_file

POINT = {"clients": 100, "samples": 8, "dim": 32, "seeds": 1, "workers": 1, "devices": 1}
PENALTY = 3.0
LABELS = {
    "clients": "clients K",
    "dim": "parameters D",
    "seeds": "seeds S",
    "workers": "workers (blocks in flight)",
    "devices": "devices (simulated on the host)",
}


def axes(quick: bool, largest: int) -> dict[str, list[dict[str, int]]]:
    """The points of every axis."""
    clients = [10**p for p in range(2, 7) if 10**p <= largest]
    dims = (8, 32, 128, 512)
    seeds = (1, 10, 100, 1000)
    study = 64
    if quick:
        clients = [100, 1000]
        dims = (8, 32)
        seeds = (1, 10)
        study = 8
    elif largest not in clients:
        clients.append(largest)
    many = {"clients": 50, "dim": 8, "seeds": study}
    return {
        "clients": [POINT | {"clients": k} for k in clients],
        "dim": [POINT | {"clients": 100 if quick else 1000, "dim": d} for d in dims],
        "seeds": [POINT | {"clients": 50, "dim": 8, "seeds": s} for s in seeds],
        "workers": [POINT | many | {"workers": w} for w in (1, 2)],
        "devices": [POINT | many | {"devices": d} for d in (1, 2)],
    }


def measure(point: dict[str, int]) -> dict[str, float]:
    """One study in this process."""

    def scenario(key: jax.Array) -> fl.Simulation:
        k_graph, k_data = jax.random.split(key)
        problem = fl.problems.ridge(k_data, point["clients"], point["samples"], point["dim"])
        # With a constant step and little noise it is DLM, whose bound is that of any network.
        bound = fl.algorithms.DLM(PENALTY, 1.0).step_bound(problem, None, None)
        return fl.Simulation(
            problem=problem,
            network=fl.graphs.random_connected(k_graph, point["clients"], mean_degree=6),
            algorithm=fl.algorithms.ZCDPNFL(PENALTY, bound / 2),
            privacy=fl.privacy.ZCDP(10.0, 0.99),
            metrics=["normalized_error"],
        )

    def study(rounds: int) -> Any:
        return fl.sweep(
            scenario,
            rounds=rounds,
            seeds=point["seeds"],
            record_every=rounds,
            workers=point["workers"],
            progress=False,
        )

    # Many rounds if they are short, so that they dominate the set-up and converge.
    numbers = point["clients"] * point["dim"] * point["seeds"]
    rounds = max(20, min(1000, 10**8 // numbers))
    # A long run minus a short one is the time of its rounds; the rest of the short one is set-up.
    first = {count: study(count) for count in (1, 1 + rounds)}
    repeats = 1 if point["clients"] > 10**5 else 3
    short, long = (
        min(study(count).attrs["run_seconds"] for _ in range(repeats)) for count in first
    )
    a_round = (long - short) / rounds
    error = float(first[1 + rounds].normalized_error.isel(round=-1).mean()) / point["clients"]
    if not error < 1:  # that of the initial models
        raise RuntimeError(f"the runs of {point} diverge: their error is {error}.")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    return {
        "rounds": 1 + rounds,
        "compile": first[1 + rounds].attrs["compile_seconds"],
        "setup": max(short - a_round, 0.0),
        "round": a_round,
        "run": long,
        "peak": peak,
        "error": error,
    }


def in_a_process(point: dict[str, int]) -> dict[str, float]:
    """One study in its own process; a CPU simulates the requested number of devices."""
    environment = dict(os.environ)
    if point["devices"] > 1 or jax.default_backend() == "cpu":
        flags = environment.get("XLA_FLAGS", "")
        count = f"--xla_force_host_platform_device_count={point['devices']}"
        environment["XLA_FLAGS"] = f"{flags} {count}".strip()
    command = [sys.executable, "-m", "experiments.benchmarks.scaling", "--point", json.dumps(point)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{point} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def time_exponent(
    points: list[dict[str, int]], measured: list[dict[str, float]], axis: str
) -> float:
    """The exponent of the time of a round between the two largest points."""
    (low, high), (short, long) = (p[axis] for p in points[-2:]), (f["round"] for f in measured[-2:])
    return float(np.log(long / short) / np.log(high / low))


def draw(studies: dict[str, tuple[list, list]], to: Path) -> None:
    """One panel an axis, and the memory against the number of clients."""
    with plotting.style():
        figure, panels = plt.subplots(2, 3, figsize=(11, 6.4))
        for panel, (axis, (points, result)) in zip(panels.flat, studies.items(), strict=False):
            at = np.asarray([p[axis] for p in points], float)
            for name, look in zip(("round", "setup", "compile"), plotting.LOOKS, strict=False):
                times = [f[name] for f in result]
                label = {"round": "a round of all seeds", "setup": "set-up", "compile": "compiling"}
                panel.plot(at, times, label=label[name], **look)
            guide = result[0]["round"] * at / at[0]
            if axis in ("workers", "devices"):
                guide = result[0]["round"] * at[0] / at
            panel.plot(at, guide, color="gray", linewidth=0.8, label="proportional")
            panel.set(xscale="log", yscale="log", xlabel=LABELS[axis], ylabel="seconds")
            if axis in ("workers", "devices"):
                panel.set_xticks(at, [f"{value:g}" for value in at])
                panel.minorticks_off()
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        points, result = studies["clients"]
        at = np.asarray([p["clients"] for p in points], float)
        memory = np.asarray([f["peak"] for f in result]) / 2**30
        data = at * POINT["samples"] * POINT["dim"] * 4 / 2**30
        panels.flat[-1].plot(at, memory, label="peak of the process", **plotting.LOOKS[0])
        panels.flat[-1].plot(at, data, color="gray", linewidth=0.8, label="the features alone")
        panels.flat[-1].set(
            xscale="log", yscale="log", xlabel=LABELS["clients"], ylabel="memory (GiB)"
        )
        panels.flat[-1].legend()
        save(figure, "Private zCDP-NFL", to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, no picture")
    parser.add_argument("--largest", type=int, default=100_000, help="network")
    parser.add_argument("--only", nargs="+", choices=list(LABELS), help="these axes, no picture")
    parser.add_argument("--out", help="also write the table to this file")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        warnings.simplefilter("ignore", fl.AssumptionWarning)  # only times matter
        print(json.dumps(measure(json.loads(arguments.point))))
        return
    # Otherwise this process would reserve most of a GPU's memory and leave none for the points.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    began = time.perf_counter()
    lines = header().splitlines()
    print("\n".join(lines), flush=True)
    studies = {}
    for axis, points in axes(arguments.quick, arguments.largest).items():
        if arguments.only and axis not in arguments.only:
            continue
        heads = ("rounds", "compile s", "set-up s", "run s", "ms/round", "peak GiB", "error")
        table = [f"\n{LABELS[axis]:>32s}" + "".join(f"{head:>11s}" for head in heads)]
        result = []
        for point in points:
            result.append(row := in_a_process(point))
            table.append(
                f"{point[axis]:32,d}{row['rounds']:11d}{row['compile']:11.2f}{row['setup']:11.3f}{row['run']:11.3f}"
                f"{row['round'] * 1e3:11.3f}{row['peak'] / 2**30:11.2f}{row['error']:11.2e}"
            )
            print("\n".join(table[-1:] if len(result) > 1 else table), flush=True)
        lines += table
        studies[axis] = points, result
        lines.append(
            f"time of a round grows with the power {time_exponent(points, result, axis):.2f}"
        )
        print(lines[-1], flush=True)
    lines.append(f"\nmeasured in {time.perf_counter() - began:.0f} s")
    print(lines[-1])
    if arguments.out:
        replace_file(Path(arguments.out), "\n".join(lines) + "\n")
    if not (arguments.quick or arguments.only):
        draw(studies, PICTURES / "scaling.png")


if __name__ == "__main__":
    main()
