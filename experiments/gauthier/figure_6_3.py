"""Gauthier 2024, figure 6.3: how the parameters evolve (section 6.3)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import MOST, Meaning
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.gauthier import chapter6 as ch6
from experiments.measures import Window, each_mean, estimate, of_median, samples, share, two
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
#: A larger change of a parameter between two records counts as a jump.
JUMP = 0.5

CAPPED = f"{ch6.DPG}, capped"
NAMES = {
    ch6.LITTLE: "fewest samples",
    ch6.MODERATE: "median samples",
    ch6.MUCH: "most samples",
}
PLACES = {ch6.BETWEEN: "middle cluster", ch6.OUTER: "outer clusters"}


#: How the curves of clients look: too many for markers.
LOOKS: list[dict[str, Any]] = [look | {"marker": ""} for look in plotting.LOOKS]

#: The stored trajectories, named by their clients.
KEPT = (*NAMES, *PLACES, ch6.BY_DATA.name)


def study(effort: Effort) -> Studies:
    methods = ch6.learned() | {CAPPED: ch6.gradient(cap=CAP.value)}
    del methods[ch6.BATCH_DPG]
    return ch6.parted(ch6.study("study", methods, effort), *KEPT)


def plot(studies: Studies) -> Picture:
    drawn = studies["a"]
    variant = studies["joined"]
    few = drawn.sizes["seed"]
    drawing, axes = picture.panels(
        [
            *("one run: SAC, DPG (thin)", ch6.SAC, ch6.DPG),
            *("all in touch, |w₀|² ≈ 20", ch6.SAC, ch6.DPG),
            *(f"DPG, steps ≤ {CAP.value:g}", "mean over clusters", f"SAC: runs with τ < {ZERO:g}"),
        ],
        sharex=True,
    )
    (a, b, c, d, e, f, g, h, i) = axes
    for ax, data in ((a, drawn), (d, variant)):
        one_run(ax, data)
    for ax, data, method in ((b, drawn, ch6.SAC), (c, drawn, ch6.DPG), (e, variant, ch6.SAC)):
        trajectories(ax, data, method)
    trajectories(f, variant, ch6.DPG)
    trajectories(g, drawn, CAPPED)
    places(h, drawn)
    near_zero(i, drawn)
    for ax in axes:
        ax.set(xlabel="iteration", ylabel="τ")
    i.set_ylabel("runs [%]")
    heading = f"{few} seeds: median, quartiles (thin), mean (dotted); (d) to (f): nobody is alone"
    return picture.finish(drawing, heading)


def one_run(ax: Axes, data: xr.Dataset) -> None:
    """The first seed, as the source draws one run."""
    for method, width in ((ch6.SAC, 1.2), (ch6.DPG, 0.6)):
        for look, (metric, name) in zip(LOOKS, NAMES.items(), strict=False):
            drawn = samples(data, method, metric)[0]
            label = name if method == ch6.SAC else f"_{name}"
            wide: dict[str, Any] = look | {"linewidth": width}
            ax.plot(data["round"].values, drawn, label=label, **wide)


def trajectories(ax: Axes, data: xr.Dataset, method: str) -> None:
    """The median over runs, their quartiles and their mean."""
    at = data["round"].values
    for look, (metric, name) in zip(LOOKS, NAMES.items(), strict=False):
        runs = samples(data, method, metric)
        low, middle, high = np.nanpercentile(runs, [25, 50, 75], axis=0)
        ax.plot(at, middle, label=name, **look)
        ax.plot(at, np.stack([low, high], axis=1), color=look["color"], linewidth=0.4)
        ax.plot(at, np.nanmean(runs, axis=0), color=look["color"], linestyle=":", linewidth=0.7)


def places(ax: Axes, data: xr.Dataset) -> None:
    """The mean over the clients of the middle and of the outer clusters."""
    drawn = [(method, metric) for method in (ch6.SAC, CAPPED) for metric in PLACES]
    for look, (method, metric) in zip(LOOKS, drawn, strict=False):
        mean = np.nanmean(samples(data, method, metric), axis=0)
        ax.plot(data["round"].values, mean, **look)
    names = [f"{where}, {policy}" for policy in ("SAC", "DPG ≤") for where in ("middle", "outer")]
    picture.name_curves(ax, names, at=[50, -1, 33, -1], shift=[-7, 5, 5, -6])


def near_zero(ax: Axes, data: xr.Dataset) -> None:
    """In how many runs a parameter is near 0 under SAC."""
    for look, metric in zip(LOOKS, NAMES, strict=False):
        runs = samples(data, ch6.SAC, metric)
        low = 100 * np.mean(runs < ZERO, axis=0)
        ax.plot(data["round"].values, low, **look)


# --------------------------------------------------------------------------- claims

SHOWN = (ch6.SAC, ch6.DPG)


def cases(metric: str, statistic: Callable[[np.ndarray], np.ndarray], *methods: str) -> Measure:
    """A number of the mean trajectory ``[B, rounds]`` of a client, for each method."""
    return lambda studies: {
        method: estimate(statistic, samples(studies["a"], method, metric), unit="")
        for method in methods or SHOWN
    }


def in_median(
    panel: str,
    metric: str,
    statistic: Callable[[np.ndarray], np.ndarray],
    method: str,
    window: Window = lambda data: data,
) -> Measure:
    """The same of the median trajectory of a client under one method, in the part that counts."""
    return lambda studies: {
        method: of_median(statistic, samples(window(studies[panel]), method, metric), unit="")
    }


def at(rounds: int) -> int:
    """The index of a round among the records."""
    return rounds // ch6.RECORD_EVERY - 1


def early_change(mean: np.ndarray) -> np.ndarray:
    return mean[:, at(ch6.EARLY.value)] - ch6.START.value


def late_level(mean: np.ndarray) -> np.ndarray:
    return mean[:, -ch6.LATE.value // ch6.RECORD_EVERY :].mean(1)


def decline(mean: np.ndarray) -> np.ndarray:
    """The part of its peak that the mean trajectory loses until the end."""
    return 1 - late_level(mean) / mean.max(1)


def straightness(mean: np.ndarray) -> np.ndarray:
    """The squared correlation of the early part with the iteration."""
    part = mean[:, : at(ch6.EARLY.value) + 1]
    part = part - part.mean(1, keepdims=True)
    line = np.arange(part.shape[1]) - (part.shape[1] - 1) / 2
    return (part @ line) ** 2 / np.sum(part**2, 1) / (line @ line)


def falls(parameters: np.ndarray) -> np.ndarray:
    return decline(parameters) > QUARTER


def ends_at_zero(parameters: np.ndarray) -> np.ndarray:
    return late_level(parameters) < ZERO


def most(
    metric: str, what: Callable[[np.ndarray], np.ndarray], *methods: str, panel: str = "a"
) -> Measure:
    """The percentage of runs in which a client's trajectory, ``[S, rounds]``, has a property."""
    return lambda studies: {
        method: share(what(samples(studies[panel], method, metric))) for method in methods or SHOWN
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
    "fewest above median samples": (ch6.LITTLE, ch6.MODERATE),
    "median above most samples": (ch6.MODERATE, ch6.MUCH),
}
BY_PLACE = {"middle above outer clusters": (ch6.BETWEEN, ch6.OUTER)}


