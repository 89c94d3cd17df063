"""What a clock counts as the work of a round, against the gradients in the round's program."""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.simulation.running import evaluations

A = fl.algorithms
CLIENTS, SAMPLES = 5, 12
SETTINGS = {"one": {}, "steps": {"local_steps": 3}, "batches": {"local_steps": 3, "batch": 4}}
PUBLIC = np.ones((7, 6), np.float32)


def linear(key):
    return fl.problems.ridge(key, clients=CLIENTS, samples=SAMPLES, dim=4)


def network(key):
    data = fl.problems.softmax(key, clients=CLIENTS, samples=SAMPLES, dim=6, classes=3)
    return fl.problems.Model.of(data, fl.models.mlp(3, hidden=[5]), jax.random.key(1))


#: Algorithms by name: of a problem, and with local settings.
ALGORITHMS = {
    "FedAvg": (linear, lambda **s: A.FedAvg(0.1, **s)),
    "APFL": (linear, lambda **s: A.APFL(0.1, **s)),
    "CCVR": (network, lambda **s: A.CCVR(A.FedAvg(0.1, **s), 0.1)),
    "Ditto": (linear, lambda **s: A.Ditto(A.FedAvg(0.1, **s), 0.1, 1.0, personal_steps=2)),
    "FedALA": (linear, lambda **s: A.FedALA(0.1, blend_steps=2, **s)),
    "FedAS": (network, lambda **s: A.FedAS(0.1, alignment_epochs=2, **s)),
    "FedEM": (linear, lambda **s: A.FedEM(0.1, components=3, **s)),
    "FedKD": (network, lambda **s: A.FedKD(0.1, **s)),
    "FedMD": (network, lambda **s: A.FedMD(0.1, public=PUBLIC, digest_epochs=2, **s)),
    "FedPAC": (network, lambda **s: A.FedPAC(0.1, head_epochs=2, **s)),
    "FedRep": (network, lambda **s: A.FedRep(0.1, personal="layer_1", head_epochs=2, **s)),
    "FedROD": (network, lambda **s: A.FedROD(0.1, **s)),
    "FedSAM": (linear, lambda **s: A.FedSAM(0.1, **s)),
    "FML": (network, lambda **s: A.FML(0.1, **s)),
    "MIME": (linear, lambda **s: A.MIME(0.1, **s)),
    "MIMELite": (linear, lambda **s: A.MIMELite(0.1, **s)),
    "SCAFFOLD": (linear, lambda **s: A.SCAFFOLD(0.1, **s)),
}


#: Loops over batches of networks end where the samples do, and are not counted in the program.
COUNTABLE = [
    (name, setting)
    for name, (make, _) in ALGORITHMS.items()
    for setting in SETTINGS
    if make is linear or setting != "batches"
]


@pytest.mark.parametrize(("name", "setting"), COUNTABLE)
def test_the_work_of_a_round_is_the_gradients_of_its_program(name, setting):
    """All clients have as many samples, so that padding, which the program computes as well, adds
    nothing.
    """
    make, build = ALGORITHMS[name]
    simulation = fl.Simulation(make(jax.random.key(0)), build(**SETTINGS[setting]))
    counted = evaluations(lambda key: simulation, 10)[1].gradients
    samples = simulation.algorithm.work(simulation.problem)[1]
    per_step = simulation.algorithm.gradients_per_step(simulation.problem)
    assert float(np.sum(np.asarray(samples) * np.asarray(per_step))) == pytest.approx(counted)


PEERS = {
    "ATC": lambda: A.ATC(0.1),
    "ATC-GT-SAGA": lambda: A.ATCGTSAGA(0.1, batch=3),
    "GT-SAGA": lambda: A.GTSAGA(0.1, batch=3),
    "K-GT": lambda: A.KGT(0.1, local_steps=2),
    "Network-SARAH": lambda: A.NetworkSARAH(0.1, local_steps=4, batch=3),
    "Network-SVRG": lambda: A.NetworkSVRG(0.1, local_steps=4, batch=3),
}


@pytest.mark.parametrize("name", PEERS)
def test_the_work_of_peers_is_the_gradients_of_their_program(name):
    problem = linear(jax.random.key(0))
    simulation = fl.Simulation(problem, PEERS[name](), network=fl.graphs.ring(CLIENTS))
    counted = evaluations(lambda key: simulation, 10)[1].gradients
    samples = simulation.algorithm.work(problem)[1]
    per_step = simulation.algorithm.gradients_per_step(problem)
    assert float(np.sum(np.asarray(samples) * np.asarray(per_step))) == pytest.approx(counted)


VARYING = {
    "DESTRESS": lambda: A.DESTRESS(0.05, period=3),
    "GT-SARAH": lambda: A.GTSARAH(0.1, period=3),
    "GT-SVRG": lambda: A.GTSVRG(0.1, period=3),
    "GT-VR": lambda: A.GTVR(0.1, probability=0.2),
    "LT-ADMM-VR": lambda: A.LTADMMVR(1.0, 0.1, pull=0.5, local_steps=2),
}


@pytest.mark.parametrize("name", VARYING)
def test_full_gradients_in_some_rounds_are_refused_on_a_clock(name):
    clock = fl.clock.Synchronous(fl.clock.Devices(seconds_per_step=1.0))
    parts = {"network": fl.graphs.ring(CLIENTS), "clock": clock}
    with pytest.raises(ValueError, match=r"computes gradients of all samples in some rounds .*"):
        fl.run(fl.Simulation(linear(jax.random.key(0)), VARYING[name](), **parts), 2)


@pytest.mark.parametrize(("variant", "expected"), [("first_order", 2), ("exact", 3)])
def test_a_meta_gradient_counts_the_gradients_within(variant, expected):
    algorithm = A.PerFedAvg(0.1, personal_step_size=0.1, variant=variant)
    assert algorithm.gradients_per_step(linear(jax.random.key(0))) == expected


def test_seconds_grow_with_the_gradients_of_a_step():
    devices = fl.clock.Devices(seconds_per_step=1.0, seconds_per_sample=0.25)

    def seconds(algorithm):
        clock = fl.clock.Synchronous(devices)
        simulation = fl.Simulation(linear(jax.random.key(0)), algorithm, clock=clock)
        return float(fl.run(simulation, 2).seconds[-1])

    assert seconds(A.FedAvg(0.1)) == 2 * (1 + 0.25 * SAMPLES)
    assert seconds(A.FedSAM(0.1)) == 2 * seconds(A.FedAvg(0.1))
    assert seconds(A.FedALA(0.1, blend_steps=3)) == 4 * seconds(A.FedAvg(0.1))
