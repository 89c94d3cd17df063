"""Random walk SGD: where walks go, traffic, one after the other at a client, refusals."""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key, key_of, round_key
from fljax.algorithms import RandomWalk
from fljax.algorithms.peers.random_walk import next_client
from fljax.clock import Asynchronous, Between, Devices, LogNormal, Synchronous, Work
from tests import cases
from tests.cases import CLIENTS, DIM, EDGES, make_network, make_problem
from tests.cases.peers import walk_draws
from tests.reference import networks, walks
from tests.support.peer_runs import models, peer_run, simulation_of
from tests.support.rounds import trajectory

EVENTS = 200
STEP = 0.05
BITS = 32 * DIM

close = np.testing.assert_allclose


def transitions(adjacency):
    """The Metropolis-Hastings walk of a weighted graph, entry by entry."""
    degree = adjacency.sum(axis=1)
    moves = adjacency / degree[:, None] * np.minimum(1, degree[:, None] / degree[None])
    return moves + np.diag(1 - moves.sum(axis=1))


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_walks_go_on_at_the_stated_frequency(form):
    network = fl.graphs.from_edges(CLIENTS, EDGES, [1.0, 2.0, 0.5, 1.0, 3.0, 1.0], form=form)
    simulation = simulation_of(RandomWalk(STEP), network=network)
    expected = transitions(np.asarray(network.dense()))
    close(expected.sum(axis=0), 1)  # all clients are visited equally often
    draws = 3000

    def draw(key):
        now = fl.view(simulation, key=key, round=1)
        everyone = np.arange(CLIENTS, dtype=np.int32)
        return jax.vmap(lambda client: next_client(now, client))(everyone)

    drawn = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(4), draws)))
    for client in range(CLIENTS):
        counts = np.bincount(drawn[:, client], minlength=CLIENTS) / draws
        p = expected[client]
        assert (np.abs(counts - p) <= 5 * np.sqrt(p * (1 - p) / draws) + 1e-12).all()


def on_clock(algorithm, devices, compute, transfer, places):
    """The run is the loop with a heap of (seconds, client, walk)."""
    clock = Asynchronous(devices, concurrency=algorithm.walks)
    simulation = simulation_of(algorithm, clock=clock, metrics=["timeline"])
    result = fl.run(simulation, EVENTS, key=1)
    degree = (networks.weights_of(CLIENTS, EDGES) > 0).sum(axis=1)
    arguments = *walk_draws(EVENTS), degree, cases.START, places, EVENTS, (compute, transfer)
    theirs, seconds, visits = walks.random_walk(cases.batch_gradient, lambda n: STEP, *arguments)
    close(result.seconds, seconds, rtol=1e-10)
    visited = ~np.isnan(result.timeline.values[..., 0])
    assert [np.flatnonzero(row).tolist() for row in visited] == [[i] for i in visits]
    close(trajectory(simulation, EVENTS), theirs, rtol=0, atol=1e-10)
    assert (result.client_busy_seconds <= seconds[-1] * (1 + 1e-12)).all()  # one at a time


@pytest.mark.core
@pytest.mark.parametrize("seconds", [[0.5, 0.2, 1.3, 0.3, 2.9], [0.25, 0.5, 0.25, 1.0, 0.5]])
def test_a_walk_from_each_client_is_that_of_a_heap(seconds):
    """All walks compute, wait for each other at a client, and tie."""
    devices = Devices(seconds_per_step=seconds)
    algorithm = RandomWalk(STEP, walks=CLIENTS)
    on_clock(algorithm, devices, lambda n, k: seconds[k], lambda i, j: 0.0, range(CLIENTS))


