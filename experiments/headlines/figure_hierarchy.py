"""Averages at edges between the averages of a cloud: their savings, and quantization's."""

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import first_below
from experiments.measures import joined, of_median, samples
from experiments.own.figure_models import Size, dealt
from fljax import algorithms as A
from fljax import plotting

# --------------------------------------------------------------------------- settings

EDGES = Setting("edges", 5, "as in the authors' program (github.com/LuminLiu/HierFL)")
CLIENTS = Setting("clients of an edge", 10, "fifty in all, as there; drawn at random")
SAMPLES = Setting("images a client", 100, "of MNIST, drawn with replacement")
CONCENTRATION = Setting("concentration of the digits", 0.1, "a client has two or three that count")
BATCH = Setting("images a step", 20, "as in the authors' program")
STEP = Setting(
    "local step size", 0.1, "the same for all: with more steps between averages it drifts farther"
)
PERIOD = Setting(
    "local steps between averages of the cloud", 60, "kappa_1 kappa_2, as in the authors' program"
)
OFTEN = Setting(
    "local steps between averages of the edges",
    (60, 30, 6),
    "kappa_1; with 60 the edges average when the cloud does, which is federated averaging",
)
BITS = Setting("bits of a quantized number", 4, "on both levels; the norm takes one word more")
AVERAGES = Setting("averages of the cloud", 25, "1,500 local steps of every client")
TARGET = Setting("target", 0.2, "test error rate, which all methods reach")
SEEDS = Setting("seeds", 10, "at most; data, edges, start and batches anew for each")

ERROR = "error_rate"
ALONE = f"cloud alone, every {PERIOD.value}"
FREQUENT = f"cloud alone, every {OFTEN.value[-1]}"
QUANTIZED = f"edges every {OFTEN.value[-1]}, quantized"


def named(often: int) -> str:
    return ALONE if often == PERIOD.value else f"edges every {often}"


STEPS: dict[str, Any] = {"step_size": STEP.value, "batches": fl.batches.Uniform(BATCH.value)}


