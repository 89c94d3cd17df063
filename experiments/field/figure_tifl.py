"""Chai et al. 2020 (TiFL): clients of one speed in a round, against a random selection of all.

Fifty clients in five groups, a group as fast as its processors are many; each round has five
clients, of one tier that a policy draws, or of all.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER, LITTLE, about
from experiments.field.step_search import best_step, step_beyond
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import of_few
from experiments.pixels import network_of_halved
from experiments.tuning import SEEDS as TUNING_SEEDS
from experiments.tuning import seeds as tuning_seeds
from fljax import plotting, statistics
from fljax._core.module import float_dtype
from fljax.algorithms import FedAvg
from fljax.clock import Clock, Devices, Synchronous, Tiers
from fljax.data import partition
from fljax.data.images import Images
from fljax.problems import Model

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 50, "the source's", given=True)
CHOSEN = Setting("clients of a round", 5, "the source's", given=True)
CPUS = Setting("processors of a client, by group", (4, 2, 1, 0.5, 0.1), "the source's", given=True)
TIERS = Setting("tiers", 5, "the source's; they are the groups", given=True)
SPEED = Setting(
    "seconds of a local pass with one processor",
    1.0,
    "the unit of time. A client's are inversely proportional to its processors, always the same, "
    "and messages take no time; the source measures the times of containers",
)
POLICIES = Setting(
    "probabilities of the tiers, the fastest first",
    {
        "slow": (0.0, 0.0, 0.0, 0.0, 1.0),
        "uniform": (0.2, 0.2, 0.2, 0.2, 0.2),
        "random": (0.7, 0.1, 0.1, 0.05, 0.05),
        "fast": (1.0, 0.0, 0.0, 0.0, 0.0),
    },
    "the source's",
    given=True,
)
DATA = Setting(
    "data", "MNIST", "at hand; the source has these processors of clients with images of CIFAR-10"
)
SAMPLES = Setting("images of a client", 300, "a fourth of MNIST, for the time that they take")
SHARDS = Setting(
    "digits of a client where clients differ", 2, "two shards of one digit each, of random clients"
)
NETWORK = Setting("hidden width", (64,), "instead of convolutions, to save time")
HALVED = Setting("pixels", "14 x 14", "means of 2 x 2: a fourth of the work")
PASSES = Setting("local passes", 1, "the source's", given=True)
BATCH = Setting("images of a step", 10, "the source's", given=True)
ROUNDS = Setting("rounds", 500, "the source's", given=True)
EVERY = Setting("recorded", 10, "every so many rounds")
END = Setting("records that are read", 5, "the mean over the last fifty rounds")
STEPS = Setting(
    "step sizes that are tried first",
    (0.05, 0.1, 0.2),
    "gradient descent instead of RMSprop with a rate of 0.01; that with the least final error of "
    "vanilla on the tuning seeds, for all policies",
)
MOST_STEPS = Setting(
    "step sizes at most",
    6,
    "while the best one is the smallest or largest so far, its half or double is tried, too",
)
TARGET = Setting(
    "accuracy that is asked",
    (0.95, 0.9),
    "of IID clients and of clients with two digits, by the mean of three records. IID clients are "
    "at 90 % by the first record, so that this time was asked of 95 % after a first run",
)
TEST = Setting("test images", 2000, "every fifth of MNIST's")
SEEDS = Setting(
    "seeds at most",
    5,
    "start, tiers, participants and batches anew for each; the partition is one. Intervals are "
    "Student's t of the jackknife over paired seeds",
)
TUNED = Setting("seeds of tuning at most", 2, "the first of those below")
NOT_RUN = Setting(
    "of the source, not run",
    "the adaptive policy, unequal amounts of data, CIFAR-10, Fashion-MNIST and FEMNIST",
    "the adaptive policy is fljax.clock.AdaptiveTiers, of which its tests are the evidence",
)

ERROR = "error_rate"
VANILLA = "vanilla"
NAMES = (VANILLA, *POLICIES.value)
SLOW, UNIFORM, RANDOM, FAST = POLICIES.value
IID = "IID"
UNLIKE = "two digits each"
PARTS = (IID, UNLIKE)
#: Records whose mean must be at the target.
WINDOW = 3


class Size(NamedTuple):
    """The learning problem, and how long runs are."""

    images: Callable[[], Images]
    clients: int
    chosen: int
    samples: int
    hidden: tuple[int, ...]
    rounds: int
    every: int
    test: int  # stride through the test images


FULL = Size(
    fl.data.mnist,
    *(CLIENTS.value, CHOSEN.value, SAMPLES.value, NETWORK.value, ROUNDS.value, EVERY.value),
    5,
)
#: For tests: the package's own sample.
TINY = Size(fl.data.mnist_sample, 10, 2, 20, (4,), 20, 2, 5)

# --------------------------------------------------------------------------- scenarios


@functools.cache
def dealt(size: Size, part: str) -> Model:
    dataset = size.images()
    # Some of the images, the same ones for both parts.
    used = np.random.default_rng(0).permutation(len(dataset.train_labels))
    used = used[: size.clients * size.samples]
    if part == IID:
        rows = partition.iid(len(used), size.clients, 0)
    else:
        rows = partition.by_label(dataset.train_labels[used], size.clients, SHARDS.value, 0)
    rows = used[np.stack(rows)]
    return network_of_halved(dataset, rows, fl.models.mlp(10, size.hidden), size.test)


def devices(size: Size) -> Devices:
    """Groups of the same number of clients each, independently of their data."""
    group = np.arange(size.clients) * len(CPUS.value) // size.clients
    pass_seconds = SPEED.value / np.asarray(CPUS.value)[group]
    return Devices(seconds_per_sample=pass_seconds / (PASSES.value * size.samples))


def clock(policy: str, size: Size) -> Clock:
    if policy == VANILLA:
        return Synchronous(devices(size))
    return Tiers(
        devices(size),
        tiers=TIERS.value,
        count=size.chosen,
        probabilities=POLICIES.value[policy],
    )


@functools.cache
def scenario(policy: str, part: str, size: Size) -> Callable[..., fl.Simulation]:
    def build(key: Array, step: Array) -> fl.Simulation:
        return fl.Simulation(
            dealt(size, part).initialized(key),
            FedAvg(step, clients_per_round=size.chosen, epochs=PASSES.value, batch=BATCH.value),
            clock=clock(policy, size),
            metrics=[ERROR],
        )

    build.__qualname__ = f"tifl({policy}, {part}, {size.clients})"
    return build


def run(
    policy: str, part: str, steps: list[float], seeds: Any, size: Size, effort: Effort
) -> xr.Dataset:
    """``[step, seed, round]``."""
    tried = "-".join(f"{step:g}" for step in steps)
    return effort.sweep(
        f"{policy}-{part.replace(' ', '-')}-{tried}",
        scenario(policy, part, size),
        rounds=size.rounds,
        record_every=size.every,
        seeds=seeds,
        block=1,
        grid={"step": list(np.asarray(steps, float_dtype()))},
    )[[ERROR, "seconds", "diverged"]]


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL
    seeds = min(effort.seeds, SEEDS.value)
    studies: dict[str, xr.Dataset] = {}
    for part, accuracy in zip(PARTS, TARGET.value, strict=True):
        target = 0.7 if effort.quick else 1 - accuracy
        errors = tuned(part, size, effort)
        studies[f"tuning-{part}"] = errors.to_dataset(name="error")
        step = best_step(errors)
        runs = [
            run(policy, part, [step], seeds, size, effort).isel(step=0, drop=True)
            for policy in NAMES
        ]
        result = xr.concat(runs, "policy", combine_attrs="override")
        studies[part] = result.assign_coords(policy=[*NAMES]).assign_attrs(target=target)
    return studies


def tuned(part: str, size: Size, effort: Effort) -> xr.DataArray:
    """The final error of each step, ``[step, seed]``, infinite of a diverged run."""
    seeds = tuning_seeds(min(effort.tuning_seeds, TUNED.value))

    def ends(steps: list[float]) -> xr.DataArray:
        results = run(VANILLA, part, steps, seeds, size, effort).assign_coords(step=steps)
        error = results[ERROR].isel(round=slice(-END.value, None)).mean("round")
        return error.where(np.isfinite(error), math.inf).astype(float)

    errors = ends(effort.thin(STEPS.value, 2))
    while not effort.quick and errors.sizes["step"] < MOST_STEPS.value:
        step = step_beyond(errors)
        if step is None:
            break
        errors = xr.concat([errors, ends([step])], "step").sortby("step")
    return errors


def tuning_table(studies: Studies) -> list[dict[str, Any]]:
    """Every step with its error, for the record."""
    return [
        {
            "method": f"all policies, {part}",
            "parameter": "step size",
            "value": float(error["step"]),
            "rule": "final",
            "score": float(error),
            "final_error": float(error),
            "chosen": float(error["step"]) == best_step(studies[f"tuning-{part}"]["error"]),
        }
        for part in PARTS
        for error in studies[f"tuning-{part}"]["error"].mean("seed")
    ]


# --------------------------------------------------------------------------- reading


def duration(studies: Studies, policy: str, part: str = IID) -> np.ndarray:
    """``[S]``: the seconds of all rounds."""
    data = studies[part]["seconds"].sel(policy=policy)
    return data.isel(round=-1).transpose("seed").values.astype(float)


def end(studies: Studies, policy: str, part: str = IID) -> np.ndarray:
    """``[S]``: the error at the end."""
    errors = studies[part][ERROR].sel(policy=policy)
    return errors.isel(round=slice(-END.value, None)).mean("round").values.astype(float)


def until(studies: Studies, policy: str, part: str = IID) -> np.ndarray:
    """``[S]``: the seconds until the target; infinite where it is not reached."""
    data = studies[part].sel(policy=[policy])
    needed = statistics.until(data, ERROR, data.attrs["target"], "seconds", window=WINDOW)
    return needed.isel(policy=0).transpose("seed").values.astype(float)


def longer(*pairs: tuple[str, str]) -> Measure:
    """How many times as long all rounds of the first of each pair last."""
    return lambda studies: {
        f"{slow} over {fast}": of_few(
            lambda a, b: a / b, duration(studies, slow), duration(studies, fast), unit="times"
        )
        for slow, fast in pairs
    }


def worse(*pairs: tuple[str, str], part: str = IID) -> Measure:
    """By how many percentage points the first of each pair errs more at the end."""
    return lambda studies: {
        f"{over} above {under}": of_few(
            lambda a, b: 100 * (a - b),
            end(studies, over, part),
            end(studies, under, part),
            unit="points",
        )
        for over, under in pairs
    }


def sooner(policy: str) -> Measure:
    """How many times as long the random selection of all needs to the target; NaN, not run, if a
    run of either does not reach it.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        cases = {}
        for part in PARTS:
            ours, theirs = (until(studies, name, part) for name in (policy, VANILLA))
            unknown = Estimate(math.nan, math.nan, math.nan, "times")
            reached = np.isfinite(ours).all() and np.isfinite(theirs).all()
            ratio = of_few(lambda a, b: a / b, theirs, ours, unit="times") if reached else unknown
            cases[f"{VANILLA} over {policy}, {part}"] = ratio
        return cases

    return measure


