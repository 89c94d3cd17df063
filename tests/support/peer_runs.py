"""Runs of peers: their models in every round, their distance from the minimizer."""

import jax
import numpy as np

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import (
    EXTRA,
    KGT,
    LED,
    NIDS,
    PGEXTRA,
    ADMMTracking,
    ATCTracking,
    AugDGM,
    DIGing,
    DiNNO,
    ExactDiffusion,
    WangElia,
)
from tests.cases import CLIENTS, DIM, ROUNDS, make_problem, network_of
from tests.support.rounds import trajectory

close = np.testing.assert_allclose

#: A start that differs between the clients.
ANYWHERE = np.random.default_rng(3).normal(size=(CLIENTS, DIM))
#: A ring in one direction, and a way from 3 to 1 besides: columns sum to one, rows do not.
ONE_WAY = np.array(
    [
        [0.5, 0.0, 0.0, 0.0, 0.3],
        [0.5, 0.4, 0.0, 0.2, 0.0],
        [0.0, 0.6, 0.7, 0.0, 0.0],
        [0.0, 0.0, 0.3, 0.5, 0.0],
        [0.0, 0.0, 0.0, 0.3, 0.7],
    ]
)


def simulation_of(algorithm, problem=None, network=None, metrics=("normalized_error",), **parts):
    """A simulation on the small network of the cases."""
    problem = make_problem() if problem is None else problem
    network = network_of(algorithm) if network is None else network
    return fl.Simulation(problem, algorithm, network, metrics=metrics, **parts)


def peer_run(algorithm, rounds, record_every=1, **world):
    """Its results, recorded every few rounds."""
    return fl.run(simulation_of(algorithm, **world), rounds, key=1, record_every=record_every)


def models(algorithm, rounds=ROUNDS, **world):
    """``[T, K, D]`` of the run whose draws the cases know."""
    return trajectory(simulation_of(algorithm, metrics=(), **world), rounds)


def still(values):
    """A problem whose gradients are zero, started at these values."""
    data = [(np.zeros((1, values.shape[1])), np.zeros(1))] * len(values)
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares(), strength=0.0)
    return problem.starting_at(values)


#: Algorithms whose peers end at the minimizer with constant steps.
EXACT_METHODS = {
    "EXTRA": EXTRA(0.05),
    "PG-EXTRA": PGEXTRA(0.05),
    "Wang-Elia": WangElia(0.05),
    "NIDS": NIDS((0.05, 0.04, 0.06, 0.05, 0.03)),
    "Exact diffusion": ExactDiffusion(0.05),
    "LED": LED(0.03, local_steps=3),
    "DIGing": DIGing(0.05),
    "ATC tracking": ATCTracking(0.05),
    "Aug-DGM": AugDGM(0.05),
    "K-GT": KGT(0.03, local_steps=3, outer_step_size=0.7),
    "ADMM tracking": ADMMTracking(0.3, penalty=0.7, relaxation=0.4, blend=0.5),
    "DiNNO": DiNNO(0.4, 0.05, local_steps=3),
}


def ridge_peers(nodes=12):
    """A problem of more peers, and their network."""
    data, graph = jax.random.split(jax.random.key(7))
    problem = fl.problems.ridge(data, clients=nodes, samples=9, dim=3)
    return problem, fl.graphs.random_connected(graph, nodes=nodes, mean_degree=3)


def distance_from_minimizer(algorithm, rounds=3000, problem=None, network=None, **parts):
    """The largest distance of a peer from the minimizer."""
    default_problem, graph = ridge_peers()
    problem = default_problem if problem is None else problem
    network = graph if network is None else network
    simulation = fl.Simulation(problem, algorithm, network, **parts)
    results = np.asarray(fl.run(simulation, rounds, as_key(1)).model)
    return float(np.abs(results - np.asarray(fl.problems.optimum(problem))).max())


def close_to_loop(ours, theirs, atol):
    """Models equal the loop's, and move."""
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=atol)
    assert np.abs(theirs[-1] - theirs[0]).max() > 1e-3
