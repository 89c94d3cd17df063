"""FedFomo: models weighed on held-out data."""

import dataclasses

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedFomo, LocalOnly
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    REAL,
    arrived,
    groups_of_two,
    loop_models,
    make_data,
    make_objective,
    make_problem,
    new_key,
    records,
    short_run,
    state_after,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
@pytest.mark.parametrize("downloads", [None, 2])
def test_models_weighed_on_held_out_data_equal_the_loop(downloads):
    """Some take part, some are absent, some messages are lost; starts are each client's own."""
    algorithm = FedFomo(LOCAL, 4, 2, downloads=downloads)
    parts, world = world_of(algorithm, True, False, new_key(4))
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    held_out = make_problem(noise=3.0)
    tasks = fl.problems.Tasks(np.zeros(CLIENTS, int), 1, validation=held_out)
    problem = dataclasses.replace(make_problem().starting_at(start), tasks=tasks)
    simulation = fl.Simulation(problem, algorithm, losses=fl.link.Independent(0.3), **parts)
    arrives = arrived(simulation, new_key(4))
    value = dataclasses.replace(make_objective(), data=make_data("ridge", 3.0)).value
    ours = trajectory(simulation, key=new_key(4))
    options = {"arrives": arrives, "start": start, "seed": 4}
    close(ours, loop_models(algorithm, "ridge", world, value=value, **options), rtol=0, atol=1e-10)
    on_samples = loop_models(algorithm, "ridge", world, **options)
    assert np.abs(ours - on_samples).max() > 1e-2


@pytest.mark.slow
def test_clients_weigh_their_group_higher():
    problem, wanted = groups_of_two()
    simulation = fl.Simulation(problem, FedFomo(0.05, epochs=2))
    state = state_after(60, simulation)
    affinity = np.asarray(state.affinity)
    assert affinity[:3, :3].sum() > 10 * affinity[:3, 3:].sum()
    assert affinity[3:, 3:].sum() > 10 * affinity[3:, :3].sum()
    alone = trajectory(fl.Simulation(problem, LocalOnly(0.05, 2)), 60)[-1]
    errors = [np.linalg.norm(model - wanted, axis=1).mean() for model in (state.model, alone)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.slow
def test_equal_clients_learn_as_if_alone():
    X, y = make_data()[1]
    problem = fl.problems.from_clients([(X, y)] * 4, fl.problems.LeastSquares())
    result = trajectory(fl.Simulation(problem, FedFomo(0.05, downloads=2)), 8)
    close(result, trajectory(fl.Simulation(problem, LocalOnly(0.05)), 8), rtol=0, atol=1e-13)


def test_a_model_without_better_candidates_is_kept():
    """Steps far too long: the client's own model is not better, and neither are the others."""
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    problem = make_problem().starting_at(start)
    result = trajectory(fl.Simulation(problem, FedFomo(50.0)), 3)
    np.testing.assert_array_equal(result, np.broadcast_to(start, result.shape))


@pytest.mark.parametrize(("downloads", "models"), [(None, CLIENTS - 1), (2, 2)])
def test_weighing_others_models_downloads_them(downloads, models):
    """And reports the value of each model, if the server chooses by it."""
    algorithm = FedFomo(0.1, 4, 2, downloads=downloads)
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    reported = 0 if downloads is None else downloads
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * 4 * models * DIM])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * 4 * (DIM + reported)])
    np.testing.assert_array_equal(result["messages"], 2 * [2 * 4 * (2 + bool(reported))])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedFomo(0.1, downloads=0), "downloads must be >= 1, got 0"),
        (
            lambda: short_run(FedFomo(0.1, downloads=CLIENTS)),
            "downloads must be at most the 5 other clients, got 6",
        ),
        (lambda: FedFomo(0.1, exploration=1.5), "exploration must be finite and >= 0 and <= 1"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
