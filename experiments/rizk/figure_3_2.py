"""Rizk 2023, figure 3.2: noise between the servers of a federation (section 3.5.1)."""

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import BETTER, CLOSE
from experiments.figure import Claim, Effort, Figure, Setting, Studies
from experiments.measures import samples
from experiments.rizk import chapter3 as ch3
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, NONE, RANDOM
from fljax import statistics

ROUNDS = Setting("iterations", 200, "not given; all curves are flat after 60")
EVERY = 2
SCHEMES = (NONE, RANDOM, HOMOMORPHIC)


def study(effort: Effort) -> Studies:
    variance = ch3.VARIANCE.value
    step = ch3.STEP.value
    results = ch3.study(
        "study",
        effort,
        variances=[variance],
        grid={"step_size": [step]},
        rounds=ROUNDS.value,
        record_every=EVERY,
    )
    theory = ch3.predicted(SCHEMES, ROUNDS.value, variance=[variance], step_size=[step])
    data, theory = (d.squeeze(["variance", "step_size"], drop=True) for d in (results, theory))
    return {"a": net.curves(data), "theory": theory.sel(round=data["round"])}


def plot(studies: Studies) -> Picture:
    data = studies["a"]
    theory = studies["theory"]
    titles = ("centroid", "models of the servers (ours)", "homomorphic above none")
    drawing, axes = picture.panels(titles)
    for ax, metric in zip(axes, (net.CENTROID, net.INDIVIDUAL), strict=False):
        net.draw_curves(ax, data, metric)
        net.draw_theory(ax, theory, metric)
    over, under = (samples(data, {"scheme": s}, net.CENTROID) for s in (HOMOMORPHIC, NONE))
    look = {name: net.LOOKS[HOMOMORPHIC][name] for name in ("color", "linestyle")}
    picture.difference(axes[2], data["round"].values, over, under, **look)
    level = theory[net.CENTROID]
    ratio = statistics.decibels((level.sel(scheme=HOMOMORPHIC) / level.sel(scheme=NONE)).values)
    picture.predicted_curve(axes[2], theory["round"].values, ratio, "_")
    low, high = CLOSE.db.accept
    axes[2].axhspan(low, high, color="#eeeeee", zorder=0, label="close: within 1 dB")
    axes[2].set(xlabel="iteration", ylabel="difference [dB]")
    heading = f"GFL, μ = {ch3.STEP.value:g}, σ² = {ch3.VARIANCE.value:g}"
    return picture.finish(drawing, heading)


FIGURE = Figure(
    name="rizk-3.2",
    title="Graph federated learning with noise between servers",
    source="Rizk 2023, figure 3.2",
    caption="Ten servers with 100 clients each; least squares with a covariance and a noise of "
    "each client's own. Thin lines are the exact mean-square deviations of theory "
    "(fljax.theory.multiagent.learning_curve). (b), not drawn in the source, shows where the "
    "homomorphic noise went: it cancels in the centroid, and each model keeps its own.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "random-is-worse",
            "with random perturbations the performance is lower than of the other two",
            "section 3.5.1 on figure 3.2",
            net.gaps("a", net.CENTROID, net.pairs((RANDOM, NONE), (RANDOM, HOMOMORPHIC))),
            *BETTER.db,
        ),
        Claim(
            "homomorphic-tracks",
            "with homomorphic perturbations it tracks that of the algorithm without",
            "section 3.5.1 on figure 3.2",
            net.gaps("a", net.CENTROID, net.pairs((HOMOMORPHIC, NONE))),
            *CLOSE.db,
            note=net.by_theory(net.CENTROID, HOMOMORPHIC, NONE),
        ),
        net.agreement(
            "a",
            {"centroid": net.CENTROID, "models": net.INDIVIDUAL},
            {scheme: {"scheme": scheme} for scheme in SCHEMES},
        ),
    ],
    settings=(*ch3.COMMON, ch3.STEP, ch3.VARIANCE, ROUNDS),
)
