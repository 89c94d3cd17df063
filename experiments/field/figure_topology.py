"""Lian et al. 2017 (D-PSGD) and Koloskova et al. 2019 (Choco): what a network costs, and how little
its messages need to say.

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
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER, CLOSE, LITTLE, SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import LINEAR, first_below
from experiments.measures import exponent, joined, of_few
from experiments.pixels import halved
from fljax import plotting, statistics
from fljax.algorithms import ChocoSGD, Consensus, FedAvg
from fljax.batches import Uniform
from fljax.data import partition
from fljax.data.images import Images
from fljax.link import Compressor, RandomK, TopK
from fljax.link.compression import WORD
from fljax.metrics import Metric, Snapshot
from fljax.problems import LeastSquares, Logistic, Problem, SquaredL2
from fljax.rounds import Round

# --------------------------------------------------------------------------- settings

DATA = Setting(
    "data",
    "MNIST's first 14,400 images",
    "not epsilon and rcv1, which are not at hand: 196 of 2,000 features, and 14,400 of 400,000 "
    "samples, so many that 9, 25 and 64 workers have equally many",
)
HALVED = Setting("pixels", "14 x 14, of length one", "means of 2 x 2; epsilon's rows have length 1")
LABELS = Setting(
    "labels", "digits from five on", "of MNIST, the program of Koloskova et al.", given=True
)
REGULARIZER = Setting("regularizer", "‖w‖²/(2m)", "Koloskova et al., section 5.3", given=True)
BATCH = Setting("samples of a gradient", 1, "Lian et al., Algorithm 1; Koloskova et al.", given=True)
WORKERS = Setting("workers n", (9, 25, 64), "Koloskova et al., section 5.1", given=True)
GRAPHS = Setting(
    "networks",
    ("ring", "torus", "complete"),
    "Koloskova et al., section 5.1; equal weights of a node and its neighbors",
    given=True,
)
PASSES = Setting(
    "passes of (a) and (b)",
    (1, 4, 16),
    "so many gradients in all, shared equally: n workers take 1/n of the rounds",
)
CONSTANT = Setting(
    "step of (a) and (b)",
    "1/(2L + σ√(K/n))",
    "Lian et al., Corollary 2, of K rounds; L = λ_max/4 of the second moments, σ at the start",
    given=True,
)
DEAL = Setting(
    "who has which images",
    "one deal for all seeds",
    "random, or sorted by label and consecutive: on a ring the labels are two arcs, as in "
    "Koloskova et al.; seeds draw the samples of gradients and what compression drops",
)
EPOCHS = Setting("passes of (g) to (i)", 5, "the program of Koloskova et al. has 10")
DELAY = Setting(
    "b of the step a/(t + b), (g) to (i)", 196, "the number of features, as in their program"
)
STARTS = Setting("a/b: first and last candidate", (1.0, 32.0), "and beyond, where the end is best")
NODES = Setting("nodes of (d) to (f)", 25, "a ring, Koloskova et al., section 5.2", given=True)
KEPT = Setting("numbers that are kept", 2, "of 196: 1 %, Koloskova et al., section 5", given=True)
LEVELS = Setting("levels of qsgd", (256, 16), "averaging and learning, section 5", given=True)
CONSENSUS = Setting(
    "consensus step γ: candidates",
    {"qsgd": (0.1, 1.0), "top 1 %": (0.01, 0.32), "random 1 %": (0.0025, 0.08)},
    "around 0.34, 0.04 and 0.01 in their program",
)
TUNED = Setting(
    "tuning",
    "a, and γ where there is one, by the last record",
    "on up to 3 seeds of their own, by fl.tune, of each cell",
)
QUANTIZED = Setting("rounds of (d)", 1500, "the exact scheme ends at the rounding")
SPARSE = Setting("rounds of (e)", 15000, "the slowest scheme falls by 30 dB and more")
CUT = Setting("largest error of (d) and (e)", 1e3, "of the first one; what diverges has it too")
LINE = Setting("levels of a linear rate", (-10.0, -20.0, -30.0), "dB of the first error")
REACHED = Setting("level to which bits of (f) are counted", -30.0, "dB of the first error")
GOAL = Setting(
    "level to which bits of (i) are counted",
    1.25,
    "times where plain messages end, on average over seeds",
)
RECORDS = Setting("records", (25, 50), "of a run, in (a) and (b) and elsewhere, at equal distances")
SEEDS = Setting(
    "seeds at most",
    6,
    "Intervals are Student's t of the jackknife over paired seeds",
)

GAP, NORM, APART, ERROR = "gap", "norm", "apart", "error"
SERVER = "C-PSGD"
RING, TORUS, COMPLETE = GRAPHS.value
SORTED, SHUFFLED = "sorted", "shuffled"
ORDERS = (SORTED, SHUFFLED)
PLAIN, TOP, RANDOM, COARSE = "plain", "top 1 %", "random 1 %", "qsgd"
COMPRESSED = (TOP, RANDOM, COARSE)
EXACT, Q1, Q2, CHOCO = "exact", "Q1-G", "Q2-G", "Choco"
FEWEST, MOST = WORKERS.value[0], WORKERS.value[-1]


def named(where: str, workers: int) -> str:
    return f"{where}, n = {workers}"


# --------------------------------------------------------------------------- compression


@fl.module
class Some(RandomK):
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
      balanced: whether a node compares what it hears with what it said, which keeps the mean
        (Q2-G), or with what it has (Q1-G).
    """

    balanced: bool = fl.static(default=True)

    def step(self, state: Any, now: Round) -> Any:
        model = state.model
        said, inbox = now.link.exchange(model, compression=self.compression)
        heard = inbox.mean(state.mixing)
        if self.balanced:
            model = model + heard - said
        else:
            own = state.mixing.self_weight[:, None]
            model = own * model + heard - own * said
        return state._replace(model=model)


