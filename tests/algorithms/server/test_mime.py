"""MIME and MIMELite: one step of their optimizer, bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import MIME, MIMELite
from fljax.link import Fixed
from tests.cases import CLIENTS, DIM, make_problem
from tests.support.server_runs import EQUAL, trajectory


@pytest.mark.parametrize("kind", [MIME, MIMELite])
def test_one_step_of_mime_is_its_optimizer_on_all_data(kind):
    """Adam by hand along the mean gradient: MIMELite's moments use a client's own gradient."""
    problem = make_problem()
    adam = optax.adam(0.1, b1=0.8)
    with jax.numpy_dtype_promotion("standard"):
        w = jnp.zeros(DIM)
        memory = adam.init(w)
        history = []
        for _ in range(6):
            gradient = jnp.mean(problem.gradient(jnp.tile(w, (CLIENTS, 1))), axis=0)
            change, memory = adam.update(gradient, memory)
            w = w + change
            history.append(w)
    result = trajectory(kind(adam, **EQUAL), rounds=6)
    far = np.abs(result - np.array(history)).max()
    assert far < 1e-12 if kind is MIME else far > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MIME(optax.sgd(0.1), momentum=0.5),
            "momentum is for a step size; an optimizer has its own",
        ),
        (
            lambda: fl.Simulation(make_problem(), MIME(0.1), delays=Fixed(1)),
            "MIME has no rule for late messages",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
