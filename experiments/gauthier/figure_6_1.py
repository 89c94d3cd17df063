"""Gauthier 2024, figure 6.1: networked learning with a fixed tau (section 6.3)."""

from dataclasses import replace

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture
from scipy import sparse
from scipy.sparse import csgraph

from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Studies
from experiments.gauthier import chapter6 as ch6
from experiments.measures import joined, scenario_key
from fljax import plotting, statistics
from fljax.algorithms import NetworkedADMM
from fljax.problems import Tasks
from fljax.results.dataset import provenance
from fljax.theory import pgfl as theory

NFL = ch6.NFL
ALONE, LEAST, MORE, MUCH, MOST = NAMES = [ch6.fixed(tau)[0] for tau in ch6.FIXED.value]
IN_TOUCH = ch6.AMONG_JOINED.name


def study(effort: Effort) -> Studies:
    methods = {NFL: NetworkedADMM(ch6.PENALTY.value)}
    methods |= dict(ch6.fixed(tau) for tau in ch6.FIXED.value)
    stored = (ch6.NMSD, ch6.PRINTED, IN_TOUCH, ch6.ALONE.name, ch6.ALONE_DEVIATION.name)
    return ch6.parted(ch6.study("study", methods, effort), *stored) | {"levels": levels(effort)}


def levels(effort: Effort) -> xr.Dataset:
    """The NMSD of ADMM's limits, by seed: one model for all, and without inter-cluster learning one
    for each connected part of a cluster.
    """
    where = {"world": [*ch6.WORLDS], "algorithm": [NFL, ALONE], "seed": range(effort.seeds)}
    numbers = [
        np.transpose([at_rest(seed, world) for seed in where["seed"]])
        for world in ch6.WORLDS.values()
    ]
    return xr.Dataset({"level": ([*where], np.asarray(numbers))}, where).assign_attrs(provenance())


BUILD = jax.jit(ch6.scenario)


def at_rest(seed: int, world: ch6.World) -> tuple[float, float]:
    """The deviation of all clients' common minimizer, and of the minimizers of connected parts."""
    simulation = BUILD(scenario_key(seed), ch6.fixed(0.0)[1], world)
    problem = simulation.problem
    cluster = np.asarray(simulation.problem.tasks.cluster)
    low, high = simulation.network.edges.T
    same = cluster[low] == cluster[high]
    links = sparse.coo_array((same[same], (low[same], high[same])), (len(cluster),) * 2)
    parts = csgraph.connected_components(links, directed=False)[1]
    truth = np.asarray(problem.tasks.truth)[cluster]

    def deviation(part: np.ndarray) -> float:
        grouped = replace(problem, tasks=Tasks(part, int(part.max()) + 1))
        models = theory.cluster_optima(grouped)[part]
        return float(np.mean(np.sum((models - truth) ** 2, 1) / np.sum(truth**2, 1)))

    return deviation(np.zeros_like(parts)), deviation(parts)


def by_parameter(studies: Studies) -> xr.Dataset:
    """The steady-state error against the fixed parameter, by group of clients."""

    def part(of: str, world: str, metric: str) -> xr.Dataset:
        result = ch6.late(studies[world]).sel(algorithm=NAMES)
        error = result[[metric, "diverged"]].mean("round", keep_attrs=True)
        named = error.rename({metric: ch6.NMSD, "algorithm": "tau"})
        return named.assign_coords(tau=list(ch6.FIXED.value)).expand_dims(of=[of])

    result = joined(
        part("all clients", "a", ch6.NMSD),
        part("all, as in (d)", "joined", ch6.NMSD),
        part("those in touch", "a", IN_TOUCH),
        axis="of",
    )
    result["tau"].attrs["long_name"] = "fixed τ"
    return result


def plot(studies: Studies) -> Picture:
    titles = (
        *("NMSD", "(6.15) as printed", "NMSD of clients in touch"),
        *("all in touch, |w₀|² ≈ 20", "the same, (6.15)", "steady state against τ"),
    )
    drawing, axes = picture.panels(titles)
    drawn = (("a", ch6.NMSD), ("a", ch6.PRINTED), ("a", IN_TOUCH))
    drawn += (("joined", ch6.NMSD), ("joined", ch6.PRINTED))
    for ax, (world, metric) in zip(axes, drawn, strict=False):
        plotting.learning_curves(studies[world], metric, ax=ax)
        picture.recolor(ax, ch6.LOOKS)
        picture.medians(ax, studies[world], metric)
    for ax, world in ((axes[0], ch6.DRAWN), (axes[3], ch6.JOINED)):
        for name, look in ch6.LOOKS.items():
            if name in (NFL, ALONE):
                level = studies["levels"]["level"].sel(world=world, algorithm=name).mean()
                line = picture.THIN | {"color": look["color"]}
                ax.axhline(statistics.decibels(level.item()), **line)
    ends = by_parameter(studies)
    hidden = {name: f"_{name}" for name in ends["of"].values}
    plotting.trade_off(ends, "tau", ch6.NMSD, "of", axes[-1], labels=hidden, legend=False)
    picture.name_curves(axes[-1], ends["of"].values, at=[-1, -1, -1], shift=[-27, -30, -36])
    return picture.finish(
        drawing,
        "Below: every client has a neighbor of its own cluster; thin: medians; dotted in (a), (d): "
        "the minimizers",
    )


