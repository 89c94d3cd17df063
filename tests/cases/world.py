"""A small world, and what loops of several wings share."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from fljax._core.prng import as_key, key_of
from fljax.algorithms import (
    Algorithm,
    Scaffnew,
)
from fljax.metrics.definitions import Metric
from fljax.optimization.schedules import GeometricDecay, PowerDecay, Warmup
from fljax.privacy import ZCDP, Gap
from fljax.problems import (
    ElasticNet,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    NoRegularizer,
    SquaredL2,
    from_clients,
)
from tests.cases.costs import Cost, Size
from tests.reference import (
    multiagent,
    nfl,
    online,
    peers,
    personal,
    pgfl,
)

SIZES = (4, 9, 6, 12, 7)
CLIENTS = len(SIZES)
DIM = 3
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)]
ROUNDS = 12
#: For federations: the server of each client, and the edges between servers. For tasks: the cluster
#: of each client.
SERVER = [0, 0, 1, 1, 1]
LINE = [(0, 1)]
CLUSTER = [0, 1, 0, 1, 1]
#: Points that all know, and a table whose columns are at the clients.
TEST_SET = np.random.default_rng(5).normal(size=(4, DIM))
COLUMNS = [[0, 3], [1], [2, 4, 6], [5], [7]]
TABLE = np.random.default_rng(6).normal(size=(12, 9))
EXACT = Metric("exact", lambda now: now.model, "the models themselves")
#: name -> loss, regularizer, and the same to the reference: loss, l1, l2
PROBLEMS = {
    "ridge": (LeastSquares(), SquaredL2(), "squared", 0.0, 1.0),
    "elastic": (LeastSquares(), ElasticNet(0.4, 0.2), "squared", 0.4, 0.2),
    "lad": (LeastAbsoluteDeviation(), NoRegularizer(), "absolute", 0.0, 0.0),
    "logistic": (Logistic(), SquaredL2(), "logistic", 0.0, 1.0),
}
STRENGTH = 0.8


def make_data(name="ridge", seed=0, sizes=SIZES, dim=DIM):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=dim)
    data = []
    for size in sizes:
        X = rng.normal(size=(size, dim))
        y = X @ truth + 0.5 * rng.normal(size=size)
        data.append((X, np.sign(y) if name == "logistic" else y))
    return tuple(data)


def make_problem(name="ridge", clip=None, data=None, **kwargs):
    loss, regularizer, *_ = PROBLEMS[name]
    problem = from_clients(data or make_data(name, **kwargs), loss, regularizer, STRENGTH)
    return problem if clip is None else problem.clipped(clip)


def make_objective(name="ridge", clip=None, **kwargs):
    _, _, loss, l1, l2 = PROBLEMS[name]
    return nfl.Objective(make_data(name, **kwargs), loss, l1, l2, STRENGTH, clip)


def gap_of(problem, bound=1.0, neighbors="replace"):
    return Gap.of(ZCDP(1.0, gradient_bound=bound, neighbors=neighbors), problem)


def make_network(form="dense", nodes=CLIENTS, edges=EDGES):
    return fl.graphs.from_edges(nodes, edges, form=form)


def make_servers():
    return fl.federation.Federation(SERVER, make_network(nodes=2, edges=LINE))


OBJECTIVE = make_objective()
NO_NOISE = np.zeros((ROUNDS, CLIENTS, DIM)), np.zeros((ROUNDS, CLIENTS))  # draws and their scale
ALL_ACTIVE = np.ones((ROUNDS, CLIENTS), bool)
NO_DELAY = np.zeros((ROUNDS, CLIENTS), int)
FULL_PARTICIPATION = personal.World([range(CLIENTS)] * ROUNDS, ALL_ACTIVE, NO_DELAY)
SAMPLE_STREAM = online.environment_of(make_data(), ALL_ACTIVE, ALL_ACTIVE, NO_DELAY)
MEMBERS = [pgfl.Client(X, y, ridge=STRENGTH / CLIENTS) for X, y in make_data()]


def step_of(schedule):
    if isinstance(schedule, PowerDecay):
        return lambda n: float(schedule.initial) * n ** -float(schedule.power)
    if isinstance(schedule, Warmup):
        first, last, rounds = float(schedule.initial), float(schedule.final), float(schedule.rounds)
        return lambda n: first + (last - first) * min(1, (n - 1) / rounds)
    return lambda n: float(schedule.value)


def full_batches(steps, rounds=ROUNDS, clients=CLIENTS):
    """All samples in every step, of every client and round."""
    return [[steps * [None]] * clients] * rounds


def sample_gradient_of(objective):
    """A client's gradient on some of its samples; all for ``None``."""

    def gradient(k, w, rows=None):
        if rows is None:
            return objective.gradient(k, w)
        X, y = objective.data[k]
        data = (*objective.data[:k], (X[rows], y[rows]), *objective.data[k + 1 :])
        return dataclasses.replace(objective, data=data).gradient(k, w)

    return gradient


