"""Between clients, between groups, towards a sensitive feature: against sums written out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import fairness
from fljax.algorithms import FedAvg, LocalOnly
from fljax.metrics.definitions import Metric
from fljax.problems import LeastSquares, Logistic, Problem, Softmax, Tasks, from_clients

close = np.testing.assert_allclose

CLIENTS = 5
COUNT = 12


def client_metric(values, **settings):
    """A metric of each client that has these values."""
    return Metric("given", lambda now: jnp.asarray(values), "given", dims=("client",), **settings)


def metrics_of(metrics, problem=None, **parts):
    problem = fl.problems.ridge(fl.random_key(0), CLIENTS, 4, 2) if problem is None else problem
    parts = {"algorithm": LocalOnly(0.1), **parts}
    return fl.run(fl.Simulation(problem, metrics=metrics, **parts), rounds=1).isel(round=-1)


def labeled(form="each", dim=3, seed=0, classes=None):
    """Two groups by the first column; some clients have few of the second. Sizes differ."""
    rng = np.random.default_rng(seed)

    def client(k, size):
        x = rng.normal(size=(size, dim))
        x[:, 0] = rng.uniform(size=size) < 0.2 + 0.1 * k
        score = x @ np.arange(1, dim + 1) + rng.normal(size=size)
        y = np.where(score > 1, 1.0, -1.0) if classes is None else np.digitize(score, [0, 2]) * 1.0
        return x, y

    data = [client(k, COUNT + k) for k in range(CLIENTS)]
    test = [client(k, 20 + 3 * k) for k in range(CLIENTS)]
    loss = Logistic() if classes is None else Softmax(classes)
    if form == "all":
        test = [tuple(np.concatenate(part) for part in zip(*test, strict=True))]
    return from_clients(data, loss, test=test), test


# Clients -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_spread_and_worst_equal_those_of_the_values():
    values = np.array([0.3, 0.9, 0.5, 0.8, 0.6])
    bounded = client_metric(values, bounds=(0.0, 1.0))
    result = metrics_of(
        [
            bounded,
            fairness.spread(bounded),
            fairness.spread(bounded, squared=True),
            fairness.worst(bounded),
            fairness.worst(bounded, 0.4),
            fairness.worst(bounded, 0.41),
        ]
    )
    close(result.given_deviation, values.std(), rtol=1e-12)
    close(result.given_variance, values.var(), rtol=1e-12)
    assert result.given_worst == 0.3
    close(result.given_worst_40, 0.4, rtol=1e-12)
    close(result.given_worst_41, (0.3 + 0.5 + 0.6) / 3, rtol=1e-12)
    assert result.given.dims == ("client",)
    assert result.given_worst.dims == ()


def test_clients_without_data_are_not_among_the_worst_off():
    """A client without held-out samples gets an accuracy of zero, which must not count."""
    rng = np.random.default_rng(0)

    def samples(count):
        return rng.normal(size=(count, 2)), np.sign(rng.normal(size=count))

    data = [samples(6) for _ in range(4)]
    test = [samples(n) for n in (5, 6, 7, 4)]
    problem = from_clients(data, Logistic(), test=test)
    problem = dataclasses.replace(problem, test=problem.test.weighing([1, 0, 1, 1]))
    metrics = ["client_accuracy", fairness.worst("client_accuracy")]
    result = metrics_of([*metrics, fairness.spread("client_accuracy")], problem)
    accuracies = result.client_accuracy.values[[0, 2, 3]]
    close(result.client_accuracy_worst, accuracies.min())
    close(result.client_accuracy_deviation, accuracies.std(), rtol=1e-6)
    data[2] = samples(0)
    problem = from_clients(data, Logistic())
    result = metrics_of(["train_error", fairness.spread("train_error")], problem)
    close(result.train_error_deviation, result.train_error.values[[0, 1, 3]].std(), rtol=1e-6)


def test_errors_are_worst_where_they_are_large():
    values = np.array([0.3, 0.9, 0.5, 0.8, 0.6])
    error = client_metric(values, decibel=True)
    result = metrics_of([fairness.worst(error, 0.4), fairness.worst(error)])
    close(result.given_worst_40, 0.85, rtol=1e-12)
    assert result.given_worst == 0.9
    assert metrics_of([fairness.worst(client_metric(values), largest=False)]).given_worst == 0.3


@pytest.mark.parametrize(("clients", "tenth"), [(3, 1), (10, 1), (20, 2), (21, 3), (50, 5)])
def test_a_tenth_of_clients_is_rounded_up(clients, tenth):
    values = np.random.default_rng(clients).permutation(clients) * 1.0
    worst = fairness.worst(client_metric(values, decibel=True), 0.1)
    problem = fl.problems.ridge(fl.random_key(0), clients, 4, 2)
    result = metrics_of([worst], problem).given_worst_10
    close(result, np.sort(values)[-tenth:].mean(), rtol=1e-12)


def test_attackers_are_not_among_the_worst_off():
    values = np.array([9.0, 2.0, 3.0, 8.0, 1.0])
    error = client_metric(values, decibel=True)
    result = metrics_of(
        [fairness.worst(error), fairness.worst(error, 0.5), fairness.spread(error)],
        algorithm=FedAvg(0.1),
        attack=fl.attacks.SignFlip(np.isin(np.arange(CLIENTS), [0, 3])),
    )
    assert result.given_worst == 3.0
    close(result.given_worst_50, 2.5, rtol=1e-12)
    close(result.given_deviation, np.std([1, 2, 3]), rtol=1e-12)


def test_custom_axes_are_kept():
    values = np.arange(10.0).reshape(CLIENTS, 2)
    metric = Metric(
        "given", lambda now: jnp.asarray(values), "", dims=("client", "side"), decibel=True
    )
    result = metrics_of(
        [fairness.worst(metric), fairness.spread(metric), fairness.worst(metric, 0.4)]
    )
    assert result.given_worst.dims == ("side",)
    close(result.given_worst, [8, 9])
    close(result.given_worst_40, [7, 8])
    close(result.given_deviation, values.std(axis=0))


@pytest.mark.slow
def test_fair_algorithms_are_fairer_to_the_worst_off():
    """By the metrics, with one client that differs from the others."""
    rng = np.random.default_rng(3)
    truth = np.array([[1.0, 1.0]] * 4 + [[-1.0, 2.0]])
    x = rng.normal(size=(5, 30, 2))
    y = np.einsum("knp,kp->kn", x, truth)
    problem = Problem(x, y, LeastSquares()).with_test(x, y)
    metrics = [fairness.worst("validation_error"), fairness.spread("validation_error")]

    def of(algorithm):
        result = fl.run(fl.Simulation(problem, algorithm, metrics=metrics), rounds=300)
        return result.isel(round=-1)

    plain = of(FedAvg(0.05))
    for fair in (
        fl.algorithms.QFedAvg(0.05, fairness=3.0),
        fl.algorithms.AFL(0.05, mixture_step_size=0.05),
    ):
        result = of(fair)
        assert result.validation_error_worst < 0.7 * plain.validation_error_worst
        assert result.validation_error_deviation < 0.7 * plain.validation_error_deviation


@pytest.mark.slow
def test_the_same_metric_twice_is_not_traced_twice():
    compiled = []

    def scenario(key):
        compiled.append(1)
        problem = fl.problems.ridge(key, 4, 9, 2).split(key)
        metrics = [fairness.worst("validation_error", 0.5), fairness.spread("validation_error")]
        return fl.Simulation(problem, FedAvg(0.1), metrics=metrics)

    first = fl.sweep(scenario, seeds=2, rounds=2)
    assert first.attrs["compilations"] == 1
    assert fl.sweep(scenario, seeds=2, rounds=2).attrs["compilations"] == 0


# Groups ------------------------------------------------------------------------------------------

RATES = {
    "accuracy": lambda predicted, y: (predicted == y, np.ones(len(y), bool)),
    "positive_rate": lambda predicted, y: (predicted == 1, np.ones(len(y), bool)),
    "true_positive_rate": lambda predicted, y: (predicted == 1, y == 1),
}
DIFFERENCES = {
    "accuracy": "accuracy_difference",
    "positive_rate": "demographic_parity_difference",
    "true_positive_rate": "equal_opportunity_difference",
}


def written_out(test, models, group, rate, say):
    """Each client's model on its data, or on all data; clients count equally."""
    hits = members = 0.0
    for k, model in enumerate(models):
        x, y = test[k if len(test) > 1 else 0]
        right, counts = RATES[rate](say(x, model), y)
        counts = counts & (x[:, 0] == group)
        hits += (right & counts).sum() / len(y)
        members += counts.sum() / len(y)
    return hits / members


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("form", ["each", "all"])
@pytest.mark.parametrize("shared", [True, False])
def test_rates_follow_from_the_groups(rate, form, shared):
    problem, test = labeled(form)
    metrics = [
        fairness.group_rates(rate, 0),
        fairness.parity_difference(rate, 0),
        fl.metrics.trajectory(),
    ]
    algorithm = FedAvg(0.5) if shared else LocalOnly(0.5)
    result = metrics_of(metrics, problem, algorithm=algorithm)
    models = result.model_trajectory.values

    def say(x, model):
        return np.where(x @ model >= 0, 1, -1)

    expected = [written_out(test, models, group, rate, say) for group in (0, 1)]
    close(result[f"group_{rate}"], expected, rtol=1e-12)
    close(result[DIFFERENCES[rate]], abs(expected[0] - expected[1]), rtol=1e-10)
    assert 0 < abs(expected[0] - expected[1]) < 1


