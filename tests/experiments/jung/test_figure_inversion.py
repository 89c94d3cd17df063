"""A digit from one gradient: measures that detect broken data, and the message sent."""

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.jung import figure_inversion as figure
from experiments.jung.figure_inversion import CLIPPED, DEFENSES, LOUD, MANY, METHODS, OPEN

SEEDS = 6
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies(hiding=(LOUD, MANY)):
    """What the claims expect: the digits, half as bright, or noise in their place."""
    rng = np.random.default_rng(0)
    truth = (rng.random((SEEDS, 28, 28)) < 0.2).astype(float)
    found = np.empty((SEEDS, len(DEFENSES), len(METHODS), 28, 28))
    for place, defense in enumerate(DEFENSES):
        noise = rng.random((SEEDS, len(METHODS), 28, 28))
        seen = 0.5 * truth[:, None] + 0.05 * noise
        found[:, place] = noise if defense in hiding else seen
    axes = ("seed", "defense", "matching", "row", "column")
    data = xr.Dataset(
        {"found": (axes, found), "truth": (("seed", "row", "column"), truth)},
        {"defense": [*DEFENSES], "matching": [*METHODS.values()], "seed": range(SEEDS)},
    )
    return {"digits": data}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("claim", "hiding"),
    [
        ("one-gradient-tells-the-digit", (OPEN, LOUD, MANY)),
        ("clipping-hides-nothing-from-the-cosine", (CLIPPED, LOUD, MANY)),
        ("noise-and-batches-hide", (LOUD,)),
    ],
)
def test_claims_see_broken_data(claim, hiding):
    verdict = CLAIMS[claim].judge(expected_studies(hiding))
    assert str(verdict) == "does not hold"


def test_likeness_is_blind_to_brightness_and_cuts_pixels_off():
    truth = np.tile([[[0.0, 1.0], [1.0, 0.0]]], (2, 1, 1))
    bright = 3 * truth - 1
    dark = 0.1 * truth
    np.testing.assert_allclose(figure.correlations(bright, truth), 1)
    np.testing.assert_allclose(figure.correlations(dark, truth), 1)
    beyond = truth * np.array([[1.0, 5.0], [1.0, 1.0]])
    np.testing.assert_allclose(figure.correlations(beyond, truth), 1)
    np.testing.assert_allclose(figure.correlations(1 - truth, truth), -1)


@pytest.mark.slow
def test_noise_has_its_stated_length_and_clipping_keeps_the_direction():
    gradient = jax.random.normal(jax.random.key(0), (50,))
    for level, name in zip(figure.NOISES.value, (figure.QUIET, LOUD), strict=True):
        off = np.asarray(figure.sent(name, gradient, jax.random.key(1)) - gradient)
        assert np.linalg.norm(off) == pytest.approx(level * float(np.linalg.norm(gradient)))
    clipped = np.asarray(figure.sent(CLIPPED, gradient, jax.random.key(1)))
    np.testing.assert_allclose(clipped, figure.CLIP.value * np.asarray(gradient), rtol=1e-6)
    client = figure.of_client(2, 3)
    assert client.targets.tolist() == [[2.0, 3.0, 4.0]]
