"""Rizk's bounds: true where they are said to be, of the right order, and repaired where not."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ATC, FedAvg, ISFedAvg
from fljax.link import GraphHomomorphic, PerEdge
from fljax.theory import multiagent
from tests.reference import multiagent_bounds as theory
from tests.theory.test_multiagent import (
    EIGHT_CLIENTS,
    GRAPH,
    RIDGE,
    close,
    eight,
    make_data,
    make_problem,
)

PROBABILITIES = np.array([0.1, 0.2, 0.3, 0.4])


def test_a_batch_of_independent_draws_matches_all_outcomes():
    """Lemma 2.A, first half; the second half is a bound for any probabilities."""
    values = np.random.default_rng(0).normal(size=(4, 2))
    result = theory.batch_variance(values, PROBABILITIES, 2, variances=np.zeros(4))
    mean = values.mean(0)
    expected = 0.0
    for pair in itertools.product(range(4), repeat=2):
        estimate = np.mean([values[n] / (4 * PROBABILITIES[n]) for n in pair], axis=0)
        expected += np.prod(PROBABILITIES[list(pair)]) * ((estimate - mean) ** 2).sum()
    close(result.independent, expected)
    close(result.bound, 2 * expected)
    assert result.without < result.bound


def test_a_batch_without_replacement_matches_all_outcomes():
    values = np.random.default_rng(1).normal(size=(5, 2))
    variances = np.arange(5.0)
    even = np.full(5, 0.2)
    result = theory.batch_variance(values, even, 3, variances=variances)
    mean = values.mean(0)
    pairs = list(itertools.combinations(range(5), 3))
    expected = np.mean([((values[list(rows)].mean(0) - mean) ** 2).sum() for rows in pairs])
    # The samples' own variance: of three independent ones in each batch.
    close(result.without, expected + variances.mean() / 3)
    silent = theory.batch_variance(values, even, 3)
    gain = theory.batch_gain(3, 5)
    close(silent.without * gain, ((values - mean) ** 2).sum(axis=1).mean())
    close(silent.independent * theory.batch_gain(3, 5, replacement=True), silent.bound)
    assert theory.batch_gain(5, 5) == np.inf


@pytest.mark.parametrize("independent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradient_noise_is_within_its_bound(independent):
    """Lemma 2.1 and 2.2, at models near and far, with probabilities far from the best."""
    problem = eight()
    rng = np.random.default_rng(2)
    real = np.asarray(problem.weights) > 0
    samples = np.exp(rng.normal(size=real.shape)) * real
    samples /= samples.sum(axis=1, keepdims=True)
    clients = rng.dirichlet(np.full(8, 3.0))
    arguments = clients, samples, 2, (1, 2, 1, 2, 1, 2, 1, 2), 3, independent
    of = theory.constants(problem, *arguments)
    draws = multiagent.importance(problem, *arguments)
    best = np.asarray(multiagent.minimizer(problem))
    for distance in (0.0, 1.0, 100.0):
        away = distance * rng.normal(size=2)
        noise = float(jnp.trace(multiagent.gradient_noise(problem, draws, at=best + away)))
        assert noise <= of.model * (away @ away) + of.noise
    assert of.rate(0.99 * of.step_limit) < 1
    assert np.all(of.local_rates(0.99 * of.step_limit) < 1)
    last = 2 * of.convexity / (of.lipschitz**2 + of.model)
    assert np.isfinite(of.deviation(0.99 * last))
    assert np.isinf(of.deviation(1.01 * last))


@pytest.mark.slow
def test_the_constants_equal_the_loops():
    """(2.22)-(2.25), (2.31) and (3.25)-(3.26), client by client."""
    problem = eight()
    even = np.full(8, 1 / 8), np.asarray(problem.weights)
    of = theory.constants(problem, *even, 3, 2, (1, 2, 3, 4, 1, 2, 3, 4), independent=True)
    best = np.asarray(multiagent.minimizer(problem))
    minimizers = np.asarray(multiagent.local_minimizers(problem))
    curvatures = [2 * (np.linalg.norm(X, axis=1) ** 2 + RIDGE) for X, _ in EIGHT_CLIENTS]
    square = max(c.max() for c in curvatures) ** 2
    close(of.lipschitz**2, square)
    close(
        of.convexity,
        min(
            np.linalg.eigvalsh(2 * X.T @ X / len(y) + 2 * RIDGE * np.eye(2))[0]
            for X, y in EIGHT_CLIENTS
        ),
    )
    model = 3 * square / 3
    noise = 0.0
    loose = np.zeros(8)
    for k, (X, y) in enumerate(EIGHT_CLIENTS):
        steps = (1, 2, 3, 4)[k % 4]
        size = len(y)

        def norms(w, X=X, y=y):
            return (2 * X * (X @ w - y)[:, None] + 2 * RIDGE * w) ** 2

        gradient = np.mean(2 * X * (X @ best - y)[:, None] + 2 * RIDGE * best, axis=0)
        spread = size * norms(best).sum() / size**2
        beta = 3 * square / (2 * steps) * 2
        sigma = 6 / (2 * steps) * spread
        close(of.client_noise[k], sigma)
        close(of.local_noise[k], 3 / 2 * size * norms(minimizers[k]).sum() / size**2)
        close(of.local_model[k], steps * beta)
        model += (beta + 3 * square) / (3 * 8)
        noise += (sigma + (3 + 6 / (2 * steps)) * gradient @ gradient) / (3 * 8)
        loose[k] = (12 / steps + 3) * spread
    close([of.model, of.noise], [model, noise])
    uneven = np.linspace(0.05, 0.2, 8)
    of_uneven = theory.constants(problem, uneven, even[1], 3, 2, (1, 2, 3, 4, 1, 2, 3, 4))
    for name in ("local_model", "local_noise"):
        close(getattr(of_uneven, name) * (8 * uneven) ** 2, getattr(of, name))
    servers = fl.federation.Federation([0, 0, 0, 1, 1, 1, 2, 2], fl.graphs.path(3))
    result = theory.server_noise(problem, servers, 2, (1, 2, 3, 4, 1, 2, 3, 4))
    close(result.noise, [loose[:3].mean() / 2, loose[3:6].mean() / 2, loose[6:].mean() / 2])
    close(result.model[2], 6 * square / 2 * (1 + (1 / 3 + 1 / 4) / 2))


@pytest.mark.slow
def test_the_optimal_probabilities_minimize_the_bound():
    """T4, Lemmas 2.6 and 2.7: nothing near or far on the simplex lowers (2.23)."""
    problem = eight()
    algorithm = ISFedAvg(0.1, 2, 2, 3, "optimal", floor=0.0, cap=False)
    state = algorithm.init(problem, None)
    clients, samples = algorithm.probabilities(problem, state)

    @jax.jit
    def noise(clients, samples):
        return theory.constants(problem, clients, samples, 2, 2, 3).noise

    least = float(noise(clients, samples))
    rng = np.random.default_rng(0)
    for size in (0.01, 0.1, 1.0):
        for move in ("clients", "samples", "both"):
            p = np.array(clients)
            q = np.array(samples)
            if move != "samples":
                p *= np.exp(size * rng.normal(size=p.shape))
            if move != "clients":
                q *= np.exp(size * rng.normal(size=q.shape))
            moved = noise(p / p.sum(), q / q.sum(axis=1, keepdims=True))
            assert float(moved) > least * (1 + 1e-7)


@pytest.mark.slow
def test_deviations_are_within_their_bound_and_far_below():
    """Lemma 2.2, one step a client, single samples drawn again and again."""
    problem = make_problem(make_data((6,) * 8, 2, seed=1))
    batches = fl.batches.Uniform(1, replacement=True)
    even = np.full(8, 1 / 8), np.full((8, 6), 1 / 6)
    of = theory.constants(problem, *even, 2)
    for share in (0.1, 0.5):
        step = share * float(of.step_limit)
        algorithm = FedAvg(step, 2, weighting="equal", batches=batches, local_steps=1)
        exact = multiagent.steady_state(fl.Simulation(problem, algorithm)).centroid
        assert 10 * exact < of.deviation(step)


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise", [None, pytest.param(PerEdge(0.1), marks=pytest.mark.slow), GraphHomomorphic(0.1)]
)
def test_nodes_disagree_within_the_repaired_bound(noise):
    """Lemma 3.3, full gradients; without noise (3.44) would have them agree to the third order."""
    problem = eight()
    over = GRAPH.mixing()
    simulation = fl.Simulation(problem, ATC(0.01), GRAPH, noise=noise)
    exact = float(multiagent.steady_state(simulation).disagreement)
    at = np.broadcast_to(multiagent.minimizer(problem), (8, 2))
    slopes = (np.asarray(problem.gradient(jnp.asarray(at))) ** 2).sum(axis=1)
    added = np.zeros(8)
    if noise is not None:
        added = 2 * np.diag(multiagent.noise_covariance(over, noise))
    printed = theory.disagreement_bound(over, 0.01, np.zeros(8), added)
    repaired = theory.disagreement_bound(over, 0.01, np.zeros(8), added, slopes)
    assert exact < repaired
    if noise is None:
        assert printed == 0
        half = fl.Simulation(problem, ATC(0.005), GRAPH)
        ratio = exact / float(multiagent.steady_state(half).disagreement)
        np.testing.assert_allclose(np.log2(ratio), 2, atol=0.1)
