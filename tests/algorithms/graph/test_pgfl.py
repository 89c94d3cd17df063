"""Graph federated learning, personalized and not: against loops, at its limits, its messages."""

import dataclasses
import functools
import itertools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax._core.module import replace
from fljax._core.prng import key_of, private_normal
from fljax.algorithms import (
    GFL,
    PGFL,
    ClusterFL,
    GraphFedAvg,
    PGFLByGradient,
    PGFLByLoss,
    PGFLSingleStep,
)
from fljax.graphs.federation import Federation, balanced
from fljax.link import Link, RandomK, Stages
from fljax.link.compression import WORD
from fljax.optimization.schedules import Constant, GeometricDecay, PowerDecay
from fljax.participation.patterns import Trace
from fljax.participation.selectors import Everyone, PerServer
from fljax.privacy import ZCDP, ApproximateDP, PureDP
from fljax.problems import (
    Huber,
    LeastSquares,
    Logistic,
    Problem,
    SquaredL2,
    Tasks,
    factorize,
    from_clients,
    group_share,
    optimum,
    prox,
    random_clusters,
)
from fljax.simulation import running
from fljax.simulation.leaks import unperturbed
from fljax.simulation.scan import advance, begin, make_round, prepare
from tests.cases import gap_of
from tests.reference import nfl
from tests.reference import pgfl as loops

close = np.testing.assert_allclose
same = np.testing.assert_array_equal

ROUNDS = 9
RHO = 1.5
RIDGE = 0.3
BOUND = 0.4
FIRST = 0.3
DECAY = 0.9
TAU = GeometricDecay(0.4, 0.9)
LOSSES = {"squared": LeastSquares(), "logistic": Logistic()}


class World(NamedTuple):
    """Clients of different sizes, at servers of different sizes, in no order."""

    server: tuple
    cluster: tuple
    edges: tuple
    loss: str = "squared"
    dim: int = 6
    seed: int = 0

    @property
    def servers(self):
        return max(self.server) + 1

    @property
    def clusters(self):
        return max(self.cluster) + 1

    @property
    def truth(self):
        return np.random.default_rng(self.seed + 100).normal(size=(self.clusters, self.dim))

    def data(self):
        rng = np.random.default_rng(self.seed)
        data = []
        for k, q in enumerate(self.cluster):
            X = rng.normal(size=(1 + (3 * k + 2) % 5, self.dim))
            y = X @ self.truth[q] + 0.3 * rng.normal(size=len(X))
            data.append((X, np.where(y > 0, 1.0, -1.0) if self.loss == "logistic" else y))
        return data

    def ridges(self):
        return [RIDGE / self.server.count(s) for s in self.server]

    def clients(self):
        pairs = zip(self.data(), self.ridges(), strict=True)
        return [loops.Client(X, y, self.loss, ridge) for (X, y), ridge in pairs]

    def cell(self, server, cluster):
        """The mask of the clients of this server and this cluster."""
        return (np.array(self.server) == server) & (np.array(self.cluster) == cluster)

    def members(self, server, cluster):
        return list(itertools.compress(self.clients(), self.cell(server, cluster)))

    def problem(self, **tasks):
        share = group_share(RIDGE, self.server, self.servers)
        problem = from_clients(self.data(), LOSSES[self.loss], SquaredL2(), share)
        return dataclasses.replace(problem, tasks=Tasks(self.cluster, self.clusters, **tasks))

    def network(self, form="dense"):
        graph = fl.graphs.from_edges(self.servers, self.edges, form=form) if self.edges else None
        return Federation(self.server, graph)


#: Server 2 has one client. No client of cluster 1 is at server 3 or at its only neighbor 1.
RAGGED = World(
    (2, 0, 1, 0, 3, 0, 1, 3, 0, 1, 0, 3, 3),
    (1, 0, 0, 1, 0, 2, 2, 2, 1, 0, 0, 2, 0),
    ((0, 1), (1, 2), (1, 3), (0, 2)),
)
#: Two clients at least everywhere, so that two can be drawn.
PAIRS = RAGGED._replace(server=(2, 0, 1, 0, 3, 0, 1, 3, 0, 2, 0, 3, 3))
#: Every cluster at every server, of different sizes.
FULL = World(
    (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0),
    (0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0),
    ((0, 1), (1, 2)),
    dim=3,
)


def new_key(seed=1):
    return fl.random_key(seed)


def table(clients, rounds=ROUNDS, share=0.45, seed=3):
    """Availability: one round without clients, another with all of them."""
    active = np.random.default_rng(seed).uniform(size=(rounds, clients)) < share
    active[1] = True
    active[4] = False
    return active


def budget(rounds=ROUNDS, **kwargs):
    return ZCDP.from_initial(FIRST, DECAY, rounds, gradient_bound=BOUND, **kwargs)


def simulate(world, algorithm, form="dense", active=None, privacy=None):
    """Privacy with absent clients exists only in tests: noise and absences together."""
    simulation = fl.Simulation(world.problem(), algorithm, world.network(form))
    pattern = None if active is None else Trace(active)
    return replace(simulation, participation=pattern, privacy=privacy)


#: LLVM's passes are a good third of the time to compile and change nothing here.
QUICK = {"xla_backend_optimization_level": 0}


def path(simulation, key, rounds):
    """The algorithm's state, the ledger and the record after every round."""
    prepared = prepare(simulation, rounds)

    def step(carry, done):
        carry, record = advance(simulation, prepared, key, carry, done, 1, 1, rounds)
        spent = jax.tree.map(lambda counts: jnp.sum(counts, axis=0), carry.spent)
        return carry, (carry.state, spent, record)

    done = jnp.arange(rounds, dtype=jnp.int32)
    return jax.lax.scan(step, begin(simulation, prepared, key), done)[1]


_path = jax.jit(path, static_argnums=2, compiler_options=QUICK)


def follow(simulation, rounds=ROUNDS, key=None):
    return _path(simulation, new_key() if key is None else key, rounds)


def counts(wide):
    """Counts of 62 bits as numbers, round by round."""
    wide = np.asarray(wide, np.int64).reshape(-1, 2)
    return (wide[:, 0] << 31) + wide[:, 1]


def rows_sent(simulation, rounds=ROUNDS, key=None):
    """``(clients, whether they take part)`` of the rows that each round sends."""
    key = new_key() if key is None else key
    network = simulation.network
    pattern = simulation.participation
    rows = []
    for n in range(1, rounds + 1):
        available = np.ones(network.nodes, bool) if pattern is None else pattern.table[n - 1]
        now = key_of(jax.random.fold_in(key, n), "participation")
        participants = simulation.algorithm.selection.choose(now, jnp.asarray(available), network)
        rows.append((np.asarray(participants.numbers), np.asarray(participants.here)))
    return rows


def deviation(simulation, world, rounds=ROUNDS):
    """``[T, K]`` standard deviations, (5.31)-(5.33) with the regularizer's strong convexity."""
    algorithm = simulation.algorithm
    sigma = np.zeros((rounds, len(world.server)))
    for k, client in enumerate(world.clients()):
        if isinstance(algorithm, GraphFedAvg):
            step = 0.1 / algorithm.local_steps
            gap = 0.0
            for e in range(algorithm.local_steps):
                change_per_step = 2 * BOUND * step / (len(client.y) if e == 0 else 1)
                gap = abs(1 - 2 * step * client.ridge) * gap + change_per_step
        else:
            gap = 2 * BOUND / (len(client.y) * (RHO + 2 * client.ridge))
        for n in range(rounds):
            sigma[n, k] = gap / np.sqrt(2 * FIRST * DECAY**-n)
    return sigma


class Told(NamedTuple):
    """What happened in a run, as the loops are told it."""

    scheduled: np.ndarray  # [T, K]
    noise: np.ndarray  # [T, K, D]


def injected_draws(simulation, world, rounds=ROUNDS):
    """The participants, and the noise drawn again with the round's key, row by row."""
    sigma = deviation(simulation, world, rounds)
    scheduled = np.zeros(sigma.shape, bool)
    noise = np.zeros((*sigma.shape, world.dim))
    for n, (clients, active) in enumerate(rows_sent(simulation, rounds)):
        unit = np.zeros((len(clients), world.dim))
        if simulation.privacy is not None:
            key = key_of(jax.random.fold_in(new_key(), n + 1), "privacy")
            unit = np.asarray(private_normal(key, unit.shape, float))
        for k, on, draw in zip(clients, active, unit, strict=True):
            if on:
                assert not scheduled[n, k]
                scheduled[n, k], noise[n, k] = True, sigma[n, k] * draw
    return Told(scheduled, noise)


def tau_of(algorithm):
    mixing = algorithm.inter_cluster
    return lambda n: float(mixing.initial) * float(mixing.factor) ** n


