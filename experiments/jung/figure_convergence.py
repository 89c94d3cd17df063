"""Jung 2025: how fast FedGD and FedRelax get to GTVMin's solution (sections 5.1, 5.4, 5.9)."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import Meaning
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, joined, samples
from fljax import plotting, statistics
from fljax.algorithms import FedGD, FedRelax
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.theory import network_rates, networks

NODES = Setting("nodes, mean degree", (20, 4), "random and connected, drawn with every seed")
DATA = Setting("samples a client, parameters", (5, 2), "few; what a client knows alone is poor")
COUPLINGS = Setting("alpha", (0.01, 0.1, 1.0, 10.0), "a decade each, around the losses' curvature")
ROUNDS = Setting("(a) rounds", 2000, "the slowest errors fall by 20 dB or more")
EVERY = Setting("(a) recorded", 10, "far below the slowest rate")
FEW = Setting("(b) rounds", 400, "likewise; each is recorded")
PARTS = Setting("(c) alpha", tuple(np.geomspace(1e-3, 1e3, 13).tolist()), "two a decade")
RATE = Setting("Exercise 5.1: learning rate", 0.5e-3, "Exercise 5.1", given=True)
CURVED = Setting("Exercise 5.1: curvatures", ((1, 1000), (1000, 1000)), "Exercise 5.1", given=True)
MINIMA = Setting("Exercise 5.1: minima", ((-5, -5), (-5, 5)), "Exercise 5.1", given=True)
TWO = Setting(
    "Exercise 5.1: alpha",
    (0.0, 1.0, 10.0, 100.0, 200.0, 300.0, 400.0, 499.0, 550.0, 600.0, 700.0),
    "not given; up to where both diverge",
)
TWO_ROUNDS = Setting("Exercise 5.1: rounds", 600, "the slowest error falls by 5 dB")
FIFTY = Setting("Exercise 5.2: nodes, others chosen", (50, 4), "n is not given; Exercise 5.2")
CHOSEN = Setting("Exercise 5.2: alpha", (0.01, 0.1, 1.0, 10.0, 100.0), "not given; spread widely")
LONG = Setting("Exercise 5.2: rounds", 15_000, "what the largest alpha needs, with some room")
REACHED = Setting("Exercise 5.2: accuracy", 1e-6, "of the error's norm over that of the start")
MOST = Setting("seeds", 40, "at most: rates hardly differ")

ERROR = "mean_square_deviation"
#: Squared errors below this part of the first are rounding.
ROUNDING = 1e-22
#: Errors are compared one by one down to this part of the first: the solution is rounded, too.
CLEAR = 1e-8
SAFE = "1/(2 largest)"
BEST = "best for all starts"
LABEL = {SAFE: "safe", BEST: "best"}
FIRST = "collection 1"
SECOND = "collection 2"


# --------------------------------------------------------------------------- scenarios


def instance(key: Array) -> tuple[Problem, Graph]:
    k_graph, k_data = jax.random.split(key)
    samples_, dim = DATA.value
    problem = fl.problems.least_squares(k_data, NODES.value[0], samples_, dim)
    return problem, fl.graphs.random_connected(k_graph, *NODES.value)


INSTANCE = jax.jit(instance)


def descent(key: Array, coupling: Array) -> fl.Simulation:
    problem, graph = instance(key)
    return fl.Simulation(problem, FedGD(coupling), graph, metrics=[ERROR])


def relaxation(key: Array, coupling: Array) -> fl.Simulation:
    problem, graph = instance(key)
    return fl.Simulation(problem, FedRelax(coupling), graph, metrics=[ERROR])


def numbers(curvatures: Any, minima: Any) -> Problem:
    """The problem with losses ``c_k (w - m_k)^2``."""
    root = jnp.sqrt(jnp.asarray(curvatures, float))
    targets = (root * jnp.asarray(minima, float))[:, None]
    return Problem(root[:, None, None], targets, fl.problems.LeastSquares())


def two_losses(collection: int) -> Problem:
    return numbers(np.asarray(CURVED.value[collection]), np.asarray(MINIMA.value[collection]))


def exercise_one(collection: int) -> Callable[..., fl.Simulation]:
    """Two nodes; starts are drawn, so that no direction is left out."""

    def build(key: Array, coupling: Array) -> fl.Simulation:
        problem = numbers(
            np.asarray(CURVED.value[collection]), np.asarray(MINIMA.value[collection])
        )
        problem = problem.starting_at(10 * jax.random.normal(key, (2, 1)))
        algorithm = FedGD(coupling, RATE.value)
        return fl.Simulation(problem, algorithm, fl.graphs.path(2), metrics=[ERROR])

    build.__qualname__ = f"exercise_one({collection})"
    return build


def of_means(key: Array) -> tuple[Problem, Graph]:
    """Exercise 5.2: one number a node, neighbors chosen by each; starts at these numbers."""
    nodes, other_nodes = FIFTY.value
    k_graph, k_numbers = jax.random.split(key)
    draw = jax.random.uniform(k_graph, (nodes, nodes)) + jnp.eye(nodes)
    chosen = draw <= jnp.sort(draw, axis=1)[:, other_nodes - 1 : other_nodes]
    graph = fl.graphs.from_adjacency((chosen | chosen.T).astype(float))
    values = jax.random.normal(k_numbers, (nodes,))
    return numbers(jnp.ones(nodes), values).starting_at(values[:, None]), graph


OF_MEANS = jax.jit(of_means)


def exercise_two(rule: str) -> Callable[..., fl.Simulation]:
    def build(key: Array, coupling: Array) -> fl.Simulation:
        problem, graph = of_means(key)
        largest = 1 + coupling * jnp.linalg.eigvalsh(graph.laplacian_matrix())[-1]
        step = 1 / (2 * largest) if rule == SAFE else 1 / (1 + largest)
        return fl.Simulation(problem, FedGD(coupling, step), graph, metrics=[ERROR])

    build.__qualname__ = f"exercise_two({rule!r})"
    return build


# --------------------------------------------------------------------------- theory


def halves(problem: Problem, graph: Graph, coupling: Array) -> Array:
    """The matrix of (103), dense."""
    nodes = problem.clients
    dim = problem.dim
    blocks = jnp.einsum("kl,kpq->kplq", jnp.eye(nodes), problem.second_moment())
    coupled = jnp.einsum("kl,pq->kplq", graph.laplacian_matrix(), jnp.eye(dim))
    return (blocks + coupling * coupled).reshape(nodes * dim, nodes * dim)


def spectrum(key: Array, couplings: Array) -> dict[str, Array]:
    """The extreme eigenvalues and the propositions' bounds over them."""
    problem, graph = instance(key)

    def at(coupling: Array) -> dict[str, Array]:
        values = jnp.linalg.eigvalsh(halves(problem, graph, coupling))
        above = network_rates.largest_bound(problem, graph, coupling)
        return {
            "spectral": values[-1] / above.spectral,
            "degree": values[-1] / above.degree,
            "smallest": network_rates.smallest_bound(problem, graph, coupling) / values[0],
        }

    return jax.vmap(at)(couplings)


