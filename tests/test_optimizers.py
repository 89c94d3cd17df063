"""Optimizers of optax at clients: against optax by hand, swept, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import FedAvg
from fljax.engine import trace
from fljax.optimizers import as_optimizer, as_step, from_optax
from fljax.participation import Trace
from fljax.schedules import Constant, GeometricDecay
from tests.cases import CLIENTS, DIM, EXACT, ROUNDS, make_problem

close = np.testing.assert_allclose

EACH = {
    "momentum": (optax.sgd, {"learning_rate": 0.05, "momentum": 0.9}),
    "nesterov": (optax.sgd, {"learning_rate": 0.05, "momentum": 0.8, "nesterov": True}),
    "adam": (optax.adam, {"learning_rate": 0.1, "b1": 0.8}),
    "adamw": (optax.adamw, {"learning_rate": 0.1, "weight_decay": 0.3}),
    "rmsprop": (optax.rmsprop, {"learning_rate": 0.05}),
}


def clipped(learning_rate, bound):
    return optax.chain(optax.clip_by_global_norm(bound), optax.adam(learning_rate))


EACH["a chain"] = (clipped, {"learning_rate": 0.1, "bound": 0.3})


def by_hand(transformation, gradients, start):
    """One model along the given gradients' functions, as optax's manual has it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        model = jnp.asarray(start)
        memory, history = transformation.init(model), []
        for gradient in gradients:
            change, memory = transformation.update(gradient(model), memory, model)
            model = optax.apply_updates(model, change)
            history.append(model)
    return np.array(history)


def slopes(models):
    """Of each client: the gradient of another quadratic."""
    curvature = 1 + np.add.outer(np.arange(CLIENTS), np.arange(DIM))[: len(models)]
    return jnp.asarray(curvature, float) * models - 1


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("name", EACH)
def test_each_client_steps_as_optax_does(name):
    """Given as numbers and as it is; one model, and several with a memory each."""
    make, numbers = EACH[name]
    start = np.random.default_rng(0).normal(size=(CLIENTS, DIM))
    for optimizer in (from_optax(make, **numbers), as_optimizer(make(**numbers))):
        models = jnp.asarray(start)
        memory, result = optimizer.init(models), []
        for _ in range(5):
            models, memory = optimizer.move(models, slopes(models), memory)
            result.append(models)
        result = np.array(result)
        for k in range(CLIENTS):
            given = [lambda w, k=k: slopes(jnp.tile(w, (CLIENTS, 1)))[k]] * 5
            close(result[:, k], by_hand(make(**numbers), given, start[k]), rtol=1e-12, atol=1e-14)
        one, memory = jnp.asarray(start[0]), optimizer.init(jnp.asarray(start[0]))
        for n in range(5):
            one, memory = optimizer.move(one, slopes(one[None])[0], memory)
            close(one, result[n, 0], rtol=1e-12)


@pytest.mark.parametrize("kind", ["ours", "optax"])
def test_a_schedule_counts_the_optimizer_s_steps(kind):
    rate = GeometricDecay(0.6, 0.5)  # of steps counted from one, where optax counts from zero
    if kind == "optax":
        rate = optax.exponential_decay(0.3, 1, 0.5)
    optimizer = from_optax(optax.sgd, learning_rate=rate)
    model, start = jnp.zeros(2), jnp.ones(2)
    memory, moved = optimizer.init(model), []
    for _ in range(3):
        new, memory = optimizer.move(model, start, memory)
        moved.append(float((model - new)[0]))
        model = new
    close(moved, [0.3, 0.15, 0.075], rtol=1e-6)


# In federated averaging --------------------------------------------------------------------------


def trajectory(algorithm, rounds=ROUNDS, **parts):
    simulation = fl.Simulation(make_problem(), algorithm, metrics=(EXACT,), **parts)
    result = trace(simulation, fl.random_key(1), rounds, 1)[0]["exact"]
    return np.asarray(result)[:, 0]


def averaged(transformation, epochs, there, keeps):
    """Client by client: who is away keeps what its optimizer remembers."""
    problem, server, history = make_problem(), jnp.zeros(DIM), []
    counts = np.asarray(problem.sample_counts())
    update = jax.jit(transformation.update)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        memory = [transformation.init(server) for _ in range(CLIENTS)]
        for here in there:
            models = {}
            for k in np.flatnonzero(here):
                w, state = server, memory[k] if keeps else transformation.init(server)
                for _ in range(epochs):
                    slope = problem.gradient(jnp.tile(w, (CLIENTS, 1)))[k]
                    change, state = update(slope, state, w)
                    w = w + change
                models[k], memory[k] = w, state
            total = sum(counts[k] for k in models)
            if models:
                server = sum(counts[k] / total * w for k, w in models.items())
            history.append(server)
    return np.array(history)


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_federated_averaging_with_an_optimizer_is_the_loop(name, keeps):
    make, numbers = EACH[name]
    there = np.random.default_rng(2).uniform(size=(6, CLIENTS)) < 0.6
    there[2] = False
    optimizer = from_optax(make, **numbers)
    algorithm = FedAvg(optimizer, epochs=3, keeps_optimizer=keeps, weighting="samples")
    result = trajectory(algorithm, 6, participation=Trace(there))
    close(result, averaged(make(**numbers), 3, there, keeps), rtol=0, atol=1e-10)
    other = dataclasses.replace(algorithm, keeps_optimizer=not keeps)
    assert np.abs(trajectory(other, 6, participation=Trace(there)) - result).max() > 1e-3


