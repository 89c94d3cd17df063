"""What networks say beside their gradients, and the algorithms that read it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._numerics import foreign
from fljax.problems import model as networks
from tests import small_network as small

SIZES = (5, 7, 4, 6)
close = np.testing.assert_allclose


def problem(network=small.HEADED, **settings):
    loss = fl.problems.Softmax(small.CLASSES)
    data = small.samples(SIZES)
    return fl.problems.Model.from_clients(network, jax.random.key(0), data, loss, **settings)


def models(it, seed=1):
    return jnp.asarray(0.5 * np.random.default_rng(seed).normal(size=(it.clients, it.dim)))


# The door ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [fl.models.mlp(3, [5, 4]), fl.models.mlp(1, [5])])
def test_predictions_are_the_heads_of_representations(network):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4, 4)))
    for one in (network, fl.models.cnn(3, channels=[2], hidden=[5])):
        with foreign():
            parameters = one.init(jax.random.key(0), x[:1])
            read = one.represent(parameters, x)
            assert read.shape == (6, one.hidden[-1])
            close(one.head(parameters, read), one.apply(parameters, x), rtol=0, atol=0)


@pytest.mark.slow
def test_two_parts_are_the_network():
    whole, parts = problem(small.NETWORK), problem()
    assert parts.layout.paths == ("body/a", "body/b", "head/c", "head/d")
    w = models(parts)
    close(parts.gradient(w), whole.gradient(w), rtol=0, atol=1e-15)
    read = np.stack(
        [
            np.tanh(x @ np.asarray(part["a"]) + np.asarray(part["b"]))
            for x, part in zip(parts.features, map(whole.parameters, w), strict=True)
        ]
    )
    close(parts.representations(w), read, rtol=0, atol=1e-14)
    assert np.flatnonzero(parts.head_coordinates()).tolist() == list(range(16, 31))
    assert parts.represents
    assert not whole.represents


@pytest.mark.slow
def test_two_parts_may_be_of_any_library():
    nn = pytest.importorskip("flax.linen")
    body, head = (
        fl.models.linen(nn.Sequential([nn.Dense(5), nn.tanh])),
        fl.models.linen(nn.Dense(3)),
    )
    one, again = fl.models.headed(body, head), fl.models.headed(body, head)
    assert one == again
    assert hash(one) == hash(again)
    it = problem(one)
    assert it.representations(it.initial[None].repeat(4, 0)).shape == (4, 7, 5)
    assert it.head_coordinates().sum() == 5 * 3 + 3
    eqx = pytest.importorskip("equinox")
    head = fl.models.equinox(eqx.nn.Linear, 5, 3)
    it = problem(fl.models.headed(body, head), compute="bfloat16")
    assert it.representations(it.initial[None].repeat(4, 0)).dtype == it.dtype
    assert it.head_coordinates().sum() == 18


@dataclasses.dataclass(frozen=True)
class Own(fl.models.Architecture):
    """Of two parts, with a fault if one is asked for."""

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
def test_a_network_of_ones_own_says_its_parts():
    w = models(problem())
    close(problem(Own()).gradient(w), problem().gradient(w), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "error", "words"),
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
def test_parts_that_do_not_fit_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def own_loss(reading, row, given):
    return reading.losses(reading.predictions(row))


def milder(reading, row, given):
    """Of all that can be read."""
    read = reading.representation(row)
    logits = reading.head(row, read) / given["temperature"]
    return reading.losses(logits) + jnp.sum((read - given["center"][None]) ** 2, axis=1)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("linear", [False, True])
def test_the_gradient_of_the_problem_s_own_loss_is_its_gradient(linear, clip):
    key = jax.random.key(0)
    regularizer = fl.problems.SquaredL2()
    it = problem(regularizer=regularizer, strength=0.3)
    if linear:
        it = fl.problems.softmax(key, clients=4, samples=9, dim=3, classes=3)
        it = dataclasses.replace(it, regularizer=regularizer, strength=0.3)
    it = it if clip is None else it.clipped(clip)
    w = models(it)
    close(it.gradient_of(own_loss, w), it.gradient(w), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_another_loss_has_the_gradient_of_differences(monkeypatch):
    """Whole, and in chunks of samples and groups of clients."""
    it = problem()
    rng = np.random.default_rng(2)
    w, way = models(it), rng.normal(size=(4, it.dim))
    given = {"temperature": jnp.array([1.0, 2.0, 3.0, 4.0]), "center": rng.normal(size=(4, 4))}

    def value(w):
        each = [
            milder(fl.problems.Reading(it, x, y), row, jax.tree.map(lambda a, k=k: a[k], given))
            for k, (x, y, row) in enumerate(zip(it.features, it.targets, w, strict=True))
        ]
        return np.sum(it.weights * np.stack(each), axis=1)

    slope = it.gradient_of(milder, w, given)
    step = 1e-6
    change = (value(w + step * way) - value(w - step * way)) / (2 * step)
    close(np.sum(slope * way, axis=1), change, rtol=1e-7)
    monkeypatch.setattr(networks, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(type(it), "together", lambda self, samples: 2)
    close(it.gradient_of(milder, w, given), slope, rtol=0, atol=1e-14)


def test_classes_are_counted_at_each_client():
    expected = [np.bincount(y, minlength=small.CLASSES) for _, y in small.samples(SIZES)]
    np.testing.assert_array_equal(problem().class_counts(), expected)
