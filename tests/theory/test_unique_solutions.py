"""Theory of problems whose solution is not unique, and of recursions without a steady state."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.theory import multiagent, pgfl, zcdp_nfl

close = np.testing.assert_allclose

CLIENTS = 6


def problem_of(kind, dtype=np.float64, clients=CLIENTS):
    """Least squares that leave a direction open, in one way or another."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(clients, 8, 4))
    if kind == "zero feature":
        features[..., 1] = 0
    if kind == "dependent feature":
        features[..., 1] = 0.3 * features[..., 0] + 0.7 * features[..., 3]
    targets = rng.normal(size=(clients, 8)).astype(dtype)
    return fl.problems.Problem(
        features.astype(dtype), targets, fl.problems.LeastSquares(), strength=0.0
    )


def peers(problem, step=0.02, **parts):
    return fl.Simulation(problem, fl.algorithms.ATC(step, **parts), fl.graphs.ring(CLIENTS))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["zero feature", "dependent feature"])
def test_data_that_leave_a_direction_open_are_refused(kind, double):
    with jax.enable_x64(double):
        problem = problem_of(kind, np.float64 if double else np.float32)
        peer = peers(problem)
        noises = fl.link.PerEdge(0.1), fl.link.GraphHomomorphic(0.1)
        for call in (
            lambda: multiagent.minimizer(problem),
            lambda: multiagent.steady_state(peer),
            lambda: multiagent.stable_step(peer),
            lambda: multiagent.learning_curve(peer, 3),
            lambda: multiagent.crossover(peer, *noises, (0.01, 0.4)),
        ):
            with pytest.raises(ValueError, match=r"do not determine the minimizer.* regularizer"):
                call()
        assert np.isnan(jax.jit(multiagent.minimizer)(problem)).all()
        assert np.isnan(multiagent.local_minimizers(problem)).all()
        mixing = fl.graphs.ring(CLIENTS).mixing()
        assert multiagent.centroid_floor(problem, mixing, noises[0], 0.01) == np.inf
        with pytest.raises(ValueError, match="positive definite"):
            multiagent.noise_gain(multiagent.hessian(problem), 0.1)
        federation = fl.federation.balanced(2, fl.graphs.path(3))
        servers = fl.Simulation(problem, fl.algorithms.PGFL(penalty=100.0), federation)
        for function in (pgfl.fixed_point, pgfl.large_penalty_limit, pgfl.bias):
            with pytest.raises(np.linalg.LinAlgError, match=r"not unique.* regularizer"):
                function(servers)
        with pytest.raises(np.linalg.LinAlgError, match="not unique"):
            pgfl.cluster_optima(problem)


def test_solutions_of_good_data_are_those_of_the_normal_equations():
    problem = problem_of("all features")
    x, y = np.asarray(problem.features), np.asarray(problem.targets)
    each = [np.linalg.lstsq(a, b)[0] for a, b in zip(x, y, strict=True)]
    close(multiagent.local_minimizers(problem), each, rtol=1e-9)
    pooled = np.linalg.lstsq(x.reshape(-1, 4), y.ravel())[0]
    close(multiagent.minimizer(problem), pooled, rtol=1e-9)
    close(pgfl.cluster_optima(problem)[0], pooled, rtol=1e-9)
    weights = np.array([1.0, 0, 0, 0, 0, 0])
    close(multiagent.minimizer(problem, weights), each[0], rtol=1e-9)
    with pytest.raises(ValueError, match="clients have no weight"):
        multiagent.minimizer(problem, np.zeros(CLIENTS))


def test_one_client_without_a_minimizer_has_none():
    problem = problem_of("all features")
    weights = np.array(problem.weights)
    weights[2] = [1 / 3] * 3 + [0] * 5  # three samples of four parameters
    problem = dataclasses.replace(problem, weights=weights)
    found = np.isnan(multiagent.local_minimizers(problem)).all(axis=1)
    assert found.tolist() == [False, False, True, False, False, False]
    assert np.isnan(multiagent.drift(problem))
    assert np.isfinite(multiagent.minimizer(problem)).all()


