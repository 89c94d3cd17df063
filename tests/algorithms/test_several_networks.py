"""Clients with networks of several widths or kinds: loops, traffic, evaluation, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax._core.numerics import default_promotion
from fljax.algorithms import (
    FedAvg,
    FedDF,
    FedDistill,
    FedMD,
    FedProto,
    FjORD,
    FLoRA,
    HeteroFL,
    LocalOnly,
)
from fljax.algorithms.public_points import passes_over
from fljax.algorithms.server.fjord import drawn_widths
from fljax.participation.patterns import Trace
from tests.cases import ROUNDS, SIZES, reading
from tests.reference import several
from tests.support import small_network as small
from tests.support.server_runs import ACTIVE, FALLING, UNLIKE, trajectory, visits_of

close = np.testing.assert_allclose

#: Hidden units of the networks, the widest first.
WIDTHS = (4, 3, 1)
#: The number of each client's network.
NUMBERS = (0, 2, 1, 1, 2)
HIDDEN = [WIDTHS[number] for number in NUMBERS]
NET = reading.NET
KINDS = (0, 1, 1, 0, 1)


def narrow_start(hidden):
    """The parameters of the small network with fewer units, and where they start from."""
    full = small.SHIFT
    return {
        "a": full["a"][:, :hidden],
        "b": full["b"][:hidden],
        "c": full["c"][:hidden],
        "d": full["d"],
    }


@dataclasses.dataclass(frozen=True)
class Narrow(fl.models.Architecture):
    """The small network with so many hidden units, whose parameters are zero where it starts."""

    hidden: int
    head_paths = "^[cd]$"

    def init(self, key, features):
        return jax.tree.map(jnp.zeros_like, narrow_start(self.hidden))

    def represent(self, parameters, features):
        return small.hidden(jax.tree.map(jnp.add, parameters, narrow_start(self.hidden)), features)

    def head(self, parameters, representation):
        return small.logits(
            jax.tree.map(jnp.add, parameters, narrow_start(self.hidden)), representation
        )


def problem_of(networks, numbers, **settings):
    return fl.problems.Model.from_clients(
        networks, jax.random.key(0), small.samples(SIZES), fl.problems.Softmax(3), **settings
    ).assigning(numbers)


NESTED = fl.models.nested([Narrow(width) for width in WIDTHS])
DIFFERENT = fl.models.several([Narrow(4), Narrow(2)])


def weights_of(algorithm):
    return reading.weights_of(algorithm, NET)


FORMS = {
    "batches": HeteroFL(FALLING, 4, 2, 3),
    "unlike": HeteroFL(0.3, local_steps=UNLIKE, weighting="samples"),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", FORMS)
def test_heterofl_equals_the_loop(form):
    algorithm = FORMS[form]
    visits = visits_of(algorithm, ACTIVE, SIZES)
    expected = several.heterofl(
        NET,
        np.zeros(31),
        reading.step_of(algorithm.step_size),
        weights_of(algorithm),
        visits,
        HIDDEN,
    )
    result = trajectory(algorithm, problem_of(NESTED, NUMBERS), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    same = several.heterofl(
        NET,
        np.zeros(31),
        reading.step_of(algorithm.step_size),
        weights_of(algorithm),
        visits,
        [4] * 5,
    )
    assert np.abs(same - expected).max() > 1e-2


def drawn_of(algorithm):
    numbers = jnp.asarray(NUMBERS, jnp.int32)
    clients = jnp.arange(5, dtype=jnp.int32)
    longest = algorithm._longest(max(SIZES))
    draws = []
    for key in reading.algorithm_keys():
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, clients)
        draws.append(np.asarray(drawn_widths(keys, numbers, 3, longest)))
    return draws


FJORDS = {
    "batches": FjORD(FALLING, 4, 2, 3),
    "taught": FjORD(0.3, local_steps=UNLIKE, distillation=0.7, temperature=2.0),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", FJORDS)
def test_fjord_equals_the_loop(form):
    algorithm = FJORDS[form]
    visits = visits_of(algorithm, ACTIVE, SIZES)
    loop = (NET, np.zeros(31), reading.step_of(algorithm.step_size), weights_of(algorithm), visits)
    numbers = float(algorithm.distillation), float(algorithm.temperature)
    drawn = drawn_of(algorithm)
    expected = several.fjord(*loop, HIDDEN, WIDTHS, drawn, *numbers)
    result = trajectory(algorithm, problem_of(NESTED, NUMBERS), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.abs(several.heterofl(*loop, HIDDEN) - expected).max() > 1e-2


def test_drawn_widths_are_uniform_over_the_own_one_and_narrower_ones():
    numbers = jnp.array([0, 1, 3], jnp.int32)
    keys = jax.random.split(jax.random.key(0), 3)
    drawn = np.asarray(drawn_widths(keys, numbers, 4, 6000))
    for row, first in zip(drawn, (0, 1, 3), strict=True):
        values, counts = np.unique(row, return_counts=True)
        assert values.tolist() == list(range(first, 4))
        expected = 6000 / len(values)
        assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


def test_clients_with_the_widest_network_average_as_in_fedavg():
    arguments = FALLING, 4, 2, 3
    widest = problem_of(NESTED, 0)
    alone = fl.problems.Model.from_clients(
        Narrow(4), jax.random.key(0), small.samples(SIZES), fl.problems.Softmax(3)
    )
    expected = trajectory(FedAvg(*arguments), alone, participation=Trace(ACTIVE))
    for kind in (HeteroFL, FjORD):
        result = trajectory(kind(*arguments), alone, participation=Trace(ACTIVE))
        close(result, expected, rtol=0, atol=1e-12)
    result = trajectory(HeteroFL(*arguments), widest, participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-12)


def rows_of_kinds(history):
    """``[T, D]``, the server's models of both networks in one row."""
    return np.array([np.concatenate(models) for models in history])


