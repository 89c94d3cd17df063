"""Rizk 2023, section 5.2: the mean-square deviation of asynchronous agents in closed form."""

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import conventions as words
from experiments import measures, picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import last_part, samples
from experiments.rizk import chapter5 as ch5
from fljax import plotting, statistics
from fljax.algorithms import ATC, Algorithm, FedAvg
from fljax.batches import Uniform
from fljax.link import Independent
from fljax.participation import Bernoulli
from fljax.theory import multiagent as theory

STEP = Setting("step size mu", 0.02, "a time constant of 25 rounds or so, all taking part")
ROUNDS = Setting("iterations", 2000, "twenty time constants where agents take part rarely")
SEEDS = Setting("seeds", 40, "at most: each has a thousand rounds of its steady state")
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
METRIC = "mean_square_deviation"
ATC_NAME, FED = "ATC", "FedAvg"
METHODS: dict[str, Callable[[Array | float], Algorithm]] = {
    ATC_NAME: lambda step: ATC(step, batches=Uniform(1)),
    FED: lambda step: FedAvg(step, batches=Uniform(1), local_steps=2, normalized=True),
}


def scenario(
    key: Array,
    method: str,
    unlike: Array | float,
    step_size: Array | float = STEP.value,
    probability: Array | float = HALF.value,
) -> fl.Simulation:
    """Agents that take part by chance."""
    return fl.Simulation(
        ch5.world(unlike),
        METHODS[method](step_size),
        ch5.graph() if method == ATC_NAME else None,
        participation=Bernoulli(probability),
        metrics=[METRIC],
    )


def with_losses(key: Array, loss: Array | float, unlike: Array | float) -> fl.Simulation:
    """Peers that take part by chance over links that fail."""
    return fl.Simulation(
        ch5.world(unlike),
        METHODS[ATC_NAME](STEP.value),
        ch5.graph(),
        participation=Bernoulli(HALF.value),
        losses=Independent(loss),
        metrics=[METRIC],
    )


@network.drawn_once
def often() -> Array:
    """How often each takes part where that is unequal."""
    place = jnp.argsort(jnp.argsort(theory.local_minimizers(ch5.world(1.0))[:, 0]))
    return jnp.linspace(*UNEQUAL.value, ch5.AGENTS.value)[place]


def unequal(key: Array, method: str, step_size: Array | float) -> fl.Simulation:
    """Agents that are unlike, of whom some take part more often."""
    return scenario(key, method, ch5.UNLIKE.value["unlike"], step_size, often())


LABELS = {
    "probability": "taking part, (b)",
    "step_size": "step sizes, (c)",
    "loss": "failing links, (d)",
    "unequal": "unequal probabilities, (e)",
}


def study(effort: Effort) -> Studies:
    unlike, methods = list(ch5.UNLIKE.value.values()), list(METHODS)
    axes = {
        "probability": {"method": methods, "unlike": unlike, "probability": PROBABILITIES.value},
        "step_size": {"method": methods, "unlike": unlike, "step_size": STEPS.value},
        "loss": {"unlike": unlike, "loss": LOSS.value},
        "unequal": {"method": methods, "step_size": STEPS.value},
    }
    builds = {"loss": with_losses, "unequal": unequal}
    asked = {"rounds": ROUNDS.value, "seeds": min(effort.seeds, SEEDS.value), "record_every": 10}
    studies: dict[str, xr.Dataset] = {}
    for name, grid in axes.items():
        build, (last, values) = builds.get(name, scenario), list(grid.items())[-1]
        grid = grid | {last: effort.thin(values)}
        studies[name] = effort.sweep(name, build, grid=grid, **asked)
        studies[f"{name}-theory"] = ch5.predicted(build, grid)
    curves = {"method": [ATC_NAME], "unlike": [0.0], "probability": CURVES.value}
    studies["curves"] = effort.sweep("curves", scenario, grid=curves, **asked | CURVE_ROUNDS)
    studies["curves-theory"] = ch5.predicted(scenario, curves, **CURVE_ROUNDS)
    return {name: _labeled(data) for name, data in studies.items()}