def predicted(key: Array) -> dict[str, np.ndarray]:
    """The factors of FedGD's default step and of FedRelax by their spectra, by coupling."""
    problem, graph = INSTANCE(key)
    result = {"descent": [], "relaxation": []}
    for coupling in COUPLINGS.value:
        ends = network_rates.extremes(problem, graph, coupling)
        hessian = 2 * float(networks.curvature(problem).largest)
        step = 1 / (hessian + 4 * coupling * float(jnp.max(graph.degree)))
        result["descent"].append(float(ends.factor(step)))
        result["relaxation"].append(network_rates.fedrelax_rate(problem, graph, coupling))
    return {name: np.asarray(values) for name, values in result.items()}


def two_nodes(collection: int, couplings: np.ndarray) -> np.ndarray:
    """The factor of Exercise 5.1 by its spectrum."""
    problem = two_losses(collection)
    result = [
        network_rates.extremes(problem, fl.graphs.path(2), float(coupling)).factor(RATE.value)
        for coupling in couplings
    ]
    return np.asarray(result)


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, MOST.value)
    grid = {"coupling": list(COUPLINGS.value)}
    ask = {"rounds": ROUNDS.value, "seeds": seeds, "grid": grid, "record_every": EVERY.value}
    each_round = ask | {"rounds": FEW.value, "record_every": 1}
    runs = {
        "descent": effort.sweep("descent", descent, **ask),
        "relaxation": effort.sweep("relaxation", relaxation, **each_round),
    }
    keys = solutions.scenario_keys(seeds)
    of = [predicted(key) for key in keys]
    for name, run in runs.items():
        run["factor"] = (("seed", "coupling"), np.stack([first[name] for first in of]))
    parts = list(PARTS.value)
    bounds = solutions.solved(lambda key: spectrum(key, jnp.asarray(parts)), keys)
    names = {
        "spectral": (("coupling",), "largest eigenvalue over its bound", False),
        "degree": (("coupling",), "largest eigenvalue over U", False),
        "smallest": (("coupling",), "bound over the smallest eigenvalue", False),
    }
    ask = {"rounds": TWO_ROUNDS.value, "seeds": seeds, "grid": {"coupling": list(TWO.value)}}
    first = joined(
        *(effort.sweep(f"one-{i}", exercise_one(i), **ask) for i in range(2)), axis="collection"
    ).assign_coords(collection=[FIRST, SECOND])
    ask = {"rounds": LONG.value, "seeds": seeds, "grid": {"coupling": list(CHOSEN.value)}}
    rules = {
        rule: effort.sweep(f"two-{LABEL[rule]}", exercise_two(rule), **ask) for rule in (SAFE, BEST)
    }
    two = joined(*map(add_rounds, rules.values()), axis="step").assign_coords(step=[*rules])
    return runs | {
        "bounds": solutions.dataset(bounds, names, {"coupling": parts}),
        "one": factors(first),
        "two": two,
    }


