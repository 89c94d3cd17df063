"""Rizk 2023, figure 2.3: how many agents take part in a round (section 2.6.3)."""

import itertools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import BETTER, LITTLE
from experiments.figure import Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate, samples
from experiments.rizk import chapter2 as ch2
from fljax import plotting, statistics

DRAWN = Setting("agents L of a round", (6, 30, 60), "section 2.6.3", given=True)
ROUNDS = Setting("iterations", 600, "not given; twice what FedAvg takes to its steady state")
FEW = Setting("seeds", 50, "steady states are means over 200 iterations of each")


def named(method: str, count: int) -> str:
    return f"{method}, L = {count}"


def counts(studies: Studies) -> list[int]:
    """The numbers of agents that were run."""
    return sorted({int(str(name).rpartition(" ")[2]) for name in studies["a"]["algorithm"].values})


def study(effort: Effort) -> Studies:
    methods = {
        named(method, count): algorithm
        for count in effort.thin(DRAWN.value)
        for method, algorithm in ch2.fedavg_and_is(drawn=count).items()
    }
    few = min(effort.seeds, FEW.value)
    return {
        "a": ch2.study("a", methods, effort, ROUNDS.value, 10, few),
        "a-predicted": ch2.prediction("a-predicted", methods, effort, seeds=few),
    }


# --------------------------------------------------------------------------- the claims


def rest(studies: Studies, method: str, count: int) -> np.ndarray:
    """``[S]``: the mean of each run's steady state."""
    return samples(ch2.steady(studies["a"]), named(method, count), ch2.METRIC).mean(axis=1)


def improve(studies: Studies) -> dict[str, Estimate]:
    """The gap of fewer agents above more, dB."""
    return {
        f"{method}, L = {few} above {many}": ch2.steady_gap(
            studies["a"], named(method, few), named(method, many)
        )
        for method in (ch2.FEDAVG, ch2.IS)
        for few, many in itertools.pairwise(counts(studies))
    }


def saved(studies: Studies) -> dict[str, Estimate]:
    """How much larger the difference of the two deviations is with fewer agents."""

    def ratio(*means: np.ndarray) -> np.ndarray:
        return (means[0] - means[1]) / (means[2] - means[3])

    return {
        f"L = {few} above {many}": estimate(
            ratio,
            *(rest(studies, m, c) for c in (few, many) for m in (ch2.FEDAVG, ch2.IS)),
            unit="times",
        )
        for few, many in itertools.pairwise(counts(studies))
    }


def lost(studies: Studies) -> dict[str, Estimate]:
    """How much larger the gain in dB is with fewer agents."""

    def more(*means: np.ndarray) -> np.ndarray:
        return statistics.decibels(means[0] / means[1] * means[3] / means[2])

    return {
        f"L = {few} above {many}": estimate(
            more, *(rest(studies, m, c) for c in (few, many) for m in (ch2.FEDAVG, ch2.IS))
        )
        for few, many in itertools.pairwise(counts(studies))
    }


def gain(studies: Studies) -> dict[str, Estimate]:
    """The gain with the most agents."""
    count = counts(studies)[-1]
    pair = (named(ch2.FEDAVG, count), named(ch2.IS, count))
    return {f"L = {count}": ch2.steady_gap(studies["a"], *pair)}


def gain_on_the_axis(studies: Studies) -> dict[str, Estimate]:
    """With the most agents, the two deviations' difference on top of the largest deviation."""
    few, *_, many = counts(studies)

    def longer(largest: np.ndarray, over: np.ndarray, under: np.ndarray) -> np.ndarray:
        return 1 + (over - under) / largest

    pairs = ((ch2.FEDAVG, few), (ch2.FEDAVG, many), (ch2.IS, many))
    return {
        f"L = {many}": estimate(longer, *(rest(studies, *pair) for pair in pairs), unit="times")
    }


