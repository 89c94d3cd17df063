"""Gauthier 2024, figure 4.5: methods of reducing communication (lines 1150-1156; P4 figure 5)."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure as Picture

from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter4 as ch4
from experiments.gauthier.figure_4_3 import PSO, PSO_FED
from fljax import plotting
from fljax.algorithms import SignSGD

HALF = Setting("Online-Fed's fraction of clients", 0.5, "tailored to 50 %, line 1152", given=True)
SIGN = Setting(
    "SignSGD", "deterministic signs, majority vote", "the rule is not given; its reference's server"
)
ONLINE_FED, SIGN_SGD = "Online-Fed (50 %)", "SignSGD"


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
    return {"a": ch4.study("study", ch4.DEFAULT, methods, effort), "tuning": tuning}


def plot(studies: Studies) -> Picture:
    data = studies["a"].sel(
        algorithm=[a for a in studies["a"]["algorithm"].values if a != ch4.FEDSGD]
    )
    picture, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True)
    plotting.learning_curves(data, ch4.METRIC, ax=left)
    left.set_title("(a) against iterations")
    plotting.learning_curves(data, ch4.METRIC, x="bits", ax=right, legend=False)
    right.set_title("(b) against bits in both directions (our addition)")
    picture.suptitle("Reduction of communication in the asynchronous environment", fontsize=10)
    return picture


FIGURE = Figure(
    name="gauthier-4.5",
    title="Methods of reducing communication",
    source="Gauthier 2024, figure 4.5 (P4, figure 5)",
    caption="SignSGD sends one bit a parameter up and whole models down. Step sizes are matched "
    "to PAO-Fed-U1's early learning curve.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "scheduling-not-desirable",
            "PSO-Fed, partial sharing with scheduling, is worse than PAO-Fed-C2",
            "line 1156",
            ch4.gaps("a", (PSO_FED, ch4.C2)),
            (0, INFINITE),
        ),
        Claim(
            "sign-beats-online-fed",
            "SignSGD is significantly better than Online-Fed at a similar reduction",
            "line 1156",
            ch4.gaps("a", (ONLINE_FED, SIGN_SGD)),
            (ch4.SIGNIFICANTLY, INFINITE),
            ch4.SIGNIFICANT,
            note="It is better beyond doubt, by just about the 1 dB that “significantly” is taken "
            "to mean here.",
        ),
        Claim(
            "sign-below-pao-fed",
            "SignSGD does not reach the accuracy of PAO-Fed-C2",
            "line 1156",
            ch4.gaps("a", (SIGN_SGD, ch4.C2)),
            (0, INFINITE),
            note="The source gives neither the kind of SignSGD nor its step. A majority vote with "
            "the step of the early match ends slightly below PAO-Fed-C2.",
        ),
        Claim(
            "sign-load",
            "SignSGD saves less than 50 % of the communication, all on the way up",
            "line 1152",
            ch4.saving("a", SIGN_SGD, ch4.FEDSGD, {"bits": "both ways"}),
            (45, 50),
        ),
    ],
    settings=(*ch4.COMMON, PSO, HALF, SIGN),
    tuning=ch4.tuning_table,
)
