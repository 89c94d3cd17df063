"""Chapter 4's figures: one quick run on the real data, and claims that notice broken data."""

import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from experiments import records
from experiments.__main__ import main
from experiments.figure import INFINITE, REGISTRY
from experiments.gauthier import chapter4 as ch4

DATA = Path(os.environ.get("FLJAX_DATA", "")) / "calcofi" / "cc_bottle.npz"
SEEDS, ROUNDS = 6, np.arange(10, 401, 10)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_file(), reason="FLJAX_DATA holds no calcofi/cc_bottle.npz")
def test_real_data_end_to_end(tmp_path, capsys):
    assert main(["run", "gauthier-4.4", "--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert "privacy spent" not in capsys.readouterr().out
    assert main(["check", "gauthier-4.4", "--out", str(tmp_path)]) == 0
    figure = REGISTRY["gauthier-4.4"]
    studies = records.read_studies(figure, tmp_path, records.read_record(figure, tmp_path)["files"])
    for panel in "ab":
        final = studies[panel]["test_error"].isel(round=-1).mean("seed")
        assert (final < 0.6).all()  # of the salinity's variance
        bits = studies[panel]["bits"].isel(round=-1).sel(algorithm=[ch4.U1, ch4.FEDSGD])
        assert (bits.isel(algorithm=0) * 50 == bits.isel(algorithm=1)).all()


def made(**levels):
    """A study in which each method's error falls from 1 to its level within 200 rounds."""
    rng = np.random.default_rng(0)
    fall = np.minimum(ROUNDS / 200, 1)
    curves = [1 + (level - 1) * fall for level in levels.values()]
    noise = np.exp(0.02 * rng.normal(size=(SEEDS, len(ROUNDS))))
    data = np.stack(curves)[:, None] * noise
    bits = np.multiply.outer(np.arange(1.0, 1 + len(levels)), np.tile(ROUNDS, (SEEDS, 1)))
    return xr.Dataset(
        {
            "test_error": (("algorithm", "seed", "round"), data, {"decibel": 1}),
            "bits_up": (("algorithm", "seed", "round"), bits),
            "diverged": (("algorithm", "seed"), np.zeros((len(levels), SEEDS), int)),
        },
        coords={"algorithm": list(levels), "round": ROUNDS},
    )


def test_gaps_are_those_of_the_last_tenth():
    data = made(a=0.1, b=0.01)
    found = ch4.gap(data, "a", "b")
    assert abs(found.value - 10) < 1e-9  # paired: the common noise cancels
    assert found.low <= found.value <= found.high
    later = data.copy(deep=True)
    later["test_error"].loc[{"algorithm": "a", "round": slice(None, 360)}] *= 100
    assert abs(ch4.gap(later, "a", "b").value - 10) < 1e-9
    later["test_error"].loc[{"algorithm": "a", "round": 370}] *= 100
    assert ch4.gap(later, "a", "b").value > 11
    assert abs(ch4.difference_of_gaps(data, made(a=0.1, b=0.1), "a", "b").value - 10) < 1e-9


def test_early_gaps_are_those_of_the_first_tenth():
    data = made(a=0.1, b=0.01)
    changed = data.copy(deep=True)
    changed["test_error"].loc[{"round": slice(50, None)}] = 7.0
    first, second = (ch4.early_gap(d, "a", "b").value for d in (data, changed))
    assert first == second > 0


def test_a_saving_is_relative_to_the_reference():
    found = ch4.saving("a", "a", "b", {"bits_up": "up"})({"a": made(a=1, b=1)})
    assert abs(found["up"].value - 50) < 1e-9
    assert found["up"].unit == "%"


def test_tuning_matches_the_early_curve():
    rounds = np.arange(10, 401, 10)
    target = 0.99**rounds
    near, far = target * 1.1, np.where(rounds > 40, target, 5.0)
    tuning = xr.Dataset(
        {"target": ("round", target), "curve": (("candidate", "round"), [far, near])},
        coords={
            "round": rounds,
            "tuned": ("candidate", ["x", "x"]),
            "value": ("candidate", [1.0, 2.0]),
        },
    )
    assert ch4.chosen(tuning, "x") == 2.0
    rows = ch4.tuning_table({"tuning-b": tuning, "a": tuning})
    assert [(row["method"], row["chosen"]) for row in rows] == [("x (b)", False), ("x (b)", True)]
    assert rows[1]["score"] == pytest.approx(10 * np.log10(1.1))


@pytest.mark.parametrize("name", ["gauthier-4.2", "gauthier-4.3", "gauthier-4.5", "gauthier-4.6"])
def test_every_claim_can_be_judged_on_the_stored_results(name, stored):
    """And those of order turn round when the two methods' errors change places."""
    figure = REGISTRY[name]
    studies = stored(figure)
    mirrored = {
        key: study.assign(test_error=1 / study["test_error"]) if "test_error" in study else study
        for key, study in studies.items()
    }
    for claim in figure.claims:
        verdict = claim.judge(studies)
        if verdict.holds and claim.accept == (0, INFINITE):
            assert not claim.judge(mirrored).holds
