"""Sequences of tokens: loss and metrics against NumPy, causality, exact clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.numerics import default_promotion

close = np.testing.assert_allclose

VOCABULARY = 9
LENGTH = 7
END = 2


def text(count, seed):
    """Sequences that count up, from a random token on, to a random length, with padding."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((count, LENGTH + 1), int)
    for row in tokens:
        length = rng.integers(3, LENGTH + 2)
        row[:length] = (rng.integers(8) + np.arange(length)) % 8 + 1
    return tokens[:, :-1], tokens[:, 1:]


def networks():
    return {
        "lstm": fl.models.lstm(VOCABULARY, 4, [6]),
        "projected": fl.models.lstm(VOCABULARY, 4, [6, 5], projection=3),
        "transformer": fl.models.transformer(
            VOCABULARY, width=8, layers=2, heads=2, longest=LENGTH
        ),
    }


def problem_of(network, test=True, **settings):
    clients = [text(count, seed) for seed, count in enumerate((6, 9, 5))]
    return fl.problems.Model.from_clients(
        network,
        jax.random.key(0),
        clients,
        fl.problems.TokenCrossEntropy(VOCABULARY, **settings),
        test=[text(11, 7)] if test else None,
    )


def cross_entropy(scores, target):
    """``[N, L]``, zero at padding."""
    scores = scores - scores.max(-1, keepdims=True)
    log = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    return np.where(target > 0, -np.take_along_axis(log, target[..., None], -1)[..., 0], 0)


@pytest.mark.parametrize("reduction", ["tokens", "length", "sum"])
def test_the_loss_leaves_padding_out(reduction):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, LENGTH, VOCABULARY))
    _, target = text(5, 3)
    losses = cross_entropy(scores, target)
    expected = {
        "tokens": losses.sum(1) / (target > 0).sum(1),
        "length": losses.mean(1),
        "sum": losses.sum(1),
    }[reduction]
    loss = fl.problems.TokenCrossEntropy(VOCABULARY, reduction=reduction)
    value = loss.value(jnp.asarray(scores), jnp.asarray(target))
    close(value.mean(1), expected, rtol=1e-12)
    step = 1e-6
    moved = scores.copy()
    moved[2, 1, 4] += step
    change = loss.value(jnp.asarray(moved), jnp.asarray(target)).sum() - value.sum()
    slope = loss.derivative(jnp.asarray(scores), jnp.asarray(target))[2, 1, 4]
    close(change / step, slope, rtol=1e-4, atol=1e-8)


def test_metrics_of_tokens_are_those_of_numpy():
    problem = problem_of(networks()["lstm"])
    metrics = [
        fl.metrics.perplexity(),
        fl.metrics.token_accuracy(),
        fl.metrics.token_accuracy([0, END], never=[0, END, 5], name="in_vocabulary"),
    ]
    algorithm = fl.algorithms.FedAvg(0.5, epochs=2, batch=3)
    run = fl.run(fl.Simulation(problem, algorithm, metrics=metrics), rounds=3)
    x, y = text(11, 7)
    with default_promotion():
        parameters = problem.parameters(run.model[0].values)
        scores = np.array(problem.architecture.apply(parameters, jnp.asarray(x)))
    losses = cross_entropy(scores, y)
    close(run.perplexity[-1], np.exp(losses.sum() / (y > 0).sum()), rtol=1e-9)
    right = scores.argmax(-1) == y
    close(run.token_accuracy[-1], right[y > 0].mean(), rtol=1e-9)
    scores[..., [0, END, 5]] = -np.inf
    counts = ~np.isin(y, [0, END])
    close(run.in_vocabulary[-1], (scores.argmax(-1) == y)[counts].mean(), rtol=1e-9)


@pytest.mark.parametrize("name", networks())
def test_predictions_do_not_see_the_future(name):
    network = networks()[name]
    x = jnp.asarray(text(4, 1)[0])
    with default_promotion():
        parameters = network.init(jax.random.key(0), x[:1])
        before = network.evaluate(parameters, {}, x)
        after = network.evaluate(parameters, {}, x.at[:, 4].set(3))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).max() > 1e-6


