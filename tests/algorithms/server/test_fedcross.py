"""FedCross: how its models are dealt, mixed and kept."""

import dataclasses

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, FedCross
from fljax.participation.selectors import Fraction
from tests.cases import CLIENTS, DIM, ROUNDS, make_problem
from tests.support.server_runs import Lost, state_metric, trajectory

close = np.testing.assert_allclose


def test_full_exchange_of_two_models_is_averaging_of_both():
    """With half of each, two models are the same again after every round."""
    data = fl.problems.ridge(jax.random.key(0), clients=2, samples=9, dim=2)
    ours = trajectory(FedCross(0.05, retention=0.5), data)
    close(ours, trajectory(FedAvg(0.05, weighting="equal"), data), atol=1e-13)


def test_models_without_mixing_wander_from_client_to_client():
    """Each of them is trained by another client in most rounds, and remains one of a kind."""
    algorithm = FedCross(0.05, retention=1.0)
    models = trajectory(algorithm, metric=state_metric("models"))
    assert models.shape == (ROUNDS, CLIENTS, DIM)
    spread = np.ptp(models[-1], axis=0).max()
    mixed = trajectory(dataclasses.replace(algorithm, retention=0.6), metric=state_metric("models"))
    assert spread > 3 * np.ptp(mixed[-1], axis=0).max()


@pytest.mark.slow
def test_a_lost_message_leaves_a_model_as_it_was():
    lost = np.ones((2, CLIENTS), bool)
    lost[1] = False
    models = trajectory(
        FedCross(0.05, retention=1.0), None, 2, losses=Lost(lost), metric=state_metric("models")
    )
    close(models[1], models[0], atol=0)
    assert np.abs(models[0]).max() > 1e-2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retention": 0.0}, "retention must be .*> 0"),
        ({"partner": "in order"}, "Did you mean 'in_order'"),
        ({"selector": Fraction(0.5)}, "as many models as participants"),
        ({"clients_per_round": 1}, "draw at least two clients"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fl.run(fl.Simulation(make_problem(), FedCross(0.1, **arguments)), 1)
