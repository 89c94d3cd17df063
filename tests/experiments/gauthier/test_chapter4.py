"""Chapter 4's figures: one quick run on the real data, and claims that notice broken data."""

import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import measures, records
from experiments.__main__ import main
from experiments.figure import INFINITE, REGISTRY
from experiments.gauthier import chapter4 as ch4
from experiments.gauthier import figure_4_2, figure_4_3, figure_4_4, figure_4_5, figure_4_6
from experiments.gauthier import figure_4_theory as theory
from fljax import statistics

DATA = Path(os.environ.get("FLJAX_DATA", "")) / "calcofi" / "cc_bottle.npz"
STORED = Path(__file__).parents[3] / "figures"
SEEDS = 6
ROUNDS = np.arange(10, 401, 10)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_file(), reason="FLJAX_DATA holds no calcofi/cc_bottle.npz")
def test_real_data_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figure_4_4, "DEALT", figure_4_4.DEALT._replace(value=(0.0, 1.0)))
    monkeypatch.setattr(ch4, "PROTOCOL", replace(ch4.PROTOCOL, quick=2))
    assert main(["run", "gauthier-4.4", "--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert "privacy spent" not in capsys.readouterr().out
    assert main(["check", "gauthier-4.4", "--out", str(tmp_path)]) == 0
    figure = REGISTRY["gauthier-4.4"]
    studies = records.read_studies(figure, tmp_path)
    for panel in "ab":
        final = studies[panel]["test_error"].isel(round=-1).mean("seed")
        # In units of the salinity's variance; with few candidates Online-Fed gets a step that is
        # too large.
        assert (final.drop_sel(algorithm=figure_4_4.ONLINE_FED) < 0.6).all()
        bits = studies[panel]["bits"].isel(round=-1).sel(algorithm=[ch4.U1, ch4.FEDSGD])
        assert (bits.isel(algorithm=0) * 50 == bits.isel(algorithm=1)).all()


def study_falling_to(**levels):
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
    data = study_falling_to(a=0.1, b=0.01)
    result = ch4.gap(data, "a", "b")
    assert abs(result.value - 10) < 1e-9  # paired: the common noise cancels
    assert result.low <= result.value <= result.high
    later = data.copy(deep=True)
    later["test_error"].loc[{"algorithm": "a", "round": slice(None, 360)}] *= 100
    assert abs(ch4.gap(later, "a", "b").value - 10) < 1e-9
    later["test_error"].loc[{"algorithm": "a", "round": 370}] *= 100
    assert ch4.gap(later, "a", "b").value > 11
    assert (
        abs(ch4.difference_of_gaps(data, study_falling_to(a=0.1, b=0.1), "a", "b").value - 10)
        < 1e-9
    )


def test_early_gaps_are_those_of_the_first_tenth():
    data = study_falling_to(a=0.1, b=0.01)
    changed = data.copy(deep=True)
    changed["test_error"].loc[{"round": slice(50, None)}] = 7.0
    first, second = (ch4.early_gap(d, "a", "b").value for d in (data, changed))
    assert first == second > 0


def test_a_saving_is_relative_to_the_reference():
    result = ch4.saving("a", "a", "b", {"bits_up": "up"})({"a": study_falling_to(a=1, b=1)})
    assert abs(result["up"].value - 50) < 1e-9
    assert result["up"].unit == "%"


def test_tuning_matches_the_early_curve():
    rounds = np.arange(10, 401, 10)
    target = 0.99**rounds
    near = target * 1.1
    far = np.where(rounds > 40, target, 5.0)
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


def steady(level, **coords):
    """A study without rounds: one number, the same on all seeds."""
    shape = (1, SEEDS)
    return xr.Dataset(
        {
            "test_error": (("algorithm", "seed"), np.full(shape, level), {"decibel": 1}),
            "diverged": (("algorithm", "seed"), np.zeros(shape, int)),
        },
        coords=coords,
    )


@pytest.mark.slow
def test_moments_are_those_of_samples():
    k_features, k_stream, k_inputs = jax.random.split(jax.random.key(0), 3)
    features = ch4.KERNEL.draw(k_features, 3)
    stream = fl.streams.autoregressive(k_stream, 2, features, test_samples=1)
    stream = replace(stream, mean=np.array([0.2, -0.2]))
    chosen = jnp.repeat(jnp.arange(2), 30_000)
    inputs = stream._history(k_inputs, chosen)[:, np.asarray(stream.lags)]
    z = np.asarray(features(inputs), float).reshape(2, -1, 3)
    for order, letters in ((2, "kna,knb->kab"), (4, "kna,knb,knc,knd->kabcd")):
        sampled = np.einsum(letters, *order * [z]) / z.shape[1]
        result = ch4.moment(stream, order)
        assert np.abs(result - sampled).max() < 0.03 * np.abs(sampled).max()
    assert np.trace(ch4.moment(stream, 2), axis1=1, axis2=2).max() < 2 * ch4.SCALE.value**2


@pytest.mark.slow
@pytest.mark.long
def test_the_largest_eigenvalue_is_that_of_the_source():
    kernel = next(iter(figure_4_2.PANELS.values()))
    k_features, k_stream = jax.random.split(jax.random.key(1))
    stream = fl.streams.autoregressive(k_stream, ch4.CLIENTS.value, kernel.draw(k_features))
    largest = np.linalg.eigvalsh(ch4.moment(stream, 2)).max()
    assert largest == pytest.approx(1.02, abs=0.1)  # over draws of the features


def test_distances_are_relative_to_the_reference():
    data = measures.above(study_falling_to(a=0.1, b=0.01), "test_error", "b")
    assert (data[measures.ABOVE].sel(algorithm="b") == 1).all()
    distance = data[measures.ABOVE].sel(algorithm="a", round=400).mean()
    assert float(statistics.decibels(distance)) == pytest.approx(10, abs=0.1)
    assert statistics.label_of(data, measures.ABOVE) == "above b [dB]"


def test_distances_are_averaged_before_they_are_in_decibels():
    data = study_falling_to(a=1.0, b=1.0).isel(seed=slice(0, 2))
    data["test_error"].values[0] = [[10.0], [0.1]] * data["test_error"].values[1]
    ax = plt.subplots()[1]
    fl.plotting.learning_curves(measures.above(data, "test_error", "b"), measures.ABOVE, ax=ax)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * np.log10(5.05))
    plt.close()


def test_a_load_is_compared_with_the_next_and_with_the_learning_curves():
    rows = []
    for name in figure_4_3.ROWS:
        loads = [
            steady(0.1 / m, algorithm=[name], seed=range(SEEDS)).expand_dims(load=[32 * m])
            for m in (4, 200)
        ]
        rows.append(xr.concat(loads, "load"))
    studies = {"b": measures.joined(*rows)}
    (step,) = figure_4_3.improves_with_load(figure_4_3.COMMON_STEP)(studies).values()
    assert step.value == pytest.approx(10 * np.log10(50))
    studies["a"] = study_falling_to(
        **{ch4.U1: 0.025, figure_4_3.ONLINE_FED: 0.025, ch4.FEDSGD: 0.0005}
    )
    result = figure_4_3.gap_at_load(studies)
    assert all(abs(e.value) < 0.2 for e in result.values())  # the noise of `study_falling_to`
    studies["a"] = study_falling_to(
        **{ch4.U1: 0.05, figure_4_3.ONLINE_FED: 0.025, ch4.FEDSGD: 0.0005}
    )
    assert figure_4_3.gap_at_load(studies)[f"{ch4.U1}, 128 bit"].value == pytest.approx(-3, abs=0.2)


def test_every_step_of_the_comparator_is_a_case():
    ours = f"{ch4.U1}, {figure_4_3.REAL}"
    steps = [
        steady(level, algorithm=[ch4.FEDSGD], seed=range(SEEDS))
        .isel(algorithm=0, drop=True)
        .expand_dims(step=[step], stragglers=[figure_4_3.REAL])
        for step, level in ((0.1, 0.2), (0.4, 0.05))
    ]
    studies = {"c": study_falling_to(**{ours: 0.1}), "d": xr.concat(steps, "step")}
    first, second = figure_4_3.over_steps(figure_4_3.REAL, ch4.U1)(studies).values()
    assert first.value == pytest.approx(-3, abs=0.2)
    assert second.value == pytest.approx(3, abs=0.2)


def test_a_share_of_the_rows_is_permuted():
    rng = np.random.default_rng(0)
    weights = np.ones((4, 50))
    weights[0, 40:] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    features = rng.normal(size=(4, 50, 2))
    targets = rng.normal(size=(4, 50))
    problem = fl.problems.Problem(
        features, targets, fl.problems.LeastSquares(), strength=0.0, weights=weights
    )
    real = weights > 0
    for share in (0, 0.5, 1):
        dealt = figure_4_4.dealt_at_random(problem, share)
        stayed = np.mean(np.asarray(dealt.targets)[real] == targets[real])
        assert stayed == pytest.approx(1 - share, abs=0.1)
        assert sorted(np.asarray(dealt.targets)[real]) == sorted(targets[real])
        assert (np.asarray(dealt.targets)[~real] == targets[~real]).all()
        pairs = dict(zip(features[real][:, 0], targets[real], strict=True))
        result = np.asarray(dealt.features)[real][:, 0], np.asarray(dealt.targets)[real]
        assert all(pairs[x] == y for x, y in zip(*result, strict=True))


def test_heterogeneity_is_judged_share_by_share():
    ends = [
        measures.last(study_falling_to(a=0.1, b=level)).drop_vars("round") for level in (0.1, 0.01)
    ]
    studies = {"c": xr.concat([e.expand_dims(share=[s]) for s, e in enumerate(ends)], "share")}
    first, second = figure_4_4.gaps_along_share(("a", "b"))(studies).values()
    assert first.value == pytest.approx(0, abs=0.1)
    assert second.value == pytest.approx(10, abs=0.1)


def test_late_messages_weigh_by_iterations_or_by_class():
    plain = figure_4_6.weighted("C2", 0.2)
    by_class = figure_4_6.weighted("C2", 0.2**0.1)
    assert plain.discount[0] == by_class.discount[0] == 1
    assert plain.discount[1] == pytest.approx(0.2**10)
    assert by_class.discount[:3] == pytest.approx([1, 0.2, 0.04])
    assert len(plain.discount) == len(figure_4_6.SCARCE.delays().lags)


def test_the_gap_grows_by_the_difference():
    levels = {ch4.U1: 0.1, ch4.C2: 0.1, figure_4_6.C2_BY_CLASS: 0.01}
    studies = {
        "c": study_falling_to(**levels),
        "a": study_falling_to(**{ch4.U1: 0.1, ch4.C2: 0.05}),
    }
    (plain,) = figure_4_6.gap_grows(ch4.C2)(studies).values()
    (other,) = figure_4_6.gap_grows(figure_4_6.C2_BY_CLASS)(studies).values()
    assert plain.value == pytest.approx(-3, abs=0.3)
    assert other.value == pytest.approx(7, abs=0.3)


def test_a_run_that_grows_is_not_stable():
    data = study_falling_to(a=0.1, b=0.1, c=0.1)
    data["test_error"].loc[{"algorithm": "b", "round": slice(300, None)}] = 9.0
    data["diverged"].loc[{"algorithm": "c", "seed": 0}] = 7
    studies = {
        "a": data.assign_coords(algorithm=[0.2, 0.9, 1.5]).rename(algorithm="step"),
        "levels": xr.Dataset({"largest": ("draw", [0.9, 1.1]), "floor": ("draw", [0.1, 0.1])}),
    }
    result = theory.stable(studies)
    assert [round(e.value) for e in result.values()] == [100, 0, 83]
    assert theory.bound(studies) == pytest.approx(1.0)
    assert [*theory.below(studies)] == ["stable at 0.2", "stable at 0.9"]
    assert [*theory.beyond(studies)] == ["stable at 1.5"]


@pytest.mark.slow
def test_the_small_instance_has_the_figures_distribution():
    case = theory.instance(0.1, gaussian=False)
    stream, truth = theory.small()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(truth.dtype)
    z = np.asarray(stream.feature_map(x))
    assert np.asarray(stream.target(x)) == pytest.approx(z @ truth, rel=1e-5)
    assert case.models * case.dim <= 300
    assert case.delays.sum() == pytest.approx(1 - ch4.DELTA.value ** (theory.LONGEST.value + 1))
    assert case.fourth_moments is not None
    assert theory.instance(0.1, gaussian=True).fourth_moments is None


def test_predictions_are_held_against_the_mean_of_the_runs():
    rounds = np.arange(20, 801, 20)
    steps = [0.1, 0.2]
    shape = (len(theory.LAWS), 2, len(rounds))
    studies = {
        "predictions": xr.Dataset(
            {
                "steady": (("law", "kind", "step"), np.full((2, 2, 2), 0.01)),
                "curve": (("law", "kind", "round"), np.full(shape, 0.01)),
            },
            coords={"law": [*theory.LAWS], "kind": ["exact", "small steps"], "step": steps},
        ),
        "c": xr.Dataset(
            {theory.DEVIATION: (("law", "step", "seed"), np.full((2, 2, SEEDS), 0.02))},
            coords={"law": [*theory.LAWS], "step": steps},
        ),
        "b": xr.Dataset(
            {theory.DEVIATION: (("law", "seed", "round"), np.full((2, SEEDS, 40), 0.005))},
            coords={"law": [*theory.LAWS], "round": rounds},
        ),
    }
    for kind in ("exact", "small steps"):
        assert {round(e.value, 3) for e in theory.steady(kind)(studies).values()} == {3.010}
    assert {round(e.value, 3) for e in theory.curves(studies).values()} == {3.010}
    assert "3.01 dB" in theory.worst(theory.exact)(studies)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [figure_4_2, figure_4_3, figure_4_4, figure_4_5, figure_4_6, theory]
)
@pytest.mark.thin(2)
def test_every_claim_can_be_judged_on_the_stored_results(module, stored):
    """Claims about an order are reversed when the two methods' errors change places."""
    figure = module.FIGURE
    studies = stored(figure)
    recorded = {claim["name"] for claim in records.read_record(figure, STORED)["claims"]}
    if recorded != {claim.name for claim in figure.claims}:
        pytest.skip("the stored results are those of an earlier declaration")
    mirrored = {
        key: study.assign(test_error=1 / study["test_error"]) if "test_error" in study else study
        for key, study in studies.items()
    }
    for claim in figure.claims:
        verdict = claim.judge(studies)
        if verdict.holds and claim.accept == (0, INFINITE):
            assert not claim.judge(mirrored).holds
