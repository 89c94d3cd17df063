"""Exact diffusion: bad arguments."""

import pytest

from fljax.algorithms import ExactDiffusion


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"step size must be finite and > 0, got -0.1"):
        ExactDiffusion(-0.1)
