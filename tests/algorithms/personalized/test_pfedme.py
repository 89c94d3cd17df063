"""pFedMe: where its envelopes balance, its limits, its form by gradient, bad arguments."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, PFedMe, PFedMeByGradient
from tests.reference import nfl
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    PROBLEMS,
    make_objective,
    make_problem,
    short_run,
    trajectory,
)

close = np.testing.assert_allclose


def by_gradient(**arguments):
    numbers = {"step_size": 0.1, "attraction": 1.0, "personal_step_size": 0.1}
    return PFedMeByGradient(**numbers | arguments)


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", PROBLEMS)
def test_pfedme_ends_where_the_envelopes_balance(name):
    r"""At the minimizer of :math:`\sum_kF_k`: the :math:`\lambda(w-\theta_k)` sum to zero."""
    attraction = 1.5
    objective = make_objective(name)
    for mixing, local_rounds in ((1.0, 1), (1.5, 1)):
        algorithm = PFedMe(0.4, attraction, local_rounds, mixing, inner_iterations=400)
        last = trajectory(fl.Simulation(make_problem(name), algorithm), 600)[-1]
        slopes = np.array([objective.gradient(k, last[k]) for k in range(CLIENTS)])
        close(slopes.sum(axis=0), 0, atol=1e-8)
        center = last + slopes / attraction  # of all clients the same w
        close(center, np.tile(center[0], (CLIENTS, 1)), rtol=0, atol=1e-8)
        assert np.abs(slopes).max() > 0.01


@pytest.mark.slow
def test_the_stationary_point_of_pfedme_stays():
    algorithm = PFedMe(0.3, 2.0, 1)
    objective = make_objective()
    server = np.random.default_rng(7).normal(size=DIM)
    for _ in range(3000):
        theta = np.array([nfl.prox(objective, k, 2.0, server) for k in range(CLIENTS)])
        server = theta.mean(axis=0)
    now = fl.view(fl.Simulation(make_problem(), algorithm))
    state = algorithm.init(now.problem, None)._replace(server=jnp.asarray(server))
    after = algorithm.step(state, now)
    close(after.server, server, rtol=0, atol=1e-12)
    close(after.model, theta, rtol=0, atol=1e-12)


def test_strong_attraction_makes_pfedme_gradient_descent():
    r""":math:`\theta_k\to w-f_k'(w)/\lambda`: the server steps as in federated averaging."""
    problem = make_problem()
    expected = trajectory(fl.Simulation(problem, FedAvg(0.1, weighting="equal")))
    for attraction in (1e4, 1e6):
        result = trajectory(fl.Simulation(problem, PFedMe(0.1, attraction)))
        before = np.concatenate([np.zeros_like(expected[:1]), expected[:-1]])
        close(result, before, rtol=0, atol=100 / attraction)


@pytest.mark.parametrize("name", PROBLEMS)
def test_many_personal_steps_are_the_exact_minimizer(name):
    problem = make_problem(name)
    exact = PFedMe(0.3, 1.5, 2, 1.2, inner_iterations=400)
    steps = PFedMeByGradient(
        0.3,
        attraction=1.5,
        personal_step_size=0.15,
        personal_steps=400,
        server_step_size=1.2,
        epochs=2,
    )
    expected = trajectory(fl.Simulation(problem, exact))
    close(trajectory(fl.Simulation(problem, steps)), expected, rtol=0, atol=1e-9)


def test_local_models_that_follow_the_personal_ones_are_federated_averaging():
    r"""With :math:`\eta\lambda=1` and one personal step."""
    algorithm = PFedMeByGradient(
        0.5, attraction=2.0, personal_step_size=0.1, personal_steps=1, epochs=3
    )
    personal = trajectory(fl.Simulation(make_problem(), algorithm))
    common = trajectory(fl.Simulation(make_problem(), FedAvg(0.1, epochs=3, weighting="equal")))
    close(personal.mean(axis=1), common[:, 0], rtol=0, atol=1e-12)
    assert np.ptp(personal[-1], axis=0).min() > 1e-2


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: PFedMe(0.1, 0.0), "attraction must be finite and > 0, got 0"),
        (ValueError, lambda: PFedMe(0.1, 1.0, 0), "local_steps must be >= 1, got 0"),
        (
            ValueError,
            lambda: PFedMe(0.1, 1.0, 1, 0.0),
            "server_step_size must be finite and > 0, got 0",
        ),
        (TypeError, lambda: PFedMe(0.1, 1.0, clients_per_round=0.5), "must be an integer, got 0.5"),
        (ValueError, lambda: PFedMe(0.1, 1.0, inner_iterations=0), "inner_iterations must be >= 1"),
        (ValueError, lambda: by_gradient(attraction=0.0), "attraction must be finite and > 0"),
        (ValueError, lambda: by_gradient(personal_steps=0), "personal_steps must be >= 1, got 0"),
        (ValueError, lambda: by_gradient(personal_step_size=-1.0), "must be finite and > 0"),
        (ValueError, lambda: by_gradient(server_step_size=0.0), "server_step_size must be finite"),
        (ValueError, lambda: by_gradient(step_size=optax.adam(0.1)), "not an optimizer"),
        (
            ValueError,
            lambda: short_run(PFedMe(0.1, 1.0, clients_per_round=7)),
            "clients_per_round must be at most the 6 clients",
        ),
        (
            ValueError,
            lambda: short_run(PFedMe(0.1, 1.0), problem=make_problem().clipped(1.0)),
            "clipping cannot be applied inside an exact minimizer",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
