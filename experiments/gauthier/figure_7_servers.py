"""PAO-Fed with several servers, the future work of Gauthier et al. 2023 (PAO-Fed), section VI."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import NullFormatter

import fljax as fl
from experiments import picture
from experiments.conventions import LITTLE, SAME, SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.gauthier import chapter4 as ch4
from experiments.measures import estimate, last, samples
from fljax import plotting, statistics
from fljax.algorithms import PAOFed, PAOFedGraph
from fljax.graphs import Graph, complete, from_adjacency, random_connected, ring
from fljax.graphs.federation import Federation
from fljax.link import Circular
from fljax.metrics.definitions import Snapshot
from fljax.plotting.house_style import look_of

# --------------------------------------------------------------------------- settings

SERVERS = Setting(
    "servers P",
    (1, 4, 16, 64),
    "of 256, 64, 16 and 4 clients; 15 take part in an iteration, so that of 64 servers most hear "
    "nothing in it",
)
MANY = Setting("servers in (a), (c), (d), (e)", 16, "one participant of each in an iteration")
ASSIGNED = Setting(
    "clients of a server",
    "client k at server k mod P",
    "every server has clients of all groups of data and of availability",
)
GRAPHS = Setting(
    "graphs of servers",
    ("ring", "random", "complete", "no links"),
    "the fewest links, the most, and between them a random connected graph of each seed; without "
    "links each server learns from its own clients alone",
)
DEGREE = Setting(
    "links of a server in the random graph", 3, "on average, as in the thesis (chapter 3)"
)
WEIGHTS = Setting("weights of neighbors", "Metropolis", "keep the mean of the servers' models")
BETWEEN = Setting(
    "parameters that servers share",
    (1, 4, 16, 64, 200),
    "of 200; 4 as between clients and servers unless stated",
)
LARGE = Setting("a larger portion of clients", 32, "the largest of figure 4.2(b)")
SEEDS = Setting("seeds", 10, "at most: gaps are of tenths of a dB to several dB")

RING, RANDOM, COMPLETE, SILENT = GRAPHS.value
ONE = "1 server"

# --------------------------------------------------------------------------- scenarios


@fl.module
class Several:
    """PAO-Fed with several servers on one of the graphs."""

    algorithm: PAOFedGraph
    servers: int = fl.static()
    graph: Float[Array, ""] | float  # its index: a traced number, so that graphs share a program


def pao(servers: int, graph: str, between: int = 0, size: int = 0) -> Several:
    """PAO-Fed-U2, with the portions that servers and clients share; as the source's by default."""
    coordinated, send_next, discount = PAOFed.VARIANTS["U2"]
    size = size or ch4.PORTION.value
    algorithm = PAOFedGraph(
        ch4.STEP.value,
        Circular(size, coordinated),
        Circular(between or ch4.PORTION.value),
        send_next,
        discount,
    )
    return Several(algorithm, servers, float(GRAPHS.value.index(graph)))


def graph_of(key: Array, servers: int, number: Array | float) -> Graph:
    """The graph of this number."""
    drawn = random_connected(key, servers, min(DEGREE.value, servers - 1), form="dense").adjacency
    links = [ring(servers, form="dense").adjacency, drawn]
    links += [complete(servers, form="dense").adjacency, jnp.zeros((servers, servers))]
    which = jnp.asarray(number).astype(jnp.int32)
    chosen = jnp.stack([jnp.asarray(a) for a in links])[which]
    return from_adjacency(chosen, form="dense", allow_disconnected=True)


def of_servers(now: Snapshot) -> Array:
    """The mean of the errors of the servers' models; each server has as many clients."""
    return fl.metrics.test_error.measure(now._replace(model=now.state.server))


SERVERS_ERROR = dataclasses.replace(fl.metrics.test_error, measure=of_servers)


def scenario(key: Array, algorithm: Several) -> fl.Simulation:
    servers = algorithm.servers
    graph = None
    if servers > 1:
        graph = graph_of(jax.random.fold_in(key, 1), servers, algorithm.graph)
    return fl.Simulation(
        problem=ch4.stream(key),
        algorithm=algorithm.algorithm,
        network=Federation(np.arange(ch4.CLIENTS.value) % servers, graph),
        participation=ch4.DEFAULT.participation(),
        delays=ch4.DEFAULT.delays(),
        metrics=[SERVERS_ERROR],
    )


