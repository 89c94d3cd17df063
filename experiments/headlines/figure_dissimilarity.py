"""One server and dissimilar clients: algorithms that are unaffected by dissimilarity, by unequal
work or by bad conditioning.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import DOUBLE, EXACT, METRIC, first_below, unlike
from experiments.measures import estimate, exponent, gap, joined, last, of_median, samples
from fljax import algorithms as A
from fljax import plotting, statistics
from fljax.problems.solvers import smoothness

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 20, "all take part in every round")
SAMPLES = Setting("samples a client", 20, "four times the parameters")
DIM = Setting("parameters", 5, "no promise here depends on it")
SPREADS = Setting(
    "spread of the clients' models",
    (0.0, 1.0, 3.0),
    "none, as far from the common model as that is from 0, and three times that",
)
STEP = Setting("step size", 0.05, "a fifth over the largest curvature of a client")
LOCAL = Setting("local steps", 5, "on all samples of a client: what differs is the clients alone")
PENALTY = Setting(
    "attraction of FedDyn, penalty of FedPD and Fed-LT", 1.0, "of the order of the least curvature"
)
NEWTON = Setting("attraction of DANE", 2.0, "below the least curvature of a client")
SKIPS = Setting("probability of Scaffnew's rounds", 0.2, "as many steps between two as the others")
ROUNDS = Setting(
    "rounds of (a) and (b)", 600, "Scaffnew is exact, of whose rounds a fifth communicate"
)
UNEQUAL = Setting("local steps of (c)", (1, 20), "of one half of the clients and of the other")
SHORT = Setting("step size of (c)", 0.01, "20 of them are as long as the steps of (a)")
CONDITIONS = Setting("condition numbers of (d)", (4, 16, 64, 256), "of the features' covariance")
TARGET = Setting("target of (d)", 1e-6, "of the normalized error")
MANY = Setting("samples a client in (d)", 100, "the samples' condition is then that of the law")
PATIENCE = Setting("rounds of (d)", 6000, "of which Scaffnew's communicate with probability 1/√κ")
SEEDS = Setting("seeds", 30, "at most")

_LOCAL = {"local_steps": LOCAL.value}
FREE = {
    "SCAFFOLD": (
        A.SCAFFOLD(STEP.value, **_LOCAL),
        "Karimireddy et al. 2020, abstract",
    ),
    "FedDyn": (
        A.FedDyn(STEP.value, attraction=PENALTY.value, **_LOCAL),
        "Acar et al. 2021, abstract",
    ),
    "MIME": (A.MIME(STEP.value, **_LOCAL), "Karimireddy et al. 2021, abstract"),
    "FedPD": (A.FedPD(STEP.value, penalty=PENALTY.value, **_LOCAL), "Zhang et al. 2021, abstract"),
    "Fed-LT": (
        A.FedLT(STEP.value, penalty=PENALTY.value, **_LOCAL),
        "Bastianello et al. 2024, abstract",
    ),
    "DANE": (A.DANE(NEWTON.value), "Shamir, Srebro and Zhang 2014, abstract"),
    "Scaffnew": (A.Scaffnew(STEP.value, SKIPS.value), "Mishchenko et al. 2022, abstract"),
}
DRIFTING = "FedAvg"
NOVA = "FedNova"
DESCENT = "gradient descent"
SKIPPING = "Scaffnew"
COUNTS = tuple(np.repeat(UNEQUAL.value, CLIENTS.value // 2).tolist())


# --------------------------------------------------------------------------- scenarios


def dissimilar(key: Array, algorithm: A.Algorithm, spread: Array) -> fl.Simulation:
    problem = unlike(key, CLIENTS.value, SAMPLES.value, DIM.value, spread)
    return fl.Simulation(problem, algorithm, metrics=[METRIC])


def unequal(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    return dissimilar(key, algorithm, jnp.asarray(SPREADS.value[1]))


def conditioned(key: Array, condition: Array, method: str) -> fl.Simulation:
    """Gradient descent and Scaffnew at the step 1/L."""
    scales = condition ** (-jnp.linspace(0, 0.5, DIM.value))
    problem = unlike(key, CLIENTS.value, MANY.value, DIM.value, scales=scales)
    step = 1 / jnp.max(smoothness(problem))
    algorithm = A.FedAvg(step) if method == DESCENT else A.Scaffnew(step, condition**-0.5)
    return fl.Simulation(problem, algorithm, metrics=[METRIC])


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)
    methods: dict[str, A.Algorithm] = {DRIFTING: A.FedAvg(STEP.value, **_LOCAL)}
    methods |= {name: parts[0] for name, parts in FREE.items()}
    spreads = effort.sweep(
        "spreads",
        dissimilar,
        rounds=ROUNDS.value,
        seeds=seeds,
        grid={"algorithm": methods, "spread": list(SPREADS.value)},
        record_every=2,
    )
    work = {
        DRIFTING: A.FedAvg(SHORT.value, local_steps=COUNTS),
        NOVA: A.FedNova(SHORT.value, local_steps=COUNTS),
    }
    work = effort.sweep("work", unequal, rounds=100, seeds=seeds, grid={"algorithm": work})

    def of(method: str) -> xr.Dataset:
        def build(key: Array, condition: Array) -> fl.Simulation:
            return conditioned(key, condition, method)

        build.__qualname__ = f"conditioned({method})"
        result = effort.sweep(
            f"condition-{method.replace(' ', '-')}",
            build,
            rounds=PATIENCE.value,
            seeds=seeds,
            grid={"condition": [float(number) for number in CONDITIONS.value]},
            record_every=10,
        )
        sent = statistics.until(result, METRIC, TARGET.value, "messages") / CLIENTS.value
        stored = last(result)[[METRIC, "diverged"]]
        return stored.assign(sent=sent.assign_attrs(long_name="exchanges until the target"))

    condition = joined(of(DESCENT), of(SKIPPING)).assign_coords(algorithm=[DESCENT, SKIPPING])
    condition["condition"].attrs["long_name"] = "condition number"
    spreads["spread"].attrs["long_name"] = "spread of the clients' models"
    return {"spreads": spreads, "work": work, "condition": condition}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("the most unlike clients", "after all rounds", "unequal work", "bad conditioning")
    drawing, axes = picture.panels(titles, columns=2, height=2.4)
    most = studies["spreads"].sel(spread=SPREADS.value[-1])
    plotting.learning_curves(most, METRIC, ax=axes[0])
    plotting.trade_off(studies["spreads"], "spread", METRIC, "algorithm", axes[1])
    plotting.learning_curves(studies["work"], METRIC, ax=axes[2])
    condition = studies["condition"]
    for index, name in enumerate((DESCENT, SKIPPING)):
        sent = condition["sent"].sel(algorithm=name).median("seed")
        marks = {"marker": "os"[index], "label": name} | picture.look(index)
        axes[3].loglog(condition["condition"].values, sent.values, **marks)
    axes[3].set_xlabel("condition number")
    axes[3].set_ylabel("exchanges until -60 dB")
    axes[3].legend()
    return picture.finish(drawing, "One server, clients that differ")


# --------------------------------------------------------------------------- claims

INSTANCE = "least squares of twenty clients, all samples in every step"
LATE = -150.0
NOTES = {
    "FedDyn": "The rate is the same, the start is not: clients' corrections begin at zero, and the "
    "further apart clients are, the further these have to go."
}


def final(name: str, *spreads: float) -> Measure:
    """The mean of the last record at each spread, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = last(studies["spreads"])
        return {
            f"spread {spread:g}": estimate(
                statistics.decibels,
                samples(data, {"algorithm": name, "spread": spread}, METRIC),
            )
            for spread in spreads
        }

    return measure


