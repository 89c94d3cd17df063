"""GT-SAGA and GT-SVRG: bad arguments."""

import pytest

import fljax as fl
from fljax.algorithms import GTSAGA, GTSVRG
from tests.cases import make_network
from tests.support.peer_runs import simulation_of


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: GTSAGA(0.0), "step size must be finite and > 0"),
        (ValueError, lambda: GTSVRG(0.1, period=2, batch=0), "batch must be >= 1, got 0"),
        (ValueError, lambda: GTSVRG(0.1, period=0), "period must be >= 1, got 0"),
        (TypeError, lambda: GTSVRG(0.1, period=2.5), "period must be an integer"),
        (
            ValueError,
            lambda: simulation_of(GTSAGA(0.1, batch=13)),
            "at most the 12 samples of the largest client, got 13",
        ),
        (
            ValueError,
            lambda: simulation_of(GTSAGA(0.1), network=fl.graphs.GraphSchedule([make_network()])),
            "GT-SAGA has no rule for a graph that changes",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
