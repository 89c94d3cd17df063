"""Rizk 2023, figure 2.5: the dissimilarity of the agents' minimizers (section 2.6.3)."""

import itertools
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER, MOST
from experiments.figure import Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import gap, samples, share
from experiments.rizk import chapter2 as ch2
from fljax import plotting, statistics
from fljax.algorithms import Algorithm

DRIFTS = Setting("xi", (0.297, 1.5, 4.94, 10.0), "section 2.6.3 on figure 2.5", given=True)
LARGER = Setting(
    "(c) xi", 200.0, "“increasing even more”, not given; the noise that FedAvg keeps exceeds w^o"
)
UNIT = Setting(
    "xi at the median noise variance of the other figures",
    2.175,
    "the mean over 100 data sets that are not plotted; xi is proportional to the noise's deviation",
)
FEATURES = Setting(
    "(d) spread s_u of the features",
    1.5,
    "not in the source: noise of the observations cannot make a squared loss diverge, features can",
)
ROUNDS = Setting("iterations", 600, "not given; twice what FedAvg takes to its steady state")
DIVERGING = Setting("(d) iterations", 300, "FedAvg has overflowed by then")
FEW = Setting("seeds", 50, "steady states are means over 200 iterations of each")

START = "where they start"
IS_FULL = "ISFedAvg, all agents' norms"
IS_SAMPLED = "ISFedAvg, norms of those drawn"
#: The methods of (d), by their names there.
UNLIKE = {ch2.FEDAVG: ch2.FEDAVG, IS_FULL: ch2.FULL, IS_SAMPLED: ch2.SAMPLED}
#: About the largest number of single precision.
OVERFLOW = 1e38


def variance(xi: float) -> float:
    """The median of the observations' noise that leads to a given ξ."""
    return ch2.NOISE.value * (xi / UNIT.value) ** 2


def drifting(key: Array, algorithm: Algorithm, xi: Array) -> fl.Simulation:
    """The scenario with the noise that leads to this ξ."""
    return ch2.scenario(key, algorithm, noise=variance(1.0) * xi**2)


def unlike_features(key: Array, algorithm: Algorithm) -> fl.Simulation:
    """The scenario with features of very different lengths."""
    return ch2.scenario(key, algorithm, feature_spread=FEATURES.value)


def study(effort: Effort) -> Studies:
    few = min(effort.seeds, FEW.value)
    xis = [*effort.thin(DRIFTS.value), LARGER.value]
    pair = ch2.fedavg_and_is()
    unlike = {
        ch2.FEDAVG: pair[ch2.FEDAVG],
        IS_FULL: ch2.isfedavg(rule="full"),
        IS_SAMPLED: ch2.isfedavg(rule="sampled"),
    }
    levels = ch2.study("a", pair, effort, ROUNDS.value, 10, few, drifting, xi=xis)
    theory = ch2.prediction(
        "a-predicted", pair, effort, seeds=few, build=drifting, extra=[ch2.XI], xi=xis
    )
    named = {"long_name": "ξ"}
    for result in (levels, theory):
        result["xi"].attrs = named
    return {
        "a": levels,
        "a-predicted": theory,
        "d": ch2.study("d", unlike, effort, DIVERGING.value, 5, few, unlike_features),
    }


# --------------------------------------------------------------------------- the claims


def moderate(studies: Studies) -> list[float]:
    """The source's four values."""
    return studies["a"]["xi"].values.tolist()[:-1]


def at(method: str, xi: float) -> dict[str, str | float]:
    return {"algorithm": method, "xi": xi}


def worsens(studies: Studies) -> dict[str, Estimate]:
    return {
        f"{method}, ξ = {more:g} above {less:g}": ch2.steady_gap(
            studies["a"], at(method, more), at(method, less)
        )
        for method in (ch2.FEDAVG, ch2.IS)
        for less, more in itertools.pairwise(moderate(studies))
    }


def better(studies: Studies) -> dict[str, Estimate]:
    return {
        f"ξ = {xi:g}": ch2.steady_gap(studies["a"], at(ch2.FEDAVG, xi), at(ch2.IS, xi))
        for xi in moderate(studies)
    }


def diverged(data: xr.Dataset, which: str | dict) -> np.ndarray:
    """``[S]``: whether a run overflowed, or ends farther off than a million times its start."""
    curve = data[ch2.METRIC].sel({"algorithm": which} if isinstance(which, str) else which)
    curve = curve.transpose("seed", "round").values
    return ~(curve[:, -1] < 1e6 * curve[:, 0])


def by_noise(studies: Studies) -> dict[str, Estimate]:
    """Runs that do as the source has it, at its larger ξ."""
    xi = studies["a"]["xi"].values.tolist()[-1]
    fedavg, ours = (diverged(studies["a"], at(name, xi)) for name in (ch2.FEDAVG, ch2.IS))
    return {f"{ch2.FEDAVG} diverges": share(fedavg), f"{ch2.IS} converges": share(~ours)}


def by_features(studies: Studies) -> dict[str, Estimate]:
    result = {f"{ch2.FEDAVG} diverges": share(diverged(studies["d"], ch2.FEDAVG))}
    for name in (IS_FULL, IS_SAMPLED):
        result[f"{name}, converges"] = share(~diverged(studies["d"], name))
    return result


