"""Gauthier 2024, figure 6.3: how the parameters evolve (lines 1758-1763; P7 figure 3)."""

import re
from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.gauthier import chapter6 as ch6
from experiments.measures import estimate, samples, share, two
from fljax import plotting

CAP = Setting(
    "cap of DPG's step in (d)",
    ch6.longest_probe(),
    "not in the source: the longest step that SAC can make, delta_SAC nu_SAC / 2",
)
CHOSEN = Setting(
    "clients drawn",
    "most, median, fewest samples",
    "the source's 22, 3 and 30 have much, moderate and little data; who has depends on the seed",
)
ZERO = ch6.START.value / 2
QUARTER = 0.25

CAPPED = f"{ch6.DPG}, capped"
NAMES = {
    ch6.LITTLE: "fewest samples",
    ch6.MODERATE: "median",
    ch6.MUCH: "most samples",
}
PLACES = {ch6.BETWEEN: "middle cluster", ch6.OUTER: "outer clusters"}


def study(effort: Effort) -> Studies:
    methods = ch6.learned() | {CAPPED: ch6.gradient(cap=CAP.value)}
    del methods[ch6.BATCH_DPG]
    return {"a": ch6.study("study", methods, effort, (*ch6.PARAMETERS, *ch6.PLACES))}


def by_client(
    data: xr.Dataset, *methods: str, names: Mapping[str, str] = NAMES, below: float | None = None
) -> xr.Dataset:
    """The parameters as one variable ``tau`` over ``client``, named for a legend; or ``share``, in
    how many per cent of the seeds they are ``below`` a level.
    """
    parts, lost, labels = [], [], []
    for method in methods:
        policy = re.sub(r"NPFL-RL|[()]", "", method).strip()
        short = "" if len(methods) == 1 else f", {policy}"
        for metric, name in names.items():
            parts.append(samples(data, method, metric))
            lost.append(data["diverged"].sel(algorithm=method).values)
            labels.append(f"{name}{short}")
    dims, values = ("client", "seed", "round"), np.stack(parts)
    if below is None:
        drawn = {"tau": (dims, values, {"long_name": "τ"})}
    else:
        about = {"long_name": f"runs with τ < {below:g}", "units": "%"}
        drawn = {"share": (dims, 100.0 * (values < below), about)}
    return xr.Dataset(
        drawn | {"diverged": (("client", "seed"), np.stack(lost))},
        coords={"client": labels, "round": data["round"]},
    )


def plot(studies: Studies) -> Picture:
    data = studies["a"]
    picture, panels = plt.subplots(2, 3, figsize=(15, 8), sharex=True)
    one = by_client(data, ch6.SAC, ch6.DPG).isel(seed=[0])
    drawn = [
        ("one run, the first seed", one),
        (ch6.SAC, by_client(data, ch6.SAC)),
        (ch6.DPG, by_client(data, ch6.DPG)),
        (f"{ch6.DPG}, steps ≤ {CAP.value:g}", by_client(data, CAPPED)),
        ("mean over the clients of clusters", by_client(data, ch6.SAC, CAPPED, names=PLACES)),
        (ch6.SAC, by_client(data, ch6.SAC, below=ZERO)),
    ]
    for ax, letter, (title, part) in zip(panels.flat, "abcdef", drawn, strict=True):
        metric = "share" if "share" in part else "tau"
        plotting.learning_curves(part, metric, "client", ax)
        ax.set_title(f"({letter}) {title}")
    return picture


# --------------------------------------------------------------------------- claims

SHOWN = (ch6.SAC, ch6.DPG)


def cases(metric: str, statistic: Callable[[np.ndarray], np.ndarray], *methods: str) -> Measure:
    """A number of the mean trajectory ``[B, rounds]`` of a client, for each method."""
    return lambda studies: {
        method: estimate(statistic, samples(studies["a"], method, metric), unit="")
        for method in methods or SHOWN
    }


def at(rounds: int) -> int:
    """Where a round is in what is recorded."""
    return rounds // ch6.RECORD_EVERY - 1


def early_change(mean: np.ndarray) -> np.ndarray:
    return mean[:, at(ch6.EARLY.value)] - ch6.START.value


