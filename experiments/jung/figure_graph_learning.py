"""Jung 2025, chapter 7: learned graphs compared with the true one (sections 7.2 to 7.4)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture
from scipy import stats

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate, gap, joined, last, samples
from fljax import contrib, graphs, plotting
from fljax._core.module import replace
from fljax.algorithms import FedRelax
from fljax.graphs import Graph, Relearned
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems import GTVMin, Problem, local_gradients, train
from fljax.results.dataset import provenance

NODES = Setting("Exercise 7.1: nodes", 100, "Exercise 7.1", given=True)
DRAWN = Setting("candidates of a node", 10, "10 per cent of all others (Exercise 7.1)", given=True)
NEAREST = Setting("neighbors of a node", 3, "those with the 3 smallest differences", given=True)
BALANCE = Setting("nodes with c = 1", 50, "not given; half of them")
ENTRIES = Setting("entries m of a node's vector", (1, 2, 3, 5, 7, 10, 14, 20), "not given")
MANY = Setting(
    "networks of Exercise 7.1 a seed", 20, "nodes share samples; they cost next to nothing"
)
SIZES = Setting("clients of each cluster", (8, 8, 8), "three clusters; exact programs are small")
TRUTH = Setting(
    "models of the clusters",
    tuple((float(np.cos(a)), float(np.sin(a))) for a in np.pi * np.array([1 / 2, 7 / 6, 11 / 6])),
    "at equal distances on the unit circle",
)
NOISE = Setting("variance of the labels' noise", 1.0, "that of the signal")
COUNTS = Setting("samples a client", (2, 3, 5, 10, 20, 40), "from no more than parameters to many")
DEGREE = Setting("degree", 3, "of nearest neighbors and of (160); the budget (161) is as large")
STEPS = Setting("steps of projected gradient descent", 100, "half of the library's default")
MOST = Setting("seeds of learned graphs", 50, "at most: intervals are of a hundredth of a share")
PROGRAMS = Setting("seeds of the exact programs", 5, "at most: each is solved on the host")
COUPLING = Setting("alpha", 1.0, "a client's own loss has curvature two; not tuned")
FEW = Setting("samples a client of the training", 5, "few: learning alone is poor")
CANDIDATES = Setting(
    "probability of a candidate edge", 0.5, "half of all pairs may hear each other"
)
ROUNDS = Setting("rounds of FedRelax", 40, "after which no error moves any more")
SURE = Setting("nearly all", 0.95, "of the edges within clusters")

#: A small ridge: makes models of few samples unique and hardly changes others.
RIDGE = 1e-4

CLUSTER = np.repeat(np.arange(len(SIZES.value)), SIZES.value)
SAME = CLUSTER[:, None] == CLUSTER[None]
CLIENTS = len(CLUSTER)
#: The share of all pairs that is within clusters: the value of an uninformed graph.
PROBABILITY = float((SAME.sum() - CLIENTS) / (CLIENTS * (CLIENTS - 1)))
PARAMETERS = "models"
GRADIENTS = "gradients"
NEIGHBORS = "nearest neighbors"
REGULAR = "equal degrees (160)"
BUDGET = "edge budget (161)"
RULES = (NEIGHBORS, REGULAR, BUDGET)
LEARNED = "learned"
TRUE = "true"
ALL = "everybody"
ALONE = "none"
RELEARNED = "learned in training"
FIXED = "all candidates"
TRAINED = (RELEARNED, TRUE, FIXED, ALONE)
KNOWN = (LEARNED, TRUE, ALL, ALONE)

# --------------------------------------------------------------------------- Exercise 7.1


def wrong_neighbors(key: Array) -> Array:
    """``[M]``: the share of nodes with a neighbor of the other kind, by the number of entries."""
    k_noise, k_chosen = jax.random.split(key)
    nodes = NODES.value
    entries = jnp.asarray(ENTRIES.value)
    kind = jnp.where(jnp.arange(nodes) < BALANCE.value, 1.0, -1.0)
    noise = jax.random.normal(k_noise, (1, nodes))
    mean = kind[None] + noise / jnp.sqrt(entries)[:, None]
    order = jax.random.uniform(k_chosen, (nodes, nodes)) + 2 * jnp.eye(nodes)
    chosen = jnp.argsort(order, axis=1)[:, : DRAWN.value]
    distance = jnp.abs(mean[:, :, None] - mean[:, chosen])  # [M, nodes, drawn]
    _, near = jax.lax.top_k(-distance, NEAREST.value)
    other = kind[chosen] != kind[:, None]
    wrong = jnp.take_along_axis(jnp.broadcast_to(other[None], distance.shape), near, axis=2)
    return jnp.mean(jnp.any(wrong, axis=2), axis=1)


@functools.cache
def predicted_wrong(entries: float) -> float:
    """The exact probability of a wrong neighbor, with distances in units of a mean's deviation.

    One minus the probability that the third nearest candidate of the same kind is nearer than all
    others. Given the client's own mean these are independent; the number of candidates of the
    same kind is hypergeometric.
    """
    threshold = 2 * np.sqrt(entries)
    nodes, weight = np.polynomial.hermite_e.hermegauss(40)
    weight = weight / weight.sum()
    reach = np.linspace(0, 9 + threshold, 1500)

    def within(distance: float) -> np.ndarray:
        shifted = nodes[:, None] + distance
        return stats.norm.cdf(shifted + reach) - stats.norm.cdf(shifted - reach)

    same_cluster = within(0.0)
    unlike = within(threshold)
    right = 0.0
    for drawn, probability in enumerate(number_alike()):
        if drawn >= NEAREST.value:
            third = stats.beta.cdf(same_cluster, NEAREST.value, drawn - NEAREST.value + 1)
            farther = (1 - unlike) ** (DRAWN.value - drawn)
            middle = (farther[:, 1:] + farther[:, :-1]) / 2
            right += probability * float(weight @ (np.diff(third, axis=1) * middle).sum(axis=1))
    return 1 - right


def number_alike() -> np.ndarray:
    """The distribution of the number of candidates of the node's own kind."""
    drawn = np.arange(DRAWN.value + 1)
    return stats.hypergeom.pmf(drawn, NODES.value - 1, BALANCE.value - 1, DRAWN.value)


