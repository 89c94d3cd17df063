"""Rounds, rows and columns: measures that see broken data, and instances with known solutions."""

import numpy as np
import pytest
import xarray as xr

from experiments import picture
from experiments.jung import figure_flavors as figure
from experiments.jung.figure_flavors import BY_NODE, BY_SAMPLE, ROUNDS, STRENGTHS

SEEDS = 4
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What the claims say."""
    at = np.asarray(STRENGTHS.value)
    spread = 1 + 1e-3 * np.arange(SEEDS)
    falling = 1 / at**2
    rows = spread[:, None, None] * np.stack([falling, 0.1 + falling])
    label = {"units": "1", "decibel": 1, "long_name": "distance"}
    split = xr.Dataset(
        {
            "rows": (("seed", "weighting", "strength"), rows, label),
            "columns": (("seed", "strength"), spread[:, None] * falling, label),
        },
        {"seed": range(SEEDS), "weighting": [BY_SAMPLE, BY_NODE], "strength": at},
    )
    limit = np.array([1 / figure.within(t) for t in ROUNDS.value])
    reachable = [figure.within(t - 1) for t in ROUNDS.value]
    limits = xr.Dataset(
        {
            "variance": ("rounds", 2 * limit),
            "limit": ("rounds", limit),
            "heard": ("rounds", reachable),
        },
        {"rounds": list(ROUNDS.value)},
    )
    return {"split": split, "limits": limits}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.slow
def test_picture():
    studies = expected_studies()
    with picture.print_style():
        assert picture.faults(figure.plot(studies)) == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("two-rounds-know-ten", "limits", "variance", 0.1, {"rounds": 2}),
        ("algorithm-4-lags-a-round", "limits", "heard", 10, {"rounds": 2}),
        ("rows-are-pooled", "split", "rows", 1e-3, {"weighting": BY_SAMPLE}),
        ("rows-rate", "split", "rows", 1e-7, {"weighting": BY_SAMPLE, "strength": 1e4}),
        ("rows-of-50-are-not-pooled", "split", "rows", 1e-8, {"weighting": BY_NODE}),
        ("columns-are-pooled", "split", "columns", 1e-3, {}),
        ("columns-rate", "split", "columns", 1e-7, {"strength": 1e4}),
    ],
)
def test_claims_detect_wrong_studies(claim, study, name, value, where):
    studies = expected_studies()
    studies[study][name].loc[where] = value
    assert not CLAIMS[claim].judge(studies).holds


def test_inner_nodes_of_the_tree_have_three_neighbors():
    degree = np.bincount(np.ravel(figure.EDGES), minlength=figure.NODES)
    assert set(degree) == {1, 3}
    assert figure.within(figure.DEPTH.value) == figure.NODES
    assert [figure.within(t) for t in (0, 1, 2)] == [1, 4, 10]


@pytest.mark.slow
def test_rows_and_columns_come_to_the_pooled_regression():
    few, many = figure.by_rows(0, [1.0, 1e4]).T
    assert many[0] < 1e-6 < few[0]
    assert many[1] > 100 * many[0]
    few, many = figure.by_columns(0, [1.0, 1e4])
    assert many < 1e-6 < few


@pytest.mark.slow
def test_rounds_reach_nearby_nodes():
    share = np.asarray(figure.shares(0.5, 0.05))
    reachable = (np.abs(share) > 1e-12).sum(axis=1)
    assert reachable.tolist() == [figure.within(t - 1) for t in ROUNDS.value]
    assert share[1, 1] == pytest.approx(2 * 0.05 * 2 * 0.05 * 0.5)
