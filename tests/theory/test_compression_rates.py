"""Rates of compressed methods against their runs, round by round, and against other formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ADIANA, CANITA, DASHA, DIANA, EF21, MARINA
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


CONVEX = np.array([4.0, 0.3, 1e-3])


def convex_problem(clients, seed=2):
    """Quadratic objectives of clients with their common minimizer far away, and hardly curved along
    one direction: the problem, and the excess of the objective at models.
    """
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=(clients, 3)) + np.array([1.0, 5.0, 60.0])
    roots = np.stack([np.diag(np.sqrt(CONVEX)) for _ in range(clients)])
    data = zip(np.sqrt(3) * roots, np.sqrt(3) * np.sqrt(CONVEX) * targets, strict=True)
    problem = fl.problems.from_clients(tuple(data), fl.problems.LeastSquares())
    best = targets.mean(0)
    curvature = jax.hessian(lambda w: problem.objective(np.ones((clients, 1)) * w[None]).mean())
    hessian = np.asarray(curvature(np.zeros(3)))
    return problem, best, hessian


@pytest.mark.parametrize(
    ("compressor", "clients"), [(Natural(), 3), (RandomK(1), 40), (RandomK(2), 5)], ids=repr
)
def test_the_error_of_canita_is_within_its_bound(compressor, clients):
    """In every round, on average over the draws: of one over the square of the rounds."""
    problem, best, hessian = convex_problem(clients)
    largest = np.linalg.eigvalsh(hessian)[-1]
    rate = compression.canita(largest, compressor.variance(3), clients)
    algorithm = CANITA(rate.step_size, compression=compressor)
    simulation = fl.Simulation(problem, algorithm, metrics=(EXACT,))
    keys = jax.random.split(fl.random_key(1), 40)
    models = np.asarray(_traces(simulation, keys, 1500, 1)[0][EXACT.name])[:, :, 0]
    apart = models - best
    error = np.einsum("stj,ij,sti->st", apart, hessian, apart).mean(0) / 2
    bound = np.asarray(rate.bound(jnp.arange(1, 1501))) * np.sum(best**2)
    assert np.all(error <= bound)
    assert error[-1] < 0.1 * error[0]


def test_canita_with_many_clients_is_faster_than_diana_without_a_curvature():
    """Steps of both theorems: along a direction that is hardly curved acceleration pays."""
    clients = 60
    problem, best, hessian = convex_problem(clients)
    variance = Natural().variance(3)
    largest = np.linalg.eigvalsh(hessian)[-1]
    steps = {
        DIANA: float(compression.diana(largest, variance, clients).step_size),
        CANITA: compression.canita(largest, variance, clients).step_size,
    }
    left = {}
    for kind, step in steps.items():
        simulation = fl.Simulation(problem, kind(step, compression=Natural()), metrics=(EXACT,))
        trace_of = _traces(simulation, jax.random.split(fl.random_key(1), 1), 1000, 1)
        apart = np.asarray(trace_of[0][EXACT.name])[0, -1, 0] - best
        left[kind] = apart @ hessian @ apart
    assert left[CANITA] < 0.1 * left[DIANA]


@pytest.mark.parametrize("variance", [0.0, 0.125, 1.0, 6.0, 40.0])
@pytest.mark.parametrize("clients", [1, 10, 300, 10**5])
def test_the_parameters_of_canita_fulfil_the_conditions_of_its_bound(variance, clients):
    r"""The recursions that the bound follows from, per round and with :math:`L=1`.

    With :math:`F` the excess at w, :math:`H` the mean square of the errors of the shifts,
    :math:`Y\le2D` the mean square of gradients' differences between y and w, :math:`D` the Bregman
    distance, and :math:`V\le2\omega(Y+H)/K` the variance of g,

    .. math::

        F(z)&\le(1-\theta)F(w)+\frac{\theta^2}{2\mu}(d-d^+)-\frac\mu2(1-\mu)G
            +\frac\mu2(1+\mu)V-(1-\theta)D \\
        H^+&\le(1-\alpha/2)H+2p(1+2p/\alpha)\big(\mu^2(G+V)+Y\big)

    The error is bounded if there are weights of H, here the least ones, with which G, H and Y
    have no positive factor left, and if those of F telescope.
    """
    rate = compression.canita(1.0, variance, clients)
    offset, p = float(rate.offset), float(rate.probability)
    # Until the step size is constant, and the least weight has forgotten where it began.
    n = np.arange(1, int(float(rate.step_size.rounds) + 60 * offset))
    step = np.asarray(jax.vmap(rate.step_size)(n))
    theta = 3 / p / (n - 1 + offset)
    alpha = 1 / (1 + variance)
    factor = p * (1 + 2 * p / alpha)
    noise = (step / theta) ** 2 * 2 * variance / clients
    weights = np.zeros(len(n) + 1)
    for i in reversed(range(len(n))):
        weights[i] = weights[i + 1] * (1 - alpha / 2) + noise[i]
    after = weights[1:]
    assert np.all(4 * factor * after * theta**2 <= 1 - step)
    assert np.all(noise + 2 * factor * after <= (1 - theta) * step / (2 * theta**2))
    telescoping = (1 - p * theta) * step / theta**2
    assert np.all(telescoping[1:] <= (step / theta**2)[:-1] * (1 + 1e-12))
    first = step[0] / (p * theta[0] ** 2) / 2 + 1 / 2  # of F(w) <= d / 2, and of d / 2
    assert first <= 1.5
    close(rate.bound(jnp.asarray(n)), 1.5 * p * theta**2 / step, rtol=1e-10)


def test_the_parameters_of_canita_in_numbers():
    rate = compression.canita(2.0, 3.0, 48)  # b is 1
    close(rate.probability, 1 / 2)
    close(rate.offset, 45.0)
    close(rate.step_size.final, 1 / (2 * (48 * 3 * 4 * 10 / (48 * 4) + 1.5)))
    close(rate.step_size.initial, 1 / (2 * (9 * 25 / 4 + 1.5)))
    close(rate.step_size(np.int32(2)) / rate.step_size.initial, 47 / 46)
    rate = compression.canita(2.0, 3.0, 1)  # b is omega, and the last step also the first
    close(rate.probability, 1 / 4)
    close(rate.step_size.initial, rate.step_size.final)


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
        (lambda: compression.canita(1.0, -0.5, 3), "variance must be .*got -0.5"),
        (lambda: compression.canita(0.0, 0.5, 3), "smoothness must be .*> 0"),
        (lambda: compression.dasha(-1.0, 1.0, 3), "smoothness must be .*> 0"),
        (lambda: compression.dasha(1.0, 1.0, 0), "clients must be >= 1"),
    ],
)
def test_bad_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
