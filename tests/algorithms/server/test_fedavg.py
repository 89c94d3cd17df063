"""Federated averaging against its loop, its special cases, and what it draws and sends."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax._core.random_subsets import subset
from fljax.algorithms import ConventionalFL, FedAvg, local_steps
from fljax.link import Link, Stages
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Trace
from fljax.participation.selectors import Unequal
from fljax.privacy import ZCDP
from fljax.problems import Softmax
from fljax.problems.batches import Shuffled
from tests.cases import CLIENTS, DIM, ROUNDS, SIZES, make_objective, make_problem, step_of
from tests.reference import networks, nfl
from tests.support.learning_networks import DATA, quadratic_problem, served_models
from tests.support.rounds import batches_without_padding, link_of, trajectory

close = np.testing.assert_allclose


def participants_and_batches(algorithm, key, sizes, rounds=ROUNDS):
    """The library's own participants and batches, as index sets without padding, to inject."""
    real = np.arange(max(sizes)) < np.array(sizes)[:, None]
    chosen = []
    visited = []
    for n in range(1, rounds + 1):
        link = link_of(key, n)
        clients = np.arange(len(sizes))
        if algorithm.clients_per_round is not None or algorithm.selector is not None:
            everyone = jnp.ones(len(sizes), bool)
            participants = algorithm.selection.choose(link.key("participation"), everyone, None)
            clients = np.asarray(participants.clients)
        if algorithm.batch is None:
            visited.append([[np.arange(sizes[k])] * algorithm.epochs for k in clients])
        else:
            batches = Shuffled(algorithm.batch)
            steps = algorithm.epochs * batches.steps(max(sizes))
            rows = batches.draw(link.key("batches"), real[clients], clients, steps).rows
            visited.append(
                [batches_without_padding(rows[i], sizes[k]) for i, k in enumerate(clients)]
            )
        chosen.append(clients)
    return chosen, visited


UNEQUAL = Unequal(2, [0.1, 0.3, 0.15, 0.25, 0.2])
FEDAVG = [
    ("ridge", FedAvg(PowerDecay(0.1), 2, 1, 4, weighting="samples"), None),
    ("ridge", FedAvg(0.05, 3, 2, 5, weighting="equal"), None),
    ("elastic", FedAvg(0.05, None, 2, 3, weighting="samples"), None),
    ("lad", FedAvg(0.05, 4, 1, 1), None),
    ("logistic", FedAvg(0.3, 2, 3), None),
    ("logistic", FedAvg(0.3, 3, 2, 12), 0.4),
    ("ridge", FedAvg(0.05, 2, 1, 4, weighting="samples"), 0.8),
    ("ridge", FedAvg(0.05, None, 1, 4, UNEQUAL, weighting="samples"), None),
    ("ridge", FedAvg(0.05, None, 1, 4, UNEQUAL), None),
]


