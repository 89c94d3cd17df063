"""Features with little private information: measures that detect broken data; exercise 9.5."""

import numpy as np
import pytest
import sklearn.linear_model
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.jung import figure_funnel as figure

SEEDS = 4
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


@pytest.fixture(scope="module")
def expected():
    """What every claim expects: exact numbers with little noise, and a table of few maps."""
    rng = np.random.default_rng(0)
    funnel = figure.exact()
    angles = list(figure.ANGLES.value)
    information = np.array([funnel.informations(figure.direction(angle)) for angle in angles])
    noise = 1e-4 * rng.normal(size=(SEEDS, 1))
    sizes = len(figure.SIZES.value)
    data = xr.Dataset(
        {
            "private": (("seed", "angle"), information[:, 0] + noise),
            "useful": (("seed", "angle"), information[:, 1] + noise),
            "chosen": ("seed", 90 + noise[:, 0]),
            "hour": (("seed", "case"), np.array([1.0, 0.0, 0.8]) + 0 * noise),
            "temperature": (("seed", "case"), np.array([1.0, 0.8, 0.1]) + 0 * noise),
            "fresh": (("seed", "size", "attacker"), 0.3 + np.zeros((SEEDS, sizes, 2))),
        },
        {
            "seed": range(SEEDS),
            "angle": angles,
            "case": ["before", "after", "x1 hidden"],
            "size": list(figure.SIZES.value),
            "attacker": list(figure.ATTACKERS),
        },
    )
    shares = np.asarray(figure.LEVELS.value)
    lines = xr.Dataset(
        {
            "least": ("share", shares**2),
            "gaussian": ("share", shares**2),
            "map_private": ("map", [0.0, 0.5, 1.0]),
            "map_useful": ("map", [0.0, 0.5, 1.0]),
            "map_least": ("map", [0.0, 0.25, 1.0]),
            "told": ("limit", [1.0, 1.0]),
            **{f"below_{name}": ("corner_below", shares) for name in "sy"},
            **{f"above_{name}": ("corner_above", shares) for name in "sy"},
        },
        {"share": shares, "limit": ["y", "gaussian"]},
    )
    return {"samples": data, "curves": lines}


def test_claims_hold_on_the_expected_data(expected):
    assert [name for name, claim in CLAIMS.items() if not claim.judge(expected).holds] == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("numbers-of-figure-9.4", "samples", "useful", 1.7, {"angle": 60}),
        ("direction-of-184", "samples", "chosen", 80.0, {"seed": 1}),
        ("no-map-is-better", "curves", "map_least", 0.6, {"map": 1}),
        ("chance-helps", "curves", "map_private", 0.0, {}),
        ("a-trade-off", "curves", "least", 2.0, {"share": 0.5}),
        ("the-hour-is-hidden", "samples", "hour", 0.01, {"case": "after", "seed": 1}),
        ("temperature-stays", "samples", "temperature", 0.1, {"case": "after"}),
        ("x1-is-the-wrong-column", "samples", "hour", 0.0, {"case": "x1 hidden"}),
        ("squares-tell", "samples", "fresh", 0.0, {"attacker": "with squares"}),
    ],
)
def test_claims_detect_wrong_data(expected, claim, study, name, value, where):
    data = expected[study].copy(deep=True)
    data[name] = data[name].copy()
    data[name].loc[where] = value
    assert not CLAIMS[claim].judge(expected | {study: data}).holds


def test_a_closed_form_that_is_not_the_best_is_noticed(expected, monkeypatch):
    at = fl.contrib.GaussianFunnel.at
    monkeypatch.setattr(
        fl.contrib.GaussianFunnel,
        "at",
        lambda self, level: at(self, min(1.05 * level, self.most)),
    )
    assert not CLAIMS["no-direction-is-better"].judge(expected).holds


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_exercise_9_5_by_scikit_learn(seed):
    """The sensitive attribute is x11, the hour, and not x1 as step 3 prints."""
    table, temperature = figure.station(seed)
    assert table.shape == (720, 11)
    x = (table - table.mean(0)) / table.std(0)
    hour = x[:, figure.HOUR]
    z = x @ np.asarray(fl.contrib.private_map(x, hour))

    def explained(features, target):
        return sklearn.linear_model.LinearRegression().fit(features, target).score(features, target)

    assert explained(x, hour) == pytest.approx(1)  # it is one of them
    assert abs(explained(z, hour)) < 1e-10
    assert explained(z, temperature) > 0.6
    assert figure.explained(z, temperature) == pytest.approx(explained(z, temperature))
    result = figure.hidden(seed)
    assert result["hour"][1] == pytest.approx(0, abs=1e-10)
    assert result["temperature"][1] == pytest.approx(explained(z, temperature))


def test_all_maps_are_searched():
    assert sum(1 for _ in figure.partitions(4)) == 15  # Bell's numbers
    assert len({tuple(labels) for labels in figure.partitions(5)}) == 52
    assert figure.table().shape == (2, 6, 2)


@pytest.mark.long
@pytest.mark.slow
def test_curves_are_not_covered(expected):
    with picture.print_style():
        assert picture.faults(figure.plot(expected)) == []
