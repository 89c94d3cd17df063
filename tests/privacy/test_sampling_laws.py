"""Sampling laws that amplify privacy: declared by the class that draws, and compared with draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import replace
from fljax.algorithms import FedAvg, FedDPSGD
from fljax.participation.selectors import (
    Cyclic,
    Drawn,
    Everyone,
    Fraction,
    Law,
    Participants,
    Subset,
)
from fljax.privacy import CentralGaussian, NoisyGradients
from fljax.simulation.sampling_checks import _Draws, disagreement

CLIENTS = 10


def run_at_server(selector, algorithm=FedAvg, **settings):
    problem = fl.problems.ridge(jax.random.key(0), clients=CLIENTS, samples=3, dim=2)
    simulation = fl.Simulation(
        problem, algorithm(0.1, selector=selector), privacy=CentralGaussian(1.0, **settings)
    )
    return fl.run(simulation, rounds=20, record_every=20)


# Selectors --------------------------------------------------------------------------------------


@fl.module
class AlwaysTheFirst(Fraction):
    """Does not declare its draws, and its parent's differ."""

    def choose(self, key, available, network, round=1):
        participants = super().choose(key, available, network, round)
        return participants._replace(here=participants.here.at[0].set(available[0]))


@fl.module
class ByProperty(Fraction):
    """Uses the parent's method with one property changed."""

    @property
    def share(self):
        return 1.0


def test_a_sampling_scheme_belongs_to_the_class_that_declares_it():
    @fl.module
    class Renamed(Fraction):
        """A subclass that leaves the draw unchanged."""

        def check(self, clients, network=None):
            super().check(clients, network)

    @fl.module
    class Declared(AlwaysTheFirst):
        def law(self, clients):
            return Law(1.0)

    @fl.module
    class OfDeclared(Declared):
        def choose(self, key, available, network, round=1):
            return Participants(None, available)

    class Mixin:
        def choose(self, key, available, network, round=1):
            return Participants(None, available)

    @fl.module
    class Mixed(Mixin, Fraction):
        pass

    assert Renamed(0.1).law(CLIENTS) == Fraction(0.1).law(CLIENTS)
    assert ByProperty(0.1).law(CLIENTS) == Fraction(0.1).law(CLIENTS)  # nothing is overridden
    assert Declared(0.1).law(CLIENTS) == Law(1.0)
    for other in (AlwaysTheFirst, OfDeclared, Mixed):
        assert other(0.1).law(CLIENTS) is None


def test_a_draw_may_not_be_overridden_without_a_sampling_scheme():
    @fl.module
    class InTwoSteps(Fraction):
        def lucky(self, uniform):
            return uniform < self.fraction

        def choose(self, key, available, network, round=1):
            uniform = jax.random.uniform(key, available.shape, jnp.result_type(self.fraction))
            return Participants(None, available & self.lucky(uniform))

        def law(self, clients):
            return Law(self.fraction, sampling="poisson")

    @fl.module
    class Luckier(InTwoSteps):
        def lucky(self, uniform):
            return uniform < 2 * self.fraction

    assert InTwoSteps(0.1).law(CLIENTS).sampling == "poisson"
    assert Luckier(0.1).law(CLIENTS) is None


def test_a_budget_needs_a_sampling_scheme():
    with pytest.raises(ValueError, match=r"declares no law of its draws.*law\(self, clients\)"):
        run_at_server(AlwaysTheFirst(0.01))


@fl.module
class AlwaysTheFirstDeclared(AlwaysTheFirst):
    def law(self, clients):
        return Law(self.fraction, sampling="poisson")


@fl.module
class LaterTheFirst(Fraction):
    """Adds the first client after the first round."""

    def choose(self, key, available, network, round=1):
        participants = super().choose(key, available, network, round)
        return participants._replace(
            here=participants.here.at[0].set(participants.here[0] | (round > 1))
        )

    def law(self, clients):
        return super().law(clients)


@fl.module
class AllOrNone(Fraction):
    """Every client as often as declared, but all of them together."""

    def choose(self, key, available, network, round=1):
        uniform = jax.random.uniform(key, (), jnp.result_type(self.fraction))
        return Participants(None, available & (uniform < self.fraction))

    def law(self, clients):
        return super().law(clients)


