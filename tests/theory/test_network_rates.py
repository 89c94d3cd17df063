"""How fast coupled models settle: predicted exactly, bounded, and as runs have it."""

import numpy as np
import pytest

import fljax as fl
from fljax.optimization.descent import Extremes, rounds_needed
from fljax.problems import LeastSquares, Problem
from fljax.theory import network_rates as theory
from tests.reference import coupled as reference
from tests.theory.test_networks import D, K, N, adjacency, close, graph

RNG = np.random.default_rng(7)
WEIGHTS = adjacency(RNG, K)
X = RNG.normal(size=(K, N, D))
Y = X @ np.array([1.0, -2.0]) + RNG.normal(size=(K, N))
PROBLEM = Problem(X, Y, LeastSquares())
NETWORK = graph(WEIGHTS)


def ends(features, weights, coupling, ridge=0.0):
    Q = reference.system(features, np.zeros(features.shape[:2]), weights, coupling)[0]
    values = np.linalg.eigvalsh(Q + ridge * np.eye(len(Q)))
    return values[[0, -1]]


@pytest.mark.slow
@pytest.mark.parametrize("dense", [True, False])
def test_extremes_are_those_of_the_matrix(monkeypatch, dense):
    """Also with a coupling of each parameter, a regularizer and few samples; and without rows."""
    if not dense:
        monkeypatch.setattr(theory, "DENSE_UP_TO", 0)
    for coupling in (0.0, 0.3, 50.0, np.array([0.0, 2.0])):
        result = theory.extremes(PROBLEM, NETWORK, coupling)
        np.testing.assert_allclose(result, ends(X, WEIGHTS, coupling), rtol=1e-8)
        rate = theory.fedrelax_rate(PROBLEM, NETWORK, coupling)
        np.testing.assert_allclose(rate, jacobi(X, WEIGHTS, coupling), rtol=1e-8, atol=1e-12)
    few = Problem(X[:, :1], Y[:, :1], LeastSquares(), fl.problems.SquaredL2(), np.full(K, 0.2))
    result = theory.extremes(few, NETWORK, 0.3)
    np.testing.assert_allclose(result, ends(X[:, :1], WEIGHTS, 0.3, 0.2), rtol=1e-8)
    # A parameter that no client's data determine; a component that its clients' data do not
    # determine together.
    blind = Problem(X * np.array([1.0, 0.0]), Y, LeastSquares())
    result = theory.extremes(blind, NETWORK, 0.3)
    assert result.smallest == 0
    assert np.isinf(result.condition)
    cut = WEIGHTS.copy()
    cut[0] = 0
    cut[:, 0] = 0
    alone = Problem(X[:, :1], Y[:, :1], LeastSquares())
    assert theory.extremes(alone, graph(cut), 0.3).smallest == 0
    assert theory.extremes(alone, NETWORK, 0.3).smallest > 0
    with pytest.raises(ValueError, match="FedRelax's update of client 0 is not unique"):
        theory.fedrelax_rate(alone, graph(cut), 0.3)


def jacobi(features, weights, coupling):
    """FedRelax's spectral radius, of its iteration matrix."""
    strength = np.broadcast_to(coupling, D)
    degree = weights.sum(axis=1)
    left = np.zeros((K * D, K * D))
    for k, half in enumerate(reference.halves(features)):
        at = slice(k * D, (k + 1) * D)
        left[at, at] = half + degree[k] * np.diag(strength)
    right = np.kron(weights, np.diag(strength))
    return np.abs(np.linalg.eigvals(np.linalg.solve(left, right))).max()


@pytest.mark.slow
def test_the_exercise_on_the_speed_of_gradient_methods():
    """Exercise 5.1: coupling helps one collection until it harms, and harms the other."""
    two = fl.graphs.path(2)
    eta = 0.5e-3
    first = {
        0: 0.999,
        1: 0.998001,
        10: 0.9891,
        100: 0.9089,
        400: 0.7394,
        499: 0.7065,
        600: 0.8812,
        700: 1.0604,
    }
    data = np.sqrt([[[1.0]], [[1000.0]]])
    problem = Problem(data, -5 * data[..., 0], LeastSquares())
    for coupling, printed in first.items():
        factor = float(theory.extremes(problem, two, float(coupling)).factor(eta))
        assert round(factor, 4) == round(printed, 4)
    data = np.sqrt([[[1000.0]], [[1000.0]]])
    problem = Problem(data, np.array([[-5.0], [5.0]]) * data[..., 0], LeastSquares())
    for coupling in (0.0, 1.0, 10.0, 100.0, 400.0, 499.0, 501.0):
        result = theory.extremes(problem, two, coupling)
        np.testing.assert_allclose(result.factor(eta), 0.002 * coupling, atol=1e-12)
        assert (result.step_limit > eta) == (coupling < 500)


