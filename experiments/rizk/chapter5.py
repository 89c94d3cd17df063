"""Shared by the figures of the open questions (Rizk 2023, section 5.2): data, network, theory.

The source has no experiments; every value is ours, in this file or a figure's, once.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes

import fljax as fl
from experiments.figure import Estimate, Measure, Setting, Studies
from experiments.measures import gap, samples
from experiments.rizk import data, network
from fljax import plotting, statistics
from fljax._core.module import replace
from fljax._core.prng import normal
from fljax.theory import multiagent as theory

AGENTS = Setting("agents K", 10, "few, of whom the exact recursion takes seconds")
SAMPLES = Setting("samples of an agent", 20, "with noise that single samples show")
DIM = Setting("parameters M", 2, "as in chapters 2 to 4")
RHO = Setting("regularizer rho", 0.001, "as in chapter 2")
EIGENVALUES = Setting(
    "eigenvalues of the features' covariances",
    (0.5, 2.0),
    "as in chapter 2, with directions of each agent's own",
)
NOISE = Setting("variance of the responses' noise", 0.1, "as in chapter 3")
UNLIKE = Setting(
    "deviation of an agent's own model from the common one",
    {"alike": 0.0, "unlike": 0.5},
    "none, and half a unit in each parameter, of a model of unit variance",
)
GRAPH = Setting("network", 3.0, "mean degree, random and connected; Metropolis weights")
DRAWN_ONCE = Setting(
    "network and data", "drawn once", "theory is of these data, and runs are of its draws"
)

COMMON = (AGENTS, SAMPLES, DIM, RHO, EIGENVALUES, NOISE, UNLIKE, DRAWN_ONCE)

METRIC = "mean_square_deviation"
ATC = "ATC"
FEDAVG = "FedAvg"
#: In the order of their colors.
METHODS = (ATC, FEDAVG)


@network.drawn_once
def _world() -> tuple[fl.problems.Problem, Array]:
    """The data of one common model, and the response offsets of agents' own models."""
    key, model_key = jax.random.split(fl.random_key(1))
    problem = data.regression(
        key,
        AGENTS.value,
        SAMPLES.value,
        DIM.value,
        RHO.value,
        eigenvalues=EIGENVALUES.value,
        noise=NOISE.value,
    )
    models = normal(model_key, (AGENTS.value, DIM.value), problem.dtype)
    return problem, jnp.einsum("knp,kp->kn", problem.features, models, precision=data.HIGHEST)


def world(unlike: Array | float) -> fl.problems.Problem:
    """The agents' data; ``unlike`` scales the distance of their models."""
    problem, offsets = _world()
    return replace(problem, targets=problem.targets + jnp.asarray(unlike, problem.dtype) * offsets)


@network.drawn_once
def graph() -> fl.graphs.Graph:
    """The agents' network."""
    return fl.graphs.random_connected(fl.random_key(2), AGENTS.value, GRAPH.value)


#: Numbers of a simulation by theory, ``[]`` or ``[T]``.
Reading = Callable[[fl.Simulation], Mapping[str, Array]]


def at_rest(simulation: fl.Simulation) -> dict[str, Array]:
    """The individual deviation of the steady state, exactly."""
    return {METRIC: theory.steady_state(simulation).individual}


def on_the_way(rounds: int) -> Reading:
    """The individual deviation after each round."""
    return lambda simulation: {METRIC: theory.learning_curve(simulation, rounds).individual}


def predicted(
    scenario: Callable[..., fl.Simulation],
    axes: Mapping[str, Sequence[Any]],
    read: Reading = at_rest,
) -> xr.Dataset:
    """The theoretical values at every point of a grid.

    Points are computed in a loop, because the theory's compiled programs serve all of them; a
    program around them would be compiled for every structure.

    Args:
      scenario: a function of a key and the axes.
      axes: values by name.
      read: the computed quantity.
    """
    points = itertools.product(*axes.values())
    parts = [
        read(scenario(fl.random_key(0), **dict(zip(axes, point, strict=True)))) for point in points
    ]
    sizes = [len(values) for values in axes.values()]
    result = {}
    for name in parts[0]:
        values = np.stack([part[name] for part in parts])
        extra = ("round",) if values.ndim > 1 else ()
        result[name] = ((*axes, *extra), values.reshape(*sizes, *values.shape[1:]))
    data = xr.Dataset(result, {name: list(values) for name, values in axes.items()})
    rounds = data.sizes.get("round")
    return data if rounds is None else data.assign_coords(round=np.arange(1, rounds + 1))


def labeled(data: xr.Dataset) -> xr.Dataset:
    """The study with words for the dissimilarity of agents."""
    if "unlike" not in data.dims:
        return data
    names = {value: name for name, value in UNLIKE.value.items()}
    return data.assign_coords(unlike=[names[float(value)] for value in data["unlike"].values])


def agreement(studies: Mapping[str, str]) -> Measure:
    """How far runs' steady states are above what theory says, dB, by the label of a study."""

    def measure(results: Studies) -> dict[str, Estimate]:
        cases = {}
        for name, label in studies.items():
            level = results[f"{name}-theory"][METRIC]
            for values in itertools.product(*(level[axis].values for axis in level.dims)):
                where = dict(zip(map(str, level.dims), values, strict=True))
                runs = samples(results[name], where, METRIC)
                case = ", ".join(str(v) if isinstance(v, str) else f"{v:g}" for v in values)
                cases[f"{label}: {case}"] = gap(runs, np.full(len(runs), float(level.sel(where))))
        return cases

    return measure


def draw_levels(ax: Axes, runs: xr.Dataset, level: xr.Dataset, axis: str) -> None:
    """Steady states of runs as points on the lines that theory has for them, dB; a color a method,
    dashed where agents are unlike.
    """
    other_dims = [dim for dim in level[METRIC].dims if dim != axis]
    for values in itertools.product(*(level[dim].values for dim in other_dims)):
        where = dict(zip(other_dims, values, strict=True))
        look = plotting.LOOKS[METHODS.index(where.get("algorithm", METHODS[0]))]
        shape = "--" if where.get("unlike") == "unlike" else "-"
        line = statistics.decibels(level[METRIC].sel(where).values)
        ax.plot(level[axis], line, shape, color=look["color"], label=", ".join(values))
        mean = runs[METRIC].sel(where).mean("seed")
        points = {"color": look["color"], "marker": look["marker"], "linestyle": "none"}
        ax.plot(runs[axis], statistics.decibels(mean.values), **points)
