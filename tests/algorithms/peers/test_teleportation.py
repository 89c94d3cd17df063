"""Teleportation: models that move among peers, special cases, traffic, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import Teleportation
from fljax.optimization.schedules import PowerDecay
from fljax.problems.batches import Uniform
from tests.cases import CLIENTS, ROUNDS, keys_of, make_network, make_problem
from tests.support.peer_runs import ANYWHERE, models, peer_run, still

close = np.testing.assert_allclose
COMPLETE = fl.graphs.complete(CLIENTS)


def active_peers(count, rounds=ROUNDS):
    """``[T, A]``, as the run draws them."""
    everyone = np.arange(CLIENTS, dtype=np.int32)
    keys = [key_of(now, "algorithm") for now in keys_of(1, rounds)]
    return np.array([jax.random.permutation(key, everyone)[:count] for key in keys])


def test_with_exact_averages_it_is_descent_on_the_active_peers_data():
    """On a complete small graph all active peers have the same model after a round."""
    algorithm = Teleportation(0.1, topology=fl.graphs.complete(3))
    ours = models(algorithm, network=COMPLETE)
    problem = make_problem()
    x = np.zeros(3)
    for actual, peers in zip(ours, active_peers(3), strict=True):
        gradients = np.asarray(problem.gradient(jnp.tile(x, (CLIENTS, 1))))
        x = x - 0.1 * gradients[peers].mean(axis=0)
        close(actual, np.tile(x, (CLIENTS, 1)), atol=1e-12)


def test_a_schedule_on_the_small_graph_gives_exact_means():
    """Base graphs of three nodes average exactly in three rounds, while their places change."""
    topology = fl.graphs.base_graphs(3)
    weights = fl.graphs.Mixing("laplacian", step=1.0)
    algorithm = Teleportation(1e-30, topology=topology, mixing=weights)
    simulation = fl.Simulation(still(ANYWHERE), algorithm, COMPLETE)
    now = fl.view(simulation, key=1, round=1)
    state = algorithm.init(now.problem, now.network)
    for number in range(1, topology.rounds + 1):
        state = algorithm.step(state, fl.view(simulation, key=1, round=number))
    held = np.asarray(state.models)[np.asarray(state.active)]
    mean = ANYWHERE[active_peers(3, 1)[0]].mean(axis=0)
    close(held, np.tile(mean, (3, 1)), atol=1e-14)
    close(state.model, np.tile(mean, (CLIENTS, 1)), atol=1e-14)


def test_messages_are_those_to_successors_and_on_the_small_graph():
    """Four a round on a path of three, and one to each successor that is another peer."""
    results = peer_run(Teleportation(0.1, topology=fl.graphs.path(3)), ROUNDS, network=COMPLETE)
    active = active_peers(3)
    moves = np.append(0, np.sum(active[1:] != active[:-1], axis=1))
    np.testing.assert_array_equal(results.messages, np.cumsum(4 + moves))
    assert 0 < moves.mean() < 3


def test_it_learns_from_all_peers_on_batches():
    algorithm = Teleportation(
        PowerDecay(0.3, 0.7), topology=fl.graphs.complete(2), batches=Uniform(3)
    )
    error = peer_run(algorithm, 4000, 1000, network=COMPLETE).normalized_error.values
    assert error[-1] < 3e-3


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="topology has 6 nodes, and there are only 5 peers"):
        fl.Simulation(make_problem(), Teleportation(0.1, topology=fl.graphs.ring(6)), COMPLETE)
    with pytest.raises(ValueError, match=r"between any two clients; .*complete\(5\)"):
        fl.Simulation(
            make_problem(), Teleportation(0.1, topology=fl.graphs.ring(3)), make_network()
        )
    with pytest.raises(TypeError, match="topology must be"):
        Teleportation(0.1, topology=4)
