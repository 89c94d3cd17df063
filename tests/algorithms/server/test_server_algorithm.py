"""Servers with local steps: plain loops, limits, fixed points, means of their corrections."""

import dataclasses
import functools

import numpy as np
import optax
import pytest

from fljax.algorithms import (
    AFL,
    EASGD,
    MIME,
    SCAFFOLD,
    FedAdagrad,
    FedAdam,
    FedADMM,
    FedAvg,
    FedAvgM,
    FedCross,
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
from fljax.link import Fixed
from fljax.participation.patterns import Trace
from fljax.participation.selectors import Unequal
from fljax.problems import optimum
from fljax.problems.batches import Uniform
from tests.cases import (
    DIM,
    ROUNDS,
    SERVER_LOOPS,
    SIZES,
    make_objective,
    make_problem,
)
from tests.reference import server
from tests.support import small_network
from tests.support.server_runs import (
    ACTIVE,
    EQUAL,
    FALLING,
    MANY,
    UNLIKE,
    class_name,
    state_metric,
    talks,
    trajectory,
    visits_of,
)

close = np.testing.assert_allclose


def world_of(algorithm, gradient, objective, start, available, sizes=SIZES):
    counts = np.array(sizes, float)
    weights = counts if getattr(algorithm, "weighting", None) == "samples" else np.ones(len(sizes))
    visits = visits_of(algorithm, available, sizes)
    return server.World(gradient, start, weights, visits, objective.value)


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
    FedExP(0.05, damping=0.01, averaged=True),
    FedSAM(FALLING, 4, 2, 3, radius=0.3),
    FedSAM(0.05, radius=0.1, local_steps=UNLIKE, **EQUAL),
    FedPD(FALLING, penalty=0.5, skipping=0.4, local_steps=UNLIKE),
    FedPD(0.05, 4, 2, 3, penalty=0.7),
    FedLT(FALLING, 4, 2, 3, penalty=0.5),
    FedLT(0.05, penalty=1.0, local_steps=UNLIKE),
    FedADMM(FALLING, 4, 2, 3, penalty=2.0),
    FedADMM(0.05, penalty=0.7, server_step_size=0.6, beginning="server", local_steps=UNLIKE),
    EASGD(FALLING, 4, 2, 3, moving_rate=0.2),
    EASGD(0.05, moving_rate=0.1, local_steps=UNLIKE),
    FedCross(FALLING, 4, 2, 3, retention=0.8),
    FedCross(0.05, 3, retention=0.7, partner="least_similar", local_steps=UNLIKE),
    FedCross(0.05, retention=0.9, partner="most_similar", local_steps=2),
]


def loop_result(algorithm, *arguments):
    world = world_of(algorithm, *arguments)
    skips = talks(algorithm, len(world.visits)) if isinstance(algorithm, FedPD) else None
    return SERVER_LOOPS[type(algorithm)](algorithm, world, skips)


@pytest.mark.slow
@pytest.mark.thin(2, every=16)
@pytest.mark.parametrize("algorithm", FORMS, ids=class_name)
def test_models_equal_the_loops(algorithm):
    """Some clients, some of them absent, in batches, with unequal numbers of steps."""
    name = "logistic" if isinstance(algorithm, QFedAvg | FedLT) else "ridge"
    objective, gradient = by_rows(name)
    expected = loop_result(algorithm, gradient, objective, np.zeros(DIM), ACTIVE)
    result = trajectory(algorithm, make_problem(name), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2
    close(expected[3], expected[2], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.thin(2, every=16)
@pytest.mark.parametrize("algorithm", FORMS, ids=class_name)
def test_networks_learn_as_in_the_loops(algorithm):
    problem = small_network.from_zero(SIZES)
    objective = small_network.Objective(tuple(small_network.samples(SIZES)))
    start = np.zeros(objective.dim)
    expected = loop_result(algorithm, objective.gradient, objective, start, ACTIVE[:6])
    result = trajectory(algorithm, problem, 6, participation=Trace(ACTIVE[:6]))
    close(result, expected, rtol=0, atol=1e-8)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3


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
def test_algorithms_coincide_at_their_limits(pair):
    algorithm, other = SAME[pair]
    close(trajectory(algorithm), trajectory(other), rtol=1e-10, atol=1e-12)


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
@pytest.mark.parametrize("algorithm", EXACT_ONES, ids=class_name)
def test_the_optimum_is_reached_at_constant_steps_for_any_heterogeneity(algorithm):
    """With many local steps, and for most algorithms under any participation."""
    best = np.asarray(optimum(make_problem()))
    rounds = 3000
    close(trajectory(algorithm, rounds=rounds)[-1], best, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(0.05, **MANY, **EQUAL), FedProx(0.05, attraction=2.0, **MANY, **EQUAL)],
    ids=class_name,
)
def test_other_algorithms_stop_short_of_the_optimum(algorithm):
    best = np.asarray(optimum(make_problem()))
    last = trajectory(algorithm, rounds=500)
    close(last[-1], last[-2], rtol=0, atol=1e-12)
    assert np.abs(last[-1] - best).max() > 1e-2


#: What the server has of its clients' corrections, and their mean.
MEANS = {
    "SCAFFOLD": (SCAFFOLD(0.05, 3, local_steps=3), "control", "controls"),
    "FedDyn": (FedDyn(0.05, 3, local_steps=3, attraction=2.0), "correction", "gradients"),
    "Fed-LT": (FedLT(0.05, 3, local_steps=3, penalty=0.5), "model", "auxiliary"),
    "FedPD": (FedPD(0.05, 3, local_steps=3, penalty=0.5), "model", "sent"),
}


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.thin(0, every=4)
def test_the_server_knows_the_mean_of_its_clients_corrections(name):
    """The mean over all clients for any participation; late corrections count when they arrive."""
    algorithm, at_server, at_clients = MEANS[name]
    for lag, parts in ((0, {"participation": Trace(ACTIVE)}), (2, {"delays": Fixed(2)})):
        of_server, all_of_them = (
            trajectory(algorithm, metric=state_metric(name), **parts)
            for name in (at_server, at_clients)
        )
        mean = all_of_them.mean(axis=1)
        close(of_server[lag:], mean[: ROUNDS - lag], rtol=0, atol=1e-12)
        assert np.abs(np.diff(of_server, axis=0)).max() > 1e-3
