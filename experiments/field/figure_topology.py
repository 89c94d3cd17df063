"""Lian et al. 2017 (D-PSGD) and Koloskova et al. 2019 (Choco): the cost of sparse networks, and
of compressed messages.

Workers with rows of MNIST learn which digits are below five, by gradients of single images. A
server averages their models, or neighbors on a ring, a torus or a complete graph do; and neighbors
agree on the mean of their vectors by messages that are compressed.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture, tuning
from experiments.conventions import BETTER, CLOSE, LITTLE, SIGNIFICANTLY, orders
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import first_below
from experiments.measures import exponent, if_long_enough, joined, of_few
from experiments.pixels import halved
from fljax import plotting, statistics
from fljax.algorithms import ChocoSGD, Consensus, FedAvg
from fljax.algorithms.round import Round
from fljax.data import partition
from fljax.data.images import Images
from fljax.link import Compressor, RandomK, TopK
from fljax.link.compression import WORD
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems import LeastSquares, Logistic, Problem, SquaredL2
from fljax.problems.batches import Uniform

#: Of an image of half the width, and parameters of a model.
PIXELS = 14 * 14

#: Kinds of messages.
WHOLE = "whole"
TOP = "top 1 %"
RANDOM = "random 1 %"
COARSE = "qsgd"

# --------------------------------------------------------------------------- settings

DATA = Setting(
    "data",
    "MNIST's first 3600 images",
    "not epsilon and rcv1, which are not at hand: 196 features of 2000, 3600 samples of 400,000",
)
HALVED = Setting("pixels", "14 x 14, of length one", "means of 2 x 2; epsilon's rows have length 1")
LABELS = Setting(
    "labels", "digits from five on", "of MNIST, the program of Koloskova et al.", given=True
)
REGULARIZER = Setting("regularizer", "|w|² / (2 m)", "Koloskova et al., section 5.3", given=True)
BATCH = Setting(
    "samples of a gradient", 1, "Lian et al., Algorithm 1; Koloskova et al.", given=True
)
WORKERS = Setting("workers n", (9, 25, 64), "Koloskova et al., section 5.1", given=True)
GRAPHS = Setting(
    "networks",
    ("ring", "torus", "complete"),
    "Koloskova et al., section 5.1; a node and its neighbors have equal weights",
    given=True,
)
PASSES = Setting(
    "passes of (a) to (c)",
    (2, 8, 32),
    "so many gradients in all, shared equally: n workers take 1/n of the rounds",
)
CONSTANT = Setting(
    "step of (a) to (c)",
    "1 / (2 L + sigma √(K / n))",
    "Lian et al., Corollary 2, of K rounds; L = a fourth of the second moments' largest "
    "eigenvalue, and sigma at the start",
    given=True,
)
DEAL = Setting(
    "who has which images",
    "one deal for all seeds",
    "random, or sorted by label and consecutive: on a ring the labels are two arcs, as in "
    "Koloskova et al.; seeds draw the samples of gradients and what compression drops",
)
EPOCHS = Setting("passes of (g) to (i)", 10, "the program of Koloskova et al.", given=True)
DELAY = Setting(
    "b of the step a/(t + b), (g) to (i)", 196, "the number of features, as in their program"
)
STARTS = Setting("a/b: candidates", (1.0, 2.0, 4.0, 8.0, 16.0, 32.0), "of (g) to (i)")
NODES = Setting("nodes of (d) to (f)", 25, "a ring, Koloskova et al., section 5.2", given=True)
KEPT = Setting("numbers that are kept", 2, "of 196: 1 %, Koloskova et al., section 5", given=True)
LEVELS = Setting("levels of qsgd", (256, 16), "averaging and learning, section 5", given=True)
CONSENSUS = Setting(
    "consensus step gamma of Choco",
    {COARSE: 0.34, TOP: 0.04, RANDOM: 0.01},
    "the program of Koloskova et al., of Choco-SGD on a ring of nine, of 16 levels and 1 % of the "
    "numbers. In (e) random 1 % diverges with 0.02, and top 1 % with 0.08 in one run of seven",
    given=True,
)
FINE = Setting("gamma of (d)", 1.0, "as of exact messages: 256 levels change little")
TUNED = Setting("tuning", "the least error at the end", "of each curve, on two seeds of their own")
QUANTIZED = Setting("rounds of (d)", 300, "Choco-Gossip is not yet at the rounding of floats")
SPARSE = Setting("rounds of (e)", 8000, "the slowest scheme falls by 20 dB and more")
CUT = Setting("largest error of (d) to (f)", 1e3, "of the first; what diverges has it too")
LINE = Setting(
    "levels of a linear rate",
    (-15.0, -19.5, -24.0),
    "dB of the first error: below the -11 dB that the slowest two modes of a ring of 25 have of it",
)
COUNT_LEVEL = Setting("level of the counts of (d) and (f)", -20.0, "dB of the first error")
GOAL = Setting(
    "level to which bits of (i) are counted",
    1.25,
    "times where whole messages end, in the mean over seeds",
)
RECORDS = Setting("records", (160, 50, 100), "of a run, in (a) to (c), (g) to (i), and (d) to (f)")
END = Setting("share that is the end", 10, "the mean over the last tenth of the records")
SEEDS = Setting("seeds at most", 10, "intervals are Student's t of the jackknife over paired seeds")

GAP = "gap"
NORM = "norm"
DISAGREEMENT = "apart"
ERROR = "error"
CHOSEN = "chosen"
SERVER = "C-PSGD"
RING, TORUS, COMPLETE = GRAPHS.value
SORTED = "sorted"
SHUFFLED = "shuffled"
ORDERS = (SORTED, SHUFFLED)
COMPRESSED = (TOP, RANDOM, COARSE)
EXACT = "exact"
Q1 = "Q1-G"
Q2 = "Q2-G"
FEWEST = WORKERS.value[0]
MOST = WORKERS.value[-1]


def named(where: str, workers: int, order: str = "") -> str:
    return ", ".join(filter(None, (where, f"n = {workers}", order)))


# --------------------------------------------------------------------------- compression


@fl.module
class RandomSparsifier(RandomK):
    """Random entries as they are: a contraction, as Choco needs it."""

    def compress(
        self, keys: Array, message: Float[Array, "senders dim"]
    ) -> Float[Array, "senders dim"]:
        return self.count / message.shape[1] * super().compress(keys, message)


@fl.module
class QSGD(Compressor):
    """Magnitudes in whole steps of the Euclidean norm over ``levels``, rounded at random.

    Args:
      levels: a power of two. The last one is that of a vector of a single number.
      shrunk: whether divided by the bound of its second moment, which makes it a contraction.
    """

    levels: int = fl.static()
    shrunk: bool = fl.static(default=True)

    def bits(self, dim: int) -> int:
        return dim * self.levels.bit_length() + WORD  # a sign each, and the norm

    def compress(
        self, keys: Array, message: Float[Array, "senders dim"]
    ) -> Float[Array, "senders dim"]:
        dim = message.shape[1]
        norm = jnp.sqrt(jnp.sum(message**2, axis=1, keepdims=True))
        draw = jax.vmap(lambda key: jax.random.uniform(key, (dim,), message.dtype))
        exact = self.levels * jnp.abs(message) / jnp.where(norm > 0, norm, 1)
        rounded = jnp.sign(message) * norm * jnp.floor(exact + draw(keys)) / self.levels
        bound = 1 + min(dim / self.levels**2, dim**0.5 / self.levels)
        return rounded / bound if self.shrunk else rounded


@fl.module
class Naive(ChocoSGD):
    """Gossip of compressed models themselves, without gradients (Q1-G and Q2-G).

    Args:
      balanced: whether a node subtracts its own message, which preserves the mean (Q2-G), or its
        own model (Q1-G).
    """

    balanced: bool = fl.static(default=True)

    def step(self, state: Any, now: Round) -> Any:
        model = state.model
        sent, inbox = now.link.exchange(model, compression=self.compression)
        received = inbox.mean(state.mixing)
        if self.balanced:
            model = model + received - sent
        else:
            self_weight = state.mixing.self_weight[:, None]
            model = self_weight * model + received - self_weight * sent
        return state._replace(model=model)


# --------------------------------------------------------------------------- problems


class Size(NamedTuple):
    """The learning problem, and the length of runs."""

    images: Callable[[], Images]
    samples: int
    workers: Sequence[int]
    passes: Sequence[int]
    epochs: int
    shorten: int  # divides the length of (d) to (f)


FULL = Size(fl.data.mnist, 3600, WORKERS.value, PASSES.value, EPOCHS.value, 1)
#: For tests: the package's own sample.
TINY = Size(fl.data.mnist_sample, 320, (FEWEST, MOST), PASSES.value, 4, 40)


@functools.cache
def rows_of(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Images of length one, ``[m, D]``, and labels ±1, ``[m]``."""
    dataset = size.images()
    flat = halved(dataset.train_images[: size.samples]).reshape(size.samples, -1)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    return flat, np.where(dataset.train_labels[: size.samples] < 5, -1, 1).astype(np.float32)


