"""McMahan et al. 2017: how many rounds FedAvg needs to 99 % on MNIST, CNN (Table 2)."""

import math

import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER, SIGNIFICANTLY, about
from experiments.field.averaging import (
    CENSORED,
    CLIENTS,
    COUNT,
    DIVERGED,
    ERROR,
    MOST,
    SEEDS,
    SOURCE,
    Cell,
    Rounds,
    Size,
    Table,
    longest,
)
from experiments.figure import Claim, Figure, Setting, Studies
from experiments.measures import of_few
from fljax import plotting

# --------------------------------------------------------------------------- settings

CHANNELS = (32, 64)
HIDDEN = (512,)
KERNEL = 5
NETWORK = Setting(
    "CNN",
    "5 x 5 convolutions with 32 and 64 channels, each with 2 x 2 max pooling, then 512 units",
    "section 3; 1,663,370 parameters",
    given=True,
)
TARGET = Setting("accuracy that is asked", 0.99, "of all test images, table 2", given=True)
SHARE = Setting("share C of the clients", 0.1, "table 2", given=True)
WORK = Setting(
    "local passes E and batches B",
    "those of seven of the table's nine lines with images in random order, and of one with shards",
    "a round of one pass is 0.4 TFLOP a run, which two cores would compute for about a day. Not "
    "run are twenty passes with larger batches than 10, and of the lines with clients of two "
    "digits all but that with one pass and batches of 10",
)
WEIGHTS = Setting("initial weights", "He's law", "not given: variance 2/n of n inputs")

CHOSEN = round(SHARE.value * CLIENTS.value)
RANDOM = "random"
SHARDS = "shards"
#: For lines of the table, E and B, the published rounds and the first steps.
LINES = {
    (RANDOM, 1, None): (626, (0.2,)),
    (RANDOM, 5, None): (179, (0.2,)),
    (RANDOM, 1, 50): (65, (0.2, 0.4)),
    (RANDOM, 1, 10): (34, (0.05, 0.1, 0.2)),
    (RANDOM, 5, 50): (29, (0.1, 0.2, 0.4)),
    (RANDOM, 5, 10): (20, (0.05, 0.1)),
    (RANDOM, 20, 10): (18, (0.05,)),
    (SHARDS, 1, 10): (350, (0.05,)),
}


def named(order: str, epochs: int, batch: int | None) -> str:
    return f"{order}, E = {epochs}, B = {'∞' if batch is None else batch}"