def named(servers: int, graph: str = "", between: int = 0, size: int = 0) -> str:
    """The name of a run in the results."""
    if servers == 1:
        return ONE if not size else f"{ONE}, m = {size}"
    rest = f", {between} between" * bool(between) + f", m = {size}" * bool(size)
    return f"{servers} servers, {graph}{rest}"


def runs(quick: bool) -> dict[str, Several]:
    """All runs, without repetition."""
    counts = [p for p in SERVERS.value if p > 1]
    portions = [*BETWEEN.value]
    many = MANY.value
    large = LARGE.value
    if quick:
        counts = [many]
        portions = [1, ch4.PORTION.value, ch4.DIM.value]
    rows: list[tuple[Any, ...]] = [(1, RING), (1, RING, 0, large)]
    rows += [(p, graph) for p in counts for graph in GRAPHS.value]
    rows += [
        (many, graph, between)
        for between in portions
        if between != ch4.PORTION.value
        for graph in (RING, RANDOM, COMPLETE)
    ]
    rows += [(many, RING, 0, large), (many, RING, large, large), (many, SILENT, 0, large)]
    return {named(*row): pao(*row) for row in rows}


def study(effort: Effort) -> Studies:
    few = dataclasses.replace(effort, seeds=min(effort.seeds, SEEDS.value))
    results = few.sweep(
        "all",
        scenario,
        rounds=ch4.ROUNDS.value,
        seeds=few.seeds,
        grid={"algorithm": runs(effort.quick)},
        record_every=ch4.RECORD_EVERY,
    )
    return {"all": results}


# --------------------------------------------------------------------------- measures


def counts_of(data: xr.Dataset) -> list[int]:
    """The numbers of servers, beyond one, in a study."""
    labels = {str(name) for name in data["algorithm"].values}
    return [p for p in SERVERS.value if p > 1 and named(p, RING) in labels]


def load(data: xr.Dataset, which: str) -> np.ndarray:
    """``[S]``: bits that one server sends and receives in an iteration. Uplink and downlink of
    clients are equal, and so are the traffic to and from other servers.
    """
    servers = 1 if which.startswith(ONE) else int(which.split()[0])
    rounds = int(data["round"].values[-1])
    return 2 * samples(last(data), which, "bits_down") / (servers * rounds)


def between_servers(data: xr.Dataset, which: str) -> np.ndarray:
    """``[S]``: bits that all servers send to each other in an iteration."""
    down, all_ways = (samples(last(data), which, direction) for direction in ("bits_down", "bits"))
    return (2 * down - all_ways) / int(data["round"].values[-1])


def gaps(*pairs: tuple[str, str]) -> Measure:
    """For every (over, under) how far the first is above the second in the steady state."""
    return ch4.gaps("all", *pairs)


def gained_by_talking(studies: Studies) -> dict[str, Estimate]:
    """How far servers without links are above those on a ring, and how that grows with them."""
    tail = ch4.late(studies["all"])
    counts = counts_of(tail)
    rows = {
        p: [samples(tail, named(p, graph), ch4.METRIC) for graph in (SILENT, RING)] for p in counts
    }
    first = rows[counts[0]]
    result = {f"{counts[0]} servers": estimate(lambda a, b: statistics.decibels(a / b), *first)}
    for few, many in itertools.pairwise(counts):
        result[f"{many} servers beyond {few}"] = estimate(
            lambda a, b, c, d: statistics.decibels(a / b) - statistics.decibels(c / d),
            *rows[many],
            *rows[few],
        )
    return result


