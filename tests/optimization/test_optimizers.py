"""Optimizers of optax at clients: against optax by hand, swept, and refused ones."""

import dataclasses
import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import FedAvg
from fljax.optimization.optimizers import as_optimizer, as_step, from_optax
from fljax.optimization.schedules import Constant, GeometricDecay
from fljax.participation.patterns import Trace
from fljax.simulation.scan import trace
from tests.cases import CLIENTS, DIM, EXACT, ROUNDS, make_problem
from tests.support import small_network

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
    """One model along the given gradient functions, by optax's manual."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        model = jnp.asarray(start)
        memory = transformation.init(model)
        history = []
        for gradient in gradients:
            change, memory = transformation.update(gradient(model), memory, model)
            model = optax.apply_updates(model, change)
            history.append(model)
    return np.array(history)


def slopes(models):
    """Gradients of another quadratic for each client."""
    curvature = 1 + np.add.outer(np.arange(CLIENTS), np.arange(DIM))[: len(models)]
    return jnp.asarray(curvature, float) * models - 1


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("name", EACH)
def test_each_client_steps_as_optax_does(name):
    """As numbers and as a transformation; one model, and several with separate memories."""
    make, numbers = EACH[name]
    start = np.random.default_rng(0).normal(size=(CLIENTS, DIM))
    for optimizer in (from_optax(make, **numbers), as_optimizer(make(**numbers))):
        models = jnp.asarray(start)
        memory = optimizer.init(models)
        result = []
        for _ in range(5):
            models, memory = optimizer.move(models, slopes(models), memory)
            result.append(models)
        result = np.array(result)
        for k in range(CLIENTS):
            gradients = [lambda w, k=k: slopes(jnp.tile(w, (CLIENTS, 1)))[k]] * 5
            close(
                result[:, k], by_hand(make(**numbers), gradients, start[k]), rtol=1e-12, atol=1e-14
            )
        model = jnp.asarray(start[0])
        memory = optimizer.init(jnp.asarray(start[0]))
        for n in range(5):
            model, memory = optimizer.move(model, slopes(model[None])[0], memory)
            close(model, result[n, 0], rtol=1e-12)


@pytest.mark.parametrize("kind", ["ours", "optax"])
def test_a_schedule_counts_the_optimizer_s_steps(kind):
    rate = GeometricDecay(0.6, 0.5)  # of steps counted from one, where optax counts from zero
    if kind == "optax":
        rate = optax.exponential_decay(0.3, 1, 0.5)
    optimizer = from_optax(optax.sgd, learning_rate=rate)
    model = jnp.zeros(2)
    start = jnp.ones(2)
    memory = optimizer.init(model)
    moved = []
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


def averaged(transformation, epochs, active, keeps):
    """Client by client: absent clients keep their optimizer's state."""
    problem = make_problem()
    server = jnp.zeros(DIM)
    history = []
    counts = np.asarray(problem.sample_counts())
    update = jax.jit(transformation.update)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        memory = [transformation.init(server) for _ in range(CLIENTS)]
        for active_now in active:
            models = {}
            for k in np.flatnonzero(active_now):
                w = server
                state = memory[k] if keeps else transformation.init(server)
                for _ in range(epochs):
                    gradient = problem.gradient(jnp.tile(w, (CLIENTS, 1)))[k]
                    change, state = update(gradient, state, w)
                    w = w + change
                models[k] = w
                memory[k] = state
            total = sum(counts[k] for k in models)
            if models:
                server = sum(counts[k] / total * w for k, w in models.items())
            history.append(server)
    return np.array(history)


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_federated_averaging_with_an_optimizer_equals_the_loop(name, keeps):
    make, numbers = EACH[name]
    active = np.random.default_rng(2).uniform(size=(6, CLIENTS)) < 0.6
    active[2] = False
    optimizer = from_optax(make, **numbers)
    algorithm = FedAvg(optimizer, epochs=3, keeps_optimizer=keeps, weighting="samples")
    result = trajectory(algorithm, 6, participation=Trace(active))
    close(result, averaged(make(**numbers), 3, active, keeps), rtol=0, atol=1e-10)
    other = dataclasses.replace(algorithm, keeps_optimizer=not keeps)
    assert np.abs(trajectory(other, 6, participation=Trace(active)) - result).max() > 1e-3


