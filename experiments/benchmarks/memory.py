"""Whether a study takes the memory that `fljax.plan` announces.

    python -m experiments.benchmarks.memory [NAME ...]

Each study runs in its own process, after its programs are compiled. Measured is the peak of the
process's resident memory above its value before the run, so Python, JAX, compiled programs and a
scenario's own data are not counted. Linux only.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.machine import header

MB = 1e6


def small(
    key: jax.Array, step_size: Any = 0.05, metrics: Any = "normalized_error"
) -> fl.Simulation:
    problem = fl.problems.ridge(key, clients=10, samples=10, dim=4)
    return fl.Simulation(problem, fl.algorithms.ConventionalFL(step_size), metrics=metrics)


def trajectories(key: jax.Array) -> fl.Simulation:
    problem = fl.problems.ridge(key, clients=40, samples=10, dim=25)
    network = fl.graphs.ring(40)
    metrics = [fl.metrics.trajectory()]
    return fl.Simulation(problem, fl.algorithms.ATC(0.02), network, metrics=metrics)


def crowd(key: jax.Array) -> fl.Simulation:
    problem = fl.problems.ridge(key, clients=100_000, samples=10, dim=20)
    algorithm = fl.algorithms.FedAvg(0.01, clients_per_round=100, epochs=1, batch=5)
    return fl.Simulation(problem, algorithm, metrics="objective")


def each_client(key: jax.Array) -> fl.Simulation:
    problem = fl.problems.ridge(key, clients=500, samples=10, dim=5)
    return fl.Simulation(problem, fl.algorithms.FedAvg(0.01, epochs=1), metrics="train_error")


def private(key: jax.Array) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.ridge(k_data, clients=100, samples=10, dim=20).clipped(1.0),
        network=fl.graphs.random_connected(k_graph, nodes=100, mean_degree=4),
        algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
        privacy=fl.privacy.ZCDP(total_rho=1.0),
        metrics=["normalized_error", "consensus_error"],
    )


def stream(key: jax.Array) -> fl.Simulation:
    clients = 20_000
    dim = 20
    roots = jax.random.normal(key, (clients, dim, dim)) / dim
    source = fl.streams.Linear(roots, jnp.ones(dim), jnp.full(clients, 0.1))
    return fl.Simulation(source, fl.algorithms.OnlineFed(0.1), metrics="consensus_error")


def networks(key: jax.Array) -> fl.Simulation:
    problem = fl.problems.Model.from_clients(
        fl.models.mlp(10, (200, 200)), key, IMAGES, fl.problems.Softmax(10)
    )
    algorithm = fl.algorithms.SCAFFOLD(0.05, local_steps=2, batch=20)
    return fl.Simulation(problem, algorithm, metrics="train_error")


def late(key: jax.Array) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.ridge(k_data, clients=10_000, samples=10, dim=20),
        network=fl.graphs.random_connected(k_graph, nodes=10_000, mean_degree=6),
        algorithm=fl.algorithms.ATC(0.01),
        delays=fl.link.Geometric(0.2, 3, beyond="clip"),
        metrics="objective",
    )


def drawn(key: jax.Array) -> fl.Simulation:
    problem = fl.problems.ridge(key, clients=10, samples=10, dim=4)
    return fl.Simulation(
        problem,
        fl.algorithms.FedAvg(0.05, epochs=1),
        participation=fl.participation.Bernoulli(0.5),
        metrics="normalized_error",
    )


def dense(key: jax.Array) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.ridge(k_data, clients=3000, samples=10, dim=100),
        network=fl.graphs.erdos_renyi(k_graph, 3000, 0.05, form="dense"),
        algorithm=fl.algorithms.ATC(0.01),
        metrics="objective",
    )


_RNG = np.random.default_rng(0)
IMAGES = [
    (_RNG.normal(size=(60, 16, 16, 1)).astype(np.float32), _RNG.integers(0, 10, 60))
    for _ in range(50)
]

STEPS = np.linspace(0.01, 0.1, 2000).tolist()

STUDIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "many seeds": (small, {"rounds": 100, "seeds": 100_000}),
    "large grid": (small, {"rounds": 200, "seeds": 50, "grid": {"step_size": STEPS}}),
    "traffic that differs": (drawn, {"rounds": 100, "seeds": 20_000}),
    "trajectories": (trajectories, {"rounds": 200, "seeds": 100}),
    "of each client": (each_client, {"rounds": 200, "seeds": 200}),
    "private": (private, {"rounds": 100, "seeds": 5000, "keep_models": True}),
    "many clients": (crowd, {"rounds": 10, "seeds": 4}),
    "stream": (stream, {"rounds": 10, "seeds": 8}),
    "late peers": (late, {"rounds": 10, "seeds": 8}),
    "dense network": (dense, {"rounds": 10, "seeds": 2}),
    "networks": (networks, {"rounds": 3, "seeds": 2, "keep_models": True}),
}


def resident(what: str) -> int:
    """Bytes of resident memory: ``VmRSS`` is the current value, ``VmHWM`` the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def forget_peak() -> None:
    """Let the peak of resident memory begin anew, from what is resident now."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def measure(name: str) -> dict[str, float]:
    """A study in this process."""
    scenario, arguments = STUDIES[name]
    fl.sweep(small, rounds=2, seeds=2, progress=False)  # first-use memory of JAX and modules
    plan = fl.plan(scenario, **arguments)
    forget_peak()
    before = resident("VmRSS")
    results = fl.sweep(scenario, **arguments, progress=False)
    measured = resident("VmHWM") - before
    differing = any(results["messages"].values.strides[:-1])  # else all are views of one
    return {
        "announced": plan.memory_at_most if differing else plan.memory,
        "measured": measured,
        "results": plan.parts[0].results_at_most if differing else plan.parts[0].results,
    }


def child(*arguments: str, module: str = "memory") -> dict[str, float]:
    """The numbers of a study, named by these arguments, from a separate process."""
    program = [sys.executable, "-W", "ignore", "-m", f"experiments.benchmarks.{module}"]
    command = [*program, "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    print(header())
    columns = ("announced", "measured", "results")
    print(f"{'':22}" + "".join(f"{f'{name} [MB]':>16}" for name in columns) + f"{'ratio':>8}")
    for name in options.names or STUDIES:
        result = child(name)
        numbers = "".join(f"{result[column] / MB:16.0f}" for column in columns)
        print(f"{name:22}{numbers}{result['announced'] / result['measured']:8.2f}", flush=True)


if __name__ == "__main__":
    main()
