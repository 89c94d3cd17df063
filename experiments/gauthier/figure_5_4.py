"""Gauthier 2024, figure 5.4: privacy against accuracy (section 5.4.1)."""

from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter5 as ch5
from fljax import plotting

INITIALS = Setting(
    "privacy parameters of the first round",
    (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1),
    "a grid around the 0.001 of figure 5.1; not given",
)
DECAYS = Setting(
    "decays of the noise variance",
    (0.95, 0.97, 0.98, 0.99, 0.995, 0.999),
    "a grid around the 0.99 of figure 5.1; not given",
)


def with_initial(key: Array, initial: Array) -> fl.Simulation:
    return ch5.scenario(key, ch5.pgfl(ch5.MIXED.value), initial=initial, rounds=ch5.READ.value)


def with_decay(key: Array, decay: Array) -> fl.Simulation:
    return ch5.scenario(key, ch5.pgfl(ch5.MIXED.value), decay=decay, rounds=ch5.READ.value)


def study(effort: Effort) -> Studies:
    initials, decays = (effort.thin(grid.value) for grid in (INITIALS, DECAYS))
    label = "zCDP parameter φ of the first round"
    return {
        "phi": ch5.over("phi", {"initial": initials}, with_initial, effort, label),
        "zeta": ch5.over("zeta", {"decay": decays}, with_decay, effort, "decay ζ of the variance"),
    }


def plot(studies: Studies) -> Picture:
    titles = (f"ζ = {ch5.DECAY.value:g}", f"φ = {ch5.INITIAL.value:g} in the first round")
    drawing, (left, right) = picture.panels(titles, columns=2, sharey=True)
    plotting.trade_off(studies["phi"], "initial", ch5.METRIC, ax=left)
    left.set_xscale("log")
    plotting.trade_off(studies["zeta"], "decay", ch5.METRIC, ax=right)
    for ax in (left, right):
        picture.recolor(ax, {str(ax.lines[0].get_label()): ch5.LOOKS[ch5.PGFL_MIXED]})
    return picture.finish(
        drawing,
        f"PGFL (τ = {ch5.MIXED.value:g}) after {ch5.READ.value} iterations, 3 of 15 clients of a "
        "server a round",
    )


FIGURE = Figure(
    name="gauthier-5.4",
    title="Privacy against accuracy of PGFL",
    source="Gauthier 2024, figure 5.4; Gauthier et al. 2023 (PGFL), figures 6 and 7",
    caption="NMSD after 200 iterations. The thesis's caption has its panels the other way round "
    "than its text. The privacy is nominal: squared losses have no gradient bound. No "
    "theorem says what the noise costs PGFL.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "more-privacy-less-accuracy",
            "a smaller φ gives a higher NMSD",
            "section 5.4.1",
            ch5.neighbors("phi", "initial", rising=False),
            (0, INFINITE),
            "from each value of the grid to the next",
        ),
        Claim(
            "slower-decay-less-accuracy",
            "a ζ nearer to one gives a higher NMSD",
            "section 5.4.1 on figure 5.4",
            ch5.neighbors("zeta", "decay", rising=True),
            (0, INFINITE),
            "from each value of the grid to the next",
        ),
    ],
    settings=(*ch5.COMMON, ch5.SPREAD, ch5.MIXED, ch5.READ, INITIALS, DECAYS),
    tuning=ch5.tuning_table,
)
