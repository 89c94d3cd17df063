"""What figures 5.1 to 5.4 of Gauthier 2024 share: settings, the scenario, measures of claims.

The source gives sizes, schedules and the privacy parameters. Every value that it leaves open is in
this file, once, with its reason.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

import fljax as fl
from experiments.figure import Effort, Estimate, Measure, Setting, Studies
from experiments.measures import Window, curve_gap, first_part, last, samples
from experiments.tuning import Protocol, Tuning
from fljax.algorithms import GFL, PGFL, Algorithm, ClusterFL, GraphFedAvg

# --------------------------------------------------------------------------- settings

SERVERS = Setting("servers", 10, "line 1495", given=True)
MEAN_DEGREE = Setting("mean degree of the servers' graph", 3, "line 1495", given=True)
PER_SERVER = Setting("clients of a server", 15, "line 1495", given=True)
CLUSTERS = Setting("clusters Q", 3, "line 1495", given=True)
SAMPLES = Setting("samples of a client", (2, 9), "line 1495, uniform integers", given=True)
DIM = Setting("parameters D", 60, "line 1495", given=True)
SPREAD = Setting("gamma_q of the clusters' models", 0.15, "uniform on ±, line 1498", given=True)
ROUNDS = Setting("iterations", 300, "“after 300 iterations”, line 1521", given=True)
READ = Setting("iterations of the sweeps", 200, "lines 1526, 1542", given=True)
SCHEDULED = Setting("clients a server draws", 3, "of 15, line 1513", given=True)
MIXED = Setting("inter-cluster parameter tau", 0.4, "line 1511", given=True)
INITIAL = Setting("privacy parameter phi of the first round", 0.001, "line 1521", given=True)
DECAY = Setting("decay zeta of the noise variance", 0.99, "line 1521", given=True)
DELTA = Setting("delta", 1e-5, "for the conversion of zCDP only")

PENALTY = Setting(
    "penalty rho",
    3.0,
    "not given; that of chapters 3 and 6. From 1 on the algorithm is stable, at 0.3 it is not",
)
STRENGTH = Setting("regularisation lambda", 0.01, "not given; small beside the data")
NOISE = Setting(
    "observation noise variance",
    0.7,
    "not given (“noisy”). It decides the order in figure 5.1 (a): on the tuning seeds the source's "
    "(PGFL with τ = 0.4 best, then τ = 0, then GFL) holds at 0.7; at 0.5 and below mixing does "
    "more harm than good, at 1.0 GFL beats PGFL with τ = 0",
)
BOUND = Setting(
    "assumed gradient bound C_k",
    0.03,
    "not given. Squared losses have none: real gradients reach tens, and the noise that a bound of "
    "that size asks for buries the signal. The published curves need C_k/rho of about 0.01",
)
LAWS = Setting("inputs and w_0", "standard normal", "not given")
SPLIT = Setting("clusters' members", "random, of equal size", "“split at random”")
EMPTY = Setting("cell without participants", "keeps its model", "no rule is given")
GRADIENT = Setting("GFL, gradient: local steps", 5, "not given; the step size is tuned")
EARLY = Setting(
    "iterations of the early comparison", "first tenth", "where the curves fall fastest"
)

COMMON = (
    *(SERVERS, MEAN_DEGREE, PER_SERVER, CLUSTERS, SAMPLES, DIM, ROUNDS, SCHEDULED, INITIAL, DECAY),
    *(PENALTY, STRENGTH, NOISE, BOUND, LAWS, SPLIT, EMPTY, EARLY, DELTA),
)

STEPS = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)
METRIC = "network_deviation"
SAME = (-0.5, 0.5)
SIMILAR = "“near-identical”: within 0.5 dB"

PGFL_0, PGFL_MIXED = "PGFL, τ = 0", "PGFL, τ = 0.4"
GFL_ADMM, CLUSTER_FL, GFL_GRADIENT = "GFL", "ClusterFL, τ = 0.4", "GFL, gradient"


# --------------------------------------------------------------------------- scenario


def scenario(
    key: Array,
    algorithm: Algorithm,
    private: bool = True,
    initial: Array | float = INITIAL.value,
    decay: Array | float = DECAY.value,
    spread: float = SPREAD.value,
    rounds: int = ROUNDS.value,
) -> fl.Simulation:
    """One run of section 5.4.1: graph, clusters and data drawn anew from its key.

    The noise starts as ``initial`` says and decays, whatever the number of ``rounds`` the run has.
    """
    k_graph, k_cluster, k_data = jax.random.split(key, 3)
    graph = fl.graphs.random_connected(k_graph, SERVERS.value, MEAN_DEGREE.value)
    network = fl.federation.balanced(PER_SERVER.value, graph)
    privacy = None
    if private:
        privacy = fl.privacy.ZCDP.from_initial(initial, decay, rounds, gradient_bound=BOUND.value)
    return fl.Simulation(
        problem=fl.problems.clustered_ridge(
            k_data,
            fl.problems.random_clusters(k_cluster, network.nodes, CLUSTERS.value),
            CLUSTERS.value,
            SAMPLES.value,
            DIM.value,
            spread,
            fl.problems.group_share(STRENGTH.value, network.server, SERVERS.value),
            NOISE.value,
        ),
        network=network,
        algorithm=algorithm,
        privacy=privacy,
        metrics=[METRIC],
    )


def pgfl(inter_cluster: Any, scheduled: bool = True, kind: type[PGFL] = PGFL) -> PGFL:
    count = SCHEDULED.value if scheduled else None
    return kind(PENALTY.value, inter_cluster, clients_per_server=count)


def graph_fedavg(step_size: float, scheduled: bool = True) -> GraphFedAvg:
    return GraphFedAvg(step_size, GRADIENT.value, SCHEDULED.value if scheduled else None)


def compared(step_size: float, scheduled: bool) -> dict[str, Algorithm]:
    """The curves of figure 5.1, and GFL by gradient steps."""
    return {
        GFL_ADMM: pgfl(0.0, scheduled, GFL),
        CLUSTER_FL: pgfl(MIXED.value, scheduled, ClusterFL),
        PGFL_0: pgfl(0.0, scheduled),
        PGFL_MIXED: pgfl(MIXED.value, scheduled),
        GFL_GRADIENT: graph_fedavg(step_size, scheduled),
    }


def study(
    name: str,
    methods: Mapping[str, Algorithm],
    effort: Effort,
    seeds: Any = None,
    **settings: Any,
) -> xr.Dataset:
    """All methods on common graphs, data, draws and noise."""

    def build(key: Array, algorithm: Algorithm) -> fl.Simulation:
        return scenario(key, algorithm, **settings)

    build.__qualname__ = f"scenario({settings!r})"
    return effort.sweep(
        name,
        build,
        rounds=ROUNDS.value,
        seeds=effort.seeds if seeds is None else seeds,
        grid={"algorithm": dict(methods)},
        record_every=2,
    )


def over(
    name: str,
    axis: str,
    values: Sequence[float],
    build: Callable[..., fl.Simulation],
    effort: Effort,
    label: str,
) -> xr.Dataset:
    """The NMSD after 200 iterations of ``build(key, axis=value)`` at every value."""
    found = effort.sweep(
        name,
        build,
        rounds=READ.value,
        seeds=effort.seeds,
        grid={axis: list(values)},
        record_every=READ.value,
    ).isel(round=-1)
    found[axis].attrs["long_name"] = label
    return found


#: The first tenth of the iterations.
early = first_part(10)

#: Algorithms are set "to observe the same initial convergence rate whenever possible" (line 1509).
PROTOCOL = Protocol(METRIC, early, method=GFL_GRADIENT)
chosen, tuning_table = PROTOCOL.chosen, PROTOCOL.table


def tune(scheduled: bool, private: bool, effort: Effort) -> xr.Dataset:
    """Learning curves of GFL by gradient steps at every candidate, beside PGFL's."""
    name = f"tuning-{scheduled:d}{private:d}"
    return PROTOCOL.tune(
        lambda methods, seeds: study(name, methods, effort, seeds, private=private),
        {PGFL_0: pgfl(0.0, scheduled)},
        [Tuning(GFL_GRADIENT, lambda step: graph_fedavg(step, scheduled), STEPS)],
        effort,
    )


