"""Gauthier 2024, chapter 7: the clusters of PGFL and NPFL discovered, and followed as they change.

The source leaves it as future work and has no figure of it. Settings are taken from its
chapters 5 and 6, from the modules of their figures.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from scipy import stats

import fljax as fl
from experiments import measures, picture
from experiments.conventions import BETTER, LITTLE, Meaning
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.gauthier import chapter5 as ch5
from experiments.gauthier import chapter6 as ch6
from experiments.measures import estimate, last_rounds, samples
from fljax import plotting, statistics
from fljax._core.module import replace, static
from fljax.algorithms import (
    GFL,
    NPFL,
    PGFL,
    Algorithm,
    NetworkedADMM,
    NPFLByGradient,
    NPFLByLoss,
    NPFLByParameters,
    PGFLByGradient,
    PGFLByLoss,
)
from fljax.algorithms.peers.npfl_discovery import NEEDS, Choosing
from fljax.algorithms.round import Round
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems import Problem, factorize, prox
from fljax.problems.clustering import adjusted_rand

# --------------------------------------------------------------------------- settings

SPREADS = Setting(
    "gamma_q of the clusters' models, PGFL",
    (0.15, 0.3, 0.5, 1.0),
    "uniform on ±; 0.15 and 0.5 are the source's (section 5.4.1), between and beyond",
)
OFFSETS = Setting(
    "offsets delta_q, NPFL", (0.15, 0.5, 1.0), "uniform on ±; 0.5 is the source's (section 6.3)"
)
SPREAD = 0.5
OFFSET = ch6.OFFSETS.value[1]
ROUNDS = Setting("iterations, PGFL", 100, "all clients take part: by 60 nothing moves any more")
WARMUP = Setting(
    "iterations of one model, PGFL", 30, "GFL has settled by then; figure 5.1 (a) shows it"
)
PRIVATE_WARMUP = Setting(
    "the same, 3 of 15 clients and private", 100, "a client takes part every fifth iteration"
)
PEERS_WARMUP = Setting(
    "iterations in random clusters, NPFL", 10, "models of neighbors begin to be alike"
)
STEP = Setting(
    "step size of the gradient's way",
    0.5,
    "one over the mean curvature, which is 2 for features of unit variance",
)
TAU = Setting(
    "tau, NPFL known, by loss, by gradient",
    0.05,
    "the best fixed value of figure 6.1 (section 6.3)",
)
THRESHOLDS = Setting(
    "threshold of the parameters",
    (2.0, 0.1),
    "none, so that parameters alone tie clients; twice the initial value 0.05",
)
CHANGE = Setting("iteration of the change", (80, 150), "PGFL, NPFL: all have settled")
CHANGING = Setting("iterations with a change", (160, 300), "PGFL, NPFL: as many again, or more")
MOVERS = Setting("clients that change their cluster", 1 / 3, "to the next one; not given")
ENDING = Setting("iterations of the end", 10, "the last ones; their mean")
MOST = Setting("seeds", 24, "at most")
EVERY = Setting(
    "recorded", "every 2nd iteration, NPFL every 6th", "curves are smooth on that scale"
)

ending = last_rounds(ENDING.value)

KNOWN = "known"
ALIKE = "one cluster"
ALONE = "alone"
LOSS = "by loss"
GRADIENT = "by gradient"
SAC = "by parameters (SAC)"
DPG = "by parameters (DPG)"
SPLIT = "by parameters (DPG), classified"
TOLD = "known, told of the change"
UNTOLD = "known, not told"
PGFL_WAYS = (LOSS, GRADIENT)
WAYS = (LOSS, GRADIENT, SAC, DPG, SPLIT)

# --------------------------------------------------------------------------- methods


@fl.module
class TrueClusters(Choosing):
    """NPFL with the true clusters in every round."""

    needs = NEEDS

    def misfit(self, problem: Problem, model: Array, means: Array) -> Array:
        return 1 - jax.nn.one_hot(problem.tasks.cluster, self.clusters, dtype=model.dtype)


class Changed(NamedTuple):
    """The state of an algorithm whose clients' data change."""

    model: Array  # [K, D]
    inner: Any
    later: Any  # state that follows from the data after the change
    cluster: Array  # [K]  the clients' current clusters


#: Fields of states that follow from the data.
DATA_FIELDS = ("factor", "spectrum")


