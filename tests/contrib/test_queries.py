"""Exercise 9.1: Bob queries Alice."""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.contrib import matched_client, queried_loss

STATIONS = 40
DIM = 3
STEP = 0.05
COUPLING = 0.5


def stations(seed):
    return fl.problems.least_squares(jax.random.key(seed), STATIONS, 8, DIM)


def exchanged(problem, station, exchanges, seed=0, noise=0.0, size=1.0):
    """What Alice shares, on messages that Bob chooses: (129), (130)."""
    rng = np.random.default_rng(seed)
    x = np.asarray(problem.features)[station]
    y = np.asarray(problem.targets)[station]
    models = [np.zeros(DIM)]
    sent = size * rng.normal(size=(exchanges, DIM))
    shared = [models[0]]
    for message in sent:
        model = models[-1]
        gradient = 2 / len(x) * x.T @ (x @ model - y)
        models.append(model - STEP * (gradient + 2 * COUPLING * (model - message)))
        shared.append(models[-1] + noise * rng.normal(size=DIM))
    return np.array(shared), sent


def of_station(problem, station):
    q = -2 * np.asarray(problem.correlation(problem.targets))[station]
    return np.asarray(problem.second_moment())[station], q


@pytest.mark.parametrize("station", [0, 7, 31])
def test_d_plus_one_exchanges_give_the_loss_and_the_station(station):
    problem = stations(1)
    result = queried_loss(*exchanged(problem, station, DIM + 1), STEP, COUPLING)
    assert result.determined
    quadratic, linear = of_station(problem, station)
    np.testing.assert_allclose(result.second_moment, quadratic, atol=1e-10)
    np.testing.assert_allclose(result.linear, linear, atol=1e-10)
    assert matched_client(problem, result.second_moment, result.linear) == station


def test_one_exchange_less_does_not_determine_the_station():
    problem = stations(2)
    result = queried_loss(*exchanged(problem, 3, DIM), STEP, COUPLING)
    assert not result.determined
    assert np.abs(result.second_moment - of_station(problem, 3)[0]).max() > 1e-3


def test_large_messages_and_many_beat_noise():
    problem = stations(3)
    errors = [
        np.abs(
            queried_loss(
                *exchanged(problem, 3, count, noise=1e-3, size=size), STEP, COUPLING
            ).second_moment
            - of_station(problem, 3)[0]
        ).max()
        for count, size in ((20, 1.0), (2000, 1.0), (2000, 100.0))
    ]
    assert errors[0] > 2 * errors[1] > 20 * errors[2]


def test_bad_input():
    models, sent = exchanged(stations(1), 0, 5)
    with pytest.raises(ValueError, match="one model more than messages"):
        queried_loss(models[1:], sent, STEP, COUPLING)
    with pytest.raises(ValueError, match="step_size must be finite and > 0"):
        queried_loss(models, sent, 0.0, COUPLING)
    with pytest.raises(ValueError, match="models holds 1 NaN"):
        queried_loss(
            np.where(np.arange(3) + np.arange(6)[:, None] == 0, np.nan, models),
            sent,
            STEP,
            COUPLING,
        )
    with pytest.raises(ValueError, match="of the problem's 3 parameters"):
        matched_client(stations(1), np.eye(2), np.zeros(3))
