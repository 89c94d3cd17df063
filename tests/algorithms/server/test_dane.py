"""DANE: Newton's step on equal clients, and its participants."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import DANE
from fljax.problems import optimum
from tests.cases import CLIENTS, DIM, keys_of, make_data, make_objective, make_problem
from tests.reference import nfl
from tests.support.server_runs import trajectory


@pytest.mark.slow
def test_dane_on_equal_clients_is_newtons_step():
    """One round leaves of the error the share mu / (h + mu) in each direction; of others, more."""
    equal_clients = make_problem(data=tuple(make_data()[:1] * CLIENTS))
    best = fl.problems.optimum(equal_clients)
    near = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-8)
    near(trajectory(DANE(1e-9), equal_clients, rounds=1)[0], best)
    near(trajectory(DANE(1e-9, step_size=0.5), equal_clients, rounds=1)[0], best / 2)
    unlike = make_problem()
    error = trajectory(DANE(1.0), unlike, rounds=24) - np.asarray(optimum(unlike))
    falls = -np.diff(np.log10(np.linalg.norm(error, axis=1)[::6]))
    assert falls.min() > 0.4
    assert falls.max() < 1.5 * falls.min()


@pytest.mark.slow
def test_dane_uses_the_participants_alone():
    chosen = DANE(1.0, clients_per_round=2)
    objective = make_objective()
    x = np.zeros(DIM)
    theirs = []
    for now in keys_of(1)[:4]:
        key = key_of(now, "participation")
        everyone = jnp.ones(CLIENTS, bool)
        participants = chosen.selection.choose(key, everyone, None).numbers.tolist()
        slopes = {k: objective.gradient(k, x) for k in participants}
        mean = sum(slopes.values()) / len(slopes)
        x = np.mean([nfl.prox(objective, k, 1.0, x + slopes[k] - mean) for k in slopes], axis=0)
        theirs.append(x)
    np.testing.assert_allclose(trajectory(chosen, rounds=4), theirs, rtol=0, atol=1e-10)
