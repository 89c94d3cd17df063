"""PowerSGD on networks: its loop, full rank, the power iteration, bits, bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import PowerSGD
from fljax.problems.batches import Uniform
from tests.cases import CLIENTS, ROUNDS, SIZES, keys_of
from tests.cases.peers import one_batch_of
from tests.cases.world import step_of
from tests.reference import compressed
from tests.support import small_network
from tests.support.server_runs import FALLING, Lost, state_metric, trajectory

close = np.testing.assert_allclose
PROBLEM = small_network.problem(SIZES)
SHAPES = PROBLEM.layout.shapes
GRADIENT = small_network.gradient_of(SIZES)


def loop(algorithm, rows=None, lost=()):
    """Models and errors by the loop, with the run's first factors and batches."""
    numbers = sum(shape[1] * min(algorithm.rank, *shape) for shape in SHAPES if len(shape) == 2)
    first = jax.random.normal(key_of(keys_of(1)[0], "algorithm"), (numbers,), float)
    world = compressed.World(
        lambda n, k, w: GRADIENT(k, w, None if rows is None else rows[n - 1][k]),
        None,
        np.asarray(PROBLEM.initial),
        CLIENTS,
        [range(CLIENTS)] * ROUNDS,
        frozenset(lost),
    )
    return compressed.power_sgd(
        world,
        step_of(algorithm.step_size),
        SHAPES,
        algorithm.rank,
        float(algorithm.momentum),
        np.asarray(first),
    )


@pytest.mark.parametrize("rank", [1, 2])
def test_a_network_is_learned_as_by_the_loop(rank):
    assert sorted(map(len, SHAPES)) == [1, 1, 2, 2]
    algorithm = PowerSGD(FALLING, rank=rank, momentum=0.5)
    models, errors = loop(algorithm)
    close(trajectory(algorithm, PROBLEM), models, rtol=0, atol=1e-10)
    kept = trajectory(algorithm, PROBLEM, metric=state_metric("errors"))
    close(kept[-1], errors, rtol=0, atol=1e-10)
    assert np.abs(models[-1] - models[0]).max() > 1e-2


def test_batches_are_those_of_the_loop():
    algorithm = PowerSGD(0.1, rank=1, batches=Uniform(2))
    models, _ = loop(algorithm, rows=one_batch_of(2))
    close(trajectory(algorithm, PROBLEM), models, rtol=0, atol=1e-10)


def test_lost_messages_become_errors():
    works = np.random.default_rng(5).uniform(size=(ROUNDS, CLIENTS)) < 0.7
    works[3] = False
    algorithm = PowerSGD(0.1, rank=1, momentum=0.3)
    models, errors = loop(algorithm, lost=[(n + 1, k) for n, k in np.argwhere(~works)])
    parts = {"losses": Lost(jnp.asarray(works))}
    close(trajectory(algorithm, PROBLEM, **parts), models, rtol=0, atol=1e-10)
    kept = trajectory(algorithm, PROBLEM, metric=state_metric("errors"), **parts)
    close(kept[-1], errors, rtol=0, atol=1e-10)


def test_of_full_rank_it_is_gradient_descent_with_momentum():
    algorithm = PowerSGD(0.1, rank=9, momentum=0.4)
    x = np.asarray(PROBLEM.initial)
    velocity = np.zeros_like(x)
    for model in trajectory(algorithm, PROBLEM):
        gradient = np.mean([GRADIENT(k, x) for k in range(CLIENTS)], axis=0)
        velocity = 0.4 * velocity + gradient
        x = x - 0.1 * (gradient + velocity)
        close(model, x, rtol=0, atol=1e-11)


def test_steps_of_matrices_are_of_the_rank():
    """Matrices alone are approximated: vectors are sent as they are."""
    models = trajectory(PowerSGD(0.3, rank=1), PROBLEM)
    steps = np.diff(models, axis=0, prepend=np.asarray(PROBLEM.initial)[None])
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    for shape, parts in zip(SHAPES, np.split(steps, ends, axis=1), strict=True):
        if len(shape) == 2:
            values = np.linalg.svd(parts.reshape(-1, *shape))[1]
            assert np.all(values[:, 0] > 1e-4)
            assert np.all(values[:, 1:] < 1e-14)


def test_bits_are_those_of_factors_and_vectors():
    run = fl.run(fl.Simulation(PROBLEM, PowerSGD(0.1, rank=2)), 3)
    numbers = sum(2 * sum(shape) if len(shape) == 2 else shape[0] for shape in SHAPES)
    bits = 32 * CLIENTS * numbers * np.arange(1, 4)
    np.testing.assert_array_equal(run.bits_up, bits)
    np.testing.assert_array_equal(run.bits_down, bits)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PowerSGD(0.1, rank=0), "rank must be >= 1, got 0"),
        (lambda: PowerSGD(0.1, momentum=1.0), "momentum must be .*< 1, got 1"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
