"""Gauthier 2024, figure 3.1: elastic net (section 3.4.1)."""

from matplotlib.figure import Figure as Picture

from experiments.figure import INFINITE, Claim, Effort, Figure, Studies
from experiments.gauthier import chapter3 as ch3

PLACE = "section 3.4.1 on figure 3.1"


def study(effort: Effort) -> Studies:
    budgets = effort.thin(ch3.BUDGETS.value)
    return ch3.nonsmooth_contests(
        "elastic net", ch3.STEP.value, ch3.CLIP_SQUARED.value, budgets, effort
    )


def plot(studies: Studies) -> Picture:
    return ch3.contest_picture(studies, "Elastic net")


SOURCE = [
    *ch3.accuracy_claims(PLACE),
    Claim(
        "beats-approximate-dp-everywhere",
        "zCDP is more accurate than (ε,δ)-DP at every total privacy loss",
        PLACE,
        ch3.beats("b", ch3.UNIFORM, ch3.DYNAMIC),
        (0, INFINITE),
        note=ch3.ACCOUNTING_NOTE,
    ),
    Claim(
        "falls-with-budget",
        "a larger privacy loss buys accuracy under both kinds of rules",
        "section 3.3.6, section 3.4.1 on figure 3.1",
        ch3.falls_with_budget(ch3.OURS, ch3.UNIFORM, ch3.DYNAMIC),
        (0, INFINITE),
    ),
    ch3.vanishing_claim("b", PLACE, ch3.vanishing_note),
]

FIGURE = Figure(
    name="gauthier-3.1",
    title="Private networked learning of an elastic net",
    source="Gauthier 2024, figure 3.1; Gauthier et al. 2023 (zCDP-NFL), figure 1",
    caption=ch3.caption_of_contests("squared loss, λ1‖w‖₁ + λ2‖w‖²"),
    study=study,
    plot=plot,
    claims=[*SOURCE, ch3.protection_claim(), *map(ch3.enforced, SOURCE)],
    settings=(*ch3.COMMON, ch3.STEP, ch3.CLIP_SQUARED, ch3.BUDGETS, ch3.ALLOCATION),
    tuning=ch3.tuning_table,
    seeds=200,
)
