"""FedADMM: its special cases, and where another step of the server than ADMM's leads."""

import numpy as np
import pytest

from fljax.algorithms import FedADMM, FedDyn, FedPD
from tests.cases import CLIENTS, DIM, make_problem
from tests.support.server_runs import UNLIKE, trajectory
from tests.support.small_network import from_zero

close = np.testing.assert_allclose


def test_with_all_clients_it_is_fedpd_without_skipped_rounds():
    ours = trajectory(FedADMM(0.05, penalty=2.0, local_steps=UNLIKE))
    close(ours, trajectory(FedPD(0.05, penalty=0.5, local_steps=UNLIKE)), atol=1e-12)


def test_from_the_server_with_all_clients_it_is_feddyn():
    arguments = {"server_step_size": 1.0, "beginning": "server", "local_steps": UNLIKE}
    ours = trajectory(FedADMM(0.05, penalty=2.0, **arguments))
    close(ours, trajectory(FedDyn(0.05, attraction=2.0, local_steps=UNLIKE)), atol=1e-12)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("server_step", "clients"), [(0.5, CLIENTS), (1.0, 4), (0.7, 4), (1.3, CLIENTS)]
)
def test_another_step_of_the_server_regularizes_toward_the_start(server_step, clients):
    """The fixed point that the docstring states: of sum_k f_k + c |w - w0|^2 / 2."""
    penalty = 0.4
    start = np.array([1.0, -2.0, 0.5])
    assert len(start) == DIM
    problem = make_problem()
    algorithm = FedADMM(0.1, clients, penalty=penalty, server_step_size=server_step, local_steps=5)
    last = trajectory(algorithm, problem.starting_at(start), 600)[-1]
    pull = penalty * (clients / server_step - CLIENTS)
    total = np.asarray(problem.prepare().gradient(np.tile(last, (CLIENTS, 1)))).sum(axis=0)
    close(total, -pull * (last - start), atol=1e-8)
    assert (np.abs(total).max() > 0.1) == (abs(pull) > 1e-9)


@pytest.mark.slow
def test_the_authors_message_is_twice_the_change_from_the_server():
    """Their code measures a client's change from the server's model; ours from the client's last.

    In the first round, where both are the start, the two are the same.
    """
    problem = from_zero((4, 9, 6))
    first = trajectory(FedADMM(0.1, penalty=1.0, server_step_size=1.0), problem, 1)[-1]
    gradient = np.asarray(problem.prepare().gradient(np.zeros((3, problem.dim))))
    close(first, -0.1 * 2 * gradient.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"penalty": 0.0}, "penalty must be .*> 0, got 0"),
        ({"penalty": 1.0, "server_step_size": -1.0}, "server_step_size must be .*> 0, got -1"),
        ({"penalty": 1.0, "beginning": "sever"}, "Did you mean 'server'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedADMM(0.1, **arguments)
