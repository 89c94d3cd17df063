"""Gauthier 2024, figure 5.2: the inter-cluster parameter of PGFL (line 1528; P6 figure 4)."""

import matplotlib.pyplot as plt
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter5 as ch5
from fljax import plotting

GRID = Setting(
    "inter-cluster parameters",
    (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
    "from none to nothing of one's own; the grid is not given",
)
WITHIN = (0.2, 0.3, 0.4)


def build(key: Array, tau: Array) -> fl.Simulation:
    return ch5.scenario(key, ch5.pgfl(tau), rounds=ch5.READ.value)


def study(effort: Effort) -> Studies:
    values = (0.0, *WITHIN, 1.0) if effort.quick else GRID.value
    label = "inter-cluster parameter τ"
    swept = ch5.over("a", "tau", values, build, effort, label)
    curve = ch5.study("curve", {ch5.PGFL_MIXED: ch5.pgfl(ch5.MIXED.value)}, effort)
    return {"a": swept, "curve": curve.sel(round=[ch5.READ.value])}


def plot(studies: Studies) -> Picture:
    picture, ax = plt.subplots(figsize=(6, 4.2))
    plotting.trade_off(studies["a"], "tau", ch5.METRIC, ax=ax)
    ax.set_title(f"PGFL after {ch5.READ.value} iterations, scheduled and private")
    picture.suptitle(ch5.honest_subtitle(), fontsize=8)
    return picture


def at(value: float) -> ch5.Curve:
    return "a", {"tau": value}


FIGURE = Figure(
    name="gauthier-5.2",
    title="The inter-cluster parameter of PGFL",
    source="Gauthier 2024, figure 5.2 (P6, figure 4)",
    caption="NMSD after 200 iterations with 3 of 15 clients drawn and nominal privacy.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "better-within",
            "the NMSD is lower for τ in (0.1, 0.5) than for τ = 0",
            "line 1528",
            ch5.gaps(*((at(0.0), at(inside)) for inside in WITHIN)),
            (0, INFINITE),
            "at 0.2, 0.3 and 0.4, inside the open interval",
            note="With this noise variance mixing pays up to about 0.4, where it breaks even; how "
            "far it pays is decided by the noise, which the source does not give.",
        ),
        Claim(
            "too-large-degrades",
            "a value too large degrades performance",
            "line 1528",
            ch5.gaps((at(1.0), at(0.0)), (at(1.0), at(0.4))),
            (0, INFINITE),
        ),
        Claim(
            "same-as-the-curve",
            "the value at 0.4 is that of figure 5.1 (c)",
            "line 1528",
            ch5.gaps((at(0.4), ("curve", ch5.PGFL_MIXED))),
            (-0.01, 0.01),
            "within 0.01 dB of the learning curve's 200th iteration",
        ),
    ],
    settings=(*ch5.COMMON, ch5.SPREAD, ch5.MIXED, ch5.READ, GRID),
    tuning=ch5.tuning_table,
)
