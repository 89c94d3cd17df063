"""Federated averaging with importance sampling against loops, theory and worked examples."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key, key_of
from fljax._core.random_subsets import systematic
from fljax.algorithms import FedAvg, ISFedAvg
from fljax.algorithms.server.isfedavg import capped, redistributed
from fljax.problems import optimum
from fljax.problems.batches import Uniform, weighted
from tests.cases import CLIENTS, OBJECTIVE, SIZES, keys_of, make_problem, step_of
from tests.reference import multiagent

COUNT = 2
BATCH = (2, 3, 1, 4, 2)
STEPS = (1, 3, 2, 1, 2)
ROUNDS = 8
REAL = np.arange(max(SIZES)) < np.array(SIZES)[:, None]


def drawn_batches(algorithm):
    """The library's draws, from the probabilities of the loop."""
    keys = keys_of(1, ROUNDS)
    chosen = {}

    def choose(n, p):
        key = key_of(keys[n - 1], "participation")
        result = np.asarray(systematic(key, jnp.asarray(p), COUNT, COUNT))
        chosen[n] = result
        return result

    def batch(n, e, i, k, sampling):
        key = key_of(keys[n - 1], "batches")
        probabilities = np.full((COUNT, max(SIZES)), 1.0 / max(SIZES))
        probabilities[i] = 0
        probabilities[i, : len(sampling)] = sampling
        clients = jnp.asarray(chosen[n])
        real = jnp.asarray(REAL)[clients]
        result = weighted(key, jnp.asarray(probabilities), BATCH, clients, real, max(STEPS))
        rows = np.asarray(result.rows)[i, e]
        return rows[rows < SIZES[k]]

    return choose, batch


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize(
    ("rule", "cap"),  # capping comes after the rule, whichever it is
    [("optimal", True), ("full", False), ("sampled", True), ("sampled", False)],
)
def test_importance_sampling_equals_the_loop(rule, cap):
    algorithm = ISFedAvg(0.03, COUNT, BATCH, STEPS, rule, floor=0.1, cap=cap)
    problem = make_problem()
    simulation = fl.Simulation(
        problem, algorithm, metrics=[fl.metrics.trajectory("shared", ("parameter",))]
    )
    results = np.asarray(fl.run(simulation, ROUNDS, as_key(1))["shared_trajectory"])
    optimum = np.asarray(fl.problems.optimum(problem))
    arguments = COUNT, BATCH, STEPS, rule, 0.1, cap, *drawn_batches(algorithm), optimum
    expected = multiagent.isfedavg(OBJECTIVE, step_of(algorithm.step_size), ROUNDS, *arguments)
    np.testing.assert_allclose(results, expected, rtol=1e-9, atol=1e-11)


def test_drawn_samples_share_their_probability():
    """The document's example: five samples, two drawn at a time, from equal probabilities."""
    probabilities = jnp.full((1, 5), 0.2)
    probabilities = redistributed(probabilities, jnp.array([[0, 1]]), jnp.array([[3.0, 1.0]]))
    np.testing.assert_allclose(probabilities[0], [0.3, 0.1, 0.2, 0.2, 0.2])
    probabilities = redistributed(probabilities, jnp.array([[2, 3]]), jnp.array([[1.0, 4.0]]))
    np.testing.assert_allclose(probabilities[0], [0.3, 0.1, 0.08, 0.32, 0.2])
    assert (
        redistributed(probabilities, jnp.array([[5, 5]]), jnp.ones((1, 2))).tolist()
        == probabilities.tolist()
    )  # index 5 is padding: no sample was drawn
    assert (
        redistributed(probabilities, jnp.array([[0, 1]]), jnp.zeros((1, 2))).tolist()
        == probabilities.tolist()
    )


@pytest.mark.thin(3)
@pytest.mark.parametrize("most", [0.2, 0.25, 0.3, 0.5, 1.0])
def test_capped_probabilities_equal_the_loops(most):
    probabilities = np.random.default_rng(0).dirichlet([0.5] * 6, 50)
    expected = np.array([multiagent.floored_and_capped(row, 0.0, most) for row in probabilities])
    result = np.asarray(capped(jnp.asarray(probabilities), jnp.full(50, most)))
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(result.sum(axis=1), 1)
    # With as many clients as slots all are at the cap, despite rounding in single precision.
    all_at_cap = capped(jnp.asarray(probabilities, jnp.float32), jnp.full(50, 1 / 6, jnp.float32))
    np.testing.assert_allclose(all_at_cap, 1 / 6, rtol=1e-4)


