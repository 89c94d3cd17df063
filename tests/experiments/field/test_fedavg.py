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
SHORT = Tried(CELLS[FIRST].steps[0], 1.0)
#: The best of the tries of every cell below, as long as no other is made faster.
BEST = Tried(0.1, 1.0)
#: The tries of a cell, with the rounds of each relative to the best.
FACTORS = {SHORT: 1.1, BEST: 1.0, Tried(0.2, 1.0): 1.1}


def falling(rounds, needed):
    """Errors of three seeds, ``[seed, round]``, that reach 3 % after ``needed`` rounds."""
    after = needed * np.array([0.99, 1.0, 1.01])[:, None]
    return 0.03 + 0.0001 * (after - rounds)


def study(name, needed):
    """Errors of each try of a cell, which reach the target after the given rounds."""
    published = CELLS[name].published
    rounds = np.arange(1, 10 * published, max(1, published // 50))
    values = [falling(rounds, after) for after in needed.values()]
    coords = {"tried": [*map(str, needed)], "seed": range(3), "round": rounds}
    data = xr.Dataset({ERROR: (("tried", "seed", "round"), np.array(values))}, coords)
    return data.assign_attrs(target=0.03)


def cell(name, factor=1.0, **others):
    """A cell whose best step, which is in the middle, needs a multiple of the published rounds."""
    needed = CELLS[name].published * factor
    if CELLS[name].like is not None:
        return study(name, {BEST: needed})
    first = {SMALL_START: 1.15 * needed} if name == FIRST else {}
    tries = {tried: needed * slower for tried, slower in FACTORS.items()} | first
    return study(name, tries | {Tried.of(text): after for text, after in others.items()})


def expected_studies():
    """Studies in which every claim holds."""
    return {name: cell(name) for name in CELLS}


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
    verdict = CLAIMS[name].judge(expected_studies() | {where: cell(where, factor)})
    assert not verdict.holds
    assert verdict.decided
    assert "Here it takes" in verdict.note


def test_the_start_is_judged_at_the_same_step():
    studies = expected_studies() | {FIRST: cell(FIRST, **{str(SMALL_START): 60})}
    verdict = CLAIMS["the-start-matters"].judge(studies)
    assert verdict.decided
    assert not verdict.holds


def recorded(*errors):
    """A study of the first cell with the given errors of seeds, by record, for each try."""
    data = xr.Dataset(
        {ERROR: (("tried", "seed", "round"), [*errors])},
        {
            "tried": [str(tried) for tried in [*FACTORS][: len(errors)]],
            "seed": range(len(errors[0])),
            "round": np.arange(2, 2 * len(errors[0][0]) + 2, 2),
        },
    )
    return {FIRST: data.assign_attrs(target=0.03)}


def test_rounds_count_on_the_best_curve_so_far():
    studies = recorded(
        [
            [0.5, 0.05, 0.09, 0.01, 0.5],  # between 0.05 so far and 0.01: half of the way
            [0.02, 0.5, 0.5, 0.5, 0.5],
            [0.5, 0.03001, 0.5, 0.5, 0.5],  # the target, as results are stored
            [0.5, 0.01, np.nan, np.nan, np.nan],  # diverged after it was there
            [0.5, np.nan, np.nan, np.nan, np.nan],  # before
            [0.5, 0.0302, 0.2, 0.2, 0.2],  # two images short of the target
        ]
    )
    reached = TABLE.rounds_to(studies, FIRST, SHORT)
    expected = [7, 2, 4, 2 + 2 * 0.47 / 0.49, np.inf, np.inf]
    np.testing.assert_allclose(reached.needed, expected)
    np.testing.assert_allclose(reached.at_least, np.minimum(expected, 10))
    assert not reached.all_reached
    assert reached.median == pytest.approx((4 + 7) / 2)


def test_the_best_step_is_within_range_and_fails_in_no_seed():
    data = cell(FIRST, **{str(SMALL_START): 10, "step 0.2": 40, "step 0.4": 20})
    assert TABLE.best({FIRST: data}, FIRST) == Tried(0.4, 1.0)
    assert TABLE.beyond({FIRST: data}, FIRST) == Tried(0.8, 1.0)
    data[ERROR].loc[{"tried": "step 0.4", "seed": 1}] = 0.5
    assert TABLE.best({FIRST: data}, FIRST) == Tried(0.2, 1.0)
    assert TABLE.beyond({FIRST: data}, FIRST) is None
    (row,) = (
        row for row in TABLE.table(expected_studies() | {FIRST: data}) if row["method"] == FIRST
    )
    assert row["numbers"] == (
        "step 0.2, the best of 0.05, 0.1, 0.2, 0.4 on seeds 0, 1, 2, on which it is judged; 40 "
        "rounds at most"
    )


def test_among_steps_that_fail_in_some_seed_the_median_decides():
    there = [0.5, 0.02, 0.02, 0.02]
    late = [0.5, 0.5, 0.02, 0.02]
    never = [0.5] * 4
    studies = recorded([late, late, never], [there, there, never], [there, never, never])
    assert TABLE.best(studies, FIRST) == BEST
    assert np.isinf(TABLE.rounds_to(studies, FIRST, Tried(0.2, 1.0)).median)
    assert "more than 8 for 1 of 3 seeds with step 0.05" in TABLE.counts(FIRST)(studies)


def test_tries_are_read_from_what_was_run():
    for tried in (SHORT, SMALL_START, Tried(0.0125, 1.0)):
        assert Tried.of(str(tried)) == tried
    with pytest.raises(ValueError, match="names no step"):
        Tried.of("start x 0.1")


def rounds(*needed, **bounds):
    return averaging.Rounds(np.array(needed, float), **bounds)


@pytest.mark.parametrize(
    ("over", "under", "low", "high", "value"),
    [
        (rounds(8, 8), rounds(4, 4), 2, 2, 2),
        (rounds(8, 8, at_edge=True), rounds(4, 4), -np.inf, 2, 2),
        (rounds(8, 8), rounds(4, 4, at_edge=True), 2, np.inf, 2),
        (rounds(8, 8, np.inf, longest=8), rounds(4, 4, 4), 2, np.inf, 2),
        (rounds(8, np.inf, np.inf, longest=8), rounds(4, 4, 4), 2, np.inf, np.inf),
        (rounds(8, 8, 8), rounds(4, np.inf, np.inf, longest=4), -np.inf, 2, np.nan),
    ],
)
def test_ratios_are_open_where_rounds_are_bounds(over, under, low, high, value):
    estimate = averaging.ratio(over, under)
    np.testing.assert_allclose([estimate.value, estimate.low, estimate.high], [value, low, high])


def without_edges(name, studies):
    """The studies with a cell in which only the best step was tried."""
    return studies | {name: studies[name].sel(tried=[str(BEST)])}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("rounds-0", FIRST),
        ("several-clients-help", lines("shards", "B = 10", 0)),
        ("smaller-batches-help", lines("random", "B = ∞")),
        ("shards-cost-rounds", lines("shards", "B = 10")),
    ],
)
def test_claims_that_rest_on_a_step_at_an_edge_are_undecided(name, where):
    studies = without_edges(where, expected_studies())
    verdict = CLAIMS[name].judge(studies)
    assert not verdict.holds
    assert not verdict.decided
    assert verdict.deciding_seeds is None
    assert f"bounded from above only, in: {where}" in verdict.note
    rows = {row["method"]: row["numbers"] for row in TABLE.table(studies)}
    assert "at an edge" in rows[where]


