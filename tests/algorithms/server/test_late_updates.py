"""Servers that use updates when they arrive, FedBuff and FedAsync."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAsync, FedAvg, FedBuff, HingeStaleness, PolynomialStaleness
from fljax.link import Fixed, Geometric
from fljax.problems import optimum
from tests import cases
from tests.support import small_network as small
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    REAL,
    SIZES,
    both_trajectories,
    make_objective,
    make_problem,
    new_key,
    records,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose

HINGE = HingeStaleness(3.0, patience=0.5)
FORMS = {
    "buffer of 4": FedBuff(LOCAL, 4, epochs=2, buffer_size=4),
    "buffer of 2, hinge": FedBuff(0.1, buffer_size=2.0, server_step_size=0.7, staleness=HINGE),
    "buffer of 11": FedBuff(0.1, epochs=3, buffer_size=11),
    "async": FedAsync(LOCAL, 4, epochs=2, server_step_size=0.6),
    "async, hinge": FedAsync(0.1, epochs=2, attraction=0.8, staleness=HINGE),
    "async, constant": FedAsync(0.1, 1, server_step_size=1.0, staleness=PolynomialStaleness(0.0)),
}


@pytest.mark.thin(2)
@pytest.mark.core
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_models_equal_the_loops(form, name):
    """Absent clients, messages that are late or lost, rounds in which nothing arrives."""
    algorithm = FORMS[form]
    key = new_key(4)
    parts, world = world_of(algorithm, True, True, key)
    ours = trajectory(fl.Simulation(make_problem(name), algorithm, **parts), key=key)
    theirs = cases.CASES[algorithm.label].oracle(algorithm, make_objective(name), world)
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=1e-10)
    assert np.abs(theirs[-1] - theirs[1]).max() > 1e-2


@pytest.mark.core
@pytest.mark.parametrize("form", ["buffer of 4", "async, hinge"])
@pytest.mark.parametrize("lags", [np.arange(CLIENTS) % 3, np.arange(CLIENTS) % 2 * 2 + 1])
def test_slow_clients_are_late_in_every_round_as_in_the_loops(form, lags):
    algorithm = FORMS[form]
    key = new_key(4)
    parts, world = world_of(algorithm, True, False, key)
    late = dataclasses.replace(world, delay=np.tile(lags, (len(world.delay), 1)))
    simulation = fl.Simulation(make_problem(), algorithm, **parts, delays=Fixed(lags))
    ours = trajectory(simulation, key=key)
    oracle = cases.CASES[algorithm.label].oracle
    theirs = oracle(algorithm, make_objective(), late)
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=1e-10)
    assert np.abs(theirs - oracle(algorithm, make_objective(), world)).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["buffer of 4", "async, hinge"])
def test_networks_equal_the_loops(form):
    algorithm = FORMS[form]
    key = new_key(4)
    parts, world = world_of(algorithm, True, True, key)
    ours = trajectory(fl.Simulation(small.from_zero(SIZES), algorithm, **parts), key=key)
    objective = small.Objective(tuple(small.samples(SIZES)))
    theirs = cases.CASES[algorithm.label].oracle(algorithm, objective, world)
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=1e-8)
    assert np.abs(theirs[-1] - theirs[1]).max() > 1e-2


@pytest.mark.parametrize(
    "ours", [FedBuff(LOCAL, 4, 2, buffer_size=4), FedAsync(LOCAL, 4, 2, server_step_size=1.0)]
)
def test_without_delays_it_is_federated_averaging(ours):
    """With a buffer of all participants; with a mixing that keeps nothing."""
    result, expected = both_trajectories(ours, FedAvg(LOCAL, 4, 2, weighting="equal"))
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [FedBuff(0.1, buffer_size=4), FedAsync(0.1, server_step_size=0.7)]
)
def test_the_optimum_of_equal_clients_is_kept_despite_delays(algorithm):
    """Clients with one minimizer in common: there nothing moves, and there it ends."""
    problem = make_problem(noise=0.0, strength=0.0)
    similar = problem.take(jnp.arange(0, CLIENTS, 2, dtype=jnp.int32))
    simulation = fl.Simulation(similar, algorithm, delays=Geometric(0.5, 3, beyond="clip"))
    last = trajectory(simulation, 1500)[-1]
    close(last, np.broadcast_to(optimum(similar), last.shape), rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", [FedBuff(0.1, 3), FedAsync(0.1, 3)])
def test_traffic_counts_the_clients_that_begin(algorithm):
    simulation = fl.Simulation(make_problem(), algorithm, delays=Fixed(2))
    result = records(simulation, 4, every=4)
    assert result["messages"] == [4 * 2 * 3]
    assert result["bits_up"] == result["bits_down"] == [REAL * 4 * 3 * DIM]
