"""Krum's figure: whose images workers have, and claims that notice other results."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_krum as krum
from experiments.field.figure_krum import ATTACKS, BATCHES, ERROR, KRUM, MEAN, MULTI, RULES
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in krum.FIGURE.claims}


def curves(levels):
    """Errors of three seeds, ``[..., seed, round]``."""
    seeds = 0.001 * np.array([-1.0, 0.0, 1.0])[:, None] + np.zeros(20)
    return np.asarray(levels)[..., None, None] + seeds


def expected_studies():
    """Studies in which every claim holds."""
    rest = {"seed": range(3), "round": 20 * np.arange(1, 21)}
    levels = [[0.07, 0.15, 0.072], [0.9, 0.152, 0.075], [0.9, 0.148, 0.071]]
    dims = ("attack", "algorithm", "seed", "round")
    attacks = xr.Dataset(
        {ERROR: (dims, curves(levels), {"decibel": 0})},
        {"attack": [*ATTACKS], "algorithm": [*RULES], **rest},
    )
    batches = xr.Dataset(
        {ERROR: (("batch", "seed", "round"), curves([0.15, 0.11, 0.08, 0.07]))},
        {"batch": [*BATCHES.value], **rest},
    )
    return {"attacks": attacks, "batches": batches}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(expected_studies()).holds


@pytest.mark.parametrize(
    ("name", "where", "level"),
    [
        ("averaging-fails", {"algorithm": MEAN, "attack": "Gaussian"}, 0.3),
        ("krum-does-not-mind", {"algorithm": KRUM, "attack": "omniscient"}, 0.3),
        ("krum-is-far-better-under-attack", {"algorithm": KRUM, "attack": "Gaussian"}, 0.89),
        ("krum-costs-something", {"algorithm": MEAN, "attack": "no attackers"}, 0.2),
        ("batches-make-up-for-it", {"batch": 100}, 0.2),
        ("krum-reaches-averaging", {"batch": 100}, 0.1),
        ("multi-krum-is-averaging", {"algorithm": MULTI, "attack": "no attackers"}, 0.1),
        ("multi-krum-withstands", {"algorithm": MULTI, "attack": "Gaussian"}, 0.2),
    ],
)
def test_claims_fail_on_other_data(name, where, level):
    studies = expected_studies()
    studies["batches" if "batch" in where else "attacks"][ERROR].loc[where] = curves(level)
    verdict = CLAIMS[name].judge(studies)
    assert not verdict.holds
    assert verdict.decided
    assert f"{100 * level:.1f} %" in verdict.note


def test_images_are_halved_and_dealt_in_random_order():
    images = krum.TINY.images()
    problem = krum.dealt(krum.TINY)
    assert problem.features.shape == (20, len(images.train_labels) // 20, 14, 14)
    square = images.test_images[0, 4:6, 10:12]
    np.testing.assert_allclose(problem.test.features[0, 0, 2, 5], square.mean() / 255, rtol=1e-6)
    counts = np.bincount(np.asarray(problem.targets, int).ravel(), minlength=10)
    np.testing.assert_array_equal(counts, np.bincount(images.train_labels, minlength=10))
    assert min(len(np.unique(row)) for row in np.asarray(problem.targets)) > 5


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = krum.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    assert studies["attacks"].sizes["attack"] == 3
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    with picture.print_style():
        drawn = krum.plot(studies)
    assert picture.faults(drawn) == []
    assert len(drawn.axes) == 4
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(krum.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(krum.plot(studies)) == []
