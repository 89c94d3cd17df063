"""Rizk 2023, section 5.2: the mean-square deviation of asynchronous agents in closed form."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture
from scipy import stats

import fljax as fl
from experiments import conventions as words
from experiments import picture
from experiments.figure import Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.rizk import chapter5 as ch5
from experiments.rizk import network as net
from fljax import plotting, statistics
from fljax.algorithms import ATC, Algorithm, FedAvg
from fljax.link import Independent
from fljax.participation.patterns import Bernoulli
from fljax.problems.batches import Uniform
from fljax.theory import multiagent as theory

STEP = Setting("step size mu", 0.02, "a time constant of 25 rounds or so, all taking part")
ROUNDS = Setting("iterations", 6000, "the last half are a steady state at the smallest step, too")
PROBABILITIES = Setting(
    "probabilities of taking part", (0.1, 0.25, 0.5, 0.75, 1.0), "from rarely to always"
)
STEPS = Setting(
    "step sizes", (0.005, 0.01, 0.02, 0.05, 0.1), "around that; with all single samples stable"
)
HALF = Setting("probability against step sizes", 0.5, "the middle of the range")
LOSS = Setting("probabilities of a link's failure", (0.0, 0.3, 0.6, 0.9), "both directions fail")
UNEQUAL = Setting(
    "unequal probabilities",
    (0.1, 1.0),
    "in equal steps, the rarest first, by the first parameter of agents' own models: who is there "
    "depends on what is learned there",
)
CURVES = Setting("(a) probabilities, and iterations", (0.1, 0.5, 1.0), "and the first 500")
SHORT = {"rounds": 500, "record_every": 5}
METHODS: dict[str, Callable[[Array | float], Algorithm]] = {
    ch5.ATC: lambda step: ATC(step, batches=Uniform(1)),
    ch5.FEDAVG: lambda step: FedAvg(step, batches=Uniform(1), local_steps=2, normalized=True),
}


def scenario(
    key: Array,
    algorithm: str,
    unlike: Array | float,
    step_size: Array | float = STEP.value,
    probability: Array | float = HALF.value,
) -> fl.Simulation:
    """Agents that participate at random."""
    return fl.Simulation(
        ch5.world(unlike),
        METHODS[algorithm](step_size),
        ch5.graph() if algorithm == ch5.ATC else None,
        participation=Bernoulli(probability),
        metrics=[ch5.METRIC],
    )


def with_losses(key: Array, loss: Array | float, unlike: Array | float) -> fl.Simulation:
    """Peers that participate at random, over links that fail."""
    return fl.Simulation(
        ch5.world(unlike),
        METHODS[ch5.ATC](STEP.value),
        ch5.graph(),
        participation=Bernoulli(HALF.value),
        losses=Independent(loss),
        metrics=[ch5.METRIC],
    )


@net.drawn_once
def often() -> Array:
    """The participation probabilities of agents if they are unequal."""
    rank = jnp.argsort(jnp.argsort(theory.local_minimizers(ch5.world(1.0))[:, 0]))
    least, most = UNEQUAL.value
    return jnp.linspace(least, most, ch5.AGENTS.value)[rank]


def unequal(key: Array, algorithm: str, step_size: Array | float) -> fl.Simulation:
    """Dissimilar agents with unequal participation."""
    return scenario(key, algorithm, ch5.UNLIKE.value["unlike"], step_size, often())


LABELS = {
    "probability": "probability",
    "step_size": "step size",
    "loss": "failing links",
    "unequal": "unequal probabilities",
}
TITLES = {
    "probability": "by probability",
    "step_size": "by step size, half there",
    "loss": "ATC, links that fail",
    "unequal": "unequal, unlike agents",
}
AXES = {name: name for name in ("probability", "step_size", "loss")} | {"unequal": "step_size"}
NAMES = {
    "probability": "probability of taking part",
    "step_size": "step size μ",
    "loss": "probability of a link's failure",
}


def study(effort: Effort) -> Studies:
    unlike = list(ch5.UNLIKE.value.values())
    methods = list(METHODS)
    axes = {
        "probability": {"algorithm": methods, "unlike": unlike, "probability": PROBABILITIES.value},
        "step_size": {"algorithm": methods, "unlike": unlike, "step_size": STEPS.value},
        "loss": {"unlike": unlike, "loss": LOSS.value},
        "unequal": {"algorithm": methods, "step_size": STEPS.value},
    }
    builds = {"loss": with_losses, "unequal": unequal}
    settings = {"rounds": ROUNDS.value, "seeds": effort.seeds, "record_every": 20}
    studies: dict[str, xr.Dataset] = {}
    for name, grid in axes.items():
        build = builds.get(name, scenario)
        (last, values) = list(grid.items())[-1]
        grid = grid | {last: effort.thin(values)}
        studies[name] = net.late(effort.sweep(name, build, grid=grid, **settings))
        studies[f"{name}-theory"] = ch5.predicted(build, grid)
    curve_axes = {"algorithm": [ch5.ATC], "unlike": [0.0], "probability": CURVES.value}
    studies["curves"] = effort.sweep("curves", scenario, grid=curve_axes, **settings | SHORT)
    studies["curves-theory"] = ch5.predicted(scenario, curve_axes, ch5.on_the_way(SHORT["rounds"]))
    return {name: ch5.labeled(data) for name, data in studies.items()}


# --------------------------------------------------------------------------- the claims


def rarely(studies: Studies) -> dict[str, Estimate]:
    """The theoretical deviation of identical agents that are rarely present, above its first-order
    value. A peer's step and its square are equally rare; a server's noise is that of a mean over
    the present agents, if any.
    """
    level = studies["probability-theory"][ch5.METRIC].sel(unlike="alike")
    agents = ch5.AGENTS.value
    probability = min(PROBABILITIES.value)
    present = np.arange(1, agents + 1)
    chance = stats.binom.pmf(present, agents, probability)
    expected = {ch5.ATC: 1.0, ch5.FEDAVG: agents * (chance @ (1 / present)) / chance.sum()}
    ratio = level.sel(probability=probability) / level.sel(probability=1.0)
    return {
        name: Estimate.exact(float(statistics.decibels(float(ratio.sel(algorithm=name)) / factor)))
        for name, factor in expected.items()
    }


def power(name: str) -> Measure:
    """The power of the step size with which a deviation falls, from the two smallest steps."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        level = studies["unequal-theory"][ch5.METRIC].sel(algorithm=name)[:2]
        exponents = np.diff(np.log(level.values)) / np.diff(np.log(level["step_size"].values))
        return {name: Estimate.exact(exponents.item(), "")}

    return measure


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = ["ATC, on the way", *(TITLES[name] for name in LABELS)]
    drawing, axes = picture.panels(titles)
    curves = studies["curves"].squeeze(["algorithm", "unlike"], drop=True)
    plotting.learning_curves(curves, ch5.METRIC, "probability", axes[0])
    picture.fade(axes[0])
    for index, probability in enumerate(CURVES.value):
        line = studies["curves-theory"][ch5.METRIC].sel(probability=probability).values.ravel()
        text = "_" if index else "theory"
        rounds = studies["curves-theory"]["round"].values
        picture.predicted_curve(axes[0], rounds, statistics.decibels(line), text)
    for ax, (name, axis) in zip(axes[1:], AXES.items(), strict=True):
        ch5.draw_levels(ax, studies[name], studies[f"{name}-theory"], axis)
        ax.set(xlabel=NAMES[axis], ylabel="MSD [dB]")
        if axis == "step_size":
            ax.set_xscale("log")
    return picture.finish(drawing, "lines: exact moments; points: means over runs")


