"""FedBN on digits whose images differ by client (Li et al. 2021), with shifts of MNIST's images."""

import functools
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture
from scipy import ndimage

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few

# --------------------------------------------------------------------------- settings

SHIFTS = Setting(
    "clients",
    ("plain", "blurred", "inverted", "noisy"),
    "the source has five data sets of digits (MNIST, SVHN, USPS, SynthDigits, MNIST-M), of which "
    "only MNIST is at hand: these are forms of its images",
)
IMAGES = Setting("images of a client", 743, "the source's number")
TEST = Setting("test images of a client", 1000, "of MNIST's test images, changed in the same way")
BLUR = Setting("deviation of the blur [pixels]", 1.5, "digits remain readable")
NOISE = Setting("deviation of the noise", 0.5, "of a pixel from 0 to 1")
CHANNELS = Setting(
    "channels of the convolutions", (8, 8, 16), "the source: 64, 64, 128; smaller for the time"
)
HIDDEN = Setting("width of the dense layer", 64, "the source: 2048 and 512; smaller for the time")
STEP = Setting("step size", 0.01, "the source's")
BATCH = Setting("samples a step", 32, "the source's; the smaller last batch is left out")
ATTRACTION = Setting("attraction of FedProx", 0.01, "the source's")
ROUNDS = Setting("rounds of one local epoch", 40, "the source: 300; fewer for the time")
RECORD = Setting("rounds between records", 4, "for the time")
SEEDS = Setting("seeds", 5, "of the initial model and of batches; as many as the source has trials")

FEDAVG = "FedAvg"
FEDPROX = "FedProx"
SILOBN = "FedAvg, statistics kept"
FEDBN = "FedBN"
METHODS = (FEDAVG, FEDPROX, SILOBN, FEDBN)
ACCURACY = "client_accuracy"
LOSS = "train_error"

# --------------------------------------------------------------------------- the scenario


@functools.cache
def network() -> fl.models.Architecture:
    """The source's network, narrower: normalization after every layer but the last."""
    from flax import linen  # not among the requirements of the other figures

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: Array, train: bool) -> Array:
            def normalized(x: Array) -> Array:
                return linen.relu(linen.BatchNorm(use_running_average=not train, momentum=0.9)(x))

            for number, channels in enumerate(CHANNELS.value):
                x = normalized(linen.Conv(channels, (5, 5), padding="SAME")(x))
                if number < 2:
                    x = linen.max_pool(x, (2, 2), (2, 2))
            x = normalized(linen.Dense(HIDDEN.value)(x.reshape(len(x), -1)))
            return linen.Dense(10)(x)

    return fl.models.linen(Network())


def changed(name: str, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images ``[n, 28, 28]``, from 0 to 1, as a client sees them."""
    if name == "blurred":
        return ndimage.gaussian_filter(images, (0, BLUR.value, BLUR.value))
    if name == "inverted":
        return 1 - images
    if name == "noisy":
        noise = rng.normal(scale=NOISE.value, size=images.shape)
        return np.clip(images + noise.astype(np.float32), 0, 1)
    return images


Pairs = list[tuple[np.ndarray, np.ndarray]]


@functools.cache
def data(quick: bool) -> tuple[Pairs, Pairs]:
    """Each client's own images for training and for testing."""
    mnist = fl.data.mnist_sample() if quick else fl.data.mnist()
    sizes = (40, 30) if quick else (IMAGES.value, TEST.value)
    rng = np.random.default_rng(0)
    train = []
    test = []
    for k, name in enumerate(SHIFTS.value):
        for part, size, images, labels in (
            (train, sizes[0], mnist.train_images, mnist.train_labels),
            (test, sizes[1], mnist.test_images, mnist.test_labels),
        ):
            rows = slice(k * size, (k + 1) * size)
            scaled = images[rows].reshape(-1, 28, 28) / np.float32(255)
            part.append((changed(name, scaled, rng)[..., None], labels[rows]))
    return train, test


@functools.cache
def scenario(name: str, quick: bool) -> Callable[..., fl.Simulation]:
    train, test = data(quick)
    state = "averaged" if name in (FEDAVG, FEDPROX) else "kept"

    def build(key: Array) -> fl.Simulation:
        problem = fl.problems.Model.from_clients(
            network(), key, train, fl.problems.Softmax(10), test=test, state=state
        )
        settings: dict[str, Any] = {"batch": 8 if quick else BATCH.value, "drop_last": True}
        algorithms = {
            FEDPROX: functools.partial(fl.algorithms.FedProx, attraction=ATTRACTION.value),
            FEDBN: fl.algorithms.FedBN,
        }
        algorithm = algorithms.get(name, fl.algorithms.FedAvg)(STEP.value, **settings)
        return fl.Simulation(problem, algorithm, metrics=[ACCURACY, LOSS])

    build.__qualname__ = f"fedbn({name}, {quick})"
    return build


def study(effort: Effort) -> Studies:
    rounds, record = (2, 1) if effort.quick else (ROUNDS.value, RECORD.value)
    seeds = 2 if effort.quick else min(effort.seeds, SEEDS.value)
    parts = [
        effort.sweep(
            f"fedbn-{name}",
            scenario(name, effort.quick),
            rounds=rounds,
            record_every=record,
            seeds=seeds,
        )
        for name in METHODS
    ]
    return {"digits": joined(*parts).assign_coords(algorithm=[*METHODS])}


def accuracies(studies: Studies) -> xr.DataArray:
    """Over algorithm, seed and client, after the last round, in per cent."""
    return 100 * studies["digits"][ACCURACY].isel(round=-1, drop=True)


# --------------------------------------------------------------------------- the picture


def table(studies: Studies) -> list[dict[str, Any]]:
    values = accuracies(studies)
    rows = []
    for name in METHODS:
        row: dict[str, Any] = {"method": name}
        for k, shift in enumerate((*SHIFTS.value, "mean")):
            of_method = values.sel(algorithm=name)
            column = of_method.mean("client") if shift == "mean" else of_method.isel(client=k)
            estimate = of_few(float, column.values, unit="%")
            low, high = round(estimate.low, 1), round(estimate.high, 1)
            row[f"{shift} [%]"] = f"{estimate.value:.1f} [{low}, {high}]"
        rows.append(row)
    return rows


def plot(studies: Studies) -> Picture:
    drawing, axes = plt.subplots(1, 3, figsize=(picture.PAGE, 2.5))
    results = studies["digits"]
    for index, name in enumerate(METHODS):
        look = picture.look(index)
        of_method = results.sel(algorithm=name)
        losses = of_method[LOSS].mean(["client", "seed"])
        axes[0].plot(results["round"], losses, label=name, **look)
        accuracy = 100 * of_method[ACCURACY].mean(["client", "seed"])
        axes[1].plot(results["round"], accuracy, **look)
        final = accuracies(studies).sel(algorithm=name)
        estimates = [
            of_few(float, final.isel(client=k).values, unit="%") for k in range(len(SHIFTS.value))
        ]
        places = np.arange(len(estimates)) + 0.15 * (index - 1.5)
        bars = [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]]
        axes[2].errorbar(
            places,
            [e.value for e in estimates],
            bars,
            **look | {"linestyle": "none", "marker": "o", "markersize": 3},
            capsize=2,
        )
    axes[0].set(yscale="log", ylabel="training loss", title="(a) training loss")
    axes[1].set(ylabel="test accuracy [%]", title="(b) mean accuracy")
    axes[2].set(ylabel="test accuracy [%]", title="(c) each client at the end")
    axes[2].set_xticks(range(len(SHIFTS.value)), SHIFTS.value)
    for ax in axes[:2]:
        ax.set_xlabel("round")
    axes[2].set_xlabel("images of the client")
    picture.share_legend(list(axes))
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims


