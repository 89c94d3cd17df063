"""How far results depend on who has which samples: accuracy and its variance by the partition.

No source has this figure: it repeats each run over partitions, initial models and participants at
once, and divides the variance of the final accuracy among them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few
from experiments.tuning import FIRST_SEED
from fljax import statistics

# --------------------------------------------------------------------------- settings

IMAGES = Setting("images", 3000, "of MNIST's training images, the first: small clients, many runs")
TEST = Setting("test images", 2000, "the first, the same for all")
CLIENTS = Setting("clients", 20, "150 images each")
CHOSEN = Setting("clients a round", 5, "a fourth")
NETWORK = Setting("hidden width", 32, "a small network, with a random start")
PASSES = Setting("local passes", 2, "several, so that clients drift")
BATCH = Setting("samples a step", 10, "the smallest of McMahan et al. 2017")
ROUNDS = Setting("rounds", 30, "for the time that they take")
CONCENTRATIONS = Setting(
    "concentrations",
    (0.1, 1.0, 100.0),
    "from nearly one digit a client to nearly equal clients, within the range of Hsu et al. 2019",
)
PARTITIONS = Setting("partitions", 16, "drawn by clients, of equal sizes (Hsu et al. 2019)")
STARTS = Setting("initial models", 3, "each with each partition")
SEEDS = Setting("seeds of participants and batches", 8, "each with each of both")
TRIED = Setting(
    "values that are tried",
    "step sizes 0.05, 0.1 and 0.2; attractions 0.01, 0.1 and 1 of FedProx and 0.01 and 0.1 of "
    "FedDyn",
    "each method has the pair with the best mean accuracy over three concentrations, on other "
    "partitions, one initial model and other seeds",
)

STEPS = (0.05, 0.1, 0.2)
TUNING_SEEDS = 3
FEDAVG = "FedAvg"
FEDPROX = "FedProx"
SCAFFOLD = "SCAFFOLD"
FEDDYN = "FedDyn"
#: The attractions that are tried of each method; one without has a single value, which it ignores.
ATTRACTIONS = {FEDAVG: (0.0,), FEDPROX: (0.01, 0.1, 1.0), SCAFFOLD: (0.0,), FEDDYN: (0.01, 0.1)}
ACCURACY = "accuracy"
SOURCES = ("partition", "start", "seed")
NAMES = {
    "partition": "partition",
    "start": "initial model",
    "seed": "participants and batches",
}
LEAST = CONCENTRATIONS.value[0]
MOST = CONCENTRATIONS.value[-1]

# --------------------------------------------------------------------------- the scenario


@functools.cache
def data(quick: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels for training and for testing, flat and from 0 to 1."""
    images = fl.data.mnist_sample() if quick else fl.data.mnist()
    train = images.train_images.reshape(len(images.train_images), -1)[: IMAGES.value]
    test = images.test_images.reshape(len(images.test_images), -1)[: TEST.value]
    return (
        train / np.float32(255),
        images.train_labels[: IMAGES.value],
        test / np.float32(255),
        images.test_labels[: TEST.value],
    )


def method(name: str, step_size: Array, attraction: Array) -> Any:
    settings = {
        "clients_per_round": CHOSEN.value,
        "epochs": PASSES.value,
        "batch": BATCH.value,
    }
    if name in (FEDPROX, FEDDYN):
        settings["attraction"] = attraction
    return getattr(fl.algorithms, name)(step_size, **settings)


@functools.cache
def scenario(name: str, quick: bool) -> Callable[..., fl.Simulation]:
    """A method on the data, the partition and the initial model of given numbers; the key is that
    of participants and batches.
    """
    x, y, test_x, test_y = data(quick)

    def build(
        key: Array,
        concentration: Array,
        partition: Array,
        start: Array,
        step_size: Array,
        attraction: Array,
    ) -> fl.Simulation:
        problem = fl.problems.Model.from_pool(
            fl.models.mlp(10, hidden=(NETWORK.value,)),
            jax.random.fold_in(fl.random_key(1), start),
            x,
            y,
            fl.problems.Softmax(10),
            fl.partitions.EqualDirichlet(concentration),
            CLIENTS.value,
            partition_key=jax.random.fold_in(fl.random_key(2), partition),
        ).with_test(test_x, test_y)
        return fl.Simulation(problem, method(name, step_size, attraction), metrics=[ACCURACY])

    build.__qualname__ = f"partitions({name}, {quick})"
    return build


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    rounds = 4 if effort.quick else ROUNDS.value
    partitions = 3 if effort.quick else PARTITIONS.value
    starts = 2 if effort.quick else STARTS.value
    seeds = 2 if effort.quick else min(effort.seeds, SEEDS.value)
    tuning_seeds = 1 if effort.quick else TUNING_SEEDS
    concentrations = effort.thin(CONCENTRATIONS.value)

    def run(
        name: str,
        title: str,
        levels: Sequence[float],
        numbers: tuple[Sequence[int], Sequence[int], Sequence[int]],
        values: tuple[Sequence[float], Sequence[float]],
    ) -> xr.Dataset:
        return effort.sweep(
            f"{title}-{name}",
            scenario(name, effort.quick),
            rounds=rounds,
            record_every=rounds,
            seeds=numbers[2],
            grid={
                "concentration": list(levels),
                "partition": list(numbers[0]),
                "start": list(numbers[1]),
                "step_size": list(values[0]),
                "attraction": list(values[1]),
            },
        )

    parts = []
    tuned = {}
    for name, attractions in ATTRACTIONS.items():
        tuning_numbers = range(FIRST_SEED, FIRST_SEED + tuning_seeds)
        trial = run(
            *(name, "tune", CONCENTRATIONS.value),
            (tuning_numbers[:2], [FIRST_SEED], tuning_numbers),
            (STEPS if not effort.quick else STEPS[:1], attractions[: 1 if effort.quick else None]),
        )
        score = trial[ACCURACY].isel(round=-1)
        score = score.mean(["concentration", "partition", "start", "seed"])
        best = score.where(score.notnull(), -1).argmax(["step_size", "attraction"])
        chosen = [float(score[axis][int(best[axis])]) for axis in ("step_size", "attraction")]
        tuned[name] = chosen
        numbers = (range(partitions), range(starts), range(seeds))
        part = run(name, "final", concentrations, numbers, ([chosen[0]], [chosen[1]]))
        parts.append(part.isel(step_size=0, attraction=0, drop=True))
    final = joined(*parts).assign_coords(algorithm=[*ATTRACTIONS])
    for name, chosen in tuned.items():
        final.attrs[f"tuned_{name}"] = chosen
    return {"final": final}


