"""Shared by the figures of Gauthier 2024, chapter 6: settings, scenario, methods, claims.

The source gives the sizes, the clusters' distribution, the penalty and hyper-parameters. Every
value that it leaves open is in this file, once, with its reason. Nothing is tuned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float

import fljax as fl
from experiments import measures
from experiments.figure import INFINITE, Claim, Effort, Estimate, Measure, Setting
from experiments.measures import curve_distance, curve_gap, first_rounds, last_rounds, two
from fljax import plotting, statistics
from fljax._core.module import float_dtype, replace
from fljax.algorithms import NPFL, NPFLRL, Algorithm, DeterministicPolicyGradient, RandomProbe
from fljax.metrics.definitions import Metric, Snapshot

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients K", 30, "section 6.3", given=True)
MEAN_DEGREE = Setting("mean degree", 6, "section 6.3; a random tree plus random links", given=True)
CLUSTERS = Setting("clusters Q", 3, "section 6.3", given=True)
OFFSETS = Setting(
    "cluster offsets delta_q",
    (-0.5, 0.5),
    "uniform; w_q = (1 + delta_q) w_0, section 6.3",
    given=True,
)
DIM = Setting("parameters", 60, "section 6.3", given=True)
SIZES = Setting(
    "samples per client D_k", (5, 35), "uniform, section 6.3; whole numbers", given=True
)
PENALTY = Setting("penalty rho", 3.0, "section 6.3", given=True)
FIXED = Setting("fixed tau", (0.0, 0.05, 0.1, 0.2, 0.4), "section 6.3", given=True)
EPOCHS = Setting("epochs of NPFL-BRL", 3, "section 6.3", given=True)
DPG_RATES = Setting("delta_DPG of NPFL-RL, NPFL-BRL", (0.001, 0.003), "section 6.3", given=True)
SAC_RATES = Setting("delta_SAC of NPFL-RL, NPFL-BRL", (0.1, 0.04), "section 6.3", given=True)
SAC_WIDTH = Setting("nu_SAC", 0.05, "section 6.3", given=True)

#: The condition of claims about the variant.
CONDITION = (
    "every client has a neighbor of its cluster and |w_0|^2 is about 20; the source says neither "
    "whether its network has lonely clients nor how long its models are"
)
NEW = "New: the variant in which no client is alone in its cluster and the models are shorter."

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
JOINED_SIZE = Setting(
    "|w_0|^2 of the variant",
    20.0,
    "what 60 entries uniform on (0, 1) have, another reading of “randomly chosen”; the rates of "
    "DPG are then worth a third",
)
JOINED_NETWORK = Setting(
    "network of the variant",
    "clusters drawn again until each client has a neighbor of its own",
    "the source's law, given that; graphs and the sizes of clusters stay as they are",
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
    *(STRENGTH, GROUPING, JOINED_NETWORK, JOINED_SIZE, ROUNDS, EARLY, LATE, EVERY),
)
LEARNED = (EPOCHS, DPG_RATES, SAC_RATES, SAC_WIDTH, VALIDATION, START, CLIP)

RECORD_EVERY = 3

NMSD = "network_deviation"
PRINTED = "deviation_by_norm"
#: Their names in claims.
CALLED = {NMSD: "NMSD", PRINTED: "(6.15)", "joined_deviation": "NMSD of these"}

DPG = "NPFL-RL (DPG)"
BATCH_DPG = "NPFL-BRL (DPG)"
SAC = "NPFL-RL (SAC)"
BATCH_SAC = "NPFL-BRL (SAC)"
NFL = "NFL"

#: The look of every method in the chapter's figures: NFL and fixed parameters, learned ones.
LOOKS: dict[str, dict[str, Any]] = dict(
    zip((NFL, *(f"NPFL, τ = {tau:g}" for tau in FIXED.value)), plotting.LOOKS, strict=False)
)
LOOKS |= dict(
    zip((DPG, BATCH_DPG, SAC, BATCH_SAC), itemgetter(1, 5, 3, 4)(plotting.LOOKS), strict=True)
)
MEDIAN = "the median over seeds of their own distances, paired, in the place of that of the means"

# --------------------------------------------------------------------------- scenario


@fl.module
class World:
    """Properties of the network and the models that the source leaves open.

    Args:
      joined: whether each client has a neighbor of its own cluster.
      size: mean of |w_0|^2.
      strength: lambda.
      offset: the most that a cluster's model is longer or shorter than w_0, a share.
    """

    joined: Bool[Array, ""] | bool
    size: Float[Array, ""] | float = float(DIM.value)
    strength: Float[Array, ""] | float = STRENGTH.value
    offset: Float[Array, ""] | float = OFFSETS.value[1]


#: Names of the two worlds of the figures.
DRAWN = "as drawn"
JOINED = "joined"
WORLDS = {DRAWN: World(False), JOINED: World(True, JOINED_SIZE.value)}


def clusters(key: Array, network: fl.graphs.Graph, joined: Array | bool) -> Array:
    """``[K]``: clusters at random; if ``joined``, given that no client is alone among others."""

    def draw(attempt: Array) -> Array:
        key_of_it = jax.random.fold_in(key, attempt)
        return fl.problems.random_clusters(key_of_it, CLIENTS.value, CLUSTERS.value)

    def unfit(state: tuple[Array, Array]) -> Array:
        return joined & jnp.any(alone(network, state[1]))

    def again(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return state[0] + 1, draw(state[0] + 1)

    first = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(unfit, again, (first, draw(first)))[1]


def alone(network: fl.graphs.Graph, cluster: Array) -> Array:
    """``[K]``: which clients have no neighbor of their cluster."""
    return network.reweighted(lambda k, l: cluster[k] == cluster[l]).degree == 0  # noqa: E741


def scaled(problem: fl.problems.Problem, factor: Array) -> fl.problems.Problem:
    """The problem with true models and noise scaled by a factor."""
    tasks = problem.tasks
    validation = replace(tasks.validation, targets=factor * tasks.validation.targets)
    tasks = replace(tasks, truth=factor * jnp.asarray(tasks.truth), validation=validation)
    return replace(problem, targets=factor * problem.targets, tasks=tasks)


def scenario(key: Array, algorithm: Algorithm, world: World) -> fl.Simulation:
    """One run of the setting (section 6.3): everything drawn from its key.

    All figures record the same metrics, so that they share compiled programs.
    """
    k_graph, k_cluster, k_noise, k_data = jax.random.split(key, 4)
    network = fl.graphs.random_connected(k_graph, CLIENTS.value, MEAN_DEGREE.value)
    cluster = clusters(k_cluster, network, world.joined)
    noise = jax.random.uniform(k_noise, (CLIENTS.value,), float_dtype(), *NOISE.value)
    problem = fl.problems.clustered_ridge(
        k_data,
        cluster,
        CLUSTERS.value,
        SIZES.value,
        DIM.value,
        world.offset,
        fl.problems.group_share(world.strength, cluster, CLUSTERS.value),
        noise * (DIM.value / world.size),
        validated=True,
    )
    return fl.Simulation(
        problem=scaled(problem, jnp.sqrt(world.size / DIM.value)),
        network=network,
        algorithm=algorithm,
        metrics=METRICS,
    )


def study(
    name: str,
    methods: Mapping[str, Algorithm],
    effort: Effort,
    worlds: Mapping[str, World] = WORLDS,
    seeds: int | None = None,
) -> xr.Dataset:
    """All methods in all worlds, on common data and networks in each."""
    return effort.sweep(
        name,
        scenario,
        rounds=ROUNDS.value,
        seeds=seeds or effort.seeds,
        grid={"algorithm": dict(methods), "world": dict(worlds)},
        record_every=RECORD_EVERY,
    )


def parted(results: xr.Dataset, *metrics: str) -> dict[str, xr.Dataset]:
    """The two worlds of a study, with the metrics that a figure stores."""
    stored = results[[*metrics, "diverged"]]
    return {
        "a": stored.sel(world=DRAWN, drop=True),
        "joined": stored.sel(world=JOINED, drop=True),
    }


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
    """The largest change of a parameter by SAC in one epoch."""
    return SAC_RATES.value[epochs > 1] * SAC_WIDTH.value / 2


# --------------------------------------------------------------------------- metrics


def _deviation(now: Snapshot, of: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Each client's deviation, and a selection by whether it is alone in its cluster."""
    tasks = now.problem.tasks
    assert now.network is not None
    chosen = of(alone(now.network, tasks.cluster)).astype(now.model.dtype)
    truth = tasks.truth[tasks.cluster]
    return jnp.sum((now.model - truth) ** 2, axis=1) / jnp.sum(truth**2, axis=1), chosen