def above(first: str, second: str, *, each: bool) -> Measure:
    """By how much one method is more accurate than another, of each client or their mean."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        pair = [accuracies(studies).sel(algorithm=name) for name in (first, second)]
        parts = {"mean": [values.mean("client") for values in pair]}
        if each:
            parts = {
                shift: [values.isel(client=k) for values in pair]
                for k, shift in enumerate(SHIFTS.value)
            }
        return {
            name: of_few(lambda a, b: a - b, *(v.values for v in values), unit="points")
            for name, values in parts.items()
        }

    return measure


def faster(studies: Studies) -> dict[str, Estimate]:
    """The training loss of FedBN, in per cent of FedAvg's, on average over all rounds."""
    losses = studies["digits"][LOSS].mean(["client", "round"])
    pair = [losses.sel(algorithm=name).values for name in (FEDBN, FEDAVG)]
    return {"mean loss": of_few(lambda a, b: 100 * a / b, *pair, unit="%")}


def kept_share(studies: Studies) -> dict[str, Estimate]:
    """How much of FedBN's gain over FedAvg there is where statistics alone are kept."""
    means = accuracies(studies).mean("client")
    rows = [means.sel(algorithm=name).values for name in (SILOBN, FEDAVG, FEDBN)]
    return {
        "share of the gain": of_few(
            lambda kept, averaged, both: 100 * (kept - averaged) / (both - averaged),
            *rows,
            unit="%",
        )
    }


SCALED = (
    f"{len(SHIFTS.value)} forms of MNIST's images instead of five data sets, a narrower network "
    f"and {ROUNDS.value} rounds instead of 300"
)

FIGURE = Figure(
    name="field-fedbn",
    title="FedBN: batch normalization that stays at the clients",
    source="Li et al. 2021, figures 4 and 5, with other data",
    caption="(a) Mean training loss and (b) mean test accuracy of four clients whose images "
    "differ, means of seeds; (c) the test accuracy of each client after the last round, with 95 % "
    "intervals over seeds. FedAvg and FedProx average scales, offsets and running statistics of "
    "batch normalization; FedBN leaves all of them at the clients, and in the variant between both "
    "only the statistics stay.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "fedbn-is-more-accurate-at-every-client",
            "FedBN is more accurate than FedAvg on the test data of every client",
            "Li et al. 2021, section 5.1 and figure 5",
            above(FEDBN, FEDAVG, each=True),
            (0, INFINITE),
            "each client, paired by seed",
            SCALED,
        ),
        Claim(
            "fedbn-is-more-accurate-than-fedprox",
            "FedBN is more accurate than FedProx on average",
            "Li et al. 2021, figure 5",
            above(FEDBN, FEDPROX, each=False),
            (0, INFINITE),
            "the mean over clients, paired by seed",
            SCALED,
        ),
        Claim(
            "fedbn-converges-faster",
            "FedBN converges faster than FedAvg",
            "Li et al. 2021, figure 4 and section 4",
            faster,
            (0, 100),
            "the mean training loss over all rounds, paired by seed",
            SCALED,
        ),
        Claim(
            "keeping-statistics-is-most-of-it",
            "more than a half of that gain comes from running statistics alone",
            "this library",
            kept_share,
            (50, INFINITE),
            "the mean over clients, paired by seed",
            ours=True,
        ),
    ],
    settings=(
        *(SHIFTS, IMAGES, TEST, BLUR, NOISE, CHANNELS, HIDDEN, STEP, BATCH, ATTRACTION),
        *(ROUNDS, RECORD, SEEDS),
    ),
    table=table,
)