@pytest.mark.slow
def test_plain_steps_of_an_optimizer_equal_a_step_size():
    """Empty batches are not steps of the optimizer either."""
    options = {"clients_per_round": 4, "epochs": 2, "batch": 3}
    result = trajectory(FedAvg(optax.sgd(0.05), **options), 4)
    close(result, trajectory(FedAvg(0.05, **options), 4), rtol=1e-12, atol=1e-14)


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
    result_alone = fl.run(fl.Simulation(make_problem(), alone, metrics=["normalized_error"]), 3)
    result = study.normalized_error.sel(rate=0.05, decay=0.9).values.ravel()[-1]
    close(result, result_alone.normalized_error.values[-1], rtol=1e-6)


def test_a_step_size_is_not_wrapped_as_an_optimizer():
    assert isinstance(as_step(0.1), Constant)
    falling = GeometricDecay(0.1, 0.9)
    assert as_step(falling) is falling
    optimizer = from_optax(optax.sgd, learning_rate=0.1)
    assert as_step(optimizer) is optimizer
    assert as_optimizer(optimizer) is optimizer


# What is refused ---------------------------------------------------------------------------------


def growing():
    """An optimizer whose memory gets longer."""

    def update(gradient, memory, model=None):
        return gradient, jnp.concatenate([memory, memory])

    return optax.GradientTransformation(lambda model: jnp.zeros(1), update)


def scalar():
    """One that makes a number of a row."""
    return optax.GradientTransformation(
        lambda model: (), lambda gradient, memory, model=None: (jnp.sum(gradient), memory)
    )


def of_value():
    """One that asks for the objective's value."""

    def update(gradient, memory, model=None, *, value, **_):
        return gradient * value, memory

    return optax.GradientTransformationExtraArgs(lambda model: (), update)


def branching(bound):
    """What depends on a number's value."""
    return optax.sgd(0.1) if bound > 0 else optax.adam(0.1)


def as_made(bound):
    return from_optax(branching, bound=bound).numbers


REFUSED = {
    "a number": (TypeError, lambda: as_optimizer(0.1), "must be an optax.GradientTransformation"),
    "an optimizer of DLM": (
        TypeError,
        lambda: fl.algorithms.DLM(1.0, optax.sgd(0.1)),
        "step size, where it is no schedule",
    ),
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
    "a number for a row": (
        ValueError,
        lambda: as_optimizer(scalar()),
        "into a change of the parameters",
    ),
    "what needs the value": (
        ValueError,
        lambda: fl.Simulation(make_problem(), FedAvg(of_value())),
        "cannot move a model, which is one row of numbers, along its gradient alone.*value",
    ),
    "optax refuses": (
        ValueError,
        lambda: fl.Simulation(
            make_problem(), FedAvg(from_optax(optax.scale_by_lbfgs, memory_size=0))
        ),
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


@pytest.mark.parametrize("case", REFUSED)
def test_bad_optimizers_are_refused(case):
    error, make, message = REFUSED[case]
    with pytest.raises(error, match=message):
        make()


# On a network's own parameters -------------------------------------------------------------------


class Dense(fl.models.Architecture):
    """Two layers of matrices and offsets, which paths tell apart."""

    def init(self, key, features):
        first, last = jax.random.split(key)
        return {
            "body": {"kernel": jax.random.normal(first, (3, 4)), "bias": jnp.zeros(4)},
            "head": {"kernel": jax.random.normal(last, (4, 2)), "bias": jnp.zeros(2)},
        }

    head_paths = "^head"

    def represent(self, parameters, features):
        body = parameters["body"]
        return jnp.tanh(features @ body["kernel"] + body["bias"][None])

    def head(self, parameters, representation):
        head = parameters["head"]
        return representation @ head["kernel"] + head["bias"][None]


NETWORK = Dense()


def network_problem(clients=2):
    data = fl.problems.softmax(jax.random.key(0), clients=clients, samples=6, dim=3, classes=2)
    return fl.problems.Model.of(data, NETWORK, jax.random.key(1))


def matrices(parameters):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, parameters)


def by_layer(parameters):
    return jax.tree_util.tree_map_with_path(lambda path, leaf: path[0].key, parameters)


def frozen_body(learning_rate):
    return optax.multi_transform(
        {"body": optax.set_to_zero(), "head": optax.sgd(learning_rate)},
        {"body": "body", "head": "head"},
    )


#: Combinations whose rules go by the parameters' shapes and paths.
STRUCTURED = {
    "weight decay of matrices": lambda rate: optax.adamw(rate, weight_decay=0.5, mask=matrices),
    "layers clipped one by one": lambda rate: optax.chain(
        optax.adaptive_grad_clip(0.01), optax.sgd(rate)
    ),
    "clipped by blocks": lambda rate: optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(rate)),
    "centered gradients": lambda rate: optax.chain(optax.centralize(), optax.sgd(rate)),
    "a rate for each layer": lambda rate: optax.multi_transform(
        {"body": optax.sgd(rate / 10), "head": optax.adam(rate)}, by_layer
    ),
    "a frozen layer": frozen_body,
    "a rate that is injected": optax.inject_hyperparams(optax.lars),
}


