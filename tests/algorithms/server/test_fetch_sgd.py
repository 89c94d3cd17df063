"""FetchSGD: its loop, exact tables, sums of messages alone, traffic, bad arguments."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import FetchSGD
from fljax.link import CountSketch
from fljax.participation.patterns import Trace
from fljax.problems.batches import Uniform
from tests.cases import CLIENTS, DIM, OBJECTIVE, ROUNDS, batch_gradient, keys_of, make_problem
from tests.cases.peers import one_batch_of
from tests.cases.server import COMPRESSED_LOOPS, compressed_world
from tests.cases.world import step_of
from tests.support.server_runs import ACTIVE, FALLING, Lost, state_metric, trajectory

close = np.testing.assert_allclose
SKETCH = CountSketch(3, 2)
#: No two of the parameters share a cell in most of the rows.
EXACT_TABLE = CountSketch(5, 1000)


def compare(algorithm, world, **parts):
    """Models, and the table of errors, against the loop's."""
    loop = COMPRESSED_LOOPS[FetchSGD]
    models, errors = loop(algorithm, world, step_of(algorithm.step_size))
    close(trajectory(algorithm, **parts), models, rtol=0, atol=1e-10)
    tables = trajectory(algorithm, metric=state_metric("errors"), **parts)
    close(tables[-1], errors, rtol=0, atol=1e-10)
    assert np.abs(models[-1] - models[0]).max() > 1e-2
    return models


# Against the loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("zeroing", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize(("sketch", "count"), [(SKETCH, 1), (CountSketch(2, 4), 2)])
def test_models_and_errors_are_those_of_the_loop(sketch, count, momentum, zeroing):
    algorithm = FetchSGD(FALLING, sketch=sketch, count=count, momentum=momentum, zeroing=zeroing)
    compare(algorithm, compressed_world(algorithm))


def test_absent_clients_and_lost_messages_leave_no_trace():
    algorithm = FetchSGD(0.1, sketch=SKETCH, count=2, momentum=0.5)
    active = [np.flatnonzero(now) for now in ACTIVE]
    models = compare(
        algorithm, compressed_world(algorithm, active=active), participation=Trace(ACTIVE)
    )
    assert not ACTIVE[3].any()
    np.testing.assert_array_equal(models[3], models[2])
    works = np.random.default_rng(5).uniform(size=(ROUNDS, CLIENTS)) < 0.7
    lost = [(n + 1, k) for n, k in np.argwhere(~works)]
    world = compressed_world(algorithm, lost=lost)
    compare(algorithm, world, losses=Lost(jnp.asarray(works)))


def test_some_clients_a_round_and_batches():
    algorithm = FetchSGD(0.1, sketch=SKETCH, count=1, clients_per_round=2)
    keys = [key_of(now, "participation") for now in keys_of(1)]
    everyone = jnp.ones(CLIENTS, bool)
    active = [
        [int(k) for k in algorithm.selection.choose(key, everyone, None).numbers] for key in keys
    ]
    compare(algorithm, compressed_world(algorithm, active=active))
    rows = one_batch_of(2)
    algorithm = FetchSGD(0.1, sketch=SKETCH, count=1, batches=Uniform(2))
    world = dataclasses.replace(
        compressed_world(algorithm),
        gradient=lambda n, k, w: batch_gradient(k, w, rows[n - 1][k]),
    )
    compare(algorithm, world)


# Special cases ----------------------------------------------------------------------------------


def descent(step, momentum):
    """Gradient descent with heavy-ball momentum."""
    x = velocity = np.zeros(DIM)
    for n in range(1, ROUNDS + 1):
        gradient = np.mean([OBJECTIVE.gradient(k, x) for k in range(CLIENTS)], axis=0)
        velocity = momentum * velocity + gradient
        x = x - step(n) * velocity
        yield x


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_with_a_large_table_and_all_parameters_it_is_sgd_with_momentum(momentum):
    algorithm = FetchSGD(FALLING, sketch=EXACT_TABLE, count=DIM, momentum=momentum)
    expected = list(descent(step_of(FALLING), momentum))
    close(trajectory(algorithm), expected, rtol=0, atol=1e-12)