@pytest.mark.slow
def test_plain_steps_of_an_optimizer_are_those_of_a_step_size():
    """Batches of nothing are no steps of the optimizer either."""
    given = {"clients_per_round": 4, "epochs": 2, "batch": 3}
    result = trajectory(FedAvg(optax.sgd(0.05), **given), 4)
    close(result, trajectory(FedAvg(0.05, **given), 4), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_a_grid_of_numbers_is_one_program():
    def scenario(key, rate, decay):
        adam = from_optax(optax.adamw, learning_rate=GeometricDecay(rate, 0.99), b1=decay)
        algorithm = FedAvg(adam, epochs=2)
        return fl.Simulation(make_problem(), algorithm, metrics=["normalized_error"])

    grid = {"rate": [0.01, 0.05, 0.1], "decay": [0.5, 0.9]}
    study = fl.sweep(scenario, rounds=3, seeds=1, grid=grid)
    assert study.attrs["compilations"] == 1
    last = study.normalized_error.values[..., -1].ravel()
    assert len(np.unique(last)) == 6
    alone = FedAvg(optax.adamw(lambda count: 0.05 * 0.99 ** (count + 1), b1=0.9), epochs=2)
    one = fl.run(fl.Simulation(make_problem(), alone, metrics=["normalized_error"]), 3)
    result = study.normalized_error.sel(rate=0.05, decay=0.9).values.ravel()[-1]
    close(result, one.normalized_error.values[-1], rtol=1e-6)


def test_a_step_size_is_no_optimizer_and_stays_a_schedule():
    assert isinstance(as_step(0.1), Constant)
    falling = GeometricDecay(0.1, 0.9)
    assert as_step(falling) is falling
    made = from_optax(optax.sgd, learning_rate=0.1)
    assert as_step(made) is made
    assert as_optimizer(made) is made


# What is refused ---------------------------------------------------------------------------------


def growing():
    """An optimizer whose memory gets longer."""

    def update(slope, memory, model=None):
        return slope, jnp.concatenate([memory, memory])

    return optax.GradientTransformation(lambda model: jnp.zeros(1), update)


def scalar():
    """One that makes a number of a row."""
    return optax.GradientTransformation(
        lambda model: (), lambda slope, memory, model=None: (jnp.sum(slope), memory)
    )


def of_value():
    """One that asks for the objective's value."""

    def update(slope, memory, model=None, *, value, **_):
        return slope * value, memory

    return optax.GradientTransformationExtraArgs(lambda model: (), update)


def branching(bound):
    """What depends on a number's value."""
    return optax.sgd(0.1) if bound > 0 else optax.adam(0.1)


def as_made(bound):
    return from_optax(branching, bound=bound).numbers


REFUSED = {
    "a number": (TypeError, lambda: as_optimizer(0.1), "must be an optax.GradientTransformation"),
    "a function of optax": (
        TypeError,
        lambda: FedAvg(optax.sgd),
        "If sgd makes an optimizer, give",
    ),
    "no arguments": (TypeError, lambda: from_optax(optax.adam), "arguments by name"),
    "made already": (
        TypeError,
        lambda: from_optax(lambda rate: 3.0, rate=0.1),
        "must be an optax.GradientTransformation",
    ),
    "an unknown argument": (TypeError, lambda: from_optax(optax.sgd, rate=0.1), "rate"),
    "a memory that grows": (ValueError, lambda: as_optimizer(growing()), "must keep its shapes"),
    "a number for a row": (ValueError, lambda: as_optimizer(scalar()), "into such a row"),
    "what needs the value": (
        ValueError,
        lambda: FedAvg(of_value()),
        "cannot move a model, which is one row of numbers, along its gradient alone.*value",
    ),
    "optax refuses": (
        ValueError,
        lambda: from_optax(optax.scale_by_lbfgs, memory_size=0),
        "memory_size must be >= 1",
    ),
    "swept structure": (
        ValueError,
        lambda: jax.eval_shape(as_made, 0.5),
        "reads bound while it builds branching, so it cannot be swept",
    ),
    "normalized": (
        ValueError,
        lambda: FedAvg(optax.sgd(0.1), normalized=True),
        "normalized=True divides by the step size",
    ),
    "nothing to keep": (
        ValueError,
        lambda: FedAvg(0.1, keeps_optimizer=True),
        "keeps_optimizer is for an optimizer",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_optimizers_are_refused(what):
    error, make, message = REFUSED[what]
    with pytest.raises(error, match=message):
        make()