@fl.module
class Changing(Algorithm):
    """An algorithm some of whose clients get data of another cluster in one round.

    Args:
      inner: the algorithm.
      later: the data from then on, with the clusters of then.
      change: the round.
      told: whether known clusters change too.
    """

    inner: Any
    later: Any
    change: int = static()
    told: bool = static(default=True)

    needs = PGFL.needs

    @property
    def one_by_one(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.one_by_one

    @property
    def selection(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.selection

    def message_size_of(self, problem: Any) -> int:
        return self.inner.message_size_of(problem)

    def init(self, problem: Problem, network: Any) -> Changed:
        first = self.inner.init(problem, network)
        second = self.inner.init(self.later, network)
        later = {name: getattr(second, name) for name in DATA_FIELDS if hasattr(second, name)}
        return Changed(first.model, first, later, jnp.asarray(problem.tasks.cluster))

    def step(self, state: Changed, now: Round) -> Changed:
        changed = now.number >= self.change

        def since(before: Any, after: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(changed, b, a), before, after)

        before = now.problem
        problem = replace(
            before,
            targets=since(before.targets, self.later.targets),
            tasks=since(before.tasks, self.later.tasks),
        )
        cluster = problem.tasks.cluster
        if not self.told:
            problem = replace(problem, tasks=replace(problem.tasks, cluster=before.tasks.cluster))
        of_data = {name: since(getattr(state.inner, name), v) for name, v in state.later.items()}
        view = Round(now.number, problem, now.network, now.link)
        inner = self.inner.step(state.inner._replace(**of_data), view)
        return Changed(inner.model, inner, state.later, cluster)


@fl.module
class ChangingPeers(Changing):
    """The same on a graph."""

    needs = NEEDS


def moved(key: Array, problem: Problem) -> Problem:
    """The data after a change: some clients observe the next cluster's model, with the features and
    the noise that they had.
    """
    tasks = problem.tasks
    clients = problem.clients
    count = round(MOVERS.value * clients)
    moving = jax.random.permutation(key, clients) < count
    cluster = jnp.where(moving, (tasks.cluster + 1) % tasks.clusters, tasks.cluster)
    change = jnp.asarray(tasks.truth)[cluster] - jnp.asarray(tasks.truth)[tasks.cluster]

    def observed(part: Problem) -> Array:
        return part.targets + part.predictions(change)

    validation = tasks.validation
    if validation is not None:
        validation = replace(validation, targets=observed(validation))
    after = replace(tasks, cluster=cluster.astype(jnp.int32), validation=validation)
    return replace(problem, targets=observed(problem), tasks=after)


def served(scheduled: bool = False) -> dict[str, Algorithm]:
    """The methods on servers, with the two parameters of the source."""
    settings: dict[str, Any] = {
        "clients_per_server": ch5.SCHEDULED.value if scheduled else None,
        "clusters": ch5.CLUSTERS.value,
        "warmup": (PRIVATE_WARMUP if scheduled else WARMUP).value,
    }
    methods: dict[str, Algorithm] = {KNOWN: ch5.pgfl(0.0, scheduled)}
    penalty = ch5.PENALTY.value
    if not scheduled:
        methods[LOSS] = PGFLByLoss(penalty, 0.0, **settings)
    methods[GRADIENT] = PGFLByGradient(penalty, 0.0, step_size=STEP.value, **settings)
    return methods | {ALIKE: ch5.pgfl(0.0, scheduled, GFL)}


def mixed() -> dict[str, Algorithm]:
    """The methods that know or find clusters, with inter-cluster learning."""
    inter_cluster = ch5.pgfl(ch5.MIXED.value).inter_cluster
    methods = {name: served()[name] for name in (KNOWN, *PGFL_WAYS)}
    return {name: replace(method, inter_cluster=inter_cluster) for name, method in methods.items()}


def among_peers() -> dict[str, Algorithm]:
    """The methods on a graph."""
    penalty = ch6.PENALTY.value
    tau = TAU.value
    settings: dict[str, Any] = {"clusters": ch6.CLUSTERS.value, "warmup": PEERS_WARMUP.value}
    dpg = ch6.gradient().policy
    free, split = THRESHOLDS.value
    return {
        KNOWN: NPFL(penalty, tau),
        LOSS: NPFLByLoss(penalty, tau, **settings),
        GRADIENT: NPFLByGradient(penalty, tau, step_size=STEP.value, **settings),
        SAC: NPFLByParameters(penalty, ch6.probe().policy, ch6.START.value, threshold=free),
        DPG: NPFLByParameters(penalty, dpg, ch6.START.value, threshold=free),
        SPLIT: NPFLByParameters(penalty, dpg, ch6.START.value, threshold=split),
        ALIKE: NetworkedADMM(penalty),
    }


# --------------------------------------------------------------------------- metrics


def _now(now: Snapshot) -> tuple[Any, Array]:
    """The algorithm's own state, and the clients' current clusters."""
    if isinstance(now.state, Changed):
        return now.state.inner, now.state.cluster
    return now.state, jnp.asarray(now.problem.tasks.cluster)


def _deviation_of(now: Snapshot, models: Array) -> Array:
    truth = jnp.asarray(now.problem.tasks.truth)[_now(now)[1]]
    return jnp.mean(jnp.sum((models - truth) ** 2, axis=1) / jnp.sum(truth**2, axis=1))


def _deviation(now: Snapshot) -> Array:
    return _deviation_of(now, now.model)


def _own(now: Snapshot) -> Array:
    """The deviation of each client's minimizer of its own objective."""
    zero = jnp.zeros_like(now.model)
    factor = factorize(now.problem, zero[:, 0])
    return _deviation_of(now, prox(now.problem, factor, zero, zero))


def _rand(now: Snapshot) -> Array:
    """The Rand index; zero for methods without clustering."""
    state, cluster = _now(now)
    return adjusted_rand(getattr(state, "cluster", jnp.zeros_like(cluster)), cluster)


def _with_truth(now: Snapshot, data: Problem) -> Array:
    """``[K]``: the cluster of least loss under the true models."""
    truth = jnp.asarray(now.problem.tasks.truth)
    models = jnp.broadcast_to(truth[None], (len(now.model), *truth.shape))
    return jnp.argmin(jax.vmap(data.mean_loss, in_axes=1, out_axes=1)(models), axis=1)


def _rand_with_truth(now: Snapshot) -> Array:
    return adjusted_rand(_with_truth(now, now.problem), now.problem.tasks.cluster)


def kappa(estimate: Array, truth: Array, among: Array) -> Array:
    """How far two divisions agree on which pairs are of one cluster, among some pairs: Cohen's
    kappa, which over all pairs is the adjusted Rand index (Warrens 2008).
    """

    def share(pairs: Array) -> Array:
        return jnp.sum(pairs & among) / jnp.sum(among)

    ours = share(estimate)
    theirs = share(truth)
    by_chance = ours * theirs + (1 - ours) * (1 - theirs)
    return (share(estimate == truth) - by_chance) / (1 - by_chance)


def _links(now: Snapshot, cluster: Array) -> tuple[Array, Array]:
    """Which slots are links, and which of them within clusters."""
    neighbors, weights = now.network.neighbor_table()
    return weights > 0, cluster[:, None] == cluster[neighbors]


def _rand_of_links(now: Snapshot) -> Array:
    state, cluster = _now(now)
    among, truth = _links(now, cluster)
    if hasattr(state, "context"):
        return kappa(state.context.like, truth, among)
    if not hasattr(state, "known"):
        return jnp.zeros((), now.model.dtype)
    _, estimated = _links(now, jnp.rint(state.sent[:, -1]).astype(jnp.int32))
    return kappa(estimated, truth, among)


def _links_with_truth(now: Snapshot) -> Array:
    among, truth = _links(now, jnp.asarray(now.problem.tasks.cluster))
    _, least = _links(now, _with_truth(now, now.problem.tasks.validation))
    return kappa(least, truth, among)


def _told_apart(now: Snapshot) -> Array:
    """The probability that of two links, drawn from those within clusters and from those between,
    the first has the larger parameter; a half where there are none.
    """
    state, cluster = _now(now)
    if not hasattr(getattr(state, "context", None), "like"):
        return jnp.full((), 0.5, now.model.dtype)
    among, truth = _links(now, cluster)
    value, within, between = (
        part.ravel() for part in (state.inter_cluster, among & truth, among & ~truth)
    )
    larger = (1 + jnp.sign(value[:, None] - value[None])) / 2
    pairs = (within[:, None] & between[None]).astype(larger.dtype)
    return jnp.sum(pairs * larger) / jnp.sum(pairs)


NMSD = "deviation"
OWN = "own"
RAND = "rand"
CEILING = "with_truth"
APART = "told_apart"
DEVIATION = Metric(NMSD, _deviation, "NMSD", decibel=True, needs={"tasks.truth"})
SINGLE = Metric(OWN, _own, "NMSD alone", decibel=True, needs={"tasks.truth"})
FOUND = Metric(RAND, _rand, "adjusted Rand index", decibel=False)
LINKS = Metric(RAND, _rand_of_links, "adjusted Rand index of links", decibel=False)
BOUND, LINK_BOUND = (
    Metric(CEILING, measure, "with the models behind the data", decibel=False)
    for measure in (_rand_with_truth, _links_with_truth)
)
LARGER = Metric(APART, _told_apart, "probability of the larger τ within", decibel=False)
SERVED = (DEVIATION, SINGLE, FOUND, BOUND)
PEERS = (DEVIATION, SINGLE, LINKS, LINK_BOUND, LARGER)

# --------------------------------------------------------------------------- study


def on_servers(
    key: Array, algorithm: Algorithm, spread: Array | float, private: bool
) -> fl.Simulation:
    settings = {"private": private, "spread": spread, "metrics": SERVED}
    return ch5.scenario(key, algorithm, **settings)


def on_graph(key: Array, algorithm: Algorithm, offset: Array) -> fl.Simulation:
    world = ch6.World(False, offset=offset)
    return replace(ch6.scenario(key, algorithm, world), metrics=PEERS)


@fl.module
class FrozenClusters:
    """An algorithm whose known clusters stay as they were."""

    inner: Any


def with_change(
    build: Callable[..., fl.Simulation], kind: type[Changing], change: int
) -> Callable[[Array, Any], fl.Simulation]:
    """The same scenario with clients that move in this round."""

    def changing(key: Array, algorithm: Any) -> fl.Simulation:
        informed = not isinstance(algorithm, FrozenClusters)
        inner = algorithm if informed else algorithm.inner
        simulation = build(key, inner)
        later = moved(jax.random.fold_in(key, 1), simulation.fixed_problem)
        return replace(simulation, algorithm=kind(inner, later, change, informed))

    changing.__qualname__ = f"with_change({build.__qualname__}, {change})"
    return changing


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, MOST.value)
    spreads = effort.thin(SPREADS.value, 2)
    offsets = effort.thin(OFFSETS.value, 2)

    def sweep(name: str, build: Any, rounds: int, every: int, **grid: Any) -> xr.Dataset:
        settings = {"rounds": rounds, "record_every": every, "seeds": seeds}
        return effort.sweep(name, build, grid=grid, **settings)

    def public(key: Array, algorithm: Algorithm, spread: Array) -> fl.Simulation:
        return on_servers(key, algorithm, spread, False)

    def private(key: Array, algorithm: Algorithm) -> fl.Simulation:
        return on_servers(key, algorithm, SPREAD, True)

    def of_servers(key: Array, algorithm: Algorithm) -> fl.Simulation:
        return on_servers(key, algorithm, SPREAD, False)

    def of_peers(key: Array, algorithm: Algorithm) -> fl.Simulation:
        return on_graph(key, algorithm, OFFSET)

    first, second = CHANGE.value
    third, fourth = CHANGING.value
    methods = {TOLD: served()[KNOWN], UNTOLD: FrozenClusters(served()[KNOWN])}
    methods |= {name: served()[name] for name in PGFL_WAYS}
    settings: dict[str, Any] = {"clusters": ch6.CLUSTERS.value, "warmup": 1}
    informed = TrueClusters(ch6.PENALTY.value, TAU.value, **settings)
    among = {TOLD: informed, UNTOLD: FrozenClusters(informed)}
    among |= {name: among_peers()[name] for name in (LOSS, GRADIENT, DPG, SPLIT)}
    parts = {
        "servers": sweep("servers", public, ROUNDS.value, 2, algorithm=served(), spread=spreads),
        "mixed": sweep("mixed", public, ROUNDS.value, 2, algorithm=mixed(), spread=spreads),
        "private": sweep("private", private, ch5.ROUNDS.value, 6, algorithm=served(True)),
        "peers": sweep(
            "peers", on_graph, ch6.ROUNDS.value, 6, algorithm=among_peers(), offset=offsets
        ),
        "servers changing": sweep(
            "servers-changing",
            with_change(of_servers, Changing, first),
            third,
            2,
            algorithm=methods,
        ),
        "peers changing": sweep(
            "peers-changing",
            with_change(of_peers, ChangingPeers, second),
            fourth,
            6,
            algorithm=among,
        ),
    }
    for name, data in parts.items():
        for axis, of in (("spread", "gamma uniform on ±"), ("offset", "delta uniform on ±")):
            if axis in data.dims:
                data[axis].attrs["long_name"] = of
        parts[name] = data[[v for v in (NMSD, OWN, RAND, CEILING, APART, "diverged") if v in data]]
    return parts


# --------------------------------------------------------------------------- picture

#: One look of a method in all panels.
LOOKS: dict[str, Any] = dict(
    zip((KNOWN, LOSS, GRADIENT, ALIKE, SAC, DPG, SPLIT), plotting.LOOKS, strict=True)
)
LOOKS |= {TOLD: LOOKS[KNOWN], UNTOLD: {"color": "#888888", "linestyle": ":", "marker": "D"}}
LABELS = {RAND: "adjusted Rand index", NMSD: "NMSD [dB]", APART: "P(τ within > τ between)"}


def drawn(ax: Axes, data: xr.Dataset, axis: str, metric: str, names: Sequence[str]) -> None:
    """The mean of each method along an axis and its 95 % band, in its own look."""
    at = data[axis].values
    for name in names:
        values = data.sel(algorithm=name)[metric].transpose("seed", axis).values
        look = LOOKS[name] | ({"markersize": 3} if axis != "round" else ch5.BARE)
        if metric == NMSD:
            picture.difference(ax, at, values, np.ones_like(values), name, **look)
            continue
        (line,) = ax.plot(at, values.mean(axis=0), label=name, **look)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0
        reach = stats.t.ppf((1 + statistics.LEVEL) / 2, max(len(values) - 1, 1)) * error
        band = values.mean(axis=0) - reach, values.mean(axis=0) + reach
        ax.fill_between(at, *band, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set_xlabel("iteration" if axis == "round" else str(data[axis].attrs["long_name"]))
    ax.set_ylabel(LABELS[metric])


def level(ax: Axes, data: xr.Dataset, axis: str, metric: str) -> None:
    """A reference level without clustering: learning alone, or with the true models."""
    at = data[axis].values
    reference, text = (OWN, "each client alone") if metric == NMSD else (CEILING, WITH_TRUTH)
    curve = data[reference].isel(algorithm=0).mean("seed").transpose(axis).values
    values = statistics.decibels(curve) if metric == NMSD else curve
    picture.predicted_curve(ax, at, values, text)


WITH_TRUTH = "least loss among the models behind the data"


PGFL_ALL = (KNOWN, *PGFL_WAYS, ALIKE)
PEERS_ALL = (KNOWN, *WAYS, ALIKE)
CLASSIFYING = (LOSS, GRADIENT, SPLIT)
MOVING = (TOLD, UNTOLD, *PGFL_WAYS)
#: The title, study, axis, metric and methods of each panel.
PANELS = (
    ("PGFL: clusters", "servers", "round", RAND, PGFL_WAYS),
    ("PGFL: error", "servers", "round", NMSD, PGFL_ALL),
    ("3 of 15, private: clusters", "private", "round", RAND, (GRADIENT,)),
    ("PGFL: clusters at the end", "servers", "spread", RAND, PGFL_WAYS),
    ("PGFL: error at the end", "servers", "spread", NMSD, PGFL_ALL),
    ("3 of 15, private: error", "private", "round", NMSD, (KNOWN, GRADIENT, ALIKE)),
    ("NPFL: links in clusters", "peers", "round", RAND, CLASSIFYING),
    ("NPFL: error", "peers", "round", NMSD, PEERS_ALL),
    ("NPFL: values of parameters", "peers", "round", APART, (SAC, DPG, SPLIT)),
    ("NPFL: links at the end", "peers", "offset", RAND, CLASSIFYING),
    ("NPFL: error at the end", "peers", "offset", NMSD, PEERS_ALL),
    ("PGFL, a third moves: clusters", "servers changing", "round", RAND, PGFL_WAYS),
    ("PGFL, a third moves: error", "servers changing", "round", NMSD, MOVING),
    ("NPFL, a third moves: links", "peers changing", "round", RAND, CLASSIFYING),
    ("NPFL, a third moves: error", "peers changing", "round", NMSD, (*MOVING, DPG, SPLIT)),
)


def plot(studies: Studies) -> Picture:
    drawing, axes = picture.panels([title for title, *_ in PANELS], height=1.9)
    for ax, (_, name, axis, metric, methods) in zip(axes, PANELS, strict=True):
        data = studies[name]
        if axis == "round":
            data = data.sel({at: value for at, value in THESE.items() if at in data.dims})
        else:
            data = ending(data).mean("round", keep_attrs=True)
        drawn(ax, data, axis, metric, methods)
        if metric != APART and "changing" not in name:
            level(ax, data, axis, metric)
    picture.share_legend(axes)
    seeds = studies["servers"].sizes["seed"]
    return picture.finish(drawing, f"mean and 95 % band of {seeds} seeds")


# --------------------------------------------------------------------------- claims

#: Where the source's own similarity of clusters is not the axis.
THESE = {"spread": SPREAD, "offset": OFFSET}

Case = tuple[str, str, dict[str, float]]  # a study, a method, where on the axis of similarity


def read(studies: Studies, case: Case, metric: str) -> np.ndarray:
    """``[S]``: the mean of the last iterations of each seed."""
    name, method, where = case
    data = ending(studies[name])
    return samples(data, {"algorithm": method} | where, metric).mean(axis=1)


def _named(case: Case) -> str:
    name, method, where = case
    return ", ".join((f"{method} ({name})", *(f"{axis} {at:g}" for axis, at in where.items())))


def above(*pairs: tuple[Case, Case]) -> Measure:
    """How far the error of the first of each pair is above the second's at the end, dB, in the
    median run: a cluster whose true model is near zero has errors that would decide a mean.
    """
    return lambda studies: {
        f"{_named(over)} above {_named(under)}": measures.median_gap(
            read(studies, over, NMSD), read(studies, under, NMSD)
        )
        for over, under in pairs
    }


def rand(*cases: Case, metric: str = RAND, share: float = 1) -> Measure:
    """A mean over seeds at the end, in units of a ``share``."""
    return lambda studies: {
        _named(case): estimate(lambda a: a / share, read(studies, case, metric), unit="")
        for case in cases
    }


def more(*pairs: tuple[Case, Case]) -> Measure:
    """By how much the Rand index of the first of each pair is larger at the end."""
    return lambda studies: {
        f"{_named(first)} minus {_named(second)}": estimate(
            lambda a, b: a - b,
            read(studies, first, RAND),
            read(studies, second, RAND),
            unit="",
        )
        for first, second in pairs
    }


def part_of_ceiling(*cases: Case) -> Measure:
    """The Rand index over that of least loss among the models behind the data."""
    return lambda studies: {
        _named(case): estimate(
            lambda a, b: a / b, read(studies, case, RAND), read(studies, case, CEILING), unit=""
        )
        for case in cases
    }


def regained(*cases: tuple[str, str, int]) -> Measure:
    """The Rand index at the end over that before the change."""

    def ratio_after(studies: Studies, name: str, method: str, change: int) -> Estimate:
        data = studies[name]
        before = samples(data.sel(round=slice(change - ENDING.value, change - 1)), method, RAND)
        after = read(studies, (name, method, {}), RAND)
        return estimate(lambda a, b: a / b, after, before.mean(axis=1), unit="")

    return lambda studies: {
        f"{method} ({name})": ratio_after(studies, name, method, change)
        for name, method, change in cases
    }


def at(name: str, method: str, where: float) -> Case:
    """A method of a study at a similarity of clusters."""
    return name, method, {{"servers": "spread", "mixed": "spread", "peers": "offset"}[name]: where}


def at_source(method: str) -> Case:
    """NPFL at the source's similarity."""
    return at("peers", method, OFFSET)


def recovery(studies: Studies) -> str:
    """A note: the time until the clusters are recovered after the change."""
    sentences = []
    for name, change, methods in (
        ("servers changing", CHANGE.value[0], PGFL_WAYS),
        ("peers changing", CHANGE.value[1], CLASSIFYING),
    ):
        data = studies[name]
        rounds = data["round"].values
        for method in methods:
            mean = data[RAND].sel(algorithm=method).mean("seed").values
            before = mean[(rounds < change) & (rounds >= change - ENDING.value)].mean()
            later = rounds[rounds >= change]
            curve = mean[rounds >= change]
            good = np.flatnonzero(curve >= 0.9 * before)
            when = f"after {later[good[0]] - change} iterations" if len(good) else "not at all"
            sentences.append(
                f"{method} in {name.split()[0]}: from {before:.2f} to {curve[0]:.2f}, "
                f"nine tenths of it again {when}"
            )
    return "; ".join(sentences) + "."


OURS: dict[str, Any] = {"source": "chapter 7 (its open question)", "ours": True}
CHANCE = Meaning((0, INFINITE), "better than by chance, which is zero")

FIGURE = Figure(
    name="gauthier-7.clusters",
    title="Clusters of PGFL and NPFL discovered, and followed as clients change them",
    source="Gauthier 2024, chapter 7, which leaves it open and has no figure of it",
    caption="The source assumes that it is known who is of which cluster. Here nobody is told. "
    "PGFL: after a start with one model for all, servers divide clients by the gradients that they "
    "know from their duals; then each client takes the cluster model of least loss on its data, or "
    "its server the one nearest to a gradient step, at no cost in privacy. NPFL: clients start in "
    "random clusters and choose among the mean models of their neighbors, by loss or gradient on "
    "validation data; or they learn a parameter of each neighbor, as the source suggests, and what "
    "is large enough is taken for alike. Over links the Rand index is Cohen's kappa of "
    "“both ends are of one cluster”, the same index over the pairs that are neighbors. "
    "In the last panels a third of the clients gets data of the next cluster at once.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "parameters-tell-clusters",
            "neighbors can be classified by the value of the inter-cluster learning parameter, "
            "without cluster information on them",
            "chapter 7",
            rand(at_source(SAC), at_source(DPG), metric=APART, share=0.01),
            (80, INFINITE),
            "“classify ... according to the value”: of a neighbor of the client's own cluster and "
            "one of another the first has the larger value in four of five cases, per cent",
            changed="More often than not was enough, which is hardly better than chance.",
        ),
        Claim(
            "parameters-classify",
            "a threshold of twice the initial value classifies links better than chance",
            measure=rand(at_source(SPLIT)),
            accept=CHANCE.accept,
            convention=CHANCE.convention,
            **OURS,
        ),
        Claim(
            "parameters-need-no-clusters",
            "with a parameter of each neighbor and no clusters NPFL-RL is as accurate as NPFL that "
            "knows them",
            measure=above((at_source(SAC), at_source(KNOWN)), (at_source(DPG), at_source(KNOWN))),
            accept=LITTLE.db.accept,
            convention=LITTLE.db.convention,
            **OURS,
        ),
        Claim(
            "choice-classifies-better",
            "clusters chosen by loss or gradient agree better with the true ones than those read "
            "off the parameters",
            measure=more(
                (at_source(LOSS), at_source(SPLIT)), (at_source(GRADIENT), at_source(SPLIT))
            ),
            accept=BETTER.db.accept,
            convention="larger",
            **OURS,
        ),
        Claim(
            "peers-reach-the-known",
            "NPFL by gradient is as accurate as NPFL that knows the clusters",
            measure=above((at_source(GRADIENT), at_source(KNOWN))),
            accept=LITTLE.db.accept,
            convention=LITTLE.db.convention,
            **OURS,
        ),
        Claim(
            "peers-beat-one-cluster",
            "every way of discovery is more accurate in NPFL than one cluster of all",
            measure=above(*((at_source(ALIKE), at_source(way)) for way in WAYS)),
            accept=BETTER.db.accept,
            convention=BETTER.db.convention,
            **OURS,
        ),
        *(
            Claim(
                f"servers-beat-one-cluster-{spread:g}".replace(".", ""),
                f"PGFL that discovers clusters whose models differ by ±{spread:g} is more accurate "
                "than one cluster of all",
                measure=above(
                    *((at("servers", ALIKE, spread), at("servers", w, spread)) for w in PGFL_WAYS)
                ),
                accept=BETTER.db.accept,
                convention=BETTER.db.convention,
                **OURS,
            )
            for spread in (SPREADS.value[0], SPREAD)
        ),
        Claim(
            "servers-reach-the-known",
            "PGFL that discovers its clusters is as accurate as with known ones",
            measure=above(
                *((at("servers", w, SPREAD), at("servers", KNOWN, SPREAD)) for w in PGFL_WAYS)
            ),
            accept=LITTLE.db.accept,
            convention=LITTLE.db.convention,
            **OURS,
        ),
        Claim(
            "servers-near-the-ceiling",
            "PGFL finds clusters half as well at least as losses of the models behind the data do",
            measure=part_of_ceiling(*(at("servers", w, SPREAD) for w in PGFL_WAYS)),
            accept=(0.5, INFINITE),
            convention="half of that adjusted Rand index or more",
            **OURS,
        ),
        Claim(
            "unlike-clusters-are-found",
            "the less alike the clusters' models are, the better they are found",
            measure=more(
                *(
                    (at("servers", w, SPREADS.value[-1]), at("servers", w, SPREADS.value[0]))
                    for w in PGFL_WAYS
                ),
                *(
                    (at("peers", w, OFFSETS.value[-1]), at("peers", w, OFFSETS.value[0]))
                    for w in (LOSS, GRADIENT)
                ),
            ),
            accept=BETTER.db.accept,
            convention="larger, from the most to the least alike",
            **OURS,
        ),
        Claim(
            "inter-cluster-learning-helps-discovery",
            "with τ = 0.4 PGFL finds alike clusters better than with τ = 0",
            measure=more(
                *(
                    (at("mixed", w, SPREADS.value[0]), at("servers", w, SPREADS.value[0]))
                    for w in PGFL_WAYS
                )
            ),
            accept=BETTER.db.accept,
            convention="larger",
            **OURS,
        ),
        Claim(
            "private-discovery",
            "under the source's privacy and scheduling PGFL by gradient finds clusters better than "
            "chance",
            measure=rand(("private", GRADIENT, {})),
            accept=CHANCE.accept,
            convention=CHANCE.convention,
            **OURS,
        ),
        Claim(
            "private-beats-one-cluster",
            "under privacy and scheduling PGFL by gradient is more accurate than one cluster",
            measure=above((("private", ALIKE, {}), ("private", GRADIENT, {}))),
            accept=BETTER.db.accept,
            convention=BETTER.db.convention,
            **OURS,
        ),
        Claim(
            "changes-are-followed",
            "after a third of the clients has changed clusters, as many are found again as before",
            measure=regained(
                *(("servers changing", way, CHANGE.value[0]) for way in PGFL_WAYS),
                *(("peers changing", way, CHANGE.value[1]) for way in (LOSS, GRADIENT, SPLIT)),
            ),
            accept=(0.9, INFINITE),
            convention="nine tenths of the adjusted Rand index before the change, or more",
            note=recovery,
            **OURS,
        ),
        Claim(
            "following-beats-knowing-the-past",
            "after the change every way of discovery is more accurate than known clusters that are "
            "not told of it",
            measure=above(
                *(
                    (("servers changing", UNTOLD, {}), ("servers changing", way, {}))
                    for way in PGFL_WAYS
                ),
                *(
                    (("peers changing", UNTOLD, {}), ("peers changing", way, {}))
                    for way in (LOSS, GRADIENT, DPG, SPLIT)
                ),
            ),
            accept=BETTER.db.accept,
            convention=BETTER.db.convention,
            **OURS,
        ),
    ],
    settings=(
        *(ch5.SERVERS, ch5.MEAN_DEGREE, ch5.PER_SERVER, ch5.CLUSTERS, ch5.SAMPLES, ch5.DIM),
        *(ch5.PENALTY, ch5.STRENGTH, ch5.NOISE, ch5.MIXED, ch5.SCHEDULED, ch5.INITIAL, ch5.DECAY),
        *(ch5.BOUND, SPREADS, ROUNDS, WARMUP, PRIVATE_WARMUP, STEP),
        *(s._replace(name=f"NPFL: {s.name}") for s in (ch6.CLIENTS, ch6.MEAN_DEGREE, ch6.SIZES)),
        *(ch6.NOISE, ch6.DPG_RATES, ch6.SAC_RATES, ch6.SAC_WIDTH, ch6.START),
        *(OFFSETS, PEERS_WARMUP, TAU, THRESHOLDS, CHANGE, CHANGING, MOVERS, ENDING, MOST, EVERY),
    ),
)
