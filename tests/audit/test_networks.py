"""Audits of networks: samples are removed by their weights, as biases have gradients everywhere."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax import audit
from fljax.algorithms import ConventionalFL, FedAvg, FedDPSGD
from fljax.audit.audit_report import distinct_texts
from fljax.privacy import NEIGHBORS, ZCDP, CentralGaussian, NoisyGradients
from fljax.problems import FunctionLoss, Model, Softmax

KEY = jax.random.key(0)


def network(kind="rows"):
    """A network with biases of four clients with five samples each."""
    rng = np.random.default_rng(0)
    shape = (3,)
    architecture = fl.models.mlp(3, hidden=[4])
    loss = Softmax(3)
    if kind == "images":
        shape = (6, 6, 1)
        architecture = fl.models.cnn(3, channels=[2], hidden=[3])
    labels = [rng.integers(0, 3, 5) for _ in range(4)]
    if kind == "a function's labels":
        loss = FunctionLoss(optax.softmax_cross_entropy_with_integer_labels)
    data = [(rng.normal(size=(5, *shape)), y) for y in labels]
    return Model.from_clients(architecture, KEY, data, loss)


@fl.module
class HalfStated(NoisyGradients):
    def sensitivity(self, share):
        return super().sensitivity(share) / 2


@fl.module
class HalfAtServer(CentralGaussian):
    def release(self, *arguments):
        published = super().release(*arguments)
        return published._replace(sensitivity=published.sensitivity / 2)


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("kind", "algorithm", "privacy", "gap"),
    [
        ("rows", FedDPSGD(0.1), NoisyGradients(1.0), 1),
        ("rows", FedDPSGD(0.1, batch=2), NoisyGradients(1.0), 1),
        ("rows", FedDPSGD(0.1), HalfStated(1.0), 2),
        ("rows", FedAvg(0.5, batch=2, epochs=2), CentralGaussian(1.0), 1),
        ("rows", FedAvg(0.5), HalfAtServer(1.0), 2),
        ("images", FedDPSGD(0.1), NoisyGradients(1.0), 1),
        ("a function's labels", FedDPSGD(0.1, local_steps=2), NoisyGradients(1.0), 1),
        *(("rows", ConventionalFL(0.1), ZCDP(0.5, neighbors=each), 1) for each in NEIGHBORS),
    ],
)
def test_a_network_s_sensitivity_matches_its_claim(kind, algorithm, privacy, gap):
    problem = network(kind)
    if isinstance(privacy, ZCDP):
        problem = problem.clipped(1.0)
    worst = audit.worst_neighbors(
        fl.Simulation(problem, algorithm, privacy=privacy), rounds=2, evaluations=128
    )
    assert worst.holds == (gap == 1)
    assert 0.9 * gap < worst.gap < 1.001 * gap


@pytest.mark.slow
def test_pairs_found_in_a_network_can_be_audited():
    simulation = fl.Simulation(network(), FedDPSGD(0.1), privacy=NoisyGradients(1.0))
    worst = audit.worst_neighbors(simulation, rounds=1, evaluations=128)
    report = audit.two_worlds(*worst.pair, rounds=1, seeds=1000, delta=0.05)
    assert not report.broken
    assert report.shaped > 0.6 * report.claimed
    assert report.past_link < 1e-3


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", ["rows", "images", "a function's labels"])
@pytest.mark.parametrize("neighbors", NEIGHBORS)
def test_corners_of_a_network_are_a_pair(kind, neighbors):
    problem = network(kind).clipped(1.0)
    world, neighbor = audit.corners(problem, 1, 2, targets=(0, 2), neighbors=neighbors)
    assert np.asarray(world.features).shape == np.asarray(neighbor.features).shape
    simulation = fl.Simulation(world, ConventionalFL(0.1), privacy=ZCDP(2.0, neighbors=neighbors))
    assert not audit.two_worlds(simulation, neighbor, rounds=1, seeds=200, delta=0.05).broken


@pytest.mark.slow
def test_a_removed_client_sends_no_message():
    problem = network()
    lacking = audit.without(problem, 1).prepare()
    model = jnp.broadcast_to(problem.initial, (4, problem.dim))
    np.testing.assert_array_equal(np.asarray(lacking.gradient(model))[1], 0)
    simulation = fl.Simulation(problem, FedAvg(0.5), privacy=CentralGaussian(1.0))
    report = audit.two_worlds(simulation, audit.without(problem, 1), rounds=1, seeds=200, delta=0.1)
    assert not report.broken


@pytest.mark.slow
def test_canaries_of_networks():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(4, 3)), rng.integers(0, 2, 4)) for _ in range(40)]
    problem = Model.from_clients(fl.models.mlp(2, hidden=[3]), KEY, data, Softmax(2)).clipped(1.0)
    low, high = audit.corners(problem, range(40), targets=(0, 1), neighbors="add-or-remove")
    for rho, least in ((1000.0, 1.0), (0.01, 0.0)):
        privacy = ZCDP(rho, neighbors="add-or-remove")
        simulation = fl.Simulation(low, ConventionalFL(0.1), privacy=privacy)
        report = audit.one_run(simulation, high, rounds=1, delta=1e-5)
        assert least <= report.bound <= report.claimed


def test_unused_parts_of_a_network_have_no_gradient_and_keep_their_place():
    problem = network()
    model = jnp.broadcast_to(problem.initial, (4, problem.dim))
    full, lacking = (p.prepare() for p in (problem, audit.without(problem, 1, 2)))
    data = [jnp.asarray(problem.features)[1:2, 2:3], jnp.asarray(problem.targets)[1:2, 2:3]]
    alone = replace(problem, features=data[0], targets=data[1], weights=None, initial=None)
    alone = alone.gradient(model[1:2])[0] / 5
    gone = np.asarray(full.gradient(model) - lacking.gradient(model))
    np.testing.assert_allclose(gone[1], alone, atol=1e-12)
    np.testing.assert_array_equal(np.delete(gone, 1, axis=0), 0)
    np.testing.assert_array_equal(lacking.sample_counts(), full.sample_counts())
    np.testing.assert_array_equal(lacking.influence, full.influence)


def test_invalid_pairs_of_networks_are_refused():
    problem = network()
    simulation = fl.Simulation(problem, FedDPSGD(0.1), privacy=NoisyGradients(1.0))
    other = np.array(problem.features)
    other[0, 0] = 0  # which does not remove it
    with pytest.raises(ValueError, match=r"both have it.*weight.*fljax\.audit\.without"):
        audit.two_worlds(simulation, replace(problem, features=other), rounds=1, delta=0.1)
    silent = fl.Simulation(problem, FedAvg(0.5), privacy=CentralGaussian(1.0))
    with pytest.raises(ValueError, match=r"must contribute nothing.*fljax\.audit\.without"):
        audit.two_worlds(silent, replace(problem, features=other), rounds=1, delta=0.1)
    for client, sample, text in ((4, 0, "client"), (0, 5, "sample")):
        with pytest.raises(ValueError, match=text):
            audit.without(problem, client, sample)
    tokens = [(np.ones((5, 3), int), np.zeros(5)) for _ in range(4)]
    token_problem = Model.from_clients(fl.models.mlp(2, hidden=[3]), KEY, tokens, Softmax(2))
    simulation = fl.Simulation(token_problem, FedDPSGD(0.1), privacy=NoisyGradients(1.0))
    with pytest.raises(TypeError, match="features that are floats"):
        audit.worst_neighbors(simulation)
    with pytest.raises(TypeError, match="features that are floats"):
        audit.corners(token_problem, neighbors="add-or-remove")


def test_two_numbers_are_shown_so_that_they_differ():
    assert distinct_texts(1.0003, 1.0, digits=4) == ("1.0003", "1")
    assert distinct_texts(2.0, 1.0) == ("2", "1")
    assert distinct_texts(1.0, 1.0) == ("1", "1")
    assert distinct_texts(2.3200001, 2.32) == ("2.3200001", "2.32")
