"""Parts of a network: some parameters trained, the others shared; adapters of low rank."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.numerics import default_promotion

close = np.testing.assert_allclose

CLIENTS = 3
STEP = 0.2
STEPS = 4


def client_data():
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(8, 4)), rng.integers(0, 3, 8)) for _ in range(CLIENTS)]


DATA = client_data()
TEST = (DATA[0][0] + 0.1, DATA[0][1])


def problem_of(network=None, test=True, data=DATA):
    return fl.problems.Model.from_clients(
        fl.models.mlp(3, hidden=[5]) if network is None else network,
        jax.random.key(0),
        data,
        fl.problems.Softmax(3),
        test=[TEST] if test else None,
    )


def loss(problem, row, x, y):
    logits = problem.architecture.apply(problem.layout.parameters(row), jnp.asarray(x))
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(y)[:, None], axis=1)
    return -jnp.mean(chosen)


def averaged(problem, chosen, rounds):
    """Federated averaging of all parameters whose gradient is set to zero where it is not chosen,
    and the loss on held-out data.
    """
    gradient = jax.jit(jax.grad(lambda row, x, y: loss(problem, row, x, y)))
    row = problem.initial
    for _ in range(rounds):
        rows = []
        for x, y in DATA:
            own = row
            for _ in range(STEPS):
                own = own - STEP * jnp.where(chosen, gradient(own, jnp.asarray(x), y), 0)
            rows.append(own)
        row = sum(rows) / CLIENTS
    return np.asarray(row), float(loss(problem, row, *TEST))


NETWORKS = {
    "head": (lambda: fl.models.mlp(3, hidden=[5]), "^layer_1/"),
    "biases": (lambda: fl.models.mlp(3, hidden=[5]), "bias$"),
    "lora": (lambda: fl.models.lora(fl.models.mlp(3, hidden=[5]), 2, scale=0.5), "^lora/"),
    "second factors": (lambda: fl.models.lora(fl.models.mlp(3, hidden=[5]), 2), "/b$"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_others_keep_their_values_and_the_trained_ones_are_those_of_a_loop(name):
    make, pattern = NETWORKS[name]
    whole = problem_of(make())
    part = whole.training_only(pattern)
    chosen = whole.coordinates(pattern)
    assert part.dim == chosen.sum() < whole.dim
    algorithm = fl.algorithms.FedAvg(STEP, local_steps=STEPS)
    run = fl.run(fl.Simulation(part, algorithm, metrics=["test_error"]), rounds=3)
    with default_promotion():
        expected, error = averaged(whole, jnp.asarray(chosen), 3)
    close(run.model.isel(client=0), expected[chosen], rtol=1e-10, atol=1e-12)
    close(run.test_error[-1], error, rtol=1e-10)
    tree = part.parameters(run.model[0].values)
    close(whole.layout.row(tree), expected, rtol=1e-10, atol=1e-12)
    assert int(run.bits_up[-1]) == 3 * CLIENTS * part.dim * 32
    assert part.layout.paths == tuple(p for p in whole.layout.paths if re.search(pattern, p))


def test_adapters_begin_at_the_network_and_reach_every_layer():
    base = fl.models.transformer(7, width=8, layers=1, heads=2, longest=5)
    network = fl.models.lora(base, 2)
    tokens = jnp.arange(10).reshape(2, 5) % 7
    with default_promotion():
        parameters = network.init(jax.random.key(0), tokens[:1])
        close(network.apply(parameters, tokens), base.apply(parameters["base"], tokens), rtol=1e-12)
        moved = jax.tree.map(lambda leaf: leaf + 0.1, parameters["lora"])
        after = network.apply(parameters | {"lora": moved}, tokens)
        change = np.abs(after - network.apply(parameters, tokens)).max()
    assert change > 1e-3
    kernels = [p for p in parameters["lora"] if "kernel" in p]
    assert len(kernels) == len(parameters["lora"]) == 6  # of attention four, and two dense ones
    shapes = {p: (f["a"].shape, f["b"].shape) for p, f in parameters["lora"].items()}
    [query] = [shape for path, shape in shapes.items() if "query" in path]
    [out] = [shape for path, shape in shapes.items() if "/out/" in path]
    assert query == out == ((8, 2), (2, 8))  # [8, 2, 4] and [2, 4, 8] as matrices


def test_an_adapter_is_added_to_its_weight():
    network = fl.models.lora(fl.models.mlp(3, hidden=[]), 2, scale=0.5)
    rng = np.random.default_rng(0)
    x, weight, a, b = (rng.normal(size=shape) for shape in ((6, 4), (4, 3), (4, 2), (2, 3)))
    parameters = {
        "base": {"layer_0": {"kernel": jnp.asarray(weight), "bias": jnp.arange(3.0)}},
        "lora": {"layer_0/kernel": {"a": jnp.asarray(a), "b": jnp.asarray(b)}},
    }
    expected = x @ (weight + 0.5 * a @ b) + np.arange(3.0)
    close(network.apply(parameters, jnp.asarray(x)), expected, rtol=1e-12)


def test_each_seed_has_its_own_network_whose_rest_stays():
    def scenario(key):
        problem = fl.problems.Model.from_clients(
            fl.models.mlp(3, hidden=[5]), key, DATA, fl.problems.Softmax(3)
        ).training_only("^layer_1/")
        problem = problem.with_test(*TEST)
        algorithm = fl.algorithms.SCAFFOLD(STEP, local_steps=2)
        return fl.Simulation(problem, algorithm, metrics=["test_error"])

    study = fl.sweep(scenario, rounds=3, seeds=3, keep_models=True)
    assert study.sizes["parameter"] == 18
    assert len(set(study.test_error[:, -1].values.round(9).tolist())) == 3


def test_parts_are_trained_privately_and_by_a_population(tmp_path):
    problem = problem_of().training_only("^layer_1/")
    private = fl.Simulation(
        problem,
        fl.algorithms.FedDPSGD(0.1, sampling_rate=0.5),
        privacy=fl.privacy.NoisyGradients(1.0, clip=0.5),
    )
    assert fl.run(private, rounds=2).sizes["parameter"] == 18
    on_disk = fl.problems.Model.from_population(
        fl.data.write_population(tmp_path / "three", DATA),
        fl.models.mlp(3, hidden=[5]),
        jax.random.key(0),
        fl.problems.Softmax(3),
        test=TEST,
    ).training_only("^layer_1/")
    algorithm = fl.algorithms.FedAvg(STEP, clients_per_round=2, local_steps=2)
    runs = [
        fl.run(fl.Simulation(p, algorithm, metrics=["test_error"]), rounds=3, key=2)
        for p in (on_disk, problem)
    ]
    close(*(run.test_error for run in runs), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: problem_of().training_only("conv"), "no parameter's path matches"),
        (lambda: problem_of().training_only("."), "all parameters' paths match"),
        (lambda: problem_of().training_only("bias").training_only("kernel"), "one pattern"),
        (
            lambda: problem_of().initialized(jax.random.key(0), own=True).training_only("bias"),
            "one for all clients",
        ),
        (lambda: fl.models.lora(3, 2), "network must be"),
        (lambda: fl.models.lora(fl.models.mlp(3), 0), "rank must be"),
        (lambda: fl.models.lora(fl.models.mlp(3), 1, targets="("), "no regular expression"),
        (
            lambda: problem_of(fl.models.lora(fl.models.mlp(3), 1, targets="bias")),
            "no weight of two axes",
        ),
    ],
)
def test_parts_that_do_not_exist_are_refused(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()
