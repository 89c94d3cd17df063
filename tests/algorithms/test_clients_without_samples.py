"""Every algorithm of a server with a client that has no samples, invited in some rounds."""

import dataclasses

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import REGISTRY
from fljax.participation import Trace
from fljax.problems import LeastSquares, from_clients
from tests.cases import CASES, READING, SERVED, STREAMED, make_data, make_read

ROUNDS = 4

#: Which of five clients are available; the last one has no samples.
AVAILABLE = np.ones((ROUNDS, 5), bool)
AVAILABLE[[0, 2], 4] = False
AVAILABLE[1, 0] = False
AVAILABLE[3, 2] = False

#: Algorithms whose steps depend on the number of clients or participants, with or without samples:
#: their sources divide by it, or count an answer. They are checked to stay finite.
COUNTING = {
    *("FL", "FedProx, exact", "DANE", "SCAFFOLD", "FedDyn", "AFL", "FedPD", "Fed-LT", "DP-SGD"),
    *("FedBuff", "FedAsync", "pFedMe", "FedAMP", "IFCA", "EF-SGD", "EF21", "DIANA", "TAMUNA"),
    *("FedADMM", "EASGD", "FedCross", "FetchSGD"),
}

#: Algorithms that refuse such a client or clients that are absent, and those of other problems.
OTHERS = {
    *("ISFedAvg", "Scaffnew", "Sharing ADMM", "Generalized gradient"),
    *("EF21-BC", "MARINA", "DASHA", "ADIANA", "CANITA", "PowerSGD"),
}


def problem_of(label, clients):
    """Five clients, the last one without samples; or the first four of them."""
    if label in READING:
        problem = make_read(sizes=(4, 9, 6, 12, 7)[:clients], label=label)
        if clients < 5:
            return problem
        has_samples = np.arange(5) < 4
        weights = np.asarray(problem.weights) * has_samples[:, None]
        return dataclasses.replace(problem, weights=weights, importance=has_samples.astype(float))
    data = list(make_data())[:4]
    if clients == 5:
        features, targets = make_data()[4]
        data.append((features[:0], targets[:0]))
    problem = from_clients(tuple(data), LeastSquares())
    return fl.streams.Replay(problem) if label in STREAMED else problem


def weighing_samples(algorithm):
    """The algorithm with the problem's weights, if it can take others."""
    if hasattr(algorithm, "weighting"):
        return dataclasses.replace(algorithm, weighting=None)
    if hasattr(algorithm, "solver"):
        return dataclasses.replace(algorithm, solver=weighing_samples(algorithm.solver))
    return algorithm


@pytest.mark.thin(6)
@pytest.mark.parametrize("label", [label for label in SERVED if label not in OTHERS])
def test_a_client_without_samples_changes_nothing(label):
    models = []
    for clients in (5, 4):
        simulation = fl.Simulation(
            problem_of(label, clients),
            weighing_samples(CASES[label].algorithm),
            participation=Trace(AVAILABLE[:, :clients]),
        )
        models.append(fl.run(simulation, ROUNDS, key=1).model.values)
    with_empty, without = models
    assert np.isfinite(with_empty).all()
    if label not in COUNTING:
        rows = with_empty[:4] if without.shape[0] == 4 else with_empty
        np.testing.assert_allclose(rows, without, rtol=1e-8, atol=1e-10)


def test_the_exceptions_are_registered():
    assert REGISTRY.keys() >= COUNTING | OTHERS
