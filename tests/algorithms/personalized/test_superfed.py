"""SuPerFed: its warmup, and the line between its two models."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, SuPerFed
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    ROUNDS,
    make_problem,
    new_key,
    state_after,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_superfed_in_its_warmup_is_federated_averaging():
    parts = world_of(FedAvg(0.1, 4), True, True, new_key())[0]
    start = np.random.default_rng(5).normal(size=(CLIENTS, DIM))
    ours = SuPerFed(LOCAL, 4, 2, orthogonality=1.0, warmup=ROUNDS, interpolation=0.0)
    result, expected = (
        state_after(ROUNDS, fl.Simulation(make_problem().starting_at(start), algorithm, **parts))
        for algorithm in (ours, FedAvg(LOCAL, 4, 2))
    )
    close(result.server, expected.model, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(result.personal, start)


@pytest.mark.long
@pytest.mark.slow
def test_orthogonality_separates_the_two_models():
    def cosine(orthogonality):
        start = np.random.default_rng(5).normal(size=(CLIENTS, DIM))
        algorithm = SuPerFed(0.02, orthogonality=orthogonality)
        simulation = fl.Simulation(make_problem().starting_at(start), algorithm)
        state = state_after(60, simulation)
        a = np.asarray(state.server)
        b = np.asarray(state.personal)
        return np.abs(b @ a / np.linalg.norm(a) / np.linalg.norm(b, axis=1)).mean()

    assert cosine(20.0) < cosine(0.0) - 0.1


@pytest.mark.long
@pytest.mark.slow
def test_points_between_the_two_models_are_all_good():
    """The middle of the line is not worse than its ends on average, since training is there."""
    state = state_after(300, fl.Simulation(make_problem(), SuPerFed(0.05)))
    ends = [jnp.broadcast_to(state.server, state.personal.shape), state.personal]
    losses = [
        float(make_problem().objective((1 - share) * ends[0] + share * ends[1]).mean())
        for share in (0.0, 0.5, 1.0)
    ]
    assert losses[1] < min(losses[0], losses[2]) + 1e-3


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (
            ValueError,
            lambda: SuPerFed(0.1, interpolation=1.5),
            "interpolation must be finite and >= 0 and <= 1",
        ),
        (TypeError, lambda: SuPerFed(0.1, warmup=0.5), "warmup must be an integer, got 0.5"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