def by_levels(studies: Studies) -> dict[str, Estimate]:
    """Which side of the start the steady states are on."""
    xi = studies["a"]["xi"].values.tolist()[-1]
    fedavg, ours = (
        samples(ch2.steady(studies["a"]), at(name, xi), ch2.METRIC) for name in (ch2.FEDAVG, ch2.IS)
    )
    start = samples(studies["a"], at(ch2.FEDAVG, moderate(studies)[0]), ch2.METRIC)[:, 0]
    return {
        f"{ch2.FEDAVG} above {START}": gap(fedavg, start),
        f"{START} above {ch2.IS}": gap(start, ours),
    }


def linear(studies: Studies) -> str:
    xi = studies["a"]["xi"].values.tolist()[-1]
    names = (ch2.FEDAVG, ch2.IS)
    levels = (f"{name} {ch2.level(studies['a'], at(name, xi)):.1f} dB" for name in names)
    return (
        "For a squared loss the rounds are an affine recursion. The observations' noise is in what "
        "is added, not in what multiplies: it makes a steady state as high as one likes "
        f"(ξ = {xi:g}: {', '.join(levels)}), and never a divergence."
    )


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = (
        *(ch2.FEDAVG, ch2.IS),
        f"ξ = {LARGER.value:g}",
        f"features of spread $s_u$ = {FEATURES.value:g}; medians, quartiles",
    )
    drawing, axes = picture.panels(titles, columns=2, height=1.9)
    theory = studies["a-predicted"]
    xis = moderate(studies)
    for ax, name in zip(axes, (ch2.FEDAVG, ch2.IS), strict=False):
        plotting.learning_curves(studies["a"].sel(algorithm=name, xi=xis), ch2.METRIC, ax=ax)
        for xi in xis:
            ax.axhline(ch2.predicted_level(theory, at(name, xi)), **picture.THIN)
        ax.set_ylim(-75, 8)
    larger = studies["a"].isel(xi=-1)
    ch2.draw(axes[2], larger)
    for name in (ch2.FEDAVG, ch2.IS):
        level = ch2.predicted_level(theory, at(name, LARGER.value))
        picture.theory(axes[2], level, f"{name}, theory")
    draw_quartiles(axes[3], studies["d"])
    return picture.finish(drawing, "how unlike the agents' minimizers are; thin: theory")


def draw_quartiles(ax: Axes, data: xr.Dataset) -> None:
    """Medians, and the middle half of the runs; what overflows is at the top."""
    rounds = data["round"].values
    for name, style in UNLIKE.items():
        runs = data[ch2.METRIC].sel(algorithm=name).transpose("seed", "round").values
        runs = np.where(runs < OVERFLOW, runs, OVERFLOW)  # NaN too
        low, middle, high = statistics.decibels(np.percentile(runs, (25, 50, 75), axis=0))
        look = ch2.LOOKS[style]
        ax.plot(rounds, middle, label=name, markevery=8, **look)
        ax.fill_between(rounds, low, high, color=look["color"], alpha=0.2, linewidth=0)
    ax.set_xlabel("iteration")
    ax.set_ylabel("mean-square deviation [dB]")


def table(studies: Studies) -> list[dict[str, Any]]:
    """ξ as it was meant and as it is; quantiles of the runs."""
    result = studies["a-predicted"][ch2.DRIFT]
    measured = [
        {"xi": float(xi), "measured": float(result.sel(xi=xi).mean())} for xi in result["xi"].values
    ]
    return measured + ch2.quantiles("a", "d")(studies)


FIGURE = Figure(
    "rizk-2.5",
    "How unlike the agents are",
    "Rizk 2023, figure 2.5, section 2.6.3",
    "(a), (b) the source's four ξ, by the observations' noise. (c) a larger one: levels rise, "
    "nothing diverges. (d) is ours: with features of very unlike lengths FedAvg does diverge "
    "where importance sampling by current gradients does not, but for a few runs, which carry its "
    "mean; so it shows medians and quartiles, and what overflows at the top.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "worsens-with-xi",
            "as ξ increases, the performance of both algorithms worsens",
            "section 2.6.3 on figure 2.5",
            worsens,
            *BETTER.db.when(ch2.RESTING),
        ),
        Claim(
            "always-better",
            "ISFedAvg always does better than FedAvg",
            "section 2.6.3 on figure 2.5",
            better,
            *BETTER.db.when(ch2.RESTING),
        ),
        Claim(
            "fedavg-diverges-first",
            "there is a range of ξ for which FedAvg diverges while ISFedAvg converges",
            "section 2.6.3 on figure 2.5",
            by_noise,
            *MOST.when("at the larger ξ"),
            note=linear,
        ),
        Claim(
            "fedavg-diverges-first-by-level",
            "there is a range of ξ for which FedAvg diverges while ISFedAvg converges",
            "section 2.6.3 on figure 2.5",
            by_levels,
            *BETTER.db.when(ch2.RESTING),
            condition="to diverge is to end farther from the minimizer than where it starts with "
            "the least ξ",
        ),
        Claim(
            "fedavg-diverges-first-by-features",
            "there is a range of ξ for which FedAvg diverges while ISFedAvg converges",
            "section 2.6.3 on figure 2.5",
            by_features,
            *MOST,
            condition="agents are unlike in their features, not in their noise alone, and ISFedAvg "
            "takes the probabilities of (2.50)-(2.51) or (2.53)-(2.54)",
        ),
    ],
    settings=(*ch2.COMMON, ch2.DRAWN, DRIFTS, LARGER, UNIT, FEATURES, ROUNDS, DIVERGING, FEW),
    table=table,
)
