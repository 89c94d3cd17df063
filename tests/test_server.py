"""One model by a server and local steps: against loops, at their fixed points, at their limits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

import fljax as fl
from fljax._linalg import onto_simplex
from fljax._numerics import key_of
from fljax.algorithms import (
    AFL,
    DANE,
    MIME,
    SCAFFOLD,
    ExactFedProx,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedExP,
    FedLT,
    FedNova,
    FedOpt,
    FedPD,
    FedProx,
    FedSAM,
    FedYogi,
    MIMELite,
    QFedAvg,
)
from fljax.batches import Uniform
from fljax.engine import trace
from fljax.link import Fixed, Quantize
from fljax.metrics import Metric
from fljax.participation import Trace, Unequal
from fljax.privacy import CentralGaussian
from fljax.problems import LeastSquares, from_clients, optimum
from fljax.schedules import PowerDecay
from tests import small_network
from tests.cases import (
    CLIENTS,
    DIM,
    EXACT,
    ROUNDS,
    SERVER_LOOPS,
    SIZES,
    keys_of,
    make_data,
    make_objective,
    make_problem,
)
from tests.reference import nfl, server

close = np.testing.assert_allclose

FALLING = PowerDecay(0.1, 0.3)
UNLIKE = (3, 1, 5, 2, 4)
EQUAL = {"weighting": "equal"}
THERE = np.random.default_rng(3).uniform(size=(ROUNDS, CLIENTS)) < 0.7
THERE[3] = False  # nobody

_trace = jax.jit(
    trace, static_argnums=(2, 3), compiler_options={"xla_backend_optimization_level": 0}
)


def trajectory(algorithm, problem=None, rounds=ROUNDS, key=1, metric=EXACT, **parts):
    """``[T, D]``, the server's model of every round."""
    problem = make_problem() if problem is None else problem
    simulation = fl.Simulation(problem, algorithm, metrics=(metric,), **parts)
    result = _trace(simulation, fl.random_key(key), rounds, 1)[0][metric.name]
    return np.asarray(result)[:, 0] if metric is EXACT else np.asarray(result)


# Reptile -----------------------------------------------------------------------------------------


def test_reptile_is_fedopt_that_steps_towards_the_mean():
    """Nichol, Achiam & Schulman 2018, Algorithm 2, with a step that falls to zero."""
    falling = optax.linear_schedule(0.8, 0.0, ROUNDS)
    algorithm = FedOpt(0.05, server=optax.sgd(falling), weighting="equal", local_steps=3)
    objective, phi, theirs = make_objective(), np.zeros(DIM), []
    for n in range(ROUNDS):
        adapted = []
        for k in range(CLIENTS):
            w = phi
            for _ in range(3):
                w = w - 0.05 * objective.gradient(k, w)
            adapted.append(w)
        phi = phi + 0.8 * (1 - n / ROUNDS) * np.mean([w - phi for w in adapted], axis=0)
        theirs.append(phi)
    # optax's schedules are of single precision.
    np.testing.assert_allclose(trajectory(algorithm), theirs, rtol=0, atol=1e-7)
    with pytest.raises(AttributeError, match=r"^Reptile is fljax.algorithms.FedOpt with server="):
        fl.algorithms.Reptile


# DANE --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dane_of_clients_that_are_alike_is_newtons_step():
    """One round leaves of the error the share mu / (h + mu) in each direction; of others, more."""
    alike = make_problem(data=tuple(make_data()[:1] * CLIENTS))
    best = fl.problems.optimum(alike)
    near = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-8)
    near(trajectory(DANE(1e-9), alike, rounds=1)[0], best)
    near(trajectory(DANE(1e-9, step_size=0.5), alike, rounds=1)[0], best / 2)
    unlike = make_problem()
    error = trajectory(DANE(1.0), unlike, rounds=24) - np.asarray(optimum(unlike))
    falls = -np.diff(np.log10(np.linalg.norm(error, axis=1)[::6]))
    assert falls.min() > 0.4
    assert falls.max() < 1.5 * falls.min()