def ratios(errors: np.ndarray) -> np.ndarray:
    """The factor a recorded round of the error's norm in the end, ``[..., rounds]`` to ``[...]``.

    From the middle to the last of the rounds whose errors are not rounding; zero where the first
    is.
    """
    flat = errors.reshape(-1, errors.shape[-1])
    result = np.zeros(len(flat))
    for row, error in enumerate(flat):
        resolved = np.isfinite(error) & (error > ROUNDING * error[0]) & (error > 1e-26)
        last = len(error) - 1 if resolved.all() else int(np.argmin(resolved)) - 1
        if last > 0:
            first = last // 2
            result[row] = (error[last] / error[first]) ** (0.5 / (last - first))
    return result.reshape(errors.shape[:-1])


def factors(data: xr.Dataset) -> xr.Dataset:
    """The measured factors of every run."""
    errors = data[ERROR].transpose("seed", "collection", "coupling", "round").values
    result = data[[ERROR]].drop_dims("round")
    label = {"long_name": "factor a round", "units": "1", "decibel": 0}
    result["factor"] = (("seed", "collection", "coupling"), ratios(errors), label)
    return result


def add_rounds(data: xr.Dataset) -> xr.Dataset:
    """Add the rounds until the error's norm is a millionth of the start's."""
    errors = data[ERROR].transpose("seed", "coupling", "round").values
    starts = np.stack([start_error(key) for key in solutions.scenario_keys(data.sizes["seed"])])
    done = errors <= REACHED.value**2 * starts[..., None]
    count = np.where(done.any(axis=-1), 1 + np.argmax(done, axis=-1), np.inf)
    result = data[[ERROR]].drop_dims("round")
    label = {"long_name": "rounds to 1e-6", "units": "1", "decibel": 0}
    result["rounds"] = (("seed", "coupling"), count, label)
    return result