def test_zeroing_ends_the_momentum_of_parameters_that_were_updated():
    algorithm = FetchSGD(0.05, sketch=EXACT_TABLE, count=DIM, momentum=0.6, zeroing=True)
    close(trajectory(algorithm), list(descent(lambda n: 0.05, 0.0)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("zeroing", [False, True])
def test_what_a_round_leaves_out_is_sent_later(zeroing):
    """One parameter a round, and still the exact optimum: errors vanish with the gradient."""
    best = np.asarray(fl.problems.optimum(make_problem()))
    algorithm = FetchSGD(0.05, sketch=EXACT_TABLE, count=1, zeroing=zeroing)
    models = trajectory(algorithm, rounds=600)
    changed = np.diff(models, axis=0) != 0
    assert changed.sum(1).max() == 1
    assert np.abs(models[-1] - best).max() < 1e-8


@pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")  # what this test is about
def test_in_a_small_table_zeroing_prevents_divergence():
    """As the authors' program notes of the subtraction."""
    problem = fl.problems.ridge(fl.random_key(0), clients=6, samples=20, dim=50)
    sketch = CountSketch(3, 10)

    def error(zeroing):
        algorithm = FetchSGD(0.03, sketch=sketch, count=5, zeroing=zeroing)
        simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
        return fl.run(simulation, 100).normalized_error.values

    subtracted = error(False)
    assert subtracted[-1] > 1e3 * subtracted[0]
    zeroed = error(True)
    assert zeroed[-1] < zeroed[0]


def test_the_server_needs_the_sum_of_the_messages_alone():
    algorithm = FetchSGD(0.05, sketch=SKETCH, count=2, momentum=0.5)
    masked = trajectory(algorithm, masks=fl.link.SecureAggregation(range=64.0))
    close(masked, trajectory(algorithm), rtol=0, atol=1e-4)


def test_all_seeds_of_a_study_have_hash_functions_of_their_own():
    def scenario(key):
        algorithm = FetchSGD(0.05, sketch=SKETCH, count=1)
        return fl.Simulation(make_problem(), algorithm, metrics=["normalized_error"])

    errors = fl.sweep(scenario, seeds=4, rounds=3).normalized_error.values[:, -1]
    assert len(np.unique(errors)) > 1


# Traffic and bad input --------------------------------------------------------------------------


def test_bits_are_those_of_tables():
    algorithm = FetchSGD(0.05, sketch=SKETCH, count=1, clients_per_round=2)
    run = fl.run(fl.Simulation(make_problem(), algorithm), 3)
    np.testing.assert_array_equal(run.bits_up, 2 * 32 * 6 * np.arange(1, 4))
    np.testing.assert_array_equal(run.bits_down, 2 * 32 * DIM * np.arange(1, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FetchSGD(0.1, sketch=SKETCH, count=0), "count must be >= 1, got 0"),
        (lambda: FetchSGD(0.1, sketch=SKETCH, count=1, momentum=1.0), "momentum must .*< 1, got 1"),
        (
            lambda: fl.Simulation(make_problem(), FetchSGD(0.1, sketch=SKETCH, count=4)),
            "count must be 1 to the 3 parameters of a model, got 4",
        ),
        (
            lambda: fl.Simulation(
                make_problem(),
                FetchSGD(0.1, sketch=SKETCH, count=1),
                compression=fl.link.Sign(),
            ),
            "compresses its messages itself; leave out compression=",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_sketch_is_a_count_sketch():
    with pytest.raises(TypeError, match=r"sketch must be .*CountSketch"):
        FetchSGD(0.1, sketch=fl.link.TopK(1), count=1)
