"""Rizk 2023, figure 2.4: how many local steps agents take (section 2.6.3)."""

import itertools
from functools import partial

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import BETTER, LITTLE, SAME
from experiments.figure import Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import gap, two
from experiments.rizk import chapter2 as ch2
from fljax import plotting

RANGES = Setting(
    "local steps E_k",
    ((1, 5), (1, 10), (1, 20)),
    "“three range values”, not given: that of figure 2.1, twice and four times as far",
)
ROUNDS = Setting("iterations", 600, "not given; twice what FedAvg takes to its steady state")
FEW = Setting("seeds", 100, "steady states are means over 200 iterations of each")
ORIGINAL = "original FedAvg"
PANELS = {"a": ch2.FEDAVG, "b": ch2.IS, "c": ORIGINAL}


def named(between: tuple[int, int]) -> str:
    return f"E from {between[0]} to {between[1]}"


def study(effort: Effort) -> Studies:
    steps = {named(r): ch2.local_steps(r) for r in effort.thin(RANGES.value, 2)}
    make = {
        "a": ch2.fedavg,
        "b": ch2.isfedavg,
        "c": partial(ch2.fedavg, normalized=False),
    }
    studies = {}
    for panel, build in make.items():
        methods = {name: build(steps=counts) for name, counts in steps.items()}
        few = min(effort.seeds, FEW.value)
        studies[panel] = ch2.study(panel, methods, effort, ROUNDS.value, 10, few)
        name = f"{panel}-predicted"
        studies[name] = ch2.prediction(name, methods, effort, seeds=few)
    return studies


# --------------------------------------------------------------------------- the claims


def longer_above_shorter(*panels: str) -> Measure:
    """The gap from one range of steps to the next, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for panel in panels:
            names = studies[panel]["algorithm"].values.tolist()
            for shorter, longer in itertools.pairwise(names):
                case = f"{PANELS[panel]}, {longer} above {shorter}"
                result[case] = ch2.steady_gap(studies[panel], longer, shorter)
        return result

    return measure


normalized = longer_above_shorter("a", "b")


def falls(studies: Studies) -> str:
    result = [e.value for e in normalized(studies).values()]
    return (
        f"It changes by {min(result):.1f} to {max(result):.1f} dB from range to range, down: a "
        "step is on a batch of its own, so more of them, each as much shorter, are a larger batch. "
        "The first-order deviation has 1/(E_k B_k) in it, (2.23)-(2.25)."
    )


original = longer_above_shorter("c")


def original_exactly(studies: Studies) -> dict[str, Estimate]:
    """The gap from one range to the next by exact second moments of each data set, dB."""
    data = studies["c-predicted"]
    names = data["algorithm"].values.tolist()
    return {
        f"{longer} above {shorter}": gap(*two(data, longer, shorter, ch2.PREDICTED))
        for shorter, longer in itertools.pairwise(names)
    }


def averaged(studies: Studies) -> str:
    result = [e.value for e in original(studies).values()]
    return (
        f"It changes by {min(result):.1f} to {max(result):.1f} dB. A round of E_k steps is as "
        "much longer and its noise as much larger, but it is over as many more batches, and what "
        "agents' samples do not agree on is small beside one batch's noise: to first order in mu "
        "the two cancel. What is left is a minimizer in which those with many steps count more, "
        "near the common one, since all observe one model."
    )


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = (ch2.FEDAVG, ch2.IS, "original FedAvg, not normalized")
    drawing, axes = picture.panels(titles, sharey=True)
    for ax, panel in zip(axes, PANELS, strict=True):
        plotting.learning_curves(studies[panel], ch2.METRIC, ax=ax)
        picture.fade(ax)
        for name in studies[panel]["algorithm"].values.tolist():
            ax.axhline(ch2.predicted_level(studies[f"{panel}-predicted"], name), **picture.THIN)
    return picture.finish(drawing, "local steps, normalized or not; thin: theory")


FIGURE = Figure(
    "rizk-2.4",
    "How many local steps",
    "Rizk 2023, figure 2.4, section 2.6.3",
    "(a), (b) for three ranges of the numbers of local steps. (c) is what the source says of the "
    "original FedAvg and does not plot. Thin lines are exact second moments of the same data sets.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "hardly-changes",
            "as E_k increases, the performance of FedAvg and ISFedAvg does not change much",
            "section 2.6.3 on figure 2.4",
            normalized,
            *SAME.db.when("steady states from range to range"),
            note=falls,
        ),
        Claim(
            "does-not-deteriorate",
            "increasing E_k does not deteriorate the performance of either",
            "section 2.6.3 on figure 2.4",
            normalized,
            *LITTLE.db.when("steady states from range to range"),
        ),
        Claim(
            "original-deteriorates",
            "increasing E_k would deteriorate the original FedAvg",
            "section 2.6.3 on figure 2.4",
            original,
            *BETTER.db.when("that of fewer steps; stated, not plotted"),
            note=averaged,
        ),
        Claim(
            "original-deteriorates-exactly",
            "increasing E_k would deteriorate the original FedAvg",
            "section 2.6.3 on figure 2.4",
            original_exactly,
            *BETTER.db.when("that of fewer steps; exact second moments of the same data sets"),
            changed="New: by runs alone the claim before this one is undecided.",
        ),
    ],
    settings=(*ch2.COMMON, ch2.DRAWN, RANGES, ch2.RULE, ROUNDS, FEW),
    table=ch2.quantiles(*PANELS),
)