# --------------------------------------------------------------------------- claims

#: A panel and the method in it; where there is another axis, the method and its value.
Curve = tuple[str, Any]


def gaps(*pairs: tuple[Curve, Curve], when: Window = last) -> Measure:
    """For every (over, under) how far the first NMSD is above the second, dB, paired by seed.

    At the last iteration, or the mean over several of the distance of the mean curves.
    """

    def read(studies: Studies, curve: Curve) -> np.ndarray:
        panel, method = curve
        return samples(when(studies[panel]), method, METRIC)

    return lambda studies: {
        f"{_name(over)} above {_name(under)}": curve_gap(read(studies, over), read(studies, under))
        for over, under in pairs
    }


def _name(curve: Curve) -> str:
    panel, method = curve
    if isinstance(method, dict):
        method = ", ".join(f"{k} = {v:g}" for k, v in method.items())
    return f"{method} ({panel})"


def one_above(panel: str, over: str, *under: str) -> list[tuple[Curve, Curve]]:
    """One method of a panel against several others."""
    return [((panel, over), (panel, other)) for other in under]


def neighbours(panel: str, axis: str, rising: bool) -> Measure:
    """How far the NMSD is above from one value of an axis to the next, in the given direction."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        values = studies[panel][axis].values.tolist()
        pairs = [(b, a) if rising else (a, b) for a, b in itertools.pairwise(values)]
        return gaps(*(((panel, {axis: a}), (panel, {axis: b})) for a, b in pairs))(studies)

    return measure


def honest_subtitle() -> str:
    return (
        f"φ = {INITIAL.value:g} at first, ζ = {DECAY.value:g}; privacy nominal: gradients exceed "
        f"the assumed bound {BOUND.value:g}"
    )
