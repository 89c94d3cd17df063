"""FedRelax: its rate under bounded activity, its minimizer, few samples, bad arguments."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedRelax
from fljax.participation.patterns import Bounded
from fljax.problems import LeastSquares, from_clients
from tests.cases import CLIENTS, EDGES, make_data
from tests.reference import networks
from tests.support.learning_networks import (
    ADJACENCY,
    DATA,
    FEW_DATA,
    ISOLATED,
    LOGISTIC,
    START,
    STRENGTHS,
    UNLABELED,
    node_models,
    operated,
    quadratic_problem,
    simulate,
    weighted_network,
)

close = np.testing.assert_allclose


def contraction(coupling):
    """(133), of the worst node."""
    degree = ADJACENCY.sum(axis=1)
    convexity = [2 * np.linalg.eigvalsh(X.T @ X / len(y))[0] for X, y in DATA]
    return max(1 / (1 + s / (2 * coupling * d)) for s, d in zip(convexity, degree, strict=True))


ACTIVITY = [
    (3, Bounded(3, 0.3), fl.link.UniformDelay(3)),
    (3, Bounded(3, 0.0), fl.link.Fixed(3)),  # the worst that is allowed
    (1, Bounded(1, 0.5), fl.link.Fixed(1)),
    (5, Bounded(5, np.full(CLIENTS, 0.1)), fl.link.Fixed(5)),
    (5, Bounded(5, 0.0), fl.link.UniformDelay(5)),
]


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize(("bound", "pattern", "delays"), ACTIVITY)
def test_partially_asynchronous_relaxation_keeps_its_rate(bound, pattern, delays):
    """(134) repaired: at t it has come at least floor((t + B) / 2B) contractions far."""
    best = networks.closed_form(DATA, ADJACENCY, 0.4)
    result = node_models(FedRelax(0.4), 60, participation=pattern, delays=delays)
    error = np.linalg.norm(np.concatenate([START[None], result]) - best, axis=2).max(axis=1)
    t = np.arange(61)
    kappa = contraction(0.4)
    assert (error <= error[0] * kappa ** ((t + bound) // (2 * bound)) * (1 + 1e-12)).all()
    assert error[-1] < 0.1 * error[0]


@pytest.mark.slow
def test_errors_are_measured_from_the_models_that_are_sought():
    relax = FedRelax([0.4, 0.0, 1.1])
    result = relax.optimum(quadratic_problem().clipped(1.0), weighted_network())
    expected = networks.closed_form(DATA, ADJACENCY, np.array([0.4, 0.0, 1.1]))
    close(result, expected, atol=1e-10)
    close(operated(relax, expected), expected, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_few_samples_are_solved_among_themselves(form):
    """Woodbury's way, and the other's where parameters are coupled unequally."""
    data = make_data(sizes=(2, 1, 3, 2, 1), dim=6)
    few = from_clients(data, LeastSquares())
    graph = fl.graphs.from_edges(CLIENTS, EDGES, weights=STRENGTHS, form=form)
    expected = networks.synchronous(
        networks.relaxation(data, ADJACENCY, 0.4), np.zeros((CLIENTS, 6)), 9
    )
    for coupling in (0.4, np.full(6, 0.4)):
        result = node_models(FedRelax(coupling), 9, problem=few, network=graph)
        close(result, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate(FedRelax(np.ones(3)), problem=LOGISTIC), "problem with a closed form"),
        (lambda: simulate(FedRelax(0.0), problem=FEW_DATA), "node 0 has 2 samples for 3 features"),
        (
            lambda: simulate(FedRelax([1.0, 0.0, 0.0]), problem=FEW_DATA.weighing(UNLABELED)),
            "node 2 has 0 samples for 3 features",
        ),
        (
            lambda: simulate(
                FedRelax(1.0),
                problem=FEW_DATA,
                network=weighted_network(ISOLATED),
                allow_disconnected=True,
            ),
            "node 4 has 2 samples",
        ),
        (
            lambda: simulate(FedRelax(1.0), aggregation=fl.aggregation.Krum(0)),
            "needs at least 3 messages at every receiver, but some receiver gets only 2",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_parameters_that_their_own_data_determine_may_be_private_with_few_samples():
    simulate(FedRelax([1.0, 0.0, 1.0]), problem=FEW_DATA)