def by_rank(panel: str) -> Measure:
    """The rank correlation of the clients' parameters with their data, in the steady state."""
    return lambda studies: {
        method: estimate(
            lambda mean: mean,
            each_mean(samples(ch6.late(studies[panel]), method, ch6.BY_DATA.name)),
            unit="",
        )
        for method in SHOWN
    }


def compared(
    first: str,
    word: str,
    second: str,
    measure: Callable[[np.ndarray, np.ndarray], Estimate],
    panel: str = "a",
) -> Measure:
    """A measure of the trajectories of two methods, for each client."""
    return lambda studies: {
        f"{name}, {first} {word} {second}": measure(*two(studies[panel], first, second, metric))
        for metric, name in NAMES.items()
    }


def rougher(first: str, second: str, panel: str = "a") -> Measure:
    """By how many dB the trajectories of one method are rougher."""
    return compared(first, "over", second, ch6.rougher, panel)


def mostly_rougher(first: str, second: str, panel: str = "a") -> Measure:
    """In how many per cent of the runs the first method's trajectory is the rougher."""
    rough = ch6.roughness
    return compared(first, "over", second, lambda a, b: share(rough(a) > rough(b)), panel)


def moved(parameters: np.ndarray) -> np.ndarray:
    """How far each seed's parameter is from its start after the early iterations."""
    return np.abs(parameters[:, at(ch6.EARLY.value)] - ch6.START.value)


