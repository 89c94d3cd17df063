"""Abadi et al. 2016: how accurate a private network is on MNIST, by epsilon (Figures 3 and 4)."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optax
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER, CLOSE
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import of_few
from experiments.pixels import low_frequencies
from fljax import plotting
from fljax._core.module import replace
from fljax.algorithms import FedDPSGD
from fljax.data.images import Images
from fljax.metrics.definitions import Metric, Snapshot, mean_score
from fljax.privacy import NoisyGradients, accounting
from fljax.problems import Model, Softmax

# --------------------------------------------------------------------------- settings

NETWORK = Setting("hidden width", (1000,), "section 5.2", given=True)
SIDE = Setting(
    "lowest frequencies of an image",
    8,
    "to each side, 64 numbers, in the place of 60 principal components, which the images choose at "
    "a cost in privacy; these do not see them",
)
RATE = Setting("sampling rate", 0.01, "lots of 600 images on average", given=True)
CLIP = Setting("clip", 4.0, "of a whole gradient; the source's 4 is of each layer's", given=True)
STEPS = Setting(
    "step size",
    "0.1, falling to 0.052 over ten epochs",
    "section 5.2; without privacy too, for which the source does not say it",
    given=True,
)
FASTER = Setting(
    "larger steps",
    4.0,
    "times the source's, beside it: chosen once its accuracies were seen to be those of few steps, "
    "not of noise; no other factor was tried",
)
DELTA = Setting("delta", 1e-5, "section 5.2", given=True)
BUDGETS = Setting("epsilon", (0.5, 2.0, 8.0), "section 5.2", given=True)
EPOCHS = Setting(
    "epochs",
    60,
    "with the least noise that leaves the budget for them; the source has noise of 8, 4 and 2 "
    "clips, and trains until the budget is spent",
)
TRAINED = Setting("images of the training accuracy", 10_000, "the first")
SEEDS = Setting(
    "seeds at most",
    3,
    "start, batches and noise anew for each. Intervals are Student's t of the jackknife over "
    "paired seeds",
)

#: Published accuracies by epsilon, and without privacy, in percent.
PUBLISHED = dict(zip(BUDGETS.value, (90.0, 95.0, 97.0), strict=True))
PUBLISHED_PLAIN = 98.3
ERROR = "error_rate"
TRAIN_ERROR = "train_error_rate"
TIMES = f"{FASTER.value:g} times the step"
#: By the ending of a study's name, how many times the source's step.
LARGER = "-larger"
STEPPED = {"": 1.0, LARGER: FASTER.value}

# --------------------------------------------------------------------------- study


class Size(NamedTuple):
    """The learning problem, and the number of steps."""

    images: Callable[[], Images]
    network: Any
    steps: int


#: One epoch, in steps.
EPOCH = round(1 / RATE.value)
FULL = Size(fl.data.mnist, fl.models.mlp(10, NETWORK.value), EPOCHS.value * EPOCH)
#: For tests: the package's own sample.
TINY = Size(fl.data.mnist_sample, fl.models.mlp(10, [8]), 2 * EPOCH)


@functools.cache
def single_client(size: Size) -> Model:
    """All images at one client."""
    dataset = size.images()

    def problem(images: np.ndarray, labels: np.ndarray, **rest: Any) -> Model:
        features = low_frequencies(images, SIDE.value)[None]
        labels = labels[None].astype(np.float32)
        return Model(features, labels, Softmax(10), architecture=size.network, **rest)

    test = problem(dataset.test_images, dataset.test_labels)
    return problem(dataset.train_images, dataset.train_labels, test=test)


def training_errors(now: Snapshot) -> Array:
    """The share of some training images that are taken for another digit."""
    features, targets, weights = (
        a[:, : TRAINED.value]
        for a in (now.problem.features, now.problem.targets, now.problem.weights)
    )
    weights = weights / weights.sum()

    def on_training(test: Any) -> Any:
        return replace(test, features=features, targets=targets, weights=weights)

    return 1 - mean_score(
        now, lambda loss, *both: loss.correct(*both).astype(now.model.dtype), on_training
    )


METRICS = (
    ERROR,
    Metric(TRAIN_ERROR, training_errors, "training error rate", needs={"data"}, bounds=(0, 1)),
)


@functools.cache
def scenario(size: Size, private: bool, faster: float) -> Callable[..., fl.Simulation]:
    problem = single_client(size)
    falling = fl.schedules.from_optax(
        optax.linear_schedule,
        init_value=0.1 * faster,
        end_value=0.052 * faster,
        transition_steps=10 * EPOCH,
    )
    capacity = min(FedDPSGD.room(problem.samples, RATE.value), problem.samples)

    def build(key: Array, multiplier: Any) -> fl.Simulation:
        return fl.Simulation(
            problem.initialized(key),
            FedDPSGD(falling, sampling_rate=RATE.value, capacity=capacity),
            privacy=NoisyGradients(multiplier, CLIP.value) if private else None,
            metrics=METRICS,
        )

    build.__qualname__ = f"dpsgd({private}, {size.steps}, {faster:g})"
    return build


def multipliers(steps: int) -> list[float]:
    """The least noise multiplier of ``steps`` steps for each budget."""
    return [
        float(accounting.sampled_gaussian_multiplier(epsilon, DELTA.value, steps, RATE.value))
        for epsilon in BUDGETS.value
    ]


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL
    noise = multipliers(size.steps)

    def run(name: str, private: bool, faster: float, noise: list[float]) -> xr.Dataset:
        return effort.sweep(
            name,
            scenario(size, private, faster),
            rounds=size.steps,
            record_every=EPOCH // 2 if effort.quick else EPOCH,
            seeds=min(effort.seeds, SEEDS.value),
            grid={"multiplier": noise},
        )

    studies = {}
    for ending, faster in STEPPED.items():
        private = run(f"private{ending}", True, faster, noise)
        spent = fl.privacy.spent(private, delta=DELTA.value).epsilon.isel(round=-1).max("seed")
        private = private[[ERROR, TRAIN_ERROR]].assign(spent=spent, noise=("multiplier", noise))
        private = private.assign_coords(multiplier=[*BUDGETS.value]).rename(multiplier="budget")
        plain = run(f"plain{ending}", False, faster, [0.0]).isel(multiplier=0, drop=True)
        studies |= {f"private{ending}": private, f"plain{ending}": plain[[ERROR, TRAIN_ERROR]]}
    return studies


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    drawing, (curves, ends) = picture.panels(("test accuracy", "after all epochs"), height=2.4)
    for index, (name, data) in enumerate(by_name(studies).items()):
        mean = 100 * (1 - data[ERROR].mean("seed"))
        curves.plot(data["round"] / EPOCH, mean, label=name, **picture.look(index))
    curves.set(xlabel="epoch", ylabel="accuracy [%]")
    lines = (("", ERROR, "test"), ("", TRAIN_ERROR, "training"), (LARGER, ERROR, f"test, {TIMES}"))
    for index, (ending, error, text) in enumerate(lines):
        private = studies[f"private{ending}"]
        estimates = [
            of_few(float, accuracy(private.sel(budget=b), error), unit="") for b in BUDGETS.value
        ]
        bars = [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]]
        look = {k: plotting.LOOKS[index][k] for k in ("color", "marker")}
        ends.errorbar(
            BUDGETS.value, [e.value for e in estimates], bars, label=text, capsize=2, **look
        )
    ends.plot(
        *zip(*PUBLISHED.items(), strict=True),
        "x",
        color=plotting.LOOKS[3]["color"],
        label="published",
    )
    ends.axhline(accuracy(studies["plain"], ERROR).mean(), label="test, no privacy", **picture.THIN)
    ends.set(xscale="log", xlabel=f"epsilon at delta = {DELTA.value:g}", ylabel="accuracy [%]")
    ends.set_xticks(BUDGETS.value, [f"{b:g}" for b in BUDGETS.value])
    ends.minorticks_off()
    ends.legend()
    return picture.finish(drawing)


def by_name(studies: Studies, ending: str = "") -> dict[str, xr.Dataset]:
    private = studies[f"private{ending}"]
    return {"no privacy": studies[f"plain{ending}"]} | {
        f"epsilon {b:g}": private.sel(budget=b) for b in BUDGETS.value
    }


# --------------------------------------------------------------------------- the claims


def accuracy(data: xr.Dataset, error: str) -> np.ndarray:
    """``[S]``, of the last models, in percent."""
    return 100 * (1 - data[error].transpose("seed", "round").values[:, -1].astype(float))


def accuracy_reached(epsilon: float, ending: str = "") -> Measure:
    def measure(studies: Studies) -> dict[str, Estimate]:
        errors = accuracy(studies[f"private{ending}"].sel(budget=epsilon), ERROR)
        return {f"epsilon {epsilon:g}": of_few(float, errors, unit="%")}

    return measure


def without(studies: Studies) -> dict[str, Estimate]:
    errors = accuracy(studies["plain"], ERROR)
    return {
        "above the published": of_few(lambda a: a - PUBLISHED_PLAIN, errors, unit="points"),
    }


def gained(ending: str = "") -> Measure:
    """The gain of a larger budget."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[f"private{ending}"]
        return {
            f"epsilon {more:g} above {less:g}": of_few(
                lambda a, b: a - b,
                accuracy(data.sel(budget=more), ERROR),
                accuracy(data.sel(budget=less), ERROR),
                unit="points",
            )
            for less, more in itertools.pairwise(BUDGETS.value)
        }

    return measure