def exported():
    """Every function of optax that makes an optimizer of a learning rate."""
    for library in (optax, optax.contrib):
        for name in dir(library):
            make = getattr(library, name)
            if name.startswith("_") or not inspect.isfunction(make):
                continue
            settings = inspect.signature(make).parameters
            needed = {
                setting.name for setting in settings.values() if setting.default is setting.empty
            }
            if next(iter(settings), "") == "learning_rate" and needed <= {"learning_rate"}:
                yield name, make


EXPORTED = dict(exported())


def on_the_tree(transformation, gradient, start, steps):
    """Optax's own loop over the network's parameters; ``None`` where it needs more than these."""
    layout = network_problem().layout
    update = jax.jit(transformation.update)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        parameters = layout.parameters(start)
        memory = transformation.init(parameters)
        for step in range(steps):
            tree = layout.parameters(gradient(layout.row(parameters), step))
            try:
                change, memory = update(tree, memory, parameters)
            except (TypeError, ValueError):
                return None
            parameters = optax.apply_updates(parameters, change)
    return layout.row(parameters)


def final_model(algorithm, rounds):
    simulation = fl.Simulation(network_problem(), algorithm, metrics=(EXACT,))
    return np.asarray(trace(simulation, fl.random_key(1), rounds, 1)[0]["exact"])[-1, 0]


def of_client(k):
    problem = network_problem()
    return lambda row, step: problem.gradient(jnp.stack([row] * 2))[k]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Specifying a key", "ignore:`optimistic_adam`")
@pytest.mark.parametrize("name", EXPORTED)
def test_every_optimizer_of_optax_steps_a_network_s_parameters_as_in_optax(name):
    """Or it is refused because a step needs more than parameters and gradient."""
    problem = network_problem()
    by_optax = EXPORTED[name](0.05)
    expected = [on_the_tree(by_optax, of_client(k), problem.initial, 3) for k in range(2)]
    if expected[0] is None:
        with pytest.raises(ValueError, match="cannot move a model, which has the parameters"):
            fl.Simulation(problem, FedAvg(by_optax))
        return
    optimizer = as_optimizer(by_optax)
    layouts = [problem.layout]
    models = jnp.stack([problem.initial] * 2)
    memory = optimizer.init(models, layouts)
    move = jax.jit(optimizer.move, static_argnums=3)
    for _ in range(3):
        models, memory = move(models, problem.gradient(models), memory, tuple(layouts))
    close(models, np.array(expected), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRUCTURED)