def quicker(ours: str, theirs: str, panel: str = "a") -> Measure:
    """By how much more the parameters of one method have moved after the early iterations."""

    def measure(first: np.ndarray, second: np.ndarray) -> Estimate:
        return estimate(lambda a, b: a - b, moved(first), moved(second), unit="")

    return compared(ours, "beyond", theirs, measure, panel)


def mostly_quicker(first: str, second: str, panel: str = "a") -> Measure:
    """In how many per cent of the runs the first method's parameter has moved farther."""
    return compared(first, "beyond", second, lambda a, b: share(moved(a) > moved(b)), panel)


AROUND = Meaning((-INFINITE, ZERO), f"“around 0”: below half of the initial {ch6.START.value:g}")
SINGLE = "of single runs, as the source draws one, not of their mean"
STEEP = "On data of this scale the early derivatives of DPG are large beside the steps of SAC."
PLACE_NOTE = (
    "What a client keeps depends less on its data than on its cluster: the models are collinear, "
    "and where the mean of the others is near the own model, nothing drives τ down (panel h). "
    "The trajectories that grow carry the mean, while many others come to 0 (panel i)."
)


def jumps(studies: Studies) -> str:
    """In how many runs a parameter of DPG jumps."""
    result = []
    before = []
    for metric in NAMES:
        runs = samples(studies["a"], ch6.DPG, metric)
        steps = np.diff(runs, axis=1)
        leaps = steps > JUMP
        result.append(int(leaps.any(axis=1).sum()))
        before.extend(runs[:, :-1][leaps])
    if not before:
        return "No run of DPG jumps; its early derivatives are steep all the same."
    return (
        f"In {min(result)} to {max(result)} of the {len(runs)} runs, by client, a parameter of DPG "
        f"jumps by more than {JUMP:g} within {ch6.RECORD_EVERY} iterations, from a median of "
        f"{np.median(before):.3f}, where the derivative can be steep; these make the mean."
    )


def quantiles(studies: Studies) -> list[dict[str, Any]]:
    """Where the trajectories end: mean, quartiles, and in how many runs near 0."""
    rows = []
    for panel, world in (("a", ch6.DRAWN), ("joined", ch6.JOINED)):
        for method in (*SHOWN, CAPPED, ch6.BATCH_SAC):
            for metric, name in NAMES.items():
                ends = late_level(samples(studies[panel], method, metric))
                low, middle, high = np.nanpercentile(ends, [25, 50, 75])
                row = {"world": world, "method": method, "client": name}
                row |= {"mean": np.nanmean(ends), "median": middle}
                row |= {"lower quartile": low, "upper quartile": high}
                row |= {"runs near 0, %": 100 * np.mean(ends < ZERO)}
                rows.append(row)
    return rows


MEDIAN = "the median over runs in the place of their mean: a typical run, as one is drawn"


