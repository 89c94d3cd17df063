"""GPFL: its loop, its predictions, which parts are regularized, and refused arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import GPFL
from fljax.algorithms.personalized.gpfl import _cosines, _lengths
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Trace
from fljax.problems.batches import Uniform
from tests.cases import SIZES, make_read, reading
from tests.reference import readings
from tests.support import small_network as small
from tests.support.server_runs import (
    ACTIVE,
    UNLIKE,
    personal,
    state_metric,
    trajectory,
    visits_of,
)

close = np.testing.assert_allclose
FALLING = PowerDecay(0.5, 0.3)
FORMS = {
    "batches": GPFL(FALLING, 4, 2, 3, guidance=0.3, weight_decay=0.05),
    "unequal steps": GPFL(0.3, local_steps=UNLIKE, weighting="samples", guidance=2.0),
    "single samples": GPFL(0.1, batches=Uniform(1), local_steps=UNLIKE, weight_decay=0.0),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("form", FORMS)
def test_models_and_modules_equal_the_loop(form):
    """Some clients, some of them absent."""
    algorithm = FORMS[form]
    models, modules = reading.gpfl_run(algorithm, visits=visits_of(algorithm, ACTIVE, SIZES))
    parts = {"participation": Trace(ACTIVE)}
    close(personal(algorithm, make_read(), **parts), models, rtol=0, atol=1e-10)
    result = trajectory(algorithm, make_read(), metric=state_metric("modules"), **parts)
    close(result, modules, rtol=0, atol=1e-10)
    assert np.abs(models[-1] - models[0]).max() > 1e-2
    assert np.abs(modules[-1] - modules[0]).max() > 1e-2
    head = make_read().head_coordinates()
    assert np.ptp(models[-1][:, ~head], axis=0).max() == 0
    assert np.ptp(models[-1][:, head], axis=0).max() > 1e-2


@pytest.mark.parametrize("setting", [{"guidance": 0.0}, {"weight_decay": 0.0}])
def test_every_term_matters(setting):
    plain = {"guidance": 0.5, "weight_decay": 0.1}
    results = [personal(GPFL(0.3, **(plain | other)), make_read(), 3) for other in ({}, setting)]
    assert np.abs(results[0] - results[1]).max() > 1e-4


HELD_OUT = small.samples((6, 3, 5, 4, 7), seed=7)


@pytest.mark.thin(1)
@pytest.mark.parametrize("common", [False, True])
def test_predictions_equal_the_loop(common):
    problem = make_read()
    if common:
        problem = problem.with_test(*HELD_OUT[0])
    else:
        test = small.from_zero([len(y) for _, y in HELD_OUT], 7, small.HEADED_FROM_ZERO)
        problem = dataclasses.replace(problem, test=test)
    algorithm = GPFL(0.3, local_steps=3, weighting="equal")
    metrics = ["test_error", "client_accuracy", "train_error"]
    run = fl.run(fl.Simulation(problem, algorithm, metrics=metrics), 3, key=1)
    visits = reading.everyone(algorithm, 3)
    models, modules = (history[-1] for history in reading.gpfl_run(algorithm, visits=visits))
    net = reading.NET

    def losses(k, x, y):
        shares = net.counts(k) / net.counts(k).sum()
        logits = readings.gpfl_logits(net, models[k], modules, x, shares)
        odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return -np.log(odds[np.arange(len(y)), y]).mean(), (logits.argmax(axis=1) == y).mean()

    held_out = [HELD_OUT[0]] * 5 if common else HELD_OUT
    errors, accuracies = zip(*(losses(k, *data) for k, data in enumerate(held_out)), strict=True)
    close(run.test_error.values[-1], np.mean(errors), rtol=1e-10)
    close(run.client_accuracy.values[-1], accuracies, rtol=1e-12)
    trained = [losses(k, *net.rows(k, None))[0] for k in range(5)]
    close(run.train_error.values[-1], trained, rtol=1e-10)


def test_the_regularizer_is_on_body_and_head_and_the_decay_on_the_rest():
    """One step on all samples."""
    plain = make_read().starting_at(np.full(31, 0.2))
    regularized = dataclasses.replace(plain, regularizer=fl.problems.SquaredL2(), strength=5.0)
    step = 0.1
    states = []
    for problem, decay in ((plain, 0.0), (regularized, 0.0), (plain, 0.4)):
        simulation = fl.Simulation(problem, GPFL(step, weight_decay=decay))
        now = fl.view(simulation, key=1, round=1)
        start = simulation.algorithm.init(now.problem, None)
        states.append(simulation.algorithm.step(start, now))
    gradient = 2 * 0.2 * 5.0 / 5  # of the client's share of the squared norm, of five clients
    close(states[0].model - states[1].model, np.full((5, 31), step * gradient), rtol=1e-10)
    close(states[1].modules, states[0].modules, rtol=0, atol=1e-14)
    close(states[2].model, states[0].model, rtol=0, atol=1e-14)
    close(states[0].modules - states[2].modules, step * 0.4 * start.modules, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_a_message_has_the_body_the_embeddings_and_the_valve():
    run = fl.run(fl.Simulation(make_read(), GPFL(0.1, 4)), rounds=3)
    numbers = 16 + 3 * 4 + 2 * (4**2 + 3 * 4)
    assert int(run.bits_up[-1]) == int(run.bits_down[-1]) == 3 * 4 * numbers * 32
    assert GPFL(0.1).message_size_of(make_read()) == numbers


def test_features_that_are_zero_have_finite_gradients():
    """The rectifier may leave none of a sample's features, which then have no direction."""
    features = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    embeddings = jnp.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    close(_cosines(features, embeddings), [[0, 0, 0], [0.6, 0.8, 0]], rtol=1e-12)
    for function in (lambda f: _lengths(f).sum(), lambda f: _cosines(f, embeddings).sum()):
        gradient = np.asarray(jax.grad(function)(features))
        assert np.all(np.isfinite(gradient))
        assert not gradient[0].any()
        assert gradient[1].any()


REFUSED = {
    "a network without a head": (
        lambda: fl.Simulation(small.problem(SIZES), GPFL(0.1)),
        r"GPFL reads a network's representation .*headed\(body, head\)",
    ),
    "no classes": (
        lambda: fl.Simulation(
            fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2), GPFL(0.1)
        ),
        "GPFL reads the logits of classes",
    ),
    "a negative guidance": (
        lambda: GPFL(0.1, guidance=-1.0),
        "guidance must be finite and >= 0, got -1",
    ),
    "a negative decay": (
        lambda: GPFL(0.1, weight_decay=-0.5),
        "weight_decay must be finite and >= 0, got -0.5",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()
