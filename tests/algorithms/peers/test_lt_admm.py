"""LT-ADMM: batches that are not corrected, bad arguments."""

import pytest

from fljax.algorithms import LTADMM, LTADMMVR
from fljax.problems.batches import Uniform
from tests.support.peer_runs import peer_run, simulation_of


@pytest.mark.slow
def test_batches_without_tracking_do_not_converge():
    """Without what reduces their variance."""
    error = peer_run(
        LTADMM(1.0, 0.05, pull=0.1, local_steps=5, batches=Uniform(1)), 400, 400
    ).normalized_error
    assert float(error[-1]) > 1e-4


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (
            ValueError,
            lambda: simulation_of(LTADMMVR(1.0, 0.1, pull=0.1, batch=13)),
            "at most the 12 samples of the largest client, got 13",
        ),
        (ValueError, lambda: LTADMM(0.0, 0.1, pull=0.1), "penalty must be finite and > 0"),
        (ValueError, lambda: LTADMM(1.0, 0.1, pull=-1.0), "pull must be finite and > 0, got -1"),
        (
            ValueError,
            lambda: LTADMMVR(1.0, 0.1, pull=0.1, local_steps=0),
            "local_steps must be >= 1",
        ),
        (
            TypeError,
            lambda: LTADMMVR(1.0, 0.1, pull=0.1, restart=1),
            "restart must be True or False",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
