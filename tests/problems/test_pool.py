"""Problems on a pool of samples, against the same clients with arrays of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import replace
from fljax.algorithms import local_steps
from fljax.problems import pool
from fljax.problems.pool import PooledRows, tiles_of
from fljax.problems.problem import value_of
from tests.cases import CASES, STREAMED, simulate

SIZES = (3, 40, 9, 21, 1, 70)
RNG = np.random.default_rng(5)
FEATURES = RNG.normal(size=(sum(SIZES), 4))
TARGETS = RNG.normal(size=sum(SIZES))
LABELS = RNG.integers(0, 3, sum(SIZES))
ORDER = RNG.permutation(sum(SIZES))
PARTITION = fl.partitions.Partition(
    jnp.asarray(ORDER, jnp.int32), jnp.asarray(np.append(0, np.cumsum(SIZES)), jnp.int32)
)


def pairs(targets, features=FEATURES):
    return [(features[rows], targets[rows]) for rows in PARTITION.rows()]


def both(targets, loss, change=lambda problem: problem, **settings):
    """The same problem on a pool and with clients' own samples."""
    pooled = fl.problems.from_pool(FEATURES, targets, loss, PARTITION, **settings)
    stacked = fl.problems.from_clients(pairs(targets), loss, **settings)
    return change(pooled), change(stacked)


def networks(change=lambda problem: problem, **settings):
    network = fl.models.mlp(3, hidden=[5])
    loss = fl.problems.Softmax(3)
    pooled = fl.problems.Model.from_pool(
        network, jax.random.key(0), FEATURES, LABELS, loss, PARTITION, **settings
    )
    stacked = fl.problems.Model.from_clients(
        network, jax.random.key(0), pairs(LABELS), loss, **settings
    )
    return change(pooled), change(replace(stacked, initial=pooled.initial))


def on_pool(problem):
    """A problem with its samples in a pool, in another order."""
    features = np.asarray(problem.features)
    clients, samples = features.shape[:2]
    place = np.random.default_rng(0).permutation(clients * samples)
    rows = np.empty((clients * samples, *features.shape[2:]), features.dtype)
    rows[place] = features.reshape(rows.shape)
    index = jnp.asarray(place.reshape(clients, samples), jnp.int32)
    return replace(problem, features=PooledRows(jnp.asarray(rows), index, tile=5))


PROBLEMS = {
    "least squares": lambda: both(TARGETS, fl.problems.LeastSquares(), strength=0.3),
    "regularized": lambda: both(
        TARGETS, fl.problems.LeastSquares(), regularizer=fl.problems.SquaredL2(), strength=0.3
    ),
    "clipped": lambda: both(TARGETS, fl.problems.LeastSquares(), lambda p: p.clipped(0.7)),
    "logistic": lambda: both(np.sign(TARGETS), fl.problems.Logistic()),
    "softmax": lambda: both(LABELS, fl.problems.Softmax(3)),
    "clipped softmax": lambda: both(LABELS, fl.problems.Softmax(3), lambda p: p.clipped(0.5)),
    "weighted": lambda: both(
        LABELS, fl.problems.Softmax(3), lambda p: p.weighing([1.0, 2.0, 0.0, 0.5, 1.0, 3.0])
    ),
    "mapped": lambda: both(
        TARGETS,
        fl.problems.LeastSquares(),
        feature_map=fl.data.random_fourier(jax.random.key(2), 4, 6, bandwidth=1.0),
    ),
    "network": networks,
    "clipped network": lambda: networks(lambda p: p.clipped(0.4)),
}

