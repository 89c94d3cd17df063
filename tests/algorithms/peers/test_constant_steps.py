"""Peers whose constant steps end at the minimizer, and how long these steps may be."""

import dataclasses
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import (
    ATCGTSAGA,
    DESTRESS,
    DLM,
    EXTRA,
    GTSAGA,
    GTSARAH,
    GTSVRG,
    GTVR,
    KGT,
    LED,
    LTADMM,
    LTADMMVR,
    NIDS,
    PGEXTRA,
    ADMMTracking,
    ATCTracking,
    AugDGM,
    DIGing,
    DiNNO,
    ExactDiffusion,
    NetworkDANE,
    NetworkSARAH,
    NetworkSVRG,
    ProxSkip,
    Scaffnew,
    WangElia,
)
from fljax.problems.solvers import smoothness, strong_convexity
from tests.cases import CASES, CLIENTS, DIM, EDGES, make_data, make_network, make_problem
from tests.support.peer_runs import (
    EXACT_METHODS,
    distance_from_minimizer,
    peer_run,
    ridge_peers,
    simulation_of,
)

close = np.testing.assert_allclose

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
@pytest.mark.parametrize("algorithm", STEADY, ids=lambda algorithm: algorithm.label)
def test_a_constant_step_ends_at_the_minimizer(algorithm):
    assert distance_from_minimizer(algorithm, 5000) < 1e-9


@pytest.mark.thin(4, every=24)
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", STEADY, ids=lambda algorithm: algorithm.label)
def test_links_that_fail_in_both_directions_leave_it_where_it_is(algorithm):
    """Failures in one direction move it, and so do any failures for the algorithm whose correction
    is transmitted.
    """
    for symmetric in (True, False):
        far = distance_from_minimizer(
            algorithm, 5000, losses=fl.link.Independent(0.3, symmetric=symmetric)
        )
        assert far < 1e-9 if symmetric and not isinstance(algorithm, WangElia) else far > 1e-3


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "algorithm", [PGEXTRA(0.1), NIDS(0.1)], ids=lambda algorithm: algorithm.label
)
def test_a_regularizer_with_a_kink_has_its_minimizer(algorithm):
    problem, network = ridge_peers()
    problem = dataclasses.replace(problem, regularizer=fl.problems.L1(), strength=20.0)
    best = np.asarray(fl.problems.optimum(problem))
    results = np.asarray(fl.run(fl.Simulation(problem, algorithm, network), 4000, as_key(1)).model)
    assert (best == 0).any()
    np.testing.assert_array_equal(results == 0, np.broadcast_to(best == 0, results.shape))
    close(results, np.broadcast_to(best, results.shape), atol=1e-7)


@pytest.mark.thin(4)
@pytest.mark.slow
@pytest.mark.parametrize("label", EXACT_METHODS)
def test_exact_peers_learn_from_a_stream(label):
    truth = np.ones(DIM)
    roots = np.tile(np.eye(DIM), (CLIENTS, 1, 1))
    stream = fl.streams.Linear(roots, truth, np.full(CLIENTS, 1e-4))
    results = np.asarray(
        fl.run(fl.Simulation(stream, EXACT_METHODS[label], make_network()), 2000).model
    )
    assert np.abs(results - truth).max() < 0.2


@pytest.mark.parametrize("label", sorted(set(EXACT_METHODS) - {"DIGing", "ATC tracking"}))
def test_transformations_that_move_the_minimum_are_refused(label):
    changing = fl.graphs.GraphSchedule([make_network(), make_network(edges=EDGES[:-1])])
    parts = {
        "no rule for absent clients": {"participation": fl.participation.Bernoulli(0.5)},
        "no rule for late messages": {"delays": fl.link.Fixed(1)},
        "otherwise than by a mean": {"aggregation": fl.aggregation.Median()},
        "no rule for a graph that changes": {"network": changing},
    }
    for message, part in parts.items():
        with pytest.raises(ValueError, match=message):
            fl.Simulation(
                make_problem(), EXACT_METHODS[label], **{"network": make_network()} | part
            )


