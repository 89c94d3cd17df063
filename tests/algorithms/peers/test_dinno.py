"""DiNNO: one step and many of it, any optimizer, bad arguments."""

import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import DLM, DiNNO, NetworkedADMM
from fljax.problems.batches import Uniform
from tests.cases import CLIENTS
from tests.support.peer_runs import EXACT_METHODS, distance_from_minimizer, models

close = np.testing.assert_allclose


@pytest.mark.slow
def test_one_step_of_dinno_is_linearized_admm_where_degrees_are_equal():
    ring = fl.graphs.ring(CLIENTS)
    penalty = 0.4
    step = 0.3
    combined_step = 1 / (2 * penalty * 2 + 1 / step)
    ours = models(DiNNO(penalty, combined_step), network=ring)
    close(ours, models(DLM(penalty, step), network=ring), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_many_steps_of_dinno_are_admm():
    close(models(DiNNO(0.4, 0.05, local_steps=800)), models(NetworkedADMM(0.4)), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_dinno_takes_any_optimizer():
    close(
        models(DiNNO(0.4, optax.sgd(0.05), local_steps=3)),
        models(EXACT_METHODS["DiNNO"]),
        rtol=1e-6,
    )
    assert distance_from_minimizer(DiNNO(0.2, optax.adam(1e-2), local_steps=4), 400) < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiNNO(-1.0, 0.1), "penalty must be finite and > 0, got -1"),
        (lambda: DiNNO(1.0, 0.1, local_steps=0), "local_steps must be >= 1, got 0"),
        (lambda: models(DiNNO(1.0, 0.1, batches=Uniform(40))), "the 12 samples"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
