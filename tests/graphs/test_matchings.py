"""MATCHA: matchings, their probabilities and the step, against enumeration and a general solver."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fljax as fl
from fljax import graphs
from fljax.algorithms import ATC
from fljax.graphs.matchings import activation_probabilities
from tests.cases import make_problem

WEIGHTS = graphs.Mixing("laplacian", step=1.0)
GRAPHS = {
    "ring": graphs.ring(6),
    "star": graphs.star(5),
    "grid": graphs.grid(3, 3),
    "complete": graphs.complete(5),
    "bridge": graphs.from_edges(
        8, [*itertools.combinations(range(4), 2), *itertools.combinations(range(4, 8), 2), (0, 4)]
    ),
}


def laplacians_of(matching):
    """The Laplacian of each matching, edge by edge."""
    nodes = len(matching)
    result = np.zeros((matching.max() + 1, nodes, nodes))
    for k, m in itertools.combinations(range(nodes), 2):
        if matching[k, m] >= 0:
            difference = np.eye(nodes)[k] - np.eye(nodes)[m]
            result[matching[k, m]] += np.outer(difference, difference)
    return result


def connectivity(probabilities, laplacians):
    return np.linalg.eigvalsh(np.tensordot(probabilities, laplacians, 1))[1]


def expected_squares(probabilities, laplacians, step):
    """``||E[W'W] - 11'/K||`` by all sets of active matchings."""
    nodes = laplacians.shape[1]
    mean = np.zeros((nodes, nodes))
    for active in itertools.product([0, 1], repeat=len(laplacians)):
        chance = np.prod([p if b else 1 - p for p, b in zip(probabilities, active, strict=True)])
        W = np.eye(nodes) - step * np.tensordot(np.array(active, float), laplacians, 1)
        mean += chance * W.T @ W
    return np.linalg.norm(mean - 1 / nodes, 2)


@pytest.mark.parametrize("seed", range(30))
def test_edges_are_colored_with_at_most_one_color_more_than_neighbors(seed):
    nodes = int(np.random.default_rng(seed).integers(4, 20))
    graph = graphs.erdos_renyi(jax.random.key(seed), nodes, 0.6)
    matching = graphs.edge_coloring(graph)
    np.testing.assert_array_equal(matching >= 0, np.asarray(graph.dense()) > 0)
    np.testing.assert_array_equal(matching, matching.T)
    for number in range(matching.max() + 1):
        assert np.max((matching == number).sum(axis=1)) == 1
    assert matching.max() <= np.asarray(graph.degree).max()


def test_bipartite_graphs_need_no_color_more_than_neighbors():
    for graph in (graphs.grid(4, 5), graphs.ring(10), graphs.star(7), graphs.path(9)):
        assert graphs.edge_coloring(graph).max() + 1 == np.asarray(graph.degree).max()


@pytest.mark.parametrize("budget", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("name", GRAPHS)
def test_probabilities_make_the_expected_graph_most_connected(name, budget):
    """The bound of the search holds for random feasible points and for another solver's."""
    laplacians = laplacians_of(graphs.edge_coloring(GRAPHS[name]))
    best = activation_probabilities(laplacians, budget)
    count = len(laplacians)
    assert np.all((best.probabilities >= 0) & (best.probabilities <= 1))
    assert best.probabilities.sum() <= budget * count * (1 + 1e-12)
    np.testing.assert_allclose(
        best.connectivity, connectivity(best.probabilities, laplacians), rtol=1e-12
    )
    assert best.connectivity <= best.bound <= best.connectivity * (1 + 1e-7)
    rng = np.random.default_rng(0)
    for _ in range(200):
        point = rng.random(count)
        point *= min(1, budget * count / point.sum())
        assert connectivity(point, laplacians) <= best.bound
    other = scipy.optimize.minimize(
        lambda p: -connectivity(p, laplacians),
        np.full(count, budget) + 1e-3 * rng.random(count),
        bounds=[(0, 1)] * count,
        constraints={"type": "ineq", "fun": lambda p: budget * count - p.sum()},
        method="SLSQP",
    )
    assert -other.fun <= best.bound
    assert best.connectivity >= budget * connectivity(np.ones(count), laplacians) * (1 - 1e-7)


@pytest.mark.parametrize("name", ["ring", "star", "bridge"])
def test_the_step_mixes_fastest_in_mean_square(name):
    network = graphs.matcha(GRAPHS[name], 0.4)
    probabilities = np.asarray(network.probabilities)
    laplacians = laplacians_of(np.asarray(network.matching))
    rate = float(network.rate())
    enumerated = expected_squares(probabilities, laplacians, float(network.step))
    np.testing.assert_allclose(rate, enumerated, rtol=1e-10)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 1.5):
        assert expected_squares(probabilities, laplacians, factor * float(network.step)) >= rate