def start_error(key: Array) -> np.ndarray:
    """The mean squared error of Exercise 5.2's start, by coupling."""
    problem, graph = OF_MEANS(key)
    values = np.asarray(problem.initial, float)[:, 0]
    laplacian = np.asarray(graph.laplacian_matrix(), float)
    eye = np.eye(len(values))
    off = [values - np.linalg.solve(eye + a * laplacian, values) for a in CHOSEN.value]
    return np.mean(np.square(off), axis=1)


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("FedGD", "FedRelax", "Propositions 5.1 and 5.2", "Exercise 5.1", "Exercise 5.2")
    drawing, (descent_, relaxation_, bounds, top, low) = picture.panels(titles, height=2.3)
    for ax, name in ((descent_, "descent"), (relaxation_, "relaxation")):
        _draw_runs(ax, studies[name])
    floor = min(ax.get_ylim()[0] for ax in (descent_, relaxation_))
    for ax in (descent_, relaxation_):
        ax.set_ylim(max(floor, -150), 15)
    data = studies["bounds"]
    ratios_of = {
        "spectral": "largest over (106), first",
        "degree": "largest over U",
        "smallest": "(107) over smallest",
    }
    for index, (name, text) in enumerate(ratios_of.items()):
        _band(bounds, data, "coupling", name, text, index)
    bounds.set(xscale="log", yscale="log", xlabel=r"coupling $\alpha$", ylabel="ratio")
    fine = np.linspace(0, TWO.value[-1], 201)
    for i, collection in enumerate((FIRST, SECOND)):
        mean = studies["one"]["factor"].sel(collection=collection).mean("seed")
        look = {key: plotting.LOOKS[i][key] for key in ("color", "marker")}
        top.plot(mean["coupling"], mean, label=collection, linestyle="", **look)
        text = "spectrum" if i == 0 else "_"
        picture.predicted_curve(top, fine, two_nodes(i, fine), text)
    top.axhline(1, color="#999999", linewidth=0.6)
    top.set(xlabel=r"coupling $\alpha$", ylabel="factor a round")
    for index, rule in enumerate((SAFE, BEST)):
        _band(low, studies["two"].sel(step=rule), "coupling", "rounds", rule, index)
    low.set(xscale="log", yscale="log", xlabel=r"coupling $\alpha$", ylabel="rounds to 1e-6")
    return picture.finish(drawing, "How fast models that are coupled get to their solution")


def _draw_runs(ax: Axes, data: xr.Dataset) -> None:
    """Errors against rounds; thin: the prediction of further rounds by the spectrum."""
    labels = {a: rf"$\alpha$ = {a:g}" for a in COUPLINGS.value}
    plotting.learning_curves(data, ERROR, "coupling", ax, labels=labels)
    rounds = data["round"].values
    for i, coupling in enumerate(COUPLINGS.value):
        part = data.sel(coupling=coupling)
        errors = part[ERROR].transpose("seed", "round").values
        fall = part["factor"].values[:, None] ** (2.0 * (rounds - rounds[0]))
        curve = statistics.decibels(np.mean(errors[:, :1] * fall, axis=0))
        picture.predicted_curve(ax, rounds, curve, "spectrum" if i == 0 else "_")


def _band(ax: Axes, data: xr.Dataset, axis: str, name: str, text: str, index: int) -> None:
    numbers = statistics.summary(data, name)
    look = picture.look(index)
    ax.plot(data[axis], numbers["mean"], label=text, **look)
    ends = numbers["low"], numbers["high"]
    ax.fill_between(data[axis], *ends, color=look["color"], alpha=0.2, linewidth=0)


# --------------------------------------------------------------------------- claims


def speed(studies: Studies) -> dict[str, Estimate]:
    """The measured exponents over the spectrum's, by algorithm and coupling."""
    result = {}
    for name, label in (("descent", "FedGD"), ("relaxation", "FedRelax")):
        data = studies[name]
        for coupling in data["coupling"].values:
            part = data.sel(coupling=coupling)
            errors = part[ERROR].transpose("seed", "round").values
            exponent = np.log(ratios(errors)) / np.diff(part["round"].values)[0]
            result[f"{label}, alpha = {coupling:g}"] = estimate(
                lambda a: a, exponent / np.log(part["factor"].values), unit=""
            )
    return result


def contraction(studies: Studies) -> dict[str, Estimate]:
    """The largest of all errors over (81) of the record before, by coupling."""
    data = studies["descent"]
    result = {}
    for coupling in data["coupling"].values:
        part = data.sel(coupling=coupling)
        errors = np.sqrt(part[ERROR].transpose("seed", "round").values)
        bound = errors[:, :-1] * part["factor"].values[:, None] ** EVERY.value
        clear = errors[:, 1:] > CLEAR * errors[:, :1]
        worst = np.max(np.where(clear, errors[:, 1:] / np.where(clear, bound, 1), 0))
        result[f"alpha = {coupling:g}"] = Estimate.exact(float(worst), "")
    return result


