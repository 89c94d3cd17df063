"""Local steps of networks beside a bare JAX loop of the same clients, in turns in one process.

A round is of a few clients of equal size, each with one epoch of shuffled batches and an average.
The bare loop is what one would write for these clients alone: the network of flax or of plain
functions, ``jax.grad``, a loop over steps, a map over clients, all in one compiled program; batch
normalization carries its statistics through the steps and averages them.

    python -m experiments.benchmarks.local_steps [--turns N] [NAME ...]
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fljax as fl
from experiments.benchmarks.machine import header
from fljax.models import Architecture
from fljax.problems import Loss, Model, Softmax, TokenCrossEntropy

STEP_SIZE = 0.1


class Workload(NamedTuple):
    """A network with its data's sizes."""

    network: Architecture
    sample: tuple[int, ...]
    outputs: int  # classes, or tokens of a vocabulary
    clients: int = 4
    samples: int = 80
    batch: int = 20
    rounds: int = 2
    tokens: bool = False
    state: str | None = None  # the policy of a network's state

    @property
    def steps(self) -> int:
        """Number of all clients' steps in a run."""
        return self.rounds * self.clients * (self.samples // self.batch)


def convolutions(norm: str) -> Architecture:
    """A small residual network, with group or batch normalization."""
    return fl.models.resnet(10, norm, blocks=(1, 1), width=16, groups=8)


SMALL = Workload(convolutions("batch"), (16, 16, 3), 10, batch=20)

WORKLOADS = {
    "mlp": Workload(fl.models.mlp(60, hidden=[128]), (784,), 60, clients=20, samples=400, rounds=5),
    "cnn": Workload(fl.models.cnn(10), (28, 28, 1), 10, clients=4, samples=100),
    "resnet18, group": Workload(
        fl.models.resnet(10), (32, 32, 3), 10, clients=2, samples=20, batch=10, rounds=1
    ),
    "lstm": Workload(
        fl.models.lstm(90), (80,), 90, clients=2, samples=20, batch=10, tokens=True, rounds=1
    ),
    "transformer": Workload(
        fl.models.transformer(90, longest=80), (80,), 90, samples=40, batch=10, tokens=True
    ),
    "small resnet, group": SMALL._replace(network=convolutions("group")),
    "small resnet, batch, averaged": SMALL._replace(state="averaged"),
    "small resnet, batch, kept": SMALL._replace(state="kept"),
    "small resnet, batch, reset": SMALL._replace(state="reset"),
}


def problem_of(workload: Workload) -> Model:
    rng = np.random.default_rng(0)
    shape = (workload.clients, workload.samples)
    if workload.tokens:
        features: Any = rng.integers(1, workload.outputs, (*shape, *workload.sample))
        targets: Any = rng.integers(1, workload.outputs, (*shape, *workload.sample))
        loss: Loss = TokenCrossEntropy(workload.outputs)
    else:
        features = rng.standard_normal((*shape, *workload.sample), np.float32)
        targets = rng.integers(0, workload.outputs, shape)
        loss = Softmax(workload.outputs)
    data = list(zip(features, targets, strict=True))
    return Model.from_clients(workload.network, jax.random.key(0), data, loss, state=workload.state)


def by_fljax(workload: Workload) -> Callable[[int], Any]:
    """A run as users write it, compiled."""
    algorithm = fl.algorithms.FedAvg(STEP_SIZE, batch=workload.batch)
    simulation = fl.Simulation(problem_of(workload), algorithm)

    def run(seed: int) -> Any:
        return fl.run(simulation, workload.rounds, key=fl.random_key(seed)).model.values

    return run


def by_hand(workload: Workload) -> Callable[[int], Any]:
    """The bare loop."""
    problem = problem_of(workload)
    network = workload.network
    stand_in = jnp.zeros((1, *workload.sample), problem.features.dtype)
    parameters = network.init(jax.random.key(1), stand_in)
    state = network.init_state(jax.random.key(1), stand_in)
    features = jnp.asarray(problem.features)
    targets = jnp.asarray(problem.targets).astype(jnp.int32)
    steps = workload.samples // workload.batch

    def loss(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        predicted, state = network.train(parameters, state, x, jax.random.key(0))
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predicted, y)), state

    def train(start: Any, own: Any) -> Any:
        x, y, key = own
        order = jax.random.permutation(key, workload.samples).reshape(steps, workload.batch)

        def step(carry: Any, rows: Any) -> Any:
            parameters, state = carry
            gradient, state = jax.grad(loss, has_aux=True)(parameters, state, x[rows], y[rows])
            parameters = jax.tree.map(lambda w, g: w - STEP_SIZE * g, parameters, gradient)
            return (parameters, state), None

        return jax.lax.scan(step, start, order)[0]

    def one_round(model: Any, key: Any) -> Any:
        keys = jax.random.split(key, workload.clients)
        trained = jax.lax.map(functools.partial(train, model), (features, targets, keys))
        return jax.tree.map(lambda a: jnp.mean(a, axis=0), trained), None

    @jax.jit
    def run(key: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            keys = jax.random.split(key, workload.rounds)
            return jax.lax.scan(one_round, (parameters, state), keys)[0]

    return lambda seed: jax.block_until_ready(run(jax.random.key(seed)))


def compare(name: str, turns: int) -> str:
    """The line of a workload: medians over the turns of both times and of their ratio."""
    workload = WORKLOADS[name]
    sides = by_fljax(workload), by_hand(workload)
    for side in sides:
        side(0)
    seconds: list[list[float]] = [[], []]
    for turn in range(turns):
        for number in (0, 1) if turn % 2 else (1, 0):
            began = time.perf_counter()
            sides[number](turn)
            seconds[number].append(time.perf_counter() - began)
    ratio = statistics.median(a / b for a, b in zip(*seconds, strict=True))
    times = "".join(f"{1e3 * statistics.median(s) / workload.steps:12.3f}" for s in seconds)
    return f"{name:32s}{times}{ratio:10.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *WORKLOADS], metavar="NAME")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    print(header())
    print(f"\n{'ms of a step of a client':32s}{'fljax':>12s}{'by hand':>12s}{'ratio':>10s}")
    for name in options.names or WORKLOADS:
        print(compare(name, options.turns), flush=True)


if __name__ == "__main__":
    main()
