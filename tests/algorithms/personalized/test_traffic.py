"""Messages of personalized algorithms: of whole models, of several, and of shared parts."""

import dataclasses

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import (
    APFL,
    IFCA,
    Ditto,
    FedALA,
    FedAMP,
    FedAvg,
    FedBABU,
    FedPer,
    FedRep,
    FineTunedFedAvg,
    LocalOnly,
    PerFedAvg,
    PFedMe,
    PFedMeByGradient,
    SuPerFed,
)
from fljax.link import Quantize
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    HEAD,
    REAL,
    ROUNDS,
    make_problem,
    name_of,
    new_key,
    records,
    world_of,
)

TRAFFIC = [
    # algorithm, of each round: messages down, numbers in one, messages up
    (LocalOnly(0.1, 2), 0, DIM, 0),
    (Ditto(FedAvg(0.1), 0.1, 1.0, 4), CLIENTS, DIM, CLIENTS),
    (Ditto(FedAvg(0.1, 2, 3, 2), 0.1, 1.0), 2, DIM, 2),
    (FineTunedFedAvg(FedAvg(0.1, 3), 0.1, 2), 3, DIM, 3),
    (PFedMe(0.1, 1.0, 5), CLIENTS, DIM, CLIENTS),
    (PFedMe(0.1, 1.0, clients_per_round=2), CLIENTS, DIM, 2),
    (PFedMeByGradient(0.1, 2, attraction=1.0, personal_step_size=0.1), 2, DIM, 2),
    (IFCA(0.1, 4), CLIENTS, 4 * DIM, CLIENTS),
    (IFCA(0.1, 3, clients_per_round=2, average="gradients"), 2, 3 * DIM, 2),
]


@pytest.mark.thin(2)
@pytest.mark.parametrize(("algorithm", "down", "size", "up"), TRAFFIC, ids=name_of)
def test_traffic_is_counted(algorithm, down, size, up):
    """Nothing is sent of personal models."""
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    np.testing.assert_array_equal(result["messages"], 2 * [2 * (down + up)])
    np.testing.assert_array_equal(result["scalars"], 2 * [2 * (down * size + up * DIM)])
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * down * size])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * up * DIM])


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(("algorithm", "down", "size", "up"), TRAFFIC, ids=name_of)
def test_traffic_counts_active_clients_and_compressed_uploads(algorithm, down, size, up):
    key = new_key(0)
    parts, world = world_of(algorithm, True, False, key)
    simulation = fl.Simulation(make_problem(), algorithm, compression=Quantize(8), **parts)
    result = records(simulation, ROUNDS, ROUNDS, key)
    participations = sum(len(world.participants(n)) for n in range(1, ROUNDS + 1))
    everyone = int(world.available.sum())
    down = everyone if isinstance(algorithm, PFedMe) else participations if down else 0
    up = participations if up else 0
    assert participations < ROUNDS * CLIENTS
    assert result["bits_down"] == [REAL * down * size]
    assert result["bits_up"] == [up * (8 * DIM + REAL)]
    assert result["messages"] == [down + up]
    plain = records(dataclasses.replace(simulation, compression=None), ROUNDS, ROUNDS, key)
    change = np.abs(result["exact"] - plain["exact"]).max()
    assert 0 < change < 0.2 if up else change == 0


SHARED = [
    # algorithm, participants, numbers in a message
    (PerFedAvg(0.1, personal_step_size=0.1, epochs=2), CLIENTS, DIM),
    (APFL(0.1, 3, 2, interpolation_step_size=0.1), 3, DIM),
    (FedPer(0.1, 4, personal=HEAD), 4, DIM - 1),
    (FedRep(0.1, personal=(0, 2), head_epochs=2), CLIENTS, DIM - 2),
    (FedBABU(0.1, 4, personal=HEAD, tuning_step_size=0.1, tuning_steps=2), 4, DIM - 1),
    (FedALA(0.1, 4, blended=HEAD), 4, DIM),
    (FedAMP(0.1, 4, attraction=1.0, attention_step_size=0.1, scale=1.0), 4, DIM),
    (SuPerFed(0.1, 4, orthogonality=1.0), 4, DIM),
]


@pytest.mark.thin(1)
@pytest.mark.parametrize(("algorithm", "sent", "size"), SHARED, ids=name_of)
def test_traffic_counts_the_shared_portions(algorithm, sent, size):
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    np.testing.assert_array_equal(result["messages"], 2 * [2 * 2 * sent])
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * sent * size])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * sent * size])
