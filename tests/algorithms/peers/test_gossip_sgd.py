"""Gossip SGD: pairs that meet, and their disagreement."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import SGP, GossipSGD
from fljax.algorithms.peers.gossip_sgd import random_matching
from fljax.participation.patterns import Trace
from fljax.problems.batches import Uniform
from tests import cases
from tests.cases import CLIENTS, EDGES, ROUNDS, make_network
from tests.reference import peers
from tests.support.peer_runs import ANYWHERE, close_to_loop, models, simulation_of, still

close = np.testing.assert_allclose


@pytest.mark.slow
def test_absent_peers_exchange_no_messages():
    active = np.random.default_rng(0).random((ROUNDS, CLIENTS)) < 0.6
    algorithm = GossipSGD(0.05)
    pairs = cases.meetings_of(available=active)
    theirs = peers.gossip_sgd(cases.batch_gradient, lambda n: 0.05, pairs, cases.START, active)
    close_to_loop(models(algorithm, participation=Trace(active)), theirs, 1e-10)


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_pairs_meet_at_the_stated_frequency(form):
    weights = [1.0, 2.0, 0.5, 1.0, 3.0, 1.0]
    network = fl.graphs.from_edges(CLIENTS, EDGES, weights, form=form)
    draws = 4000
    keys = jax.random.split(jax.random.key(4), draws)
    all_there = jnp.ones(CLIENTS, bool)
    drawn = jax.jit(jax.vmap(lambda key: random_matching(key, network, all_there)[0].matrix()))(
        keys
    )
    drawn = np.asarray(drawn)
    close(drawn, drawn.transpose(0, 2, 1))
    close(drawn @ drawn, drawn, atol=1e-12)  # a mean of pairs is a projection
    close(drawn.sum(axis=2), 1)
    degree = np.asarray(network.degree)
    for (k, m), weight in zip(EDGES, weights, strict=True):
        probability = weight / (degree[k] + degree[m] - weight)
        often = (drawn[:, k, m] > 0).mean()
        assert abs(often - probability) < 5 * np.sqrt(probability * (1 - probability) / draws)
    assert (drawn[:, 0, 2] == 0).all()  # no edge


@pytest.mark.slow
def test_absent_peers_have_no_meetings():
    active = jnp.array([True, False, True, True, True])
    for seed in range(5):
        pairs, meets = random_matching(jax.random.key(seed), make_network(), active)
        assert not bool(meets[1])
        assert float(pairs.self_weight[1]) == 1
        assert bool(meets.any())


@pytest.mark.slow
def test_crowded_nodes_meet_one_at_a_time():
    """A table with overflow."""
    nodes = 40
    edges = [(0, k) for k in range(1, nodes)] + [(k, k + 1) for k in range(1, nodes - 1)]
    result = []
    for form in ("padded", "dense"):
        network = fl.graphs.from_edges(nodes, edges, form=form)
        assert form == "dense" or network.overflow is not None
        pairs, meets = random_matching(jax.random.key(3), network, jnp.ones(nodes, bool))
        result.append(np.asarray(pairs.matrix()))
        assert int(meets.sum()) == int((result[-1] == 0.5).any(axis=1).sum()) > 10
        shares = SGP(0.1)._sharing(network)
        result.append(np.asarray(shares[0].dense()) + np.diag(np.asarray(shares[1])))
        close(result[-1].sum(axis=0), 1, rtol=1e-6)
    close(result[0], result[2])
    close(result[1], result[3])


@pytest.mark.slow
def test_disagreement_contracts_by_the_mean_matrix():
    """On average by at most its second eigenvalue a round."""
    degree = np.asarray(make_network().degree)
    mean = np.eye(CLIENTS)
    for k, m in EDGES:
        e = np.eye(CLIENTS)[k] - np.eye(CLIENTS)[m]
        mean -= np.outer(e, e) / 2 / (degree[k] + degree[m] - 1)
    rate = np.sort(np.linalg.eigvalsh(mean))[-2]

    def scenario(key):
        return simulation_of(GossipSGD(1.0), still(ANYWHERE), metrics=["consensus_error"])

    results = fl.sweep(scenario, rounds=20, seeds=2000).consensus_error
    error = results.mean("seed").values
    spread = results.std("seed").values / np.sqrt(2000)
    assert (error[1:] < 1.05 * rate * error[:-1]).all()
    # Means of pairs are projections: the first round is known exactly.
    deviation = ANYWHERE - ANYWHERE.mean(axis=0)
    assert abs(error[0] - np.sum(deviation * (mean @ deviation)) / CLIENTS) < 5 * spread[0]


def test_bad_arguments_are_refused():
    with pytest.raises(
        ValueError, match="size must be one number or one for each of the 5 clients"
    ):
        simulation_of(GossipSGD(0.1, batches=Uniform((1, 2))))
