"""Marks that several files of tests share."""

import pytest

__all__ = ["quiet"]

quiet = pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
