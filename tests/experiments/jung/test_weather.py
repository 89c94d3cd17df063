"""Forecasts at weather stations: methods against NumPy, and measures that see broken data."""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.__main__ import main
from experiments.figure import REGISTRY
from experiments.jung import figure_weather as module
from experiments.jung.figure_weather import (
    ALONE,
    DAYS,
    FIVE,
    GRAPHS,
    METHODS,
    ONE,
    PERIOD,
    PERSISTENCE,
    PREDICTED,
    RIDGE,
    SHUFFLED,
    TARGETS,
    THREE,
    WINDOW,
)

DATA = Path(os.environ.get("FLJAX_DATA", "")) / "fmi" / "fmi_daily_records.csv"
FIGURE = REGISTRY["jung-weather"]
FORECASTS = DAYS - WINDOW.value
COUPLINGS = [1e-3, 1.0, 1e3]
LEVELS = {ALONE: 16.0, RIDGE: 12.0, ONE: 10.0, PERSISTENCE: 14.0}


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_file(), reason="FLJAX_DATA holds no fmi/fmi_daily_records.csv")
def test_windows_precede_the_forecast_day():
    features, targets, inputs, answers, unit, off = module.windows("tmin")
    assert features.shape == (FORECASTS, 193, WINDOW.value, 5)
    # What is forecast one day is learnt from the next, in units of its own.
    data = [module.data("tmin", horizon) for horizon in (2, 1)]
    kelvin = [
        w.mean[-1] + w.deviation[-1] * y
        for w, y in zip(data, (answers[-2], targets[-1, :, -1]), strict=True)
    ]
    np.testing.assert_allclose(*kelvin, atol=1e-3)
    last = data[1]
    before = last.mean[1] + last.deviation[1] * inputs[-1, :, 1]
    np.testing.assert_allclose(off[-1], before - last.mean[-1] - unit[-1] * answers[-1], atol=1e-4)
    assert 5 < np.sqrt((off**2).mean()) < 7
    graph = module.fixed_graphs(last.coordinates)
    assert len(np.unique(graph[THREE].components())) == 3
    assert sorted(graph[FIVE].degree.tolist()) == sorted(graph[SHUFFLED].degree.tolist())


