"""The workloads of all sides of the comparison: data, graph and error, in NumPy alone.

This file is imported in each peer's own environment, so it knows neither JAX nor fljax. A workload
is its numbers, data drawn from a seed and the error of a final model:

``least_squares``
    Federated averaging with one full-batch gradient step a round, every client in every round.
``softmax``
    Federated averaging, ten of a hundred clients a round, one local epoch in batches of twenty.
``dgd``
    Decentralized gradient descent with Metropolis weights,
    ``w_k <- sum_l a_kl w_l - step * grad f_k(w_k)``.

``cnn``
    The same with a small convolutional network on MNIST.
``mlp``
    The same with a network of two layers on sixty classes, made of MNIST, at clients of very
    different sizes: a client's model counts by its samples.

The linear models start at zero, a network at numbers drawn here. A client's loss is the mean over
its samples: squared residual (its gradient is ``2/N X'(Xw - y)``, no bias) or cross-entropy.
"""

import gzip
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


class Compared:
    """The common part of all workloads."""

    def agrees(self, error: float, reference: float) -> bool:
        """Within 2 % of another's, or both at the floor of single precision."""
        return abs(error - reference) <= 0.02 * reference + 1e-7


@dataclass(frozen=True)
class Regression(Compared):
    """Linear observations of one parameter: a normal parameter and features, noise of 0.1."""

    name: str
    clients: int
    rounds: int
    samples: int = 50
    dim: int = 32
    step: float = 0.1
    noise_variance: float = 0.1

    def data(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Features ``[K, N, D]`` and targets ``[K, N]`` of this seed, in single precision."""
        rng = np.random.default_rng([seed, self.clients])
        features = rng.standard_normal((self.clients, self.samples, self.dim), np.float32)
        parameter = rng.standard_normal(self.dim, np.float32)
        noise = rng.standard_normal((self.clients, self.samples), np.float32)
        return features, features @ parameter + np.float32(self.noise_variance**0.5) * noise

    def optimum(self, seed: int) -> np.ndarray:
        """The pooled least-squares solution ``[D]``."""
        features, targets = self.data(seed)
        pooled = features.reshape(-1, self.dim).astype(np.float64)
        return np.linalg.lstsq(pooled, targets.reshape(-1).astype(np.float64))[0]

    def error(self, model: np.ndarray, seed: int) -> float:
        """``sum_k ||w_k - w_c||^2 / ||w_c||^2`` of one model ``[D]`` for all, or of ``[K, D]``."""
        best = self.optimum(seed)
        models = np.broadcast_to(np.asarray(model, np.float64), (self.clients, self.dim))
        return float(((models - best) ** 2).sum() / (best**2).sum())


@dataclass(frozen=True)
class Decentralized(Regression):
    """The same regression on a random connected graph."""

    mean_degree: int = 4

    def edges(self, seed: int) -> np.ndarray:
        """``[E, 2]`` edges: a random tree, then further pairs until the mean degree is met."""
        rng = np.random.default_rng([seed, self.clients, 1])
        order = rng.permutation(self.clients)
        edges = {
            tuple(sorted((order[child], order[rng.integers(child)])))
            for child in range(1, self.clients)
        }
        free = [
            (a, b)
            for a in range(self.clients)
            for b in range(a + 1, self.clients)
            if (a, b) not in edges
        ]
        more = self.clients * self.mean_degree // 2 - len(edges)
        chosen = [free[i] for i in rng.choice(len(free), more, replace=False)]
        return np.array(sorted(edges) + chosen)

    def weights(self, seed: int) -> np.ndarray:
        """Metropolis weights ``1 / (1 + max(d_k, d_l))`` on the edges, rows summing to one."""
        edges = self.edges(seed)
        degrees = np.bincount(edges.ravel(), minlength=self.clients)
        matrix = np.zeros((self.clients, self.clients))
        a, b = edges.T
        matrix[a, b] = matrix[b, a] = 1 / (1 + np.maximum(degrees[a], degrees[b]))
        return matrix + np.diag(1 - matrix.sum(1))


@dataclass(frozen=True)
class Classification(Compared):
    """Ten classes of 784 synthetic pixels.

    A pixel is zero with probability 0.8 and otherwise uniform in [0, 1], which gives MNIST's size,
    range and share of ink without a download; labels are drawn from the softmax of a normal teacher
    (mean of the pixels taken off, so that the classes are balanced). All seeds share the data: a
    seed draws the clients and the batches.
    """

    name: str = "softmax"
    clients: int = 100
    per_round: int = 10
    samples: int = 600
    features: int = 784
    classes: int = 10
    batch: int = 20
    step: float = 0.05
    rounds: int = 50
    ink: float = 0.2
    data_seed: int = 2024

    @cache  # noqa: B019 (one immutable workload a process)
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Features ``[K, N, 784]`` in single precision and integer labels ``[K, N]``."""
        rng = np.random.default_rng(self.data_seed)
        shape = (self.clients, self.samples, self.features)
        pixels = rng.random(shape, np.float32)
        # One draw serves twice: below the share of ink it is also the intensity.
        pixels = np.where(pixels < self.ink, pixels / np.float32(self.ink), np.float32(0))
        teacher = rng.standard_normal((self.features, self.classes), np.float32)
        logits = (pixels - pixels.mean((0, 1))) @ teacher
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
        return pixels, labels

    def error(self, model: np.ndarray, seed: int = 0) -> float:
        """Mean cross-entropy of ``[784, 10]`` weights over all samples; the seed plays no part."""
        pixels, labels = self.data()
        logits = pixels.reshape(-1, self.features) @ np.asarray(model, np.float32)
        return float(cross_entropy(logits.astype(np.float64), labels.ravel()))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.floating:
    """Mean of ``log sum_c exp(logit_c) - logit_label``."""
    shifted = logits - logits.max(1, keepdims=True)
    chosen = np.take_along_axis(shifted, labels[:, None], 1)[:, 0]
    return (np.log(np.exp(shifted).sum(1)) - chosen).mean()


#: A network's parameters: kernels and biases in turn, the convolutions' ``[3, 3, in, out]``.
Layers = list[np.ndarray]


@dataclass(frozen=True)
class Network(Compared):
    """A network on MNIST, whose files are in the folder ``FLJAX_DATA``.

    Convolutions of 3 x 3, padded by zeros, each followed by a rectifier and the maximum of squares
    of 2 x 2, if there are any; then layers with rectifiers between them. All seeds share the data:
    a seed draws the start, the clients and the batches.

    With ``turned``, an image is unchanged, rotated by 90, 180 or 270 degrees, mirrored, or mirrored
    and rotated by 90 degrees; each of the six is a separate class for each digit. (This stands in
    for FEMNIST, which cannot be downloaded everywhere, has 62 classes and clients of 227 samples
    with a deviation of 89: sizes and classes are similar, the writers' styles are not.)
    """

    name: str
    clients: int
    per_round: int
    rounds: int
    step: float
    channels: tuple[int, ...]
    hidden: int
    turned: bool = False
    mean: int = 600  # samples of a client
    spread: float = 0.0  # of their sizes: standard deviation of the logarithm
    largest: int = 600
    batch: int = 20
    features: int = 784
    data_seed: int = 2024

    @property
    def classes(self) -> int:
        return 60 if self.turned else 10

    @cache  # noqa: B019 (one immutable workload a process)
    def data(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each client's features ``[N_k, 784]`` in single precision and labels ``[N_k]``."""
        rng = np.random.default_rng(self.data_seed)
        normal = self.spread * rng.standard_normal(self.clients)
        sizes = self.mean * np.exp(normal - self.spread**2 / 2)
        ends = np.minimum(sizes.astype(int), self.largest).cumsum()
        pixels, labels = self._images("train", rng)
        order = rng.permutation(len(pixels))[: ends[-1]]
        parts = np.split(order, ends[:-1])
        return [(pixels[part], labels[part]) for part in parts]

    @cache  # noqa: B019
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Features ``[10000, 784]`` and labels of images that no client has."""
        return self._images("t10k", np.random.default_rng(self.data_seed + 1))

    def _images(self, part: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        pixels = idx(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        labels = idx(f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)
        if self.turned:
            how = rng.integers(6, size=len(labels))
            pixels = pixels.copy()
            labels = labels + 10 * how
            for kind in range(1, 6):
                chosen = pixels[how == kind]
                mirrored = chosen[:, :, ::-1] if kind > 3 else chosen
                pixels[how == kind] = np.rot90(mirrored, kind % 4, axes=(1, 2))
        return pixels.reshape(-1, 784).astype(np.float32) / np.float32(255), labels

    def start(self, seed: int) -> Layers:
        """Kernels of variance two over their inputs, the last of one over them; biases of zero."""
        rng = np.random.default_rng([seed, 1])
        side = 28
        before = 1
        shapes = []
        for channels in self.channels:
            shapes.append((3, 3, before, channels))
            side = side // 2
            before = channels
        shapes += [(side * side * before, self.hidden), (self.hidden, self.classes)]
        layers = []
        for index, shape in enumerate(shapes):
            scale = 2 if index < len(shapes) - 1 else 1
            deviation = np.float32((scale / np.prod(shape[:-1])) ** 0.5)
            layers.append(deviation * rng.standard_normal(shape, np.float32))
            layers.append(np.zeros(shape[-1], np.float32))
        return layers

    def error(self, model: Layers, seed: int = 0) -> float:
        """The share of the test images that are taken for another class; the seed plays no part."""
        pixels, labels = self.test()
        wrong = 0
        for first in range(0, len(labels), 500):
            part = slice(first, first + 500)
            wrong += (self.logits(model, pixels[part]).argmax(1) != labels[part]).sum()
        return float(wrong) / len(labels)

    def agrees(self, error: float, reference: float) -> bool:
        """Within half a percent of the test images: as far as other batches take it."""
        return abs(error - reference) <= 0.005

    def logits(self, model: Layers, pixels: np.ndarray) -> np.ndarray:
        """Of ``[N, 784]`` pixels."""
        kernels = model[::2]
        biases = model[1::2]
        x = pixels.reshape(-1, 28, 28, 1) if self.channels else pixels
        for kernel, bias in zip(kernels[:-2], biases[:-2], strict=True):
            samples, height, width, _ = x.shape
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            x = np.concatenate(shifted, -1) @ kernel.reshape(-1, kernel.shape[-1]) + bias
            x = np.maximum(x, 0).reshape(samples, height // 2, 2, width // 2, 2, -1).max((2, 4))
        x = x.reshape(len(x), -1)
        return np.maximum(x @ kernels[-2] + biases[-2], 0) @ kernels[-1] + biases[-1]


def idx(file: str, header: int) -> np.ndarray:
    """The bytes of one of MNIST's files after its header."""
    folder = os.environ.get("FLJAX_DATA")
    if not folder:
        raise ValueError("set FLJAX_DATA to the folder that has mnist/, with its four files.")
    with gzip.open(Path(folder) / "mnist" / file) as content:
        return np.frombuffer(content.read(), np.uint8, offset=header)


LEAST_SQUARES = Regression("least_squares", clients=100, rounds=200)
SOFTMAX = Classification()
DGD = Decentralized("dgd", clients=20, rounds=100)
ATC = Decentralized("atc", clients=20, rounds=100)
CNN = Network("cnn", 100, per_round=10, rounds=50, step=0.05, channels=(16, 32), hidden=64)
MLP = Network(
    "mlp",
    200,
    per_round=10,
    rounds=100,
    step=0.1,
    channels=(),
    hidden=128,
    turned=True,
    mean=227,
    spread=0.38,
    largest=500,
)
NETWORKS: tuple[Network, ...] = (CNN, MLP)
Workload = Regression | Classification | Network
WORKLOADS: dict[str, Any] = {w.name: w for w in (LEAST_SQUARES, SOFTMAX, DGD, ATC, *NETWORKS)}
