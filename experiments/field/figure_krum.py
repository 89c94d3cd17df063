"""Blanchard et al. 2017: Krum and averaging with a third of the workers as attackers (Figures 4-6).

Twenty workers with all of MNIST's images in random order send the gradients of small batches. An
attacker sends noise, or the opposite of the honest workers' gradients.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import CLOSE, LITTLE, SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few
from experiments.pixels import network_of_halved
from fljax import plotting
from fljax.algorithms import FedAvg
from fljax.data import partition
from fljax.data.images import Images
from fljax.link.aggregation import Krum
from fljax.link.attacks import InnerProductManipulation, LargeNoise, first
from fljax.models import Architecture
from fljax.problems import Model
from fljax.problems.batches import Uniform

# --------------------------------------------------------------------------- settings

WORKERS = Setting("workers n", 20, "section 5", given=True)
ATTACKERS = Setting("attackers f", 6, "section 5: a third, 33 %", given=True)
NETWORK = Setting("hidden width", (100,), "section 5", given=True)
ACTIVATION = Setting(
    "activation",
    "tanh",
    "not given. Bounded, as the source has averaging not learn under noise: the gradients of "
    "rectifiers grow with the weights that noise makes large, and learning goes on, badly",
)
HALVED = Setting("pixels", "14 x 14", "means of 2 x 2: a fourth of the work")
BATCH = Setting("images of a gradient", 3, "section 5", given=True)
BATCHES = Setting("larger batches", (3, 10, 30, 100), "the source goes to 120")
NOISE = Setting("deviation of a noisy gradient's entries", 200.0, "section 5", given=True)
OPPOSITE = Setting(
    "length of the opposite gradient, over the honest mean",
    20.0,
    "“a large factor”, not given: with six of twenty attackers the mean goes backwards from 2.4 "
    "on. Attackers estimate the gradient by the mean of all honest messages of the round",
)
SELECTED = Setting("messages that multi-Krum averages", 14, "n - f, the most it may", given=True)
STEP = Setting("step size", 0.1, "not given; the same for all rules")
ROUNDS = Setting("rounds", 500, "section 5", given=True)
EVERY = Setting("recorded", 20, "every so many rounds")
TEST = Setting("test images", 1000, "every tenth of MNIST's")
END = Setting("records that are read", 5, "the mean over the last fifth of the rounds")
SEEDS = Setting(
    "seeds at most",
    5,
    "start, batches and noise anew for each. Intervals are Student's t of the jackknife over "
    "paired seeds",
)

ERROR = "error_rate"
MEAN = "averaging"
KRUM = "Krum"
MULTI = "multi-Krum"
NOBODY = "no attackers"
NOISY = "Gaussian"
OMNISCIENT = "omniscient"
RULES = (MEAN, KRUM, MULTI)
ATTACKS = (NOBODY, NOISY, OMNISCIENT)

# --------------------------------------------------------------------------- study


class Size(NamedTuple):
    """The learning problem, and the number of rounds."""

    images: Callable[[], Images]
    network: Any
    rounds: int
    every: int
    test: int  # stride through the test images


def network(hidden: Sequence[int]) -> Architecture:
    return fl.models.mlp(10, hidden, ACTIVATION.value)


FULL = Size(fl.data.mnist, network(NETWORK.value), ROUNDS.value, EVERY.value, 10)
#: For tests: the package's own sample.
TINY = Size(fl.data.mnist_sample, network([4]), 20, 2, 5)


@functools.cache
def dealt(size: Size) -> Model:
    dataset = size.images()
    rows = np.stack(partition.iid(len(dataset.train_labels), WORKERS.value, 0))
    return network_of_halved(dataset, rows, size.network, size.test)


@functools.cache
def scenario(rule: str, attack: str, size: Size, batch: int) -> Callable[..., fl.Simulation]:
    attackers = first(ATTACKERS.value, WORKERS.value)
    rules = {
        MEAN: None,
        KRUM: Krum(ATTACKERS.value),
        MULTI: Krum(ATTACKERS.value, select=SELECTED.value),
    }
    # Workers send models after a step, so the gradients' noise is multiplied by the step.
    attacks = {
        NOBODY: None,
        NOISY: LargeNoise(attackers, scale=NOISE.value * STEP.value),
        OMNISCIENT: InnerProductManipulation(attackers, scale=OPPOSITE.value),
    }

    def build(key: Array) -> fl.Simulation:
        return fl.Simulation(
            dealt(size).initialized(key),
            FedAvg(STEP.value, local_steps=1, batches=Uniform(min(batch, dealt(size).samples))),
            aggregation=rules[rule],
            attack=attacks[attack],
            metrics=[ERROR],
        )

    build.__qualname__ = f"krum({rule}, {attack}, {batch}, {size.rounds})"
    return build


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL

    def run(rule: str, attack: str, batch: int = BATCH.value) -> xr.Dataset:
        result = effort.sweep(
            f"{rule}-{attack.replace(' ', '-')}-{batch}",
            scenario(rule, attack, size, batch),
            rounds=size.rounds,
            record_every=size.every,
            seeds=min(effort.seeds, SEEDS.value),
        )
        # A diverged model counts as guessing.
        errors = result[ERROR].where(result["diverged"] == 0, 0.9)
        errors.attrs = result[ERROR].attrs
        return result.assign({ERROR: errors})[[ERROR]]

    def joint(attack: str) -> xr.Dataset:
        parts = joined(*(run(rule, attack) for rule in RULES))
        return parts.assign_coords(algorithm=[*RULES])

    attacks = joined(*map(joint, ATTACKS), axis="attack").assign_coords(attack=[*ATTACKS])
    larger = joined(*(run(KRUM, NOBODY, batch) for batch in BATCHES.value), axis="batch")
    return {"attacks": attacks, "batches": larger.assign_coords(batch=[*BATCHES.value])}


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = [*ATTACKS, "batches, no attackers"]
    drawing, axes = picture.panels(titles, columns=4, height=2.2, sharey=True)
    for ax, attack in zip(axes, ATTACKS, strict=False):
        plotting.learning_curves(studies["attacks"].sel(attack=attack), ERROR, "algorithm", ax)
        picture.fade(ax)
    ax = axes[3]
    at = np.asarray(BATCHES.value)
    estimates = [of_few(float, end(larger(studies, batch)), unit="") for batch in BATCHES.value]
    bars = np.abs([[e.value - e.low, e.high - e.value] for e in estimates]).T
    look = {k: plotting.LOOKS[1][k] for k in ("color", "marker")}
    ax.errorbar(at, [e.value for e in estimates], bars, label=KRUM, capsize=2, **look)
    plain = end(curves(studies, MEAN, NOBODY)).mean()
    ax.axhline(plain, label=f"{MEAN}, batch {BATCH.value}", **picture.THIN)
    ax.set(xscale="log", xticks=at, xticklabels=at, xlabel="images of a gradient")
    ax.minorticks_off()
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims


def curves(studies: Studies, rule: str, attack: str) -> xr.DataArray:
    return studies["attacks"][ERROR].sel(algorithm=rule, attack=attack)


def larger(studies: Studies, batch: int) -> xr.DataArray:
    return studies["batches"][ERROR].sel(batch=batch)


def end(errors: xr.DataArray) -> np.ndarray:
    """``[S]``."""
    late = errors.transpose("seed", "round").isel(round=slice(-END.value, None))
    return late.mean("round").values.astype(float)


def worse(*pairs: tuple[tuple[str, str], tuple[str, str]]) -> Measure:
    """By how many percentage points the first's error rate is higher."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        return {
            f"{over}, {where} above {under}, {elsewhere}": of_few(
                lambda a, b: 100 * (a - b),
                end(curves(studies, over, where)),
                end(curves(studies, under, elsewhere)),
                unit="points",
            )
            for (over, where), (under, elsewhere) in pairs
        }

    return measure


