"""Predictions with their uncertainty: textbook least squares, simulation, coverage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fljax as fl
from fljax.contrib import predict
from fljax.problems import GTVMin, LeastSquares, Norm, Problem, from_clients

close = np.testing.assert_allclose
K = 5
N = 6
D = 3
RNG = np.random.default_rng(4)
X = RNG.normal(size=(K, N, D))
Y = RNG.normal(size=(K, N))
RING = fl.graphs.ring(K)
POINTS = RNG.normal(size=(4, D))
PROBLEM = Problem(X, Y, LeastSquares())


def test_without_coupling_it_is_ordinary_least_squares():
    result = predict(GTVMin(PROBLEM, RING, 0.0), POINTS)
    residuals = np.concatenate([Y[k] - X[k] @ np.linalg.lstsq(X[k], Y[k])[0] for k in range(K)])
    degrees = K * (N - D)
    noise = np.sqrt(np.sum(residuals**2) / degrees)
    close(result.degrees, degrees, rtol=1e-10)
    close(result.noise, noise, rtol=1e-10)
    quantile = scipy.stats.t.ppf(0.95, degrees)
    for k in range(K):
        leverage = np.sum(POINTS @ np.linalg.inv(X[k].T @ X[k]) * POINTS, axis=1)
        mean = POINTS @ np.linalg.lstsq(X[k], Y[k])[0]
        close(result.mean[k], mean, rtol=1e-9)
        close(result.standard_error[k], noise * np.sqrt(leverage), rtol=1e-9)
        close(
            result.interval(0.9).high[k], mean + quantile * noise * np.sqrt(1 + leverage), rtol=1e-9
        )
        close(result.confidence(0.9).low[k], mean - quantile * noise * np.sqrt(leverage), rtol=1e-9)


@pytest.mark.parametrize("coupling", [0.3, np.array([0.0, 1.0, 5.0])])
def test_coupled_standard_errors_equal_the_spread_of_solutions(coupling):
    """Ragged clients, one without labels, by a matrix of unit changes of labels."""
    data = [(X[k, : N - k % 2], Y[k, : N - k % 2]) for k in range(K)]
    ridge = fl.problems.SquaredL2()
    problem = from_clients(data, LeastSquares(), ridge, 0.2).weighing([1.0, 0, 1, 2, 1])
    points = RNG.normal(size=(K, 2, D))
    result = predict(GTVMin(problem, RING, coupling), points)
    models = np.asarray(GTVMin(problem, RING, coupling).solve())
    close(result.mean, np.einsum("kmp,kp->km", points, models), rtol=1e-8)
    real = np.argwhere(np.asarray(problem.weights) > 0)
    influence = []
    hat = []
    for k, n in real:
        unit = np.zeros((K, N))
        unit[k, n] = 1
        moved = np.asarray(fl.contrib.label_shift(problem, RING, coupling, unit))
        influence.append(np.einsum("kmp,kp->km", points, moved))
        hat.append([problem.features[i][j] @ moved[i] for i, j in real])
    rest = np.eye(len(real)) - np.array(hat).T
    labels = np.array([problem.targets[k][n] for k, n in real])
    noise = np.sqrt(np.sum((rest @ labels) ** 2) / np.sum(rest**2))
    close(result.noise, noise, rtol=1e-8)
    close(result.standard_error, noise * np.sqrt(np.sum(np.square(influence), axis=0)), rtol=1e-8)


@pytest.mark.parametrize("coupling", [0.0, 1.0])
def test_intervals_have_their_coverage(coupling):
    """For one true model; also the narrower intervals of coupled models."""
    truth = jnp.array([1.0, -2.0, 0.5])

    def draw(key):
        noise, new = jax.random.split(key)
        labels = X @ truth + 0.7 * jax.random.normal(noise, (K, N))
        result = predict(GTVMin(Problem(X, labels, LeastSquares()), RING, coupling), POINTS)
        return result, (POINTS @ truth)[None] + 0.7 * jax.random.normal(new, (K, len(POINTS)))

    result, new = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 1500))
    means = np.broadcast_to(np.asarray(POINTS @ truth), new.shape)
    for within, value in ((result.interval(0.8), new), (result.confidence(0.8), means)):
        covered = np.mean((within.low < value) & (value < within.high))
        assert abs(covered - 0.8) < 0.02
    close(np.mean(np.square(result.noise)), 0.49, rtol=0.02)


@pytest.mark.slow
def test_bad_input():
    coupled = GTVMin(PROBLEM, RING, 1.0)
    with pytest.raises(ValueError, match=r"features must be \[points, 3\], or of each client"):
        predict(coupled, np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"got shape \(2, 4, 3\)"):
        predict(coupled, np.ones((2, 4, 3)))
    with pytest.raises(ValueError, match="features"):
        predict(coupled, np.full((1, 3), np.nan))
    with pytest.raises(ValueError, match="where models are linear in the labels"):
        predict(GTVMin(PROBLEM, RING, 1.0, Norm()), POINTS)
    huber = fl.problems.huber(jax.random.key(0), clients=K, samples=N, dim=D)
    with pytest.raises(ValueError, match="where models are linear in the labels"):
        predict(GTVMin(huber, RING, 1.0), POINTS)
    with pytest.raises(ValueError, match="level"):
        predict(coupled, POINTS).interval(1.0)
    few = Problem(X[:, :2], Y[:, :2], LeastSquares())
    with pytest.raises(ValueError, match="no unique solution"):
        predict(GTVMin(few, RING, 0.0), POINTS)
    many = fl.problems.least_squares(jax.random.key(0), clients=900, samples=5, dim=2)
    with pytest.raises(ValueError, match="at most 4000"):
        predict(GTVMin(many, fl.graphs.ring(900), 1.0), np.eye(2))