def numbers(studies: Studies) -> str:
    """A note: the seconds and the errors of all policies."""
    rows = []
    for policy in NAMES:
        errors = " and ".join(f"{100 * end(studies, policy, part).mean():.1f}" for part in PARTS)
        rows.append(f"{policy} {duration(studies, policy).mean():.0f} s, {errors} %")
    return f"Seconds of all rounds, errors of IID and of other clients: {'; '.join(rows)}."


def at_most(studies: Studies) -> str:
    """Why tiers save less than in the source."""
    clients, chosen, groups = CLIENTS.value, CHOSEN.value, len(CPUS.value)
    slowest = clients // groups
    chance = 1 - math.comb(clients - slowest, chosen) / math.comb(clients, chosen)
    return (
        f"A round of all clients has one of the slowest group with probability {chance:.2f}, and a "
        f"round of a uniformly drawn tier with {1 / groups:g}. As a round lasts as long as its "
        f"slowest client, the ratio is about {groups * chance:.1f} if that group is slow by far, "
        f"and at most {groups} with any times of {groups} equal groups. How the source comes to "
        f"six is not known. {numbers(studies)}"
    )


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = ("seconds of 500 rounds", "IID clients", "clients of two digits", "error at the end")
    drawing, axes = picture.panels(titles, columns=4, height=2.2)
    at = np.arange(len(NAMES))
    looks = [{k: plotting.LOOKS[i][k] for k in ("color", "marker")} for i in range(len(NAMES))]
    for index, policy in enumerate(NAMES):
        value = of_few(float, duration(studies, policy), unit="")
        axes[0].bar(index, value.value, color=looks[index]["color"])
        axes[0].errorbar(index, value.value, value.high - value.value, color="black", capsize=2)
    axes[0].set(yscale="log", xticks=at, ylabel="seconds")
    axes[0].set_yticks([100, 300, 1000, 3000], labels=["100", "300", "1000", "3000"])
    axes[0].minorticks_off()
    axes[0].set_xticklabels(NAMES, rotation=45)
    for ax, part in zip(axes[1:], PARTS, strict=False):
        data = studies[part].transpose("policy", "seed", "round", ...)
        for index, policy in enumerate(NAMES):
            curve = data.sel(policy=policy)
            line = curve["seconds"].mean("seed"), 100 * curve[ERROR].mean("seed")
            ax.plot(*line, label=policy, **picture.look(index))
        ax.axhline(100 * data.attrs["target"], **picture.THIN)
        ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="test error [%]")
        ax.set_yticks([5, 10, 20, 40, 80], labels=["5", "10", "20", "40", "80"])
        ax.minorticks_off()
    for index, policy in enumerate(NAMES):
        values = [of_few(float, 100 * end(studies, policy, part), unit="") for part in PARTS]
        bars = np.abs([[e.value - e.low, e.high - e.value] for e in values]).T
        place = np.arange(len(PARTS)) + 0.12 * (index - 2)
        axes[3].errorbar(
            place, [e.value for e in values], bars, linestyle="none", capsize=2, **looks[index]
        )
    short = [part.replace(" each", "").replace(" ", "\n") for part in PARTS]
    axes[3].set(
        xticks=range(len(PARTS)), xticklabels=short, ylabel="test error [%]", ylim=(0, None)
    )
    axes[3].set_xlim(-0.5, len(PARTS) - 0.5)
    picture.share_legend(axes)
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims

SOURCE = "Chai et al. 2020, section 5.2"
OURS = "ours: MNIST, times inversely proportional to processors"
MORE = (1, INFINITE)

FIGURE = Figure(
    name="field-tifl",
    title="TiFL: rounds of clients of one speed",
    source="Chai et al. 2020, section 5.2, on MNIST",
    caption="(a) How long 500 rounds of five clients last, by the policy that draws the tier of a "
    "round; “vanilla” draws clients from all. Test errors of a small network on MNIST by the "
    "seconds (b) of IID clients, (c) of clients with two digits each, and (d) at the "
    "end. Clients with 4, 2, 1, 0.5 and 0.1 processors, ten of each; a local pass takes one second "
    f"with one. Means of {SEEDS.value} seeds with 95 % intervals.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "tiers-save-time",
            "the more often fast tiers are drawn, the shorter is the training; tiers drawn "
            "uniformly already save time over a random selection of all",
            SOURCE,
            longer(*itertools.pairwise((SLOW, VANILLA, UNIFORM, RANDOM, FAST))),
            MORE,
            "seconds of all rounds, from policy to policy",
            OURS,
            note=numbers,
        ),
        Claim(
            "uniform-is-six-times-faster",
            "uniformly drawn tiers train about six times faster than a random selection of all",
            SOURCE,
            longer((VANILLA, UNIFORM)),
            *about(6).when("seconds of all rounds"),
            OURS,
            note=at_most,
        ),
        Claim(
            "uniform-is-as-accurate",
            "uniformly drawn tiers are about as accurate",
            SOURCE,
            worse((UNIFORM, VANILLA)),
            *LITTLE.points.when("at the end, IID clients"),
            OURS,
            note=numbers,
        ),
        Claim(
            "fast-is-less-accurate",
            "always the fastest tier is less accurate, as it has a fifth of the data",
            SOURCE,
            worse((FAST, VANILLA)),
            *BETTER.points.when("at the end, IID clients"),
            OURS,
            note=numbers,
        ),
        Claim(
            "one-tier-is-less-accurate-where-clients-differ",
            "where clients differ, always the fastest or always the slowest tier is less accurate",
            SOURCE,
            worse(*((policy, VANILLA) for policy in (FAST, SLOW)), part=UNLIKE),
            *BETTER.points.when("at the end, clients of two digits"),
            OURS,
            note=numbers,
        ),
        Claim(
            "uniform-is-as-accurate-where-clients-differ",
            "where clients differ, uniformly drawn tiers are about as accurate",
            SOURCE,
            worse((UNIFORM, VANILLA), part=UNLIKE),
            *LITTLE.points.when("at the end, clients of two digits"),
            OURS,
            note=numbers,
        ),
        Claim(
            "tiers-reach-an-accuracy-sooner",
            "uniformly drawn tiers reach an accuracy sooner: 95 % with IID clients, 90 % with "
            "clients of two digits",
            "this library",
            sooner(UNIFORM),
            MORE,
            "seconds of vanilla over seconds of uniform, if all runs are at the target",
            ours=True,
            note=numbers,
        ),
    ],
    settings=(
        *(CLIENTS, CHOSEN, CPUS, TIERS, SPEED, POLICIES, DATA, SAMPLES, SHARDS, NETWORK, HALVED),
        *(PASSES, BATCH, ROUNDS, EVERY, END, STEPS, MOST_STEPS, TARGET, TEST, SEEDS, TUNED),
        *(TUNING_SEEDS, NOT_RUN),
    ),
    tuning=tuning_table,
)
