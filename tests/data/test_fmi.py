import datetime
import hashlib
import importlib
import os
import warnings

import numpy as np
import pytest
from scipy.sparse import block_diag, csr_array, eye_array, kron
from scipy.sparse.linalg import spsolve

import fljax as fl

module = importlib.import_module("fljax.data.fmi")  # whose name the function takes
DAYS = [datetime.date(2026, 1, 28) + datetime.timedelta(d) for d in range(12)]
PLACES = {"Utö": (59.78, 21.37), "Espoo": (60.2, 24.7), "Aska": (67.1, 26.0), "Late": (65.0, 25.4)}
CUT = 7
TIMES = 10  # of the ten days that two lags leave seven are learnt from

real = pytest.mark.skipif(
    not os.path.exists(os.path.join(os.environ.get("FLJAX_DATA", ""), "fmi")),
    reason="set FLJAX_DATA to a folder with the FMI weather records",
)


def temperatures():
    """Extremes of each station and day; a value, a day and the first days of some lack."""
    rng = np.random.default_rng(0)
    result = {
        name: {day: [round(v, 1) for v in rng.normal(-8, 5, 2).tolist()] for day in DAYS}
        for name in PLACES
    }
    result["Espoo"][DAYS[4]][1] = None
    del result["Aska"][DAYS[10]]
    for day in DAYS[:8]:
        del result["Late"][day]
    return result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Made-up records in the files' places and format."""
    rng = np.random.default_rng(1)
    files = {
        "daily": ["station,lat,lon,day,tmax,tmin"],
        "five_day": ["Name,Latitude,Longitude,Tmax,Tmin,y_Tmax,y_Tmin"],
        "hourly": ["Latitude,Longitude,Timestamp,temp,name"],
        "stations": ["station_id,station,lat,lon"],
    }
    for number, (name, (lat, lon)) in enumerate(PLACES.items()):
        for day, pair in temperatures()[name].items():
            high, low = ("" if v is None else v for v in pair)
            files["daily"].append(f"{name},{lat},{lon},{day},{high},{low}")
        for window in range(4):
            high, low = ([10 * number + window + d / 10 for d in range(5)] for _ in range(2))
            low = [v - 3 for v in low]
            files["five_day"].append(f'{name},{lat},{lon},"{high}","{low}",{window},{-number}')
        hours = rng.permutation(9)
        files["hourly"] += [f"{lat},{lon},2023-12-31 {h + 15:02d}:00:00,{h},{name}" for h in hours]
        files["stations"].append(f"{number},{name},{lat},{lon}")
    checksums = {}
    for records, lines in files.items():
        path = tmp_path / module.FMI_FILES[records][0]
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        checksums[records] = (
            module.FMI_FILES[records][0],
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path))
    monkeypatch.setattr(module, "FMI_FILES", checksums)
    return tmp_path


def expected(target, lags=2):
    """Each station's samples, ``(time, inputs, target)``, by a loop over days."""
    result = {}
    for name, days in temperatures().items():
        result[name] = []
        for time, day in enumerate(DAYS[lags:]):
            row = [v for lag in range(lags) for v in days.get(DAYS[time + lags - 1 - lag], [None])]
            answer = days.get(day, [None, None])[target]
            if None not in [*row, answer]:
                result[name].append((time, row, answer))
    return result


