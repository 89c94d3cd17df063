"""Jung 2025: clustered federated learning (section 6.2)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, gap, of_median, samples
from fljax import plotting, statistics
from fljax._core.module import replace
from fljax.graphs import Graph
from fljax.problems import GTVMin, Problem, train
from fljax.problems.clustering import adjusted_rand, kmeans, quality
from fljax.theory import networks

SIZES = Setting("clients of each cluster", (8, 8), "two of a size")
MOST = Setting("samples a client", 20, "at most; (c), (d) use the first few of them")
SAMPLES = Setting("(a), (b) samples a client", 6, "few for two parameters")
NOISE = Setting("variance of the labels' noise", 1.0, "learning alone is poor")
TRUTH = Setting("models of the clusters", ((1.0, 1.0), (1.0, -1.0)), "equal norms, distance 2")
BETWEEN = Setting("probability of an edge between clusters", 0.1, "six or seven edges a network")
WITHIN = Setting(
    "(b) probabilities of an edge within",
    (0.5, 0.75, 1.0),
    "connectivity of 1 to 8; runs whose cluster falls apart are left out: (148) is of others",
)
DENSE = Setting("(a), (c), (d) probability of an edge within", 0.75, "the middle of (b)")
WEIGHTS = Setting("(a) weight of an edge between", (0.0, 0.01, 0.1, 1.0), "none to that of others")
SPARSE = Setting("(b) to (d) weight of an edge between", 0.1, "one but the largest of (a)")
COUPLINGS = Setting("alpha", tuple(np.geomspace(0.1, 1e4, 11).tolist()), "two a decade")
FEW = Setting("(c), (d) samples a client", (2, 3, 4, 6, 10, 20), "from what just fits")
TRIED = Setting("(c) alpha of GTVMin", (0.1, 0.3, 1.0, 3.0), "the best on the tuning seeds counts")
NEAREST = Setting(
    "(c) neighbors in the learned graph", 5, "fewer than the seven others of a client's cluster"
)
RIDGE = Setting(
    "(c) ridge of the models that it compares", 0.1, "what makes local models comparable; not tuned"
)

PARAMETERS = "route A, local models"
GRADIENTS = "route A, gradients at 0"
LEARNED = "route B, learned graph"
GIVEN = "route B, graph of the clusters"
ALONE = "alone"
KNOWN = "clusters known"
ROUTES = (PARAMETERS, GRADIENTS, LEARNED, GIVEN, ALONE, KNOWN)


def network(key: Array, within: Array | float, weight: Array | float) -> tuple[Problem, Graph]:
    """Two clusters, the edges between which have a weight of their own."""
    problem, graph = fl.problems.clustered_network(
        key,
        SIZES.value,
        MOST.value,
        dim=2,
        within=within,
        between=BETWEEN.value,
        noise_variance=NOISE.value,
        truth=jnp.asarray(TRUTH.value),
        form="dense",
    )
    cluster = np.repeat(np.arange(len(SIZES.value)), SIZES.value)
    member = jnp.asarray(cluster)
    return problem, graph.reweighted(lambda k, m: jnp.where(member[k] == member[m], 1.0, weight))


def first_of(problem: Problem, count: Array | int) -> Problem:
    """The problem of the clients' first samples."""
    used = (jnp.arange(problem.samples) < count).astype(problem.dtype)
    used = used / jnp.sum(used)
    return replace(problem, weights=jnp.broadcast_to(used[None], problem.weights.shape))


def within_cluster(
    key: Array, couplings: Array, probability: Array, weight: Array
) -> dict[str, Array]:
    """Squared deviations from the first cluster's mean model, and their bound (148)."""
    problem, graph = network(key, probability, weight)
    problem = first_of(problem, SAMPLES.value)
    assert problem.tasks is not None
    members = problem.tasks.cluster == 0
    about = quality(graph, members)

    def at(coupling: Array) -> tuple[Array, Array]:
        models = GTVMin(problem, graph, coupling).solution(1e-9).models
        inside = jnp.where(members[:, None], models, 0)
        mean = jnp.sum(inside, axis=0, keepdims=True) / jnp.sum(members.astype(inside.dtype))
        off = jnp.sum(jnp.where(members[:, None], (models - mean) ** 2, 0))
        truth = jnp.asarray(TRUTH.value[0], problem.dtype)
        bound = networks.cluster_deviation_bound(problem, graph, coupling, members, truth, models)
        return off, bound

    off, bound = jax.lax.map(at, couplings)
    quantities = {"connectivity": about.connectivity, "boundary": about.boundary}
    return {"off": off, "bound": bound} | quantities


