"""Figures 5.5 and 5.6: a quick run on real images, and measures that notice broken data."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments.__main__ import main
from experiments.figure import REGISTRY, Effort
from experiments.gauthier import chapter5_images as ch5
from experiments.gauthier import figure_5_5 as digits
from experiments.gauthier import figure_5_6 as organs
from fljax.data import SINGLE_DIGITS, mnist_sample
from fljax.records import warn

DATA = Path(os.environ.get("FLJAX_DATA", "")) / "organamnist" / "organamnist.npz"
SEEDS, ROUNDS = 6, np.arange(10, 301, 10)
#: Figure 5.5(a) with fewer clients and the images of the package.
SMALL = ch5.Setup(mnist_sample, SINGLE_DIGITS, 3, (1, 2), 2, test=40)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_file(), reason="FLJAX_DATA holds no organamnist/organamnist.npz")
def test_real_images_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(organs, "DISSIMILAR", organs.SIMILAR)  # compiled once for both panels
    ask = ["gauthier-5.6", "--out", str(tmp_path)]
    assert main(["run", *ask, "--quick", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "bound c1 = 1 held" in printed
    assert "bound c1 = 0.03 BROKEN" in printed
    assert main(["check", *ask]) == 0


METHODS, PENALTIES = {ch5.ALONE: 0.0, digits.MIXED: 0.4}, dict.fromkeys(ch5.BOUNDS, 1.0)
EFFORT = Effort(seeds=2, tuning_seeds=2, quick=True)


@pytest.fixture(scope="module")
def small():
    """Both noises, two schedules, on the sample of MNIST."""
    with pytest.warns(fl.AssumptionWarning, match="nominal"):
        return ch5.study("small", SMALL, PENALTIES, METHODS, EFFORT, 40)


@pytest.mark.slow
def test_the_bound_of_one_holds_and_the_nominal_one_does_not(small):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn(small.sel(bound=[1.0]))
    assert (small["gradient_norm"].sel(bound=0.03) > 0.03).all()


@pytest.mark.slow
def test_weak_noise_lets_the_clients_learn(small):
    final = small["accuracy"].isel(round=-1, budget=0).mean("seed").sel(algorithm=ch5.ALONE)
    assert float(final.sel(bound=0.03)) > 0.8
    assert float(final.sel(bound=0.03)) > float(final.sel(bound=1.0)) + 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
def test_shorter_runs_are_the_beginnings_of_longer_ones(small):
    """So that (c), simulated to the iteration it is read at, may be joined with (b)."""
    short = ch5.study("short", SMALL, PENALTIES, METHODS, EFFORT, 20)
    long = small.sel(round=[10, 20])
    np.testing.assert_allclose(short["accuracy"], long["accuracy"], atol=1e-12)
    np.testing.assert_allclose(short["privacy_rho"], long["privacy_rho"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
def test_tuning_measures_on_its_own_seeds(monkeypatch):
    monkeypatch.setattr(ch5, "PENALTIES", ch5.PENALTIES._replace(value=(0.1, 10.0)))
    found = ch5.tune("t", SMALL, EFFORT, 20)
    assert found.attrs["tuning_seeds"] == 2
    assert found["penalty"].values.tolist() == [0.1, 10.0]
    assert (found["error"].sel(bound=0.03) < found["error"].sel(bound=1.0)).all()


def made(**levels):
    """A study in which each method's accuracy rises from 1/2 to its level within 200 rounds."""
    rng = np.random.default_rng(0)
    rise = np.minimum(ROUNDS / 200, 1)
    curves = np.stack([0.5 + (level - 0.5) * rise for level in levels.values()])
    data = curves[:, None] + 0.02 * rng.normal(size=(SEEDS, 1))
    data = np.stack([data, data - 0.1])[:, None]  # the second noise costs all ten points
    axes = ("bound", "budget", "algorithm", "seed")
    return xr.Dataset(
        {
            "accuracy": ((*axes, "round"), data),
            "diverged": (axes, np.zeros(data.shape[:-1], int)),
            "privacy_rho": ((*axes, "round"), np.broadcast_to(ROUNDS / 1000, data.shape)),
            "gradient_norm": (axes, np.full(data.shape[:-1], 0.9)),
        },
        coords={
            "algorithm": list(levels),
            "round": ROUNDS,
            "bound": list(ch5.BOUNDS),
            "budget": [ch5.INITIAL.value],
        },
    )


