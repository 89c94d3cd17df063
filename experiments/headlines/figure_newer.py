"""Four later methods: acceleration of compressed descent without strong convexity, sketches of
small clients' gradients, and features that are common and personal.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines import figure_personal as personal
from experiments.headlines.common import (
    bound,
    built,
    chosen,
    compared,
    fewer_errors,
    first_below,
    in_the_median,
    ranked,
    unlike,
)
from experiments.measures import joined, samples
from experiments.own.figure_models import Size, dealt
from fljax import algorithms as A
from fljax import plotting, statistics
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems.solvers import smoothness
from fljax.theory import compression

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients of (a)", 20, "the papers have 10 to 100")
SAMPLES = Setting("samples a client of (a)", 40, "of least squares without a norm")
DIM = Setting("parameters of (a)", 20, "as many standard deviations of features")
SCALES = Setting(
    "least standard deviation of a feature",
    0.001,
    "of the largest, evenly spaced logarithms between: curvatures over six decades, so that the "
    "objective is as good as not strongly convex",
)
SPREAD = Setting("spread of the clients' models", 1.0, "as far apart as from zero")
SENT = Setting("numbers of a compressed message", 10, "a half: omega = 1, and K is above its cube")
LEVEL = Setting(
    "level of numbers of rounds and bits", -20.0, "dB: a hundredth of the start's excess"
)
ROUNDS = Setting(
    "rounds of (a)", 20000, "DIANA is near the level; where not, its end is what counts"
)
MANY = Setting("clients of (b)", 500, "far more than take part, so that most do so a few times")
FEW = Setting("participants of a round", 10, "two in a hundred; the paper has one")
SMALL = Setting("images a client of (b)", 5, "of MNIST, as many as in the paper's CIFAR10")
CONCENTRATION = Setting("concentration of the digits of (b)", 0.01, "mostly one digit a client")
HIDDEN = Setting("hidden units of (b)", 32, "6,634 parameters")
SKETCH = Setting("rows and columns of the sketch", (5, 132), "a tenth of the parameters")
CHANGED = Setting(
    "parameters that FetchSGD changes in a round",
    (20, 66),
    "a seventh and a half of the columns, both tried; the paper's are a tenth and more of them",
)
LARGEST = Setting("numbers of a message of local top-k", 469, "with their indices a tenth, too")
PASSES = Setting("rounds of (b)", 400, "eight passes over all clients; a tenth of it for FedAvg")
MOMENTA = Setting("momenta at the server", (0.0, 0.9), "both tried; the paper's is 0.9")
STEPS = Setting("local steps of FedAvg", (2, 10), "each judged; all images of a client in a step")
STEPS_TRIED = Setting(
    "step sizes of (b)",
    (0.01, 1.0),
    "four a method and momentum at first, further where the best is on the edge; chosen by the "
    "error at the end on five seeds of their own",
)
READ = Setting("rounds of (b) that are read", 40, "the mean over the last")
ALIGNING = Setting(
    "alignment step of FedAS",
    (0.01, 0.1),
    "the authors' and ten times as long; (c) is else as in headline-personal",
)
SEEDS = Setting("seeds", 20, "at most")

HALF = fl.link.RandomK(SENT.value)
ERROR = "error_rate"
SKETCHED = "FetchSGD"
TOP = "local top-k"
WHOLE = "uncompressed SGD"


# --------------------------------------------------------------------------- (a) acceleration


def _relative_excess(now: Snapshot) -> Array:
    """The excess of the objective over the least one, relative to that at zero.

    Of least squares it is a mean square, which single precision does not lose as a difference.
    """
    differences = jnp.stack([now.model[0] - now.optimum, now.optimum])
    squares = jnp.mean(jnp.einsum("knd,md->mkn", now.problem.features, differences) ** 2, (1, 2))
    return squares[0] / squares[1]


EXCESS = Metric(
    "relative_excess",
    _relative_excess,
    "excess of the objective",
    needs={"optimum", "data"},
    decibel=True,
)


def convex(key: Array, name: str) -> fl.Simulation:
    """Steps of the theorems for objectives that are convex and no more."""
    scales = jnp.logspace(0, np.log10(SCALES.value), DIM.value)
    problem = unlike(key, CLIENTS.value, SAMPLES.value, DIM.value, SPREAD.value, scales)
    largest = jnp.max(smoothness(problem))
    omega = HALF.variance(DIM.value)
    step = getattr(compression, name.lower())(largest, omega, CLIENTS.value).step_size
    algorithm = {"DIANA": A.DIANA, "CANITA": A.CANITA}[name](step, compression=HALF)
    return fl.Simulation(problem, algorithm, metrics=[EXCESS])


# --------------------------------------------------------------------------- (b) sketches


class Sent(NamedTuple):
    """An algorithm, and how a simulation compresses its messages."""

    algorithm: A.Algorithm
    compression: Any = None


def sketched(step_size: float, momentum: float, count: int) -> Sent:
    rows, columns = SKETCH.value
    return Sent(
        A.FetchSGD(
            step_size,
            sketch=fl.link.CountSketch(rows, columns),
            count=count,
            momentum=momentum,
            zeroing=True,
            clients_per_round=FEW.value,
        )
    )


def averaged(step_size: float, momentum: float, local_steps: int = 1) -> Sent:
    settings: dict[str, Any] = {"clients_per_round": FEW.value, "local_steps": local_steps}
    return Sent(A.FedAvgM(step_size, momentum=momentum, **settings))


def largest_sent(step_size: float, momentum: float) -> Sent:
    return averaged(step_size, momentum)._replace(compression=fl.link.TopK(LARGEST.value))


_TRIED: dict[str, Any] = {"step_size": STEPS_TRIED.value, "momentum": list(MOMENTA.value)}

#: Methods of all rounds, and those of a tenth of them, whose messages are ten times as long.
EVERY_ROUND = {
    SKETCHED: (sketched, _TRIED | {"count": list(CHANGED.value)}),
    TOP: (largest_sent, _TRIED),
    WHOLE: (averaged, _TRIED),
}
FEW_ROUNDS = {
    f"FedAvg, {steps} steps": (functools.partial(averaged, local_steps=steps), _TRIED)
    for steps in STEPS.value
}


def small_clients(key: Array, algorithm: Sent, size: Size) -> fl.Simulation:
    problem = dealt(key, jnp.asarray(CONCENTRATION.value), size)
    method, compression = algorithm
    return fl.Simulation(problem, method, compression=compression, metrics=[ERROR])


# --------------------------------------------------------------------------- (c) features

#: For each method, its constructor, the searched numbers, and the source of its promise.
METHODS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "FedAS": (
        built(A.FedAS, **personal.STEPS),
        {"step_size": personal.TRIED.value, "alignment_step_size": list(ALIGNING.value)},
        "Yang, Huang and Ye 2024, abstract",
    ),
    "GPFL": (
        built(A.GPFL, **personal.STEPS),
        {"step_size": personal.TRIED.value},
        "Zhang et al. 2023 (GPFL), abstract",
    ),
}
SEARCHED = personal.BASELINES | {name: parts[:2] for name, parts in METHODS.items()}


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    seeds = min(effort.seeds, SEEDS.value)
    rule: dict[str, Any] = {"metric": ERROR, "seeds": seeds, "tuning_seeds": min(seeds, 5)}

    def accelerated(name: str) -> xr.Dataset:
        rounds = 400 if effort.quick else ROUNDS.value
        settings = {"rounds": rounds, "seeds": seeds, "record_every": 50}
        return effort.sweep(f"convex-{name}", bound(convex, name), **settings)

    def tenth(methods: Any, part: int) -> xr.Dataset:
        """The methods with the rounds of ten a record, ``part`` of which they have one."""
        clients = 2 * FEW.value if effort.quick else MANY.value
        rounds = (40 if effort.quick else PASSES.value) // part
        network = fl.models.mlp(10, (HIDDEN.value,))
        size = Size(images, clients, FEW.value, SMALL.value, rounds, network, 10)
        scenario = functools.partial(small_clients, size=size)
        name = f"small-{part}"
        every = {"rounds": rounds, "record_every": 10 // part, "points": 4}
        data = compared(effort, name, scenario, methods, also=("bits_up",), **rule, **every)
        # The numbers of each method are in its `chosen`.
        kept = {
            "chosen": ("algorithm", data["chosen"].values),
            "round": part * data["round"].values,
        }
        return data.reset_coords(drop=True).assign_coords(kept)

    clients, rounds = (6, 10) if effort.quick else (personal.CLIENTS.value, personal.ROUNDS.value)
    network = fl.models.mlp(10, (4 if effort.quick else personal.WIDTH.value,))
    size = Size(images, clients, clients, personal.SAMPLES.value, rounds, network, 10)
    scenario = functools.partial(personal.digits, size=size)
    every = {"rounds": rounds, "record_every": 2, "points": 4}
    names = ["DIANA", "CANITA"]
    return {
        "convex": joined(*map(accelerated, names)).assign_coords(algorithm=names),
        "small": joined(tenth(EVERY_ROUND, 1), tenth(FEW_ROUNDS, 10)),
        "digits": compared(effort, "digits", scenario, SEARCHED, **rule, **every),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("curvatures over six decades", "five images a client", "at the end, paired by seed")
    drawing, axes = picture.panels(titles, columns=3, height=2.6)
    plotting.learning_curves(studies["convex"], EXCESS.name, ax=axes[0])
    axes[0].set_xscale("log")
    axes[0].axhline(LEVEL.value, color="#999999", linewidth=0.8)
    plotting.learning_curves(studies["small"], ERROR, x="bits_up", ax=axes[1])
    axes[1].set_xscale("log")
    ranked(axes[2], studies["digits"], ERROR, personal.END.value, above=personal.ALONE)
    return picture.finish(drawing, "Acceleration, sketches and features")


# --------------------------------------------------------------------------- claims


def spent(count: str) -> Measure:
    """How many times as many rounds, or bits, DIANA needs as CANITA, in the median."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["convex"]

        def spent_at_records(name: str) -> np.ndarray:
            if count == "round":
                return data["round"].values
            return data[count].sel(algorithm=name).mean("seed").values.astype(float)

        def until(name: str) -> np.ndarray:
            curves = statistics.decibels(samples(data, name, EXCESS.name))
            return first_below(curves, LEVEL.value, spent_at_records(name))

        slower = until("DIANA")
        # Where DIANA is not at the level, the ratio is at least that of its end.
        slower = np.where(np.isnan(slower), spent_at_records("DIANA")[-1], slower)
        return {"DIANA over CANITA": in_the_median(slower / until("CANITA"))}

    return measure


