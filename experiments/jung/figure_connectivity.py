"""Jung 2025: connectivity of networks, and what edges cost and bring (sections 3.3, 7.1)."""

import functools
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
from experiments.conventions import CLOSE, about
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, samples
from fljax import plotting, statistics
from fljax.graphs import Graph

NODES = Setting("nodes", 50, "|C| of the check of (155); spectra are cheap")
DEGREES = Setting("degree", (4, 8, 14, 24), "mean, of all but the nearest neighbors")
NEAREST = Setting("nearest neighbors", (3, 7, 12, 20), "mean degrees about those of others")
REWIRED = Setting("rewired edges of small worlds", 0.1, "a usual share: between ring and random")
DATA = Setting("samples a client, parameters", (2, 2), "a client alone hardly determines its model")
COUPLINGS = Setting("alpha", (0.01, 0.1, 1.0), "a decade each, up to the losses' curvature")
SHOWN = Setting("(f) alpha", 0.1, "the middle one")
REACHED = Setting("accuracy", 1e-3, "of the error's norm over that of the start")
SIZES = Setting("(d) nodes |C|", (25, 50, 100, 200), "doubled from a small network")
PROBABILITIES = Setting("(d) p_e", (0.2, 0.5), "a sparse and a dense network")
MOST = Setting("seeds", 250, "at most: spectra hardly differ")

RANDOM = "Erdős-Rényi"
REGULAR = "random regular"
WORLD = "small world"
NEAR = "nearest neighbors"
FAMILIES = (RANDOM, REGULAR, WORLD, NEAR)
#: Variables with geometric means: some networks are nearly disconnected and take many rounds.
LOGARITHMS = ("rounds", "cost")
LEVELS = range(len(DEGREES.value))


# --------------------------------------------------------------------------- networks


def network(family: str, level: int) -> Callable[[Array], Graph]:
    """A network of a family other than the first, from a key."""
    nodes = NODES.value
    degree = DEGREES.value[level]

    def near(key: Array) -> Graph:
        places = jax.random.uniform(key, (nodes, 2))
        return fl.graphs.nearest_neighbors(places, NEAREST.value[level])

    return {
        REGULAR: lambda key: fl.graphs.k_regular(key, nodes, degree),
        WORLD: lambda key: fl.graphs.small_world(key, nodes, degree, REWIRED.value),
        NEAR: near,
    }[family]


@functools.partial(jax.jit, static_argnums=1)
def random_laplacians(keys: Array, nodes: int, probability: float) -> Array:
    """Laplacians of Erdős-Rényi networks, ``[S, K, K]``."""
    return jax.vmap(lambda key: fl.graphs.erdos_renyi(key, nodes, probability).laplacian_matrix())(
        keys
    )


def laplacians(family: str, level: int, keys: Array) -> np.ndarray:
    """``[S, K, K]``."""
    if family == RANDOM:
        nodes = NODES.value
        result = random_laplacians(keys, nodes, DEGREES.value[level] / (nodes - 1))
    else:
        of = network(family, level)
        result = jax.jit(jax.vmap(lambda key: of(key).laplacian_matrix()))(keys)
    return np.asarray(result, np.float64)


def moments(keys: Array) -> np.ndarray:
    """The blocks of Q, ``[S, K, D, D]``: the same data for all networks of a seed."""

    def of(key: Array) -> Array:
        samples_, dim = DATA.value
        return fl.problems.least_squares(key, NODES.value, samples_, dim).second_moment()

    return np.asarray(jax.jit(jax.vmap(of))(keys), np.float64)


# --------------------------------------------------------------------------- spectra


def connectivity(laplacian: np.ndarray) -> dict[str, np.ndarray]:
    """Eigenvalues and degrees of unweighted networks ``[S, K, K]``."""
    degree = np.diagonal(laplacian, axis1=-2, axis2=-1)
    values = np.linalg.eigvalsh(laplacian)
    nodes = degree.shape[-1]
    bound = nodes / (nodes - 1) * degree.min(axis=-1)
    second = np.where(values[..., 1] < 1e-9 * nodes, 0, values[..., 1])
    return {
        "second": second,
        "degree": degree.mean(axis=-1),
        "edges": degree.sum(axis=-1) / 2,
        "over_bound": np.divide(second, bound, out=np.zeros_like(second), where=bound > 0),
        "largest": values[..., -1] / (2 * degree.max(axis=-1)),
        "most": degree.max(axis=-1),
    }


