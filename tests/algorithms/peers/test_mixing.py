"""Weights between peers: custom matrices, directed ones, bad ones."""

import copy
import dataclasses

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import EXTRA, KGT, LED, NIDS, DIGing
from tests import cases
from tests.cases import CASES, CLIENTS, ROUNDS, make_network, make_problem
from tests.support.peer_runs import EXACT_METHODS, distance_from_minimizer, models

close = np.testing.assert_allclose


def one_sided():
    """Rows of sum one, columns of another; and columns too, but not symmetric."""
    circle = np.roll(np.eye(CLIENTS), 1, axis=1)
    uneven = np.eye(CLIENTS) * 0.5 + 0.5 * np.eye(CLIENTS)[[1, 0, 0, 2, 3]]
    return (np.eye(CLIENTS) + circle) / 2, uneven


CIRCLE, UNEVEN = (
    fl.graphs.from_stochastic(a, convention="right", allow_imprimitive=True) for a in one_sided()
)


def combining():
    """Labels of all algorithms that take a matrix of weights between peers, as their field says;
    of those on a complete network it is for a smaller graph.
    """
    for label in cases.LABELS:
        if cases.CASES[label].algorithm.needs.complete:
            continue
        for field in dataclasses.fields(cases.CASES[label].algorithm):
            if field.name == "mixing" and field.type == fl.graphs.Mixing | fl.graphs.Combination:
                yield label


@pytest.mark.thin(3)
@pytest.mark.parametrize("label", list(combining()))
def test_weights_may_be_a_custom_matrix(label):
    """The matrix of the default rule gives the same results."""
    algorithm = cases.CASES[label].algorithm
    rule = dataclasses.replace(algorithm, mixing="metropolis")
    custom = fl.graphs.from_stochastic(make_network().mixing().matrix(), convention="right")
    world = cases.simulate(label, private=False, metrics=[fl.metrics.trajectory()])
    results = [
        fl.run(dataclasses.replace(world, algorithm=method), ROUNDS, key=3).model_trajectory.values
        for method in (rule, dataclasses.replace(algorithm, mixing=custom))
    ]
    close(results[1], results[0], rtol=0, atol=1e-12)
    other = dataclasses.replace(algorithm, mixing=fl.graphs.ring(4).mixing())
    with pytest.raises(ValueError, match="the weights are for 4 nodes, but the network has 5"):
        dataclasses.replace(world, algorithm=other)


TAKING = {
    **{
        label: algorithm
        for label, algorithm in EXACT_METHODS.items()
        if hasattr(algorithm, "mixing")
    },
    **{label: CASES[label].algorithm for label in ("GT-SAGA", "GT-SVRG", "GT-SARAH", "ProxSkip")},
}


@pytest.mark.thin(3)
@pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")
@pytest.mark.parametrize("label", TAKING)
def test_directed_weights_are_enough_where_declared(label):
    """The refused ones would not reach the minimizer."""
    algorithm = copy.copy(TAKING[label])
    object.__setattr__(algorithm, "mixing", CIRCLE)
    converged = (
        distance_from_minimizer(algorithm, problem=make_problem(), network=fl.graphs.ring(CLIENTS))
        < 1e-8
    )
    assert converged == algorithm.needs.directed


PEERS = [k for k, c in fl.algorithms.REGISTRY.items() if c.needs.network is fl.graphs.Graph]


@pytest.mark.parametrize(
    "label", [k for k in PEERS if hasattr(fl.algorithms.REGISTRY[k], "mixing")]
)
def test_directed_weights_are_taken_or_refused_as_declared(label):
    algorithm = CASES[label].algorithm
    if algorithm.needs.directed:
        assert dataclasses.replace(algorithm, mixing=CIRCLE).mixing is CIRCLE
    else:
        with pytest.raises((TypeError, ValueError), match=r"symmetric weights|rule's name"):
            dataclasses.replace(algorithm, mixing=CIRCLE)


@pytest.mark.parametrize("label", PEERS)
def test_directed_weights_are_refused_as_a_network(label):
    """Weights are an argument of the algorithms that take them; the network itself is a graph."""
    with pytest.raises(TypeError, match=r"network must be an instance of .*Graph"):
        fl.Simulation(make_problem(), CASES[label].algorithm, CIRCLE)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: EXTRA(0.1, "averaging"), "EXTRA needs symmetric weights, got the"),
        (ValueError, lambda: NIDS(0.1, CIRCLE), "NIDS needs symmetric weights, got a matrix"),
        (ValueError, lambda: DIGing(0.1, UNEVEN), "DIGing needs doubly stochastic weights, got a"),
        (ValueError, lambda: KGT(0.1, mixing="hasty"), "mixing rule"),
        (TypeError, lambda: LED(0.1, mixing=3), "mixing must be a rule's name"),
        (
            ValueError,
            lambda: models(EXTRA(0.1, fl.graphs.ring(4).mixing())),
            "the weights are for 4 nodes, but the network has 5",
        ),
        (ValueError, lambda: KGT(0.1, mixing="metropolitan"), "unknown mixing rule"),
    ],
)
def test_bad_weights_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
