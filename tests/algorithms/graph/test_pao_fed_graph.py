"""PAO-Fed with several servers, and with aggregators: against loops, and special cases."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import aggregation, attacks
from fljax.algorithms import OnlineFed, PAOFed, PAOFedGraph
from fljax.link import Circular
from tests.cases.graph import pao_fed_graph_run
from tests.cases.server import online_loop
from tests.cases.world import make_data
from tests.support.online_world import MU, compare, states_and_records, world

close = np.testing.assert_allclose

EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
#: Forty clients, distributed unevenly; one server may be without clients.
HOME = [k % 3 for k in range(37)] + [3] * 3


def graph(form="dense"):
    return fl.graphs.from_edges(4, EDGES, form=form)


def federation(edges=True):
    return fl.federation.Federation(HOME, graph() if edges else None)


def on_graph(size, between, coordinated=False, **options):
    return PAOFedGraph(MU, Circular(size, coordinated), Circular(between), **options)


CASES = {
    "uncoordinated": on_graph(4, 2, discount=0.2),
    "coordinated": on_graph(4, 4, coordinated=True),
    "sent as received": on_graph(2, 9, send_next=False, discount=0.6),
    "whole models": on_graph(9, 9, discount=[1.0, *np.linspace(0.9, 0, 10)]),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", CASES)
def test_every_round_is_that_of_the_loops(name):
    case = world()
    algorithm = CASES[name]
    simulation = case.simulate(algorithm, network=federation())
    expected = pao_fed_graph_run(algorithm, case.environment, HOME, EDGES, case.delays.lags)
    compare(simulation, expected._replace(server=expected.server[:, HOME]))
    assert np.ptp(expected.server[-1], axis=0).max() > 1e-2  # servers do differ


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncoordinated", "coordinated"])
def test_a_network_without_servers_has_one_client_at_each(name):
    """The networked form of Gauthier et al. 2023 (PAO-Fed), section VI: every client is its own
    server, and mixes with its neighbors.
    """
    case = world(clients=5)
    home = range(5)
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)]
    network = fl.federation.Federation(list(home), fl.graphs.from_edges(5, edges))
    expected = pao_fed_graph_run(CASES[name], case.environment, home, edges, case.delays.lags)
    compare(case.simulate(CASES[name], network=network), expected)
    alone = pao_fed_graph_run(CASES[name], case.environment, home, [], case.delays.lags)
    assert np.abs(expected.server[-1] - alone.server[-1]).max() > 1e-2


@pytest.mark.thin(1)
@pytest.mark.parametrize("variant", ["U2", "C1"])
def test_with_one_server_it_is_pao_fed(variant):
    case = world()
    single = PAOFed.variant(variant, MU)
    several = PAOFedGraph(MU, single.sharing, send_next=single.send_next, discount=single.discount)
    network = fl.federation.balanced(case.environment.clients)
    ours, _ = states_and_records(case.simulate(several, network=network), 48)
    theirs, _ = states_and_records(case.simulate(single), 48)
    np.testing.assert_array_equal(ours.server[:, 0], theirs.model)
    np.testing.assert_array_equal(ours.local, theirs.local)


@pytest.mark.slow
def test_servers_that_do_not_talk_are_several_of_one_server():
    case = world()
    algorithm = on_graph(4, 4, discount=0.2)
    state, _ = states_and_records(case.simulate(algorithm, network=federation(edges=False)), 48)
    for p in range(4):
        available = case.environment.available & (np.array(HOME) == p)
        environment = dataclasses.replace(case.environment, available=available)
        alone = online_loop(PAOFed.variant("U2", MU), environment, case.delays.lags)
        close(state.server[:, p], alone.server, atol=1e-11)


@pytest.mark.slow
def test_full_models_on_a_complete_graph_equal_one_server():
    """With all clients there, as many at each server, it is Online-FedSGD."""
    data = fl.problems.from_clients(make_data(sizes=[12] * 6), fl.problems.LeastSquares())
    stream = fl.streams.Replay(data)
    network = fl.federation.balanced(2, fl.graphs.complete(3))
    several = PAOFedGraph(0.3, Circular(3), Circular(3))
    ours, _ = states_and_records(fl.Simulation(stream, several, network), 12)
    theirs, _ = states_and_records(fl.Simulation(stream, OnlineFed(0.3)), 12)
    close(ours.model, np.repeat(np.asarray(theirs.model)[:, None], 6, axis=1), atol=1e-12)


@pytest.mark.slow
def test_mixing_portions_keeps_the_mean_of_servers():
    case = world()
    talking, silent = (
        fl.Simulation(case.stream, on_graph(4, 2), federation(edges)) for edges in (True, False)
    )
    start = np.random.default_rng(0).normal(size=(4, 9))
    now = fl.view(talking, key=0, round=1)
    state = talking.algorithm.init(now.problem, now.network)._replace(server=jnp.asarray(start))
    mixed = talking.algorithm.step(state, now).server
    now = fl.view(silent, key=0, round=1)
    alone = silent.algorithm.step(state, now).server
    close(mixed.mean(axis=0), alone.mean(axis=0), atol=1e-12)
    moved = np.abs(mixed - alone).max(axis=0) > 1e-6
    assert moved.sum() == 2  # of nine


@pytest.mark.slow
def test_noise_between_servers_is_on_their_messages():
    case = world()
    noise = fl.link.PerMessage(0.1)
    simulation = fl.Simulation(case.stream, on_graph(4, 2), federation(), noise=noise)
    now = fl.view(simulation, key=0, round=1)
    state = simulation.algorithm.init(now.problem, now.network)
    noisy = simulation.algorithm.step(state, now).server
    plain = dataclasses.replace(simulation, noise=None)
    now = fl.view(plain, key=0, round=1)
    noised = np.abs(noisy - plain.algorithm.step(state, now).server) > 1e-9
    assert (noised.any(axis=0).sum(), noised.any(axis=1).sum()) == (2, 4)


# Aggregators -------------------------------------------------------------------------------------

AGGREGATORS = {
    "mean": (aggregation.Mean(), lambda rows: rows.mean(axis=0)),
    "median": (aggregation.Median(), lambda rows: np.median(rows, axis=0)),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["mean", "median"])
@pytest.mark.parametrize("variant", ["U2", "C1"])
def test_an_aggregator_combines_all_that_arrives(variant, name):
    case = world()
    algorithm = PAOFed.variant(variant, MU)
    ours, theirs = AGGREGATORS[name]
    expected = online_loop(algorithm, case.environment, case.delays.lags, aggregate=theirs)
    compare(case.simulate(algorithm, aggregation=ours), expected)


@pytest.mark.slow
def test_servers_aggregate_their_own_clients():
    case = world()
    algorithm = on_graph(4, 2, discount=0.2)
    ours, theirs = AGGREGATORS["median"]
    arguments = case.environment, HOME, EDGES, case.delays.lags, theirs
    expected = pao_fed_graph_run(algorithm, *arguments)
    simulation = case.simulate(algorithm, network=federation(), aggregation=ours)
    compare(simulation, expected._replace(server=expected.server[:, HOME]))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["U1", "C1"])
def test_with_simultaneous_arrivals_the_mean_is_pao_fed(variant):
    case = world()
    algorithm = PAOFed.variant(variant, MU)
    runs = [
        states_and_records(case.simulate(algorithm, delays=None, aggregation=part), 48)[0].model
        for part in (None, aggregation.Mean())
    ]
    close(*runs, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_attackers_see_models_and_not_positions_in_messages(late):
    """What an omniscient attacker knows of a parameter is what others say of that parameter."""
    case = world()
    mask = attacks.first(8, 40)
    attack = attacks.InnerProductManipulation(mask, 2.0)
    algorithm = PAOFed.variant("U1", MU)
    options = {} if late else {"delays": None}
    simulation = case.simulate(algorithm, attack=attack, **options)
    state, _ = states_and_records(simulation, 1)
    environment = case.environment
    honest = online_loop(algorithm, environment, case.delays.lags)
    local = honest.local[0]
    portion = np.array([[(i - 8 - 4 * k) % 9 < 4 for i in range(9)] for k in range(40)])
    sent = np.where(portion, local, 0)
    lie = -2 * sent[8:].mean(axis=0)
    messages = np.where(mask[:, None], np.where(portion, lie, 0), sent)
    on_time = environment.delay[0] == 0 if late else np.ones(40, bool)
    close(state.model[0], messages[on_time].mean(axis=0), atol=1e-12)


def test_late_messages_have_no_weights_under_an_aggregator():
    case = world()
    unequal = fl.participation.Unequal(10, np.arange(1.0, 41.0) / 820)
    simulation = case.simulate(PAOFed(MU, selector=unequal), aggregation=aggregation.Median())
    with pytest.raises(ValueError, match="count alike; leave out delays="):
        fl.run(simulation, 3)


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sharing": Circular(10)}, "1 to 9 of the model's 9 parameters, got size=10"),
        ({"between": Circular(10)}, "1 to 9 of the model's 9 parameters, got size=10"),
        ({"discount": 1.5}, "discount"),
        ({"discount": [0.5, -0.1]}, "discount"),
    ],
)
def test_bad_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        fl.run(world().simulate(PAOFedGraph(MU, **arguments), network=federation()), 3)


def test_pao_fed_on_a_graph_needs_servers():
    with pytest.raises(ValueError, match="runs on servers with clients"):
        world().simulate(PAOFedGraph(MU))