def load_saved(*graphs: str) -> Measure:
    """By how much less a server sends and hears than the only one."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["all"]
        alone = load(studies["all"], ONE)
        return {
            name: estimate(lambda a, b: 100 * (1 - a / b), load(data, name), alone, unit="%")
            for name in (named(MANY.value, graph) for graph in graphs)
        }

    return measure


def few_clients(studies: Studies) -> str:
    """A note: the number of servers from which on the gain is significant."""
    data = studies["all"]
    parts = (
        f"{p} servers {ch4.gap(data, named(p, SILENT), ONE).value:.2f} dB" for p in counts_of(data)
    )
    return (
        f"It costs {', '.join(parts)}: all learn one function, and clients whose inputs are as "
        "different as all others' teach it, as long as there are enough of them."
    )


def mixing_saved(studies: Studies) -> str:
    """A note: the saving of partial sharing between servers."""
    data = studies["all"]
    full = named(MANY.value, RING, ch4.DIM.value)
    parts = [
        f"{between_servers(data, name).mean() / 1000:.3g} kbit"
        for name in (named(MANY.value, RING), full)
    ]
    return (
        f"Servers on the ring send each other {parts[0]} an iteration, and {parts[1]} with whole "
        "models."
    )


# --------------------------------------------------------------------------- the picture

#: Looks by graph in all panels; one server has its own.
LOOKS: Mapping[str, dict[str, Any]] = {
    graph: look_of(place) for place, graph in enumerate((*GRAPHS.value, ONE))
}


def cost(data: xr.Dataset, names: Sequence[str]) -> np.ndarray:
    """``[3, names]``: how far they are above one server in the steady state, dB, and their bands,
    paired by seed.
    """
    rows = [ch4.gap(data, name, ONE) for name in names]
    return np.array([[e.value, e.low, e.high] for e in rows]).T


def line(ax: Any, at: Sequence[float], band: np.ndarray, label: str, look: dict[str, Any]) -> None:
    ax.plot(at, band[0], label=label, **look)
    ax.fill_between(at, band[1], band[2], color=look["color"], alpha=0.2, linewidth=0)


def plot(studies: Studies) -> Picture:
    data = studies["all"]
    titles = (
        f"{MANY.value} servers, learning curves",
        "cost of several servers",
        "cost and portion",
        "the same, against its cost",
        "error against all communication",
        "cost and load of a server",
    )
    drawing, axes = picture.panels(titles, height=2.2)
    a, b, c, d, e, f = axes
    labels = {str(name) for name in data["algorithm"].values}

    curves = {ONE: ONE} | {graph: named(MANY.value, graph) for graph in GRAPHS.value}
    chosen = data.sel(algorithm=[*curves.values()]).assign_coords(algorithm=[*curves])
    plotting.learning_curves(chosen, ch4.METRIC, ax=a)
    for drawn, name in zip(a.lines, curves, strict=False):
        drawn.set(**LOOKS[name])
    for band, name in zip(a.collections, curves, strict=False):
        band.set_color(LOOKS[name]["color"])
    picture.fade(a)

    counts = counts_of(data)
    for graph in GRAPHS.value:
        names = [ONE] + [named(p, graph) for p in counts]
        line(b, [1, *counts], cost(data, names), graph, LOOKS[graph])
        loads = [load(data, name).mean() / 1000 for name in names]
        line(f, loads, cost(data, names), graph, LOOKS[graph])
    b.set_xscale("log", base=2)
    b.set_xticks([1, *counts], [str(p) for p in (1, *counts)])
    b.set_xlabel("servers")

    portions = [m for m in BETWEEN.value if portion_name(RING, m) in labels]
    for graph in (RING, RANDOM, COMPLETE):
        names = [portion_name(graph, m) for m in portions]
        line(c, portions, cost(data, names), graph, LOOKS[graph])
        sent = [between_servers(data, name).mean() / 1000 for name in names]
        line(d, sent, cost(data, names), graph, LOOKS[graph])
    c.set_xlabel("parameters shared, of 200")
    d.set_xlabel("between servers (kbit/iteration)")
    f.set_xlabel("load (kbit/iteration)")
    for ax in (c, d, f):
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    for ax in (b, c, d, f):
        ax.set_ylabel("above 1 server (dB)")
    spent = {
        f"{graph}, {m} shared": (graph, m) for graph in (RING, COMPLETE) for m in portions[::2]
    }
    chosen = data.sel(algorithm=[portion_name(*which) for which in spent.values()])
    plotting.learning_curves(chosen.assign_coords(algorithm=[*spent]), ch4.METRIC, ax=e, x="bits")
    strokes = dict(zip(portions[::2], ("-", "--", ":"), strict=False))
    for drawn, band, (graph, m) in zip(e.lines, e.collections, spent.values(), strict=False):
        drawn.set(color=LOOKS[graph]["color"], linestyle=strokes[m], marker="")
        band.set_color(LOOKS[graph]["color"])
    picture.fade(e)
    return picture.finish(drawing, "PAO-Fed-U2 with several servers", legend_width=0.8)


def portion_name(graph: str, between: int) -> str:
    """The name of the run in which many servers share ``between`` parameters."""
    return named(MANY.value, graph, 0 if between == ch4.PORTION.value else between)


# --------------------------------------------------------------------------- the figure

SOURCE = "Gauthier et al. 2023 (PAO-Fed), section VI (future work)"
PORTIONS = "m = 4 of clients and of servers, 16 servers"

FIGURE = Figure(
    name="gauthier-7.servers",
    title="PAO-Fed with several servers",
    source="Gauthier et al. 2023 (PAO-Fed), section VI (future work); the study is ours",
    caption="The setting of figure 4.2: 256 clients, the source's participation and delays, "
    "PAO-Fed-U2 at each server; servers then mix a portion of their models with their neighbors'. "
    "Errors are the mean of those of the servers' models; costs are of the steady state, above one "
    "server of all clients. (d) and (f) have the points of (c) and "
    "(b) against what servers tell each other, and against all that one server sends and hears.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "strain-alleviated",
            "several servers alleviate the strain on the single one",
            SOURCE,
            load_saved(RING, RANDOM),
            (0, INFINITE),
            "a server sends and hears less than the only one",
            condition=f"on a ring or a sparse random graph; {PORTIONS}",
        ),
        Claim(
            "strain-alleviated-if-all-talk",
            "several servers alleviate the strain on the single one",
            SOURCE,
            load_saved(COMPLETE),
            (0, INFINITE),
            "a server sends and hears less than the only one",
            condition=f"all servers talk to each other; {PORTIONS}",
            note="What a server hears of 15 others is more than it no longer hears of clients.",
        ),
        Claim(
            "costs-little",
            "16 servers that share 2 % of their models cost little accuracy",
            SOURCE,
            gaps(*((named(MANY.value, graph), ONE) for graph in (RING, RANDOM, COMPLETE))),
            *LITTLE.db,
            ours=True,
        ),
        Claim(
            "talking-helps",
            "servers that talk are better than ones that do not, the more of them the more",
            SOURCE,
            gained_by_talking,
            (0, INFINITE),
            "the gain on a ring of 4, and by how much it is larger on one of 16, and of 64",
            ours=True,
        ),
        Claim(
            "servers-must-talk",
            "servers that do not talk are significantly worse than one of all clients",
            SOURCE,
            gaps((named(MANY.value, SILENT), ONE)),
            *SIGNIFICANTLY.db,
            ours=True,
            note=few_clients,
        ),
        Claim(
            "portions-between-servers-suffice",
            "portions between servers do hardly worse than whole models",
            SOURCE,
            gaps(
                *(
                    (named(MANY.value, graph), named(MANY.value, graph, ch4.DIM.value))
                    for graph in (RING, RANDOM, COMPLETE)
                )
            ),
            *LITTLE.db,
            ours=True,
            note=mixing_saved,
        ),
        Claim(
            "graph-hardly-matters",
            "which graph servers are on hardly changes the error",
            SOURCE,
            gaps(
                (named(MANY.value, RING), named(MANY.value, COMPLETE)),
                (named(MANY.value, RANDOM), named(MANY.value, COMPLETE)),
            ),
            *SAME.db,
            ours=True,
        ),
        Claim(
            "graph-of-many-matters",
            "of servers with few clients each the graph does matter, significantly",
            SOURCE,
            gaps((named(SERVERS.value[-1], RING), named(SERVERS.value[-1], RANDOM))),
            *SIGNIFICANTLY.db.when("64 servers on a ring above as many on a random graph"),
            ours=True,
        ),
        Claim(
            "larger-portions-of-clients-hide-it",
            "with larger portions of clients servers that share 2 % cost little too",
            SOURCE,
            gaps((named(MANY.value, RING, 0, LARGE.value), named(1, size=LARGE.value))),
            *LITTLE.db,
            ours=True,
        ),
    ],
    settings=(
        *ch4.COMMON,
        SERVERS,
        MANY,
        ASSIGNED,
        GRAPHS,
        DEGREE,
        WEIGHTS,
        BETWEEN,
        LARGE,
        SEEDS,
    ),
    keep=("bits", "bits_down"),
)
