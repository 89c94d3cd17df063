"""Abadi et al. 2016: how accurate a private network is on MNIST, by epsilon (Figures 3 and 4).

The settings are those of section 5.2, with two readings:

- The gradient of each layer, of its weights and biases together, is clipped at 4, and has noise
  with a deviation of sigma clips. The accountant of the authors' published program adds the moments
  of both layers' releases; with sigma of 8, 4 and 2 the sum reaches epsilon of 0.5, 2 and 8 after
  34, 124 and 366 epochs (:func:`moments_epsilon`), which are run here. The library treats the two
  releases of a step as one Gaussian release with the noise multiplier sigma / sqrt(2), and finds a
  smaller epsilon.
- The principal components are those of the training images. The source adds noise to their second
  moments, and here there is none. Epsilon is therefore *nominal*: it covers the training, and not
  the choice of the components.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.figure import Figure as Picture
from scipy import special

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER, CLOSE
from experiments.figure import Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import of_few
from experiments.pixels import principal_directions
from fljax import plotting
from fljax._core.module import replace
from fljax.algorithms import FedDPSGD
from fljax.data.images import Images
from fljax.metrics.definitions import Metric, Snapshot, mean_score
from fljax.privacy import NoisyGradients
from fljax.problems import Model, Softmax

# --------------------------------------------------------------------------- settings

NETWORK = Setting(
    "hidden width",
    (1000,),
    "section 5.2; initial weights by He's law, and biases, are our choice (the authors' program "
    "has no biases)",
    given=True,
)
COMPONENTS = Setting(
    "principal components",
    60,
    "section 5.2, of training images of norm one, not centered. The source adds noise of deviation "
    "16, 7 and 4 to their second moments; here it is left out, and epsilon is nominal",
    given=True,
)
RATE = Setting("sampling rate", 0.01, "lots of 600 images on average", given=True)
CLIP = Setting("clip", 4.0, "section 5.2, of each of the two layers", given=True)
NOISE = Setting(
    "noise multiplier", (8.0, 4.0, 2.0), "section 5.2, of each layer, in clips", given=True
)
STEPS = Setting("step size", "0.1, falling to 0.052 over ten epochs", "section 5.2", given=True)
DELTA = Setting("delta", 1e-5, "section 5.2", given=True)
BUDGETS = Setting("epsilon", (0.5, 2.0, 8.0), "section 5.2", given=True)
EPOCHS = Setting(
    "epochs",
    (34, 124, 366),
    "until the added moments of both layers are at epsilon; the source trains until a budget is "
    "spent and does not number the epochs",
)
PLAIN_EPOCHS = Setting("epochs without privacy", 100, "section 5.2", given=True)
FASTER = Setting(
    "larger steps",
    4.0,
    "times the step of private runs, a second try without privacy, where the source names no step",
)
TRAINED = Setting("images of the training accuracy", 10_000, "the first")
SEEDS = Setting(
    "seeds at most",
    (6, 4, 2),
    "for each budget as many as were affordable, and the last number without privacy. Start, lots "
    "and noise are new for each. Intervals are Student's t of the jackknife over paired seeds",
)

#: Published accuracies by epsilon, and without privacy, in percent.
PUBLISHED = dict(zip(BUDGETS.value, (90.0, 95.0, 97.0), strict=True))
PUBLISHED_PLAIN = 98.3
ERROR = "error_rate"
TRAIN_ERROR = "train_error_rate"
TIMES = f"{FASTER.value:g} times the step"
#: By the ending of a study's name, how many times the step of private runs.
LARGER = "-larger"
STEPPED = {"": 1.0, LARGER: FASTER.value}

# --------------------------------------------------------------------------- study


class Size(NamedTuple):
    """The learning problem, and the numbers of epochs."""

    images: Callable[[], Images]
    network: Any
    epochs: tuple[int, ...]  # of private runs, by budget
    plain_epochs: int


#: One epoch, in steps.
EPOCH = round(1 / RATE.value)
FULL = Size(fl.data.mnist, fl.models.mlp(10, NETWORK.value), EPOCHS.value, PLAIN_EPOCHS.value)
#: For tests: the package's own sample.
TINY = Size(fl.data.mnist_sample, fl.models.mlp(10, [8]), (2, 3, 4), 2)


@functools.cache
def single_client(size: Size) -> Model:
    """All images at one client."""
    dataset = size.images()
    directions = principal_directions(dataset.train_images, COMPONENTS.value)

    def problem(images: np.ndarray, labels: np.ndarray, **rest: Any) -> Model:
        pixels = images.reshape(len(images), -1) / 255
        features = (pixels @ directions).astype(np.float32)[None]
        labels = labels[None].astype(np.float32)
        return Model(features, labels, Softmax(10), architecture=size.network, **rest)

    test = problem(dataset.test_images, dataset.test_labels)
    return problem(dataset.train_images, dataset.train_labels, test=test)


def layers(problem: Model) -> tuple[int, ...]:
    """The numbers of parameters of the layers, each with its biases."""
    sizes = problem.pieces
    return tuple(sum(pair) for pair in zip(sizes[::2], sizes[1::2], strict=True))


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
def scenario(size: Size, noise: float | None, faster: float) -> Callable[..., fl.Simulation]:
    """Training with noise of a multiplier, or without privacy."""
    problem = single_client(size)
    falling = fl.schedules.from_optax(
        optax.linear_schedule,
        init_value=0.1 * faster,
        end_value=0.052 * faster,
        transition_steps=10 * EPOCH,
    )
    capacity = min(FedDPSGD.room(problem.samples, RATE.value), problem.samples)
    privacy = None
    if noise is not None:
        privacy = NoisyGradients(noise, CLIP.value, parts=layers(problem))

    def build(key: Array) -> fl.Simulation:
        return fl.Simulation(
            problem.initialized(key),
            FedDPSGD(falling, sampling_rate=RATE.value, capacity=capacity),
            privacy=privacy,
            metrics=METRICS,
        )

    build.__qualname__ = f"dpsgd({noise}, {faster:g})"
    return build


def moments_epsilon(noise: float, epochs: int) -> float:
    r"""The epsilon of the source's accountant, which adds the moments of both layers' releases.

    With :math:`q` the sampling rate, the moment of order :math:`\lambda` of a release is at most

    .. math:: \alpha(\lambda)=\log\sum_{k=0}^{\lambda+1}\binom{\lambda+1}k(1-q)^{\lambda+1-k}q^k
        e^{k(k-1)/(2\sigma^2)},

    and after :math:`T` of them :math:`\epsilon=\min_\lambda(T\alpha(\lambda)+\log(1/\delta))
    /\lambda` (Theorem 2).

    Args:
      noise: the multiplier of each layer.
      epochs: of two releases a step.
    """
    releases = 2 * epochs * EPOCH
    return min((releases * _moment(order, noise) - np.log(DELTA.value)) / order for order in ORDERS)


#: Orders of moments: beyond these none is the best for noise of up to 8 clips.
ORDERS = range(1, 65)


def _moment(order: int, noise: float) -> float:
    drawn = np.arange(order + 2)
    logarithms = (
        -np.log(order + 2)
        - special.betaln(order + 2 - drawn, drawn + 1)
        + (order + 1 - drawn) * np.log1p(-RATE.value)
        + drawn * np.log(RATE.value)
        + drawn * (drawn - 1) / (2 * noise**2)
    )
    return float(special.logsumexp(logarithms))


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL

    def run(
        name: str, epochs: int, seeds: int, noise: float | None = None, faster: float = 1.0
    ) -> xr.Dataset:
        return effort.sweep(
            name,
            scenario(size, noise, faster),
            rounds=epochs * EPOCH,
            record_every=EPOCH,
            seeds=min(effort.seeds, seeds),
            # One after the other is faster on a core; an accelerator runs all seeds together.
            block=1 if jax.default_backend() == "cpu" else None,
        )

    studies = {}
    rows = zip(BUDGETS.value, NOISE.value, size.epochs, SEEDS.value, strict=True)
    for epsilon, noise, epochs, seeds in rows:
        results = run(private(epsilon), epochs, seeds, noise)
        spent = fl.privacy.spent(results.isel(round=[-1]), delta=DELTA.value).epsilon.max()
        studies[private(epsilon)] = results[[ERROR, TRAIN_ERROR]].assign(
            spent=spent, moments=moments_epsilon(noise, epochs)
        )
    for ending, faster in STEPPED.items():
        results = run(f"plain{ending}", size.plain_epochs, SEEDS.value[-1], faster=faster)
        studies[f"plain{ending}"] = results[[ERROR, TRAIN_ERROR]]
    return studies


def private(epsilon: float) -> str:
    """The name of a study."""
    return f"private-{epsilon:g}"


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = ("test accuracy", "after the last epoch")
    drawing, (curves, ends) = picture.panels(titles, height=2.4)
    for index, (name, data) in enumerate(by_name(studies).items()):
        mean = 100 * (1 - data[ERROR].mean("seed"))
        curves.plot(data["round"] / EPOCH, mean, label=name, **picture.look(index))
    curves.set(xlabel="epoch", ylabel="accuracy [%]", xscale="log")
    if float(studies["plain"][ERROR].min()) < 0.1:
        curves.set_ylim(80, 99)
    for index, (error, text) in enumerate(((ERROR, "test"), (TRAIN_ERROR, "training"))):
        estimates = [
            of_few(float, accuracy(studies[private(b)], error), unit="") for b in BUDGETS.value
        ]
        bars = [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]]
        look = {k: plotting.LOOKS[index][k] for k in ("color", "marker")}
        ends.errorbar(
            BUDGETS.value, [e.value for e in estimates], bars, label=text, capsize=2, **look
        )
    ends.plot(
        *zip(*PUBLISHED.items(), strict=True),
        "x",
        color="black",
        zorder=3,  # above the markers, which they nearly coincide with
        label="published",
    )
    plain = accuracy(studies[f"plain{LARGER}"], ERROR).mean()
    ends.axhline(plain, label=f"test, no privacy, {TIMES}", **picture.THIN)
    ends.set(
        xscale="log", xlabel=f"nominal epsilon at delta = {DELTA.value:g}", ylabel="accuracy [%]"
    )
    ends.set_xticks(BUDGETS.value, [f"{b:g}" for b in BUDGETS.value])
    ends.minorticks_off()
    ends.legend()
    return picture.finish(drawing)


def by_name(studies: Studies) -> dict[str, xr.Dataset]:
    return {
        "no privacy": studies["plain"],
        f"no privacy, {TIMES}": studies[f"plain{LARGER}"],
    } | {f"epsilon {b:g}": studies[private(b)] for b in BUDGETS.value}


# --------------------------------------------------------------------------- the claims


def accuracy(data: xr.Dataset, error: str) -> Float[np.ndarray, " seeds"]:
    """Of the last models, in percent."""
    return 100 * (1 - data[error].transpose("seed", "round").values[:, -1].astype(float))


def above_published(name: str, published: float) -> Measure:
    """The accuracy of a study above the published one."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        accuracies = accuracy(studies[name], ERROR)
        case = f"{accuracies.mean():.1f} %, above the published {published:g} %"
        return {case: of_few(lambda a: a - published, accuracies, unit="points")}

    return measure


