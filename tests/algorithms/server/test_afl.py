"""Agnostic federated learning: the minimax model and its mixture."""

import numpy as np
import pytest
import scipy.optimize

import fljax as fl
from fljax.algorithms import AFL, FedAvg
from fljax.optimization.schedules import PowerDecay
from fljax.participation.selectors import Unequal
from tests.cases import CLIENTS, DIM, make_objective, make_problem
from tests.support.server_runs import EQUAL, trajectory

close = np.testing.assert_allclose


@pytest.mark.slow
def test_agnostic_learning_ends_at_the_minimax_model():
    """No model has a smaller largest loss, by a solver of the epigraph form."""
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
    """The mean over all rounds, and the mixture with messages lost on the way."""
    parts = {"losses": fl.link.Independent(0.5), "rounds": 6}
    algorithm = AFL(0.1, mixture_step_size=0.1)
    mean = trajectory(algorithm, metric=fl.metrics.trajectory("average", ("parameter",)), **parts)
    close(mean[-1], trajectory(algorithm, **parts).mean(axis=0), atol=1e-12)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AFL(0.1, mixture_step_size=0.0), "step size must be finite and > 0, got 0"),
        (
            lambda: fl.Simulation(
                make_problem(),
                AFL(0.1, mixture_step_size=0.1),
                masks=fl.link.SecureAggregation(1.0),
            ),
            "AFL uses more of clients' messages than one sum",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
