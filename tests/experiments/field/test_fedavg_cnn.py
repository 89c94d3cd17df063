"""FedAvg of a CNN: its claims notice other rounds, its network is the source's."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

import fljax as fl
from experiments import picture
from experiments.field import figure_fedavg_cnn as cnn
from experiments.field.averaging import ERROR, SEEDS
from experiments.field.figure_fedavg_cnn import CELLS, SGD, SHARDED, TABLE, of
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in cnn.FIGURE.claims}


def cell(name, needed):
    """Three seeds that reach 99 % after about the given number of rounds with the best of three
    steps.
    """
    steps = {"step 0.05": 1.1, "step 0.1": 1.0, "step 0.2": 1.1}
    rounds = np.arange(1, 10 * CELLS[name].published, max(1, CELLS[name].published // 50))
    after = needed * np.array([0.99, 1.0, 1.01])[:, None]
    values = [0.01 + 0.0001 * (slower * after - rounds) for slower in steps.values()]
    coords = {"tried": [*steps], "seed": range(3), "round": rounds}
    data = xr.Dataset({ERROR: (("tried", "seed", "round"), np.array(values))}, coords)
    data["diverged"] = xr.zeros_like(data[ERROR].isel(round=0), int)
    return data.assign_attrs(target=0.01)


def expected_studies():
    """Studies in which cells need the published rounds."""
    return {name: cell(name, c.published) for name, c in CELLS.items()}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_of_the_published_rounds(name):
    assert CLAIMS[name].judge(expected_studies()).holds


@pytest.mark.parametrize(
    ("name", "where", "rounds"),
    [
        *(("rounds", where, 2 * c.published) for where, c in CELLS.items()),
        ("local-work-helps", SGD, 90),
        ("local-work-helps", of(1, 50), 600),
        ("smaller-batches-help", of(1, 50), 30),
        ("smaller-batches-help", of(5, 10), 40),
        ("batches-help", of(1, 50), 400),
        ("batches-help", of(5, None), 50),
        ("more-passes-help", of(5, 10), 50),
        ("more-passes-help-larger-batches", of(5, 50), 80),
        ("more-passes-help-larger-batches", of(5, None), 700),
        ("twenty-passes", of(20, 10), 10),
        ("two-digits-cost", SHARDED, 50),
    ],
)
def test_claims_fail_on_other_data(name, where, rounds):
    verdict = CLAIMS[name].judge(expected_studies() | {where: cell(where, rounds)})
    assert not verdict.holds
    assert verdict.decided
    assert "Here it takes" in verdict.note


def test_falls_of_accuracy_are_counted():
    studies = expected_studies()
    studies[SGD][ERROR][..., 5] += 0.5
    assert "falls by more than five points 9 times in 9 runs" in cnn.why(studies)
    assert "here 3 to 3 were run" in cnn.why(studies)
    assert cnn.why(studies).endswith("with the best step: none.")
    studies[SGD]["diverged"].loc[{"tried": "step 0.1", "seed": 1}] = 7
    assert cnn.why(studies).endswith(f"with the best step: 1 with {SGD}.")


def test_a_run_that_never_arrives_is_no_arrival():
    studies = expected_studies()
    studies[SGD][ERROR][:, :2] = 0.5
    verdict = CLAIMS["rounds"].judge(studies)
    assert not verdict.decided
    assert np.isinf(verdict.cases[SGD].value)
    assert np.isinf(verdict.cases[SGD].high)
    assert "for 2 of 3 seeds" in verdict.note
    with picture.print_style():
        drawn = cnn.plot(studies)
    marked = [line for line in drawn.axes[1].get_lines() if line.get_marker() == "^"]
    assert [len(line.get_xdata()) for line in marked] == [1]
    plt.close(drawn)


def test_the_network_is_that_of_the_source():
    layout = fl.models.layout_of(TABLE.full.network, (28, 28, 1), "float32")
    assert layout.dim == 1_663_370
    assert "1,663,370 parameters" in cnn.NETWORK.why


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = TABLE.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    with picture.print_style():
        drawn = cnn.plot(studies)
    assert picture.faults(drawn) == []
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(cnn.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    assert all(data.sizes["seed"] == SEEDS.value for data in studies.values())
    with picture.print_style():
        assert picture.faults(cnn.plot(studies)) == []
