"""ProxSkip: bad arguments."""

import pytest

import fljax as fl
from fljax.algorithms import ProxSkip
from tests.support.peer_runs import simulation_of


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: simulation_of(ProxSkip(0.1, 0.5, fl.graphs.Mixing("laplacian", step=3.0))),
            "step must be below",
        ),
        (lambda: ProxSkip(0.1, 1.5), "probability must be .* <= 1, got 1.5"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