def equal_clients(nodes=6):
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
    problem, network, largest = equal_clients()
    bound = make(0.1).step_bound(problem.prepare(), network, None)
    close(bound, (0.5 if make is EXTRA else 2) / largest, rtol=0.05)
    assert distance_from_minimizer(make(stable / largest), 3000, problem, network) < 1e-6
    with pytest.warns(fl.AssumptionWarning, match="above the bound"):
        assert not distance_from_minimizer(make(unstable / largest), 3000, problem, network) < 1


@pytest.mark.parametrize("multiple", [0.4, 3.0])
def test_algorithms_of_a_grid_without_a_bound_are_not_above_it(multiple):
    problem, network, largest = equal_clients()
    methods = {"EXTRA": EXTRA(multiple / largest), "DIGing": fl.algorithms.DIGing(9.0 / largest)}

    def scenario(key, algorithm):
        return fl.Simulation(problem, algorithm, network)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fl.AssumptionWarning)
        fl.sweep(scenario, grid={"algorithm": methods}, seeds=2, rounds=2)
    messages = [str(w.message) for w in caught if "above the bound" in str(w.message)]
    if multiple < 1:
        assert not messages
    else:
        (message,) = messages
        assert f"2 of 4 runs have a step size up to {multiple / largest:.3g}," in message


@pytest.mark.slow
def test_bounds_are_computed_where_they_exist():
    problem, network, _ = equal_clients()
    rough = fl.problems.from_clients(make_data(), fl.problems.LeastAbsoluteDeviation())
    kinked = dataclasses.replace(problem, regularizer=fl.problems.L1())
    wide = fl.graphs.ring(600)
    for algorithm in (EXTRA(0.1), PGEXTRA(0.1), NIDS(0.1), ExactDiffusion(0.1), DLM(1.0, 0.1)):
        assert algorithm.step_bound(rough, network, None) is None
        prox = isinstance(algorithm, PGEXTRA | NIDS)
        assert (algorithm.step_bound(kinked, network, None) is not None) == prox
        assert (algorithm.step_bound(problem, wide, None) is None) == isinstance(algorithm, EXTRA)
    assert not EXTRA(0.1, blend=0.2).step_bound(problem, network, None) < jnp.inf
    unequal = NIDS(np.array([0.1, 0.2, 0.1, 0.1, 0.1, 0.1]))
    close(unequal.step_bound(problem, network, None), 2 / jnp.max(smoothness(problem)), rtol=1e-9)


