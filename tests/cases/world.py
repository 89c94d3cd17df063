"""A small world, and what loops of several wings share."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.costs import Cost, Size
from fljax._generator import as_key
from fljax._numerics import key_of
from fljax.algorithms import (
    Algorithm,
    Scaffnew,
)
from fljax.metrics import Metric
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
from fljax.schedules import GeometricDecay, PowerDecay
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
#: With servers: who is at which, and how they are joined. With tasks: who is of which cluster.
SERVER, LINE, CLUSTER = [0, 0, 1, 1, 1], [(0, 1)], [0, 1, 0, 1, 1]
#: Points that all know, and a table whose columns are at the clients.
TEST_SET = np.random.default_rng(5).normal(size=(4, DIM))
COLUMNS, TABLE = [[0, 3], [1], [2, 4, 6], [5], [7]], np.random.default_rng(6).normal(size=(12, 9))
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
SILENCE = np.zeros((ROUNDS, CLIENTS, DIM)), np.zeros((ROUNDS, CLIENTS))  # draws and their scale
THERE, AT_ONCE = np.ones((ROUNDS, CLIENTS), bool), np.zeros((ROUNDS, CLIENTS), int)
TOGETHER = personal.World([range(CLIENTS)] * ROUNDS, THERE, AT_ONCE)
ONE_BY_ONE = online.environment_of(make_data(), THERE, THERE, AT_ONCE)
MEMBERS = [pgfl.Client(X, y, ridge=STRENGTH / CLIENTS) for X, y in make_data()]


def step_of(schedule):
    if isinstance(schedule, PowerDecay):
        return lambda n: float(schedule.initial) * n ** -float(schedule.power)
    return lambda n: float(schedule.value)


def whole(steps, rounds=ROUNDS, clients=CLIENTS):
    """All samples in every step, of every client and round."""
    return [[steps * [None]] * clients] * rounds


def sampled(objective):
    """A client's gradient on some of its samples; all for ``None``."""

    def gradient(k, w, rows=None):
        if rows is None:
            return objective.gradient(k, w)
        X, y = objective.data[k]
        data = (*objective.data[:k], (X[rows], y[rows]), *objective.data[k + 1 :])
        return dataclasses.replace(objective, data=data).gradient(k, w)

    return gradient


def counts_of(it, objective):
    weighed = getattr(it, "weighting", None) == "samples"
    return objective.counts if weighed else np.ones(objective.clients)


def drawn(it, seed=1):
    """``[T, K]``: who takes part, as drawn in the run."""
    choose = partial(it.selection.choose, available=THERE[0], network=make_servers())
    each = [choose(key_of(now, "participation")) for now in keys_of(seed)]
    return np.array([who.put(jnp.zeros(CLIENTS, bool), who.here) for who in each])


def keys_of(seed, rounds=ROUNDS):
    return [jax.random.fold_in(as_key(seed), n) for n in range(1, rounds + 1)]


START = np.zeros((CLIENTS, DIM))
METROPOLIS = nfl.metropolis(CLIENTS, EDGES)


def some_of(k, w, rows=None):
    """A client's gradient, or the mean of some of its samples'."""
    return multiagent.slope(OBJECTIVE, k, w, rows and (rows, [1 / len(rows)] * len(rows)))


def coins_of(probability, seed=1, rounds=ROUNDS):
    keys = [key_of(now, "algorithm") for now in keys_of(seed, rounds)]
    return [bool(jax.random.uniform(k, (), float) < probability) for k in keys]


def skipped(it, gradient=some_of, start=START):
    probability = float(it.probability)
    given = step_of(it.step_size), probability, coins_of(probability), start
    if isinstance(it, Scaffnew):
        return peers.scaffnew(gradient, *given)
    return peers.proxskip(gradient, METROPOLIS, *given)


class Case(NamedTuple):
    """A registered algorithm at a small size."""

    algorithm: Algorithm
    privacy: Any  # the budget it runs under; None: it has no private form
    oracle: Callable[..., np.ndarray]  # algorithm -> its models by the loops
    cost: Callable[[Size, bool], Cost]  # size, private -> what a round of it must do
    #: Where it stays at the optimum: "always", where clients are "alike", or "never".
    rests: str = "always"


DECAYING = GeometricDecay(0.3, 0.9)
