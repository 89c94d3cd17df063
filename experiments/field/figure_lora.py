"""Adapters of low rank under three averages (FedIT, FFA-LoRA, FLoRA), on turned digits."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few

# --------------------------------------------------------------------------- settings

NETWORK = Setting(
    "hidden units", (200, 200), "the sources adapt language models of 0.4 to 7 billion parameters"
)
RANK = Setting("rank of an adapter", 8, "FFA-LoRA's")
SCALE = Setting("scale of an adapter", 1.0, "FFA-LoRA's alpha of 8 over the rank")
PRETRAINING = Setting("upright images for pretraining", 5000, "the task that is known")
CLIENTS = Setting("clients", 10, "FLoRA's")
ALPHA = Setting("concentration of labels", 0.5, "clients with few digits each")
IMAGES = Setting("images, turned by a quarter", 2000, "the new task")
TEST = Setting("test images, turned", 2000, "of MNIST's test images")
EPOCHS = Setting("local epochs", 3, "FLoRA's")
BATCH = Setting("samples a step", 32, "as usual")
STEPS = Setting(
    "step sizes",
    (0.01, 0.03, 0.1, 0.3, 1.0),
    "the best of each method by the tuning seeds is shown",
)
ROUNDS = Setting("rounds", 30, "for the time")
RECORD = Setting("rounds between records", 2, "for the time")
TUNING = Setting("tuning seeds", 3, "not among the others")
SEEDS = Setting("seeds", 8, "of partitions, batches and adapters")

FULL = "all parameters"
FEDIT = "FedIT"
FFA = "FFA-LoRA"
FLORA = "FLoRA"
METHODS = (FULL, FEDIT, FFA, FLORA)
#: The parameters that clients train and send; FLoRA changes the network's own weights as well.
PATTERNS = {FULL: "^base/", FEDIT: "^lora/", FFA: "^lora/.*/b$", FLORA: None}
ACCURACY = "accuracy"

# --------------------------------------------------------------------------- the scenario

Pair = tuple[np.ndarray, np.ndarray]


def flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1) / np.float32(255)


def turned(images: np.ndarray) -> np.ndarray:
    return np.rot90(images.reshape(-1, 28, 28), axes=(1, 2))


@functools.cache
def data(quick: bool) -> tuple[Pair, Pair, Pair]:
    """Upright images, turned ones of the clients, and turned ones to test with."""
    mnist = fl.data.mnist_sample() if quick else fl.data.mnist()
    first, second = (300, 200) if quick else (PRETRAINING.value, IMAGES.value)
    known = flat(mnist.train_images[:first]), mnist.train_labels[:first]
    rows = slice(first, first + second)
    new = flat(turned(mnist.train_images[rows])), mnist.train_labels[rows]
    count = 100 if quick else TEST.value
    test = flat(turned(mnist.test_images[:count])), mnist.test_labels[:count]
    return known, new, test


def network() -> fl.models.Architecture:
    base = fl.models.mlp(10, hidden=NETWORK.value)
    return fl.models.lora(base, RANK.value, scale=SCALE.value)


@functools.cache
def pretrained(quick: bool) -> Array:
    """The network's parameters after training on upright images; its adapters add nothing."""
    problem = fl.problems.Model.from_clients(
        network(), jax.random.key(0), [data(quick)[0]], fl.problems.Softmax(10)
    )
    algorithm = fl.algorithms.FedAvg(optax.adam(1e-3), epochs=1 if quick else 10, batch=BATCH.value)
    simulation = fl.Simulation(problem.training_only("^base/"), algorithm)
    trained = fl.run(simulation, rounds=1, key=fl.random_key(0)).model.values[0]
    row = np.array(problem.initial)
    row[problem.layout.coordinates("^base/")] = trained
    return jnp.asarray(row)


@functools.cache
def scenario(name: str, quick: bool) -> Callable[..., fl.Simulation]:
    _, (features, labels), test = data(quick)
    start = pretrained(quick)

    def build(key: Array, step_size: float) -> fl.Simulation:
        problem = fl.problems.Model.from_pool(
            network(),
            key,
            features,
            labels,
            fl.problems.Softmax(10),
            fl.partitions.Dirichlet(ALPHA.value),
            clients=3 if quick else CLIENTS.value,
        )
        problem = problem.starting_at(start).with_test(*test).weighing("samples")
        if (pattern := PATTERNS[name]) is not None:
            problem = problem.training_only(pattern)
        kind = fl.algorithms.FLoRA if name == FLORA else fl.algorithms.FedAvg
        algorithm = kind(step_size, epochs=EPOCHS.value, batch=BATCH.value)
        return fl.Simulation(problem, algorithm, metrics=[ACCURACY])

    build.__qualname__ = f"lora({name}, {quick})"
    return build


def study(effort: Effort) -> Studies:
    rounds, record = (2, 1) if effort.quick else (ROUNDS.value, RECORD.value)
    tuning = 1 if effort.quick else TUNING.value
    seeds = tuning + (2 if effort.quick else min(effort.seeds, SEEDS.value))
    parts = [
        effort.sweep(
            f"lora-{name}",
            scenario(name, effort.quick),
            grid={"step_size": list(STEPS.value)},
            rounds=rounds,
            record_every=record,
            seeds=seeds,
        )
        for name in METHODS
    ]
    results = joined(*parts).assign_coords(algorithm=[*METHODS])
    results.attrs["tuning"] = tuning
    return {"digits": results}


