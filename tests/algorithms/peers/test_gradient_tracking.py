"""Gradient tracking: graphs that change, bad arguments."""

import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import ATCTracking, AugDGM, DIGing
from fljax.problems.batches import Uniform
from tests.cases import CLIENTS, DIM, EDGES, OBJECTIVE, ROUNDS, make_network, make_problem
from tests.reference import exact_peers, nfl
from tests.support.peer_runs import models

close = np.testing.assert_allclose


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "algorithm", [DIGing(0.05), ATCTracking(0.05)], ids=lambda algorithm: algorithm.label
)
def test_tracking_on_changing_graphs_equals_the_loop(algorithm):
    edges = [EDGES, EDGES[:4], EDGES[2:]]
    network = fl.graphs.GraphSchedule([make_network(edges=e) for e in edges])
    graphs = [nfl.metropolis(CLIENTS, edges[n % 3]) for n in range(ROUNDS)]
    gradient = lambda k, w, n, e: OBJECTIVE.gradient(k, w)  # noqa: E731
    arguments = gradient, graphs, np.zeros((CLIENTS, DIM)), 0.05, ROUNDS, algorithm.label
    close(models(algorithm, network=network), exact_peers.tracking(*arguments), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [DIGing(0.02), ATCTracking(0.02)], ids=lambda algorithm: algorithm.label
)
def test_tracking_needs_connectivity_over_time_only(algorithm):
    edges = [[(0, 1), (2, 3)], [(1, 2), (3, 4)], [(4, 0)]]
    parts = [fl.graphs.from_edges(CLIENTS, e, allow_disconnected=True) for e in edges]
    simulation = fl.Simulation(
        make_problem(), algorithm, fl.graphs.GraphSchedule(parts), allow_disconnected=True
    )
    results = np.asarray(fl.run(simulation, 12_000, as_key(1)).model)
    best = np.asarray(fl.problems.optimum(make_problem()))
    close(results, np.broadcast_to(best, results.shape), atol=1e-9)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="at most the 12 samples"):
        models(AugDGM(0.1, batches=Uniform(40)))