def test_the_favorable_label_may_be_any_class():
    problem, test = labeled("all", classes=3)
    metrics = [
        fairness.group_rates("positive_rate", 0, positive=2.0),
        fairness.parity_difference("true_positive_rate", 0, (1.0, 0.0), positive=2.0),
        fl.metrics.trajectory(),
    ]
    result = metrics_of(metrics, problem, algorithm=LocalOnly(0.5))
    x, y = test[0]
    predicted = [
        np.argmax(x @ m.reshape(3, -1).T, axis=1) == 2 for m in result.model_trajectory.values
    ]
    for group in (0, 1):
        inside = x[:, 0] == group
        close(result.group_positive_rate[group], np.mean([s[inside].mean() for s in predicted]))
    true = [np.mean([s[(x[:, 0] == g) & (y == 2)].mean() for s in predicted]) for g in (0, 1)]
    close(result.equal_opportunity_difference, abs(true[0] - true[1]), rtol=1e-10)


def test_groups_of_clusters_are_judged_on_their_cluster_s_data():
    problem, test = labeled("each")
    held_out = from_clients(test[:2], Logistic())
    cluster = [0, 1, 0, 1, 1]
    problem = fl.problems.Problem(
        problem.features,
        problem.targets,
        Logistic(),
        weights=problem.weights,
        tasks=Tasks(cluster, 2, test=held_out),
    )
    result = metrics_of(
        [fairness.group_rates("accuracy", 0), fairness.flip_effect(0), fl.metrics.trajectory()],
        problem,
    )
    models = result.model_trajectory.values
    of_client = [test[q] for q in cluster]
    predict = lambda x, model: np.where(x @ model >= 0, 1, -1)  # noqa: E731
    expected = [written_out(of_client, models, group, "accuracy", predict) for group in (0, 1)]
    close(result.group_accuracy, expected, rtol=1e-12)
    close(result.flip_effect, np.abs(models[:, 0]).mean(), rtol=1e-12)


