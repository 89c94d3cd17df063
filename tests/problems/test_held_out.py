"""Held-out data of fixed problems: what models are judged by, against NumPy loops."""

import dataclasses

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, ZCDPGradNFL
from fljax.problems import (
    LeastSquares,
    Logistic,
    Problem,
    Softmax,
    SquaredL2,
    Tasks,
    from_clients,
)

K = 4
P = 3
SIZES = (5, 9, 7, 6)
HELD_OUT = (4, 2, 6, 3)
LOSSES = {"squared": LeastSquares(), "logistic": Logistic(), "softmax": Softmax(3)}


def clients(sizes, loss, seed=0):
    rng = np.random.default_rng(seed)
    for n in sizes:
        x = rng.normal(size=(n, P))
        if isinstance(loss, LeastSquares):
            yield x, rng.normal(size=n)
        elif isinstance(loss, Logistic):
            yield x, rng.choice([-1.0, 1.0], n)
        else:
            yield x, rng.integers(0, loss.classes, n).astype(float)


def score(loss, x, y, w):
    """One sample's loss, and whether it is labeled right."""
    if isinstance(loss, LeastSquares):
        return (x @ w - y) ** 2, np.nan
    if isinstance(loss, Logistic):
        return np.log1p(np.exp(-y * (x @ w))), (x @ w >= 0) == (y > 0)
    z = w.reshape(loss.classes, -1) @ x
    return np.log(np.exp(z).sum()) - z[int(y)], np.argmax(z) == y


def loops(loss, models, held_out, feature_map=None):
    """Test error and accuracy: of each model on its data, then over the models."""
    means = []
    for w, (xs, ys) in zip(models, held_out, strict=True):
        if feature_map is not None:
            xs = np.asarray(feature_map(xs))
        means.append(np.mean([score(loss, x, y, w) for x, y in zip(xs, ys, strict=True)], axis=0))
    return np.mean(means, axis=0)


def last(problem, algorithm, network=None, rounds=3, **parts):
    loss = fl.metrics.held_out(problem).loss
    metrics = ["test_error"] if isinstance(loss, LeastSquares) else ["test_error", "accuracy"]
    run = fl.run(fl.Simulation(problem, algorithm, network, metrics=metrics, **parts), rounds)
    return run.model.values, [run[name].values[-1] for name in metrics]


@pytest.mark.slow
@pytest.mark.thin(2, every=16)
@pytest.mark.parametrize("mapped", [False, True], ids=["linear", "mapped"])
@pytest.mark.parametrize("whose", ["own", "common"])
@pytest.mark.parametrize("loss", LOSSES)
def test_models_are_judged_on_held_out_data_of_each_client_or_of_all(loss, whose, mapped):
    """One model a client or one for all, with ragged data under a mask."""
    loss = LOSSES[loss]
    feature_map = fl.data.random_fourier(jax.random.key(3), P, 5) if mapped else None
    sizes = HELD_OUT if whose == "own" else (11,)
    test = list(clients(sizes, loss, seed=1))
    problem = from_clients(
        list(clients(SIZES, loss)), loss, SquaredL2(), feature_map=feature_map, test=test
    )
    test *= K // len(test)
    for algorithm, network in ((ZCDPGradNFL(0.3), fl.graphs.ring(K)), (FedAvg(0.5), None)):
        models, result = last(problem, algorithm, network)
        assert (np.ptp(models, axis=0) > 1e-3).any() == (network is not None)
        expected = loops(loss, models, test, feature_map)[: len(result)]
        np.testing.assert_allclose(result, expected, rtol=1e-10)


@pytest.mark.parametrize("shared", [False, True])
def test_models_are_judged_on_the_held_out_data_of_their_cluster(shared):
    """By the test error and by the accuracy."""
    cluster = np.array([2, 0, 1, 0])
    loss = Softmax(3)
    test_data = list(clients((3, 8, 5), loss, seed=1))
    tasks = Tasks(cluster, 3, test=from_clients(test_data, loss))
    problem = from_clients(list(clients(SIZES, loss)), loss, tasks=tasks)
    algorithm, network = (FedAvg(0.5), None) if shared else (ZCDPGradNFL(0.3), fl.graphs.ring(K))
    models, result = last(problem, algorithm, network)
    np.testing.assert_allclose(
        result, loops(loss, models, [test_data[q] for q in cluster]), rtol=1e-10
    )


