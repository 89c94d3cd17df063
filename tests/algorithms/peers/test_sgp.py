"""Stochastic gradient push: weights in one direction, bad arguments."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import SGP
from fljax.optimization.schedules import PowerDecay
from tests.cases import CLIENTS
from tests.support.peer_runs import ANYWHERE, ONE_WAY, peer_run, simulation_of, still

close = np.testing.assert_allclose


def test_push_sum_comes_to_the_mean_where_rows_do_not_sum_to_one():
    assert abs(ONE_WAY.sum(axis=1) - 1).max() > 0.1
    results = peer_run(SGP(1.0, shares=ONE_WAY), 200, 100, problem=still(ANYWHERE), metrics=())
    close(results.model, np.tile(ANYWHERE.mean(axis=0), (CLIENTS, 1)), atol=1e-12)
    # The weights' own mean is another one: that of their Perron vector.
    perron_vector = np.linalg.matrix_power(ONE_WAY, 500)[:, 0]
    assert abs(perron_vector - 1 / CLIENTS).max() > 0.05


@pytest.mark.slow
def test_push_sum_comes_to_the_optimum_by_decaying_steps():
    algorithm = SGP(PowerDecay(0.3, 0.7), shares=ONE_WAY)
    error = peer_run(algorithm, 4000, 1000).normalized_error.values
    assert error[-1] < 2e-3
    assert (np.diff(error) < 0).all()
    network = fl.graphs.DrawnGraphs(lambda key: fl.graphs.erdos_renyi(key, CLIENTS, 0.4))
    error = peer_run(SGP(PowerDecay(0.3, 0.7)), 4000, 1000, network=network).normalized_error.values
    assert error[-1] < 5e-3


BEYOND = np.eye(CLIENTS) * 0.5 + np.roll(np.eye(CLIENTS), 2, axis=0) * 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SGP(0.1, shares=ONE_WAY.T),
            "every column of the matrix of shares must sum to one.*transpose it",
        ),
        (lambda: SGP(0.1, shares=2 * np.eye(5) - ONE_WAY), "the matrix of shares must be"),
        (lambda: SGP(0.1, shares=[0.5, 0.5]), "shares"),
        (lambda: SGP(0.1, shares=ONE_WAY[:, :4]), "shares must be square"),
        (
            lambda: SGP(0.1, shares=np.eye(5)),
            "the matrix of shares is reducible.* or take other shares",
        ),
        (
            lambda: simulation_of(SGP(0.1, shares=np.full((2, 2), 0.5))),
            "shares are for 2 nodes, but the network has 5",
        ),
        (
            lambda: simulation_of(SGP(0.1, shares=BEYOND)),
            "node 3 gives to node 0, which is no neighbor",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