def counts_of(algorithm, objective):
    weighed = getattr(algorithm, "weighting", None) == "samples"
    return objective.counts if weighed else np.ones(objective.clients)


def participation_of(algorithm, seed=1):
    """``[T, K]``: the participants, as drawn in the run."""
    choose = partial(algorithm.selection.choose, available=ALL_ACTIVE[0], network=make_servers())
    participants = [choose(key_of(now, "participation")) for now in keys_of(seed)]
    return np.array([chosen.put(jnp.zeros(CLIENTS, bool), chosen.here) for chosen in participants])


def keys_of(seed, rounds=ROUNDS):
    return [jax.random.fold_in(as_key(seed), n) for n in range(1, rounds + 1)]


START = np.zeros((CLIENTS, DIM))
METROPOLIS = nfl.metropolis(CLIENTS, EDGES)


def batch_gradient(k, w, rows=None):
    """A client's gradient, or the mean of some of its samples'."""
    return multiagent.gradient(OBJECTIVE, k, w, rows and (rows, [1 / len(rows)] * len(rows)))


def coins_of(probability, seed=1, rounds=ROUNDS):
    keys = [key_of(now, "algorithm") for now in keys_of(seed, rounds)]
    return [bool(jax.random.uniform(k, (), float) < probability) for k in keys]


def compression_of(compressor, seed=1, clients=CLIENTS):
    """The compressed vector of a client in a round, by the run's draws: ``(n, k, v, m) -> [D]``,
    with ``m`` the number of its message in this round; client ``clients`` is the server.
    """
    compress = jax.jit(compressor.compress)

    def compressed(n, k, vector, message=1):
        key = key_of(jax.random.fold_in(as_key(seed), n), "compression")
        key = jax.random.fold_in(key, clients + message) if message > 1 else key
        keys = jax.random.fold_in(key, k)[None]
        return np.asarray(compress(keys, jnp.asarray(vector)[None]))[0]

    return compressed


def proxskip_models(algorithm, gradient=batch_gradient, start=START):
    probability = float(algorithm.probability)
    arguments = step_of(algorithm.step_size), probability, coins_of(probability), start
    if isinstance(algorithm, Scaffnew):
        return peers.scaffnew(gradient, *arguments)
    return peers.proxskip(gradient, METROPOLIS, *arguments)


class Case(NamedTuple):
    """A registered algorithm at a small size."""

    algorithm: Algorithm
    privacy: Any  # the budget it runs under; None: it has no private form
    oracle: Callable[..., np.ndarray]  # algorithm -> its models by the loops
    cost: Callable[[Size, bool], Cost]  # size, private -> lower bound on the work of a round
    #: Where it stays at the optimum: "always", where clients are equal ("alike"), or "never".
    rests: str = "always"
    #: What a client of a server sends and receives in a round: how many messages, and how many
    #: models in them (DIM + 1 numbers where a number is sent with one). Peers send one message.
    sent: tuple[float, float] = (2, 2)


DECAYING = GeometricDecay(0.3, 0.9)
