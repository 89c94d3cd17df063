"""Ditto: a global model of its solver, and personal ones that are attracted to it."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import Ditto, FedAvg, LocalOnly
from fljax.problems import optimum
from tests.reference import nfl
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    PROBLEMS,
    ROUNDS,
    make_objective,
    make_problem,
    new_key,
    short_run,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.parametrize("name", PROBLEMS)
def test_ditto_without_attraction_is_training_alone(name):
    problem = make_problem(name)
    parts = world_of(LocalOnly(0.1), True, False, new_key())[0]
    ours = fl.Simulation(problem, Ditto(FedAvg(0.05), 0.1, 0.0, 2), **parts)
    alone = fl.Simulation(problem, LocalOnly(0.1, 2), **parts)
    close(trajectory(ours), trajectory(alone), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_ditto_s_global_model_is_that_of_its_solver():
    """Drawn clients, batches and absences included: it is seen by the personal models alone, drawn
    to it all the way.
    """
    solver = FedAvg(0.05, 4, 2, 3)
    parts = world_of(solver, True, False, new_key())[0]
    expected = trajectory(fl.Simulation(make_problem(), solver, **parts))
    for attraction in (1e6, 1e9):
        near = Ditto(solver, 1 / attraction, attraction)
        result = trajectory(fl.Simulation(make_problem(), near, **parts))
        world = world_of(solver, True, False, new_key())[1]
        for n in range(2, ROUNDS + 1):  # a participant receives the server's previous model
            for k in world.participants(n):
                close(result[n - 1, k], expected[n - 2, k], rtol=0, atol=100 / attraction)


@pytest.mark.slow
def test_more_attraction_brings_ditto_nearer_to_the_global_model():
    problem = make_problem()
    distance = []
    best = np.asarray(optimum(problem))
    for attraction in (0.0, 0.3, 3.0, 30.0):
        ditto = Ditto(FedAvg(0.1, weighting="equal"), 0.02, attraction, 5)
        last = trajectory(fl.Simulation(problem, ditto), 1500)[-1]
        # where it ends: v_k = argmin f_k(v) + attraction / 2 |v - w|^2 at the best w
        expected = [
            nfl.prox(make_objective(), k, attraction, best) if attraction else local_best(k)
            for k in range(CLIENTS)
        ]
        close(last, expected, rtol=0, atol=1e-8)
        distance.append(np.linalg.norm(last - best))
    assert np.all(np.diff(distance) < 0)


def local_best(k):
    return nfl.prox(make_objective(), k, 0.0, np.zeros(DIM))


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: Ditto(0.1, 0.1, 1.0), "solver must be an instance of .*FedAvg, got"),
        (
            ValueError,
            lambda: Ditto(FedAvg(0.1), -1.0, 1.0),
            "step size must be finite and > 0, got -1",
        ),
        (
            ValueError,
            lambda: Ditto(FedAvg(0.1), 0.1, -1.0),
            "attraction must be finite and >= 0, got -1",
        ),
        (ValueError, lambda: Ditto(FedAvg(0.1), 0.1, np.inf), "attraction must be finite and >= 0"),
        (ValueError, lambda: Ditto(FedAvg(0.1), 0.1, 1.0, 0), "personal_steps must be >= 1, got 0"),
        (
            ValueError,
            lambda: short_run(Ditto(FedAvg(0.1, 7), 0.1, 1.0)),
            "clients_per_round must be at most the 6 clients of the problem, got 7",
        ),
        (
            ValueError,
            lambda: short_run(Ditto(FedAvg(0.1), 0.1, 1.0), privacy=fl.privacy.ZCDP(1.0)),
            "Ditto does not run under ZCDP; it has no private form",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
