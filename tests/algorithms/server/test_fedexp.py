"""FedExP: extrapolation towards a common minimizer."""

import numpy as np
import pytest

from fljax.algorithms import FedAvg, FedExP
from fljax.problems import LeastSquares, from_clients
from tests.cases import CLIENTS, DIM, make_data, make_problem
from tests.support.server_runs import MANY, trajectory

close = np.testing.assert_allclose


@pytest.mark.slow
def test_extrapolation_stays_at_a_common_minimizer():
    """As the paper's POCS: the distance shrinks every round, faster than without extrapolation."""
    rng = np.random.default_rng(5)
    truth = np.arange(1.0, DIM + 1)
    inputs = rng.normal(size=(CLIENTS, 1, DIM))
    problem = from_clients([(x, x @ truth) for x in inputs], LeastSquares())

    def ways(algorithm):
        return np.linalg.norm(trajectory(algorithm, problem, 20) - truth, axis=1)

    extrapolated = ways(FedExP(0.1, damping=1e-12, **MANY))
    assert np.all(np.diff(extrapolated) < 0)
    assert extrapolated[-1] < 0.5 * ways(FedAvg(0.1, **MANY))[-1]


@pytest.mark.slow
def test_clients_that_agree_are_not_extrapolated():
    equal_clients = make_problem(data=make_data()[:1] * CLIENTS)
    algorithms = FedExP(0.05, damping=1e-12, **MANY), FedAvg(0.05, **MANY)
    close(
        *(trajectory(algorithm, equal_clients) for algorithm in algorithms), rtol=1e-10, atol=1e-12
    )


def test_the_mean_of_two_models_is_that_of_the_same_rounds():
    plain, means = (
        trajectory(FedExP(0.1, damping=0.01, averaged=a), make_problem()) for a in (False, True)
    )
    close(means[1:], (plain[1:] + plain[:-1]) / 2, rtol=1e-12)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="damping must be finite and > 0, got 0"):
        FedExP(0.1, damping=0.0)