@pytest.mark.slow
def test_dane_goes_by_the_participants_alone():
    chosen = DANE(1.0, clients_per_round=2)
    objective, x, theirs = make_objective(), np.zeros(DIM), []
    for now in keys_of(1)[:4]:
        key, everyone = key_of(now, "participation"), jnp.ones(CLIENTS, bool)
        who = chosen.selection.choose(key, everyone, None).numbers.tolist()
        slopes = {k: objective.gradient(k, x) for k in who}
        mean = sum(slopes.values()) / len(slopes)
        x = np.mean([nfl.prox(objective, k, 1.0, x + slopes[k] - mean) for k in slopes], axis=0)
        theirs.append(x)
    np.testing.assert_allclose(trajectory(chosen, rounds=4), theirs, rtol=0, atol=1e-10)


# Against the loops -------------------------------------------------------------------------------


def visits_of(algorithm, available, sizes, seed=1):
    """Who takes part, and the rows of each of their steps: the library's own draws."""
    result = []
    real = np.arange(max(sizes)) < np.array(sizes)[:, None]
    longest = algorithm._longest(max(sizes))
    for n, there in enumerate(available, 1):
        now = jax.random.fold_in(fl.random_key(seed), n)
        who = algorithm.selection.choose(key_of(now, "participation"), jnp.asarray(there), None, n)
        numbers = np.asarray(who.numbers)
        steps = algorithm.epochs if algorithm.local_steps is None else algorithm.local_steps
        steps = np.broadcast_to(steps, len(sizes))
        if (law := algorithm._law) is None:
            rows = [[None] * int(steps[k]) for k in numbers]
        else:
            drawn = law.at(jnp.asarray(n), longest).draw(
                key_of(now, "batches"), jnp.asarray(real[numbers]), who.numbers, longest
            )
            limit = np.full(len(sizes), longest) if algorithm.local_steps is None else steps
            rows = [own(drawn.rows[i][: limit[k]], sizes[k]) for i, k in enumerate(numbers)]
        here = np.asarray(who.here)
        result.append({int(k): rows[i] for i, k in enumerate(numbers) if here[i]})
    return result


def own(rows, size):
    """Of one client, without padding and without batches of nothing."""
    cut = [row[row < size] for row in np.asarray(rows)]
    return [row for row in cut if len(row)]


def world_of(algorithm, gradient, objective, start, available, sizes=SIZES):
    counts = np.array(sizes, float)
    weights = counts if getattr(algorithm, "weighting", None) == "samples" else np.ones(len(sizes))
    visits = visits_of(algorithm, available, sizes)
    return server.World(gradient, start, weights, visits, objective.value)


def talks(algorithm, rounds, seed=1):
    """In which rounds clients that skip some talk."""
    keys = [jax.random.fold_in(fl.random_key(seed), n) for n in range(1, rounds + 1)]
    probability = [float(jax.random.uniform(key_of(key, "algorithm"), dtype=float)) for key in keys]
    return np.array(probability) >= float(algorithm.skipping)


@functools.cache
def by_rows(name):
    objective = make_objective(name)

    def gradient(k, w, rows):
        if rows is None:
            return objective.gradient(k, w)
        X, y = objective.data[k]
        data = (*objective.data[:k], (X[rows], y[rows]), *objective.data[k + 1 :])
        return dataclasses.replace(objective, data=data).gradient(k, w)

    return objective, gradient