def test_a_failure_that_an_untried_step_could_only_deepen_stays_one():
    studies = expected_studies() | {FIRST: cell(FIRST, 0.3)}
    verdict = CLAIMS["rounds-0"].judge(without_edges(FIRST, studies))
    assert verdict.decided
    assert not verdict.holds


def test_cells_with_the_step_of_another_are_at_an_edge_where_that_one_is():
    name = lines("random", "B = 10", 1)
    studies = expected_studies()
    assert not TABLE.at_edge(studies, name)
    assert TABLE.at_edge(without_edges(FIRST, studies), name)
    assert TABLE.at_edge(studies | {name: study(name, {SHORT: 70})}, name)


class Search:
    """Stands for an effort: a sweep whose rounds to the target depend on the step."""

    quick = False
    seeds = 2

    def __init__(self, best):
        self.best = best
        self.steps = {}

    def sweep(self, name, scenario, rounds, grid, **rest):
        ((text, tried),) = grid["tried"].items()
        cell = name.split("-step")[0]
        self.steps.setdefault(cell, []).append(float(tried.step))
        slower = abs(np.log2(float(tried.step) / self.best))
        at = np.arange(1, 100)
        errors = np.where(at >= 20 + 5 * slower, 0.0, 0.5)
        data = np.broadcast_to(errors, (1, self.seeds, len(at)))
        coords = {"tried": [text], "seed": range(self.seeds), "round": at}
        return xr.Dataset({ERROR: (("tried", "seed", "round"), data)}, coords)


def test_the_search_goes_on_beyond_an_edge_within_its_budget():
    near = Search(best=0.4)
    studies = TABLE.study(near)
    assert near.steps["fedavg-random-B10-C0"] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert near.steps["fedavg-random-B10-C1"] == pytest.approx([0.4])
    assert not TABLE.at_edge(studies, lines("random", "B = 10", 0))
    far = Search(best=100.0)
    studies = TABLE.study(far)
    assert len(far.steps["fedavg-random-B10-C0"]) == averaging.MOST.value
    assert TABLE.at_edge(studies, lines("random", "B = 10", 1))


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
    first, second = (np.asarray(build(key, SHORT).problem.initial) for key in keys)
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