FUSIONS = {
    "batches": FedDF(
        FALLING,
        4,
        2,
        3,
        public=reading.PUBLIC,
        public_batch=3,
        distillation_step_size=0.3,
        distillation_steps=5,
    ),
    "warm": FedDF(
        0.3,
        local_steps=UNLIKE,
        weighting="samples",
        public=reading.PUBLIC,
        public_batch=7,
        distillation_step_size=FALLING,
        distillation_steps=2,
        temperature=3.0,
    ),
}


def feddf_history(algorithm, batches=None):
    nets = [several.narrow(NET, 4), several.narrow(NET, 2)]
    return rows_of_kinds(
        several.feddf(
            nets,
            KINDS,
            [np.zeros_like(net.shift) for net in nets],
            reading.step_of(algorithm.step_size),
            weights_of(algorithm),
            visits_of(algorithm, ACTIVE, SIZES),
            reading.PUBLIC,
            reading.feddf_batches(algorithm) if batches is None else batches,
            reading.step_of(algorithm.distillation_step_size),
            float(algorithm.temperature),
        )
    )


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", FUSIONS)
def test_feddf_equals_the_loop(form):
    algorithm = FUSIONS[form]
    expected = feddf_history(algorithm)
    problem = problem_of(DIFFERENT, KINDS)
    result = trajectory(algorithm, problem, participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    undistilled = feddf_history(algorithm, [[]] * ROUNDS)
    assert np.abs(undistilled - expected).max() > 1e-2


DIGESTS = {
    "batches": FedMD(
        FALLING, 4, 2, 3, public=reading.PUBLIC, public_samples=5, digest_batch=2, digest_epochs=2
    ),
    "squared": FedMD(
        0.3, local_steps=UNLIKE, public=reading.PUBLIC, digest_step_size=FALLING, distance="squared"
    ),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", DIGESTS)
def test_fedmd_equals_the_loop(form):
    algorithm = DIGESTS[form]
    nets = [several.narrow(NET, (4, 2)[kind]) for kind in KINDS]
    history = several.fedmd(
        nets,
        [np.zeros_like(net.shift) for net in nets],
        reading.step_of(algorithm.step_size),
        visits_of(algorithm, ACTIVE, SIZES),
        reading.PUBLIC,
        *reading.fedmd_draws(algorithm),
        reading.step_of(algorithm.digest_step_size or algorithm.step_size),
        algorithm.distance,
    )
    problem = problem_of(DIFFERENT, KINDS)
    metrics = [fl.metrics.trajectory()]
    simulation = fl.Simulation(problem, algorithm, metrics=metrics, participation=Trace(ACTIVE))
    result = fl.run(simulation, ROUNDS, key=fl.random_key(1)).model_trajectory.values
    masks = np.asarray(problem.held())
    for of_round, expected in zip(result, history, strict=True):
        for k, row in enumerate(expected):
            close(of_round[k][masks[k]], row, rtol=0, atol=1e-10)
            assert not of_round[k][~masks[k]].any()  # what it does not have is as it was


def test_networks_read_their_own_parameters():
    """Gradients, predictions and representations are those of each network alone."""
    problem = problem_of(NESTED, NUMBERS)
    models = jax.random.normal(jax.random.key(1), (5, 31)) / 3
    gradient = problem.gradient(models)
    predictions = problem.predictions(models)
    for k, hidden in enumerate(HIDDEN):
        at = several.places(NET, hidden)
        alone = fl.problems.Model.from_clients(
            Narrow(hidden), jax.random.key(0), small.samples(SIZES), fl.problems.Softmax(3)
        )
        rows = jnp.broadcast_to(models[k, at], (5, len(at)))
        close(gradient[k, at], alone.gradient(rows)[k], rtol=0, atol=1e-14)
        close(predictions[k], alone.predictions(rows)[k], rtol=0, atol=1e-14)
        outside = np.setdiff1d(np.arange(31), at)
        assert not np.asarray(gradient[k])[outside].any()
    with_one_network = problem.take(jnp.array([3, 1]))
    close(with_one_network.gradient(models[jnp.array([3, 1])])[1], gradient[1], rtol=0, atol=1e-14)


def test_a_channel_keeps_its_rows_where_it_is_flattened():
    """Two pixels of four channels: half of the channels are rows 0, 1, 4 and 5."""

    def start(channels):
        def init(key):
            return {"mix": jnp.ones((3, channels)), "read": jnp.ones((2 * channels, 2))}

        return init

    def apply(parameters, x):
        return jnp.tanh(x @ parameters["mix"]).reshape(len(x), -1) @ parameters["read"]

    networks = fl.models.nested([fl.models.plain(start(c), apply) for c in (4, 2)])
    places = networks.places((2, 3), "float64")
    assert places[0].tolist() == list(range(28))
    mix = [0, 1, 4, 5, 8, 9]
    read = [12 + 2 * row + column for row in (0, 1, 4, 5) for column in (0, 1)]
    assert places[1].tolist() == [*mix, *read]


@pytest.mark.parametrize(
    ("wide", "narrow", "sample"),
    [
        (fl.models.cnn(3, [8, 4], [6]), fl.models.cnn(3, [4, 2], [3]), (12, 12, 1)),
        (
            fl.models.lora(fl.models.mlp(3, [6]), rank=4),
            fl.models.lora(fl.models.mlp(3, [6]), rank=2),
            (5,),
        ),
    ],
    ids=["cnn", "ranks"],
)
def test_a_narrower_network_is_the_wide_one_with_the_other_parameters_at_zero(wide, narrow, sample):
    networks = fl.models.nested([wide, narrow])
    places = networks.places(sample, "float64")[1]
    layout = fl.models.layout_of(wide, sample, "float64")
    narrow_layout = fl.models.layout_of(narrow, sample, "float64")
    row = jax.random.normal(jax.random.key(0), (layout.dim,))
    row = jnp.zeros(layout.dim).at[places].set(row[places])
    samples = jax.random.normal(jax.random.key(1), (6, *sample))
    with default_promotion():
        expected = wide.apply(layout.parameters(row), samples)
        result = narrow.apply(narrow_layout.parameters(row[places]), samples)
    close(result, expected, rtol=0, atol=1e-10)


def test_messages_have_as_many_numbers_as_a_part():
    sizes = [len(several.places(NET, hidden)) for hidden in HIDDEN]
    run = fl.run(fl.Simulation(problem_of(NESTED, NUMBERS), HeteroFL(0.1)), rounds=3)
    assert int(run.scalars[-1]) == 2 * 3 * sum(sizes)
    assert int(run.bits_up[-1]) == 3 * 32 * sum(sizes)
    sizes = [(31, 17)[kind] for kind in KINDS]
    fusion = fl.Simulation(problem_of(DIFFERENT, KINDS), FUSIONS["batches"])
    drawn = dataclasses.replace(fusion.algorithm, clients_per_round=None)
    run = fl.run(dataclasses.replace(fusion, algorithm=drawn), rounds=2)
    assert int(run.bits_up[-1]) == int(run.bits_down[-1]) == 2 * 32 * sum(sizes)


def test_models_are_evaluated_with_the_clients_networks_or_one_of_them():
    test = small.samples([9], seed=3)[0]
    problem = problem_of(NESTED, NUMBERS).with_test(*test)
    row = jax.random.normal(jax.random.key(1), (31,))
    x, y = test
    errors = []
    for hidden in WIDTHS:
        network = several.narrow(NET, hidden)
        z = network.logits(np.asarray(row)[several.places(NET, hidden)], x)
        chosen = np.array([line[t] for line, t in zip(z, y, strict=True)])
        errors.append(np.mean(np.log(np.sum(np.exp(z), axis=1)) - chosen))

    def evaluated(problem):
        still = FedAvg(1e-12) if problem.assignment is None else HeteroFL(1e-12)
        simulation = fl.Simulation(problem.starting_at(row), still, metrics=["test_error"])
        return float(fl.run(simulation, rounds=1).test_error[-1])

    close(evaluated(problem), np.mean([errors[number] for number in NUMBERS]), rtol=1e-6)
    for number, error in enumerate(errors):
        close(evaluated(problem.assigning(NUMBERS, evaluated=number)), error, rtol=1e-6)


def test_clipped_gradients_are_those_of_single_samples():
    problem = problem_of(NESTED, NUMBERS)
    models = jax.random.normal(jax.random.key(1), (5, 31)) / 2
    clipped = problem.clipped(0.3).loss_gradient(models)
    for k in range(5):
        total = np.zeros(31)
        for j in range(SIZES[k]):
            sample_gradient = problem.take(jnp.array([k]), jnp.array([[j]])).loss_gradient(
                models[k : k + 1]
            )[0]
            total += sample_gradient * min(1, 0.3 / np.linalg.norm(sample_gradient)) / SIZES[k]
        close(clipped[k], total, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["pool", "population"])
def test_clients_of_a_pool_or_a_population_have_networks_of_their_own(kind, tmp_path):
    data = [(x, y.astype("i4")) for x, y in small.samples(SIZES)]
    loss = fl.problems.Softmax(3)
    key = jax.random.key(0)
    in_memory = fl.problems.Model.from_clients(NESTED, key, data, loss, test=[data[0]])
    if kind == "pool":
        features = np.concatenate([x for x, _ in data])
        targets = np.concatenate([y for _, y in data])
        ends = np.cumsum(SIZES)
        partition = fl.partitions.Partition(np.arange(ends[-1]), np.array([0, *ends]))
        other = fl.problems.Model.from_pool(NESTED, key, features, targets, loss, partition)
        other = dataclasses.replace(other, initial=in_memory.initial)
    else:
        population = fl.data.write_population(tmp_path / "clients", data)
        other = fl.problems.Model.from_population(population, NESTED, key, loss, test=data[0])
    algorithm = HeteroFL(0.3, 3, local_steps=2)
    expected = fl.run(fl.Simulation(in_memory.assigning(NUMBERS), algorithm), rounds=5).model
    result = fl.run(fl.Simulation(other.assigning(NUMBERS), algorithm), rounds=5).model
    close(result if kind == "population" else result[0], expected[0], rtol=0, atol=1e-6)


def test_assignments_are_drawn_from_a_scenarios_key():
    """One compiled program for all seeds, each with clients of other widths."""

    def scenario(key, narrow):
        numbers = jnp.where(jax.random.uniform(key, (5,)) < narrow, 2, 0)
        problem = problem_of(NESTED, numbers, test=small.samples(SIZES, seed=3))
        return fl.Simulation(problem, HeteroFL(0.3, local_steps=3), metrics=["test_error"])

    study = fl.sweep(scenario, grid={"narrow": [0.0, 1.0]}, seeds=3, rounds=5)
    for number, narrow in enumerate((0, 2)):
        problem = problem_of(NESTED, narrow, test=small.samples(SIZES, seed=3))
        simulation = fl.Simulation(problem, HeteroFL(0.3, local_steps=3), metrics=["test_error"])
        alone = fl.run(simulation, rounds=5).test_error
        close(study.test_error[number, 0], alone, rtol=1e-6)


def test_dropout_and_an_optimizer_train_the_own_network():
    flax = pytest.importorskip("flax")

    class Dropped(flax.linen.Module):
        width: int

        @flax.linen.compact
        def __call__(self, x, train: bool = False):
            x = flax.linen.relu(flax.linen.Dense(self.width)(x))
            x = flax.linen.Dropout(0.5, deterministic=not train)(x)
            return flax.linen.Dense(3)(x)

    networks = fl.models.nested([fl.models.linen(Dropped(width)) for width in (8, 4)])
    problem = problem_of(networks, [0, 1, 1, 0, 1])
    masks = np.asarray(problem.held())
    algorithm = HeteroFL(optax.adam(0.01), epochs=2, batch=2)
    simulation = fl.Simulation(problem, algorithm, metrics=["train_error"])
    run = fl.run(simulation, rounds=4)
    assert np.isfinite(run.train_error).all()
    only_narrow = fl.run(fl.Simulation(problem.assigning(1), algorithm), rounds=4).model.values
    moved = only_narrow[0] != np.asarray(problem.initial)
    assert not moved[~masks[1]].any()
    assert moved[masks[1]].mean() > 0.9


def test_methods_without_parameters_on_the_way_train_different_networks():
    networks = fl.models.several([Narrow(4), fl.models.mlp(3, hidden=[4, 4])])
    problem = problem_of(networks, KINDS)
    start = float(jnp.mean(problem.mean_loss(jnp.broadcast_to(problem.initial, (5, problem.dim)))))
    for algorithm in (FedDistill(0.3, epochs=5), FedProto(0.3, epochs=5), LocalOnly(0.3, 5)):
        run = fl.run(fl.Simulation(problem, algorithm, metrics=["train_error"]), rounds=20)
        assert float(run.train_error[-1].mean()) < 0.9 * start
    by_prototypes = FedProto(0.3, epochs=5)
    assert by_prototypes.message_size_of(problem) == 3 * (4 + 1)


DATA = fl.problems.softmax(jax.random.key(0), clients=4, samples=9, dim=6, classes=3)


def of(networks):
    return fl.problems.Model.of(DATA, networks, jax.random.key(1))


def widths(*hidden):
    return [fl.models.mlp(3, hidden=[size]) for size in hidden]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.models.nested(widths(4)), "networks must be two or more, got 1"),
        (lambda: fl.models.several([len, len]), "networks must be a sequence, each an instance of"),
        (
            lambda: fl.models.several([fl.models.nested(widths(4, 2)), *widths(4)]),
            "must be single ones of fljax.models",
        ),
        (
            lambda: of(fl.models.nested(widths(4, 5))),
            r"the widest first, and layer_0/bias has shape \(4,\) and, of network 1, \(5,\)",
        ),
        (
            lambda: of(fl.models.nested([*widths(4), fl.models.mlp(3, hidden=[])])),
            "networks that nest have the same layers, .* fljax.models.several takes different",
        ),
        (
            lambda: of(fl.models.several([*widths(4), fl.models.mlp(2, hidden=[4])])),
            r"predictions of the same shape, got \(2, 3\), \(2, 2\)",
        ),
        (lambda: of(fl.models.mlp(3)).assigning(0), "all clients have the same network"),
        (
            lambda: of(fl.models.nested(widths(4, 2))).assigning([0, 1]),
            "the number of each of the 4 clients' networks",
        ),
        (
            lambda: of(fl.models.nested(widths(4, 2))).assigning([0, 1, 2, 1]),
            "networks have the numbers 0 to 1, got 0 to 2",
        ),
        (
            lambda: of(fl.models.nested(widths(4, 2))).assigning(0, evaluated=2),
            "evaluated must be finite and >= 0 and <= 1, got 2",
        ),
        (
            lambda: of(fl.models.several(widths(4, 2))).assigning(0, evaluated=1),
            "evaluated each for its own clients; leave out evaluated",
        ),
    ],
)
def test_networks_that_do_not_fit_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


