"""Gauthier 2024, figure 3.2: least absolute deviation (section 3.4.2)."""

from matplotlib.figure import Figure as Picture

from experiments.conventions import LITTLE, SIGNIFICANTLY
from experiments.figure import Claim, Effort, Figure, Studies
from experiments.gauthier import chapter3 as ch3

PLACE = "section 3.4.2 on figure 3.2"


def study(effort: Effort) -> Studies:
    result = ch3.nonsmooth_contests(
        "least absolute deviation",
        *(ch3.STEP_LAD.value, ch3.CLIP_ABSOLUTE.value, [ch3.CURVE_BUDGET.value], effort),
    )
    return {name: data for name, data in result.items() if not name.endswith("b")}


def plot(studies: Studies) -> Picture:
    return ch3.contest_picture(studies, "Least absolute deviation")


SOURCE = [
    *ch3.accuracy_claims(PLACE),
    Claim(
        "subgradient-flattens",
        "zCDP-grad-NFL is at its floor early",
        PLACE,
        ch3.late_gain(ch3.GRADIENT),
        *LITTLE.db.when("what the second half of the run gains"),
        ours=True,
        note="Progress on a bounded gradient is bounded: seeds whose parameter is far from the "
        "start are still on their way at n = 100 and carry the mean.",
    ),
    Claim(
        "ours-goes-on",
        "zCDP-NFL goes on improving",
        PLACE,
        ch3.late_gain(ch3.OURS),
        *SIGNIFICANTLY.db.when("what the second half of the run gains"),
        ours=True,
    ),
    ch3.vanishing_claim(
        "a", PLACE, "A 1/n step hardly moves on a bounded gradient, or carries large noise."
    ),
]

FIGURE = Figure(
    name="gauthier-3.2",
    title="Private networked least absolute deviation",
    source="Gauthier 2024, figure 3.2; Gauthier et al. 2023 (zCDP-NFL), figure 2",
    caption=ch3.caption_of_contests("absolute loss, no regularizer"),
    study=study,
    plot=plot,
    claims=[*SOURCE, ch3.protection_claim(), *map(ch3.enforced, SOURCE)],
    settings=(*ch3.COMMON, ch3.STEP_LAD, ch3.CLIP_ABSOLUTE, ch3.ALLOCATION),
    tuning=ch3.tuning_table,
)