def loop_result(simulation, world, draws):
    algorithm = simulation.algorithm
    edges = world.edges
    common = {"scheduled": draws.scheduled, "noise": draws.noise}
    if isinstance(algorithm, GraphFedAvg):
        weights = nfl.metropolis(world.servers, edges)
        arguments = world.clients(), world.server, weights, len(draws.noise), 0.1
        return loops.gfl_gradient(*arguments, algorithm.local_steps, **common)
    cluster = world.cluster
    clusters = world.clusters
    if isinstance(algorithm, GFL):
        cluster = (0,) * len(cluster)
        clusters = 1
    if isinstance(algorithm, ClusterFL):
        edges = ()
    return loops.pgfl(
        world.clients(),
        world.server,
        cluster,
        edges,
        len(draws.noise),
        RHO,
        tau_of(algorithm),
        world.servers,
        clusters,
        empty_cell=algorithm.empty_cell,
        dual_reference=algorithm.dual_reference,
        **common,
    )


# Against the loops -------------------------------------------------------------------------------

LOGIT = RAGGED._replace(loss="logistic")
LOW = RAGGED._replace(dim=3)
#: name -> world, algorithm, form of the graph, absences (None: no pattern at all), noise
CASES: dict[str, tuple[World, Any, str, bool | None, bool]] = {
    "as published": (RAGGED, PGFL(RHO, TAU), "dense", True, True),
    "all there": (RAGGED, PGFL(RHO, TAU), "dense", False, True),
    "skip, aggregate": (
        RAGGED,
        PGFL(RHO, TAU, None, "skip", "aggregate"),
        "padded",
        True,
        True,
    ),
    "skip, more samples": (LOW, PGFL(RHO, TAU, None, "skip"), "padded", True, False),
    "skip, logistic": (
        LOGIT,
        PGFL(RHO, TAU, None, "skip", inner_iterations=40),
        "dense",
        True,
        False,
    ),
    "logistic, more samples": (
        LOGIT._replace(dim=3),
        PGFL(RHO, 0.4, inner_iterations=300),
        "dense",
        None,
        True,
    ),
    "two a server": (PAIRS, PGFL(RHO, TAU, 2), "dense", None, True),
    "at most two a server, logistic": (
        PAIRS._replace(loss="logistic"),
        PGFL(RHO, TAU, 2, "keep", "aggregate", 40),
        "dense",
        True,
        False,
    ),
    "GFL": (PAIRS, GFL(RHO, clients_per_server=2), "padded", None, True),
    "ClusterFL": (RAGGED, ClusterFL(RHO, TAU, None, "skip"), "dense", True, True),
    "gradient": (RAGGED, GraphFedAvg(0.1, 3), "padded", True, True),
    "gradient, two a server": (PAIRS, GraphFedAvg(0.1, 2, 2), "dense", None, True),
}


@functools.cache
def experiment(name):
    world, algorithm, form, absences, noisy = CASES[name]
    active = None if absences is None else table(len(world.server)) | (not absences)
    simulation = simulate(world, algorithm, form, active, budget() if noisy else None)
    return (
        world,
        simulation,
        jax.tree.map(np.asarray, follow(simulation)),
        injected_draws(simulation, world),
    )


def agree(ours, theirs):
    ours = np.asarray(ours)
    theirs = np.asarray(theirs)
    scale = np.abs(theirs).max()
    assert 1e-2 < scale < 1e3
    close(ours, theirs, rtol=0, atol=1e-10 * scale)


@pytest.mark.slow
@pytest.mark.thin(5, every=16)
@pytest.mark.core
@pytest.mark.parametrize("name", CASES)
def test_every_round_is_that_of_the_loops(name):
    world, simulation, (state, spent, record), draws = experiment(name)
    theirs = loop_result(simulation, world, draws)
    if isinstance(simulation.algorithm, GraphFedAvg):
        agree(state.server, theirs.server)
        agree(state.model, theirs.server[:, world.server])
    else:
        agree(state.model, theirs.model)
        agree(state.dual, theirs.dual)
        agree(state.server, theirs.mixed)
    # up and down: the model, of each participant; between servers: the models of all clusters
    part = draws.scheduled.sum(axis=1)
    dim = world.dim
    relayed = 0 if isinstance(simulation.algorithm, ClusterFL) else 2 * len(world.edges)
    wide = 1 if isinstance(simulation.algorithm, GraphFedAvg | GFL) else world.clusters
    same(counts(record["messages"]), 2 * part + relayed)
    same(counts(record["scalars"]), 2 * part * dim + relayed * wide * dim)
    same(counts(record["bits_up"]), WORD * part * dim)
    same(counts(record["bits_down"]), WORD * (part * dim + relayed * wide * dim))
    if simulation.privacy is not None:  # each client for the rounds in which it sent
        per_client = FIRST * DECAY ** -np.arange(ROUNDS)
        ledger = np.cumsum(draws.scheduled * per_client[:, None], axis=0)
        close(spent["rho"], ledger, rtol=1e-12)
        close(record["privacy_rho"][:, 0], ledger.max(axis=1), rtol=1e-12)


@pytest.mark.slow
def test_the_worlds_distinguish_the_rules():
    """What is injected would show each rule if it were another; cells are empty, once and ever."""
    world, _, _, draws = experiment("as published")
    cells = {(s, q) for s, q in zip(world.server, world.cluster, strict=True)}
    assert len(cells) < world.servers * world.clusters
    assert {0, len(world.server)} <= set(draws.scheduled.sum(axis=1))
    runs = []
    for rules in itertools.product(("keep", "skip"), ("received", "aggregate")):
        for world in (RAGGED, RAGGED._replace(edges=RAGGED.edges[:3])):
            for tau in (TAU, GeometricDecay(0.4)):
                simulation = simulate(world, PGFL(RHO, tau, None, *rules))
                runs.append(loop_result(simulation, world, draws).mixed)
        unmoved = simulate(RAGGED, GFL(RHO, 0.0, None, *rules))
        runs.append(np.tile(loop_result(unmoved, RAGGED, draws).mixed, (1, 1, world.clusters, 1)))
    for first, second in itertools.combinations(runs, 2):
        assert np.abs(first - second).max() > 1e-3


@pytest.mark.slow
def test_seeds_have_separate_clusters_and_graphs():
    world = RAGGED
    active = table(13)
    algorithm = PGFL(RHO, TAU, empty_cell="skip")
    base = RAGGED.problem()

    def run_of_seed(key):
        keys = jax.random.split(key)
        graph = fl.graphs.random_connected(keys[0], 4, 2)
        cluster = random_clusters(keys[1], 13, 3)
        problem = dataclasses.replace(base, tasks=Tasks(cluster, 3))
        simulation = fl.Simulation(problem, algorithm, Federation(world.server, graph))
        simulation = replace(simulation, participation=Trace(active))
        state = path(simulation, key, ROUNDS)[0]
        return state.server, cluster, graph.dense()

    ran = jax.jit(jax.vmap(run_of_seed), compiler_options=QUICK)(jax.random.split(new_key(), 5))
    cases = set()
    for server, cluster, adjacency in zip(*(np.asarray(part) for part in ran), strict=True):
        edges = tuple((int(a), int(b)) for a, b in np.argwhere(np.triu(adjacency)))
        cases.add((tuple(cluster.tolist()), edges))
        arguments = world.clients(), world.server, cluster, edges, ROUNDS, RHO, tau_of(algorithm)
        theirs = loops.pgfl(*arguments, 4, 3, scheduled=active, empty_cell="skip")
        agree(server, theirs.mixed)
    assert len({cluster for cluster, _ in cases}) == 5
    assert len({edges for _, edges in cases}) > 1


# Identities (section 2.4 of the extract) ---------------------------------------------------------

OF_CELLS = [name for name, case in CASES.items() if isinstance(case[1], PGFL)]
OF_DUALS = [name for name in OF_CELLS if CASES[name][1].dual_reference == "received"]


def gradients(world, models):
    """``[T, K, D]``: of every client's objective at its own model of every round."""
    clients = world.clients()
    return np.array([[c.gradient(w) for c, w in zip(clients, row, strict=True)] for row in models])