def test_attackers_are_not_judged():
    loss = Logistic()
    test = list(clients(HELD_OUT, loss, seed=1))
    problem = from_clients(list(clients(SIZES, loss)), loss, test=test)
    attack = fl.attacks.SignFlip(np.array([False, True, False, False]))
    models, result = last(problem, ZCDPGradNFL(0.3), fl.graphs.ring(K), attack=attack)
    honest = [0, 2, 3]
    expected = loops(loss, models[honest], [test[k] for k in honest])
    np.testing.assert_allclose(result, expected, rtol=1e-10)


@pytest.mark.slow
def test_a_stream_is_judged_on_the_held_out_data_of_its_clients():
    """By default the held-out data of the replayed problem."""
    loss = LeastSquares()
    data = list(clients(SIZES, loss))
    test = list(clients(HELD_OUT, loss, seed=1))
    other = list(clients([8], loss, seed=2))
    problem = from_clients(data, loss, test=test)
    stream = fl.streams.Replay(problem)
    models, result = last(stream, ZCDPGradNFL(0.1), fl.graphs.ring(K))
    np.testing.assert_allclose(result, loops(loss, models, test)[:1], rtol=1e-10)
    stream = fl.streams.Replay(problem, test=from_clients(other, loss))
    models, result = last(stream, ZCDPGradNFL(0.1), fl.graphs.ring(K))
    np.testing.assert_allclose(result, loops(loss, models, other * K)[:1], rtol=1e-10)
    labels = from_clients(list(clients(SIZES, Logistic())), Logistic())
    models, result = last(fl.streams.Replay(labels.split(jax.random.key(0))), FedAvg(0.3))
    assert 0 <= result[1] <= 1


@pytest.mark.slow
def test_a_sweep_judges_every_run_on_its_own():
    loss = Logistic()
    data = list(clients(SIZES, loss))
    test = list(clients(HELD_OUT, loss, seed=1))

    def scenario(key, strength):
        problem = from_clients(data, loss, SquaredL2(), test=test)
        problem = dataclasses.replace(
            problem,
            features=problem.features + jax.random.normal(key, problem.features.shape),
            strength=strength,
        )
        return fl.Simulation(problem, FedAvg(0.5), metrics=["test_error", "accuracy"])

    grid = {"strength": [0.1, 1.0]}
    study = fl.sweep(scenario, grid=grid, seeds=2, rounds=3, keep_models=True)
    for strength in grid["strength"]:
        for seed in range(2):
            run_ = study.sel(strength=strength, seed=seed).isel(round=-1)
            expected = loops(loss, run_.model.values, test)
            np.testing.assert_allclose([run_.test_error, run_.accuracy], expected, rtol=1e-10)
    assert np.ptp(study.test_error.isel(round=-1).values) > 1e-3


# Splitting --------------------------------------------------------------------------------------


def rows(problem, k):
    """A client's samples with their weights, in the order of their targets."""
    real = np.asarray(problem.weights[k]) > 0
    x, y, w = (np.asarray(a[k])[real] for a in (problem.features, problem.targets, problem.weights))
    order = np.argsort(y)
    return x[order], y[order], w[order]


@pytest.mark.slow
def test_a_split_deals_every_sample_once(key):
    """Traced or not; padding anywhere; samples keep their weights in proportion."""
    rng = np.random.default_rng(0)
    real = np.array([[1, 0, 1, 1, 0, 1, 1], [1] * 7, [0, 0, 0, 1, 0, 0, 1]], bool)
    weights = np.where(real, rng.uniform(1, 2, real.shape), 0)
    weights /= weights.sum(1, keepdims=True)
    unsplit = Problem(
        rng.normal(size=(3, 7, P)),
        rng.normal(size=(3, 7)),
        LeastSquares(),
        SquaredL2(),
        weights=weights,
        tasks=Tasks([0, 1, 0], 2),
    ).clipped(2.0)
    eager = unsplit.split(key, test=0.3)
    traced = jax.jit(lambda k: unsplit.split(k, test=0.3))(key)
    jax.tree.map(np.testing.assert_array_equal, eager, traced)
    assert (eager.samples, eager.test.samples) == (5, 2)
    np.testing.assert_array_equal(eager.sample_counts(), [3, 5, 1])
    np.testing.assert_array_equal(eager.test.sample_counts(), [2, 2, 1])
    for k in range(3):
        parts = [rows(part, k) for part in (eager, eager.test)]
        x, y, w = rows(unsplit, k)
        result = [np.concatenate([part[i] for part in parts]) for i in (0, 1)]
        order = np.argsort(result[1])
        np.testing.assert_array_equal(result[0][order], x)
        np.testing.assert_array_equal(result[1][order], y)
        for _, targets, shares in parts:
            old = w[np.searchsorted(y, targets)]
            np.testing.assert_allclose(shares, old / old.sum(), rtol=1e-12)
    assert eager.tasks is unsplit.tasks
    assert (eager.clip, eager.test.clip) == (2.0, None)


