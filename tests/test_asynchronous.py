"""Servers that do not wait, FedBuff and FedAsync: against loops, at their limits, bad input."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAsync, FedAvg, FedBuff, HingeStaleness, PolynomialStaleness
from fljax.algorithms.base import REGISTRY
from fljax.link import DelayTrace, Fixed, Geometric
from fljax.problems import optimum
from tests import cases
from tests import small_network as small
from tests.test_personal import (
    CLIENTS,
    DIM,
    LOCAL,
    REAL,
    ROUNDS,
    SIZES,
    close,
    make_data,
    make_objective,
    make_problem,
    new_key,
    records,
    running,
    some_world,
    state_after,
    trajectory,
)

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
def test_models_are_those_of_the_loops(form, name):
    """Absent clients, messages that are late or lost, rounds in which nothing arrives."""
    algorithm, key = FORMS[form], new_key(4)
    parts, world = some_world(algorithm, True, True, key)
    ours = trajectory(fl.Simulation(make_problem(name), algorithm, **parts), key=key)
    theirs = cases.CASES[algorithm.label].oracle(algorithm, make_objective(name), world)
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=1e-10)
    assert np.abs(theirs[-1] - theirs[1]).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["buffer of 4", "async, hinge"])
def test_networks_are_those_of_the_loops(form):
    algorithm, key = FORMS[form], new_key(4)
    parts, world = some_world(algorithm, True, True, key)
    ours = trajectory(fl.Simulation(small.from_zero(SIZES), algorithm, **parts), key=key)
    objective = small.Objective(tuple(small.samples(SIZES)))
    theirs = cases.CASES[algorithm.label].oracle(algorithm, objective, world)
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=1e-8)
    assert np.abs(theirs[-1] - theirs[1]).max() > 1e-2


# Limits ------------------------------------------------------------------------------------------


def both(ours, known, rounds=ROUNDS, **parts):
    return (trajectory(fl.Simulation(make_problem(), a, **parts), rounds) for a in (ours, known))


@pytest.mark.parametrize(
    "ours", [FedBuff(LOCAL, 4, 2, buffer_size=4), FedAsync(LOCAL, 4, 2, server_step_size=1.0)]
)
def test_without_delays_it_is_federated_averaging(ours):
    """With a buffer of all participants; with a mixing that keeps nothing."""
    result, expected = both(ours, FedAvg(LOCAL, 4, 2, weighting="equal"))
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_one_client_a_round_is_descent_of_one_after_the_other():
    """Of FedAsync that keeps nothing, without delays: by hand."""
    key = new_key(3)
    algorithm = FedAsync(0.1, 1, server_step_size=1.0)
    world = some_world(algorithm, False, False, key)[1]
    w, expected = np.zeros(DIM), []
    for n in range(1, ROUNDS + 1):
        (k,) = world.participants(n)
        X, y = make_data()[k]
        w = w - 0.1 * (2 / len(y) * X.T @ (X @ w - y) + 2 * 0.8 / CLIENTS * w)
        expected.append(w)
    result = trajectory(fl.Simulation(make_problem(), algorithm), key=key)
    close(result[:, 0], expected, rtol=0, atol=1e-12)


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
def test_old_updates_count_less():
    """All of them two rounds late: a server's move shrinks by the factor of that age."""
    late = {"delays": Fixed(2)}
    for law, factor in ((PolynomialStaleness(0.5), 3**-0.5), (HingeStaleness(2.0, 1.0), 1 / 3)):
        # In round 3 the updates of round 1 arrive, all from the start.
        same = PolynomialStaleness(0.0)
        for make in (
            lambda law: FedBuff(0.1, buffer_size=1, staleness=law),
            lambda law: FedAsync(0.1, server_step_size=0.5, staleness=law),
        ):
            result, plain = both(make(law), make(same), 3, **late)
            close(result[-1], factor * plain[-1], rtol=1e-12)
            assert np.abs(plain[-1]).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [FedBuff(0.1, buffer_size=4), FedAsync(0.1, server_step_size=0.7)]
)
def test_the_optimum_of_alike_clients_is_kept_in_spite_of_delays(algorithm):
    """Clients with one minimizer in common: there nothing moves, and there it ends."""
    problem = make_problem(noise=0.0, strength=0.0)
    alike = problem.take(jnp.arange(0, CLIENTS, 2, dtype=jnp.int32))
    simulation = fl.Simulation(alike, algorithm, delays=Geometric(0.5, 3, beyond="clip"))
    last = trajectory(simulation, 1500)[-1]
    close(last, np.broadcast_to(optimum(alike), last.shape), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_staleness_by_hand():
    late = jnp.asarray([0.0, 1.0, 4.0, 6.0])
    close(PolynomialStaleness(0.5)(late), [1, 0.5**0.5, 0.2**0.5, 7**-0.5])
    close(PolynomialStaleness(0.0)(late), np.ones(4))
    close(HingeStaleness(10.0, 4.0)(late), [1, 1, 1, 1 / 21])


@pytest.mark.slow
def test_a_staleness_of_ones_own():
    @fl.module
    class Only(fl.algorithms.Staleness):
        """What is not late."""

        def __call__(self, late):
            return jnp.where(late > 0, 0.0, 1.0)

    delay = np.tile([0, 1, 0, 2, 0, 1], (ROUNDS, 1))
    parts = {"delays": DelayTrace(delay, 2)}
    result = trajectory(
        fl.Simulation(make_problem(), FedBuff(0.1, buffer_size=1, staleness=Only()), **parts)
    )
    expected, problem = np.zeros(DIM), make_problem()
    for n in range(1, 4):
        slope = np.asarray(problem.gradient(jnp.tile(jnp.asarray(expected), (CLIENTS, 1))))
        arriving = 3 + 2 * (n >= 2) + (n >= 3)
        expected = expected - 0.1 * slope[::2].sum(axis=0) / arriving
        close(result[n - 1, 0], expected, rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("algorithm", [FedBuff(0.1, 3), FedAsync(0.1, 3)])
def test_traffic_is_of_those_who_begin(algorithm):
    simulation = fl.Simulation(make_problem(), algorithm, delays=Fixed(2))
    result = records(simulation, 4, every=4)
    assert result["messages"] == [4 * 2 * 3]
    assert result["bits_up"] == result["bits_down"] == [REAL * 4 * 3 * DIM]


# What is refused ---------------------------------------------------------------------------------


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
        (
            ValueError,
            lambda: FedAsync(0.1, server_step_size=0.0),
            "server_step_size must be finite and > 0 and <= 1",
        ),
        (
            ValueError,
            lambda: FedAsync(0.1, server_step_size=1.1),
            "server_step_size must be finite and > 0 and <= 1",
        ),
        (ValueError, lambda: FedAsync(0.1, attraction=-1.0), "attraction must be finite and >= 0"),
        (ValueError, lambda: PolynomialStaleness(-0.5), "power must be finite and >= 0, got -0.5"),
        (ValueError, lambda: HingeStaleness(-1.0, 0.0), "slope must be finite and >= 0, got -1"),
        (ValueError, lambda: HingeStaleness(1.0, -2.0), "patience must be finite and >= 0, got -2"),
        (ValueError, lambda: running(FedBuff(0.1, 7)), "clients_per_round must be at most the 6"),
        (
            ValueError,
            lambda: running(FedBuff(0.1), privacy=fl.privacy.ZCDP(1.0)),
            "FedBuff does not run under ZCDP; it has no private form",
        ),
    ],
)
def test_bad_settings_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


def test_a_staleness_without_a_rule_is_named():
    @fl.module
    class Bare(fl.algorithms.Staleness):
        pass

    simulation = fl.Simulation(make_problem(), FedBuff(0.1))
    with pytest.raises((TypeError, NotImplementedError), match="__call__"):
        running(dataclasses.replace(simulation.algorithm, staleness=Bare()))


def test_all_are_registered():
    for label in (*cases.ADAPTED, *cases.ASYNCHRONOUS):
        assert getattr(fl.algorithms, REGISTRY[label].__name__) is REGISTRY[label]
