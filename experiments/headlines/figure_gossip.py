"""Gossip of 2018 to 2025: compressed and exact, small batches, changing graphs, no waiting."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import (
    DOUBLE,
    EXACT,
    LINEAR,
    METRIC,
    SLOWER,
    bound,
    final,
    in_the_median,
    late_gap,
    straightness,
    unlike,
)
from experiments.measures import gap, joined, last_part, samples
from fljax import algorithms as A
from fljax import plotting, statistics
from fljax.problems.batches import Uniform

# --------------------------------------------------------------------------- settings

PEERS = Setting("peers of (a) to (c)", 20, "the papers have 8 to 50")
SAMPLES = Setting("samples a peer", 40, "twice the parameters")
DIM = Setting("parameters", 20, "compression needs something to leave")
SPREAD = Setting("spread of the peers' models", 1.0, "as far from the common one as that is from 0")
DEGREE = Setting("mean degree of the random graph", 4, "a mixing rate of about 0.8")
STEP = Setting("step of (a)", 0.02, "stable for all, with four decades of rounds to see a limit")
SENT = Setting("largest numbers sent, bits of unbiased rounding", (5, 4), "a fourth; of 32")
CONSENSUS = Setting(
    "consensus steps of the largest numbers and of rounding",
    (0.2, 0.5),
    "about the part of a difference that is sent; half for the smaller error of rounding",
)
PLACES = Setting("rounds of (a)", 20000, "all that become exact are")
NOISY = Setting("step of (b)", 0.002, "stable for single samples with all compressions")
SETTLED = Setting("rounds of (b)", 12000, "both have settled by the half")
FALLING = Setting(
    "steps of (c), (e)", (0.02, 200.0), "the first over one plus the round over the second"
)
TRANSIENT = Setting("rounds of (c), (e)", 20000, "the transient of the network is over")
MANY = Setting("peers of (d) and (e)", 64, "a power of two, for one-peer exponential graphs")
RECEIVERS = Setting("receivers, and degree of the fixed graph of (d)", 4, "as many messages")
CONSTANT = Setting("step of (d), (f), (g)", 0.005, "so that the disagreement of peers matters")
CHANGING = Setting("rounds of (d), (f), (g)", 4000, "settled at the half")
BUDGET = Setting("budget of MATCHA", 0.5, "the paper's usual one", given=True)
LINKED = Setting("peers and mean degree of (f)", (16, 6), "the paper has 8 and 16 nodes")
ACTIVE = Setting("active peers of (g)", 4, "on a ring; a complete graph would be as small")
NODES = Setting("peers of (g)", (16, 128), "a ring of 128 nodes has a spectral gap of 0.0008")
SPEEDS = Setting(
    "seconds of a gradient in (h)",
    (1.0, 1.0),
    "the median of a log-normal distribution and the spread of its logarithm: the slowest of 16 "
    "peers takes several times as long as the fastest",
)
UPDATES = Setting("gradients a peer in (h)", 400, "all have reached the level")
AT = Setting(
    "level of (h)",
    -5.0,
    "dB of the sum of 16 peers' errors, in the mean of ten records: 17 dB below the start",
)
AHEAD = Setting("local steps of SwarmSGD", 4, "the paper has 2 to 4", given=True)
SEEDS = Setting("seeds", 50, "at most")

CHOCO = "Choco-SGD"
FIXED = "D-PSGD, fixed graph"
EPIDEMIC = "Epidemic learning"
ALL_EDGES = "static exponential"
ONE_PEER = "one-peer exponential"
VANILLA = "all edges"
SERVER = "centralized SGD"


# --------------------------------------------------------------------------- scenarios


def problem_of(key: Array, peers: int = PEERS.value) -> fl.problems.Problem:
    return unlike(key, peers, SAMPLES.value, DIM.value, SPREAD.value)


def peers(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    graph = fl.graphs.random_connected(k_graph, nodes=PEERS.value, mean_degree=DEGREE.value)
    return fl.Simulation(problem_of(k_data), algorithm, graph, metrics=[METRIC])


def served(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    """The data of :func:`peers`, and a server."""
    _, k_data = jax.random.split(key)
    return fl.Simulation(problem_of(k_data), algorithm, metrics=[METRIC])


def many(key: Array, method: tuple[A.Algorithm, Any]) -> fl.Simulation:
    algorithm, network = method
    return fl.Simulation(problem_of(key, MANY.value), algorithm, network, metrics=[METRIC])


def matched(key: Array, method: tuple[A.Algorithm, Any]) -> fl.Simulation:
    algorithm, network = method
    return fl.Simulation(problem_of(key, LINKED.value[0]), algorithm, network, metrics=[METRIC])


def rings(key: Array, name: str, nodes: int) -> fl.Simulation:
    """Decentralized SGD on a ring, or few active peers on a small one."""
    step = CONSTANT.value
    if name == "D-PSGD":
        network, algorithm = fl.graphs.ring(nodes), A.ATC(step, batches=Uniform(1))
    else:
        network = fl.graphs.complete(nodes)
        small = fl.graphs.ring(ACTIVE.value)
        algorithm = A.Teleportation(step, topology=small, batches=Uniform(1))
    problem = unlike(key, nodes, SAMPLES.value, DIM.value, SPREAD.value)
    return fl.Simulation(problem, algorithm, network, metrics=[METRIC])


def timed(key: Array, name: str) -> fl.Simulation:
    """Peers of one distribution of data, each at its own speed."""
    count = LINKED.value[0]
    median, spread = SPEEDS.value
    devices = fl.clock.Devices(seconds_per_step=fl.clock.LogNormal(median, spread=spread))
    single = Uniform(1)
    algorithms: dict[str, Callable[[], A.Algorithm]] = {
        "D-PSGD": lambda: A.ATC(CONSTANT.value, batches=single),
        "AD-PSGD": lambda: A.ADPSGD(CONSTANT.value, batches=single),
        "SwarmSGD": lambda: A.SwarmSGD(CONSTANT.value, batches=single, local_steps=AHEAD.value),
    }
    waits = name == "D-PSGD"
    clock = fl.clock.Synchronous(devices) if waits else fl.clock.Asynchronous(devices)
    problem = unlike(key, count, SAMPLES.value, DIM.value, 0.0)
    network = fl.graphs.ring(count)
    return fl.Simulation(problem, algorithms[name](), network, clock=clock, metrics=[METRIC])


def exponential(nodes: int) -> fl.graphs.Combination:
    """Every node receives from those one, two, four, ... places ahead, with equal weights."""
    offsets = [0, *(2**power for power in range(nodes.bit_length() - 1))]
    weights = sum(np.roll(np.eye(nodes), offset, axis=1) for offset in offsets) / len(offsets)
    return fl.graphs.from_stochastic(weights, convention="right", form="dense")


def inverse_decay(start: float, decay: float) -> Callable[[Array], Array]:
    """A step that falls as one over the round, after a number of rounds."""
    return lambda count: start / (1 + count / decay)


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)

    def run(part: str, scenario: Any, rounds: int, every: int, **grid: Any) -> xr.Dataset:
        rounds = min(rounds, 400) if effort.quick else rounds
        settings = {"rounds": rounds, "seeds": seeds, "record_every": every}
        return effort.sweep(part, scenario, grid=grid, **settings)

    def each(part: str, scenario: Any, rounds: dict[str, int], every: dict[str, int]) -> xr.Dataset:
        """Scenarios of different structure, side by side; records are numbered."""

        def of(name: str) -> xr.Dataset:
            data = run(f"{part}-{name}", bound(scenario, name), rounds[name], every[name])
            return data.assign_coords(round=np.arange(1, data.sizes["round"] + 1))

        return joined(*map(of, rounds)).assign_coords(algorithm=list(rounds))

    largest: dict[str, Any] = {"compression": fl.link.TopK(SENT.value[0])}
    largest |= {"consensus_step_size": CONSENSUS.value[0]}
    rounded: dict[str, Any] = {"compression": fl.link.Quantize(SENT.value[1])}
    rounded |= {"consensus_step_size": CONSENSUS.value[1]}
    step = STEP.value
    exact = {
        CHOCO: A.ChocoSGD(step, **largest),
        "BEER": A.BEER(step, **largest),
        "LEAD": A.LEAD(step, **rounded),
        "DeTAG": A.DeTAG(step, exchanges=2),
    }
    single = Uniform(1)
    noisy = {
        name: kind(NOISY.value, batches=single, **largest)
        for name, kind in (("BEER", A.BEER), ("MoTEF", A.MoTEF))
    }
    start, decay = FALLING.value
    falling = fl.schedules.from_optax(inverse_decay, start=start, decay=decay)
    adaptive = {"CEDAS": A.CEDAS(falling, batches=single, **rounded)}
    central = {SERVER: A.FedAvg(falling, local_steps=1, batches=single)}

    regular = fl.graphs.k_regular(jax.random.key(0), MANY.value, RECEIVERS.value)
    complete = fl.graphs.complete(MANY.value)
    descent = A.ATC(CONSTANT.value, batches=single)
    as_given = fl.graphs.Mixing("laplacian", step=1.0)
    epidemic = A.EpidemicLearning(
        CONSTANT.value, neighbors_per_round=RECEIVERS.value, batches=single
    )
    receivers = {FIXED: (descent, regular), EPIDEMIC: (epidemic, complete)}
    exponentials = {
        ALL_EDGES: (A.ATC(falling, mixing=exponential(MANY.value), batches=single), complete),
        ONE_PEER: (
            A.ATC(falling, mixing=as_given, batches=single),
            fl.graphs.one_peer_exponential(MANY.value),
        ),
    }
    nodes, degree = LINKED.value
    graph = fl.graphs.random_connected(jax.random.key(0), nodes=nodes, mean_degree=degree)
    laplacian = A.ATC(CONSTANT.value, mixing=as_given, batches=single)
    budgets = {
        VANILLA: (laplacian, fl.graphs.matcha(graph, 1.0)),
        "MATCHA": (laplacian, fl.graphs.matcha(graph, BUDGET.value)),
    }

    def apart(
        part: str, scenario: Any, methods: dict[str, Any], rounds: int = CHANGING.value
    ) -> xr.Dataset:
        """Methods with networks of their own; each is a program."""
        names = dict.fromkeys(methods, rounds)

        def of(key: Array, name: str) -> fl.Simulation:
            return scenario(key, methods[name])

        of.__name__ = scenario.__name__
        return each(part, of, names, dict.fromkeys(methods, rounds // 400))

    sizes = {
        count: each(
            f"rings-{count}",
            lambda key, name, count=count: rings(key, name, count),
            dict.fromkeys(("D-PSGD", "Teleportation"), CHANGING.value),
            dict.fromkeys(("D-PSGD", "Teleportation"), 10),
        )
        for count in NODES.value
    }
    total = UPDATES.value
    arrivals = total * nodes
    return {
        "exact": run("exact", peers, PLACES.value, 20, algorithm=exact),
        "noisy": run("noisy", peers, SETTLED.value, 40, algorithm=noisy),
        "falling": joined(
            run("falling", peers, TRANSIENT.value, 50, algorithm=adaptive),
            run("central", served, TRANSIENT.value, 50, algorithm=central),
        ),
        "many": apart("many", many, receivers),
        "exponential": apart("exponential", many, exponentials, TRANSIENT.value),
        "matcha": apart("matcha", matched, budgets),
        **{f"rings-{count}": data for count, data in sizes.items()},
        "timed": each(
            "timed",
            timed,
            {"D-PSGD": total, "AD-PSGD": arrivals, "SwarmSGD": arrivals // AHEAD.value},
            {"D-PSGD": 4, "AD-PSGD": 4 * nodes, "SwarmSGD": 4 * nodes // AHEAD.value},
        ),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = (
        "compressed, constant steps",
        "single samples, constant steps",
        "single samples, falling steps",
        "random receivers",
        "exponential graphs",
        "half of the messages",
        "a ring of 128 peers",
        "peers at their own speed",
    )
    drawing, axes = picture.panels(titles, columns=3, height=2.3)
    parts = (
        studies["exact"],
        studies["noisy"],
        studies["falling"],
        studies["many"],
        studies["exponential"],
        studies["matcha"],
        studies[f"rings-{NODES.value[-1]}"],
        studies["timed"],
    )
    for ax, data in zip(axes, parts, strict=True):
        timed_runs = data is studies["timed"]
        plotting.learning_curves(data, METRIC, x="seconds" if timed_runs else "round", ax=ax)
    for ax in axes[3:7]:
        ax.set_xlabel("record, of 400")
    return picture.finish(drawing, "Gossip of 2018 to 2025")


# --------------------------------------------------------------------------- claims

INSTANCE = "least squares of peers that differ"


def with_more_nodes(name: str) -> Measure:
    """How far the steady state with many peers is above that with few, dB; the metric is a sum
    over peers, and this is their mean.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        def late(nodes: int) -> np.ndarray:
            data = studies[f"rings-{nodes}"]
            return samples(last_part(2)(data), name, METRIC) / nodes

        few, most = NODES.value
        return {f"{name}, {most} above {few}": gap(late(most), late(few))}

    return measure


