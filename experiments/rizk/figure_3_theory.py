"""Rizk 2023, chapter 3: privacy by bounded trajectories, against twin runs (section 3.4).

The chapter draws no such figure.
"""

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import order
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate
from experiments.rizk import chapter3 as ch3
from experiments.rizk import network as net
from fljax import plotting
from fljax._core.module import replace
from fljax.audit import twins, within
from fljax.theory.multiagent_privacy import epsilon, neighbor_deviation_bound

ROUNDS = Setting("iterations", 100, "the first; all has arrived after 60")
SEEDS = Setting("pairs of runs", 40, "at most")
BOUNDS = Setting(
    "B and B'",
    (1.0, 2.0, 4.0),
    "“chosen by the designer”: around the distance of all models from the optimum, 1.3 at the end",
)
REPLACED = Setting(
    "other data of the first client",
    "another draw of all: of its law and of the model behind it",
    "“a new set with a different distribution”, section 3.4",
)


def neighbor() -> fl.problems.Problem:
    """The problem in which the first client has other data."""
    data, _ = ch3.world()
    other = ch3.problem(ch3.EIGENVALUES.value, ch3.DATA_NOISE.value[0], seed=1)
    first = jnp.arange(ch3.ALL) == 0
    return replace(
        data,
        features=jnp.where(first[:, None, None], other.features, data.features),
        targets=jnp.where(first[:, None], other.targets, data.targets),
    )


def study(effort: Effort) -> Studies:
    scheme = net.SCHEMES[net.HOMOMORPHIC]
    simulation = ch3.simulation(scheme, ch3.VARIANCE.value, ch3.STEP.value)
    result = twins(simulation, neighbor(), ROUNDS.value, min(effort.seeds, SEEDS.value))
    bounds = [within(result, bound, bound) for bound in BOUNDS.value]
    names = ["fraction", "promised_printed"]
    parts = xr.concat([bound_set[names] for bound_set in bounds], "bound")
    parts = parts.assign_coords(bound=list(BOUNDS.value))
    same_history = result[["deviation", "epsilon"]].sel(history="same", drop=True)
    return {"told": same_history.assign_attrs(optima=float(result["optima"])), "within": parts}


def printed(studies: Studies, bound: float) -> np.ndarray:
    """``[rounds]``: the epsilon of Theorem 3.2."""
    optima = studies["told"].attrs["optima"]
    far = float(neighbor_deviation_bound(bound, bound, optima, nodes=ch3.SERVERS.value))
    return np.asarray(epsilon(np.full(ROUNDS.value + 1, far), ch3.VARIANCE.value))[1:]


def plot(studies: Studies) -> Picture:
    disclosed = studies["told"]
    parts = studies["within"]
    drawing, (deviation, share, spent) = picture.panels(
        ["sensitivity", "within the bound", "epsilon"]
    )
    rounds = disclosed["round"].values
    low, middle, high = np.quantile(disclosed["deviation"], [0.025, 0.5, 0.975], axis=0)
    deviation.plot(rounds, middle, label="median")
    deviation.fill_between(rounds, low, high, alpha=0.2, linewidth=0, label="95 % of the pairs")
    deviation.set(xlabel="iteration", ylabel="distance of the twins' models", yscale="log")
    for index, bound in enumerate(BOUNDS.value):
        look = {name: plotting.LOOKS[index][name] for name in ("color", "linestyle")}
        promised = parts["promised_printed"].sel(bound=bound)
        share.plot(rounds, promised, label=f"(3.57), B = {bound:g}", **look)
        spent.plot(rounds, printed(studies, bound), label=f"(3.58), B = {bound:g}", **look)
    share.plot(rounds, parts["fraction"].min("bound"), "k", linewidth=0.8, label="measured, least")
    share.set(xlabel="iteration", ylabel="share of the pairs")
    spent.plot(rounds, disclosed["epsilon"].mean("seed"), "k", linewidth=0.8, label="measured")
    spent.set(xlabel="iteration", ylabel="epsilon", yscale="log")
    heading = f"GFL, homomorphic noise, μ = {ch3.STEP.value:g}, σ² = {ch3.VARIANCE.value:g}"
    return picture.finish(drawing, f"{heading}; {disclosed.sizes['seed']} pairs of runs")


def bounded_more_often(studies: Studies) -> dict[str, Estimate]:
    """By how much more often the sensitivity is bounded than promised, the least of all rounds."""
    data = studies["within"]
    more = 100 * (data["fraction"] - data["promised_printed"]).min("round")
    return {
        f"B = {bound:g}": Estimate.exact(float(more.sel(bound=bound)), "points")
        for bound in BOUNDS.value
    }


def covered(studies: Studies) -> dict[str, Estimate]:
    """The final epsilon of the messages over Theorem 3.2's."""
    epsilons = studies["told"]["epsilon"].isel(round=-1).values
    return {
        f"B = {bound:g}": estimate(
            lambda a, bound=bound: 100 * a / printed(studies, bound)[-1], epsilons, unit="%"
        )
        for bound in BOUNDS.value
    }


def growth(studies: Studies) -> dict[str, Estimate]:
    """The power of the number of rounds with which epsilon grows in the second half."""
    data = studies["told"]["epsilon"].transpose("seed", "round").values
    half = data.shape[1] // 2
    at = np.log(studies["told"]["round"].values[half:])
    at = at - at.mean()
    exponent = estimate(lambda a: np.log(a[..., half:]) @ at / (at @ at), data, unit="")
    return {"measured, second half": exponent}


FIGURE = Figure(
    name="rizk-3.theory",
    title="Privacy by bounded trajectories",
    source="Rizk 2023, section 3.4",
    caption="Pairs of runs with the same draws, in which one client of a thousand has other data. "
    "(a) how far their models part, (3.55). (b) how often that is within B + B' + sqrt(P) times "
    "the distance of the optima, and how often (3.57) says at least, with measured mean squares in "
    "the place of its orders. (c) the largest privacy loss that the noise allows for these data "
    "along these runs, in the same history (fljax.audit.twins), and that of (3.58).",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "sensitivity-is-bounded",
            "the sensitivity is bounded with the probability that is given",
            "section 3.4, (3.56), (3.57)",
            bounded_more_often,
            (0, INFINITE),
            "percentage points more often, in the worst round; the measured mean squares are in "
            "the place of terms of which the orders alone are given",
            changed="New: a statement of the source that no claim was about.",
        ),
        Claim(
            "epsilon-is-enough",
            "with homomorphic perturbations the algorithm is private with the epsilon of (3.58)",
            "section 3.4, Theorem 3.2",
            covered,
            (0, 100),
            "the largest loss along the runs, per cent of it, at the end",
            condition="one other data set of one client, against whoever hears all messages",
            changed="New: a theorem of the source that no claim was about.",
        ),
        Claim(
            "privacy-is-lost-linearly",
            "with fixed noise the algorithm becomes less private as time passes, linearly",
            "section 3.4, (3.58)",
            growth,
            *order(1),
            note="It grows from the rounds in which the client is drawn, 11 of 100, and so by "
            "steps, which differ from run to run.",
            condition="one other data set of one client, against whoever hears all messages",
            changed="New: a statement of the source that no claim was about.",
        ),
    ],
    settings=(*ch3.COMMON, ch3.STEP, ch3.VARIANCE, ROUNDS, SEEDS, BOUNDS, REPLACED),
)
