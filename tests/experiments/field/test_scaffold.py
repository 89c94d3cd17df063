"""SCAFFOLD's table: how images are dealt, how rounds are counted, claims that notice others."""

import itertools

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_scaffold as scaffold
from experiments.field.figure_scaffold import CELLS, CONTROLLED, ERROR, FEDAVG, SGD, Cell
from experiments.figure import Effort, Estimate

CLAIMS = {claim.name: claim for claim in scaffold.FIGURE.claims}
ROUNDS = np.arange(1, 1001)
#: Passes in the source where every claim holds.
PUBLISHED = {
    (SGD, 0): [317],
    (SGD, 10): [365],
    (SGD, 100): [416],
    (CONTROLLED, 0): [77, 152, 286, 266],
    (CONTROLLED, 10): [62, 20, 16, 11],
    (CONTROLLED, 100): [60, 10, 7, 4],
    (FEDAVG, 0): [258, 428, 711, 900],
    (FEDAVG, 10): [74, 34, 25, 18],
    (FEDAVG, 100): [70, 10, 6, 4],
}


def counts():
    """Rounds of every cell."""
    return {
        str(Cell(method, similarity, epochs)): rounds
        for (method, similarity), row in PUBLISHED.items()
        for epochs, rounds in zip(scaffold.EPOCHS.value, row, strict=False)
    }


def studies_of(needed):
    """Errors small enough after the needed rounds, also in the study of the harder target."""
    tables = table_of(needed)
    unlike = [str(cell) for cell in CELLS if cell.similarity == scaffold.UNLIKE]
    nearer = {name: data.sel(cell=unlike) for name, data in tables.items()}
    return tables | {
        scaffold.NEARER: nearer["cells"],
        f"tuning-{scaffold.NEARER}": nearer["tuning"],
    }


def table_of(needed):
    """A round more or less by seed."""
    jitter = np.array([0, 0, 1])[:, None]
    values = [np.where(rounds + jitter <= ROUNDS, 0.1, 0.5) for rounds in needed.values()]
    coords = {"cell": [*needed], "seed": range(3), "round": ROUNDS}
    cells = xr.Dataset({ERROR: (("cell", "seed", "round"), np.array(values))}, coords)
    tried = np.tile([[[3.0], [2.0], [9.0]]], (len(needed), 1, 1))
    tuning = xr.Dataset(
        {"rounds": (("cell", "step", "seed"), tried)}, {"cell": [*needed], "step": [0.1, 0.3, 1.0]}
    )
    return {"cells": cells.assign_attrs(target=0.15), "tuning": tuning}


def test_every_cell_is_in_the_table():
    assert [*map(str, CELLS)] == sorted(counts(), key=[*map(str, CELLS)].index)
    assert len(CELLS) == 27


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(studies_of(counts())).holds


@pytest.mark.parametrize(
    ("name", "cell", "factor"),
    [
        ("scaffold-is-faster-where-clients-differ", Cell(CONTROLLED, 10, 5), 3),
        ("scaffold-is-always-faster-than-sgd", Cell(SGD, 100, 1), 0.1),
        ("fedavg-is-slower-than-sgd-where-clients-differ-most", Cell(FEDAVG, 0, 5), 0.5),
        ("fedavg-is-slower-than-sgd-nearer-the-optimum", Cell(FEDAVG, 0, 5), 0.5),
        ("scaffold-is-faster-nearer-the-optimum", Cell(CONTROLLED, 0, 10), 5),
        ("passes-slow-fedavg-where-clients-differ-most", Cell(FEDAVG, 0, 20), 0.1),
        ("a-tenth-in-common-makes-passes-pay", Cell(FEDAVG, 10, 20), 10),
        ("similarity-saves-rounds", Cell(FEDAVG, 100, 10), 10),
        ("sgd-does-not-mind", Cell(SGD, 10, 1), 2),
        ("alike-clients-need-no-control", Cell(CONTROLLED, 100, 1), 2),
    ],
)
def test_claims_fail_on_other_data(name, cell, factor):
    needed = counts()
    needed[str(cell)] *= factor
    verdict = CLAIMS[name].judge(studies_of(needed))
    assert not verdict.holds
    assert verdict.decided
    assert str(cell) in verdict.note


