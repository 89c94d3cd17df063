"""FedGD and FedSGD: the bound of their steps, estimates of gradients, bad arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import FedGD, NetworkedFedSGD, NetworkState
from fljax.problems import L1, LeastAbsoluteDeviation, LeastSquares, from_clients
from fljax.problems.batches import CyclicBatches, Uniform, Weighted
from tests.cases import CLIENTS, DIM, SIZES
from tests.support.learning_networks import (
    ADJACENCY,
    DATA,
    POINTS,
    full_gradient,
    node_models,
    operated,
    quadratic_problem,
    simulate,
    weighted_network,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_the_default_step_meets_the_bound_and_larger_ones_are_warned_of():
    """(106): the largest eigenvalue of the whole system is not larger."""
    top = max(np.linalg.eigvalsh(2 * X.T @ X / len(y))[-1] for X, y in DATA)
    upper = top + 4 * 0.4 * ADJACENCY.sum(axis=1).max()
    moved = operated(FedGD(0.4)) - POINTS
    step = operated(FedGD(0.4, 1.0)) - POINTS
    close(moved, step / upper, rtol=1e-2)
    assert (np.abs(moved) <= np.abs(step / upper) * (1 + 1e-12)).all()  # from the safe side
    laplacian = np.diag(ADJACENCY.sum(axis=1)) - ADJACENCY
    system = np.kron(2 * 0.4 * laplacian, np.eye(DIM))
    for k, (X, y) in enumerate(DATA):
        system[k * DIM : (k + 1) * DIM, k * DIM : (k + 1) * DIM] += 2 * X.T @ X / len(y)
    assert np.linalg.eigvalsh(system)[-1] <= upper
    bound = r"above the bound .* \(2 / \(L \+ 4 coupling max degree\)"
    with pytest.warns(fl.AssumptionWarning, match=bound):
        far = fl.run(
            fl.Simulation(quadratic_problem(), FedGD(0.4, 2.1 / upper), weighted_network()), 2
        )
    close(far.step_bound, 2 / upper, rtol=1e-2)
    close(far.first_step, 2.1 / upper)


@pytest.mark.slow
def test_steps_within_the_bound_give_no_warning(recwarn):
    for step in (0.05, np.full(CLIENTS, 0.05), None):
        results = fl.run(
            fl.Simulation(quadratic_problem(), FedGD(0.4, step), weighted_network()), 2
        )
        assert ("step_bound" in results) == (step is not None)
    assert not recwarn.list


#: (coupling, spectral radius) of the book's exercise 5.1 with the step 0.0005.
RADII = {
    (1.0, 1000.0): [
        *((0.0, 0.999), (1.0, 0.998001), (10.0, 0.9891), (100.0, 0.9089), (400.0, 0.7394)),
        *((499.0, 0.7065), (600.0, 0.8812), (700.0, 1.0604)),
    ],
    (1000.0, 1000.0): [(a, 0.002 * a) for a in (0.0, 1.0, 10.0, 100.0, 400.0, 499.0, 600.0)],
}


@pytest.mark.slow
def test_two_nodes_contract_as_in_the_book():
    """Exercise 5.1: a larger coupling speeds one collection up and slows the other."""
    problem = fl.problems.Problem(jnp.ones((2, 1, 1)), jnp.full((2, 1), -5.0), LeastSquares())
    graph = fl.graphs.complete(2)
    now = fl.view(fl.Simulation(problem, FedGD(1.0, 5e-4), graph))

    def step(coupling, factors, at):
        loss = dataclasses.replace(problem, weights=factors[:, None], importance=factors)
        now.problem = loss
        received = graph.mixing("neighbors")(at)
        state = NetworkState(at, received, graph.degree, None)
        return FedGD(coupling, 5e-4).operator(state, now)

    def matrix(coupling, factors):
        """The matrix of the affine step, column by column."""
        zero = step(coupling, factors, jnp.zeros((2, 1)))
        moved = [step(coupling, factors, jnp.eye(2)[:, [k]]) - zero for k in range(2)]
        return jnp.concatenate(moved, axis=1)

    every = jax.jit(jax.vmap(matrix, (0, None)))
    for factors, rows in RADII.items():
        couplings, radii = np.array(rows).T
        result = every(jnp.asarray(couplings), jnp.asarray(factors))
        spectral = np.abs(np.linalg.eigvals(np.asarray(result))).max(axis=1)
        close(spectral, radii, atol=6e-5)


def test_coupling_keeps_the_mean():
    """The Laplacian's columns sum to zero: only gradients do."""
    moved = operated(FedGD(0.4, 0.05)) - POINTS
    slopes = np.array([full_gradient(k, w, 0) for k, w in enumerate(POINTS)])
    close(moved.sum(axis=0), -0.05 * slopes.sum(axis=0), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "batches", [Uniform(3), Uniform(3, replacement=True), Weighted(2, 0.25 * np.ones((CLIENTS, 4)))]
)
def test_estimates_of_gradients_have_no_bias(batches):
    even = from_clients([(X[:4], y[:4]) for X, y in DATA], LeastSquares())
    simulation = simulate(NetworkedFedSGD(0.0, 1.0, batches=batches), problem=even)
    at = jnp.asarray(POINTS)

    @jax.jit
    @jax.vmap
    def estimate(key):
        now = fl.view(simulation, key)
        return simulation.algorithm.gradient(at, now)

    drawn = np.asarray(estimate(jax.random.split(as_key(0), 20_000)))
    spread = drawn.std(axis=0) / len(drawn) ** 0.5
    assert (np.abs(drawn.mean(axis=0) - np.asarray(even.gradient(at))) < 5 * spread).all()


