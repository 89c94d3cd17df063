"""Schedules of sparse graphs that reach exact means, and mixing matrices in turn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import fljax as fl
from fljax import graphs
from fljax.algorithms import ATC, EXTRA, DIGing, GossipSGD, ProxSkip
from tests.cases import make_problem

WEIGHTS = graphs.Mixing("laplacian", step=1.0)
PAIR = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
AROUND = (np.eye(3) + np.roll(np.eye(3), 1, axis=1)) / 2


def matrices_of(schedule):
    """The mixing matrices of one cycle, as algorithms compute them."""
    key = jax.random.key(0)
    rounds = [schedule.at(key, jnp.asarray(n)) for n in range(1, schedule.rounds + 1)]
    return [np.asarray(graph.mixing(WEIGHTS).matrix()) for graph in rounds]


def product(matrices):
    result = np.eye(len(matrices[0]))
    for matrix in matrices:
        result = matrix @ result
    return result


@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 8, 13, 16])
def test_one_peer_exponential_graphs_are_those_of_the_definition(nodes):
    cycle = math.ceil(math.log2(nodes))
    matrices = matrices_of(graphs.one_peer_exponential(nodes))
    assert len(matrices) == cycle
    for t, matrix in enumerate(matrices):
        expected = np.zeros((nodes, nodes))
        for i in range(nodes):
            for j in range(nodes):
                at_distance = i != j and math.log2((j - i) % nodes) == t % cycle
                expected[i, j] = 0.5 * at_distance + 0.5 * (i == j)
        np.testing.assert_allclose(matrix, expected, atol=1e-15)
    exact = np.abs(product(matrices) - 1 / nodes).max() < 1e-12
    assert exact == (nodes & (nodes - 1) == 0)  # exactly for powers of two


@pytest.mark.parametrize("start", range(4))
def test_one_peer_exponential_graphs_are_exact_from_any_round(start):
    matrices = matrices_of(graphs.one_peer_exponential(16))
    turned = matrices[start:] + matrices[:start]
    np.testing.assert_allclose(product(turned), 1 / 16, atol=1e-15)


@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_base_graphs_reach_the_mean_of_any_number_of_nodes(degree, simple):
    for nodes in range(degree + 1, 33):
        schedule = graphs.base_graphs(nodes, degree, simple=simple)
        weights = np.asarray(schedule.matrices.adjacency)
        matrices = [W + np.diag(1 - W.sum(axis=1)) for W in weights]
        np.testing.assert_allclose(product(matrices), 1 / nodes, atol=1e-13)
        for matrix in matrices:
            np.testing.assert_array_equal(matrix, matrix.T)
            assert (np.count_nonzero(matrix, axis=1) - 1).max() <= degree
        assert len(matrices) <= 2 * math.log(nodes, degree + 1) + 2 + 1e-9  # Theorem 1


def test_rounds_of_base_graphs():
    """Powers of the base need a round a digit; 5 = 4 + 1 is the paper's figure, and 6 = 2 * 3."""
    assert [graphs.base_graphs(nodes).rounds for nodes in (2, 4, 8, 5, 6)] == [1, 2, 3, 5, 4]
    assert graphs.base_graphs(9, 2).rounds == 2
    assert graphs.base_graphs(6, 5).rounds == 1
    # 2 * (2 * 3) + 2: six nodes alone, in base 2, have a part of four and one of two
    assert graphs.base_graphs(6, simple=True).rounds == 5


def test_a_large_schedule_is_a_table_of_neighbors():
    schedule = graphs.base_graphs(300, 2)
    assert schedule.first.form == "padded"
    assert schedule.first.neighbors.shape == (300, 2)
    np.testing.assert_allclose(product(matrices_of(schedule)), 1 / 300, atol=1e-13)


def test_gossip_over_base_graphs_ends_at_the_mean():
    """In a simulation of peers that start at different models and take no step worth the name."""
    network = graphs.base_graphs(5)
    start = np.random.default_rng(0).normal(size=(5, 3))
    problem = make_problem().starting_at(jnp.asarray(start))
    simulation = fl.Simulation(problem, ATC(1e-30, mixing=WEIGHTS), network)
    model = fl.run(simulation, network.rounds).model.values
    np.testing.assert_allclose(model, np.tile(start.mean(axis=0), (5, 1)), atol=1e-14)


def test_a_schedule_of_matrices_is_what_was_given():
    for matrices in ([PAIR, PAIR[::-1, ::-1]], [scipy.sparse.csr_array(PAIR)]):
        dense = [scipy.sparse.csr_array(matrix).toarray() for matrix in matrices]
        actual = matrices_of(graphs.MixingSchedule(matrices))
        np.testing.assert_array_equal(actual, dense)
    (around,) = matrices_of(graphs.MixingSchedule([AROUND], directed=True))
    np.testing.assert_array_equal(around, AROUND)


def test_messages_of_a_directed_schedule_are_counted():
    simulation = fl.Simulation(
        make_problem(), DIGing(0.05, mixing=WEIGHTS), graphs.one_peer_exponential(5)
    )
    assert int(fl.run(simulation, rounds=6).messages[-1]) == 30


@pytest.mark.parametrize("algorithm", [GossipSGD(0.1), ProxSkip(0.1, 0.5), EXTRA(0.1)])
def test_directed_links_are_refused_by_algorithms_that_need_both_directions(algorithm):
    with pytest.raises(ValueError, match=r"in both directions|no rule for a graph that changes"):
        fl.Simulation(make_problem(), algorithm, graphs.one_peer_exponential(5))


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ([AROUND], "matrix 0 is asymmetric.*directed=True"),
        ([PAIR, 2 * PAIR], "every row of matrix 1 must sum to one, row 0 sums to 2"),
        ([[[0.9, 0.1], [0.5, 0.5]]], "every column of matrix 0 must sum to one.*its rows do"),
        ([[[1.5, -0.5], [-0.5, 1.5]]], "matrix 0 must be finite and >= 0"),
        ([PAIR, np.eye(2)], "all of them .K, K. with the same nodes, got 2 of shapes"),
        ([], "at least one"),
    ],
)
def test_matrices_that_do_not_mix_are_refused(matrices, message):
    with pytest.raises(ValueError, match=message):
        graphs.MixingSchedule(matrices)


def test_every_node_of_a_directed_schedule_sends_as_often_as_it_receives():
    uneven = np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
    with pytest.raises(ValueError, match="node 0 receives from 3 nodes and sends to 2"):
        graphs.MixingSchedule([uneven], directed=True)
    with pytest.raises(ValueError, match="degree must be at most the 4 other nodes, got 5"):
        graphs.base_graphs(5, 5)
