"""Rizk 2023, figure 2.1: federated averaging with importance sampling (section 2.6.1)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER, CLOSE, LITTLE, SAME
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import curve_gap, estimate, first_part, gap, last_part, samples, two
from experiments.rizk import chapter2 as ch2
from fljax import plotting, statistics
from fljax.algorithms import Algorithm
from fljax.metrics.definitions import Metric, Snapshot

SPREADS = Setting(
    "(b) spreads s_v of the noise", (0.0, 0.5, 1.0, ch2.SPREAD.value, 2.0), "from like agents on"
)
FEATURES = Setting(
    "(b) spreads s_u of the features",
    (0.0, 0.5),
    "beyond, single samples are so long that a step of 0.01 is not stable",
)
SHORT = Setting("(b) iterations", 750, "FedAvg and true probabilities are at rest after 300")
LONG = Setting("(c) iterations", 3000, "probabilities of samples are still converging")
FEW = Setting("(b), (c) seeds", 20, "of smooth curves, and of ratios paired by seed")
EARLY = Setting("convergence", "first tenth", "of the iterations, in which all fall")
CLAIMED = 13.1

AGENTS = "agents"
OWN = "samples"


def _distances(now: Snapshot) -> tuple[Array, Array]:
    """Squared distances of the probabilities from (2.46)-(2.48), over that of uniform ones."""
    best = ch2.isfedavg().init(now.problem, None)
    result = []
    for name in ("clients", "samples"):
        ours, true = (jnp.atleast_2d(getattr(state, name)) for state in (now.state, best))
        even = jnp.where(
            true > 0, 1 / jnp.sum(true > 0, axis=1, keepdims=True, dtype=true.dtype), 0
        )
        result.append(jnp.sum((ours - true) ** 2) / jnp.sum((even - true) ** 2))
    return result[0], result[1]


DISTANCES = [
    Metric(
        AGENTS,
        lambda now: _distances(now)[0],
        "squared distance from the true probabilities",
        decibel=True,
    ),
    Metric(
        OWN,
        lambda now: _distances(now)[1],
        "squared distance from the true probabilities",
        decibel=True,
    ),
]


def watched(key: Array, algorithm: Algorithm) -> fl.Simulation:
    """The scenario, with metrics of the probabilities."""
    return ch2.scenario(key, algorithm, metrics=DISTANCES)


def study(effort: Effort) -> Studies:
    methods = {ch2.FEDAVG: ch2.fedavg()}
    methods |= {name: ch2.isfedavg(rule=rule) for name, rule in ch2.RULES.items()}
    pair = {name: methods[name] for name in (ch2.FEDAVG, ch2.TRUE)}
    few = min(effort.seeds, FEW.value)
    range_: dict[str, Any] = {
        "noise_spread": effort.thin(SPREADS.value),
        "feature_spread": effort.thin(FEATURES.value),
    }
    return {
        "a": ch2.study("a", methods, effort),
        "a-predicted": ch2.prediction("a-predicted", pair, effort),
        "b": ch2.study("b", pair, effort, SHORT.value, 15, few, **range_),
        "b-predicted": ch2.prediction("b-predicted", pair, effort, seeds=few, **range_),
        "c": ch2.study(
            "c",
            {ch2.SAMPLED: methods[ch2.SAMPLED]},
            effort,
            LONG.value,
            50,
            few,
            build=watched,
        ),
    }


# --------------------------------------------------------------------------- the claims

APPROXIMATE = (ch2.FULL, ch2.SAMPLED)
early = first_part(10)


def below_fedavg(studies: Studies) -> dict[str, Estimate]:
    pairs = [(ch2.FEDAVG, name) for name in ch2.RULES]
    return {f"{b}": ch2.steady_gap(studies["a"], a, b) for a, b in pairs}


def least_gain(studies: Studies) -> dict[str, Estimate]:
    """The gain at the spreads where it is least."""
    gains = {name: ch2.steady_gap(studies["b"], *pair) for name, pair in spreads(studies).items()}
    worst = min(gains, key=lambda name: gains[name].value)
    return {worst: gains[worst]}


def spreads(studies: Studies) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Both methods at every point of the range."""
    result = {}
    for v in studies["b"]["noise_spread"].values.tolist():
        for u in studies["b"]["feature_spread"].values.tolist():
            at = {"noise_spread": v, "feature_spread": u}
            names = (ch2.FEDAVG, ch2.TRUE)
            result[f"s_v = {v:g}, s_u = {u:g}"] = tuple({"algorithm": n} | at for n in names)
    return result