def late_level(mean: np.ndarray) -> np.ndarray:
    return mean[:, -ch6.LATE.value // ch6.RECORD_EVERY :].mean(1)


def decline(mean: np.ndarray) -> np.ndarray:
    """What part of its peak the mean trajectory loses until the end."""
    return 1 - late_level(mean) / mean.max(1)


def straightness(mean: np.ndarray) -> np.ndarray:
    """The squared correlation of the early part with the iteration."""
    part = mean[:, : at(ch6.EARLY.value) + 1]
    part = part - part.mean(1, keepdims=True)
    line = np.arange(part.shape[1]) - (part.shape[1] - 1) / 2
    return (part @ line) ** 2 / np.sum(part**2, 1) / (line @ line)


def falls(each: np.ndarray) -> np.ndarray:
    return decline(each) > QUARTER


def ends_at_zero(each: np.ndarray) -> np.ndarray:
    return late_level(each) < ZERO


def most(metric: str, what: Callable[[np.ndarray], np.ndarray], *methods: str) -> Measure:
    """In how many per cent of the runs a client's trajectory, ``[S, rounds]``, does so."""
    return lambda studies: {
        method: share(what(samples(studies["a"], method, metric))) for method in methods or SHOWN
    }


def differences(pairs: Mapping[str, tuple[str, str]], *methods: str) -> Measure:
    """How much higher one parameter ends than another."""

    def difference(studies: Studies, method: str, *metrics: str) -> Estimate:
        trajectories = (samples(studies["a"], method, metric) for metric in metrics)
        return estimate(lambda a, b: late_level(a) - late_level(b), *trajectories, unit="")

    return lambda studies: {
        f"{method}, {name}": difference(studies, method, *pair)
        for method in methods or SHOWN
        for name, pair in pairs.items()
    }


BY_NEED = {
    "fewest samples above median": (ch6.LITTLE, ch6.MODERATE),
    "median above most samples": (ch6.MODERATE, ch6.MUCH),
}
BY_PLACE = {"middle above outer clusters": (ch6.BETWEEN, ch6.OUTER)}


def compared(
    one: str, word: str, other: str, measure: Callable[[np.ndarray, np.ndarray], Estimate]
) -> Measure:
    """A measure of the trajectories of two methods, for each client."""
    return lambda studies: {
        f"{name}, {one} {word} {other}": measure(*two(studies["a"], one, other, metric))
        for metric, name in NAMES.items()
    }


def rougher(one: str, other: str) -> Measure:
    """By how many dB the trajectories of one method are rougher."""
    return compared(one, "over", other, ch6.rougher)


def mostly_rougher(one: str, other: str) -> Measure:
    """In how many per cent of the runs the first method's trajectory is the rougher."""
    rough = ch6.roughness
    return compared(one, "over", other, lambda a, b: share(rough(a) > rough(b)))


def moved(each: np.ndarray) -> np.ndarray:
    """How far each seed's parameter is from its start after the early iterations."""
    return np.abs(each[:, at(ch6.EARLY.value)] - ch6.START.value)


def quicker(one: str, other: str) -> Measure:
    """By how much more the parameters of one method have moved after the early iterations."""

    def measure(first: np.ndarray, second: np.ndarray) -> Estimate:
        return estimate(lambda a, b: a - b, moved(first), moved(second), unit="")

    return compared(one, "beyond", other, measure)


def mostly_quicker(one: str, other: str) -> Measure:
    """In how many per cent of the runs the first method's parameter has moved farther."""
    return compared(one, "beyond", other, lambda a, b: share(moved(a) > moved(b)))


SINGLE = "of single runs, as the source draws one, not of their mean"
MOST = "in more than half of the runs"
PLACE_NOTE = (
    "What a client keeps depends less on its data than on its cluster: the models are collinear, "
    "and where the mean of the others is near the own model, nothing drives τ down (panel e). "
    "The trajectories that grow carry the mean; under SAC more than half come to 0 (panel f)."
)

FIGURE = Figure(
    name="gauthier-6.3",
    title="The inter-cluster parameters that clients learn",
    source="Gauthier 2024, figure 6.3 (P7, figure 3)",
    caption="The clients with most, median and fewest samples of each seed. The source draws one "
    "client of each kind; here each claim on a trajectory is judged on the mean over seeds, and "
    "where that goes against it, on single runs, too.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "gradient-is-smooth",
            "the parameters evolve smoothly under DPG, with extensive randomness under SAC",
            "line 1758",
            rougher(ch6.SAC, ch6.DPG),
            (0, INFINITE),
            "mean square of the second differences: SAC's above DPG's",
            note="In 2 to 5 of the 100 runs a parameter of DPG, once below 0.04, where the "
            "derivative can be steep, jumps to 1; these make the mean.",
        ),
        Claim(
            "gradient-is-smooth-in-most-runs",
            "the parameters evolve smoothly under DPG, with extensive randomness under SAC",
            "line 1758",
            mostly_rougher(ch6.SAC, ch6.DPG),
            (50, INFINITE),
            f"SAC's second differences are above DPG's {MOST}",
            condition=SINGLE,
            note="DPG jumps too often.",
        ),
        Claim(
            "gradient-is-smooth-if-capped",
            "the parameters evolve smoothly under DPG, with extensive randomness under SAC",
            "line 1758",
            rougher(ch6.SAC, CAPPED),
            (0, INFINITE),
            "mean square of the second differences: SAC's above DPG's",
            condition="steps are capped at those of SAC, our addition",
            note="Even capped steps change their sign.",
        ),
        Claim(
            "gradient-is-slow",
            "the parameters adapt quickly under SAC and fail to under DPG",
            "line 1758",
            quicker(ch6.SAC, ch6.DPG),
            (0, INFINITE),
            f"distance from the start after {ch6.EARLY.value} iterations: SAC's above DPG's",
            note="On data of this scale the early derivatives are large: DPG moves more than SAC.",
        ),
        Claim(
            "gradient-is-slow-in-most-runs",
            "the parameters adapt quickly under SAC and fail to under DPG",
            "line 1758",
            mostly_quicker(ch6.SAC, ch6.DPG),
            (50, INFINITE),
            f"SAC has moved farther after {ch6.EARLY.value} iterations {MOST}",
            condition=SINGLE,
            note="On data of this scale the early derivatives are large: DPG keeps up with SAC.",
        ),
        Claim(
            "batch-calms-probe",
            "batch learning helps against the randomness of SAC",
            "line 1758",
            rougher(ch6.SAC, ch6.BATCH_SAC),
            (0, INFINITE),
            "mean square of the second differences",
        ),
        Claim(
            "little-data-rises",
            "the parameter of the client with little data increases at first",
            "line 1763",
            cases(ch6.LITTLE, early_change),
            (0, INFINITE),
            f"the mean over seeds, after {ch6.EARLY.value} iterations",
        ),
        Claim(
            "little-data-rises-linearly",
            "it does so linearly",
            "line 1763",
            cases(ch6.LITTLE, straightness),
            (0.95, 1),
            f"squared correlation of the mean with n, over {ch6.EARLY.value} iterations",
            note="Under SAC it does; the mean of DPG has the jumps of single runs.",
        ),
        Claim(
            "little-data-falls-later",
            "it decreases after near-convergence",
            "line 1763",
            cases(ch6.LITTLE, decline),
            (QUARTER, INFINITE),
            "the mean over seeds ends at least a quarter below its peak",
            note=PLACE_NOTE,
        ),
        Claim(
            "little-data-falls-later-in-most-runs",
            "it decreases after near-convergence",
            "line 1763",
            most(ch6.LITTLE, falls),
            (50, INFINITE),
            f"it ends at least a quarter below its peak {MOST}",
            condition=SINGLE,
            note="Under SAC it does; DPG's derivative has vanished by then.",
        ),
        Claim(
            "much-data-falls",
            "the parameter of the client with much data decreases almost immediately",
            "line 1763",
            cases(ch6.MUCH, early_change),
            (-INFINITE, 0),
            f"the mean over seeds, after {ch6.EARLY.value} iterations",
            note="It rises like the others: at most 35 samples for 60 parameters are not much.",
        ),
        Claim(
            "much-data-ends-at-zero",
            "it stabilises around 0",
            "line 1763",
            cases(ch6.MUCH, late_level),
            (-INFINITE, ZERO),
            f"“around 0”: the mean over seeds is below half of the initial {ch6.START.value:g}",
            note=PLACE_NOTE,
        ),
        Claim(
            "much-data-ends-at-zero-in-most-runs",
            "it stabilises around 0",
            "line 1763",
            most(ch6.MUCH, ends_at_zero),
            (50, INFINITE),
            f"“around 0”: below half of the initial {ch6.START.value:g}, {MOST}",
            condition=SINGLE,
            note="Under SAC it does; DPG's derivative vanishes before it is there.",
        ),
        Claim(
            "moderate-data-rises",
            "the parameter of the client with a moderate amount of data increases at first",
            "line 1763",
            cases(ch6.MODERATE, early_change),
            (0, INFINITE),
            f"the mean over seeds, after {ch6.EARLY.value} iterations",
        ),
        Claim(
            "moderate-data-ends-at-zero",
            "it decreases afterwards and stabilises around 0",
            "line 1763",
            cases(ch6.MODERATE, late_level),
            (-INFINITE, ZERO),
            f"“around 0”: the mean over seeds is below half of the initial {ch6.START.value:g}",
            note=PLACE_NOTE,
        ),
        Claim(
            "moderate-data-ends-at-zero-in-most-runs",
            "it decreases afterwards and stabilises around 0",
            "line 1763",
            most(ch6.MODERATE, ends_at_zero),
            (50, INFINITE),
            f"“around 0”: below half of the initial {ch6.START.value:g}, {MOST}",
            condition=SINGLE,
            note="Half of them do under SAC; DPG's derivative vanishes before it is there.",
        ),
        Claim(
            "by-data",
            "parameters evolve according to the data of clients: those with less data keep more",
            "lines 1758, 1763",
            differences(BY_NEED),
            (0, INFINITE),
            "difference of the means over seeds in the steady state",
            note=PLACE_NOTE,
        ),
        Claim(
            "by-cluster",
            "parameters evolve according to the needs of clients: a cluster whose model lies "
            "between the others' keeps more",
            "lines 1758, 1763",
            differences(BY_PLACE, ch6.SAC, CAPPED),
            (0, INFINITE),
            "difference of the means over seeds in the steady state",
            condition="the cluster's place, in the place of the amount of data, is our reading",
            note="Neither the data nor the cluster decides.",
        ),
    ],
    settings=(*ch6.COMMON, *ch6.LEARNED, CAP, CHOSEN),
)