@pytest.mark.slow
def test_gradient_steps_contract_by_the_extreme_eigenvalues():
    """(80)-(86), T10, T11: every step, reached, and nowhere faster than with the best step."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        root = rng.normal(size=(4, 4))
        Q = root @ root.T / 4
        values, vectors = np.linalg.eigh(Q)
        result = Extremes(values[0], values[-1])
        steps = rng.uniform(0, 1, 5) / values[-1]
        for step, factor in zip(steps, np.asarray(result.factor(steps)), strict=True):
            error = rng.normal(size=4)
            moved = error - 2 * step * Q @ error
            assert np.linalg.norm(moved) <= factor * np.linalg.norm(error) * (1 + 1e-12)
            sizes = np.linalg.norm(vectors - 2 * step * Q @ vectors, axis=0)
            close(sizes.max(), factor)
        best = result.best_step
        close(result.factor(best), result.best_factor)
        ratio = values[-1] / values[0]
        np.testing.assert_allclose(result.best_factor, (ratio - 1) / (ratio + 1), rtol=1e-9)
        assert np.all(np.asarray(result.factor(best * np.array([0.9, 1.1]))) > result.best_factor)
        close([result.factor(result.step_limit), result.condition], [1, ratio])
        accuracy = 10 ** rng.uniform(-4, 0)
        factor = float(result.factor(steps[0]))
        count = int(rounds_needed(2.0, accuracy, factor))
        assert factor**count * 2 <= accuracy * (1 + 1e-9) < factor ** (count - 1) * 2 * (1 + 2e-9)
    assert rounds_needed(1.0, 2.0, 0.5) == 0
    assert rounds_needed(4.0, 2.0, 0.0) == 1
    assert np.isinf(rounds_needed(4.0, 2.0, 1.0))
    assert rounds_needed(1.0, 1e-7, 0.1) == 7  # and not eight, by rounding


def test_perturbed_steps_stay_within_the_repaired_bound():
    """(88), T12: reached; as printed false by far."""
    rng = np.random.default_rng(1)
    worst = 0.0
    printed_worst = 0.0
    for _ in range(100):
        factor = rng.uniform(0.05, 0.99)
        count = 12
        noise = rng.exponential(size=count) * (rng.random(count) < 0.5)
        distance = rng.exponential() * (rng.random() < 0.5)
        bound = np.asarray(theory.perturbed_bound(factor, distance, noise))
        printed = np.asarray(theory.perturbed_bound(factor, distance, noise, printed=True))
        close((bound, printed), reference.perturbed_bounds(factor, distance, noise))
        error = distance
        errors = []
        for size in noise:  # all in the direction that contracts least
            error = factor * error + size
            errors.append(error)
        positive = bound > 0
        worst = max(worst, np.max(np.array(errors)[positive] / bound[positive]))
        printed_worst = max(printed_worst, np.max(np.array(errors)[positive] / printed[positive]))
    close(worst, 1)
    assert printed_worst > 10
    # Exercise 4.6: the same accuracy, spent late, early or evenly.
    bits = np.linspace(2, 12, 30)
    late, early, even = (
        float(theory.perturbed_bound(0.7, 1.0, 2.0**-spent)[-1])
        for spent in (bits, bits[::-1], np.full(30, 7.0))
    )
    assert 10 * late < even < early / 10


def test_averaging_on_a_graph():
    """Exercise 4.4: no contraction along the mean, the best step on differences."""
    values = np.linalg.eigvalsh(reference.laplacian(WEIGHTS))
    result = theory.consensus_extremes(NETWORK)
    close(result.best_step, 2 / (values[1] + values[-1]))
    close(result.best_factor, (values[-1] - values[1]) / (values[-1] + values[1]))
    u = np.arange(float(K))
    mean = np.arange(K).mean()
    for _ in range(50):
        moved = u - float(result.best_step) * reference.laplacian(WEIGHTS) @ u
        bound = float(result.best_factor) * np.linalg.norm(u - mean)
        assert np.linalg.norm(moved - mean) <= bound * (1 + 1e-9) + 1e-12
        u = moved
    np.testing.assert_allclose(u, mean, atol=float(result.best_factor) ** 50 * 10)


def numbers(y):
    return Problem(np.ones((len(y), 1, 1)), y[:, None], LeastSquares())


@pytest.mark.slow
def test_a_start_with_the_right_mean_is_not_slowed_down():
    """Exercise 5.2: a bound for all starts does not predict this one."""
    rng = np.random.default_rng(0)
    weights = np.zeros((50, 50))
    for k in range(50):
        chosen = rng.choice(np.delete(np.arange(50), k), 4, replace=False)
        weights[k, chosen] = weights[chosen, k] = 1
    y = rng.normal(size=50)
    network = graph(weights)
    counts = []
    for coupling in (0.01, 0.1, 1.0, 10.0, 100.0):
        worst = theory.extremes(numbers(y), network, coupling)
        start = y[:, None]
        result = theory.excited(numbers(y), network, coupling, start)
        close(worst.smallest, 1)
        laplacian = np.linalg.eigvalsh(reference.laplacian(weights))
        close(result, 1 + coupling * laplacian[[1, -1]])
        step = float(worst.step_limit) / 2
        factor = float(result.factor(step))
        Q = np.eye(50) + coupling * reference.laplacian(weights)
        target = np.linalg.solve(Q, y)
        error = y - target
        sizes = []
        for _ in range(300):
            sizes.append(np.linalg.norm(error))
            error = error - 2 * step * (Q @ error)
            error -= error.mean()  # rounding
        counts.append(int(np.argmax(np.array(sizes) < 1e-6 * sizes[0])))
        assert counts[-1] <= rounds_needed(1.0, 1e-6, factor)
    assert counts == sorted(counts)
    assert counts[-1] < 1.3 * counts[-2]  # saturates, and
    assert rounds_needed(1.0, 1e-6, float(worst.best_factor)) > 50 * counts[-1]
    with pytest.raises(ValueError, match="the start is the solution"):
        theory.excited(numbers(y * 0), network, 1.0, np.zeros((50, 1)))


@pytest.mark.slow
def test_the_prox_contracts_points_as_stated():
    """(174), T27: on random quadratics; reached along the least eigenvector."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        root = rng.normal(size=(3, 3))
        Q = root @ root.T
        weight = 10 ** rng.uniform(-2, 2)
        values, vectors = np.linalg.eigh(Q)
        factor = float(theory.prox_factor(2 * values[0], weight))
        map_ = weight * np.linalg.inv(2 * Q + weight * np.eye(3))
        u = rng.normal(size=3)
        assert np.linalg.norm(map_ @ u) <= factor * np.linalg.norm(u) * (1 + 1e-9)
        np.testing.assert_allclose(np.linalg.norm(map_ @ vectors[:, 0]), factor, rtol=1e-9)
    result = theory.prox_factor(np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]))
    assert result.tolist() == [1, 0, 1]