def of_each(
    name: str,
    text: str,
    metric: str,
    statistic: Callable[[np.ndarray], np.ndarray],
    accept: tuple[float, float],
    convention: str = "",
    window: Window = lambda data: data,
    single: Callable[[np.ndarray], np.ndarray] | None = None,
) -> list[Claim]:
    """Claims about one client's trajectory, separately for the policies: on the median over runs in
    either world and, if it applies to a ``single`` run, on the share of runs with joined clients.
    """
    claims = []
    for short, method in (("SAC", ch6.SAC), ("DPG", ch6.DPG)):
        sentence = f"{text}, under {short}"
        ours = {ch6.DRAWN: MEDIAN, ch6.JOINED: f"{MEDIAN}; {ch6.CONDITION}"}
        for panel, world, end in (("a", ch6.DRAWN, ""), ("joined", ch6.JOINED, "-if-joined")):
            claims.append(
                Claim(
                    f"{name}-in-the-median-{short.lower()}{end}",
                    sentence,
                    "section 6.3",
                    in_median(panel, metric, statistic, method, window),
                    accept,
                    convention,
                    condition=ours[world],
                    note=lambda studies, panel=panel, method=method: spread(
                        studies, panel, method, metric
                    ),
                    changed="New: the policies apart, and the median beside the mean.",
                )
            )
        if single is not None:
            claims.append(
                Claim(
                    f"{name}-in-most-runs-{short.lower()}-if-joined",
                    sentence,
                    "section 6.3",
                    most(metric, single, method, panel="joined"),
                    *MOST.when(convention),
                    condition=f"{SINGLE}; {ch6.CONDITION}",
                    note=lambda studies, method=method: spread(studies, "joined", method, metric),
                    changed=ch6.NEW,
                )
            )
    return claims


def by_policy(studies: Studies, metric: str) -> str:
    """Where the runs of one client are under both policies."""
    result = [f"{method}: {spread(studies, 'a', method, metric)}" for method in SHOWN]
    return f"The steps of DPG vanish with its derivative, those of SAC do not. {' '.join(result)}"


def spread(studies: Studies, panel: str, method: str, metric: str) -> str:
    """Where the runs of one client are after the early iterations and at the end."""
    runs = samples(studies[panel], method, metric)
    early = np.nanpercentile(runs[:, at(ch6.EARLY.value)], [25, 50, 75])
    ends = np.nanpercentile(late_level(runs), [25, 50, 75])
    return (
        f"Quartiles of τ over the runs, from {ch6.START.value:g}: "
        f"{', '.join(f'{v:.3f}' for v in early)} after {ch6.EARLY.value} iterations and "
        f"{', '.join(f'{v:.3f}' for v in ends)} at the end."
    )


