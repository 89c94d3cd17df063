"""Jung 2025: how far perturbations move models (section 8.2, Exercise 8.1)."""

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
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, gap, joined, last, samples, share
from fljax import plotting, statistics
from fljax.contrib import label_shift, label_shift_bound, robustness_ratio
from fljax.graphs import Graph
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems import Absolute, GTVMin, LeastSquares, Norm, Penalty, Problem, SquaredNorm
from fljax.theory import network_rates

NODES = Setting("nodes, mean degree", (20, 4), "random and connected; not given")
DATA = Setting("samples and parameters", (8, 3), "a strongly convex loss at every node")
COUPLINGS = Setting(
    "alpha", tuple(np.geomspace(1e-2, 1e2, 13).tolist()), "from nearly alone to nearly one model"
)
PERTURBED = Setting("random perturbations a network", 20, "of what nodes hear; the largest ratio")
LEAVES = Setting("neighbors of the star's center", 11, "of our instance of (175)")
POINT = Setting("parameters there", 3, "with which the mean of the instance comes out")
FAR = Setting("what the corrupted send, each parameter", 1e6, "of the instance")
CORRUPTED = Setting("corrupted neighbors", tuple(range(9)), "past half of them, 5.5")
BOUNDED = Setting("bounded", 100.0, "a ten-thousandth of what is sent; honest models are about 2")
LEVELS = Setting(
    "what is perturbed", (0.05, 0.1, 0.2, 0.4), "noise over the spread; the share of edges lost"
)
ALPHA = Setting("alpha of Exercise 8.1", 1.0, "not given; neighbors nearly agree")

PENALTIES: dict[str, Penalty] = {
    "squared norm: the mean": SquaredNorm(),
    "norm: the geometric median": Norm(),
    "absolute values: the median": Absolute(),
}
MEAN, GEOMETRIC, COORDINATES = PENALTIES
LABEL_NOISE, FEATURE_NOISE, LOST_EDGES = KINDS = ("labels", "features", "edges")
#: Norms of one draw, computed before: at 0, 3, 5 corrupted; the mean at 3, the median at 6.
INSTANCE = {0: 0.72, 3: 1.1, 5: 2.6}
MEAN_AT_3 = 4.7e5
MEDIAN_AT_6 = 1.7e6
SIZE = "size"


# --------------------------------------------------------------------------- ratios


def world(key: Array) -> tuple[Problem, Graph, Array]:
    k_graph, k_data, k_noise, k_truth = jax.random.split(key, 4)
    nodes, degree = NODES.value
    samples_, dim = DATA.value
    graph = fl.graphs.random_connected(k_graph, nodes, degree)
    features = jax.random.normal(k_data, (nodes, samples_, dim))
    truth = jax.random.normal(k_truth, (dim,))
    targets = features @ truth + jax.random.normal(k_noise, features.shape[:2])
    return Problem(features, targets, LeastSquares()), graph, truth


def ratios(key: Array, couplings: Array) -> dict[str, Array]:
    """The ratio (173) for random perturbations and for a node's worst direction, and (174)."""
    k_world, k_moves = jax.random.split(key)
    problem, graph, _ = world(k_world)
    zero = jnp.zeros((problem.clients, problem.dim))
    moves = jax.random.normal(k_moves, (PERTURBED.value, *zero.shape))
    # The directions with the least curvature.
    weakest = jnp.linalg.eigh(problem.second_moment())[1][:, :, 0]

    def at(coupling: Array) -> dict[str, Array]:
        simulation = fl.Simulation(problem, fl.algorithms.FedRelax(coupling), graph)
        ratio = functools.partial(robustness_ratio, simulation, zero)
        bound = network_rates.fedrelax_factors(problem, graph, coupling)
        # All models move along the weakest direction of one node after the other.
        along_weakest = jax.vmap(lambda v: ratio(jnp.broadcast_to(v, zero.shape)))(weakest)
        random = jax.vmap(ratio)(moves)
        return {
            "random": jnp.mean(random),
            "worst": jnp.mean(jnp.diagonal(along_weakest)),
            "bound": jnp.mean(bound),
            "over_bound": jnp.max(jnp.concatenate([random, along_weakest]) / bound[None]),
            "reached": jnp.min(jnp.diagonal(along_weakest) / bound),
        }

    return jax.lax.map(at, couplings)


