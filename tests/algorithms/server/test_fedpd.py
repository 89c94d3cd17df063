"""FedPD: skipped rounds, their silence and their cost."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedPD
from fljax.problems import optimum
from tests.cases import CLIENTS, ROUNDS, make_data, make_problem
from tests.support.server_runs import talks, trajectory

close = np.testing.assert_allclose


@pytest.mark.slow
def test_skipping_costs_fedpd_its_exactness_where_clients_differ():
    best = np.asarray(optimum(make_problem()))
    skipping = FedPD(0.05, penalty=0.5, skipping=0.3)
    far = np.abs(trajectory(skipping, rounds=1000)[-100:] - best).max()
    assert 1e-4 < far < 0.3
    equal_clients = make_problem(data=make_data()[:1] * CLIENTS)
    last = trajectory(skipping, equal_clients, rounds=1000)[-1]
    close(last, np.asarray(optimum(equal_clients)), rtol=0, atol=1e-8)


@pytest.mark.slow
def test_skipped_rounds_are_silent():
    algorithm = FedPD(0.05, penalty=0.5, skipping=0.4)
    results = fl.run(fl.Simulation(make_problem(), algorithm), ROUNDS, key=fl.random_key(1))
    sent = np.cumsum(talks(algorithm, ROUNDS)) * 2 * CLIENTS
    np.testing.assert_array_equal(results.messages.values, sent)
    assert 0 < sent[-1] < ROUNDS * 2 * CLIENTS


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="skipping must be finite and >= 0 and < 1, got 1"):
        FedPD(0.1, penalty=1.0, skipping=1.0)
