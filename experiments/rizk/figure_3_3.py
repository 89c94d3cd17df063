"""Rizk 2023, figure 3.3: noise of several variances between servers (section 3.5.1)."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import measures, picture
from experiments.figure import (
    INFINITE,
    Claim,
    Effort,
    Estimate,
    Figure,
    Measure,
    Setting,
    Studies,
)
from experiments.measures import samples
from experiments.rizk import chapter3 as ch3
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, NONE, RANDOM
from fljax import plotting, statistics

VARIANCES = Setting(
    "variances of the noise",
    (0.001, 0.01, 0.1, 1.0, 2.0, 10.0),
    "section 3.5.1 on figure 3.3",
    given=True,
)
ROUNDS = Setting("iterations", 200, "not given; all curves are flat after 60")
EVERY = 2
SCHEMES = (NONE, RANDOM, HOMOMORPHIC)
NOISY = (RANDOM, HOMOMORPHIC)


def study(effort: Effort) -> Studies:
    variances, step = VARIANCES.value, ch3.STEP.value
    results = ch3.study(
        "study",
        effort,
        variances=variances,
        grid={"step_size": [step]},
        rounds=ROUNDS.value,
        record_every=EVERY,
    ).squeeze("step_size", drop=True)
    problem, servers = ch3.world()
    assert servers.graph is not None
    over = np.asarray(servers.graph.mixing("metropolis").matrix())
    optimum = np.asarray(fl.problems.optimum(problem))
    theory = ch3.predicted(SCHEMES, variance=variances, step_size=[step])
    return {
        "a": net.curves(results).assign_attrs(start=float(np.sum(optimum**2))),
        "recovered": net.recovered(results.sel(variance=[ch3.VARIANCE.value]), over, optimum),
        "theory": theory.squeeze("step_size", drop=True),
    }


def plot(studies: Studies) -> Picture:
    data = studies["a"]
    titles = ("centroid, random", "centroid, homomorphic", "steady state of the centroid")
    titles += ("models, random", "models, homomorphic", "steady state of the models")
    titles += ("consensus at the end",)
    drawing, axes = picture.panels(titles)
    start = float(statistics.decibels(data.attrs["start"]))
    for row, metric in enumerate((net.CENTROID, net.INDIVIDUAL)):
        hidden = "_" * row  # the curves below are called as those above
        levels = {v: f"{hidden}σ² = {v:g}" for v in data["variance"].values}
        for ax, scheme in zip(axes[3 * row :], NOISY, strict=False):
            part = data.sel(scheme=scheme, drop=True)
            plotting.learning_curves(part, metric, "variance", ax, labels=levels, legend=not row)
            picture.fade(ax)
        shared = [ax.get_ylim() for ax in axes[3 * row : 3 * row + 2]]
        for ax in axes[3 * row : 3 * row + 2]:
            ax.set_ylim(min(shared)[0], max(high for _, high in shared))
            picture.theory(ax, start, f"{hidden}start, w = 0")
        net.draw_levels(axes[3 * row + 2], data, studies["theory"], metric, "variance")
    last = studies["recovered"].squeeze("variance", drop=True)
    plotting.trade_off(last, "stage", net.RECOVERED, "scheme", axes[-1])
    heading = f"GFL, μ = {ch3.STEP.value:g}"
    return picture.finish(drawing, heading)


def from_start(scheme: str) -> Measure:
    """How far the centroid with the most noise is above the model that training starts from."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = net.late(studies["a"])
        most = float(data["variance"].max())
        start = np.full(data.sizes["seed"], studies["a"].attrs["start"])
        case = samples(data, {"scheme": scheme, "variance": most}, net.CENTROID)
        return {f"{scheme}, variance {most:g}": measures.gap(case, start)}

    return measure


def diverged(studies: Studies) -> dict[str, Estimate]:
    """The share of runs that diverged, per cent."""
    runs = studies["a"]["diverged"].sel(scheme=list(NOISY)) > 0
    return {"all runs with noise": Estimate.exact(100 * float(runs.mean()), "%")}


def back(studies: Studies) -> xr.Dataset:
    """The individual MSD of each scheme after the consensus at the end."""
    return studies["recovered"].isel(stage=-1).sel(variance=ch3.VARIANCE.value)


def recovery(*pairs: tuple[str, str]) -> Measure:
    """How far schemes are apart after the consensus at the end."""
    return lambda studies: {
        name: net.gap(back(studies), *pair, net.RECOVERED)
        for name, pair in net.pairs(*pairs).items()
    }


