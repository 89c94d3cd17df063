"""AD-PSGD and SwarmSGD: sums over the network, draws, traffic, the cost of a round, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ADPSGD, SwarmSGD
from fljax.algorithms.peers.ad_psgd import next_to_complete, random_neighbor
from fljax.clock import Asynchronous, Deadline, Devices, FirstArrivals, Intervals, Synchronous
from fljax.problems.batches import Uniform
from fljax.simulation.running import evaluations
from tests import cases
from tests.cases import CLIENTS, DIM, EDGES, ROUNDS, SIZES, make_network, make_problem
from tests.reference import pairs
from tests.support.peer_runs import ANYWHERE, close_to_loop, models, peer_run, simulation_of, still

close = np.testing.assert_allclose

BOTH = [ADPSGD(0.05), SwarmSGD(0.05, local_steps=3)]
DEVICES = Devices(seconds_per_step=1.0)


@pytest.mark.parametrize("algorithm", BOTH)
@pytest.mark.parametrize("clock", [None, Asynchronous(DEVICES)])
def test_averages_preserve_the_sum_over_clients(algorithm, clock):
    """Without gradients: only two models change in a round, and their sum does not."""
    history = models(algorithm, 40, problem=still(ANYWHERE), clock=clock)
    close(history.mean(axis=1), np.tile(ANYWHERE.mean(axis=0), (40, 1)), atol=1e-14)
    before = np.concatenate([ANYWHERE[None], history[:-1]])
    assert ((history != before).any(axis=2).sum(axis=1) <= 2).all()
    spread = np.linalg.norm(history - history.mean(axis=1, keepdims=True), axis=(1, 2))
    assert spread[-1] < 0.1 * np.linalg.norm(ANYWHERE - ANYWHERE.mean(axis=0))


@pytest.mark.parametrize("algorithm", BOTH)
def test_the_path_through_the_link_is_the_short_one(algorithm):
    """Links that never fail: all messages are combined, and not two of them alone."""
    for form in ("dense", "padded"):
        world = {"network": make_network(form), "losses": fl.link.Independent(0.0)}
        close(models(algorithm, **world), models(algorithm), atol=1e-14)


def test_a_message_that_is_lost_leaves_its_receiver_as_it_was():
    """One of two clients receives nothing: it does not move, and the other takes the mean."""
    start = ANYWHERE[:2]
    losses = fl.link.Independent(0.5, symmetric=False)
    two = {"problem": still(start), "network": fl.graphs.path(2), "losses": losses}
    history = models(ADPSGD(0.05), 30, **two)
    before = np.concatenate([start[None], history[:-1]])
    mean = before.mean(axis=1, keepdims=True)
    took = np.abs(history - mean).max(axis=2) < 1e-12
    stayed = np.abs(history - before).max(axis=2) < 1e-12
    assert (took | stayed).all()
    assert (took[:5] != stayed[:5]).any()


def test_clients_and_neighbors_are_drawn_at_the_stated_frequency():
    weights = [1.0, 2.0, 0.5, 1.0, 3.0, 1.0]
    draws = 4000
    for form in ("dense", "padded"):
        network = fl.graphs.from_edges(CLIENTS, EDGES, weights, form=form)
        simulation = simulation_of(ADPSGD(0.05), network=network)

        def draw(key, simulation=simulation):
            now = fl.view(simulation, key=key, round=1)
            client = next_to_complete(now)
            return client, random_neighbor(now, client)

        drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(4), draws))
        counts = np.zeros((CLIENTS, CLIENTS))
        np.add.at(counts, tuple(map(np.asarray, drawn)), 1)
        adjacency = np.asarray(network.dense())
        expected = adjacency / adjacency.sum(axis=1, keepdims=True) / CLIENTS
        deviation = np.sqrt(expected * (1 - expected) / draws)
        assert (np.abs(counts / draws - expected) <= 5 * deviation).all()


@pytest.mark.parametrize("algorithm", BOTH)
def test_a_client_without_neighbors_works_alone(algorithm):
    pair = fl.graphs.from_edges(CLIENTS, EDGES[:1], allow_disconnected=True)
    world = {"network": pair, "allow_disconnected": True}
    history = models(algorithm, **world)
    completes = np.array(cases.drawn_to_complete())
    assert (completes < 2).any()
    assert (completes > 1).any()
    messages = np.diff(peer_run(algorithm, ROUNDS, **world).messages, prepend=0)
    np.testing.assert_array_equal(messages, np.where(completes < 2, 2, 0))
    alone = next(k for k in completes if k > 1)
    w = np.zeros(DIM)
    for _ in range((completes == alone).sum() * getattr(algorithm, "local_steps", 1)):
        w = w - 0.05 * cases.batch_gradient(alone, w)
    close(history[-1, alone], w, atol=1e-12)


@pytest.mark.parametrize("algorithm", BOTH)
def test_a_round_has_two_messages(algorithm):
    results = peer_run(algorithm, ROUNDS)
    np.testing.assert_array_equal(results.messages, 2 * np.arange(1, ROUNDS + 1))
    np.testing.assert_array_equal(results.bits_up, 2 * 32 * DIM * np.arange(1, ROUNDS + 1))


def test_a_round_computes_the_gradient_of_one_client():
    samples = max(SIZES)  # smaller clients are padded
    on_clock = Asynchronous(DEVICES)

    def counted(algorithm, clock):
        simulation = simulation_of(algorithm, metrics=(), clock=clock)
        return evaluations(lambda key: simulation, 10)[1].gradients

    for clock in (None, on_clock):
        assert counted(ADPSGD(0.05), clock) == samples
        assert counted(ADPSGD(0.05, batches=Uniform(2)), clock) == 2
    assert counted(SwarmSGD(0.05, local_steps=3), None) == 2 * 3 * samples
    assert counted(SwarmSGD(0.05, local_steps=3), on_clock) == 3 * samples


def test_batches_of_the_one_client_are_those_of_the_loop():
    algorithm = ADPSGD(0.05, batches=Uniform(2))
    completes = cases.drawn_to_complete()
    simulation = simulation_of(algorithm, metrics=())
    rows = []
    for n, i in enumerate(completes, 1):
        now = fl.view(simulation, key=1, round=n)
        real = (now.problem.weights > 0)[jnp.array([i])]
        drawn = algorithm.batches.at(now.number, 1).draw(
            now.key("batches"), real, jnp.array([i], jnp.int32), 1
        )
        rows.append(np.asarray(drawn.rows[0, 0]).tolist())
    draws = completes, cases.neighbors_of(completes)
    theirs = pairs.ad_psgd(cases.batch_gradient, lambda n: 0.05, *draws, cases.START, rows)
    close_to_loop(models(algorithm), np.array(theirs), 1e-10)


@pytest.mark.parametrize("algorithm", BOTH)
def test_falling_steps_lead_to_the_minimizer(algorithm):
    falling = fl.schedules.PowerDecay(0.3, 0.5)
    results = peer_run(dataclasses.replace(algorithm, step_size=falling), 4000, record_every=4000)
    assert float(results.normalized_error[-1]) < 0.02


@pytest.mark.parametrize("algorithm", BOTH)
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"clock": Synchronous(DEVICES)}, "has one client at work in a round"),
        ({"clock": Deadline(DEVICES, seconds=2.0)}, "has one client at work in a round"),
        ({"clock": FirstArrivals(DEVICES, count=2)}, "has one client at work in a round"),
        ({"clock": Asynchronous(DEVICES, arrivals=2)}, "got arrivals=2; leave out arrivals="),
        ({"clock": Asynchronous(DEVICES, concurrency=2)}, "got concurrency=2; leave out"),
        ({"delays": fl.link.Fixed(1)}, "late"),
        ({"network": None}, "runs on a graph"),
    ],
)
def test_settings_without_a_meaning_are_refused(algorithm, parts, message):
    world = {"network": make_network()} | parts
    with pytest.raises(ValueError, match=message):
        fl.Simulation(make_problem(), algorithm, **world)


def test_absent_clients_are_refused():
    shifts = Intervals([[0.0]] * CLIENTS, [[1.0]] * CLIENTS)
    clock = Asynchronous(Devices(seconds_per_step=1.0, availability=shifts))
    with pytest.raises(ValueError, match="no rule for absent clients"):
        simulation_of(ADPSGD(0.05), clock=clock)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="local_steps"):
        SwarmSGD(0.05, local_steps=0)
    with pytest.raises(ValueError, match="step"):
        ADPSGD(-0.05)