FORMS = [
    FedOpt(FALLING, 4, 2, 3, server=optax.sgd(0.7)),
    FedAvgM(0.03, 3, momentum=0.5),
    FedAdagrad(0.05, 4, 2, 3, server_step_size=FALLING, momentum=0.3, adaptivity=0.01),
    FedYogi(
        0.05, epochs=2, server_step_size=0.1, momentum=0.3, decay=0.8, adaptivity=0.02, **EQUAL
    ),
    FedAdam(0.05, 4, server_step_size=FALLING, momentum=0.5, decay=0.7, adaptivity=0.02),
    FedProx(FALLING, attraction=0.7, local_steps=UNLIKE),
    FedProx(0.05, 3, 2, 4, attraction=2.0, **EQUAL),
    SCAFFOLD(FALLING, 4, 2, 3),
    SCAFFOLD(
        0.05, 3, server_step_size=0.8, variate="gradient", batches=Uniform(2), local_steps=UNLIKE
    ),
    SCAFFOLD(0.05, selector=Unequal(2, [0.1, 0.3, 0.15, 0.25, 0.2]), local_steps=2),
    FedNova(FALLING, 4, 2, 3),
    FedNova(0.03, momentum=0.6, local_steps=UNLIKE),
    FedNova(0.05, 3, 2, 4, attraction=1.5, **EQUAL),
    FedDyn(FALLING, 4, 2, 4, attraction=2.0),
    FedDyn(0.05, attraction=1.0, local_steps=UNLIKE),
    MIME(FALLING, 4, 2, 3, momentum=0.5),
    MIME(0.05, local_steps=UNLIKE, **EQUAL),
    MIMELite(FALLING, 4, 2, 3, momentum=0.5, **EQUAL),
    QFedAvg(FALLING, 4, 2, 3, fairness=2.0),
    QFedAvg(0.05, fairness=0.5, curvature=30.0, local_steps=UNLIKE),
    AFL(FALLING, 4, 2, 3, mixture_step_size=FALLING),
    AFL(0.05, mixture_step_size=0.3, local_steps=UNLIKE),
    FedExP(FALLING, 4, 2, 3, damping=1e-4, weighting="samples"),
    FedExP(0.05, damping=0.01, local_steps=UNLIKE),
    FedSAM(FALLING, 4, 2, 3, radius=0.3),
    FedSAM(0.05, radius=0.1, local_steps=UNLIKE, **EQUAL),
    FedPD(FALLING, penalty=0.5, skipping=0.4, local_steps=UNLIKE),
    FedPD(0.05, 4, 2, 3, penalty=0.7),
    FedLT(FALLING, 4, 2, 3, penalty=0.5),
    FedLT(0.05, penalty=1.0, local_steps=UNLIKE),
]


def describe(algorithm):
    return type(algorithm).__name__


def theirs(algorithm, *given):
    world = world_of(algorithm, *given)
    skips = talks(algorithm, len(world.visits)) if isinstance(algorithm, FedPD) else None
    return SERVER_LOOPS[type(algorithm)](algorithm, world, skips)


