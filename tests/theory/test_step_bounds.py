"""Step sizes and rates of theorems against own loops, and against runs on both sides."""

import itertools

import numpy as np
import pytest

import fljax as fl
from fljax.theory import step_bounds

close = np.testing.assert_allclose

CLIENTS = 6


def weights_of(self_weight):
    """Symmetric weights of a ring; with little weight on itself eigenvalues are near -1."""
    ring = np.roll(np.eye(CLIENTS), 1, 0) + np.roll(np.eye(CLIENTS), -1, 0)
    return (1 - self_weight) / 2 * ring + self_weight * np.eye(CLIENTS)


def radius(form, weights, step, curvature):
    """The largest eigenvalue of a round on the models' and trackers' disagreement and mean, without
    the one of consensus: of trackers that sum to the sum of gradients.
    """
    identity = np.eye(CLIENTS)
    if form == "DIGing":
        model = np.hstack([weights, -step * identity])
    else:
        model = np.hstack([weights, -step * weights])
    change = curvature * (model - np.hstack([identity, 0 * identity]))
    before = np.hstack([0 * identity, identity])
    combined = weights @ (before + change) if form == "AugDGM" else weights @ before + change
    round_map = np.vstack([model, combined])
    # Trackers start as gradients: their sum is the curvature times the sum of the models.
    constraint = np.concatenate([curvature * np.ones(CLIENTS), -np.ones(CLIENTS)])
    basis = np.linalg.svd(constraint[None])[2][1:].T
    return np.abs(np.linalg.eigvals(basis.T @ round_map @ basis)).max()