def plateau(studies: Studies) -> dict[str, Estimate]:
    """How far the first half of the last two thirds of iterations is above the second half."""
    result = {}
    for name in (ch2.FEDAVG, ch2.TRUE):
        rest = samples(studies["a"], name, ch2.METRIC)
        rest = rest[:, rest.shape[1] // 3 :]
        half = rest.shape[1] // 2
        result[name] = gap(rest[:, :half], rest[:, half:])
    return result


def one_over_another(over: str, *under: str) -> Measure:
    return lambda studies: {
        f"{over} above {name}": ch2.steady_gap(studies["a"], over, name) for name in under
    }


def others_above_full(studies: Studies) -> dict[str, Estimate]:
    names = (ch2.FEDAVG, ch2.TRUE, ch2.SAMPLED)
    return {name: ch2.steady_gap(studies["a"], name, ch2.FULL) for name in names}


def others_slower(studies: Studies) -> dict[str, Estimate]:
    names = (ch2.FEDAVG, ch2.TRUE, ch2.SAMPLED)
    return {
        name: curve_gap(*two(early(studies["a"]), name, ch2.FULL, ch2.METRIC)) for name in names
    }


def powers(studies: Studies) -> dict[str, Estimate]:
    """The power of the iteration with which distances (not squared) fall in the second half."""
    late = last_part(2)(studies["c"])
    across = np.log(late["round"].values)
    across = across - across.mean()

    def power(mean: np.ndarray) -> np.ndarray:
        return -(np.log(mean) @ across) / (across @ across) / 2

    return {
        name: estimate(power, samples(late, ch2.SAMPLED, name), unit="") for name in (AGENTS, OWN)
    }


def left(studies: Studies) -> str:
    """How far the probabilities are in the end."""
    end = {name: studies["c"][name].isel(round=-1).mean().item() ** 0.5 for name in (AGENTS, OWN)}
    falls = ", ".join(f"of {name} {-e.value:+.2f}" for name, e in powers(studies).items())
    return (
        f"Distances go with powers of the iteration ({falls}), not minus two, let alone by "
        f"squares. Probabilities of agents stay at {100 * end[AGENTS]:.0f} % of where equal ones "
        "were, since they rest on a gradient of one batch each; those of samples come to "
        f"{100 * end[OWN]:.0f} % and go on, as often as their agents are drawn."
    )


def why_worse(studies: Studies) -> str:
    left = studies["c"][AGENTS].isel(round=-1).mean().item() ** 0.5
    return (
        "The probabilities are learnt from gradients that are noise themselves, and of those who "
        f"are drawn alone: agents' stay off the true ones by {100 * left:.0f} % of what equal ones "
        "are off, which costs what is measured here."
    )


# --------------------------------------------------------------------------- the picture


def draw_gaps(ax: Axes, studies: Studies) -> None:
    """FedAvg over ISFedAvg against the spread, measured and predicted."""
    at = studies["b"]["noise_spread"].values
    for u in studies["b"]["feature_spread"].values.tolist():
        levels = ch2.steady(studies["b"]).sel(feature_spread=u)[ch2.METRIC].mean("round")
        over, under = (
            levels.sel(algorithm=name).transpose("seed", "noise_spread").values
            for name in (ch2.FEDAVG, ch2.TRUE)
        )
        look = plotting.LOOKS[6 if u else 4]  # a look that no method has
        picture.difference(ax, at, over, under, f"features' spread $s_u$ = {u:g}", **look)
        means = studies["b-predicted"][ch2.PREDICTED].sel(feature_spread=u).mean("seed")
        pair = (means.sel(algorithm=name).values for name in (ch2.FEDAVG, ch2.TRUE))
        curve = statistics.decibels(np.divide(*pair))
        picture.predicted_curve(ax, at, curve, "" if u else "predicted")
    picture.theory(ax, CLAIMED, "the source", color="#999999", linestyle="--")
    ax.set_xlabel("spread $s_v$ of the noise")
    ax.set_ylabel("FedAvg above ISFedAvg [dB]")


def plot(studies: Studies) -> Picture:
    titles = ("the four algorithms", "gain by true probabilities", "probabilities learned")
    panels = zip(titles, "abc", strict=True)
    drawing, (curves, gain, probabilities) = picture.panels(
        [f"{title}\n{ch2.seeds(studies[panel])}" for title, panel in panels]
    )
    ch2.draw(curves, studies["a"])
    ch2.draw_medians(curves, studies["a"])
    for name in (ch2.FEDAVG, ch2.TRUE):
        picture.theory(curves, ch2.predicted_level(studies["a-predicted"], name), f"{name}, theory")
    draw_gaps(gain, studies)
    rounds = studies["c"]["round"].values
    color = ch2.LOOKS[ch2.SAMPLED]["color"]
    for name, style in ((AGENTS, "-"), (OWN, "--")):
        result = statistics.summary(studies["c"].squeeze("algorithm"), name)
        look = {"label": f"probabilities of {name}", "color": color, "linestyle": style}
        (line,) = probabilities.plot(rounds, result["mean"], **look)
        band = (rounds, result["low"], result["high"])
        probabilities.fill_between(*band, color=line.get_color(), alpha=0.2, linewidth=0)
    probabilities.set(xscale="log", yscale="log", xlabel="iteration")
    probabilities.set_ylabel("squared distance")
    return picture.finish(drawing, "ISFedAvg, regression of 300 agents of whom 6 take part")


FIGURE = Figure(
    "rizk-2.1",
    "Importance sampling of agents and samples",
    "Rizk 2023, figure 2.1, section 2.6.1",
    "(a) FedAvg, and ISFedAvg with the true probabilities, with those that all agents' norms give "
    "in every round, and with those that are learnt from who is drawn; thin lines are exact second "
    "moments of the same data sets. (b) is ours: how unlike agents must be for the source's gain. "
    "(c) is ours: how far the learnt probabilities are from the true ones, over what equal ones "
    "are.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "better-than-fedavg",
            "importance sampling does better than uniform sampling, with all three kinds of "
            "probabilities",
            "section 2.6.1 on figure 2.1",
            below_fedavg,
            *BETTER.db.when(ch2.RESTING),
        ),
        Claim(
            "better-whatever-the-spread",
            "importance sampling does better than uniform sampling",
            "section 2.6.1 on figure 2.1",
            least_gain,
            *BETTER.db.when("with the true probabilities, at the spreads where it gains least"),
        ),
        Claim(
            "by-13-db",
            "the true probabilities improve the steady state by 13.1 dB",
            "section 2.6.1 on figure 2.1",
            one_over_another(ch2.FEDAVG, ch2.TRUE),
            (CLAIMED - 1, CLAIMED + 1),
            "within 1 dB",
            condition="how unlike the agents are, which the source does not say, was chosen so "
            "that (2.23) predicts 13.1 dB",
        ),
        Claim(
            "exponential",
            "both schemes converge exponentially",
            "section 2.6.1 on figure 2.1",
            ch2.exponential(ch2.FEDAVG, ch2.TRUE),
            (0.8, 1.25),
            ch2.STRAIGHT,
        ),
        Claim(
            "plateau",
            "in the steady state the deviation plateaus",
            "section 2.6.1",
            plateau,
            *CLOSE.db.when("the halves of the last two thirds of the iterations"),
        ),
        Claim(
            "learnt-probabilities-as-good",
            "probabilities learnt from those drawn do just as well as the true ones",
            "section 2.6.1",
            one_over_another(ch2.SAMPLED, ch2.TRUE),
            *SAME.db.when(ch2.RESTING),
            note=why_worse,
        ),
        Claim(
            "probabilities-converge-quadratically",
            "the learnt probabilities converge quadratically to the true ones",
            "section 2.6.1",
            powers,
            (2, INFINITE),
            "least that could be meant: the distance falls as the iteration to the power of minus "
            "two, or faster",
            note=left,
        ),
        Claim(
            "norms-of-all-do-not-degrade",
            "probabilities by all agents' norms do not degrade performance",
            "section 2.6.1",
            one_over_another(ch2.FULL, ch2.TRUE),
            *LITTLE.db.when("above the true ones"),
        ),
        Claim(
            "norms-of-all-outperform",
            "probabilities by all agents' norms outperform the other solutions",
            "section 2.6.1",
            others_above_full,
            *BETTER.db.when(ch2.RESTING),
            note="Near the minimizer these probabilities are the true ones, but for what the model "
            "is off: there is nothing by which they could be better.",
        ),
        Claim(
            "norms-of-all-are-faster",
            "probabilities by all agents' norms converge faster than the others",
            "section 2.6.1",
            others_slower,
            *BETTER.db.when("the curves' mean distance over the first tenth of the iterations"),
            note="All take the same mean step: importance sampling weighs what it draws so that "
            "nothing is biased. Far from the minimizer the mean gradient decides, and noise does "
            "not count.",
        ),
    ],
    settings=(*ch2.COMMON, ch2.DRAWN, ch2.ROUNDS, SPREADS, FEATURES, SHORT, LONG, FEW, EARLY),
    table=ch2.quantiles("a", "b"),
    seeds=150,
)
