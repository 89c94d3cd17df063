"""DP-SGD on MNIST: its claims notice other accuracies, its noise spends the budget and no more."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_dpsgd as dpsgd
from experiments.field.figure_dpsgd import (
    BUDGETS,
    DELTA,
    ERROR,
    FULL,
    PUBLISHED,
    PUBLISHED_PLAIN,
    RATE,
    SEEDS,
    TRAIN_ERROR,
)
from experiments.figure import Effort
from fljax.privacy import accounting

CLAIMS = {claim.name: claim for claim in dpsgd.FIGURE.claims}


def errors(percent, gap):
    """Three seeds that end at a test accuracy, ``gap`` points below that of training."""
    rounds = np.array([100, 200])
    ends = percent + np.array([-0.02, 0.0, 0.02])[:, None] + np.array([-1.0, 0.0])
    coords = {"seed": range(3), "round": rounds}
    values = {ERROR: 1 - ends / 100, TRAIN_ERROR: 1 - (ends + gap) / 100}
    return xr.Dataset({name: (("seed", "round"), value) for name, value in values.items()}, coords)


def expected_studies(plain=(PUBLISHED_PLAIN, 1.5), gap=0.2, ending="", **ends):
    """Studies that end a little above the published accuracies, except for the given ends."""

    def private(ends):
        parts = [
            errors(ends.get(f"e{epsilon:g}".replace(".", "_"), percent + 0.5), gap)
            for epsilon, percent in PUBLISHED.items()
        ]
        result = xr.concat(parts, "budget").assign_coords(budget=[*BUDGETS.value])
        noise_and_spent = {
            "noise": ("budget", [3.0, 2.0, 1.0]),
            "spent": ("budget", [*BUDGETS.value]),
        }
        return result.assign(noise_and_spent)

    return {
        f"private{step_rule}": private(ends if step_rule == ending else {})
        for step_rule in dpsgd.STEPPED
    } | {f"plain{step_rule}": errors(*plain) for step_rule in dpsgd.STEPPED}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(expected_studies()).holds


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("without-privacy", {"plain": (96.0, 1.0)}),
        ("accuracy-0.5", {"e0_5": 89.0}),
        ("accuracy-2", {"e2": 94.5}),
        ("accuracy-8", {"e8": 96.5}),
        ("larger-steps-0.5", {"e0_5": 89.0, "ending": dpsgd.LARGER}),
        ("larger-steps-2", {"e2": 94.5, "ending": dpsgd.LARGER}),
        ("larger-steps-8", {"e8": 96.5, "ending": dpsgd.LARGER}),
        ("more-budget-more-accuracy", {"e2": 97.9}),
        ("no-gap", {"gap": 2.0}),
        ("more-budget-more-accuracy-larger", {"e2": 97.9, "ending": dpsgd.LARGER}),
        ("no-gap-larger", {"gap": 2.0}),
    ],
)
def test_claims_fail_on_other_data(name, other):
    verdict = CLAIMS[name].judge(expected_studies(**other))
    assert not verdict.holds
    assert verdict.decided
    assert "Noise of 3, 2, 1 clips" in verdict.note


@pytest.mark.slow
def test_the_noise_spends_the_budget():
    for epsilon, noise in zip(BUDGETS.value, dpsgd.multipliers(FULL.steps), strict=True):
        spent = accounting.sampled_gaussian_epsilon(noise, DELTA.value, FULL.steps, RATE.value)
        assert 0.99 * epsilon < spent <= epsilon


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = dpsgd.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    for ending in dpsgd.STEPPED:
        assert np.all(studies[f"private{ending}"]["spent"] <= BUDGETS.value)
    with picture.print_style():
        drawn = dpsgd.plot(studies)
    assert picture.faults(drawn) == []
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(dpsgd.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    assert all(data.sizes["seed"] == SEEDS.value for data in studies.values())
    with picture.print_style():
        assert picture.faults(dpsgd.plot(studies)) == []