def largest_ratio(*names: str) -> Measure:
    """The largest of a proposition's ratios, of all networks."""
    return lambda studies: {
        f"{name}, alpha = {float(at):.3g}": Estimate.exact(
            float(studies["bounds"][name].sel(coupling=at).max()), ""
        )
        for name in names
        for at in studies["bounds"]["coupling"].values
    }


def mean_ratio(name: str) -> Measure:
    return lambda studies: {
        f"alpha = {float(at):.3g}": estimate(
            lambda a: a, samples(studies["bounds"], {"coupling": at}, name), unit=""
        )
        for at in studies["bounds"]["coupling"].values
    }


def factor_of(studies: Studies, collection: str) -> Mapping[float, np.ndarray]:
    data = studies["one"]["factor"].sel(collection=collection).transpose("coupling", "seed")
    return dict(zip(data["coupling"].values.tolist(), data.values.astype(float), strict=True))


def changes(collection: str, low: float, high: float) -> Measure:
    """By how much the factor grows from one coupling to the next, between two of them."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = factor_of(studies, collection)
        inside = [at for at in result if low <= at <= high]
        return {
            f"{collection}, {before:g} to {after:g}": estimate(
                lambda a, b: a - b, result[after], result[before], unit=""
            )
            for before, after in itertools.pairwise(inside)
        }

    return measure


def diverging(studies: Studies) -> dict[str, Estimate]:
    result = {}
    for collection, at in ((FIRST, 700.0), (SECOND, 550.0), (SECOND, 700.0)):
        factor = factor_of(studies, collection)[at]
        result[f"{collection}, {at:g}"] = estimate(lambda a: a, factor, unit="")
    return result


def as_spectrum(studies: Studies) -> dict[str, Estimate]:
    """The measured factors of Exercise 5.1 minus the spectrum's."""
    result = {}
    for i, collection in enumerate((FIRST, SECOND)):
        factor = factor_of(studies, collection)
        predicted = two_nodes(i, np.asarray([*factor]))
        for (at, values), level in zip(factor.items(), predicted, strict=True):
            result[f"{collection}, {at:g}"] = estimate(lambda a: a, values - level, unit="")
    return result


def rounds_of(studies: Studies, step: str, coupling: float) -> np.ndarray:
    return samples(studies["two"], {"step": step, "coupling": coupling}, "rounds")


def slower(studies: Studies) -> dict[str, Estimate]:
    """How many times as many rounds the step (83) takes."""
    return {
        f"alpha = {at:g}": estimate(
            lambda a, b: a / b,
            rounds_of(studies, BEST, at),
            rounds_of(studies, SAFE, at),
            unit="times",
        )
        for at in CHOSEN.value[2:]
    }


def saturation(studies: Studies) -> dict[str, Estimate]:
    """How many times as many rounds the largest coupling takes as a tenth of it."""
    before, last = CHOSEN.value[-2:]
    return {
        rule: estimate(
            lambda a, b: a / b,
            rounds_of(studies, rule, last),
            rounds_of(studies, rule, before),
            unit="times",
        )
        for rule in (SAFE,)
    }


def loose(studies: Studies) -> str:
    worst = studies["bounds"]["smallest"]
    return (
        f"Over all networks and couplings the bound is {float(worst.min()):.2g} to "
        f"{float(worst.max()):.2g} of the eigenvalue, in the median {float(worst.median()):.2g}: "
        "it proves convergence and predicts no rate."
    )


#: A bound guides if the eigenvalue is of its size.
GUIDES = Meaning((0.5, 1.0), "“guidance”: half of it or more")

