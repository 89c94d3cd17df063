"""Client drift: measures that detect broken data, and limits that match the runs."""

import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.jung import figure_drift as figure
from experiments.jung.figure_drift import ALL, ERROR, PROX, STEPS, SUBSET, SUBSETS
from fljax._core.devices import configured

SEEDS = 6
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}
ROUNDS = np.arange(1, 9)
LABEL = {"units": "1", "decibel": 1, "long_name": "error"}


def expected_studies():
    """What the claims expect."""
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((SEEDS, 1))
    ends = noise * np.array([1e-30, 1e-4, 3e-4, 6e-4, 1e-3, 2e-3])
    axes = ("seed", "steps")
    drift = xr.Dataset(
        {
            ERROR: ((*axes, "round"), np.repeat(ends[..., None], len(ROUNDS), -1), LABEL),
            "limit": (axes, ends),
            "start": ("seed", noise[:, 0]),
            "rounds": (axes, noise * [9.0, 6, 4, 3, 2, 1], figure.ROUNDS_LABEL),
            "diverged": (axes, np.zeros(ends.shape, int)),
        },
        {"steps": list(STEPS.value), "round": ROUNDS, "seed": range(SEEDS)},
    )
    away = noise * np.asarray(PROX.value) ** 1.9 / 1e4
    axes = ("seed", "step_size")
    prox = xr.Dataset(
        {
            ERROR: (axes, away, LABEL),
            "limit": (axes, away.copy()),
            "diverged": (axes, np.zeros(away.shape, int)),
        },
        {"step_size": list(PROX.value), "seed": range(SEEDS)},
    )
    levels = np.array([[1e-20, 1e-3], [1e-3, 4e-3]])
    errors = noise[:, :, None, None] * levels[..., None] * np.ones(len(ROUNDS))
    axes = ("seed", "steps", "clients")
    subsets = xr.Dataset(
        {
            ERROR: ((*axes, "round"), errors, LABEL),
            "diverged": (axes, np.zeros(errors.shape[:-1], int)),
        },
        {
            "steps": list(SUBSETS.value),
            "clients": [ALL, SUBSET],
            "round": ROUNDS,
            "seed": range(SEEDS),
        },
    )
    return {"drift": drift, "prox": prox, "subsets": subsets}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("name", "study", "variable", "value", "where"),
    [
        ("one-step-reaches-the-minimizer", "drift", ERROR, 1e-4, {"steps": 1}),
        ("fewer-rounds-with-more-steps", "drift", "rounds", 5.0, {"steps": 20}),
        ("local-steps-drift", "drift", ERROR, 1e-4, {"steps": 20}),
        ("limits-are-exact", "drift", ERROR, 4e-4, {"steps": 5}),
        ("limits-are-exact", "prox", "limit", 1e-3, {"step_size": 1.0}),
        ("fedprox-closer-for-small-eta", "prox", ERROR, 1.0, {"step_size": 0.3}),
        ("fedprox-reaches-it-without-eta", "prox", ERROR, 1e-5, {"step_size": 0.03}),
        ("subsets-do-not-settle", "subsets", ERROR, 1e-20, {"clients": SUBSET}),
    ],
)
def test_claims_fail_on_other_data(name, study, variable, value, where):
    studies = expected_studies()
    studies[study][variable].loc[where] = value
    assert not CLAIMS[name].judge(studies).holds


def test_arrivals_count_rounds():
    models = np.array([0.5, 0.9, 0.995, 1.0])[None, None, :, None]
    data = xr.Dataset({figure.MODEL: (("seed", "steps", "round", "parameter"), models)})
    assert figure.arrivals(data, np.ones((1, 1, 1))).tolist() == [[3.0]]


@pytest.mark.slow
def test_runs_end_at_the_limits():
    with configured("jax_enable_x64", True):
        key = fl.random_key(3)
        theory = figure.limits(key)
        assert float(theory["drift"][0]) < 1e-20
        end = fl.run(figure.averaging(key, 5), rounds=60)[ERROR].values.ravel()[-1]
        assert end == pytest.approx(float(theory["drift"][2]), rel=1e-5)


@pytest.mark.long
@pytest.mark.slow
def test_picture():
    with picture.print_style():
        assert picture.faults(figure.plot(expected_studies())) == []
