"""Jung 2025: the effect of the coupling alpha on the solutions of GTVMin (section 3.3)."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import order
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, gap, samples, share
from fljax import plotting, statistics
from fljax.graphs import Graph
from fljax.problems import GTVMin, Norm, Problem, SquaredNorm
from fljax.problems.variation import Penalty

SIZES = Setting("clients of each cluster", (6, 6, 6), "three clusters of a size, few enough to see")
SAMPLES = Setting(
    "samples a client", 6, "few for two parameters; with fewer the local error has no variance"
)
NOISE = Setting("variance of the labels' noise", 1.0, "that of the signal: learning alone is poor")
TRUTH = Setting(
    "models of the clusters",
    tuple((math.cos(a), math.sin(a)) for a in (math.pi / 2, 7 * math.pi / 6, 11 * math.pi / 6)),
    "at equal distances on the unit circle: the error of one model for all is 1",
)
WITHIN = Setting("probability of an edge within a cluster", 0.8, "dense within ...")
BETWEEN = Setting(
    "probability of an edge between clusters",
    0.05,
    "... and sparse between, 5 a network; networks in pieces are left out",
)
COUPLINGS = Setting(
    "alpha", tuple(np.geomspace(1e-4, 1e3, 36).tolist()), "five a decade, from one end to the other"
)
EQUAL = Setting(
    "models are equal within", 1e-6, "solvers are exact to 1e-8; the squared norm leaves 1e-4"
)
NEAR = Setting("models are nearly equal within", 0.1, "a tenth of the distance of true models, 1.7")
ASIDE = Setting("beside the critical alpha", 0.02, "per one; it is computed to 1e-3 or better")
SEEDS = Setting("seeds of this figure", 50, "at most: solutions with the norm take their time")
NODES = Setting("Exercise 3.11: nodes, degree", (20, 4), "not given; random and connected")

#: Steps of Dinkelbach's method, and the least total variation of models that give a bound.
STEPS = 8
VARIES = 1e-3
SQUARED = "squared norm"
NORM = "norm"
PENALTIES: dict[str, Penalty] = {SQUARED: SquaredNorm(), NORM: Norm()}
DECADES = ("1e-4", "1e-2", "1", "100")
TOLERANCE = 1e-9
ITERATIONS = 50_000


# --------------------------------------------------------------------------- one network


def network(key: Array) -> fl.problems.ClusteredNetwork:
    return fl.problems.clustered_network(
        key,
        SIZES.value,
        SAMPLES.value,
        dim=2,
        within=WITHIN.value,
        between=BETWEEN.value,
        noise_variance=NOISE.value,
        truth=jnp.asarray(TRUTH.value),
    )


def groups(models: Array, within: float) -> Array:
    """The number of groups of models ``[..., K, D]`` that are nearer than ``within``."""
    squared_distance = jnp.sum((models[..., :, None, :] - models[..., None, :, :]) ** 2, axis=-1)
    joined = squared_distance <= within**2
    for _ in range(math.ceil(math.log2(models.shape[-2]))):
        joined = jnp.einsum("...kl,...lm->...km", joined.astype(int), joined.astype(int)) > 0
    return jnp.sum(1 / jnp.sum(joined, axis=-1), axis=-1)


def spreads(models: Array, cluster: Array) -> tuple[Array, Array]:
    """Mean-square deviations of models from their cluster's mean, and of the latter from the mean
    of all; their sum is that of models from the mean of all.
    """
    member = (cluster[:, None] == jnp.arange(len(SIZES.value), dtype=cluster.dtype)[None]).astype(
        models.dtype
    )
    means = jnp.einsum("kc,...kd->...cd", member / jnp.sum(member, axis=0)[None], models)
    center = jnp.einsum("kc,...cd->...kd", member, means)
    middle = jnp.mean(models, axis=-2, keepdims=True)
    inside = jnp.mean(jnp.sum((models - center) ** 2, axis=-1), axis=-1)
    return inside, jnp.mean(jnp.sum((center - middle) ** 2, axis=-1), axis=-1)


def critical_bound(coupled: GTVMin, constant: Array, models: Array) -> Array:
    r"""A lower bound of the least coupling at which the norm's solution is constant.

    One model a component is the solution if a flow within the capacities :math:`\alpha a_e`
    balances the clients' gradients :math:`g_k` there (the dual, (68)): the critical coupling is
    the least :math:`\max_e\|u_e\|/a_e` of all such flows. By duality it is the largest
    :math:`-\sum_kg_k^\top w_k/\mathrm{GTV}(w)` of all models, so that any give a bound.

    Args:
      coupled: with the norm.
      constant: ``[K, D]``, the model of each client's component.
      models: ``[K, D]``.
    """
    gradient = coupled.problem.gradient(constant)
    variation = coupled.variation(models)
    gain = -jnp.sum(gradient * (models - constant))
    return jnp.where(variation > VARIES, gain / jnp.where(variation > VARIES, variation, 1), 0.0)


def lasso(problem: Problem, graph: Graph, couplings: Array) -> tuple[Array, Array, Array]:
    """With the norm: the models at all couplings ``[A, K, D]``, the critical coupling, the models
    just below and just above it ``[2, K, D]``.

    Every solution bounds the critical coupling by :func:`critical_bound`; one at the bound brings
    it nearer (Dinkelbach's method).
    """
    constant = solutions.pooled(problem, graph.components())
    count = len(couplings)
    ask = [*([1.0] * STEPS), 1 - ASIDE.value, 1 + ASIDE.value]
    offsets = jnp.concatenate([couplings, jnp.zeros(len(ask))])
    factors = jnp.concatenate([jnp.zeros(count), jnp.asarray(ask)])

    def at(limit: Array, case: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        coupling, factor = case
        coupled = GTVMin(problem, graph, coupling + factor * limit, PENALTIES[NORM])
        models = coupled.solution(TOLERANCE, ITERATIONS).models
        bound = jnp.maximum(limit, critical_bound(coupled, constant, models))
        return bound, (models, bound)

    _, (models, bounds) = jax.lax.scan(at, jnp.zeros(()), (offsets, factors))
    return models[:count], bounds[count + STEPS - 1], models[-2:]


def measured(key: Array, couplings: Array) -> dict[str, Array]:
    """All quantities of one network, at all couplings."""
    problem, graph = network(key)
    assert problem.tasks is not None
    cluster = problem.tasks.cluster
    truth = problem.tasks.truth[problem.tasks.cluster]

    def error(models: Array) -> Array:
        return jnp.mean(jnp.sum((models - truth) ** 2, axis=-1), axis=-1)

    def squared(coupling: Array) -> Array:
        return GTVMin(problem, graph, coupling, PENALTIES[SQUARED]).solution(TOLERANCE).models

    component = graph.components()
    coupled, critical, sides = lasso(problem, graph, couplings)
    result = {
        "local": error(solutions.pooled(problem, jnp.arange(graph.nodes))),
        "single": error(solutions.pooled(problem, jnp.zeros(graph.nodes, int))),
        "oracle": error(solutions.pooled(problem, cluster)),
        "component_error": error(solutions.pooled(problem, component)),
        "components": jnp.sum(component == jnp.arange(graph.nodes, dtype=component.dtype)),
        "critical": critical,
        "beside": groups(sides, EQUAL.value),
    }
    models = {SQUARED: jax.lax.map(squared, couplings), NORM: coupled}
    of_penalty = []
    for model in models.values():
        inside, between = spreads(model, cluster)
        quantities = {"error": error(model), "inside": inside, "between": between, "path": model}
        quantities |= {"models": groups(model, EQUAL.value), "near": groups(model, NEAR.value)}
        of_penalty.append(quantities)
    return result | jax.tree.map(lambda *parts: jnp.stack(parts), *of_penalty)


def averaging(key: Array, couplings: Array) -> dict[str, Array]:
    """Exercise 3.11: the nodes' numbers, L_k(w) = (w - y_k)^2."""
    k_graph, k_numbers = jax.random.split(key)
    graph = fl.graphs.random_connected(k_graph, *NODES.value)
    numbers = jax.random.normal(k_numbers, (graph.nodes, 1))
    problem = Problem(jnp.ones((graph.nodes, 1, 1)), numbers, fl.problems.LeastSquares())
    middle = jnp.mean(numbers)

    def at(coupling: Array) -> tuple[Array, Array]:
        models = GTVMin(problem, graph, coupling).solution().models
        off = jnp.sum((models - middle) ** 2) / jnp.sum((numbers - middle) ** 2)
        return off, jnp.abs(jnp.mean(models) - middle)

    off, mean = jax.lax.map(at, couplings)
    bound = 1 / (1 + couplings * graph.algebraic_connectivity()) ** 2
    return {"off": off, "mean": mean, "off_bound": bound}


# --------------------------------------------------------------------------- study

OF_PENALTY = {
    "error": (("penalty", "coupling"), "error of a client", True),
    "inside": (("penalty", "coupling"), "within clusters", True),
    "between": (("penalty", "coupling"), "between clusters", True),
    "models": (("penalty", "coupling"), "different models", False),
    "near": (("penalty", "coupling"), "models, nearly equal ones as one", False),
}
OF_NETWORK = {
    "local": ((), "error of learning alone", True),
    "single": ((), "error of one model", True),
    "oracle": ((), "error of a model a cluster", True),
    "component_error": ((), "error of a model a component", True),
    "components": ((), "components", False),
    "critical": ((), "critical coupling", False),
    "beside": (("side",), "different models beside it", False),
}
PATH = {"path": (("penalty", "coupling", "client", "parameter"), "models", False)}
AVERAGING = {
    "off": (("coupling",), "squared distance from the mean over that of the numbers", True),
    "mean": (("coupling",), "mean of the models off that of the numbers", False),
    "off_bound": (("coupling",), "bound", True),
}
LABELS = {"coupling": r"coupling $\alpha$"}


def study(effort: Effort) -> Studies:
    few = dataclasses.replace(effort, seeds=min(effort.seeds, SEEDS.value))
    keys, other_keys = solutions.seeds(few)
    couplings = effort.thin(COUPLINGS.value, 8)
    axes = {"penalty": [*PENALTIES], "coupling": couplings, "side": ["below", "above"]}
    of = functools.partial(measured, couplings=jnp.asarray(couplings))
    solved = solutions.solved(of, jnp.concatenate([keys, other_keys]))
    result, tuned = (
        {n: connected(v, solved, p) for n, v in solved.items()} for p in parts_of(few.seeds)
    )
    of = functools.partial(averaging, couplings=jnp.asarray(couplings))
    numbers = solutions.solved(of, keys)
    first = {"path": result["path"][:1]}
    return {
        "all": solutions.dataset(result, OF_PENALTY | OF_NETWORK, axes, LABELS),
        "tuned": solutions.dataset(tuned, {"error": OF_PENALTY["error"]}, axes, LABELS),
        "path": solutions.dataset(first, PATH, axes, LABELS),
        "average": solutions.dataset(numbers, AVERAGING, axes, LABELS),
    }


def connected(values: np.ndarray, solved: dict[str, np.ndarray], part: slice) -> np.ndarray:
    """Values of the seeds in ``part`` whose network is connected, as the source assumes."""
    return values[part][solved["components"][part] == 1]


def parts_of(seeds: int) -> tuple[slice, slice]:
    return slice(None, seeds), slice(seeds, None)


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    data = studies["all"]
    titles = (
        "error",
        "spread of the models",
        "sets of models",
        "all equal, norm",
        "paths, squared norm",
        "paths, norm",
    )
    drawing, axes = picture.panels(titles, height=2.3)
    error, spread, sets, equal, *traced = axes
    plotting.trade_off(data, "coupling", "error", "penalty", error)
    for name, text in (
        ("local", "alone"),
        ("single", "one model"),
        ("oracle", "a model a cluster"),
    ):
        level = float(statistics.decibels(float(data[name].mean())))
        look = {"local": (0, (1, 1.5)), "single": (0, (4, 1.5)), "oracle": (0, (6, 1, 1, 1))}[name]
        picture.theory(error, level, text, linestyle=look)
    parts = xr.concat([data["inside"], data["between"]], "part", combine_attrs="override")
    for index, penalty in enumerate(PENALTIES):
        color = picture.look(index)["color"]
        for part, line in enumerate((("-", (0, (1, 1))), ("--", "-."))[index]):
            curve = parts.sel(penalty=penalty).isel(part=part).transpose("seed", "coupling").values
            text = f"{('within', 'between')[part]}, {penalty}"
            _band(spread, data, statistics.decibels, curve, text, color, line)
    error.set_xticks([float(tick) for tick in DECADES], DECADES)
    spread.set(ylabel="mean-square deviation [dB]", ylim=(-62, 5))
    spread.set(xscale="log", xlabel=r"coupling $\alpha$")
    for metric, penalty, text, line in (
        ("models", SQUARED, "squared norm", "-"),
        ("near", SQUARED, f"the same, within {NEAR.value:g}", (0, (1, 1))),
        ("models", NORM, "norm", "--"),
    ):
        curve = data[metric].sel(penalty=penalty).transpose("seed", "coupling").values
        color = picture.look([*PENALTIES].index(penalty))["color"]
        _band(sets, data, np.asarray, curve, text, color, line)
    sets.set(ylabel="different models", xscale="log", xlabel=r"coupling $\alpha$")
    done = constant(data).transpose("seed", "coupling").values
    _band(equal, data, np.asarray, 100.0 * done, "solved", **picture.look(1))
    limits = np.sort(data["critical"].values)
    part = 100 * np.arange(1, len(limits) + 1) / len(limits)
    picture.predicted_curve(
        equal, limits, part, r"critical $\alpha$, computed", drawstyle="steps-post"
    )
    equal.set(
        ylabel="of the networks [%]", ylim=(-3, 103), xscale="log", xlabel=r"coupling $\alpha$"
    )
    for ax, penalty in zip(traced, PENALTIES, strict=True):
        _draw_path(ax, studies["path"]["path"].sel(penalty=penalty, seed=0).values)
    return picture.finish(drawing, "GTVMin on networks of three clusters; (e), (f) of one of them")


def _band(
    ax: Axes,
    data: xr.Dataset,
    scale: Callable[[np.ndarray], np.ndarray],
    curve: np.ndarray,
    text: str,
    color: str,
    linestyle: object,
) -> None:
    """The mean over seeds with its band."""
    band = xr.Dataset(
        {"y": (("seed", "coupling"), curve, {"decibel": int(scale is not np.asarray)})}
    )
    numbers = statistics.summary(band, "y")
    at = data["coupling"].values
    middle, low, high = (scale(numbers[part].values) for part in ("mean", "low", "high"))
    ax.plot(at, middle, color=color, linestyle=linestyle, label=text)
    ax.fill_between(at, low, high, color=color, alpha=0.2, linewidth=0)


def _draw_path(ax: Axes, path: np.ndarray) -> None:
    cluster = np.repeat(np.arange(len(SIZES.value)), SIZES.value)
    for client, of in enumerate(cluster):
        first = "a client" if client == 0 else "_"
        look = picture.look(2 + int(of))
        ax.plot(*path[:, client].T, linewidth=0.7, label=first, **look)
        ax.plot(*path[0, client], "o", color=look["color"], markersize=2)
    truth = np.asarray(TRUTH.value)
    ax.plot(*truth.T, "k*", markersize=7, label="true models")
    ax.plot(*path[-1].T, "ks", markersize=3, label=r"largest $\alpha$")
    ax.set(xlabel="first parameter", ylabel="second parameter")


# --------------------------------------------------------------------------- claims


def constant(data: xr.Dataset) -> xr.DataArray:
    """Whether the norm's models are one a component, by seed and coupling."""
    return data["models"].sel(penalty=NORM) < data["components"] + 0.5


def at_the_ends(position: int, level: str) -> Measure:
    """The error at an end of the couplings above a level, by penalty."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["all"]
        end = data.isel(coupling=position)
        return {
            f"{penalty}, alpha = {float(end['coupling']):g}": gap(
                samples(end[["error"]], {"penalty": penalty}, "error"), data[level].values
            )
            for penalty in PENALTIES
        }

    return measure


def best(studies: Studies, penalty: str) -> float:
    """The coupling of the least error on the tuning seeds."""
    mean = studies["tuned"]["error"].sel(penalty=penalty).mean("seed")
    return float(mean["coupling"][int(np.argmin(mean.values))])


def between_ends(studies: Studies) -> dict[str, Estimate]:
    """How far both ends are above the coupling that was best on other seeds."""
    data = studies["all"]
    result = {}
    for penalty in PENALTIES:
        chosen = {"penalty": penalty, "coupling": best(studies, penalty)}
        under = samples(data, chosen, "error")
        for name, text in (("local", "learning alone"), ("single", "one model")):
            label = f"{penalty}: {text} above alpha = {chosen['coupling']:.3g}"
            result[label] = gap(data[name].values, under)
    return result


def fewer(metric: str, penalty: str) -> Measure:
    """How many sets less there are at every coupling than at the one before."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["all"]
        count = {
            float(at): samples(data, {"penalty": penalty, "coupling": at}, metric)
            for at in data["coupling"].values
        }
        return {
            f"alpha = {after:.3g} after {before:.3g}": estimate(
                lambda a, b: a - b, count[before], count[after], unit=""
            )
            for before, after in itertools.pairwise(count)
        }

    return measure


def from_end_to_end(studies: Studies) -> dict[str, Estimate]:
    """How many sets less there are at the largest coupling than at the least."""
    ends = studies["all"].isel(coupling=[0, -1])
    low, high = ends["coupling"].values
    result = {}
    for penalty, metric in ((NORM, "models"), (SQUARED, "near")):
        pair = [samples(ends, {"penalty": penalty, "coupling": at}, metric) for at in (low, high)]
        result[penalty] = estimate(lambda a, b: a - b, *pair, unit="")
    return result


def beside_critical(studies: Studies) -> dict[str, Estimate]:
    """In how many networks all models of a component are equal just beyond, and not just before."""
    data = studies["all"]
    equal = data["beside"] < data["components"] + 0.5
    aside = f"{100 * ASIDE.value:g} %"
    return {
        f"not yet, {aside} below": share(~equal.sel(side="below").values),
        f"equal, {aside} above": share(equal.sel(side="above").values),
    }


def never_equal(studies: Studies) -> dict[str, Estimate]:
    """Different models with the squared norm at the largest coupling."""
    end = studies["all"].isel(coupling=-1)
    count = samples(end[["models"]], {"penalty": SQUARED}, "models")
    return {"different models": estimate(lambda a: a, count, unit="")}


def decay(studies: Studies) -> dict[str, Estimate]:
    """The power of alpha with which the squared norm's spread within clusters falls at the end."""
    data = studies["all"].sel(penalty=SQUARED)
    at = data["coupling"].values
    last = at >= at[-1] / 10 * (1 - 1e-6)
    x = np.log(at[last]) - np.log(at[last]).mean()

    def slope(means: np.ndarray) -> np.ndarray:
        return np.log(means[..., last]) @ x / (x @ x)

    inside = data["inside"].transpose("seed", "coupling").values
    return {"slope of the logarithms": estimate(slope, inside, unit="")}


def averaged(studies: Studies) -> dict[str, Estimate]:
    """Exercise 3.11: the largest distance from the mean of all runs over its bound."""
    data = studies["average"]
    ratio = (data["off"] / data["off_bound"]).max("seed")
    return {
        f"alpha = {float(at):.3g}": Estimate.exact(float(ratio.sel(coupling=at)), "")
        for at in data["coupling"].values
    }


def nears_the_mean(studies: Studies) -> dict[str, Estimate]:
    data = studies["average"].isel(coupling=-1)
    off = data["off"].values
    return {
        f"alpha = {float(data['coupling']):g}": estimate(statistics.decibels, off),
    }


FIGURE = Figure(
    name="jung-alpha",
    title="From learning alone to one model: the coupling of GTVMin",
    source="Jung 2025, section 3.3",
    caption="Clients of three clusters, whose true models are at equal distances, and a random "
    "graph, dense within clusters and sparse between them; network and data are drawn anew with "
    "every seed. (a) the squared distance from the true model. (b) mean-square deviation of "
    "models from the mean of their cluster, and of these means from the mean of all; with the norm "
    "the former is zero where the line ends. (c) how many different models there are: with the "
    "norm they are exactly equal. (d) in how many networks all models of a component are: the thin "
    "line is the distribution of the critical coupling, computed from the dual without solving "
    "GTVMin. (e), (f) the models of one network, from learning alone (dots) to the largest "
    "coupling.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "alone-without-coupling",
            "without coupling GTVMin decomposes into learning alone",
            "section 3.3",
            at_the_ends(0, "local"),
            (-0.1, 0.1),
            "at the least coupling, within 0.1 dB of the error of learning alone",
        ),
        Claim(
            "one-model-beyond",
            "beyond a critical value the models are nearly constant over the (connected) network",
            "section 3.3",
            at_the_ends(-1, "component_error"),
            (-0.1, 0.1),
            "at the largest coupling, within 0.1 dB of the error of one model a component",
        ),
        Claim(
            "best-between",
            "the coupling trades the two for each other: the best is in between",
            "section 3.3",
            between_ends,
            (0.1, INFINITE),
            "both ends a tenth of a dB or more above the coupling that is best on the tuning seeds",
            condition="clusters of which each has a model of its own",
        ),
        Claim(
            "constant-on-larger-sets",
            "growing alpha makes models constant over increasingly large sets: of exactly equal "
            "ones with the norm",
            "section 3.3",
            fewer("models", NORM),
            (0, INFINITE),
            "as many different models or fewer at every coupling than at the one before",
        ),
        Claim(
            "nearly-constant-on-larger-sets",
            "the same of nearly equal ones with the squared norm",
            "section 3.3",
            fewer("near", SQUARED),
            (0, INFINITE),
            f"models are one that a chain of distances below {NEAR.value:g} joins; as many sets or "
            "fewer at every coupling than at the one before",
            note="Not in every step: models on their way to their clusters pass near each other, "
            "and what was near by chance parts again.",
        ),
        Claim(
            "sets-grow",
            "and the sets grow by much",
            "section 3.3",
            from_end_to_end,
            (sum(SIZES.value) / 2, INFINITE),
            "from the least coupling to the largest there are fewer sets by more than half of the "
            "clients; with the squared norm of nearly equal models",
        ),
        Claim(
            "critical-as-computed",
            "the critical alpha depends on losses and edges alone: it is the least at which a flow "
            "between the clients fits the edges",
            "(68), (71), sections 3.3 and 3.5",
            beside_critical,
            (99.9, 100.1),
            f"exactly equal models {100 * ASIDE.value:g} % beyond it, not yet so before, always",
            condition="the norm as penalty",
            ours=True,
        ),
        Claim(
            "squared-never-equal",
            "with the squared norm models are only nearly constant",
            "section 3.3",
            never_equal,
            (sum(SIZES.value) - 0.01, INFINITE),
            "all clients' models differ at the largest coupling",
        ),
        Claim(
            "squared-decay",
            "their spread falls as the square of alpha in the end",
            "Proposition 3.1: (63) bounds it by the first power",
            decay,
            *order(-2).when(
                "over the last decade, where alpha times the connectivity of all networks is far "
                "above the eigenvalues of the data"
            ),
            ours=True,
        ),
        Claim(
            "average",
            "Exercise 3.11: with L_i(w) = (w - y_i)^2 the solution nears the numbers' mean",
            "Exercise 3.11",
            nears_the_mean,
            (-INFINITE, -40),
            "squared distance over that of the numbers at the largest coupling, dB",
            ours=True,
        ),
        Claim(
            "average-bound",
            "its squared distance is that of the numbers times 1/(1 + alpha lambda_2)^2 at most",
            "Exercise 3.11, from (I + alpha L)^-1",
            averaged,
            (0, 1 + 1e-6),
            "the largest ratio of all runs",
            construction="an identity of eigenvalues: it checks the solver",
        ),
    ],
    settings=(
        *(SIZES, SAMPLES, NOISE, TRUTH, WITHIN, BETWEEN, COUPLINGS),
        *(EQUAL, NEAR, ASIDE, SEEDS, NODES),
    ),
    table=lambda studies: [
        {
            "penalty": penalty,
            "coupling": float(at),
            "error": float(studies["tuned"]["error"].sel(penalty=penalty, coupling=at).mean()),
            "chosen": float(at) == best(studies, penalty),
        }
        for penalty in PENALTIES
        for at in studies["tuned"]["coupling"].values
    ],
)