PUBLIC = np.zeros((9, 6))


@pytest.mark.parametrize(
    ("networks", "algorithm", "message"),
    [
        ("nested", FedAvg(0.1), "FedAvg rests on one network of all clients.*HeteroFL"),
        ("several", HeteroFL(0.1), r"HeteroFL is for nested networks .*different ones"),
        (
            "nested",
            FedDF(0.1, public=PUBLIC, public_batch=3, distillation_step_size=0.1),
            "FedDF is for different networks",
        ),
        ("unassigned", LocalOnly(0.1), "which client has which network"),
        (
            "several",
            FedMD(0.1, public=np.zeros((9, 5))),
            r"public must be samples like the clients', \[points, 6\], got shape \(9, 5\)",
        ),
    ],
)
def test_algorithms_say_which_networks_they_take(networks, algorithm, message):
    builder = fl.models.nested if networks == "nested" else fl.models.several
    problem = of(builder(widths(4, 2)))
    if networks != "unassigned":
        problem = problem.assigning([0, 1, 1, 0])
    with pytest.raises(ValueError, match=message):
        fl.Simulation(problem, algorithm)


def test_parts_of_models_are_not_compressed_or_aggregated_robustly():
    problem = of(fl.models.nested(widths(4, 2))).assigning([0, 1, 1, 0])
    for parts_, message in (
        ({"compression": fl.link.TopK(3)}, "lengths follow from clients' networks"),
        ({"aggregation": fl.aggregation.Median()}, "leave out aggregation="),
    ):
        with pytest.raises(ValueError, match=message):
            fl.Simulation(problem, HeteroFL(0.1), **parts_)


