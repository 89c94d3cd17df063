"""APFL: the limits of its interpolation, and interpolations that adapt."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import APFL, FedAvg, LocalOnly
from tests import cases
from tests.reference import adapted
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    ROUNDS,
    make_objective,
    make_problem,
    new_key,
    short_run,
    state_after,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_apfl_without_personal_models_is_federated_averaging():
    parts = world_of(APFL(0.1, 4), True, True, new_key())[0]
    ours = APFL(LOCAL, 4, 2, interpolation=0.0)
    fedavg = FedAvg(LOCAL, 4, 2, weighting="equal")
    result, expected = (
        trajectory(fl.Simulation(make_problem(), a, **parts)) for a in (ours, fedavg)
    )
    close(result, expected, rtol=0, atol=1e-13)


def test_apfl_of_personal_models_alone_is_training_alone():
    parts = world_of(APFL(0.1), True, False, new_key())[0]
    ours = APFL(LOCAL, epochs=3, interpolation=1.0)
    alone = LocalOnly(LOCAL, 3)
    result, expected = (
        trajectory(fl.Simulation(make_problem(), a, **parts)) for a in (ours, alone)
    )
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_adapted_mixtures_stay_in_range_and_equal_the_loop():
    algorithm = APFL(0.1, epochs=2, interpolation=0.9, interpolation_step_size=2.0)
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    objective = make_objective()
    world = world_of(algorithm, False, False, new_key())[1]
    arguments = cases.full_batches(2, ROUNDS, CLIENTS), np.ones(CLIENTS), np.zeros(DIM)
    numbers = cases.step_of(algorithm.step_size), 0.9, lambda n: 2.0
    _, mixing = adapted.apfl(cases.sample_gradient_of(objective), world, *arguments, *numbers)
    close(state.interpolation, mixing[-1], rtol=0, atol=1e-10)
    assert mixing.min() >= 0
    assert mixing.max() == 1  # where it would be left, it is kept
    assert np.ptp(mixing[-1]) > 0.1


@pytest.mark.slow
def test_adaptation_lowers_the_loss_of_mixtures_with_a_poor_share():
    def end(**changes):
        simulation = fl.Simulation(
            make_problem(), APFL(0.05, epochs=2, interpolation=0.1, **changes)
        )
        return make_problem().objective(jnp.asarray(trajectory(simulation, 40)[-1])).mean()

    assert end(interpolation_step_size=0.5) < end() - 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: APFL(0.1, interpolation=1.5), "interpolation must be finite and >= 0 and <= 1"),
        (lambda: short_run(APFL(0.1, interpolation=[0.5, 0.5])), "each of the 6 clients"),
        (lambda: APFL(0.1, interpolation_step_size=-1.0), "step size must be finite and > 0"),
        (lambda: short_run(APFL(0.1, 7)), "clients_per_round must be at most the 6 clients"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
