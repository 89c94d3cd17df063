"""Peers against plain loops: batches, custom starts, networks, recursions by hand."""

import dataclasses
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from fljax._core.prng import key_of
from fljax.algorithms import (
    ADPSGD,
    ATCGTSAGA,
    BEER,
    CEDAS,
    DESTRESS,
    DLM,
    EXTRA,
    GTSAGA,
    GTSARAH,
    GTSVRG,
    GTVR,
    LEAD,
    LED,
    LTADMM,
    LTADMMVR,
    NIDS,
    SGP,
    ChocoSGD,
    DeTAG,
    EpidemicLearning,
    ExactDiffusion,
    GossipSGD,
    MoTEF,
    NetworkSARAH,
    NetworkSVRG,
    ProxSkip,
    RandomWalk,
    Scaffnew,
    SwarmSGD,
)
from fljax.link import TopK
from fljax.optimization.schedules import PowerDecay
from fljax.problems.batches import Uniform
from tests import cases
from tests.cases import (
    CASES,
    CLIENTS,
    DIM,
    OBJECTIVE,
    ROUNDS,
    SAVING,
    SIZES,
    keys_of,
    make_network,
    make_problem,
)
from tests.reference import gossip, multiagent
from tests.support import small_network
from tests.support.peer_runs import ANYWHERE, EXACT_METHODS, ONE_WAY, close_to_loop, models

close = np.testing.assert_allclose

PROXIMAL = {"PG-EXTRA", "NIDS"}  # whose gradients are without the regularizer


def visited(batches, rounds, steps):
    """``[n][k][e]``: the samples of a step, as drawn in the run."""
    real = jnp.arange(max(SIZES))[None] < jnp.asarray(SIZES)[:, None]
    result = []
    for now in keys_of(1, rounds):
        rows = batches.draw(key_of(now, "batches"), real, jnp.arange(CLIENTS), steps).rows
        of_clients = [
            [rows_of_step[rows_of_step < size] for rows_of_step in k]
            for k, size in zip(np.asarray(rows), SIZES, strict=True)
        ]
        result.append(of_clients)
    return result


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("label", EXACT_METHODS)
def test_batches_and_custom_starts_equal_the_loops(label):
    algorithm = dataclasses.replace(EXACT_METHODS[label], batches=Uniform(2))
    start = np.random.default_rng(3).normal(size=(CLIENTS, DIM))
    rows = visited(algorithm.batches, ROUNDS + 1, getattr(algorithm, "local_steps", 1))
    objective = dataclasses.replace(OBJECTIVE, l2=0.0) if label in PROXIMAL else OBJECTIVE

    def gradient(k, w, n, e):
        batch = rows[n - 1][k][e]
        return multiagent.gradient(objective, k, w, (batch, np.full(len(batch), 1 / len(batch))))

    ours = models(algorithm, problem=make_problem().starting_at(start))
    close(ours, cases.exact_peer_models(algorithm, gradient, start), rtol=0, atol=1e-10)
    assert np.abs(ours[-1] - ours[0]).max() > 1e-2


