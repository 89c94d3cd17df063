"""Acceleration of compressed descent where the objective is not strongly convex."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import bound, first_below, in_the_median, unlike
from experiments.measures import joined, samples
from fljax import algorithms as A
from fljax import plotting, statistics
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems.solvers import smoothness
from fljax.theory import compression

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 20, "the papers have 10 to 100")
SAMPLES = Setting("samples a client", 40, "of least squares without a norm")
DIM = Setting("parameters", 20, "as many standard deviations of features")
SCALES = Setting(
    "least standard deviation of a feature",
    0.001,
    "of the largest, evenly spaced logarithms between: curvatures over six decades, in which no "
    "method is at a linear rate before the end",
)
SPREAD = Setting("spread of the clients' models", 1.0, "as far apart as from zero")
SENT = Setting("numbers of a compressed message", 10, "a half: omega = 1, and K is above its cube")
ROUNDS = Setting("rounds", 20000, "DIANA then falls by a few dB in a decade")
SEEDS = Setting("seeds", 20, "at most")

HALF = fl.link.RandomK(SENT.value)


# --------------------------------------------------------------------------- study


def _relative_excess(now: Snapshot) -> Array:
    """The excess of the objective over the least one, relative to that at zero.

    For least squares it is a mean square, and not a difference that loses digits.
    """
    assert now.optimum is not None
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


def study(effort: Effort) -> Studies:
    names = ["DIANA", "CANITA"]
    settings = {
        "rounds": 400 if effort.quick else ROUNDS.value,
        "seeds": min(effort.seeds, SEEDS.value),
        "record_every": 50,
    }
    runs = [effort.sweep(name, bound(convex, name), **settings) for name in names]
    return {"convex": joined(*runs).assign_coords(algorithm=names)}


def plot(studies: Studies) -> Picture:
    titles = ("rounds", "bits")
    drawing, axes = picture.panels(titles, columns=2, height=2.4)
    for ax, x in zip(axes, ("round", "bits_up"), strict=True):
        plotting.learning_curves(studies["convex"], EXCESS.name, x=x, ax=ax)
        ax.set_xscale("log")
    return picture.finish(drawing, "Acceleration without strong convexity")


# --------------------------------------------------------------------------- claims


def spent(count: str) -> Measure:
    """How many times as many rounds, or bits, DIANA needed for its last excess as CANITA needs for
    the same one, in the median.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["convex"]
        curves = {
            name: statistics.decibels(samples(data, name, EXCESS.name))
            for name in ("DIANA", "CANITA")
        }

        def at_records(name: str) -> np.ndarray:
            if count == "round":
                return data["round"].values
            return data[count].sel(algorithm=name).mean("seed").values.astype(float)

        above = curves["CANITA"] - curves["DIANA"][:, -1:]
        faster = first_below(above, 0.0, at_records("CANITA"))
        # A run that is never there counts as one that is at its end, and no faster.
        faster = np.where(np.isnan(faster), at_records("CANITA")[-1], faster)
        return {"DIANA over CANITA": in_the_median(at_records("DIANA")[-1] / faster)}

    return measure


CONDITION = (
    "least squares of twenty clients that differ, curvatures over six decades, steps of the "
    "theorems, until the excess of DIANA's last round"
)

FIGURE = Figure(
    name="headline-convex",
    title="Acceleration of compressed descent without strong convexity",
    source="the papers of the algorithms, cited at each claim",
    caption="Least squares of clients that differ, with curvatures over six decades: the excess "
    "of the objective over the least one, relative to that at the start, (a) by round and (b) by "
    "the bits that clients send. Messages have half of the numbers, drawn at random; CANITA's "
    "clients send two in a round.",
    study=study,
    plot=plot,
    keep=("bits_up",),
    claims=[
        Claim(
            "canita-is-faster",
            "CANITA needs fewer rounds than DIANA where the objective is not strongly convex",
            "Li and Richtarik 2021, abstract",
            spent("round"),
            (1, INFINITE),
            condition=CONDITION,
        ),
        Claim(
            "canita-saves-bits",
            "and fewer bits, although its clients send two messages in a round",
            "Li and Richtarik 2021, abstract; this comparison is ours",
            spent("bits_up"),
            (1, INFINITE),
            condition=CONDITION,
            ours=True,
        ),
    ],
    settings=[CLIENTS, SAMPLES, DIM, SCALES, SPREAD, SENT, ROUNDS, SEEDS],
    double=True,
)
