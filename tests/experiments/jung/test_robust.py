"""Robustness of updates and solutions: measures that see broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.jung import figure_robust as figure
from experiments.jung.figure_robust import (
    COORDINATES,
    CORRUPTED,
    GEOMETRIC,
    INSTANCE,
    KINDS,
    LEVELS,
    MEAN,
    PENALTIES,
    SIZE,
)

SEEDS = 40
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What every claim expects."""
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((SEEDS, 1))
    at = ("seed", "coupling")
    random = np.array([0.1, 0.5, 0.9])
    bound = np.array([0.2, 0.7, 0.95])
    ratios = xr.Dataset(
        {
            "random": (at, random * noise),
            "worst": (at, bound * noise),
            "bound": (at, bound * noise),
            "over_bound": (at, np.ones((SEEDS, 3))),
            "reached": (at, np.ones((SEEDS, 3))),
        },
        {"coupling": [0.01, 1.0, 100.0]},
    )
    level = np.array(LEVELS.value)
    moved = np.stack([level**2, level**2 + 20 * level**4, level**2], axis=1)
    shifts = xr.Dataset(
        {
            "moved": (("seed", "level", "kind"), moved * noise[..., None]),
            "of_bound": (("seed", "level"), np.full((SEEDS, len(level)), 1e-6)),
            "exact": (("seed", "level"), np.full((SEEDS, len(level)), 1e-14)),
        },
        {"level": level, "kind": [*KINDS]},
    )
    shifts["moved"].attrs |= {"decibel": 1}
    counts = np.array(CORRUPTED.value)
    far = np.sqrt(3) * figure.FAR.value
    below = np.interp(counts, [*INSTANCE], [*INSTANCE.values()])
    median = np.where(counts > 5, far, below)
    sizes = np.stack([np.where(counts, counts / 11 * far, 0.5), median, median])
    sizes = sizes * np.where(sizes > 1e4, 1, noise[..., None])
    stars = xr.Dataset(
        {SIZE: (("seed", "penalty", "corrupted"), sizes)},
        {"penalty": [*PENALTIES], "corrupted": counts},
    )
    stars["diverged"] = (("seed", "penalty"), np.zeros((SEEDS, 3)))
    return {"ratios": ratios, "shifts": shifts, "stars": stars}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("bound-174", "ratios", "over_bound", 1.01, {"coupling": 1.0, "seed": 3}),
        ("bound-reached", "ratios", "reached", 0.99, {"coupling": 1.0, "seed": 3}),
        ("small-coupling", "ratios", "random", 0.05, {"coupling": 1.0}),
        ("median-bounded", "stars", SIZE, 200.0, {"penalty": GEOMETRIC, "corrupted": 5, "seed": 3}),
        ("median-breaks", "stars", SIZE, 2.0, {"penalty": GEOMETRIC, "corrupted": 6, "seed": 3}),
        ("coordinates-bounded", "stars", SIZE, 200.0, {"penalty": COORDINATES, "corrupted": 4}),
        ("mean-breaks", "stars", SIZE, 2.0, {"penalty": MEAN, "corrupted": 1, "seed": 3}),
        ("instance", "stars", SIZE, 0.1, {"penalty": GEOMETRIC, "corrupted": 3}),
        ("instance-broken", "stars", SIZE, 6e5, {"penalty": MEAN, "corrupted": 3}),
        ("labels-exact", "shifts", "exact", 1e-6, {"level": 0.1, "seed": 3}),
        ("proposition-8.1", "shifts", "of_bound", 1.1, {"level": 0.1, "seed": 3}),
        ("labels-linear", "shifts", "moved", 0.02, {"level": 0.1, "kind": "labels"}),
        ("features-more", "shifts", "moved", 0.02, {"level": 0.2, "kind": "features"}),
        ("edges-further", "shifts", "moved", 1e-4, {"level": 0.2, "kind": "edges"}),
    ],
)
def test_claims_detect_wrong_data(claim, study, name, value, where):
    studies = expected_studies()
    studies[study][name].loc[where] = value
    assert not CLAIMS[claim].judge(studies).holds


@pytest.mark.slow
def test_a_network_matches_the_theory():
    key = jax.random.key(2)
    result = jax.jit(figure.ratios)(key, jnp.asarray([0.1, 10.0]))
    assert float(jnp.max(result["over_bound"])) <= 1 + 1e-9
    np.testing.assert_allclose(result["reached"], 1, rtol=1e-9)
    np.testing.assert_allclose(result["worst"], result["bound"], rtol=1e-9)
    moved = jax.jit(figure.shifts)(key, jnp.asarray([0.1, 0.2]))
    assert float(jnp.max(moved["exact"])) < 1e-10
    np.testing.assert_allclose(moved["moved"][1, 0] / moved["moved"][0, 0], 4, rtol=1e-9)


@pytest.mark.slow
def test_the_median_s_center_is_the_median_of_its_neighbors():
    points = jax.random.normal(jax.random.key(3), (12, 3))[1:]
    for name, combine in (
        (GEOMETRIC, fl.aggregation.GeometricMedian(300, 1e-12)),
        (COORDINATES, fl.aggregation.Median()),
        (MEAN, fl.aggregation.Mean()),
    ):
        simulation = figure.star(jax.random.key(3), jnp.asarray(0), PENALTIES[name])
        model = fl.run(simulation, rounds=3).model[0]
        expected = combine.combine(points[None], jnp.ones((1, 11)), jnp.zeros((1, 3)))[0]
        np.testing.assert_allclose(model, expected, atol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_curves_are_not_covered():
    with picture.print_style():
        assert picture.faults(figure.plot(expected_studies())) == []