# --------------------------------------------------------------------------- what is learned


class Size(NamedTuple):
    """What is learned, how long."""

    images: Callable[[], Images]
    samples: int
    workers: Sequence[int]
    passes: Sequence[int]
    epochs: int
    shorten: int  # by which (d) and (e) are shorter
    points: int  # candidates of each number


FULL = Size(fl.data.mnist, 14400, WORKERS.value, PASSES.value, EPOCHS.value, 1, 6)
#: What a test can wait for: the package's own sample.
TINY = Size(
    fl.data.mnist_sample, 576, (FEWEST, MOST), (PASSES.value[0], PASSES.value[-1]), 2, 30, 3
)


@functools.cache
def rows_of(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Images of length one, ``[m, D]``, and labels ±1, ``[m]``."""
    known = size.images()
    flat = halved(known.train_images[: size.samples]).reshape(size.samples, -1)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    return flat, np.where(known.train_labels[: size.samples] < 5, -1, 1).astype(np.float32)


class Learned(NamedTuple):
    """A problem of the mean of its clients' objectives, and what is known of it."""

    problem: Problem
    least: float
    curvature: float
    noise: float


@functools.cache
def dealt(size: Size, workers: int, order: str) -> Learned:
    features, labels = rows_of(size)
    whole = np.argsort(labels, kind="stable")
    parts = np.array_split(whole, workers)
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
    signed = np.float64(labels)[:, None] * features
    strength = 1 / len(labels)
    model = np.zeros(features.shape[1])
    for _ in range(20):
        off = 1 / (1 + np.exp(signed @ model))
        slope = strength * model - signed.T @ (shares * off)
        bend = signed.T @ (signed * (shares * off * (1 - off))[:, None])
        model = model - np.linalg.solve(bend + strength * np.eye(len(bend)), slope)
    least = shares @ np.logaddexp(0, -signed @ model) + strength / 2 * model @ model
    moments = signed.T @ (signed * shares[:, None])
    curvature = np.linalg.eigvalsh(moments)[-1] / 4 + strength
    lengths = shares @ np.sum(signed**2, axis=1)
    mean = shares @ signed
    return float(least), float(curvature), float(np.sqrt(lengths - mean @ mean) / 2)


def mean_loss(now: Snapshot, model: Array) -> Array:
    everywhere = jnp.broadcast_to(model[None], now.model.shape)
    return jnp.mean(now.problem.objective(everywhere))


def slope(now: Snapshot) -> Array:
    gradient = jax.grad(functools.partial(mean_loss, now))(jnp.mean(now.model, axis=0))
    return jnp.sum(gradient**2)


def apart(now: Snapshot) -> Array:
    return jnp.mean(jnp.sum((now.model - jnp.mean(now.model, axis=0)[None]) ** 2, axis=1))


def above(least: float) -> Metric:
    """Of the mean model's loss above the least."""

    def gap(now: Snapshot) -> Array:
        return mean_loss(now, jnp.mean(now.model, axis=0)) - least

    return Metric(GAP, gap, "loss above the least", decibel=True, needs_data=True)


SLOPE = Metric(NORM, slope, "squared gradient", decibel=True, needs_data=True)
DISTANCE = Metric(APART, apart, "squared distance from the mean model", decibel=True)


def of_start(now: Snapshot) -> Array:
    """The squared distance from the mean of the first vectors, over that of the first ones."""
    start = now.problem.initial
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
    """The step ``a/(t + b)``, of which ``a/b`` is the first."""

    first: Any

    def __call__(self, round: Array) -> Array:
        passed = round.astype(jnp.result_type(self.first)) - 1
        return self.first * DELAY.value / (DELAY.value + passed)


@functools.cache
def parallel(where: str, workers: int, size: Size) -> Callable[..., fl.Simulation]:
    """A server, or peers, with a constant step."""
    known = dealt(size, workers, SHUFFLED)
    single = Uniform(BATCH.value)

    def build(key: Array, step: Array) -> fl.Simulation:
        metrics = [above(known.least), SLOPE, DISTANCE]
        if where == SERVER:
            served = FedAvg(step, local_steps=1, batches=single)
            return fl.Simulation(known.problem, served, metrics=metrics)
        peers = Consensus(step, batches=single)
        return fl.Simulation(known.problem, peers, network(where, workers), metrics=metrics)

    build.__qualname__ = f"parallel({where}, {workers}, {size.samples})"
    return build


@functools.cache
def learning(
    graph: str, workers: int, order: str, size: Size
) -> Callable[..., fl.Simulation]:
    known = dealt(size, workers, order)

    def build(key: Array, algorithm: fl.algorithms.Algorithm) -> fl.Simulation:
        place = network(graph, workers)
        return fl.Simulation(known.problem, algorithm, place, metrics=[above(known.least)])

    build.__qualname__ = f"learning({graph}, {workers}, {order}, {size.samples})"
    return build


@functools.cache
def averaging(size: Size) -> Callable[..., fl.Simulation]:
    """Images at random, one a node; nothing is learned."""
    features, _ = rows_of(size)
    nothing = np.zeros((NODES.value, 1, features.shape[1]), np.float32)
    problem = Problem(nothing, nothing[:, :, 0], LeastSquares())

    def build(key: Array, algorithm: fl.algorithms.Algorithm) -> fl.Simulation:
        drawn = jax.random.choice(key, len(features), (NODES.value,), replace=False)
        place = network(RING, NODES.value)
        start = jnp.asarray(features)[drawn]
        return fl.Simulation(problem.starting_at(start), algorithm, place, metrics=[FROM_MEAN])

    build.__qualname__ = f"averaging({size.samples})"
    return build


# --------------------------------------------------------------------------- study


def spaced(rounds: int, records: int) -> dict[str, int]:
    """As many records at equal distances, and about as many rounds."""
    every = max(1, rounds // records)
    return {"rounds": every * records, "record_every": every}


Methods = Mapping[str, tuple[Callable[..., Any], Mapping[str, tuple]]]


def tuned(
    effort: Effort,
    name: str,
    scenario: Callable[..., fl.Simulation],
    methods: Methods,
    metric: str,
    size: Size,
    length: Mapping[str, int],
) -> xr.Dataset:
    """Methods with the numbers whose last record is best on other seeds, and these numbers."""
    searched = {method: of for method, of in methods.items() if of[1]}
    found, numbers = {method: build() for method, (build, given) in methods.items() if not given}, {}
    if searched:
        best = fl.tune(
            scenario,
            searched,
            metric=metric,
            seeds=min(effort.tuning_seeds, 3),
            points=size.points,
            extensions=0 if effort.quick else 1,
            refinements=0,
            store=None if effort.store is None else effort.store / f"tuning-{name}",
            **length,
        )
        found, numbers = found | dict(best.methods), best.chosen
    result = effort.sweep(
        name,
        scenario,
        grid={"algorithm": {method: found[method] for method in methods}},
        seeds=min(effort.seeds, SEEDS.value),
        **length,
    )
    said = [
        ", ".join(f"{key} = {value:.3g}" for key, value in numbers.get(method, {}).items())
        for method in methods
    ]
    return result[[metric, "diverged", "bits"]].assign_coords(chosen=("algorithm", said))


def by_record(result: xr.Dataset) -> xr.Dataset:
    """Rounds as the number of their record: runs of unlike length have as many."""
    return result.assign_coords(round=1 + np.arange(result.sizes["round"]))


def speeding(effort: Effort, size: Size) -> xr.Dataset:
    """All of a run's squared gradients and distances as their means."""
    cells = [(SERVER, 1), *((SERVER, n) for n in size.workers), *((RING, n) for n in size.workers)]
    cells += [(graph, MOST) for graph in (TORUS, COMPLETE)]

    def run(where: str, workers: int, passes: int) -> xr.Dataset:
        length = spaced(passes * size.samples // workers, RECORDS.value[0])
        known, rounds = dealt(size, workers, SHUFFLED), length["rounds"]
        step = 1 / (2 * known.curvature + known.noise * (rounds / workers) ** 0.5)
        result = effort.sweep(
            f"parallel-{where}-{workers}-{passes}",
            parallel(where, workers, size),
            grid={"step": [step]},
            seeds=min(effort.seeds, SEEDS.value),
            **length,
        ).isel(step=0, drop=True)
        # The busiest is the server, or any peer: all have as many neighbors. Models in and out.
        models = result["bits"].isel(round=-1) / (WORD * known.problem.dim * rounds)
        share = 1 if where == SERVER else 2 / workers
        means = {name: result[name].mean("round") for name in (NORM, APART)}
        result = by_record(result[[GAP]]).assign(means)
        return result.assign(busiest=share * models, rounds=rounds)

    names = [named(where, workers) for where, workers in cells]
    parts = [
        joined(*(run(*cell, passes) for cell in cells)).assign_coords(algorithm=names)
        for passes in size.passes
    ]
    return joined(*parts, axis="passes").assign_coords(passes=[*size.passes])


def first_step(cls: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    def build(first: float, **numbers: float) -> Any:
        return cls(Decay(first), batches=Uniform(BATCH.value), **fixed, **numbers)

    return build


def gamma(kind: str) -> tuple:
    """The candidates; quantization has its best near one, which is the end."""
    found = CONSENSUS.value[kind]
    return (*found, "linear") if kind == COARSE else found


def compressors(levels: int) -> dict[str, Compressor]:
    return {TOP: TopK(KEPT.value), RANDOM: Some(KEPT.value), COARSE: QSGD(levels)}


def gossiping(effort: Effort, size: Size) -> dict[str, xr.Dataset]:
    def naive(compression: Compressor) -> Methods:
        return {
            name: (
                functools.partial(
                    *(Naive, 1.0),
                    compression=compression,
                    consensus_step_size=1.0,
                    balanced=name == Q2,
                ),
                {},
            )
            for name in (Q1, Q2)
        }

    def choco(compression: Compressor, kind: str) -> tuple:
        def build(consensus_step_size: float) -> ChocoSGD:
            return ChocoSGD(1.0, compression=compression, consensus_step_size=consensus_step_size)

        return build, {"consensus_step_size": gamma(kind)}

    def run(name: str, methods: Methods, rounds: int) -> xr.Dataset:
        length = spaced(rounds // size.shorten, 3 * RECORDS.value[1])
        found = tuned(effort, name, averaging(size), methods, ERROR, size, length)
        # What diverges is as bad as can be.
        error = found[ERROR].where(found["diverged"] == 0, CUT.value)
        clipped = error.fillna(CUT.value).clip(max=CUT.value).assign_attrs(found[ERROR].attrs)
        return found.assign({ERROR: clipped}).drop_vars("diverged")

    exact = {EXACT: (functools.partial(Consensus, 1.0), {})}
    fine, kinds = LEVELS.value[0], compressors(LEVELS.value[0])
    dense = exact | {CHOCO: choco(kinds[COARSE], COARSE)} | naive(QSGD(fine, shrunk=False))
    sparse = exact | {kind: choco(kinds[kind], kind) for kind in (TOP, RANDOM)}
    return {
        "quantized": run("quantized", dense, QUANTIZED.value),
        "sparse": run("sparse", sparse | naive(RandomK(KEPT.value)), SPARSE.value),
    }


def over_networks(effort: Effort, size: Size) -> dict[str, xr.Dataset]:
    step = {"first": STARTS.value}
    kinds = compressors(LEVELS.value[1])

    def run(graph: str, workers: int, order: str, methods: Methods) -> xr.Dataset:
        length = spaced(size.epochs * size.samples // workers, RECORDS.value[1])
        name = f"{graph}-{workers}-{order}-{len(methods)}"
        scenario = learning(graph, workers, order, size)
        return by_record(tuned(effort, name, scenario, methods, GAP, size, length))

    plain = {PLAIN: (first_step(Consensus), step)}
    compressed = {
        kind: (
            first_step(ChocoSGD, compression=kinds[kind]),
            step | {"consensus_step_size": gamma(kind)},
        )
        for kind in COMPRESSED
    }
    cells = [(graph, workers) for workers in size.workers for graph in GRAPHS.value]
    networks, messages = [], []
    for order in ORDERS:
        parts = [run(*cell, order, plain) for cell in cells]
        names = [named(*cell) for cell in cells]
        networks.append(joined(*parts).assign_coords(algorithm=names))
        least = parts[cells.index((RING, FEWEST))]
        messages.append(joined(least, run(RING, FEWEST, order, compressed)))
    both = {"networks": networks, "messages": messages}
    return {
        name: joined(*parts, axis="order").assign_coords(order=[*ORDERS])
        for name, parts in both.items()
    }


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL
    return {
        "parallel": speeding(effort, size),
        **gossiping(effort, size),
        **over_networks(effort, size),
    }
