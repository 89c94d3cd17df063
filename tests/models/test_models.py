"""Networks: gradients against the chain rule by hand, adapters, chunks, and refused arguments."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax._core.devices import on_cpu, traced_for
from fljax._core.prng import as_key
from fljax.algorithms.local_steps import learn
from fljax.models import builtin_networks
from fljax.participation.selectors import Participants
from fljax.problems import model as models_room
from fljax.problems.batches import Shuffled
from fljax.simulation.scan import trace
from tests import cases
from tests.reference import network as by_hand
from tests.support import small_network as small

SIZES = (5, 7, 4)


def rows(problem, seed=0):
    return np.random.default_rng(seed).normal(size=(problem.clients, problem.dim)) / 2


@pytest.fixture(params=["whole", "in chunks", "side by side"])
def chunking(request, monkeypatch):
    """However many samples and clients go together."""
    if request.param == "in chunks":
        monkeypatch.setattr(models_room, "CHUNK_BYTES", 8 * 25)  # two samples, or one of gradients
        monkeypatch.setattr(models_room, "SINGLE_BYTES", 8 * 25)
        monkeypatch.setattr(models_room, "CACHE_BYTES", 1)
    if request.param == "side by side":
        monkeypatch.setattr(models_room, "CACHE_BYTES", 2**30)
    return request.param


def test_values_and_gradients_equal_those_by_hand(chunking):
    problem = small.problem()
    assert (problem._chunk(problem._activations) < 7) == (chunking == "in chunks")
    assert (problem.together(7) == 1) == (chunking == "in chunks")
    w = rows(problem)
    data = small.samples(SIZES)

    @jax.jit
    def ours(problem, w):
        several = problem.mean_loss(w), problem.gradient(w), problem.mean_gradient(w[0])
        norms = problem.sample_objective_norms(w), problem.sample_gradient_norm(w)
        return *several, *norms, problem.cross_scores(w[:2], models_room.value_of)

    value, gradient_rows, client_gradient, norms, largest, cross = ours(problem, w)
    for k, (x, y) in enumerate(data):
        losses = by_hand.losses(w[k], x, y, small.HIDDEN, small.CLASSES)
        slopes = by_hand.sample_gradients(w[k], x, y, small.HIDDEN, small.CLASSES)
        sizes = np.linalg.norm(slopes, axis=1)
        np.testing.assert_allclose(value[k], losses.mean(), rtol=1e-12)
        np.testing.assert_allclose(gradient_rows[k], slopes.mean(axis=0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(norms[k, : len(x)], sizes, rtol=1e-10)
        assert not norms[k, len(x) :].any()
        np.testing.assert_allclose(largest[k], sizes.max(), rtol=1e-10)
        other = by_hand.losses(w[0], x, y, small.HIDDEN, small.CLASSES).mean()
        np.testing.assert_allclose(cross[k, 0], other, rtol=1e-12)
    gradient = small.gradient_of()
    gradients = [gradient(k, w[0]) for k in range(3)]
    np.testing.assert_allclose(client_gradient, np.mean(gradients, axis=0), atol=1e-14)


def test_each_sample_is_clipped_separately(chunking):
    w = rows(small.problem())
    problem = small.problem().clipped(0.3)
    result = jax.jit(lambda p, w: p.gradient(w))(problem, w)
    expected = small.gradient_of(clip=0.3)
    for k in range(3):
        np.testing.assert_allclose(result[k], expected(k, w[k]), rtol=1e-9, atol=1e-12)
    norms = jax.jit(lambda p, w: p.sample_gradient_norm(w))
    assert (norms(problem, w) <= 0.3 + 1e-12).all()
    assert (norms(small.problem(), w) > 0.3).any()
    assert float(problem.gradient_bound()) == pytest.approx(0.3)


def test_a_clip_bounds_nan_gradients():
    def outputs(parameters, x):
        return x @ parameters["w"] / jnp.sqrt(jnp.sum(x**2, axis=1))[:, None]

    network = fl.models.plain(lambda key: {"w": jax.random.normal(key, (2, 3))}, outputs)
    data = [(np.zeros((2, 2)), np.zeros(2)), (np.ones((2, 2)), np.ones(2))]
    loss = fl.problems.Softmax(3)
    problem = fl.problems.Model.from_clients(network, jax.random.key(0), data, loss).clipped(0.5)
    clipped = jax.jit(lambda p, w: p.gradient(w))(
        problem, jnp.broadcast_to(problem.initial, (2, 6))
    )
    assert jnp.isfinite(clipped).all()
    assert not clipped[0].any()
    assert clipped[1].any()


@pytest.mark.slow
def test_a_batch_is_of_its_samples():
    problem = small.problem()
    gradient = small.gradient_of()
    w = rows(problem)[:2]
    chosen = jnp.array([2, 0])
    batch = jnp.array([[1, 3], [4, 7]])  # the last one is none
    result = problem.take(chosen, batch).gradient(w)
    np.testing.assert_allclose(result[0], gradient(2, w[0], [1, 3]), rtol=1e-9)
    np.testing.assert_allclose(result[1], gradient(0, w[1], [4]), rtol=1e-9)


def test_federated_averaging_equals_the_loop_by_hand():
    problem = small.problem()
    gradient = small.gradient_of()
    simulation = fl.Simulation(
        problem=problem,
        algorithm=fl.algorithms.FedAvg(0.3, local_steps=3, weighting="samples"),
        metrics=["train_error"],
    )
    run = fl.run(simulation, rounds=4)
    model = np.asarray(problem.initial)
    for _ in range(4):
        models = []
        for k in range(3):
            local = model.copy()
            for _ in range(3):
                local = local - 0.3 * gradient(k, local)
            models.append(local)
        model = np.average(models, axis=0, weights=SIZES)
    np.testing.assert_allclose(run.model[0], model, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_a_client_with_fewer_batches_takes_fewer_steps(monkeypatch):
    """A client with two batches of samples computes two gradients, regardless of the others."""
    monkeypatch.setattr(models_room, "CACHE_BYTES", 1)  # one client after the other
    batch_sizes = []

    def apply(w, x):
        jax.debug.callback(lambda: batch_sizes.append(len(x)))
        return x @ w

    def loss(prediction, target):
        return (prediction - target) ** 2

    network = fl.models.plain(lambda key: jnp.zeros(2), apply)
    data = [(np.ones((n, 2)), np.ones(n)) for n in (3, 10, 1)]
    problem = fl.problems.Model.from_clients(network, jax.random.key(0), data, loss)
    participants = Participants(jnp.arange(3, dtype=jnp.int32), jnp.ones(3, bool))
    batch = Shuffled(2).draw(jax.random.key(1), problem.weights > 0, participants.numbers, 2 * 5)
    batch_sizes.clear()  # The problem's checks call the network, too.
    result = jax.jit(
        lambda problem, batch: learn(
            problem, participants, jnp.zeros((3, 2)), jnp.asarray(0.1), 10, batch
        )
    )(problem, batch)
    jax.effects_barrier()
    assert batch_sizes == [2] * 2 * (2 + 5 + 1)
    left = [(1 - 0.4) ** (2 * steps) for steps in (2, 5, 1)]  # of the distance, in two epochs
    np.testing.assert_allclose(result.model, np.tile(0.5 * (1 - np.array(left))[:, None], 2))


@pytest.mark.slow
def test_a_model_is_its_parameters_in_a_row():
    problem = small.problem()
    drawn = small.start(jax.random.key(0))
    shaped = problem.parameters(problem.initial)
    assert jax.tree.all(jax.tree.map(jnp.allclose, shaped, drawn))
    parameters = problem.parameters(jnp.stack([problem.initial, 2 * problem.initial]))
    np.testing.assert_allclose(parameters["a"][1], 2 * drawn["a"])
    of_each = problem.initialized(jax.random.key(1), own=True).initial
    assert of_each.shape == (3, problem.dim)
    assert not jnp.allclose(of_each[0], of_each[1])


@pytest.mark.slow
def test_whole_numbers_stay_whole():
    """Sequences of letters: embedded, every position predicted."""
    letters = 5
    width = 3

    def start(key):
        return {
            "embedding": jax.random.normal(key, (letters, width)),
            "out": jnp.ones((width, letters)),
        }

    def outputs(parameters, x):
        assert jnp.issubdtype(x.dtype, jnp.integer)
        return parameters["embedding"][x] @ parameters["out"]

    rng = np.random.default_rng(0)
    data = [(rng.integers(0, letters, (n, 6)), rng.integers(0, letters, (n, 6))) for n in (4, 2)]
    loss = fl.problems.Softmax(letters)
    problem = fl.problems.Model.from_clients(
        fl.models.plain(start, outputs), jax.random.key(0), data, loss, test=data
    )
    z = outputs(start(jax.random.key(0)), jnp.asarray(data[0][0]))
    expected = optax.softmax_cross_entropy_with_integer_labels(z, jnp.asarray(data[0][1])).mean()
    w = jnp.broadcast_to(problem.initial, (2, problem.dim))
    np.testing.assert_allclose(problem.mean_loss(w)[0], expected, rtol=1e-6)
    simulation = fl.Simulation(
        problem=problem, algorithm=fl.algorithms.FedAvg(0.1), metrics=["accuracy", "test_error"]
    )
    run = fl.run(simulation, rounds=2)
    assert 0 < float(run.accuracy[-1]) < 1


@pytest.mark.slow
def test_a_function_of_optax_is_a_loss():
    data = small.samples(SIZES)
    loss = functools.partial(fl.problems.Model.from_clients, small.NETWORK, jax.random.key(0), data)
    ours = loss(fl.problems.Softmax(3))
    theirs = loss(optax.softmax_cross_entropy_with_integer_labels)
    w = rows(ours)
    assert theirs.targets.dtype.kind == "i"
    np.testing.assert_allclose(theirs.gradient(w), ours.gradient(w), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_metrics_are_of_held_out_data_of_each_or_of_all():
    data = small.samples(SIZES)
    held_out = small.samples((3, 6, 2), seed=9)
    pooled = [tuple(map(np.concatenate, zip(*held_out, strict=True)))]
    w = np.random.default_rng(0).normal(size=small.problem().dim)

    def share(x, y):
        z = by_hand.predictions(w, x, small.HIDDEN, small.CLASSES)
        return np.mean(z.argmax(axis=1) == y)

    for test, expected in (
        (held_out, np.mean([share(*client) for client in held_out])),
        (pooled, share(*pooled[0])),
    ):
        problem = fl.problems.Model.from_clients(
            small.NETWORK, jax.random.key(0), data, fl.problems.Softmax(3), test=test
        ).starting_at(w)
        simulation = fl.Simulation(
            problem=problem,
            algorithm=fl.algorithms.FedAvg(1e-12),
            metrics=["accuracy", "client_accuracy", "validation_error"],
        )
        run = fl.run(simulation, rounds=1)
        assert float(run.accuracy[0]) == pytest.approx(expected)
        assert run.validation_error.sizes["client"] == 3
        shares = [share(*client) for client in test] * (3 // len(test))
        np.testing.assert_allclose(run.client_accuracy[0], shares)


def test_precision_recall_and_f1_follow_from_the_confusion_matrix():
    rng = np.random.default_rng(4)
    features = rng.normal(size=(3, 8, 2))
    targets = rng.integers(0, 3, size=(3, 8)).astype(float)
    test = fl.problems.Problem(features, targets, fl.problems.Softmax(3))
    problem = fl.problems.Problem(features, targets, fl.problems.Softmax(3), test=test)
    metrics = fl.metrics
    one_class = [metrics.precision(2), metrics.recall(2), metrics.f1_score(2)]
    simulation = fl.Simulation(
        problem.starting_at(rng.normal(size=problem.dim)),
        fl.algorithms.FedAvg(1e-12),
        metrics=one_class,
    )
    run = fl.run(simulation, rounds=1)
    scores = np.einsum("ksd,dc->ksc", features, np.asarray(run.model[0]).reshape(3, 2).T)
    predicted = scores.argmax(axis=-1) == 2
    true = targets == 2
    hits = (predicted & true).sum()
    assert 0 < hits < min(predicted.sum(), true.sum())
    precision = hits / predicted.sum()
    recall = hits / true.sum()
    assert float(run.precision_2[0]) == pytest.approx(precision)
    assert float(run.recall_2[0]) == pytest.approx(recall)
    assert float(run.f1_score_2[0]) == pytest.approx(2 / (1 / precision + 1 / recall))
    with pytest.raises(ValueError, match="recall is of the label 7, and no held-out sample has it"):
        fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=[metrics.recall(7)])


@pytest.mark.slow
def test_a_network_is_split_as_any_problem_is():
    problem = small.problem((10, 20, 8)).split(jax.random.key(1), test=0.25)
    assert problem.sample_counts().tolist() == [8, 15, 6]
    assert problem.test.sample_counts().tolist() == [2, 5, 2]
    assert isinstance(problem.test, fl.problems.Model)
    assert problem.pooled().sample_counts().tolist() == [29]


@pytest.mark.slow
def test_an_accelerator_takes_as_many_clients_as_fit(monkeypatch):
    problem = small.problem((4,) * 6)
    w = rows(small.problem((4,) * 6))
    numbers = 4 * problem._activations + 3 * problem.dim
    expected = problem.gradient(w)
    monkeypatch.setattr(models_room, "on_cpu", lambda: False)
    for fitting in (1, 2, 4, 100):
        free = int(fitting * numbers * 8 / models_room.GROUP_SHARE) + 1
        monkeypatch.setattr(models_room, "memory_at_hand", lambda available=free: available)
        assert problem.together(4) == fitting
        np.testing.assert_allclose(problem.gradient(w), expected, atol=1e-14)
    monkeypatch.setattr(models_room, "CHUNK_BYTES", 1)
    assert problem._chunk(problem._activations) == problem.samples
    monkeypatch.setattr(models_room, "DEVICE_CHUNK_BYTES", 8 * 3 * problem._activations)
    assert problem._chunk(problem._activations) == 2  # two chunks of four samples, without overlap
    np.testing.assert_allclose(problem.gradient(w), expected, atol=1e-14)


@pytest.mark.parametrize(
    ("samples", "fitting", "size"), [(10, 7, 5), (10, 4, 2), (12, 5, 4), (7, 100, 7), (7, 1, 1)]
)
def test_chunks_are_of_equal_size_and_compute_few_samples_twice(
    monkeypatch, samples, fitting, size
):
    """Of 10 samples where 7 fit two chunks of five, and not two of seven."""
    problem = small.problem((samples,))
    limit = 8 * fitting * problem._activations
    monkeypatch.setattr(models_room, "CHUNK_BYTES", limit)
    monkeypatch.setattr(models_room, "DEVICE_CHUNK_BYTES", limit)
    assert problem._chunk(problem._activations) == size
    chunked = problem.gradient(rows(problem))
    monkeypatch.undo()
    np.testing.assert_allclose(chunked, problem.gradient(rows(problem)), rtol=0, atol=1e-14)


@pytest.mark.skipif(not on_cpu(), reason="limits of a CPU")
def test_the_limit_of_a_chunk_follows_from_the_network_and_the_samples():
    def limit(network, features, targets, loss):
        data = [(features, targets)]
        return fl.problems.Model.from_clients(network, jax.random.key(0), data, loss)._chunk_bytes

    digits = fl.problems.Softmax(3)
    tokens = np.ones((2, 6), int)
    of_tokens = fl.problems.TokenCrossEntropy(9)
    vectors = limit(fl.models.mlp(3), np.ones((2, 4)), np.zeros(2), digits)
    images = limit(fl.models.cnn(3), np.ones((2, 8, 8, 1)), np.zeros(2), digits)
    recurrent = limit(fl.models.lstm(9, 4, [5]), tokens, tokens, of_tokens)
    attention = limit(
        fl.models.transformer(9, width=8, layers=1, heads=2, longest=6), tokens, tokens, of_tokens
    )
    assert images < vectors == attention < recurrent


@pytest.mark.slow
def test_a_plan_counts_the_residuals_of_a_gradient():
    def planned(batch):
        def scenario(key):
            return fl.Simulation(
                problem=fl.problems.Model.from_clients(
                    fl.models.mlp(3, hidden=[300]),
                    key,
                    [(np.ones((64, 3)), np.zeros(64))] * 2,
                    fl.problems.Softmax(3),
                ),
                algorithm=fl.algorithms.FedAvg(0.1, batch=batch),
            )

        return fl.plan(scenario, rounds=1).parts[0].memory_per_run

    assert planned(64) - planned(8) > 56 * 300 * 8  # the hidden layer, once more for each sample


@pytest.mark.slow
def test_half_precision_computes_and_full_precision_remembers():
    exact = small.problem()
    rounded = small.problem(compute="bfloat16")
    w = rows(exact)
    full = exact.gradient(w)
    near = rounded.gradient(w)
    assert near.dtype == full.dtype
    error = jnp.linalg.norm(near - full) / jnp.linalg.norm(full)
    assert 1e-4 < error < 3e-2
    text = str(jax.make_jaxpr(rounded.gradient)(jnp.asarray(w)))
    assert "bf16" in text
    assert "bf16" not in str(jax.make_jaxpr(exact.gradient)(jnp.asarray(w)))


@pytest.mark.slow
def test_no_program_is_larger_with_more_clients():
    def size(clients):
        problem = small.problem((4,) * clients)
        simulation = fl.Simulation(problem=problem, algorithm=fl.algorithms.FedAvg(0.1, 2, batch=2))
        now = fl.view(simulation)
        state = simulation.algorithm.init(now.problem, None)
        # Equations: the number of lines depends on the printed width.
        return str(jax.make_jaxpr(lambda s: simulation.algorithm.step(s, now))(state)).count(" = ")

    assert size(4) == size(40)


@pytest.mark.slow
def test_a_grid_of_step_sizes_is_one_program():
    def scenario(key, step):
        problem = small.problem().initialized(key)
        return fl.Simulation(
            problem=problem, algorithm=fl.algorithms.FedAvg(step), metrics=["train_error"]
        )

    study = fl.sweep(scenario, grid={"step": [0.1, 0.2]}, seeds=2, rounds=3)
    assert study.attrs["compilations"] == 1
    assert not np.allclose(study.train_error[0, 0], study.train_error[0, 1])  # another start


# The adapters of the libraries are tested in their docstrings; here are their refusals.


def state_of_linen():
    from flax import linen

    return fl.models.linen(linen.Sequential([linen.BatchNorm(use_running_average=False)]))


def state_of_haiku():
    import haiku as hk

    return fl.models.haiku(lambda x: hk.BatchNorm(True, True, 0.9)(x, True))


@pytest.mark.parametrize("make", [state_of_linen, state_of_haiku])
def test_statistics_that_do_not_know_whether_they_train_are_refused(make):
    with pytest.raises(ValueError, match="no argument that says whether it trains"):
        fl.models.layout_of(make(), (3,), np.dtype("float32"))


def test_networks_made_again_are_the_same():
    from flax import linen, nnx

    for make in (
        lambda: fl.models.cnn(3, channels=[2]),
        lambda: fl.models.linen(linen.Sequential([linen.Dense(4), linen.relu])),
        lambda: fl.models.nnx(nnx.Linear, 3, 4),
    ):
        assert make() == make()
        assert hash(make()) == hash(make())
    assert fl.models.mlp(3) != fl.models.mlp(4)


@pytest.mark.parametrize(
    ("activation", "by_hand"),
    [
        ("relu", lambda x: np.maximum(x, 0)),
        ("tanh", np.tanh),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        (jnp.sin, np.sin),
    ],
)
def test_layers_with_an_activation_equal_matrix_products(activation, by_hand):
    network = fl.models.mlp(3, hidden=[40, 50], activation=activation)
    images = np.random.default_rng(0).normal(size=(7, 20, 3))
    parameters = network.init(jax.random.key(1), jnp.asarray(images))
    x = images.reshape(7, 60)
    layers = [{k: np.asarray(v) for k, v in parameters[f"layer_{i}"].items()} for i in range(3)]
    for layer in layers[:2]:
        x = by_hand(x @ layer["kernel"] + layer["bias"])
    expected = x @ layers[2]["kernel"] + layers[2]["bias"]
    representation = network.represent(parameters, jnp.asarray(images))
    np.testing.assert_allclose(network.head(parameters, representation), expected, rtol=1e-10)
    variances = [60 * layers[0]["kernel"].var(), 40 * layers[1]["kernel"].var()]
    np.testing.assert_allclose(variances, 2 if activation == "relu" else 1, rtol=0.1)


def test_networks_differ_by_their_activation():
    names = ("relu", "tanh", "sigmoid")
    assert len({fl.models.mlp(3, activation=name) for name in names}) == 3
    assert fl.models.mlp(3, activation=jnp.sin) == fl.models.mlp(3, activation=jnp.sin)
    assert fl.models.mlp(3) == fl.models.mlp(3, activation="relu")


def test_an_activation_that_is_none_is_refused():
    with pytest.raises(ValueError, match="unknown activation 'tanhh'; known: relu, sigmoid, tanh"):
        fl.models.mlp(3, activation="tanhh")
    with pytest.raises(TypeError, match="activation must be a string or a function, got 3"):
        fl.models.mlp(3, activation=3)
    wide = fl.models.mlp(3, activation=lambda x: jnp.concatenate([x, -x], axis=1))
    images = jnp.ones((2, 4))
    with pytest.raises(ValueError, match=r"activation must return an array of shape \(2, 200\)"):
        wide.represent(wide.init(jax.random.key(0), images), images)


def test_coordinates_of_parameters_are_found_by_their_paths():
    layout = small.problem().layout
    head = layout.coordinates("^[cd]$")
    assert head.tolist() == [False] * 16 + [True] * 15
    with pytest.raises(ValueError, match="there are: a, b, c, d"):
        layout.coordinates("kernel")
    with pytest.raises(ValueError, match="no regular expression"):
        layout.coordinates("(")


@pytest.mark.parametrize(
    "pooled",
    [
        builtin_networks._pooled_by_patches,
        builtin_networks._pooled_by_halves,
        builtin_networks._pooled_afterwards,
    ],
)
@pytest.mark.parametrize(("size", "shape"), [(3, (7, 6, 3)), (1, (4, 4, 1)), (5, (9, 5, 2))])
@pytest.mark.thin(2, every=1)
def test_pooled_convolutions_equal_jax(pooled, size, shape):
    def expected(x, kernel):
        form = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=form)
        square = (1, 2, 2, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, square, square, "VALID")

    keys = jax.random.split(jax.random.key(size), 3)
    x = jax.random.normal(keys[0], (2, *shape))
    kernel = jax.random.normal(keys[1], (size, size, shape[2], 4))
    np.testing.assert_allclose(pooled(x, kernel), expected(x, kernel), atol=1e-12)
    weights = jax.random.normal(keys[2], expected(x, kernel).shape)
    ours, wanted = (
        jax.grad(lambda x, kernel, f=f: jnp.sum(weights * f(x, kernel)), (0, 1))(x, kernel)
        for f in (pooled, expected)
    )
    for got, by_jax in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(got, by_jax, atol=1e-12)


def test_an_accelerator_shares_ties_as_a_cpu():
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.randint(keys[0], (6, 8, 8, 2), 0, 2).astype(float)
    kernel = jax.random.randint(keys[1], (3, 3, 2, 3), -1, 2).astype(float)
    weights = jax.random.normal(keys[2], (6, 4, 4, 3))
    on_accelerator, on_cpu = (
        jax.grad(lambda x, kernel, f=f: jnp.sum(weights * f(x, kernel)), (0, 1))(x, kernel)
        for f in (builtin_networks._pooled_afterwards, builtin_networks._pooled_by_halves)
    )
    for got, expected in zip(on_accelerator, on_cpu, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)
    assert builtin_networks._pooling(2) == builtin_networks._pooled_by_patches
    assert builtin_networks._pooling(32) == builtin_networks._pooled_by_halves
    with traced_for("cuda"):
        assert builtin_networks._pooling(32) == builtin_networks._pooled_afterwards


def model(outputs=small.outputs, start=small.start, data=None, loss=None, **settings):
    data = small.samples(SIZES) if data is None else data
    loss = fl.problems.Softmax(small.CLASSES) if loss is None else loss
    network = fl.models.plain(start, outputs)
    return fl.problems.Model.from_clients(network, jax.random.key(0), data, loss, **settings)


@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 2, 5)])
def test_an_accelerator_takes_the_local_steps_of_a_cpu(sizes):
    """Its clients of one size have a loop of a known length; records are some rounds apart."""
    problem = model(data=small.samples(sizes))
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=2, epochs=2, batch=4)
    simulation = fl.Simulation(problem, algorithm)
    assert problem.prepare().full == (len(set(sizes)) == 1)

    def final(platform):
        def run(key):
            return trace(simulation, key, 4, 2)[1][0]

        with traced_for(platform):
            return jax.jit(run)(fl.random_key(0))

    on_cpu, on_accelerator = map(final, ("cpu", "cuda"))
    np.testing.assert_allclose(on_accelerator, on_cpu, rtol=1e-12, atol=1e-14)
    assert np.abs(on_cpu - np.asarray(problem.initial)).max() > 1e-3
    record_by_record = fl.run(simulation, 4).model[0]
    np.testing.assert_allclose(on_cpu, record_by_record, rtol=1e-12, atol=1e-14)


def on_the_host(parameters, x):
    shape = jax.ShapeDtypeStruct((len(x), small.CLASSES), x.dtype)
    return jax.pure_callback(
        lambda a: np.zeros(shape.shape, shape.dtype), shape, x @ parameters["a"]
    )


BAD = {
    "no derivative": (lambda: model(on_the_host), ValueError, r"not differentiable .*\(2, 3\)"),
    "whole parameters": (
        lambda: model(start=lambda key: {"a": jnp.arange(3), "b": jnp.ones(2)}),
        TypeError,
        r"floats.* a is int64\[3\]",
    ),
    "no parameters": (lambda: model(start=lambda key: {}), ValueError, "no parameters"),
    "another number of outputs": (
        lambda: model(loss=fl.problems.Softmax(7)),
        ValueError,
        r"needs predictions \(2, 7\), and the network returns \(2, 3\)",
    ),
    "an axis too many": (
        lambda: model(loss=fl.problems.LeastSquares()),
        ValueError,
        r"needs predictions \(2,\), and the network returns \(2, 3\)",
    ),
    "one prediction for all": (
        lambda: model(lambda p, x: jnp.sum(small.outputs(p, x), axis=0)),
        ValueError,
        "one prediction of each sample",
    ),
    "classes": (
        lambda: model(lambda p, x: jnp.argmax(small.outputs(p, x), axis=1)),
        TypeError,
        "argmax",
    ),
    "a loss of all": (
        lambda: model(loss=lambda z, y: jnp.sum(z)),
        ValueError,
        r"one number of each sample.* got \(\)",
    ),
    "a loss of no function": (lambda: model(loss=3.0), TypeError, "function"),
    "samples of another shape": (
        lambda: model(data=[(np.ones((4, 5)), np.zeros(4))] * 2),
        ValueError,
        r"no predictions for features \(2, 5\)",
    ),
    "clients of different shapes": (
        lambda: model(data=[(np.ones((4, 3)), np.zeros(4)), (np.ones((4, 2)), np.zeros(4))]),
        ValueError,
        r"client 1 must have features \[samples, 3\].* got \(4, 2\)",
    ),
    "no samples": (
        lambda: model(data=[(np.ones((0, 3)), np.zeros(0)), (np.ones((0, 3)), np.zeros(0))]),
        ValueError,
        "all 2 clients have no samples",
    ),
    "NaN among samples": (
        lambda: model(data=[(np.full((4, 3), np.nan), np.zeros(4))] * 2),
        ValueError,
        "features",
    ),
    "NaN at the start": (
        lambda: small.problem().starting_at(np.full(31, np.nan)),
        ValueError,
        "start",
    ),
    "a start of another shape": (
        lambda: small.problem().starting_at(np.zeros(30)),
        ValueError,
        r"\(31,\)",
    ),
    "another label": (
        lambda: model(data=[(np.ones((4, 3)), np.full(4, 5))] * 2),
        ValueError,
        "labels among 0, 1, 2",
    ),
    "no type to compute in": (lambda: small.problem(compute="int8"), ValueError, "bfloat16"),
    "no network": (
        lambda: fl.problems.Model.from_clients(
            small.outputs, jax.random.key(0), small.samples(SIZES), fl.problems.Softmax(3)
        ),
        TypeError,
        "architecture",
    ),
    "a bound of features": (
        lambda: fl.problems.Model(
            np.ones((2, 4, 3)),
            np.zeros((2, 4)),
            fl.problems.Softmax(3),
            feature_bound=1.0,
            architecture=small.NETWORK,
        ),
        ValueError,
        "linear predictions",
    ),
    "targets of other clients": (
        lambda: fl.problems.Model(
            np.ones((2, 4, 3)),
            np.zeros((2, 5)),
            fl.problems.Softmax(3),
            architecture=small.NETWORK,
        ),
        ValueError,
        r"\[2, 4, ...\]",
    ),
    "no module": (lambda: fl.models.linen(small.outputs), TypeError, "flax.linen.Module"),
    "an even kernel": (lambda: fl.models.cnn(3, kernel=4), ValueError, "odd"),
    "small images": (
        lambda: fl.models.layout_of(fl.models.cnn(3), (3, 3), np.dtype("float32")),
        ValueError,
        "too small",
    ),
    "no images": (
        lambda: fl.models.layout_of(fl.models.cnn(3), (3,), np.dtype("float32")),
        ValueError,
        "height, width, channels",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_networks_are_refused(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


def simulation(problem=None, **parts):
    defaults = {"problem": small.problem() if problem is None else problem, "metrics": []}
    return fl.Simulation(**(defaults | parts))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"algorithm": fl.algorithms.PADMM(1.0), "network": fl.graphs.complete(3)},
            "linear in the model.*These can: .*DIGing",
        ),
        (
            {"algorithm": fl.algorithms.FedAvg(0.1), "metrics": ["normalized_error"]},
            "optimum, which is not known of a network",
        ),
        (
            {"algorithm": fl.algorithms.FedGD(1.0), "network": fl.graphs.complete(3)},
            "give step_size",
        ),
        ({"algorithm": fl.algorithms.FedAvg(0.1, batch=99)}, "99"),
    ],
)
def test_missing_features_of_networks_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        simulation(**parts)


@pytest.mark.slow
def test_a_network_does_not_start_at_zero():
    data = fl.problems.softmax(jax.random.key(0), clients=3, samples=5, dim=3, classes=3)
    problem = fl.problems.Model(data.features, data.targets, data.loss, architecture=small.NETWORK)
    with pytest.raises(ValueError, match="initialized"):
        simulation(problem, algorithm=fl.algorithms.FedAvg(0.1))
    with pytest.raises(ValueError, match="replay"):
        fl.streams.Replay(problem)


# Every algorithm that takes a network against its loop, told the chain rule by hand.

OBJECTIVE = small.Objective(tuple(small.samples(cases.SIZES)))


def by_loop(label):
    """Its models in every round; ``None``: the loop is of another world than one objective."""
    case = cases.CASES[label]
    takes = inspect.signature(case.oracle).parameters
    algorithm = case.algorithm
    if case.oracle is cases.server_loop:
        return case.oracle(algorithm, cases.full_participation_world(algorithm, OBJECTIVE))
    arguments = {}
    if "objective" in takes:
        arguments["objective"] = OBJECTIVE
    elif "gradient" in takes and "start" in takes:
        with_rounds = case.oracle is cases.exact_peer_models
        start = np.zeros((cases.CLIENTS, OBJECTIVE.dim))
        gradient = (
            (lambda k, w, n, e: OBJECTIVE.gradient(k, w)) if with_rounds else OBJECTIVE.gradient
        )
        arguments = {"gradient": gradient, "start": start}
        if with_rounds:
            arguments["regularized"] = False
    else:
        return None
    if "noise" in takes:
        shape = cases.ROUNDS, cases.CLIENTS
        arguments["noise"] = np.zeros((*shape, OBJECTIVE.dim)), np.zeros(shape)
    return case.oracle(algorithm, **arguments)


#: Whose loops are not of a gradient: of minimizers, streams, predictions or clusters.
OTHERWISE = {
    *("ADMM", "P-ADMM", "NPFL", "NPFL-RL", "pFedMe", "IFCA", "FedProx, exact", "FedRelax"),
    *("DANE", "Network-DANE", "PowerSGD", "FedEM"),
    *("PGFL", "GFL", "ClusterFL", "PGFL, single step", "Sharing ADMM", "Generalized gradient"),
    *("Model-agnostic FedRelax", "Online-Fed", "PAO-Fed", "PAO-Fed, graph", "PSO-Fed", "SignSGD"),
    *("PGFL, by loss", "PGFL, by gradient", "NPFL, by loss", "NPFL, by gradient"),
    "NPFL, by parameters",
    *cases.READING,
}
#: Whose loops are of the small world alone; they are FedAvg, FedGD and the like.
FIXED = {"FedAvg", "ISFedAvg", "DP-SGD", "FedGD", "FedSGD, networked", "GFL, gradient"}
FIXED |= {"HierFAVG", "Hier-Local-QSGD"}


@pytest.mark.slow
@pytest.mark.thin(30, every=2)
@pytest.mark.parametrize("label", [one for one in cases.LABELS if one not in OTHERWISE | FIXED])
def test_every_algorithm_learns_a_network_as_its_loop_does(label):
    theirs = by_loop(label)
    assert theirs is not None
    algorithm = cases.CASES[label].algorithm
    run = fl.run(
        fl.Simulation(
            problem=small.from_zero(cases.SIZES),
            algorithm=algorithm,
            network=None if algorithm.needs.network is None else cases.network_of(algorithm),
            metrics=[fl.metrics.trajectory()],
        ),
        cases.ROUNDS,
        key=as_key(1),
    )
    ours = run.model_trajectory.values
    np.testing.assert_allclose(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=1e-8)
    assert np.abs(theirs[-1] - theirs[0]).max() > 1e-3


# Functions whose results for a sample depend on other samples -------------------------------------


def fitted(loss, apply=None, sizes=(5, 4)):
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in sizes]
    network = fl.models.plain(
        lambda key: {"w": jax.random.normal(key, (3, 1))},
        apply or (lambda parameters, x: x @ parameters["w"]),
    )
    return fl.problems.Model.from_clients(network, jax.random.key(0), data, loss)


def squares(prediction, target):
    return (prediction[:, 0] - target) ** 2


BROADCAST = {
    "a loss of all pairs": (
        lambda: fitted(lambda prediction, target: (prediction - target) ** 2),
        r"loss must return one number of each sample.*\(2, 2\) for two samples and \(3, 3\)",
    ),
    "a loss of means over pairs": (
        lambda: fitted(lambda prediction, target: ((prediction - target) ** 2).mean(1)),
        "loss of a sample must depend on its own prediction and target alone",
    ),
    "right of all pairs": (
        lambda: fitted(fl.problems.FunctionLoss(squares, right=lambda p, t: p > t)),
        r"function right must return one number of each sample.*\(2, 2\)",
    ),
    "right of all together": (
        lambda: fitted(fl.problems.FunctionLoss(squares, right=lambda p, t: jnp.all(p[:, 0] > t))),
        "function right must return one number of each sample",
    ),
    "a network of all pairs": (
        lambda: fitted(squares, lambda parameters, x: x @ x.T),
        "network must return one prediction of each sample.*whatever their number",
    ),
    "a network that sees padding": (
        lambda: fitted(squares, lambda parameters, x: (x - x.mean(0)) @ parameters["w"]),
        "prediction of a sample depends on other samples",
    ),
}


@pytest.mark.parametrize("case", BROADCAST)
def test_functions_that_mix_samples_are_refused(case):
    make, message = BROADCAST[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_functions_of_each_sample_are_taken_and_those_that_mix_where_nothing_is_padded():
    fitted(squares)
    fitted(lambda prediction, target: (prediction - target[:, None]) ** 2)
    fitted(squares, lambda parameters, x: (x - x.mean(0)) @ parameters["w"], sizes=(4, 4))


# Single parameters, and labels --------------------------------------------------------------------


def test_arrays_in_two_places_of_a_module_of_equinox_are_refused():
    eqx = pytest.importorskip("equinox")

    class Tied(eqx.Module):
        first: jax.Array
        last: jax.Array

        def __init__(self, *, key):
            self.first = self.last = jax.random.normal(key, (3, 3))

        def __call__(self, x):
            return self.last @ (self.first @ x)

    with pytest.raises(ValueError, match="first and last are one array, and would be two"):
        fl.models.layout_of(fl.models.equinox(Tied), (3,), "float32")


def test_arrays_used_twice_in_plain_parameters_are_refused():
    def init(key):
        array = jax.random.normal(key, (3,))
        return {"a": array, "b": array}

    network = fl.models.plain(init, lambda parameters, x: x @ (parameters["a"] * parameters["b"]))
    with pytest.warns(UserWarning, match="parameters a and b are one array"):
        fl.models.layout_of(network, (3,), "float32")


def test_labels_without_an_output_are_refused_by_the_loss_of_optax():
    def with_labels(labels):
        data = [(np.ones((3, 2)), np.asarray(labels))]
        loss = optax.softmax_cross_entropy_with_integer_labels
        return fl.problems.Model.from_clients(
            fl.models.mlp(3, hidden=[4]), jax.random.key(0), data, loss
        )

    with_labels([0, 1, 2])
    for labels in ([0, 1, -1], [0, 1, 3]):
        with pytest.raises(ValueError, match="labels must be from 0 to 2, one for each"):
            with_labels(labels)


def test_images_with_their_channels_first_are_refused():
    network = fl.models.cnn(2, channels=[4], hidden=[])
    with pytest.raises(ValueError, match=r"images \[channels, height, width\], as it seems"):
        fl.models.layout_of(network, (3, 8, 8), "float32")
    fl.models.layout_of(network, (8, 8, 3), "float32")
