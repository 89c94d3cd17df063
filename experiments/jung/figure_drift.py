"""Jung 2025: local steps and proximal steps of server-based learning (sections 5.4, 5.5)."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FixedLocator, NullLocator

import fljax as fl
from experiments import picture
from experiments.conventions import order
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate, gap, joined, last, last_part, samples
from fljax import plotting, statistics
from fljax.algorithms import ExactFedProx, FedAvg
from fljax.problems import Problem
from fljax.problems.solvers import smoothness

CLIENTS = Setting("clients", 10, "not given; few, so that their data differ")
DATA = Setting(
    "samples a client, parameters",
    (8, 2),
    "one truth, few noisy samples: clients' minimizers lie apart",
)
STEPS = Setting("local steps R", (1, 2, 5, 10, 20, 50), "from (115) to where clients nearly arrive")
RATE = Setting(
    "learning rate", "1/(2 λmax), λmax of the client of most curvature", "stable for all clients"
)
ROUNDS = Setting("rounds of FedAvg", 80, "the error of R = 1 falls by far more than 100 dB")
PROX = Setting(
    "FedProx's η",
    (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "a decade below to a decade above the inverse of the curvature",
)
PROX_ROUNDS = Setting("rounds of FedProx", 1000, "those of the least η, which takes short steps")
EVERY = Setting("FedProx recorded", 20, "only its end is read")
CHOSEN = Setting("clients of a subset", 5, "not given; half of them")
SUBSETS = Setting("local steps with subsets", (1, 10), "without drift and with")
NEAR = Setting("near its end", 1e-4, "of the first squared distance to a run's own limit")
MOST = Setting("seeds", 40, "at most: instances differ much, the exact theory not at all")

ERROR = "mean_square_deviation"
MODEL = "server"
ALL = "all clients"
SUBSET = f"{CHOSEN.value} of {CLIENTS.value}"

#: Errors below this count as the minimizer, dB of the squared distance of the start.
ZERO_DB = -100.0


# --------------------------------------------------------------------------- scenarios


def instance(key: Array) -> Problem:
    return fl.problems.least_squares(key, CLIENTS.value, *DATA.value)


def rate(problem: Problem) -> Array:
    """The step size that is stable for all clients."""
    return 1 / jnp.max(smoothness(problem))


_SERVER = fl.metrics.Metric(
    MODEL, lambda now: now.state.model, "the server's model", decibel=False, dims=("parameter",)
)


def averaging(key: Array, steps: int, chosen: int | None = None) -> fl.Simulation:
    """Algorithm 8, or 9 with subsets; all of a client's samples in every step."""
    problem = instance(key)
    algorithm = FedAvg(rate(problem), clients_per_round=chosen, local_steps=steps)
    return fl.Simulation(problem, algorithm, metrics=[ERROR, _SERVER])


def proximal(key: Array, step_size: Array) -> fl.Simulation:
    """Algorithm 10."""
    return fl.Simulation(instance(key), ExactFedProx(step_size), metrics=[ERROR])


# --------------------------------------------------------------------------- theory