FIGURE = Figure(
    name="gauthier-6.3",
    title="The inter-cluster parameters that clients learn",
    source="Gauthier 2024, figure 6.3; Gauthier et al. 2023 (NPFed-RL), figure 3",
    caption="The clients with most, median and fewest samples of each seed. The source draws one "
    "client of each kind; here each claim on a trajectory is judged on the mean over seeds, and "
    "where that goes against it, on single runs, too.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "gradient-is-smooth",
            "the parameters evolve smoothly under DPG, with extensive randomness under SAC",
            "section 6.3 on figure 6.3",
            rougher(ch6.SAC, ch6.DPG),
            (0, INFINITE),
            "mean square of the second differences: SAC's above DPG's",
            note=jumps,
        ),
        Claim(
            "gradient-is-smooth-in-most-runs",
            "the parameters evolve smoothly under DPG, with extensive randomness under SAC",
            "section 6.3 on figure 6.3",
            mostly_rougher(ch6.SAC, ch6.DPG),
            *MOST.when("SAC's second differences above DPG's"),
            condition=SINGLE,
            note="DPG jumps too often.",
        ),
        Claim(
            "gradient-is-smooth-if-capped",
            "the parameters evolve smoothly under DPG, with extensive randomness under SAC",
            "section 6.3 on figure 6.3",
            rougher(ch6.SAC, CAPPED),
            (0, INFINITE),
            "mean square of the second differences: SAC's above DPG's",
            condition="steps are capped at those of SAC",
            note="Even capped steps change their sign.",
        ),
        Claim(
            "gradient-is-slow",
            "the parameters adapt quickly under SAC and fail to under DPG",
            "section 6.3 on figure 6.3",
            quicker(ch6.SAC, ch6.DPG),
            (0, INFINITE),
            f"distance from the start after {ch6.EARLY.value} iterations: SAC's above DPG's",
            note=STEEP,
        ),
        Claim(
            "gradient-is-slow-in-most-runs",
            "the parameters adapt quickly under SAC and fail to under DPG",
            "section 6.3 on figure 6.3",
            mostly_quicker(ch6.SAC, ch6.DPG),
            *MOST.when(f"SAC has moved farther after {ch6.EARLY.value} iterations"),
            condition=SINGLE,
            note=STEEP,
        ),
        Claim(
            "batch-calms-probe",
            "batch learning helps against the randomness of SAC",
            "section 6.3 on figure 6.3",
            rougher(ch6.SAC, ch6.BATCH_SAC),
            (0, INFINITE),
            "mean square of the second differences",
        ),
        Claim(
            "little-data-rises",
            "the parameter of the client with little data increases at first",
            "section 6.3",
            cases(ch6.LITTLE, early_change),
            (0, INFINITE),
            f"the mean over seeds, after {ch6.EARLY.value} iterations",
        ),
        Claim(
            "little-data-rises-linearly",
            "it does so linearly",
            "section 6.3",
            cases(ch6.LITTLE, straightness),
            (0.95, 1),
            f"squared correlation of the mean with n, over {ch6.EARLY.value} iterations",
            note=jumps,
        ),
        Claim(
            "little-data-falls-later",
            "it decreases after near-convergence",
            "section 6.3",
            cases(ch6.LITTLE, decline),
            (QUARTER, INFINITE),
            "the mean over seeds ends at least a quarter below its peak",
            note=PLACE_NOTE,
        ),
        Claim(
            "little-data-falls-later-in-most-runs",
            "it decreases after near-convergence",
            "section 6.3",
            most(ch6.LITTLE, falls),
            *MOST.when("it ends at least a quarter below its peak"),
            condition=SINGLE,
            note=lambda studies: by_policy(studies, ch6.LITTLE),
        ),
        Claim(
            "much-data-falls",
            "the parameter of the client with much data decreases almost immediately",
            "section 6.3",
            cases(ch6.MUCH, early_change),
            (-INFINITE, 0),
            f"the mean over seeds, after {ch6.EARLY.value} iterations",
            note="It rises like the others: at most 35 samples for 60 parameters are not much.",
        ),
        Claim(
            "much-data-ends-at-zero",
            "it stabilizes around 0",
            "section 6.3",
            cases(ch6.MUCH, late_level),
            *AROUND.when("the mean over seeds"),
            note=PLACE_NOTE,
        ),
        Claim(
            "much-data-ends-at-zero-in-most-runs",
            "it stabilizes around 0",
            "section 6.3",
            most(ch6.MUCH, ends_at_zero),
            *MOST.when(AROUND.convention),
            condition=SINGLE,
            note=lambda studies: by_policy(studies, ch6.MUCH),
        ),
        Claim(
            "moderate-data-rises",
            "the parameter of the client with a moderate amount of data increases at first",
            "section 6.3",
            cases(ch6.MODERATE, early_change),
            (0, INFINITE),
            f"the mean over seeds, after {ch6.EARLY.value} iterations",
        ),
        Claim(
            "moderate-data-ends-at-zero",
            "it decreases afterwards and stabilizes around 0",
            "section 6.3",
            cases(ch6.MODERATE, late_level),
            *AROUND.when("the mean over seeds"),
            note=PLACE_NOTE,
        ),
        Claim(
            "moderate-data-ends-at-zero-in-most-runs",
            "it decreases afterwards and stabilizes around 0",
            "section 6.3",
            most(ch6.MODERATE, ends_at_zero),
            *MOST.when(AROUND.convention),
            condition=SINGLE,
            note=lambda studies: by_policy(studies, ch6.MODERATE),
        ),
        Claim(
            "by-data",
            "parameters evolve according to the data of clients: those with less data keep more",
            "section 6.3",
            differences(BY_NEED),
            (0, INFINITE),
            "difference of the means over seeds in the steady state",
            note=PLACE_NOTE,
        ),
        Claim(
            "by-cluster",
            "parameters evolve according to the needs of clients: a cluster whose model lies "
            "between the others' keeps more",
            "section 6.3",
            differences(BY_PLACE, ch6.SAC, CAPPED),
            (0, INFINITE),
            "difference of the means over seeds in the steady state",
            ours=True,
            note="Neither the data nor the cluster decides.",
        ),
        *of_each(
            "little-data-rises",
            "the parameter of the client with little data increases at first",
            ch6.LITTLE,
            early_change,
            (0, INFINITE),
            f"after {ch6.EARLY.value} iterations",
            ch6.early,
            lambda parameters: early_change(parameters) > 0,
        ),
        *of_each(
            "little-data-rises-linearly",
            "it does so linearly",
            ch6.LITTLE,
            straightness,
            (0.95, 1),
            f"squared correlation of the median with n, over {ch6.EARLY.value} iterations",
            ch6.early,
        ),
        *of_each(
            "little-data-falls-later",
            "the parameter of the client with little data decreases after near-convergence",
            ch6.LITTLE,
            decline,
            (QUARTER, INFINITE),
            "it ends at least a quarter below its peak",
            single=falls,
        ),
        *of_each(
            "much-data-falls",
            "the parameter of the client with much data decreases almost immediately",
            ch6.MUCH,
            early_change,
            (-INFINITE, 0),
            f"after {ch6.EARLY.value} iterations",
            ch6.early,
            lambda parameters: early_change(parameters) < 0,
        ),
        *of_each(
            "much-data-ends-at-zero",
            "the parameter of the client with much data stabilizes around 0",
            ch6.MUCH,
            late_level,
            *AROUND,
            ch6.late,
            ends_at_zero,
        ),
        *of_each(
            "moderate-data-rises",
            "the parameter of the client with a moderate amount of data increases at first",
            ch6.MODERATE,
            early_change,
            (0, INFINITE),
            f"after {ch6.EARLY.value} iterations",
            ch6.early,
            lambda parameters: early_change(parameters) > 0,
        ),
        *of_each(
            "moderate-data-ends-at-zero",
            "the parameter of the client with a moderate amount of data stabilizes around 0",
            ch6.MODERATE,
            late_level,
            *AROUND,
            ch6.late,
            ends_at_zero,
        ),
        *(
            Claim(
                f"by-data-of-all{end}",
                "parameters evolve according to the data of clients: those with less data keep "
                "more",
                "section 6.3",
                by_rank(panel),
                (-INFINITE, 0),
                "mean rank correlation of τ with the samples, over all clients, steady state",
                condition=condition,
                note=PLACE_NOTE,
                changed="New: of all clients, not of the three that are drawn.",
            )
            for panel, end, condition in (
                ("a", "", "all clients in the place of the three that the source draws"),
                ("joined", "-if-joined", ch6.CONDITION),
            )
        ),
        Claim(
            "gradient-is-smooth-if-joined",
            "the parameters evolve smoothly under DPG, with extensive randomness under SAC",
            "section 6.3 on figure 6.3",
            rougher(ch6.SAC, ch6.DPG, "joined"),
            (0, INFINITE),
            "mean square of the second differences: SAC's above DPG's",
            condition=ch6.CONDITION,
            changed=ch6.NEW,
        ),
        Claim(
            "gradient-is-slow-if-joined",
            "the parameters adapt quickly under SAC and fail to under DPG",
            "section 6.3 on figure 6.3",
            quicker(ch6.SAC, ch6.DPG, "joined"),
            (0, INFINITE),
            f"distance from the start after {ch6.EARLY.value} iterations: SAC's above DPG's",
            condition=ch6.CONDITION,
            note=STEEP,
            changed=ch6.NEW,
        ),
        Claim(
            "batch-calms-probe-if-joined",
            "batch learning helps against the randomness of SAC",
            "section 6.3 on figure 6.3",
            rougher(ch6.SAC, ch6.BATCH_SAC, "joined"),
            (0, INFINITE),
            "mean square of the second differences",
            condition=ch6.CONDITION,
            changed=ch6.NEW,
        ),
    ],
    settings=(*ch6.COMMON, *ch6.LEARNED, CAP, CHOSEN),
    seeds=240,
    table=quantiles,
)
