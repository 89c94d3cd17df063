"""FedAvg's rounds: how they are counted, whose images they are on, claims that notice others."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_fedavg as fedavg
from experiments.field.figure_fedavg import ALONE, CELLS, ERROR, FIRST, LARGE, LONG, SHARDS
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in fedavg.FIGURE.claims}


def falling(rounds, needed):
    """Errors of three seeds that are three per cent after so many rounds, ``[seed, round]``."""
    after = needed * np.array([0.99, 1.0, 1.01])[:, None]
    return 0.03 + 0.0001 * (after - rounds)


def cell(name, **needed):
    """Rounds that what is tried of a cell needs; the published ones otherwise."""
    tries = fedavg.tries(name)
    rounds = np.arange(1, 1000, 1)
    values = [falling(rounds, needed.get(str(one), CELLS[name].published)) for one in tries]
    coords = {"tried": [*map(str, tries)], "seed": range(3), "round": rounds}
    data = xr.Dataset({ERROR: (("tried", "seed", "round"), np.array(values))}, coords)
    return data.assign_attrs(target=0.03)


def made():
    """Studies of which every claim holds."""
    studies = {name: cell(name) for name in CELLS}
    studies[FIRST] = cell(FIRST, **{"step 0.1": 80, str(fedavg.SMALL_START): 95})
    return studies


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_of_what_they_say(name):
    assert CLAIMS[name].judge(made()).holds


@pytest.mark.parametrize(
    ("name", "where", "factor"),
    [
        *((f"rounds-{place}", name, 0.5) for place, name in enumerate(CELLS)),
        ("several-clients-help", ALONE, 0.3),
        ("smaller-batches-help", LARGE, 0.5),
        ("more-passes-help", LONG, 4),
        ("shards-cost-rounds", SHARDS, 0.1),
        ("a-short-step-explains-it", FIRST, 0.5),
        ("a-small-start-explains-it", FIRST, 0.5),
        ("the-start-matters", FIRST, None),
    ],
)
def test_claims_fail_of_anything_else(name, where, factor):
    studies = made()
    if factor is None:
        studies[FIRST] = cell(FIRST, **{str(fedavg.SMALL_START): 60})
    else:
        tries = map(str, fedavg.tries(where))
        studies[where] = cell(where, **dict.fromkeys(tries, factor * CELLS[where].published))
    verdict = CLAIMS[name].judge(studies)
    assert not verdict.holds
    assert verdict.decided
    assert "In the first cell it takes" in verdict.note


def test_rounds_are_those_of_the_best_curve_so_far():
    errors = [
        [0.5, 0.05, 0.09, 0.01, 0.5],  # between 0.05 so far and 0.01: half of the way
        [0.02, 0.5, 0.5, 0.5, 0.5],
        [0.5, np.nan, np.nan, np.nan, np.nan],
    ]
    data = xr.Dataset(
        {ERROR: (("tried", "seed", "round"), [errors])},
        {"tried": [str(fedavg.Tried(0.1, 1.0))], "round": [2, 4, 6, 8, 10]},
    ).assign_attrs(target=0.03)
    found = fedavg.rounds_to({FIRST: data}, FIRST, fedavg.Tried(0.1, 1.0))
    np.testing.assert_allclose(found, [7, 2, 10])


def test_the_best_step_is_of_usual_starts():
    studies = made()
    fastest = {str(fedavg.SMALL_START): 10, "step 0.2": 40}
    studies[FIRST] = cell(FIRST, **fastest)
    assert fedavg.best(studies, FIRST) == fedavg.Tried(0.2, 1.0)


def test_all_images_are_dealt():
    one, two = (fedavg.dealt(fedavg.TINY, shards) for shards in (False, True))
    images = fedavg.TINY.images()
    for problem in (one, two):
        assert problem.features.shape[:2] == (10, len(images.train_labels) // 10)
        counts = np.bincount(np.asarray(problem.targets, int).ravel(), minlength=10)
        np.testing.assert_array_equal(counts, np.bincount(images.train_labels, minlength=10))
        assert float(np.max(problem.features)) == 1
    digits = [len(np.unique(row)) for row in np.asarray(two.targets)]
    assert max(digits) <= 4 < min(len(np.unique(row)) for row in np.asarray(one.targets))


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = fedavg.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    assert {*studies} == {*CELLS}
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    with picture.print_style():
        drawn = fedavg.plot(studies)
    assert picture.faults(drawn) == []
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(fedavg.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(fedavg.plot(studies)) == []
