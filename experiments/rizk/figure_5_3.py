"""Rizk 2023, section 5.2: sampling of neighbors in a decentralized network."""

import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import conventions as words
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
from experiments.rizk import chapter5 as ch5
from experiments.rizk import data
from experiments.rizk import network as net
from fljax import plotting, statistics
from fljax._core.module import replace
from fljax.algorithms import ATC, Algorithm, SampledDiffusion
from fljax.problems.batches import Uniform
from fljax.theory import multiagent as theory

PEERS = Setting("peers P", 12, "few, of whom the exact recursion takes seconds")
DEGREE = Setting("network", 6, "neighbors of each, random and regular; Metropolis weights")
SPREADS = Setting(
    "spreads of the noise's deviations",
    (0.0, 1.0, 1.7),
    "logarithmic, as in chapter 2: alike, and up to what (2.23) predicts the source's gain with",
)
STEP = Setting("step size mu", 0.02, "as in rizk-5.1")
COUNTS = Setting("neighbors drawn L", (1, 4), "of six; with repetition")
ROUNDS = Setting("iterations", 1500, "the last half at rest")
FLOOR = Setting(
    "least probability of what a peer estimates, of a weight",
    1.0,
    "so that what it makes of a draw is between itself and its neighbor; below, distances that "
    "were small once make it diverge",
)
TARGET = Setting(
    "error of the messages needed", 2.0, "times where uniform draws rest: all come there"
)

ALL = "all heard"
UNIFORM = "uniform"
HEARD = "importance, as heard"
BEST = "importance, best"
#: Methods with known moments; importance "as heard" has probabilities that depend on the run.
EXACT = [ALL, UNIFORM, BEST]


@net.drawn_once
def graph() -> fl.graphs.Graph:
    return fl.graphs.k_regular(fl.random_key(3), PEERS.value, DEGREE.value)


def problem(spread: Array | float) -> fl.problems.Problem:
    """The same data with a given dissimilarity of agents' noise."""
    return data.regression(
        fl.random_key(4),
        PEERS.value,
        ch5.SAMPLES.value,
        ch5.DIM.value,
        ch5.RHO.value,
        eigenvalues=ch5.EIGENVALUES.value,
        noise=ch5.NOISE.value,
        noise_spread=spread,
        common=True,
    )


def strategies(spread: float, count: int) -> dict[str, Algorithm]:
    """By method, of known data: the best probabilities follow from these."""
    settings = {"step_size": STEP.value, "batches": Uniform(1)}
    uniform = SampledDiffusion(neighbors_per_round=count, **settings)
    base = fl.Simulation(problem(spread), uniform, graph())
    return {
        ALL: ATC(**settings),
        UNIFORM: uniform,
        HEARD: SampledDiffusion(
            neighbors_per_round=count, rule="importance", floor=FLOOR.value, **settings
        ),
        BEST: replace(uniform, probability=theory.neighbor_importance(base)),
    }


def scenario(key: Array, algorithm: Algorithm, spread: Array | float) -> fl.Simulation:
    """Peers that sample their neighbors."""
    return fl.Simulation(problem(spread), algorithm, graph(), metrics=[ch5.METRIC])


def study(effort: Effort) -> Studies:
    spreads = effort.thin(SPREADS.value, 2)
    counts = effort.thin(COUNTS.value, 2)
    most = SPREADS.value[-1]
    points = {("spread", spread): (spread, counts[0]) for spread in spreads}
    points |= {("count", count): (most, count) for count in counts[1:]}
    runs = {}
    levels = {}
    studies = {}
    for (axis, value), (spread, count) in points.items():
        methods = strategies(spread, count)
        result = effort.sweep(
            f"{axis}-{value:g}",
            scenario,
            rounds=ROUNDS.value,
            seeds=effort.seeds,
            grid={"algorithm": methods, "spread": [spread]},
            record_every=10,
        ).squeeze("spread", drop=True)
        if (axis, value) == ("spread", most):
            studies["curves"] = result
        runs[axis, value] = net.late(result)[[ch5.METRIC, "diverged"]]
        exact = [
            float(theory.steady_state(scenario(fl.random_key(0), methods[name], spread)).individual)
            for name in EXACT
        ]
        levels[axis, value] = xr.Dataset({ch5.METRIC: ("algorithm", exact)}, {"algorithm": EXACT})
    for axis, values in (("spread", spreads), ("count", counts)):
        # One draw of the most unlike is on both axes.
        at = [("spread", most) if (axis, v) == ("count", counts[0]) else (axis, v) for v in values]
        for name, parts in (("", runs), ("-theory", levels)):
            joined = xr.concat([parts[point] for point in at], axis, combine_attrs="override")
            studies[f"{axis}{name}"] = joined.assign_coords({axis: values})
    return studies


# --------------------------------------------------------------------------- the claims