def rounds(laplacian: np.ndarray, blocks: np.ndarray, coupling: float) -> np.ndarray:
    """``[S]``: FedGD's rounds with its best step, by (82), (84) and the spectrum of Q."""
    nodes, dim = blocks.shape[1:3]
    system = np.einsum("kl,skpq->skplq", np.eye(nodes), blocks)
    system = system + coupling * np.einsum("skl,pq->skplq", laplacian, np.eye(dim))
    values = np.linalg.eigvalsh(system.reshape(-1, nodes * dim, nodes * dim))
    ends = fl.descent.Extremes(*(jnp.asarray(values[:, end]) for end in (0, -1)))
    factor = jax.vmap(lambda extremes: extremes.best_factor)(ends)
    return np.asarray(fl.descent.rounds_needed(1.0, REACHED.value, factor), np.float64)


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    keys = solutions.scenario_keys(min(effort.seeds, MOST.value))
    graph_keys, data_keys = jnp.swapaxes(jax.vmap(jax.random.split)(keys), 0, 1)
    blocks = moments(data_keys)
    parts: dict[str, list] = {}
    for family in FAMILIES:
        for level in LEVELS:
            laplacian = laplacians(family, level, graph_keys)
            result = connectivity(laplacian)
            of = [rounds(laplacian, blocks, coupling) for coupling in COUPLINGS.value]
            result["rounds"] = np.log10(np.stack(of, axis=-1))
            result["cost"] = result["rounds"] + np.log10(result["edges"])[:, None]
            for name, values in result.items():
                parts.setdefault(name, []).append(values)
    shape = (len(keys), len(FAMILIES), len(LEVELS))
    arrays = {n: np.stack(v, axis=1).reshape(*shape, *v[0].shape[1:]) for n, v in parts.items()}
    axes = ("family", "level")
    names = {
        "second": (axes, "connectivity", False),
        "degree": (axes, "mean degree", False),
        "edges": (axes, "edges", False),
        "over_bound": (axes, "connectivity over its bound", False),
        "largest": (axes, "largest eigenvalue over its bound", False),
        "rounds": ((*axes, "coupling"), "log10 of rounds to 1e-3", False),
        "cost": ((*axes, "coupling"), "log10 of rounds x edges", False),
    }
    coords = {"family": list(FAMILIES), "level": list(LEVELS), "coupling": list(COUPLINGS.value)}
    return {
        "networks": solutions.dataset(arrays, names, coords),
        "random": approximation(graph_keys),
    }


