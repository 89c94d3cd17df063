"""Federated averaging of a network: its numbers, its data, and a run of it in fljax."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.gpu.cards import PRECISIONS
from fljax._core.devices import on_cpu
from fljax.models import Architecture
from fljax.problems import Loss, Model, Softmax, TokenCrossEntropy


class Samples(NamedTuple):
    """Samples of clients, and held-out ones for all."""

    features: Any  # [K, N, ...]
    targets: Any  # [K, N] or [K, N, L]
    sizes: np.ndarray  # [K]  how many of the N are a client's own
    test_features: Any  # [T, ...]
    test_targets: Any  # [T] or [T, L]
    source: str  # in words


@dataclasses.dataclass(frozen=True)
class Training:
    """What all sides of a comparison do.

    Attributes:
      network: whose ``init`` and ``train`` all sides call.
      sample: shape of a sample.
      outputs: classes, or tokens of a vocabulary.
      clients: number of clients.
      per_round: clients that train in a round.
      samples: of a client, on average.
      batch: samples of a step.
      step_size: of a step.
      rounds: of the published run.
      record_every: rounds between evaluations.
      epochs: passes of a client over its samples.
      test: number of held-out samples.
      tokens: whether samples are sequences of tokens, and the next ones are predicted.
      spread: standard deviation of the logarithm of the clients' sizes.
      state: policy of the network's state.
      privacy: of a run.
      precision: one of :data:`~experiments.benchmarks.gpu.cards.PRECISIONS`.
      draw: of the samples; by default numbers of the right shape.
    """

    network: Architecture
    sample: tuple[int, ...]
    outputs: int
    clients: int
    per_round: int
    samples: int
    batch: int
    step_size: float
    rounds: int
    record_every: int = 10
    epochs: int = 1
    test: int = 10_000
    tokens: bool = False
    spread: float = 0.0
    state: str | None = None
    privacy: Any = None
    precision: str = "float32"
    draw: Callable[["Training"], Samples] | None = None

    def small(self, **sizes: Any) -> "Training":
        """The same program on a few numbers, for a CPU."""
        few = {"clients": 6, "per_round": 3, "samples": 4, "batch": 2, "rounds": 4, "test": 6}
        return dataclasses.replace(self, **(few | {"record_every": 2} | sizes))

    @property
    def loss(self) -> Loss:
        return TokenCrossEntropy(self.outputs) if self.tokens else Softmax(self.outputs)

    @property
    def metric(self) -> fl.metrics.Metric:
        """The share of held-out samples, or tokens, that are predicted."""
        return fl.metrics.token_accuracy() if self.tokens else fl.metrics.accuracy

    @property
    def steps(self) -> float:
        """Local steps of a client in a round, on average."""
        return self.epochs * math.ceil(self.samples / self.batch)

    @property
    def iterations(self) -> float:
        """Iterations of a loop whose length is decided while the program runs, on average: the
        steps of clients of different sizes, or what draws participants again, almost never.
        """
        return self.steps if self.spread or on_cpu() else 0.0

    def data(self) -> Samples:
        return (self.draw or drawn)(self)

    def problem(self, data: Samples) -> Model:
        """The clients' problem."""
        settings: dict[str, Any] = {
            "architecture": self.network,
            "compute": PRECISIONS[self.precision],
            "state": self.state,
        }
        weights = None
        if self.spread:
            real = np.arange(data.features.shape[1]) < data.sizes[:, None]
            weights = (real / data.sizes[:, None]).astype(np.float32)
        test = Model(data.test_features[None], data.test_targets[None], self.loss, **settings)
        problem = Model(
            data.features, data.targets, self.loss, weights=weights, test=test, **settings
        )
        return problem.initialized(fl.random_key(0))

    def scenario(self, data: Samples) -> Callable[[jax.Array], fl.Simulation]:
        """A run from a key, on these samples."""
        problem = self.problem(data)
        weighting = "samples" if self.privacy is None else "equal"
        algorithm = fl.algorithms.FedAvg(
            self.step_size,
            clients_per_round=self.per_round,
            epochs=self.epochs,
            batch=self.batch,
            weighting=weighting,
        )

        def scenario(key: jax.Array) -> fl.Simulation:
            return fl.Simulation(problem, algorithm, privacy=self.privacy, metrics=[self.metric])

        return scenario


def sizes(training: Training) -> np.ndarray:
    """The clients' numbers of samples, ``[K]``."""
    if not training.spread:
        return np.full(training.clients, training.samples)
    normal = training.spread * np.random.default_rng(0).standard_normal(training.clients)
    result = training.samples * np.exp(normal - training.spread**2 / 2)
    return np.clip(result.astype(int), 1, int(2.5 * training.samples))


def arrays(training: Training) -> tuple[Any, Any, Any, Any]:
    """Features and targets of the clients, and held-out ones."""
    shapes = [(training.clients, int(sizes(training).max())), (training.test,)]
    return tuple(  # pyright: ignore[reportReturnType]
        array
        for number, shape in enumerate(shapes)
        for array in _drawn(jax.random.key(number), training, shape)
    )


def drawn(training: Training) -> Samples:
    """Numbers of the right shapes, drawn on the device: the time of a round does not depend on the
    values. Images of a class share a pattern, so that a network can learn them.
    """
    features, targets, test_features, test_targets = arrays(training)
    kind = "tokens" if training.tokens else "images"
    source = f"drawn {kind} of its shape"
    return Samples(features, targets, sizes(training), test_features, test_targets, source)


def _drawn(key: jax.Array, training: Training, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Features and targets of this many samples."""

    @jax.jit
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        k_labels, k_noise = jax.random.split(key)
        if training.tokens:
            length = training.sample[0]
            dtype = jnp.int16 if training.outputs < 2**15 else jnp.int32
            text = jax.random.randint(k_labels, (*shape, length + 1), 1, training.outputs, dtype)
            return text[..., :-1], text[..., 1:]
        labels = jax.random.randint(k_labels, shape, 0, training.outputs, jnp.int32)
        patterns = jax.random.normal(jax.random.key(7), (training.outputs, *training.sample))
        noise = jax.random.normal(k_noise, (*shape, *training.sample))
        return 0.5 * patterns[labels] + noise, labels

    return draw(key)
