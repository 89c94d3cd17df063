"""Stages that meet: lost links, stale copies, absent peers, changing graphs, attackers and robust
aggregation, each against loops, and together in every algorithm that takes them.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import aggregation, attacks
from fljax._core.module import module, replace, static
from fljax.algorithms import (
    IFCA,
    REGISTRY,
    ZCDPNFL,
    ConventionalFL,
    FedAvg,
    NetworkedADMM,
    ZCDPGradNFL,
)
from fljax.link import EdgeDelays, Losses
from fljax.metrics.definitions import Metric
from fljax.simulation import compatibility
from fljax.simulation.scan import trace
from tests.cases import (
    CASES,
    CLIENTS,
    DIM,
    EDGES,
    make_network,
    make_objective,
    make_problem,
    simulate,
)
from tests.reference import links

ROUNDS = 8
STEP = 0.06
MODELS = Metric("models", lambda now: now.model, "the models themselves")
rng = np.random.default_rng(3)
WORKING_LINKS = rng.random((ROUNDS, CLIENTS, CLIENTS)) < 0.6
WORKING_BOTH_WAYS = WORKING_LINKS & WORKING_LINKS.transpose(0, 2, 1)
AGES = rng.integers(0, 3, (ROUNDS, CLIENTS, CLIENTS))
ACTIVE = rng.random((ROUNDS, CLIENTS)) < 0.6
ATTACKERS = np.arange(CLIENTS) == 2
#: Everybody next to everybody: five messages at each, enough for Krum.
COMPLETE = [(k, j) for k in range(CLIENTS) for j in range(k)]

AGGREGATORS = {
    "mean": aggregation.Mean(),
    "weighted": aggregation.WeightedMean(),
    "median": aggregation.Median(),
    "trimmed": aggregation.TrimmedMean(count=1),
    "winsorized": aggregation.WinsorizedMean(count=1),
    "krum": aggregation.Krum(1),
    "centered": aggregation.CenteredClipping(0.5, 3),
    "norm": aggregation.NormClipping(0.5),
}


@module
class Replayed(Losses):
    """What works is given; the state counts the rounds."""

    table: object  # [T, ...]
    symmetric: bool = static(default=False)

    def begin(self, uniform):
        return jnp.zeros((), jnp.int32)

    def draw(self, state, uniform):
        return state + 1, jnp.asarray(self.table)[state]


def adjacency(edges):
    matrix = np.zeros((CLIENTS, CLIENTS))
    for k, j in edges:
        matrix[k, j] = matrix[j, k] = 1
    return matrix


def models(algorithm=None, network=None, rounds=ROUNDS, key=1, **parts):
    """``[rounds, K, D]``."""
    simulation = fl.Simulation(
        make_problem(),
        ZCDPGradNFL(STEP) if algorithm is None else algorithm,
        make_network() if network is None else network,
        metrics=[MODELS],
        **parts,
    )
    return np.asarray(_trace(simulation, jax.random.key(key), rounds))


def _models(simulation, key, rounds):
    return trace(simulation, key, rounds, 1)[0]["models"]


_trace = jax.jit(_models, static_argnums=2)


def loops(edges=EDGES, **options):
    return links.peers(make_objective(), [adjacency(edges)] * ROUNDS, STEP, ROUNDS, **options)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


# Peers against the loops -------------------------------------------------------------------------


def test_lost_links_equal_the_loops():
    ours = models(losses=Replayed(WORKING_LINKS))
    close(ours, loops(works=WORKING_LINKS))
    assert np.abs(ours - loops()).max() > 1e-3


def test_stale_copies_equal_the_loops():
    ours = models(delays=EdgeDelays(AGES))
    close(ours, loops(ages=AGES))
    assert np.abs(ours - loops()).max() > 1e-3


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_the_messages_of_a_client_take_its_lag_over_all_edges(form):
    lags = np.arange(CLIENTS) % 3 * 2  # none is late by one round
    ours = models(network=make_network(form), delays=fl.link.Fixed(lags))
    from_slow = np.broadcast_to(lags, (ROUNDS, CLIENTS, CLIENTS))
    close(ours, loops(ages=from_slow))
    assert np.abs(ours - loops(ages=from_slow.transpose(0, 2, 1))).max() > 1e-3


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_every_edge_has_its_delay_in_any_storage_form(form):
    """Edges that a table loses transmit nothing, in all rounds or in the rounds of the table."""
    table = np.where(AGES == 2, -1, AGES)
    for delays in (AGES, table, table[0]):
        ages = np.broadcast_to(delays, AGES.shape)
        ours = models(network=make_network(form), delays=EdgeDelays(delays))
        close(ours, loops(ages=ages, works=ages >= 0))


def test_delays_of_some_edges_are_those_of_the_table():
    (first, second), *_ = EDGES
    delays = EdgeDelays.from_edges(CLIENTS, {(first, second): 2, (second, first): 1, (0, 4): -1})
    table = np.zeros((CLIENTS, CLIENTS), int)
    table[first, second] = 2
    table[second, first] = 1
    table[0, 4] = table[4, 0] = -1
    np.testing.assert_array_equal(delays.table, table)
    assert delays.lags == range(3)
    assert EdgeDelays.from_edges(3, {}).lags == range(1)


def test_absent_peers_rest_and_neighbors_keep_their_last_message():
    ours = models(participation=fl.participation.Trace(ACTIVE))
    close(ours, loops(available=ACTIVE))
    asleep = ~ACTIVE[1:]
    np.testing.assert_array_equal(ours[1:][asleep], ours[:-1][asleep])


def test_all_stages_together_equal_the_loops():
    parts = {
        "losses": Replayed(WORKING_LINKS),
        "delays": EdgeDelays(AGES),
        "participation": fl.participation.Trace(ACTIVE),
        "attack": attacks.SignFlip(ATTACKERS, 2.0),
    }
    options = {
        "works": WORKING_LINKS,
        "ages": AGES,
        "available": ACTIVE,
        "attackers": ATTACKERS,
        "scale": 2.0,
    }
    close(models(**parts), loops(**options))
    network = make_network(edges=COMPLETE)
    ours = models(network=network, aggregation=aggregation.Median(), **parts)
    close(ours, loops(COMPLETE, aggregate="median", **options))


def test_changing_graphs_equal_the_loops():
    edges = [EDGES, EDGES[:4], COMPLETE]
    network = fl.graphs.GraphSchedule([make_network(edges=e) for e in edges])
    graphs = [adjacency(edges[n % 3]) for n in range(ROUNDS)]
    close(models(network=network), links.peers(make_objective(), graphs, STEP, ROUNDS))


@pytest.mark.slow
def test_a_random_graph_process_draws_a_graph_a_round():
    def draw(key):
        return fl.graphs.erdos_renyi(key, nodes=CLIENTS, probability=0.5)

    graphs = []
    simulation = fl.Simulation(make_problem(), ZCDPGradNFL(STEP), fl.graphs.DrawnGraphs(draw))
    for n in (1, 2, 3):
        graphs.append(np.asarray(fl.view(simulation, key=4, round=n).network.dense()))
    again = np.asarray(fl.view(simulation, key=4, round=2).network.dense())
    np.testing.assert_array_equal(graphs[1], again)
    assert len({graph.tobytes() for graph in graphs}) == 3
    assert fl.run(simulation, rounds=5).model.shape == (CLIENTS, DIM)


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", AGGREGATORS)
def test_attacked_peers_equal_the_loops(name):
    ours = models(
        network=make_network(edges=COMPLETE),
        attack=attacks.SignFlip(ATTACKERS, 3.0),
        aggregation=AGGREGATORS[name],
    )
    close(ours, loops(COMPLETE, attackers=ATTACKERS, scale=3.0, aggregate=name))


def test_admm_over_symmetric_failures_equals_the_loop():
    ours = models(ZCDPNFL(0.9, 0.3), losses=Replayed(WORKING_BOTH_WAYS))
    close(ours, links.zcdp_nfl(make_objective(), EDGES, 0.9, 0.3, WORKING_BOTH_WAYS))


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_lost_links_do_not_depend_on_how_a_graph_is_stored(form):
    for losses in (fl.link.Independent(0.4), fl.link.GilbertElliott(0.3, 0.5, symmetric=False)):
        dense, stored = (models(network=make_network(f), losses=losses) for f in ("dense", form))
        close(dense, stored)
        assert np.abs(dense - models()).max() > 1e-3


def test_stale_copies_in_a_table_are_of_the_drawn_ages():
    """One age everywhere, so that the order of draws does not matter."""
    dense, padded = (
        models(network=make_network(form), delays=fl.link.Fixed(2)) for form in ("dense", "padded")
    )
    close(dense, padded)
    close(dense, loops(ages=np.full_like(AGES, 2)))


@pytest.mark.long
@pytest.mark.slow
def test_crowded_nodes_receive_over_failing_links():
    """A table with overflow, for sums and for single messages."""
    nodes = 40
    edges = [(0, k) for k in range(1, nodes)] + [(k, k + 1) for k in range(1, nodes - 1)]
    problem = fl.problems.ridge(jax.random.key(0), clients=nodes, samples=5, dim=2)
    result = []
    for form in ("padded", "dense"):
        network = fl.graphs.from_edges(nodes, edges, form=form)
        assert form == "dense" or network.overflow is not None
        for parts in (
            {"losses": fl.link.Independent(0.3)},
            {"losses": fl.link.Independent(0.3), "aggregation": aggregation.Median()},
            {"delays": fl.link.Fixed(1), "aggregation": aggregation.Median()},
        ):
            simulation = fl.Simulation(problem, ZCDPGradNFL(0.05), network, **parts)
            result.append(np.asarray(fl.run(simulation, rounds=6, key=2).model))
    for table, dense in zip(result[:3], result[3:], strict=True):
        close(table, dense)


@pytest.mark.slow
def test_groups_of_receivers_equal_a_single_batch(monkeypatch):
    setting = {"network": make_network(edges=COMPLETE), "aggregation": aggregation.Median()}
    ungrouped = models(**setting)
    monkeypatch.setattr(fl.link.inbox, "RECEIVERS", 2)
    jax.clear_caches()
    close(models(**setting), ungrouped)


# Servers -----------------------------------------------------------------------------------------


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", AGGREGATORS)
def test_an_attacked_federation_is_that_of_the_loops(name):
    parts = {"attack": attacks.SignFlip(ATTACKERS, 3.0), "aggregation": AGGREGATORS[name]}
    theirs = links.server(
        make_objective(), STEP, ROUNDS, attackers=ATTACKERS, scale=3.0, aggregate=name
    )
    for algorithm in (ConventionalFL(STEP), FedAvg(STEP, weighting="equal")):
        close(models(algorithm, **parts), np.repeat(theirs[:, None], CLIENTS, axis=1))


def test_a_server_goes_on_with_what_arrives():
    up = WORKING_LINKS[:, 0]
    up[3] = False  # nothing at all
    theirs = links.server(make_objective(), STEP, ROUNDS, works=up)
    for algorithm in (ConventionalFL(STEP), FedAvg(STEP, weighting="equal")):
        ours = models(algorithm, losses=Replayed(up))
        close(ours, np.repeat(theirs[:, None], CLIENTS, axis=1))
        np.testing.assert_array_equal(ours[3], ours[2])


# Everything that may meet, meets -----------------------------------------------------------------

STAGES = {
    "losses": fl.link.Independent(0.3),
    "attack": attacks.SignFlip(ATTACKERS),
    "delays": fl.link.Geometric(0.3, 2, beyond="clip"),
    "participation": fl.participation.Bernoulli(0.7),
    "compression": fl.link.Quantize(4),
    "aggregation": aggregation.NormClipping(1e-3),
}
#: Losses and attacks belong to the link alone, and no algorithm may refuse them. One algorithm for
#: each way to send messages is tested (peers, with messages kept or not; a server; servers;
#: portions).
ONE_OF_EACH_KIND = ("zCDP-NFL", "zCDP-grad-NFL", "FL", "FedAvg", "GFL", "PGFL", "NPFL", "PAO-Fed")


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("label", CASES)
def test_every_algorithm_accepts_the_stages_of_its_needs(label):
    """Each stage alone: accepted and different from the run without it, or refused with the list of
    algorithms that accept it.
    """
    plain = simulate(label, private=False, network=make_network(edges=COMPLETE))
    without_stages = np.asarray(fl.run(plain, rounds=3).model)
    for name, stage in STAGES.items():
        changed = {"network": plain.network, "problem": plain.problem, name: stage}
        if label in ("Local only", "Generalized gradient") and name != "participation":
            continue  # says nothing, so nothing changes
        if label not in ONE_OF_EACH_KIND and name in ("losses", "attack"):
            continue
        if label == "SignSGD" and name == "aggregation":
            continue  # a vote of shorter votes is the same
        needs = REGISTRY[label].needs
        copes = {
            "delays": needs.late,
            "participation": needs.absent,
            "aggregation": needs.averages,
            "compression": needs.compressed,
        }
        if not copes.get(name, True):
            with pytest.raises(ValueError, match=re.escape(label)) as caught:
                fl.Simulation(algorithm=plain.algorithm, **changed)
            listed = str(caught.value).partition("These can: ")[2]
            assert label not in re.split(", | and |\\.", listed)
            continue
        simulation = fl.Simulation(algorithm=plain.algorithm, **changed)
        results = fl.run(simulation, rounds=3)
        assert np.isfinite(results.model).all()
        assert np.abs(results.model - without_stages).max() > 1e-9, name


def test_alternatives_in_errors_do_run():
    problem = make_problem()
    network = make_network()
    with pytest.raises(ValueError, match="no rule for late messages") as caught:
        fl.Simulation(problem, IFCA(0.1, 2), network, delays=fl.link.Fixed(1))
    names = str(caught.value).partition("These can: ")[2]
    late = fl.Simulation(problem, FedAvg(0.1), network, delays=fl.link.Fixed(1))
    listed = compatibility.alternatives(replace(late, algorithm=IFCA(0.1, 2)))
    assert names == f"{', '.join(listed[:8])} and {len(listed) - 8} more."
    assert "IFCA" not in listed
    assert REGISTRY[listed[0]].needs.network is None  # as IFCA's own
    assert {"FL", "FedAvg", "zCDP-grad-NFL"} <= set(listed)
    for label in listed:
        fl.Simulation(problem, CASES[label].algorithm, network, delays=fl.link.Fixed(1))


@pytest.mark.slow
def test_a_plain_sum_needs_no_memory_per_edge():
    """Four times the edges, the same memory apart from the table itself."""
    nodes = 2000
    dim = 64
    problem = fl.problems.ridge(jax.random.key(1), clients=nodes, samples=2, dim=dim)
    taken = []
    for degree in (6, 24):
        network = fl.graphs.k_regular(jax.random.key(0), nodes, degree, form="padded")
        simulation = fl.Simulation(problem, ZCDPNFL(1.0, 0.3), network)
        now = fl.view(simulation)
        state = simulation.algorithm.init(now.problem, now.network)

        def step(simulation, state):
            return simulation.algorithm.step(state, fl.view(simulation))

        compiled = jax.jit(step).lower(simulation, state).compile()
        taken.append(compiled.memory_analysis().temp_size_in_bytes)
    per_edge = nodes * 18 * dim * 8
    assert taken[1] - taken[0] < 0.1 * per_edge


# Bad input ---------------------------------------------------------------------------------------

BAD = {
    "a median over one neighbor": (
        "Median needs at least 3 messages",
        lambda: fl.Simulation(
            make_problem(),
            ZCDPGradNFL(STEP),
            fl.graphs.path(CLIENTS),
            aggregation=aggregation.Median(),
        ),
    ),
    "attackers of another network": (
        "one boolean of each of the 5 clients, got 4",
        lambda: fl.Simulation(
            make_problem(), FedAvg(STEP), attack=attacks.SignFlip(attacks.first(1, 4))
        ),
    ),
    "privacy under attack": (
        "honest_only=True",
        lambda: fl.Simulation(
            make_problem(),
            ConventionalFL(STEP),
            privacy=fl.privacy.ZCDP(1.0),
            attack=attacks.SignFlip(ATTACKERS),
        ),
    ),
    "delays longer than the run": (
        "nothing would ever arrive",
        lambda: fl.run(
            fl.Simulation(make_problem(), FedAvg(STEP), delays=fl.link.Fixed(100)), rounds=10
        ),
    ),
    "an aggregator in place of a sum": (
        "combines messages otherwise than by a mean.* These can: .*ATC",
        lambda: fl.Simulation(
            make_problem(), NetworkedADMM(1.0), make_network(), aggregation=aggregation.Median()
        ),
    ),
    "delays of clients among peers": (
        "a DelayTrace has one delay for each client",
        lambda: fl.Simulation(
            make_problem(),
            ZCDPGradNFL(STEP),
            make_network(),
            delays=fl.link.DelayTrace(np.zeros((3, CLIENTS), int), 1),
        ),
    ),
    "delays of edges towards a server": (
        "use fljax.link.DelayTrace, with a delay for each client",
        lambda: fl.Simulation(
            make_problem(), FedAvg(STEP), delays=EdgeDelays(np.zeros((CLIENTS, CLIENTS), int))
        ),
    ),
    "a graph that changes under ADMM": (
        "no rule for a graph that changes",
        lambda: fl.Simulation(
            make_problem(), NetworkedADMM(1.0), fl.graphs.GraphSchedule([make_network()])
        ),
    ),
    "a network in pieces": (
        "disconnected",
        lambda: fl.Simulation(
            make_problem(),
            ZCDPGradNFL(STEP),
            fl.graphs.from_edges(CLIENTS, [(0, 1), (2, 3), (3, 4)], allow_disconnected=True),
        ),
    ),
    "graphs of different sizes": (
        "all of the same nodes",
        lambda: fl.graphs.GraphSchedule([fl.graphs.ring(4), fl.graphs.ring(5)]),
    ),
    "a probability of failure above one": (
        "probability must be finite and >= 0 and <= 1",
        lambda: fl.link.Independent(1.1),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_unmixable_parts_are_refused(name):
    message, make = BAD[name]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("part", ["attack", "losses", "aggregation"])
def test_a_part_of_another_kind_is_refused(part):
    with pytest.raises(TypeError, match=f"{part} must be an instance of fljax"):
        fl.Simulation(make_problem(), FedAvg(STEP), **{part: 0.3})


def test_a_random_draw_instead_of_a_graph_is_refused():
    with pytest.raises(TypeError, match="what draw returns must be an instance"):
        fl.graphs.DrawnGraphs(lambda key: jax.random.normal(key, (3, 3)))
    with pytest.raises(TypeError, match="draw must be a function"):
        fl.graphs.DrawnGraphs(fl.graphs.ring(4))


def test_a_network_in_parts_is_accepted_by_algorithms_that_read_parts():
    network = fl.graphs.from_edges(CLIENTS, [(0, 1), (2, 3), (3, 4)], allow_disconnected=True)
    simulation = fl.Simulation(make_problem(), ZCDPGradNFL(STEP), network, allow_disconnected=True)
    assert not bool(fl.run(simulation, rounds=2).connected)


def test_a_private_step_that_reports_no_gradients_is_refused():
    class Silent(ConventionalFL):
        needs = ConventionalFL.needs

        def step(self, state, now):
            state = super().step(state, now)
            now.witnessed = None
            return state

    simulation = fl.Simulation(make_problem(), module(Silent)(STEP), privacy=fl.privacy.ZCDP(1.0))
    with pytest.raises(TypeError, match=r"call now\.witness"):
        fl.run(simulation, rounds=2)


def test_needs_of_all_registered_algorithms_are_data():
    for label, algorithm in REGISTRY.items():
        assert algorithm.needs.data in ("fixed", "any", "stream"), label
    assert list(compatibility.alternatives(simulate("FL"))).count("FL") == 1


# What newcomers' own algorithms meet ------------------------------------------------------------


@fl.module
class Twice(fl.algorithms.Algorithm):
    """Sends 1, then 100, and keeps the mean of each message it receives."""

    joined: bool = fl.static(default=False)
    reads: bool = fl.static(default=True)
    needs = fl.algorithms.Needs(averages=True, late=True, absent=True)

    def message_size(self, dim):
        return 2 * dim if self.joined else dim

    def init(self, problem, network):
        zero = jnp.zeros((problem.clients, problem.dim))
        return fl.algorithms.peers.zcdp_grad_nfl.ZCDPGradNFLState(
            zero, zero, zero, network.mixing()
        )

    def step(self, state, now):
        unit = jnp.ones_like(state.model)
        over = now.network.mixing()
        if self.joined:
            _, inbox = now.link.exchange(jnp.concatenate([unit, 100 * unit], axis=1))
            first, second = jnp.split(inbox.mean(over=over), 2, axis=1)
            return state._replace(model=first, mixed=second)
        own_message, first = now.link.exchange(unit)
        more, second = now.link.exchange(100 * unit)
        if not self.reads:
            return state._replace(model=over(own_message), mixed=over(more))
        return state._replace(model=first.mean(over=over), mixed=second.mean(over=over))


def heard_by(algorithm, **stages):
    """The final models of a run, and the minimum and maximum of the second received message."""
    result = []

    def keep(now):
        jax.debug.callback(lambda *values: result.append(values), now.model, now.state.mixed)
        return jnp.sum(now.model)

    metric = fl.metrics.Metric("sum", keep, "sum")
    simulation = fl.Simulation(
        make_problem(), algorithm, make_network(), metrics=[metric], **stages
    )
    fl.run(simulation, 6)
    jax.effects_barrier()
    return np.array([[np.asarray(a) for a in received] for received in result])  # [T, 2, K, D]


@pytest.mark.slow
def test_a_second_message_of_a_round_is_refused_where_peers_remember_one():
    late = {"delays": fl.link.Geometric(0.5, 3, beyond="clip")}
    absent = {"participation": fl.participation.Bernoulli(0.5)}
    for stages in (late, absent):
        with pytest.raises(ValueError, match="exchanged a second message in one round"):
            heard_by(Twice(), **stages)
        received = heard_by(Twice(joined=True), **stages)
        assert set(np.unique(received[:, 0])) <= {0.0, 1.0} or received[:, 0].max() <= 1 + 1e-12
        np.testing.assert_allclose(received[:, 1], 100 * received[:, 0], rtol=1e-12)


@pytest.mark.slow
def test_two_messages_of_a_round_go_over_the_same_links():
    received = heard_by(Twice(), losses=fl.link.GilbertElliott(0.4, 0.3))
    np.testing.assert_allclose(
        received[:, 0], 1.0, rtol=1e-12
    )  # its own message replaces lost ones
    alternating = heard_by(Alternating(), losses=fl.link.Independent(0.5))
    np.testing.assert_allclose(alternating[:, 0], alternating[:, 1], rtol=1e-12)
    assert np.ptp(alternating[:, 0]) > 0


@fl.module
class Alternating(Twice):
    """Sends its number twice: over the same links the same is received."""

    def step(self, state, now):
        message = jnp.arange(len(state.model), dtype=state.model.dtype)[:, None] + state.model * 0
        over = now.network.mixing()
        _, first = now.link.exchange(message)
        _, second = now.link.exchange(message)
        return state._replace(model=first.mean(over=over), mixed=second.mean(over=over))


def test_a_step_that_ignores_its_inbox_is_refused_under_stages_that_need_it():
    heard_by(Twice(reads=False))
    for stage in ({"losses": fl.link.Independent(0.3)}, {"aggregation": fl.aggregation.Median()}):
        with pytest.raises(TypeError, match=r"Twice\.step reads none of its inboxes"):
            heard_by(Twice(reads=False), **stage)


@fl.module
class Listener(Twice):
    """Reads single messages without declaring it."""

    def step(self, state, now):
        _, inbox = now.link.exchange(state.model)
        return state._replace(mixed=inbox.messages(now.network)[:, 0])


def test_only_declared_algorithms_read_single_messages():
    network = fl.graphs.complete(5, form="padded")

    def run(algorithm):
        return fl.run(fl.Simulation(make_problem(), algorithm, network), 1)

    with pytest.raises(TypeError, match=r"Listener\.step reads single messages.*one_by_one = True"):
        run(Listener())

    @fl.module
    class Declared(Listener):
        one_by_one = True

    run(Declared())


@pytest.mark.slow
def test_a_key_of_an_unknown_purpose_is_refused_and_algorithms_have_one():
    now = fl.view(fl.Simulation(make_problem(), Twice(), make_network()))
    assert now.key("algorithm") != now.key("batches")
    with pytest.raises(ValueError, match=r"unknown purpose 'mine' of random draws.*'algorithm'"):
        now.key("mine")


@pytest.mark.slow
def test_metrics_under_an_attack_are_of_the_honest_clients():
    mask = np.arange(5) == 2
    attack = fl.attacks.SignFlip(mask, 3.0)

    def direct(now):
        return jnp.sum(jnp.where(mask, 0, jnp.sum((now.model - now.optimum[None]) ** 2, axis=1)))

    metric = fl.metrics.Metric("own", direct, "own", needs={"optimum"})
    arguments = (make_problem(), ZCDPGradNFL(STEP), make_network())
    names = ["normalized_error", "mean_square_deviation", metric]
    run = fl.run(fl.Simulation(*arguments, metrics=names, attack=attack), 6)
    best = np.sum(np.asarray(fl.problems.optimum(make_problem())) ** 2)
    np.testing.assert_allclose(run.mean_square_deviation, run.own / 4, rtol=1e-12)
    np.testing.assert_allclose(run.normalized_error, run.own * 5 / 4 / best, rtol=1e-10)


class Bare(fl.algorithms.Algorithm):
    init = Twice.init
    step = Twice.step


@fl.module
class Silent(Twice):
    needs = fl.algorithms.Needs(privacy=("message",))

    def step(self, state, now):
        now.witness(now.problem.sample_gradient_norm(state.model))
        return state

    def sensitivity(self, problem, network, round, gap):
        return jnp.ones(problem.clients)


def metric_of(value, name="own"):
    return fl.metrics.Metric(name, value, "own")


ARGUMENTS = (make_problem(clip=1.0), Twice(), make_network())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: fl.Simulation(ARGUMENTS[0], fl.module(Bare)(), ARGUMENTS[2]),
            TypeError,
            "needs = fljax",
        ),
        (
            lambda: fl.Simulation(ARGUMENTS[0], Twice, ARGUMENTS[2]),
            TypeError,
            "instance of.*class Twice",
        ),
        (
            lambda: fl.run(
                fl.Simulation(ARGUMENTS[0], Silent(), ARGUMENTS[2], fl.privacy.ZCDP(1.0)), 2
            ),
            TypeError,
            "Silent.step sends no message",
        ),
        (
            lambda: fl.run(
                fl.Simulation(*ARGUMENTS, metrics=[metric_of(lambda now: now.model)]), 2
            ),
            TypeError,
            r"'own' must be one number, got an array of shape \(5, 3\)",
        ),
        (
            lambda: fl.run(fl.Simulation(*ARGUMENTS, metrics=[metric_of(lambda now: None)]), 2),
            TypeError,
            "'own' must be one number, got None",
        ),
        (lambda: metric_of(lambda now: 0.0, "bits_up"), ValueError, "cannot be called 'bits_up'"),
        (lambda: metric_of(lambda now: 0.0, "seed"), ValueError, "cannot be called 'seed'"),
        (lambda: metric_of(lambda now: 0.0, ""), ValueError, "cannot be called ''"),
        (
            lambda: fl.Simulation(*ARGUMENTS, privacy=fl.privacy.ZCDP(1.0)),
            ValueError,
            "Twice does not run under ZCDP",
        ),
        (
            lambda: fl.run(
                fl.Simulation(ARGUMENTS[0], NoRule(), ARGUMENTS[2], fl.privacy.ZCDP(1.0)), 2
            ),
            NotImplementedError,
            "NoRule has no method 'sensitivity'",
        ),
        (
            lambda: fl.Simulation(
                ARGUMENTS[0], NoRule(), ARGUMENTS[2], participation=fl.participation.Bernoulli(0.5)
            ),
            ValueError,
            r"declare absent=True in its needs",
        ),
    ],
)
def test_impossible_custom_parts_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@fl.module
class NoRule(Twice):
    needs = fl.algorithms.Needs(privacy=("message",))


# Weights of one's own ---------------------------------------------------------------------------


def with_mixing(mixing, network=None):
    network = make_network() if network is None else network
    return fl.Simulation(make_problem(), ZCDPGradNFL(0.05, mixing), network)


@pytest.mark.parametrize("step", [0.2, 0.43])  # the second has negative weights
def test_laplacian_weights_have_a_step(step):
    laplacian = np.zeros((CLIENTS, CLIENTS))
    for k, j in EDGES:
        laplacian[[k, j], [k, j]] += 1
        laplacian[[k, j], [j, k]] -= 1
    weights = np.eye(CLIENTS) - step * laplacian
    assert (weights.min() < 0) == (step > 1 / 3)
    objective = make_objective()
    w = np.zeros((CLIENTS, DIM))
    for _ in range(8):
        slopes = [objective.gradient(k, w[k]) for k in range(CLIENTS)]
        w = weights @ w - 0.05 * np.array(slopes)
    run = fl.run(with_mixing(fl.graphs.Mixing("laplacian", step=step)), 8)
    np.testing.assert_allclose(run.model, w, rtol=1e-10)


@pytest.mark.slow
def test_a_grid_of_mixing_steps_is_one_program():
    def scenario(key, step):
        return dataclasses.replace(
            with_mixing(fl.graphs.Mixing("laplacian", step=step)), metrics="consensus_error"
        )

    study = fl.sweep(scenario, grid={"step": [0.1, 0.2, 0.3]}, rounds=4)
    assert study.attrs["compilations"] == 1
    assert len(np.unique(study.consensus_error.isel(round=-1))) == 3
    largest = np.linalg.eigvalsh(np.asarray(make_network().laplacian_matrix()))[-1]
    with pytest.raises(ValueError, match=r"step must be below 2 / lambda_max") as caught:
        fl.sweep(scenario, grid={"step": [0.1, 2 / largest]}, rounds=4)
    assert "grid point" in caught.value.__notes__[-1]
    with_mixing(fl.graphs.Mixing("laplacian", step=1.99 / largest))


@pytest.mark.parametrize(
    ("mixing", "message"),
    [
        (lambda: "metropoliss", "known: metropolis, max-degree, .* Did you mean 'metropolis'"),
        (lambda: "hastings", "'hastings' needs target"),
        (lambda: fl.graphs.Mixing("hastings", target=np.ones(4)), r"target must have shape \(5,\)"),
        (lambda: fl.graphs.Mixing("averaging", step=0.1), "leave step out"),
        (lambda: fl.graphs.Mixing("laplacian", step=-0.1), "step must be finite and > 0"),
        (lambda: fl.graphs.Mixing("laplacian", step=0.6), "for I - step.L to contract, got 0.6"),
    ],
)
@pytest.mark.thin(3)
def test_mismatched_weights_are_refused_with_the_simulation(mixing, message):
    with pytest.raises(ValueError, match=message):
        with_mixing(mixing())
