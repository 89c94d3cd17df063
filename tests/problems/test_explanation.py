"""Users' signals as part of a problem, (178), and the distance from them, (177)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.problems import GTVMin, LeastSquares, SquaredL2, explained, explanation_error
from tests.reference import coupled as reference

close = np.testing.assert_allclose
K = 4
M = 5
D = 3
RNG = np.random.default_rng(6)
SIZES = (4, 7, 5, 6)
DATA = [(RNG.normal(size=(n, D)), RNG.normal(size=n)) for n in SIZES]
POINTS = RNG.normal(size=(K, M, D))
SIGNAL = RNG.normal(size=(K, M))
MODELS = RNG.normal(size=(K, D))


def problem(**kwargs):
    return fl.problems.from_clients(DATA, LeastSquares(), **kwargs)


@pytest.mark.slow
def test_the_objective_is_the_printed_one():
    """Ragged clients, a regularizer and importance; signals per client and common ones."""
    before = problem(regularizer=SquaredL2(), strength=0.3).weighing([1.0, 0.0, 2.0, 0.5])
    for signal, points in ((SIGNAL, POINTS), (SIGNAL[0], POINTS[0])):
        after = explained(before, signal, points, 1.7)
        broadcast = np.broadcast_to(points, POINTS.shape), np.broadcast_to(signal, SIGNAL.shape)
        measure = [np.mean((u - x @ w) ** 2) for x, u, w in zip(*broadcast, MODELS, strict=True)]
        close(explanation_error(MODELS, signal, points), measure)
        close(after.objective(MODELS), before.objective(MODELS) + 1.7 * np.array(measure))
        gradient = jax.grad(lambda w, p=after: jnp.sum(p.objective(w)))(jnp.asarray(MODELS))
        close(after.gradient(MODELS), gradient, atol=1e-12)


@pytest.mark.slow
def test_explained_solutions_are_augmented_weighted_least_squares():
    """The NumPy loop, with Q and q of both parts."""
    adjacency = np.asarray(fl.graphs.ring(K).dense())
    rho = 0.8
    Q = np.kron(reference.laplacian(adjacency), 0.4 * np.eye(D))
    right = np.zeros((K, D))
    for k, (X, y) in enumerate(DATA):
        at = slice(k * D, (k + 1) * D)
        Q[at, at] += X.T @ X / len(y) + rho * POINTS[k].T @ POINTS[k] / M
        right[k] = X.T @ y / len(y) + rho * POINTS[k].T @ SIGNAL[k] / M
    expected = np.linalg.solve(Q, right.ravel()).reshape(K, D)
    after = explained(problem(), SIGNAL, POINTS, rho)
    close(GTVMin(after, fl.graphs.ring(K), 0.4).solve(), expected, rtol=1e-10)
    simulation = fl.Simulation(after, fl.algorithms.FedRelax(0.4), fl.graphs.ring(K))
    close(fl.run(simulation, rounds=200).model, expected, rtol=1e-9)


def test_zero_strength_keeps_the_problem():
    before = problem()
    network = fl.graphs.ring(K)
    after = explained(before, SIGNAL, POINTS, 0.0)
    close(after.objective(MODELS), before.objective(MODELS))
    close(GTVMin(after, network, 1.0).solve(), GTVMin(before, network, 1.0).solve(), rtol=1e-10)


def exercise(key, shift, strengths=(0.0, 0.1, 1.0, 10.0, 100.0)):
    """Exercise 8.2: ring, n = 10, d = 4, m = 6, alpha = 0.1; the mean squared error."""
    of_data, of_noise, of_points, of_truth = jax.random.split(key, 4)
    features = jax.random.normal(of_data, (10, 6, 4))
    truth = jax.random.normal(of_truth, (4,))
    targets = features @ truth + jax.random.normal(of_noise, (10, 6))
    points = jax.random.normal(of_points, (10, 6, 4))
    before = fl.problems.Problem(features, targets, LeastSquares())

    def error(strength):
        after = explained(before, points @ (truth + shift), points, strength)
        result = GTVMin(after, fl.graphs.ring(10), 0.1).solve()
        return jnp.mean(jnp.sum((result - truth[None]) ** 2, axis=1))

    return jnp.stack([error(strength) for strength in strengths])


@pytest.mark.thin(1, every=1)
@pytest.mark.parametrize(
    ("shift", "printed"),
    [(0.0, [0.67, 0.45, 0.19, 0.041, 0.004]), (1.0, [0.65, 0.65, 1.54, 3.00, 3.75])],
    ids=["right", "wrong"],
)
def test_a_signal_helps_if_it_is_right(shift, printed):
    keys = jax.random.split(jax.random.key(0), 200)
    result = np.asarray(jax.jit(jax.vmap(lambda key: exercise(key, shift)))(keys))
    low, high = np.quantile(result, [0.025, 0.975], axis=0)
    assert np.all((low < printed) & (printed < high))  # one draw of them
    close(result.mean(axis=0), printed, rtol=0.06)
    falls = np.diff(result.mean(axis=0)) < 0
    assert falls.all() if shift == 0 else not falls[1:].any()


def test_the_metric_is_the_measure():
    simulation = fl.Simulation(
        problem=explained(problem(), SIGNAL, POINTS, 2.0),
        network=fl.graphs.ring(K),
        algorithm=fl.algorithms.FedRelax(0.4),
        metrics=[fl.metrics.explanation(SIGNAL, POINTS)],
    )
    results = fl.run(simulation, rounds=5)
    assert results.explanation.dims == ("round", "client")
    model = np.asarray(results.model)
    close(results.explanation[-1], explanation_error(model, SIGNAL, POINTS), rtol=1e-9)
    assert fl.metrics.explanation(SIGNAL, POINTS) == fl.metrics.explanation(SIGNAL, POINTS)
    assert fl.metrics.explanation(SIGNAL, POINTS) != fl.metrics.explanation(2 * SIGNAL, POINTS)


def test_bad_input():
    valid = problem()
    with pytest.raises(ValueError, match=r"signal must be one number of each of the 5 points"):
        explained(valid, SIGNAL[:, :4], POINTS, 1.0)
    with pytest.raises(ValueError, match=r"features must be \[points, 3\], or of each client"):
        explained(valid, SIGNAL, POINTS[:, :, :2], 1.0)
    with pytest.raises(ValueError, match=r"\[4, points, 3\], got shape \(3, 5, 3\)"):
        explained(valid, SIGNAL[:3], POINTS[:3], 1.0)
    with pytest.raises(ValueError, match=r"at least one|must be an array"):
        explained(valid, np.zeros(0), np.zeros((0, 3)), 1.0)
    with pytest.raises(ValueError, match="signal must be one number of each of the 5 points"):
        fl.metrics.explanation(SIGNAL[:, :4], POINTS)
    with pytest.raises(ValueError, match="strength"):
        explained(valid, SIGNAL, POINTS, -1.0)
    with pytest.raises(ValueError, match="signal"):
        explained(valid, np.full((K, M), np.nan), POINTS, 1.0)
    huber = fl.problems.huber(jax.random.key(0), clients=K, samples=6, dim=D)
    with pytest.raises(ValueError, match="for the squared loss only, got Huber"):
        explained(huber, SIGNAL, POINTS, 1.0)
    with pytest.raises(ValueError, match="models must be"):
        explanation_error(MODELS[0], SIGNAL, POINTS)
    with pytest.raises(TypeError, match="signal of explanation must not be traced"):
        jax.jit(lambda u: fl.metrics.explanation(u, POINTS).name and u)(SIGNAL)
    metric = fl.metrics.explanation(SIGNAL[:, :2], POINTS[:, :2, :2])
    simulation = fl.Simulation(
        valid, fl.algorithms.FedRelax(0.4), fl.graphs.ring(K), metrics=[metric]
    )
    with pytest.raises(ValueError, match=r"features must be \[points, 3\]"):
        fl.run(simulation, rounds=2)