@jax.jit
def limits(key: Array) -> dict[str, Array]:
    """The fixed points of the exact operators, and how far from the minimizer they are.

    Clients' steps are affine: after R of them a client is at ``M^R w + S b``, with
    ``M = I - 2 eta Q`` and ``S = I + M + ... + M^(R-1)`` (Exercise 5.4).
    """
    problem = instance(key)
    eye = jnp.eye(problem.dim)
    zero = jnp.zeros((problem.clients, problem.dim))
    hessian = 2 * problem.second_moment()
    linear = problem.gradient(zero)
    best = jnp.linalg.solve(hessian.mean(0), -linear.mean(0))
    client_map = eye[None] - rate(problem) * hessian
    step = -rate(problem) * linear
    points = []
    for steps in STEPS.value:
        power = jax.vmap(lambda m, n=steps: jnp.linalg.matrix_power(m, n))(client_map)
        summed = jnp.linalg.solve(eye[None] - client_map, eye[None] - power)
        moved = jnp.einsum("kpq,kq->kp", summed, step)
        points.append(jnp.linalg.solve(eye - power.mean(0), moved.mean(0)))
    proxes = []
    for eta in PROX.value:
        inverse = jnp.linalg.inv(hessian / 2 + eye[None] / eta)
        moved = jnp.einsum("kpq,kq->kp", inverse, -linear / 2)
        proxes.append(jnp.linalg.solve(eye - inverse.mean(0) / eta, moved.mean(0)))
    return {
        "steps": jnp.stack(points),
        "drift": jnp.sum((jnp.stack(points) - best[None]) ** 2, axis=1),
        "prox": jnp.sum((jnp.stack(proxes) - best[None]) ** 2, axis=1),
        "start": jnp.sum(best**2),
    }


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, MOST.value)
    root = fl.random_key(0)
    keys = [jax.random.split(jax.random.fold_in(root, seed))[0] for seed in range(seeds)]
    of = [jax.tree.map(np.asarray, limits(key)) for key in keys]
    theory = {name: np.stack([quantities[name] for quantities in of]) for name in of[0]}

    def run(steps: int, chosen: int | None = None) -> xr.Dataset:
        def build(key: Array) -> fl.Simulation:
            return averaging(key, steps, chosen)

        build.__qualname__ = f"averaging({steps}, {chosen})"
        name = f"averaging-{steps}-{chosen or 'all'}"
        return effort.sweep(name, build, rounds=ROUNDS.value, seeds=seeds)

    every = {steps: run(steps) for steps in STEPS.value}
    subsets_of = {steps: run(steps, CHOSEN.value) for steps in SUBSETS.value}
    drift = joined(*every.values(), axis="steps").assign_coords(steps=list(every))
    drift["limit"] = (("seed", "steps"), theory["drift"])
    drift["start"] = ("seed", theory["start"])
    drift["rounds"] = (("seed", "steps"), arrivals(drift, theory["steps"]), ROUNDS_LABEL)
    pairs = [
        joined(
            *(part[steps][[ERROR, "diverged"]] for part in (every, subsets_of)), axis="clients"
        ).assign_coords(clients=[ALL, SUBSET])
        for steps in SUBSETS.value
    ]
    prox = effort.sweep(
        "proximal",
        proximal,
        rounds=PROX_ROUNDS.value,
        seeds=seeds,
        grid={"step_size": list(PROX.value)},
        record_every=EVERY.value,
    )
    prox["limit"] = (("seed", "step_size"), theory["prox"])
    subsets = joined(*pairs, axis="steps").assign_coords(steps=list(SUBSETS.value))
    parts = {"drift": drift.drop_vars(MODEL), "prox": last(prox), "subsets": subsets}
    for part in parts.values():
        if "steps" in part.dims:
            part["steps"].attrs["long_name"] = "local steps R"
    parts["prox"]["step_size"].attrs["long_name"] = "FedProx's η"
    return parts


ROUNDS_LABEL = {"long_name": "rounds", "units": "1", "decibel": 0}


def arrivals(data: xr.Dataset, points: np.ndarray) -> np.ndarray:
    """``[S, R]``: rounds until a run is near its own limit.

    Args:
      data: with the server's models.
      points: the limits, ``[S, R, D]``.
    """
    models = data[MODEL].transpose("seed", "steps", "round", "parameter").values
    squared_distance = np.sum((models - points[:, :, None]) ** 2, axis=-1)
    far = squared_distance > NEAR.value * np.sum(points**2, axis=-1)[..., None]  # the start is zero
    return 1.0 + far.cumprod(axis=-1).sum(axis=-1)


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("FedAvg with R local steps", "where FedAvg ends", "rounds to its own end")
    titles += ("where FedProx ends", "subsets, R = 1", "subsets, R = 10")
    drawing, axes = picture.panels(titles, height=2.1)
    runs, ends, count, prox, *subsets = axes
    data = studies["drift"]
    labels = {r: f"R = {r}" for r in STEPS.value}
    plotting.learning_curves(data, ERROR, "steps", runs, labels=labels)
    runs.set_ylim(-120, 10)
    plotting.trade_off(data.drop_dims("round"), "steps", "rounds", None, count, legend=False)
    count.set(xscale="log", yscale="log", ylabel="rounds")
    drifting = data.sel(steps=list(STEPS.value[1:]))
    for ax, part, axis in ((ends, last(drifting), "steps"), (prox, studies["prox"], "step_size")):
        plotting.trade_off(part, axis, ERROR, None, ax, legend=False)
        level = statistics.decibels(part["limit"].mean("seed").values)
        picture.predicted_curve(ax, part[axis].values, level, "fixed point of the exact operator")
        ax.set_xscale("log")
    for ax in (ends, count):
        _ticks(ax)
    for ax, steps in zip(subsets, SUBSETS.value, strict=True):
        plotting.learning_curves(studies["subsets"].sel(steps=steps), ERROR, "clients", ax)
        ax.set_ylim(-80, 10)
    return picture.finish(drawing, "Distance from the minimizer of the clients' mean loss")


def _ticks(ax: Axes) -> None:
    """The numbers of local steps themselves."""
    ax.xaxis.set_major_locator(FixedLocator(STEPS.value))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")


# --------------------------------------------------------------------------- claims


def reaches(studies: Studies) -> dict[str, Estimate]:
    """The error of one local step in the end over that of the start, dB."""
    result = samples(last(studies["drift"]), {"steps": 1}, ERROR)
    return {"R = 1": gap(result, studies["drift"]["start"].values)}


