"""How far every registered algorithm is from the machine's limits.

    python -m experiments.benchmarks.roofline [--quick] [--clients K] [--out FILE]

Per round and run: the bytes that must be moved, the floating-point operations and the normal
numbers drawn, all counted by hand (`tests.cases.costs`); the time a round takes in a run
so long that its set-up, which is not taken out, is a few percent; and the share of that time which
the machine's measured bandwidth, matrix rate and generator would need for the same work. Two
sizes: a Monte-Carlo study whose working set stays in the caches, and one large network.

XLA's own count for one noiseless step and a stream's samples is reported as well; it includes the
empty slots of a neighbor table, second passes over the same array, and the generator's integer
operations (some 450 a number) as flops.
"""

import argparse
import dataclasses
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fljax as fl
from experiments.benchmarks.machine import (
    MAIN_MEMORY,
    best_of,
    header,
    matrix_rate,
    update_bandwidth,
)
from experiments.benchmarks.pictures import PICTURES, save
from fljax import plotting
from fljax._core.prng import GENERATOR, as_key, normal
from fljax._core.storage import replace_file
from fljax.algorithms import GeneralizedGradient, ISFedAvg, ModelAgnosticFedRelax
from fljax.simulation.run_state import Carry, Prepared
from fljax.simulation.scan import begin, make_round, prepare
from fljax.simulation.scenario import Simulation
from tests.cases import CASES, Case
from tests.cases.costs import INPUTS, SERVED, Cost, Size

WORD = 4  # bytes of a float32 or an int32


