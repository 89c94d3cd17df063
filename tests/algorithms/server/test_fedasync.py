"""FedAsync: against loops, one client after the other, bad arguments."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAsync
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    ROUNDS,
    make_data,
    make_problem,
    new_key,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_one_client_a_round_is_descent_of_one_after_the_other():
    """FedAsync that replaces the model, without delays: by hand."""
    key = new_key(3)
    algorithm = FedAsync(0.1, 1, server_step_size=1.0)
    world = world_of(algorithm, False, False, key)[1]
    w = np.zeros(DIM)
    expected = []
    for n in range(1, ROUNDS + 1):
        (k,) = world.participants(n)
        X, y = make_data()[k]
        w = w - 0.1 * (2 / len(y) * X.T @ (X @ w - y) + 2 * 0.8 / CLIENTS * w)
        expected.append(w)
    result = trajectory(fl.Simulation(make_problem(), algorithm), key=key)
    close(result[:, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FedAsync(0.1, server_step_size=0.0),
            "server_step_size must be finite and > 0 and <= 1",
        ),
        (
            lambda: FedAsync(0.1, server_step_size=1.1),
            "server_step_size must be finite and > 0 and <= 1",
        ),
        (lambda: FedAsync(0.1, attraction=-1.0), "attraction must be finite and >= 0"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
