"""Jung 2025: the information in two rounds (Exercise 3.13), and data split by rows or by columns
(Exercises 6.1 and 6.2).
"""

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
from experiments.measures import estimate, gap, samples
from fljax import statistics
from fljax.problems import GTVMin, LeastSquares, Problem, vertical, vertical_consensus

DEPTH = Setting(
    "Exercise 3.13: depth of the tree",
    6,
    "each node has three neighbors as in Figure 3.9; beyond what five rounds reach",
)
TRIED = Setting(
    "Exercise 3.13: alpha, learning rate",
    (tuple(np.geomspace(0.05, 10, 16).tolist()), tuple(np.geomspace(0.005, 0.5, 16).tolist())),
    "the best of all pairs counts, of each number of rounds",
)
ROUNDS = Setting("Exercise 3.13: rounds", (1, 2, 3, 4, 5), "two are asked for")
SIZES = Setting(
    "Exercise 6.1: samples of the nodes",
    (4, 4, 4, 4, 8, 8, 16, 16, 32, 32),
    "unequal, so that it matters what a sample counts for; each fits three parameters",
)
SPREAD = Setting(
    "spread of the nodes' true models", 0.5, "of N(0, I): where all are one, all weights agree"
)
TABLE = Setting(
    "Exercise 6.2: samples, nodes, columns of each", (12, 3, 2), "small: all copies are unknown"
)
STRENGTHS = Setting(
    "alpha, and of Exercise 6.2 the strictness",
    tuple(np.geomspace(1, 1e4, 9).tolist()),
    "two a decade, from one that leaves the nodes apart",
)
NOISE = Setting("deviation of the labels' noise", 0.5, "not given")
MOST = Setting("seeds", 30, "at most: what is read varies little")

BY_SAMPLE = "1/m for each sample"
BY_NODE = "1/m_i, as in (50)"

# --------------------------------------------------------------------------- Exercise 3.13


def tree() -> tuple[list[tuple[int, int]], int]:
    """Edges and number of nodes of the tree; the root is 0."""
    edges = []
    layer = [0]
    count = 1
    for level in range(DEPTH.value):
        below = []
        for node in layer:
            for _ in range(3 if level == 0 else 2):
                edges.append((node, count))
                below.append(count)
                count += 1
        layer = below
    return edges, count


EDGES, NODES = tree()


def within(rounds: int) -> int:
    """The number of nodes within some rounds' distance of the root."""
    return 1 + 3 * (2**rounds - 1)


@jax.jit
def shares(coupling: Array, step_size: Array) -> Array:
    """``[T, K]``: of each node's number in the root's model, by Algorithm 4 from zero."""

    def root(numbers: Array) -> Array:
        problem = Problem(jnp.ones((NODES, 1, 1)), numbers[:, None], LeastSquares())
        algorithm = fl.algorithms.FedGD(coupling, step_size)
        simulation = fl.Simulation(problem, algorithm, fl.graphs.from_edges(NODES, EDGES))
        now = fl.view(simulation, key=0, round=1)
        state = algorithm.init(now.problem, now.network)
        result = []
        for number in ROUNDS.value:
            state = algorithm.step(state, fl.view(simulation, key=0, round=number))
            result.append(state.model[0, 0])
        return jnp.stack(result)

    return jax.vmap(root, out_axes=1)(jnp.eye(NODES))


def limits() -> xr.Dataset:
    """Variances of unbiased estimates, over that of one number: the least possible ones,
    and Algorithm 4's.
    """
    pairs = [(a, e) for a in TRIED.value[0] for e in TRIED.value[1]]
    share = np.stack([np.asarray(shares(*map(jnp.asarray, pair))) for pair in pairs])  # [pair,T,K]
    variance = (share**2).sum(axis=2) / share.sum(axis=2) ** 2
    reach = (np.abs(share) > 1e-9 * np.abs(share).max(axis=2, keepdims=True)).sum(axis=2).max(0)
    best = variance.argmin(axis=0)
    return xr.Dataset(
        {
            "variance": ("rounds", variance.min(axis=0)),
            "limit": ("rounds", [1 / within(t) for t in ROUNDS.value]),
            "heard": ("rounds", reach),
            "coupling": ("rounds", [pairs[i][0] for i in best]),
            "step_size": ("rounds", [pairs[i][1] for i in best]),
        },
        {"rounds": list(ROUNDS.value)},
    )


# --------------------------------------------------------------------------- Exercises 6.1, 6.2


