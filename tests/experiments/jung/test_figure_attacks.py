"""Attacks against defenses: measures that detect broken data, and scenarios as described."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments.jung import figure_attacks as figure
from experiments.jung.figure_attacks import (
    ATTACKS,
    BACKDOOR,
    BOUND,
    CLIP,
    COUPLINGS,
    DEFENSES,
    DENSE,
    GEOMETRIC,
    HARM,
    KRUM,
    LOUD,
    MEAN,
    NONE,
    PLACES,
    PLANTED,
    SERVER,
    SPARSE,
    TRIM,
    TRUST,
)

SEEDS = 8
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def place_of(name):
    """What the claims expect of one place."""
    rng = np.random.default_rng(0)
    harm = np.full((SEEDS, len(ATTACKS), len(DEFENSES)), 8.0)
    data = xr.Dataset(
        {HARM: (("seed", "attack", "defense"), harm)},
        {"attack": [*ATTACKS], "defense": [*DEFENSES], "seed": range(SEEDS)},
    )
    data[HARM].loc[{"attack": NONE, "defense": MEAN}] = 5.0
    data[HARM].loc[{"attack": NONE, "defense": KRUM}] = 12.0
    data[HARM].loc[{"attack": list(LOUD), "defense": MEAN}] = 60.0
    if name == SPARSE:
        data[HARM].loc[{"attack": list(LOUD), "defense": [CLIP, TRIM]}] = 20.0
    data[HARM].loc[{"attack": BACKDOOR, "defense": [MEAN, GEOMETRIC, BOUND, TRUST]}] = 80.0
    data[HARM] = data[HARM] + 0.1 * rng.standard_normal((SEEDS, 1, 1))
    data["wrong"] = 0 * data[HARM] + 0.05 + 1e-4 * rng.standard_normal(data[HARM].shape)
    data["diverged"] = xr.zeros_like(data[HARM], int)
    return data


def expected_studies():
    noise = 1 + 0.01 * np.random.default_rng(1).standard_normal((SEEDS, 1))
    rise = np.ones((SEEDS, len(COUPLINGS.value), 4))
    rise[:, 1:, 2:] = 1.5
    service = xr.Dataset(
        {"rise": (("seed", "alpha", "poisoned"), rise)},
        {"alpha": list(COUPLINGS.value), "poisoned": range(4), "seed": range(SEEDS)},
    )
    hour = xr.Dataset(
        {
            "bias": (("seed", "poisoned"), noise * [0.08, 1.25, 5.4]),
            "beside": (("seed", "poisoned"), noise * [0.1, 0.1, 0.1]),
        },
        {"poisoned": list(PLANTED.value), "seed": range(SEEDS)},
    )
    stations = service.rename(seed="station").drop_vars("station").isel(station=[0] * 50)
    return {name: place_of(name) for name in PLACES} | {
        "service": service,
        "stations": stations.copy(deep=True),
        "hour": hour,
        "points": figure.lines(),
    }


@pytest.mark.slow
def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


BROKEN = [
    ("mean-breaks", SERVER, LOUD[0], MEAN, 6.0),
    ("order-statistics-defend", DENSE, LOUD[1], TRIM, 50.0),
    ("sparse-graphs-break-first", SPARSE, LOUD[2], CLIP, 8.0),
    ("backdoor-passes-directions-and-lengths", DENSE, BACKDOOR, BOUND, 10.0),
    ("none-restores", SERVER, LOUD[0], KRUM, 4.0),
    ("krum-costs", SPARSE, NONE, KRUM, 6.0),
]


@pytest.mark.parametrize(("claim", "setting", "attack", "defense", "value"), BROKEN)
def test_claims_see_broken_data(claim, setting, attack, defense, value):
    studies = expected_studies()
    studies[setting][HARM].loc[{"attack": attack, "defense": defense}] = value
    assert not CLAIMS[claim].judge(studies).holds


@pytest.mark.slow
def test_claims_on_exercises_see_broken_data():
    for claim, name, variable, value in (
        ("denial-of-service-reaches-node-1", "service", "rise", 1.0),
        ("coupling-carries-the-attack", "service", "rise", 1.5),
        ("denial-of-service-reaches-stations", "stations", "rise", 1.0),
        ("coupling-carries-the-attack-to-stations", "stations", "rise", 1.5),
        ("hour-triggers", "hour", "bias", 1.0),
        ("absolute-error-stays", "points", "excess", 0.1),
        ("squared-error-moves", "points", "line", 1.0),
    ):
        studies = expected_studies()
        studies[name][variable][:] = value
        assert not CLAIMS[claim].judge(studies).holds, claim
    studies = expected_studies()
    studies[SERVER]["wrong"].loc[{"attack": BACKDOOR}] = 0.3
    assert not CLAIMS["backdoor-is-not-seen"].judge(studies).holds
    studies = expected_studies()
    studies["hour"]["beside"].loc[{"poisoned": 3}] = 1.0
    assert not CLAIMS["other-hours-stay"].judge(studies).holds


@pytest.mark.slow
@pytest.mark.parametrize("setting", PLACES)
def test_a_scenario_has_the_given_attackers_and_data_attacks_keep_messages(setting):
    key = jax.random.key(0)
    by = {
        attack: figure.build(key, ATTACKS.index(attack), MEAN, setting)
        for attack in (NONE, LOUD[0], figure.LABELS, BACKDOOR)
    }
    assert all(int(s.attack.attackers.sum()) == figure.ATTACKERS.value for s in by.values())
    differs = np.asarray(
        (by[NONE].problem.targets != by[figure.LABELS].problem.targets).any(axis=1)
    )
    np.testing.assert_array_equal(differs, by[NONE].attack.attackers)
    stamped = np.asarray((by[BACKDOOR].problem.features[..., -1] != 0).sum(axis=1))
    wanted = figure.STAMPED * figure.DATA.value[0] * np.asarray(by[NONE].attack.attackers)
    np.testing.assert_array_equal(stamped, wanted)
    models = {
        attack: fl.run(simulation, rounds=2).model.values for attack, simulation in by.items()
    }
    honest = ~np.asarray(by[NONE].attack.attackers)
    assert (models[LOUD[0]] != models[NONE])[honest].any()


@pytest.mark.slow
def test_exercises_compute_their_answers():
    key = jax.random.key(0)
    rise = np.asarray(figure.denied(key, 3))
    assert rise.shape == (len(COUPLINGS.value), 3)
    np.testing.assert_allclose(rise[:, 0], 1)
    bias, neighbors_bias = map(np.asarray, figure.one_hour(key))
    assert (np.diff(bias) > 0).all()
    np.testing.assert_allclose(neighbors_bias, neighbors_bias[0], rtol=1e-5)


class Stations(NamedTuple):
    """What :func:`at_stations` reads of the weather."""

    problem: fl.problems.Problem
    coordinates: np.ndarray
    deviation: np.ndarray


def test_poisoned_stations_are_the_nearest_and_models_solve_the_normal_equations(monkeypatch):
    rng = np.random.default_rng(0)
    stations, days, dim, most = 7, 6, 2, 3
    features = rng.normal(size=(stations, days, dim))
    targets = rng.normal(size=(stations, days))
    tests = rng.normal(size=(stations, 4, dim)), rng.normal(size=(stations, 4))
    places = np.stack([60 + 5 * rng.random(stations), 22 + 5 * rng.random(stations)], axis=1)
    least_squares = fl.problems.LeastSquares()
    problem = fl.problems.Problem(features, targets, least_squares).with_test(*tests)
    weather = Stations(problem, places, np.array([1.0, 4.0]))
    monkeypatch.setattr(figure, "COUPLINGS", figure.COUPLINGS._replace(value=(0.1, 2.0)))
    result = figure.at_stations(weather, most)
    graph = fl.graphs.nearest_neighbors(places, 3, metric="geodesic")
    weights = np.asarray(graph.adjacency)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    radians = np.radians(places)
    toward = np.stack(
        [
            np.cos(radians[:, 0]) * np.cos(radians[:, 1]),
            np.cos(radians[:, 0]) * np.sin(radians[:, 1]),
            np.sin(radians[:, 0]),
        ],
        axis=1,
    )
    order = np.argsort(-toward @ toward.T, axis=1)
    for coupling in (0.1, 2.0):
        system = coupling * np.kron(laplacian, np.eye(dim))
        for k, x in enumerate(features):
            rows = slice(k * dim, (k + 1) * dim)
            system[rows, rows] += x.T @ x / days
        for station in range(stations):
            errors = []
            for count in range(most + 1):
                labels = targets.copy()
                labels[order[station, 1 : count + 1]] += figure.COLDER.value / 4
                right = np.einsum("knp,kn->kp", features, labels).ravel() / days
                model = np.linalg.solve(system, right).reshape(stations, dim)[station]
                errors.append(np.mean((tests[0][station] @ model - tests[1][station]) ** 2))
            expected = np.array(errors) / errors[0]
            found = result.sel(alpha=coupling).isel(station=station).values
            np.testing.assert_allclose(found, expected, rtol=1e-8)
