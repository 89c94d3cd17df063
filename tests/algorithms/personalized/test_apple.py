"""APPLE: weights of combined models against a loop, and their attraction."""

import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import APPLE, FedAvg
from tests import cases
from tests.reference import adapted
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    REAL,
    ROUNDS,
    SIDES,
    arrived,
    groups_of_two,
    loop_models,
    make_objective,
    make_problem,
    new_key,
    records,
    state_after,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_combined_models_and_their_weights_equal_the_loop():
    """Some take part, some are absent, some messages are lost; starts are each client's own."""
    algorithm = APPLE(0.5, 4, 2, relationship_step_size=0.02, attraction=0.5, annealing=6)
    parts, world = world_of(algorithm, True, False, new_key(4))
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    simulation = fl.Simulation(
        make_problem().starting_at(start), algorithm, losses=fl.link.Independent(0.3), **parts
    )
    arrives = arrived(simulation, new_key(4))
    ours = trajectory(simulation, key=new_key(4))
    close(ours, loop_models(algorithm, "ridge", world, arrives=arrives, start=start), atol=1e-10)
    at_once = loop_models(algorithm, "ridge", world, start=start)
    assert np.abs(ours - at_once).max() > 1e-2


@pytest.mark.slow
def test_the_weights_of_combined_models_equal_the_loop():
    algorithm = APPLE(1.0, epochs=2, relationship_step_size=LOCAL, attraction=0.5, annealing=6)
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    world = world_of(algorithm, False, False, new_key())[1]
    arguments = cases.full_batches(2, ROUNDS, CLIENTS), np.ones(CLIENTS), np.zeros((CLIENTS, DIM))
    steps = map(cases.step_of, (algorithm.step_size, algorithm.relationship_step_size))
    numbers = *steps, 0.5, 6, np.ones((ROUNDS, CLIENTS), bool)
    _, relations = adapted.apple(
        cases.sample_gradient_of(make_objective()), world, *arguments, *numbers
    )
    close(state.relation, relations[-1], rtol=0, atol=1e-10)
    assert np.abs(relations[-1] - 1 / CLIENTS).max() > 0.1


@pytest.mark.slow
def test_with_fixed_weights_the_mean_core_model_is_federated_averaging_s():
    """With one step a round, scaled by a client's share in its personal model."""
    algorithm = APPLE(0.6, relationship_step_size=1e-14, attraction=0.0)
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    fedavg = state_after(ROUNDS, fl.Simulation(make_problem(), FedAvg(0.6 / CLIENTS)))
    close(state.known.mean(axis=0), fedavg.model, rtol=0, atol=1e-12)
    assert np.ptp(state.known, axis=0).max() > 1e-2


@pytest.mark.slow
def test_attraction_holds_the_weights_until_it_is_annealed():
    """With attraction the weights stay nearer to equal ones; without it they move freely."""

    def away(**changes):
        algorithm = APPLE(1.0, epochs=2, relationship_step_size=0.02, **changes)
        state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
        return np.abs(np.asarray(state.relation) - 1 / CLIENTS).max()

    free = away(attraction=0.0)
    attracted = away(attraction=40.0, annealing=1000)
    assert attracted < 0.6 * free
    close(away(attraction=40.0, annealing=1), free, rtol=1e-12)


@pytest.mark.slow
def test_clients_combine_the_models_of_their_group():
    problem, _ = groups_of_two(samples=40)
    algorithm = APPLE(0.3, epochs=2, relationship_step_size=0.01, annealing=10)
    state = state_after(60, fl.Simulation(problem, algorithm))
    relation = np.asarray(state.relation)
    within, across = (
        np.concatenate([relation[:3, of].ravel(), relation[3:, ~of].ravel()]) for of in SIDES
    )
    assert within.min() > 2 * np.abs(across).max()


@pytest.mark.slow
def test_combining_models_downloads_all_of_them():
    algorithm = APPLE(0.1, 4, relationship_step_size=0.1)
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * 4 * (CLIENTS - 1) * DIM])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * 4 * DIM])
    np.testing.assert_array_equal(result["messages"], 2 * [2 * 4 * 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: APPLE(0.1, relationship_step_size=0.0), "step size must be finite and > 0"),
        (
            lambda: APPLE(0.1, relationship_step_size=0.1, attraction=-1.0),
            "attraction must be finite and >= 0, got -1",
        ),
        (
            lambda: APPLE(0.1, relationship_step_size=0.1, annealing=0),
            "annealing must be >= 1, got 0",
        ),
        (
            lambda: APPLE(optax.sgd(0.1), relationship_step_size=0.1),
            "APPLE needs the size of its clients' steps",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
