"""The figure of partitions: its numbers on a quick study and on made-up results."""

import numpy as np
import pytest
import xarray as xr

from experiments.field import figure_partitions as figure
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}
LEVELS = figure.CONCENTRATIONS.value


def made_up(partition, seed, by_method=(0.0, 0.0, 0.05, 0.1), fall=0.1):
    """Results whose deviations over partitions and over runs are given."""
    rng = np.random.default_rng(0)
    methods = list(figure.ATTRACTIONS)
    shape = (len(methods), len(LEVELS), 16, 8, 8, 1)
    noise = rng.normal(0, 1, shape) * seed
    noise = noise + rng.normal(0, 1, (1, 1, 16, 1, 1, 1)) * partition
    mean = 0.7 + fall * np.arange(len(LEVELS)) / len(LEVELS)
    accuracy = mean[None, :, None, None, None, None] + noise
    accuracy = accuracy + np.reshape(by_method, (-1, 1, 1, 1, 1, 1))
    dims = ("algorithm", "concentration", "partition", "start", "seed", "round")
    distance = rng.uniform(0, 1, shape[:-1])
    study = xr.Dataset(
        {"accuracy": (dims, accuracy), "label_distance": (dims[:-1], distance)},
        {"algorithm": methods, "concentration": list(LEVELS), "round": [30]},
    )
    return {"final": study}


@pytest.mark.slow
def test_a_quick_study_has_every_number_that_the_page_shows():
    studies = figure.study(Effort(seeds=2, quick=True, progress=False))
    accuracy = figure.accuracy(studies)
    assert accuracy.sizes["partition"] == 3
    assert 0 <= float(accuracy.min()) <= float(accuracy.max()) <= 100
    rows = figure.table(studies)
    assert len(rows) == len(figure.ATTRACTIONS) * 3
    assert [row["method"] for row in figure.tuning(studies)] == list(figure.ATTRACTIONS)
    distances = studies["final"]["label_distance"].isel(algorithm=0, start=0, seed=0)
    assert (distances.isel(concentration=0) > distances.isel(concentration=-1)).all()
    # Partitions, initial models and participants are drawn apart.
    assert (distances.std("partition") > 0).all()
    same = studies["final"]["label_distance"]
    np.testing.assert_array_equal(same.isel(start=0, seed=0), same.isel(start=1, seed=1))
    assert (accuracy.std("start") > 0).any()
    assert (accuracy.std("seed") > 0).any()


@pytest.mark.parametrize(
    ("partition", "seed", "holding"),
    [
        (0.1, 0.01, {"partitions-are-most-of-the-variance"}),
        (0.001, 0.05, {"partitions-matter-less-for-equal-clients"}),
    ],
)
def test_shares_follow_the_deviations(partition, seed, holding):
    studies = made_up(partition, seed)
    found = {name for name in CLAIMS if "partitions" in name and CLAIMS[name].judge(studies).holds}
    assert found == holding


def test_methods_are_compared_at_the_least_concentration():
    better = made_up(0.05, 0.001)
    assert CLAIMS["corrections-help-unlike-clients"].judge(better).holds
    assert CLAIMS["dynamic-regularization-is-best"].judge(better).holds
    worse = made_up(0.05, 0.001, by_method=(0.2, 0.0, 0.1, 0.1))
    assert not CLAIMS["corrections-help-unlike-clients"].judge(worse).holds
    assert not CLAIMS["dynamic-regularization-is-best"].judge(worse).holds


def test_accuracy_falls_where_clients_are_unlike():
    assert CLAIMS["unlike-clients-cost-accuracy"].judge(made_up(0.01, 0.01, fall=0.2)).holds
    assert not CLAIMS["unlike-clients-cost-accuracy"].judge(made_up(0.01, 0.01, fall=0.0)).holds