def test_optimizers_that_go_by_layers_do_so_at_clients_and_at_a_server(name):
    problem = network_problem()
    optimizer = STRUCTURED[name](0.05)
    expected = [on_the_tree(optimizer, of_client(k), problem.initial, 3) for k in range(2)]
    model = final_model(FedAvg(optimizer, epochs=3), 1)
    close(model, sum(expected) / 2, rtol=1e-9, atol=1e-10)

    def of_server(row, step):
        return 0.1 * jnp.mean(problem.gradient(jnp.stack([row] * 2)), axis=0)

    expected = on_the_tree(optimizer, of_server, problem.initial, 3)
    model = final_model(fl.algorithms.FedOpt(0.1, server=optimizer), 3)
    close(model, expected, rtol=1e-9, atol=1e-10)


def test_a_frozen_layer_is_not_changed():
    start = network_problem().initial
    layout = network_problem().layout
    optimizer = from_optax(frozen_body, learning_rate=0.1)
    model, _ = optimizer.move(
        start, jnp.ones_like(start), optimizer.init(start, [layout]), [layout]
    )
    moved = np.asarray(model != start)
    np.testing.assert_array_equal(moved, layout.coordinates("^head"))


def test_layers_that_the_network_does_not_have_are_refused_before_the_run():
    with pytest.raises(ValueError, match="which has the parameters a, b, c, d, along its gradient"):
        fl.Simulation(small_network.problem(), FedAvg(frozen_body(0.1)))
    with pytest.raises(ValueError, match="which is one row of numbers"):
        fl.Simulation(make_problem(), FedAvg(frozen_body(0.1)))
    upwards = optax.multi_transform({"body": optax.sgd(0.1), "head": optax.scale(9.0)}, by_layer)
    for algorithm in (FedAvg(upwards), fl.algorithms.FedOpt(0.1, server=upwards)):
        with pytest.raises(ValueError, match="goes up the objective"):
            fl.Simulation(network_problem(), algorithm)


#: Algorithms whose clients train several models, or parts of them.
SEVERAL = {
    "APFL": fl.algorithms.APFL,
    "FML": fl.algorithms.FML,
    "SuPerFed": fl.algorithms.SuPerFed,
    "FedKD": fl.algorithms.FedKD,
    "FedROD": fl.algorithms.FedROD,
    "FedPAC": fl.algorithms.FedPAC,
    "FedRep": partial(fl.algorithms.FedRep, personal="^head"),
    "MIME": fl.algorithms.MIME,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_each_of_several_models_of_a_client_is_a_separate_tree(name):
    def labels(parameters):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: "frozen" if path[0].key == "body" else "moved", parameters
        )

    layers = optax.multi_transform({"frozen": optax.set_to_zero(), "moved": optax.sgd(0.1)}, labels)
    problem = network_problem()
    moved = final_model(SEVERAL[name](layers, epochs=2), 2) != np.asarray(problem.initial)
    np.testing.assert_array_equal(moved, problem.layout.coordinates("^head"))


def test_optimizers_are_refused_where_other_parameters_are_trained():
    with pytest.raises(ValueError, match="which has the parameters transform, along"):
        fl.Simulation(network_problem(), fl.algorithms.FedKD(frozen_body(0.1)))
    with pytest.raises(ValueError, match="which has the parameters embeddings, factor/bias, "):
        fl.Simulation(network_problem(), fl.algorithms.GPFL(frozen_body(0.1)))


def test_a_part_of_a_layout_keeps_the_paths():
    layout = network_problem().layout
    part = layout.part(np.array([0, 1, 2, 3, 18, 20]))
    assert part.paths == ("body/bias", "head/bias", "head/kernel")[:1] + part.paths[1:]
    tree = part.parameters(jnp.arange(6.0))
    assert tree["body"]["kernel"] is None
    close(tree["body"]["bias"], [0, 1, 2, 3])
    close(part.row(tree), np.arange(6))