def shifts(key: Array, levels: Array) -> dict[str, Array]:
    """Exercise 8.1: how far the solution moves with its labels, its features, its edges."""
    k_world, k_labels, k_features, k_edges = jax.random.split(key, 4)
    problem, graph, _ = world(k_world)
    coupled = functools.partial(GTVMin, coupling=ALPHA.value)
    before = coupled(problem, graph).solution().models
    change = jax.random.normal(k_labels, problem.targets.shape) * jnp.std(problem.targets)
    moved = jax.random.normal(k_features, problem.features.shape)
    order = jnp.triu(jax.random.uniform(k_edges, (graph.nodes,) * 2), 1)

    def at(level: Array) -> dict[str, Array]:
        labels = label_shift(problem, graph, ALPHA.value, level * change)
        other = Problem(problem.features + level * moved, problem.targets, LeastSquares())
        features = coupled(other, graph).solution().models - before
        lost = (order < level) & (order > 0)
        left = fl.graphs.pruned(graph, edges=lost | lost.T)
        edges = coupled(problem, left).solution().models - before
        size = [jnp.sum(shift**2) / jnp.sum(before**2) for shift in (labels, features, edges)]
        bound = label_shift_bound(problem, graph, ALPHA.value, level * change)
        again = coupled(
            Problem(problem.features, problem.targets + level * change, LeastSquares()), graph
        )
        return {
            "moved": jnp.stack(size),
            "of_bound": jnp.sum(labels**2) / bound.sharp,
            "exact": jnp.max(jnp.abs(again.solution().models - before - labels)),
        }

    return jax.lax.map(at, levels)


# --------------------------------------------------------------------------- runs


def _size(now: Snapshot) -> Array:
    return jnp.sqrt(jnp.sum(now.model[0] ** 2))


METRIC = Metric(SIZE, _size, "norm of the center's model")


def star(key: Array, corrupted: Array, penalty: Penalty) -> fl.Simulation:
    """A center without labels; leaves whose best models are standard normal points."""
    leaves = LEAVES.value
    dim = POINT.value
    points = jax.random.normal(key, (leaves + 1, dim))
    features = jnp.broadcast_to(jnp.sqrt(1.0 * dim) * jnp.eye(dim), (leaves + 1, dim, dim))
    problem = Problem(features, jnp.sqrt(1.0 * dim) * points, LeastSquares())
    attackers = jnp.arange(leaves + 1) > leaves - corrupted
    return fl.Simulation(
        problem=problem.weighing([0.0] + [1.0] * leaves),
        network=fl.graphs.star(leaves + 1),
        algorithm=fl.algorithms.FedRelax(1e-9, 400, penalty),  # leaves stay at their points
        attack=fl.attacks.ConstantMessage(attackers, FAR.value),
        metrics=[METRIC],
    )


RATIOS = {
    "random": (("coupling",), "random perturbation", False),
    "worst": (("coupling",), "worst direction", False),
    "bound": (("coupling",), "bound (174)", False),
    "over_bound": (("coupling",), "largest ratio over its bound", False),
    "reached": (("coupling",), "ratio of the worst direction over its bound", False),
}
SHIFTS = {
    "moved": (("level", "kind"), "squared shift over the squared solution", True),
    "of_bound": (("level",), "squared shift over Proposition 8.1", False),
    "exact": (("level",), "shift off the closed form", False),
}


def study(effort: Effort) -> Studies:
    keys, _ = solutions.seeds(effort)
    couplings = effort.thin(COUPLINGS.value, 5)
    result = solutions.solved(functools.partial(ratios, couplings=jnp.asarray(couplings)), keys)
    labels = {"coupling": r"coupling $\alpha$"}
    of_ratio = solutions.dataset(result, RATIOS, {"coupling": couplings}, labels)
    levels = [*LEVELS.value]
    result = solutions.solved(functools.partial(shifts, levels=jnp.asarray(levels)), keys)
    labels = {"level": "level of the perturbation"}
    of_shift = solutions.dataset(result, SHIFTS, {"level": levels, "kind": [*KINDS]}, labels)

    def run(name: str) -> xr.Dataset:
        def build(key: Array, corrupted: Array) -> fl.Simulation:
            return star(key, corrupted, PENALTIES[name])

        build.__qualname__ = f"star({name})"
        grid = {"corrupted": list(CORRUPTED.value)}
        return last(
            effort.sweep(name.split(":")[0], build, grid=grid, rounds=3, seeds=effort.seeds)
        )

    stars = joined(*map(run, PENALTIES), axis="penalty").assign_coords(penalty=[*PENALTIES])
    return {"ratios": of_ratio, "shifts": of_shift, "stars": stars[[SIZE]]}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("robustness ratio", "breakdown", "what moves a solution")
    drawing, (ratio, broken, moved) = picture.panels(titles, height=2.4)
    data = studies["ratios"]
    at = data["coupling"].values
    for index, name in enumerate(("random", "worst")):
        numbers = statistics.summary(data, name)
        look = picture.look(5 + index)
        ratio.plot(at, numbers["mean"], label=RATIOS[name][1], **look)
        ends = numbers["low"], numbers["high"]
        ratio.fill_between(at, *ends, color=look["color"], alpha=0.2, linewidth=0)
    picture.predicted_curve(ratio, at, data["bound"].mean("seed").values, "bound (174), mean")
    ratio.set(xscale="log", xlabel=r"coupling $\alpha$", ylabel="moved over heard (173)")
    stars = studies["stars"][SIZE]
    for look, penalty in zip(plotting.LOOKS, PENALTIES, strict=False):
        values = stars.sel(penalty=penalty).transpose("corrupted", "seed").values
        low, middle, high = np.quantile(values, [0.025, 0.5, 0.975], axis=1)
        broken.plot(stars["corrupted"], middle, label=penalty, **look)
        where = {"color": look["color"], "alpha": 0.2, "linewidth": 0}
        broken.fill_between(stars["corrupted"], low, high, **where)
    bounds = INSTANCE | {6: MEDIAN_AT_6}
    broken.plot([*bounds], [*bounds.values()], "kx", label="one draw, given")
    broken.set(
        yscale="log", xlabel=f"corrupted of {LEAVES.value} neighbors", ylabel="norm of the center"
    )
    plotting.trade_off(studies["shifts"], "level", "moved", "kind", moved)
    moved.set(ylabel="relative squared shift [dB]")
    moved.set_xticks(LEVELS.value, [f"{level:g}" for level in LEVELS.value])
    return picture.finish(
        drawing, "Robustness of updates and of solutions; (b) middle 95 % of draws"
    )


