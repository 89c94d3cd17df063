"""FedRelax with any penalty, (170): against minimizers, medians, and through the link's stages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fljax as fl
from fljax.algorithms import FedRelax
from fljax.algorithms.peers.best_response import best_response
from fljax.contrib.robustness import median_residual
from fljax.problems import (
    Absolute,
    Blocks,
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    Mixture,
    Norm,
    PNorm,
    Problem,
    SquaredL2,
    SquaredNorm,
)

close = np.testing.assert_allclose
K = 4
N = 7
M = 9
D = 3
RNG = np.random.default_rng(5)
X = RNG.normal(size=(K, N, D))
Y = RNG.normal(size=(K, N))
MESSAGES = RNG.normal(size=(K, M, D)) * 2
STRENGTHS = RNG.uniform(0.05, 0.4, (K, M)) * (RNG.random((K, M)) < 0.8)
PROBLEM = Problem(X, Y, LeastSquares())
UNLABELED = PROBLEM.weighing([1.0, 0.0, 0.0, 0.0])


def minimized(problem, penalty, k, start):
    """The objective at a point and at the best that a derivative-free search finds around it."""

    def objective(w):
        local = float(problem.objective(jnp.broadcast_to(jnp.asarray(w), (K, D)))[k])
        distance = penalty.value(jnp.asarray(MESSAGES[k] - w))
        return local + float(jnp.sum(STRENGTHS[k] * distance))

    options = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 400}
    result = scipy.optimize.minimize(objective, start, method="Nelder-Mead", options=options)
    return objective(start), result.fun


@pytest.mark.thin(4, every=1)
@pytest.mark.parametrize(
    "penalty",
    [
        Norm(),
        Absolute(),
        PNorm(3.0),
        PNorm(np.inf),
        Mixture([0.5, 2.0], (SquaredNorm(), Norm())),
        Blocks((2, 1), (Norm(), None)),
    ],
    ids=lambda penalty: f"{type(penalty).__name__}{getattr(penalty, 'p', '')}",
)
@pytest.mark.thin(1, every=1)
def test_the_best_response_minimizes_any_penalty(penalty):
    result = np.asarray(best_response(PROBLEM, penalty, MESSAGES, STRENGTHS, 400))
    for k in range(2):
        value, best = minimized(PROBLEM, penalty, k, result[k])
        assert value <= best + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "regularizer"),
    [(Huber(0.5), SquaredL2()), (LeastAbsoluteDeviation(), SquaredL2()), (Logistic(), SquaredL2())],
    ids=["Huber", "LAD", "logistic"],
)
def test_the_best_response_minimizes_any_loss(loss, regularizer):
    problem = Problem(X, np.sign(Y), loss, regularizer, 0.4)
    result = np.asarray(best_response(problem, Norm(), MESSAGES, STRENGTHS, 400))
    for k in range(2):
        value, best = minimized(problem, Norm(), k, result[k])
        assert value <= best + 1e-6


def test_the_squared_norm_is_the_closed_form():
    result = best_response(PROBLEM, SquaredNorm(), MESSAGES, STRENGTHS, 400)
    for k in range(K):
        total = STRENGTHS[k].sum()
        left = X[k].T @ X[k] / N + total * np.eye(D)
        right = X[k].T @ Y[k] / N + STRENGTHS[k] @ MESSAGES[k]
        close(result[k], np.linalg.solve(left, right), rtol=1e-10)


@pytest.mark.slow
def test_without_a_loss_the_best_response_is_a_median():
    """(175), (176): of one mechanism with the aggregators."""
    result = best_response(UNLABELED, Norm(), MESSAGES, STRENGTHS, 300)
    weighed = fl.aggregation.GeometricMedian(3000, 1e-12)
    close(result[1:], weighed.combine(MESSAGES, STRENGTHS, np.zeros((K, D)))[1:], atol=1e-9)
    for k in range(1, K):
        assert median_residual(result[k], MESSAGES[k], STRENGTHS[k]) < 1e-8
        assert median_residual(result[k] + 0.01, MESSAGES[k], STRENGTHS[k]) > 1e-3
    unit = np.ones((K, M))
    result = best_response(UNLABELED, Absolute(), MESSAGES, unit, 2000)
    close(result[1:], np.median(MESSAGES, axis=1)[1:], atol=1e-6)
    # At a corner of the distance, which is one of the messages.
    twice = MESSAGES.copy()
    twice[:, 4:] = twice[:, :1]
    result = best_response(UNLABELED, Norm(), twice, unit, 2000)
    close(result[1:], twice[1:, 0], atol=1e-6)
    assert median_residual(twice[1, 0], twice[1]) == 0


@pytest.mark.slow
def test_distant_and_nan_messages_cost_nothing():
    far = MESSAGES.copy()
    far[:, 0] = 1e6 * np.array([1.0, 2.0, 2.0])
    further = far.copy()
    further[:, 0] *= 1e3
    strengths = np.full((K, M), 0.2)
    result = best_response(PROBLEM, Norm(), far, strengths, 300)
    close(best_response(PROBLEM, Norm(), further, strengths, 300), result, atol=1e-5)
    # In single precision a difference of such numbers would keep no digit of a model.
    with jax.enable_x64(False):
        single = Problem(np.float32(X), np.float32(Y), LeastSquares())
        coarse = best_response(single, Norm(), np.float32(further), np.float32(strengths), 300)
    close(coarse, result, atol=1e-4)
    for broken in (np.nan, np.inf):
        lost = MESSAGES.copy()
        lost[:, 0] = broken
        without = best_response(PROBLEM, Norm(), MESSAGES[:, 1:], STRENGTHS[:, 1:], 300)
        close(best_response(PROBLEM, Norm(), lost, STRENGTHS, 300), without, atol=1e-12)


def run(algorithm, rounds=30, **parts):
    parts = {"problem": PROBLEM, "network": fl.graphs.complete(K)} | parts
    simulation = fl.Simulation(algorithm=algorithm, **parts)
    return np.asarray(fl.run(simulation, rounds=rounds).model)


@pytest.mark.slow
def test_a_run_is_the_same_in_every_form_of_the_graph():
    """Also with overflow: a node with more neighbors than slots."""
    problem = fl.problems.least_squares(jax.random.key(0), clients=40, samples=9, dim=2)
    edges = [(0, k) for k in range(1, 40)] + [(k, k + 1) for k in range(1, 39)]
    padded, dense = (fl.graphs.from_edges(40, edges, form=form) for form in ("padded", "dense"))
    assert padded.overflow is not None
    algorithm = FedRelax(0.1, penalty=Norm())
    close(*(run(algorithm, 5, problem=problem, network=g) for g in (dense, padded)), atol=1e-10)


@pytest.mark.slow
def test_a_node_without_neighbors_learns_alone():
    graph = fl.graphs.from_edges(K, [(0, 1), (1, 2)], allow_disconnected=True)
    results = run(FedRelax(0.5, penalty=Norm()), 3, network=graph, allow_disconnected=True)
    close(results[3], np.linalg.lstsq(X[3], Y[3])[0], rtol=1e-9)
    # And without labels either it keeps the model that it starts with.
    parts = {"problem": UNLABELED, "network": graph, "allow_disconnected": True}
    assert np.all(run(FedRelax(0.5, penalty=Norm()), 3, **parts)[3] == 0)


@pytest.mark.parametrize(
    "more",
    [
        {"participation": fl.participation.Bernoulli(0.7), "delays": fl.link.Geometric(0.3, 3)},
        {"noise": fl.link.PerEdge(0.1)},
    ],
    ids=["late and absent", "noise"],
)
def test_lost_messages_are_handled_as_for_the_mean(more):
    """With the squared norm by ADMM (a mixture of one) and in closed form."""
    parts = {
        "losses": fl.link.Independent(0.4),
        "attack": fl.attacks.SignFlip(np.arange(K) == 0),
        **more,
    }
    closed = run(FedRelax(0.4), 6, **parts)
    close(run(FedRelax(0.4, 400, Mixture([1.0], (SquaredNorm(),))), 6, **parts), closed, atol=1e-8)


@pytest.mark.slow
def test_breakdown_is_at_half_of_the_neighbors():
    """T28: bounded for 5 of 11 corrupted, taken over by 6; the mean is by one."""
    points = RNG.normal(size=(12, 2))
    data = np.broadcast_to(np.eye(2) * np.sqrt(2), (12, 2, 2))
    problem = Problem(data, np.sqrt(2) * points, LeastSquares()).weighing([0.0] + 11 * [1.0])

    def center(penalty, corrupted):
        attack = None
        if corrupted:
            attack = fl.attacks.ConstantMessage(np.arange(12) > 11 - corrupted, value=1e6)
        algorithm = FedRelax(1e-6, penalty=penalty)  # so that the others stay where they are
        parts = {"problem": problem, "network": fl.graphs.star(12), "attack": attack}
        return np.linalg.norm(run(algorithm, 3, **parts)[0])

    sizes = [center(Norm(), corrupted) for corrupted in (0, 3, 5, 6)]
    assert max(sizes[:3]) < 5
    assert sizes[3] > 1e5
    assert center(SquaredNorm(), 1) > 1e5


@pytest.mark.slow
def test_the_objective_falls_with_the_penalty_that_is_asked_for():
    graph = fl.graphs.path(K)
    coupled = fl.problems.GTVMin(PROBLEM, graph, 0.3, Norm())
    close(FedRelax(0.3, penalty=Norm()).optimum(PROBLEM, graph), coupled.solve(), atol=1e-9)
    start, end = (
        coupled.objective(run(FedRelax(0.3, penalty=Norm()), t, network=graph)) for t in (1, 40)
    )
    assert coupled.objective(coupled.solve()) <= end <= start


def test_bad_input():
    with pytest.raises(TypeError, match="penalty must be"):
        FedRelax(1.0, penalty=2.0)
    with pytest.raises(ValueError, match="coupling for each parameter needs the squared penalty"):
        FedRelax(np.ones(D), penalty=Norm())
    with pytest.raises(ValueError, match="1 \\+ 1 = 2 parameters, but a model has 3"):
        run(FedRelax(1.0, penalty=Blocks((1, 1), (Norm(), None))))
    with pytest.raises(ValueError, match="otherwise than by a mean; leave out aggregation="):
        run(FedRelax(1.0, penalty=Norm()), aggregation=fl.aggregation.Median())
    with pytest.raises(ValueError, match="weighted means only; take PerMessage or PerEdge"):
        run(FedRelax(1.0, penalty=Norm()), noise=fl.link.GraphHomomorphic(0.1))
    with pytest.raises(ValueError, match="cancels only in sums with the network's own weights"):
        run(FedRelax(1.0, penalty=Norm()), noise=fl.link.LocalGraphHomomorphic(0.1))
    few = Problem(X[:, :2], Y[:, :2], LeastSquares())
    with pytest.raises(ValueError, match="node 0 has 2 samples for 3 features"):
        run(FedRelax(0.0, penalty=Norm()), problem=few)
