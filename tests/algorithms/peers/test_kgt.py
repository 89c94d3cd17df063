"""K-GT: bad arguments."""

import pytest

from fljax.algorithms import KGT
from fljax.participation.patterns import Bernoulli
from tests.support.peer_runs import simulation_of


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KGT(0.1, outer_step_size=0.0), "must be finite and > 0"),
        (
            lambda: simulation_of(KGT(0.1), participation=Bernoulli(0.5)),
            "K-GT has no rule for absent clients",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
