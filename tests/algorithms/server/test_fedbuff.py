"""FedBuff: against loops, its buffer, bad arguments."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedBuff, PolynomialStaleness
from fljax.link import Fixed
from tests.support.two_groups import DIM, ROUNDS, make_problem, short_run, state_after, trajectory


@pytest.mark.slow
def test_a_buffer_waits_until_it_is_full():
    """Three updates a round, and room for seven: the server moves in every third round."""
    result = trajectory(fl.Simulation(make_problem(), FedBuff(0.1, 3, buffer_size=7)))[:, 0]
    moved = np.abs(np.diff(np.concatenate([np.zeros((1, DIM)), result]), axis=0)).max(axis=1) > 0
    np.testing.assert_array_equal(moved, np.arange(1, ROUNDS + 1) % 3 == 0)
    state = state_after(2, fl.Simulation(make_problem(), FedBuff(0.1, 3, buffer_size=7)))
    assert float(state.buffered) == 6
    assert np.abs(state.buffer).max() > 0


@pytest.mark.slow
def test_numbers_of_a_buffer_and_a_staleness_are_swept_by_one_program():
    def scenario(key, size, power):
        algorithm = FedBuff(0.1, buffer_size=size, staleness=PolynomialStaleness(power))
        return fl.Simulation(
            make_problem(), algorithm, delays=Fixed(1), metrics=["normalized_error"]
        )

    grid = {"size": [1.0, 9.0], "power": [0.0, 0.5]}
    results = fl.sweep(scenario, rounds=4, seeds=1, grid=grid)
    assert results.attrs["compilations"] == 1
    assert len(np.unique(results.normalized_error.isel(round=-1))) == 4


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: FedBuff(0.1, buffer_size=0.5), "buffer_size must be finite and >= 1"),
        (
            ValueError,
            lambda: FedBuff(0.1, server_step_size=0.0),
            "server_step_size must be finite and > 0",
        ),
        (TypeError, lambda: FedBuff(0.1, staleness=0.5), "staleness must be an instance of"),
        (ValueError, lambda: short_run(FedBuff(0.1, 7)), "clients_per_round must be at most the 6"),
        (
            ValueError,
            lambda: short_run(FedBuff(0.1), privacy=fl.privacy.ZCDP(1.0)),
            "FedBuff does not run under ZCDP; it has no private form",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
