"""Gauthier 2024, figure 3.3: ridge regression (lines 767-781; P2 figure 3)."""

from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments.figure import INFINITE, Claim, Effort, Figure, Studies
from experiments.gauthier import chapter3 as ch3
from experiments.tuning import Tuning

LINE = "lines 776, 781"
CONSTANT = "zCDP-NFL, constant step"


def study(effort: Effort) -> Studies:
    ours = ch3.proposed()
    tunings = [
        Tuning(
            ch3.PADMM, lambda v: ch3.Method(fl.algorithms.PADMM(v)), ch3.PENALTIES, "penalty rho"
        )
    ]
    tuning = ch3.tune("ridge", ch3.Method(ours), tunings, effort)
    methods = {
        ch3.OURS: ch3.Method(ours),
        ch3.PADMM: ch3.Method(fl.algorithms.PADMM(ch3.chosen(tuning, ch3.PADMM))),
        ch3.UNIFORM: ch3.approximate(ours, decay=1.0),
        CONSTANT: ch3.Method(ch3.proposed(power=0.0)),
    }
    full = ch3.study("ridge", methods, effort.thin(ch3.BUDGETS.value), effort)
    return {**ch3.panels(full), "tuning": tuning}


def plot(studies: Studies) -> Picture:
    return ch3.contest_picture(studies, "Ridge regression")


FIGURE = Figure(
    name="gauthier-3.3",
    title="Private networked ridge regression",
    source="Gauthier 2024, figure 3.3 (P2, figure 3)",
    caption=ch3.caption_of_nominal("squared loss, ‖w‖²"),
    study=study,
    plot=plot,
    claims=[
        Claim(
            "slightly-beats-padmm",
            "zCDP-NFL is slightly more accurate than P-ADMM",
            "line 776",
            ch3.beats("a", ch3.PADMM),
            ch3.SLIGHTLY,
            "“slightly”: between 0 and 5 dB",
        ),
        Claim(
            "slightly-beats-padmm-everywhere",
            "zCDP-NFL is slightly more accurate than P-ADMM at every total privacy loss",
            "line 781",
            ch3.beats("b", ch3.PADMM),
            ch3.SLIGHTLY,
            "“slightly”: between 0 and 5 dB",
        ),
        Claim(
            "same-start",
            "P-ADMM is tuned to a similar initial speed",
            "lines 746-748",
            ch3.starts_like(ch3.PADMM),
            (-INFINITE, 3),
            ch3.SIMILAR,
        ),
        Claim(
            "due-to-time-varying-step",
            "the advantage is due to the time-varying step: a constant step has none",
            "line 781",
            ch3.beats("b", ch3.PADMM, ours=CONSTANT),
            (-INFINITE, 0),
            "P-ADMM is not above zCDP-NFL with a constant step",
            condition="the ablation is our addition",
            note="Part of the advantage remains with a constant step.",
        ),
        Claim(
            "falls-with-budget",
            "a larger privacy loss buys accuracy",
            "lines 740, 781",
            ch3.falls_with_budget(ch3.OURS, ch3.PADMM),
            (0, INFINITE),
        ),
    ],
    settings=(*ch3.COMMON, ch3.STEP, ch3.BUDGETS, ch3.ALLOCATION),
    tuning=ch3.tuning_table,
)
