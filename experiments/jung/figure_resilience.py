"""Jung 2025: networks that lose edges and nodes, peers and servers (section 8.2.4)."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import GRACEFULLY
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, gap, joined, last, samples, share, two
from fljax import plotting, statistics
from fljax.graphs import Graph
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems import LeastSquares, Problem, Tasks

NODES = Setting("nodes", 20, "of our instance; at random in the unit square")
NEIGHBORS = Setting(
    "nearest neighbors", 4, "the instance leaves it open; with these its connected shares come out"
)
DRAWS = Setting("draws of failures a network", 200, "for its mean connectivity and connected share")
DROPS = Setting(
    "probability that an edge fails",
    tuple(np.linspace(0, 0.8, 9).tolist()),
    "to that of the instance",
)
DATA = Setting("samples and parameters", (6, 4), "few samples: nodes need the others")
COUPLING = Setting("alpha", 1.0, "models of neighbors nearly agree")
STEP = Setting("step size of FedAvg", 0.1, "stable; FedGD has the source's own step")
ROUNDS = Setting("rounds", 200, "both have settled without a failure")
FAILS = Setting("round after which the server, or a peer, fails", 5, "on the way")
LOSSES = Setting(
    "probability that a link fails in a round",
    (0.0, 0.2, 0.4, 0.6, 0.8),
    "as of the instance, but anew",
)
INSTANCE = (0.0, 0.2, 0.4, 0.6, 0.8)
#: Values of one network, computed before.
CONNECTIVITY = (0.72, 0.44, 0.15, 0.01, 0.0)
CONNECTED = (1.0, 0.98, 0.66, 0.10, 0.0)

SERVER = "server (FedAvg)"
PEERS = "peers (FedGD)"
WHOLE = "no failure"
FAILED = "with a failure"
ERROR = "error"


# --------------------------------------------------------------------------- networks


def network(key: Array) -> Graph:
    """Nearest neighbors in the unit square, in dense form."""
    positions = jax.random.uniform(key, (NODES.value, 2))
    return fl.graphs.nearest_neighbors(positions, NEIGHBORS.value, form="dense")


def left_by_each(graph: Graph) -> Array:
    """The connectivity of the others without each node, ``[K]``."""
    everyone = jnp.arange(graph.nodes)
    return jax.vmap(lambda k: fl.graphs.resilience(graph, nodes=everyone == k).connectivity)(
        everyone
    )


def measured(key: Array, drops: Array) -> dict[str, Array]:
    k_network, k_failures = jax.random.split(key)
    graph = network(k_network)
    before = fl.graphs.resilience(graph)

    def at(probability: Array) -> dict[str, Array]:
        result = fl.graphs.random_failures(
            k_failures, graph, DRAWS.value, edge_probability=probability
        )
        return {
            "connectivity": jnp.mean(result.connectivity),
            "connected": jnp.mean((result.components == 1).astype(result.rate.dtype)),
            "rate": jnp.mean(result.rate),
        }

    left = left_by_each(graph)
    return jax.lax.map(at, drops) | {
        "whole": (before.components == 1).astype(left.dtype),
        "critical": jnp.min(left) / before.connectivity,
        "typical": jnp.mean(left) / before.connectivity,
    }


# --------------------------------------------------------------------------- runs


def _error(now: Snapshot) -> Array:
    """The mean error of all clients except the worst, because a failed peer is not used."""
    tasks = now.problem.tasks
    of_each = jnp.sum((now.model - tasks.truth[tasks.cluster]) ** 2, axis=1)
    return (jnp.sum(of_each) - jnp.max(of_each)) / (len(of_each) - 1)


METRIC = Metric(ERROR, _error, "error of a client", decibel=True, needs={"tasks.truth"})


def world(key: Array) -> tuple[Problem, Graph]:
    k_network, k_data, k_noise, k_truth = jax.random.split(key, 4)
    samples_, dim = DATA.value
    features = jax.random.normal(k_data, (NODES.value, samples_, dim))
    truth = jax.random.normal(k_truth, (dim,))
    targets = features @ truth + jax.random.normal(k_noise, features.shape[:2])
    tasks = Tasks(np.zeros(NODES.value, int), 1, truth[None])
    return Problem(features, targets, LeastSquares(), tasks=tasks), network(k_network)


def simulation(key: Array, method: str, fails: bool, **parts: object) -> fl.Simulation:
    problem, graph = world(key)
    parts = {"metrics": [METRIC], **parts}
    if method == SERVER:
        present = fl.participation.Until(FAILS.value) if fails else None
        averaging = fl.algorithms.FedAvg(STEP.value)
        return fl.Simulation(problem, averaging, participation=present, **parts)  # pyright: ignore
    over = graph
    if fails:
        critical = jnp.arange(graph.nodes) == jnp.argmin(left_by_each(graph))
        after = fl.graphs.pruned(graph, nodes=critical)
        over = fl.graphs.GraphSchedule(
            [graph] * FAILS.value + [after] * (ROUNDS.value - FAILS.value)
        )
    descent = fl.algorithms.FedGD(COUPLING.value)
    return fl.Simulation(problem, descent, over, allow_disconnected=True, **parts)  # pyright: ignore


def study(effort: Effort) -> Studies:
    drops = effort.thin(DROPS.value, 5)
    of = functools.partial(measured, drops=jnp.asarray(drops))
    result = solutions.solved(of, solutions.seeds(effort)[0])
    result = {name: values[result["whole"] > 0] for name, values in result.items()}
    variables = {
        "connectivity": (("drop_edge",), "connectivity", False),
        "connected": (("drop_edge",), "connected share", False),
        "rate": (("drop_edge",), "best factor of averaging", False),
        "critical": ((), "connectivity left without the most critical node", False),
        "typical": ((), "connectivity left without a node", False),
    }
    labels = {"drop_edge": "probability that an edge fails"}
    failures = solutions.dataset(result, variables, {"drop_edge": drops}, labels)

    def run(method: str, case: str) -> xr.Dataset:
        def build(key: Array) -> fl.Simulation:
            return simulation(key, method, case == FAILED)

        build.__qualname__ = f"simulation({method}, {case})"
        name = f"{method.split()[0]}-{case.split()[0]}"
        return effort.sweep(name, build, rounds=ROUNDS.value, seeds=effort.seeds)

    def lossy(method: str) -> xr.Dataset:
        def build(key: Array, probability: Array) -> fl.Simulation:
            return simulation(key, method, False, losses=fl.link.Independent(probability))

        build.__qualname__ = f"lossy({method})"
        grid = {"probability": list(LOSSES.value)}
        name = f"{method.split()[0]}-lossy"
        return last(effort.sweep(name, build, grid=grid, rounds=ROUNDS.value, seeds=effort.seeds))

    methods = [SERVER, PEERS]
    runs = joined(
        *(
            joined(*(run(method, case) for case in (WHOLE, FAILED)), axis="case")
            for method in methods
        )
    ).assign_coords(algorithm=methods, case=[WHOLE, FAILED])
    links = joined(*map(lossy, methods)).assign_coords(algorithm=methods)
    links["probability"].attrs["long_name"] = "probability that a link fails in a round"
    return {"failures": failures, "runs": runs[[ERROR]], "links": links[[ERROR]]}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    failures = studies["failures"]
    runs = studies["runs"]
    titles = ("connectivity", "connected share", "a failure on the way", "links that fail anew")
    drawing, (second, share_, course, links) = picture.panels(titles, columns=2, height=2.2)
    at = failures["drop_edge"].values
    for ax, name, printed, text in (
        (second, "connectivity", CONNECTIVITY, r"mean $\lambda_2$"),
        (share_, "connected", CONNECTED, "of the draws"),
    ):
        values = failures[name].transpose("seed", "drop_edge").values
        low, middle, high = np.quantile(values, [0.025, 0.5, 0.975], axis=0)
        color = picture.look(2)["color"]
        ax.plot(at, middle, color=color, label="median network")
        band = {"color": color, "alpha": 0.2, "linewidth": 0, "label": "middle 95 % of networks"}
        ax.fill_between(at, low, high, **band)
        ax.plot(INSTANCE, printed, "kx", label="one network, given")
        ax.set(xlabel="probability that an edge fails", ylabel=text)
    lines = ("-", (0, (1, 1)), "--", "-.")
    for line, (method, case) in zip(
        lines, itertools.product((SERVER, PEERS), (WHOLE, FAILED)), strict=True
    ):
        numbers = statistics.summary(runs.sel(algorithm=method, case=case), ERROR)
        mean, low, high = (
            statistics.decibels(numbers[part].values) for part in ("mean", "low", "high")
        )
        color = picture.look((SERVER, PEERS).index(method))["color"]
        look = {"color": color, "linestyle": line}
        course.plot(runs["round"], mean, label=f"{method}, {case}", **look)
        course.fill_between(runs["round"], low, high, color=color, alpha=0.2, linewidth=0)
    course.axvline(
        FAILS.value, label="the server, or the most critical peer, fails", **picture.THIN
    )
    course.set(xlabel="round", ylabel="error of a client [dB]", xscale="log")
    plotting.trade_off(studies["links"], "probability", ERROR, "algorithm", links)
    return picture.finish(drawing, "Networks of 20 nodes that lose edges, links, a peer, a server")


# --------------------------------------------------------------------------- claims


def drops_at(data: xr.Dataset) -> list[tuple[int, float]]:
    """Indices of the instance's probabilities among the study's, with the study's values."""
    at = data["drop_edge"].values
    return [
        (i, float(at[int(np.argmin(np.abs(at - p)))]))
        for i, p in enumerate(INSTANCE)
        if np.min(np.abs(at - p)) < 1e-6
    ]


