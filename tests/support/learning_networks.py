"""A small network of Jung 2025: quadratic problems, weighted edges, runs and operators on it."""

import jax.numpy as jnp
import numpy as np

import fljax as fl
from fljax.problems import LeastSquares, Logistic, from_clients
from tests.cases import CLIENTS, DIM, EDGES, EXACT, make_data
from tests.reference import networks
from tests.support.rounds import trajectory

DATA = make_data()
STRENGTHS = np.array([0.5, 1.0, 2.0, 0.7, 1.3, 0.4])
ADJACENCY = networks.weights_of(CLIENTS, [(*e, a) for e, a in zip(EDGES, STRENGTHS, strict=True)])
START = np.zeros((CLIENTS, DIM))
#: The minimizer of each client's own data.
ALONE = np.array([np.linalg.lstsq(X, y, rcond=None)[0] for X, y in DATA])
#: Other models, to apply an operator to.
POINTS = np.random.default_rng(3).normal(size=(CLIENTS, DIM))


def quadratic_problem(**kwargs):
    """Least squares of the clients' data, without a regularizer unless given."""
    return from_clients(DATA, LeastSquares(), **kwargs)


def weighted_network(adjacency=ADJACENCY):
    """The graph of these weights."""
    return fl.graphs.from_adjacency(adjacency, allow_disconnected=True)


def simulate(algorithm, **parts):
    """A simulation on this problem and network, or on others."""
    parts = {"problem": quadratic_problem(), "network": weighted_network()} | parts
    return fl.Simulation(algorithm=algorithm, metrics=(EXACT,), **parts)


def operated(algorithm, at=POINTS, **parts):
    """The operator's output for these models, received without loss."""
    now = fl.view(simulate(algorithm, **parts))
    state = algorithm.init(now.problem, now.network)
    received = now.network.mixing("neighbors")(jnp.asarray(at))
    return np.asarray(
        algorithm.operator(state._replace(model=jnp.asarray(at), received=received), now)
    )


def full_gradient(k, w, t):
    """The gradient on all samples of a client."""
    return networks.mean_squared_slope(DATA, k, w)


def served_models(algorithm, rounds):
    """``[T, D]`` of a server instead of the network."""
    return node_models(algorithm, rounds, network=None)[:, 0]


#: The same weights, the last node's replaced by zeros.
ISOLATED = ADJACENCY * (np.arange(CLIENTS) != 4) * (np.arange(CLIENTS) != 4)[:, None]
#: Weights of clients, one of them without labels.
UNLABELED = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
FEW_DATA = from_clients([(X[:2], y[:2]) for X, y in DATA], LeastSquares())
LOGISTIC = from_clients(make_data("logistic"), Logistic())


def node_models(algorithm, rounds, **parts):
    """``[T, K, D]``, the nodes' models of every round."""
    return trajectory(simulate(algorithm, **parts), rounds)
