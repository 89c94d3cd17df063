"""What the figures of Rizk 2023, chapter 3, share: settings, scenario, steps, claims.

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
from fljax._module import replace
from fljax.algorithms import GraphFedAvg
from fljax.batches import Uniform
from fljax.link import Noise

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
REPLACEMENT = Setting("batches", "with replacement", "as in figure 2.1 (section 2.6.1)")
DEGREE = Setting("mean degree of the servers' graph", 4, "not given; random and connected")

COMMON = (
    *(SERVERS, CLIENTS, SAMPLES, DIM, CHOSEN, EPOCHS, BATCHES, RHO),
    *(EIGENVALUES, DATA_NOISE, REPLACEMENT, DEGREE),
    *network.COMMON,
)

#: Whose numbers are drawn once: of local steps and batch sizes, and of network and data.
DRAWS = np.random.default_rng(0)
ALL = SERVERS.value * CLIENTS.value
STEPS_OF = tuple(DRAWS.integers(*EPOCHS.value, size=ALL, endpoint=True).tolist())
BATCHES_OF = tuple(DRAWS.integers(*BATCHES.value, size=ALL, endpoint=True).tolist())

# --------------------------------------------------------------------------- scenario


@network.drawn_once
def world() -> tuple[fl.problems.Problem, fl.federation.Federation]:
    """The data of all clients, and the servers' network."""
    k_graph, k_data = jax.random.split(fl.random_key(0))
    graph = fl.graphs.random_connected(k_graph, SERVERS.value, DEGREE.value)
    median, spread = DATA_NOISE.value
    problem = data.regression(
        k_data,
        ALL,
        SAMPLES.value,
        DIM.value,
        RHO.value,
        eigenvalues=EIGENVALUES.value,
        noise=median,
        noise_spread=spread,
    )
    return problem, fl.federation.balanced(CLIENTS.value, graph)


def algorithm(step_size: Array | float) -> GraphFedAvg:
    """Of the source, with as many local steps as each client takes."""
    batches = Uniform(BATCHES_OF, replacement=True)
    return GraphFedAvg(step_size, STEPS_OF, CHOSEN.value, batches)


def scenario(key: Array, scheme: Noise, variance: Array, step_size: Array) -> fl.Simulation:
    """One run of the regression (section 3.5.1)."""
    problem, servers = world()
    return fl.Simulation(
        problem=problem,
        algorithm=algorithm(step_size),
        network=servers,
        noise=replace(scheme, variance=variance),
        metrics=network.METRICS,
    )


def study(name: str, effort: Effort, **asked: Any) -> xr.Dataset:
    """Both schemes and none."""
    return network.study(name, effort, scenario, **asked)


def predicted(schemes: Sequence[str], rounds: int | None = None, **axes: Any) -> xr.Dataset:
    """By theory."""
    return network.predicted(scenario, schemes, rounds, **axes)
