"""Rates of compressed methods against their runs, round by round, and against other formulas."""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ADIANA, DASHA, DIANA, EF21, MARINA
from fljax.link import Contractive, Natural, Quantize, RandomK, Sign, TopK
from fljax.simulation.scan import trace
from fljax.theory import compression
from tests.cases import CLIENTS, DIM, EXACT, OBJECTIVE, make_problem
from tests.support.server_runs import state_metric

close = np.testing.assert_allclose

EVERY = range(CLIENTS)
AT_ZERO = np.array([OBJECTIVE.gradient(k, np.zeros(DIM)) for k in EVERY])
HESSIANS = np.array([[OBJECTIVE.gradient(k, e) - AT_ZERO[k] for e in np.eye(DIM)] for k in EVERY])
MEAN = HESSIANS.mean(0)
BEST = np.linalg.solve(MEAN, -AT_ZERO.mean(0))
LARGEST = np.linalg.eigvalsh(HESSIANS)[:, -1]
SMOOTHNESS = np.linalg.eigvalsh(MEAN)[-1]
CONVEXITY = np.linalg.eigvalsh(MEAN)[0]
#: The root of the clients' mean square, which theorems on estimates are in terms of.
CLIENT_SMOOTHNESS = np.sqrt(np.mean(LARGEST**2))
ROUNDS = 60
RUNS = 100


def gradients(models):
    """``[..., K, D]``"""
    return AT_ZERO + np.einsum("kij,...j->...ki", HESSIANS, models)


def excess(models):
    apart = models - BEST
    return np.einsum("...i,ij,...j->...", apart, MEAN, apart) / 2


def mean_square(errors):
    """The mean over clients of the squares of the last axis."""
    return np.sum(errors**2, axis=-1).mean(axis=-1)


_traces = jax.jit(jax.vmap(trace, (None, 0, None, None)), static_argnums=(2, 3))


def runs(algorithm, *fields, count=RUNS):
    """Models before each round and after the last, ``[S, T + 1, D]``, and fields of the state."""
    keys = jax.random.split(fl.random_key(1), count)

    def values(metric):
        simulation = fl.Simulation(make_problem(), algorithm, metrics=(metric,))
        return np.asarray(_traces(simulation, keys, ROUNDS, 1)[0][metric.name])

    models = values(EXACT)[:, :, 0]
    states = [values(state_metric(name)) for name in fields]
    return np.concatenate([np.zeros((count, 1, DIM)), models], axis=1), *states


def check_falls(errors, factor):
    """At least by the factor in each round, on average over the runs."""
    mean = errors.mean(0)
    assert mean[-1] < 0.5 * mean[0]
    assert np.all(mean <= 1.05 * factor ** np.arange(len(mean)) * mean[0])


@pytest.mark.parametrize("compressor", [TopK(1), TopK(2), Sign(), TopK(DIM)], ids=repr)
def test_the_error_of_ef21_falls_by_its_factor_in_every_round(compressor):
    contraction = compressor.contraction(DIM)
    rate = compression.ef21(SMOOTHNESS, contraction, CONVEXITY, CLIENT_SMOOTHNESS)
    algorithm = EF21(float(rate.step_size), compression=compressor)
    models, estimates = runs(algorithm, "gradients", count=1)
    models = models[0, :-1]
    error = excess(models) + rate.weight * mean_square(estimates[0] - gradients(models))
    assert np.all(error[1:] <= float(rate.factor) * error[:-1] + 1e-28)
    assert error[-1] < 0.5 * error[0]


def test_ef21_with_a_random_contraction_falls_by_its_factor():
    compressor = Contractive(RandomK(1))
    contraction = compressor.contraction(DIM)
    rate = compression.ef21(SMOOTHNESS, contraction, CONVEXITY, CLIENT_SMOOTHNESS)
    models, estimates = runs(EF21(float(rate.step_size), compression=compressor), "gradients")
    models = models[:, :-1]
    error = excess(models) + rate.weight * mean_square(estimates - gradients(models))
    check_falls(error, float(rate.factor))


@pytest.mark.parametrize("compressor", [RandomK(1), Natural()], ids=repr)
def test_the_error_of_diana_falls_by_its_factor(compressor):
    variance = compressor.variance(DIM)
    rate = compression.diana(LARGEST.max(), variance, CLIENTS, CONVEXITY)
    models, shifts = runs(DIANA(float(rate.step_size), compression=compressor), "controls")
    shifts = np.concatenate([np.zeros((RUNS, 1, CLIENTS, DIM)), shifts], axis=1)
    error = np.sum((models - BEST) ** 2, axis=2)
    error = error + rate.weight * mean_square(shifts - gradients(BEST))
    check_falls(error, float(rate.factor))


@pytest.mark.parametrize("participants", [None, 2])
def test_the_error_of_marina_falls_by_its_factor(participants):
    compressor = RandomK(1)
    variance = compressor.variance(DIM)
    rate = compression.marina(
        CLIENT_SMOOTHNESS, variance, CLIENTS, convexity=CONVEXITY, participants=participants
    )
    close(rate.probability, 1 / 3)
    algorithm = MARINA(
        float(rate.step_size),
        compression=compressor,
        probability=float(rate.probability),
        clients_per_round=participants,
    )
    models, direction = runs(algorithm, "direction")
    models = models[:, :-1]
    apart = direction - gradients(models).mean(-2)
    error = excess(models) + rate.server_weight * np.sum(apart**2, axis=2)
    check_falls(error, float(rate.factor))