class Learned(NamedTuple):
    """A problem (the mean of clients' objectives) with its least loss and constants."""

    problem: Problem
    least: float
    curvature: float
    noise: float


@functools.cache
def dealt(size: Size, workers: int, order: str) -> Learned:
    features, labels = rows_of(size)
    by_class = np.argsort(labels, kind="stable")
    parts = np.array_split(by_class, workers)
    if order == SHUFFLED:
        parts = partition.iid(len(labels), workers, 0)
    problem = fl.problems.from_clients(
        [(features[rows], labels[rows]) for rows in parts],
        Logistic(),
        SquaredL2(),
        # All clients share it, and their objectives are added.
        strength=workers / (2 * size.samples),
    )
    shares = np.concatenate([np.full(len(rows), 1 / (workers * len(rows))) for rows in parts])
    every = np.concatenate(parts)
    return Learned(problem, *known_of(features[every], labels[every], shares))


def known_of(features: np.ndarray, labels: np.ndarray, shares: np.ndarray) -> tuple[float, ...]:
    """The least loss, by Newton's method, its smoothness, and the gradients' deviation at zero."""
    signed = labels.astype(np.float64)[:, None] * features
    strength = 1 / len(labels)
    model = np.zeros(features.shape[1])
    for _ in range(20):
        off = 1 / (1 + np.exp(signed @ model))
        gradient = strength * model - signed.T @ (shares * off)
        bend = signed.T @ (signed * (shares * off * (1 - off))[:, None])
        model = model - np.linalg.solve(bend + strength * np.eye(len(bend)), gradient)
    least = shares @ np.logaddexp(0, -signed @ model) + strength / 2 * model @ model
    moments = signed.T @ (signed * shares[:, None])
    curvature = np.linalg.eigvalsh(moments)[-1] / 4 + strength
    lengths = shares @ np.sum(signed**2, axis=1)
    mean = shares @ signed
    return float(least), float(curvature), float(np.sqrt(lengths - mean @ mean) / 2)


def mean_loss(now: Snapshot, model: Array) -> Array:
    everywhere = jnp.broadcast_to(model[None], now.model.shape)
    return jnp.mean(now.problem.objective(everywhere))


def squared_gradient(now: Snapshot) -> Array:
    gradient = jax.grad(functools.partial(mean_loss, now))(jnp.mean(now.model, axis=0))
    return jnp.sum(gradient**2)


def disagreement(now: Snapshot) -> Array:
    return jnp.mean(jnp.sum((now.model - jnp.mean(now.model, axis=0)[None]) ** 2, axis=1))


def above(least: float) -> Metric:
    """A metric: the mean model's loss above the least."""

    def gap(now: Snapshot) -> Array:
        return mean_loss(now, jnp.mean(now.model, axis=0)) - least

    return Metric(GAP, gap, "loss above the least", decibel=True, needs={"data"})


SQUARED_GRADIENT = Metric(NORM, squared_gradient, "squared gradient", decibel=True, needs={"data"})
DISTANCE = Metric(DISAGREEMENT, disagreement, "squared distance from the mean model", decibel=True)


