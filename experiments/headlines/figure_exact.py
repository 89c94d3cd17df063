"""Peers that reach the exact minimizer at a constant step size, where diffusion stops short."""

import jax
import jax.numpy as jnp
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.headlines.common import (
    DOUBLE,
    EXACT,
    LINEAR,
    METRIC,
    SLOWER,
    bound,
    final,
    straightness,
    unlike,
)
from experiments.measures import gap, gaps, joined, samples
from fljax import algorithms as A
from fljax import plotting
from fljax.problems.batches import Uniform
from fljax.problems.solvers import smoothness

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("peers", 20, "the papers have 10 to 100")
SAMPLES = Setting("samples a peer", 20, "four times the parameters")
DIM = Setting("parameters", 5, "no promise here depends on it")
SPREAD = Setting("spread of the peers' models", 1.0, "as far from the common one as that is from 0")
DEGREE = Setting("mean degree of the random graph", 4, "a mixing rate of about 0.8")
STEP = Setting(
    "step size", 0.05, "a fifth over the largest curvature of a peer; the same for all gradients"
)
LOCAL = Setting("local steps", 5, "K-GT, LED, LT-ADMM, DiNNO; of K-GT and LED a fifth as long")
ADMM = Setting("penalty of ADMM, DLM, DiNNO", 1.0, "of the order of the curvature over the degree")
LATE = Setting(
    "numbers of ADMM tracking and LT-ADMM",
    ((0.2, 0.5, 0.3), (0.3, 0.02, 0.1)),
    "step, penalty, blend, and penalty, step, pull: of twelve each, tried on 5 seeds, those with "
    "the least error after 600 rounds that were far from unstable",
)
SKIPS = Setting(
    "probability of ProxSkip's exchanges", 0.3, "near the root of the curvatures' ratio"
)
NEWTON = Setting("attraction of Network-DANE", 8.0, "about twice the curvature of a peer")
L1 = Setting("strength of the l1 norm", 0.01, "some parameters of the minimizer are zero")
ROUNDS = Setting("rounds of (a)", 5000, "the slowest is exact then, on the worst connected graphs")
FEWER = Setting("rounds of (b)", 1500, "both are exact by then")
FREE = Setting("rounds of (d)", 3000, "exact by then on all four networks")
SEEDS = Setting("seeds", 30, "at most")
SMALL = Setting("batch of stochastic gradients", 1, "a sample, as in the papers")
PERIOD = Setting("rounds between full gradients", 20, "as many as samples: costs are then alike")
LONG = Setting("rounds of (c)", 3000, "150 passes over the samples")
NEAR = Setting("step of (d), over 2/L", 0.95, "L is the largest curvature of a peer")
GRAPHS = ("ring", "grid", "star", "complete")

SHORT = ("CTA", "ATC", "Consensus")
(LONGER, COUPLING, BLEND), (PENALTY, SHORTER, PULL) = LATE.value

#: The methods, and where each is promised to be exact at a linear rate.
PROMISED = {
    "EXTRA": (A.EXTRA(STEP.value), "Shi et al. 2015, abstract and Theorem 3.7"),
    "NIDS": (A.NIDS(STEP.value), "Li, Shi and Yan 2019, abstract"),
    "Exact diffusion": (A.ExactDiffusion(STEP.value), "Yuan et al. 2019, abstract"),
    "DIGing": (A.DIGing(STEP.value), "Nedic, Olshevsky and Shi 2017, abstract"),
    "ATC tracking": (A.ATCTracking(STEP.value), "Xu et al. 2015; Nedic et al. 2017"),
    "Aug-DGM": (A.AugDGM(STEP.value), "Xu et al. 2015, abstract"),
    "ADMM": (A.NetworkedADMM(ADMM.value), "Shi et al. 2014, abstract"),
    "DLM": (A.DLM(ADMM.value, 2 * STEP.value), "Ling et al. 2015, abstract"),
    "ADMM tracking": (
        A.ADMMTracking(LONGER, penalty=COUPLING, blend=BLEND),
        "Carnevale et al. 2023, abstract",
    ),
    "Wang-Elia": (A.WangElia(STEP.value), "Wang and Elia 2011"),
    "K-GT": (
        A.KGT(STEP.value / LOCAL.value, local_steps=LOCAL.value),
        "Liu et al. 2024, abstract",
    ),
    "LED": (A.LED(STEP.value / LOCAL.value, local_steps=LOCAL.value), "Alghunaim 2024, abstract"),
    "LT-ADMM": (
        A.LTADMM(PENALTY, SHORTER, pull=PULL, local_steps=LOCAL.value),
        "Ren et al. 2025, abstract",
    ),
    "DiNNO": (A.DiNNO(ADMM.value, STEP.value, local_steps=LOCAL.value), "Yu et al. 2022"),
    "Network-DANE": (A.NetworkDANE(NEWTON.value), "Li et al. 2020, abstract"),
    "ProxSkip": (A.ProxSkip(STEP.value, SKIPS.value), "Mishchenko et al. 2022, abstract"),
}
COMPOSITE = {"PG-EXTRA": "Shi et al. 2015b, abstract", "NIDS": "Li, Shi and Yan 2019, abstract"}
TRACKING = "ATC tracking, stochastic"
REDUCED = {
    "GT-SAGA": (A.GTSAGA(STEP.value / 5, batch=SMALL.value), "Xin, Khan and Kar 2020, abstract"),
    "GT-SVRG": (
        A.GTSVRG(STEP.value / 5, batch=SMALL.value, period=PERIOD.value),
        "Xin, Khan and Kar 2020, abstract",
    ),
    "GT-SARAH": (
        A.GTSARAH(STEP.value / 5, batch=SMALL.value, period=PERIOD.value),
        "Xin, Khan and Kar 2022, abstract",
    ),
    "ATC-GT-SAGA": (A.ATCGTSAGA(STEP.value / 5, batch=SMALL.value), "Xin et al. 2022, abstract"),
    "GT-VR": (
        A.GTVR(STEP.value / 5, batch=SMALL.value, probability=1 / PERIOD.value),
        "Jiang et al. 2023, abstract",
    ),
    "Network-SVRG": (
        A.NetworkSVRG(STEP.value / 5, local_steps=LOCAL.value, batch=SMALL.value),
        "Li et al. 2020, abstract",
    ),
    "Network-SARAH": (
        A.NetworkSARAH(STEP.value / 5, local_steps=LOCAL.value, batch=SMALL.value),
        "Li et al. 2020, abstract",
    ),
    "LT-ADMM-VR": (
        A.LTADMMVR(
            PENALTY,
            SHORTER / 5,
            batch=SMALL.value,
            pull=PULL,
            local_steps=LOCAL.value,
        ),
        "Ren et al. 2025, abstract",
    ),
}


