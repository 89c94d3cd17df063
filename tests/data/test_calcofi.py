import hashlib
import importlib
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from fljax.data import calcofi, locate, random_fourier
from fljax.problems import LeastSquares, NoRegularizer

module = importlib.import_module("fljax.data.calcofi")  # whose name the function takes
TINY: dict[str, Any] = {"clients": 8, "samples": 400, "test": 50}


@pytest.fixture
def survey(tmp_path, monkeypatch):
    """A synthetic survey file: 3,000 bottles with distinct salinities."""
    rng = np.random.default_rng(0)
    casts = 300
    depths = 10
    size = casts * depths
    bottles = {
        "lon": np.repeat(rng.uniform(-124, -117, casts), depths),
        "lat": np.repeat(rng.uniform(30, 36, casts), depths),
        "days_since_1970": np.repeat(rng.integers(-7000, 18000, casts), depths),
        "quarter": np.ones(size, np.int8),
        "depth_m": np.tile(np.arange(depths) * 50.0, casts),
        "sta_dpos": rng.choice([5.0, 10.0], size),
        "t_degc": rng.normal(10, 3, size),
        "salinity": 30 + rng.permutation(size) / 1000,
        "o2sat": rng.uniform(0, 100, size),
    }
    bottles["o2sat"][::7] = np.nan
    bottles["salinity"][1::11] = np.nan
    path = tmp_path / module.FILE
    path.parent.mkdir()
    np.savez(path, **bottles)
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path))
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return bottles


def client_rows(survey, data):
    """The survey's rows that each client has, recognized by their salinity."""
    row = {round(s, 6): i for i, s in enumerate(survey["salinity"])}
    targets = np.asarray(data.problem.targets) * data.deviation[-1] + data.mean[-1]
    return [
        [row[round(s, 6)] for s in client[:size]]
        for client, size in zip(targets.tolist(), data.sizes, strict=True)
    ]


def test_sizes_are_in_the_proportions_group_by_group(survey):
    data = calcofi(**TINY)
    assert data.sizes.tolist() == [20, 20, 40, 40, 60, 60, 80, 80]
    weights = np.asarray(data.problem.weights)
    assert data.problem.features.shape == (8, 80, 5)
    np.testing.assert_array_equal((weights > 0).sum(1), data.sizes)
    np.testing.assert_allclose(weights.max(1), 1 / data.sizes)
    even = calcofi(**TINY, proportions=[1])
    assert even.sizes.tolist() == [50] * 8


def test_clients_are_contiguous_stretches_in_order_of_time(survey):
    data = calcofi(**TINY)
    rows = client_rows(survey, data)
    flat = list(itertools.chain(*rows))
    assert len(set(flat)) == 400
    station, line = module._station(survey["lon"], survey["lat"])
    day = survey["days_since_1970"]
    position = {
        r: i for i, r in enumerate(sorted(flat, key=lambda r: (line[r], station[r], day[r], r)))
    }
    starts = []
    for client in rows:
        places = sorted(position[r] for r in client)
        assert places == list(range(places[0], places[0] + len(client)))
        starts.append(places[0])
        assert [day[r] for r in client] == sorted(day[r] for r in client)
    assert starts != sorted(starts)  # size says nothing about place
    assert starts != sorted(starts, reverse=True)


def test_depths_of_a_cast_stay_in_order(survey):
    for client in client_rows(survey, calcofi(**TINY)):
        for a, b in itertools.pairwise(client):
            if a // 10 == b // 10:
                assert a < b


def test_samples_are_spread_evenly_and_the_test_rows_are_others(survey):
    data = calcofi(**TINY)
    training = set(itertools.chain(*client_rows(survey, data)))
    row = {round(s, 6): i for i, s in enumerate(survey["salinity"])}
    targets = data.test_targets * data.deviation[-1] + data.mean[-1]
    held_out = [row[round(s, 6)] for s in targets.tolist()]
    assert len(set(held_out)) == 50
    assert not training & set(held_out)
    complete = np.isfinite(survey["salinity"]) & np.isfinite(survey["o2sat"])
    station, line = module._station(survey["lon"], survey["lat"])
    key = (np.arange(3000), survey["days_since_1970"], station, line)
    order = [r for r in np.lexsort(key) if complete[r]]
    for chosen, tolerance in (training, 2), (set(held_out), 1):
        gaps = np.diff([i for i, r in enumerate(order) if r in chosen])
        mean = len(order) / len(chosen)
        assert gaps.max() <= tolerance * np.ceil(mean) + 1
    inputs = data.test_inputs * data.deviation[:-1] + data.mean[:-1]
    for i, name in enumerate(data.inputs):
        np.testing.assert_allclose(inputs[:, i], survey[name][held_out], rtol=1e-12, atol=1e-9)