def accuracy(studies: Studies) -> xr.DataArray:
    """Over algorithm, concentration, partition, start and seed, in per cent."""
    return 100 * studies["final"][ACCURACY].isel(round=-1, drop=True)


def shares(studies: Studies) -> xr.Dataset:
    """The shares of the variance of the final accuracy, in per cent."""
    parts = statistics.variance_shares(accuracy(studies), SOURCES)
    return (100 * parts[["share", "low", "high"]]).assign(deviation=parts["variance"] ** 0.5)


def tuning(studies: Studies) -> list[dict[str, Any]]:
    rows = []
    for name, candidates in ATTRACTIONS.items():
        step_size, attraction = studies["final"].attrs[f"tuned_{name}"]
        numbers = f"step size {step_size:g} of {len(STEPS)}"
        if len(candidates) > 1:
            numbers += f", attraction {attraction:g} of {len(candidates)}"
        rows.append({"method": name, "numbers": numbers, "chosen": True})
    return rows


def table(studies: Studies) -> list[dict[str, Any]]:
    by_source = shares(studies)
    means = accuracy(studies).mean(SOURCES)
    rows = []
    for name in ATTRACTIONS:
        for level in by_source["concentration"].values.tolist():
            of = {"algorithm": name, "concentration": level}
            cell = by_source.sel(of)
            rows.append(
                {
                    "method": name,
                    "concentration": level,
                    "accuracy [%]": round(float(means.sel(of)), 2),
                    "deviation [points]": round(float(cell["deviation"]), 2),
                    **{
                        f"{text} [%]": "{:.0f} [{:.0f}, {:.0f}]".format(
                            *(float(cell.sel(source=source)[k]) for k in ("share", "low", "high"))
                        )
                        for source, text in NAMES.items()
                    },
                }
            )
    return rows


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = ("accuracy", "its deviation", *(f"share of the {text}" for text in NAMES.values()))
    drawing, axes = plt.subplots(2, 3, figsize=(picture.PAGE, 4.4))
    axes = list(axes.flat)
    by_source = shares(studies)
    levels = by_source["concentration"].values
    values = accuracy(studies)
    distance = studies["final"]["label_distance"]
    for index, name in enumerate(ATTRACTIONS):
        accuracies = values.sel(algorithm=name)
        look = picture.look(index)
        by_partition = accuracies.mean(["start", "seed"])
        estimates = [
            of_few(float, by_partition.sel(concentration=level).values, unit="%")
            for level in levels
        ]
        bars = [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]]
        axes[0].errorbar(levels, [e.value for e in estimates], bars, capsize=2, label=name, **look)
        cell = by_source.sel(algorithm=name)
        axes[1].plot(levels, cell["deviation"], **look)
        for ax, source in zip(axes[2:5], NAMES, strict=True):
            part = cell.sel(source=source)
            positions = levels * 1.12 ** (index - 1.5)  # so that intervals do not hide each other
            bars = [part["share"] - part["low"], part["high"] - part["share"]]
            ax.errorbar(positions, part["share"], bars, capsize=2, **look)
    first = next(iter(ATTRACTIONS))
    axes[5].scatter(
        distance.sel(algorithm=first).isel(start=0, seed=0),
        values.sel(algorithm=first).mean(["start", "seed"]),
        s=6,
        color=picture.look(0)["color"],
    )
    for letter, ax, title in zip(
        "abcdef", axes, (*titles, f"{first}, each partition"), strict=True
    ):
        ax.set_title(f"({letter}) {title}")
    for ax in axes[:5]:
        ax.set(xscale="log", xlabel="concentration")
    for ax in axes[2:5]:
        ax.set(ylim=(-25, 125), yticks=range(0, 101, 25), ylabel="of the variance [%]")
    axes[0].set_ylabel("test accuracy [%]")
    axes[1].set_ylabel("[points]")
    axes[5].set(xlabel="label distance of the partition", ylabel="test accuracy [%]")
    picture.share_legend(axes)
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims


