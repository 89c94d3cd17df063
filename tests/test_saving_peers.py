"""Peers that save gradients or messages: their loops, what theory says of them, what they send."""

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import (
    ATC,
    GTSAGA,
    GTSVRG,
    KGT,
    LTADMM,
    LTADMMVR,
    SGP,
    ChocoSGD,
    GossipSGD,
    ProxSkip,
    Scaffnew,
)
from fljax.algorithms.gossip import matched
from fljax.batches import Uniform
from fljax.link import Quantise, Sign, TopK
from fljax.participation import Bernoulli, Trace
from fljax.schedules import PowerDecay
from tests import cases
from tests.cases import (
    CASES,
    CLIENTS,
    DIM,
    EDGES,
    EXACT,
    ROUNDS,
    SAVING,
    SIZES,
    make_data,
    make_network,
    make_problem,
    simulate,
)
from tests.reference import multiagent, peers

close = np.testing.assert_allclose
ANYWHERE = np.random.default_rng(3).normal(size=(CLIENTS, DIM))
#: A ring in one direction beside the edges in both: columns sum to one, rows do not.
ONE_WAY = np.array(
    [
        [0.5, 0.0, 0.0, 0.0, 0.3],
        [0.5, 0.4, 0.0, 0.2, 0.0],
        [0.0, 0.6, 0.7, 0.0, 0.0],
        [0.0, 0.0, 0.3, 0.5, 0.0],
        [0.0, 0.0, 0.0, 0.3, 0.7],
    ]
)


def models(algorithm, problem=None, network=None, rounds=ROUNDS, **parts):
    """``[T, K, D]``, or ``[T, 1, D]`` of a server."""
    problem = make_problem() if problem is None else problem
    network = make_network() if network is None else network
    simulation = fl.Simulation(problem, algorithm, network, metrics=[EXACT_OF_ALL], **parts)
    found = fl.run(simulation, rounds, key=1)
    return found.exact.values


EXACT_OF_ALL = fl.metrics.trajectory("model")


def final(algorithm, rounds, problem=None, network=None, every=None, **parts):
    """Normalised errors, at the end and half way."""
    problem = make_problem() if problem is None else problem
    network = make_network() if network is None else network
    simulation = fl.Simulation(problem, algorithm, network, metrics=["normalized_error"], **parts)
    return fl.run(simulation, rounds, key=1, record_every=every or rounds // 2)


# Against the equations -----------------------------------------------------------------------------

VARIANTS = {
    "one sample": GTSAGA(0.05),
    "whole gradients at snapshots": GTSVRG(PowerDecay(0.05), 3),
    "batches in local steps": LTADMM(0.9, 0.05, 0.1, 3, batches=Uniform(2)),
    "a table that is kept": LTADMMVR(0.9, PowerDecay(0.05), 0.1, 3, batch=2, restart=False),
    "all speak": ProxSkip(0.05, 1.0),
    "the server hears all": Scaffnew(0.05, 1.0),
    "one number": ChocoSGD(PowerDecay(0.1), TopK(1), 0.2),
    "one way": SGP(0.05, ONE_WAY),
    "batches in tracked steps": KGT(0.05, 2, batches=Uniform(3)),
    "pairs": GossipSGD(PowerDecay(0.1)),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("form", ["padded", "dense"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_their_loops_from_any_start(name, form):
    algorithm = VARIANTS[name]
    case = CASES[type(algorithm).label]
    start = ANYWHERE if not isinstance(algorithm, Scaffnew) else np.tile(ANYWHERE[0], (CLIENTS, 1))
    simulation = dataclasses.replace(
        simulate(type(algorithm).label, make_problem().starting_at(start), make_network(form)),
        algorithm=algorithm,
        metrics=(EXACT,),
    )
    ours = np.asarray(_trace(simulation, fl.simulation.as_key(1)))
    theirs = case.oracle(algorithm, start=start)
    close(ours, np.broadcast_to(theirs, ours.shape).reshape(ours.shape), rtol=0, atol=1e-10)


@jax.jit
def _trace(simulation, key):
    return fl.simulation.trace(simulation, key, ROUNDS, 1)[0]["exact"]