def final_distance(algorithm, problem, network, rounds=400):
    """From the minimizer, and whether the run warned of the step."""
    simulation = fl.Simulation(problem, algorithm, network, metrics=["normalized_error"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = fl.run(simulation, rounds).normalized_error.values[-1]
    return error, any("above the bound" in str(w.message) for w in caught)


@pytest.mark.parametrize(("make", "unstable"), [(EXTRA, 1.8), (ExactDiffusion, 0.95), (NIDS, 0.95)])
def test_bounds_are_those_of_the_batches(make, unstable):
    """All samples in a step allow far larger ones than a batch of one; EXTRA's are sufficient."""
    problem, network, _ = equal_clients()
    full = float(make(0.1).step_bound(problem, network, None))
    for size in (1, 3):
        batches = fl.batches.Uniform(size)
        bound = float(make(0.1, batches=batches).step_bound(problem, network, None))
        assert bound < full
        error, warned = final_distance(make(0.8 * bound, batches=batches), problem, network)
        assert error < 1e3
        assert not warned
    single = fl.batches.Uniform(1)
    assert bound > float(make(0.1, batches=single).step_bound(problem, network, None))
    error, warned = final_distance(make(unstable * full, batches=single), problem, network)
    assert not error < 1e6
    assert warned
    everything = fl.batches.Uniform(problem.samples)
    close(make(0.1, batches=everything).step_bound(problem, network, None), full, rtol=1e-9)


def test_the_smoothness_of_batches_is_that_of_the_formula():
    problem, network, _ = equal_clients()
    x = np.asarray(problem.features)
    samples = x.shape[1]
    norms = 2 * (x**2).sum(2).max(1)
    regularizer = np.asarray(strong_convexity(problem))
    whole = np.asarray(smoothness(problem)) - regularizer
    for size in (1, 2, 5):
        expected = samples * (size - 1) / (size * (samples - 1)) * whole
        expected += (samples - size) / (size * (samples - 1)) * norms
        bound = ExactDiffusion(0.1, batches=fl.batches.Uniform(size)).step_bound(
            problem, network, None
        )
        close(bound, 2 / np.max(expected + regularizer), rtol=1e-9)


@pytest.mark.parametrize("blend", [0.5, 0.7, 0.9])
def test_extra_has_positive_bounds_for_every_blend(blend):
    """With a least eigenvalue near -1, beyond the theory, they are the exact ones."""
    problem, _, _ = equal_clients()
    network = fl.graphs.ring(problem.clients)
    neighbors = (np.roll(np.eye(6), 1, 0) + np.roll(np.eye(6), -1, 0)) / 2
    mixing = fl.graphs.from_stochastic(0.95 * neighbors + 0.05 * np.eye(6), convention="left")
    make = partial(EXTRA, mixing=mixing, blend=blend)
    bound = float(make(0.1).step_bound(problem, network, None))
    assert bound > 0
    error, warned = final_distance(make(0.9 * bound), problem, network, 4000)
    assert error < 1e-6
    assert not warned
    if blend > 0.5:
        error, warned = final_distance(make(1.25 * bound), problem, network, 2000)
        assert not error < 1e6
        assert warned


#: To the minimizer of the sum, though steps do not shrink.
EXACTLY = {
    "LT-ADMM": (LTADMM(1.0, 0.05, pull=0.1, local_steps=5), 96),
    "GT-SAGA": (GTSAGA(0.03), 640),
    "GT-SVRG": (GTSVRG(0.03, period=12), 480),
    "GT-SARAH": (GTSARAH(0.03, period=12), 480),
    "Network-DANE": (NetworkDANE(2.0), 140),
    "Network-SVRG": (NetworkSVRG(0.02, local_steps=8), 100),
    "Network-SARAH": (NetworkSARAH(0.02, local_steps=8), 100),
    "DESTRESS": (DESTRESS(0.05, period=12, probability=0.5, exchanges=2), 480),
    "GT-VR": (GTVR(0.03, probability=0.1), 480),
    "ATC-GT-SAGA": (ATCGTSAGA(0.03), 640),
    "LT-ADMM-VR": (LTADMMVR(1.0, 0.05, pull=0.1, local_steps=5), 96),
    "LT-ADMM-VR, kept": (LTADMMVR(1.0, 0.03, pull=0.1, local_steps=5, restart=False), 100),
    "Scaffnew": (Scaffnew(0.1, 0.3), 140),
    "ProxSkip": (ProxSkip(0.1, 0.3), 400),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", EXACTLY)
def test_the_optimum_is_attained_linearly_at_constant_steps(name):
    """Over any stretch the squared error falls by the same factor, more or less."""
    algorithm, rounds = EXACTLY[name]
    error = peer_run(algorithm, rounds, rounds // 4).normalized_error.values
    assert error[-1] < 1e-16
    falls = -np.diff(np.log10(error))
    assert falls.min() > falls.max() / 2


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "label", ["ProxSkip", "LT-ADMM", "LT-ADMM-VR", "GT-SVRG", "GT-SAGA", "GT-VR"]
)
def test_the_optimum_is_a_fixed_point(label):
    problem = make_problem().prepare()
    network = make_network()
    best = fl.problems.optimum(problem)
    agreed = jnp.tile(best, (CLIENTS, 1))
    gradient = problem.gradient(agreed)
    algorithm = CASES[label].algorithm
    state = algorithm.init(problem.starting_at(agreed), network)
    if label.startswith("GT"):
        state = state._replace(tracker=jnp.zeros_like(gradient))
    elif label.startswith("LT-ADMM"):
        ratio = float(algorithm.step_size.value) / float(algorithm.pull)
        state = state._replace(dual=-2 * ratio * gradient)
    elif label == "ProxSkip":
        state = state._replace(control=gradient)
    else:
        state = state._replace(correction=-gradient)
    simulation = simulation_of(algorithm, metrics=())
    new = jax.jit(lambda s, now: s.algorithm.step(now, fl.view(s)))(simulation, state)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        close(after, before, atol=1e-12)
