"""Rizk 2023, section 2.5: the privacy bound (2.69) compared with twin trajectories.

The source draws no picture of it. Two data sets differ in one agent's samples and are run with the
same draws; the distances of the models and of the updates are measured.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import BETTER
from experiments.figure import Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate, last_part
from experiments.rizk import chapter2 as ch2
from fljax import plotting
from fljax.problems import Problem
from fljax.theory import multiagent_privacy as theory

DATA_SETS = Setting("data sets", 8, "agents' noise is very unlike: the changed agent's is another")
RUNS = Setting("runs of a data set", 20, "agents and batches drawn anew")
ROUNDS = Setting("iterations", 200, "steady states are there after 50")
ADJACENT = Setting(
    "the other data",
    "agent 1 has samples of the agent with the most",
    "“agent 1 replaces its original dataset”, with what is not given; as many as before, of a law "
    "that agents do have",
)
PROMISED = Setting(
    "probability of (2.64)",
    (0.5, 0.9, 0.99),
    "“high probability”; B = B', which are open, are as large as (2.64) then asks in the steady "
    "state, with measured mean squares in the place of its bounds",
)
SHOWN = 0.9

#: The stored variables of :func:`fljax.audit.twins`.
KEPT = ("deviation", "error", "other_error")
UPDATE = "update"
LOST = "epsilon"
PRINTED = "epsilon_printed"


def neighbor(problem: Problem) -> Problem:
    """Another set of as many samples at the first agent."""
    real = jnp.asarray(problem.weights) > 0
    other = jnp.argmax(jnp.sum(real, axis=1, dtype=jnp.int32))
    features = jnp.asarray(problem.features)
    targets = jnp.asarray(problem.targets)
    return dataclasses.replace(
        problem,
        features=features.at[0].set(jnp.where(real[0, :, None], features[other], 0)),
        targets=targets.at[0].set(jnp.where(real[0], targets[other], 0)),
    )


def compared(seed: int, rounds: int) -> xr.Dataset:
    """One data set and its neighbor."""
    simulation = ch2.private_scenario(fl.random_key(seed), ch2.UPDATES, metrics=())
    other = neighbor(simulation.fixed_problem)
    result = fl.audit.twins(simulation, other, rounds, RUNS.value, key=jax.random.key(seed))
    update = result["update_change"].sel(history="own", norm="l2", drop=True)
    lost = result[LOST].sel(history="same", drop=True)
    stored = result[[*KEPT, PRINTED, "optima"]].assign({UPDATE: update[..., 0], LOST: lost})
    return stored.rename(seed="run")


def study(effort: Effort) -> Studies:
    few = min(effort.seeds, DATA_SETS.value)
    rounds = ROUNDS.value // 4 if effort.quick else ROUNDS.value
    sets = [compared(seed, rounds) for seed in range(few)]
    return {"twins": xr.concat(sets, "seed", combine_attrs="override")}


# --------------------------------------------------------------------------- the claims


def errors(data: xr.Dataset, promised: float) -> xr.DataArray:
    """``[S]``: the B = B' for which (2.64) promises a probability in the steady state."""
    late = last_part(2)(data)
    first, second = ((late[name] ** 2).mean(("run", "round")) for name in ("error", "other_error"))
    return np.sqrt(np.maximum(first, second) / (1 - np.sqrt(promised)))


def bounds(data: xr.Dataset, promised: float) -> xr.DataArray:
    """``[S]``: (2.63)."""
    values = errors(data, promised).values
    return data["optima"].copy(
        data=theory.neighbor_deviation_bound(values, values, data["optima"].values)
    )


def printed(data: xr.Dataset, promised: float) -> xr.DataArray:
    """``[S, rounds]``: (2.69)."""
    limits = bounds(data, promised)
    deviation = np.repeat(limits.values[:, None], data.sizes["round"], axis=1)
    epsilon = theory.epsilon(deviation, ch2.VARIANCE.value)
    return xr.DataArray(epsilon, {"round": data["round"]}, ("seed", "round"))


def beyond(shares: xr.DataArray, promised: float) -> Estimate:
    """The share of runs, ``[S]``, above the promised one."""
    percent = 100 * shares.values
    return estimate(lambda mean: mean - 100 * promised, percent, unit="points")


def within(studies: Studies) -> dict[str, Estimate]:
    """The share of runs within the bound, in the iteration where it is least."""
    data = studies["twins"]
    result = {}
    for promised in PROMISED.value:
        shares = (data["deviation"] <= bounds(data, promised)).mean("run")
        worst = shares.isel(round=int(np.argmin(shares.mean("seed").values)))
        result[f"{100 * promised:g} % promised"] = beyond(worst, promised)
    return result


def private(studies: Studies) -> dict[str, Estimate]:
    """The share of runs whose privacy loss is at most (2.69) in all iterations."""
    data = studies["twins"]
    return {
        f"{100 * promised:g} % promised": beyond(
            (data[LOST] <= printed(data, promised)).all("round").mean("run"), promised
        )
        for promised in PROMISED.value
    }