FIGURE = Figure(
    name="rizk-5.1",
    title="The mean-square deviation of asynchronous agents",
    source="Rizk 2023, section 5.2, its third question",
    caption="Agents that participate at random, on single samples: peers (ATC), of whom an absent "
    "one stands still and is heard as it was last, and federated averaging of two local steps, "
    "whose server averages those who are there. Lines are moments by fljax.theory.multiagent of "
    "the same data, exact at every step size. (d): half of the peers, and links that fail. (e): "
    "unlike agents of whom some take part more often. All curves ours.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "closed-form",
            "the mean-square deviation of asynchronous networks and of federated learning has a "
            "closed form: runs come to what it says",
            "section 5.2, asked",
            ch5.agreement(LABELS),
            *words.SAME.db,
            ours=True,
        ),
        Claim(
            "rarely-is-slower",
            "to first order, alike peers that take part rarely come to the same deviation, later, "
            "and a server to that of as many clients as are there",
            "section 5.2, on “the effect of the different parameters”",
            rarely,
            *words.SAME.db,
            ours=True,
            note=lambda studies: (
                f"At a step of {STEP.value:g} and a probability of {min(PROBABILITIES.value):g} it "
                "is off by "
                + "; ".join(f"{name} {e}" for name, e in rarely(studies).items())
                + ": what absent peers said last is old."
            ),
        ),
        Claim(
            "unequal-biases-a-server",
            "where unlike agents take part unequally, a server that averages those who are there "
            "learns another model: its deviation does not vanish with the step size",
            "section 5.2, on “without biasing the learned model”",
            power(ch5.FEDAVG),
            *words.order(0),
            ours=True,
        ),
        Claim(
            "unequal-does-not-bias-peers",
            "peers who hear absent ones as they were last do not: who is rarely there steps rarely "
            "and counts as much more while it stands still",
            "section 5.2, on “without biasing the learned model”",
            power(ch5.ATC),
            *words.at_most_order(1),
            ours=True,
        ),
    ],
    settings=(
        *ch5.COMMON,
        ch5.GRAPH,
        *(STEP, ROUNDS, PROBABILITIES, STEPS, HALF, LOSS, UNEQUAL, CURVES),
    ),
    double=True,
)
