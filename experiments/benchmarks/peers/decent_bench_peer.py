"""The workloads in decent-bench, through its ``benchmark`` function on its NumPy backend.

Its linear regression cost is half the mean squared residual, so its step is twice the workload's.
For several classes it has only PyTorch models; the softmax cost below is the kind of extension
that its documentation describes, in NumPy, and its batches go through the shuffled samples as those
of its own costs do: thirty local steps are one epoch.
"""
# pyright: reportMissingImports=false

import logging
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
from decent_array import Array
from decent_array import interoperability as iop
from decent_array.types import Devices, Frameworks
from decent_bench.agents import Agent
from decent_bench.algorithms.federated import FedAvg
from decent_bench.algorithms.p2p import ATC, DGD
from decent_bench.benchmark import BenchmarkProblem, benchmark, configure
from decent_bench.costs import EmpiricalRiskCost, LinearRegressionCost
from decent_bench.networks import FedNetwork, P2PNetwork
from decent_bench.schemes import UniformSelection

from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.numpy_side import softmax_gradient
from experiments.benchmarks.peers.workloads import (
    Classification,
    Decentralized,
    Regression,
    cross_entropy,
)


def least_squares(workload: Regression, seed: int, watch: Stopwatch) -> np.ndarray:
    network = FedNetwork(regression_agents(workload, seed))
    algorithm = FedAvg(step_size=2 * workload.step, num_local_steps=1, x0=zeros(workload.dim))
    return run(network, algorithm, workload.rounds, seed, watch).server().x.value


def decentralized(kind: type, workload: Decentralized, seed: int, watch: Stopwatch) -> np.ndarray:
    graph = nx.empty_graph(workload.clients)
    graph.add_edges_from(workload.edges(seed).tolist())
    network = P2PNetwork(graph, regression_agents(workload, seed))
    algorithm = kind(step_size=2 * workload.step, x0=zeros(workload.dim))
    agents = run(network, algorithm, workload.rounds, seed, watch).agents()
    return np.stack([agent.x.value for agent in agents])


def softmax(workload: Classification, seed: int, watch: Stopwatch) -> np.ndarray:
    features, labels = workload.data()
    network = FedNetwork(
        [
            Agent(SoftmaxCost(x, y, workload), state_snapshot_period=workload.rounds)
            for x, y in zip(features, labels, strict=True)
        ]
    )
    algorithm = FedAvg(
        step_size=workload.step,
        num_local_steps=workload.samples // workload.batch,
        selection_scheme=UniformSelection(num_selected_clients=workload.per_round),
        x0=zeros(workload.features, workload.classes),
    )
    return run(network, algorithm, workload.rounds, seed, watch).server().x.value


def regression_agents(workload: Regression, seed: int) -> list[Agent]:
    features, targets = workload.data(seed)
    return [
        Agent(
            LinearRegressionCost(
                [(Array(a), Array(b)) for a, b in zip(x, y[:, None], strict=True)]
            ),
            state_snapshot_period=workload.rounds,
        )
        for x, y in zip(features, targets, strict=True)
    ]


def zeros(*shape: int) -> Array:
    """A start in single precision; by default decent-bench starts, and so stays, in double."""
    return Array(np.zeros(shape, np.float32))


def run(network: Any, algorithm: Any, rounds: int, seed: int, watch: Stopwatch) -> Any:
    """The network after the rounds; the seed draws clients and batches."""
    iop.set_seed(seed)
    problem = BenchmarkProblem(network)
    with watch.run():
        result = benchmark([algorithm], problem, rounds, progress_step=None)
    return result.states[algorithm][0]


class SoftmaxCost(EmpiricalRiskCost):
    """Mean cross-entropy of ten linear logits."""

    def __init__(self, features: np.ndarray, labels: np.ndarray, workload: Classification):
        self.features = features
        self.labels = labels
        self.workload = workload

    shape = property(lambda self: (self.workload.features, self.workload.classes))
    n_samples = property(lambda self: self.workload.samples)
    batch_size = property(lambda self: self.workload.batch)
    dataset = property(lambda self: list(zip(self.features, self.labels, strict=True)))
    m_smooth = property(lambda self: np.inf)
    m_cvx = property(lambda self: 0.0)

    def predict(self, x: Array, data: list[Array]) -> Array:
        return Array(np.argmax(np.stack([d.value for d in data]) @ x.value, axis=-1))

    def function(self, x: Array, indices: Any = "batch", **_: Any) -> float:
        features, labels = self._get_batch_data(indices)
        return float(cross_entropy(features @ x.value, labels))

    def gradient(
        self, x: Array, indices: Any = "batch", reduction: Any = "mean", **_: Any
    ) -> Array:
        return Array(softmax_gradient(x.value, *self._get_batch_data(indices)))

    def hessian(self, x: Array, indices: Any = "batch", **_: Any) -> Array:
        raise NotImplementedError

    def _get_batch_data(self, indices: Any = "batch") -> tuple[np.ndarray, np.ndarray]:
        rows = self._sample_batch_indices(indices)
        return self.features[rows], self.labels[rows]


if __name__ == "__main__":
    configure(Frameworks.NUMPY, Devices.CPU, seed=0, log_level=logging.ERROR)
    main(
        "decent-bench",
        {
            "least_squares": least_squares,
            "softmax": softmax,
            "dgd": partial(decentralized, DGD),
            "atc": partial(decentralized, ATC),
        },
        {"softmax": "its own multi-class cost needs PyTorch; a NumPy cost was written for it"}
        | dict.fromkeys(("cnn", "mlp"), "no network was written for it"),
    )
