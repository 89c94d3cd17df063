"""The figure of FedBN: its images, its numbers on a quick study, its claims on made-up results."""

import numpy as np
import pytest
import xarray as xr

from experiments.field import figure_fedbn as figure
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def made_up(accuracies, losses=(1.0, 1.0, 0.8, 0.5)):
    """Results whose mean accuracy and loss by method are given."""
    rng = np.random.default_rng(0)
    shape = (4, 5, 3, 4)
    dims = ("algorithm", "seed", "round", "client")
    noise = 0.002 * rng.normal(size=shape)
    accuracy = np.reshape(accuracies, (4, 1, 1, 1)) + noise
    loss = np.reshape(losses, (4, 1, 1, 1)) + noise
    study = xr.Dataset(
        {figure.ACCURACY: (dims, accuracy), figure.LOSS: (dims, loss)},
        {"algorithm": list(figure.METHODS), "round": [1, 2, 3]},
    )
    return {"digits": study}


def test_images_differ_by_client_and_are_in_range():
    train, test = figure.data(True)
    assert [len(x) for x, _ in train] == [40] * 4
    assert [len(x) for x, _ in test] == [30] * 4
    for x, _ in (*train, *test):
        assert x.shape[1:] == (28, 28, 1)
        assert 0 <= x.min() <= x.max() <= 1
    plain, blurred, inverted, noisy = (x for x, _ in train)
    assert inverted.mean() > 0.8 > 0.3 > plain.mean()
    assert blurred.max(axis=(1, 2)).mean() < 0.9 * plain.max(axis=(1, 2)).mean()
    assert noisy.std() > plain.std()


@pytest.mark.slow
def test_a_quick_study_has_every_number_that_the_page_shows():
    studies = figure.study(Effort(seeds=2, quick=True, progress=False))
    accuracy = figure.accuracies(studies)
    assert dict(accuracy.sizes) == {"algorithm": 4, "seed": 2, "client": 4}
    rows = figure.table(studies)
    assert [row["method"] for row in rows] == list(figure.METHODS)
    assert set(rows[0]) == {"method", *(f"{name} [%]" for name in (*figure.SHIFTS.value, "mean"))}
    assert (accuracy.std("algorithm") > 0).any()


@pytest.mark.parametrize(
    ("accuracies", "holding"),
    [
        (
            (0.8, 0.8, 0.88, 0.9),
            {"fedbn-is-more-accurate-at-every-client", "keeping-statistics-is-most-of-it"}
            | {"fedbn-is-more-accurate-than-fedprox", "fedbn-converges-faster"},
        ),
        (
            (0.8, 0.9, 0.82, 0.9),
            {"fedbn-is-more-accurate-at-every-client", "fedbn-converges-faster"},
        ),
        ((0.9, 0.8, 0.9, 0.8), {"fedbn-converges-faster"}),
    ],
)
def test_claims_follow_the_accuracies(accuracies, holding):
    studies = made_up(accuracies)
    assert {name for name, claim in CLAIMS.items() if claim.judge(studies).holds} == holding


def test_slower_training_is_not_faster():
    studies = made_up((0.8, 0.8, 0.88, 0.9), losses=(0.5, 0.5, 0.5, 0.8))
    assert not CLAIMS["fedbn-converges-faster"].judge(studies).holds
