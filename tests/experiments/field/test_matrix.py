"""Matrix mechanisms: claims that notice other accuracies, and budgets that are spent."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

import fljax as fl
from experiments import picture
from experiments.field import figure_matrix as matrix
from experiments.field.figure_matrix import (
    BANDMF,
    BLT,
    BUDGETS,
    CLIENTS,
    DELTA,
    DPSGD,
    ERROR,
    FTRL,
    NAMES,
    SAMPLED,
    banded,
)
from experiments.figure import Effort
from fljax.privacy import accounting

CLAIMS = {claim.name: claim for claim in matrix.FIGURE.claims}
LEVEL = {DPSGD: 84.0, FTRL: 87.0, BANDMF: 87.2, BLT: 86.9, SAMPLED: 87.8}
LEVEL |= {banded(2): 88.0, banded(5): 87.5}


def study_ending_at(**levels):
    """Three seeds that end at these accuracies, at every budget."""
    rng = np.random.default_rng(0)

    def of(names):
        percent = np.array([(LEVEL | levels)[name] for name in names])
        errors = 1 - percent / 100 + 1e-4 * rng.normal(size=(len(BUDGETS.value), 3, 4, len(names)))
        numbers = np.ones((len(names), len(BUDGETS.value)))
        return xr.Dataset(
            {
                ERROR: (("budget", "seed", "round", "algorithm"), errors),
                "step": (("algorithm", "budget"), numbers),
                "left": (("algorithm", "budget"), numbers),
            },
            {"budget": [*BUDGETS.value], "algorithm": [*names], "seed": range(3)},
        )

    return {kind: of(names) for kind, names in NAMES.items()}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(study_ending_at()).holds


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("correlated-beats-independent", {DPSGD: 87.5}),
        ("optimized-beats-independent", {DPSGD: 87.5}),
        ("blt-tracks-bandmf", {BLT: 85.0}),
        ("square-root-tracks-bandmf", {FTRL: 88.5}),
        ("amplified-bandmf-wins-at-large-epsilon", {banded(2): 87.0}),
        ("sampling-wins-at-small-epsilon", {SAMPLED: 86.0}),
    ],
)
def test_claims_fail_at_other_accuracies(name, levels):
    verdict = CLAIMS[name].judge(study_ending_at(**levels))
    assert not verdict.holds
    assert verdict.decided
    assert "clips" in verdict.note


def test_every_method_has_the_least_noise_of_its_budget():
    """Each method's noise follows from its sampling theorem, or from Gaussian releases if nothing
    is secret.
    """
    pytest.importorskip("dp_accounting")
    rounds = 20
    for methods in matrix.SAMPLINGS.values():
        for name, method in methods(rounds).items():
            noise = float(matrix.mechanism(method, 2.0, rounds).noise_multiplier)
            sampling = method.selector.law(CLIENTS.value)
            strategy = method.strategy or fl.privacy.matrices.identity()
            if sampling.sampling is None:
                costs = strategy.participation_costs(rounds, sampling.separation)
                epsilon = accounting.zcdp_epsilon(
                    costs.sum() / (2 * noise**2), DELTA.value, "gaussian"
                )
            else:
                epsilon = accounting.cyclic_poisson_epsilon(
                    *(strategy, noise, DELTA.value, rounds),
                    rate=float(sampling.rate_of_turn),
                    cycle=sampling.separation,
                )
            assert 0.995 * 2.0 < float(epsilon) <= 2.0, name


def test_the_picture_shows_every_method():
    with picture.print_style():
        drawing = matrix.plot(study_ending_at())
    assert picture.faults(drawing) == []
    legends = (*drawing.legends, *(ax.get_legend() for ax in drawing.axes))
    legend_texts = {text.get_text() for legend in legends if legend for text in legend.get_texts()}
    assert legend_texts >= {name for names in NAMES.values() for name in names}
    plt.close(drawing)


@pytest.mark.slow
def test_a_quick_run_is_judged_and_spends_its_budget():
    pytest.importorskip("dp_accounting")
    studies = matrix.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    for data in studies.values():
        spent = data["spent"].transpose(..., "budget").values
        assert (spent <= np.array(BUDGETS.value)).all()
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(matrix.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    assert not any(data["nominal"].any() for data in studies.values())
    with picture.print_style():
        assert picture.faults(matrix.plot(studies)) == []
