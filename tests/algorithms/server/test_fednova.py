"""FedNova: consistent under unequal numbers of steps, with the lengths of its paper."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, FedNova
from fljax.problems import optimum
from tests.cases import DIM, make_problem
from tests.support.server_runs import EQUAL, UNLIKE

close = np.testing.assert_allclose


@jax.jit
def shifted_to(algorithm, models):
    """Each of several models by a round from it."""
    now = fl.view(fl.Simulation(make_problem(), algorithm))
    state = algorithm.init(now.problem, None)
    return jax.vmap(lambda model: algorithm.step(state._replace(model=model), now).model)(models)


def fixed_point(algorithm):
    """The fixed point of a round with an affine step of one model."""
    shift, *columns = np.asarray(shifted_to(algorithm, jnp.eye(DIM + 1, DIM, -1)))
    linear = np.stack(columns, axis=1) - shift[:, None]
    return np.linalg.solve(np.eye(DIM) - linear, shift)


@pytest.mark.slow
def test_fednova_is_consistent_where_clients_take_unlike_numbers_of_steps():
    r"""As :math:`\mu\to0` it ends at the minimizer of the mean, FedAvg at that of
    :math:`\sum_kE_kf_k`.
    """
    best = np.asarray(optimum(make_problem()))
    weighed = make_problem().weighing(np.array(UNLIKE) / 3)
    weighed = dataclasses.replace(weighed, strength=weighed.strength * np.array(UNLIKE) / 15)
    biased = np.asarray(optimum(weighed))
    assert np.abs(biased - best).max() > 0.03
    steps = (1e-2, 1e-3, 1e-4)
    result = []
    for kind, goal in ((FedNova, best), (FedAvg, biased)):
        ends = [fixed_point(kind(s, local_steps=UNLIKE, **EQUAL)) for s in steps]
        result.append([np.abs(end - goal).max() for end in ends])
    result = np.array(result)
    assert np.all(result[:, -1] < 1e-3)
    close(result[:, 1] / result[:, 2], 10, rtol=0.05)  # of the order of the step
    momentum = fixed_point(FedNova(1e-4, local_steps=UNLIKE, momentum=0.9, **EQUAL))
    assert np.abs(momentum - best).max() < 1e-2


def test_the_lengths_of_fednova_equal_the_paper():
    def lengths(step, **numbers):
        return FedNova(step, **numbers).lengths(jnp.asarray(step), 6, np.dtype(float))

    for steps, result in enumerate(lengths(0.1)):
        assert result == steps
    for steps, result in enumerate(lengths(0.1, momentum=0.7)):
        rho = 0.7
        close(result, (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho), atol=1e-14)
    for steps, result in enumerate(lengths(0.1, attraction=2.0)):
        close(result, (1 - (1 - 0.2) ** steps) / 0.2, atol=1e-14)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="FedNova needs"):
        FedNova(optax.sgd(0.1))
