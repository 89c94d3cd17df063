"""A user's signal: measures that see broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import picture
from experiments.jung import figure_explain as figure
from experiments.jung.figure_explain import INSTANCE, PRINTED, SHIFTS

SEEDS = 40
STRENGTHS = [0.01, 1.0, 1000.0]
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What every claim expects."""
    noise = 1 + 0.05 * np.random.default_rng(0).standard_normal((SEEDS, 1, 1))
    end = np.array([1e-4, 0.04, 0.25, 4.0])[:, None]
    error = np.concatenate([0.7 + 0 * end, np.sqrt(0.7 * end), end], axis=1)
    instance = np.stack([PRINTED[0.0], PRINTED[0.0], (0.67, 0.6, 0.4, 0.3, 0.25), PRINTED[1.0]])
    distances = np.broadcast_to([1.0, 0.1, 1e-4], error.shape)
    full = ("seed", "shift", "strength")
    data = xr.Dataset(
        {
            "error": (full, error * (1 + 0.01 * (noise - 1))),
            "apart": (full, distances * noise),
            "instance": (("seed", "shift", "at"), instance * noise),
        },
        {"shift": [*SHIFTS.value], "strength": STRENGTHS, "at": [*INSTANCE]},
    )
    return {"all": data}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("claim", "name", "value", "where"),
    [
        ("follows", "apart", 0.5, {"strength": 1000.0, "shift": 0.0}),
        ("right-helps", "error", 0.8, {"strength": 1.0, "shift": 0.0}),
        ("wrong-harms", "instance", 0.5, {"at": 10.0, "shift": 1.0}),
        ("wrong-limit", "error", 3.0, {"strength": 1000.0, "shift": 1.0}),
        ("slightly-wrong-helps", "instance", 0.9, {"at": 1.0, "shift": 0.25}),
        ("instance-right", "instance", 0.3, {"at": 1.0, "shift": 0.0}),
        ("instance-wrong", "instance", 0.3, {"at": 1.0, "shift": 1.0}),
    ],
)
def test_claims_detect_wrong_data(claim, name, value, where):
    data = expected_studies()["all"]
    data[name].loc[where] = value
    verdict = CLAIMS[claim].judge({"all": data})
    assert not verdict.holds
    if CLAIMS[claim].note:
        assert "rho" in verdict.note


@pytest.mark.slow
def test_a_ring_matches_the_exercise():
    result = jax.jit(figure.measured)(jax.random.key(0), jnp.asarray([1e-6, 1e6]))
    assert np.shape(result["instance"]) == (len(SHIFTS.value), len(INSTANCE))
    without = np.asarray(result["error"][:, 0])
    np.testing.assert_allclose(without, without[0], rtol=1e-4)
    shifts = np.asarray(SHIFTS.value)
    np.testing.assert_allclose(result["error"][:, 1], 4 * shifts**2, atol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_curves_are_not_covered():
    with picture.print_style():
        assert picture.faults(figure.plot(expected_studies())) == []
