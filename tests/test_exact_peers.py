"""Exact peer-to-peer methods: loops on batches and networks, the optimum, their sums and kin."""

import copy
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax._generator import as_key
from fljax._numerics import key_of
from fljax.algorithms import (
    DLM,
    EXTRA,
    KGT,
    LED,
    NIDS,
    PGEXTRA,
    ZCDPNFL,
    ADMMTracking,
    ATCTracking,
    AugDGM,
    Consensus,
    DIGing,
    DiNNO,
    ExactDiffusion,
    NetworkedADMM,
    WangElia,
)
from fljax.batches import Uniform
from fljax.problems.solvers import smoothness
from tests import cases, small_network
from tests.cases import (
    CASES,
    CLIENTS,
    DIM,
    EDGES,
    OBJECTIVE,
    ROUNDS,
    SIZES,
    keys_of,
    make_data,
    make_network,
    make_problem,
)
from tests.reference import exact_peers, multiagent, nfl

close = np.testing.assert_allclose
METHODS = {
    "EXTRA": EXTRA(0.05),
    "PG-EXTRA": PGEXTRA(0.05),
    "Wang-Elia": WangElia(0.05),
    "NIDS": NIDS((0.05, 0.04, 0.06, 0.05, 0.03)),
    "Exact diffusion": ExactDiffusion(0.05),
    "LED": LED(0.03, local_steps=3),
    "DIGing": DIGing(0.05),
    "ATC tracking": ATCTracking(0.05),
    "Aug-DGM": AugDGM(0.05),
    "K-GT": KGT(0.03, local_steps=3, outer_step_size=0.7),
    "ADMM tracking": ADMMTracking(0.3, penalty=0.7, relaxation=0.4, blend=0.5),
    "DiNNO": DiNNO(0.4, 0.05, local_steps=3),
}
APART = {"PG-EXTRA", "NIDS"}  # whose gradients are without the regularizer


def models(algorithm, rounds=ROUNDS, problem=None, network=None, **given):
    simulation = fl.Simulation(
        problem=make_problem() if problem is None else problem,
        network=make_network() if network is None else network,
        algorithm=algorithm,
        metrics=[fl.metrics.trajectory("model")],
        **given,
    )
    return np.asarray(fl.run(simulation, rounds, as_key(1))["model_trajectory"])


# Loops -------------------------------------------------------------------------------------------


def visited(law, rounds, steps):
    """``[n][k][e]``: the samples of a step, as drawn in the run."""
    real, result = jnp.arange(max(SIZES))[None] < jnp.asarray(SIZES)[:, None], []
    for now in keys_of(1, rounds):
        rows = law.draw(key_of(now, "batches"), real, jnp.arange(CLIENTS), steps).rows
        each = [
            [own[own < size] for own in k] for k, size in zip(np.asarray(rows), SIZES, strict=True)
        ]
        result.append(each)
    return result


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("label", METHODS)
def test_on_batches_and_from_starts_of_their_own_they_are_the_loops(label):
    it = dataclasses.replace(METHODS[label], batches=Uniform(2))
    start = np.random.default_rng(3).normal(size=(CLIENTS, DIM))
    rows = visited(it.batches, ROUNDS + 1, getattr(it, "local_steps", 1))
    bare = dataclasses.replace(OBJECTIVE, l2=0.0) if label in APART else OBJECTIVE

    def gradient(k, w, n, e):
        some = rows[n - 1][k][e]
        return multiagent.slope(bare, k, w, (some, np.full(len(some), 1 / len(some))))

    ours = models(it, problem=make_problem().starting_at(start))
    close(ours, cases.reaching(it, gradient, start), rtol=0, atol=1e-10)
    assert np.abs(ours[-1] - ours[0]).max() > 1e-2


@pytest.mark.parametrize(
    "it",
    [
        DLM(0.9, 0.3),
        EXTRA(0.05, blend=0.7),
        NIDS(0.05, consensus_step_size=8.0),
        LED(0.05, local_steps=2, dual_step_size=0.9),
    ],
    ids=lambda it: it.label,
)
@pytest.mark.thin(1)
def test_with_other_numbers_they_are_the_loops(it):
    start = np.random.default_rng(4).normal(size=(CLIENTS, DIM))
    ours = models(it, problem=make_problem().starting_at(start))
    close(ours, cases.reaching(it, start=start), rtol=0, atol=1e-10)


