"""kNN-Per: its predictions against a loop over samples, and its limits."""

import dataclasses

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, KNNPer
from tests.support import small_network as small
from tests.support.server_runs import trajectory

close = np.testing.assert_allclose
SIZES = (4, 9, 2)
SOLVER = FedAvg(0.3, epochs=2)


def split_problem(common=False):
    problem = small.from_zero(SIZES, 0, small.HEADED_FROM_ZERO)
    held_out = small.samples((6, 3, 5), seed=7)
    if common:
        return problem.with_test(*held_out[0]), [held_out[0]] * 3
    test = small.from_zero((6, 3, 5), 7, small.HEADED_FROM_ZERO)
    return dataclasses.replace(problem, test=test), held_out


def predicted(model, stored, labels, asked, neighbors, interpolation, scale):
    """The probabilities of one client for one sample."""
    a, b, c, d = small.by_hand.parts(model + FLAT, small.FEATURES, small.HIDDEN, small.CLASSES)
    represent = [np.tanh(x @ a + b) for x in stored]
    of_asked = np.tanh(asked @ a + b)
    distances = np.array([np.sum((r - of_asked) ** 2) for r in represent])
    kernel = np.zeros(small.CLASSES)
    for j in np.argsort(distances)[:neighbors]:
        kernel[int(labels[j])] += np.exp(-distances[j] / (small.HIDDEN * scale))
    logits = np.exp(of_asked @ c + d)
    return interpolation * kernel / kernel.sum() + (1 - interpolation) * logits / logits.sum()


FLAT = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(small.SHIFT)])


@pytest.mark.thin(2)
@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize(
    ("neighbors", "interpolation", "scale"), [(3, 0.6, 0.5), (50, np.array([0.2, 0.95, 0.7]), 2.0)]
)
def test_predictions_equal_the_loop(common, neighbors, interpolation, scale):
    problem, held_out = split_problem(common)
    algorithm = KNNPer(SOLVER, neighbors, interpolation, scale)
    metrics = ["test_error", "accuracy", "client_accuracy"]
    run = fl.run(fl.Simulation(problem, algorithm, metrics=metrics), 3, key=1)
    model = trajectory(SOLVER, problem, 3)[-1]
    share = np.broadcast_to(interpolation, 3)
    errors = []
    accuracies = []
    for k, (X, y) in enumerate(held_out):
        stored = small.samples(SIZES)[k]
        table = np.array([predicted(model, *stored, x, neighbors, share[k], scale) for x in X])
        errors.append(-np.log(table[np.arange(len(y)), y]).mean())
        accuracies.append((table.argmax(axis=1) == y).mean())
    close(run.client_accuracy.values[-1], accuracies, rtol=1e-12)
    close(run.accuracy.values[-1], np.mean(accuracies), rtol=1e-12)
    close(run.test_error.values[-1], np.mean(errors), rtol=1e-10)


@pytest.mark.slow
def test_without_interpolation_it_is_the_solver():
    problem, _ = split_problem()
    runs = [
        fl.run(
            fl.Simulation(problem, one, metrics=["test_error", "normalized_error"][:1]), 4, key=1
        )
        for one in (KNNPer(SOLVER, interpolation=0.0), SOLVER)
    ]
    close(runs[0].test_error, runs[1].test_error, rtol=1e-12)


@pytest.mark.slow
def test_far_samples_have_a_nearest_neighbor_still():
    """Where all values of the kernel underflow, the nearest sample decides."""
    problem, _ = split_problem()
    algorithm = KNNPer(SOLVER, 2, 1.0, 1e-9)
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["client_accuracy"]), 1, key=1)
    nearest = fl.run(
        fl.Simulation(problem, KNNPer(SOLVER, 1, 1.0), metrics=["client_accuracy"]), 1, key=1
    )
    close(run.client_accuracy, nearest.client_accuracy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"neighbors": 0}, "neighbors must be >= 1, got 0"),
        ({"interpolation": 1.5}, "interpolation must be .*<= 1, got 1.5"),
        ({"interpolation": [0.1, 0.2]}, "interpolation must be .* 3 "),
        ({"scale": 0.0}, "scale must be .*> 0, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fl.run(fl.Simulation(split_problem()[0], KNNPer(SOLVER, **arguments)), 1)