@fl.module
class SameEveryTime(Drawn):
    def choose(self, key, available, network, round=1):
        return super().choose(jax.random.key(3), available, network, round)

    def law(self, clients):
        return super().law(clients)


@fl.module
class OfTheAvailable(Subset):
    """More often if others are absent."""

    def law(self, clients):
        return Law(self.count / clients, sampling="drawn")


@fl.module
class TakesTwice(Drawn):
    def choose(self, key, available, network, round=1):
        participants = super().choose(key, available, network, round)
        twice = jnp.concatenate([participants.clients, participants.clients[:1]])
        return Participants(twice, available[twice])

    def law(self, clients):
        return super().law(clients)


@fl.module
class Sooner(Cyclic):
    def law(self, clients):
        return Law(1 / self.cohorts, self.cohorts + 1)


@pytest.mark.parametrize(
    ("selector", "settings", "text"),
    [
        (AlwaysTheFirstDeclared(0.01), {}, "takes client 0 in 1024 of 1024"),
        (LaterTheFirst(0.01), {}, "in round 20"),
        (AllOrNone(0.1), {}, "together in"),
        (SameEveryTime(2), {"neighbors": "replace"}, "SameEveryTime.law declares a share of 0.2"),
        (OfTheAvailable(2), {"neighbors": "replace"}, "where some clients are absent"),
        (TakesTwice(2), {"neighbors": "replace"}, "takes one client twice"),
        (Sooner(3), {}, "3 rounds after another"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, fl.participation.Selector) else "",
)
def test_draws_refute_a_false_sampling_scheme(selector, settings, text):
    with pytest.raises(ValueError, match=text) as caught:
        run_at_server(selector, **settings)
    assert "Declare the" in str(caught.value)


@fl.module
class OwnFraction(Fraction):
    def choose(self, key, available, network, round=1):
        return super().choose(jax.random.fold_in(key, 1), available, network, round)

    def law(self, clients):
        return super().law(clients)


@fl.module
class OwnDrawn(Drawn):
    def choose(self, key, available, network, round=1):
        return super().choose(jax.random.fold_in(key, 1), available, network, round)

    def law(self, clients):
        return super().law(clients)


def test_draws_agree_with_a_true_sampling_scheme():
    for custom, selector, neighbors in (
        (OwnFraction(0.2), Fraction(0.2), "add-or-remove"),
        (OwnDrawn(3), Drawn(3), "replace"),
    ):
        results = [run_at_server(s, neighbors=neighbors) for s in (custom, selector)]
        for name in ("sampling_rate", "drawn_from", "noise_multiplier"):
            assert float(results[0][name]) == float(results[1][name])


def test_a_sweep_checks_sampling_schemes_at_every_point():
    def scenario(key, selector):
        problem = fl.problems.ridge(key, clients=CLIENTS, samples=3, dim=2)
        algorithm = FedAvg(0.1, selector=selector)
        return fl.Simulation(problem, algorithm, privacy=CentralGaussian(1.0))

    def shared(key, fraction):
        return scenario(key, AlwaysTheFirstDeclared(fraction))

    # At a fraction of one the law is right.
    for fractions in ([1.0, 0.5], jnp.linspace(1.0, 0.5, 80).tolist()):
        with pytest.raises(ValueError, match="takes client 0 in"):
            fl.sweep(shared, rounds=2, seeds=1, grid={"fraction": fractions})


@fl.module
class CollectsFromAll(FedAvg):
    """Collects from all clients regardless of its declared selection."""

    def step(self, state, now):
        now.choose = lambda selector, model=None: Everyone().choose(None, now.available, None)
        return super().step(state, now)


@fl.module
class StepsAlong(FedAvg):
    def step(self, state, now):
        return super().step(state, now)


def test_the_participants_of_a_step_follow_the_selector():
    with pytest.raises(ValueError, match=r"CollectsFromAll\.selection declares a share of 0\.1"):
        run_at_server(Fraction(0.1), CollectsFromAll)
    for settings in ({}, {"arrivals": "secret"}):
        run_at_server(Fraction(0.1), StepsAlong, **settings)


# Batches ----------------------------------------------------------------------------------------


def run_with_batches(kind, network=False, **settings):
    key = jax.random.key(0)
    if network:
        data = fl.problems.softmax(key, clients=3, samples=20, dim=3, classes=2)
        problem = fl.problems.Model.of(data, fl.models.mlp(2, hidden=[3]), key)
    else:
        problem = fl.problems.ridge(key, clients=3, samples=[20, 30, 25], dim=2)
    simulation = fl.Simulation(problem, kind(0.1, **settings), privacy=NoisyGradients(1.0))
    return fl.run(simulation, rounds=4, record_every=4)


@fl.module
class OtherBatches(FedDPSGD):
    def _draw_batch(self, key, data, number):
        return super()._draw_batch(jax.random.fold_in(key, 1), data, number)


@fl.module
class OtherBatchesDeclared(OtherBatches):
    def sampling(self, problem):
        return FedDPSGD.sampling(self, problem)


@fl.module
class AllSamples(OtherBatchesDeclared):
    def _draw_batch(self, key, data, number):
        return data, data.influence

    def sampling(self, problem):
        return Law(0.1, sampling="poisson")


@fl.module
class FirstSample(OtherBatchesDeclared):
    def _draw_batch(self, key, data, number):
        batch, share = super()._draw_batch(key, data, number)
        return replace(batch, weights=batch.weights.at[:, 0].set(share)), share

    def sampling(self, problem):
        return super().sampling(problem)


@fl.module
class WholeBlocks(OtherBatchesDeclared):
    """Every sample as often as declared, but five of them together."""

    def _draw_batch(self, key, data, number):
        weights = jnp.asarray(data.weights)
        rate = jnp.asarray(0.2, data.dtype)
        blocks = weights.shape[0], weights.shape[1] // 5
        drawn = jnp.repeat(jax.random.uniform(key, blocks, data.dtype) < rate, 5, axis=1)
        batch = replace(data, weights=jnp.where(drawn, weights, 0) / rate, statistics=None)
        return batch, data.influence / rate

    def sampling(self, problem):
        return Law(0.2, sampling="poisson")


@fl.module
class FewerTurns(OtherBatchesDeclared):
    """Three groups of samples, declared as four."""

    def sampling(self, problem):
        return Law(0.25, separation=4)


@fl.module
class DrawnByTurns(OtherBatchesDeclared):
    def sampling(self, problem):
        return Law(0.1, separation=2, sampling="poisson")


def test_a_budget_for_batches_needs_a_sampling_scheme():
    with pytest.raises(ValueError, match="does not say how it draws samples"):
        run_with_batches(OtherBatches, sampling_rate=0.1)


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        (AllSamples, {}, "takes sample 0 in 4096 of 4096 draws in a step of client 0"),
        (FirstSample, {"sampling_rate": 0.1}, "takes sample 0 in"),
        (FirstSample, {"sampling_rate": 0.1, "network": True}, "takes sample 0 in"),
        (WholeBlocks, {}, "together in"),
        (FewerTurns, {"turns": 3}, "is in one 3 steps after another"),
        (DrawnByTurns, {"turns": 2, "sampling_rate": 0.2}, "turns.*or declare sampling=None"),
    ],
)
def test_batches_refute_a_false_sampling_scheme(kind, settings, text):
    with pytest.raises(ValueError, match=text):
        run_with_batches(kind, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling_rate": 0.2, "clients_per_round": 2},
        {"sampling_rate": 0.01, "capacity": 25},
        {"batch": 4},
        {"batch": 4, "network": True},
        {"turns": 3},
    ],
)
def test_batches_agree_with_a_true_sampling_scheme(settings):
    run_with_batches(OtherBatchesDeclared, **settings)


# The tests of draws -----------------------------------------------------------------------------


def test_correct_draws_are_never_refuted_and_wrong_ones_are():
    rng = np.random.default_rng(0)
    for rate in (0.003, 0.1, 0.5):
        sampling = Law(rate, sampling="poisson")
        for _ in range(100):
            possible = rng.random((2000, 30)) < rng.choice([0.6, 1.1])
            taken = possible & (rng.random((2000, 30)) < rate)
            assert disagreement(sampling, _Draws(taken.astype(int), possible), "client") == ""
        taken[:, 7] = possible[:, 7] & (rng.random(2000) < rate + 25 * (rate / 2000) ** 0.5)
        assert "client 7" in disagreement(sampling, _Draws(taken.astype(int), possible), "client")
