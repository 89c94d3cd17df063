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
