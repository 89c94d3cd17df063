"""FedRep: bad arguments; the rest is with FedPer."""

import pytest

from fljax.algorithms import FedRep


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="head_epochs must be >= 1"):
        FedRep(0.1, personal=[0], head_epochs=0)
