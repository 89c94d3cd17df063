"""Servers above servers: HierFAVG and Hier-Local-QSGD against loops, and as other methods."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax._core.prng import bernoulli, key_of, private_normal
from fljax.algorithms import FedAvg, GraphFedAvg, HierFAVG, HierLocalQSGD
from fljax.graphs import Tree
from fljax.link import PerMessage, Quantize, UploadNoise
from fljax.participation import Drawn, Everyone, Fraction, PerServer
from fljax.privacy import ZCDP, CentralGaussian
from fljax.simulation.scan import trace
from tests.cases import EXACT, make_data, make_objective, make_problem, make_servers
from tests.cases.world import DIM, sample_gradient_of
from tests.reference import hierarchies as loops
from tests.support.server_runs import visits_of

SIZES = (4, 9, 6, 12, 7, 5, 8, 3, 10)
CLIENTS = len(SIZES)
ROUNDS = 12
HOME = (0, 0, 1, 2, 2, 2, 3, 4, 4)
#: Five edges, two servers above them, and a cloud; or the cloud right above the edges.
THREE = Tree(HOME, None, ((0, 0, 1, 1, 1), (0, 0)))
TWO = Tree(HOME, None, ((0, 0, 0, 0, 0),))
STEP = 0.05

_trace = jax.jit(
    trace, static_argnums=(2, 3), compiler_options={"xla_backend_optimization_level": 0}
)


def problem_of(weighting=None):
    problem = make_problem(data=make_data(sizes=SIZES))
    return problem.weighing(weighting) if weighting else problem


def run(algorithm, network, problem=None, seed=1, rounds=ROUNDS, metrics=(EXACT,), **parts):
    problem = problem_of() if problem is None else problem
    simulation = fl.Simulation(problem, algorithm, network, metrics=metrics, **parts)
    result, _ = _trace(simulation, fl.random_key(seed), rounds, 1)
    return {name: np.asarray(value) for name, value in result.items()}


def models(algorithm, network, **options):
    """``[T, K, D]``, the model of each client's edge after every round."""
    return run(algorithm, network, **options)["exact"]


@functools.cache
def keys(purpose, seed=1):
    key = fl.random_key(seed)
    return [key_of(jax.random.fold_in(key, n), purpose) for n in range(1, 1 + ROUNDS)]


def senders(fractions):
    """Which servers take part, by the library's draws."""
    drawn = [
        [
            np.asarray(bernoulli(jax.random.fold_in(key, level), (len(above),), fraction))
            for level, (above, fraction) in enumerate(zip(THREE.parents, fractions, strict=True), 1)
        ]
        for key in keys("algorithm")
    ]
    return lambda n, level, s: drawn[n - 1][level - 1][s]


def server_key(purpose, n, level, s):
    key = jax.random.fold_in(keys(purpose)[n - 1], 2 * CLIENTS + level)
    return jax.random.fold_in(key, s)


def quantized(compressors):
    drawn = keys("compression")
    compress_one = [compressor and jax.jit(compressor.compress) for compressor in compressors]

    def compress(n, level, s, vector):
        if compressors[level] is None:
            return vector
        key = (
            server_key("compression", n, level, s) if level else jax.random.fold_in(drawn[n - 1], s)
        )
        return np.asarray(compress_one[level](key[None], jnp.asarray(vector)[None]))[0]

    return compress


def loop(algorithm, network, weights=None, **draws):
    objective = make_objective(sizes=SIZES)
    visits = visits_of(algorithm, np.ones((ROUNDS, CLIENTS), bool), SIZES, network=network)
    edges = loops.hierarchy(
        sample_gradient_of(objective),
        [network.server, *network.parents],
        np.ones(CLIENTS) if weights is None else weights,
        np.zeros(DIM),
        lambda n: STEP,
        np.broadcast_to(algorithm.intervals, len(network.parents)),
        visits,
        **draws,
    )
    return edges[:, network.server]


# Against loops -------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("algorithm", "network", "weighting"),
    [
        (HierFAVG(STEP, epochs=2, batch=4, intervals=2), TWO, "samples"),
        (HierFAVG(STEP, local_steps=3, intervals=4), TWO, None),
        (HierFAVG(STEP, local_steps=2, intervals=(2, 3)), THREE, "samples"),
        (HierFAVG(STEP, selector=PerServer(1), epochs=2, intervals=(3, 1)), THREE, None),
        (HierFAVG(STEP, clients_per_round=4, intervals=(2, 2)), THREE, "samples"),
    ],
)
def test_averages_on_a_tree_equal_the_loop(algorithm, network, weighting):
    """Two levels and three, with unequal edges, weights, batches and participants."""
    weights = np.array(SIZES, float) if weighting else None
    ours = models(algorithm, network, problem=problem_of(weighting))
    theirs = loop(algorithm, network, weights)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    assert np.abs(ours[0, 0] - ours[0, -1]).max() > 1e-3  # edges differ between averages


