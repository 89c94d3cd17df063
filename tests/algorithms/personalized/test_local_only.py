"""Clients that train alone, and the minimizers at which they end."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import LocalOnly
from tests.reference import nfl
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    PROBLEMS,
    make_data,
    make_objective,
    make_problem,
    trajectory,
)

close = np.testing.assert_allclose


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_alone_ends_at_each_client_s_own_minimizer(name):
    last = trajectory(fl.Simulation(make_problem(name), LocalOnly(0.1, 5)), 2500)[-1]
    expected = [nfl.prox(make_objective(name), k, 0.0, np.zeros(DIM)) for k in range(CLIENTS)]
    close(last, expected, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_with_few_samples_local_training_ends_nearest_to_zero():
    """It ends at the minimizer of least norm, as its docstring states."""
    problem = make_problem(strength=0.0)
    few = problem.take(jnp.arange(CLIENTS, dtype=jnp.int32), jnp.zeros((CLIENTS, 1), jnp.int32))
    last = trajectory(fl.Simulation(few, LocalOnly(0.05, 20)), 300)[-1]
    for k, (X, y) in enumerate(make_data()):
        close(last[k], np.linalg.pinv(X[:1]) @ y[:1], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalOnly(0.0), "step size must be finite and > 0, got 0"),
        (lambda: LocalOnly(0.1, 0), "local_steps must be >= 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