def of_share(source: str, level: float, *methods: str) -> Measure:
    """The share of a source at a concentration, of some methods or all."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        cells = shares(studies).sel(source=source, concentration=level)
        return {
            name: Estimate(
                *(float(cells.sel(algorithm=name)[k]) for k in ("share", "low", "high")), unit="%"
            )
            for name in methods or ATTRACTIONS
        }

    return measure


def fall(studies: Studies) -> dict[str, Estimate]:
    """By how much accuracy is higher among nearly equal clients, over partitions."""
    values = accuracy(studies).mean(["start", "seed"])
    return {
        name: of_few(
            lambda high, low: high - low,
            *(values.sel(algorithm=name, concentration=level).values for level in (MOST, LEAST)),
            unit="points",
        )
        for name in ATTRACTIONS
    }


def over(first: str, *others: str) -> Measure:
    """By how much one method is more accurate at the least concentration, paired by partition."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        values = accuracy(studies).sel(concentration=LEAST).mean(["start", "seed"])
        return {
            f"{first} above {other}": of_few(
                lambda a, b: a - b,
                *(values.sel(algorithm=name).values for name in (first, other)),
                unit="points",
            )
            for other in others
        }

    return measure


def means(studies: Studies) -> str:
    """Accuracies, for notes."""
    values = accuracy(studies).mean(SOURCES)
    return "Accuracies in per cent at the least concentration: " + ", ".join(
        f"{name} {float(values.sel(algorithm=name, concentration=LEAST)):.1f}"
        for name in ATTRACTIONS
    )


OURS = f"ours: {IMAGES.value} images of MNIST at {CLIENTS.value} clients, a network of one layer"

FIGURE = Figure(
    name="field-partitions",
    title="Accuracy and its variance by the partition of the data",
    source="this library; partitions of Hsu et al. 2019",
    caption="(a) Test accuracy after the last round by the concentration of the clients' labels, "
    "with 95 % intervals over partitions, and (b) the standard deviation of a run. (c)-(e) The "
    "shares of that variance which come from the partition, from the initial model once the "
    "partition is known, and from participants and batches once both are, with 95 % intervals "
    "(a nested analysis of variance of a crossed design). (f) Each partition's accuracy by how "
    "far its clients' labels are from those of all.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "unlike-clients-cost-accuracy",
            "accuracy falls as clients' labels differ more",
            "Hsu et al. 2019, of federated averaging on CIFAR-10",
            fall,
            *SIGNIFICANTLY.points.when(f"concentration {MOST:g} over {LEAST:g}, all methods"),
            OURS,
        ),
        Claim(
            "corrections-help-unlike-clients",
            "SCAFFOLD is better than FedAvg on clients that are unlike",
            "Karimireddy et al. 2020, section 7",
            over(SCAFFOLD, FEDAVG),
            (0, INFINITE),
            f"at concentration {LEAST:g}, paired by partition",
            OURS,
            note=means,
        ),
        Claim(
            "dynamic-regularization-is-best",
            "FedDyn is better than FedAvg, FedProx and SCAFFOLD on clients that are unlike",
            "Acar et al. 2021 (FedDyn), of its experiments",
            over(FEDDYN, FEDAVG, FEDPROX, SCAFFOLD),
            (0, INFINITE),
            f"at concentration {LEAST:g}, paired by partition",
            OURS,
            note=means,
        ),
        Claim(
            "partitions-are-most-of-the-variance",
            "where clients are most unlike, more than a third of the variance of final accuracies "
            "comes from the partition",
            "this library",
            of_share("partition", LEAST),
            (100 / 3, INFINITE),
            "the whole interval, each method",
            ours=True,
        ),
        Claim(
            "participants-are-most-of-the-variance-of-fedavg",
            "where clients are most unlike, more than a half of the variance of FedAvg and FedProx "
            "comes from who takes part and from batches",
            "this library",
            of_share("seed", LEAST, FEDAVG, FEDPROX),
            (50, INFINITE),
            "the whole interval, both methods",
            ours=True,
        ),
        Claim(
            "partitions-matter-less-for-equal-clients",
            "among nearly equal clients it is less than a half",
            "this library",
            of_share("partition", MOST),
            (-INFINITE, 50),
            "the whole interval, each method",
            ours=True,
        ),
    ],
    settings=(
        *(IMAGES, TEST, CLIENTS, CHOSEN, NETWORK, PASSES, BATCH, ROUNDS, CONCENTRATIONS),
        *(PARTITIONS, STARTS, SEEDS, TRIED),
    ),
    tuning=tuning,
    table=table,
)