def test_servers_take_part_by_their_fractions_and_with_their_noise():
    """Every level has its own, by injected draws; a server that is left out keeps its model."""
    noises = (None, UploadNoise(0.01, law="gaussian"))
    fractions = (0.6, 0.5)
    algorithm = HierFAVG(
        STEP, local_steps=2, intervals=(2, 1), fractions=fractions, server_noises=noises
    )
    added = jax.jit(lambda key: noises[1].added(key, jnp.zeros(DIM)))

    def noise(n, level, s):
        return 0.0 if level == 1 else np.asarray(added(server_key("uploads", n, level, s)))

    ours = models(algorithm, THREE)
    theirs = loop(algorithm, THREE, sends=senders(fractions), noise=noise)
    # Noise is added on a grid, which is the message's, too.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    silent = models(dataclasses.replace(algorithm, server_noises=None), THREE)
    everyone = models(dataclasses.replace(algorithm, fractions=None), THREE)
    assert np.abs(ours - silent).max() > 1e-3
    assert np.abs(ours - everyone).max() > 1e-3


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("network", "compressors", "intervals", "fractions"),
    [
        (TWO, (Quantize(3), Quantize(5)), 2, None),
        (THREE, (None, Quantize(4), Quantize(3)), (2, 2), (0.7, 0.6)),
    ],
)
def test_quantized_averages_equal_the_loop(network, compressors, intervals, fractions):
    """Differences are of the last model from above, also of servers that missed some."""
    algorithm = HierLocalQSGD(
        STEP,
        local_steps=2,
        intervals=intervals,
        fractions=fractions,
        compressors_up=compressors,
    )
    draws = {} if fractions is None else {"sends": senders(fractions)}
    theirs = loop(algorithm, network, compress=quantized(compressors), **draws)
    np.testing.assert_allclose(models(algorithm, network), theirs, rtol=0, atol=1e-10)


# Special cases -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch": 3, "epochs": 2, "clients_per_round": 5}])
def test_one_server_is_federated_averaging(options):
    """The same numbers to the last bit, and the same counts."""
    flat = fl.graphs.tree([CLIENTS])
    ours = run(HierFAVG(STEP, **options), flat)
    theirs = run(FedAvg(STEP, **options), None)
    np.testing.assert_array_equal(ours["exact"], theirs["exact"])
    for name in ("messages", "scalars", "bits_up", "bits_down"):
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_without_intervals_or_chance_a_tree_is_federated_averaging():
    """If everybody averages in every round, and edges count with all of their clients."""
    ours = models(HierFAVG(STEP, local_steps=3), THREE, problem=problem_of("samples"))
    theirs = models(FedAvg(STEP, local_steps=3), None, problem=problem_of("samples"))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (1, {"noise": PerMessage(0.01)}),
        (None, {}),
        (None, {"privacy": ZCDP(2.0, 0.9), "masks": fl.link.SecureAggregation(1.0)}),
        (None, {"privacy": ZCDP(2.0, 0.9)}),
        (1, {"upload_noise": UploadNoise(0.02)}),
    ],
)
def test_edges_that_gossip_are_graph_federated_learning(count, parts):
    """The multi-server algorithm of Rizk & Sayed is the tree without a cloud, draws included."""
    steps = 3
    ours = HierFAVG(STEP, selector=count and PerServer(count), local_steps=steps)
    theirs = GraphFedAvg(STEP * steps, steps, count)
    options = {"problem": make_problem(), "network": make_servers(), **parts}
    a, b = (run(algorithm, **options) for algorithm in (ours, theirs))
    np.testing.assert_allclose(a["exact"], b["exact"], rtol=0, atol=1e-12)
    assert set(a) == set(b)
    for name in set(a) & {"messages", "bits_up", "bits_down", "client_rho", "privacy_rho"}:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-12)


@pytest.mark.slow
def test_a_tree_of_one_level_is_a_federation():
    """Servers on a graph run on it as before: the same numbers of PGFL and of GFL."""
    federation = make_servers()
    tree = Tree(federation.server, federation.graph)
    for algorithm in (fl.algorithms.PGFL(0.9), fl.algorithms.GFL(0.9), GraphFedAvg(0.1)):
        options = {"problem": make_problem(), "privacy": ZCDP(2.0, 0.9)}
        np.testing.assert_array_equal(
            models(algorithm, tree, **options), models(algorithm, federation, **options)
        )