def falls(metric: str, sign: int) -> Measure:
    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["failures"]
        values = data[metric].transpose("seed", "drop_edge").values
        return {
            f"{after:.2g} after {before:.2g}": estimate(
                lambda a, b: sign * (a - b), values[:, i], values[:, i + 1], unit=""
            )
            for i, (before, after) in enumerate(itertools.pairwise(data["drop_edge"].values))
        }

    return measure


def rank(metric: str, printed: tuple[float, ...], relative: bool) -> Measure:
    """In how many networks the number is below that of the instance."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["failures"]
        values = data[metric]
        if relative:
            values = values / values.isel(drop_edge=0)
        result = {}
        for i, at in drops_at(data):
            if 0 < printed[i] < printed[0]:
                bound = printed[i] / printed[0] if relative else printed[i]
                of = values.sel(drop_edge=at).values
                result[f"drop {at:g}, {bound:.2g}"] = share((of < bound) + 0.5 * (of == bound))
        return result

    return measure


def one_node(name: str) -> Measure:
    return lambda studies: {
        "without it": estimate(lambda a: a, studies["failures"][name].values, unit="")
    }


def costs(method: str) -> Measure:
    """The error at the end with a failure above that without, dB."""
    return lambda studies: {
        method: gap(
            *two(
                last(studies["runs"]),
                {"algorithm": method, "case": FAILED},
                {"algorithm": method, "case": WHOLE},
                ERROR,
            )
        )
    }


def server_above_peer(studies: Studies) -> dict[str, Estimate]:
    (server,), (peer,) = (costs(method)(studies).values() for method in (SERVER, PEERS))
    return {
        "server above peer": Estimate(
            server.value - peer.value, server.low - peer.high, server.high - peer.low, "dB"
        )
    }


def by_links(method: str) -> Measure:
    """The error with more links that fail above that with fewer, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["links"]

        def errors(probability: float) -> np.ndarray:
            return samples(data, {"algorithm": method, "probability": probability}, ERROR)

        return {
            f"{method}, {fewer:g} to {more:g}": gap(errors(more), errors(fewer))
            for fewer, more in itertools.pairwise(LOSSES.value)
        }

    return measure


