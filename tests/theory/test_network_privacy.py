"""What coupled models tell of one label: against training again, and steps taken twice."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.privacy import accounting
from fljax.problems import GTVMin, LeastSquares, Problem
from fljax.theory.network_privacy import label_sensitivity, sharing_noise

K, N, D = 5, 6, 2


def instance(seed, ridge=0.0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(K, N, D)), rng.normal(size=(K, N))
    sizes = rng.integers(2, N + 1, K)
    weights = (np.arange(N) < sizes[:, None]) / sizes[:, None]
    graph = fl.graphs.erdos_renyi(jax.random.key(seed), K, 0.7)
    regularizer = fl.problems.SquaredL2() if ridge else fl.problems.NoRegularizer()
    problem = Problem(x, y, LeastSquares(), regularizer, ridge, weights)
    return problem, graph, 10 ** rng.uniform(-1, 1)


def relabeled(problem, client, sample, change):
    targets = np.asarray(problem.targets).copy()
    targets[client, sample] += change
    return dataclasses.replace(problem, targets=targets)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_the_quotient_is_that_of_training_again(seed, ridge):
    problem, graph, coupling = instance(seed, ridge)
    result = np.asarray(label_sensitivity(problem, graph, coupling))
    solve = lambda one: np.asarray(GTVMin(one, graph, coupling).closed_form())  # noqa: E731
    before = solve(problem)
    for client, sample, change in ((0, 0, 1.0), (2, 1, -0.3), (4, 0, 100.0)):
        moved = solve(relabeled(problem, client, sample, change)) - before
        assert result[client, sample] == pytest.approx(
            np.linalg.norm(moved) / abs(change), rel=1e-8
        )
    assert np.all(result[np.asarray(problem.weights) == 0] == 0)


def test_the_quotient_is_bounded_as_derived():
    problem, graph, coupling = instance(0)
    smallest = fl.theory.network_rates.extremes(problem, graph, coupling).smallest
    norms = np.linalg.norm(np.asarray(problem.features), axis=2)
    bound = np.asarray(problem.weights) * norms / float(smallest)
    assert np.all(label_sensitivity(problem, graph, coupling) <= bound + 1e-12)


def test_the_quotient_is_swept_under_vmap():
    problem, graph, _ = instance(1)
    couplings = jnp.array([0.1, 1.0, 10.0])
    result = jax.vmap(lambda coupling: label_sensitivity(problem, graph, coupling))(couplings)
    for one, coupling in zip(result, couplings, strict=True):
        np.testing.assert_allclose(one, label_sensitivity(problem, graph, coupling), rtol=1e-9)


def messages(problem, graph, coupling, step_size, heard, shared):
    """``[T, K, D]``, before noise, of clients that hear what is given: (104), (190), by hand.

    They go on from their own models, or from what they ``shared``.
    """
    x, y = np.asarray(problem.features), np.asarray(problem.targets)
    weights, adjacency = np.asarray(problem.weights), np.asarray(graph.adjacency)
    own, said = np.zeros((K, D)), []
    for t, inbox in enumerate(heard):
        rest = np.einsum("knd,kd->kn", x, own) - y
        slope = 2 * np.einsum("kn,kn,knd->kd", weights, rest, x)
        pull = adjacency.sum(1)[:, None] * own - adjacency @ inbox
        said.append(own - step_size * (slope + 2 * coupling * pull))
        own = said[-1] if shared is None else shared[t]
    return np.array(said)


@pytest.mark.parametrize("keeps", [True, False])
def test_messages_move_by_their_sensitivity(keeps):
    rounds, step_size, change = 6, 0.05, 0.7
    problem, graph, coupling = instance(2)
    result = sharing_noise(problem, graph, coupling, step_size, rounds, change, 1.0, 1e-5, keeps)
    heard, shared = np.random.default_rng(0).normal(size=(2, rounds, K, D))
    given = (graph, coupling, step_size, heard, None if keeps else shared)
    said = messages(problem, *given)
    largest = np.zeros((K, rounds))
    for client in range(K):
        for sample in np.flatnonzero(np.asarray(problem.weights)[client]):
            moved = said - messages(relabeled(problem, client, sample, change), *given)
            assert np.all(np.delete(moved, client, axis=1) == 0)
            size = np.linalg.norm(moved[:, client], axis=1)
            largest[client] = np.maximum(largest[client], size)
    np.testing.assert_allclose(result.sensitivity, largest, rtol=1e-10)


@pytest.mark.parametrize("keeps", [True, False])
def test_the_noise_spends_the_budget_exactly(keeps):
    problem, graph, coupling = instance(3)
    result = sharing_noise(problem, graph, coupling, 0.05, 20, 1.0, 2.0, 1e-6, keeps)
    rho = np.sum(np.asarray(result.sensitivity) ** 2, axis=1) / (2 * np.asarray(result.sigma) ** 2)
    np.testing.assert_allclose(accounting.zcdp_epsilon(rho, 1e-6, "gaussian"), 2.0, rtol=1e-6)


@pytest.mark.slow
def test_more_rounds_need_more_noise_and_coupling_less_if_a_model_is_kept():
    problem, graph, _ = instance(4)

    def sigma(coupling, rounds, keeps):
        result = sharing_noise(problem, graph, coupling, 0.02, rounds, 1.0, 1.0, 1e-5, keeps)
        return np.asarray(result.sigma)

    assert np.all(sigma(1.0, 40, True) > sigma(1.0, 10, True))
    assert np.all(sigma(5.0, 40, True) < sigma(0.1, 40, True))
    np.testing.assert_allclose(sigma(1.0, 40, False), 2 * sigma(1.0, 10, False))
    np.testing.assert_allclose(sigma(5.0, 40, False), sigma(0.1, 40, False))
    np.testing.assert_allclose(sigma(1.0, 1, True), sigma(1.0, 1, False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"change": 0.0}, "change must be finite and > 0"),
        ({"step_size": -1.0}, "step_size must be finite and > 0"),
        ({"epsilon": 0.0}, "epsilon must be finite and > 0"),
        ({"coupling": -1.0}, "coupling must be finite and >= 0"),
        ({"network": fl.graphs.path(3)}, "the network has 3 nodes, the problem 5"),
    ],
)
def test_bad_input(change, message):
    problem, graph, _ = instance(0)
    right = {
        "problem": problem,
        "network": graph,
        "coupling": 1.0,
        "step_size": 0.1,
        "rounds": 3,
        "change": 1.0,
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    with pytest.raises(ValueError, match=message):
        sharing_noise(**(right | change))
    kinds = dataclasses.replace(problem, loss=fl.problems.Logistic(), targets=np.ones((K, N)))
    for function in (label_sensitivity, lambda *a: sharing_noise(*a, 0.1, 3, 1.0, 1.0, 1e-5)):
        with pytest.raises(ValueError, match="for a squared loss"):
            function(kinds, graph, 1.0)
