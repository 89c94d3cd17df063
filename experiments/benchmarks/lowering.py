"""Whether runs compile for accelerators that this machine does not have.

    python -m experiments.benchmarks.lowering [--clients K] [--out FILE.json]

The whole program of a run of every registered algorithm (graph and data drawn, budget spread,
rounds, metrics), and of a network, is lowered for CUDA and for TPUs, in the form that it takes on
an accelerator. Programs that do not lower are listed with the reason: learners on the host, whose
callbacks JAX binds to a present device. Whether a program then runs, and how fast, can only be
measured on such a machine.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

import fljax as fl
from experiments.benchmarks.machine import commit
from experiments.benchmarks.roofline import simulation
from fljax._core.devices import traced_for
from fljax._core.prng import GENERATOR, GENERATORS, random_key
from fljax._core.storage import replace_file
from fljax.simulation.scan import trace
from tests.cases import CASES
from tests.cases.costs import Size

#: The target platforms.
PLATFORMS = ("cuda", "tpu")
ROUNDS = 4
#: Enough clients for tables of neighbors, and for programs that a CPU would run in groups.
SIZE = Size(clients=300, samples=6, dim=16, mean_degree=4, seeds=1)

HOSTED = "Model-agnostic FedRelax, learners"

Scenario = Callable[[jax.Array, Size], fl.Simulation]


class Lowered(NamedTuple):
    """One program on one platform."""

    name: str
    platform: str
    kilobytes: float  # of its text
    seconds: float
    reason: str  # why it does not lower; empty if it does


class Mean:
    """The least of learners: predicts its samples' weighted mean."""

    def fit(self, features: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> None:
        self.mean = np.average(targets, weights=sample_weight)

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.mean)


def drawn(label: str) -> Scenario:
    """A run of a registered algorithm, of a size that suits all of them."""
    return lambda key, size: simulation(key, size, CASES[label])


def hosted(key: jax.Array, size: Size) -> fl.Simulation:
    """A run whose clients' models are fitted by the host."""
    shape = (size.clients, size.samples, size.dim)
    return fl.Simulation(
        problem=fl.problems.least_squares(key, *shape),
        network=fl.graphs.random_connected(key, size.clients, size.mean_degree),
        algorithm=fl.algorithms.ModelAgnosticFedRelax(0.3, np.ones((4, size.dim)), learners=Mean()),
    )


def network(key: jax.Array, size: Size) -> fl.Simulation:
    """Federated averaging of a CNN on images like MNIST's, judged on all of them."""
    images = jax.random.uniform(key, (size.clients, size.samples, 28, 28, 1))
    problem = fl.problems.Model(
        images,
        jax.random.randint(key, images.shape[:2], 0, 10),
        fl.problems.Softmax(10),
        architecture=fl.models.cnn(10),
    )
    return fl.Simulation(
        problem=problem.initialized(key),
        algorithm=fl.algorithms.FedAvg(0.05, clients_per_round=10, batch=3),
        metrics=["train_error"],
    )


#: What is lowered, by name: every registered algorithm, a network, one on the host, the other
#: generators.
PROGRAMS: dict[str, tuple[Scenario, str]] = {
    **{label: (drawn(label), GENERATOR) for label in CASES},
    "FedAvg, a CNN": (network, GENERATOR),
    HOSTED: (hosted, GENERATOR),
    **{f"zCDP-NFL, {name}": (drawn("zCDP-NFL"), name) for name in GENERATORS if name != GENERATOR},
}


def program(name: str, platform: str, size: Size = SIZE) -> str:
    """The text of a run for one platform, from the bits of its key on."""
    scenario, generator = PROGRAMS[name]

    def run(bits: jax.Array) -> Any:
        key = jax.random.wrap_key_data(bits, impl=GENERATORS[generator])
        return trace(scenario(key, size), key, ROUNDS, ROUNDS)

    bits = jax.eval_shape(lambda: jax.random.key_data(random_key(0, generator)))
    with traced_for(platform):
        return export.export(jax.jit(run), platforms=(platform,))(bits).mlir_module()


def lowered(name: str, platform: str, size: Size = SIZE) -> Lowered:
    """The outcome of :func:`program`."""
    began = time.perf_counter()
    text = ""
    reason = ""
    try:
        text = program(name, platform, size)
    except (NotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
    return Lowered(name, platform, len(text) / 1e3, time.perf_counter() - began, reason)


HEAD = f"{'':36s}" + "".join(f"{name:>18s}" for name in PLATFORMS)


def line(rows: list[Lowered]) -> str:
    """One line of the table."""
    cells = [
        f"{row.kilobytes:.0f} kB, {row.seconds:.1f} s" if not row.reason else "no" for row in rows
    ]
    return f"{rows[0].name:36s}" + "".join(f"{cell:>18s}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=SIZE.clients)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    size = SIZE._replace(clients=options.clients)
    print(f"commit {commit()}, jax {jax.__version__}, {size}\n\n{HEAD}")
    result = []
    for name in PROGRAMS:
        rows = [lowered(name, platform, size) for platform in PLATFORMS]
        print(line(rows), flush=True)
        result += rows
    for row in result:
        if row.reason:
            print(f"{row.name} for {row.platform}: {row.reason}")
    if options.out:
        replace_file(options.out, json.dumps([row._asdict() for row in result], indent=1) + "\n")


if __name__ == "__main__":
    main()