def sooner(over: str, under: str, of: str) -> Measure:
    """How many times as many seconds or bits one needs as another, in the median run."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        def spent(name: str) -> np.ndarray:
            data = studies["timed"].sel(algorithm=[name])
            level = 10 ** (AT.value / 10)
            needed = statistics.until(data, METRIC, level, of, window=10)
            needed = needed.isel(algorithm=0).transpose("seed").values.astype(float)
            return np.where(np.isinf(needed), np.nan, needed)

        return {f"{over} over {under}": in_the_median(spent(over) / spent(under))}

    return measure


EXACTLY = {
    "BEER": "Zhao et al. 2022, abstract",
    "LEAD": "Liu et al. 2021, abstract",
    "DeTAG": "Lu and De Sa 2021, abstract: stationary points, of which a convex sum has one",
}


def exact_promises() -> list[Claim]:
    result = []
    for name, source in EXACTLY.items():
        result += [
            Claim(
                f"{name.lower()}-is-exact",
                f"{name} reaches the exact minimizer at a constant step size",
                source,
                final("exact", name),
                (-INFINITE, EXACT),
                DOUBLE,
                condition=INSTANCE,
            ),
            Claim(
                f"{name.lower()}-is-linear",
                f"{name} converges at a linear rate",
                source if name != "DeTAG" else "of a strongly convex objective",
                straightness("exact", name),
                (0, 1.5),
                LINEAR,
                condition=INSTANCE,
                ours=name == "DeTAG",
                note=SLOWER,
            ),
        ]
    return result


FIGURE = Figure(
    name="headline-gossip",
    title="Gossip of 2018 to 2025",
    source="the papers of the algorithms, cited at each claim",
    caption="(a) Full gradients and constant steps: with compressed messages Choco-SGD stops "
    "short, BEER and LEAD do not; DeTAG has accelerated gossip. (b) Gradients of single samples at "
    "one constant step. (c) Falling steps: CEDAS, and a server that averages all gradients. (d), "
    "(e), (f) Decentralized SGD with as many messages to random receivers, on the static and the "
    "one-peer exponential graph with falling steps, and with half of the messages (MATCHA); 400 "
    "records of equal distance. (g) A large ring, and four active peers. (h) Peers at their own "
    "speeds, by seconds.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "choco-stops-short",
            "Choco-SGD at a constant step size does not reach it where peers differ",
            "Zhao et al. 2022, section 1",
            final("exact", CHOCO),
            (-60, INFINITE),
            "above -60 dB",
            condition=INSTANCE,
        ),
        *exact_promises(),
        Claim(
            "motef-copes-with-small-batches",
            "with small batches MoTEF ends below BEER, whose theory needs large ones",
            "Islamov, Gao and Stich 2024, abstract",
            late_gap("noisy", "BEER", "MoTEF", 2),
            (0, INFINITE),
            condition=f"{INSTANCE}, one step size for both",
        ),
        Claim(
            "cedas-is-as-centralized",
            "in the end CEDAS is as good as centralized SGD",
            "Huang and Pu 2023, abstract",
            late_gap("falling", "CEDAS", SERVER, 10),
            (-1, 1),
            "within 1 dB over the last tenth of the rounds",
            condition=f"{INSTANCE}, one schedule for both",
        ),
        Claim(
            "epidemic-is-better",
            "with as many messages random receivers are better than a fixed graph",
            "de Vos et al. 2023, abstract",
            late_gap("many", FIXED, EPIDEMIC, 2),
            (0, INFINITE),
            condition=f"{INSTANCE}, one step size for both",
        ),
        Claim(
            "one-peer-is-as-good",
            "one peer a round is as good as all edges of the exponential graph",
            "Ying et al. 2021, abstract",
            late_gap("exponential", ONE_PEER, ALL_EDGES, 10),
            (-INFINITE, 1),
            "at most 1 dB above, over the last tenth of the rounds",
            condition=f"{INSTANCE}, one schedule for both",
        ),
        Claim(
            "matcha-halves-the-messages",
            "with half of the communication the error is that of all edges, or nearly",
            "Wang et al. 2019 (MATCHA), abstract",
            late_gap("matcha", "MATCHA", VANILLA, 2),
            (-INFINITE, 1),
            "at most 1 dB above",
            condition=f"{INSTANCE}, one step size for both",
        ),
        Claim(
            "teleportation-is-free-of-the-nodes",
            "with more nodes teleportation becomes no worse",
            "Takezawa and Stich 2025, abstract",
            with_more_nodes("Teleportation"),
            (-INFINITE, 1),
            "at most 1 dB above, over the second half",
            condition=f"{INSTANCE}, as many active peers",
        ),
        Claim(
            "a-large-ring-is-worse",
            "where decentralized SGD on a ring does",
            "Takezawa and Stich 2025, section 1",
            with_more_nodes("D-PSGD"),
            (1, INFINITE),
            "by more than 1 dB, over the second half",
            condition=f"{INSTANCE}, one step size",
        ),
        Claim(
            "ad-psgd-is-faster",
            "where speeds differ AD-PSGD needs less time than decentralized SGD that waits",
            "Lian et al. 2018, abstract",
            sooner("D-PSGD", "AD-PSGD", "seconds"),
            (1, INFINITE),
            condition="least squares of peers that are alike, log-normal speeds",
        ),
        Claim(
            "swarm-saves-messages",
            "SwarmSGD with several local steps needs fewer bits than AD-PSGD",
            "Nadiradze et al. 2021, abstract",
            sooner("AD-PSGD", "SwarmSGD", "bits"),
            (1, INFINITE),
            condition="least squares of peers that are alike, log-normal speeds",
        ),
    ],
    settings=[
        *(PEERS, SAMPLES, DIM, SPREAD, DEGREE, STEP, SENT, CONSENSUS, PLACES, NOISY, SETTLED),
        *(FALLING, TRANSIENT, MANY, RECEIVERS, CONSTANT, CHANGING, BUDGET, LINKED, ACTIVE, NODES),
        *(SPEEDS, UPDATES, AT, AHEAD, SEEDS),
    ],
    keep=("bits",),
    double=True,
)