def approximation(keys: Array) -> xr.Dataset:
    """The terms of (155), over ``|C| p_e``."""
    result = {"second": [], "most": []}
    for probability in PROBABILITIES.value:
        for nodes in SIZES.value:
            drawn = np.asarray(random_laplacians(keys, nodes, probability), np.float64)
            of = connectivity(drawn)
            for name, values in result.items():
                values.append(of[name] / (nodes * probability))
    shape = (len(keys), len(PROBABILITIES.value), len(SIZES.value))
    arrays = {n: np.stack(v, axis=1).reshape(shape) for n, v in result.items()}
    axes = ("probability", "nodes")
    names = {
        "second": (axes, "connectivity over |C| p", False),
        "most": (axes, "largest degree over |C| p", False),
    }
    coords = {"probability": list(PROBABILITIES.value), "nodes": list(SIZES.value)}
    return solutions.dataset(arrays, names, coords)


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = (
        "connectivity",
        "over Proposition 7.1",
        "largest over (136)",
        "Erdős-Rényi, (155)",
        "rounds, Erdős-Rényi",
        rf"cost, $\alpha$ = {SHOWN.value:g}",
    )
    drawing, (second, bound, largest, random, number, cost) = picture.panels(titles, height=2.2)
    data = studies["networks"]
    for ax, name in ((second, "second"), (bound, "over_bound"), (largest, "largest")):
        for i, family in enumerate(FAMILIES):
            _band(ax, data.sel(family=family), name, family, i)
    ends = np.array([DEGREES.value[0], DEGREES.value[-1]], float)
    above = ends * NODES.value / (NODES.value - 1)
    picture.predicted_curve(second, ends, above, "(156), (155) of the mean degree")
    second.set(ylabel=r"$\lambda_2$")
    bound.set(ylabel="ratio", ylim=(0, 1.05))
    largest.set(ylabel="ratio", ylim=(0, 1.05))
    near = studies["random"]
    for index, (name, text) in enumerate((("most", r"$d_{\max}$"), ("second", r"$\lambda_2$"))):
        color = picture.look(4 + index)["color"]
        for probability, line in zip(
            PROBABILITIES.value, (("-", "--"), ("-.", ":"))[index], strict=True
        ):
            part = near.sel(probability=probability)
            numbers = statistics.summary(part, name)
            label = f"{text}, $p_e$ = {probability:g}"
            random.plot(part["nodes"], numbers["mean"], line, color=color, label=label)
            where = part["nodes"], numbers["low"], numbers["high"]
            random.fill_between(*where, color=color, alpha=0.2, linewidth=0)
    random.axhline(1, **picture.THIN)
    random.set(xscale="log", xlabel=r"nodes $|\mathcal{C}|$", ylabel=r"over $|\mathcal{C}|p_e$")
    random.set_xticks(SIZES.value, [str(size) for size in SIZES.value])
    random.minorticks_off()
    for i, coupling in enumerate(COUPLINGS.value):
        part = data.sel(family=RANDOM, coupling=coupling)
        _band(number, part, "rounds", rf"$\alpha$ = {coupling:g}", 4 + i)
    number.set(yscale="log", ylabel="rounds to 1e-3")
    for i, family in enumerate(FAMILIES):
        part = data.sel(family=family, coupling=SHOWN.value)
        _band(cost, part, "cost", family, i)
    cost.set(yscale="log", ylabel="rounds x edges")
    for ax in (second, bound, largest, number, cost):
        ax.set_xlabel("mean degree")
    note = f"mean of {data.sizes['seed']} networks each, bands: 95 % confidence"
    return picture.finish(
        drawing, f"What edges bring and what they cost, {NODES.value} nodes\n{note}"
    )


def _band(ax: Axes, data: xr.Dataset, name: str, text: str, index: int) -> None:
    numbers = statistics.summary(data, name)
    at = data["degree"].mean("seed")
    if name in LOGARITHMS:
        numbers = 10**numbers
    look = plotting.LOOKS[index]
    ax.plot(at, numbers["mean"], label=text, **look)
    ends = numbers["low"], numbers["high"]
    ax.fill_between(at, *ends, color=look["color"], alpha=0.2, linewidth=0)


# --------------------------------------------------------------------------- claims


def largest_of(name: str) -> Measure:
    """The largest ratio to a bound of all networks, by family."""
    return lambda studies: {
        family: Estimate.exact(float(studies["networks"][name].sel(family=family).max()), "")
        for family in FAMILIES
    }


def near(name: str) -> Measure:
    """The mean ratio to a bound, by family and degree."""
    return lambda studies: {
        f"{family}, {degree:g}": estimate(
            lambda a: a, of(studies, name, family=family, level=level), unit=""
        )
        for family in FAMILIES
        for level, degree in zip(LEVELS, DEGREES.value, strict=True)
    }


def of(studies: Studies, name: str, **where: object) -> np.ndarray:
    return samples(studies["networks"], where, name)


def approximated(name: str) -> Measure:
    """A term of (155) over ``|C| p_e``."""
    return lambda studies: {
        f"p = {probability:g}, |C| = {nodes}": estimate(
            lambda a: a,
            samples(studies["random"], {"probability": probability, "nodes": nodes}, name),
            unit="",
        )
        for probability in PROBABILITIES.value
        for nodes in SIZES.value
    }


def approximation_gain(studies: Studies) -> dict[str, Estimate]:
    """By how much the error of (155) shrinks from the smallest to the largest network."""
    result = {}
    for probability in PROBABILITIES.value:
        few, many = (
            samples(studies["random"], {"probability": probability, "nodes": nodes}, "second")
            for nodes in (SIZES.value[0], SIZES.value[-1])
        )
        result[f"p = {probability:g}"] = estimate(
            lambda a, b: (1 - a) / (1 - b), few, many, unit="times"
        )
    return result