def worst_schedule(events, delay, activity, clients):
    """As late and as old as it may be: all in a window's last event, then all of its first."""
    active = np.zeros((events, clients), bool)
    active[activity - 1 :: activity] = True
    return active, np.full((events, clients, clients), delay)


def test_asynchronous_rounds_stay_within_the_repaired_bound():
    """(134), T18: the adversary's schedule and random ones, of what contracts by 0.6 exactly."""
    factor = 0.6
    events = 120
    rng = np.random.default_rng(0)

    def apply(k, received):
        return factor * np.delete(received, k, axis=0).mean(axis=0)

    start = np.ones((3, 1))
    printed_worst = {}
    for delay, activity in ((0, 1), (1, 1), (2, 2), (5, 5), (3, 1), (0, 4), (2, 6)):
        schedules = [worst_schedule(events, delay, activity, 3)]
        for _ in range(3):
            active = rng.random((events, 3)) < 0.3
            for first in range(events - activity + 1):
                idle = ~active[first : first + activity].any(axis=0)
                active[first + activity - 1, idle] = True
            schedules.append((active, rng.integers(0, delay + 1, (events, 3, 3))))
        result = theory.asynchronous_bound(factor, events, delay, activity)
        ratios = []
        for active, ages in schedules:
            errors = np.abs(reference.asynchronous(apply, start, active, ages)).max(axis=(1, 2))
            assert np.all(errors <= np.asarray(result.bound) * (1 + 1e-12))
            assert np.all(errors <= np.asarray(result.floored) * (1 + 1e-12))
            ratios.append(np.max(errors / np.asarray(result.printed)))
        assert np.all(np.asarray(result.bound) <= np.asarray(result.floored) * (1 + 1e-12))
        printed_worst[delay, activity] = max(ratios)
        if (delay, activity) == (0, 1):
            close(result, [factor ** np.arange(events + 1)] * 3)
            close(errors, result.bound)
    np.testing.assert_allclose(printed_worst[1, 1], 1)
    assert printed_worst[2, 2] > 1.1
    assert printed_worst[5, 5] > 1.19
    close(
        theory.asynchronous_bound(factor, 9, 3).bound,
        theory.asynchronous_bound(factor, 9, 3, 3).bound,
    )


