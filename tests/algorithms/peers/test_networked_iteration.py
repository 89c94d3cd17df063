"""FedRelax, FedGD, FedSGD and custom operators: asynchronous loops, the closed form they end at."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import FedGD, FedRelax, NetworkedFedSGD, NetworkedIteration
from fljax.participation.patterns import Bernoulli, Trace
from fljax.problems import GTVMin, Logistic, SquaredL2, from_clients
from fljax.problems.batches import CyclicBatches, Uniform
from tests.cases import CLIENTS, DIM, SIZES, keys_of, make_data
from tests.reference import networks
from tests.support.learning_networks import (
    ADJACENCY,
    ALONE,
    DATA,
    ISOLATED,
    POINTS,
    START,
    UNLABELED,
    full_gradient,
    node_models,
    operated,
    quadratic_problem,
    weighted_network,
)
from tests.support.marks import quiet

close = np.testing.assert_allclose


RNG = np.random.default_rng(3)
EVENTS = 14
LONGEST = 3
ACTIVE = RNG.random((EVENTS, CLIENTS)) < 0.6
AGES = RNG.integers(0, LONGEST + 1, (EVENTS, CLIENTS, CLIENTS)).astype(np.int32)
#: What is shared after one event is heard in the next.
DELAY = np.concatenate([np.zeros_like(AGES[:1]), AGES[:-1]])
LATE = {"participation": Trace(ACTIVE), "delays": fl.link.EdgeDelays(AGES, LONGEST)}
STEPS = np.array([0.03, 0.05, 0.02, 0.04, 0.06])


def rows_of(batches, rounds=EVENTS, key=1):
    """``[T][K]``: the samples of the batches that a run drew."""
    real = jnp.asarray(np.arange(max(SIZES)) < np.array(SIZES)[:, None])
    everyone = jnp.arange(CLIENTS)
    result = []
    for n, now in enumerate(keys_of(key, rounds), start=1):
        rows = batches.at(n, 1).draw(key_of(now, "batches"), real, everyone, 1).rows[:, 0]
        result.append(
            [
                [r for r in client_rows if r < SIZES[k]]
                for k, client_rows in enumerate(rows.tolist())
            ]
        )
    return result


def noisy(key, problem, models):
    return problem.gradient(models) + jax.random.normal(key, models.shape, models.dtype)


def gradient_loop(gradient, coupling=0.4, step=lambda k, t: STEPS[k]):
    return networks.gradient_step(gradient, ADJACENCY, coupling, step)


def on_batches(batches):
    rows = rows_of(batches)
    return lambda k, w, t: networks.mean_squared_slope(DATA, k, w, rows[t][k])


def in_passes(size):
    """Consecutive batches from the first sample to the last, restarting in each pass."""

    def gradient(k, w, t):
        starts = range(0, SIZES[k], size)
        first = starts[t % len(starts)]
        rows = range(first, min(first + size, SIZES[k]))
        return networks.mean_squared_slope(DATA, k, w, rows)

    return gradient


def by_oracle(k, w, t):
    noise = jax.random.normal(key_of(keys_of(1, EVENTS)[t], "algorithm"), (CLIENTS, DIM), float)
    return full_gradient(k, w, t) + np.asarray(noise)[k]


AGAINST_LOOPS = {
    "FedRelax": lambda: (FedRelax(0.4), networks.relaxation(DATA, ADJACENCY, 0.4)),
    "FedGD": lambda: (FedGD(0.4, STEPS), gradient_loop(full_gradient)),
    "FedRelax, by parameter": lambda: (
        FedRelax([0.4, 0.0, 1.1]),
        networks.relaxation(DATA, ADJACENCY, np.array([0.4, 0.0, 1.1])),
    ),
    "FedRelax, by the norm": lambda: (
        FedRelax(0.1, 1000, fl.problems.Norm()),
        networks.relaxation_by_norm(DATA, ADJACENCY, 0.1),
    ),
    "FedGD, by parameter": lambda: (
        FedGD([0.4, 0.0, 1.1], fl.schedules.PowerDecay(0.1)),
        gradient_loop(full_gradient, np.array([0.4, 0.0, 1.1]), lambda k, t: 0.1 / (t + 1) ** 0.5),
    ),
    "FedSGD, cyclic": lambda: (
        NetworkedFedSGD(0.4, STEPS, batches=CyclicBatches(5)),
        gradient_loop(on_batches(CyclicBatches(5))),
    ),
    "FedSGD, cyclic, the last batch short": lambda: (
        NetworkedFedSGD(0.4, STEPS, batches=CyclicBatches(5, whole=False)),
        gradient_loop(in_passes(5)),
    ),
    "FedSGD, random": lambda: (
        NetworkedFedSGD(0.4, STEPS, batches=Uniform(3)),
        gradient_loop(on_batches(Uniform(3))),
    ),
    "FedSGD, oracle": lambda: (NetworkedFedSGD(0.4, STEPS, oracle=noisy), gradient_loop(by_oracle)),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", AGAINST_LOOPS)
def test_asynchronous_nodes_equal_the_loop(name):
    """(128)-(130), with its alpha: resting nodes keep their models, receive on, and continue from
    there.
    """
    algorithm, operator = AGAINST_LOOPS[name]()
    result = node_models(algorithm, EVENTS, **LATE)
    expected = networks.asynchronous(operator, START, ACTIVE, DELAY)
    close(result, expected, rtol=1e-10, atol=1e-12)
    synchronous = networks.synchronous(operator, START, EVENTS)
    assert np.abs(result - synchronous).max() > 1e-3
    if name == "FedRelax":  # the same program: all there, nothing late
        nobody = {
            "participation": Trace(~np.zeros_like(ACTIVE)),
            "delays": fl.link.EdgeDelays(0 * AGES, 3),
        }
        close(node_models(algorithm, EVENTS, **nobody), synchronous, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedRelax(0.4), FedGD(0.4)], ids=["FedRelax", "FedGD"])
def test_totally_asynchronous_nodes_come_to_the_same_models(algorithm):
    rare = Bernoulli(np.array([0.9, 0.3, 0.05, 0.5, 0.1]))
    late = fl.link.Geometric(0.8, 30, beyond="clip")
    result = node_models(algorithm, 6000, participation=rare, delays=late)[-1]
    close(result, networks.closed_form(DATA, ADJACENCY, 0.4), atol=1e-10)


@pytest.mark.thin(1)
@pytest.mark.parametrize("make", [FedRelax, FedGD], ids=["FedRelax", "FedGD"])
def test_the_fixed_point_is_the_closed_form(make):
    """One program for all couplings: alone at zero, one model where it is large."""
    for coupling in (0.0, 0.3, 5.0):
        result = node_models(make(coupling), 3000)[-1]
        close(result, networks.closed_form(DATA, ADJACENCY, coupling), atol=1e-10)
        if not coupling:
            close(result, ALONE, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedRelax, FedGD], ids=["FedRelax", "FedGD"])
def test_a_large_coupling_leaves_one_model(make):
    pooled = np.asarray(fl.problems.optimum(quadratic_problem()))
    far = networks.closed_form(DATA, ADJACENCY, 1e7)
    close(far, np.tile(pooled, (CLIENTS, 1)), atol=1e-5)
    close(operated(make(1e7), far), far, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [FedRelax, FedGD, partial(NetworkedFedSGD, batches=CyclicBatches(12))]
)
def test_other_losses_reach_the_gtvmin_solution(make):
    data = make_data("logistic")
    logistic = from_clients(data, Logistic(), SquaredL2(), 0.5)
    best = np.asarray(GTVMin(logistic, weighted_network(), 0.2).solve())
    result = node_models(make(0.2), 4000, problem=logistic)[-1]
    close(result, best, atol=1e-9)
    assert np.ptp(best, axis=0).max() > 0.1


@quiet
@pytest.mark.parametrize("make", [FedRelax, pytest.param(FedGD, marks=pytest.mark.slow)])
def test_nodes_without_labels_or_without_neighbors(make):
    """The one learns from its neighbors alone, the other from its data alone."""
    partly_labeled = quadratic_problem().weighing(UNLABELED)
    options = {
        "problem": partly_labeled,
        "network": weighted_network(ISOLATED),
        "allow_disconnected": True,
    }
    result = node_models(make(0.3), 4000, **options)
    data = [pair if labeled else None for pair, labeled in zip(DATA, UNLABELED, strict=True)]
    expected = networks.closed_form(data[:4], ISOLATED[:4, :4], 0.3)
    close(result[-1, :4], expected, atol=1e-10)
    close(result[-1, 4], ALONE[4], atol=1e-10)
    close(result[-1, 2], ISOLATED[2] @ result[-1] / ISOLATED[2].sum(), atol=1e-10)
    # Who has neither stays where it started.
    lost = quadratic_problem().weighing([1.0, 1.0, 1.0, 1.0, 0.0]).starting_at(jnp.asarray(POINTS))
    result = operated(make(0.3), **(options | {"problem": lost}))
    close(result[4], POINTS[4], rtol=1e-15)
    assert np.isfinite(result).all()


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedRelax, FedGD], ids=["FedRelax", "FedGD"])
def test_on_a_changing_graph_received_models_keep_their_weights(make):
    """Round n updates over the graph of round n - 1, over which it heard."""
    other = networks.weights_of(CLIENTS, [(0, 1, 2.0), (2, 3, 0.5), (3, 4, 1.5)])
    graphs = [ADJACENCY, other]
    varying = fl.graphs.GraphSchedule([weighted_network(), weighted_network(other)])
    result = node_models(make(0.4), 7, network=varying)
    expected = []
    now = START
    if make is FedGD:  # the default step on each graph
        top = max(np.linalg.eigvalsh(2 * X.T @ X / len(y))[-1] for X, y in DATA)
    for n in range(7):
        graph = graphs[max(0, n - 1) % 2]
        operator = networks.relaxation(DATA, graph, 0.4)
        if make is FedGD:
            step = 1 / (top + 4 * 0.4 * graph.sum(axis=1).max())
            operator = networks.gradient_step(full_gradient, graph, 0.4, lambda k, t, s=step: s)
        now = networks.synchronous(operator, now, 1)[0]
        expected.append(now)
    close(result, expected, rtol=5e-3 if make is FedGD else 1e-10, atol=1e-10)


@fl.module
class Linearized(NetworkedIteration):
    """FedRelax with its loss replaced by the tangent and a proximity of 1 / (2 step)."""

    coupling: float
    step_size: float

    def operator(self, state, now):
        weight = 2 * self.coupling * state.degree[:, None]
        right = state.model / self.step_size + weight * state.received
        right = right - now.problem.gradient(state.model)
        return right / (1 / self.step_size + weight)


def test_a_custom_operator():
    """Exercise 5.7: the linearized FedRelax is FedGD with steps of each node."""
    steps = 0.05 / (1 + 2 * 0.4 * 0.05 * ADJACENCY.sum(axis=1))
    close(operated(Linearized(0.4, 0.05)), operated(FedGD(0.4, steps)), rtol=1e-12)
