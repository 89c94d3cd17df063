"""Rizk 2023, figure 2.6: noise on models, and on updates (section 2.6.4)."""

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER
from experiments.figure import Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate, samples
from experiments.rizk import chapter2 as ch2
from fljax import statistics
from fljax.metrics.definitions import Metric

ROUNDS = Setting("iterations", 600, "not given; several times what they take to steady states")
RATIO = float(statistics.decibels(1 / ch2.PRIVATE_STEP.value**2))
NOISY = (ch2.MODELS, ch2.UPDATES)

MODEL = Metric(
    "server", lambda now: jnp.asarray(now.shared), "the server's model", dims=("parameter",)
)


def watched(key: Array, shared: str) -> fl.Simulation:
    """The scenario, with the model as a metric."""
    return ch2.private_scenario(key, shared, metrics=(ch2.METRIC, MODEL))


def study(effort: Effort) -> Studies:
    shared = (ch2.STANDARD, *NOISY)
    return {
        "a": ch2.private_study("a", effort, ROUNDS.value, shared, build=watched),
        "a-predicted": ch2.private_prediction("a-predicted", effort, shared),
    }


def above(over: str, under: str):
    return lambda studies: {f"{over} above {under}": ch2.steady_gap(studies["a"], over, under)}


def added(studies: Studies, name: str) -> xr.DataArray:
    """``[S, rounds]``: the squared distance from the run without noise on the same draws."""
    models = studies["a"][MODEL.name]
    moved = models.sel(algorithm=name) - models.sel(algorithm=ch2.STANDARD)
    return (moved**2).sum("parameter").transpose("seed", "round")


def floors(studies: Studies) -> dict[str, Estimate]:
    """The deviation added by noise on models, over that by noise on updates."""

    def ratio(models: np.ndarray, updates: np.ndarray) -> np.ndarray:
        return statistics.decibels(models / updates)

    levels = (added(studies, name).mean("round").values for name in NOISY)
    return {"added by models over added by updates": estimate(ratio, *levels)}


def short(studies: Studies) -> str:
    curve = samples(studies["a"], ch2.UPDATES, ch2.METRIC).mean(axis=0)
    rest = ch2.level(studies["a"], ch2.UPDATES)
    count = int(np.argmax(statistics.decibels(curve) < rest + 10))
    rounds = studies["a"]["round"].values
    return (
        f"With this step size the fall is over after {rounds[count]} iterations, of which "
        f"{count} are recorded: too few to tell how straight it is."
    )


def draw_added(ax: Axes, studies: Studies) -> None:
    """The deviation added by noise, and its theoretical steady state."""
    predicted = {
        name: 10 ** (ch2.predicted_level(studies["a-predicted"], name) / 10)
        for name in (ch2.STANDARD, *NOISY)
    }
    for index, name in enumerate(NOISY):
        curve = statistics.decibels(added(studies, name).mean("seed").values)
        ax.plot(studies["a"]["round"], curve, label=name, markevery=(index, 19), **ch2.LOOKS[name])
        level = float(statistics.decibels(predicted[name] - predicted[ch2.STANDARD]))
        picture.theory(ax, level, f"{name}, theory")
    ax.set_xlabel("iteration")
    ax.set_ylabel("added by noise [dB]")


def plot(studies: Studies) -> Picture:
    titles = ("noise on what is shared", "what noise adds, on the same draws")
    drawing, (curves, difference) = picture.panels(titles, height=2.4)
    ch2.draw(curves, studies["a"])
    ch2.draw_medians(curves, studies["a"])
    for name in studies["a"]["algorithm"].values.tolist():
        level = ch2.predicted_level(studies["a-predicted"], name)
        picture.theory(curves, level, f"{name}, theory")
    draw_added(difference, studies)
    return picture.finish(drawing, "private uploads, 1000 agents, 30 a round")


FIGURE = Figure(
    "rizk-2.6",
    "Noise on models, and on updates",
    "Rizk 2023, figure 2.6, section 2.6.4",
    "Federated averaging whose clients add Laplace noise of one variance to the models that they "
    "send, or to their updates' mean gradients; thin lines are medians of the runs and exact "
    "second moments. (b) is ours: how far the same run is moved by the noise alone.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "worse-when-models-are-shared",
            "the effect of the added noise is worse when models are shared than when updates are",
            "section 2.6.4 on figure 2.6",
            above(ch2.MODELS, ch2.UPDATES),
            *BETTER.db.when(ch2.RESTING),
        ),
        Claim(
            "noise-costs",
            "both kinds of noise raise the steady state above the standard algorithm's",
            "figure 2.6",
            lambda studies: {
                name: ch2.steady_gap(studies["a"], name, ch2.STANDARD) for name in NOISY
            },
            *BETTER.db.when(ch2.RESTING),
        ),
        Claim(
            "by-the-step-squared",
            "in a round noise on updates adds mu^2 times the variance that noise on models does",
            "(2.61)",
            floors,
            (RATIO - 0.01, RATIO + 0.01),
            f"what noise adds in all iterations is in the ratio 1/mu^2, {RATIO:.2f} dB, within a "
            "hundredth, the rounding of what is stored",
            changed="Runs with noise are compared with the same runs without, in double precision, "
            "where the ratio is exact; before, differences of means left it undecided (13.0 dB, "
            "11.8 to 14.0).",
        ),
        Claim(
            "exponential",
            "the privatized algorithm converges exponentially to a neighborhood of the minimizer",
            "Theorem 2.2",
            ch2.exponential(ch2.UPDATES),
            (0.8, 1.25),
            ch2.STRAIGHT,
            note=short,
            changed="New: the theorem, which was left out.",
        ),
    ],
    settings=(*ch2.PRIVATE, ROUNDS, ch2.PREDICTED_SEEDS),
    table=ch2.quantiles("a"),
    double=True,
)
