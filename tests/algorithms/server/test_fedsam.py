"""FedSAM: steps around the minimum."""

import numpy as np
import pytest

from fljax.algorithms import FedSAM
from fljax.problems import LeastSquares, from_clients
from tests.cases import CLIENTS, DIM
from tests.support.server_runs import trajectory

close = np.testing.assert_allclose


@pytest.mark.slow
def test_sharpness_aware_steps_oscillate_around_the_minimum():
    r"""At a distance of :math:`\mu a\rho/(2-\mu a)`, where the curvature is :math:`a`."""
    step = 0.1
    radius = 0.3
    truth = np.arange(1.0, DIM + 1)
    inputs = np.sqrt(DIM) * np.eye(DIM)
    problem = from_clients([(inputs, inputs @ truth)] * CLIENTS, LeastSquares())
    last = trajectory(FedSAM(step, radius=radius), problem, 400)[-2:] - truth
    close(last[0], -last[1], rtol=1e-9)
    expected = step * 2 * radius / (2 - step * 2)  # the loss is the square itself
    close(np.linalg.norm(last, axis=1), expected, rtol=1e-9)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"radius must be finite and >= 0, got -0.1"):
        FedSAM(0.1, radius=-0.1)