def before(server):
    return np.concatenate([np.zeros_like(server[:1]), server[:-1]])


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("name", [name for name in OF_CELLS if name != "GFL"])
def test_an_aggregate_is_a_gradient_step_of_the_models_that_follow(name):
    """(I1) in every cell with a participant: ``w - mean f_k'(w_k) / rho + mean noise``, no dual.

    From it alone follow the servers' models, by (9) and (10).
    """
    world, simulation, (state, _, _), draws = experiment(name)
    algorithm = simulation.algorithm
    gradient = gradients(world, state.model)
    near = np.eye(world.servers)
    for a, b in () if isinstance(algorithm, ClusterFL) else world.edges:
        near[a, b] = near[b, a] = 1
    start = before(state.server)
    for n in range(ROUNDS):
        aggregate = start[n].copy()
        steps = np.zeros((world.servers, world.clusters))
        for s, q in np.ndindex(steps.shape):
            inside = world.cell(s, q) & draws.scheduled[n]
            if inside.any():
                steps[s, q] = 1
                step = draws.noise[n, inside] - gradient[n, inside] / RHO
                aggregate[s, q] += step.mean(axis=0)
        if algorithm.empty_cell == "keep":
            steps = np.ones_like(steps)
        total = np.einsum("sp,pq,pqd->sqd", near, steps, aggregate)
        number = (near @ steps)[..., None]
        mean = np.where(number > 0, total / np.maximum(number, 1), start[n])
        tau = tau_of(algorithm)(n + 1)
        sum_of_others = mean.sum(axis=1, keepdims=True) - mean
        after = (1 - tau) * mean + tau / (world.clusters - 1) * sum_of_others
        close(state.server[n], after, rtol=0, atol=1e-11)


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", OF_DUALS)
def test_a_dual_is_the_last_step_and_the_gradient(name):
    """(I2): ``rho (w(n) - w(n-1)) + f_k'(w_k) - rho noise`` of every participant."""
    world, simulation, (state, _, _), draws = experiment(name)
    cluster = (0,) * 13 if isinstance(simulation.algorithm, GFL) else world.cluster
    moved = (state.server - before(state.server))[:, world.server, cluster]
    dual = RHO * moved + gradients(world, state.model) - RHO * draws.noise
    close(state.dual[draws.scheduled], dual[draws.scheduled], rtol=0, atol=1e-11)
    assert draws.scheduled.sum() > 30


@pytest.mark.parametrize("name", ["all there", "logistic, more samples"])
@pytest.mark.slow
def test_a_model_carries_its_own_last_noise(name):
    """(I3), where everyone takes part."""
    world, _, (state, _, _), draws = experiment(name)
    gradient = gradients(world, state.model)
    center = (2 * state.server - before(state.server))[:, world.server, world.cluster]
    follows = center[:-1] + (gradient[:-1] - gradient[1:]) / RHO - draws.noise[:-1]
    close(state.model[1:], follows, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_duals_average_to_zero_in_a_cell_under_the_literal_reading():
    world, simulation, _, _ = experiment("skip, aggregate")
    state, _, _ = follow(replace(simulation, participation=Trace(np.ones((ROUNDS, 13), bool))))
    for s, q in set(zip(world.server, world.cluster, strict=True)):
        mean = np.asarray(state.dual)[:, world.cell(s, q)].mean(axis=1)
        close(mean, np.zeros_like(mean), atol=1e-13)


# Limits ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_cluster_no_clusters_and_graph_federated_learning_agree():
    """Noise and scheduling included; the inter-cluster parameter has nothing to act on."""
    world, _, (state, _, _), _ = experiment("GFL")
    for tasks in (None, Tasks((0,) * 13, 1)):
        problem = dataclasses.replace(world.problem(), tasks=tasks)
        simulation = fl.Simulation(problem, PGFL(RHO, 0.7, 2), world.network(), budget())
        other = follow(simulation)[0]
        for first, second in zip(state[:3], other[:3], strict=True):
            close(first, second, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_one_server_is_consensus_admm_and_finds_the_minimizer():
    """Boyd et al. 2011, section 7.1, with ``y = -varphi``; ``argmin sum_k f_k`` in the limit."""
    world = FULL._replace(server=(0,) * 12, cluster=(0,) * 12, edges=())
    clients = world.clients()
    rounds = 250
    simulation = fl.Simulation(world.problem(), PGFL(RHO), world.network())
    state, _, _ = follow(simulation, rounds)
    price = np.zeros((12, 3))
    center = np.zeros(3)
    for n in range(25):
        local = [
            loops.minimize(c, RHO * center - y, RHO) for c, y in zip(clients, price, strict=True)
        ]
        center = np.mean(local + price / RHO, axis=0)
        price = price + RHO * (np.array(local) - center)
        close(state.server[n, 0, 0], center, rtol=0, atol=1e-12)
        close(state.dual[n], -price, rtol=0, atol=1e-12)
    best = loops.central(clients)
    close(state.server[-1, 0, 0], best, atol=1e-10)
    close(state.model[-1], np.tile(best, (12, 1)), atol=1e-9)
    close(optimum(simulation.problem), best, atol=1e-10)


@pytest.mark.parametrize("name", ["as published", "skip, aggregate"])
def test_without_inter_cluster_learning_clusters_are_independent(name):
    """Bit by bit, noise and scheduling included; with it they do."""
    world, simulation, _, _ = experiment(name)
    other = np.array(world.cluster) != 0
    targets = np.where(other[:, None], simulation.problem.targets, 3 * simulation.problem.targets)
    moved = dataclasses.replace(simulation.problem, targets=targets)
    for tau, independent in ((0.0, True), (0.4, False)):
        changed = replace(
            simulation, algorithm=replace(simulation.algorithm, inter_cluster=GeometricDecay(tau))
        )
        first, second = (
            follow(replace(changed, problem=p))[0] for p in (simulation.problem, moved)
        )
        assert np.abs(first.server[-1, :, 0] - second.server[-1, :, 0]).max() > 1e-2
        for a, b in (
            (first.server[:, :, 1:], second.server[:, :, 1:]),
            (first.model[:, other], second.model[:, other]),
            (first.dual[:, other], second.dual[:, other]),
        ):
            assert np.array_equal(a, b) is independent


@pytest.mark.slow
def test_clustered_learning_is_that_of_servers_without_a_graph_and_of_each_alone():
    """Noise apart, whose rows differ: the same models to the last bits."""
    cluster = (0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1)
    world = FULL._replace(server=tuple(range(3)) * 4, cluster=cluster)
    problem = world.problem()
    together = follow(fl.Simulation(problem, ClusterFL(RHO, TAU), world.network()))[0]
    without_graph = follow(fl.Simulation(problem, PGFL(RHO, TAU), Federation(world.server)))[0]
    same(together.server, without_graph.server)
    same(together.model, without_graph.model)
    for s in range(3):
        members = jnp.asarray(np.flatnonzero(np.array(world.server) == s), jnp.int32)
        alone = dataclasses.replace(
            problem.take(members), tasks=Tasks(np.array(world.cluster)[members], 2)
        )
        state = follow(fl.Simulation(alone, PGFL(RHO, TAU), Federation((0,) * len(members))))[0]
        close(state.server[:, 0], together.server[:, s], rtol=0, atol=1e-13)
        close(state.model, together.model[:, members], rtol=0, atol=1e-13)


@pytest.mark.slow
def test_on_a_graph_it_converges_linearly_to_its_own_fixed_point():
    """``w = mean over the neighborhood of (w - g / rho)``, near the optimum but not on it."""
    rounds = 400
    world = FULL
    simulation = fl.Simulation(FULL.problem(), PGFL(3.0), FULL.network())
    state = follow(simulation, rounds)[0]
    end = np.asarray(state.server[-1])
    gradient = np.zeros((3, 2, 3))
    near = (np.eye(3) + np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])) / [[2], [3], [2]]
    for s, q in np.ndindex(3, 2):
        gradient[s, q] = np.mean([c.gradient(end[s, q]) for c in world.members(s, q)], axis=0)
    close(end, np.einsum("sp,pqd->sqd", near, end - gradient / 3.0), atol=1e-9)
    assert np.abs(end[0] - end[2]).max() > 1e-3  # servers do not agree
    gap = [np.abs(np.asarray(state.server[n]) - end).max() for n in (20, 60, 100)]
    assert gap[1] < 0.2 * gap[0]
    assert gap[2] < 0.2 * gap[1]


# The single step and the gradient form ------------------------------------------------------------


@pytest.mark.slow
def test_the_single_step_is_that_of_the_loops_and_finds_its_minimizer():
    """Every cell has the same weight for any size: the limit is not ``argmin sum_k f_k``."""
    world = FULL
    rounds = 500
    simulation = fl.Simulation(world.problem(), PGFLSingleStep(1.0, TAU), world.network("padded"))
    state, _, record = follow(simulation, rounds)
    same(counts(record["scalars"]), np.full(rounds, 2 * 12 * 3 + 2 * 2 * 2 * 3))
    near_the_loops(state, world, "corrected")
    for q in range(2):
        cells = [world.members(s, q) for s in range(3)]
        best = loops.newton(
            lambda w: sum(np.mean([c.value(w) for c in cell]) for cell in cells),  # noqa: B023
            lambda w: sum(np.mean([c.gradient(w) for c in cell], axis=0) for cell in cells),  # noqa: B023
            lambda w: sum(np.mean([c.hessian(w) for c in cell], axis=0) for cell in cells),  # noqa: B023
            3,
        )
        inside = np.array(world.cluster) == q
        close(state.model[-1, inside], np.tile(best, (inside.sum(), 1)), atol=1e-8)
        assert np.abs(best - loops.central([c for cell in cells for c in cell])).max() > 1e-2