def gaps(ending: str = "") -> Measure:
    """By how much training accuracy is further above test accuracy without privacy."""

    def gap(data: xr.Dataset) -> np.ndarray:
        return accuracy(data, TRAIN_ERROR) - accuracy(data, ERROR)

    def measure(studies: Studies) -> dict[str, Estimate]:
        plain = gap(studies[f"plain{ending}"])
        return {
            f"no privacy above epsilon {b:g}": of_few(
                lambda a, b: a - b,
                plain,
                gap(studies[f"private{ending}"].sel(budget=b)),
                unit="points",
            )
            for b in BUDGETS.value
        }

    return measure


def ends(studies: Studies) -> str:
    """Accuracies, noise and their text."""
    rows = {
        ending: "; ".join(
            f"{name} {accuracy(data, ERROR).mean():.1f} % "
            f"(training {accuracy(data, TRAIN_ERROR).mean():.1f} %)"
            for name, data in by_name(studies, ending).items()
        )
        for ending in STEPPED
    }
    noise, spent = (
        ", ".join(f"{value:.3g}" for value in studies["private"][name].values)
        for name in ("noise", "spent")
    )
    return (
        f"{EPOCHS.value} epochs of the source's steps end before the network has learned what its "
        "larger budgets allow: less noise gains little there, longer steps do. (The source trains "
        f"until a budget is spent.) At the end: {rows['']}. With {TIMES}: {rows[LARGER]}. Noise of "
        f"{noise} clips; epsilon spent {spent}."
    )