@pytest.mark.parametrize(
    ("accept", "rises", "falls", "stays"),
    [
        ((0, np.inf), True, False, True),  # more saving is as good
        ((0, np.inf), False, True, False),
        ((0, np.inf), False, False, True),
        ((40, np.inf), True, False, False),
        ((40, np.inf), False, True, True),  # less saving is as bad
        ((-35, 35), True, False, False),
        ((-35, 35), False, True, False),
        ((-35, 35), False, False, True),
        ((0, np.inf), True, True, False),
    ],
)
def test_what_larger_steps_could_change_is_undecided(accept, rises, falls, stays):
    estimate = Estimate(20.0, 10.0, 30.0, "%")
    result = scaffold.settled(estimate, accept, rises=rises, falls=falls)
    assert (result == estimate) == stays
    assert np.isnan(result.value) != stays


@pytest.mark.parametrize("edge", [0.1, 1.0])
def test_comparisons_whose_best_step_is_an_edge_are_undecided(edge):
    studies = studies_of(counts())
    cell = Cell(CONTROLLED, 10, 5)
    assert not scaffold.can_be_faster(studies, cell)
    studies["tuning"]["rounds"].loc[{"step": edge}] = 1.0  # no step can need fewer
    assert not scaffold.can_be_faster(studies, cell)
    studies["tuning"]["rounds"].loc[{"step": edge}] = 1.5
    assert scaffold.can_be_faster(studies, cell)
    verdict = CLAIMS["scaffold-is-faster-where-clients-differ"].judge(studies)
    assert (verdict.holds, verdict.decided) == (False, False)
    named = verdict.note.partition("The best step is the smallest or largest that was tried of")[2]
    assert str(cell) in named


def test_unreached_targets_count_as_all_rounds():
    errors = xr.DataArray(
        [[0.5, 0.1, 0.3], [0.5, 0.5, 0.5], [np.nan, np.nan, np.nan]],
        dims=("seed", "round"),
        coords={"round": [1, 2, 3]},
    )
    assert scaffold.rounds_to(errors, 0.15).values.tolist() == [2, 3, 3]


@pytest.mark.parametrize("similarity", scaffold.SIMILARITY.value)
def test_clients_have_the_share_in_common(similarity):
    labels = np.repeat(np.arange(10), 200)
    rows = scaffold.rows_of(np.random.default_rng(1).permutation(labels), similarity, 20, 100)
    assert len(np.unique(rows)) == 2000
    labels = np.random.default_rng(1).permutation(labels)
    drawn = similarity
    for row in rows:
        assert len(np.unique(labels[row[drawn:]])) <= 2
        if drawn:
            assert len(np.unique(labels[row[:drawn]])) >= 5
    # The part that is sorted goes through the digits in order.
    rest = labels[rows[:, drawn:]].ravel()
    assert all(a <= b for a, b in itertools.pairwise(rest))


def test_pixels_are_means_of_four_and_a_constant():
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 4)).astype(np.uint8)
    result = scaffold.pixels(images)
    assert result.shape == (3, 7)
    np.testing.assert_array_equal(result[:, -1], 1)
    for image, row, column in np.ndindex(3, 3, 2):
        square = images[image, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        np.testing.assert_allclose(result[image, 2 * row + column], square.mean() / 255, rtol=1e-6)


def test_each_cell_has_its_best_step():
    studies = studies_of(counts())
    assert scaffold.chosen(studies, CELLS[0]) == 0.3
    rows = scaffold.tuning_table(studies)
    many = len(CELLS) + len([cell for cell in CELLS if cell.similarity == scaffold.UNLIKE])
    assert len(rows) == 3 * many
    assert [row["value"] for row in rows if row["chosen"]] == [0.3] * many
    assert len({row["method"] for row in rows}) == many


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = scaffold.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    assert studies["cells"].sizes["cell"] == len(CELLS)
    assert studies[scaffold.NEARER].sizes["cell"] == 9
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    with picture.print_style():
        drawn = scaffold.plot(studies)
    assert picture.faults(drawn) == []
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(scaffold.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(scaffold.plot(studies)) == []