@pytest.mark.parametrize(("target", "column"), [("tmax", 0), ("tmin", 1)])
def test_samples_are_the_days_before_and_the_test_days_come_last(folder, target, column):
    data = fl.data.fmi("daily", target, lags=2, test=0.3)
    wanted = expected(column)
    assert data.names == ("Aska", "Espoo", "Utö")
    assert data.dropped == {"Late": "no training sample"}
    np.testing.assert_array_equal(data.coordinates, [PLACES[name] for name in data.names])
    pool = [(*row, y) for name in data.names for time, row, y in wanted[name] if time < CUT]
    np.testing.assert_allclose(data.mean, np.mean(pool, axis=0), rtol=1e-12)
    np.testing.assert_allclose(data.deviation, np.std(pool, axis=0), rtol=1e-12)
    lost = 0
    for k, name in enumerate(data.names):
        for part, chosen in (
            (data.problem, [s for s in wanted[name] if s[0] < CUT]),
            (data.problem.test, [s for s in wanted[name] if s[0] >= CUT]),
        ):
            n = len(chosen)
            rows = np.array([(*row, y) for _, row, y in chosen])
            rows = (rows - data.mean) / data.deviation
            np.testing.assert_allclose(part.features[k, :n, :-1], rows[:, :-1], atol=1e-12)
            np.testing.assert_array_equal(part.features[k, :n, -1], np.ones(n))
            np.testing.assert_allclose(part.targets[k, :n], rows[:, -1], atol=1e-12)
            np.testing.assert_allclose(
                part.weights[k], np.append(np.full(n, 1 / n), np.zeros(part.samples - n))
            )
        lost += TIMES - len(wanted[name])
    assert data.missing == lost > 0
    assert data.features == (
        *("tmax, 1 d before", "tmin, 1 d before", "tmax, 2 d before", "tmin, 2 d before", "1"),
    )
    assert data.kelvin(0.25) == 0.5 * data.deviation[-1]


def test_few_training_days_are_the_last_before_the_test(folder):
    data = fl.data.fmi("daily", lags=2, test=0.3, train=2)
    assert data.problem.sample_counts().tolist() == [2, 2, 2]
    all_days = fl.data.fmi("daily", lags=2, test=0.3)
    last = (data.problem.targets[2] * data.deviation[-1] + data.mean[-1])[:2]
    before = all_days.problem.targets[2] * all_days.deviation[-1] + all_days.mean[-1]
    np.testing.assert_allclose(last, before[:CUT][-2:], atol=1e-12)


def test_windows_are_read_from_their_last_day_back(folder):
    data = fl.data.fmi("five_day", lags=2, test=0.25)
    rows = data.problem.features[..., :-1] * data.deviation[:-1] + data.mean[:-1]
    utö = data.names.index("Utö")  # the first of the file: number 0, window w holds w + 0.1 d
    np.testing.assert_allclose(rows[utö, 1], [1.4, -1.6, 1.3, -1.7], atol=1e-9)
    targets = data.problem.targets * data.deviation[-1] + data.mean[-1]
    np.testing.assert_allclose(targets, np.broadcast_to(np.arange(3.0), (4, 3)), atol=1e-9)
    answer = data.problem.test.targets * data.deviation[-1] + data.mean[-1]
    np.testing.assert_allclose(answer, np.full((4, 1), 3.0), atol=1e-9)


def test_unsorted_hours_are_sorted(folder):
    data = fl.data.fmi("hourly", lags=3, test=0.2)
    targets = data.problem.targets * data.deviation[-1] + data.mean[-1]
    np.testing.assert_allclose(targets, np.tile([3.0, 4, 5, 6, 7], (4, 1)), atol=1e-9)
    latest = data.problem.features[..., 0] * data.deviation[0] + data.mean[0]
    np.testing.assert_allclose(latest, targets - 1, atol=1e-9)
    assert data.problem.test.samples == 1


def test_records_are_columns_that_a_table_is_made_of(folder):
    daily = fl.data.fmi_records("daily")
    assert daily["time"].dtype == np.dtype("datetime64[D]")
    assert np.isnan(daily["tmin"]).sum() == 1
    assert fl.data.fmi_records("five_day")["tmax"].shape == (16, 5)
    assert fl.data.fmi_records("stations")["number"].tolist() == [0, 1, 2, 3]
    daily["late"] = daily["time"] >= np.datetime64(DAYS[9])
    nodes = fl.data.from_table(
        daily,
        "station",
        ["tmin"],
        "tmax",
        coordinates=("latitude", "longitude"),
        test="late",
        missing="drop",
    )
    assert nodes.names == tuple(PLACES)
    assert nodes.dropped == 1
    np.testing.assert_array_equal(nodes.coordinates, list(PLACES.values()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"records": "stations"}, "unknown records 'stations'; known: daily, five_day, hourly"),
        ({"records": "hourly", "target": "tmax"}, "unknown target 'tmax'; known: temp"),
        ({"records": "five_day", "lags": 6}, "lags must be at most 5, the days of a window"),
        ({"lags": 12}, "lags must be below the 12 times of the records, got 12"),
        ({"test": 1.0}, "test must be finite and > 0 and < 1, got 1"),
        ({"test": 0.01}, "test=0.01 and all training times do not fit the 9 target times"),
        ({"train": 9}, "test=0.25 and 9 training times do not fit the 9 target times"),
    ],
)
def test_values_missing_in_the_records_are_refused(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        fl.data.fmi(**arguments)


def test_a_missing_file_is_described(tmp_path, monkeypatch):
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path))
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"(?s)fmi_daily_records\.csv was not found.*CC BY"):
        fl.data.fmi()