def test_networks_with_running_statistics_are_refused():
    flax = pytest.importorskip("flax")

    class Normalized(flax.linen.Module):
        width: int

        @flax.linen.compact
        def __call__(self, x, train: bool = False):
            x = flax.linen.Dense(self.width)(x)
            x = flax.linen.BatchNorm(use_running_average=not train)(x)
            return flax.linen.Dense(3)(x)

    networks = fl.models.nested([fl.models.linen(Normalized(width)) for width in (4, 2)])
    with pytest.raises(ValueError, match="networks of several sizes have no state"):
        of(networks)


FLORAS = {
    "batches": FLoRA(FALLING, 4, 2, 3),
    "unlike": FLoRA(0.3, local_steps=UNLIKE, weighting="samples"),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", FLORAS)
def test_flora_equals_the_loop(form):
    algorithm = FLORAS[form]
    visits = visits_of(algorithm, ACTIVE, SIZES)
    expected = reading.flora_models(algorithm, visits)[:, 0]
    problem = reading.make_read(label="FLoRA")
    result = trajectory(algorithm, problem, participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2


def test_flora_averages_products_and_not_factors():
    """A rank of one: the average of two products has rank two, that of the factors has one."""
    data = small.samples((9, 9))
    network = fl.models.lora(fl.models.mlp(3, hidden=[]), rank=1)
    loss = fl.problems.Softmax(3)
    problem = fl.problems.Model.from_clients(network, jax.random.key(0), data, loss)

    def kernel_after(problem, algorithm):
        model = fl.run(fl.Simulation(problem, algorithm), rounds=1).model.values[0]
        return network.merged(problem._tree(jnp.asarray(model)))["base"]["layer_0"]["kernel"]

    start = network.merged(problem.parameters(problem.initial))["base"]["layer_0"]["kernel"]
    exact = kernel_after(problem, FLoRA(0.5, local_steps=5)) - start
    factors = kernel_after(problem.training_only("^lora/"), FedAvg(0.5, local_steps=5)) - start
    assert np.linalg.matrix_rank(exact, tol=1e-6) == 2
    assert np.linalg.matrix_rank(factors, tol=1e-6) == 1


def test_flora_counts_adapters_up_and_their_stack_down():
    problem = reading.make_read(label="FLoRA")
    numbers = 2 * (3 + 3)
    run = fl.run(fl.Simulation(problem, FLoRA(0.1, clients_per_round=2)), rounds=3)
    assert int(run.bits_up[-1]) == 3 * 2 * 32 * numbers
    assert int(run.bits_down[-1]) == 3 * 5 * 2 * 32 * numbers  # to every client those of two


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (lambda: of(fl.models.mlp(3)), "trains adapters of low rank, of a network made by"),
        (lambda: DATA, "trains adapters of low rank, of a network made by"),
        (
            lambda: of(fl.models.lora(fl.models.mlp(3), rank=1)).training_only("^lora/"),
            r"leave out training_only\(\)",
        ),
    ],
)
def test_flora_refuses_networks_without_adapters(problem, message):
    with pytest.raises(ValueError, match=message):
        fl.Simulation(problem(), FLoRA(0.1))


