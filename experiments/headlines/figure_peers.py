"""Peers with noise, compression, directed links and pairs; exact limits of the rest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import at_most_order, orders
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import (
    DOUBLE,
    EXACT,
    LINEAR,
    METRIC,
    SLOWER,
    final,
    first_below,
    straightness,
    unlike,
)
from experiments.measures import (
    estimate,
    exponent,
    gap,
    joined,
    last,
    last_rounds,
    of_median,
    samples,
)
from fljax import algorithms as A
from fljax import plotting, statistics
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems.batches import Uniform

# --------------------------------------------------------------------------- settings

PEERS = Setting("peers", 20, "the papers have 10 to 100")
SAMPLES = Setting("samples a peer", 20, "four times the parameters of all but (a)")
DIM = Setting("parameters", 5, "no promise here but (a) depends on it")
SPREAD = Setting("spread of the peers' models", 1.0, "as far from the common one as that is from 0")
DEGREE = Setting("mean degree of the random graph", 4, "a mixing rate of about 0.8")
WIDE = Setting("parameters and samples of (a)", (200, 50), "compression needs something to leave")
SENT = Setting("numbers that Choco-SGD sends", 4, "of 200, the largest: a fiftieth, with places")
CONSENSUS = Setting(
    "consensus step of Choco-SGD", 0.05, "about the part of a difference that is sent, as needed"
)
NOISY = Setting("step of (a)", 0.002, "stable for single samples of 200 features")
LONG = Setting("rounds of (a)", 12000, "both have settled by the half")
BITS = Setting("level of (a)", -10.0, "dB, on the way to the steady state")
SLOW = Setting("steps of (b) and of gossip", (0.1, 0.8), "0.1 over the 0.8-th power of the round")
AROUND = Setting(
    "directed graph of (b)",
    5,
    "a ring, one way; the first half of the peers also sends so many peers ahead. Who sends "
    "divides equally, so that rows of the weights do not sum to one; where receivers divide, peers "
    "count unequally in the limit, by half of their mean weight in standard deviation",
)
PATIENCE = Setting("rounds of (b) and of gossip", 6000, "three decades")
STEP = Setting("step of (c)", 0.003, "ten times as long with the momentum")
MOMENTUM = Setting("momentum of (c)", 0.9, "the paper's", given=True)
STEPS = Setting("steps of (d)", (0.002, 0.004, 0.008, 0.016), "small: of first order is the first")
COUPLING = Setting("coupling of FedSGD in (d)", 1.0, "of the order of the curvature")
SETTLED = Setting("rounds of (d)", 6000, "the smallest step has settled at the half")
SERVERS = Setting(
    "servers of PGFL in (f)", 5, "of four clients each: cells of one size, which count alike"
)
PENALTY = Setting("penalty of PGFL in (f)", 5.0, "of the order of the curvature")
EXACTLY = Setting("rounds of (e)", 4000, "all are exact by then")
SEEDS = Setting("seeds", 30, "at most")

CHOCO = "Choco-SGD"
PLAIN = "D-PSGD"
SGP = "SGP"
ROWS = "ATC, weights of receivers"
QUASI = "QG-DSGDm"
LOCAL = "DSGDm"
SINGLE = "PGFL, single step"
GOSSIP = "Gossip SGD"
GENERAL = "Generalized gradient"


@fl.module
class LocalMomentum(A.QGDSGDm):
    """The same with momentum of a peer's own gradients, as most would write it (DSGDm)."""

    def step(self, state: Any, now: Any) -> Any:
        after = super().step(state, now)
        momentum = self.momentum * state.momentum + self._step_problem(now).gradient(state.model)
        return after._replace(momentum=momentum)


# --------------------------------------------------------------------------- scenarios


def network(key: Array) -> fl.graphs.Graph:
    return fl.graphs.random_connected(key, nodes=PEERS.value, mean_degree=DEGREE.value)


def problem_of(key: Array) -> fl.problems.Problem:
    return unlike(key, PEERS.value, SAMPLES.value, DIM.value, SPREAD.value)