def _joined_deviation(now: Snapshot) -> Array:
    deviation, joined = _deviation(now, jnp.logical_not)
    return jnp.sum(joined * deviation) / jnp.sum(joined)


def _alone(now: Snapshot) -> Array:
    return jnp.mean(_deviation(now, jnp.asarray)[1])


def _alone_deviation(now: Snapshot) -> Array:
    deviation, lonely = _deviation(now, jnp.asarray)
    return jnp.mean(lonely * deviation)


def _learned(now: Snapshot) -> Array:
    """The parameters; NaN where they are not learned."""
    nothing = jnp.full(len(now.model), jnp.nan, now.model.dtype)
    return getattr(now.state, "inter_cluster", nothing)


def _alone_parameter(now: Snapshot) -> Array:
    return jnp.mean(_deviation(now, jnp.asarray)[1] * _learned(now))


#: Metrics of clients with a neighbor of their own cluster, and of clients without. The latter are
#: parts of the mean over all clients, because there may be no such client.
AMONG_JOINED = Metric("joined_deviation", _joined_deviation, "NMSD of these", decibel=True)
ALONE = Metric("alone", _alone, "clients alone in their cluster", decibel=False)
ALONE_DEVIATION = Metric(
    "alone_deviation", _alone_deviation, "their part of the NMSD", decibel=True
)
ALONE_PARAMETER = Metric("alone_tau", _alone_parameter, "their part of mean τ", decibel=False)


