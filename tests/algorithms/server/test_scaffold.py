"""SCAFFOLD: errors of its variates, compression, bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import SCAFFOLD
from fljax.link import Quantize
from fljax.problems import optimum
from tests.cases import make_problem
from tests.support.server_runs import MANY, state_metric, trajectory

close = np.testing.assert_allclose


@pytest.mark.parametrize("step", [0.05, 0.3])
def test_errors_of_scaffolds_variates_feed_back(step):
    """The growth per round equals the docstring's: along negative curvature errors grow with long
    steps.
    """
    curvature = np.array([2.0, 0.5, -1.0])
    steps = 10
    drifts = np.eye(3)
    network = fl.models.plain(lambda key: jnp.ones(3), lambda w, x: w @ (curvature * w / 2) - x @ w)
    problem = fl.problems.Model(
        drifts[:, None], np.zeros((3, 1)), lambda loss, _: loss, architecture=network
    )
    result = trajectory(
        SCAFFOLD(step, local_steps=steps),
        problem.initialized(jax.random.key(0)),
        6,
        metric=state_metric("controls"),
    )
    errors = result - result.mean(axis=1, keepdims=True) + drifts - drifts.mean(axis=0)
    factor = 1 - np.mean((1 - step * curvature) ** np.arange(steps)[:, None], axis=0)
    before = np.concatenate([(drifts - drifts.mean(axis=0))[None], errors[:-1]])
    close(errors, factor * before, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.abs(factor) < 1, [True, True, step == 0.05])


@pytest.mark.slow
def test_compressed_corrections_still_lead_near_the_optimum():
    best = np.asarray(optimum(make_problem()))
    last = trajectory(SCAFFOLD(0.05, **MANY), rounds=400, compression=Quantize(8))[-1]
    assert 0 < np.abs(last - best).max() < 1e-2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SCAFFOLD(0.1, variate="gradients"), "Did you mean 'gradient'"),
        (
            lambda: SCAFFOLD(optax.sgd(0.1)),
            "SCAFFOLD needs the size of its clients' steps.*give step_size a number",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
