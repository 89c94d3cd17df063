"""How far every registered algorithm is from what the machine allows.

    python -m experiments.benchmarks.roofline [--quick] [--clients K] [--out FILE]

Per round and run: the bytes that must be moved (each state array read and written once, the data
read once, each neighbour's model gathered once), the floating-point operations and the normal
numbers drawn, all counted by hand from the algorithm's own lines; the time a round takes in a run
so long that its set-up, which is not taken out, is a few percent; and the share of that time which
the machine's measured bandwidth, matrix rate and generator would need for the same work. Two
sizes: a Monte-Carlo study whose working set stays in the caches, and one large network.

Beside the count stands XLA's own for one noiseless step; it visits the empty slots of a neighbour
table and counts what a second pass over the same array reads again.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fljax as fl
from experiments.benchmarks.machine import (
    MAIN_MEMORY,
    PICTURES,
    best_of,
    commit,
    device,
    header,
    matrix_rate,
    update_bandwidth,
)
from fljax import plotting
from fljax.algorithms import REGISTRY, Algorithm
from fljax.link import Link
from fljax.rounds import Round
from fljax.simulation import PRNG, Simulation, as_key

WORD = 4  # bytes of a float32 or an int32


class Size(NamedTuple):
    """The shapes that decide what a round costs."""

    clients: int
    samples: int
    dim: int
    mean_degree: int
    seeds: int  # runs that share the device at a time

    @property
    def arcs(self) -> int:
        return self.clients * self.mean_degree

    @property
    def models(self) -> int:
        """Numbers in one array of all models."""
        return self.clients * self.dim


class Cost(NamedTuple):
    """What a round of one run must do."""

    words: float  # moved
    flops: float
    draws: float = 0  # normal numbers

    def __add__(self, other: Any) -> "Cost":
        return Cost(*(mine + yours for mine, yours in zip(self, other, strict=True)))


def mixing(size: Size) -> Cost:
    """A sum over neighbours, the result written: by matrix in a small network, else by list."""
    if size.clients < fl.graphs.DENSE_BELOW:
        return Cost(size.clients**2 + 2 * size.models, 2 * size.clients * size.models)
    gathered = size.arcs * size.dim
    return Cost(2 * size.arcs + gathered + size.models, 2 * gathered)


def gradient(size: Size, private: bool) -> Cost:
    """The Gram matrices or the samples, whichever fljax keeps; the bound check reads samples."""
    samples = size.clients * size.samples
    by_samples = Cost(samples * (size.dim + 3), 4 * samples * size.dim)  # targets, weights, norms
    if size.samples <= size.dim:
        return by_samples
    by_gram = Cost(size.models * (size.dim + 1), 2 * size.models * size.dim)
    check = Cost(samples * (size.dim + 3), 2 * samples * size.dim)
    return by_gram + check if private else by_gram


def exact_step(size: Size, private: bool) -> Cost:
    """A solve with the stored factor; the bound check reads the samples."""
    samples = size.clients * size.samples
    if size.samples < size.dim:
        words = samples * (size.dim + size.samples) + size.models
        flops = 4 * samples * size.dim + 2 * samples * size.samples
        extra = Cost(3 * samples, 2 * samples * size.dim)
    else:
        words = size.models * (size.dim + 1)
        flops = 2 * size.models * size.dim
        extra = Cost(samples * (size.dim + 3), 2 * samples * size.dim)
    return Cost(words, flops) + (extra if private else Cost(0, 0))


def update(size: Size, arrays: int, operations: int, private: bool) -> Cost:
    """State arrays read and written once, so many operations an entry, one noisy message."""
    written = size.models if private else 0  # what is heard is no longer what was said
    draws = size.models if private else 0
    return Cost(arrays * size.models + written, operations * size.models, draws)


class Entry(NamedTuple):
    """How an algorithm is measured and what its round must do."""

    make: Callable[[], Algorithm]
    privacy: Callable[[], Any]
    cost: Callable[[Size, bool], Cost]  # size, private


def _zcdp() -> fl.privacy.ZCDP:
    return fl.privacy.ZCDP(10.0, 0.999)


def _approximate() -> fl.privacy.ApproximateDP:
    return fl.privacy.ApproximateDP(1.0, 1e-5)


def _nothing() -> None:
    return None


def _linearised(size: Size, private: bool) -> Cost:
    # Read: heard, received, dual. Written: heard, dual (and received, with the mixing).
    return gradient(size, private) + mixing(size) + update(size, 5, 16, private)


def _exact(size: Size, private: bool) -> Cost:
    return exact_step(size, private) + mixing(size) + update(size, 5, 14, private)


def _subgradient(size: Size, private: bool) -> Cost:
    # Read: heard. Written: the model, with the mixing.
    return gradient(size, private) + mixing(size) + update(size, 1, 6, private)


def _server(size: Size, private: bool) -> Cost:
    # One shared model: nothing of size [K, D] need ever be stored.
    return gradient(size, private) + Cost(0, 4 * size.models, size.models if private else 0)


def _alone(size: Size, private: bool) -> Cost:
    # Read and written: the models.
    return gradient(size, private) + Cost(2 * size.models, 2 * size.models)


def _tuned(size: Size, private: bool) -> Cost:
    # The server's round, and a step of every client from its result.
    return _server(size, private) + gradient(size, private) + Cost(size.models, 2 * size.models)


def _attracted(size: Size, private: bool) -> Cost:
    # The server's round, and a step of every client from its own model.
    return _server(size, private) + _alone(size, private) + Cost(0, 3 * size.models)


def _enveloped(size: Size, private: bool) -> Cost:
    # Written: the personal models, all of which start at the server's.
    return exact_step(size, private) + Cost(size.models, 8 * size.models)


def _clustered(size: Size, private: bool) -> Cost:
    # A gradient, and the losses of two models in one pass over the samples.
    samples = size.clients * size.samples
    losses = Cost(samples * (size.dim + 2), 2 * samples * (2 * size.dim + 4))
    return gradient(size, private) + losses + Cost(size.models, 4 * size.models)


def _federated(size: Size, private: bool) -> Cost:
    # Read: duals, servers' models. Written: models, duals; a server has SERVED clients.
    servers = update(size, 1, 8, False)
    return exact_step(size, private) + update(size, 4, 10, private) + servers


def _averaged(size: Size, private: bool) -> Cost:
    return gradient(size, private) + update(size, 3, 8, private)


def _related(size: Size, private: bool) -> Cost:
    # The sums over neighbours of the same cluster and of the others are apart.
    return exact_step(size, private) + mixing(size) + mixing(size) + update(size, 5, 16, private)


def _learned(size: Size, private: bool) -> Cost:
    # A probe's two primal steps and their costs on as many validation samples.
    samples = size.clients * size.samples
    judged = Cost(samples * (size.dim + 2), 4 * samples * size.dim)
    steps = exact_step(size, private) + exact_step(size, private)
    return _related(size, private) + steps + judged


#: Clients of a server where an algorithm has several servers.
SERVED = 10


#: By the literature's name. A registered algorithm that is missing here is an error, unless it
#: learns from streams alone: those are in `experiments.benchmarks.online`.
ENTRIES: dict[str, Entry] = {
    "zCDP-NFL": Entry(
        lambda: fl.algorithms.ZCDPNFL(3.0, fl.schedules.PowerDecay(0.5)), _zcdp, _linearised
    ),
    "(eps,delta)DP-NFL": Entry(
        lambda: fl.algorithms.EpsilonDeltaNFL(3.0, fl.schedules.PowerDecay(0.5)),
        _approximate,
        _linearised,
    ),
    "zCDP-grad-NFL": Entry(lambda: fl.algorithms.ZCDPGradNFL(0.05), _zcdp, _subgradient),
    "P-ADMM": Entry(lambda: fl.algorithms.PADMM(3.0), _zcdp, _exact),
    "ADMM": Entry(lambda: fl.algorithms.NetworkedADMM(3.0), _nothing, _exact),
    "FedAvg": Entry(lambda: fl.algorithms.FedAvg(0.05), _nothing, _server),
    "FL": Entry(lambda: fl.algorithms.ConventionalFL(0.05), _zcdp, _server),
    "SignSGD": Entry(lambda: fl.algorithms.SignSGD(0.05), _nothing, _server),
    "Local only": Entry(lambda: fl.algorithms.LocalOnly(0.05), _nothing, _alone),
    "FedAvg-FT": Entry(
        lambda: fl.algorithms.FineTunedFedAvg(fl.algorithms.FedAvg(0.05), 0.05), _nothing, _tuned
    ),
    "Ditto": Entry(
        lambda: fl.algorithms.Ditto(fl.algorithms.FedAvg(0.05), 0.05, 1.0), _nothing, _attracted
    ),
    "pFedMe": Entry(lambda: fl.algorithms.PFedMe(0.05, 1.0), _nothing, _enveloped),
    "IFCA": Entry(lambda: fl.algorithms.IFCA(0.05, 2), _nothing, _clustered),
    "PGFL": Entry(lambda: fl.algorithms.PGFL(3.0, 0.4), _zcdp, _federated),
    "GFL": Entry(lambda: fl.algorithms.GFL(3.0), _zcdp, _federated),
    "ClusterFL": Entry(lambda: fl.algorithms.ClusterFL(3.0, 0.4), _zcdp, _federated),
    "PGFL, single step": Entry(
        lambda: fl.algorithms.PGFLSingleStep(3.0, 0.4), _nothing, _federated
    ),
    "GFL, gradient": Entry(lambda: fl.algorithms.GraphFedAvg(0.05), _zcdp, _averaged),
    "NPFL": Entry(lambda: fl.algorithms.NPFL(3.0, 0.05), _nothing, _related),
    "NPFL-RL": Entry(
        lambda: fl.algorithms.NPFLRL(3.0, fl.algorithms.RandomProbe(0.1, 0.05)),
        _nothing,
        _learned,
    ),
}


def missing() -> list[str]:
    """Registered algorithms without an entry."""
    fixed = {label for label, cls in REGISTRY.items() if cls.needs.data != "stream"}
    return sorted(fixed - set(ENTRIES))


def simulation(key: jax.Array, size: Size, entry: Entry, private: bool = True) -> Simulation:
    """Ridge regression on a random connected graph, of clients or servers, with two clusters."""
    k_graph, k_data, k_validation = jax.random.split(key, 3)
    algorithm = entry.make()
    shape = (size.clients, size.samples, size.dim)
    even = np.arange(size.clients) % 2
    learns = isinstance(algorithm, fl.algorithms.NPFLRL)
    validation = fl.problems.ridge(k_validation, *shape) if learns else None
    tasks = fl.problems.Tasks(even, 2, validation=validation)
    network = None
    if type(algorithm).needs.network is fl.graphs.Graph:
        network = fl.graphs.random_connected(k_graph, size.clients, size.mean_degree)
    if type(algorithm).needs.network is fl.federation.Federation:
        servers = fl.graphs.random_connected(k_graph, size.clients // SERVED, mean_degree=3)
        network = fl.federation.balanced(SERVED, servers)
    return fl.Simulation(
        problem=dataclasses.replace(fl.problems.ridge(k_data, *shape), tasks=tasks),
        network=network,
        algorithm=algorithm,
        privacy=entry.privacy() if private else None,
        metrics=["consensus_error"],
    )


def study_seconds(size: Size, entry: Entry, rounds: int) -> float:
    """Seconds a round and run of a batched study."""

    def scenario(key: jax.Array) -> Simulation:
        return simulation(key, size, entry)

    def once() -> float:
        study = fl.sweep(
            scenario, rounds=rounds, seeds=size.seeds, record_every=rounds, progress=False
        )
        return study.attrs["run_seconds"]

    return min(once() for _ in range(3)) / rounds / size.seeds


def run_seconds(size: Size, entry: Entry, rounds: int) -> float:
    """Seconds a round of one large run whose data and graph exist already."""
    made = simulation(as_key(0), size, entry)

    def once() -> Any:
        return fl.run(made, rounds, record_every=rounds).consensus_error.values

    once()
    return best_of(once, 3) / rounds


def counted_by_xla(size: Size, entry: Entry) -> tuple[float, float]:
    """Bytes accessed and flops of one compiled noiseless step."""

    def step(state, made: Simulation):
        link = Link(as_key(0), 1, 1, made.problem.clients, made.network)
        return made.algorithm.step(state, Round(1, made.problem, made.network, link))

    def start(key):
        made = simulation(key, size, entry, private=False)
        prepared = fl.Simulation(
            made.problem.prepare(), made.algorithm, made.network, None, made.metrics
        )
        return made.algorithm.init(made.problem, made.network), prepared  # pyright: ignore[reportArgumentType]

    shapes = jax.eval_shape(start, as_key(0))
    found = jax.jit(step).lower(*shapes).compile().cost_analysis()
    return found["bytes accessed"], found["flops"]


class Limits(NamedTuple):
    """What the device was measured to do."""

    bandwidth: float  # bytes per second at the working set in question
    flops: float  # per second
    draws: float  # normal numbers per second

    def seconds(self, cost: Cost) -> float:
        """The least time: memory traffic beside arithmetic, numbers drawn by the same units."""
        computing = cost.flops / self.flops + cost.draws / self.draws
        return max(WORD * cost.words / self.bandwidth, computing)


def draw_rate(count: int = 2**20) -> float:
    """Normal numbers per second on the whole device, from the generator that runs use."""

    def total(key):
        def add(sum_, round):
            return sum_ + jax.random.normal(jax.random.fold_in(key, round), (count,)), None

        return jax.lax.scan(add, jnp.zeros(count), jnp.arange(8))[0]

    draw, key = jax.jit(total), as_key(0)
    draw(key).block_until_ready()
    return 8 * count / best_of(lambda: draw(key), 3)


class Row(NamedTuple):
    """One algorithm at one size."""

    label: str
    seconds: float  # a round and run
    cost: Cost
    fraction: float  # of what the limits allow
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
    for label, entry in ENTRIES.items():
        private, noiseless = entry.privacy() is not None, entry.cost(size, False)
        cost = entry.cost(size, private)
        seconds = (study_seconds if size.seeds > 1 else run_seconds)(size, entry, rounds)
        accessed, flops = counted_by_xla(size, entry)
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
                # Every colour meets every marker before a look comes back.
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
        figure.suptitle(f"A round of every algorithm on {device()}, commit {commit()}, float32")
        to.parent.mkdir(exist_ok=True)
        figure.savefig(to)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, no picture")
    parser.add_argument("--clients", type=int, default=100_000, help="of the large network")
    parser.add_argument("--out", help="also write the table to this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", fl.AssumptionWarning)  # noise of the right size is enough
    if missing():
        parser.error(
            f"no instance and cost in roofline.ENTRIES for {', '.join(missing())}: add what one "
            "round of it must move and compute."
        )
    lines = header().splitlines()
    curve = [(2**p, update_bandwidth(2**p)) for p in (16, 18, 20, 22, 24, 26, 28)]
    rates = ", ".join(f"{size / 2**20:g} MiB {rate / 1e9:.0f}" for size, rate in curve)
    lines.append(f"update in place, GB/s by working set: {rates}")
    flops, draws = matrix_rate(), draw_rate()
    lines.append(f"normal numbers ({PRNG}) {draws / 1e6:.0f} million a second")
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
        Path(arguments.out).write_text("\n".join(lines) + "\n")
    if not arguments.quick:
        draw(studies, PICTURES / "roofline.png")


if __name__ == "__main__":
    main()