@pytest.mark.thin(1)
@pytest.mark.core
@pytest.mark.parametrize(("name", "algorithm", "clip"), FEDAVG)
def test_federated_averaging_equals_the_loop(name, algorithm, clip):
    """Ragged clients (4 to 12 samples), whole and broken batches, with and without clipping."""
    key = as_key(12)
    chosen, visited = participants_and_batches(algorithm, key, SIZES)
    step = step_of(algorithm.step_size)
    objective = make_objective(name, clip)
    probabilities = algorithm.selector and algorithm.selector.probability
    theirs = nfl.fedavg(objective, step, chosen, visited, algorithm.weighting, probabilities)
    ours = trajectory(fl.Simulation(make_problem(name, clip), algorithm), key=key)
    close(ours, np.broadcast_to(theirs[:, None], ours.shape), rtol=0, atol=1e-11)
    assert np.abs(theirs[-1] - theirs[0]).max() > 1e-2


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("name", ["ridge", "lad"])
def test_federated_averaging_of_all_clients_with_full_batches_is_conventional(name, epochs):
    problem = make_problem(name)
    expected = trajectory(fl.Simulation(problem, ConventionalFL(0.1, epochs)))
    for several in (None, CLIENTS):
        result = FedAvg(0.1, several, epochs, weighting="equal")
        close(trajectory(fl.Simulation(problem, result)), expected, rtol=1e-12, atol=1e-13)
    even = make_problem(name, sizes=(6,) * CLIENTS)
    expected = trajectory(fl.Simulation(even, ConventionalFL(0.1, epochs)))
    result = FedAvg(0.1, CLIENTS, epochs, batch=6)  # of equal clients, batches of all samples
    close(trajectory(fl.Simulation(even, result)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_groups_of_participants_equal_a_single_batch(monkeypatch):
    simulation = fl.Simulation(make_problem(), FedAvg(0.05, 4, 2, 5))
    expected = trajectory(simulation, key=as_key(18))
    for size in (1, 2):
        monkeypatch.setattr(local_steps, "_group_size", lambda *_, size=size: size)
        jax.clear_caches()
        close(trajectory(simulation, key=as_key(18)), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_federated_averaging_of_several_outputs():
    """One step of one sample moves softmax parameters by the loss's own gradient."""
    rng = np.random.default_rng(10)
    X = rng.normal(size=(2, 1, 3))
    y = np.array([[2.0], [0.0]])
    problem = fl.problems.Problem(X, y, Softmax(4))
    algorithm = FedAvg(0.7, 1, batch=1)
    moved = trajectory(fl.Simulation(problem, algorithm), 1, as_key(13))[0, 0]
    k = int(subset(link_of(as_key(13), 1).key("participation"), 2, 1)[0])
    gradient = np.full(4, 0.25) - np.eye(4)[int(y[k, 0])]
    close(moved.reshape(4, 3), -0.7 * np.outer(gradient, X[k, 0]), rtol=1e-12)


def test_participants_batches_and_noise_have_separate_keys():
    link = link_of(as_key(16), 1)
    keys = [link.key("participation"), link.key("batches"), jax.random.fold_in(as_key(16), 1)]
    assert len({tuple(np.asarray(jax.random.key_data(key))) for key in keys}) == 3
    private = Link(keys[2], 1, 7, 3, stages=Stages(ZCDP(1.0)))
    assert private.key("participation") == keys[0]


@pytest.mark.parametrize(
    ("algorithm", "messages_per_round"), [(FedAvg(0.05, 2, 3, 4), 4), (FedAvg(0.05), 10)]
)
@pytest.mark.slow
def test_only_participants_send_and_receive(algorithm, messages_per_round):
    results = fl.run(fl.Simulation(make_problem(), algorithm), 4, record_every=2)
    assert results.messages.values.tolist() == [2 * messages_per_round, 4 * messages_per_round]
    assert results.scalars.values.tolist() == [
        2 * messages_per_round * DIM,
        4 * messages_per_round * DIM,
    ]


def test_the_drift_of_clients_is_that_of_their_local_steps():
    """Three steps along the gradient from the server's model, at some, none and all clients."""
    problem = make_problem()
    active = np.array([[True, False, True, False, False], [False] * 5, [True] * 5])
    algorithm = FedAvg(0.05, local_steps=3)
    arguments = (problem, algorithm, None, None, ["client_drift", fl.metrics.trajectory("model")])
    simulation = fl.Simulation(*arguments, participation=Trace(active))
    run = fl.run(simulation, rounds=3)
    server = np.zeros(DIM)
    for done, present in enumerate(active):
        local = np.tile(server, (CLIENTS, 1))
        for _ in range(3):
            local = local - 0.05 * np.asarray(problem.unweighted().gradient(local))
        drift = ((local - server) ** 2).sum(axis=1)[present]
        expected = drift.mean() if present.any() else np.nan
        close(run.client_drift[done], expected, rtol=1e-10)
        server = np.asarray(run.model_trajectory[done, 0])
    with pytest.raises(ValueError, match="has no local steps that start at a server"):
        fl.run(dataclasses.replace(simulation, algorithm=fl.algorithms.ExactFedProx(0.1)), rounds=1)


def drift_of(step, local_steps):
    """The fixed point of Algorithm 8 by its operator: of M_i^R and the sums of its powers."""
    system = np.zeros((DIM, DIM))
    right = np.zeros(DIM)
    for k in range(CLIENTS):
        Q, q = networks.quadratic(DATA, k)
        once = np.eye(DIM) - 2 * step * Q
        powers = [np.linalg.matrix_power(once, r) for r in range(local_steps + 1)]
        system += powers[-1] / CLIENTS
        right += sum(powers[:-1]) @ (-step * q) / CLIENTS
    return np.linalg.solve(np.eye(DIM) - system, right)


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", [1, 5, 50])
def test_algorithm_8_drifts_with_its_local_steps(local_steps):
    """FedAvg of all clients with equal weights on all samples, (117)."""
    algorithm = FedAvg(0.04, weighting="equal", local_steps=local_steps)
    result = served_models(algorithm, 400)
    close(result[:9], networks.server(DATA, 0.04, local_steps, 9), rtol=1e-10, atol=1e-12)
    best = np.asarray(fl.problems.optimum(quadratic_problem()))
    close(result[-1], drift_of(0.04, local_steps), atol=1e-9)
    if local_steps == 1:
        close(result[:9], networks.projected(DATA, 0.04, 9)[:, 0], rtol=1e-10, atol=1e-12)
        close(result[-1], best, atol=1e-9)
    else:
        assert np.linalg.norm(result[-1] - best) > 1e-3


@pytest.mark.slow
def test_longer_rounds_drift_further_and_full_selection_is_all_clients():
    best = np.asarray(fl.problems.optimum(quadratic_problem()))
    away = [np.linalg.norm(drift_of(0.04, steps) - best) for steps in (1, 2, 5, 20, 50)]
    assert away[0] < 1e-10
    assert (np.diff(away) > 0).all()
    every = served_models(FedAvg(0.04, weighting="equal", local_steps=3), 9)
    drawn = served_models(FedAvg(0.04, CLIENTS, weighting="equal", local_steps=3), 9)
    close(drawn, every, rtol=1e-12)
