"""Rizk 2023, figure 2.6: noise on models, and on updates (section 2.6.4)."""

import numpy as np
from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate, samples
from experiments.rizk import chapter2 as ch2
from fljax import plotting, statistics

ROUNDS = Setting("iterations", 600, "not given; several times what they take to steady states")
RATIO = float(statistics.decibels(1 / ch2.PRIVATE_STEP.value**2))


def study(effort: Effort) -> Studies:
    shared = (ch2.STANDARD, ch2.MODELS, ch2.UPDATES)
    return {
        "a": ch2.private_study("a", effort, ROUNDS.value, shared),
        "a-predicted": ch2.private_prediction("a-predicted", effort, shared),
    }


def above(over: str, under: str):
    return lambda studies: {f"{over} above {under}": ch2.steady_gap(studies["a"], over, under)}


def floors(studies: Studies) -> dict[str, Estimate]:
    """What noise on models adds, over what noise on updates does."""

    def ratio(models: np.ndarray, updates: np.ndarray, without: np.ndarray) -> np.ndarray:
        return statistics.decibels((models - without) / (updates - without))

    data = ch2.steady(studies["a"])
    names = (ch2.MODELS, ch2.UPDATES, ch2.STANDARD)
    result = [samples(data, name, ch2.METRIC).mean(axis=1) for name in names]
    return {"added by models over added by updates": estimate(ratio, *result)}


def plot(studies: Studies) -> Picture:
    drawing, (ax,) = picture.panels(("noise on what is shared",), height=2.6)
    plotting.learning_curves(studies["a"], ch2.METRIC, ax=ax)
    for name in studies["a"]["algorithm"].values.tolist():
        picture.theory(ax, ch2.predicted_level(studies["a-predicted"], name), f"{name}, theory")
    return picture.finish(drawing, "private uploads, 1000 agents, 30 a round")


FIGURE = Figure(
    "rizk-2.6",
    "Noise on models, and on updates",
    "Rizk 2023, figure 2.6, section 2.6.4",
    "Federated averaging whose clients add Laplace noise of one variance to the models that they "
    "send, or to their updates' mean gradients; thin lines are exact second moments.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "worse-when-models-are-shared",
            "the effect of the added noise is worse when models are shared than when updates are",
            "section 2.6.4 on figure 2.6",
            above(ch2.MODELS, ch2.UPDATES),
            (0, INFINITE),
            "steady states, dB",
        ),
        Claim(
            "noise-costs",
            "both kinds of noise raise the steady state above the standard algorithm's",
            "figure 2.6",
            lambda studies: {
                name: ch2.steady_gap(studies["a"], name, ch2.STANDARD)
                for name in (ch2.MODELS, ch2.UPDATES)
            },
            (0, INFINITE),
            "steady states, dB",
        ),
        Claim(
            "by-the-step-squared",
            "in a round noise on updates adds mu^2 times the variance that noise on models does",
            "(2.61)",
            floors,
            (RATIO - 1, RATIO + 1),
            f"what noise adds to steady states is in the ratio 1/mu^2, {RATIO:.1f} dB, within 1 dB",
        ),
    ],
    settings=(*ch2.PRIVATE, ROUNDS, ch2.PREDICTED_SEEDS),
)
