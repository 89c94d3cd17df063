"""Gauthier 2024, figure 4.5: methods of reducing communication (section 4.4.5)."""

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter4 as ch4
from experiments.gauthier.figure_4_3 import PSO, PSO_FED
from fljax import plotting
from fljax.algorithms import SignSGD

HALF = Setting(
    "Online-Fed's fraction of clients", 0.5, "tailored to 50 %, section 4.4.5", given=True
)
SIGN = Setting(
    "SignSGD", "deterministic signs, majority vote", "the rule is not given; its reference's server"
)
ONLINE_FED = f"{ch4.ONLINE_FED} (50 %)"
SIGN_SGD = ch4.SIGN_SGD


def study(effort: Effort) -> Studies:
    tunings = [
        ch4.stepped(PSO_FED, ch4.pso(*PSO.value)),
        ch4.stepped(ONLINE_FED, ch4.online_fed(HALF.value)),
        ch4.stepped(SIGN_SGD, SignSGD, ch4.SIGN_STEPS),
        ch4.stepped(ch4.FEDSGD, ch4.online_fed(1.0)),
    ]
    tuning = ch4.tune("tuning", ch4.DEFAULT, tunings, effort)
    methods = {ch4.C2: ch4.pao("C2")}
    methods |= {t.method: t.build(ch4.chosen(tuning, t.method)) for t in tunings}
    curves = ch4.study("study", ch4.DEFAULT, methods, effort)
    return {"a": curves, "floor": ch4.floor(), "tuning": tuning}


def plot(studies: Studies) -> Picture:
    data = studies["a"].drop_sel(algorithm=ch4.FEDSGD)
    titles = ("against iterations", "against bits both ways (ours)", "distances in (a)")
    drawing, (left, middle, right) = picture.panels(titles)
    ch4.show_curves(data, left, studies["floor"])
    plotting.learning_curves(data, ch4.METRIC, x="bits", ax=middle)
    picture.recolor(middle, ch4.LOOKS)
    ch4.show_floor(studies["floor"], middle)
    ch4.show_distances(data, ch4.C2, right)
    right.set_ylim(-1, 2)
    return picture.finish(drawing, "Reduction of communication in the asynchronous environment")


def how_much_better(studies: Studies) -> str:
    return (
        f"It is better by {ch4.gap(studies['a'], ONLINE_FED, SIGN_SGD)}; “significantly” is "
        f"{SIGNIFICANTLY.db.accept[0]:g} dB and more."
    )


FIGURE = Figure(
    name="gauthier-4.5",
    title="Methods of reducing communication",
    source="Gauthier 2024, figure 4.5; Gauthier et al. 2023 (PAO-Fed), figure 5",
    caption="SignSGD sends one bit a parameter up and whole models down. Step sizes are matched "
    "to PAO-Fed-U1's early learning curve. (c) has the curves of (a) as distances from "
    "PAO-Fed-C2's. Dotted: the error of least squares on the features.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "scheduling-not-desirable",
            "PSO-Fed, partial sharing with scheduling, is worse than PAO-Fed-C2",
            "section 4.4.5 on figure 4.5",
            ch4.gaps("a", (PSO_FED, ch4.C2)),
            (0, INFINITE),
        ),
        Claim(
            "sign-beats-online-fed",
            "SignSGD is significantly better than Online-Fed at a similar reduction",
            "section 4.4.5 on figure 4.5",
            ch4.gaps("a", (ONLINE_FED, SIGN_SGD)),
            *SIGNIFICANTLY.db,
            note=how_much_better,
        ),
        Claim(
            "sign-below-pao-fed",
            "SignSGD does not reach the accuracy of PAO-Fed-C2",
            "section 4.4.5 on figure 4.5",
            ch4.gaps("a", (SIGN_SGD, ch4.C2)),
            (0, INFINITE),
            note="The source gives neither the kind of SignSGD nor its step. A majority vote with "
            "the step of the early match ends no higher than PAO-Fed-C2.",
        ),
        Claim(
            "sign-load",
            "SignSGD saves less than 50 % of the communication, all on the way up",
            "section 4.4.5",
            ch4.saving("a", SIGN_SGD, ch4.FEDSGD, {"bits": "both ways"}),
            (45, 50),
            construction="one bit in the place of 32 on the way up, whole models on the way down",
        ),
    ],
    settings=(*ch4.COMMON, *ch4.LEAST_SQUARES, PSO, HALF, SIGN),
    tuning=ch4.tuning_table,
    keep=("bits",),
)
