"""Gauthier 2024, figure 4.4: CalCOFI, real data (lines 1141-1148; P4 figure 4)."""

import dataclasses
import functools
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter4 as ch4
from fljax import plotting
from fljax.algorithms import Algorithm
from fljax.data import random_fourier
from fljax.participation import Bernoulli

SAMPLES = Setting("samples", 80_000, "line 1148", given=True)
INPUTS = Setting(
    "inputs",
    ("longitude", "latitude", "depth", "temperature", "oxygen saturation"),
    "“the other available parameters”; without those that nearly determine the salinity",
)
SIZES = Setting(
    "samples per client, by group",
    (125, 250, 375, 500),
    "the proportions of the synthetic groups, 80,000 in all",
)
ROUNDS = Setting("iterations", 500, "when the largest clients have met all of their samples")
ARRIVALS = Setting("arrival of data", "D_k/500 a round", "the rates of the synthetic streams")
TEST = Setting("test set", 2000, "held-out rows; fewer let a single deep bottle dominate")
STEP = Setting(
    "step size of PAO-Fed",
    0.5,
    "as for the synthetic streams: with five inputs the largest eigenvalue of these features is "
    "0.81 too",
)
ONLINE_FED, EQUAL = "Online-Fed", "Online-FedSGD, step of PAO-Fed"

OTHERS = (ch4.INPUTS, ch4.SIZES, ch4.ROUNDS, ch4.ARRIVALS, ch4.TEST, ch4.STEP)
COMMON = tuple(setting for setting in ch4.COMMON if setting not in OTHERS)


@functools.cache
def data() -> fl.data.CalCOFI:
    return fl.data.calcofi(ch4.CLIENTS.value, SAMPLES.value, test=TEST.value)


def dealt_at_random(problem: fl.problems.Problem) -> fl.problems.Problem:
    """The same rows, dealt to the clients in one random order."""
    real = np.asarray(problem.weights) > 0
    order = np.random.default_rng(0).permutation(int(real.sum()))
    shuffled = []
    for values in (problem.features, problem.targets):
        copy = np.array(values)
        copy[real] = copy[real][order]
        shuffled.append(copy)
    return dataclasses.replace(problem, features=shuffled[0], targets=shuffled[1])


@functools.cache
def scenario(environment: ch4.Environment, by_place: bool = True) -> Callable[..., fl.Simulation]:
    """One run: the same data in each, other features, arrivals, participation and delays."""
    found = data()
    rows = found.problem if by_place else dealt_at_random(found.problem)

    def build(key: Array, algorithm: Algorithm) -> fl.Simulation:
        features = random_fourier(key, len(found.inputs), ch4.DIM.value, ch4.BANDWIDTH.value)
        streams = dataclasses.replace(rows, feature_map=features)
        held_out = fl.problems.Problem(
            found.test_inputs[None],
            found.test_targets[None],
            fl.problems.LeastSquares(),
            strength=0.0,
            feature_map=features,
        )
        rates = found.sizes / ROUNDS.value
        return fl.Simulation(
            problem=fl.streams.Replay(streams, Bernoulli(rates), held_out),
            algorithm=algorithm,
            participation=environment.participation(),
            delays=environment.delays(),
            metrics=[ch4.METRIC],
        )

    build.__qualname__ = f"calcofi({environment!r}, by_place={by_place})"
    return build


DEALT = functools.partial(scenario, by_place=False)


def study(effort: Effort) -> Studies:
    found = {}
    for panel, build in (("a", scenario), ("b", DEALT)):
        given = {"rounds": ROUNDS.value, "build": build}
        tunings = [
            ch4.stepped(ch4.FEDSGD, ch4.online_fed(1.0)),
            ch4.stepped(ONLINE_FED, ch4.online_fed(ch4.PORTION.value / ch4.DIM.value)),
        ]
        tuning = ch4.tune(f"tuning-{panel}", ch4.DEFAULT, tunings, effort, **given)
        methods: dict[str, Algorithm] = {ch4.U1: ch4.pao("U1"), ch4.C2: ch4.pao("C2")}
        methods |= {t.method: t.build(ch4.chosen(tuning, t.method)) for t in tunings}
        methods[EQUAL] = ch4.online_fed(1.0)(STEP.value)
        found[panel] = ch4.study(panel, ch4.DEFAULT, methods, effort, **given)
        found[f"tuning-{panel}"] = tuning
    return found


