"""Partitions: how long they take to draw, and studies on a pool or with clients' own arrays.

    python -m experiments.benchmarks.partitions [--quick]

Every study runs in its own process, after its programs are compiled; memory is the peak of the
process's resident memory during the run, Python and JAX included. Clients' own arrays are what a
scenario had before there were pools: each client's rows are copied and padded to the largest
client. Linux only.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.machine import best_of, header
from experiments.benchmarks.memory import child, forget_peak, resident, small

MB = 1e6
ROWS = 60_000
CLIENTS = 100
FEATURES = 784
CLASSES = 10
CONCENTRATIONS = (0.1, 1.0, 10.0)
MANY = 300
ROUNDS = 20

RULES: Mapping[str, fl.partitions.Partitioner] = {
    "IID": fl.partitions.IID(),
    "Dirichlet by class, 0.3": fl.partitions.Dirichlet(0.3),
    "Dirichlet by client, 0.3": fl.partitions.EqualDirichlet(0.3),
    "two labels a client": fl.partitions.LabelsPerClient(2),
    "two shards a client": fl.partitions.Shards(2),
    "power law": fl.partitions.PowerLawSizes(1.0),
    "at least ten rows": fl.partitions.AtLeast(fl.partitions.Dirichlet(0.1), 10),
}

#: Studies: the rule, whether on a pool, seeds and concentrations, and the network, if any.
STUDIES: Mapping[str, tuple[str, bool, int, int, bool]] = {
    "softmax, equal sizes, pool": ("equal", True, 4, 1, False),
    "softmax, equal sizes, own arrays": ("equal", False, 4, 1, False),
    "softmax, power law, pool": ("power", True, 4, 1, False),
    "softmax, power law, own arrays": ("power", False, 4, 1, False),
    "softmax, 100 seeds x 3 concentrations, pool": ("equal", True, 100, 3, False),
    "CNN, equal sizes, pool": ("equal", True, 2, 1, True),
    "CNN, equal sizes, own arrays": ("equal", False, 2, 1, True),
}


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of noise: times do not depend on what they show."""
    rng = np.random.default_rng(0)
    return rng.random((rows, FEATURES), np.float32), rng.integers(0, CLASSES, rows)


def scenario(name: str, rows: int) -> Callable[..., fl.Simulation]:
    """FedAvg of ten clients a round, one pass in batches of ten."""
    sizes, pooled, _, _, network = STUDIES[name]
    x, y = data(rows)
    if network:
        x = x.reshape(-1, 28, 28, 1)
    largest = 3 * rows // CLIENTS
    loss = fl.problems.Softmax(CLASSES)
    architecture = fl.models.cnn(CLASSES, channels=[8], hidden=[32])

    def build(key: jax.Array, concentration: Any) -> fl.Simulation:
        rule = (
            fl.partitions.EqualDirichlet(concentration)
            if sizes == "equal"
            else fl.partitions.AtMost(fl.partitions.PowerLawSizes(concentration), 10 * largest)
        )
        if pooled and network:
            problem = fl.problems.Model.from_pool(
                architecture, key, x, y, loss, rule, CLIENTS, partition_key=key
            )
        elif pooled:
            problem = fl.problems.from_pool(x, y, loss, rule, CLIENTS, key=key)
        else:
            problem = own_arrays(key, x, y, rule, loss, architecture if network else None)
        algorithm = fl.algorithms.FedAvg(0.1, epochs=1, batch=10, clients_per_round=10)
        return fl.Simulation(problem, algorithm, metrics=["objective"])

    return build


def own_arrays(key: Any, x: Any, y: Any, rule: Any, loss: Any, architecture: Any) -> Any:
    """The same clients with their rows copied and padded to the largest that there may be."""
    partition = rule.draw(key, y, CLIENTS, classes=CLASSES)
    most = rule.bounds(len(x), CLIENTS)[1]
    position = jnp.arange(most)
    real = position[None] < partition.sizes[:, None]
    at = jnp.minimum(partition.offsets[:-1, None] + position[None], len(x) - 1)
    rows = partition.order[at]
    arguments = (jnp.asarray(x)[rows], jnp.asarray(y, jnp.float32)[rows], loss)
    weights = jnp.where(real, 1 / partition.sizes[:, None], 0)
    if architecture is None:
        return fl.problems.Problem(*arguments, weights=weights)
    labels = jnp.asarray(y, jnp.int32)[rows]
    initial = fl.problems.Model.from_pool(
        architecture, key, x[:CLIENTS], y[:CLIENTS], loss, fl.partitions.IID(), CLIENTS
    ).initial
    return fl.problems.Model(
        arguments[0], labels, loss, weights=weights, architecture=architecture, initial=initial
    )


def measure(name: str, rows: int, rounds: int, seeds: int) -> dict[str, float]:
    """Seconds of a round of a run, and megabytes, in this process."""
    build = scenario(name, rows)
    levels = STUDIES[name][3]
    arguments: dict[str, Any] = {
        "grid": {"concentration": list(CONCENTRATIONS[:levels] if levels > 1 else [1.0])},
        "seeds": seeds,
        "progress": False,
    }
    fl.sweep(small, rounds=2, seeds=2, progress=False)  # first-use memory of JAX and modules
    seconds = []
    for length in (1, rounds + 1):  # the rounds alone: partitions and evaluation are in both
        study: dict[str, Any] = arguments | {"rounds": length, "record_every": length}
        fl.sweep(build, **study)
        forget_peak()
        start = time.perf_counter()
        fl.sweep(build, **study)
        seconds.append(time.perf_counter() - start)
    runs = seeds * levels
    return {
        "round": (seconds[1] - seconds[0]) / rounds / runs,
        "first": seconds[0] / runs,
        "memory": resident("VmHWM") / MB,
    }


def draws(rows: int, count: int) -> None:
    """Time partitions of all rules, many in one program."""
    labels = np.random.default_rng(0).integers(0, CLASSES, rows)
    keys = jax.random.split(jax.random.key(0), count)
    print(f"\n{count} partitions of {rows} rows over {CLIENTS} clients")
    for name, rule in RULES.items():

        @jax.jit
        def many(keys: jax.Array, rule: Any = rule) -> Any:
            draw = lambda key: rule.draw(key, labels, CLIENTS, classes=CLASSES).offsets  # noqa: E731
            return jax.lax.map(draw, keys)

        jax.block_until_ready(many(keys))  # compiled
        seconds = best_of(lambda many=many: jax.block_until_ready(many(keys)), repeats=1)
        print(f"{name:28}{seconds:8.2f} s{1e3 * seconds / count:9.1f} ms each", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, *numbers = options.child
        print(json.dumps(measure(name, *map(int, numbers))))
        return
    print(header())
    rows = 2000 if options.quick else ROWS
    draws(rows, 3 if options.quick else MANY)
    title = f"FedAvg of 10 of {CLIENTS} clients, {rows} images, one pass in batches of 10"
    print(f"\n{title}\n{'':46}{'round [ms]':>12}{'first [ms]':>12}{'peak [MB]':>12}")
    for name, (_, _, seeds, _, _) in STUDIES.items():
        rounds = 2 if options.quick else ROUNDS
        numbers = (rows, rounds, 1 if options.quick else seeds)
        found = child(name, *map(str, numbers), module="partitions")
        print(
            f"{name:46}{1e3 * found['round']:12.1f}{1e3 * found['first']:12.1f}"
            f"{found['memory']:12.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