@pytest.mark.parametrize("self_weight", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("form", step_bounds.FORMS)
def test_tracking_is_stable_exactly_below_its_bound(form, self_weight):
    matrix = weights_of(self_weight)
    weights = fl.graphs.from_stochastic(matrix, convention="left")
    for curvature in (0.5, 3.0):
        bound = float(step_bounds.gradient_tracking_step(curvature, weights, form))
        assert radius(form, matrix, 0.99 * bound, curvature) < 1
        assert radius(form, matrix, 1.01 * bound, curvature) > 1


@pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")
@pytest.mark.parametrize("form", step_bounds.FORMS)
def test_runs_of_equal_clients_converge_below_the_bound_alone(form):
    rng = np.random.default_rng(0)
    features = np.tile(np.linalg.qr(rng.normal(size=(9, 2)))[0] * 3, (CLIENTS, 1, 1))
    targets = rng.normal(size=(CLIENTS, 9))
    problem = fl.problems.Problem(features, targets, fl.problems.LeastSquares(), strength=0.0)
    mixing = fl.graphs.from_stochastic(weights_of(0.2), convention="left")
    bound = float(step_bounds.gradient_tracking_step(2.0, mixing, form))  # curvature 2 I

    def error(step):
        algorithm = getattr(fl.algorithms, form)(step, mixing=mixing)
        simulation = fl.Simulation(
            problem, algorithm, fl.graphs.ring(CLIENTS), metrics=["normalized_error"]
        )
        return fl.run(simulation, 1500).normalized_error.values[-1]

    assert error(0.95 * bound) < 1e-12
    assert not error(1.05 * bound) < 1e3


@pytest.mark.parametrize(("self_weight", "share"), [(0.4, 0.5), (0.6, 0.2), (0.34, 1.0)])
def test_choco_gossip_falls_at_least_by_the_factor(self_weight, share):
    """Its own loop: random sparsification keeps a share of the numbers in the mean."""
    weights = weights_of(self_weight)
    combination = fl.graphs.from_stochastic(weights, convention="left")
    gossip = step_bounds.choco_consensus(combination, share)
    rng = np.random.default_rng(0)
    models = rng.normal(size=(200, CLIENTS, 10))  # 200 runs
    estimates = np.zeros_like(models)
    start = models - models.mean(1, keepdims=True)
    first = np.mean(np.sum(start**2 + (models - estimates) ** 2, axis=(1, 2)))
    rounds = 40
    for _ in range(rounds):
        sent = (rng.random(models.shape) < share) * (models - estimates)
        estimates = estimates + sent
        models = models + float(gossip.step_size) * (weights @ estimates - estimates)
    deviation = models - models.mean(1, keepdims=True)
    last = np.mean(np.sum(deviation**2 + (models - estimates) ** 2, axis=(1, 2)))
    assert last <= float(gossip.factor) ** rounds * first
    values = np.sort(np.linalg.eigvalsh(weights))
    gap = 1 - max(abs(values[0]), values[-2])
    beta = 1 - values[0]
    below = 16 * gap + gap**2 + 4 * beta**2 + 2 * gap * beta**2 - 8 * gap * share
    close(gossip.step_size, gap**2 * share / below, rtol=1e-9)


def quadratics(condition, seed=0):
    """Clients' Hessians between one and the condition number, and their minimizers."""
    rng = np.random.default_rng(seed)
    hessians = []
    for _ in range(CLIENTS):
        basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        hessians.append(basis @ np.diag(np.geomspace(1, condition, 4)) @ basis.T)
    return np.array(hessians), rng.normal(size=(CLIENTS, 4))


@pytest.mark.parametrize("probability", [None, 0.1, 0.9])
def test_proxskip_falls_at_least_by_the_factor(probability):
    hessians, minimizers = quadratics(20.0)
    rate = step_bounds.proxskip(20.0, 1.0, probability)
    step, chance = float(rate.step_size), float(rate.probability)
    assert step == 1 / 20
    optimum = np.linalg.solve(hessians.sum(0), np.einsum("kij,kj->i", hessians, minimizers))
    at_optimum = np.einsum("kij,kj->ki", hessians, optimum - minimizers)
    rng = np.random.default_rng(1)
    sums = np.zeros(61)
    for _ in range(100):
        models, controls = np.zeros((CLIENTS, 4)), np.zeros((CLIENTS, 4))
        for n in range(61):
            distance = np.sum((models - optimum) ** 2)
            sums[n] += distance + (step / chance) ** 2 * np.sum((controls - at_optimum) ** 2)
            gradient = np.einsum("kij,kj->ki", hessians, models - minimizers)
            moved = models - step * (gradient - controls)
            models = moved
            if rng.random() < chance:
                models = np.tile(moved.mean(0), (CLIENTS, 1))
                controls = controls + chance / step * (models - moved)
    assert np.all(sums <= 1.1 * float(rate.factor) ** np.arange(61) * sums[0])


def test_saga_falls_at_least_by_the_factor():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(12, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    targets = rng.normal(size=12)
    convexity = np.linalg.eigvalsh(2 / 12 * rows.T @ rows)[0]
    rate = step_bounds.saga(2.0, convexity, 12)
    optimum = np.linalg.lstsq(rows, targets)[0]
    rounds = 150
    errors = np.zeros(rounds + 1)
    for _ in range(100):
        w = np.ones(3)
        table = 2 * rows * (rows @ w - targets)[:, None]
        for n in range(rounds + 1):
            errors[n] += np.sum((w - optimum) ** 2)
            i = rng.integers(12)
            new = 2 * rows[i] * (rows[i] @ w - targets[i])
            w = w - float(rate.step_size) * (new - table[i] + table.mean(0))
            table[i] = new
    # The theorem's start includes 2 n / (3 (m n + L)) of the objective's excess.
    excess = np.mean((rows @ np.ones(3) - targets) ** 2) - np.mean((rows @ optimum - targets) ** 2)
    start = errors[0] / 100 + 2 * 12 / (3 * (convexity * 12 + 2.0)) * excess
    assert np.all(errors / 100 <= float(rate.factor) ** np.arange(rounds + 1) * start)


@pytest.mark.parametrize("local_steps", [1, 5])
def test_scaffold_converges_at_its_step(local_steps):
    problem = fl.problems.ridge(fl.random_key(0), clients=6, samples=20, dim=2)
    largest = float(np.max(fl.problems.solvers.smoothness(problem)))
    convexity = float(np.min(fl.problems.solvers.strong_convexity(problem)))
    step = float(step_bounds.scaffold_step(largest, convexity, local_steps, 6))
    close(step, min(1 / (81 * largest), 1 / (15 * convexity)) / local_steps, rtol=1e-6)
    few = step_bounds.scaffold_step(largest, convexity, local_steps, 6, participants=2)
    assert few <= step
    simulation = fl.Simulation(
        problem,
        fl.algorithms.SCAFFOLD(step, local_steps=local_steps),
        metrics=["normalized_error"],
    )
    errors = fl.run(simulation, 3000, record_every=500).normalized_error.values
    assert np.all(np.diff(errors) < 0)
    assert errors[-1] < 0.1 * errors[0]


@pytest.mark.parametrize("local_steps", [1, 4])
def test_fedavg_is_below_its_bound(local_steps):
    hessians, minimizers = quadratics(8.0, seed=3)

    def objective(w):
        deviation = w - minimizers
        return np.einsum("ki,kij,kj->k", deviation, hessians, deviation).mean() / 2

    optimum = np.linalg.solve(hessians.sum(0), np.einsum("kij,kj->i", hessians, minimizers))
    w = np.full(4, 2.0)
    numbers = {"heterogeneity": objective(optimum), "noise": 0.0}  # clients' own minima are zero
    distance = np.linalg.norm(w - optimum)
    models = np.tile(w, (CLIENTS, 1))
    largest, excesses = 0.0, []
    offset = max(8 * 8.0, local_steps)
    for t in itertools.count(1):
        gradient = np.einsum("kij,kj->ki", hessians, models - minimizers)
        largest = max(largest, np.linalg.norm(gradient, axis=1).max())
        models = models - 2 / (offset + t) * gradient
        if t % local_steps == 0:
            models = np.tile(models.mean(0), (CLIENTS, 1))
            excesses.append((t + 1, objective(models[0]) - objective(optimum)))
        if t == 400:
            break
    for t, excess in excesses:
        bound = step_bounds.fedavg_bound(
            8.0, 1.0, local_steps, t, gradient_bound=largest, distance=distance, **numbers
        )
        assert excess <= bound.excess
    close(bound.first_step, 2 / (offset + 1), rtol=1e-9)
    close(bound.offset, offset)
    # The last bound, term by term, and with noise.
    drift = 8 * (local_steps - 1) ** 2 * largest**2
    for noise in (0.0, 3.0):
        spread = noise + 6 * 8.0 * numbers["heterogeneity"] + drift
        expected = 8.0 / (offset + t - 1) * (2 * spread + offset / 2 * distance**2)
        excess = step_bounds.fedavg_bound(
            8.0,
            1.0,
            local_steps,
            t,
            heterogeneity=numbers["heterogeneity"],
            gradient_bound=largest,
            noise=noise,
            distance=distance,
        ).excess
        close(excess, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step_bounds.proxskip(1.0, 2.0), "convexity must be at most smoothness"),
        (lambda: step_bounds.saga(-1.0, 1.0, 5), "smoothness must be .*> 0"),
        (lambda: step_bounds.proxskip(2.0, 1.0, 1.5), "probability must be .*, got 1.5"),
        (
            lambda: step_bounds.scaffold_step(2.0, 1.0, 5, 10, participants=11),
            "participants must be at most the 10 clients, got 11",
        ),
        (
            lambda: step_bounds.scaffold_step(2.0, 1.0, 5, 10, server_step_size=0.5),
            "server_step_size must be .*, got 0.5",
        ),
        (
            lambda: step_bounds.gradient_tracking_step(1.0, fl.graphs.ring(4).mixing(), "tracking"),
            "unknown form 'tracking'",
        ),
        (
            lambda: step_bounds.choco_consensus(fl.graphs.ring(4).mixing(), 0.0),
            "contraction must be .*, got 0",
        ),
    ],
)
def test_bad_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