def routes(key: Array, counts: Array) -> dict[str, Array]:
    """The errors of all routes to a model, and the quality of clusters, by samples of a client."""
    problem, graph = network(key, DENSE.value, SPARSE.value)
    assert problem.tasks is not None
    cluster = jnp.asarray(problem.tasks.cluster)
    truth = problem.tasks.truth[cluster]

    def at(count: Array) -> dict[str, Array]:
        part = first_of(problem, count)
        local = solutions.pooled(part, jnp.arange(graph.nodes))
        slopes = part.gradient(jnp.zeros_like(local))
        result = [kmeans(key, points, len(SIZES.value)).cluster for points in (local, slopes)]
        learned = fl.graphs.nearest_neighbors(train(part, ridge=RIDGE.value), NEAREST.value)
        models = [solutions.pooled(part, clustering) for clustering in result]
        for edges in (learned, graph):
            models += [GTVMin(part, edges, a).solution(1e-9).models for a in TRIED.value]
        models = jnp.stack([*models, local, solutions.pooled(part, cluster)])
        error = jnp.mean(jnp.sum((models - truth[None]) ** 2, axis=-1), axis=-1)
        rand = jnp.stack([adjusted_rand(clustering, cluster) for clustering in result])
        return {"error": error, "rand": rand}

    return jax.lax.map(at, counts)


def study(effort: Effort) -> Studies:
    keys, other_keys = solutions.seeds(effort)
    couplings = effort.thin(COUPLINGS.value, 6)
    ask = [(DENSE.value, weight) for weight in WEIGHTS.value]
    ask += [(probability, SPARSE.value) for probability in WITHIN.value]
    probabilities, weights = jnp.asarray(ask).T

    def one(key: Array) -> dict[str, Array]:
        of = functools.partial(within_cluster, key, jnp.asarray(couplings))
        return jax.lax.map(lambda pair: of(*pair), (probabilities, weights))

    result = solutions.solved(one, keys)
    cut = len(WEIGHTS.value)
    names = {
        "off": (("case", "coupling"), "within the cluster", True),
        "bound": (("case", "coupling"), "bound (148)", True),
        "connectivity": (("case",), "connectivity", False),
        "boundary": (("case",), "boundary", False),
    }
    parts = {}
    for name, rows, labels, label in (
        ("weight", slice(None, cut), WEIGHTS.value, "weight of an edge between"),
        ("within", slice(cut, None), WITHIN.value, "probability of an edge within"),
    ):
        part = {n: v[:, rows] for n, v in result.items()}
        axes = {"case": list(labels), "coupling": couplings}
        of_part = solutions.dataset(part, names, axes, {"coupling": r"coupling $\alpha$"})
        is_connected = (of_part["connectivity"] > 1e-9).all("case").values
        parts[name] = of_part.isel(seed=is_connected).rename(case=name)
        parts[name][name].attrs["long_name"] = label
    counts = list(FEW.value)
    of = functools.partial(routes, counts=jnp.asarray(counts))
    solved = solutions.solved(of, jnp.concatenate([keys, other_keys]))
    error = solved["error"].transpose(0, 2, 1)  # [S, way, samples]
    estimated, coupled, references = np.split(error, [2, 2 + 2 * len(TRIED.value)], axis=1)
    coupled = coupled.reshape(len(error), 2, len(TRIED.value), len(counts))
    chosen = coupled[effort.seeds :].mean(axis=0).argmin(axis=1)  # [graph, samples]
    best = np.take_along_axis(coupled, chosen[None, :, None], axis=2)[:, :, 0]
    ways = np.concatenate([estimated, best, references], axis=1)
    measured = {"error": ways, "rand": solved["rand"].transpose(0, 2, 1)}
    measured = {name: values[: effort.seeds] for name, values in measured.items()}
    names = {
        "error": (("route", "samples"), "error of a client", True),
        "rand": (("by", "samples"), "adjusted Rand index", False),
    }
    axes = {"route": [*ROUTES], "by": [PARAMETERS, GRADIENTS], "samples": counts}
    parts["routes"] = solutions.dataset(measured, names, axes, {"samples": "samples a client"})
    parts["routes"]["chosen"] = (("graph", "samples"), np.asarray(TRIED.value)[chosen])
    return parts