def methods() -> Mapping[str, A.HierFAVG]:
    """All of them, the reference whose cloud averages as often as edges do last."""
    often = OFTEN.value[-1]
    quantizer = fl.link.Quantize(BITS.value)
    return {
        **{
            named(steps): A.HierFAVG(**STEPS, local_steps=steps, intervals=PERIOD.value // steps)
            for steps in OFTEN.value
        },
        QUANTIZED: A.HierLocalQSGD(
            **STEPS,
            local_steps=often,
            intervals=PERIOD.value // often,
            compressors_up=quantizer,
        ),
        FREQUENT: A.HierFAVG(**STEPS, local_steps=often),
    }


# --------------------------------------------------------------------------- the scenario


def hierarchical(key: Array, algorithm: A.HierFAVG, size: Size, edges: int) -> fl.Simulation:
    problem = dealt(key, jnp.asarray(CONCENTRATION.value), size)
    network = fl.graphs.tree([edges, size.clients // edges])
    return fl.Simulation(problem, algorithm, network, metrics=[ERROR, "level_bits"])


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    edges = 2 if effort.quick else EDGES.value
    clients = edges * (2 if effort.quick else CLIENTS.value)
    averages = 3 if effort.quick else AVERAGES.value
    network = fl.models.mlp(10, ())
    size = Size(images, clients, clients, SAMPLES.value, averages, network, 20)
    runs = []
    for name, algorithm in methods().items():
        every = PERIOD.value // algorithm.local_steps
        data = effort.sweep(
            f"hierarchy-{len(runs)}",
            functools.partial(hierarchical, algorithm=algorithm, size=size, edges=edges),
            seeds=min(effort.seeds, SEEDS.value),
            rounds=averages * every,
            record_every=every,
        )
        data = data[[ERROR, "level_bits", "diverged"]].assign_coords(
            round=PERIOD.value * np.arange(1, averages + 1)
        )
        runs.append(data.expand_dims(algorithm=[name]))
    return {"hierarchy": joined(*runs)}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    data = studies["hierarchy"]
    titles = ("steps of clients", "what the cloud receives", "all uploads")
    drawing, axes = picture.panels(titles, columns=3, height=2.4)
    plotting.learning_curves(data, ERROR, ax=axes[0])
    axes[0].set_xlabel("local steps of a client")
    for ax, bits in ((axes[1], at_cloud(data)), (axes[2], uploads(data))):
        for index, name in enumerate(data["algorithm"].values.tolist()):
            middle = data[ERROR].sel(algorithm=name).mean("seed").values
            at = bits.sel(algorithm=name).mean("seed").values / 8e6
            ax.plot(at, middle, label=name, **picture.look(index))
        ax.set_xscale("log")
        ax.set_ylabel("test error rate")
    axes[1].set_xlabel("edges to cloud [MB]")
    axes[2].set_xlabel("clients and edges, up [MB]")
    for ax in axes:
        ax.axhline(TARGET.value, color="#999999", linewidth=0.8)
    return picture.finish(drawing, "Averages at edges between those of a cloud")


# --------------------------------------------------------------------------- claims


def at_cloud(data: xr.Dataset) -> xr.DataArray:
    """The bits that edges have sent up."""
    return data["level_bits"].isel(level=1, direction=0)


def uploads(data: xr.Dataset) -> xr.DataArray:
    """The bits that clients and edges have sent up."""
    return data["level_bits"].isel(direction=0).sum("level")


def cost(data: xr.Dataset, name: str, of: str) -> np.ndarray:
    """``[rounds]``: the cost of a run up to each record, the same for all seeds."""
    if of == "steps":
        return data["round"].values.astype(float)
    bits = at_cloud(data) if of == "cloud" else uploads(data)
    return bits.sel(algorithm=name).isel(seed=0).values


def saved(over: str, under: str, of: str) -> Measure:
    """How many times as much one costs as another until its error is at the target, in the median
    run.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["hierarchy"]
        both = np.concatenate([samples(data, name, ERROR) for name in (over, under)], axis=1)
        costs = cost(data, over, of), cost(data, under, of)

        def ratio(curves: np.ndarray) -> np.ndarray:
            first, second = np.split(curves, 2, axis=1)
            return first_below(first, TARGET.value, costs[0]) / first_below(
                second, TARGET.value, costs[1]
            )

        return {f"{over} over {under}": of_median(ratio, both, unit="times")}

    return measure


INSTANCE = "softmax regression on MNIST, fifty clients of two or three digits each at five edges"
BEST = named(OFTEN.value[-1])
MIDDLE = named(OFTEN.value[1])
FIGURE = Figure(
    name="headline-hierarchy",
    title="Averages at edges between those of a cloud",
    source="Liu et al. 2020 (HierFAVG); Liu et al. 2023 (Hier-Local-QSGD)",
    caption="Fifty clients at five edges; the cloud averages after every 60 local steps, and in "
    "between the edges do so more or less often. The last two: quantized messages on both levels, "
    "and a cloud that averages as often as the edges. The models that the cloud has just averaged "
    "are tested on all digits. Of the papers the abstracts and the authors' programs could be "
    "opened, not the theorems.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "edges-train-faster",
            "with averages at edges a model is trained faster than by the cloud alone",
            "Liu et al. 2020, abstract",
            saved(ALONE, BEST, "steps"),
            (1, INFINITE),
            "fewer local steps to the target, with as many averages of the cloud",
            condition=INSTANCE,
        ),
        Claim(
            "more-often-is-faster",
            "with the cloud's interval fixed, the more often edges average, the fewer local steps",
            "ours; the abstract of Liu et al. 2020 names guidelines and does not state them",
            lambda studies: {
                **saved(ALONE, MIDDLE, "steps")(studies),
                **saved(MIDDLE, BEST, "steps")(studies),
            },
            (1, INFINITE),
            ours=True,
            condition=INSTANCE,
        ),
        Claim(
            "edges-save-the-cloud",
            "edges have the better trade-off: fewer bits to the cloud than averages of the cloud "
            "alone as often",
            "Liu et al. 2020, abstract",
            saved(FREQUENT, BEST, "cloud"),
            (1, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "quantization-saves-uploads",
            "quantization on both levels saves bits of uploads at the same error",
            "Liu et al. 2023, abstract",
            saved(BEST, QUANTIZED, "uploads"),
            (1, INFINITE),
            condition=INSTANCE,
        ),
    ],
    settings=[
        *(EDGES, CLIENTS, SAMPLES, CONCENTRATION, BATCH, STEP, PERIOD, OFTEN, BITS, AVERAGES),
        *(TARGET, SEEDS),
    ],
)