@pytest.mark.parametrize("compressor", [RandomK(1), Quantize(2)], ids=repr)
def test_the_error_of_dasha_falls_by_its_factor(compressor):
    variance = compressor.variance(DIM)
    rate = compression.dasha(SMOOTHNESS, variance, CLIENTS, CONVEXITY, CLIENT_SMOOTHNESS)
    algorithm = DASHA(float(rate.step_size), compression=compressor)
    models, direction, estimates = runs(algorithm, "direction", "estimates")
    models = models[:, :-1]
    exact = gradients(models)
    error = excess(models) + rate.weight * mean_square(estimates - exact)
    error = error + rate.server_weight * np.sum((direction - exact.mean(-2)) ** 2, axis=2)
    check_falls(error, float(rate.factor))


def test_adiana_is_faster_than_diana_where_the_curvatures_differ_much():
    """With the steps of both theorems, and by more, the more they differ."""
    gain = []
    for condition in (200.0, 5000.0):
        roots = np.stack([np.diag(np.sqrt([condition, 3.0, 1.0]) / np.sqrt(2)) for _ in EVERY])
        targets = np.random.default_rng(0).normal(size=(CLIENTS, 3))
        problem = fl.problems.from_clients(
            tuple(zip(np.sqrt(3) * roots, targets, strict=True)), fl.problems.LeastSquares()
        )
        variance = Natural().variance(3)
        first = compression.diana(condition, variance, CLIENTS, 1.0)
        accelerated = compression.adiana(condition, 1.0, variance, CLIENTS)
        diana = DIANA(float(first.step_size), compression=Natural())
        adiana = ADIANA(
            float(accelerated.step_size),
            compression=Natural(),
            convexity=1.0,
            probability=float(accelerated.probability),
        )
        needed = []
        for algorithm in (diana, adiana):
            simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
            errors = fl.run(simulation, 20_000).normalized_error.values
            needed.append(int(np.argmax(errors < 1e-2 * errors[0])))
        assert 0 < needed[1] < needed[0]
        gain.append(needed[0] / needed[1])
    assert 3 < gain[1] / gain[0] < 8  # the root of 25


def test_the_probability_and_step_of_adiana_in_numbers():
    rate = compression.adiana(2.0, 1.0, 3.0, 12)
    close(rate.probability, 1 / 8)
    close(rate.step_size, 12 / (64 * 3 * 4 * 2))
    rate = compression.adiana(2.0, 1.0, 0.5, 400)  # the root is 5
    close(rate.probability, 1.0)
    close(rate.step_size, min(1 / 4, 400 / (32 * 16 * 2)))
    close(compression.adiana(2.0, 1.0, 0.0, 4).step_size, 1 / 4)


def test_without_compression_steps_are_those_of_gradient_descent():
    for rate in (
        compression.ef21(4.0, 1.0),
        compression.diana(4.0, 0.0, 5),
        compression.marina(4.0, 0.0, 5),
        compression.dasha(4.0, 0.0, 5),
    ):
        close(rate.step_size, 0.25)
        close(rate.factor, 1)
    for rate in (
        compression.ef21(4.0, 1.0, 0.5),
        compression.diana(4.0, 0.0, 5, 0.5),
        compression.marina(4.0, 0.0, 5, convexity=0.5),
        compression.dasha(4.0, 0.0, 5, 0.5),
    ):
        close(rate.factor, 1 - 0.5 / 4)


def test_steps_by_the_theorems_in_numbers():
    """With contraction 3/4 and variance 3, whose roots are simple."""
    close(compression.ef21(2.0, 0.75, client_smoothness=3.0).step_size, 1 / (2 + 3 * 1))
    with_condition = compression.ef21(2.0, 0.75, 0.01, 3.0)
    close(with_condition.step_size, 1 / (2 + 3 * np.sqrt(2)))
    close(with_condition.weight, 2 / (2 + 3 * np.sqrt(2)))
    close(compression.ef21(2.0, 0.75, 1.9).step_size, 0.5 / 3.8)
    close(compression.diana(2.0, 3.0, 9).step_size, 1 / 6)
    close(compression.diana(2.0, 3.0, 9, 2.0).factor, 1 - 1 / 8)
    close(compression.marina(2.0, 3.0, 9).step_size, 1 / (2 * (1 + 1)))
    close(compression.marina(2.0, 3.0, 9, probability=0.5, participants=4).step_size, 1 / 4)
    close(compression.marina(2.0, 3.0, 9, convexity=1.9).step_size, min(1 / 4.83, 0.25 / 3.8))
    close(compression.dasha(2.0, 3.0, 21).step_size, 1 / (2 + 2 * 4))
    close(compression.dasha(2.0, 3.0, 7, 0.01, 4.0).step_size, 1 / (2 + 4 * 6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compression.ef21(1.0, 0.0), "contraction must be .*> 0 and <= 1, got 0"),
        (lambda: compression.ef21(1.0, 0.5, 2.0), "convexity must be at most smoothness"),
        (
            lambda: compression.ef21(2.0, 0.5, client_smoothness=1.0),
            "client_smoothness must be at least smoothness, 2, got 1",
        ),
        (lambda: compression.diana(1.0, -1.0, 3), "variance must be .*got -1"),
        (lambda: compression.marina(1.0, 1.0, 3, probability=1.5), "probability must be .*1.5"),
        (lambda: compression.marina(1.0, 1.0, 3, participants=4), "at most the 3 clients, got 4"),
        (lambda: compression.dasha(-1.0, 1.0, 3), "smoothness must be .*> 0"),
        (lambda: compression.dasha(1.0, 1.0, 0), "clients must be >= 1"),
    ],
)
def test_bad_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