def test_a_run_without_the_data_names_their_source(monkeypatch, tmp_path):
    monkeypatch.delenv("FLJAX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    module.data.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"(?s)fmi_daily_records\.csv.*CC BY"):
        main(["run", "jung-weather", "--quick", "--out", str(tmp_path / "out")])


def parts(stations=8, days=2):
    """Windows of stations with models of their own."""
    rng = np.random.default_rng(0)
    shape = (days, stations, WINDOW.value)
    features = rng.normal(size=(*shape, 5))
    truth = 1 + 0.3 * rng.normal(size=(stations, 5))
    targets = np.einsum("tknp,kp->tkn", features, truth) + 0.1 * rng.normal(size=shape)
    inputs = rng.normal(size=(days, stations, 5))
    answers = np.einsum("tkp,kp->tk", inputs, truth)
    return features, targets, inputs, answers, np.array([2.0, 3.0]), 0 * answers


def test_learning_alone_and_one_model_are_least_squares():
    windows = features, targets, inputs, answers, unit, _ = parts()
    plain, ridged = module.alone(windows, [0.0, 0.5])
    local, _, _, _ = np.linalg.lstsq(features[1, 3], targets[1, 3], rcond=None)
    assert plain[1, 3] == pytest.approx(unit[1] * (inputs[1, 3] @ local - answers[1, 3]))
    moment = features[1, 3].T @ features[1, 3] / WINDOW.value + 0.5 * np.eye(5)
    local = np.linalg.solve(moment, features[1, 3].T @ targets[1, 3] / WINDOW.value)
    assert ridged[1, 3] == pytest.approx(unit[1] * (inputs[1, 3] @ local - answers[1, 3]))
    common, _, _, _ = np.linalg.lstsq(features[0].reshape(-1, 5), targets[0].ravel(), rcond=None)
    assert module.one_model(windows)[0, 5] == pytest.approx(
        2 * (inputs[0, 5] @ common - answers[0, 5])
    )


@pytest.mark.slow
def test_coupled_forecasts_go_from_alone_to_one_model():
    windows = parts()
    places = np.random.default_rng(1).uniform(60, 70, (8, 2))
    result = module.coupled(places, [1e-6, 1e6], windows)
    assert set(result) == set(GRAPHS)
    plain = module.alone(windows, [0.0])[0]
    common = module.one_model(windows)
    np.testing.assert_allclose(result[THREE][:, 0], plain, atol=1e-2)
    np.testing.assert_allclose(result[FIVE][:, 1], common, atol=1e-2)
    np.testing.assert_allclose(result[SHUFFLED][:, 1], common, atol=1e-2)


@pytest.mark.slow
def test_coupling_by_predictions_equals_model_agnostic_fedrelax():
    windows = features, targets, inputs, answers, unit, _ = parts()
    places = np.random.default_rng(1).uniform(60, 70, (8, 2))
    result = module.coupled(places, [0.7], windows)[PREDICTED][1, 0]
    problem = fl.problems.Problem(features[1], targets[1], fl.problems.LeastSquares(), strength=0.0)
    graph = module.fixed_graphs(places)[THREE]
    algorithm = fl.algorithms.ModelAgnosticFedRelax(0.7, module.compared_on(features[1]))
    models = np.asarray(algorithm.optimum(problem, graph))
    forecast = unit[1] * ((inputs[1] * models).sum(-1) - answers[1])
    np.testing.assert_allclose(result, forecast, atol=1e-6)
    assert np.abs(result - module.coupled(places, [0.7], windows)[THREE][1, 0]).max() > 1e-2


def expected_studies(seed=0):
    """Studies in which all claims hold: the days to choose on want another coupling than ones that
    a peek at the test would choose.
    """
    rng = np.random.default_rng(seed)
    day = np.exp(0.2 * rng.normal(size=FORECASTS))
    levels = np.array([LEVELS[m] for m in METHODS])[:, None] * day
    curve = np.empty((len(GRAPHS), FORECASTS, 3))
    for g, graph in enumerate(GRAPHS):
        curve[g] = np.array([LEVELS[ALONE], 11.0 if graph == SHUFFLED else 8.0, LEVELS[ONE]])
    curve *= day[:, None] * np.exp(0.005 * rng.normal(size=curve.shape))
    coordinates = {"target": list(TARGETS.value), "day": np.arange(FORECASTS)}
    rounds = 10.0 ** -np.arange(6.0) * np.ones((2, 2, 1, 1))
    places = rng.uniform((60, 20), (70, 30), (12, 2))
    error = rng.uniform(3, 8, (2, len(GRAPHS) + len(METHODS), 12))
    return {
        "curves": xr.Dataset(
            {"error": (("target", "graph", "day", "coupling"), np.stack([curve, curve]))},
            {**coordinates, "graph": list(GRAPHS), "coupling": COUPLINGS},
        ),
        "levels": xr.Dataset(
            {"error": (("target", "learner", "day"), np.stack([levels, levels]))},
            {**coordinates, "learner": list(METHODS)},
        ),
        "stations": xr.Dataset(
            {
                "error": (("target", "learner", "station"), error),
                "place": (("station", "axis"), places),
            },
            {"target": list(TARGETS.value), "learner": [*GRAPHS, *METHODS]},
        ),
        "rounds": xr.Dataset(
            {"normalized_error": (("graph", "algorithm", "seed", "round"), rounds)},
            {
                "graph": [THREE, FIVE],
                "algorithm": ["FedRelax", "FedGD"],
                "seed": [0],
                "round": np.arange(1, 7),
            },
        ),
    }


@pytest.fixture(scope="module")
def sound():
    return expected_studies()


def test_all_claims_hold_where_they_should(sound):
    assert not [claim.name for claim in FIGURE.claims if not claim.judge(sound).holds]


@pytest.mark.long
@pytest.mark.slow
def test_the_picture_can_be_read_and_names_its_source(sound):
    with picture.print_style():
        drawing = FIGURE.plot(sound)
    assert picture.faults(drawing) == []
    assert "Finnish Meteorological Institute" in drawing._suptitle.get_text()
    assert "CC BY 4.0" in drawing._suptitle.get_text()
    plt.close(drawing)


def changed(studies, study, change, name="error", **where):
    result = studies[study].copy(deep=True)
    result[name].loc[where] = change(result[name].loc[where])
    return {**studies, study: result}


@pytest.mark.parametrize(
    ("claim", "study", "change", "where"),
    [
        ("ends-of-alpha", "curves", lambda a: 1.3 * a, {"graph": FIVE, "coupling": 1e3}),
        ("ends-of-alpha", "curves", lambda a: 0.8 * a, {"graph": THREE, "coupling": 1e-3}),
        ("better-than-alone", "levels", lambda a: a / 4, {"learner": ALONE}),
        ("better-than-ridge", "levels", lambda a: a / 4, {"learner": RIDGE}),
        ("better-than-one-model", "levels", lambda a: a / 4, {"learner": ONE}),
        (
            *("maximum-better-than-alone", "levels", lambda a: a / 4),
            {"learner": RIDGE, "target": "tmax"},
        ),
        (
            *("maximum-better-than-one-model", "levels", lambda a: a / 4),
            {"learner": PERSISTENCE, "target": "tmax"},
        ),
        ("by-predictions-as-by-parameters", "curves", lambda a: a / 4, {"graph": PREDICTED}),
        ("by-predictions-better-than-alone", "levels", lambda a: a / 4, {"learner": ALONE}),
        ("near-stations-rather-than-others", "curves", lambda a: a / 4, {"graph": SHUFFLED}),
        ("trained-in-rounds", "rounds", lambda a: 1 + 0 * a, {"algorithm": "FedGD"}),
    ],
)
def test_claims_detect_broken_data(sound, claim, study, change, where):
    name = "normalized_error" if study == "rounds" else "error"
    broken = changed(sound, study, change, name, **where)
    verdict = {c.name: c for c in FIGURE.claims}[claim].judge(broken)
    assert verdict.decided
    assert not verdict.holds


def test_alpha_is_chosen_on_other_periods(sound):
    first = {"graph": FIVE, "coupling": 1e3, "day": slice(None, PERIOD.value - 1)}
    peeking = changed(sound, "curves", lambda a: a / 100, **first)
    chosen = module.chosen(peeking, "tmin", FIVE)
    assert set(chosen[: PERIOD.value]) == {1.0}  # its own days would choose 1000
    assert set(chosen[PERIOD.value :]) == {1e3}
    level = module.daily(peeking, "tmin", FIVE)
    curve = peeking["curves"]["error"].sel(target="tmin", graph=FIVE)
    np.testing.assert_array_equal(level[: PERIOD.value], curve.sel(coupling=1.0)[: PERIOD.value])
    np.testing.assert_array_equal(level[PERIOD.value :], curve.sel(coupling=1e3)[PERIOD.value :])
    verdict = {c.name: c for c in FIGURE.claims}["alpha-by-validation"].judge(peeking)
    assert not verdict.holds
    assert "tmin, 5 nearest: 1, 1e+03, and 1e+03" in verdict.note
    late = changed(sound, "curves", lambda a: a / 4, graph=FIVE, coupling=1e3)
    assert module.best(late, "tmin", FIVE) == 1e3
    assert len(module.daily(sound, "tmin", ONE)) == FORECASTS


def test_similar_consecutive_days_widen_the_interval():
    rng = np.random.default_rng(0)
    repeated = np.repeat(np.exp(rng.normal(size=30)), 3)
    shuffled = rng.permutation(repeated)
    result = [module.block_bootstrap(1 + day, np.ones(90)) for day in (repeated, shuffled)]
    assert result[0][0] == pytest.approx(result[1][0])
    assert result[0][0] == pytest.approx(np.sqrt(1 + repeated.mean()) - 1)
    assert result[0][2] - result[0][1] > 1.3 * (result[1][2] - result[1][1])
    same = module.block_bootstrap(4 * repeated, repeated)
    assert same[0] == pytest.approx(np.sqrt(repeated.mean()))
    assert same[1] < same[0] < same[2]


def test_notes_have_the_numbers_of_the_results(sound):
    assert "one model 3." in module.pooled("tmin")(sound)
    worse = changed(sound, "levels", lambda a: 4 * a, learner=ONE)
    assert "one model 6." in module.pooled("tmin")(worse)
