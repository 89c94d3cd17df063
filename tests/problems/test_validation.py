"""Training, validation and diagnosis of clients' own models (Jung 2025, Algorithm 1)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.linalg import spd_pseudo_inverse, symmetric_eigen
from fljax.problems import Diagnosis, LeastSquares, Logistic, SquaredL2, from_clients
from tests.reference import jung_agnostic as loops

RNG = np.random.default_rng(0)
SIZES = (9, 2, 5, 1)
DIM = 4
TRUTH = RNG.normal(size=DIM)


def draw(size):
    x = RNG.normal(size=(size, DIM))
    return x, x @ TRUTH + 0.3 * RNG.normal(size=size)


DATA = [draw(n) for n in SIZES]
HELD_OUT = [draw(n) for n in (3, 6, 2, 4)]
PROBLEM = from_clients(DATA, LeastSquares(), test=HELD_OUT)


@pytest.mark.slow
def test_every_node_is_trained_and_judged_as_the_loop_does():
    """Fewer samples than parameters, or more; of least norm where several models are as good."""
    result = fl.problems.validate(PROBLEM)
    for k, (data, held_out) in enumerate(zip(DATA, HELD_OUT, strict=True)):
        w, trained, judged = loops.train_and_validate(*data, *held_out)
        np.testing.assert_allclose(result.model[k], w, atol=1e-10)
        np.testing.assert_allclose(result.train_error[k], trained, atol=1e-10)
        np.testing.assert_allclose(result.validation_error[k], judged, atol=1e-10)
    assert result.train_error[1] < 1e-20 < 1e-2 < result.validation_error[1]
    together = PROBLEM.with_test(*HELD_OUT[1])
    expected = [
        np.mean((HELD_OUT[1][1] - HELD_OUT[1][0] @ w) ** 2) for w in np.asarray(result.model)
    ]
    np.testing.assert_allclose(
        fl.problems.validate(together).validation_error, expected, atol=1e-10
    )


def test_metrics_of_each_client_are_its_own_errors():
    simulation = fl.Simulation(
        PROBLEM,
        fl.algorithms.LocalOnly(0.1),
        metrics=["train_error", "validation_error", "test_error"],
    )
    run = fl.run(simulation, rounds=5)
    assert run.train_error.dims == ("round", "client")
    for k, (data, held_out) in enumerate(zip(DATA, HELD_OUT, strict=True)):
        w = run.model.values[k]
        errors = [np.mean((y - x @ w) ** 2) for x, y in (data, held_out)]
        ours = run.train_error[-1, k], run.validation_error[-1, k]
        np.testing.assert_allclose(ours, errors, atol=1e-12)
    np.testing.assert_allclose(run.test_error, run.validation_error.mean("client"), atol=1e-12)


@pytest.mark.slow
def test_the_books_small_regressions():
    """Exercises 1.3 and 1.4."""
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    y = np.array([7.0, 8.0, 9.0])
    problem = from_clients([(x, y)], LeastSquares())
    np.testing.assert_allclose(fl.problems.train(problem)[0], [-6.0, 6.5], atol=1e-10)
    gram = jnp.asarray(x[:2].T @ x[:2])[None]
    values = np.sort(symmetric_eigen(gram)[0][0])
    np.testing.assert_allclose(values, [0.13393, 29.86607], atol=5e-6)


def test_pseudo_inverses_are_numpys():
    rows = RNG.normal(size=(3, 4, 6))
    rows[1, 2] = rows[1, 1]
    rows[2] = 0
    grams = np.einsum("bnp,bnq->bpq", rows, rows)
    ours = spd_pseudo_inverse(jnp.asarray(grams))
    np.testing.assert_allclose(ours, np.linalg.pinv(grams, hermitian=True, rcond=1e-10), atol=1e-10)


@pytest.mark.slow
def test_ridge_is_least_squares_on_more_data():
    """(24) and (27): Exercises 2.3 and 2.5, of every client."""
    penalty = 0.3
    goal = RNG.normal(size=DIM)
    for towards in (np.zeros(DIM), goal):
        more = fl.problems.with_ridge_samples(PROBLEM, penalty, jnp.asarray(towards))
        ours = fl.problems.train(more)
        w = RNG.normal(size=(len(SIZES), DIM))
        for k, (x, y) in enumerate(DATA):
            ridge = loops.ridge(x, y, penalty, towards)
            np.testing.assert_allclose(ours[k], ridge, atol=1e-10)
            value = np.mean((y - x @ w[k]) ** 2) + penalty * np.sum((w[k] - towards) ** 2)
            loss = more.mean_loss(jnp.asarray(w))[k] * (len(y) + DIM) / len(y)
            np.testing.assert_allclose(loss, value, atol=1e-10)
    strength = from_clients(DATA, LeastSquares(), SquaredL2(), penalty * np.ones(len(SIZES)))
    np.testing.assert_allclose(
        fl.problems.train(strength),
        fl.problems.train(fl.problems.with_ridge_samples(PROBLEM, penalty)),
        atol=1e-10,
    )


@pytest.mark.slow
def test_noise_on_features_is_ridge_in_the_mean():
    """(23)."""
    problem = from_clients(DATA[:1], LeastSquares())
    noisy = fl.problems.jittered(jax.random.key(0), problem, 0.3, copies=20_000)
    ridge = loops.ridge(*DATA[0], 0.3, np.zeros(DIM))
    result = np.asarray(fl.problems.train(noisy)[0])
    plain = np.asarray(fl.problems.train(problem)[0])
    assert np.linalg.norm(result - ridge) < 0.05 * np.linalg.norm(plain - ridge)


@pytest.mark.slow
def test_diagnosis_by_the_books_table():
    trained = np.array([1.0, 0.1, 9.0, 5.0, 1.0])
    judged = np.array([1.1, 1.0, 9.5, 1.0, 1.49])
    expected = ["FINE", "OVERFITTING", "UNDERFITTING", "UNLIKE", "FINE"]
    result = jax.jit(fl.problems.diagnose)(trained, judged, 1.0)
    assert [Diagnosis(int(code)).name for code in result] == expected
    assert fl.problems.diagnose(0.1, 1.0, 1.0) == Diagnosis.OVERFITTING
    assert [
        loops.diagnosis(*errors, 1.0) for errors in zip(trained, judged, strict=True)
    ] == expected
    wide = fl.problems.validate(PROBLEM)
    codes = fl.problems.diagnose(wide.train_error, wide.validation_error, 0.09)
    assert codes[1] == codes[3] == Diagnosis.OVERFITTING


@pytest.mark.slow
def test_other_losses_are_minimized_iteratively():
    data = [(x, np.sign(y)) for x, y in DATA]
    problem = from_clients(data, Logistic(), SquaredL2(), 0.4)
    model = fl.problems.train(problem)
    assert np.abs(problem.gradient(model)).max() < 1e-8
    with pytest.raises(ValueError, match="no one minimizer"):
        fl.problems.train(from_clients(data[1:2], Logistic()))
    with pytest.raises(ValueError, match="no held-out data"):
        fl.problems.validate(problem)