@pytest.mark.slow
def test_the_optimal_probabilities_give_the_least_noise():
    """They minimize (2.23): other probabilities, near or far, have a larger value."""
    problem = make_problem()
    algorithm = ISFedAvg(0.03, COUNT, 2, 3, "optimal", floor=0.0, cap=False)
    state = algorithm.init(problem, None)
    optimum = np.asarray(fl.problems.optimum(problem))

    def noise(clients, samples):
        total = 0.0
        for k in range(CLIENTS):
            sampling = samples[k, : SIZES[k]]
            gradient_norm = np.linalg.norm(OBJECTIVE.gradient(k, optimum))
            need = multiagent.need(OBJECTIVE, k, sampling, optimum, 2, 3, gradient_norm)
            total += need**2 / clients[k]
        return total

    clients = np.asarray(state.clients)
    samples = np.asarray(state.samples)
    least = noise(clients, samples)
    rng = np.random.default_rng(1)
    for size in (0.02, 0.2, 1.0):
        moved = [p * np.exp(size * rng.normal(size=p.shape)) for p in (clients, samples)]
        moved = moved[0] / moved[0].sum(), moved[1] / moved[1].sum(axis=1, keepdims=True)
        assert noise(*moved) > least
    even = np.full(CLIENTS, 1 / CLIENTS), REAL / REAL.sum(axis=1, keepdims=True)
    assert noise(*even) > 1.05 * least


@pytest.mark.slow
def test_equal_probabilities_are_federated_averaging_with_normalized_steps():
    """On average over the draws: importance sampling with a floor of one is uniform."""

    def end(algorithm, seeds):
        def scenario(key):
            del key
            return fl.Simulation(
                make_problem(), algorithm, metrics=[fl.metrics.trajectory("shared", ("parameter",))]
            )

        results = fl.sweep(scenario, rounds=1, seeds=seeds, progress=False)["shared_trajectory"]
        return np.asarray(results).reshape(seeds, -1)

    ours = end(ISFedAvg(0.03, COUNT, BATCH, STEPS, "sampled", floor=1.0), 3000)
    same = FedAvg(0.03, COUNT, batches=Uniform(BATCH), local_steps=STEPS, normalized=True)
    theirs = end(same, 3000)
    error = np.sqrt(ours.var(axis=0) + theirs.var(axis=0)) / 3000**0.5
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 4.5 * error).all()


@pytest.mark.parametrize("rule", ["sampled", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_seeds_and_numbers_cost_one_compilation(rule):
    def scenario(key, step_size, floor):
        del key
        return fl.Simulation(make_problem(), ISFedAvg(step_size, COUNT, BATCH, STEPS, rule, floor))

    grid = {"step_size": [0.01, 0.03], "floor": [0.1, 0.5]}
    study = fl.sweep(scenario, rounds=2, seeds=3, grid=grid, keep_models=True, progress=False)
    assert study.attrs["compilations"] == 1
    ends = np.asarray(study.model).reshape(4 * 3, -1)
    assert len(np.unique(ends.round(12), axis=0)) == 4 * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ISFedAvg(0.1, 0), "clients_per_round must be >= 1"),
        (lambda: ISFedAvg(0.1, 2, rule="best"), "optimal"),
        (lambda: ISFedAvg(0.1, 2, floor=1.5), "floor"),
        (lambda: run(ISFedAvg(0.1, 6)), "at most the 5 clients, got 6"),
        (lambda: run(ISFedAvg(0.1, 2, batch=5)), "client 0 has 4 samples, fewer than its batch"),
        (lambda: run(ISFedAvg(0.1, 2, local_steps=(1, 2))), "one for each of the 5 clients, got 2"),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def run(algorithm):
    return fl.run(fl.Simulation(make_problem(), algorithm), 2)


@pytest.mark.slow
def test_probabilities_by_all_norms_are_the_true_ones_at_the_minimizer():
    problem = make_problem()
    true, full = (ISFedAvg(0.05, 2, rule=rule) for rule in ("optimal", "full"))
    at_optimum = full.init(problem, None)._replace(model=optimum(problem))
    result = full.probabilities(problem, at_optimum)
    for ours, theirs in zip(
        result, true.probabilities(problem, true.init(problem, None)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    elsewhere = full.probabilities(problem, at_optimum._replace(model=at_optimum.model + 1))
    assert np.abs(elsewhere[0] - result[0]).max() > 1e-3
