"""Scaffnew: bad arguments; its loop and its fixed point are with the peers."""

import pytest

from fljax.algorithms import Scaffnew


def test_bad_arguments_are_refused():
    with pytest.raises(
        ValueError, match=r"probability must be finite and > 0 and <= 1, got 0.* say anything"
    ):
        Scaffnew(0.1, 0.0)