def by_rows(seed: int, couplings: list[float]) -> np.ndarray:
    """``[2, A]``: the mean squared distance of the nodes' models from the pooled one, over its
    squared norm, with equal weights of samples and with equal weights of nodes.
    """
    rng = np.random.default_rng([1, seed])
    common = rng.normal(size=3)
    dim = 3
    parts = []
    for size in SIZES.value:
        x = rng.normal(size=(size, dim))
        model = common + SPREAD.value * rng.normal(size=dim)
        parts.append((x, x @ model + NOISE.value * rng.normal(size=size)))
    pooled = np.linalg.lstsq(*map(np.concatenate, zip(*parts, strict=True)), rcond=None)[0]
    problem = fl.problems.from_clients(parts, LeastSquares(), strength=0.0)
    ring = fl.graphs.ring(len(parts))
    result = []
    for weighting in (problem.weighing("samples"), problem):
        models = np.stack([np.asarray(GTVMin(weighting, ring, a).closed_form()) for a in couplings])
        result.append(((models - pooled) ** 2).sum(axis=2).mean(axis=1) / (pooled**2).sum())
    return np.stack(result)


def by_columns(seed: int, strengths: list[float]) -> np.ndarray:
    """``[A]``: the mean squared distance of the nodes' fits from that of all columns, over its
    squared norm.
    """
    rng = np.random.default_rng([2, seed])
    count, nodes, columns = TABLE.value
    x = rng.normal(size=(count, nodes * columns))
    y = x @ rng.normal(size=nodes * columns) + NOISE.value * rng.normal(size=count)
    fit = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    problem = vertical(x, y, np.arange(nodes * columns).reshape(nodes, columns).tolist())
    result = []
    for strength in strengths:
        coupled = GTVMin(vertical_consensus(problem, strength), fl.graphs.complete(nodes), strength)
        copies = np.asarray(coupled.closed_form()).reshape(nodes, nodes, count)
        off = copies.sum(axis=1) - fit
        result.append((off**2).sum(axis=1).mean() / (fit**2).sum())
    return np.array(result)


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = range(min(effort.seeds, MOST.value))
    strengths = effort.thin(STRENGTHS.value, 5)
    stacked = {
        "rows": np.stack([by_rows(seed, strengths) for seed in seeds]),
        "columns": np.stack([by_columns(seed, strengths) for seed in seeds]),
    }
    names = {
        "rows": (("weighting", "strength"), "squared distance from the pooled model", True),
        "columns": (("strength",), "squared distance from the pooled fit", True),
    }
    axes = {"weighting": [BY_SAMPLE, BY_NODE], "strength": strengths}
    return {"split": solutions.dataset(stacked, names, axes), "limits": limits()}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("what rounds can know", "rows, Exercise 6.1", "columns, Exercise 6.2")
    drawing, (exact, rows, columns) = picture.panels(titles, height=2.3)
    data = studies["limits"]
    rounds = data["rounds"].values
    text = "Algorithm 4, best of all pairs"
    exact.plot(rounds, data["variance"], marker="o", label=text, **picture.look(0))
    limit = data["limit"].values
    text = "1 over numbers that can be heard"
    picture.predicted_curve(exact, rounds, limit, text)
    exact.set(yscale="log", xlabel="rounds", ylabel="variance, over one number's")
    exact.set_xticks(ROUNDS.value)
    data = studies["split"]
    texts = {BY_SAMPLE: BY_SAMPLE, BY_NODE: r"$1/m_i$, as in (50)"}
    for index, (weighting, text) in enumerate(texts.items()):
        _band(rows, data.sel(weighting=weighting), "rows", text, index)
    _band(columns, data, "columns", "copies of all predictions", 2)
    rows.set(ylabel="off the pooled model [dB]")
    columns.set(xlabel=r"$\alpha = \beta$", ylabel="off the pooled fit [dB]")
    rows.set_xlabel(r"coupling $\alpha$")
    note = f"(b), (c) mean of {data.sizes['seed']} data sets, bands: 95 % confidence"
    return picture.finish(drawing, note)


def _band(ax: Axes, data: xr.Dataset, name: str, text: str, index: int) -> None:
    numbers = statistics.summary(data, name)
    look = picture.look(index)
    mean, low, high = (statistics.decibels(numbers[k].values) for k in ("mean", "low", "high"))
    ax.plot(data["strength"], mean, label=text, marker=".", **look)
    ax.fill_between(data["strength"], low, high, color=look["color"], alpha=0.2, linewidth=0)
    ax.set_xscale("log")


# --------------------------------------------------------------------------- claims


