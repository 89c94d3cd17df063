"""Connectivity of networks: measures that see broken data."""

import jax
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.jung import figure_connectivity as figure
from experiments.jung.figure_connectivity import FAMILIES, NEAR, RANDOM, REGULAR, WORLD
from fljax.theory import network_rates

SEEDS = 4
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What every claim expects."""
    degree = np.asarray(figure.DEGREES.value, float)
    of = np.array([0.9, 0.95, 0.87, 0.85])[:, None]  # of the families
    shape = (SEEDS, len(FAMILIES), len(degree))
    values_of = {
        "second": of * degree,
        "degree": degree + 0 * of,
        "edges": 25 * degree + 0 * of,
        "over_bound": of + 0 * degree,
        "largest": 0.6 + 0 * of * degree,
    }
    rounds = np.log10(100 / of / np.sqrt(degree))
    axes = ("seed", "family", "level")
    variables = {name: (axes, np.broadcast_to(values, shape)) for name, values in values_of.items()}
    for name, values in (("rounds", rounds), ("cost", rounds + np.log10(values_of["edges"]))):
        values = np.broadcast_to(values[..., None], (*shape, len(figure.COUPLINGS.value)))
        variables[name] = ((*axes, "coupling"), values)
    coords = {
        "seed": range(SEEDS),
        "family": list(FAMILIES),
        "level": list(figure.LEVELS),
        "coupling": list(figure.COUPLINGS.value),
    }
    sizes = figure.SIZES.value
    probabilities = figure.PROBABILITIES.value
    off = np.broadcast_to(2 / np.asarray(sizes), (SEEDS, len(probabilities), len(sizes)))
    axes = ("seed", "probability", "nodes")
    random = xr.Dataset(
        {"second": (axes, 1 - off), "most": (axes, 1 + off)},
        {"seed": range(SEEDS), "probability": list(probabilities), "nodes": list(sizes)},
    )
    return {"networks": xr.Dataset(variables, coords), "random": random}


@pytest.fixture(scope="module")
def expected():
    return expected_studies()


def test_claims_hold_on_the_expected_data(expected):
    assert [name for name, claim in CLAIMS.items() if not claim.judge(expected).holds] == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("proposition-7.1", "networks", "over_bound", 1.01, {"family": NEAR, "seed": 1}),
        ("bound-as-baseline", "networks", "over_bound", 0.4, {"family": REGULAR, "level": 1}),
        ("largest-eigenvalue", "networks", "largest", 1.01, {"family": WORLD, "seed": 1}),
        ("essentially-tight", "networks", "largest", 0.4, {"family": RANDOM, "level": 0}),
        ("approximation-155", "random", "second", 0.7, {"probability": 0.5, "nodes": 50}),
        ("approximation-154", "random", "most", 1.3, {"probability": 0.5, "nodes": 50}),
        ("approximation-improves", "random", "second", 0.8, {"probability": 0.2, "nodes": 200}),
        ("degree-connects", "networks", "second", 1.0, {"family": NEAR, "level": 2}),
        ("edges-save-rounds", "networks", "rounds", 3.0, {"family": WORLD, "level": 3}),
        ("edges-cost", "networks", "cost", 2.0, {"family": WORLD, "level": 3}),
        ("placed-for-connectivity", "networks", "second", 99.0, {"family": WORLD}),
        ("placed-for-speed", "networks", "rounds", 0.5, {"family": WORLD, "coupling": 0.1}),
    ],
)
def test_claims_detect_wrong_data(expected, claim, study, name, value, where):
    data = expected[study].copy(deep=True)
    data[name] = data[name].copy()
    data[name].loc[where] = value
    broken = expected | {study: data}
    verdict = CLAIMS[claim].judge(broken)
    assert not verdict.holds
    if CLAIMS[claim].note:
        assert verdict.note


def test_notes_are_of_the_results(expected):
    assert "it says 10, and connectivity is 9.6, the largest degree 10.4" in figure.how_far(
        expected
    )
    data = expected["networks"].copy(deep=True)
    data["second"].loc[{"family": RANDOM, "level": 0, "seed": 1}] = 0
    data["cost"].loc[{"family": NEAR, "level": 3}] = 1.0
    text = figure.cheaper(expected | {"networks": data})
    assert f"{NEAR}, alpha = 0.1" in text
    assert "25 % fall apart" in text


def test_spectra_of_known_networks():
    ring = 2 * np.eye(6) - np.roll(np.eye(6), 1, 0) - np.roll(np.eye(6), -1, 0)
    complete = 6 * np.eye(6) - 1
    disconnected = np.kron(np.eye(2), 3 * np.eye(3) - 1)
    result = figure.connectivity(np.stack([ring, complete, disconnected]))
    np.testing.assert_allclose(result["second"], [1, 6, 0], atol=1e-12)
    np.testing.assert_allclose(result["over_bound"], [1 / 2.4, 1, 0], atol=1e-12)
    np.testing.assert_allclose(result["largest"], [1, 0.6, 0.75])
    np.testing.assert_allclose(result["edges"], [6, 15, 6])
    np.testing.assert_allclose(result["most"], [2, 5, 2])


def test_rounds_follow_from_the_spectrum():
    complete = 3 * np.eye(3) - 1
    # Q = I + L of eigenvalues 1 and 4: a factor of 3/5.
    result = figure.rounds(complete[None], np.ones((1, 3, 1, 1)), 1.0)
    np.testing.assert_array_equal(result, np.ceil(np.log(1e3) / np.log(5 / 3)))


@pytest.mark.slow
def test_rounds_equal_the_library():
    key = jax.random.split(jax.random.key(3), 1)
    laplacian = figure.laplacians(figure.NEAR, 1, key)
    blocks = figure.moments(key)
    problem = fl.problems.least_squares(key[0], figure.NODES.value, *figure.DATA.value)
    graph = fl.graphs.from_adjacency(np.diag(np.diag(laplacian[0])) - laplacian[0])
    ends = network_rates.extremes(problem, graph, 0.1)
    wanted = fl.descent.rounds_needed(1.0, figure.REACHED.value, ends.best_factor)
    np.testing.assert_allclose(figure.rounds(laplacian, blocks, 0.1), wanted, rtol=0.01)


@pytest.mark.long
@pytest.mark.slow
def test_curves_are_not_covered(expected):
    with picture.print_style():
        assert picture.faults(figure.plot(expected)) == []
