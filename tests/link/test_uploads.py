"""Clients' noise on uploads to a server, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key, key_of
from fljax.algorithms import IFCA, FedAvg, GraphFedAvg, LocalOnly, SignSGD
from fljax.link import PerEdge, UploadNoise
from tests.cases import (
    CASES,
    CLIENTS,
    DIM,
    LINE,
    OBJECTIVE,
    SERVER,
    keys_of,
    make_network,
    make_problem,
    make_servers,
    simulate,
)
from tests.reference import multiagent, nfl
from tests.support.servers import ROUNDS, WITH_SERVERS, server_models

pytestmark = pytest.mark.core
slow = pytest.mark.slow

STEP = 0.08
STEPS = (1, 3, 2, 1, 4)


def uploads(noise, rounds=ROUNDS):
    """``[T, K, D]``: the clients' noise, as drawn in the run, for any participants."""
    keys = [key_of(now, "uploads") for now in keys_of(1, rounds)]
    return [
        [np.asarray(noise.draw(jax.random.fold_in(key, k), (DIM,), float)) for k in range(CLIENTS)]
        for key in keys
    ]


def chosen_by(selector, network=None):
    everyone = jnp.ones(CLIENTS, bool)
    participants = [
        selector.choose(key_of(now, "participation"), everyone, network) for now in keys_of(1)
    ][:ROUNDS]
    return [np.asarray(chosen.numbers)[np.asarray(chosen.here)] for chosen in participants]


@pytest.mark.parametrize(
    ("on", "distribution"),
    [
        ("models", "laplace"),
        ("updates", "gaussian"),
        pytest.param("updates", "laplace", marks=slow),
    ],
)
def test_noise_of_clients_is_that_of_the_loops(on, distribution):
    """V1 and V2: (2.56), (2.60). Clients are drawn, and steps are of each."""
    noise = UploadNoise(0.3, distribution, on=on)
    algorithm = FedAvg(
        STEP, clients_per_round=3, weighting="equal", local_steps=STEPS, normalized=True
    )
    expected = multiagent.federated(
        OBJECTIVE, [0] * CLIENTS, [[1.0]], lambda n: STEP, chosen_by(algorithm.selection), STEPS,
        uploads(noise), on,
    )  # fmt: skip
    result = server_models(algorithm, upload_noise=noise)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["models", pytest.param("updates", marks=slow)])
def test_noise_of_clients_and_servers_is_that_of_the_loops(on):
    """(3.6)-(3.8)."""
    noise = UploadNoise(0.3, on=on)
    between = PerEdge(0.2)
    algorithm = GraphFedAvg(STEP, STEPS, clients_per_server=2)
    network = make_servers()
    matrix = nfl.metropolis(2, LINE)
    edges = []
    for now in keys_of(1, ROUNDS):
        added = np.zeros((2, 2, DIM))
        for p in range(2):
            weights = jnp.asarray(np.where(np.arange(2) == p, 0.0, matrix[:, p]))
            added[:, p] = between.over_edges(
                key_of(now, "noise"), jnp.int32(p), jnp.arange(2), weights, DIM
            )
        edges.append(added)
    expected = multiagent.federated(
        OBJECTIVE, SERVER, matrix, lambda n: STEP, chosen_by(algorithm.selection, network), STEPS,
        uploads(noise), on, edges,
    )  # fmt: skip
    result = server_models(algorithm, network=network, upload_noise=noise, noise=between)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)


@slow
def test_noise_on_updates_is_that_on_models_times_the_step():
    algorithm = FedAvg(STEP, 3, weighting="equal")
    on_updates = server_models(algorithm, upload_noise=UploadNoise(0.3, "gaussian", on="updates"))
    silent = server_models(algorithm)
    # The linear recursion of a quadratic: what noise leaves is linear in the noise.
    on_models = server_models(algorithm, upload_noise=UploadNoise(0.3, "gaussian"))
    np.testing.assert_allclose(on_updates - silent, -STEP * (on_models - silent), atol=1e-12)
    assert np.abs(on_models - silent).max() > 0.05


def test_a_clients_draw_does_not_depend_on_its_row():
    noise = UploadNoise(0.3)
    message = jnp.zeros((CLIENTS, DIM))
    order = jnp.array([3, 0, 4, 1, 2], jnp.int32)

    def added(clients):
        link = fl.link.Link(as_key(3), 1, 1, CLIENTS, stages=fl.link.Stages(upload_noise=noise))
        return link.send(message[: len(clients)], clients=clients)

    np.testing.assert_array_equal(added(order), added(jnp.arange(CLIENTS))[order])
    np.testing.assert_array_equal(added(order[:2]), added(order)[:2])


def test_two_messages_of_a_round_have_separate_noise():
    link = fl.link.Link(
        as_key(3), 1, 1, CLIENTS, stages=fl.link.Stages(upload_noise=UploadNoise(0.3))
    )
    zero = jnp.zeros((CLIENTS, DIM))
    for first, second in (
        [link.send(zero) for _ in range(2)],
        [link.collect(zero, jnp.ones(CLIENTS, bool), zero[0]).total
         for _ in range(2)],
    ):  # fmt: skip
        assert np.abs(first - second).min() > 1e-6