def peers(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(problem_of(k_data), algorithm, network(k_graph), metrics=[METRIC])


def wide(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    dim, count = WIDE.value
    problem = unlike(k_data, PEERS.value, count, dim, 0.1)
    return fl.Simulation(problem, algorithm, network(k_graph), metrics=[METRIC])


def shares() -> np.ndarray:
    """``[K, K]``: column k has the shares that peer k sends to its receivers and retains."""
    count = PEERS.value
    links = np.eye(count) + np.roll(np.eye(count), 1, axis=0)
    links += np.roll(np.eye(count), AROUND.value, axis=0) * (np.arange(count) < count // 2)
    return links / links.sum(axis=0)


def directed(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    complete = fl.graphs.complete(PEERS.value)
    return fl.Simulation(problem_of(key), algorithm, complete, metrics=[METRIC])


def on_a_ring(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    ring = fl.graphs.ring(PEERS.value)
    return fl.Simulation(problem_of(key), algorithm, ring, metrics=[METRIC])


def stepping(key: Array, step: Array) -> fl.Simulation:
    return peers(
        key, A.Diffusion(step, before="metropolis", after="metropolis", batches=Uniform(1))
    )


def coupled(key: Array, step: Array) -> fl.Simulation:
    return peers(key, A.NetworkedFedSGD(COUPLING.value, step, batches=Uniform(1)))


def columns(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    """A table whose columns are divided among the clients."""
    k_features, k_truth, k_noise = jax.random.split(key, 3)
    count = 60
    per_panel = 2
    dim = per_panel * PEERS.value // 2
    table = jax.random.normal(k_features, (count, dim))
    targets = table @ jax.random.normal(k_truth, (dim,))
    targets = targets + 0.1 * jax.random.normal(k_noise, (count,))
    owners = np.arange(dim).reshape(-1, per_panel).tolist()
    problem = fl.problems.vertical(table, targets, columns=owners)
    return fl.Simulation(problem, algorithm, metrics=[METRIC])


def served(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    return fl.Simulation(problem_of(key), algorithm, metrics=[METRIC])


def federated(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    """Clients of servers on a graph, all with one task."""
    k_graph, k_data = jax.random.split(key)
    servers = fl.graphs.random_connected(k_graph, nodes=SERVERS.value, mean_degree=3)
    cells = fl.federation.balanced(PEERS.value // SERVERS.value, servers)
    return fl.Simulation(problem_of(k_data), algorithm, cells, metrics=[METRIC])


def _own_error(now: Snapshot) -> Array:
    """The distance of clients' models from the minimizers of their own objectives."""
    best = fl.problems.train(now.problem)
    return jnp.sum((now.model - best) ** 2) / jnp.sum(best**2)


OWN = Metric(METRIC, _own_error, "normalized error", decibel=True)


def alone(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    return fl.Simulation(problem_of(key), algorithm, metrics=[OWN])


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)

    def run(name: str, scenario: Any, rounds: int, every: int, **grid: Any) -> Any:
        rounds = min(rounds, 400) if effort.quick else rounds
        settings = {"rounds": rounds, "seeds": seeds, "record_every": every}
        return effort.sweep(name, scenario, grid=grid, **settings)

    single = Uniform(1)
    sent = {"compression": fl.link.TopK(SENT.value), "consensus_step_size": CONSENSUS.value}
    compressed = {
        PLAIN: A.ATC(NOISY.value, batches=single),
        CHOCO: A.ChocoSGD(NOISY.value, batches=single, **sent),
    }
    falling = fl.schedules.PowerDecay(*SLOW.value)
    out = shares()
    rows = fl.graphs.from_stochastic(
        out / out.sum(axis=1, keepdims=True), convention="right", form="dense"
    )
    one_way = {SGP: A.SGP(falling, shares=out), ROWS: A.ATC(falling, mixing=rows)}
    heavy = {
        LOCAL: LocalMomentum(STEP.value, momentum=MOMENTUM.value),
        QUASI: A.QGDSGDm(STEP.value, momentum=MOMENTUM.value),
    }
    sizes = [float(step) for step in STEPS.value]
    destress = A.DESTRESS(0.02, period=20, probability=0.5, exchanges=2)
    exact = {
        "DESTRESS": run("exact", peers, EXACTLY.value, 20, algorithm={"DESTRESS": destress}),
        "Sharing ADMM": run(
            "columns", columns, EXACTLY.value, 20, algorithm={"Sharing ADMM": A.SharingADMM(2.0)}
        ),
        "FL": run("served", served, EXACTLY.value, 20, algorithm={"FL": A.ConventionalFL(0.05)}),
        SINGLE: run(
            "federated",
            federated,
            EXACTLY.value,
            20,
            algorithm={SINGLE: A.PGFLSingleStep(PENALTY.value)},
        ),
        GENERAL: run(
            "alone", alone, EXACTLY.value, 20, algorithm={GENERAL: A.GeneralizedGradient(0.05)}
        ),
    }
    return {
        "compressed": run("compressed", wide, LONG.value, 40, algorithm=compressed),
        "directed": run("directed", directed, PATIENCE.value, 20, algorithm=one_way),
        "momentum": run("momentum", on_a_ring, 2000, 10, algorithm=heavy),
        "gossip": run(
            "gossip",
            peers,
            PATIENCE.value,
            20,
            algorithm={GOSSIP: A.GossipSGD(falling), "ATC": A.ATC(falling)},
        ),
        "diffusion": run("diffusion", stepping, SETTLED.value, 50, step=sizes),
        "coupled": run("coupled", coupled, SETTLED.value, 50, step=sizes),
        "exact": joined(*exact.values()),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = (
        "compressed messages",
        "one-way links",
        "momentum on a ring",
        "of the order of the step",
        "pairs that meet",
        "exact limits",
    )
    drawing, axes = picture.panels(titles, columns=3, height=2.4)
    plotting.learning_curves(studies["compressed"], METRIC, x="bits", ax=axes[0])
    axes[0].set_xscale("log")
    for ax, name in zip(axes[1:3], ("directed", "momentum"), strict=True):
        plotting.learning_curves(studies[name], METRIC, ax=ax)
    for index, (name, text) in enumerate((("diffusion", "diffusion"), ("coupled", "FedSGD"))):
        late = settled(studies[name]).mean("seed").transpose("step")
        marks = {"marker": "os"[index], "label": text} | picture.look(index)
        axes[3].semilogx(STEPS.value, statistics.decibels(late.values), **marks)
    axes[3].set_xticks(STEPS.value, [f"{step:g}" for step in STEPS.value], minor=False)
    axes[3].set_xticks([], minor=True)
    axes[3].set_xlabel("step size")
    axes[3].set_ylabel("steady-state error [dB]")
    axes[3].legend()
    plotting.learning_curves(studies["gossip"], METRIC, ax=axes[4])
    plotting.learning_curves(studies["exact"], METRIC, ax=axes[5])
    return picture.finish(drawing, "Peers: noise, compression, one-way links, pairs, exact limits")


# --------------------------------------------------------------------------- claims

INSTANCE = "least squares of twenty peers that differ"
FALLS = "by 10 dB or more a decade of rounds, at the end"


def settled(data: xr.Dataset) -> xr.DataArray:
    """The mean over the second half of the rounds."""
    half = int(data["round"][-1]) // 2
    return statistics.keep_finite(last_rounds(half)(data), METRIC).mean("round")


def above(study: str, over: str, under: str) -> Measure:
    """How far one steady state is above another, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        late = settled(studies[study])
        two = (late.sel(algorithm=name).values for name in (over, under))
        return {f"{over} above {under}": gap(*two)}

    return measure


def bits_saved(studies: Studies) -> dict[str, Estimate]:
    data = studies["compressed"]
    spent = {
        name: first_below(
            statistics.decibels(samples(data, name, METRIC)),
            BITS.value,
            data["bits"].sel(algorithm=name).mean("seed").values.astype(float),
        )
        for name in (PLAIN, CHOCO)
    }
    ratio = spent[PLAIN] / spent[CHOCO]
    return {"bits": of_median(lambda medians: medians[:, 0], ratio[:, None], unit="times")}


def decades(study: str, name: str) -> Measure:
    """By how much the error falls in the last tenfold of rounds, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[study].sel(algorithm=[name])
        end = int(data["round"][-1])
        early = samples(data.sel(round=end // 10, method="nearest"), name, METRIC)
        return {name: gap(early, samples(last(data), name, METRIC))}

    return measure


def order(study: str) -> Measure:
    """The exponent of the steady-state error as a power of the step."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        late = settled(studies[study]).transpose("seed", "step").values

        def power(*means: np.ndarray) -> np.ndarray:
            return exponent(np.stack(means, -1), STEPS.value)

        return {"exponent": estimate(power, *late.T, unit="")}

    return measure


FIRST_ORDER = {"accept": (0.85, 1.15), "convention": "an exponent of one, up to 0.15"}
EXACT_SOURCES = {
    "DESTRESS": "Li, Li and Chi 2022, abstract: stationary points, of which a convex sum has one",
    "Sharing ADMM": "Boyd et al. 2011, sections 3.2.1 and 8.3",
    "FL": "Gauthier 2024, section 2.1.1; with one step a round it is gradient descent",
    SINGLE: "Gauthier 2024, (5.6)-(5.7), with the signs of (3.4): ADMM for (5.2)",
    GENERAL: "Jung 2025, Algorithm 3, (96)",
}


def exact_promises() -> list[Claim]:
    result = []
    for name, source in EXACT_SOURCES.items():
        slug = name.lower().replace(",", "").replace(" ", "-")
        result += [
            Claim(
                f"{slug}-is-exact",
                f"{name} reaches the exact minimizer",
                source,
                final("exact", name),
                (-INFINITE, EXACT),
                DOUBLE,
                condition=INSTANCE,
            ),
            Claim(
                f"{slug}-is-linear",
                f"{name} converges at a linear rate",
                "of a strongly convex objective",
                straightness("exact", name),
                (0, 1.5),
                LINEAR,
                ours=True,
                note=SLOWER,
            ),
        ]
    return result


FIGURE = Figure(
    name="headline-peers",
    title="Peers with noise, compression, one-way links and pairs",
    source="the papers of the algorithms, cited at each claim",
    caption="(a) Gradients of single samples, messages whole (D-PSGD) or compressed (Choco-SGD), "
    "against bits. (b) One-way links whose weights only senders can normalize: SGP, and diffusion "
    "whose receivers normalize, which minimizes another objective. (c) Momentum of a peer's own, "
    "and of its changes with its neighbors' (QG-DSGDm). (d) Steady states with gradients of single "
    "samples. (e) Falling steps, all neighbors or one a round. (f) Constant steps: DESTRESS "
    "among peers, Sharing ADMM on columns of a table, conventional federated learning, PGFL whose "
    "servers take single steps of ADMM (one task for all), and "
    "generalized gradient steps of each client alone.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "choco-is-as-exact",
            "Choco-SGD ends where uncompressed decentralized gradient descent does",
            "Koloskova, Stich and Jaggi 2019, abstract (the leading term of the rate is the same)",
            above("compressed", CHOCO, PLAIN),
            (-1, 1),
            "within 1 dB",
            condition=INSTANCE,
            note="What compression adds falls as the square of the step, and the gradients' noise "
            "as the step itself; at this step, with a fiftieth of the numbers, it is not less.",
        ),
        Claim(
            "choco-saves-two-orders",
            "and communicates at least two orders of magnitude less",
            "Koloskova, Stich and Jaggi 2019, abstract",
            bits_saved,
            *orders(2).when(f"bits until {BITS.value:g} dB, in the median run"),
            condition=INSTANCE,
            note="A fiftieth of the numbers, with 8 bits for each place, is a fortieth of the "
            "bits at best; the consensus step that such a compression needs takes a part of that.",
        ),
        Claim(
            "choco-saves-bits",
            "it reaches the same level with fewer bits",
            "Koloskova, Stich and Jaggi 2019, abstract",
            bits_saved,
            (1, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "sgp-converges",
            "over one-way links SGP comes ever nearer to the minimizer",
            "Assran et al. 2019, abstract; Nedic and Olshevsky 2016, abstract",
            decades("directed", SGP),
            (10, INFINITE),
            FALLS,
            condition=INSTANCE,
        ),
        Claim(
            "sgp-is-unbiased",
            "where receivers that normalize their weights minimize another objective",
            "Nedic and Olshevsky 2016, section 1",
            above("directed", ROWS, SGP),
            (10, INFINITE),
            "by 10 dB or more",
            condition=INSTANCE,
        ),
        Claim(
            "quasi-global-momentum-helps",
            "QG-DSGDm is better than momentum of a peer's own where peers differ",
            "Lin et al. 2021, abstract",
            above("momentum", LOCAL, QUASI),
            (0, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "gossip-converges",
            "peers that meet in pairs come ever nearer to the minimizer with falling steps",
            "Boyd et al. 2006, abstract (of averages); Nedic and Ozdaglar 2009, for gradients",
            decades("gossip", GOSSIP),
            (10, INFINITE),
            FALLS,
            condition=INSTANCE,
        ),
        Claim(
            "diffusion-is-of-the-order-of-the-step",
            "the steady-state error of diffusion with stochastic gradients is O(μ)",
            "Rizk 2023, (1.38)-(1.40); Sayed 2014",
            order("diffusion"),
            *at_most_order(1),
            condition=INSTANCE,
            note="Of peers that differ the limit itself is O(μ) away, O(μ²) in its square; with "
            "the noise's O(μ) the exponent is between one and two at steps of this size.",
        ),
        Claim(
            "fedsgd-is-of-the-order-of-the-step",
            "networked stochastic gradients at a constant step leave a variance of its order",
            "Jung 2025, Algorithms 6 and 7, (113)",
            order("coupled"),
            **FIRST_ORDER,
            condition=INSTANCE,
        ),
        *exact_promises(),
    ],
    settings=[
        *(PEERS, SAMPLES, DIM, SPREAD, DEGREE, WIDE, SENT, CONSENSUS, NOISY, LONG, BITS, SLOW),
        *(AROUND, PATIENCE, STEP, MOMENTUM, STEPS, COUPLING, SETTLED, SERVERS, PENALTY, EXACTLY),
        SEEDS,
    ],
    keep=("bits",),
    double=True,
)