def test_gains_are_points_of_pairs():
    data = made(a=0.9, b=0.8)
    found = ch5.gain(data, "a", "b", 1.0, 300)
    assert found.value == pytest.approx(10)
    assert found.low == pytest.approx(found.high)  # paired: the common noise cancels
    assert ch5.gain(data, "a", "b", 1.0, 100).value == pytest.approx(5)
    assert ch5.gain(data, "a", "b", 1.0, None).value == pytest.approx(10)
    early = ch5.gain(data, "a", "b", 1.0, slice(1, 50))
    assert early.value == pytest.approx(10 * np.mean([10, 20, 30, 40, 50]) / 200)
    cases = ch5.gains("x", [("a", "b"), ("b", "a")], [100, slice(1, 50)])({"x": data})
    assert list(cases) == [
        f"{pair}, {when}" for pair in ("a over b", "b over a") for when in ("n = 100", "n ≤ 50")
    ]
    assert cases["b over a, n = 100"].value == pytest.approx(-5)


def test_gains_are_those_of_their_noise_and_of_runs_that_did_not_diverge():
    data = made(a=0.9, b=0.8)
    data["accuracy"].loc[{"bound": 0.03, "algorithm": "a"}] += 0.1
    assert ch5.gain(data, "a", "b", 1.0, 300).value == pytest.approx(10)
    assert ch5.gain(data, "a", "b", 0.03, 300).value == pytest.approx(20)
    data["accuracy"].loc[{"seed": 0, "algorithm": "a"}] = 0.0
    data["diverged"].loc[{"seed": 0, "algorithm": "a"}] = 7
    assert ch5.gain(data, "a", "b", 1.0, 300).value == pytest.approx(10)


def test_tuning_takes_the_least_error_of_each_noise():
    error = xr.DataArray(
        [[0.3, 0.2, 0.4], [0.1, np.inf, 0.3]],
        coords={"bound": list(ch5.BOUNDS), "penalty": [0.1, 1.0, 10.0]},
        dims=("bound", "penalty"),
    )
    tuning = error.to_dataset(name="error")
    assert ch5.chosen(tuning) == {1.0: 1.0, 0.03: 0.1}
    rows = ch5.tuning_table({"tuning-a": tuning, "a": made(a=1)})
    assert [row["value"] for row in rows if row["chosen"]] == [1.0, 0.1]
    assert {row["method"] for row in rows} == {"PGFL (a), C = 1", "PGFL (a), C = 0.03"}


def test_a_data_sample_costs_the_square_of_its_images():
    note = ch5.privacy_note({"a": made(a=0.9)}, {"a": 6})
    assert "0.3 (ε =" in note
    assert "11 (ε =" in note  # 36 * 0.3
    assert "C = 1 holds (largest gradient 0.9000)" in note
    loud = made(a=0.9)
    loud["gradient_norm"][:] = 1.1
    assert "C = 1 is BROKEN" in ch5.privacy_note({"a": loud}, {"a": 6})


@pytest.mark.parametrize("name", ["gauthier-5.5", "gauthier-5.6"])
def test_claims_turn_round_with_the_results(name, stored):
    """A claim of order that holds on the stored results fails when accuracy is error."""
    figure = REGISTRY[name]
    studies = stored(figure)
    mirrored = {
        key: study.assign(accuracy=1 - study["accuracy"]) if "accuracy" in study else study
        for key, study in studies.items()
    }
    verdicts = [claim.judge(studies) for claim in figure.claims]
    assert any(verdict.holds for verdict in verdicts)
    for claim, verdict in zip(figure.claims, verdicts, strict=True):
        if verdict.holds:
            assert not claim.judge(mirrored).holds