def drifts(studies: Studies) -> dict[str, Estimate]:
    data = last(studies["drift"])
    return {
        f"R = {more} above {less}": gap(
            samples(data, {"steps": more}, ERROR), samples(data, {"steps": less}, ERROR)
        )
        for less, more in itertools.pairwise(STEPS.value)
    }


def rounds_saved(studies: Studies) -> dict[str, Estimate]:
    data = studies["drift"].drop_dims("round")
    rounds_of = {r: data["rounds"].sel(steps=r).values for r in STEPS.value}
    return {
        f"R = {less} over {more}": estimate(
            lambda a, b: a / b, rounds_of[less], rounds_of[more], unit="times"
        )
        for less, more in itertools.pairwise(STEPS.value)
    }


def exact(studies: Studies) -> dict[str, Estimate]:
    """How far above the exact operators' limits runs end, dB."""
    data = last(studies["drift"])
    result = {}
    for steps in STEPS.value[1:]:
        limit = data["limit"].sel(steps=steps).values
        result[f"FedAvg, R = {steps}"] = gap(samples(data, {"steps": steps}, ERROR), limit)
    for eta in PROX.value:
        limit = studies["prox"]["limit"].sel(step_size=eta).values
        at = samples(studies["prox"], {"step_size": eta}, ERROR)
        result[f"FedProx, η = {eta:g}"] = gap(at, limit)
    return result


def closer(studies: Studies) -> dict[str, Estimate]:
    data = studies["prox"]
    return {
        f"η = {more:g} above {less:g}": gap(
            samples(data, {"step_size": more}, ERROR), samples(data, {"step_size": less}, ERROR)
        )
        for less, more in itertools.pairwise(PROX.value)
    }


def vanishes(studies: Studies) -> dict[str, Estimate]:
    """The power of η with which FedProx's squared distance grows, from the least to the next."""
    low, high = PROX.value[:2]
    errors = (samples(studies["prox"], {"step_size": eta}, ERROR) for eta in (low, high))
    return {
        f"η = {low:g} to {high:g}": estimate(
            lambda a, b: np.log(b / a) / np.log(high / low), *errors, unit=""
        )
    }


def unsettled(studies: Studies) -> dict[str, Estimate]:
    late = last_part(4)(studies["subsets"])
    return {
        f"R = {steps}": gap(
            samples(late, {"steps": steps, "clients": SUBSET}, ERROR),
            samples(late, {"steps": steps, "clients": ALL}, ERROR),
        )
        for steps in SUBSETS.value
    }


FIGURE = Figure(
    name="jung-drift",
    title="Local steps, proximal steps and the minimizer",
    source="Jung 2025, Algorithms 8 to 10",
    caption="Server-based learning with exact gradients. With one local step it is projected "
    "gradient descent and reaches the minimizer; with more of them clients drift to their own "
    "minimizers, and what is averaged has another fixed point, which the source does not mention. "
    "Thin lines are the fixed points of the exact operators.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "one-step-reaches-the-minimizer",
            "gradient steps and averages in turn solve (114)",
            "(114)-(116), section 5.4",
            reaches,
            (-INFINITE, ZERO_DB),
            "the squared distance falls to less than -100 dB of that of the start",
        ),
        Claim(
            "fewer-rounds-with-more-steps",
            "several local steps make more progress a round",
            "section 5.4",
            rounds_saved,
            (1, INFINITE),
            "fewer rounds to a hundredth of the distance from a run's own limit",
            condition="towards its own limit, which is not the optimum",
        ),
        Claim(
            "local-steps-drift",
            "the more local steps, the farther from the minimizer is the limit",
            "Algorithm 8, section 5.4",
            drifts,
            (0, INFINITE),
            ours=True,
        ),
        Claim(
            "limits-are-exact",
            "runs end where the exact operators have their fixed points",
            "Exercise 5.4",
            exact,
            (-0.1, 0.1),
            "within 0.1 dB",
            ours=True,
        ),
        Claim(
            "fedprox-closer-for-small-eta",
            "the smaller η, the nearer to the minimizer FedProx ends",
            "section 5.5: a small η keeps clients close to the server's model",
            closer,
            (0, INFINITE),
            ours=True,
        ),
        Claim(
            "fedprox-reaches-it-without-eta",
            "FedProx's distance from the minimizer vanishes with η, in proportion",
            "Algorithm 10",
            vanishes,
            *order(2).when("squared distances, between the two least"),
            ours=True,
        ),
        Claim(
            "subsets-do-not-settle",
            "where clients are drawn anew in each round, an error is left that all together have "
            "not",
            "Algorithm 9, section 5.4",
            unsettled,
            (0, INFINITE),
            "mean of the last quarter of the rounds",
            condition="constant learning rate, clients that differ",
            ours=True,
        ),
    ],
    settings=(
        *(CLIENTS, DATA, STEPS, RATE, ROUNDS, PROX, PROX_ROUNDS, EVERY, CHOSEN, SUBSETS, NEAR),
        MOST,
    ),
    double=True,
)
