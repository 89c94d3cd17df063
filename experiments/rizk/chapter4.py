"""Shared by the figures of Rizk 2023, chapter 4: settings, scenario, strategies.

The source gives the sizes, the step, the regularizer and the noise. Every value that it leaves open
is in this file, once, with its reason. Nothing is tuned.
"""

import jax
from jaxtyping import Array

import fljax as fl
from experiments.figure import Setting
from experiments.rizk import data, network
from fljax._core.module import replace
from fljax.algorithms import ATC, CTA, Algorithm, Consensus
from fljax.link import Noise
from fljax.optimization.schedules import Constant
from fljax.problems import Problem
from fljax.problems.batches import Uniform

# --------------------------------------------------------------------------- settings

PEERS = Setting("peers P", 30, "section 4.4.1 on figure 4.3", given=True)
SAMPLES = Setting("samples of a peer", 100, "section 4.4.1", given=True)
DIM = Setting("parameters M", 2, "section 4.4.1", given=True)
STEP = Setting("step size mu", 0.4, "section 4.4.1", given=True)
RHO = Setting("regularizer rho", 0.01, "section 4.4.1", given=True)
VARIANCE = Setting("variance of the noise", 0.01, "section 4.4.1", given=True)
ROUNDS = Setting("iterations", 1000, "section 4.4.1", given=True)
SEEDS = Setting("repetitions", 20, "“we repeat the experiment 20 times”, section 4.4.1", given=True)

EIGENVALUES = Setting(
    "eigenvalues of the features' covariance",
    (0.1, 0.5),
    "log-uniform, one covariance for all: a lone agent's steps of 0.4 on single samples are stable "
    "in the mean square below 0.6 or so",
)
DATA_NOISE = Setting(
    "variance of the responses' noise",
    (0.001, 0.5),
    "median, and spread of the logarithm of its deviation over peers. Below what is compared: the "
    "gradients of single samples would hide the random scheme's noise in the centroid if it were "
    "the 0.1 of chapter 3",
)
BATCH = Setting("samples a step", 1, "(4.12) and section 4.3.1; of the experiment it is not given")
FEATURES = Setting(
    "open: eigenvalues", ((0.01, 0.05), (0.1, 0.5)), "those above, and a tenth of them"
)
LOUDNESS = Setting(
    "open: variance of the responses' noise",
    (0.001, 0.01, 0.1),
    "that above, up to that of chapter 3",
)
BATCHES = Setting("open: samples a step", (1, 5, 10), "that above, and the ends of chapter 3's")
DEGREE = Setting(
    "network",
    4,
    "mean degree, random and connected, drawn until nobody has a single neighbor, whom local "
    "noise could not hide; the source's figure 4.3 gives no numbers",
)
WIDTH = 8

COMMON = (
    *(PEERS, SAMPLES, DIM, RHO, EIGENVALUES, DATA_NOISE, BATCH, DEGREE),
    *network.COMMON,
)

STRATEGIES: dict[str, type[Algorithm]] = {"consensus": Consensus, "CTA": CTA, "ATC": ATC}

# --------------------------------------------------------------------------- scenario


def drawn_network(nodes: int, seed: int = 0) -> fl.graphs.Graph:
    """A random connected graph with a minimal degree of two."""
    key = fl.random_key(seed)
    attempt = 0
    while True:
        graph = fl.graphs.random_connected(
            jax.random.fold_in(key, attempt), nodes, DEGREE.value, form="padded", max_degree=WIDTH
        )
        if int(graph.neighbor_counts().min()) > 1:
            return graph
        attempt += 1


def problem(eigenvalues: tuple[float, float], noise: float) -> Problem:
    """The data of all peers, with the same draws under every open distribution."""
    return data.regression(
        fl.random_key(1),
        PEERS.value,
        SAMPLES.value,
        DIM.value,
        RHO.value,
        eigenvalues=eigenvalues,
        noise=noise,
        noise_spread=DATA_NOISE.value[1],
        common=True,
    )


@network.drawn_once
def world() -> tuple[Problem, fl.graphs.Graph]:
    """The data of all peers, and their network."""
    return problem(EIGENVALUES.value, DATA_NOISE.value[0]), drawn_network(PEERS.value)


@network.drawn_once
def open_data() -> dict[str, Problem]:
    """The data under every distribution that the source leaves open."""
    return network.of_laws(problem, FEATURES.value, LOUDNESS.value)


def strategy(name: str, step_size: float = STEP.value, batch: int = BATCH.value) -> Algorithm:
    """One of the three strategies."""
    batches = Uniform(batch, replacement=True)
    return STRATEGIES[name](step_size, batches=batches)  # pyright: ignore[reportCallIssue]


def scenario(
    key: Array,
    strategy: Algorithm,
    scheme: Noise,
    variance: Array,
    step_size: Array,
    graph: fl.graphs.Graph,
) -> fl.Simulation:
    """One run of the regression (section 4.4.1)."""
    return fl.Simulation(
        problem=world()[0],
        algorithm=replace(strategy, step_size=Constant(step_size)),
        network=graph,
        noise=replace(scheme, variance=variance),
        metrics=network.METRICS,
    )


def on_data(
    key: Array, batch: Algorithm, scheme: Noise, variance: Array, data: Problem
) -> fl.Simulation:
    """One run on other data, by a strategy with its batches."""
    return fl.Simulation(
        problem=data,
        algorithm=batch,
        network=world()[1],
        noise=replace(scheme, variance=variance),
        metrics=network.METRICS,
    )