SOURCE = "Abadi et al. 2016, section 5.2"
OURS = f"ours: low frequencies in the place of components, {EPOCHS.value} epochs"

WITH = {"": "", LARGER: f", with {TIMES}"}
CONDITIONS = {"": OURS, LARGER: f"{OURS}, {TIMES}"}

FIGURE = Figure(
    name="field-dpsgd",
    title="DP-SGD: accuracy on MNIST by epsilon",
    source="Abadi et al. 2016, figures 3 and 4",
    caption="A network of 1,000 hidden units on all of MNIST. (a) Test accuracy by epoch, the mean "
    "of all seeds. (b) Accuracy after all epochs by epsilon, with 95 % intervals of "
    f"{SEEDS.value} seeds; crosses are published.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "without-privacy",
            f"without privacy the network is right about {PUBLISHED_PLAIN} % of the test images",
            SOURCE,
            without,
            *CLOSE.points.when("after all epochs"),
            condition=OURS,
            note=ends,
        ),
        *(
            Claim(
                f"accuracy-{epsilon:g}",
                f"with epsilon {epsilon:g} it is right about {percent:g} %",
                SOURCE,
                accuracy_reached(epsilon),
                (percent, INFINITE),
                "as many or more",
                OURS,
                note=ends,
            )
            for epsilon, percent in PUBLISHED.items()
        ),
        *(
            Claim(
                f"larger-steps-{epsilon:g}",
                f"with epsilon {epsilon:g} and {TIMES} it is right about {percent:g} %",
                "this library",
                accuracy_reached(epsilon, LARGER),
                (percent, INFINITE),
                "as many or more",
                ours=True,
                note=ends,
            )
            for epsilon, percent in PUBLISHED.items()
        ),
        *(
            claim
            for ending in STEPPED
            for claim in (
                Claim(
                    f"more-budget-more-accuracy{ending}",
                    f"the larger epsilon, the more accurate is the network{WITH[ending]}",
                    f"{SOURCE}, figure 4",
                    gained(ending),
                    *BETTER.points.when("after all epochs"),
                    condition=CONDITIONS[ending],
                    note=ends,
                ),
                Claim(
                    f"no-gap{ending}",
                    "under privacy training and test accuracy differ less than without"
                    f"{WITH[ending]}",
                    SOURCE,
                    gaps(ending),
                    *BETTER.points.when("of the difference, after all epochs"),
                    condition=CONDITIONS[ending],
                    note=ends,
                ),
            )
        ),
    ],
    settings=(*(NETWORK, SIDE, RATE, CLIP, STEPS, FASTER, DELTA, BUDGETS, EPOCHS, TRAINED, SEEDS),),
)
