"""What is given without a thought, and what can only be a mistake: taken, or refused in words."""

import numpy as np
import pytest

import fljax as fl

K = 4


def problem(clients=K, samples=5):
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(clients, samples, 2)), rng.normal(size=(clients, samples))
    return fl.problems.Problem(features, targets, fl.problems.LeastSquares())


def served(**more):
    parts = {"problem": problem(), "algorithm": fl.algorithms.FedAvg(0.1), "metrics": "objective"}
    return fl.Simulation(**parts | more)


def among_peers(**more):
    return served(algorithm=fl.algorithms.ATC(0.1), network=fl.graphs.ring(K), **more)


class TestLink:
    @pytest.mark.parametrize("base", [fl.link.Noise, fl.module(type("Mine", (fl.link.Noise,), {}))])
    def test_noise_that_adds_nothing_is_refused(self, base):
        with pytest.raises(TypeError, match=r"adds nothing to any message; take .*PerMessage"):
            base(1.0)

    def test_more_bits_than_a_word_has_are_refused(self):
        with pytest.raises(ValueError, match=r"bits_each must be <= 32, .* got 40"):
            fl.link.Quantise(40)
        fl.run(served(compression=fl.link.Quantise(32)), 2)

    def test_a_constant_lie_is_as_long_as_a_message(self):
        liar = fl.attacks.first(1, K)
        with pytest.raises(ValueError, match="the attack's value has 3 numbers and a message 2"):
            served(attack=fl.attacks.Constant(liar, [1.0, 2.0, 3.0]))
        fl.run(served(attack=fl.attacks.Constant(liar, [1.0, 2.0])), 2)

    @pytest.mark.parametrize("make", [served, among_peers])
    def test_links_may_always_fail(self, make):
        run = fl.run(make(losses=fl.link.Independent(1)), 3)
        assert np.isfinite(run.objective).all()

    def test_long_delays_take_no_list_of_all(self):
        law = fl.link.Uniform(10**6)
        assert isinstance(law.lags, range)
        assert fl.run(served(delays=law), 2).sizes["round"] == 2

    @pytest.mark.parametrize("make", [served, among_peers])
    def test_delays_whose_messages_fit_no_memory_are_refused(self, make):
        with pytest.raises(MemoryError, match=r"what is on its way for up to 2000000000 rounds"):
            fl.run(make(delays=fl.link.Uniform(2 * 10**9)), 2)


class TestGraphs:
    def test_a_mapping_of_edges_holds_their_weights(self):
        graph = fl.graphs.from_edges(3, {(0, 1): 0.5, (2, 1): 2.0})
        np.testing.assert_array_equal(graph.degree, [0.5, 2.5, 2.0])
        with pytest.raises(ValueError, match="edges map to weights already"):
            fl.graphs.from_edges(3, {(0, 1): 0.5, (2, 1): 2.0}, [1.0, 1.0])