def slowed(name: str):
    """Rounds until -150 dB at the largest spread, over those without any, of the median run."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["spreads"]
        numbers = data["round"].values
        two = [
            samples(data, {"algorithm": name, "spread": spread}, METRIC)
            for spread in (SPREADS.value[-1], SPREADS.value[0])
        ]

        def ratio(curves: np.ndarray) -> np.ndarray:
            halves = np.split(statistics.decibels(curves), 2, axis=1)
            far, near = (first_below(half, LATE, numbers) for half in halves)
            return far / near

        return {name: of_median(ratio, np.concatenate(two, axis=1), unit="")}

    return measure


def nova_gains(studies: Studies) -> dict[str, Estimate]:
    data = last(studies["work"])
    return {
        f"{DRIFTING} above {NOVA}": gap(
            samples(data, DRIFTING, METRIC), samples(data, NOVA, METRIC)
        )
    }


def exponents(*methods: str):
    """The exponent of the exchanges as a power of the condition number."""

    def measure(studies: Mapping[str, xr.Dataset]) -> dict[str, Estimate]:
        sent = studies["condition"]["sent"].transpose("algorithm", "seed", "condition")
        return {
            name: of_median(
                lambda values: exponent(values, CONDITIONS.value),
                sent.sel(algorithm=name).values,
                unit="",
            )
            for name in methods
        }

    return measure


def promises() -> list[Claim]:
    result = []
    for name, (_, source) in FREE.items():
        slug = name.lower().replace(" ", "-")
        result += [
            Claim(
                f"{slug}-is-exact",
                f"{name} reaches the common minimizer, however unlike clients are",
                source,
                final(name, *SPREADS.value),
                (-INFINITE, EXACT),
                DOUBLE,
                condition=INSTANCE,
            ),
            Claim(
                f"{slug}-is-unaffected",
                f"{name} needs about as many rounds however unlike clients are",
                source,
                slowed(name),
                (0.8, 1.25),
                "from 0.8 to 1.25 times those of clients that are alike, until -150 dB",
                condition=INSTANCE,
                note=NOTES.get(name, ""),
            ),
        ]
    return result


FIGURE = Figure(
    name="headline-dissimilarity",
    title="Clients that differ, unequal work and bad conditioning, with one server",
    source="the papers of the algorithms, cited at each claim",
    caption="(a), (b) Local steps on least squares of clients whose own models are further and "
    "further apart: FedAvg stops where its local steps lead it, corrected methods reach the common "
    "minimizer. (c) Half of the clients take 1 local step, the others 20. (d) The exchanges until "
    "the error is -60 dB against the condition number, at the step 1/L: the median run.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "fedavg-drifts",
            "with local steps at a constant step size FedAvg does not reach the common minimizer "
            "of clients that differ",
            "Karimireddy et al. 2020, abstract and section 3.2",
            final(DRIFTING, SPREADS.value[-1]),
            (-60, INFINITE),
            "above -60 dB",
            condition=INSTANCE,
        ),
        *promises(),
        Claim(
            "fednova-removes-the-bias",
            "where clients take unequal numbers of steps FedAvg minimizes another objective, and "
            "FedNova the right one",
            "Wang et al. 2020, abstract",
            nova_gains,
            (10, INFINITE),
            "by 10 dB or more: what FedNova keeps is the drift of its local steps",
            condition=INSTANCE,
        ),
        Claim(
            "scaffnew-accelerates",
            "Scaffnew needs exchanges in proportion to the root of the condition number",
            "Mishchenko et al. 2022, abstract",
            exponents(SKIPPING),
            (0.35, 0.65),
            "an exponent of a half, up to 0.15",
            condition=INSTANCE,
        ),
        Claim(
            "descent-does-not",
            "and gradient descent in proportion to the condition number itself",
            "Mishchenko et al. 2022, abstract",
            exponents(DESCENT),
            (0.85, 1.15),
            "an exponent of one, up to 0.15",
            condition=INSTANCE,
        ),
    ],
    settings=[
        *(
            CLIENTS,
            SAMPLES,
            DIM,
            SPREADS,
            STEP,
            LOCAL,
            PENALTY,
            NEWTON,
            SKIPS,
            ROUNDS,
            UNEQUAL,
            SHORT,
        ),
        *(CONDITIONS, TARGET, MANY, PATIENCE, SEEDS),
    ],
    double=True,
)