@pytest.mark.slow
@pytest.mark.thin(2, every=16)
@pytest.mark.parametrize("algorithm", FORMS, ids=describe)
def test_models_are_those_of_the_loops(algorithm):
    """Of some clients, of which some are away, in batches, of unlike numbers of steps."""
    name = "logistic" if isinstance(algorithm, QFedAvg | FedLT) else "ridge"
    objective, gradient = by_rows(name)
    expected = theirs(algorithm, gradient, objective, np.zeros(DIM), THERE)
    result = trajectory(algorithm, make_problem(name), participation=Trace(THERE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2
    close(expected[3], expected[2], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.thin(2, every=16)
@pytest.mark.parametrize("algorithm", FORMS, ids=describe)
def test_networks_learn_as_in_the_loops(algorithm):
    problem = small_network.from_zero(SIZES)
    objective = small_network.Objective(tuple(small_network.samples(SIZES)))
    start = np.zeros(objective.dim)
    expected = theirs(algorithm, objective.gradient, objective, start, THERE[:6])
    result = trajectory(algorithm, problem, 6, participation=Trace(THERE[:6]))
    close(result, expected, rtol=0, atol=1e-8)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3


# What they are where they are something else -----------------------------------------------------

BATCHES = (FALLING, 4, 2, 3)
SAME = {
    "FedOpt with steps of one": (FedOpt(*BATCHES, server=optax.sgd(1.0)), FedAvg(*BATCHES)),
    "FedOpt with momentum": (
        FedOpt(*BATCHES, server=optax.sgd(1.0, momentum=0.6)),
        FedAvgM(*BATCHES, momentum=0.6),
    ),
    "q = 0": (QFedAvg(*BATCHES, fairness=0.0), FedAvg(*BATCHES)),
    "a mixture that stays": (AFL(*BATCHES, mixture_step_size=1e-15), FedAvg(*BATCHES, **EQUAL)),
    "no radius": (FedSAM(*BATCHES, radius=0.0), FedAvg(*BATCHES)),
    "much damping": (FedExP(*BATCHES, damping=1e9), FedAvg(*BATCHES, **EQUAL)),
    "no attraction": (FedProx(*BATCHES, attraction=0.0), FedAvg(*BATCHES)),
    "MIMELite without momentum": (MIMELite(*BATCHES), FedAvg(*BATCHES)),
    "FedNova of equal steps": (
        FedNova(FALLING, 3, local_steps=3),
        FedAvg(FALLING, 3, local_steps=3),
    ),
    "FedNova with attraction, of equal steps": (
        FedNova(FALLING, 3, local_steps=3, attraction=0.8),
        FedProx(FALLING, 3, local_steps=3, attraction=0.8),
    ),
    "FedNova with momentum, of equal steps": (
        FedNova(0.05, 3, local_steps=3, momentum=0.8),
        FedAvg(optax.sgd(0.05, momentum=0.8), 3, local_steps=3),
    ),
    "MIME of one step": (MIME(FALLING, 3), FedAvg(FALLING, 3)),
    "SCAFFOLD of one step, all clients": (SCAFFOLD(FALLING), FedAvg(FALLING, **EQUAL)),
    "an optimizer of MIME's": (
        MIME(optax.sgd(0.05), 3, local_steps=3),
        MIME(0.05, 3, local_steps=3),
    ),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("pair", SAME)
def test_they_are_others_at_their_limits(pair):
    one, other = SAME[pair]
    close(trajectory(one), trajectory(other), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_many_steps_are_the_exact_proximal_step():
    result = trajectory(FedProx(0.05, attraction=4.0, local_steps=300, **EQUAL))
    close(result, trajectory(ExactFedProx(2 / 4.0)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [MIME, MIMELite])
def test_one_step_of_mime_is_its_optimizer_on_all_data(kind):
    """Adam by hand along the mean gradient: MIMELite's clients see their own in its moments."""
    problem, adam = make_problem(), optax.adam(0.1, b1=0.8)
    with jax.numpy_dtype_promotion("standard"):
        w = jnp.zeros(DIM)
        memory, history = adam.init(w), []
        for _ in range(6):
            slope = jnp.mean(problem.gradient(jnp.tile(w, (CLIENTS, 1))), axis=0)
            change, memory = adam.update(slope, memory)
            w = w + change
            history.append(w)
    result = trajectory(kind(adam, **EQUAL), rounds=6)
    far = np.abs(result - np.array(history)).max()
    assert far < 1e-12 if kind is MIME else far > 1e-3


# Fixed points ------------------------------------------------------------------------------------

MANY = {"local_steps": 10}
EXACT_ONES = [
    SCAFFOLD(0.05, **MANY),
    SCAFFOLD(0.05, variate="gradient", **MANY),
    SCAFFOLD(0.05, 2, **MANY),
    FedDyn(0.05, attraction=2.0, **MANY),
    FedDyn(0.05, 2, attraction=2.0, **MANY),
    FedDyn(optax.sgd(0.05, momentum=0.5), attraction=2.0, **MANY),
    FedPD(0.05, penalty=0.5, **MANY),
    FedPD(0.05, 2, penalty=0.5, **MANY),
    FedLT(0.05, penalty=0.5, **MANY),
    FedLT(0.05, 2, penalty=0.5, **MANY),
    MIME(0.05, momentum=0.5, **MANY, **EQUAL),
]


@pytest.mark.thin(2)
@pytest.mark.parametrize("algorithm", EXACT_ONES, ids=describe)
def test_the_optimum_is_reached_at_constant_steps_whoever_differs(algorithm):
    """With many local steps, and for most of them whoever takes part."""
    best = np.asarray(optimum(make_problem()))
    rounds = 3000
    close(trajectory(algorithm, rounds=rounds)[-1], best, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(0.05, **MANY, **EQUAL), FedProx(0.05, attraction=2.0, **MANY, **EQUAL)],
    ids=describe,
)
def test_others_stop_short_of_it(algorithm):
    best, last = np.asarray(optimum(make_problem())), trajectory(algorithm, rounds=500)
    close(last[-1], last[-2], rtol=0, atol=1e-12)
    assert np.abs(last[-1] - best).max() > 1e-2


@pytest.mark.slow
def test_skipping_costs_fedpd_its_exactness_where_clients_differ():
    best, skipping = np.asarray(optimum(make_problem())), FedPD(0.05, penalty=0.5, skipping=0.3)
    far = np.abs(trajectory(skipping, rounds=1000)[-100:] - best).max()
    assert 1e-4 < far < 0.3
    alike = make_problem(data=make_data()[:1] * CLIENTS)
    last = trajectory(skipping, alike, rounds=1000)[-1]
    close(last, np.asarray(optimum(alike)), rtol=0, atol=1e-8)


@jax.jit
def moved(algorithm, models):
    """Each of several models by a round from it."""
    now = fl.view(fl.Simulation(make_problem(), algorithm))
    state = algorithm.init(now.problem, None)
    return jax.vmap(lambda model: algorithm.step(state._replace(model=model), now).model)(models)


def fixed_point(algorithm):
    """Where a round of an affine step of one model stays."""
    shift, *columns = np.asarray(moved(algorithm, jnp.eye(DIM + 1, DIM, -1)))
    linear = np.stack(columns, axis=1) - shift[:, None]
    return np.linalg.solve(np.eye(DIM) - linear, shift)


@pytest.mark.slow
def test_fednova_is_consistent_where_clients_take_unlike_numbers_of_steps():
    r"""As :math:`\mu\to0` it ends at the minimizer of the mean, FedAvg at that of
    :math:`\sum_kE_kf_k`.
    """
    best = np.asarray(optimum(make_problem()))
    weighed = make_problem().weighing(np.array(UNLIKE) / 3)
    weighed = dataclasses.replace(weighed, strength=weighed.strength * np.array(UNLIKE) / 15)
    biased = np.asarray(optimum(weighed))
    assert np.abs(biased - best).max() > 0.03
    steps, result = (1e-2, 1e-3, 1e-4), []
    for kind, goal in ((FedNova, best), (FedAvg, biased)):
        ends = [fixed_point(kind(s, local_steps=UNLIKE, **EQUAL)) for s in steps]
        result.append([np.abs(end - goal).max() for end in ends])
    result = np.array(result)
    assert np.all(result[:, -1] < 1e-3)
    close(result[:, 1] / result[:, 2], 10, rtol=0.05)  # of the order of the step
    momentum = fixed_point(FedNova(1e-4, local_steps=UNLIKE, momentum=0.9, **EQUAL))
    assert np.abs(momentum - best).max() < 1e-2


def test_the_lengths_of_fednova_are_those_of_the_paper():
    def lengths(step, **numbers):
        return FedNova(step, **numbers).lengths(jnp.asarray(step), 6, np.dtype(float))

    for steps, result in enumerate(lengths(0.1)):
        assert result == steps
    for steps, result in enumerate(lengths(0.1, momentum=0.7)):
        rho = 0.7
        close(result, (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho), atol=1e-14)
    for steps, result in enumerate(lengths(0.1, attraction=2.0)):
        close(result, (1 - (1 - 0.2) ** steps) / 0.2, atol=1e-14)


def test_q_fedavg_ends_where_the_fair_objective_is_least():
    r""":math:`\sum_kf_k^qf_k'=0`, and losses differ less than without."""
    objective, spread = make_objective(), []
    for fairness in (0.0, 2.0):
        last = trajectory(QFedAvg(0.1, fairness=fairness, **EQUAL), rounds=2000)[-1]
        losses = np.array([objective.value(k, last) for k in range(CLIENTS)])
        slopes = np.stack([objective.gradient(k, last) for k in range(CLIENTS)])
        close(losses**fairness @ slopes, 0, atol=1e-7)
        spread.append(losses.std())
    assert spread[1] < 0.95 * spread[0]


@pytest.mark.slow
def test_agnostic_learning_ends_at_the_minimax_model():
    """Where no model has a smaller largest loss, found by a solver of the epigraph's form."""
    objective = make_objective()

    def losses(model):
        return np.array([objective.value(k, model) for k in range(CLIENTS)])

    best = scipy.optimize.minimize(
        lambda x: x[-1],
        np.append(np.zeros(DIM), losses(np.zeros(DIM)).max()),
        constraints={"type": "ineq", "fun": lambda x: x[-1] - losses(x[:-1])},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    algorithm = AFL(PowerDecay(0.1, 0.2), mixture_step_size=PowerDecay(0.02, 0.2))
    last = trajectory(algorithm, rounds=4000)[-1]
    close(losses(last).max(), best.fun, rtol=1e-4)
    average = trajectory(FedAvg(0.1, **EQUAL), rounds=500)[-1]
    assert losses(average).max() > 1.05 * best.fun
    mixture = trajectory(
        algorithm, rounds=4000, metric=fl.metrics.trajectory("mixture", ("client",))
    )[-1]
    close(mixture.sum(), 1, rtol=1e-12)
    assert (mixture[losses(last) < 0.98 * best.fun] < 1e-3).all()  # complementary slackness


@pytest.mark.slow
def test_the_mean_of_agnostic_models_is_kept():
    """Of all rounds; as is the mixture of who was lost on the way."""
    parts = {"losses": fl.link.Independent(0.5), "rounds": 6}
    algorithm = AFL(0.1, mixture_step_size=0.1)
    mean = trajectory(algorithm, metric=fl.metrics.trajectory("average", ("parameter",)), **parts)
    close(mean[-1], trajectory(algorithm, **parts).mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_point_goes_to_the_nearest_of_the_simplex(seed):
    point = np.random.default_rng(seed).normal(size=9) * 10.0 ** (seed - 2)
    result = onto_simplex(jnp.asarray(point))
    close(result, server.nearest_on_simplex(point), atol=1e-12)
    close(onto_simplex(result), result, atol=1e-15)


@pytest.mark.slow
def test_clients_drawn_with_unequal_probabilities_ascend_in_the_mean_as_all_would():
    """A client that is drawn half as often counts twice when it is."""
    probability = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
    first = AFL(0.05, selector=Unequal(1, probability), mixture_step_size=1e-3)
    metric = fl.metrics.trajectory("mixture", ("client",))
    moved = np.stack([trajectory(first, rounds=1, key=k, metric=metric)[0] for k in range(40)])
    raised = np.argmax(moved, axis=1)
    losses = np.array([make_objective().value(k, np.zeros(DIM)) for k in range(CLIENTS)])
    gap = moved[np.arange(40), raised] - np.sort(moved, axis=1)[:, -2]
    close(gap, 1e-3 * losses[raised] / probability[raised], rtol=1e-8)
    assert len(set(raised.tolist())) > 2


@pytest.mark.slow
def test_extrapolation_leads_nowhere_away_from_a_common_minimizer():
    """As the paper's POCS: the way to it shrinks in every round, by more than without."""
    rng, truth = np.random.default_rng(5), np.arange(1.0, DIM + 1)
    inputs = rng.normal(size=(CLIENTS, 1, DIM))
    problem = from_clients([(x, x @ truth) for x in inputs], LeastSquares())

    def ways(algorithm):
        return np.linalg.norm(trajectory(algorithm, problem, 20) - truth, axis=1)

    extrapolated = ways(FedExP(0.1, damping=1e-12, **MANY))
    assert np.all(np.diff(extrapolated) < 0)
    assert extrapolated[-1] < 0.5 * ways(FedAvg(0.1, **MANY))[-1]


@pytest.mark.slow
def test_clients_that_agree_are_not_extrapolated():
    alike = make_problem(data=make_data()[:1] * CLIENTS)
    both = FedExP(0.05, damping=1e-12, **MANY), FedAvg(0.05, **MANY)
    close(*(trajectory(one, alike) for one in both), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_sharpness_aware_steps_go_to_and_fro_about_the_minimum():
    r"""At a distance of :math:`\mu a\rho/(2-\mu a)`, where the curvature is :math:`a`."""
    step, radius, truth = 0.1, 0.3, np.arange(1.0, DIM + 1)
    inputs = np.sqrt(DIM) * np.eye(DIM)
    problem = from_clients([(inputs, inputs @ truth)] * CLIENTS, LeastSquares())
    last = trajectory(FedSAM(step, radius=radius), problem, 400)[-2:] - truth
    close(last[0], -last[1], rtol=1e-9)
    expected = step * 2 * radius / (2 - step * 2)  # the loss is the square itself
    close(np.linalg.norm(last, axis=1), expected, rtol=1e-9)


@pytest.mark.parametrize("step", [0.05, 0.3])
def test_errors_of_scaffolds_variates_feed_back(step):
    """By what its docstring says, a round: along negative curvature they grow if steps are long."""
    curvature, steps, drifts = np.array([2.0, 0.5, -1.0]), 10, np.eye(3)
    network = fl.models.plain(lambda key: jnp.ones(3), lambda w, x: w @ (curvature * w / 2) - x @ w)
    problem = fl.problems.Model(
        drifts[:, None], np.zeros((3, 1)), lambda loss, _: loss, architecture=network
    )
    result = trajectory(
        SCAFFOLD(step, local_steps=steps),
        problem.initialized(jax.random.key(0)),
        6,
        metric=part("controls"),
    )
    errors = result - result.mean(axis=1, keepdims=True) + drifts - drifts.mean(axis=0)
    factor = 1 - np.mean((1 - step * curvature) ** np.arange(steps)[:, None], axis=0)
    before = np.concatenate([(drifts - drifts.mean(axis=0))[None], errors[:-1]])
    close(errors, factor * before, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.abs(factor) < 1, [True, True, step == 0.05])


# What meets them on the way ----------------------------------------------------------------------


#: What the server has of its clients' corrections, and their mean.
MEANS = {
    "SCAFFOLD": (SCAFFOLD(0.05, 3, local_steps=3), "control", "controls"),
    "FedDyn": (FedDyn(0.05, 3, local_steps=3, attraction=2.0), "correction", "gradients"),
    "Fed-LT": (FedLT(0.05, 3, local_steps=3, penalty=0.5), "model", "auxiliary"),
    "FedPD": (FedPD(0.05, 3, local_steps=3, penalty=0.5), "model", "said"),
}


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.thin(0, every=4)
def test_the_server_knows_the_mean_of_its_clients_corrections(name):
    """Of all of them, whoever takes part; of late ones when they are there."""
    algorithm, at_server, at_clients = MEANS[name]
    for lag, parts in ((0, {"participation": Trace(THERE)}), (2, {"delays": Fixed(2)})):
        own, all_of_them = (
            trajectory(algorithm, metric=part(name), **parts) for name in (at_server, at_clients)
        )
        mean = all_of_them.mean(axis=1)
        close(own[lag:], mean[: ROUNDS - lag], rtol=0, atol=1e-12)
        assert np.abs(np.diff(own, axis=0)).max() > 1e-3


def part(name):
    """Of the state, round by round."""
    return Metric("part", lambda now: getattr(now.state, name), name)


def test_the_drift_of_clients_is_that_of_their_local_steps():
    """Three steps along the gradient from the server's model, at some, none and all clients."""
    problem = make_problem()
    here = np.array([[True, False, True, False, False], [False] * 5, [True] * 5])
    algorithm = FedAvg(0.05, local_steps=3)
    given = (problem, algorithm, None, None, ["client_drift", fl.metrics.trajectory("model")])
    simulation = fl.Simulation(*given, participation=Trace(here))
    run = fl.run(simulation, rounds=3)
    server = np.zeros(DIM)
    for done, present in enumerate(here):
        local = np.tile(server, (CLIENTS, 1))
        for _ in range(3):
            local = local - 0.05 * np.asarray(problem.unweighted().gradient(local))
        drift = ((local - server) ** 2).sum(axis=1)[present]
        expected = drift.mean() if present.any() else np.nan
        close(run.client_drift[done], expected, rtol=1e-10)
        server = np.asarray(run.model_trajectory[done, 0])
    with pytest.raises(ValueError, match="has no local steps that start at a server"):
        fl.run(dataclasses.replace(simulation, algorithm=fl.algorithms.ExactFedProx(0.1)), rounds=1)


@pytest.mark.slow
def test_skipped_rounds_are_silent():
    algorithm = FedPD(0.05, penalty=0.5, skipping=0.4)
    results = fl.run(fl.Simulation(make_problem(), algorithm), ROUNDS, key=fl.random_key(1))
    spoken = np.cumsum(talks(algorithm, ROUNDS)) * 2 * CLIENTS
    np.testing.assert_array_equal(results.messages.values, spoken)
    assert 0 < spoken[-1] < ROUNDS * 2 * CLIENTS


@pytest.mark.slow
def test_a_private_server_steps_by_any_rule():
    """Noise is in the change that its optimizer meets; clients count alike."""
    parts = {"privacy": CentralGaussian(0.7, 0.4)}
    plain = trajectory(FedAvg(0.05, **EQUAL), **parts)
    same = trajectory(FedOpt(0.05, server=optax.sgd(1.0), **EQUAL), **parts)
    close(same, plain, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="gives clients weights"):
        fl.Simulation(make_problem(), FedAvgM(0.05, weighting="samples"), **parts)


@pytest.mark.slow
def test_compressed_corrections_still_lead_near_the_optimum():
    best = np.asarray(optimum(make_problem()))
    last = trajectory(SCAFFOLD(0.05, **MANY), rounds=400, compression=Quantize(8))[-1]
    assert 0 < np.abs(last - best).max() < 1e-2


# What is refused ---------------------------------------------------------------------------------

REFUSED = {
    "no optimizer": (TypeError, lambda: FedOpt(0.1, server=0.1), "must be an optax.Gradient"),
    "momentum of one": (ValueError, lambda: FedAvgM(0.1, momentum=1.0), "momentum must be .*< 1"),
    "no adaptivity": (
        ValueError,
        lambda: FedAdam(0.1, server_step_size=0.1, adaptivity=0.0),
        "adaptivity must be finite and > 0, got 0",
    ),
    "decay of one": (
        ValueError,
        lambda: FedYogi(0.1, server_step_size=0.1, decay=1.0),
        "decay must be finite and >= 0 and < 1, got 1",
    ),
    "no server step": (
        ValueError,
        lambda: FedAdagrad(0.1, server_step_size=0.0),
        "step size must be finite and > 0, got 0",
    ),
    "a variate of none": (
        ValueError,
        lambda: SCAFFOLD(0.1, variate="gradients"),
        "Did you mean 'gradient'",
    ),
    "an optimizer in SCAFFOLD": (
        ValueError,
        lambda: SCAFFOLD(optax.sgd(0.1)),
        "SCAFFOLD needs the size of its clients' steps.*give step_size a number",
    ),
    "an optimizer in FedNova": (ValueError, lambda: FedNova(optax.sgd(0.1)), "FedNova needs"),
    "an optimizer in q-FedAvg": (
        ValueError,
        lambda: QFedAvg(optax.sgd(0.1), fairness=1.0),
        "q-FedAvg needs",
    ),
    "negative fairness": (
        ValueError,
        lambda: QFedAvg(0.1, fairness=-1.0),
        "fairness must be finite and >= 0, got -1",
    ),
    "no curvature": (
        ValueError,
        lambda: QFedAvg(0.1, fairness=1.0, curvature=0.0),
        "curvature must be finite and > 0, got 0",
    ),
    "a mixture without a step": (
        ValueError,
        lambda: AFL(0.1, mixture_step_size=0.0),
        "step size must be finite and > 0, got 0",
    ),
    "masks over a mixture": (
        ValueError,
        lambda: fl.Simulation(
            make_problem(),
            AFL(0.1, mixture_step_size=0.1),
            masks=fl.link.SecureAggregation(1.0),
        ),
        "AFL uses more of clients' messages than one sum",
    ),
    "no damping": (
        ValueError,
        lambda: FedExP(0.1, damping=0.0),
        "damping must be finite and > 0, got 0",
    ),
    "a negative radius": (
        ValueError,
        lambda: FedSAM(0.1, radius=-0.1),
        "radius must be finite and >= 0, got -0.1",
    ),
    "no attraction in FedDyn": (
        ValueError,
        lambda: FedDyn(0.1, attraction=0.0),
        "attraction must be finite and > 0, got 0",
    ),
    "repulsion": (
        ValueError,
        lambda: FedProx(0.1, attraction=-1.0),
        "attraction must be finite and >= 0, got -1",
    ),
    "two momenta": (
        ValueError,
        lambda: MIME(optax.sgd(0.1), momentum=0.5),
        "momentum is for a step size; an optimizer has its own",
    ),
    "no penalty": (
        ValueError,
        lambda: FedLT(0.1, penalty=0.0),
        "penalty must be finite and > 0, got 0",
    ),
    "always skipping": (
        ValueError,
        lambda: FedPD(0.1, penalty=1.0, skipping=1.0),
        "skipping must be finite and >= 0 and < 1, got 1",
    ),
    "late messages of MIME": (
        ValueError,
        lambda: fl.Simulation(make_problem(), MIME(0.1), delays=Fixed(1)),
        "MIME has no rule for late messages",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_settings_are_refused(what):
    error, make, message = REFUSED[what]
    with pytest.raises(error, match=message):
        make()
