"""FedAvg's rounds: how they are counted, whose images they are on, claims that notice others."""

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import averaging
from experiments.field import figure_fedavg as fedavg
from experiments.field.averaging import ERROR, SEEDS, Tried
from experiments.field.figure_fedavg import CELLS, FIRST, SMALL_START, TABLE, named
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in fedavg.FIGURE.claims}
COUNTS = [name for name in CLAIMS if name.startswith("rounds-")]
SMALLEST = Tried(CELLS[FIRST].steps[0], 1.0)


def falling(rounds, needed):
    """Errors of three seeds, ``[seed, round]``, that reach 3 % after ``needed`` rounds."""
    after = needed * np.array([0.99, 1.0, 1.01])[:, None]
    return 0.03 + 0.0001 * (after - rounds)


def cell(name, **needed):
    """Errors of each trial of a cell, which reach the target after the given rounds (default: the
    published ones).
    """
    tries = TABLE.tries(name)
    published = CELLS[name].published
    rounds = np.arange(1, 10 * published, max(1, published // 50))
    values = [falling(rounds, needed.get(str(trial), published)) for trial in tries]
    coords = {"tried": [*map(str, tries)], "seed": range(3), "round": rounds}
    data = xr.Dataset({ERROR: (("tried", "seed", "round"), np.array(values))}, coords)
    return data.assign_attrs(target=0.03)


def all_of(name, factor):
    """A cell in which every trial needs a multiple of the published rounds."""
    return cell(name, **dict.fromkeys(map(str, TABLE.tries(name)), factor * CELLS[name].published))


def expected_studies():
    """Studies in which every claim holds."""
    studies = {name: cell(name) for name in CELLS}
    studies[FIRST] = cell(FIRST, **{str(Tried(0.1, 1.0)): 80, str(SMALL_START): 95})
    return studies


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    verdict = CLAIMS[name].judge(expected_studies())
    assert verdict.holds, verdict.cases


def lines(order, batch, share=0.1):
    return named((order, batch), share)


@pytest.mark.parametrize(
    ("name", "where", "factor"),
    [
        *((f"rounds-{place}", lines(*line), 0.5) for place, line in enumerate(fedavg.LINES)),
        ("several-clients-help", lines("random", "B = 10", 0), 0.3),
        ("several-clients-help", lines("shards", "B = 10", 1), 6),
        ("whole-batches-gain-little", lines("random", "B = ∞", 0), 2),
        ("smaller-batches-help", lines("random", "B = 10"), 9),
        ("shards-cost-rounds", lines("shards", "B = 10"), 0.1),
        ("a-short-step-explains-it", FIRST, 0.5),
        ("a-small-start-explains-it", FIRST, 0.5),
    ],
)
def test_claims_fail_on_other_data(name, where, factor):
    verdict = CLAIMS[name].judge(expected_studies() | {where: all_of(where, factor)})
    assert not verdict.holds
    assert verdict.decided
    assert "Here it takes" in verdict.note


def test_the_start_is_judged_at_the_same_step():
    studies = expected_studies() | {FIRST: cell(FIRST, **{str(SMALL_START): 60})}
    verdict = CLAIMS["the-start-matters"].judge(studies)
    assert verdict.decided
    assert not verdict.holds


def test_rounds_count_on_the_best_curve_so_far():
    errors = [
        [0.5, 0.05, 0.09, 0.01, 0.5],  # between 0.05 so far and 0.01: half of the way
        [0.02, 0.5, 0.5, 0.5, 0.5],
        [0.5, np.nan, np.nan, np.nan, np.nan],
    ]
    data = xr.Dataset(
        {ERROR: (("tried", "seed", "round"), [errors])},
        {"tried": [str(SMALLEST)], "round": [2, 4, 6, 8, 10]},
    ).assign_attrs(target=0.03)
    np.testing.assert_allclose(TABLE.rounds_to({FIRST: data}, FIRST, SMALLEST), [7, 2, 10])


def test_the_best_step_is_within_range_and_fails_in_no_seed():
    fastest = {str(SMALL_START): 10, "step 0.2": 40, "step 0.4": 20}
    data = cell(FIRST, **fastest)
    assert TABLE.best({FIRST: data}, FIRST) == Tried(0.4, 1.0)
    data[ERROR].loc[{"tried": "step 0.4", "seed": 1}] = 0.5
    assert TABLE.best({FIRST: data}, FIRST) == Tried(0.2, 1.0)
    (row,) = (
        row for row in TABLE.table(expected_studies() | {FIRST: data}) if row["method"] == FIRST
    )
    assert row["numbers"] == "step 0.2, 40 rounds at most"


def test_a_run_is_stopped_once_its_verdict_is_decided():
    for name in CELLS:
        claim = next(c for c in COUNTS if name in CLAIMS[c].measure(expected_studies()))
        assert TABLE.longest.value > CLAIMS[claim].accept[1]
        assert TABLE.rounds(CELLS[name]) > CLAIMS[claim].accept[1] * CELLS[name].published
        assert TABLE.rounds(CELLS[name]) % (averaging.LOOK * CELLS[name].every) == 0


def test_all_images_are_dealt():
    iid, sharded = (averaging.dealt(TABLE.tiny, shards) for shards in (False, True))
    images = TABLE.tiny.images()
    for problem in (iid, sharded):
        assert problem.features.shape[:2] == (10, len(images.train_labels) // 10)
        counts = np.bincount(np.asarray(problem.targets, int).ravel(), minlength=10)
        np.testing.assert_array_equal(counts, np.bincount(images.train_labels, minlength=10))
        assert float(np.max(problem.features)) == 1
    digits = [len(np.unique(row)) for row in np.asarray(sharded.targets)]
    assert max(digits) <= 4 < min(len(np.unique(row)) for row in np.asarray(iid.targets))


def test_seeds_start_differently_and_small_starts_are_small():
    build = averaging.scenario(CELLS[FIRST], TABLE.tiny)
    keys = jax.random.split(jax.random.key(0), 2)
    first, second = (np.asarray(build(key, SMALLEST).problem.initial) for key in keys)
    small = np.asarray(build(keys[0], SMALL_START).problem.initial)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_allclose(small, SMALL_START.scale * first, rtol=1e-6)


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = TABLE.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
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
    assert all(data.sizes["seed"] == SEEDS.value for data in studies.values())
    with picture.print_style():
        assert picture.faults(fedavg.plot(studies)) == []