CELLS = {
    named(order, epochs, batch): Cell(
        *(CHOSEN, epochs, batch, order == SHARDS, published, steps), every=max(1, published // 100)
    )
    for (order, epochs, batch), (published, steps) in LINES.items()
}
SGD, *AVERAGED, SHARDED = CELLS
TABLE = Table(
    "fedavg-cnn",
    CELLS,
    Size(fl.data.mnist, CLIENTS.value, fl.models.cnn(10, CHANNELS, HIDDEN, KERNEL), TARGET.value),
    Size(fl.data.mnist_sample, 10, fl.models.cnn(10, (4,), (8,)), 0.2, 16),
    longest(2.0),
)


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    drawing, (curves, counts) = picture.panels(("test accuracy", "rounds to 99 %"), height=2.4)
    for index, name in enumerate((SGD, *AVERAGED)):
        data = studies[name].sel(tried=str(TABLE.best(studies, name)))
        data = data.sel(round=slice(None, _end(data, TABLE.needed(studies, name))))
        label = name.removeprefix(f"{RANDOM}, ") + " (FedSGD)" * (name == SGD)
        accuracy = 100 * (1 - data[ERROR].mean("seed"))
        curves.plot(data["round"], accuracy, label=label, **picture.look(index))
    required = 100 * (1 - studies[SGD].attrs["target"])
    curves.axhline(required, **picture.THIN)
    curves.set(xlabel="round", ylabel="accuracy [%]", xscale="log")
    if required > 90:
        curves.set_ylim(90, 99.5)
    needed = [TABLE.needed(studies, name) for name in CELLS]
    at = np.arange(len(needed))
    color = plotting.LOOKS[0]["color"]
    late = np.asarray([not rounds.all_reached for rounds in needed])
    rounds = [of_few(float, rounds.at_least, unit="") for rounds in needed]
    middle, low, high = np.asarray([(e.value, e.low, e.high) for e in rounds]).T
    bars = np.stack([middle - low, high - middle])
    counts.errorbar(
        *(at[~late], middle[~late], bars[:, ~late]),
        ls="",
        marker=plotting.LOOKS[0]["marker"],
        color=color,
        capsize=2,
        label="here",
    )
    if late.any():
        counts.plot(at[late], middle[late], "^", color=color, label="here, not all seeds there")
    published = [cell.published for cell in CELLS.values()]
    counts.plot(published, "x", color=plotting.LOOKS[1]["color"], label="published")
    labels = [name.removeprefix(f"{RANDOM}, ").replace(", ", "\n") for name in CELLS]
    counts.set_xticks(at, labels, fontsize="x-small")
    counts.set(yscale="log", ylabel="rounds", xlim=(-0.5, len(rounds) - 0.5))
    return picture.finish(drawing)


def _end(data: xr.Dataset, rounds: Rounds) -> float:
    """The last round in which all seeds were running, and not all of them at the target before."""
    ends = [float(data["round"][-1]), math.ceil(rounds.at_least.max())]
    if "stopped" in data:
        stopped = data["stopped"].values
        ends += stopped[stopped > 0].tolist()  # 0 or NaN: not stopped
    return min(ends)


# --------------------------------------------------------------------------- the claims


def why(studies: Studies) -> str:
    falls = np.diff(studies[SGD][ERROR].transpose(..., "round").values)
    diverged = {
        name: int((studies[name]["diverged"].sel(tried=str(TABLE.best(studies, name))) > 0).sum())
        for name in CELLS
    }
    after = ", ".join(f"{count} with {name}" for name, count in diverged.items() if count)
    numbers = [studies[name].sizes["tried"] for name in CELLS]
    runs = studies[SGD].sizes["seed"] * studies[SGD].sizes["tried"]
    return (
        f"{TABLE.counts(*CELLS)(studies)} The source chose the best of eleven or more steps for "
        f"each line, here {min(numbers)} to {max(numbers)} were run. FedSGD's accuracy falls by "
        f"more than five points {int((falls > 0.05).sum())} times in {runs} runs, and returns. "
        f"Runs that diverge, sooner or later, with the best step: {after or 'none'}."
    )


def of(epochs: int, batch: int | None) -> str:
    """A line with images in random order."""
    return named(RANDOM, epochs, batch)


FEW = "the best of the few steps that were tried"
FIGURE = Figure(
    name="field-fedavg-cnn",
    title="FedAvg: rounds to 99 % on MNIST, CNN",
    source=f"{SOURCE}, table 2",
    caption="(a) Test accuracy by round with images in random order, the mean of all seeds while "
    "all of them run, until all were at 99 %. (b) Rounds until then, with 95 % "
    f"intervals of {SEEDS.value} seeds; crosses are published. Triangles are lower bounds, of "
    "cells in which some run was given up. Shards are of two digits a client.",
    study=TABLE.study,
    plot=plot,
    claims=[
        Claim(
            "rounds",
            "it takes "
            + ", ".join(f"{cell.published} rounds with {name}" for name, cell in CELLS.items()),
            f"{SOURCE}, table 2",
            TABLE.of_published(*CELLS),
            *about(1).when("of the published rounds"),
            condition=FEW,
            changed=CENSORED,
            note=why,
        ),
        Claim(
            "local-work-helps",
            "more local steps, by small batches or more passes, save dramatically many rounds over "
            "FedSGD",
            f"{SOURCE}, section 3 on table 2",
            TABLE.saved(*((SGD, name) for name in AVERAGED)),
            *SIGNIFICANTLY.factor.when("FedSGD over FedAvg"),
            condition=FEW,
            changed=CENSORED,
            note=TABLE.counts(SGD, *AVERAGED),
        ),
        Claim(
            "smaller-batches-help",
            "of one pass and of five, batches of 10 need fewer rounds than batches of 50",
            f"{SOURCE}, table 2",
            TABLE.saved(*((of(e, 50), of(e, 10)) for e in (1, 5))),
            *BETTER.factor.when("B = 50 over B = 10"),
            condition=FEW,
            changed=CENSORED,
            note=TABLE.counts(*AVERAGED),
        ),
        Claim(
            "batches-help",
            "of one pass and of five, batches of 50 need far fewer rounds than whole ones",
            f"{SOURCE}, table 2",
            TABLE.saved(*((of(e, None), of(e, 50)) for e in (1, 5))),
            *SIGNIFICANTLY.factor.when("B = ∞ over B = 50"),
            condition=FEW,
            changed=CENSORED,
            note=TABLE.counts(*(of(e, b) for e in (1, 5) for b in (None, 50))),
        ),
        Claim(
            "more-passes-help",
            "with batches of 10, five passes need fewer rounds than one",
            f"{SOURCE}, table 2",
            TABLE.saved((of(1, 10), of(5, 10))),
            *BETTER.factor.when("E = 1 over E = 5"),
            condition=FEW,
            changed=CENSORED,
            note=TABLE.counts(of(1, 10), of(5, 10)),
        ),
        Claim(
            "more-passes-help-larger-batches",
            "so do they with batches of 50, and with whole ones",
            f"{SOURCE}, table 2",
            TABLE.saved(*((of(1, b), of(5, b)) for b in (50, None))),
            *BETTER.factor.when("E = 1 over E = 5"),
            condition=FEW,
            changed=CENSORED,
            note=TABLE.counts(*(of(e, b) for b in (50, None) for e in (1, 5))),
        ),
        Claim(
            "twenty-passes",
            "twenty passes hardly need fewer rounds than five: 18, not 20",
            f"{SOURCE}, table 2",
            TABLE.saved((of(5, 10), of(20, 10))),
            *about(1).when("E = 5 over E = 20"),
            condition=FEW,
            changed=CENSORED,
            note=TABLE.counts(of(5, 10), of(20, 10)),
        ),
        Claim(
            "two-digits-cost",
            "clients of two digits need many times the rounds, ten with one pass and batches of 10",
            f"{SOURCE}, table 2",
            TABLE.saved((SHARDED, of(1, 10))),
            *SIGNIFICANTLY.factor.when("shards over random order"),
            condition=FEW,
            changed=CENSORED,
            note=TABLE.counts(SHARDED, of(1, 10)),
        ),
    ],
    settings=(
        *(CLIENTS, NETWORK, TARGET, SHARE, WORK, COUNT),
        *(MOST, WEIGHTS, TABLE.longest, SEEDS),
    ),
    tuning=TABLE.table,
    diverged=DIVERGED,
)