# --------------------------------------------------------------------------- runs


def errors_of(algorithm, rounds, start=None, **stages):
    """Errors of each client's model against GTVMin's solution, ``[T + 1, K]`` from the start on."""
    start = np.zeros((K, D)) if start is None else start
    simulation = fl.Simulation(
        PROBLEM.starting_at(start), algorithm, NETWORK, metrics=fl.metrics.trajectory(), **stages
    )
    models = np.asarray(fl.run(simulation, rounds=rounds).model_trajectory)
    solution = reference.gtvmin(X, Y, WEIGHTS, float(algorithm.coupling))
    return np.linalg.norm(np.concatenate([start[None], models]) - solution, axis=-1)


def late_rate(errors, rounds=20):
    """The factor by which a round brings the errors down, in the end."""
    total = np.linalg.norm(errors, axis=1)
    return (total[-1] / total[-1 - rounds]) ** (1 / rounds)


@pytest.mark.slow
def test_runs_settle_at_the_predicted_rate():
    coupling = 2.0
    rounds = 80
    result = theory.extremes(PROBLEM, NETWORK, coupling)
    step = float(result.step_limit) / 2
    errors = errors_of(fl.algorithms.FedGD(coupling, step), rounds)
    np.testing.assert_allclose(late_rate(errors), result.factor(step), rtol=0.01)
    total = np.linalg.norm(errors, axis=1)
    assert np.all(total[1:] <= float(result.factor(step)) * total[:-1] * (1 + 1e-9))
    enough = int(rounds_needed(total[0], 0.4 * total[0], float(result.factor(step))))
    assert total[enough] <= 0.4 * total[0]
    errors = errors_of(fl.algorithms.FedRelax(coupling), rounds)
    rate = theory.fedrelax_rate(PROBLEM, NETWORK, coupling)
    np.testing.assert_allclose(late_rate(errors), rate, rtol=0.01)
    # The farthest client in every round, (131).
    factor = float(theory.fedrelax_factors(PROBLEM, NETWORK, coupling).max())
    assert rate <= factor < 1
    assert np.all(errors.max(axis=1)[1:] <= factor * errors.max(axis=1)[:-1] * (1 + 1e-9))


@pytest.mark.slow
def test_steps_beyond_the_limit_grow():
    result = theory.extremes(PROBLEM, NETWORK, 2.0)
    for share, settles in ((0.98, True), (1.02, False)):
        step = share * float(result.step_limit)
        with pytest.warns(fl.AssumptionWarning, match="above the bound"):
            errors = errors_of(fl.algorithms.FedGD(2.0, step), 400, np.ones((K, D)))
        rate = late_rate(errors, 10)
        assert (rate < 1) == settles
        np.testing.assert_allclose(rate, result.factor(step), rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("delay", "activity"), [(2, 2), (0, 4)])
def test_late_and_absent_clients_stay_within_the_bound(delay, activity):
    """(134) repaired, of FedRelax in the simulator; and it converges (T19)."""
    stages = {"participation": fl.participation.Bounded(activity, 0.2)}
    if delay:
        stages["delays"] = fl.link.UniformDelay(delay)
    coupling = 0.5
    rounds = 80
    factor = float(theory.fedrelax_factors(PROBLEM, NETWORK, coupling).max())
    errors = errors_of(fl.algorithms.FedRelax(coupling), rounds, **stages).max(axis=1)
    bound = np.asarray(theory.asynchronous_bound(factor, rounds, delay, activity).bound)
    assert np.all(errors <= bound * errors[0] * (1 + 1e-9))
    assert errors[-1] < 1e-2 * errors[0]
