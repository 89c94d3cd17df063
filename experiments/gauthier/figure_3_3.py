"""Gauthier 2024, figure 3.3: ridge regression (section 3.4.3)."""

import xarray as xr
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments.conventions import SLIGHTLY
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter3 as ch3
from experiments.tuning import Tuning

PLACE = "section 3.4.3"

#: The objective, its bound that holds if any, and the step of zCDP-NFL.
ROWS = (("ridge", None, ch3.STEP.value), (ch3.HUBER, ch3.CLIP_HUBER.value, ch3.STEP_HUBER.value))
INNER = Setting(
    "inner steps of P-ADMM, Huber loss",
    20,
    "warm-started and of a public size, which keeps to the same bound; each at least halves what "
    "is left. Ridge has a closed form",
)


def padmm(penalty: float) -> ch3.Method:
    return ch3.Method(fl.algorithms.PADMM(penalty, INNER.value))


def study(effort: Effort) -> Studies:
    result: dict[str, xr.Dataset] = {}
    for objective, bound, step in ROWS:
        ours = ch3.proposed(step=step)
        contest = ch3.Contest(objective, bound, effort.thin(ch3.BUDGETS.value), effort)
        tuning = contest.tune(
            ch3.Method(ours), [Tuning(ch3.PADMM, padmm, ch3.PENALTIES, "penalty rho")]
        )
        methods = {
            ch3.OURS: ch3.Method(ours),
            ch3.PADMM: padmm(ch3.chosen(tuning, ch3.PADMM)),
            ch3.UNIFORM: ch3.approximate(ours, decay=1.0),
            ch3.DYNAMIC: ch3.approximate(ours),
            ch3.STILL: ch3.Method(ch3.proposed(step=step, power=0.0)),
        }
        result |= contest.study(methods, tuning)
    return result


def plot(studies: Studies) -> Picture:
    return ch3.contest_picture(studies, "Ridge regression", near=(ch3.PADMM, ch3.STILL))


def slightly_more(studies: Studies) -> str:
    """A note: how far P-ADMM is behind."""
    gaps = ch3.beats("b", ch3.PADMM)(studies).values()
    least, most = (f(e.value for e in gaps) for f in (min, max))
    ends = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (least, most)))
    return f"zCDP-NFL is the more accurate by {ends} dB."


def remains(studies: Studies) -> str:
    """A note: the advantage that remains with a constant step."""
    with_step, without = (ch3.beats("a", ch3.PADMM, ours=m)(studies) for m in (ch3.OURS, ch3.STILL))
    ((budget, first),), ((_, rest),) = with_step.items(), without.items()
    return (
        f"At {budget} P-ADMM is {first.value:.1f} dB above zCDP-NFL, and still {rest.value:.1f} dB "
        "above it with a constant step."
    )


SOURCE = [
    Claim(
        "slightly-beats-padmm",
        "zCDP-NFL is slightly more accurate than P-ADMM",
        "section 3.4.3 on figure 3.3",
        ch3.beats("a", ch3.PADMM),
        *SLIGHTLY.db,
        note=slightly_more,
        changed=ch3.ONE_MEANING,
    ),
    Claim(
        "slightly-beats-padmm-everywhere",
        "zCDP-NFL is slightly more accurate than P-ADMM at every total privacy loss",
        "section 3.4.3",
        ch3.beats("b", ch3.PADMM),
        *SLIGHTLY.db,
        note=slightly_more,
        changed=ch3.ONE_MEANING,
    ),
    Claim(
        "same-start",
        "P-ADMM is tuned to a similar initial speed",
        "section 3.4",
        ch3.starts_like(ch3.PADMM),
        *ch3.SIMILAR,
    ),
    Claim(
        "due-to-time-varying-step",
        "the advantage is due to the time-varying step: a constant step has none",
        "section 3.4.3",
        ch3.beats("b", ch3.PADMM, ours=ch3.STILL),
        (-INFINITE, 0),
        "P-ADMM is not above zCDP-NFL with a constant step",
        condition="the constant step is that of the first iteration",
        note=remains,
    ),
    Claim(
        "falls-with-budget",
        "a larger privacy loss buys accuracy",
        "sections 3.3.6 and 3.4.3",
        ch3.falls_with_budget(ch3.OURS, ch3.PADMM),
        (0, INFINITE),
    ),
    Claim(
        "beats-approximate-dp-everywhere",
        "zCDP is more accurate than (ε,δ)-DP at every total privacy loss",
        "sections 3.1 and 3.4",
        ch3.beats("b", ch3.UNIFORM, ch3.DYNAMIC),
        (0, INFINITE),
        note=ch3.ACCOUNTING_NOTE,
        changed="New: the first edition drew the uniform rules alone and judged neither.",
    ),
]

#: P-ADMM minimizes exactly and cannot clip: the loss itself must satisfy the bound.
HELD = "a Huber loss of features of bounded length in the place of the squared loss"

FIGURE = Figure(
    name="gauthier-3.3",
    title="Private networked ridge regression",
    source="Gauthier 2024, figure 3.3; Gauthier et al. 2023 (zCDP-NFL), figure 3",
    caption=ch3.caption_of_contests(
        "squared loss, ‖w‖²",
        "P-ADMM minimizes exactly, in which clipping has no place, so there the loss is Huber's "
        "and feature vectors are scaled down to a public length",
    ),
    study=study,
    plot=plot,
    claims=[
        *SOURCE,
        ch3.protection_claim(),
        *(ch3.enforced(claim, HELD) for claim in SOURCE),
    ],
    settings=(
        *(*ch3.COMMON, ch3.STEP, ch3.STEP_HUBER, ch3.CLIP_HUBER, INNER),
        *(ch3.BUDGETS, ch3.ALLOCATION),
    ),
    tuning=ch3.tuning_table,
)
