"""A digit from one gradient: measures that detect broken data, and the message sent."""

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.jung import figure_inversion as figure
from experiments.jung.figure_inversion import CLIPPED, DEFENSES, LOUD, MANY, METHODS, OPEN

SEEDS = 6
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What the claims expect."""
    ratio = np.full((SEEDS, len(DEFENSES), len(METHODS)), 25.0)
    ratio = ratio + 0.1 * np.random.default_rng(0).standard_normal((SEEDS, 1, 1))
    data = xr.Dataset(
        {"ratio": (("seed", "defense", "matching"), ratio)},
        {"defense": [*DEFENSES], "matching": [*METHODS.values()], "seed": range(SEEDS)},
    )
    data["ratio"].loc[{"defense": [LOUD, MANY]}] = 8.0 + np.zeros((SEEDS, 2, len(METHODS)))
    return {"digits": data}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("claim", "defense", "value"),
    [
        ("one-gradient-tells-the-digit", OPEN, 9.0),
        ("clipping-hides-nothing-from-the-cosine", CLIPPED, 9.0),
        ("noise-and-batches-hide", MANY, 24.0),
    ],
)
def test_claims_see_broken_data(claim, defense, value):
    studies = expected_studies()
    studies["digits"]["ratio"].loc[{"defense": defense}] = value
    assert not CLAIMS[claim].judge(studies).holds


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
