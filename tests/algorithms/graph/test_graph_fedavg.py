"""Federated averaging by several servers: what a step reports."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import GraphFedAvg
from tests.cases import CLIENTS, ROUNDS, make_data, make_problem, make_servers
from tests.support.rounds import Stepper, link_of


@pytest.mark.slow
def test_a_step_reports_the_gradients_of_its_participants():
    """The largest gradient norm depends on the data of every participant and of no other client."""
    key = as_key(17)
    largest = []
    algorithm = GraphFedAvg(0.05, 2, 1)
    budget = fl.privacy.ZCDP(1.0, gradient_bound=1.0)
    arguments = link_of(key, 1).key("participation"), jnp.ones(CLIENTS, bool), make_servers()
    chosen = algorithm.selection.choose(*arguments).numbers
    for client in [None, *range(CLIENTS)]:
        data = [(X, 100 * y) if k == client else (X, y) for k, (X, y) in enumerate(make_data())]
        problem = make_problem(data=data)
        simulation = fl.Simulation(problem, algorithm, make_servers(), privacy=budget)
        stepper = Stepper(simulation, ROUNDS)
        largest.append(float(stepper(stepper.start(), 1, key)[1]))
    changed = {k for k in range(CLIENTS) if largest[1 + k] != largest[0]}
    assert changed == set(np.asarray(chosen).tolist())