# --------------------------------------------------------------------------- claims


def extreme(name: str, reduce: str) -> Measure:
    def measure(studies: Studies) -> dict[str, Estimate]:
        result = getattr(studies["ratios"][name], reduce)("seed")
        return {
            f"alpha = {float(at):.3g}": Estimate.exact(float(result.sel(coupling=at)), "")
            for at in result["coupling"].values
        }

    return measure


def grows(studies: Studies) -> dict[str, Estimate]:
    data = studies["ratios"]
    at = data["coupling"].values
    values = data["random"].transpose("seed", "coupling").values
    return {
        f"alpha = {after:.3g} after {before:.3g}": estimate(
            lambda a, b: b - a, values[:, i], values[:, i + 1], unit=""
        )
        for i, (before, after) in enumerate(itertools.pairwise(at))
    }


def size(penalty: str, corrupted: int, studies: Studies) -> np.ndarray:
    where = {"penalty": penalty, "corrupted": corrupted}
    return samples(studies["stars"], where, SIZE)


def at_most(penalty: str, *corrupted: int) -> Measure:
    """The largest norm of all draws."""
    return lambda studies: {
        f"{count} corrupted": Estimate.exact(float(size(penalty, count, studies).max()), "")
        for count in corrupted
    }


def at_least(penalty: str, *corrupted: int) -> Measure:
    """The least norm of all draws."""
    return lambda studies: {
        f"{count} corrupted": Estimate.exact(float(size(penalty, count, studies).min()), "")
        for count in corrupted
    }


def rank(studies: Studies) -> dict[str, Estimate]:
    return {
        f"{count} corrupted, {bound:g}": share(size(GEOMETRIC, count, studies) < bound)
        for count, bound in INSTANCE.items()
    }


def taken_over(studies: Studies) -> dict[str, Estimate]:
    """Errors over the instance's."""
    return {
        "mean, 3 corrupted": estimate(lambda a: a / MEAN_AT_3, size(MEAN, 3, studies), unit=""),
        "median, 6 corrupted": estimate(
            lambda a: a / MEDIAN_AT_6, size(GEOMETRIC, 6, studies), unit=""
        ),
    }


def of_shifts(name: str) -> Measure:
    """The largest of all seeds."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = studies["shifts"][name].max("seed")
        return {
            f"level {float(at):g}": Estimate.exact(float(result.sel(level=at)), "")
            for at in result["level"].values
        }

    return measure


def further(kind: str) -> Measure:
    """The shift at a level above that at the one before, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["shifts"]["moved"].sel(kind=kind)
        return {
            f"level {after:g} after {before:g}": gap(
                data.sel(level=after).values, data.sel(level=before).values
            )
            for before, after in itertools.pairwise(LEVELS.value)
        }

    return measure