def floor_wrong() -> float:
    """The probability that too few candidates of the own kind are drawn."""
    return float(number_alike()[: NEAREST.value].sum())


# --------------------------------------------------------------------------- graphs of clusters


def network(key: Array, count: Array | int) -> Problem:
    """The clients, each with ``count`` samples."""
    most = max(COUNTS.value)
    problem, _ = fl.problems.clustered_network(
        key,
        SIZES.value,
        most,
        dim=2,
        within=1.0,
        between=0.0,
        noise_variance=NOISE.value,
        truth=jnp.asarray(TRUTH.value),
    )
    real = jnp.broadcast_to(jnp.arange(most) < count, (CLIENTS, most))
    return replace(problem, weights=real.astype(problem.dtype) / count)


def representations(problem: Problem) -> dict[str, Array]:
    return {PARAMETERS: train(problem, ridge=RIDGE), GRADIENTS: local_gradients(problem)}


def learned(points: Array) -> dict[str, Graph]:
    return {
        NEIGHBORS: graphs.nearest_neighbors(points, DEGREE.value),
        REGULAR: contrib.regular_similarity(points, DEGREE.value, steps=STEPS.value),
        BUDGET: contrib.edge_budget(points, CLIENTS * DEGREE.value // 2),
    }


def inside(matrix: Array) -> Array:
    """The share of the edges' weight that is within clusters; none of no edges."""
    total = jnp.sum(matrix)
    return jnp.sum(jnp.where(SAME, matrix, 0)) / jnp.where(total > 0, total, 1)


def error(models: Array) -> Array:
    truth = jnp.asarray(TRUTH.value, models.dtype)[CLUSTER]
    return jnp.mean(jnp.sum((models - truth) ** 2, axis=-1))


def measured(key: Array, count: Array) -> dict[str, Array]:
    """The quantities of one network with ``count`` samples at each client."""
    problem = network(key, count)
    shares = []
    costs = []
    points = representations(problem)
    for vectors in points.values():
        result = {rule: graph.dense() for rule, graph in learned(vectors).items()}
        shares.append(jnp.stack([inside(result[rule]) for rule in RULES]))
        costs.append(jnp.sum(result[REGULAR] * graphs.distances(vectors)))
    # All but the learned one with the same degree.
    level = DEGREE.value / (np.sum(SAME, axis=1) - 1)[0], DEGREE.value / (CLIENTS - 1)
    off_diagonal = 1 - np.eye(CLIENTS)
    bounds = {
        LEARNED: graphs.nearest_neighbors(points[PARAMETERS], DEGREE.value),
        TRUE: graphs.from_adjacency(level[0] * SAME * off_diagonal, allow_disconnected=True),
        ALL: graphs.from_adjacency(level[1] * off_diagonal),
    }
    errors = [error(GTVMin(problem, g, COUPLING.value).solution().models) for g in bounds.values()]
    errors.append(error(points[PARAMETERS]))
    result = {"inside": shares, "cost": costs, "error": errors, "points": [*points.values()]}
    return {name: jnp.stack(value) for name, value in result.items()}


def least_costs(points: np.ndarray) -> np.ndarray:
    """The least costs of (160) for ``[..., K, D]``, by the linear program."""
    flat = points.reshape(-1, *points.shape[-2:])
    result = []
    for features in flat:
        cost = np.asarray(graphs.distances(features))
        graph = contrib.regular_similarity(cost, DEGREE.value, metric="precomputed", method="exact")
        result.append(np.sum(np.asarray(graph.adjacency) * cost))
    return np.reshape(result, points.shape[:-2])


# --------------------------------------------------------------------------- while training

WITHIN = "within"
ERROR = "network_deviation"


def _working(now: Snapshot) -> Array:
    """The share of the working edges that is within clusters."""
    over = now.network
    graph = over.learned(now.model) if isinstance(over, Relearned) else over
    return inside(graph.dense())


_WITHIN = Metric(WITHIN, _working, "edges within clusters", decibel=False)


def scenario(key: Array, kind: str) -> fl.Simulation:
    k_data, k_candidates = jax.random.split(key)
    problem = network(k_data, FEW.value)
    drawn = graphs.erdos_renyi(k_candidates, CLIENTS, CANDIDATES.value, form="dense")
    over: Any = drawn
    if kind == RELEARNED:
        over = Relearned(drawn, DEGREE.value)
    elif kind == TRUE:
        over = graphs.from_adjacency(jnp.where(SAME, drawn.dense(), 0), allow_disconnected=True)
    elif kind == ALONE:
        over = graphs.from_adjacency(jnp.zeros((CLIENTS, CLIENTS)), allow_disconnected=True)
    parts = problem, FedRelax(COUPLING.value), over
    return fl.Simulation(*parts, metrics=[ERROR, _WITHIN], allow_disconnected=True)


def training(effort: Effort) -> xr.Dataset:
    parts = []
    for number, kind in enumerate(TRAINED):
        part = effort.sweep(
            f"training-{number}",
            functools.partial(scenario, kind=kind),
            seeds=effort.seeds,
            rounds=ROUNDS.value,
        )
        parts.append(part.expand_dims(graph=[kind]))
    return joined(*parts, axis="graph")


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    keys = jax.random.split(fl.random_key(0), effort.seeds)
    many = jax.random.split(fl.random_key(1), MANY.value * effort.seeds)
    wrong = np.asarray(jax.jit(lambda all_: jax.lax.map(wrong_neighbors, all_))(many))
    share_of = {"long_name": "wrong neighborhoods", "units": "1", "decibel": 0}
    ranking = xr.Dataset(
        {"wrong": (("seed", "entries"), wrong, share_of)},
        {"seed": np.arange(len(many)), "entries": list(ENTRIES.value)},
        provenance(root=0, dtype=str(jnp.result_type(float))),
    )
    counts = effort.thin(COUNTS.value)
    first_keys = keys[: MOST.value]
    per_instance = jax.vmap(jax.vmap(measured, (None, 0)), (0, None))
    result = jax.tree.map(np.asarray, jax.jit(per_instance)(first_keys, jnp.asarray(counts)))
    few = min(len(first_keys), PROGRAMS.value)
    excess = result["cost"][:few] / least_costs(result["points"][:few]) - 1
    coords = {"count": counts, "points": [PARAMETERS, GRADIENTS]}
    inside_of = {"long_name": "edges within clusters", "units": "1", "decibel": 0}
    error_of = {"long_name": "error of a client", "units": "1", "decibel": 1}
    learned_ = xr.Dataset(
        {
            "inside": (("seed", "count", "points", "rule"), result["inside"], inside_of),
            "error": (("seed", "count", "graph"), result["error"], error_of),
        },
        {"seed": np.arange(len(first_keys)), **coords, "rule": list(RULES), "graph": list(KNOWN)},
    )
    exact = xr.Dataset(
        {"excess": (("seed", "count", "points"), excess, {"units": "1"})},
        {"seed": np.arange(few), **coords},
    )
    parts = {"ranking": ranking, "learned": learned_, "exact": exact}
    ranking["entries"].attrs["long_name"] = "entries of a node's vector"
    learned_["count"].attrs["long_name"] = "samples a client"
    return {**parts, "training": training(effort)}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = (
        "Exercise 7.1",
        "learned from models",
        "learned from gradients",
        "GTVMin on the graphs",
        "edges while training",
        "error while training",
    )
    drawing, axes = picture.panels(titles, height=2.3)
    ranked, models, gradients, solution, edges, errors = axes
    entries = np.array(ENTRIES.value)
    plotting.trade_off(studies["ranking"], "entries", "wrong", None, ranked)
    curve = np.array([predicted_wrong(m) for m in entries])
    picture.predicted_curve(ranked, entries, curve, "exact")
    picture.theory(ranked, floor_wrong(), "too few alike drawn", unit="", linestyle=(0, (5, 2)))
    ranked.set(xscale="log", ylabel="wrong neighborhoods")
    ranked.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"], minor=False)
    data = studies["learned"]
    for ax, points in ((models, PARAMETERS), (gradients, GRADIENTS)):
        at_points = data[["inside"]].sel(points=points, drop=True)
        plotting.trade_off(at_points, "count", "inside", "rule", ax)
        picture.theory(ax, PROBABILITY, "any graph", unit="")
        ax.set_ylim(0.25, 1.03)
    plotting.trade_off(data[["error"]], "count", "error", "graph", solution)
    counts = data["count"].values
    for ax in (models, gradients, solution):
        ax.set_xscale("log")
        ax.set_xticks(counts, [str(c) for c in counts])
        ax.minorticks_off()
    ranked.minorticks_off()
    trained = studies["training"]
    plotting.learning_curves(trained.drop_sel(graph=ALONE), WITHIN, "graph", edges)
    plotting.learning_curves(trained, ERROR, "graph", errors)
    edges.set_ylabel("edges within clusters")
    return picture.finish(
        drawing, "Graphs that are learned; seeds of (a), of (b) to (d), and of (e), (f):"
    )


# --------------------------------------------------------------------------- claims


def ranked(studies: Studies) -> dict[str, Estimate]:
    """The measured probability less the exact one."""
    data = studies["ranking"]

    def off(entries: int) -> Estimate:
        exact = predicted_wrong(entries)
        result = samples(data, {"entries": entries}, "wrong")
        return estimate(lambda a: 100 * (a - exact), result, unit="%")

    return {f"m = {entries}": off(entries) for entries in data["entries"].values}


def floor(studies: Studies) -> dict[str, Estimate]:
    """The share for the most entries minus its limit for infinitely many."""
    data = studies["ranking"]
    result = samples(data, {"entries": data["entries"].values[-1]}, "wrong")
    return {"measured less floor": estimate(lambda a: 100 * (a - floor_wrong()), result, unit="%")}


def within(points: str, at: int) -> Callable[[Studies], dict[str, Estimate]]:
    """The share of edges within clusters, at the first or last number of samples."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["learned"][["inside"]].isel(count=at, drop=True)
        return {
            f"{points}, {rule}": estimate(
                lambda a: a, samples(data, {"points": points, "rule": rule}, "inside"), unit=""
            )
            for rule in RULES
        }

    return measure


def few(studies: Studies) -> dict[str, Estimate]:
    return within(PARAMETERS, 0)(studies) | within(GRADIENTS, 0)(studies)


def excess(studies: Studies) -> dict[str, Estimate]:
    """How far the cost of projected gradient descent is above the least one."""
    data = studies["exact"]
    return {
        f"{points}, {count} samples": estimate(
            lambda a: 100 * a, samples(data, {"points": points, "count": count}, "excess"), unit="%"
        )
        for points in data["points"].values
        for count in data["count"].values
    }


def above(over: str, under: str) -> Callable[[Studies], dict[str, Estimate]]:
    """How far the error on one graph is above that on another, at every number of samples."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["learned"][["error"]]
        first, second = ({"graph": name} for name in (over, under))
        return {
            f"{over} above {under}, {count} samples": gap(
                samples(data, first | {"count": count}, "error"),
                samples(data, second | {"count": count}, "error"),
            )
            for count in data["count"].values
        }

    return measure


def trained(studies: Studies) -> dict[str, Estimate]:
    """How far other networks are above the learned one at the end."""
    data = last(studies["training"])
    under = samples(data, {"graph": RELEARNED}, ERROR)
    return {
        f"{kind} above {RELEARNED}": gap(samples(data, {"graph": kind}, ERROR), under)
        for kind in (FIXED, ALONE)
    }


def rewired(studies: Studies) -> dict[str, Estimate]:
    """How the share of edges within clusters grows from the first round to the last."""
    result = samples(studies["training"], {"graph": RELEARNED}, WITHIN)
    grown = estimate(lambda a, b: b - a, result[:, 0], result[:, -1], unit="")
    return {"last round less first": grown}


def crossing(studies: Studies) -> str:
    """A note: the number of samples from which on the complete graph is worse than no graph."""
    cases = above(ALL, ALONE)(studies)
    worse = [name for name, result in cases.items() if result.low > 0]
    since = worse[0].rsplit(", ", 1)[1] if worse else "no number of samples"
    return (
        "With few samples any neighbor helps: what it adds in bias it takes from the variance. "
        f"Edges to everybody are worse than none from {since} a client on."
    )


INSTANCE = "clusters, noise and samples as in the settings"

FIGURE = Figure(
    name="jung-graph-learning",
    title="Learning the graph, against the true one",
    source="Jung 2025, chapter 7 (sections 7.2 to 7.4)",
    caption="(a) is Exercise 7.1, whose answer the source leaves to the reader: how often one of "
    "the three nearest of ten random candidates is of the other kind, with the exact probability "
    "and the part that no number of entries removes. (b)-(c): the share of edges within clusters "
    "that three rules find, from local models and from gradients at zero; (d): the error of GTVMin "
    "on the graph of nearest neighbors by models, on the true one, and on all pairs. (e)-(f): a "
    "graph that in every round keeps the nearest models among random candidates.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "ranking-as-analyzed",
            "the probability that a neighborhood has a node of the other kind is as analyzed",
            "Exercise 7.1",
            ranked,
            (-2, 2),
            "within two per cent of all neighborhoods of the exact probability, by quadrature",
            ours=True,
        ),
        Claim(
            "ranking-floor",
            "with many entries it falls to the probability that too few of the own kind are drawn, "
            "not to zero",
            "Exercise 7.1",
            floor,
            (-1, 1),
            f"within one per cent of all; the probability, hypergeometric, is {floor_wrong():.3f}; "
            f"at {ENTRIES.value[-1]} entries",
            condition="half of the nodes are of each kind",
            ours=True,
        ),
        Claim(
            "alike-by-models",
            "distances of local models tell who is alike",
            "section 7.2",
            within(PARAMETERS, -1),
            (SURE.value, 1.0001),
            f"at least {SURE.value:g} of the edges within clusters, with the most samples",
            condition=INSTANCE,
        ),
        Claim(
            "alike-by-gradients",
            "gradients of clients whose data are alike are close",
            "section 7.2, (157)",
            within(GRADIENTS, -1),
            (SURE.value, 1.0001),
            f"at least {SURE.value:g} of the edges within clusters, with the most samples",
            condition=INSTANCE + "; gradients at zero",
        ),
        Claim(
            "few-samples-tell",
            "with as few samples as parameters learned edges are more often within clusters than "
            "those of a graph that knows nothing",
            "section 7.2, which does not say how many samples are needed",
            few,
            (PROBABILITY, 1.0001),
            ours=True,
        ),
        Claim(
            "projected-descent",
            "projected gradient descent solves (160) approximately",
            "section 7.3",
            excess,
            (-0.1, 2.0),
            f"after {STEPS.value} steps at most 2 % above the linear program",
        ),
        Claim(
            "edges-among-alike-help",
            "edges between clients whose data are alike are useful",
            "section 7.2",
            above(ALONE, TRUE),
            (0, INFINITE),
            "the error without edges above that on the true graph",
            condition=INSTANCE,
        ),
        Claim(
            "edges-among-others-do-not-help",
            "typically only these are useful: edges to everybody do not help",
            "section 7.2",
            above(ALL, ALONE),
            (0, INFINITE),
            "the error with edges between all above that without",
            condition=INSTANCE,
            note=crossing,
        ),
        Claim(
            "learned-graph-helps",
            "a graph learned from local models is better than none and than one of all pairs",
            "sections 7.2 and 7.3",
            lambda studies: above(ALONE, LEARNED)(studies) | above(ALL, LEARNED)(studies),
            (0, INFINITE),
            "their errors above that on the learned graph",
            condition=INSTANCE,
            note="With as few samples as parameters the models are mostly noise, and so is a graph "
            "of them; it joins those with the same errors.",
        ),
        Claim(
            "learned-in-training",
            "while training over a communication network, learning whom to listen to is better "
            "than all of it and than none",
            "section 7.3",
            trained,
            (0, INFINITE),
            "the errors after the last round above that of the learned network",
            condition="the graph follows the models in training",
            ours=True,
        ),
        Claim(
            "rewired-in-training",
            "training makes the learned edges more often those within clusters",
            "section 7.3",
            rewired,
            (0, INFINITE),
            condition="the graph follows the models in training",
            ours=True,
        ),
    ],
    settings=(
        *(
            NODES,
            DRAWN,
            NEAREST,
            BALANCE,
            ENTRIES,
            MANY,
            SIZES,
            TRUTH,
            NOISE,
            COUNTS,
            DEGREE,
            STEPS,
        ),
        *(MOST, PROGRAMS, COUPLING, FEW, CANDIDATES, ROUNDS, SURE),
    ),
)