def plot(studies: Studies) -> Picture:
    titles = ("boundary", "connectivity", "error by route", "clusters found")
    drawing, (boundary, connectivity, error, rand) = picture.panels(titles, columns=2, height=2.4)
    for ax, name in ((boundary, "weight"), (connectivity, "within")):
        data = studies[name]
        plotting.trade_off(data, "coupling", "off", name, ax)
        for i, value in enumerate(data[name].values):
            level = statistics.decibels(data["bound"].sel({name: value}).mean("seed").values)
            color = plotting.LOOKS[i]["color"]
            text = "bound (148)" if i == 0 else "_"
            picture.predicted_curve(ax, data["coupling"].values, level, text, color=color)
        ticks = [0.1, 1, 10, 100, 1000, 1e4]
        ax.set_xticks(ticks, ["0.1", "1", "10", "100", "1e3", "1e4"])
        ax.set_ylabel("squared deviation [dB]")
    connectivity.sharey(boundary)
    plotting.trade_off(studies["routes"], "samples", "error", "route", error)
    plotting.trade_off(studies["routes"], "samples", "rand", "by", rand)
    return picture.finish(
        drawing, "Two clusters of clients; seeds of (a), (c) and (d), and of (b):"
    )


def bounded(studies: Studies) -> dict[str, Estimate]:
    """The largest deviation over its bound of all runs, by case."""
    result = {}
    for name in ("weight", "within"):
        ratio = (studies[name]["off"] / studies[name]["bound"]).max(["seed", "coupling"])
        for value in studies[name][name].values:
            level = float(ratio.sel({name: value}))
            result[f"{name} {value:g}"] = Estimate.exact(level, "")
    return result


def fall(studies: Studies, quantity: str) -> dict[str, Estimate]:
    """By how much less a quantity is at the largest coupling than a decade before, dB."""
    data = studies["weight"]
    at = data["coupling"].values
    before = at[int(np.abs(np.log(at / (at[-1] / 10))).argmin())]
    result = {}
    for weight in data["weight"].values:
        case = {"weight": weight}
        pair = [samples(data, case | {"coupling": a}, quantity) for a in (before, at[-1])]
        result[f"weight {weight:g}"] = gap(*pair)
    return result


def better(over: str, under: str, low: float = 0, high: float = INFINITE) -> Measure:
    """How far one route's error is above another's, by samples of a client: for means and for
    medians, because with few samples some runs dominate the mean.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["routes"]
        result = {}
        for count in data["samples"].values:
            if low <= count <= high:
                pair = [
                    samples(data, {"route": route, "samples": count}, "error")
                    for route in (over, under)
                ]
                result[f"{count} samples"] = gap(*pair)
                result[f"{count} samples, medians"] = of_median(
                    lambda a: statistics.decibels(a[:, 0] / a[:, 1]), np.stack(pair, axis=1)
                )
        return result

    return measure


def errors(studies: Studies) -> list[dict[str, Any]]:
    """Mean and median of every route."""
    data = studies["routes"]["error"]
    return [
        {
            "route": route,
            "samples": int(count),
            "mean error": float(data.sel(route=route, samples=count).mean()),
            "median error": float(data.sel(route=route, samples=count).median()),
        }
        for route in ROUTES
        for count in data["samples"].values
    ]


def rising(name: str, sign: int) -> Measure:
    """By how much more models deviate at the next value of an axis, of each coupling from one."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[name]
        result = {}
        values = data[name].values
        low = values[0 if sign > 0 else -1]
        high = values[-1 if sign > 0 else 0]
        for coupling in data["coupling"].values[data["coupling"].values >= 1]:
            case = {"coupling": coupling}
            pair = [samples(data, case | {name: value}, "off") for value in (high, low)]
            result[f"alpha = {coupling:.3g}: {high:g} above {low:g}"] = gap(*pair)
        return result

    return measure


def misled(studies: Studies) -> dict[str, Estimate]:
    """By how much clusters from local models are better than from gradients, by samples."""
    data = studies["routes"]
    return {
        f"{count} samples": estimate(
            lambda a, b: a - b,
            samples(data, {"by": PARAMETERS, "samples": count}, "rand"),
            samples(data, {"by": GRADIENTS, "samples": count}, "rand"),
            unit="",
        )
        for count in data["samples"].values
    }


