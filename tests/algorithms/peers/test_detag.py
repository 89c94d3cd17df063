"""DeTAG: accelerated gossip, and exactness with a constant step size."""

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import DeTAG
from tests.cases import CLIENTS, make_problem
from tests.reference import gossip
from tests.support.peer_runs import ANYWHERE, models, peer_run, still

close = np.testing.assert_allclose


@pytest.mark.parametrize("exchanges", [1, 4])
def test_peers_that_learn_nothing_agree_at_the_accelerated_rate(exchanges):
    """The recursion's modulus is the root of ``eta``, below that of the weights."""
    network = fl.graphs.ring(16)
    start = np.random.default_rng(0).normal(size=(16, 3))
    world = {"problem": still(start), "network": network}
    history = models(DeTAG(0.1, exchanges=exchanges), 60, **world)
    apart = np.linalg.norm(history - start.mean(axis=0), axis=(1, 2))
    weights = np.asarray(network.mixing().matrix())
    eta = gossip.fastest_acceleration(weights)
    restarted = [gossip.accelerated_gossip(weights, start, exchanges, eta)]
    for _ in range(59):
        restarted.append(gossip.accelerated_gossip(weights, restarted[-1], exchanges, eta))
    close(history, restarted, atol=1e-12)
    if exchanges > 1:  # a phase begins without momentum, so that one exchange gains little
        plain = models(DeTAG(0.1, exchanges=exchanges, acceleration=0.0), 60, **world)
        assert apart[-1] < np.linalg.norm(plain[-1] - start.mean(axis=0)) / 100
    close(history.mean(axis=1), np.tile(start.mean(axis=0), (60, 1)), atol=1e-12)


def test_many_exchanges_in_a_row_gain_the_square_root():
    """The error of forty exchanges is a small multiple of their asymptotic factor."""
    network = fl.graphs.ring(16)
    start = np.random.default_rng(0).normal(size=(16, 3))
    once = models(DeTAG(0.1, exchanges=40), 1, problem=still(start), network=network)[0]
    eta = gossip.fastest_acceleration(np.asarray(network.mixing().matrix()))
    factor = np.linalg.norm(once - start.mean(axis=0)) / np.linalg.norm(start - start.mean(axis=0))
    assert factor < 40 * np.sqrt(eta) ** 40
    modulus = float(network.mixing().rate())
    assert factor < modulus**40 / 20


def test_the_optimum_is_reached_with_a_constant_step_size():
    error = peer_run(DeTAG(0.1), 600, 100, problem=make_problem().starting_at(ANYWHERE))
    assert float(error.normalized_error[-1]) < 1e-20


def test_exact_combinations_make_it_delayed_gradient_descent():
    """On a complete graph all trackers are the mean gradient of the phase before."""
    network = fl.graphs.complete(CLIENTS)
    ours = models(DeTAG(0.05, exchanges=1), network=network)
    problem = make_problem()
    x = np.zeros(3)
    mean = np.zeros(3)
    for actual in ours:
        new = np.asarray(problem.gradient(np.tile(x, (CLIENTS, 1)))).mean(axis=0)
        x = x - 0.05 * mean
        mean = new
        close(actual, np.tile(x, (CLIENTS, 1)), atol=1e-12)


def test_messages_and_bad_arguments():
    results = peer_run(DeTAG(0.05, exchanges=3), 4)
    assert int(results.messages[-1]) == 4 * 3 * 12
    assert int(results.bits_up[-1]) == 4 * 3 * 12 * 6 * 32
    for arguments, message in (
        ({"exchanges": 0}, "exchanges must be >= 1"),
        ({"acceleration": 1.0}, "acceleration must be .* < 1"),
        ({"mixing": "averaging"}, "needs symmetric weights"),
    ):
        with pytest.raises(ValueError, match=message):
            DeTAG(0.1, **arguments)
