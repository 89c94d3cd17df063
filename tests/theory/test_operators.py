"""Operators on models: proofs by pairs and their limits, and rounds of algorithms as maps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ATC, FedAvg, FedGD, FedRelax
from fljax.theory import network_rates as rates
from fljax.theory import operators as theory
from tests.reference import coupled as reference
from tests.theory.test_network_rates import NETWORK, PROBLEM, WEIGHTS, X, Y
from tests.theory.test_networks import D, K, close

KEY = jax.random.key(0)
COUPLING = 2.0
EXTREMES = rates.extremes(PROBLEM, NETWORK, COUPLING)
SOLUTION = reference.gtvmin(X, Y, WEIGHTS, COUPLING)


def gradient_step(share, singular=False):
    """Of ``share / lambda_max``, on the quadratic of the instance, or without its least one."""
    Q, q = reference.system(X, Y, WEIGHTS, COUPLING)
    values, vectors = np.linalg.eigh(Q)
    if singular:
        Q = Q - values[0] * np.outer(vectors[:, 0], vectors[:, 0])
    return jax.tree_util.Partial(descent_step, Q, q.ravel(), share / values[-1])


def descent_step(Q, q, step, models):
    return models - step * (2 * jnp.asarray(Q) @ models.ravel() + q).reshape(models.shape)


def ratio_of_pair(operator, violation, firmly=False):
    """The quotient of the pair, by NumPy."""
    pair = np.asarray(violation.one), np.asarray(violation.other)
    images = [np.asarray(operator(jnp.asarray(point))) for point in pair]
    if firmly:
        images = [2 * image - point for image, point in zip(images, pair, strict=True)]
    return np.linalg.norm(images[0] - images[1]) / np.linalg.norm(pair[0] - pair[1])


@pytest.mark.slow
def test_a_round_is_the_operator_of_the_equations():
    """(110), (123), (132) and one round of averaging, for any models."""
    models = np.random.default_rng(0).normal(size=(K, D))
    Q, q = reference.system(X, Y, WEIGHTS, COUPLING)
    step = 0.01
    expected = models - step * (2 * Q @ models.ravel()).reshape(K, D) - step * q
    simulation = fl.Simulation(PROBLEM, FedGD(COUPLING, step), NETWORK, metrics="normalized_error")
    close(theory.operator(simulation)(models), expected)
    relaxed = theory.operator(fl.Simulation(PROBLEM, FedRelax(COUPLING), NETWORK))
    close(relaxed(models), reference.fedrelax(X, Y, WEIGHTS, COUPLING, models))
    close(relaxed(SOLUTION), SOLUTION)
    with pytest.raises(ValueError, match=r"models must be of shape \(6, 2\), got shape \(2,\)"):
        relaxed(models[0])
    averaged = theory.operator(fl.Simulation(PROBLEM, FedAvg(0.1, local_steps=1)))
    mean = models.mean(axis=0)
    slopes = [2 * x.T @ (x @ mean - y) / len(y) for x, y in zip(X, Y, strict=True)]
    close(averaged(models), np.broadcast_to(mean - 0.1 * np.mean(slopes, axis=0), (K, D)))


@pytest.mark.slow
def test_factors_of_rounds_are_the_predicted_ones():
    """The factor that pairs show is that of the spectrum for FedGD, below (133) for FedRelax."""
    step = float(EXTREMES.step_limit) / 2
    round_of = theory.operator(fl.Simulation(PROBLEM, FedGD(COUPLING, step), NETWORK))
    factor = float(EXTREMES.factor(step))
    at = jnp.asarray(SOLUTION)
    result = theory.lipschitz(round_of, at, KEY, pairs=8)
    assert 0.995 * factor < result.factor <= factor * (1 + 1e-9)
    np.testing.assert_allclose(ratio_of_pair(round_of, result), result.factor, rtol=1e-9)
    assert not result.violated
    assert not theory.contractive(round_of, factor * (1 + 1e-9), at, KEY, pairs=8).violated
    assert theory.contractive(round_of, 0.99 * factor, at, KEY, pairs=8).violated
    settled = theory.fixed_point(round_of, jnp.zeros((K, D)))
    assert settled.converged
    np.testing.assert_allclose(settled.models, SOLUTION, atol=1e-10)
    relaxed = theory.operator(fl.Simulation(PROBLEM, FedRelax(COUPLING), NETWORK))
    bound = float(rates.fedrelax_factors(PROBLEM, NETWORK, COUPLING).max())
    result = theory.lipschitz(relaxed, at, KEY, pairs=8, norm="block")
    assert rates.fedrelax_rate(PROBLEM, NETWORK, COUPLING) * 0.99 < result.factor <= bound
    settled = theory.fixed_point(relaxed, jnp.zeros((K, D)), tolerance=1e-9)
    rate = rates.fedrelax_rate(PROBLEM, NETWORK, COUPLING)
    np.testing.assert_allclose(settled.factor, rate, rtol=0.01)


@pytest.mark.slow
def test_gradient_steps_equal_their_definition():
    """Section 4.7, T35: firmly non-expansive to 1 / (2 lambda_max), singular or not."""
    at = jnp.zeros((K, D))
    for share, firmly, plainly in ((0.5, True, True), (0.6, False, True), (1.05, False, False)):
        for singular in (False, True):
            operator = gradient_step(share, singular)
            firm = theory.firmly_non_expansive(operator, at, KEY, pairs=4)
            assert bool(firm.violated) != firmly
            plain = theory.contractive(operator, 1.0, at, KEY, pairs=4)
            assert bool(plain.violated) != plainly
            if not firmly:
                assert ratio_of_pair(operator, firm, firmly=True) > 1 + 1e-6
            if not plainly:
                assert ratio_of_pair(operator, plain) > 1 + 1e-6
    kappa = float(1 - EXTREMES.smallest / EXTREMES.largest)  # section 4.7
    operator = gradient_step(0.5)
    assert not theory.contractive(operator, kappa + 1e-9, at, KEY, pairs=4).violated
    assert theory.contractive(gradient_step(0.5, singular=True), kappa, at, KEY, pairs=4).violated


def test_rounding_does_not_count_as_a_violation():
    """An isometry, far from zero, with close pairs; a real excess is detected."""
    rotation = np.array([[0.6, -0.8], [0.8, 0.6]])
    far = jnp.full((3, 2), 1e6)
    for excess, violated in ((0.0, False), (0.01, True)):
        operator = jax.tree_util.Partial(jnp.matmul, b=(1 + excess) * rotation)
        result = theory.contractive(operator, 1.0, far, KEY, 1e-3, 16)
        assert bool(result.violated) == violated


@pytest.mark.slow
def test_the_norm_matters():
    """Averaging over one's neighbors moves the farthest no farther, and the sum of squares may."""
    star = fl.graphs.star(6)

    def operator(models):
        return star.mixing("neighbors")(models)

    at = jnp.zeros((6, 2))
    assert not theory.contractive(operator, 1.0, at, KEY, pairs=8, norm="block").violated
    euclidean = theory.contractive(operator, 1.0, at, KEY, pairs=8)
    assert euclidean.violated
    assert ratio_of_pair(operator, euclidean) > 1.1


def test_repetition_stops_where_it_must():
    result = theory.fixed_point(lambda models: 2 * models + 1, jnp.zeros((2, 1)))
    assert not result.converged
    assert jnp.all(result.models > 1e100)
    assert result.rounds < 3000
    result = theory.fixed_point(lambda models: -models, jnp.ones((2, 1)), most=50)
    assert not result.converged
    assert int(result.rounds) == 50
    result = theory.fixed_point(lambda models: 0 * models, jnp.ones((2, 1)))
    assert result.converged
    close(result.models, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: theory.lipschitz(bad, jnp.zeros((3, 2)), KEY),
        lambda bad: theory.fixed_point(bad, jnp.zeros((3, 2))),
    ],
)
def test_an_operator_returns_models(call):
    with pytest.raises(ValueError, match=r"models of the shape \(3, 2\) .*, got shape \(2,\)"):
        call(lambda models: models[0])


@pytest.mark.slow
def test_an_operator_of_a_strategy_is_its_round():
    simulation = fl.Simulation(PROBLEM, ATC(0.05), NETWORK)
    round_of = theory.operator(simulation)
    models = jnp.zeros((K, D))
    for _ in range(3):
        models = round_of(models)
    close(models, fl.run(simulation, rounds=3).model)