def still(studies: Studies) -> str:
    (result,) = gain(studies).values()
    return (
        f"It is still {result.value:.1f} dB: both deviations fall as 1/L, so their difference does "
        "too, and little is left to be seen on a linear axis; their ratio changes only since with "
        "more agents the noisiest, who cannot be drawn twice a round, reach the largest "
        "probability."
    )


# --------------------------------------------------------------------------- the picture


def draw(ax: Axes, studies: Studies, linear: bool) -> None:
    """Methods by color, numbers of agents by style; theory."""
    data = studies["a"]
    if linear:
        data = data.sel(round=slice(250, None))
        attributes = {"decibel": 0, "long_name": "1000 times the deviation"}
        data = data.assign({ch2.METRIC: (1000 * data[ch2.METRIC]).assign_attrs(attributes)})
    plotting.learning_curves(data, ch2.METRIC, ax=ax)
    curves = itertools.product(plotting.LOOKS[: len(counts(studies))], (ch2.FEDAVG, ch2.IS))
    ch2.dress(ax, [look | {"color": ch2.LOOKS[name]["color"]} for look, name in curves])
    picture.fade(ax)
    for name in data["algorithm"].values.tolist():
        level = ch2.predicted_level(studies["a-predicted"], name)
        ax.axhline(1000 * 10 ** (level / 10) if linear else level, **picture.THIN)


def plot(studies: Studies) -> Picture:
    titles = ("linear, as in the source", "the lowest eighth of (a)", "in dB")
    drawing, (linear, lowest, decibels) = picture.panels(titles)
    for ax in (linear, lowest, decibels):
        draw(ax, studies, linear=ax is not decibels)
    linear.set_ylim(bottom=0)
    lowest.set_ylim(0, linear.get_ylim()[1] / 8)
    return picture.finish(drawing, "K = 300 agents; thin: theory")


FIGURE = Figure(
    "rizk-2.3",
    "How many agents take part",
    "Rizk 2023, figure 2.3, section 2.6.3",
    "FedAvg and ISFedAvg with the true probabilities, for several numbers L of agents a round: "
    "(a), (b) on the source's linear axis from iteration 250 on, (c) in dB, with exact second "
    "moments of the same data sets.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "more-agents-are-better",
            "both algorithms perform better as L increases",
            "section 2.6.3",
            improve,
            *BETTER.db.when(ch2.RESTING),
        ),
        Claim(
            "the-improvement-decreases",
            "as L increases, the improvement by ISFedAvg decreases",
            "section 2.6.3",
            saved,
            *BETTER.factor.when(
                "the two deviations' difference with fewer agents, over that with more, on the "
                "source's linear axis"
            ),
        ),
        Claim(
            "the-improvement-decreases-in-db",
            "as L increases, the improvement by ISFedAvg decreases",
            "section 2.6.3",
            lost,
            *BETTER.db.when(ch2.RESTING),
            condition="the improvement is the ratio of the two deviations, not their difference",
        ),
        Claim(
            "little-advantage-with-many",
            "for large L ISFedAvg is not much more advantageous",
            "section 2.6.3",
            gain_on_the_axis,
            *LITTLE.factor.when(
                "with the largest L, the two deviations' difference on top of FedAvg's deviation "
                "with the least, as high as the source's linear axis is"
            ),
            changed="On the source's linear axis, as its claim of what decreases; before, in dB "
            "alone, which is the next claim.",
        ),
        Claim(
            "little-advantage-with-many-in-db",
            "for large L ISFedAvg is not much more advantageous",
            "section 2.6.3",
            gain,
            *LITTLE.db.when("with the largest L"),
            condition="the advantage is the ratio of the two deviations, not their difference",
            note=still,
            changed="It was the claim before it: the same measure, no longer on the source's axis.",
        ),
    ],
    settings=(*ch2.COMMON, DRAWN, ch2.RULE, ROUNDS, FEW),
    table=ch2.quantiles("a"),
)