def _parameter(rank: Callable[[int], int]) -> Callable[[Snapshot], Array]:
    def measure(now: Snapshot) -> Array:
        samples = _sample_counts(now)
        return _learned(now)[jnp.argsort(samples)[rank(len(samples))]]

    return measure


def _sample_counts(now: Snapshot) -> Array:
    """The number of samples of each client."""
    return jnp.sum(now.problem.weights > 0, axis=1, dtype=jnp.int32)


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
        return jnp.sum(chosen * _learned(now)) / jnp.sum(chosen)

    return measure


#: The mean inter-cluster parameter, by where the client's cluster lies among the collinear models.
PLACES = (
    Metric("tau_between", _mean_parameter(True), "mean τ of the middle cluster", decibel=False),
    Metric("tau_outer", _mean_parameter(False), "mean τ of the outer clusters", decibel=False),
)
BETWEEN, OUTER = (metric.name for metric in PLACES)


def _ranks(values: Array) -> Array:
    """Centered ranks; equal values share theirs."""
    return jnp.sum(jnp.sign(values[:, None] - values[None, :]), axis=1) / 2


def _by_data(now: Snapshot) -> Array:
    samples = _ranks(_sample_counts(now).astype(now.model.dtype))
    tau = _ranks(_learned(now))
    scale = jnp.sqrt(jnp.sum(samples**2) * jnp.sum(tau**2))
    return jnp.where(scale > 0, jnp.sum(samples * tau) / jnp.where(scale > 0, scale, 1), scale)


#: Spearman's correlation of the clients' parameters with their samples, 0 if all are equal.
BY_DATA = Metric("by_data", _by_data, "rank correlation of τ and samples", decibel=False)

METRICS = (
    *(NMSD, PRINTED, AMONG_JOINED, ALONE, ALONE_DEVIATION, ALONE_PARAMETER),
    *(*PARAMETERS, *PLACES, BY_DATA),
)

# --------------------------------------------------------------------------- claims

early = first_rounds(EARLY.value)
late = last_rounds(LATE.value)


def gap(data: xr.Dataset, over: str, under: str, metric: str = NMSD) -> Estimate:
    """How far one method's error is above another's in the steady state, dB, paired by seed."""
    return measures.gap(*two(late(data), over, under, metric))


def early_gap(data: xr.Dataset, over: str, under: str, metric: str = NMSD) -> Estimate:
    """How far one mean learning curve is above another over the early iterations, dB."""
    return curve_gap(*two(early(data), over, under, metric))


def early_distance(data: xr.Dataset, first: str, second: str) -> Estimate:
    """Mean distance in dB between two mean learning curves over the early iterations."""
    return curve_distance(*two(early(data), first, second, NMSD))


def gaps(
    panel: str,
    *pairs: tuple[str, str],
    metrics: Sequence[str] = (NMSD, PRINTED),
    measure: Callable[..., Estimate] = gap,
) -> Measure:
    """For every (over, under), in every metric, how far the first is above the second."""
    return lambda studies: {
        f"{over} above {under}, {CALLED[metric]}": measure(studies[panel], over, under, metric)
        for over, under in pairs
        for metric in metrics
    }


def median_gap(data: xr.Dataset, over: str, under: str, metric: str = NMSD) -> Estimate:
    """:func:`gap` in the median run."""
    return measures.median_gap(*two(late(data), over, under, metric))


def early_median_gap(data: xr.Dataset, over: str, under: str, metric: str = NMSD) -> Estimate:
    """The same over the early iterations."""
    return measures.median_gap(*two(early(data), over, under, metric))


def in_the_median(claim: Claim, measure: Measure) -> Claim:
    """The same claim for the median run, because a few runs dominate the means."""
    return changed(
        claim,
        name=f"{claim.name}-in-the-median",
        measure=measure,
        condition="; ".join(filter(None, (MEDIAN, claim.condition))),
        note="",
        changed="New: the median beside the mean.",
    )


def quantiles(panels: Mapping[str, xr.Dataset]) -> list[dict[str, Any]]:
    """Where the runs of every method end, dB: mean, median and quartiles over seeds."""
    rows = []
    for panel, data in panels.items():
        for name in data["algorithm"].values.tolist():
            ends = measures.samples(late(data), name, NMSD).mean(axis=1)
            numbers = (np.nanmean(ends), *np.nanpercentile(ends, [50, 25, 75]))
            levels = map(float, statistics.decibels(np.asarray(numbers)))
            columns = ("mean, dB", "median, dB", "lower quartile, dB", "upper quartile, dB")
            rows.append({"panel": panel, "method": name} | dict(zip(columns, levels, strict=True)))
    return rows


def roughness(values: np.ndarray) -> np.ndarray:
    """``[S]``: the mean square of the second differences of each seed's curve, ``[S, rounds]``.

    A slowly bending curve has almost none, even if it is steep.
    """
    return np.mean(np.diff(values, n=2, axis=1) ** 2, axis=1)


def rougher(over: np.ndarray, under: np.ndarray) -> Estimate:
    """By how many dB the curves of one method are rougher than another's."""
    return measures.gap(roughness(over), roughness(under))
