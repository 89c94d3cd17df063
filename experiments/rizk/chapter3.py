"""Shared by the figures of Rizk 2023, chapter 3: settings, scenario, steps, claims.

The source gives the sizes, the step, the regularizer and the noise. Every value that it leaves open
is in this file, once, with its reason. Nothing is tuned.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

import fljax as fl
from experiments.figure import Effort, Setting
from experiments.rizk import data, network
from fljax._core.module import replace
from fljax.algorithms import GraphFedAvg
from fljax.link import Noise
from fljax.problems import Problem
from fljax.problems.batches import Uniform

# --------------------------------------------------------------------------- settings

SERVERS = Setting("servers P", 10, "section 3.5.1", given=True)
CLIENTS = Setting("clients a server K", 100, "section 3.5.1", given=True)
SAMPLES = Setting("samples a client", 100, "section 3.5.1", given=True)
DIM = Setting("parameters M", 2, "section 3.5.1", given=True)
CHOSEN = Setting("clients a round and server L", 11, "section 3.5.1", given=True)
EPOCHS = Setting("local steps E_k", (1, 10), "section 3.5.1; uniform, drawn once", given=True)
BATCHES = Setting("batch sizes B_k", (5, 10), "section 3.5.1; uniform, drawn once", given=True)
STEP = Setting("step size mu", 0.7, "section 3.5.1", given=True)
RHO = Setting("regularizer rho", 0.1, "section 3.5.1", given=True)
VARIANCE = Setting("variance of the noise", 0.1, "section 3.5.1", given=True)

EIGENVALUES = Setting(
    "eigenvalues of the features' covariances",
    (0.01, 0.08),
    "log-uniform, each client's own. The step 5 of figure 3.4 with rho = 0.1 is stable only where "
    "5 (lambda + 0.1) < 1, that is for eigenvalues below 0.1",
)
DATA_NOISE = Setting(
    "variance of the responses' noise",
    (0.1, 0.5),
    "median, and spread of the logarithm of its deviation over clients: that of the house's "
    "problems, about as strong as the signal of such features",
)
FEATURES = Setting(
    "open: eigenvalues",
    ((0.01, 0.08), (0.05, 0.12)),
    "those above, and the largest with which the step 5 is stable for the mean of all clients",
)
LOUDNESS = Setting(
    "open: variance of the responses' noise",
    (0.1, 1.0, 5.0),
    "that above, and up to where it is far above the signal",
)
REPLACEMENT = Setting("batches", "with replacement", "as in figure 2.1 (section 2.6.1)")
DEGREE = Setting("mean degree of the servers' graph", 4, "not given; random and connected")

COMMON = (
    *(SERVERS, CLIENTS, SAMPLES, DIM, CHOSEN, EPOCHS, BATCHES, RHO),
    *(EIGENVALUES, DATA_NOISE, REPLACEMENT, DEGREE),
    *network.COMMON,
)

#: Seeds of the numbers that are drawn once: local steps and batch sizes, network and data.
DRAWS = np.random.default_rng(0)
ALL = SERVERS.value * CLIENTS.value
STEPS_OF = tuple(DRAWS.integers(*EPOCHS.value, size=ALL, endpoint=True).tolist())
BATCHES_OF = tuple(DRAWS.integers(*BATCHES.value, size=ALL, endpoint=True).tolist())

# --------------------------------------------------------------------------- scenario


def problem(eigenvalues: tuple[float, float], noise: float, seed: int = 0) -> Problem:
    """The data of all clients; under every open distribution a seed has the same draws."""
    _, k_data = jax.random.split(fl.random_key(seed))
    return data.regression(
        k_data,
        ALL,
        SAMPLES.value,
        DIM.value,
        RHO.value,
        eigenvalues=eigenvalues,
        noise=noise,
        noise_spread=DATA_NOISE.value[1],
    )


@network.drawn_once
def world() -> tuple[Problem, fl.federation.Federation]:
    """The data of all clients, and the servers' network."""
    k_graph, _ = jax.random.split(fl.random_key(0))
    graph = fl.graphs.random_connected(k_graph, SERVERS.value, DEGREE.value)
    regression = problem(EIGENVALUES.value, DATA_NOISE.value[0])
    return regression, fl.federation.balanced(CLIENTS.value, graph)


@network.drawn_once
def open_data() -> dict[str, Problem]:
    """The data under every distribution that the source leaves open."""
    return network.of_laws(problem, FEATURES.value, LOUDNESS.value)


def algorithm(step_size: Array | float) -> GraphFedAvg:
    """The source's algorithm, with each client's number of local steps."""
    batches = Uniform(BATCHES_OF, replacement=True)
    return GraphFedAvg(step_size, STEPS_OF, CHOSEN.value, batches)


def simulation(
    scheme: Noise, variance: Array, step_size: Array, problem: Problem | None = None
) -> fl.Simulation:
    """The regression (section 3.5.1), of the data above or of others."""
    regression, servers = world()
    return fl.Simulation(
        problem=regression if problem is None else problem,
        algorithm=algorithm(step_size),
        network=servers,
        noise=replace(scheme, variance=variance),
        metrics=network.METRICS,
    )


def scenario(key: Array, scheme: Noise, variance: Array, step_size: Array) -> fl.Simulation:
    """One run."""
    return simulation(scheme, variance, step_size)


def on_edges(
    key: Array, scheme: Noise, variance: Array, step_size: Array, edge: Array
) -> fl.Simulation:
    """One run with an edge weight, which determines the servers' self-weights."""
    run = simulation(scheme, variance, step_size)
    (_, servers) = world()
    assert servers.graph is not None
    return replace(run, network=replace(servers, graph=network.weighted(servers.graph, edge)))


def on_data(
    key: Array, scheme: Noise, variance: Array, step_size: Array, data: Problem
) -> fl.Simulation:
    """One run on other data."""
    return simulation(scheme, variance, step_size, data)


def study(name: str, effort: Effort, **asked: Any) -> xr.Dataset:
    """Both schemes and none."""
    return network.study(name, effort, scenario, **asked)


def predicted(schemes: Sequence[str], rounds: int | None = None, **axes: Any) -> xr.Dataset:
    """The theoretical deviations."""
    return network.predicted(scenario, schemes, rounds, **axes)