# Features ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["each", "all"])
def test_flipping_changes_by_the_feature_s_coefficient(form):
    problem, _ = labeled(form)
    metrics = [fairness.flip_effect(0), fl.metrics.trajectory()]
    result = metrics_of(metrics, problem, algorithm=LocalOnly(0.5))
    close(result.flip_effect, np.abs(result.model_trajectory[:, 0]).mean(), rtol=1e-12)
    result = metrics_of(metrics, problem, algorithm=FedAvg(0.5))
    close(result.flip_effect, np.abs(result.model_trajectory[0, 0]), rtol=1e-12)


def test_the_change_of_several_outputs_is_their_distance():
    problem, _ = labeled("each", classes=3)
    metrics = [fairness.flip_effect(0), fl.metrics.trajectory()]
    result = metrics_of(metrics, problem, algorithm=LocalOnly(0.5))
    columns = result.model_trajectory.values.reshape(CLIENTS, 3, -1)[:, :, 0]
    close(result.flip_effect, np.linalg.norm(columns, axis=1).mean(), rtol=1e-12)


@pytest.mark.slow
def test_a_network_s_predictions_change_as_its_samples_do():
    problem, test = labeled("each")
    network = fl.models.mlp(1, hidden=[4])
    model = fl.problems.Model.of(problem, network, fl.random_key(1))
    result = metrics_of(
        [fairness.flip_effect(0), fairness.group_rates("accuracy", 0), fl.metrics.trajectory()],
        model,
        algorithm=FedAvg(0.1),
    )
    parameters = model.parameters(result.model_trajectory.values[0])
    differences = []
    for x, _ in test:
        other = x.copy()
        other[:, 0] = 1 - x[:, 0]
        predictions = [np.asarray(network.apply(parameters, jnp.asarray(a))) for a in (x, other)]
        differences.append(np.abs(predictions[0] - predictions[1]).mean())
    close(result.flip_effect, np.mean(differences), rtol=1e-10)