CALLS = {
    "gradient": lambda p, w: p.gradient(w),
    "objective": lambda p, w: p.objective(w),
    "largest gradient": lambda p, w: p.sample_gradient_norm(w),
    "scores of all models": lambda p, w: p.cross_scores(w, value_of),
    "predictions": lambda p, w: jnp.where(
        (p.weights > 0).reshape(p.weights.shape + (1,) * (p.predictions(w).ndim - 2)),
        p.predictions(w),
        0,
    ),
    "norms": lambda p, w: p.sample_objective_norms(w),
    "mean gradient": lambda p, w: p.mean_gradient(w[0]),
    "gradient of losses": lambda p, w: p.gradient_of(
        lambda reading, row, factor: factor * reading.losses(reading.predictions(row)),
        w,
        jnp.arange(1.0, 7.0),
    ),
    "some clients": lambda p, w: p.take(jnp.array([5, 1, 4])).gradient(w[:3]),
    "a client several times": lambda p, w: p.take(jnp.array([5, 5, 1, 5, 5])).gradient(w[:5]),
    "a batch": lambda p, w: p.take(
        jnp.array([5, 1, 4]), jnp.array([[3, 60, 70], [0, 39, 40], [0, 1, 2]])
    ).gradient(w[:3]),
    "parts": lambda p, w: (
        p.clipped(9.0).loss_gradient_in_parts(
            w, (p.dim // 2, p.dim - p.dim // 2), jnp.array([0.3, 0.6])
        )
        if p.loss.outputs == 1
        else p.gradient(w)
    ),
    "a masked batch": lambda p, w: replace(
        p, weights=jnp.where(jnp.arange(p.samples)[None] % 3 == 2, p.weights, 0), statistics=None
    ).gradient(w),
    "counts": lambda p, w: p.sample_counts(),
}


@pytest.mark.thin(24)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("group_bytes", [1, pool.GROUP_BYTES])
def test_a_pool_computes_what_clients_own_samples_do(kind, call, group_bytes, monkeypatch):
    """Also a tile at a time."""
    monkeypatch.setattr(pool, "GROUP_BYTES", group_bytes)
    pooled, stacked = PROBLEMS[kind]()
    assert pooled.is_pooled
    assert pooled.features.tile < stacked.samples
    w = jnp.asarray(np.random.default_rng(1).normal(size=(6, pooled.dim)), pooled.dtype)
    for prepared in (False, True):
        if prepared:
            pooled, stacked = pooled.prepare(), stacked.prepare()
        results = [jax.jit(CALLS[call])(problem, w) for problem in (pooled, stacked)]
        np.testing.assert_allclose(*results, rtol=1e-10, atol=1e-11)


@pytest.mark.thin(8)
@pytest.mark.parametrize("label", [label for label in CASES if label not in STREAMED])
def test_every_algorithm_takes_the_same_steps_on_a_pool(label):
    simulation = simulate(label, private=False)
    stacked = fl.run(simulation, 3, key=1)
    pooled = fl.run(replace(simulation, problem=on_pool(simulation.problem)), 3, key=1)
    for name in stacked:
        if stacked[name].dtype.kind == "f":
            np.testing.assert_allclose(
                pooled[name], stacked[name], rtol=1e-10, atol=1e-12, err_msg=name
            )


A = fl.algorithms
STUDIES = {
    "FedAvg": (A.FedAvg(0.1, epochs=2, batch=4, weighting="samples"), {}),
    "cohorts": (A.FedAvg(0.1, epochs=1, batch=3, clients_per_round=2), {}),
    "full batches of cohorts": (A.FedAvg(0.1, local_steps=2, clients_per_round=3), {}),
    "SCAFFOLD": (A.SCAFFOLD(0.1, local_steps=3, batch=2), {}),
    "FedProx": (A.FedProx(0.1, epochs=2, batch=4, attraction=0.3), {}),
    "FedNova": (A.FedNova(0.1, epochs=2, batch=4), {}),
    "Ditto": (A.Ditto(A.FedAvg(0.1, epochs=1, batch=4), 0.1, attraction=0.5), {}),
    "private": (
        A.FedAvg(0.1, epochs=1, batch=4),
        {"privacy": fl.privacy.CentralGaussian(1.0, clip=0.5)},
    ),
    "DP-SGD": (
        A.FedDPSGD(0.1, sampling_rate=0.3, local_steps=3),
        {"privacy": fl.privacy.NoisyGradients(1.0, clip=0.5)},
    ),
    "decentralized": (A.ATC(0.1, batches=fl.batches.Uniform(2)), {"network": fl.graphs.ring(6)}),
    "budget": (A.ConventionalFL(0.1), {"privacy": fl.privacy.ZCDP(total_rho=1.0)}),
}


@pytest.mark.thin(5)
@pytest.mark.parametrize("kind", ["clipped softmax", "network"])
@pytest.mark.parametrize("name", STUDIES)
def test_runs_on_a_pool_are_those_of_clients_own_samples(name, kind):
    """Batches, noise and metrics too: the same partition and the same draws."""
    algorithm, settings = STUDIES[name]
    if name == "DP-SGD":
        kind = {"clipped softmax": "softmax"}.get(kind, kind)
    pooled, stacked = (
        fl.run(
            fl.Simulation(problem, algorithm, metrics=["objective", "train_error"], **settings),
            rounds=3,
        )
        for problem in PROBLEMS[kind]()
    )
    for metric in stacked:
        if metric.startswith(("delta", "epsilon", "rho", "spent", "noise")) or name == "budget":
            continue  # a budget's sensitivity counts the roundings of its own sums
        np.testing.assert_allclose(
            np.asarray(pooled[metric], float),
            np.asarray(stacked[metric], float),
            rtol=1e-9,
            atol=1e-11,
            err_msg=metric,
        )


@pytest.mark.parametrize("method", ["OnlineFed", "PAOFed", "FedAvg"])
def test_a_stream_replays_the_samples_of_a_pool(method):
    settings = {"epochs": 1} if method == "FedAvg" else {}
    algorithm = getattr(fl.algorithms, method)(0.05, **settings)
    runs = [
        fl.run(fl.Simulation(fl.streams.Replay(problem), algorithm, metrics=[]), rounds=6)
        for problem in both(TARGETS, fl.problems.LeastSquares())
    ]
    assert np.abs(runs[0].model).max() > 0
    np.testing.assert_allclose(runs[0].model, runs[1].model, rtol=1e-10)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
def test_dissimilarity_is_that_of_clients_gradients(pooled, weighed):
    def change(problem):
        return problem.weighing([1.0, 2.0, 0.0, 0.5, 1.5, 3.0]) if weighed else problem

    pool, own = both(TARGETS, fl.problems.LeastSquares(), change)
    problem = pool if pooled else own
    algorithm = fl.algorithms.FedAvg(0.02, local_steps=1)
    metrics = ["gradient_dissimilarity", "squared_gradient_norm"]
    run = fl.run(fl.Simulation(problem, algorithm, metrics=metrics), rounds=2)
    model = run.model.values.mean(0)
    shares = np.array([1.0, 2.0, 0.0, 0.5, 1.5, 3.0] if weighed else [1.0] * 6)
    rows = pairs(TARGETS)
    gradients = np.stack([2 * x.T @ (x @ model - y) / len(y) for x, y in rows])
    total = (shares[:, None] * gradients).sum(0)
    np.testing.assert_allclose(run.squared_gradient_norm[-1], (total**2).sum(), rtol=1e-9)
    shares = shares / shares.sum()
    mean = (shares[:, None] * gradients).sum(0)
    expected = (shares * (gradients**2).sum(1)).sum() / (mean**2).sum()
    np.testing.assert_allclose(run.gradient_dissimilarity[-1], expected, rtol=1e-9)


def test_metrics_of_gradients_are_of_what_is_not_clipped():
    plain, _ = both(TARGETS, fl.problems.LeastSquares())
    metrics = ["gradient_dissimilarity", "squared_gradient_norm"]
    algorithm = fl.algorithms.FedAvg(1e-6, local_steps=1)  # hardly a step: the same models
    runs = [
        fl.run(fl.Simulation(problem, algorithm, metrics=metrics), rounds=1)
        for problem in (plain, plain.clipped(0.01))
    ]
    for name in metrics:
        np.testing.assert_allclose(runs[0][name], runs[1][name], rtol=1e-3)


@pytest.mark.parametrize("rule", [fl.partitions.Dirichlet(0.3), None])
def test_metrics_differentiate_no_loop_over_tiles(rule):
    """The number of tiles of shared rows is known only when it is computed."""
    rule = fl.partitions.Shared(fl.partitions.Dirichlet(0.3), 12) if rule is None else rule
    problem = fl.problems.from_pool(FEATURES, LABELS, fl.problems.Softmax(3), rule, 5, key=1)
    algorithm = fl.algorithms.FedAvg(0.1, epochs=1, batch=4)
    metrics = ["squared_gradient_norm", "gradient_dissimilarity", "objective"]
    run = fl.run(fl.Simulation(problem, algorithm, metrics=metrics), rounds=2)
    assert float(run.gradient_dissimilarity[-1]) > 1


# ----------------------------------------------------------------------------------------- tiles


def test_tiles_are_the_samples_of_clients_in_their_order():
    pooled, _ = PROBLEMS["softmax"]()
    tiles = tiles_of(pooled.features, pooled.weights)
    assert tiles.size == 8
    expected = [(k, first) for k, size in enumerate(SIZES) for first in range(0, size, 8)]
    assert int(tiles.filled) == len(expected)
    found = list(zip(tiles.client.tolist(), tiles.first.tolist(), strict=True))
    assert found[: len(expected)] == expected
    assert set(tiles.client[len(expected) :].tolist()) <= {6}


def test_a_power_law_costs_hardly_more_samples_than_there_are():
    rule = fl.partitions.PowerLawSizes(1.0)
    partition = rule.draw(0, 20_000, clients=100)
    problem = fl.problems.from_pool(
        np.zeros((20_000, 1)), np.zeros(20_000), fl.problems.LeastSquares(), partition
    )
    tiles = tiles_of(problem.features, problem.weights)
    assert len(tiles.client) * tiles.size < 1.2 * 20_000
    assert problem.samples * 100 > 15 * 20_000  # padded to the largest


def test_equal_clients_are_a_tile_each():
    problem = fl.problems.from_pool(
        FEATURES, LABELS, fl.problems.Softmax(3), fl.partitions.EqualDirichlet(0.5), clients=6
    )
    assert problem.samples == 24
    assert problem.importance is None
    assert problem.features.tile == 24


@pytest.mark.parametrize("method", ["FedAvg", "FedProx", "SCAFFOLD"])
def test_local_epochs_of_clients_of_any_sizes_are_those_with_padding(method):
    """Clients on a pool train one by one, the largest first, and end where their samples end."""

    def build(key, pooled):
        problem = fl.problems.heterogeneous_softmax(
            key, 7, (3, 90), 1.0, 1.0, dim=3, classes=3, test_samples=4, pooled=pooled
        )
        assert problem.is_uneven == pooled
        settings = {"attraction": 0.5} if method == "FedProx" else {}
        algorithm = getattr(fl.algorithms, method)(
            0.1, epochs=2, batch=4, clients_per_round=5, **settings
        )
        return fl.Simulation(problem.weighing("samples"), algorithm, metrics=["objective"])

    pooled, padded = (
        fl.sweep(functools.partial(build, pooled=pooled), rounds=3, seeds=3, keep_models=True)
        for pooled in (True, False)
    )
    np.testing.assert_allclose(pooled.model, padded.model, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(pooled.objective, padded.objective, rtol=1e-10)


def test_steps_end_with_the_largest_participant(monkeypatch):
    """Clients side by side become fewer: hardly more steps are computed than are taken."""
    widths = []
    plain = local_steps._step

    def step(rule, rows, part_at, masked, state, number):
        jax.debug.callback(lambda _: widths.append(len(rows.counts)), number)
        return plain(rule, rows, part_at, masked, state, number)

    monkeypatch.setattr(local_steps, "_step", step)
    pooled, _ = both(LABELS, fl.problems.Softmax(3))
    fl.run(fl.Simulation(pooled, fl.algorithms.FedAvg(0.1, epochs=2, batch=8)), rounds=1)
    jax.effects_barrier()
    steps = [2 * -(-size // 8) for size in SIZES]
    assert len(widths) == max(steps)
    assert sum(steps) <= sum(widths) < 2 * sum(steps)
    assert sum(widths) < 0.8 * len(SIZES) * max(steps)  # all until the last one is through


# ----------------------------------------------------------------------------------- in a study


def scenario(key, concentration=0.5, fixed=False):
    problem = fl.problems.from_pool(
        FEATURES,
        LABELS,
        fl.problems.Softmax(3),
        fl.partitions.AtMost(fl.partitions.Dirichlet(concentration), 40),
        clients=6,
        key=fl.random_key(3) if fixed else key,
        held_out=0.25,
    )
    return fl.Simulation(
        problem,
        fl.algorithms.FedAvg(0.1, epochs=1, batch=4),
        metrics=["train_error", "test_error"],
    )


def test_every_seed_and_concentration_has_its_own_partition_in_one_program():
    grid = {"concentration": [0.1, 1.0, 10.0]}
    study = fl.sweep(scenario, rounds=2, seeds=3, grid=grid)
    assert len(np.unique(study.train_error.isel(round=-1, client=0))) == 9
    assert np.isfinite(study.test_error).all()
    assert len(fl.plan(scenario, rounds=2, seeds=3, grid=grid).parts) == 1


def test_a_partition_of_a_constant_key_is_fixed():
    def rows(key, fixed):
        return scenario(key, fixed=fixed).problem.features.rows

    keys = [jax.random.key(seed) for seed in (0, 1)]
    np.testing.assert_array_equal(*(rows(key, True) for key in keys))
    assert not np.array_equal(*(rows(key, False) for key in keys))


def test_the_pool_is_stored_once():
    """The seeds of a block have indices of their own, and no copies of the samples."""
    draw = jax.vmap(lambda key: scenario(key).problem.features.rows)
    rows = jax.eval_shape(draw, jax.random.split(jax.random.key(0), 5))
    assert rows.shape == (5, 6, 31)
    pools = jax.vmap(lambda key: scenario(key).problem.features.pool, out_axes=None)
    assert pools(jax.random.split(jax.random.key(0), 5)).shape == FEATURES.shape


def test_held_out_samples_are_a_share_of_each_clients_and_none_is_in_both_parts():
    problem = fl.problems.from_pool(
        FEATURES, TARGETS, fl.problems.LeastSquares(), PARTITION, held_out=0.25
    )
    assert problem.test.sample_counts().tolist() == [size // 4 for size in SIZES]
    assert problem.sample_counts().tolist() == [size - size // 4 for size in SIZES]
    train, test = (
        np.asarray(part.features.rows)[np.asarray(part.weights) > 0]
        for part in (problem, problem.test)
    )
    assert sorted([*train, *test]) == list(range(sum(SIZES)))


def test_clients_without_samples_have_importance_zero():
    partition = fl.partitions.Partition(jnp.arange(4), jnp.array([0, 2, 2, 4]))
    problem = fl.problems.from_pool(
        np.ones((4, 2)), np.ones(4), fl.problems.LeastSquares(), partition
    )
    assert problem.importance.tolist() == [1.0, 0.0, 1.0]
    assert np.isfinite(problem.gradient(jnp.ones((3, 2)))).all()


def test_a_partition_may_be_a_users_function():
    def halves(key):
        order = jax.random.permutation(key, 144).astype(jnp.int32)
        return fl.partitions.Partition(order, jnp.array([0, 72, 144], jnp.int32))

    problem = fl.problems.from_pool(
        FEATURES, TARGETS, fl.problems.LeastSquares(), halves, key=jax.random.key(0)
    )
    assert problem.sample_counts().tolist() == [72, 72]


def test_roundings_of_sums_over_tiles_are_counted():
    pooled, stacked = PROBLEMS["clipped"]()
    assert pooled.gradient_rounding() > 0
    single = replace(stacked, features=stacked.features.astype(np.float32))
    assert single.gradient_rounding() > pooled.gradient_rounding()  # of double precision


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"clients": None}, "clients must be their number"),
        ({"targets": LABELS[:-1]}, "an entry for each sample"),
        ({"features": FEATURES[0]}, "an entry for each sample"),
        ({"features": FEATURES[:, :, None]}, "must be rows"),
        ({"features": np.where(FEATURES > 2, np.nan, FEATURES)}, "NaN"),
        ({"targets": LABELS + 0.5}, "labels|classes|whole"),
        ({"clients": 200}, "144 rows for 200 clients"),
        ({"partition": PARTITION, "clients": 5}, "the partition is of 6"),
        (
            {"partition": fl.partitions.Partition(jnp.arange(9), jnp.array([0, 9])), "clients": 1},
            "144 rows",
        ),
        ({"partition": 3}, "partition must be"),
        ({"held_out": 1.0}, "held_out must be"),
        ({"partition": fl.partitions.AtMost(fl.partitions.IID(), 20)}, "120 rows"),
        ({"partition": fl.partitions.AtLeast(fl.partitions.IID(), 30)}, "need 180 rows"),
    ],
)
def test_bad_pools_are_named(change, text):
    settings = {
        "features": FEATURES,
        "targets": LABELS,
        "loss": fl.problems.Softmax(3),
        "partition": fl.partitions.Dirichlet(0.5),
        "clients": 6,
    }
    with pytest.raises((ValueError, TypeError), match=text):
        fl.problems.from_pool(**settings | change)


def test_the_size_of_a_part_must_be_known_to_split_it_again():
    problem = scenario(jax.random.key(0)).problem
    with pytest.raises(ValueError, match="held-out data already"):
        problem.split(jax.random.key(1))


def test_results_say_how_different_the_clients_are():
    study = fl.sweep(scenario, rounds=1, seeds=2, grid={"concentration": [0.1, 100.0]})
    assert study.client_samples.dims == ("concentration", "seed", "client")
    assert study.client_samples.max() <= 40
    assert study.label_counts.dims == ("concentration", "seed", "client", "class")
    np.testing.assert_array_equal(study.label_counts.sum("class"), study.client_samples)
    skewed, even = study.label_distance.mean("seed").values
    assert skewed > 2 * even
    assert study.effective_classes.mean("seed").values[1] > 2.5
    assert set(study.size_variation.dims) == {"concentration", "seed"}
    sizes = study.client_samples
    expected = sizes.std("client") / sizes.mean("client")
    np.testing.assert_allclose(study.size_variation, expected, rtol=1e-6)
    np.testing.assert_allclose(study.largest_share, sizes.max("client") / sizes.sum("client"))
    assert "label_distance" not in fl.statistics.metric_names(study)


def test_a_pool_and_a_partition_can_be_drawn():
    problem = fl.problems.from_pool(FEATURES, LABELS, fl.problems.Softmax(3), PARTITION)
    titles = [
        fl.plotting.draw_partition(*arguments).get_title()
        for arguments in [(problem,), (LABELS, PARTITION)]
    ]
    assert titles == ["144 samples of 3 classes at 6 clients"] * 2
