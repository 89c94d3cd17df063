"""Exercises of Jung 2025 without test files of their own, answered by runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.problems import LeastSquares, Problem

close = np.testing.assert_allclose


# 2.4: data augmentation by linear interpolation -------------------------------------------------


def interpolated(x, y, steps=100):
    """The given points and points on the segments between all ordered pairs."""
    share = np.arange(steps) / steps
    pairs = [(a, b) for a in range(len(x)) for b in range(len(x)) if a != b]
    rows = [x[a] + share[:, None] * (x[b] - x[a]) for a, b in pairs]
    labels = [y[a] + share * (y[b] - y[a]) for a, b in pairs]
    return np.concatenate([x, *rows]), np.concatenate([y, *labels])


def training_error(x, y):
    problem = Problem(x[None], y[None], LeastSquares())
    return float(problem.mean_loss(fl.problems.train(problem))[0])


@pytest.mark.slow
@pytest.mark.parametrize("samples", [4, 9])
def test_interpolation_does_not_raise_the_training_error_of_linear_models(samples):
    """A squared error is convex along a segment: its mean there is at most that of the ends."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(samples, 3))
        y = rng.normal(size=samples)
        assert training_error(*interpolated(x, y)) <= training_error(x, y) + 1e-12


@pytest.mark.slow
def test_clipped_gradients_of_nonlinear_models_are_affected():
    """Labels that are a square are fitted by squares, until points between them are added."""
    x = np.array([-1.0, 0.0, 1.0])
    y = np.array([1.0, 0.0, 1.0])
    more_x, more_y = interpolated(x[:, None], y)
    squares = [np.stack([np.ones_like(v), v, v**2], axis=1) for v in (x, more_x[:, 0])]
    assert training_error(squares[0], y) < 1e-20
    assert training_error(squares[1], more_y) > 1e-3


# 3.13: fundamental limits ------------------------------------------------------------------------


def tree(depth):
    """A tree whose inner nodes have three neighbors: edges, and the number of nodes."""
    edges = []
    layer = [0]
    count = 1
    for level in range(depth):
        below = []
        for node in layer:
            for _ in range(3 if level == 0 else 2):
                edges.append((node, count))
                below.append(count)
                count += 1
        layer = below
    return edges, count


EDGES, NODES = tree(4)


@jax.jit
def root_after_two_rounds(labels, coupling, step_size):
    """Algorithm 4 from zero, by two calls of the algorithm's own step."""
    problem = Problem(jnp.ones((NODES, 1, 1)), labels[:, None], LeastSquares())
    algorithm = fl.algorithms.FedGD(coupling, step_size)
    network = fl.graphs.from_edges(NODES, EDGES)
    simulation = fl.Simulation(problem, algorithm, network)
    state = None
    for number in (1, 2):
        now = fl.view(simulation, key=0, round=number)
        state = algorithm.init(now.problem, now.network) if state is None else state
        state = algorithm.step(state, now)
    return state.model[0, 0]


def influence(coupling, step_size):
    """The weights of all nodes' numbers in the root's estimate, which is linear in them."""
    root_estimate = jax.vmap(lambda y: root_after_two_rounds(y, coupling, step_size))
    return np.asarray(root_estimate(jnp.eye(NODES)))


@pytest.mark.slow
def test_two_rounds_reach_two_hops_and_algorithm_4_one():
    """The variance of an unbiased estimate of ten numbers is 1/10 at least; of four, 1/4."""
    hops = np.eye(NODES)
    hops[tuple(np.transpose(EDGES))] = 1
    near = np.linalg.matrix_power(hops + hops.T, 2)[0] > 0
    assert near.sum() == 1 + 3 + 6
    least = np.inf
    for coupling in (0.1, 0.3, 0.5, 1.0, 2.0, 5.0):
        for step in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3):
            share = influence(coupling, step)
            assert set(np.flatnonzero(np.abs(share) > 1e-12)) <= {0, 1, 2, 3}
            least = min(least, np.sum(share**2) / np.sum(share) ** 2)
    assert 0.25 <= least < 0.26
    assert least > 0.1


# 4.3: online gradient descent --------------------------------------------------------------------

DIM = 1
NOISE = 0.5
TRUTH = np.array([1.0])


def excess(schedule, rounds):
    """The exact mean of ||w - truth||^2, of independent Gaussian inputs: a recursion."""
    result = []
    error = TRUTH @ TRUTH
    for t in range(1, rounds + 1):
        eta = schedule(t)
        error = (1 - 4 * eta + 4 * eta**2 * (DIM + 2)) * error + 4 * eta**2 * DIM * NOISE
        result.append(error)
    return np.array(result)


SCHEDULES = {"fast": lambda t: 1 / (t + 5), "slow": lambda t: (1 / (t + 5)) ** 0.5}


@pytest.mark.slow
def test_online_descent_reaches_the_noise_floor_of_its_schedule():
    """The risk is the noise plus the squared distance; 1/t is better by its root, in the end."""
    rounds = 400
    records = (50, 400)
    stream = fl.streams.Linear(np.eye(DIM)[None], TRUTH, np.array([NOISE]))
    metric = fl.metrics.Metric("apart", lambda now: jnp.sum((now.model[0] - TRUTH) ** 2), "")
    for name, schedule in SCHEDULES.items():
        algorithm = fl.algorithms.OnlineFed(lambda t, s=schedule: 2 * s(t))  # its step has no 2
        results = fl.sweep(
            lambda key, a=algorithm: fl.Simulation(stream, a, metrics=[metric]),
            seeds=2000,
            rounds=rounds,
        )
        theory = excess(schedule, rounds)
        for number in records:
            runs = results.apart.sel(round=number).values
            error = runs.std() / np.sqrt(len(runs))
            assert abs(runs.mean() - theory[number - 1]) < 5 * error, name
    fast, slow = (excess(s, 4000) for s in SCHEDULES.values())
    assert fast[-1] < 0.2 * slow[-1]
    t = np.arange(1, 4001)
    # Upper bounds of the two orders: noise and start over t, and over its root.
    constant = DIM * NOISE + TRUTH @ TRUTH
    assert (fast <= 8 * constant / (t + 5)).all()
    assert (slow <= 8 * constant / np.sqrt(t + 5)).all()
    assert 3.5 < fast[999] / fast[3999] < 4.5
    assert 1.8 < slow[999] / slow[3999] < 2.2
