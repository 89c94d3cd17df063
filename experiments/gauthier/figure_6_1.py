"""Gauthier 2024, figure 6.1: networked learning with a fixed tau (lines 1732-1742; P7 figure 1)."""

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Studies
from experiments.gauthier import chapter6 as ch6
from fljax import plotting
from fljax.algorithms import NetworkedADMM

NFL = "NFL"
ALONE, LEAST, MORE, MUCH, MOST = (ch6.fixed(tau)[0] for tau in ch6.FIXED.value)


def study(effort: Effort) -> Studies:
    methods = {NFL: NetworkedADMM(ch6.PENALTY.value)}
    methods |= dict(ch6.fixed(tau) for tau in ch6.FIXED.value)
    return {"a": ch6.study("study", methods, effort, (ch6.NMSD, ch6.PRINTED, ch6.JOINED))}


def plot(studies: Studies) -> Picture:
    titles = ("NMSD", "(6.15) as printed", "clients with a neighbour of their cluster")
    drawing, axes = picture.panels(titles)
    metrics = (ch6.NMSD, ch6.PRINTED, ch6.JOINED.name)
    for ax, metric in zip(axes, metrics, strict=True):
        plotting.learning_curves(studies["a"], metric, ax=ax)
    return picture.finish(drawing)


FIGURE = Figure(
    name="gauthier-6.1",
    title="Networked personalised learning with a fixed inter-cluster parameter",
    source="Gauthier 2024, figure 6.1 (P7, figure 1)",
    caption="The metric (6.15) is called normalised but divides by a norm that is not squared; "
    "panel (a) has the squared norm, panel (b) the printed one, and claims are judged in both. "
    "About one client in ten has no neighbour of its cluster: without inter-cluster learning it is "
    "alone with fewer samples than parameters.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "one-model-is-not-enough",
            "NFL, with one model for all, is less accurate than every NPFL",
            "line 1742",
            ch6.gaps("a", *((NFL, other) for other in (ALONE, LEAST, MORE, MUCH, MOST))),
            (0, INFINITE),
            "“not satisfactory”: above each of the others",
            note="Above all but τ = 0. The 12 % of clients without a neighbour of their cluster "
            "are then alone with at most 35 samples for 60 parameters, and carry three quarters of "
            "the error; one model for all at least reaches them.",
        ),
        Claim(
            "inter-cluster-learning-helps",
            "NPFL with τ = 0.05 improves on τ = 0",
            "line 1742",
            ch6.gaps("a", (ALONE, LEAST)),
            (0, INFINITE),
        ),
        Claim(
            "over-use-degrades",
            "the steady-state accuracy decreases from τ = 0.05 to 0.1, 0.2 and 0.4",
            "line 1742",
            ch6.gaps("a", (MORE, LEAST), (MUCH, MORE), (MOST, MUCH)),
            (0, INFINITE),
        ),
        Claim(
            "one-model-is-not-enough-among-joined",
            "NFL is less accurate than every NPFL for clients with a neighbour of their cluster",
            "line 1742",
            ch6.gaps(
                "a",
                *((NFL, other) for other in (ALONE, LEAST, MORE, MUCH, MOST)),
                metrics=[ch6.JOINED.name],
            ),
            (0, INFINITE),
            condition="the source does not say whether its network joins all clients of a cluster",
            note="Even where a cluster's clients are joined, some parts of it are small.",
        ),
    ],
    settings=(*ch6.COMMON, ch6.FIXED),
)