@pytest.mark.slow
def test_flipped_copies_make_a_feature_uninformative():
    """The feature is independent of labels and other features: its least-squares coefficient is
    zero.
    """
    rng = np.random.default_rng(1)
    data = []
    for size in (9, 30):
        x = rng.normal(size=(size, 3))
        x[:, 0] = np.where(x[:, 1] + rng.normal(size=size) > 0, 2.0, -2.0)
        data.append((x, x @ [1.0, 2.0, 0.0] + rng.normal(size=size)))
    problem = from_clients(data, LeastSquares())
    fair = fairness.augmented(problem, 0)
    assert fair.features.shape == (2, 60, 3)
    close(fair.weights.sum(axis=1), 1, rtol=1e-12)
    before, after = (fl.problems.train(p) for p in (problem, fair))
    assert np.abs(before[:, 0]).min() > 0.3
    close(after[:, 0], 0, atol=1e-12)
    for k, (x, y) in enumerate(data):
        close(after[k, 1:], np.linalg.lstsq(x[:, 1:], y, rcond=None)[0], rtol=1e-9)


def test_drawn_copies_change_only_their_column():
    rng = np.random.default_rng(2)
    data = [(rng.normal(size=(size, 3)) + size, rng.normal(size=size)) for size in (40, 300)]
    problem = from_clients(data, LeastSquares())
    fair = fairness.augmented(problem, 1, fl.random_key(0), copies=3)
    assert fair.samples == 4 * 300
    values = {len(x): set(x[:, 1].tolist()) for x, _ in data}
    for k, (x, y) in enumerate(data):
        blocks = np.asarray(fair.features)[k].reshape(4, 300, 3)[:, : len(x)]
        close(blocks[0], x, rtol=1e-15)
        close(np.asarray(fair.targets)[k].reshape(4, 300)[:, : len(x)], np.tile(y, (4, 1)))
        close(np.asarray(fair.weights)[k].reshape(4, 300)[:, : len(x)], 1 / (4 * len(x)))
        for block in blocks[1:]:
            close(block[:, [0, 2]], x[:, [0, 2]])
            assert set(block[:, 1].tolist()) <= values[40] | values[300]  # of all clients, no zeros
        small = np.mean([[v in values[40] for v in block[:, 1]] for block in blocks[1:]])
        assert 0.35 < small < 0.65  # clients count equally for any sizes


@pytest.mark.slow
def test_group_metrics_are_part_of_a_scenario():
    def scenario(key):
        problem = fl.problems.logistic(key, 4, 12, 3)
        group = jnp.where(problem.features[..., :1] > 0, 1.0, -1.0)
        x = jnp.concatenate([problem.features, group], axis=2)
        problem = Problem(x, problem.targets, Logistic()).with_test(x, problem.targets)
        metrics = [fairness.flip_effect(3), fairness.parity_difference("positive_rate", 3, (-1, 1))]
        return fl.Simulation(fairness.augmented(problem, 3), FedAvg(0.5), metrics=metrics)

    results = fl.sweep(scenario, seeds=3, rounds=200).isel(round=-1)
    assert (results.flip_effect < 1e-10).all()
    assert (results.demographic_parity_difference > 0).any()


# Bad input ---------------------------------------------------------------------------------------


def one_group():
    problem, test = labeled("all")
    x, y = test[0]
    return problem.with_test(x[x[:, 0] == 0], y[x[:, 0] == 0])


def simulated(problem, metric):
    return fl.Simulation(problem, FedAvg(0.1), metrics=[metric])