# --------------------------------------------------------------------------- scenarios


def problem_of(key: Array) -> fl.problems.Problem:
    return unlike(key, CLIENTS.value, SAMPLES.value, DIM.value, SPREAD.value)


def peers(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    graph = fl.graphs.random_connected(k_graph, nodes=CLIENTS.value, mean_degree=DEGREE.value)
    return fl.Simulation(problem_of(k_data), algorithm, graph, metrics=[METRIC])


def composite(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    k_graph, k_data = jax.random.split(key)
    graph = fl.graphs.random_connected(k_graph, nodes=CLIENTS.value, mean_degree=DEGREE.value)
    base = problem_of(k_data)
    problem = fl.problems.Problem(
        base.features, base.targets, base.loss, fl.problems.L1(), L1.value
    )
    return fl.Simulation(problem, algorithm, graph, metrics=[METRIC])


def near_the_limit(key: Array, graph: str) -> fl.Simulation:
    """NIDS at almost twice the inverse curvature, on every network."""
    built = {
        "ring": fl.graphs.ring(CLIENTS.value),
        "grid": fl.graphs.grid(4, CLIENTS.value // 4),
        "star": fl.graphs.star(CLIENTS.value),
        "complete": fl.graphs.complete(CLIENTS.value),
    }
    problem = problem_of(key)
    step = NEAR.value * 2 / jnp.max(smoothness(problem))
    return fl.Simulation(problem, A.NIDS(step), built[graph], metrics=[METRIC])


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)
    rounds, fewer, long, near = (
        min(setting.value, 200 if effort.quick else setting.value)
        for setting in (ROUNDS, FEWER, LONG, FREE)
    )

    def run(name: str, scenario, methods: dict, rounds: int, every: int) -> xr.Dataset:
        grid = {"algorithm": methods}
        return effort.sweep(
            name, scenario, rounds=rounds, seeds=seeds, grid=grid, record_every=every
        )

    methods = {
        name: kind(STEP.value)
        for name, kind in zip(SHORT, (A.CTA, A.ATC, A.Consensus), strict=True)
    }
    methods |= {name: parts[0] for name, parts in PROMISED.items()}
    proximal = {"PG-EXTRA": A.PGEXTRA(STEP.value), "NIDS": A.NIDS(STEP.value)}
    stochastic = {TRACKING: A.ATCTracking(STEP.value / 5, batches=Uniform(SMALL.value))}
    stochastic |= {name: parts[0] for name, parts in REDUCED.items()}

    def on(graph: str) -> xr.Dataset:
        settings = {"rounds": near, "seeds": seeds, "record_every": 10}
        return effort.sweep(f"near-{graph}", bound(near_the_limit, graph), **settings)

    networks = joined(*map(on, GRAPHS)).assign_coords(algorithm=list(GRAPHS))
    return {
        "exact": run("exact", peers, methods, rounds, 10),
        "composite": run("composite", composite, proximal, fewer, 10),
        "stochastic": run("stochastic", peers, stochastic, long, 40),
        "near": networks,
    }


# --------------------------------------------------------------------------- picture


#: The panels of methods with all gradients, and of those with gradients of single samples.
FAMILIES = {
    "no exact limit": ("CTA", "ATC", "Consensus"),
    "corrected diffusion": ("EXTRA", "NIDS", "Exact diffusion", "Wang-Elia"),
    "tracking": ("DIGing", "ATC tracking", "Aug-DGM", "ADMM tracking", "Network-DANE"),
    "multipliers": ("ADMM", "DLM", "DiNNO", "LT-ADMM"),
    "several local steps": ("K-GT", "LED", "ProxSkip"),
}
STOCHASTIC = {
    "single samples, SAGA": (TRACKING, "GT-SAGA", "ATC-GT-SAGA", "GT-VR"),
    "single samples, SVRG": (
        *("GT-SVRG", "GT-SARAH", "Network-SVRG", "Network-SARAH", "LT-ADMM-VR"),
    ),
}


def plot(studies: Studies) -> Picture:
    parts = [(title, "exact", names) for title, names in FAMILIES.items()]
    parts += [(title, "stochastic", names) for title, names in STOCHASTIC.items()]
    parts += [("with an l1 norm", "composite", None), ("NIDS near 2/L", "near", None)]
    drawing, axes = picture.panels([title for title, *_ in parts], columns=3, height=2.2)
    for ax, (_, name, methods) in zip(axes, parts, strict=True):
        data = studies[name]
        if methods is not None:
            data = data.sel(algorithm=[*methods])
        plotting.learning_curves(data, METRIC, ax=ax)
    return picture.finish(drawing, "Exact limits at constant step sizes, peers that differ")


# --------------------------------------------------------------------------- claims

INSTANCE = "least squares of twenty peers on a random graph"


def promises() -> list[Claim]:
    """An exact limit, and a linear rate, of each method."""
    where = {name: ("exact", source) for name, (_, source) in PROMISED.items()}
    where |= {name: ("stochastic", source) for name, (_, source) in REDUCED.items()}
    where["PG-EXTRA"] = ("composite", COMPOSITE["PG-EXTRA"])
    result = []
    for name, (part, source) in where.items():
        slug = name.lower().replace(" ", "-")
        how = " with gradients of single samples" if part == "stochastic" else ""
        result += [
            Claim(
                f"{slug}-is-exact",
                f"{name} reaches the exact minimizer at a constant step size{how}",
                source,
                final(part, name),
                (-INFINITE, EXACT),
                DOUBLE,
                condition=INSTANCE,
            ),
            Claim(
                f"{slug}-is-linear",
                f"{name} converges at a linear rate",
                source,
                straightness(part, name),
                (0, 1.5),
                LINEAR,
                condition=INSTANCE,
                note=SLOWER,
            ),
        ]
    return result


FIGURE = Figure(
    name="headline-exact",
    title="Exact limits and linear rates of peers at constant step sizes",
    source="the papers of the algorithms, cited at each claim",
    caption="Peers whose own minimizers differ. (a) Diffusion (CTA, ATC) and consensus stop "
    "short of the common minimizer at a constant step size; (b)-(e) the others reach it. (f), (g) "
    "Gradients of single samples: tracking stops at their noise, variance reduction does not. (h) "
    "With an l1 norm, by proximal steps. (i) NIDS with a step size near 2/L on four networks.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "diffusion-stops-short",
            "diffusion (decentralized gradient descent) at a constant step size does not reach it",
            "Shi et al. 2015, section 1.1; Yuan, Ling and Yin 2016, abstract",
            final("exact", *SHORT),
            (-60, INFINITE),
            "above -60 dB",
            condition=INSTANCE,
        ),
        *promises(),
        Claim(
            "tracking-stops-at-noise",
            "tracking of stochastic gradients stops at their noise, above each method that reduces "
            "their variance",
            "Xin, Khan and Kar 2020, abstract",
            gaps(
                "stochastic",
                *((TRACKING, name) for name in REDUCED),
                measure=lambda data, over, under: gap(
                    samples(data.isel(round=-1), over, METRIC),
                    samples(data.isel(round=-1), under, METRIC),
                ),
            ),
            (100, INFINITE),
            "by 100 dB or more",
            condition=INSTANCE,
        ),
        Claim(
            "nids-steps-free-of-the-network",
            "NIDS converges at every step size below 2/L, whatever the network",
            "Li, Shi and Yan 2019, abstract and Theorem 1",
            final("near", *GRAPHS),
            (-INFINITE, EXACT),
            DOUBLE,
            condition=f"at {NEAR.value} of 2/L, on {', '.join(GRAPHS)}",
        ),
    ],
    settings=[
        *(
            CLIENTS,
            SAMPLES,
            DIM,
            SPREAD,
            DEGREE,
            STEP,
            LOCAL,
            ADMM,
            LATE,
            SKIPS,
            NEWTON,
            L1,
            ROUNDS,
            FEWER,
        ),
        *(SMALL, PERIOD, LONG, NEAR, FREE, SEEDS),
    ],
    double=True,
)