def simulation(key: jax.Array, size: Size, case: Case, private: bool = True) -> Simulation:
    """Ridge regression on a random connected graph, of clients or servers, with two clusters; or
    a stream of random features, or two classes.
    """
    k_graph, k_data, k_more = jax.random.split(key, 3)
    algorithm = case.algorithm
    network = None
    privacy = None
    needs = type(algorithm).needs
    if isinstance(algorithm, ISFedAvg):  # whose batches are of the small world's clients
        algorithm = dataclasses.replace(
            algorithm, clients_per_round=size.clients, batch=size.samples
        )
    if isinstance(algorithm, ModelAgnosticFedRelax | GeneralizedGradient):
        algorithm = dataclasses.replace(algorithm, test_set=None)  # in the small world's features
    shape = (size.clients, size.samples, size.dim)
    if needs.data == "stream":
        features = fl.data.random_fourier(k_more, INPUTS, size.dim)
        problem = fl.streams.autoregressive(k_data, size.clients, features, test_samples=1)
    elif needs.classes or needs.representation:
        problem = fl.problems.softmax(k_data, *shape[:2], size.dim // 2, classes=2)
    else:
        validation = fl.problems.ridge(k_more, *shape) if needs.validation else None
        tasks = fl.problems.Tasks(np.arange(size.clients) % 2, 2, validation=validation)
        problem = dataclasses.replace(fl.problems.ridge(k_data, *shape), tasks=tasks)
    if needs.network is fl.graphs.Graph:
        network = fl.graphs.random_connected(k_graph, size.clients, size.mean_degree)
    if needs.network is fl.federation.Federation:
        servers = fl.graphs.random_connected(k_graph, size.clients // SERVED, mean_degree=3)
        network = fl.federation.balanced(SERVED, servers)
    if private and case.privacy is not None:
        privacy = case.privacy
        if hasattr(privacy, "decay"):
            # The small world's decay over many rounds would start with infinite noise.
            privacy = dataclasses.replace(privacy, decay=1.0)
    return fl.Simulation(
        problem=problem,
        network=network,
        algorithm=algorithm,
        privacy=privacy,
        metrics=["consensus_error"],
    )


def study_seconds(size: Size, case: Case, rounds: int) -> float:
    """Seconds a round and run of a batched study."""

    def scenario(key: jax.Array) -> Simulation:
        return simulation(key, size, case)

    def once() -> float:
        study = fl.sweep(
            scenario, rounds=rounds, seeds=size.seeds, record_every=rounds, progress=False
        )
        return study.attrs["run_seconds"]

    return min(once() for _ in range(3)) / rounds / size.seeds


def run_seconds(size: Size, case: Case, rounds: int) -> float:
    """Seconds a round of one large run whose data and graph exist already."""
    large_run = simulation(as_key(0), size, case)

    def once() -> Any:
        return fl.run(large_run, rounds, record_every=rounds).consensus_error.values

    once()
    return best_of(once, 3) / rounds


def counted_by_xla(size: Size, case: Case) -> tuple[float, float]:
    """Bytes accessed and flops of one compiled noiseless step, a stream's new samples included."""

    def start(key: jax.Array) -> tuple[Simulation, Prepared, Carry]:
        scenario = simulation(key, size, case, private=False)
        prepared = prepare(scenario, 1)
        return scenario, prepared, begin(scenario, prepared, key)

    def step(scenario: Simulation, prepared: Prepared, carry: Carry) -> Any:
        now, stream, _ = make_round(
            scenario, prepared, as_key(0), carry, jnp.asarray(1, jnp.int32), 1
        )
        return scenario.algorithm.step(carry.state, now), stream

    shapes = jax.eval_shape(start, as_key(0))
    result = jax.jit(step).lower(*shapes).compile().cost_analysis()
    return result["bytes accessed"], result["flops"]


class Limits(NamedTuple):
    """The measured limits of the device."""

    bandwidth: float  # bytes per second at the working set in question
    flops: float  # per second
    draws: float  # normal numbers per second

    def seconds(self, cost: Cost) -> float:
        """The least time: the larger of memory traffic and arithmetic, random numbers included."""
        computing = cost.flops / self.flops + cost.draws / self.draws
        return max(WORD * cost.words / self.bandwidth, computing)


def draw_rate(count: int = 2**20) -> float:
    """Normal numbers per second on the whole device, from the generator that runs use."""

    def total(key):
        def add(sum_, round):
            return sum_ + normal(jax.random.fold_in(key, round), (count,), sum_.dtype), None

        return jax.lax.scan(add, jnp.zeros(count), jnp.arange(8))[0]

    draw = jax.jit(total)
    key = as_key(0)
    draw(key).block_until_ready()
    return 8 * count / best_of(lambda: draw(key), 3)


class Row(NamedTuple):
    """One algorithm at one size."""

    label: str
    seconds: float  # a round and run
    cost: Cost
    fraction: float  # of the limits
    xla_bytes: float  # XLA's count of a noiseless step over the count by hand
    xla_flops: float


HEADS = ("us/round", "kB", "kflop", "kdraws", "GB/s", "GFLOP/s", "of limit", "XLA bytes")
TITLES = " " * 28 + "".join(f"{head:>10s}" for head in (*HEADS, "XLA flops"))


def line(row: Row) -> str:
    """One line of the table."""
    moved = WORD * row.cost.words
    return (
        f"{row.label:28s}{row.seconds * 1e6:10.2f}{moved / 1e3:10.1f}"
        f"{row.cost.flops / 1e3:10.1f}{row.cost.draws / 1e3:10.1f}"
        f"{moved / row.seconds / 1e9:10.1f}{row.cost.flops / row.seconds / 1e9:10.1f}"
        f"{row.fraction:10.0%}{row.xla_bytes:9.1f}x{row.xla_flops:9.1f}x"
    )


def measure(size: Size, rounds: int, limits: Limits) -> list[Row]:
    """One row for each registered algorithm."""
    rows = []
    for label, case in CASES.items():
        private = case.privacy is not None
        noiseless = case.cost(size, False)
        cost = case.cost(size, private)
        seconds = (study_seconds if size.seeds > 1 else run_seconds)(size, case, rounds)
        accessed, flops = counted_by_xla(size, case)
        rows.append(
            Row(
                label + (", private" if private else ""),
                seconds,
                cost,
                limits.seconds(cost) / seconds,
                accessed / (WORD * noiseless.words),
                flops / noiseless.flops,
            )
        )
        print(line(rows[-1]), flush=True)
    return rows


def draw(studies: dict[str, tuple[list[Row], Limits]], to: Path) -> None:
    """Achieved rate against arithmetic intensity, under the roofs of the memories."""
    kinds = len(plotting.LOOKS)
    with plotting.style():
        figure, axes = plt.subplots(
            1, len(studies), figsize=(10.5, 6.6), sharey=True, squeeze=False
        )
        for axis, (title, (rows, limits)) in zip(axes[0], studies.items(), strict=True):
            intensity = np.geomspace(0.1, 30, 200)
            roof = np.minimum(intensity * limits.bandwidth, limits.flops) / 1e9
            axis.plot(intensity, roof, color="black", label="measured limit")
            axis.plot(intensity, roof / 2, color="black", linestyle=":", label="half of it")
            for number, row in enumerate(rows):
                # Every color meets every marker before a look comes back.
                marker = plotting.LOOKS[(number + number // kinds) % kinds]["marker"]
                at = row.cost.flops / (WORD * row.cost.words)
                axis.plot(
                    at,
                    row.cost.flops / row.seconds / 1e9,
                    linestyle="none",
                    color=plotting.LOOKS[number % kinds]["color"],
                    marker=marker,
                    markersize=8,
                    label=f"{row.label}: {row.fraction:.0%}",
                )
            axis.set(xscale="log", yscale="log", xlabel="arithmetic intensity (flop per byte)")
            axis.set_title(f"{title}\nmemory {limits.bandwidth / 1e9:.0f} GB/s, "
                           f"product {limits.flops / 1e9:.0f} GFLOP/s")  # fmt: skip
            axis.legend(
                title="share of the limit, generator included",
                loc="upper center",
                bbox_to_anchor=(0.5, -0.14),
                ncols=2,
            )
        axes[0, 0].set_ylabel("achieved rate (GFLOP/s)")
        save(figure, "A round of every algorithm", to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, no picture")
    parser.add_argument("--clients", type=int, default=100_000, help="of the large network")
    parser.add_argument("--out", help="also write the table to this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", fl.AssumptionWarning)  # only times matter
    lines = header().splitlines()
    curve = [(2**p, update_bandwidth(2**p)) for p in (16, 18, 20, 22, 24, 26, 28)]
    rates = ", ".join(f"{size / 2**20:g} MiB {rate / 1e9:.0f}" for size, rate in curve)
    lines.append(f"update in place, GB/s by working set: {rates}")
    flops = matrix_rate()
    draws = draw_rate()
    lines.append(f"normal numbers ({GENERATOR}) {draws / 1e6:.0f} million a second")
    print("\n".join(lines), flush=True)
    large = 2_000 if arguments.quick else arguments.clients
    seeds = 8 if arguments.quick else 96
    sizes = {
        "Monte-Carlo study in the caches": (Size(50, 50, 8, 3, seeds), 1000, 2**20),
        "Large network": (Size(large, 8, 32, 6, 1), 40, MAIN_MEMORY),
    }
    studies = {}
    for name, (size, rounds, working_set) in sizes.items():
        limits = Limits(update_bandwidth(working_set), flops, draws)
        shape = f"K={size.clients:,}, N={size.samples}, D={size.dim}"
        title = f"{name}: {shape}" + (f", {size.seeds} seeds" if size.seeds > 1 else "")
        head = [f"\n{title}; memory {limits.bandwidth / 1e9:.1f} GB/s", TITLES]
        print("\n".join(head), flush=True)
        rows = measure(size, rounds, limits)
        studies[title] = rows, limits
        lines += [*head, *(line(row) for row in rows)]
    if arguments.out:
        replace_file(Path(arguments.out), "\n".join(lines) + "\n")
    if not arguments.quick:
        draw(studies, PICTURES / "roofline.png")


if __name__ == "__main__":
    main()
