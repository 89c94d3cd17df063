"""EASGD: its objective, and the step size at which it becomes unstable."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import EASGD
from fljax.theory.step_bounds import easgd_step
from tests.cases import CLIENTS, DIM, make_problem
from tests.support.server_runs import trajectory

close = np.testing.assert_allclose


def test_the_center_minimizes_the_sum_of_envelopes():
    """With one step a round: of f_k(x_k) + rho |x_k - x|^2 / 2, rho = alpha / mu."""
    step, rate = 0.1, 0.15
    problem = make_problem().prepare()
    center = trajectory(EASGD(step, moving_rate=rate), make_problem(), 2000)[-1]
    # The gradients are affine, so that unit models give the Hessians.
    zero = np.asarray(problem.gradient(np.zeros((CLIENTS, DIM))))
    columns = [np.asarray(problem.gradient(np.tile(e, (CLIENTS, 1)))) - zero for e in np.eye(DIM)]
    total = np.zeros(DIM)
    for k in range(CLIENTS):
        hessian = np.stack([column[k] for column in columns], axis=1)
        strength = rate / step
        worker = np.linalg.solve(hessian + strength * np.eye(DIM), strength * center - zero[k])
        total += strength * (center - worker)
    close(total, 0, atol=1e-9)
    assert np.abs(center - np.asarray(fl.problems.optimum(problem))).max() > 1e-2


def equal_curvatures(clients):
    """Clients whose objectives all have the Hessian 2 I."""
    rng = np.random.default_rng(0)
    features = np.tile(np.linalg.qr(rng.normal(size=(9, 2)))[0] * 3, (clients, 1, 1))
    targets = rng.normal(size=(clients, 9))
    return fl.problems.Problem(features, targets, fl.problems.LeastSquares(), strength=0.0)


@pytest.mark.thin(1)
@pytest.mark.parametrize(("clients", "rate"), [(1, 0.5), (4, 0.2), (9, 0.1)])
def test_it_is_stable_exactly_below_its_bound(clients, rate):
    bound = float(easgd_step(2.0, rate, clients))
    sizes = [
        np.abs(trajectory(EASGD(factor * bound, moving_rate=rate), equal_curvatures(clients), 2000))
        for factor in (0.98, 1.02)
    ]
    assert sizes[0][-1].max() < 2 * sizes[0][0].max() + 1
    assert np.ptp(sizes[0][-50:], axis=0).max() < 1e-4
    assert sizes[1][-1].max() > 1e6


def test_the_condition_of_one_worker_is_the_papers():
    """alpha < (4 - 2 mu L) / (4 - mu L), solved for the step size."""
    for rate in (0.1, 0.6, 0.9):
        bound = 3.0 * float(easgd_step(3.0, rate, 1))
        close((4 - 2 * bound) / (4 - bound), rate, rtol=1e-12)


def test_a_moving_rate_without_a_stable_step_is_refused():
    with pytest.raises(ValueError, match=r"no step size is stable with moving_rate=0.25 and 9"):
        easgd_step(1.0, 0.25, 9)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_bad_arguments_are_refused(rate):
    with pytest.raises(ValueError, match="moving_rate must be"):
        EASGD(0.1, moving_rate=rate)
