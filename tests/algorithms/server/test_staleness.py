"""Weights of updates that arrive late, by hand and at the servers that use them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAsync, FedBuff, HingeStaleness, PolynomialStaleness
from fljax.link import DelayTrace, Fixed
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    ROUNDS,
    both_trajectories,
    make_problem,
    short_run,
    trajectory,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_staleness_by_hand():
    late = jnp.asarray([0.0, 1.0, 4.0, 6.0])
    close(PolynomialStaleness(0.5)(late), [1, 0.5**0.5, 0.2**0.5, 7**-0.5])
    close(PolynomialStaleness(0.0)(late), np.ones(4))
    close(HingeStaleness(10.0, 4.0)(late), [1, 1, 1, 1 / 21])


@pytest.mark.slow
def test_a_custom_staleness():
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
    expected = np.zeros(DIM)
    problem = make_problem()
    for n in range(1, 4):
        gradient = np.asarray(problem.gradient(jnp.tile(jnp.asarray(expected), (CLIENTS, 1))))
        arriving = 3 + 2 * (n >= 2) + (n >= 3)
        expected = expected - 0.1 * gradient[::2].sum(axis=0) / arriving
        close(result[n - 1, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_old_updates_count_less():
    """All of them two rounds late: a server's move shrinks by the factor of that age."""
    late = {"delays": Fixed(2)}
    for rule, factor in ((PolynomialStaleness(0.5), 3**-0.5), (HingeStaleness(2.0, 1.0), 1 / 3)):
        # In round 3 the updates of round 1 arrive, all from the start.
        same = PolynomialStaleness(0.0)
        for make in (
            lambda rule: FedBuff(0.1, buffer_size=1, staleness=rule),
            lambda rule: FedAsync(0.1, server_step_size=0.5, staleness=rule),
        ):
            result, plain = both_trajectories(make(rule), make(same), 3, **late)
            close(result[-1], factor * plain[-1], rtol=1e-12)
            assert np.abs(plain[-1]).max() > 0.01


def test_a_staleness_without_a_rule_is_named():
    @fl.module
    class Bare(fl.algorithms.Staleness):
        pass

    simulation = fl.Simulation(make_problem(), FedBuff(0.1))
    with pytest.raises((TypeError, NotImplementedError), match="__call__"):
        short_run(dataclasses.replace(simulation.algorithm, staleness=Bare()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolynomialStaleness(-0.5), "power must be finite and >= 0, got -0.5"),
        (lambda: HingeStaleness(-1.0, 0.0), "slope must be finite and >= 0, got -1"),
        (lambda: HingeStaleness(1.0, -2.0), "patience must be finite and >= 0, got -2"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