def test_a_cloud_above_a_graph_of_edges_averages_what_they_agreed_on():
    edges = fl.graphs.path(5)
    tree = Tree(HOME, edges, TWO.parents)
    ours = models(HierFAVG(STEP, intervals=3), tree)
    gossip = models(HierFAVG(STEP), fl.federation.Federation(HOME, edges))
    np.testing.assert_allclose(ours[:2], gossip[:2], rtol=0, atol=1e-12)
    sizes = np.bincount(HOME)
    first = [HOME.index(edge) for edge in range(5)]
    mean = sizes @ gossip[2, first] / CLIENTS
    np.testing.assert_allclose(ours[2], np.tile(mean, (CLIENTS, 1)), rtol=0, atol=1e-12)


# Traffic -------------------------------------------------------------------------------------


def test_bits_of_levels_add_up_to_all_bits():
    """By hand: 32 bits a number, up and down; three levels, and a graph of the edges."""
    tree = Tree(HOME, fl.graphs.path(5), THREE.parents)
    algorithm = HierFAVG(STEP, selector=PerServer(1), intervals=(2, 3))
    counted = run(algorithm, tree, metrics=(fl.metrics.level_bits,))
    levels = counted["level_bits"][-1]
    model = 32 * DIM
    expected = [
        [5 * model * ROUNDS, 5 * model * ROUNDS, 8 * model * ROUNDS],
        [5 * model * 6, 5 * model * 6, 0],
        [2 * model * 2, 2 * model * 2, 0],
    ]
    np.testing.assert_array_equal(levels, expected)
    bits = [fl.results.dataset.to_int64(counted[name]).sum() for name in ("bits_up", "bits_down")]
    assert sum(bits) == levels.sum()
    assert bits[0] == levels[0, 0]


def test_compressed_messages_are_counted_by_level():
    algorithm = HierLocalQSGD(STEP, intervals=4, compressors_up=(Quantize(3), Quantize(5)))
    levels = run(algorithm, TWO, metrics=(fl.metrics.level_bits,))["level_bits"][-1]
    up = [CLIENTS * ROUNDS * Quantize(3).bits(DIM), 5 * 3 * Quantize(5).bits(DIM)]
    np.testing.assert_array_equal(levels[:, 0], up)
    np.testing.assert_array_equal(levels[:, 1], [CLIENTS * ROUNDS * 32 * DIM, 5 * 3 * 32 * DIM])


def test_the_metric_of_levels_needs_an_algorithm_with_levels():
    with pytest.raises(ValueError, match="level_bits needs an algorithm that counts"):
        run(FedAvg(STEP), None, metrics=(fl.metrics.level_bits,))


# Privacy -------------------------------------------------------------------------------------


@pytest.mark.thin(1)
@pytest.mark.parametrize("selector", [Fraction(0.6), Everyone()])
def test_each_edge_perturbs_the_sum_of_its_clients(selector):
    """The loop; a client pays for the releases of its own edge, as under one server."""
    algorithm = HierFAVG(STEP, intervals=3, selector=selector)
    mechanism = CentralGaussian(0.7, clip=0.05)
    ours = run(algorithm, TWO, privacy=mechanism)
    objective = make_objective(sizes=SIZES)
    chosen = [selector.choose(k, jnp.ones(CLIENTS, bool), None) for k in keys("participation")]
    took_part = [np.flatnonzero(np.asarray(now.here)).tolist() for now in chosen]
    rate = 1.0 if isinstance(selector, Everyone) else 0.6
    draws = [
        [private_normal(jax.random.fold_in(key, edge), (DIM,), float) for edge in range(5)]
        for key in keys("server")
    ]
    edges = loops.private_edges(
        objective.gradient,
        list(HOME),
        True,
        STEP,
        3,
        took_part,
        rate * np.bincount(HOME),
        0.7,
        0.05,
        np.array(draws),
    )
    np.testing.assert_allclose(ours["exact"], edges[:, HOME], rtol=0, atol=1e-11)
    flat = run(FedAvg(STEP, selector=selector), None, privacy=mechanism)
    for name in ("client_rho", "privacy_rho", "client_releases", "noise_multiplier"):
        np.testing.assert_array_equal(ours[name], flat[name])
    assert 0 < ours["rounding"] < 1e-6


def test_data_of_a_client_move_the_release_of_its_edge_alone():
    """The premise of the account, in the release itself: before any average is above the edges."""
    mechanism = CentralGaussian(0.7, clip=0.05)
    data = make_data(sizes=SIZES)
    other = tuple((X, -y) if k == 3 else (X, y) for k, (X, y) in enumerate(data))
    a, b = (
        models(HierFAVG(STEP, intervals=12), TWO, problem=make_problem(data=d), privacy=mechanism)
        for d in (data, other)
    )
    moved = np.abs(a[:11] - b[:11]).max(axis=(0, 2)) > 0
    assert moved.tolist() == [edge == HOME[3] for edge in HOME]
    first = np.linalg.norm(a[0, 3] - b[0, 3])
    assert 0 < first <= 2 * 0.05 / 3 * (1 + 1e-9)  # "replace"; three clients divide it


