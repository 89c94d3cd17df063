"""Epidemic learning: random receivers, special cases, and how fast peers agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ATC, EpidemicLearning
from fljax.algorithms.peers.epidemic_learning import random_receivers
from tests.cases import CLIENTS, make_problem
from tests.support.peer_runs import ANYWHERE, models, peer_run, still

close = np.testing.assert_allclose


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_receivers_are_drawn_uniformly_without_replacement(form):
    network = fl.graphs.from_edges(
        6, [(0, k) for k in range(1, 6)] + [(1, 2), (2, 3), (3, 4)], form=form
    )
    adjacency = np.asarray(network.dense())
    everyone = jnp.ones(6, bool)
    counts = np.zeros((6, 6))
    draws = 3000
    keys = jax.random.split(jax.random.key(0), draws)
    drawn, receivers = jax.vmap(lambda key: random_receivers(key, network, everyone, 2))(keys)
    weights = np.asarray(jax.vmap(lambda averages: averages.matrix())(drawn))
    close(weights.sum(axis=2), 1, rtol=1e-12)
    sent = (weights > 0) & ~np.eye(6, dtype=bool)  # [draw, receiver, sender]
    expected = np.minimum(adjacency.sum(axis=1), 2)
    np.testing.assert_array_equal(receivers, np.tile(expected, (draws, 1)))
    np.testing.assert_array_equal(sent.sum(axis=1), receivers)
    assert not sent[:, adjacency == 0].any()
    received = sent.sum(axis=2)
    close(weights, (sent + np.eye(6)) / (1 + received)[..., None], rtol=1e-12)
    counts = sent.mean(axis=0)
    chance = np.where(adjacency > 0, expected / adjacency.sum(axis=1), 0)  # of the sender's row
    close(counts, chance, atol=0.04)


def test_the_same_receivers_in_either_form():
    network = fl.graphs.random_connected(jax.random.key(0), 20, 5.0)
    everyone = jnp.ones(20, bool)
    matrices = [
        random_receivers(jax.random.key(1), network.as_form(form), everyone, 3)[0].matrix()
        for form in ("dense", "padded")
    ]
    np.testing.assert_array_equal(*matrices)


def test_a_message_to_all_others_is_the_mean():
    """With ``s = K - 1`` on a complete graph: centralized gradient descent from equal models."""
    network = fl.graphs.complete(CLIENTS)
    algorithm = EpidemicLearning(0.05, neighbors_per_round=CLIENTS - 1)
    ours = models(algorithm, network=network)
    close(ours, models(ATC(0.05), network=network), atol=1e-12)
    close(ours, ours[:, :1].repeat(CLIENTS, axis=1), atol=1e-12)


def test_the_oracle_is_atc_on_random_regular_graphs():
    """Each peer averages its model and its ``s`` neighbors' models with equal weights."""
    network = fl.graphs.DrawnGraphs(lambda key: fl.graphs.k_regular(key, nodes=6, degree=3))
    for number in range(5):
        graph = network.at(jax.random.key(number), jnp.asarray(1))
        close(graph.mixing().matrix(), (np.eye(6) + np.asarray(graph.dense())) / 4, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_disagreement_falls_by_the_expected_factor(count):
    """Gossip alone: the second moments of the weights give the expected squared deviation."""
    nodes = 8
    network = fl.graphs.complete(nodes)
    start = np.random.default_rng(0).normal(size=(nodes, 3))
    keys = jax.random.split(jax.random.key(3), 4000)
    drawn, _ = jax.vmap(lambda key: random_receivers(key, network, jnp.ones(nodes, bool), count))(
        keys
    )
    weights = np.asarray(jax.vmap(lambda averages: averages.matrix())(drawn))
    centered = np.eye(nodes) - 1 / nodes
    spread = np.einsum("sij,jd->sid", centered @ weights, start)
    factor = np.mean(np.sum(spread**2, axis=(1, 2))) / np.sum((centered @ start) ** 2)
    # de Vos et al. 2023, Lemma 1: E ||x_k+ - mean+||^2 is at most beta_s times that before, with
    # beta_s = (1 - (1 - s/(n-1))^n) / s - 1/(n-1) for this variant.
    bound = (1 - (1 - count / (nodes - 1)) ** nodes) / count - 1 / (nodes - 1)
    assert factor <= 1.02 * bound
    assert factor > bound / 2


def test_peers_agree_on_a_point_near_the_mean_and_unavailable_ones_wait():
    world = {"problem": still(ANYWHERE), "network": fl.graphs.complete(CLIENTS)}
    results = peer_run(EpidemicLearning(1e-9, neighbors_per_round=2), 100, metrics=[], **world)
    assert np.ptp(np.asarray(results.model), axis=0).max() < 1e-6
    present = jnp.asarray([True, True, True, True, False])
    averages, receivers = random_receivers(
        jax.random.key(0), fl.graphs.complete(CLIENTS), present, 2
    )
    np.testing.assert_array_equal(averages.matrix()[4], np.eye(5)[4])
    np.testing.assert_array_equal(averages.matrix()[:, 4], np.eye(5)[4])
    np.testing.assert_array_equal(receivers, [2, 2, 2, 2, 0])


def test_more_receivers_than_peers_are_refused():
    with pytest.raises(ValueError, match="neighbors_per_round must be below the number of peers"):
        fl.Simulation(
            make_problem(),
            EpidemicLearning(0.1, neighbors_per_round=5),
            fl.graphs.complete(CLIENTS),
        )
