"""What the figures of Gauthier 2024, chapter 6, share: settings, scenario, methods, claims.

The source gives the sizes, the clusters' law, the penalty and the policies' hyper-parameters. Every
value that it leaves open is in this file, once, with its reason. Nothing is tuned.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

import fljax as fl
from experiments import measures
from experiments.figure import INFINITE, Effort, Estimate, Measure, Setting
from experiments.measures import curve_distance, curve_gap, first_rounds, last_rounds, two
from fljax._module import float_dtype
from fljax.algorithms import NPFL, NPFLRL, Algorithm, DeterministicPolicyGradient, RandomProbe
from fljax.metrics import Metric, Snapshot

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients K", 30, "line 1714", given=True)
MEAN_DEGREE = Setting("mean degree", 6, "line 1714; a random tree plus random links", given=True)
CLUSTERS = Setting("clusters Q", 3, "line 1714", given=True)
OFFSETS = Setting(
    "cluster offsets delta_q",
    (-0.5, 0.5),
    "uniform; w_q = (1 + delta_q) w_0, line 1714",
    given=True,
)
DIM = Setting("parameters", 60, "line 1714", given=True)
SIZES = Setting("samples per client D_k", (5, 35), "uniform, line 1714; whole numbers", given=True)
PENALTY = Setting("penalty rho", 3.0, "line 1714", given=True)
FIXED = Setting("fixed tau", (0.0, 0.05, 0.1, 0.2, 0.4), "line 1742", given=True)
EPOCHS = Setting("epochs of NPFL-BRL", 3, "lines 1747, 1749", given=True)
DPG_RATES = Setting(
    "delta_DPG of NPFL-RL, NPFL-BRL", (0.001, 0.003), "lines 1746, 1747", given=True
)
SAC_RATES = Setting("delta_SAC of NPFL-RL, NPFL-BRL", (0.1, 0.04), "lines 1748, 1749", given=True)
SAC_WIDTH = Setting("nu_SAC", 0.05, "lines 1748, 1749", given=True)

BASE = Setting(
    "base model w_0",
    "N(0, I)",
    "“randomly chosen”; its scale matters to DPG alone, whose rate multiplies a derivative that "
    "grows with |w_0|^2: unit models (and noise to match) are the same at a rate 60 times smaller",
)
FEATURES = Setting("features", "N(0, 1)", "no law is given; that of chapter 3's figures")
NOISE = Setting(
    "noise variances eta_k",
    (0.05, 0.5),
    "uniform; no values are given. Small beside the signal |w_q|^2 of about 60, so that what a "
    "client lacks is samples, as the source says of its clients",
)
STRENGTH = Setting(
    "lambda", 0.01, "divided by the cluster's size (6.5); too small to bias, for it is not given"
)
GROUPING = Setting(
    "random grouping", "10 clients a cluster", "“randomly grouped”; equal sizes keep seeds alike"
)
VALIDATION = Setting(
    "validation data", "D_k samples", "“identically distributed”; (6.12) divides by D_k"
)
START = Setting("initial tau", 0.05, "not given; the fixed value that figure 6.2 compares with")
CLIP = Setting(
    "range of tau", (0.0, 1.0), "not in the source, where nothing keeps a parameter in its interval"
)
ROUNDS = Setting(
    "iterations",
    300,
    "not given; with a fixed tau the last 100 change the error by less than 0.2 dB",
)
EARLY = Setting("iterations of the initial speed", 30, "where all curves fall fastest")
LATE = Setting("iterations of the steady state", 30, "the last ones; their mean")
EVERY = Setting("recorded", "every 3rd iteration", "curves are smooth on that scale")

COMMON = (
    *(CLIENTS, MEAN_DEGREE, CLUSTERS, OFFSETS, DIM, SIZES, PENALTY, BASE, FEATURES, NOISE),
    *(STRENGTH, GROUPING, ROUNDS, EARLY, LATE, EVERY),
)
LEARNED = (EPOCHS, DPG_RATES, SAC_RATES, SAC_WIDTH, VALIDATION, START, CLIP)

RECORD_EVERY = 3

NMSD, PRINTED = "network_deviation", "deviation_by_norm"
#: How they are called in claims.
METRICS = {NMSD: "NMSD", PRINTED: "(6.15)", "joined_deviation": "NMSD of these"}

DPG, BATCH_DPG = "NPFL-RL (DPG)", "NPFL-BRL (DPG)"
SAC, BATCH_SAC = "NPFL-RL (SAC)", "NPFL-BRL (SAC)"

# --------------------------------------------------------------------------- scenario


@functools.cache
def scenario(metrics: tuple[Metric | str, ...]) -> Callable[..., fl.Simulation]:
    """One run of the setting (section 6.3): everything drawn anew from its key."""

    def build(key: Array, algorithm: Algorithm) -> fl.Simulation:
        k_graph, k_cluster, k_noise, k_data = jax.random.split(key, 4)
        network = fl.graphs.random_connected(k_graph, CLIENTS.value, MEAN_DEGREE.value)
        cluster = fl.problems.random_clusters(k_cluster, CLIENTS.value, CLUSTERS.value)
        return fl.Simulation(
            problem=fl.problems.clustered_ridge(
                k_data,
                cluster,
                CLUSTERS.value,
                SIZES.value,
                DIM.value,
                OFFSETS.value[1],
                fl.problems.group_share(STRENGTH.value, cluster, CLUSTERS.value),
                jax.random.uniform(k_noise, (CLIENTS.value,), float_dtype(), *NOISE.value),
                validated=True,
            ),
            network=network,
            algorithm=algorithm,
            metrics=metrics,
        )

    names = [metric if isinstance(metric, str) else metric.name for metric in metrics]
    build.__qualname__ = f"scenario({', '.join(names)})"
    return build


def study(
    name: str,
    methods: Mapping[str, Algorithm],
    effort: Effort,
    metrics: tuple[Metric | str, ...] = (NMSD, PRINTED),
) -> xr.Dataset:
    """All methods on common data and networks."""
    return effort.sweep(
        name,
        scenario(metrics),
        rounds=ROUNDS.value,
        seeds=effort.seeds,
        grid={"algorithm": dict(methods)},
        record_every=RECORD_EVERY,
    )


# --------------------------------------------------------------------------- methods


def fixed(tau: float) -> tuple[str, NPFL]:
    """NPFL with the same parameter for all clients and rounds, and its name."""
    return f"NPFL, τ = {tau:g}", NPFL(PENALTY.value, tau)


def gradient(epochs: int = 1, cap: float = INFINITE, **changes: Any) -> NPFLRL:
    """NPFL-RL (DPG), or with several epochs NPFL-BRL (DPG)."""
    policy = DeterministicPolicyGradient(DPG_RATES.value[epochs > 1], cap)
    return NPFLRL(PENALTY.value, policy, START.value, epochs, **changes)


def probe(epochs: int = 1, **changes: Any) -> NPFLRL:
    """NPFL-RL (SAC), or with several epochs NPFL-BRL (SAC)."""
    policy = RandomProbe(SAC_RATES.value[epochs > 1], SAC_WIDTH.value)
    return NPFLRL(PENALTY.value, policy, START.value, epochs, **changes)


def learned(**changes: Any) -> dict[str, NPFLRL]:
    """The four of the source."""
    batch = EPOCHS.value
    return {
        DPG: gradient(**changes),
        BATCH_DPG: gradient(batch, **changes),
        SAC: probe(**changes),
        BATCH_SAC: probe(batch, **changes),
    }


def longest_probe(epochs: int = 1) -> float:
    """By how much SAC can move a parameter in one epoch."""
    return SAC_RATES.value[epochs > 1] * SAC_WIDTH.value / 2


# --------------------------------------------------------------------------- metrics


def _joined_deviation(now: Snapshot) -> Array:
    tasks, network = now.problem.tasks, now.network
    assert network is not None
    same = network.reweighted(lambda k, l: tasks.cluster[k] == tasks.cluster[l])  # noqa: E741
    joined = (same.degree > 0).astype(now.model.dtype)
    truth = tasks.truth[tasks.cluster]
    deviation = jnp.sum((now.model - truth) ** 2, axis=1) / jnp.sum(truth**2, axis=1)
    return jnp.sum(joined * deviation) / jnp.sum(joined)


#: The NMSD of the clients with a neighbour of their own cluster.
JOINED = Metric("joined_deviation", _joined_deviation, "NMSD of clients with a cluster neighbour")


def _parameter(rank: Callable[[int], int]) -> Callable[[Snapshot], Array]:
    def measure(now: Snapshot) -> Array:
        held = jnp.sum(now.problem.weights > 0, axis=1, dtype=jnp.int32)
        return now.state.inter_cluster[jnp.argsort(held)[rank(len(held))]]

    return measure


#: The inter-cluster parameter of one client, by its rank in samples.
PARAMETERS = tuple(
    Metric(f"tau_{name}", _parameter(rank), f"τ of the client with {what}", decibel=False)
    for name, what, rank in (
        ("much", "most samples", lambda clients: clients - 1),
        ("moderate", "the median of samples", lambda clients: clients // 2),
        ("little", "fewest samples", lambda clients: 0),
    )
)
MUCH, MODERATE, LITTLE = (metric.name for metric in PARAMETERS)


def _mean_parameter(between: bool) -> Callable[[Snapshot], Array]:
    def measure(now: Snapshot) -> Array:
        tasks = now.problem.tasks
        size = jnp.sum(tasks.truth**2, axis=1)
        extreme = (size == jnp.min(size)) | (size == jnp.max(size))
        chosen = (extreme[tasks.cluster] != between).astype(now.model.dtype)
        return jnp.sum(chosen * now.state.inter_cluster) / jnp.sum(chosen)

    return measure


#: The mean inter-cluster parameter, by where the client's cluster lies among the collinear models.
PLACES = (
    Metric("tau_between", _mean_parameter(True), "mean τ of the middle cluster", decibel=False),
    Metric("tau_outer", _mean_parameter(False), "mean τ of the outer clusters", decibel=False),
)
BETWEEN, OUTER = (metric.name for metric in PLACES)

# --------------------------------------------------------------------------- claims

early, late = first_rounds(EARLY.value), last_rounds(LATE.value)


def gap(data: xr.Dataset, over: str, under: str, metric: str = NMSD) -> Estimate:
    """How far one method's error is above another's in the steady state, dB, paired by seed."""
    return measures.gap(*two(late(data), over, under, metric))


def early_gap(data: xr.Dataset, over: str, under: str, metric: str = NMSD) -> Estimate:
    """How far one mean learning curve is above another over the early iterations, dB."""
    return curve_gap(*two(early(data), over, under, metric))


def early_distance(data: xr.Dataset, one: str, other: str) -> Estimate:
    """Mean distance in dB between two mean learning curves over the early iterations."""
    return curve_distance(*two(early(data), one, other, NMSD))


def gaps(
    panel: str,
    *pairs: tuple[str, str],
    metrics: Sequence[str] = (NMSD, PRINTED),
    measure: Callable[..., Estimate] = gap,
) -> Measure:
    """For every (over, under), in every metric, how far the first is above the second."""
    return lambda studies: {
        f"{over} above {under}, {METRICS[metric]}": measure(studies[panel], over, under, metric)
        for over, under in pairs
        for metric in metrics
    }


def roughness(values: np.ndarray) -> np.ndarray:
    """``[S]``: the mean square of the second differences of each seed's curve, ``[S, rounds]``.

    A curve that bends slowly has next to none, whatever its slope.
    """
    return np.mean(np.diff(values, n=2, axis=1) ** 2, axis=1)


def rougher(one: np.ndarray, other: np.ndarray) -> Estimate:
    """By how many dB the curves of one method are rougher than those of another."""
    return measures.gap(roughness(one), roughness(other))
