"""What each algorithm promises: a claim for every one, and how a promise is read from curves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import commands, report
from experiments.figure import REGISTRY, Effort
from experiments.headlines import figure_dissimilarity, figure_exact
from experiments.headlines.common import METRIC, final, first_below, straightness, unlike
from experiments.promises import HEADLINES, PENDING
from fljax.algorithms import REGISTRY as ALGORITHMS
from fljax.study.engine import configured


def test_every_algorithm_has_a_headline_or_says_that_it_has_none():
    assert not HEADLINES.keys() & PENDING
    assert HEADLINES.keys() | PENDING == ALGORITHMS.keys()
    assert len(commands.in_order()) == len(REGISTRY)  # all are declared
    for figure, claim in HEADLINES.values():
        assert claim in {known.name for known in REGISTRY[figure].claims}


def curves(decibels):
    """A study of one method whose seeds have this curve, dB, a round apart."""
    rounds = np.arange(1, len(decibels) + 1)
    values = np.tile(10 ** (np.asarray(decibels) / 10), (1, 5, 1))
    return xr.Dataset(
        {METRIC: (("algorithm", "seed", "round"), values), "diverged": 0},
        {"algorithm": ["method"], "round": rounds},
    ).assign(diverged=(("algorithm", "seed"), np.zeros((1, 5), int)))


def test_a_line_is_straight_and_a_slower_rate_is_not():
    rounds = np.arange(1, 4001)
    line = {"part": curves(40 - rounds / 10)}
    assert straightness("part", "method")(line)["method"].value == pytest.approx(1, abs=0.01)
    power = {"part": curves(-40 * np.log10(rounds))}  # of the rounds
    assert not straightness("part", "method")(power)["method"].high <= 1.5
    assert final("part", "method")(power)["method"].value == pytest.approx(-40 * np.log10(4000))


def minimizers(problem):
    rows = zip(problem.features, problem.targets, strict=True)
    return np.stack([np.linalg.lstsq(x, y)[0] for x, y in rows])


def test_clients_are_as_far_apart_as_they_should_be():
    with configured("jax_enable_x64", True):
        far = unlike(jax.random.key(0), 200, 30, 3, spread=2.0)
        own = np.stack(
            [np.linalg.lstsq(x, y)[0] for x, y in zip(far.features, far.targets, strict=True)]
        )
        assert own.std(axis=0) == pytest.approx(2.0, rel=0.2)
        alike = unlike(jax.random.key(0), 200, 30, 3, spread=0.0, scales=jnp.array([1, 2, 4.0]))
        own = np.stack(
            [np.linalg.lstsq(x, y)[0] for x, y in zip(alike.features, alike.targets, strict=True)]
        )
        assert (own.std(axis=0) < 0.05).all()
        assert np.std(alike.features, axis=(0, 1)) == pytest.approx([1, 2, 4], rel=0.05)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("module", [figure_dissimilarity, figure_exact])
def test_quick_studies_are_drawn_and_judged(module):
    figure = module.FIGURE
    with configured("jax_enable_x64", True):
        studies = figure.study(Effort(3, 2, quick=True))
        figure.plot(studies)
        verdicts = {claim.name: claim.judge(studies) for claim in figure.claims}
    assert verdicts.keys() == {claim.name for claim in figure.claims}


def test_the_page_of_promises_says_what_holds():
    figure, claim = HEADLINES["EXTRA"]
    known = {c.name: c for c in REGISTRY[figure].claims}[claim]
    case = {"value": -290.0, "low": -291.0, "high": -289.0, "unit": "dB", "holds": True}
    record = dataclasses.asdict(known) | {
        "cases": {"EXTRA": case},
        "holds": True,
        "decided": True,
    }
    page = report.headlines([{"name": figure, "claims": [record]}])
    assert "| EXTRA | EXTRA reaches the exact minimizer" in page
    assert "-290.00 dB [-291.00, -289.00]" in page
    assert "holds" in page
    assert "FedSAM" in page.split("Not judged yet: ")[1]


def test_a_level_is_met_between_records():
    three = np.array([[0.0, -10, -20], [0, -1, -2], [-9, -10, -11]])
    found = first_below(three, -5, np.array([10, 20, 30]))
    np.testing.assert_allclose(found, [15, np.nan, 10])