def chosen_steps(studies: Studies) -> dict[str, float]:
    """The step size of each method with the highest final accuracy on the tuning seeds."""
    results = studies["digits"]
    tuning = results[ACCURACY].isel(round=-1, seed=slice(results.attrs["tuning"]))
    tuning = tuning.mean("seed", skipna=False)
    return {name: float(tuning.sel(algorithm=name).idxmax("step_size")) for name in METHODS}


def of_chosen(studies: Studies, variable: str = ACCURACY) -> xr.DataArray:
    """A variable over algorithm, seed and round, at the chosen steps and on the other seeds."""
    results = studies["digits"]
    values = results[variable].isel(seed=slice(results.attrs["tuning"], None))
    steps = chosen_steps(studies)
    parts = [values.sel(algorithm=name, step_size=steps[name], drop=True) for name in METHODS]
    return xr.concat(parts, dim=xr.DataArray([*METHODS], dims="algorithm", name="algorithm"))


def final(studies: Studies) -> xr.DataArray:
    """Accuracy over algorithm and seed after the last round, in per cent."""
    return 100 * of_chosen(studies).isel(round=-1, drop=True)


# --------------------------------------------------------------------------- the picture


def table(studies: Studies) -> list[dict[str, Any]]:
    values = final(studies)
    steps = chosen_steps(studies)
    bits = of_chosen(studies, "bits_up").isel(round=-1)
    rows = []
    for name in METHODS:
        estimate = of_few(float, values.sel(algorithm=name).values, unit="%")
        rows.append(
            {
                "method": name,
                "step size": f"{steps[name]:g}",
                "accuracy [%]": f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]",
                "sent by clients [Mbit]": f"{float(bits.sel(algorithm=name).mean()) / 1e6:.0f}",
            }
        )
    return rows


def plot(studies: Studies) -> Picture:
    drawing, axes = plt.subplots(1, 2, figsize=(picture.PAGE, 2.6))
    accuracy = 100 * of_chosen(studies)
    bits = of_chosen(studies, "bits_up")
    for index, name in enumerate(METHODS):
        look = picture.look(index)
        curve = accuracy.sel(algorithm=name)
        axes[0].plot(curve["round"], curve.mean("seed"), label=name, **look)
        axes[1].plot(bits.sel(algorithm=name).mean("seed") / 1e6, curve.mean("seed"), **look)
    axes[0].set(xlabel="round", ylabel="test accuracy [%]", title="(a) over rounds")
    axes[1].set(
        xscale="log",
        xlabel="sent by clients [Mbit]",
        ylabel="test accuracy [%]",
        title="(b) over bits",
    )
    picture.share_legend(list(axes))
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims


def above(first: str, second: str) -> Measure:
    """By how much one method is more accurate than another."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        pair = [final(studies).sel(algorithm=name).values for name in (first, second)]
        return {"final accuracy": of_few(lambda a, b: a - b, *pair, unit="points")}

    return measure


def below_all(studies: Studies) -> dict[str, Estimate]:
    """By how much training all parameters is more accurate than each kind of adapters."""
    values = final(studies)
    full = values.sel(algorithm=FULL).values
    return {
        name: of_few(lambda a, b: a - b, full, values.sel(algorithm=name).values, unit="points")
        for name in METHODS
        if name != FULL
    }


def bits_of_ffa(studies: Studies) -> dict[str, Estimate]:
    bits = of_chosen(studies, "bits_up").isel(round=-1)
    pair = [bits.sel(algorithm=name).values.astype(float) for name in (FFA, FEDIT)]
    return {"sent by clients": of_few(lambda a, b: 100 * a / b, *pair, unit="% of FedIT's")}


SCALED = (
    "a dense network of two hidden layers that knows upright digits and meets turned ones, instead "
    "of language models and instructions"
)

FIGURE = Figure(
    name="field-lora",
    title="Adapters of low rank under three averages",
    source="Sun et al. 2024 and Wang et al. 2024, with other data and another network",
    caption="Test accuracy on turned digits of a network that was trained on upright ones, and is "
    "adapted by clients with few digits each: mean of seeds, each method with its best step size; "
    "(a) over rounds, (b) over the bits that clients have sent. FedIT averages both factors of an "
    "adapter, FFA-LoRA keeps the first as it is drawn, and FLoRA adds the average of products to "
    "the weights.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "ffa-is-more-accurate-than-fedit",
            "with heterogeneous clients FFA-LoRA is more accurate than averaging both factors",
            "Sun et al. 2024, section 5.2 and Table 2",
            above(FFA, FEDIT),
            (0, INFINITE),
            "after the last round, paired by seed",
            SCALED,
        ),
        Claim(
            "ffa-sends-half",
            "FFA-LoRA sends about a half of what averaging both factors does",
            "Sun et al. 2024, section 4",
            bits_of_ffa,
            (30, 70),
            "at equal rounds; the factors are of unequal sizes",
            SCALED,
        ),
        Claim(
            "flora-is-more-accurate-than-fedit",
            "FLoRA is more accurate than FedIT with adapters of one rank",
            "Wang et al. 2024, section 4.2 and Table 1",
            above(FLORA, FEDIT),
            (0, INFINITE),
            "after the last round, paired by seed",
            SCALED,
        ),
        Claim(
            "adapters-are-below-all-parameters",
            "training all parameters is more accurate than each of the three",
            "this library",
            below_all,
            (0, INFINITE),
            "after the last round, paired by seed",
            ours=True,
        ),
    ],
    settings=(
        *(NETWORK, RANK, SCALE, PRETRAINING, CLIENTS, ALPHA, IMAGES, TEST, EPOCHS, BATCH),
        *(STEPS, ROUNDS, RECORD, TUNING, SEEDS),
    ),
    table=table,
    keep=("bits_up",),
)
