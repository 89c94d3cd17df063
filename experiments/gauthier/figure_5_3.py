"""Gauthier 2024, figure 5.3: less similar clusters (lines 1530-1538; P6 figure 5)."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter5 as ch5
from experiments.measures import first_rounds
from fljax import plotting

SPREAD = Setting("gamma_q of the clusters' models", 0.5, "uniform on ±, line 1530", given=True)
FACTOR = Setting("decay of tau a round", 0.98, "line 1538", given=True)
DECAYING = "PGFL, τ = 0.4 · 0.98ⁿ"


def study(effort: Effort) -> Studies:
    methods = {
        ch5.PGFL_0: ch5.pgfl(0.0),
        ch5.PGFL_MIXED: ch5.pgfl(ch5.MIXED.value),
        DECAYING: ch5.pgfl(fl.schedules.GeometricDecay(ch5.MIXED.value, FACTOR.value)),
    }
    return {"a": ch5.study("a", methods, effort, spread=SPREAD.value)}


def plot(studies: Studies) -> Picture:
    picture, ax = plt.subplots(figsize=(6.5, 4.4))
    plotting.learning_curves(studies["a"], ch5.METRIC, ax=ax)
    ax.set_title("clusters less similar, scheduled and private")
    picture.suptitle(ch5.honest_subtitle(), fontsize=8)
    return picture


#: The first ten iterations.
start = first_rounds(10)


FIGURE = Figure(
    name="gauthier-5.3",
    title="PGFL with less similar clusters",
    source="Gauthier 2024, figure 5.3 (P6, figure 5)",
    caption="gamma uniform on ±0.5 in the place of ±0.15; otherwise as figure 5.1 (c).",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "mixing-degrades",
            "fixed inter-cluster learning degrades the steady state",
            "line 1530",
            ch5.gaps(*ch5.one_above("a", ch5.PGFL_MIXED, ch5.PGFL_0)),
            (0, INFINITE),
        ),
        Claim(
            "mixing-starts-faster",
            "inter-cluster learning improves the initial convergence rate",
            "line 1530",
            ch5.gaps(*ch5.one_above("a", ch5.PGFL_0, ch5.PGFL_MIXED), when=start),
            (0, INFINITE),
            "mean distance of the curves over the first ten iterations",
        ),
        Claim(
            "decaying-starts-as-fixed",
            "the decaying parameter starts as fast as the fixed one",
            "line 1538",
            ch5.gaps(*ch5.one_above("a", DECAYING, ch5.PGFL_MIXED), when=start),
            ch5.SAME,
            ch5.SIMILAR,
        ),
        Claim(
            "decaying-ends-as-none",
            "the decaying parameter ends nearly as without inter-cluster learning",
            "line 1538",
            ch5.gaps(*ch5.one_above("a", DECAYING, ch5.PGFL_0)),
            ch5.SAME,
            ch5.SIMILAR,
        ),
    ],
    settings=(*ch5.COMMON, SPREAD, ch5.MIXED, FACTOR),
    tuning=ch5.tuning_table,
)