def near_the_loops(state, world, signs):
    arguments = (
        world.clients(),
        world.server,
        world.cluster,
        world.edges,
        ROUNDS,
        1.0,
        lambda n: 0.4 * 0.9**n,
    )
    theirs = loops.pgfl_single_step(*arguments, 3, 2, signs=signs)
    for name in ("model", "dual", "server", "server_dual"):
        agree(getattr(state, name)[:ROUNDS], getattr(theirs, name))


@pytest.mark.slow
def test_the_signs_of_the_single_step_as_printed_diverge():
    world = FULL._replace(loss="logistic")
    algorithm = PGFLSingleStep(1.0, TAU, "printed", inner_iterations=100)
    state = follow(fl.Simulation(world.problem(), algorithm, world.network()), 60)[0]
    near_the_loops(state, world, "printed")
    size = np.abs(np.asarray(state.server)).max(axis=(1, 2, 3))
    assert size[19] > 10 * size[9]
    assert size[59] > 1e4 * size[19]


@pytest.mark.slow
def test_a_single_step_without_clusters_or_a_client_ignores_them():
    """One cluster: the inter-cluster parameter has no effect. A client that is never active keeps
    its state, and the others run as without it.
    """
    problem = FULL.problem()
    rest = np.delete(np.arange(12, dtype=np.int32), 3)
    problem = dataclasses.replace(problem, tasks=None)
    active = np.ones((ROUNDS, 12), bool)
    active[:, 3] = False
    with_it = fl.Simulation(
        problem, PGFLSingleStep(1.0), FULL.network(), participation=Trace(active)
    )
    first, second = (
        follow(replace(with_it, algorithm=PGFLSingleStep(1.0, tau)))[0] for tau in (0.0, 0.8)
    )
    same(first.server, second.server)
    server = tuple(np.array(FULL.server)[rest].tolist())
    part = problem.take(jnp.asarray(rest))
    network = Federation(server, FULL.network().graph)
    without = follow(fl.Simulation(part, PGFLSingleStep(1.0), network))[0]
    close(first.server, without.server, rtol=0, atol=1e-12)
    close(first.model[:, rest], without.model, rtol=0, atol=1e-12)
    same(first.model[:, 3], np.zeros((ROUNDS, 3)))
    same(first.dual[:, 3], np.zeros((ROUNDS, 3)))


def test_on_a_complete_graph_gradient_steps_are_gradient_descent():
    """Equal servers that all talk to each other, one local step: conventional learning."""
    network = balanced(3, fl.graphs.complete(4))
    clients = FULL.clients()
    simulation = fl.Simulation(FULL.problem(), GraphFedAvg(PowerDecay(0.1, 0.3)), network)
    server = np.asarray(follow(simulation)[0].server)
    w = np.zeros(3)
    for n in range(ROUNDS):
        w = w - 0.1 * (n + 1) ** -0.3 * np.mean([c.gradient(w) for c in clients], axis=0)
        close(server[n], np.tile(w, (4, 1)), rtol=0, atol=1e-12)