def moved(studies: Studies) -> dict[str, Estimate]:
    """The distance of the agent's updates over that of models, in its own rounds."""
    data = studies["twins"]
    active = data[UPDATE] > 0
    ratios = (
        data[name].where(active, 0).sum(("run", "round")).values for name in (UPDATE, "deviation")
    )
    return {"updates over models": estimate(np.divide, *ratios, unit="times")}


def too_little(studies: Studies) -> str:
    data = studies["twins"]
    lost, predicted = (float(data[name].isel(round=-1).mean()) for name in (LOST, PRINTED))
    return (
        "Models are moved by an update as mu/L of it, so what models are apart does not bound what "
        f"updates are. With what models are apart in the place of their bound, (2.69) has "
        f"{predicted:.2g} after {data.sizes['round']} iterations, where {lost:.2g} is lost."
    )


# --------------------------------------------------------------------------- the picture


#: Looks of quantities of messages, and of models.
LOST_LOOK, MODELS_LOOK = plotting.LOOKS[4:6]
DOTS: dict[str, Any] = LOST_LOOK | {"linestyle": ""}


def draw_distances(ax: Axes, data: xr.Dataset) -> None:
    rounds = data["round"]
    update = data[UPDATE].where(data[UPDATE] > 0)
    mean = update.mean(("seed", "run"))
    ax.plot(rounds, mean, **DOTS, label="agent's updates, where it is drawn")
    mean = data["deviation"].mean(("seed", "run"))
    ax.plot(rounds, mean, markevery=20, **MODELS_LOOK, label="models, Δ(i)")
    level = float(bounds(data, SHOWN).mean())
    picture.theory(ax, level, f"(2.63), {100 * SHOWN:g} % promised", "")
    ax.set(yscale="log", xlabel="iteration", ylabel="distance")


def draw_probabilities(ax: Axes, data: xr.Dataset) -> None:
    first, second = ((data[name] ** 2).mean("run") for name in ("error", "other_error"))
    squares = [square.transpose("seed", "round").values for square in (first, second)]
    for look, promised in zip(plotting.LOOKS[4:], PROMISED.value, strict=False):
        shares = 100 * (data["deviation"] <= bounds(data, promised)).mean(("run", "seed"))
        limits = errors(data, promised).values
        probability = theory.bound_probability(squares[0], squares[1], limits, limits, "printed")
        name = f"{100 * promised:g} %"
        ax.plot(data["round"], shares, markevery=20, **look, label=f"measured, {name}")
        look = {"color": look["color"], "linestyle": (0, (1, 1.5))}
        ax.plot(data["round"], 100 * np.mean(probability, axis=0), **look, label=f"(2.64), {name}")
    ax.set(xlabel="iteration", ylabel="within it [% of runs]", ylim=(0, 104))


def draw_losses(ax: Axes, data: xr.Dataset) -> None:
    rounds = data["round"]
    curves = {
        f"(2.69), {100 * SHOWN:g} % promised": (printed(data, SHOWN), picture.THIN),
        "lost by these data": (data[LOST].mean("run"), LOST_LOOK),
        "(2.69) with Δ(i) as it is": (data[PRINTED].mean("run"), MODELS_LOOK),
    }
    for name, (curve, look) in curves.items():
        ax.plot(rounds, curve.mean("seed"), markevery=20, **look, label=name)
    ax.set(yscale="log", xlabel="iteration", ylabel="ε(i)")


def plot(studies: Studies) -> Picture:
    data = studies["twins"]
    titles = ("what other data move", "how surely it is bounded", "privacy loss")
    drawing, axes = picture.panels(titles)
    for ax, draw in zip(axes, (draw_distances, draw_probabilities, draw_losses), strict=True):
        draw(ax, data)
    seeds = f"{data.sizes['seed']} data sets of {data.sizes['run']} runs, means"
    return picture.finish(drawing, f"updates shared, 1000 agents, 30 a round; {seeds}")


FIGURE = Figure(
    "rizk-2.theory",
    "Privacy by bounded trajectories",
    "Rizk 2023, section 2.5",
    "One agent's samples are others, and everything is drawn alike: how far models and updates "
    "then are apart, with which probability (2.64) bounds it, and the epsilon of (2.69) beside the "
    "largest loss of privacy that the noise allows for these data along these runs. A necessary "
    "condition: of other data nothing is said, and over all of them (2.69) has no bound.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "models-are-within-the-bound",
            "models of adjacent data are at most B + B' + |w^o - w'^o| apart, with the probability "
            "of (2.64) at least",
            "section 2.5, (2.63)-(2.64)",
            within,
            *BETTER.points.when("runs within the bound, above what is promised"),
        ),
        Claim(
            "updates-move-no-more-than-models",
            "what updates of adjacent data are apart is at most what models are",
            "section 2.5, (2.68)",
            moved,
            (0, 1),
            "in rounds in which the agent takes part, on average",
            note=too_little,
        ),
        Claim(
            "private-as-printed",
            "the algorithm is differentially private with the epsilon of (2.69), with high "
            "probability",
            "section 2.5, (2.69)",
            private,
            *BETTER.points.when(
                "runs that lose no more than it in any iteration, above what (2.64) promises"
            ),
            condition="of these adjacent data alone: a necessary condition",
        ),
    ],
    settings=(*ch2.PRIVATE, DATA_SETS, RUNS, ROUNDS, ADJACENT, PROMISED),
)
