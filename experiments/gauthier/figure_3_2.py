"""Gauthier 2024, figure 3.2: least absolute deviation (lines 762-765; P2 figure 2)."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure as Picture

from experiments.figure import INFINITE, Claim, Effort, Figure, Studies
from experiments.gauthier import chapter3 as ch3
from fljax import plotting

LINE = "line 765"


def study(effort: Effort) -> Studies:
    found = ch3.nonsmooth_contest(
        "least absolute deviation", ch3.STEP_LAD.value, [ch3.CURVE_BUDGET.value], effort
    )
    return {"a": found["a"], "tuning": found["tuning"]}


def plot(studies: Studies) -> Picture:
    a = studies["a"]
    picture, axes = plt.subplots(figsize=(6.4, 4.4))
    plotting.learning_curves(ch3.drawn(a), ax=axes)
    axes.set_title(f"learning curves, ε = {ch3.CURVE_BUDGET.value:g}, δ = {ch3.DELTA.value:g}")
    picture.suptitle("Least absolute deviation — " + ch3.honest_subtitle(a), fontsize=9)
    return picture


FIGURE = Figure(
    name="gauthier-3.2",
    title="Private networked least absolute deviation",
    source="Gauthier 2024, figure 3.2 (P2, figure 2)",
    caption=ch3.caption_of_nominal("absolute loss, no regulariser"),
    study=study,
    plot=plot,
    claims=[
        *ch3.accuracy_claims(LINE),
        Claim(
            "subgradient-flattens",
            "zCDP-grad-NFL is at its floor early",
            LINE,
            ch3.late_gain(ch3.GRADIENT),
            (-INFINITE, 1),
            "the second half of the run gains less than 1 dB",
            note="Progress on a bounded gradient is bounded: seeds whose parameter is far from the "
            "start are still on their way at n = 100 and carry the mean.",
        ),
        Claim(
            "ours-goes-on",
            "zCDP-NFL goes on improving",
            LINE,
            ch3.late_gain(ch3.OURS),
            (3, INFINITE),
            "the second half of the run gains more than 3 dB",
        ),
        ch3.vanishing_claim(
            "a", LINE, "A 1/n step hardly moves on a bounded gradient, or carries large noise."
        ),
    ],
    settings=(*ch3.COMMON, ch3.STEP_LAD, ch3.ALLOCATION),
    tuning=ch3.tuning_table,
)