# Scheduling --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_server_draws_its_own_clients_uniformly():
    """Chi-square tests over 6000 draws, each at the level 1e-4: subsets of a server are equally
    likely, and draws of two servers or of two rounds are independent.
    """
    sizes = (5, 3, 4)
    draws = 6000
    server = np.random.default_rng(0).permutation(np.repeat(np.arange(3), sizes))
    network = Federation(server, fl.graphs.path(3))
    rounds = jnp.arange(1, draws + 1, dtype=jnp.int32)
    keys = jax.vmap(lambda n: key_of(jax.random.fold_in(new_key(), n), "participation"))(rounds)
    everyone = jnp.ones(12, bool)
    draw = jax.vmap(lambda key: PerServer(2).choose(key, everyone, network)[:2])
    clients, active = (np.asarray(part).reshape(draws, 3, 2) for part in draw(keys))
    assert active.all()
    which = np.zeros((3, draws), int)
    for s, size in enumerate(sizes):
        members = np.flatnonzero(server == s)
        assert np.isin(clients[:, s], members).all()
        assert (clients[:, s, 0] != clients[:, s, 1]).all()
        positions = np.sort(np.searchsorted(members, clients[:, s]), axis=1)
        which[s] = [list(itertools.combinations(range(size), 2)).index(tuple(p)) for p in positions]
        assert (
            stats.chisquare(np.bincount(which[s], minlength=size * (size - 1) // 2)).pvalue > 1e-4
        )

    def independent(first, second):
        joint = np.zeros((first.max() + 1, second.max() + 1))
        np.add.at(joint, (first, second), 1)
        return stats.chi2_contingency(joint).pvalue > 1e-4

    assert all(independent(which[a], which[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert all(independent(row[:-1], row[1:]) for row in which)


@pytest.mark.slow
def test_servers_draw_among_the_clients_that_are_there():
    """Uniformly (a chi-square test at the level 1e-4), all of them where they are fewer."""
    network = Federation((0, 0, 0, 0, 1, 1, 2, 2, 2), fl.graphs.path(3))
    available = jnp.asarray([1, 0, 1, 1, 0, 0, 0, 1, 0], bool)
    draw = jax.vmap(lambda key: PerServer(2).choose(key, available, network)[:2])
    clients, active = (np.asarray(part) for part in draw(jax.random.split(new_key(), 3000)))
    taken = np.zeros((3000, 9), int)
    np.add.at(taken, (np.arange(3000)[:, None], clients), active)
    same(taken[:, :4].sum(axis=1), np.full(3000, 2))
    same(taken[:, [1, 4, 5, 6, 7, 8]], np.tile([0, 0, 0, 0, 1, 0], (3000, 1)))
    pairs = np.bincount(taken[:, [0, 2, 3]] @ [0, 1, 2])
    assert stats.chisquare(pairs[1:]).pvalue > 1e-4
    everyone = PGFL(1.0).selection.choose(new_key(), available, network)
    assert everyone.clients is None
    same(everyone.here, available)


# What is sent ------------------------------------------------------------------------------------


class Recorder(Link):
    """A link that records its arguments and the received messages."""

    def __init__(self, link, saying):
        vars(self).update(vars(link))
        self.saying = saying
        self.seen = None

    def send(self, message, reference=None, clients=None, sending=None, **more):
        received = super().send(message, reference, clients, sending, **more)
        if self.saying is not None:  # words put into the clients' mouths
            received = self.saying
        self.seen = message, received, clients, sending
        return received


@functools.partial(jax.jit, static_argnums=4, compiler_options=QUICK)
def one_round(simulation, state, round, key, rounds, saying=None):
    ready = prepare(simulation, rounds)
    now, *_ = make_round(simulation, ready, key, begin(simulation, ready, key), round, rounds)
    now.link = Recorder(now.link, saying)
    return simulation.algorithm.step(state, now), now.link.seen


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("schedule", ["privacy", "variance"])
def test_noise_is_on_clients_messages_with_the_stated_deviation(schedule):
    """``Delta / sqrt(2 phi)`` with ``phi(n) = 0.001 * 0.99^-(n-1)``, times the round's own draw."""
    privacy = ZCDP.from_initial(0.001, 0.99, 300, gradient_bound=0.05, schedule=schedule)
    simulation = fl.Simulation(PAIRS.problem(), PGFL(RHO, TAU, 2), PAIRS.network(), privacy)
    clients = PAIRS.clients()
    state = simulation.algorithm.init(simulation.problem.prepare(), simulation.network)
    for n in (1, 2, 57, 300):
        state, recorded = one_round(simulation, state, jnp.asarray(n, jnp.int32), new_key(), 300)
        message, received, senders, sending = (np.asarray(part) for part in recorded)
        key = key_of(jax.random.fold_in(new_key(), n), "privacy")
        unit = private_normal(key, message.shape, float)
        phi = 0.001 * 0.99 ** -(n - 1.0)
        for row, (k, on) in enumerate(zip(senders, sending, strict=True)):
            gap = 2 * 0.05 / (len(clients[k].y) * (RHO + 2 * clients[k].ridge))
            noise = gap / np.sqrt(2 * phi) * unit[row]
            close(received[row] - message[row], noise, rtol=1e-9, atol=1e-12)
            if on:
                same(state.model[k], message[row])  # the stored model is exact


@pytest.mark.slow
def test_under_one_seed_all_algorithms_meet_the_same_participants():
    """They equal those of the loops: two of each server, others in each round."""
    names = ("two a server", "GFL", "gradient, two a server")
    first, *rest = (experiment(name)[3].scheduled for name in names)
    for other in rest:
        same(other, first)
    for s in range(4):
        same(first[:, np.array(PAIRS.server) == s].sum(axis=1), np.full(ROUNDS, 2))
    assert len(np.unique(first, axis=0)) > ROUNDS // 2


#: Inputs of length one at most: per-sample gradients of the logistic loss are, too.
@functools.cache
def bounded():
    problem = LOGIT.problem()
    length = np.linalg.norm(problem.features, axis=2, keepdims=True)
    features = problem.features / np.maximum(length, 1)
    return dataclasses.replace(problem, features=features, feature_bound=1.0)


@pytest.mark.parametrize("name", ["as published", "skip, aggregate"])
def test_the_dual_is_a_function_of_messages(name):
    """Recomputed from the messages and the servers' models alone, so it need not be sent."""
    world, simulation, (state, _, _), draws = experiment(name)
    dual = np.zeros((13, 6))
    for n, on in enumerate(draws.scheduled):
        received = np.where(on[:, None], state.model[n] + draws.noise[n], np.nan)
        target = state.server[n][world.server, world.cluster]
        if simulation.algorithm.dual_reference == "aggregate":
            without_dual = received - dual / RHO
            pairs = list(zip(world.server, world.cluster, strict=True))
            cells = [on & world.cell(*pair) if on[k] else on for k, pair in enumerate(pairs)]
            target = np.array(
                [without_dual[c].mean(axis=0) if c.any() else without_dual[0] for c in cells]
            )
        dual = np.where(on[:, None], dual + RHO * (target - received), dual)
        close(state.dual[n], dual, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_messages_fit_other_data_with_other_noise():
    """One sample of one client is replaced, and every message stays the same, for arbitrary
    messages. Then everything computed from messages is equal too, duals and servers included, while
    the exact models differ, within the sensitivity. So messages cannot reveal the sample.
    """
    algorithm = PGFL(RHO, TAU, inner_iterations=60)
    problem = bounded()
    network = LOGIT.network()
    k = 7
    features = problem.features.copy()
    features[k, 0] = -features[k, 0]
    gap = float(algorithm.sensitivity(problem, network, jnp.asarray(1), gap_of(problem))[k])
    world, other_world = (
        fl.Simulation(p, algorithm, network) for p in (problem, replace(problem, features=features))
    )
    state = other_state = algorithm.init(problem.prepare(), network)
    rng = np.random.default_rng(9)
    for n in range(1, ROUNDS + 1):
        messages = jnp.asarray(rng.normal(size=(13, 6)))
        arguments = jnp.asarray(n, jnp.int32), new_key(), ROUNDS, messages
        (state, _), (other_state, _) = (
            one_round(world, state, *arguments),
            one_round(other_world, other_state, *arguments),
        )
        same(state.server, other_state.server)
        same(state.dual, other_state.dual)
        distance = np.linalg.norm(state.model - other_state.model, axis=1)
        assert 1e-3 < distance[k] < gap
        same(np.delete(distance, k), np.zeros(12))


def test_a_dual_of_the_exact_model_reveals_it():
    """With ``w_k`` for ``w_k + noise`` in (5) the dual has to be sent, and ``w(n) - (varphi(n) -
    varphi(n-1)) / rho`` is ``w_k`` to the last bits; with the library's dual it is the received
    message.
    """
    world, simulation, (state, _, _), draws = experiment("all there")
    theirs = loop_result(simulation, world, draws)

    def attack(server, dual):
        moved = np.diff(dual, axis=0, prepend=np.zeros_like(dual[:1]))
        return server[:, world.server, world.cluster] - moved / RHO

    close(attack(state.server, state.dual), theirs.upload, rtol=0, atol=1e-11)
    assert np.abs(theirs.upload - theirs.model).min(axis=2).max() > 1e-2

    clients = world.clients()
    near = np.eye(4)
    for a, b in world.edges:
        near[a, b] = near[b, a] = 1
    dual = np.zeros((13, 6))
    server = np.zeros((4, 3, 6))
    for n in range(ROUNDS):
        pairs = zip(clients, dual, world.server, world.cluster, strict=True)
        model = np.array([loops.primal(c, v, server[s, q], RHO) for c, v, s, q in pairs])
        messages = model + draws.noise[n] - dual / RHO
        for s, q in set(zip(world.server, world.cluster, strict=True)):
            server[s, q] = messages[world.cell(s, q)].mean(axis=0)
        server = np.einsum("sp,pqd->sqd", near, server) / near.sum(axis=1)[:, None, None]
        broken = dual + RHO * (server[world.server, world.cluster] - model)
        result = server[world.server, world.cluster] - (broken - dual) / RHO
        close(result, model, rtol=0, atol=1e-12)
        dual = broken


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PGFL(RHO, TAU, inner_iterations=60), GraphFedAvg(0.1, 3)])
@pytest.mark.thin(1)
def test_a_replaced_sample_moves_a_message_within_its_sensitivity(algorithm):
    """(5.31) of PGFL, for inputs in the unit ball: the worst of many replacements, of data and of
    the state they meet, comes near the bound and stays below it. The regularizer sharpens it.
    """
    problem = bounded()
    network = LOGIT.network()
    gap = np.asarray(algorithm.sensitivity(problem, network, jnp.asarray(1), gap_of(problem)))
    if isinstance(algorithm, PGFL):
        sizes = np.array([len(c.y) for c in LOGIT.clients()])
        close(gap, 2 / (sizes * (RHO + 2 * np.array(LOGIT.ridges()))), rtol=1e-12)
        plain = algorithm.sensitivity(
            replace(problem, strength=jnp.zeros(13)), network, jnp.asarray(1), gap_of(problem)
        )
        close(plain, [loops.sensitivity(1.0, RHO, d) for d in sizes], rtol=1e-12)
    rng = np.random.default_rng(4)
    worst = np.zeros(13)
    start = algorithm.init(problem.prepare(), network)
    for _ in range(30):
        direction = rng.normal(size=(13, 6))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        features = problem.features.copy()
        targets = problem.targets.copy()
        features[:, 0] = direction
        targets[:, 0] = 1.0
        pulled = rng.normal(size=start.server.shape) * rng.choice([0.1, 3])
        state = start._replace(server=jnp.asarray(pulled))
        messages = []
        for sign in (1.0, -1.0):
            features = features.copy()
            features[:, 0] = sign * direction
            simulation = fl.Simulation(
                replace(problem, features=features, targets=targets), algorithm, network
            )
            arguments = jnp.asarray(1, jnp.int32), new_key(), ROUNDS, jnp.zeros((13, 6))
            messages.append(one_round(simulation, state, *arguments)[1][0])
        worst = np.maximum(worst, np.linalg.norm(messages[0] - messages[1], axis=1) / gap)
    assert (worst <= 1 + 1e-9).all()
    assert worst.max() > 0.4


@pytest.mark.slow
def test_the_bound_holds_for_normalized_inputs_and_not_for_least_squares():
    simulation = fl.Simulation(bounded(), PGFL(RHO), LOGIT.network(), ZCDP(1.0))
    assert float(bounded().gradient_bound()) <= 1 + 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error", fl.AssumptionWarning)
        run = fl.run(simulation, rounds=ROUNDS)
    assert 0 < float(run.gradient_norm) <= 1 + 1e-12
    with pytest.warns(fl.AssumptionWarning, match="nominal, not a guarantee"):
        fl.run(private(PAIRS.problem()), rounds=ROUNDS)


def private(problem, algorithm=PGFL(RHO, 0.4), network=None, privacy=None):  # noqa: B008
    """A run whose program two tests share."""
    network = PAIRS.network() if network is None else network
    return fl.Simulation(problem, algorithm, network, privacy or budget())


@pytest.mark.slow
def test_drawing_three_of_fifteen_sends_a_fifth():
    rng = np.random.default_rng(0)
    problem = Problem(rng.normal(size=(30, 2, 3)), rng.normal(size=(30, 2)), LeastSquares())
    simulation = fl.Simulation(
        problem, PGFL(1.0, clients_per_server=3), balanced(15, fl.graphs.path(2))
    )
    record = follow(simulation, 4)[2]
    same(counts(record["bits_up"]) * 5, np.full(4, 30 * 3 * WORD))
    relayed = 2 * 3 * WORD
    same((counts(record["bits_down"]) - relayed) * 5, np.full(4, 30 * 3 * WORD))


# The link ----------------------------------------------------------------------------------------


def open_link(notion=None, compression=None, network=None, sensitivity=None):
    """A link of six clients in the second of five rounds."""
    plan = None if notion is None else notion.plan(lambda _: jnp.ones(6), 5)
    arguments = new_key(), 2, 5, 6, network, Stages(notion, compression=compression)
    return Link(*arguments, plan=plan, sensitivity=lambda: sensitivity)


ROW_CLIENTS = jnp.asarray([4, 0, 2, 0], jnp.int32)  # client 0 also as padding, which sends nothing
ROW_SENDS = jnp.asarray([True, True, False, False])


@pytest.mark.parametrize("notion", [ZCDP(2.0), ApproximateDP(2.0, 1e-3), PureDP(3.0)])
def test_only_senders_spend_and_are_counted(notion):
    gap = jnp.arange(1.0, 7.0)
    message = jnp.ones((4, 3))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def talk(gap, message):
        partial, full = (open_link(notion, sensitivity=gap) for _ in range(2))
        received = partial.send(message, clients=ROW_CLIENTS, sending=ROW_SENDS)
        full.send(jnp.ones((6, 3)))
        release = notion.release(partial._plan, gap, jnp.asarray(2), 5, 3)
        key = key_of(new_key(), "privacy")
        draws = notion.draw(key, (4, 3), message.dtype, jnp.asarray(2), ROW_CLIENTS)
        unit = release.scale if release.grid is None else release.grid
        noise = unit[ROW_CLIENTS][:, None] * draws.astype(message.dtype)
        sent = ROW_SENDS[:, None]  # of the others zeros come back
        return (
            jnp.where(sent, received - message, received),
            jnp.where(sent, noise, 0),
            partial.spent,
            full.spent,
            partial.traffic,
        )

    heard, noise, spent, everyone, traffic = talk(gap, message)
    accuracy = 1e-5 if isinstance(notion, PureDP) else 1e-9  # messages are rounded to a grid
    close(heard, noise, rtol=accuracy, atol=accuracy)
    same([int(low) for _, low in traffic], [2, 6, 6 * WORD, 0])
    for name in type(notion).ledger:
        same(spent[name], np.where(np.isin(np.arange(6), [0, 4]), everyone[name], 0))
        assert (np.asarray(everyone[name]) > 0).all()


def test_a_client_compresses_its_message_equally_in_full_and_partial_rounds():
    message = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8)))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def send(message):
        full, partial = (open_link(compression=RandomK(3)) for _ in range(2))
        received = partial.send(message[ROW_CLIENTS], clients=ROW_CLIENTS, sending=ROW_SENDS)
        return full.send(message), received, partial.traffic.bits_up

    whole, heard, bits = send(message)
    same(heard, whole[ROW_CLIENTS])
    assert len({tuple(row) for row in np.asarray(whole != 0).tolist()}) > 2
    assert int(bits[1]) == 2 * RandomK(3).bits(8)


def test_only_traffic_between_servers_is_counted():
    link = open_link(network=Federation((0, 1, 2, 3, 0, 0), fl.graphs.star(4)))
    link.relay(10)
    same([int(low) for _, low in link.traffic], [6, 60, 0, 60 * WORD])
    lonely = open_link(network=Federation((0, 0, 1, 1, 0, 0)))
    lonely.relay(10)
    same([int(low) for _, low in lonely.traffic], [0, 0, 0, 0])


# Federations, tasks, shares ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_sums_over_neighbors_and_cells_equal_the_loops(form):
    network = RAGGED.network(form)
    rng = np.random.default_rng(0)
    assert (network.nodes, network.servers) == (13, 4)
    same(network.sizes, [5, 3, 1, 4])
    same(network.neighbor_counts(), np.ones(13))
    near = nfl.neighbors(4, RAGGED.edges)
    same(network.degree, [len(n) for n in near])
    x = rng.normal(size=(4, 3, 2))
    present = rng.integers(0, 2, size=(4, 3, 1)).astype(float)
    mean = np.zeros_like(x)
    cell_means = np.zeros_like(x)
    for s, q in np.ndindex(4, 3):
        group = [s, *near[s]]
        mean[s, q] = np.mean([x[p, q] for p in group], axis=0)
        members = [x[p, q] for p in group if present[p, q, 0]]
        cell_means[s, q] = np.mean(members, axis=0) if members else 0
    means = jax.jit(
        lambda *arrays: (network.neighborhood_mean(arrays[0]), network.neighborhood_mean(*arrays))
    )
    close(means(x, present), (mean, cell_means), atol=1e-15)
    active = jnp.asarray(rng.uniform(size=13) < 0.5)
    values = rng.normal(size=(13, 2))
    cluster = np.array(RAGGED.cluster)
    participants = Everyone().choose(new_key(), active, network)
    link = Link(new_key(), 1, 1, 13, network)
    arguments = (
        jnp.asarray(values),
        jnp.asarray(cluster, jnp.int32),
        3,
        participants,
        jnp.ones((4, 3, 2)),
    )
    ours = link.cell_means(*arguments)
    for s, q in np.ndindex(4, 3):
        cell = [k for k in range(13) if active[k] and (RAGGED.server[k], cluster[k]) == (s, q)]
        close(ours[0][s, q], np.mean(values[cell], axis=0) if cell else np.zeros(2), atol=1e-15)
        assert float(ours[1][s, q, 0]) == bool(cell)


def test_servers_without_a_graph_are_connected_if_there_is_one():
    assert bool(Federation((0, 0)).connected())
    assert not bool(Federation((0, 1)).connected())
    assert bool(RAGGED.network().connected())
    same(Federation((0, 1)).neighbor_sum(jnp.ones((2, 3))), np.zeros((2, 3)))
    disconnected = fl.Simulation(FULL.problem(), PGFL(1.0), Federation(FULL.server))
    with pytest.warns(fl.AssumptionWarning, match="disconnected"):
        fl.run(disconnected, rounds=1)


def test_clusters_are_drawn_of_equal_size_up_to_one(key):
    drawn = np.asarray(jax.vmap(lambda k: random_clusters(k, 7, 3))(jax.random.split(key, 300)))
    for row in drawn:
        assert sorted(np.bincount(row, minlength=3)) == [2, 2, 3]
    share = (drawn == 0).mean(axis=0)  # 3/7 each, within five standard deviations
    assert np.abs(share - 3 / 7).max() < 5 * np.sqrt(12 / 49 / 300)


def test_metrics_of_tasks_equal_the_loops():
    """Held-out data of different sizes; an accuracy is of the client's own cluster."""
    world = LOGIT
    rng = np.random.default_rng(1)
    test_data = []
    for q, size in enumerate((4, 7, 5)):
        X = rng.normal(size=(size, 6))
        test_data.append((X, np.where(X @ world.truth[q] + rng.normal(size=size) > 0, 1.0, -1.0)))
    names = ("network_deviation", "deviation_by_norm", "accuracy")
    problem = world.problem(truth=world.truth, test=from_clients(test_data, Logistic()))
    simulation = fl.Simulation(problem, PGFL(RHO, 0.2), world.network(), metrics=names)
    run = fl.run(simulation, rounds=4).isel(round=-1)
    deviation = []
    by_norm = []
    right = []
    for w, q in zip(run.model.values, world.cluster, strict=True):
        distance = ((w - world.truth[q]) ** 2).sum()
        size = (world.truth[q] ** 2).sum()
        deviation.append(distance / size)
        by_norm.append(distance / np.sqrt(size))
        X, y = test_data[q]
        right.append(np.mean([(x @ w >= 0) == (label > 0) for x, label in zip(X, y, strict=True)]))
    for name, row in zip(names, (deviation, by_norm, right), strict=True):
        close(run[name], np.mean(row), rtol=1e-12)
    assert 0 < np.mean(right) < 1


@pytest.mark.slow
def test_a_regularizer_is_shared_out_as_requested():
    """Objective, gradient and pooled optimum with each client's own strength, against loops."""
    close(group_share(0.3, RAGGED.server, 4), RAGGED.ridges(), rtol=1e-15)
    close(group_share(0.6, (1, 0, 1), 2), [0.3, 0.6, 0.3], rtol=1e-15)
    for world in (RAGGED, LOGIT):
        strengths = np.linspace(0, 0.5, 13)
        problem = dataclasses.replace(world.problem(), strength=strengths)
        clients = [
            dataclasses.replace(c, ridge=r) for c, r in zip(world.clients(), strengths, strict=True)
        ]
        w = np.random.default_rng(2).normal(size=(13, 6))
        value = [c.value(row) for c, row in zip(clients, w, strict=True)]
        gradient = [c.gradient(row) for c, row in zip(clients, w, strict=True)]
        ours = jax.jit(measure, compiler_options=QUICK)(problem, w)
        close(ours["value"], [value, value], rtol=1e-12)
        close(ours["gradient"], [gradient, gradient], rtol=1e-11, atol=1e-13)
        pairs = [(c.value(w[0]), c.gradient(w[0])) for c in clients]
        close(ours["pooled"], np.mean([v for v, _ in pairs]), rtol=1e-12)
        close(ours["mean gradient"], np.mean([g for _, g in pairs], axis=0), rtol=1e-10)
        close(ours["optimum"], loops.central(clients), rtol=0, atol=1e-9)
        close(ours["taken"], [value[5], value[2]], rtol=1e-12)
        scalar, vector = (dataclasses.replace(problem, strength=x) for x in (2.6, np.full(13, 0.2)))
        close(scalar.objective(jnp.asarray(w)), vector.objective(jnp.asarray(w)), rtol=1e-14)


def measure(problem, w):
    forms = (problem, problem.prepare())
    few = jnp.asarray([5, 2], jnp.int32)
    return {
        "value": jnp.stack([form.objective(w) for form in forms]),
        "gradient": jnp.stack([form.gradient(w) for form in forms]),
        "pooled": problem.pooled().objective(w[:1])[0],
        "mean gradient": problem.mean_gradient(w[0]),
        "optimum": optimum(problem),
        "taken": problem.take(few).objective(w[few]),
    }


@pytest.mark.parametrize("form", [list, lambda strengths: np.asarray(strengths, np.int32)])
def test_strengths_may_be_a_list_or_integers(form):
    """Like weights, targets and features."""
    problem = four(strength=form([1, 2, 3, 4]))
    clients = jnp.asarray([1, 0], jnp.int32)
    taken = jax.jit(lambda p: p.take(clients))(problem)
    w = jnp.ones((2, 2))
    theirs = four(strength=np.array([1.0, 2.0, 3.0, 4.0])).take(clients)
    close(factorize(taken, jnp.ones(2)).inverse, factorize(theirs, jnp.ones(2)).inverse)
    close(taken.objective(w), theirs.objective(w))


# The prox among few samples ----------------------------------------------------------------------


def stacked(world, hardness=1.0):
    """A problem of few padded samples, and minimizers of its prox by Newton's method."""
    problem = dataclasses.replace(world.problem(), features=hardness * world.problem().features)
    rng = np.random.default_rng(5)
    weight = rng.uniform(0.05, 3, 13)
    center = rng.normal(size=(13, 6))
    best = []
    for client, c, v in zip(world.clients(), weight, center, strict=True):
        best.append(loops.minimize(dataclasses.replace(client, X=hardness * client.X), c * v, c))
    return problem, jnp.asarray(weight), jnp.asarray(center), np.array(best)


@pytest.mark.slow
def test_the_prox_is_that_of_a_dense_newton_method_and_its_error_falls():
    problem, weight, center, best = stacked(LOGIT)
    assert problem.samples < problem.dim
    assert (np.asarray(problem.weights) == 0).any()
    factor = factorize(problem, weight)
    assert factor.gram.shape == factor.inverse.shape == (13, 5, 5)  # never [D, D]
    error = [
        np.abs(prox(problem, factor, center, 0 * center, i) - best).max()
        for i in (1, 2, 4, 8, 16, 80)
    ]
    assert all(after < 0.7 * now for now, after in itertools.pairwise(error))
    assert error[-1] < 1e-13
    close(prox(problem, factor, center, jnp.asarray(best), 1), best, rtol=0, atol=1e-13)  # rests


@pytest.mark.slow
def test_the_prox_never_overshoots_where_the_loss_is_steep():
    """The curvature at its bound is far too large here; the objective falls all the same, from its
    value at the start on.
    """
    problem, weight, center, best = stacked(LOGIT, hardness=10.0)
    factor = factorize(problem, weight)
    start = center + 0.1

    def value(w):
        return problem.objective(w) + weight / 2 * jnp.sum((w - center) ** 2, axis=1)

    iterates = [prox(problem, factor, center, start, i) for i in (1, 3, 10, 30, 3000)]
    path = np.array([value(w) for w in (start, *iterates, jnp.asarray(best))])
    close(path[-2], path[-1], rtol=1e-9)
    assert (np.diff(path[1:], axis=0) <= 1e-9).all()
    assert (path[1] <= path[0]).all()


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.7)])
def test_the_prox_is_stationary_for_any_weights_of_the_samples(loss):
    base, weight, center, _ = stacked(LOGIT)
    rng = np.random.default_rng(6)
    weights = np.where(base.weights > 0, rng.uniform(0.1, 1, base.weights.shape), 0)
    problem = dataclasses.replace(base, loss=loss, weights=weights / weights.sum(1, keepdims=True))
    w = prox(problem, factorize(problem, weight), center, center, 400)
    gradient = problem.gradient(w) + weight[:, None] * (w - center)
    close(gradient, np.zeros((13, 6)), atol=1e-12)
    junk = replace(problem, features=np.where(weights[..., None] > 0, problem.features, 7.0))
    again = prox(junk, factorize(junk, weight), center, center, 400)
    close(again, w, rtol=0, atol=1e-12)  # padding is not looked at


