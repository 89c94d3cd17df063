"""Vertical federated learning: columns at different clients, which share predictions alone."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import SharingADMM
from fljax.problems import GTVMin, SquaredL2, vertical, vertical_consensus
from tests.reference import jung_agnostic as loops

RNG = np.random.default_rng(0)
COLUMNS = [[0, 3], [1], [2, 4, 5]]
SAMPLES = 20
TABLE = RNG.normal(size=(SAMPLES, 6))
LABELS = RNG.normal(size=SAMPLES)
HELD_OUT = RNG.normal(size=(7, 6)), RNG.normal(size=7)
BLOCKS = [np.pad(TABLE[:, own], ((0, 0), (0, 3 - len(own)))) for own in COLUMNS]
PROBLEM = vertical(TABLE, LABELS, COLUMNS, holder=1, test=HELD_OUT)
POOLED = np.linalg.lstsq(TABLE, LABELS, rcond=None)[0]


def spread(w):
    return np.array([np.pad(w[columns], (0, 3 - len(columns))) for columns in COLUMNS])


def run(problem=PROBLEM, penalty=2.0, rounds=8, metrics=(), **parts):
    metrics = [fl.metrics.trajectory(), *metrics]
    return fl.run(
        fl.Simulation(problem, SharingADMM(penalty), metrics=metrics, **parts), rounds=rounds
    )


@pytest.mark.slow
def test_models_equal_boyds_iterations():
    ridge = dataclasses.replace(PROBLEM, regularizer=SquaredL2(), strength=0.6)
    np.testing.assert_allclose(
        run().model_trajectory, loops.sharing_admm(BLOCKS, LABELS, 2.0, 8), atol=1e-10
    )
    np.testing.assert_allclose(
        run(ridge, 0.7).model_trajectory,
        loops.sharing_admm(BLOCKS, LABELS, 0.7, 8, ridge=0.2),
        atol=1e-10,
    )


@pytest.mark.slow
def test_rounds_end_at_the_pooled_solution():
    results = run(rounds=300, metrics=["normalized_error", "joint_error"])
    np.testing.assert_allclose(results.model, spread(POOLED), atol=1e-10)
    assert results.normalized_error[-1] < 1e-20
    error = np.mean((HELD_OUT[1] - HELD_OUT[0] @ POOLED) ** 2)
    np.testing.assert_allclose(results.joint_error[-1], error, atol=1e-10)
    ridge = dataclasses.replace(PROBLEM, regularizer=SquaredL2(), strength=0.6)
    best = np.linalg.solve(TABLE.T @ TABLE / SAMPLES + 0.2 * np.eye(6), TABLE.T @ LABELS / SAMPLES)
    results = run(ridge, rounds=300, metrics=["normalized_error"])
    np.testing.assert_allclose(results.model, spread(best), atol=1e-10)
    assert results.normalized_error[-1] < 1e-20


@pytest.mark.slow
def test_more_columns_than_samples_share_one_fit():
    table = RNG.normal(size=(4, 6))
    labels = RNG.normal(size=4)
    problem = vertical(table, labels, COLUMNS)
    model = run(problem, rounds=800).model.values
    np.testing.assert_allclose(np.einsum("knp,kp->n", problem.features, model), labels, atol=1e-9)


@pytest.mark.slow
def test_the_server_keeps_an_absent_client_s_last_message():
    active = np.random.default_rng(1).random((8, 3)) < 0.6
    results = run(participation=fl.participation.Trace(active))
    theirs = loops.sharing_admm(BLOCKS, LABELS, 2.0, 8, active=active)
    np.testing.assert_allclose(results.model_trajectory, theirs, atol=1e-10)
    results = run(rounds=1500, participation=fl.participation.Bernoulli(0.7))
    np.testing.assert_allclose(results.model, spread(POOLED), atol=1e-8)
    results = run(rounds=1500, losses=fl.link.Independent(0.3))
    np.testing.assert_allclose(results.model, spread(POOLED), atol=1e-8)
    assert np.abs(run(losses=fl.link.Independent(0.3)).model - run().model).max() > 1e-3


@pytest.mark.thin(1)
@pytest.mark.parametrize(("strength", "error"), [(1e2, 7e-3), (1e4, 7e-5)])
@pytest.mark.slow
def test_gtv_minimization_covers_it(strength, error):
    """Exercise 6.2: all copies of the predictions are near pooled least squares."""
    problem = vertical_consensus(PROBLEM, strength, holder=1)
    gtv = GTVMin(problem, fl.graphs.complete(3), strength)
    copies = np.asarray(gtv.closed_form()).reshape(3, 3, SAMPLES)
    parts = np.einsum("knp,kp->kn", BLOCKS, spread(POOLED))
    difference = np.abs(copies.sum(1) - parts.sum(0)).max()
    assert error / 30 < difference < 3 * error
    w = jnp.asarray(RNG.normal(size=(3, 3 * SAMPLES)))
    value = 0.0
    for k, x in enumerate(BLOCKS):
        part = np.asarray(w[k]).reshape(3, SAMPLES)
        missed = part[k] - x @ np.linalg.pinv(x) @ part[k]
        value += strength * missed @ missed
        if k == 1:
            value += np.mean((LABELS - part.sum(0)) ** 2)
    np.testing.assert_allclose(problem.mean_loss(w).sum(), value, rtol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": [[0, 1], [1]]}, "belongs to one client, got one twice"),
        ({"columns": [[0, 6]]}, "among 0 to 5"),
        ({"columns": [[0], []]}, "columns of client 1 must be integers, at least one"),
        ({"columns": []}, "at least one client"),
        ({"targets": np.ones(3)}, "one entry a row of features"),
        ({"holder": 3}, "holder must be <= 2"),
    ],
)
def test_tables_that_cannot_be_spread_are_refused(arguments, message):
    options = {"features": TABLE, "targets": LABELS, "columns": COLUMNS} | arguments
    with pytest.raises(ValueError, match=message):
        vertical(**options)


@pytest.mark.parametrize("width", [2, 5, 7])
def test_held_out_features_have_the_tables_columns(width):
    with pytest.raises(ValueError, match=f"the 6 columns of the features, got {width}"):
        vertical(TABLE, LABELS, COLUMNS, test=(np.ones((3, width)), np.ones(3)))


def test_clients_with_separate_samples_are_refused():
    data = [(RNG.normal(size=(n, 2)), RNG.normal(size=n)) for n in (3, 5)]
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
    with pytest.raises(ValueError, match="columns of the same samples"):
        fl.Simulation(problem, SharingADMM(1.0))
