"""Clusters of clients with tasks of their own, and data that arrive during the run."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.atlas.convex import ROUNDS
from experiments.atlas.scenario import LOCAL_STEPS, Scenario

CLIENTS, CLUSTERS, SAMPLES, TESTS, DIM = 40, 4, 20, 50, 10
#: The cluster of each client, and of each server's clients all clusters.
CLUSTER = np.arange(CLIENTS) % CLUSTERS
STRENGTH, SPREAD = 0.1, 0.5
PERSONAL_REASON = (
    "Clients in a few clusters, each with a model of its own (Ghosh et al. 2020; Gauthier 2024, "
    "chapter 5): no single model suits all, and a client alone has too few samples."
)


@jax.jit
def labeled(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Features with a constant, and labels of logistic models, one of each cluster."""
    k_model, k_features, k_labels = jax.random.split(key, 3)
    models = 2 * jax.random.normal(k_model, (CLUSTERS, DIM))[CLUSTER]
    features = jax.random.normal(k_features, (CLIENTS, SAMPLES + TESTS, DIM))
    features = features.at[..., -1].set(1)
    logits = jnp.einsum("knd,kd->kn", features, models)
    up = jax.random.uniform(k_labels, logits.shape) < jax.nn.sigmoid(logits)
    return features, jnp.where(up, 1.0, -1.0)


def classified(key: jax.Array) -> dict[str, Any]:
    """Logistic regression of the clusters, with held-out data of each client."""
    features, labels = labeled(key)
    problem = fl.problems.Problem(
        features[:, :SAMPLES],
        labels[:, :SAMPLES],
        fl.problems.Logistic(),
        fl.problems.SquaredL2(),
        STRENGTH,
        tasks=fl.problems.Tasks(CLUSTER, CLUSTERS),
    ).with_test(features[:, SAMPLES:], labels[:, SAMPLES:])
    return {"problem": problem}


Scenario(
    "clusters-server",
    "Four clusters of clients and one server: test errors of each client's own model",
    PERSONAL_REASON,
    "Logistic regression; clients of one server in four clusters, each wants a model of its own",
    classified,
    "error_rate",
    target=0.25,
    rounds=100,
    axes={"clusters": CLUSTERS},
    given={"local_steps": LOCAL_STEPS, "clusters": CLUSTERS, "personal": (DIM - 1,)},
    personal=True,
)


@partial(jax.jit, static_argnames="cluster")
def clustered(key: jax.Array, cluster: tuple[int, ...]) -> fl.problems.Problem:
    """Ridge regression of the clusters, with validation data of each client."""
    given = CLUSTERS, (SAMPLES, SAMPLES), DIM, SPREAD, STRENGTH
    return fl.problems.clustered_ridge(key, jnp.array(cluster), *given, validated=True)


def regressed(key: jax.Array, servers: int) -> dict[str, Any]:
    """The clients of all clusters, which belong to servers on a ring."""
    network = fl.federation.balanced(CLIENTS // servers, fl.graphs.ring(servers))
    return {"problem": clustered(key, tuple(CLUSTER.tolist())), "network": network}


Scenario(
    "clusters-servers",
    "Four clusters of clients of five servers on a ring",
    PERSONAL_REASON + " Servers at the edge share what they know with their neighbors.",
    "Ridge regression; clients in four clusters, of five servers that form a network",
    partial(regressed, servers=5),
    "network_deviation",
    target=1e-2,
    rounds=100,
    axes={"clusters": CLUSTERS, "servers": 5},
    talks="servers",
    given={"local_steps": LOCAL_STEPS, "clusters": CLUSTERS},
    personal=True,
)


#: The same clients in the order of their clusters, and who is next to whom within and between.
IN_ORDER = tuple(sorted(CLUSTER.tolist()))
NEIGHBORS = np.where(np.eye(CLUSTERS, dtype=bool), 0.8, 0.02)


@jax.jit
def block_model(key: jax.Array) -> fl.graphs.Graph:
    return fl.graphs.stochastic_block_model(key, (CLIENTS // CLUSTERS,) * CLUSTERS, NEIGHBORS)


def blocks(key: jax.Array) -> dict[str, Any]:
    """The clients of all clusters as peers, most of whose edges are within a cluster."""
    k_data, k_graph = jax.random.split(key)
    return {
        "problem": clustered(k_data, IN_ORDER),
        "network": block_model(k_graph),
        "allow_disconnected": True,
    }


Scenario(
    "clusters-peers",
    "Four clusters of peers, most of whose edges are within a cluster",
    "The cluster model of networked learning (Jung 2025, chapter 7): the graph says who is alike, "
    "and total variation of models along it is small.",
    "Ridge regression; peers in four clusters, of which the graph knows",
    blocks,
    "network_deviation",
    target=1e-1,
    rounds=100,
    axes={"clusters": CLUSTERS},
    talks="peers",
    given={"local_steps": LOCAL_STEPS, "clusters": CLUSTERS},
    personal=True,
)

#: Deviation of the noise of streamed samples, and the share of rounds in which a client has one.
NOISE, ARRIVING = 0.01, 0.5


@jax.jit
def unknown(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Square roots of the covariances of each client's features, and the common model."""
    k_roots, k_truth = jax.random.split(key)
    scale = jax.random.uniform(k_roots, (CLIENTS, 1, 1), minval=0.5, maxval=1.5)
    return scale * jnp.eye(DIM)[None], jax.random.normal(k_truth, (DIM,))


@jax.jit
def random_graph(key: jax.Array) -> fl.graphs.Graph:
    return fl.graphs.random_connected(key, nodes=CLIENTS, mean_degree=4)


def streamed(key: jax.Array, peers: bool) -> dict[str, Any]:
    """Linear responses, one sample of half of the clients in a round."""
    k_data, k_graph = jax.random.split(key)
    roots, truth = unknown(k_data)
    stream = fl.streams.Linear(
        roots, truth, jnp.full(CLIENTS, NOISE), fl.participation.Bernoulli(ARRIVING)
    )
    if not peers:
        return {"problem": stream}
    return {"problem": stream, "network": random_graph(k_graph)}


for _talks, _who in (("server", "clients of one server"), ("peers", "peers on a random graph")):
    Scenario(
        f"stream-{_talks}",
        f"Samples arrive one by one at {_who}",
        "Sensors learn while they measure (Gauthier 2024, chapter 4; Sayed 2014): every sample is "
        "seen once, and half of the clients have none in a round.",
        f"A stream of linear responses; {_who}, half of which have a sample in a round",
        partial(streamed, peers=_talks == "peers"),
        "normalized_error",
        target=CLIENTS * 1e-2,
        rounds=2 * ROUNDS,
        axes={"data": "a stream"},
        talks=_talks,
        given={},
        record_every=4,
    )