def batches_help(studies: Studies) -> dict[str, Estimate]:
    few = BATCHES.value[0]
    many = BATCHES.value[-1]
    return {
        f"batch {few} above {many}": of_few(
            lambda a, b: 100 * (a - b),
            *(end(larger(studies, batch)) for batch in (few, many)),
            unit="points",
        )
    }


def makes_up(studies: Studies) -> dict[str, Estimate]:
    many = BATCHES.value[-1]
    return {
        f"{KRUM}, batch {many} above {MEAN}, batch {BATCH.value}": of_few(
            lambda a, b: 100 * (a - b),
            end(larger(studies, many)),
            end(curves(studies, MEAN, NOBODY)),
            unit="points",
        )
    }


def ends(studies: Studies) -> str:
    rows = (
        f"{rule}, {attack} {100 * end(curves(studies, rule, attack)).mean():.1f} %"
        for attack in ATTACKS
        for rule in RULES
    )
    batches = (
        f"{100 * end(larger(studies, batch)).mean():.1f} % by {batch}" for batch in BATCHES.value
    )
    return f"Errors at the end: {'; '.join(rows)}; Krum without attackers {', '.join(batches)}."


def because(why: str) -> Callable[[Studies], str]:
    """Why a claim does not hold, and the errors at the end."""
    return lambda studies: f"{why} {ends(studies)}"


