"""What every side of the comparison computes: data, graph and error, in NumPy alone.

This file is imported in each peer's own environment, so it knows neither JAX nor fljax. A workload
is its numbers, data drawn from a seed and the error of a final model:

``least_squares``
    Federated averaging with one full-batch gradient step a round, every client in every round.
``softmax``
    Federated averaging, ten of a hundred clients a round, one local epoch in batches of twenty.
``dgd``
    Decentralised gradient descent with Metropolis weights,
    ``w_k <- sum_l a_kl w_l - step * grad f_k(w_k)``.

The models start at zero. A client's loss is the mean over its samples: squared residual (its
gradient is ``2/N X'(Xw - y)``, no bias) or cross-entropy of ten linear logits.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class Regression:
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
class Decentralised(Regression):
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
class Classification:
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


LEAST_SQUARES = Regression("least_squares", clients=100, rounds=200)
SOFTMAX = Classification()
DGD = Decentralised("dgd", clients=20, rounds=100)
ATC = Decentralised("atc", clients=20, rounds=100)
WORKLOADS = {w.name: w for w in (LEAST_SQUARES, SOFTMAX, DGD, ATC)}