WORD = (
    "“Gracefully” said less than 1 dB in all, at which no part of a network can be lost; it says "
    "that nothing breaks down: no step to more failures makes the error significantly larger."
)


FIGURE = Figure(
    name="jung-resilience",
    title="Network resilience: edges, links, a peer and a server that fail",
    source="Jung 2025, section 8.2.4 and Exercise 8.1",
    caption="Networks of the nearest neighbors of 20 random positions, those in one piece. (a), "
    "(b) the mean connectivity and the share of networks in one piece when each edge fails at "
    "random, beside those of one network that was computed before. (c) the squared error of "
    "all clients but the worst, of federated averaging whose server fails after five rounds, and "
    "of FedGD whose most critical peer does: what the server cannot be reached for stays as it is. "
    "(d) the same at the end, where every link fails anew in every round.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "connectivity-falls",
            "removing edges lowers the connectivity, the metric of resilience",
            "section 8.2.4",
            falls("connectivity", 1),
            (0, INFINITE),
            "mean over networks and draws, from each probability to the next",
        ),
        Claim(
            "slower",
            "and with it the rate of convergence",
            "section 8.2.4",
            falls("rate", -1),
            (0, INFINITE),
            "the best factor of averaging, one where a network falls apart, grows",
        ),
        Claim(
            "instance-connectivity",
            "of the connectivity .72 of one network .44, .15 and .01 are left at probabilities of "
            ".2, .4 and .6",
            "Exercise 8.1; one instance, computed before",
            rank("connectivity", CONNECTIVITY, True),
            (2.5, 97.5),
            "its share of the connectivity without failures: per cent of the networks with less",
            condition="one network, of which the number of neighbors is not given",
            ours=True,
        ),
        Claim(
            "instance-connected",
            "it stays in one piece in .98, .66 and .10 of the draws",
            "Exercise 8.1; one instance, computed before",
            rank("connected", CONNECTED, False),
            (2.5, 97.5),
            "per cent of the networks with less",
            condition="one network, of which the number of neighbors is not given",
            ours=True,
        ),
        Claim(
            "critical-node",
            "which node fails matters: without the most critical little connectivity is left",
            "section 8.2.4",
            one_node("critical"),
            (0, 0.5),
            "mean share of the connectivity that is left",
            ours=True,
        ),
        Claim(
            "typical-node",
            "without a random one nearly all is",
            "section 8.2.4",
            one_node("typical"),
            (0.85, INFINITE),
            "mean share of the connectivity that is left",
            ours=True,
        ),
        Claim(
            "server-fails",
            "a server is one point of failure: learning ends with it",
            "section 8.2.4",
            costs(SERVER),
            (3, INFINITE),
            "the error at the end above that without a failure: more than twice",
            condition="it fails before it is done",
        ),
        Claim(
            "peer-fails",
            "peers go on without one of them, the most critical",
            "section 8.2.4",
            costs(PEERS),
            *GRACEFULLY.when("the error of the others at the end above that without a failure"),
            changed=WORD,
        ),
        Claim(
            "peer-fails-less",
            "a server's failure costs more than that of the most critical peer",
            "section 8.2.4",
            server_above_peer,
            (0, INFINITE),
            "of the costs of a failure at the end, dB",
            condition="the server fails before it is done",
        ),
        Claim(
            "links-fail",
            "peers degrade gracefully with failures of links",
            "section 8.2.4",
            by_links(PEERS),
            *GRACEFULLY.when("the error at the end, from one probability to the next"),
            condition="links that fail anew in every round",
            changed=WORD,
        ),
    ],
    settings=(NODES, NEIGHBORS, DRAWS, DROPS, DATA, COUPLING, STEP, ROUNDS, FAILS, LOSSES),
    table=lambda studies: [
        {
            "probability": float(at),
            "connectivity": float(studies["failures"]["connectivity"].sel(drop_edge=at).mean()),
            "connected": float(studies["failures"]["connected"].sel(drop_edge=at).mean()),
        }
        for at in studies["failures"]["drop_edge"].values
    ],
)
