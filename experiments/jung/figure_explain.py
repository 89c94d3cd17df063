"""Jung 2025: models that follow a user's signal (section 8.4, Exercise 8.2)."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, gap, samples, share
from fljax import plotting, statistics
from fljax.problems import GTVMin, LeastSquares, Problem, explained, explanation_error

NODES = Setting("nodes of the ring", 10, "of our instance of Exercise 8.2")
DIM = Setting("parameters", 4, "likewise")
SAMPLES = Setting("samples a node", 6, "likewise: barely more than parameters")
COUPLING = Setting("alpha", 0.1, "likewise: nodes are nearly alone")
POINTS = Setting("points of a node's signal", 6, "as many as samples; the instance leaves it open")
NOISE = Setting("variance of the labels' noise", 1.0, "with which the instance has its first error")
STRENGTHS = Setting(
    "rho",
    tuple(np.geomspace(0.01, 1000, 21).tolist()),
    "four a decade around those of the instance",
)
SHIFTS = Setting(
    "how far the signal's model is off, each parameter",
    (0.0, 0.1, 0.25, 1.0),
    "right and, as in the instance, by one; two in between",
)
INSTANCE = (0.0, 0.1, 1.0, 10.0, 100.0)
#: Errors at these rho, computed before for one instance.
PRINTED = {0.0: (0.67, 0.45, 0.19, 0.041, 0.004), 1.0: (0.65, 0.65, 1.54, 3.00, 3.75)}


def measured(key: Array, strengths: Array) -> dict[str, Array]:
    """Errors and distances from the signal, by shift and strength, of one ring."""
    of_data, of_noise, of_points, of_truth = jax.random.split(key, 4)
    nodes = NODES.value
    dim = DIM.value
    features = jax.random.normal(of_data, (nodes, SAMPLES.value, dim))
    truth = jax.random.normal(of_truth, (dim,))
    noise = jnp.sqrt(NOISE.value) * jax.random.normal(of_noise, features.shape[:2])
    problem = Problem(features, features @ truth + noise, LeastSquares())
    points = jax.random.normal(of_points, (nodes, POINTS.value, dim))
    ring = fl.graphs.ring(nodes)

    def at(shift: Array, strength: Array) -> tuple[Array, Array]:
        signal = points @ (truth + shift)
        after = explained(problem, signal, points, strength)
        models = GTVMin(after, ring, COUPLING.value).solution().models
        error = jnp.mean(jnp.sum((models - truth[None]) ** 2, axis=1))
        return error, jnp.mean(explanation_error(models, signal, points))

    shifts = jnp.asarray(SHIFTS.value)
    over = jax.vmap(jax.vmap(at, (None, 0)), (0, None))
    error, difference = over(shifts, strengths)
    instance, _ = over(shifts, jnp.asarray(INSTANCE))
    return {"error": error, "apart": difference, "instance": instance}


VARIABLES = {
    "error": (("shift", "strength"), "error of a node", True),
    "apart": (("shift", "strength"), "measure (177)", True),
    "instance": (("shift", "at"), "error of a node", True),
}
LABELS = {"strength": r"weight of the signal $\rho$", "shift": "signal"}
DECADES = (0.01, 1.0, 100.0)


def study(effort: Effort) -> Studies:
    strengths = effort.thin(STRENGTHS.value, 6)
    result = solutions.solved(
        functools.partial(measured, strengths=jnp.asarray(strengths)), solutions.seeds(effort)[0]
    )
    axes = {"shift": [*SHIFTS.value], "strength": strengths, "at": [*INSTANCE]}
    return {"all": solutions.dataset(result, VARIABLES, axes, LABELS)}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    data = studies["all"]
    drawing, axes = picture.panels(("error", "distance from the signal", "instance"), height=2.4)
    names = {s: "right" if s == 0 else f"off by {s:g}" for s in SHIFTS.value}
    for ax, metric in zip(axes, ("error", "apart"), strict=False):
        plotting.trade_off(data, "strength", metric, "shift", ax, labels=names)
        ax.set_xticks(DECADES, [f"{at:g}" for at in DECADES])
    alone = float(statistics.decibels(float(data["instance"].sel(at=0.0, shift=0.0).mean())))
    picture.theory(axes[0], alone, "without a signal")
    ax = axes[2]
    for index, shift in ((0, 0.0), (3, 1.0)):
        look = {key: plotting.LOOKS[index][key] for key in ("color", "marker")}
        values = data["instance"].sel(shift=shift).transpose("at", "seed").values
        places = np.arange(len(INSTANCE))
        low, middle, high = np.quantile(values, [0.025, 0.5, 0.975], axis=1)
        name = names[shift]
        ax.errorbar(
            places, middle, [middle - low, high - middle], linestyle="", capsize=2,
            label=f"{name}: 95 % of rings", **look,
        )  # fmt: skip
        marks = {"color": look["color"], "label": f"{name}: one ring, given"}
        ax.plot(places + 0.2, PRINTED[shift], "x", **marks)
    ax.set_xticks(range(len(INSTANCE)), [f"{at:g}" for at in INSTANCE])
    ax.set(yscale="log", xlabel=LABELS["strength"], ylabel="squared error of a node")
    return picture.finish(
        drawing, "A user's signal as part of the loss (178), on rings of 10 nodes"
    )


# --------------------------------------------------------------------------- claims


def of(data: xr.Dataset, shift: float, at: float) -> np.ndarray:
    return samples(data[["instance"]], {"shift": shift, "at": at}, "instance")


def above_none(shift: float, *strengths: float) -> Measure:
    """The error with a signal above that without."""
    return lambda studies: {
        f"rho = {at:g}": gap(of(studies["all"], shift, at), of(studies["all"], shift, 0.0))
        for at in strengths
    }


def falls(studies: Studies) -> dict[str, Estimate]:
    data = studies["all"].sel(shift=0.0)
    at = data["strength"].values
    values = data["error"].transpose("seed", "strength").values
    return {
        f"rho = {after:.3g} after {before:.3g}": gap(values[:, i], values[:, i + 1])
        for i, (before, after) in enumerate(itertools.pairwise(at))
    }


def followed(studies: Studies) -> dict[str, Estimate]:
    """(177) at the least weight above that at the largest."""
    ends = studies["all"].isel(strength=[0, -1])
    return {
        f"off by {shift:g}": gap(
            *ends["apart"].sel(shift=shift).transpose("strength", "seed").values
        )
        for shift in SHIFTS.value
    }


def limit(studies: Studies) -> dict[str, Estimate]:
    """The error at the largest weight over the squared distance of the signal's model."""
    data = studies["all"].isel(strength=-1)
    return {
        f"off by {shift:g}": estimate(
            lambda a, s=shift: a / (DIM.value * s**2),
            data["error"].sel(shift=shift).values,
            unit="",
        )
        for shift in SHIFTS.value[1:]
    }