def difference(over: np.ndarray, under: np.ndarray) -> Estimate:
    """Of means over the seeds that both have."""
    count = min(len(over), len(under))
    return of_few(lambda a, b: a - b, over[:count], under[:count], unit="points")


def gained(studies: Studies) -> dict[str, Estimate]:
    """The gain of a larger budget."""
    return {
        f"epsilon {more:g} above {less:g}": difference(
            accuracy(studies[private(more)], ERROR), accuracy(studies[private(less)], ERROR)
        )
        for less, more in itertools.pairwise(BUDGETS.value)
    }


def gaps(ending: str) -> Measure:
    """By how much training accuracy is further above test accuracy without privacy."""

    def gap(data: xr.Dataset) -> np.ndarray:
        return accuracy(data, TRAIN_ERROR) - accuracy(data, ERROR)

    def measure(studies: Studies) -> dict[str, Estimate]:
        plain = gap(studies[f"plain{ending}"])
        return {
            f"no privacy above epsilon {b:g}": difference(plain, gap(studies[private(b)]))
            for b in BUDGETS.value
        }

    return measure


def less_spent(studies: Studies) -> dict[str, Estimate]:
    """The epsilon of the library's accountant, as a part of that of the source's."""
    estimates = {}
    for epsilon in BUDGETS.value:
        data = studies[private(epsilon)]
        spent, moments = (float(data[name]) for name in ("spent", "moments"))
        case = f"epsilon {epsilon:g}: nominally {spent:.3g}, by added moments {moments:.3g}"
        estimates[case] = Estimate.exact(spent / moments, "times")
    return estimates


