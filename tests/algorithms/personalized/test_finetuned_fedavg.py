"""Federated averaging, and steps of each client from the server's model."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import Ditto, FedAvg, FineTunedFedAvg
from fljax.metrics.definitions import Metric
from tests.support.two_groups import (
    LOCAL,
    make_problem,
    new_key,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.thin(1)
@pytest.mark.parametrize("solver", [FedAvg(0.05, 4, 2, 3), FedAvg(LOCAL, weighting="equal")])
@pytest.mark.slow
def test_fine_tuning_leaves_the_server_s_rounds_alone(solver):
    """One step back from the tuned models, all clients hold the solver's model."""
    problem = make_problem()
    step = 0.03
    tuned = FineTunedFedAvg(solver, step)
    parts = world_of(solver, True, False, new_key())[0]
    server_models = trajectory(fl.Simulation(problem, solver, **parts))
    result = trajectory(fl.Simulation(problem, tuned, **parts))
    expected = server_models - step * np.stack(
        [problem.gradient(jnp.asarray(w)) for w in server_models]
    )
    close(result, expected, rtol=0, atol=1e-13)
    assert np.abs(result - server_models).max() > 1e-2


@pytest.mark.parametrize("wrapper", [lambda solver: Ditto(solver, LOCAL, 0.7), FineTunedFedAvg])
def test_solvers_keep_their_optimizer(wrapper):
    """What it remembers goes from round to round with the server's model."""
    solver = FedAvg(optax.adam(0.05), 3, 2, keeps_optimizer=True)
    algorithm = wrapper(solver, LOCAL) if wrapper is FineTunedFedAvg else wrapper(solver)
    server = Metric("exact", lambda now: now.state.shared.model, "the server's", dims=("server",))
    result = trajectory(fl.Simulation(make_problem(), algorithm), metric=server)
    alone = trajectory(fl.Simulation(make_problem(), solver))[:, 0]
    close(result, alone, rtol=1e-10, atol=1e-12)
    forgets = trajectory(fl.Simulation(make_problem(), FedAvg(optax.adam(0.05), 3, 2)))[:, 0]
    assert np.abs(forgets - alone).max() > 1e-3


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: FineTunedFedAvg(0.1, 0.1), "solver must be an instance of .*FedAvg"),
        (
            ValueError,
            lambda: FineTunedFedAvg(FedAvg(0.1), 0.1, 0),
            "tuning_steps must be >= 1, got 0. Without tuning, run the solver",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
