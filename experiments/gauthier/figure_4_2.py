"""Gauthier 2024, figure 4.2: the design of PAO-Fed (lines 1111-1121; P4 figure 2)."""

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Studies
from experiments.gauthier import chapter4 as ch4
from experiments.measures import joined
from fljax import plotting

SIZES = {1: "m = 1 (99.5 % saved)", 4: "m = 4 (98 %)", 32: "m = 32 (84 %)"}


def named(*variants: str) -> list[str]:
    return [f"PAO-Fed-{v}" for v in variants]


def study(effort: Effort) -> Studies:
    variants = {f"PAO-Fed-{v}": ch4.pao(v) for v in ("C0", "U0", "C1", "U1", "C2", "U2")}
    sizes = {SIZES[m]: ch4.pao("U1", m) for m in SIZES if m != ch4.PORTION.value}
    found = ch4.study("study", ch4.DEFAULT, variants | sizes, effort)
    four = found.sel(algorithm=[ch4.U1]).assign_coords(algorithm=[SIZES[4]])
    others = found.sel(algorithm=[SIZES[1], SIZES[32]])
    return {
        "a": found.sel(algorithm=named("C0", "U0", "C1", "U1")),
        "b": joined(others.sel(algorithm=[SIZES[1]]), four, others.sel(algorithm=[SIZES[32]])),
        "c": found.sel(algorithm=named("C1", "U1", "C2", "U2")),
    }


def plot(studies: Studies) -> Picture:
    titles = ("selection of portions", "size of portions, PAO-Fed-U1", "weights of late messages")
    drawing, axes = picture.panels(titles, sharey=True)
    for ax, name in zip(axes, "abc", strict=True):
        plotting.learning_curves(studies[name], ch4.METRIC, ax=ax)
    return picture.finish(
        drawing, f"PAO-Fed in the asynchronous environment, μ = {ch4.STEP.value:g}"
    )


ONE, FOUR, MANY = SIZES.values()

FIGURE = Figure(
    name="gauthier-4.2",
    title="The design of PAO-Fed",
    source="Gauthier 2024, figure 4.2 (P4, figure 2)",
    caption="Synthetic streams, 256 clients of which about 15 a round are available, one message "
    "in five late. All variants run with the same step size, data, participation and delays.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "local-refinement",
            "C1 and U1, which send the portion refined longest, outperform C0 and U0",
            "line 1117",
            ch4.gaps("a", ("PAO-Fed-C0", "PAO-Fed-C1"), ("PAO-Fed-U0", "PAO-Fed-U1")),
            (0, INFINITE),
        ),
        Claim(
            "uncoordinated",
            "in asynchronous settings uncoordinated sharing is better than coordinated",
            "line 1117",
            ch4.gaps("a", ("PAO-Fed-C0", "PAO-Fed-U0"), ("PAO-Fed-C1", "PAO-Fed-U1")),
            (0, INFINITE),
        ),
        Claim(
            "larger-starts-faster",
            "larger portions converge faster at first",
            "line 1119",
            ch4.early_gaps("b", (ONE, FOUR), (FOUR, MANY)),
            (0, INFINITE),
            "mean distance in dB over the first 200 iterations",
        ),
        Claim(
            "larger-ends-worse",
            "large portions end at a larger error",
            "line 1119",
            ch4.gaps("b", (MANY, FOUR)),
            (0, INFINITE),
            note="On these streams 2000 iterations are not enough for any portion to reach its "
            "floor, and the larger one is still ahead.",
        ),
        Claim(
            "discount-helps",
            "C2 and U2, which weigh late messages down, are significantly better than C1 and U1",
            "line 1121",
            ch4.gaps("c", ("PAO-Fed-C1", "PAO-Fed-C2"), ("PAO-Fed-U1", "PAO-Fed-U2")),
            (ch4.SIGNIFICANTLY, INFINITE),
            ch4.SIGNIFICANT,
            note="They are better beyond doubt, but by tenths of a dB: with one message in five "
            "late and a window that moves on, a late message overwrites few parameters.",
        ),
        Claim(
            "same-with-discount",
            "C2 and U2 perform the same",
            "line 1121",
            ch4.gaps("c", ("PAO-Fed-U2", "PAO-Fed-C2")),
            ch4.SAME,
            ch4.SIMILAR,
        ),
    ],
    settings=ch4.COMMON,
    tuning=ch4.tuning_table,
)
