"""What trained attackers and curious peers find: measures that see broken data."""

import os

import numpy as np
import pytest
import xarray as xr

from experiments import picture
from experiments.jung import figure_audit as figure
from experiments.jung.figure_audit import FAULTY, GAUSSIAN, LAPLACE, MECHANISMS, RESPONSE, RIGHT
from fljax.privacy import accounting

SEEDS = 4
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


@pytest.fixture(scope="module")
def expected():
    """What every claim expects."""
    most = np.array([[figure.allowed(m, e) for e in figure.EPSILONS.value] for m in MECHANISMS])
    rules = [f"alpha = {a:g}, own model kept" for a in figure.COUPLINGS.value]
    rules.append("shared model kept")
    exchanges = len(figure.EXCHANGES.value)
    subset_sizes = np.asarray(figure.SUBSETS.value)
    off = np.tile([1.0, 0, -1, -15, -15, -15, -15, -15, -15], (3, 1))
    identified = np.array([[0.0, 0, 0, 1, 1, 1, 1, 1, 1], *([[0.0] * exchanges] * 2)])
    rounds = np.log10(figure.ROUNDS.value)
    noise = np.array([rounds - a for a in range(len(rules))])
    blurs = np.asarray(figure.BLURS.value)[:, None]
    values = {
        "accuracy": (("mechanism", "epsilon", "noise_of"), np.stack([most, most + 0.1], -1)),
        "accused": (
            ("mechanism", "epsilon", "noise_of"),
            np.stack([0 * most + 0.01, 0 * most + 1], -1),
        ),
        "off": (("deviation", "exchanges"), off),
        "identified": (("deviation", "exchanges"), identified),
        "noise": (("rule", "rounds"), noise),
        "distance": (("blur", "told"), 240 + 5 * blurs - 5 * np.log10(subset_sizes)),
        "blind": ((), np.asarray(345.0)),
    }
    return {
        "found": xr.Dataset(
            {
                name: (("seed", *axes), np.stack([value] * SEEDS))
                for name, (axes, value) in values.items()
            },
            {
                "seed": range(SEEDS),
                "mechanism": list(MECHANISMS),
                "epsilon": list(figure.EPSILONS.value),
                "noise_of": [RIGHT, FAULTY],
                "deviation": list(figure.SHARED.value),
                "exchanges": list(figure.EXCHANGES.value),
                "rule": rules,
                "rounds": list(figure.ROUNDS.value),
                "blur": list(figure.BLURS.value),
                "told": list(subset_sizes),
            },
        )
    }


def test_claims_hold_on_the_expected_data(expected):
    assert [name for name, claim in CLAIMS.items() if not claim.judge(expected).holds] == []


@pytest.mark.parametrize(
    ("claim", "name", "value", "where"),
    [
        (
            "right-mechanisms-keep-the-threshold",
            "accuracy",
            0.9,
            {"mechanism": LAPLACE, "epsilon": 0.5, "noise_of": RIGHT},
        ),
        ("a-fault-is-found", "accused", 0.2, {"mechanism": GAUSSIAN, "noise_of": FAULTY}),
        ("right-mechanisms-are-accused-rarely", "accused", 0.2, {"mechanism": RESPONSE}),
        ("d-plus-one-exchanges", "off", -2.0, {"deviation": 0.0, "exchanges": 4}),
        ("fewer-exchanges-do-not", "off", -12.0, {"deviation": 0.0, "exchanges": 3}),
        ("her-station-is-found", "identified", 0.0, {"deviation": 0.0, "seed": 1}),
        ("noise-hides-it", "identified", 1.0, {"deviation": 0.1}),
        ("rounds-cost-noise", "noise", 0.0, {"rounds": 300}),
        ("coupling-saves-noise", "noise", 9.0, {"rule": "alpha = 10, own model kept"}),
        ("temperature-tells-the-place", "distance", 340.0, {"blur": 0.0}),
        ("fewer-records-tell-less", "distance", 200.0, {"blur": 0.0, "told": 250}),
        ("noisy-records-tell-less", "distance", 200.0, {"blur": 10.0, "told": 1000}),
    ],
)
def test_claims_detect_wrong_data(expected, claim, name, value, where):
    data = expected["found"].copy(deep=True)
    data[name].loc[where] = value
    assert not CLAIMS[claim].judge({"found": data}).holds


def test_mechanisms_have_the_noise_of_their_claims():
    for epsilon in figure.EPSILONS.value:
        assert figure.mechanism(LAPLACE, epsilon, 0.5)[1] == 0.5 / epsilon
        probability = figure.mechanism(RESPONSE, epsilon, 1.0)[1]
        assert accounting.randomized_response_epsilon(probability, 2) == pytest.approx(epsilon)
        sigma = accounting.analytic_gaussian_sigma(1.0, epsilon, figure.DELTA.value)
        assert figure.mechanism(GAUSSIAN, epsilon, 1.0)[1] == pytest.approx(sigma)


@pytest.mark.slow
def test_exercise_9_1_finds_the_station():
    result = figure.queried(3)
    four = figure.EXCHANGES.value.index(4)
    assert result["off"][0, four] < -9
    assert result["off"][0, four - 1] > -3
    assert np.all(result["identified"][0, four:] == 1)


@pytest.mark.slow
@pytest.mark.skipif("FLJAX_DATA" not in os.environ, reason="the weather records are needed")
def test_exercises_9_3_and_9_4_on_the_records():
    result = figure.placed(0)
    assert result["distance"][0, -1] < result["blind"] - 50
    assert np.all(np.diff(result["distance"][:, -1]) > 0)
    assert result["distance"][0, 0] > result["distance"][0, -1]


@pytest.mark.long
@pytest.mark.slow
def test_curves_are_not_covered(expected):
    with picture.print_style():
        assert picture.faults(figure.plot(expected)) == []