# The engine --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_renumbering_clients_and_servers_renumbers_the_result():
    world, simulation, (state, _, _), _ = experiment("skip, logistic")
    rng = np.random.default_rng(7)
    order = rng.permutation(13)
    names = rng.permutation(4)
    moved = dataclasses.replace(
        simulation.problem,
        features=simulation.problem.features[order],
        targets=simulation.problem.targets[order],
        weights=simulation.problem.weights[order],
        strength=simulation.problem.strength[jnp.asarray(order)],
        tasks=Tasks(np.array(world.cluster)[order], 3),
    )
    server = names[np.array(world.server)[order]]
    edges = [(names[a], names[b]) for a, b in world.edges]
    pattern = Trace(np.asarray(simulation.participation.table)[:, order])
    network = Federation(server, fl.graphs.from_edges(4, edges))
    other = follow(fl.Simulation(moved, simulation.algorithm, network, participation=pattern))[0]
    agree(other.model, state.model[:, order])
    agree(other.dual, state.dual[:, order])
    agree(other.server[:, names], state.server)


@pytest.mark.slow
def test_new_numbers_clusters_and_graphs_reuse_the_program():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.AssumptionWarning)
        fl.run(private(PAIRS.problem()), rounds=ROUNDS)
        compiled = running._run.jitted._cache_size()
        graph = fl.graphs.from_edges(4, [(0, 1), (1, 2), (2, 3)], form="dense")
        for penalty, mixing, first in ((2, 0, 0.1), (3.0, GeometricDecay(0.2, 0.5), 2.0)):
            other = dataclasses.replace(
                PAIRS.problem(),
                strength=2 * PAIRS.problem().strength,
                tasks=Tasks(PAIRS.cluster[::-1], 3),
            )
            algorithm = PGFL(penalty, mixing)
            network = Federation(PAIRS.server, graph)
            privacy = ZCDP.from_initial(first, 0.95, ROUNDS)
            fl.run(private(other, algorithm, network, privacy), rounds=ROUNDS, key=3)
    assert running._run.jitted._cache_size() == compiled


