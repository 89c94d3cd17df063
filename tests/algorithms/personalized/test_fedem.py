"""FedEM: the mixtures that it finds, its predictions, and its special cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, FedEM
from fljax.algorithms.personalized.fedem import mixture
from fljax.problems import LeastSquares, Logistic, Softmax
from tests.cases.personalized import fedem_run
from tests.support.server_runs import state_metric
from tests.support.two_groups import (
    DIM,
    LOCAL,
    STARTS,
    loop_models,
    make_objective,
    make_problem,
    new_key,
    short_run,
    trajectory,
    visited,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.parametrize(
    ("algorithm", "name", "lateness"),
    [
        (FedEM(LOCAL, 4, 2, components=2, start=STARTS[:2], weighting="samples"), "ridge", True),
        (FedEM(0.3, 4, batch=4, components=3, start=STARTS), "logistic", False),
    ],
)
def test_models_equal_the_loops(algorithm, name, lateness):
    """Some clients, some of them absent, in batches, with late and lost messages."""
    key = new_key(4)
    parts, world = world_of(algorithm, True, lateness, key)
    simulation = fl.Simulation(make_problem(name), algorithm, **parts)
    options = {} if algorithm.batch is None else {"work": visited(simulation, key)}
    close(
        trajectory(simulation, key=key),
        loop_models(algorithm, name, world, **options),
        rtol=0,
        atol=1e-10,
    )
    weights = fedem_run(algorithm, make_objective(name), world, **options).server
    close(
        trajectory(simulation, key=key, metric=state_metric("weights")),
        weights,
        rtol=0,
        atol=1e-10,
    )
    assert np.ptp(weights[-1], axis=0).max() > 0.05


@pytest.mark.slow
def test_one_component_is_federated_averaging():
    ours = FedEM(LOCAL, 4, 2, components=1, start=np.zeros((1, DIM)))
    parts = world_of(ours, True, True, new_key())[0]
    result = trajectory(fl.Simulation(make_problem(), ours, **parts))
    fedavg = fl.Simulation(make_problem(), FedAvg(LOCAL, 4, 2), **parts)
    close(result, trajectory(fedavg), rtol=0, atol=1e-12)


def test_components_and_weights_of_mixtures_are_found():
    rng = np.random.default_rng(0)
    truths = np.array([[4.0, 0.0], [0.0, 4.0]])
    share = np.array([0.1, 0.3, 0.7, 0.9])
    X = rng.normal(size=(4, 300, 2))
    is_first = rng.uniform(size=(4, 300)) < share[:, None]
    y = np.where(is_first, X @ truths[0], X @ truths[1])
    problem = fl.problems.from_clients(list(zip(X, y, strict=True)), LeastSquares())
    algorithm = FedEM(0.2, components=2, epochs=5, start=[[1.0, 0.0], [0.0, 1.0]])
    simulation = fl.Simulation(problem, algorithm)
    components, weights = (
        trajectory(simulation, 60, metric=state_metric(name))[-1] for name in ("models", "weights")
    )
    close(components, truths, atol=0.3)
    close(weights[:, 0], is_first.mean(axis=1), atol=0.1)


def test_predictions_are_mixed_as_probabilities():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2, 3, 4, 5))
    weights = rng.dirichlet([1, 1], size=3)
    shares = weights.T[:, :, None]
    mixed = mixture(Softmax(5), jnp.asarray(logits), jnp.asarray(weights))
    expected = np.sum(shares[..., None] * np.asarray(jax.nn.softmax(logits, axis=-1)), axis=0)
    close(np.exp(mixed), expected, rtol=1e-12)
    scalars = logits[..., 0]
    odds = mixture(Logistic(), jnp.asarray(scalars), jnp.asarray(weights))
    close(1 / (1 + np.exp(-odds)), np.sum(shares / (1 + np.exp(-scalars)), axis=0), rtol=1e-12)
    plain = mixture(LeastSquares(), jnp.asarray(scalars), jnp.asarray(weights))
    close(plain, np.sum(shares * scalars, axis=0), rtol=1e-12)


@pytest.mark.thin(1)
@pytest.mark.parametrize("common", [False, True])
def test_held_out_data_are_predicted_by_the_mixtures(common):
    """The same test error as by hand, of data of each client or of all together."""
    problem = make_problem("logistic")
    rng = np.random.default_rng(3)
    if common:
        X = rng.normal(size=(9, DIM))
        y = np.sign(X.sum(axis=1))
        problem = problem.with_test(X, y)
        test = [(X, y)] * problem.clients
    else:
        problem = problem.split(jax.random.key(0), test=0.4)
        held_out = problem.test
        mask = np.asarray(held_out.weights) > 0
        arrays = np.asarray(held_out.features), np.asarray(held_out.targets)
        test = [tuple(array[k][mask[k]] for array in arrays) for k in range(problem.clients)]
    algorithm = FedEM(0.3, components=2, start=STARTS[:2])
    parts = [
        fl.metrics.trajectory("models", ("component", "parameter")),
        fl.metrics.trajectory("weights", ("client", "component")),
    ]
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["test_error", "accuracy", *parts]), 4)
    models = run.models_trajectory.values[-1]
    weights = run.weights_trajectory.values[-1]
    errors = []
    hits = []
    for k, (X, y) in enumerate(test):
        p = weights[k] @ (1 / (1 + np.exp(-(models @ X.T))))
        errors.append(-np.log(np.where(y > 0, p, 1 - p)).mean())
        hits.append(((p >= 0.5) == (y > 0)).mean())
    close(run.test_error.values[-1], np.mean(errors), rtol=1e-10)
    close(run.accuracy.values[-1], np.mean(hits), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"components": 0}, "components must be >= 1, got 0"),
        ({"components": 2, "start": STARTS}, r"start must be \[2, parameters\], one model a compo"),
        ({"components": 2, "start": np.zeros((2, DIM))}, "start holds equal models"),
        ({"components": 3, "start": STARTS[:, :2]}, "problem's 3 parameters, got 2"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        short_run(FedEM(0.1, **arguments))


@pytest.mark.slow
def test_components_of_networks_must_be_given():
    data = fl.problems.softmax(jax.random.key(0), clients=4, samples=8, dim=3, classes=2)
    problem = fl.problems.Model.of(data, fl.models.mlp(2, hidden=[4]), jax.random.key(1))
    with pytest.raises(ValueError, match=r"give FedEM start=.*problem\.initialized\(key\)"):
        short_run(FedEM(0.1, components=2), problem=problem)
    keys = jax.random.split(jax.random.key(0), 2)
    start = jnp.stack([problem.initialized(key).initial for key in keys])
    simulation = fl.Simulation(problem, FedEM(0.3, components=2, start=start, epochs=3))
    error = trajectory(simulation, 20, metric=fl.metrics.train_error).mean(axis=1)
    assert error[-1] < error[0]
