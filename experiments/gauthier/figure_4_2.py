"""Gauthier 2024, figure 4.2: the design of PAO-Fed (section 4.4.2)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import SAME, SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter4 as ch4
from experiments.measures import joined
from fljax import plotting

SIZES = {1: "m = 1 (99.5 % saved)", 4: "m = 4 (98 %)", 32: "m = 32 (84 %)"}
NARROW = Setting(
    "(d)-(f) bandwidth, scale",
    (1.0, 1.29),
    "a narrower kernel: the largest eigenvalue is 0.61 without the scale and 1.02 with it, and "
    "the source's step and eigenvalue fit any bandwidth",
)

#: Which panels show which kernel.
PANELS = {"abc": ch4.KERNEL, "def": ch4.Kernel(*NARROW.value)}
C0, U0, C1, U1, C2, U2 = (f"PAO-Fed-{v}" for v in ("C0", "U0", "C1", "U1", "C2", "U2"))
ONE, FOUR, MANY = SIZES.values()
#: Looks by message size; m = 4 is the U1 of the other panels.
LOOKS = (plotting.LOOKS[2], ch4.LOOKS[U1], plotting.LOOKS[3])


def study(effort: Effort) -> Studies:
    methods = {name: ch4.pao(name[-2:]) for name in (C0, U0, C1, U1, C2, U2)}
    methods |= {SIZES[m]: ch4.pao("U1", m) for m in SIZES if m != ch4.PORTION.value}
    studies = {}
    for letters, kernel in PANELS.items():
        build = partial(ch4.scenario, kernel=kernel)
        results = ch4.study(letters, ch4.DEFAULT, methods, effort, build=build)
        four = results.sel(algorithm=[U1]).assign_coords(algorithm=[SIZES[4]])
        sharing_one, sharing_many = (results.sel(algorithm=[name]) for name in (ONE, MANY))
        portions, sizes, weights = letters
        studies |= {
            f"floor-{letters}": ch4.floor(kernel),
            portions: results.sel(algorithm=[C0, U0, C1, U1]),
            sizes: joined(sharing_one, four, sharing_many),
            weights: results.sel(algorithm=[C1, U1, C2, U2]),
        }
    return studies


def plot(studies: Studies) -> Picture:
    titles = [
        f"{what}, bandwidth {kernel.bandwidth:g}"
        for kernel in PANELS.values()
        for what in ("portions", "size (U1)", "late messages")
    ]
    drawing, axes = picture.panels(titles)
    for ax, name in zip(axes, "abcdef", strict=True):
        floor = studies[f"floor-{next(letters for letters in PANELS if name in letters)}"]
        if name in "cf":  # the curves themselves coincide
            ch4.show_distances(studies[name], C2, ax)
        else:
            ch4.show_curves(studies[name], ax, floor)
        if name in "be":
            picture.recolor(ax, dict(zip(SIZES.values(), LOOKS, strict=True)))
    heading = f"PAO-Fed, μ = {ch4.STEP.value:g}, largest eigenvalue 1.02, two kernels"
    return picture.finish(drawing, heading)


def too_little(panel: str) -> Callable[[Studies], str]:
    """Why the weights of late messages matter less than the source has it."""

    def note(studies: Studies) -> str:
        data = studies[panel]
        gains = (f"{less[-2:]}: {ch4.gap(data, less, more)}" for less, more in ((C1, C2), (U1, U2)))
        return (
            f"By less than {SIGNIFICANTLY.db.accept[0]:g} dB ({', '.join(gains)}): with one in "
            "five late and a window that moves on, a late message overwrites few parameters, and "
            "without coordination fewer of them at a time."
        )

    return note


def claims(panels: str, suffix: str = "", condition: str = "", changed: str = "") -> list[Claim]:
    """The claims of one kernel's three panels."""
    portions, sizes, weights = panels
    wording: dict[str, Any] = {"condition": condition, "changed": changed}
    return [
        Claim(
            f"local-refinement{suffix}",
            "C1 and U1, which send the portion refined longest, outperform C0 and U0",
            "section 4.4.2 on figure 4.2",
            ch4.gaps(portions, (C0, C1), (U0, U1)),
            (0, INFINITE),
            **wording,
        ),
        Claim(
            f"uncoordinated{suffix}",
            "in asynchronous settings uncoordinated sharing is better than coordinated",
            "section 4.4.2 on figure 4.2",
            ch4.gaps(portions, (C0, U0), (C1, U1)),
            (0, INFINITE),
            **wording,
        ),
        Claim(
            f"larger-starts-faster{suffix}",
            "larger portions converge faster at first",
            "section 4.4.2 on figure 4.2",
            ch4.early_gaps(sizes, (ONE, FOUR), (FOUR, MANY)),
            (0, INFINITE),
            "mean distance in dB over the first 200 iterations",
            **wording,
        ),
        Claim(
            f"larger-ends-worse{suffix}",
            "large portions end at a larger error",
            "section 4.4.2 on figure 4.2",
            ch4.gaps(sizes, (MANY, FOUR)),
            (0, INFINITE),
            note="On these streams the iterations are not enough for any portion to reach its "
            "floor, and the larger one is still ahead.",
            **wording,
        ),
        Claim(
            f"discount-helps{suffix}",
            "C2 and U2, which weigh late messages down, are significantly better than C1 and U1",
            "section 4.4.2 on figure 4.2",
            ch4.gaps(weights, (C1, C2), (U1, U2)),
            *SIGNIFICANTLY.db,
            note=too_little(weights),
            **wording,
        ),
        Claim(
            f"same-with-discount{suffix}",
            "C2 and U2 perform the same",
            "section 4.4.2 on figure 4.2",
            ch4.gaps(weights, (U2, C2)),
            *SAME.db,
            **wording,
        ),
    ]


FIGURE = Figure(
    name="gauthier-4.2",
    title="The design of PAO-Fed",
    source="Gauthier 2024, figure 4.2; Gauthier et al. 2023 (PAO-Fed), figure 2",
    caption="Synthetic streams, 256 clients of which about 15 a round are available, one message "
    "in five late. All variants run with the same step size, data, participation and delays. The "
    "source gives step and eigenvalue but no bandwidth: the second row has another one. (c) and "
    "(f) show distances, since the curves themselves coincide. Dotted: the error of least squares "
    "on the features, which no step and no portion can be below; the analysis predicts curves of "
    "small instances alone (gauthier-4.theory).",
    study=study,
    plot=plot,
    claims=[
        *claims("abc"),
        *claims(
            "def",
            "-narrow",
            "the kernel of bandwidth 1, scaled to the source's largest eigenvalue",
            "New: the same with the other kernel to which the source's step and eigenvalue fit.",
        ),
    ],
    settings=(*ch4.COMMON, *ch4.LEAST_SQUARES, NARROW),
)
