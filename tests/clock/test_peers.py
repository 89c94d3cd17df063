"""Peers on a clock: single events, rounds as long as their slowest edge, late messages."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key, key_of, round_key
from fljax.algorithms import ADPSGD, ATC, SGP, GossipSGD, ProxSkip, SwarmSGD
from fljax.clock import (
    Asynchronous,
    Between,
    Devices,
    LogNormal,
    Synchronous,
    Ticks,
    Work,
)
from tests import cases
from tests.cases import CLIENTS, DIM, make_network, make_problem
from tests.reference import pairs
from tests.support.peer_runs import ONE_WAY
from tests.support.rounds import trajectory

EVENTS = 200
STEP_SIZE = 0.05
STEPS = 3
BITS = 32 * DIM

close = np.testing.assert_allclose

SLOW = [math.sqrt(p) / 4 for p in (5, 2, 13, 3, 97)]
TIES = [0.25, 0.5, 0.25, 1.0, 0.5]


def run(algorithm, clock, rounds=EVENTS, **parts):
    world = {"problem": make_problem(), "network": make_network(), "metrics": []} | parts
    simulation = fl.Simulation(algorithm=algorithm, clock=clock, **world)
    return simulation, fl.run(simulation, rounds, key=1)


# One event after the other -----------------------------------------------------------------------


def at_events(algorithm, completes):
    draws = completes, cases.neighbors_of(completes)
    step = cases.step_of(algorithm.step_size)
    if isinstance(algorithm, ADPSGD):
        return pairs.ad_psgd(cases.batch_gradient, step, *draws, cases.START)
    steps = algorithm.local_steps
    return pairs.swarm_sgd(cases.batch_gradient, step, steps, *draws, cases.START, together=False)


@pytest.mark.core
@pytest.mark.parametrize("seconds", [SLOW, TIES])
@pytest.mark.parametrize("algorithm", [ADPSGD(STEP_SIZE), SwarmSGD(STEP_SIZE, local_steps=STEPS)])
def test_events_among_peers_are_those_of_a_heap(algorithm, seconds):
    steps = getattr(algorithm, "local_steps", 1)
    clock = Asynchronous(Devices(seconds_per_step=[s / steps for s in seconds]))
    simulation, result = run(algorithm, clock)
    events = pairs.in_order_of_time(lambda n, k: seconds[k], CLIENTS, EVENTS)
    at, completes = zip(*events, strict=True)
    close(result.seconds, at, rtol=1e-10)
    theirs = at_events(algorithm, list(completes))
    close(trajectory(simulation, EVENTS), theirs, rtol=0, atol=1e-10)
    close(result.client_busy_seconds, at[-1])  # nothing is waited for
    assert len(set(completes)) == CLIENTS


def test_drawn_speeds_and_links_are_those_of_a_heap():
    """Each event has the latency, the other's model, the work and the upload of one client."""
    devices = Devices(
        seconds_per_step=LogNormal(0.1, spread=1.0),
        upload_bits_per_second=Between(500.0, 5000.0),
        download_bits_per_second=2000.0,
        latency_seconds=0.01,
        variation=LogNormal(1.0, spread=0.3),
    )
    algorithm = ADPSGD(STEP_SIZE)
    simulation, result = run(algorithm, Asynchronous(devices))
    key = as_key(1)
    rates = devices.draw(key_of(round_key(key, 0), "clock"), CLIENTS)
    one_step = Work(jnp.ones(CLIENTS, jnp.int32), jnp.zeros(CLIENTS, jnp.int32), 0.0, 0.0)

    def duration(n, k):
        of_round = key_of(round_key(key, n), "clock")
        times = devices.times(of_round, jnp.int32(n), rates, one_step, jnp.array([k], jnp.int32))
        rate = {name: float(value[k]) for name, value in rates._asdict().items()}
        links = 2 * 0.01 + BITS / 2000.0 + BITS / rate["upload_bits_per_second"]
        return links + float(times.compute[0])

    at, completes = zip(*pairs.in_order_of_time(duration, CLIENTS, EVENTS), strict=True)
    close(result.seconds, at, rtol=1e-10)
    close(trajectory(simulation, EVENTS), at_events(algorithm, list(completes)), atol=1e-10)


def test_a_slow_client_does_not_delay_others():
    """In the same time, others complete as much as without it."""
    algorithm = ADPSGD(STEP_SIZE)
    slow = Asynchronous(Devices(seconds_per_step=[1.0] * 4 + [1000.0]))
    result = run(algorithm, slow, 80)[1]
    close(result.seconds.values[3::4], np.arange(1, 21))


# Rounds as long as their slowest edge ------------------------------------------------------------

