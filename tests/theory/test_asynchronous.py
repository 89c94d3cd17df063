"""Peers and clients that come and go: all outcomes of small rounds, and runs."""

import functools
import itertools

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ATC, CTA, Consensus, Diffusion, FedAvg, GraphFedAvg
from fljax.batches import Uniform
from fljax.link import Independent, PerEdge
from fljax.participation import Bernoulli, Fraction, Markov
from fljax.problems import LeastSquares, SquaredL2, from_clients
from fljax.theory import multiagent as theory

RIDGE, STEP, ROUNDS = 0.1, 0.2, 3
close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-14)


@functools.cache
def make_data(sizes, dim, seed=3):
    rng = np.random.default_rng(seed)
    truth, data = rng.normal(size=dim), []
    for size in sizes:
        X = 0.5 * np.exp(0.5 * rng.normal()) * rng.normal(size=(size, dim))
        own = truth + 0.3 * rng.normal(size=dim)
        data.append((X, X @ own + 0.3 * np.exp(rng.normal()) * rng.normal(size=size)))
    return tuple(data)


def make_problem(data, start=None):
    problem = from_clients(data, LeastSquares(), SquaredL2(), np.full(len(data), RIDGE))
    return problem if start is None else problem.starting_at(start)


def slope(X, y, w):
    return np.mean(2 * X * (X @ w - y)[:, None], axis=0) + 2 * RIDGE * w


# All outcomes of a round -----------------------------------------------------------------------

LINE = fl.graphs.path(3)
LEFT = np.array([[0.6, 0.3, 0.0], [0.4, 0.5, 0.2], [0.0, 0.2, 0.8]])
OVER = fl.graphs.from_stochastic(LEFT, convention="left")
SCALAR = make_data((2, 1, 1), 1)
BEGIN = np.array([0.5, -1.0, 0.2])
THERE = np.array([0.3, 0.8, 1.0])


def steps(models):
    """``(probability, models after a step on a sample each)``."""
    rows = list(itertools.product(*(range(len(y)) for _, y in SCALAR)))
    for drawn in rows:
        each = [
            w - STEP * slope(X[[n]], y[[n]], np.array([w]))[0]
            for w, (X, y), n in zip(models, SCALAR, drawn, strict=True)
        ]
        yield 1 / len(rows), np.array(each)


def circumstances(loss, symmetric):
    """``(probability, who is there, which links work)``."""
    links = [(0, 1), (1, 2)] if symmetric else [(0, 1), (1, 2), (1, 0), (2, 1)]
    for here in itertools.product((False, True), repeat=3):
        chance = np.prod(np.where(here, THERE, 1 - THERE))
        for broken in itertools.product((False, True), repeat=len(links)):
            works = np.ones((3, 3), bool)
            for (k, m), off in zip(links, broken, strict=True):
                works[k, m] = not off
                works[m, k] = not off if symmetric else works[m, k]
            yield chance * np.prod(np.where(broken, loss, 1 - loss)), np.array(here), works


def heard(here, works, said):
    """What each makes of what was said, its own in the place of what did not arrive."""
    W = LEFT.T * works
    return W @ said + (1 - W.sum(axis=1)) * said


def peers(place, models, said, loss, symmetric):
    for p, here, works in circumstances(loss, symmetric):
        if place == "after":
            for q, moved in steps(models):
                new = np.where(here, moved, said)
                yield p * q, np.where(here, heard(here, works, new), models), new
            continue
        new = np.where(here, models, said)
        mixed = heard(here, works, new)
        at = mixed if place == "before" else models
        for q, moved in steps(at):
            yield p * q, np.where(here, mixed + moved - at, models), new


STRATEGIES = {"before": CTA, "beside": Consensus, "after": ATC}


@pytest.mark.parametrize(
    ("place", "loss", "symmetric"),
    [
        ("after", 0.3, True),
        pytest.param("after", 0.3, False, marks=pytest.mark.slow),
        pytest.param("before", 0.3, True, marks=pytest.mark.slow),
        pytest.param("beside", 0.3, True, marks=pytest.mark.slow),
    ],
)
def test_a_round_of_peers_that_come_and_go_is_all_of_its_outcomes(place, loss, symmetric):
    problem = make_problem(SCALAR, BEGIN[:, None])
    simulation = fl.Simulation(
        problem,
        STRATEGIES[place](STEP, OVER, batches=Uniform(1)),
        LINE,
        participation=Bernoulli(THERE),
        losses=Independent(loss, symmetric),
    )
    result = theory.learning_curve(simulation, 2)
    law, optimum = np.asarray(OVER.stationary), np.asarray(fl.problems.optimum(problem))[0]
    states = [(1.0, BEGIN, BEGIN)]
    for n in range(2):
        states = [
            (p * q, *after)
            for p, models, said in states
            for q, *after in peers(place, models, said, loss, symmetric)
        ]
        chance = np.array([p for p, *_ in states])
        models = np.array([w for _, w, _ in states])
        close(chance.sum(), 1)
        center = models @ law
        close(result.centroid[n], chance @ (center - optimum) ** 2)
        close(result.individual[n], chance @ ((models - optimum) ** 2).mean(axis=1))
        close(result.disagreement[n], chance @ ((models - center[:, None]) ** 2).mean(axis=1))