def of_rounds(of: Callable[[xr.Dataset], xr.DataArray], unit: str = "") -> Measure:
    """A number of Algorithm 4 after two rounds."""
    return lambda studies: {
        "two rounds": Estimate.exact(float(of(studies["limits"]).sel(rounds=2)), unit)
    }


def at_last(name: str, **where: str) -> Measure:
    """The squared distance at the largest strength, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["split"]
        last = float(data["strength"][-1])
        value = samples(data[[name]], {**where, "strength": last}, name)
        return {f"{last:g}": estimate(statistics.decibels, value)}

    return measure


def log_slope(name: str, **where: str) -> Measure:
    """The slope of the logarithms over the last decade."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["split"]
        at = data["strength"].values
        first = at[int(np.abs(np.log(at / (at[-1] / 10))).argmin())]
        pair = [
            samples(data[[name]], {**where, "strength": float(a)}, name) for a in (first, at[-1])
        ]
        return {
            "last decade": estimate(
                lambda a, b: np.log(b / a) / np.log(at[-1] / first), *pair, unit=""
            )
        }

    return measure


def uneven(studies: Studies) -> dict[str, Estimate]:
    """How far GTVMin with the weights of (50) ends from the pooled model, above the other."""
    data = studies["split"]
    last = float(data["strength"][-1])
    pair = [
        samples(data[["rows"]], {"weighting": w, "strength": last}, "rows")
        for w in (BY_NODE, BY_SAMPLE)
    ]
    return {f"alpha = {last:g}": gap(*pair)}


FIGURE = Figure(
    name="jung-flavors",
    title="What two rounds can know; data split by rows and by columns",
    source="Jung 2025, Exercises 3.13, 6.1 and 6.2",
    caption="(a) every node of a tree has one number, of a common mean, and three neighbors: the "
    "variance of an unbiased estimate from what can have been heard, and of Algorithm 4's model "
    "from zero, made unbiased. (b) nodes with different numbers of samples, joined to a ring: "
    "their models by GTVMin from those of linear regression on all samples. (c) three nodes with "
    "two columns each, which are coupled by copies of all predictions: their fits from that of "
    "linear regression on all columns.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "two-rounds-know-ten",
            "a message-passing algorithm of two rounds has ten numbers at most, and the variance "
            "1/10; Algorithm 4 does not reach it",
            "Exercise 3.13, which asks for both",
            of_rounds(lambda data: data["variance"] / data["limit"]),
            (1 + 1e-6, INFINITE),
            "the least variance of all pairs over the limit",
            ours=True,
        ),
        Claim(
            "algorithm-4-lags-a-round",
            "since from zero its first round hears nothing: after two it has four numbers",
            "Exercise 3.13, Algorithm 4",
            of_rounds(lambda data: data["heard"]),
            (4, 4),
            "numbers with a share in the root's model, at most",
            ours=True,
        ),
        Claim(
            "rows-are-pooled",
            "GTVMin of rows with one weight a sample solves linear regression on all of them",
            "Exercise 6.1, which asks for an instance",
            at_last("rows", weighting=BY_SAMPLE),
            (-INFINITE, -60),
            "60 dB below the pooled model at the largest alpha",
            ours=True,
        ),
        Claim(
            "rows-rate",
            "its squared distance falls as the square of alpha",
            "Exercise 6.1; Proposition 3.1 bounds a spread by the first power",
            log_slope("rows", weighting=BY_SAMPLE),
            *order(-2).when("over the last decade"),
            ours=True,
        ),
        Claim(
            "rows-of-50-are-not-pooled",
            "with the weights 1/m_i of (50) it does not, where nodes differ",
            "Exercise 6.1, (50)",
            uneven,
            (20, INFINITE),
            "20 dB or more above the other at the largest alpha",
            condition="nodes' models and numbers of samples differ",
            ours=True,
        ),
        Claim(
            "columns-are-pooled",
            "GTVMin of columns by copies of all predictions solves linear regression on all",
            "Exercise 6.2, which asks for an instance",
            at_last("columns"),
            (-INFINITE, -60),
            "60 dB below the pooled fit at the largest strengths",
            ours=True,
        ),
        Claim(
            "columns-rate",
            "its squared distance falls as the square of the strengths",
            "Exercise 6.2",
            log_slope("columns"),
            *order(-2).when("over the last decade"),
            ours=True,
        ),
    ],
    settings=(DEPTH, TRIED, ROUNDS, SIZES, SPREAD, TABLE, STRENGTHS, NOISE, MOST),
)