def ends(studies: Studies) -> str:
    """Accuracies, noise and their text."""
    rows = "; ".join(
        f"{name} {accuracy(data, ERROR).mean():.1f} % "
        f"(training {accuracy(data, TRAIN_ERROR).mean():.1f} %) after "
        f"{float(data['round'][-1]) / EPOCH:g} epochs, {data.sizes['seed']} seeds"
        for name, data in by_name(studies).items()
    )
    return f"Means: {rows}."


SOURCE = "Abadi et al. 2016, section 5.2"
NOMINAL = "components without noise, epsilon is nominal"
#: The condition of claims by the steps without privacy.
WITHOUT = {
    "": "without privacy the step of private runs",
    LARGER: f"without privacy {TIMES} of private runs",
}
SETTLED = (
    "Run in the source's settings: principal components, clips and noise of each layer, and as "
    "many epochs as its accountant allows; 'about' is a range on both sides."
)

FIGURE = Figure(
    name="field-dpsgd",
    title="DP-SGD: accuracy on MNIST by epsilon",
    source="Abadi et al. 2016, figures 3 and 4",
    caption="A network of 1,000 hidden units on all of MNIST. (a) Test accuracy by epoch, the mean "
    "of all seeds. (b) Accuracy after the last epoch by epsilon, with 95 % intervals of "
    f"{min(SEEDS.value)} to {max(SEEDS.value)} seeds; crosses are published. Epsilon is nominal: "
    "it is that of the training, and principal components of the images are chosen without noise.",
    study=study,
    plot=plot,
    claims=[
        *(
            Claim(
                f"without-privacy{ending}",
                f"without privacy the network is right about {PUBLISHED_PLAIN} % of the test "
                f"images after {PLAIN_EPOCHS.value} epochs",
                SOURCE,
                above_published(f"plain{ending}", PUBLISHED_PLAIN),
                *CLOSE.points,
                condition=condition,
                judged=f"plain{ending}",
                note=ends,
                changed=SETTLED,
            )
            for ending, condition in WITHOUT.items()
        ),
        *(
            Claim(
                f"accuracy-{epsilon:g}",
                f"with epsilon {epsilon:g} it is right about {percent:g} %",
                SOURCE,
                above_published(private(epsilon), percent),
                *CLOSE.points,
                condition=NOMINAL,
                judged=private(epsilon),
                note=ends,
                changed=SETTLED,
            )
            for epsilon, percent in PUBLISHED.items()
        ),
        Claim(
            "more-budget-more-accuracy",
            "the larger epsilon, the more accurate is the network",
            f"{SOURCE}, figure 4",
            gained,
            *BETTER.points,
            condition=NOMINAL,
            note=ends,
            changed=SETTLED,
        ),
        *(
            Claim(
                f"no-gap{ending}",
                "under privacy training and test accuracy differ less than without",
                SOURCE,
                gaps(ending),
                *BETTER.points.when("of the difference, after the last epochs"),
                condition=f"{NOMINAL}; {condition}",
                judged=f"plain{ending}",
                note=ends,
                changed=SETTLED,
            )
            for ending, condition in WITHOUT.items()
        ),
        Claim(
            "less-spent",
            "the library's accountant finds less spent than the source's, which adds the moments "
            "of both layers",
            "this library",
            less_spent,
            (0, 1),
            "the first over the second",
            ours=True,
        ),
    ],
    settings=(
        *(NETWORK, COMPONENTS, RATE, CLIP, NOISE, STEPS, DELTA, BUDGETS, EPOCHS),
        *(PLAIN_EPOCHS, FASTER, TRAINED, SEEDS),
    ),
)
