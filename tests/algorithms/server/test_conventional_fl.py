"""Conventional federated learning: gradient descent at the server."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ConventionalFL
from tests.cases import CLIENTS, DIM, ROUNDS, make_problem
from tests.support.online_world import short_run
from tests.support.rounds import Stepper, totals, trajectory

close = np.testing.assert_allclose


def test_federated_averaging_with_one_local_step_is_gradient_descent():
    problem = make_problem("logistic")
    best = jax.jit(fl.problems.optimum)(problem)
    last = trajectory(fl.Simulation(problem, ConventionalFL(2.0)), 1500)[-1]
    close(last, np.tile(best, (CLIENTS, 1)), atol=1e-9)


@pytest.mark.slow
def test_one_exact_local_step_transmits_no_models_but_counts_them():
    """The mean gradient of all data together, equal up to rounding."""
    problem = make_problem()
    stepper = Stepper(fl.Simulation(problem, ConventionalFL(0.05)), ROUNDS)
    state, witnessed, traffic = stepper(stepper.start()._replace(model=jnp.ones(DIM)), 1)
    stack = jnp.ones((CLIENTS, DIM))
    close(state.model, 1 - 0.05 * jnp.mean(problem.gradient(stack), axis=0), rtol=1e-12)
    close(witnessed, jnp.max(problem.sample_gradient_norm(stack)), rtol=1e-12)
    assert totals(traffic)[:2] == (2 * CLIENTS, 2 * CLIENTS * DIM)
    assert totals(traffic)[2:] == (32 * CLIENTS * DIM,) * 2


def test_privacy_of_streams_and_late_messages_is_refused():
    message = r"for fixed data, .* and messages without delay only; leave out privacy=, or a stream"
    with pytest.raises(ValueError, match=message):
        short_run(ConventionalFL(0.1), privacy=fl.privacy.ZCDP(1.0))