def plot(studies: Studies) -> Picture:
    picture, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    titles = ("a stretch of sea for each client", "the same rows dealt at random (our addition)")
    for ax, name, title in zip(panels, "ab", titles, strict=True):
        plotting.learning_curves(studies[name], ch4.METRIC, ax=ax, legend=name == "a")
        ax.set_title(f"({name}) {title}")
    picture.suptitle("Salinity in the CalCOFI bottle data, 256 clients, real data", fontsize=10)
    return picture


NON_IID = (
    "Clients that learn on their own between exchanges drift to their own stretch of sea; how "
    "unlike the clients are is not given in the source. Panel (b) deals the same rows at random."
)

AT_RANDOM = (
    "With clients alike PAO-Fed-U1 is not as good as Online-FedSGD but better: how unlike the "
    "clients are decides the order."
)

FIGURE = Figure(
    name="gauthier-4.4",
    title="Real data: salinity of the sea (CalCOFI)",
    source="Gauthier 2024, figure 4.4 (P4, figure 4)",
    caption="80,000 of the 674,217 complete rows of the CalCOFI bottle database, a stretch of sea "
    "for each client. Errors are relative to the variance of the salinity. Seeds differ in "
    "features, arrivals, participation and delays; the data are the same.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "same-as-fedsgd",
            "PAO-Fed-U1 reaches the same accuracy as Online-FedSGD",
            "line 1148",
            ch4.gaps("a", (ch4.U1, ch4.FEDSGD)),
            ch4.SAME,
            ch4.SIMILAR,
            note=NON_IID,
        ),
        Claim(
            "communication-saved",
            "with 98 % less communication",
            "line 1148",
            ch4.saving("a", ch4.U1, ch4.FEDSGD, ch4.EACH_WAY),
            (97.9, 98.1),
        ),
        Claim(
            "c2-best",
            "PAO-Fed-C2 outperforms all other methods",
            "line 1148",
            ch4.gaps("a", *((other, ch4.C2) for other in (ch4.U1, ch4.FEDSGD, ONLINE_FED))),
            (0, INFINITE),
            note=NON_IID,
        ),
        Claim(
            "c2-best-at-equal-step",
            "PAO-Fed-C2 outperforms Online-FedSGD",
            "line 1148",
            ch4.gaps("a", (EQUAL, ch4.C2)),
            (0, INFINITE),
            condition="our addition: Online-FedSGD with the same step size",
            note="With the same step Online-FedSGD converges faster, as on the synthetic streams.",
        ),
        Claim(
            "same-as-fedsgd-if-iid",
            "PAO-Fed-U1 reaches the same accuracy as Online-FedSGD",
            "line 1148",
            ch4.gaps("b", (ch4.U1, ch4.FEDSGD)),
            ch4.SAME,
            ch4.SIMILAR,
            condition="rows dealt at random, against the source's “non-IID”",
            note=AT_RANDOM,
        ),
        Claim(
            "c2-best-if-iid",
            "PAO-Fed-C2 outperforms all other methods",
            "line 1148",
            ch4.gaps("b", *((other, ch4.C2) for other in (ch4.U1, ch4.FEDSGD, ONLINE_FED))),
            (0, INFINITE),
            condition="rows dealt at random, against the source's “non-IID”",
            note=AT_RANDOM,
        ),
    ],
    settings=(SAMPLES, INPUTS, SIZES, ROUNDS, ARRIVALS, TEST, STEP, *COMMON),
    tuning=ch4.tuning_table,
)