def carried(studies: Studies) -> str:
    """A note: the part of isolated clients in the error at τ = 0."""
    at = ch6.late(studies["a"]).sel(algorithm=ALONE).mean()
    share = float(at[ch6.ALONE.name])
    error = float(at[ch6.ALONE_DEVIATION.name] / at[ch6.NMSD])
    return (
        f"Without inter-cluster learning the {100 * share:.0f} % of clients that have no neighbor "
        "of their cluster are alone with at most 35 samples for 60 parameters: they carry "
        f"{100 * error:.0f} % of the error at τ = 0. One model for all at least reaches them."
    )


CLAIMS = [
    Claim(
        "one-model-is-not-enough",
        "NFL, with one model for all, is less accurate than every NPFL",
        "section 6.3",
        ch6.gaps("a", *((NFL, other) for other in NAMES)),
        (0, INFINITE),
        "“not satisfactory”: above each of the others",
        note=carried,
    ),
    Claim(
        "inter-cluster-learning-helps",
        "NPFL with τ = 0.05 improves on τ = 0",
        "section 6.3",
        ch6.gaps("a", (ALONE, LEAST)),
        (0, INFINITE),
    ),
    Claim(
        "over-use-degrades",
        "the steady-state accuracy decreases from τ = 0.05 to 0.1, 0.2 and 0.4",
        "section 6.3",
        ch6.gaps("a", (MORE, LEAST), (MUCH, MORE), (MOST, MUCH)),
        (0, INFINITE),
    ),
    Claim(
        "one-model-is-not-enough-among-joined",
        "NFL is less accurate than every NPFL for clients with a neighbor of their cluster",
        "section 6.3",
        ch6.gaps("a", *((NFL, other) for other in NAMES), metrics=[IN_TOUCH]),
        (0, INFINITE),
        condition="the source does not say whether its network joins all clients of a cluster",
        note="Even where a cluster's clients are joined, some parts of it are small.",
    ),
    Claim(
        "one-model-is-not-enough-if-joined",
        "NFL, with one model for all, is less accurate than every NPFL",
        "section 6.3",
        ch6.gaps("joined", *((NFL, other) for other in NAMES)),
        (0, INFINITE),
        "“not satisfactory”: above each of the others",
        condition=ch6.CONDITION,
        changed=ch6.NEW,
    ),
    Claim(
        "inter-cluster-learning-helps-if-joined",
        "NPFL with τ = 0.05 improves on τ = 0",
        "section 6.3",
        ch6.gaps("joined", (ALONE, LEAST)),
        (0, INFINITE),
        condition=ch6.CONDITION,
        changed=ch6.NEW,
    ),
    Claim(
        "over-use-degrades-if-joined",
        "the steady-state accuracy decreases from τ = 0.05 to 0.1, 0.2 and 0.4",
        "section 6.3",
        ch6.gaps("joined", (MORE, LEAST), (MUCH, MORE), (MOST, MUCH)),
        (0, INFINITE),
        condition=ch6.CONDITION,
        changed=ch6.NEW,
    ),
]

#: The pairs that claims of the same names compare, for the median run.
PAIRS = {
    "one-model-is-not-enough": [(NFL, other) for other in NAMES],
    "inter-cluster-learning-helps": [(ALONE, LEAST)],
    "over-use-degrades": [(MORE, LEAST), (MUCH, MORE), (MOST, MUCH)],
}
MEDIANS = [
    ch6.in_the_median(claim, ch6.gaps(panel, *pairs, measure=ch6.median_gap))
    for claim in CLAIMS
    for name, pairs in PAIRS.items()
    for panel, end in (("a", ""), ("joined", "-if-joined"))
    if claim.name == name + end
]

FIGURE = Figure(
    name="gauthier-6.1",
    title="Networked personalized learning with a fixed inter-cluster parameter",
    source="Gauthier 2024, figure 6.1; Gauthier et al. 2023 (NPFed-RL), figure 1",
    caption="The metric (6.15) is called normalized but divides by a norm that is not squared; "
    "panel (a) has the squared norm, panel (b) the printed one, and claims are judged in both. "
    "About one client in ten has no neighbor of its cluster: without inter-cluster learning it is "
    "alone with fewer samples than parameters. In panels (d) and (e) nobody is. Dotted in (a) and "
    "(d): the minimizers that ADMM comes to, one for all and, at τ = 0, one for each part of a "
    "cluster that hangs together; those with few samples are still on their way. With τ > 0 no "
    "level is predicted.",
    study=study,
    plot=plot,
    claims=[*CLAIMS, *MEDIANS],
    settings=(*ch6.COMMON, ch6.FIXED),
    table=lambda studies: ch6.quantiles({n: studies[n] for n in ("a", "joined")}),
)
