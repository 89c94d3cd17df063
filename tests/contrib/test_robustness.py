"""How far neighbors move a node: (173) against its bound (174), and the optimality (176)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedRelax
from fljax.contrib import robustness as theory
from fljax.problems import LeastSquares, Norm, Problem
from fljax.theory import network_rates
from tests.reference import coupled as reference
from tests.theory.test_networks import INSTANCES, D, K, close, graph, instance

RNG = np.random.default_rng(2)


@jax.jit
@jax.vmap
def ratios(features, targets, weights, coupling, models, perturbed):
    problem = Problem(features, targets, LeastSquares())
    network = graph(weights)
    simulation = fl.Simulation(problem, FedRelax(coupling), network)
    result = theory.robustness_ratio(simulation, models, perturbed)
    return result, network_rates.fedrelax_factors(problem, network, coupling)


def test_the_ratio_is_below_its_bound_and_reaches_it():
    """T27, over random instances; the NumPy loop of FedRelax has the same ratio."""
    drawn = [instance(seed)[:4] for seed in range(INSTANCES)]
    points = RNG.normal(size=(2, INSTANCES, K, D))
    stacked = [np.stack(arrays) for arrays in zip(*drawn, strict=True)]
    result, bound = (np.asarray(a) for a in ratios(*stacked, *points))
    assert np.all(result <= bound * (1 + 1e-9))
    assert np.max(result / bound) > 0.999
    for n in range(20):
        X, y, A, coupling = drawn[n]
        first, second = (reference.fedrelax(X, y, A, coupling, p[n]) for p in points)
        change = A @ (points[1, n] - points[0, n]) / A.sum(axis=1)[:, None]
        loop = np.linalg.norm(second - first, axis=1) / np.linalg.norm(change, axis=1)
        np.testing.assert_allclose(result[n], loop, rtol=1e-8)
    # Along the direction in which a node's data say least, the bound is the ratio.
    X, y, A, coupling = drawn[0]
    _, vectors = np.linalg.eigh(reference.halves(X)[0])
    moved = np.tile(vectors[:, 0], (K, 1))
    tight, most = ratios(*(a[:1] for a in stacked), np.zeros((1, K, D)), moved[None])
    close(tight[0, 0], most[0, 0])


@pytest.mark.slow
def test_a_norm_bounds_what_one_neighbor_does():
    X, y, _, coupling, _, _ = instance(1)
    problem = Problem(X, y, LeastSquares())
    network = fl.graphs.complete(K)

    def ratio(size, **penalty):
        models = jnp.asarray(RNG.normal(size=(K, D)))
        simulation = fl.Simulation(problem, FedRelax(coupling, **penalty), network)
        return np.asarray(
            theory.robustness_ratio(simulation, models, models.at[0].add(size))[1:]
        ).max()

    assert ratio(1e6, penalty=Norm()) < 1e-4
    assert ratio(1e6) > 0.1


@pytest.mark.slow
def test_receivers_without_new_messages_have_no_ratio():
    problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2)
    simulation = fl.Simulation(problem, FedRelax(0.5), fl.graphs.ring(5))
    result = theory.robustness_ratio(simulation, np.zeros((5, 2)), np.eye(5, 2))
    assert np.isnan(result).tolist() == [False, False, False, True, False]


@pytest.mark.slow
def test_the_residual_is_the_gradient_of_the_distance():
    messages = RNG.normal(size=(8, 3))
    weights = RNG.uniform(0.5, 2, 8)

    def distance(v):
        return jnp.sum(weights * jnp.linalg.norm(messages - v[None], axis=1)) / weights.sum()

    for point in RNG.normal(size=(5, 3)):
        gradient_norm = np.linalg.norm(jax.grad(distance)(jnp.asarray(point)))
        close(theory.median_residual(point, messages, weights), gradient_norm)
    # A message that outweighs the others is their median, and a lighter one is not.
    heavy = weights * np.where(np.arange(8) == 2, 100, 1)
    assert theory.median_residual(messages[2], messages, heavy) == 0
    assert theory.median_residual(messages[2] * (1 + 1e-15), messages, heavy) == 0
    assert theory.median_residual(messages[2], messages, weights * (np.arange(8) != 2)) > 0.01


def test_bad_input():
    problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2)
    simulation = fl.Simulation(problem, FedRelax(0.5), fl.graphs.ring(5))
    with pytest.raises(
        ValueError, match=r"perturbed must be of shape \(5, 2\), got shape \(5, 3\)"
    ):
        theory.robustness_ratio(simulation, np.zeros((5, 2)), np.zeros((5, 3)))
    alone = fl.Simulation(problem, fl.algorithms.FedAvg(0.1))
    with pytest.raises(ValueError, match="give the simulation a graph as network="):
        theory.robustness_ratio(alone, np.zeros((5, 2)), np.ones((5, 2)))
    messages = np.zeros((4, 2))
    with pytest.raises(ValueError, match="point must be of the messages' 2 numbers"):
        theory.median_residual(np.zeros(3), messages)
    with pytest.raises(ValueError, match="weights must be one for each of the 4 messages"):
        theory.median_residual(np.zeros(2), messages, np.ones(3))
    with pytest.raises(ValueError, match="weights"):
        theory.median_residual(np.zeros(2), messages, -np.ones(4))
    with pytest.raises(ValueError, match="messages must be"):
        theory.median_residual(np.zeros(2), np.zeros((0, 2)))