UP = [800.0, 200.0, 400.0, 1600.0, 300.0]
DOWN = [100.0, 900.0, 250.0, 600.0, 450.0]
LATENCY = [0.02, 0.01, 0.3, 0.04, 0.05]
COMPUTE = [0.4, 0.1, 0.2, 0.9, 0.3]
LINKS = Devices(
    seconds_per_step=COMPUTE,
    upload_bits_per_second=UP,
    download_bits_per_second=DOWN,
    latency_seconds=LATENCY,
)


def slowest_edge(edges, bits=BITS, compute=COMPUTE):
    """When the last message has arrived, edge by edge, in both directions."""
    last = max(compute)  # all compute, also those without neighbors
    for k, m in edges:
        for sender, receiver in ((k, m), (m, k)):
            rate = min(UP[sender], DOWN[receiver])
            last = max(last, compute[sender] + LATENCY[sender] + bits / rate)
    return last


NETWORKS = {
    "ring": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)],
    "star": [(0, k) for k in range(1, CLIENTS)],
    "star of the second": [(1, k) for k in (0, 2, 3, 4)],
    "two of five": [(1, 4)],
}


@pytest.mark.parametrize("form", ["dense", "padded"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_round_lasts_as_long_as_its_slowest_edge(name, form):
    network = fl.graphs.from_edges(CLIENTS, NETWORKS[name], form=form, allow_disconnected=True)
    world = {"network": network, "allow_disconnected": True}
    result = run(ATC(STEP_SIZE), Synchronous(LINKS), 5, **world)[1]
    close(result.seconds, slowest_edge(NETWORKS[name]) * np.arange(1, 6), rtol=1e-12)


def test_a_table_with_overflow_has_the_same_slowest_edge():
    nodes = 40
    edges = [(0, k) for k in range(1, nodes)] + [(k, k + 1) for k in range(1, nodes - 1)]
    rng = np.random.default_rng(2)
    up, down = rng.uniform(100, 900, (2, nodes))
    compute = rng.uniform(0.1, 0.5, nodes)
    devices = Devices(
        seconds_per_step=compute, upload_bits_per_second=up, download_bits_per_second=down
    )
    problem = fl.problems.ridge(jax.random.key(0), clients=nodes, samples=4, dim=DIM)
    expected = max(compute[a] + BITS / min(up[a], down[b]) for e in edges for a, b in (e, e[::-1]))
    for form in ("padded", "dense"):
        network = fl.graphs.from_edges(nodes, edges, form=form)
        assert form == "dense" or network.overflow is not None
        world = {"network": network, "problem": problem}
        result = run(ATC(STEP_SIZE), Synchronous(devices), 2, **world)[1]
        close(result.seconds, [expected, 2 * expected], rtol=1e-12)


def test_a_compressed_message_takes_less_time():
    compression = fl.link.TopK(1)
    result = run(ATC(STEP_SIZE), Synchronous(LINKS), 2, compression=compression)[1]
    bits = compression.bits(DIM)
    assert bits < BITS
    close(result.seconds[0], slowest_edge(cases.EDGES, bits), rtol=1e-12)


def test_a_changing_network_has_the_slowest_edge_of_each_round():
    order = ["ring", "two of five", "star", "star of the second"]
    graphs = [
        fl.graphs.from_edges(CLIENTS, NETWORKS[name], allow_disconnected=True) for name in order
    ]
    result = run(ATC(STEP_SIZE), Synchronous(LINKS), 4, network=fl.graphs.GraphSchedule(graphs))[1]
    lengths = np.diff(result.seconds, prepend=0)
    close(lengths, [slowest_edge(NETWORKS[name]) for name in order], rtol=1e-12)


def test_a_round_without_communication_lasts_as_long_as_its_work():
    result = run(ProxSkip(STEP_SIZE, 0.4), Synchronous(LINKS), cases.ROUNDS)[1]
    coins = np.array(cases.coins_of(0.4))
    assert 0 < coins.sum() < cases.ROUNDS
    expected = np.where(coins, slowest_edge(cases.EDGES), max(COMPUTE))
    close(np.diff(result.seconds, prepend=0), expected, rtol=1e-12)


def test_only_pairs_that_meet_make_gossip_wait():
    result = run(GossipSGD(STEP_SIZE), Synchronous(LINKS), cases.ROUNDS)[1]
    expected = [slowest_edge(met) for met in cases.meetings_of()]
    close(np.diff(result.seconds, prepend=0), expected, rtol=1e-12)


def test_messages_in_one_direction_take_the_links_of_this_direction():
    directed = [(m, k) for k, m in zip(*np.nonzero(ONE_WAY), strict=True) if k != m]
    bits = 32 * (DIM + 1)  # a model and a number

    def last(edges):
        return max(
            COMPUTE[sender] + LATENCY[sender] + bits / min(UP[sender], DOWN[receiver])
            for sender, receiver in edges
        )

    assert last(directed) != last([edge[::-1] for edge in directed])
    result = run(SGP(STEP_SIZE, shares=ONE_WAY), Synchronous(LINKS), 2)[1]
    close(result.seconds, [last(directed), 2 * last(directed)], rtol=1e-12)


PEERS = [
    label
    for label in cases.LABELS
    if (needs := fl.algorithms.REGISTRY[label].needs).network is fl.graphs.Graph
    and not needs.asynchronous
    and fl.algorithms.REGISTRY[label].counts_work
]


@pytest.mark.slow
@pytest.mark.parametrize("label", PEERS)
def test_rounds_of_all_peers_have_a_length(label):
    """It is at least the seconds of computing, however an algorithm combines messages."""
    simulation = cases.simulate(label, private=False)
    simulation = dataclasses.replace(simulation, clock=Synchronous(LINKS), metrics=())
    lengths = np.diff(fl.run(simulation, 3, key=1).seconds, prepend=0)
    assert (lengths >= max(COMPUTE) * (1 - 1e-6)).all()
    assert (lengths < 100).all()


# Messages late by the seconds that they take -----------------------------------------------------


TICK = 0.41
LONGEST = 2


def lag(seconds):
    """In rounds; a message that is later than the longest is lost."""
    return min(math.floor(seconds / TICK), LONGEST + 1)


@pytest.mark.parametrize("label", ["ATC", "zCDP-grad-NFL"])
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_peers_on_ticks_are_peers_with_the_delays_of_their_edges(label, form):
    table = np.zeros((CLIENTS, CLIENTS), int)
    for receiver in range(CLIENTS):
        for sender in range(CLIENTS):
            rate = min(UP[sender], DOWN[receiver])
            table[receiver, sender] = lag(COMPUTE[sender] + LATENCY[sender] + BITS / rate)
    assert {table[k, m] for e in cases.EDGES for k, m in (e, e[::-1])} == {1, 2, 3}
    base = cases.simulate(label, network=make_network(form), private=False)
    late = dataclasses.replace(base, delays=fl.link.EdgeDelays(table, LONGEST))
    by_clock = dataclasses.replace(base, clock=Ticks(LINKS, seconds=TICK, longest=LONGEST))
    np.testing.assert_array_equal(trajectory(by_clock, 20), trajectory(late, 20))
    assert (trajectory(late, 20) != trajectory(base, 20)).any()


@pytest.mark.parametrize("label", ["NPFL", "zCDP-NFL"])
def test_npfl_and_its_kin_run_on_rounds_of_their_slowest_edge(label):
    """A clock that waits changes nothing in them, private or not."""
    edges = cases.EDGES
    for private in (False, True):
        base = cases.simulate(label, private=private)
        timed = dataclasses.replace(base, clock=Synchronous(LINKS), metrics=())
        result = fl.run(timed, 6, key=1)
        messages = np.diff(result.messages, prepend=0)
        bits = np.diff(result.bits_up, prepend=0) / messages
        expected = [slowest_edge(edges, size) for size in bits]
        close(np.diff(result.seconds, prepend=0), expected, rtol=1e-9)
        np.testing.assert_array_equal(trajectory(timed, 6), trajectory(base, 6))


def test_npfl_has_no_rule_for_late_messages_on_ticks_either():
    base = cases.simulate("NPFL", private=False)
    with pytest.raises(ValueError, match="no rule for late messages, which Ticks has"):
        dataclasses.replace(base, clock=Ticks(LINKS, seconds=TICK, longest=LONGEST))


@pytest.mark.parametrize("label", ["PAO-Fed", "PAO-Fed, graph"])
def test_pao_fed_on_ticks_is_pao_fed_with_the_delays_of_its_clients(label):
    by_clock = cases.simulate(label)
    portion = by_clock.algorithm.sharing.size  # in both directions
    table = [
        lag(2 * latency + compute + 32 * portion / down + 32 * portion / up)
        for up, down, latency, compute in zip(UP, DOWN, LATENCY, COMPUTE, strict=True)
    ]
    assert len(set(table)) > 1
    trace = fl.link.DelayTrace(np.tile(table, (20, 1)), LONGEST)
    late = dataclasses.replace(by_clock, delays=trace)
    by_clock = dataclasses.replace(by_clock, clock=Ticks(LINKS, seconds=TICK, longest=LONGEST))
    np.testing.assert_array_equal(trajectory(by_clock, 20), trajectory(late, 20))
