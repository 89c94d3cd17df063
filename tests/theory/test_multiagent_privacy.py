"""The source's eps(i): its formulas, their inverses and their probabilities (T17)."""

import math

import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax.privacy import accounting
from fljax.theory import multiagent_privacy as theory

B = 1.2
B_OTHER = 0.7
OPTIMA = 0.4
VARIANCE = 0.3
P = 5
ROUNDS = np.arange(1, 8)


def test_epsilon_is_linear_in_the_rounds_as_printed():
    """(2.69), (3.58) and (4.34)."""
    one_round = theory.neighbor_deviation_bound(B, B_OTHER, OPTIMA)
    many_rounds = theory.neighbor_deviation_bound(B, B_OTHER, OPTIMA, nodes=P)
    assert (one_round, many_rounds) == pytest.approx((2.3, 1.9 + 0.4 * math.sqrt(5)))
    scale = math.sqrt(2 / VARIANCE)
    updates = theory.epsilon(np.full(7, one_round), VARIANCE)
    np.testing.assert_allclose(updates, scale * 2.3 * ROUNDS)
    servers = theory.epsilon(np.full(8, many_rounds), VARIANCE)
    np.testing.assert_allclose(servers, scale * many_rounds * np.arange(1, 9))
    peers = theory.epsilon(np.full(7, many_rounds), VARIANCE, copies=P)
    np.testing.assert_allclose(peers, scale * P * many_rounds * ROUNDS)
    deviations = np.random.default_rng(0).uniform(size=(2, 7))
    running = theory.epsilon(deviations, VARIANCE, copies=3)
    np.testing.assert_allclose(running[1, 4], 3 * scale * deviations[1, :5].sum())


@pytest.mark.parametrize("norm", theory.NORMS)
@pytest.mark.parametrize("per", ["coordinate", "vector"])
def test_variances_are_the_inverse(norm, per):
    more = {"copies": 4, "norm": norm, "per": per, "dim": 6}
    deviation = np.random.default_rng(1).uniform(size=(2, 7))
    epsilon = theory.epsilon(deviation, VARIANCE, **more)[:, -1]
    np.testing.assert_allclose(theory.noise_variance(deviation, epsilon, **more), VARIANCE)


def test_the_l1_norm_is_that_of_independent_coordinates():
    """The worst case over moves of one l2 length, by the density of the noise itself."""
    dim = 6
    length = 0.8
    move = np.full(dim, length / math.sqrt(dim))
    for per, of_each in (("coordinate", VARIANCE), ("vector", VARIANCE / dim)):
        scale = math.sqrt(of_each / 2)
        far = np.full(dim, 50.0)
        most = (np.abs(far) - np.abs(far - move)).sum() / scale  # log ratio, where it is largest
        result = theory.epsilon([length], VARIANCE, norm="l1", dim=dim, per=per)
        np.testing.assert_allclose(result, most)
        assert theory.epsilon([length], VARIANCE, dim=dim, per=per)[0] < most


def test_one_release_of_an_average_income():
    """Table 1.1 and (1.44): 150, 90 and 120 thousand, and 200, 160 and 105 after."""
    before = np.mean([150, 90, 120])
    after = np.mean([200, 160, 105])
    assert (before, after) == (120, 155)  # the text has 130 for the first
    deviation = 70.0
    epsilon = theory.epsilon([abs(after - before)], deviation**2)[0]
    assert epsilon == pytest.approx(math.sqrt(2) * 35 / deviation)
    assert epsilon == pytest.approx(accounting.laplace_epsilon(35, deviation / math.sqrt(2)))


def test_probabilities_of_a_bound():
    mean_square = np.array([0.2, 0.1, 0.05])
    other = np.array([0.3, 0.1, 3.0])
    a = mean_square / B**2
    b = other / B_OTHER**2
    arguments = mean_square, other, B, B_OTHER
    printed = theory.bound_probability(*arguments, "printed")
    np.testing.assert_allclose(printed, (1 - a) * np.maximum(1 - b, 0))
    union = theory.bound_probability(*arguments)
    np.testing.assert_allclose(union, np.maximum(1 - a - b, 0))
    together = theory.bound_probability(*arguments, "all rounds")
    np.testing.assert_allclose(together, np.maximum(1 - np.cumsum(a + b), 0))
    assert printed[2] == union[2] == 0


@pytest.mark.parametrize(
    "answer", [lambda results: fl.privacy.spent(results, 1e-5), fl.privacy.events]
)
def test_a_missing_ledger_names_alternatives(answer):
    with pytest.raises(ValueError, match=r"no epsilon; fljax.audit.overheard says"):
        answer(xr.Dataset({"model": 1.0}))


@pytest.mark.slow
def test_no_epsilon_is_claimed_of_noise_without_a_budget():
    simulation = fl.Simulation(
        problem=fl.problems.ridge(fl.random_key(0), clients=4, samples=5, dim=2),
        network=fl.graphs.ring(4),
        algorithm=fl.algorithms.ATC(0.1),
        noise=fl.link.PerMessage(0.1),
    )
    results = fl.run(simulation, 2)
    names = [str(name) for name in [*results.variables, *results.attrs]]
    assert not [name for name in names if "epsilon" in name or "privacy" in name]
    with pytest.raises(ValueError, match="no privacy ledger"):
        fl.privacy.spent(results, 1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.epsilon(1.0, 1.0), "deviation must be"),
        (lambda: theory.epsilon([1.0], 0.0), "variance must be"),
        (lambda: theory.epsilon([-1.0], 1.0), "deviation must be"),
        (lambda: theory.epsilon([1.0], 1.0, copies=0), "copies must be"),
        (lambda: theory.epsilon([1.0], 1.0, norm="l3"), "l1, l2"),
        (lambda: theory.noise_variance([1.0], 0.0), "epsilon must be"),
        (lambda: theory.neighbor_deviation_bound(-1.0, 1.0, 1.0), "error must be"),
        (lambda: theory.bound_probability([1.0], [1.0, 2, 3], 1.0, 1.0), "equally long"),
        (lambda: theory.bound_probability([1.0], [1.0], 1.0, 0.0), "other_error must be"),
    ],
)
def test_bad_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
