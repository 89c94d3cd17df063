"""Gauthier 2024, figure 4.4: CalCOFI, real data (section 4.4.4)."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import SAME
from experiments.figure import (
    INFINITE,
    Claim,
    Effort,
    Estimate,
    Figure,
    Measure,
    Setting,
    Studies,
)
from experiments.gauthier import chapter4 as ch4
from experiments.measures import joined
from fljax import plotting
from fljax.algorithms import Algorithm
from fljax.data import RandomFourier, random_fourier
from fljax.participation.patterns import Bernoulli
from fljax.results.dataset import provenance

SAMPLES = Setting("samples", 80_000, "section 4.4.4", given=True)
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
SCALE = Setting(
    "scale of the features",
    1.13,
    "as for the synthetic streams: the largest eigenvalue of these features, of five inputs, is "
    "0.80 without it where a client has its own stretch of sea, and 1.02 with it",
)
DEALT = Setting(
    "shares of the rows that are dealt at random",
    (0.0, 0.25, 0.5, 0.75, 1.0),
    "the source says “non-IID” but not how unlike the clients are",
)
#: The panels of the first and the last of them.
ENDS = {DEALT.value[0]: "a", DEALT.value[-1]: "b"}
ONLINE_FED = ch4.ONLINE_FED
EQUAL = f"Online-FedSGD, step {ch4.STEP.value:g}"

OTHERS = (ch4.INPUTS, ch4.SIZES, ch4.ROUNDS, ch4.ARRIVALS, ch4.TEST, ch4.SCALE)
COMMON = tuple(setting for setting in ch4.COMMON if setting not in OTHERS)


@functools.cache
def data() -> fl.data.CalCOFI:
    return fl.data.calcofi(ch4.CLIENTS.value, SAMPLES.value, test=TEST.value)


def dealt_at_random(problem: fl.problems.Problem, share: float) -> fl.problems.Problem:
    """The same rows, a share of them permuted; the permutation is the same for each client."""
    rng = np.random.default_rng(0)
    real = np.asarray(problem.weights) > 0
    moved = np.flatnonzero(rng.random(int(real.sum())) < share)
    order = np.arange(int(real.sum()))
    order[moved] = rng.permutation(moved)
    shuffled = []
    for values in (problem.features, problem.targets):
        copy = np.array(values)
        copy[real] = copy[real][order]
        shuffled.append(copy)
    return dataclasses.replace(problem, features=shuffled[0], targets=shuffled[1])


def features_of(key: Array) -> RandomFourier:
    inputs = len(data().inputs)
    return random_fourier(key, inputs, ch4.DIM.value, ch4.BANDWIDTH.value, scale=SCALE.value)


@functools.cache
def scenario(environment: ch4.Environment, share: float) -> Callable[..., fl.Simulation]:
    """One run: the same data in each, other features, arrivals, participation and delays."""
    result = data()
    rows = dealt_at_random(result.problem, share)

    def build(key: Array, algorithm: Algorithm) -> fl.Simulation:
        features = features_of(key)
        streams = dataclasses.replace(rows, feature_map=features)
        held_out = fl.problems.Problem(
            result.test_inputs[None],
            result.test_targets[None],
            fl.problems.LeastSquares(),
            strength=0.0,
            feature_map=features,
        )
        rates = result.sizes / ROUNDS.value
        return fl.Simulation(
            problem=fl.streams.Replay(streams, Bernoulli(rates), held_out),
            algorithm=algorithm,
            participation=environment.participation(),
            delays=environment.delays(),
            metrics=[ch4.METRIC],
        )

    build.__qualname__ = f"calcofi({environment!r}, share={share})"
    return build


def study(effort: Effort) -> Studies:
    studies = {}
    steady = []
    for share in effort.thin(DEALT.value):
        settings = {
            "rounds": ROUNDS.value,
            "build": functools.partial(scenario, share=share),
        }
        tunings = [
            ch4.stepped(ch4.FEDSGD, ch4.online_fed(1.0)),
            ch4.stepped(ONLINE_FED, ch4.online_fed(ch4.PORTION.value / ch4.DIM.value)),
        ]
        tuning = ch4.tune(f"tuning-{share:g}", ch4.DEFAULT, tunings, effort, **settings)
        methods: dict[str, Algorithm] = {ch4.U1: ch4.pao("U1"), ch4.C2: ch4.pao("C2")}
        methods |= {t.method: t.build(ch4.chosen(tuning, t.method)) for t in tunings}
        methods[EQUAL] = ch4.online_fed(1.0)(ch4.STEP.value)
        results = ch4.study(f"{share:g}", ch4.DEFAULT, methods, effort, **settings)
        studies[f"tuning-{share:g}"] = tuning
        steady.append(ch4.late(results).expand_dims(share=[share]))
        if share in ENDS:
            studies[ENDS[share]] = results
    together = joined(*steady, axis="share")
    together["share"].attrs["long_name"] = "share of the rows dealt at random"
    return studies | {"c": together, "floor": floor()}


def floor() -> xr.Dataset:
    """The test error of least squares on the features of all clients' rows, by draws of these."""
    result = data()
    levels = []
    rows = result.problem
    real = np.asarray(rows.weights) > 0
    for seed in range(ch4.DRAWS.value):
        features = features_of(jax.random.key(seed))

        def designed(inputs: np.ndarray, features: RandomFourier = features) -> np.ndarray:
            return np.asarray(features(jnp.asarray(inputs)), float)

        z = designed(np.asarray(rows.features)[real])
        y = np.asarray(rows.targets, float)[real]
        model = np.linalg.solve(z.T @ z, z.T @ y)
        wrong = np.asarray(result.test_targets) - designed(result.test_inputs) @ model
        levels.append(np.mean(wrong**2))
    return xr.Dataset({"floor": ("draw", levels)}, attrs=provenance())


