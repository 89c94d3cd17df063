"""Rizk 2023, figure 3.3: noise of several variances between servers (section 3.5.1)."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import measures, picture
from experiments.conventions import BETTER, CLOSE, SIGNIFICANTLY, SLIGHTLY
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
KEPT: dict[str, float] = dict(zip(net.KEPT, net.EDGES.value, strict=True))
open_models = net.open_parts("parts", "edge", KEPT)
all_draw = net.open_parts(
    "parts", "edge", {net.MUCH_KEPT: KEPT[net.MUCH_KEPT]}, {"own part too": net.OWN}
)


def study(effort: Effort) -> Studies:
    variances = VARIANCES.value
    step = ch3.STEP.value
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
    parts = net.predicted(
        ch3.on_edges,
        (RANDOM, net.OWN, HOMOMORPHIC),
        variance=[ch3.VARIANCE.value],
        step_size=[step],
        edge=net.EDGES.value,
    )
    return {
        "a": net.curves(results).assign_attrs(start=float(np.sum(optimum**2))),
        "recovered": net.recovered(results.sel(variance=[ch3.VARIANCE.value]), over, optimum),
        "theory": theory.squeeze("step_size", drop=True),
        "parts": parts.squeeze(["variance", "step_size"], drop=True),
    }


def plot(studies: Studies) -> Picture:
    data = studies["a"]
    titles = ("centroid, random", "centroid, homomorphic", "centroid, steady state")
    titles += ("models, random", "models, homomorphic", "models, steady state")
    titles += ("network disagreement", "models, by what is open", "consensus at the end")
    drawing, axes = picture.panels(titles)
    start = float(statistics.decibels(data.attrs["start"]))
    levels = {v: f"σ² = {v:g}" for v in data["variance"].values}
    for row, metric in enumerate((net.CENTROID, net.INDIVIDUAL)):
        pair = axes[3 * row : 3 * row + 2]
        for ax, scheme in zip(pair, NOISY, strict=True):
            part = data.sel(scheme=scheme, drop=True)
            plotting.learning_curves(part, metric, "variance", ax, labels=levels)
            picture.fade(ax)
            ax.axhline(start, label="start", **picture.THIN)
        low, high = (f(ax.get_ylim()[i] for ax in pair) for i, f in ((0, min), (1, max)))
        for ax in pair:
            ax.set_ylim(low, high)
        net.draw_levels(axes[3 * row + 2], data, metric, "variance", studies["theory"])
    net.draw_levels(axes[6], data.sel(scheme=list(NOISY)), net.DISAGREEMENT, "variance")
    net.draw_parts(axes[7], open_models(studies))
    last = studies["recovered"].squeeze("variance", drop=True)
    net.draw_levels(axes[8], last, net.RECOVERED, "stage")
    return picture.finish(drawing, f"GFL, μ = {ch3.STEP.value:g}; (h), (i): σ² = 0.1")


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


def at_each_variance(metric: str, over: str, under: str) -> Measure:
    """How far one scheme is above another at each variance."""
    return net.gaps(
        "a",
        metric,
        {
            f"variance {v:g}": ({"scheme": over, "variance": v}, {"scheme": under, "variance": v})
            for v in VARIANCES.value
        },
    )


WHO_DRAWS = (
    "In a round a node that takes its own draw g off has a noise of variance (1 - a_pp)^2 + sum "
    "a_pm^2 per unit. One that hears independent draws has sum a_pm^2 alone, or a_pp^2 more with a "
    "draw for its own part: which is the larger one where a_pp > 1/2. Independent noise adds up in "
    "the centroid besides, for small mu lambda(H): figure 4.4 shows where that decides."
)


FIGURE = Figure(
    name="rizk-3.3",
    title="Noise of several variances between servers",
    source="Rizk 2023, figure 3.3",
    caption="The centroid above (a of the source), the models of the servers below (b). “Breaks "
    "down” is not meant to the letter: added noise makes no linear recursion diverge; an algorithm "
    "is taken to have broken down where it ends farther from the optimum than the zero model that "
    "it started from. (h) has the four ways in which (3.8) and its weights can be read: whether a "
    "node draws for its own part, and how much of that it keeps; by theory, as the thin lines. (i) "
    "goes on from the end without noise and without data.",
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
            at_each_variance(net.CENTROID, RANDOM, HOMOMORPHIC),
            *SIGNIFICANTLY.db,
        ),
        Claim(
            "homomorphic-variance-is-free",
            "with homomorphic perturbations the variance can be increased, since its effect on the "
            "MSE is constant",
            "section 3.4, last paragraph",
            at_each_variance(net.CENTROID, HOMOMORPHIC, NONE),
            *CLOSE.db.when("to the MSD of the centroid without noise"),
            note=net.parts_that_hold(
                at_each_variance(net.CENTROID, HOMOMORPHIC, NONE),
                CLOSE.db.accept,
                "Its effect is proportional to the variance, as that of all noise on an affine "
                "recursion: it hides below the noise of gradients as long as it is small.",
            ),
            changed="New: a statement of the source on privacy that no claim was about.",
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
            "section 3.5.1 on figure 3.3 may be read otherwise",
            diverged,
            (0, 0),
            ours=True,
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
            open_models,
            *BETTER.db.when(f"whoever draws, whatever nodes keep; {net.EXACTLY}"),
            note=net.parts_that_hold(open_models, BETTER.db.accept, WHO_DRAWS),
            changed="Over what the source leaves open, with the part of it where the claim holds; "
            "before at one choice, where it does not hold at any variance.",
        ),
        Claim(
            "homomorphic-better-models-at-each-variance",
            "for a fixed variance homomorphic perturbations have the better individual MSD",
            "section 3.5.1",
            at_each_variance(net.INDIVIDUAL, RANDOM, HOMOMORPHIC),
            *BETTER.db,
            condition="nodes draw nothing for their own part and keep about a fourth of it",
            note=WHO_DRAWS,
            changed="What “homomorphic-better-models” judged before, now with its condition.",
        ),
        Claim(
            "homomorphic-better-models-where-all-draw",
            "for a fixed variance homomorphic perturbations have the better individual MSD",
            "section 3.5.1, (3.8) with m = p",
            all_draw,
            *BETTER.db.when(net.EXACTLY),
            condition="nodes draw for their own part too, and keep more than half of it",
            changed="New: the part of what is open in which it holds.",
        ),
        Claim(
            "better-models-not-by-much",
            "that improvement of the individual MSD does not seem significant",
            "section 3.5.1, “the improvement does not seem significant”",
            all_draw,
            *SLIGHTLY.db.when(net.EXACTLY),
            condition="nodes draw for their own part too, and keep more than half of it",
            note="The more a node keeps, the more a draw for its own part costs it; where it keeps "
            "half there is no difference, but for what adds up.",
            changed="New: where there is an improvement.",
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
            *CLOSE.db,
        ),
        Claim(
            "random-is-lost",
            "after random perturbations reconstruction is not possible",
            "section 3.5.1",
            recovery((RANDOM, NONE)),
            *SIGNIFICANTLY.db,
        ),
    ],
    settings=(*ch3.COMMON, ch3.STEP, VARIANCES, ROUNDS, net.CONSENSUS),
)
