"""Mechanisms that are broken on purpose, which audits must find, and correct ones, which they must
not call broken.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import audit
from fljax.algorithms import ConventionalFL
from fljax.privacy import ZCDP, DiscreteZCDP, PureDP
from tests.support.marks import quiet

RHO = 0.5
DELTA = 0.01


def corner_pair(clients, dim, client=0):
    problem = fl.problems.ridge(jax.random.key(0), clients=clients, samples=2, dim=dim)
    return audit.corners(problem.clipped(1.0), client, radius=9.0, targets=(-1e3, 1e3))


def distinguished(privacy, dim=2, rounds=1, seeds=8000, key=0):
    """The audit of one server of two clients."""
    world, neighbor = corner_pair(2, dim)
    simulation = fl.Simulation(world, ConventionalFL(0.1), privacy=privacy)
    return audit.two_worlds(simulation, neighbor, rounds, seeds, delta=DELTA, key=key)


def in_one_run(privacy, clients=200, dim=2, rounds=3, key=0):
    low, high = corner_pair(clients, dim, range(clients))
    simulation = fl.Simulation(low, ConventionalFL(0.1), privacy=privacy)
    return audit.one_run(simulation, high, rounds, delta=1e-5, key=key)


# Broken -----------------------------------------------------------------------------------------


@fl.module
class SometimesMissing(ZCDP):
    """No noise at all in one of thirty runs."""

    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        drawn = super().draw(key, shape, dtype, round, clients)
        lucky = jax.random.uniform(jax.random.fold_in(key, 77), (), dtype) < 1 / 30
        return jnp.where(lucky, 0, drawn)


@fl.module
class BoundedNoise(ZCDP):
    """Uniform noise of the variance that Gaussian noise would have."""

    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        return jax.random.uniform(key, shape, dtype, -(3**0.5), 3**0.5)


@fl.module
class HalfNoise(ZCDP):
    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        return super().draw(key, shape, dtype, round, clients) / 2


@fl.module
class SomewhatLessNoise(ZCDP):
    """Noise with a variance that is smaller by three tenths."""

    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        return super().draw(key, shape, dtype, round, clients) * 0.7**0.5


@fl.module
class LateRoundBare(ZCDP):
    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        return jnp.where(round == 3, 0, super().draw(key, shape, dtype, round, clients))


@fl.module
class SomeMessagesBare(ZCDP):
    """No noise on the messages of one of thirty clients."""

    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        drawn = super().draw(key, shape, dtype, round, clients)
        return jnp.where((clients % 30 == 7)[:, None], 0, drawn)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SometimesMissing, BoundedNoise, HalfNoise, LateRoundBare])
@pytest.mark.parametrize("dim", [3, 20])
def test_two_worlds_audits_find_the_claim(kind, dim):
    rounds = 3 if kind is LateRoundBare else 1
    report = distinguished(kind(RHO), dim, rounds)
    assert report.broken, (report.verdict, report.rule)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HalfNoise, SomewhatLessNoise, LateRoundBare, SomeMessagesBare])
def test_one_run_audits_find_the_claim(kind):
    report = in_one_run(kind(RHO))
    assert report.broken
    assert "The noise is smaller than what is booked" in report.verdict


# Correct ----------------------------------------------------------------------------------------


@fl.module
class AnyOrder(ZCDP):
    """Noise of the same distribution, drawn in another way."""

    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        drawn = super().draw(jax.random.fold_in(key, 5), shape, dtype, round, clients)
        return -drawn[:, ::-1]


CORRECT = [
    ZCDP(RHO),
    ZCDP(RHO, decay=0.5),
    ZCDP(RHO, decay=0.5, schedule="variance"),
    AnyOrder(RHO),
    DiscreteZCDP(RHO),
    PureDP(2.0),
]


@quiet
@pytest.mark.slow
@pytest.mark.parametrize("privacy", CORRECT, ids=lambda privacy: type(privacy).__name__)
def test_correct_noise_is_not_called_broken(privacy):
    for key in range(3):
        report = distinguished(privacy, rounds=3, seeds=2000, key=key)
        assert not report.broken, report.rule
        report = in_one_run(privacy, key=key)
        assert not report.broken
        if isinstance(privacy, ZCDP) and not isinstance(privacy, DiscreteZCDP):
            # At the corners the whole claim is spent, and the measured size of noise shows most of
            # it.
            assert 0.8 * report.claimed < report.shaped <= report.claimed
        else:
            assert np.isnan(report.shaped)


def test_the_size_of_correct_noise_is_seldom_too_small():
    """With messages at the booked distance the bound exceeds the truth as often as stated."""
    rng = np.random.default_rng(0)
    rho = np.outer([0.1, 0.3, 0.02], [1.0, 0.5, 2.0, 1.0])
    gap = rng.uniform(0.5, 2.0, size=rho.shape)
    total = rho.sum(axis=0).max()
    for confidence in (0.5, 0.9):
        above = 0
        for _ in range(1000):
            square = rng.chisquare(3, size=rho.shape) * gap / (2 * rho)
            above += audit.measured_rho(square, gap, rho, 3, confidence) > total
        assert above <= 1000 * (1 - confidence) + 4 * 1000**0.5 / 2
    assert above > 0


def test_the_measured_noise_is_zero_without_noise():
    unit = np.ones((2, 3))
    assert audit.measured_rho(unit * [[0], [1]], unit, unit, 2, 0.95) == np.inf
    assert audit.measured_rho(unit, 0 * unit, unit, 2, 0.95) == 0
    # What is not booked is not measured.
    assert audit.measured_rho(unit * [[0], [1]], unit, unit * [[0], [1]], 2, 0.95) < np.inf
