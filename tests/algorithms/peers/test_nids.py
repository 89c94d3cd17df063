"""NIDS: exact diffusion after its first step, bad arguments."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import NIDS, ExactDiffusion
from tests.cases import CLIENTS, DIM, make_network, make_problem
from tests.support.peer_runs import models

close = np.testing.assert_allclose


@pytest.mark.slow
def test_nids_is_exact_diffusion_after_the_first_step():
    """From the same state, without a regularizer."""
    problem = dataclasses.replace(make_problem(), strength=0.0)
    simulations = [
        fl.Simulation(problem, algorithm, make_network())
        for algorithm in (ExactDiffusion(0.05), NIDS(0.05))
    ]
    now = [fl.view(simulation, key=0, round=2) for simulation in simulations]
    rng = np.random.default_rng(9)
    model, correction = jnp.asarray(rng.normal(size=(2, CLIENTS, DIM)))
    weights = make_network().mixing()
    state = fl.algorithms.peers.exact_diffusion.ExactDiffusionState(model, correction, weights)
    # z = w and y = mu d of the round before, without a proximal step
    dual = correction / 0.05
    other = fl.algorithms.peers.nids.NIDSState(model, model, dual, weights)
    for _ in range(3):
        state = simulations[0].algorithm.step(state, now[0])
        other = simulations[1].algorithm.step(other, now[1])
        now = [fl.view(simulation, key=0, round=3) for simulation in simulations]
        close(state.model, other.model, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NIDS(np.ones((2, 2))), "one number or one for each peer"),
        (lambda: NIDS([0.1, -0.2]), "step_size must be finite and > 0, got -0.2"),
        (lambda: NIDS(0.1, consensus_step_size=0.0), "must be finite and > 0"),
        (lambda: models(NIDS([0.1, 0.2])), "one for each of the 5 clients, got shape"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