def test_every_sample_is_held_out_as_often(key):
    """Each of a client's six samples in a third of 3000 splits, within five deviations."""
    targets = np.arange(12.0).reshape(2, 6)
    unsplit = Problem(np.ones((2, 6, 1)), targets, LeastSquares())
    split = jax.jit(jax.vmap(lambda k: unsplit.split(k, test=1 / 3).test.targets))
    drawn = np.asarray(split(jax.random.split(key, 3000)))
    for k in range(2):
        counts = np.bincount(drawn[:, k].ravel().astype(int) - 6 * k, minlength=6)
        assert np.abs(counts - 1000).max() < 5 * np.sqrt(3000 * 2 / 9)
    pairs = np.sort(drawn[:, 0], axis=1)
    assert len(np.unique(pairs, axis=0)) == 15


def test_held_out_data_are_scaled_to_the_declared_domain(key):
    """Data drawn inside of a run are scaled down to the domain, held out or not."""

    def scenario(key):
        unsplit = Problem(
            jax.random.normal(key, (3, 5, 2)),
            np.ones((3, 5)),
            LeastSquares(),
            feature_bound=0.5,
        )
        return unsplit.split(key).prepare().test.features

    norms = np.linalg.norm(jax.jit(scenario)(key), axis=-1)
    np.testing.assert_array_less(norms, 0.5 * (1 + 1e-12))
    assert norms.max() > 0.49


# Refused ----------------------------------------------------------------------------------------