def of_start(now: Snapshot) -> Array:
    """The squared distance from the mean of the first vectors, over that of the first ones."""
    start = now.problem.initial.astype(now.model.dtype)
    mean = jnp.mean(start, axis=0)[None]
    return jnp.sum((now.model - mean) ** 2) / jnp.sum((start - mean) ** 2)


FROM_MEAN = Metric(ERROR, of_start, "squared distance from the mean", decibel=True)


@functools.cache
def network(graph: str, workers: int) -> fl.graphs.Graph:
    side = round(workers**0.5)
    return {
        RING: lambda: fl.graphs.ring(workers),
        TORUS: lambda: fl.graphs.grid(side, side, torus=True),
        COMPLETE: lambda: fl.graphs.complete(workers),
    }[graph]()


# --------------------------------------------------------------------------- scenarios


@fl.module
class Decay:
    """The step ``a/(t + b)``, given by its first value ``a/b``."""

    first: Any

    def __call__(self, round: Array) -> Array:
        passed = round.astype(jnp.result_type(self.first)) - 1
        return self.first * DELAY.value / (DELAY.value + passed)


def compressor(kind: str, levels: int) -> Compressor:
    return {TOP: TopK(KEPT.value), RANDOM: RandomSparsifier(KEPT.value), COARSE: QSGD(levels)}[kind]


@functools.cache
def parallel(where: str, workers: int, size: Size) -> Callable[..., fl.Simulation]:
    """A server, or peers, with a constant step."""
    learned = dealt(size, workers, SHUFFLED)

    def build(key: Array, step: Array) -> fl.Simulation:
        del key  # all that is random is the batches
        metrics = [above(learned.least), SQUARED_GRADIENT, DISTANCE]
        single = Uniform(BATCH.value)
        if where == SERVER:
            served = FedAvg(step, local_steps=1, batches=single)
            return fl.Simulation(learned.problem, served, metrics=metrics)
        peers = Consensus(step, batches=single)
        return fl.Simulation(learned.problem, peers, network(where, workers), metrics=metrics)

    build.__qualname__ = f"parallel({where}, {workers}, {size.samples})"
    return build


@functools.cache
def learning(
    graph: str, workers: int, order: str, kind: str, size: Size
) -> Callable[..., fl.Simulation]:
    """Peers with a falling step; messages are whole, or compressed by Choco-SGD."""
    learned = dealt(size, workers, order)

    def build(key: Array, first: Array) -> fl.Simulation:
        del key
        step = Decay(first)
        single = Uniform(BATCH.value)
        if kind == WHOLE:
            method = Consensus(step, batches=single)
        else:
            method = ChocoSGD(
                step,
                compression=compressor(kind, LEVELS.value[1]),
                consensus_step_size=CONSENSUS.value[kind],
                batches=single,
            )
        topology = network(graph, workers)
        return fl.Simulation(learned.problem, method, topology, metrics=[above(learned.least)])

    build.__qualname__ = f"learning({graph}, {workers}, {order}, {kind}, {size.samples})"
    return build


@functools.cache
def averaging(scheme: str, kind: str, size: Size) -> Callable[..., fl.Simulation]:
    """Images at random, one a node; nothing is learned. Naive schemes send unbiased messages."""
    features, _ = rows_of(size)
    nothing = np.zeros((NODES.value, 1, features.shape[1]), np.float32)
    problem = Problem(nothing, nothing[:, :, 0], LeastSquares())
    fine = LEVELS.value[0]

    def build(key: Array, gamma: Array) -> fl.Simulation:
        drawn = jax.random.choice(key, len(features), (NODES.value,), replace=False)
        start = problem.starting_at(jnp.asarray(features)[drawn])
        if scheme == EXACT:
            method = Consensus(1.0)
        elif scheme in (Q1, Q2):
            unbiased = QSGD(fine, shrunk=False) if kind == COARSE else RandomK(KEPT.value)
            method = Naive(
                1.0, compression=unbiased, consensus_step_size=gamma, balanced=scheme == Q2
            )
        else:
            method = ChocoSGD(1.0, compression=compressor(kind, fine), consensus_step_size=gamma)
        return fl.Simulation(start, method, network(RING, NODES.value), metrics=[FROM_MEAN])

    build.__qualname__ = f"averaging({scheme}, {kind}, {size.samples})"
    return build


# --------------------------------------------------------------------------- study


