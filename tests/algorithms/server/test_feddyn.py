"""FedDyn: bad arguments; its loop and its fixed point are in test_server_algorithm."""

import pytest

from fljax.algorithms import FedDyn


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="attraction must be finite and > 0, got 0"):
        FedDyn(0.1, attraction=0.0)