def than_others(studies: Studies) -> dict[str, Estimate]:
    """By how many points methods that send as many bits err more than FetchSGD."""
    return {
        case: points
        for other in (TOP, *FEW_ROUNDS)
        for case, points in fewer_errors("small", other, SKETCHED, metric=ERROR, rounds=READ.value)(
            studies
        ).items()
    }


CONVEX = "least squares of twenty clients that differ, curvatures over six decades, theorems' steps"
FIVE = "five hundred clients with five images, mostly of one digit, ten of them a round"

FIGURE = Figure(
    name="headline-newer",
    title="Acceleration, sketches and features",
    source="the papers of the algorithms, cited at each claim",
    caption="(a) Compressed descent with and without acceleration, where the objective is as good "
    "as not strongly convex. (b) Clients with five images each, few of which take part in a round: "
    "FetchSGD's sketches and local top-k have a tenth of a model's numbers in every round, FedAvg "
    "has whole models and several local steps in a tenth of the rounds, and uncompressed SGD ten "
    "times as many bits as the others. (c) Clients with few digits each, as in "
    "headline-personal.",
    study=study,
    plot=plot,
    tuning=chosen("small", "digits"),
    keep=("bits_up",),
    claims=[
        Claim(
            "canita-is-faster",
            "CANITA needs fewer rounds than DIANA where the objective is not strongly convex",
            "Li and Richtarik 2021, abstract",
            spent("round"),
            (1, INFINITE),
            condition=CONVEX,
        ),
        Claim(
            "canita-saves-bits",
            "and fewer bits, although its clients send two messages in a round",
            "Li and Richtarik 2021, abstract; this comparison is ours",
            spent("bits_up"),
            (1, INFINITE),
            condition=CONVEX,
            ours=True,
        ),
        Claim(
            "fetchsgd-beats-local-top-k-and-fedavg",
            "with small clients that seldom take part, FetchSGD errs less than local top-k and "
            "than federated averaging of as many bits",
            "Rothchild et al. 2020, abstract and section 5",
            than_others,
            (0, INFINITE),
            condition=f"{FIVE}, a small network, a tenth of the bits of uncompressed uploads",
            note="The paper counts downloads as well, in which the server's few changed parameters "
            "of FetchSGD save most; here every server sends whole models, and uploads are counted.",
        ),
        *personal.promises(METHODS),
    ],
    settings=[
        *(CLIENTS, SAMPLES, DIM, SCALES, SPREAD, SENT, LEVEL, ROUNDS),
        *(
            MANY,
            FEW,
            SMALL,
            CONCENTRATION,
            HIDDEN,
            SKETCH,
            CHANGED,
            LARGEST,
            PASSES,
            MOMENTA,
            STEPS,
        ),
        *(STEPS_TRIED, READ, ALIGNING, SEEDS),
    ],
)