def spaced(rounds: int, records: int) -> dict[str, int]:
    """The length of a run: about ``rounds`` rounds, with ``records`` equidistant records."""
    every = max(1, rounds // records)
    return {"rounds": every * records, "record_every": every}


def tuned(
    effort: Effort,
    name: str,
    scenario: Callable[..., fl.Simulation],
    candidates: Mapping[str, Sequence[float]],
    metric: str,
    length: Mapping[str, int],
) -> xr.Dataset:
    """Runs with the candidate that is best on other seeds. One program runs all seeds."""
    ((number, values),) = candidates.items()
    tuning_seeds = [*tuning.seeds(min(effort.tuning_seeds, 2))]
    seeds = [*range(min(effort.seeds, SEEDS.value))]
    values = effort.thin(values, 2)
    if len(values) == 1:
        tuning_seeds = []
    results = effort.sweep(
        name, scenario, grid={number: values}, seeds=[*seeds, *tuning_seeds], **length
    )
    best = values[0]
    remark = ""
    if tuning_seeds:
        score = late(tuning.means(results.sel(seed=tuning_seeds), metric)).values
        best = values[int(np.argmin(score))]
        edge = " (an end)" if best in (values[0], values[-1]) else ""
        remark = f"{number} = {best:g} of {len(values)}{edge}"
    result = results[[metric, "diverged", "bits"]].sel({number: best, "seed": seeds})
    return result.drop_vars(number).assign_coords({CHOSEN: remark})


def with_choices(parts: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Methods by name, each with its chosen parameter."""
    remarks = [str(of[CHOSEN].values) for of in parts.values()]
    result = joined(*(of.drop_vars(CHOSEN) for of in parts.values()))
    return result.assign_coords({"algorithm": [*parts], CHOSEN: ("algorithm", remarks)})


def late(curves: xr.DataArray) -> xr.DataArray:
    """The mean over the last records."""
    few = max(1, curves.sizes["round"] // END.value)
    return curves.isel(round=slice(-few, None)).mean("round")


def speeding(effort: Effort, size: Size) -> xr.Dataset:
    """Runs with the steps of few and many rounds. All run as long as the longest; the first part
    of each is read.
    """
    cells = [(SERVER, 1), *((SERVER, n) for n in size.workers), *((RING, n) for n in size.workers)]
    cells += [(graph, MOST) for graph in (TORUS, COMPLETE)]

    def run(where: str, workers: int) -> xr.Dataset:
        length = spaced(size.passes[-1] * size.samples // workers, RECORDS.value[0])
        data = dealt(size, workers, SHUFFLED)
        shares = [of / size.passes[-1] for of in size.passes]
        rounds = [length["rounds"] * share for share in shares]
        steps = [1 / (2 * data.curvature + data.noise * (k / workers) ** 0.5) for k in rounds]
        results = effort.sweep(
            f"parallel-{where}-{workers}",
            parallel(where, workers, size),
            grid={"step": steps},
            seeds=min(effort.seeds, SEEDS.value),
            **length,
        ).rename(step="passes")
        results = results.assign_coords(passes=[*size.passes], round=range(1, RECORDS.value[0] + 1))
        ends = xr.DataArray(np.array(shares), {"passes": [*size.passes]}) * RECORDS.value[0]
        means = {
            name: results[name].where(results["round"] <= ends).mean("round", keep_attrs=True)
            for name in (NORM, DISAGREEMENT)
        }
        # The busiest node is the server, or any peer, as degrees are equal. Models in and out.
        models = results["bits"].isel(round=-1, seed=0, passes=0, drop=True) / WORD
        part = (1 if where == SERVER else 2 / workers) / data.problem.dim / length["rounds"]
        longest = results[[GAP]].sel(passes=size.passes[-1], drop=True)
        taken = ("passes", np.array(rounds))
        return longest.assign(means).assign(busiest=part * models, taken=taken)

    parts = joined(*(run(*cell) for cell in cells))
    return parts.assign_coords(algorithm=[named(*cell) for cell in cells])


def gossiping(effort: Effort, size: Size) -> dict[str, xr.Dataset]:
    def run(rounds: int, *schemes: tuple[str, str]) -> xr.Dataset:
        parts = {}
        for scheme, kind in schemes:
            # Schemes that do not compress differences have a step of one.
            gamma = FINE.value
            if scheme in (TOP, RANDOM):
                gamma = CONSENSUS.value[scheme]
            length = spaced(rounds // size.shorten, RECORDS.value[2])
            name = f"{scheme}-{kind}-{rounds}"
            scenario = averaging(scheme, kind, size)
            results = tuned(effort, name, scenario, {"gamma": (gamma,)}, ERROR, length)
            # A diverged run has the largest error.
            error = results[ERROR].where(results["diverged"] == 0).fillna(CUT.value)
            error = error.clip(max=CUT.value).assign_attrs(results[ERROR].attrs)
            parts[scheme] = results.assign({ERROR: error}).drop_vars("diverged")
        return with_choices(parts)

    dense = [(scheme, COARSE) for scheme in (EXACT, COARSE, Q1, Q2)]
    sparse = [(EXACT, TOP), (TOP, TOP), (RANDOM, RANDOM), (Q1, RANDOM), (Q2, RANDOM)]
    return {"quantized": run(QUANTIZED.value, *dense), "sparse": run(SPARSE.value, *sparse)}


def over_networks(effort: Effort, size: Size) -> dict[str, xr.Dataset]:
    def run(graph: str, workers: int, order: str, kind: str = WHOLE) -> xr.Dataset:
        length = spaced(size.epochs * size.samples // workers, RECORDS.value[1])
        scenario = learning(graph, workers, order, kind, size)
        name = f"{graph}-{workers}-{order}-{kind}"
        return tuned(effort, name, scenario, {"first": STARTS.value}, GAP, length)

    cells = [(graph, n, SORTED) for n in size.workers for graph in GRAPHS.value]
    cells += [(RING, n, SHUFFLED) for n in size.workers]
    networks = {cell: run(*cell) for cell in cells}
    messages = [
        with_choices(
            {WHOLE: networks[RING, FEWEST, order]}
            | {kind: run(RING, FEWEST, order, kind) for kind in COMPRESSED}
        )
        for order in ORDERS
    ]
    # Runs of different lengths have the same number of records.
    records = range(1, RECORDS.value[1] + 1)
    realigned = {named(*cell): of.assign_coords(round=records) for cell, of in networks.items()}
    return {
        "networks": with_choices(realigned),
        "messages": joined(*messages, axis="order").assign_coords(order=[*ORDERS]),
    }


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL
    return {
        "parallel": speeding(effort, size),
        **gossiping(effort, size),
        **over_networks(effort, size),
    }


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = (
        *("one server or a ring", "linear speed-up", "the busiest node"),
        *("agreeing, quantized", "agreeing, 1 % is sent", "agreeing, by bits"),
        *("networks", "Choco-SGD, sorted", "Choco-SGD by bits, sorted"),
    )
    drawing, axes = picture.panels(titles, columns=3, height=2.15)
    speed(studies["parallel"], axes[:3])
    for ax, name in zip(axes[3:5], ("quantized", "sparse"), strict=True):
        plotting.learning_curves(studies[name], ERROR, ax=ax)
        picture.fade(ax)
        ax.set(ylim=(-72, 32), ylabel="disagreement [dB]")
    bits(studies, axes[5])
    ends(studies["networks"], axes[6])
    sorted_messages = studies["messages"].sel(order=SORTED)
    for ax, x in zip(axes[7:], ("round", "bits"), strict=True):
        plotting.learning_curves(sorted_messages, GAP, x=x, ax=ax)
        picture.fade(ax)
        ax.set_ylabel("excess loss [dB]")
    axes[8].set_xlabel("bits sent by all so far")
    return picture.finish(drawing)


def speed(data: xr.Dataset, axes: Sequence[Axes]) -> None:
    """Losses along the longest runs, gradients by the length of a run, and the busiest node's
    traffic.
    """
    workers = present(data)
    drawn = [named(SERVER, 1), named(SERVER, MOST), *(named(RING, n) for n in workers)]
    looks = {name: plotting.LOOKS[index] for index, name in enumerate(drawn)}
    passed = data.assign_coords(round=data["round"] * PASSES.value[-1] / data.sizes["round"])
    plotting.learning_curves(passed.sel(algorithm=drawn), GAP, ax=axes[0])
    for line in axes[0].lines:
        line.set_marker("")
    picture.fade(axes[0])
    axes[0].set(xlabel="passes over the data", ylabel="excess loss [dB]")
    for name in drawn:
        of = data.sel(algorithm=name)
        mean = of[NORM].mean("seed").transpose("passes")
        axes[1].loglog(of["taken"].values, mean.values, **looks[name], label=name)
    axes[1].set(xlabel="rounds of a run", ylabel="mean squared gradient")
    for index, where in enumerate((SERVER, *GRAPHS.value)):
        at = [n for n in (1, *workers) if named(where, n) in data["algorithm"].values]
        models = [float(data["busiest"].sel(algorithm=named(where, n))) for n in at]
        axes[2].loglog(at, models, **plotting.LOOKS[index], label=where)
    axes[2].set(xlabel="workers n", ylabel="models a round")
    axes[2].set_xticks([1, *workers], [str(n) for n in (1, *workers)])
    axes[2].minorticks_off()
    for ax in axes[1:]:
        ax.legend()


def bits(studies: Studies, ax: Axes) -> None:
    panels = {"quantized": (EXACT, COARSE), "sparse": (TOP, RANDOM)}
    names = [(study, name) for study, several in panels.items() for name in several]
    for index, (study, name) in enumerate(names):
        of = studies[study].sel(algorithm=name)
        look = {key: plotting.LOOKS[index][key] for key in ("color", "linestyle")}
        error = statistics.decibels(of[ERROR].mean("seed").values)
        ax.plot(spent(of), error, **look, label=name)
    ax.set(
        xscale="log", ylim=(-72, 4), xlabel="bits sent by all so far", ylabel="disagreement [dB]"
    )
    ax.legend()


def ends(data: xr.Dataset, ax: Axes) -> None:
    """Where runs end, by their network."""
    cells = [(graph, SORTED) for graph in GRAPHS.value] + [(RING, SHUFFLED)]
    workers = present(data)
    for index, (graph, order) in enumerate(cells):
        losses = [end(data, named(graph, n, order)) for n in workers]
        numbers = [of_few(statistics.decibels, loss, unit="dB") for loss in losses]
        bars = np.abs([[e.value - e.low, e.high - e.value] for e in numbers]).T
        values = [e.value for e in numbers]
        look = plotting.LOOKS[index]
        ax.errorbar(workers, values, bars, capsize=2, **look, label=f"{graph}, {order}")
    ax.set(xscale="log", xlabel="workers n", ylabel="final excess loss [dB]")
    ax.set_xticks(workers, [str(n) for n in workers])
    ax.minorticks_off()
    ax.legend()


# --------------------------------------------------------------------------- the claims


def present(data: xr.Dataset) -> list[int]:
    """The numbers of workers in a study: a quick one has fewer."""
    names = data["algorithm"].values.tolist()
    return [n for n in WORKERS.value if any(f"{RING}, n = {n}" in name for name in names)]


def end(data: xr.Dataset, name: str, metric: str = GAP) -> np.ndarray:
    """``[S]``."""
    return late(data[metric].sel(algorithm=name)).transpose("seed").values.astype(float)


def spent(data: xr.Dataset) -> np.ndarray:
    """``[rounds]``: bits until each record."""
    return data["bits"].mean("seed").transpose("round").values.astype(float)


def apart_by(over: np.ndarray, under: np.ndarray) -> Estimate:
    """How far one mean is above another, dB."""
    return of_few(lambda a, b: statistics.decibels(a / b), over, under, unit="dB")


def times(over: np.ndarray, under: np.ndarray) -> Estimate:
    return of_few(lambda a, b: a / b, over, under, unit="times")


def of_run(data: xr.Dataset, name: str, passes: int, metric: str = NORM) -> np.ndarray:
    """``[S]``: a run's mean over its rounds."""
    return data[metric].sel(algorithm=name, passes=passes).transpose("seed").values.astype(float)


def as_server(studies: Studies) -> dict[str, Estimate]:
    data = studies["parallel"]
    return {
        f"n = {n}": apart_by(end(data, named(RING, n)), end(data, named(SERVER, n)))
        for n in present(data)
    }


def speed_up(studies: Studies) -> dict[str, Estimate]:
    """How far gradients of many workers are above a single worker's with as many samples."""
    data = studies["parallel"]
    most = PASSES.value[-1]
    single_worker = of_run(data, named(SERVER, 1), most)
    return {
        f"n = {n} above one": apart_by(of_run(data, named(RING, n), most), single_worker)
        for n in present(data)
    }


def falling(over: str, under: str) -> Measure:
    """How much farther one is above another in short runs than in long ones, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["parallel"]
        samples = [
            of_run(data, name, passes)
            for passes in (PASSES.value[0], PASSES.value[-1])
            for name in (over, under)
        ]
        drop = of_few(
            lambda a, b, c, d: statistics.decibels(a / b) - statistics.decibels(c / d),
            *samples,
            unit="dB",
        )
        return {f"{over} above {under}, short runs less long ones": drop}

    return measure


def no_network(studies: Studies) -> dict[str, Estimate]:
    data = studies["parallel"]
    most = PASSES.value[-1]
    server = of_run(data, named(SERVER, MOST), most)
    return {
        f"{graph} above {SERVER}, n = {MOST}": apart_by(
            of_run(data, named(graph, MOST), most), server
        )
        for graph in GRAPHS.value
    }


#: Where models agree at O(1/K): of the exponent in K.
AGREEING = (-INFINITE, -0.8)


def agreement(studies: Studies) -> dict[str, Estimate]:
    """The exponent of the models' mean squared distance in the number of rounds."""
    data = studies["parallel"]

    def found(n: int) -> Estimate:
        name = named(RING, n)
        samples = [of_run(data, name, passes, DISAGREEMENT) for passes in PASSES.value]
        rounds = data["taken"].sel(algorithm=name).values
        of = of_few(lambda *means: exponent(np.array([means]), rounds)[0], *samples, unit="")
        return if_long_enough(of, AGREEING, long_enough=rounds.min() >= agreeing_after(n))

    return {f"n = {n}": found(n) for n in present(data)}


def left_by_mixing(graph: str, workers: int) -> float:
    """The spectral gap of a network's weights."""
    return 1 - float(network(graph, workers).mixing().rate())


#: The least smoothness L of logistic regression: a fourth of the largest eigenvalue of the second
#: moments, whose trace is one; and the largest deviation sigma of a gradient at the start.
LEAST_CURVATURE = 1 / (4 * PIXELS)
MOST_NOISE = 0.5


def agreeing_after(workers: int) -> float:
    """At least so many rounds K are needed until Theorem 3 of Lian et al. bounds the distances of
    models on a ring: its D2 = 1 - 18 step² n L² / (1 - root of rho)² is to be positive, and the
    step is 1 / (2 L + sigma root(K / n)).
    """
    reciprocal = (18 * workers) ** 0.5 / left_by_mixing(RING, workers)
    return workers * (max(reciprocal - 2, 0) * LEAST_CURVATURE / MOST_NOISE) ** 2


def leading_after(graph: str, workers: int, kind: str = WHOLE) -> float:
    """At least so many rounds are needed until the leading term of Koloskova et al., Theorem 4,
    sigma² / (mu n T), is above that of the network and of the compression, kappa G² / (mu omega²
    delta⁴ T²): gradients are no shorter than their noise, and mu is one over the samples.
    """
    condition = LEAST_CURVATURE * FULL.samples
    dim = PIXELS
    coarse = 1 / (1 + min(dim / LEVELS.value[1] ** 2, dim**0.5 / LEVELS.value[1]))
    part = {WHOLE: 1.0, COARSE: coarse}.get(kind, KEPT.value / dim)
    return workers * condition / (part**2 * left_by_mixing(graph, workers) ** 4)


def rounds_of(workers: int) -> int:
    """The length of the runs of (g) to (i)."""
    return EPOCHS.value * FULL.samples // workers


def busiest(studies: Studies) -> dict[str, Estimate]:
    of = studies["parallel"]["busiest"]

    def ratio(n: int) -> float:
        server, peer = (float(of.sel(algorithm=named(x, n))) for x in (SERVER, RING))
        return server / peer / (n / 2)

    return {f"n = {n}": Estimate.exact(ratio(n), "times") for n in present(studies["parallel"])}


def reach(data: xr.Dataset, name: str, level: float, at: np.ndarray) -> np.ndarray:
    """``[S]``: where on an axis an averaging comes to a level, dB."""
    curves = data[ERROR].sel(algorithm=name).transpose("seed", "round").values.astype(float)
    return first_below(statistics.decibels(np.maximum(curves, 1e-30)), level, at)


#: Schemes of Choco-Gossip, and where they are.
CHOCO = {COARSE: "quantized", TOP: "sparse", RANDOM: "sparse"}


def straight(studies: Studies) -> dict[str, Estimate]:
    """Rounds of the second half of a fall in dB over the rounds of the first half."""

    def ratio(name: str, study: str) -> Estimate:
        data = studies[study]
        start, middle, stop = (
            reach(data, name, level, data["round"].values) for level in LINE.value
        )
        return times(stop - middle, middle - start)

    return {name: ratio(name, study) for name, study in CHOCO.items()}


def as_exact(studies: Studies) -> dict[str, Estimate]:
    data = studies["quantized"]
    rounds = [reach(data, x, COUNT_LEVEL.value, data["round"].values) for x in (COARSE, EXACT)]
    return {f"rounds of {COARSE} over {EXACT}": times(*rounds)}


def stalls(studies: Studies) -> dict[str, Estimate]:
    return {
        f"{naive} above Choco-Gossip, {name}": apart_by(
            end(studies[study], naive, ERROR), end(studies[study], name, ERROR)
        )
        for name, study in CHOCO.items()
        for naive in (Q1, Q2)
    }


def fewer_bits_to_agree(studies: Studies) -> dict[str, Estimate]:
    data = studies["quantized"]
    bits = [
        reach(data, x, COUNT_LEVEL.value, spent(data.sel(algorithm=x))) for x in (EXACT, COARSE)
    ]
    return {f"bits of {EXACT} over {COARSE}": times(*bits)}


def differing(studies: Studies) -> dict[str, Estimate]:
    """How far a ring ends above a complete graph, of every number of workers."""
    cases = by_network(((RING, SORTED), (COMPLETE, SORTED)))(studies)
    return {
        case: if_long_enough(
            of, LITTLE.db.accept, long_enough=rounds_of(n) >= leading_after(RING, n)
        )
        for n, (case, of) in zip(present(studies["networks"]), cases.items(), strict=True)
    }


def by_network(*pairs: tuple[tuple[str, str], tuple[str, str]]) -> Measure:
    """How far one network and order ends above another, of every number of workers."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["networks"]
        return {
            f"{a}, {p} above {b}, {q}, n = {n}": apart_by(
                end(data, named(a, n, p)), end(data, named(b, n, q))
            )
            for n in present(data)
            for (a, p), (b, q) in pairs
        }

    return measure


def compressed_above(studies: Studies) -> dict[str, Estimate]:
    def found(order: str, kind: str) -> Estimate:
        data = studies["messages"].sel(order=order)
        above = apart_by(end(data, kind), end(data, WHOLE))
        long_enough = rounds_of(FEWEST) >= leading_after(RING, FEWEST, kind)
        return if_long_enough(above, LITTLE.db.accept, long_enough=long_enough)

    return {f"{kind}, {order}": found(order, kind) for order in ORDERS for kind in COMPRESSED}


def saved(*kinds: str) -> Measure:
    """Bits of uncompressed over bits of compressed messages, to about the former's final error."""

    def found(data: xr.Dataset, kind: str) -> Estimate:
        level = float(statistics.decibels(GOAL.value * end(data, WHOLE).mean()))

        def needed(name: str) -> np.ndarray:
            of = data.sel(algorithm=name)
            curves = of[GAP].transpose("seed", "round").values.astype(float)
            return first_below(statistics.decibels(curves), level, spent(of))

        return times(needed(WHOLE), needed(kind))

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["messages"]
        return {
            f"{kind}, {order}": found(data.sel(order=order), kind)
            for order in ORDERS
            for kind in kinds
        }

    return measure


def chosen_of(studies: Studies) -> list[dict[str, Any]]:
    """The chosen parameters of each curve."""
    result = []
    for name in ("quantized", "sparse", "networks", "messages"):
        data = studies[name]
        groups = [""] if "order" not in data.dims else data["order"].values.tolist()
        for order in groups:
            chosen = data[CHOSEN]
            chosen = chosen.sel(order=order) if "order" in chosen.dims else chosen
            result += [
                {"method": ", ".join(filter(None, (name, method, order))), "numbers": choice}
                | {"chosen": True}
                for method, choice in zip(
                    data["algorithm"].values.tolist(), chosen.values.tolist(), strict=True
                )
                if choice
            ]
    return result


LIAN = "Lian et al. 2017"
KOLOSKOVA = "Koloskova et al. 2019"
CONDITION = "ours: logistic regression of MNIST's digits, all workers' in random order"
CONVEX = "ours: MNIST in the place of epsilon and rcv1"
VECTORS = "ours: the vectors are images of MNIST, of 196 numbers"
LONGEST = f"of {PASSES.value[-1]} passes"


def mean_gradients(studies: Studies) -> str:
    data = studies["parallel"]
    names = [named(SERVER, 1), named(SERVER, MOST), *(named(g, MOST) for g in GRAPHS.value)]
    text = "; ".join(
        f"{name}: "
        + ", ".join(f"{1e4 * of_run(data, name, passes).mean():.3g}" for passes in PASSES.value)
        for name in names
    )
    return f"Mean squared gradients, times 10⁴, in runs of {PASSES.value} passes: {text}."


def slow_to_mix(studies: Studies) -> str:
    """The rounds of runs, those in which networks mix, and those from which on the theorem is."""
    data = studies["parallel"]

    def row(workers: int) -> str:
        rounds = data["taken"].sel(algorithm=named(RING, workers)).values
        return (
            f"n = {workers} divides differences by e in {1 / left_by_mixing(RING, workers):.3g} "
            f"rounds, the theorem bounds distances after {agreeing_after(workers):,.0f} at least, "
            f"and its runs have {rounds[0]:,.0f} to {rounds[-1]:,.0f}"
        )

    rows = "; ".join(row(n) for n in present(data))
    return f"Not run where a ring is slow: {rows}."


def where_networks_end(studies: Studies) -> str:
    data = studies["networks"]
    text = ", ".join(
        f"{name} {end(data, name).mean():.4f}" for name in data["algorithm"].values.tolist()
    )
    return f"Losses above the least at the end: {text}."


def short_runs(studies: Studies) -> str:
    """The length of the runs compared with the source's, and with its theorem."""
    workers = present(studies["networks"])
    rows = ", ".join(
        f"{rounds_of(n):,} of at least {leading_after(RING, n):.2g} on a ring of {n}"
        for n in workers
    )
    papers = [EPOCHS.value * 400_000 // n for n in (workers[-1], workers[0])]
    return (
        "Not run: the theorem's leading term is the larger one only after many more rounds than "
        f"these runs have, {rows}; over epsilon as many passes are {papers[0]:,} to {papers[1]:,} "
        f"rounds. {where_networks_end(studies)}"
    )


def where_messages_end(studies: Studies) -> str:
    data = studies["messages"]
    text = ", ".join(
        f"{kind}, {order} {end(data.sel(order=order), kind).mean():.4f}"
        for order in ORDERS
        for kind in (WHOLE, *COMPRESSED)
    )
    rows = ", ".join(f"{leading_after(RING, FEWEST, kind):.2g} for {kind}" for kind in COMPRESSED)
    return (
        "Not run where they end farther, as on sorted labels: the theorem's leading term is the "
        f"larger one after {rows} rounds at least, and runs have {rounds_of(FEWEST):,}. Losses "
        f"above the least at the end: {text}."
    )


def at_most(studies: Studies) -> str:
    """The bits saved in a message, regardless of a run's rounds."""
    data = studies["messages"].isel(order=0)
    uncompressed = spent(data.sel(algorithm=WHOLE))[-1]
    text = ", ".join(
        f"{uncompressed / spent(data.sel(algorithm=kind))[-1]:.3g} times for {kind}"
        for kind in COMPRESSED
    )
    return f"A message has fewer bits by {text}, places of numbers counted; no run saves more."


TRANSIENT = (
    "It is a statement about long runs, and was judged in runs that are shorter than its theorem "
    "asks for: where it does not hold there, it is not run."
)

FIGURE = Figure(
    name="field-topology",
    title="D-PSGD and Choco: what a network costs, and how little messages need to say",
    source="Lian et al. 2017; Koloskova et al. 2019, figures 2 to 6",
    caption="(a) Excess loss, that of the mean model above the least, with one server (C-PSGD) and "
    "on a ring (D-PSGD), with the step of Lian et al. for the longest run. (b) The mean squared "
    "gradient over a run by its length: with linear speed-up n workers are n times to the left. "
    "(c) Models that the busiest node sends and receives in a round. (d), (e) Disagreement, the "
    "squared distance from the mean, of Choco-Gossip (qsgd, top and random 1 %) and of models that "
    "are compressed themselves (Q1-G, Q2-G; in (e) to random 1 %), (f) by bits. (g) Where SGD on "
    "networks ends, labels sorted or shuffled among workers; (h), (i) Choco-SGD on a ring of nine. "
    "Steps of (g) to (i) are tuned for each curve. "
    f"Means of {SEEDS.value} seeds with 95 % bands.",
    study=study,
    plot=plot,
    tuning=chosen_of,
    claims=[
        Claim(
            "decentralized-is-as-fast",
            "in as many rounds D-PSGD on a ring comes as far as with a server",
            f"{LIAN}, section 5",
            as_server,
            *CLOSE.db.when(f"loss above the least at the end {LONGEST}"),
            CONDITION,
            note=mean_gradients,
        ),
        Claim(
            "linear-speed-up",
            "n workers need an n-th of the rounds, after enough of them",
            f"{LIAN}, Corollary 2",
            speed_up,
            *CLOSE.db.when(f"mean squared gradient {LONGEST}"),
            CONDITION,
            note=mean_gradients,
        ),
        Claim(
            "speed-up-needs-rounds",
            "the more rounds, the nearer to it",
            f"{LIAN}, Corollary 2",
            falling(named(RING, MOST), named(SERVER, 1)),
            *BETTER.db.when("mean squared gradients of the shortest and the longest runs"),
            CONDITION,
            note=mean_gradients,
        ),
        Claim(
            "network-vanishes",
            "after enough rounds the network does not matter",
            f"{LIAN}, Corollary 2",
            no_network,
            *CLOSE.db.when(f"mean squared gradient {LONGEST}"),
            CONDITION,
            note=mean_gradients,
        ),
        Claim(
            "models-agree",
            "models come together at O(1/K)",
            f"{LIAN}, Theorem 3",
            agreement,
            AGREEING,
            "exponent of the mean squared distance in K: -1 or less, up to 0.2",
            CONDITION,
            note=slow_to_mix,
            changed=TRANSIENT,
        ),
        Claim(
            "busiest-node",
            "the busiest node's traffic is O(n) with a server, and that of its neighbors in a "
            "network",
            f"{LIAN}, table 1",
            busiest,
            (0.99, 1.01),
            "their ratio over n / 2",
            construction="a server hears from and tells n workers, a peer on a ring two",
        ),
        Claim(
            "choco-gossip-is-linear",
            "Choco-Gossip converges linearly, however messages are compressed",
            f"{KOLOSKOVA}, Theorem 2 and section 5.2",
            straight,
            (0, 1.5),
            f"from {LINE.value[1]:g} to {LINE.value[2]:g} dB it takes at most one and a half "
            f"times the rounds of {LINE.value[0]:g} to {LINE.value[1]:g} dB",
            VECTORS,
        ),
        Claim(
            "quantized-is-as-fast",
            "with 256 levels it takes as many rounds as exact messages",
            f"{KOLOSKOVA}, section 5.2",
            as_exact,
            *CLOSE.factor.when(f"rounds to {COUNT_LEVEL.value:g} dB"),
            VECTORS,
        ),
        Claim(
            "naive-gossip-stalls",
            "where models are compressed themselves, nodes do not agree on the mean",
            f"{KOLOSKOVA}, section 5.2",
            stalls,
            *SIGNIFICANTLY.db.when("at the end, above Choco-Gossip"),
            VECTORS,
        ),
        Claim(
            "quantized-saves-bits",
            "and Choco-Gossip has sent fewer bits",
            f"{KOLOSKOVA}, section 5.2",
            fewer_bits_to_agree,
            *BETTER.factor.when(f"bits to {COUNT_LEVEL.value:g} dB"),
            VECTORS,
        ),
        Claim(
            "better-connected-is-faster",
            "on sorted data a torus is better than a ring, and a complete graph than a torus",
            f"{KOLOSKOVA}, section 5.3",
            by_network(((RING, SORTED), (TORUS, SORTED)), ((TORUS, SORTED), (COMPLETE, SORTED))),
            *BETTER.db.when("loss above the least at the end"),
            CONVEX,
            note=where_networks_end,
        ),
        Claim(
            "networks-differ-little",
            "the network affects higher-order terms only",
            f"{KOLOSKOVA}, abstract",
            differing,
            *LITTLE.db.when("loss above the least at the end, on sorted data"),
            CONVEX,
            note=short_runs,
            changed=TRANSIENT,
        ),
        Claim(
            "sorted-is-harder",
            "sorted data are harder than shuffled ones",
            f"{KOLOSKOVA}, section 5.3",
            by_network(((RING, SORTED), (RING, SHUFFLED))),
            *BETTER.db.when("loss above the least at the end, on a ring"),
            CONVEX,
            note=where_networks_end,
        ),
        Claim(
            "compressed-is-as-good",
            "in as many rounds Choco-SGD comes almost as far as with whole messages",
            f"{KOLOSKOVA}, section 5.3",
            compressed_above,
            *LITTLE.db.when("loss above the least at the end"),
            CONVEX,
            note=where_messages_end,
            changed=TRANSIENT,
        ),
        Claim(
            "saves-two-orders",
            "with 1 % of the numbers it communicates two orders of magnitude less",
            f"{KOLOSKOVA}, abstract",
            saved(TOP, RANDOM),
            *orders(2).when(f"bits until {GOAL.value:g} times where whole messages end"),
            CONVEX,
            note=at_most,
        ),
        Claim(
            "saves-bits",
            "it comes as far with fewer bits",
            f"{KOLOSKOVA}, abstract",
            saved(*COMPRESSED),
            *BETTER.factor.when(f"bits until {GOAL.value:g} times where whole messages end"),
            CONVEX,
            note=where_messages_end,
        ),
    ],
    settings=(
        *(DATA, HALVED, LABELS, REGULARIZER, BATCH, WORKERS, GRAPHS, PASSES, CONSTANT, DEAL),
        *(EPOCHS, DELAY, STARTS, NODES, KEPT, LEVELS, CONSENSUS, FINE, TUNED, tuning.SEEDS),
        *(QUANTIZED, SPARSE, CUT, LINE, COUNT_LEVEL, GOAL, RECORDS, END, SEEDS),
    ),
    keep=("bits",),
)
