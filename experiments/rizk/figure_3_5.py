"""Rizk 2023, figure 3.5: noise between servers in a classification (section 3.5.2)."""

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.rizk import clicks
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, NONE, RANDOM
from fljax import plotting
from fljax._module import replace
from fljax.algorithms import GraphFedAvg
from fljax.batches import Uniform
from fljax.link import Noise

SERVERS = Setting("servers P", 5, "section 3.5.2 on figure 3.5", given=True)
CLIENTS = Setting("agents a server K", 10, "section 3.5.2 on figure 3.5", given=True)
STEP = Setting("step size mu", 0.5, "section 3.5.2 on figure 3.5", given=True)
RHO = Setting("regularizer rho", 0.03, "section 3.5.2 on figure 3.5", given=True)
VARIANCE = Setting("variance of the noise", 0.6, "section 3.5.2 on figure 3.5", given=True)
CHOSEN = Setting("agents a round and server L", 5, "not given; half")
EPOCHS = Setting("local steps E_k", (1, 5), "not given; uniform, drawn once")
BATCH = Setting("samples a step", 10, "not given; the most of the regression")
DEGREE = Setting("mean degree of the servers' graph", 2.4, "not given; six links, connected")

ALL = SERVERS.value * CLIENTS.value
STEPS_OF = tuple(np.random.default_rng(0).integers(*EPOCHS.value, size=ALL, endpoint=True).tolist())
WORLD = clicks.world(ALL, RHO.value)


def scenario(key: Array, scheme: Noise, variance: Array) -> fl.Simulation:
    """One run (section 3.5.2)."""
    graph = fl.graphs.random_connected(fl.random_key(0), SERVERS.value, DEGREE.value)
    return fl.Simulation(
        problem=WORLD(),
        algorithm=GraphFedAvg(STEP.value, STEPS_OF, CHOSEN.value, Uniform(BATCH.value, True)),
        network=fl.federation.balanced(CLIENTS.value, graph),
        noise=replace(scheme, variance=variance),
        metrics=clicks.ERROR,
    )


def study(effort: Effort) -> Studies:
    results = net.study(
        "study",
        effort,
        scenario,
        [VARIANCE.value],
        seeds=clicks.SEEDS.value,
        rounds=clicks.ROUNDS.value,
        record_every=clicks.EVERY,
    )
    return {"a": results.squeeze("variance", drop=True)}


def plot(studies: Studies) -> Picture:
    drawing, (ax,) = picture.panels(["synthetic click log, a surrogate"], height=2.8)
    plotting.learning_curves(studies["a"], clicks.ERROR, "scheme", ax)
    return picture.finish(drawing, f"GFL, μ = {STEP.value:g}, σ² = {VARIANCE.value:g}")


FIGURE = Figure(
    name="rizk-3.5",
    title="Noise between servers in a classification",
    source="Rizk 2023, figure 3.5",
    caption="A synthetic click log in the place of Avazu's, which may not be passed on: the sizes, "
    "the step, the regularizer and the noise are the source's, the data are not, and no level is "
    "comparable. Each agent's features have noise of its own; the 256 test rows are clean.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "homomorphic-does-not-hinder",
            "homomorphic perturbations do not hinder the performance",
            "section 3.5.2 on figure 3.5",
            clicks.differences(net.pairs((HOMOMORPHIC, NONE))),
            (-INFINITE, clicks.SAME),
            clicks.HINDERED,
            condition=clicks.SURROGATE,
        ),
        Claim(
            "random-reduces-utility",
            "random perturbations significantly reduce the utility of the model",
            "section 3.5.2 on figure 3.5",
            clicks.differences(net.pairs((RANDOM, NONE))),
            (clicks.SIGNIFICANTLY, INFINITE),
            clicks.SIGNIFICANT,
            condition=clicks.SURROGATE,
        ),
        Claim(
            "random-still-converges",
            "at this variance the algorithm with random perturbations still converges",
            "section 3.5.2 on figure 3.5",
            clicks.better_than_chance(RANDOM),
            (0, INFINITE),
            "better than a coin, in percentage points",
            condition=clicks.SURROGATE,
        ),
    ],
    settings=(
        *clicks.COMMON,
        *(SERVERS, CLIENTS, CHOSEN, STEP, RHO, VARIANCE, EPOCHS, BATCH, DEGREE),
    ),
)