@pytest.mark.parametrize("name", networks())
def test_clipped_gradients_are_those_of_each_sequence(name):
    problem = problem_of(networks()[name], test=False)
    models = problem.initial[None] + 0.1 * jax.random.normal(jax.random.key(3), (3, problem.dim))
    clip = 0.3
    clipped = problem.clipped(clip).gradient(models)

    @jax.jit
    def gradient(row, x, y):
        def loss(row):
            scores = problem.architecture.apply(problem.layout.parameters(row), x[None])
            return jnp.mean(problem.loss.value(scores, y[None]))

        return jax.grad(loss)(row)

    for k in range(3):
        total = 0.0
        count = int((problem.weights[k] > 0).sum())
        for n in range(count):
            with default_promotion():
                x = jnp.asarray(problem.features[k, n], jnp.int32)
                y = jnp.asarray(problem.targets[k, n], jnp.int32)
                single = np.asarray(gradient(models[k], x, y))
            total += single * min(1, clip / np.linalg.norm(single)) / count
        close(clipped[k], total, rtol=1e-7, atol=1e-10)


def test_sequences_are_learned_with_dropout_and_under_a_budget():
    network = fl.models.transformer(
        VOCABULARY, width=8, layers=1, heads=2, longest=LENGTH, dropout=0.2
    )
    problem = problem_of(network)
    algorithm = fl.algorithms.FedAvg(0.5, epochs=3, batch=3)
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["test_error"]), rounds=20)
    assert run.test_error[-1] < 0.5 * run.test_error[0]
    private = fl.Simulation(
        problem,
        fl.algorithms.FedDPSGD(0.1, sampling_rate=0.5),
        privacy=fl.privacy.NoisyGradients(1.0, clip=1.0),
    )
    assert np.isfinite(fl.run(private, rounds=2).model).all()


@pytest.mark.parametrize(
    ("make", "text_of_error"),
    [
        (lambda: fl.problems.TokenCrossEntropy(1), "vocabulary must be >= 2"),
        (lambda: fl.problems.TokenCrossEntropy(5, pad=5), "pad must be"),
        (lambda: fl.problems.TokenCrossEntropy(5, reduction="mean"), "unknown reduction"),
        (
            lambda: fl.problems.Model.from_clients(
                networks()["lstm"],
                jax.random.key(0),
                [(np.ones((2, 3), int), np.array([[1, 9, 0], [1, 0, 0]]))],
                fl.problems.TokenCrossEntropy(VOCABULARY),
            ),
            "tokens from 0 to 8, got 9",
        ),
        (
            lambda: fl.problems.Model.from_clients(
                networks()["lstm"],
                jax.random.key(0),
                [(np.ones((2, 3), int), np.array([[1, 2, 0], [0, 0, 0]]))],
                fl.problems.TokenCrossEntropy(VOCABULARY),
            ),
            "of padding alone",
        ),
        (lambda: fl.metrics.token_accuracy([-1]), "each of left_out"),
        (
            lambda: fl.run(
                fl.Simulation(
                    problem_of(networks()["lstm"]), fl.algorithms.FedAvg(0.1), metrics=["accuracy"]
                ),
                rounds=1,
            ),
            "token_accuracy",
        ),
        (lambda: fl.models.transformer(9, width=6, heads=4), "heads must divide"),
        (lambda: fl.models.resnet(10, groups=48), "groups must divide"),
        (lambda: fl.models.resnet(10, norm="layer"), "unknown norm"),
        (lambda: fl.models.dropout_cnn(10, rates=[0.5]), "rates must be two"),
        (lambda: fl.models.lstm(9, hidden=[]), "hidden has no layer"),
    ],
)
def test_bad_sequences_are_refused(make, text_of_error):
    with pytest.raises((TypeError, ValueError), match=text_of_error):
        make()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_small_residual_network_learns(norm):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (3, 12))
    images = rng.normal(size=(3, 12, 8, 8, 3)) + labels[..., None, None, None]
    problem = fl.problems.Model.from_clients(
        fl.models.resnet(3, norm, blocks=[1, 1], width=4, groups=2),
        jax.random.key(0),
        list(zip(images, labels, strict=True)),
        fl.problems.Softmax(3),
        augment=fl.augmentations.InOrder((fl.augmentations.Crop(1), fl.augmentations.Flip())),
    )
    algorithm = fl.algorithms.FedAvg(0.05, epochs=2, batch=4)
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["train_error"]), rounds=8)
    assert run.train_error[-1].mean() < 0.7 * run.train_error[0].mean()