def above(over: str, under: str, axis: str) -> Measure:
    """How far one method's steady states are above another's, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[axis]
        return {
            f"{over} above {under}, {axis} {value:g}": measures.gap(
                *(samples(data, {"algorithm": m, axis: value}, ch5.METRIC) for m in (over, under))
            )
            for value in data[axis].values
        }

    return measure


def agreement(studies: Studies) -> dict[str, Estimate]:
    """How far runs rest above what theory says."""
    result = {}
    for axis in ("spread", "count"):
        level = studies[f"{axis}-theory"][ch5.METRIC]
        for value in level[axis].values:
            for name in EXACT:
                where = {"algorithm": name, axis: value}
                runs = samples(studies[axis], where, ch5.METRIC)
                exact = np.full(len(runs), float(level.sel(where)))
                result[f"{name}, {axis} {value:g}"] = measures.gap(runs, exact)
    return result


def needed(studies: Studies) -> dict[str, Estimate]:
    """The messages to a target with all neighbors, over those with sampled neighbors."""
    data = studies["curves"]
    steady = studies["spread"].isel(spread=-1)
    target = TARGET.value * float(steady[ch5.METRIC].sel(algorithm=UNIFORM).mean("seed"))

    def until(name: str) -> np.ndarray:
        curve = data[ch5.METRIC].sel(algorithm=name).mean("seed").values
        sent = data["messages"].sel(algorithm=name).mean("seed").values
        return sent[np.argmax(curve < target)]

    return {
        f"{ALL} over {name}": Estimate.exact(float(until(ALL) / until(name)), "times")
        for name in (UNIFORM, HEARD, BEST)
    }


# --------------------------------------------------------------------------- the picture


def _levels(ax: Axes, studies: Studies, axis: str) -> None:
    """Steady states, measured and theoretical."""
    data = studies[axis]
    level = studies[f"{axis}-theory"][ch5.METRIC]
    for index, name in enumerate(data["algorithm"].values):
        look = plotting.LOOKS[index]
        mean = statistics.decibels(data[ch5.METRIC].sel(algorithm=name).mean("seed").values)
        ax.plot(data[axis], mean, label=name, **look)
        if name in EXACT:
            exact = statistics.decibels(level.sel(algorithm=name).values)
            picture.predicted_curve(ax, level[axis].values, exact, "theory" if not index else "_")
    ax.set(ylabel="MSD [dB]")


def plot(studies: Studies) -> Picture:
    titles = ("by iteration", "by messages", "unlike noise, one drawn", "neighbors drawn")
    drawing, axes = picture.panels(titles, columns=2)
    for ax, x in zip(axes, ("round", "messages"), strict=False):
        plotting.learning_curves(studies["curves"], ch5.METRIC, "algorithm", ax, x=x)
        picture.fade(ax)
    _levels(axes[2], studies, "spread")
    axes[2].set_xlabel("spread of the noise's deviations")
    _levels(axes[3], studies, "count")
    axes[3].set_xlabel("neighbors drawn L")
    return picture.finish(drawing, f"{PEERS.value} peers of {DEGREE.value} neighbors")


FIGURE = Figure(
    name="rizk-5.3",
    title="Importance sampling of neighbors",
    source="Rizk 2023, section 5.2, its last question",
    caption="Diffusion whose peers draw, in every round, whom they hear (fljax.algorithms."
    "SampledDiffusion), reweighted so that the mean over draws is the combination of all. "
    "Probabilities are uniform, or in proportion to the weight and the distance at which a "
    "neighbor was heard last, or its mean square by theory. (a), (b): one draw, the most unlike "
    "noise; (d) likewise. Thin lines are exact moments. All curves ours.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "importance-improves",
            "importance sampling of neighbors improves performance, against uniform draws",
            "section 5.2",
            lambda studies: {
                case: estimate
                for axis in ("spread", "count")
                for case, estimate in above(UNIFORM, HEARD, axis)(studies).items()
            },
            *words.BETTER.db,
            condition="draws reweighted without bias; probabilities as peers know them",
        ),
        Claim(
            "importance-improves-at-best",
            "importance sampling of neighbors improves performance, against uniform draws",
            "section 5.2",
            above(UNIFORM, BEST, "spread"),
            *words.BETTER.db,
            condition="draws reweighted without bias; the best probabilities, by exact theory",
        ),
        Claim(
            "improves-significantly",
            "it does so significantly",
            "ours, on section 5.2",
            above(UNIFORM, BEST, "spread"),
            *words.SIGNIFICANTLY.db,
            ours=True,
            note=lambda studies: (
                "What draws add is proportional to the square of a sum of distances, which differ "
                "less than agents' noise: one end of each is the peer's own."
            ),
        ),
        Claim(
            "as-good-as-the-best",
            "what a peer heard last of its neighbors is enough to know whom to hear",
            "ours, on section 5.2",
            above(HEARD, BEST, "spread"),
            *words.SAME.db,
            ours=True,
        ),
        Claim(
            "fewer-messages",
            "to the same error hearing all neighbors takes more messages than hearing one",
            "section 5.2, on “large networks with limited resources”",
            needed,
            (1, INFINITE),
            f"to {TARGET.value:g} times where uniform draws rest",
            ours=True,
        ),
        Claim(
            "theory-of-draws",
            "peers that draw whom they hear rest where the exact recursion says",
            "ours, fljax.theory.multiagent",
            agreement,
            *words.SAME.db,
            ours=True,
        ),
    ],
    settings=(
        *(PEERS, DEGREE, ch5.SAMPLES, ch5.DIM, ch5.RHO, ch5.EIGENVALUES, ch5.NOISE, SPREADS),
        *(STEP, COUNTS, ROUNDS, FLOOR, TARGET),
    ),
    double=True,
    keep=["messages"],
)
