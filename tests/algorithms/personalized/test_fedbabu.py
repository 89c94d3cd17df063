"""FedBABU: a body that is trained under a head that stays, and tuning."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, FedBABU, FineTunedFedAvg
from tests.support.two_groups import (
    CLIENTS,
    HEAD,
    LOCAL,
    make_problem,
    new_key,
    quadratics,
    state_after,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_fedbabu_without_a_head_is_federated_averaging_and_tuning():
    parts = world_of(FedAvg(0.1, 4), True, True, new_key())[0]
    tuned = FineTunedFedAvg(FedAvg(0.1, 4, 2), LOCAL, 3)
    ours = FedBABU(0.1, 4, 2, personal=(), tuning_step_size=LOCAL, tuning_steps=3)
    result, expected = (
        trajectory(fl.Simulation(make_problem(), a, **parts)) for a in (ours, tuned)
    )
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.long
@pytest.mark.slow
def test_the_body_of_fedbabu_ends_where_it_is_best_under_its_head():
    r""":math:`\sum_k\partial_\varphi f_k(\varphi,h^0)=0` with the heads where they began."""
    head = 1.7
    algorithm = FedBABU(0.1, personal=HEAD, tuning_step_size=0.05, weighting="equal")
    problem = make_problem().starting_at(np.array([0.0, head, 0.0]))
    state = state_after(600, fl.Simulation(problem, algorithm))
    A, b = (sum(parts) for parts in zip(*quadratics(), strict=True))
    body = [0, 2]
    best = np.linalg.solve(A[np.ix_(body, body)], b[body] - head * A[body, 1])
    close(state.server, best, rtol=0, atol=1e-8)
    before = np.array([best[0], head, best[1]])
    close(state.frozen, np.tile(before, (CLIENTS, 1)), rtol=0, atol=1e-8)
    after = [before - 0.05 * (A @ before - b) for A, b in quadratics()]
    close(state.model, after, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FedBABU(0.1, personal=[0], tuning_step_size=0.1, tuning_steps=0),
            "tuning_steps must be >= 1, got 0",
        ),
        (
            lambda: FedBABU(0.1, personal=[0], tuning_step_size=0.0),
            "step size must be finite and > 0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
