"""LED: one local step of it, bad arguments."""

import numpy as np
import pytest

from fljax.algorithms import LED, ExactDiffusion
from tests.support.peer_runs import models

close = np.testing.assert_allclose


@pytest.mark.slow
def test_one_local_step_of_led_is_exact_diffusion():
    close(models(LED(0.05)), models(ExactDiffusion(0.05)), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LED(0.1, local_steps=0), "local_steps must be >= 1, got 0"),
        (lambda: LED(0.1, dual_step_size=-1.0), "must be finite and > 0"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
