"""What metrics may need of a simulation: the registry, and how a metric asks for its entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ConventionalFL
from fljax.metrics.quantities import QUANTITIES, Quantity
from tests.support.online_world import FIXED, short_run


def simulate(metrics, **parts):
    problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=3)
    parts.setdefault("algorithm", fl.algorithms.FedAvg(0.1, epochs=2))
    return fl.Simulation(problem=problem, metrics=metrics, **parts)


def test_a_new_quantity_of_a_round_needs_one_entry_of_the_registry(monkeypatch):
    def shares(algorithm, link):
        assert algorithm == "FedAvg"
        active = link.available.astype(float)
        return active / jnp.sum(active)

    monkeypatch.setitem(QUANTITIES, "share", Quantity(lambda simulation, problem: "", shares))
    total = fl.metrics.Metric(
        "total", lambda now: jnp.sum(now.quantities["share"]), "sum of shares", needs={"share"}
    )
    results = fl.run(simulate([total, "objective"]), rounds=4, record_every=2)
    np.testing.assert_allclose(results.total, [1, 1], rtol=1e-6)


def test_a_quantity_is_kept_only_where_a_metric_needs_it():
    def collect(now):
        kept.append(sorted(now.quantities))
        return jnp.zeros(())

    kept = []
    plain = fl.metrics.Metric("plain", collect, "")
    fl.run(simulate([plain]), rounds=2)
    fl.run(simulate([plain, "client_drift"]), rounds=2)
    assert [] in kept
    assert ["drift"] in kept


def test_a_simulation_that_lacks_a_quantity_is_refused(monkeypatch):
    def lacking(simulation, problem):
        return "" if problem.clients > 10 else "more than ten clients"

    monkeypatch.setitem(QUANTITIES, "crowd", Quantity(lacking))
    metric = fl.metrics.Metric("crowded", lambda now: jnp.zeros(()), "", needs={"crowd"})
    with pytest.raises(ValueError, match="'crowded' needs more than ten clients"):
        simulate([metric])


@pytest.mark.parametrize("needs", [{"optimum", "data"}, ["data", "optimum"], ("optimum",) * 2])
def test_needs_are_a_sorted_tuple(needs):
    metric = fl.metrics.Metric("own", lambda now: jnp.zeros(()), "", needs=needs)
    assert metric.needs == tuple(sorted(set(needs)))


def test_one_need_may_be_a_name():
    assert fl.metrics.Metric("own", lambda now: 0, "", needs="optimum").needs == ("optimum",)


def test_an_unknown_need_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'drift'"):
        fl.metrics.Metric("own", lambda now: 0, "", needs={"drfit"})


@pytest.mark.parametrize(
    "parts",
    [
        {"privacy": fl.privacy.CentralGaussian(1.0)},
        {
            "algorithm": fl.algorithms.FedDPSGD(0.1, sampling_rate=0.5),
            "privacy": fl.privacy.NoisyGradients(1.0),
        },
        {},
    ],
    ids=["at a server", "on gradients", "none"],
)
def test_the_noise_of_messages_needs_a_mechanism_on_messages(parts):
    with pytest.raises(ValueError, match="'signal_to_noise' needs private messages"):
        simulate(["signal_to_noise"], **parts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: short_run(metrics="objective"), "'objective' needs all data at once.*test_error"),
        (lambda: short_run(metrics="suboptimality"), "'suboptimality' needs all data at once"),
        (lambda: short_run(metrics="normalized_error"), "needs an optimum, .*use test_error"),
        (lambda: short_run(metrics="test_error"), "'test_error' needs held-out data"),
        (
            lambda: short_run(ConventionalFL(0.1), FIXED, metrics="test_error"),
            "'test_error' needs held-out data; give the problem or the stream test=",
        ),
    ],
)
def test_metrics_are_refused_without_the_data_they_need(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Participants ------------------------------------------------------------------------------------

ACTIVE = np.array([[1, 0, 1, 0, 0, 1], [0] * 6, [1] * 6, [0, 1, 1, 0, 1, 0]], bool)


def test_participants_of_a_server_are_the_clients_that_were_drawn_and_available():
    parts = {"participation": fl.participation.Trace(ACTIVE)}
    result = fl.run(simulate(["participation"], **parts), rounds=4)
    assert result.participation.dims == ("round", "client")
    np.testing.assert_array_equal(result.participation, ACTIVE)
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=2)
    result = fl.run(simulate(["participation"], algorithm=algorithm, **parts), rounds=4)
    took_part = result.participation.values
    assert took_part.dtype == bool
    assert not (took_part & ~ACTIVE).any()
    bits_per_message = 3 * 32
    bits = np.diff(result.bits_up, prepend=0)
    np.testing.assert_array_equal(took_part.sum(axis=1) * bits_per_message, bits)
    assert 0 < took_part.sum() < ACTIVE.sum()


def test_drawn_participants_are_those_of_the_draws():
    key = jax.random.key(5)
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=2)
    simulation = simulate(["participation"], algorithm=algorithm, delays=fl.link.Fixed(2))
    result = fl.run(simulation, rounds=6, key=key)
    for n, took_part in enumerate(result.participation.values, start=1):
        now = fl.view(simulation, key=key, round=n)
        drawn = now.choose(algorithm.selection)
        assert sorted(np.asarray(drawn.numbers).tolist()) == np.flatnonzero(took_part).tolist()


def test_participants_among_peers_are_the_available_ones_with_neighbors():
    parts = {"algorithm": fl.algorithms.ATC(0.1), "allow_disconnected": True}
    edges = [(0, 1), (1, 2), (2, 3), (3, 4)]  # client 5 has no neighbor
    graph = fl.graphs.from_edges(6, edges, allow_disconnected=True)
    simulation = simulate(
        ["participation"], network=graph, participation=fl.participation.Trace(ACTIVE), **parts
    )
    result = fl.run(simulation, rounds=4)
    np.testing.assert_array_equal(result.participation, ACTIVE & (np.arange(6) < 5))
    silent = fl.run(simulate(["participation"], algorithm=fl.algorithms.LocalOnly(0.1)), rounds=2)
    assert not silent.participation.any()


def test_studies_hold_the_participants_of_each_seed():
    def scenario(key, fraction):
        selector = fl.participation.Fraction(fraction)
        algorithm = fl.algorithms.FedAvg(0.1, selector=selector)
        return simulate(["participation"], algorithm=algorithm)

    results = fl.sweep(scenario, grid={"fraction": [0.2, 0.9]}, seeds=50, rounds=10)
    assert results.participation.dims == ("fraction", "seed", "round", "client")
    rates = results.participation.mean(["seed", "round"])
    expected = np.array([[0.2], [0.9]])
    np.testing.assert_allclose(rates, np.broadcast_to(expected, (2, 6)), atol=0.09)  # 4 deviations


def test_participants_are_computed_only_where_they_are_asked_for(monkeypatch):
    def refuse(link):
        raise AssertionError("computed")

    monkeypatch.setattr(fl.link.Link, "participants", property(refuse))
    fl.run(simulate(["objective"]), rounds=3)
    with pytest.raises(AssertionError, match="computed"):
        fl.run(simulate(["participation"]), rounds=3)