def test_unstable_recursions_are_infinite():
    """A step above that of the mean leaves no mean either; one above the mean square's does."""
    problem = problem_of("all features")
    limit = multiagent.stable_step(peers(problem))
    for factor, is_stable in ((0.9, True), (1.05, False)):
        state = multiagent.steady_state(peers(problem, factor * limit))
        assert np.isfinite(state.mean).all() == is_stable
        assert np.isfinite(state.covariance).all() == is_stable
        assert np.isfinite(state.individual) == is_stable
    single = fl.batches.Uniform(1)
    limit = multiagent.stable_step(peers(problem, batches=single), "mean square")
    state = multiagent.steady_state(peers(problem, 1.2 * limit, batches=single))
    assert np.isfinite(state.mean).all()
    assert np.isinf(state.covariance).all()
    assert state.individual == np.inf


@pytest.mark.parametrize(("radius", "is_finite"), [(1 - 1e-9, True), (1.0, False), (1.1, False)])
def test_sums_of_powers_are_infinite_from_radius_one_on(radius, is_finite):
    total = multiagent._lyapunov(jnp.diag(jnp.array([radius, 0.5])), jnp.eye(2))
    if is_finite:
        close(np.diag(total), [1 / (1 - radius**2), 4 / 3], rtol=1e-6)
    else:
        assert np.isinf(total).all()


def test_an_exact_newton_step_is_stable():
    """The recursion of covariances is zero, and no number over zero."""
    problem = fl.problems.Problem(
        np.ones((2, 1, 1)), np.zeros((2, 1)), fl.problems.LeastSquares(), strength=0.0
    )
    simulation = fl.Simulation(problem, fl.algorithms.ATC(0.5), fl.graphs.path(2))
    close(multiagent.stable_step(simulation), 1.0, rtol=1e-3)  # 2 / L, twice the Newton step
    close(multiagent.stable_step(simulation, "mean square"), 1.0, rtol=1e-3)


def test_the_best_step_without_noise_is_said():
    hessian = jnp.diag(jnp.array([1.0, 3.0]))
    none = jnp.zeros((2, 2))
    for variance in (0.0, 0.1):
        best = multiagent.best_step(hessian, none, variance)
        assert (best.step_size, best.deviation) == (np.inf, 0)
    best = multiagent.best_step(hessian, jnp.eye(2), 0.0)
    assert (best.step_size, best.deviation) == (0, 0)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("nodes", [3, 175, 300])
def test_operators_of_long_paths_keep_small_eigenvalues(nodes, double):
    with jax.enable_x64(double):
        operators = zcdp_nfl.operators(fl.graphs.path(nodes))
        least = 2 - 2 * np.cos(np.pi / nodes)
        close(operators.phi_min, least, rtol=1e-6)
        close(operators.phi_max, 2 + 2 * np.cos(np.pi / nodes), rtol=1e-6)
        root = np.asarray(operators.root, np.float64)
        close(2 * root @ root, operators.laplacian, atol=1e-5)
        traced = jax.jit(zcdp_nfl.operators)(fl.graphs.path(nodes))
        close(traced.phi_min, least, rtol=1e-6)


def test_each_component_has_one_eigenvalue_of_zero():
    edges = [(0, 1), (1, 2), (3, 4)]
    network = fl.graphs.from_edges(6, edges, allow_disconnected=True)
    assert zcdp_nfl.operators(network).phi_min == pytest.approx(1)  # of the path of three
    without = fl.graphs.from_edges(3, np.zeros((0, 2), int), allow_disconnected=True)
    assert zcdp_nfl.operators(without).phi_min == np.inf


def test_bounds_of_connected_networks_refuse_others():
    problem = problem_of("all features")
    network = fl.graphs.from_edges(CLIENTS, [(0, 1)], allow_disconnected=True)
    simulation = fl.Simulation(
        dataclasses.replace(problem, clip=1.0),
        fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
        network,
        privacy=fl.privacy.ZCDP(total_rho=1.0, decay=0.9),
        allow_disconnected=True,
    )
    with pytest.raises(ValueError, match="the graph is disconnected"):
        zcdp_nfl.privacy_accuracy_bound(simulation, 9)
