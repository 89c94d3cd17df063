"""Asynchrony: measures that see broken data."""

import numpy as np
import pytest
import xarray as xr

from experiments import picture
from experiments.jung import figure_asynchronous as figure
from experiments.jung.figure_asynchronous import (
    BOUNDS,
    BY_FACTOR,
    ERROR,
    FACTORS,
    LATE,
    NEVER,
    PARTS,
    RANDOM,
    WORST,
)

SEEDS = 4
EVENTS = 60
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}
LABEL = {"units": "1", "decibel": 1, "long_name": "error"}


def expected_studies():
    """What the claims expect, the bound as printed included."""
    start = 1.0 + np.arange(SEEDS) / 10
    factor = np.full(SEEDS, 0.01)
    events = np.arange(1, EVENTS + 1)
    axes = ("seed", "bound", "round")
    studies = {}
    for activation in (RANDOM, WORST):
        data = xr.Dataset(
            {ERROR: (axes, np.ones((SEEDS, len(BOUNDS.value), EVENTS)), LABEL)},
            {"bound": list(BOUNDS.value), "round": events, "seed": range(SEEDS)},
        )
        data = figure.with_bounds(data, factor, start)
        under = np.minimum(data["repaired"], data["printed"]) / 2
        studies[activation] = data.assign({ERROR: under.transpose(*axes).assign_attrs(LABEL)})
        studies[activation]["diverged"] = data[ERROR].isel(round=0, drop=True).astype(int) * 0
    fall = start[:, None] * 0.5**events
    studies[NEVER] = xr.Dataset(
        {
            ERROR: (("seed", "round"), fall, LABEL),
            "start": ("seed", start),
            "diverged": ("seed", np.zeros(SEEDS, int)),
        },
        {"round": events, "seed": range(SEEDS)},
    )
    couplings = np.asarray(FACTORS.value[0])
    factor = couplings / (1 + couplings) * np.ones((SEEDS, 1))
    fall = start[:, None, None] * factor[..., None] ** (2 * events / 11) / 2
    studies[BY_FACTOR] = xr.Dataset(
        {
            ERROR: (("seed", "coupling", "round"), fall, LABEL),
            "factor": (("seed", "coupling"), factor),
            "start": (("seed", "coupling"), start[:, None] * np.ones_like(factor)),
            "diverged": (("seed", "coupling"), np.zeros(factor.shape, int)),
        },
        {"round": events, "seed": range(SEEDS), "coupling": couplings},
    )
    axes = ("seed", "part", "bound")
    ends = np.full((SEEDS, len(PARTS.value), len(LATE.value)), 1e-3)
    ends[:, -1, 1:] = 1e9
    studies["descent"] = xr.Dataset(
        {ERROR: (axes, ends), "first": (axes, np.ones_like(ends))},
        {"part": list(PARTS.value), "bound": list(LATE.value)},
    )
    return studies


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("name", "study", "value", "where"),
    [
        ("bound-as-printed", WORST, 0.99, {"round": 5, "bound": 10}),
        ("bound-repaired", RANDOM, 3.0, {"round": 5, "bound": 10}),
        ("total-asynchrony-converges", NEVER, 1e-3, {"round": EVENTS}),
        ("partial-asynchrony-converges", RANDOM, 1e-3, {"round": EVENTS, "bound": 2}),
        ("smaller-delays-are-faster", WORST, 1e-99, {"round": figure.MIDDLE, "bound": 10}),
        ("smaller-factors-are-faster", BY_FACTOR, 1e-99, {"round": figure.MIDDLE, "coupling": 1.0}),
        ("short-steps-for-any-delay", "descent", 2.0, {"part": PARTS.value[0], "bound": 10}),
        ("some-only-for-small-delays", "descent", 2.0, {"part": PARTS.value[-1], "bound": 0}),
        ("some-diverge-with-delays", "descent", 2.0, {"part": PARTS.value[-1], "bound": 5}),
    ],
)
def test_claims_fail_on_other_data(name, study, value, where):
    studies = expected_studies()
    studies[study][ERROR].loc[where] = value
    assert not CLAIMS[name].judge(studies).holds


def test_the_note_counts_violations():
    studies = expected_studies()
    studies[WORST][ERROR].loc[{"round": [1, 2, 3], "bound": 10}] = 2.0
    assert "worst with B = 10: 5.0 %" in figure.violations(studies)


@pytest.mark.slow
def test_picture():
    with picture.print_style():
        assert picture.faults(figure.plot(expected_studies())) == []