FEWER = because(
    "It errs less: without attackers the twelve nearest of twenty messages are the densest, which "
    "are small gradients of images that are known already; with six attackers twelve of the "
    "fourteen honest ones are nearly all, whatever their size."
)

RECTIFIERS = (
    "The network had rectifiers, whose gradients grow with the weights that noise makes large: "
    "averaging went on learning under noise. 400 rounds, and not the source's 500."
)
SOURCE = "Blanchard et al. 2017, section 5"
MNIST = f"ours: a step of {STEP.value:g}, pixels halved"
MORE = (0, INFINITE)

ONE_SIDED = (
    "Rules that are better under attack than without are as good, and more: that was called a "
    "failure."
)

FIGURE = Figure(
    name="field-krum",
    title="Krum: a third of the workers are attackers",
    source="Blanchard et al. 2017, section 5, figures 4 to 6",
    caption="Test errors on MNIST (a) without attackers, (b) with six of twenty that send noise "
    "of deviation 200, (c) with six that send the opposite of the honest mean; (d) Krum's error by "
    f"the batch of a gradient. Means of {SEEDS.value} seeds with 95 % bands.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "averaging-fails",
            "with a third of attackers averaging does not learn",
            f"{SOURCE}, figure 4",
            worse(*(((MEAN, attack), (MEAN, NOBODY)) for attack in ATTACKS[1:])),
            (50, INFINITE),
            "wrong about more than half of the images more than without",
            MNIST,
            note=ends,
            changed=RECTIFIERS,
        ),
        Claim(
            "krum-does-not-mind",
            "with a third of attackers Krum is as good as without",
            f"{SOURCE}, figure 4",
            worse(*(((KRUM, attack), (KRUM, NOBODY)) for attack in ATTACKS[1:])),
            *LITTLE.points.when("at the end"),
            MNIST,
            note=FEWER,
            changed=ONE_SIDED,
        ),
        Claim(
            "krum-is-far-better-under-attack",
            "under attack Krum is far better than averaging",
            f"{SOURCE}, figure 4",
            worse(*(((MEAN, attack), (KRUM, attack)) for attack in ATTACKS[1:])),
            *SIGNIFICANTLY.points.when("at the end"),
            MNIST,
            note=ends,
            changed=RECTIFIERS,
        ),
        Claim(
            "krum-costs-something",
            "without attackers Krum, which takes one gradient, is slower than averaging",
            f"{SOURCE}, figure 4",
            worse(((KRUM, NOBODY), (MEAN, NOBODY))),
            MORE,
            "at the end",
            MNIST,
            note=ends,
        ),
        Claim(
            "batches-make-up-for-it",
            "larger batches make Krum better",
            f"{SOURCE}, figure 5",
            batches_help,
            MORE,
            "without attackers",
            MNIST,
            note=ends,
        ),
        Claim(
            "krum-reaches-averaging",
            "with large batches it is as good as averaging with small ones",
            f"{SOURCE}, figure 5",
            makes_up,
            *CLOSE.points.when("without attackers"),
            MNIST,
            note=ends,
        ),
        Claim(
            "multi-krum-is-averaging",
            "without attackers multi-Krum is as good as averaging",
            f"{SOURCE}, figure 6",
            worse(((MULTI, NOBODY), (MEAN, NOBODY))),
            *CLOSE.points.when("at the end"),
            MNIST,
            note=because(
                "Fourteen of twenty gradients, the smallest ones, are a little slower than all."
            ),
        ),
        Claim(
            "multi-krum-withstands",
            "with a third of attackers multi-Krum is as good as without",
            f"{SOURCE}, figure 6",
            worse(*(((MULTI, attack), (MULTI, NOBODY)) for attack in ATTACKS[1:])),
            *LITTLE.points.when("at the end"),
            MNIST,
            note=FEWER,
            changed=ONE_SIDED,
        ),
    ],
    settings=(
        *(
            WORKERS,
            ATTACKERS,
            NETWORK,
            ACTIVATION,
            HALVED,
            BATCH,
            BATCHES,
            NOISE,
            OPPOSITE,
            SELECTED,
            STEP,
        ),
        *(ROUNDS, EVERY, TEST, END, SEEDS),
    ),
)
