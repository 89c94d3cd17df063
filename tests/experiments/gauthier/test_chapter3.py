"""Chapter 3's tuning; `test_experiments` runs one of its figures."""

import numpy as np
import xarray as xr

from experiments.gauthier import chapter3 as ch3


def test_tuning_chooses_by_its_rule():
    rounds = np.arange(1, 41)
    target = 50 * 0.8**rounds
    near, low = target * 1.1, np.where(rounds > 20, 1e-6, 50.0)
    tuning = xr.Dataset(
        {"target": ("round", target), "curve": (("candidate", "round"), [near, low, near, low])},
        coords={
            "round": rounds,
            "tuned": ("candidate", ["x", "x", "y", "y"]),
            "rule": ("candidate", ["early", "early", "final", "final"]),
            "value": ("candidate", [1.0, 2.0, 3.0, 4.0]),
        },
    )
    assert ch3.chosen(tuning, "x") == 1.0
    assert ch3.chosen(tuning, "y") == 4.0