def test_noise_is_compressed_and_counted_with_its_message():
    noise = UploadNoise(0.3)

    def sent_by(**stages):
        link = fl.link.Link(as_key(3), 1, 1, CLIENTS, stages=fl.link.Stages(**stages))
        return link.send(jnp.zeros((CLIENTS, DIM))), link.traffic

    (uncompressed, sent), (most, fewer), (_, plain) = (
        sent_by(upload_noise=noise),
        sent_by(upload_noise=noise, compression=fl.link.TopK(1)),
        sent_by(compression=fl.link.TopK(1)),
    )
    expected = np.where(
        np.abs(uncompressed) == np.abs(uncompressed).max(axis=1, keepdims=True), uncompressed, 0
    )
    np.testing.assert_array_equal(most, expected)
    assert fewer.bits_up[-1] == plain.bits_up[-1] < sent.bits_up[-1]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"algorithm": fl.algorithms.ATC(0.1)}, "no server to send to"),
        ({"algorithm": LocalOnly(0.1)}, "sends nothing"),
        ({"algorithm": CASES["PGFL"].algorithm, "on": "updates"}, "sends no updates"),
        ({"algorithm": SignSGD(0.1)}, "sends no models; pass .*on='updates'"),
        ({"algorithm": IFCA(0.1, 2, average="gradients")}, "sends no models"),
        (
            {"algorithm": CASES["FL"].algorithm, "privacy": fl.privacy.ZCDP(1.0, 0.9)},
            "by its budget already",
        ),
    ],
)
def test_noise_without_messages_is_refused_before_the_run(parts, message):
    on = parts.pop("on", "models")
    network = make_servers() if parts["algorithm"] is CASES["PGFL"].algorithm else make_network()
    with pytest.raises(ValueError, match=message):
        fl.Simulation(
            make_problem(), network=network, upload_noise=UploadNoise(0.1, on=on), **parts
        )


def test_a_custom_step_without_a_step_size_is_refused():
    link = fl.link.Link(
        as_key(3), 1, 1, 2, stages=fl.link.Stages(upload_noise=UploadNoise(0.3, on="updates"))
    )
    with pytest.raises(ValueError, match="step_size="):
        link.send(jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match="known: models, updates"):
        UploadNoise(0.1, on="gradients")


@slow
@pytest.mark.thin(12, every=24)
@pytest.mark.parametrize("label", WITH_SERVERS)
def test_every_algorithm_with_a_server_runs_under_noise_that_fits(label):
    needs = CASES[label].algorithm.needs
    silent = simulate(label, private=False)
    quiet = fl.run(silent, 3, as_key(1))["model"].values
    for on in needs.uploads[-1:]:
        noise = UploadNoise(9.0, on=on)
        results = fl.run(fl._core.module.replace(silent, upload_noise=noise), 3, as_key(1))[
            "model"
        ].values
        assert np.isfinite(results).all()
        assert np.abs(results - quiet).max() > 1e-4


@slow
def test_noise_is_compatible_with_all_link_failures():
    absent = fl.participation.Bernoulli(0.7)
    algorithm = FedAvg(STEP, weighting="equal")
    happens = [
        {"delays": fl.link.Geometric(0.3, 2), "losses": fl.link.Independent(0.2)},
        {
            "aggregation": fl.aggregation.Median(),
            "compression": fl.link.Quantize(8),
            "attack": fl.attacks.SignFlip(fl.attacks.first(1, CLIENTS)),
        },
        {"privacy": fl.privacy.CentralGaussian(0.7, 5.0)},
    ]
    for parts in happens:
        quiet, loud = (
            server_models(algorithm, 3, participation=absent, upload_noise=noise, **parts)
            for noise in (None, UploadNoise(0.5))
        )
        assert np.isfinite(loud).all()
        assert np.abs(loud - quiet).max() > 1e-3, parts


@slow
def test_a_grid_of_variances_is_one_program_and_begins_at_none():
    def scenario(key, variance):
        return fl.Simulation(
            make_problem(), FedAvg(STEP), upload_noise=UploadNoise(variance),
            metrics=["objective"],
        )  # fmt: skip

    results = fl.sweep(scenario, grid={"variance": [0.0, 0.1, 1.0]}, seeds=2, rounds=3)
    silent = fl.run(fl.Simulation(make_problem(), FedAvg(STEP), metrics=["objective"]), 3)
    first = results.objective.isel(variance=0)
    np.testing.assert_allclose(first, np.broadcast_to(silent.objective, first.shape), rtol=1e-12)
    assert (results.objective.isel(variance=2, round=-1) > first.isel(round=-1)).all()
    with pytest.raises(ValueError, match="variance must be finite and >= 0, got -1"):
        fl.sweep(scenario, grid={"variance": [0.1, -1.0]}, seeds=1, rounds=3)