def significance(metric: str, over: str, under: str) -> dict[str, tuple[dict, dict]]:
    return {
        f"variance {v:g}": ({"scheme": over, "variance": v}, {"scheme": under, "variance": v})
        for v in VARIANCES.value
    }


def where_it_turns(studies: Studies) -> str:
    """Why homomorphic noise is the larger one in single models here."""
    level = studies["theory"][net.INDIVIDUAL].sel(variance=ch3.VARIANCE.value)
    apart = float(statistics.decibels(level.sel(scheme=HOMOMORPHIC) / level.sel(scheme=RANDOM)))
    return (
        f"The opposite holds, as theory says (homomorphic {apart:+.1f} dB): a node that takes its "
        "own draw off has a noise of variance (1 - a_pp)^2 + sum a_pm^2 per unit, and one that "
        "hears independent draws of sum a_pm^2 alone. Independent noise is worse where it "
        "has time to add up in the centroid, for small mu lambda(H): figure 4.4 shows where."
    )


FIGURE = Figure(
    name="rizk-3.3",
    title="Noise of several variances between servers",
    source="Rizk 2023, figure 3.3",
    caption="The centroid above (a of the source), the models of the servers below (b). “Breaks "
    "down” is not meant to the letter: added noise makes no linear recursion diverge; an algorithm "
    "is taken to have broken down where it ends farther from the optimum than the zero model that "
    "it started from. The last panel goes on without noise and without data.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "random-grows",
            "the centroid's MSD under random perturbations increases with the variance",
            "section 3.5.1 on figure 3.3",
            net.gaps("a", net.CENTROID, net.rising("variance", VARIANCES.value, scheme=RANDOM)),
            (0, INFINITE),
        ),
        Claim(
            "random-more-sensitive",
            "it increases significantly as opposed to that under homomorphic perturbations",
            "section 3.5.1 on figure 3.3",
            net.gaps("a", net.CENTROID, significance(net.CENTROID, RANDOM, HOMOMORPHIC)),
            (net.SIGNIFICANTLY, INFINITE),
            net.SIGNIFICANT,
        ),
        Claim(
            "random-breaks-down",
            "for some variance the algorithm with random perturbations breaks down",
            "section 3.5.1 on figure 3.3",
            from_start(RANDOM),
            (0, INFINITE),
            "“breaks down”: ends above the zero model; at the largest variance",
        ),
        Claim(
            "homomorphic-breaks-down-later",
            "homomorphic perturbations delay that to a much larger variance",
            "section 3.5.1 on figure 3.3",
            from_start(HOMOMORPHIC),
            (-INFINITE, 0),
            "it has not broken down at the largest variance",
        ),
        Claim(
            "nothing-diverges",
            "no variance of the noise makes a run diverge",
            "ours; section 3.5.1 on figure 3.3 may be read otherwise",
            diverged,
            (0, 0),
            construction="the recursion is affine: noise that is added does not act on its growth",
        ),
        Claim(
            "models-grow",
            "the individual MSD increases with the variance under both",
            "section 3.5.1 on figure 3.3",
            net.gaps(
                "a",
                net.INDIVIDUAL,
                net.rising("variance", VARIANCES.value, scheme=RANDOM)
                | net.rising("variance", VARIANCES.value, scheme=HOMOMORPHIC),
            ),
            (0, INFINITE),
        ),
        Claim(
            "homomorphic-better-models",
            "for a fixed variance homomorphic perturbations have the better individual MSD",
            "section 3.5.1",
            net.gaps("a", net.INDIVIDUAL, significance(net.INDIVIDUAL, RANDOM, HOMOMORPHIC)),
            (0, INFINITE),
            note=where_it_turns,
        ),
        Claim(
            "disagreement-grows",
            "the network's disagreement increases with the variance under both",
            "section 3.5.1",
            net.gaps(
                "a",
                net.DISAGREEMENT,
                net.rising("variance", VARIANCES.value, scheme=RANDOM)
                | net.rising("variance", VARIANCES.value, scheme=HOMOMORPHIC),
            ),
            (0, INFINITE),
        ),
        Claim(
            "consensus-recovers",
            "a consensus at the end retrieves the model that homomorphic perturbations distributed",
            "section 3.5.1",
            recovery((HOMOMORPHIC, NONE)),
            net.CLOSE,
            net.NEAR,
        ),
        Claim(
            "random-is-lost",
            "after random perturbations reconstruction is not possible",
            "section 3.5.1",
            recovery((RANDOM, NONE)),
            (net.SIGNIFICANTLY, INFINITE),
            net.SIGNIFICANT,
        ),
    ],
    settings=(*ch3.COMMON, ch3.STEP, VARIANCES, ROUNDS, net.CONSENSUS),
)