FIGURE = Figure(
    name="jung-robust",
    title="Robustness: what neighbors, labels, features and edges do to models",
    source="Jung 2025, sections 8.2.1 and 8.2.3, Exercise 8.1",
    caption="(a) how far FedRelax's update of a node moves for how far the mean of what it hears "
    "does, over random networks and data: for random perturbations, and for one along the "
    "direction in which the node's data say least, where the bound (174) is reached. (b) the norm "
    "of a star's center without labels, whose neighbors' models are standard normal points, of "
    "which some send a million in every parameter, by the penalty of its update (170). (c) "
    "Exercise 8.1: how far the solution of GTVMin moves with noise in its labels, noise in its "
    "features (over their spread), and with a share of its edges lost.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "bound-174",
            "the robustness ratio is 1/(1 + sigma/(2 alpha d)) at most",
            "(173), (174), section 8.2.3",
            extreme("over_bound", "max"),
            (0, 1 + 1e-9),
            "the largest ratio over its node's bound, of all networks and perturbations",
        ),
        Claim(
            "bound-reached",
            "and reached, in the direction in which a node's data say least",
            "(174)",
            extreme("reached", "min"),
            (1 - 1e-6, 1 + 1e-9),
            "the least ratio over its bound, of all nodes",
            construction="of quadratic losses it is an identity: it checks the simulator",
        ),
        Claim(
            "small-coupling",
            "a small alpha makes updates robust",
            "section 8.2.3",
            grows,
            (0, INFINITE),
            "the mean ratio at every alpha above that at the one before",
        ),
        Claim(
            "median-bounded",
            "the geometric median stays bounded while trustworthy neighbors are a majority",
            "(175), (176), section 8.2.3",
            at_most(GEOMETRIC, 0, 1, 2, 3, 4, 5),
            (0, BOUNDED.value),
            "the largest norm of all draws, of what is a million times as far",
        ),
        Claim(
            "median-breaks",
            "and no longer",
            "section 8.2.3",
            at_least(GEOMETRIC, 6, 7, 8),
            (1e6, INFINITE),
            "the least norm of all draws",
        ),
        Claim(
            "coordinates-bounded",
            "so does the median of each coordinate, which is the update with absolute values",
            "(170), (175), which has the norm only",
            at_most(COORDINATES, 0, 1, 2, 3, 4, 5),
            (0, BOUNDED.value),
            "the largest norm of all draws",
            ours=True,
        ),
        Claim(
            "mean-breaks",
            "the mean, of the squared norm, is carried off by one",
            "section 8.2.3",
            at_least(MEAN, 1, 2, 3),
            (1e5, INFINITE),
            "the least norm of all draws",
        ),
        Claim(
            "instance",
            "of 11 points the median's norm is .72, 1.1 and 2.6 with 0, 3 and 5 corrupted",
            "(175); one instance, computed before",
            rank,
            (2.5, 97.5),
            "per cent of the draws with less: within the middle 95 %",
            condition="one draw, of which the number of parameters follows from its mean",
            ours=True,
        ),
        Claim(
            "instance-broken",
            "and 1.7e6 with 6, where the mean is at 4.7e5 with 3",
            "(175); one instance, computed before",
            taken_over,
            (0.97, 1.03),
            "the mean norm over the given one, which has two digits",
            condition="one draw, of which the number of parameters follows from its mean",
            ours=True,
        ),
        Claim(
            "labels-exact",
            "a change of labels moves the solution by -Q^-1 n/2",
            "(163), section 8.2.1, with the factor -2/m of n",
            of_shifts("exact"),
            (0, 1e-9),
            "the largest distance of the difference of two solutions from it",
        ),
        Claim(
            "proposition-8.1",
            "the squared shift is within Proposition 8.1, with 1/m_i in it",
            "Proposition 8.1",
            of_shifts("of_bound"),
            (0, 1),
            "the largest share of the bound",
        ),
        Claim(
            "labels-linear",
            "the shift is proportional to the change of labels",
            "Exercise 8.1, (163)",
            further(LABEL_NOISE),
            (6.01, 6.03),
            "the squared shift of twice the level, dB",
            construction="solutions are linear in the labels",
        ),
        Claim(
            "features-more",
            "by noise in features it grows more than in proportion: its square shrinks models",
            "Exercise 8.1, which asks",
            further(FEATURE_NOISE),
            (6.02, 12.05),
            "the squared shift of twice the level, dB: between those of the level and its square",
            ours=True,
        ),
        Claim(
            "edges-further",
            "the more edges are lost, the further the solution moves",
            "Exercise 8.1, which asks",
            further(LOST_EDGES),
            (0, INFINITE),
            "the squared shift of twice the share of edges, dB",
            ours=True,
        ),
    ],
    settings=(
        *(NODES, DATA, COUPLINGS, PERTURBED, LEAVES, POINT, FAR, CORRUPTED, BOUNDED, LEVELS, ALPHA),
    ),
    table=lambda studies: [
        {
            "penalty": penalty,
            "corrupted": count,
            "median norm": float(np.median(size(penalty, count, studies))),
        }
        for penalty in PENALTIES
        for count in CORRUPTED.value
    ],
)
