"""Networks that lose edges, peers and servers: measures that see broken data."""

import jax
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.jung import figure_resilience as figure
from experiments.jung.figure_resilience import (
    CONNECTED,
    CONNECTIVITY,
    ERROR,
    FAILED,
    INSTANCE,
    PEERS,
    SERVER,
    WHOLE,
)

SEEDS = 40
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What every claim expects."""
    noise = 1 + 0.05 * np.random.default_rng(0).standard_normal((SEEDS, 1))
    places = ("seed", "drop_edge")
    connectivity = np.array(CONNECTIVITY) * noise
    connectivity[:, 0] = CONNECTIVITY[0]
    failures = xr.Dataset(
        {
            "connectivity": (places, connectivity + np.array([0, 0, 0, 0, -1e-3])),
            "connected": (places, np.array(CONNECTED) * noise),
            "rate": (places, np.tile([0.8, 0.85, 0.9, 0.99, 1.0], (SEEDS, 1))),
            "critical": ("seed", np.full(SEEDS, 0.4)),
            "typical": ("seed", np.full(SEEDS, 0.9)),
        },
        {"drop_edge": [*INSTANCE]},
    )
    methods = [SERVER, PEERS]
    errors = np.array([[1.0, 20.0], [2.0, 2.3]])[..., None] * np.array([3.0, 2.0, 1.0])
    runs = xr.Dataset(
        {ERROR: (("seed", "algorithm", "case", "round"), errors * noise[..., None, None])},
        {"algorithm": methods, "case": [WHOLE, FAILED], "round": [1, 5, 200]},
    )
    lossy = np.array([[1.0, 1.01, 1.02, 1.1, 1.5], [2.0, 2.1, 2.2, 2.3, 2.4]])
    links = xr.Dataset(
        {ERROR: (("seed", "algorithm", "probability"), lossy * noise[..., None])},
        {"algorithm": methods, "probability": [*figure.LOSSES.value]},
    )
    for data in (runs, links):
        data["diverged"] = (("seed", "algorithm"), np.zeros((SEEDS, 2)))
        data[ERROR].attrs |= {"decibel": 1, "long_name": "error"}
    return {"failures": failures, "runs": runs, "links": links}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("connectivity-falls", "failures", "connectivity", 0.8, {"drop_edge": 0.4}),
        ("slower", "failures", "rate", 0.7, {"drop_edge": 0.6}),
        ("instance-connectivity", "failures", "connectivity", 0.5, {"drop_edge": 0.2}),
        ("instance-connected", "failures", "connected", 0.2, {"drop_edge": 0.4}),
        ("critical-node", "failures", "critical", 0.7, {}),
        ("typical-node", "failures", "typical", 0.7, {}),
        ("server-fails", "runs", ERROR, 1.1, {"algorithm": SERVER, "case": FAILED}),
        ("peer-fails", "runs", ERROR, 9.0, {"algorithm": PEERS, "case": FAILED}),
        ("peer-fails-less", "runs", ERROR, 80.0, {"algorithm": PEERS, "case": FAILED}),
        ("links-fail", "links", ERROR, 9.0, {"algorithm": PEERS, "probability": 0.4}),
    ],
)
def test_claims_detect_wrong_data(claim, study, name, value, where):
    studies = expected_studies()
    studies[study][name].loc[where] = value
    assert not CLAIMS[claim].judge(studies).holds


@pytest.mark.slow
def test_the_most_critical_peer_fails_and_the_rest_go_on():
    key = jax.random.key(1)
    graph = figure.world(key)[1]
    left = np.asarray(figure.left_by_each(graph))
    assert np.argmin(left) in fl.graphs.critical_nodes(graph).members[:2]
    failing = figure.simulation(key, PEERS, True).network
    before, after = (failing.at(key, np.asarray(number)) for number in (figure.FAILS.value, 6))
    assert int(np.argmin(left)) in np.flatnonzero(np.asarray(after.degree) == 0)
    np.testing.assert_array_equal(before.dense(), graph.dense())


@pytest.mark.slow
def test_learning_ends_with_the_server():
    run = fl.run(figure.simulation(jax.random.key(1), SERVER, True), rounds=8)
    error = run[ERROR].values
    assert error[4] < error[3]
    np.testing.assert_array_equal(error[5:], error[4])


@pytest.mark.long
@pytest.mark.slow
def test_curves_are_not_covered():
    with picture.print_style():
        assert picture.faults(figure.plot(expected_studies())) == []
