"""Gradient descent: Algorithm 2 and its rules, against plain loops and proven rates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.graphs import agreed
from fljax.optimization.descent import backtracking, minimize, optimal_step, rounds_needed
from tests.reference import jung_agnostic as loops

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(3, 3))
Q = ROOT @ ROOT.T + 0.3 * np.eye(3)
q = RNG.normal(size=3)
BEST = np.linalg.solve(2 * Q, -q)
EIGENVALUES = np.linalg.eigvalsh(Q)
EPSILON = 0.05 * RNG.normal(size=(9, 3))


def objective(w):
    return w @ jnp.asarray(Q) @ w + jnp.asarray(q) @ w


def value(w):
    return w @ Q @ w + q @ w


def gradient(w):
    return 2 * Q @ w + q


def test_steps_equal_the_loop():
    """(77), (87), (91), with a schedule, an error of every step and a ball to stay in."""
    result = minimize(
        objective,
        jnp.ones(3),
        fl.schedules.PowerDecay(0.1, 0.5),
        9,
        perturbation=lambda n, w: jnp.asarray(EPSILON)[n - 1],
        projection=functools.partial(optax.projections.projection_l2_ball, scale=0.4),
    )
    loop = loops.descent(
        gradient,
        np.ones(3),
        lambda n: 0.1 * n**-0.5,
        9,
        noise=lambda n, w: EPSILON[n - 1],
        project=lambda w: w * min(1.0, 0.4 / np.linalg.norm(w)),
    )
    np.testing.assert_allclose(result.point, loop, atol=1e-12)
    assert abs(np.linalg.norm(loop) - 0.4) < 1e-9, "the ball must bind"
    assert int(result.rounds) == 9
    assert not result.settled
    np.testing.assert_allclose(result.value, value(loop), atol=1e-12)


def test_the_optimal_step_and_the_rounds_it_needs():
    """(81)-(84): the error shrinks by the factor, and the count known before is enough."""
    step = float(optimal_step(*EIGENVALUES[[0, -1]]))
    factor = np.abs(1 - 2 * step * EIGENVALUES).max()
    ratio = EIGENVALUES[-1] / EIGENVALUES[0]
    assert factor == pytest.approx((ratio - 1) / (ratio + 1), abs=1e-12)
    distance = np.linalg.norm(BEST)
    needed = int(rounds_needed(distance, 1e-6, factor))
    result = minimize(objective, jnp.zeros(3), step, needed)
    assert np.linalg.norm(result.point - BEST) <= 1e-6
    # The slowest direction needs all of these steps.
    slowest = BEST + distance * np.linalg.eigh(Q)[1][:, 0]
    result = minimize(objective, jnp.asarray(slowest), step, needed - 2)
    assert np.linalg.norm(result.point - BEST) > 1e-6
    assert rounds_needed(1e-7, 1e-6, factor) == 0


@jax.jit
@jax.vmap
def settle(step, tolerance):
    return minimize(objective, jnp.zeros(3), step, 500, tolerance=tolerance)


def test_a_tolerance_stops_each_run_of_a_batch_where_the_loop_stops():
    steps = np.array([0.02, 0.02, 1e-5])
    tolerances = np.array([1e-3, 1e-6, 1e-12])
    result = settle(steps, tolerances)
    for i in range(3):
        w = np.zeros(3)
        count = 0
        settled = False
        while count < 500 and not settled:
            after = w - steps[i] * gradient(w)
            w, settled, count = after, abs(value(w) - value(after)) <= tolerances[i], count + 1
        assert (int(result.rounds[i]), bool(result.settled[i])) == (count, settled)
        np.testing.assert_allclose(result.point[i], w, atol=1e-12)
    assert result.settled.tolist() == [True, True, False]


def test_backing_off_is_armijos_rule():
    """L1162-1164: from the same guess in every round, halved until the decrease is sufficient."""
    result = minimize(objective, jnp.ones(3), backtracking(4.0, 0.5, 0.2), 7)
    w = np.ones(3)
    for _ in range(7):
        step = 4.0
        direction = gradient(w)
        while value(w - step * direction) > value(w) - 0.2 * step * direction @ direction:
            step /= 2
        w = w - step * direction
    np.testing.assert_allclose(result.point, w, atol=1e-12)


def test_a_bounded_gradient_is_required_with_a_reason():
    """Exercise 4.1: 1/t meets (78) and diverges on w^4 from afar, where backing off does not."""

    def quartic(w):
        return w**4

    start = jnp.asarray(3.0)
    assert not np.isfinite(minimize(quartic, start, fl.schedules.PowerDecay(1.0, 1.0), 30).value)
    assert minimize(quartic, start, backtracking(), 200).value < 1e-6


@pytest.mark.slow
def test_consensus_is_reached_by_descent_on_the_laplacian():
    """Exercise 4.4: the limit is the mean, at the best rate by the factor that is known."""
    graph = fl.graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)])
    laplacian = np.asarray(graph.laplacian(jnp.eye(5)))
    eigenvalues = np.linalg.eigvalsh(laplacian)
    start = RNG.normal(size=(5, 2))
    step = 2 / (eigenvalues[1] + eigenvalues[-1])
    factor = (eigenvalues[-1] - eigenvalues[1]) / (eigenvalues[-1] + eigenvalues[1])
    # The step of the exercise is along L u, half the gradient of u'Lu.
    norm = lambda u: jnp.sum(u * graph.laplacian(u)) / 2  # noqa: E731
    result = minimize(norm, jnp.asarray(start), step, 20)
    error = np.linalg.norm(np.asarray(result.point) - start.mean(0))
    bound = factor**20 * np.linalg.norm(start - start.mean(0))
    assert 1e-3 * bound < error <= bound * (1 + 1e-9)
    np.testing.assert_allclose(agreed(result.point), agreed(jnp.asarray(start)), atol=1e-12)


def test_bits_are_best_spent_late():
    """Exercise 4.6: of three orders of the same errors the fading one ends nearest (by (88))."""
    sizes = np.geomspace(1e-3, 1.0, 30)
    noise = RNG.normal(size=(30, 3))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)

    def error(order):
        draws = jnp.asarray(noise * order[:, None])
        ending = minimize(objective, jnp.zeros(3), 0.05, 30, perturbation=lambda n, w: draws[n - 1])
        return np.linalg.norm(ending.point - BEST)

    mean = np.full(30, sizes.mean())
    assert error(sizes[::-1]) < error(mean) < error(sizes)


def test_consensus_projects_the_shared_coordinates():
    models = RNG.normal(size=(4, 3))
    projected = agreed(jnp.asarray(models))
    np.testing.assert_allclose(projected, np.tile(models.mean(0), (4, 1)), atol=1e-15)
    shared = np.array([True, False, True])
    part = np.asarray(agreed(jnp.asarray(models), shared=jnp.asarray(shared)))
    np.testing.assert_array_equal(part[:, 1], models[:, 1])
    np.testing.assert_allclose(part[:, shared], projected[:, shared], atol=1e-15)
    with pytest.raises(ValueError, match="each of the 3 parameters"):
        agreed(jnp.asarray(models), shared=jnp.array([True, False]))


@pytest.mark.slow
def test_a_surrogates_gradient_and_an_optimizer_of_optax_take_their_places():
    result = minimize(objective, jnp.zeros(3), optax.sgd(0.02, momentum=0.9), 500)
    np.testing.assert_allclose(result.point, BEST, atol=1e-6)
    result = minimize(objective, jnp.zeros(3), 0.25, 200, gradient=lambda w: w - 1.0)
    np.testing.assert_allclose(result.point, np.ones(3), atol=1e-9)
    with pytest.raises(TypeError, match="one number for a point"):
        minimize(lambda w: w, jnp.zeros(3), 0.1, 5)