LABELS = list(clients(SIZES, Logistic()))
PROBLEM = from_clients(LABELS, Logistic())
ONES = np.ones((4, 2, P)), np.ones((4, 2))
REFUSED = {
    "no problem": (lambda: dataclasses.replace(PROBLEM, test=3), "test must be .*Problem, got 3"),
    "clients": (
        lambda: PROBLEM.with_test(np.ones((2, 5, P)), np.ones((2, 5))),
        "of 1 client, for all, or of each of the 4, .* got 2 clients",
    ),
    "parameters": (lambda: PROBLEM.with_test(np.ones((5, 2)), np.ones(5)), "got 1 clients and 2"),
    "targets": (lambda: PROBLEM.with_test(np.ones((5, P)), np.ones(4)), "one entry a sample"),
    "labels": (lambda: PROBLEM.with_test(np.ones((5, P)), np.zeros(5)), "labels among -1, 1"),
    "no features": (lambda: PROBLEM.with_test(None, np.ones(5)), "features must be an array"),
    "twice": (
        lambda: from_clients(
            LABELS, Logistic(), tasks=Tasks([0] * 4, 1, test=PROBLEM.pooled()), test=LABELS
        ),
        "held-out data are given twice",
    ),
    "an empty client": (
        lambda: from_clients(LABELS, Logistic(), test=[*LABELS[:3], (np.ones((0, P)), [])]),
        "client 3 of test has no samples",
    ),
    "no client": (lambda: from_clients(LABELS, Logistic(), test=[]), "test must hold at least one"),
    "tasks of others": (
        lambda: from_clients(LABELS, Logistic(), tasks=Tasks([0, 0], 1)),
        "tasks are for 2 clients, but the data have 4",
    ),
    "a share": (lambda: PROBLEM.split(jax.random.key(0), 1.0), "test must be .* < 1, got 1"),
    "a text": (lambda: PROBLEM.split(jax.random.key(0), "half"), "test must be a number"),
    "one sample": (
        lambda: fl.problems.ridge(jax.random.key(0), 2, [3, 1], 2).split(jax.random.key(0)),
        "client 1 has one sample",
    ),
    "split twice": (
        lambda: PROBLEM.split(jax.random.key(0)).split(jax.random.key(0)),
        "has held-out data already",
    ),
    "split of tasks": (
        lambda: dataclasses.replace(PROBLEM, tasks=Tasks([0] * 4, 1, test=PROBLEM.pooled())).split(
            jax.random.key(0)
        ),
        "has held-out data already",
    ),
    "no labels": (
        lambda: fl.Simulation(
            fl.problems.ridge(jax.random.key(0), K, 4, P).with_test(*ONES),
            FedAvg(0.1),
            metrics="accuracy",
        ),
        "'accuracy' needs labels, and LeastSquares is no loss of a classifier",
    ),
    "no test": (
        lambda: fl.Simulation(PROBLEM, FedAvg(0.1), metrics="accuracy"),
        "'accuracy' needs held-out data; give the problem or the stream test=",
    ),
    "a traced share": (
        lambda: jax.jit(lambda share: PROBLEM.split(jax.random.key(0), share).targets)(0.2),
        "structure and cannot be traced",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mismatched_arguments_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


# Ratios and means over nothing --------------------------------------------------------------------


def unequal(held_out):
    """A model of one number labels samples by their sign; these are clients' held-out data."""
    data = [(np.ones((2, 1)), np.ones(2))] * len(held_out)
    test = [(np.asarray(x, float)[:, None], np.asarray(y, float)) for x, y in held_out]
    return from_clients(data, Logistic(), test=test).starting_at(np.ones(1))


def at_the_start(problem, *metrics):
    algorithm = FedAvg(1e-9)
    return fl.run(fl.Simulation(problem, algorithm, metrics=list(metrics)), 1).isel(round=-1)


@pytest.mark.parametrize("kind", ["precision", "recall", "f1_score"])
def test_rates_of_a_class_are_of_all_held_out_samples_together(kind):
    """One client has one sample, right; another has nine of each kind with one of them right."""
    small = [1.0], [1.0]
    large = [1.0] * 9 + [-1.0] * 9, [1.0] + [-1.0] * 8 + [1.0] * 8 + [-1.0]
    result = at_the_start(unequal([small, large]), getattr(fl.metrics, kind)(1.0))
    predicted, true = np.concatenate([small, large], axis=1)
    hits = np.sum((predicted == 1) & (true == 1))
    masks = {"precision": predicted == 1, "recall": true == 1}
    totals = {name: np.sum(mask) for name, mask in masks.items()}
    totals["f1_score"] = (totals["precision"] + totals["recall"]) / 2
    np.testing.assert_allclose(result[f"{kind}_1"], hits / totals[kind], rtol=1e-6)


def test_clients_with_target_labels_only_do_not_count_for_a_backdoor():
    """With the trigger every sample of the first two is taken for the target."""
    trigger = fl.attacks.Trigger([0], 1.0)
    held_out = [([1.0, 1.0, 1.0], [-1, -1, 1]), ([1.0, -1.0], [-1, -1]), ([1.0], [1])]

    def success(*clients):
        metric = fl.metrics.backdoor_success(trigger, 1.0)
        return float(at_the_start(unequal(clients), metric).backdoor_success)

    assert success(*held_out) == success(*held_out[:2]) == 1
    with pytest.raises(ValueError, match="no held-out sample has one; take another target"):
        success(held_out[2])


def test_clients_without_held_out_data_do_not_enter_a_mean():
    held_out = [([1.0, 1.0], [1, -1]), ([1.0], [1]), ([1.0, 1.0], [1, 1])]
    all_clients = unequal(held_out)
    with_data = unequal([held_out[0], held_out[2]])
    has_data = np.array([1.0, 0, 1])
    weights = np.asarray(all_clients.test.weights) * has_data[:, None]
    test = dataclasses.replace(all_clients.test, weights=weights, importance=has_data)
    all_clients = dataclasses.replace(all_clients, test=test)
    for metric in ("accuracy", "test_error"):
        expected = at_the_start(with_data, metric)[metric]
        np.testing.assert_allclose(at_the_start(all_clients, metric)[metric], expected, rtol=1e-6)
