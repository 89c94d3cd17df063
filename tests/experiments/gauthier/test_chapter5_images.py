"""Figures 5.5 and 5.6: a quick run on real images, and measures that notice broken data."""

import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments.__main__ import main
from experiments.figure import REGISTRY, Effort
from experiments.gauthier import chapter5_images as ch5
from experiments.gauthier import figure_5_5 as digits
from experiments.gauthier import figure_5_6 as organs
from experiments.measures import joined
from experiments.picture import faults, print_style
from fljax.data import SINGLE_DIGITS, mnist_sample
from fljax.results.warnings import warn

DATA = Path(os.environ.get("FLJAX_DATA", "")) / "organamnist" / "organamnist.npz"
SEEDS = 6
ROUNDS = np.arange(10, 301, 10)
#: Figure 5.5(a) with fewer clients and the images of the package.
SMALL = ch5.Setup(mnist_sample, SINGLE_DIGITS, 3, (1, 2), 2, every=10, test=40)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_file(), reason="FLJAX_DATA holds no organamnist/organamnist.npz")
def test_real_images_end_to_end(tmp_path, capsys, monkeypatch):
    setup = organs.SIMILAR._replace(test=40, every=50)
    for panel in ("SIMILAR", "DISSIMILAR"):  # compiled once for both
        monkeypatch.setattr(organs, panel, setup)
    for module, setting, few in (
        (ch5, "PENALTIES", (0.1, 10.0)),
        (organs, "TAUS", (0.0, 0.6)),
        (organs, "RATES", (0.98,)),
    ):
        monkeypatch.setattr(module, setting, getattr(module, setting)._replace(value=few))
    ask = ["gauthier-5.6", "--out", str(tmp_path)]
    assert main(["run", *ask, "--quick", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "bound c1 = 1 held" in printed
    assert "bound c1 = 0.03 BROKEN" in printed
    assert main(["check", *ask]) == 0


METHODS = {ch5.ALONE: 0.0, digits.MIXED: 0.4}
PENALTIES = {1.0: {ch5.ALONE: 1.0, digits.MIXED: 1.0}, 0.03: {ch5.ALONE: 1.0, digits.MIXED: 0.1}}
EFFORT = Effort(seeds=2, tuning_seeds=2, quick=True)


@pytest.fixture(scope="module")
def small():
    """Both noises, two schedules, on the sample of MNIST."""
    with pytest.warns(fl.AssumptionWarning, match="nominal"):
        return ch5.study("small", SMALL, PENALTIES, METHODS, EFFORT, 40)


@pytest.mark.long
@pytest.mark.slow
def test_the_bound_of_one_holds_and_the_nominal_one_does_not(small):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn(small.sel(bound=[1.0]))
    assert (small["gradient_norm"].sel(bound=0.03) > 0.03).all()


@pytest.mark.slow
def test_weak_noise_lets_the_clients_learn(small):
    final = small["accuracy"].isel(round=-1).mean("seed").sel(algorithm=ch5.ALONE)
    assert float(final.sel(bound=0.03)) > 0.7
    assert float(final.sel(bound=0.03)) > float(final.sel(bound=1.0)) + 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
def test_every_method_runs_with_its_penalty_and_noise(small):
    """Whatever else runs in the same sweep."""
    method = digits.MIXED
    bound = 0.03
    penalties = {bound: {method: PENALTIES[bound][method]}}
    alone = ch5.study("alone", SMALL, penalties, {method: METHODS[method]}, EFFORT, 40)
    one_cell = small.sel(bound=[bound], algorithm=[method])
    assert alone["accuracy"].dims == one_cell["accuracy"].dims
    np.testing.assert_allclose(alone["accuracy"], one_cell["accuracy"], atol=1e-12)
    np.testing.assert_allclose(alone["gradient_bound"], bound)
    np.testing.assert_allclose(alone["privacy_rho"], one_cell["privacy_rho"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
@pytest.mark.long
def test_tuning_measures_every_penalty_on_its_own_seeds(monkeypatch):
    monkeypatch.setattr(ch5, "PENALTIES", ch5.PENALTIES._replace(value=(0.1, 10.0)))
    monkeypatch.setattr(ch5, "READ", 20)
    result = ch5.tune("t", SMALL, METHODS, EFFORT)
    assert result.attrs["tuning_seeds"] == 2
    assert result["seed"].values.tolist() == [10_000, 10_001]
    assert result["penalty"].values.tolist() == [0.1, 10.0]
    assert (result["accuracy"].sel(bound=0.03) > result["accuracy"].sel(bound=1.0)).mean() > 0.5
    penalties = {0.03: dict.fromkeys(METHODS, 10.0)}
    monkeypatch.setattr(ch5, "seeds", range)
    plotted = ch5.study("p", SMALL, penalties, METHODS, EFFORT, 20)["accuracy"].sel(round=[20])
    ours = ch5.tune("t", SMALL, METHODS, EFFORT)["accuracy"].sel(bound=[0.03], penalty=10.0)
    np.testing.assert_allclose(ours.transpose(*plotted.dims), plotted, atol=1e-12)


def test_cases_are_identified_by_position():
    numbers = xr.Dataset({"x": ("case", np.arange(12))}, coords={"case": list(map(str, range(12)))})
    result = ch5._regrouped(numbers, bound=[1.0, 0.03], penalty=[1, 2, 3], algorithm=["a", "b"])[
        "x"
    ]
    assert result.sel(bound=1.0, penalty=1, algorithm="b") == 1
    assert result.sel(bound=1.0, penalty=3, algorithm="a") == 4
    assert result.sel(bound=0.03, penalty=2, algorithm="b") == 9


def study_rising_to(early=False, /, **levels):
    """A study in which each method's accuracy rises from 1/2 to its level within 200 rounds.

    ``early``: its advantage over learning alone is there from the first round on.
    """
    rng = np.random.default_rng(0)
    rise = np.minimum(ROUNDS / 200, 1)
    early_gain = {m: level - levels[ch5.ALONE] if early else 0.0 for m, level in levels.items()}
    curves = [
        0.5 + early_gain[m] + (level - early_gain[m] - 0.5) * rise for m, level in levels.items()
    ]
    data = np.stack(curves)[:, None] + 0.02 * rng.normal(size=(SEEDS, 1))
    data = np.stack([data, data - 0.1])  # the second noise costs all ten points
    axes = ("bound", "algorithm", "seed")
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
        },
    )


def tuning_study(early=False, /, **levels):
    """A tuning in which each method is a point less accurate with each further penalty."""
    penalties = [0.1, 1.0, 10.0]
    data = study_rising_to(early, **levels).sel(round=[ch5.READ])[["accuracy", "diverged"]]
    parts = [data.assign(accuracy=data["accuracy"] - 0.01 * i) for i in range(len(penalties))]
    return joined(*parts, axis="penalty").assign_coords(penalty=penalties)


def test_gains_are_points_of_pairs():
    data = study_rising_to(a=0.9, b=0.8)
    result = ch5.gain(data, "a", "b", 1.0, 300)
    assert result.value == pytest.approx(10)
    assert result.low == pytest.approx(result.high)  # paired: the common noise cancels
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
    data = study_rising_to(a=0.9, b=0.8)
    data["accuracy"].loc[{"bound": 0.03, "algorithm": "a"}] += 0.1
    assert ch5.gain(data, "a", "b", 1.0, 300).value == pytest.approx(10)
    assert ch5.gain(data, "a", "b", 0.03, 300).value == pytest.approx(20)
    data["accuracy"].loc[{"seed": 0, "algorithm": "a"}] = 0.0
    data["diverged"].loc[{"seed": 0, "algorithm": "a"}] = 7
    assert ch5.gain(data, "a", "b", 1.0, 300).value == pytest.approx(10)


def test_every_method_has_the_penalty_of_its_least_error_under_each_noise():
    tuning = tuning_study(a=0.9, b=0.8)
    better = {"bound": 0.03, "algorithm": "b", "penalty": 10.0}
    tuning["accuracy"].loc[better] += 0.1
    assert ch5.chosen(tuning) == {1.0: {"a": 0.1, "b": 0.1}, 0.03: {"a": 0.1, "b": 10.0}}
    tuning["diverged"].loc[better | {"seed": 0}] = 5
    assert ch5.chosen(tuning)[0.03]["b"] == 0.1
    rows = ch5.tuning_table({"tuning-x": tuning, "x": study_rising_to(a=1)})
    assert len(rows) == 2 * 2 * 3
    assert [row["value"] for row in rows if row["chosen"]] == [0.1] * 4
    assert {row["method"] for row in rows if row["chosen"]} == {
        f"{method} (x), C = {bound:g}" for method in "ab" for bound in ch5.BOUNDS
    }
    first = rows[0]
    assert first["score"] == pytest.approx(
        1 - tuning["accuracy"].sel(bound=1.0, algorithm="a", penalty=0.1).mean().item()
    )


def test_gains_at_common_penalties_are_those_of_each():
    tuning = tuning_study(a=0.9, b=0.8)
    tuning["accuracy"].loc[{"bound": 1.0, "algorithm": "a", "penalty": 1.0}] -= 0.2
    result = ch5.common_gains("x", ("a", "b"), 1.0)({"tuning-x": tuning})
    assert list(result) == ["rho = 0.1", "rho = 1", "rho = 10"]
    assert [e.value for e in result.values()] == pytest.approx([5, -15, 5])
    note = ch5.where_common("x", ("a", "b"), 1.0)({"tuning-x": tuning})
    assert "a is better than b with rho = 0.1, rho = 10 and worse with rho = 1, beyond" in note
    assert f"{SEEDS} seeds" in note


def test_notes_state_the_results():
    studies = {"x": study_rising_to(a=0.9, b=0.8), "tuning-x": tuning_study(a=0.9, b=0.8)}
    studies["x"]["accuracy"].loc[{"algorithm": "a", "bound": 1.0}] = 0.75
    levels = ch5.levels("x", ("a",), 1.0, None)(studies)
    assert levels == "Right (at the end): 75.0 % of a."
    text = ch5.notes("Why.", ch5.penalties_of("x", ("a", "b"), 0.03))(studies)
    assert text == "Why. Best penalties: 0.1 of a, 0.1 of b."


def test_a_data_sample_costs_the_square_of_its_images():
    table = ch5.sample_privacy({"a": 6})
    penalties, six = table({"a": study_rising_to(a=0.9)})
    assert (penalties["images replaced"], six["images replaced"]) == (1, 6)
    assert penalties["rho"] == pytest.approx(0.3)
    assert six["rho"] == pytest.approx(36 * 0.3)
    assert six["epsilon"] > penalties["epsilon"]
    assert penalties["bound held"]
    loud = study_rising_to(a=0.9)
    loud["gradient_norm"][:] = 1.1
    assert not table({"a": loud})[0]["bound held"]


def studies_of(name, levels, early=False):
    """All studies of a figure, with these methods at these levels."""
    panels = {"gauthier-5.5": ("a", "b", "flipped"), "gauthier-5.6": ("a", "b", "untuned")}[name]
    result = {}
    for panel in panels:
        result[panel] = study_rising_to(early, **levels)
        result[f"tuning-{panel}"] = tuning_study(early, **levels)
    return result


#: By how much mixing raises the final accuracy where every claim of both figures is true.
RAISED = {
    "gauthier-5.5": dict(zip(digits.VERY_LARGE, (0.08, 0.07), strict=True))
    | {digits.LARGE: 0.1, digits.MIXED: 0.1},
    "gauthier-5.6": {organs.LARGE: 0.06, organs.MEDIUM: 0.02},
}


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.slow
def test_claims_hold_where_mixing_helps_and_fail_where_it_harms(name):
    good, bad = (
        {m: 0.7 + sign * x for m, x in ({ch5.ALONE: 0.0} | RAISED[name]).items()}
        for sign in (1, -1)
    )
    good, bad = (studies_of(name, levels, early=True) for levels in (good, bad))
    for claim in REGISTRY[name].claims:
        assert claim.judge(good).holds, claim.name
        verdict = claim.judge(bad)
        assert not verdict.holds, claim.name
        assert isinstance(verdict.note, str)


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("name", RAISED)
def test_pictures_hide_nothing(name):
    figure = REGISTRY[name]
    methods = {
        "gauthier-5.5": list(map(ch5.label, digits.TAUS.value)),
        "gauthier-5.6": [*map(ch5.label, organs.TAUS.value), organs.MEDIUM],
    }[name]
    studies = studies_of(name, {m: 0.6 + 0.02 * i for i, m in enumerate(methods)})
    with print_style():
        drawing = figure.plot(studies)
        assert faults(drawing) == []
    plt.close(drawing)