def rank(shift: float) -> Measure:
    """In how many rings the error is below that of the instance."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["all"]
        return {
            f"rho = {at:g}, {value:g}": share(of(data, shift, at) < value)
            for at, value in zip(INSTANCE, PRINTED[shift], strict=True)
        }

    return measure


def best_weight(studies: Studies) -> str:
    data = studies["all"]
    mean = data["error"].mean("seed")
    parts = []
    for shift in SHIFTS.value[1:]:
        curve = mean.sel(shift=shift)
        least = float(curve["strength"][int(np.argmin(curve.values))])
        parts.append(f"off by {shift:g} it is least at rho = {least:.2g}")
    return "Of a signal " + ", ".join(parts) + "."


FIGURE = Figure(
    name="jung-explain",
    title="Explainability: a user's signal as part of the loss",
    source="Jung 2025, section 8.4, (177), (178) and Exercise 8.2",
    caption="Rings of ten nodes of one true model, data and signals drawn anew with every seed; "
    "the signal is what a model says at six points of each node: the true one, or one whose "
    "parameters are off. (a) the squared error of the nodes' models against the signal's weight. "
    "(b) the measure (177): how far their predictions are from the signal. (c) medians and the "
    "middle 95 % of single rings, beside those of one ring that was computed before.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "follows",
            "the regularizer makes models explainable: they come nearer to the signal",
            "section 8.4, (177) and (178)",
            followed,
            (20, INFINITE),
            "(177) at the least weight above that at the largest, dB",
            construction="the minimizer's measure cannot grow with its weight",
        ),
        Claim(
            "right-helps",
            "with a right signal the error falls, the more the larger rho",
            "Exercise 8.2",
            falls,
            (0, INFINITE),
            "the error at every weight below that at the one before, dB",
            ours=True,
        ),
        Claim(
            "wrong-harms",
            "with a wrong signal it grows: models follow that, too",
            "Exercise 8.2",
            above_none(1.0, 1.0, 10.0, 100.0),
            (0, INFINITE),
            "the error with a signal above that without, dB",
            condition="a signal off by one in each parameter, of a weight of one or more",
            ours=True,
        ),
        Claim(
            "wrong-limit",
            "in the end the error is that of the model behind the signal",
            "Exercise 8.2",
            limit,
            (0.9, 1.1),
            "at the largest rho over the squared distance of that model",
            condition="as many points of the signal as parameters or more",
            ours=True,
        ),
        Claim(
            "slightly-wrong-helps",
            "a signal that is off by less than the nodes are themselves helps, too, as any "
            "biased prior does",
            "section 8.4",
            above_none(0.25, 1.0, 10.0),
            (-INFINITE, 0),
            "the error with a signal off by a quarter above that without, dB",
            ours=True,
            note=best_weight,
        ),
        Claim(
            "instance-right",
            "errors .67, .45, .19, .041, .004 at rho = 0, .1, 1, 10, 100 with the right signal",
            "Exercise 8.2; one instance, computed before",
            rank(0.0),
            (2.5, 97.5),
            "per cent of the rings with less: within the middle 95 %",
            condition="one instance, of which points and noise are not given",
            ours=True,
        ),
        Claim(
            "instance-wrong",
            "and .65, .65, 1.54, 3.00, 3.75 with a wrong one",
            "Exercise 8.2; one instance, computed before",
            rank(1.0),
            (2.5, 97.5),
            "per cent of the rings with less: within the middle 95 %",
            condition="one instance, of which points and noise are not given",
            ours=True,
        ),
    ],
    settings=(NODES, DIM, SAMPLES, COUPLING, POINTS, NOISE, STRENGTHS, SHIFTS),
    table=lambda studies: [
        {
            "off by": shift,
            "rho": at,
            "error": float(studies["all"]["instance"].sel(shift=shift, at=at).mean()),
        }
        for shift in SHIFTS.value
        for at in INSTANCE
    ],
)