@real
@pytest.mark.slow
def test_the_real_records_are_as_described():
    daily = fl.data.fmi_records("daily")
    hourly = fl.data.fmi_records("hourly")
    assert len(np.unique(daily["station"])) == 194
    assert len(np.unique(daily["time"])) == 40
    assert (len(hourly["temp"]), len(np.unique(hourly["station"]))) == (19_768, 207)
    data = fl.data.fmi()
    assert data.dropped == {"Pori Isomäki": "no test sample"}
    assert data.problem.features.shape == (193, 28, 7)
    assert data.problem.test.features.shape == (193, 9, 7)
    assert data.missing == 0
    short = fl.data.fmi("hourly", lags=6)
    assert short.problem.sample_counts().min() == 7  # ragged: most have 68
    assert short.dropped == {"Maalahti Strömmingsbådan": "no training sample"}
    windows = fl.data.fmi("five_day", "tmin", lags=5)
    assert windows.problem.features.shape == (192, 8, 11)
    assert len(fl.data.fmi_records("stations")["station"]) == 445


@real
def test_three_nearest_stations_make_no_connected_network():
    data = fl.data.fmi(target="tmin", lags=1)
    graph = fl.graphs.nearest_neighbors(data.coordinates, 3, metric="geodesic")
    labels, sizes = np.unique(graph.components(), return_counts=True)
    assert (len(labels), sizes.min(), len(graph.edges)) == (3, 5, 375)
    parts = data.problem, fl.algorithms.ATC(0.1), graph
    with pytest.raises(ValueError, match="allow_disconnected"):
        fl.Simulation(*parts)
    fl.Simulation(*parts, allow_disconnected=True)
    five = fl.graphs.nearest_neighbors(data.coordinates, 5, metric="geodesic")
    assert bool(five.connected())


@real
@pytest.mark.slow
def test_stations_in_pieces_learn_all_the_same():
    data = fl.data.fmi(target="tmin", lags=1)
    graph = fl.graphs.nearest_neighbors(data.coordinates, 3, metric="geodesic")
    coupled = fl.problems.GTVMin(data.problem, graph, coupling=10.0)
    x, y, weights = (
        np.asarray(part)
        for part in (data.problem.features, data.problem.targets, data.problem.weights)
    )
    system = block_diag(np.einsum("kn,knp,knq->kpq", weights, x, x)) + 10 * kron(
        csr_array(np.asarray(graph.laplacian_matrix())), eye_array(3)
    )
    models = spsolve(system.tocsc(), np.einsum("kn,knp,kn->kp", weights, x, y).ravel())
    np.testing.assert_allclose(coupled.solve(), models.reshape(-1, 3), atol=1e-8)
    simulation = fl.Simulation(
        data.problem,
        fl.algorithms.FedRelax(coupling=10.0),
        graph,
        metrics=["test_error"],
        allow_disconnected=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", fl.AssumptionWarning)  # it was said that this is meant
        run = fl.run(simulation, rounds=2000)
    np.testing.assert_allclose(run.model, models.reshape(-1, 3), atol=1e-3)
    local = np.linalg.solve(
        np.einsum("kn,knp,knq->kpq", weights, x, x),
        np.einsum("kn,knp,kn->kp", weights, x, y)[..., None],
    )
    test = data.problem.test
    error = np.sum(
        test.weights * (np.einsum("knp,kp->kn", test.features, local[..., 0]) - test.targets) ** 2,
        1,
    )
    assert run.test_error[-1] < 0.9 * error.mean()
