"""FedAS: its loop, its parts one by one, and refused arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAS, FedPer
from fljax.algorithms.personalized.fedas import _alignment_gradient, _fisher_trace, _prototypes
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Trace
from fljax.problems.batches import Uniform
from tests.cases import SIZES, make_read, reading
from tests.support import small_network as small
from tests.support.server_runs import (
    ACTIVE,
    UNLIKE,
    passes_of,
    personal,
    state_metric,
    trajectory,
)

close = np.testing.assert_allclose
FALLING = PowerDecay(0.5, 0.3)
ALIGNMENT = {"alignment_step_size": 0.4}
FORMS = {
    "batches": FedAS(FALLING, 4, 2, 3, alignment_step_size=FALLING),
    "unequal steps": FedAS(0.3, local_steps=UNLIKE, weighting="samples", **ALIGNMENT),
    "two passes": FedAS(0.3, batches=Uniform(2), local_steps=UNLIKE, alignment_epochs=2),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("form", FORMS)
def test_models_and_bodies_equal_the_loop(form):
    """Some clients, some of them absent."""
    algorithm = FORMS[form]
    visits = passes_of(algorithm, make_read(), ACTIVE, SIZES, algorithm.alignment_epochs)
    expected, bodies = reading.fedas_run(algorithm, visits=visits)
    parts = {"participation": Trace(ACTIVE)}
    close(personal(algorithm, make_read(), **parts), expected, rtol=0, atol=1e-10)
    result = trajectory(algorithm, make_read(), metric=state_metric("server"), **parts)
    close(result, bodies, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2
    assert np.ptp(expected[-1], axis=0).max() > 1e-2


def test_the_alignment_and_its_step_size_matter():
    results = [
        personal(FedAS(0.3, alignment_step_size=size), make_read(), 3) for size in (1e-300, 0.4)
    ]
    assert np.abs(results[0] - results[1]).max() > 1e-2


@pytest.mark.slow
def test_equal_clients_without_alignment_are_partial_personalization():
    """Their Fisher information is equal, so that the server takes the plain mean of bodies."""
    data = small.samples((8,)) * 4
    loss = fl.problems.Softmax(small.CLASSES)
    problem = fl.problems.Model.from_clients(small.HEADED, jax.random.key(0), data, loss)
    head = problem.head_coordinates()
    aligned, plain = (
        personal(algorithm, problem, 5)
        for algorithm in (
            FedAS(0.1, epochs=3, alignment_step_size=1e-300),
            FedPer(0.1, epochs=3, personal=np.flatnonzero(head).tolist()),
        )
    )
    close(aligned, plain, rtol=0, atol=1e-12)


def some_models(problem):
    rng = np.random.default_rng(4)
    return jnp.asarray(rng.normal(size=(problem.clients, problem.dim)))


def regularized(problem):
    return dataclasses.replace(problem, regularizer=fl.problems.SquaredL2(), strength=3.0)


def test_the_trace_is_the_mean_square_of_the_samples_gradients():
    problem = regularized(make_read())
    models = some_models(problem)
    singles = np.zeros(problem.clients)
    for k in range(problem.clients):
        for j in range(SIZES[k]):
            sample = problem.take(jnp.array([k]), jnp.array([[j]]))
            gradient = sample.loss_gradient(models[k : k + 1])
            singles[k] += float(jnp.sum(gradient**2)) / SIZES[k]
    close(_fisher_trace(problem, models), singles, rtol=1e-12)


def test_alignment_moves_bodies_alone_and_ignores_the_regularizer():
    plain = make_read()
    models = some_models(plain)
    prototypes = _prototypes(plain, 0.5 * models)
    gradient = _alignment_gradient(plain, models, prototypes)
    close(_alignment_gradient(regularized(plain), models, prototypes), gradient, rtol=1e-12)
    head = plain.head_coordinates()
    assert not np.any(np.asarray(gradient)[:, head])
    assert np.all(np.abs(np.asarray(gradient)[:, ~head]).max(axis=0) > 0)


@pytest.mark.slow
def test_alignment_decreases_the_distance_to_the_prototypes():
    problem = make_read()
    models = some_models(problem)
    prototypes = _prototypes(problem, models)
    body = ~problem.head_coordinates()
    moved = jnp.where(body[None], jnp.mean(models, axis=0, keepdims=True), models)

    def distance(moved):
        return float(jnp.sum((_prototypes(problem, moved) - prototypes) ** 2))

    before = distance(moved)
    for _ in range(200):
        moved = moved - 0.1 * _alignment_gradient(problem, moved, prototypes)
    assert distance(moved) < 0.3 * before


@pytest.mark.slow
def test_a_message_is_a_body_and_one_number():
    run = fl.run(fl.Simulation(make_read(), FedAS(0.1, 4)), rounds=3)
    body = 31 - 15
    assert int(run.bits_up[-1]) == 3 * 4 * (body + 1) * 32
    assert int(run.bits_down[-1]) == 3 * 4 * body * 32
    assert FedAS(0.1).message_size_of(make_read()) == body + 1


@pytest.mark.slow
def test_an_update_that_is_late_is_added_when_it_arrives():
    """All messages arrive a round later, so that the first body stays for two rounds."""
    delays = fl.link.Fixed(1)
    bodies = trajectory(FedAS(0.3), make_read(), 3, metric=state_metric("server"), delays=delays)
    first = trajectory(FedAS(0.3), make_read(), 1, metric=state_metric("server"))
    assert not bodies[0].any()
    close(bodies[1], first[0], rtol=0, atol=1e-13)


@pytest.mark.slow
def test_linear_predictions_share_nothing():
    data = [(x, y) for x, y in small.samples(SIZES)]
    problem = fl.problems.from_clients(data, fl.problems.Softmax(small.CLASSES))
    models = personal(FedAS(0.3, epochs=2), problem, 4)
    close(models, personal(fl.algorithms.LocalOnly(0.3, 2), problem, 4), rtol=0, atol=1e-13)


REFUSED = {
    "a network without a head": (
        lambda: fl.Simulation(small.problem(SIZES), FedAS(0.1)),
        r"FedAS reads a network's representation .*headed\(body, head\)",
    ),
    "no classes": (
        lambda: fl.Simulation(
            fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2), FedAS(0.1)
        ),
        "FedAS reads the logits of classes",
    ),
    "no passes of the alignment": (
        lambda: FedAS(0.1, alignment_epochs=0),
        "alignment_epochs must be >= 1, got 0",
    ),
    "an alignment that does not move": (
        lambda: FedAS(0.1, alignment_step_size=0.0),
        "step size must be finite and > 0",
    ),
    "a robust aggregator": (
        lambda: fl.Simulation(make_read(), FedAS(0.1), aggregation=fl.aggregation.Median()),
        "FedAS combines messages otherwise than by a mean",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()
