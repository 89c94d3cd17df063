"""FedBuff's figure: how times are read and steps are searched, claims that notice other results."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_fedbuff as fedbuff
from experiments.field.figure_fedbuff import (
    ASYNCHRONOUS,
    AVERAGING,
    BUFFERED,
    CROWDED,
    CROWDED_METHODS,
    DISTRIBUTIONS,
    ERROR,
    HALF_NORMAL,
    HEAVY,
    METHODS,
    MOMENTUM_SERVER,
    TINY,
    WAITING,
    Steps,
)
from experiments.figure import Effort
from fljax.algorithms.server.server_algorithm import LocalLearning
from fljax.clock import Asynchronous, FirstArrivals, Synchronous

CLAIMS = {claim.name: claim for claim in fedbuff.FIGURE.claims}
RECORDS = 200
#: Records until the target, the seconds of a record and its client updates.
EXPECTED = {
    BUFFERED: (20, {HALF_NORMAL: 0.8, HEAVY: 0.8}, 100),
    ASYNCHRONOUS: (40, {HALF_NORMAL: 0.8, HEAVY: 0.8}, 100),
    MOMENTUM_SERVER: (44, {HALF_NORMAL: 1.2, HEAVY: 1.0}, 130),
    AVERAGING: (60, {HALF_NORMAL: 1.2, HEAVY: 1.0}, 130),
    WAITING: (44, {HALF_NORMAL: 2.8, HEAVY: 6.0}, 100),
}
#: The same with the source's concurrency.
EXPECTED_OF_CROWD = {
    BUFFERED: (50, {CROWDED: 0.1}, 100),
    MOMENTUM_SERVER: (14, {CROWDED: 1.2}, 1300),
}


def tuning_of(needed):
    """Seconds of some pairs of steps, of two seeds each."""
    values = np.array([[seconds, seconds + 1] for seconds in needed.values()])
    coords = {"steps": [str(steps) for steps in needed], "seed": [10_000, 10_001]}
    return xr.Dataset(
        {
            "needed": (("steps", "seed"), values),
            "last": (("steps", "seed"), np.full(values.shape, 50.0)),
        },
        coords,
    )


def settled(name):
    """A search whose best pair is better than all its neighbors."""
    best = Steps(0.2, 1.0)
    neighbors = fedbuff.beyond(name, tuning_of({best: 5.0}))
    return tuning_of({best: 5.0} | dict.fromkeys(neighbors, 9.0))


def studies_of(expected, of_crowd=EXPECTED_OF_CROWD):
    """Errors that are small after the expected records, a record more or less by seed."""
    studies = {f"tuning-{name}": settled(name) for name in METHODS}
    for name in CROWDED_METHODS:
        studies[fedbuff.tuning_of(name, CROWDED)] = settled(name)
    number = np.arange(1, RECORDS + 1)
    jitter = np.array([0, 0, 1])[:, None]
    for name, (records, lasting, updates) in (*expected.items(), *of_crowd.items()):
        is_asynchronous = name in (BUFFERED, ASYNCHRONOUS)
        # The mean of a window is at the target as soon as its last record is the first zero.
        errors = np.where(number < records + jitter, 0.18, 0.0)
        for distribution, of_record in lasting.items():
            seconds = np.broadcast_to(of_record * number, errors.shape)
            studies[fedbuff.of(name, distribution)] = xr.Dataset(
                {
                    ERROR: (("seed", "round"), errors),
                    "seconds": (("seed", "round"), seconds),
                    "diverged": ("seed", np.zeros(3, int)),
                },
                {"seed": range(3), "round": updates * number if is_asynchronous else number},
                {"target": 0.15, "updates": 1 if is_asynchronous else updates},
            )
    return studies


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(studies_of(EXPECTED)).holds


@pytest.mark.parametrize("records", [5, 30])
def test_another_factor_than_the_source_has_is_noticed(records):
    _, lasting, updates = EXPECTED_OF_CROWD[MOMENTUM_SERVER]
    other = EXPECTED_OF_CROWD | {MOMENTUM_SERVER: (records, lasting, updates)}
    studies = studies_of(EXPECTED, other)
    verdict = CLAIMS["fedbuff-is-three-times-as-efficient"].judge(studies)
    (case,) = verdict.cases.values()
    # Records by seed are the expected ones, the same, and one more.
    np.testing.assert_allclose(case.value, 1.2 * (records + 1 / 3) / (0.1 * (50 + 1 / 3)))
    assert (verdict.holds, verdict.decided) == (False, True)
    assert f"FedAvgM {1.2 * (records + 1 / 3):.1f} s. With 100 at work" in verdict.note


@pytest.mark.parametrize(
    ("name", "method", "records"),
    [
        ("fedbuff-is-faster-than-synchronous", AVERAGING, 10),
        ("fedbuff-is-faster-than-fedasync", ASYNCHRONOUS, 15),
        ("fedbuff-needs-fewer-updates", MOMENTUM_SERVER, 10),
    ],
)
def test_claims_fail_on_other_data(name, method, records):
    _, lasting, updates = EXPECTED[method]
    verdict = CLAIMS[name].judge(studies_of(EXPECTED | {method: (records, lasting, updates)}))
    assert not verdict.holds
    assert verdict.decided
    assert f"{method} " in verdict.note


@pytest.mark.parametrize(
    ("name", "method", "seconds"),
    [
        ("heavy-tails-cost-who-waits-for-all", WAITING, 3.0),
        ("over-selection-protects-against-heavy-tails", AVERAGING, 2.0),
    ],
)
def test_claims_about_tails_fail_on_other_data(name, method, seconds):
    records, lasting, updates = EXPECTED[method]
    other = EXPECTED | {method: (records, lasting | {HEAVY: seconds}, updates)}
    verdict = CLAIMS[name].judge(studies_of(other))
    assert not verdict.holds
    assert verdict.decided


def test_updates_that_depend_on_the_times_are_noticed():
    studies = studies_of(EXPECTED)
    slow = studies_of(EXPECTED | {BUFFERED: (30, EXPECTED[BUFFERED][1], 100)})
    studies[fedbuff.of(BUFFERED, HEAVY)] = slow[fedbuff.of(BUFFERED, HEAVY)]
    verdict = CLAIMS["fedbuff-does-not-mind-the-times"].judge(studies)
    assert (verdict.holds, verdict.decided) == (False, True)


def test_runs_that_are_not_at_the_target_bound_the_time_from_below():
    late = EXPECTED | {AVERAGING: (RECORDS + 9, EXPECTED[AVERAGING][1], 130)}
    studies = studies_of(late)
    time = fedbuff.seconds(studies, AVERAGING, HALF_NORMAL)
    assert not time.all_reached
    np.testing.assert_allclose(time.at_least, 1.2 * RECORDS)
    assert CLAIMS["fedbuff-is-faster-than-synchronous"].judge(studies).holds
    assert "3 not at the target by then" in fedbuff.counts(studies)


def test_an_edge_of_the_search_leaves_a_comparison_open():
    studies = studies_of(EXPECTED)
    assert not fedbuff.at_edge(studies, AVERAGING, HEAVY)
    studies[f"tuning-{AVERAGING}"] = tuning_of({Steps(0.2, 1.0): 9.0, Steps(0.4, 1.0): 5.0})
    assert fedbuff.at_edge(studies, AVERAGING, HEAVY)
    verdict = CLAIMS["fedbuff-is-faster-than-synchronous"].judge(studies)
    assert (verdict.holds, verdict.decided) == (False, False)
    assert f"At an edge of the steps that were tried: {AVERAGING}." in verdict.note


def test_the_search_goes_on_around_the_best_pair():
    tuning = tuning_of({Steps(0.1, 1.0): 9.0, Steps(0.2, 1.0): 5.0, Steps(0.2, 0.5): 6.0})
    around = [Steps(0.4, 1.0), Steps(0.2, 2.0)]
    assert fedbuff.beyond(BUFFERED, tuning) == around
    assert fedbuff.beyond(ASYNCHRONOUS, tuning) == around[:1]  # no weight above one
    assert fedbuff.beyond(AVERAGING, tuning) == around[:1]
    assert fedbuff.best(tuning) == Steps(0.2, 1.0)
    names = [name for name in studies_of(EXPECTED) if name.startswith("tuning")]
    assert len(names) == len(METHODS) + len(CROWDED_METHODS)
    rows = fedbuff.tuning_table(dict.fromkeys(names, tuning))
    assert len(rows) == 3 * len(names)
    assert sum(row["chosen"] for row in rows) == len(names)


def test_steps_that_fail_a_seed_are_not_the_best():
    tuning = tuning_of({Steps(0.1, 1.0): 40.0, Steps(0.2, 1.0): 5.0})
    tuning["needed"].loc[{"steps": "0.2, 1", "seed": 10_001}] = math.inf
    assert fedbuff.best(tuning) == Steps(0.1, 1.0)


def test_both_laws_have_the_same_mean():
    share = jnp.asarray((np.arange(200_000) + 0.5) / 200_000)
    means = [float(distribution.quantile(share).mean()) for distribution in DISTRIBUTIONS.values()]
    np.testing.assert_allclose(means, math.sqrt(2 / math.pi), rtol=1e-3)


def test_clients_have_two_digits_and_a_part_lasts_one_unit_on_average():
    problem = fedbuff.dealt(TINY)
    assert max(len(np.unique(row)) for row in np.asarray(problem.targets)) <= 4
    kinds = {BUFFERED: Asynchronous, MOMENTUM_SERVER: FirstArrivals, WAITING: Synchronous}
    for name, kind in kinds.items():
        clock = fedbuff.clock(name, DISTRIBUTIONS[HALF_NORMAL], TINY)
        assert isinstance(clock, kind)
        algorithm = fedbuff.method(name, Steps(0.1, 1.0), TINY)
        assert isinstance(algorithm, LocalLearning)
        assert algorithm.batch
        seconds = np.asarray(clock.devices.seconds_per_step)
        np.testing.assert_allclose(seconds * -(-problem.samples // algorithm.batch), 1)


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = fedbuff.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    waits = studies[fedbuff.of(WAITING, HALF_NORMAL)]["seconds"].isel(round=-1)
    first = studies[fedbuff.of(MOMENTUM_SERVER, HALF_NORMAL)]["seconds"].isel(round=-1)
    assert (waits > first).all()
    with picture.print_style():
        drawn = fedbuff.plot(studies)
    assert picture.faults(drawn) == []
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(fedbuff.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(fedbuff.plot(studies)) == []
