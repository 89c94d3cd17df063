"""Fed-LT: bad arguments; its loop and its fixed point are in test_server_algorithm."""

import pytest

from fljax.algorithms import FedLT


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="penalty must be finite and > 0, got 0"):
        FedLT(0.1, penalty=0.0)