def test_inputs_and_target_are_standardized_over_the_training_samples(survey):
    inputs = ("t_degc", "days_since_1970", "depth_m")
    data = calcofi(**TINY, inputs=inputs)
    assert data.inputs == inputs
    real = np.asarray(data.problem.weights) > 0
    rows = list(itertools.chain(*client_rows(survey, data)))
    for i, name in enumerate((*inputs, "salinity")):
        values = data.problem.targets if i == 3 else data.problem.features[..., i]
        samples = np.asarray(values)[real]
        assert abs(samples.mean()) < 1e-12
        assert abs(samples.std() - 1) < 1e-12
        units = samples * data.deviation[i] + data.mean[i]
        np.testing.assert_allclose(units, survey[name][rows], rtol=1e-9, atol=1e-9)


def test_the_same_call_gives_the_same_data(survey):
    jax.tree.map(
        np.testing.assert_array_equal, calcofi(**TINY)._asdict(), calcofi(**TINY)._asdict()
    )
    problem = calcofi(**TINY).problem
    assert isinstance(problem.loss, LeastSquares)
    assert isinstance(problem.regularizer, NoRegularizer)
    assert problem.strength == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 2400}, r"at most the 2337 complete rows, got 2400 \+ 50"),
        ({"samples": 401}, "take a multiple of 20"),
        ({"clients": 6}, "6 clients cannot be cut into 4 groups"),
        ({"proportions": ()}, "cannot be cut into 0 groups"),
        ({"proportions": (1, 0)}, "proportions must be >= 1"),
        ({"test": 0}, "test must be >= 1"),
        ({"inputs": ("depth", "lat")}, "unknown input 'depth'.*Did you mean 'depth_m'"),
        ({"inputs": ("salinity",)}, "unknown input 'salinity'"),
        ({"inputs": ("lat", "lat")}, "different names"),
        ({"inputs": ()}, "one or more"),
        ({"inputs": ("lat", "quarter")}, "quarter is the same in all 400 samples"),
    ],
)
def test_bad_arguments_are_refused(survey, change, message):
    with pytest.raises(ValueError, match=message):
        calcofi(**TINY | change)


def test_a_missing_file_is_reported_with_a_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path))
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"(?s)calcofi/cc_bottle\.npz.*calcofi\.org.*FLJAX"):
        calcofi()


@pytest.mark.parametrize(
    ("line", "station", "lat", "lon"),
    # Nominal positions of the survey's plan (line, station, degrees north, degrees east).
    [(80, 60, 34.150, -121.150), (90, 60, 32.418, -119.960), (93.3, 60, 31.847, -119.570)],
)
def test_stations_of_the_survey_are_found(line, station, lat, lon):
    result = module._station(np.array([lon], np.float32), np.array([lat], np.float32))
    assert result[0].tolist() == [round(station / 10)]
    assert result[1].tolist() == [round(line * 0.3)]


# The real file ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    try:
        locate(module.FILE, module.SHA256, module.HOW)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return calcofi()


def explained(data, feature_map):
    """R^2 of pooled least squares over all training samples, and over the test rows."""
    real = np.asarray(data.problem.weights) > 0
    feature_map = jax.jit(feature_map)
    features = np.asarray(feature_map(data.problem.features[real]))
    targets = np.asarray(data.problem.targets)[real]
    model = np.linalg.lstsq(features.T @ features, features.T @ targets, rcond=None)[0]
    rest = data.test_targets - np.asarray(feature_map(data.test_inputs)) @ model
    return (
        1 - np.mean((targets - features @ model) ** 2),
        1 - np.mean(rest**2) / data.test_targets.var(),
    )


def test_the_default_is_the_papers_size(real):
    assert real.problem.features.shape == (256, 500, 5)
    assert real.sizes.tolist() == [125] * 64 + [250] * 64 + [375] * 64 + [500] * 64
    assert real.test_inputs.shape == (2000, 5)
    # Degrees, metres, degrees Celsius, percent, practical salinity: plausible values off
    # California.
    np.testing.assert_allclose(real.mean, [-120.2, 31.9, 215, 10.9, 57, 33.83], rtol=0.01)


@pytest.mark.slow
def test_linear_models_explain_the_salinity(real):
    """82 % of the salinity's variance, with 200 random Fourier features 92 %."""
    linear = explained(real, lambda x: x)
    assert linear[0] == pytest.approx(0.817, abs=0.002)
    assert linear[1] == pytest.approx(0.81, abs=0.03)
    fourier = explained(real, random_fourier(jax.random.key(0), 5, 200, bandwidth=2.0))
    assert fourier[0] == pytest.approx(0.92, abs=0.005)
    assert fourier[1] == pytest.approx(0.92, abs=0.02)


def test_clients_are_not_identically_distributed(real):
    """Means of the clients vary by half a standard deviation; 3 % of that if rows were drawn."""
    sums = np.sum(np.asarray(real.problem.targets) * np.asarray(real.problem.weights), axis=1)
    assert 0.4 < sums.std() < 0.6