@pytest.mark.slow
def test_on_all_samples_estimates_are_exact():
    exact = node_models(FedGD(0.4, 0.05), 9)
    for options in (
        {"batches": Uniform(max(SIZES))},
        {"batches": CyclicBatches(max(SIZES))},
        {"oracle": lambda key, problem, models: problem.gradient(models)},
    ):
        close(node_models(NetworkedFedSGD(0.4, 0.05, **options), 9), exact, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_numbers_of_an_oracle_are_swept():
    @fl.module
    class Noisy:
        scale: float

        def __call__(self, key, problem, models):
            noise = jax.random.normal(key, models.shape, models.dtype)
            return problem.gradient(models) + self.scale * noise

    def scenario(key, scale):
        return simulate(NetworkedFedSGD(0.4, 0.05, oracle=Noisy(scale)))

    def measured(key, scale):
        return dataclasses.replace(scenario(key, scale), metrics=("mean_square_deviation",))

    study = fl.sweep(measured, grid={"scale": [0.0, 1.0, 2.0]}, seeds=20, rounds=300)
    assert study.attrs["compilations"] == 1
    last = study.mean_square_deviation.isel(round=slice(-50, None)).mean(("seed", "round")).values
    close(last[2] / last[1], 4, rtol=0.3)  # the variance of a constant step
    assert last[0] < 1e-3 * last[1]


@pytest.mark.slow
def test_an_oracle_that_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="oracle must be a function of a key, the problem"):
        NetworkedFedSGD(1.0, 0.1, oracle=3.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedGD(np.ones((2, 2))), "coupling must be one number, or one for each parameter"),
        (lambda: FedGD(-1.0), "coupling must be finite and >= 0, got -1"),
        (lambda: simulate(FedGD(np.ones(2))), "each of the 3 parameters of a model, got shape"),
        (lambda: simulate(FedGD(1.0, np.ones(2))), "step_size must be one number or one for each"),
        (lambda: FedGD(1.0, np.ones((2, 2))), "step_size must be one number, one for each node or"),
        (
            lambda: simulate(FedGD(1.0), problem=from_clients(DATA, LeastAbsoluteDeviation())),
            "not known for a nonsmooth objective; give step_size",
        ),
        (
            lambda: simulate(FedGD(1.0), problem=from_clients(DATA, LeastSquares(), L1())),
            "not known for a nonsmooth objective",
        ),
        (
            lambda: simulate(FedGD(1.0), problem=fl.streams.Replay(quadratic_problem())),
            "not known for data that arrive one by one",
        ),
        (lambda: NetworkedFedSGD(1.0, 0.1), "give either batches= or oracle="),
        (
            lambda: NetworkedFedSGD(
                1.0, 0.1, batches=Uniform(2), oracle=lambda key, problem, models: models
            ),
            "give either batches= or oracle=",
        ),
        (
            lambda: simulate(NetworkedFedSGD(1.0, 0.1, batches=Uniform(20))),
            "at most the 12 samples",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