@pytest.mark.thin(1)
@pytest.mark.parametrize("it", [DIGing(0.05), ATCTracking(0.05)], ids=lambda it: it.label)
def test_tracking_on_graphs_that_change_is_the_loop(it):
    edges = [EDGES, EDGES[:4], EDGES[2:]]
    network = fl.graphs.Schedule([make_network(edges=e) for e in edges])
    graphs = [nfl.metropolis(CLIENTS, edges[n % 3]) for n in range(ROUNDS)]
    slope = lambda k, w, n, e: OBJECTIVE.gradient(k, w)  # noqa: E731
    given = slope, graphs, np.zeros((CLIENTS, DIM)), 0.05, ROUNDS, it.label
    close(models(it, network=network), exact_peers.tracking(*given), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("label", [*METHODS, "DLM"])
def test_on_a_network_of_two_layers_they_are_the_loops(label):
    """On batches where they take them."""
    it, rows = DLM(0.9, 0.3), None
    if label in METHODS:
        it = dataclasses.replace(METHODS[label], batches=Uniform(2))
        rows = visited(it.batches, ROUNDS + 1, getattr(it, "local_steps", 1))
    problem, gradient = small_network.problem(SIZES, own=True), small_network.gradient_of(SIZES)

    def slope(k, w, n, e):
        return gradient(k, w, None if rows is None else rows[n - 1][k][e])

    ours = models(it, problem=problem)
    theirs = cases.reaching(it, slope, np.asarray(problem.initial), regularized=False)
    close(ours, theirs, rtol=0, atol=1e-8)
    assert np.abs(ours[-1] - ours[0]).max() > 1e-2


# Where they come to ------------------------------------------------------------------------------


def ridge(nodes=12):
    data, graph = jax.random.split(jax.random.key(7))
    problem = fl.problems.ridge(data, clients=nodes, samples=9, dim=3)
    return problem, fl.graphs.random_connected(graph, nodes=nodes, mean_degree=3)


def apart(algorithm, rounds=3000, problem=None, network=None, **parts):
    """The largest distance of a peer from the minimizer."""
    mine, graph = ridge()
    problem, network = mine if problem is None else problem, graph if network is None else network
    simulation = fl.Simulation(problem, algorithm, network, **parts)
    results = np.asarray(fl.run(simulation, rounds, as_key(1)).model)
    return float(np.abs(results - np.asarray(fl.problems.optimum(problem))).max())


STEADY = [
    EXTRA(0.1),
    EXTRA(0.1, blend=0.0),
    PGEXTRA(0.1),
    NIDS(np.linspace(0.05, 0.15, 12)),
    ExactDiffusion(0.1),
    LED(0.05, local_steps=4),
    DIGing(0.03),
    ATCTracking(0.05),
    AugDGM(0.05),
    KGT(0.02, local_steps=4, outer_step_size=0.5),
    WangElia(0.1),
    ADMMTracking(0.1, penalty=0.5, relaxation=0.5, blend=0.5),
    DLM(0.5, 0.2),
    DiNNO(0.2, 0.05, local_steps=4),
]


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("it", STEADY, ids=lambda it: it.label)
def test_a_constant_step_ends_at_the_minimizer(it):
    assert apart(it, 5000) < 1e-9


@pytest.mark.thin(4, every=24)
@pytest.mark.slow
@pytest.mark.parametrize("it", STEADY, ids=lambda it: it.label)
def test_links_that_fail_in_both_directions_leave_it_where_it_is(it):
    """Those that fail in one do not; nor do any of the one whose correction goes over them."""
    for both in (True, False):
        far = apart(it, 5000, losses=fl.link.Independent(0.3, symmetric=both))
        assert far < 1e-9 if both and not isinstance(it, WangElia) else far > 1e-3


@pytest.mark.slow
def test_decentralized_gradient_descent_stops_beside_it():
    """By an amount in proportion to its step."""
    far, near = apart(Consensus(0.05)), apart(Consensus(0.025), rounds=6000)
    assert far > 1e-3
    assert 1.6 < far / near < 2.4


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("it", [PGEXTRA(0.1), NIDS(0.1)], ids=lambda it: it.label)
def test_a_regularizer_with_a_kink_has_its_minimizer(it):
    problem, network = ridge()
    problem = dataclasses.replace(problem, regularizer=fl.problems.L1(), strength=20.0)
    best = np.asarray(fl.problems.optimum(problem))
    results = np.asarray(fl.run(fl.Simulation(problem, it, network), 4000, as_key(1)).model)
    assert (best == 0).any()
    np.testing.assert_array_equal(results == 0, np.broadcast_to(best == 0, results.shape))
    close(results, np.broadcast_to(best, results.shape), atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("it", [DIGing(0.02), ATCTracking(0.02)], ids=lambda it: it.label)
def test_tracking_needs_no_graph_that_is_connected_at_once(it):
    edges = [[(0, 1), (2, 3)], [(1, 2), (3, 4)], [(4, 0)]]
    each = [fl.graphs.from_edges(CLIENTS, e, allow_disconnected=True) for e in edges]
    simulation = fl.Simulation(
        make_problem(), it, fl.graphs.Schedule(each), allow_disconnected=True
    )
    results = np.asarray(fl.run(simulation, 12_000, as_key(1)).model)
    best = np.asarray(fl.problems.optimum(make_problem()))
    close(results, np.broadcast_to(best, results.shape), atol=1e-9)


# How long a step may be --------------------------------------------------------------------------


def alike(nodes=6):
    """Everybody's objective the same, on a bipartite graph, whose weights reach far below zero."""
    edges = [(k, j) for k in range(3) for j in range(3, 6)]
    data = make_data(sizes=(9,)) * nodes
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
    start = np.random.default_rng(8).normal(size=(nodes, DIM))
    network = fl.graphs.from_edges(nodes, edges)
    return problem.starting_at(start), network, float(jnp.max(smoothness(problem)))


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("make", "stable", "unstable"),
    [
        (EXTRA, 0.48, 0.9),
        (ExactDiffusion, 1.9, 2.1),
        (NIDS, 1.9, 2.1),
        (partial(DLM, 0.02), 1.9, 2.1),
    ],
    ids=["EXTRA", "Exact diffusion", "NIDS", "DLM"],
)  # fmt: skip
def test_steps_within_the_bound_converge(make, stable, unstable):
    """EXTRA's depends on the network, here 1 / 2 L for weights from -1/2 on, the others' do not."""
    problem, network, largest = alike()
    bound = make(0.1).step_bound(problem.prepare(), network, None)
    close(bound, (0.5 if make is EXTRA else 2) / largest, rtol=0.05)
    assert apart(make(stable / largest), 3000, problem, network) < 1e-6
    with pytest.warns(fl.AssumptionWarning, match="above the bound"):
        assert not apart(make(unstable / largest), 3000, problem, network) < 1


@pytest.mark.slow
def test_a_bound_is_known_of_what_it_is_known_of():
    problem, network, _ = alike()
    rough = fl.problems.from_clients(make_data(), fl.problems.LeastAbsoluteDeviation())
    kinked = dataclasses.replace(problem, regularizer=fl.problems.L1())
    wide = fl.graphs.ring(600)
    for it in (EXTRA(0.1), PGEXTRA(0.1), NIDS(0.1), ExactDiffusion(0.1), DLM(1.0, 0.1)):
        assert it.step_bound(rough, network, None) is None
        prox = isinstance(it, PGEXTRA | NIDS)
        assert (it.step_bound(kinked, network, None) is not None) == prox
        assert (it.step_bound(problem, wide, None) is None) == isinstance(it, EXTRA)
    assert not EXTRA(0.1, blend=0.2).step_bound(problem, network, None) < jnp.inf
    unequal = NIDS(np.array([0.1, 0.2, 0.1, 0.1, 0.1, 0.1]))
    close(unequal.step_bound(problem, network, None), 2 / jnp.max(smoothness(problem)), rtol=1e-9)


# What they keep ----------------------------------------------------------------------------------


def kept(state):
    """The largest sum over peers of what has none."""
    if hasattr(state, "tracker"):
        each = state.tracker - state.slope
    else:
        (each,) = (
            getattr(state, n) for n in ("dual", "correction", "integral") if hasattr(state, n)
        )
    return jnp.max(jnp.abs(jnp.sum(each, axis=0)))


SUMS = fl.metrics.Metric("sums", lambda now: kept(now.state), "sums")


@pytest.mark.thin(1)
@pytest.mark.parametrize("label", sorted(set(METHODS) - {"Exact diffusion", "ADMM tracking"}))
def test_sums_are_kept_by_links_that_fail_and_by_rounded_messages(label):
    parts = {"losses": fl.link.Independent(0.3), "compression": fl.link.Quantize(4)}
    simulation = fl.Simulation(
        make_problem(), METHODS[label], make_network(), metrics=[SUMS], **parts
    )
    results = fl.run(simulation, 40, as_key(1))
    close(results["sums"], 0, atol=1e-10)
    assert np.abs(results.model - models(METHODS[label], 40)[-1]).max() > 1e-3


# Kin ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_local_step_of_led_is_exact_diffusion():
    close(models(LED(0.05)), models(ExactDiffusion(0.05)), rtol=0, atol=1e-13)


@pytest.mark.slow
def test_nids_is_exact_diffusion_but_for_the_first_step():
    """From the same state, without a regularizer."""
    problem = dataclasses.replace(make_problem(), strength=0.0)
    made = [fl.Simulation(problem, it, make_network()) for it in (ExactDiffusion(0.05), NIDS(0.05))]
    now = [fl.view(simulation, key=0, round=2) for simulation in made]
    rng = np.random.default_rng(9)
    model, correction = jnp.asarray(rng.normal(size=(2, CLIENTS, DIM)))
    weights = make_network().mixing()
    one = fl.algorithms.peers.exact_diffusion.DiffusionState(model, correction, weights)
    # z = w and y = mu d of the round before, without a proximal step
    dual = correction / 0.05
    other = fl.algorithms.peers.nids.NIDSState(model, model, dual, weights)
    for _ in range(3):
        one, other = made[0].algorithm.step(one, now[0]), made[1].algorithm.step(other, now[1])
        now = [fl.view(simulation, key=0, round=3) for simulation in made]
        close(one.model, other.model, rtol=0, atol=1e-12)


def combining():
    """Labels of all algorithms that take a matrix of weights between peers, as their field says."""
    for label in cases.LABELS:
        for field in dataclasses.fields(cases.CASES[label].algorithm):
            if field.name == "mixing" and field.type == fl.graphs.Mixing | fl.graphs.Combination:
                yield label


@pytest.mark.thin(3)
@pytest.mark.parametrize("label", list(combining()))
def test_weights_may_be_a_matrix_of_ones_own(label):
    """That of the rule by which they else come does the same."""
    algorithm = cases.CASES[label].algorithm
    rule = dataclasses.replace(algorithm, mixing="metropolis")
    own = fl.graphs.from_stochastic(make_network().mixing().matrix(), convention="right")
    world = cases.simulate(label, private=False, metrics=[fl.metrics.trajectory()])
    results = [
        fl.run(dataclasses.replace(world, algorithm=one), ROUNDS, key=3).model_trajectory.values
        for one in (rule, dataclasses.replace(algorithm, mixing=own))
    ]
    close(results[1], results[0], rtol=0, atol=1e-12)
    other = dataclasses.replace(algorithm, mixing=fl.graphs.ring(4).mixing())
    with pytest.raises(ValueError, match="the weights are for 4 nodes, but the network has 5"):
        dataclasses.replace(world, algorithm=other)


@pytest.mark.slow
def test_without_a_regularizer_the_proximal_form_is_extra():
    problem = dataclasses.replace(make_problem(), strength=0.0)
    close(models(PGEXTRA(0.05), problem=problem), models(EXTRA(0.05), problem=problem), atol=1e-13)


@pytest.mark.slow
def test_the_simplest_tracking_is_extra_with_the_identity():
    """x+ = y+ - y + A x with y+ = x - mu f'(x), from y = x."""
    A, x, result = nfl.metropolis(CLIENTS, EDGES), np.zeros((CLIENTS, DIM)), []
    y = x
    for _ in range(ROUNDS):
        new = x - 0.05 * np.array([OBJECTIVE.gradient(k, w) for k, w in enumerate(x)])
        x, y = new - y + A @ x, new
        result.append(x)
    close(models(EXTRA(0.05, blend=0.0)), result, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_linearized_admm_is_the_private_one_without_privacy():
    np.testing.assert_array_equal(models(DLM(0.9, 0.3)), models(ZCDPNFL(0.9, 0.3)))


@pytest.mark.slow
def test_one_step_of_dinno_is_linearized_admm_where_degrees_are_equal():
    ring, penalty, step = fl.graphs.ring(CLIENTS), 0.4, 0.3
    both = 1 / (2 * penalty * 2 + 1 / step)
    ours = models(DiNNO(penalty, both), network=ring)
    close(ours, models(DLM(penalty, step), network=ring), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_many_steps_of_dinno_are_admm():
    close(models(DiNNO(0.4, 0.05, local_steps=800)), models(NetworkedADMM(0.4)), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_dinno_takes_any_optimizer():
    close(models(DiNNO(0.4, optax.sgd(0.05), local_steps=3)), models(METHODS["DiNNO"]), rtol=1e-6)
    assert apart(DiNNO(0.2, optax.adam(1e-2), local_steps=4), 400) < 0.1


@pytest.mark.thin(4)
@pytest.mark.slow
@pytest.mark.parametrize("label", METHODS)
def test_they_learn_from_a_stream(label):
    truth = np.ones(DIM)
    roots = np.tile(np.eye(DIM), (CLIENTS, 1, 1))
    stream = fl.streams.Linear(roots, truth, np.full(CLIENTS, 1e-4))
    results = np.asarray(fl.run(fl.Simulation(stream, METHODS[label], make_network()), 2000).model)
    assert np.abs(results - truth).max() < 0.2


# Bad input ---------------------------------------------------------------------------------------


def one_sided():
    """Rows of sum one, columns of another; and columns too, but not symmetric."""
    circle = np.roll(np.eye(CLIENTS), 1, axis=1)
    uneven = np.eye(CLIENTS) * 0.5 + 0.5 * np.eye(CLIENTS)[[1, 0, 0, 2, 3]]
    return (np.eye(CLIENTS) + circle) / 2, uneven


CIRCLE, UNEVEN = (
    fl.graphs.from_stochastic(a, convention="right", allow_imprimitive=True) for a in one_sided()
)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: EXTRA(0.1, "averaging"), ValueError, "EXTRA needs symmetric weights, got the"),
        (lambda: NIDS(0.1, CIRCLE), ValueError, "NIDS needs symmetric weights, got a matrix"),
        (lambda: DIGing(0.1, UNEVEN), ValueError, "DIGing needs doubly stochastic weights, got a"),
        (lambda: KGT(0.1, mixing="hasty"), ValueError, "mixing rule"),
        (lambda: LED(0.1, mixing=3), TypeError, "mixing must be a rule's name"),
        (lambda: ExactDiffusion(-0.1), ValueError, "step size must be finite and > 0, got -0.1"),
        (lambda: EXTRA(0.1, blend=1.0), ValueError, "blend must be finite and >= 0 and < 1, got 1"),
        (lambda: NIDS(np.ones((2, 2))), ValueError, "one number or one for each peer"),
        (lambda: NIDS([0.1, -0.2]), ValueError, "step_size must be finite and > 0, got -0.2"),
        (lambda: NIDS(0.1, consensus_step_size=0.0), ValueError, "must be finite and > 0"),
        (lambda: models(NIDS([0.1, 0.2])), ValueError, "one for each of the 5 clients, got shape"),
        (lambda: LED(0.1, local_steps=0), ValueError, "local_steps must be >= 1, got 0"),
        (lambda: LED(0.1, dual_step_size=-1.0), ValueError, "must be finite and > 0"),
        (lambda: KGT(0.1, outer_step_size=0.0), ValueError, "must be finite and > 0"),
        (lambda: DiNNO(-1.0, 0.1), ValueError, "penalty must be finite and > 0, got -1"),
        (lambda: DiNNO(1.0, 0.1, local_steps=0), ValueError, "local_steps must be >= 1, got 0"),
        (lambda: models(DiNNO(1.0, 0.1, batches=Uniform(40))), ValueError, "the 12 samples"),
        (lambda: models(AugDGM(0.1, batches=Uniform(40))), ValueError, "at most the 12 samples"),
        (
            lambda: models(EXTRA(0.1, fl.graphs.ring(4).mixing())),
            ValueError,
            "the weights are for 4 nodes, but the network has 5",
        ),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


TAKING = {
    **{label: algorithm for label, algorithm in METHODS.items() if hasattr(algorithm, "mixing")},
    **{label: CASES[label].algorithm for label in ("GT-SAGA", "GT-SVRG", "GT-SARAH", "ProxSkip")},
}


@pytest.mark.thin(3)
@pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")
@pytest.mark.parametrize("label", TAKING)
def test_directed_weights_are_enough_for_those_that_say_so(label):
    """The others, were they not refused, would not come to the minimizer."""
    algorithm = copy.copy(TAKING[label])
    object.__setattr__(algorithm, "mixing", CIRCLE)
    reached = apart(algorithm, problem=make_problem(), network=fl.graphs.ring(CLIENTS)) < 1e-8
    assert reached == algorithm.needs.directed


@pytest.mark.parametrize("label", sorted(set(METHODS) - {"DIGing", "ATC tracking"}))
def test_what_would_move_the_minimum_is_refused(label):
    changing = fl.graphs.Schedule([make_network(), make_network(edges=EDGES[:-1])])
    parts = {
        "no rule for absent clients": {"participation": fl.participation.Bernoulli(0.5)},
        "no rule for late messages": {"delays": fl.link.Fixed(1)},
        "otherwise than by a mean": {"aggregation": fl.aggregation.Median()},
        "no rule for a graph that changes": {"network": changing},
    }
    for message, part in parts.items():
        with pytest.raises(ValueError, match=message):
            fl.Simulation(make_problem(), METHODS[label], **{"network": make_network()} | part)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        EXTRA(0.1),
        PGEXTRA(0.1),
        NIDS(0.1),
        ExactDiffusion(0.1),
        LED(0.05, local_steps=2),
        DIGing(0.03),
        ATCTracking(0.03),
        AugDGM(0.03),
        KGT(0.03, local_steps=2),
        fl.algorithms.ProxSkip(0.1, 0.5),
        fl.algorithms.GTSVRG(0.03, period=1),
        NetworkedADMM(0.5),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_sums_over_the_network_hold_in_single_precision(algorithm):
    """Over links that fail, where sums of rounded models wander off: -67 dB after 10,000 rounds."""
    with jax.enable_x64(False):
        simulation = fl.Simulation(
            fl.problems.ridge(jax.random.key(0), clients=16, samples=20, dim=4),
            algorithm,
            fl.graphs.ring(16),
            losses=fl.link.Independent(0.1),
            metrics=["normalized_error"],
        )
        results = fl.run(simulation, rounds=10_000, record_every=500, key=1).normalized_error.values
    assert results.dtype == np.float32
    assert results[[3, -1]].max() < 1e-10, 10 * np.log10(results)


PEERS = [k for k, c in fl.algorithms.REGISTRY.items() if c.needs.network is fl.graphs.Graph]


@pytest.mark.parametrize(
    "label", [k for k in PEERS if hasattr(fl.algorithms.REGISTRY[k], "mixing")]
)
def test_directed_weights_are_taken_or_refused_as_declared(label):
    given = CASES[label].algorithm
    if given.needs.directed:
        assert dataclasses.replace(given, mixing=CIRCLE).mixing is CIRCLE
    else:
        with pytest.raises((TypeError, ValueError), match=r"symmetric weights|rule's name"):
            dataclasses.replace(given, mixing=CIRCLE)


@pytest.mark.parametrize("label", PEERS)
def test_directed_weights_are_no_network(label):
    """Of no algorithm: weights are given to those that take them, and a graph is the network."""
    with pytest.raises(TypeError, match=r"network must be an instance of .*Graph"):
        fl.Simulation(make_problem(), CASES[label].algorithm, CIRCLE)
