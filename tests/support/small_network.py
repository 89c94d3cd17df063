"""A network of two layers on small data of clients of different sizes, and its loop by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from tests.reference import network as by_hand

FEATURES = 3
HIDDEN = 4
CLASSES = 3
#: The parameters of the second layer, its weights and offsets: they come last.
LAYER = tuple(range(FEATURES * HIDDEN + HIDDEN, 31))


def start(key):
    keys = jax.random.split(key, 2)
    return {
        "a": jax.random.normal(keys[0], (FEATURES, HIDDEN)) / 2,
        "b": jnp.zeros(HIDDEN),
        "c": jax.random.normal(keys[1], (HIDDEN, CLASSES)) / 2,
        "d": jnp.zeros(CLASSES),
    }


def outputs(parameters, x):
    return jnp.tanh(x @ parameters["a"] + parameters["b"]) @ parameters["c"] + parameters["d"]


NETWORK = fl.models.plain(start, outputs)


# The same of two parts, whose parameters are in the same places of a row.


def hidden(parameters, x):
    return jnp.tanh(x @ parameters["a"] + parameters["b"])


def logits(parameters, h):
    return h @ parameters["c"] + parameters["d"]


def half(names):
    """What draws some of the parameters."""
    return lambda key: {name: start(key)[name] for name in names}


HEADED = fl.models.headed(fl.models.plain(half("ab"), hidden), fl.models.plain(half("cd"), logits))


def samples(sizes, seed=0):
    """One ``(features, targets)`` a client; each client's classes are other mixtures."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(n, FEATURES)), (rng.integers(0, CLASSES, n) * (k + 1)) % CLASSES)
        for k, n in enumerate(sizes)
    ]


def problem(sizes=(5, 7, 4), seed=0, **settings):
    """The network's problem of clients of these sizes."""
    key = jax.random.key(seed)
    loss = fl.problems.Softmax(CLASSES)
    return fl.problems.Model.from_clients(NETWORK, key, samples(sizes, seed), loss, **settings)


def gradient_of(sizes=(5, 7, 4), seed=0, clip=np.inf):
    """``gradient(k, w, rows=None)`` of client ``k``'s mean loss, or that of some of its samples."""
    data = samples(sizes, seed)

    def gradient(k, w, rows=None):
        x, y = data[k]
        if rows is not None:
            x = x[rows]
            y = y[rows]
        return by_hand.gradient(w, x, y, HIDDEN, CLASSES, clip)

    return gradient


# A nonzero start, as part of the network, so that loops that start from zero match it.

SHIFT = jax.tree.map(np.asarray, start(jax.random.key(5)))


def shifted(parameters, x):
    return outputs(jax.tree.map(jnp.add, parameters, SHIFT), x)


def at_zero(key):
    return jax.tree.map(jnp.zeros_like, SHIFT)


FROM_ZERO = fl.models.plain(at_zero, shifted)


def shifted_start(names, part):
    """A part of the network whose parameters are zero where it starts."""

    def function(parameters, x):
        return part({name: parameters[name] + SHIFT[name] for name in names}, x)

    return fl.models.plain(lambda key: {name: at_zero(key)[name] for name in names}, function)


HEADED_FROM_ZERO = fl.models.headed(shifted_start("ab", hidden), shifted_start("cd", logits))


@dataclasses.dataclass(frozen=True)
class Objective:
    """The objective of :data:`FROM_ZERO` by hand, as loops ask for it."""

    data: tuple
    strength: float = 0.0

    @property
    def clients(self):
        return len(self.data)

    @property
    def dim(self):
        return len(self._row)

    @property
    def counts(self):
        return np.array([len(y) for _, y in self.data], float)

    @property
    def _row(self):
        return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(SHIFT)])

    def value(self, k, w):
        x, y = self.data[k]
        return by_hand.losses(w + self._row, x, y, HIDDEN, CLASSES).mean()

    def sample_gradients(self, k, w):
        x, y = self.data[k]
        return by_hand.sample_gradients(w + self._row, x, y, HIDDEN, CLASSES)

    def gradient(self, k, w, rows=None):
        slopes = self.sample_gradients(k, w)
        return slopes.mean(axis=0) if rows is None else slopes[rows].mean(axis=0)


def from_zero(sizes, seed=0, network=FROM_ZERO):
    """The problem of :data:`FROM_ZERO`."""
    key = jax.random.key(0)
    loss = fl.problems.Softmax(CLASSES)
    return fl.problems.Model.from_clients(network, key, samples(sizes, seed), loss)
