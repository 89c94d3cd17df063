"""Rizk 2023, figure 4.5: noise between peers in a classification (section 4.4.2)."""

from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import LITTLE
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.rizk import clicks
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, LOCAL, NONE, RANDOM
from fljax._core.module import replace
from fljax.algorithms import ATC
from fljax.link import Noise
from fljax.problems.batches import Uniform

PEERS = Setting("peers P", 50, "section 4.4.2 on figure 4.5", given=True)
STEP = Setting("step size mu", 0.5, "section 4.4.2 on figure 4.5", given=True)
RHO = Setting("regularizer rho", 0.001, "section 4.4.2 on figure 4.5", given=True)
VARIANCE = Setting("variance of the noise", 0.8, "section 4.4.2 on figure 4.5", given=True)
BATCH = Setting("samples a step", 10, "not given; as in figure 3.5")
WORLD = clicks.world(PEERS.value, RHO.value)
NETWORK = Setting("network", "random, 4 neighbors of everybody", "not given")


def scenario(key: Array, scheme: Noise, variance: Array) -> fl.Simulation:
    """One run (section 4.4.2)."""
    return fl.Simulation(
        problem=WORLD(),
        algorithm=ATC(STEP.value, batches=Uniform(BATCH.value, replacement=True)),
        network=fl.graphs.k_regular(fl.random_key(0), PEERS.value, 4, form="padded"),
        noise=replace(scheme, variance=variance),
        metrics=clicks.ERROR,
    )


def study(effort: Effort) -> Studies:
    results = net.study(
        "study",
        effort,
        scenario,
        [VARIANCE.value],
        (RANDOM, HOMOMORPHIC, LOCAL),
        seeds=clicks.SEEDS.value,
        rounds=clicks.ROUNDS.value,
        record_every=clicks.EVERY,
    )
    return {"a": results.squeeze("variance", drop=True)}


def plot(studies: Studies) -> Picture:
    drawing, (ax,) = picture.panels(["ATC, synthetic click log"], height=2.6)
    net.draw_curves(ax, studies["a"], clicks.ERROR.name)
    return picture.finish(drawing, f"μ = {STEP.value:g}, σ² = {VARIANCE.value:g}")


FIGURE = Figure(
    name="rizk-4.5",
    title="Noise between peers in a classification",
    source="Rizk 2023, figure 4.5",
    caption="A synthetic click log in the place of Avazu's, which may not be passed on: the step, "
    "the regularizer and the noise are the source's, the data are not, and no level is comparable. "
    "The source's caption leaves out local noise and its text does not. Its masks are drawn and "
    "summed; its curve covers the one without noise.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "homomorphic-does-not-hinder",
            "homomorphic perturbations do not hinder the testing error",
            "section 4.4.2",
            clicks.differences(net.pairs((HOMOMORPHIC, NONE))),
            *LITTLE.points,
            condition=clicks.SURROGATE,
        ),
        Claim(
            "random-hinders",
            "random perturbations do",
            "section 4.4.2",
            clicks.differences(net.pairs((RANDOM, NONE), (RANDOM, HOMOMORPHIC))),
            (LITTLE.points.accept[1], INFINITE),
            "more than what does not hinder",
            condition=clicks.SURROGATE,
        ),
        Claim(
            "local-changes-nothing",
            "local perturbations do not change the testing error",
            "section 4.4.2",
            clicks.differences(net.pairs((LOCAL, NONE))),
            (-0.2, 0.2),
            "by less than half a row of the test set",
            construction="masks cancel in every receiver's weighted sum",
        ),
    ],
    settings=(*clicks.COMMON, *(PEERS, STEP, RHO, VARIANCE, BATCH, NETWORK)),
)