def drawn_without_a_group():
    def scenario(key):
        x = jax.random.normal(key, (3, 8, 2))
        problem = Problem(x, jnp.sign(x[..., 0]), Logistic()).with_test(x, jnp.sign(x[..., 0]))
        return simulated(problem, fairness.group_rates("accuracy", 1))

    return fl.sweep(scenario, seeds=1, rounds=1)


REFUSED = {
    "of one number": (lambda: fairness.spread("accuracy"), "'accuracy' is one number; take"),
    "of other axes": (
        lambda: fairness.worst(Metric("m", lambda now: now.model, "", dims=("parameter",))),
        r"'m' is over \('parameter',\)",
    ),
    "of no metric": (lambda: fairness.worst("client_acuracy"), "Did you mean 'client_accuracy'"),
    "a share of none": (
        lambda: fairness.worst("client_accuracy", 0.0),
        "share must be finite and > 0 and <= 1, got 0",
    ),
    "worst of what": (
        lambda: fairness.worst(client_metric(np.ones(3))),
        "not known whether large or small values of 'given' are the worst; give largest=",
    ),
    "an unknown rate": (
        lambda: fairness.group_rates("positive_rat", 0),
        "Did you mean 'positive_rate'",
    ),
    "one group": (lambda: fairness.group_rates("accuracy", 0, [1.0]), "groups must be two values"),
    "a group twice": (
        lambda: fairness.parity_difference("accuracy", 0, [1.0, 1.0]),
        r"all different, got \(1.0, 1.0\)",
    ),
    "no column": (
        lambda: simulated(labeled()[0], fairness.group_rates("accuracy", 3)),
        "feature must be one of the 3 columns, got 3",
    ),
    "no labels": (
        lambda: simulated(
            fl.problems.ridge(fl.random_key(0), 3, 8, 2).split(fl.random_key(1)),
            fairness.group_rates("accuracy", 0),
        ),
        "'group_accuracy' needs labels",
    ),
    "a group with no member": (
        lambda: simulated(one_group(), fairness.parity_difference("accuracy", 0)),
        "group 1 has no member: no held-out sample has it as its feature 0, whose values are 0.",
    ),
    "no positive member": (
        lambda: simulated(
            labeled("all")[0], fairness.group_rates("true_positive_rate", 0, positive=3.0)
        ),
        "group 0 has no member: no held-out sample with the label 3",
    ),
    "a group that no draw has": (drawn_without_a_group, "group 0 has no member"),
    "a map": (
        lambda: simulated(dataclass_with_map(labeled()[0]), fairness.group_rates("accuracy", 0)),
        "a feature map leaves none; apply the map before",
    ),
    "a flip of many values": (
        lambda: fairness.augmented(labeled()[0], 1),
        "feature 1 must have two values to be flipped, got 70; pass key=",
    ),
    "a flip of no column": (
        lambda: fairness.augmented(labeled()[0], 5),
        "feature must be one of the 3 columns, got 5",
    ),
    "many flips": (
        lambda: fairness.augmented(labeled()[0], 0, copies=2),
        "all copies with a flipped feature are the same",
    ),
    "held-out data without two values": (
        lambda: simulated(one_group(), fairness.flip_effect(0)),
        "feature 0 must have two values to be flipped, got 1",
    ),
    "a negative column": (lambda: fairness.flip_effect(-1), "feature must be .*0.*got -1"),
}


def dataclass_with_map(problem):
    mapped = fl.data.random_fourier(fl.random_key(0), 3, 4)
    test = problem.test
    return Problem(
        problem.features, problem.targets, Logistic(), weights=problem.weights, feature_map=mapped
    ).with_test(test.features, test.targets, test.weights)


@pytest.mark.parametrize("case", REFUSED)
def test_mismatched_arguments_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_images_have_no_column():
    problem = Problem(np.ones((2, 3, 1)), np.ones((2, 3)), LeastSquares())
    images = fl.problems.Model.from_clients(
        fl.models.cnn(2, channels=[2], hidden=[2]),
        fl.random_key(0),
        [(np.ones((3, 8, 8, 1)), np.zeros(3))],
        Softmax(2),
    )
    with pytest.raises(ValueError, match="is a column of features"):
        fairness.augmented(images, 0)
    with pytest.raises(ValueError, match="two values to be flipped, got 1"):
        fairness.augmented(problem, 0)