FIGURE = Figure(
    name="jung-convergence",
    title="How fast FedGD and FedRelax converge",
    source="Jung 2025, sections 4.3, 5.1, 5.4 and 5.9, Exercises 5.1 and 5.2",
    caption="(a), (b) the mean squared distance from GTVMin's solution against rounds, on a random "
    "network of 20 nodes that is drawn with every seed; FedGD takes the step 1/(2U) of (106). Thin "
    "lines fall from the first record as the extreme eigenvalues of each network say. (c) how near "
    "the propositions' bounds are: one is tight. (d) the factor by which two nodes' error falls a "
    "round: measured (dots) and of the spectrum. (e) rounds until the error is a millionth of that "
    "of the start, 50 nodes starting at their own numbers.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "rate-of-the-spectrum",
            "the rate of convergence is determined by the eigenvalues of Q",
            "sections 5.1 and 4.3",
            speed,
            (0.9, 1.1),
            "measured exponent over that of the extreme eigenvalues, in the second half of the "
            "rounds before rounding: within a tenth",
            condition="FedRelax by the spectrum of its own iteration",
        ),
        Claim(
            "contraction",
            "every gradient step brings the solution nearer by (81)",
            "section 4.3",
            contraction,
            (0, 1 + 1e-4),
            "the largest ratio of an error to the bound by the one before, of all runs, up to the "
            "rounding of what is stored",
        ),
        Claim(
            "largest-eigenvalue",
            "Proposition 5.1: no eigenvalue is above lambda_max + alpha lambda_n, nor that above U",
            "Proposition 5.1",
            largest_ratio("spectral", "degree"),
            (0, 1 + 1e-6),
            "the largest ratio of all networks",
        ),
        Claim(
            "largest-guides",
            "U provides guidance: the largest eigenvalue is of its size",
            "section 5.1",
            mean_ratio("degree"),
            *GUIDES,
        ),
        Claim(
            "smallest-eigenvalue",
            "Proposition 5.2: no eigenvalue is below (107)",
            "Proposition 5.2",
            largest_ratio("smallest"),
            (0, 1 + 1e-6),
            "the largest ratio of all networks",
        ),
        Claim(
            "smallest-guides",
            "(107) provides guidance: the smallest eigenvalue is of its size",
            "section 5.1",
            mean_ratio("smallest"),
            *GUIDES,
            note=loose,
        ),
        Claim(
            "more-coupling-speeds-up",
            "Exercise 5.1: for some data larger values of alpha speed up convergence",
            "section 5.1, Exercise 5.1",
            changes(FIRST, 0, 499),
            (-INFINITE, 0),
            "collection 1: the factor a round falls with alpha, up to 499",
        ),
        Claim(
            "more-coupling-slows-down",
            "and for other data they slow it down",
            "section 5.1, Exercise 5.1",
            changes(SECOND, 0, 499),
            (0, INFINITE),
            "collection 2: the factor a round grows with alpha, up to 499",
        ),
        Claim(
            "turn",
            "collection 1 is fastest near 499 and slower beyond",
            "Exercise 5.1; 1/eta = trace of Q",
            changes(FIRST, 499, 700),
            (0, INFINITE),
            "the step is the best where the two eigenvalues sum to 2000",
            ours=True,
        ),
        Claim(
            "divergence",
            "too much coupling for the learning rate makes the iteration diverge",
            "section 4.3, Exercise 5.1",
            diverging,
            (1.0, INFINITE),
            "the error grows by the round",
        ),
        Claim(
            "factors-as-spectrum",
            "the factors of Exercise 5.1 are those of (81)",
            "section 4.3, Exercise 5.1",
            as_spectrum,
            (-0.005, 0.005),
            "measured less predicted",
        ),
        Claim(
            "best-step-slower",
            "Exercise 5.2: from starts that have the solution's mean the optimal rate (83) is not "
            "the fastest: 1/(2 largest eigenvalue) needs fewer rounds",
            "section 4.3, Exercise 5.2",
            slower,
            (1, INFINITE),
            "rounds over rounds, for alpha of 1 and more",
            ours=True,
        ),
        Claim(
            "saturation",
            "Exercise 5.2: convergence slows down with alpha, but no more than so far",
            "Exercise 5.2",
            saturation,
            (1, 1.5),
            "ten times the coupling costs less than half as many rounds again, at the step 1/(2 "
            "largest eigenvalue); the error has no part of the smallest eigenvalue",
            ours=True,
        ),
    ],
    settings=(
        *(NODES, DATA, COUPLINGS, ROUNDS, EVERY, FEW, PARTS, RATE, CURVED, MINIMA, TWO, TWO_ROUNDS),
        *(FIFTY, CHOSEN, LONG, REACHED, MOST),
    ),
)
