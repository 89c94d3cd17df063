"""Sample gradients and proximal steps of a round, counted in its program, against what methods are
known to need.
"""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax._core.gradient_counts import evaluations
from fljax.simulation.running import evaluations as of_round

A = fl.algorithms
PASS = 5 * 10  # samples of all clients


def served(algorithm):
    return lambda key: fl.Simulation(
        problem=fl.problems.ridge(key, clients=5, samples=10, dim=2), algorithm=algorithm
    )


def among_peers(algorithm):
    return lambda key: fl.Simulation(
        problem=fl.problems.logistic(key, clients=5, samples=10, dim=2),
        algorithm=algorithm,
        network=fl.graphs.ring(5),
    )


@pytest.mark.parametrize(
    ("simulation", "expected"),
    [
        (served(A.FedAvg(0.1)), PASS),
        (served(A.FedAvg(0.1, local_steps=3)), 3 * PASS),
        (served(A.FedAvg(0.1, local_steps=3, clients_per_round=2)), 3 * PASS * 2 / 5),
        (served(A.FedAvg(0.1, local_steps=3, batch=4)), 3 * 5 * 4),
        (served(A.FedEM(0.1, components=3)), 3 * PASS),
        (
            served(A.PFedMeByGradient(0.1, attraction=1.0, personal_step_size=0.1, epochs=2)),
            2 * 5 * PASS,
        ),
        (served(A.ExactFedProx(0.1)), 0),
        (among_peers(A.EXTRA(0.1)), PASS),
        (among_peers(A.NIDS(0.1)), PASS),
        (among_peers(A.GTSAGA(0.1)), 5),
        (among_peers(A.GTSVRG(0.1, period=3)), np.nan),  # full ones in random rounds
    ],
)
def test_a_round_evaluates_the_declared_number_of_gradients(simulation, expected):
    np.testing.assert_equal(of_round(simulation, 10)[1].gradients, expected)


def networks_of(sizes, pooled):
    starts = np.append(0, np.cumsum(sizes))
    samples = starts[-1]
    features = np.zeros((samples, 3))
    labels = np.zeros(samples, np.int32)
    loss = fl.problems.Softmax(2)

    def build(key):
        network = fl.models.mlp(2, hidden=[4]), key
        if pooled:
            owned = fl.partitions.Partition(np.arange(samples, dtype=np.int32), starts)
            return fl.problems.Model.from_pool(*network, features, labels, loss, owned)
        rows = np.split(np.arange(samples), starts[1:-1])
        clients = [(features[r], labels[r]) for r in rows]
        return fl.problems.Model.from_clients(*network, clients, loss)

    return build


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("sizes", [(8, 8, 8), (1, 40, 3)])
def test_steps_that_clients_leave_out_are_counted_with_the_others(sizes, pooled):
    """Networks skip the steps of clients without samples in them: loops without a fixed length."""
    problem = networks_of(sizes, pooled)

    def gradients(**settings):
        algorithm = A.FedAvg(0.1, batch=4, **settings)
        return of_round(lambda key: fl.Simulation(problem(key), algorithm), 10)[1].gradients

    assert gradients(local_steps=5) == len(sizes) * 5 * 4
    assert gradients(epochs=2) == len(sizes) * 2 * max(sizes)


@pytest.mark.parametrize(
    ("simulation", "expected"),
    [
        (served(A.FedAvg(0.1)), (PASS, 0)),
        (served(A.ExactFedProx(0.1)), (0, 5)),
        (served(A.PFedMe(0.1, attraction=1.0, local_steps=3)), (0, 15)),  # before each local step
        (among_peers(A.FedRelax(1.0, inner_iterations=7)), (7 * PASS, 5)),  # no closed form
        (among_peers(A.EXTRA(0.1)), (PASS, 0)),
    ],
)
def test_a_round_takes_the_declared_number_of_proximal_steps(simulation, expected):
    assert of_round(simulation, 10)[1] == expected


def test_loops_and_branches():
    problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2)
    start = np.zeros((5, 2))

    def turned(model):
        return jax.lax.fori_loop(0, 3, lambda _, m: m - problem.gradient(m), model)

    def stopped(model):
        return jax.lax.while_loop(lambda m: m.sum() < 1, lambda m: m + problem.gradient(m), model)

    def mapped(model):
        return jax.vmap(problem.gradient)(np.stack([start] * 4)).sum(axis=0) + model

    def branched(model):
        either = problem.gradient, lambda m: 2 * problem.gradient(m)
        return jax.lax.cond(model.sum() > 0, *either, model)

    counts = [
        evaluations(function, start).gradients for function in (turned, stopped, mapped, branched)
    ]
    np.testing.assert_equal(counts, [3 * PASS, np.nan, 4 * PASS, PASS])
