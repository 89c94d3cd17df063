"""Representations and heads of networks, and the algorithms that read them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.numerics import default_promotion
from fljax.problems import model as networks
from tests.support import small_network as small

SIZES = (5, 7, 4, 6)
close = np.testing.assert_allclose


def problem(network=small.HEADED, **settings):
    loss = fl.problems.Softmax(small.CLASSES)
    data = small.samples(SIZES)
    return fl.problems.Model.from_clients(network, jax.random.key(0), data, loss, **settings)


def models(data, seed=1):
    return jnp.asarray(0.5 * np.random.default_rng(seed).normal(size=(data.clients, data.dim)))


# The door ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [fl.models.mlp(3, [5, 4]), fl.models.mlp(1, [5])])
def test_predictions_are_the_heads_of_representations(network):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4, 4)))
    for model in (network, fl.models.cnn(3, channels=[2], hidden=[5])):
        with default_promotion():
            parameters = model.init(jax.random.key(0), x[:1])
            read = model.represent(parameters, x)
            assert read.shape == (6, model.hidden[-1])
            close(model.head(parameters, read), model.apply(parameters, x), rtol=0, atol=0)


@pytest.mark.slow
def test_two_parts_are_the_network():
    network_problem = problem(small.NETWORK)
    parts = problem()
    assert parts.layout.paths == ("body/a", "body/b", "head/c", "head/d")
    w = models(parts)
    close(parts.gradient(w), network_problem.gradient(w), rtol=0, atol=1e-15)
    read = np.stack(
        [
            np.tanh(x @ np.asarray(part["a"]) + np.asarray(part["b"]))
            for x, part in zip(parts.features, map(network_problem.parameters, w), strict=True)
        ]
    )
    close(parts.representations(w), read, rtol=0, atol=1e-14)
    assert np.flatnonzero(parts.head_coordinates()).tolist() == list(range(16, 31))
    assert parts.represents
    assert not network_problem.represents


@pytest.mark.slow
def test_two_parts_may_be_of_any_library():
    nn = pytest.importorskip("flax.linen")
    body = fl.models.linen(nn.Sequential([nn.Dense(5), nn.tanh]))
    head = fl.models.linen(nn.Dense(3))
    model = fl.models.headed(body, head)
    again = fl.models.headed(body, head)
    assert model == again
    assert hash(model) == hash(again)
    data = problem(model)
    assert data.representations(data.initial[None].repeat(4, 0)).shape == (4, 7, 5)
    assert data.head_coordinates().sum() == 5 * 3 + 3
    eqx = pytest.importorskip("equinox")
    head = fl.models.equinox(eqx.nn.Linear, 5, 3)
    data = problem(fl.models.headed(body, head), compute="bfloat16")
    assert data.representations(data.initial[None].repeat(4, 0)).dtype == data.dtype
    assert data.head_coordinates().sum() == 18


@dataclasses.dataclass(frozen=True)
class Own(fl.models.Architecture):
    """A network in two parts, optionally with a fault."""

    fault: str = ""

    @property
    def head_paths(self):
        return "^nothing$" if self.fault == "paths" else "^[cd]$"

    def init(self, key, features):
        return small.start(key)

    def represent(self, parameters, features):
        result = small.hidden(parameters, features)
        return {"axes": result[:, :, None], "whole": result.astype(int)}.get(self.fault, result)

    def head(self, parameters, representation):
        if self.fault == "apply":
            raise NotImplementedError
        return small.logits(parameters, representation)

    def apply(self, parameters, features):
        result = small.outputs(parameters, features)
        return result[:, :2] if self.fault == "head" else result


class Bare(fl.models.Architecture):
    def init(self, key, features):
        return small.start(key)


@pytest.mark.slow
def test_a_custom_network_declares_its_parts():
    w = models(problem())
    close(problem(Own()).gradient(w), problem().gradient(w), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: problem(Own("axes")), ValueError, r"one row of floats for each sample.*\[N, R\]"),
        (lambda: problem(Own("whole")), ValueError, "one row of floats for each sample"),
        (lambda: problem(Own("paths")), ValueError, "no parameter's path matches '.nothing.'"),
        (lambda: problem(Own("apply")), ValueError, "head has no predictions for"),
        (
            lambda: fl.problems.Model.from_clients(
                Own("head"), jax.random.key(0), small.samples(SIZES), lambda z, y: z[:, 0] - y
            ),
            ValueError,
            r"head must make its predictions of its representation, \(2, 2\)",
        ),
        (lambda: problem(Bare()), ValueError, "Bare has no method 'apply'.*represent, head and"),
        (lambda: problem(small.NETWORK).head_coordinates(), ValueError, "headed.body, head."),
        (lambda: fl.models.headed(Own(), len), TypeError, "head must be a network of fljax.models"),
        (
            lambda: fl.problems.ridge(
                jax.random.key(0), clients=2, samples=3, dim=2
            ).class_counts(),
            ValueError,
            "got LeastSquares",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def own_loss(reading, row, extra):
    return reading.losses(reading.predictions(row))


def milder(reading, row, extra):
    """A loss of logits and representation."""
    read = reading.representation(row)
    logits = reading.head(row, read) / extra["temperature"]
    return reading.losses(logits) + jnp.sum((read - extra["center"][None]) ** 2, axis=1)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("linear", [False, True])
def test_the_gradient_of_the_problem_s_own_loss_is_its_gradient(linear, clip):
    key = jax.random.key(0)
    regularizer = fl.problems.SquaredL2()
    data = problem(regularizer=regularizer, strength=0.3)
    if linear:
        data = fl.problems.softmax(key, clients=4, samples=9, dim=3, classes=3)
        data = dataclasses.replace(data, regularizer=regularizer, strength=0.3)
    data = data if clip is None else data.clipped(clip)
    w = models(data)
    close(data.gradient_of(own_loss, w), data.gradient(w), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_another_loss_has_the_gradient_of_differences(monkeypatch):
    """Whole, and in chunks of samples and groups of clients."""
    data = problem()
    rng = np.random.default_rng(2)
    w = models(data)
    direction = rng.normal(size=(4, data.dim))
    extra = {"temperature": jnp.array([1.0, 2.0, 3.0, 4.0]), "center": rng.normal(size=(4, 4))}

    def value(w):
        losses = [
            milder(fl.problems.Reading(data, x, y), row, jax.tree.map(lambda a, k=k: a[k], extra))
            for k, (x, y, row) in enumerate(zip(data.features, data.targets, w, strict=True))
        ]
        return np.sum(data.weights * np.stack(losses), axis=1)

    gradient = data.gradient_of(milder, w, extra)
    step = 1e-6
    change = (value(w + step * direction) - value(w - step * direction)) / (2 * step)
    close(np.sum(gradient * direction, axis=1), change, rtol=1e-7)
    monkeypatch.setattr(networks, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(type(data), "together", lambda self, samples: 2)
    close(data.gradient_of(milder, w, extra), gradient, rtol=0, atol=1e-14)


def test_classes_are_counted_at_each_client():
    expected = [np.bincount(y, minlength=small.CLASSES) for _, y in small.samples(SIZES)]
    np.testing.assert_array_equal(problem().class_counts(), expected)