@pytest.mark.parametrize(
    "algorithm",
    [
        DLM(0.9, 0.3),
        EXTRA(0.05, blend=0.7),
        NIDS(0.05, consensus_step_size=8.0),
        LED(0.05, local_steps=2, dual_step_size=0.9),
    ],
    ids=lambda algorithm: algorithm.label,
)
@pytest.mark.thin(1)
def test_other_parameters_equal_the_loops(algorithm):
    start = np.random.default_rng(4).normal(size=(CLIENTS, DIM))
    ours = models(algorithm, problem=make_problem().starting_at(start))
    close(ours, cases.exact_peer_models(algorithm, start=start), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("label", [*EXACT_METHODS, "DLM"])
def test_networks_of_two_layers_equal_the_loops(label):
    """On batches, for algorithms that take them."""
    algorithm = DLM(0.9, 0.3)
    rows = None
    if label in EXACT_METHODS:
        algorithm = dataclasses.replace(EXACT_METHODS[label], batches=Uniform(2))
        rows = visited(algorithm.batches, ROUNDS + 1, getattr(algorithm, "local_steps", 1))
    problem = small_network.problem(SIZES, own=True)
    gradient = small_network.gradient_of(SIZES)

    def client_gradient(k, w, n, e):
        return gradient(k, w, None if rows is None else rows[n - 1][k][e])

    ours = models(algorithm, problem=problem)
    theirs = cases.exact_peer_models(
        algorithm, client_gradient, np.asarray(problem.initial), regularized=False
    )
    close(ours, theirs, rtol=0, atol=1e-8)
    assert np.abs(ours[-1] - ours[0]).max() > 1e-2


VARIANTS = {
    "one way": SGP(0.05, shares=ONE_WAY),
    "one sample": GTSAGA(0.05),
    "estimates that go on": GTSARAH(PowerDecay(0.05), period=3),
    "whole gradients at snapshots": GTSVRG(PowerDecay(0.05), period=3),
    "batches in local steps": LTADMM(0.9, 0.05, pull=0.1, local_steps=3, batches=Uniform(2)),
    "a table that is kept": LTADMMVR(
        0.9, PowerDecay(0.05), pull=0.1, local_steps=3, batch=2, restart=False
    ),
    "whole gradients of some": GTVR(PowerDecay(0.05), probability=0.7),
    "one is met, another stored": ATCGTSAGA(PowerDecay(0.05)),
    "many steps around a snapshot": NetworkSVRG(PowerDecay(0.05), local_steps=5),
    "one step along the tracker": NetworkSARAH(PowerDecay(0.05), local_steps=1),
    "all are active, and combine once": DESTRESS(PowerDecay(0.05), period=5),
    "always whole": DESTRESS(PowerDecay(0.05), period=1, exchanges=3),
    "steps that go on": NetworkSARAH(PowerDecay(0.05), local_steps=4),
    "all speak": ProxSkip(0.05, 1.0),
    "the server hears all": Scaffnew(0.05, 1.0),
    "one number": ChocoSGD(PowerDecay(0.1), compression=TopK(1), consensus_step_size=0.2),
    "pairs": GossipSGD(PowerDecay(0.1)),
    "two numbers, tracked": BEER(PowerDecay(0.1), compression=TopK(1), consensus_step_size=0.3),
    "tracked without momentum": MoTEF(
        PowerDecay(0.1), compression=TopK(2), consensus_step_size=0.3, momentum=0.0
    ),
    "a dual variable in units of gradients": LEAD(
        PowerDecay(0.1), compression=TopK(2), consensus_step_size=1.0, copy_step_size=1.0
    ),
    "a dual variable in units of models": CEDAS(
        PowerDecay(0.1), compression=TopK(1), consensus_step_size=0.4
    ),
    "one plain exchange a phase": DeTAG(PowerDecay(0.1), exchanges=1, acceleration=0.0),
    "to all neighbors": EpidemicLearning(PowerDecay(0.1), neighbors_per_round=4),
    "one pair": ADPSGD(PowerDecay(0.1)),
    "one model": RandomWalk(PowerDecay(0.1)),
    "one pair after many steps": SwarmSGD(PowerDecay(0.1), local_steps=4),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["padded", "dense"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_their_loops_from_any_start(name, form):
    algorithm = VARIANTS[name]
    # A server starts all of its clients at one model.
    start = np.tile(ANYWHERE[0], (CLIENTS, 1)) if isinstance(algorithm, Scaffnew) else ANYWHERE
    world = {"problem": make_problem().starting_at(start), "network": make_network(form)}
    theirs = CASES[type(algorithm).label].oracle(algorithm, start=start)
    close_to_loop(models(algorithm, **world), theirs, 1e-10)


@pytest.mark.thin(1)
@pytest.mark.parametrize("label", SAVING[::-1])
def test_networks_of_peers_equal_their_loops(label):
    problem = small_network.problem(SIZES)
    algorithm = CASES[label].algorithm
    start = np.tile(problem.initial, (CLIENTS, 1))
    theirs = CASES[label].oracle(algorithm, small_network.gradient_of(SIZES), start)
    close_to_loop(models(algorithm, problem=problem), theirs, 1e-8)


def recursions():
    """What some are where nothing is saved: ``name -> (algorithm, models)``."""
    objective = cases.OBJECTIVE
    weights = cases.METROPOLIS
    step = 0.05
    gradient = partial(
        np.vectorize(objective.gradient, signature="(),(d)->(d)"), np.arange(CLIENTS)
    )
    lazy = (np.eye(CLIENTS) + weights) / 2
    result = {}
    x = cases.START
    g = gradient(cases.START)
    y = g
    tracking = []
    for _ in range(ROUNDS):
        x = weights @ x - step * y
        before = g
        g = gradient(x)
        y = weights @ y + g - before
        tracking.append(x)
    result["gradient tracking"] = GTSVRG(step, period=1), tracking
    x = cases.START
    y = gradient(cases.START)
    before = y
    after = []
    for _ in range(ROUNDS):
        x = weights @ (x - step * y)
        y = weights @ (y + gradient(x) - before)
        before = gradient(x)
        after.append(x)
    result["gradient tracking, all combined"] = GTVR(step, probability=1.0), after
    everything = GTSAGA(step, batch=max(SIZES))
    result["gradient tracking along all samples"] = everything, tracking
    x = cases.START
    psi = cases.START
    diffusion = []
    for _ in range(ROUNDS):
        new = x - step * gradient(x)
        x = lazy @ (new + x - psi)
        psi = new
        diffusion.append(x)
    result["exact diffusion"] = ProxSkip(step, 1.0), diffusion
    two_weights = (
        lazy,
        step,
        ROUNDS,
        cases.START,
    )  # the paper's matrix is lazy, and (I + A) / 2 here
    result["D2"] = ExactDiffusion(step), gossip.d2(objective.gradient, *two_weights)
    strategy = multiagent.strategy(
        objective, np.eye(CLIENTS), np.eye(CLIENTS), weights, lambda n: step, ROUNDS
    )
    result["adapt, then combine"] = (
        ChocoSGD(step, compression=TopK(DIM), consensus_step_size=1.0),
        strategy,
    )
    x = np.zeros(DIM)
    descent = []
    for _ in range(ROUNDS):
        x = x - step * gradient(np.tile(x, (CLIENTS, 1))).mean(axis=0)
        descent.append(np.tile(x, (CLIENTS, 1)))
    result["gradient descent"] = Scaffnew(step, 1.0), descent
    return result


RECURSIONS = recursions()


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", RECURSIONS)
def test_without_saved_gradients_they_coincide_with_others(name):
    algorithm, theirs = RECURSIONS[name]
    ours = models(algorithm)
    close(np.broadcast_to(ours, np.shape(theirs)), theirs, rtol=0, atol=1e-10)
