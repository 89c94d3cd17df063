"""Later methods: sketches of small clients' gradients, and common and personal features."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.headlines import figure_personal as personal
from experiments.headlines.common import (
    built,
    chosen,
    compared,
    counting,
    fewer_errors,
    ranked,
)
from experiments.measures import joined
from experiments.own.figure_models import Size, dealt
from fljax import algorithms as A
from fljax import plotting

# --------------------------------------------------------------------------- settings

MANY = Setting("clients of (a)", 500, "far more than take part, so that most do so a few times")
FEW = Setting("participants of a round", 10, "two in a hundred; the paper has one")
SMALL = Setting("images a client of (a)", 5, "of MNIST, as many as in the paper's CIFAR10")
CONCENTRATION = Setting("concentration of the digits of (a)", 0.01, "mostly one digit a client")
HIDDEN = Setting("hidden units of (a)", 32, "6,634 parameters")
SKETCH = Setting("rows and columns of the sketch", (5, 132), "a tenth of the parameters")
CHANGED = Setting(
    "parameters that FetchSGD changes in a round",
    (20, 66),
    "a seventh and a half of the columns, both tried; the paper's are a tenth and more of them",
)
LARGEST = Setting("numbers of a message of local top-k", 469, "with their indices a tenth, too")
PASSES = Setting("rounds of (a)", 400, "eight passes over all clients; a tenth of it for FedAvg")
MOMENTA = Setting("momenta at the server", (0.0, 0.9), "both tried; the paper's is 0.9")
STEPS = Setting("local steps of FedAvg", (2, 10), "each judged; all images of a client in a step")
STEPS_TRIED = Setting(
    "step sizes of (a)",
    (0.01, 1.0),
    "four a method and momentum at first, further where the best is on the edge; chosen by the "
    "error at the end on five seeds of their own",
)
READ = Setting("rounds of (a) that are read", 40, "the mean over the last")
ALIGNING = Setting(
    "alignment step of FedAS",
    (0.01, 0.1),
    "the authors' and ten times as long; (b) is else as in headline-personal",
)
SEEDS = Setting("seeds", 20, "at most")

ERROR = "error_rate"
SKETCHED = "FetchSGD"
TOP = "local top-k"
WHOLE = "uncompressed SGD"


# --------------------------------------------------------------------------- (a) sketches


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

#: Methods that run in every round, and methods with a tenth of the rounds and messages ten times
#: as long.
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


# --------------------------------------------------------------------------- (b) features

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
    rule: dict[str, Any] = {"metric": ERROR, "seeds": seeds}

    def of_small_clients(methods: Any, part: int) -> xr.Dataset:
        """One record in ten rounds, of methods that run in every ``part``-th of them."""
        clients = 2 * FEW.value if effort.quick else MANY.value
        rounds = (40 if effort.quick else PASSES.value) // part
        network = fl.models.mlp(10, (HIDDEN.value,))
        size = Size(images, clients, FEW.value, SMALL.value, rounds, network, 10)
        scenario = functools.partial(small_clients, size=size)
        name = f"small-{part}"
        every = {"rounds": rounds, "record_every": 10 // part}
        data = compared(effort, name, scenario, methods, also=("bits_up",), **rule, **every)
        return counting(data, part)

    clients, rounds = (6, 10) if effort.quick else (personal.CLIENTS.value, personal.ROUNDS.value)
    network = fl.models.mlp(10, (4 if effort.quick else personal.WIDTH.value,))
    size = Size(images, clients, clients, personal.SAMPLES.value, rounds, network, 10)
    scenario = functools.partial(personal.digits, size=size)
    return {
        "small": joined(of_small_clients(EVERY_ROUND, 1), of_small_clients(FEW_ROUNDS, 10)),
        "digits": compared(effort, "digits", scenario, SEARCHED, rounds=rounds, **rule),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("five images a client", "at the end, paired by seed")
    drawing, axes = picture.panels(titles, columns=2, height=2.6)
    plotting.learning_curves(studies["small"], ERROR, x="bits_up", ax=axes[0])
    axes[0].set_xscale("log")
    ranked(axes[1], studies["digits"], ERROR, personal.END.value, above=personal.ALONE)
    return picture.finish(drawing, "Sketches and features")


# --------------------------------------------------------------------------- claims


FIVE = "five hundred clients with five images, mostly of one digit, ten of them a round"

FIGURE = Figure(
    name="headline-newer",
    title="Sketches of small clients' gradients, and common and personal features",
    source="the papers of the algorithms, cited at each claim",
    caption="(a) Clients with five images each, few of which take part in a round: "
    "FetchSGD's sketches and local top-k have a tenth of a model's numbers in every round, FedAvg "
    "has whole models and several local steps in a tenth of the rounds, and uncompressed SGD ten "
    "times as many bits as the others. (b) Clients with few digits each, as in "
    "headline-personal.",
    study=study,
    plot=plot,
    tuning=chosen("small", "digits"),
    keep=("bits_up",),
    claims=[
        Claim(
            "fetchsgd-beats-local-top-k-and-fedavg",
            "with small clients that seldom take part, FetchSGD errs less than local top-k and "
            "than federated averaging of as many bits",
            "Rothchild et al. 2020, abstract and section 5",
            fewer_errors("small", (TOP, *FEW_ROUNDS), SKETCHED, metric=ERROR, rounds=READ.value),
            (0, INFINITE),
            condition=f"{FIVE}, a small network, a tenth of the bits of uncompressed uploads",
            note="The paper counts downloads as well, in which the server's few changed parameters "
            "of FetchSGD save most; here every server sends whole models, and uploads are counted.",
        ),
        *personal.promises(METHODS),
    ],
    settings=[
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