FIGURE = Figure(
    name="jung-clusters",
    title="Clustered federated learning",
    source="Jung 2025, section 6.2",
    caption="Two clusters of eight clients, whose network and data are drawn with every seed. (a), "
    "(b) the squared distances of the first cluster's models from their mean against the coupling, "
    "by the weight of the edges that leave the cluster and by how dense it is within; thin lines: "
    "Proposition 6.1. (c) the squared distance from the true model by route: clusters found by "
    "k-means and pooled, or GTVMin with the coupling that is best on other seeds, on a graph that "
    "joins each client to those whose local models are nearest, or on the one that is dense in the "
    "clusters. (d) how well "
    "k-means finds the clusters.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "bound",
            "Proposition 6.1 bounds how far a cluster's models are from their mean",
            "Proposition 6.1",
            bounded,
            (0, 1 + 1e-6),
            "the largest ratio of all runs and couplings",
        ),
        Claim(
            "vanishes-without-boundary",
            "without a boundary the deviation vanishes with growing alpha, by the bound as 1/alpha",
            "section 6.2",
            lambda studies: {
                case: found for case, found in fall(studies, "off").items() if case == "weight 0"
            },
            (9.9, INFINITE),
            "10 dB or more over the last decade",
        ),
        Claim(
            "bound-stays",
            "with a boundary the bound does not vanish however large alpha is",
            "section 6.2, (148)",
            lambda studies: {
                case: found for case, found in fall(studies, "bound").items() if case != "weight 0"
            },
            (-1, 1),
            "within 1 dB over the last decade",
            note="Where the boundary is light the noise's part still falls in the last decade.",
        ),
        Claim(
            "deviation-stays",
            "and neither does the deviation, on a connected network",
            "section 6.2: (148) bounds it from above only",
            lambda studies: {
                case: found for case, found in fall(studies, "off").items() if case != "weight 0"
            },
            (-1, 1),
            "within 1 dB over the last decade",
            ours=True,
            note="The bound is not reached: on a connected network all models become one, those of "
            "the cluster among them, however heavy its boundary is.",
        ),
        Claim(
            "boundary-hurts",
            "models of a cluster are nearer each other the smaller its boundary",
            "section 6.2",
            rising("weight", 1),
            (0, INFINITE),
            "the heaviest boundary above none, from alpha = 1 on",
        ),
        Claim(
            "connectivity-helps",
            "and the better it is connected within",
            "section 6.2",
            rising("within", -1),
            (0, INFINITE),
            "the sparsest above the densest, from alpha = 1 on",
        ),
        Claim(
            "pooling-helps",
            "clusters pool data that are too few alone: GTVMin is better than learning alone",
            "section 6.2",
            lambda studies: {
                f"{route}, {case}": found
                for route in (LEARNED, GIVEN)
                for case, found in better(ALONE, route, high=10)(studies).items()
            },
            (0, INFINITE),
            "up to 10 samples a client, whether its graph knows the clusters or is learned",
        ),
        Claim(
            "gtv-with-few",
            "GTVMin needs no clusters to be found first: with few samples it is better than they",
            "section 6.2, which ranks no routes",
            better(PARAMETERS, LEARNED, high=3),
            (0, INFINITE),
            "2 and 3 samples a client; on a graph learned from the same samples",
            ours=True,
        ),
        Claim(
            "pool-with-many",
            "with many samples clusters are found, and pooling them is better",
            "section 6.2, which ranks no routes",
            better(LEARNED, PARAMETERS, low=20),
            (0, INFINITE),
            "20 samples a client",
            ours=True,
        ),
        Claim(
            "gradients-mislead",
            "gradients at 0 tell clusters less well than local models do",
            "section 6.2 has both; gradients see the features' moments, too",
            misled,
            (0, INFINITE),
            "adjusted Rand index, by samples",
            ours=True,
            note="With very few samples local models are noisy themselves: their error has no "
            "variance, and outliers become clusters.",
        ),
    ],
    settings=(
        *(SIZES, MOST, SAMPLES, NOISE, TRUTH, BETWEEN, WITHIN, DENSE, WEIGHTS, SPARSE),
        *(COUPLINGS, FEW, TRIED, NEAREST, RIDGE),
    ),
    table=errors,
)