def test_the_bridge_between_two_groups_is_active_most_often():
    network = graphs.matcha(GRAPHS["bridge"], 0.3)
    bridge = int(network.matching[0, 4])
    probabilities = np.asarray(network.probabilities)
    assert np.argmax(probabilities) == bridge
    assert probabilities[bridge] > 2 * np.median(probabilities)


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_a_round_has_the_edges_of_independent_matchings(form):
    network = graphs.matcha(GRAPHS["grid"].as_form(form), 0.5)
    matching = np.asarray(network.matching)
    keys = jax.random.split(jax.random.key(0), 2000)
    adjacency = np.asarray(jax.vmap(lambda key: network.at(key, jnp.asarray(1)).dense())(keys))
    step = float(network.step)
    present = adjacency > 0
    np.testing.assert_allclose(adjacency, step * present, rtol=1e-12)
    active = []
    for number in range(matching.max() + 1):
        edges = present[:, matching == number]
        assert np.all(edges == edges[:, :1])
        active.append(edges[:, 0])
    np.testing.assert_allclose(np.mean(active, axis=1), network.probabilities, atol=0.05)
    covariance = np.cov(active)
    assert np.max(np.abs(covariance - np.diag(np.diagonal(covariance)))) < 0.03


def test_disagreement_falls_at_the_rate_or_faster():
    """The mean over many runs of gossip alone, per round, against the expected factor."""
    network = graphs.matcha(graphs.ring(5), 0.5)
    start = np.random.default_rng(0).normal(size=(5, 3))
    problem = make_problem().starting_at(jnp.asarray(start))
    simulation = fl.Simulation(
        problem, ATC(1e-30, mixing=WEIGHTS), network, metrics=[fl.metrics.trajectory()]
    )
    models = fl.sweep(lambda key: simulation, seeds=300, rounds=10).model_trajectory.values
    apart = np.sum((models - start.mean(axis=0)) ** 2, axis=(-1, -2))
    means = np.mean(apart.reshape(-1, 10), axis=0)
    before = np.sum((start - start.mean(axis=0)) ** 2)
    bound = before * float(network.rate()) ** np.arange(1, 11)
    assert np.all(means <= 1.1 * bound)
    assert means[-1] > bound[-1] / 20


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graphs.matcha(graphs.ring(4), 0), "budget must be finite and > 0"),
        (lambda: graphs.matcha(graphs.ring(4), 1.1), "budget must be finite.*<= 1, got 1.1"),
        (
            lambda: graphs.matcha(
                graphs.from_edges(4, [(0, 1), (2, 3)], allow_disconnected=True), 0.5
            ),
            "the graph is disconnected: 2 components",
        ),
        (
            lambda: graphs.matcha(graphs.from_edges(3, [(0, 1), (1, 2)], [1, 2]), 0.5),
            "must be unweighted, got an edge of weight 2",
        ),
        (
            lambda: graphs.RandomMatchings(
                graphs.path(3), np.zeros((3, 3), int), np.array([0.5]), 0.3
            ),
            "the edges of number 0 are no matching",
        ),
        (
            lambda: graphs.RandomMatchings(
                graphs.path(3), graphs.edge_coloring(graphs.path(3)), np.array([0.5]), 0.3
            ),
            "must number the edges from 0 to 0, as there are 1 probabilities, got 1",
        ),
        (
            lambda: graphs.RandomMatchings(
                graphs.path(3), np.zeros((2, 2), int), np.array([0.5]), 0.3
            ),
            r"matching must have shape \(3, 3\)",
        ),
    ],
)
def test_what_cannot_be_a_schedule_of_matchings_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
