"""FedOpt and its kin: Reptile, private noise in the change, bad arguments."""

import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedOpt, FedYogi
from fljax.privacy import CentralGaussian
from tests.cases import CLIENTS, DIM, ROUNDS, make_objective, make_problem
from tests.support.server_runs import EQUAL, trajectory

close = np.testing.assert_allclose


def test_reptile_is_fedopt_that_steps_towards_the_mean():
    """Nichol, Achiam & Schulman 2018, Algorithm 2, with a step that falls to zero."""
    falling = optax.linear_schedule(0.8, 0.0, ROUNDS)
    algorithm = FedOpt(0.05, server=optax.sgd(falling), weighting="equal", local_steps=3)
    objective = make_objective()
    phi = np.zeros(DIM)
    theirs = []
    for n in range(ROUNDS):
        adapted = []
        for k in range(CLIENTS):
            w = phi
            for _ in range(3):
                w = w - 0.05 * objective.gradient(k, w)
            adapted.append(w)
        phi = phi + 0.8 * (1 - n / ROUNDS) * np.mean([w - phi for w in adapted], axis=0)
        theirs.append(phi)
    # optax's schedules are of single precision.
    np.testing.assert_allclose(trajectory(algorithm), theirs, rtol=0, atol=1e-7)
    with pytest.raises(AttributeError, match=r"^Reptile is fljax.algorithms.FedOpt with server="):
        fl.algorithms.Reptile


@pytest.mark.slow
def test_a_private_server_steps_by_any_rule():
    """Noise is in the change that its optimizer receives; clients count equally."""
    parts = {"privacy": CentralGaussian(0.7, 0.4)}
    plain = trajectory(FedAvg(0.05, **EQUAL), **parts)
    same = trajectory(FedOpt(0.05, server=optax.sgd(1.0), **EQUAL), **parts)
    close(same, plain, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="gives clients weights"):
        fl.Simulation(make_problem(), FedAvgM(0.05, weighting="samples"), **parts)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: FedOpt(0.1, server=0.1), "must be an optax.Gradient"),
        (ValueError, lambda: FedAvgM(0.1, momentum=1.0), "momentum must be .*< 1"),
        (
            ValueError,
            lambda: FedAdam(0.1, server_step_size=0.1, adaptivity=0.0),
            "adaptivity must be finite and > 0, got 0",
        ),
        (
            ValueError,
            lambda: FedYogi(0.1, server_step_size=0.1, decay=1.0),
            "decay must be finite and >= 0 and < 1, got 1",
        ),
        (
            ValueError,
            lambda: FedAdagrad(0.1, server_step_size=0.0),
            "step size must be finite and > 0, got 0",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