@pytest.mark.core
@pytest.mark.parametrize("count", [1, 2])
def test_walks_over_slow_links_are_those_of_a_heap(count):
    devices = Devices(
        seconds_per_step=LogNormal(0.1, spread=1.0),
        upload_bits_per_second=Between(500.0, 5000.0),
        download_bits_per_second=[600.0, 1500.0, 2000.0, 700.0, 900.0],
        latency_seconds=[0.01, 0.02, 0.03, 0.04, 0.05],
        variation=LogNormal(1.0, spread=0.3),
    )
    key = as_key(1)
    at_start = key_of(round_key(key, 0), "clock")
    rates = devices.draw(at_start, CLIENTS)
    ones = np.ones(CLIENTS, np.int32)
    work = Work(jax.numpy.asarray(ones), jax.numpy.asarray(0 * ones), 0.0, 0.0)

    def compute(n, k):
        of_round = key_of(round_key(key, n), "clock") if n else at_start
        times = devices.times(of_round, np.int32(n), rates, work, jax.numpy.array([k], "int32"))
        return float(times.compute[0])

    def transfer(i, j):
        rate = min(rates.upload_bits_per_second[i], rates.download_bits_per_second[j])
        return float(rates.latency_seconds[i]) + BITS / float(rate)

    everyone = np.arange(CLIENTS, dtype=np.int32)
    places = jax.random.permutation(key_of(at_start, "participation"), everyone)[:count].tolist()
    on_clock(RandomWalk(STEP, walks=count), devices, compute, transfer, places)


def test_a_message_is_sent_only_where_the_walk_moves():
    results = peer_run(RandomWalk(STEP), 60)
    degree = (networks.weights_of(CLIENTS, EDGES) > 0).sum(axis=1)
    draws = walk_draws(60)
    _, _, visits = walks.random_walk(
        cases.batch_gradient, lambda n: STEP, *draws, degree, cases.START, [0], 61 - 1
    )
    moves = np.array(visits[1:]) != np.array(visits[:-1])
    assert 0 < moves.sum() < len(moves)
    np.testing.assert_array_equal(np.diff(results.messages, prepend=0)[:-1], moves)


def test_the_path_through_the_link_is_the_short_one():
    """Links that never fail: the message is read from all, and not alone."""
    for form in ("dense", "padded"):
        world = {"network": make_network(form), "losses": fl.link.Independent(0.0)}
        close(models(RandomWalk(STEP), **world), models(RandomWalk(STEP)), atol=1e-14)


def test_over_links_that_never_work_each_client_goes_on_with_its_own_model():
    losses = fl.link.Independent(1.0)
    history = models(RandomWalk(STEP), losses=losses, network=fl.graphs.ring(CLIENTS))
    before = np.zeros((CLIENTS, DIM))
    for models_now in history:
        (k,) = np.flatnonzero((models_now != before).any(axis=1))
        close(models_now[k], before[k] - STEP * cases.batch_gradient(k, before[k]), atol=1e-14)
        before = models_now


@pytest.mark.parametrize("count", [1, 3])
def test_falling_steps_lead_to_the_minimizer(count):
    falling = fl.schedules.PowerDecay(0.3, 0.5)
    results = peer_run(RandomWalk(falling, walks=count), 4000, record_every=4000)
    assert float(results.normalized_error[-1]) < 0.05


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"clock": Synchronous(Devices(seconds_per_step=1.0))}, "has one client at work"),
        ({"clock": Asynchronous(Devices(seconds_per_step=1.0))}, "give the clock concurrency=2"),
        ({"delays": fl.link.Fixed(1)}, "late"),
        ({"network": None}, "runs on a graph"),
    ],
)
def test_settings_without_a_meaning_are_refused(parts, message):
    world = {"network": make_network()} | parts
    with pytest.raises(ValueError, match=message):
        fl.Simulation(make_problem(), RandomWalk(STEP, walks=2), **world)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="walks must be"):
        RandomWalk(STEP, walks=0)
    with pytest.raises(ValueError, match="walks must be at most the 5 clients"):
        simulation_of(RandomWalk(STEP, walks=6))