def denser(name: str) -> Measure:
    """A number of the densest networks over that of the sparsest, by family and coupling."""
    return lambda studies: {
        f"{family}, alpha = {coupling:g}": estimate(
            lambda a, b: 10 ** (a - b),
            of(studies, name, family=family, coupling=coupling, level=LEVELS[-1]),
            of(studies, name, family=family, coupling=coupling, level=0),
            unit="times",
        )
        for family in FAMILIES
        for coupling in COUPLINGS.value
    }


def grows(studies: Studies) -> dict[str, Estimate]:
    """The connectivity from one degree to the next, over that before."""
    return {
        f"{family}, {DEGREES.value[level - 1]} to {DEGREES.value[level]}": estimate(
            lambda a, b: a - b,
            of(studies, "second", family=family, level=level),
            of(studies, "second", family=family, level=level - 1),
            unit="",
        )
        for family in FAMILIES
        for level in LEVELS[1:]
    }


def placed(name: str) -> Measure:
    """The ratio of regular random networks to small worlds with the same number of edges."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        of_rounds = name in LOGARITHMS
        for coupling in COUPLINGS.value if of_rounds else (None,):
            for level, degree in zip(LEVELS, DEGREES.value, strict=True):
                where = {"level": level} | ({"coupling": coupling} if of_rounds else {})
                label = f"degree {degree}" + (f", alpha = {coupling:g}" if of_rounds else "")
                result[label] = estimate(
                    (lambda a, b: 10 ** (a - b)) if of_rounds else (lambda a, b: a / b),
                    of(studies, name, family=REGULAR, **where),
                    of(studies, name, family=WORLD, **where),
                    unit="times",
                )
        return result

    return measure


def how_far(studies: Studies) -> str:
    data = studies["random"].mean("seed")

    def level(name: str, probability: float, nodes: int) -> float:
        part = data[name].sel(probability=probability, nodes=nodes)
        return float(part) * nodes * probability

    phrases = [
        f"of {nodes} nodes at p = {probability:g} it says {nodes * probability:g}, and "
        f"connectivity is {level('second', probability, nodes):.3g}, the largest degree "
        f"{level('most', probability, nodes):.3g}"
        for probability, nodes in ((0.2, 50), (0.5, 200))
    ]
    return f"(155) holds in the limit of many nodes alone: {'; '.join(phrases)}."


def saturated(studies: Studies) -> str:
    result = denser("rounds")(studies)
    least = min(result, key=lambda n: result[n].value)
    most = max(result, key=lambda n: result[n].value)
    return (
        f"Rounds of the densest networks are {result[least].value:.2g} ({least}) to "
        f"{result[most].value:.2g} ({most}) times those of the sparsest: an edge adds to the "
        "largest eigenvalue as well, and once the coupling binds the clients it adds to that alone."
    )


def cheaper(studies: Studies) -> str:
    less = [f"{name} ({e.value:.2g})" for name, e in denser("cost")(studies).items() if e.low < 1]
    percent = 100 * float(
        (studies["networks"]["second"].sel(level=0) == 0).sel(family=RANDOM).mean()
    )
    return (
        f"Edges pay, or may, for {', '.join(less)}: of the sparsest random networks "
        f"{percent:.0f} % fall apart, and a client without neighbors is as slow as it is alone."
    )


def placed_alike(studies: Studies) -> str:
    result = placed("rounds")(studies)
    values = [e.value for e in result.values()]
    return (
        f"The ratio is {min(values):.3f} to {max(values):.3f}: nowhere slower by more than that, "
        "but where the network binds the clients in either case, its placement does not matter."
    )


FIGURE = Figure(
    name="jung-connectivity",
    title="What edges bring and what they cost",
    source="Jung 2025, sections 5.10 and 7.1, Figure 7.1",
    caption="Networks of 50 nodes, drawn with every seed, against their mean degree. (a) the "
    "second smallest eigenvalue of the Laplacian; the thin line is the bound of Proposition "
    "7.1 for a regular network and the approximation (155) for a random one, which are the same. "
    "(b), (c) how near the bounds are, of each network's own degrees. (d) the two sides of (155) "
    "over |C| p_e: both should be one. (e), (f) rounds of FedGD until the error is a thousandth of "
    "the start's, by the exact spectrum of its problem and the best step, and edges times "
    "rounds: geometric means, since a few networks that nearly fall apart take very many.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "proposition-7.1",
            "connectivity is at most n/(n-1) times any node's degree",
            "Proposition 7.1",
            largest_of("over_bound"),
            (0, 1 + 1e-9),
            "the largest ratio of all networks",
        ),
        Claim(
            "bound-as-baseline",
            "the upper bound can serve as a baseline: practical networks come close to it",
            "section 7.1",
            near("over_bound"),
            *CLOSE.factor,
            note=lambda studies: (
                "Mean ratios at the smallest and the largest degree: "
                + "; ".join(
                    f"{family} {float(mean[0]):.2g} and {float(mean[-1]):.2g}"
                    for family in FAMILIES
                    for mean in [studies["networks"]["over_bound"].sel(family=family).mean("seed")]
                )
                + "."
            ),
        ),
        Claim(
            "largest-eigenvalue",
            "no eigenvalue is above twice the largest degree",
            "(136), section 5.10.1",
            largest_of("largest"),
            (0, 1 + 1e-9),
            "the largest ratio of all networks",
        ),
        Claim(
            "essentially-tight",
            "the bound (136) is essentially tight",
            "section 5.10.1",
            near("largest"),
            (0.5, 1.0 + 1e-9),
            "half of it or more",
            construction="the largest eigenvalue is at least n/(n-1) times the largest degree: "
            "half of the bound",
        ),
        Claim(
            "approximation-155",
            "connectivity of an Erdős-Rényi network is about |C| p_e",
            "(155), section 7.1",
            approximated("second"),
            *about(1),
            note=how_far,
        ),
        Claim(
            "approximation-154",
            "and that about the largest degree",
            "(154), (155), section 7.1",
            approximated("most"),
            *about(1),
            note=how_far,
        ),
        Claim(
            "approximation-improves",
            "(155) is the better the larger the network (its error is left open)",
            "section 7.1, which leaves the error open",
            approximation_gain,
            (1, INFINITE),
            "relative error at the smallest number of nodes over that at the largest",
            ours=True,
        ),
        Claim(
            "degree-connects",
            "more edges make for a higher connectivity",
            "section 7.1",
            grows,
            (0, INFINITE),
            "the mean connectivity of a degree less that of the one before",
        ),
        Claim(
            "edges-save-rounds",
            "more edges typically reduce the number of rounds",
            "section 7.1, Figure 7.1",
            denser("rounds"),
            (0, 1),
            "rounds at the largest degree over those at the smallest, geometric means",
            note=saturated,
        ),
        Claim(
            "edges-cost",
            "more edges raise the cost of a round: in all, few edges are the cheapest",
            "section 7.1, Figure 7.1: a trade-off, no side of which is said to win",
            denser("cost"),
            (1, INFINITE),
            "edges times rounds at the largest degree over those at the smallest",
            ours=True,
            note=cheaper,
        ),
        Claim(
            "placed-for-connectivity",
            "connectivity depends on where edges are placed: random regular networks have more "
            "than small worlds of as many edges",
            "section 7.1",
            placed("second"),
            (1, INFINITE),
            "ratio of the means",
            ours=True,
        ),
        Claim(
            "placed-for-speed",
            "edges placed for a large connectivity make FedGD faster at the same cost of a round",
            "section 7.1",
            placed("rounds"),
            (0, 1),
            "rounds of random regular networks over those of small worlds of as many edges",
            condition="random regular networks against small worlds",
            note=placed_alike,
        ),
    ],
    settings=(
        *(
            NODES,
            DEGREES,
            NEAREST,
            REWIRED,
            DATA,
            COUPLINGS,
            SHOWN,
            REACHED,
            SIZES,
            PROBABILITIES,
            MOST,
        ),
    ),
    seeds=MOST.value,
)