def test_the_effect_of_a_feature_is_that_of_each_clients_network():
    """On common held-out data: of one model, the mean over the clients' networks."""
    x = small.samples([9], seed=3)[0][0]
    x[:, 0] = np.arange(9) % 2
    test = x, np.zeros(9, int)
    row = jax.random.normal(jax.random.key(1), (31,))
    problem = problem_of(NESTED, NUMBERS).with_test(*test).starting_at(row)
    flipped = x.copy()
    flipped[:, 0] = 1 - flipped[:, 0]
    effects = []
    for hidden in HIDDEN:
        network = several.narrow(NET, hidden)
        w = np.asarray(row)[several.places(NET, hidden)]
        effects.append(
            np.linalg.norm(network.logits(w, x) - network.logits(w, flipped), axis=1).mean()
        )
    metric = fl.fairness.flip_effect(0)
    run = fl.run(fl.Simulation(problem, HeteroFL(1e-12), metrics=[metric]), rounds=1)
    close(np.mean(run.flip_effect.values[-1]), np.mean(effects), rtol=1e-6)


def test_data_of_other_clients_are_not_read_with_these_networks():
    problem = problem_of(NESTED, NUMBERS).with_test(*small.samples([9], seed=3)[0])
    with pytest.raises(ValueError, match="data of 1 clients are read with the networks of 5"):
        problem.test.predictions(jnp.zeros((1, 31)))


def test_passes_over_public_samples_visit_each_of_them_once():
    """Seven samples by three: the third batch of a pass has one, and is filled up with seven."""
    batches = np.asarray(passes_over(jax.random.key(0), 7, 3, 8))
    assert batches.shape == (8, 3)
    passes = [batches[:3].ravel(), batches[3:6].ravel()]
    for order in passes:
        assert sorted(order[:7].tolist()) == list(range(7))
        assert order[7:].tolist() == [7, 7]
    assert not np.array_equal(*passes)
    assert np.all(batches[6:] < 7)  # a part of the third pass