# What does not fit -------------------------------------------------------------------------------

PATH = fl.graphs.path(2)
TWO = balanced(2, PATH)


def four(**changes):
    rng = np.random.default_rng(0)
    problem = Problem(rng.normal(size=(4, 3, 2)), rng.normal(size=(4, 3)), LeastSquares())
    return dataclasses.replace(problem, **changes)


def tasks(**parts):
    return Tasks((0, 1, 0, 1), 2, **parts)


def start(algorithm, **changes):
    parts: dict[str, Any] = {"problem": four(), "network": TWO} | changes
    return fl.Simulation(algorithm=algorithm, **parts)


def run_four(algorithm, **changes):
    return fl.run(start(algorithm, **changes), rounds=2)


WRONG = {
    "server too large": (
        lambda: Federation((0, 2, 1), PATH),
        "server numbers must be in 0..1, got 2",
    ),
    "server negative": (lambda: Federation((0, -1, 1)), "got -1 for client 1"),
    "server fraction": (lambda: Federation((0.0, 1.0), PATH), "server must be one whole number"),
    "server table": (lambda: Federation(((0, 1),), PATH), "server must be one whole number"),
    "no server": (lambda: Federation(()), "server must be one whole number"),
    "server empty": (lambda: Federation((0, 0, 1), fl.graphs.path(3)), "server 2 has no clients"),
    "server between empty": (lambda: Federation((0, 2, 2)), "server 1 has no clients"),
    "no clients a server": (lambda: balanced(0, PATH), "clients_per_server must be >= 1"),
    "servers apart": (
        lambda: start(
            PGFL(1.0), network=Federation((0, 1, 2, 3), fl.graphs.from_edges(4, [(0, 1), (2, 3)]))
        ),
        "disconnected",
    ),
    "cluster too large": (lambda: Tasks((0, 1, 2), 2), "cluster numbers must be in 0..1, got 2"),
    "cluster negative": (lambda: Tasks((0, -1, 1), 2), "got -1 for client 1"),
    "cluster fraction": (lambda: Tasks((0.0, 1.0), 2), "cluster must be one whole number"),
    "cluster empty": (lambda: Tasks((0, 2), 3), "cluster 1 has no clients"),
    "no clusters": (lambda: Tasks((0, 1), 0), "clusters must be >= 1"),
    "clusters of others": (
        lambda: four(tasks=Tasks((0, 1), 2)),
        "tasks are for 2 clients, but the data have 4",
    ),
    "truth of others": (
        lambda: tasks(truth=np.ones((3, 2))),
        "truth must be .clusters, dim. with 2",
    ),
    "truth of another width": (lambda: four(tasks=tasks(truth=np.ones((2, 1)))), "truth"),
    "test of others": (lambda: tasks(test=four()), "test data must have one row for each of the 2"),
    "validation of others": (
        lambda: Tasks((0, 1, 0), 2, validation=four()),
        "validation data must have one row for each of the 3",
    ),
    "too many clusters": (lambda: random_clusters(new_key(), 3, 4), "3 clients cannot fill 4"),
    "group too large": (
        lambda: group_share(1.0, (0, 2), 2),
        "group numbers must be in 0..1, got 2",
    ),
    "strengths": (lambda: four(strength=np.ones(3)), "one for each of the 4 clients"),
    "strength": (
        lambda: four(strength=np.array([1, 1, -1.0, 1])),
        "strength must be finite and >= 0",
    ),
    "penalty": (lambda: PGFL(0.0), "penalty must be finite and > 0"),
    "tau above": (
        lambda: PGFL(1.0, 1.1),
        "inter_cluster must be finite and >= 0 and <= 1, got 1.1",
    ),
    "tau below": (
        lambda: ClusterFL(1.0, -0.1),
        "inter_cluster must be finite and >= 0 and <= 1, got -0.1",
    ),
    "tau nan": (lambda: PGFL(1.0, np.nan), "must be finite"),
    "tau, single step": (lambda: PGFLSingleStep(1.0, 1.5), "inter_cluster must be finite"),
    "tau falling": (lambda: PGFL(1.0, GeometricDecay(2.4, 0.5)), "inter_cluster must be finite"),
    "tau rising": (lambda: GeometricDecay(0.2, 1.1), "factor must be finite and > 0 and <= 1"),
    "tau constant": (lambda: PGFL(1.0, Constant(1.4)), "inter_cluster must be finite"),
    "tau of a power": (lambda: PGFL(1.0, PowerDecay(1.4)), "inter_cluster must be finite"),
    "tau swept": (
        lambda: fl.sweep(
            lambda key, tau: start(PGFL(1.0, tau)), rounds=1, grid={"tau": [0.2, 1.4]}
        ),
        "inter_cluster must be finite and >= 0 and <= 1, got 1.4",
    ),
    "GFL mixes": (lambda: GFL(1.0, 0.3), "inter_cluster must be left out"),
    "GFL mixes by schedule": (lambda: GFL(1.0, PowerDecay(0.3)), "inter_cluster must be left out"),
    "nobody": (lambda: PGFL(1.0, clients_per_server=0), "clients_per_server must be >= 1"),
    "nobody, gradient": (lambda: GraphFedAvg(1.0, 1, 0), "clients_per_server must be >= 1"),
    "too many": (
        lambda: run_four(PGFL(1.0, 0.0, 2), network=Federation((0, 1, 0, 0), PATH)),
        "clients_per_server must be at most the 1 clients of server 1, got 2",
    ),
    "too many, gradient": (
        lambda: run_four(GraphFedAvg(1.0, 1, 3)),
        "clients_per_server must be at most the 2 clients of server 0, got 3",
    ),
    "empty cell": (lambda: PGFL(1.0, empty_cell="keeps"), "Did you mean 'keep'"),
    "dual reference": (lambda: PGFL(1.0, dual_reference="recieved"), "Did you mean 'received'"),
    "signs": (lambda: PGFLSingleStep(1.0, signs="print"), "unknown signs 'print'"),
    "iterations": (lambda: PGFL(1.0, inner_iterations=0), "inner_iterations must be >= 1"),
    "local steps": (lambda: GraphFedAvg(0.1, 0), "local_steps must be >= 1"),
    "no network": (lambda: start(PGFL(1.0), network=None), "PGFL runs on servers with clients"),
    "a graph": (
        lambda: start(GraphFedAvg(1.0), network=fl.graphs.ring(4)),
        "GFL, gradient runs on servers with clients; pass network=",
    ),
    "a federation": (
        lambda: start(fl.algorithms.ZCDPNFL(1.0, 0.3)),
        "zCDP-NFL runs on a graph of the clients; pass network=",
    ),
    "clients": (
        lambda: start(PGFL(1.0), network=balanced(3, PATH)),
        "6 nodes but the problem 4 clients",
    ),
    "late": (
        lambda: start(PGFL(1.0), delays=fl.link.Fixed(1)),
        "PGFL has no rule for late messages",
    ),
    "private single step": (
        lambda: start(PGFLSingleStep(1.0), privacy=ZCDP(1.0)),
        "PGFL, single step does not run under ZCDP; it has no private form",
    ),
    "no tasks": (
        lambda: start(PGFL(1.0), metrics="network_deviation"),
        "'network_deviation' needs a problem with tasks=fljax.problems.Tasks.truth=",
    ),
    "no truth": (
        lambda: start(PGFL(1.0), problem=four(tasks=tasks()), metrics="deviation_by_norm"),
        "needs a problem with tasks=fljax.problems.Tasks.truth=",
    ),
    "no test": (
        lambda: start(PGFL(1.0), problem=four(tasks=tasks()), metrics="accuracy"),
        "'accuracy' needs held-out data",
    ),
    "clipped": (lambda: run_four(PGFL(1.0), problem=four(clip=1.0)), "clipping cannot be applied"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mismatched_arguments_are_refused(case):
    make, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_cluster_without_clients_is_allowed_where_membership_is_drawn():
    """Like a cell without clients; its models follow the others by inter-cluster learning."""
    drawn = jax.jit(lambda cluster: Tasks(cluster, 3).cluster)(jnp.zeros(4, jnp.int32))
    same(drawn, np.zeros(4))


@pytest.mark.slow
def test_sizes_are_structure():
    with pytest.raises(TypeError, match=r"clients_per_server is structure and cannot be traced"):
        jax.jit(lambda count: PGFL(1.0, clients_per_server=count).penalty)(2)
    with pytest.raises(TypeError, match=r"clusters must be an integer, got 2\.0"):
        Tasks((0, 1), 2.0)  # pyright: ignore[reportArgumentType]


# Clusters discovered -----------------------------------------------------------------------------

FIND: Any = {"clusters": 3, "warmup": 3}


@pytest.mark.thin(0, every=3)
@pytest.mark.parametrize(
    ("by", "empty_cell"),
    [("gradient", "keep"), ("gradient", "skip"), ("loss", "keep"), ("loss", "skip")],
)
def test_clusters_discovered_among_absent_clients_equal_the_loops(by, empty_cell):
    """By gradients with noisy messages."""
    step = 0.4 if by == "gradient" else None
    algorithm = PGFLByLoss(RHO, TAU, None, empty_cell, **FIND)
    if step is not None:
        algorithm = PGFLByGradient(RHO, TAU, None, empty_cell, step_size=step, **FIND)
    active = table(len(PAIRS.server))
    simulation = simulate(PAIRS, algorithm, "padded", active, None if step is None else budget())
    ours = jax.tree.map(np.asarray, follow(simulation))[0]
    draws = injected_draws(simulation, PAIRS)
    theirs = loops.pgfl(
        PAIRS.clients(),
        PAIRS.server,
        None,
        PAIRS.edges,
        ROUNDS,
        RHO,
        tau_of(algorithm),
        PAIRS.servers,
        3,
        draws.scheduled,
        draws.noise,
        algorithm.empty_cell,
        assign=loops.discovery(PAIRS.clients(), PAIRS.server, 3, 3, step),
    )
    agree(ours.model, theirs.model)
    agree(ours.dual, theirs.dual)
    agree(ours.server, theirs.mixed)
    assert len(np.unique(ours.cluster[3])) == 3
    assert (ours.cluster[2] == 0).all()


@pytest.mark.slow
def test_one_discovered_cluster_is_gfl():
    ours = follow(simulate(FULL, PGFLByGradient(RHO, clusters=1, warmup=2, step_size=0.5)))[0]
    theirs = follow(simulate(FULL, GFL(RHO)))[0]
    close(ours.model, theirs.model, rtol=1e-12, atol=1e-13)


def test_choices_by_loss_have_no_private_form_and_choices_by_gradient_leak_nothing():
    servers = RAGGED.network()
    with pytest.raises(ValueError, match="PGFL, by loss does not run under ZCDP"):
        fl.Simulation(RAGGED.problem(), PGFLByLoss(RHO, **FIND), servers, budget())
    sorted_out = PGFLByGradient(RHO, step_size=0.5, **FIND)
    private = fl.Simulation(RAGGED.problem(), sorted_out, servers, budget())
    assert unperturbed(private) == []


@pytest.mark.slow
def test_a_participant_by_loss_gets_all_models_of_its_server():
    numbers = []
    for algorithm in (PGFL(RHO), PGFLByLoss(RHO, **FIND)):
        numbers.append(int(fl.run(simulate(FULL, algorithm), 1).scalars[-1]))
    clients = len(FULL.server)
    links = 2 * len(FULL.edges)
    more = clients * 2 * FULL.dim + links * (3 - FULL.clusters) * FULL.dim
    assert numbers[1] - numbers[0] == more


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: PGFLByLoss(RHO, clusters=0), "clusters must be >= 1, got 0"),
        (lambda: PGFLByLoss(RHO, clusters=2, warmup=0), "warmup must be >= 1, got 0"),
        (lambda: PGFLByGradient(RHO, clusters=2, step_size=-1.0), "step_size must be"),
        (lambda: simulate(FULL, PGFLByLoss(RHO, clusters=13)), "clusters must be <= 12, got 13"),
    ],
)
def test_bad_discovery_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()