def plot(studies: Studies) -> Picture:
    titles = ("a stretch of sea for each", "all dealt at random (ours)", "in between")
    drawing, (a, b, c) = picture.panels(titles, sharey=True)
    for ax, name in ((a, "a"), (b, "b")):
        ch4.show_curves(studies[name], ax, studies["floor"])
    plotting.trade_off(studies["c"], "share", ch4.METRIC, "algorithm", ax=c)
    picture.recolor(c, ch4.LOOKS)
    ch4.show_floor(studies["floor"], c)
    return picture.finish(drawing, "Salinity in the CalCOFI bottle data, 256 clients, real data")


def gaps_along_share(*pairs: tuple[str, str]) -> Measure:
    """How far one is above the other in the steady state, at every share dealt at random."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        return {
            f"{over} above {under}, {share:g}": ch4.direct_gap(
                studies["c"].sel(share=share), over, under
            )
            for share in studies["c"]["share"].values
            for over, under in pairs
        }

    return measure


OTHERS_ABOVE_C2 = tuple((other, ch4.C2) for other in (ch4.U1, ch4.FEDSGD, ONLINE_FED))
same = gaps_along_share((ch4.U1, ch4.FEDSGD))
best = gaps_along_share(*OTHERS_ABOVE_C2)


def shares_decide(studies: Studies) -> str:
    gaps = same(studies)
    text = ", ".join(f"{e} at {name.rpartition(' ')[2]}" for name, e in gaps.items())
    return (
        "Clients that learn on their own between exchanges drift to their own stretch of sea, and "
        "how unlike the clients are decides the order. By the share of rows dealt at random "
        f"PAO-Fed-U1 is above Online-FedSGD by {text}."
    )


FIGURE = Figure(
    name="gauthier-4.4",
    title="Real data: salinity of the sea (CalCOFI)",
    source="Gauthier 2024, figure 4.4; Gauthier et al. 2023 (PAO-Fed), figure 4",
    caption="80,000 of the 674,217 complete rows of the CalCOFI bottle database: a stretch of sea "
    "for each client in (a), the same rows dealt at random in (b), some of them in (c). Errors are "
    "relative to the variance of the salinity. Seeds differ in features, arrivals, participation "
    "and delays; the data are the same. Dotted: least squares on the features of all rows.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "same-as-fedsgd",
            "PAO-Fed-U1 reaches the same accuracy as Online-FedSGD",
            "section 4.4.4",
            ch4.gaps("a", (ch4.U1, ch4.FEDSGD)),
            *SAME.db,
            note=shares_decide,
        ),
        Claim(
            "communication-saved",
            "with 98 % less communication",
            "section 4.4.4",
            ch4.saving("a", ch4.U1, ch4.FEDSGD, ch4.EACH_WAY),
            (97.9, 98.1),
            construction="4 of 200 parameters go each way, whatever is learnt",
        ),
        Claim(
            "c2-best",
            "PAO-Fed-C2 outperforms all other methods",
            "section 4.4.4",
            ch4.gaps("a", *OTHERS_ABOVE_C2),
            (0, INFINITE),
            note=shares_decide,
        ),
        Claim(
            "c2-best-at-equal-step",
            "PAO-Fed-C2 outperforms Online-FedSGD",
            "section 4.4.4",
            ch4.gaps("a", (EQUAL, ch4.C2)),
            (0, INFINITE),
            condition="Online-FedSGD with the same step size",
            note="With the same step Online-FedSGD converges faster, as on the synthetic streams.",
        ),
        Claim(
            "same-as-fedsgd-if-iid",
            "PAO-Fed-U1 reaches the same accuracy as Online-FedSGD",
            "section 4.4.4",
            ch4.gaps("b", (ch4.U1, ch4.FEDSGD)),
            *SAME.db,
            condition="rows dealt at random, against the source's “non-IID”",
            note=shares_decide,
        ),
        Claim(
            "c2-best-if-iid",
            "PAO-Fed-C2 outperforms all other methods",
            "section 4.4.4",
            ch4.gaps("b", *OTHERS_ABOVE_C2),
            (0, INFINITE),
            condition="rows dealt at random, against the source's “non-IID”",
            note=shares_decide,
        ),
        Claim(
            "same-as-fedsgd-along-heterogeneity",
            "PAO-Fed-U1 reaches the same accuracy as Online-FedSGD",
            "section 4.4.4",
            same,
            *SAME.db,
            condition="however many of the rows are dealt at random",
            note=shares_decide,
            changed="New: the heterogeneity as an axis, in the place of its two ends.",
        ),
        Claim(
            "c2-best-along-heterogeneity",
            "PAO-Fed-C2 outperforms all other methods",
            "section 4.4.4",
            best,
            (0, INFINITE),
            condition="however many of the rows are dealt at random",
            note=shares_decide,
            changed="New: the heterogeneity as an axis, in the place of its two ends.",
        ),
    ],
    settings=(SAMPLES, INPUTS, SIZES, ROUNDS, ARRIVALS, TEST, SCALE, DEALT, ch4.DRAWS, *COMMON),
    tuning=ch4.tuning_table,
    keep=(*ch4.EACH_WAY,),
)
