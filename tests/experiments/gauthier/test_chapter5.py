"""Chapter 5's regression figures: a quick run, and claims that notice broken data."""

import numpy as np
import pytest
import xarray as xr

from experiments import records
from experiments.__main__ import main
from experiments.figure import REGISTRY
from experiments.gauthier import chapter5 as ch5
from experiments.gauthier import figure_5_1, figure_5_3

SEEDS, ROUNDS = 5, np.arange(2, 301, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
def test_a_figure_end_to_end(tmp_path, capsys):
    assert main(["run", "gauthier-5.3", "--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert "privacy" in capsys.readouterr().out
    assert main(["check", "gauthier-5.3", "--out", str(tmp_path)]) == 0
    figure = REGISTRY["gauthier-5.3"]
    stored = records.read_record(figure, tmp_path)
    study = records.read_studies(figure, tmp_path, stored["files"])["a"]
    final = study[ch5.METRIC].isel(round=-1)
    assert (final < 0.3).all()
    assert (study["gradient_norm"] > ch5.BOUND.value).all()
    spent = study["privacy_rho"].isel(round=-1).values
    assert ((spent > 0.3) & (spent < 1.0)).all()  # 1.92 if a client were drawn in every round
    assert (study["connected"]).all()


def made(**levels):
    """A study in which each method's NMSD falls from 1 to its level within 100 rounds."""
    fall = np.minimum(ROUNDS / 100, 1)
    noise = np.exp(0.02 * np.random.default_rng(0).normal(size=(SEEDS, len(ROUNDS))))
    data = np.stack([1 + (level - 1) * fall for level in levels.values()])[:, None] * noise
    bits = np.multiply.outer(np.arange(1.0, 1 + len(levels)), np.tile(ROUNDS, (SEEDS, 1)))
    return xr.Dataset(
        {
            ch5.METRIC: (("algorithm", "seed", "round"), data, {"decibel": 1}),
            "bits_up": (("algorithm", "seed", "round"), bits),
            "privacy_rho": (("algorithm", "seed", "round"), bits),
            "diverged": (("algorithm", "seed"), np.zeros((len(levels), SEEDS), int)),
        },
        coords={"algorithm": list(levels), "round": ROUNDS},
    )


def test_gaps_are_paired_and_of_the_last_iteration():
    studies = {"a": made(x=0.1, y=0.01), "b": made(x=0.2, y=0.01)}
    found = ch5.gaps((("a", "x"), ("a", "y")), (("b", "x"), ("a", "x")))(studies)
    assert list(found) == ["x (a) above y (a)", "x (b) above x (a)"]
    assert [round(e.value, 6) for e in found.values()] == [10, round(10 * np.log10(2), 6)]
    assert all(abs(e.high - e.low) < 1e-9 for e in found.values())  # the common noise cancels
    earlier = {"a": studies["a"].copy(deep=True)}
    earlier["a"][ch5.METRIC].loc[{"algorithm": "x", "round": slice(None, 298)}] *= 100
    assert abs(ch5.gaps((("a", "x"), ("a", "y")))(earlier)["x (a) above y (a)"].value - 10) < 1e-9


@pytest.mark.parametrize(
    ("when", "last"), [(ch5.early, 30), (figure_5_1.third, 100), (figure_5_3.start, 10)]
)
def test_early_gaps_look_at_the_early_iterations_only(when, last):
    pair = (("a", "x"), ("a", "y"))
    data = made(x=0.1, y=0.01)
    later, inside = data.copy(deep=True), data.copy(deep=True)
    later[ch5.METRIC].loc[{"round": slice(last + 1, None)}] = 7.0
    inside[ch5.METRIC].loc[{"algorithm": "x", "round": last}] *= 2
    first, second, third = (
        next(iter(ch5.gaps(pair, when=when)({"a": d}).values())).value
        for d in (data, later, inside)
    )
    assert first == second > 0
    assert third > first


def test_neighbours_go_along_the_grid():
    values = xr.Dataset(
        {ch5.METRIC: (("tau", "seed"), np.array([[1.0] * 3, [2.0] * 3, [8.0] * 3]))},
        coords={"tau": [0.0, 0.5, 1.0]},
    )
    rising = ch5.neighbours("p", "tau", rising=True)({"p": values})
    falling = ch5.neighbours("p", "tau", rising=False)({"p": values})
    assert [round(e.value, 2) for e in rising.values()] == [3.01, 6.02]
    assert [round(e.value, 2) for e in falling.values()] == [-3.01, -6.02]


def test_load_and_budget_are_measured():
    name = ch5.PGFL_0
    studies = {
        "a": made(other=1.0, **{name: 1.0}),
        "b": made(**{name: 1.0}),
        "c": made(**{name: 1}),
    }
    assert abs(figure_5_1.load(studies)["client uploads"].value - 50) < 1e-9
    spent = list(figure_5_1.spent(studies).values())
    assert spent[0].value == pytest.approx(1.9197, abs=1e-4)
    assert spent[1].value == 300
    decaying = figure_5_1.spent_if_budget_decays(studies)
    assert next(iter(decaying.values())).value == pytest.approx(0.0951, abs=1e-4)


def test_tuning_matches_the_early_curve():
    target = 0.99**ROUNDS
    near, far = target * 1.1, np.where(ROUNDS > 40, target, 5.0)
    tuning = xr.Dataset(
        {"target": ("round", target), "curve": (("candidate", "round"), [far, near])},
        coords={"round": ROUNDS, "value": ("candidate", [1.0, 2.0])},
    )
    assert ch5.chosen(tuning) == 2.0
    rows = ch5.tuning_table({"tuning-b": tuning, "a": tuning})
    assert [row["chosen"] for row in rows] == [False, True]
    assert rows[1]["score"] == pytest.approx(10 * np.log10(1.1))


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["gauthier-5.1", "gauthier-5.2", "gauthier-5.3", "gauthier-5.4"])
def test_every_claim_can_be_judged_on_the_stored_results(name, stored):
    """And those of order turn round when errors are turned upside down."""
    figure = REGISTRY[name]
    studies = stored(figure)
    mirrored = {
        key: study.assign({ch5.METRIC: 1 / study[ch5.METRIC]}) if ch5.METRIC in study else study
        for key, study in studies.items()
    }
    for claim in figure.claims:
        verdict = claim.judge(studies)
        assert all(np.isfinite(e.value) for e in verdict.cases.values())
        of_order = np.inf in claim.accept and 0 in claim.accept
        if of_order and verdict.holds:
            assert not claim.judge(mirrored).holds
