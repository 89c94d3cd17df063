"""TiFL's figure: speeds of clients, how runs are read, claims that notice other results."""

import math

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_tifl as tifl
from experiments.field.figure_tifl import (
    ERROR,
    FAST,
    IID,
    NAMES,
    PARTS,
    RANDOM,
    SLOW,
    TINY,
    UNIFORM,
    UNLIKE,
    VANILLA,
)
from experiments.figure import Effort
from fljax.clock import Synchronous, Tiers

CLAIMS = {claim.name: claim for claim in tifl.FIGURE.claims}
ROUNDS = 10 * np.arange(1, 51)
#: Seconds of a round, and errors at the end of IID clients and of others.
EXPECTED = {
    SLOW: (30.0, 0.08, 0.4),
    VANILLA: (18.0, 0.05, 0.1),
    UNIFORM: (3.0, 0.05, 0.1),
    RANDOM: (1.0, 0.06, 0.15),
    FAST: (0.3, 0.08, 0.4),
}


def studies_of(expected):
    """Errors that are at their end from the twentieth record on, a little more or less by seed."""
    studies = {}
    for place, part in enumerate(PARTS, start=1):
        curves = []
        seconds = []
        for policy in NAMES:
            end = expected[policy][place]
            curve = np.where(np.arange(50) < 19, 0.5, end)
            curves.append(curve + 0.001 * np.array([-1, 0, 1])[:, None])
            seconds.append(expected[policy][0] * ROUNDS * np.array([0.99, 1, 1.01])[:, None])
        dims = ("policy", "seed", "round")
        studies[part] = xr.Dataset(
            {
                ERROR: (dims, np.array(curves)),
                "seconds": (dims, np.array(seconds)),
                "diverged": (dims[:2], np.zeros((len(NAMES), 3), int)),
            },
            {"policy": [*NAMES], "seed": range(3), "round": ROUNDS},
            {"target": 0.12},
        )
        error = [[0.3, 0.3], [0.1, 0.2], [0.2, 0.2]]
        coords = {"step": [0.05, 0.1, 0.2], "seed": [10_000, 10_001]}
        studies[f"tuning-{part}"] = xr.Dataset({"error": (("step", "seed"), error)}, coords)
    return studies


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(studies_of(EXPECTED)).holds


@pytest.mark.parametrize(
    ("name", "policy", "other"),
    [
        ("tiers-save-time", RANDOM, (5.0, 0.06, 0.15)),
        ("uniform-is-six-times-faster", UNIFORM, (7.0, 0.05, 0.1)),
        ("uniform-is-as-accurate", UNIFORM, (3.0, 0.08, 0.1)),
        ("fast-is-less-accurate", FAST, (0.3, 0.03, 0.4)),
        ("one-tier-is-less-accurate-where-clients-differ", SLOW, (30.0, 0.08, 0.08)),
        ("uniform-is-as-accurate-where-clients-differ", UNIFORM, (3.0, 0.05, 0.2)),
        ("tiers-reach-an-accuracy-sooner", UNIFORM, (20.0, 0.05, 0.1)),
    ],
)
def test_claims_fail_on_other_data(name, policy, other):
    verdict = CLAIMS[name].judge(studies_of(EXPECTED | {policy: other}))
    assert not verdict.holds
    assert verdict.decided
    assert f"{policy} {ROUNDS[-1] * other[0]:.0f} s" in verdict.note


def test_a_target_that_a_run_does_not_reach_is_undecided():
    studies = studies_of(EXPECTED | {UNIFORM: (3.0, 0.05, 0.2)})
    verdict = CLAIMS["tiers-reach-an-accuracy-sooner"].judge(studies)
    assert (verdict.holds, verdict.decided) == (False, False)


def test_seconds_until_the_target_are_of_the_mean_of_three_records():
    studies = studies_of(EXPECTED)
    # The first three records at the end's error are of rounds 200, 210 and 220.
    expected = 3.0 * 220 * np.array([0.99, 1, 1.01])
    np.testing.assert_allclose(tifl.until(studies, UNIFORM), expected)
    np.testing.assert_allclose(tifl.duration(studies, UNIFORM), expected * 500 / 220)


def test_the_note_computes_how_much_uniform_tiers_can_save():
    note = tifl.at_most(studies_of(EXPECTED))
    missing = math.prod((40 - i) / (50 - i) for i in range(5))
    assert f"with probability {1 - missing:.2f}" in note
    assert f"the ratio is about {5 * (1 - missing):.1f} if that group is slow by far" in note
    assert "at most 5 with any times of 5 equal groups" in note


@pytest.mark.parametrize("part", PARTS)
def test_clients_have_equally_many_images(part):
    problem = tifl.dealt(TINY, part)
    assert problem.features.shape == (10, 20, 14, 14)
    kinds = [len(np.unique(row)) for row in np.asarray(problem.targets)]
    assert max(kinds) <= 4 if part == UNLIKE else min(kinds) > 4


def test_a_pass_takes_a_second_over_the_processors():
    size = tifl.FULL
    seconds = np.asarray(tifl.devices(size).seconds_per_sample) * size.samples
    np.testing.assert_allclose(seconds, np.repeat([0.25, 0.5, 1, 2, 10], 10), rtol=1e-6)
    assert isinstance(tifl.clock(VANILLA, size), Synchronous)
    clock = tifl.clock(FAST, size)
    assert isinstance(clock, Tiers)
    assert clock.probabilities == (1, 0, 0, 0, 0)


def test_the_search_of_steps_goes_beyond_an_edge():
    errors = studies_of(EXPECTED)[f"tuning-{IID}"]["error"]
    assert tifl.best_step(errors) == 0.1
    assert tifl.step_beyond(errors) is None
    assert tifl.step_beyond(errors.sel(step=[0.05, 0.1])) == 0.2
    assert tifl.step_beyond(errors.sel(step=[0.1, 0.2])) == 0.05
    rows = tifl.tuning_table(studies_of(EXPECTED))
    assert [row["value"] for row in rows if row["chosen"]] == [0.1, 0.1]


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = tifl.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    # Twenty rounds of the slowest and of the fastest group: no other clients are in them.
    np.testing.assert_allclose(tifl.duration(studies, SLOW), 20 * 10, rtol=1e-5)
    np.testing.assert_allclose(tifl.duration(studies, FAST), 20 * 0.25, rtol=1e-5)
    with picture.print_style():
        drawn = tifl.plot(studies)
    assert picture.faults(drawn) == []
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(tifl.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(tifl.plot(studies)) == []