@pytest.mark.slow
def test_noise_is_correlated_over_rounds_at_each_edge():
    """A client pays as much as under one server."""
    strategy = fl.privacy.matrices.square_root(3)
    cyclic = fl.participation.Cyclic(3)
    mechanism = CentralGaussian(2.0, clip=0.05, strategy=strategy)
    ours = run(HierFAVG(STEP, selector=cyclic, intervals=2), TWO, privacy=mechanism)
    flat = run(FedAvg(STEP, selector=cyclic), None, privacy=mechanism)
    for name in ("client_rho", "privacy_rho", "release_rho"):
        np.testing.assert_allclose(ours[name], flat[name], rtol=1e-12)
    assert np.isfinite(ours["exact"]).all()


# Bad input -----------------------------------------------------------------------------------


def start(algorithm, network, **parts):
    return fl.Simulation(problem_of(), algorithm, network, **parts)


BAD = {
    "intervals of other levels": (
        lambda: start(HierFAVG(STEP, intervals=(2, 3)), TWO),
        "intervals must be one value or one for each of the 1 levels above the edges, got 2",
    ),
    "an interval without a level": (
        lambda: start(HierFAVG(STEP, intervals=5), fl.graphs.tree([CLIENTS])),
        "intervals=5 is for servers above the edges, and the network has none",
    ),
    "no interval": (lambda: HierFAVG(STEP, intervals=0), "intervals must be >= 1"),
    "fractions": (lambda: HierFAVG(STEP, fractions=(0.5, 0.0)), "fractions must be"),
    "fractions of other levels": (
        lambda: start(HierFAVG(STEP, fractions=(0.5, 1.0)), TWO),
        "fractions must be one value or one for each of the 1 levels",
    ),
    "noise on updates": (
        lambda: HierFAVG(STEP, server_noises=UploadNoise(0.1, on="updates")),
        "server_noises has noise on updates",
    ),
    "compressors of other levels": (
        lambda: start(HierLocalQSGD(STEP, compressors_up=(Quantize(4),)), TWO),
        "compressors_up must be one compressor or one for each of the 2 levels",
    ),
    "a compressor that does not fit": (
        lambda: start(HierLocalQSGD(STEP, compressors_up=fl.link.TopK(9)), TWO),
        "count must be 1 to the 3 numbers",
    ),
    "two compressions": (
        lambda: start(
            HierLocalQSGD(STEP, compressors_up=Quantize(4)), TWO, compression=Quantize(3)
        ),
        "leave out compression=",
    ),
    "other clients": (
        lambda: start(HierFAVG(STEP), fl.graphs.tree([2, 3])),
        "6 nodes but the problem 9 clients",
    ),
    "servers apart": (
        lambda: start(HierFAVG(STEP), fl.federation.Federation(HOME)),
        "the 5 servers have neither a server above them nor a graph",
    ),
    "a tree for others": (
        lambda: start(fl.algorithms.PGFL(1.0), TWO),
        "PGFL has no rule for servers above the clients' own.*HierFAVG",
    ),
    "a clock": (
        lambda: start(
            HierFAVG(STEP), TWO, clock=fl.clock.Synchronous(fl.clock.Devices(latency_seconds=1.0))
        ),
        "has no times of messages between servers",
    ),
    "unequal probabilities": (
        lambda: run(
            HierFAVG(STEP, selector=fl.participation.Unequal(2, np.full(CLIENTS, 1 / CLIENTS))), TWO
        ),
        "a selector of unequal probabilities",
    ),
    "a fixed number of all clients at private edges": (
        lambda: start(HierFAVG(STEP, selector=Drawn(3)), TWO, privacy=CentralGaussian(1.0)),
        "who takes part at one server depends on the others",
    ),
    "a fixed number of each private edge": (
        lambda: run(HierFAVG(STEP, selector=PerServer(1)), TWO, privacy=CentralGaussian(1.0)),
        "how PerServer chooses is not accounted for",
    ),
    "weights at private edges": (
        lambda: start(HierFAVG(STEP, weighting="samples"), TWO, privacy=CentralGaussian(1.0)),
        "bounds the contribution of one client to an unweighted sum",
    ),
    "private batches": (
        lambda: run(HierFAVG(STEP, batch=2), TWO, privacy=ZCDP(1.0)),
        "accounted for only if steps use all samples",
    ),
    "a private optimizer": (
        lambda: run(HierFAVG(optax.sgd(STEP)), TWO, privacy=ZCDP(1.0)),
        "accounted for only with steps of a known size",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused(name):
    refused, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        refused()
